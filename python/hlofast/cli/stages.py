"""Pipeline stages as Alpa marks them: sections, what stays, what is sent, what else would fit."""

from __future__ import annotations

from hlofast import _text as output
from hlofast.cli import USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast._stages import Boundary, Stages
    from hlofast.table import Table

EXAMPLES = """\
examples:
  hlofast stages mesh_1.hlo.txt
  hlofast stages --hbm 16GiB mesh_1.hlo.txt                 how many stages may follow
  hlofast stages --device a100 --devices 4 mesh_1.hlo.txt
  hlofast stages --json mesh_1.hlo.txt | jq '.modules[].stash[] | [.kind, .bytes, .name]'

Sections lie between pairs of markers, which are found through the calls that wrap them. What stays
from a forward section to its backward section does so for each micro-batch in flight. A boundary is
cheaper where fewer bytes cross it; looked for among what depends on what the stage receives, as
long as at most half of the forward FLOPs (--most-moved) go to the stage before.
"""
VERSION = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    output.add_top(parser)
    parser.add_argument("--hbm", metavar="SIZE", help="memory of a device: 16GiB, 900MB, bytes")
    parser.add_argument("--device", metavar="NAME", help="or that of this device")
    parser.add_argument(
        "--devices",
        type=inputs.count,
        default=1,
        metavar="N",
        help="devices that share the stage evenly (default 1)",
    )
    parser.add_argument(
        "--most-moved",
        type=share,
        metavar="X",
        help="largest share of the forward FLOPs that a cheaper cut may move (default 0.5)",
    )


def share(text: str) -> float:
    """The share in an argument."""
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


def run(arguments: argparse.Namespace) -> int:
    """Report on the stages of every module."""
    try:
        hlofast_stages = _reader(arguments)
    except (KeyError, ValueError) as error:
        inputs.complain(str(error.args[0]) if error.args else str(error))
        return USAGE
    reader = inputs.Reader(arguments)
    printer = None if arguments.json else output.Printer()
    documents = []
    for found in reader:
        stages = hlofast_stages(found.module)
        document = found.describe() | _describe(stages)
        documents.append(document)
        if printer is not None:
            _print(printer, document, arguments.top or None)
    if printer is None:
        contents = {"modules": output.finite(documents), "errors": reader.errors}
        output.print_json("stages", VERSION, contents)
    return reader.exit_code()


def _reader(arguments: argparse.Namespace) -> Any:
    """What analyses a module; a KeyError or ValueError for arguments without sense."""
    import hlofast
    from hlofast._context import read_bytes

    if arguments.hbm is not None:
        inputs.note_small(arguments.hbm)
    options = {
        "hbm": None if arguments.hbm is None else read_bytes(arguments.hbm),
        "device": None if arguments.device is None else hlofast.devices.get(arguments.device),
        "devices": arguments.devices,
        "most_moved": arguments.most_moved,
    }
    return lambda module: module.stages(**options)


def _describe(stages: Stages) -> dict[str, Any]:
    """The JSON form of one module's stages."""
    sizes = stages._data.marker_sizes()
    memory = stages.memory
    return {
        "markers": [_marker(row, said) for row, said in zip(stages.markers, sizes, strict=True)],
        "sections": [_section(stages, row) for row in stages.sections],
        "stash": [_item(row) for row in stages.stash],
        "boundary": _boundary(stages.boundary),
        "cross_mesh": [_reduction(row) for row in stages.cross_mesh],
        "micro_batches": stages.micro_batches,
        "divisions": [
            {**_only(row, "name", "constant_name", "divisor"), **output.origin(row)}
            for row in stages.divisions
        ],
        "memory": None
        if memory is None
        else {
            "state": memory.state,
            "stash": memory.stash,
            "weight_copies": memory.weight_copies,
            "working_peak": memory.working_peak,
            "available": memory.available,
            "most_successors": memory.most_successors,
        },
        "notes": _notes(stages),
    }


def _only(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}


