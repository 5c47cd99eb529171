"""Answers for agents: results as short text, a page at a time.

The text is that of the command line without what only helps the eye: columns are not padded, and
commands to copy are left out. Every figure that is not exact has its provenance.
"""

from __future__ import annotations

from io import StringIO

from hlofast import _text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hlofast._core import Module
    from hlofast._result import Note, Result, Section

MOST_TOKENS = 2_000
"""Default limit on the length of an answer."""
BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 that count as one token: tokenisers of English and code average about four."""
_CELL = 200
"""Characters of a cell; a longer name loses its middle."""
_LINE = 1_200
"""Characters of a sentence."""
_FOOTER = 160
"""Bytes kept for the line that says how to get the rest."""


def tokens(text: str) -> int:
    """Returns the estimated number of tokens: bytes of UTF-8 divided by four, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


class Answer(_text.Printer):
    """Collects the text of results; the layout is compact, the figures are those of `_text`."""

    def __init__(self, top: int) -> None:
        self._text = StringIO()
        super().__init__(self._text)
        self.top = top
        """Rows of each table."""

    def lines(self) -> list[str]:
        """The lines of the text, without empty lines at the end."""
        return self._text.getvalue().rstrip("\n").split("\n")

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Writes pairs of name and value, one a line."""
        for name, value in facts:
            if value:
                self.paragraph(f"{name}: ", value)

    def paragraph(self, label: str, text: str, *, style: str = "") -> None:
        """Writes a text after a label on one line; commands of hlofast are for people."""
        is_whole = isinstance(text, _text.Whole)
        if is_whole and text.startswith("hlofast "):
            return
        shown = text if is_whole or len(text) <= _LINE else f"{text[:_LINE]}…"
        super().paragraph(label, shown, style=style)

    def notes(self, notes: Sequence[Note]) -> None:
        """Writes the notes at the end of a result."""
        for note in notes:
            self.paragraph("note: ", note.text)

    def show(self, result: Result, sections: Iterable[Section], *, path: str = "") -> None:
        """Writes a result: facts with their provenance, the first rows of each section, notes."""
        self.heading(_text.label(result.title, _CELL))
        self.facts([("file", path), *_text.with_provenance(result)])
        for section in sections:
            self.section(section, result._module, self.top)
        self.notes(result.every_note)

    def rows(self, section: Section, module: Module | None) -> None:
        """Writes one table, or that it has no rows."""
        if len(section.table):
            self.section(section, module, self.top)
        else:
            self.line(f"{section.title}: no rows")

    def columns(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        purposes: Sequence[str] = (),
    ) -> None:
        """Writes a title, column headings and rows; cells are divided by bars."""
        if title:
            self.heading(title)
        shown = [[_text.label(_text._cell(value), _CELL) for value in row] for row in rows]
        for row in [list(map(_text.printable, columns)), *shown]:
            self.stream.write(" | ".join(row) + "\n")


def page(lines: Sequence[str], start: int, most: int, cursor: str) -> tuple[str, int | None]:
    """Returns the lines from `start` that fit `most` tokens, and the first line of the next page.

    None for the second value means that nothing is left. The text ends with the way to the rest.
    """
    room = most * BYTES_PER_TOKEN - _FOOTER
    shown: list[str] = []
    at = start
    while at < len(lines):
        line = lines[at]
        cost = len(line.encode("utf-8", "replace")) + 1
        if cost > room:
            if shown:
                break
            line = line.encode("utf-8", "replace")[:room].decode("utf-8", "ignore") + "…"
        room -= cost
        shown.append(line)
        at += 1
    if at == len(lines):
        return "\n".join(shown), None
    rest = _text.counted(len(lines) - at, "more line")
    return "\n".join([*shown, f'[{rest}: call more with cursor "{cursor}"]']), at
