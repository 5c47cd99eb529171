"""The part of `hlofast._core` that reads profiles; a stub only, the code is in `_core`."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, final

from hlofast._core import Column, Field, TextColumn

_Columns = list[tuple[Field, Column | TextColumn]]

def _load_profile(
    files: Sequence[tuple[str | bytes | os.PathLike[str], str | None]],
    *,
    max_bytes: int | None = None,
) -> ProfileData:
    """Reads the profile in `files`, one per host: paths or bytes, with the name of each in
    messages.

    Raises `ParseError` for a file that is not a profile, `OSError` for one that cannot be read.
    """

def _is_profile(head: bytes) -> bool:
    """Whether a file that begins with `head` (at least 64 KiB, or all of it) is a profile."""

def _profile_runs(folder: str | os.PathLike[str]) -> list[tuple[str, str, list[str]]]:
    """Returns the runs below a folder, the oldest first: name, folder, and the files of its hosts.

    Raises `OSError` if the folder cannot be read.
    """

@final
class ProfileData:
    """What ran on devices, from the files of one run, created by `hlofast.load_profile`."""

    hosts: Final[list[str]]
    """Names of the hosts."""
    errors: Final[list[tuple[str, str]]]
    """What went wrong while the profile was recorded: pairs of host and message."""
    warnings: Final[list[tuple[str, str]]]
    """What the profiler warns of: pairs of host and message."""
    span: Final[tuple[int, int] | None]
    """Begin of the first event or launch and end of the last, in picoseconds; None without any."""
    event_count: Final[int]
    """Number of events on the tracks of devices."""
    planes: Final[list[ProfilePlane]]
    """The planes of the files."""
    paths: Final[list[str | None]]
    """Paths of the files, None for bytes."""
    def events(self) -> _Columns:
        """Returns a table with one row per event of a device."""
    def devices(self) -> _Columns:
        """Returns a table with one row per device."""
    def programs(self) -> _Columns:
        """Returns a table with one row per program."""
    def launches(self) -> _Columns:
        """Returns a table with one row per execution of a program on a device."""
    def steps(self) -> _Columns:
        """Returns a table with one row per step."""
    def modules(self) -> _Columns:
        """Returns a table with one row per module in the profile."""
    def lines(self) -> _Columns:
        """Returns a table with one row per line of the files."""
    def module_text(self, index: int) -> tuple[bytes, str | None]:
        """Returns the text of the module `index` of `modules`, and the path of its file.

        Raises `ParseError` if it cannot be read, `IndexError` without such a module.
        """

@final
class ProfilePlane:
    """A plane of a profile file: a device, the threads of a host, or metadata."""

    name: Final[str]
    """The name, such as `/device:TPU:0`."""
    host: Final[str]
    """The host whose file it is in."""
    id: Final[int]
    """The plane's number."""
    stats: Final[dict[str, Any]]
    """The stats of the plane, such as capabilities of a device."""
    lines: Final[list[ProfileLine]]
    """The lines."""

@final
class ProfileLine:
    """One timeline of a plane: a stream, a thread, the modules of a core."""

    name: Final[str]
    """The name, such as `XLA Ops`."""
    display_name: Final[str]
    """The name that viewers show instead; may be empty."""
    id: Final[int]
    """The line's number."""
    timestamp_ns: Final[int]
    """Begin in nanoseconds; events are relative to it."""
    duration_ps: Final[int]
    """Length in picoseconds; 0 if the profiler does not say."""
    events: Final[ProfileEvents]
    """The events, in the order of the file."""

@final
class ProfileEvents:
    """The events of a line: a sequence that decodes each when it is asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> ProfileEvent: ...
    def __iter__(self) -> Iterator[ProfileEvent]: ...

@final
class ProfileEvent:
    """One event of a line."""

    name: Final[str]
    """The name: the instruction as text, a kernel, a function."""
    display_name: Final[str]
    """The name that viewers show instead; may be empty."""
    offset_ps: Final[int]
    """Begin in picoseconds from the line's timestamp."""
    duration_ps: Final[int]
    """Length in picoseconds."""
    start_ns: Final[float]
    """Begin in nanoseconds on the clock of the host."""
    duration_ns: Final[float]
    """Length in nanoseconds."""
    occurrences: Final[int | None]
    """How often it occurred, for an aggregated event; None for an event with a begin."""
    stats: Final[dict[str, Any]]
    """The stats of this event, by name."""
    shared_stats: Final[dict[str, Any]]
    """The stats that all events of this kind share, by name."""
