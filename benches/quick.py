"""The quick set: each verb on a few dumps, compared with XLA where jaxlib is installed.

pytest benches [--dumps=PATH]

README.md in this folder says how to save and compare runs.
"""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import hlofast
import work
from harness import BENCHES, CHECKOUT, bare_python
from texts import Text

FOLDER = CHECKOUT / "tests" / "fixtures" / "dump_folders"
ROUNDS = 20
"""Rounds of work that needs a new module per call, which pytest-benchmark cannot calibrate."""
READ_BY_XLA = (
    "import sys, work; text = open(sys.argv[1]).read(); "
    "work.xla_cost_analysis()(work.xla_parser()(text))"
)


def rate(benchmark: Any, size: int) -> None:
    """Records the bytes of text per call, and MB/s of the fastest call."""
    benchmark.extra_info["bytes"] = size
    if benchmark.stats is not None:  # None with --benchmark-disable.
        benchmark.extra_info["MB/s"] = round(size / 1e6 / benchmark.stats.stats.min, 2)


def over(
    benchmark: Any, text: Text, ask: Callable[[Any], object], make: Callable[..., Any]
) -> None:
    """Times `ask` alone, each time on a fresh module from `make`, because modules cache results."""
    data = text.read()

    def fresh() -> tuple[tuple[Any], dict[str, Any]]:
        return (make(data),), {}

    benchmark.pedantic(ask, setup=fresh, rounds=ROUNDS)
    rate(benchmark, len(data))


@cache
def parsed_by_xla(text: Text, directory: Path) -> Any:
    """XLA's module. XLA may abort the process on text that it cannot read, so a separate process
    reads the user's dumps first.
    """
    data = text.read()
    if text.own:
        copy = directory / "text"
        copy.write_bytes(data)
        command = [sys.executable, "-c", READ_BY_XLA, str(copy)]
        done = subprocess.run(command, cwd=BENCHES, capture_output=True, text=True)
        if done.returncode:
            raised = [line for line in done.stderr.splitlines() if "Error: " in line]
            reason = raised[-1] if raised else f"exit code {done.returncode}"
            return pytest.skip(f"XLA does not read {text.name}: {reason[:200]}")
    return work.xla_parser()(data.decode())


@pytest.mark.parametrize("who", ["hlofast", "hlofast_strict", "xla"])
def bench_parse(
    text: Text, who: str, benchmark: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    data = text.read()
    benchmark.group = f"parse: {text.label()}"
    if who == "xla":
        parse = request.getfixturevalue("xla_parse")
        parsed_by_xla(text, tmp_path)
        decoded = data.decode()
        benchmark(parse, decoded)
    elif who == "hlofast":
        benchmark(work.plain, data)
    else:
        try:
            work.strict(data)
        except hlofast.ParseError as error:
            if not text.own:
                raise
            pytest.skip(f"strict parsing refuses {text.name}: {str(error).splitlines()[0]}")
        benchmark(work.strict, data)
    rate(benchmark, len(data))


@pytest.mark.parametrize("who", ["hlofast", "xla"])
def bench_cost(
    text: Text, who: str, benchmark: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    benchmark.group = f"cost of a parsed module: {text.label()}"
    if who == "hlofast":
        over(benchmark, text, work.count, work.decoded)
        return
    cost = request.getfixturevalue("xla_cost")
    module = parsed_by_xla(text, tmp_path)
    benchmark.pedantic(cost, args=(module,), rounds=ROUNDS)
    rate(benchmark, text.size())


def bench_memory(text: Text, benchmark: Any) -> None:
    benchmark.group = "memory of a parsed module"
    over(benchmark, text, work.peak, hlofast.loads)


def bench_collectives(text: Text, benchmark: Any) -> None:
    benchmark.group = "collectives of a parsed module"
    over(benchmark, text, lambda module: module.collectives(), hlofast.loads)


def bench_lint(text: Text, benchmark: Any) -> None:
    benchmark.group = "lint of a parsed module"
    over(benchmark, text, lambda module: module.lint(), hlofast.loads)


@pytest.mark.parametrize("who", ["hlofast", "xla_parse_only"])
def bench_scan(who: str, benchmark: Any, request: pytest.FixtureRequest) -> None:
    scanned = hlofast.scan(FOLDER, tables=["modules"])
    texts = [Text(Path(row["path"]).name, Path(row["path"])) for row in scanned.files
             if row["status"] == "read" and ".pb" not in row["path"]]  # fmt: skip
    benchmark.group = f"scan of a folder, {len(scanned.files)} files"
    if who == "hlofast":
        benchmark(hlofast.scan, FOLDER)
        return
    parse = request.getfixturevalue("xla_parse")
    decoded = [text.read().decode() for text in texts]
    benchmark(lambda: [parse(each) for each in decoded])


@pytest.mark.parametrize("what", ["python", "import_hlofast", "hlofast_summary"])
def bench_start(what: str, benchmark: Any, tmp_path: Path) -> None:
    step = CHECKOUT / "tests" / "fixtures" / "train_step.after_optimizations.txt"
    command = {
        "python": bare_python(),
        "import_hlofast": [sys.executable, "-c", "import hlofast"],
        "hlofast_summary": [sys.executable, "-m", "hlofast", "summary", str(step)],
    }[what]
    benchmark.group = "start of a process"
    # Not in the checkout, whose package folder has no compiled module.
    run = {"check": True, "stdout": subprocess.DEVNULL, "cwd": tmp_path}
    benchmark.pedantic(subprocess.run, args=(command,), kwargs=run, rounds=ROUNDS)
