"""`Module.stages()` and `hlofast stages`: pipeline stages as Alpa marks them."""

import gzip
import json
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, Seeds
from test_cli import document, hlofast_command, validated

sys.path.insert(0, str(FIXTURES))

import hlo_writer

STAGE = FIXTURES / "seedlike" / "pipeline_stage.txt.gz"
FACTS: dict[str, Any] = json.loads(
    (FIXTURES / "seedlike" / "pipeline_stage.facts.json").read_text()
)
TEXT = gzip.decompress(STAGE.read_bytes()).decode()
NAMES = ("layer_1", "layer_1_backward", "1_apply_grad")


@pytest.fixture(scope="module")
def stage() -> hlofast.Stages:
    return hlofast.load(STAGE).stages()


class TestMarkers:
    def test_sizes_are_found_through_two_calls(self, stage: hlofast.Stages) -> None:
        assert {name: list(sizes or ()) for name, sizes in stage.marker_sizes.items()} == FACTS[
            "markers"
        ]
        assert set(stage.markers["calls"]) == {2}
        assert set(stage.markers["agrees"]) == {"yes"}
        opcodes = {stage.module[row].opcode for row in stage.markers["instruction"].tolist()}
        places = {stage.module[row].opcode for row in stage.markers["place"].tolist()}
        assert (opcodes, places) == ({"custom-call"}, {"call"})

    def test_sizes_that_contradict_the_arrays_are_said(self) -> None:
        sizes = FACTS["markers"]["layer_1$start"]
        packed = hlo_writer.quoted(struct.pack(f"<{len(sizes)}q", *sizes))
        wrong = hlo_writer.quoted(struct.pack(f"<{len(sizes)}q", *sizes[:-1], 5))
        assert TEXT.count(packed) == 1
        rows = hlofast.loads(TEXT.replace(packed, wrong)).stages().markers
        assert rows.values("agrees") == ["no", *["yes"] * 5]

    def test_a_configuration_that_holds_no_sizes(self) -> None:
        sizes = FACTS["markers"]["layer_1$start"]
        packed = hlo_writer.quoted(struct.pack(f"<{len(sizes)}q", *sizes))
        stages = hlofast.loads(TEXT.replace(packed, '"seven b"')).stages()
        assert stages.marker_sizes["layer_1$start"] is None
        assert stages.markers.values("agrees") == [None, *["yes"] * 5]

    def test_markers_of_the_entry_itself(self) -> None:
        module = hlofast.loads(plain_stage())
        stages = module.stages()
        assert stages.markers["calls"].tolist() == [0, 0, 0, 0]
        assert stages.parts["section"].tolist() == ["a", "a_backward"]
        assert [row["name"] for row in stages.stash] == ["kept", "x"]
        assert stages.stash["kind"].tolist() == ["activation", "input"]
        assert stages.stash.values("forward_index") == [1, None]


