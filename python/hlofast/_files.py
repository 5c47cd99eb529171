"""Reading of compressed files, atomic writing, and what may be written where."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress

from hlofast import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO, Any, BinaryIO


def decompressed(file: Any) -> IO[bytes]:
    """Returns the content of a buffered file; its first bytes tell gzip, xz and bzip2.

    `file` has `peek`: an opened file, a pipe, a member of an archive. Reading damaged data raises
    `OSError`, `EOFError`, `zlib.error` or `lzma.LZMAError`.
    """
    head = file.peek(6)[:6]
    plain: Any = file
    if head.startswith(b"\x1f\x8b"):
        import gzip

        plain = gzip.open(file)  # noqa: SIM115 - the caller closes it.
    elif head == b"\xfd7zXZ\0":
        import lzma

        plain = lzma.open(file)  # noqa: SIM115 - the caller closes it.
    elif head.startswith(b"BZh"):
        import bz2

        plain = bz2.open(file)  # noqa: SIM115 - the caller closes it.
    opened: IO[bytes] = plain
    return opened


@contextmanager
def decompressing(path: str) -> Iterator[IO[bytes]]:
    """Opens a file for reading, as `decompressed` does."""
    with open(path, "rb") as file, decompressed(file) as plain:
        yield plain


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Opens a temporary file beside `path` that replaces it when the block ends.

    Readers of `path` see either the old or the new content. If the block raises, the temporary file
    is removed. An `OSError` while writing names `path`.
    """
    folder, name = os.path.split(path)
    # `tempfile` would create a file that only its owner may read.
    temporary = os.path.join(folder, f".{name[:64]}-{os.urandom(8).hex()}")
    try:
        with _writing(path, temporary) as file:
            yield file
    except OSError as error:
        # An error of renaming holds two file names that cannot be removed, so a new error is
        # raised.
        if error.errno is None or error.filename not in (None, temporary):
            raise
        raise OSError(error.errno, error.strerror, path) from error


@contextmanager
def _writing(path: str, temporary: str) -> Iterator[BinaryIO]:
    if is_stream(path):
        with open(path, "wb") as device:
            yield device
        return
    with noted(temporary):
        # An interrupt may come as soon as the file exists, and after it has been renamed.
        try:
            with open(temporary, "xb") as file:
                yield file
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise


@contextmanager
def noted(temporary: str) -> Iterator[None]:
    """Has an interrupt that ends the process at once remove this file or folder.

    The block removes it itself, however else it ends.
    """
    place = os.path.abspath(temporary)
    _core._temporary(place, True)
    try:
        yield
    finally:
        _core._temporary(place, False)


_STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def is_standard_output(path: str) -> bool:
    """Whether `path`, as an option that names a file to write, is standard output."""
    return path in _STANDARD_OUTPUT


def is_stream(path: str) -> bool:
    """Whether `path` is a pipe, a device or an open file: not to be replaced, with nothing beside.

    A link in /dev to an open file counts, whatever the file is.
    """
    if is_standard_output(path) or path.startswith(("/dev/std", "/dev/fd/", "/proc/")):
        return True
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def check_place(path: str) -> None:
    """Raises `OSError` if no file can be written at `path`: its folder is missing, it is a folder.

    The error names the folder.
    """
    import errno

    folder = os.path.dirname(path)
    number, named = 0, path
    if not path:
        number = errno.ENOENT
    elif os.path.isdir(path):
        number = errno.EISDIR
    elif folder and not os.path.isdir(folder):
        number, named = (errno.ENOTDIR if os.path.exists(folder) else errno.ENOENT), folder
    if number:
        raise OSError(number, os.strerror(number), named)


def refuse_inputs(written: Iterable[str], read: Iterable[str | int]) -> None:
    """Raises `shutil.SameFileError` if a file to write is one that was read, by whatever name.

    Files are compared, not names: links and hard links count. `read` has paths and descriptors.
    """
    found = {own: path for path in written if (own := _identity(path)) is not None}
    if not found:
        return
    for path in read:
        own = _identity(path)
        if own in found:
            from shutil import SameFileError

            name = "standard input" if path == 0 else path
            same = "" if name == found[own] else f" (the same file as {name})"
            raise SameFileError(f"{found[own]}: an input, which would be overwritten{same}")


def _identity(path: str | int) -> tuple[int, int] | None:
    """Device and number of a regular file; None for what is not one."""
    try:
        known = os.stat(path)
    except (OSError, ValueError):
        return None
    return (known.st_dev, known.st_ino) if stat.S_ISREG(known.st_mode) else None


def named(path: str) -> str:
    """The path of the file that a table names.

    Tables are UTF-8, so bytes of a name that are not are U+FFFD in them. Returns `path` itself if
    no such file exists.
    """
    if "\ufffd" not in path or "://" in path or os.path.lexists(path):
        return path
    head, name = os.path.split(path)
    folder = named(head) if head else ""
    try:
        entries = sorted(os.listdir(folder or "."))
    except OSError:
        return path
    for entry in entries:
        if os.fsencode(entry).decode("utf-8", "replace") == name:
            return os.path.join(folder, entry)
    return path


def is_folder(path: str) -> bool:
    """Whether `path` is an existing folder."""
    if "://" in path:
        from hlofast import _remote

        return _remote.is_folder(path)
    return os.path.isdir(path)
