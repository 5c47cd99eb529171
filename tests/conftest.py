"""Shared by all Python tests: the seed documents, the rule for skips, the path of the package."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import hlofast
from browser import Browser, started
from hlofast.cli import main

# How long an example takes says how busy the machine is.
settings.register_profile("hlofast", deadline=None)
settings.load_profile("hlofast")

CHECKOUT = Path(__file__).resolve().parent.parent
FIXTURES = CHECKOUT / "tests" / "fixtures"
A100 = FIXTURES / "a100"
A100_STEP = next(A100.glob("*.hlo.pb.xz"))
A100_TRACE = A100 / "nvtx_gpu_proj_trace.csv.xz"
SHARDED = FIXTURES / "profiles" / "sharded.xplane.pb.xz"
SEVERAL = FIXTURES / "profiles" / "several.xplane.pb.xz"
LONG = os.environ.get("HLOFAST_LONG") == "1"
"""Whether tests that repeat something take the time for all repetitions."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="count a skipped test as a failure, unless it needs the seed documents",
    )


def seeds_folder() -> Path | None:
    """The folder HLOFAST_SEEDS names, else shared/seeds next to the checkout if there is one."""
    named = os.environ.get("HLOFAST_SEEDS")
    if named:
        folder = Path(named)
        if not folder.is_dir():
            raise pytest.UsageError(f"HLOFAST_SEEDS={named}: no such folder")
        return folder
    beside = CHECKOUT.parent / "shared" / "seeds"
    return beside if beside.is_dir() else None


class Seeds:
    """Access to the seed documents by their number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, number: str) -> Path:
        """The one document whose file name starts with `number`."""
        (match,) = sorted(self.folder.glob(f"{number}_*"))
        return match


@pytest.fixture(scope="session")
def seeds() -> Seeds:
    """The seed documents; the test is skipped where they are not available."""
    folder = seeds_folder()
    if folder is None:
        pytest.skip("no seed documents: set HLOFAST_SEEDS or put them in ../shared/seeds")
    return Seeds(folder)


@pytest.fixture(scope="session")
def train_step() -> Path:
    """The example dump of the README: an optimised train step, written by XLA."""
    return FIXTURES / "train_step.after_optimizations.txt"


@pytest.fixture(scope="session")
def decoder_70b() -> hlofast.config.Config:
    """A config of a decoder of 70 billion parameters, with mesh rules."""
    return hlofast.config.load(FIXTURES / "configs" / "decoder_70b.txt")


@pytest.fixture(scope="session")
def seed_config(seeds: Seeds) -> hlofast.config.Config:
    """The config among the seed documents."""
    return hlofast.config.load(seeds.path("004"))


@pytest.fixture(scope="session")
def a100() -> hlofast.Module:
    """A training step on A100 GPUs with its profile."""
    return hlofast.load(A100_STEP, device="a100", profile=A100_TRACE)


@pytest.fixture(scope="session")
def sharded() -> hlofast.Module:
    """A training step on eight CPU devices with its profile."""
    return hlofast.load(SHARDED, module="jit_train_step", profile=SHARDED)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """The command in this process: exit code, standard output, standard error."""

    def ran(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = int(str(exit_.code))
        return code, *capsys.readouterr()

    return ran


@pytest.fixture(scope="session")
def the_browser() -> Iterator[Browser]:
    """One browser for all tests; they are skipped where there is none."""
    yield from started()


@pytest.fixture
def browser(the_browser: Browser) -> Iterator[Browser]:
    """The browser; its pages are closed after the test."""
    yield the_browser
    the_browser.close_pages()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "seeds" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.seeds)


def pytest_collection_finish() -> None:
    """Leave what exists by now, such as ten thousand tests, out of each search for cycles."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    demanded = item.config.getoption("--no-skips") and not item.get_closest_marker("seeds")
    if report.skipped and not hasattr(report, "wasxfail") and demanded:
        report.outcome = "failed"
        report.longrepr = f"skipped, and --no-skips was given: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    if report.skipped and collector.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and --no-skips was given: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests really read the seed documents."""
    ran = skipped = 0
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.getreports(outcome):
            # Those of files that were skipped as a whole have none.
            if "seeds" in getattr(report, "keywords", ()):
                ran += outcome != "skipped"
                skipped += outcome == "skipped"
    terminalreporter.write_line(f"seed tests: {ran} ran, {skipped} skipped")


def pytest_sessionstart() -> None:
    """The tests are meant for the installed package; the source folder must not shadow it."""
    import hlofast

    place = Path(hlofast.__file__).resolve()
    if os.environ.get("HLOFAST_TEST_INSTALLED") and place.is_relative_to(CHECKOUT):
        raise pytest.UsageError(f"{place} is in the checkout, expected an installed package")
