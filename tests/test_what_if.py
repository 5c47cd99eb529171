"""`Module.what_if()` and `hlofast what-if`: a compiled step with other sizes."""

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import CHECKOUT, FIXTURES
from test_cli import hlofast_command, validated

sys.path.insert(0, str(CHECKOUT / "benches"))

import what_if_accuracy

TEXT = """\
HloModule step, is_scheduled=true, input_output_alias={ {1}: (0, {}, may-alias) }, num_partitions=4

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

body {
  state = (s32[], f32[4,16,64], f32[6,64,64], f32[6,4,16,64]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[4,16,64] get-tuple-element(state), index=1
  w = f32[6,64,64] get-tuple-element(state), index=2
  kept = f32[6,4,16,64] get-tuple-element(state), index=3
  zero = s32[] constant(0)
  one = s32[] constant(1)
  slice = f32[1,64,64] dynamic-slice(w, i, zero, zero), dynamic_slice_sizes={1,64,64}
  layer = f32[64,64] reshape(slice)
  y = f32[4,16,64] dot(x, layer), lhs_contracting_dims={2}, rhs_contracting_dims={0}
  r = f32[4,16,64] all-reduce(y), channel_id=1, replica_groups=[2,2]<=[4], use_global_device_ids=true, to_apply=sum
  update = f32[1,4,16,64] reshape(r)
  keep = f32[6,4,16,64] dynamic-update-slice(kept, update, i, zero, zero, zero)
  next = s32[] add(i, one)
  ROOT t = (s32[], f32[4,16,64], f32[6,64,64], f32[6,4,16,64]) tuple(next, r, w, keep)
}

condition {
  state = (s32[], f32[4,16,64], f32[6,64,64], f32[6,4,16,64]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(6)
  ROOT less = pred[] compare(i, n), direction=LT
}

ENTRY main {
  w = f32[6,64,64] parameter(0), sharding={replicated}, metadata={op_name="parameters['layers']['w']"}
  tokens = s32[4,17] parameter(1), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}, metadata={op_name="batch['tokens']"}
  table = f32[100,64] parameter(2), sharding={replicated}, metadata={op_name="parameters['embedding']"}
  short = s32[4,16] slice(tokens), slice={[0:4], [0:16]}
  x = f32[4,16,64] gather(table, short), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, slice_sizes={1,64}
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  empty = f32[6,4,16,64] broadcast(nothing), dimensions={}
  start = (s32[], f32[4,16,64], f32[6,64,64], f32[6,4,16,64]) tuple(zero, x, w, empty)
  loop = (s32[], f32[4,16,64], f32[6,64,64], f32[6,4,16,64]) while(start), condition=condition, body=body
  stack = f32[6,4,16,64] get-tuple-element(loop), index=3
  flat = f32[6,64,64] reshape(stack)
  whole = f32[8,16,64] all-gather(x), channel_id=2, replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}, use_global_device_ids=true
  ROOT out = (f32[6,64,64], f32[6,64,64], f32[8,16,64]) tuple(flat, w, whole)
}
"""
MESH = "data=2,model=2"

