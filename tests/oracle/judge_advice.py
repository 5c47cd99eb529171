#!/usr/bin/env python
"""Ask XLA whether advice keeps its promise: compile programs before and after the change.

    python tests/oracle/judge_advice.py                  all programs into tests/fixtures/advice
    python tests/oracle/judge_advice.py --only tensor    those whose name starts with "tensor" again
    python tests/oracle/judge_advice.py --new            those that have not been compiled yet

Writes the scheduled text of each program of ``advice_cases`` into ``programs.tar.xz``, and into
``truth.json`` what XLA says of it: the peak, the bytes of arguments, the bytes that arguments,
results and temporary values hold, FLOPs; and what is counted here from the text: the payload and ring
wire bytes of its collectives, the payload of all-gathers and of asynchronous collectives with no work
meanwhile, bytes between device and host, bytes that copies read and write, and the compiler's own
estimate of cycles.  For each pair of
programs ``truth.json`` has by how much their values differ on CPU devices (``judge_values.py``).
``tests/test_advice_judged.py`` compares.  Needs an environment with ``jax[tpu]==0.10.2``; no
accelerator is needed.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import pathlib
import re
import sys
import tarfile
import time

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
TARGET = FIXTURES / "advice"
sys.path.insert(0, str(FIXTURES))

# The scripts of the fixtures are found only now; `make_dumps` sets the environment before JAX starts.
import make_dumps  # noqa: E402 - see above

# isort: split
import advice_cases  # noqa: E402 - see above
import advice_programs  # noqa: E402 - see above
import jax  # noqa: E402 - see above
import judge_values  # noqa: E402 - see above
import numpy as np  # noqa: E402 - see above
from jax._src import source_info_util  # noqa: E402 - see above
from jax.experimental import topologies  # noqa: E402 - see above
from jax.sharding import Mesh  # noqa: E402 - see above

# Texts must not depend on the lines of this script.
source_info_util.register_exclusion(__file__)

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
BITS = {"pred": 8, "s8": 8, "u8": 8, "bf16": 16, "f16": 16, "s32": 32, "u32": 32, "f32": 32}


def mesh_of(where, axes):
    """The devices of a topology (``v5e:2x2 x2``: two slices of it), or of this host, as a mesh."""
    if where == advice_cases.CPU:
        devices = jax.devices("cpu")
    else:
        name, _, slices = where.partition(" x")
        more = {"num_slices": int(slices)} if slices else {}
        devices = topologies.get_topology_desc(platform="tpu", topology_name=name, **more).devices
    return Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))


def bytes_of(shapes):
    """Unpadded bytes of the arrays in a text of shapes."""
    total = 0
    for dtype, sizes in re.findall(r"\b([a-z]+[0-9]*)\[([0-9,]*)\]", shapes):
        if dtype in BITS:
            total += math.prod(int(size) for size in sizes.split(",") if size) * BITS[dtype] // 8
    return total


def group_size(line, devices):
    """Devices in each group of a collective."""
    if listed := re.search(r"replica_groups=\{\{([0-9,]+)\}", line):
        return listed[1].count(",") + 1
    if tiled := re.search(r"replica_groups=\[[0-9]+,([0-9]+)\]<=", line):
        return int(tiled[1])
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\].*?\{([^}]*)\}", line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", named[2]))
    return devices


def computations(text):
    """The lines of each computation, by name."""
    found, name = {}, None
    for line in text.splitlines():
        if opened := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            name = opened[1]
            found[name] = []
        elif name and line.startswith("  "):
            found[name].append(line)
    return found


def loops(text, all_lines):
    """The computations that loops run."""
    looped = set()
    waiting = re.findall(r"\bbody=%?([\w.\-]+)", text)
    while waiting:
        name = waiting.pop()
        if name not in looped:
            looped.add(name)
            called = re.findall(r"(?:calls|to_apply|body)=%?([\w.\-]+)", "\n".join(all_lines[name]))
            waiting += [other for other in called if other in all_lines]
    return looped


def collectives(text, devices, trips):
    """Payload and ring wire bytes of all collectives; loops run ``trips`` times.

    Fusions that overlap computing with a collective contain copies of it, with its channel.  An
    all-reduce inside a computation named all-reduce-scatter is a reduce-scatter.
    """
    all_lines = computations(text)
    looped = loops(text, all_lines)
    fused = set(re.findall(r"\bfusion\(.*?\bcalls=%?([\w.\-]+)", text))
    seen, payload, wire, gathered = set(), 0, 0, 0
    for name, lines in all_lines.items():
        for line in lines:
            found = re.match(
                r"  (?:ROOT )?%?([\w.\-]+) = (.*?) (" + "|".join(KINDS) + r")(-start)?\(", line
            )
            if not found:
                continue
            instruction, shapes, kind, start = found.groups()
            channel = re.search(r"channel_id=(\d+)", line)
            key = (kind, channel[1] if channel and name in fused else instruction)
            if key in seen:
                continue
            seen.add(key)
            size = group_size(line, devices)
            out = bytes_of(shapes)
            if start and kind == "all-gather":
                out = bytes_of(shapes) * size // (size + 1)
            if start and kind == "collective-permute":
                out = bytes_of(shapes) // 2
            if "all-reduce-scatter" in name:
                kind = "reduce-scatter"
            elif kind == "reduce-scatter":
                out *= size
            times = trips if name in looped else 1
            factor = {"all-reduce": 2 * (size - 1), "collective-permute": size}.get(kind, size - 1)
            payload += out * times
            gathered += out * times * (kind == "all-gather")
            wire += out * factor // size * times
    return {"payload": payload, "wire": wire, "gathered": gathered}


def copied(text, trips):
    """Bytes that copies and transposes outside fusions read and write, at least 64 kB each."""
    all_lines = computations(text)
    looped = loops(text, all_lines)
    fused = set(re.findall(r"\bfusion\(.*?\bcalls=%?([\w.\-]+)", text))
    total = 0
    for name, lines in all_lines.items():
        for line in lines if name not in fused else ():
            found = re.match(r"  (?:ROOT )?%?([\w.\-]+) = (\S+) (copy|transpose|fusion)\(", line)
            if not found or "S(5)" in found[2]:
                continue
            is_copy = found[3] != "fusion" or found[1].startswith(("copy", "transpose"))
            if is_copy and (size := bytes_of(found[2])) >= 1 << 16:
                total += 2 * size * (trips if name in looped else 1)
    return total


def cycles_of(line):
    """The compiler's estimate for one instruction; 0 without one."""
    found = re.search(r'"estimated_cycles":"?(\d+)', line)
    return int(found[1]) if found else 0


