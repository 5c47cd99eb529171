"""The sections of a page about a module, each from one analysis."""

from __future__ import annotations

from argparse import Namespace

from hlofast import _text as output
from hlofast._report import charts
from hlofast._report.data import (
    UNKNOWN_DEVICE,
    UNKNOWN_MESH,
    Section,
    Statement,
    seconds,
    short_bytes,
)
from hlofast._report.scopes import scopes
from hlofast._report.sheet import Field, Sheet, sheet_of
from hlofast.cli import collectives as say_collectives
from hlofast.cli import cost as say_cost
from hlofast.cli import time as say_time

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


def advice(found: Analyses) -> list[Statement]:
    """What the analysis of recomputation says is to be changed, without what lint says too."""
    known = found.findings.counts()
    return [one for one in _statements(found) if one.remedy and one.code not in known]


def _sheet(key: str, caption: str, table: Table, columns: str, **options: Any) -> Sheet:
    """Columns of a table; `columns` has a line for each: its name, kind, and what stands above."""
    fields = []
    for line in columns.strip().splitlines():
        name, kind, label = (part.strip() for part in line.split("|"))
        values: Any = table.values(name) if kind in ("text", "code") else table._columns[name]
        fields.append(Field(name, label, kind, values, table.field(name).unknown))
    return Sheet(key, caption, fields, **options)


def _memory(found: Analyses) -> Section:
    memory = found.memory
    title = "Memory"
    if memory is None:
        return Section("memory", title, unknown=found.no_memory)
    account = memory.xla
    at = memory.at
    facts = [
        ("live peak", f"{output.size(memory.live_peak)}" + (f" at {at.name}" if at else "")),
        (
            "XLA peak",
            f"{output.size(account['peak_memory_in_bytes'])}: parameters "
            f"{account['argument_size_in_bytes']:,}, results {account['output_size_in_bytes']:,}, "
            f"aliased {account['alias_size_in_bytes']:,}, heap {account['heap_size_in_bytes']:,} "
            f"(space {account['heap_memory_space']})",
        ),
        ("counted", f"rule {memory.rule}, {memory.sizes} sizes ({memory.backend}), HBM alone"),
    ]
    hbm = found.per_device_hbm
    facts.append(("HBM", UNKNOWN_DEVICE if hbm is None else output.size(int(hbm))))
    values = """
        instruction | row | made by
        index | code | part
        bytes | bytes | bytes
        class | text | class
        first_step | integer | from step
        last_step | integer | to step
        phase | text | phase
        shape | code | shape
        scope | code | scope
    """
    sheets = [
        _sheet("memory-peak", "Alive at the peak", memory.live, values, sort="bytes"),
        *(
            _sheet(
                f"memory-by-{key}",
                f"At the peak, by {key}",
                memory.live.by(key, totals=("bytes",)),
                f"{key} | code | {key}\nrows | integer | values\nbytes | bytes | bytes",
                sort="bytes",
            )
            for key in ("class", "scope")
        ),
    ]
    chart = charts.memory(memory, found.values)
    return Section("memory", title, facts=facts, charts=[chart], sheets=sheets, notes=memory.notes)


def live_values(found: Analyses) -> Sheet | None:
    """Every value and when it is alive, for the live set under the pointer."""
    if found.memory is None:
        return None
    values = """
        instruction | row | value
        bytes | bytes | bytes
        class | text | class
        first_step | integer | from step
        last_step | integer | to step
        index | code | part
    """
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
        facts = [
            ("step", f"{seconds(time.step_seconds)}, bound by {time.bound}"),
            ("computing", _part(time.compute_seconds, time.step_seconds)),
            ("moving data", _part(time.memory_seconds, time.step_seconds)),
            ("waiting for collectives", _part(sum(time.exposed.values()), time.step_seconds)),
            ("other", _part(time.other_seconds, time.step_seconds)),
        ]
        for key in ("bound", "opcode", "phase"):
            columns = f"{key} | text | {key}\ninstructions | integer | instructions\n"
            columns += "seconds | seconds | time, each by itself"
            table = time.by(key)
            sheets.append(_sheet(f"time-by-{key}", f"Time by {key}", table, columns))
    notes = _time_notes(found)
    return Section(
        "roofline",
        "Time and roofline",
        facts=facts,
        charts=[chart],
        sheets=sheets,
        notes=notes,
        unknown=unknown,
    )


def _part(part: float, whole: float) -> str:
    return f"{seconds(part)} ({output.share(part, whole)})"


