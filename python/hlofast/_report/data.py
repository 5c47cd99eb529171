"""Contents of a page about one module: the verdict, and sections with charts and tables."""

from __future__ import annotations

from os import PathLike

from hlofast import _text as output
from hlofast._collectives import Collectives
from hlofast._report.step import bars
from hlofast._result import Fact
from hlofast._summary import Summary
from hlofast._time import Time
from hlofast._verdict import Verdict
from hlofast._verdict_figures import UNKNOWN_DEVICE, UNKNOWN_MESH, Figure
from hlofast._verdict_statements import Statement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hlofast import Module
    from hlofast._check import Check, Declaration
    from hlofast._report.chart import Chart
    from hlofast._report.sheet import Sheet
    from hlofast._report.step import Bar
    from hlofast._result import Result
    from hlofast.config import EffectiveConfig


class Section:
    """A part of the page."""

    __slots__ = (
        "charts", "code", "facts", "key", "notes", "sheets", "statements", "title", "unknown",
    )  # fmt: skip

    def __init__(
        self,
        key: str,
        title: str,
        *,
        facts: Iterable[tuple[str, str]] = (),
        charts: Iterable[Chart] = (),
        sheets: Iterable[Sheet] = (),
        statements: Iterable[Statement] = (),
        notes: Iterable[str] = (),
        code: tuple[str, Iterable[str]] | None = None,
        unknown: str = "",
    ) -> None:
        self.key = key
        self.title = title
        self.facts = tuple(facts)
        self.charts = tuple(charts)
        self.sheets = tuple(sheets)
        self.statements = tuple(statements)
        self.notes = tuple(notes)
        self.code = code
        """A caption and lines to copy."""
        self.unknown = unknown
        """Unknown input, the reason, and the way to supply it."""


class Contents:
    """The contents of a page."""

    __slots__ = (
        "bars", "facts", "figures", "findings", "kind", "module", "sections", "title", "up",
    )  # fmt: skip

    def __init__(
        self,
        title: str,
        kind: str,
        facts: Iterable[tuple[str, str]],
        figures: Iterable[Figure],
        findings: Iterable[Statement],
        sections: Iterable[Section],
        module: Analyses | None = None,
        bars: Iterable[Bar] = (),
        up: tuple[str, str] | None = None,
    ) -> None:
        self.up = up
        """Address and title of the page that leads here."""
        self.bars = tuple(bars)
        """Bars of a step, which come below the figures."""
        self.title = title
        self.kind = kind
        """Subject of the page: module, directory or plan."""
        self.facts = tuple(facts)
        self.figures = tuple(figures)
        self.findings = tuple(findings)
        self.sections = tuple(sections)
        self.module = module
        """Analyses of the module whose instructions can be searched; None for directories."""


class Analyses(Verdict):
    """The analyses of a module, each run once, and the check of its declaration."""

    def __init__(
        self,
        module: Module,
        config: Declaration | EffectiveConfig | str | PathLike[str] | None = None,
    ) -> None:
        super().__init__(module)
        if self.memory is not None:
            self.values = self.memory.values()
        self.check: Check | None = None
        self.no_check = ""
        if config is not None:
            import hlofast

            if isinstance(config, str | PathLike):
                config = hlofast.Declaration.load(config)
            try:
                self.check = hlofast.check(config, module)
            except (ValueError, OverflowError) as error:
                self.no_check = str(error)


def contents(analyses: Analyses, path: str | None, up: tuple[str, str] | None = None) -> Contents:
    """Returns the contents of the page about a module."""
    module = analyses.module
    facts = [("file", path or module.path or "not from a file")]
    for fact in head(analyses):
        unknown = _UNKNOWN.get(fact.name) if fact.value is None else None
        facts.append((fact.field.label, unknown or output.known_as(fact)))
    from hlofast._report import sections

    parts = sections.of_module(analyses)
    return Contents(
        module.name,
        "module",
        facts,
        analyses.figures,
        (*_checked(analyses.check), *analyses.statements),
        parts,
        analyses,
        bars(analyses),
        up,
    )


def _checked(check: Check | None) -> list[Statement]:
    """A statement if the program is not what its config declares."""
    if check is None or check.ok:
        return []
    counts = ", ".join(
        output.counted(number, severity) for severity, number in check.counts().items() if number
    )
    text = f"the program differs from {check.declaration.source or 'its declaration'}: {counts}"
    return [Statement("declared-and-compiled", text, verb="check")]


_UNKNOWN = {"device": UNKNOWN_DEVICE, "mesh": UNKNOWN_MESH}
_SUMMARY = (
    *("status", "status_reason", "backend", "backend_reason", "instructions"),
    *("implicit_instructions", "computations", "num_partitions", "replica_count"),
)
"""Facts of the summary at the head of a page."""
_ABSENT = {"implicit_instructions": 0, "num_partitions": 1, "replica_count": 1}
"""Default values, which are not shown."""
_DEVICE = tuple(field for field in Time.FACTS if field.name == "device")
_MESH = tuple(field for field in Collectives.FACTS if field.name in ("mesh", "mesh_source"))
HEAD = (*(field for field in Summary.FACTS if field.name in _SUMMARY), *_DEVICE, *_MESH)
"""The facts that can appear at the head of a page."""


def head(analyses: Analyses) -> tuple[Fact, ...]:
    """Returns the head of the page: facts about the module, its device and its mesh."""
    summary = [
        fact
        for fact in analyses.summary.facts
        if fact.name in _SUMMARY and fact.value != _ABSENT.get(fact.name)
    ]
    for result, fields in ((analyses.time, _DEVICE), (analyses.collectives, _MESH)):
        known = {} if result is None else {fact.name: fact for fact in result.facts}
        # Without a mesh, its source is not shown.
        if analyses.shares is not None and fields is _DEVICE and analyses.module.context.device:
            known = {"device": Fact(_DEVICE[0], analyses.module.context.device.name)}
        wanted = [field for field in fields if field.name in known or field.name != "mesh_source"]
        summary += [known.get(field.name) or Fact(field, None) for field in wanted]
    return tuple(summary)


def facts_of(result: Result) -> list[tuple[str, str]]:
    """Returns the facts of a result as pairs of label and text."""
    return [(fact.field.label, output.known_as(fact)) for fact in result.facts]


def notes_of(result: Result) -> list[str]:
    """Returns the texts of a result's notes."""
    return [note.text for note in result.notes]
