"""What devices send each other: every collective, its mesh axes, bytes, tensors, how often."""

from __future__ import annotations

from hlofast import _text as output
from hlofast.cli import USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast._collectives import Collectives

EXAMPLES = """\
examples:
  hlofast collectives module_0042.jit_train_step.after_optimizations.txt
  hlofast collectives --mesh data=2,model=4 step.txt
  hlofast collectives --mesh data=4,model=256 --slices 4 --by network step.txt
  hlofast collectives --by source --top 20 step.txt  which lines send most
  hlofast collectives --pieces step.txt              the arrays inside combined collectives
  hlofast collectives --alpa step.txt                Alpa's counters and costs
  hlofast collectives --json step.txt | jq '.modules[].groups'

A collective is one however it is written: at once, as start and done, in an asynchronous
computation, in a fusion or in several. Axes are those of --mesh, otherwise of the mesh that the
text speaks of. Payload is the whole array, of an all-gather the result; wire bytes are what each
device sends around a ring of the group: 2(n-1)/n of the payload in an all-reduce, all of it in a
permute or a transfer, (n-1)/n in others.
"""
VERSION = 1
KEYS = {
    "axis": "axes",
    "kind": "kind",
    "phase": "phase",
    "source": "source",
    "moved": "moved",
    "scope": "scope",
    "source_file": "source_file",
    "tensor": "tensor",
    "network": "network",
    "computation": "computation",
}
"""What --by takes, and the name of its column."""
WIRE = "modelled: a ring, 2(n-1)/n of an all-reduce, (n-1)/n of others, all of a permute"
SOURCES = {
    "given": "given",
    "shardy_meshes": "from the header's Shardy meshes",
    "named_shardings": "from shardings and groups that name mesh axes",
    "entry_shardings": "from the shardings of parameters and results",
    "shardings": "from the shardings of instructions",
    "replica_groups": "from the groups of the collectives",
}
"""Where a mesh comes from, in words."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    inputs.add_mesh(parser)
    parser.add_argument(
        "--by", choices=list(KEYS), help="totals by this only (default by axis, then each one)"
    )
    output.add_top(parser)
    parser.add_argument(
        "--pieces", action="store_true", help="list the arrays that collectives put together"
    )
    parser.add_argument(
        "--alpa", action="store_true", help="Alpa's counters, costs and gradient channels"
    )
    inputs.add_rules(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the collectives of every module."""
    given = inputs.read_mesh_and_rules(arguments)
    if given is None:
        return USAGE
    mesh, rules = given
    reader = inputs.Reader(arguments)
    printer = None if arguments.json else output.Printer()
    documents = []
    for found in reader:
        inputs.note_misfit(found.module, found.path, mesh)
        collectives = found.module.collectives(mesh, rules=rules)
        document = found.describe() | _describe(collectives, arguments)
        if printer is None:
            documents.append(document)
        else:
            _print(printer, document, arguments)
    if printer is None:
        contents = {
            "by": arguments.by or "axis",
            "modules": documents,
            "errors": reader.errors,
        }
        output.print_json("collectives", VERSION, contents)
    return reader.exit_code()


def _describe(collectives: Collectives, arguments: argparse.Namespace) -> dict[str, Any]:
    """The JSON form of one module's collectives."""
    module = collectives.module
    rows = [_row(collectives, row) for row in collectives]
    rows.sort(key=lambda row: -(row["total_wire_bytes"] or 0))
    mismatches = [
        # Advice for Python as the command line has it.
        row | {"reason": row["reason"].replace("give slices=", "give --slices ")}
        for row in collectives.mismatches
    ]
    host = [module[row].name for row in collectives.host_transfers]
    pieces = None
    if arguments.pieces:
        pieces = [_piece(collectives, row) for row in collectives.pieces]
    return {
        "mesh": _mesh(collectives),
        "totals": _totals(rows),
        "groups": _groups(collectives, arguments.by or "axis"),
        "collectives": rows,
        "pieces": pieces,
        "mismatches": mismatches,
        "host_transfers": host,
        "alpa": _alpa(collectives) if arguments.alpa else None,
        "notes": _notes(collectives, rows, mismatches, host),
    }


def _known(value: int) -> int | None:
    return None if value < 0 else value


TEXTS = ("name", "computation", "kind", "written_as", "moved", "phase", "scope")
"""Columns whose texts are never replaced by null."""


