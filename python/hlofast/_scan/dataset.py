"""A dataset of results: one folder per table, one file per part, and a manifest of valid parts.

A part is written under a temporary name, renamed, and becomes valid when a row for it is appended
to the manifest. However a scan ends, every part in the manifest is complete; the next scan removes
all other parts. `folder.py` implements this on disk and in object stores.
"""

from __future__ import annotations

import json

from hlofast._scan import formats
from hlofast._scan.folder import MANIFEST, DatasetError, LocalFolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from typing import Any

    from hlofast._core import ScanPart, ScanTable
    from hlofast._remote import RemoteFiles
    from hlofast._scan.folder import Part, RemoteFolder

SCHEMA = "hlofast.scan"
VERSION = 1

__all__ = ["Batch", "Dataset", "DatasetError"]


class Batch:
    """Files whose rows were written together."""

    __slots__ = ("number", "parts", "states", "tags")

    def __init__(
        self, number: int, parts: dict[str, list[Any]], states: dict[str, str], tags: dict[str, str]
    ) -> None:
        self.number = number
        self.parts = parts
        """By table: the name and the size of the part's file."""
        self.states = states
        """By path of a scanned file: its state, which tells whether it must be read again."""
        self.tags = tags
        """By path, if the server gives one: a tag that changes whenever the object does."""

    def record(self) -> dict[str, Any]:
        """The batch as a row of the manifest."""
        record = {"batch": self.number, "parts": self.parts, "files": self.states}
        return record | ({"tags": self.tags} if self.tags else {})


