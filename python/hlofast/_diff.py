"""`Diff`: differences between two modules, and their effect on cost, memory and collectives."""

from __future__ import annotations

from hlofast import _core, _diff_measured
from hlofast._context import mesh_for, rules_for, told_in, unmeasured
from hlofast._core import Field
from hlofast._cost import read_rules
from hlofast._policy_fields import error_of
from hlofast._profile import measured_with
from hlofast._result import PROVENANCES, Fact, Note, Result, Section
from hlofast._shares import devices_together, note
from hlofast.table import Table, of_rows, with_source

TYPE_CHECKING = False  # The command line compares modules; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from hlofast._context import MeshLike
    from hlofast._core import Mesh
    from hlofast._cost import Cost, Rules
    from hlofast._diff_measured import MeasuredDiff
    from hlofast._module import Module
    from hlofast._policies import Policies

    _Peak = tuple[int | None, Policies | None, list[str]]
    _Key = tuple[str | None, ...]

_SUMS = ("flops", "transcendentals", "bytes_accessed")
MEASURES = (
    "instructions", "computations", *_SUMS, "live_peak", "modelled_peak", "collectives", "payload",
    "wire_bytes",
)  # fmt: skip
"""The totals compared by `Diff.totals`."""
_COUNTED = ("instructions", "computations", "collectives")
_ADDED = ("collectives", "payload", "wire_bytes")
"""The totals of what the partitioner adds: unknown of a text that covers all devices together."""
_UNDIVIDED = (*_COUNTED, *_ADDED)
"""The totals that never cover several devices together."""
_SENT = ("multiplicity", "total_payload", "total_wire_bytes")
_TOTALS = (
    Field("word", "measure", "The figure compared."),
    Field("count", "before", "The figure of the first module.", nullable=True),
    Field("count", "after", "The figure of the second module.", nullable=True),
    Field("count", "change", "Second figure minus first.", nullable=True, signed=True),
    Field("ratio", "share", "The change relative to the first figure.", nullable=True,
          signed=True),
    Field("flag", "is_lower_bound", "Whether FLOPs are missing in either module.",
          label="lower bound"),
    Field("word", "provenance", "Provenance of the figures."),
    Field("count", "devices_before", "Devices that the first figure covers together: all devices "
          "before partitioning, 1 for the program of one device.", nullable=True),
    Field("count", "devices_after", "Devices that the second figure covers together.",
          nullable=True),
)  # fmt: skip
_ONE_DEVICE = tuple(field.name for field in _TOTALS if not field.name.startswith("devices_"))
_COUNTS = (
    Field("word", "kind", "Kind of change: vanished, appeared, moved or changed."),
    Field("text", "aspect", "The changed property of the instruction.", nullable=True),
    Field("count", "changes", "Changes of this kind, without consequences.", adds_up=True),
)
_NAME = Field("name", "name", "Name in the second module, otherwise in the first.", nullable=True)
_CHANGES = ("kind", "aspect", "name", "opcode", "before", "after", "op_name", "source")
_OPCODE = Field("word", "opcode", "The opcode.")
_INSTRUCTIONS = Field("count", "instructions", "Instructions of that opcode.")


