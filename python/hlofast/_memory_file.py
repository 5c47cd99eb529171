"""`MemoryFile`: one of XLA's memory files as a table."""

from __future__ import annotations

from hlofast.table import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast import _core
    from hlofast._core import Field


class MemoryFile:
    """One of XLA's memory files, joined to its module by `Memory.file`."""

    kind: str
    """`live_range`, `buffer_assignment` or `memory_usage_report`."""
    table: Table
    """One row per value, or per line of a report, in the file's order.

    Columns: instruction (row), name, index, allocation, kind (parameter, constant, output,
    temporary, other), bytes, is_exact (reports round), offset, first_step, last_step, is_at_peak,
    values (number of values that share the buffer). Columns that this kind of file lacks are
    unknown.
    """
    total_bytes: int | None
    """Bytes of all allocations."""
    default_bytes: int | None
    """Bytes of the allocations in the default memory space, which on TPU is HBM."""
    peak_step: int | None
    """The step that a live-range file calls the peak."""
    peak_bytes: int | None
    """Bytes of the values that the file lists at the peak."""
    path: str | None
    """The path of the file, if given."""

    def __init__(
        self,
        kind: str,
        columns: list[tuple[Field, _core.Column | _core.TextColumn]],
        total_bytes: int | None,
        default_bytes: int | None,
        peak_step: int | None,
        peak_bytes: int | None,
        path: str | None = None,
    ) -> None:
        self.kind = kind
        self.table = Table(columns)
        self.total_bytes = total_bytes
        self.default_bytes = default_bytes
        self.peak_step = peak_step
        self.peak_bytes = peak_bytes
        self.path = path

    def __repr__(self) -> str:
        return f"<MemoryFile {self.kind}, {len(self.table)} rows>"
