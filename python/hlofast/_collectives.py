"""`Collectives`: what a module's devices send each other, in rows, sums and Alpa's terms."""

from __future__ import annotations

from hlofast import _core
from hlofast._cost import read_rules
from hlofast.table import Table, column_of

TYPE_CHECKING = False  # The command line lists collectives; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hlofast._core import Mesh
    from hlofast._cost import Rules
    from hlofast._module import Module

ALPA_COUNTERS = ("total", "all-reduce", "all-gather", "reduce-scatter", "all-to-all")
ALPA_MESH_ALPHA = (1.0, 1.0)
ALPA_MESH_BETA = (1.0, 0.1)
_ALPA_KINDS = frozenset({"all-gather", "all-reduce", "reduce-scatter", "all-to-all"})


class Collectives(Table):
    """The collectives of a module: `Module.collectives()`.

    One row per collective and phase in which it is executed. However it is written (at once, as
    start and done, in an asynchronous computation, in a fusion or in several), a collective is
    one; transfers between host and device are none. Columns (int64 and texts; -1 and empty texts
    are what is not known or not there):

    `instruction` (row number), `name`, `computation`, `scheduled_as` (the row that stands for it
    where the program is scheduled: itself, or what wraps it), `done` (the row after which its
    result is there), `kind`, `written_as` (another kind where the compiler writes a gather as an
    all-reduce, or a reduce-scatter as an all-reduce and a slice), `channel_id`, `groups`, `axes`
    (of `mesh`), `shift` (of permutes: axes and how far), `network` (the slowest part of it that an
    exchange needs, where the mesh has hosts or slices), `group_size` (devices in one exchange),
    `payload_in`, `payload_out` (bytes of operands and results on one device), `payload` (bytes of
    the whole array: of an all-gather the result, of others the operands), `wire_bytes` (bytes each
    device sends around a ring of `group_size` devices: of an all-reduce 2(n-1)/n of the payload,
    of others (n-1)/n, of permutes and transfers all of it), `multiplicity` (how often it is
    executed in the phase), `is_lower_bound` (uint8: 1 inside loops of unknown trip count, which
    count once), `total_payload`, `total_wire_bytes` (of all executions), `trip_count` (of the
    innermost loop around it; 1 outside), `peeled_from` (the row in a loop of which it is an
    iteration taken out of the loop), `moved` (weight, gradient, activation or other: what most of
    its bytes are), `tensors` (how many arrays), `tensor` (the first of those), `phase`,
    `is_phase_inferred` (uint8: 1 where a nameless collective has the phase of what uses the weights
    it moves, or of what most of its bytes are made by), `scope`,
    `op_name`, `source_file`, `source_line`, `instructions_between`, `flops_between` (what is
    scheduled between start and done).
    """

    __slots__ = ("_data", "_members", "_pieces", "_rules", "mesh", "module")

    def __init__(
        self,
        module: Module,
        data: _core.CollectivesData,
        rules: list[tuple[str, str]] | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        super().__init__(data.columns())
        self.module = module
        """The module."""
        self.mesh: Mesh | None = data.mesh if mesh is None else mesh
        """The mesh whose axes `axes` names: given or derived; None if there is none."""
        self._data = data
        self._rules = rules
        self._pieces: Table | None = None
        self._members: Table | None = None

    @property
    def mesh_source(self) -> str | None:
        """Where the mesh comes from: `given`, or `Mesh.source`; None without a mesh."""
        return None if self.mesh is None else self.mesh.source or "given"

    @property
    def has_network(self) -> bool:
        """Whether the mesh says how its devices lie on hosts or slices.

        Without that every axis is one level of the network, and `network` is empty.
        """
        return self.mesh is not None and (
            self.mesh.hosts is not None or self.mesh.slices is not None
        )

    @property
    def pieces(self) -> Table:
        """The arrays that collectives move: operands, and parts of concatenations.

        Columns: `instruction` (the collective's row), `array` (the row that is moved),
        `payload_in` (its bytes), `moved` (weight, gradient, activation, other), `source` (of a
        weight the parameter, otherwise the row that computes it; -1 if not known) and `tensor`
        (what it is called).
        """
        if self._pieces is None:
            self._pieces = Table(self._data.pieces())
        return self._pieces

    @property
    def members(self) -> Table:
        """All instructions that collectives are written as, each once.

        Columns: `instruction` (the collective's row), `member` (a row that is the same
        collective: the first fusion, those that carry it along and the last hold it once each; a
        send and the receive that belongs to it are one).
        """
        if self._members is None:
            self._members = Table(self._data.members())
        return self._members

    @property
    def mismatches(self) -> Table:
        """Collectives whose groups or pairs follow no axes of the mesh.

        Columns: `instruction`, `name`, `groups` and `reason`; one row per collective.
        """
        columns = [self._columns[name].tolist() for name in ("instruction", "name", "groups")]
        found: dict[int, tuple[str, str, str]] = {}
        for row, name, groups, reason in zip(*columns, self._data.mismatches(), strict=True):
            if reason:
                found.setdefault(row, (name, groups, reason))
        texts = [list(column) for column in zip(*found.values(), strict=True)] or [[], [], []]
        named = zip(("name", "groups", "reason"), texts, strict=True)
        rows = ("instruction", column_of(list(found)))
        return Table([rows, *((name, _core.TextColumn(values)) for name, values in named)])

    @property
    def host_transfers(self) -> tuple[int, ...]:
        """Rows that send to the host or receive from it; these are no collectives."""
        return tuple(self._data.host_transfers())

    def by(self, name: str, *, totals: Iterable[str] | None = None) -> Table:
        """Totals by `name`: any column, or `source` (file and line).

        Columns: `name`, `collectives` (each once, however many phases execute it), then the sums
        of `multiplicity`, `total_payload` and `total_wire_bytes`, or of the columns `totals`. A
        sum of one of these three is -1 (unknown) where one of the figures is. A `KeyError` for
        other names, a `TypeError` for a total of texts.
        """
        table: Table = self
        if name == "source":
            columns = list(self._columns.items())
            table = Table([*columns, (name, _core.TextColumn(self._sources()))])
        grouped = Table.by(table, name, totals=totals)
        found: dict[object, set[int]] = {}
        keys = table._columns[name].tolist()
        for key, row in zip(keys, self._columns["instruction"].tolist(), strict=True):
            found.setdefault(key, set()).add(row)
        counts = column_of([len(rows) for rows in found.values()])
        sums = [(column, grouped._columns[column]) for column in grouped.columns[2:]]
        return Table([(name, grouped._columns[name]), ("collectives", counts), *sums])

    def _sources(self) -> list[str]:
        """By row: file and line, empty where there is no file."""
        files = self._columns["source_file"].tolist()
        lines = self._columns["source_line"].tolist()
        pairs = zip(files, lines, strict=True)
        return [(f"{file}:{line}" if line > 0 else file) if file else "" for file, line in pairs]

    def alpa_counters(self, *, ignore_scalars: bool = False) -> dict[str, int]:
        """What Alpa's `count_communication_primitives` counts in the module's text.

        Keys: `total` (instructions with a channel), `all-reduce`, `all-gather`, `reduce-scatter`,
        `all-to-all` (instructions of these opcodes, or that start them). With `ignore_scalars`
        all-reduces of f32 and f16 scalars are left out.
        """
        counters = self._data.alpa_counters(ignore_scalars)
        return dict(zip(ALPA_COUNTERS, counters, strict=True))

    @property
    def grad_sync_channel_ids(self) -> str:
        """The channels of gradient synchronisation in Alpa's form: `.5.12.`, `.` for none.

        Those are the all-reduces that the entry's results are made of by tuples, slices and
        bitcasts alone, which Alpa skips in all microbatches of a step but the last.
        """
        return self._data.grad_sync_channel_ids()

    def alpa_cost(
        self,
        mesh_alpha: Sequence[float] = ALPA_MESH_ALPHA,
        mesh_beta: Sequence[float] = ALPA_MESH_BETA,
    ) -> Table:
        """What the collectives cost by the alpha-beta model of Alpa's solver.

        `mesh_alpha` and `mesh_beta` have one figure per axis of the mesh, the latency and the time
        of a byte; the defaults are Alpa's, for meshes of two axes. With n devices in an exchange
        and b bytes of payload (`payload`):

        all-gather a + B (n-1)/n b + 0.1; all-reduce a + 2 B (n-1)/n b + 0.01; reduce-scatter
        a + B (n-1)/n b + 0.001; all-to-all a + B (n-1)/n^2 b n/2 + 0.001 (`LogicalDeviceMesh` in
        Alpa's `auto_sharding.py`); over several axes at once with the largest a and B of them.

        Columns: `axes`, `collectives`, `unpriced` (how many of them the model says nothing about:
        other kinds, no axes, unknown sizes or executions), `cost` (float64, of all executions of
        the others; the unit is that of the arguments). A `ValueError` without a mesh, or if there
        are not as many figures as axes.
        """
        if self.mesh is None:
            raise ValueError("the module names no mesh; give one to Module.collectives")
        axes = len(self.mesh.shape)
        if len(mesh_alpha) != axes or len(mesh_beta) != axes:
            given = f"{len(mesh_alpha)} and {len(mesh_beta)}"
            raise ValueError(f"the mesh has {axes} axes, mesh_alpha and mesh_beta {given} figures")
        costs: dict[str, float] = {}
        rows: dict[str, set[int]] = {}
        unpriced: dict[str, set[int]] = {}
        for row, numbers in zip(self, self._data.axis_numbers(), strict=True):
            key, instruction = row["axes"], row["instruction"]
            rows.setdefault(key, set()).add(instruction)
            costs.setdefault(key, 0.0)
            missing = unpriced.setdefault(key, set())
            unknown = min(row["group_size"], row["payload"], row["multiplicity"]) < 0
            if row["kind"] not in _ALPA_KINDS or unknown or not numbers:
                missing.add(instruction)
                continue
            alpha = max(mesh_alpha[axis] for axis in numbers)
            beta = max(mesh_beta[axis] for axis in numbers)
            cost, *_ = _core._collective_time(
                ("", "", None, [], []),  # Alpa's costs depend on no figure of a device.
                row["kind"],
                row["payload"],
                row["group_size"],
                model="alpa",
                alpha=alpha,
                beta=beta,
            )
            costs[key] += row["multiplicity"] * cost
        return Table(
            [
                ("axes", _core.TextColumn(list(costs))),
                ("collectives", column_of([len(found) for found in rows.values()])),
                ("unpriced", column_of([len(found) for found in unpriced.values()])),
                ("cost", column_of(list(costs.values()), "d")),
            ]
        )

    def __reduce__(self) -> tuple[object, ...]:
        mesh = self.mesh if self.mesh_source == "given" else None
        return collectives, (self.module, mesh, self._rules)


def collectives(module: Module, mesh: Mesh | None, rules: Rules | None) -> Collectives:
    """`Module.collectives`."""
    read = None if rules is None else read_rules(rules)
    return Collectives(module, _core._cost(module, rules=read).collectives(mesh), read, mesh)