class Diff(Result):
    """Differences between two modules: `Module.diff(other)` or `hlofast.diff(before, after)`.

    Instructions are matched by their computation and by their users. Names, metadata, channel
    numbers, order and the number of copies of equal computations are ignored. Equivalent attributes
    (replica groups and shardings as lists or in compact form) are equal.
    """

    __slots__ = (
        "_causes", "_changes", "_costs", "_data", "_is_compared", "_measured", "_options", "_pairs",
        "_peaks", "_rules", "after", "before", "mesh",
    )  # fmt: skip

    VERB = "diff"
    FACTS = (
        Field("path", "before", "The file of the first module."),
        Field("path", "after", "The file of the second module."),
        Field("count", "differences", "Changes that do not follow from another change."),
        Field("count", "consequences", "Changes that follow from other changes."),
        Field("flag", "compares_layouts", "Whether layouts are compared.",
              label="layouts compared"),
        Field("flag", "same_schedule",
              "Whether the order of instructions is equal, if both modules are scheduled.",
              label="same order"),
        *_diff_measured.FACTS,
    )  # fmt: skip

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
        self._measured: MeasuredDiff | None = None
        self._is_compared = False
        self._costs: tuple[Cost, Cost] | None = None
        self._peaks: tuple[_Peak, _Peak] | None = None

    @property
    def changes(self) -> Table:
        """All differences: module attributes first, then instructions.

        `fields` describes the columns. `kind` is vanished, appeared, changed, or moved (into or out
        of a called computation, as by fusion). `aspect` is the changed property: opcode,
        element_type, dimensions, layout, memory_space, structure (of tuples), operands, constant,
        parameter_number, trip_count, root, schedule, or the name of an attribute of the instruction
        or the header. `before` and `after` are attribute values, shapes of instructions that
        vanished or appeared, or computations of instructions that moved; long texts are truncated.
        Examples of consequences: the shape of a result whose operand changed in the same way, an
        operand that appeared or vanished, the instructions of a computation that appeared or
        vanished with its caller, the trip count of a loop.
        """
        if self._changes is None:
            self._changes = Table(self._data.changes(False))
        return self._changes

    @property
    def causes(self) -> Table:
        """The rows of `changes` that no other change causes."""
        if self._causes is None:
            self._causes = Table(self._data.changes(True))
        return self._causes

    @property
    def pairs(self) -> Table:
        """Matched instructions: row in the first and in the second module."""
        if self._pairs is None:
            self._pairs = Table(self._data.pairs())
        return self._pairs

    @property
    def is_empty(self) -> bool:
        """Whether there is no difference."""
        return not len(self.changes)

    @property
    def compares_layouts(self) -> bool:
        """Whether layouts were compared: requested, and given by both modules."""
        return self._data.compares_layouts

    @property
    def same_schedule(self) -> bool | None:
        """Whether the order of instructions is equal; None unless both modules are scheduled."""
        return self._data.same_schedule

    def counts(self) -> dict[str, int]:
        """Returns the number of causes by kind, and for changed instructions by aspect."""
        counts: dict[str, int] = {}
        columns = (self.causes.values(name) for name in ("kind", "aspect"))
        for kind, aspect in zip(*columns, strict=True):
            name = f"{kind} {aspect or ''}".rstrip()
            counts[name] = counts.get(name, 0) + 1
        return counts

    def totals(self) -> Table:
        """Returns the totals of both modules for one run.

        Measures: instructions, computations, flops, transcendentals, bytes_accessed, live_peak
        (bytes), modelled_peak (bytes that one device needs, by `Memory.peak_before`; left out if
        neither module has it), collectives, payload and wire_bytes (of all calls). Counts and the
        payload are exact; FLOPs and transcendentals are as exact as in `Module.cost`; the other
        measures are modelled. Only instructions and computations in the texts count, as in
        `Module.summary`; if the modules differ in implied rows, `notes` gives their numbers. The
        change is unknown if one figure covers all devices together and the other covers one of
        several. Collectives, payload and wire_bytes are unknown before partitioning.
        """
        known: dict[str, tuple[int | None, int | None]] = {
            "instructions": (self.before.instruction_count, self.after.instruction_count),
            "computations": (self.before.computation_count, self.after.computation_count),
        }
        costs = self._both_costs()
        for name in _SUMS:
            known[name] = (int(getattr(costs[0], name)), int(getattr(costs[1], name)))
        (before_peak, before_model, _), (after_peak, after_model, _) = self._both_peaks()
        known["live_peak"] = (before_peak, after_peak)
        if before_model is not None or after_model is not None:
            known["modelled_peak"] = (
                None if before_model is None else before_model.peak,
                None if after_model is None else after_model.peak,
            )
        sent = (self._sent(self.before), self._sent(self.after))
        known["collectives"] = (len(_distinct(sent[0])), len(_distinct(sent[1])))
        for name, column in (("payload", "total_payload"), ("wire_bytes", "total_wire_bytes")):
            known[name] = (_sum(sent[0], column), _sum(sent[1], column))
        together = (devices_together(self.before), devices_together(self.after))
        for name in _ADDED:
            before, after = known[name]
            known[name] = (None if together[0] > 1 else before, None if together[1] > 1 else after)
        bound = any(cost.misses_flops for cost in costs)
        known_as = [{fact.name: fact.provenance for fact in cost.facts} for cost in costs]
        # All devices together on one side, one of several on the other.
        sides = zip(together, (self.before, self.after), strict=True)
        differs = max(together) > 1 and any(n == 1 and own.num_partitions > 1 for n, own in sides)
        rows = []
        for name, (before, after) in known.items():
            devices: tuple[int | None, int | None] = together
            if name in _UNDIVIDED:
                devices = (None, None)
            elif name == "modelled_peak":
                devices = (None if before is None else 1, None if after is None else 1)
            change = after - before if before is not None and after is not None else None
            is_known = before is not None or after is not None
            provenance = "modelled" if is_known else "unknown"
            if differs and devices == together:
                change = None
            if is_known and name in (*_COUNTED, "payload"):
                provenance = "exact"
            elif name in ("flops", "transcendentals"):
                provenance = max((own[name] for own in known_as), key=PROVENANCES.index)
            is_bound = bound and name not in (*_COUNTED, "live_peak", "modelled_peak")
            share = change / before if before and change else None
            rows.append((name, before, after, change, share, is_bound, provenance, *devices))
        return of_rows(_TOTALS, rows)

    def _totals(self) -> Section:
        """The totals, with the devices that they cover where that is more than one."""
        table = self.totals()
        covered = [table.values(name) for name in ("devices_before", "devices_after")]
        is_one = all(count in (None, 1) for column in covered for count in column)
        shown = _ONE_DEVICE if is_one else None
        return Section("totals", "Totals", table, shown, is_whole=True)

    @property
    def title(self) -> str:
        """The names of the modules."""
        names = [module.name for module in (self.before, self.after)]
        return names[0] if names[0] == names[1] else " → ".join(names)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Files, numbers of changes, and the compared properties."""
        values = (
            self.before.path,
            self.after.path,
            len(self.causes),
            len(self.changes) - len(self.causes),
            self.compares_layouts,
            self.same_schedule,
        )
        facts = tuple(map(Fact, self.FACTS, values))
        return facts if self.measured is None else (*facts, *self.measured.facts())

    @property
    def measured(self) -> MeasuredDiff | None:
        """What became slower or faster; None unless both modules have a profile that has them."""
        if not self._is_compared:
            self._is_compared = True
            sides = [measured_with(module, None) for module in (self.before, self.after)]
            if sides[0] is not None and sides[1] is not None:
                self._measured = _diff_measured.MeasuredDiff(sides[0], sides[1], self.pairs)
        return self._measured

    @property
    def notes(self) -> tuple[Note, ...]:
        """Omissions from the comparison, and doubts about figures."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[Note]:
        yield from self._about_profiles()
        if not self.compares_layouts:
            yield Note("layouts", "layouts are not compared")
        if self.same_schedule is False and not self._options[2]:
            yield Note("schedule", "the order of instructions differs, but is not compared")
        yield from self._about_devices()
        (*_, before), (*_, after) = self._both_peaks()
        for text in before:
            yield Note("contradiction", f"{'both' if text in after else 'before'}: {text}")
        for text in after:
            if text not in before:
                yield Note("contradiction", f"after: {text}")
        implied = [_implied(module) for module in (self.before, self.after)]
        if implied[0] == implied[1]:
            return
        for side, (instructions, computations) in zip(("before", "after"), implied, strict=True):
            if instructions:
                yield Note(
                    "implied",
                    f"{side}: the text implies {instructions:,} more instructions and "
                    f"{computations:,} more computations, which are compared but not counted",
                    instructions=instructions,
                    computations=computations,
                )

    def _about_devices(self) -> Iterator[Note]:
        """Figures that cover all devices together, and the model of peaks of one device."""
        yield from _sided(note(self.before), note(self.after))
        models = [model for _, model, _ in self._both_peaks()]
        yield from _sided(*(None if own is None else _modelled(own) for own in models))

    def _about_profiles(self) -> Iterator[Note]:
        """Profiles that say nothing of their module, and a side without a profile."""
        profiles = []
        for side, module in (("before", self.before), ("after", self.after)):
            told = told_in(module)
            profiles.append(told is not None and told.profile is not None)
            if (text := unmeasured(module)) is not None:
                yield Note("not-in-profile", f"{side}: {text}")
        if any(profiles) and not all(profiles):
            which, option = ("second", "--profile-after") if profiles[0] else ("first", "--profile")
            text = f"measured times are not compared: no profile of the {which} module ({option})"
            yield Note("one-profile", text)
        if self.measured is not None:
            yield from self.measured.notes()

    def sections(self, *, consequences: bool = False) -> tuple[Section, ...]:
        """What became slower or faster, and the differences.

        With `consequences` also the changes that follow from others.
        """
        measured = () if self.measured is None else self.measured.sections()
        rest = () if self.is_empty else self._sections(consequences=consequences)
        return (*measured, *rest)

    def every_section(self) -> tuple[Section, ...]:
        """All tables, even if the modules are equal."""
        measured = () if self.measured is None else self.measured.sections()
        return (*measured, *self._sections(consequences=True))

    def _sections(self, *, consequences: bool) -> tuple[Section, ...]:
        changes = self._named_changes()
        follows = changes.values("is_consequence")
        # A trip count follows from constants that by themselves tell a reader little.
        told = [aspect == "trip_count" for aspect in changes.values("aspect")]
        causes = [row for row, later in enumerate(follows) if not later or told[row]]
        rest = [row for row, later in enumerate(follows) if later and not told[row]]
        sections = [
            Section("counts", "Differences", self._counts(), is_whole=True),
            Section("changes", "Changes", changes.take(causes), _CHANGES),
        ]
        if consequences:
            title = "Consequences"
            sections.append(Section("consequences", title, changes.take(rest), _CHANGES))
        by_axes, by_scope = _different(self.collectives()), _different(self.collectives("scope"))
        return (
            *sections,
            self._totals(),
            Section("collectives_by_axes", "Collectives by axes", by_axes),
            Section("collectives_by_scope", "Collectives by scope", by_scope),
            Section("opcodes", "Opcodes", _different(self.opcodes())),
            Section("cost_by_scope", "Cost by scope", _different(self.by("scope"))),
        )

    def _counts(self) -> Table:
        counts: dict[tuple[str, str | None], int] = {}
        for place in zip(*(self.causes.values(own) for own in ("kind", "aspect")), strict=True):
            counts[place] = counts.get(place, 0) + 1
        return of_rows(_COUNTS, [(*place, count) for place, count in counts.items()])

    def _named_changes(self) -> Table:
        """All changes, with the names of instructions."""
        table = with_source(self.changes)
        names = zip(table.values("name_after"), table.values("name_before"), strict=True)
        named = Table.of([(_NAME, [after or before for after, before in names])])
        columns = named._described() + table._described()
        return Table(own for own in columns if own[0].kind != "instruction")

    def by(self, key: str, *, depth: int = 3) -> Table:
        """Returns FLOPs and bytes of both modules by `key`, a key of `Cost.by`.

        The largest differences in bytes come first. A key that a module lacks has figures of 0.
        """
        tables = [cost.by(key, depth=depth) for cost in self._both_costs()]
        before, after = (_rows_by(table, [key], _cost_columns(table)) for table in tables)
        fields = [tables[0].field(name) for name in _SUMS]
        return _side_by_side([tables[0].field(key)], fields, before, after)

    def opcodes(self) -> Table:
        """Returns instructions of both modules by opcode, largest differences first."""
        before, after = (_opcodes(module) for module in (self.before, self.after))
        return _side_by_side([_OPCODE], [_INSTRUCTIONS], before, after)

    def collectives(self, by: str = "axes") -> Table:
        """Returns collectives by kind and a column of `hlofast.Collectives` (`axes`, `scope`, ...).

        The largest differences in wire bytes come first. Axes are the axes of `mesh`, otherwise of
        each module's own mesh. Figures of a module before partitioning are unknown.
        """
        keys = ["kind"] if by == "kind" else ["kind", by]
        tables = [self._sent(module) for module in (self.before, self.after)]
        columns = {column: [column] for column in _SENT}
        # What the partitioner adds is unknown, also where the program has collectives of its own.
        missing = [None if devices_together(own) > 1 else 0 for own in (self.before, self.after)]
        before, after = (
            {place: row if nothing == 0 else [None] * len(row) for place, row in rows.items()}
            for rows, nothing in zip(
                (_rows_by(table, keys, columns) for table in tables), missing, strict=True
            )
        )
        fields = [tables[0].field(key) for key in keys]
        names = zip(_SENT, ("executions", "payload", "wire_bytes"), strict=True)
        sums = [
            tables[0].field(own).replace(name=name, label=name.replace("_", " "))
            for own, name in names
        ]
        return _side_by_side(fields, sums, before, after, missing)

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
            self._peaks = (_peak(self.before), _peak(self.after))
        return self._peaks

    def __reduce__(self) -> tuple[object, ...]:
        return Diff, (self.before, self.after, self._options, self.mesh, self._rules)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts().items())
        return f"<Diff of {self.before.name} and {self.after.name}: {counts or 'none'}>"


