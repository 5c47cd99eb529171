"""The figures that come first in verdicts and on pages."""

from __future__ import annotations

from math import isfinite

from hlofast import _text as output
from hlofast._core import Field
from hlofast._result import Fact, Note
from hlofast._shares import TOGETHER, flops_of_one, held_by_one

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._verdict import Verdict

UNKNOWN_DEVICE = "no device given, use --device NAME (device=NAME in Python)"
UNKNOWN_MESH = "no mesh known, use --mesh data=2,model=4 (mesh=… in Python)"
FIGURES = {
    field.name: field
    for field in (
        Field("seconds", "measured_step", "The measured step time.", label="measured step"),
        Field("ratio", "measured_mfu", "MFU of the measured step.", label="measured MFU"),
        Field("seconds", "measured_exposed",
              "Measured time in which collectives run and nothing computes.",
              label="measured exposed communication"),
        Field("seconds", "measured_idle", "Measured time of the step in which nothing runs.",
              label="idle"),
        Field("seconds", "step",
              "Modelled time of a step on the device; for a directory, of its longest program.",
              label="step time"),
        Field("ratio", "mfu", "Model FLOPs utilisation: share of the device's peak.", label="MFU"),
        Field("bytes", "peak", "HBM that the program takes.", label="peak memory"),
        Field("seconds", "exposed", "Time per step that is spent waiting for collectives.",
              label="exposed communication"),
        Field("flops", "flops", "Floating-point operations of a step, or of the largest program.",
              label="FLOPs"),
        Field("bytes", "bytes", "HBM bytes read and written per step.", label="HBM traffic"),
        Field("count", "programs", "Programs in a directory."),
        Field("bytes", "live_peak", "The highest live peak of all programs."),
        Field("bytes", "modelled_peak", "The highest modelled peak of one device, over the "
              "programs that XLA has not scheduled."),
        Field("bytes", "wire_bytes", "The largest wire bytes per device of all programs."),
        Field("count", "differing", "Programs that differ between hosts."),
    )
}  # fmt: skip
"""The figures that can come first."""


class Figure:
    """A figure of the verdict."""

    __slots__ = ("how", "key", "label", "note", "text", "value")

    def __init__(
        self,
        key: str,
        label: str,
        value: float | None,
        text: str,
        note: str,
        how: str = "modelled",
    ) -> None:
        self.key = key
        self.label = label
        self.value = value
        """The number in its unit; None if unknown."""
        self.text = f"at least {text}" if how == "bound" else text
        self.note = note
        self.how = how
        """The provenance, one of `hlofast._result.PROVENANCES`."""

    def __repr__(self) -> str:
        return f"<Figure {self.label}: {self.text} ({self.how})>"

    @property
    def fact(self) -> Fact:
        """The figure as a fact with its own field."""
        return self.fact_of(FIGURES[self.key].replace(label=self.label))

    def fact_of(self, field: Field) -> Fact:
        """Returns the figure as a fact with this field."""
        value = int(self.value) if field.kind in _WHOLE and self.value is not None else self.value
        return Fact(field, value, "exact" if field.kind == "count" else self.how)

    @property
    def said(self) -> Note:
        """The basis of the figure, or the option that the figure needs."""
        return Note(self.key, f"{self.label}: {self.note}")


_WHOLE = ("bytes", "flops", "count")


def figures(verdict: Verdict) -> list[Figure]:
    """Returns the figures that come first."""
    found = []
    time = verdict.time
    if time is None:
        for key, label in (("step", "Step time"), ("mfu", "MFU")):
            found.append(Figure(key, label, None, "unknown", verdict.no_time))
    else:
        known_how = {fact.name: fact.provenance for fact in time.facts}
        step = time.step_seconds
        note = f"bound by {time.bound}; modelled, not measured"
        if time.unknown:
            note += f"; unknown and counted as 0: {', '.join(time.unknown)}"
        how = known_how["step_seconds"]
        found.append(Figure("step", "Step time", step, seconds(step), note, how))
        try:
            use = time.utilization
            note = f"HFU {output.share(use.hfu, 1)}; peak {_rate(use.peak_flops)}"
            if use.is_lower_bound:
                note += "; some FLOPs are unknown"
            text, how = str(output.share(use.mfu, 1)), known_how.get("mfu", "modelled")
            found.append(Figure("mfu", "MFU", use.mfu, text, note, how))
        except ValueError as error:
            found.append(Figure("mfu", "MFU", None, "unknown", str(error)))
    found.append(_peak(verdict))
    found.append(_exposed(verdict))
    flops = int(verdict.cost.flops)
    known = verdict.cost.flops_by_provenance
    note = f"{_counted(known, flops)}; one device, one step"
    end = ""
    if verdict.shares is not None:
        end = TOGETHER
        note = f"{_counted(known, flops)}; {flops_of_one(verdict.shares)}"
    counted = {fact.name: fact.provenance for fact in verdict.cost.facts}
    text = short(flops, "FLOP")
    found.append(Figure("flops", f"FLOPs{end}", flops, text, note, counted["flops"]))
    moved = (verdict.cost.bytes_read or 0) + (verdict.cost.bytes_written or 0)
    note = "read and written; modelled: traffic inside fusions is not counted"
    text = short_bytes(moved)
    label = f"HBM traffic{end}"
    found.append(Figure("bytes", label, moved, text, note, counted["bytes_read"]))
    return found


