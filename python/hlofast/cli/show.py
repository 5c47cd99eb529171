"""Shows one instruction or computation in context: definition, operands and users."""

from __future__ import annotations

from hlofast import _text
from hlofast._show import Shown, is_ambiguous, matches, near, places
from hlofast.cli import USAGE, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast show step.txt fusion.12
  hlofast show step.txt main.42                  a computation
  hlofast show step.txt region_0.24/add.3        the add.3 of region_0.24
  hlofast show --json step.txt all-reduce.1 | jq '.results[].tables.operands'

The leading % of NAME is optional. If several computations have an instruction NAME, choose one with
COMPUTATION/NAME.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser, several=False)
    parser.add_argument("name", metavar="NAME", help="instruction or computation")
    results.add_json(parser)
    _text.add_top(parser)
    inputs.add_context(parser)


def run(arguments: argparse.Namespace) -> int:
    """Shows NAME in every module that has it."""
    reader = inputs.Reader(arguments, inputs.read_context(arguments))
    shower = results.Shower(Shown, arguments)
    shown = ambiguous = False
    hint = ""
    for loaded in reader:
        named = matches(loaded.module, arguments.name)
        if is_ambiguous(named):
            ambiguous = True
            inputs.complain(
                f"{loaded.path}: {len(named)} instructions are called {arguments.name!r}: "
                f"{places(named)}"
            )
            continue
        if not named:
            hint = hint or near(loaded.module, arguments.name)
        for entry in named:
            shower.show(entry, at=loaded)
            shown = True
    shower.end(reader.errors)
    if not shown and not ambiguous and reader.exit_code() == 0:
        inputs.complain(
            f"{reader.files[0]}: no instruction or computation {arguments.name!r}{hint}"
        )
    return reader.exit_code() or (0 if shown and not ambiguous else USAGE)
