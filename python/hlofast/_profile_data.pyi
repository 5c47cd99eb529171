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
) -> ProfileData: ...

@final
class ProfileData:
    hosts: Final[list[str]]
    errors: Final[list[tuple[str, str]]]
    warnings: Final[list[tuple[str, str]]]
    span: Final[tuple[int, int] | None]
    event_count: Final[int]
    planes: Final[list[ProfilePlane]]
    paths: Final[list[str | None]]
    def events(self) -> _Columns: ...
    def devices(self) -> _Columns: ...
    def programs(self) -> _Columns: ...
    def launches(self) -> _Columns: ...
    def steps(self) -> _Columns: ...
    def modules(self) -> _Columns: ...
    def lines(self) -> _Columns: ...
    def module_text(self, index: int) -> tuple[bytes, str | None]: ...

@final
class ProfilePlane:
    name: Final[str]
    host: Final[str]
    id: Final[int]
    stats: Final[dict[str, Any]]
    lines: Final[list[ProfileLine]]

@final
class ProfileLine:
    name: Final[str]
    display_name: Final[str]
    id: Final[int]
    timestamp_ns: Final[int]
    duration_ps: Final[int]
    events: Final[ProfileEvents]

@final
class ProfileEvents:
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> ProfileEvent: ...
    def __iter__(self) -> Iterator[ProfileEvent]: ...

@final
class ProfileEvent:
    name: Final[str]
    display_name: Final[str]
    offset_ps: Final[int]
    duration_ps: Final[int]
    start_ns: Final[float]
    duration_ns: Final[float]
    occurrences: Final[int | None]
    stats: Final[dict[str, Any]]
    shared_stats: Final[dict[str, Any]]
