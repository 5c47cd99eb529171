"""What is alive at the peak, why, and what XLA says a program takes."""

from __future__ import annotations

from hlofast import _memory
from hlofast import _text as output
from hlofast.cli import USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast._memory import Memory
    from hlofast.devices import Device

EXAMPLES = """\
examples:
  hlofast memory module_0042.jit_train_step.after_optimizations.txt
  hlofast memory --by scope --top 20 step.txt    which layers hold most at the peak
  hlofast memory --at fusion.12 step.txt         what is alive while fusion.12 runs
  hlofast memory --space vmem step.txt           fast on-chip memory of a TPU program
  hlofast memory --json step.txt | jq '.modules[].live[] | select(.class == "residual")'

Rules: in_place (default) lets results replace operands that end with them; values is XLA's
live-range file; xla keeps parameters, constants and results from beginning to end. The XLA peak
is that of `compiled.memory_analysis()`. Fragmentation is not modelled.
"""
VERSION = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--at", metavar="INSTRUCTION", help="what is alive while it runs, instead of at the peak"
    )
    parser.add_argument(
        "--by", choices=_memory.KEYS, default="class", help="sums at the peak (default class)"
    )
    output.add_top(parser)
    parser.add_argument(
        "--space", metavar="SPACE", help="memory space: hbm (default), vmem, host, a number, or all"
    )
    parser.add_argument("--rule", choices=("in_place", "values", "xla"), default="in_place")
    parser.add_argument("--sizes", choices=("device", "logical"), default="device")
    parser.add_argument("--constants", choices=("last_use", "program"), default="last_use")
    parser.add_argument(
        "--schedule", choices=tuple(_memory.ORDERS), help="another order than the text's"
    )
    parser.add_argument(
        "--xla-file",
        metavar="FILE",
        help="XLA's buffer assignment or memory usage report; found beside FILE if it is there",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="the TPU, for the XLA peak (v5e, v5p, v6e, ...)"
    )
    parser.add_argument("--devices", metavar="FILE.toml", help="further devices and figures")


def run(arguments: argparse.Namespace) -> int:
    """Analyse every module."""
    try:
        _memory.space_number(arguments.space)
    except ValueError as error:
        inputs.complain(str(error))
        return USAGE
    is_device, device = inputs.read_device(arguments)
    if not is_device:
        return USAGE
    if device is not None and device.backend != "tpu":
        inputs.complain(
            f"--device {arguments.device} is no TPU; memory asks only which TPU it is, for the XLA "
            "peak"
        )
        return USAGE
    reader = inputs.Reader(arguments)
    printer = None if arguments.json else output.Printer()
    documents = []
    code = 0
    for found in reader:
        try:
            memory = _analysed(found.module, arguments, device)
            document = found.describe() | _document(memory, arguments)
            document["allocated"] = _allocated(memory, found.path, arguments)
        except KeyError as error:
            inputs.complain(f"{found.path}: {error.args[0]}")
            code = USAGE
            continue
        except OSError as error:
            inputs.complain(f"{arguments.xla_file}: {error.strerror or error}")
            code = USAGE
            continue
        except (ValueError, OverflowError) as error:
            if arguments.at is None:
                reader.failed(found.path, error)
            else:
                inputs.complain(f"{found.path}: {error}")
                code = USAGE
            continue
        if printer is None:
            documents.append(document)
        else:
            _print(printer, document, arguments)
    if printer is None:
        output.print_json("memory", VERSION, {"modules": documents, "errors": reader.errors})
    return reader.exit_code() or code


def _analysed(module: Any, arguments: argparse.Namespace, device: Device | None) -> Memory:
    import warnings

    with warnings.catch_warnings():
        # The notes say it too.
        warnings.simplefilter("ignore")
        memory: Memory = module.memory(
            rule=arguments.rule,
            sizes=arguments.sizes,
            constants=arguments.constants,
            space=arguments.space,
            schedule=arguments.schedule,
            device=device,
        )
    return memory


