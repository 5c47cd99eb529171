"""Reads out-of-memory messages and partitioner warnings: what ran out, what holds it, what helps.

FILE is a log, a message as pasted, or one of XLA's memory files; DUMP adds the program.
"""

from __future__ import annotations

import argparse
import sys

from hlofast import _text
from hlofast._messages.api import read_stream
from hlofast._messages.cause import CAUSES
from hlofast._messages.result import Messages
from hlofast.cli import UNREADABLE, USAGE, inputs, results
from hlofast.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._context import Context
    from hlofast._module import Module

_WIDTH = max(map(len, CAUSES))
_CAUSES = "\n".join(f"  {word:<{_WIDTH}}  {what}" for word, what in CAUSES.items())
EXAMPLES = f"""\
examples:
  hlofast oom job.log                            every message and warning of a log
  hlofast oom job.log dump/                      joined to the program that failed
  hlofast oom --mesh data=2,model=4 job.log      shardings of warnings in axis names
  kubectl logs job-0 | hlofast oom -
  hlofast oom job.log --json | jq '.results[].tables.buffers[] | [.bytes, .class, .source]'
  hlofast oom module_0042.jit_train_step-memory-usage-report.txt

Reads the out-of-memory messages of TPUs, GPUs and hosts, from compilation, program loading and run
time, with their figures and allocations. Logger prefixes, colours, quoting, JSON lines and HTML are
removed; repeated messages, such as those of several hosts or attempts, count once. Figures are as
written: `63.80G` is rounded, and the table of figures gives the rounding. DUMP is a dump directory
or a module; allocations are matched to its instructions by name, operation and shape.

causes:
{_CAUSES}
"""
_CANDIDATES = 8
"""Programs of a dump directory that are read to find the one of a message."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "file",
        metavar="FILE",
        help='log, message or memory file, plain or compressed; "-" is standard input',
    )
    parser.add_argument(
        "dump",
        nargs="?",
        metavar="DUMP",
        help="dump directory or module of the program that failed",
    )
    parser.add_argument(
        "--module", metavar="NAME", help="program of DUMP (default: the best match)"
    )
    results.add_json(parser)
    _text.add_top(parser)
    inputs.add_context(parser)


def run(arguments: argparse.Namespace) -> int:
    """Shows the messages of FILE."""
    context = inputs.read_context(arguments)
    failures = inputs.Failures()
    shower = results.Shower(Messages, arguments)
    name = "<stdin>" if arguments.file == "-" else arguments.file
    code = 0
    try:
        messages = _messages(arguments.file, name, context)
    except IsADirectoryError as error:
        failures.failed(name, error, "is a folder; give the log, and the folder after it")
    except OSError as error:
        failures.failed(name, error)
    except ParseError as error:
        failures.failed(name, ValueError(error.message))
    else:
        if arguments.dump is not None:
            messages, code = _joined(messages, arguments, context, failures)
        shower.show(messages)
    shower.end(failures.errors)
    return UNREADABLE if failures.errors else code


def _messages(path: str, name: str, context: Context) -> Messages:
    if path == "-":
        return read_stream(sys.stdin.buffer, path=name, context=context)
    if "://" in path:
        from io import BytesIO

        return read_stream(BytesIO(inputs.read(path)), path=name, context=context)
    with open(path, "rb") as file:
        return read_stream(file, path=name, context=context)


def _joined(
    messages: Messages,
    arguments: argparse.Namespace,
    context: Context,
    failures: inputs.Failures,
) -> tuple[Messages, int]:
    """Returns the messages joined to the module of DUMP that fits best, and an exit code."""
    from hlofast import _files

    wanted = arguments.module
    try:
        is_folder = _files.is_folder(arguments.dump)
    except OSError as error:
        failures.failed(arguments.dump, error)
        return messages, 0
    if is_folder:
        modules = _of_folder(arguments.dump, messages, wanted, failures)
    else:
        reader = inputs.Reader(argparse.Namespace(files=[arguments.dump], module=wanted))
        modules = [loaded.module for loaded in reader]
        failures.errors += reader.errors
    if not modules:
        if not failures.errors:
            which = "" if wanted is None else f" {wanted!r}"
            inputs.complain(f"{arguments.dump}: no program{which} found")
            return messages, USAGE
        return messages, 0
    module = max(modules, key=lambda own: _fit(messages, own))
    module = inputs.told(module, context, arguments.dump)
    return (
        Messages(
            messages.messages, messages.warnings, path=messages.path, module=module, context=context
        ),
        0,
    )


def _of_folder(
    folder: str, messages: Messages, wanted: str | None, failures: inputs.Failures
) -> list[Module]:
    from hlofast._kinds import by_size
    from hlofast._programs import listed, whole

    try:
        programs, _ = listed(folder)
    except (OSError, ValueError) as error:
        failures.failed(folder, error)
        return []
    named = messages.main.program if messages.main is not None else None
    if wanted is not None:
        number = int(wanted) if wanted.isdecimal() and len(wanted) < 10 else wanted
        programs = [own for own in programs if own.answers_to(number)]
    elif named is not None and any(own.name == named for own in programs):
        programs = [own for own in programs if own.name == named]
    modules = []
    for program in by_size(programs)[:_CANDIDATES]:
        path = program.files[0].path
        try:
            modules.append(whole(path))
        except (OSError, ValueError) as error:
            failures.failed(path, error)
    return modules


def _fit(messages: Messages, module: Module) -> tuple[int, int]:
    """How many listed allocations a module has by name or operation, and its size."""
    main = messages.main
    entries = [] if main is None else main.entries[:1000]
    table = module.table()
    names, operations = set(table.values("name")), set(table.values("op_name"))
    found = sum(
        (own.name is not None and own.name in names)
        + (own.op_name is not None and own.op_name in operations)
        for own in entries
    )
    return found, len(module)
