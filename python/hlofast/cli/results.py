"""How a verb shows results: as text for people, or as one JSON document."""

from __future__ import annotations

import sys

from hlofast import _text
from hlofast._result import document

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable
    from typing import Any

    from hlofast._result import Result, Section
    from hlofast.cli.inputs import Found


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_usual(parser: argparse.ArgumentParser, *, several: bool = True, top: int = 10) -> None:
    """Declare what every verb over modules takes: files, `--json`, `--top`, the context."""
    from hlofast.cli import inputs

    inputs.add_files(parser, several=several)
    add_json(parser)
    _text.add_top(parser, top)
    inputs.add_context(parser)


class UnusableError(Exception):
    """Arguments that make no sense for a module; the message says why."""


class Shower:
    """Shows results one by one; JSON comes as one document at the end."""

    def __init__(
        self, kind: type[Result], arguments: argparse.Namespace, limit: int | None = 10
    ) -> None:
        self._kind = kind
        self._limit: int | None = getattr(arguments, "top", limit) or None
        self._printer = None if arguments.json else _text.Printer()
        self._documents: list[dict[str, Any]] = []

    def show(
        self, result: Result, sections: Iterable[Section] | None = None, at: Found | None = None
    ) -> None:
        """Show a result, which stood at a place in a file."""
        chosen = result.sections() if sections is None else tuple(sections)
        if self._printer is None:
            place = {} if at is None else at.place()
            own = result.to_dict(chosen)
            self._documents.append({"name": own.pop("name"), **place, **own})
            return
        path = ""
        if at is not None:
            path = f"{at.path}, line {at.line:,}" if at.line > 1 else at.path
        self._printer.result(result, chosen, path=path, limit=self._limit)

    def end(self, errors: list[dict[str, Any]]) -> None:
        """Write the JSON document, if that is what was asked for."""
        if self._printer is None:
            print_json(document(self._kind, self._documents, errors))


def print_json(whole: dict[str, Any]) -> None:
    """Write a JSON document to standard output.

    A `ValueError` for infinity and NaN, which JSON has not.
    """
    import json

    json.dump(whole, sys.stdout, indent=1, allow_nan=False)
    sys.stdout.write("\n")


def run_modules(
    kind: type[Result],
    arguments: argparse.Namespace,
    analyse: Callable[[Found], tuple[Result, Iterable[Section] | None]],
) -> int:
    """Show what `analyse` finds in every module that the arguments select; the exit code.

    Modules have the context that the arguments of `inputs.add_context` describe. One that
    cannot be analysed, which is an `UnusableError`, a `ValueError` or an `OverflowError` of
    `analyse`, is told and left out.
    """
    from hlofast.cli import USAGE, inputs
    from hlofast.errors import ContextError

    reader = inputs.Reader(arguments)
    reader.context = inputs.read_context(arguments)
    shower = Shower(kind, arguments)
    code = 0
    for found in reader:
        try:
            result, sections = analyse(found)
        except ContextError:
            raise  # Ends the command line.
        except UnusableError as error:
            inputs.complain(str(error))
            code = USAGE
        except (ValueError, OverflowError) as error:
            reader.failed(found.path, error)
        else:
            shower.show(result, sections, found)
    shower.end(reader.errors)
    return reader.exit_code() or code
