"""`Findings`: costs that a change to the model, its sharding or its checkpoint policy saves."""

from __future__ import annotations

from hlofast import _core, _fragment, _text
from hlofast._core import Field
from hlofast._cost import read_rules
from hlofast._memory import quiet
from hlofast._result import Fact, Note, Result, Section
from hlofast._shares import TOGETHER, devices_together
from hlofast.table import Table, of_rows

TYPE_CHECKING = False  # The command line lists findings; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from typing import Any

    from hlofast._core import Mesh
    from hlofast._cost import Rules
    from hlofast._module import Module

RULES = dict(_core._lint_rules())
"""Codes of all rules, with descriptions."""
CODES = tuple(RULES)
"""Codes of all rules."""
OPTIONS = _core._lint_options()
"""Default thresholds."""


_CODES = (
    Field("word", "code", "The rule."),
    Field("count", "findings", "Findings of this rule.", adds_up=True),
    Field("text", "what", "What the rule finds.", label="description"),
)
_FINDING = Field("index", "finding", "The number of the finding in display order, from 0.")
_EVIDENCE = (
    _FINDING,
    Field(
        "instruction",
        "instruction",
        "Evidence: an instruction; the subjects of the finding come first.",
    ),
)
_FIGURES = (
    _FINDING,
    Field("word", "figure", "The name of the figure."),
    Field("count", "value", "Its value."),
)