def _allocated(memory: Memory, path: str, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What XLA's allocator took, where a file says so."""
    named = arguments.xla_file
    beside = path.removesuffix(".txt") + "-buffer-assignment.txt"
    content = memory._module.buffer_assignment
    if named is not None or path.endswith(".txt"):
        try:
            content = inputs.read(named or beside)
            path = named or beside
        except FileNotFoundError:
            if named is not None:
                raise
    if content is None:
        return None
    found = memory.file(content)
    if found.total_bytes is None:
        return None
    return {
        "path": path,
        "total_bytes": found.total_bytes,
        "xla_peak": memory.xla_peak,
    }


def _document(memory: Memory, arguments: argparse.Namespace) -> dict[str, Any]:
    at = memory.at
    table = memory.live if arguments.at is None else memory.live_at(arguments.at)
    largest = memory.without_largest()
    module = memory._module
    if largest:
        row = largest["at"]
        largest["name"] = module[largest["instruction"]].name
        largest["at"] = None if row is None else module[row].name
    live = table.to_pylist()
    for row in live:
        row["source_line"] = row["source_line"] if row["source_file"] else None
        for name in ("source_file", "scope", "op_name"):
            row[name] = row[name] or None
    groups = memory.by(arguments.by).to_pylist()
    return {
        "rule": memory.rule,
        "sizes": memory.sizes,
        "constants": memory.constants,
        "memory_space": memory.space,
        "schedule": memory.schedule,
        "backend": memory.backend,
        "live_peak": memory.live_peak,
        "at": None if at is None else at.name,
        "steps": len(memory._data.sequence()),
        "xla": memory.xla,
        "without_largest": largest or None,
        "allocated": None,
        "by": arguments.by,
        "groups": [
            {
                "key": group[arguments.by] or None,
                "values": group["rows"],
                "bytes": group["bytes"],
                "byte_steps": group["byte_steps"],
            }
            for group in groups
        ],
        "live_at": arguments.at or (None if at is None else at.name),
        "live": live,
        "notes": memory.notes,
    }


def _accounting(document: dict[str, Any]) -> str:
    space = document["memory_space"]
    where = "all memory spaces" if space is None else f"memory space {space}"
    stay = document["constants"] == "program" or document["rule"] == "xla"
    constants = "constants stay" if stay else "constants to their last use"
    sizes = f"{document['sizes']} sizes ({document['backend']})"
    return f"rule {document['rule']}, {sizes}, {where}, {constants}, order: {document['schedule']}"


def _xla(account: dict[str, int]) -> str:
    parts = [("parameters", "argument"), ("results", "output"), ("aliased", "alias")]
    shown = [f"{name} {account[f'{key}_size_in_bytes']:,}" for name, key in parts]
    shown.append(f"constants {account['constant_size_in_bytes']:,}")
    heap = f"heap {account['heap_size_in_bytes']:,} (space {account['heap_memory_space']})"
    return f"{output.size(account['peak_memory_in_bytes'])}: {', '.join([*shown, heap])}"


def _label(by: str, key: str | None) -> str:
    if not key:
        return "(none)"
    return key.replace("_", " ") if by == "class" else key


def _value(row: dict[str, Any]) -> str:
    """A value as people call it: `while.85{9}`."""
    return str(row["name"]) + (row["index"] if row["index"] != "{}" else "")


def _place(row: dict[str, Any]) -> str:
    if row["source_file"]:
        return f"{row['source_file']}:{row['source_line']}"
    return row["op_name"] or row["scope"] or ""


def _print(
    printer: output.Printer, document: dict[str, Any], arguments: argparse.Namespace
) -> None:
    limit = arguments.top or None
    line = f", line {document['line']:,}" if document["line"] > 1 else ""
    peak = document["live_peak"]
    largest = document["without_largest"]
    at = f" at {document['at']}" if document["at"] else ""
    allocated = document["allocated"]
    facts = [
        ("file", f"{document['path']}{line}"),
        ("live peak", f"{output.size(peak)}{at}, of {document['steps']:,} steps"),
        ("XLA peak", _xla(document["xla"])),
        ("counted", _accounting(document)),
    ]
    if allocated is not None:
        more = allocated["total_bytes"] - allocated["xla_peak"]
        gap = f"{abs(more):,} B {'more' if more >= 0 else 'less'} than without fragmentation"
        facts.append(("allocated", f"{output.size(allocated['total_bytes'])}, {gap}"))
    if largest:
        size = output.size(largest["live_peak"])
        facts.append(("next peak", f"{size} at {largest['at']} without {_value(largest)}"))
    printer.heading(document["name"])
    printer.facts(facts)
    groups = document["groups"]
    rows = [
        [
            _label(document["by"], group["key"]),
            group["values"],
            group["bytes"],
            output.share(group["bytes"], peak),
        ]
        for group in groups[:limit]
    ]
    columns = [document["by"].replace("_", " "), "values", "bytes", "share"]
    printer.table(f"At the peak, by {columns[0]}", columns, rows, len(groups))
    live = document["live"]
    total = sum(row["bytes"] for row in live)
    rows = [
        [
            _value(row),
            row["bytes"],
            output.share(row["bytes"], total),
            row["class"].replace("_", " "),
            output.Figure(f"{row['first_step']:,}-{row['last_step']:,}"),
            row["phase"],
            row["shape"],
            _place(row),
        ]
        for row in live[:limit]
    ]
    columns = "value|bytes|share|class|steps|phase|shape|from".split("|")
    printer.table(f"Alive at {document['live_at']}", columns, rows, len(live))
    printer.line()
    for note in document["notes"]:
        printer.paragraph("note: ", note)
    printer.line()
