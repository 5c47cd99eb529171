"""What would make a step fit that no checkpoint policy makes fit, with the bytes of each change."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._memory import quiet
from hlofast._shares import shares
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._module import Module
    from hlofast._policy import Policy

FIELDS = (
    Field("word", "change", "What to change: batch, accumulation, mesh or dtype."),
    Field(
        "count",
        "factor",
        "The factor of the change: times smaller, or times more devices; unknown where nothing is "
        "divided.",
        nullable=True,
    ),
    Field("bytes", "saved", "Modelled bytes by which the change reduces the lowest peak."),
    Field(
        "bytes",
        "peak",
        "Modelled bytes at the lowest peak with the change.",
        label="peak with change",
    ),
    Field(
        "word",
        "enough",
        "Whether the change alone makes the step fit, with the margin of a policy: yes or no.",
    ),
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
    the smallest factor that is enough, of the powers of two up to `MOST_PARTS`, otherwise the
    largest. Empty where the bytes are not known.
    """
    module = lowest._policies.module
    try:
        memory = quiet(module)
        share = _share_of_one(module)
    except OverflowError:  # No change makes sizes fit that exceed 64 bits.
        return of_rows(FIELDS, ())
    if share is None:
        return of_rows(FIELDS, ())
    classes = {row["class"]: int(int(row["bytes"] or 0) * share) for row in memory.by("class")}
    state = sum(classes.get(name, 0) for name in _STATE)
    weights = sum(classes.get(name, 0) for name in _OF_WEIGHTS)
    wide = int(classes.get("optimizer_state", 0) * _share_of_float32(memory.values()))
    of_batch = max(lowest.peak - weights, 0)
    # Accumulation adds a copy of the gradients, in float32 as large as float32 parameters.
    gradients = classes.get("gradient", 0) or classes.get("parameter", 0)
    batch, parts = _parts(of_batch, missing), _parts(of_batch, missing + gradients)
    shards = _parts(state, missing)
    found: list[tuple[str, int | None, int, str]] = [
        (
            "batch",
            batch,
            _saved(of_batch, batch),
            f"a batch per device of 1/{batch}, or a sequence sharded over {batch} devices",
        ),
        (
            "accumulation",
            parts,
            _saved(of_batch, parts) - gradients,
            f"the same batch in {parts} parts, with accumulated gradients",
        ),
        (
            "mesh",
            shards,
            _saved(state, shards),
            f"parameters and optimizer state sharded over {shards} times as many devices",
        ),
        ("dtype", None, wide // 2, "optimizer state in bfloat16"),
    ]
    told = [
        (name, factor, saved, lowest.peak - saved, "yes" if saved >= missing else "no", how)
        for name, factor, saved, how in found
        if saved > 0
    ]
    return of_rows(FIELDS, sorted(told, key=lambda own: (own[4] == "no", -own[2])))


def in_words(table: Table, hbm: int) -> str:
    """The changes that would do, or that none would and the smallest need that one reaches."""
    every = table.to_pylist()
    enough = [row for row in every if row["enough"] == "yes"]
    if enough:
        ways = "; ".join(f"{row['how']} (about {row['saved']:,} B less)" for row in enough)
        return f"what helps: {ways}"
    if not every:
        return ""
    least = min(every, key=lambda row: int(row["peak"]))
    return (
        f"no single change of batch, accumulation or mesh, by a factor of up to {MOST_PARTS}, or "
        f"of the type of the optimizer state is enough: the lowest peak that one reaches is about "
        f"{least['peak']:,} B ({hbm:,} B available), with {least['how']}"
    )


def _share_of_one(module: Module) -> float | None:
    """The share of one device in weights, where shapes cover several; None if unknown."""
    own = shares(module)
    if own is None:
        return 1.0
    held, whole = own.bytes_of(own.parameters)[0], sum(own.parameters.values("bytes"))
    return None if held is None or not whole else held / whole


def _parts(size: int, missing: int) -> int:
    """The parts of `size` bytes of which one leaves `missing` bytes free; the most if none does."""
    parts = (1 << power for power in range(1, MOST_PARTS.bit_length()))
    return next((own for own in parts if _saved(size, own) >= missing), MOST_PARTS)


def _saved(size: int, parts: int) -> int:
    return size - -(-size // parts)


def _share_of_float32(values: Table) -> float:
    """The share of float32 in the optimizer state."""
    rows = zip(*(values.values(name) for name in ("class", "shape", "bytes")), strict=True)
    state = [(shape, size or 0) for kind, shape, size in rows if kind == "optimizer_state"]
    wide = sum(size for shape, size in state if str(shape).startswith("f32["))
    return wide / max(sum(size for _, size in state), 1)
