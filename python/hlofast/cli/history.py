"""What each pass of a compilation did to one module: counts, cost, peak, and what changed."""

from __future__ import annotations

from hlofast import _text as output
from hlofast.cli import DONE, UNREADABLE, USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

EXAMPLES = """\
examples:
  hlofast history dump/                           the one module with dumps between passes
  hlofast history dump/ jit_train_step
  hlofast history --all dump/ module_0042         passes that changed nothing, too
  hlofast history --json dump/ 42 | jq '.steps[] | [.pass, .live_peak]'

DIR is what XLA wrote with --xla_dump_to=DIR --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=.*;
MODULE a module's name or number in it. Every row is the module as it was after the pass, and how
many differences there are to the row before: what vanished, appeared, moved into or out of
fusions, and changed; what only follows from that is left out. `hlofast diff` of two of the files
says which. Loops count as often as they run where that is known, so figures may rise when a pass
finds out. Exit codes: 0 done, 2 usage, 3 something could not be read.
"""
VERSION = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("folder", metavar="DIR", help="the dump directory")
    parser.add_argument("module", metavar="MODULE", nargs="?", help="name or number of a module")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--all", action="store_true", help="passes that changed nothing, too")
    inputs.add_mesh(parser)
    inputs.add_rules(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the history of one module."""
    from hlofast._history import history

    given = inputs.read_mesh_and_rules(arguments)
    if given is None:
        return USAGE
    mesh, rules = given
    name = arguments.module
    try:
        module = int(name) if name and name.isdigit() else name
        found = history(arguments.folder, module, mesh=mesh, rules=rules)
    except OSError as error:
        inputs.complain(f"{arguments.folder}: {error.strerror or error}")
        return UNREADABLE
    except ValueError as error:
        inputs.complain(str(error))
        return USAGE
    rows = found.to_pylist()
    whole = [number for number, row in enumerate(rows) if not row["error"]]
    if mesh is not None and whole:
        # The last dump: the first ones may not be partitioned yet.
        inputs.note_misfit(found.module(whole[-1]), rows[whole[-1]]["file"], mesh)
    for row in rows:
        if row["error"]:
            inputs.Failures().failed(row["file"], ValueError(row["error"]))
    if arguments.json:
        document = {"module": found.program.name, "key": found.program.key, "steps": rows}
        output.print_json("history", VERSION, document)
    else:
        _print(output.Printer(), found.program.key, rows, arguments.all)
    return UNREADABLE if any(row["error"] for row in rows) else DONE


def _print(printer: output.Printer, key: str, rows: list[dict[str, Any]], show_all: bool) -> None:
    printer.heading(key)
    same = sum(row["is_same"] for row in rows)
    printer.facts(
        [
            ("dumps", f"{len(rows):,}"),
            ("changed nothing", output.counted(same, "pass", "passes") if same else ""),
        ]
    )
    figures = ("instructions", "fusions", "collectives", "flops", "bytes_accessed", "live_peak")
    changes = {"vanished": "-", "appeared": "+", "moved": "moved", "changed": "changed"}
    shown = [row for row in rows if show_all or not row["is_same"]]
    cells = []
    for row in shown:
        what = row["pass"] or row["stage"].replace("-", " ")
        where = row["pipeline"] or ""
        counts = [row[name] for name in changes]
        cells.append(
            (row["step"], output.label(what), where, *(row[name] for name in figures), *counts)
        )
    names = [name.replace("_", " ") for name in figures]
    columns = ("step", "after", "pipeline", *names, *changes.values())
    printer.table("Passes", columns, cells, len(cells))
