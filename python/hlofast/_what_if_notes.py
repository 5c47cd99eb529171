"""Notes of `WhatIf`: what its figures take for granted, and what cannot be attributed."""

from __future__ import annotations

from hlofast._result import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._what_if import WhatIf

SAME_MESH = (
    "of 66 such changes of programs that were held out, compiled on the same mesh, the peak is "
    "within 5 % in 79 %, and the bytes sent along every axis are exact in 67 %"
)
OTHER_MESH = "of 104 changes of the mesh, the peak is within 5 % in 68 %, the bytes exact in 29 %"
"""Errors of changes, by `benches/what_if_accuracy.py` on all programs of `what_if_models.py`."""
MISSING = {
    "batch": "no entry parameter is found that holds a batch: integers, or arrays that share their "
    "first dimension with them, which no result replaces",
    "sequence": "no input has a second dimension larger than 1",
    "layers": "no loop takes one slice of stacked parameters per iteration; layers without a loop "
    "cannot change",
}
"""By role: why it has no symbol."""


def notes(result: WhatIf) -> Iterator[Note]:
    """Yields the notes of a result."""
    yield Note(
        "as-compiled",
        "instructions, fusions, layouts, the schedule and the compiler's own rematerialisation are "
        "those of the compiled module, and memory spaces too, except for arrays that outgrow fast "
        f"memory; the compiler may choose others: {SAME_MESH}",
    )
    if result.new_mesh is not None:
        yield Note(
            "other-mesh",
            "the partitioner may choose other collectives on another mesh; wire bytes assume the "
            f"collectives of the compiled module: {OTHER_MESH}",
        )
    dimensions, followed, assumed, constant, conflicts, _, unsharded = result._coverage
    if constant or assumed:
        yield Note(
            "unattributed",
            f"{constant:,} of {dimensions:,} dimensions follow from no parameter and stay as they "
            f"are; {assumed:,} are attributed by an assumption",
            dimensions=dimensions,
            followed=followed,
            assumed=assumed,
            constant=constant,
        )
    if conflicts:
        yield Note(
            "contradictions",
            f"dimensions of {conflicts:,} instructions contradict each other; the first attribution"
            " counts",
            instructions=conflicts,
        )
    if unsharded:
        yield Note(
            "unsharded",
            f"the sharding of {unsharded:,} entry parameters is unknown; their dimensions do not "
            "follow the mesh",
            parameters=unsharded,
        )
    _, rounded, loops, groups = result._scaled
    if rounded:
        yield Note(
            "rounded",
            f"{rounded:,} dimensions do not divide evenly and are rounded up, as XLA pads them",
            dimensions=rounded,
        )
    if loops:
        yield Note(
            "assumed-loops",
            f"the trip counts of {len(loops):,} loops over devices are assumed to follow the mesh "
            "axis",
            loops=len(loops),
        )
    if groups:
        yield Note(
            "unchanged-groups",
            f"{len(groups):,} collectives follow no mesh axes and keep their devices",
            collectives=len(groups),
        )
    if result.policy is not None:
        yield Note(
            "policy",
            "the figures under another checkpoint policy are modelled: see `hlofast remat --help`",
        )
