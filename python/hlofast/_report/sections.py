"""The sections of a page about a module, each from one analysis."""

from __future__ import annotations

from math import isfinite

from hlofast import _text as output
from hlofast._policy_fields import known_columns
from hlofast._report import charts, measured
from hlofast._report.data import Section, facts_of, notes_of
from hlofast._report.scopes import scopes
from hlofast._report.scopes import seconds as seconds_by_scope
from hlofast._report.sheet import Sheet, field_of
from hlofast._summary import sharding_of
from hlofast._verdict_figures import UNKNOWN_DEVICE, UNKNOWN_MESH
from hlofast._verdict_statements import Statement, remat_statements
from hlofast.table import Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._check import Check
    from hlofast._report.data import Analyses
    from hlofast._stages import Stages

_LONGEST = 200
"""Instructions in the table of the longest."""


def of_module(analyses: Analyses) -> list[Section]:
    """The sections in the order of the page."""
    sections = [] if analyses.check is None else [_check(analyses.check)]
    if analyses.no_check:
        sections = [Section("check", "Declared and compiled", unknown=analyses.no_check)]
    if (own := measured.section(analyses)) is not None:
        sections.insert(0, own)
    if len((stages := analyses.module.stages()).markers):
        sections.append(_stages(stages))
    for part in (_time, _memory, _collectives, _matmuls, _remat, _scopes, _parameters):
        sections.append(part(analyses))
    return sections


def _sheet(key: str, caption: str, table: Table, columns: str, **options: Any) -> Sheet:
    """Returns a sheet of the named columns of a table."""
    return Sheet(key, caption, table, columns.split(), **options)


def _memory(analyses: Analyses) -> Section:
    memory = analyses.memory
    title = "Memory"
    if memory is None:
        return Section("memory", title, unknown=analyses.no_memory)
    facts = facts_of(memory)
    if analyses.hbm is None:
        facts.append(("HBM", UNKNOWN_DEVICE))
    together = memory._together
    values = "instruction index bytes class first_step last_step phase shape scope"
    sheets = [
        _sheet("memory-peak", f"Live at the peak{together}", memory.live, values, sort="bytes"),
        *(
            _sheet(
                f"memory-by-{key}",
                f"At the peak{together}, by {key}",
                memory.live.by(key, totals=("bytes",)),
                f"{key} rows bytes",
                sort="bytes",
            )
            for key in ("class", "scope")
        ),
    ]
    chart = charts.memory(memory, analyses.values)
    return Section(
        "memory", title, facts=facts, charts=[chart], sheets=sheets, notes=notes_of(memory)
    )


def _stages(stages: Stages) -> Section:
    """The sections of a pipeline stage, what they exchange and keep."""
    sheets = [
        Sheet(f"stages-{part.name}", part.title, part.table, part.columns)
        for part in stages.sections()
        if len(part.table)
    ]
    facts, notes = facts_of(stages), notes_of(stages)
    return Section("stages", "Pipeline stage", facts=facts, sheets=sheets, notes=notes)


def live_values(analyses: Analyses) -> Sheet | None:
    """Every value with its live range; the page derives the live set under the pointer."""
    if analyses.memory is None:
        return None
    values = "instruction bytes class first_step last_step index"
    return _sheet("values", "Live values", analyses.values, values)


def _time(analyses: Analyses) -> Section:
    chart = charts.roofline(analyses.cost, analyses.time)
    time = analyses.time
    if time is None:
        unknown = f"Times are unknown: {analyses.no_time}."
        return Section("time", "Time", charts=[chart], unknown=unknown)
    sheets = [
        _sheet(
            "time-instructions",
            "Longest instructions",
            time.longest(_LONGEST),
            "instruction step_seconds share scope phase bound multiplicity seconds opcode source",
        )
    ]
    for key, label in (
        ("phase", "phase"), ("bound", "bound"), ("opcode", "opcode"), ("source", "source line")
    ):  # fmt: skip
        shown = f"{key} step_seconds instructions seconds"
        sheets.append(
            _sheet(f"time-by-{key}", f"By {label}", time.by(key), shown, sort="step_seconds")
        )
    return Section(
        "time",
        "Time",
        facts=facts_of(time),
        charts=[seconds_by_scope(time), chart] if isfinite(time.step_seconds) else [chart],
        sheets=sheets,
        notes=notes_of(time),
    )


def _scopes(analyses: Analyses) -> Section:
    cost = analyses.cost
    columns = "phase instructions flops exact_flops transcendentals bytes_accessed"
    by_source, by_opcode = (columns.replace("phase", key) for key in ("source", "opcode"))
    sheets = [
        _sheet("cost-by-phase", "By phase", cost.by("phase"), columns, sort="flops"),
        _sheet("cost-by-opcode", "By opcode", cost.by("opcode"), by_opcode, sort="flops"),
        _sheet("cost-by-source", "By source line", cost.by("source"), by_source, sort="flops"),
    ]
    shown = "instruction trip_count multiplicity provenance reason"
    sheets.append(_sheet("loops", "Loops", cost.loops, shown))
    return Section(
        "scopes",
        "FLOPs and bytes by scope",
        facts=facts_of(cost),
        charts=[scopes(cost, "flops"), scopes(cost, "bytes_accessed")],
        sheets=sheets,
        notes=notes_of(cost),
    )


