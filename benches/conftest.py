"""Shared parts of the benches: options, peers, and one record per bench file."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# XLA's parser needs no device; without this JAX would look for one.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import texts
import work
from harness import BENCHES, Record

records: dict[str, Record] = {}
failed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--dumps", type=Path, action="append", default=[], metavar="PATH",
        help="time the quick set on this file, or on the largest modules below this folder",
    )  # fmt: skip
    # For run.py.
    parser.addoption("--quick", action="store_true", help="few rounds, fewer texts")
    parser.addoption("--results", type=Path, default=BENCHES / "results")
    parser.addoption("--accept", action="store_true", help="write the checksums found")


def pytest_configure(config: pytest.Config) -> None:
    # pytest looks for its configuration above every argument that could be a path: `--dumps PATH`
    # would hide benches/pytest.ini.
    if config.getoption("--dumps") and config.inipath != BENCHES / "pytest.ini":
        raise pytest.UsageError("write --dumps=PATH, with '='")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each bench of the quick set that takes a text on every text."""
    if "text" in metafunc.fixturenames and metafunc.module.__name__ == "quick":
        paths = metafunc.config.getoption("--dumps")
        try:
            selected = texts.chosen(paths) if paths else texts.committed()
        except OSError as error:
            raise pytest.UsageError(str(error)) from None
        metafunc.parametrize("text", selected, ids=[text.name for text in selected])


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(
    report: pytest.TestReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """Seconds instead of the word PASSED in verbose output."""
    if report.when == "call" and report.passed and config.get_verbosity() > 0:
        return "passed", ".", f"{report.duration:.1f} s"
    return None


@pytest.fixture
def quick(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--quick"))


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    name = request.path.stem.removeprefix("bench_")
    return records.setdefault(name, Record(name))


@pytest.fixture(scope="session")
def xla_parse() -> Callable[[str], Any]:
    """XLA's parser; without jaxlib, benches that need it are skipped."""
    pytest.importorskip("jaxlib", reason="jaxlib is not installed: nothing to compare with")
    return work.xla_parser()


@pytest.fixture(scope="session")
def xla_cost() -> Callable[[Any], dict[str, float]]:
    """XLA's cost analysis, with the sizes of its CPU client."""
    pytest.importorskip("jaxlib", reason="jaxlib is not installed: nothing to compare with")
    return work.xla_cost_analysis()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        failed.add(item.path.stem.removeprefix("bench_"))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the results of bench files that ran completely: not with a failure or with `-k`."""
    if session.config.option.collectonly or session.config.option.keyword:
        return
    for name, record in sorted(records.items()):
        if name not in failed and record.figures:
            quick = bool(session.config.getoption("--quick"))
            record.write(session.config.getoption("--results"), quick=quick)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, record in sorted(records.items()):
        terminalreporter.section(f"{name}{' (incomplete)' if name in failed else ''}")
        for figure in record.figures:
            sign = "<=" if figure.at_most is not None else ">="
            limit = figure.at_most if figure.at_most is not None else figure.at_least
            asked = "" if limit is None else f"(target {sign} {limit:g})"
            mark = " " if figure.met else "!"
            number = f"{figure.measured:9.3g} {figure.unit:3}"
            terminalreporter.write_line(f"{mark} {number} {asked:17} {figure.what}  {figure.note}")
