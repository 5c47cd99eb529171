"""The sections of a page about a module, each from one analysis."""

from __future__ import annotations

from hlofast import _text as output
from hlofast._report import charts
from hlofast._report.data import Section, facts_of, notes_of
from hlofast._report.scopes import scopes
from hlofast._report.sheet import Sheet, sheet_of
from hlofast._verdict import UNKNOWN_DEVICE, UNKNOWN_MESH, Statement, remat_statements, short_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from hlofast._check import Check
    from hlofast._report.data import Analyses
    from hlofast.table import Table


def of_module(found: Analyses) -> list[Section]:
    """The sections in the order of the page."""
    sections = [] if found.check is None else [_check(found.check)]
    if found.no_check:
        sections = [Section("check", "Declared and compiled", unknown=found.no_check)]
    for part in (_memory, _roofline, _scopes, _collectives, _matmuls, _remat, _parameters):
        sections.append(part(found))
    return sections


def _sheet(key: str, caption: str, table: Table, columns: str, **options: Any) -> Sheet:
    """Some columns of a table, by their names."""
    return Sheet(key, caption, table, columns.split(), **options)


def _memory(found: Analyses) -> Section:
    memory = found.memory
    title = "Memory"
    if memory is None:
        return Section("memory", title, unknown=found.no_memory)
    facts = facts_of(memory)
    hbm = found.hbm
    facts.append(("HBM", UNKNOWN_DEVICE if hbm is None else output.size(int(hbm))))
    values = "instruction index bytes class first_step last_step phase shape scope"
    sheets = [
        _sheet("memory-peak", "Alive at the peak", memory.live, values, sort="bytes"),
        *(
            _sheet(
                f"memory-by-{key}",
                f"At the peak, by {key}",
                memory.live.by(key, totals=("bytes",)),
                f"{key} rows bytes",
                sort="bytes",
            )
            for key in ("class", "scope")
        ),
    ]
    chart = charts.memory(memory, found.values)
    return Section(
        "memory", title, facts=facts, charts=[chart], sheets=sheets, notes=notes_of(memory)
    )


def live_values(found: Analyses) -> Sheet | None:
    """Every value and when it is alive, for the live set under the pointer."""
    if found.memory is None:
        return None
    values = "instruction bytes class first_step last_step index"
    return _sheet("values", "Alive", found.values, values)


def _roofline(found: Analyses) -> Section:
    chart = charts.roofline(found.cost, found.time)
    sheets = []
    facts = []
    unknown = ""
    time = found.time
    if time is None:
        unknown = f"Times are unknown: {UNKNOWN_DEVICE}."
    else:
        facts = facts_of(time)
        for key in ("bound", "opcode", "phase"):
            shown = f"{key} instructions seconds"
            sheets.append(_sheet(f"time-by-{key}", f"Time by {key}", time.by(key), shown))
    notes = [] if time is None else notes_of(time)
    return Section(
        "roofline",
        "Time and roofline",
        facts=facts,
        charts=[chart],
        sheets=sheets,
        notes=notes,
        unknown=unknown,
    )


def _scopes(found: Analyses) -> Section:
    cost = found.cost
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


def _collectives(found: Analyses) -> Section:
    sent = found.collectives
    title = "Collectives"
    facts, notes = facts_of(sent), notes_of(sent)
    columns = (
        "instruction kind axes group_size payload_in payload_out multiplicity "
        "total_wire_bytes moved tensor phase flops_between source_file source_line"
    )
    sheets = [_sheet("collectives", "All collectives", sent, columns, sort="total_wire_bytes")]
    if found.time is not None:
        waited = "instruction kind axes seconds alpha_seconds exposed_seconds multiplicity unknown"
        table = found.time.collectives
        sheets.append(
            _sheet("collectives-seconds", "How long they take", table, waited, sort="seconds")
        )
    if not len(sent):
        return Section("collectives", title, facts=facts, sheets=sheets, notes=notes)
    drawn = [charts.sent_by_axis(sent, found.time)]
    when = found.time or found.memory
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


