"""`Graph`: instructions and their uses, for layout tools and graph libraries."""

from __future__ import annotations

from hlofast import _core
from hlofast._core import Field
from hlofast._graph_formats import plain
from hlofast._names import unknown
from hlofast._result import Fact, Result, Section
from hlofast._show import unknown_instruction
from hlofast.table import Table, of_rows

TYPE_CHECKING = False  # The command line draws graphs; importing typing would slow its start.
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from hlofast._core import Computation, Instruction
    from hlofast._module import Module

INSIDE = ("fusions", "all", "none")
"""Which called computations are shown inside their callers."""
MOST_NODES = {"dot": 5_000, "model-explorer": 50_000}
"""Maximum number of nodes that the tools for a format could lay out when tried."""
_DEEPEST = 64
_LONGEST_SHAPE = 200
_NODE = Field("index", "node", "The number of the node, which edges name.")
_NODES = (
    Field("instruction", "instruction", "The row number of the instruction."),
    Field("name", "name", "The name of the instruction."),
    Field("word", "opcode", "The opcode."),
    Field("shape", "shape", "The shape of the result."),
    Field("text", "sharding", "The sharding.", nullable=True),
    Field("name", "computation", "The computation that the instruction is in."),
    Field("scope", "namespace", "Path of calls from the outermost computation."),
    Field("scope", "op_name", "The framework's name for the operation.", nullable=True),
    Field("path", "source", "Source file and line.", nullable=True),
    Field("count", "distance", "Edges from the central instruction; 0 for a computation."),
)
_EDGES = (
    Field("instruction", "source", "The instruction that the edge comes from."),
    Field("instruction", "target", "The instruction that the edge goes to."),
    Field("index", "operand", "Operand number in the target; absent for other kinds of edges.",
          nullable=True),
    Field("word", "kind", "Kind of the edge: operand, control, argument or result."),
)  # fmt: skip


