"""The parts of a modelled step, with the range that the model's errors give."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._profile_fields import OF_CALLS
from hlofast._result import Section
from hlofast.devices import FITTED
from hlofast.table import of_rows, shares

TYPE_CHECKING = False
if TYPE_CHECKING:
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
        "Compute, memory, other, exposed (waiting for collectives); measured alone: copy, idle.",
    ),
    Field("axes", "axes", "Mesh axes of the exposed collectives.", nullable=True),
    Field("seconds", "seconds", "Seconds of the step in this part.", nullable=True, adds_up=True),
    Field("ratio", "share", "Share of all seconds in the table.", nullable=True),
    Field("seconds", "low_seconds", "10th percentile of the seconds, from the model's errors.",
          label="p10 s", nullable=True, adds_up=True),
    Field("seconds", "high_seconds", "90th percentile of the seconds, from the model's errors.",
          label="p90 s", nullable=True, adds_up=True),
    OF_CALLS.replace(
        doc="Measured seconds of the step. Compute includes instructions that memory bounds, which "
        "a profile does not tell apart; copy is copies alone."
    ),
)  # fmt: skip


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
