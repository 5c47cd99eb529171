"""Output of verbs: text, one JSON document, or Markdown."""

from __future__ import annotations

import sys

from hlofast import _text
from hlofast._result import document

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from hlofast._result import Result, Section
    from hlofast.cli.inputs import Found, Reader


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declares `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_markdown(parser: argparse.ArgumentParser) -> None:
    """Declares `--markdown`."""
    parser.add_argument(
        "--markdown",
        action="store_true",
        help="print Markdown for a pull request; nothing if there is nothing to report",
    )


def add_usual(parser: argparse.ArgumentParser, *, several: bool = True, top: int = 10) -> None:
    """Declares the arguments of every verb over modules: files, `--json`, `--top`, context."""
    from hlofast.cli import inputs

    inputs.add_files(parser, several=several)
    add_json(parser)
    _text.add_top(parser, top)
    inputs.add_context(parser)


class UnusableError(Exception):
    """Arguments do not apply to a module; the message explains why."""


def note_to_measure(path: str, what: str) -> None:
    """Says on standard error what was written to `path`, and that it is not for running."""
    _text.complain(f"note: {path} is {what}: to be measured, not run")


class Shower:
    """Prints results one by one, or collects them into one JSON document."""

    def __init__(
        self, kind: type[Result], arguments: argparse.Namespace, limit: int | None = 10
    ) -> None:
        self._kind = kind
        self._limit: int | None = getattr(arguments, "top", limit) or None
        self._printer = None if arguments.json else _text.Printer()
        self._is_markdown: bool = getattr(arguments, "markdown", False)
        self._documents: list[dict[str, Any]] = []

    def show(
        self, result: Result, sections: Iterable[Section] | None = None, at: Found | None = None
    ) -> None:
        """Shows a result; `at` is the place of its module in a file."""
        chosen = result.sections() if sections is None else tuple(sections)
        if self._printer is None:
            place = {} if at is None else at.place()
            own = result.to_dict(chosen)
            self._documents.append({"name": own.pop("name"), **place, **own})
            return
        if self._is_markdown:
            from hlofast import _markdown

            sys.stdout.write(_markdown.result(result, chosen, limit=self._limit))
            return
        path = ""
        if at is not None:
            path = f"{at.path}, line {at.line:,}" if at.line > 1 else at.path
        self._printer.result(result, chosen, path=path, limit=self._limit)

    def end(self, errors: list[dict[str, Any]]) -> None:
        """Writes the JSON document with `--json`."""
        if self._printer is None:
            print_json(document(self._kind, self._documents, errors))


def print_json(whole: dict[str, Any]) -> None:
    """Writes a JSON document to standard output.

    Raises `ValueError` for infinity and NaN, which JSON cannot represent.
    """
    from hlofast import _json

    sys.stdout.write(_json.dumps(whole) + "\n")


def run_modules(
    kind: type[Result],
    arguments: argparse.Namespace,
    analyse: Callable[[Found], tuple[Result, Iterable[Section] | None]],
    instead: Callable[[str], Result | None] | None = None,
    *,
    shows_messages: bool = False,
) -> int:
    """Shows the result of `analyse` for every selected module and returns the exit code.

    With `shows_messages`, the out-of-memory messages and partitioner warnings of texts are shown
    too. A file for which `instead` returns a result is shown as that, whatever modules it holds.
    Modules have the context that the arguments of `inputs.add_context` describe. When `analyse`
    raises `UnusableError`, `ValueError` or `OverflowError`, the module is reported and skipped.
    """
    from hlofast.cli import inputs
    from hlofast.errors import ContextError

    shower = Shower(kind, arguments)
    reader = inputs.Reader(arguments, shower=shower if shows_messages else None)
    reader.context = inputs.read_context(arguments)
    for loaded in _modules(reader, shower, instead):
        try:
            result, sections = analyse(loaded)
        except ContextError:
            raise  # Ends the command.
        except UnusableError as error:
            reader.refused(loaded.path, str(error))
        except (ValueError, OverflowError) as error:
            reader.failed(loaded.path, error)
        else:
            shower.show(result, sections, loaded)
    shower.end(reader.errors)
    return reader.exit_code()


def _modules(
    reader: Reader, shower: Shower, instead: Callable[[str], Result | None] | None
) -> Iterator[Found]:
    """The selected modules of the files that are not shown as something else."""
    for path in reader.files:
        try:
            other = None if instead is None else instead(path)
        except (OSError, ValueError) as error:
            reader.failed(path, error)
            continue
        if other is not None:
            shower.show(other)
        else:
            yield from reader.modules_of(path)
