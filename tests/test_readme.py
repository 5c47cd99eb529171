"""README.md shows real output; BLESS=1 updates it."""

import argparse
import importlib
import re
from pathlib import Path

import pytest

import console
from conftest import CHECKOUT
from hlofast.cli import VERBS

pytestmark = pytest.mark.once

README = (CHECKOUT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


EXTRAS = {"query": ("duckdb", "pyarrow"), "report": ("bokeh",)}
"""What a verb needs to print what it does here."""


@pytest.mark.parametrize("verb", [None, *EXTRAS])
def test_console_examples_print_what_they_say(verb: str | None) -> None:
    for package in EXTRAS.get(verb or "", ()):
        pytest.importorskip(package)

    def is_meant(command: str) -> bool:
        own = command.split()[1]
        return own == verb or (verb is None and own not in EXTRAS)

    assert console.check(CHECKOUT / "README.md", CHECKOUT, is_meant)


def test_python_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    scope: dict[str, object] = {}
    assert PYTHON
    for example in PYTHON:
        exec(compile(example, "README.md", "exec"), scope)


def test_paths_named_exist() -> None:
    for path in re.findall(r"`((?:tests|\.ci)/[\w./]*)", README):
        assert Path(CHECKOUT / path).exists(), path


def test_verbs_have_the_options_that_are_said_of_them() -> None:
    """What stands below the table of commands."""
    text = " ".join(README.split())
    assert all(f"`hlofast {verb}" in text for verb in VERBS)
    assert (
        "`config` takes `-` too, `query` for its SQL, `history`, `scan` and `guide` neither" in text
    )
    without = {"config", "history", "scan", "query", "guide", "schema", "completion"}
    for verb in VERBS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"hlofast.cli.{verb}").configure(parser)
        words = parser.format_help()
        assert ("--json" in words) == (verb not in {"schema", "completion"})
        assert ("--module" in words) == (verb not in without), verb
        takes_stdin = "standard input" in words
        assert takes_stdin == (verb not in {"history", "scan", "guide", "schema", "completion"}), (
            verb
        )
