"""How rows become files: Parquet through pyarrow, JSON lines and CSV without anything."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from hlofast._core import ScanTable

FORMATS = ("parquet", "jsonl", "csv")


class FormatError(ValueError):
    """A format that is not known, or whose library is not installed."""


def check(name: str) -> None:
    """A `FormatError` unless files of this format can be written."""
    if name not in FORMATS:
        raise FormatError(f"format is one of {', '.join(FORMATS)}, not {name!r}")
    if name == "parquet":
        from importlib.util import find_spec

        if find_spec("pyarrow") is None:
            raise FormatError(
                "Parquet needs pyarrow: pip install 'hlofast[arrow]', or choose the format jsonl "
                "or csv, which need nothing"
            )


def write(name: str, rows: ScanTable, path: str) -> None:
    """Write `rows` to a new file."""
    if name == "parquet":
        _parquet().write_table(_pyarrow().table(rows), path)
        return
    text = rows.json_lines() if name == "jsonl" else rows.csv(True)
    with open(path, "wb") as file:
        file.write(text)


def copy_without(name: str, source: str, target: str, column: str, values: Collection[str]) -> int:
    """Copy a file without the rows that have one of `values` in `column`; how many rows stay."""
    if name == "parquet":
        arrow, compute = _pyarrow(), _import("pyarrow.compute")
        table = _parquet().read_table(source, partitioning=None)
        gone = compute.is_in(table[column], value_set=arrow.array(sorted(values), arrow.string()))
        table = table.filter(compute.invert(gone))
        if table.num_rows:
            _parquet().write_table(table, target)
        return int(table.num_rows)
    if name == "jsonl":
        from json import loads

        with open(source, encoding="utf-8", newline="\n") as lines:
            kept = [line for line in lines if loads(line)[column] not in values]
        header = ""
    else:
        import csv
        from io import StringIO

        csv.field_size_limit(1 << 30)
        with open(source, encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
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


def _import(name: str) -> Any:
    from importlib import import_module

    return import_module(name)


def _pyarrow() -> Any:
    return _import("pyarrow")


def _parquet() -> Any:
    return _import("pyarrow.parquet")
