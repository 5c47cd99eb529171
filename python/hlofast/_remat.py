"""`Remat`: what a module computes again, what it keeps instead, and what to do about it."""

from __future__ import annotations

from hlofast import _core, _text
from hlofast._core import Field
from hlofast._cost import read_rules
from hlofast._memory import RULES, SPACES, table_bytes
from hlofast._names import unknown
from hlofast._remat_statements import Statement, change, operation, statements
from hlofast._result import Fact, Note, Result, Section
from hlofast._units import read_bytes
from hlofast.table import Table, column_of, of_rows, with_share, with_source

TYPE_CHECKING = False  # The command line says it; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hlofast._core import Instruction, Mesh
    from hlofast._cost import Cost, Rules
    from hlofast._module import Module
    from hlofast.devices import Device


_CHANGE = Field("text", "change", "What to change in the program to the same effect.")
_NAME = Field("name", "name", "The value that is kept: the instruction that makes it.")
_STATEMENT = Field("index", "statement", "The number of the statement.")
_PHASES = (
    Field("word", "phase", "The phase."),
    Field("count", "instructions", "Instructions of the text that belong to it.", adds_up=True),
)
_STATEMENTS = (
    _STATEMENT,
    Field("word", "code", "The same for the same kind of statement."),
    Field("text", "text", "The statement."),
    Field("text", "advice", "What to change, and how to see that it worked.", nullable=True),
)
_PROOFS = (_STATEMENT, Field("instruction", "instruction", "An instruction that proves it."))
_FIGURES = (
    _STATEMENT,
    Field("word", "figure", "Which number of the statement it is."),
    Field("number", "value", "The number."),
)
_KEPT_AS = (
    Field("name", "kept_as", "The value that is kept.", nullable=True),
    Field("text", "kept_index", "Which part of its result; {} for all.", nullable=True),
    Field("bytes", "kept_bytes", "Bytes that are kept.", label="kept", nullable=True),
)
_BY_OPERATION = (
    Field("word", "operation", "The last part of the operation's name, else the opcode."),
    Field("word", "by", "Who recomputes it.", label="recomputed by"),
    Field("count", "instructions", "Instructions of the text.", adds_up=True),
    Field("count", "multiplicity", "Executions in one step.", label="calls", adds_up=True),
    Field("flops", "flops", "FLOPs of all executions.", label="FLOP", adds_up=True),
    Field("path", "source", "Source file and line.", label="from", nullable=True),
)
_PLAN = (
    Field("bytes", "peak", "Bytes at the peak of the module as it is."),
    Field("instruction", "peak_at", "What runs at the peak.", label="at", nullable=True),
    Field("bytes", "hbm", "Bytes there may be.", label="wanted", nullable=True),
    Field("bytes", "peak_after", "Bytes at the peak with the plan.", label="with the plan"),
    Field("word", "fits", "Whether that is enough: yes or no.", nullable=True),
    Field("text", "outcome", "What comes of it."),
    Field("word", "rule", "How peaks are counted; see `Module.memory`."),
    Field("flag", "is_default", "Whether the rule is the usual one.", label="usual rule"),
    Field("word", "sizes", "Whose sizes of shapes count."),
    Field("word", "space", "The memory space that is fullest at the peak."),
    Field("word", "constants", "How long constants stay."),
    Field("name", "device", "The device whose seconds count.", nullable=True),
)
_STEPS = (
    Field("index", "number", "The place in the order in which they are taken."),
    Field("index", "candidate", "The row in the table of candidates."),
    _NAME,
    Field("bytes", "peak", "Bytes at the peak after this one too."),
    _CHANGE,
)
_SHOWN_PROOFS = 4
_BY = ("program", "compiler", "twin")


