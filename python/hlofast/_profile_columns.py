"""Measured columns of tables about cost, matmuls and collectives, for modules with a profile."""

from __future__ import annotations

from hlofast import _core
from hlofast._context import measured_for
from hlofast._core import Field
from hlofast._matmuls import to_depth
from hlofast._profile_fields import OF_CALLS, OF_CALLS_EXPOSED
from hlofast._scheduled import GROUPS, labels
from hlofast.table import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hlofast._core import Column, TextColumn
    from hlofast._module import Module

    Columns = list[tuple[Field, Column | TextColumn]]

OF_MATMUL = OF_CALLS.replace(
    doc="Measured time of all calls in a step. A matmul inside a fusion has the fusion's time; "
    "unknown if the fusion holds several matmuls."
)
RATE = Field(
    "flop_rate",
    "flops_per_second",
    "FLOPs of all calls over their measured time.",
    label="FLOP/s",
    nullable=True,
)
KEYS = (*GROUPS, "source_file")
"""Keys of totals that have measured time."""


def seconds_by(module: Module, key: str, depth: int) -> dict[str | None, float] | None:
    """Returns the measured seconds of the instructions by `key`, one of `KEYS`.

    A fusion counts for the phase, scope and source of the fusion. None without a profile of the
    module.
    """
    measured = measured_for(module)
    if measured is None or key not in KEYS:
        return None
    column = measured.column("seconds").tolist()
    rows = [row for row, own in enumerate(column) if own == own]
    if key == "source_file":
        places = [module[row].source for row in rows]
        names = [None if place is None else place.file for place in places]
    else:
        names = list(labels(module, key, rows))
    if key == "scope":
        names = [None if name is None else to_depth(name, depth) or None for name in names]
    sums: dict[str | None, float] = {}
    for row, name in zip(rows, names, strict=True):
        sums[name] = sums.get(name, 0.0) + column[row]
    return sums


def with_matmuls(module: Module, columns: Columns) -> Columns:
    """Returns the columns of matmuls with measured time and achieved FLOP/s."""
    measured = measured_for(module)
    if measured is None:
        return columns
    own = measured.column("seconds").tolist()
    table = Table(columns)
    rows = table.values("instruction")
    fused = _fusions(module, set(rows))
    each = [
        own[row] if own[row] == own[row] else _sum(own[fusion] for fusion in fused.get(row, ()))
        for row in rows
    ]
    seconds = _divided(rows, table.values("multiplicity"), each)
    rates = [
        None if flops is None or not taken else flops / taken
        for flops, taken in zip(table.values("flops"), seconds, strict=True)
    ]
    return columns + Table.of([(OF_MATMUL, seconds), (RATE, rates)])._described()


def _fusions(module: Module, matmuls: set[int]) -> dict[int, list[int]]:
    """Returns the fusions that run each of `matmuls`; none for matmuls that share a fusion."""
    columns = module.columns
    opcodes = columns.buffer("opcode").tolist()
    fusion = _core.opcodes.index("fusion")
    callers: dict[int, list[int]] = {}
    edges = (columns.buffer(name).tolist() for name in ("call_row", "call_computation"))
    for row, called in zip(*edges, strict=True):
        if opcodes[row] == fusion:
            callers.setdefault(called, []).append(row)
    places = columns.buffer("computation").tolist()
    inside: dict[int, list[int]] = {}
    for row in matmuls:
        inside.setdefault(places[row], []).append(row)
    return {
        rows[0]: callers[place]
        for place, rows in inside.items()
        if len(rows) == 1 and place in callers
    }


def with_collectives(module: Module, columns: Columns) -> Columns:
    """Returns the columns of collectives with measured and measured exposed time."""
    measured = measured_for(module)
    if measured is None:
        return columns
    table = Table(columns)
    times: dict[int, list[tuple[float, float]]] = {}
    scheduled = Table(measured.collectives()).values("instruction")
    for row, pair in zip(scheduled, measured.collective_seconds(), strict=True):
        times.setdefault(row, []).append(pair)
    rows = table.values("instruction")
    of_row: dict[int, tuple[float | None, float | None]] = {}
    for row, outer in zip(rows, table.values("scheduled_as"), strict=True):
        if row not in of_row:
            # Of several collectives in one fusion, both tables have the same order.
            left = times.get(row if outer is None else outer)
            pair = left.pop(0) if left else (float("nan"), float("nan"))
            of_row[row] = (_known(pair[0]), _known(pair[1]))
    calls = table.values("multiplicity")
    columns = columns.copy()
    for at, field in enumerate((OF_CALLS, OF_CALLS_EXPOSED)):
        each = [of_row[row][at] for row in rows]
        columns += Table.of([(field, _divided(rows, calls, each))])._described()
    return columns


def _divided(
    rows: Sequence[int], calls: Sequence[int | None], seconds: Sequence[float | None]
) -> list[float | None]:
    """Divides the time of an instruction between its rows, one per phase, by their calls."""
    totals: dict[int, int] = {}
    for row, own in zip(rows, calls, strict=True):
        totals[row] = totals.get(row, 0) + (own or 0)
    return [
        taken if taken is None or own is None or own == totals[row] else taken * own / totals[row]
        for row, own, taken in zip(rows, calls, seconds, strict=True)
    ]


def _known(value: float) -> float | None:
    return value if value == value else None


def _sum(values: Iterable[float]) -> float | None:
    """Returns the sum; None for no values or an unknown one."""
    known = list(values)
    whole = sum(known)
    return whole if known and whole == whole else None
