"""The parts of a modelled step, with the range that the model's errors give."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._profile_fields import OF_CALLS
from hlofast._result import Section
from hlofast.devices import FITTED
from hlofast.table import Table, of_rows, shares

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._time import Time
    from hlofast.devices import Device

RANGES = {
    "gpu": {
        "compute": (0.80, 1.08),
        "memory": (0.90, 1.16),
        "other": (0.82, 2.92),
        "exposed": (0.87, 1.21),
    },
    "tpu": {
        "compute": (0.90, 1.18),
        "memory": (0.90, 1.18),
        "other": (0.90, 1.18),
        "exposed": (0.90, 1.18),
    },
}
"""By backend and part: 10th and 90th percentile of measured over modelled time, from
`benches/time_ranges.py`. GPUs: instructions of a measured A100 step and XLA's measured collectives,
both left out of the fits; other GPUs are assumed to be alike. TPUs: the smallest and the largest of
five whole steps that trainers published, which parts share."""
_FIELDS = (
    Field(
        "word", "part",
        "Compute, memory, other, exposed (waiting for collectives); only measured: copy, idle.",
    ),
    Field("axes", "axes", "Mesh axes of the exposed collectives.", nullable=True),
    Field("seconds", "seconds", "Seconds of the step in this part.", nullable=True, adds_up=True),
    Field("ratio", "share", "Share of all seconds in the table.", nullable=True),
    Field("seconds", "low_seconds", "10th percentile of the seconds, from the model's errors.",
          label="p10 s", nullable=True, adds_up=True),
    Field("seconds", "high_seconds", "90th percentile of the seconds, from the model's errors.",
          label="p90 s", nullable=True, adds_up=True),
    OF_CALLS.replace(
        doc="Measured seconds of the step. Compute includes memory-bound instructions, which a "
        "profile does not distinguish; copy is only copies."
    ),
)  # fmt: skip

_INSTRUCTION = Field("instruction", "instruction", "The instruction.")
_OPCODE = Field("word", "opcode", "The operation.")
_CALL_SECONDS = Field("seconds", "seconds", "Time of a call.", nullable=True)
_CALLS = Field("count", "multiplicity", "Calls of a step.", label="calls")
_BOUND = Field("word", "bound", "The resource that limits it.")
_PHASE = Field("word", "phase", "The phase.", nullable=True)
_SCOPE = Field("scope", "scope", "The scope of its operation.", nullable=True)
_SOURCE = Field("path", "source", "Source file and line.", nullable=True)
_INSTRUCTIONS = Field("count", "instructions", "Number of instructions.", adds_up=True)
_GROUP_SECONDS = Field(
    "seconds", "seconds", "Time of all calls; overlapping time counts twice.", adds_up=True
)
_STEP_SECONDS = Field(
    "seconds",
    "step_seconds",
    "Seconds of the step as scheduled: computing, moving data and waiting.",
    label="in step",
    adds_up=True,
)
_STEP_SHARE = Field("ratio", "share", "Share of the step.", nullable=True)


def step_range(time: Time) -> tuple[float | None, float | None]:
    """Returns the 10th and 90th percentile of the step, the sums of its parts' percentiles.

    The errors of the parts are taken to be the same in all instructions, so that the range of a sum
    is not narrower than those of its parts. None for other estimates than the model's, for a step
    that is a lower bound, for fitted devices, and for devices that are neither TPU nor GPU.
    """
    lows, highs = [], []
    for part, _, seconds in _modelled(time):
        low, high = _between(time, part, seconds)
        if low is None or high is None:
            return None, None
        lows.append(low)
        highs.append(high)
    return sum(lows), sum(highs)


def parts(time: Time) -> Section:
    """Returns the parts of the step, the longest first, with the measured parts beside them."""
    rows: list[tuple[str, str | None, float | None]] = list(_modelled(time))
    clock = _measured(time)
    known = {(part, axes) for part, axes, _ in rows}
    rows += [(*place, None) for place in clock if place not in known]
    rows.sort(key=lambda row: row[2] or 0.0, reverse=True)
    fractions = shares([seconds for *_, seconds in rows], time.step_seconds)
    each = [
        (*row, share, *_between(time, row[0], row[2]), clock.get(row[:2]))
        for row, share in zip(rows, fractions, strict=True)
    ]
    return Section("parts", "Parts of the step", of_rows(_FIELDS, each), is_whole=True)


def groups(time: Time, key: str, field: Field) -> Table:
    """`Time.by`; `field` describes the key."""
    times = time._times()

    def of_calls(column: list[float | None]) -> dict[int, float]:
        pairs = enumerate(zip(column, times, strict=True))
        return {row: own * n for row, (own, n) in pairs if own and n}

    measured = time._measured
    clock: dict[int, float] = {}
    if measured is not None:
        column = measured.column("seconds").tolist()
        clock = {row: own for row, own in enumerate(column) if own == own}
    figures = (
        of_calls(time._values("seconds")),
        of_calls(time._data.column("taken_seconds").tolist()),
        clock,
    )
    rows = sorted(set().union(*figures))
    sums: dict[str | None, tuple[int, list[float]]] = {}
    for row, label in zip(rows, time._labels(key, rows), strict=True):
        count, before = sums.get(label, (0, [0.0, 0.0, 0.0]))
        both = zip(before, figures, strict=True)
        sums[label] = count + 1, [own + figure.get(row, 0.0) for own, figure in both]
    ordered = sorted(sums.items(), key=lambda item: -item[1][1][0])
    seconds, taken, timed = ([own[at] for _, (_, own) in ordered] for at in range(3))
    columns: list[tuple[Field, list[Any]]] = [
        (field, [label for label, _ in ordered]),
        (_INSTRUCTIONS, [count for _, (count, _) in ordered]),
        (_GROUP_SECONDS, seconds),
        (_STEP_SECONDS, taken),
        (OF_CALLS, timed if measured is not None else [None] * len(timed)),
    ]
    return Table.of(columns)


def grouped(time: Time, by: str, key: Field) -> Section:
    """Returns the groups by `by` with shares of the step; `key` describes the first column."""
    table = time.by(by)
    columns = [
        (key, table.values(by)),
        *((table.field(name), table.values(name)) for name in table.columns[1:]),
        (_STEP_SHARE, shares(table.values("step_seconds"), time.step_seconds)),
    ]
    return Section("groups", f"By {by}, all calls", Table.of(columns))


def fits_of(device: Device) -> list[str]:
    """The sources of figures that were fitted on a profile."""
    return sorted({own.source for own in device.values() if own.source.startswith(FITTED)})


def _modelled(time: Time) -> list[tuple[str, str | None, float]]:
    """Part, axes and seconds."""
    return [
        ("compute", None, time.compute_seconds),
        ("memory", None, time.memory_seconds),
        ("other", None, time.other_seconds),
        *(("exposed", axes, seconds) for axes, seconds in time._step[4]),
    ]


def _between(time: Time, part: str, seconds: float | None) -> tuple[float | None, float | None]:
    """The percentiles of a part."""
    is_modelled = time.estimates == "model" and time.collective_model == "topology"
    is_modelled = is_modelled and not time.is_lower_bound and not fits_of(time.device)
    ratios = RANGES.get(time.device.backend, {}).get(part) if is_modelled else None
    if ratios is None or seconds is None:
        return None, None
    return ratios[0] * seconds, ratios[1] * seconds


def _measured(time: Time) -> dict[tuple[str, str | None], float]:
    """Measured seconds of the step by part and axes; empty without a profile of the module."""
    measured = time._measured
    if measured is None:
        return {}
    _, compute, _, _, copy, other, idle = measured.step()
    named = {"compute": compute, "copy": copy, "other": other, "idle": idle}
    found: dict[tuple[str, str | None], float] = {
        (part, None): seconds for part, seconds in named.items() if seconds
    }
    return found | {("exposed", axes): alone for axes, _, alone in measured.axes()}


def longest(time: Time, count: int) -> Table:
    """`Time.longest`."""
    taken = time._data.column("taken_seconds").tolist()
    each, times = time._values("seconds"), time._times()
    totals = {
        row: own * n for row, (own, n) in enumerate(zip(taken, times, strict=True)) if own and n
    }
    rows = sorted(totals, key=lambda row: (-totals[row], row))[: max(count, 0)]
    seconds = [totals[row] for row in rows]
    columns: list[tuple[Field, list[Any]]] = [
        (_INSTRUCTION, rows),
        (_OPCODE, [*time._labels("opcode", rows)]),
        (_CALL_SECONDS, [each[row] for row in rows]),
        (_CALLS, [times[row] for row in rows]),
        (_STEP_SECONDS, seconds),
        (_STEP_SHARE, shares(seconds, time.step_seconds)),
    ]
    for field in (_BOUND, _PHASE, _SCOPE, _SOURCE):
        columns.append((field, [*time._labels(field.name, rows)]))
    return Table.of(columns)
