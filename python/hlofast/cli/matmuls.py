"""Every matrix product: dots, convolutions, GEMM calls; M, N, K, types, how often, from where."""

from __future__ import annotations

from hlofast import _text as output
from hlofast.cli import USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

EXAMPLES = """\
examples:
  hlofast matmuls module_0042.jit_train_step.after_optimizations.txt
  hlofast matmuls --by phase step.txt
  hlofast matmuls --by scope --depth 4 step.txt
  hlofast matmuls --by source --top 20 step.txt  which lines multiply most
  hlofast matmuls --json step.txt | jq '.modules[].matmuls[] | select(.k < 128)'

FLOPs are 2 * batch * M * N * K times the executions; convolutions count the taps that meet their
input. Types are those of the operands, of the result and of the accumulation.
"""
VERSION = 1
KEYS = ("phase", "scope", "source", "source_file", "kind", "dtype", "provenance")
"""What --by takes; source is file and line, dtype the types of operands and result."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--by", choices=KEYS, help="totals instead of single products")
    parser.add_argument(
        "--depth",
        type=output.natural,
        metavar="N",
        help="components of a scope, with --by scope (default all)",
    )
    output.add_top(parser)
    inputs.add_rules(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the matrix products of every module."""
    rules = inputs.read_rules(arguments.rules)
    if rules is None:
        return USAGE
    reader = inputs.Reader(arguments)
    printer = None if arguments.json else output.Printer()
    documents = []
    for found in reader:
        cost = found.module.cost(rules=rules)
        products = cost.matmuls().to_pylist()
        unsized = cost._data.unknown_products().tolist()
        loops = [row["name"] for row in cost.loops if row["trip_count"] < 0]
        for row in products:
            row["is_lower_bound"] = bool(row["is_lower_bound"])
            row["source_line"] = row["source_line"] if row["source_file"] else None
            row["source_file"] = row["source_file"] or None
            row["multiplicity"] = None if row["multiplicity"] < 0 else row["multiplicity"]
        products.sort(key=lambda row: -row["flops"])
        document = found.describe() | {
            "totals": {
                "instructions": len({row["instruction"] for row in products}),
                "flops": sum(row["flops"] for row in products),
                "is_lower_bound": bool(unsized) or any(row["is_lower_bound"] for row in products),
            },
            "groups": _groups(products, arguments) if arguments.by else None,
            "matmuls": products,
            "unknown_products": [
                {"instruction": row, "name": found.module[row].name} for row in unsized
            ],
            "loops_of_unknown_trip_count": loops,
        }
        if printer is None:
            documents.append(document)
        else:
            _print(printer, document, arguments)
    if printer is None:
        depth = arguments.depth if arguments.by == "scope" else None
        by = {"by": arguments.by, "depth": depth}
        contents = by | {"modules": documents, "errors": reader.errors}
        output.print_json("matmuls", VERSION, contents)
    return reader.exit_code()


def _source(row: dict[str, Any]) -> str | None:
    file = row["source_file"]
    return f"{file}:{row['source_line']}" if file else None


def _types(row: dict[str, Any]) -> str:
    types = f"{row['lhs_dtype']} {row['rhs_dtype']} -> {row['output_dtype']}"
    accumulation = row["accumulation_dtype"]
    return types if accumulation == row["output_dtype"] else f"{types} ({accumulation})"


def _times(row: dict[str, Any]) -> object:
    if row["multiplicity"] is None:
        return "beyond 64 bits"
    return (
        output.Figure(f">= {row['multiplicity']:,}")
        if row["is_lower_bound"]
        else row["multiplicity"]
    )


def _key(row: dict[str, Any], by: str, depth: int | None) -> str | None:
    if by == "source":
        return _source(row)
    if by == "scope" and depth is not None:
        return _to_depth(row["scope"], depth) or None
    return _types(row) if by == "dtype" else row[by] or None


def _to_depth(scope: str, depth: int) -> str:
    """The first components of a scope; a slash inside brackets parts none, as in `Cost.by`."""
    open_brackets = found = 0
    for at, character in enumerate(scope):
        if character in "([{":
            open_brackets += 1
        elif character in ")]}":
            open_brackets = max(open_brackets - 1, 0)
        elif character == "/" and not open_brackets:
            found += 1
            if found == depth:
                return scope[:at]
    return scope if depth else ""


def _groups(products: list[dict[str, Any]], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    members: dict[str | None, set[int]] = {}
    flops: dict[str | None, int] = {}
    for row in products:
        key = _key(row, arguments.by, arguments.depth)
        members.setdefault(key, set()).add(row["instruction"])
        flops[key] = flops.get(key, 0) + row["flops"]
    groups = [
        {"key": key, "instructions": len(rows), "flops": flops[key]}
        for key, rows in members.items()
    ]
    return sorted(groups, key=lambda group: -group["flops"])


def _print(
    printer: output.Printer, document: dict[str, Any], arguments: argparse.Namespace
) -> None:
    products, totals = document["matmuls"], document["totals"]
    limit = arguments.top or None
    line = f", line {document['line']:,}" if document["line"] > 1 else ""
    least = "at least " if totals["is_lower_bound"] else ""
    printer.heading(document["name"])
    printer.facts(
        [
            ("file", f"{document['path']}{line}"),
            ("matmuls", output.counted(totals["instructions"], "instruction")),
            ("FLOPs", least + output.quantity(totals["flops"], "FLOP")),
        ]
    )
    if arguments.by:
        groups = document["groups"]
        rows = [
            [
                output.label(group["key"] or "(none)"),
                group["instructions"],
                group["flops"],
                output.share(group["flops"], totals["flops"]),
            ]
            for group in groups[:limit]
        ]
        columns = [arguments.by, "instructions", "FLOPs", "share"]
        title = f"By {arguments.by.replace('_', ' ')}"
        if arguments.by == "scope" and arguments.depth is not None:
            title += f" to depth {arguments.depth}"
        printer.table(title, columns, rows, len(groups))
    else:
        rows = [
            [
                row["name"],
                row["kind"],
                row["batch"],
                row["m"],
                row["n"],
                row["k"],
                _types(row),
                _times(row),
                row["flops"],
                output.share(row["flops"], totals["flops"]),
                row["provenance"].replace("_", " "),
                row["phase"],
                output.label(_source(row) or row["scope"]),
            ]
            for row in products[:limit]
        ]
        columns = "name|kind|batch|M|N|K|types|times|FLOPs|share|known|phase|from".split("|")
        printer.table("By FLOPs", columns, rows, len(products))
    open_products = {row["instruction"] for row in products if row["is_lower_bound"]}
    loops = document["loops_of_unknown_trip_count"]
    if open_products and loops:
        printer.line()
        count = output.counted(len(open_products), "product")
        text = f"{count} inside loops of unknown trip count, counted once: {output.names(loops)}"
        printer.paragraph("unknown: ", text)
    printer.unknown_products(document["unknown_products"])
    printer.line()
