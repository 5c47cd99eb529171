"""Contents of pages about plans: the best choice, each mesh, memory against time; machines."""

from __future__ import annotations

from hlofast import _text as output
from hlofast._report import chart as draw
from hlofast._report.chart import Axis, Chart, Mark
from hlofast._report.data import Contents, Section
from hlofast._report.sheet import Sheet, sheet_of
from hlofast._text import binary, known_as
from hlofast._verdict_figures import Figure, seconds, short_bytes
from hlofast._verdict_statements import Statement
from hlofast.config._plan import JUDGED_APART

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._core import Field
    from hlofast.config._plan_machines import Machines
    from hlofast.config._plan_results import Plan
    from hlofast.table import Table

_BARS = 16
"""Meshes in the chart of step times."""


def contents(plan: Plan) -> Contents:
    """Returns the contents of the page."""
    facts = [(fact.field.label, known_as(fact)) for fact in plan.facts if fact.name not in _FIGURES]
    shown = _sheets(plan)
    has_choice = plan.best is not None and plan.best["step_seconds"] is not None
    sections = [
        Section("choice", "The fastest choice", facts=facts, code=_code(shown),
                notes=[note.text for note in plan.notes]),
        Section("meshes", "The fastest choice of each mesh",
                charts=[steps(plan)] if has_choice else [], sheets=[shown["ranked"]]),
        Section("frontier", "Memory against time",
                charts=[frontier(plan)] if has_choice else [],
                sheets=[] if has_choice else [shown["frontier"]]),
        Section("step", "Its step and its memory",
                sheets=[shown["parts"], shown["terms"], shown["traffic"]]),
        Section("excluded", "Excluded candidates",
                sheets=[shown["excluded"], shown["sizes"], shown["unused"]]),
    ]  # fmt: skip
    return Contents(plan.title, "plan", (), _verdict(plan), _statements(plan), sections)


def _sheets(plan: Plan, prefix: str = "") -> dict[str, Sheet]:
    """The tables of a plan; the columns that text output shows come first."""
    sheets = {}
    for own in plan.sections():
        columns = list(own.columns)
        if own.name == "ranked":
            columns += [name for name in own.table.columns if name not in columns]
        sheets[own.name] = Sheet(f"{prefix}{own.name}", own.title, own.table, columns)
    return sheets


def _code(shown: dict[str, Sheet]) -> tuple[str, list[str]]:
    """The lines of a config that make it take the choice, as text to copy."""
    lines = shown["lines"]
    return lines.caption, lines.values("code")


def machines(compared: Machines) -> Contents:
    """Returns the contents of the page about several machines."""
    sections = [
        Section("machines", "Machines", charts=[hours(compared)],
                notes=[note.text for note in compared.notes],
                sheets=[Sheet("machines", own.title, own.table) for own in compared.sections()]),
    ]  # fmt: skip
    for at, plan in enumerate(compared.plans):
        shown = _sheets(plan, f"plan{at}_")
        notes = [note.text for note in plan.notes]
        sheets = [shown["ranked"], shown["excluded"]]
        is_timed = plan.best is not None and plan.best["step_seconds"] is not None
        charts = [steps(plan, f"steps{at}")] if is_timed else []
        sections.append(
            Section(
                f"plan{at}", plan.title, sheets=sheets, notes=notes, charts=charts,
                code=_code(shown),
            )
        )  # fmt: skip
    fitting = [row for row in compared.table if row["chip_hours"] is not None]
    verdict = [
        Figure(f"cost{at}", row["instance"], row["chip_hours"],
               f"{row['chip_hours']:,.1f} chip hours",
               f"{row['mesh']}; {seconds(row['step_seconds'])} a step")
        for at, row in enumerate(fitting[:_CARDS])
    ]  # fmt: skip
    statements = []
    if len(fitting) > 1:
        first, second = fitting[:2]
        text = f"{first['instance']} takes the fewest chip hours, {second['instance']} the next"
        stake = f"{second['chip_hours'] - first['chip_hours']:,.1f} chip hours"
        remedy = "multiply by your prices; tied machines are marked"
        statements.append(Statement("fewest-chip-hours", text, stake=stake, remedy=remedy))
    return Contents("Machines", "plan", (), verdict, statements, sections)


def hours(compared: Machines) -> Chart:
    """Chip hours of the fastest choice of each machine."""
    rows: list[dict[str, Any]] = [own for own in compared.table if own["chip_hours"] is not None]
    for place, row in enumerate(rows):
        row["place"] = place
    names = ("instance", "chip_hours", "hours", "step_seconds", "mesh", "policy")
    columns: list[Field | tuple[str, str, str]] = [compared.table.field(name) for name in names]
    drawn = sheet_of("machine_bars", "bars", rows, [*columns, ("place", "place", "count")])
    most = max((row["chip_hours"] for row in rows), default=1.0)
    scale, unit = (1000.0, "thousand chip hours") if most > _MANY_HOURS else (1.0, "chip hours")
    mark = Mark("hbar", {"y": "place", "right": "chip_hours"}, drawn, hover=names, height=0.7,
                legend="chip hours")  # fmt: skip
    return Chart(
        "hours",
        f"Chip hours for {compared.tokens:,.0f} tokens",
        Axis(unit, scale=scale),
        Axis("", kind="factors", factors=[row["instance"] for row in rows]),
        [mark],
        sheet_of("hours", "Machines", rows, columns),
        height=140 + 28 * max(1, len(rows)),
        note="Modelled; chip hours of different devices have different prices.",
    )


_MANY_HOURS = 10_000
_CARDS = 4
"""Machines at the head of the page."""
_FIGURES = ("step_seconds", "mfu", "peak_bytes", "exposed_seconds")


