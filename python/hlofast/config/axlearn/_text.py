"""Reads the text form of a config, lines of `path: value`, into a tree; errors name the place."""

from __future__ import annotations

import re

from hlofast.config import _paths
from hlofast.config._faults import config_error, decoded
from hlofast.config._tree import Config, Leaf
from hlofast.config._values import Fault, Opaque, Reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast.config._paths import Key
    from hlofast.config._tree import Children

MOST_BYTES = 64 << 20
"""Limit on the size of a text; AXLearn's largest golden configs have 45 kB."""
SAMPLE = 20
"""Limit on the lines that `is_config` reads."""
_ENTRY = re.compile(r"[^\n]*(?:\n[ \t][^\n]*)*")
"""A line with its indented continuation lines, which the `repr` of an array needs."""


def loads(text: str | bytes, *, path: str | None = None) -> Config:
    """Reads a config as AXLearn's `debug_string` prints it (UTF-8 if given as bytes).

    Errors use `path` as the name of the text. Raises `ConfigError` with the place of the first
    fault.
    """
    whole = decoded(text, path, MOST_BYTES)
    # Other line-ending characters can only be part of a value.
    newline = "\r\n" if "\r\n" in whole else "\n"
    body = whole.replace("\r\n", "\n")
    if newline == "\r\n":
        other = re.search(r"(?<!\r)\n", whole)
        if other:
            start = whole.rfind("\n", 0, other.start()) + 1
            fault = Fault(
                "invalid-line-end", "this line ends with LF, other lines with CRLF", start
            )
            raise config_error(fault, whole, path)
    try:
        children = _read(body)
    except Fault as fault:
        raise config_error(fault, body, path, newline) from None
    ending = newline if body.endswith("\n") or not body else ""
    return Config(children, path=path, newline=newline, ending=ending)


def is_config(text: str | bytes) -> bool:
    """Whether `text` looks like a config: its first lines are paths with values."""
    start = text[: SAMPLE << 10]
    if isinstance(start, bytes):
        start = start.decode("utf-8", "replace")
    matches = _ENTRY.findall(start.replace("\r\n", "\n").rstrip("\n"))
    entries = [entry for entry in matches if entry][: SAMPLE + 1]
    if len(entries) > SAMPLE or (len(start) < len(text) and len(entries) > 1):
        # The sample may end inside the last entry.
        entries.pop()
    try:
        values = [_entry(entry, 0)[1].value for entry in entries]
    except Fault:
        return False
    return any(not isinstance(value, Opaque) or "(" in value.text for value in values)


def _read(text: str) -> Children:
    """Reads all lines into a tree."""
    tree: Children = {}
    at, line = 0, 1
    end = len(text) - text.endswith("\n")
    while at < end:
        match = _ENTRY.match(text, at, end)
        assert match is not None  # The pattern matches the empty text.
        keys, leaf = _entry(match[0], at)
        leaf.line = line
        _put(tree, keys, leaf, at)
        line += 1 + match[0].count("\n")
        at = match.end() + 1
    if at < len(text):
        raise Fault("missing-path", "an empty line", at)
    return tree


def _entry(entry: str, offset: int) -> tuple[tuple[Key, ...], Leaf]:
    """Reads the keys and the value of one entry, which starts at `offset` of the whole text."""
    reader = Reader(entry)
    try:
        if not entry.strip():
            raise Fault("missing-path", "an empty line", 0)
        keys = _paths.read_from(reader)
        path = entry[: reader.at]
        if not reader.skip(": "):
            raise Fault("missing-colon", "expected ': ' between a path and its value", reader.at)
        start = reader.at
        value = reader.value()
        if reader.at < len(entry):
            raise Fault("trailing-text", "unexpected text after the value", reader.at, len(entry))
    except Fault as fault:
        raise Fault(fault.kind, fault.message, offset + fault.start, offset + fault.end) from None
    written = None if path == _paths.write(keys) else path
    return keys, Leaf(value, entry[start:], written=written)


def _put(tree: Children, keys: tuple[Key, ...], leaf: Leaf, at: int) -> None:
    """Inserts a leaf into the tree; its path starts at offset `at`."""
    end = at + len(leaf.written or _paths.write(keys))
    children = tree
    for depth, key in enumerate(keys):
        first = next(iter(children), key)
        where = _paths.write(keys[:depth]) or "the config"
        if isinstance(first, _paths.Attribute) != isinstance(key, _paths.Attribute):
            message = f"{where} mixes names and keys in brackets"
            raise Fault("mixed-keys", message, at, end)
        if depth + 1 == len(keys):
            break
        inner = children.setdefault(key, {})
        if isinstance(inner, Leaf):
            where = _paths.write(keys[: depth + 1])
            message = f"{where} already has a value, in line {inner.line:,}"
            raise Fault("duplicate-path", message, at, end)
        children = inner
    old = children.get(keys[-1])
    if old is not None:
        while not isinstance(old, Leaf):
            old = next(iter(old.values()))
        message = f"{_paths.write(keys)} is already set in line {old.line:,}"
        raise Fault("duplicate-path", message, at, end)
    children[keys[-1]] = leaf
