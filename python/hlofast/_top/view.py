"""Tables of the terminal view: filtered and sorted rows, and cells as text."""

from __future__ import annotations

from hlofast import _text as output
from hlofast._profile_fields import MEASURED
from hlofast._report.data import HEAD, contents, head
from hlofast._report.sheet import Sheet, field_of
from hlofast._result import Fact, Note, Result, Section
from hlofast._verdict import OF_MODULE
from hlofast._verdict_figures import FIGURES, seconds, short, short_bytes
from hlofast._verdict_measured import beside
from hlofast.table import Table, with_source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast import Module
    from hlofast._core import Field
    from hlofast._report.data import Analyses, Contents

RATES = {"flop_rate": "FLOP/s", "byte_rate": "B/s"}
"""Units of the kinds of rates."""
MOST = 1000
"""Maximum number of rows shown; a filter finds the remaining rows."""
_TEXTS = ("text", "code", "path")
KEYS = ("opcode", "phase", "scope", "source")
"""Key columns of totals whose rows open the instructions they add up."""


class View:
    """A sheet, the order of its rows and a filter."""

    def __init__(self, sheet: Sheet, module: Module) -> None:
        self.sheet = sheet
        self.sort: str | None = sheet.sort
        self.is_descending = True
        self.filter = ""
        self.within: tuple[str, str] | None = None
        """A column, and the prefix that its values must have."""
        self._module = module
        self._values: dict[str, list[Any]] = {}

    @property
    def labels(self) -> list[str]:
        """Column headings; the sorted column is marked."""
        mark = "▼" if self.is_descending else "▲"
        return [
            f"{field.label} {mark}" if field.name == self.sort else field.label
            for field in self.sheet.fields
        ]

    def sort_by_next(self) -> None:
        """Sort by the column after the current sort column."""
        keys = [field.name for field in self.sheet.fields]
        at = keys.index(self.sort) + 1 if self.sort in keys else 0
        self.sort_by(keys[at % len(keys)])

    def sort_by(self, key: str) -> None:
        """Sort by a column, numbers descending, texts ascending.

        Choosing the column again reverses the order.
        """
        if key == self.sort:
            self.is_descending = not self.is_descending
            return
        (field,) = (field for field in self.sheet.fields if field.name == key)
        self.sort, self.is_descending = key, self.sheet.kind(field) not in (*_TEXTS, "row")

    def rows(self) -> list[int]:
        """Returns the sorted row numbers that pass the filter; unknown values come last."""
        rows: list[int] = list(range(len(self.sheet)))
        if self.within is not None:
            key, begin = self.within
            values = self._column(key)
            rows = [row for row in rows if values[row].startswith(begin)]
        wanted = self.filter.casefold()
        if wanted:
            fields = [f for f in self.sheet.fields if self.sheet.kind(f) in (*_TEXTS, "row")]
            columns = [self._column(field.name) for field in fields]
            rows = [r for r in rows if any(wanted in column[r].casefold() for column in columns)]
        if self.sort is not None:
            values = self._column(self.sort)
            known = [row for row in rows if values[row] is not None]
            known.sort(key=values.__getitem__, reverse=self.is_descending)
            rows = known + [row for row in rows if values[row] is None]
        return rows

    def cells(self, row: int) -> list[str]:
        """Returns the cells of a row as text."""
        fields = self.sheet.fields
        return [_shown(self.sheet.kind(field), self._column(field.name)[row]) for field in fields]

    def instruction(self, row: int) -> int | None:
        """Returns the row number of a row's instruction."""
        for field in self.sheet.fields:
            if self.sheet.kind(field) == "row":
                number: int | None = self.sheet.values(field.name)[row]
                return number
        return None

    def group(self, row: int) -> tuple[str, str] | None:
        """Returns the key column and the key that the instructions of a total share."""
        first = self.sheet.fields[0]
        text = self._column(first.name)[row] if first.name in KEYS else ""
        return (first.name, text) if text else None

    def _column(self, key: str) -> list[Any]:
        """The values of a column; None if unknown."""
        if key not in self._values:
            (field,) = (field for field in self.sheet.fields if field.name == key)
            self._values[key] = self._read(field)
        return self._values[key]

    def _read(self, field: Field) -> list[Any]:
        values = self.sheet.values(field.name)
        kind = self.sheet.kind(field)
        if kind == "row":
            return ["" if row is None else self._module[row].name for row in values]
        if field.kind == "flag":
            return ["" if value is None else "yes" if value else "no" for value in values]
        return [value or "" for value in values] if kind in _TEXTS else values


def _shown(kind: str, value: Any) -> str:
    if value is None:
        return "?"
    if kind in (*_TEXTS, "row"):
        return output.printable(value)
    if kind == "bytes":
        return short_bytes(value)
    if kind == "flops":
        return short(int(value), "")
    if kind == "seconds":
        return seconds(value)
    if kind in RATES:
        return output.rate(value, RATES[kind])
    if kind == "share":
        return str(output.share(value, 1))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


_TIME = field_of("total_seconds", "time", "seconds")


