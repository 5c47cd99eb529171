"""`Time`: how long a module takes on a device, in totals, columns and tables."""

from __future__ import annotations

from hlofast import _core, devices
from hlofast._core import Field
from hlofast._names import unknown
from hlofast._result import Fact, Note, Result, Section
from hlofast.table import Table, column_of, of_rows, shares

TYPE_CHECKING = False  # The command line times modules; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import numpy
    import numpy.typing

    from hlofast._measurements import Measurements
    from hlofast._module import Module
    from hlofast._utilization import Utilization

BOUNDS = ("none", "compute", "memory", "communication", "launch", "unknown")
"""What may limit an instruction, by the codes of the column `bound`."""
_SECONDS = tuple(
    Field("seconds", name, doc, nullable=True)
    for name, doc in (
        ("seconds", "Time of one execution, by itself."),
        ("compute_seconds", "Time that computing takes."),
        ("memory_seconds", "Time that moving data takes."),
        ("roofline_seconds", "Peak FLOPs or full bandwidth, whichever takes longer."),
        ("compiler_seconds", "The compiler's estimated cycles over the clock."),
        ("start_seconds", "When it starts within its computation, as scheduled."),
        ("end_seconds", "When it ends."),
        ("exposed_seconds", "How long the step waits for the collective."),
    )
)
_MULTIPLICITY = Field(
    "count", "multiplicity", "Executions outside fusions.", label="calls", nullable=True
)
_TOTAL_SECONDS = Field(
    "seconds",
    "total_seconds",
    "Time of all executions, without overlap.",
    nullable=True,
    adds_up=True,
)
_BOUND = Field("word", "bound", "What limits the instruction.")
_PROVENANCE = Field("word", "provenance", "How the seconds are known.")
_INSTRUCTIONS = Field("count", "instructions", "Instructions, each once.", adds_up=True)
_GROUP_SECONDS = Field(
    "seconds", "seconds", "Time of all executions; what overlaps counts twice.", adds_up=True
)
_KEYS = {
    "bound": _BOUND,
    "opcode": Field("word", "opcode", "The opcode."),
    "computation": Field("name", "computation", "The computation that the instruction is in."),
    "phase": Field("word", "phase", "Forward, backward, recompute, optimizer or other."),
    "scope": Field("scope", "scope", "Framework scope (name stack).", nullable=True),
    "source": Field("path", "source", "Source file and line.", nullable=True),
}
NO_AXES = "no axis subset"
"""What stands for the axes of devices that do not differ along axes of the mesh only."""
MODELS = ("topology", "speed-of-light", "alpa")
"""Whose formulas collectives can follow."""
MEASURED = "measurements"
"""What stands for the model of collectives whose times were measured."""
KEYS = tuple(_KEYS)
"""What `Time.by` takes."""
_SHARE = Field("ratio", "share", "The part of all seconds in the table.", nullable=True)
_KEY = Field("text", "key", "The value that the row is about.", nullable=True)
_PARTS = (
    Field("word", "part", "Compute, memory, other, or exposed: waiting for collectives."),
    Field("axes", "axes", "The mesh axes of the collectives waited for.", nullable=True),
    Field("seconds", "seconds", "Seconds of the step that go to it.", nullable=True, adds_up=True),
    _SHARE,
)
FIGURE = (Field("name", "figure", "The figure of the device, or what the text does not tell."),)
_LOOP = (Field("instruction", "instruction", "The row number of the loop."),)
_RATIOS = ("mfu", "hfu", "matmul_mfu", "matmul_hfu")


