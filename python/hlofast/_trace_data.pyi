"""The part of `hlofast._core` that makes traces; a stub only, the code is in `_core`."""

from collections.abc import Callable
from typing import Final, final

from hlofast._core import Column, Field, MemoryData, TextColumn, TimeData

_Columns = list[tuple[Field, Column | TextColumn]]

def _trace(
    time: TimeData,
    memory: MemoryData | None = None,
    *,
    iterations: int | None = None,
    min_seconds: float = 0.0,
) -> TraceData:
    """The trace of a module that has been timed; bytes alive are those of `memory`."""

@final
class TraceData:
    """The schedule of a module as slices and samples, as made by `Module.trace`."""

    peak: Final[int | None]
    """The most bytes alive; None where they are not counted."""
    samples: Final[int]
    """Samples of bytes alive."""
    not_played: Final[int]
    """Calls shown as a whole since the trace would be too large."""
    def write(
        self, form: str, facts: list[tuple[str, str]], write: Callable[[bytes], object]
    ) -> None:
        """Hands the trace to `write` in parts: `json` or `pftrace`. `facts` are told of the
        module.
        """
    def tracks(self) -> _Columns:
        """One row per track."""
    def loops(self) -> _Columns:
        """One row per loop: instruction, name, trip_count (-1: not known), shown."""
