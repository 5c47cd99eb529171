"""`Remat`: what a module computes again, what it keeps instead, and what to do about it."""

from __future__ import annotations

from hlofast import _core
from hlofast._context import read_bytes
from hlofast._core import Field
from hlofast._cost import read_rules
from hlofast._memory import RULES, table_bytes
from hlofast._remat_statements import Statement, change, statements
from hlofast.table import Table, column_of

TYPE_CHECKING = False  # The command line says it; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hlofast._core import Instruction, Mesh
    from hlofast._cost import Cost, Rules
    from hlofast._module import Module
    from hlofast.devices import Device


_CHANGE = Field("text", "change", "What to change in the program to the same effect.")


class Remat:
    """What a module computes again for the backward pass, and what it keeps instead.

    Made by `Module.remat()`. Numbers are int64, -1 where they are not known, flags uint8, texts
    empty where there are none; what belongs to which phase is as in `Module.cost`.

    It also plans what to compute again: `candidates`, `apply()`. Nothing is estimated there: each
    candidate is rewritten into a module of its own, and what is alive in that is counted as in the
    original, by the same `rule` (device sizes, the text's order, fragmentation not modelled), so
    that the new module's peak is the one that was announced.
    """

    __slots__ = (
        "_cost",
        "_data",
        "_plan",
        "_rule",
        "_rules",
        "_statements",
        "_tables",
        "device",
        "hbm",
        "mesh",
        "module",
    )

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

        Columns: `instruction` (row), `name`, `computation`, `opcode`, `by` (`program`: operation
        names of `jax.checkpoint`; `compiler`: clones called `.remat`; `twin`: no name tells, but
        an earlier instruction computes the same from the same), `twin` (that instruction's row),
        `is_collective`, `multiplicity` (how often, as recomputation), `flops`, `bytes_read`,
        `bytes_written` (of all these executions; a fusion has the bytes of what is in it),
        `op_name`, `source_file`, `source_line`.
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

        Columns: `instruction` (the row that makes it, of a stack the loop), `name`, `index` (which
        part of the result), `kind` (`weight_copy`, `gathered_weight`, `gathered_activation`,
        `activation`), `shape`, `bytes` (in the device's layout, of a stack all of it), `span`
        (rows from there to the last use), `first_use`, `last_use` (rows), `widened_from` (element
        type of the weight, of copies in a wider type), `is_stacked` and `trip_count` (a loop
        stacks it, so often), `made_by` (the row that computes it as it is kept), `source` (the row
        that computes what is kept, conversions and slices looked through, or the parameter it is a
        copy of), `source_name`, `is_named` (0 where only its place before all backward code
        says that it is made by forward code), `is_in_flight` (an all-gather that a fusion of
        forward code started is still writing it), then where the source comes from: `op_name`,
        `source_file`, `source_line`.
        """
        return self._table("residuals")

    @property
    def gathers(self) -> Table:
        """The all-gathers, each once, however it is written.

        Columns: `instruction` (row), `name`, `computation`, `fate` (`kept`: the result or a copy
        of it is kept from forward to backward; `recomputed`: gathered again for the backward pass;
        `forward`, `backward`: of that pass alone; `other`), `moved` (`weight`, `gradient`,
        `activation`, `other`), `tensor` (what it gathers), `shape` (of the result), `axes` (of the
        mesh), `group_size`, `payload_in`, `payload_out`, `wire_bytes` (of one execution),
        `multiplicity`, `residual` (row number in `residuals` of what is kept), `op_name`,
        `source_file`, `source_line`.
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
            self._statements = statements(self)
        return self._statements

    @property
    def candidates(self) -> Table:
        """What could be computed again instead of kept: one row per residual, and what came of it.

        First those that save most for their price (seconds on the device; without one FLOPs, each
        byte moved as 100 of them and each byte sent to other devices as 1000), then those that
        cannot be rewritten. Up to 48 are tried (fewer, but 4, of modules of more than 40,000
        instructions), those alive at the peak first, larger ones first.

        Columns: `residual` (row of `residuals`), `again` (the instructions that run again),
        `is_stack` (in a loop, from a smaller stack), `kept_instead` (bytes), `is_alive_at_peak`,
        `peak` (bytes at the peak of the module in which this alone is computed again; -1 without
        one), `saved` (how many fewer that are), `flops`, `bytes_moved`, `wire_bytes`, `seconds`
        (float64, NaN if unknown; all of them of a step), `chosen` (its place among those that
        `apply` computes again; -1 for others), `refusal` (why there is no such module),
        `no_saving` (why it needs no less, where there is one: `kept in fast memory`, …), then of
        the residual `name`, `index`, `kind`, `shape`, `bytes`, `source_file`, `source_line`, and
        `change` (what to change in the program to the same effect). A `ValueError` if memory cannot
        be counted.
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
            raise KeyError(name)
        if name not in self._tables:
            self._tables[name] = Table(getattr(self._data, name)())
        return self._tables[name]

    def __reduce__(self) -> tuple[object, ...]:
        return remat, (
            self.module,
            self.hbm,
            self.device,
            self.mesh,
            self._rules,
            self._rule,
        )

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
        raise ValueError(f"rule is one of {', '.join(RULES)}, not {rule!r}")
    read = None if rules is None else read_rules(rules)
    budget = None if hbm is None else read_bytes(hbm)
    if device is not None:
        from hlofast import devices

        device = devices.get(device)
    return Remat(module, module.cost(rules=read), budget, device, mesh, read, rule)
