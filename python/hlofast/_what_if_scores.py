"""Attention scores that XLA writes to memory after a change.

XLA for TPUs makes one kernel of the matmul of queries and keys and of the softmax, if rows of
scores fit its fast memory: the largest score of a row is then a `reduce-window` beside the matmul.
Otherwise a first kernel writes the scores, and both they and the softmax are in memory in the
second. Steps with grouped queries that were compiled for v5e and v5p (`what_if_models.SCORES`) have
one kernel up to 1,664 positions and two from 1,728, for any number of heads in a group. Steps for
v6e follow another rule: they write the scores at none of these lengths.
"""

from __future__ import annotations

from hlofast._what_if_places import chip_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._core import Instruction, Shape
    from hlofast._what_if import WhatIf

_CHIPS = frozenset(("v5e", "v5p"))
_ONE_KERNEL = 1664
"""Positions up to which there is one kernel."""
_TWO_KERNELS = 1728
"""Positions from which there are two."""


def written(result: WhatIf) -> Iterator[tuple[int, Shape]]:
    """Yields the rows of the changed entry computation that become two kernels, and the scores."""
    before, after = result.module, result.changed
    if chip_of(after) not in _CHIPS:
        return
    entry = after.entry.index
    for at in after.where(opcode="reduce-window"):
        largest = after.instructions[int(at)]
        if _keys(before.instructions[largest.name]) > _ONE_KERNEL or _keys(largest) < _TWO_KERNELS:
            continue
        for fusion in largest.computation.callers:
            if fusion.opcode == "fusion" and fusion.computation.index == entry:
                yield fusion.index, largest.shape


def _keys(largest: Instruction) -> int:
    """The positions of keys in scores of as many queries; 0 for other values."""
    dimensions = largest.shape.dimensions if largest.shape.is_array else ()
    if len(dimensions) < 3 or dimensions[-1] != dimensions[-2]:
        return 0
    return dimensions[-1] or 0
