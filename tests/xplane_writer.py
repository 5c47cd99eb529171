"""Writes XSpaces for tests: planes, lines, events and stats by name, without protobuf's library.

`plane(...)` takes lines of events with their stats as a dictionary; names are entered into the
tables that events and stats refer to. Texts become references, as the profiler writes them.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Value = int | float | str | bytes


def varint(value: int) -> bytes:
    """A number; negative ones take 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    """A field of a number."""
    return varint(field << 3) + varint(value)


def message(field: int, content: bytes | str) -> bytes:
    """A field of bytes, a text or a message."""
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


class Event(NamedTuple):
    """An event: its name, begin and length in picoseconds, its stats, and those of its kind."""

    name: str
    start: int
    duration: int
    stats: Mapping[str, Value] = {}
    shared: Mapping[str, Value] = {}
    display_name: str = ""


class Plane:
    """A plane under construction."""

    def __init__(self, name: str, key: int = 0) -> None:
        self._head = number(1, key) + message(2, name)
        self._lines: list[bytes] = []
        self._events: dict[str, tuple[int, bytes]] = {}
        self._stats: dict[str, int] = {}
        self._own = b""

    def _name(self, name: str) -> int:
        return self._stats.setdefault(name, len(self._stats) + 1)

    def _stat(self, name: str, value: Value) -> bytes:
        start = number(1, self._name(name))
        match value:
            case float():
                return start + varint(2 << 3 | 1) + struct.pack("<d", value)
            case int():
                return start + (number(4, value) if value < 0 else number(3, value))
            case str():
                return start + number(7, self._name(value))
            case _:
                return start + message(6, value)

    def stats(self, **stats: Value) -> "Plane":
        """Adds stats of the plane itself."""
        self._own += b"".join(message(6, self._stat(*stat)) for stat in stats.items())
        return self

    def metadata(self, key: int, name: str, **stats: Value) -> "Plane":
        """Adds metadata that no event refers to, as that of modules."""
        self._events[name] = (key, self._kind(key, name, "", stats))
        return self

    def _kind(self, key: int, name: str, display_name: str, stats: Mapping[str, Value]) -> bytes:
        shown = message(4, display_name) if display_name else b""
        own = b"".join(message(5, self._stat(*stat)) for stat in stats.items())
        return number(1, key) + message(2, name) + shown + own

    def line(
        self, name: str, events: Iterable[Event], *, key: int = 0, timestamp_ns: int = 0
    ) -> "Plane":
        """Adds a line, by default with a number that no other has."""
        key = key or len(self._lines) + 1
        content = number(1, key) + message(2, name) + number(3, timestamp_ns)
        for event in events:
            if event.name not in self._events:
                kind = len(self._events) + 1
                self._events[event.name] = (
                    kind,
                    self._kind(kind, event.name, event.display_name, event.shared),
                )
            own = number(1, self._events[event.name][0])
            own += number(2, event.start) + number(3, event.duration)
            own += b"".join(message(4, self._stat(*stat)) for stat in event.stats.items())
            content += message(4, own)
        self._lines.append(content)
        return self

    def encoded(self) -> bytes:
        """The plane as bytes."""
        lines = b"".join(message(3, line) for line in self._lines)
        kinds = b"".join(
            message(4, number(1, key) + message(2, kind)) for key, kind in self._events.values()
        )
        names = b"".join(
            message(5, number(1, key) + message(2, number(1, key) + message(2, name)))
            for name, key in self._stats.items()
        )
        return self._head + lines + kinds + names + self._own


def space(
    planes: Sequence[Plane],
    *,
    errors: Sequence[str] = (),
    warnings: Sequence[str] = (),
    hostnames: Sequence[str] = (),
) -> bytes:
    """An XSpace."""
    parts = [message(1, plane.encoded()) for plane in planes]
    parts += [message(2, text) for text in errors]
    parts += [message(3, text) for text in warnings]
    return b"".join(parts + [message(4, name) for name in hostnames])
