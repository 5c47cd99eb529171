"""The part of `hlofast._core` that makes traces; a stub only, the code is in `_core`."""

from collections.abc import Callable
from typing import final

from hlofast._core import Column, Field, MemoryData, TextColumn, TimeData

_Columns = list[tuple[Field, Column | TextColumn]]

def _trace(
    time: TimeData,
    memory: MemoryData | None = None,
    *,
    iterations: int | None = None,
    min_seconds: float = 0.0,
) -> TraceData: ...

@final
class TraceData:
    @property
    def peak(self) -> int | None: ...
    @property
    def samples(self) -> int: ...
    @property
    def not_played(self) -> int: ...
    def write(
        self, form: str, facts: list[tuple[str, str]], write: Callable[[bytes], object]
    ) -> None: ...
    def tracks(self) -> _Columns: ...
    def loops(self) -> _Columns: ...
