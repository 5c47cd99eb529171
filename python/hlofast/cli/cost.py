"""What a module costs: FLOPs, transcendentals and bytes, loops counted, and who causes them."""

from __future__ import annotations

from hlofast import _text as output
from hlofast.cli import USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast._cost import Cost

EXAMPLES = """\
examples:
  hlofast cost module_0042.jit_train_step.after_optimizations.txt
  hlofast cost --by scope --depth 4 --top 20 step.txt
  hlofast cost --explain step.txt                where and why XLA's own figures differ
  hlofast cost --xla step.txt                    what XLA's HloCostAnalysis says
  hlofast cost --step-seconds 0.31 --peak-flops 197e12 step.txt
  hlofast cost --json step.txt | jq '.modules[].totals'

As executed (the default), loops count as often as they run, and library calls and kernels as far
as they are known. Every table adds up to the module. FLOPs of a fusion belong to the instructions
inside it, its bytes to the fusion; "not exact" is the share of a row's FLOPs that is modelled,
stated by a kernel's author, or inside a loop of unknown trip count. --rules names a TOML file of
phases for names that are not JAX's:

  [[rule]]
  pattern = "optimizer/.*"                       a regular expression for parts of op_name
  phase = "optimizer"
"""
VERSION = 1
KEYS = ("phase", "scope", "source", "source_file", "opcode", "dtype", "computation")
BACKENDS = ("cpu", "gpu", "tpu")
MODEL = "each operand read once, each result written once, nothing inside fusions"
KNOWN = {
    "from_backend_config": "from backend config",
    "unknown": "of instructions not known in full",
    "unknown_trip_count": "inside loops of unknown trip count, counted once",
}
SHOWN_LOOPS = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--by", choices=KEYS, default="phase", help="rows (default phase)")
    parser.add_argument(
        "--depth",
        type=output.natural,
        default=3,
        metavar="N",
        help="components of a scope, with --by scope (default 3)",
    )
    output.add_top(parser)
    parser.add_argument("--backend", choices=BACKENDS, help="whose sizes (default the module's)")
    inputs.add_rules(parser)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--xla", action="store_true", help="count as XLA does: loops once")
    way.add_argument("--explain", action="store_true", help="show how XLA's figures differ")
    parser.add_argument(
        "--step-seconds", type=positive, metavar="S", help="time of a step, for MFU and HFU"
    )
    parser.add_argument(
        "--peak-flops", type=positive, metavar="P", help="peak of one device in FLOP per second"
    )


def positive(text: str) -> float:
    """The number in an argument; what is not above zero is refused."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def run(arguments: argparse.Namespace) -> int:
    """Count what the modules of every file cost."""
    if (arguments.step_seconds is None) != (arguments.peak_flops is None):
        inputs.complain("--step-seconds and --peak-flops go together")
        return USAGE
    if arguments.xla and arguments.step_seconds is not None:
        inputs.complain("utilization is counted as executed, not with --xla")
        return USAGE
    rules = inputs.read_rules(arguments.rules)
    if rules is None:
        return USAGE
    reader = inputs.Reader(arguments)
    printer = None if arguments.json else output.Printer()
    documents = []
    for found in reader:
        cost = found.module.cost(xla=arguments.xla, backend=arguments.backend, rules=rules)
        document = found.describe() | _describe(cost, arguments)
        if printer is None:
            documents.append(output.finite(document))
        else:
            _print(printer, document, arguments)
    if printer is None:
        by = {"by": arguments.by, "depth": arguments.depth if arguments.by == "scope" else None}
        contents = by | {"modules": documents, "errors": reader.errors}
        output.print_json("cost", VERSION, contents)
    return reader.exit_code()


def _describe(cost: Cost, arguments: argparse.Namespace) -> dict[str, Any]:
    """The JSON form of one module's cost."""
    products = cost.matmuls().to_pylist()
    groups = cost.by(arguments.by, depth=arguments.depth).to_pylist()
    for row in groups:
        row["key"] = row.pop(arguments.by) or None
    by_phase = groups if arguments.by == "phase" else cost.by("phase").to_pylist()
    phases = [row for row in by_phase if row.get("phase", row.get("key")) == "unattributed"]
    unknown = cost._data.unknown_rows().tolist()
    unsized = cost._data.unknown_products().tolist()
    xla = cost.module.cost(xla=True, backend=arguments.backend) if arguments.explain else None
    return {
        "way": "xla" if cost.xla else "executed",
        "backend": cost.backend,
        "totals": _totals(cost),
        "memory_spaces": [] if cost.xla else cost.memory_spaces.to_pylist(),
        "flops_by_provenance": None if cost.xla else cost.flops_by_provenance,
        "bytes_model": MODEL,
        "matmuls": {
            "instructions": len({row["instruction"] for row in products}),
            "flops": None if cost.xla else sum(row["flops"] for row in products),
            "is_lower_bound": bool(unsized) or any(row["is_lower_bound"] for row in products),
        },
        "unknown_products": [
            {"instruction": row, "name": cost.module[row].name} for row in unsized
        ],
        "groups": sorted(groups, key=lambda row: (-row["flops"], -row["bytes_accessed"])),
        "unattributed": {
            name: sum(row[name] for row in phases)
            for name in ("instructions", "flops", "transcendentals", "bytes_accessed")
        },
        "unpriced": [
            row | {"instruction": cost.module[row["instruction"]].name} for row in cost.unpriced
        ],
        "unknown": {
            "instructions": len(unknown),
            "first": [cost.module[row].name for row in unknown[: output.SHOWN_NAMES]],
        },
        "loops": [_loop(row) for row in cost.loops],
        "branches": [_branch(row) for row in cost.branches],
        "utilization": _utilization(cost, arguments),
        "explain": cost.explain().to_pylist() if arguments.explain else None,
        "xla": None if xla is None else _totals(xla),
        "notes": _notes(cost),
    }


