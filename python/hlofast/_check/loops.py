"""Compares trip counts with the declared layers and micro-batches."""

from __future__ import annotations

from hlofast._check.comparison import AGREES, ERROR, NOTE, WARNING, Comparison
from hlofast._check.program import Program
from hlofast._text import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_PEELED = 2
"""The most iterations that compilers are known to peel off a loop over layers: libtpu peels one
from each end of loops that offload to the host, and two if the program spans several slices."""


def layer_loops(program: Program) -> list[dict[str, Any]]:
    """The loops that may run over the declared layers, in text order.

    These are the loops whose trip count is the number of layers, and loops over the same stacks
    with up to `MOST_PEELED` fewer iterations, which a compiler may have peeled off. It may peel
    forward and backward loops differently.
    """
    layers = program.declaration.layers
    if layers is None:
        return []
    least = max(1, layers - MOST_PEELED)
    loops = [
        loop
        for loop in program.loops
        if loop["trip_count"] is not None and least <= loop["trip_count"] <= layers
    ]
    whole = [loop for loop in loops if loop["trip_count"] == layers]
    if whole:
        starts = {loop["multiplicity"] for loop in whole}
        loops = whole + [
            loop
            for loop in loops
            if loop["trip_count"] != layers
            and loop["multiplicity"] in starts
            and _carries_stack(program, loop, layers)
        ]
    return sorted(loops, key=lambda loop: int(loop["instruction"]))


def _carries_stack(program: Program, loop: dict[str, Any], layers: int) -> bool:
    """Whether the state of a loop has an array with a first dimension of `layers`."""
    shape = program.module[loop["instruction"]].shape
    arrays = (element.dimensions for element in shape.elements if element.is_array)
    return any(len(sizes) > 1 and sizes[0] == layers for sizes in arrays)


def is_in_layers(program: Program, row: dict[str, Any]) -> bool:
    """Whether a collective belongs to a layer: inside a loop over layers, or peeled off it."""
    counts = {loop["trip_count"] for loop in layer_loops(program)}
    return row["trip_count"] in counts or (bool(counts) and row["peeled_from"] is not None)


def _peeled(program: Program, count: int) -> int:
    """Number of iterations peeled off the loops with trip count `count`.

    For each loop, this is the largest number of peeled copies of any of its collectives.
    """
    loops: dict[int, str] = {}
    for row in program.collectives:
        if row["trip_count"] == count:
            loops[row["instruction"]] = row["computation"]
    copies: dict[str, dict[int, set[int]]] = {}
    for row in program.collectives:
        source = row["peeled_from"]
        if source in loops:
            of_loop = copies.setdefault(loops[source], {})
            of_loop.setdefault(source, set()).add(row["instruction"])
    return sum(max(map(len, of_loop.values())) for of_loop in copies.values())


def layers(program: Program) -> Iterator[Comparison]:
    """Compares the trip counts of the loops over layers."""
    declared = program.declaration.layers
    if declared is None or declared == 1:
        return
    loops = layer_loops(program)
    if not loops:
        yield _without_loops(program, declared)
        return
    # Forward and backward gather the same weights, so a peeled iteration cannot always be assigned
    # to its loop; the total has to match.
    short = [loop for loop in loops if loop["trip_count"] != declared]
    missing = sum(declared - loop["trip_count"] for loop in short)
    is_complete = missing == sum(_peeled(program, count) for count in _counts(short))
    for loop in loops:
        count = loop["trip_count"]
        outside = declared - count
        text = f"{count:,} times"
        if is_complete:
            severity, message = AGREES, f"{loop['name']} runs once per layer"
            text += f" and {outside} outside" if outside else ""
        else:
            severity = WARNING if outside else AGREES
            message = f"{loop['name']} runs {count:,} times"
            if outside:
                message += f"; no collective shows that {outside} more were peeled off"
        yield Comparison(
            "layer-loops",
            severity,
            loop["name"],
            f"{declared:,} times",
            text,
            message,
            None,
            loop["instruction"],
            loop["provenance"],
        )


def _counts(loops: list[dict[str, Any]]) -> set[int]:
    return {loop["trip_count"] for loop in loops}


def _without_loops(program: Program, declared: int) -> Comparison:
    """The comparison if no loop runs once per layer."""
    leading = [
        parameter.dimensions[0] for parameter in program.parameters if len(parameter.dimensions) > 1
    ]
    stacks = {size for size in leading if leading.count(size) > 1}
    # These loops run over stacked parameters, but with another trip count.
    others = [loop for loop in program.loops if loop["trip_count"] in stacks - {1}]
    if others or declared in stacks:
        trip_counts = ", ".join(f"{loop['trip_count']:,}" for loop in others) or "no loop"
        return Comparison(
            "layer-loops",
            ERROR,
            "loop over layers",
            f"{declared:,} times",
            f"{trip_counts} times" if others else trip_counts,
            f"parameters are stacked, but no loop over them runs {declared:,} times",
            None,
            others[0]["instruction"] if others else None,
        )
    return Comparison(
        "layer-loops",
        NOTE,
        "loop over layers",
        f"{declared:,} times",
        "no such loop",
        "no loop runs over stacked parameters: the layers may be unrolled",
        provenance="unknown",
    )


def accumulation(program: Program) -> Iterator[Comparison]:
    """Compares the starts of the loops over layers in a step, one per micro-batch."""
    declared = program.declaration.accumulation_steps
    if declared is None:
        return
    loops = layer_loops(program)
    # A call count beyond 64 bits is unknown.
    starts = (loop["multiplicity"] for loop in loops)
    runs = sorted({count for count in starts if count is not None})
    if not loops and declared == 1:
        return
    if not loops:
        has_loop = any(loop["trip_count"] == declared for loop in program.loops)
        yield Comparison(
            "accumulation-steps",
            AGREES if has_loop else ERROR,
            "loop over micro-batches",
            f"{declared:,} times",
            f"{declared:,} times" if has_loop else "no such loop",
            "as declared" if has_loop else f"no loop runs {declared:,} times",
        )
        return
    is_same = declared in runs or (declared > 1 and declared - 1 in runs and 1 in runs)
    compiled = ", ".join(f"{count:,}" for count in runs)
    yield Comparison(
        "accumulation-steps",
        AGREES if is_same else ERROR,
        "micro-batches per step",
        f"{declared:,}",
        compiled,
        "the layers run once per micro-batch"
        if is_same
        else f"{counted(len(loops), 'loop')} over layers start {compiled} times in a step",
        None,
        loops[0]["instruction"],
    )
