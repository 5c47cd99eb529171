"""`Time`: how long a module takes on a device, in totals, columns and tables."""

from __future__ import annotations

from hlofast import _core, devices
from hlofast._core import Field
from hlofast.table import Table, column_of

TYPE_CHECKING = False  # The command line times modules; importing typing would slow its start.
if TYPE_CHECKING:
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
    "scope": Field("scope", "scope", "The scopes of the framework around it.", nullable=True),
    "source": Field("path", "source", "Source file and line.", nullable=True),
}
NO_AXES = "no axis subset"
"""What stands for the axes of devices that do not differ along axes of the mesh only."""
_MODELS = ("topology", "speed-of-light", "alpa")


class Time:
    """The time of a module: `Module.time()`.

    The seconds of instructions are those of `estimates`: this package's model of the device, the
    roofline (computing at the peak or moving HBM bytes at full bandwidth, whichever is longer), or
    what the compiler wrote into the dump. The step is the schedule played with them: one compute
    unit, links by axis of the mesh, copies beside both.
    """

    __slots__ = ("_collectives", "_data", "_step", "_utilization", "device", "estimates", "module")

    def __init__(
        self, module: Module, device: devices.Device, estimates: str, data: _core.TimeData
    ) -> None:
        self.module = module
        """The module."""
        self.device = device
        """The chip that it was timed for."""
        self.estimates = estimates
        """Whose seconds of instructions count: model, roofline or compiler."""
        self._data = data
        self._step = data.step()
        self._utilization: Utilization | None = None
        self._collectives: Table | None = None

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
    def mesh(self) -> str | None:
        """The mesh as text, `data=2,model=4`; None if none was given and none is known."""
        return self._data.mesh

    @property
    def mesh_source(self) -> str:
        """Where the mesh comes from: given, or the shardings it was derived from; else none."""
        return self._data.mesh_source

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
        times = _MULTIPLICITY.values(self._data.column("multiplicity"))
        each = self._data.column("seconds").tolist()
        totals = [None if n is None else s * n for s, n in zip(each, times, strict=True)]
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
            raise KeyError(key)
        each = self._data.column("seconds").tolist()
        times = self._data.column("multiplicity").tolist()
        taking = [row for row, value in enumerate(each) if value > 0 and times[row] > 0]
        sums: dict[str, tuple[int, float]] = {}
        for row, label in zip(taking, self._labels(key, taking), strict=True):
            count, seconds = sums.get(label, (0, 0.0))
            sums[label] = count + 1, seconds + each[row] * times[row]
        rows = sorted(sums.items(), key=lambda item: -item[1][1])
        return Table.of(
            [
                (_KEYS[key], [label for label, _ in rows]),
                (_INSTRUCTIONS, [count for _, (count, _) in rows]),
                (_GROUP_SECONDS, [seconds for _, (_, seconds) in rows]),
            ]
        )

    def _labels(self, key: str, rows: list[int]) -> list[str]:
        """What each of `rows` is under `key`."""
        if key == "bound":
            bounds = self._data.column("bound").tolist()
            return [BOUNDS[bounds[row]] for row in rows]
        if key in ("phase", "scope"):
            cost = self.module.cost()
            codes = cost._data.column(key).tolist()
            words = _core.phases if key == "phase" else cost.scopes
            return [words[codes[row]] for row in rows]
        found = [self.module[row] for row in rows]
        if key == "opcode":
            return [instruction.opcode for instruction in found]
        if key == "computation":
            return [instruction.computation.name for instruction in found]
        places = [instruction.source for instruction in found]
        return ["" if place is None else f"{place.file}:{place.line}" for place in places]

    @property
    def collectives(self) -> Table:
        """Every collective: what it sends, how long it takes and how much of that is waited for.

        Columns: instruction and name (what is scheduled: the collective, or the fusion or call that
        it is in), collective (the name of the collective itself, as in `Collectives`), kind, axes,
        payload (bytes of the whole array), group_size, wire_bytes (that
        each device sends), seconds (of one execution), alpha_seconds (of those, what does not
        depend on the size), bytes_per_second (wire bytes over the rest), exposed_seconds (of one
        execution), multiplicity, unknown (the figure that is missing, or empty).
        """
        if self._collectives is None:
            self._collectives = Table(self._data.collectives())
        return self._collectives

    def __repr__(self) -> str:
        least = "at least " if self.unknown or self.open_loops else ""
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
    if model not in _MODELS:
        raise ValueError(f"collectives is one of {', '.join(_MODELS)}, or measurements")
    parts = chip._parts()

    def timed(measured: list[tuple[int, float]] | None) -> _core.TimeData:
        return _core._time(
            module,
            parts,
            mesh=mesh,
            estimates=estimates,
            model=model,
            measured=measured,
        )

    data = timed(None)
    if collectives is not None and not isinstance(collectives, str):
        data = timed(_measured(Table(data.collectives()), collectives))
    return Time(module, chip, estimates, data)


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
