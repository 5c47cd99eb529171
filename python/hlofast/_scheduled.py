"""The instructions that a device runs one by one: their work, and the names of their groups."""

from __future__ import annotations

from hlofast import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from hlofast._cost import Cost
    from hlofast._module import Module


def units(cost: Cost) -> list[tuple[int, int, int, int]]:
    """Returns instructions outside fusions: row, FLOPs and HBM bytes per call, calls.

    A fusion has the FLOPs of the instructions inside it and its own bytes. Left out are
    instructions that never run, that move no known bytes, or that only call computations.
    """
    columns = cost.module.columns
    whole = cost.computations.values("flops")
    flops = cost._data.column("flops").tolist()
    opcodes = columns.buffer("opcode").tolist()
    fusion = _core.opcodes.index("fusion")
    callers = {_core.opcodes.index(name) for name in ("while", "conditional", "call")}
    applied = {_core.call_roles.index(role) for role in ("to_apply", "select", "scatter")}
    inside: set[int] = set()
    keys = ("call_row", "call_computation", "call_role")
    for row, called, role in zip(*(columns.buffer(key).tolist() for key in keys), strict=True):
        if opcodes[row] == fusion:
            flops[row] += whole[called]
            inside.add(called)
        elif role in applied and opcodes[row] not in callers:
            inside.add(called)
    places = columns.buffer("computation").tolist()
    read = cost._data.column("bytes_read").tolist()
    written = cost._data.column("bytes_written").tolist()
    times = cost._data.column("multiplicity").tolist()
    return [
        (row, flops[row], read[row] + written[row], times[row])
        for row in range(len(flops))
        if times[row] > 0
        and read[row] + written[row] > 0
        and places[row] not in inside
        and opcodes[row] not in callers
    ]


GROUPS = ("opcode", "computation", "phase", "scope", "source")
"""Keys by which `labels` names the groups of instructions."""


def labels(module: Module, key: str, rows: Sequence[int]) -> list[str | None]:
    """Returns the value of `key`, one of `GROUPS`, for each of `rows`; None if unknown."""
    if key in ("phase", "scope"):
        cost = module.cost()
        codes = cost._data.column(key).tolist()
        words = _core.phases if key == "phase" else cost.scopes
        return [words[codes[row]] or None for row in rows]
    instructions = [module[row] for row in rows]
    if key == "opcode":
        return [instruction.opcode for instruction in instructions]
    if key == "computation":
        return [instruction.computation.name for instruction in instructions]
    places = [instruction.source for instruction in instructions]
    return [None if place is None else f"{place.file}:{place.line}" for place in places]
