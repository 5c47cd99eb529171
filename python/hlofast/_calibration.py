"""`Calibration`: the achieved rates of a machine, fitted on a profile, as figures of its device.

The model is a function from figures of the device to seconds of instructions. The fit changes one
figure at a time (golden-section search on its logarithm), on the instructions that it governs, and
repeats until the sum of |log(modelled / measured)|, weighted by measured time (collectives alike),
no longer falls. One half of the instructions, by a hash of their names, is fitted; the errors of
the other half say what to expect.
"""

from __future__ import annotations

import json
import math
import zlib

from hlofast import _text
from hlofast._core import Field
from hlofast._result import Fact, Note, Result, Section
from hlofast._time import BOUNDS
from hlofast.devices import FIGURES, FITTED
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from hlofast._module import Module
    from hlofast._profile import Measured
    from hlofast.devices import Device

_GOVERNS = {
    "matmul_efficiency": "compute",
    "hbm_achieved_bandwidth": "memory",
    "launch": "launch",
    "collective_latency": "communication",
    "link_efficiency": "communication",
}
"""What the instructions that show a figure are bound by."""
_ON_TPU = ("hbm_achieved_bandwidth",)
"""The figures that the model of TPUs reads."""
_LIMITS = {"matmul_efficiency": 1.0, "link_efficiency": 1.0}
"""Largest values of figures that are shares."""
_START = {"matmul_efficiency": 1.0, "link_efficiency": 1.0, "launch": 1e-6,
          "collective_latency": 1e-5}  # fmt: skip
"""Where the search begins for a figure that the device lacks."""
_REACH = math.log(16.0)
"""The search covers a sixteenth to sixteen times the figure."""
_PRECISE = 5e-3
"""Of the logarithm of a figure."""
_ROUNDS = 6
_ENOUGH = 1e-4
"""Relative gain of a round below which the search ends."""
_LARGEST_ERROR = math.log(8.0)
"""Larger errors count as this one, so that a single wrong join does not decide a figure."""
_FEWEST = 16
"""Instructions or collectives without which their figures are not fitted."""
_KINDS = ("compute", "memory", "launch")
_CLOSE = 0.25
_CALIBRATED = ", calibrated"
_FIGURES = (
    Field("name", "figure", "The figure of the device."),
    Field("text", "meaning", "Meaning and unit of the figure."),
    Field("number", "before", "Value before the fit.", nullable=True),
    Field("number", "fitted", "Fitted value."),
)
_ERRORS = (
    Field("word", "bound", "What bounds the instructions, according to the figures before the "
                           "fit."),
    Field("word", "half", "The half of the instructions: fitted or held out."),
    Field("count", "instructions", "Number of instructions.", adds_up=True),
    Field("seconds", "measured_seconds",
          "Measured time per step; for collectives, the minimum over all steps and devices.",
          label="measured s", adds_up=True),
    Field("seconds", "before_seconds", "Modelled time before the fit.", label="before s",
          adds_up=True),
    Field("seconds", "after_seconds", "Modelled time after the fit.", label="after s",
          adds_up=True),
    Field("ratio", "before_error", "Median error before the fit, as |modelled / measured - 1|.",
          label="median error before"),
    Field("ratio", "after_error", "Median error after the fit.", label="median error after"),
    Field("ratio", "before_close",
          "Share of measured time in instructions within 25 % before the fit.",
          label="within 25 % before"),
    Field("ratio", "after_close",
          "Share of measured time in instructions within 25 % after the fit.",
          label="within 25 % after"),
)  # fmt: skip
_FACTS = (
    Field("name", "device", "The device whose figures were fitted."),
    Field("seconds", "measured_step", "The measured step.", label="measured step"),
    Field("seconds", "before_step", "The modelled step before the fit.", label="step before"),
    Field("seconds", "after_step", "The modelled step after the fit.", label="step after"),
    Field("ratio", "before_error",
          "Median error before the fit, weighted by held-out time.",
          label="held-out error before"),
    Field("ratio", "after_error",
          "Median error after the fit, weighted by held-out time.",
          label="held-out error after"),
)  # fmt: skip