def _matmuls(found: Analyses) -> Section:
    table = found.cost.matmuls()
    columns = (
        "instruction kind batch m n k lhs_dtype "
        "rhs_dtype output_dtype multiplicity flops provenance phase source_file source_line"
    )
    unknown = "".join(f"{note}." for note in table.notes if note.code == "unknown-products")
    sheets = [_sheet("matmuls", "Matrix products", table, columns, sort="flops")]
    facts = facts_of(table)
    return Section("matmuls", "Matrix products", facts=facts, sheets=sheets, unknown=unknown)


def _remat(found: Analyses) -> Section:
    remat = found.remat
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
            "Recomputed",
            remat.recomputed,
            "instruction opcode by twin multiplicity "
            "flops bytes_read bytes_written source_file source_line",
            sort="flops",
        ),
        _sheet(
            "gathers",
            "All-gathers",
            remat.gathers,
            "instruction fate moved tensor axes payload_out wire_bytes multiplicity",
            sort="payload_out",
        ),
    ]
    statements = [one for one in remat_statements(found) if not one.remedy]
    return Section(
        "remat",
        "Recomputation",
        facts=facts_of(remat),
        sheets=sheets,
        statements=statements,
        notes=notes_of(remat),
    )


def _parameters(found: Analyses) -> Section:
    """What goes in: sizes, shardings, donation."""
    mesh = found.collectives.mesh
    rows = []
    replicated = 0
    values = found.summary.values
    inputs = {one.parameter_number: one for one in found.module.entry.parameters}
    for port in found.summary.parameters:
        one = inputs.get(port["number"])
        sharding = None if one is None else one.sharding
        spec = ""
        if sharding is not None and mesh is not None:
            spec = _spec(sharding, mesh)
        if sharding is not None and sharding.is_replicated:
            replicated += port["bytes"] or 0
        rows.append(
            {
                "number": port["number"],
                "instruction": None if one is None else one.row,
                "argument": port["op_name"] or "",
                "shape": port["shape"],
                "bytes": port["bytes"],
                "spec": spec,
                "sharding": "not said" if sharding is None else str(sharding),
                "donated": "yes" if port["donated"] else "no",
            }
        )
    facts = [
        (
            "parameters",
            f"{output.counted(len(rows), 'value')}, {output.size(values['parameter_bytes'])}",
        ),
        ("results", output.size(values["output_bytes"])),
        ("replicated", output.size(replicated) if replicated else ""),
    ]
    columns = (
        ("number", "number", "count"),
        ("instruction", "parameter", "instruction"),
        ("argument", "argument", "name"),
        ("shape", "shape", "name"),
        ("bytes", "bytes", "bytes"),
        ("spec", "partition spec", "name"),
        ("sharding", "sharding as written", "name"),
        ("donated", "donated", "text"),
    )
    sheet = sheet_of("parameters", "Parameters", rows, columns, sort="bytes")
    unknown = ""
    if rows and mesh is None:
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
    """What was declared beside what was compiled."""
    counts = check.counts()
    facts = [
        ("declared by", check.declaration.source),
        ("compared", ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)),
    ]
    statements = []
    for one in check.found():
        proof: Iterable[tuple[int, str]] = ()
        if one.instruction is not None:
            proof = [(one.instruction, check.module[one.instruction].name)]
        text = f"{one.subject}: declared {one.declared}, compiled {one.compiled}. {one.message}"
        stake = short_bytes(one.bytes) if one.bytes else ""
        statements.append(Statement(f"{one.severity}: {one.code}", text, stake=stake, proof=proof))
    columns = "severity code subject declared compiled bytes instruction provenance message"
    sheet = _sheet("check", "All that was compared", check.comparisons, columns)
    return Section(
        "check",
        "Declared and compiled",
        facts=facts,
        statements=statements,
        sheets=[sheet],
    )