ALONE = """\
HloModule alone, is_scheduled=true

ENTRY main {
  tokens = s32[4,16] parameter(0), metadata={op_name="batch['tokens']"}
  table = f32[100,64] parameter(1), metadata={op_name="parameters['embedding']"}
  router = f32[64,2] parameter(2), metadata={op_name="parameters['router']"}
  x = f32[4,16,64] gather(table, tokens), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, slice_sizes={1,64}
  one = f32[1,16,64] slice(x), slice={[0:1], [0:16], [0:64]}
  two = f32[1,16,64] slice(x), slice={[1:2], [0:16], [0:64]}
  three = f32[1,16,64] slice(x), slice={[2:3], [0:16], [0:64]}
  four = f32[1,16,64] slice(x), slice={[3:4], [0:16], [0:64]}
  copied = f32[4,16,64] custom-call(one, two, three, four), custom_call_target="ConcatBitcast"
  bytes = s8[16384] bitcast(x)
  back = f32[4,16,64] bitcast(bytes)
  gates = f32[4,16,2] dot(x, router), lhs_contracting_dims={2}, rhs_contracting_dims={0}
  slots = f32[4,16,8] iota(), iota_dimension=2
  gates_of_slots = f32[4,16,2,8] broadcast(gates), dimensions={0,1,2}
  slots_of_gates = f32[4,16,2,8] broadcast(slots), dimensions={0,1,3}
  dispatch = f32[4,16,2,8] multiply(gates_of_slots, slots_of_gates)
  ROOT out = (f32[4,16,64], f32[4,16,64], f32[4,16,2,8]) tuple(copied, back, dispatch)
}
"""
PAIR = """\
HloModule pair, is_scheduled=true

ENTRY main {
  source = s32[4,16] parameter(0), metadata={op_name="batch['source']"}
  tokens = s32[4,16] parameter(1), metadata={op_name="batch['tokens']"}
  ROOT sum = s32[4,16] add(source, tokens)
}
"""

UNNAMED = """\
HloModule m

ENTRY main {
  param = s32[8,4] parameter(0)
  param.1 = s32[6,4] parameter(1)
  ROOT both = (s32[8,4], s32[6,4]) tuple(param, param.1)
}
"""


@pytest.fixture(scope="module")
def step() -> hlofast.Module:
    return hlofast.loads(TEXT).with_context(mesh=MESH)


@pytest.fixture(scope="module")
def decoder() -> hlofast.Module:
    return hlofast.load(FIXTURES / "sharded" / "decoder_v5p_16.txt.gz")


@pytest.fixture(scope="module")
def judged() -> list[dict[str, Any]]:
    """Every change between the committed texts, beside what XLA compiled."""
    texts = [
        (
            record,
            hlofast.loads(text).with_context(
                mesh=record["mesh"], device=what_if_accuracy.device_of(record["chips"])
            ),
        )
        for record, text in what_if_accuracy.committed()
    ]
    truths = [what_if_accuracy.figures(module) for _, module in texts]
    return [
        what_if_accuracy.judge(record, module, other, truth)
        for at, (record, module) in enumerate(texts)
        for place, ((other, _), truth) in enumerate(zip(texts, truths, strict=True))
        if at != place and record["program"] == other["program"]
    ]


def shape(module: hlofast.Module, name: str, computation: str | None = None) -> str:
    """The shape of an instruction, without its layout."""
    found = next(
        own
        for own in module.instructions
        if own.name == name and (computation is None or own.computation.name == computation)
    )
    return re.sub(r"\{[^}]*\}", "", str(found.shape))


class TestSymbols:
    def test_batch_sequence_and_layers_are_found(self, step: hlofast.Module) -> None:
        found = {own.role: own for own in step.what_if().symbols}
        assert (found["batch"].size, found["batch"].axes) == (8, ["data"])
        assert (found["sequence"].size, found["sequence"].shift) == (16, -1)
        assert (found["layers"].size, found["layers"].loops) == (6, 1)

    def test_where_each_was_found(self, step: hlofast.Module) -> None:
        rows = {row["role"]: row for row in step.what_if().symbol_table}
        assert rows["batch"]["name"] == "batch['tokens']"
        assert rows["layers"]["name"] == "parameters['layers']['w']"
        assert (rows["width"]["size"], rows["vocabulary"]["size"]) == (64, 100)