class _Row:
    """An instruction or collective: its measured time in a step, and how to find it in a model."""

    __slots__ = ("at", "bound", "is_fitted", "measured")

    def __init__(self, at: int, bound: str, name: str, measured: float) -> None:
        self.at = at
        self.bound = bound
        self.is_fitted = zlib.crc32(name.encode("utf-8", "surrogatepass")) % 2 == 0
        self.measured = measured


class Calibration(Result):
    """The achieved rates of a machine, fitted on a profile; created by `Measured.calibrate`.

    `device` is the device with the fitted figures; `save` writes them as a file of devices.
    """

    VERB = "calibrate"
    FACTS = _FACTS

    def __init__(self, measured: Measured, device: Device) -> None:
        self.module: Module = measured.module
        self._measured = measured
        self._before = device
        self._rows = _rows_of(measured, device)
        device = self._fitted()
        self._pairs = self._compared(device)
        self._errors = [_error(is_after, self._pairs) for is_after in (False, True)]
        changed: dict[str, Any] = {
            name: device.value(name) for name in _GOVERNS
            if device.value(name) != self._before.value(name)
        }  # fmt: skip
        self.fitted = list(changed)
        """Names of the figures that changed."""
        self._source = self._told()
        self.device = self._before.replace(source=self._source, **changed)
        """The device with the fitted figures."""

    def _fitted(self) -> Device:
        """The device after rounds in which each figure is fitted on the rows that it governs."""
        device = self._before
        best = math.inf
        for _ in range(_ROUNDS):
            total = 0.0
            for name, bound in self._read().items():
                rows = self._half(bound)
                if len(rows) >= _FEWEST:
                    device, loss = _fit(self._measured, device, name, rows)
                    total += loss
            if best < math.inf and best - total <= _ENOUGH * best:
                break
            best = total
        return device

    def _read(self) -> dict[str, str]:
        """The figures that the model of the device reads, and what they govern."""
        is_tpu = self._before.backend == "tpu"
        return {name: own for name, own in _GOVERNS.items() if not is_tpu or name in _ON_TPU}

    def _half(self, bound: str) -> list[_Row]:
        """The fitted half of the rows that are bound by `bound`."""
        return [row for row in self._rows if row.is_fitted and row.bound == bound]

    @property
    def title(self) -> str:
        """The program that was measured."""
        return self.module.name

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The device, the step and the median errors, before and after the fit."""
        own = self._measured.module
        values: tuple[Any, ...] = (
            self.device.name,
            self._measured.step_seconds,
            own.time(self._before).step_seconds,
            own.time(self.device).step_seconds,
            *self._errors,
        )
        provenances = ("exact", "measured", *("modelled",) * 4)
        pairs = zip(self.FACTS, values, provenances, strict=True)
        return tuple(
            Fact(field, value, known) for field, value, known in pairs if value is not None
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """Figures that were not fitted, with the reason."""
        notes = []
        for name, bound in self._read().items():
            count = len(self._half(bound))
            if count < _FEWEST:
                rows = "collective" if bound == "communication" else "instruction"
                text = (
                    f"{_text.counted(count, rows)} in the fitted half show it, fewer than {_FEWEST}"
                )
                notes.append(Note("too-few", f"{name} is not fitted: {text}"))
        if self._before.backend == "tpu":
            text = "the TPU model does not use the other figures that are fitted on GPUs"
            notes.append(Note("tpu", f"only {_ON_TPU[0]} is fitted: {text}"))
        return tuple(notes)

    def sections(self) -> tuple[Section, ...]:
        """The fitted figures, and the errors by bound and half."""
        figures = [
            (name, FIGURES[name], self._before.value(name), self.device.value(name))
            for name in self.fitted
        ]
        return (
            Section("figures", "Fitted figures", of_rows(_FIGURES, figures), is_whole=True),
            Section("errors", "Errors", of_rows(_ERRORS, self._judged()), is_whole=True),
        )

    def _compared(self, fitted: Device) -> list[tuple[_Row, float, float]]:
        """Rows with their modelled seconds before and after the fit."""
        pairs = []
        for bound in ("", "communication"):
            before, after = (
                _modelled(self._measured, device, bound) for device in (self._before, fitted)
            )
            rows = (row for row in self._rows if (row.bound == "communication") == bool(bound))
            pairs += [(row, before[row.at], after[row.at]) for row in rows]
        return pairs

    def _judged(self) -> list[tuple[Any, ...]]:
        """The rows of `_ERRORS`."""
        listed: list[tuple[Any, ...]] = []
        for bound in (*_KINDS, "communication"):
            for is_fitted in (True, False):
                own = [
                    pair
                    for pair in self._pairs
                    if pair[0].bound == bound and pair[0].is_fitted == is_fitted
                ]
                if own:
                    listed.append((bound, "fitted" if is_fitted else "held out", *_figures_of(own)))
        return listed

    def save(self, path: str, name: str | None = None) -> None:
        """Writes the fitted figures as a TOML file of devices, for `hlofast.devices.load`.

        The file changes the figures of the built-in device, or adds a device called `name` that
        starts from it. Raises `OSError` if the file cannot be written, `ValueError` if nothing was
        fitted, and for the name of another built-in device.
        """
        from hlofast import _files, devices

        if not self.fitted:
            raise ValueError("nothing was fitted: too few instructions show a rate")
        if name is not None and name != self.device.name and name in devices.built_in():
            raise ValueError(f"{name!r} is a different built-in device: choose another name")
        own = self.device
        is_built_in = own.name in devices.built_in()
        called = name or own.name
        figures = self.fitted if is_built_in else list(own)
        lines = [
            "# Written by hlofast calibrate.",
            "[sources]",
            f"calibration = {_quoted(self._source)}",
            "",
            f"[{_quoted(called)}]",
        ]
        if is_built_in and called != own.name:
            lines.append(f"base = {_quoted(own.name)}")
        if called != own.name or not is_built_in:
            label = own.label.removesuffix(_CALIBRATED) + _CALIBRATED
            lines.append(f"label = {_quoted(label)}")
            lines.append(f"backend = {_quoted(own.backend)}")
        cells = [(key, own[key]) for key in figures]
        if not is_built_in:
            cells += [(f"flops.{key}", cell) for key, cell in own.flops.items()]
        for key, cell in cells:
            value = _quoted(cell.value) if isinstance(cell.value, str) else repr(cell.value)
            source = "calibration" if key in self.fitted else cell.source
            lines.append(f"{key} = {{ value = {value}, source = {_quoted(source)} }}")
        with _files.replacing(path) as file:
            file.write("\n".join([*lines, ""]).encode())

    def _told(self) -> str:
        """What the figures were fitted on, and what that is worth."""
        count = sum(row.is_fitted for row in self._rows)
        held = len(self._rows) - count
        fitted = f"{FITTED}{_text.counted(count, 'instruction')} of {self.module.name}"
        before, after = self._errors
        if before is None or after is None:
            return f"{fitted}; no instruction was held out"
        return (
            f"{fitted}; half of the time of {held:,} others is within {after:.1%} "
            f"(before: {before:.1%})"
        )


def _quoted(text: str) -> str:
    """A TOML string; JSON's escapes are valid in TOML, but for pairs of surrogates."""
    return json.dumps(_text.printable(text), ensure_ascii=False)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _off(row: _Row, modelled: float) -> float:
    return abs(modelled / row.measured - 1)