def _totals(cost: Cost) -> dict[str, Any]:
    return {
        "flops": cost.flops,
        "transcendentals": cost.transcendentals,
        "bytes_accessed": cost.bytes_accessed,
        "bytes_read": cost.bytes_read,
        "bytes_written": cost.bytes_written,
    }


def _loop(row: dict[str, Any]) -> dict[str, Any]:
    known = {name: None if row[name] < 0 else row[name] for name in ("trip_count", "multiplicity")}
    return {"name": row["name"], **known} | {
        "provenance": row["provenance"],
        "reason": row["reason"],
    }


def _branch(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"is_counted": bool(row["is_counted"])}


def _utilization(cost: Cost, arguments: argparse.Namespace) -> dict[str, Any] | None:
    if arguments.step_seconds is None:
        return None
    return cost.mfu(arguments.step_seconds, arguments.peak_flops).as_dict()


def _notes(cost: Cost) -> list[dict[str, Any]]:
    """What to keep in mind about the figures: kind, figures by name, words."""
    summary, partitions = cost.module.summary(), cost.module.num_partitions
    status = summary.status
    notes: list[dict[str, Any]] = []

    def note(kind: str, text: str, **figures: int | None) -> None:
        notes.append({"kind": kind, "text": text, "figures": figures})

    if summary.is_unfused:
        values = summary.values
        ports = (values["parameter_bytes"], values["output_bytes"])
        least = None if None in ports else sum(ports)
        note(
            "unfused",
            f"the module is {status}: its bytes are unfused bytes, several times what runs after "
            f"fusion; reading its parameters and writing its results once takes "
            f"{output.size(least)}",
            lower_bound_bytes=least,
        )
    if partitions > 1 and summary.is_whole:
        note(
            "global",
            f"not partitioned yet: figures are of all {partitions:,} devices together, and there "
            f"are no collectives",
            num_partitions=partitions,
        )
    elif partitions > 1:
        note(
            "per-device",
            f"partitioned: figures are of one of {partitions:,} devices",
            num_partitions=partitions,
        )
    dead = cost._data.dead_rows().tolist()
    if dead:
        flops = cost._data.column("flops")
        note(
            "dead",
            f"{output.counted(len(dead), 'instruction')} (first {cost.module[dead[0]].name}) "
            f"compute what nothing needs; they count here, but a compiler removes them",
            instructions=len(dead),
            flops_once=sum(flops[row] for row in dead),
        )
    if not cost.xla:
        conditionals = len({row["instruction"] for row in cost.branches})
        if conditionals:
            note(
                "branches",
                f"{output.counted(conditionals, 'conditional')}: of each the branch with the most "
                f"FLOPs counts, the others do not",
                conditionals=conditionals,
            )
    if any(row["multiplicity"] < 0 for row in cost.computations):
        note(
            "overflow", "some instructions run more often than 64 bits count; sums are lower bounds"
        )
    if not cost._data.has_scopes:
        note("no-names", "no instruction has an op_name, so that phases and scopes are not known")
    if cost.scopes_are_merged:
        note(
            "merged-scopes",
            "computations are called from too many places to tell their scopes apart; each "
            "stands under one of its call sites",
        )
    return notes


