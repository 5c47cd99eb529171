"""File formats of rows: Parquet, JSON Lines and CSV."""

from __future__ import annotations

from contextlib import contextmanager

from hlofast import _core
from hlofast.table import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

    from hlofast._core import ScanTable

FORMATS = ("parquet", "jsonl", "csv")


class FormatError(ValueError):
    """An unknown format."""


def types(table: str) -> list[tuple[str, str]]:
    """The columns of a scan table, with the types they have in every format."""
    return [
        (field.name, "string" if isinstance(column, _core.TextColumn) else column.dtype)
        for field, column in _core._scan_rows(table, 0, {}).columns()
    ]


def check(name: str) -> None:
    """Raises `FormatError` unless files of this format can be written."""
    if name not in FORMATS:
        raise FormatError(f"format must be one of {', '.join(FORMATS)}, not {name!r}")


def write(name: str, rows: ScanTable, path: str) -> None:
    """Writes `rows` to a new file."""
    if name == "parquet":
        data = rows.parquet()
    else:
        data = rows.json_lines() if name == "jsonl" else rows.csv(True)
    with open(path, "wb") as file:
        file.write(data)


def read(
    name: str, path: str, table: str, types: list[tuple[str, str]]
) -> tuple[int, dict[str, list[Any]]]:
    """The number of rows of a file of `table`, and the values of the columns of `types`."""
    wanted = [column for column, _ in types]
    if name == "parquet":
        with _parquet(path) as data:
            own = Table(_core._of_parquet(table, data, set(wanted)).columns())
        return len(own), {column: own.values(column) for column in wanted}
    if name == "jsonl":
        from json import loads

        with open(path, encoding="utf-8", newline="\n") as lines:
            rows = [loads(line) for line in lines]
        return len(rows), {column: [row.get(column) for row in rows] for column in wanted}
    header, *cells = _csv_rows(path)
    columns: dict[str, list[Any]] = {}
    for column, kind in types:
        if column in header:
            at, convert = header.index(column), _OF_TEXT[kind]
            columns[column] = [convert(row[at]) if row[at] else None for row in cells]
    return len(cells), columns


_OF_TEXT: dict[str, Callable[[str], Any]] = {
    "uint32": int,
    "int64": int,
    "float64": float,
    "bool": "true".__eq__,
    "string": str,
}


def _csv_rows(path: str) -> list[list[str]]:
    import csv

    csv.field_size_limit(1 << 30)
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@contextmanager
def _parquet(path: str) -> Iterator[bytes]:
    """The bytes of a file; errors of its reader name it."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        yield data
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def copy_without(name: str, source: str, target: str, column: str, values: Collection[str]) -> int:
    """Copies a file without rows whose `column` is in `values`; returns how many it keeps."""
    if name == "parquet":
        with _parquet(source) as data:
            count, data = _core._parquet_without(data, column, set(values))
        if count:
            with open(target, "wb") as rest:
                rest.write(data)
        return count
    if name == "jsonl":
        from json import loads

        with open(source, encoding="utf-8", newline="\n") as lines:
            kept = [line for line in lines if loads(line)[column] not in values]
        header = ""
    else:
        import csv
        from io import StringIO

        rows = _csv_rows(source)
        at = rows[0].index(column)
        text = StringIO(newline="")
        csv.writer(text).writerow(rows[0])
        header = text.getvalue()
        kept = []
        for row in rows[1:]:
            if row[at] not in values:
                text = StringIO(newline="")
                csv.writer(text).writerow(row)
                kept.append(text.getvalue())
    if kept:
        with open(target, "w", encoding="utf-8", newline="") as file:
            file.write(header)
            file.writelines(kept)
    return len(kept)
