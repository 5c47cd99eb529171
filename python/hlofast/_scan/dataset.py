"""A dataset of results: one folder per table, one file per part, and a manifest that says which.

A part is written under a temporary name, renamed, and counts only when the manifest has a row for
it, which is appended last. Whatever ends a scan, what the manifest names is whole; what it does not
name is removed by the next scan.
"""

from __future__ import annotations

import json
import os

from hlofast._scan import formats

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from hlofast._core import ScanPart, ScanTable

MANIFEST = "hlofast-manifest.jsonl"
VERSION = 1


class DatasetError(ValueError):
    """A folder that cannot be used as a dataset; `str()` says why."""


class Batch:
    """Files that were done together."""

    __slots__ = ("number", "parts", "states")

    def __init__(self, number: int, parts: dict[str, list[Any]], states: dict[str, str]) -> None:
        self.number = number
        self.parts = parts
        """By table: the name of the part's file, and its bytes."""
        self.states = states
        """By path of a scanned file: what tells whether it has to be done again."""

    def record(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {"batch": self.number, "parts": self.parts, "files": self.states}


class Dataset:
    """A folder of results, open for writing by one scan at a time."""

    def __init__(self, path: str, format: str, options: dict[str, Any]) -> None:  # noqa: A002 - as in `scan`
        self.path = path
        self.format = format
        self.batches: dict[int, Batch] = {}
        self.programs: list[Any] | None = None
        self.is_started_over = False
        """Whether the rows of an earlier scan were given up, since its options were others."""
        self._next = 1
        os.makedirs(path, exist_ok=True)
        manifest = os.path.join(path, MANIFEST)
        if not os.path.exists(manifest) and _is_foreign(path):
            raise DatasetError(f"{path}: not empty, and no dataset of hlofast")
        self._file = os.open(manifest, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock()
            self._restore(options)
        except BaseException:
            os.close(self._file)
            raise

    def _lock(self) -> None:
        """Keep other scans out. The system gives the lock back, whatever ends this process."""
        try:
            from fcntl import LOCK_EX, LOCK_NB, flock
        except ImportError:  # Not on Windows.
            return
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
        except OSError:
            raise DatasetError(f"{self.path}: another scan is writing to it") from None

    def _restore(self, options: dict[str, Any]) -> None:
        """Take up what is there, if it was made with the same options."""
        head = {"schema": "hlofast.scan", "version": VERSION, "format": self.format}
        head["options"] = json.loads(json.dumps(options))
        records, length = _records(self._file)
        if length != os.fstat(self._file).st_size:
            os.ftruncate(self._file, length)  # The last row was cut off.
        if records and records[0] != head:
            self.is_started_over = len(records) > 1
            os.ftruncate(self._file, 0)
            records = []
        if not records:
            self._append(head)
        self.recover()

    def recover(self) -> None:
        """Take up what the manifest names; remove the rest, parts of an interrupted batch."""
        records, _ = _records(self._file)
        self.batches = {}
        for record in records[1:]:
            for batch in record.get("add", ()):
                new = Batch(batch["batch"], batch["parts"], batch["files"])
                self.batches[new.number] = new
            for number in record.get("remove", ()):
                self.batches.pop(number, None)
            self.programs = record.get("programs", self.programs)
            self._next = max(self._next, record["next"])
        # After a loss of power a part may be shorter than it was.
        for number, batch in list(self.batches.items()):
            if not all(self._is_whole(*part) for part in batch.parts.values()):
                del self.batches[number]
        self._remove_strangers()

    def _is_whole(self, name: str, size: int) -> bool:
        try:
            return os.path.getsize(os.path.join(self.path, name)) == size
        except OSError:
            return False

    def _remove_strangers(self) -> None:
        """Remove parts that the manifest does not name."""
        named = {part[0] for batch in self.batches.values() for part in batch.parts.values()}
        if self.programs is not None:
            named.add(self.programs[0])
        for folder in os.listdir(self.path):
            if not folder.startswith("table="):
                continue
            for name in os.listdir(os.path.join(self.path, folder)):
                if f"{folder}/{name}" not in named and name.startswith(("part-", ".part-")):
                    os.unlink(os.path.join(self.path, folder, name))

    def known(self) -> dict[str, str]:
        """The state of every file whose rows are here."""
        return {
            path: state for batch in self.batches.values() for path, state in batch.states.items()
        }

    def add(self, part: ScanPart) -> None:
        """Write the rows of `part`, instead of what was here of its files."""
        states = dict(part.states())
        if not states:
            return
        batch = Batch(self._number(), {}, states)
        for table in part.tables():
            batch.parts[table] = self._write(table, batch.number, part.table(table))
        kept, gone = self._without(states)
        self._commit([batch, *kept], gone)

    def forget(self, paths: Iterable[str]) -> None:
        """Take out the rows of files that are no more."""
        kept, gone = self._without(set(paths))
        if gone:
            self._commit(kept, gone)

    def put_programs(self, rows: ScanTable) -> None:
        """Write the table of programs anew."""
        before = self.programs
        number = self._number()
        self.programs = self._write("programs", number, rows)
        self._append({"programs": self.programs, "next": self._next})
        if before is not None:
            _unlink(os.path.join(self.path, before[0]))

    def close(self) -> None:
        """Let other scans in."""
        os.close(self._file)

    def _number(self) -> int:
        number = self._next
        self._next += 1
        return number

    def _write(self, table: str, number: int, rows: ScanTable) -> list[Any]:
        with self._part(table, number) as part:
            formats.write(self.format, rows, part.temporary)
        return part.described

    def _part(self, table: str, number: int) -> _Part:
        return _Part(self.path, f"table={table}", f"part-{number:08}.{self.format}")

    def _without(self, paths: Iterable[str]) -> tuple[list[Batch], list[int]]:
        """Batches instead of those that hold rows of `paths`, without those rows."""
        wanted = set(paths)
        kept: list[Batch] = []
        gone: list[int] = []
        for batch in list(self.batches.values()):
            hit = wanted & batch.states.keys()
            if not hit:
                continue
            gone.append(batch.number)
            rest = {path: state for path, state in batch.states.items() if path not in hit}
            if not rest:
                continue
            new = Batch(self._number(), {}, rest)
            for table, (name, _) in batch.parts.items():
                source = os.path.join(self.path, name)
                with self._part(table, new.number) as part:
                    count = formats.copy_without(self.format, source, part.temporary, "path", hit)
                    part.is_wanted = count > 0
                if count:
                    new.parts[table] = part.described
            kept.append(new)
        return kept, gone

    def _commit(self, added: list[Batch], gone: list[int]) -> None:
        record: dict[str, Any] = {"add": [batch.record() for batch in added]}
        if gone:
            record["remove"] = gone
        self._append(record | {"next": self._next})
        for number in gone:
            for name, _ in self.batches.pop(number).parts.values():
                _unlink(os.path.join(self.path, name))
        self.batches |= {batch.number: batch for batch in added}

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"
        data = line.encode("utf-8", "surrogateescape")
        while data:
            data = data[os.write(self._file, data) :]


class _Part:
    """A file under a temporary name, which takes its own when all is written."""

    def __init__(self, path: str, folder: str, name: str) -> None:
        os.makedirs(os.path.join(path, folder), exist_ok=True)
        self.temporary = os.path.join(path, folder, f".{name}")
        self.final = os.path.join(path, folder, name)
        self.name = f"{folder}/{name}"
        self.described: list[Any] = []
        self.is_wanted = True

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None or not self.is_wanted:
            _unlink(self.temporary)
            return
        self.described = [self.name, os.path.getsize(self.temporary)]
        os.replace(self.temporary, self.final)


def _unlink(path: str) -> None:
    """Remove a file if it is there."""
    if os.path.lexists(path):
        os.unlink(path)


def _is_foreign(path: str) -> bool:
    """Whether a folder holds what a dataset does not."""
    return any(not name.startswith(("table=", ".")) for name in os.listdir(path))


def _records(file: int) -> tuple[list[dict[str, Any]], int]:
    """The whole rows of a manifest, and where the last of them ends."""
    records: list[dict[str, Any]] = []
    end = 0
    for line in _lines(file):
        if not line.endswith(b"\n"):
            break
        try:
            records.append(json.loads(line))
        except ValueError:
            break
        end += len(line)
    return records, end


def _lines(file: int) -> Iterator[bytes]:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(os.dup(file), "rb") as stream:
        yield from stream
