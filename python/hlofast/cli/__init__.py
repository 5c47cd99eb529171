"""The command line: one file per verb, imported only when the verb is used.

A verb's file offers `configure(parser)` and `run(arguments) -> int`. An interrupt ends the process
within a moment, unless the file sets `ENDS_ITSELF`.

Exit codes: 0 done, 1 findings (what the caller asked to fail on, or differences), 2 wrong usage,
3 an input could not be read or an output could not be written, 70 internal error, 130 interrupted.
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
"""Exit codes; 70 is EX_SOFTWARE of sysexits.h, 130 is what shells return for SIGINT."""

VERBS = {
    "verdict": "step time, MFU, peak memory, what to change (also: hlofast FILE)",
    "summary": "a module at a glance: status, signature, opcodes, shapes, fusions",
    "cost": "FLOPs, transcendentals and bytes by phase, scope, source or opcode; MFU",
    "matmuls": "every matmul: M, N, K, types, FLOPs, call count, source line",
    "collectives": "every collective: mesh axes, bytes, tensor kinds, call count, source line",
    "lint": "what to change, with evidence, bytes and FLOPs; exit codes for CI",
    "remat": "recomputed values, residuals, all-gathers, and what to change",
    "memory": "live values at the memory peak by class, scope or source; XLA's own peak",
    "oom": "out-of-memory messages and partitioner warnings of a log: what holds the memory",
    "time": "modelled step time on a device: compute, memory, exposed communication",
    "profile": "measured step time from a profile: by phase, layer, source line, mesh axis",
    "calibrate": "achieved rates of a machine from a profile, as a device file",
    "trace": "the simulated schedule as a Perfetto timeline: tracks, links, live bytes",
    "config": "a trainer config: mesh rules, the config on an instance, differences",
    "plan": "the fastest mesh, batch and checkpoint policy of a config that fit on a machine",
    "check": "compare a declaration (mesh, shardings, policy, limits) with the program",
    "stages": "pipeline stages: sections, residuals, traffic, boundaries, micro-batches",
    "what-if": "the step with another batch, sequence, layers, mesh or policy, without compiling",
    "diff": "differences between two programs or dump directories, or between hosts",
    "history": "what each compiler pass did to a module: counts, cost, peak, changes",
    "report": "one HTML page: verdict, charts, tables, every instruction",
    "graph": "a computation, or the neighbours of an instruction, for graph viewers",
    "show": "one instruction or computation in context: operands, users, source line",
    "top": "interactive terminal view: sorted tables, drill-down, memory over time",
    "scan": "whole dump directories: a list of programs, or a dataset of all modules",
    "query": "SQL over the tables of a scan, or over dumps",
    "fmt": "print modules as canonical HLO text, or convert them to protobufs",
    "schema": "the JSON Schema of a verb's --json output",
    "completion": "a completion script for bash, zsh or fish",
    "mcp": "a server for agents: the same answers as short tools (Model Context Protocol)",
    "guide": "the user guide: worked answers from dump to decision, with dumps to try",
}

ALIASES = {"roofline": "time"}
"""Aliases of verbs."""

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

`hlofast FILE` identifies FILE and prints the verdict: step time, MFU, peak memory, exposed
communication, what to change, and the commands that show more. FILE may also be a dump directory,
a profile or a trainer config. Most verbs read HLO text, on its own or embedded in a web page or a
log, plain or compressed with gzip, xz or zstd; "-" is standard input. `hlofast VERB --help`
describes a verb.
"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """A help formatter as wide as the terminal.

    Argparse's own formatters query the width through shutil whenever an argument is added;
    importing shutil takes longer than reading a small dump.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=max(_columns() - 2, 1))


class _Parser(argparse.ArgumentParser):
    """Reports failures to write help, suggests near names and escapes control characters."""

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Writes the help; unlike argparse's own method, it does not ignore an `OSError`."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Prints what is wrong with the arguments and the nearest valid name, then exits."""
        from hlofast._names import meant
        from hlofast._text import printable

        start, colon, rest = message.partition("unrecognized arguments: ")
        if colon and not start:
            # The word after an unknown option may be its value.
            unknown = [word for word in rest.split(" ") if word.startswith("-") and word != "-"]
            if unknown:
                option = unknown[0].partition("=")[0]
                known = [name for name in self._option_string_actions if name.startswith("--")]
                message = f"unknown option {option}{meant(option, known)}"
        _, colon, rest = message.partition("invalid choice: '")
        wrong, quote, choices = rest.partition("' (choose from ")
        if colon and quote:
            message += meant(wrong, choices.rstrip(")").replace("'", "").split(", "))
        super().error(printable(message))