class Graph(Result):
    """Instructions and their uses: `Module.graph()`.

    Nodes are instructions. Edges have the kinds `operand` (the target uses the source) and
    `control` (the target runs after the source). Where the inside of a call is shown, there are
    also `argument` (from an operand of the call to the callee's parameter) and `result` (from the
    callee's root to the call).
    """

    __slots__ = (
        "_edges", "_namespaces", "_nodes", "around", "computation", "distance", "inside", "module",
    )  # fmt: skip

    VERB = "graph"
    FACTS = (
        Field("name", "computation", "The computation shown."),
        Field("name", "around", "The instruction whose neighbourhood is shown."),
        Field("count", "distance", "Maximum number of edges from the central instruction."),
        Field("word", "inside", "Callees shown inside their callers: fusions, all or none."),
        Field("count", "nodes", "Instructions shown."),
        Field("count", "edges", "Edges between them."),
    )

    def __init__(
        self,
        module: Module,
        nodes: dict[int, int],
        inside: str,
        computation: Computation | None,
        around: Instruction | None,
        distance: int | None,
    ) -> None:
        self.module = module
        """The module."""
        self.inside = inside
        """Callees shown inside their callers: fusions, all or none."""
        self.computation = computation
        """The computation shown; None for a neighbourhood."""
        self.around = around
        """The instruction whose neighbourhood is shown; None for a computation."""
        self.distance = distance
        """Maximum number of edges from `around`; None for a computation."""
        self._nodes = nodes
        self._namespaces: dict[int, tuple[str, ...]] = {}
        self._edges = list(self._find_edges())

    @property
    def name(self) -> str:
        """The name of the computation, or of the central instruction."""
        if self.around is not None:
            return f"around {plain(self.around.name)}"
        return "" if self.computation is None else plain(self.computation.name)

    @property
    def nodes(self) -> Table:
        """One row per node, in the order of the text."""
        instructions = [self.module[row] for row in self._nodes]
        rows = [
            (
                instruction.row,
                plain(instruction.name),
                plain(instruction.opcode_text),
                plain(_shape(instruction)),
                plain(_sharding(instruction)) or None,
                plain(instruction.computation.name),
                plain("/".join(self.namespace(instruction))),
                plain(_op_name(instruction)) or None,
                plain(_source(instruction)) or None,
                distance,
            )
            for instruction, distance in zip(instructions, self._nodes.values(), strict=True)
        ]
        return of_rows(_NODES, rows)

    @property
    def edges(self) -> Table:
        """One row per edge."""
        return of_rows(_EDGES, self._edges)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The subject, and the numbers of nodes and edges."""
        values = (
            None if self.computation is None else plain(self.computation.name),
            None if self.around is None else plain(self.around.name),
            self.distance,
            self.inside,
            len(self._nodes),
            len(self._edges),
        )
        facts = map(Fact, self.FACTS, values)
        return tuple(fact for fact in facts if fact.value is not None)

    def sections(self) -> tuple[Section, ...]:
        """Nodes and edges; nodes are numbered because names need not be unique."""
        nodes, edges = (_numbered(table) for table in (self.nodes, self.edges))
        return (Section("nodes", "Nodes", nodes), Section("edges", "Edges", edges))

    def namespace(self, instruction: Instruction) -> tuple[str, ...]:
        """Returns the path of calls from the outermost computation to `instruction`."""
        computation = instruction.computation
        known = self._namespaces.get(computation.index)
        if known is not None:
            return known
        # The path is built from inside out; a computation that is called twice is shown at its
        # first caller.
        chain = [computation]
        parts: list[tuple[str, ...]] = []
        while len(chain) <= _DEEPEST:
            caller = self._caller(chain[-1])
            if caller is None:
                break
            parts.append(_steps(caller, chain[-1]))
            chain.append(caller.computation)
        if len(chain) > _DEEPEST:
            # The path is too deep to be useful in a viewer, so the computation is shown at the top
            # level.
            chain, parts = chain[:1], []
        path: tuple[str, ...] = (plain(chain[-1].name),)
        for steps in reversed(parts):
            path = path + steps
        self._namespaces[computation.index] = path
        return path

    def _caller(self, computation: Computation) -> Instruction | None:
        """Returns the call inside which a computation is shown."""
        for caller in computation.callers:
            if caller.row in self._nodes and _is_shown(caller, self.inside):
                return caller
        return None

    def _find_edges(self) -> Iterator[tuple[int, int, int | None, str]]:
        nodes = self._nodes
        for row in nodes:
            instruction = self.module[row]
            operands = instruction.operands.rows.tolist()
            for number, operand in enumerate(operands):
                if operand in nodes:
                    yield operand, row, number, "operand"
            for before in instruction.control_predecessors:
                if before.row in nodes:
                    yield before.row, row, None, "control"
            if not _is_shown(instruction, self.inside):
                continue
            for index, (role, called) in enumerate(instruction.calls):
                for parameter, operand in _arguments(instruction, index, called):
                    if parameter in nodes and operand in nodes:
                        yield operand, parameter, None, "argument"
                root = called.root
                if root is not None and root.row in nodes and role != "condition":
                    yield root.row, row, None, "result"

    def _refuse(self, form: str, force: bool) -> None:
        most = MOST_NODES[form]
        if len(self._nodes) > most and not force:
            raise ValueError(
                f"{len(self._nodes):,} nodes are too many for {form} tools (limit {most:,}): show "
                "the neighbourhood of one instruction (around=NAME), reduce distance, set "
                'inside="none", or override the limit (force=True)'
            )

    def to_dot(self, *, force: bool = False) -> str:
        """Returns the graph in Graphviz's DOT language, with calls as clusters.

        Raises `ValueError` above the limit of nodes (`MOST_NODES`), unless `force`.
        """
        from hlofast._graph_formats import dot

        self._refuse("dot", force)
        return dot(self)

    def to_model_explorer(self, *, force: bool = False) -> dict[str, Any]:
        """Returns the graph as Model Explorer's JSON: a collection of one graph.

        Calls are namespaces; nodes have the attributes of `nodes`. Raises `ValueError` above the
        limit of nodes (`MOST_NODES`), unless `force`.
        """
        from hlofast._graph_formats import model_explorer

        self._refuse("model-explorer", force)
        return model_explorer(self)

    def to_networkx(self) -> Any:
        """Returns a `networkx.MultiDiGraph`; needs networkx (`hlofast[graph]`).

        Nodes are rows, with the columns of `nodes` as attributes; edges have `operand` and `kind`.
        """
        graph = _library("networkx").MultiDiGraph(name=self.module.name)
        for row in self.nodes:
            graph.add_node(row.pop("instruction"), **row)
        for source, target, operand, kind in self._edges:
            graph.add_edge(source, target, operand=operand, kind=kind)
        return graph

    def to_rustworkx(self) -> Any:
        """Returns a `rustworkx.PyDiGraph`; needs rustworkx (`hlofast[graph]`).

        Nodes are the rows of `nodes` as dictionaries, edges dictionaries of `operand` and `kind`.
        """
        graph = _library("rustworkx").PyDiGraph(attrs=self.module.name)
        indices = graph.add_nodes_from(self.nodes.to_pylist())
        places = dict(zip(self._nodes, indices, strict=True))
        graph.add_edges_from(
            [
                (places[source], places[target], {"operand": operand, "kind": kind})
                for source, target, operand, kind in self._edges
            ]
        )
        return graph

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        return f"<Graph of {self.name}: {len(self._nodes)} nodes, {len(self._edges)} edges>"


def _numbered(table: Table) -> Table:
    """Returns the table with its instruction columns as plain node numbers."""
    columns = []
    for name in table.columns:
        field = table.field(name)
        if field.kind == "instruction":
            field = _NODE if name == "instruction" else Field("index", name, field.doc)
        columns.append((field, table.values(name)))
    return Table.of(columns)


def _library(name: str) -> Any:
    from hlofast._extras import library

    return library(name, "graph")


def _is_shown(caller: Instruction, inside: str) -> bool:
    """Whether callees of `caller` are shown inside it."""
    return inside == "all" or (inside == "fusions" and caller.opcode == "fusion")


def _steps(caller: Instruction, called: Computation) -> tuple[str, ...]:
    """Path components of a call: the caller, and the callee's role if there are several."""
    calls = caller.calls
    if len(calls) == 1:
        return (plain(caller.name),)
    for index, (role, computation) in enumerate(calls):
        if computation == called:
            several = sum(called_role == role for called_role, _ in calls) > 1
            return (plain(caller.name), f"{role} {index}" if several else role)
    return (plain(caller.name),)


