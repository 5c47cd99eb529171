"""Facts and notes of `Cost`."""

from __future__ import annotations

from hlofast import _text
from hlofast._context import ran_on
from hlofast._core import Field
from hlofast._matmuls import unknown_products
from hlofast._result import Note
from hlofast._shares import note, shares

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast._cost import Cost

MODEL = "modelled: operands read once, results written once, none inside fusions"
FACTS = (
    Field("text", "way", "The way of counting: as executed, or like XLA.", label="counted"),
    Field("word", "backend", "The backend whose shape sizes were used.", label="shape sizes"),
    Field("flops", "flops", "FLOPs of one run, without transcendentals.", label="FLOP"),
    Field("count", "transcendentals", "Transcendental functions of one run."),
    Field("bytes", "bytes_accessed", "Bytes read and written in all memory spaces."),
    Field("bytes", "bytes_read", "Bytes read from memory space 0.", label="HBM read"),
    Field("bytes", "bytes_written", "Bytes written to memory space 0.", label="HBM written"),
    Field("text", "bytes_model", "Which bytes are counted as moved.", label="byte counting"),
    Field("count", "matmuls", "Matmuls and convolutions; each instruction counts once."),
    Field("flops", "matmul_flops", "FLOPs of matmuls and convolutions.", label="matmul FLOP"),
    Field(
        "flops",
        "device_matmul_flops",
        "The fewest FLOPs of matmuls on one device.",
        label="matmul FLOP per device",
    ),
    Field(
        "flops",
        "device_matmul_flops_most",
        "The most FLOPs of matmuls on one device.",
        label="at most",
    ),
    Field(
        "ratio",
        "determined_share",
        "Share of the matmul FLOPs for which the shardings determine the FLOPs of one device.",
        label="determined",
    ),
    Field("ratio", "matmul_share", "Share of matmuls and convolutions in the total FLOPs."),
    Field("seconds", "step_seconds", "Measured step time.", label="step"),
    Field("number", "peak_flops", "Peak FLOP/s of a device.", label="peak FLOP/s"),
    Field(
        "count",
        "num_devices",
        "Devices that share the FLOPs, whose peaks MFU adds up.",
        label="devices for MFU",
    ),
    Field(
        "ratio",
        "mfu",
        "Model FLOPs utilisation: share of the peak, without recomputation and copied matmuls.",
        label="MFU",
    ),
    Field(
        "ratio",
        "hfu",
        "Hardware FLOPs utilisation: share of the peak, with recomputation and copied matmuls.",
        label="HFU",
    ),
    Field("ratio", "matmul_mfu", "MFU of matmuls and convolutions only.", label="matmul MFU"),
    Field("ratio", "matmul_hfu", "HFU of matmuls and convolutions only.", label="matmul HFU"),
)


def values(cost: Cost) -> Iterator[tuple[str, Any, str]]:
    """The totals in order: name, value, provenance."""
    way = "as XLA's HloCostAnalysis" if cost.xla else "as executed"
    yield "way", way, "exact"
    yield "backend", cost.backend, "exact"
    # XLA's 32-bit sums may overflow to infinity, and so may shares of a tiny peak.
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
    """Provenance of the total FLOPs: the weakest of its parts."""
    if cost.xla:
        return "exact"
    if cost.misses_flops:
        return "bound"
    by = cost.flops_by_provenance
    if by["assumed"]:
        return "assumed"
    if by["modelled"] or by["unknown"]:
        return "modelled"
    return "configuration" if by["from_backend_config"] else "exact"


def _products(cost: Cost) -> Iterator[tuple[str, Any, str]]:
    products = {fact.name: fact for fact in cost.matmuls().facts}
    yield "matmuls", products["matmuls"].value, "exact"
    if cost.xla:
        return  # XLA counts each matmul once, however often it runs.
    flops = products["flops"]
    yield "matmul_flops", flops.value, flops.provenance
    own = shares(cost.module)
    if own is not None and own.is_written:
        _, least, most = own.flops
        yield "device_matmul_flops", least, "modelled" if least == most else "bound"
        if least != most:
            yield "device_matmul_flops_most", most, "bound"
        yield "determined_share", own.determined, "exact"
    share = flops.value / cost.flops if cost.flops else None
    yield "matmul_share", share, flops_provenance(cost).replace("bound", "modelled")


