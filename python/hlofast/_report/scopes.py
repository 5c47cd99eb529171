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

_SMALLEST = 1 / 4000
"""Share of the total below which a scope is too narrow to draw."""
_DEEPEST = 24


def scopes(cost: Cost, by: str = "flops") -> Chart:
    """FLOPs or bytes of nested scopes: boxes as wide as their share, below their parent."""
    if by not in ("flops", "bytes_accessed"):
        raise ValueError(f"by must be flops or bytes_accessed, not {by!r}")
    grouped = cost.by("scope", depth=_DEEPEST)
    sums: dict[tuple[str, ...], list[int]] = {}
    names = zip(
        *(grouped.values(name) for name in ("scope", "flops", "bytes_accessed")),
        strict=True,
    )
    for name, flops, moved in names:
        parts = tuple(name.split("/")) if name else ("(no scope)",)
        for depth in range(len(parts) + 1):
            total = sums.setdefault(parts[:depth], [0, 0])
            total[0] += flops
            total[1] += moved
    which = 0 if by == "flops" else 1
    whole = sums.get((), [0, 0])[which]
    children: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for path, total in sums.items():
        if path and total[which] > whole * _SMALLEST:
            children.setdefault(path[:-1], []).append(path)
    boxes: list[dict[str, Any]] = []
    waiting: list[tuple[tuple[str, ...], int]] = [((), 0)]
    while waiting:
        path, left = waiting.pop()
        total = sums[path]
        boxes.append(
            {
                "scope": "/".join(path) if path else "whole step",
                "label": draw.plain(path[-1] if path else "whole step"),
                "depth": len(path),
                "left": left,
                "right": left + total[which],
                "top": len(path) - 0.48,
                "bottom": len(path) + 0.48,
                "flops": total[0],
                "bytes_accessed": total[1],
                "share": total[which] / whole if whole else None,
            }
        )
        for child in sorted(children.get(path, ()), key=lambda inner: -sums[inner][which]):
            waiting.append((child, left))
            left += sums[child][which]
    boxes.sort(key=lambda box: (box["depth"], box["left"]))
    unit = draw.decimal(whole, "FLOP") if by == "flops" else binary(whole)
    columns = [
        ("flops", "FLOPs", "flops"),
        ("bytes_accessed", "bytes", "bytes"),
        ("share", "share", "ratio"),
        ("scope", "scope", "name"),
        ("depth", "depth", "count"),
    ]
    if by != "flops":
        columns[:2] = columns[1::-1]
    table = sheet_of(f"scopes-{by}", "Scopes", boxes, columns, sort=by)
    places = [("left", "left", "count"), ("right", "right", "count")]
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
                    hover=["scope", "flops", "bytes_accessed", "share"],
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
            ("left", "left", "count"),
            ("width", "width", "count"),
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
    what = "FLOPs" if by == "flops" else "Bytes"
    levels = [""] * (deepest + 1)
    return Chart(
        f"scopes-{by}",
        f"{what} by scope",
        Axis(unit[1], scale=unit[0], limits=(0, max(whole, 1))),
        Axis("", kind="factors", factors=levels),
        marks,
        table,
        height=90 + 24 * (deepest + 1),
        note="Scopes below 1/4,000 of the total are too narrow to draw.",
    )


def _color(scope: str, depth: int) -> int:
    """Returns a colour number that depends only on the scope's name."""
    if depth == 0:
        return 0
    last = scope.rpartition("/")[2]
    return sum(last.encode("utf-8", "replace")) % 6
