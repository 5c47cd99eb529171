"""SQL over the tables of a scan, by DuckDB. Queries cannot read or write other data."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from importlib import import_module
from io import TextIOWrapper

from hlofast import _core, _scan, _text
from hlofast._core import Field
from hlofast._extras import library
from hlofast._files import replacing
from hlofast._result import Note, Result, Section, rows_of
from hlofast._scan import formats
from hlofast._scan.folder import MANIFEST
from hlofast._scan.stored import ReadFolder
from hlofast.table import Table, column_of, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, BinaryIO, TextIO

    from hlofast._core import Column, TextColumn
    from hlofast._scan import Scan
    from hlofast._scan.stored import Stored

_UNKNOWN_TABLE = re.compile(r'Table with name "?(.*?)"? does not exist')
_BATCH = 4096
_DUCKDB_TYPES = {
    "uint32": "UINTEGER",
    "int64": "BIGINT",
    "float64": "DOUBLE",
    "bool": "BOOLEAN",
    "string": "VARCHAR",
}


class QueryError(ValueError):
    """A query that cannot be answered; `str()` gives the reason and the place in the query."""


def needed() -> Any:
    """Imports duckdb; a `QueryError` names the extra that installs it."""
    try:
        return import_module("duckdb")
    except ImportError:
        raise QueryError("queries need duckdb: pip install 'hlofast[duckdb]'") from None


class Query:
    """One SELECT statement and its open connection."""

    def __init__(self, scan: Scan, sql: str) -> None:
        self._duckdb = needed()
        import tempfile

        self.sql = sql
        self._scratch = tempfile.TemporaryDirectory(prefix="hlofast-")
        _core._temporary(self._scratch.name, True)
        self._tables: tuple[str, ...] = ()
        try:
            self._connection = self._duckdb.connect(
                config={
                    "autoinstall_known_extensions": "false",
                    "autoload_known_extensions": "false",
                    # Spilled data goes here, not below the current folder.
                    "temp_directory": self._scratch.name,
                }
            )
            try:
                self._open(scan)
                self._start()
            except BaseException:
                self._connection.close()
                raise
        except BaseException:
            self._clean_up()
            raise

    def _clean_up(self) -> None:
        self._scratch.cleanup()
        _core._temporary(self._scratch.name, False)

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *exception: object) -> None:
        self._connection.close()
        self._clean_up()

    def _open(self, scan: Scan) -> None:
        """Registers the tables, then locks out all other access."""
        paths: list[str] = []
        if scan.path is None:
            self._tables = tuple(
                name for name in ("programs", *_scan._TABLES) if name in scan._asked
            )
            for name in self._tables:
                self._connection.register(name, scan.to_arrow(name))
        else:
            stored = scan._stored()
            self._tables = stored.asked
            for name in self._tables:
                if isinstance(stored.folder, ReadFolder):
                    self._connection.execute(f"CREATE VIEW {name} AS {_select(stored, name)}")
                    paths += _paths(stored, name)
                else:
                    self._connection.register(name, stored.to_arrow(name))
        allowed = ", ".join(_quoted(path) for own in paths for path in {own, _escaped(own)})
        for setting in (
            "python_enable_replacements = false",
            f"allowed_paths = [{allowed}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            self._connection.execute(f"SET {setting}")

    def _start(self) -> None:
        try:
            statements = self._connection.extract_statements(self.sql)
            if len(statements) != 1 or statements[0].type != self._duckdb.StatementType.SELECT:
                raise QueryError("a query must be one SELECT (or WITH, FROM, VALUES, DESCRIBE)")
            self._connection.execute(statements[0])
        except self._duckdb.Error as error:
            raise self._explained(error) from None
        names: dict[str, int] = {}
        self.columns: list[tuple[str, str]] = []
        """Unique column names and DuckDB's types."""
        for name, kind, *_ in self._connection.description:
            count = names[name] = names.get(name, -1) + 1
            own = f"{name}_{count}" if count else name
            names.setdefault(own, 0)
            self.columns.append((own, str(kind)))

    def _explained(self, error: Exception) -> Exception:
        """A more helpful text for an error of DuckDB, or DuckDB's own text."""
        text = str(error).strip()
        if isinstance(error, self._duckdb.IOException):
            return OSError(text)
        unknown = _UNKNOWN_TABLE.search(text)
        if unknown:
            name = unknown[1]
            line = text.find("\nLINE ")
            there = f"available tables: {', '.join(self._tables)}"
            if name in _scan._TABLES:
                there = f"the scan did not include it (--tables); {there}"
            return QueryError(
                f"no table {name!r}; {there}\n{text[line:] if line >= 0 else ''}".strip()
            )
        return QueryError(text)

    def rows(self, limit: int | None = None) -> Iterator[list[Any]]:
        """Yields up to `limit` rows of numbers, booleans, strings, lists, dictionaries and None."""
        left = limit
        while left is None or left > 0:
            try:
                rows = self._connection.fetchmany(_BATCH if left is None else min(left, _BATCH))
            except self._duckdb.Error as error:
                raise self._explained(error) from None
            if not rows:
                return
            for row in rows:
                yield [_plain(value) for value in row]
            if left is not None:
                left -= len(rows)

    def table(self) -> Table:
        """All rows."""
        return _table(self.columns, list(self.rows()))

    def answer(self, limit: int | None = None) -> Answer:
        """The rows, at most `limit`, as a result."""
        rows = list(self.rows(None if limit is None else limit + 1))
        return Answer(self.sql, self.columns, rows[:limit], is_cut=len(rows) > len(rows[:limit]))

    def write(self, form: str, path: str | None, limit: int | None = None) -> None:
        """Writes up to `limit` rows to a file in the format `form` (parquet, jsonl, csv).

        The file appears once it is complete. Without `path`, text goes to standard output.
        """
        if path is None:
            self._write_text(form, sys.stdout, limit)
            sys.stdout.flush()
            return
        with replacing(path) as file:
            if form == "parquet":
                self._write_parquet(file, limit)
                return
            text = TextIOWrapper(file, encoding="utf-8", newline="")
            self._write_text(form, text, limit)
            text.flush()
            text.detach()

    def _write_text(self, form: str, file: TextIO, limit: int | None) -> None:
        names = [name for name, _ in self.columns]
        if form == "jsonl":
            for row in self.rows(limit):
                values = dict(zip(names, row, strict=True))
                file.write(json.dumps(values, ensure_ascii=False) + "\n")
            return
        import csv

        writer = csv.writer(file)
        writer.writerow(names)
        for row in self.rows(limit):
            writer.writerow([_csv_cell(value) for value in row])

    def _write_parquet(self, file: BinaryIO, limit: int | None) -> None:
        parquet = library("pyarrow.parquet", "duckdb")
        connection = self._connection
        # DuckDB 2 has `to_arrow_reader`, and warns that it copies.
        read = getattr(connection, "to_arrow_reader", None) or connection.fetch_record_batch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            reader = read(_BATCH)
        names = [name for name, _ in self.columns]
        schema = library("pyarrow", "duckdb").schema(
            [field.with_name(name) for field, name in zip(reader.schema, names, strict=True)]
        )
        with parquet.ParquetWriter(file, schema) as writer:
            left = limit
            for batch in reader:
                part = batch.rename_columns(names)
                if left is not None:
                    part = part.slice(0, left)
                    left -= len(part)
                writer.write_batch(part)
                if left == 0:
                    break


