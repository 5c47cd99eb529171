"""`Chart`: a chart independent of its renderer: bokeh in Python, or BokehJS in a page."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from hlofast._report.pack import Block
    from hlofast._report.sheet import Sheet

PALETTE = (
    "#4c7edb",
    "#dd8a2e",
    "#3f9f6b",
    "#d4576b",
    "#8d70cc",
    "#2d9fad",
    "#a08c2c",
    "#bb6aa5",
    "#7f8894",
)
"""Colours with enough contrast on white and on nearly black backgrounds."""
BLUE, ORANGE, GREEN, RED, VIOLET, TEAL, OLIVE, PINK, NEUTRAL = PALETTE
COLOURS = {
    "parameter": BLUE,
    "optimizer_state": ORANGE,
    "residual": GREEN,
    "gathered_weight": RED,
    "gradient": VIOLET,
    "temporary": TEAL,
    "output": OLIVE,
    "constant": PINK,
    "unknown": NEUTRAL,
    "compute": BLUE,
    "memory": TEAL,
    "copies": TEAL,
    "communication": ORANGE,
    "idle": NEUTRAL,
    "other": NEUTRAL,
    "forward": BLUE,
    "backward": ORANGE,
    "recompute": GREEN,
    "optimizer": RED,
    "unattributed": NEUTRAL,
    "all-reduce": BLUE,
    "all-gather": ORANGE,
    "reduce-scatter": GREEN,
    "all-to-all": RED,
    "collective-permute": VIOLET,
    "collective-broadcast": OLIVE,
    "ragged-all-to-all": PINK,
    "send": TEAL,
    "recv": TEAL,
}
"""Colours by meaning, the same on every page: classes of values, parts of a step, phases, kinds of
collectives."""
INK = "ink"
"""The text colour of the page's theme."""
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


class Axis:
    """An axis: its label, kind, scale and limits."""

    __slots__ = ("factors", "kind", "label", "limits", "scale")

    def __init__(
        self,
        label: str,
        *,
        kind: str = "linear",
        scale: float = 1.0,
        factors: Sequence[str] = (),
        limits: tuple[float, float] | None = None,
    ) -> None:
        self.label = label
        self.kind = kind
        """linear, whole (fractions mean nothing), log or factors: row n is `factors[n]`."""
        self.scale = scale
        """Divisor of the drawn numbers: one unit of `label`."""
        self.factors = [plain(text) for text in factors]
        self.limits = limits
        """Initial start and end; None means the smallest and largest value of the data."""

    def packed(self) -> dict[str, Any]:
        """Returns the axis as a page reads it."""
        return {name: getattr(self, name) for name in self.__slots__}


class Mark:
    """Glyphs of one kind and colour."""

    __slots__ = ("alpha", "color", "fields", "glyph", "hover", "legend", "options", "sheet")

    def __init__(
        self,
        glyph: str,
        fields: dict[str, str],
        sheet: Sheet,
        *,
        color: str = PALETTE[0],
        alpha: float = 1.0,
        legend: str = "",
        hover: Iterable[str] = (),
        **options: Any,
    ) -> None:
        self.glyph = glyph
        """A method of bokeh's figures: line, scatter, quad, hbar, varea_step, text."""
        self.fields = fields
        """Column of each glyph property."""
        self.sheet = sheet
        """The columns."""
        self.color = color
        self.alpha = alpha
        self.legend = legend
        self.hover = tuple(hover)
        """Columns of the tooltip."""
        self.options = options
        """Further properties."""

    def packed(self, block: Block) -> dict[str, Any]:
        """Returns the mark as a page reads it."""
        names = ("glyph", "fields", "color", "alpha", "legend", "hover", "options")
        packed = {name: getattr(self, name) for name in names}
        return packed | {"sheet": self.sheet.packed(block)}


class Chart:
    """A chart and the table of its figures."""

    __slots__ = ("height", "key", "marks", "note", "sheet", "shows_figures", "title", "x", "y")

    def __init__(
        self,
        key: str,
        title: str,
        x: Axis,
        y: Axis,
        marks: Iterable[Mark],
        sheet: Sheet,
        *,
        height: int = 320,
        note: str = "",
        shows_figures: bool = False,
    ) -> None:
        self.shows_figures = shows_figures
        """Whether a page shows the table below the chart without being asked."""
        self.key = key
        self.title = title
        self.x = x
        self.y = y
        self.marks = tuple(marks)
        self.sheet = sheet
        """The figures as a table."""
        self.height = height
        self.note = note

    def packed(self, block: Block) -> dict[str, Any]:
        """Returns the chart as a page reads it."""
        return {
            "key": self.key,
            "title": self.title,
            "note": self.note,
            "height": self.height,
            "x": self.x.packed(),
            "y": self.y.packed(),
            "marks": [mark.packed(block) for mark in self.marks],
            "sheet": self.sheet.packed(block),
        }


