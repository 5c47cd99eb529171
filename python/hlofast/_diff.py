"""`Diff`: what differs between two modules, and what that does to cost, memory and collectives."""

from __future__ import annotations

from hlofast import _core
from hlofast._context import mesh_for, rules_for, told_in
from hlofast._core import Field
from hlofast._cost import read_rules
from hlofast.table import Table

TYPE_CHECKING = False  # The command line compares modules; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from hlofast._context import MeshLike
    from hlofast._core import Mesh
    from hlofast._cost import Cost, Rules
    from hlofast._module import Module

    _Peak = tuple[int | None, list[str]]
    _Key = tuple[str | None, ...]

_SUMS = ("flops", "transcendentals", "bytes_accessed")
_SENT = ("multiplicity", "total_payload", "total_wire_bytes")
_TOTALS = (
    Field("word", "measure", "What is compared."),
    Field("count", "before", "The figure of the first module.", nullable=True),
    Field("count", "after", "The figure of the second module.", nullable=True),
    Field("count", "change", "The second less the first.", nullable=True, signed=True),
    Field("flag", "is_lower_bound", "Whether FLOPs are missing in either module."),
    Field("word", "provenance", "How the figures are known."),
)
_OPCODE = Field("word", "opcode", "The opcode.")
_INSTRUCTIONS = Field("count", "instructions", "Instructions of that opcode.")


