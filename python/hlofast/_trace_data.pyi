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
    """Creates the trace of a timed module, with live bytes from `memory` if given.

    Raises `ValueError` if the step is too long for a trace.
    """

@final
class TraceData:
    """The schedule of a module as slices and samples, created by `Module.trace`."""

    peak: Final[int | None]
    """The highest number of live bytes; None if live bytes were not counted."""
    samples: Final[int]
    """Number of samples of live bytes."""
    not_played: Final[int]
    """Number of calls shown as a single slice because the trace would otherwise be too large."""
    def write(
        self, form: str, facts: list[tuple[str, str]], write: Callable[[bytes], object]
    ) -> None:
        """Passes the trace to `write` in parts.

        `form` is `json` or `pftrace`; `facts` describe the module in the trace.
        """
    def tracks(self) -> _Columns:
        """Returns a table with one row per track."""
    def loops(self) -> _Columns:
        """Returns a table with one row per loop: instruction, name, trip_count (-1 if unknown),
        shown.
        """