def _error(is_after: bool, pairs: list[tuple[_Row, float, float]]) -> float | None:
    """The error that half of the held-out time does not exceed; None if nothing was held out."""
    held = [pair for pair in pairs if not pair[0].is_fitted]
    errors = sorted(
        (_off(row, after if is_after else before), row.measured) for row, before, after in held
    )
    left = sum(measured for _, measured in errors) / 2
    for error, measured in errors:
        left -= measured
        if left <= 0:
            return error
    return None


def _figures_of(pairs: list[tuple[_Row, float, float]]) -> tuple[float, ...]:
    """The columns of `_ERRORS` after the first two."""
    whole = sum(row.measured for row, _, _ in pairs)
    sums, errors, close = [], [], []
    for modelled in ([pair[1] for pair in pairs], [pair[2] for pair in pairs]):
        own = [_off(row, each) for (row, *_), each in zip(pairs, modelled, strict=True)]
        near = zip(pairs, own, strict=True)
        sums.append(sum(modelled))
        errors.append(_median(own))
        close.append(sum(pair[0].measured for pair, error in near if error <= _CLOSE) / whole)
    return len(pairs), whole, *sums, *errors, *close


def _modelled(
    measured: Measured, device: Device, bound: str, places: Sequence[int] | None = None
) -> list[float]:
    """Modelled seconds in a step, by row, or by collective for `communication`; NaN if unknown.

    With `places`, only of these rows or collectives.
    """
    time = measured.module.time(device)
    if bound == "communication":
        table = time.collectives
        pairs = zip(table.values("seconds"), table.values("multiplicity"), strict=True)
        every = [math.nan if None in (own, times) else own * times for own, times in pairs]
        return every if places is None else [every[at] for at in places]
    column = time._data.column("seconds")
    seconds = (column if places is None else column.take(places)).tolist()
    rows = zip(seconds, time._times(places), strict=True)
    return [own * (times or 0) for own, times in rows]


