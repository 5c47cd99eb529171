"""Checks that console blocks of documents show what their commands print."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

BLOCK = re.compile(r"(```console\n\$ (hlofast .*)\n)((?:(?!```).*\n)*)```")


def output_of(command: str, folder: Path) -> str:
    """What a command prints in a folder, cut as `| head -N` says; exit code 1 means findings.

    What it writes is removed again, so it may write only what is not there.
    """
    command, _, lines = command.partition(" | head -")
    written = [folder / name for name in re.findall(r" -o (\S+)", command)]
    for path in written:
        assert not path.exists(), f"{path}: somebody's file, which `{command}` would replace"
    arguments = [sys.executable, "-P", "-m", *shlex.split(command)]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), (command, done.stderr)
    assert done.stderr == "", command
    for path in written:
        path.unlink()
    shown = done.stdout.rstrip().splitlines()[: int(lines) if lines else None]
    return "\n".join(shown).rstrip() + "\n"


def check(document: Path, folder: Path, wanted: Callable[[str], bool] = lambda _: True) -> int:
    """Run the commands of a document in a folder and compare; returns how many were run.

    BLESS=1 writes what they print into the document.
    """
    count = 0

    def renewed(match: re.Match[str]) -> str:
        nonlocal count
        if not wanted(match[2]):
            return match[0]
        count += 1
        return f"{match[1]}{output_of(match[2], folder)}```"

    text = document.read_text()
    shown = BLOCK.sub(renewed, text)
    if os.environ.get("BLESS"):
        document.write_text(shown)
    assert shown == text
    return count
