"""Serves hlofast to agents: tools of the Model Context Protocol on standard streams."""

from __future__ import annotations

import os

from hlofast._mcp.answer import MOST_TOKENS
from hlofast._mcp.files import CACHE
from hlofast.cli import DONE, UNREADABLE, USAGE, inputs, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

ENDS_ITSELF = True
"""A server answers until its input ends."""

EXAMPLES = """\
examples:
  hlofast mcp --root dumps/
  claude mcp add hlofast -- hlofast mcp --root /srv/dumps

The server reads files below --root only; symbolic links and `..` are refused. It writes nothing.
Answers are at most --max-tokens tokens long (estimated as bytes divided by four), with a cursor for
the rest. Modules stay in memory until their files change. Needs the package mcp (pip install
'hlofast[mcp]').
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--root",
        default=".",
        metavar="DIR",
        help="folder of the files to read (default: the current folder)",
    )
    parser.add_argument(
        "--max-tokens",
        type=values.count,
        default=MOST_TOKENS,
        metavar="N",
        help=f"limit on the length of an answer (default {MOST_TOKENS})",
    )
    parser.add_argument(
        "--cache",
        type=values.size,
        default=CACHE,
        metavar="512MiB",
        help="memory for modules that are kept (default 512MiB)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serves until standard input ends."""
    if not os.path.isdir(arguments.root):
        inputs.complain(f"{arguments.root}: not a folder")
        return UNREADABLE
    from hlofast._mcp.server import serve
    from hlofast._mcp.tools import Session

    try:
        serve(Session(arguments.root, max(arguments.max_tokens, 100), arguments.cache))
    except ModuleNotFoundError as error:
        inputs.complain(str(error))
        return USAGE
    return DONE
