"""`Change`: what differs between two compilations of a program, for summaries of many programs."""

from __future__ import annotations

from hlofast import _text
from hlofast._core import Field
from hlofast._result import Section
from hlofast.table import of_rows

TYPE_CHECKING = False  # The command line compares modules; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from hlofast._diff import Diff

MEASURES = ("instructions", "flops", "bytes_accessed", "live_peak", "wire_bytes")
"""The totals whose differences are listed by program."""
_FIGURES = (
    ("live_peak", "bytes", "Live peak", "live peak"),
    ("modelled_peak", "bytes", "Modelled peak", "modelled peak"),
    ("flops", "flops", "FLOPs", "FLOPs"),
    ("bytes_accessed", "bytes", "Bytes accessed", "bytes accessed"),
    ("wire_bytes", "bytes", "Bytes sent", "bytes sent"),
)
"""The totals that are told: measure, kind, heading, words."""
_TOLD_AXES = 3
"""Limit on the collectives that a sentence names."""
_TOLD = 3
"""Limit on the programs that a sentence names."""
_EQUAL, _DIFFERENT = "equal", "different"
UNOPTIMISED = Field(
    "word",
    "unoptimised",
    "The modules before optimisation: equal or different; unknown if a folder lacks one.",
    label="before optimisation",
    nullable=True,
)
_PROGRAM = Field("name", "program", "The program.")
_PROGRAMS = Field("count", "programs", "Programs with this change, such as one per host.")
_PROVENANCE = Field("word", "provenance", "Provenance of the figures.")
_DEVICES = tuple(
    Field("count", f"devices_{side}", f"Devices that the figure of the {which} program covers "
          "together; if the numbers differ, so do the figures, and no change is given.",
          nullable=True)
    for side, which in (("before", "first"), ("after", "second"))
)  # fmt: skip
_COLLECTIVES = (
    _PROGRAM,
    Field("word", "kind", "The kind of collective."),
    Field("axes", "axes", "The mesh axes of its groups.", nullable=True),
    *(
        Field(kind, f"{name}_{side}", f"{doc} in the {which} program.", nullable=True)
        for name, kind, doc in (
            ("calls", "count", "Calls in a step"),
            ("payload", "bytes", "Payload in a step"),
            ("wire_bytes", "bytes", "Wire bytes of a device in a step"),
        )
        for side, which in (("before", "first"), ("after", "second"))
    ),
    _PROGRAMS,
)
_SENT = ("executions", "payload", "wire_bytes")


class Total:
    """A total of both programs, as a row of `Diff.totals`."""

    __slots__ = ("after", "before", "change", "devices", "measure", "provenance", "share")

    def __init__(self, row: dict[str, Any]) -> None:
        self.measure: str = row["measure"]
        self.before: int | None = row["before"]
        self.after: int | None = row["after"]
        self.change: int | None = row["change"]
        """The second figure minus the first; None if unknown, or of other numbers of devices."""
        self.share: float | None = (
            self.change / self.before if self.before and (self.change is not None) else None
        )
        self.provenance: str = row["provenance"]
        self.devices: tuple[int | None, int | None] = row["devices_before"], row["devices_after"]
        """Devices that each figure covers together; None where it never covers several."""

    def key(self) -> tuple[object, ...]:
        """A key by which equal totals are shown once."""
        return self.measure, self.before, self.after, self.provenance, self.devices

    @property
    def differs(self) -> bool:
        """Whether the figures differ."""
        return self.before != self.after

    def words(self) -> str:
        """How the second figure compares with the first."""
        if self.share is not None:
            return str(_text.signed_share(self.share))
        is_comparable = self.change is not None or None in (self.before, self.after)
        sides = zip((self.before, self.after), self.devices, strict=True)
        return " → ".join(
            _count(figure)
            if is_comparable or devices is None
            else f"{_count(figure)} of {_text.counted(devices, 'device')}"
            for figure, devices in sides
        )


