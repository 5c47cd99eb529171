"""Charts as SVG and the first rows of tables as HTML: what a page shows until its scripts have run.

A page that is printed at once, or opened without JavaScript, is complete with them.
"""

from __future__ import annotations

from html import escape
from math import ceil, floor, isfinite, log10

from hlofast import _text as output
from hlofast._report.chart import INK
from hlofast._report.inline import micro

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hlofast._core import Module
    from hlofast._report.chart import Axis, Chart, Mark
    from hlofast._report.sheet import Sheet

ROWS = 12
"""Rows of a table, as many as the page shows without scrolling."""
_NARROW = 4
"""Columns of a table that stands beside others."""
_WIDTH = 1100
_RIGHT, _TOP, _BOTTOM = 12, 8, 44
_LETTER = 6.6
"""Width of a letter of an axis, in units of the drawing."""
_LONGEST, _LONGEST_CELL = 32, 48
"""Letters of a label, and of a cell."""
_TICKS = 8
_VERTICAL = ("y", "y1", "y2", "top", "bottom")


class _Scale:
    """Places numbers of an axis between two edges of the drawing."""

    __slots__ = ("_end", "_is_log", "_least", "_start", "edges", "limits")

    def __init__(self, axis: Axis, values: Sequence[float], edges: tuple[float, float]) -> None:
        self._is_log = axis.kind == "log"
        self._least = 1.0 if axis.kind == "whole" else 0.0
        self.edges = edges
        if axis.kind == "factors":
            low, high = -0.6, float(len(axis.factors)) - 0.4
        elif axis.limits is not None:
            low, high = (limit / axis.scale for limit in axis.limits)
        else:
            known = [own for own in values if isfinite(own) and (own > 0 or not self._is_log)]
            low, high = min(known, default=1.0), max(known, default=1.0)
            if not self._is_log:
                low, high = min(low, 0.0), high * 1.05
        if self._is_log:
            low, high = log10(low) - 0.05, log10(high) + 0.05
        self.limits = (low, high if high > low else low + 1)
        self._start, self._end = self.limits

    def __call__(self, value: float) -> float:
        """The place of `value`, cut off at the edges."""
        if value != value:
            value = self._start
        elif self._is_log:
            value = log10(value) if value > 0 else self._start
        share = (value - self._start) / (self._end - self._start)
        first, last = self.edges
        return round(first + min(max(share, 0.0), 1.0) * (last - first), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Values with their labels."""
        low, high = self.limits
        if self._is_log:
            powers = range(ceil(low), floor(high) + 1)
            every = max(1, ceil(len(powers) / _TICKS))
            return [(10.0**power, f"1e{power}") for power in powers[::every]]
        step: float = 10.0 ** floor(log10((high - low) / _TICKS))
        step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= _TICKS)
        step = max(step, self._least)
        first = ceil(low / step)
        values = [number * step for number in range(first, floor(high / step) + 1)]
        return [(value, f"{round(value, 9):,.10g}") for value in values]


def chart(shown: Chart) -> str:
    """Returns the chart as SVG; its text is escaped."""
    names = [_cut(name, _LONGEST) for name in shown.y.factors]
    left = 24 + max((int(len(name) * _LETTER) for name in names), default=44)
    height = shown.height
    columns = {
        name: [own for mark in shown.marks for own in _placed(shown, mark, name)]
        for name in (*_VERTICAL, "x", "left", "right")
    }
    across = [own for name in ("x", "left", "right") for own in columns[name]]
    up = [own for name in _VERTICAL for own in columns[name]]
    x = _Scale(shown.x, across, (left, _WIDTH - _RIGHT))
    edges = (height - _BOTTOM, _TOP)
    y = _Scale(shown.y, up, edges[::-1] if shown.y.kind == "factors" else edges)
    parts = [*_lines(shown, x, y, names, height)]
    for mark in shown.marks:
        parts.append(_GLYPHS[mark.glyph](shown, mark, x, y))
    title = escape(shown.title)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{title}" '
        f'class="still">{"".join(parts)}</svg>'
    )


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"…{text[1 - longest :]}"


def _placed(shown: Chart, mark: Mark, name: str) -> list[float]:
    """The numbers of a property in units of its axis; unknown ones are not finite."""
    key = mark.fields.get(name)
    if key is None:
        return []
    axis = shown.y if name in _VERTICAL else shown.x
    values = mark.sheet.values(key)
    return [float("nan") if own is None else own / axis.scale for own in values]


def _lines(shown: Chart, x: _Scale, y: _Scale, names: list[str], height: int) -> list[str]:
    """Grid lines, labels of ticks and of axes."""
    (left, right), (bottom, top) = x.edges, sorted(y.edges, reverse=True)
    parts = []
    for value, label in x.ticks():
        at = x(value)
        parts.append(f'<path class="rule" d="M{at} {top}V{bottom}"/>')
        parts.append(f'<text x="{at}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    labels = list(enumerate(names)) if names else y.ticks()
    for value, label in labels:
        at = y(value)
        if not names:
            parts.append(f'<path class="rule" d="M{left} {at}H{right}"/>')
        place = f'x="{left - 6}" y="{at + 4}" text-anchor="end"'
        parts.append(f"<text {place}>{escape(output.printable(label))}</text>")
    middle = (left + right) / 2
    parts.append(
        f'<text x="{middle}" y="{height - 8}" text-anchor="middle">{escape(shown.x.label)}</text>'
    )
    if shown.y.label:
        turned = f'transform="translate(11 {(bottom + top) / 2}) rotate(-90)"'
        parts.append(f'<text {turned} text-anchor="middle">{escape(shown.y.label)}</text>')
    return parts


def _rectangles(boxes: Sequence[tuple[float, float, float, float]], mark: Mark) -> str:
    """One path of rectangles: left, right, top, bottom."""
    d = "".join(
        f"M{left} {top}H{max(right, left + 0.5)}V{bottom}H{left}Z"
        for left, right, top, bottom in boxes
    )
    return f'<path class="box" fill="{mark.color}" fill-opacity="{mark.alpha}" d="{d}"/>'


def _quad(shown: Chart, mark: Mark, x: _Scale, y: _Scale) -> str:
    columns = [_placed(shown, mark, name) for name in ("left", "right", "top", "bottom")]
    boxes = []
    for left, right, top, bottom in zip(*columns, strict=True):
        upper, lower = sorted((y(top), y(bottom)))
        boxes.append((x(left), x(right), upper, lower))
    return _rectangles(boxes, mark)


def _hbar(shown: Chart, mark: Mark, x: _Scale, y: _Scale) -> str:
    half = mark.options.get("height", 0.8) / 2
    rows = zip(_placed(shown, mark, "y"), _placed(shown, mark, "right"), strict=True)
    boxes = [(x(0), x(end), y(at - half), y(at + half)) for at, end in rows if end == end]
    return _rectangles(boxes, mark)


def _area(shown: Chart, mark: Mark, x: _Scale, y: _Scale) -> str:
    """A stepped band; each value holds until the next step."""
    steps = [x(own) for own in _placed(shown, mark, "x")]
    if not steps:
        return ""
    low, high = ([y(own) for own in _placed(shown, mark, name)] for name in ("y1", "y2"))
    ends = [*steps[1:], steps[-1]]
    there = "".join(f"V{own}H{end}" for own, end in zip(high, ends, strict=True))
    back = "".join(
        f"V{own}H{start}" for own, start in zip(reversed(low), reversed(steps), strict=True)
    )
    d = f"M{steps[0]} {low[0]}{there}{back}Z"
    return f'<path fill="{mark.color}" fill-opacity="{mark.alpha}" d="{d}"/>'


def _points(shown: Chart, mark: Mark, x: _Scale, y: _Scale) -> list[tuple[float, float]]:
    rows = zip(_placed(shown, mark, "x"), _placed(shown, mark, "y"), strict=True)
    return [(x(at), y(own)) for at, own in rows if at == at and own == own]


def _scatter(shown: Chart, mark: Mark, x: _Scale, y: _Scale) -> str:
    d = "".join(f"M{at} {own}h0" for at, own in _points(shown, mark, x, y))
    size = mark.options.get("size", 8)
    return (
        f'<path fill="none" stroke="{mark.color}" stroke-opacity="{mark.alpha}" '
        f'stroke-linecap="round" stroke-width="{size}" d="{d}"/>'
    )


def _line(shown: Chart, mark: Mark, x: _Scale, y: _Scale, *, is_stepped: bool = False) -> str:
    points = _points(shown, mark, x, y)
    if not points:
        return ""
    first, *rest = points
    d = "".join(f"H{at}V{own}" if is_stepped else f"L{at} {own}" for at, own in rest)
    width = mark.options.get("line_width", 1)
    return (
        f'<path fill="none" stroke="{mark.color}" stroke-width="{width}" '
        f'd="M{first[0]} {first[1]}{d}"/>'
    )


def _step(shown: Chart, mark: Mark, x: _Scale, y: _Scale) -> str:
    return _line(shown, mark, x, y, is_stepped=True)


def _text(shown: Chart, mark: Mark, x: _Scale, y: _Scale) -> str:
    words = mark.sheet.values(mark.fields["text"])
    fill = "" if mark.color == INK else f' fill="{mark.color}"'
    parts = [
        f'<text class="ink" x="{x(at) + 4}" y="{y(own) + 4}"{fill}>'
        f"{escape(output.printable(word))}</text>"
        for at, own, word in zip(
            _placed(shown, mark, "x"), _placed(shown, mark, "y"), words, strict=True
        )
        if word
    ]
    return "".join(parts)


_GLYPHS: dict[str, Callable[[Chart, Mark, _Scale, _Scale], str]] = {
    "quad": _quad,
    "hbar": _hbar,
    "varea_step": _area,
    "scatter": _scatter,
    "line": _line,
    "step": _step,
    "text": _text,
}


def sheet(shown: Sheet, module: Module | None, heading: str = "h3") -> str:
    """Returns the caption and the first rows of a table, in the order of its sort column."""
    table = shown.table
    if shown.sort is not None:
        table = table.sort_by(shown.sort, descending=True)
    first = table.top(ROWS)
    heads = "".join(
        f'<th class="{shown.kind(field)}">{escape(output.heading_of(field))}</th>'
        for field in shown.fields
    )
    columns: list[list[str]] = []
    for field in shown.fields:
        cells = []
        for value in first.values(field.name):
            own = output.printable(output.cell(field, value, module))
            cell = escape(_cut(micro(own) if field.kind == "seconds" else own, _LONGEST_CELL))
            page = shown.links.get(value) if not columns and isinstance(value, str) else None
            if page is not None:
                cell = f'<a href="{escape(page, quote=True)}">{cell}</a>'
            cells.append(f'<td class="{shown.kind(field)}">{cell}</td>')
        columns.append(cells)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(*columns, strict=True))
    left = len(shown) - len(first)
    more = f'<p class="note">{left:,} more rows</p>' if left > 0 else ""
    width = " wide" if len(shown.fields) > _NARROW else ""
    return (
        f'<div class="grid{width}"><{heading} class="caption">'
        f"{escape(output.printable(shown.caption))}</{heading}>"
        f'<div class="plain-scroll"><table class="plain"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{more}</div>"
    )