def _collectives(analyses: Analyses) -> Section:
    sent = analyses.collectives
    title = "Collectives"
    facts, notes = facts_of(sent), notes_of(sent)
    columns = (
        "instruction kind axes group_size payload_in payload_out multiplicity "
        "total_wire_bytes tensor_kind tensor phase flops_between source_file source_line"
    )
    sheets = [_sheet("collectives", "All collectives", sent, columns, sort="total_wire_bytes")]
    if analyses.time is not None:
        waited = "instruction kind axes seconds alpha_seconds exposed_seconds multiplicity unknown"
        table = analyses.time.collectives
        sheets.append(
            _sheet("collectives-seconds", "Time of collectives", table, waited, sort="seconds")
        )
    if not len(sent):
        return Section("collectives", title, facts=facts, sheets=sheets, notes=notes)
    drawn = [charts.sent_by_axis(sent, analyses.time)]
    when = analyses.time or analyses.memory
    if when is not None:
        drawn.append(charts.sent_when(sent, when))
    return Section(
        "collectives",
        title,
        facts=facts,
        charts=drawn,
        sheets=sheets,
        notes=notes,
        unknown="" if sent.mesh is not None else f"Mesh axes are unknown: {UNKNOWN_MESH}.",
    )


def _matmuls(analyses: Analyses) -> Section:
    table = analyses.cost.matmuls()
    columns = (
        "instruction kind batch m n k lhs_dtype "
        "rhs_dtype output_dtype multiplicity flops provenance phase source_file source_line"
    )
    unknown = "".join(f"{note}." for note in table.notes if note.code == "unknown-products")
    sheets = [_sheet("matmuls", "All matmuls", table, columns, sort="flops")]
    facts = facts_of(table)
    return Section("matmuls", "Matmuls", facts=facts, sheets=sheets, unknown=unknown)


def _remat(analyses: Analyses) -> Section:
    remat = analyses.remat
    sheets = [
        _sheet(
            "residuals",
            "Kept from forward to backward",
            remat.residuals,
            "instruction index kind shape bytes span last_use source_file source_line",
            sort="bytes",
        ),
        _sheet(
            "recomputed",
            "Recomputed instructions",
            remat.recomputed,
            "instruction opcode by twin multiplicity "
            "flops bytes_read bytes_written source_file source_line",
            sort="flops",
        ),
        _sheet(
            "gathers",
            "All-gathers",
            remat.gathers,
            "instruction fate tensor_kind tensor axes payload_out wire_bytes multiplicity",
            sort="payload_out",
        ),
    ]
    statements = [statement for statement in remat_statements(analyses) if not statement.remedy]
    policies = remat.policies
    drawn = None if policies is None else policies._chart
    if policies is not None:
        # As in the terminal: the policies of JAX, the one of the text and the chosen one.
        table = policies.table
        caption = f"Checkpoint policies of the {policies.iteration}s"
        shown = " ".join(known_columns(table))
        sheets.insert(0, _sheet("policies-of-jax", caption, table, shown))
    return Section(
        "remat",
        "Recomputation",
        facts=facts_of(remat),
        charts=[] if drawn is None else [drawn],
        code=None if policies is None else policies.code_shown,
        sheets=sheets,
        statements=statements,
        notes=notes_of(remat),
    )


_PARAMETER = ("number", "op_name", "shape", "bytes", "donated")
_PORTS = (
    *("parameter_bytes", "replicated_bytes", "output_bytes", "aliases", "must_alias"),
    *("aliased_bytes", "buffer_donors"),
)
"""Facts of the summary about parameters and results."""


def _parameters(analyses: Analyses) -> Section:
    """Parameters: sizes, shardings, donation."""
    mesh = analyses.collectives.mesh
    table = analyses.summary.parameters
    inputs = {
        parameter.parameter_number: parameter for parameter in analyses.module.entry.parameters
    }
    columns: dict[str, list[Any]] = {"parameter": [], "spec": [], "sharding": []}
    for number in table.values("number"):
        parameter = inputs.get(number)
        sharding = None if parameter is None else sharding_of(parameter)
        is_known = sharding is not None and mesh is not None
        columns["parameter"].append(None if parameter is None else parameter.row)
        columns["spec"].append(_spec(sharding, mesh) if is_known else "")
        columns["sharding"].append("unknown" if sharding is None else str(sharding))
    own = (
        field_of("parameter", "parameter", "instruction"),
        field_of("spec", "partition spec", "name"),
        field_of("sharding", "sharding as written", "name"),
    )
    shown = Table.of(
        (
            *((table.field(name), table.values(name)) for name in _PARAMETER),
            *((field, columns[field.name]) for field in own),
        )
    )
    order = "number parameter op_name shape bytes spec sharding donated"
    sheet = _sheet("parameters", "Parameters", shown, order, sort="bytes")
    facts = [
        (f.field.label, output.known_as(f)) for f in analyses.summary.facts if f.name in _PORTS
    ]
    unknown = ""
    if len(table) and mesh is None:
        unknown = f"Partition specs are unknown: {UNKNOWN_MESH}."
    return Section(
        "parameters", "Parameters and shardings", facts=facts, sheets=[sheet], unknown=unknown
    )


def _spec(sharding: Any, mesh: Any) -> str:
    try:
        return str(sharding.spec(mesh))
    except (ValueError, OverflowError) as error:
        return f"unknown: {error}"


def _check(check: Check) -> Section:
    """The declared program beside the compiled one."""
    findings = check.sections()[0]
    statements = []
    for row, (head, lines) in zip(findings.table, findings.paragraphs or (), strict=True):
        is_shown = row["instruction"] is not None
        proof = [(row["instruction"], row["name"])] if is_shown else []
        # On a page, the name is a link.
        told = [line for line in lines if not is_shown or line != ("evidence", row["name"])]
        statements.append(Statement(head, lines=told, proof=proof))
    columns = "severity code subject declared compiled bytes instruction provenance message"
    sheet = _sheet("check", "All comparisons", check.comparisons, columns)
    return Section(
        "check",
        "Declared and compiled",
        facts=facts_of(check),
        statements=statements,
        sheets=[sheet],
    )