def schedule(text, trips):
    """Cycles by the compiler's estimate, bytes to and from the host, payload sent with no work
    between start and done, and bytes of copies."""
    all_lines = computations(text)
    looped = loops(text, all_lines)
    cycles, host, uncovered = 0, 0, 0
    for name, lines in all_lines.items():
        times = trips if name in looped else 1
        # By name of a start: its payload, and the cycles before it.
        open_starts, passed = {}, 0
        for line in lines:
            found = re.match(
                r"  (?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\(%?([\w.\-]*)", line
            )
            if not found:
                continue
            instruction, shapes, opcode, operand = found.groups()
            passed += cycles_of(line)
            if opcode == "copy-start" and "S(5)" in shapes:
                host += bytes_of(shapes.partition("),")[0]) // 2 * times
            if opcode.endswith("-start") and opcode[: -len("-start")] in KINDS:
                open_starts[instruction] = (bytes_of(shapes) // 2, passed)
            if opcode.endswith("-done") and operand in open_starts:
                payload, before = open_starts.pop(operand)
                uncovered += payload * times * (passed == before)
        cycles += passed * times
    return {"cycles": cycles, "host": host, "uncovered": uncovered, "copied": copied(text, trips)}


def judge(name):
    """The text of a program, and XLA's figures."""
    where, axes, *_ = advice_cases.PROGRAMS[name]
    mesh = mesh_of(where, axes)
    step, values, options = judge_values.build(name, mesh)
    with jax.set_mesh(mesh):
        lowered = jax.jit(step, **options).lower(*values)
        compiled = lowered.compile()
    text, memory = compiled.as_text(), compiled.memory_analysis()
    trips = advice_programs.LAYERS
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    read = lowered.as_text(dialect="hlo") if name in advice_cases.LOWERED else text
    return read, {
        "where": where,
        "mesh": axes,
        "peak": memory.peak_memory_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "held": held,
        "flops": int(compiled.cost_analysis().get("flops", 0)),
        **collectives(text, mesh.size, trips),
        **schedule(text, trips),
    }


def main():
    """Compile, and write what is new beside what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="programs whose name starts with this")
    parser.add_argument("--new", action="store_true", help="programs that were not compiled yet")
    parser.add_argument("--values", action="store_true", help="compare values only")
    options = parser.parse_args()
    archive, truth = TARGET / "programs.tar.xz", TARGET / "truth.json"
    texts, known = {}, {"programs": {}}
    if truth.exists():
        known = json.loads(truth.read_text())
        with tarfile.open(archive) as old:
            texts = {member.name: old.extractfile(member).read() for member in old}
    for name in advice_cases.PROGRAMS:
        is_new = name not in known["programs"] or not options.new
        if name.startswith(options.only) and is_new and not options.values:
            start = time.monotonic()
            text, known["programs"][name] = judge(name)
            texts[f"{name}.txt"] = text.encode()
            print(
                f"{name:24} {time.monotonic() - start:5.1f} s {known['programs'][name]}", flush=True
            )
    for name, record in known["programs"].items():
        # What is counted here also of programs that were compiled earlier.
        if name not in advice_cases.LOWERED:
            text = texts[f"{name}.txt"].decode()
            record |= collectives(text, math.prod(record["mesh"].values()), advice_programs.LAYERS)
            record |= schedule(text, advice_programs.LAYERS)
    pairs = {(before, after) for _, before, after, *_ in advice_cases.HELPS}
    values = known.setdefault("values", {})
    for before, after in sorted(pairs):
        is_new = f"{before} {after}" not in values or not options.new
        if before.startswith(options.only) and is_new:
            try:
                values[f"{before} {after}"] = judge_values.difference(before, after)
            except Exception as error:
                print(f"{before} {after}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                values[f"{before} {after}"] = None
    known["values"] = dict(sorted(values.items()))
    known["versions"] = make_dumps.versions()
    TARGET.mkdir(exist_ok=True)
    names = sorted(advice_cases.PROGRAMS)
    names = [name for name in names if name in known["programs"]]
    known["programs"] = {name: known["programs"][name] for name in names}
    texts = {f"{name}.txt": texts[f"{name}.txt"] for name in names}
    truth.write_text(json.dumps(known, indent=1) + "\n")
    with tarfile.open(archive, "w:xz", preset=9) as new:
        for name in sorted(texts):
            member = tarfile.TarInfo(name)
            member.size = len(texts[name])
            new.addfile(member, io.BytesIO(texts[name]))


if __name__ == "__main__":
    main()
