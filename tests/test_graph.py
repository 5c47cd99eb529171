"""Graphs: edges are the operands of the text, calls are clusters, names are data."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import hlofast
from hlofast._graph import MOST_NODES
from test_cli import document, hlofast_command
from test_time import LOOP

DUMPS = Path(__file__).parent / "fixtures" / "dumps"

STRING = {"type": "string"}
PAIR = {
    "type": "object",
    "properties": {"key": STRING, "value": STRING},
    "required": ["key", "value"],
    "additionalProperties": False,
}
METADATA = {
    "type": "object",
    "properties": {"id": STRING, "attrs": {"type": "array", "items": PAIR}},
    "required": ["id"],
    "additionalProperties": False,
}
EDGE = {
    "type": "object",
    "properties": {
        "sourceNodeId": STRING,
        "sourceNodeOutputId": STRING,
        "targetNodeInputId": STRING,
    },
    "required": ["sourceNodeId"],
    "additionalProperties": False,
}
NODE = {
    "type": "object",
    "properties": {
        "id": STRING,
        "label": STRING,
        "namespace": STRING,
        "subgraphIds": {"type": "array", "items": STRING},
        "attrs": {"type": "array", "items": PAIR},
        "incomingEdges": {"type": "array", "items": EDGE},
        "outputsMetadata": {"type": "array", "items": METADATA},
        "inputsMetadata": {"type": "array", "items": METADATA},
        "style": {
            "type": "object",
            "properties": {
                "backgroundColor": STRING,
                "borderColor": STRING,
                "hoveredBorderColor": STRING,
            },
            "additionalProperties": False,
        },
    },
    "required": ["id", "label", "namespace"],
    "additionalProperties": False,
}
# A graph collection, as Model Explorer's user guide and its graph builder describe it.
MODEL_EXPLORER = {
    "type": "object",
    "properties": {
        "label": STRING,
        "graphs": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": STRING,
                    "nodes": {"type": "array", "items": NODE},
                    "groupNodeAttributes": {
                        "type": "object",
                        "additionalProperties": {
                            "type": "object",
                            "additionalProperties": STRING,
                        },
                    },
                },
                "required": ["id", "nodes"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["label", "graphs"],
    "additionalProperties": False,
}

FUSED = """HloModule fused, is_scheduled=true

%inside (a: f32[8], b: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} parameter(1)
  %product = f32[8]{0} multiply(%a, %b)
  ROOT %sum = f32[8]{0} add(%product, %product)
}

