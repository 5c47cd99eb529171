"""`oom`: messages of a text, a file or a stream."""

from __future__ import annotations

import io
import os

from hlofast._messages import files
from hlofast._messages.find import Finder
from hlofast._messages.reader import Reader
from hlofast._messages.result import Messages
from hlofast.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, BinaryIO, Unpack

    from _typeshed import WriteableBuffer

    from hlofast._context import Context, MeshLike, Told  # noqa: F401 - MeshLike is in Told.
    from hlofast._module import Module

MOST_UNPACKED = 4 << 30
"""Bytes of a compressed file that are read."""
_START = 4096
"""Bytes that tell XLA's memory files from logs."""
_BUFFER = 1 << 16
_SUFFIXES = (".log", ".txt", ".gz", ".xz", ".zst", ".out")
_ZSTD = b"\x28\xb5\x2f\xfd"
"""The first bytes of a Zstandard frame (RFC 8878, 3.1.1)."""


def oom(
    path_or_text: str | bytes | os.PathLike[str],
    module: Module | None = None,
    **context: Unpack[Told],
) -> Messages:
    """Reads the out-of-memory messages and partitioner warnings of a log, or of a text.

    A `str` of one line that names an existing file is a path, as is an `os.PathLike`; other texts
    and `bytes` are read themselves. Files may be compressed with gzip, xz or bzip2 and may have any
    size: they are searched in one pass. XLA's memory usage reports and buffer assignments are read
    too. Zstandard needs Python 3.14, or the package `backports.zstd` or `zstandard`.

    With `module`, listed allocations are joined to its instructions and live ranges. The other
    arguments are those of `Context`; `mesh` names the axes of shardings.

    Raises `ParseError` if the text holds no message or cannot be unpacked, `OSError` if the file
    cannot be read.
    """
    own: Context | None = None
    if context:
        from hlofast._context import Context as Told_

        own = Told_(**context)
        if module is not None:
            module = module.with_context(own)
    if isinstance(path_or_text, bytes | bytearray | memoryview):
        return read_bytes(bytes(path_or_text), module=module, context=own)
    path = os.fspath(path_or_text)
    is_text = isinstance(path_or_text, str) and ("\n" in path or len(path) > 4096)
    # A missing file is not a text without messages.
    is_path = not isinstance(path_or_text, str) or (
        " " not in path and ("/" in path or path.endswith(_SUFFIXES))
    )
    if not is_text and (is_path or os.path.exists(path)):  # noqa: PTH110 - pathlib is not loaded.
        return read_file(path, module=module, context=own)
    return read_bytes(path.encode("utf-8", "surrogatepass"), module=module, context=own)


def read_file(
    path: str, *, module: Module | None = None, context: Context | None = None
) -> Messages:
    """Reads the messages of a file; raises `OSError` or `ParseError`."""
    if "://" in path:
        from hlofast import _remote

        return read_bytes(_remote.read(path), path=path, module=module, context=context)
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib is not loaded.
        return read_stream(file, path=path, module=module, context=context)


def read_bytes(
    content: bytes,
    *,
    path: str | None = None,
    module: Module | None = None,
    context: Context | None = None,
) -> Messages:
    """Reads the messages of some bytes; raises `ParseError`."""
    return read_stream(io.BytesIO(content), path=path, module=module, context=context)


def read_stream(
    file: BinaryIO,
    *,
    path: str | None = None,
    module: Module | None = None,
    context: Context | None = None,
) -> Messages:
    """Reads the messages of an open file; raises `ParseError` without any."""
    found = _found(file, path, module, context)
    if isinstance(found, str):
        raise ParseError(found, path=path, kind="no-message")
    return found


def try_stream(
    file: BinaryIO,
    *,
    path: str | None = None,
    module: Module | None = None,
    context: Context | None = None,
) -> Messages | None:
    """Reads the messages of an open file; returns None without any."""
    found = _found(file, path, module, context)
    return None if isinstance(found, str) else found


def _found(
    file: BinaryIO, path: str | None, module: Module | None, context: Context | None
) -> Messages | str:
    """Returns the messages of an open file, or why there are none."""
    guard = _Guard(_unpacked(io.BufferedReader(_Guard(file), _BUFFER), path))
    guarded = io.BufferedReader(guard, _BUFFER)
    start = guarded.peek(_START)[:_START]
    kind = files.kind_of(start.decode("utf-8", "replace"))
    if kind is not None:
        lines = (line.decode("utf-8", "replace") for line in guarded)
        message = files.read(kind, lines, path)
        if message.entries or message.parts:
            return Messages([message], [], path=path, module=module, context=context)
        return _reason(start, guard)
    finder, reader = Finder(guarded), Reader()
    for stretch in finder:
        reader.feed(stretch)
    reader.close()
    if not reader.messages and not reader.warnings:
        return _reason(start, guard)
    return Messages(
        reader.messages, reader.warnings, path=path, left_out=finder.left_out, module=module,
        context=context,
    )  # fmt: skip


def _reason(start: bytes, guard: _Guard) -> str:
    """Why a text holds no message, and what to give instead."""
    if not guard.has_text and not guard.is_damaged:
        return "the input is empty: give the log of the run that failed"
    text = "no out-of-memory message and no warning of the partitioner found"
    if guard.is_damaged:
        return f"{text}; the compressed data is damaged or ends too early: copy the file again"
    if start.lstrip().startswith(b"HloModule"):
        return f"{text}: this is a program; `hlofast memory` shows what is live at its peak"
    return f"{text}: give the log from the line with the error on, such as RESOURCE_EXHAUSTED"


def _zstd() -> Any:
    """Returns a module that reads Zstandard: Python's own since 3.14, or an installed one."""
    import importlib

    for name in ("compression.zstd", "backports.zstd", "zstandard"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


class _Guard(io.RawIOBase):
    """A stream of at most `MOST_UNPACKED` bytes, which ends where compressed content is damaged."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._left = MOST_UNPACKED
        self.has_text = False
        """Whether anything but white space was read."""
        self.is_damaged = False
        """Whether the content ends where compressed content is damaged."""

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fills the buffer, unless the content ends."""
        view = memoryview(buffer).cast("B")
        content = self._read(min(len(view), self._left))
        view[: len(content)] = content
        self._left -= len(content)
        self.has_text = self.has_text or bool(content and not content.isspace())
        return len(content)

    def _read(self, size: int) -> bytes:
        try:
            return self._file.read(size) or b""
        except OSError as error:
            if error.errno is not None:
                raise  # The file cannot be read; errors of compressed content have no number.
        except Exception as error:
            # The modules of these classes are not imported for plain text, so names tell them.
            if type(error).__name__ not in ("error", "LZMAError", "EOFError", "ZstdError"):
                raise
        self.is_damaged = True
        return b""


def _unpacked(file: io.BufferedReader, path: str | None) -> IO[bytes]:
    """Returns a stream of the decompressed content."""
    if not file.peek(len(_ZSTD)).startswith(_ZSTD):
        from hlofast._files import decompressed

        return decompressed(file)
    found = _zstd()
    if found is None:
        raise ParseError(
            "a file compressed with zstd, which this Python cannot read; unpack it first "
            "(`zstd -dc FILE | hlofast oom -`), or install the package backports.zstd",
            path=path, kind="invalid-compression",
        )  # fmt: skip
    opened: IO[bytes] = found.open(file, "rb")
    return opened
