"""Packs columns into blocks, which the browser unpacks into typed arrays and strings.

A block is the length of the head (4 bytes), the head as JSON, then the buffers it refers to, each
aligned to 8 bytes. Blocks are compressed and base64-encoded, so that no text of a dump becomes part
of the page's HTML or scripts.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from zlib import compress

from hlofast import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    Buffer = _core.Column | array[Any] | bytes

_KINDS = {"B": "u8", "b": "i8", "H": "u16", "i": "i32", "I": "u32", "q": "i64", "d": "f64"}
_QUICK = 16 << 20
"""Bytes from which fast compression is used: better compression would take too long."""


class Words:
    """A column of strings: `texts[codes[row]]`, empty if the code is -1."""

    __slots__ = ("codes", "texts")

    def __init__(self, texts: Sequence[str], codes: Buffer | None = None) -> None:
        self.texts = texts
        self.codes = codes

    @staticmethod
    def of(values: Iterable[str | None]) -> Words:
        """Returns a column of `values` in which each distinct string is stored once."""
        numbers: dict[str, int] = {}
        codes = array("i", [numbers.setdefault(value or "", len(numbers)) for value in values])
        return Words(list(numbers), codes)

    def __len__(self) -> int:
        return len(self.texts if self.codes is None else self.codes)

    def tolist(self) -> list[str]:
        """Returns the string of every row."""
        if self.codes is None:
            return list(self.texts)
        texts = self.texts
        codes = self.codes if isinstance(self.codes, bytes) else self.codes.tolist()
        return [texts[code] if code >= 0 else "" for code in codes]


class Block:
    """Buffers, and the head that describes them."""

    __slots__ = ("_buffers", "_size", "head")

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        """JSON that the page reads first; it contains the results of `place`."""
        self._buffers: list[bytes] = []
        self._size = 0

    def place(self, buffer: Buffer, kind: str | None = None) -> list[Any]:
        """Adds a buffer and returns its place: start, bytes, type."""
        if kind is None:
            view = memoryview(buffer)
            kind = "u8" if view.format == "B" else _kind(view)
            content = view.tobytes()
        else:
            content = bytes(buffer)
        start = self._size
        self._buffers.append(content)
        padding = -len(content) % 8
        if padding:
            self._buffers.append(bytes(padding))
        self._size += len(content) + padding
        return [start, len(content), kind]

    def texts(self, texts: Sequence[str]) -> dict[str, Any]:
        """Adds strings; line breaks inside them become spaces."""
        joined = "\n".join(texts)
        if joined.count("\n") != max(len(texts) - 1, 0):
            texts = [text.replace("\n", " ") for text in texts]
            joined = "\n".join(texts)
        if joined.isascii():
            return {"ascii": self.place(joined.encode("ascii"), "u8"), "count": len(texts)}
        encoded = joined.encode("utf-16-le", "replace")
        return {"utf16": self.place(encoded, "u8"), "count": len(texts)}

    def words(self, words: Words) -> dict[str, Any]:
        """Adds a column of strings."""
        packed: dict[str, Any] = {"texts": self.texts(words.texts)}
        if words.codes is not None:
            packed["codes"] = self.place(words.codes)
        return packed

    def base64(self) -> str:
        """Returns the block, compressed and base64-encoded."""
        import json

        head = json.dumps(self.head, separators=(",", ":"), allow_nan=False).encode("ascii")
        head += b" " * (-(len(head) + 4) % 8)
        parts = [len(head).to_bytes(4, "little"), head, *self._buffers]
        level = 6 if self._size < _QUICK else 1
        return b64encode(compress(b"".join(parts), level)).decode("ascii")


def _kind(view: memoryview) -> str:
    """Returns the page's name of a buffer's element type, whatever its C type."""
    letter = view.format.lstrip("<>=@")
    if sys.byteorder != "little":  # pragma: no cover - no such machine runs the tests.
        # Browsers read the bytes as they are; wheels exist for little-endian machines only.
        raise RuntimeError("reports need a little-endian machine")
    if letter in "lLqQ" and view.itemsize == 8:
        return "i64"
    if letter in "lL":
        letter = letter.replace("l", "i").replace("L", "I")
    return _KINDS[letter]
