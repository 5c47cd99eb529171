"""Warnings of the partitioner as rows: whole arrays, axis names, and the constraint to add."""

from __future__ import annotations

from hlofast import _text
from hlofast._messages import scopes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from hlofast._context import Context
    from hlofast._core import Mesh
    from hlofast._messages.partitioner import Warned
    from hlofast._module import Module

MOST_READ = 2_000
"""Warnings whose shardings are read."""


def mesh_of(module: Module | None, context: Context | None) -> Mesh | None:
    """Returns the mesh that names axes: the one given, or that of the module; None without."""
    if context is not None and context.mesh is not None:
        return context.mesh
    return None if module is None else module.context.mesh


def rows_of_warnings(
    warnings: Sequence[Warned], module: Module | None, context: Context | None
) -> tuple[list[tuple[Any, ...]], list[tuple[str, list[tuple[str, str]]]]]:
    """Returns the rows of the warnings, most bytes first, and their paragraphs."""
    mesh = mesh_of(module, context)
    names: dict[str, int] = {}
    if module is not None:
        names = {name: row for row, name in enumerate(module.table().values("name"))}
    rows = []
    for number, own in enumerate(warnings):
        whole = size = from_spec = to_spec = None
        if number < MOST_READ:
            source, _ = scopes.sharding(own.source, own.shape)
            target, _ = scopes.sharding(own.target, own.shape)
            whole = scopes.whole_shape(own.shape, source)
            size = scopes.sharding("", whole)[1] if whole is not None else None
            from_spec, to_spec = scopes.spec(source, mesh), scopes.spec(target, mesh)
        place = own.source_file
        if place is not None and own.source_line is not None:
            place = f"{place}:{own.source_line}"
        rows.append(
            (
                own.what, own.name, own.opcode, own.shape, whole, size, own.source, own.target,
                from_spec, to_spec, own.op_name, place,
                None if own.name is None else names.get(own.name),
                _constraint(own, to_spec), own.count, own.line, own.text,
            )
        )  # fmt: skip
    rows.sort(key=lambda row: -(row[5] or 0))
    return rows, [_paragraph(row) for row in rows]


def _constraint(own: Warned, to_spec: str | None) -> str | None:
    """The code of the constraint to add; None for warnings without shardings."""
    if own.target is None:
        return None
    if to_spec is None or ":" in to_spec:
        return f"jax.lax.with_sharding_constraint(x, S) with S = {own.target}"
    return f"jax.lax.with_sharding_constraint(x, {to_spec})"


def _paragraph(row: tuple[Any, ...]) -> tuple[str, list[tuple[str, str]]]:
    what, name, _, shape, whole, size, source, target = row[:8]
    from_spec, to_spec, op_name, place, _, constraint, count, line, text = row[8:]
    if what != "involuntary-rematerialization" or source is None:
        where = f"line {line:,}" if count == 1 else f"line {line:,}, {count:,} times"
        return f"{what}: {where}", [("said", text)]
    stake = "bytes unknown" if size is None else f"{_text.size(size)} on every device"
    lines = [("from", from_spec or source), ("to", to_spec or target or "unknown")]
    if name is not None:
        lines.insert(0, ("instruction", " ".join(filter(None, (name, shape)))))
    if whole is not None:
        lines.append(("whole array", whole))
    if op_name is not None or place is not None:
        lines.append(("where", "; ".join(filter(None, (op_name, place)))))
    if constraint is not None:
        at = f"at {place}" if place is not None else "at this operation"
        lines.append(
            (
                "change",
                f"{at}, give the array the sharding that its users need: {constraint}; or, if both "
                "shardings are needed, change from one to the other in steps that move one mesh "
                "axis each",
            )
        )
    if count > 1:
        lines.append(("seen", f"{count:,} times, first in line {line:,}"))
    return f"{what}: {stake}", lines
