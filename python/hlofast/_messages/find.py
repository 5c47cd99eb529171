"""The stretches of a file that hold messages, found in one pass with bounded memory."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

MARKS = (
    b"ut of memory",  # Ran out of memory in memory space …, Out of memory while trying …
    b"RESOURCE_EXHAUSTED",
    b"source exhaust",
    b"That was not possible",
    b"would exceed memory (",
    b" requirement ",  # Program hbm requirement 63.80G:
    b"bm usage",  # Total hbm usage >= …; SparseCore Hbm usage …
    b"BufferAssign",
    b"llocation type: ",  # A list of allocations without its head.
    b"XLA Label: ",
    b"MaxAllocSize: ",
    b"OF_MEMORY",
    b"ailed to alloc",
    b"exceeds available ",
    b" scoped vmem",
    b"full rematerialization",
    b"t reduce memory use below",
    b"Unable to allocate ",
    b"enough device memory",
    b"OOM when al",
    b"SPMD] ",
    b"[spmd] ",
    b"cumulative_size;",
    b"Chunks of size ",
    b"llocation offset upper bound",
    b"iable logical replica",
)
"""Bytes of which every message holds at least one, beginning where Python finds them fast."""
CHUNK = 1 << 20
"""Bytes that are searched at a time; a piece that stays in the processor's cache."""
BEFORE, AFTER = 8 << 10, 24 << 10
"""Bytes around a mark that belong to its stretch: an entry of a list of allocations starts up to
five lines before `Allocation type`, and its operator may name a long stack of scopes."""
MOST_FIRST, MOST_LAST = 24 << 20, 8 << 20
"""Bytes of stretches that are read from the beginning and from the end of a file; those between
are counted and left out."""
_LONGEST_LINE = 4 << 10
"""Bytes by which a stretch is extended to whole lines."""


class Stretch:
    """A part of a file around marks."""

    __slots__ = ("content", "line")

    def __init__(self, content: bytes, line: int) -> None:
        self.content = content
        """The bytes, whole lines."""
        self.line = line
        """The number of its first line, from 1."""


class Finder:
    """Finds the stretches of a file, in their order.

    `left_out` counts the bytes of stretches that are not read, `size` all bytes.
    """

    def __init__(
        self, file: BinaryIO, most_first: int = MOST_FIRST, most_last: int = MOST_LAST
    ) -> None:
        self._file = file
        self._most = most_first, most_last
        self.left_out = 0
        self.size = 0

    def __iter__(self) -> Iterator[Stretch]:
        taken = held = 0
        last: list[Stretch] = []
        for stretch in self._found():
            if taken < self._most[0]:
                taken += len(stretch.content)
                yield stretch
                continue
            last.append(stretch)
            held += len(stretch.content)
            gone = 0
            while held > self._most[1]:
                held -= len(last[gone].content)
                self.left_out += len(last[gone].content)
                gone += 1
            del last[:gone]
        yield from last

    def _found(self) -> Iterator[Stretch]:
        kept = bytearray()  # The end of what was read, in which a stretch may begin.
        line = 1  # The number of the line in which `kept` begins.
        start, until = 0, -1  # The open stretch in `kept`; `until` is -1 without one.
        floor = 0  # The end of the stretch before, in `kept`.
        while True:
            chunk = self._file.read(CHUNK)
            self.size += len(chunk)
            searched = max(len(kept) - 64, 0)
            kept += chunk
            for at in _marks(kept, searched):
                if until >= 0 and at - BEFORE > until:
                    floor = _end_of_line(kept, until)
                    yield Stretch(bytes(kept[start:floor]), line + kept.count(b"\n", 0, start))
                    until = -1
                if until < 0:
                    start = _start_of_line(kept, max(at - BEFORE, floor), floor)
                until = max(until, at + 1024 + AFTER)
            is_done = not chunk or until + _LONGEST_LINE < len(kept) - BEFORE
            is_long = len(kept) - start > 4 * CHUNK
            if until >= 0 and (is_done or is_long):
                floor = _end_of_line(kept, until if is_done else len(kept) - BEFORE)
                yield Stretch(bytes(kept[start:floor]), line + kept.count(b"\n", 0, start))
                start, until = floor, -1 if is_done else until
            if not chunk:
                return
            # Keep the open stretch, or else what a mark in the next chunk may reach back to.
            cut = start if until >= 0 else max(len(kept) - BEFORE - _LONGEST_LINE, 0)
            line += kept.count(b"\n", 0, cut)
            start, until, floor = (
                start - cut,
                until - cut if until >= 0 else -1,
                max(floor - cut, 0),
            )
            del kept[:cut]


def _start_of_line(kept: bytearray, at: int, floor: int) -> int:
    begin = kept.rfind(b"\n", max(at - _LONGEST_LINE, floor), at) + 1
    return begin or at


def _end_of_line(kept: bytearray, at: int) -> int:
    end = kept.find(b"\n", at, at + _LONGEST_LINE)
    return min(at, len(kept)) if end < 0 else end + 1


def _marks(kept: bytearray, start: int) -> list[int]:
    """Returns the places of the marks from `start`, sorted; one per kibibyte at most."""
    places: set[int] = set()
    for mark in MARKS:
        at = kept.find(mark, start)
        while at >= 0:
            places.add(at >> 10)
            at = kept.find(mark, (at | 1023) + 1)
    return [place << 10 for place in sorted(places)]


def contains(content: bytes) -> bool:
    """Whether some bytes hold a mark of a message."""
    return any(mark in content for mark in MARKS)
