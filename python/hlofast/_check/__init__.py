"""Compares a declaration with a compiled program: `check`, `Check`, `Declaration`.

`declaration.py` describes the intended program, `program.py` reads the compiled one. One file per
kind of comparison makes rows (`comparison.py`) from both. `expectations.py` holds further
requirements of a test or a CI gate.
"""

from __future__ import annotations

from os import PathLike

from hlofast._check.axes import collective_axes, device_count, unexplained
from hlofast._check.comparison import AGREES, CODES, ERROR, NOTE, SEVERITIES, Comparison, table
from hlofast._check.declaration import (
    Declaration,
    DeclaredParameter,
    DeclaredValue,
    Prediction,
    path_of,
)
from hlofast._check.donation import donation
from hlofast._check.expectations import Expectations, expectations
from hlofast._check.kept import kept_values
from hlofast._check.kinds import kinds
from hlofast._check.loops import accumulation, layers
from hlofast._check.parameters import shardings
from hlofast._check.program import Program
from hlofast._check.sizes import differing_sizes
from hlofast._check.totals import flops, gathered_bytes, offloaded_bytes, peak, state_bytes
from hlofast._core import Field
from hlofast._result import Fact, Result, Section
from hlofast._text import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from hlofast._module import Module
    from hlofast.config import EffectiveConfig
    from hlofast.table import Table

__all__ = [
    "Check", "Comparison", "Declaration", "DeclaredParameter", "DeclaredValue", "Expectations",
    "Prediction", "check", "path_of",
]  # fmt: skip


def _gaps(program: Program) -> Iterator[Comparison]:
    """Parts that the declaration leaves open."""
    for place, why in program.declaration.gaps:
        yield Comparison("not-declared", NOTE, place, "not known", "not compared", why)


_COMPARISONS = (
    _gaps,
    device_count,
    collective_axes,
    kinds,
    shardings,
    kept_values,
    layers,
    accumulation,
    donation,
    state_bytes,
    offloaded_bytes,
    gathered_bytes,
    flops,
    peak,
    unexplained,
)


_CAUSES = frozenset(
    ("sizes", "layer-loops", "accumulation-steps", "device-count", "matmul-types", "attention")
)
"""Comparisons from which others follow."""
_PARAGRAPH = ("subject", "declared", "compiled", "message", "name")
_LABELS = ("subject", "declared", "compiled", "conclusion", "evidence")


