"""Writes a computation, or the neighbours of an instruction, as DOT or for Model Explorer."""

from __future__ import annotations

import sys

from hlofast import _files, _text
from hlofast._names import meant
from hlofast.cli import DONE, UNREADABLE, USAGE, inputs, pages, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._core import Instruction
    from hlofast._graph import Graph
    from hlofast._module import Module

EXAMPLES = """\
examples:
  hlofast graph --around fusion.12 --distance 3 step.txt | dot -Tsvg -o fusion.svg
  hlofast graph --computation region_1.2 step.txt -o region.dot
  hlofast graph --inside all step.txt -o step.json        for Model Explorer
  hlofast graph --around all-reduce.5 --json step.txt | jq '.results[].tables.edges'

Nodes are instructions; edges go from operands to users. Dashed edges are control dependencies,
dotted edges enter and leave called computations. --inside selects the called computations that are
drawn inside their callers, as clusters or layers. An output name that ends in .json selects Model
Explorer's format, any other name DOT. A graph with more nodes than layout tools can handle is
refused: narrow it with --around or --inside none, or write it anyway with --force.
"""
FORMS = ("dot", "model-explorer")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    inputs.add_files(parser, several=False)
    parser.add_argument(
        "--computation", metavar="NAME", help="computation to show (default: the entry)"
    )
    parser.add_argument("--around", metavar="NAME", help="show the neighbours of this instruction")
    parser.add_argument(
        "--distance",
        type=_text.natural,
        default=2,
        metavar="N",
        help="edges to follow from the instruction of --around (default 2)",
    )
    parser.add_argument(
        "--inside",
        choices=("fusions", "all", "none"),
        default="fusions",
        help="called computations that are drawn inside their callers (default fusions)",
    )
    parser.add_argument(
        "--format",
        choices=FORMS,
        help="output format (default: model-explorer if PATH ends in .json, else dot)",
    )
    parser.add_argument("-o", "--output", metavar="PATH", help="write to PATH atomically")
    parser.add_argument(
        "--force", action="store_true", help="write graphs too large for layout tools"
    )
    results.add_json(parser)
    inputs.add_context(parser)


def run(arguments: argparse.Namespace) -> int:
    """Writes the graph of the module in the file."""
    if arguments.json and arguments.output:
        inputs.complain("--json prints nodes and edges to standard output: leave out -o")
        return USAGE
    if arguments.output is not None and _files.is_standard_output(arguments.output):
        arguments.output = None  # The graph goes there anyway.
    out = arguments.output
    if out is not None and (code := pages.check_place(out, [arguments.file])) != DONE:
        return code
    reader = inputs.Reader(arguments, inputs.read_context(arguments))
    loaded = inputs.only(reader)
    graph = None if loaded is None else _graph(loaded.module, loaded.path, arguments)
    if arguments.json:
        from hlofast._graph import Graph

        shower = results.Shower(Graph, arguments)
        if graph is not None:
            shower.show(graph, at=loaded)
        shower.end(reader.errors)
    if graph is None:
        return reader.exit_code() or USAGE
    if arguments.json:
        return reader.exit_code()
    try:
        text = _written(graph, arguments)
    except ValueError as error:
        # The library's advice names Python arguments, which are translated to options.
        what = str(error).partition(": ")[0]
        first = "--around NAME" if arguments.around is None else "a smaller --distance"
        inside = "" if arguments.inside == "none" else " --inside none,"
        inputs.complain(f"{what}: give {first},{inside} or --force")
        return USAGE
    content = text.encode("utf-8", "replace")
    if arguments.output is None:
        if loaded is not None:
            inputs.note_unmeasured(loaded.module, loaded.path)
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        return reader.exit_code()
    try:
        with _files.replacing(arguments.output) as file:
            file.write(content)
    except OSError as error:
        inputs.complain(f"{arguments.output}: {error.strerror or error}")
        return UNREADABLE
    _text.Printer().result(graph, (), path=f"{arguments.output}, {_form(arguments)}")
    return reader.exit_code()


def _graph(module: Module, path: str, arguments: argparse.Namespace) -> Graph | None:
    """Returns the requested graph; prints an error and returns None for an unknown name."""
    computation = arguments.computation and arguments.computation.removeprefix("%")
    if computation and computation not in module.computations:
        names = [own.name for own in module.computations]
        inputs.complain(f"{path}: no computation {computation!r}{meant(computation, names)}")
        return None
    if arguments.around is None:
        return module.graph(computation, inside=arguments.inside)
    name = arguments.around.removeprefix("%")
    matches = _matches(module, computation, name)
    if not matches:
        inputs.complain(f"{path}: {_unknown(module, computation, name)}")
        return None
    if len(matches) > 1:
        places = _text.names([instruction.computation.name for instruction in matches])
        inputs.complain(
            f"{path}: {len(matches)} instructions are called {name!r}; choose one with "
            f"--computation: {places}"
        )
        return None
    return module.graph(around=matches[0], distance=arguments.distance, inside=arguments.inside)


def _unknown(module: Module, computation: str | None, name: str) -> str:
    """Returns the error for an unknown instruction: its other computation, or the nearest names."""
    if computation is None:
        return f"no instruction {name!r}{meant(name, (one.name for one in module))}"
    elsewhere = [one.computation.name for one in _matches(module, None, name)]
    if elsewhere:
        return f"{name!r} is in {_text.names(elsewhere)}, not in {computation!r}"
    known = (one.name for one in module.computations[computation].instructions)
    return f"no instruction {name!r} in {computation!r}{meant(name, known)}"


def _matches(module: Module, computation: str | None, name: str) -> list[Instruction]:
    matching = []
    for candidate in module.computations:
        if computation in (None, candidate.name) and name in candidate.instructions:
            matching.append(candidate.instructions[name])
    return matching


def _written(graph: Graph, arguments: argparse.Namespace) -> str:
    if _form(arguments) == "dot":
        return graph.to_dot(force=arguments.force)
    import json

    document = graph.to_model_explorer(force=arguments.force)
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _form(arguments: argparse.Namespace) -> str:
    """Returns the output format."""
    by_name = "model-explorer" if (arguments.output or "").endswith(".json") else "dot"
    return arguments.format or by_name