class Finding:
    """A cost that a change to the model, its sharding or its checkpoint policy saves.

    A finding covers one place, or several related places: places on one source line or, for some
    rules, with the same group of devices.
    """

    __slots__ = (
        "_made", "_of", "_parameters", "_renamed", "_together", "allocated_bytes", "bytes",
        "bytes_are", "called_at", "code", "figures", "flops", "instructions", "is_lower_bound",
        "message", "names", "peak_bytes", "phases", "places", "provenance", "remedy", "seconds",
        "source_file", "source_line", "values",
    )  # fmt: skip

    def __init__(self, module: Module, record: dict[str, Any]) -> None:
        self.code: str = record["code"]
        """The rule: one of `hlofast.Findings.CODES`, which are stable."""
        self.message: str = record["message"]
        """What was found, with figures."""
        self.remedy: str = record["remedy"]
        """What to change."""
        self.instructions: tuple[int, ...] = tuple(record["rows"])
        """The evidence: instruction rows.

        The subjects come first, one per place (at most 1,024), ordered by the amount at stake.
        """
        self.names: tuple[str, ...] = tuple(record["names"])
        """The names of the instructions in `instructions`."""
        self.places: int = record["places"]
        """Number of places."""
        self.bytes: int | None = record["bytes"]
        """Bytes at stake per step and device; None if not applicable or unknown."""
        self.bytes_are: str | None = record["bytes_are"] or None
        """The kind of bytes.

        `wire` (sent around a ring), `payload` (the arrays collectives work on), `memory`, or
        `traffic` (between the device and its host).
        """
        self.peak_bytes: int | None = record["peak_bytes"]
        """Bytes by which the peak of memory falls if what the finding names changes, and no more.

        None if unknown, or if the rule does not say. Less than `bytes` where other values use the
        memory that becomes free, or where the peak is at another step; more where arrays that are
        computed from those of the finding shrink with them.
        """
        self.allocated_bytes: int | None = record["allocated_bytes"]
        """Bytes by which what XLA allocates in HBM falls with that change.

        Other than `peak_bytes`, because the heap has gaps between its values, and others after the
        change. 0 if it would rise. None if unknown or if the rule does not say, for arrays that
        devices divide, and if the peak falls by less than 3 %.
        """
        self.flops: int | None = record["flops"]
        """FLOPs at stake per step; None if not applicable or unknown."""
        self.seconds: float | None = record["seconds"]
        """Modelled seconds that the bytes or FLOPs at stake take per step, without overlap.

        For `one-hot-matmul`, less those of the gather or scatter that replaces the matmul. None
        without a device, and for bytes of memory: freed memory saves time only through what it is
        used for, such as less recomputation (`Remat.policies`).
        """
        self._parameters: dict[int, str] = dict(record["values"])
        self._renamed: list[str] = record["renamed"]
        self.values: tuple[str, ...] = tuple(self._parameters.values())
        """The parameters that the finding is about (at most 64), by their names in the program."""
        self.figures: dict[str, int] = record["figures"]
        """The figures of the message."""
        self.phases: tuple[str, ...] = tuple(record["phases"])
        """The phases of the places."""
        self._made = "made at " if record["source_is_of_maker"] else ""
        self.source_file: str | None = record["source_file"]
        """Source file of the first instruction, or of the one that makes what it moves."""
        self.source_line: int | None = record["source_line"]
        """Line in `source_file`."""
        self.called_at: tuple[str, ...] = tuple(record["called_at"])
        """The lines that call the source line (`file:line`, at most 4).

        Only if it is a line of a function that several lines call, such as a helper around a
        sharding constraint.  `file:line from file:line` if the calling line is one of such a
        function too.
        """
        self.is_lower_bound: bool = record["is_lower_bound"]
        """Whether more may be at stake.

        Because of loops of unknown trip count, or because arrays shrink that the compiler may then
        not need.
        """
        self.provenance: str = record["provenance"]
        """Provenance of the stake: exact, from_backend_config, modelled or unknown."""
        self._of: str = record["bytes_of"]
        is_shared: bool = record["is_of_all_devices"]
        self._together = TOGETHER if is_shared and devices_together(module) > 1 else ""

    @property
    def at_stake(self) -> str:
        """The stake per step, as text."""
        least = "at least " if self.is_lower_bound else ""
        time = "" if self.seconds is None else f", {_text.seconds(self.seconds)}"
        if self.peak_bytes is not None:
            return f"{least}{_text.size(self.peak_bytes)} at the peak{time}"
        if self.bytes is not None:
            return f"{least}{_text.size(self.bytes)} {self._of}{self._together}{time}"
        if self.flops is None:
            return "unknown" if self.seconds is None else least + _text.seconds(self.seconds)
        return f"{least}{_text.quantity(self.flops, 'FLOP')}{self._together}{time}"

    @property
    def place(self) -> str:
        """File and line, and what calls that line if it is a helper's; empty if unknown."""
        if self.source_file is None:
            return ""
        line = "" if self.source_line is None else f":{self.source_line}"
        calls = f", called at {', '.join(self.called_at)}" if self.called_at else ""
        return f"{self._made}{self.source_file}{line}{calls}"

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names of the instructions, with parameters by their names in the program."""
        pairs = zip(self.instructions, self.names, strict=True)
        return tuple(self._parameters.get(row, name) for row, name in pairs)

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {name: getattr(self, name) for name in self.__slots__ if name[0] != "_"}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Finding):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    # Findings compare by value and hold a dict, so they are not hashable, although `object`
    # declares a hash.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Finding {self.code}: {self.message}>"


class Findings(Result):
    """The findings of a module, most at stake first: `Module.lint()`.

    If the device is known, findings are ordered by modelled seconds; findings without seconds come
    last, ordered by bytes and FLOPs. Where the step does not fit the device, findings about memory
    come first.

    Options of `Module.lint`:

    - `order_flops_per_byte`: FLOPs that weigh as much as one byte when findings are sorted.
    - `min_share`: least share at stake, of the payload or wire bytes of all collectives, or of the
      FLOPs of all matmuls.
    - `min_replicated_share`: least share of all parameter bytes that sharding replicated parameters
      saves, and least share of the peak by which recomputing kept masks lowers it.
    - `min_undonated_bytes`: least bytes of state that is not donated.
    - `overlap_flops_per_byte`: least FLOPs between start and done of an asynchronous collective,
      per byte sent, for it to count as overlapped.
    """

    VERB = "lint"
    FACTS = (
        Field("word", "status", "Compilation stage of the module."),
        Field("count", "findings", "Number of findings."),
        Field("name", "device", "The chip whose time model orders the findings.", nullable=True),
        Field("number", "min_share", "Threshold: minimum share at stake, of the payload or wire "
              "bytes of all collectives or of the FLOPs of all matmuls."),
        Field("number", "min_replicated_share",
              "Threshold: minimum share of all parameter bytes that sharding replicated parameters "
              "saves, and of the peak by which recomputing kept masks lowers it."),
        Field("bytes", "min_undonated_bytes",
              "Threshold: minimum bytes of state that is not donated."),
        Field("number", "overlap_flops_per_byte",
              "Threshold: FLOPs between start and done, per byte sent, that count as overlap."),
        Field("number", "order_flops_per_byte",
              "FLOPs that weigh as much as one byte when findings are sorted."),
    )  # fmt: skip
    CODES = CODES
    """Codes of all rules."""
    RULES = RULES
    """Codes of all rules, with descriptions."""

    __slots__ = ("_findings", "_rules", "_table", "mesh", "module", "options")

    def __init__(
        self,
        module: Module,
        mesh: Mesh | None,
        rules: list[tuple[str, str]] | None,
        options: dict[str, float],
    ) -> None:
        chip = module.context.device
        parts = None if chip is None else chip._parts()
        records, columns = _core._cost(module, rules=rules).lint(mesh, parts, **options)
        self.module = module
        """The module."""
        self.mesh: Mesh | None = mesh
        """The mesh that was given."""
        self.options: dict[str, float] = OPTIONS | options
        """The thresholds."""
        self._rules = rules
        self._findings = tuple(Finding(module, own) for own in records)
        self._table = Table.__new__(Table)
        self._table._keep(columns)

    def of(self, code: str) -> tuple[Finding, ...]:
        """Returns the findings of rule `code`; raises `ValueError` for an unknown code."""
        if code not in CODES:
            raise ValueError(f"code must be one of {', '.join(CODES)}, not {code!r}")
        return tuple(finding for finding in self if finding.code == code)

    def counts(self) -> dict[str, int]:
        """Returns the number of findings by code, for codes that occur."""
        counts: dict[str, int] = {}
        for finding in self:
            counts[finding.code] = counts.get(finding.code, 0) + 1
        return counts

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The number of findings, and the thresholds."""
        chip = self.module.context.device
        values = {
            "status": self._status,
            "findings": len(self),
            "device": None if chip is None else chip.name,
            **self.options,
        }
        known = {"device": "configuration"} | dict.fromkeys(self.options, "assumed")
        return tuple(
            Fact(own, values[own.name], known.get(own.name, "exact")) for own in self.FACTS
        )

    @property
    def _status(self) -> str:
        return self.module.summary().status

    @property
    def _fits(self) -> bool | None:
        """Whether the step fits the device; None if unknown."""
        if self.module.context.device is None:
            return None
        try:
            facts = quiet(self.module).facts
        except (ValueError, OverflowError):
            return None
        return next((fact.value for fact in facts if fact.name == "fits"), None)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Reservations about the findings."""
        if pieces := _fragment.notes(self.module):
            return pieces
        notes = []
        if not len(self) and self._fits is False:
            text = (
                "no rule has a finding above its threshold, but the step does not fit the device: "
                "`hlofast memory` shows what holds its memory; `hlofast remat` shows whether a "
                "checkpoint policy fits, or what else would help"
            )
            notes.append(Note("too-large", text))
        elif not len(self) and self.module.summary().is_unfused:
            text = (
                f"no lint rule has a finding, but the module is {self._status}: rules about "
                "donation, padding, replicated work, overlap and time need the text after "
                "optimisation"
            )
            notes.append(Note("unfinished", text))
        elif not len(self):
            text = "nothing to change: no lint rule has a finding above its threshold"
            notes.append(Note("nothing-to-change", text))
        leading = self[0] if len(self) else None
        if leading and leading.bytes_are == "memory" and any(own.seconds for own in self):
            text = "the step does not fit the device: findings about memory come first"
            notes.append(Note("memory-first", text))
        if len(self) and self.module.summary().is_unfused:
            text = f"the module is {self._status}: later passes may remove some of these findings"
            notes.append(Note("unfinished", text))
        return tuple(notes)

    def sections(self, only: Container[str] = RULES) -> tuple[Section, ...]:
        """Findings by code, the findings, their evidence and figures, for the codes in `only`."""
        counts = [(code, n, RULES[code]) for code, n in self.counts().items() if code in only]
        chosen = [(number, own) for number, own in enumerate(self) if own.code in only]
        evidence = [(number, row) for number, own in chosen for row in own.instructions]
        figures = [
            (number, name, value) for number, own in chosen for name, value in own.figures.items()
        ]
        said: set[str] = set()
        paragraphs = []
        for _, own in chosen:
            paragraphs.append((f"{own.code}: {own.at_stake}", _words(own, own.remedy in said)))
            said.add(own.remedy)
        table = self._table.take(number for number, _ in chosen)
        return (
            Section("codes", "By code", of_rows(_CODES, counts)),
            Section("findings", "Findings", table, paragraphs=paragraphs),
            # The paragraphs of the findings contain both.
            Section("evidence", "Evidence", of_rows(_EVIDENCE, evidence), paragraphs=()),
            Section("figures", "Figures of findings", of_rows(_FIGURES, figures), paragraphs=()),
        )

    def table(self) -> Table:
        """Returns one row per finding; `Table.fields` describes the columns."""
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


def _words(finding: Finding, is_said: bool) -> list[tuple[str, str]]:
    """A finding as labelled lines: message, remedy unless said before, evidence, place."""
    where = (", ".join(finding.phases), finding.place, finding.provenance)
    evidence = finding.shown_names
    rest = [name for name in finding._renamed if name not in evidence]
    values = [("values", _text.names(rest))] if rest else []
    return [
        ("found", finding.message),
        ("remedy", f"as above ({finding.code})" if is_said else finding.remedy),
        *values,
        ("evidence", _text.names(evidence)),
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