def _print(
    printer: output.Printer, document: dict[str, Any], arguments: argparse.Namespace
) -> None:
    printer.heading(document["name"])
    printer.facts(_xla_facts(document) if arguments.xla else _facts(document))
    _print_groups(printer, document, arguments)
    _print_utilization(printer, document["utilization"])
    _print_loops(printer, document["loops"], arguments)
    _print_branches(printer, document, arguments)
    _print_unknown(printer, document, arguments.top or None)
    if document["explain"] is not None:
        _print_explanation(printer, document)
    printer.notes(document["notes"])


def _facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    totals = document["totals"]
    flops = totals["flops"]
    known = ", ".join(
        f"{output.share(count, flops)} {KNOWN.get(how, how)}"
        for how, count in document["flops_by_provenance"].items()
        if count
    )
    products = document["matmuls"]
    least = "at least " if products["is_lower_bound"] else ""
    others = [
        (
            f"memory space {space['memory_space']}",
            f"{output.size(space['bytes_read'])} read, "
            f"{output.size(space['bytes_written'])} written",
        )
        for space in document["memory_spaces"]
        if space["memory_space"]
    ]
    return [
        *_place(document),
        ("counted", f"as executed, sizes of {document['backend']}"),
        ("FLOPs", output.quantity(flops, "FLOP")),
        ("transcendentals", output.quantity(totals["transcendentals"])),
        ("HBM read", output.size(totals["bytes_read"])),
        ("HBM written", output.size(totals["bytes_written"])),
        *others,
        ("FLOPs known", known),
        ("bytes known", f"modelled: {MODEL}"),
        (
            "matmuls",
            f"{output.counted(products['instructions'], 'instruction')}, "
            f"{least}{output.quantity(products['flops'], 'FLOP')}, "
            f"{output.share(products['flops'], flops)} of the FLOPs",
        ),
        _unattributed(document),
    ]


def _unattributed(document: dict[str, Any]) -> tuple[str, str]:
    totals, rest = document["totals"], document["unattributed"]
    text = (
        f"{output.share(rest['flops'], totals['flops'])} of the FLOPs, "
        f"{output.share(rest['bytes_accessed'], totals['bytes_accessed'])} of the bytes "
        "belong to no known phase"
    )
    return "unattributed", text


def _xla_facts(document: dict[str, Any]) -> list[tuple[str, str]]:
    totals = document["totals"]
    # libtpu takes estimates and knows some calls of its own; other backends know none.
    calls = "every custom call -1 FLOP and -1 byte"
    if document["backend"] == "tpu":
        calls = "custom calls as their estimates say, others -1 FLOP and -1 byte"
    return [
        *_place(document),
        (
            "counted",
            f"as XLA's HloCostAnalysis, sizes of {document['backend']}: every loop once, {calls}",
        ),
        ("flops", output.quantity(totals["flops"])),
        ("transcendentals", output.quantity(totals["transcendentals"])),
        ("bytes accessed", output.size(totals["bytes_accessed"])),
        _unattributed(document),
    ]


def _place(document: dict[str, Any]) -> list[tuple[str, str]]:
    line = f", line {document['line']:,}" if document["line"] > 1 else ""
    return [("file", f"{document['path']}{line}")]


def _print_groups(
    printer: output.Printer, document: dict[str, Any], arguments: argparse.Namespace
) -> None:
    groups, totals = document["groups"], document["totals"]
    title = f"By {arguments.by.replace('_', ' ')}"
    if arguments.by == "scope":
        title += f" to depth {arguments.depth}"
    columns = f"{arguments.by}|instructions|FLOPs|share|transcendentals|bytes|share".split("|")
    if not arguments.xla:
        columns.insert(4, "not exact")
    shown = groups[: arguments.top or None]
    rows = [
        [
            output.label(row["key"] or "(none)"),
            row["instructions"],
            row["flops"],
            output.share(row["flops"], totals["flops"]),
            *_not_exact(row),
            row["transcendentals"],
            row["bytes_accessed"],
            output.share(row["bytes_accessed"], totals["bytes_accessed"]),
        ]
        for row in shown
    ]
    printer.table(title, columns, rows, len(groups))


def _not_exact(row: dict[str, Any]) -> list[str]:
    """The share of a group's FLOPs that is not known exactly; XLA's figures are what they are."""
    if "exact_flops" not in row:
        return []
    return [output.share(row["flops"] - row["exact_flops"], row["flops"])]