class Check(Result):
    """The comparison of a declaration with a compiled module: `hlofast.check(declaration, module)`.

    Only declared properties are compared.
    """

    CODES = CODES
    """Descriptions of the comparisons, by code."""
    SEVERITIES = SEVERITIES
    """All severities, most severe first."""

    __slots__ = ("_comparisons", "declaration", "expectations", "module")

    VERB = "check"
    FACTS = (
        Field("text", "declared_by", "The source of the declaration and of the limits."),
        Field("text", "mesh", "The declared mesh, otherwise that of the module."),
        Field("flag", "ok", "Whether the check found no errors."),
        Field("count", "error", "Comparisons that fail.", label="errors"),
        Field("count", "warning", "Differences that are probably unintended.", label="warnings"),
        Field(
            "count",
            "note",
            "Differences that may be intended, and parts that are not compared.",
            label="notes",
        ),
        Field("count", "agrees", "Comparisons that agree."),
    )

    def __init__(
        self, declaration: Declaration, module: Module, expected: Expectations | None
    ) -> None:
        self.declaration = declaration
        """The declaration."""
        self.module = module
        """The compiled module."""
        self.expectations = expected
        """Further expectations; None if there are none."""
        program = Program(declaration, module)
        comparisons: list[Comparison] = []
        for compare in _COMPARISONS:
            comparisons += compare(program)
            if compare is device_count and comparisons and comparisons[-1].severity == ERROR:
                # If the number of devices differs, every other figure differs too.
                break
            if compare is device_count:
                # Figures that depend on a size that differs are compared at the program's own size.
                sizes, changed = differing_sizes(program)
                comparisons += sizes
                if changed is not None:
                    program = Program(changed, module)
        if expected is not None:
            comparisons += expectations(program, expected)
        self._comparisons: tuple[Comparison, ...] = tuple(comparisons)

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self._comparisons)

    def __len__(self) -> int:
        return len(self._comparisons)

    @property
    def comparisons(self) -> Table:
        """All comparisons, in the order of `CODES`."""
        return table(self._comparisons, self.module)

    @property
    def findings(self) -> Table:
        """Comparisons that do not agree: errors first, then by bytes at stake."""
        return table(self.found(), self.module)

    def found(self, *codes: str) -> tuple[Comparison, ...]:
        """The findings, optionally only of `codes`: errors first, then by bytes at stake.

        Of each severity those come first that others follow from: another model or batch.
        """
        unknown = [code for code in codes if code not in CODES]
        if unknown:
            raise ValueError(f"no comparison {unknown[0]!r}; one of {', '.join(CODES)}")
        findings = [
            comparison
            for comparison in self._comparisons
            if comparison.severity != AGREES and (not codes or comparison.code in codes)
        ]
        findings.sort(
            key=lambda comparison: (
                SEVERITIES.index(comparison.severity),
                comparison.code not in _CAUSES,
                -(comparison.bytes or 0),
            )
        )
        return tuple(findings)

    @property
    def ok(self) -> bool:
        """Whether the check found no errors."""
        return all(comparison.severity != ERROR for comparison in self._comparisons)

    def counts(self) -> dict[str, int]:
        """Number of comparisons of each severity."""
        counts = dict.fromkeys(SEVERITIES, 0)
        for comparison in self._comparisons:
            counts[comparison.severity] += 1
        return counts

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The source and mesh of the declaration, and the number of comparisons by severity."""
        source = self.declaration.source
        mesh = self.declaration.mesh or self.module.context.mesh or self.module.mesh()
        shape = None if mesh is None else ",".join(f"{own}={mesh.shape[own]}" for own in mesh.shape)
        if self.expectations is not None:
            # Limits may stand without a declaration.
            both = self.declaration != Declaration(source=source)
            source = f"{source}, {self.expectations.source}" if both else self.expectations.source
        values = (source, shape, self.ok, *self.counts().values())
        return tuple(map(Fact, self.FACTS, values))

    def sections(self, *, agreeing: bool = False) -> tuple[Section, ...]:
        """The findings, then the collectives by axes, or all comparisons that agree."""
        same = self._agreeing() if agreeing else self._collective_axes()
        return (self._findings(), same)

    def every_section(self) -> tuple[Section, ...]:
        """All sections."""
        return (self._findings(), self._agreeing(), self._collective_axes())

    def _findings(self) -> Section:
        findings = self.findings
        paragraphs = []
        for row in findings:
            stake = f": {size(row['bytes'])}" if row["bytes"] else ""
            texts = zip(_LABELS, (row[name] for name in _PARAGRAPH), strict=True)
            lines = [(label, text) for label, text in texts if text]
            paragraphs.append((f"{row['severity']}: {row['code']}{stake}", lines))
        return Section("findings", "Findings", findings, paragraphs=paragraphs)

    def _agreeing(self) -> Section:
        agreeing = [comparison for comparison in self._comparisons if comparison.severity == AGREES]
        shown = ("code", "subject", "compiled", "message")
        rows = table(agreeing, self.module)
        return Section(
            "agreeing",
            "As declared",
            rows,
            shown,
            is_whole=True,
            figure="compiled",
            named="subject",
        )

    def _collective_axes(self) -> Section:
        comparisons = [
            comparison
            for comparison in self._comparisons
            if comparison.severity == AGREES and comparison.code == "collective-axes"
        ]
        rows, shown = table(comparisons, self.module), ("subject", "bytes", "message")
        return Section("collective_axes", "Collectives by axes", rows, shown, is_whole=True)

    def __reduce__(self) -> tuple[object, ...]:
        return Check, (self.declaration, self.module, self.expectations)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {severity}" for severity, count in self.counts().items())
        return f"<Check of {self.module.name} against {self.declaration.source}: {counts}>"


def check(
    declaration: Declaration | EffectiveConfig | str | PathLike[str],
    module: Module,
    expected: Expectations | Mapping[str, Any] | str | PathLike[str] | None = None,
) -> Check:
    """Compares a declaration with a compiled module.

    `declaration` is a `Declaration`, the path of a TOML file, or an AXLearn config on an instance
    (`hlofast.config.load(path).select(instance)`). `expected` adds expectations: an `Expectations`,
    a mapping of the same form, or the path of a TOML file. Raises `OSError` or `ValueError` if a
    file cannot be read, and `ValueError` or `OverflowError` if the module's memory cannot be
    analysed.
    """
    if isinstance(declaration, str | PathLike):
        declaration = Declaration.load(declaration)
    elif not isinstance(declaration, Declaration):
        from hlofast._check.trainer import declaration_of

        declaration = declaration_of(declaration)
    if isinstance(expected, str | PathLike):
        expected = Expectations.load(expected)
    elif expected is not None and not isinstance(expected, Expectations):
        expected = Expectations(expected)
    return Check(declaration, module, expected)
