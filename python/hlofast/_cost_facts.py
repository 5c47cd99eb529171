"""The totals of a module's cost, and what to keep in mind about them."""

from __future__ import annotations

from hlofast import _text
from hlofast._core import Field
from hlofast._matmuls import unknown_products
from hlofast._result import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast._cost import Cost

MODEL = "modelled: each operand read once, each result written once, nothing inside fusions"
FACTS = (
    Field("text", "way", "How it was counted: as executed, or as XLA counts.", label="counted"),
    Field("word", "backend", "The backend whose sizes of shapes were used.", label="sizes of"),
    Field("flops", "flops", "Operations of one run, transcendentals apart.", label="FLOP"),
    Field("count", "transcendentals", "Transcendental functions of one run."),
    Field("bytes", "bytes_accessed", "Bytes read and written in all memory spaces."),
    Field("bytes", "bytes_read", "Bytes read from memory space 0.", label="HBM read"),
    Field("bytes", "bytes_written", "Bytes written to memory space 0.", label="HBM written"),
    Field("text", "bytes_model", "What counts as a byte that is moved.", label="bytes are"),
    Field("count", "matmuls", "Matrix products and convolutions, each instruction once."),
    Field("flops", "matmul_flops", "FLOPs of matmuls and convolutions.", label="matmul FLOP"),
    Field("ratio", "matmul_share", "Their part of all FLOPs."),
    Field("seconds", "step_seconds", "How long a step took.", label="step"),
    Field("number", "peak_flops", "Peak of a device in FLOP per second.", label="peak FLOP/s"),
    Field("count", "num_devices", "Devices that the FLOPs were divided among.", label="devices"),
    Field("ratio", "mfu", "Part of the peak used, without recomputation.", label="MFU"),
    Field("ratio", "hfu", "Part of the peak used, with recomputation.", label="HFU"),
    Field("ratio", "matmul_mfu", "MFU of matmuls and convolutions alone.", label="matmul MFU"),
    Field("ratio", "matmul_hfu", "HFU of matmuls and convolutions alone.", label="matmul HFU"),
)


def values(cost: Cost) -> Iterator[tuple[str, Any, str]]:
    """The totals in order: name, value, provenance."""
    way = "as XLA's HloCostAnalysis" if cost.xla else "as executed"
    yield "way", way, "exact"
    yield "backend", cost.backend, "exact"
    # XLA's additions of 32-bit floats may end in infinity, as may shares of a tiny peak.
    yield "flops", _text.finite(cost.flops), flops_provenance(cost)
    transcendentals = "bound" if cost.misses_flops else "exact"
    yield "transcendentals", _text.finite(cost.transcendentals), transcendentals
    moved = "exact" if cost.xla else "bound" if cost.misses_bytes else "modelled"
    yield "bytes_accessed", _text.finite(cost.bytes_accessed), moved
    if not cost.xla:
        yield "bytes_read", cost.bytes_read, moved
        yield "bytes_written", cost.bytes_written, moved
        yield "bytes_model", MODEL, "modelled"
    yield from _products(cost)
    yield from _utilization(cost)


def flops_provenance(cost: Cost) -> str:
    """How the FLOPs of a count are known: those that are known worst decide."""
    if cost.xla:
        return "exact"
    if cost.misses_flops:
        return "bound"
    by = cost.flops_by_provenance
    if by["modelled"] or by["unknown"]:
        return "modelled"
    return "configuration" if by["from_backend_config"] else "exact"


def _products(cost: Cost) -> Iterator[tuple[str, Any, str]]:
    products = {fact.name: fact for fact in cost.matmuls().facts}
    yield "matmuls", products["matmuls"].value, "exact"
    if cost.xla:
        return  # XLA counts each once, however often it runs.
    flops = products["flops"]
    yield "matmul_flops", flops.value, flops.provenance
    share = flops.value / cost.flops if cost.flops else None
    yield "matmul_share", share, flops_provenance(cost).replace("bound", "modelled")


def _utilization(cost: Cost) -> Iterator[tuple[str, Any, str]]:
    seconds = cost.step_seconds
    if cost.xla or seconds is None or cost.peak_flops is None:
        return
    used = cost.mfu(seconds)
    yield "step_seconds", seconds, "assumed"
    yield "peak_flops", used.peak_flops, "assumed"
    if used.num_devices > 1:
        yield "num_devices", used.num_devices, "exact"
    how = "bound" if used.is_lower_bound else "modelled"
    for name in ("mfu", "hfu", "matmul_mfu", "matmul_hfu"):
        yield name, _text.finite(getattr(used, name)), how


