"""Whether XLA loads the protobufs that hlofast writes, and what it makes of them.

Run in an environment that has hlofast and jaxlib 0.10.2:

    python tests/oracle/check_written.py FILE...

Every module of the files (texts, protobufs, or ``.jsonl.gz`` of probes with their verdicts) is
written with ``Module.to_proto`` and loaded by XLA; what XLA writes then is read and compared with what
hlofast reads from the same protobuf (that this is the module that was written is tested without
XLA): instructions, computations and schedule, the header, the names of operations. XLA works in child
processes, since it aborts on some modules.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import subprocess
import sys
from pathlib import Path

import hlofast

# Header attributes that XLA does not have after reading a protobuf.
NOT_KEPT = {
    "alias_passthrough_params",
    "allow_spmd_sharding_propagation_to_output",
    "allow_spmd_sharding_propagation_to_parameters",
    "num_partitions",
    "replica_count",
}

CHILD = r"""
import base64, json, sys
from jaxlib import _hlo
for line in sys.stdin:
    print(json.dumps({"begun": True}), flush=True)
    try:
        module = _hlo.HloModule.from_serialized_hlo_module_proto(base64.b64decode(line))
        module.to_string()
        proto = base64.b64encode(module.as_serialized_hlo_module_proto()).decode()
    except Exception as error:
        print(json.dumps({"fault": str(error).splitlines()[0]}), flush=True)
    else:
        print(json.dumps({"proto": proto}), flush=True)
"""


def modules(path):
    """Name and module of everything in a file."""
    if path.name.endswith(".jsonl.gz"):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            probe = json.loads(line)
            if probe.get("verdict", "accept") == "accept":
                try:
                    yield probe["id"], hlofast.loads(probe["text"])
                except hlofast.ParseError:
                    continue
        return
    content = path.read_bytes()
    if path.suffix == ".xz":
        import lzma

        content = lzma.decompress(content)
    for part in hlofast.find_modules(content):
        if part.module is not None:
            yield f"{path.name}:{part.line}", part.module


def loaded(protos):
    """What XLA writes of each, or why it refuses it."""
    rest = list(protos)
    while rest:
        lines = "".join(base64.b64encode(proto).decode() + "\n" for proto in rest)
        done = subprocess.run(
            [sys.executable, "-c", CHILD], input=lines, capture_output=True, text=True, check=False
        )
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        results = [answer for answer in answers if "begun" not in answer]
        yield from results
        begun = len(answers) - len(results)
        if begun > len(results):
            yield {"fault": f"XLA ended with {done.returncode}"}
        elif done.returncode and not begun:
            raise RuntimeError(done.stderr)
        rest = rest[begun:]


def bare(module):
    """The module with nothing in its header but whether the order of its text is a schedule."""
    header = "HloModule bare" + (", is_scheduled=true" if module.is_scheduled else "")
    return hlofast.loads(header + "\n" + module.to_text(metadata=False).split("\n", 1)[1])


def difference(module, again):
    """In what the module that XLA has differs from ``module``; None if in nothing. Stack frames
    get other numbers there."""
    if not bare(module).same_program(bare(again)):
        return "instructions"
    own, other = module.header.texts(), again.header.texts()
    for key in other:
        if own.get(key) != other[key] and key != "entry_computation_layout":
            return key
    if set(own) - set(other) - NOT_KEPT:
        return ", ".join(sorted(set(own) - set(other) - NOT_KEPT))
    return None if set(module.op_names) == set(again.op_names) else "op_name"


def main():
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    written, faults, refused = [], [], []
    for path in arguments.files:
        for name, module in modules(path):
            try:
                written.append((name, module.to_proto()))
            except hlofast.ParseError as error:
                refused.append(f"{name}: {error.message}")
    results = loaded(proto for _, proto in written)
    for (name, proto), result in zip(written, results, strict=True):
        fault = result.get("fault") or difference(
            hlofast.loads(proto), hlofast.loads(base64.b64decode(result["proto"]))
        )
        if fault:
            faults.append(f"{name}: {fault}")
    counts = {"modules": len(written), "refused": refused, "faults": faults}
    if arguments.json:
        print(json.dumps(counts))
    else:
        print("\n".join([*(f"not written: {refusal}" for refusal in refused), *faults]))
        print(f"{len(written) - len(faults)} of {len(written)} modules are what was written")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
