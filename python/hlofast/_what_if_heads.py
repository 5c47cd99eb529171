"""Gathers of attention's weights that the compiler makes twice where a device has one head.

Recomputed and backward work share the gather of a weight if both multiply with the same array. With
one head of keys per device they do not always: four steps that were compiled with one head gather
the weights of queries and keys once more for the backward pass, the same steps with two heads or
four do not. Where the text gathers a weight for each of them in another form, as `dense_v5e` of
`what_if_models.py` does, nothing changes.

One head of keys is not split further along its axis: devices then exchange keys and values along a
part of the axis, of which the text has nothing.
"""

from __future__ import annotations

from math import prod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from hlofast._module import Module
    from hlofast._what_if import WhatIf
    from hlofast._what_if_symbols import Symbol


def of_one_head(result: WhatIf, rows: list[dict[str, Any]]) -> tuple[set[str], set[str]]:
    """What another mesh may change where a device has one head.

    Returns the names of gathers that may become two or of which one may vanish, and the mesh axes
    along which one head would be split.
    """
    old, new = result.mesh, result.new_mesh
    if old is None or new in (None, old):
        return set(), set()
    heads = [own for own in result.symbols if own.role == "heads"]
    axes = {axis for own in heads for axis in own.axes}
    if all(old.shape.get(axis) == new.shape.get(axis) for axis in axes):
        return set(), set()
    before = _has_one(result, result.module, old.shape, lambda own: own.size)
    grown = {own for own in axes if new.shape.get(own, 1) > old.shape.get(own, 1)}
    asked = result.asked
    if not before and not _has_one(
        result, result.changed, new.shape, lambda own: int(asked.get(own.number, own.size))
    ):
        return set(), set()
    tensors = {name for own in heads for name, _ in own.parameters}
    gathers: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "all-gather" and row["tensor"] in tensors:
            gathers.setdefault(row["tensor"], []).append(row)
    again = {row["name"] for own in gathers.values() if _may_share(result, own) for row in own}
    return again, grown if before else set()


def _has_one(
    result: WhatIf, module: Module, mesh: Mapping[str, int], size: Callable[[Symbol], int]
) -> bool:
    """Whether a device has one head: the batch of a matmul of tokens by tokens is the sequences."""

    def local(role: str) -> set[int]:
        return {
            size(own) // prod(mesh.get(axis, 1) for axis in own.axes)
            for own in result.symbols
            if own.role == role
        }

    sequences, lengths = local("batch"), local("sequence")
    return any(
        row["batch"] in sequences
        and any(sum(not (row[side] or 1) % own for side in "mnk") == 2 for own in lengths)
        for row in module.matmuls().tables["matmuls"]
    )


def _may_share(result: WhatIf, rows: list[dict[str, Any]]) -> bool:
    """Whether recomputed and backward work share the gathers of a weight, or could."""
    shapes: dict[str, set[tuple[int | None, ...]]] = {"recompute": set(), "backward": set()}
    for row in rows:
        shape = result.module.instructions[row["instruction"]].shape
        if row["phase"] in shapes and shape.is_array:
            shapes[row["phase"]].add(tuple(own for own in shape.dimensions if own != 1))
    again, backward = shapes.values()
    return bool(again) and (not backward or bool(again & backward))
