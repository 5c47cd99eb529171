"""Devices and axes: the mesh, the groups of each collective, and unexplained collectives."""

from __future__ import annotations

from hlofast._check.comparison import AGREES, ERROR, NOTE, WARNING, Comparison
from hlofast._check.loops import is_in_layers
from hlofast._check.program import Program
from hlofast._context import devices_of
from hlofast._text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot")
"""Endings of operation names of matmuls and convolutions."""
ALONE = "single devices"
"""The axes of a collective whose groups have one device each."""
SMALL = 1 << 16
"""Collectives up to this payload give no finding: counters, norms, sums of losses."""


def device_count(program: Program) -> Iterator[Comparison]:
    """Compares the devices of the declared mesh with the devices of the program."""
    mesh = program.declaration.mesh
    if mesh is None:
        return
    module = program.module
    compiled = devices_of(module)
    slices = mesh.slices or 1
    # A program for several slices is compiled for one slice and does not mention the others.
    is_same = mesh.device_count in (compiled, compiled * slices)
    if compiled == 1 and not program.is_partitioned:
        severity, message = NOTE, "the program is not partitioned yet"
    elif is_same:
        severity, message = AGREES, "as many devices as declared"
    else:
        severity = ERROR
        message = f"the mesh has {mesh.device_count:,} devices, but the program has {compiled:,}"
        if mesh.device_count % compiled == 0 and slices == 1:
            count = mesh.device_count // compiled
            message += f"; is it compiled for one slice of {count:,}? Then declare slices = {count}"
        message += "; nothing else is compared"
    declared = ",".join(f"{name}={size}" for name, size in mesh.shape.items())
    text = f"{compiled:,} of each of {slices:,} slices" if slices > 1 else f"{compiled:,}"
    yield Comparison("device-count", severity, "mesh", declared, text, message)


def collective_axes(program: Program) -> Iterator[Comparison]:
    """Collectives summed by kind and mesh axes, and collectives whose groups follow no axes."""
    if program.declaration.mesh is None:
        return
    odd = {row["instruction"]: row["reason"] for row in program.collectives.mismatches}
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for row in program.collectives:
        if row["instruction"] in odd:
            what = row["tensor"] or "a computed value"
            yield Comparison(
                "collective-axes",
                ERROR,
                row["name"],
                "groups along axes of the mesh",
                row["groups"] or "none",
                f"{row['kind']} of {what}: {odd[row['instruction']]}",
                row["total_wire_bytes"],
                row["instruction"],
                "modelled",
            )
            continue
        key = (row["kind"], row["axes"] or ALONE)
        total = sums.setdefault(
            key, {"rows": set(), "bytes": 0, "first": row["instruction"], "is_in_layers": False}
        )
        total["rows"].add(row["instruction"])
        total["is_in_layers"] |= is_in_layers(program, row)
        total["bytes"] += row["total_payload"] or 0
    for (kind, axes), total in sums.items():
        count = counted(len(total["rows"]), "collective")
        is_part = ":(" in axes
        part, severity = "", AGREES
        if is_part:
            # Inside layers, the compiler follows the program; elsewhere it may reshard freely.
            is_grave = total["is_in_layers"] or program.declaration.layers is None
            severity = WARNING if is_grave else NOTE
            part = f": {total['bytes']:,} B of payload along a part of an axis"
            part += "; is the mesh the one that was compiled for?" if is_grave else ""
        yield Comparison(
            "collective-axes",
            severity,
            f"{kind} within {axes}" if axes == ALONE else f"{kind} along {axes}",
            "whole axes" if is_part else axes,
            axes,
            f"{count}{part}",
            total["bytes"],
            total["first"],
        )


def unexplained(program: Program) -> Iterator[Comparison]:
    """Collectives that the declared shardings do not need.

    Weights are gathered, and gradients reduced, along the axes that shard them or the batch.
    Activations are exchanged along axes that shard weights but not the batch (tensor parallelism),
    and along `moved_axes`. Collective-permutes of matmuls are decomposed all-gathers and
    reduce-scatters.
    """
    declaration = program.declaration
    if declaration.mesh is None or not declaration.parameters or not declaration.batch_axes:
        return
    batch = set(program.split(declaration.batch_axes))
    of_weights = {
        axis
        for parameter in declaration.parameters
        for axes in parameter.spec
        for axis in program.split(axes)
    }
    travelled = set(program.split(declaration.moved_axes))
    odd = {row["instruction"] for row in program.collectives.mismatches}
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in program.collectives:
        axes = set(row["axes"].split("×")) if row["axes"] else set()
        if row["instruction"] in odd or not axes or row["payload"] <= SMALL:
            continue
        asked = of_weights - batch | travelled
        is_taken_apart = row["kind"] == "collective-permute" and (row["op_name"] or "").endswith(
            PRODUCTS
        )
        if row["tensor_kind"] in ("weight", "gradient") or is_taken_apart:
            asked = of_weights | batch
        if axes <= asked:
            continue
        where = "in every layer" if is_in_layers(program, row) else "outside the layers"
        scope = row["op_name"] or row["tensor"] or row["name"]
        key = (row["kind"], row["axes"], row["tensor_kind"], row["phase"], where, scope)
        total = sums.setdefault(key, {"bytes": 0, "row": row, "rows": set()})
        total["bytes"] += row["total_wire_bytes"] or 0
        total["rows"].add(row["instruction"])
    for (kind, axes_text, moved, phase, where, scope), total in sums.items():
        # A gather without name and phase may also be the second half of a gradient's reduction.
        is_known = phase != "unattributed" or total["row"]["op_name"] is not None
        yield Comparison(
            "unexplained-collective",
            WARNING if where == "in every layer" and is_known else NOTE,
            f"{kind} along {axes_text}",
            "no such collective",
            f"{total['bytes']:,} wire B of {moved} in {phase}",
            f"{scope}: no declared sharding needs {counted(len(total['rows']), 'collective')} "
            f"{where}",
            total["bytes"],
            total["row"]["instruction"],
            "modelled",
        )