def notes(cost: Cost) -> Iterator[Note]:
    """The notes, in order."""
    yield from _about_module(cost)
    if cost.xla:
        # libtpu takes estimates and knows some calls of its own; other backends know none.
        calls = "every custom call -1 FLOP and -1 byte"
        if cost.backend == "tpu":
            calls = "custom calls as their estimates say, others -1 FLOP and -1 byte"
        yield Note("xla", f"XLA counts every loop once, {calls}")
    if dead := cost._data.dead_rows().tolist():
        flops = cost._data.column("flops")
        yield Note(
            "dead",
            f"{_text.counted(len(dead), 'instruction')} (first {cost.module[dead[0]].name}) "
            f"compute what nothing needs; they count here, but a compiler removes them",
            instructions=len(dead),
            flops_once=sum(flops[row] for row in dead),
        )
    if not cost.xla:
        yield from _about_unknown(cost)
    if None in cost.computations.values("multiplicity"):
        text = "some instructions run more often than 64 bits count; sums are lower bounds"
        yield Note("overflow", text)
    if not cost._data.has_scopes:
        text = "no instruction has an op_name, so that phases and scopes are not known"
        yield Note("no-names", text)
    elif (unattributed := _unattributed(cost)) is not None:
        yield unattributed
    if cost.scopes_are_merged:
        yield Note(
            "merged-scopes",
            "computations are called from too many places to tell their scopes apart; each "
            "stands under one of its call sites",
        )


def _about_module(cost: Cost) -> Iterator[Note]:
    summary = cost.module.summary()
    values = summary.values
    status, partitions = values["status"], values["num_partitions"]
    if summary.is_unfused:
        ports = (values["parameter_bytes"], values["output_bytes"])
        least = None if None in ports else sum(ports)
        yield Note(
            "unfused",
            f"the module is {status}: its bytes are unfused bytes, several times what runs after "
            f"fusion; reading its parameters and writing its results once takes "
            f"{_text.size(least)}",
            lower_bound_bytes=least,
        )
    if partitions > 1 and summary.is_whole:
        yield Note(
            "global",
            f"not partitioned yet: figures are of all {partitions:,} devices together, and there "
            "are no collectives",
            num_partitions=partitions,
        )
    elif partitions > 1:
        text = f"partitioned: figures are of one of {partitions:,} devices"
        yield Note("per-device", text, num_partitions=partitions)


def _about_unknown(cost: Cost) -> Iterator[Note]:
    conditionals = len(set(cost.branches.values("instruction")))
    if conditionals:
        yield Note(
            "branches",
            f"{_text.counted(conditionals, 'conditional')}: of each the branch with the most "
            "FLOPs counts, the others do not",
            conditionals=conditionals,
        )
    loops = zip(cost.loops.values("name"), cost.loops.values("trip_count"), strict=True)
    if endless := [name for name, trips in loops if trips is None]:
        count = _text.counted(len(endless), "loop")
        text = f"{count} of unknown trip count, counted once: {_text.names(endless)}"
        yield Note("unknown-trip-count", text, loops=len(endless))
    yield from unknown_products(cost.module, cost._data.unknown_products().tolist())
    if unknown := cost._data.unknown_rows().tolist():
        shown = [cost.module[row].name for row in unknown[: _text.SHOWN_NAMES]]
        count = _text.counted(len(unknown), "instruction")
        text = f"{count} of unknown cost: {_text.names(shown, len(unknown))}"
        yield Note("unknown", text, instructions=len(unknown))


def _unattributed(cost: Cost) -> Note | None:
    """What belongs to no phase."""
    for row in cost.by("phase"):
        if row["phase"] == "unattributed":
            flops = _text.share(row["flops"], cost.flops)
            moved = _text.share(row["bytes_accessed"], cost.bytes_accessed)
            figures = ("instructions", "flops", "transcendentals", "bytes_accessed")
            text = f"{flops} of the FLOPs and {moved} of the bytes belong to no known phase"
            return Note("unattributed", text, **{name: row[name] for name in figures})
    return None