def _rows_of(measured: Measured, device: Device) -> list[_Row]:
    """The instructions and the collectives that have measured and modelled time."""
    module = measured.module
    time = module.time(device)
    bounds = time._data.column("bound").tolist()
    seconds = measured._data.column("seconds").tolist()
    names = {instruction.row: instruction.name for instruction in module}
    rows = [
        _Row(at, BOUNDS[bounds[at]], names.get(at, ""), seconds[at])
        for at, own in enumerate(_modelled(measured, device, ""))
        if own > 0 and seconds[at] > 0 and BOUNDS[bounds[at]] in _KINDS
    ]
    # What a device waits for the others belongs to none of the figures, so the least time counts.
    least = measured._data.column("least").tolist()
    sent = time.collectives
    modelled = _modelled(measured, device, "communication")
    places = zip(sent.values("instruction"), sent.values("collective"), modelled, strict=True)
    rows += [
        _Row(at, "communication", name, least[row])
        for at, (row, name, own) in enumerate(places)
        if least[row] > 0 and own > 0
    ]
    return rows


def _fit(
    measured: Measured, device: Device, name: str, rows: Sequence[_Row]
) -> tuple[Device, float]:
    """Returns `device` with the value of figure `name` that fits `rows` best, and what is left."""
    places = [row.at for row in rows]

    def loss(device: Device) -> float:
        modelled = _modelled(measured, device, _GOVERNS[name], places)
        total = 0.0
        for row, own in zip(rows, modelled, strict=True):
            if not own > 0:
                return math.inf
            # One collective that waits for others would outweigh all the rest.
            weight = 1.0 if row.bound == "communication" else row.measured
            total += weight * min(abs(math.log(own / row.measured)), _LARGEST_ERROR)
        return total

    best = loss(device)
    centre = device.value(name) or _START.get(name)
    if name == "hbm_achieved_bandwidth":
        centre = centre or device.value("hbm_bandwidth")
    if centre is None:
        return device, best
    limit = _LIMITS.get(name, math.inf)
    if name == "hbm_achieved_bandwidth":
        limit = device.value("hbm_bandwidth") or limit
    low = math.log(centre) - _REACH
    high = min(math.log(centre) + _REACH, math.log(limit))
    if low >= high:
        return device, best

    def replaced(at: float) -> Device:
        changed: dict[str, Any] = {name: math.exp(at)}
        return device.replace(**changed)

    at, found = _minimum(lambda at: loss(replaced(at)), low, high)
    return (replaced(at), found) if found < best else (device, best)


_GOLDEN = (math.sqrt(5) - 1) / 2


def _minimum(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """A minimum by golden-section search: its place and value."""
    inner = [high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)]
    values = [function(at) for at in inner]
    while high - low > _PRECISE:
        if values[0] <= values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - _GOLDEN * (high - low)
            values[0] = function(inner[0])
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + _GOLDEN * (high - low)
            values[1] = function(inner[1])
    return (inner[0], values[0]) if values[0] <= values[1] else (inner[1], values[1])
