"""The part of `hlofast._core` that analyses memory; a stub only, the code is in `_core`."""

from typing import Any, Final, final

from hlofast._core import Column, Field, Module, TextColumn

_Columns = list[tuple[Field, Column | TextColumn]]

def _memory(
    module: Module, *, rule: str, sizes: str, constants: str, space: int | None, schedule: str
) -> MemoryData:
    """Analyses the memory of `module`.

    `space` is the number of a memory space, or None for all. Raises `ValueError` for an unknown
    option or if memory cannot be counted.
    """

def _xla_memory(module: Module, *, table_bytes: int | None = None) -> dict[str, int]:
    """Returns XLA's memory account of `module`: bytes by name.

    `table_bytes` is the size to which a device rounds the pointer tables of tuples, if known.
    """

def _packing(module: Module, *, usable: int | None = None) -> tuple[int, int, int] | None:
    """Returns the packing of the HBM heap in XLA: bytes of the packed heap, of its fragmentation
    and of the pointer tables of tuples. None for modules whose heap cannot be packed.

    `usable` is the HBM that the device has for programs, in bytes, if known.
    """

def _memory_file(
    module: Module, content: bytes
) -> tuple[str, _Columns, int | None, int | None, int | None, int | None]:
    """Reads one of XLA's memory files: kind, columns, total bytes, bytes in the default memory
    space, step of the peak, bytes at the peak.
    """

@final
class MemoryData:
    """The live ranges of a module, computed by `Module.memory`."""

    live_peak: Final[int]
    """Live bytes at the peak."""
    peak_row: Final[int | None]
    """The row that runs at the peak; None if there is none."""
    peak_step: Final[int]
    """The step of the peak."""
    highest: Final[tuple[int, int | None]]
    """The most bytes in the timeline, and the row that runs at that step."""
    backend: Final[str]
    """The backend whose shape sizes were counted: cpu, gpu or tpu."""
    def timeline(self) -> Column:
        """Live bytes at every step, as a column."""
    def sequence(self) -> Column:
        """The row that runs at every step, as a column."""
    def step_of(self, row: int) -> int | None:
        """The step at which `row` runs; None if it takes no step."""
    def doubts(self) -> dict[str, Any]:
        """Problems of the module and omissions from the figures: counts and rows by name."""
    phases_are_by: Final[str]
    """The evidence for the phases of values."""
    def donatable(self) -> list[tuple[int, int]]:
        """Row and bytes of each array of a parameter that could be donated and is not."""
    def peak_without(self, buffer: int) -> tuple[int, int | None]:
        """The peak and its row if the values of `buffer` took no memory."""
    def live(self, step: int | None = None) -> _Columns:
        """Fields and columns of the values live at `step`, largest first; without `step`, of all
        values.
        """
