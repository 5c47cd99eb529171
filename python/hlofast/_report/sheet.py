"""`Sheet`: a table of a page, with what its columns mean."""

from __future__ import annotations

from array import array

from hlofast._report.pack import Block, Words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from hlofast._core import Column

KINDS = ("text", "code", "integer", "bytes", "flops", "seconds", "share", "float", "row")
"""How a column is shown: `code` is text of the program, `row` an instruction by its number,
shown by its name."""
_LARGEST = 2**63 - 1


class Field:
    """A column: its key, what stands above it, how it is shown, its values."""

    __slots__ = ("key", "kind", "label", "unknown", "values")

    def __init__(
        self,
        key: str,
        label: str,
        kind: str,
        values: Words | Column | array[Any] | Sequence[Any],
        unknown: int | None = -1,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"no kind {kind!r}; one of {', '.join(KINDS)}")
        self.key = key
        self.label = label
        self.kind = kind
        self.unknown = unknown
        """The number that stands for what is not known; None if there is no such."""
        self.values: Any
        if kind in ("text", "code"):
            # Columns of these kinds hold texts, which the union of all kinds cannot say.
            self.values = values if isinstance(values, Words) else Words.of(values)  # type: ignore[arg-type]
        elif isinstance(values, list | tuple):
            is_real = kind in ("seconds", "share", "float")
            missing: Any = float("nan") if is_real else self.unknown
            known = [missing if value is None else value for value in values]
            if not is_real:
                known = [min(max(value, -_LARGEST - 1), _LARGEST) for value in known]
            self.values = array("d" if is_real else "q", known)
        else:
            self.values = values

    def __len__(self) -> int:
        return len(self.values)


class Sheet:
    """Named columns with a caption."""

    __slots__ = ("caption", "fields", "key", "note", "sort")

    def __init__(
        self,
        key: str,
        caption: str,
        fields: Iterable[Field],
        *,
        note: str = "",
        sort: str | None = None,
    ) -> None:
        self.key = key
        self.caption = caption
        self.fields = tuple(fields)
        self.note = note
        """How the figures are to be taken."""
        self.sort = sort
        """The column that the rows are shown by at first, largest first; None for their order."""

    def __len__(self) -> int:
        return len(self.fields[0]) if self.fields else 0

    def values(self, key: str) -> list[Any]:
        """Column `key`."""
        (found,) = (field for field in self.fields if field.key == key)
        return list(found.values.tolist())

    def packed(self, block: Block) -> dict[str, Any]:
        """The sheet as a page has it, its columns in `block`."""
        return {
            "key": self.key,
            "caption": self.caption,
            "note": self.note,
            "rows": len(self),
            "sort": self.sort,
            "columns": [_packed(field, block) for field in self.fields],
        }


def _packed(field: Field, block: Block) -> dict[str, Any]:
    packed: dict[str, Any] = {"key": field.key, "label": field.label, "kind": field.kind}
    if isinstance(field.values, Words):
        return packed | block.words(field.values)
    if field.unknown is not None:
        packed["unknown"] = field.unknown
    return packed | {"data": block.place(field.values)}


def sheet_of(
    key: str,
    caption: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Iterable[tuple[str, str, str]],
    **options: Any,
) -> Sheet:
    """A sheet of rows: `columns` are (key, label, kind)."""
    fields = [
        Field(name, label, kind, [row[name] for row in rows]) for name, label, kind in columns
    ]
    return Sheet(key, caption, fields, **options)
