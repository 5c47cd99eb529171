"""The part of `hlofast._core` that analyses memory; a stub only, the code is in `_core`."""

from typing import Any, Final, final

from hlofast._core import Column, Field, Module, TextColumn

_Columns = list[tuple[Field, Column | TextColumn]]

def _memory(
    module: Module, *, rule: str, sizes: str, constants: str, space: int | None, schedule: str
) -> MemoryData:
    """Analyses the memory of `module`. `space` is a number, or None for all memory spaces."""

def _xla_memory(module: Module, *, table_bytes: int | None = None) -> dict[str, int]:
    """XLA's account of `module`: bytes by name. `table_bytes` is what a device rounds the pointer
    tables of tuples to, if that is known.
    """

def _memory_file(
    module: Module, content: bytes
) -> tuple[str, _Columns, int | None, int | None, int | None]:
    """Reads one of XLA's memory files: its kind, columns, total bytes, peak step and bytes
    there.
    """

@final
class MemoryData:
    """The live ranges of a module, as analysed by `Module.memory`."""

    live_peak: Final[int]
    """Bytes at the peak."""
    peak_row: Final[int | None]
    """The row that runs at the peak."""
    peak_step: Final[int]
    """The step of the peak."""
    highest: Final[tuple[int, int | None]]
    """The most bytes of the timeline, and the row that runs there."""
    backend: Final[str]
    """Whose sizes of shapes were counted: cpu, gpu or tpu."""
    def timeline(self) -> Column:
        """Bytes alive at every step."""
    def sequence(self) -> Column:
        """The row of every step."""
    def step_of(self, row: int) -> int | None:
        """The step at which `row` runs; None if it takes none."""
    def doubts(self) -> dict[str, Any]:
        """What is wrong with the module or left out: counts and rows by name."""
    def peak_without(self, buffer: int) -> tuple[int, int | None]:
        """Peak and row if the values in `buffer` took nothing."""
    def live(self, step: int | None = None) -> _Columns:
        """The values alive at `step`, largest first; all values without it."""
