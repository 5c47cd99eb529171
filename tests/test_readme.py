"""What README.md shows is what happens. BLESS=1 writes what happens into it."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import CHECKOUT

pytestmark = pytest.mark.once

CONSOLE = re.compile(r"(```console\n\$ (hlofast .*)\n)((?:(?!```).*\n)*)```")
README = (CHECKOUT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def output_of(command: str) -> str:
    arguments = [sys.executable, "-P", "-m", *shlex.split(command)]
    done = subprocess.run(arguments, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    for written in re.findall(r" -o (\S+)", command):
        (CHECKOUT / written).unlink()
    return done.stdout.rstrip() + "\n"


@pytest.mark.parametrize("asks_duckdb", [False, True])
def test_console_examples_print_what_they_say(asks_duckdb: bool) -> None:
    if asks_duckdb:
        pytest.importorskip("duckdb")
        pytest.importorskip("pyarrow")

    def renewed(match: re.Match[str]) -> str:
        is_meant = match[2].startswith("hlofast query ") == asks_duckdb
        return f"{match[1]}{output_of(match[2])}```" if is_meant else match[0]

    readme = (CHECKOUT / "README.md").read_text()
    shown = CONSOLE.sub(renewed, readme)
    if os.environ.get("BLESS"):
        (CHECKOUT / "README.md").write_text(shown)
    assert CONSOLE.search(readme)
    assert shown == readme


def test_python_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    scope: dict[str, object] = {}
    assert PYTHON
    for example in PYTHON:
        exec(compile(example, "README.md", "exec"), scope)


def test_paths_named_exist() -> None:
    for path in re.findall(r"`((?:tests|\.ci)/[\w./]*)", README):
        assert Path(CHECKOUT / path).exists(), path


def test_architecture_names_only_what_exists() -> None:
    text = (CHECKOUT / "ARCHITECTURE.md").read_text()
    for path in re.findall(r"`((?:rust|python|tests|\.ci)/[\w./-]*)`", text):
        assert Path(CHECKOUT / path).exists(), path
