"""`Findings`: what a program does that a change to the model or its sharding would save."""

from __future__ import annotations

from hlofast import _core
from hlofast._cost import read_rules
from hlofast.table import Table

TYPE_CHECKING = False  # The command line lists findings; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast._core import Mesh
    from hlofast._cost import Rules
    from hlofast._module import Module

CODES = tuple(_core._lint_codes())
"""The names of all findings."""
OPTIONS = _core._lint_options()
"""From where on something is a finding."""


class Finding:
    """Something that a change to the model, its sharding or its checkpoint policy would save.

    Found at one or several places that belong together: those of one source line, or, of some
    rules, of the same devices.
    """

    __slots__ = (
        "bytes",
        "bytes_are",
        "code",
        "figures",
        "flops",
        "instructions",
        "is_lower_bound",
        "message",
        "names",
        "phases",
        "places",
        "provenance",
        "remedy",
        "source_file",
        "source_line",
    )

    def __init__(self, module: Module, found: dict[str, Any]) -> None:
        self.code: str = found["code"]
        """What it is: one of `hlofast.Findings.CODES`, which are stable."""
        self.message: str = found["message"]
        """What was found, with the numbers."""
        self.remedy: str = found["remedy"]
        """What to change."""
        self.instructions: tuple[int, ...] = tuple(found["rows"])
        """The rows that prove it.

        First what it is about, one for each place (1,024 at most), most at stake first.
        """
        self.names: tuple[str, ...] = tuple(module[row].name for row in self.instructions)
        """Their names."""
        self.places: int = found["places"]
        """At how many places."""
        self.bytes: int | None = found["bytes"]
        """Bytes at stake in a step on each device; None if there are none or they are unknown."""
        self.bytes_are: str | None = found["bytes_are"] or None
        """`wire` (sent around a ring), `payload` (the arrays collectives work on) or `memory`."""
        self.flops: int | None = found["flops"]
        """FLOPs at stake in a step; None if there are none or they are unknown."""
        self.figures: dict[str, int] = found["figures"]
        """The numbers behind the message."""
        self.phases: tuple[str, ...] = tuple(found["phases"])
        """The phases of the places."""
        self.source_file: str | None = found["source_file"]
        """Where the first instruction comes from."""
        self.source_line: int | None = found["source_line"]
        """Likewise."""
        self.is_lower_bound: bool = found["is_lower_bound"]
        """Whether more may be at stake: inside loops of unknown trip count."""
        self.provenance: str = found["provenance"]
        """How what is at stake is known: exact, from_backend_config, modelled or unknown."""

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Finding):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    # What compares by value and may hold lists is not hashable; object's type says otherwise.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Finding {self.code}: {self.message}>"


class Findings:
    """The findings of a module, those with most at stake first: `Module.lint()`.

    A byte counts as much in that order as `order_flops_per_byte` FLOPs. Other options of
    `Module.lint`: `min_share`, the share of the payload (wire bytes) of all collectives, or of the
    FLOPs of all matrix products, that a finding has at stake at least; `min_replicated_share`, the
    share of the bytes of all parameters that sharding replicated ones saves at least;
    `overlap_flops_per_byte`, how many FLOPs are scheduled between the start and the end of an
    asynchronous collective at least, for each byte it sends, if it is overlapped.
    """

    CODES = CODES
    """The names of all findings."""

    __slots__ = ("_findings", "_rules", "_table", "mesh", "module", "options")

    def __init__(
        self,
        module: Module,
        mesh: Mesh | None,
        rules: list[tuple[str, str]] | None,
        options: dict[str, float],
    ) -> None:
        found, columns = _core._cost(module, rules=rules).lint(mesh, **options)
        self.module = module
        """The module."""
        self.mesh: Mesh | None = mesh
        """The mesh that was given."""
        self.options: dict[str, float] = OPTIONS | options
        """From where on something is a finding."""
        self._rules = rules
        self._findings = tuple(Finding(module, own) for own in found)
        self._table = Table(columns)

    def of(self, code: str) -> tuple[Finding, ...]:
        """The findings called `code`; a `ValueError` if there is no such code."""
        if code not in CODES:
            raise ValueError(f"no finding {code!r}; one of {', '.join(CODES)}")
        return tuple(finding for finding in self if finding.code == code)

    def counts(self) -> dict[str, int]:
        """How many findings there are of each code that occurs."""
        counts: dict[str, int] = {}
        for finding in self:
            counts[finding.code] = counts.get(finding.code, 0) + 1
        return counts

    def table(self) -> Table:
        """One row per finding; `Table.fields` says what the columns are."""
        return self._table

    def __len__(self) -> int:
        return len(self._findings)

    def __getitem__(self, index: int) -> Finding:
        return self._findings[index]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._findings)

    def __reduce__(self) -> tuple[object, ...]:
        return Findings, (self.module, self.mesh, self._rules, self.options)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {code}" for code, count in self.counts().items())
        return f"<Findings: {counts or 'none'}>"


def lint(
    module: Module, mesh: Mesh | None, rules: Rules | None, options: dict[str, float] | None
) -> Findings:
    """`Module.lint`."""
    unknown = [name for name in options or {} if name not in OPTIONS]
    if unknown:
        raise TypeError(f"lint() got an unexpected keyword argument {unknown[0]!r}")
    read = None if rules is None else read_rules(rules)
    return Findings(module, mesh, read, options or {})
