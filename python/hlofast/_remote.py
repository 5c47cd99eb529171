"""Remote files through fsspec: `s3://…`, `gs://…`, `https://…`, `memory://…`.

This module is loaded when a path contains `://`. Credentials and endpoints come from fsspec's own
configuration (such as `FSSPEC_S3_ENDPOINT_URL`) or from `storage_options`.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from importlib import import_module

from hlofast import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from hlofast._core import SurveyData

    Entry = tuple[str, int, int, str | None]
    """Path, size, time of writing (nanoseconds since 1970; 0 if the server does not say), and the
    reason if it cannot be read (otherwise None)."""
    Options = Mapping[str, Any]

RANGE = 16 << 20
"""Bytes read per request."""
PATIENCE = 300.0
"""Seconds to wait for one answer if there is no time limit."""
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
_TAGS = ("ETag", "etag", "md5Hash", "generation")


class RemoteError(OSError):
    """An error of a server or of fsspec; `strerror` is the reason, `filename` the path."""


def read(path: str, storage_options: Options | None = None, most: int | None = None) -> bytes:
    """The bytes of an object, at most `most`."""
    return RemoteFiles(storage_options).read(path, most=most)


def is_folder(path: str) -> bool:
    """Whether `path` is a remote folder."""
    files = RemoteFiles(None)
    try:
        place = files.root(path)
        return bool(path.endswith("/") or files.info(place)["type"] == "directory")
    except OSError:
        return False


def listed(path: str) -> SurveyData:
    """Lists the files below `path`; raises `OSError` if they cannot be listed."""
    files = RemoteFiles(None)
    return _core._survey_listing(files.entries(path), [path], files.reader())


def survey(paths: list[str], files: RemoteFiles) -> SurveyData:
    """Lists the files below remote folders; raises `ValueError` if some `paths` are on disk.

    A folder that cannot be listed becomes a file that cannot be read; see `RemoteFiles.refused`.
    """
    if not all("://" in path for path in paths):
        raise ValueError(
            "paths on disk and remote paths cannot be scanned together: scan them separately"
        )
    entries: list[Entry] = []
    for path in paths:
        files.root(path)  # Raises if fsspec is not installed.
        try:
            entries += files.entries(path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                files.refused.append(path)
            entries.append((path, 0, 0, error.strerror or str(error)))
    return _core._survey_listing(entries, paths, files.reader())


class Reader:
    """Reads the first bytes of objects; can be pickled and sent to another process."""

    def __init__(
        self, files: RemoteFiles, options: Options, max_seconds: float, roots: list[str]
    ) -> None:
        self._files = files
        self._parts = (options, max_seconds, roots)

    def __call__(self, path: str, most: int) -> bytes:
        """Reads up to `most` bytes; raises `OSError` with the reason only."""
        try:
            return self._files.read(path, most)
        except OSError as error:
            raise OSError(error.strerror or str(error)) from None

    def __reduce__(self) -> tuple[object, ...]:
        return _reader, self._parts


def _reader(options: Options, max_seconds: float, roots: list[str]) -> Reader:
    files = RemoteFiles(options, max_seconds)
    for root in roots:
        files.root(root)
    return files.reader()


class Place:
    """A path, its file system and its name in that file system."""

    __slots__ = ("file_system", "name", "path")

    def __init__(self, path: str, file_system: Any, name: str) -> None:
        self.path = path
        self.file_system = file_system
        self.name = name

    def below(self, rest: str) -> Place:
        """The place at the relative path `rest` below this one."""
        path, name = (f"{text.rstrip('/')}/{rest}" for text in (self.path, self.name))
        return Place(path, self.file_system, name)


class RemoteFiles:
    """Lists and reads objects; thread-safe, and no request waits longer than `max_seconds`."""

    def __init__(self, storage_options: Options | None, max_seconds: float | None = None) -> None:
        self._options = dict(storage_options or {})
        self._seconds = PATIENCE if max_seconds is None else max_seconds
        self.refused: list[str] = []
        """Folders that could not be listed."""
        self.tags: dict[str, str] = {}
        """Tags of listed objects, if the server gives any; they change whenever the object does."""
        self._roots: list[Place] = []
        self._sizes: dict[str, int] = {}
        self._pending: set[Future[Any]] = set()
        self._lock = threading.Condition()
        self._is_closed = False

    def place(self, path: str) -> Place:
        """The place of `path`: below a listed folder, or as fsspec resolves it."""
        for root in self._roots:
            if path == root.path:
                return root
            if path.startswith(f"{root.path}/"):
                return root.below(path[len(root.path) + 1 :])
        try:
            core = import_module("fsspec.core")
        except ImportError:
            reason = "paths with :// need fsspec: pip install 'hlofast[remote]'"
            raise RemoteError(errno.ENOTSUP, reason, path) from None
        try:
            file_system, name = core.url_to_fs(path, **self._options)
        except ImportError as error:
            # fsspec names the missing package: "Install s3fs to access S3".
            reason = f"{_line(error)} (in addition to 'hlofast[remote]')"
            raise RemoteError(errno.ENOTSUP, reason, path) from None
        except Exception as error:
            raise _refusal(error, path) from None
        return Place(path, file_system, name)

    def entries(self, root: str) -> list[Entry]:
        """Lists every file below `root`, or `root` itself if it is a file.

        Raises `OSError` if the server refuses or there are no files: object stores have no empty
        folders.
        """
        place = self.root(root)
        objects = self._listing(place, is_folder=root.endswith("/"))
        if not objects:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), root)
        entries: list[Entry] = []
        for name, info in objects.items():
            below = _relative(name, place)
            path = place.below(below).path if below else place.path
            entries.append((path, info.get("size") or 0, _nanoseconds(info), None))
            self._sizes[path] = info.get("size") or 0
            for tag in _TAGS:
                if info.get(tag):
                    self.tags[path] = f"{tag} {info[tag]}"
        return entries

    def reader(self) -> Reader:
        """A reader of objects below the current folders, for any process."""
        roots = [root.path for root in self._roots]
        return Reader(self, self._options, self._seconds, roots)

    def root(self, path: str) -> Place:
        """Registers a folder; `place` resolves paths below it from now on."""
        place = self.place(path if path.endswith("://") else path.rstrip("/"))
        if place not in self._roots:
            self._roots.append(place)
        return place

    def _listing(self, place: Place, *, is_folder: bool) -> dict[str, dict[str, Any]]:
        if not is_folder:
            try:
                info = self.info(place)
            except FileNotFoundError:
                return {}
            if info["type"] == "file":
                return {place.name: info}
        place.file_system.invalidate_cache()
        objects = self.call(place, "find", place.name, detail=True)
        return {name: info for name, info in objects.items() if info.get("type") == "file"}

    def sizes(self, place: Place) -> dict[str, int]:
        """Names, relative to a folder, and sizes of the files below it."""
        try:
            objects = self._listing(place, is_folder=True)
        except FileNotFoundError:
            return {}
        return {_relative(name, place): info["size"] for name, info in objects.items()}

    def info(self, place: Place) -> dict[str, Any]:
        """The server's current information about an object."""
        place.file_system.invalidate_cache()
        details: dict[str, Any] = self.call(place, "info", place.name)
        return details

    def read(self, path: str, most: int | None = None) -> bytes:
        """Reads the first `most` bytes of an object, or all of it.

        Raises an error if an answer is truncated or the object changes in between.
        """
        place = self.place(path)
        until = time.monotonic() + self._seconds
        before = None
        size = self._sizes.get(path)
        if not size or min(size, most or size) > RANGE:
            # Servers refuse a range of an empty object, and a large object takes several requests.
            before = self.info(place)
            size = before["size"]
            if size == 0:
                return b""
        parts: list[bytes] = []
        got = 0
        while most is None or got < most:
            length = RANGE if most is None else min(RANGE, most - got)
            if got and size is not None:
                length = min(length, size - got)
                if length <= 0:
                    break
            part = self.call(
                place, "cat_file", place.name, start=got, end=got + length, until=until
            )
            if len(part) > length:
                # A server without support for ranges returns everything.
                return bytes(part[:most])
            parts.append(part)
            got += len(part)
            if len(part) < length:
                break
        if len(parts) > 1 or got != (size if most is None or size is None else min(size, most)):
            self._judge(place, before, got, most)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _judge(
        self, place: Place, before: dict[str, Any] | None, got: int, most: int | None
    ) -> None:
        """Raises an error unless `got` bytes are complete and the object is unchanged."""
        now = self.info(place)
        if before is not None and _version(before) != _version(now):
            raise RemoteError(errno.EIO, "the object changed while it was read", place.path)
        size = now["size"]
        if size is not None and got < (size if most is None else min(size, most)):
            reason = f"the answer ended after {got} of {size} bytes"
            raise RemoteError(errno.EIO, reason, place.path)

    def version(self, place: Place) -> list[Any] | None:
        """A version that changes whenever an object does; None if the object does not exist."""
        try:
            return _version(self.info(place))
        except FileNotFoundError:
            return None

    def write(self, place: Place, data: bytes) -> None:
        """Writes `data` to an object."""
        self.call(place, "pipe_file", place.name, data)

    def send(self, path: str, place: Place) -> None:
        """Uploads a file on disk to an object."""
        if not getattr(place.file_system, "async_impl", False):
            # Object stores are left out: they do not have folders, and would create a bucket.
            self.call(place, "makedirs", place.name.rpartition("/")[0], exist_ok=True)
        self.call(place, "put_file", path, place.name)

    def move(self, source: Place, target: Place) -> None:
        """Replaces an object by another object."""
        if getattr(source.file_system, "async_impl", False):
            source.file_system.invalidate_cache()
            self.call(target, "cp_file", source.name, target.name)
            self.remove(source)
        else:
            self.call(target, "mv", source.name, target.name)

    def remove(self, place: Place) -> None:
        """Removes an object."""
        self.call(place, "rm_file", place.name)

    def call(
        self, place: Place, method: str, *arguments: Any, until: float | None = None, **named: Any
    ) -> Any:
        """Calls a method of the file system; its errors become `OSError` with a reason."""
        seconds = self._seconds if until is None else until - time.monotonic()
        future = self._submit(place.file_system, method, arguments, named)
        try:
            return future.result(max(seconds, 0.0))
        except (TimeoutError, CancelledError) as error:
            if future.done() and not future.cancelled():
                raise _refusal(error, place.path) from None
            future.cancel()
            reason = f"no answer within {self._seconds:g} s"
            if self._is_closed:
                reason = "interrupted"
            raise RemoteError(errno.ETIMEDOUT, reason, place.path) from None
        except Exception as error:
            raise _refusal(error, place.path) from None
        except BaseException:
            future.cancel()
            raise
        finally:
            with self._lock:
                self._pending.discard(future)
                self._lock.notify_all()

    def _submit(
        self, file_system: Any, method: str, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Future[Any]:
        with self._lock:
            future: Future[Any] = Future()
            if self._is_closed:
                future.cancel()
                return future
            if getattr(file_system, "async_impl", False):
                from asyncio import run_coroutine_threadsafe

                coroutine = getattr(file_system, f"_{method}")(*arguments, **named)
                future = run_coroutine_threadsafe(coroutine, file_system.loop)
            else:
                # A separate daemon thread can be abandoned if it hangs.
                target = getattr(file_system, method)
                task = (future, target, arguments, named)
                threading.Thread(target=_answer, args=task, daemon=True).start()
            self._pending.add(future)
            return future

    def close(self) -> None:
        """Cancels pending calls, refuses new ones, and waits until threads have noticed."""
        with self._lock:
            self._is_closed = True
            for future in list(self._pending):
                future.cancel()
            self._lock.wait_for(lambda: not self._pending, timeout=2.0)


def _answer(
    future: Future[Any],
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    with suppress(InvalidStateError):  # The call was cancelled.
        try:
            future.set_result(target(*arguments, **named))
        except InvalidStateError:
            raise
        except BaseException as error:
            future.set_exception(error)


def _relative(name: str, place: Place) -> str:
    return name[len(place.name) :].lstrip("/")


def _nanoseconds(info: dict[str, Any]) -> int:
    """The time an object was written; 0 if unknown."""
    for name in _TIMES:
        said: Any = info.get(name)
        if isinstance(said, str):
            from datetime import datetime

            with suppress(ValueError):
                said = datetime.fromisoformat(said)
        seconds = said.timestamp() if hasattr(said, "timestamp") else said
        if isinstance(seconds, int | float) and seconds > 0:
            return int(seconds * 1e9)
    return 0


def _version(info: dict[str, Any]) -> list[Any]:
    """Values that differ if the content of an object differs."""
    return [info.get("size"), *(info.get(name) for name in (*_TAGS, *_TIMES))]


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__


def _refusal(error: BaseException, path: str) -> OSError:
    """Converts an error of any library to an `OSError` with a reason and the path."""
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if isinstance(error, PermissionError):
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    number = error.errno if isinstance(error, OSError) else None
    reason = getattr(error, "strerror", None) or _line(error)
    return RemoteError(number or errno.EIO, reason, path)
