"""The measured tracks of a trace: the run of median length on each device."""

from __future__ import annotations

import struct

from hlofast._scheduled import labels
from hlofast._trace import PROCESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from hlofast._profile import Measured
    from hlofast._profiles import Profile

    _Event = tuple[int, int, str, str | None]

MOST = 200_000
"""Most slices; devices beyond are left out. Viewers and editors of JSON slow down with more."""
_PID = 2
"""The modelled tracks are process 1."""
_MOST_LANES = 64
"""Most tracks for the overlapping events of one track of the profiler."""
_NEAR = 1e-9
"""Seconds between moments that count as one: profilers give whole nanoseconds."""


class Track:
    """One track: slices that contain one another or do not touch, by begin."""

    __slots__ = ("name", "slices")

    def __init__(self, name: str) -> None:
        self.name = name
        self.slices: list[_Event] = []
        """Begin and end in nanoseconds from the start of the run, name, instruction."""

    @property
    def seconds(self) -> float:
        """Seconds of the outermost slices."""
        whole, end = 0, -1
        for begin, stop, _, _ in self.slices:
            if begin >= end:
                whole, end = whole + stop - begin, stop
        return whole * 1e-9


class Timeline:
    """The measured tracks of a module."""

    __slots__ = ("_arguments", "events_left_out", "left_out", "tracks")

    def __init__(self, measured: Measured, profile: Profile) -> None:
        self.tracks: list[Track] = []
        """The tracks of each device, with the device's name in front if there are several."""
        self.left_out: list[str] = []
        """Devices that are not shown."""
        self.events_left_out = 0
        """Events that are not shown: the shortest of very many, and those of too many tracks."""
        windows = _windows(measured)
        events = _inside(profile, measured, windows)
        names = {instruction.name: instruction.row for instruction in measured.module}
        shown = 0
        for device in windows:
            tracks = events.get(device, {})
            size = sum(map(len, tracks.values()))
            if not tracks or (shown and shown + size > MOST):
                self.left_out.append(device[1])
                continue
            if size > MOST:
                tracks = self._longest(tracks)
            shown += size
            prefix = "" if len(windows) == 1 else f"{_named(device, windows)}: "
            for name, pieces in tracks.items():
                lanes, rest = _lanes(prefix + name, pieces)
                self.tracks += lanes
                self.events_left_out += rest
        rows = sorted(
            {names[own[3]] for track in self.tracks for own in track.slices if own[3] in names}
        )
        self._arguments = _arguments(measured, rows)

    def _longest(self, tracks: dict[str, list[_Event]]) -> dict[str, list[_Event]]:
        """The longest `MOST` events of a device."""
        every = [(name, piece) for name, pieces in tracks.items() for piece in pieces]
        every.sort(key=lambda own: own[1][0] - own[1][1])
        self.events_left_out += len(every) - MOST
        kept: dict[str, list[_Event]] = {}
        for name, piece in every[:MOST]:
            kept.setdefault(name, []).append(piece)
        return kept

    def arguments(self, piece: _Event) -> dict[str, Any]:
        """The arguments of a slice: its seconds, and what its instruction is."""
        begin, end, _, instruction = piece
        own = self._arguments.get(instruction or "", {})
        return {"seconds": (end - begin) * 1e-9, **own}

    def chrome(self) -> Iterator[str]:
        """Events of Chrome's Trace Event Format."""
        import json

        def named(kind: str, tid: int | None, **arguments: object) -> str:
            place = {} if tid is None else {"tid": tid}
            return json.dumps({"ph": "M", "pid": _PID, **place, "name": kind, "args": arguments})

        yield named("process_name", None, name=PROCESS)
        for number, track in enumerate(self.tracks, 1):
            yield named("thread_name", number, name=track.name)
            yield named("thread_sort_index", number, sort_index=number)
        for number, track in enumerate(self.tracks, 1):
            for piece in track.slices:
                begin, end, name, _ = piece
                arguments = self.arguments(piece)
                event = {
                    "ph": "X", "pid": _PID, "tid": number, "ts": begin / 1000,
                    "dur": (end - begin) / 1000, "name": name,
                    "cat": arguments.get("opcode", "event"), "args": arguments,
                }  # fmt: skip
                yield json.dumps(event)

    def perfetto(self) -> Iterator[bytes]:
        """Packets of Perfetto's protobuf, on a sequence of their own.

        Field numbers are those of `perfetto_trace.proto`.
        """
        process = _number(1, _PID) + _bytes(6, PROCESS)
        descriptor = _number(1, _FIRST) + _bytes(3, process) + _number(11, 3)
        yield _packet(_bytes(60, descriptor))
        for number, track in enumerate(self.tracks, 1):
            child = _number(1, _FIRST + number) + _number(5, _FIRST) + _bytes(2, track.name)
            yield _packet(_bytes(60, child + _number(12, number)))
        moments: list[tuple[int, int, int, int, int]] = []
        for number, track in enumerate(self.tracks):
            for at, (begin, end, _, _) in enumerate(track.slices):
                # Ends come first, the innermost before the others; outer slices begin first.
                moments.append((end, 0, -at, number, at))
                moments.append((begin, 1, at, number, at))
        for moment, is_begin, _, number, at in sorted(moments):
            event = _number(9, 1 if is_begin else 2) + _number(11, _FIRST + 1 + number)
            if is_begin:
                piece = self.tracks[number].slices[at]
                arguments = self.arguments(piece)
                event += _bytes(22, arguments.get("opcode", "event")) + _bytes(23, piece[2])
                for name, value in arguments.items():
                    own = _real(5, value) if isinstance(value, float) else _bytes(6, str(value))
                    event += _bytes(4, _bytes(10, name) + own)
            yield _packet(_number(8, moment) + _bytes(11, event))


