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
MOST_PARTS = 64
"""Limit on the parts of a batch, and on the devices that share what one holds now."""


def remedies(lowest: Policy, missing: int) -> Table:
    """The changes that lower the peak of `lowest`, first those that are enough.

    Bytes of weights, their gradients and the optimizer state are those at the peak of the step as
    compiled; the rest of the lowest peak is taken to be proportional to the batch. Each change has
    the smallest factor that is enough, of the powers of two up to `MOST_PARTS`, otherwise 2. Empty
    where the bytes are not known.
    """
    try:
        memory = quiet(lowest._policies.module)
    except OverflowError:  # No change makes sizes fit that exceed 64 bits.
        return of_rows(FIELDS, ())
    classes = {row["class"]: int(row["bytes"] or 0) for row in memory.by("class")}
    state = sum(classes.get(name, 0) for name in _STATE)
    weights = sum(classes.get(name, 0) for name in _OF_WEIGHTS)
    wide = int(classes.get("optimizer_state", 0) * _share_of_float32(memory.values()))
    of_batch = max(lowest.peak - weights, 0)
    # Accumulation adds a copy of the gradients, in float32 as large as float32 parameters.
    gradients = classes.get("gradient", 0) or classes.get("parameter", 0)
    batch, parts = _parts(of_batch, missing), _parts(of_batch, missing + gradients)
    shards = _parts(state, missing)
    found = [
        (
            "batch",
            _saved(of_batch, batch),
            f"a batch per device of 1/{batch}, or a sequence sharded over {batch} devices",
        ),
        (
            "accumulation",
            _saved(of_batch, parts) - gradients,
            f"the same batch in {parts} parts, with accumulated gradients",
        ),
        (
            "mesh",
            _saved(state, shards),
            f"parameters and optimizer state sharded over {shards} times as many devices",
        ),
        ("dtype", wide // 2, "optimizer state in bfloat16"),
    ]
    told = [
        (name, saved, "yes" if saved >= missing else "no", how)
        for name, saved, how in found
        if saved > 0
    ]
    return of_rows(FIELDS, sorted(told, key=lambda own: (own[2] == "no", -own[1])))


def _parts(size: int, missing: int) -> int:
    """The parts of `size` bytes of which one leaves `missing` bytes free; 2 if no number does."""
    parts = (1 << power for power in range(1, MOST_PARTS.bit_length()))
    return next((own for own in parts if _saved(size, own) >= missing), 2)


def _saved(size: int, parts: int) -> int:
    return size - -(-size // parts)


def _share_of_float32(values: Table) -> float:
    """The share of float32 in the optimizer state."""
    rows = zip(*(values.values(name) for name in ("class", "shape", "bytes")), strict=True)
    state = [(shape, size or 0) for kind, shape, size in rows if kind == "optimizer_state"]
    wide = sum(size for shape, size in state if str(shape).startswith("f32["))
    return wide / max(sum(size for _, size in state), 1)