def _utilization(cost: Cost) -> Iterator[tuple[str, Any, str]]:
    seconds = cost.step_seconds
    if cost.xla or seconds is None or cost.peak_flops is None or cost.refuses_mfu:
        return
    context = cost.module.context
    is_profiled = context.sources.get("step_seconds") == "profile"
    if is_profiled and context.device is not None and not ran_on(cost.module, context.device):
        return  # The step of one kind of device has no share of the peak of another.
    used = cost.mfu(seconds)
    yield "step_seconds", seconds, "measured" if is_profiled else "assumed"
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
        # libtpu uses cost estimates and knows some of its own calls; other backends do not know
        # any.
        calls = "every custom call as -1 FLOP and -1 byte"
        if cost.backend == "tpu":
            calls = "custom calls by their cost estimate, or as -1 FLOP and -1 byte"
        yield Note("xla", f"XLA counts every loop once, and {calls}")
    if dead := cost._data.dead_rows().tolist():
        flops = cost._data.column("flops")
        yield Note(
            "dead",
            f"{_text.counted(len(dead), 'dead instruction')} (first: {cost.module[dead[0]].name}) "
            f"counted, although the compiler removes dead code before the program runs",
            instructions=len(dead),
            flops_once=sum(flops[row] for row in dead),
        )
    if not cost.xla:
        yield from _about_unknown(cost)
        yield from _about_copies(cost)
    if None in cost.computations.values("multiplicity"):
        text = "some call counts exceed 64 bits; totals are lower bounds"
        yield Note("overflow", text)
    if not cost._data.has_scopes:
        text = (
            "no instruction has an op_name, so phases, scopes and recomputation are unknown; MFU "
            "equals HFU"
        )
        yield Note("no-names", text)
    elif (unattributed := _unattributed(cost)) is not None:
        yield unattributed
    if cost.scopes_are_merged:
        yield Note(
            "merged-scopes",
            "computations have too many call sites to keep their scopes apart; each is listed "
            "under one of its call sites",
        )


def _about_module(cost: Cost) -> Iterator[Note]:
    summary = cost.module.summary()
    values = summary.values
    partitions = values["num_partitions"]
    if summary.is_unfused:
        ports = (values["parameter_bytes"], values["output_bytes"])
        least = None if None in ports else sum(ports)
        yield Note(
            "unfused",
            f"{summary._fewer_bytes}, and at least {_text.size(least)} to read parameters and "
            "write results once",
            lower_bound_bytes=least,
        )
    together = note(cost.module)
    if together is not None:
        yield together
    elif partitions > 1:
        text = f"partitioned: figures are per device, of {partitions:,} devices"
        yield Note("per-device", text, num_partitions=partitions)


def flops_of_copies(cost: Cost) -> int:
    """FLOPs of matmuls that repeat another one in another fusion."""
    again = set(cost._data.repeated_products().tolist())
    if not again:
        return 0
    rows = cost.matmuls().to_pylist()
    return sum(row["flops"] or 0 for row in rows if row["instruction"] in again)


def _about_copies(cost: Cost) -> Iterator[Note]:
    copies = len(cost._data.repeated_products())
    if copies:
        flops = cost.repeated_matmul_flops
        share = flops / cost.flops if cost.flops else 0.0
        yield Note(
            "repeated-matmuls",
            f"the compiler computes {_text.counted(copies, 'matmul')} again, in the fusions of "
            f"other users, instead of storing the result: {100 * share:.1f} % of the FLOPs, "
            "counted in HFU but not in MFU",
            matmuls=copies,
            flops=flops,
        )


def _about_unknown(cost: Cost) -> Iterator[Note]:
    conditionals = len(set(cost.branches.values("instruction")))
    if conditionals:
        yield Note(
            "branches",
            f"{_text.counted(conditionals, 'conditional')}: only the branch with the most FLOPs "
            "counts",
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


def assumed_flops(cost: Cost) -> Iterator[Note]:
    """A note if FLOPs are assumed: of branches, and of kernels whose mask is assumed."""
    assumed = cost.flops_by_provenance["assumed"]
    if assumed and not cost.xla:
        yield Note(
            "assumed-flops",
            f"{_text.share(assumed, cost.flops)} of the FLOPs are assumed: of branches that may "
            "not run, or of kernels whose mask is assumed; `hlofast cost` lists the conditionals",
            flops=assumed,
        )


def _unattributed(cost: Cost) -> Note | None:
    """Returns a note on the cost without a known phase."""
    for row in cost.by("phase"):
        if row["phase"] == "unattributed" and (row["flops"] or row["bytes_accessed"]):
            flops = _text.share(row["flops"], cost.flops)
            moved = _text.share(row["bytes_accessed"], cost.bytes_accessed)
            figures = ("instructions", "flops", "transcendentals", "bytes_accessed")
            text = f"{flops} of the FLOPs and {moved} of the bytes belong to no known phase"
            return Note("unattributed", text, **{name: row[name] for name in figures})
    return None