def _peak(module: Module) -> _Peak:
    """The live peak in bytes, the model of one device, and contradictions; None if unknown."""
    from hlofast._memory import quiet

    try:
        memory = quiet(module)
    except ValueError:
        return None, None, []
    return memory.live_peak, memory.peak_before, list(map(str, memory.contradictions))


def _modelled(policies: Policies) -> Note:
    """What the modelled peak is, and its error."""
    what = "modelled_peak is what one device needs once XLA has compiled the step"
    return Note("modelled-peak", f"{what}; {error_of(policies)}")


def _sided(before: Note | None, after: Note | None) -> Iterator[Note]:
    """The notes of both sides; equal notes once."""
    if before is not None and after is not None and before.text == after.text:
        yield Note(before.code, f"both: {before.text}", **before.figures)
        return
    for side, own in (("before", before), ("after", after)):
        if own is not None:
            yield Note(own.code, f"{side}: {own.text}", **own.figures)


def _implied(module: Module) -> tuple[int, int]:
    """Numbers of implied instructions and computations."""
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
    """Source columns of each sum."""
    bytes_ = [name for name in table.columns if name.endswith(("bytes_read", "bytes_written"))]
    accessed = ["bytes_accessed"] if "bytes_accessed" in table.columns else bytes_
    return {"flops": ["flops"], "transcendentals": ["transcendentals"], "bytes_accessed": accessed}