class TestSizes:
    def test_without_a_change_the_figures_stay(self, step: hlofast.Module) -> None:
        result = step.what_if()
        assert all(before == after for before, after in result.figures.values())
        assert result.change == "none" and not result.is_changed
        kept = step.what_if(batch="1x", mesh=step.context.mesh)
        assert not kept.is_changed and kept.figures == result.figures
        assert step.what_if(batch="2x").is_changed

    def test_batch(self, step: hlofast.Module) -> None:
        changed = step.what_if(batch="2x").changed
        assert shape(changed, "tokens") == "s32[8,17]"
        assert shape(changed, "y") == "f32[8,16,64]"
        assert shape(changed, "whole") == "f32[16,16,64]"
        assert shape(changed, "w", "main") == "f32[6,64,64]"

    def test_sequence_counts_positions_and_not_tokens(self, step: hlofast.Module) -> None:
        changed = step.what_if(sequence=32).changed
        assert shape(changed, "tokens") == "s32[4,33]"
        assert shape(changed, "short") == "s32[4,32]"
        assert shape(changed, "flat") == "f32[6,128,64]"

    def test_layers_change_stacks_and_trip_counts(self, step: hlofast.Module) -> None:
        result = step.what_if(layers=24)
        assert shape(result.changed, "w", "main") == "f32[24,64,64]"
        assert shape(result.changed, "empty") == "f32[24,4,16,64]"
        (loop,) = result.changed.cost().loops
        assert loop["trip_count"] == 24
        before, after = result.figures["flops"]
        assert after == pytest.approx(4 * before, rel=1e-5)  # The condition runs once more.

    def test_wire_bytes_by_axes(self, step: hlofast.Module) -> None:
        rows = {row["axes"]: row for row in step.what_if(batch=32, layers=12).wire_bytes}
        assert rows["model"]["ratio"] == 8
        assert rows["data"]["ratio"] == 4

    def test_mesh(self, step: hlofast.Module) -> None:
        result = step.what_if(mesh="data=4,model=2")
        assert result.changed.num_partitions == 8
        assert shape(result.changed, "tokens") == "s32[2,17]"
        assert shape(result.changed, "whole") == "f32[8,16,64]"
        rows = {row["axes"]: row for row in result.wire_bytes}
        assert rows["model"]["ratio"] == 0.5
        # Of 8 rows each device sends its own to all others.
        assert what_if_accuracy.sent_by(result.changed)["data"] == 3 * 2 * 16 * 64 * 4
        # It may become a ring of transfers.
        assert (rows["data"]["after"], rows["data"]["undecided"]) == (None, "matmul")

    def test_axes_that_are_not_given_stay(self, step: hlofast.Module) -> None:
        result = step.what_if(mesh={"model": 4})
        assert result.new_mesh == hlofast.Mesh({"data": 2, "model": 4})

    def test_an_axis_of_one_device_does_not_grow(self, step: hlofast.Module) -> None:
        """Nothing in the text is split along it, so that nothing tells what it would split."""
        other = step.what_if(mesh="data=4,model=1").changed
        with pytest.raises(ValueError, match=r"'model' splits, because the axis has one device"):
            other.what_if(mesh="data=2,model=2")

    def test_there_and_back(self, step: hlofast.Module) -> None:
        there = step.what_if(batch=32, sequence=64, layers=3, mesh="data=4,model=2").changed
        back = there.what_if(batch=8, sequence=16, layers=6, mesh=MESH).changed
        for name in ("tokens", "y", "whole", "flat", "keep"):
            assert shape(back, name) == shape(step, name), name

    def test_a_changed_module_takes_every_analysis(self, step: hlofast.Module) -> None:
        changed = step.what_if(batch=64, mesh="data=8").changed
        again = hlofast.loads(changed.text).with_context(mesh="data=8,model=2")
        assert again.memory().live_peak == changed.memory().live_peak
        assert changed.lint().table() is not None
        assert changed.time("tpu-v5e").step_seconds > 0

    def test_copies_in_parts_and_as_bytes(self) -> None:
        changed = hlofast.loads(ALONE).what_if(batch=8).changed
        assert shape(changed, "two") == "f32[2,16,64]"
        assert shape(changed, "copied") == "f32[8,16,64]"
        assert shape(changed, "bytes") == "s8[32768]"
        assert shape(changed, "back") == "f32[8,16,64]"

    def test_the_capacity_of_experts_follows_the_tokens(self) -> None:
        module = hlofast.loads(ALONE)
        # 8 slots for 16 tokens and 2 experts: tokens / experts, rounded up.
        assert shape(module.what_if(sequence=32).changed, "dispatch") == "f32[4,32,2,16]"
        assert shape(module.what_if(sequence=17).changed, "dispatch") == "f32[4,17,2,9]"
        assert shape(module.what_if(batch=8).changed, "dispatch") == "f32[8,16,2,8]"

    def test_flops_of_a_compiled_step_follow_the_batch(self) -> None:
        module = hlofast.load(FIXTURES / "sharded" / "decoder_v5p_16.txt.gz")
        before, after = module.what_if(batch="2x").figures["flops"]
        assert after == pytest.approx(2 * before, rel=0.02)  # The optimizer's work stays.


