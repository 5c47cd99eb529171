"""What would make a step fit that no checkpoint policy makes fit, with the bytes of each change."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._memory import quiet
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._policy import Policy

FIELDS = (
    Field("word", "change", "What to change: batch, accumulation, mesh or dtype."),
    Field("bytes", "saved", "Bytes that the change takes off the lowest peak; modelled."),
    Field("word", "enough", "Whether the change alone makes the step fit: yes or no."),
    Field("text", "how", "The change in words."),
)
_STATE = ("parameter", "optimizer_state")
_OF_WEIGHTS = (*_STATE, "gradient", "gathered_weight", "constant")
"""Classes of values whose bytes do not depend on the batch."""


def remedies(lowest: Policy, missing: int) -> Table:
    """The changes that lower the peak of `lowest`, the most effective first.

    Bytes of weights, their gradients and the optimizer state are those at the peak of the step as
    compiled; the rest of the lowest peak is taken to be proportional to the batch. Empty where they
    are not known.
    """
    try:
        memory = quiet(lowest._policies.module)
    except OverflowError:  # No change makes sizes fit that exceed 64 bits.
        return of_rows(FIELDS, ())
    classes = {row["class"]: int(row["bytes"] or 0) for row in memory.by("class")}
    state = sum(classes.get(name, 0) for name in _STATE)
    weights = sum(classes.get(name, 0) for name in _OF_WEIGHTS)
    wide = int(classes.get("optimizer_state", 0) * _share_of_float32(memory.values()))
    by_batch = max(lowest.peak - weights, 0) // 2
    # Accumulation adds a copy of the gradients, in float32 as large as float32 parameters.
    gradients = classes.get("gradient", 0) or classes.get("parameter", 0)
    found = [
        (
            "batch",
            by_batch,
            "a batch per device half as large, or a sequence sharded over 2 devices",
        ),
        (
            "accumulation",
            by_batch - gradients,
            "the same batch in 2 parts, with accumulated gradients",
        ),
        ("mesh", state // 2, "parameters and optimizer state sharded over twice as many devices"),
        ("dtype", wide // 2, "optimizer state in bfloat16"),
    ]
    found = sorted((own for own in found if own[1] > 0), key=lambda own: -own[1])
    told = [(name, saved, "yes" if saved >= missing else "no", how) for name, saved, how in found]
    return of_rows(FIELDS, told)


def _share_of_float32(values: Table) -> float:
    """The share of float32 in the optimizer state."""
    rows = zip(*(values.values(name) for name in ("class", "shape", "bytes")), strict=True)
    state = [(shape, size or 0) for kind, shape, size in rows if kind == "optimizer_state"]
    wide = sum(size for shape, size in state if str(shape).startswith("f32["))
    return wide / max(sum(size for _, size in state), 1)