_COLUMNS = (
    Field("name", "name", "Name of the column in the query."),
    Field("word", "type", "Its type in DuckDB."),
)


class Answer(Result):
    """The rows of a query, or the first rows."""

    __slots__ = ("_rows", "columns", "is_cut", "sql")

    VERB = "query"

    def __init__(
        self, sql: str, columns: list[tuple[str, str]], rows: list[list[Any]], *, is_cut: bool
    ) -> None:
        self.sql = sql
        """The query."""
        self.columns = columns
        """Column names and DuckDB's types."""
        self.is_cut = is_cut
        """Whether there are more rows."""
        self._rows = rows

    @property
    def title(self) -> str:
        """The number of rows."""
        count = _text.counted(len(self._rows), "row")
        return f"First {count}" if self.is_cut else count

    @property
    def notes(self) -> tuple[Note, ...]:
        """A note if rows are left out."""
        if not self.is_cut:
            return ()
        return (Note("cut", "there are more rows: --top 0 gives all", rows=len(self._rows)),)

    def sections(self) -> tuple[Section, ...]:
        """The rows."""
        return (Section("rows", "", _table(self.columns, self._rows)),)

    def every_section(self) -> tuple[Section, ...]:
        """The columns and the rows."""
        return (Section("columns", "Columns", of_rows(_COLUMNS, self.columns)), *self.sections())

    def to_dict(self, sections: Iterable[Section] | None = None) -> dict[str, Any]:  # noqa: ARG002 - an answer has a single form
        """The JSON form: the query, its columns and rows, including nested values."""
        names = [name for name, _ in self.columns]
        return {
            "name": self.sql,
            "facts": {},
            "tables": {
                "columns": rows_of(of_rows(_COLUMNS, self.columns), None),
                "rows": [dict(zip(names, row, strict=True)) for row in self._rows],
            },
            "notes": [note.to_dict() for note in self.notes],
        }