class TestWork:
    """FLOPs on another mesh: the work of all devices together stays, or has no figure."""

    def test_rings_that_are_no_loops(self) -> None:
        """Shards pass around a ring of 4 in as many instructions; on 8 there are twice as many."""
        module = hlofast.load(FIXTURES / "sharded" / "decoder_v5p_16.txt.gz")
        module = module.with_context(device="tpu-v5p")
        for size, ratio in ((8, 0.5), (2, 2)):
            result = module.what_if(mesh={"axis_0": size})
            before, after = result.figures["flops"]
            assert after == pytest.approx(ratio * before, rel=0.001)
            assert after != result.changed.cost().flops
            assert "conserved-work" in [note.code for note in result.notes]
            assert result.figures["step_seconds"][0] > 0
            assert result.figures["step_seconds"][1] is None

    def test_every_axis_of_every_step(self) -> None:
        """Work is divided by as many devices more or fewer, or by none."""
        answered, open_ones = [], []
        for path in sorted((FIXTURES / "sharded").glob("*.txt.gz")):
            module = hlofast.load(path)
            axes = {} if (mesh := module.mesh()) is None else mesh.shape
            if path.stat().st_size > 100_000:
                continue  # Larger steps of the same models.
            for axis, old in axes.items():
                for new in (2 * old, old // 2):
                    try:
                        result = module.what_if(mesh={axis: new}) if new else None
                    except ValueError:
                        result = None  # The axis does not divide a parameter.
                    if result is None:
                        continue
                    before, after = result.figures["flops"]
                    name = f"{path.name} {axis} {old} {new}"
                    is_noted = "undecided-flops" in [note.code for note in result.notes]
                    assert is_noted == (after is None), name
                    if after is None:
                        open_ones.append(name)
                        continue
                    answered.append(name)
                    low, high = sorted((1, old / new))
                    assert 0.99 * low <= after / before <= 1.01 * high, name
        assert len(answered) >= 60
        # What programs compute that say themselves what each device does is theirs to say.
        assert any("subsets" in name for name in open_ones)
        assert any("pipeline" in name for name in open_ones)

    def test_dimensions_that_compiled_shapes_lack(self) -> None:
        """With an expert on each device, two experts are in no dimension of its matmuls."""
        module = hlofast.load(FIXTURES / "sharded" / "experts_v5p_4.txt.gz")
        result = module.with_context(device="tpu-v5p").what_if(mesh={"axis_0": 2})
        assert result.flops_undecided == 1
        for name in ("flops", "step_seconds", "exposed_seconds"):
            before, after = result.figures[name]
            assert before is not None and after is None
        assert "flops_after" not in {fact.name for fact in result.facts}

    def test_halves_of_heads(self) -> None:
        """An axis of two devices does not divide the halves of a rotated head."""
        module = hlofast.load(FIXTURES / "sharded" / "decoder_v5p_2.txt.gz")
        before, after = module.what_if(mesh={"axis_0": 4}).figures["flops"]
        assert after == pytest.approx(before / 2, rel=0.01)


class TestUndecided:
    """The compiler may choose otherwise: no figure, a reason and what is decided."""

    def test_a_lookup_of_many_more_tokens(self, decoder: hlofast.Module) -> None:
        """The sum of gradients becomes a reduce-scatter along another axis, of unknown padding."""
        result = decoder.what_if(batch="4x")
        assert result.figures["wire_bytes"][1] is None
        for row in result.wire_bytes:
            assert (row["after"] is None) == (row["undecided"] == "padding")
            assert row["decided"] > 0
        assert [row["axes"] for row in result.wire_bytes if row["undecided"]] == ["axis_0"]
        known = {fact.name: fact.value for fact in result.facts}
        assert known["wire_bytes_decided"] == sum(row["decided"] for row in result.wire_bytes)
        assert "padded-lookup" in [note.code for note in result.notes]

    def test_layers_decide_everything(self, decoder: hlofast.Module) -> None:
        result = decoder.what_if(layers=64)
        assert not result.undecided
        assert not result.peak_undecided
        for row in result.wire_bytes:
            assert row["after"] == row["decided"] == row["modelled"]

    def test_with_fewer_layers_more_of_the_peak_waits(self, decoder: hlofast.Module) -> None:
        result = decoder.what_if(layers=16)
        assert not result.undecided
        assert result.peak_undecided == ["order"]

    def test_a_mesh_on_which_matmuls_may_pass_shards_on(self, decoder: hlofast.Module) -> None:
        result = decoder.what_if(batch=16, mesh={"axis_0": 8})
        assert "matmul" in result.undecided.values()
        assert result.peak_undecided == ["matmul", "order"]

    def test_one_sequence_on_each_device(self, decoder: hlofast.Module) -> None:
        result = decoder.what_if(mesh={"axis_0": 8})
        assert "one" in result.undecided.values()
        assert "one" in result.peak_undecided

    def test_the_range_of_a_peak(self, decoder: hlofast.Module) -> None:
        known = {fact.name: fact.value for fact in decoder.what_if(sequence="2x").facts}
        assert known["xla_peak_least"] < known["xla_peak_after"] < known["xla_peak_most"]

    def test_a_policy_has_a_peak_and_a_time(self, decoder: hlofast.Module) -> None:
        module = decoder.with_context(device="tpu-v5p")
        result = module.what_if(policy="nothing_saveable")
        assert result.policy is not None
        assert result.figures["step_seconds"][1] == result.policy.step_seconds > 0
        assert result.figures["exposed_seconds"][1] is None
        assert result.figures["wire_bytes"][1] is None
        before, after = result.figures["xla_peak"]
        assert after < before
        assert {row["undecided"] for row in result.wire_bytes} == {"policy"}
        assert {"policy", "policy-error", "policy-steps-error"} <= {
            own.code for own in result.notes
        }

    def test_values_to_save_and_to_offload(self, decoder: hlofast.Module) -> None:
        policies = decoder.remat().policies
        assert policies is not None
        named = [row["name"] for row in policies.savable if row["kind"] == "matmul"]
        result = decoder.what_if(save=named[0], offload=named[1:2])
        own = policies.policy(save=named[0], offload=named[1:2])
        assert result.policy is not None
        assert result.figures["xla_peak"][1] == result.policy.peak == own.peak
        assert result.change == f"policy {own.described}"
        assert "save " in own.described and "offload " in own.described
        with pytest.raises(ValueError, match="no value to save matches 'nonsense'"):
            decoder.what_if(save="nonsense")


class TestErrors:
    @pytest.mark.parametrize(
        ("sizes", "words"),
        [
            ({"batch": 0}, "not a size from 1"),
            ({"batch": -3}, "not a size from 1"),
            ({"batch": 10**30}, "not a size from 1"),
            ({"batch": "many"}, "is not a size such as 8"),
            ({"batch": "0.3x"}, "not a whole number"),
            ({"batch": True}, "is not a size"),
            ({"batch": 7}, "does not divide over 2 devices along data"),
            ({"batch": 2**47}, "too large"),
            ({"sequence": {"images": 3}}, "no parameter has 'images' in its name"),
            ({"mesh": "pipe=2"}, "no mesh axis 'pipe'"),
            ({"mesh": "data=3"}, "does not divide over 3 devices"),
            ({"policy": "dots_saveable"}, "no policy can be modelled"),
            ({"save": "up"}, "no policy can be modelled"),
        ],
    )
    def test_what_cannot_change(
        self, step: hlofast.Module, sizes: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ValueError, match=re.escape(words)):
            step.what_if(**sizes)

    def test_inputs_that_cannot_be_told_apart(self) -> None:
        module = hlofast.loads(PAIR)
        with pytest.raises(ValueError, match=r"cannot be told from batch\['source'\]"):
            module.what_if(sequence={"tokens": 32})
        assert shape(module.what_if(sequence=32).changed, "sum") == "s32[4,32]"

    def test_a_whole_name_is_meant_before_a_part(self) -> None:
        module = hlofast.loads(UNNAMED)
        with pytest.raises(ValueError, match=r"param \(8\), param.1 \(6\); .* as param=8"):
            module.what_if(batch=16)
        changed = module.what_if(batch={"param": 16}).changed
        assert shape(changed, "param") == "s32[16,4]"
        assert shape(changed, "param.1") == "s32[6,4]"
        with pytest.raises(ValueError, match=r"cannot be told from batch\['source'\]"):
            hlofast.loads(PAIR).what_if(sequence={"batch['tokens']": 32})

    def test_a_module_without_loop_and_inputs(self) -> None:
        module = hlofast.loads("HloModule m\n\nENTRY e {\n  ROOT p = f32[4] parameter(0)\n}\n")
        assert module.what_if().figures["flops"] == (0, 0)
        for role in ("batch", "sequence", "layers"):
            with pytest.raises(ValueError, match=role):
                module.what_if(**{role: 2})
        with pytest.raises(ValueError, match="mesh"):
            module.what_if(mesh="data=2")

    @pytest.mark.filterwarnings("ignore")
    def test_damaged_texts(self) -> None:
        chance = random.Random(7)
        words = ["0", "1", "-1", "3", "16", "{}", "[", "99999999999999", "?", "<=4", "s32[]", ""]
        parsed = 0
        for _ in range(800):
            text = TEXT
            for _ in range(chance.randint(1, 3)):
                at = chance.choice(list(re.finditer(r"\d+|\[[^\]]*\]|\{[^{}]*\}", text)))
                text = text[: at.start()] + chance.choice(words) + text[at.end() :]
            try:
                module = hlofast.loads(text).with_context(mesh=MESH)
                parsed += 1
                module.what_if(batch="2x", sequence="2x", layers=3, mesh="data=4").facts
            except ValueError:  # Among these are all errors of the package.
                continue
        assert parsed > 60


@pytest.mark.filterwarnings("ignore")
class TestAgainstTheCompiler:
    """`benches/what_if_accuracy.py` judges more programs; see its results."""

    def test_peaks(self, judged: list[dict[str, Any]]) -> None:
        good = [row for row in judged if abs(row["peak_error"]) <= 0.05]
        assert len(judged) >= 60
        assert len(good) == len(judged)

    def test_what_is_decided_is_right(self, judged: list[dict[str, Any]]) -> None:
        answered = [row for row in judged if not row["open"]]
        assert len(answered) >= 25
        assert all(row["is_exact"] for row in answered)
        assert all(row["right_axes"] == row["answered_axes"] for row in judged)
        assert any(row["answered_axes"] for row in judged if row["open"] == ["lookup"]) is False

    def test_times(self, judged: list[dict[str, Any]]) -> None:
        same = [row for row in judged if "mesh" not in row["changes"]]
        assert sum(abs(row["time_error"]) <= 0.1 for row in same) >= 0.9 * len(same)

    def test_wire_bytes_of_a_step_without_gathered_embedding(
        self, judged: list[dict[str, Any]]
    ) -> None:
        own = [row for row in judged if row["program"] == "tensor_v5e"]
        assert len(own) == 30
        assert sum(row["is_exact"] for row in own) >= 0.9 * len(own)

    def test_flops(self, judged: list[dict[str, Any]]) -> None:
        answered = [row for row in judged if not row["flops_open"]]
        assert len(answered) >= 0.9 * len(judged)
        assert all(abs(row["flops_error"]) <= 0.02 for row in answered)

    def test_layers_alone_are_exact(self, judged: list[dict[str, Any]]) -> None:
        own = [row for row in judged if row["changes"] == ["layers"]]
        assert own
        assert all(row["is_exact"] for row in own)


class TestCommand:
    @pytest.fixture
    def path(self, tmp_path: Path) -> str:
        path = tmp_path / "step.txt"
        path.write_text(TEXT)
        return str(path)

    def test_json(self, path: str) -> None:
        done = hlofast_command("what-if", "--json", "--mesh", MESH, "--batch", "2x", path)
        own = validated("what-if", done.stdout)["results"][0]
        assert own["facts"]["change"]["value"] == "batch 8 → 16"
        assert own["facts"]["wire_bytes_after"]["provenance"] == "modelled"
        assert any(note["code"] == "as-compiled" for note in own["notes"])

    def test_output(self, path: str, tmp_path: Path) -> None:
        out = tmp_path / "larger.txt"
        done = hlofast_command(
            "what-if", "--mesh", MESH, "--mesh-to", "data=4", "-o", str(out), path
        )
        assert done.returncode == 0, done.stderr
        assert hlofast.load(out).num_partitions == 8

    def test_values_of_a_policy(self) -> None:
        path = FIXTURES / "sharded" / "mlp_scan_plain.txt.gz"
        done = hlofast_command("what-if", "--save", "nonsense", "--json", path)
        [error] = json.loads(done.stdout)["errors"]
        assert done.returncode == 2 and "no value to save matches 'nonsense'" in error["message"]
        done = hlofast_command("what-if", "--offload", "layer_input", path)
        assert done.returncode == 0, done.stderr
        assert "policy own: " in done.stdout

    def test_usage(self, path: str) -> None:
        done = hlofast_command("what-if", "--mesh", MESH, "--batch", "7", path)
        assert done.returncode == 2
        assert "does not divide" in done.stderr
        assert hlofast_command("what-if", "--batch", "=", path).returncode == 2

    def test_sizes_beyond_64_bits(self, path: str) -> None:
        done = hlofast_command("what-if", "--mesh", MESH, "--layers", "99999999999999", path)
        assert done.returncode == 2 and not done.stdout
        assert "the sizes add up to more than 64 bits hold" in done.stderr

    def test_symbols_by_name(self, path: str) -> None:
        done = hlofast_command("what-if", "--json", "--mesh", MESH, "--sequence", "tokens=32", path)
        own = json.loads(done.stdout)["results"][0]
        assert own["facts"]["change"]["value"] == "sequence 16 → 32"


@pytest.mark.parametrize("name", ["pipeline_v5e_8", "pipeline_v5p_8", "pipeline_cpu_2x2x2"])
def test_a_batch_that_loops_with_literal_counts_take_is_undecided(name):
    """Stages take one sequence an iteration: twice as many sequences are more iterations."""
    result = hlofast.load(FIXTURES / "sharded" / f"{name}.txt.gz").what_if(batch="2x")
    facts = {fact.name: fact.value for fact in result.facts}
    assert (
        facts.get("flops_after") is None
        and facts["flops_before"]
        and set(result.undecided.values()) == {"loops"}
    )
    (note,) = (note.text for note in result.notes if note.code == "undecided-flops")
    assert "matmuls compute as much with the other batch" in note


@pytest.mark.filterwarnings("ignore")
def test_texts_without_a_schedule_are_not_said_to_keep_it() -> None:
    module = hlofast.load(FIXTURES / "seedlike" / "gpu_train_step.txt.gz")
    notes = {note.code: note.text for note in module.what_if().notes}
    assert "as-compiled" not in notes
    assert "not scheduled: text order stands in for the schedule" in notes["not-scheduled"]
    text = module.to_text().split("\n", 1)
    scheduled = hlofast.loads(f"{text[0]}, is_scheduled=true\n{text[1]}")
    notes = {note.code: note.text for note in scheduled.what_if().notes}
    assert "the schedule" in notes["as-compiled"]
    assert "not-scheduled" not in notes