def _time_notes(found: Analyses) -> list[str]:
    if found.time is None:
        return []
    mesh = found.collectives.mesh
    has_levels = mesh is not None and (mesh.hosts is not None or mesh.slices is not None)
    notes = say_time.notes(found.time, has_levels)
    texts = [note["text"] for note in notes]
    if found.time.unknown:
        texts.append(f"unknown and counted as 0 s: {', '.join(found.time.unknown)}")
    if found.time.open_loops:
        loops = output.names(found.time.open_loops)
        texts.append(f"loops of unknown trip count, counted once: {loops}")
    return texts


def _scopes(found: Analyses) -> Section:
    cost = found.cost
    columns = """
        phase | text | phase
        instructions | integer | instructions
        flops | flops | FLOPs
        exact_flops | flops | of them exact
        transcendentals | integer | transcendentals
        bytes_accessed | bytes | bytes
    """
    known = ", ".join(
        f"{output.share(count, cost.flops)} {name.replace('_', ' ')}"
        for name, count in cost.flops_by_provenance.items()
        if count
    )
    facts = [
        ("FLOPs", output.quantity(int(cost.flops), "FLOP")),
        ("FLOPs known", known or "there are none"),
        ("HBM read", output.size(cost.bytes_read)),
        ("HBM written", output.size(cost.bytes_written)),
    ]
    by_source = columns.replace("phase | text", "source | code").replace("phase", "source line")
    by_opcode = columns.replace("phase", "opcode")
    sheets = [
        _sheet("cost-by-phase", "By phase", cost.by("phase"), columns, sort="flops"),
        _sheet("cost-by-opcode", "By opcode", cost.by("opcode"), by_opcode, sort="flops"),
        _sheet("cost-by-source", "By source line", cost.by("source"), by_source, sort="flops"),
    ]
    loops = cost.loops
    if len(loops):
        kinds = """
            instruction | row | loop
            trip_count | integer | trip count
            multiplicity | integer | started
            provenance | text | known
            reason | text | because
        """
        sheets.append(_sheet("loops", "Loops", loops, kinds))
    return Section(
        "scopes",
        "FLOPs and bytes by scope",
        facts=facts,
        charts=[scopes(cost, "flops"), scopes(cost, "bytes_accessed")],
        sheets=sheets,
        notes=[note["text"] for note in say_cost._notes(cost)],
    )


def _collectives(found: Analyses) -> Section:
    sent = found.collectives
    title = "Collectives"
    said = say_collectives._describe(sent, Namespace(by=None, pieces=False, alpa=False))
    notes = [note["text"] for note in said["notes"]]
    if not len(sent):
        return Section("collectives", title, facts=[("collectives", "none")], notes=notes)
    totals = said["totals"]
    least = "at least " if totals["is_lower_bound"] else ""
    facts = [
        (
            "collectives",
            f"{output.counted(totals['collectives'], 'collective')}, "
            f"{least}{output.counted(totals['multiplicity'], 'execution')}",
        ),
        ("payload", least + output.size(totals["payload"])),
        ("wire bytes", f"{least}{output.size(totals['wire_bytes'])} sent by each device"),
        ("wire known", say_collectives.WIRE),
    ]
    columns = """
        instruction | row | collective
        kind | text | kind
        axes | text | mesh axes
        group_size | integer | devices
        payload_in | bytes | bytes in
        payload_out | bytes | bytes out
        multiplicity | integer | executions
        total_wire_bytes | bytes | sent in a step
        moved | text | moves
        tensor | code | tensor
        phase | text | phase
        flops_between | flops | FLOPs meanwhile
        source_file | code | file
        source_line | integer | line
    """
    sheets = [_sheet("collectives", "All collectives", sent, columns, sort="total_wire_bytes")]
    if found.time is not None:
        waited = """
            instruction | row | collective
            kind | text | kind
            axes | text | mesh axes
            seconds | seconds | time of one execution
            alpha_seconds | seconds | of it latency
            exposed_seconds | seconds | of it waited for
            multiplicity | integer | executions
            unknown | text | not known
        """
        table = found.time.collectives
        sheets.append(
            _sheet("collectives-seconds", "How long they take", table, waited, sort="seconds")
        )
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
    columns = """
        instruction | row | product
        kind | text | kind
        batch | integer | batch
        m | integer | M
        n | integer | N
        k | integer | K
        lhs_dtype | text | left
        rhs_dtype | text | right
        output_dtype | text | result
        multiplicity | integer | executions
        flops | flops | FLOPs in a step
        provenance | text | known
        phase | text | phase
        source_file | code | file
        source_line | integer | line
    """
    flops = sum(value or 0 for value in table.values("flops"))
    facts = [
        ("matmuls", output.counted(len(table), "product")),
        (
            "FLOPs",
            f"{output.quantity(flops, 'FLOP')}, {output.share(flops, found.cost.flops)} of all",
        ),
    ]
    rows = found.cost._data.unknown_products().tolist()
    unknown = ""
    if rows:
        names = output.names([found.module[row].name for row in rows[:20]], len(rows))
        unknown = f"{output.counted(len(rows), 'product')} whose size is not known: {names}."
    sheets = [_sheet("matmuls", "Matrix products", table, columns, sort="flops")]
    return Section("matmuls", "Matrix products", facts=facts, sheets=sheets, unknown=unknown)


