"""`Collectives`: the collectives of a module, in rows, totals and Alpa's terms."""

from __future__ import annotations

from hlofast import _core, _fragment
from hlofast._core import Field
from hlofast._cost import read_rules
from hlofast._result import Fact, Note, Result, Section
from hlofast._shares import devices_together
from hlofast.table import Table, shares, with_source

TYPE_CHECKING = False  # The command line lists collectives; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from hlofast._core import Mesh
    from hlofast._cost import Rules
    from hlofast._module import Module

ALPA_COUNTERS = ("total", "all-reduce", "all-gather", "reduce-scatter", "all-to-all")
ALPA_MESH_ALPHA = (1.0, 1.0)
ALPA_MESH_BETA = (1.0, 0.1)
_ALPA_KINDS = frozenset({"all-gather", "all-reduce", "reduce-scatter", "all-to-all"})


_COLLECTIVES = Field("count", "collectives", "Number of collectives.", adds_up=True)
_UNPRICED = Field("count", "unpriced", "Collectives without a cost in the model.")
_COST = Field(
    "number",
    "cost",
    "Total cost of the other collectives, in the unit of the arguments.",
    adds_up=True,
)
_REASON = Field("text", "reason", "Why the groups match no mesh axes.")


KEYS = {
    "axis": "axes",
    "kind": "kind",
    "phase": "phase",
    "source": "source",
    "tensor_kind": "tensor_kind",
    "scope": "scope",
    "source_file": "source_file",
    "tensor": "tensor",
    "network": "network",
    "computation": "computation",
}
"""Keys of totals, with their columns."""
MESH_SOURCES = {
    "given": "given",
    "shardy_meshes": "the header's Shardy meshes",
    "named_shardings": "shardings and replica groups that name mesh axes",
    "shardings": "the shardings of instructions",
    "entry_shardings": "the shardings of the entry's parameters and results",
    "replica_groups": "the replica groups of collectives",
}
"""Descriptions of the sources of a mesh."""
_SHARE = Field("ratio", "share", "Share of the total wire bytes.", nullable=True)
_KEY = Field("text", "key", "The value of the key.", nullable=True)
_MEASURED = ("measured_seconds", "measured_exposed_seconds")
"""Columns of modules with a profile."""
_SHOWN = (
    "name", "kind", "axes", "shift", "network", "tensor_kind", "tensor", "payload", "multiplicity",
    "is_lower_bound", "peeled_from", "total_wire_bytes", *_MEASURED, "phase", "source",
)  # fmt: skip
_ALPA = (
    Field("word", "counter", "The counter."),
    Field("count", "instructions", "Instructions counted."),
    Field("count", "without_scalars", "Instructions except all-reduces of f32 and f16 scalars."),
)


_CHANNELS = Field(
    "text",
    "grad_sync_channel_ids",
    "Channels of gradient synchronisation in Alpa's form; `.` for none.",
)
_INSTRUCTION = Field("instruction", "instruction", "The send to or receive from the host.")


