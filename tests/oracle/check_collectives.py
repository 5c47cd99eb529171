"""Whether hlofast lists the collectives that XLA's own instruction graph has, each once.

Run in an environment that has hlofast::

    python tests/oracle/check_collectives.py FOLDER...
    python tests/oracle/check_collectives.py --jax-python PYTHON FILE-OR-FOLDER...

Beside ``NAME.txt`` a record ``NAME.json`` of ``make_sharded.py`` has the instructions of the
compiled program's graph, the mesh it was compiled for, and which of its axes each collective goes
along: all three are compared. Other texts are parsed by XLA in an interpreter that has jaxlib
0.10.2, and the instructions are compared.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fixtures"))

import collective_lists

import hlofast

FIXTURES = Path(collective_lists.__file__).parent
VIEW = """
import json, sys
sys.path.insert(0, sys.argv[1])
import xla_view
print(json.dumps(xla_view.view(sys.stdin.read())["computations"]))
"""


def texts(paths):
    """The files named, and those with HLO text in the folders named."""
    for path in paths:
        if path.is_dir():
            yield from sorted([*path.rglob("*.txt"), *path.rglob("*.txt.gz")])
        else:
            yield path


def record_beside(path):
    """The record of a program of known mesh, or None."""
    beside = path.with_name(path.name.removesuffix(".gz").removesuffix(".txt") + ".json")
    if not beside.exists():
        return None
    record = json.loads(beside.read_text())
    return record if isinstance(record, dict) and "collectives" in record else None


def graph_of(path, python):
    """XLA's graph of a text, or None if XLA refuses it."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    command = [python, "-c", VIEW, str(FIXTURES)]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    if done.returncode:
        print(f"{path.name}: XLA refuses: {done.stderr.decode()[-200:]}")
        return None
    return {"computations": json.loads(done.stdout)}


def check(path, python, counts):
    """Compare one file; prints differences and adds to ``counts``."""
    try:
        module = hlofast.load(path)
    except hlofast.ParseError as error:
        counts["texts hlofast refuses"] += 1
        print(f"{path.name}: {error}")
        return
    record = record_beside(path)
    if record is not None:
        slices = record["slices"] if record["slices"] > 1 else None
        collectives = module.collectives(hlofast.Mesh(record["mesh"], slices=slices))
        wrong = collective_lists.axis_differences(collectives, record)
        counts["axes compared"] += sum("axes" in row for row in record["collectives"])
        counts["axes different"] += len(wrong)
        for row in wrong[:5]:
            print(f"{path.name}: axes {row}")
        expected = collective_lists.of_truth(record)
    elif python is None:
        counts["texts without a record"] += 1
        return
    else:
        graph = graph_of(path, python)
        if graph is None:
            counts["texts XLA refuses"] += 1
            return
        collectives, expected = module.collectives(), collective_lists.of_view(graph)
    counts["instructions"] += expected.total()
    problem = collective_lists.difference(collectives, expected)
    counts[f"texts {'different' if problem else 'equal'}"] += 1
    if problem:
        print(f"{path.name}: {problem}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--jax-python", help="interpreter with jaxlib, for texts without a record")
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    for path in texts(arguments.paths):
        counts["texts"] += 1
        check(path, arguments.jax_python, counts)
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    wrong = counts["texts hlofast refuses"] or counts["texts different"] or counts["axes different"]
    return 1 if wrong or not counts["instructions"] else 0


if __name__ == "__main__":
    sys.exit(main())