class Change:
    """The differences of one program: totals, collectives, and whether its source is the same."""

    __slots__ = ("collectives", "name", "totals", "unoptimised")

    def __init__(self, name: str, diff: Diff, is_same: bool | None) -> None:
        self.name = name
        """The name of the program."""
        self.unoptimised = None if is_same is None else _EQUAL if is_same else _DIFFERENT
        """The modules before optimisation, as a word; None if unknown."""
        rows = {row["measure"]: row for row in diff.totals()}
        if (modelled := rows.get("modelled_peak")) and modelled["change"] is not None:
            del rows["live_peak"]  # Before XLA has scheduled both, the model tells more.
        self.totals = tuple(Total(row) for row in rows.values())
        """The totals."""
        self.collectives = tuple(_collectives(diff))
        """Kind, axes, and per figure both values, of the collectives that differ."""

    def key(self) -> tuple[object, ...]:
        """A key by which equal changes are shown once."""
        totals = tuple(total.key() for total in self.totals)
        return self.name, self.unoptimised, totals, self.collectives

    def size(self) -> int:
        """FLOPs of the larger side."""
        flops = [total for total in self.totals if total.measure == "flops"]
        return max(*(own or 0 for total in flops for own in (total.before, total.after)), 0)

    def change(self, measure: str) -> int | None:
        """The second figure minus the first; None if they are unknown or cannot be compared."""
        return next((own.change for own in self.totals if own.measure == measure), None)

    def words(self) -> str:
        """The change as part of a sentence."""
        parts = [
            f"{words} {total.words()}"
            for measure, _, _, words in _FIGURES
            for total in self.totals
            if total.measure == measure and total.differs
        ]
        calls = [
            (kind, axes, before, after)
            for kind, axes, before, after, *_ in self.collectives
            if before != after
        ]
        for kind, axes, before, after in calls[:_TOLD_AXES]:
            along = f" along {axes}" if axes else ""
            parts.append(f"{kind}{along} {_count(before)} → {_count(after)} calls")
        if len(calls) > _TOLD_AXES:
            parts.append(f"{len(calls) - _TOLD_AXES:,} more kinds of collectives")
        start = "same program, compiled differently" if self.unoptimised == _EQUAL else ""
        text = ", ".join(parts) or "same cost, peak and collectives"
        return f"{start}: {text}" if start else text


def _collectives(diff: Diff) -> Iterator[tuple[Any, ...]]:
    for row in diff.collectives():
        figures = [(row[f"{name}_before"], row[f"{name}_after"]) for name in _SENT]
        if any(before != after for before, after in figures):
            yield row["kind"], row["axes"], *(own for pair in figures for own in pair)


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def told(changes: Sequence[Change]) -> str:
    """The changes as a sentence; programs that changed alike, as on several hosts, stand once."""
    grouped = list(_grouped(changes))
    parts = [f"{one.name}: {one.words()}" for one, _ in grouped[:_TOLD]]
    if len(grouped) > _TOLD:
        parts.append(f"{len(grouped) - _TOLD:,} more programs differ")
    return "; ".join(parts)


def sections(changes: Sequence[Change]) -> tuple[Section, ...]:
    """Returns a table per total that differs, and the collectives that differ by axes."""
    grouped = list(_grouped(changes))
    # The number of programs says something only if several changed alike.
    hidden = () if any(count > 1 for _, count in grouped) else (_PROGRAMS.name,)
    tables = []
    for measure, kind, title, _ in _FIGURES:
        told = [
            (one, total, count)
            for one, count in grouped
            for total in one.totals
            if total.measure == measure and total.differs
        ]
        # Figures of all devices together cannot be compared with those of one.
        is_apart = any(len({*total.devices}) > 1 for _, total, _ in told)
        rows = [
            (one.name, total.before, total.after, total.change, total.share, total.provenance,
             *total.devices, count)
            for one, total, count in told
        ]  # fmt: skip
        fields = (
            _PROGRAM,
            Field(kind, "before", f"{title} of the first program.", nullable=True),
            Field(kind, "after", f"{title} of the second program.", nullable=True),
            Field(kind, "change", "Second minus first.", nullable=True, signed=True),
            Field("ratio", "share", "The change relative to the first.", nullable=True,
                  signed=True),
            _PROVENANCE,
            *_DEVICES,
            _PROGRAMS,
        )  # fmt: skip
        unseen = (*hidden, *(() if is_apart else (field.name for field in _DEVICES)))
        shown = [field.name for field in fields if field.name not in unseen]
        tables.append(Section(measure, title, of_rows(fields, rows), shown))
    sent = [(one.name, *row, count) for one, count in grouped for row in one.collectives]
    table = of_rows(_COLLECTIVES, sent)
    shown = [field.name for field in _COLLECTIVES if field.name not in hidden]
    return (*tables, Section("collectives", "Collectives by axes", table, shown))


def _grouped(changes: Sequence[Change]) -> Iterator[tuple[Change, int]]:
    """Each change once, with the number of programs that have it; most FLOPs first."""
    groups: dict[object, list[Change]] = {}
    for change in sorted(changes, key=lambda own: -own.size()):
        groups.setdefault(change.key(), []).append(change)
    for group in groups.values():
        yield group[0], len(group)