def instructions(analyses: Analyses) -> Sheet:
    """Every instruction with its cost, longest measured or modelled time or most FLOPs first."""
    costs = analyses.cost.table()
    opcodes = costs.values("opcode")
    shown: list[tuple[Field, list[Any]]] = [
        (costs.field(name), costs.values(name)) for name in ("instruction", "opcode")
    ]
    total: list[Any] = [None] * len(opcodes)
    if analyses.time is not None:
        total = analyses.time.table().values("total_seconds")
    shown.append((_TIME, total))
    if analyses.measured is not None:
        column = MEASURED.values(analyses.measured._data.column("seconds"))
        shown.append((MEASURED.replace(label="measured", nullable=True), column))
    times = costs.values("multiplicity")
    for key, label in (("flops", "own FLOPs"), ("bytes_accessed", "own bytes")):
        totals = [_times(*each) for each in zip(costs.values(key), times, strict=True)]
        doc = f"O{label[1:]} of all calls, without instructions inside fusions."
        shown.append((costs.field(key).replace(label=label, doc=doc, nullable=True), totals))
    fused = _fused(analyses, opcodes, costs.values("flops"), times)
    doc = "FLOPs of the instructions inside the fusion, all calls."
    shown.append((field_of("fused_flops", "FLOPs fused", "flops").replace(doc=doc), fused))
    shown.append((costs.field("multiplicity"), times))
    shown += [(costs.field(key), costs.values(key)) for key in ("shape", "phase", "scope")]
    placed = with_source(costs)
    shown.append((placed.field("source"), placed.values("source")))
    sort = "flops" if analyses.time is None else "total_seconds"
    if analyses.measured is not None:
        sort = MEASURED.name
    note = (
        "FLOPs and bytes of all calls. The FLOPs of a fusion count at the instructions inside it, "
        "with their total in FLOPs fused; its bytes count at the fusion"
    )
    table = Table.of(shown)
    columns = [name for name in table.columns if name != _TIME.name or analyses.time is not None]
    return Sheet("instructions", "Instructions", table, columns, sort=sort, note=note)


def _times(each: int | None, times: int | None) -> int | None:
    return None if each is None or times is None else each * times


def _fused(
    analyses: Analyses, opcodes: list[str], flops: list[int | None], times: list[int | None]
) -> list[int | None]:
    """FLOPs of the instructions inside each fusion, over all calls; None if unknown."""
    module = analyses.module
    sums: list[int | None] = analyses.cost.computations.values("flops")
    fusions = [row for row, opcode in enumerate(opcodes) if opcode == "fusion"]
    called = {
        row: [computation.index for computation in module[row].called_computations]
        for row in fusions
    }
    callers: dict[int, list[int]] = {}
    for row in fusions:
        for inner in called[row]:
            callers.setdefault(inner, []).append(row)
    # Unknown FLOPs make the FLOPs of all enclosing fusions unknown.
    waiting = [row for row, value in enumerate(flops) if value is None]
    while waiting:
        own = module[waiting.pop()].computation.index
        if sums[own] is not None:
            sums[own] = None
            waiting += callers.get(own, ())
    shown: list[int | None] = [0] * len(opcodes)
    for row in fusions:
        each = [sums[inner] for inner in called[row]]
        known = [value for value in each if value is not None]
        shown[row] = _times(sum(known), times[row]) if len(known) == len(each) else None
    return shown


def sheets(analyses: Analyses, contents: Contents) -> list[tuple[str, list[Sheet]]]:
    """The non-empty tables by section, instructions first."""
    sections = [("Instructions", [instructions(analyses)])]
    for section in contents.sections:
        sections.append((section.title, [sheet for sheet in section.sheets if len(sheet)]))
    return [(title, sheets) for title, sheets in sections if sheets]


class Overview(Result):
    """The verdict, and every table of the view in its initial order."""

    __slots__ = ("_instructions", "_sections", "analyses", "contents")

    VERB = "top"
    FACTS = (
        *HEAD,
        *(FIGURES[name] for name in OF_MODULE),
    )

    def __init__(self, analyses: Analyses, path: str | None = None) -> None:
        self.analyses = analyses
        self.contents = contents(analyses, path)
        self._instructions = instructions(analyses)
        self._sections: tuple[Section, ...] | None = None

    @property
    def title(self) -> str:
        """The name of the module."""
        return self.contents.title

    @property
    def _module(self) -> Module:
        return self.analyses.module

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Module, device and mesh, and the verdict."""
        return (*head(self.analyses), *(figure.fact for figure in self.contents.figures))

    @property
    def shown_facts(self) -> tuple[tuple[str, str], ...]:
        """The facts as text: measured and modelled figures on one line each."""
        return beside(self.facts, self.FACTS)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Assumptions behind the figures."""
        notes = [figure.said for figure in self.contents.figures]
        notes.append(Note("instructions", self._instructions.note))
        return tuple(notes)

    def sections(self) -> tuple[Section, ...]:
        """The non-empty tables."""
        return tuple(section for section in self.every_section() if len(section.table))

    def every_section(self) -> tuple[Section, ...]:
        """All tables."""
        if self._sections is None:
            shown = [self._instructions]
            shown += [sheet for section in self.contents.sections for sheet in section.sheets]
            self._sections = tuple(self._section(sheet) for sheet in shown)
        return self._sections

    def _section(self, sheet: Sheet) -> Section:
        rows = View(sheet, self.analyses.module).rows()
        columns = [field.name for field in sheet.fields]
        name = sheet.key.replace("-", "_")
        return Section(name, sheet.caption, sheet.table.take(rows), columns)
