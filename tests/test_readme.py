"""README.md and docs/ show real output; BLESS=1 updates them."""

import argparse
import importlib
import re
from pathlib import Path

import pytest

import console
from conftest import CHECKOUT
from hlofast.cli import VERBS, file_of
from test_cli import hlofast_command

README = CHECKOUT / "README.md"
COMMANDS = CHECKOUT / "docs" / "commands.md"
PYTHON = CHECKOUT / "docs" / "python.md"
PAGES = sorted(CHECKOUT.glob("docs/commands/*.md"))
OTHERS = [
    CHECKOUT / "docs" / name for name in ("pytorch_xla.md", "figures.md", "ci.md", "agents.md")
]
DOCUMENTS = (README, COMMANDS, PYTHON, *PAGES, *OTHERS)


EXTRAS = {
    "query": ("duckdb", "pyarrow"),
    "report": ("bokeh",),
    "config": ("yaml",),
    "plan": ("yaml",),
    "top": ("textual",),
}
"""What a verb needs to print what it does here."""


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the guide, with the fixtures of the repository."""
    folder = tmp_path_factory.mktemp("docs") / "tour"
    done = hlofast_command("guide", "-o", folder)
    assert (done.returncode, done.stderr) == (0, "")
    (folder / "tests").symlink_to(CHECKOUT / "tests", target_is_directory=True)
    return folder


def test_the_readme_shows_the_dumps_of_the_guide(tour: Path) -> None:
    assert console.check(README, tour) == 2


def test_every_verb_has_a_page_with_output() -> None:
    assert {page.stem for page in PAGES} == set(VERBS)
    for page in PAGES:
        commands = [found[2] for found in console.BLOCK.finditer(page.read_text())]
        assert page.stem == "verdict" or any(
            command.split()[1] == page.stem for command in commands
        ), page


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda path: path.stem)
def test_commands_print_what_is_shown(page: Path, tour: Path) -> None:
    for package in EXTRAS.get(page.stem, ()):
        pytest.importorskip(package)
    ran = console.check(page, tour)
    assert ran == page.read_text().count("$ hlofast")


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
    assert "`history`, `profile`, `scan` and `guide` do not read it" in text
    without = {"config", "plan", "history", "scan", "query", "guide", "schema", "completion", "mcp"}
    for verb in VERBS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"hlofast.cli.{file_of(verb)}").configure(parser)
        words = parser.format_help()
        assert ("--json" in words) == (verb not in {"schema", "completion", "mcp"})
        assert ("--module" in words) == (verb not in without), verb
        takes_stdin = "standard input" in words
        own = {"history", "profile", "calibrate", "scan", "guide", "schema", "completion", "mcp"}
        assert takes_stdin == (verb not in own), verb
