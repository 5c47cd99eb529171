"""Whether hlofast's XLA-compatible cost is what XLA says, for modules and single computations.

Run in an environment that has hlofast; XLA is asked in a child process of an interpreter that has
jaxlib 0.10.2 (``--jax-python``, default the same interpreter)::

    python tests/oracle/check_cost.py FILE-OR-FOLDER...
    python tests/oracle/check_cost.py --modules-only FILE-OR-FOLDER...

Beside a dump that a TPU compiler made, ``NAME.compiled_cost.json`` (``make_dumps.py`` writes it) is
compared with the figures for TPU: FLOPs and transcendentals bit for bit, bytes to a relative 1e-4
and 5 kB for each asynchronous start, since the compiler adds tables of its own.

Of the module the whole dictionary is compared, sums by operand included, of every computation made
the entry by itself FLOPs, transcendentals and bytes: bit for bit when hlofast accumulates 32-bit
floats in XLA's order, and to a relative 1e-4 when it keeps exact integers.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fixtures"))

import xla_cost

import hlofast

PROPERTIES = ("flops", "transcendentals", "bytes_accessed")
RELATIVE = 1e-4
TABLES_OF_ONE_START = 5120
START = re.compile(r" [a-z-]*-start\(")


def texts(paths):
    """The files named, and those with HLO text in the folders named."""
    for path in paths:
        if path.is_dir():
            yield from sorted([*path.rglob("*.txt"), *path.rglob("*.txt.gz")])
        else:
            yield path


def figures_of(cost):
    """hlofast's figures of a module (under no name) and of each computation."""
    figures = {None: tuple(getattr(cost, name) for name in PROPERTIES)}
    for row in cost.computations:
        figures[row["computation"]] = tuple(row[name] for name in PROPERTIES)
    return figures


def close(ours, theirs):
    """Whether the figures agree up to XLA's rounding of sums."""
    return all(
        abs(our - their) <= RELATIVE * max(abs(their), 1) for our, their in zip(ours, theirs)
    )


def dictionary_problem(ours, theirs, relative):
    """Where two dictionaries of ``cost_analysis`` differ, or None; absent is 0, nan is nan."""
    for name in sorted(ours.keys() | theirs.keys()):
        our, their = ours.get(name, 0.0), theirs.get(name, 0.0)
        if math.isnan(our) and math.isnan(their):
            continue
        if not abs(our - their) <= relative * max(abs(their), 1):
            return f"{name}: {our}, XLA {their}"
    return None


def check_dictionary(path, module, theirs, counts):
    """Compare the whole dictionary of a module."""
    for kind, relative in (("float32", 0.0), ("exact", RELATIVE)):
        cost = module.cost(xla=True, backend="cpu", float32=kind == "float32")
        problem = dictionary_problem(cost.cost_analysis(), theirs, relative)
        counts[f"{kind} dictionaries {'different' if problem else 'equal'}"] += 1
        if problem:
            print(f"{path.name}, {kind} dictionary: {problem}", flush=True)
    counts["keys"] += len(theirs)


def expected_figures(oracle, text, modules_only):
    """XLA's figures, with the names of ``figures_of``; refusals are strings."""
    yield None, oracle.figures(text)
    if not modules_only:
        for name, alone in xla_cost.computations_as_entries(text):
            yield name, oracle.figures(alone)


def check_compiled(path, text, module, counts):
    """Compare with what the TPU compiler says, where that stands beside the text."""
    name = path.name.removesuffix(".gz").removesuffix(".txt")
    beside = path.with_name(f"{name}.compiled_cost.json")
    if not (name.startswith("tpu") and beside.exists()):
        return
    theirs = json.loads(beside.read_text())
    cost = module.cost(xla=True, backend="tpu", float32=True)
    ours = [float(getattr(cost, name)) for name in PROPERTIES]
    expected = [theirs.get(name, 0.0) for name in ("flops", "transcendentals", "bytes accessed")]
    allowed = RELATIVE * expected[2] + TABLES_OF_ONE_START * len(START.findall(text))
    equal = ours[:2] == expected[:2] and abs(ours[2] - expected[2]) <= allowed
    counts[f"compiled programs {'equal' if equal else 'different'}"] += 1
    if not equal:
        print(f"{path.name}, for TPU: {ours}, compiler {expected}", flush=True)


def check(path, oracle, modules_only, counts, limit):
    """Compare one file; prints differences and adds to ``counts``."""
    text = xla_cost.read_text(path)
    expected = dict(expected_figures(oracle, text, modules_only))
    if isinstance(expected[None], str):
        counts["texts XLA refuses"] += 1
        print(f"{path.name}: XLA refuses: {expected[None][:200]}")
        return
    module = hlofast.loads(text)
    check_compiled(path, text, module, counts)
    check_dictionary(path, module, oracle.properties(text), counts)
    emulated = figures_of(module.cost(xla=True, backend="cpu", float32=True))
    exact = figures_of(module.cost(xla=True, backend="cpu"))
    shown = 0
    for name, theirs in expected.items():
        kind = "modules" if name is None else "computations"
        if isinstance(theirs, str):
            counts[f"{kind} XLA refuses"] += 1
            continue
        theirs = tuple(theirs[:3])
        ours, integers = emulated.get(name), exact.get(name)
        if ours is None or integers is None:
            problem = "absent"
        elif tuple(map(float, ours)) != theirs:
            problem = f"float32 {ours}, XLA {theirs}"
        elif not close(integers, theirs):
            problem = f"exact {integers}, XLA {theirs}"
        else:
            counts[f"{kind} equal"] += 1
            continue
        counts[f"{kind} different"] += 1
        shown += 1
        if shown <= limit:
            print(f"{path.name}, {name or 'the module'}: {problem}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--jax-python", default=sys.executable, help="interpreter with jaxlib")
    parser.add_argument("--modules-only", action="store_true", help="not each computation")
    parser.add_argument("--limit", type=int, default=5, help="differences shown per text")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    started = time.monotonic()
    with xla_cost.Oracle(arguments.jax_python) as oracle:
        for path in texts(arguments.paths):
            counts["texts"] += 1
            check(path, oracle, arguments.modules_only, counts, arguments.limit)
    print(", ".join(f"{count} {word}" for word, count in counts.items()), end="")
    print(f", {time.monotonic() - started:.0f} s")
    wrong = any("different" in word for word in counts)
    return 1 if wrong or not counts["modules equal"] else 0


if __name__ == "__main__":
    sys.exit(main())
