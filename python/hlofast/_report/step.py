"""The bar of a step: its seconds in computing, moving, waiting by mesh axis, and idle time."""

from __future__ import annotations

from math import inf

from hlofast._report import chart as draw
from hlofast._text import share
from hlofast._verdict_figures import seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from hlofast._verdict import Verdict

_EXPOSED = (draw.ORANGE, draw.RED, draw.OLIVE, draw.PINK)
"""Colours of exposed communication, one for each mesh axis."""


class Part:
    """A part of a step."""

    __slots__ = ("colour", "label", "seconds", "share")

    def __init__(self, label: str, seconds: float, share: float, colour: str) -> None:
        self.label = label
        self.seconds = seconds
        self.share = share
        """Share of the step, between 0 and 1."""
        self.colour = colour

    @property
    def text(self) -> str:
        """The part in words: `compute 9.097 s, 87.5 %`."""
        return f"{self.label} {seconds(self.seconds)}, {share(self.share, 1)}"


class Bar:
    """A step as parts that add up to it."""

    __slots__ = ("parts", "title")

    def __init__(self, title: str, parts: Iterable[Part]) -> None:
        self.title = title
        self.parts = tuple(parts)


def bars(verdict: Verdict) -> list[Bar]:
    """The measured step and the modelled step, as far as they are known."""
    found = []
    axes: dict[str, str] = {}
    for how, column, result in (
        ("measured", "measured_seconds", verdict.measured),
        ("modelled", "seconds", verdict.time),
    ):
        if result is None:
            continue
        rows = [(row, row[column]) for row in result.tables["parts"] if row[column]]
        whole = sum(own for _, own in rows)
        if 0 < whole < inf:
            parts = [_part(row, own, whole, axes) for row, own in rows]
            found.append(Bar(f"Step of {seconds(whole)}, {how}", parts))
    return found


def _part(row: Mapping[str, Any], own: float, whole: float, axes: dict[str, str]) -> Part:
    """A row of a table of parts; `axes` has the colours of mesh axes so far."""
    name = row["part"]
    if name == "exposed":
        axis = row.get("axes") or "no known axes"
        colour = axes.setdefault(axis, _EXPOSED[len(axes) % len(_EXPOSED)])
        name = f"exposed over {axis}"
    else:
        colour = draw.COLOURS.get(name, draw.NEUTRAL)
    return Part(name, own, own / whole, colour)
