"""What became slower or faster between two profiles: a part of `Diff`."""

from __future__ import annotations

from hlofast._core import Field
from hlofast._profile_fields import MEASURED
from hlofast._result import Fact, Note, Section
from hlofast._scheduled import labels
from hlofast.table import of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from hlofast._module import Module
    from hlofast._profile import Measured
    from hlofast.table import Table

_BEFORE = MEASURED.replace(
    name="before_seconds", doc="Measured seconds per step in the first profile.",
    label="before s", nullable=True,
)  # fmt: skip
_AFTER = MEASURED.replace(
    name="after_seconds", doc="Measured seconds per step in the second profile.",
    label="after s", nullable=True,
)  # fmt: skip
_CHANGE = Field(
    "seconds", "change_seconds", "Second minus first; a missing row counts as 0.",
    label="change s", signed=True, adds_up=True,
)  # fmt: skip
_SHARE = Field(
    "ratio", "share", "The change relative to the first figure.", label="change", nullable=True,
    signed=True,
)  # fmt: skip
_COMPARED = (_BEFORE, _AFTER, _CHANGE, _SHARE)
_PARTS = (
    Field("word", "part", "Compute, exposed communication, copies, other, idle, or the step."),
    Field("axes", "axes", "Mesh axes of the exposed collectives.", nullable=True),
    *_COMPARED,
)
_PHASE = Field(
    "word", "phase", "The phase in the second module, otherwise in the first.", nullable=True
)
_OPCODE = Field("word", "opcode", "The opcode.")
_SOURCE = Field("path", "source", "Source file and line.", nullable=True)
_INSTRUCTIONS = (
    Field("name", "name", "The instruction in the second module, otherwise in the first."),
    Field("name", "name_before", "The matched instruction in the first module, if its name "
          "differs.", label="name before", nullable=True),
    _OPCODE,
    *_COMPARED,
    _PHASE,
    _SOURCE,
)  # fmt: skip
FACTS = (
    Field("seconds", "measured_before", "Measured step of the first profile.",
          label="measured step before"),
    Field("seconds", "measured_after", "Measured step of the second profile.",
          label="measured step after"),
    Field("ratio", "measured_change", "Change of the measured step.", label="change of the step",
          signed=True),
)  # fmt: skip


class MeasuredDiff:
    """The measured steps of two modules side by side, joined by the matched instructions."""

    __slots__ = ("_pairs", "after", "before")

    def __init__(self, before: Measured, after: Measured, pairs: Table) -> None:
        self.before = before
        """What the first profile measured."""
        self.after = after
        """What the second profile measured."""
        self._pairs = pairs

    def facts(self) -> tuple[Fact, ...]:
        """Both steps and the change."""
        own, other = self.before.step_seconds, self.after.step_seconds
        values = (own, other, (other - own) / own if own else None)
        return tuple(
            Fact(field, value, "measured") for field, value in zip(FACTS, values, strict=True)
        )

    def notes(self) -> Iterator[Note]:
        """The notes of both sides about gaps of the profiles."""
        for side, measured in (("before", self.before), ("after", self.after)):
            for note in measured.notes:
                if note.code in ("unjoined", "outside-runs"):
                    yield Note(note.code, f"{side}: {note.text}", **note.figures)

    def sections(self) -> tuple[Section, ...]:
        """Parts of the step, then sums and instructions, the largest changes first."""
        phases, opcodes = self._by("phase", _PHASE), self._by("opcode", _OPCODE)
        shown = ("name", "name_before", "before_seconds", "after_seconds", "change_seconds",
                 "share", "phase", "source")  # fmt: skip
        figure = "change_seconds"
        return (
            Section("measured_parts", "Parts of the measured step", self.parts(), is_whole=True),
            Section("measured_by_phase", "Measured time by phase", phases, is_whole=True),
            Section("measured_by_opcode", "Measured time by opcode", opcodes, figure=figure),
            Section(
                "measured_instructions",
                "Instructions that became slower or faster",
                _changed(self.instructions()),
                shown,
                figure=figure,
            ),
        )

    def parts(self) -> Table:
        """Returns the step and its parts on both sides."""
        sides: list[dict[tuple[str, str | None], float]] = []
        for measured in (self.before, self.after):
            table = measured.tables["parts"]
            keys = zip(table.values("part"), table.values("axes"), strict=True)
            sides.append({("step", None): measured.step_seconds})
            sides[-1] |= dict(zip(keys, table.values("measured_seconds"), strict=True))
        rows = [
            (*key, *_compared(sides[0].get(key), sides[1].get(key)))
            for key in dict.fromkeys([*sides[0], *sides[1]])
        ]
        first, rest = rows[0], rows[1:]
        rest.sort(key=lambda row: -abs(row[4]))
        return of_rows(_PARTS, [first, *rest])

    def _by(self, key: str, field: Field) -> Table:
        sums: list[dict[str | None, float]] = []
        for measured in (self.before, self.after):
            table = measured.by(key)
            columns = (table.values(key), table.values("measured_seconds"))
            sums.append(dict(zip(*columns, strict=True)))
        rows = [
            (own, *_compared(sums[0].get(own), sums[1].get(own)))
            for own in dict.fromkeys([*sums[0], *sums[1]])
        ]
        rows.sort(key=lambda row: -abs(row[3]))
        return of_rows((field, *_COMPARED), rows)

    def instructions(self) -> Table:
        """Returns one row per instruction with events on either side, largest change first.

        The same instruction on both sides is the pair that the diff matched.
        """
        before, after = _seconds(self.before), _seconds(self.after)
        columns = (self._pairs.values(name) for name in self._pairs.columns[:2])
        partner = {other: own for own, other in zip(*columns, strict=True)}
        rows: list[tuple[int | None, int | None]] = [(partner.get(own), own) for own in after]
        known = {own for own, _ in rows}
        back = {own: other for other, own in partner.items()}
        rows += [(own, back.get(own)) for own in before if own not in known]
        names = (self._described(self.before.module, (own for own, _ in rows)),
                 self._described(self.after.module, (own for _, own in rows)))  # fmt: skip
        table = []
        for own, other in rows:
            compared = _compared(
                None if own is None else before.get(own),
                None if other is None else after.get(other),
            )
            first = None if own is None else names[0][own]
            name, opcode, phase, source = (
                names[1][other] if other is not None else names[0][own or 0]
            )
            was = None if first is None or first[0] == name else first[0]
            table.append((name, was, opcode, *compared, phase, source))
        table.sort(key=lambda row: -abs(row[5]))
        return of_rows(_INSTRUCTIONS, table)

    def _described(
        self, module: Module, rows: Iterable[int | None]
    ) -> dict[int, tuple[str, str, str | None, str | None]]:
        """Name, opcode, phase and source by row."""
        chosen: Sequence[int] = [row for row in rows if row is not None]
        phases, sources = (labels(module, key, chosen) for key in ("phase", "source"))
        return {
            row: (module[row].name, module[row].opcode, phase, source)
            for row, phase, source in zip(chosen, phases, sources, strict=True)
        }


def _changed(table: Table) -> Table:
    """The rows whose time differs between the sides."""
    changes = table.values("change_seconds")
    return table.take([row for row, change in enumerate(changes) if change])


def _seconds(measured: Measured) -> dict[int, float]:
    """Measured seconds by row, of rows with events."""
    column = measured._data.column("seconds").tolist()
    return {row: own for row, own in enumerate(column) if own == own}


def _compared(own: float | None, other: float | None) -> tuple[Any, ...]:
    change = (other or 0.0) - (own or 0.0)
    return own, other, change, change / own if own and other is not None else None