def _rows_by(
    table: Table, keys: list[str], sums: dict[str, list[str]]
) -> dict[_Key, list[int | None]]:
    """Sums of columns by key; None if one of the figures is unknown."""
    rows: dict[_Key, list[int | None]] = {}
    places = zip(*(table.values(key) for key in keys), strict=True)
    columns = [[table.values(name) for name in names] for names in sums.values()]
    for index, place in enumerate(places):
        row = rows.setdefault(place, [0] * len(columns))
        for number, values in enumerate(columns):
            figures = [row[number], *(column[index] for column in values)]
            row[number] = None if None in figures else sum(figures)
    return rows


def _different(table: Table) -> Table:
    """The rows in which the modules differ."""
    names = [name for name in table.columns if name.endswith("_before")]
    before = zip(*(table.values(name) for name in names), strict=True)
    after = zip(
        *(table.values(f"{name.removesuffix('_before')}_after") for name in names), strict=True
    )
    pairs = enumerate(zip(before, after, strict=True))
    return table.take([row for row, (own, other) in pairs if own != other])


def _side_by_side(
    keys: list[Field],
    names: list[Field],
    before: Mapping[_Key, Sequence[int | None]],
    after: Mapping[_Key, Sequence[int | None]],
    missing: Sequence[int | None] = (0, 0),
) -> Table:
    """Sums of both modules by key, largest difference of the last sum first.

    `missing` are the figures of a key that one of them lacks.
    """
    nothing = [[own] * len(names) for own in missing]
    places = list(dict.fromkeys([*before, *after]))
    rows = [
        (place, before.get(place, nothing[0]), after.get(place, nothing[1])) for place in places
    ]
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
    """Returns `before.diff(after)`, with the arguments of `Module.diff`."""
    told = told_in(before)
    if mesh is None and told is not None:
        mesh = told.mesh
    known_mesh = None if mesh is None else mesh_for(before, mesh)
    if known_mesh is not None:
        mesh_for(after, known_mesh)
    rules = rules_for(before, rules)
    read = None if rules is None else read_rules(rules)
    return Diff(before, after, (layouts, backend_config, schedule), known_mesh, read)
