"""What README.md shows is what happens."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CHECKOUT

README = (CHECKOUT / "README.md").read_text()
CONSOLE = re.findall(r"```console\n\$ (hlofast .*)\n((?:.*\n)*?)```", README)
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_readme_has_examples() -> None:
    assert CONSOLE
    assert PYTHON


@pytest.mark.parametrize(("command", "output"), CONSOLE)
def test_console_examples_print_what_they_say(command: str, output: str) -> None:
    arguments = [sys.executable, "-P", "-m", *shlex.split(command)]
    done = subprocess.run(arguments, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout.rstrip() == output.rstrip()


def test_python_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    scope: dict[str, object] = {}
    for example in PYTHON:
        exec(compile(example, "README.md", "exec"), scope)


def test_paths_named_exist() -> None:
    for path in re.findall(r"`((?:tests|\.ci|benches)/[\w./]*)", README):
        assert Path(CHECKOUT / path).exists(), path


def test_architecture_names_only_what_exists() -> None:
    text = (CHECKOUT / "ARCHITECTURE.md").read_text()
    for path in re.findall(r"`((?:rust|python|tests|benches|\.ci)/[\w./-]*)`", text):
        assert Path(CHECKOUT / path).exists(), path
