"""Whether XLA loads the protobufs that hlofast writes, and what it prints of them.

Run in an environment that has hlofast and jaxlib 0.10.2:

    python tests/oracle/check_written.py FILE...

Every module of the files (texts, protobufs, or ``.jsonl.gz`` of probes with their verdicts) is
written with ``Module.to_proto`` and loaded by XLA; what XLA prints then is compared with what
hlofast reads from the same protobuf (that this is the module that was written is tested without
XLA): every computation line by line, the header, the names of operations. XLA works in child
processes, since it aborts on some modules.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import hlofast

# Header attributes that XLA does not print after reading a protobuf.
NOT_PRINTED = {
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
        proto = base64.b64decode(line)
        text = _hlo.HloModule.from_serialized_hlo_module_proto(proto).to_string()
    except Exception as error:
        print(json.dumps({"fault": str(error).splitlines()[0]}), flush=True)
    else:
        print(json.dumps({"text": text}), flush=True)
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
    for found in hlofast.find_modules(content):
        if found.module is not None:
            yield f"{path.name}:{found.line}", found.module


def loaded(protos):
    """What XLA prints of each, or why it refuses it."""
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


def computations(module):
    """The instructions of each computation: in order if that is the schedule."""
    text = module.to_text(metadata=False)
    blocks = [block.splitlines() for block in text.split("\n\n")[1:]]
    return Counter(tuple(block if module.is_scheduled else sorted(block)) for block in blocks)


def difference(module, text):
    """In what the module that XLA prints differs from ``module``; None if in nothing. Stack frames
    get other numbers there."""
    again = hlofast.loads(text)
    if computations(module) != computations(again):
        return "instructions"
    own, other = module.header.texts(), again.header.texts()
    for key in other:
        if own.get(key) != other[key] and key != "entry_computation_layout":
            return key
    if set(own) - set(other) - NOT_PRINTED:
        return ", ".join(sorted(set(own) - set(other) - NOT_PRINTED))
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
        fault = result.get("fault") or difference(hlofast.loads(proto), result["text"])
        if fault:
            faults.append(f"{name}: {fault}")
    found = {"modules": len(written), "refused": refused, "faults": faults}
    if arguments.json:
        print(json.dumps(found))
    else:
        print("\n".join([*(f"not written: {one}" for one in refused), *faults]))
        print(f"{len(written) - len(faults)} of {len(written)} modules are what was written")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
