"""The charts of a module: memory over the schedule, roofline, collectives, scopes."""

from __future__ import annotations

from hlofast import _core
from hlofast._context import device_for
from hlofast._memory import quiet
from hlofast._report import chart as draw
from hlofast._report.chart import Axis, Chart, Mark
from hlofast._report.notebook import displayed
from hlofast._report.scopes import scopes
from hlofast._report.sheet import Sheet, field_of, sheet_of
from hlofast._scheduled import units
from hlofast._text import binary
from hlofast._time import Time
from hlofast.table import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._collectives import Collectives
    from hlofast._context import MeshLike
    from hlofast._core import Field
    from hlofast._cost import Cost
    from hlofast._memory import Memory
    from hlofast._module import Module
    from hlofast._policies import Policies
    from hlofast.devices import Device

_POINTS = 2000
"""Maximum number of steps in a memory chart: more than a screen has pixel columns."""
_DOTS = 3000
"""Maximum number of instructions in a roofline, and of bars of collectives."""
_CLASSES = (
    "parameter",
    "optimizer_state",
    "residual",
    "gathered_weight",
    "gradient",
    "temporary",
    "output",
    "constant",
    "unknown",
)
"""Classes of values, from permanent to short-lived."""


class Plot:
    """Charts of a module as bokeh figures: `Module.plot`.

    Notebooks show a figure that is the value of a cell, without `bokeh.io.show` and without a
    network. Charts need the package bokeh and raise `ModuleNotFoundError` without it. A report
    shows these charts too.
    """

    __slots__ = ("_module",)

    def __init__(self, module: Module) -> None:
        self._module = module

    def memory(self, **options: Any) -> Any:
        """Live bytes at each step of the schedule, by class.

        `options` are the options of `Module.memory`. At most 2,000 steps are drawn: the highest of
        each stretch.
        """
        return displayed(draw.drawn(memory(quiet(self._module, **options))))

    def roofline(
        self,
        device: str | Device | None = None,
        *,
        mesh: MeshLike | None = None,
    ) -> Any:
        """FLOP per HBM byte and FLOP per second of the instructions of one step.

        Without a device, here or in the context, the vertical axis shows the FLOPs per step
        instead of FLOP per second.
        """
        chip = device_for(self._module, device)
        time = None if chip is None else self._module.time(chip, mesh=mesh)
        return displayed(draw.drawn(roofline(self._module.cost(), time)))

    def collectives(
        self,
        mesh: MeshLike | None = None,
        *,
        device: str | Device | None = None,
    ) -> Any:
        """Collectives over time, by mesh axes.

        The horizontal axis is simulated seconds with a device, otherwise steps of the schedule.
        """
        chip = device_for(self._module, device)
        if chip is None:
            when: Time | Memory = self._module.memory()
        else:
            when = self._module.time(chip, mesh=mesh)
        return displayed(draw.drawn(sent_when(self._module.collectives(mesh), when)))

    def scopes(self, by: str = "flops") -> Any:
        """FLOPs (`by="flops"`) or bytes (`by="bytes_accessed"`) of nested scopes.

        Raises `ValueError` for another `by`.
        """
        return displayed(draw.drawn(scopes(self._module.cost(), by)))

    def policies(self, device: str | Device | None = None, *, hbm: int | str | None = None) -> Any:
        """Memory against time of the best checkpoint policies, as `Policies.frontier`.

        Raises `ValueError` for a module without layers that the model covers.
        """
        chip = device_for(self._module, device)
        remat = self._module.remat(hbm=hbm, device=chip)
        policies = remat.policies
        if policies is None:
            raise ValueError(f"{self._module.name}: {remat.no_policies}")
        return displayed(draw.drawn(frontier(policies)))

    def __repr__(self) -> str:
        names = "memory, roofline, collectives, scopes, policies"
        return f"<Plot of {self._module.name}: {names}>"


