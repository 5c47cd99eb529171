"""`Remat`: recomputation, residuals and all-gathers of a step, and what to change."""

from __future__ import annotations

from hlofast import _core, _remat_plan, _text
from hlofast import _remat_fields as fields
from hlofast._core import Field
from hlofast._cost import read_rules
from hlofast._device_notes import about_backend
from hlofast._memory import RULES, SPACES
from hlofast._memory_account import table_bytes
from hlofast._names import unknown
from hlofast._remat_statements import Statement, change, operation, statements
from hlofast._result import Fact, Note, Result, Section
from hlofast._shares import labelled
from hlofast._units import read_memory
from hlofast.table import Table, column_of, of_rows, with_share, with_source

TYPE_CHECKING = False  # The command line uses this file; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hlofast._core import Instruction, Mesh
    from hlofast._cost import Cost, Rules
    from hlofast._module import Module
    from hlofast._policies import Policies
    from hlofast._policy import Policy
    from hlofast.devices import Device


_SHOWN_PROOFS = 4
_BY = ("program", "compiler", "twin")


class Remat(Result):
    """Recomputation, residuals and all-gathers of a step: `Module.remat()`.

    Phases are the same as in `Module.cost`. `fields` of each table describes its columns.

    `candidates` and `apply()` plan which residuals to rematerialise. Their peaks are not estimates:
    each candidate is rewritten into a module of its own, whose live bytes are counted by the same
    `rule` as for the original (device sizes, text order, fragmentation not modelled). The module
    that `apply()` returns therefore has the announced peak.
    """

    __slots__ = (
        "_cost", "_data", "_plan", "_policies", "_rule", "_rules", "_statements", "_tables",
        "device", "hbm", "mesh", "module",
    )  # fmt: skip

    VERB = "remat"
    FACTS = (
        Field("count", "recomputed", "Recomputed instructions."),
        Field("count", "by_program", "Recomputed instructions whose operation name shows "
                                     "jax.checkpoint.",
              label="by program"),
        Field("count", "by_compiler", "Recomputed instructions that the compiler cloned (.remat).",
              label="by compiler"),
        Field("count", "by_twin",
              "Recomputed instructions recognised only because an earlier instruction computes the "
              "same value.",
              label="by twin"),
        Field("flops", "recomputed_flops", "FLOPs of all calls of recomputed instructions.",
              label="recomputed FLOP"),
        Field("count", "recomputed_collectives", "Recomputed collectives.",
              label="recomputed collectives"),
        Field("count", "residuals", "Values kept from forward to backward."),
        Field("bytes", "residual_bytes", "Bytes of residuals.", label="residual bytes"),
        Field("count", "gathers", "All-gathers.", label="all-gathers"),
        Field("count", "kept_gathers", "All-gathers whose result is kept for the backward pass.",
              label="kept all-gathers"),
        Field("count", "named_values", "Values named by checkpoint_name.", label="named values"),
    )  # fmt: skip

    def __init__(
        self,
        module: Module,
        cost: Cost,
        hbm: int | None,
        device: str | Device | None,
        mesh: Mesh | None,
        rules: Rules | None,
        rule: str | None,
    ) -> None:
        self.module = module
        """The module."""
        self.mesh = mesh
        """The mesh that was given."""
        self.hbm = hbm
        """Peak bytes to plan for; None for the lowest peak, in steps of at least 0.1 %."""
        self.device = device
        """The device whose seconds order the candidates; None without a device."""
        self._plan: _core.PlanData | None = None
        self._policies: Policies | str | None = None
        self._rules = rules
        self._rule = rule
        self._cost = cost
        self._data = cost._data.remat(mesh)
        self._tables: dict[str, Table] = {}
        self._statements: tuple[Statement, ...] | None = None

    @property
    def recomputed(self) -> Table:
        """The recomputed instructions, including instructions inside fusions.

        `by` is `program` (operation names of `jax.checkpoint`), `compiler` (clones named `.remat`)
        or `twin` (not marked by name, but an earlier instruction computes the same value from the
        same operands). The bytes of a fusion are the bytes of the instructions inside it.
        """
        return self._table("recomputed")

    def outside_phase(self) -> list[dict[str, Any]]:
        """Returns the rows of `recomputed` outside phase recompute.

        Phase recompute, in `instructions` and `Cost.by("phase")`, holds the instructions whose
        operation names mark recomputation. Compiler clones and twins have the phase of the
        instruction they repeat.
        """
        phases = self._cost._data.column("phase").tolist()
        own = _core.phases.index("recompute")
        return [row for row in self.recomputed if phases[row["instruction"]] != own]

    @property
    def residuals(self) -> Table:
        """The values that forward code produces and backward code reads, except plain parameters.

        `kind` is `weight_copy`, `gathered_weight`, `gathered_activation` or `activation`. For a
        value stacked by a loop, `instruction` is the loop and `bytes` cover the whole stack.
        `source` is the instruction that computes the value, looking through conversions and slices,
        or the parameter it is a copy of. `memory_space` is the farthest memory space between the
        producer of the value and its readers: 5 (host) is farther than 0 (HBM), and 0 is farther
        than fast memory.
        """
        return self._table("residuals")

    @property
    def gathers(self) -> Table:
        """The all-gathers; each occurs once, however it is written.

        `fate` is `kept` (the result or a copy of it is kept from forward to backward), `recomputed`
        (gathered again for the backward pass), `forward` or `backward` (used in that pass only), or
        `other`. `residual` is the row in `residuals` of the kept value.
        """
        return self._table("gathers")

    @property
    def instructions(self) -> dict[str, int]:
        """Number of instructions of the text by phase."""
        return dict(self._data.instructions())

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Conclusions from the tables, each with its evidence."""
        if self._statements is None:
            products = self._cost.matmuls()
            tables = {name: self._table(name) for name in ("recomputed", "residuals", "gathers")}
            self._statements = statements(self.module, self._data, tables, products)
        return self._statements

    @property
    def candidates(self) -> Table:
        """Residuals that could be recomputed: one row per residual, with the result of the rewrite.

        Residuals with the most bytes saved per cost come first; residuals that cannot be rewritten
        come last. The cost is seconds on the device; without a device it is FLOPs, with 100 FLOPs
        per byte moved and 1000 per byte sent to other devices. Up to 48 residuals are tried (fewer,
        but at least 4, in modules of more than 40,000 instructions): residuals live at the peak
        first, then larger residuals. Raises `ValueError` if memory cannot be counted.
        """
        if "candidates" not in self._tables:
            columns = self._planned().candidates()
            candidates = Table(columns)
            residuals = self.residuals.to_pylist()
            rows = [residuals[row["residual"]] for row in candidates]
            for name in ("name", "index", "kind", "shape", "bytes", "source_file", "source_line"):
                field = self.residuals.field(name)
                columns.append((field, column_of(field, [row[name] for row in rows])))
            columns.append(
                (
                    fields.CHANGE,
                    column_of(fields.CHANGE, [change(self.module, row) for row in rows]),
                )
            )
            self._tables["candidates"] = Table(columns)
        return self._tables["candidates"]

    @property
    def policies(self) -> Policies | None:
        """What the step would need under other checkpoint policies of its layers.

        The step must have a scan over layers (a forward loop with a known number of iterations, and
        a backward loop that reads what it stacks) or, if it is scheduled, layers in numbered
        scopes. Otherwise, and if memory cannot be counted, this is None, and `no_policies` says
        why. In a scheduled module the default `rule` counts the peak as it is; before, all peaks
        are modelled. See `hlofast.Policies`.
        """
        found = self._policies_or_reason()
        return None if isinstance(found, str) else found

    @property
    def no_policies(self) -> str | None:
        """Why no checkpoint policies can be modelled; None if they can."""
        found = self._policies_or_reason()
        return found if isinstance(found, str) else None

    def _policies_or_reason(self) -> Policies | str:
        if self._policies is None:
            from hlofast._policies import policies_of

            self._policies = policies_of(self)
        return self._policies

    @property
    def rule(self) -> str:
        """The rule by which peaks are counted, as in `Module.memory`.

        `xla` counts the peak of HBM in XLA's own account (`Memory.hbm_peak`), the other rules
        `Memory.live_peak`. The default is `xla` for scheduled TPU modules, because that peak is
        compared with a device's memory, and `in_place` for other modules.
        """
        return self._planned().rule()

    @property
    def peak(self) -> int:
        """Peak bytes of the module as it is, by `rule`."""
        return self._planned().peaks()[0]

    @property
    def peak_at(self) -> Instruction | None:
        """The instruction that runs at the peak."""
        row = self._planned().at()
        return None if row < 0 else self.module[row]

    @property
    def peak_after(self) -> int:
        """Peak bytes of the module that `apply` returns."""
        return self._planned().peaks()[1]

    @property
    def steps(self) -> tuple[int, ...]:
        """Peak bytes after each chosen candidate, in the order of the plan."""
        return tuple(self._planned().steps())

    @property
    def fits(self) -> bool | None:
        """Whether the peak with the plan fits `hbm` bytes; None without `hbm`.

        None also where the text is of several devices together: see `policies`.
        """
        return None if self.module.summary().devices_together > 1 else self._planned().fits()

    def apply(self, candidates: Iterable[int] | None = None) -> Module:
        """Returns a module that recomputes the chosen candidates.

        `candidates` are rows of that table. The default is the smallest set that lowers the peak to
        `hbm`, or without `hbm` all candidates that lower it. Copies are named `x.remat` and wait
        behind an `opt-barrier` for a value that is produced late. Raises `ValueError` if nothing is
        chosen or a candidate cannot be recomputed, and `IndexError` for an unknown candidate. A
        `UserWarning` names each given candidate with `no_saving`, and the reason.
        """
        plan = self._planned()
        if candidates is not None:
            numbers = list(candidates)
            if not numbers:
                raise ValueError("candidates is empty; leave it out to apply the plan")
            if any(number < 0 for number in numbers):
                raise IndexError("candidates must not be negative")
            for number in numbers:
                if number < len(self.candidates):
                    row = self.candidates.row(number)
                    if row["peak"] is None:
                        raise ValueError(f"{row['name']}: {row['refusal']}")
                    if row["no_saving"]:
                        import warnings

                        text = f"{row['name']}: the peak does not change: {row['no_saving']}"
                        warnings.warn(text, stacklevel=2)
            return plan.apply(numbers)[0]
        module = plan.module()
        refusal = self._planned().refusal()
        if module is None and refusal is not None:
            raise ValueError(f"no values are planned: {refusal}; plan on the scheduled module")
        if module is None:
            raise ValueError(
                "nothing to recompute: the peak fits as it is, or no candidate lowers it"
            )
        return module

    def _time(self) -> _core.TimeData | None:
        if self.device is None:
            return None
        return self.module.time(self.device, mesh=self.mesh)._data

    def _planned(self) -> _core.PlanData:
        if self._plan is None:
            self._plan = self._data.plan(
                self.hbm, self._time(), rule=self._rule, table_bytes=table_bytes(self.device)
            )
        return self._plan

    def by(self, name: str, table: str = "residuals", *, totals: Iterable[str] = ()) -> Table:
        """Returns totals of a table (`recomputed`, `residuals`, `gathers`) by one of its columns.

        Columns: `name`, `rows`, then the sums of `totals`. The default totals are `bytes` of
        residuals, `payload_out` of gathers, and `flops`, `bytes_read` and `bytes_written` of
        recomputed instructions. Sums cover the known figures; see `Table.by`. Raises `KeyError` for
        an unknown table or column.
        """
        defaults = {
            "recomputed": ("flops", "bytes_read", "bytes_written"),
            "residuals": ("bytes",),
            "gathers": ("payload_out",),
        }
        return self._table(table, known=defaults).by(name, totals=totals or defaults[table])

    def _table(self, name: str, known: Iterable[str] | None = None) -> Table:
        if known is not None and name not in known:
            raise unknown("table", name, known)
        if name not in self._tables:
            self._tables[name] = Table(getattr(self._data, name)())
        return self._tables[name]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Totals of recomputed instructions, residuals and all-gathers."""
        by = self.recomputed.values("by")
        flops, sizes = self.recomputed.values("flops"), self.residuals.values("bytes")
        more = "bound" if None in self.recomputed.values("multiplicity") else "exact"
        values: dict[str, tuple[int, str]] = {
            "recomputed": (len(self.recomputed), "exact"),
            **{f"by_{cause}": (by.count(cause), "exact") for cause in _BY},
            "recomputed_flops": (
                sum(own or 0 for own in flops),
                "bound" if None in flops else more,
            ),
            "recomputed_collectives": (sum(self.recomputed.values("is_collective")), "exact"),
            "residuals": (len(self.residuals), "exact"),
            "residual_bytes": (
                sum(size or 0 for size in sizes),
                "bound" if None in sizes else "exact",
            ),
            "gathers": (len(self.gathers), "exact"),
            "kept_gathers": (self.gathers.values("fate").count("kept"), "exact"),
            "named_values": (len(self._data.marks()[0]), "exact"),
        }
        facts = tuple(Fact(field, *values[field.name]) for field in self.FACTS)
        return labelled(self.module, facts, ("bytes", "flops"))

    @property
    def notes(self) -> tuple[Note, ...]:
        """Assumptions and gaps behind the tables, those of policies and plans once read."""
        notes: list[Note] = []
        phases = self.instructions
        summary = self.module.summary()
        if (no_names := summary._no_names) is not None:
            notes.append(Note("no-op-names", no_names))
        if not (phases["backward"] or phases["recompute"] or len(self.residuals)):
            text = "no instruction is known to belong to a backward pass, so there are no residuals"
            notes.append(Note("no-backward", text))
        if summary.devices_together > 1:
            from hlofast._shares import except_inside

            text = (
                f"the module is {summary.status}: residuals and recomputed values cover all "
                f"{summary.devices_together:,} devices together{except_inside(self.module)}; "
                "checkpoint policies cover one device; "
                "the partitioner, which inserts most all-gathers, has not run yet"
            )
            notes.append(Note("global", text))
        if not self.module.is_scheduled:
            text = "the module is not scheduled: live ranges follow text order"
            if self._policies is not None and not isinstance(self._policies, str):
                text += ", peaks under policies follow an order like that of XLA's schedules"
            notes.append(Note("unscheduled", text))
        notes += _remat_plan.notes(self)
        elsewhere = self.outside_phase()
        if elsewhere:
            flops = sum(row["flops"] or 0 for row in elsewhere)
            text = (
                f"phase recompute, here and in `hlofast cost`, excludes {flops:,} FLOP of "
                f"{_text.counted(len(elsewhere), 'recomputed instruction')}: compiler clones and "
                "twins have the phase of the instruction they repeat"
            )
            notes.append(Note("other-phases", text, instructions=len(elsewhere), flops=flops))
        residuals = self.residuals
        pairs = zip(residuals.values("memory_space"), residuals.values("bytes"), strict=True)
        on_host = [size or 0 for space, size in pairs if space == SPACES["host"]]
        if on_host:
            text = (
                f"{_text.counted(len(on_host), 'residual')} of {sum(on_host):,} B "
                f"{'is' if len(on_host) == 1 else 'are'} kept in host memory"
            )
            notes.append(Note("on-host", text, residuals=len(on_host), bytes=sum(on_host)))
        by_place = self.residuals.values("is_named").count(False)
        if by_place:
            text = (
                f"{_text.counted(by_place, 'residual')} identified by position before all backward "
                "code, not by operation name"
            )
            notes.append(Note("by-place", text, residuals=by_place))
        if self._plan is not None or self._policies is not None:
            notes += about_backend(self.module, self.device)
        if isinstance(self._policies, str):
            notes.append(Note("no-policies", self._policies))
        elif self._policies is not None:
            notes += self._policies.notes
        return tuple(notes)

    def sections(
        self,
        *,
        plan: bool = False,
        policy: Policy | None = None,
        frontier: bool = False,
        values: bool | None = None,
    ) -> tuple[Section, ...]:
        """Phases, statements, all-gathers, residuals and recomputed instructions.

        With `plan`, checkpoint policies come first, among them `policy` and with `frontier` the
        best of all budgets. With `values` the plan of single values follows, which is the default
        where no policy can be modelled. Raises `ValueError` with `plan` if memory cannot be
        counted.
        """
        sections = [
            Section(
                "phases", "Instructions by phase", of_rows(fields.PHASES, self.instructions.items())
            ),
            *self._of_statements(),
            Section("gathers", "All-gathers", self._shown_gathers(), fields.SHOWN_GATHERS),
            Section(
                "residuals",
                "Kept from forward to backward",
                self._shown_residuals(),
                fields.SHOWN_KEPT,
            ),
            Section("operations", "Recomputed, by operation and line", self._by_operation()),
            Section(
                "recomputed",
                "Recomputed instructions",
                self._shown_recomputed(),
                fields.SHOWN_RECOMPUTED,
            ),
        ]
        if not plan:
            return tuple(sections)
        known = self.policies
        policies = () if known is None else known.sections(policy, frontier=frontier)
        shown = known is None if values is None else values
        return (*policies, *(_remat_plan.sections(self) if shown else ()), *sections)

    def shown_sections(self) -> tuple[Section, ...]:
        """As the command prints them: with policies, or a plan, if there is a memory to fit."""
        try:
            return self.sections(plan=self.hbm is not None)
        except ValueError:
            return self.sections()

    def every_section(self) -> tuple[Section, ...]:
        """All tables, including the tables of a plan."""
        return self.sections(plan=True, frontier=True, values=True)

    def _repr_html_(self) -> str:
        from hlofast._html import result

        sections = self.shown_sections()
        policies = None if self.hbm is None else self.policies
        return result(self, sections, None if policies is None else policies._chart)

    @property
    def tables(self) -> dict[str, Table]:
        """The tables by name, without the tables of a plan, which takes time: see `sections`."""
        return {section.name: section.table for section in self.sections()}

    def _of_statements(self) -> tuple[Section, ...]:
        """Statements as paragraphs; in JSON, evidence and figures are separate tables."""
        rows, proofs, figures, shown = [], [], [], []
        for number, statement in enumerate(self.statements):
            rows.append((number, statement.code, statement.text, statement.advice))
            proofs += [(number, row) for row in statement.instructions]
            figures += [(number, name, value) for name, value in statement.figures.items()]
            names = _text.names(statement.names, most=_SHOWN_PROOFS)
            lines = [("evidence", names), ("advice", statement.advice or "")]
            shown.append(
                (f"{statement.text} [{statement.code}]", [line for line in lines if line[1]])
            )
        return (
            Section(
                "statements", "Conclusions", of_rows(fields.STATEMENTS, rows), paragraphs=shown
            ),
            Section("proofs", "Evidence", of_rows(fields.PROOFS, proofs), paragraphs=()),
            Section(
                "figures", "Figures of statements", of_rows(fields.FIGURES, figures), paragraphs=()
            ),
        )

    def _shown_gathers(self) -> Table:
        table = self.gathers
        kept = [None if at is None else self.residuals.row(at) for at in table.values("residual")]
        names = ("name", "index", "bytes")
        kept_columns = [[row and row[name] for row in kept] for name in names]
        columns = [own for own in table._described() if own[0].name != "residual"]
        columns += [
            (field, column_of(field, own))
            for field, own in zip(fields.KEPT_AS, kept_columns, strict=True)
        ]
        return with_source(Table(columns).sort_by("payload_out", descending=True))

    def _shown_residuals(self) -> Table:
        # The column `source` is the instruction that computes the value; `from` is the source line.
        labels = {"source": "computed by", "from": "source"}
        described = with_source(self.residuals, "from")._described()
        table = Table(
            (field.replace(label=labels.get(field.name, field.label)), column)
            for field, column in described
        )
        return with_share(table.sort_by("bytes", descending=True), "bytes")

    def _shown_recomputed(self) -> Table:
        return with_source(self.recomputed.sort_by("flops", descending=True))

    def _by_operation(self) -> Table:
        groups: dict[tuple[str, str, str | None], list[int]] = {}
        for row in with_source(self.recomputed):
            group = groups.setdefault((operation(row), row["by"], row["source"]), [0, 0, 0])
            for at, value in enumerate((1, row["multiplicity"] or 0, row["flops"] or 0)):
                group[at] += value
        rows = [(name, by, *sums, source) for (name, by, source), sums in groups.items()]
        return of_rows(fields.BY_OPERATION, sorted(rows, key=lambda row: (-row[4], -row[2])))

    def __reduce__(self) -> tuple[object, ...]:
        return remat, (self.module, self.hbm, self.device, self.mesh, self._rules, self._rule)

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{len(self._table(name))} {name}" for name in ("recomputed", "residuals", "gathers")
        )
        return f"<Remat of {self.module.name}: {counts}>"


def remat(
    module: Module,
    hbm: int | str | None,
    device: str | Device | None,
    mesh: Mesh | None,
    rules: Rules | None,
    rule: str | None,
) -> Remat:
    """`Module.remat`."""
    if rule is not None and rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, not {rule!r}")
    read = None if rules is None else read_rules(rules)
    budget = None if hbm is None else read_memory(hbm)
    if device is not None:
        from hlofast import devices

        device = devices.get(device)
    return Remat(module, module.cost(rules=read), budget, device, mesh, read, rule)
