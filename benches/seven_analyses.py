"""Seven analyses of a fresh module, compared with the time to parse it.

    python benches/seven_analyses.py [--texts 48] [--rounds 40] [--instructions]

Cost, matmuls, collectives, lint, memory, summary and fingerprint, one after the other on a module,
in processor time of one thread. The texts are the largest of `tests/fixtures`: dumps of CPU and TPU
programs of many kinds, before and after optimisation. Each figure is the best of several rounds.
Prints the sum over parsing for each text, and the geometric mean for each analysis.

`--instructions` counts machine instructions instead, those of Python included, in one round after
one of the smallest text. The load of the machine does not change the counts. Needs valgrind, which
knows no AVX-512, so that the kernels of the next lower level are counted.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import lzma
import os
import re
import subprocess
import sys
import tempfile
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


def run_marked(folder: Path) -> None:
    """Parses and analyses the texts in `folder`, the first one twice, with a mark before each step.

    The mark is a call of `getppid`, which Python does not call otherwise.
    """
    first, *others = sorted(folder.iterdir())
    gc.disable()
    for number, path in enumerate((first, first, *others)):
        data = path.read_bytes()
        mark = os.getppid if number else int
        mark()
        module = hlofast.loads(data, threads=1)
        for name in NAMES:
            mark()
            getattr(module, name)()
    os.getppid()


def count(all_texts: list[tuple[str, bytes]]) -> list[tuple[int, dict[str, int]]]:
    """Machine instructions to parse each text, and of each analysis."""
    with tempfile.TemporaryDirectory() as place:
        folder, out = Path(place) / "texts", Path(place) / "counted"
        folder.mkdir()
        for number, (_, data) in enumerate(reversed(all_texts)):
            (folder / f"{number:04}").write_bytes(data)
        subprocess.run(
            ["valgrind", "--tool=callgrind", "--dump-before=getppid",
             f"--callgrind-out-file={out}", sys.executable, __file__, "--marked", str(folder)],
            check=True, capture_output=True,
        )  # fmt: skip
        # The first part is what comes before the first mark.
        steps = [f"{out}.{part}" for part in range(2, 2 + len(all_texts) * (1 + len(NAMES)))]
        counted = [_total(Path(step)) for step in steps]
    each = [counted[at : at + 1 + len(NAMES)] for at in range(0, len(counted), 1 + len(NAMES))]
    return [(own[0], dict(zip(NAMES, own[1:], strict=True))) for own in reversed(each)]


def _total(part: Path) -> int:
    match = re.search(r"^(?:summary|totals): (\d+)", part.read_text(errors="replace"), re.M)
    if match is None:
        raise RuntimeError(f"valgrind counted nothing in {part.name}")
    return int(match[1])


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--instructions", action="store_true", help="count instead of timing")
    parser.add_argument("--marked", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.marked is not None:
        run_marked(arguments.marked)
        return 0
    chosen = texts(arguments.texts)
    measured = (
        count(chosen)
        if arguments.instructions
        else (measure(data, arguments.rounds) for _, data in chosen)
    )
    sums, each = [], {name: [] for name in NAMES}
    for (name, data), (parse, spent) in zip(chosen, measured, strict=True):
        sums.append((sum(spent.values()) / parse, name))
        for own, taken in spent.items():
            each[own].append(taken / parse)
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
