"""`tests/run` starts the selected tests; stand-ins for cargo and Python record the calls."""

import os
import subprocess
from pathlib import Path

from conftest import CHECKOUT

STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
[ "$1 $2" != "-m venv" ] || { mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; }
"""


def calls(folder: Path, *arguments: str) -> list[str]:
    """What `tests/run` with these arguments starts."""
    for name in ("cargo", "interpreter"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHON": str(folder / "interpreter"),
        "HLOFAST_WHEEL": "a.whl",
        "CALLS": str(folder / "calls"),
    }
    subprocess.run([CHECKOUT / "tests" / "run", *arguments], env=environment, check=True)
    return (folder / "calls").read_text().splitlines()


def test_everything_runs_without_arguments(tmp_path: Path) -> None:
    commands = calls(tmp_path)
    assert any(call.startswith("cargo nextest run ") for call in commands)
    assert sum(" -m pytest " in call for call in commands) == 2


def test_a_name_runs_those_tests_alone(tmp_path: Path) -> None:
    commands = calls(tmp_path, "--all", "--", "-k", "a name")
    assert not any(call.startswith("cargo") for call in commands)
    (pytest_call,) = (call for call in commands if " -m pytest " in call)
    assert pytest_call.endswith(f" --no-skips -k a name {CHECKOUT}/tests")


def test_a_place_runs_that_alone(tmp_path: Path) -> None:
    commands = calls(tmp_path, "--", "tests/test_run.py", "-x")
    (pytest_call,) = (call for call in commands if " -m pytest " in call)
    assert pytest_call.endswith(f" -x {CHECKOUT}/tests/test_run.py")


def test_help_says_how_to_run_one_test() -> None:
    command = [CHECKOUT / "tests" / "run", "--help"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "tests/run -- -k NAME" in shown
