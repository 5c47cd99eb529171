"""The chart of scopes: nested boxes as wide as their share of the cost."""

from __future__ import annotations

from hlofast._report import chart as draw
from hlofast._report.chart import Axis, Chart, Mark
from hlofast._report.sheet import sheet_of
from hlofast._text import binary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._cost import Cost
    from hlofast._time import Time
    from hlofast.table import Table

_SMALLEST = 1 / 4000
"""Share of the total below which a scope is too narrow to draw."""
_ALL = 0.999
"""Share of its parent from which an only child is drawn with it."""
_DEEPEST = 24


def scopes(cost: Cost, by: str = "flops") -> Chart:
    """FLOPs or bytes of nested scopes: boxes as wide as their share, below their parent."""
    if by not in ("flops", "bytes_accessed"):
        raise ValueError(f"by must be flops or bytes_accessed, not {by!r}")
    grouped = cost.by("scope", depth=_DEEPEST)
    columns = [("flops", "FLOPs", "flops"), ("bytes_accessed", "bytes", "bytes")]
    if by != "flops":
        columns.reverse()
    return _nested(grouped, columns, "FLOPs" if by == "flops" else "Bytes")


def seconds(time: Time) -> Chart:
    """Seconds of the step of nested scopes, waiting included."""
    grouped = time.by("scope")
    columns = [("step_seconds", "seconds in step", "seconds"), ("instructions", "rows", "count")]
    return _nested(grouped, columns, "Time")


def _nested(grouped: Table, numbers: list[tuple[str, str, str]], what: str) -> Chart:
    """The chart of a table by scope; boxes are as wide as the first of `numbers`."""
    (by, _, kind), names = numbers[0], [name for name, _, _ in numbers]
    sums: dict[tuple[str, ...], list[Any]] = {}
    for scope, *own in zip(*(grouped.values(name) for name in ("scope", *names)), strict=True):
        parts = tuple(scope.split("/")[:_DEEPEST]) if scope else ("(no scope)",)
        for depth in range(len(parts) + 1):
            total = sums.setdefault(parts[:depth], [0] * len(names))
            for place, number in enumerate(own):
                total[place] += number or 0
    whole = sums[()][0] if sums else 0
    children: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for path, total in sums.items():
        if path and total[0] > whole * _SMALLEST:
            children.setdefault(path[:-1], []).append(path)
    boxes: list[dict[str, Any]] = []
    waiting: list[tuple[tuple[str, ...], float, int, int]] = [((), 0, 0, 0)]
    while waiting:
        path, left, above, depth = waiting.pop()
        total = sums.get(path, [0] * len(names))
        # A scope that is all of its parent is one box with it.
        inner = children.get(path, []) if path else []
        while len(inner) == 1 and sums[inner[0]][0] >= _ALL * total[0]:
            path = inner[0]
            inner = children.get(path, [])
        boxes.append(
            {
                "scope": "/".join(path) if path else "whole step",
                "label": draw.plain("/".join(path[above:]) if path else "whole step"),
                "depth": depth,
                "left": left,
                "right": left + total[0],
                "top": depth - 0.48,
                "bottom": depth + 0.48,
                **dict(zip(names, total, strict=True)),
                "share": total[0] / whole if whole else None,
            }
        )
        for child in sorted(children.get(path, ()), key=lambda scope: -sums[scope][0]):
            waiting.append((child, left, len(path), depth + 1))
            left += sums[child][0]
    boxes.sort(key=lambda box: (box["depth"], box["left"]))
    unit = {"flops": draw.decimal(whole, "FLOP"), "seconds": draw.seconds(whole)}.get(kind)
    scale, word = unit or binary(int(whole))
    columns = [
        *numbers,
        ("share", "share", "ratio"),
        ("scope", "scope", "name"),
        ("depth", "depth", "count"),
    ]
    table = sheet_of(f"scopes-{by}", "Scopes", boxes, columns, sort=by)
    places = [("label", "label", "text"), ("left", "left", "number"), ("right", "right", "number")]
    places += [("top", "top", "number"), ("bottom", "bottom", "number")]
    deepest = max(box["depth"] for box in boxes)
    marks = []
    fields = {"left": "left", "right": "right", "top": "top", "bottom": "bottom"}
    for number in range(min(len(draw.PALETTE) - 1, 6)):
        colored = [box for box in boxes if _color(box["scope"], box["depth"]) == number]
        if colored:
            sheet = sheet_of("boxes", "boxes", colored, [*columns, *places])
            marks.append(
                Mark(
                    "quad",
                    fields,
                    sheet,
                    color=draw.PALETTE[number],
                    alpha=0.55,
                    hover=["scope", *names, "share"],
                    line_width=1,
                )
            )
    for box in boxes:
        box["width"] = box["right"] - box["left"]
        room = int(110 * box["width"] / whole) if whole else 0
        text = box["label"]
        box["cut"] = text if len(text) <= room else text[: room - 1] + "…" if room > 2 else ""
    labels = sheet_of(
        "labels",
        "labels",
        boxes,
        [
            ("label", "label", "text"),
            ("cut", "label", "text"),
            ("left", "left", "number"),
            ("width", "width", "number"),
            ("depth", "depth", "count"),
        ],
    )
    marks.append(
        Mark(
            "text",
            {"x": "left", "y": "depth", "text": "cut"},
            labels,
            color=draw.INK,
            text_font_size="11px",
            text_baseline="middle",
            x_offset=4,
        )
    )
    levels = [""] * (deepest + 1)
    return Chart(
        f"scopes-{by}",
        f"{what} by scope",
        Axis(word, scale=scale, limits=(0, whole or 1)),
        Axis("", kind="factors", factors=levels),
        marks,
        table,
        height=90 + 24 * (deepest + 1),
        note="Select a scope to see what is inside. Scopes below 1/4,000 of the total are too "
        "narrow to draw.",
    )


def _color(scope: str, depth: int) -> int:
    """Returns a colour number that depends only on the scope's name."""
    if depth == 0:
        return 0
    last = scope.rpartition("/")[2]
    return sum(last.encode("utf-8", "replace")) % 6
