"""Graphs in the formats of layout tools: Graphviz's DOT and Model Explorer's JSON."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._graph import Graph

_COLOURS = {
    "parameter": "#dbe9f6",
    "constant": "#eeeeee",
    "fusion": "#fdebd0",
    "dot": "#d5f5e3",
    "convolution": "#d5f5e3",
    "custom-call": "#f5d5ea",
    "while": "#e8daef",
    "conditional": "#e8daef",
    "call": "#e8daef",
}
_COLLECTIVES = ("all-", "collective-", "reduce-scatter", "ragged-all-to-all", "send", "recv")
_COLLECTIVE = "#fadbd8"
_STYLES = {"control": "dashed", "argument": "dotted", "result": "dotted"}


def plain(text: str) -> str:
    """Returns valid UTF-8; other bytes become replacement characters."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _colour(opcode: str) -> str | None:
    return _COLLECTIVE if opcode.startswith(_COLLECTIVES) else _COLOURS.get(opcode)


def quoted(text: str) -> str:
    """Returns `text` as a DOT string, with control characters escaped visibly."""
    plain = []
    for character in text:
        if character in '"\\':
            plain.append("\\" + character)
        elif character == "\n":
            plain.append("\\n")
        elif character < " " or "\x7f" <= character <= "\x9f" or "\ud800" <= character <= "\udfff":
            plain.append(f"\\\\x{ord(character) & 0xFF:02x}")
        else:
            plain.append(character)
    return f'"{"".join(plain)}"'


class _Cluster:
    """Nodes inside one call."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.inside: dict[str, _Cluster] = {}

    def at(self, path: tuple[str, ...]) -> _Cluster:
        cluster = self
        for name in path:
            cluster = cluster.inside.setdefault(name, _Cluster())
        return cluster

    def write(self, out: list[str], depth: int) -> None:
        indent = "  " * depth
        out.extend(indent + line for line in self.lines)
        for name, cluster in self.inside.items():
            out.append(f"{indent}subgraph cluster_{len(out)} {{")
            out.append(f'{indent}  label={quoted(name)}; style="rounded"; color="#999999";')
            cluster.write(out, depth + 1)
            out.append(f"{indent}}}")


def dot(graph: Graph) -> str:
    """`Graph.to_dot`."""
    clusters = _Cluster()
    around = None if graph.around is None else graph.around.row
    for row in graph.nodes:
        number = row["instruction"]
        lines = [f"{row['name']} = {row['opcode']}", row["shape"], row["sharding"]]
        label = "\n".join(line for line in lines if line)
        attributes = [f"label={quoted(label)}"]
        colour = _colour(row["opcode"])
        if colour:
            attributes.append(f'fillcolor="{colour}"')
        if row["op_name"]:
            attributes.append(f"tooltip={quoted(row['op_name'])}")
        if number == around:
            attributes.append("penwidth=3")
        path = graph.namespace(graph.module[number])
        clusters.at(path).lines.append(f"n{number} [{', '.join(attributes)}];")
    out = [
        f"digraph {quoted(plain(graph.module.name))} {{",
        '  node [shape=box, style="filled,rounded", fillcolor="#ffffff", fontname="Helvetica"];',
    ]
    clusters.write(out, 1)
    for source, target, _, kind in graph._edges:
        style = _STYLES.get(kind)
        attributes = [] if style is None else [f"style={style}"]
        tail = f" [{', '.join(attributes)}]" if attributes else ""
        out.append(f"  n{source} -> n{target}{tail};")
    out.append("}")
    return "\n".join(out) + "\n"


def _part(name: str) -> str:
    """A name as one component of a slash-separated namespace."""
    return name.replace("/", "_")


def model_explorer(graph: Graph) -> dict[str, Any]:
    """`Graph.to_model_explorer`."""
    edges: dict[int, list[dict[str, str]]] = {}
    for source, target, operand, kind in graph._edges:
        edge = {"sourceNodeId": str(source), "sourceNodeOutputId": "0"}
        edge["targetNodeInputId"] = str(operand) if kind == "operand" else kind
        edges.setdefault(target, []).append(edge)
    nodes = []
    groups: dict[str, dict[str, str]] = {}
    for row in graph.nodes:
        number = row["instruction"]
        instruction = graph.module[number]
        names = ("name", "shape", "sharding", "computation", "op_name", "source")
        attributes = [{"key": name, "value": row[name]} for name in names if row[name]]
        path = "/".join(_part(name) for name in graph.namespace(instruction))
        node: dict[str, Any] = {
            "id": str(number),
            "label": row["opcode"],
            "namespace": path,
            "attrs": attributes,
            "incomingEdges": edges.get(number, []),
            "outputsMetadata": [{"id": "0", "attrs": [{"key": "shape", "value": row["shape"]}]}],
        }
        colour = _colour(row["opcode"])
        if colour:
            node["style"] = {"backgroundColor": colour}
        nodes.append(node)
        for called in instruction.called_computations:
            if called.root is not None and called.root.row in graph._nodes:
                inner = "/".join(_part(name) for name in graph.namespace(called.root))
                told = {"caller": row["name"], "opcode": row["opcode"], "shape": row["shape"]}
                groups[inner] = told
    converted: dict[str, Any] = {"id": graph.name, "nodes": nodes}
    if groups:
        converted["groupNodeAttributes"] = groups
    return {"label": plain(graph.module.name), "graphs": [converted]}
