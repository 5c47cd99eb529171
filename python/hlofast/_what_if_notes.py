"""Notes of `WhatIf`: what its figures take for granted, and what cannot be attributed."""

from __future__ import annotations

from hlofast import _memory, _policy_notes, _what_if_decided
from hlofast._policy_fields import error_of
from hlofast._result import Note
from hlofast._text import counted, names, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._what_if import WhatIf

MEASURED = (
    "of 66 changes on the same mesh of held-out train steps of decoders, compiled, the text "
    "decides all wire bytes in 100 %, which are exact in all of them, and the peak in 42 %, of "
    "which 93 % are within 5 % (88 % of all peaks); other programs may be further off"
)
OTHER_MESH = (
    "of 104 such changes of the mesh the text decides all wire bytes in 35 %, which are exact in "
    "all of them, and the peak in 17 %, which are all within 5 % (94 % of all peaks); modelled "
    "wire bytes are exact in all 104, which promises nothing for programs unlike these"
)
"""Errors of changes, by `benches/what_if_accuracy.py` on all programs of `what_if_models.py`."""
_ADDS_ROWS = (
    "; devices exchange rows of tokens only after the change, and where collectives start in "
    "fusions, as on v5e, the head's gradient is taken to wait for that (22 such changes, compiled: "
    "20 peaks within 1.5 %, two 3 and 7 % too high)"
)
AS_COMPILED = (
    "instructions, fusions, layouts, memory spaces, the schedule and XLA's rematerialisation are "
    "those of the compiled module; only arrays that outgrow fast memory move to HBM; XLA may "
    f"choose differently: {MEASURED}"
)
NOT_SCHEDULED = (
    "the text is optimised, but not scheduled: text order stands in for the schedule, which XLA "
    "has not chosen yet, and XLA may still rematerialise values; instructions, fusions, layouts "
    "and memory spaces are those of the text, and XLA may choose differently"
)
MISSING = {
    "batch": "no entry parameter is found that holds a batch: integers, or arrays that share their "
    "first dimension with them, which no result replaces",
    "sequence": "no input has a second dimension larger than 1 that is not the width of the model",
    "layers": "no loop takes one slice of stacked parameters per iteration; layers without a loop "
    "cannot change",
}
"""By role: why it has no symbol."""


_STAGES = (
    "no loop runs over layers: a loop passes values along {axis}, whose {size:,} devices each hold "
    "one of the {size:,} slices of weights; layers in pipelined stages cannot change"
)


def missing(result: WhatIf, role: str) -> str:
    """Returns why a role has no symbol."""
    if role == "layers" and (axis := _stages(result)) is not None:
        name, size = axis
        return _STAGES.format(axis=name, size=size)
    return MISSING[role]


def _stages(result: WhatIf) -> tuple[str, int] | None:
    """The axis along which a loop passes values from stage to stage, and its devices.

    Each device of the axis then holds one slice of most parameters, its stage. Axes along which
    matmuls or attention pass shards around split longer dimensions; experts are few parameters.
    """
    devices = result.mesh.shape if result.mesh is not None else {}
    parameters: set[str] = set()
    held: dict[str, set[str]] = {}
    for own in result.symbols:
        if own.role in ("batch", "sequence"):
            continue
        names_of = {name for name, _ in own.parameters}
        parameters |= names_of
        if len(own.axes) == 1 and own.size == devices.get(own.axes[0]):
            held.setdefault(own.axes[0], set()).update(names_of)
    staged = {axis for axis, own in held.items() if len(own) > len(parameters) / 2}
    for row in result.module.collectives()._ordered():
        is_passed = row["kind"] == "collective-permute" and "/while/" in (row["op_name"] or "")
        if is_passed and row["axes"] in staged:
            return row["axes"], devices[row["axes"]]
    return None