_FIRST = 1 << 32
"""UUID of the process; those of the modelled tracks are small."""


def _windows(measured: Measured) -> dict[tuple[str | None, str], tuple[float, float]]:
    """Begin and end of the run of median length on each device, in seconds of the profile."""
    return {
        (run["host"], run["device"]): (run["start_seconds"], run["start_seconds"] + run["seconds"])
        for run in measured.runs
        if run["is_median"]
    }


def _inside(
    profile: Profile,
    measured: Measured,
    windows: dict[tuple[str | None, str], tuple[float, float]],
) -> dict[tuple[str | None, str], dict[str, list[_Event]]]:
    """The events in the windows, by device and track."""
    program = measured._data.program[0]
    names = ("host", "device", "track", "program", "instruction", "label", "start", "duration")
    found: dict[tuple[str | None, str], dict[str, list[_Event]]] = {}
    columns = (profile.events.values(name) for name in names)
    for host, device, track, own, instruction, label, start, length in zip(*columns, strict=True):
        window = windows.get((host, device))
        if window is None or own not in (program, None):
            continue
        first, last = window
        if not first - _NEAR <= start <= last + _NEAR:
            continue
        begin = max(round((start - first) * 1e9), 0)
        end = begin + max(round(length * 1e9), 0)
        piece = (begin, end, instruction or label or "event", instruction)
        found.setdefault((host, device), {}).setdefault(track, []).append(piece)
    return found


def _lanes(name: str, pieces: list[_Event]) -> tuple[list[Track], int]:
    """Returns tracks on which slices contain one another or do not touch, as viewers need them.

    Also returns the number of events for which `_MOST_LANES` tracks are too few.
    """
    tracks: list[Track] = []
    open_until: list[list[int]] = []
    left_out = 0
    for piece in sorted(pieces, key=lambda own: (own[0], -own[1])):
        begin, end = piece[:2]
        for ends in open_until:
            while ends and ends[-1] <= begin:
                ends.pop()
        lane = next((at for at, ends in enumerate(open_until) if not ends or end <= ends[-1]), None)
        if lane is None:
            lane = len(tracks)
            if lane == _MOST_LANES:
                left_out += 1
                continue
            tracks.append(Track(name if not lane else f"{name} ({lane + 1})"))
            open_until.append([])
        tracks[lane].slices.append(piece)
        open_until[lane].append(end)
    return tracks, left_out


def _named(device: tuple[str | None, str], every: Any) -> str:
    """The name of a device; with its host if other hosts have a device of this name."""
    same = [own for own in every if own[1] == device[1]]
    return device[1] if len(same) == 1 else f"{device[0]} {device[1]}"


def _arguments(measured: Measured, rows: list[int]) -> dict[str, dict[str, Any]]:
    """By instruction: opcode, computation, phase, scope, operation name and source, if known."""
    module = measured.module
    columns = {key: labels(module, key, rows) for key in ("opcode", "computation", "phase",
                                                          "scope", "source")}  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for at, row in enumerate(rows):
        known = {key: column[at] for key, column in columns.items()}
        metadata = module[row].metadata
        known["op_name"] = None if metadata is None else metadata.op_name
        found[module[row].name] = {key: text for key, text in known.items() if text}
    return found


def appended(
    timeline: Timeline, form: str, write: Callable[[bytes], object]
) -> tuple[Callable[[bytes], object], Callable[[], None]]:
    """Returns a function that takes the modelled trace, and one that ends it with the measured."""
    if form != "json":

        def end_packets() -> None:
            for packet in timeline.perfetto():
                write(packet)

        return write, end_packets
    kept = b""

    def take(part: bytes) -> None:
        nonlocal kept
        kept += bytes(part)
        write(kept[: -len(_TAIL)])
        kept = kept[-len(_TAIL) :]

    def end_events() -> None:
        for event in timeline.chrome():
            write(b",\n" + event.encode())
        write(kept)

    return take, end_events


_TAIL = b"\n]}\n"
"""The end of the modelled trace."""


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    content = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _real(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _packet(content: bytes) -> bytes:
    """A `Trace.packet` of the sequence of measured events, which has number 2."""
    return _bytes(1, content + _number(10, _PID))
