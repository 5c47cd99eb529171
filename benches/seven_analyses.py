"""Seven analyses of a fresh module, compared with the time to parse it.

    python benches/seven_analyses.py [--texts 48] [--rounds 40]

Cost, matmuls, collectives, lint, memory, summary and fingerprint, one after the other on a module,
in processor time of one thread. The texts are the largest of `tests/fixtures`: dumps of CPU and TPU
programs of many kinds, before and after optimisation. Each figure is the best of several rounds.
Prints the sum over parsing for each text, and the geometric mean for each analysis.
"""

from __future__ import annotations

import argparse
import gzip
import lzma
import sys
import time
import warnings
from pathlib import Path

import hlofast
from harness import geometric_mean

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
FOLDERS = ("dumps", "maxtext_dumps", "peaks", "sharded", "stand_ins", "seedlike", "torch_xla")
NAMES = ("cost", "matmuls", "collectives", "lint", "memory", "summary", "fingerprint")
MOST_BYTES = 30_000_000
"""Bytes of text for all rounds of a text."""


def texts(count: int) -> list[tuple[str, bytes]]:
    """The largest texts, by name."""
    found = []
    for folder in FOLDERS:
        for path in sorted((FIXTURES / folder).rglob("*.txt*")):
            if ".inline." in path.name:
                continue
            data = path.read_bytes()
            data = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)(data)
            if data.startswith(b"HloModule"):
                found.append((f"{folder}/{path.name}", data))
    return sorted(found, key=lambda own: -len(own[1]))[:count]


def measure(data: bytes, rounds: int) -> tuple[float, dict[str, float]]:
    """Seconds to parse, and seconds of each analysis in the round of the least sum."""
    best, least = float("inf"), dict.fromkeys(NAMES, float("inf"))
    for _ in range(max(3, min(rounds, MOST_BYTES // len(data)))):
        begin = time.process_time()
        module = hlofast.loads(data, threads=1)
        best = min(best, time.process_time() - begin)
        own = {}
        for name in NAMES:
            begin = time.process_time()
            getattr(module, name)()
            own[name] = time.process_time() - begin
        if sum(own.values()) < sum(least.values()):
            least = own
    return best, least


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sums, each = [], {name: [] for name in NAMES}
    for name, data in texts(arguments.texts):
        parse, spent = measure(data, arguments.rounds)
        sums.append((sum(spent.values()) / parse, name))
        for own, seconds in spent.items():
            each[own].append(seconds / parse)
        print(f"{sums[-1][0]:6.2f}x {len(data):10,} B  {name}")
    for name, ratios in each.items():
        print(f"{name:12} {geometric_mean(ratios):.2f}x")
    mean = geometric_mean([ratio for ratio, _ in sums])
    worst, name = max(sums)
    print(f"sum over parsing, geometric mean of {len(sums)}: {mean:.2f}x (asked: at most 2.5x)")
    print(f"the worst: {worst:.2f}x, {name} (asked: at most 5x)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
