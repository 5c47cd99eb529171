"""Reading of compressed files, atomic writing."""

from __future__ import annotations

import os
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
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
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as device:  # A pipe or /dev/null, which must not be replaced.
            yield device
        return
    with open(temporary, "xb") as file:
        try:
            yield file
            file.close()
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def is_folder(path: str) -> bool:
    """Whether `path` is an existing folder."""
    if "://" in path:
        from hlofast import _remote

        return _remote.is_folder(path)
    return os.path.isdir(path)