def _arguments(caller: Instruction, index: int, called: Computation) -> Iterator[tuple[int, int]]:
    """Pairs of callee parameter and caller operand."""
    operands = caller.operands.rows.tolist()
    opcode = caller.opcode
    if opcode == "conditional":
        # The first operand selects the branch.
        operands = operands[index + 1 : index + 2]
    elif opcode not in ("fusion", "call", "while", "async-start"):
        # Reducers and comparators take single elements, not whole operands.
        return
    for parameter in called.parameters:
        number = parameter.parameter_number
        if number is not None and number < len(operands):
            yield parameter.row, operands[number]


def _shape(instruction: Instruction) -> str:
    text = str(instruction.shape)
    return text if len(text) <= _LONGEST_SHAPE else text[: _LONGEST_SHAPE - 1] + "…"


def _sharding(instruction: Instruction) -> str:
    try:
        sharding = instruction.sharding
    except ValueError:
        return "unreadable"
    return "" if sharding is None else str(sharding)


def _op_name(instruction: Instruction) -> str:
    try:
        metadata = instruction.metadata
    except ValueError:
        return "unreadable"
    return (metadata.op_name or "") if metadata else ""


def _source(instruction: Instruction) -> str:
    try:
        place = instruction.source
    except ValueError:
        return "unreadable"
    return f"{place.file}:{place.line}" if place else ""


def _contents(computation: Computation, inside: str) -> dict[int, int]:
    """Rows of a computation and of the callees shown inside it."""
    seen = {computation.index}
    remaining = [computation]
    rows: list[int] = []
    while remaining:
        current = remaining.pop()
        for instruction in current:
            rows.append(instruction.row)
            if inside == "none" or not _is_shown(instruction, inside):
                continue
            for called in instruction.called_computations:
                if called.index not in seen:
                    seen.add(called.index)
                    remaining.append(called)
    return dict.fromkeys(sorted(rows), 0)


def _neighbourhood(start: Instruction, farthest: int, inside: str) -> dict[int, int]:
    """Rows at most `farthest` edges away, with their distance."""
    module = start.module
    distances = {start.row: 0}
    ring = [start.row]
    for distance in range(1, farthest + 1):
        further: list[int] = []
        for row in ring:
            for neighbour in _neighbours(module[row], inside):
                if neighbour not in distances:
                    distances[neighbour] = distance
                    further.append(neighbour)
        if not further:
            break
        ring = further
    return dict(sorted(distances.items()))


def _neighbours(instruction: Instruction, inside: str) -> Iterator[int]:
    """Operands and users; for parameters and roots, also the calls inside which they are shown."""
    yield from instruction.operands.rows.tolist()
    yield from instruction.users.rows.tolist()
    if inside == "none":
        return
    if _is_shown(instruction, inside):
        for called in instruction.called_computations:
            yield from called.parameters.rows.tolist()
            if called.root is not None:
                yield called.root.row
    if instruction.is_root or instruction.parameter_number is not None:
        for caller in instruction.computation.callers:
            if _is_shown(caller, inside):
                yield caller.row


def graph(
    module: Module,
    computation: str | Computation | None,
    around: Instruction | str | int | None,
    distance: int,
    inside: str,
) -> Graph:
    """`Module.graph`."""
    if inside not in INSIDE:
        raise ValueError(f"inside must be one of {', '.join(INSIDE)}, not {inside!r}")
    if distance < 0:
        raise ValueError(f"distance must not be negative: {distance}")
    if isinstance(computation, str):
        if computation not in module.computations:
            raise unknown("computation", computation, (own.name for own in module.computations))
        computation = module.computations[computation]
    if isinstance(around, str) and around not in (module if computation is None else computation):
        raise unknown_instruction(module, around)
    if around is not None and computation is not None:
        # The name is looked up in this computation.
        around = computation[around] if isinstance(around, (str, int)) else around
    if around is not None:
        start = around if isinstance(around, _core.Instruction) else module[around]
        return Graph(module, _neighbourhood(start, distance, inside), inside, None, start, distance)
    if computation is None:
        computation = module.entry
    return Graph(module, _contents(computation, inside), inside, computation, None, None)