def _row(collectives: Collectives, row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table with names instead of row numbers, and null for what is not known."""
    module = collectives.module
    for name in ("scheduled_as", "done", "peeled_from"):
        row[name] = None if row[name] < 0 else module[row[name]].name
    for name in ("is_lower_bound", "is_phase_inferred"):
        row[name] = bool(row[name])
    if not row["source_file"] or row["source_line"] <= 0:
        row["source_line"] = None
    return {
        name: None if value == -1 or (value == "" and name not in TEXTS) else value
        for name, value in row.items()
    }


def _piece(collectives: Collectives, row: dict[str, Any]) -> dict[str, Any]:
    module = collectives.module
    return {
        "collective": module[row["instruction"]].name,
        "array": module[row["array"]].name,
        "payload_in": _known(row["payload_in"]),
        "moved": row["moved"],
        "tensor": row["tensor"] or None,
        "source": module[row["source"]].name if row["source"] >= 0 else None,
    }


def _mesh(collectives: Collectives) -> dict[str, Any] | None:
    mesh = collectives.mesh
    if mesh is None:
        return None
    return {
        "text": str(mesh),
        "axes": [{"name": name, "size": size} for name, size in mesh.shape.items()],
        "source": collectives.mesh_source,
        "invented_names": mesh.invented_names,
        "hosts": mesh.hosts,
        "slices": mesh.slices,
    }


def _totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of what is known, and whether there is more."""
    unknown = any(row["total_payload"] is None or row["total_wire_bytes"] is None for row in rows)
    return {
        "collectives": len({row["instruction"] for row in rows}),
        "multiplicity": sum(row["multiplicity"] or 0 for row in rows),
        "payload": sum(row["total_payload"] or 0 for row in rows),
        "wire_bytes": sum(row["total_wire_bytes"] or 0 for row in rows),
        "is_lower_bound": unknown or any(row["is_lower_bound"] for row in rows),
    }


def _groups(collectives: Collectives, by: str) -> list[dict[str, Any]]:
    key = KEYS[by]
    groups = [
        {
            "key": row[key] or None,
            "collectives": row["collectives"],
            "multiplicity": _known(row["multiplicity"]),
            "payload": _known(row["total_payload"]),
            "wire_bytes": _known(row["total_wire_bytes"]),
        }
        for row in collectives.by(key)
    ]
    return sorted(groups, key=lambda row: -(row["wire_bytes"] or 0))


def _alpa(collectives: Collectives) -> dict[str, Any]:
    """Alpa's counters, its costs where the mesh has the two axes they are for."""
    costs = None
    if collectives.mesh is not None and len(collectives.mesh.shape) == 2:
        costs = [row | {"axes": row["axes"] or None} for row in collectives.alpa_cost()]
    return {
        "counters": collectives.alpa_counters(),
        "counters_without_scalars": collectives.alpa_counters(ignore_scalars=True),
        "grad_sync_channel_ids": collectives.grad_sync_channel_ids,
        "costs": costs,
    }


def _notes(
    collectives: Collectives,
    rows: list[dict[str, Any]],
    mismatches: list[dict[str, Any]],
    host: list[str],
) -> list[dict[str, Any]]:
    """What to keep in mind about the figures: kind, figures by name, words."""
    summary = collectives.module.summary(shapes=1)
    notes: list[dict[str, Any]] = []

    def note(kind: str, text: str, **figures: int | None) -> None:
        notes.append({"kind": kind, "text": text, "figures": figures})

    if summary["status"] in ("unoptimised", "annotated"):
        note(
            "global",
            f"the module is {summary['status']}: the partitioner, which writes most collectives, "
            f"has not run",
        )
    if not rows:
        if host:
            note("host-transfers", _host(host), transfers=len(host))
        return notes
    if collectives.mesh is None:
        note("no-mesh", "the text names no mesh; --mesh NAME=SIZE,... gives one")
    elif not collectives.has_network:
        note(
            "one-level",
            "every axis is taken as one level of the network, as the mesh does not say how its "
            "devices lie on hosts or slices (--hosts, --slices)",
        )
    if collectives.mesh is not None and collectives.mesh.invented_names:
        note(
            "invented-names",
            "the text does not name the mesh's axes; --mesh NAME=SIZE,... does",
        )
    if mismatches:
        reasons = ", ".join(sorted({row["reason"] for row in mismatches}))
        note(
            "no-axis-subset",
            f"{_counted([row['name'] for row in mismatches])} with groups that are no subset of "
            f"the mesh's axes: {reasons}",
            collectives=len(mismatches),
        )
    written = list(dict.fromkeys(row["name"] for row in rows if row["kind"] != row["written_as"]))
    if written:
        note(
            "written-as",
            f"{_counted(written)} written as something else; what each does counts",
            collectives=len(written),
        )
    peeled = _peeled(rows)
    if peeled:
        words = [
            f"{name} ({'unknown' if inside is None else f'{inside:,}'} in it, {count:,} outside)"
            for name, inside, count in peeled
        ]
        note(
            "peeled",
            f"of {output.counted(len(peeled), 'collective')} iterations were taken out of the "
            f"loop: {output.names(words)}",
            collectives=len(peeled),
            peeled=sum(count for _, _, count in peeled),
        )
    lower = list(dict.fromkeys(row["name"] for row in rows if row["is_lower_bound"]))
    if lower:
        note(
            "lower-bound",
            f"{_counted(lower)} inside loops of unknown trip count, counted once",
            collectives=len(lower),
        )
    idle = list(dict.fromkeys(row["name"] for row in rows if row["multiplicity"] == 0))
    if idle:
        note(
            "not-executed",
            f"{_counted(idle)} with no execution in the totals: in a branch that is not the "
            "costliest, in a loop of no iterations, or in what nothing calls",
            collectives=len(idle),
        )
    inferred = list(dict.fromkeys(row["name"] for row in rows if row["is_phase_inferred"]))
    if inferred:
        note(
            "phase-inferred",
            f"{_counted(inferred)} without a name: phases are those of what uses the weights or of "
            "what the array is made by",
            collectives=len(inferred),
        )
    unknown = list(
        dict.fromkeys(
            row["name"]
            for row in rows
            if row["total_wire_bytes"] is None or row["total_payload"] is None
        )
    )
    if unknown:
        note(
            "unknown",
            f"{_counted(unknown)} of unknown size or unknown groups; totals are without them",
            collectives=len(unknown),
        )
    if host:
        note("host-transfers", _host(host), transfers=len(host))
    if not summary["is_scheduled"] and any(row["done"] for row in rows):
        note(
            "unscheduled",
            "the module is not scheduled: what stands between start and done in the text need not "
            "run there",
        )
    return notes


def _counted(names: list[str]) -> str:
    shown = output.names(names)
    return f"{output.counted(len(names), 'collective')} ({shown})"


def _host(host: list[str]) -> str:
    count = output.counted(len(host), "transfer")
    return f"{count} between device and host not listed: {output.names(host)}"


def _peeled(rows: list[dict[str, Any]]) -> list[tuple[str, int | None, int]]:
    """By collective in a loop: its executions there, and those taken out of the loop."""
    inside: dict[str, int | None] = {}
    for row in rows:
        before, more = inside.get(row["name"], 0), row["multiplicity"]
        inside[row["name"]] = None if before is None or more is None else before + more
    outside: dict[str, int] = {}
    for row in rows:
        if row["peeled_from"] is not None:
            name = row["peeled_from"]
            outside[name] = outside.get(name, 0) + (row["multiplicity"] or 0)
    return [(name, inside.get(name), count) for name, count in outside.items()]


def _print(
    printer: output.Printer, document: dict[str, Any], arguments: argparse.Namespace
) -> None:
    limit = arguments.top or None
    printer.heading(document["name"])
    printer.facts(_facts(document))
    by = arguments.by or "axis"
    groups, totals = document["groups"], document["totals"]
    rows = [
        [
            group["key"] or "(none)",
            group["collectives"],
            group["multiplicity"],
            group["payload"],
            group["wire_bytes"],
            output.share(group["wire_bytes"] or 0, totals["wire_bytes"]),
        ]
        for group in groups[:limit]
    ]
    columns = [by.replace("_", " "), "collectives", "times", "payload B", "wire B", "share"]
    printer.table(f"By {by.replace('_', ' ')}", columns, rows, len(groups))
    if not arguments.by:
        _print_collectives(printer, document["collectives"], limit)
    if document["pieces"] is not None:
        _print_pieces(printer, document["pieces"], limit)
    if document["alpa"] is not None:
        _print_alpa(printer, document["alpa"])
    printer.notes(document["notes"])


def _facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    line = f", line {document['line']:,}" if document["line"] > 1 else ""
    totals, mesh = document["totals"], document["mesh"]
    least = "at least " if totals["is_lower_bound"] else ""
    facts = [("file", f"{document['path']}{line}")]
    if mesh is not None:
        names = ", names invented" if mesh["invented_names"] else ""
        blocks = [
            output.counted(mesh[f"{what}s"], what)
            for what in ("slice", "host")
            if mesh[f"{what}s"] is not None
        ]
        on = f" on {', '.join(blocks)}" if blocks else ""
        facts.append(("mesh", f"{mesh['text']}{on} ({SOURCES[mesh['source']]}{names})"))
    count = output.counted(totals["collectives"], "collective")
    runs = output.counted(totals["multiplicity"], "execution")
    facts.append(("collectives", f"{count}, {least}{runs}"))
    if totals["collectives"]:
        facts += [
            ("payload", least + output.size(totals["payload"])),
            ("wire bytes", f"{least}{output.size(totals['wire_bytes'])} sent by each device"),
            ("wire known", WIRE),
        ]
    return facts


def _print_collectives(
    printer: output.Printer, collectives: list[dict[str, Any]], limit: int | None
) -> None:
    peeled = {name: count for name, _, count in _peeled(collectives)}
    rows = [
        [
            row["name"],
            _kind(row),
            _axes(row),
            row["group_size"],
            row["payload_in"],
            row["payload_out"],
            _times(row, peeled),
            row["total_wire_bytes"],
            _moved(row),
            row["phase"],
            _source(row) or row["scope"] or "-",
            _overlap(row),
        ]
        for row in collectives[:limit]
    ]
    names = "name|kind|axes|n|B in|B out|times|wire B, all times|moved|phase|from|overlapped with"
    printer.table("By wire bytes", names.split("|"), rows, len(collectives))


def _kind(row: dict[str, Any]) -> str:
    if row["kind"] == row["written_as"]:
        return str(row["kind"])
    return f"{row['kind']} (as {row['written_as']})"


def _times(row: dict[str, Any], peeled: dict[str, int]) -> object:
    if row["multiplicity"] is None:
        return "beyond 64 bits"
    times = f"{row['multiplicity']:,}"
    if row["is_lower_bound"]:
        times = f">= {times}"
    if row["peeled_from"] is not None:
        return output.Figure(f"{times} (peeled)")
    if row["name"] in peeled:
        return output.Figure(f"{times} + {peeled[row['name']]:,} peeled")
    return output.Figure(times)


def _axes(row: dict[str, Any]) -> str:
    """The axes, of a permute how far along them; the groups where no axes are known."""
    axes = row["shift"] or row["axes"]
    if axes in (None, "no axis subset"):
        axes = " ".join(word for word in (axes, row["groups"]) if word) or "-"
    return f"{axes}, {row['network']}" if row["network"] else str(axes)


def _moved(row: dict[str, Any]) -> str:
    words = [row["moved"]]
    if row["tensor"]:
        # What is computed has the name of an operation, whose end says most.
        is_named = row["moved"] in ("weight", "other")
        words.append(row["tensor"] if is_named else _end(row["tensor"]))
    if row["tensors"] > 1:
        words.append(f"and {row['tensors'] - 1:,} more")
    return " ".join(words)


def _end(op_name: str) -> str:
    """The last components of an operation's name, without parameters of old names."""
    name = op_name.split("[")[0]
    parts = name.split("/")
    return name if len(parts) <= 3 else "…/" + "/".join(parts[-3:])


def _source(row: dict[str, Any]) -> str | None:
    file, line = row["source_file"], row["source_line"]
    if not file:
        return None
    return f"{file}:{line}" if line and line > 0 else str(file)


def _overlap(row: dict[str, Any]) -> str:
    """What is scheduled while the collective is under way."""
    if row["done"] is None:
        return "-"
    if row["instructions_between"] is None:
        return "unknown"
    flops = row["flops_between"]
    work = "" if flops is None else f", {output.quantity(flops, 'FLOP').split(' (')[0]}"
    return f"{output.counted(row['instructions_between'], 'instruction')}{work}"


def _print_pieces(printer: output.Printer, pieces: list[dict[str, Any]], limit: int | None) -> None:
    rows = [
        [
            piece["collective"],
            piece["array"],
            piece["payload_in"],
            piece["moved"],
            _end(piece["tensor"]) if piece["tensor"] else None,
            piece["source"],
        ]
        for piece in pieces[:limit]
    ]
    columns = ["collective", "array", "B", "moved", "tensor", "comes from"]
    printer.table("Arrays moved, of one execution", columns, rows, len(pieces))


def _print_alpa(printer: output.Printer, alpa: dict[str, Any]) -> None:
    printer.line()
    printer.heading("Alpa")
    facts = []
    for label, name in (("counted", "counters"), ("no scalars", "counters_without_scalars")):
        counters = alpa[name].items()
        facts.append((label, ", ".join(f"#{kind}: {count}" for kind, count in counters)))
    facts.append(("grad_sync_channel_ids", alpa["grad_sync_channel_ids"]))
    printer.facts(facts)
    costs = alpa["costs"]
    if costs is None:
        printer.line("costs: Alpa's are for meshes of two axes")
        return
    rows = [
        [
            row["axes"] or "(none)",
            row["collectives"],
            row["unpriced"],
            output.Figure(f"{row['cost']:,.3f}"),
        ]
        for row in costs
    ]
    total = sum(row["cost"] for row in costs)
    rows.append(["all", None, None, output.Figure(f"{total:,.3f}")])
    columns = ["axes", "collectives", "without cost", "cost"]
    title = "Alpa's alpha-beta cost, mesh_alpha=(1, 1), mesh_beta=(1, 0.1)"
    printer.table(title, columns, rows, len(rows))
