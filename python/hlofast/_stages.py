"""`Stages`: what Alpa's pipeline markers cut a module into, in tables and figures."""

from __future__ import annotations

from hlofast._context import read_bytes
from hlofast.table import Table

TYPE_CHECKING = False  # The command line lists stages; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hlofast._core import Instruction
    from hlofast._module import Module
    from hlofast.devices import Device


class Cut:
    """Another place for a stage's boundary, from `Boundary.cut`."""

    __slots__ = ("after", "bytes", "moved_flops", "moved_instructions", "values")

    def __init__(self, module: Module, found: dict[str, Any]) -> None:
        self.after: Instruction = module[found["after"]]
        """The last instruction that moves to the stage before."""
        self.values = Table(found["values"])
        """What is sent then: `instruction`, `name`, `shape`, `bytes`, `op_name`, source."""
        self.bytes: int = found["bytes"]
        """Bytes of that."""
        self.moved_flops: int = found["moved_flops"]
        """FLOPs that move to the stage before, of one micro-batch forward."""
        self.moved_instructions: int = found["moved_instructions"]
        """How many instructions move; what depends on weights alone is not counted."""

    def __repr__(self) -> str:
        return f"<Cut after {self.after.name}: {self.bytes:,} B>"


class Boundary:
    """What the first forward section receives for each micro-batch, from `Stages.boundary`."""

    __slots__ = (
        "cut",
        "flops",
        "input_bytes",
        "inputs",
        "is_partial",
        "received",
        "received_bytes",
        "section",
    )

    def __init__(self, module: Module, found: dict[str, Any]) -> None:
        self.section: str = found["section"]
        """The section's name."""
        self.received = Table(found["received"])
        """Parameters of floats that the stage does not hold: activations, whose gradients go back.

        Columns: `instruction`, `name`, `shape`, `bytes`, `op_name`, `source_file`, `source_line`.
        """
        self.received_bytes: int = found["received_bytes"]
        """Their bytes, which are received forward and sent backward."""
        self.inputs = Table(found["inputs"])
        """Other parameters that the stage does not hold: tokens, labels, masks."""
        self.input_bytes: int = found["input_bytes"]
        """Their bytes."""
        self.flops: int = found["flops"]
        """FLOPs of what depends on what is received, of one micro-batch forward."""
        self.cut = None if found["cut"] is None else Cut(module, found["cut"])
        """The cheapest cut nearby; None if none sends less."""
        self.is_partial: bool = found["is_partial"]
        """Whether the search stopped early, so that there may be a cheaper one."""

    @property
    def ratio(self) -> float | None:
        """How many times more bytes are sent than with the cheapest cut; None where none is."""
        least = self.received_bytes if self.cut is None else self.cut.bytes
        return self.received_bytes / least if least else None

    def __repr__(self) -> str:
        return f"<Boundary of {self.section}: {self.received_bytes:,} B, cut {self.cut!r}>"


