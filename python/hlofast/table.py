"""`Table`: the one form of every result with rows."""

from __future__ import annotations

from hlofast import _core
from hlofast._core import Column, TextColumn
from hlofast._extras import library

TYPE_CHECKING = False  # Verbs print tables; importing typing would slow their start.
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    import numpy
    import numpy.typing

_SHOWN = 10
_COUNTS = frozenset(
    """
    instructions executions rows multiplicity flops transcendentals bytes_accessed bytes_read
    bytes_written other_bytes_read other_bytes_written shape_bytes total_payload total_wire_bytes
    """.split()
)
"""Columns whose sum over rows means something; the others are sizes of one thing, or places."""
_UNKNOWN_BELOW_ZERO = frozenset(
    {"executions", "multiplicity", "shape_bytes", "total_payload", "total_wire_bytes"}
)
_LARGEST = 2**63 - 1


class Table:
    """Named columns of one length. Rows are dictionaries, columns NumPy arrays.

    Numbers are read-only views of the memory they were computed in; other libraries read the
    whole table through the Arrow PyCapsule interface without a copy of them.
    """

    __slots__ = ("_arrays", "_columns", "_length")

    def __init__(self, columns: Iterable[tuple[str, Column | TextColumn]]) -> None:
        self._columns: dict[str, Column | TextColumn] = dict(columns)
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) > 1:
            raise ValueError("the columns of a table have one length")
        self._length: int = lengths.pop() if lengths else 0
        self._arrays: dict[str, numpy.typing.NDArray[Any]] = {}

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._columns)

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> numpy.typing.NDArray[Any]:
        """Column `name` as a NumPy array; texts as an array of objects."""
        array = self._arrays.get(name)
        if array is None:
            import numpy

            column = self._columns[name]
            if isinstance(column, TextColumn):
                array = numpy.empty(len(column), dtype=object)
                array[:] = column.tolist()
                array.flags.writeable = False
            else:
                array = numpy.asarray(column)
            array = self._arrays.setdefault(name, array)
        return array

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = tuple(self._columns)
        values = [column.tolist() for column in self._columns.values()]
        for row in zip(*values, strict=True):
            yield dict(zip(names, row, strict=True))

    def row(self, index: int) -> dict[str, Any]:
        """Row `index` as a dictionary."""
        return {name: column[index] for name, column in self._columns.items()}

    def to_pylist(self) -> list[dict[str, Any]]:
        """All rows as dictionaries."""
        return list(self)

    def take(self, rows: Iterable[int]) -> Table:
        """The rows with these numbers, in this order."""
        chosen = list(map(int, rows))
        if chosen and not 0 <= min(chosen) <= max(chosen) < self._length:
            raise IndexError("row out of range")
        return Table((name, column.take(chosen)) for name, column in self._columns.items())

    def sort_by(self, name: str, *, descending: bool = False) -> Table:
        """The same rows ordered by a column; rows that are equal in it keep their order."""
        values: list[Any] = self._columns[name].tolist()
        present = [row for row, value in enumerate(values) if value is not None]
        absent = [row for row, value in enumerate(values) if value is None]
        present.sort(key=lambda row: values[row], reverse=descending)
        return self.take(present + absent)

    def top(self, count: int, by: str | None = None) -> Table:
        """The first `count` rows, or those with the largest values of column `by`."""
        table = self if by is None else self.sort_by(by, descending=True)
        return table.take(range(min(max(count, 0), len(table))))

    def by(self, name: str, *, totals: Iterable[str] | None = None) -> Table:
        """One row per value of column `name`, in the order in which values first occur.

        Columns: `name`, `rows` (how many rows have the value), then the sums of the columns
        `totals`; without it of those that count something, so that their sum does too:
        instructions, executions, multiplicity, flops, transcendentals, shape_bytes, total_payload,
        total_wire_bytes and every kind of bytes read, written or accessed, in the table's order.
        Integers are added exactly; what exceeds 64 bits stands as the largest number there is,
        and a sum of multiplicities, executions, shape sizes, payloads or wire bytes is -1
        (unknown) where one of them is. A `KeyError` for a column that the table has not, a
        `TypeError` for a total of texts.
        """
        if totals is None:
            totals = [column for column in self._columns if column in _COUNTS and column != name]
        sums: dict[str, list[Any]] = {}
        codes: dict[Any, int] = {}
        places = [codes.setdefault(value, len(codes)) for value in self._columns[name].tolist()]
        counts = [0] * len(codes)
        for place in places:
            counts[place] += 1
        for total in totals:
            column = self._columns[total]
            if isinstance(column, TextColumn):
                raise TypeError(f"column {total!r} holds texts")
            sums[total] = _grouped(places, len(codes), column.tolist(), total)
        keys = list(codes)
        key: Column | TextColumn
        if isinstance(self._columns[name], TextColumn):
            key = text_column_of(keys)
        else:
            key = column_of(keys)
        grouped = [(name, key), ("rows", column_of(counts))]
        return Table(grouped + [(total, column_of(values)) for total, values in sums.items()])

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table as a stream of one record batch."""
        return _core._arrow_stream(list(self._columns.items()), self._length)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The table as one struct array."""
        return _core._arrow_array(list(self._columns.items()), self._length)

    def __arrow_c_schema__(self) -> object:
        """The types of the columns."""
        return _core._arrow_schema(list(self._columns.items()), self._length)

    def to_arrow(self) -> Any:
        """A `pyarrow.Table`; needs `hlofast[arrow]`."""
        return library("pyarrow", "arrow").table(self)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`; needs `hlofast[pandas]`."""
        library("pandas", "pandas")
        return library("pyarrow", "pandas").table(self).to_pandas()

    def to_polars(self) -> Any:
        """A `polars.DataFrame`; needs `hlofast[polars]`."""
        return library("polars", "polars").DataFrame(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return self.columns == other.columns and self.to_pylist() == other.to_pylist()

    # What compares by value and may hold lists is not hashable; object's type says otherwise.
    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        columns = []
        for name, column in self._columns.items():
            if isinstance(column, TextColumn):
                columns.append((name, True, column.tolist()))
            else:
                columns.append((name, False, column.tolist()))
        return _restore, (columns,)

    def _cells(self) -> list[list[str]]:
        shown = min(self._length, _SHOWN)
        rows = (self.row(index) for index in range(shown))
        return [["" if value is None else str(value) for value in row.values()] for row in rows]

    def __repr__(self) -> str:
        heads = list(self._columns)
        cells = [
            [cell if len(cell) <= 40 else cell[:37] + "..." for cell in row]
            for row in self._cells()
        ]
        widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in [heads, *cells]]
        if self._length > len(cells):
            lines.append(f"({self._length} rows)")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th>{escape(name)}</th>" for name in self._columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._cells()
        )
        caption = f"{self._length} rows"
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{body}</table>"


def _grouped(places: list[int], count: int, values: list[Any], name: str) -> list[Any]:
    """Sums of `values` by place."""
    sums = [0] * count
    unknown = set()
    for place, value in zip(places, values, strict=True):
        sums[place] += value
        if value < 0 and name in _UNKNOWN_BELOW_ZERO:
            unknown.add(place)
    for place in unknown:
        sums[place] = -1
    return sums


def column_of(values: list[Any], kind: str = "q") -> Column:
    """Numbers without NumPy: 64 bits unless `kind`, an `array` type code, says otherwise."""
    from array import array

    if any(isinstance(value, float) for value in values):
        kind = "d"
    else:
        values = [min(max(value, -_LARGEST - 1), _LARGEST) for value in values]
    # An empty array has no memory that could be aligned.
    return Column(memoryview(array(kind, values or [0]))[: len(values)])


def text_column_of(values: list[str | None]) -> TextColumn:
    """Texts, some of them perhaps None."""
    texts = list(dict.fromkeys(value for value in values if value is not None))
    codes: dict[str | None, int] = {text: code for code, text in enumerate(texts)}
    return TextColumn(texts, column_of([codes.get(value, -1) for value in values], "i"))


def _restore(columns: list[tuple[str, bool, list[Any]]]) -> Table:
    import numpy

    restored: list[tuple[str, Column | TextColumn]] = []
    for name, is_text, values in columns:
        if is_text:
            restored.append((name, text_column_of(values)))
        else:
            restored.append((name, Column(numpy.asarray(values))))
    return Table(restored)