def _verdict(plan: Plan) -> list[Figure]:
    best = plan.best
    if best is None:
        (note, *_) = plan.notes
        return [Figure("step", "Step time", None, "nothing fits", note.text)]
    known = {fact.name: fact.value for fact in plan.facts}
    if best["step_seconds"] is None:
        (why,) = (note.text for note in plan.notes if note.code == "untimed")
        usable, peak = short_bytes(known["usable_bytes"]), best["peak_bytes"]
        return [
            Figure("step", "Step time", None, "not modelled", why),
            Figure("peak", "Peak memory", peak, short_bytes(peak), f"of {usable} that are usable"),
        ]
    low, high = seconds(known["step_low_seconds"]), seconds(known["step_high_seconds"])
    usable = short_bytes(known["usable_bytes"])
    step, peak, waiting = best["step_seconds"], best["peak_bytes"], best["exposed_seconds"]
    rate = f"{best['tokens_per_second']:,.0f} tokens per second and device"
    return [
        Figure("step", "Step time", step, seconds(step), f"{low} to {high}; {best['mesh']}"),
        Figure("mfu", "MFU", best["mfu"], str(output.share(best["mfu"], 1)), rate),
        Figure("peak", "Peak memory", peak, short_bytes(peak), f"of {usable} that are usable"),
        Figure("exposed", "Exposed communication", waiting, seconds(waiting),
               f"{output.share(waiting, step)} of the step"),
    ]  # fmt: skip


def _statements(plan: Plan) -> list[Statement]:
    """What the config's own choice loses; nothing if it is the fastest or not known.

    Why no times are compared, if they are not.
    """
    best = plan.best
    untold = [note for note in plan.notes if note.code in ("nothing-fits", "untimed")]
    if untold:
        return [Statement(note.code, note.text) for note in untold]
    known = {fact.name: fact.value for fact in plan.facts}
    own = known["own_step_seconds"]
    if best is None or own is None or not known["own_sequences"]:
        return []
    share = best["sequences"] / known["own_sequences"]
    own *= share
    if own <= best["step_seconds"]:
        return []
    fits = "" if known["own_status"] in ("fits", "tight") else " and does not fit"
    step = "a step" if share == 1 else f"for {best['sequences']:,} sequences"
    text = f"the config's own choice ({known['own_choice']}) takes {seconds(own)} {step}{fits}"
    if own <= best["step_seconds"] * (1 + JUDGED_APART):
        text += ", which the model's error does not tell from the fastest"
    stake = f"{seconds(own - best['step_seconds'])} per step"
    return [
        Statement(
            "slower-choice", text, stake=stake, remedy=f"choose {best['policy']} on {best['mesh']}"
        )
    ]


def steps(plan: Plan, key: str = "steps") -> Chart:
    """The step of the fastest choice of each mesh."""
    rows: list[dict[str, Any]] = list(plan.ranked)[:_BARS]
    for place, row in enumerate(rows):
        row["place"] = place
    names = ("mesh", "step_seconds", "exposed_seconds", "peak_bytes", "policy")
    columns: list[Field | tuple[str, str, str]] = [plan.ranked.field(name) for name in names]
    drawn = sheet_of(f"{key}_bars", "bars", rows, [*columns, ("place", "place", "count")])
    marks = [
        Mark("hbar", {"y": "place", "right": "step_seconds"}, drawn, hover=names, height=0.7,
             legend="step"),
        Mark("hbar", {"y": "place", "right": "exposed_seconds"}, drawn, color=draw.PALETTE[3],
             hover=names, height=0.7, legend="exposed communication"),
    ]  # fmt: skip
    divisor, word = draw.seconds(max(row["step_seconds"] for row in rows))
    return Chart(
        key,
        "Step of the fastest choice of each mesh",
        Axis(word, scale=divisor),
        Axis("", kind="factors", factors=[row["mesh"] for row in rows]),
        marks,
        sheet_of(key, "Fastest choices", rows, columns),
        height=140 + 28 * len(rows),
        note="Modelled; communication that no work hides lies inside the step.",
    )


def frontier(plan: Plan) -> Chart:
    """Peak and step of the choices that no other beats in both, and the usable memory."""
    table: Table = plan.frontier
    rows: list[dict[str, Any]] = list(table)
    names = ("step_seconds", "peak_bytes", "per_device_batch", "accumulation_steps", "policy")
    columns: list[Field | tuple[str, str, str]] = [table.field(name) for name in names]
    points = sheet_of("points", "choices", rows, columns)
    usable = next(fact.value for fact in plan.facts if fact.name == "usable_bytes")
    scale, unit = binary(usable)
    first, last = rows[-1]["step_seconds"], rows[0]["step_seconds"]
    ends = [{"step_seconds": own, "peak_bytes": usable} for own in (first, last)]
    limit = sheet_of("usable", "usable memory", ends, columns[:2])
    fields = {"x": "step_seconds", "y": "peak_bytes"}
    color = draw.PALETTE[0]
    marks = [
        Mark("line", fields, points, color=color, line_width=2),
        Mark("scatter", fields, points, color=color, legend="choice", hover=names, size=9,
             marker="circle"),
        Mark("line", fields, limit, color=draw.NEUTRAL, legend="usable memory", line_width=2),
    ]  # fmt: skip
    divisor, word = draw.seconds(last)
    return Chart(
        "frontier",
        "Memory against time on the fastest mesh",
        Axis(f"step ({word})", scale=divisor),
        Axis(f"peak {unit}", scale=scale),
        marks,
        Sheet("frontier", "Choices that no other beats in both", table, names),
        note="Modelled from the config.",
    )