class Collectives(Result, Table):
    """The collectives of a module: `Module.collectives()`.

    One row per collective and phase in which it is executed. A collective is one row however it
    is written: synchronous, as start and done, in an asynchronous computation, or in one or
    several fusions. Transfers between host and device are not included. `fields` describes the
    columns.
    """

    __slots__ = ("_data", "_members", "_pieces", "_rules", "mesh", "module")

    VERB = "collectives"
    FACTS = (
        Field("text", "mesh", "The mesh whose axes are named."),
        Field("text", "mesh_source", "Source of the mesh.", label="mesh from"),
        Field("count", "hosts", "Hosts of the mesh."),
        Field("count", "slices", "Slices of the mesh."),
        Field("count", "collectives", "Collectives; each counts once, also as a start/done pair or "
                                      "inside fusions."),
        Field("count", "executions", "Calls of all collectives per step.", label="calls"),
        Field("bytes", "payload", "Known payload of all calls."),
        Field("bytes", "wire_bytes", "Known bytes that each device sends in all calls."),
        Field("count", "host_transfers", "Transfers between device and host.",
              label="host transfers"),
    )  # fmt: skip

    def __init__(
        self,
        module: Module,
        data: _core.CollectivesData,
        rules: list[tuple[str, str]] | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        columns = data.columns()
        if module._told is not None:
            from hlofast._profile_columns import with_collectives

            columns = with_collectives(module, columns)
        self._keep(columns)
        self.module = module
        """The module."""
        self.mesh: Mesh | None = data.mesh if mesh is None else mesh
        """The mesh, given or derived, whose axes `axes` names; None if there is no mesh."""
        self._data = data
        self._rules = rules
        self._pieces: Table | None = None
        self._members: Table | None = None

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The mesh, and known totals of all calls.

        Their bytes are unknown before partitioning: the partitioner adds most collectives.
        """
        payload, wire = self.values("total_payload"), self.values("total_wire_bytes")
        is_bound = None in (*payload, *wire) or any(self.values("is_lower_bound"))
        modelled = "bound" if is_bound else "modelled"
        values: list[tuple[str, Any, str]] = [
            *self._about_mesh(),
            ("collectives", len(set(self.values("instruction"))), "exact"),
            (
                "executions",
                sum(runs or 0 for runs in self.values("multiplicity")),
                "bound" if is_bound else "exact",
            ),
        ]
        if devices_together(self.module) == 1:
            values += [
                ("payload", sum(size or 0 for size in payload), "bound" if is_bound else "exact"),
                ("wire_bytes", sum(size or 0 for size in wire), modelled),
            ]
        values.append(("host_transfers", len(self.host_transfers) or None, "exact"))
        return self._facts(own for own in values if own[1] is not None)

    def _about_mesh(self) -> list[tuple[str, Any, str]]:
        mesh = self.mesh
        if mesh is None:
            return []
        return [
            ("mesh", str(mesh), "exact"),
            ("mesh_source", MESH_SOURCES[self.mesh_source or "given"], "exact"),
            ("hosts", mesh.hosts, "exact"),
            ("slices", mesh.slices, "exact"),
        ]

    @property
    def notes(self) -> tuple[Note, ...]:
        """Assumptions and gaps behind the figures."""
        from hlofast._collectives_notes import notes

        return (*_fragment.notes(self.module), *notes(self))

    def sections(
        self, by: str | None = None, *, pieces: bool = False, alpa: bool = False
    ) -> tuple[Section, ...]:
        """Totals by `by` (one of `KEYS`, default axis), the collectives, and requested tables."""
        sections = [self._groups(by or "axis")]
        if by is None:
            ordered = self._ordered()
            shown = [name for name in _SHOWN if name in ordered]
            sections.append(
                Section("collectives", "Collectives", ordered, shown, figure="total_wire_bytes")
            )
        if self.host_transfers:
            rows = (_INSTRUCTION, list(self.host_transfers))
            sections.append(Section("host_transfers", "Host transfers", Table.of([rows])))
        if pieces:
            of_piece = ("instruction", "array", "payload_in", "tensor_kind", "tensor", "source")
            title = "Arrays moved per call"
            sections.append(Section("pieces", title, self.pieces, of_piece))
        if len(self.mismatches):
            sections.append(
                Section("mismatches", "Groups that match no mesh axes", self.mismatches)
            )
        if alpa:
            sections += self._alpa()
        return tuple(sections)

    def _ordered(self) -> Table:
        """The table `collectives`: most wire bytes first, with source places."""
        return with_source(self).sort_by("total_wire_bytes", descending=True)

    def every_section(self) -> tuple[Section, ...]:
        """All tables, including tables shown only on request."""
        shown = {own.name: own for own in self.sections(pieces=True, alpa=True)}
        costs = self._costs or Table.of((field, []) for field in self._cost_fields)
        shown.setdefault("mismatches", Section("mismatches", "Mismatches", self.mismatches))
        hosts = Table.of([(_INSTRUCTION, list(self.host_transfers))])
        shown.setdefault("host_transfers", Section("host_transfers", "Host transfers", hosts))
        shown.setdefault("alpa_costs", Section("alpa_costs", "Alpa's costs", costs))
        return tuple(shown.values())

    def _groups(self, by: str) -> Section:
        """Totals by a key with their shares, most wire bytes first."""
        grouped = self.by(KEYS[by]).sort_by("total_wire_bytes", descending=True)
        wire = grouped.values("total_wire_bytes")
        title = by.replace("_", " ")
        columns = [(_KEY.replace(label=title), grouped.values(KEYS[by]))]
        columns += [(grouped.field(name), grouped.values(name)) for name in grouped.columns[1:]]
        if _MEASURED[0] in self:
            times = self.by(KEYS[by], totals=_MEASURED)
            places = {key: row for row, key in enumerate(times.values(KEYS[by]))}
            for name in _MEASURED:
                column = times.values(name)
                own = [column[places[key]] for key in grouped.values(KEYS[by])]
                columns.append((self.field(name), own))
        table = Table.of([*columns, (_SHARE, shares(wire, sum(size or 0 for size in wire)))])
        return Section("groups", f"By {title}", table)

    def _alpa(self) -> list[Section]:
        """Alpa's counters, and Alpa's costs, which are defined for meshes of two axes."""
        counters, plain = self.alpa_counters(), self.alpa_counters(ignore_scalars=True)
        columns = (list(counters), list(counters.values()), list(plain.values()))
        table = Table.of(zip(_ALPA, columns, strict=True))
        channels = Table.of([(_CHANNELS, [self.grad_sync_channel_ids])])
        sections = [
            Section("alpa_counters", "Alpa's counters", table),
            Section("alpa_gradients", "Alpa's gradient channels", channels),
        ]
        if self._costs is not None:
            sections.append(Section("alpa_costs", "Alpa's costs", self._costs))
        return sections

    @property
    def _costs(self) -> Table | None:
        """Alpa's costs; None unless the mesh has two axes, for which they are defined."""
        is_for_two = self.mesh is not None and len(self.mesh.shape) == 2
        return self.alpa_cost() if is_for_two else None

    @property
    def _cost_fields(self) -> tuple[Field, ...]:
        return (self.field("axes"), _COLLECTIVES, _UNPRICED, _COST)

    @property
    def mesh_source(self) -> str | None:
        """The source of the mesh: `given`, or `Mesh.source`; None without a mesh."""
        return None if self.mesh is None else self.mesh.source or "given"

    @property
    def has_network(self) -> bool:
        """Whether the mesh gives the hosts or slices of its devices.

        Without them every axis counts as one network level, and `network` is empty.
        """
        return self.mesh is not None and (
            self.mesh.hosts is not None or self.mesh.slices is not None
        )

    @property
    def pieces(self) -> Table:
        """The arrays that collectives move: operands, and parts of concatenations.

        Columns: `instruction` (the collective's row), `array` (the row moved), `payload_in` (its
        bytes), `tensor_kind` (weight, gradient, activation, other), `source` (for a weight
        the parameter, otherwise the row that computes the array; -1 if unknown) and `tensor` (the
        array's name).
        """
        if self._pieces is None:
            self._pieces = Table(self._data.pieces())
        return self._pieces

    @property
    def members(self) -> Table:
        """All instructions that make up the collectives.

        Columns: `instruction` (the collective's row) and `member` (a row that is part of the same
        collective). A collective spread over several fusions has one member in each; a send and
        its receive are one collective.
        """
        if self._members is None:
            self._members = Table(self._data.members())
        return self._members

    @property
    def mismatches(self) -> Table:
        """Collectives whose groups or pairs match no mesh axes.

        Columns: `instruction`, `name`, `groups` and `reason`; one row per collective.
        """
        columns = [self.values(name) for name in ("instruction", "name", "groups")]
        mismatched: dict[int, tuple[str, str | None, str]] = {}
        for row, name, groups, reason in zip(*columns, self._data.mismatches(), strict=True):
            if reason:
                mismatched.setdefault(row, (name, groups, reason))
        texts = [list(column) for column in zip(*mismatched.values(), strict=True)] or [[], [], []]
        fields = (self.field("name"), self.field("groups"), _REASON)
        return Table.of(
            [(self.field("instruction"), list(mismatched)), *zip(fields, texts, strict=True)]
        )

    @property
    def host_transfers(self) -> tuple[int, ...]:
        """Rows that send to the host or receive from it; these do not count as collectives."""
        return tuple(self._data.host_transfers())

    def by(self, name: str, *, totals: Iterable[str] | None = None) -> Table:
        """Returns totals by `name`: any column, or `source` (file and line).

        Columns: `name`, `collectives` (each once, however many phases execute it), the sums of
        `totals` (default `multiplicity`, `total_payload` and `total_wire_bytes`), and `unknown`, as
        in `Table.by`. Raises `KeyError` for an unknown name and `TypeError` if a column of `totals`
        cannot be summed.
        """
        if totals is None:
            # `unknown` counts gaps of sizes and calls, not collectives without an event.
            adding = [own.name for own in self.fields if own.adds_up and own.name != name]
            totals = [own for own in adding if own not in _MEASURED]
        table: Table = self
        if name == "source":
            table = with_source(self)
        grouped = Table.by(table, name, totals=totals)
        groups: dict[object, set[int]] = {}
        keys = table.values(name)
        for key, row in zip(keys, self.values("instruction"), strict=True):
            groups.setdefault(key, set()).add(row)
        columns = grouped._described_by_name()
        counts = Table.of([(_COLLECTIVES, [len(rows) for rows in groups.values()])])
        columns["rows"] = (_COLLECTIVES, counts._columns[_COLLECTIVES.name])
        return Table(columns.values())

    def alpa_counters(self, *, ignore_scalars: bool = False) -> dict[str, int]:
        """Returns the counts of Alpa's `count_communication_primitives` for the module's text.

        Keys: `total` (instructions with a channel), `all-reduce`, `all-gather`, `reduce-scatter`,
        `all-to-all` (instructions of these opcodes or their start forms). `ignore_scalars` leaves
        out all-reduces of f32 and f16 scalars.
        """
        counters = self._data.alpa_counters(ignore_scalars)
        return dict(zip(ALPA_COUNTERS, counters, strict=True))

    @property
    def grad_sync_channel_ids(self) -> str:
        """The channels of gradient synchronisation in Alpa's form: `.5.12.`, or `.` for none.

        They belong to the all-reduces that reach the entry's results only through tuples, slices
        and bitcasts. Alpa skips them in all micro-batches of a step but the last.
        """
        return self._data.grad_sync_channel_ids()

    def alpa_cost(
        self,
        mesh_alpha: Sequence[float] = ALPA_MESH_ALPHA,
        mesh_beta: Sequence[float] = ALPA_MESH_BETA,
    ) -> Table:
        """Returns the cost of collectives in the alpha-beta model of Alpa's solver.

        `mesh_alpha` (latency) and `mesh_beta` (time per byte) have one figure per mesh axis; the
        defaults are Alpa's, for meshes of two axes. With a group of n devices, b bytes of payload
        (`payload`), and a and B the figures of the axis:

        all-gather a + B (n-1)/n b + 0.1; all-reduce a + 2 B (n-1)/n b + 0.01; reduce-scatter
        a + B (n-1)/n b + 0.001; all-to-all a + B (n-1)/n^2 b n/2 + 0.001 (`LogicalDeviceMesh` in
        Alpa's `auto_sharding.py`). A collective along several axes uses their largest a and B.

        Columns: `axes`, `collectives`, `unpriced` (collectives outside the model: other kinds, no
        axes, unknown sizes or call counts), `cost` (float64, all calls of the others, in the unit
        of the arguments). Raises `ValueError` without a mesh, or if the number of figures differs
        from the number of axes.
        """
        if self.mesh is None:
            raise ValueError("the module names no mesh; pass mesh= to Module.collectives")
        axes = len(self.mesh.shape)
        if len(mesh_alpha) != axes or len(mesh_beta) != axes:
            given = f"{len(mesh_alpha)} and {len(mesh_beta)}"
            raise ValueError(
                f"the mesh has {axes} axes, but mesh_alpha and mesh_beta have {given} figures"
            )
        costs: dict[str, float] = {}
        rows: dict[str, set[int]] = {}
        unpriced: dict[str, set[int]] = {}
        for row, numbers in zip(self, self._data.axis_numbers(), strict=True):
            key, instruction = row["axes"] or "", row["instruction"]
            rows.setdefault(key, set()).add(instruction)
            costs.setdefault(key, 0.0)
            missing = unpriced.setdefault(key, set())
            unknown = None in (row["group_size"], row["payload"], row["multiplicity"])
            if row["kind"] not in _ALPA_KINDS or unknown or not numbers:
                missing.add(instruction)
                continue
            alpha = max(mesh_alpha[axis] for axis in numbers)
            beta = max(mesh_beta[axis] for axis in numbers)
            cost, *_ = _core._collective_time(
                ("", "", None, [], []),  # Alpa's costs do not depend on the device.
                row["kind"],
                row["payload"],
                row["group_size"],
                model="alpa",
                alpha=alpha,
                beta=beta,
            )
            costs[key] += row["multiplicity"] * cost
        columns = (
            [axes or None for axes in costs],
            [len(members) for members in rows.values()],
            [len(members) for members in unpriced.values()],
            list(costs.values()),
        )
        return Table.of(zip(self._cost_fields, columns, strict=True))

    def __reduce__(self) -> tuple[object, ...]:
        mesh = self.mesh if self.mesh_source == "given" else None
        return collectives, (self.module, mesh, self._rules)


def collectives(module: Module, mesh: Mesh | None, rules: Rules | None) -> Collectives:
    """`Module.collectives`."""
    read = None if rules is None else read_rules(rules)
    return Collectives(module, _core._cost(module, rules=read).collectives(mesh), read, mesh)