def drawn_steps(timeline: list[int], count: int = _POINTS) -> list[int]:
    """Returns the highest step of each of `count` stretches, and the first and last step."""
    if len(timeline) <= count:
        return list(range(len(timeline)))
    kept = {0, len(timeline) - 1}
    for stretch in range(count):
        first = stretch * len(timeline) // count
        last = max((stretch + 1) * len(timeline) // count, first + 1)
        kept.add(max(range(first, last), key=timeline.__getitem__))
    return sorted(kept)


_STEP = field_of("step", "step", "count")
_BAND = (field_of("below", "from", "bytes"), field_of("above", "to", "bytes"))


def memory(memory: Memory, values: Table | None = None) -> Chart:
    """Live bytes at each step, stacked by class.

    `values` are the listed values, if known already.
    """
    timeline = memory._data.timeline().tolist()
    lives = memory.values() if values is None else values
    changes: dict[str, list[int]] = {}
    for kind, size, first, last in zip(
        *(lives.values(name) for name in ("class", "bytes", "first_step", "last_step")),
        strict=True,
    ):
        if size and first < len(timeline):
            events = changes.get(kind)
            if events is None:
                events = changes[kind] = [0] * (len(timeline) + 1)
            events[first] += size
            events[min(last + 1, len(timeline))] -= size
    steps = drawn_steps(timeline)
    scale, unit = binary(max(timeline, default=0))
    below = [0] * len(steps)
    marks = []
    order = [name for name in _CLASSES if name in changes]
    for name in order:
        alive, now = [], 0
        for change in changes[name]:
            now += change
            alive.append(now)
        above = [low + alive[step] for low, step in zip(below, steps, strict=True)]
        drawn = zip((_STEP, *_BAND), (steps, below, above), strict=True)
        sheet = Sheet(name, name, Table.of(drawn))
        fields = {"x": "step", "y1": "below", "y2": "above"}
        color = draw.COLOURS[name]
        legend = name.replace("_", " ")
        marks.append(
            Mark(
                "varea_step",
                fields,
                sheet,
                color=color,
                alpha=0.85,
                legend=legend,
                step_mode="after",
            )
        )
        below = above
    table = Sheet("memory-steps", "Live bytes at each step", memory.steps())
    some = len(steps) < len(timeline)
    note = f"{len(steps):,} of {len(timeline):,} steps are drawn" if some else ""
    if some:
        note += ": the highest of each stretch; the table has all steps"
    return Chart(
        "memory",
        "Memory over the schedule",
        Axis("step of the schedule", kind="whole", limits=(0, max(len(timeline) - 1, 1))),
        Axis(f"live {unit}", scale=scale),
        marks,
        table,
        note=note,
    )


def roofline(cost: Cost, time: Time | None) -> Chart:
    """FLOP per byte and FLOP per second of instructions outside fusions."""
    each = None if time is None else time._data.column("seconds").tolist()
    points = []
    for row, flops, moved, times in units(cost):
        taken = float("nan") if each is None else each[row]
        if flops > 0 and (each is None or taken > 0):
            points.append((row, flops, moved, times, taken))
    weigh = (
        (lambda point: -point[1] * point[3])
        if each is None
        else (lambda point: -point[4] * point[3])
    )
    points.sort(key=weigh)
    shown = points[:_DOTS]
    module = cost.module
    names = [module[row].name for row, *_ in shown]
    phases = cost._data.column("phase")
    phase = [_core.phases[phases[row]] for row, *_ in shown]
    columns: list[tuple[Field, list[Any]]] = [
        (field_of("instruction", "instruction", "instruction"), [row for row, *_ in shown]),
        (field_of("name", "name", "text"), names),
        (field_of("phase", "phase", "word"), phase),
        (
            field_of("intensity", "FLOP per byte", "number"),
            [point[1] / point[2] for point in shown],
        ),
        (field_of("flops", "FLOPs per call", "flops"), [point[1] for point in shown]),
        (field_of("bytes", "HBM bytes per call", "bytes"), [point[2] for point in shown]),
        (field_of("times", "calls", "count"), [point[3] for point in shown]),
        (field_of("total", "FLOPs per step", "flops"), [point[1] * point[3] for point in shown]),
    ]
    if each is None:
        y, label = "total", "FLOPs per step"
        note = (
            "FLOP per second is unknown without the times of one device; the axis shows FLOPs per "
            "step instead."
        )
    else:
        y, label = "speed", "FLOP per second"
        columns += [
            (
                field_of("seconds", "time per call", "seconds"),
                [point[4] for point in shown],
            ),
            (
                field_of("speed", "FLOP per second", "number"),
                [point[1] / point[4] for point in shown],
            ),
        ]
        note = f"Times are modelled for {time.device.label}." if time else ""
    if len(points) > len(shown):
        which = "most FLOPs" if each is None else "longest"
        note += f" {len(shown):,} of {len(points):,} instructions are shown, {which} first."
    hover = ["name", "intensity", "flops", "bytes", "times", *([] if each is None else ["seconds"])]
    every = Table.of(columns)
    marks = list(_roofs(time, columns[3][1])) if time is not None else []
    for number, name in enumerate(_core.phases):
        rows = [place for place, of in enumerate(phase) if of == name]
        if not rows:
            continue
        kept = every.take(rows)
        marks.append(
            Mark(
                "scatter",
                {"x": "intensity", "y": y},
                Sheet(name, name, kept),
                color=draw.COLOURS.get(name, draw.NEUTRAL),
                alpha=0.75,
                legend=name,
                hover=hover,
                size=9,
                marker=_MARKERS[number % len(_MARKERS)],
            )
        )
    listed = [name for name in every.columns if name != "name"]
    table = Sheet("roofline", "Instructions outside fusions", every, listed)
    return Chart(
        "roofline",
        "Roofline",
        Axis("FLOP per HBM byte", kind="log"),
        Axis(label, kind="log"),
        marks,
        table,
        note=note.strip(),
    )


_MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle")


def _roofs(time: Time, intensities: list[float]) -> list[Mark]:
    """The roofs of a device: HBM bandwidth, then peak FLOP/s."""
    try:
        peak = time.device.per_jax_device("flops.bf16")
        bandwidth = time.device.per_jax_device("hbm_bandwidth")
    except ValueError:
        return []
    ridge = peak / bandwidth
    lowest = min([*intensities, ridge / 10])
    highest = max([*intensities, ridge * 10])
    points = [(lowest, lowest * bandwidth), (ridge, peak), (highest, peak)]
    sheet = sheet_of(
        "roof",
        "roof",
        [{"x": x, "y": y} for x, y in points],
        [("x", "FLOP per byte", "number"), ("y", "FLOP per second", "number")],
    )
    legend = "bfloat16 peak, HBM bandwidth"
    color = draw.NEUTRAL
    fields = {"x": "x", "y": "y"}
    return [Mark("line", fields, sheet, color=color, legend=legend, line_width=2)]


def frontier(policies: Policies) -> Chart:
    """Peak and added time of the best checkpoint policies, and the memory to fit."""
    table = policies.frontier
    by_time = policies.as_compiled.step_seconds is not None
    rows: list[dict[str, Any]] = []
    for row in table:
        seconds = policies.best[row["number"]].added_seconds
        added = (seconds or 0.0) if by_time else row["recomputed_flops"] or 0
        rows.append({**row, "added": added})
    kind, label = ("seconds", "added time") if by_time else ("flops", "recomputed FLOP")
    columns: list[Field | tuple[str, str, str]] = [
        ("added", label, kind),
        *(
            table.field(name)
            for name in ("peak", "kept", "on_host", "saved", "offloaded", "policy")
        ),
    ]
    points = sheet_of("points", "policies", rows, columns)
    added = [row["added"] for row in rows]
    least, most = min(added, default=0), max(added, default=0)
    scale, unit = binary(max((row["peak"] for row in rows), default=0))
    fields = {"x": "added", "y": "peak"}
    marks = [
        Mark("line", fields, points, color=draw.PALETTE[0], line_width=2),
        Mark(
            "scatter",
            fields,
            points,
            color=draw.PALETTE[0],
            legend="policy",
            hover=("added", "peak", "saved", "offloaded", "policy"),
            size=9,
            marker="circle",
        ),
    ]
    if policies.hbm is not None:
        ends = [{"added": own, "peak": policies.hbm} for own in (min(least, 0), most)]
        ends_sheet = sheet_of("hbm", "device memory", ends, columns[:2])
        marks.append(
            Mark("line", fields, ends_sheet, color=draw.NEUTRAL, legend="memory", line_width=2)
        )
    # Policies may make a step shorter than without what they change.
    largest = max(most, -least)
    divisor, word = draw.seconds(largest) if by_time else draw.decimal(largest, "FLOP")
    return Chart(
        "frontier",
        "Checkpoint policies: memory against time",
        Axis(f"{label} per step ({word})" if by_time else word, scale=divisor),
        Axis(f"peak {unit}", scale=scale),
        marks,
        Sheet("policies", "Best checkpoint policies", table),
        note="Modelled from the text: recomputation, and waiting for host memory.",
    )


def sent_by_axis(collectives: Collectives, time: Time | None) -> Chart:
    """Wire bytes by mesh axes; with a device also exposed seconds."""
    groups = sorted(collectives.by("axes"), key=lambda row: -(row["total_wire_bytes"] or 0))
    exposed = {} if time is None else time.exposed
    for row in groups:
        row["axes"] = row["axes"] or "no known axes"
        row["exposed"] = exposed.get(row["axes"], 0.0) if time is not None else None
        row["place"] = groups.index(row)
        row["drawn"] = row["total_wire_bytes"] or 0
    scale, unit = binary(max((row["drawn"] for row in groups), default=0))
    columns = [
        ("axes", "mesh axes", "text"),
        ("collectives", "collectives", "count"),
        ("multiplicity", "calls", "count"),
        ("total_payload", "payload per step", "bytes"),
        ("total_wire_bytes", "wire bytes per step", "bytes"),
    ]
    if time is not None:
        columns.append(("exposed", "exposed", "seconds"))
    table = sheet_of("collectives-axes", "Collectives by mesh axes", groups, columns)
    drawn = sheet_of(
        "bars",
        "bars",
        groups,
        [*columns, ("place", "place", "count"), ("drawn", "sent", "bytes")],
    )
    bars = Mark(
        "hbar",
        {"y": "place", "right": "drawn"},
        drawn,
        hover=[name for name, _, _ in columns],
        height=0.7,
    )
    return Chart(
        "collectives-axes",
        "Wire bytes by mesh axes",
        Axis(f"{unit} sent per device and step", scale=scale),
        Axis("", kind="factors", factors=[row["axes"] for row in groups]),
        [bars],
        table,
        height=110 + 34 * min(len(groups), 16),
    )


def sent_when(collectives: Collectives, when: Time | Memory) -> Chart:
    """Every collective from start to end, by mesh axes.

    The horizontal axis is the seconds of a `Time`, or the schedule steps of a `Memory`.
    """
    time = when if isinstance(when, Time) else None
    rows = collectives.to_pylist()
    rows.sort(key=lambda row: -(row["total_wire_bytes"] or 0))
    cut = len(rows) - _DOTS
    rows = rows[:_DOTS]
    factors = list(dict.fromkeys(row["axes"] or "no known axes" for row in rows))
    begins = _moments(collectives.module, when)
    drawn = []
    for row in rows:
        start = row["instruction"] if row["scheduled_as"] is None else row["scheduled_as"]
        end = start if row["done"] is None else row["done"]
        first, last = begins(start, end)
        place = factors.index(row["axes"] or "no known axes")
        drawn.append(
            row
            | {
                "first": first,
                "last": last,
                "low": place - 0.35,
                "high": place + 0.35,
            }
        )
    unit: tuple[float, str]
    if time is None:
        label, scale = "step of the schedule", 1.0
        kind = "count"
        note = "In schedule order: times are unknown without a device."
    else:
        unit = draw.seconds(max((row["last"] for row in drawn), default=0.0))
        scale, label, kind = unit[0], f"{unit[1]} from the start of the step", "seconds"
        note = "Simulated schedule on the device; loops show their first iteration."
    if cut > 0:
        note += f" The {cut:,} with the fewest wire bytes are only in the table of all collectives."
    columns = [
        ("instruction", "instruction", "instruction"),
        ("axes", "mesh axes", "text"),
        ("first", "start", kind),
        ("last", "end", kind),
        ("wire_bytes", "wire bytes per call", "bytes"),
        ("multiplicity", "calls", "count"),
        ("kind", "kind", "text"),
    ]
    table = sheet_of("collectives-time", "When collectives run", drawn, columns)
    columns.append(("name", "name", "text"))
    marks = []
    for name in dict.fromkeys(row["kind"] for row in drawn):
        of_kind = [row for row in drawn if row["kind"] == name]
        sheet = sheet_of(
            name,
            name,
            of_kind,
            [*columns, ("low", "from", "number"), ("high", "to", "number")],
        )
        marks.append(
            Mark(
                "quad",
                {"left": "first", "right": "last", "bottom": "low", "top": "high"},
                sheet,
                color=draw.COLOURS.get(name, draw.NEUTRAL),
                alpha=0.8,
                legend=name,
                hover=["name", "axes", "wire_bytes", "multiplicity", "first", "last"],
                line_width=1,
            )
        )
    return Chart(
        "collectives-time",
        "Collectives over time",
        Axis(label, scale=scale),
        Axis("", kind="factors", factors=factors),
        marks,
        table,
        height=150 + 40 * min(len(factors), 12),
        note=note,
    )


def _moments(module: Module, when: Time | Memory) -> Any:
    """Returns a function from start and done instruction to start and end on the axis."""
    if not isinstance(when, Time):
        data = when._data

        def steps(start: int, end: int) -> tuple[float, float]:
            first, last = data.step_of(start), data.step_of(end)
            first = 0 if first is None else first
            return first, max(first if last is None else last, first) + 1

        return steps
    starts = when._data.column("start_seconds").tolist()
    ends = when._data.column("end_seconds").tolist()
    columns = module.columns
    places = columns.buffer("computation").tolist()
    called_by: dict[int, int] = {}
    calls = (columns.buffer(name).tolist() for name in ("call_row", "call_computation"))
    for row, computation in zip(*calls, strict=True):
        called_by.setdefault(computation, row)
    begun: dict[int, float] = {}

    def begin(computation: int) -> float:
        """Returns the first start of a computation in seconds."""
        chain: list[int] = []
        now = computation
        while now not in begun and now in called_by and len(chain) <= len(called_by):
            chain.append(now)
            now = places[called_by[now]]
        moment = begun.get(now, 0.0)
        for link in reversed(chain):
            start = starts[called_by[link]]
            moment += start if start == start else 0.0
            begun[link] = moment
        return moment

    def seconds(start: int, end: int) -> tuple[float, float]:
        moment = begin(places[start])
        first = starts[start] if starts[start] == starts[start] else 0.0
        last = ends[end] if ends[end] == ends[end] else first
        return moment + first, moment + max(last, first)

    return seconds
