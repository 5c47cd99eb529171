"""A computation, or what is around an instruction, as a graph for layout tools."""

from __future__ import annotations

import sys

from hlofast import _text as output
from hlofast.cli import UNREADABLE, USAGE, inputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from hlofast._core import Instruction
    from hlofast._graph import Graph
    from hlofast._module import Module

EXAMPLES = """\
examples:
  hlofast graph --around fusion.12 --depth 3 step.txt | dot -Tsvg -o fusion.svg
  hlofast graph --computation region_1.2 step.txt -o region.dot
  hlofast graph --inside all step.txt -o step.json        for Model Explorer
  hlofast graph --around all-reduce.5 --json step.txt | jq '.modules[].edges'

Nodes are instructions, edges go from operands to users; dashed ones are control dependencies,
dotted ones go into and out of what is called. --inside says which called computations are shown
inside their callers, as clusters or layers. -o names ending in .json are Model Explorer's, others
DOT. For more nodes than layout tools take, --around, --inside none or --force.
"""
VERSION = 1
FORMS = ("dot", "model-explorer")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser, several=False)
    parser.add_argument(
        "--computation", metavar="NAME", help="the computation to show (default the entry)"
    )
    parser.add_argument(
        "--around", metavar="NAME", help="show what is around this instruction instead"
    )
    parser.add_argument(
        "--depth",
        type=output.natural,
        default=2,
        metavar="N",
        help="operands and users how far from it (default 2)",
    )
    parser.add_argument(
        "--inside",
        choices=("fusions", "all", "none"),
        default="fusions",
        help="whose called computations are shown inside their callers (default fusions)",
    )
    parser.add_argument("--format", choices=FORMS, help="default by the name, else dot")
    parser.add_argument("-o", "--output", metavar="PATH", help="write to PATH, all or nothing")
    parser.add_argument("--force", action="store_true", help="even if no tool can lay it out")
    parser.add_argument("--json", action="store_true", help="print nodes and edges as one document")


def run(arguments: argparse.Namespace) -> int:
    """Write the graph of the module in the file."""
    if arguments.json and arguments.output:
        inputs.complain("--json prints nodes and edges; it does not go with -o")
        return USAGE
    reader = inputs.Reader(arguments)
    found = inputs.only(reader)
    graph = None if found is None else _graph(found.module, found.path, arguments)
    if arguments.json:
        documents = []
        if found is not None and graph is not None:
            documents.append(found.describe() | _describe(graph, arguments))
        output.print_json("graph", VERSION, {"modules": documents, "errors": reader.errors})
    if graph is None:
        return reader.exit_code() or USAGE
    if arguments.json:
        return reader.exit_code()
    try:
        text = _text(graph, arguments)
    except ValueError as error:
        # The library's advice as options.
        what = str(error).partition(": ")[0]
        first = "--around NAME" if arguments.around is None else "a smaller --depth"
        inside = "" if arguments.inside == "none" else " --inside none,"
        inputs.complain(f"{what}: give {first},{inside} or --force")
        return USAGE
    content = text.encode("utf-8", "replace")
    if arguments.output is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return reader.exit_code()
    from hlofast._files import replacing

    try:
        with replacing(arguments.output) as file:
            file.write(content)
    except OSError as error:
        inputs.complain(f"{arguments.output}: {error.strerror or error}")
        return UNREADABLE
    _print(output.Printer(), graph, arguments)
    return reader.exit_code()


def _graph(module: Module, path: str, arguments: argparse.Namespace) -> Graph | None:
    """The graph that is asked for; None, and said why, if there is nothing of that name."""
    computation = arguments.computation and arguments.computation.removeprefix("%")
    if computation and computation not in module.computations:
        inputs.complain(f"{path}: no computation is called {computation!r}")
        return None
    if arguments.around is None:
        return module.graph(computation, inside=arguments.inside)
    name = arguments.around.removeprefix("%")
    matches = _matches(module, computation, name)
    if not matches:
        inputs.complain(f"{path}: no instruction is called {name!r}")
        return None
    if len(matches) > 1:
        places = output.names([one.computation.name for one in matches])
        inputs.complain(
            f"{path}: {len(matches)} instructions are called {name!r}; --computation says which: "
            f"{places}"
        )
        return None
    return module.graph(around=matches[0], depth=arguments.depth, inside=arguments.inside)


def _matches(module: Module, computation: str | None, name: str) -> list[Instruction]:
    found = []
    for one in module.computations:
        if computation in (None, one.name) and name in one.instructions:
            found.append(one.instructions[name])
    return found


def _text(graph: Graph, arguments: argparse.Namespace) -> str:
    if _form(arguments) == "dot":
        return graph.to_dot(force=arguments.force)
    import json

    document = graph.to_model_explorer(force=arguments.force)
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _print(printer: output.Printer, graph: Graph, arguments: argparse.Namespace) -> None:
    """What was written."""
    around, computation = graph.around, graph.computation
    shown = f"computation {computation.name}" if computation is not None else ""
    if around is not None:
        shown = f"{around.name}, depth {arguments.depth}"
    printer.heading(graph.module.name)
    printer.facts(
        [
            ("graph", f"{arguments.output}, {_form(arguments)}"),
            ("around" if around is not None else "of", shown),
            ("nodes", f"{len(graph):,}"),
            ("edges", f"{len(graph.edges):,}"),
        ]
    )
    printer.line()


def _form(arguments: argparse.Namespace) -> str:
    """The format of the graph."""
    by_name = "model-explorer" if (arguments.output or "").endswith(".json") else "dot"
    return arguments.format or by_name


def _describe(graph: Graph, arguments: argparse.Namespace) -> dict[str, Any]:
    """The JSON form of a graph."""
    return {
        "computation": None if graph.computation is None else graph.computation.name,
        "around": None if graph.around is None else graph.around.row,
        "depth": None if graph.around is None else arguments.depth,
        "inside": graph.inside,
        "nodes": graph.nodes.to_pylist(),
        "edges": graph.edges.to_pylist(),
    }
