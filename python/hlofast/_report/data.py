"""What a page about one module shows: the verdict, and sections with charts and tables."""

from __future__ import annotations

import warnings
from os import PathLike

from hlofast import _text as output
from hlofast._collectives import Collectives
from hlofast._core import Field
from hlofast._result import Fact, Note
from hlofast._summary import Summary
from hlofast._time import Time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hlofast import Module
    from hlofast._check import Check, Declaration
    from hlofast._memory import Memory
    from hlofast._report.chart import Chart
    from hlofast._report.sheet import Sheet
    from hlofast._result import Result
    from hlofast.config import EffectiveConfig

UNKNOWN_DEVICE = "no device is given: hlofast report --device NAME, or module.report(device=NAME)"
UNKNOWN_MESH = "no mesh is known: hlofast report --mesh data=2,model=4, or module.report(mesh=…)"


FIGURES = {
    field.name: field
    for field in (
        Field("seconds", "step", "What a step takes on the device, or the longest program."),
        Field("ratio", "mfu", "Model FLOPs utilisation: the part of the device's peak."),
        Field("bytes", "peak", "The most bytes alive at once."),
        Field("seconds", "exposed", "What a step waits for collectives."),
        Field("flops", "flops", "Floating-point operations of a step, or of the largest program."),
        Field("bytes", "bytes", "Bytes of HBM that a step reads and writes."),
        Field("count", "programs", "Programs that a directory holds."),
        Field("bytes", "live_peak", "The largest peak of all programs."),
        Field("bytes", "wire_bytes", "The most bytes that each device sends in one program."),
        Field("count", "differing", "Programs that hosts compiled differently."),
    )
}
"""What figures can stand first."""


class Figure:
    """A figure of the verdict."""

    __slots__ = ("how", "key", "label", "note", "text", "value")

    def __init__(
        self,
        key: str,
        label: str,
        value: float | None,
        text: str,
        note: str,
        how: str = "modelled",
    ) -> None:
        self.key = key
        self.label = label
        self.value = value
        """As the API has it; None where it is not known."""
        self.text = f"at least {text}" if how == "bound" else text
        self.note = note
        self.how = how
        """How it is known, one of `hlofast._result.PROVENANCES`."""

    @property
    def fact(self) -> Fact:
        """The figure as results have it."""
        field = FIGURES[self.key].replace(label=self.label)
        value = int(self.value) if field.kind in _WHOLE and self.value is not None else self.value
        return Fact(field, value, "exact" if field.kind == "count" else self.how)

    @property
    def said(self) -> Note:
        """What it rests on, or how to give what is missing."""
        return Note(self.key, f"{self.label}: {self.note}")


_WHOLE = ("bytes", "flops", "count")


class Statement:
    """Something to know or to change."""

    __slots__ = ("code", "lines", "place", "proof", "remedy", "stake", "text", "verb")

    def __init__(
        self,
        code: str,
        text: str = "",
        *,
        lines: Iterable[tuple[str, str]] = (),
        stake: str = "",
        remedy: str = "",
        place: str = "",
        proof: Iterable[tuple[int, str]] = (),
        verb: str = "",
    ) -> None:
        self.code = code
        self.text = text
        self.lines = tuple(lines)
        """Labels with texts, where a result says several things of it."""
        self.stake = stake
        self.remedy = remedy
        self.place = place
        self.proof = tuple(proof)
        """Rows and names of instructions that show it."""
        self.verb = verb
        """The verb of the command line that lists it too."""


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


class Analyses:
    """A module with what was found out about it in its context, each analysis once."""

    def __init__(
        self,
        module: Module,
        config: Declaration | EffectiveConfig | str | PathLike[str] | None = None,
    ) -> None:
        self.module = module
        self.summary = module.summary()
        self.cost = module.cost()
        self.collectives = module.collectives()
        self.time: Time | None = None
        if module.context.device is not None:
            self.time = module.time()
        self.findings = module.lint()
        self.remat = module.remat()
        self.memory: Memory | None = None
        self.no_memory = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # The notes say it too.
                self.memory = module.memory()
                self.memory.xla  # noqa: B018 - raises where memory cannot be analysed.
                self.values = self.memory.values()
        except (ValueError, OverflowError) as error:
            self.memory = None
            self.no_memory = str(error)
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

    @property
    def per_device_hbm(self) -> float | None:
        """Bytes of HBM that a program may use on the device; None if they are not known."""
        budget = self.module.context.hbm
        if budget is not None:
            return budget
        if self.time is None:
            return None
        for figure in ("hbm_usable_bytes", "hbm_bytes"):
            if self.time.device.value(figure) is not None:
                try:
                    return self.time.device.per_jax_device(figure)
                except ValueError:
                    return None
        return None


