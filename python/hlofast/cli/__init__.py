"""The command line: one file per verb, imported only when the verb is used.

A verb's file offers `configure(parser)` and `run(arguments) -> int`. Exit codes: 0 done,
1 found something (what the caller asked to fail on, differences, what is wrong), 2 usage, 3 some
input could not be read or output written, 70 an internal error, 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys

TYPE_CHECKING = False  # Importing typing would take longer than reading a small dump.
if TYPE_CHECKING:
    from typing import NoReturn

    from _typeshed import SupportsWrite

__all__ = ["VERBS", "main"]

DONE, FINDINGS, USAGE, UNREADABLE, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 70, 130
"""Exit codes; 70 is EX_SOFTWARE of sysexits.h, 130 what shells give for SIGINT."""

VERBS = {
    "verdict": "what a file is, step time, MFU, peak memory, what to change (also: hlofast FILE)",
    "summary": "what a module is: status, signature, opcodes, shapes, fusions, computations",
    "cost": "FLOPs, transcendentals and bytes: totals, by phase, scope, source, opcode; MFU",
    "matmuls": "every matrix product: M, N, K, types, FLOPs, how often, from where",
    "collectives": "what devices send each other: mesh axes, bytes, tensors, how often, from where",
    "lint": "findings: what to change, with evidence, bytes and FLOPs; for continuous integration",
    "remat": "what is recomputed, what is kept for the backward pass instead, what to change",
    "memory": "what is alive at the peak: class, scope, source; XLA's account",
    "time": "how long a step takes on a device: compute, memory, exposed collectives; MFU",
    "trace": "the simulated schedule as a timeline for Perfetto: tracks, links, bytes alive",
    "config": "a trainer config: its mesh rules, what it is on an instance, what differs",
    "check": "what was declared (mesh, shardings, policy, figures) beside what was compiled",
    "stages": "pipeline stages: sections, what stays and is sent, the boundary, micro-batches",
    "diff": "what differs between two programs or dump directories; what hosts compiled otherwise",
    "history": "what each pass of a compilation did to a module: counts, cost, peak, changes",
    "report": "a page for a browser: verdict, charts, tables, every instruction, in one HTML file",
    "graph": "a computation, or what is around an instruction, as DOT or for Model Explorer",
    "show": "one instruction or computation in context: operands, users, source line",
    "top": "an interactive view in a terminal: sorted tables, drill-down, memory over the schedule",
    "scan": "everything in dump directories: programs, or a dataset of all modules",
    "query": "SQL over the tables of a scan: a dataset, or dumps",
    "fmt": "print modules as canonical HLO text",
    "schema": "the JSON Schema of what a verb prints with --json",
    "completion": "a script that lets bash, zsh or fish complete verbs and options",
    "guide": "the user guide: questions answered from a dump to a decision, with dumps to try",
}

ALIASES = {"roofline": "time"}
"""Other names of verbs."""

EXAMPLES = """\
examples:
  hlofast module_0042.jit_train_step.after_optimizations.txt
  hlofast dump/
  hlofast summary module_0042.jit_train_step.after_optimizations.txt
  hlofast summary --json dumps/*.txt.gz
  hlofast cost --by scope step.txt
  hlofast collectives --mesh data=2,model=4 step.txt
  hlofast remat step.txt
  hlofast config --instance tpu-v6e-256-4 fuji-70B.txt
  hlofast show step.txt fusion.12
  xz -dc step.txt.xz | hlofast fmt --no-metadata -

`hlofast FILE` says what FILE is and gives the verdict: step time, MFU, peak memory, exposed
communication, what to change, and the commands that show more. FILE may also be a folder of dumps
or a trainer config. For verbs it is HLO text, alone or inside a page or a log, plain or compressed
with gzip, xz or zstd; "-" is standard input. `hlofast VERB --help` describes a verb.
"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal, like argparse's own.

    Those look for its width whenever an argument is added, through shutil, whose import takes
    longer than a small dump.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=max(_columns() - 2, 1))


class _Parser(argparse.ArgumentParser):
    """Tells of help that cannot be written, and escapes what is wrong in an argument."""

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Write the help. Argparse's own ignores an `OSError`."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, and what may have been meant, and exit."""
        from hlofast._names import meant
        from hlofast._text import printable

        start, colon, rest = message.partition("unrecognized arguments: ")
        if colon and not start:
            # What follows an unknown option may be its value.
            unknown = [word for word in rest.split(" ") if word.startswith("-") and word != "-"]
            if unknown:
                option = unknown[0].partition("=")[0]
                known = [name for name in self._option_string_actions if name.startswith("--")]
                message = f"no option {option}{meant(option, known)}"
        _, colon, rest = message.partition("invalid choice: '")
        wrong, quote, choices = rest.partition("' (choose from ")
        if colon and quote:
            message += meant(wrong, choices.rstrip(")").replace("'", "").split(", "))
        super().error(printable(message))


def _columns() -> int:
    """The width of the terminal, 80 if there is none."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    try:
        # Without standard output this raises, as a file that is no terminal does.
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return 80


def _top_level() -> _Parser:
    verbs = "".join(f"  {verb:<18}{summary}\n" for verb, summary in VERBS.items())
    parser = _Parser(
        prog="hlofast",
        usage="hlofast FILE | hlofast VERB ... | hlofast help [VERB] | hlofast --version",
        description="Static, offline performance and memory debugger for XLA training steps.",
        epilog=f"verbs:\n{verbs}\n{EXAMPLES}",
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    return parser


def parser_of(verb: str, prog: str | None = None) -> argparse.ArgumentParser:
    """The parser of a verb's arguments."""
    module = importlib.import_module(f"hlofast.cli.{verb}")
    parser = _Parser(
        prog=prog or f"hlofast {verb}",
        description=module.__doc__,
        formatter_class=_Formatter,
    )
    module.configure(parser)
    return parser


def _run_verb(verb: str, argv: list[str], prog: str | None = None) -> int:
    arguments = parser_of(verb, prog).parse_args(argv)
    return int(sys.modules[f"hlofast.cli.{verb}"].run(arguments))


def _run(argv: list[str]) -> int:
    first = argv[0] if argv else ""
    first = ALIASES.get(first, first)
    if first in VERBS:
        return _run_verb(first, argv[1:])
    if first == "help":
        return _help(argv[1:])
    parser = _top_level()
    if not argv:
        parser.print_help()
        return USAGE
    if first in ("-h", "--help", "--version"):
        if parser.parse_args(argv[:1]).version:
            import hlofast

            print(f"hlofast {hlofast.__version__}")
        return DONE
    if first.startswith("-") or os.path.lexists(first) or "/" in first or "." in first:
        return _run_verb("verdict", argv, "hlofast")
    return _refuse(parser, first, f"no verb and no file {first!r}")


def _help(argv: list[str]) -> int:
    """Print what `--help` prints, of a verb if one is named."""
    parser = _top_level()
    if argv:
        verb = ALIASES.get(argv[0], argv[0])
        if verb not in VERBS:
            _refuse(parser, verb, f"no verb {verb!r}")
        parser_of(verb).print_help()
    else:
        parser.print_help()
    return DONE


def _refuse(parser: _Parser, verb: str, reason: str) -> NoReturn:
    from hlofast._names import meant

    hint = meant(verb, [*VERBS, *ALIASES]) or ";"
    parser.error(f"{reason}{hint} `hlofast help` lists the verbs")


def _open_closed_streams() -> None:
    """Connect standard streams that the caller closed to the null device.

    Python sets them to None, and a file opened later would get their number, so that whatever
    writes to standard error would write into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free number, which is the stream's own, as the loop goes from 0 to 2.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the exit


def _end_output() -> None:
    """Write what is left of the output, or see to it that nobody tries that again at exit."""
    from hlofast._text import silence

    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)


def _internal_error(error: BaseException) -> int:
    """Say in one line that something unexpected went wrong, and return the exit code."""
    from hlofast._text import complain, printable

    if os.environ.get("HLOFAST_DEBUG") == "1":
        import traceback

        complain("".join(traceback.format_exception(error)).rstrip())
    what = ": ".join(filter(None, (type(error).__name__, printable(str(error)))))
    hint = "set HLOFAST_DEBUG=1 for the traceback; please report it"
    complain(f"internal error: {what} ({hint})")
    return INTERNAL


def main(argv: list[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit code."""
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # Some encodings lack what tables are made of; what they have comes out as ever.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            code = _run(sys.argv[1:] if argv is None else argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, which is its right.
        _end_output()
        return DONE
    except OSError as error:
        # Verbs say what they cannot read; this is mostly a full disk or a folder that is not there.
        place = error.filename
        if place is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            place = "output"
        reason = error.strerror or error
        _end_output()
        from hlofast._text import complain

        complain(f"{reason}" if place is None else f"{place}: {reason}")
        return UNREADABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit:
        raise  # Help, and wrong usage: argparse has said what there is to say.
    except BaseException as error:  # A panic of the core is no `Exception`.
        # Loaded only now: most verbs end without it.
        from hlofast._text import complain
        from hlofast.errors import ContextError

        if isinstance(error, ContextError):
            complain(str(error))
            return USAGE
        return _internal_error(error)
    return code
