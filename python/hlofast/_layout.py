"""Chooses the columns of a table that fit a terminal, and their widths.

The first column, the main figure and the source line are always shown. When a table is too wide,
headings are wrapped, sources lose their folders and long texts their middle; then other columns are
dropped from the right, and only as a last resort names lose their middle.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hlofast._core import Field

GAP = "  "
NAME, FIGURE, SOURCE, TEXT, OTHER = "name", "figure", "source", "text", "other"
"""Roles of columns: the first three are kept, texts may lose their middle."""
_KEPT = (NAME, FIGURE, SOURCE)
_LEAST_TEXT = 24
"""Smallest width of a text before other columns are dropped: room for two parts of a scope."""
_LEAST = 12
"""Smallest width of a name or a source: `convol….1234`."""
_LONG = ("scope", "path", "text", "shape", "axes", "name", "instruction")
"""Kinds of columns whose texts may lose their middle."""
_FIGURES = ("seconds", "bytes", "flops")


def roles(
    fields: Sequence[Field], figure: str | None = None, named: str | None = None
) -> list[str]:
    """Returns the role of each column.

    The main figure is the column `figure`, otherwise the first quantity. The name is the column
    `named`, otherwise the first column.
    """
    chosen = [TEXT if field.kind in _LONG else OTHER for field in fields]
    if not fields:
        return chosen
    names = [field.name for field in fields]
    sizes = [field.name for field in fields[1:] if field.kind in _FIGURES]
    amounts = [field.name for field in fields[1:] if field.is_amount]
    main = figure if figure in names else next(iter(sizes or amounts), None)
    if main is not None:
        chosen[names.index(main)] = FIGURE
    places = [field.name for field in fields if field.kind == "path" or field.label == "source"]
    source = next((own for own in ("source", "source_file", *places) if own in places), None)
    if source is not None:
        chosen[names.index(source)] = SOURCE
    if source == "source_file" and "source_line" in names:
        chosen[names.index("source_line")] = FIGURE
    if named in names:
        chosen[names.index(named)] = NAME
        if fields[0].kind == "index":  # Row numbers are short and belong to the name.
            chosen[0] = FIGURE
    elif chosen[0] != SOURCE:
        chosen[0] = NAME
    return chosen


class Layout:
    """The columns to show, in order, their widths and the lines of their headings."""

    __slots__ = ("columns", "headings", "left_out", "widths")

    def __init__(
        self,
        headings: Sequence[str],
        rows: Sequence[Sequence[str]],
        roles: Sequence[str],
        room: int | None,
    ) -> None:
        every = range(len(headings))
        cells = [max((len(row[at]) for row in rows), default=0) for at in every]
        widths = {at: max(len(headings[at]), cells[at]) for at in every}
        self.headings = [[heading] for heading in headings]
        """The heading lines of each column."""
        self.left_out: list[str] = []
        """The headings of the dropped columns."""
        if room is not None and _total(widths) > room:
            for at in every:
                words = max(map(len, headings[at].split() or [""]))
                widths[at] = max(words, cells[at])
            if _total(widths) > room:
                self._narrow(widths, headings, rows, roles, room)
            self.headings = [_broken(text, widths.get(at, 1)) for at, text in enumerate(headings)]
        self.columns = list(widths)
        """The indices of the columns to show."""
        self.widths = widths
        """The width of each column."""

    def _narrow(
        self,
        widths: dict[int, int],
        headings: Sequence[str],
        rows: Sequence[Sequence[str]],
        roles: Sequence[str],
        room: int,
    ) -> None:
        words = [max(map(len, heading.split() or [""])) for heading in headings]
        least = dict(widths)
        for at, role in enumerate(roles):
            if role == SOURCE:
                widths[at] = max([words[at], *(len(file_of(row[at])) for row in rows)])
                least[at] = widths[at]
            elif role == TEXT:
                least[at] = min(widths[at], max(_LEAST_TEXT, words[at]))
        optional = [at for at in widths if roles[at] not in _KEPT]
        shown = {at: least[at] for at in widths if at not in optional}
        for at in optional:  # The first columns matter most.
            if _total(shown) + len(GAP) + least[at] <= room:
                shown[at] = least[at]
        for at in optional:
            if at not in shown:
                del widths[at], least[at]
                self.left_out.append(headings[at])
        if _total(least) > room:
            for at in least:
                if roles[at] in (NAME, SOURCE):
                    least[at] = min(least[at], max(_LEAST, words[at]))
        while _total(widths) > room:
            wide = [at for at in widths if widths[at] > least[at]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(GAP) * (len(widths) - 1)


def _broken(heading: str, width: int) -> list[str]:
    lines = [""]
    for word in heading.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


CALLS = " > "
"""The separator between two frames of a stack."""


def file_of(place: str) -> str:
    """Returns file names and lines of a source location or a stack of them, without folders."""
    places = place.replace("\\", "/").split(CALLS)
    return CALLS.join(own.rpartition("/")[2] for own in places)


def fitted(text: str, role: str, width: int) -> str:
    """Shortens a cell to the width of its column: sources lose the folder, texts their middle.

    Names keep the number at the end, sources the file ending and line.
    """
    if len(text) <= width:
        return text
    if role == SOURCE:
        text = file_of(text)
        if len(text) <= width:
            return text
    tail = max((width - 1) * 2 // 3, 1)
    if role in (NAME, SOURCE):
        mark = text.rfind(".")
        ending = len(text) - mark if mark > 0 else 0
        tail = ending if 0 < ending <= width - 2 else tail
    head = max(width - 1 - tail, 0)
    return f"{text[:head]}…{text[len(text) - tail :]}"