class TestSections:
    def test_products_and_flops(self, stage: hlofast.Stages) -> None:
        sections = stage.parts
        assert tuple(sections["section"]) == NAMES
        assert sections["phase"].tolist() == ["forward", "backward", "optimizer"]
        assert sections["products"].tolist() == [3, 6, 0]
        flops = FACTS["dot_flops"]
        assert sections["product_flops"].tolist() == [flops // 3, 2 * flops // 3, 0]
        assert sum(sections["flops"].tolist()) == stage.module.cost().flops

    def test_bytes_are_those_of_the_markers(self, stage: hlofast.Stages) -> None:
        for row in stage.parts:
            assert row["bytes_in"] == sum(FACTS["markers"][f"{row['section']}$start"])
            assert row["bytes_out"] == sum(FACTS["markers"][f"{row['section']}$end"])

    def test_products_in_loops_count_as_often_as_they_run(self) -> None:
        stages = hlofast.loads(plain_stage(loop=True)).stages()
        assert stages.parts["products"].tolist() == [5, 0]
        assert stages.parts["product_flops"].tolist() == [5 * 2 * 8 * 8 * 8, 0]


class TestStash:
    def test_every_item_has_its_source(self, stage: hlofast.Stages) -> None:
        rows = {row["index"]: row for row in stage.stash}
        assert len(rows) == len(FACTS["markers"]["layer_1_backward$start"])
        assert [row["bytes"] for row in rows.values()] == FACTS["markers"]["layer_1_backward$start"]
        first = rows[0]
        assert (first["forward_index"], first["opcode"], first["kind"]) == (
            1,
            "exponential",
            "activation",
        )
        assert first["source_file"] == "/app/loss.py"
        assert first["op_name"].endswith("/exponential")

    def test_copies_of_weights(self, stage: hlofast.Stages) -> None:
        copies = [row for row in stage.stash if row["kind"] == "weight_copy"]
        assert [row["opcode"] for row in copies] == ["convert"] * 4
        assert {row["widened_from"] for row in copies} == {"f16"}
        weights = {stage.module[row["weight"]].opcode for row in copies}
        assert weights == {"parameter"}
        memory = stage.memory
        assert memory is not None
        assert (
            memory.weight_copies == sum(row["bytes"] for row in copies) == 3072 + 3072 + 4096 + 64
        )

    def test_inputs_and_state_are_told_apart(self, stage: hlofast.Stages) -> None:
        kinds = {row["name"]: row["kind"] for row in stage.stash if row["opcode"] == "parameter"}
        scale, *inputs = sorted(kinds, key=lambda name: stage.module[name].row)
        assert kinds[scale] == "state"
        assert {kinds[name] for name in inputs} == {"input"}
        # gate and normed are read again as they came, and the mask
        assert len(inputs) == 3


class TestBoundary:
    def test_what_is_received(self, stage: hlofast.Stages) -> None:
        boundary = stage.boundary
        assert boundary is not None
        assert boundary.received["bytes"].tolist() == [3072, 1024, 1024]
        assert boundary.received_bytes == 5120
        # labels and mask come with the batch
        assert boundary.input_bytes == 32 + 16
        assert not boundary.is_partial

    def test_cheapest_cut(self) -> None:
        """Behind the residual stream, if so much work may move; else behind the gated product."""
        module = hlofast.load(STAGE)
        boundary = module.stages(most_moved=0.75).boundary
        assert boundary is not None and boundary.cut is not None
        assert boundary.ratio == 5.0
        assert boundary.cut.values["shape"].tolist() == ["f32[2,8,16]"]
        assert boundary.cut.after.opcode == "add"
        near = module.stages().boundary
        assert near is not None and near.cut is not None
        assert near.cut.bytes == 3072 + 1024
        assert near.cut.moved_flops <= near.flops / 2
        still = module.stages(most_moved=0.0).boundary
        assert still is not None and still.cut is None
        assert still.ratio == 1.0

    def test_cuts_are_those_of_a_search_over_all_sets(self) -> None:
        """Against every set of instructions that is closed under what it needs."""
        module = hlofast.loads(BRANCHES)
        boundary = module.stages(most_moved=1.0).boundary
        assert boundary is not None and boundary.cut is not None
        assert boundary.cut.bytes == least_cut(module)

    def test_what_is_sent_on_counts_wherever_it_is_made(self) -> None:
        """The result of the section leaves it, so moving all of it saves nothing on that side."""
        boundary = hlofast.loads(plain_stage()).stages(most_moved=1.0).boundary
        assert boundary is not None
        assert boundary.received_bytes == 256
        assert boundary.cut is None


class TestMicroBatches:
    def test_divisions_by_one(self, stage: hlofast.Stages) -> None:
        assert stage.micro_batches == 1
        assert stage.divisions["divisor"].tolist() == [1.0] * 4
        assert {stage.module[row].opcode for row in stage.divisions["constant"].tolist()} == {
            "constant"
        }

    def test_another_number(self) -> None:
        stages = hlofast.loads(divided_by("8")).stages()
        assert stages.micro_batches == 8
        assert stages.divisions["divisor"].tolist() == [8.0] * 4

    @pytest.mark.parametrize("literal", ["2.5", "0", "-4", "nan", "inf"])
    def test_what_is_no_count_is_unknown(self, literal: str) -> None:
        assert hlofast.loads(divided_by(literal)).stages().micro_batches is None

    def test_different_literals_are_unknown(self) -> None:
        stages = hlofast.loads(divided_by("8", only_first=True)).stages()
        assert stages.micro_batches is None
        assert sorted(stages.divisions["divisor"].tolist()) == [1.0, 1.0, 1.0, 8.0]


class TestCrossMesh:
    def test_operations_and_meshes(self, stage: hlofast.Stages) -> None:
        rows = stage.cross_mesh.to_pylist()
        assert [(row["operation"], row["meshes"]) for row in rows] == [
            ("AND", "0,1"),
            ("SUM", "0,1"),
        ]
        assert [row["bytes"] for row in rows] == [1, 4]
        assert {row["section"] for row in rows} == {"1_apply_grad"}

    def test_more_meshes_and_what_cannot_be_read(self) -> None:
        assert TEXT.count('"SUM;0$1$"') == 1
        more = hlofast.loads(TEXT.replace('"SUM;0$1$"', '"SUM;0$2$11$"')).stages().cross_mesh
        assert more["meshes"].tolist() == ["0,1", "0,2,11"]
        odd = hlofast.loads(TEXT.replace('"SUM;0$1$"', '"SUM"')).stages().cross_mesh
        assert (odd["operation"].tolist(), odd["meshes"].tolist()) == (["AND", None], ["0,1", None])


class TestMemory:
    def test_state_and_stash(self, stage: hlofast.Stages) -> None:
        memory = stage.memory
        assert memory is not None
        assert memory.state == FACTS["donated_bytes"]
        kept = sum(FACTS["markers"]["layer_1_backward$start"])
        assert memory.stash == kept - 4  # the loss scale is state
        assert memory.working_peak is not None
        inputs = FACTS["parameter_bytes"] - FACTS["donated_bytes"]
        assert memory.working_peak > memory.stash
        peaks = dict(zip(stage.parts["section"], stage.parts["peak"].tolist(), strict=True))
        assert memory.working_peak + memory.state == max(
            peaks["layer_1"], peaks["layer_1_backward"]
        )
        assert peaks["layer_1"] >= memory.state + inputs

    @pytest.mark.parametrize("successors", [-1, 0, 1, 5])
    def test_successors_that_fit(self, stage: hlofast.Stages, successors: int) -> None:
        memory = stage.memory
        assert memory is not None and memory.working_peak is not None
        least = memory.state + memory.working_peak + (successors + 1) * memory.stash
        fitting = stage.module.stages(hbm=least).memory
        assert fitting is not None and fitting.most_successors == successors
        if successors >= 0:
            less = stage.module.stages(hbm=least - 1).memory
            assert less is not None and less.most_successors == successors - 1

    def test_devices_share_a_stage(self, stage: hlofast.Stages) -> None:
        single = stage.module.stages(device="a100").memory
        four = stage.module.stages(device="a100", devices=4).memory
        assert single is not None and four is not None
        assert single.available is not None and four.available == 4 * single.available
        assert stage.memory is not None and stage.memory.most_successors is None

    def test_markers_take_no_memory(self, stage: hlofast.Stages) -> None:
        """Alpa cuts the program at its markers, so they never copy anything."""
        at = stage.module.memory().at
        assert at is not None and at.opcode != "custom-call"

    def test_arguments_without_sense(self, stage: hlofast.Stages) -> None:
        with pytest.raises(ValueError, match="devices"):
            stage.module.stages(hbm=1, devices=0)
        with pytest.raises(ValueError, match="most_moved"):
            stage.module.stages(most_moved=1.5)
        with pytest.raises(ValueError, match="bytes"):
            stage.module.stages(hbm="much")


def test_a_module_without_markers() -> None:
    stages = hlofast.loads("HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }").stages()
    assert len(stages.markers) == len(stages.parts) == len(stages.stash) == 0
    assert (stages.boundary, stages.memory, stages.micro_batches) == (None, None, None)
    assert "none" in repr(stages)


def test_pickled_stages_are_the_same(stage: hlofast.Stages) -> None:
    other = pickle.loads(pickle.dumps(stage.module.stages(hbm="1GiB")))
    assert other.stash == stage.stash
    assert other.memory.available == 2**30


class TestProgram:
    def test_document_is_the_python_object(self, stage: hlofast.Stages) -> None:
        (result,) = document("stages", STAGE, "--hbm", "1MiB", "--most-moved", "0.75")["results"]
        tables = result["tables"]
        values = {name: fact["value"] for name, fact in result["facts"].items()}
        assert (values["ratio"], values["available"], values["micro_batches"]) == (5.0, 2**20, 1)
        assert result["facts"]["available"]["provenance"] == "configuration"
        assert result["facts"]["working_peak"]["provenance"] == "modelled"
        memory, boundary = stage.memory, stage.module.stages(most_moved=0.75).boundary
        assert memory is not None and boundary is not None and boundary.cut is not None
        assert (values["state"], values["stash"]) == (memory.state, memory.stash)
        assert values["moved_flops"] == boundary.cut.moved_flops
        assert values["cut_after"] == boundary.cut.after.name
        assert [row["name"] for row in tables["received"]] == boundary.received.values("name")
        assert [row["name"] for row in tables["cut"]] == boundary.cut.values.values("name")
        assert [
            [int(size.replace(",", "")) for size in row["sizes"].split(", ")]
            for row in tables["markers"]
        ] == list(FACTS["markers"].values())
        assert {row["name"] for row in tables["stash"]} == set(stage.stash.values("name"))
        assert sum(row["share"] for row in tables["stash"]) == pytest.approx(1)
        assert tables["cross_mesh"][0]["meshes"] == "0,1"
        assert [row["section"] for row in tables["sections"]] == list(NAMES)

    def test_the_command_prints_the_result(self) -> None:
        stages = hlofast.load(STAGE).stages(hbm="1MiB")
        printed = hlofast_command("stages", STAGE, "--hbm", "1MiB").stdout.splitlines()
        # The widest label decides how far values are from labels.
        assert [printed[0], *printed[2:]] == [*str(stages).splitlines(), ""]
        (own,) = validated("stages", stages.to_json())["results"]
        assert own == stages.to_dict()

    def test_html_escapes_names(self) -> None:
        html = hlofast.loads(TEXT.replace("/app/loss.py", "<b>.py")).stages()._repr_html_()
        assert "&lt;b&gt;.py" in html
        assert "<b>" not in html
        assert " B</td>" in html

    def test_not_even_one_micro_batch(self, stage: hlofast.Stages) -> None:
        (fact,) = [own for own in stage.module.stages(hbm=1).facts if own.name == "most_successors"]
        assert (fact.value, fact.provenance) == (-1, "modelled")
        codes = [note.code for note in stage.module.stages(hbm=1).notes]
        assert "none-fits" in codes
        assert "none-fits" not in [note.code for note in stage.notes]

    def test_for_people(self) -> None:
        done = hlofast_command("stages", STAGE, "--hbm", "1MiB", "--most-moved", "0.75")
        assert done.returncode == 0
        for shown in (
            "byte ratio            5\n",
            "weight_copy",
            "layer_1$start",
            "AND        0,1",
            "successors",
            "micro-batches",
        ):
            assert shown in done.stdout

    def test_no_markers(self, train_step: Path) -> None:
        (result,) = document("stages", train_step)["results"]
        assert result["tables"]["markers"] == []
        assert result["facts"] == {}
        assert [note["code"] for note in result["notes"]] == ["no-markers"]

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--hbm", "much"),
            ("--device", "abacus"),
            ("--device-count", "0"),
            ("--most-moved", "2"),
        ],
    )
    def test_wrong_usage(self, arguments: tuple[str, str]) -> None:
        assert hlofast_command("stages", STAGE, *arguments).returncode == 2


