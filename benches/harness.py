"""Interleaved timing, the facts recorded with a result, and the record itself."""

import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

BENCHES = Path(__file__).resolve().parent
CHECKOUT = BENCHES.parent
SCHEMA = "hlofast.benches"
PACKAGES = ("hlofast", "jaxlib", "xprof", "numpy", "pytest-benchmark")

Work = Callable[[], object]
Clock = Callable[[], float]


_began = time.perf_counter()


def say(what: str) -> None:
    """Prints the next step of the full run. Tests of the quick set capture it."""
    print(
        f"\n  [{time.perf_counter() - _began:5.0f} s] {what} ", end="", file=sys.stderr, flush=True
    )


@dataclass(frozen=True)
class Figure:
    """A measured number and its target."""

    what: str
    measured: float
    unit: str = "×"
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        above = self.at_least is None or self.measured >= self.at_least
        return above and (self.at_most is None or self.measured <= self.at_most)


@dataclass
class Record:
    """The results of one bench file: figures for the table, and their details."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)

    def write(self, folder: Path, *, quick: bool) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        content = {
            "schema": SCHEMA,
            "version": 1,
            "name": self.name,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "commit": commit(),
            "quick": quick,
            "machine": machine(),
            "versions": versions(),
            "figures": [asdict(figure) | {"met": figure.met} for figure in self.figures],
        }
        head = json.dumps(_rounded(content), indent=1, ensure_ascii=False).removesuffix("\n}")
        # One line for each text keeps the differences between two runs readable.
        details = ",\n".join(
            "  " + json.dumps(_rounded(detail), ensure_ascii=False) for detail in self.details
        )
        path.write_text(f'{head},\n "details": [\n{details}\n ]\n}}\n')
        return path


def _rounded(value: Any) -> Any:
    """Rounds to four significant digits, which is finer than the machine's noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def commit() -> str:
    """The commit that was measured; `+` says that the checkout had changes outside results."""
    git = ["git", "-C", str(CHECKOUT)]
    try:
        head = subprocess.check_output([*git, "rev-parse", "--short=12", "HEAD"], text=True)
        changes = subprocess.check_output(
            [*git, "status", "--porcelain", "--", ".", ":!benches", ":!README.md"], text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.strip() + ("+" if changes.strip() else "")


def machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.system()}


def versions() -> dict[str, str]:
    packages = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            packages[package] = "absent"
    return packages


def seconds(work: Work, clock: Clock = time.perf_counter) -> float:
    """Seconds that `work` takes; its result is dropped after the clock has stopped."""
    start = clock()
    result = work()
    end = clock()
    del result
    return end - start


@dataclass(frozen=True)
class Times:
    """Seconds of each round of one contestant."""

    rounds: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.rounds)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def facts(self) -> dict[str, Any]:
        return {"best": self.best, "median": self.median, "rounds": len(self.rounds)}


def interleave(
    contestants: dict[str, Work],
    rounds: int,
    *,
    turns: dict[str, int] | None = None,
    clock: Clock = time.perf_counter,
) -> dict[str, Times]:
    """Runs all contestants alternately, so that machine noise affects all of them equally.

    `turns` is the number of runs of a contestant per round: short work needs more chances to run
    undisturbed than long work.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, work in contestants.items():
                for _ in range((turns or {}).get(name, 1)):
                    times[name].append(seconds(work, clock))
    finally:
        if collecting:
            gc.enable()
    return {name: Times(tuple(seconds)) for name, seconds in times.items()}


def against(
    benchmark: Any, ours: Work, peers: dict[str, Work], rounds: int, *, turns: int = 5
) -> dict[str, Times]:
    """Times `ours` with pytest-benchmark, alternating with the peers.

    The peers run when pytest-benchmark sets up a round: after each round of the peers come `turns`
    rounds of `ours`. The result lists `ours` under the name "ours".
    """
    theirs: dict[str, list[float]] = {name: [] for name in peers}
    count = 0

    def set_up() -> None:
        nonlocal count
        if count % turns == 0:
            for name, peer in peers.items():
                theirs[name].append(seconds(peer))
            # A warm-up: the first run after a peer finds cold caches.
            seconds(ours)
        count += 1

    benchmark.pedantic(ours, setup=set_up, rounds=rounds * turns, iterations=1)
    times = {name: Times(tuple(seconds)) for name, seconds in theirs.items()}
    for name, measured in times.items():
        benchmark.extra_info[name] = measured.facts()
    times["ours"] = Times(tuple(benchmark.stats.stats.data))
    return times


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def checksum(module: Any) -> int:
    """Over opcodes, shape ids, operand ids and called computations."""
    columns, total = module.columns, 0
    for name in (
        "opcode", "shape", "operand_offsets", "operands",
        "call_row", "call_computation", "call_role",
    ):  # fmt: skip
        total = zlib.crc32(memoryview(columns[name]).cast("B"), total)
    return total


def bare_python() -> list[str]:
    return [sys.executable, "-c", "pass"]
