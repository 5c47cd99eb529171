"""What a page about one module shows: the verdict, and sections with charts and tables."""

from __future__ import annotations

from os import PathLike

from hlofast import _text as output
from hlofast._collectives import MESH_SOURCES
from hlofast._verdict import UNKNOWN_DEVICE, UNKNOWN_MESH, Figure, Statement, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hlofast import Mesh, Module
    from hlofast._check import Check, Declaration
    from hlofast._report.chart import Chart
    from hlofast._report.sheet import Sheet
    from hlofast._result import Result
    from hlofast._time import Time
    from hlofast.config import EffectiveConfig
    from hlofast.devices import Device


class Section:
    """A part of the page."""

    __slots__ = ("charts", "facts", "key", "notes", "sheets", "statements", "title", "unknown")

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
        unknown: str = "",
    ) -> None:
        self.key = key
        self.title = title
        self.facts = tuple(facts)
        self.charts = tuple(charts)
        self.sheets = tuple(sheets)
        self.statements = tuple(statements)
        self.notes = tuple(notes)
        self.unknown = unknown
        """What is not known, why, and how to give it."""


class Contents:
    """All that a page shows."""

    __slots__ = ("facts", "figures", "findings", "kind", "module", "sections", "title")

    def __init__(
        self,
        title: str,
        kind: str,
        facts: Iterable[tuple[str, str]],
        figures: Iterable[Figure],
        findings: Iterable[Statement],
        sections: Iterable[Section],
        module: Analyses | None = None,
    ) -> None:
        self.title = title
        self.kind = kind
        """What the page is about: a module or a dump directory."""
        self.facts = tuple(facts)
        self.figures = tuple(figures)
        self.findings = tuple(findings)
        self.sections = tuple(sections)
        self.module = module
        """Whose instructions can be searched; None for directories."""


class Analyses(Verdict):
    """A module with what was found out about it, each analysis once, and what was declared."""

    def __init__(
        self,
        module: Module,
        device: Device | None,
        mesh: Mesh | None,
        config: Declaration | EffectiveConfig | str | PathLike[str] | None,
    ) -> None:
        super().__init__(module, device, mesh)
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


def contents(found: Analyses, path: str | None) -> Contents:
    """The page about a module."""
    module, summary = found.module, found.summary
    values = summary.values
    mesh = found.mesh
    devices = _devices(values)
    facts = [
        ("file", path or module.path or "not from a file"),
        ("status", f"{summary.status} ({values['status_reason']})"),
        (
            "backend",
            f"{summary.backend} ({values['backend_reason']})" if summary.backend else "unknown",
        ),
        (
            "size",
            f"{output.counted(values['instructions'], 'instruction')} in "
            f"{output.counted(values['computations'], 'computation')}"
            f"{_implied(values['implicit_instructions'])}",
        ),
        *([("devices", devices)] if devices else ()),
        ("device", UNKNOWN_DEVICE if found.time is None else _device(found.time)),
        (
            "mesh",
            UNKNOWN_MESH if mesh is None else _mesh(found, mesh),
        ),
    ]
    from hlofast._report import sections

    parts = sections.of_module(found)
    return Contents(module.name, "module", facts, found.figures, found.statements, parts, found)


def _devices(values: dict[str, Any]) -> str:
    """Empty where both are 1, which is also what headers without these attributes mean."""
    partitions, replicas = values["num_partitions"], values["replica_count"]
    if partitions == replicas == 1:
        return ""
    return f"{output.counted(partitions, 'partition')}, {output.counted(replicas, 'replica')}"


def _implied(count: int) -> str:
    return f"; the text implies {count:,} more" if count else ""


def _mesh(found: Analyses, mesh: Mesh) -> str:
    """The mesh, and where it is from."""
    source = found.collectives.mesh_source or "given"
    return f"{mesh} ({MESH_SOURCES[source]})"


def _device(time: Time) -> str:
    return f"{time.device.label} ({time.device.name}), modelled"


def facts_of(result: Result) -> list[tuple[str, str]]:
    """The facts of a result as text: what they are, their values."""
    return [(fact.field.label, output.known_as(fact)) for fact in result.facts]


def notes_of(result: Result) -> list[str]:
    """What is to be kept in mind about a result."""
    return [note.text for note in result.notes]