class Diff:
    """What differs between two modules: `Module.diff(other)` or `hlofast.diff(before, after)`.

    Instructions are matched by what they compute and what is computed from them; their names,
    metadata, channel numbers and order do not count, nor does how often equal computations are
    written. Attributes that say the same in other words (groups of devices and shardings as lists
    or as rules) are equal.
    """

    __slots__ = (
        "_causes",
        "_changes",
        "_costs",
        "_data",
        "_options",
        "_pairs",
        "_peaks",
        "_rules",
        "after",
        "before",
        "mesh",
    )

    def __init__(
        self,
        before: Module,
        after: Module,
        options: tuple[bool, bool, bool],
        mesh: Mesh | None,
        rules: list[tuple[str, str]] | None,
    ) -> None:
        self.before = before
        """The first module."""
        self.after = after
        """The second module."""
        self.mesh = mesh
        """The mesh that was given for the axes of collectives."""
        layouts, backend_config, schedule = options
        self._options = options
        self._rules = rules
        self._data = _core._diff(
            before, after, layouts=layouts, backend_config=backend_config, schedule=schedule
        )
        self._changes: Table | None = None
        self._causes: Table | None = None
        self._pairs: Table | None = None
        self._costs: tuple[Cost, Cost] | None = None
        self._peaks: tuple[_Peak, _Peak] | None = None

    @property
    def changes(self) -> Table:
        """All differences: of the modules themselves, then what vanished, appeared, moved, changed.

        Columns: `kind` (vanished, appeared, changed, or moved into or out of a called computation,
        as when instructions are fused), `aspect` (of what changed: opcode, element_type,
        dimensions, layout, memory_space, structure (of tuples), operands, constant,
        parameter_number, trip_count, root, schedule, or the name of an attribute, also of the
        header; empty for the others), `opcode`, `before` and `after` (what either module has:
        values of attributes, shapes of what vanished or appeared, computations of what moved; cut
        where they are long), `is_consequence` (uint8: 1 where another difference brought it about:
        the shape of a result whose operand changed in the same way, an operand that came or went,
        what a computation holds that came or went with its caller, the trip count of a loop),
        `name_before`, `computation_before`, `instruction_before` (row number; -1 where the first
        module has none), `name_after`, `computation_after`, `instruction_after`, `op_name`,
        `source_file`, `source_line` (of the second module, where it has the instruction).
        """
        if self._changes is None:
            self._changes = Table(self._data.changes(False))
        return self._changes

    @property
    def causes(self) -> Table:
        """The rows of `changes` that no other difference brought about."""
        if self._causes is None:
            self._causes = Table(self._data.changes(True))
        return self._causes

    @property
    def pairs(self) -> Table:
        """Which instruction is which: columns `instruction_before`, `instruction_after` (rows)."""
        if self._pairs is None:
            self._pairs = Table(self._data.pairs())
        return self._pairs

    @property
    def is_empty(self) -> bool:
        """Whether there is no difference."""
        return not len(self.changes)

    @property
    def compares_layouts(self) -> bool:
        """Whether layouts were compared: not if that was not asked for or a module gives none."""
        return self._data.compares_layouts

    @property
    def same_schedule(self) -> bool | None:
        """Whether instructions stand in the same order; None unless both modules are scheduled."""
        return self._data.same_schedule

    def counts(self) -> dict[str, int]:
        """How many causes there are by kind; of those that changed by aspect."""
        counts: dict[str, int] = {}
        columns = (self.causes.values(name) for name in ("kind", "aspect"))
        for kind, aspect in zip(*columns, strict=True):
            name = f"{kind} {aspect or ''}".rstrip()
            counts[name] = counts.get(name, 0) + 1
        return counts

    def totals(self) -> Table:
        """What both modules take in one run.

        Columns: `measure` (instructions, computations, flops, transcendentals, bytes_accessed,
        live_peak (bytes), collectives, payload and wire_bytes (of all executions)), `before`,
        `after`, `change` (their difference; unknown where either is), `is_lower_bound` (where
        FLOPs are missing in either module, see `Cost.mfu`), `provenance`: counts are exact, the
        others are modelled. Instructions and computations are those that the texts write, as in
        `Module.summary`; `notes` says how many more they imply where that differs.
        """
        known: dict[str, tuple[int | None, int | None]] = {
            "instructions": (self.before.instruction_count, self.after.instruction_count),
            "computations": (self.before.computation_count, self.after.computation_count),
        }
        costs = self._both_costs()
        for name in _SUMS:
            known[name] = (int(getattr(costs[0], name)), int(getattr(costs[1], name)))
        (before_peak, _), (after_peak, _) = self._both_peaks()
        known["live_peak"] = (before_peak, after_peak)
        sent = (self._sent(self.before), self._sent(self.after))
        known["collectives"] = (len(_distinct(sent[0])), len(_distinct(sent[1])))
        for name, column in (("payload", "total_payload"), ("wire_bytes", "total_wire_bytes")):
            known[name] = (_sum(sent[0], column), _sum(sent[1], column))
        bound = any(cost.misses_flops for cost in costs)
        exact = ("instructions", "computations", "collectives")
        rows = []
        for name, (before, after) in known.items():
            change = after - before if before is not None and after is not None else None
            provenance = "exact" if name in exact else "unknown" if change is None else "modelled"
            is_bound = bound and name not in (*exact, "live_peak")
            rows.append((name, before, after, change, is_bound, provenance))
        return Table.of(zip(_TOTALS, zip(*rows, strict=True), strict=True))

    @property
    def notes(self) -> list[str]:
        """What to keep in mind about `totals`, each beginning with before, after or both.

        What in either module contradicts itself, so that `live_peak` is doubtful (see
        `Memory.contradictions`), and what one text writes and the other only implies, which counts
        as instructions and computations of one of them alone.
        """
        (_, before), (_, after) = self._both_peaks()
        notes = [f"{'both' if text in after else 'before'}: {text}" for text in before]
        notes += [f"after: {text}" for text in after if text not in before]
        implied = [_implied(module) for module in (self.before, self.after)]
        if implied[0] != implied[1]:
            for side, (instructions, computations) in zip(
                ("before", "after"), implied, strict=True
            ):
                if instructions:
                    notes.append(
                        f"{side}: the text implies {instructions:,} more instructions and "
                        f"{computations:,} more computations, which are compared but not counted"
                    )
        return notes

    def by(self, key: str, *, depth: int = 3) -> Table:
        """FLOPs and bytes of both modules by `key`, one of those of `Cost.by`.

        Columns: `key`, then `flops`, `transcendentals` and `bytes_accessed`, each with `_before`
        and `_after`; those that differ most in bytes first. What only one module has counts as 0
        in the other.
        """
        tables = [cost.by(key, depth=depth) for cost in self._both_costs()]
        before, after = (_rows_by(table, [key], _cost_columns(table)) for table in tables)
        fields = [tables[0].field(name) for name in _SUMS]
        return _side_by_side([tables[0].field(key)], fields, before, after)

    def opcodes(self) -> Table:
        """Instructions by opcode: columns `opcode`, `instructions_before`, `instructions_after`.

        Those that differ most stand first.
        """
        before, after = (_opcodes(module) for module in (self.before, self.after))
        return _side_by_side([_OPCODE], [_INSTRUCTIONS], before, after)

    def collectives(self, by: str = "axes") -> Table:
        """Collectives by kind and a column of `hlofast.Collectives` (`axes`, `scope`, ...).

        Columns: `kind`, `by`, then `executions`, `payload` and `wire_bytes` (of all executions),
        each with `_before` and `_after`; those that differ most in wire bytes first. The axes are
        those of `mesh`, otherwise of the mesh that each text speaks of.
        """
        keys = ["kind"] if by == "kind" else ["kind", by]
        tables = [self._sent(module) for module in (self.before, self.after)]
        before, after = (
            _rows_by(table, keys, {column: [column] for column in _SENT}) for table in tables
        )
        fields = [tables[0].field(key) for key in keys]
        names = zip(_SENT, ("executions", "payload", "wire_bytes"), strict=True)
        sums = [tables[0].field(own).replace(name=name, label=name) for own, name in names]
        return _side_by_side(fields, sums, before, after)

    def _sent(self, module: Module) -> Table:
        cost = self._both_costs()[0 if module is self.before else 1]
        return Table(cost._data.collectives(self.mesh).columns())

    def _both_costs(self) -> tuple[Cost, Cost]:
        if self._costs is None:
            rules = self._rules
            self._costs = (self.before.cost(rules=rules), self.after.cost(rules=rules))
        return self._costs

    def _both_peaks(self) -> tuple[_Peak, _Peak]:
        if self._peaks is None:
            self._peaks = (_live_peak(self.before), _live_peak(self.after))
        return self._peaks

    def __reduce__(self) -> tuple[object, ...]:
        return Diff, (self.before, self.after, self._options, self.mesh, self._rules)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts().items())
        return f"<Diff of {self.before.name} and {self.after.name}: {counts or 'none'}>"