def _statements(found: Analyses) -> list[Statement]:
    statements = []
    for one in found.remat.statements:
        proof = list(zip(one.instructions, one.names, strict=True))[:4]
        remedy = one.advice or ""
        statements.append(Statement(one.code, one.text, remedy=remedy, proof=proof, verb="remat"))
    return statements


def _by_whom(by: list[str]) -> str:
    """`: program 5, compiler 15`; nothing where the program alone has things computed again."""
    counts = {one: by.count(one) for one in ("program", "compiler", "twin")}
    if counts["program"] == len(by):
        return ""
    return ": " + ", ".join(f"{one} {count:,}" for one, count in counts.items() if count)


def _remat(found: Analyses) -> Section:
    remat = found.remat
    recomputed = remat.recomputed
    flops = sum(value or 0 for value in recomputed.values("flops"))
    by = recomputed.values("by")
    kept = sum(size or 0 for size in remat.residuals.values("bytes"))
    facts = [
        (
            "recomputed",
            f"{output.counted(len(recomputed), 'instruction')}, {output.quantity(flops, 'FLOP')}"
            + _by_whom(by),
        ),
        ("kept", f"{output.counted(len(remat.residuals), 'residual')}, {output.size(kept)}"),
        ("gathers", output.counted(len(remat.gathers), "all-gather")),
    ]
    sheets = [
        _sheet(
            "residuals",
            "Kept from forward to backward",
            remat.residuals,
            """
            instruction | row | kept
            index | code | part
            kind | text | kind
            shape | code | shape
            bytes | bytes | bytes
            span | integer | instructions across
            last_use | row | last use
            source_file | code | file
            source_line | integer | line
            """,
            sort="bytes",
        ),
        _sheet(
            "recomputed",
            "Recomputed",
            recomputed,
            """
            instruction | row | instruction
            opcode | text | opcode
            by | text | by
            twin | row | computes what
            multiplicity | integer | executions
            flops | flops | FLOPs
            bytes_read | bytes | read
            bytes_written | bytes | written
            source_file | code | file
            source_line | integer | line
            """,
            sort="flops",
        ),
        _sheet(
            "gathers",
            "All-gathers",
            remat.gathers,
            """
            instruction | row | gather
            fate | text | fate
            moved | text | moves
            tensor | code | tensor
            axes | text | mesh axes
            payload_out | bytes | bytes out
            wire_bytes | bytes | sent, one execution
            multiplicity | integer | executions
            """,
            sort="payload_out",
        ),
    ]
    shown = [sheet for sheet in sheets if len(sheet)]
    statements = [one for one in _statements(found) if not one.remedy]
    return Section("remat", "Recomputation", facts=facts, sheets=shown, statements=statements)


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
        ("number", "number", "integer"),
        ("instruction", "parameter", "row"),
        ("argument", "argument", "code"),
        ("shape", "shape", "code"),
        ("bytes", "bytes", "bytes"),
        ("spec", "partition spec", "code"),
        ("sharding", "sharding as written", "code"),
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
    columns = """
        severity | text | severity
        code | text | what
        subject | text | subject
        declared | text | declared
        compiled | text | compiled
        bytes | bytes | bytes at stake
        instruction | row | shown by
        provenance | text | known
        message | text | that is
    """
    sheet = _sheet("check", "All that was compared", check.comparisons, columns)
    return Section(
        "check",
        "Declared and compiled",
        facts=facts,
        statements=statements,
        sheets=[sheet],
    )