def contents(found: Analyses, path: str | None) -> Contents:
    """The page about a module."""
    module = found.module
    facts = [("file", path or module.path or "not from a file")]
    for fact in head(found):
        unknown = _UNKNOWN.get(fact.name) if fact.value is None else None
        facts.append((fact.field.label, unknown or output.known_as(fact)))
    from hlofast._report import sections

    statements = [*_findings(found), *sections.advice(found)]
    parts = sections.of_module(found)
    return Contents(module.name, "module", facts, _verdict(found), statements, parts, found)


_UNKNOWN = {"device": UNKNOWN_DEVICE, "mesh": UNKNOWN_MESH}
_SUMMARY = (
    *("status", "status_reason", "backend", "backend_reason", "instructions"),
    *("implicit_instructions", "computations", "num_partitions", "replica_count"),
)
"""What the head of a page takes from the summary."""
_ABSENT = {"implicit_instructions": 0, "num_partitions": 1, "replica_count": 1}
"""What headers without these attributes mean, too, so that nobody needs to read it."""
_DEVICE = tuple(field for field in Time.FACTS if field.name == "device")
_MESH = tuple(field for field in Collectives.FACTS if field.name in ("mesh", "mesh_source"))
HEAD = (*(field for field in Summary.FACTS if field.name in _SUMMARY), *_DEVICE, *_MESH)
"""The facts that can stand at the head of a page."""


def head(found: Analyses) -> tuple[Fact, ...]:
    """What the module is and where it is seen to run: facts of its analyses."""
    summary = [
        fact
        for fact in found.summary.facts
        if fact.name in _SUMMARY and fact.value != _ABSENT.get(fact.name)
    ]
    for result, fields in ((found.time, _DEVICE), (found.collectives, _MESH)):
        known = {} if result is None else {fact.name: fact for fact in result.facts}
        # Where the mesh is from goes without saying if there is none.
        wanted = [field for field in fields if field.name in known or field.name != "mesh_source"]
        summary += [known.get(field.name) or Fact(field, None) for field in wanted]
    return tuple(summary)


def _verdict(found: Analyses) -> list[Figure]:
    """The figures that come first."""
    figures = []
    time = found.time
    if time is None:
        for key, label in (("step", "Step time"), ("mfu", "MFU")):
            figures.append(Figure(key, label, None, "unknown", UNKNOWN_DEVICE))
    else:
        known_how = {fact.name: fact.provenance for fact in time.facts}
        step = time.step_seconds
        note = f"bound by {time.bound}; modelled, not measured"
        if time.unknown:
            note += f"; unknown and counted as 0: {', '.join(time.unknown)}"
        how = known_how["step_seconds"]
        figures.append(Figure("step", "Step time", step, seconds(step), note, how))
        try:
            use = time.utilization
            note = f"HFU {output.share(use.hfu, 1)}, of {use.peak_flops:.4g} FLOP/s in bfloat16"
            if use.is_lower_bound:
                note += "; some FLOPs are not known"
            text, how = str(output.share(use.mfu, 1)), known_how.get("mfu", "modelled")
            figures.append(Figure("mfu", "MFU", use.mfu, text, note, how))
        except ValueError as error:
            figures.append(Figure("mfu", "MFU", None, "unknown", str(error)))
    figures.append(_peak(found))
    figures.append(_exposed(found))
    flops = int(found.cost.flops)
    known = found.cost.flops_by_provenance
    note = f"{output.share(known.get('exact', 0), flops)} exact; one device, one step"
    if found.summary.is_whole:
        note = f"{output.share(known.get('exact', 0), flops)} exact; of all devices together"
    counted = {fact.name: fact.provenance for fact in found.cost.facts}
    figures.append(Figure("flops", "FLOPs", flops, short(flops, "FLOP"), note, counted["flops"]))
    moved = (found.cost.bytes_read or 0) + (found.cost.bytes_written or 0)
    note = "read and written; modelled: nothing inside fusions counts"
    text = short_bytes(moved)
    figures.append(Figure("bytes", "HBM traffic", moved, text, note, counted["bytes_read"]))
    return figures


