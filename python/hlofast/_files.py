"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A file beside `path`, which takes its place when the block ends.

    Whoever reads `path` sees the old or the new content. If the block raises, nothing is left. An
    `OSError` of writing it names `path`.
    """
    folder, name = os.path.split(path)
    # Not of `tempfile`, whose files only their owner may read.
    temporary = os.path.join(folder, f".{name[:64]}-{os.urandom(8).hex()}")
    try:
        with _writing(path, temporary) as file:
            yield file
    except OSError as error:
        # Of renaming it has two names, which cannot be taken out again.
        if error.errno is None or error.filename not in (None, temporary):
            raise
        raise OSError(error.errno, error.strerror, path) from error


@contextmanager
def _writing(path: str, temporary: str) -> Iterator[BinaryIO]:
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as device:  # A pipe or /dev/null, which nothing may replace.
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
    """Whether an argument is a folder that there is."""
    if "://" in path:
        from hlofast import _remote

        return _remote.is_folder(path)
    return os.path.isdir(path)