def _undecided(result: WhatIf) -> Iterator[Note]:
    counts: dict[str, int] = {}
    for reason in result.undecided.values():
        counts[reason] = counts.get(reason, 0) + 1
    for reason, count in sorted(counts.items()):
        yield Note(
            f"undecided-{reason}",
            f"{counted(count, 'collective')} {'is' if count == 1 else 'are'} not decided by the "
            f"text ({reason}): {_what_if_decided.WHY[reason]}",
            collectives=count,
        )
    rings = result._rings
    if rings.sent:
        assumption = (
            "; where devices lie is an assumption: as in the usual slice with as many chips, in "
            "JAX's order"
        )
        yield Note(
            "rings",
            f"matmuls along {names([str(own) for own in rings.sent], most=3)} pass shards around a "
            "ring on the old mesh, the new one or both: modelled wire bytes count the transfers or "
            "collectives of the new mesh, the peak and times those of the text"
            + (assumption if rings.assumes else ""),
            axes=len(rings.sent),
        )
    lookups = result._lookups
    if lookups is not None and lookups.is_other:
        yield Note(
            "other-lookup",
            "the partitioner splits table lookups differently: wire bytes count the collectives "
            "that XLA's rules make of the new sizes, which reproduce those of the text; the peak "
            "and times use the lookup as compiled" + (_ADDS_ROWS if lookups.adds_rows else ""),
            collectives=len(lookups.removed),
        )
    if lookups is not None and lookups.padded:
        yield Note(
            "padded-lookup",
            "the text does not say how XLA pads the shards of a table whose gradients it then sums "
            "into shards",
            axes=len(lookups.padded),
        )
    reasons = result.peak_undecided
    is_open = _what_if_decided.PART in reasons or bool(result._derived.share)
    if reasons:
        yield Note(
            "undecided-peak",
            "the text does not decide the peak: "
            + "; ".join(_what_if_decided.WHY[reason] for reason in reasons)
            + "; the range is that of the errors of such changes"
            + (", and of sizes that may follow or stay" if is_open else ""),
        )
    modules = (result.module, result.changed)
    if any(_what_if_decided.counts_fast_memory(own) for own in modules):
        yield Note(
            "fast-heap",
            "the XLA peak counts the heap of fast memory, where it is the largest heap: XLA's own "
            "peak may then fall when sizes grow, since arrays that outgrow fast memory leave it; "
            "compare HBM with the bytes allocated in HBM",
        )
    known, needed = _memory.quiet(result.changed).hbm, result.needed
    if known is not None and needed is not None and needed[0] <= known[0] < needed[1]:
        yield Note(
            "undecided-fits",
            "the text does not decide whether the changed step fits: it may need from "
            f"{size(needed[0])} to {size(needed[1])}",
            least=needed[0],
            most=needed[1],
        )
    if result.ignores_batch:
        yield Note(
            "undecided-flops",
            "the text does not decide FLOPs and times: matmuls compute as much with the other "
            f"batch, since {_what_if_decided.WHY[_what_if_decided.LOOPS]}; FLOPs have a range, "
            "from none of the work to all of it following the batch",
            share=1.0,
        )
        return
    share = result._followed
    if share is not None and _what_if_decided.is_in_part(result):
        yield Note(
            "batch-in-part",
            f"FLOPs of matmuls follow {share:.0%} of the change of the batch: the text does not "
            "tie a part of the step to the input, as with a random order of tokens, or loops of "
            "the program over parts of the batch; figures keep that part as compiled, FLOPs have a "
            "range, and times are unknown",
            share=share,
        )
    yield from _derived(result)
    if share := result.flops_undecided:
        yield Note(
            "undecided-flops",
            f"the text does not decide FLOPs and times: matmuls with {share:.0%} of the FLOPs may "
            "compute more or less, since dimensions of one element, which compiled shapes lack, "
            "grow, or the program itself says what each device computes",
            share=share,
        )
    elif result.moves_work and result.time_undecided:
        yield Note(
            "conserved-work",
            f"FLOPs differ by {result.moves_work:+,} from those of the changed text, whose times "
            "are not shown: matmuls that pass shards around a ring, or lack a dimension of one "
            "element, have shapes that are divided twice, and the work of all devices together "
            "stays",
            flops=result.moves_work,
        )


def _derived(result: WhatIf) -> Iterator[Note]:
    """What is taken to follow the sequence, or looks as if it should."""
    derived = result._derived
    if derived.followed:
        own = [f"{size:,} → {new:,}" for size, new, _ in derived.followed]
        of = ", ".join(dict.fromkeys(f"{whole:,}" for _, _, whole in derived.followed))
        yield Note(
            "derived-sizes",
            f"sizes that follow from no parameter are taken to follow the size {of}, as behind "
            f"strided convolutions: {names(own, most=3)}",
            sizes=len(own),
        )
    if derived.share:
        own = [f"{size:,}" for size in derived.sizes]
        yield Note(
            "not-scaled",
            f"matmuls with {derived.share:.0%} of the FLOPs keep sizes that may be derived from "
            f"the changed one: {names(own, most=3)}; FLOPs and the peak have a range, from these "
            "sizes as compiled to all of them scaled, and times are unknown",
            share=derived.share,
        )


