"""Compares the values that the policy keeps with the residuals of the program."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hlofast._check.comparison import AGREES, ERROR, NOTE, WARNING, Comparison
from hlofast._check.declaration import shape_bytes
from hlofast._check.loops import layer_loops
from hlofast._check.program import Program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeVar

    from hlofast._check.declaration import DeclaredValue

    _Sized = TypeVar("_Sized", DeclaredValue, "KeptValue")

SMALL = 1 << 20
"""Undeclared values up to this many bytes over all layers give no finding."""
MOST_TOGETHER = 3
"""Limit on the declared values matched to one array, and on the arrays matched to one value."""
MOST_NEAR = 16
"""Limit on the values that are tried in combinations."""


@dataclass(frozen=True)
class KeptValue:
    """A value of every layer that is live between the forward and the backward pass."""

    row: int
    place: str
    layer_bytes: int
    shape: str
    op_name: str
    count: int
    """Number of arrays that hold the layers: 1 if they are stacked."""


def crossing(program: Program) -> list[KeptValue] | None:
    """Values that are live between forward and backward for each layer; None if unknown.

    With a loop over layers, these are arrays that are live when the loop ends and whose first
    dimension is the number of layers. Arrays with the dimensions of a parameter are copies of
    weights and are left out. Without a loop, they are residuals, one of each size per layer.
    """
    layers = program.declaration.layers
    if layers is None or not program.is_partitioned:
        return None
    loops = layer_loops(program)
    if not loops:
        return _unrolled(program, layers)
    forward = loops[0]["instruction"]
    weights = {_stack_first(parameter.dimensions, layers) for parameter in program.parameters}
    values = []
    for place, space in (("device", "hbm"), ("host", "host")):
        memory = program.memory(space)
        step = memory._data.step_of(forward)
        if step is None:
            return None
        last: dict[int, int] = {}
        for row in memory.values():
            last[row["buffer"]] = max(last.get(row["buffer"], 0), row["last_step"])
        seen = set()
        for row in memory.live_at(forward):
            sizes = _sizes(row["shape"])
            is_stack = len(sizes) > 1 and sizes[0] == layers and row["opcode"] != "parameter"
            if not is_stack or not row["bytes"] or sizes in weights or row["buffer"] in seen:
                continue
            if last[row["buffer"]] <= step:
                continue
            seen.add(row["buffer"])
            text = row["shape"].partition("{")[0]
            size = shape_bytes(text, row["name"]) // layers
            op_name = row["op_name"] or ""
            values.append(KeptValue(row["instruction"], place, size, text, op_name, count=1))
    return values


def _stack_first(dimensions: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Dimensions of stacked weights as a loop slices them: the layers come first.

    Flax stacks layers along any dimension (`param_scan_axis`).
    """
    if layers not in dimensions:
        return dimensions
    at = dimensions.index(layers)
    return (layers, *dimensions[:at], *dimensions[at + 1 :])


def _sizes(shape: str) -> tuple[int, ...]:
    """Dimensions of an array; empty for a tuple."""
    if shape.startswith("("):
        return ()
    inside = shape.partition("[")[2].partition("]")[0]
    parts = inside.split(",")
    return tuple(int(part) for part in parts) if all(map(str.isdecimal, parts)) else ()


