"""What README.md shows is what happens. BLESS=1 writes what happens into it."""

import re
from pathlib import Path

import pytest

import console
from conftest import CHECKOUT

pytestmark = pytest.mark.once

README = (CHECKOUT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("asks_duckdb", [False, True])
def test_console_examples_print_what_they_say(asks_duckdb: bool) -> None:
    if asks_duckdb:
        pytest.importorskip("duckdb")
        pytest.importorskip("pyarrow")

    def is_meant(command: str) -> bool:
        return command.startswith("hlofast query ") == asks_duckdb

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
