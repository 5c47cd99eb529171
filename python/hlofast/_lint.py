"""`Findings`: what a program does that a change to the model or its sharding would save."""

from __future__ import annotations

from hlofast import _core, _text
from hlofast._core import Field
from hlofast._cost import read_rules
from hlofast._result import Fact, Note, Result, Section
from hlofast.table import Table, of_rows

TYPE_CHECKING = False  # The command line lists findings; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from typing import Any

    from hlofast._core import Mesh
    from hlofast._cost import Rules
    from hlofast._module import Module

RULES = dict(_core._lint_rules())
"""The names of all findings, and what each is."""
CODES = tuple(RULES)
"""The names of all findings."""
OPTIONS = _core._lint_options()
"""From where on something is a finding."""


_CODES = (
    Field("word", "code", "The rule."),
    Field("count", "findings", "Findings of it.", adds_up=True),
    Field("text", "what", "What it finds."),
)
_FINDING = Field("index", "finding", "The number of the finding, from 0, in their order.")
_EVIDENCE = (
    _FINDING,
    Field("instruction", "instruction", "An instruction that proves it, the subjects first."),
)
_FIGURES = (
    _FINDING,
    Field("word", "figure", "What the number is."),
    Field("count", "value", "The number behind the message."),
)


class Finding:
    """Something that a change to the model, its sharding or its checkpoint policy would save.

    Found at one or several places that belong together: those of one source line, or, of some
    rules, of the same devices.
    """

    __slots__ = (
        "bytes", "bytes_are", "code", "figures", "flops", "instructions", "is_lower_bound",
        "message", "names", "phases", "places", "provenance", "remedy", "source_file",
        "source_line",
    )  # fmt: skip

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

    @property
    def at_stake(self) -> str:
        """What is at stake in a step, in words."""
        least = "at least " if self.is_lower_bound else ""
        if self.bytes is not None:
            return f"{least}{_text.size(self.bytes)} {self.bytes_are}"
        return "unknown" if self.flops is None else least + _text.quantity(self.flops, "FLOP")

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


class Findings(Result):
    """The findings of a module, those with most at stake first: `Module.lint()`.

    A byte counts as much in that order as `order_flops_per_byte` FLOPs. Other options of
    `Module.lint`: `min_share`, the share of the payload (wire bytes) of all collectives, or of the
    FLOPs of all matrix products, that a finding has at stake at least; `min_replicated_share`, the
    share of the bytes of all parameters that sharding replicated ones saves at least;
    `overlap_flops_per_byte`, how many FLOPs are scheduled between the start and the end of an
    asynchronous collective at least, for each byte it sends, if it is overlapped.
    """

    VERB = "lint"
    FACTS = (
        Field("word", "status", "How far the compiler has come."),
        Field("count", "findings", "Findings."),
        Field("number", "min_share", "Least share at stake: of the payload or wire bytes of all "
              "collectives, or of the FLOPs of all matrix products."),
        Field("number", "min_replicated_share",
              "Least share of the bytes of all parameters that sharding replicated ones saves."),
        Field("number", "overlap_flops_per_byte",
              "FLOPs between start and end, for each byte sent, that count as overlap."),
        Field("number", "order_flops_per_byte",
              "How many FLOPs a byte counts in the order of the findings."),
    )  # fmt: skip
    CODES = CODES
    """The names of all findings."""
    RULES = RULES
    """The names of all findings, and what each is."""

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

    @property
    def facts(self) -> tuple[Fact, ...]:
        """How many findings there are, and from where on something is one."""
        values = {"status": self._status, "findings": len(self), **self.options}
        return tuple(
            Fact(own, values[own.name], "assumed" if own.name in self.options else "exact")
            for own in self.FACTS
        )

    @property
    def _status(self) -> str:
        return self.module.summary().status

    @property
    def notes(self) -> tuple[Note, ...]:
        """What to keep in mind about the findings."""
        if not self.module.summary().is_unfused:
            return ()
        text = f"the module is {self._status}: compilers may yet change some of what is found"
        return (Note("unfinished", text),)

    def sections(self, only: Container[str] = RULES) -> tuple[Section, ...]:
        """How many findings of each code, the findings in words, and what proves them.

        `only` those of these codes.
        """
        counts = [(code, n, RULES[code]) for code, n in self.counts().items() if code in only]
        chosen = [(number, own) for number, own in enumerate(self) if own.code in only]
        evidence = [(number, row) for number, own in chosen for row in own.instructions]
        figures = [
            (number, name, value) for number, own in chosen for name, value in own.figures.items()
        ]
        paragraphs = [(f"{own.code}: {own.at_stake}", _words(own)) for _, own in chosen]
        table = self._table.take(number for number, _ in chosen)
        return (
            Section("codes", "By code", of_rows(_CODES, counts)),
            Section("findings", "Findings", table, paragraphs=paragraphs),
            # The words name them.
            Section("evidence", "What proves them", of_rows(_EVIDENCE, evidence), paragraphs=()),
            Section("figures", "Figures in them", of_rows(_FIGURES, figures), paragraphs=()),
        )

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


def _words(finding: Finding) -> list[tuple[str, str]]:
    """A finding in words: what was found, the remedy, what shows it, where."""
    source = None
    if finding.source_file is not None:
        source = f"{finding.source_file}:{finding.source_line}"
    where = (", ".join(finding.phases), source, finding.provenance)
    return [
        ("found", finding.message),
        ("change", finding.remedy),
        ("shown by", _text.names(finding.names)),
        ("where", "; ".join(part for part in where if part)),
    ]


def lint(
    module: Module, mesh: Mesh | None, rules: Rules | None, options: dict[str, float] | None
) -> Findings:
    """`Module.lint`."""
    unknown = [name for name in options or {} if name not in OPTIONS]
    if unknown:
        raise TypeError(f"lint() got an unexpected keyword argument {unknown[0]!r}")
    read = None if rules is None else read_rules(rules)
    return Findings(module, mesh, read, options or {})