def _peak(found: Analyses) -> Figure:
    if found.memory is None:
        return Figure("peak", "Peak memory", None, "unknown", found.no_memory)
    memory = found.memory
    is_xla = memory.backend == "tpu" and found.module.is_scheduled
    peak = memory.xla_peak if is_xla else memory.live_peak
    rule = "XLA's account" if is_xla else "live values"
    known = {fact.name: fact.provenance for fact in memory.facts}
    how = known["xla_peak" if is_xla else "live_peak"]
    hbm = found.per_device_hbm
    text = short_bytes(peak)
    if hbm is None:
        why = "HBM is unknown: " + (
            UNKNOWN_DEVICE if found.time is None else f"{found.time.device.name} has no figure"
        )
        return Figure("peak", "Peak memory", peak, text, f"{rule}; {why}", how)
    note = f"{rule}; {output.share(peak, hbm)} of {short_bytes(int(hbm))} of HBM"
    if peak > hbm:
        note += f"; {short_bytes(peak - int(hbm))} too much"
    return Figure("peak", "Peak memory", peak, text, note, how)


def _exposed(found: Analyses) -> Figure:
    label = "Exposed communication"
    if not len(found.collectives):
        return Figure("exposed", label, 0.0 if found.time else None, "none", "no collectives")
    if found.time is None:
        return Figure("exposed", label, None, "unknown", UNKNOWN_DEVICE)
    exposed = found.time.exposed
    total = sum(exposed.values())
    parts = [f"{axes} {seconds(value)}" for axes, value in exposed.items() if value]
    note = f"{output.share(total, found.time.step_seconds)} of the step"
    if parts:
        note += f": {', '.join(parts)}"
    return Figure("exposed", label, total, seconds(total), note)


def short(count: int, unit: str) -> str:
    """A number in short: `631.36 GFLOP`."""
    return output.quantity(count, unit).partition(" (")[0]


def seconds(value: float) -> str:
    """A duration in short: `12.3 ms`."""
    return output.seconds(value).replace(" us", " µs")


def short_bytes(count: int) -> str:
    """Bytes in short: `1.21 GiB`."""
    from hlofast._report.chart import binary

    scale, unit = binary(count)
    return f"{count:,} B" if scale == 1 else f"{count / scale:,.2f} {unit}"


def facts_of(result: Result) -> list[tuple[str, str]]:
    """The facts of a result as text: what they are, their values."""
    return [(fact.field.label, output.known_as(fact)) for fact in result.facts]


def notes_of(result: Result) -> list[str]:
    """What is to be kept in mind about a result."""
    return [note.text for note in result.notes]


def _findings(found: Analyses) -> list[Statement]:
    """What lint says, those with most at stake first."""
    statements = []
    for one in found.findings:
        stakes = []
        if one.bytes is not None:
            words = {"wire": "sent", "payload": "in collectives", "memory": "of memory"}
            stakes.append(f"{short_bytes(one.bytes)} {words.get(one.bytes_are or '', '')}".strip())
        if one.flops is not None:
            stakes.append(short(one.flops, "FLOP"))
        stake = ", ".join(stakes)
        if stake and one.is_lower_bound:
            stake = f"at least {stake}"
        place = one.source_file or ""
        if place and one.source_line:
            place += f":{one.source_line}"
        proof = list(zip(one.instructions, one.names, strict=True))[:4]
        statements.append(
            Statement(
                one.code,
                one.message,
                stake=stake,
                remedy=one.remedy,
                place=place,
                proof=proof,
                verb="lint",
            )
        )
    return statements
