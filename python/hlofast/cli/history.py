"""Shows what each compiler pass did to one module: counts, cost, memory peak and changes."""

from __future__ import annotations

from hlofast import _text
from hlofast.cli import DONE, UNREADABLE, USAGE, inputs, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
examples:
  hlofast history dump/                           the only module with dumps between passes
  hlofast history dump/ jit_train_step
  hlofast history --all dump/ module_0042         also passes that changed nothing
  hlofast history --top 5 dump/                   the first five passes that changed something
  hlofast history --files dump/                   the file of each pass, for hlofast diff A B
  hlofast history nsys-jax/dump/ jit_train_step   with seconds per pass from nsys-jax
  hlofast history --find collective dump/         which pass made, cloned or removed collectives
  hlofast history --find all-gather.3 dump/       one instruction, under all its names
  hlofast history --find fusion --top 0 dump/     every event
  hlofast history --json dump/ 42 | jq '.results[].tables.steps[] | [.pass, .live_peak]'

DIR is a dump directory written with --xla_dump_to=DIR --xla_dump_hlo_as_text
--xla_dump_hlo_pass_re=.*; MODULE is the name or number of a module in it. Each row is the module
after a pass, with the number of differences from the previous row: instructions removed, added,
moved into or out of fusions, and changed, without consequences of other changes. `hlofast diff` on
two of the files (--files) lists the differences. Loops count with their trip count where it is
known, so figures may rise when a pass makes a trip count known. With pass times (--pass-times), a
second table lists the seconds of every pass, including passes without dumps. --find lists instead
which passes made, cloned, split, merged, changed, moved or removed an instruction (by name), all
instructions of an opcode, or all collectives; instructions are tracked by their structure, and a
changed one is listed with what differs (opcode, element type, shape, groups of devices). A change
seen at the start of a pipeline belongs to the pass that runs it. Exit codes: 0 done, 2 wrong usage,
3 a file could not be read.
"""

_ROWS = 10
"""Rows per table, except passes."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument("folder", metavar="DIR", help="the dump directory")
    parser.add_argument("module", metavar="MODULE", nargs="?", help="name or number of a module")
    results.add_json(parser)
    parser.add_argument(
        "--top",
        type=_text.natural,
        metavar="N",
        help=f"rows per table, 0 for all (default: all passes, {_ROWS} rows of other tables); "
        "JSON always has all",
    )
    parser.add_argument("--all", action="store_true", help="also show passes without changes")
    parser.add_argument(
        "--files", action="store_true", help="show the file of each pass instead of its figures"
    )
    parser.add_argument(
        "--find",
        metavar="WHAT",
        help="show which passes made, changed and removed WHAT: the name of an instruction, an "
        "opcode, or collective",
    )
    parser.add_argument(
        "--pass-times",
        metavar="FILE",
        help="times of XLA's passes from Nsight Systems: report_nvtx_pushpop_trace.csv.xz of an "
        "nsys-jax archive (default: the file in DIR or next to it)",
    )
    inputs.add_context(parser)


def run(arguments: argparse.Namespace) -> int:
    """Shows the history of one module."""
    from hlofast._history import History, history
    from hlofast._kinds import NoDumpsError

    told = inputs.read_context(arguments)
    name = arguments.module
    try:
        module = int(name) if name and name.isdigit() else name
        program_history = history(
            arguments.folder,
            module,
            mesh=told.mesh,
            rules=told.rules,
            pass_times=arguments.pass_times,
        )
    except NotADirectoryError:
        inputs.complain(
            f"{arguments.folder}: is a file; history reads the dump directory that holds the "
            "module after each pass: XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_text "
            "--xla_dump_hlo_pass_re=.*'"
        )
        return UNREADABLE
    except OSError as error:
        inputs.complain(f"{error.filename or arguments.folder}: {error.strerror or error}")
        return UNREADABLE
    except NoDumpsError as error:
        inputs.complain(str(error))
        return UNREADABLE
    except ValueError as error:
        inputs.complain(str(error))
        return USAGE
    files, errors = program_history.values("file"), program_history.values("error")
    whole = [row for row, error in enumerate(errors) if error is None]
    if whole:
        # The last dump is checked, because the first dumps may not be partitioned yet.
        inputs.note_misfit(program_history.module(whole[-1]), files[whole[-1]], told.mesh)
        if told.profile is not None:
            last = program_history.module(whole[-1]).with_context(profile=told.profile)
            inputs.note_unmeasured(last, files[whole[-1]])
    failures = inputs.Failures()
    for file, fault in zip(files, errors, strict=True):
        if fault is not None:
            failures.failed(file, ValueError(fault))
    is_limited = arguments.top is not None
    arguments.top = arguments.top if is_limited else _ROWS
    shower = results.Shower(History, arguments)
    if arguments.find is not None:
        try:
            shower.show(program_history.find(arguments.find))
        except ValueError as error:
            inputs.complain(str(error))
            return USAGE
        shower.end(failures.errors)
        return UNREADABLE if failures.errors else DONE
    everything = arguments.all or arguments.json
    sections = program_history.sections(
        everything=everything, files=arguments.files, whole=not is_limited
    )
    shower.show(program_history, sections)
    shower.end(failures.errors)
    return UNREADABLE if failures.errors else DONE