def _table(columns: list[tuple[str, str]], rows: list[list[Any]]) -> Table:
    return Table(
        _column(name, kind, [row[number] for row in rows])
        for number, (name, kind) in enumerate(columns)
    )


def _csv_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _select(stored: Stored, table: str) -> str:
    """The SELECT that reads the parts of a table, with the types they have in every format."""
    types = formats.types(table)
    parts = _paths(stored, table)
    if not parts:
        nulls = (f'CAST(NULL AS {_DUCKDB_TYPES[kind]}) AS "{name}"' for name, kind in types)
        return f"SELECT {', '.join(nulls)} WHERE false"
    # Folder names may contain glob characters.
    files = f"[{', '.join(_quoted(_escaped(part)) for part in parts)}]"
    if stored.format == "parquet":
        return (
            f"SELECT * FROM read_parquet({files}, hive_partitioning = false, union_by_name = true)"
        )
    columns = ", ".join(f"'{name}': '{_DUCKDB_TYPES[kind]}'" for name, kind in types)
    if stored.format == "jsonl":
        how = "read_json({}, format = 'newline_delimited', "
        how += f"maximum_object_size = {1 << 30}, "
    else:
        how = "read_csv({}, auto_detect = false, header = true, delim = ',', quote = '\"', "
        how += f"escape = '\"', new_line = '\\r\\n', max_line_size = {1 << 30}, "
    how += f"hive_partitioning = false, columns = {{{columns}}})"
    return f"SELECT * FROM {how.replace('{}', files, 1)}"


def _paths(stored: Stored, table: str) -> list[str]:
    return [os.path.join(stored.folder.path, part) for part in stored.parts(table)]


def _escaped(path: str) -> str:
    """A glob pattern that matches only `path`."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _plain(value: Any) -> Any:
    """Converts a DuckDB value to a JSON value; values that are not finite become None."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if type(value).__name__ == "Decimal":
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


_CODES = {"UINTEGER": "I", "DOUBLE": "d", "FLOAT": "d"}
"""DuckDB types and their `array` type codes; other integers take 64 bits."""


def _column(name: str, kind: str, values: list[Any]) -> tuple[Field, Column | TextColumn]:
    """A column of an answer, chosen by DuckDB's type and the values."""
    doc = f"The column {name} of the query, of DuckDB type {kind}."
    known = [value for value in values if value is not None]
    has_nulls = len(known) < len(values)
    if kind == "BOOLEAN" and not has_nulls:
        flags = Field("flag", name, doc, label=name)
        return flags, column_of(flags, values)
    if all(isinstance(value, bool | int | float) for value in known) and (
        known or kind != "VARCHAR"
    ):
        is_signed = any(value < 0 for value in known)
        numbers = Field("number", name, doc, label=name, nullable=has_nulls, signed=is_signed)
        # The number that represents null needs 64 bits.
        code = "" if kind == "UINTEGER" and has_nulls else _CODES.get(kind, "")
        return numbers, column_of(numbers, values, code)
    texts = Field("text", name, doc, label=name, nullable=has_nulls)
    return texts, column_of(texts, [None if value is None else str(value) for value in values])


def is_dataset(path: str) -> bool:
    """Whether `path` on disk is a dataset of a scan."""
    return os.path.exists(os.path.join(path, MANIFEST))
