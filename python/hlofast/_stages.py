"""`Stages`: the sections between Alpa's pipeline markers, their boundary and memory."""

from __future__ import annotations

from hlofast import _text
from hlofast._core import Field
from hlofast._names import unknown
from hlofast._result import Fact, Note, Result, Section
from hlofast._units import read_memory
from hlofast.table import Table, column_of, with_share, with_source

TYPE_CHECKING = False  # The command line lists stages; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hlofast._core import Instruction
    from hlofast._module import Module
    from hlofast.devices import Device

_MARKER = Field("name", "marker", "Name of the marker: the section, and start or end.")
_SIZES = Field(
    "text", "sizes", "Bytes of each array from the marker's backend_config.", label="stated sizes",
    nullable=True,
)  # fmt: skip
_VALUES = ("instruction", "name", "shape", "bytes", "op_name", "source_file", "source_line")
_SENT = ("name", "shape", "bytes", "source")


class Cut:
    """An alternative stage boundary, from `Boundary.cut`."""

    __slots__ = ("after", "bytes", "moved_flops", "moved_instructions", "values")

    def __init__(self, module: Module, record: dict[str, Any]) -> None:
        self.after: Instruction = module[record["after"]]
        """The last instruction that moves to the previous stage."""
        self.values = Table(record["values"])
        """Values sent at this cut: `instruction`, `name`, `shape`, `bytes`, `op_name`, source."""
        self.bytes: int = record["bytes"]
        """Bytes of these values."""
        self.moved_flops: int = record["moved_flops"]
        """FLOPs that move to the previous stage, per micro-batch, forward."""
        self.moved_instructions: int = record["moved_instructions"]
        """Number of instructions that move, except instructions that depend on weights only."""

    def __repr__(self) -> str:
        return f"<Cut after {self.after.name}: {self.bytes:,} B>"


class Boundary:
    """Values that the first forward section receives per micro-batch: `Stages.boundary`."""

    __slots__ = (
        "cut", "flops", "input_bytes", "inputs", "is_partial", "received", "received_bytes",
        "section",
    )  # fmt: skip

    def __init__(self, module: Module, record: dict[str, Any]) -> None:
        self.section: str = record["section"]
        """The section's name."""
        self.received = Table(record["received"])
        """Float parameters that the stage does not hold: activations; their gradients go back.

        Columns: `instruction`, `name`, `shape`, `bytes`, `op_name`, `source_file`, `source_line`.
        """
        self.received_bytes: int = record["received_bytes"]
        """Bytes of `received`, received forward and sent backward."""
        self.inputs = Table(record["inputs"])
        """Other parameters that the stage does not hold: tokens, labels, masks."""
        self.input_bytes: int = record["input_bytes"]
        """Bytes of `inputs`."""
        self.flops: int = record["flops"]
        """FLOPs of instructions that depend on `received`, per micro-batch, forward."""
        self.cut = None if record["cut"] is None else Cut(module, record["cut"])
        """The cheapest cut nearby; None if none sends fewer bytes."""
        self.is_partial: bool = record["is_partial"]
        """Whether the search stopped early, so that a cheaper cut may exist."""

    @property
    def ratio(self) -> float | None:
        """Bytes received divided by bytes sent at the cheapest cut; None if no bytes are sent."""
        least = self.received_bytes if self.cut is None else self.cut.bytes
        return self.received_bytes / least if least else None

    def __repr__(self) -> str:
        return f"<Boundary of {self.section}: {self.received_bytes:,} B, cut {self.cut!r}>"


