"""`Time`: modelled time of a module on a device, in totals, columns and tables."""

from __future__ import annotations

from math import inf

from hlofast import _core, _time_parts, devices
from hlofast._collectives_notes import NO_AXES
from hlofast._context import measured_for, ran_on
from hlofast._core import Field
from hlofast._custom_calls import stated
from hlofast._names import unknown
from hlofast._profile_fields import OF_CALLS, OF_CALLS_EXPOSED
from hlofast._result import Fact, Note, Result, Section
from hlofast._scheduled import labels
from hlofast.table import Table, column_of, of_rows, with_columns

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
"""Limits of an instruction, indexed by the codes of the column `bound`."""
_SECONDS = tuple(
    Field("seconds", name, doc, nullable=True)
    for name, doc in (
        ("seconds", "Time of one call, without overlap; of a collective, its time on the links."),
        ("compute_seconds", "Time of computing."),
        ("memory_seconds", "Time of moving data."),
        ("roofline_seconds", "Time at peak FLOP/s or full bandwidth, whichever is longer."),
        ("compiler_seconds", "The compiler's estimated cycles over the clock rate."),
        ("start_seconds", "Scheduled start, from the start of its computation."),
        ("end_seconds", "Scheduled end, from the start of its computation."),
        ("exposed_seconds", "Time that the step waits for the collective."),
    )
)
_MULTIPLICITY = Field(
    "count",
    "multiplicity",
    "Calls per step of the instruction; a fusion counts as one instruction.",
    label="calls",
    nullable=True,
)
_TOTAL_SECONDS = Field(
    "seconds",
    "total_seconds",
    "Time of all calls, without overlap.",
    nullable=True,
    adds_up=True,
)
_BOUND = Field("word", "bound", "What limits the instruction.")
_PROVENANCE = Field("word", "provenance", "Provenance of the seconds.")
_KEYS = {
    "bound": _BOUND,
    "opcode": Field("word", "opcode", "The opcode."),
    "computation": Field("name", "computation", "The computation that the instruction is in."),
    "phase": Field("word", "phase", "Forward, backward, recompute, optimizer or unattributed."),
    "scope": Field("scope", "scope", "Framework scope (name stack).", nullable=True),
    "source": Field("path", "source", "Source file and line.", nullable=True),
}
MODELS = ("topology", "speed-of-light", "alpa")
"""Models of collective time."""
MEASURED = "measurements"
"""The `collective_model` of measured collective times."""
KEYS = tuple(_KEYS)
"""Keys of `Time.by`."""
_KEY = Field("text", "key", "The value of the key.", nullable=True)
FIGURE = (Field("name", "figure", "The unknown figure of the device or of the text."),)
_LOOP = (Field("instruction", "instruction", "The row number of the loop."),)
_RANGE = ("step_low_seconds", "step_high_seconds")
_RATIOS = ("mfu", "hfu", "matmul_mfu", "matmul_hfu")