class Dataset:
    """A folder of results, open for writing by one scan at a time."""

    def __init__(
        self,
        path: str,
        format: str,  # noqa: A002 - as in `scan`
        options: dict[str, Any],
        files: RemoteFiles | None = None,
    ) -> None:
        self.format = format
        self.batches: dict[int, Batch] = {}
        self.programs: list[Any] | None = None
        self.is_started_over = False
        """Whether the rows of an earlier scan were dropped because its options differ."""
        self._are_programs_current = False
        self.tags: dict[str, str] = {}
        """Tags of the current objects; see `Batch.tags`."""
        self._next = 1
        self.folder: LocalFolder | RemoteFolder
        if files is None:
            self.folder = LocalFolder(path)
        else:
            from hlofast._scan.folder import RemoteFolder

            self.folder = RemoteFolder(path, files)
        try:
            self._restore(options)
        except BaseException:
            self.folder.close()
            raise

    def _restore(self, options: dict[str, Any]) -> None:
        """Continues an existing dataset if it was written with the same options."""
        head = {"schema": SCHEMA, "version": VERSION, "format": self.format}
        head["options"] = json.loads(json.dumps(options))
        records, length = records_of(self.folder.manifest())
        self.folder.cut(length)  # The last row may be truncated.
        if records and records[0] != head:
            self.is_started_over = len(records) > 1
            self.folder.cut(0)
            records = []
        if not records:
            self._append(head)
        self.recover()

    def recover(self) -> None:
        """Reads the batches in the manifest; removes other parts, left by an interrupted scan."""
        records, _ = records_of(self.folder.manifest())
        self.batches, self.programs, self._next = replayed(records)
        # After a power failure, a part may be truncated.
        there = self.folder.parts()
        for number, batch in list(self.batches.items()):
            if not all(there.get(name) == size for name, size in batch.parts.values()):
                del self.batches[number]
        named = {part[0] for batch in self.batches.values() for part in batch.parts.values()}
        self._are_programs_current = False
        if self.programs is not None:
            named.add(self.programs[0])
            is_there = there.get(self.programs[0]) == self.programs[1]
            self._are_programs_current = is_there and "programs" in records[-1]
        for name in there.keys() - named:
            self.folder.remove(name)

    def known(self) -> dict[str, str]:
        """The state of every file with rows in the dataset."""
        return {
            path: state for batch in self.batches.values() for path, state in batch.states.items()
        }

    def untouched(self) -> set[str]:
        """Files whose server tag has not changed since their rows were written."""
        return {
            path
            for batch in self.batches.values()
            for path, tag in batch.tags.items()
            if self.tags.get(path) == tag
        }

    def add(self, part: ScanPart) -> None:
        """Writes the rows of `part`, replacing earlier rows of its files."""
        states = dict(part.states())
        if not states:
            return
        tags = {path: self.tags[path] for path in states if path in self.tags}
        batch = Batch(self._number(), {}, states, tags)
        for table in part.tables():
            batch.parts[table] = self._write(table, batch.number, part.table(table))
        kept, gone = self._without(states)
        self._commit([batch, *kept], gone)

    def forget(self, paths: Iterable[str]) -> None:
        """Removes the rows of deleted files."""
        kept, gone = self._without(set(paths))
        if gone:
            self._commit(kept, gone)

    def put_programs(self, rows: ScanTable) -> None:
        """Rewrites the table of programs if anything has changed since it was written."""
        if self._are_programs_current:
            return
        before = self.programs
        number = self._number()
        self.programs = self._write("programs", number, rows)
        self._append({"programs": self.programs, "next": self._next})
        if before is not None:
            self.folder.remove(before[0])
        self._are_programs_current = True

    def close(self) -> None:
        """Releases the folder for other scans."""
        self.folder.close()

    def _number(self) -> int:
        number = self._next
        self._next += 1
        return number

    def _write(self, table: str, number: int, rows: ScanTable) -> list[Any]:
        with self._part(table, number) as part:
            formats.write(self.format, rows, part.temporary)
        return part.described

    def _part(self, table: str, number: int) -> AbstractContextManager[Part]:
        name = f"part-{number:08}{self.folder.mark}.{self.format}"
        return self.folder.writing(f"table={table}", name)

    def _without(self, paths: Iterable[str]) -> tuple[list[Batch], list[int]]:
        """Rewrites the batches with rows of `paths` without these rows.

        Returns the new batches and the numbers of the replaced batches.
        """
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
            tags = {path: tag for path, tag in batch.tags.items() if path in rest}
            new = Batch(self._number(), {}, rest, tags)
            for table, (name, _) in batch.parts.items():
                with self.folder.reading(name) as source, self._part(table, new.number) as part:
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
        self._are_programs_current = False
        self._append(record | {"next": self._next})
        for number in gone:
            for name, _ in self.batches.pop(number).parts.values():
                self.folder.remove(name)
        self.batches |= {batch.number: batch for batch in added}

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"
        self.folder.append(line.encode("utf-8", "surrogateescape"))


def heads(record: Any) -> bool:
    """Whether a row is the header of a manifest that this version reads."""
    if not isinstance(record, dict) or not isinstance(record.get("options"), dict):
        return False
    return (record.get("schema"), record.get("version")) == (SCHEMA, VERSION)


def replayed(records: list[Any]) -> tuple[dict[int, Batch], list[Any] | None, int]:
    """Replays the rows of a manifest: the batches, the part of the programs, the next number."""
    batches: dict[int, Batch] = {}
    programs = None
    following = 1
    try:
        for record in records[1:]:
            for batch in record.get("add", ()):
                tags = batch.get("tags", {})
                new = Batch(batch["batch"], batch["parts"], batch["files"], tags)
                batches[new.number] = new
            for number in record.get("remove", ()):
                batches.pop(number, None)
            programs = record.get("programs", programs)
            following = max(following, record["next"])
    except (AttributeError, KeyError, TypeError):
        raise DatasetError(f"{MANIFEST} is damaged: invalid row") from None
    return batches, programs, following


def records_of(lines: Iterable[bytes]) -> tuple[list[Any], int]:
    """The complete rows of a manifest, and the offset behind the last row."""
    records: list[Any] = []
    end = 0
    for line in lines:
        if not line.endswith(b"\n"):
            break
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):
            break
        end += len(line)
    return records, end