def _beside(result: WhatIf) -> Iterator[Note]:
    """Another input may have a fraction of the sequence, as labels of each fourth frame."""
    for number, new in result.asked.items():
        own = result.symbols[number]
        if own.role != "sequence" or own.size == new:
            continue
        for other in result.symbols:
            is_asked = other.role != "sequence" or other.number in result.asked
            if is_asked or own.size % other.size or other.size in (1, own.size):
                continue
            yield Note(
                "other-sequence",
                f"{other.name} has {other.size:,}, {own.size // other.size:,} times fewer than "
                f"{own.name}, and stays, with all work of its size: change both if it follows",
                size=other.size,
            )


def _shared(result: WhatIf) -> Iterator[Note]:
    """A sequence may be the width of the model: a dimension of an input that weights share."""
    inputs = {name for own in result.symbols if own.role == "batch" for name, _ in own.parameters}
    for own in result.symbols:
        others = sorted({name for name, _ in own.parameters} - inputs)
        if own.role == "sequence" and own.number in result.asked and others:
            text = f"the sequence is a dimension of {names(others, most=3)} too: if it is the width"
            yield Note("shared-sequence", f"{text} of the model, the figures are of another width")


def notes(result: WhatIf) -> Iterator[Note]:
    """Yields the notes of a result."""
    summary = result.module.summary()
    if summary.is_unfused:
        yield Note(
            "not-compiled",
            f"the text is {summary.status}: XLA has not fused and scheduled it yet; figures after "
            "the change are those of the same text with other sizes",
        )
    elif summary.values["is_scheduled"]:
        yield Note("as-compiled", AS_COMPILED)
    else:
        yield Note("not-scheduled", NOT_SCHEDULED)
    if result.new_mesh is not None:
        yield Note(
            "other-mesh",
            f"the partitioner may choose other collectives on another mesh: {OTHER_MESH}",
        )
    yield from _undecided(result)
    yield from _beside(result)
    yield from _shared(result)
    devices = result.devices_together
    if max(devices) > 1:
        counts = " and ".join(f"{count:,}" for count in dict.fromkeys(devices))
        yield Note(
            "global",
            f"not partitioned yet: FLOPs are those of all {counts} devices, times those of one "
            "device alone that does all their work; wire bytes and exposed communication are "
            "unknown",
            num_partitions=devices[1],
        )
    if (policies := _memory.quiet(result.module).peak_before) is not None:
        yield Note(
            "modelled-peak",
            f"the peak is modelled: the bytes that one device needs once XLA has compiled the "
            f"step; {error_of(policies)}",
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
            f"dimensions of {counted(conflicts, 'instruction')} contradict each other; the first "
            "attribution counts",
            instructions=conflicts,
        )
    if unsharded:
        yield Note(
            "unsharded",
            f"the sharding of {counted(unsharded, 'entry parameter')} is unknown; their dimensions "
            "do not follow the mesh",
            parameters=unsharded,
        )
    _, rounded, loops, groups, _ = result._scaled
    if rounded:
        yield Note(
            "rounded",
            f"rounded up, as XLA pads what does not divide evenly: {counted(rounded, 'dimension')}",
            dimensions=rounded,
        )
    if loops:
        yield Note(
            "assumed-loops",
            f"the trip counts of {counted(len(loops), 'loop')} over devices are assumed to follow "
            "the mesh axis",
            loops=len(loops),
        )
    if groups:
        yield Note(
            "unchanged-groups",
            f"left to the same devices, along no mesh axes: {counted(len(groups), 'collective')}",
            collectives=len(groups),
        )
    if result.policy is not None:
        yield Note(
            "policy",
            "under another checkpoint policy wire bytes have no figure: on 26 programs compiled "
            "under it they are exact in 2; FLOPs are up to 30 % too many where the compiler "
            "recomputes on its own as compiled",
        )
        yield from _policy_notes.of_errors(result.policy._policies)
