"""Text output of results: figures with units, tables, colour."""

from __future__ import annotations

import os
import sys
from math import isfinite

from hlofast._layout import CALLS, FIGURE, GAP, NAME, TEXT, Layout, file_of, fitted, roles

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence
    from typing import Any, TextIO

    from hlofast._core import Field, Module
    from hlofast._result import Fact, Note, Result, Section
    from hlofast.table import Table

MEBIBYTE = 1 << 20
SHOWN_NAMES = 10
_HANGING = 28
"""The longest label, in characters, whose text has its further lines aligned to the first."""
_INDENT = 6
LABEL = 72
"""Characters of a scope or a source place in a text table."""


def wants_colour(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that may be coloured (respects NO_COLOR)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def natural(text: str) -> int:
    """Reads a whole number from 0; raises `ArgumentTypeError` for other text."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"not a whole number from 0: {text!r}")
    return number


def add_top(parser: argparse.ArgumentParser, default: int = 10) -> None:
    """Declares `--top N`, the number of rows in text tables."""
    parser.add_argument(
        "--top",
        type=natural,
        default=default,
        metavar="N",
        help=f"rows per table, 0 for all (default {default}); JSON always has all",
    )


def size(count: int | None) -> str:
    """Returns a number of bytes, followed by MiB or larger units from half a MiB on."""
    if count is None:
        return "unknown"
    scale, unit = binary(max(abs(count), MEBIBYTE))
    short = count / scale
    return f"{count:,} B ({short:.3f} {unit})" if abs(short) >= 0.5 else f"{count:,} B"


_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def binary(largest: float) -> tuple[float, str]:
    """Returns the power of 1024 for byte counts up to `largest`, and its name: `(2**30, "GiB")`."""
    power = 0
    while largest >= 1024.0 ** (power + 1) and power + 1 < len(_BINARY):
        power += 1
    return 1024.0**power, _BINARY[power]


class Whole(str):
    """A text that is not broken into lines, such as a command to copy."""

    __slots__ = ()


class Figure(str):
    """A text that tables align to the right, like numbers."""

    __slots__ = ()


def quantity(count: int, unit: str = "") -> str:
    """Returns a short and, if rounded, an exact number: `631.36 GFLOP (631,360,192,512)`."""
    value, prefix = float(count), ""
    for larger in ("k", "M", "G", "T", "P", "E", "Z", "Y"):
        if abs(value) < 999.995:
            break
        value, prefix = value / 1000, larger
    if not prefix:
        return f"{count:,} {unit}".rstrip()
    return f"{value:.2f} {prefix}{unit} ({count:,})"


def share(part: float, whole: float) -> Figure:
    """Returns `part` of `whole` in per cent; other shares are not rounded to 0 or 100 %."""
    if not whole:
        return Figure("-")
    percent = 100 * part / whole
    if not isfinite(percent):  # The figures are beyond the range of a double.
        return Figure("-")
    if 0 < percent < 0.05:
        return Figure("<0.1 %")
    if percent >= 99.95 and part != whole:
        return Figure(">99.9 %" if percent < 100 else f"{percent:.2f} %")
    return Figure(f"{percent:.1f} %")


def signed_share(value: float) -> Figure:
    """Returns a change in per cent with its sign; small changes are not rounded to 0."""
    percent = 100 * value
    if not isfinite(percent):
        return Figure("-")
    if 0 < abs(percent) < 0.05:
        return Figure("<+0.1 %" if percent > 0 else ">-0.1 %")
    return Figure(f"{percent:+.1f} %")


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Returns a count with its noun: `1 alias`, `2 aliases`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def names(shown: Sequence[str], count: int | None = None, *, most: int = SHOWN_NAMES) -> str:
    """Returns the first names and the number of further names.

    `count` is the total, if `shown` is cut.
    """
    count = len(shown) if count is None else count
    text = ", ".join(shown[:most])
    return text if count <= most else f"{text} and {count - most:,} more"


def first_of(shown: int, total: int) -> str:
    """Returns the suffix of a heading whose rows are cut; empty if all are shown."""
    return "" if shown == total else f" ({shown:,} of {total:,})"


def label(text: str, room: int = LABEL) -> str:
    """Returns `text` short enough for a table, by eliding the middle."""
    if len(text) <= room:
        return text
    head = room // 3
    return f"{text[:head]}…{text[head + 1 - room :]}"


def printable(text: str) -> str:
    """Returns `text` with escaped control characters, so that it cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def complain(message: str) -> None:
    """Prints an error to standard error; control characters other than newlines are escaped.

    If standard error cannot be written, only the exit code tells of the error.
    """
    sys.stdout.flush()
    text = "\n".join(map(printable, message.split("\n")))
    try:
        sys.stderr.write(f"hlofast: {text}\n")
        sys.stderr.flush()
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Connects an unwritable stream to the null device, so that flushing it at exit succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def finite(value: Any) -> Any:
    """Returns `value` with infinity and NaN, which JSON lacks, replaced by None at all levels."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def seconds(value: float) -> str:
    """Returns a time in s, ms, us or ns."""
    if value != value:
        return "unknown"
    if value < 0:
        return f"-{seconds(-value)}"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value * 1e9:.4g} ns" if value else "0 s"


def signed_seconds(value: float) -> str:
    """Returns a change of time with its sign: `+1.2 ms`, `-3 us`."""
    return ("+" if value > 0 else "") + seconds(value)


def rate(value: float, unit: str) -> str:
    """Returns a rate in `unit` with a decimal prefix, such as 257.5 TFLOP/s."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def _number(value: float) -> str:
    """Returns a number with six digits, or rounded to a whole one where that has up to nine."""
    whole = f"{value:.0f}"
    # Rounding may add a digit: 999,999.7 is 1,000,000, and 999,999,999.7 has ten.
    return f"{value:,.0f}" if 1e6 <= abs(float(whole)) < 1e9 else f"{value:,.6g}"


def figure(field: Field, value: Any) -> str:
    """Returns the value of a fact with its unit."""
    if value is None:
        return "unknown"
    if field.kind == "bytes":
        return size(value)
    if field.kind == "flops":
        return quantity(value, "FLOP")
    if field.kind == "seconds":
        return seconds(value)
    if field.kind in ("flop_rate", "byte_rate"):
        return rate(value, field.unit)
    if field.kind == "ratio":
        return str(signed_share(value) if field.signed else share(value, 1))
    if isinstance(value, float):
        return _number(value)
    return _cell(value)


def known_as(fact: Fact) -> str:
    """Returns the value of a fact with its unit, marked if it is a bound."""
    text = figure(fact.field, fact.value)
    return f"at least {text}" if fact.provenance == "bound" else text


def with_provenance(result: Result) -> list[tuple[str, str]]:
    """Returns the facts of a result as pairs of label and text.

    Figures that are not exact, and words that a model gives, are followed by their provenance,
    unless the text has it already.
    """
    known = {fact.field.label: fact for fact in result.facts}
    pairs = []
    for label, text in result.shown_facts:
        fact = known.get(label)
        how = "exact" if fact is None else fact.provenance
        is_plain = how in ("exact", "unknown", "bound") or how in text
        is_plain = is_plain or (how == "configuration" and fact is not None and fact.field.is_text)
        pairs.append((label, text if is_plain or not text else f"{text} ({how})"))
    return pairs


def _table_cell(field: Field, value: Any, module: Module | None) -> object:
    """Returns a value as a table shows it; a `Figure` is aligned to the right."""
    if value is None:
        return Figure("-") if field.is_amount or field.kind in ("index", "instruction") else "-"
    if field.kind == "instruction" and module is not None:
        return module[value].name
    if field.kind == "index":
        return Figure(value)
    if field.kind == "seconds":
        return Figure(signed_seconds(value) if field.signed else seconds(value))
    if field.kind in ("flop_rate", "byte_rate"):
        return Figure(rate(value, field.unit))
    if field.kind == "ratio":
        return signed_share(value) if field.signed else share(value, 1)
    # A whole stack loses its folders, which take too much room.
    if field.kind == "path" and CALLS in value:
        return label(file_of(value))
    if field.kind in ("scope", "path", "name", "shape"):
        return label(value)
    # Long enough for sentences, short enough to cut long attribute values.
    if field.kind == "text":
        return label(value, 2 * LABEL)
    if field.signed and isinstance(value, int):
        return Figure(f"{value:+,}")
    return Figure(_number(value)) if isinstance(value, float) else value


def cell(field: Field, value: Any, module: Module | None = None) -> str:
    """Returns a table value as text."""
    return _cell(_table_cell(field, value, module))


def says_something(table: Table, name: str) -> bool:
    """Whether a column has a known value or a set flag; other columns are not shown."""
    field = table.field(name)
    if not field.nullable and field.kind != "flag" and name != "unknown":
        return True
    values = table.values(name)
    if field.kind == "flag" or name == "unknown":
        return any(values)
    return any(value is not None for value in values)


def heading_of(field: Field) -> str:
    """Returns the heading of a column: its label, and its unit unless the label contains it."""
    unit, text = field.unit, field.label
    if unit == "FLOP":
        return text.replace("flops", "FLOP") if "flop" in text.lower() else f"{text} FLOP"
    if unit != "B" or "byte" in text or text.endswith("B"):
        return text
    return f"{text} {unit}"


class Printer:
    """Writes headings, facts and tables to a stream, at the width of its terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.colour = wants_colour(self.stream)
        self.width = self._width()

    def _width(self) -> int | None:
        """Returns the width of the terminal; None if lines may have any length."""
        if not self.stream.isatty():
            return None
        told = os.environ.get("COLUMNS", "")
        if told.isdecimal() and int(told) > 0:
            return max(int(told), 40)
        try:
            return max(os.get_terminal_size(self.stream.fileno()).columns, 40)
        except OSError:
            return None

    def styled(self, text: str, code: str) -> str:
        """Returns `text` in an ANSI style if colour is wanted."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def line(self, text: str = "") -> None:
        """Writes one line, cut at the terminal's edge."""
        self.stream.write(self.cut(printable(text)) + "\n")

    def paragraph(self, label: str, text: str, *, style: str = "") -> None:
        """Writes a text after a label, wrapped at the terminal's edge; further lines are indented.

        A word longer than a line and a `Whole` text are not broken, so that they can be copied.
        """
        label = printable(label)
        indent = len(label) if len(label) <= _HANGING else _INDENT
        lines, room = [""], len(label)
        for word in [printable(text)] if isinstance(text, Whole) else printable(text).split(" "):
            end = room + len(lines[-1]) + 1 + len(word)
            if lines[-1] and self.width is not None and end > self.width:
                lines.append(word)
                room = indent
            else:
                lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
        start = self.styled(label, style) if style else label
        for line in lines:
            self.stream.write(f"{start}{line}".rstrip() + "\n")
            start = " " * indent

    def cut(self, text: str) -> str:
        """Returns `text` cut to the width of the terminal."""
        if self.width is None or len(text) <= self.width:
            return text
        return text[: self.width - 1] + "…"

    def heading(self, text: str) -> None:
        """Writes the heading of a section, wrapped at the terminal's edge."""
        lines = [""]
        for word in printable(text).split(" "):
            if lines[-1] and self.width is not None and len(lines[-1]) + len(word) >= self.width:
                lines.append(word)
            else:
                lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
        for line in lines:
            self.stream.write(self.styled(line, "1") + "\n")

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Writes pairs of name and value, with the values aligned."""
        rows = [(name, value) for name, value in facts if value]
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self.paragraph(f"{name:<{width}}{GAP}", value, style="2")

    def notes(self, notes: Sequence[Note]) -> None:
        """Writes the notes at the end of a result."""
        if notes:
            self.line()
            for note in notes:
                self.paragraph("note: ", note.text)
        self.line()

    def result(
        self, result: Result, sections: Iterable[Section], *, path: str = "", limit: int | None = 10
    ) -> None:
        """Writes a result: facts, the first `limit` rows of each section (None: all), notes."""
        self.heading(result.title)
        facts = [("file", path)]
        self.facts([*facts, *result.shown_facts])
        for section in sections:
            self.section(section, result._module, limit)
        self.notes(result.every_note)

    def section(self, section: Section, module: Module | None, limit: int | None) -> None:
        """Writes a table of a result, or its rows as paragraphs."""
        table = section.table
        limit = None if section.is_whole else limit
        if section.paragraphs is not None:
            paragraphs = section.paragraphs[:limit]
            if cut := first_of(len(paragraphs), len(section.paragraphs)):
                self.line()
                self.heading(section.title + cut)
            for head, lines in paragraphs:
                self.line()
                self.heading(head)
                for start, text in lines:
                    self.paragraph(f"  {start}: " if start else "  ", text)
            return
        fields = [table.field(name) for name in section.columns if says_something(table, name)]
        shown = table if limit is None else table.top(limit)
        columns = [
            [_table_cell(field, value, module) for value in shown.values(field.name)]
            for field in fields
        ]
        rows = list(zip(*columns, strict=True))
        headings = [heading_of(field) for field in fields]
        self.table(
            section.title, headings, rows, len(table), roles(fields, section.figure, section.named)
        )

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        total: int,
        purposes: Sequence[str] = (),
    ) -> None:
        """Writes a table with a title; `total` also counts the rows that are not shown."""
        if not rows:
            return
        if title:
            self.stream.write("\n")
        self.columns(title + first_of(len(rows), total), columns, rows, purposes)

    def columns(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        purposes: Sequence[str] = (),
    ) -> None:
        """Writes a title, column headings and rows; numbers are aligned to the right.

        `purposes` is the role of each column (`hlofast._layout.roles`) in narrow terminals.
        """
        if title:
            self.heading(title)
        columns = [printable(column) for column in columns]
        numeric = [all(_is_number(row[i]) for row in rows) for i in range(len(columns))]
        cells = [[_cell(value) for value in row] for row in rows]
        purposes = purposes or [NAME, *(FIGURE if own else TEXT for own in numeric[1:])]
        shown = Layout(columns, cells, purposes, self.width)

        def joined(texts: Sequence[str]) -> str:
            parts = []
            for at in shown.columns:
                width = shown.widths[at]
                cut = fitted(texts[at], purposes[at], width)
                parts.append(f"{cut:>{width}}" if numeric[at] else f"{cut:<{width}}")
            return GAP.join(parts).rstrip()

        height = max(len(shown.headings[at]) for at in shown.columns)
        for line in range(height):
            # Headings are aligned to the bottom, directly above their cells.
            texts = [["", *own][max(len(own) - height + line + 1, 0)] for own in shown.headings]
            self.stream.write(self.styled(joined(texts), "2") + "\n")
        for row in cells:
            self.stream.write(joined(row) + "\n")
        if shown.left_out:
            self.paragraph("not shown at this width: ", ", ".join(shown.left_out))


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, Figure)) and not isinstance(value, bool))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))
