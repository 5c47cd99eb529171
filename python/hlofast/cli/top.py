"""An interactive view of a module in a terminal: sorted tables, drill-down, memory."""

from __future__ import annotations

import sys

from hlofast import _text as output
from hlofast._layout import roles
from hlofast.cli import UNREADABLE, USAGE, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._report.data import Analyses, Contents

EXAMPLES = """\
examples:
  hlofast top module_0042.jit_train_step.after_optimizations.txt
  hlofast top --device tpu-v5p --mesh data=2,model=4 step.txt
  hlofast top --top 5 step.txt | less           plain text, as everywhere but on a terminal

Keys: up and down, Tab from the list of tables to the rows; Enter on a sum shows its instructions,
on an instruction what it reads and who reads it, Escape goes back; s sorts by the next column, r
turns the order round, / filters, q ends. A click on a column's head sorts by it. The view needs
textual (pip install 'hlofast[top]').
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser, several=False)
    inputs.add_device(parser)
    inputs.add_mesh(parser)
    results.add_json(parser)
    parser.add_argument("--plain", action="store_true", help="plain text, also on a terminal")
    output.add_top(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the module of a file."""
    is_device, device = inputs.read_device(arguments)
    is_mesh, mesh = inputs.read_mesh(arguments)
    if not is_device or not is_mesh:
        return USAGE
    reader = inputs.Reader(arguments)
    modules = list(reader)
    for one in modules:
        inputs.note_misfit(one.module, one.path, mesh)
    if arguments.json:
        from hlofast._report.data import Analyses
        from hlofast._top.view import Overview

        shower = results.Shower(Overview, arguments)
        for one in modules:
            shower.show(Overview(Analyses(one.module, device, mesh, None), one.path), at=one)
        shower.end(reader.errors)
        return reader.exit_code()
    if len(modules) > 1:
        names = output.names([one.module.name for one in modules])
        inputs.complain(f"{arguments.file}: several modules, name one with --module: {names}")
        return USAGE
    if not modules:
        return reader.exit_code() or UNREADABLE
    from hlofast._report.data import Analyses, contents

    found = Analyses(modules[0].module, device, mesh, None)
    page = contents(found, modules[0].path)
    is_terminal = sys.stdout.isatty() and sys.stdin.isatty()
    if is_terminal and not arguments.plain:
        try:
            from hlofast._top.app import Top
        except ImportError:
            inputs.complain("the view needs textual: pip install 'hlofast[top]'; in plain text:")
        else:
            Top(found, page).run()
            return reader.exit_code()
    _print(found, page, arguments.top or None)
    return reader.exit_code()


def _print(found: Analyses, page: Contents, limit: int | None) -> None:
    from hlofast._top.view import View, sheets

    printer = output.Printer()
    printer.heading(page.title)
    printer.facts(page.facts)
    printer.facts([(figure.label, f"{figure.text} ({figure.note})") for figure in page.figures])
    for _, section in sheets(found, page):
        for sheet in section:
            view = View(sheet, found.module)
            fields = sheet.fields
            rows = view.rows()
            texts = ("text", "code", "row")
            cells = [
                [
                    cell if sheet.kind(field) in texts else output.Figure(cell)
                    for field, cell in zip(fields, view.cells(row), strict=True)
                ]
                for row in rows[:limit]
            ]
            labels = [field.label for field in fields]
            purposes = roles(fields, sheet.sort)
            printer.table(sheet.caption, labels, cells, len(rows), purposes)
            if sheet.note and rows:
                printer.paragraph("note: ", sheet.note)
    printer.line()