def _marker(row: dict[str, Any], sizes: list[int] | None) -> dict[str, Any]:
    return {
        **_only(row, "name", "place_name", "calls", "section", "mark", "arrays"),
        "bytes": output.known(row["bytes"]),
        "sizes": sizes,
        "agrees": None if row["agrees"] < 0 else bool(row["agrees"]),
    }


def _section(stages: Stages, row: dict[str, Any]) -> dict[str, Any]:
    return {
        **_only(row, "section", "phase", "instructions", "products", "product_flops", "flops"),
        "start": stages.module[row["start"]].name,
        "end": None if row["end"] < 0 else stages.module[row["end"]].name,
        **{name: output.known(row[name]) for name in ("bytes_in", "bytes_out", "peak")},
    }


def _item(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "index": row["index"],
        "forward_index": output.known(row["forward_index"]),
        **_only(row, "section", "kind", "shape", "name", "opcode"),
        "bytes": output.known(row["bytes"]),
        "weight": row["weight_name"] or None,
        "widened_from": row["widened_from"] or None,
        **output.origin(row),
    }


def _values(table: Table) -> list[dict[str, Any]]:
    return [{**_only(row, "name", "shape", "bytes"), **output.origin(row)} for row in table]


def _boundary(boundary: Boundary | None) -> dict[str, Any] | None:
    if boundary is None:
        return None
    cut = boundary.cut
    return {
        "section": boundary.section,
        "received": _values(boundary.received),
        "received_bytes": boundary.received_bytes,
        "inputs": _values(boundary.inputs),
        "input_bytes": boundary.input_bytes,
        "flops": boundary.flops,
        "ratio": boundary.ratio,
        "is_partial": boundary.is_partial,
        "cut": None
        if cut is None
        else {
            "after": cut.after.name,
            "values": _values(cut.values),
            "bytes": cut.bytes,
            "moved_flops": cut.moved_flops,
            "moved_instructions": cut.moved_instructions,
        },
    }


def _reduction(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **_only(row, "name", "place_name", "section", "shape"),
        "operation": row["operation"] or None,
        "meshes": [int(mesh) for mesh in row["meshes"].split(",") if mesh],
        "bytes": output.known(row["bytes"]),
    }


def _notes(stages: Stages) -> list[dict[str, str]]:
    """What to keep in mind: kind and words."""
    notes: list[dict[str, str]] = []

    def note(kind: str, text: str) -> None:
        notes.append({"kind": kind, "text": text})

    if not len(stages.markers):
        note("no-markers", "there is no pipeline marker, so nothing is known of stages")
        return notes
    summary = stages.module.summary(shapes=1)
    if summary["status"] in ("unoptimised", "annotated"):
        note(
            "global",
            f"the module is {summary['status']}: bytes and FLOPs are those of all devices of the "
            "stage together",
        )
    odd = [row["name"] for row in stages.markers if row["agrees"] != 1]
    if odd:
        note("sizes", f"sizes that markers say are not those of their arrays: {output.names(odd)}")
    if stages.micro_batches is None:
        divisors = sorted({row["divisor"] for row in stages.divisions})
        found = ", ".join(f"{divisor:g}" for divisor in divisors)
        said = f"by different literals: {found}" if found else "by no literal"
        note("micro-batches", f"what the update gets is divided {said}")
    if stages.memory is not None:
        note(
            "peak",
            "the working peak is modelled: the order of the text, results in the memory of "
            "operands that end with them, nothing fused",
        )
    return notes