def _columns() -> int:
    """Returns the width of the terminal, or 80 without a terminal."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    try:
        # This raises an error without standard output, or if it is not a terminal.
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


def file_of(verb: str) -> str:
    """Returns the name of a verb's file in this package."""
    return verb.replace("-", "_")


def parser_of(verb: str, prog: str | None = None) -> argparse.ArgumentParser:
    """Returns the argument parser of a verb."""
    module = importlib.import_module(f"hlofast.cli.{file_of(verb)}")
    parser = _Parser(
        prog=prog or f"hlofast {verb}",
        description=module.__doc__,
        formatter_class=_Formatter,
    )
    module.configure(parser)
    return parser


def _run_verb(verb: str, argv: list[str], prog: str | None, is_process: bool) -> int:
    parser = parser_of(verb, prog)
    module = sys.modules[f"hlofast.cli.{file_of(verb)}"]
    # Arguments such as KEY=VALUE may stand between options.
    is_mixed = getattr(module, "IS_MIXED", False)
    parse = parser.parse_intermixed_args if is_mixed else parser.parse_args
    arguments = parse(_with_negatives(parser, argv))
    if is_process and not getattr(module, "ENDS_ITSELF", False):
        from hlofast import _core

        _core._watch_interrupts(INTERRUPTED)
    return int(module.run(arguments))


def _with_negatives(parser: argparse.ArgumentParser, argv: list[str]) -> list[str]:
    """Joins options and values such as `-1GiB`, so that the reader of the value refuses it.

    Argparse takes a word that starts with a hyphen for an option unless it is a number, and would
    say that the option before it has no value.
    """
    joined: list[str] = []
    for at, word in enumerate(argv):
        if word == "--":
            return joined + argv[at:]
        is_negative = word[:1] == "-" and word[1:2].isdecimal()
        option = parser._option_string_actions.get(joined[-1]) if joined and is_negative else None
        if option is not None and option.nargs is None:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _run(argv: list[str], is_process: bool) -> int:
    first = argv[0] if argv else ""
    first = ALIASES.get(first, first)
    if first in VERBS:
        return _run_verb(first, argv[1:], None, is_process)
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
        return _run_verb("verdict", argv, "hlofast", is_process)
    return _refuse(parser, first, f"{first!r} is neither a verb nor a file")


def _help(argv: list[str]) -> int:
    """Prints the output of `hlofast --help` or `hlofast VERB --help`."""
    parser = _top_level()
    if argv:
        verb = ALIASES.get(argv[0], argv[0])
        if verb not in VERBS:
            _refuse(parser, verb, f"unknown verb {verb!r}")
        parser_of(verb).print_help()
    else:
        parser.print_help()
    return DONE


def _refuse(parser: _Parser, verb: str, reason: str) -> NoReturn:
    from hlofast._names import meant

    hint = meant(verb, [*VERBS, *ALIASES]) or ";"
    parser.error(f"{reason}{hint} `hlofast help` lists the verbs")


def _open_closed_streams() -> None:
    """Connects standard streams that the caller closed to the null device.

    Python sets them to None. A file opened later would then get the descriptor of, for example,
    standard error, and error messages would be written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # `open` takes the lowest free descriptor, which is the stream's own, because the loop
            # goes from 0 to 2.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until exit


def _end_output() -> None:
    """Flushes the output; if that fails, silences it so that Python does not retry at exit."""
    from hlofast._text import silence

    try:
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)


def _internal_error(error: BaseException) -> int:
    """Reports an unexpected error in one line and returns the exit code."""
    from hlofast._text import complain, printable

    if os.environ.get("HLOFAST_DEBUG") == "1":
        import traceback

        complain("".join(traceback.format_exception(error)).rstrip())
    what = ": ".join(filter(None, (type(error).__name__, printable(str(error)))))
    hint = "set HLOFAST_DEBUG=1 for the traceback; please report it"
    complain(f"internal error: {what} ({hint})")
    return INTERNAL


def main(argv: list[str] | None = None) -> int:
    """Runs the command line `argv` (default: `sys.argv`) and returns the exit code.

    Without `argv`, the process is taken to be the command line's own: an interrupt ends it at once.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # Some encodings lack characters that tables use; only those are escaped.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            code = _run(sys.argv[1:] if argv is None else argv, is_process=argv is None)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does.
        _end_output()
        return DONE
    except OSError as error:
        # Verbs report unreadable inputs themselves; the cause here is mostly a full disk or a
        # missing folder.
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
        raise  # Help or wrong usage: argparse has printed it.
    except BaseException as error:  # A panic of the core is not an `Exception`.
        # Imported late, because most runs do not need it.
        from hlofast._text import complain
        from hlofast.errors import ContextError, FragmentError

        if isinstance(error, ContextError | FragmentError):
            complain(str(error))
            return UNREADABLE if isinstance(error, FragmentError) else USAGE
        return _internal_error(error)
    return code
