"""Where a dataset lies: a folder on disk, or one of an object store."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from hlofast._remote import RemoteFiles

MANIFEST = "hlofast-manifest.jsonl"


class DatasetError(ValueError):
    """A folder that cannot be used as a dataset; `str()` says why."""


class Part:
    """A file of a dataset that is being written."""

    __slots__ = ("described", "is_wanted", "name", "temporary")

    def __init__(self, name: str, temporary: str) -> None:
        self.name = name
        self.temporary = temporary
        """Where to write it; a file on disk."""
        self.is_wanted = True
        self.described: list[Any] = []
        """Its name and bytes, once it is where it belongs."""


class LocalFolder:
    """On disk: the manifest grows at its end; parts are written beside their place and renamed."""

    mark = ""

    def __init__(self, path: str) -> None:
        self.path = path
        os.makedirs(path, exist_ok=True)
        manifest = os.path.join(path, MANIFEST)
        if not os.path.exists(manifest) and is_foreign(os.listdir(path)):
            raise DatasetError(f"{path}: not empty, and no dataset of hlofast")
        self._file = os.open(manifest, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock()
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

    def manifest(self) -> Iterator[bytes]:
        """The rows of the manifest, the last of them perhaps cut off."""
        os.lseek(self._file, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._file), "rb") as stream:
            yield from stream

    def cut(self, length: int) -> None:
        """Keep so many bytes of the manifest."""
        if os.fstat(self._file).st_size > length:
            os.ftruncate(self._file, length)

    def append(self, row: bytes) -> None:
        """Put a row at the end of the manifest."""
        while row:
            row = row[os.write(self._file, row) :]

    def parts(self) -> dict[str, int]:
        """The parts that are there with their bytes, those under temporary names too."""
        found = {}
        for folder in os.listdir(self.path):
            if folder.startswith("table="):
                for name in os.listdir(os.path.join(self.path, folder)):
                    if name.startswith(("part-", ".part-")):
                        name = f"{folder}/{name}"
                        found[name] = os.path.getsize(os.path.join(self.path, name))
        return found

    @contextmanager
    def writing(self, folder: str, name: str) -> Iterator[Part]:
        """A new part; it takes its name when all is written."""
        inside = os.path.join(self.path, folder)
        os.makedirs(inside, exist_ok=True)
        part = Part(f"{folder}/{name}", os.path.join(inside, f".{name}"))
        try:
            yield part
            if part.is_wanted:
                part.described = [part.name, os.path.getsize(part.temporary)]
                os.replace(part.temporary, os.path.join(inside, name))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part.temporary)

    @contextmanager
    def reading(self, name: str) -> Iterator[str]:
        """The path on disk of a part."""
        yield os.path.join(self.path, name)

    def remove(self, name: str) -> None:
        """Remove a part if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, name))

    def close(self) -> None:
        """Let other scans in."""
        os.close(self._file)


class RemoteFolder:
    """In an object store, which neither appends nor renames nor locks.

    A part is sent whole and counts when the manifest names it. The manifest is written anew for
    each commit: under a temporary name, then copied over the old one, which stores do at once or
    not at all (where a file system can rename, that is done instead). Who finds that the manifest
    is not the one it left stops; as every scan names its parts in its own way (`mark`), two of them
    cannot damage each other's, and what one of them did not commit is done again by the next.
    """

    def __init__(self, path: str, files: RemoteFiles) -> None:
        from secrets import token_hex

        self.path = path.rstrip("/")
        self.mark = f"-{token_hex(4)}"
        self._files = files
        self._place = files.root(self.path)
        self._text = b""
        self._version: object = None
        names = self._files.sizes(self._place)
        if MANIFEST not in names and is_foreign(names):
            raise DatasetError(f"{path}: not empty, and no dataset of hlofast")

    def again(self) -> RemoteFolder:
        """The same folder with nothing known of it."""
        return RemoteFolder(self.path, self._files)

    def manifest(self) -> Iterator[bytes]:
        """The rows of the manifest."""
        place = self._place.below(MANIFEST)
        self._version = self._files.version(place)
        self._text = b"" if self._version is None else self._files.read(place.path)
        yield from self._text.splitlines(keepends=True)

    def cut(self, length: int) -> None:
        """Keep so many bytes of the manifest."""
        if len(self._text) > length:
            self._commit(self._text[:length])

    def append(self, row: bytes) -> None:
        """Put a row at the end of the manifest."""
        self._commit(self._text + row)

    def _commit(self, text: bytes) -> None:
        place = self._place.below(MANIFEST)
        if self._files.version(place) != self._version:
            raise DatasetError(f"{self.path}: another scan is writing to it")
        temporary = self._place.below(f".{MANIFEST}{self.mark}")
        self._files.write(temporary, text)
        self._files.move(temporary, place)
        self._version = self._files.version(place)
        self._text = text

    def parts(self) -> dict[str, int]:
        """The parts that are there with their bytes, and manifests under temporary names."""
        return {
            name: size
            for name, size in self._files.sizes(self._place).items()
            if re.match(r"table=[^/]*/part-|\.hlofast-manifest", name)
        }

    @contextmanager
    def writing(self, folder: str, name: str) -> Iterator[Part]:
        """A new part, sent when all is written."""
        with _scratch(name) as temporary:
            part = Part(f"{folder}/{name}", temporary)
            yield part
            if part.is_wanted:
                part.described = [part.name, os.path.getsize(temporary)]
                self._files.send(temporary, self._place.below(part.name))

    @contextmanager
    def reading(self, name: str) -> Iterator[str]:
        """The path on disk of a copy of a part."""
        with _scratch(name.rpartition("/")[2]) as temporary:
            with open(temporary, "wb") as file:
                file.write(self._files.read(self._place.below(name).path))
            yield temporary

    def remove(self, name: str) -> None:
        """Remove a part if it is there."""
        with suppress(FileNotFoundError):
            self._files.remove(self._place.below(name))

    def close(self) -> None:
        """Nothing is held."""


def is_foreign(names: Iterable[str]) -> bool:
    """Whether a folder holds what a dataset does not."""
    return any(not name.startswith(("table=", ".")) for name in names)


@contextmanager
def _scratch(name: str) -> Iterator[str]:
    """A path on disk for a while."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="hlofast-") as folder:
        yield os.path.join(folder, name)