def _live_peak(module: Module) -> _Peak:
    """The peak in bytes, None where it cannot be told, and what makes it doubtful."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `Diff.notes` says it.
            memory = module.memory()
    except ValueError:
        return None, []
    return memory.live_peak, list(map(str, memory.contradictions))


def _implied(module: Module) -> tuple[int, int]:
    """Instructions and computations that the text only implies."""
    computations = len(module.computations) - module.computation_count
    return len(module) - module.instruction_count, computations


def _opcodes(module: Module) -> dict[_Key, list[int | None]]:
    rows = module.summary().opcodes
    return {(row["opcode"],): [row["instructions"]] for row in rows}


def _distinct(collectives: Table) -> set[Any]:
    return set(collectives.values("instruction"))


def _sum(table: Table, column: str) -> int | None:
    values = table.values(column)
    return None if None in values else sum(values)


def _cost_columns(table: Table) -> dict[str, list[str]]:
    """The columns that each sum is made of."""
    bytes_ = [name for name in table.columns if name.endswith(("bytes_read", "bytes_written"))]
    found = ["bytes_accessed"] if "bytes_accessed" in table.columns else bytes_
    return {"flops": ["flops"], "transcendentals": ["transcendentals"], "bytes_accessed": found}


def _rows_by(
    table: Table, keys: list[str], sums: dict[str, list[str]]
) -> dict[_Key, list[int | None]]:
    """By key the sums of columns; None where one of the figures is unknown."""
    rows: dict[_Key, list[int | None]] = {}
    places = zip(*(table.values(key) for key in keys), strict=True)
    columns = [[table.values(name) for name in names] for names in sums.values()]
    for index, place in enumerate(places):
        row = rows.setdefault(place, [0] * len(columns))
        for number, values in enumerate(columns):
            figures = [row[number], *(column[index] for column in values)]
            row[number] = None if None in figures else sum(figures)
    return rows


def _side_by_side(
    keys: list[Field],
    names: list[Field],
    before: Mapping[_Key, Sequence[int | None]],
    after: Mapping[_Key, Sequence[int | None]],
) -> Table:
    """Sums of both modules by key; those whose last sum differs most first."""
    nothing = [0] * len(names)
    places = list(dict.fromkeys([*before, *after]))
    rows = [(place, before.get(place, nothing), after.get(place, nothing)) for place in places]
    rows.sort(key=lambda row: -abs((row[2][-1] or 0) - (row[1][-1] or 0)))
    columns: list[tuple[Field, list[Any]]] = []
    for number, key in enumerate(keys):
        columns.append((key, [place[number] for place, _, _ in rows]))
    for number, field in enumerate(names):
        for side, values in (
            ("before", [own[number] for _, own, _ in rows]),
            ("after", [own[number] for _, _, own in rows]),
        ):
            of_side = field.replace(name=f"{field.name}_{side}", label=f"{field.label} {side}")
            columns.append((of_side, values))
    return Table.of(columns)


def diff(
    before: Module,
    after: Module,
    *,
    layouts: bool = True,
    backend_config: bool = True,
    schedule: bool = False,
    mesh: MeshLike | None = None,
    rules: Rules | None = None,
) -> Diff:
    """What differs between two modules: `before.diff(after)`, with the arguments of that."""
    told = told_in(before)
    if mesh is None and told is not None:
        mesh = told.mesh
    found = None if mesh is None else mesh_for(before, mesh)
    if found is not None:
        mesh_for(after, found)
    rules = rules_for(before, rules)
    read = None if rules is None else read_rules(rules)
    return Diff(before, after, (layouts, backend_config, schedule), found, read)
