"""The folder of a dataset, on disk or in an object store."""

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
    """A folder that cannot be used as a dataset; `str()` gives the reason."""


class Part:
    """A file of a dataset that is being written."""

    __slots__ = ("described", "is_wanted", "name", "temporary")

    def __init__(self, name: str, temporary: str) -> None:
        self.name = name
        self.temporary = temporary
        """The path on disk to write to."""
        self.is_wanted = True
        self.described: list[Any] = []
        """The name and size of the file, once it is in its final place."""


class LocalFolder:
    """A folder on disk: appends to the manifest; renames parts from their temporary names."""

    mark = ""

    def __init__(self, path: str) -> None:
        self.path = path
        os.makedirs(path, exist_ok=True)
        manifest = os.path.join(path, MANIFEST)
        if not os.path.exists(manifest) and is_foreign(os.listdir(path)):
            raise DatasetError(f"{path}: not empty and not a dataset of hlofast")
        self._file = os.open(manifest, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock()
        except BaseException:
            os.close(self._file)
            raise

    def _lock(self) -> None:
        """Locks out other scans; the system releases the lock however this process ends."""
        try:
            from fcntl import LOCK_EX, LOCK_NB, flock
        except ImportError:  # The module is missing on Windows.
            return
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
        except OSError:
            raise DatasetError(f"{self.path}: another scan is writing to it") from None

    def manifest(self) -> Iterator[bytes]:
        """Yields the rows of the manifest; the last row may be truncated."""
        os.lseek(self._file, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._file), "rb") as stream:
            yield from stream

    def cut(self, length: int) -> None:
        """Truncates the manifest to `length` bytes."""
        if os.fstat(self._file).st_size > length:
            os.ftruncate(self._file, length)

    def append(self, row: bytes) -> None:
        """Appends a row to the manifest."""
        while row:
            row = row[os.write(self._file, row) :]

    def parts(self) -> dict[str, int]:
        """Existing parts and their sizes, including parts under temporary names."""
        sizes = {}
        for folder in os.listdir(self.path):
            if folder.startswith("table="):
                for name in os.listdir(os.path.join(self.path, folder)):
                    if name.startswith(("part-", ".part-")):
                        name = f"{folder}/{name}"
                        sizes[name] = os.path.getsize(os.path.join(self.path, name))
        return sizes

    @contextmanager
    def writing(self, folder: str, name: str) -> Iterator[Part]:
        """A new part, which is renamed to its final name once it is complete."""
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
        """The path of a part on disk."""
        yield os.path.join(self.path, name)

    def remove(self, name: str) -> None:
        """Removes a part if it exists."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, name))

    def close(self) -> None:
        """Releases the folder for other scans."""
        os.close(self._file)


class RemoteFolder:
    """A folder in an object store, which can neither append nor rename nor lock.

    A part is uploaded whole and becomes valid when the manifest names it. Each commit rewrites the
    manifest under a temporary name and copies it over the old manifest, which stores do atomically
    (file systems that can rename files rename it instead). A scan stops if another one has changed
    the manifest. Each scan marks the names of its parts (`mark`), so that two scans cannot damage
    each other's parts; the next scan repeats whatever was not committed.
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
            raise DatasetError(f"{path}: not empty and not a dataset of hlofast")

    def again(self) -> RemoteFolder:
        """A new object for this folder, without cached state."""
        return RemoteFolder(self.path, self._files)

    def manifest(self) -> Iterator[bytes]:
        """Yields the rows of the manifest."""
        place = self._place.below(MANIFEST)
        self._version = self._files.version(place)
        self._text = b"" if self._version is None else self._files.read(place.path)
        yield from self._text.splitlines(keepends=True)

    def cut(self, length: int) -> None:
        """Truncates the manifest to `length` bytes."""
        if len(self._text) > length:
            self._commit(self._text[:length])

    def append(self, row: bytes) -> None:
        """Appends a row to the manifest."""
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
        """Existing parts and their sizes, and manifests under temporary names."""
        return {
            name: size
            for name, size in self._files.sizes(self._place).items()
            if re.match(r"table=[^/]*/part-|\.hlofast-manifest", name)
        }

    @contextmanager
    def writing(self, folder: str, name: str) -> Iterator[Part]:
        """A new part, which is uploaded once it is complete."""
        with _scratch(name) as temporary:
            part = Part(f"{folder}/{name}", temporary)
            yield part
            if part.is_wanted:
                part.described = [part.name, os.path.getsize(temporary)]
                self._files.send(temporary, self._place.below(part.name))

    @contextmanager
    def reading(self, name: str) -> Iterator[str]:
        """The path of a temporary copy of a part on disk."""
        with _scratch(name.rpartition("/")[2]) as temporary:
            with open(temporary, "wb") as file:
                file.write(self._files.read(self._place.below(name).path))
            yield temporary

    def remove(self, name: str) -> None:
        """Removes a part if it exists."""
        with suppress(FileNotFoundError):
            self._files.remove(self._place.below(name))

    def close(self) -> None:
        """Has no effect, because no lock is held."""


def is_foreign(names: Iterable[str]) -> bool:
    """Whether a folder holds names that do not belong to a dataset."""
    return any(not name.startswith(("table=", ".")) for name in names)


@contextmanager
def _scratch(name: str) -> Iterator[str]:
    """A temporary path on disk."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="hlofast-") as folder:
        yield os.path.join(folder, name)
