"""`Table`: the form of every result with rows."""

from __future__ import annotations

from math import isfinite

from hlofast import _core
from hlofast._core import Column, Field, TextColumn
from hlofast._extras import library

TYPE_CHECKING = False  # Verbs print tables; importing typing would slow their start.
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, overload

    import numpy
    import numpy.typing

_SHOWN = 10
REALS = ("seconds", "ratio", "flop_rate", "byte_rate")
"""Kinds whose values are real numbers."""
_LARGEST = 2**63 - 1
_ROWS = Field("count", "rows", "Number of rows with this value.", adds_up=True)
_UNKNOWN = Field("count", "unknown", "Rows left out of a total because a value is unknown.")


class Table:
    """Named columns of equal length. Rows are dictionaries, columns NumPy arrays.

    A `Field` describes every column. Unknown values are None in rows, null in Arrow and masked in
    NumPy. Numbers are read-only views of the original memory. Other libraries read the table
    through the Arrow PyCapsule interface without copying numbers.
    """

    __slots__ = ("_arrays", "_columns", "_fields", "_given", "_length")

    def __init__(self, columns: Iterable[tuple[Field | str, Column | TextColumn]]) -> None:
        fields: dict[str, Field] = {}
        named: dict[str, Column | TextColumn] = {}
        length: int | None = None
        for described, column in columns:
            field = described if isinstance(described, Field) else _plain_field(described, column)
            name = field.name  # Makes a new string each time.
            fields[name], named[name] = field, column
            if length != len(column):
                if length is not None:
                    raise ValueError("the columns of a table must have equal lengths")
                length = len(column)
        self._fields, self._columns = fields, named
        self._length: int = length or 0
        self._arrays: dict[str, numpy.typing.NDArray[Any]] = {}

    def _keep(self, columns: Iterable[tuple[Field, Column | TextColumn]]) -> None:
        """Keeps columns that the core made, which have equal lengths, until the first read."""
        self._given = columns if isinstance(columns, list) else list(columns)

    if not TYPE_CHECKING:  # For type checkers, every name would be an attribute.

        def __getattr__(self, name: str) -> Any:
            # Only called for slots without a value.
            if name not in Table.__slots__ or name == "_given":
                text = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(text, name=name, obj=self)
            Table.__init__(self, self._given)
            return getattr(self, name)

    @classmethod
    def of(cls, columns: Iterable[tuple[Field, Iterable[Any]]]) -> Table:
        """Returns a table of Python values; None is unknown."""
        return Table((field, column_of(field, values)) for field, values in columns)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that describe the columns, in order."""
        return tuple(self._fields.values())

    def field(self, name: str) -> Field:
        """Returns the field of column `name`; raises `KeyError` for an unknown name."""
        field = self._fields.get(name)
        if field is None:
            from hlofast._names import unknown

            raise unknown("column", name, self._fields)
        return field

    def values(self, name: str) -> list[Any]:
        """Returns column `name` as a list; unknown values are None."""
        return self.field(name).values(self._columns[name])

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._columns)

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, name: str) -> numpy.typing.NDArray[Any]: ...

        @overload
        def __getitem__(self, name: slice) -> Table: ...

    def __getitem__(self, name: str | slice) -> numpy.typing.NDArray[Any] | Table:
        """Returns column `name` as a read-only NumPy array over the same memory.

        A slice gives a table of these rows; `row` gives one row.

        Numbers that may be unknown (`field.nullable`) are a `numpy.ma.MaskedArray`, so that sums
        and means leave out unknown values; its `.data` holds `field.unknown`, or NaN, for them.
        Texts are an array of objects, with None for absent texts.
        """
        if not isinstance(name, str):
            if isinstance(name, slice):
                return self.take(range(*name.indices(self._length)))
            raise TypeError(f"columns are named, not {name!r}; table.row(0) is the first row")
        array = self._arrays.get(name)
        if array is None:
            import numpy

            field, column = self.field(name), self._columns[name]
            if isinstance(column, TextColumn):
                array = numpy.empty(len(column), dtype=object)
                array[:] = field.values(column)
                array.flags.writeable = False
            else:
                array = numpy.asarray(column)
                if field.nullable:
                    is_real = array.dtype.kind == "f"
                    mask = numpy.isnan(array) if is_real else array == field.unknown
                    array = numpy.ma.MaskedArray(array, mask=mask)
            array = self._arrays.setdefault(name, array)
        return array

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = tuple(self._columns)
        columns = [self.values(name) for name in names]
        for row in zip(*columns, strict=True):
            yield dict(zip(names, row, strict=True))

    def row(self, index: int) -> dict[str, Any]:
        """Returns row `index` as a dictionary."""
        columns = self._columns.items()
        return {name: self._fields[name].value(column, index) for name, column in columns}

    def to_pylist(self) -> list[dict[str, Any]]:
        """Returns all rows as dictionaries."""
        return list(self)

    def take(self, rows: Iterable[int]) -> Table:
        """Returns a table of the rows with these indices, in this order."""
        chosen = list(map(int, rows))
        if chosen and not 0 <= min(chosen) <= max(chosen) < self._length:
            raise IndexError("row out of range")
        return self._like(column.take(chosen) for column in self._columns.values())

    def _like(self, columns: Iterable[Column | TextColumn]) -> Table:
        """Returns a table with the same fields and other columns."""
        return Table(zip(self._fields.values(), columns, strict=True))

    def sort_by(self, name: str, *, descending: bool = False) -> Table:
        """Returns the rows sorted by a column; the sort is stable, and unknown values come last."""
        values = self.values(name)
        present = [row for row, value in enumerate(values) if value is not None]
        absent = [row for row, value in enumerate(values) if value is None]
        present.sort(key=lambda row: values[row], reverse=descending)
        return self.take(present + absent)

    def top(self, count: int, by: str | None = None) -> Table:
        """Returns the first `count` rows, or the rows with the largest values of column `by`."""
        table = self if by is None else self.sort_by(by, descending=True)
        return table.take(range(min(max(count, 0), len(table))))

    def by(self, name: str, *, totals: Iterable[str] | None = None) -> Table:
        """Groups by column `name`: one row per value, in the order of first occurrence.

        The columns are `name`, `rows` (the number of rows with the value), and the sums of the
        columns `totals`, by default of all columns that add up (`field.adds_up`). A sum covers the
        known values and is unknown if every value is. If values may be unknown, the column
        `unknown` counts the rows with such a value. Integer sums are exact and saturate at 64 bits.
        Raises `KeyError` for an unknown column, and `TypeError` for a total of a column that cannot
        be added, such as texts or line numbers.
        """
        if totals is None:
            totals = [own for own, field in self._fields.items() if field.adds_up and own != name]
        totals = list(totals)
        codes: dict[Any, int] = {}
        places = [codes.setdefault(value, len(codes)) for value in self.values(name)]
        counts = [0] * len(codes)
        for place in places:
            counts[place] += 1
        columns: list[tuple[Field, list[Any]]] = [(self._fields[name], list(codes))]
        if name != _ROWS.name:
            columns.append((_ROWS, counts))
        lacking: set[int] = set()
        for total in totals:
            field = self.field(total)
            if not field.is_amount:
                raise TypeError(f"column {total!r} cannot be added up: it holds {field.kind}s")
            values = self.values(total)
            lacking.update(row for row, value in enumerate(values) if value is None)
            columns.append((field, _sums(places, len(codes), values)))
        if any(self._fields[total].nullable for total in totals):
            unknown = [0] * len(codes)
            for row in lacking:
                unknown[places[row]] += 1
            columns.append((_UNKNOWN, unknown))
        return Table.of(columns)

    def _described_by_name(self) -> dict[str, tuple[Field, Column | TextColumn]]:
        return dict(zip(self._columns, self._described(), strict=True))

    def _described(self) -> list[tuple[Field, Column | TextColumn]]:
        return list(zip(self._fields.values(), self._columns.values(), strict=True))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns the table as a stream of one record batch.

        The metadata of its fields has kind, unit, label and doc.
        """
        return _core._arrow_stream(self._described(), self._length)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Returns the table as one struct array."""
        return _core._arrow_array(self._described(), self._length)

    def __arrow_c_schema__(self) -> object:
        """Returns the types of the columns."""
        return _core._arrow_schema(self._described(), self._length)

    def to_arrow(self) -> Any:
        """Returns a `pyarrow.Table`; needs `hlofast[arrow]`."""
        return library("pyarrow", "arrow").table(self)

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame`; needs `hlofast[pandas]`."""
        library("pandas", "pandas")
        return library("pyarrow", "pandas").table(self).to_pandas()

    def to_polars(self) -> Any:
        """Returns a `polars.DataFrame`; needs `hlofast[polars]`."""
        return library("polars", "polars").DataFrame(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return self.columns == other.columns and self.to_pylist() == other.to_pylist()

    # Tables compare by value and may hold lists, so they are not hashable, although `object` is
    # typed as hashable.
    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        kinds = [type(column) is TextColumn or column.dtype for column in self._columns.values()]
        values = [self.values(name) for name in self._columns]
        return _restore, (list(self._fields.values()), kinds, values)

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
        from hlofast import _html

        return _html.table(self)


def _sums(places: list[int], count: int, values: list[Any]) -> list[Any]:
    """Returns the sums of the known `values` by place; None where all are unknown."""
    sums: list[Any] = [None] * count
    for place, value in zip(places, values, strict=True):
        if value is not None:
            sums[place] = value if sums[place] is None else sums[place] + value
    return sums


_SOURCE = Field("path", "source", "Source file and line.", nullable=True)


def with_source(table: Table, name: str = "source") -> Table:
    """Returns `table` with a column of source file and line, unknown without a file."""
    places = zip(table.values("source_file"), table.values("source_line"), strict=True)
    texts = [file if file is None or line is None else f"{file}:{line}" for file, line in places]
    return with_columns(table, [(_SOURCE.replace(name=name, label=name), texts)])


def with_columns(table: Table, columns: Iterable[tuple[Field, Iterable[Any]]]) -> Table:
    """Returns `table` with further columns appended."""
    further = ((field, column_of(field, values)) for field, values in columns)
    return Table([*table._described(), *further])


_SHARE = Field("ratio", "share", "Share of the sum of all rows.", nullable=True)


def with_share(table: Table, name: str) -> Table:
    """Returns `table` with a column `share`: each value of column `name` divided by their sum."""
    values = table.values(name)
    return with_columns(table, [(_SHARE, shares(values, sum(value or 0 for value in values)))])


def shares(parts: Sequence[float | None], whole: float) -> list[float | None]:
    """Returns `parts` divided by `whole`.

    Unknown where either is unknown, or `whole` is not above 0.
    """
    is_known = whole > 0 and isfinite(whole)
    return [part / whole if is_known and part is not None else None for part in parts]


def column_of(field: Field, values: Iterable[Any], kind: str = "") -> Column | TextColumn:
    """Returns a column of `field`, made without NumPy; None is unknown.

    `kind` is an `array` type code; without it, integers are 64 bits wide, and numbers are floats if
    any number is a float.
    """
    from array import array

    values = list(values)
    if field.is_text:
        return _text_column(values)
    if field.kind == "flag":
        # An empty array has no memory to align.
        flags = array("B", [bool(value) for value in values] or [False])
        return Column(memoryview(flags).cast("B").cast("?")[: len(values)])
    is_real = kind == "d" or field.kind in REALS
    is_real = is_real or any(isinstance(own, float) for own in values)
    missing = float("nan") if is_real else field.unknown
    values = [missing if value is None else value for value in values]
    try:
        numbers = array("d" if is_real else kind or "q", values or [0])
    except OverflowError:
        if is_real:
            raise
        values = [min(max(value, -_LARGEST - 1), _LARGEST) for value in values]
        numbers = array(kind or "q", values)
    return Column(memoryview(numbers)[: len(values)])


def _text_column(values: list[str | None]) -> TextColumn:
    # Bytes that are not UTF-8 come as surrogate escapes, which a column of texts cannot hold.
    values = [value if value is None or value.isascii() else _utf8(value) for value in values]
    texts = list(dict.fromkeys(value for value in values if value is not None))
    codes: dict[str | None, int] = {text: code for code, text in enumerate(texts)}
    field = Field("index", "code", "Index of a text.", nullable=True)
    numbers = column_of(field, [codes.get(value) for value in values])
    assert isinstance(numbers, Column)
    return TextColumn(texts, numbers)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def of_rows(fields: Iterable[Field], rows: Iterable[Sequence[Any]]) -> Table:
    """Returns a table of rows, each with a value for every field; None is unknown."""
    fields, rows = tuple(fields), list(rows)
    return Table.of((field, [row[at] for row in rows]) for at, field in enumerate(fields))


def _plain_field(name: str, column: Column | TextColumn) -> Field:
    """Returns a field for a column of which only the name is known."""
    if isinstance(column, TextColumn):
        return Field("text", name, "", nullable=True)
    return Field({"bool": "flag", "float64": "number"}.get(column.dtype, "count"), name, "")


_CODES = {"uint8": "B", "int32": "i", "uint32": "I", "uint64": "Q", "float64": "d"}


def _restore(fields: list[Field], kinds: list[Any], values: list[list[Any]]) -> Table:
    columns = zip(fields, kinds, values, strict=True)
    return Table(
        (field, column_of(field, own, _CODES.get(kind, ""))) for field, kind, own in columns
    )