ENTRY %e (p: f32[8], q: f32[8]) -> (f32[8], f32[8]) {
  %p = f32[8]{0} parameter(0), sharding={replicated}
  %q = f32[8]{0} parameter(1), metadata={op_name="args[1]" source_file="f.py" source_line=3}
  %n = f32[8]{0} negate(%p)
  %f = f32[8]{0} fusion(%n, %q), kind=kLoop, calls=%inside
  %m = f32[8]{0} negate(%f), control-predecessors={%n}
  ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(%m, %n)
}
"""


def names(graph: hlofast.Graph) -> set[str]:
    return {row["name"] for row in graph.nodes}


def operand_edges(module: hlofast.Module, rows: set[int]) -> list[tuple[int, int, int]]:
    """What the text says of the operands of `rows`, as far as they are rows too."""
    return sorted(
        (operand.row, row, number)
        for row in rows
        for number, operand in enumerate(module[row].operands)
        if operand.row in rows
    )


def read_dot(text: str) -> tuple[dict[str, str], list[tuple[str, str]], list[str]]:
    """Labels by node, edges, and labels of clusters, as pydot reads them."""
    import pydot

    with warnings.catch_warnings():
        # It calls its own parser by old names.
        warnings.simplefilter("ignore")
        (graph,) = pydot.graph_from_dot_data(text)
    labels: dict[str, str] = {}
    clusters: list[str] = []

    def visit(part: Any) -> None:
        for node in part.get_nodes():
            if node.get_name().startswith("n") and node.get_name() != "node":
                labels[node.get_name()] = node.get_label()
        for cluster in part.get_subgraphs():
            clusters.append(cluster.get_label())
            visit(cluster)

    visit(graph)
    edges = [(edge.get_source(), edge.get_destination()) for edge in graph.get_edges()]
    return labels, edges, clusters


class TestNodesAndEdges:
    @pytest.mark.parametrize(
        "name", ["cpu_control_flow.after", "tpu_train_step_named.after", "cpu_train_step.before"]
    )
    @pytest.mark.parametrize("inside", ["fusions", "all", "none"])
    def test_edges_are_the_operands_of_the_text(self, name: str, inside: str) -> None:
        module = hlofast.load(DUMPS / f"{name}.txt.gz")
        graph = module.graph(inside=inside)
        rows = {row["instruction"] for row in graph.nodes}
        operands = [row for row in graph.edges if row["kind"] == "operand"]
        edges = sorted((row["source"], row["target"], row["operand"]) for row in operands)
        assert edges == operand_edges(module, rows)
        if inside == "none":
            assert rows == {instruction.row for instruction in module.entry}
        if inside == "all":
            reached, remaining = set(), [module.entry]
            while remaining:
                computation = remaining.pop()
                if computation.name not in reached:
                    reached.add(computation.name)
                    remaining += [
                        c for instruction in computation for c in instruction.called_computations
                    ]
            expected = {
                instruction.row for name in reached for instruction in module.computations[name]
            }
            assert rows == expected

    def test_fusions_are_entered(self) -> None:
        module = hlofast.loads(FUSED)
        graph = module.graph()
        spaces = {row["name"]: row["namespace"] for row in graph.nodes}
        assert spaces["product"] == "e/f"
        assert spaces["f"] == "e"
        named = [
            (module[row["source"]].name, module[row["target"]].name, row["kind"])
            for row in graph.edges
            if row["kind"] != "operand"
        ]
        assert sorted(named) == [
            ("n", "a", "argument"),
            ("n", "m", "control"),
            ("q", "b", "argument"),
            ("sum", "f", "result"),
        ]
        nodes = {row["name"]: row for row in graph.nodes}
        assert nodes["p"]["sharding"] == "{replicated}"
        assert (nodes["q"]["op_name"], nodes["q"]["source"]) == ("args[1]", "f.py:3")

    def test_loops_are_entered_on_request(self) -> None:
        module = hlofast.loads(LOOP)
        assert names(module.graph()) == {"p", "w"}
        graph = module.graph(inside="all")
        spaces = {row["name"]: row["namespace"] for row in graph.nodes}
        assert (spaces["n"], spaces["c"]) == ("e/w/body", "e/w/condition")
        kinds = [row["kind"] for row in graph.edges]
        # The loop's state goes into body and condition; only the body's result comes back.
        assert (kinds.count("argument"), kinds.count("result")) == (2, 1)

    def test_the_neighbourhood_grows_by_operands_and_users(self) -> None:
        module = hlofast.loads(FUSED)

        def around(name: str, distance: int, inside: str = "fusions") -> set[str]:
            return names(module.graph(around=name, distance=distance, inside=inside))

        assert around("n", 0) == {"n"}
        assert around("n", 1, "none") == {"n", "p", "f", "t"}
        assert around("n", 2, "none") == {"n", "p", "f", "t", "q", "m"}
        # Parameters and the root are one step inside a fusion.
        assert around("f", 1) == {"f", "n", "q", "m", "a", "b", "sum"}
        assert around("product", 2) == {"product", "a", "b", "sum", "f"}
        distances = {row["name"]: row["distance"] for row in module.graph(around="f").nodes}
        assert distances["f"] == 0
        assert distances["product"] == distances["p"] == 2

    def test_instructions_are_named_in_every_way(self) -> None:
        module = hlofast.loads(FUSED)
        graphs = {
            tuple(module.graph(around=way, distance=1).nodes["instruction"].tolist())
            for way in ("f", module["f"], module["f"].row)
        }
        assert len(graphs) == 1
        inside = module.graph("inside", around="sum", distance=1)
        assert "sum" in names(inside)
        assert module.graph(module.computations["inside"]).name == "inside"

    def test_arguments_that_make_no_sense(self) -> None:
        module = hlofast.loads(FUSED)
        for wrong in ({"inside": "some"}, {"around": "f", "distance": -1}):
            with pytest.raises(ValueError):
                module.graph(**wrong)
        for missing in ({"computation": "none"}, {"around": "none"}):
            with pytest.raises(KeyError):
                module.graph(**missing)


class TestFormats:
    @pytest.mark.parametrize("inside", ["fusions", "all"])
    def test_dot(self, inside: str) -> None:
        module = hlofast.load(DUMPS / "cpu_control_flow.after.txt.gz")
        graph = module.graph(inside=inside)
        # Every line is one statement; pydot would read so many for minutes.
        string = r'"(?:[^"\\]|\\.)*"'
        node = re.compile(rf" +n(\d+) \[\w+={string}(?:, \w+=(?:{string}|\d+))*\];")
        edge = re.compile(r" +n(\d+) -> n(\d+)(?: \[style=\w+\])?;")
        other = re.compile(
            rf' +subgraph cluster_\d+ {{| +}}| +label={string}; style="rounded"; color="#999999";'
        )
        first, _, *lines, last = graph.to_dot().splitlines()
        assert re.fullmatch(rf"digraph {string} {{", first)
        assert last == "}"
        nodes = [int(match[1]) for match in map(node.fullmatch, lines) if match]
        edges = [(int(match[1]), int(match[2])) for match in map(edge.fullmatch, lines) if match]
        rest = [line for line in lines if not node.fullmatch(line) and not edge.fullmatch(line)]
        assert all(other.fullmatch(line) for line in rest)
        assert sorted(nodes) == graph.nodes["instruction"].tolist()
        assert edges == [(row["source"], row["target"]) for row in graph.edges]
        opened = sum("subgraph" in line for line in rest)
        assert opened == sum(line.strip() == "}" for line in rest) > 1

    def test_labels_edges_and_clusters_of_dot(self) -> None:
        graph = hlofast.loads(LOOP).graph(inside="all")
        labels, edges, clusters = read_dot(graph.to_dot())
        assert set(labels) == {f"n{row['instruction']}" for row in graph.nodes}
        expected = [(f"n{row['source']}", f"n{row['target']}") for row in graph.edges]
        assert sorted(edges) == sorted(expected)
        for row in graph.nodes:
            label = labels[f"n{row['instruction']}"]
            assert row["name"] in label and row["opcode"] in label and row["shape"] in label
        assert clusters == ['"e"', '"w"', '"body"', '"condition"']

    def test_shardings_are_in_labels(self) -> None:
        module = hlofast.loads(FUSED)
        labels, _, clusters = read_dot(module.graph().to_dot())
        assert "{replicated}" in labels[f"n{module['p'].row}"]
        assert clusters == ['"e"', '"f"']

    def test_model_explorer(self) -> None:
        module = hlofast.load(DUMPS / "cpu_control_flow.after.txt.gz")
        graph = module.graph(inside="all")
        converted = graph.to_model_explorer()
        jsonschema.validate(converted, MODEL_EXPLORER)
        assert converted["label"] == module.name
        (shown,) = converted["graphs"]
        ids = [node["id"] for node in shown["nodes"]]
        assert len(set(ids)) == len(ids) == len(graph)
        edges = [
            (int(edge["sourceNodeId"]), int(node["id"]), int(edge["targetNodeInputId"]))
            for node in shown["nodes"]
            for edge in node["incomingEdges"]
            if edge["targetNodeInputId"].isdigit()
        ]
        assert sorted(edges) == operand_edges(module, set(map(int, ids)))
        spaces = {node["namespace"] for node in shown["nodes"]}
        assert set(shown["groupNodeAttributes"]) <= spaces
        attributes = {pair["key"] for node in shown["nodes"] for pair in node["attrs"]}
        assert {"name", "shape", "computation"} <= attributes
        nodes = hlofast.loads(FUSED).graph().to_model_explorer()["graphs"][0]["nodes"]
        attributes = {pair["key"]: pair["value"] for node in nodes for pair in node["attrs"]}
        assert (attributes["op_name"], attributes["source"]) == ("args[1]", "f.py:3")
        assert attributes["sharding"] == "{replicated}"

    def test_networkx(self) -> None:
        networkx = pytest.importorskip("networkx")
        module = hlofast.load(DUMPS / "cpu_train_step.after.txt.gz")
        graph = module.graph()
        converted = graph.to_networkx()
        assert (len(converted), converted.number_of_edges()) == (len(graph), len(graph.edges))
        assert networkx.is_directed_acyclic_graph(module.graph(inside="none").to_networkx())
        root = module.entry.root
        assert root is not None
        assert converted.nodes[root.row]["opcode"] == "tuple"
        operands = [
            row
            for row, _, edge in converted.in_edges(root.row, data=True)
            if edge["kind"] == "operand"
        ]
        assert sorted(operands) == sorted(instruction.row for instruction in root.operands)

    def test_rustworkx(self) -> None:
        rustworkx = pytest.importorskip("rustworkx")
        module = hlofast.load(DUMPS / "cpu_train_step.after.txt.gz")
        graph = module.graph(inside="none")
        converted = graph.to_rustworkx()
        assert (converted.num_nodes(), converted.num_edges()) == (len(graph), len(graph.edges))
        assert rustworkx.is_directed_acyclic_graph(converted)
        edges = {
            (converted[source]["instruction"], converted[target]["instruction"], edge["operand"])
            for source, target, edge in converted.weighted_edge_list()
            if edge["kind"] == "operand"
        }
        assert edges == set(
            operand_edges(module, {instruction.row for instruction in module.entry})
        )

    @pytest.mark.parametrize("library", ["networkx", "rustworkx"])
    def test_what_is_missing_is_said(self, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, library, None)
        graph = hlofast.loads(FUSED).graph()
        with pytest.raises(ModuleNotFoundError, match=re.escape("pip install 'hlofast[graph]'")):
            getattr(graph, f"to_{library}")()

    def test_too_many_nodes_are_refused(self) -> None:
        count = MOST_NODES["dot"]
        lines = "".join(f"  v{i} = f32[] negate(p)\n" for i in range(count))
        module = hlofast.loads(
            f"HloModule m\n\nENTRY e {{\n  p = f32[] parameter(0)\n{lines}  ROOT r = f32[] negate(p)\n}}\n"
        )
        graph = module.graph()
        with pytest.raises(ValueError, match=r"5,002 nodes .*of one instruction.*force"):
            graph.to_dot()
        assert graph.to_dot(force=True).count("label=") == count + 3
        assert len(graph.to_model_explorer()["graphs"][0]["nodes"]) == count + 2
        assert len(module.graph(around="v7", distance=1)) == 2

    def test_deep_calls_neither_recurse_nor_explode(self) -> None:
        calls = "".join(
            f"c{i} {{\n  p{i} = f32[] parameter(0)\n  ROOT r{i} = f32[] call(p{i}), to_apply=c{i - 1}\n}}\n\n"
            for i in range(1, 400)
        )
        module = hlofast.loads(
            f"HloModule m\n\nc0 {{\n  p0 = f32[] parameter(0)\n  ROOT r0 = f32[] negate(p0)\n}}\n\n{calls}"
            "ENTRY e {\n  p = f32[] parameter(0)\n  ROOT r = f32[] call(p), to_apply=c399\n}\n"
        )
        graph = module.graph(inside="all")
        assert len(graph) == 802
        assert max(len(row["namespace"]) for row in graph.nodes) < 1000
        jsonschema.validate(graph.to_model_explorer(), MODEL_EXPLORER)
        assert len(graph.to_dot(force=True)) < 1_000_000


HOSTILE = [
    'x"y',
    "back\\slash",
    "</svg><script>",
    "<b>bold</b>",
    "a/b//c",
    "tab\tline",
    "\x01\x7f",
    "é\u2028",
    "\\N\\G",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_data(name: str) -> None:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    module = hlofast.loads(
        "HloModule m\n\nENTRY e {\n  p = f32[8]{0} parameter(0)\n  ROOT n = f32[8]{0} negate(p), "
        f'metadata={{op_name="{escaped}"}}\n}}\n'
    )
    graph = module.graph()
    labels, edges, _ = read_dot(graph.to_dot())
    assert len(labels) == 2 and len(edges) == 1
    converted = json.loads(json.dumps(graph.to_model_explorer()))
    jsonschema.validate(converted, MODEL_EXPLORER)
    (node,) = [node for node in converted["graphs"][0]["nodes"] if node["label"] == "negate"]
    assert {"key": "op_name", "value": name} in node["attrs"]


def test_strings_of_dot_say_what_was_meant() -> None:
    from hlofast._graph_formats import quoted

    assert quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'
    assert quoted("\x00\x7f\udcff") == '"\\\\x00\\\\x7f\\\\xff"'
    assert quoted("<b>é</b>") == '"<b>é</b>"'


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_bytes(
        b"HloModule m\n\nENTRY e {\n  p = f32[8]{0} parameter(0)\n  ROOT n = f32[8]{0} negate(p), "
        b'metadata={op_name="\xff\xfe"}\n}\n'
    )
    for arguments in ((), ("--format", "model-explorer"), ("--json",)):
        done = hlofast_command("graph", path, *arguments)
        assert done.returncode == 0, done.stderr


class TestCommand:
    def test_dot_goes_to_standard_output(self, train_step: Path) -> None:
        done = hlofast_command("graph", "--around", "all-gather.63", "--distance", "1", train_step)
        assert done.returncode == 0, done.stderr
        labels, edges, _ = read_dot(done.stdout)
        assert any("all-gather.63" in label for label in labels.values())
        assert len(edges) >= 2

    def test_names_say_the_format(self, train_step: Path, tmp_path: Path) -> None:
        json_path, dot_path = tmp_path / "g.json", tmp_path / "g.dot"
        for path in (json_path, dot_path):
            done = hlofast_command("graph", train_step, "-o", path)
            assert (done.returncode, done.stderr) == (0, "")
            graph = hlofast.load(train_step).graph()
            said = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}
            form = "model-explorer" if path == json_path else "dot"
            assert said["file"] == [f"{path},", form]
            assert said["computation"] == [hlofast.load(train_step).entry.name]
            assert said["nodes"] == [f"{len(graph):,}"]
            assert said["edges"] == [f"{len(graph.edges):,}"]
        jsonschema.validate(json.loads(json_path.read_text()), MODEL_EXPLORER)
        assert dot_path.read_text().startswith('digraph "jit_train_step"')
        other = hlofast_command("graph", train_step, "--format", "model-explorer")
        assert other.stdout == json_path.read_text()

    def test_json(self, train_step: Path) -> None:
        printed = document("graph", "--around", "all-gather.63", train_step)
        (result,) = printed["results"]
        graph = hlofast.load(train_step).graph(around="all-gather.63")
        assert {name: fact["value"] for name, fact in result["facts"].items()} == {
            "around": "all-gather.63",
            "distance": 2,
            "inside": "fusions",
            "nodes": len(graph),
            "edges": len(graph.edges),
        }
        tables = result["tables"]
        assert [row["name"] for row in tables["nodes"]] == graph.nodes.values("name")
        numbers = [row["node"] for row in tables["nodes"]]
        assert numbers == graph.nodes.values("instruction")
        ends = [(row["source"], row["target"]) for row in tables["edges"]]
        assert ends == [(row["source"], row["target"]) for row in graph.edges]
        assert str(graph).startswith("jit_train_step\naround    all-gather.63\n")
        assert ">distance</th>" in graph._repr_html_()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--around", "nothing"), "no instruction 'nothing'"),
            (("--computation", "nothing"), "no computation 'nothing'"),
            (("--json", "-o", "x.dot"), "leave out -o"),
            (("--distance", "-1"), "--distance"),
        ],
    )
    def test_what_makes_no_sense_is_exit_code_2(
        self, train_step: Path, options: tuple[str, ...], message: str
    ) -> None:
        done = hlofast_command("graph", train_step, *options)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr

    def test_ambiguous_names_are_asked_about(self, tmp_path: Path) -> None:
        path = tmp_path / "m.txt"
        path.write_text(
            "HloModule m\n\nc {\n  x = f32[] parameter(0)\n  ROOT y = f32[] negate(x)\n}\n\n"
            "ENTRY e {\n  x = f32[] parameter(0)\n  ROOT z = f32[] call(x), to_apply=c\n}\n"
        )
        done = hlofast_command("graph", "--around", "x", path)
        assert done.returncode == 2
        assert "2 instructions are called 'x'; choose one with --computation: c, e" in done.stderr
        assert (
            hlofast_command("graph", "--around", "%x", "--computation", "c", path).returncode == 0
        )

    def test_too_many_nodes_are_refused_with_what_to_do(self, tmp_path: Path) -> None:
        path = tmp_path / "m.txt"
        lines = [f"  x{at} = f32[] negate(x{at - 1})" for at in range(1, 5001)]
        text = "\n".join(["HloModule m\n\nENTRY e {", "  x0 = f32[] parameter(0)", *lines, "}\n"])
        path.write_text(text.replace("  x5000 =", "  ROOT x5000 ="))
        done = hlofast_command("graph", path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            "hlofast: 5,001 nodes are too many for dot tools (limit 5,000): "
            "give --around NAME, --inside none, or --force\n"
        )
        done = hlofast_command("graph", path, "--around", "x9", "--distance", "6000")
        assert "give a smaller --distance, --inside none, or --force" in done.stderr
        assert hlofast_command("graph", path, "--force").returncode == 0
        with pytest.raises(ValueError, match=r"around=NAME.*force=True"):
            hlofast.load(path).graph().to_dot()

    def test_what_cannot_be_written_is_said(self, train_step: Path, tmp_path: Path) -> None:
        done = hlofast_command("graph", train_step, "-o", tmp_path / "no" / "g.dot")
        assert done.returncode == 3
        assert "No such file or directory" in done.stderr