def _print_utilization(printer: output.Printer, figures: dict[str, Any] | None) -> None:
    if figures is None:
        return
    rows = [
        ["matrix products", *(output.Figure(f"{100 * figures[name]:.2f} %") for name in pair)]
        if pair[0].startswith("matmul")
        else ["all operations", *(output.Figure(f"{100 * figures[name]:.2f} %") for name in pair)]
        for pair in (("matmul_mfu", "matmul_hfu"), ("mfu", "hfu"))
    ]
    title = (
        f"Utilization at {figures['step_seconds']:g} s per step and "
        f"{figures['peak_flops']:g} FLOP/s per device (HFU counts recomputation, MFU does not)"
    )
    printer.table(title, ["of", "MFU", "HFU"], rows, len(rows))
    if figures["num_devices"] > 1:
        text = f"not partitioned yet: FLOPs were divided by {figures['num_devices']:,} devices"
        printer.paragraph("note: ", text)
    if figures["is_lower_bound"]:
        text = "lower bounds: FLOPs that are not known are missing (see unknown below)"
        printer.paragraph("note: ", text)


def _print_loops(
    printer: output.Printer, loops: list[dict[str, Any]], arguments: argparse.Namespace
) -> None:
    limit = (arguments.top or None) if arguments.explain else SHOWN_LOOPS
    order = sorted(
        loops,
        key=lambda loop: (
            loop["trip_count"] is not None,
            -(loop["trip_count"] or 1) * (loop["multiplicity"] or 1),
        ),
    )
    rows = [
        [
            loop["name"],
            "unknown" if loop["trip_count"] is None else loop["trip_count"],
            "beyond 64 bits" if loop["multiplicity"] is None else loop["multiplicity"],
            loop["provenance"].replace("_", " "),
            loop["reason"],
        ]
        for loop in order[:limit]
    ]
    title = "Loops (counted once)" if arguments.xla else "Loops"
    columns = ["loop", "trip count", "started", "known", "because"]
    printer.table(title, columns, rows, len(loops))


def _print_branches(
    printer: output.Printer, document: dict[str, Any], arguments: argparse.Namespace
) -> None:
    if not arguments.explain:
        return
    branches = document["branches"]
    rows = [
        [b["name"], b["branch"], b["computation"], b["is_counted"], b["flops"], b["bytes_accessed"]]
        for b in branches[: arguments.top or None]
    ]
    columns = ["conditional", "branch", "computation", "counted", "FLOPs", "bytes"]
    printer.table("Branches, one execution each", columns, rows, len(branches))


def _print_unknown(printer: output.Printer, document: dict[str, Any], limit: int | None) -> None:
    if document["way"] == "xla":
        return
    targets = document["unpriced"]
    rows = [
        [row["target"], row["instructions"], row["executions"], row["instruction"]]
        for row in targets[:limit]
    ]
    printer.table(
        "Custom calls of unknown cost (0 FLOPs counted)",
        ["target", "instructions", "executions", "first"],
        rows,
        len(targets),
    )
    endless = [loop["name"] for loop in document["loops"] if loop["trip_count"] is None]
    if endless:
        printer.line()
        loops = output.counted(len(endless), "loop")
        text = f"{loops} of unknown trip count, counted once: {output.names(endless)}"
        printer.paragraph("unknown: ", text)
    printer.unknown_products(document["unknown_products"])
    unknown = document["unknown"]
    if unknown["instructions"]:
        printer.line()
        names = output.names(unknown["first"], unknown["instructions"])
        count = output.counted(unknown["instructions"], "instruction")
        printer.paragraph("unknown: ", f"{count} of unknown cost: {names}")


def _print_explanation(printer: output.Printer, document: dict[str, Any]) -> None:
    totals, xla = document["totals"], document["xla"]
    rows = [
        [name.replace("_", " "), totals[name], xla[name], output.share(xla[name], totals[name])]
        for name in ("flops", "transcendentals", "bytes_accessed")
    ]
    columns = ["figure", "as executed", "XLA's", "XLA's share"]
    printer.table("XLA's HloCostAnalysis beside these figures", columns, rows, len(rows))
    printer.line()
    printer.heading("Where they differ in this module")
    for row in document["explain"]:
        if row["instructions"]:
            count = output.counted(row["instructions"], "instruction")
            printer.line(f"{row['rule']}: {count}")
            printer.paragraph("  XLA   ", row["xla"])
            printer.paragraph("  here  ", row["executed"])
