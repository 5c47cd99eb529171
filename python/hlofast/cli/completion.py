"""Prints a shell script that completes verbs, options and their choices."""

from __future__ import annotations

import sys

from hlofast._completion import SHELLS, Verb, script
from hlofast.cli import DONE, VERBS, parser_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast completion bash > ~/.local/share/bash-completion/completions/hlofast
  hlofast completion zsh > ~/.zfunc/_hlofast     a folder of $fpath
  hlofast completion fish > ~/.config/fish/completions/hlofast.fish

The script contains the verbs and options of this version: regenerate it after an upgrade. It does
not start hlofast when a shell starts.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=SHELLS, help="shell to write the script for")


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    from hlofast.cli.guide import PAGES

    words = {"guide": tuple(PAGES), "schema": tuple(VERBS)}
    verbs = [Verb(name, doc, parser_of(name), words.get(name, ())) for name, doc in VERBS.items()]
    sys.stdout.write(script(arguments.shell, verbs, verbs[0]))
    return DONE
