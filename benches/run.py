"""Runs the full set of benches; writes their results, checksums and the tables of both READMEs.

    python benches/run.py [--quick] [--accept] [NAME...]

Needs `pip install '.[bench-full]'`. The first run makes the dumps, in about 10 minutes. NAME
selects bench_NAME.py; without it all benches run, in about 15 minutes. `--quick` runs fewer rounds
and texts and writes its results to benches/.cache. `--accept` records checksums instead of
comparing them. For the quick set, run `pytest benches`.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

import pytest

BENCHES = Path(__file__).resolve().parent
NEEDED = ("jax", "jaxlib", "flax", "optax", "xprof", "pytest_benchmark")
NAMES = sorted(path.stem.removeprefix("bench_") for path in BENCHES.glob("bench_*.py"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="few rounds, fewer texts")
    parser.add_argument("--accept", action="store_true", help="record the checksums found")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(NAMES)):
        parser.error(f"no bench {', '.join(unknown)}")
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        parser.error(
            f"{', '.join(missing)} not installed: pip install '.[bench-full]'; "
            "the quick set needs less: pip install '.[bench]' && pytest benches"
        )
    results = BENCHES / (".cache/quick" if arguments.quick else "results")
    # An installed package has bytecode; without it every start compiles the package.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # The installed package is measured, not the checkout.
    os.chdir(BENCHES)
    sys.path.insert(0, str(BENCHES))
    # Verbose and uncaptured, to show the compilations, the running bench and its seconds.
    status = pytest.main([
        "-v", "-s", "-o", "console_output_style=classic",
        *(str(BENCHES / f"bench_{name}.py") for name in arguments.names or NAMES),
        "--config-file", str(BENCHES / "pytest.ini"), "--results", str(results),
        *(["--quick"] if arguments.quick else []), *(["--accept"] if arguments.accept else []),
    ])  # fmt: skip
    if not arguments.quick:
        import table

        table.update()
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
