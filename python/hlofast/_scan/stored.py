"""Read-only access to a dataset: its valid parts and their rows."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress

from hlofast import _core
from hlofast._extras import library
from hlofast._scan import formats
from hlofast._scan.dataset import heads, records_of, replayed
from hlofast._scan.folder import MANIFEST, DatasetError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from hlofast._core import ScanTable
    from hlofast._scan.folder import RemoteFolder

_TRIES = 5


class ReadFolder:
    """A folder on disk, opened for reading."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._manifest = os.path.join(path, MANIFEST)
        if not os.path.exists(self._manifest):
            os.listdir(path)  # Raises the reason if the folder cannot be read.
            raise DatasetError(f"{path}: not a dataset of hlofast (it has no {MANIFEST})")

    def manifest(self) -> Iterator[bytes]:
        """Yields the rows of the manifest; the last row may be truncated."""
        with open(self._manifest, "rb") as stream:
            yield from stream

    def parts(self) -> dict[str, int]:
        """Existing parts and their sizes."""
        sizes = {}
        for folder in os.listdir(self.path):
            if folder.startswith("table="):
                with os.scandir(os.path.join(self.path, folder)) as entries:
                    for entry in entries:
                        with suppress(FileNotFoundError):  # A scan may be removing the file.
                            sizes[f"{folder}/{entry.name}"] = entry.stat().st_size
        return sizes

    @contextmanager
    def reading(self, name: str) -> Iterator[str]:
        """The path of a part on disk."""
        yield os.path.join(self.path, name)


class Stored:
    """The valid parts of a dataset when it is opened, possibly while a scan writes to it.

    Parts that the manifest does not name yet, or that a later row removes, are not valid.
    """

    def __init__(self, folder: ReadFolder | RemoteFolder) -> None:
        self.folder = folder
        for attempt in range(_TRIES):
            records, _ = records_of(folder.manifest())
            if not records or not heads(records[0]):
                raise DatasetError(f"{folder.path}: this version cannot read the manifest")
            try:
                batches, programs, _ = replayed(records)
            except DatasetError as error:
                raise DatasetError(f"{folder.path}: {error}") from None
            named = [list(batch.parts.items()) for batch in batches.values()]
            if programs is not None:
                named.append([("programs", programs)])
            there = folder.parts()
            whole = [
                parts
                for parts in named
                if all(there.get(name) == size for _, (name, size) in parts)
            ]
            self.damaged = len(named) - len(whole)
            """Number of batches left out because one of their parts is missing or truncated."""
            if not self.damaged or attempt == _TRIES - 1:
                break
            time.sleep(0.02)  # A scan may be replacing the parts.
        self.format: str = records[0]["format"]
        self.asked: tuple[str, ...] = ("files", "programs", *records[0]["options"]["tables"])
        """The tables of the dataset, with or without rows."""
        self._parts: dict[str, list[str]] = {}
        for parts in whole:
            for table, (name, _) in parts:
                self._parts.setdefault(table, []).append(name)

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that have rows."""
        return tuple(sorted(self._parts))

    def parts(self, table: str) -> list[str]:
        """The files that hold the rows of a table, relative to the folder."""
        return sorted(self._parts.get(table, ()))

    def rows(
        self,
        table: str,
        columns: Iterable[str] | None = None,
        where: Callable[[dict[str, list[Any]], int], bool] | None = None,
    ) -> ScanTable:
        """The rows of a table; columns that are not in `columns` are unknown.

        `where` selects rows: it takes the columns of a part and the index of a row.
        """
        wanted = None if columns is None else set(columns)
        types = [
            (name, kind) for name, kind in formats.types(table) if wanted is None or name in wanted
        ]
        values: dict[str, list[Any]] = {name: [] for name, _ in types}
        length = 0
        for part in self.parts(table):
            with self.folder.reading(part) as path:
                count, read = formats.read(self.format, path, table, types)
            chosen = [row for row in range(count) if where is None or where(read, row)]
            length += len(chosen)
            for name, more in read.items():
                values[name] += more if len(chosen) == count else [more[row] for row in chosen]
        return _core._scan_rows(table, length, values)

    def to_arrow(self, table: str) -> Any:
        """The rows of a table as `pyarrow.Table`."""
        arrow = library("pyarrow", "arrow")
        parts = self.parts(table)
        if self.format != "parquet" or not parts:
            # Readers of text infer nulls and numbers from each file; use the declared types.
            return arrow.table(self.rows(table))
        tables = []
        for part in parts:
            with self.folder.reading(part) as path:
                read = library("pyarrow.parquet", "arrow").read_table
                tables.append(read(path, partitioning=None))
        # Strings get the larger type if one part needs it.
        return arrow.concat_tables(tables, promote_options="permissive")