def plain(text: str) -> str:
    """Returns `text` with TeX delimiters broken up, which bokeh would render as formulas."""
    return text.replace("$$", "$ $").replace("\\[", "\\ [").replace("\\(", "\\ (")


def decimal(largest: float, unit: str) -> tuple[float, str]:
    """Returns a decimal scale and its unit: `(1e9, "GFLOP")`."""
    power = 0
    while largest >= 1000.0 ** (power + 1) and power + 1 < len(_PREFIXES):
        power += 1
    return 1000.0**power, f"{_PREFIXES[power]}{unit}"


def seconds(largest: float) -> tuple[float, str]:
    """Returns a scale of durations and its unit: `(1e-3, "ms")`."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if largest >= factor:
            return factor, unit
    return 1e-9, "ns"


def drawn(chart: Chart, height: int | None = None, width: int | None = None) -> Any:
    """Returns the chart as a bokeh figure; raises `ModuleNotFoundError` without bokeh."""
    try:
        models, plotting = import_module("bokeh.models"), import_module("bokeh.plotting")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(missing(error.name or "bokeh"), name=error.name) from None

    axes = {"x": chart.x, "y": chart.y}
    kinds = {f"{name}_axis_type": "log" for name, axis in axes.items() if axis.kind == "log"}
    size: dict[str, Any] = {"height": height or chart.height}
    size |= {"width": width} if width else {"sizing_mode": "stretch_width"}
    tools = "pan,xwheel_zoom,box_zoom,reset,save,tap"
    made = plotting.figure(
        title=plain(chart.title),
        x_axis_label=chart.x.label,
        y_axis_label=chart.y.label,
        tools=tools,
        active_drag="box_zoom",
        **kinds,
        **size,
    )
    for name, axis in axes.items():
        (lines,) = made.xaxis if name == "x" else made.yaxis
        if axis.limits is not None:
            start, end = (limit / axis.scale for limit in axis.limits)
            setattr(made, f"{name}_range", models.Range1d(start, end))
        if axis.kind == "factors":
            count = len(axis.factors)
            lines.ticker = models.FixedTicker(ticks=list(range(count)))
            lines.major_label_overrides = dict(enumerate(axis.factors))
            turned = models.Range1d(count - 0.4, -0.6)
            setattr(made, f"{name}_range", turned)
    for mark in chart.marks:
        columns: dict[str, Any] = {}
        for field in mark.sheet.fields:
            columns[field.name] = mark.sheet.values(field.name)
        for name, key in mark.fields.items():
            scale = axes["y" if name in _VERTICAL else "x"].scale if name in _PLACES else 1.0
            if scale != 1.0:
                columns[f"{name} "] = [
                    None if value is None else value / scale for value in columns[key]
                ]
        fields = {
            name: f"{name} " if f"{name} " in columns else key for name, key in mark.fields.items()
        }
        properties = dict(mark.options)
        if mark.glyph == "text":
            properties |= {"text_color": "black" if mark.color == INK else mark.color}
        else:
            properties |= {"color": mark.color, "alpha": mark.alpha}
        if mark.glyph in ("quad", "hbar"):
            properties.setdefault("line_color", "white")
        if mark.legend:
            properties["legend_label"] = mark.legend
        source = models.ColumnDataSource(columns)
        renderer = getattr(made, mark.glyph)(source=source, **fields, **properties)
        if mark.hover:
            labels = {field.name: field.label for field in mark.sheet.fields}
            tips = [(labels[key], f"@{{{key}}}") for key in mark.hover]
            made.add_tools(models.HoverTool(renderers=[renderer], tooltips=tips))
    if any(mark.legend for mark in chart.marks):
        made.add_layout(made.legend[0], "below")
        made.legend.orientation = "horizontal"
        made.legend.location = "left"
        made.legend.click_policy = "hide"
        made.legend.ncols = 4
    return made


_VERTICAL = frozenset({"y", "y1", "y2", "top", "bottom"})
_PLACES = _VERTICAL | {"x", "left", "right"}


def missing(name: str) -> str:
    """Returns the message for a missing charting package."""
    return f"charts need {name}: pip install 'hlofast[report]'"