@pytest.fixture(scope="module")
def stages(seeds: Seeds) -> hlofast.Stages:
    return hlofast.load(seeds.path("001")).stages()


class TestSeed001:
    """The figures of the reference."""

    def test_markers(self, stages: hlofast.Stages) -> None:
        start = "112721920 90177536 41943040 90177536 41943040 8192 262144000 5120 2560 4"
        assert stages.marker_sizes["layer_1$start"] == tuple(map(int, start.split()))
        expected = {
            "layer_1$start": (10, 639_122_948),
            "layer_1$end": (22, 1_944_137_744),
            "layer_1_backward$start": (24, 2_098_805_260),
            "layer_1_backward$end": (7, 639_115_264),
            "1_apply_grad$start": (25, 3_540_058_132),
            "1_apply_grad$end": (21, 3_097_550_868),
        }
        markers = {
            f"{row['section']}${row['mark']}": (row["arrays"], row["bytes"])
            for row in stages.markers
        }
        assert markers == expected
        sums = {
            name: (len(sizes or ()), sum(sizes or ()))
            for name, sizes in stages.marker_sizes.items()
        }
        assert sums == expected

    def test_sections(self, stages: hlofast.Stages) -> None:
        assert stages.parts["products"].tolist() == [3, 6, 0]
        flops = [1_132_797_624_320, 2_265_595_248_640, 0]
        assert stages.parts["product_flops"].tolist() == flops
        assert stages.parts["bytes_in"].tolist() == [639_122_948, 2_098_805_260, 3_540_058_132]
        assert stages.parts["bytes_out"].tolist() == [1_944_137_744, 639_115_264, 3_097_550_868]

    def test_stash(self, stages: hlofast.Stages) -> None:
        made = {
            row["forward_index"]: row for row in stages.stash if row["forward_index"] is not None
        }
        assert {
            index: row["name"] for index, row in made.items() if row["kind"] == "weight_copy"
        } == {8: "convert.222", 10: "reshape.217", 16: "convert.196", 18: "convert.193"}
        converts = sum(made[index]["bytes"] for index in (8, 16, 18))
        assert converts == 884_998_144
        assert round(converts / 1_944_137_744, 3) == 0.455
        assert made[10]["bytes"] == 16_384
        assert {made[index]["widened_from"] for index in (8, 16, 18)} == {"f16"}
        sizes = [row["bytes"] for row in made.values() if row["kind"] == "activation"]
        assert sizes.count(327_680_000) == 1
        assert sizes.count(112_721_920) == 5
        assert sizes.count(41_943_040) == 4
        (exponential,) = (row for row in made.values() if row["bytes"] == 327_680_000)
        assert (exponential["opcode"], exponential["source_line"]) == ("exponential", 237)

    def test_boundary(self, stages: hlofast.Stages) -> None:
        boundary = stages.boundary
        assert boundary is not None and boundary.cut is not None
        assert boundary.received_bytes == 196_608_000
        assert boundary.received["bytes"].tolist() == [112_721_920, 41_943_040, 41_943_040]
        assert (boundary.cut.bytes, boundary.ratio) == (41_943_040, 4.6875)
        assert boundary.cut.after.name == "add.198"

    def test_cross_mesh_micro_batches_and_state(self, stages: hlofast.Stages) -> None:
        rows = stages.cross_mesh.to_pylist()
        assert [(row["operation"], row["meshes"], row["shape"]) for row in rows] == [
            ("AND", "0,1", "pred[]"),
            ("SUM", "0,1", "f32[]"),
        ]
        assert stages.micro_batches == 1
        constants = set(stages.divisions["constant_name"])
        assert constants == {f"constant.{number}" for number in (82, 84, 86, 88, 138)}
        assert stages.memory is not None
        assert stages.memory.state == 3_097_550_864


