"""README.md and docs/ show real output; BLESS=1 updates them."""

import argparse
import importlib
import re
from pathlib import Path

import pytest

import console
from conftest import CHECKOUT
from hlofast.cli import VERBS
from test_cli import hlofast_command

pytestmark = pytest.mark.once

README = CHECKOUT / "README.md"
COMMANDS = CHECKOUT / "docs" / "commands.md"
PYTHON = CHECKOUT / "docs" / "python.md"
DOCUMENTS = (
    README,
    COMMANDS,
    PYTHON,
    *(CHECKOUT / "docs" / name for name in ("ci.md", "agents.md")),
)


EXTRAS = {"query": ("duckdb", "pyarrow"), "report": ("bokeh",)}
"""What a verb needs to print what it does here."""


def test_the_readme_shows_the_dumps_of_the_guide(tmp_path: Path) -> None:
    done = hlofast_command("guide", "-o", tmp_path / "tour")
    assert (done.returncode, done.stderr) == (0, "")
    assert console.check(README, tmp_path / "tour") == 2


@pytest.mark.parametrize("verb", [None, *EXTRAS])
def test_commands_print_what_is_shown(verb: str | None) -> None:
    for package in EXTRAS.get(verb or "", ()):
        pytest.importorskip(package)

    def is_meant(command: str) -> bool:
        own = command.split()[1]
        return own == verb or (verb is None and own not in EXTRAS)

    assert console.check(COMMANDS, CHECKOUT, is_meant)


@pytest.mark.parametrize("document", [README, PYTHON], ids=lambda path: path.name)
def test_python_examples_run(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    scope: dict[str, object] = {}
    examples = re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, document.name, "exec"), scope)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_named_exist(document: Path) -> None:
    text = document.read_text()
    for path in re.findall(r"`((?:tests|\.ci)/[\w./]*)", text):
        assert (CHECKOUT / path).exists(), path
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (document.parent / path).exists(), path


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_verbs_have_the_options_that_are_said_of_them() -> None:
    """What stands below the table of commands."""
    text = " ".join(COMMANDS.read_text().split())
    assert all(f"`hlofast {verb}" in text for verb in VERBS)
    assert "`history`, `profile`, `scan` and `guide` read no standard input" in text
    without = {"config", "plan", "history", "scan", "query", "guide", "schema", "completion", "mcp"}
    for verb in VERBS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"hlofast.cli.{verb}").configure(parser)
        words = parser.format_help()
        assert ("--json" in words) == (verb not in {"schema", "completion", "mcp"})
        assert ("--module" in words) == (verb not in without), verb
        takes_stdin = "standard input" in words
        own = {"history", "profile", "calibrate", "scan", "guide", "schema", "completion", "mcp"}
        assert takes_stdin == (verb not in own), verb
