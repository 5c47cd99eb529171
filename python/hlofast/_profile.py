"""`Measured`: the time that a profile measured of a module, beside the modelled time."""

from __future__ import annotations

from hlofast import _core, _text
from hlofast import _profile_fields as fields
from hlofast._context import measured_for, ran_on, unmeasured
from hlofast._core import Field
from hlofast._names import unknown
from hlofast._result import Fact, Note, Result, Section
from hlofast._scheduled import labels, units
from hlofast.errors import ContextError
from hlofast.table import Table, of_rows, shares, with_columns

TYPE_CHECKING = False  # The command line measures modules; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from typing import Any

    from hlofast._calibration import Calibration
    from hlofast._context import MeshLike
    from hlofast._module import Module
    from hlofast._profiles import Profile
    from hlofast._time import Time
    from hlofast._utilization import Utilization
    from hlofast.devices import Device

KEYS = ("phase", "scope", "source", "opcode", "computation")
"""Keys of `Measured.by`."""
_SPREAD = 1.02
"""Devices whose median runs differ by more than this factor are noted."""


class Measured(Result):
    """The measured time of a module: `Module.profile()`.

    Figures of the step are those of the run of median length on each device, averaged over the
    devices. The parts of the step come from unions of intervals: computing; exposed
    communication, while nothing computes; copies, while neither happens; the own time of loops and
    conditionals; idle. They add up to the step.
    """

    __slots__ = ("_data", "_modelled", "_other", "_runs", "_step", "module")

    VERB = "profile"
    FACTS = (
        Field("name", "program", "The program in the profile."),
        Field("count", "devices", "Devices that ran it."),
        Field("count", "hosts", "Hosts of the devices."),
        Field("count", "runs", "Runs of the program, over all devices."),
        Field("seconds", "step_seconds", "Measured step time.", label="step time"),
        Field("seconds", "shortest_seconds", "The shortest run.", label="shortest run"),
        Field("seconds", "longest_seconds", "The longest run.", label="longest run"),
        Field("seconds", "gap_seconds", "Median time between runs on a device.",
              label="gap between runs"),
        Field("text", "bound", "The largest part of the step.", label="bound by"),
        Field("seconds", "exposed_seconds", "Exposed communication.",
              label="exposed communication"),
        Field("ratio", "exposed_share", "Exposed communication as a share of the step.",
              label="exposed share"),
        Field("seconds", "hidden_seconds", "Communication during which the device computes.",
              label="hidden communication"),
        Field("ratio", "idle_share", "Share of the step in which the device is idle.",
              label="idle"),
        Field("text", "device", "The chip of the modelled figures."),
        Field("ratio", "mfu", "Model FLOPs utilization of the measured step.", label="MFU"),
        Field("ratio", "hfu", "Hardware FLOPs utilization: MFU with recomputation.", label="HFU"),
        Field("flop_rate", "flops_per_second", "FLOPs of the step over its time.", label="FLOP/s"),
        Field("byte_rate", "bytes_per_second", "HBM bytes of the step over its time.", label="B/s"),
        Field("seconds", "modelled_step", "Modelled step time.", label="modelled step"),
        Field("number", "modelled_ratio", "Measured step time divided by the modelled.",
              label="measured/modelled"),
        Field("ratio", "joined_share", "Share of device time in events that name an instruction "
              "of the module.", label="matched to module"),
        Field("text", "slowest_device", "The device with the longest median run.",
              label="slowest device"),
    )  # fmt: skip

    def __init__(
        self,
        module: Module,
        data: _core.MeasuredData,
        modelled: Time | None,
        other: Device | None = None,
    ) -> None:
        self.module = module
        """The module."""
        self._other = other
        self._data = data
        self._modelled = modelled
        self._step = data.step()
        self._runs = Table(data.runs())

    @property
    def step_seconds(self) -> float:
        """Measured seconds of the step."""
        return self._step[0]

    @property
    def exposed_seconds(self) -> float:
        """Seconds of the step in which collectives run and nothing computes."""
        return self._step[3]

    @property
    def exposed(self) -> dict[str, float]:
        """Exposed seconds of the step by mesh axes; groups that match none are `no mesh axes`."""
        return {axes or "no mesh axes": alone for axes, _, alone in self._data.axes()}

    @property
    def devices(self) -> Table:
        """Every device: its runs, the median run, idle and exposed time."""
        return of_rows(fields.DEVICES, self._by_device())

    @property
    def idle_seconds(self) -> float:
        """Seconds of the step in which nothing runs."""
        return self._step[6]

    @property
    def modelled(self) -> Time | None:
        """The modelled time of the module; None without a device."""
        return self._modelled

    @property
    def joined_share(self) -> float:
        """Share of the device time in runs whose events name an instruction of the module."""
        joined, whole, _ = self._data.joined()
        return joined / whole if whole else 0.0

    @property
    def runs(self) -> Table:
        """Every run on every device, with the parts of its time."""
        return self._runs

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Program, step time, parts, utilization, and the share of time that is joined."""
        name, number = self._data.program
        seconds = self._runs.values("seconds")
        devices = self._by_device()
        communication = self._step[2]
        whole = self.step_seconds
        gaps = sorted(gap for gap in self._runs.values("gap_seconds") if gap is not None)
        values: list[tuple[str, Any, str]] = [
            ("program", name if number is None else f"{name} ({number})", "exact"),
            ("devices", len(devices), "exact"),
            ("hosts", len({row[0] for row in devices}), "exact"),
            ("runs", len(seconds), "exact"),
            ("step_seconds", whole, "measured"),
            ("shortest_seconds", min(seconds), "measured"),
            ("longest_seconds", max(seconds), "measured"),
            ("gap_seconds", gaps[len(gaps) // 2] if gaps else None, "measured"),
            ("bound", self.bound, "measured"),
            ("exposed_seconds", self.exposed_seconds, "measured"),
            ("exposed_share", self.exposed_seconds / whole, "measured"),
            ("hidden_seconds", communication - self.exposed_seconds, "measured"),
            ("idle_share", self.idle_seconds / whole, "measured"),
        ]
        values += self._rates()
        values.append(("joined_share", self.joined_share, "exact"))
        if len(devices) > 1:
            slowest = max(devices, key=lambda row: row[4])
            where = slowest[1] if slowest[0] is None else f"{slowest[1]} of {slowest[0]}"
            values.append(("slowest_device", where, "measured"))
        return self._facts(values)

    def _rates(self) -> list[tuple[str, Any, str]]:
        """Utilization, achieved rates and the modelled step."""
        cost = self.module.cost()
        values: list[tuple[str, Any, str]] = []
        modelled = self._modelled
        if modelled is not None:
            values.append(("device", modelled.device.name, "configuration"))
            used = self.utilization
            if used is not None:
                how = "bound" if used.is_lower_bound else "measured"
                values += [("mfu", used.mfu, how), ("hfu", used.hfu, how)]
        from hlofast._shares import devices_together

        if devices_together(self.module) == 1:
            how = "bound" if cost.misses_flops else "measured"
            values.append(("flops_per_second", cost.flops / self.step_seconds, how))
            how = "bound" if cost.misses_bytes else "measured"
            values.append(("bytes_per_second", cost.bytes_accessed / self.step_seconds, how))
        if modelled is not None and modelled.step_seconds > 0:
            how = "bound" if modelled.is_lower_bound else "modelled"
            values.append(("modelled_step", modelled.step_seconds, how))
            ratio = self.step_seconds / modelled.step_seconds
            values.append(("modelled_ratio", ratio, how))
        return values

    @property
    def utilization(self) -> Utilization | None:
        """MFU and HFU of the measured step; None without a device whose peak is known."""
        modelled = self._modelled
        cost = self.module.cost()
        if modelled is None or cost.refuses_mfu:
            return None
        needed = ("flops.bf16", "jax_devices")
        if any(modelled.device.value(name) is None for name in needed):
            return None
        return cost.mfu(self.step_seconds, device=modelled.device)

    @property
    def bound(self) -> str:
        """The largest part of the step: compute, communication, copies, other or idle.

        If computing is the largest part, and the device is known, what bounds most of the measured
        time of instructions by the model: compute, memory or launch.
        """
        parts = self._sums()
        most = max(parts, key=lambda name: parts[name])
        if most == "compute" and self._modelled is not None:
            sums = self._modelled.measured_by_bound()
            return max(("compute", "memory", "launch"), key=lambda name: sums.get(name, 0.0))
        return "communication" if most == "exposed" else most

    def _sums(self) -> dict[str, float]:
        _, compute, _, exposed, copies, other, idle = self._step
        return {
            "compute": compute, "exposed": exposed, "copies": copies, "other": other, "idle": idle
        }  # fmt: skip

    @property
    def notes(self) -> tuple[Note, ...]:
        """Gaps of the profile."""
        notes = []
        joined, whole, outside = self._data.joined()
        if whole and joined < 0.999 * whole:
            missing = _text.share(whole - joined, whole)
            text = (
                f"{missing} of the device time is in events that name no instruction of the module"
            )
            notes.append(Note("unjoined", text, seconds=whole - joined))
        if outside > 0:
            text = (
                f"{_text.seconds(outside)} of device time lies outside whole runs, at the ends of "
                "the profile"
            )
            notes.append(Note("outside-runs", text, seconds=outside))
        devices = self._by_device()
        medians = [row[4] for row in devices]
        if len(medians) > 1 and min(medians) > 0 and max(medians) > _SPREAD * min(medians):
            text = (
                f"median runs differ between devices: {_text.seconds(min(medians))} to "
                f"{_text.seconds(max(medians))}"
            )
            notes.append(Note("spread", text, least=min(medians), most=max(medians)))
        if self._other is not None:
            text = f"{_elsewhere(self._other)}, so modelled times and MFU are left out"
            notes.append(Note("other-device", text))
        elif self._modelled is None:
            text = "no device is known, so modelled times and MFU are missing; give --device"
            notes.append(Note("no-device", text))
        return tuple(notes)

    def sections(self, by: str = "phase") -> tuple[Section, ...]:
        """Parts of the step, sums by `by` (one of `KEYS`), instructions, collectives, devices."""
        return (
            self._parts(),
            self._axes(),
            self._groups(by),
            self._instructions(),
            self._collectives(),
            Section("devices", "Devices", self.devices),
            Section("runs", "Runs", self._runs, ()),
            Section("unjoined", "Events without an instruction", Table(self._data.unjoined())),
        )

    def _parts(self) -> Section:
        modelled = self._modelled
        sums = self._sums()
        rows: list[tuple[str, str | None, float, float | None]] = []
        for name, seconds in sums.items():
            if name == "exposed":
                exposed = {} if modelled is None else modelled.exposed
                for axes, _, alone in self._data.axes():
                    rows.append((name, axes or None, alone, exposed.get(axes)))
                continue
            own = None
            if modelled is not None and name == "compute":
                own = modelled.step_seconds - sum(modelled.exposed.values())
            rows.append((name, None, seconds, own))
        rows.sort(key=lambda row: -row[2])
        fractions = shares([row[2] for row in rows], self.step_seconds)
        table = of_rows(
            fields.PARTS,
            [(*row[:3], part, row[3]) for row, part in zip(rows, fractions, strict=True)],
        )
        return Section("parts", "Parts of the step", table, is_whole=True)

    def _axes(self) -> Section:
        exposed = {} if self._modelled is None else self._modelled.exposed
        rows = [
            (axes or None, seconds, alone, seconds - alone, alone / self.step_seconds,
             exposed.get(axes))
            for axes, seconds, alone in self._data.axes()
        ]  # fmt: skip
        rows.sort(key=lambda row: -row[2])
        table = of_rows(fields.AXES, rows)
        return Section("axes", "Communication by mesh axis", table)

    def calibrate(self, device: str | Device | None = None) -> Calibration:
        """Fits the achieved rates of the machine: matmuls, HBM, launches, collectives.

        `device` is the kind of device that ran, by default that of the modelled time. Raises
        `ContextError` without a device, and for one of another kind. See `hlofast.Calibration`.
        """
        from hlofast._calibration import Calibration
        from hlofast._context import required_device

        if device is None and self._modelled is not None:
            return Calibration(self, self._modelled.device)
        chip = required_device(self.module, device)
        if not ran_on(self.module, chip):
            raise ContextError(_elsewhere(chip))
        return Calibration(self, chip)

    def by(self, key: str) -> Table:
        """Returns the measured and modelled seconds by `key`, longest first.

        Keys: phase, scope (full names), source (file and line), opcode, computation; raises
        `KeyError` for others. Columns: the key, instructions, measured and modelled seconds, their
        ratio.
        """
        if key not in KEYS:
            raise unknown("key", key, KEYS)
        rows = self._rows()
        modelled = self._modelled_seconds()
        sums: dict[str | None, list[Any]] = {}
        for (row, seconds), label in zip(
            rows, labels(self.module, key, [row for row, _ in rows]), strict=True
        ):
            entry = sums.setdefault(label, [0, 0.0, None])
            entry[0] += 1
            entry[1] += seconds
            own = modelled.get(row)
            if own is not None:
                entry[2] = own + (entry[2] or 0.0)
        ordered = sorted(sums.items(), key=lambda item: -item[1][1])
        each = [(label, *entry, _over(entry[1], entry[2])) for label, entry in ordered]
        kind = {"scope": "scope", "source": "path"}.get(key, "word")
        first = Field(kind, key, f"The {key}.", nullable=True)
        columns = (fields.INSTRUCTIONS, fields.MEASURED, fields.MODELLED, fields.RATIO)
        return of_rows((first, *columns), each)

    def _groups(self, by: str) -> Section:
        grouped = self.by(by)
        seconds = grouped.values("measured_seconds")
        columns: list[tuple[Field, Sequence[Any]]] = [
            (fields.KEY.replace(label=by), grouped.values(by)),
            (fields.INSTRUCTIONS, grouped.values("instructions")),
            (fields.MEASURED, seconds),
            (fields.SHARE, shares(seconds, sum(seconds))),
            (fields.MODELLED, grouped.values("modelled_seconds")),
            (fields.RATIO, grouped.values("ratio")),
        ]
        table = Table.of(columns)
        return Section("groups", f"Device time by {by}", table, figure="measured_seconds")

    def _rows(self) -> list[tuple[int, float]]:
        """Rows with events, and their measured seconds."""
        column = self._data.column("seconds").tolist()
        return [(row, own) for row, own in enumerate(column) if own == own]

    def _modelled_seconds(self) -> dict[int, float]:
        """Modelled seconds of all calls, by row."""
        if self._modelled is None:
            return {}
        pairs = zip(self._modelled._values("seconds"), self._modelled._times(), strict=True)
        return {row: own * n for row, (own, n) in enumerate(pairs) if own is not None and n}

    def table(self) -> Table:
        """Returns one row per instruction with events, longest first.

        Measured seconds and their range over runs, calls, modelled seconds, achieved FLOP/s and
        bytes per second, the share of the roofline, phase, scope and source.
        """
        data = self._data
        rows = sorted(self._rows(), key=lambda pair: -pair[1])
        order = [row for row, _ in rows]
        seconds = [own for _, own in rows]
        modelled = self._modelled_seconds()
        work = {row: (flops, moved, times) for row, flops, moved, times in
                units(self.module.cost())}  # fmt: skip
        roofline: dict[int, float] = {}
        if self._modelled is not None:
            best = self._modelled._values("roofline_seconds")
            times = self._modelled._times()
            roofline = {row: own * (times[row] or 0) for row, own in enumerate(best)
                        if own is not None}  # fmt: skip

        def rate(at: int) -> list[float | None]:
            values: list[float | None] = []
            for row, own in rows:
                known = work.get(row)
                values.append(
                    None if known is None or own <= 0 else known[at] * known[2] / own or None
                )
            return values

        columns: list[tuple[Field, Sequence[Any]]] = [
            (Field("instruction", "instruction", "The instruction."), order),
            (Field("word", "opcode", "The opcode."), labels(self.module, "opcode", order)),
            (fields.MEASURED, seconds),
            (fields.SHARE, shares(seconds, sum(seconds))),
        ]
        ranges = {"calls": fields.CALLS, "least": fields.LEAST, "median": fields.MEDIAN,
                  "most": fields.MOST}  # fmt: skip
        for name, field in ranges.items():
            column = data.column(name).tolist()
            columns.append((field, [column[row] for row in order]))
        own = [modelled.get(row) for row in order]
        columns += [
            (fields.MODELLED, own),
            (fields.RATIO, [_over(*pair) for pair in zip(seconds, own, strict=True)]),
            (fields.FLOPS, rate(0)),
            (fields.BYTES, rate(1)),
            (
                fields.ROOFLINE,
                [_over(roofline[row], taken) if row in roofline else None for row, taken in rows],
            ),
        ]
        for key in ("phase", "scope", "source"):
            kind = {"scope": "scope", "source": "path"}.get(key, "word")
            field = Field(kind, key, f"The {key}.", nullable=True)
            columns.append((field, labels(self.module, key, order)))
        return Table.of(columns)

    def _instructions(self) -> Section:
        table = self.table()
        shown = ["instruction", "measured_seconds", "share", "calls", "modelled_seconds", "ratio"]
        shown += ["flops_per_second", "bytes_per_second", "roofline_share", "phase", "source"]
        return Section("instructions", "Instructions", table, shown, figure="measured_seconds")

    @property
    def collectives(self) -> Table:
        """Every collective with its measured time in the step, longest first.

        Beside it the modelled time of all calls, and the rate at which a device sends.
        """
        table = Table(self._data.collectives())
        seconds = table.values("measured_seconds")
        calls = table.values("calls")
        sent = table.values("wire_bytes")
        rates = [
            _over(None if own is None or n is None else own * n, taken)
            for own, n, taken in zip(sent, calls, seconds, strict=True)
        ]
        modelled: list[float | None] = [None] * len(table)
        if self._modelled is not None:
            each = self._modelled.collectives
            pairs = zip(each.values("seconds"), each.values("multiplicity"), strict=True)
            modelled = [None if own is None or n is None else own * n for own, n in pairs]
        ratios = [_over(*pair) for pair in zip(seconds, modelled, strict=True)]
        further = [(fields.WIRE_RATE, rates), (fields.MODELLED, modelled), (fields.RATIO, ratios)]
        return with_columns(table, further).sort_by("measured_seconds", descending=True)

    def _collectives(self) -> Section:
        table = self.collectives
        hidden = ("instruction", "wire_bytes")
        shown = [name for name in table.columns if name not in hidden]
        return Section("collectives", "Collectives", table, shown, figure="measured_seconds")

    def _by_device(self) -> list[tuple[Any, ...]]:
        """One row per device, as `fields.DEVICES` names the columns."""
        groups: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
        for run in self._runs:
            groups.setdefault((run["host"], run["device"]), []).append(run)
        rows = []
        for (host, device), runs in groups.items():
            seconds = sorted(run["seconds"] for run in runs)
            median = next(run for run in runs if run["is_median"])
            gaps = sorted(run["gap_seconds"] for run in runs if run["gap_seconds"] is not None)
            rows.append(
                (host, device, len(runs), seconds[0], median["seconds"], seconds[-1],
                 median["idle_seconds"], median["exposed_seconds"],
                 gaps[len(gaps) // 2] if gaps else None)
            )  # fmt: skip
        return rows

    def __repr__(self) -> str:
        return (
            f"<Measured {self.module.name}: {self.step_seconds:.6g} s, "
            f"{len(self._runs)} runs, bound by {self.bound}>"
        )


def _elsewhere(device: Device) -> str:
    return f"{device.name} is not the kind of device that the profile was recorded on"


def profiled(
    module: Module,
    profile: str | PathLike[str] | Profile | None,
    device: str | Device | None,
    mesh: MeshLike | None,
) -> Measured:
    """`Module.profile`."""
    from hlofast._context import device_for, mesh_for, told_in

    if profile is not None:
        module = module.with_context(profile=profile)
    told = told_in(module)
    if told is None or told.profile is None:
        raise ContextError("no profile given: pass one, or load the module with profile=PATH")
    chip = device_for(module, device)
    place = mesh_for(module, mesh)
    data = measured_for(module, place)
    if data is None:
        raise ValueError(unmeasured(module))
    is_same = chip is not None and ran_on(module, chip)
    modelled = module.time(chip, mesh=place) if is_same else None
    return Measured(module, data, modelled, None if is_same else chip)


def measured_with(module: Module, modelled: Time | None) -> Measured | None:
    """Returns what the context's profile measured of the module, beside `modelled`.

    None without a profile, and for a profile without the module.
    """
    data = measured_for(module)
    if data is None:
        return None
    if modelled is None or ran_on(module, modelled.device):
        return Measured(module, data, modelled)
    return Measured(module, data, None, modelled.device)


def _over(part: float | None, whole: float | None) -> float | None:
    """Returns `part / whole`; None where either is unknown or `whole` is 0."""
    return None if part is None or not whole else part / whole