def divided_by(literal: str, *, only_first: bool = False) -> str:
    """The fixture with other divisors of the gradients."""
    module = hlofast.loads(TEXT)
    names = module.stages().divisions["constant_name"].tolist()
    text = TEXT
    for name in names[:1] if only_first else names:
        before = f"%{name} = f16[] constant(1)"
        assert text.count(before) == 1
        text = text.replace(before, f"%{name} = f16[] constant({literal})")
    return text


def marker(name: str, operand: str, shape: str, data: str) -> str:
    return (
        f'  {name} = {shape} custom-call({operand}), custom_call_target="pipeline_marker", '
        f'metadata={{op_name="{data}"}}'
    )


def plain_stage(*, loop: bool = False) -> str:
    """One layer whose markers stand in the entry; with `loop` its product runs five times."""
    array = "f32[8,8]"
    body = f"""
body {{
  s = (s32[], {array}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  v = {array} get-tuple-element(s), index=1
  d = {array} dot(v, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT t = (s32[], {array}) tuple(next, d)
}}

condition {{
  s = (s32[], {array}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)
  ROOT less = pred[] compare(i, n), direction=LT
}}
"""
    product = f"  y = {array} dot(xi, xi), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    if loop:
        product = f"""  zero = s32[] constant(0)
  state = (s32[], {array}) tuple(zero, xi)
  run = (s32[], {array}) while(state), condition=condition, body=body
  y = {array} get-tuple-element(run), index=1"""
    pair = f"({array}, {array})"
    lines = [
        "HloModule m",
        body if loop else "",
        "ENTRY e {",
        f"  x = {array} parameter(0)",
        f"  g = {array} parameter(1)",
        f"  t0 = ({array}) tuple(x)",
        marker("m0", "t0", f"({array})", "a$start"),
        f"  xi = {array} get-tuple-element(m0), index=0",
        product,
        f"  kept = {array} tanh(y)",
        f"  t1 = {pair} tuple(y, kept)",
        marker("m1", "t1", pair, "a$end"),
        f"  sent = {array} get-tuple-element(m1), index=0",
        f"  stay = {array} get-tuple-element(m1), index=1",
        f"  t2 = ({array}, {array}) tuple(stay, x)",
        marker("m2", "t2", pair, "a_backward$start"),
        f"  k = {array} get-tuple-element(m2), index=0",
        f"  x2 = {array} get-tuple-element(m2), index=1",
        f"  b = {array} multiply(k, x2)",
        f"  t3 = ({array}) tuple(b)",
        marker("m3", "t3", f"({array})", "a_backward$end"),
        f"  back = {array} get-tuple-element(m3), index=0",
        f"  ROOT r = {pair} tuple(sent, back)",
        "}",
    ]
    return "\n".join(lines)


