"""`Sheet`: the columns of a table that a page shows."""

from __future__ import annotations

from hlofast._core import Field, TextColumn
from hlofast._report.pack import Block, Words
from hlofast.table import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

_KINDS = {
    "instruction": "row",
    "bytes": "bytes",
    "flops": "flops",
    "seconds": "seconds",
    "ratio": "share",
    "flop_rate": "flop_rate",
    "byte_rate": "byte_rate",
    "text": "text",
    "word": "text",
    "axes": "text",
    "flag": "text",
    "scope": "path",
    "path": "path",
}
"""Display kind of each field kind.

`row` is an instruction's row number, shown as its name; of a `path` the end is shown. Other texts
are shown as code, other numbers as integers or floats.
"""


class Sheet:
    """Columns of a table, with a caption."""

    __slots__ = ("caption", "fields", "key", "links", "note", "sort", "table")

    def __init__(
        self,
        key: str,
        caption: str,
        table: Table,
        columns: Iterable[str] | None = None,
        *,
        note: str = "",
        sort: str | None = None,
        links: Mapping[str, str] | None = None,
    ) -> None:
        self.links = {} if links is None else links
        """Addresses of pages by the text of the first column; relative to this page. Whoever gives
        them may change them while no page is made."""
        self.key = key
        self.caption = caption
        self.table = table
        """All columns."""
        self.fields = tuple(map(table.field, table.columns if columns is None else columns))
        """Fields of the shown columns."""
        self.note = note
        """A note on how to read the figures."""
        self.sort = sort
        """Initial sort column, descending; None for table order."""

    def __len__(self) -> int:
        return len(self.table)

    def kind(self, field: Field) -> str:
        """Display kind: one of `_KINDS`, code, integer or float."""
        known = _KINDS.get(field.kind)
        if known is not None:
            return known
        column = self.table._columns[field.name]
        if isinstance(column, TextColumn):
            return "code"
        return "float" if column.dtype == "float64" else "integer"

    def values(self, name: str) -> list[Any]:
        """Returns the values of column `name`; None if unknown."""
        return self.table.values(name)

    def packed(self, block: Block) -> dict[str, Any]:
        """Returns the sheet as a page reads it, with its columns in `block`."""
        return {
            "key": self.key,
            "caption": self.caption,
            "note": self.note,
            "rows": len(self),
            "sort": self.sort,
            "links": dict(self.links),
            "columns": [self._packed(field, block) for field in self.fields],
        }

    def _packed(self, field: Field, block: Block) -> dict[str, Any]:
        kind = self.kind(field)
        packed: dict[str, Any] = {
            "key": field.name,
            "label": field.label,
            "kind": kind,
        }
        if kind in ("text", "code", "path"):
            values = self.values(field.name)
            if field.kind == "flag":
                values = ["" if value is None else "yes" if value else "no" for value in values]
            return packed | block.words(Words.of(values))
        if field.unknown is not None:
            packed["unknown"] = field.unknown
        column: Any = self.table._columns[field.name]
        return packed | {"data": block.place(column)}


def sheet_of(
    key: str,
    caption: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Iterable[Field | tuple[str, str, str]],
    **options: Any,
) -> Sheet:
    """Returns a sheet of rows; new columns are given as name, label and kind."""
    fields = [column if isinstance(column, Field) else field_of(*column) for column in columns]
    table = Table.of((field, [row[field.name] for row in rows]) for field in fields)
    return Sheet(key, caption, table, **options)


def field_of(name: str, label: str, kind: str) -> Field:
    """Returns the field of a column that only pages have."""
    is_signed = kind == "number"
    return Field(kind, name, f"{label.capitalize()}.", label=label, nullable=True, signed=is_signed)