class Remat(Result):
    """What a module computes again for the backward pass, and what it keeps instead.

    Made by `Module.remat()`; what belongs to which phase is as in `Module.cost`. `fields` of each
    table say what its columns are.

    It also plans what to compute again: `candidates`, `apply()`. Nothing is estimated there: each
    candidate is rewritten into a module of its own, and what is alive in that is counted as in the
    original, by the same `rule` (device sizes, the text's order, fragmentation not modelled), so
    that the new module's peak is the one that was announced.
    """

    __slots__ = (
        "_cost", "_data", "_plan", "_rule", "_rules", "_statements", "_tables", "device", "hbm",
        "mesh", "module",
    )  # fmt: skip

    VERB = "remat"
    FACTS = (
        Field("count", "recomputed", "Instructions that are executed again."),
        Field("count", "by_program", "Of these, those under jax.checkpoint by their names.",
              label="by program"),
        Field("count", "by_compiler", "Of these, clones of the compiler, called .remat.",
              label="by compiler"),
        Field("count", "by_twin", "Of these, those that compute what an earlier one computed.",
              label="by twin"),
        Field("flops", "recomputed_flops", "FLOPs of all their executions."),
        Field("count", "recomputed_collectives", "Collectives among them."),
        Field("count", "residuals", "Values kept from forward to backward.", label="kept"),
        Field("bytes", "residual_bytes", "Bytes of these.", label="kept bytes"),
        Field("count", "gathers", "All-gathers.", label="all-gathers"),
        Field("count", "kept_gathers", "All-gathers whose result is kept for the backward pass.",
              label="kept of them"),
        Field("count", "named_values", "Values that checkpoint_name names.", label="named values"),
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
        """How many bytes there may be at the peak; None for as few as possible."""
        self.device = device
        """The device whose seconds candidates are ordered by; None without one."""
        self._plan: _core.PlanData | None = None
        self._rules = rules
        self._rule = rule
        self._cost = cost
        self._data = cost._data.remat(mesh)
        self._tables: dict[str, Table] = {}
        self._statements: tuple[Statement, ...] | None = None

    @property
    def recomputed(self) -> Table:
        """The instructions that are executed again, those inside fusions too.

        `by` is `program` (operation names of `jax.checkpoint`), `compiler` (clones called `.remat`)
        or `twin` (no name tells, but an earlier instruction computes the same from the same). Of a
        fusion the bytes are those of what is in it.
        """
        return self._table("recomputed")

    def outside_phase(self) -> list[dict[str, Any]]:
        """The rows of `recomputed` that are not of phase recompute.

        That phase, in `instructions` and in `Cost.by("phase")`, is of what operation names call
        recomputed; clones of the compiler and twins have the phase of what they repeat.
        """
        phases = self._cost._data.column("phase").tolist()
        own = _core.phases.index("recompute")
        return [row for row in self.recomputed if phases[row["instruction"]] != own]

    @property
    def residuals(self) -> Table:
        """What forward code makes and backward code reads; parameters as they are do not count.

        `kind` is `weight_copy`, `gathered_weight`, `gathered_activation` or `activation`. Of a
        stack, `instruction` is the loop and `bytes` are all of it. `source` computes what is kept,
        conversions and slices looked through, or is the parameter that it is a copy of.
        """
        return self._table("residuals")

    @property
    def gathers(self) -> Table:
        """The all-gathers, each once, however it is written.

        `fate` is `kept` (the result or a copy of it is kept from forward to backward), `recomputed`
        (gathered again for the backward pass), `forward`, `backward` (of that pass alone) or
        `other`; `residual` is the row in `residuals` of what is kept.
        """
        return self._table("gathers")

    @property
    def instructions(self) -> dict[str, int]:
        """How many instructions of the text belong to each phase."""
        return dict(self._data.instructions())

    @property
    def statements(self) -> tuple[Statement, ...]:
        """What follows from the tables, each with the instructions that prove it."""
        if self._statements is None:
            products = self._cost.matmuls()
            tables = {name: self._table(name) for name in ("recomputed", "residuals", "gathers")}
            self._statements = statements(self.module, self._data, tables, products)
        return self._statements

    @property
    def candidates(self) -> Table:
        """What could be computed again instead of kept: one row per residual, and what came of it.

        First those that save most for their price (seconds on the device; without one FLOPs, each
        byte moved as 100 of them and each byte sent to other devices as 1000), then those that
        cannot be rewritten. Up to 48 are tried (fewer, but 4, of modules of more than 40,000
        instructions), those alive at the peak first, larger ones first. A `ValueError` if memory
        cannot be counted.
        """
        if "candidates" not in self._tables:
            columns = self._planned().candidates()
            candidates = Table(columns)
            residuals = self.residuals.to_pylist()
            rows = [residuals[row["residual"]] for row in candidates]
            for name in ("name", "index", "kind", "shape", "bytes", "source_file", "source_line"):
                field = self.residuals.field(name)
                columns.append((field, column_of(field, [row[name] for row in rows])))
            columns.append((_CHANGE, column_of(_CHANGE, [change(row) for row in rows])))
            self._tables["candidates"] = Table(columns)
        return self._tables["candidates"]

    @property
    def rule(self) -> str:
        """By which rule peaks are counted, one of those of `Module.memory`.

        `xla` is the peak of XLA's own account (`Memory.xla_peak`), the others are `live_peak`. By
        default `xla` for scheduled TPU modules, since that is what one compares with a device's
        memory, and `in_place` for others; also where XLA's account counts the heap of fast memory
        in the place of HBM's (see `Memory.xla_peak`), which computing again cannot bring down.
        """
        return self._planned().rule()

    @property
    def peak(self) -> int:
        """Bytes at the peak of the module as it is, by `rule`."""
        return self._planned().peaks()[0]

    @property
    def peak_at(self) -> Instruction | None:
        """The instruction that runs at the peak."""
        row = self._planned().at()
        return None if row < 0 else self.module[row]

    @property
    def peak_after(self) -> int:
        """Bytes at the peak of the module that `apply` makes."""
        return self._planned().peaks()[1]

    @property
    def steps(self) -> tuple[int, ...]:
        """Bytes at the peak after each of the chosen candidates, in their order."""
        return tuple(self._planned().steps())

    @property
    def fits(self) -> bool | None:
        """Whether `hbm` bytes are enough then; None without `hbm`."""
        return self._planned().fits()

    def apply(self, candidates: Iterable[int] | None = None) -> Module:
        """A module in which the chosen candidates are computed again.

        Without `candidates` (rows of that table) those are as few as bring the peak down to `hbm`,
        or without `hbm` all that bring it down. Copies are called `x.remat` and wait behind an
        `opt-barrier` for a value that is made late. A `ValueError` if nothing is chosen or a
        candidate cannot be computed again, an `IndexError` if there is no such candidate. Of given
        candidates a `UserWarning` names those with `no_saving`, and why.
        """
        plan = self._planned()
        if candidates is not None:
            numbers = list(candidates)
            if not numbers:
                raise ValueError("no candidate is given")
            if any(number < 0 for number in numbers):
                raise IndexError("no such candidate")
            for number in numbers:
                if number < len(self.candidates):
                    row = self.candidates.row(number)
                    if row["peak"] is None:
                        raise ValueError(f"{row['name']}: {row['refusal']}")
                    if row["no_saving"]:
                        import warnings

                        text = f"{row['name']}: the peak stays as it is: {row['no_saving']}"
                        warnings.warn(text, stacklevel=2)
            return plan.apply(numbers)[0]
        module = plan.module()
        if module is None:
            raise ValueError(
                "there is nothing to compute again: the peak fits as it is, or nothing brings it "
                "down"
            )
        return module

    def _planned(self) -> _core.PlanData:
        if self._plan is None:
            time = None
            if self.device is not None:
                time = self.module.time(self.device, mesh=self.mesh)._data
            self._plan = self._data.plan(
                self.hbm, time, rule=self._rule, table_bytes=table_bytes(self.device)
            )
        return self._plan

    def by(self, name: str, table: str = "residuals", *, totals: Iterable[str] = ()) -> Table:
        """Totals of a table (`recomputed`, `residuals`, `gathers`) by one of its columns.

        Columns: `name`, `rows`, then the sums of `totals`; without them `bytes` of residuals,
        `payload_out` of gathers, and `flops`, `bytes_read` and `bytes_written` of what is
        recomputed. Sums are of the known figures; see `Table.by`. A
        `KeyError` for other tables and columns.
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
        """What is recomputed, kept and gathered, in sums."""
        by = self.recomputed.values("by")
        flops, sizes = self.recomputed.values("flops"), self.residuals.values("bytes")
        more = "bound" if None in self.recomputed.values("multiplicity") else "exact"
        values: dict[str, tuple[int, str]] = {
            "recomputed": (len(self.recomputed), "exact"),
            **{f"by_{one}": (by.count(one), "exact") for one in _BY},
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
        return tuple(Fact(field, *values[field.name]) for field in self.FACTS)

    @property
    def notes(self) -> tuple[Note, ...]:
        """What to keep in mind."""
        notes: list[Note] = []
        phases = self.instructions
        if not phases["backward"] and not phases["recompute"]:
            text = "no instruction is known to be of a backward pass, so nothing is kept for one"
            notes.append(Note("no-backward", text))
        summary = self.module.summary()
        if summary.is_whole:
            text = (
                f"the module is {summary.status}: shapes are those of all devices together, and "
                "the partitioner, which writes most all-gathers, has not run"
            )
            notes.append(Note("global", text))
        if not self.module.is_scheduled:
            text = "the module is not scheduled: spans are counted in the order of the text"
            notes.append(Note("unscheduled", text))
        elsewhere = self.outside_phase()
        if elsewhere:
            flops = sum(row["flops"] or 0 for row in elsewhere)
            text = (
                f"phase recompute, here and in `hlofast cost`, leaves out {flops:,} FLOP of "
                f"{_text.counted(len(elsewhere), 'recomputed instruction')}: clones of the "
                "compiler and twins have the phase of what they repeat"
            )
            notes.append(Note("other-phases", text, instructions=len(elsewhere), flops=flops))
        by_place = self.residuals.values("is_named").count(False)
        if by_place:
            text = (
                f"{_text.counted(by_place, 'residual')} told by their place before all backward "
                "code, not by operation names"
            )
            notes.append(Note("by-place", text, residuals=by_place))
        return tuple(notes)

    def sections(self, *, plan: bool = False) -> tuple[Section, ...]:
        """Phases, statements, all-gathers, what is kept and recomputed; with `plan` the plan.

        A `ValueError` if there is to be a plan and memory cannot be counted.
        """
        sections = [
            Section("phases", "Instructions by phase", of_rows(_PHASES, self.instructions.items())),
            *self._of_statements(),
            Section("gathers", "All-gathers", self._shown_gathers(), _GATHERS),
            Section("residuals", "Kept from forward to backward", self._shown_residuals(), _KEPT),
            Section("operations", "Recomputed, by operation and line", self._by_operation()),
            Section("recomputed", "Recomputed", self._shown_recomputed(), _RECOMPUTED),
        ]
        return (*sections, *self._of_plan()) if plan else tuple(sections)

    def every_section(self) -> tuple[Section, ...]:
        """All tables, those of a plan too."""
        return self.sections(plan=True)

    @property
    def tables(self) -> dict[str, Table]:
        """The tables by name; those of a plan, which takes time, come from `sections`."""
        return {section.name: section.table for section in self.sections()}

    def _of_statements(self) -> tuple[Section, ...]:
        """What people read as text; JSON has proofs and figures in tables of their own."""
        rows, proofs, figures, shown = [], [], [], []
        for number, one in enumerate(self.statements):
            rows.append((number, one.code, one.text, one.advice))
            proofs += [(number, row) for row in one.instructions]
            figures += [(number, name, value) for name, value in one.figures.items()]
            names = _text.names(one.names, most=_SHOWN_PROOFS)
            lines = [("proof", names), ("advice", one.advice or "")]
            shown.append((f"{one.text} [{one.code}]", [line for line in lines if line[1]]))
        return (
            Section("statements", "What follows", of_rows(_STATEMENTS, rows), paragraphs=shown),
            Section("proofs", "What proves it", of_rows(_PROOFS, proofs), paragraphs=()),
            Section("figures", "Its numbers", of_rows(_FIGURES, figures), paragraphs=()),
        )

    def _shown_gathers(self) -> Table:
        table = self.gathers
        kept = [None if at is None else self.residuals.row(at) for at in table.values("residual")]
        names = ("name", "index", "bytes")
        found = [[row and row[name] for row in kept] for name in names]
        columns = [own for own in table._described() if own[0].name != "residual"]
        columns += [
            (field, column_of(field, own)) for field, own in zip(_KEPT_AS, found, strict=True)
        ]
        return with_source(Table(columns).sort_by("payload_out", descending=True))

    def _shown_residuals(self) -> Table:
        # The column `source` is the instruction that computes the value.
        table = with_source(self.residuals, "from").sort_by("bytes", descending=True)
        return with_share(table, "bytes")

    def _shown_recomputed(self) -> Table:
        return with_source(self.recomputed.sort_by("flops", descending=True))

    def _by_operation(self) -> Table:
        groups: dict[tuple[str, str, str | None], list[int]] = {}
        for row in with_source(self.recomputed):
            group = groups.setdefault((operation(row), row["by"], row["source"]), [0, 0, 0])
            for at, value in enumerate((1, row["multiplicity"] or 0, row["flops"] or 0)):
                group[at] += value
        rows = [(name, by, *sums, source) for (name, by, source), sums in groups.items()]
        return of_rows(_BY_OPERATION, sorted(rows, key=lambda row: (-row[4], -row[2])))

    def _of_plan(self) -> tuple[Section, ...]:
        """The plan in one row, its steps, and all candidates."""
        plan, at = self._planned(), self.peak_at
        space = plan.space()
        name = next((own for own, number in SPACES.items() if number == space), f"S({space})")
        row = (
            self.peak,
            None if at is None else at.row,
            self.hbm,
            self.peak_after,
            None if self.fits is None else "yes" if self.fits else "no",
            self._outcome(),
            self.rule,
            self._rule is None,
            "device",
            name,
            "program" if self.rule == "xla" else "last_use",
            getattr(self.device, "name", None),
        )
        candidates = list(self.candidates)
        order = [at for at, own in enumerate(candidates) if own["chosen"] is not None]
        order.sort(key=lambda at: int(candidates[at]["chosen"]))
        steps, shown = [], []
        for number, (at_, peak) in enumerate(zip(order, self.steps, strict=True), 1):
            own = candidates[at_]
            steps.append((number, at_, own["name"], peak, own["change"]))
            shown.append((f"{number}. {_step(own, peak)}", _what_to_do(own)))
        described = [own for own in self.candidates._described() if own[0].name != "residual"]
        return (
            Section("plan", "Plan", of_rows(_PLAN, [row]), _PLANNED),
            Section("steps", "Steps", of_rows(_STEPS, steps), paragraphs=shown),
            Section("candidates", "Candidates", Table(described), _CANDIDATES),
        )

    def _outcome(self) -> str:
        if self.steps:
            return {None: "the peak comes down", True: "fits", False: "does not fit"}[self.fits]
        if self.fits:
            return "the peak fits as it is; nothing has to be computed again"
        text = "no value that could be computed again brings the peak down"
        return text if self.fits is None else f"{text}, and it does not fit"

    def __reduce__(self) -> tuple[object, ...]:
        return remat, (self.module, self.hbm, self.device, self.mesh, self._rules, self._rule)

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{len(self._table(name))} {name}" for name in ("recomputed", "residuals", "gathers")
        )
        return f"<Remat of {self.module.name}: {counts}>"


_GATHERS = (
    "instruction fate moved tensor shape axes payload_out wire_bytes multiplicity source".split()
)
_KEPT = (
    "instruction index kind widened_from shape bytes share span is_stacked trip_count is_in_flight "
    "last_use source from"
).split()
_RECOMPUTED = (
    "instruction opcode by twin multiplicity flops bytes_read bytes_written source".split()
)
_PLANNED = "peak peak_at hbm peak_after outcome rule space device".split()
_CANDIDATES = (
    "name index kind shape bytes kept_instead saved flops wire_bytes seconds is_alive_at_peak "
    "refusal no_saving"
).split()
"""The columns that people are shown of each table."""


def _step(row: dict[str, Any], peak: int) -> str:
    """A chosen candidate in words: what it is, the peak then, the price."""
    made = row["name"] + (row["index"] if row["index"] != "{}" else "")
    price = [f"{row['wire_bytes']:,} wire B"] if row["wire_bytes"] else []
    price += [f"{row['flops']:,} FLOP"] if row["flops"] else []
    price += [_text.seconds(row["seconds"])] if row["seconds"] is not None else []
    cost = f" for {', '.join(price)}" if price else ""
    return f"{row['kind'].replace('_', ' ')} {made} {row['shape']}: peak {peak:,} B{cost}"


def _what_to_do(row: dict[str, Any]) -> list[tuple[str, str]]:
    again = (row["again"] or "").split()
    copies = [("module", f"copies of {', '.join(again)}")] if again else []
    return [("change", row["change"]), *copies]


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
        raise ValueError(f"rule is one of {', '.join(RULES)}, not {rule!r}")
    read = None if rules is None else read_rules(rules)
    budget = None if hbm is None else read_bytes(hbm)
    if device is not None:
        from hlofast import devices

        device = devices.get(device)
    return Remat(module, module.cost(rules=read), budget, device, mesh, read, rule)