class StageMemory:
    """Bytes of a stage, from `Stages.memory`; of all devices together before partitioning."""

    __slots__ = ("available", "stash", "state", "weight_copies", "working_peak")

    def __init__(
        self, figures: tuple[int, int, int, int | None], available: int | None = None
    ) -> None:
        self.state, self.stash, self.weight_copies, self.working_peak = figures
        self.available = available

    state: int
    """Parameters that the update reads: weights, master weights, moments. Exact, from shapes."""
    stash: int
    """Residuals of each micro-batch in flight, without the state. Exact."""
    weight_copies: int
    """Part of the stash: copies of weights, which all micro-batches share."""
    working_peak: int | None
    """The live peak of the forward and backward sections with one micro-batch in flight, without
    the state. Modelled: text order, rule `in_place` of `Module.memory`, no fusion."""
    available: int | None
    """Available bytes; None if unknown."""

    @property
    def most_successors(self) -> int | None:
        """Maximum number of later stages.

        Each of them keeps one more micro-batch in flight in this stage. `(available - peak - state)
        // stash - 1`; the minimum of -1 means that not even one micro-batch fits. This is
        `max_n_succ_stages` of Alpa's `stage_profiling.py`, which profiles the peak; here the peak
        is `working_peak`. None if `available` or the peak is unknown, or if the stash is empty.
        """
        if self.available is None or self.working_peak is None or not self.stash:
            return None
        left = self.available - self.working_peak - self.state
        return max(left // self.stash - 1, -1)

    def __repr__(self) -> str:
        return f"<StageMemory state {self.state:,} B, stash {self.stash:,} B>"


class Stages(Result):
    """The sections between Alpa's pipeline markers: `Module.stages()`.

    Byte counts do not include padding. A module without markers has no sections, and its
    tables are empty.
    """

    __slots__ = ("_arguments", "_data", "_tables", "memory", "module")

    VERB = "stages"
    FACTS = (
        Field("count", "micro_batches", "Micro-batches of a step.", label="micro-batches"),
        Field("bytes", "state",
              "Parameters that the update reads: weights, master weights, moments."),
        Field("bytes", "stash", "Residuals of each micro-batch in flight."),
        Field("bytes", "weight_copies", "Part of the stash: copies of weights.",
              label="weight copies"),
        Field("bytes", "working_peak",
              "Live peak with one micro-batch in flight, without the state.",
              label="working peak"),
        Field("bytes", "available", "Memory of the devices that share the stage."),
        Field("count", "most_successors", "Maximum number of later stages; -1 if not even one "
              "micro-batch fits.", label="successors", signed=True),
        Field("name", "boundary", "The section whose boundary is analysed."),
        Field("bytes", "received_bytes", "Activations that the section receives per micro-batch.",
              label="received"),
        Field("bytes", "input_bytes",
              "Inputs of the section other than activations: tokens, labels, masks.",
              label="inputs"),
        Field("flops", "forward_flops",
              "Forward FLOPs of instructions that depend on the received values.",
              label="forward FLOP"),
        Field("name", "cut_after", "The last instruction before the cheapest cut nearby.",
              label="cheapest cut after"),
        Field("bytes", "cut_bytes", "Bytes sent at the cheapest cut.",
              label="sent at cheapest cut"),
        Field("number", "ratio", "Bytes received over bytes sent at the cheapest cut.",
              label="byte ratio"),
        Field("flops", "moved_flops", "FLOPs that the cheapest cut moves to the previous stage.",
              label="moved FLOP"),
        Field("ratio", "moved_share", "Share of the moved FLOPs in the forward FLOPs.",
              label="moved share"),
        Field("count", "moved_instructions",
              "Instructions that the cheapest cut moves to the previous stage.",
              label="moved instructions"),
    )  # fmt: skip

    def __init__(self, module: Module, available: int | None, most_moved: float | None) -> None:
        self.module = module
        """The module."""
        self._arguments = (available, most_moved)
        self._data = module.cost()._data.stages(most_moved)
        self._tables: dict[str, Table] = {}
        figures = self._data.memory()
        self.memory = None if figures is None else StageMemory(figures, available)
        """Memory of the stage; None without sections or with unknown sizes."""

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Micro-batches, memory and the boundary; empty without markers."""
        if not len(self.markers):
            return ()
        values: list[tuple[str, Any, str]] = [("micro_batches", self.micro_batches, "exact")]
        memory, boundary = self.memory, self.boundary
        if memory is not None:
            values += [
                ("state", memory.state, "exact"),
                ("stash", memory.stash, "exact"),
                ("weight_copies", memory.weight_copies, "exact"),
                ("working_peak", memory.working_peak, "modelled"),
            ]
            if memory.available is not None:
                values.append(("available", memory.available, "configuration"))
                values.append(("most_successors", memory.most_successors, "modelled"))
        if boundary is not None:
            values += _of_boundary(boundary)
        return self._facts(values)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Assumptions and gaps behind the figures."""
        if not len(self.markers):
            text = "the module has no pipeline markers, so it has no stages"
            return (Note("no-markers", text),)
        notes = []
        summary = self.module.summary()
        if summary.devices_together > 1:
            text = (
                f"the module is {summary.status}: bytes and FLOPs cover all devices of the stage "
                "together"
            )
            notes.append(Note("global", text))
        odd = [row["name"] for row in self.markers if row["agrees"] != "yes"]
        if odd:
            text = f"markers whose stated sizes differ from their arrays: {_text.names(odd)}"
            notes.append(Note("sizes", text, markers=len(odd)))
        if self.micro_batches is None:
            divisors = sorted(set(self.divisions.values("divisor")))
            listed = ", ".join(f"{divisor:g}" for divisor in divisors)
            said = f"by different literals ({listed})" if listed else "without a literal divisor"
            text = f"number of micro-batches unknown: the update divides gradients {said}"
            notes.append(Note("micro-batches", text, literals=len(divisors)))
        if self.boundary is not None and self.boundary.is_partial:
            text = "the search for a cheaper cut stopped early; a cheaper cut may exist"
            notes.append(Note("partial", text))
        if self.memory is not None:
            if self.memory.most_successors == -1:
                text = "not even one micro-batch fits into the available memory"
                notes.append(Note("none-fits", text))
            text = (
                "the working peak is modelled: text order, results reuse the buffers of operands "
                "that die there, no fusion"
            )
            notes.append(Note("peak", text))
        return tuple(notes)

    def sections(self) -> tuple[Section, ...]:
        """Sections, received values and inputs, stash, markers, reductions, divisions."""
        named = [f"{row['section']}${row['mark']}" for row in self.markers]
        sizes = [
            None if said is None else ", ".join(f"{size:,}" for size in said)
            for said in self._data.marker_sizes()
        ]
        of_markers = [(_MARKER, column_of(_MARKER, named)), (_SIZES, column_of(_SIZES, sizes))]
        markers = Table([*self.markers._described(), *of_markers])
        boundary = self.boundary
        nothing = Table.of((self.stash.field(name), []) for name in _VALUES)
        cut = None if boundary is None else boundary.cut
        received = nothing if boundary is None else boundary.received
        inputs = nothing if boundary is None else boundary.inputs
        values = nothing if cut is None else cut.values
        stash = with_share(with_source(self.stash.sort_by("bytes", descending=True)), "bytes")
        kept = "forward_index name kind shape bytes share source weight_name widened_from"
        cross = ("operation", "meshes", "shape", "bytes", "section", "place")
        return (
            Section("sections", "Sections", self.parts),
            Section("received", "Received per micro-batch", with_source(received), _SENT),
            Section("inputs", "Other inputs", with_source(inputs), _SENT),
            Section("cut", "Sent with the cheapest cut", with_source(values), _SENT),
            Section("stash", "Kept from forward to backward, per micro-batch", stash, kept.split(),
                    named="name"),
            Section("markers", "Markers", markers,
                    ("marker", "place", "calls", "arrays", "bytes", "sizes", "agrees")),
            Section("cross_mesh", "Reductions over meshes", self.cross_mesh, cross),
            Section("divisions", "Divisions of the update", with_source(self.divisions),
                    ("name", "constant_name", "divisor", "source")),
        )  # fmt: skip

    @property
    def markers(self) -> Table:
        """The markers, in the order of the entry computation; `fields` describes the columns."""
        return self._table("markers")

    @property
    def marker_sizes(self) -> dict[str, tuple[int, ...] | None]:
        """Bytes of each array from the `backend_config` of each marker (`layer_1$start`).

        None for a marker whose `backend_config` is not a list of 64-bit integers. Of several
        markers with one name, the first counts.
        """
        by_marker: dict[str, tuple[int, ...] | None] = {}
        for row, sizes in zip(self.markers, self._data.marker_sizes(), strict=True):
            name = f"{row['section']}${row['mark']}"
            by_marker.setdefault(name, None if sizes is None else tuple(sizes))
        return by_marker

    @property
    def parts(self) -> Table:
        """The sections between markers: instructions, matmuls, FLOPs, bytes and peaks."""
        return self._table("sections")

    @property
    def stash(self) -> Table:
        """The residuals: values that the backward sections read, with their producers."""
        return self._table("stash")

    @property
    def cross_mesh(self) -> Table:
        """Reductions across the meshes of the pipeline, which XLA's tools do not count."""
        return self._table("cross_mesh")

    @property
    def divisions(self) -> Table:
        """Divisions by a literal of values that the update accumulates over micro-batches."""
        return self._table("divisions")

    @property
    def micro_batches(self) -> int | None:
        """Micro-batches of a step: the common divisor literal of `divisions`; None if unknown."""
        return self._data.micro_batches

    @property
    def boundary(self) -> Boundary | None:
        """Values that the first forward section receives, and the cheapest cut nearby.

        None without a forward section. The search tries, for each instruction that depends on the
        received values, a cut after the instruction and its dependencies, and a cut between any two
        instructions in text order. Values that only backward code reads do not count as sent: that
        code is assumed to move with them.
        """
        record = self._data.boundary()
        return None if record is None else Boundary(self.module, record)

    def by(self, name: str, table: str = "stash", *, totals: Iterable[str] = ("bytes",)) -> Table:
        """Returns totals of a table (`stash`, `cross_mesh`, `sections`) by one of its columns.

        See `Table.by`. Raises `KeyError` for an unknown table or column.
        """
        known = ("stash", "cross_mesh", "sections")
        if table not in known:
            raise unknown("table", table, known)
        return self._table(table).by(name, totals=totals)

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            self._tables[name] = Table(getattr(self._data, name)())
        return self._tables[name]

    def __reduce__(self) -> tuple[object, ...]:
        return Stages, (self.module, *self._arguments)

    def __repr__(self) -> str:
        names = ", ".join(row["section"] for row in self.parts)
        return f"<Stages of {self.module.name}: {names or 'none'}>"


def _of_boundary(boundary: Boundary) -> list[tuple[str, Any, str]]:
    """Names, values and provenance of the facts about a boundary."""
    facts: list[tuple[str, Any, str]] = [
        ("boundary", boundary.section, "exact"),
        ("received_bytes", boundary.received_bytes, "exact"),
        ("input_bytes", boundary.input_bytes, "exact"),
        ("forward_flops", boundary.flops, "exact"),
    ]
    if boundary.ratio is not None:
        facts.append(("ratio", boundary.ratio, "bound" if boundary.is_partial else "exact"))
    cut = boundary.cut
    if cut is not None:
        share = cut.moved_flops / boundary.flops if boundary.flops else None
        facts += [
            ("cut_after", cut.after.name, "exact"),
            ("cut_bytes", cut.bytes, "exact"),
            ("moved_flops", cut.moved_flops, "exact"),
            ("moved_share", share, "exact"),
            ("moved_instructions", cut.moved_instructions, "exact"),
        ]
    return facts


def stages(
    module: Module,
    hbm: int | str | None,
    device: str | Device | None,
    devices: int,
    most_moved: float | None,
) -> Stages:
    """`Module.stages`."""
    if devices < 1:
        raise ValueError(f"devices must be at least 1, not {devices}")
    available = None if hbm is None else read_memory(hbm)
    if available is None and device is not None:
        from hlofast import devices as known

        chosen = known.get(device)
        is_usable_known = chosen.value("hbm_usable_bytes") is not None
        available = int(
            chosen.per_jax_device("hbm_usable_bytes" if is_usable_known else "hbm_bytes")
        )
    return Stages(module, None if available is None else available * devices, most_moved)
