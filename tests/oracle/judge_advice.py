#!/usr/bin/env python
"""Ask XLA whether advice keeps its promise: compile programs before and after the change.

    python tests/oracle/judge_advice.py                  all programs into tests/fixtures/advice
    python tests/oracle/judge_advice.py --only tensor    those whose name contains "tensor" again

Writes the scheduled text of each program of ``advice_cases`` into ``programs.tar.xz``, and into
``truth.json`` what XLA says of it: the peak, the bytes of arguments, the bytes that arguments,
results and temporary values hold, FLOPs; and the payload and ring wire bytes of its collectives,
counted here from the text.  ``tests/test_advice_judged.py`` compares.  Needs an environment with
``jax[tpu]==0.10.2``; no accelerator is needed.
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


def collectives(text, devices, trips):
    """Payload and ring wire bytes of all collectives; loops run ``trips`` times.

    Fusions that overlap computing with a collective contain copies of it, with its channel.  An
    all-reduce inside a computation named all-reduce-scatter is a reduce-scatter.
    """
    all_lines = computations(text)
    looped = set()
    waiting = re.findall(r"\bbody=%?([\w.\-]+)", text)
    while waiting:
        name = waiting.pop()
        if name not in looped:
            looped.add(name)
            called = re.findall(r"(?:calls|to_apply|body)=%?([\w.\-]+)", "\n".join(all_lines[name]))
            waiting += [other for other in called if other in all_lines]
    fused = set(re.findall(r"\bfusion\(.*?\bcalls=%?([\w.\-]+)", text))
    seen, payload, wire = set(), 0, 0
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
            wire += out * factor // size * times
    return payload, wire


def judge(name):
    """The text of a program, and XLA's figures."""
    where, axes, function, arguments = advice_cases.PROGRAMS[name]
    mesh = mesh_of(where, axes)
    step, values, options = getattr(advice_programs, function)(mesh, **arguments)
    with jax.set_mesh(mesh):
        compiled = jax.jit(step, **options).lower(*values).compile()
    text, memory = compiled.as_text(), compiled.memory_analysis()
    payload, wire = collectives(text, mesh.size, advice_programs.LAYERS)
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return text, {
        "where": where,
        "mesh": axes,
        "peak": memory.peak_memory_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "held": held,
        "flops": int(compiled.cost_analysis().get("flops", 0)),
        "payload": payload,
        "wire": wire,
    }


def main():
    """Compile, and write what is new beside what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="programs whose name contains this")
    options = parser.parse_args()
    archive, truth = TARGET / "programs.tar.xz", TARGET / "truth.json"
    texts, known = {}, {"programs": {}}
    if truth.exists():
        known = json.loads(truth.read_text())
        with tarfile.open(archive) as old:
            texts = {member.name: old.extractfile(member).read() for member in old}
    for name in advice_cases.PROGRAMS:
        if options.only in name:
            start = time.monotonic()
            text, known["programs"][name] = judge(name)
            texts[f"{name}.txt"] = text.encode()
            print(
                f"{name:24} {time.monotonic() - start:5.1f} s {known['programs'][name]}", flush=True
            )
    known["versions"] = make_dumps.versions()
    TARGET.mkdir(exist_ok=True)
    names = sorted(advice_cases.PROGRAMS)
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