def _counted(known: dict[str, int], flops: int) -> str:
    """The share of FLOPs that follow from shapes, and of those that library calls state."""
    stated = known.get("from_backend_config", 0)
    exact = f"{output.share(known.get('exact', 0), flops)} exact"
    return f"{exact}, {output.share(stated, flops)} from library calls" if stated else exact


def _peak(verdict: Verdict) -> Figure:
    if verdict.memory is None:
        return Figure("peak", "Peak memory", None, "unknown", verdict.no_memory)
    memory = verdict.memory
    is_before = memory.peak_before is not None
    if verdict.shares is not None and not is_before:
        note = f"{held_by_one(verdict.shares)}; live peak{TOGETHER} {short_bytes(memory.live_peak)}"
        return Figure("peak", "Peak memory", None, "unknown", note)
    needed = memory.needed
    if needed is None:
        return Figure("peak", "Peak memory", None, "unknown", "HBM is not analysed")
    peak, how = needed
    is_xla = memory.backend == "tpu" and verdict.module.is_scheduled
    rule = "HBM peak, without fragmentation" if is_xla else "live peak"
    if is_before:
        rule = "of one device, modelled from the text before XLA has scheduled it"
    if memory.allocated_in_hbm is not None:
        gaps = short_bytes(memory.fragmentation or 0)
        rule = f"allocated in HBM, {gaps} of it fragmentation"
    hbm = verdict.hbm
    text = short_bytes(peak)
    if hbm is None:
        why = "HBM is unknown: " + (
            UNKNOWN_DEVICE
            if verdict.module.context.device is None
            else f"{verdict.module.context.device.name} has no memory figure; give --hbm"
        )
        return Figure("peak", "Peak memory", peak, text, f"{rule}; {why}", how)
    note = f"{rule}; {output.share(peak, hbm)} of {short_bytes(int(hbm))} of HBM"
    if peak > hbm:
        note += f"; {short_bytes(peak - int(hbm))} over"
    return Figure("peak", "Peak memory", peak, text, note, how)


def _exposed(verdict: Verdict) -> Figure:
    label = "Exposed communication"
    if verdict.shares is not None:
        return Figure("exposed", label, None, "unknown", verdict.no_time)
    if not len(verdict.collectives):
        return Figure("exposed", label, 0.0 if verdict.time else None, "none", "no collectives")
    if verdict.time is None:
        return Figure("exposed", label, None, "unknown", verdict.no_time)
    exposed = verdict.time.exposed
    total = sum(exposed.values())
    parts = [f"{axes} {seconds(value)}" for axes, value in exposed.items() if value]
    note = f"{output.share(total, verdict.time.step_seconds)} of the step"
    if parts:
        note += f": {', '.join(parts)}"
    return Figure("exposed", label, total, seconds(total), note)


def _rate(value: float) -> str:
    return short(round(value), "FLOP/s") if isfinite(value) else f"{value} FLOP/s"


def short(count: int, unit: str) -> str:
    """Returns a number in short: `631.36 GFLOP`."""
    return output.quantity(count, unit).partition(" (")[0]


def seconds(value: float) -> str:
    """Returns a duration in short: `12.3 ms`."""
    return output.seconds(value).replace(" us", " µs")


def short_bytes(count: int) -> str:
    """Returns bytes in short: `1.21 GiB`."""
    scale, unit = output.binary(count)
    return f"{count:,} B" if scale == 1 else f"{count / scale:,.2f} {unit}"
