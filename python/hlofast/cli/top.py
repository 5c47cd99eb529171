"""Opens an interactive terminal view of a module: sorted tables, drill-down, memory over time."""

from __future__ import annotations

import sys

from hlofast.cli import USAGE, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._result import Result
    from hlofast._top.app import Top

ENDS_ITSELF = True
"""The view restores the terminal."""

EXAMPLES = """\
examples:
  hlofast top module_0042.jit_train_step.after_optimizations.txt
  hlofast top --device tpu-v5p --mesh data=2,model=4 step.txt
  hlofast top --top 5 step.txt | less            plain text, as always without a terminal

Keys: up and down move, Tab switches between the list of tables and the rows, Enter on a sum lists
its instructions, Enter on an instruction shows its operands and users, Escape goes back, s sorts by
the next column, r reverses the order, / filters, q quits. Clicking a column heading sorts by it.
The view needs textual (pip install 'hlofast[top]').
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser, several=False)
    parser.add_argument("--plain", action="store_true", help="print plain text even on a terminal")


def run(arguments: argparse.Namespace) -> int:
    """Shows the module of a file."""
    is_terminal = sys.stdout.isatty() and sys.stdin.isatty()
    if is_terminal and not arguments.plain and not arguments.json:
        try:
            from hlofast._top.app import Top
        except ImportError:
            inputs.complain("the view needs textual (pip install 'hlofast[top]'); plain text:")
        else:
            return _view(arguments, Top)
    from hlofast._report.data import Analyses
    from hlofast._top.view import Overview

    def analyse(loaded: inputs.Found) -> tuple[Result, None]:
        return Overview(Analyses(loaded.module), loaded.path), None

    return results.run_modules(Overview, arguments, analyse)


def _view(arguments: argparse.Namespace, view: type[Top]) -> int:
    """Runs the view of the one selected module until the user quits."""
    from hlofast._report.data import Analyses, contents

    reader = inputs.Reader(arguments, inputs.read_context(arguments))
    loaded = inputs.only(reader)
    if loaded is None:
        return reader.exit_code() or USAGE
    analyses = Analyses(loaded.module)
    view(analyses, contents(analyses, loaded.path)).run()
    return reader.exit_code()
