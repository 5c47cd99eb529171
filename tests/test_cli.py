"""The program `hlofast`: exit codes, help, what it loads, what it prints."""

import subprocess
import sys

import pytest

import hlofast


def hlofast_command(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the program as a user would, in a process of its own."""
    command = [sys.executable, "-P", "-m", "hlofast", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_help_names_every_verb_and_gives_examples() -> None:
    from hlofast.cli import VERBS

    done = hlofast_command("--help")
    assert done.returncode == 0
    assert "examples:" in done.stdout
    for verb in VERBS:
        assert f"\n  {verb} " in done.stdout


def test_version() -> None:
    done = hlofast_command("--version")
    assert (done.returncode, done.stdout) == (0, f"hlofast {hlofast.__version__}\n")


@pytest.mark.parametrize("arguments", [(), ("sumary", "x"), ("--nonsense",)])
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert hlofast_command(*arguments).returncode == 2
