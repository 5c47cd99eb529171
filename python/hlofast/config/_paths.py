"""Paths: `evalers['train'].input.source.args[0]`, as keys and as text."""

from __future__ import annotations

import re

from hlofast.config._values import Fault, Reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Key: TypeAlias = Any

MOST_KEYS = 100
"""Limit on the keys of one path."""
_NAME = re.compile(r"[^\W\d]\w*")


class Attribute(str):
    """A key that names an attribute, `.name`; equal to the plain string."""

    __slots__ = ()


def read(text: str) -> tuple[Key, ...]:
    """Returns the keys of a path; raises `Fault` if it is invalid."""
    reader = Reader(text)
    keys = read_from(reader)
    if reader.at < len(text):
        unexpected = text[reader.at]
        raise Fault("invalid-path", f"expected '.' or '[', found {unexpected!r}", reader.at)
    return keys


def read_from(reader: Reader) -> tuple[Key, ...]:
    """Reads the path at `reader`'s position and moves `reader` behind it; returns its keys."""
    keys: list[Key] = []
    while True:
        start = reader.at
        if reader.skip("["):
            if reader.peek() == "]":
                raise Fault("invalid-path", "brackets without a key", start, start + 2)
            keys.append(reader.hashable())
            if not reader.skip("]"):
                kind = "unclosed-bracket" if reader.peek() in ("", "\n") else "invalid-path"
                raise Fault(kind, "expected ']' after the key", reader.at)
        elif not keys or reader.skip("."):
            name = _NAME.match(reader.text, reader.at)
            if name is None:
                unexpected = repr(reader.peek()) if reader.peek() else "the end"
                raise Fault("invalid-path", f"expected a name, found {unexpected}", reader.at)
            keys.append(Attribute(name[0]))
            reader.at = name.end()
        else:
            return tuple(keys)
        if len(keys) > MOST_KEYS:
            raise Fault("too-deep", f"a path of more than {MOST_KEYS} keys", start)


def write(keys: tuple[Key, ...]) -> str:
    """The text of a path."""
    words = [f".{key}" if isinstance(key, Attribute) else f"[{key!r}]" for key in keys]
    return "".join(words).removeprefix(".")