BRANCHES = "\n".join(
    [
        "HloModule m",
        "ENTRY e {",
        "  p = f32[64] parameter(0)",
        "  q = f32[32] parameter(1)",
        "  t0 = (f32[64], f32[32]) tuple(p, q)",
        marker("m0", "t0", "(f32[64], f32[32])", "a$start"),
        "  x = f32[64] get-tuple-element(m0), index=0",
        "  z = f32[32] get-tuple-element(m0), index=1",
        "  a = f32[16] slice(x), slice={[0:16]}",
        "  b = f32[8] slice(x), slice={[0:8]}",
        "  c = f32[4] slice(z), slice={[0:4]}",
        "  d = f32[40] concatenate(a, b, a), dimensions={0}",
        "  f = f32[44] concatenate(d, c), dimensions={0}",
        "  g = f32[48] concatenate(f, c), dimensions={0}",
        "  h = f32[60] concatenate(g, b, c), dimensions={0}",
        "  t1 = (f32[60]) tuple(h)",
        marker("m1", "t1", "(f32[60])", "a$end"),
        "  o = f32[60] get-tuple-element(m1), index=0",
        "  ROOT r = (f32[60]) tuple(o)",
        "}",
    ]
)
"""Values that shrink and grow along several ways."""


def least_cut(module: hlofast.Module) -> int:
    """The bytes of the best cut of `BRANCHES`, by trying every closed set of instructions."""
    names = ["x", "z", "a", "b", "c", "d", "f", "g", "h"]
    operands = {name: [o.name for o in module[name].operands if o.name in names] for name in names}
    users = {name: [u for u in names if name in operands[u]] for name in names}
    best = None
    for bits in range(1 << len(names)):
        moved = {name for at, name in enumerate(names) if bits >> at & 1} | {"x", "z"}
        if not all(set(operands[name]) <= moved for name in moved):
            continue
        crossing = [name for name in moved if name == "h" or not set(users[name]) <= moved]
        size = sum(module[name].shape.bytes or 0 for name in crossing)
        best = size if best is None else min(best, size)
    assert best is not None
    return best
