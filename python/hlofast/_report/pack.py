"""Columns on their way into a page: bytes that a browser turns into typed arrays and texts.

A block is the length of a head (4 bytes), the head as JSON, then the buffers it speaks of, each at
a multiple of 8 bytes. Blocks are compressed and written in base64, so that no text of a dump is
ever part of the page's own HTML or script.
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
"""Bytes from which on compressing well would take longer than reading a little more."""


class Words:
    """A column of texts: `texts[codes[row]]`, empty where the code is -1."""

    __slots__ = ("codes", "texts")

    def __init__(self, texts: Sequence[str], codes: Buffer | None = None) -> None:
        self.texts = texts
        self.codes = codes

    @staticmethod
    def of(values: Iterable[str | None]) -> Words:
        """The texts `values`, each different one kept once."""
        numbers: dict[str, int] = {}
        codes = array("i", [numbers.setdefault(value or "", len(numbers)) for value in values])
        return Words(list(numbers), codes)

    def __len__(self) -> int:
        return len(self.texts if self.codes is None else self.codes)

    def tolist(self) -> list[str]:
        """The text of every row."""
        if self.codes is None:
            return list(self.texts)
        texts = self.texts
        codes = self.codes if isinstance(self.codes, bytes) else self.codes.tolist()
        return [texts[code] if code >= 0 else "" for code in codes]


class Block:
    """Buffers and the head that says what they are."""

    __slots__ = ("_buffers", "_size", "head")

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        """What the page reads first: any JSON, with places of `place` in it."""
        self._buffers: list[bytes] = []
        self._size = 0

    def place(self, buffer: Buffer, kind: str | None = None) -> list[Any]:
        """Add numbers; where they are: start, bytes, type."""
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
        """Add texts, one after the other; a line break in one becomes a space."""
        joined = "\n".join(texts)
        if joined.count("\n") != max(len(texts) - 1, 0):
            texts = [text.replace("\n", " ") for text in texts]
            joined = "\n".join(texts)
        if joined.isascii():
            return {"ascii": self.place(joined.encode("ascii"), "u8"), "count": len(texts)}
        encoded = joined.encode("utf-16-le", "replace")
        return {"utf16": self.place(encoded, "u8"), "count": len(texts)}

    def words(self, words: Words) -> dict[str, Any]:
        """Add a column of texts."""
        found: dict[str, Any] = {"texts": self.texts(words.texts)}
        if words.codes is not None:
            found["codes"] = self.place(words.codes)
        return found

    def base64(self) -> str:
        """The block, compressed, as a page holds it."""
        import json

        head = json.dumps(self.head, separators=(",", ":"), allow_nan=False).encode("ascii")
        head += b" " * (-(len(head) + 4) % 8)
        parts = [len(head).to_bytes(4, "little"), head, *self._buffers]
        level = 6 if self._size < _QUICK else 1
        return b64encode(compress(b"".join(parts), level)).decode("ascii")


def _kind(view: memoryview) -> str:
    """The type of numbers as the page knows it, whatever C type they are here."""
    letter = view.format.lstrip("<>=@")
    if sys.byteorder != "little":  # pragma: no cover - no such machine runs the tests.
        # Browsers read the bytes as they are; wheels are for little-endian machines alone.
        raise RuntimeError("reports are made on little-endian machines")
    if letter in "lLqQ" and view.itemsize == 8:
        return "i64"
    if letter in "lL":
        letter = letter.replace("l", "i").replace("L", "I")
    return _KINDS[letter]
