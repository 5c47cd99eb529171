"""Runs the benches and writes their results, checksums and the table of the README.

    python benches/run.py [--quick] [--accept] [NAME...]

Needs the package with its extra: `pip install '.[bench]'`. NAME is one of the bench_NAME.py; none
means all. `--quick` takes minutes off, and its results go to benches/.cache. `--accept` records
the checksums it finds instead of comparing.
"""

import argparse
import os
import sys
from pathlib import Path

import pytest

BENCHES = Path(__file__).resolve().parent
NAMES = sorted(path.stem.removeprefix("bench_") for path in BENCHES.glob("bench_*.py"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="few rounds, fewer texts")
    parser.add_argument("--accept", action="store_true", help="record the checksums found")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(NAMES)):
        parser.error(f"no bench {', '.join(unknown)}")
    results = BENCHES / (".cache/quick" if arguments.quick else "results")
    # The installed package is measured, not the checkout.
    os.chdir(BENCHES)
    sys.path.insert(0, str(BENCHES))
    status = pytest.main([
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