class StageMemory:
    """Bytes of a stage, from `Stages.memory`. All devices together where nothing is sharded yet."""

    __slots__ = ("available", "stash", "state", "weight_copies", "working_peak")

    def __init__(
        self, figures: tuple[int, int, int, int | None], available: int | None = None
    ) -> None:
        self.state, self.stash, self.weight_copies, self.working_peak = figures
        self.available = available

    state: int
    """Parameters that the update reads: weights, their masters, moments. Exact, from shapes."""
    stash: int
    """What stays from forward to backward for each micro-batch in flight, state left out. Exact."""
    weight_copies: int
    """Of the stash, copies of weights, which are the same for all micro-batches."""
    working_peak: int | None
    """The most alive in the forward and backward sections with one micro-batch in flight, without
    the state. Modelled: text order, rule `in_place` of `Module.memory`, no fusion."""
    available: int | None
    """Bytes there are; None if nobody said."""

    @property
    def most_successors(self) -> int | None:
        """How many stages may follow: each keeps one more micro-batch in flight here.

        `(available - peak - state) // stash - 1`, at least -1, which means that not even one
        micro-batch fits: `max_n_succ_stages` of Alpa's `stage_profiling.py`, which profiles the
        peak where this is `working_peak`. None if `available` or the peak is not known, or where
        nothing is kept.
        """
        if self.available is None or self.working_peak is None or not self.stash:
            return None
        left = self.available - self.working_peak - self.state
        return max(left // self.stash - 1, -1)

    def __repr__(self) -> str:
        return f"<StageMemory state {self.state:,} B, stash {self.stash:,} B>"


class Stages:
    """What Alpa's pipeline markers cut a module into: `Module.stages()`.

    Numbers in tables are int64, -1 where they are not known, texts empty where there are none.
    Bytes are of unpadded arrays. A module without markers has no sections, and most is empty.
    """

    __slots__ = ("_arguments", "_data", "_tables", "memory", "module")

    def __init__(self, module: Module, available: int | None, most_moved: float | None) -> None:
        self.module = module
        """The module."""
        self._arguments = (available, most_moved)
        self._data = module.cost()._data.stages(most_moved)
        self._tables: dict[str, Table] = {}
        figures = self._data.memory()
        self.memory = None if figures is None else StageMemory(figures, available)
        """What the stage holds; None without sections, and for sizes that are not known."""

    @property
    def markers(self) -> Table:
        """The markers, in the order of the entry computation.

        Columns: `instruction` (the custom call), `name`, `place` (the entry's row that is or calls
        it), `place_name`, `calls` (how many lie between), `section`, `mark` (`start`, `end`),
        `arrays`, `bytes` (of the arrays it hands on), `agrees` (whether the sizes in its
        `backend_config` are those of the arrays: 1 or 0, -1 if it holds no sizes).
        """
        return self._table("markers")

    @property
    def marker_sizes(self) -> dict[str, tuple[int, ...] | None]:
        """By marker (`layer_1$start`): the bytes of each array as its `backend_config` says.

        None for a marker whose `backend_config` is no list of 64-bit integers. Of several of one
        name the first.
        """
        found: dict[str, tuple[int, ...] | None] = {}
        for row, sizes in zip(self.markers, self._data.marker_sizes(), strict=True):
            name = f"{row['section']}${row['mark']}"
            found.setdefault(name, None if sizes is None else tuple(sizes))
        return found

    @property
    def sections(self) -> Table:
        """The sections between markers.

        Columns: `section` (its name), `phase` (`forward`, `backward`, `optimizer`), `start`, `end`
        (rows of the entry; -1 if it has no end), `instructions` (of the entry), `products` (matrix
        products and convolutions executed), `product_flops`, `flops`, `bytes_in`, `bytes_out` (of
        the arrays that its markers hand on), `peak` (the most bytes alive in it, as of
        `Module.memory()`).
        """
        return self._table("sections")

    @property
    def stash(self) -> Table:
        """What the backward sections read, and who made it.

        Columns: `index` (which array of the backward section's first marker), `forward_index` (of
        the forward section's last one; -1 if it is handed on directly), `section`, `kind`
        (`weight_copy`, `gathered_weight`, `gathered_activation`, `activation` as in
        `Remat.residuals`; `input`: a parameter of the micro-batch; `constant`; `state`: a
        parameter that is held in any case), `shape`, `bytes`, `instruction` (the row that makes
        it), `name`, `opcode`, `weight`, `weight_name` (of a copy, the parameter), `widened_from`
        (its element type, of copies in a wider one), `op_name`, `source_file`, `source_line`.
        """
        return self._table("stash")

    @property
    def cross_mesh(self) -> Table:
        """Reductions over the meshes of the pipeline, which XLA's tools do not count.

        Columns: `instruction`, `name`, `place` (the entry's row that is or calls it),
        `place_name`, `section`, `operation` (`SUM`, `AND`, `OR`), `meshes` (their numbers, joined
        by commas), `shape`, `bytes`.
        """
        return self._table("cross_mesh")

    @property
    def divisions(self) -> Table:
        """Where the update divides what was added up over micro-batches by a literal.

        Columns: `instruction`, `name`, `constant`, `constant_name`, `divisor` (float64),
        `op_name`, `source_file`, `source_line`.
        """
        return self._table("divisions")

    @property
    def micro_batches(self) -> int | None:
        """How many micro-batches a step has: what all `divisions` divide by; None if unknown."""
        return self._data.micro_batches

    @property
    def boundary(self) -> Boundary | None:
        """What the first forward section receives, and where a cut would send less.

        None without a forward section. Cuts are searched among the instructions that depend on
        what is received, behind each with just what it needs and between any two in the text.
        What backward code reads of what moves is taken to move as well.
        """
        found = self._data.boundary()
        return None if found is None else Boundary(self.module, found)

    def by(self, name: str, table: str = "stash", *, totals: Iterable[str] = ("bytes",)) -> Table:
        """Totals of a table (`stash`, `cross_mesh`, `sections`) by one of its columns; `Table.by`.

        A `KeyError` for other tables and columns.
        """
        if table not in ("stash", "cross_mesh", "sections"):
            raise KeyError(table)
        return self._table(table).by(name, totals=totals)

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            self._tables[name] = Table(getattr(self._data, name)())
        return self._tables[name]

    def __reduce__(self) -> tuple[object, ...]:
        return Stages, (self.module, *self._arguments)

    def __repr__(self) -> str:
        names = ", ".join(row["section"] for row in self.sections)
        return f"<Stages of {self.module.name}: {names or 'none'}>"


def stages(
    module: Module,
    hbm: int | str | None,
    device: str | Device | None,
    devices: int,
    most_moved: float | None,
) -> Stages:
    """`Module.stages`."""
    if devices < 1:
        raise ValueError(f"devices is at least 1, not {devices}")
    available = None if hbm is None else read_bytes(hbm)
    if available is None and device is not None:
        from hlofast import devices as known

        found = known.get(device)
        is_usable_known = found.value("hbm_usable_bytes") is not None
        available = int(
            found.per_jax_device("hbm_usable_bytes" if is_usable_known else "hbm_bytes")
        )
    return Stages(module, None if available is None else available * devices, most_moved)
