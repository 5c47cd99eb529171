"""What a module is: how far the compiler has come, what goes in and out, what it is made of."""

from __future__ import annotations

from hlofast import _text as output
from hlofast.cli import inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

EXAMPLES = """\
examples:
  hlofast summary module_0042.jit_train_step.after_optimizations.txt
  hlofast summary --limit 0 step.txt             every row of every table
  hlofast summary --json step.txt | jq '.modules[].opcodes'
  gsutil cat gs://bucket/step.txt.gz | hlofast summary -

The status is what the passes left behind: unoptimised (as the framework wrote it), annotated
(with shardings), partitioned (one device's program), optimised (with fusions or library calls),
scheduled (text order is the order of execution). Sizes are unpadded.
"""
VERSION = 1
ALL = 1 << 31


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--limit",
        type=output.natural,
        default=10,
        metavar="N",
        help="rows per table, and shapes in JSON; 0 for all (default 10)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Summarise the modules of every file."""
    reader = inputs.Reader(arguments)
    printer = None if arguments.json else output.Printer()
    documents = []
    shapes = arguments.limit or ALL
    for found in reader:
        document = found.describe() | found.module.summary(shapes=shapes)
        if printer is None:
            documents.append(document)
        else:
            _print(printer, document, arguments.limit or None)
    if printer is None:
        output.print_json("summary", VERSION, {"modules": documents, "errors": reader.errors})
    return reader.exit_code()


def _print(printer: output.Printer, document: dict[str, Any], limit: int | None) -> None:
    entry = document["entry"]
    donation = document["donation"]
    counts = document["counts"]
    printer.heading(document["name"])
    printer.facts(
        [
            ("file", _place(document)),
            ("status", f"{document['status']} ({document['status_reason']})"),
            ("backend", backend(document)),
            ("devices", devices(document)),
            (
                "size",
                f"{output.counted(counts['instructions'], 'instruction')} in "
                f"{output.counted(counts['computations'], 'computation')}, "
                f"{document['text_bytes']:,} B of text" + implicit(counts["implicit_instructions"]),
            ),
            (
                "entry",
                f"{entry['name']}, {output.counted(counts['entry_instructions'], 'instruction')}",
            ),
            ("parameters", _ports(entry["parameters"], entry["parameter_bytes"])),
            ("results", _ports(entry["outputs"], entry["output_bytes"])),
            ("donation", _donation(donation)),
        ]
    )

    def table(title: str, columns: str, rows: list[dict[str, Any]], *keys: str) -> None:
        shown = [[row[key] for key in keys] for row in rows[:limit]]
        printer.table(title, columns.split("|"), shown, len(rows))

    parameters = sorted(entry["parameters"], key=lambda port: -(port["bytes"] or 0))
    outputs = sorted(entry["outputs"], key=lambda port: -(port["bytes"] or 0))
    computations = sorted(document["computations"], key=lambda row: -row["instructions"])
    table(
        "Parameters by size",
        "number|name|shape|bytes|donated|argument",
        parameters,
        *("number", "instruction", "shape", "bytes", "donated", "op_name"),
    )
    table(
        "Results by size",
        "number|computed by|shape|bytes|in place of",
        [port | {"alias": _alias(port)} for port in outputs],
        *("number", "instruction", "shape", "bytes", "alias"),
    )
    table(
        "Opcodes",
        "opcode|instructions|in entry",
        document["opcodes"],
        *("opcode", "instructions", "entry_instructions"),
    )
    table(
        "Largest shapes outside fusions",
        "shape|bytes|instructions|first",
        document["shapes"],
        *("shape", "bytes", "instructions", "instruction"),
    )
    table("Fusions", "kind|instructions", document["fusions"], "kind", "instructions")
    table("Custom calls", "target|instructions", document["custom_calls"], "target", "instructions")
    table(
        "Computations by size",
        "computation|instructions|role|callers",
        computations,
        *("name", "instructions", "role", "callers"),
    )
    printer.line()


def _place(document: dict[str, Any]) -> str:
    line = f", line {document['line']:,}" if document["line"] > 1 else ""
    return f"{document['path']}{line}"


def backend(document: dict[str, Any]) -> str:
    """Whose compiler it was, and how that is known."""
    if document["backend"] is None:
        return "unknown"
    return f"{document['backend']} ({document['backend_reason']})"


def devices(document: dict[str, Any]) -> str:
    """Empty where both are 1, which is also what headers without these attributes mean."""
    partitions, replicas = document["num_partitions"], document["replica_count"]
    if partitions == replicas == 1:
        return ""
    return f"{output.counted(partitions, 'partition')}, {output.counted(replicas, 'replica')}"


def implicit(count: int) -> str:
    """Instructions that a text implies and does not write, which its size leaves out."""
    return f"; the text implies {count:,} more" if count else ""


def _ports(ports: list[dict[str, Any]], total: int | None) -> str:
    return f"{output.counted(len(ports), 'value')}, {output.size(total)}"


def _alias(port: dict[str, Any]) -> str | None:
    number = port["aliased_parameter"]
    return None if number is None else f"parameter {number}"


def _donation(donation: dict[str, Any]) -> str:
    aliases, donors = donation["aliases"], donation["buffer_donors"]
    if not aliases and not donors:
        return "nothing is donated"
    parts = []
    if aliases:
        covered = output.size(donation["aliased_bytes"])
        parts.append(f"{output.counted(aliases, 'alias', 'aliases')} of {covered}")
    if donors:
        parts.append(output.counted(donors, "buffer donor"))
    return ", ".join(parts)