class Time(Result):
    """The time of a module: `Module.time()`.

    The seconds of instructions are those of `estimates`: this package's model of the device, the
    roofline (computing at the peak or moving HBM bytes at full bandwidth, whichever is longer), or
    what the compiler wrote into the dump. The step is the schedule played with them: one compute
    unit, links by axis of the mesh, copies beside both.
    """

    __slots__ = (
        "_collectives", "_data", "_mesh", "_step", "_utilization", "collective_model", "device",
        "estimates", "module",
    )  # fmt: skip

    VERB = "time"
    FACTS = (
        Field("name", "device", "The chip that the module was timed for."),
        Field("word", "estimates", "Whose seconds of instructions count."),
        Field("word", "collective_model",
              "Whose seconds of collectives count: a model, or measurements.", label="collectives"),
        Field("text", "mesh", "The mesh whose axes are named."),
        Field("word", "mesh_source", "Where the mesh comes from.", label="mesh from"),
        Field("seconds", "step_seconds", "One run of the module, as scheduled.", label="step"),
        Field("text", "bound", "What takes most of the step.", label="bound by"),
        Field("ratio", "mfu", "Model FLOPs utilization of such a step.", label="MFU"),
        Field("ratio", "hfu", "The same with what is computed again.", label="HFU"),
        Field("ratio", "matmul_mfu", "MFU of matrix products alone.", label="matmul MFU"),
        Field("ratio", "matmul_hfu", "HFU of matrix products alone.", label="matmul HFU"),
        Field("number", "peak_flops", "Peak FLOP per second of one JAX device for 16-bit floats.",
              label="peak FLOP/s"),
        Field("count", "num_devices", "Devices that the FLOPs are divided by.", label="devices"),
        Field("seconds", "compiler_seconds",
              "The compiler's estimates of the instructions that have one.",
              label="compiler estimate"),
        Field("seconds", "compared_seconds", "The seconds of the same instructions here.",
              label="same instructions here"),
        Field("count", "compiler_instructions",
              "How many instructions have an estimate of the compiler.",
              label="instructions compared"),
    )  # fmt: skip

    def __init__(
        self,
        module: Module,
        device: devices.Device,
        estimates: str,
        data: _core.TimeData,
        *,
        collective_model: str = "topology",
        mesh: _core.Mesh | None = None,
    ) -> None:
        self.module = module
        """The module."""
        self.device = device
        """The chip that it was timed for."""
        self.estimates = estimates
        """Whose seconds of instructions count: model, roofline or compiler."""
        self.collective_model = collective_model
        """Whose seconds of collectives count: one of `MODELS`, or measurements."""
        self._mesh = mesh
        self._data = data
        self._step = data.step()
        self._utilization: Utilization | None = None
        self._collectives: Table | None = None

    @property
    def facts(self) -> tuple[Fact, ...]:
        """On what the module runs, its step, how much of the device that uses."""
        values: list[tuple[str, Any, str]] = [
            ("device", self.device.name, "configuration"),
            ("estimates", self.estimates, "configuration"),
            ("collective_model", self.collective_model, "configuration"),
            ("mesh", self.mesh, "configuration" if self.mesh_source == "given" else "exact"),
            ("mesh_source", self.mesh_source, "exact"),
            ("step_seconds", self.step_seconds, "bound" if self.is_lower_bound else "modelled"),
            ("bound", self.bound, "modelled"),
        ]
        used = self._used()
        if used is not None:
            is_bound = used.is_lower_bound and not self.is_lower_bound
            how = "bound" if is_bound else "modelled"
            figures = used.as_dict()
            values += [(name, figures[name], how) for name in _RATIOS]
            values += [(name, figures[name], "exact") for name in ("peak_flops", "num_devices")]
        values += self._compared()
        return self._facts(values)

    def _used(self) -> Utilization | None:
        """`utilization`; None where a figure for it is missing or the step takes no time."""
        needed = ("flops.bf16", "jax_devices")
        is_known = all(self.device.value(name) is not None for name in needed)
        return self.utilization if is_known and self.step_seconds > 0 else None

    def _compared(self) -> list[tuple[str, Any, str]]:
        """What the compiler expects beside what the model does, of instructions with both."""
        rows = [
            (theirs, own, times)
            for theirs, own, times in zip(
                self._values("compiler_seconds"),
                self._values("seconds"),
                self._times(),
                strict=True,
            )
            if theirs is not None and own is not None and times
        ]
        if not rows:
            return []
        return [
            ("compiler_seconds", sum(theirs * times for theirs, _, times in rows), "modelled"),
            ("compared_seconds", sum(own * times for _, own, times in rows), "modelled"),
            ("compiler_instructions", len(rows), "exact"),
        ]

    def _values(self, name: str) -> list[float | None]:
        field = next(field for field in _SECONDS if field.name == name)
        return field.values(self._data.column(name))

    def _times(self) -> list[int | None]:
        return _MULTIPLICITY.values(self._data.column("multiplicity"))

    @property
    def notes(self) -> tuple[Note, ...]:
        """What to keep in mind about the figures."""
        from hlofast._time_notes import notes

        return tuple(notes(self))

    def sections(self, by: str = "bound") -> tuple[Section, ...]:
        """What the step goes to, sums by `by` (of `KEYS`), collectives; what is missing."""
        hidden: tuple[str, ...] = ()
        loops = [(row,) for row in self._data.open_loops()]
        unknown = [(name,) for name in self.unknown]
        figures = devices.table({self.device.name: self.device})
        return (
            self._parts(),
            self._groups(by),
            self._sent(),
            Section("unknown", "Unknown figures", of_rows(FIGURE, unknown), hidden),
            Section("open_loops", "Loops that count once", of_rows(_LOOP, loops), hidden),
            Section("figures", "Figures of the device", figures, hidden),
        )

    def _parts(self) -> Section:
        rows: list[tuple[str, str | None, float]] = [
            ("compute", None, self.compute_seconds),
            ("memory", None, self.memory_seconds),
            ("other", None, self.other_seconds),
            *(("exposed", axes, seconds) for axes, seconds in self._step[4]),
        ]
        rows.sort(key=lambda row: row[2] if row[2] == row[2] else 0.0, reverse=True)
        found = shares([seconds for *_, seconds in rows], self.step_seconds)
        table = of_rows(_PARTS, [(*row, part) for row, part in zip(rows, found, strict=True)])
        return Section("parts", "What the step goes to", table, is_whole=True)

    def _groups(self, by: str) -> Section:
        grouped = self.by(by)
        seconds = grouped.values("seconds")
        table = Table.of(
            [
                (_KEY.replace(label=by), grouped.values(by)),
                *((grouped.field(name), grouped.values(name)) for name in grouped.columns[1:]),
                (_SHARE, shares(seconds, sum(seconds))),
            ]
        )
        return Section("groups", f"By {by}, each instruction by itself", table)

    def _sent(self) -> Section:
        """The collectives, those that take most time in the step first."""
        found = self.collectives
        each = zip(found.values("seconds"), found.values("multiplicity"), strict=True)
        times = [0.0 if own is None else own * (1 if n is None else n) for own, n in each]
        ordered = found.take(sorted(range(len(found)), key=lambda row: -times[row]))
        shown = ["name", "kind", "axes", "payload", "group_size", "seconds", "alpha_seconds"]
        shown += ["exposed_seconds", "multiplicity"]
        if ordered.values("collective") != ordered.values("name"):
            # Inside of fusions and calls, that of the schedule is another name.
            name = ordered.field("name").replace(label="scheduled as")
            ordered = Table(
                {**ordered._described_by_name(), "name": (name, ordered._columns["name"])}.values()
            )
            shown.insert(1, "collective")
        if any(ordered.values("unknown")):
            shown.append("unknown")
        return Section("collectives", "Collectives, one execution each", ordered, shown)

    @property
    def step_seconds(self) -> float:
        """Seconds of one run of the module, as scheduled; a lower bound if `unknown` is not empty.

        Loops of unknown trip count (`open_loops`) count once; of each conditional the branch that
        takes longest counts.
        """
        return self._step[0]

    @property
    def compute_seconds(self) -> float:
        """Of those, seconds of instructions that computing limits."""
        return self._step[1]

    @property
    def memory_seconds(self) -> float:
        """Of those, seconds of instructions that moving data limits, and of waiting for copies."""
        return self._step[2]

    @property
    def other_seconds(self) -> float:
        """Of those, launches and instructions whose limit is not known."""
        return self._step[3]

    @property
    def exposed(self) -> dict[str, float]:
        """Of those, seconds of waiting for collectives, by the axes of the mesh they cross.

        Together with `compute_seconds`, `memory_seconds` and `other_seconds` they are
        `step_seconds`.
        """
        return dict(self._step[4])

    @property
    def bound(self) -> str:
        """What takes most of the step: compute, memory, other or communication.

        Communication is all of `exposed` together, and is followed by the axes: `over data`, or
        `longest over data` where others are waited for too; `along no axes of the mesh` if those
        devices do not fit it.
        """
        if self.step_seconds <= 0:
            return "nothing"
        waits = {axes: seconds for axes, seconds in self._step[4] if seconds > 0}
        parts = {
            "compute": self.compute_seconds,
            "memory": self.memory_seconds,
            "other": self.other_seconds,
            "communication": sum(waits.values()),
        }
        most = max(parts, key=lambda name: parts[name])
        if most != "communication":
            return most
        longest = max(waits, key=lambda axes: waits[axes])
        where = "along no axes of the mesh" if longest == NO_AXES else f"over {longest}"
        return f"{most} {where}" if len(waits) == 1 else f"{most}, longest {where}"

    @property
    def is_lower_bound(self) -> bool:
        """Whether the step takes longer: figures are `unknown`, or `open_loops` count once."""
        return bool(self.unknown or self.open_loops)

    @property
    def has_network(self) -> bool:
        """Whether the mesh says how its devices lie on hosts or slices."""
        mesh = self._mesh
        return mesh is not None and (mesh.hosts is not None or mesh.slices is not None)

    @property
    def mesh(self) -> str | None:
        """The mesh as text, `data=2,model=4`; None if none was given and none is known."""
        return self._data.mesh

    @property
    def mesh_source(self) -> str | None:
        """Where the mesh comes from: `given`, or `Mesh.source`; None without a mesh."""
        if self._mesh is not None:
            return self._mesh.source or "given"
        return None if self.mesh is None else self._data.mesh_source

    @property
    def unknown(self) -> tuple[str, ...]:
        """Figures that were needed and are not known; what needs them counts as 0 seconds.

        Names of `hlofast.devices.FIGURES`, `flops` for the peak of some element type, or what the
        text does not tell (`payload`, `group size`).
        """
        return tuple(self._data.unknown_figures)

    @property
    def open_loops(self) -> tuple[str, ...]:
        """Names of the loops of unknown trip count, which count once."""
        return tuple(self.module[row].name for row in self._data.open_loops())

    @property
    def utilization(self) -> Utilization:
        """MFU and HFU of a step of this length; see `Cost.mfu`.

        The peak is that of one JAX device for 16-bit floats. An `UnknownFigureError` without it, a
        `ValueError` for a step of no length.
        """
        if self._utilization is None:
            peak = self.device.per_jax_device("flops.bf16")
            self._utilization = self.module.cost().mfu(self.step_seconds, peak)
        return self._utilization

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization of a step of this length, between 0 and 1."""
        return self.utilization.mfu

    def column(self, name: str) -> numpy.typing.NDArray[Any]:
        """One figure of every instruction as a read-only NumPy array.

        `seconds`, `compute_seconds`, `memory_seconds`, `roofline_seconds` (one execution, by
        itself), `compiler_seconds` (`estimated_cycles` over the clock; NaN without one),
        `start_seconds`, `end_seconds` (within its computation, as scheduled), `exposed_seconds`
        (waiting for its collective), all float64; `multiplicity` (int64, executions outside
        fusions, -1 beyond 64 bits), `bound` (uint8, position in none, compute, memory,
        communication, launch, unknown), `provenance` (uint8, position in `hlofast.provenances`).
        """
        import numpy

        return numpy.asarray(self._data.column(name))

    def table(self) -> Table:
        """The instruction table of the module with the columns of this count.

        `total_seconds` is `seconds` times `multiplicity`, without overlap.
        """
        columns = _core._instruction_columns(self.module)
        columns += [(field, self._data.column(field.name)) for field in _SECONDS]
        pairs = zip(self._values("seconds"), self._times(), strict=True)
        totals = [None if own is None or n is None else own * n for own, n in pairs]
        columns += [
            (_MULTIPLICITY, self._data.column("multiplicity")),
            (_TOTAL_SECONDS, column_of(_TOTAL_SECONDS, totals)),
        ]
        for field, texts in ((_BOUND, BOUNDS), (_PROVENANCE, _core.provenances)):
            columns.append((field, _core.TextColumn(list(texts), self._data.column(field.name))))
        return Table(columns)

    def by(self, key: str) -> Table:
        """Seconds of all executions by `key`, longest first.

        Keys: bound, opcode, computation, phase, scope (full names) and source (file and line).
        Columns: the key, instructions, seconds (each instruction by itself, times its executions;
        what overlaps counts twice). Waiting for collectives is not in it: see `collectives`. A
        `KeyError` for other keys.
        """
        if key not in _KEYS:
            raise unknown("key", key, _KEYS)
        pairs = zip(self._values("seconds"), self._times(), strict=True)
        taking = {row: own * n for row, (own, n) in enumerate(pairs) if own and n}
        sums: dict[str | None, tuple[int, float]] = {}
        labels = self._labels(key, list(taking))
        for spent, label in zip(taking.values(), labels, strict=True):
            count, seconds = sums.get(label, (0, 0.0))
            sums[label] = count + 1, seconds + spent
        rows = sorted(sums.items(), key=lambda item: -item[1][1])
        return Table.of(
            [
                (_KEYS[key], [label for label, _ in rows]),
                (_INSTRUCTIONS, [count for _, (count, _) in rows]),
                (_GROUP_SECONDS, [seconds for _, (_, seconds) in rows]),
            ]
        )

    def _labels(self, key: str, rows: list[int]) -> Sequence[str | None]:
        """What each of `rows` is under `key`."""
        if key == "bound":
            bounds = self._data.column("bound").tolist()
            return [BOUNDS[bounds[row]] for row in rows]
        if key in ("phase", "scope"):
            cost = self.module.cost()
            codes = cost._data.column(key).tolist()
            words = _core.phases if key == "phase" else cost.scopes
            return [words[codes[row]] or None for row in rows]
        found = [self.module[row] for row in rows]
        if key == "opcode":
            return [instruction.opcode for instruction in found]
        if key == "computation":
            return [instruction.computation.name for instruction in found]
        places = [instruction.source for instruction in found]
        return [None if place is None else f"{place.file}:{place.line}" for place in places]

    @property
    def collectives(self) -> Table:
        """Every collective: what it sends, how long it takes and how much of that is waited for.

        What is scheduled may be a fusion or a call that the collective is in. `fields` says what
        the columns are.
        """
        if self._collectives is None:
            self._collectives = Table(self._data.collectives())
        return self._collectives

    def __repr__(self) -> str:
        least = "at least " if self.is_lower_bound else ""
        return (
            f"<Time of {self.module.name} on {self.device.name}: {least}"
            f"{self.step_seconds:.6g} s, bound by {self.bound}>"
        )


def time(
    module: Module,
    chip: devices.Device,
    mesh: _core.Mesh | None,
    estimates: str,
    collectives: str | Measurements | None,
) -> Time:
    """`Module.time`."""
    model = collectives if isinstance(collectives, str) else "topology"
    if model not in MODELS:
        raise ValueError(f"collectives is one of {', '.join(MODELS)}, or measurements")
    parts = chip._parts()

    def timed(measured: list[tuple[int, float]] | None) -> _core.TimeData:
        return _core._time(
            module, parts, mesh=mesh, estimates=estimates, model=model, measured=measured
        )

    data = timed(None)
    if collectives is not None and not isinstance(collectives, str):
        data = timed(_measured(Table(data.collectives()), collectives))
        model = MEASURED
    return Time(module, chip, estimates, data, collective_model=model, mesh=mesh)


def _measured(found: Table, measurements: Measurements) -> list[tuple[int, float]]:
    """What was measured of the collectives, by their number."""
    times: list[tuple[int, float]] = []
    for number, row in enumerate(found):
        if row["payload"] is None or row["group_size"] is None:
            continue
        seconds = measurements.seconds(row["kind"], row["payload"], row["group_size"])
        if seconds is not None:
            times.append((number, seconds))
    return times