def _print(printer: output.Printer, document: dict[str, Any], limit: int | None) -> None:
    printer.heading(document["name"])
    printer.facts(_facts(document))
    sections = [
        [
            row["section"],
            row["phase"],
            row["instructions"],
            row["products"],
            row["product_flops"],
            row["flops"],
            row["bytes_in"],
            row["bytes_out"],
            row["peak"],
        ]
        for row in document["sections"]
    ]
    columns = "section|phase|instructions|products|their FLOPs|FLOPs|B in|B out|peak B".split("|")
    printer.table("Sections", columns, sections, len(sections))
    _print_boundary(printer, document["boundary"])
    _print_stash(printer, document["stash"], limit)
    markers = [
        [
            f"{row['section']}${row['mark']}",
            row["place_name"],
            row["calls"],
            row["arrays"],
            row["bytes"],
            "-" if row["sizes"] is None else output.names([f"{size:,}" for size in row["sizes"]]),
        ]
        for row in document["markers"]
    ]
    columns = ["marker", "in the entry", "calls", "arrays", "B", "sizes it says"]
    printer.table("Markers", columns, markers[:limit], len(markers))
    reductions = [
        [
            row["operation"],
            ", ".join(map(str, row["meshes"])) or "-",
            row["shape"],
            row["bytes"],
            row["section"],
            row["place_name"],
        ]
        for row in document["cross_mesh"]
    ]
    columns = ["operation", "meshes", "shape", "B", "section", "in the entry"]
    printer.table("Reductions over meshes", columns, reductions[:limit], len(reductions))
    printer.notes(document["notes"])


def _facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    line = f", line {document['line']:,}" if document["line"] > 1 else ""
    facts = [("file", f"{document['path']}{line}")]
    if not document["markers"]:
        return facts
    count = document["micro_batches"]
    facts.append(("micro-batches", "unknown" if count is None else f"{count:,}"))
    memory = document["memory"]
    if memory is not None:
        copies = output.share(memory["weight_copies"], memory["stash"])
        facts += [
            ("state", output.size(memory["state"])),
            ("stash", f"{output.size(memory['stash'])} per micro-batch; {copies} weight copies"),
            ("working peak", output.size(memory["working_peak"])),
        ]
        if memory["available"] is not None:
            most = memory["most_successors"]
            fits = "unknown" if most is None else f"{most:,}"
            if most == -1:
                fits = "-1: not even one micro-batch fits"
            facts += [("available", output.size(memory["available"])), ("successors", fits)]
    return facts


def _print_boundary(printer: output.Printer, boundary: dict[str, Any] | None) -> None:
    if boundary is None or not boundary["received"]:
        return
    printer.line()
    printer.heading(f"Boundary of {boundary['section']}")
    received = ", ".join(f"{row['name']} {row['shape']}" for row in boundary["received"])
    bytes_received = output.size(boundary["received_bytes"])
    printer.paragraph("  received: ", f"{bytes_received} per micro-batch: {received}")
    cut = boundary["cut"]
    if cut is None:
        printer.paragraph("  cheapest cut: ", "this one")
        return
    values = ", ".join(f"{row['name']} {row['shape']}" for row in cut["values"])
    source = output.source(cut["values"][0]) if cut["values"] else "-"
    printer.paragraph(
        "  cheapest cut: ",
        f"{output.size(cut['bytes'])} after {cut['after']}: {values} ({source}); "
        f"{boundary['ratio']:.4f} times fewer bytes",
    )
    moved = output.share(cut["moved_flops"], boundary["flops"])
    printer.paragraph(
        "  moves: ",
        f"{output.quantity(cut['moved_flops'], 'FLOP')} of the forward pass ({moved}) to the "
        "stage before",
    )


def _print_stash(printer: output.Printer, stash: list[dict[str, Any]], limit: int | None) -> None:
    total = sum(row["bytes"] or 0 for row in stash)
    rows = [
        [
            row["forward_index"],
            _kind(row),
            row["shape"],
            row["bytes"],
            output.share(row["bytes"] or 0, total),
            row["name"],
            output.source(row),
        ]
        for row in sorted(stash, key=lambda row: -(row["bytes"] or 0))[:limit]
    ]
    columns = ["index", "kind", "shape", "B", "share", "made by", "from"]
    printer.table("Kept from forward to backward, per micro-batch", columns, rows, len(stash))


def _kind(row: dict[str, Any]) -> str:
    kind = str(row["kind"]).replace("_", " ")
    if row["weight"]:
        kind += f" of {row['weight']}"
    if row["widened_from"]:
        kind += f" ({row['widened_from']})"
    return kind
