"""`Machines`: the fastest choices of a run on several kinds of machine, by their cost."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._result import Fact, Note, Result, Section
from hlofast.config._plan import JUDGED_APART
from hlofast.config._plan_like import FILE
from hlofast.config._time import JUDGED
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from typing import Any

    from hlofast._report import Report
    from hlofast.config._plan_results import Plan
    from hlofast.table import Table

_SECONDS_PER_HOUR = 3600
TOKENS = 1e9
"""The token budget without one of the user."""
_MACHINES = (
    Field("name", "instance", "The name of the instance."),
    Field("name", "device", "The kind of device."),
    Field("count", "chips", "Chips."),
    Field("number", "chip_hours", "Chip hours for the tokens of the budget.", label="chip hours",
          nullable=True),
    Field("ratio", "dearer", "Extra chip hours relative to the cheapest machine, as a share.",
          nullable=True, signed=True),
    Field("flag", "is_tied", "Whether the difference to the cheapest machine is within the model's "
          "error on published steps.", label="tied", nullable=True),
    Field("number", "hours", "Hours for the tokens of the budget.", nullable=True),
    Field("seconds", "step_seconds", "The modelled time of a step.", label="step", nullable=True),
    Field("ratio", "mfu", "Model FLOPs utilisation of the modelled step.", label="MFU",
          nullable=True),
    Field("number", "tokens_per_second", "Tokens per second and chip.", label="tokens/s/chip",
          nullable=True),
    Field("bytes", "peak_bytes", "The expected peak when memory is tight.", label="peak",
          nullable=True),
    Field("word", "time_binds", "The largest part of the step.",
          label="largest time part", nullable=True),
    Field("text", "mesh", "Mesh axes with more than one device.", nullable=True),
    Field("name", "policy", "The checkpoint policy.", nullable=True),
    Field("text", "why", "Why nothing fits, or why the step has no time.", nullable=True),
)  # fmt: skip
_SHOWN = (
    "instance", "chips", "chip_hours", "dearer", "is_tied", "hours", "step_seconds", "mfu",
    "tokens_per_second", "time_binds", "mesh", "policy",
)  # fmt: skip


class Machines(Result):
    """The fastest choices of one run on several machines, the cheapest in chip hours first.

    `table` has one row per plan. A chip hour of one kind costs another price than one of another
    kind: multiply by your prices.
    """

    __slots__ = ("_source", "plans", "tokens")

    VERB = "plan"
    FACTS = (
        FILE,
        Field("count", "tokens", "The token budget.", label="tokens"),
        Field("name", "instance", "The machine that takes the fewest chip hours.", nullable=True),
        Field("number", "chip_hours", "Its chip hours for the tokens of the budget.",
              label="chip hours", nullable=True),
    )  # fmt: skip

    def __init__(self, plans: Sequence[Plan], tokens: float | None = None) -> None:
        self.plans = tuple(plans)
        """The plans, in the order given."""
        self._source = "assumed" if tokens is None else "configuration"
        self.tokens = TOKENS if tokens is None else tokens
        """The token budget of the hours."""

    @property
    def title(self) -> str:
        """The machines that are compared, in the order given."""
        return " and ".join(plan.title for plan in self.plans)

    @property
    def table(self) -> Table:
        """The machines, the cheapest first; those without chip hours last."""
        rows = sorted(map(self._row, self.plans), key=lambda row: row["chip_hours"] or 1e300)
        least = rows[0]["chip_hours"] if rows else None
        for row in rows:
            if row["chip_hours"] is not None and least:
                row["dearer"] = row["chip_hours"] / least - 1
                row["is_tied"] = row["dearer"] <= JUDGED_APART
        return of_rows(_MACHINES, [tuple(row[field.name] for field in _MACHINES) for row in rows])

    def _row(self, plan: Plan) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(field.name for field in _MACHINES)
        known = {fact.name: fact.value for fact in plan.facts}
        row |= {name: known[name] for name in ("instance", "device")}
        each = plan.devices_per_chip
        row["chips"] = round(known["devices"] / each)
        best = plan.best
        if best is None:
            row["why"] = plan.notes[0].text
            return row
        row |= {name: best[name] for name in best if name in row}
        row["is_tied"] = row["dearer"] = None
        if best["tokens_per_second"] is None:
            row["why"] = next(note.text for note in plan.notes if note.code == "untimed")
            return row
        rate = best["tokens_per_second"] * each
        row["tokens_per_second"] = rate
        row["chip_hours"] = self.tokens / rate / _SECONDS_PER_HOUR
        row["hours"] = row["chip_hours"] / row["chips"]
        return row

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The budget, and the cheapest machine."""
        first = next(iter(self.table))
        return self._facts(
            (
                ("file", self.plans[0].file if self.plans else None, "configuration"),
                ("tokens", int(self.tokens), self._source),
                ("instance", first["instance"] if first["chip_hours"] else None, "modelled"),
                ("chip_hours", first["chip_hours"], "modelled"),
            )
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """What limits the comparison."""
        rows = [row for row in self.table if row["chip_hours"] is not None]
        unknown = sorted({row["device"] for row in rows} - set(JUDGED))
        notes = [
            Note(
                "prices",
                "chip hours of different devices have different prices: multiply by the price",
            )
        ]
        if sum(bool(row["is_tied"]) for row in rows) > 1:
            text = f"tied machines lie within {JUDGED_APART:.1%}, the model's error on one kind"
            notes.append(Note("tied", text))
        if unknown:
            text = f"the model was not evaluated on {', '.join(unknown)}"
            notes.append(Note("judged", text))
        return tuple(notes)

    def sections(self) -> tuple[Section, ...]:
        """The machines side by side."""
        title = f"The fastest choice of each machine, for {self.tokens:,.0f} tokens"
        shown = (*_SHOWN, "why") if any(self.table.values("why")) else _SHOWN
        return (Section("machines", title, self.table, shown, is_whole=True),)

    def report(self, path: str | PathLike[str] | None = None, *, plots: bool = True) -> Report:
        """An HTML page about the machines, written to `path` if given; charts need bokeh.

        Raises `OSError` if it cannot be written.
        """
        from hlofast._report import Report
        from hlofast._report.plans import machines

        page = Report(machines(self), plots=plots)
        if path is not None:
            page.save(path)
        return page

    def __repr__(self) -> str:
        return f"<Machines: {len(self.plans)} plans>"