class Time(Result):
    """The modelled time of a module: `Module.time()`.

    `estimates` selects the seconds of instructions: hlofast's model of the device, the roofline
    (computing at the peak or moving HBM bytes at full bandwidth, whichever is longer), or the
    compiler's estimates in the dump. The step time comes from simulating the schedule with these
    seconds on one compute unit, one set of links per mesh axis, and copies in parallel to both.
    """

    __slots__ = (
        "_collectives", "_data", "_measured", "_mesh", "_step", "_unpriced_rows", "_utilization",
        "collective_model", "device", "estimates", "module",
    )  # fmt: skip

    VERB = "time"
    FACTS = (
        Field("name", "device", "The chip that the module is timed for."),
        Field("word", "estimates", "Source of instruction times: model, roofline or compiler."),
        Field("word", "collective_model", "Source of collective times: a model, or measurements.",
              label="collectives"),
        Field("text", "mesh", "The mesh whose axes are named."),
        Field("text", "mesh_source", "Source of the mesh.", label="mesh from"),
        Field("seconds", "step_seconds", "Time of one run of the module, as scheduled.",
              label="step"),
        Field("seconds", "step_low_seconds",
              "10th percentile of the step, from the model's errors on measured steps.",
              label="step p10", nullable=True),
        Field("seconds", "step_high_seconds",
              "90th percentile of the step, from the model's errors on measured steps.",
              label="step p90", nullable=True),
        Field("text", "bound", "The largest part of the step.", label="bound by"),
        Field("seconds", "measured_step", "The measured step time.", label="measured step"),
        Field("ratio", "measured_mfu", "MFU of the measured step.", label="measured MFU"),
        Field("ratio", "mfu", "Model FLOPs utilization of this step.", label="MFU"),
        Field("ratio", "hfu", "Hardware FLOPs utilization: MFU with recomputation.", label="HFU"),
        Field("ratio", "matmul_mfu", "MFU of matmuls only.", label="matmul MFU"),
        Field("ratio", "matmul_hfu", "HFU of matmuls only.", label="matmul HFU"),
        Field("number", "peak_flops",
              "Peak of one JAX device in FLOP/s, for the element types that the module multiplies.",
              label="peak FLOP/s"),
        Field("count", "num_devices", "Devices that share the FLOPs, whose peaks MFU adds up.",
              label="devices for MFU"),
        Field("seconds", "compiler_seconds",
              "The compiler's estimate, summed over the instructions that have one.",
              label="compiler estimate"),
        Field("seconds", "compared_seconds", "hlofast's estimate of the same instructions.",
              label="hlofast, same instructions"),
        Field("count", "compiler_instructions",
              "Number of instructions with a compiler estimate.",
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
        """The chip that the module is timed for."""
        self.estimates = estimates
        """Source of instruction times: model, roofline or compiler."""
        self.collective_model = collective_model
        """Source of collective times: one of `MODELS`, or measurements."""
        self._mesh = mesh
        self._data = data
        self._measured = measured_for(module, mesh)
        self._step = data.step()
        self._utilization: Utilization | None = None
        self._collectives: Table | None = None
        self._unpriced_rows: list[int] | None = None

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Device, step time, bound and utilization."""
        from hlofast._collectives import MESH_SOURCES

        values: list[tuple[str, Any, str]] = [
            ("device", self.device.name, "configuration"),
            ("estimates", self.estimates, "configuration"),
            ("collective_model", self.collective_model, "configuration"),
            ("mesh", self.mesh, "configuration" if self.mesh_source == "given" else "exact"),
            ("mesh_source", MESH_SOURCES.get(self.mesh_source or ""), "exact"),
            ("step_seconds", self.step_seconds, "bound" if self.is_lower_bound else "modelled"),
            *(
                (name, own, "modelled")
                for name, own in zip(_RANGE, self.range, strict=True)
                if own is not None
            ),
            ("bound", self.bound, "modelled"),
        ]
        used = self._used()
        measured = self.module.cost().step_seconds
        if measured is not None:
            how = "configuration" if self._measured is None else "measured"
            values.append(("measured_step", measured, how))
        # The step of one kind of device has no share of the peak of another.
        fits = self._measured is None or ran_on(self.module, self.device)
        if measured is not None and used is not None and fits:
            again = self.module.cost().mfu(measured, device=self.device)
            how = "bound" if again.is_lower_bound else "modelled"
            values.append(("measured_mfu", again.mfu, how))
        if used is not None:
            is_bound = used.is_lower_bound and not self.is_lower_bound
            how = "bound" if is_bound else "modelled"
            figures = used.as_dict()
            values += [(name, figures[name], how) for name in _RATIOS]
            values += [(name, figures[name], "exact") for name in ("peak_flops", "num_devices")]
        values += self._compared()
        from hlofast._shares import labelled

        return labelled(self.module, self._facts(values), ("seconds",))

    @property
    def range(self) -> tuple[float | None, float | None]:
        """10th and 90th percentile of the step, in seconds, from the model's measured errors.

        None where no measurement tells; a step that is a lower bound has no 90th percentile.
        """
        return _time_parts.step_range(self)

    def measured_by_bound(self) -> dict[str, float]:
        """Measured seconds of the step by what bounds the instructions; empty without a profile."""
        table = self.by("bound")
        pairs = zip(table.values("bound"), table.values("measured_seconds"), strict=True)
        return {bound: seconds for bound, seconds in pairs if seconds is not None}

    def _used(self) -> Utilization | None:
        """`utilization`; None if it is not known."""
        from hlofast._shares import devices_together

        if devices_together(self.module) > 1:
            return None  # The step time is the time of one device with the work of all devices.
        needed = ("flops.bf16", "jax_devices")
        is_known = all(self.device.value(name) is not None for name in needed)
        if not is_known or not 0 < self.step_seconds < inf:
            return None
        try:
            return self.utilization
        except ValueError:
            return None

    def _compared(self) -> list[tuple[str, Any, str]]:
        """Compiler's and hlofast's estimates of the instructions that have both.

        The compiler's estimates of collectives leave out the links.
        """
        sent = BOUNDS.index("communication")
        rows = [
            (theirs, own, times)
            for theirs, own, times, bound in zip(
                self._values("compiler_seconds"),
                self._values("seconds"),
                self._times(),
                self._data.column("bound").tolist(),
                strict=True,
            )
            if theirs is not None and own is not None and times and bound != sent
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

    def _times(self, rows: Sequence[int] | None = None) -> list[int | None]:
        """Calls per step of all instructions, or of some."""
        column = self._data.column("multiplicity")
        return _MULTIPLICITY.values(column if rows is None else column.take(rows))

    @property
    def notes(self) -> tuple[Note, ...]:
        """Assumptions and gaps behind the figures."""
        from hlofast._time_notes import notes

        return tuple(notes(self))

    def sections(self, by: str = "bound") -> tuple[Section, ...]:
        """Parts of the step, totals by `by` (one of `KEYS`), collectives, unknown figures."""
        hidden: tuple[str, ...] = ()
        loops = [(row,) for row in self._data.open_loops()]
        unknown = [(name,) for name in self.unknown]
        figures = devices.table({self.device.name: self.device})
        return (
            _time_parts.parts(self),
            self._groups(by),
            self._sent(),
            Section("unknown", "Unknown figures", of_rows(FIGURE, unknown), hidden),
            Section("open_loops", "Loops of unknown trip count", of_rows(_LOOP, loops), hidden),
            Section("figures", "Device figures", figures, hidden),
        )

    def _groups(self, by: str) -> Section:
        return _time_parts.grouped(self, by, _KEY.replace(label=by))

    def _sent(self) -> Section:
        """The collectives, longest total time first."""
        collectives = self.collectives
        each = zip(collectives.values("seconds"), collectives.values("multiplicity"), strict=True)
        times = [0.0 if own is None else own * (1 if n is None else n) for own, n in each]
        ordered = collectives.take(sorted(range(len(collectives)), key=lambda row: -times[row]))
        shown = ["name", "kind", "axes", "payload", "group_size", "seconds", "alpha_seconds"]
        shown += ["exposed_seconds", "multiplicity"]
        shown += ["measured_seconds", "measured_exposed_seconds"]
        if ordered.values("collective") != ordered.values("name"):
            # The scheduled instruction may be a fusion or call around the collective.
            name = ordered.field("name").replace(label="scheduled as")
            ordered = Table(
                {**ordered._described_by_name(), "name": (name, ordered._columns["name"])}.values()
            )
            shown.insert(1, "collective")
        if any(ordered.values("unknown")):
            shown.append("unknown")
        return Section(
            "collectives", "Collectives, times per call", ordered, shown, figure="seconds"
        )

    @property
    def step_seconds(self) -> float:
        """Seconds of one run of the module, as scheduled.

        Loops of unknown trip count (`open_loops`) count as one iteration, and instructions of
        unknown work (`unpriced`) as the time to move their bytes: see `is_lower_bound`.
        Conditionals are assumed to take their longest branch.
        """
        return self._step[0]

    @property
    def compute_seconds(self) -> float:
        """Seconds of the step in compute-bound instructions."""
        return self._step[1]

    @property
    def memory_seconds(self) -> float:
        """Seconds of the step in memory-bound instructions and in waiting for copies."""
        return self._step[2]

    @property
    def other_seconds(self) -> float:
        """Seconds of the step in launches and instructions of unknown bound."""
        return self._step[3]

    @property
    def exposed(self) -> dict[str, float]:
        """Seconds of the step waiting for collectives, by mesh axes.

        With `compute_seconds`, `memory_seconds` and `other_seconds` they add up to `step_seconds`.
        """
        return dict(self._step[4])

    @property
    def bound(self) -> str:
        """The largest part of the step: compute, memory, other or communication.

        Communication is the sum of `exposed`, followed by its axes: `communication along data`, or
        `communication, longest along data` if other axes are exposed too. Groups that match no mesh
        axes are `along no mesh axes`.
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
        where = "along no mesh axes" if longest == NO_AXES else f"along {longest}"
        return f"{most} {where}" if len(waits) == 1 else f"{most}, longest {where}"

    @property
    def is_lower_bound(self) -> bool:
        """Whether the step may take longer: see `unknown`, `open_loops` and `unpriced`."""
        return bool(self.unknown or self.open_loops or self._unpriced())

    def _unpriced(self) -> list[int]:
        """Rows of executed instructions of unknown work."""
        if self._unpriced_rows is None:
            unknown = _core.provenances.index("unknown")
            provenance = self._data.column("provenance").tolist()
            known = enumerate(zip(provenance, self._times(), strict=True))
            # A count beyond 64 bits is None.
            own = [row for row, (how, times) in known if how == unknown and times != 0]
            self._unpriced_rows = own
        return self._unpriced_rows

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Names of executed instructions of unknown work, timed by the bytes that they move.

        For example kernels without an estimate; `register_custom_call` gives their work.
        """
        return tuple(self.module[row].name for row in self._unpriced())

    @property
    def assumed_branches(self) -> tuple[str, ...]:
        """Names of conditionals, whose longest branch is assumed to run."""
        return tuple(self.module[row].name for row, _ in self._data.branches())

    @property
    def has_network(self) -> bool:
        """Whether the mesh gives the hosts or slices of its devices."""
        mesh = self._mesh
        return mesh is not None and (mesh.hosts is not None or mesh.slices is not None)

    @property
    def mesh(self) -> str | None:
        """The mesh as text, such as `data=2,model=4`; None if unknown."""
        return self._data.mesh

    @property
    def mesh_source(self) -> str | None:
        """The source of the mesh: `given`, or `Mesh.source`; None without a mesh."""
        if self._mesh is not None:
            return self._mesh.source or "given"
        return None if self.mesh is None else self._data.mesh_source

    @property
    def unknown(self) -> tuple[str, ...]:
        """Figures that are needed but unknown; times that need them count as 0 seconds.

        Names from `hlofast.devices.FIGURES`, `flops` for the peak of some element type, or
        properties that the text does not give (`payload`, `group size`).
        """
        return tuple(self._data.unknown_figures)

    @property
    def open_loops(self) -> tuple[str, ...]:
        """Names of the loops of unknown trip count, which count as one iteration."""
        return tuple(self.module[row].name for row in self._data.open_loops())

    @property
    def utilization(self) -> Utilization:
        """MFU and HFU at this step time on `device`; see `Cost.mfu`.

        Every matmul counts at the peak of the element type that it multiplies. Raises
        `UnknownFigureError` if the bfloat16 peak is unknown, and `ValueError` if the step time is 0
        or covers all devices together, or if no FLOPs are known in a step that has some.
        """
        if self._utilization is None:
            from hlofast._shares import devices_together, refusal

            if devices_together(self.module) > 1:
                raise ValueError(refusal(self.module))
            used = self.module.cost().mfu(self.step_seconds, device=self.device)
            if used.is_lower_bound and not used.hfu:
                raise ValueError("the FLOPs of the step are unknown")
            self._utilization = used
        return self._utilization

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization at this step time, between 0 and 1."""
        return self.utilization.mfu

    def column(self, name: str) -> numpy.typing.NDArray[Any]:
        """Returns one figure of every instruction as a read-only NumPy array.

        - `seconds`, `compute_seconds`, `memory_seconds`, `roofline_seconds`: float64, per call,
          without overlap.
        - `compiler_seconds`: float64, `estimated_cycles` over the clock rate; NaN without an
        estimate.
        - `start_seconds`, `end_seconds`: float64, scheduled, from the start of the computation.
        - `exposed_seconds`: float64, waiting for the collective.
        - `multiplicity`: int64, calls per step outside fusions; -1 beyond 64 bits.
        - `bound`: uint8, index into none, compute, memory, communication, launch, unknown.
        - `provenance`: uint8, index into `hlofast.provenances`.
        """
        import numpy

        return numpy.asarray(self._data.column(name))

    def table(self) -> Table:
        """Returns the module's instruction table with the columns of this time model.

        `total_seconds` is `seconds` times `multiplicity`, without overlap. With a profile in the
        context, `measured_seconds` is the measured time of all calls.
        """
        columns = _core._instruction_columns(self.module)
        columns += [(field, self._data.column(field.name)) for field in _SECONDS]
        pairs = zip(self._values("seconds"), self._times(), strict=True)
        totals = [None if own is None or n is None else own * n for own, n in pairs]
        columns += [
            (_MULTIPLICITY, self._data.column("multiplicity")),
            (_TOTAL_SECONDS, column_of(_TOTAL_SECONDS, totals)),
        ]
        clock = column_of(OF_CALLS, [None] * len(totals))
        if self._measured is not None:
            clock = self._measured.column("seconds")
        columns.append((OF_CALLS, clock))
        for field, texts in ((_BOUND, BOUNDS), (_PROVENANCE, _core.provenances)):
            columns.append((field, _core.TextColumn(list(texts), self._data.column(field.name))))
        return Table(columns)

    def by(self, key: str) -> Table:
        """Returns the seconds of all calls by `key`, longest first.

        Keys: bound, opcode, computation, phase, scope (full names) and source (file and line);
        raises `KeyError` for other keys. Columns: the key, instructions, seconds (time per call
        times calls; overlapping time counts twice; of collectives, the time on the links),
        step_seconds and, with a profile in the context, measured_seconds.

        step_seconds are what the schedule spends in the instructions, waiting included; those of
        all groups add up to the step, without the wait for other slices.
        """
        if key not in _KEYS:
            raise unknown("key", key, _KEYS)
        return _time_parts.groups(self, key, _KEYS[key])

    def longest(self, count: int = 20) -> Table:
        """Returns the instructions that take most of the step, longest first.

        Columns: instruction, opcode, seconds (of a call), multiplicity (calls of a step),
        step_seconds (of all calls as scheduled, waiting included), share (of the step), bound,
        phase, scope and source.
        """
        return _time_parts.longest(self, count)

    def _labels(self, key: str, rows: list[int]) -> Sequence[str | None]:
        """Returns the value of `key` for each of `rows`."""
        if key == "bound":
            bounds = self._data.column("bound").tolist()
            return [BOUNDS[bounds[row]] for row in rows]
        return labels(self.module, key, rows)

    @property
    def collectives(self) -> Table:
        """Every collective with its payload, time and exposed time.

        The scheduled instruction may be a fusion or call around the collective. `fields` describes
        the columns.
        """
        if self._collectives is None:
            table = Table(self._data.collectives())
            unknown = float("nan")
            times = [(unknown, unknown)] * len(table)
            if self._measured is not None:
                times = self._measured.collective_seconds()
            further = [
                (OF_CALLS, [None if own != own else own for own, _ in times]),
                (OF_CALLS_EXPOSED, [None if own != own else own for _, own in times]),
            ]
            self._collectives = with_columns(table, further)
        return self._collectives

    def __reduce__(self) -> tuple[object, ...]:
        if self.collective_model == MEASURED:
            raise TypeError("times with measured collectives cannot be pickled; pickle the module")
        return time, (self.module, self.device, self._mesh, self.estimates, self.collective_model)

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
        raise ValueError(
            f"collectives must be one of {', '.join(MODELS)}, or measurements, not {model!r}"
        )
    parts = chip._parts()

    def timed(measured: list[tuple[int, float]] | None) -> _core.TimeData:
        return _core._time(
            module,
            parts,
            mesh=mesh,
            estimates=estimates,
            model=model,
            measured=measured,
            custom_calls=stated(module, None),
        )

    data = timed(None)
    if collectives is not None and not isinstance(collectives, str):
        data = timed(_measured(Table(data.collectives()), collectives))
        model = MEASURED
    return Time(module, chip, estimates, data, collective_model=model, mesh=mesh)


def _measured(collectives: Table, measurements: Measurements) -> list[tuple[int, float]]:
    """Returns number and measured seconds of each collective that has a measurement."""
    times: list[tuple[int, float]] = []
    for number, row in enumerate(collectives):
        if row["payload"] is None or row["group_size"] is None:
            continue
        seconds = measurements.seconds(row["kind"], row["payload"], row["group_size"])
        if seconds is not None:
            times.append((number, seconds))
    return times
