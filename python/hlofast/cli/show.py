"""One instruction or computation in context: what it is, what it reads, who reads it."""

from __future__ import annotations

from hlofast import _text as output
from hlofast.cli import USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast import Computation, Instruction, Module

EXAMPLES = """\
examples:
  hlofast show step.txt fusion.12
  hlofast show step.txt main.42                  a computation
  hlofast show step.txt region_0.24/add.3        one of several add.3
  hlofast show --json step.txt all-reduce.1 | jq '.found[].operands'

NAME is written with or without the leading %. Where several computations have an instruction of
that name, say which with COMPUTATION/NAME.
"""
VERSION = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser, several=False)
    parser.add_argument("name", metavar="NAME", help="an instruction or a computation")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--limit",
        type=output.natural,
        default=20,
        metavar="N",
        help="rows per table, 0 for all (default 20)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show NAME in every module that has it."""
    reader = inputs.Reader(arguments)
    documents: list[dict[str, Any]] = []
    ambiguous = False
    for found in reader:
        matches = list(_matches(found.module, arguments.name))
        if len({document["kind"] for document in matches}) == 1 and len(matches) > 1:
            ambiguous = True
            places = ", ".join(f"{m['computation']}/{m['instruction']}" for m in matches[:10])
            more = f" and {len(matches) - 10} more" if len(matches) > 10 else ""
            inputs.complain(
                f"{found.path}: {len(matches)} instructions are called "
                f"{arguments.name!r}: {places}{more}"
            )
        else:
            documents += [found.describe() | document for document in matches]
    if arguments.json:
        output.print_json("show", VERSION, {"found": documents, "errors": reader.errors})
    else:
        printer = output.Printer()
        for document in documents:
            _print(printer, document, arguments.limit or None)
    if not documents and not ambiguous and reader.exit_code() == 0:
        inputs.complain(f"{reader.files[0]}: nothing is called {arguments.name!r}")
    return reader.exit_code() or (0 if documents and not ambiguous else USAGE)


def _matches(module: Module, name: str) -> list[dict[str, Any]]:
    place, _, plain = name.rpartition("/")
    plain, place = plain.removeprefix("%"), place.removeprefix("%")
    if not place and plain in module.computations:
        found = [_computation(module, module.computations[plain])]
    else:
        found = []
    for computation in module.computations:
        if plain in computation.instructions and place in ("", computation.name):
            found.append(_instruction(computation.instructions[plain]))
    return found


def _reference(instruction: Instruction) -> dict[str, str]:
    return {
        "name": instruction.name,
        "opcode": instruction.opcode,
        "shape": str(instruction.shape),
        "computation": instruction.computation.name,
    }


def _instruction(instruction: Instruction) -> dict[str, Any]:
    metadata = instruction.metadata
    source = instruction.source
    return {
        "kind": "instruction",
        "computation": instruction.computation.name,
        "instruction": instruction.name,
        "opcode": instruction.opcode,
        "shape": str(instruction.shape),
        "bytes": instruction.shape.bytes,
        "is_root": instruction.is_root,
        "is_implicit": instruction.is_implicit,
        "text_line": instruction.text_line,
        "operands": [_reference(operand) for operand in instruction.operands],
        "users": [_reference(user) for user in instruction.users],
        "called_computations": [c.name for c in instruction.called_computations],
        "attributes": instruction.attributes.texts(),
        "op_name": metadata.op_name if metadata else None,
        "source_file": source.file if source else None,
        "source_line": source.line if source else None,
        "text": instruction.text,
    }


def _computation(module: Module, computation: Computation) -> dict[str, Any]:
    (usage,) = (row for row in module.summary()["computations"] if row["name"] == computation.name)
    return {
        "kind": "computation",
        "computation": computation.name,
        "role": usage["role"],
        "instructions": usage["instructions"],
        "text_line": computation.text_line,
        "parameters": [_reference(parameter) for parameter in computation.parameters],
        "root": _reference(computation.root) if computation.root else None,
        "callers": [_reference(caller) for caller in computation.callers],
        "text": computation.text,
    }


def _print(printer: output.Printer, document: dict[str, Any], limit: int | None) -> None:
    if document["kind"] == "instruction":
        _print_instruction(printer, document, limit)
    else:
        _print_computation(printer, document, limit)
    printer.line()


def _references(
    printer: output.Printer, title: str, rows: list[dict[str, str]], limit: int | None
) -> None:
    cells = [[row["name"], row["opcode"], row["shape"]] for row in rows[:limit]]
    printer.table(title, ["name", "opcode", "shape"], cells, len(rows))


def _print_instruction(
    printer: output.Printer, document: dict[str, Any], limit: int | None
) -> None:
    place = document["computation"] + (", its root" if document["is_root"] else "")
    source = document["source_file"]
    printer.heading(f"{document['instruction']}: {document['opcode']}")
    printer.facts(
        [
            ("file", _place(document)),
            ("computation", place),
            ("shape", document["shape"]),
            ("bytes", output.size(document["bytes"])),
            ("calls", ", ".join(document["called_computations"])),
            ("op_name", document["op_name"] or ""),
            ("source", f"{source}:{document['source_line']}" if source else ""),
            ("note", "implied by the text, not written in it" if document["is_implicit"] else ""),
        ]
    )
    _references(printer, "Operands", document["operands"], limit)
    _references(printer, "Users", document["users"], limit)
    hidden = {"metadata", "calls", "to_apply", "body", "condition"}
    attributes = [[k, v] for k, v in document["attributes"].items() if k not in hidden]
    printer.table("Attributes", ["key", "value"], attributes[:limit], len(attributes))


def _print_computation(
    printer: output.Printer, document: dict[str, Any], limit: int | None
) -> None:
    root = document["root"]
    printer.heading(f"{document['computation']}: {document['role']} computation")
    printer.facts(
        [
            ("file", _place(document)),
            ("size", output.counted(document["instructions"], "instruction")),
            ("root", f"{root['name']}: {root['opcode']} {root['shape']}" if root else ""),
        ]
    )
    _references(printer, "Parameters", document["parameters"], limit)
    callers = [[row["name"], row["opcode"], row["computation"]] for row in document["callers"]]
    printer.table("Callers", ["name", "opcode", "in computation"], callers[:limit], len(callers))
    lines = document["text"].splitlines()
    shown = lines[: limit + 1] if limit else lines
    printer.line()
    for line in shown:
        printer.line(line)
    if len(shown) < len(lines):
        printer.line(f"… {output.counted(len(lines) - len(shown), 'more line')} (--limit 0)")


def _place(document: dict[str, Any]) -> str:
    line = document["text_line"]
    module = f"module {document['name']}"
    return (
        f"{document['path']}, {module}"
        if line is None
        else f"{document['path']}:{line:,}, {module}"
    )