def _unrolled(program: Program, layers: int) -> list[KeptValue]:
    groups: dict[str, list[dict[str, object]]] = {}
    for row in program.remat.residuals:
        if row["kind"] != "weight_copy" and not row["is_stacked"]:
            groups.setdefault(row["shape"], []).append(row)
    values = []
    for shape, rows in groups.items():
        # A shape that occurs twice per layer stands for two values.
        for number in range(len(rows) // layers):
            row = rows[number]
            text = shape.partition("{")[0]
            size = shape_bytes(text, str(row["name"]))
            instruction, op_name = row["instruction"], str(row["op_name"] or "")
            assert isinstance(instruction, int)
            values.append(KeptValue(instruction, "device", size, text, op_name, count=layers))
    return values


def kept_values(program: Program) -> Iterator[Comparison]:
    """Compares each declared value, and reports undeclared values that are kept."""
    declaration = program.declaration
    layers = declaration.layers
    if declaration.kept is None or layers is None:
        return
    crossing_values = crossing(program)
    if crossing_values is None:
        return
    left = list(crossing_values)
    carry = next((kept for kept in left if _is_carry(program, kept)), None)
    if carry is not None:
        left.remove(carry)
        yield _agrees("input of the layer", carry, layers)
    missing: list[DeclaredValue] = []
    for value in declaration.kept:
        match = next((kept for kept in left if _is(kept, value)), None)
        if match is None:
            missing.append(value)
            continue
        left.remove(match)
        yield _agrees(value.name, match, layers)
    for kept in list(left):
        together = _adding_up(missing, kept.place, kept.layer_bytes)
        if together:
            left.remove(kept)
            for value in together:
                missing.remove(value)
            yield _agrees(", ".join(value.name for value in together), kept, layers)
    for value in list(missing):
        parts = _adding_up(left, value.place, value.layer_bytes)
        if parts:
            missing.remove(value)
            for kept in parts:
                left.remove(kept)
            yield _agrees(value.name, parts[0], layers, *parts[1:])
    elsewhere = {"device": "host", "host": "device"}
    # Without a loop, only sizes can be matched, and compilers widen and merge values.
    gravity = ERROR if layer_loops(program) else WARNING
    for value in missing:
        other = next(
            (
                kept
                for kept in left
                if kept.place == elsewhere[value.place] and kept.layer_bytes == value.layer_bytes
            ),
            None,
        )
        if other is not None:
            left.remove(other)
        compiled = "no value of that size" if other is None else f"in {other.place} memory"
        reason = (
            "no value of that size is kept from forward to backward: does the program use this "
            "checkpoint name?"
            if other is None
            else f"it is kept in {other.place} memory instead"
        )
        yield Comparison(
            "kept-values",
            gravity,
            value.name,
            f"{value.layer_bytes:,} B per layer in {value.place} memory",
            compiled,
            reason,
            value.layer_bytes * layers,
            None if other is None else other.row,
            "modelled",
        )
    # jax.lax.scan always keeps the layer's input, which is one of these values if its size is not
    # declared.
    severity = NOTE if declaration.carry_bytes is None else WARNING
    for kept in left:
        if kept.layer_bytes * layers >= SMALL:
            yield Comparison(
                "kept-undeclared",
                severity,
                kept.shape,
                "not kept",
                f"{kept.layer_bytes:,} B per layer in {kept.place} memory",
                f"{kept.op_name or program.module[kept.row].name} is kept for the backward pass "
                "though the policy names no value of that size",
                kept.layer_bytes * layers,
                kept.row,
                "modelled",
            )


def _is_carry(program: Program, kept: KeptValue) -> bool:
    return kept.place == "device" and kept.layer_bytes == program.declaration.carry_bytes


def _is(kept: KeptValue, value: DeclaredValue) -> bool:
    return kept.place == value.place and kept.layer_bytes == value.layer_bytes


def _adding_up(values: Iterable[_Sized], place: str, size: int) -> tuple[_Sized, ...]:
    """Up to `MOST_TOGETHER` values in one memory whose sizes add up to `size` bytes per layer."""
    near = [value for value in values if value.place == place][:MOST_NEAR]
    for count in range(2, MOST_TOGETHER + 1):
        for some in itertools.combinations(near, count):
            if sum(value.layer_bytes for value in some) == size:
                return some
    return ()


def _agrees(name: str, kept: KeptValue, layers: int, *others: KeptValue) -> Comparison:
    size = sum(each.layer_bytes for each in (kept, *others))
    shapes = " and ".join(each.shape for each in (kept, *others))
    return Comparison(
        "kept-values",
        AGREES,
        name,
        f"{size:,} B per layer in {kept.place} memory",
        shapes if kept.count == 1 else f"{kept.count:,} times {shapes}",
        f"{size * layers:,} B over all layers",
        size * layers,
        kept.row,
        "modelled",
    )
