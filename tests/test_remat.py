"""`Module.remat`: recomputation, residuals, all-gathers, and the statements about them."""

import gzip
import lzma
import pickle
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, Seeds

MEBIBYTE = 1 << 20


def fixture(name: str) -> hlofast.Module:
    return hlofast.load(FIXTURES / "sharded" / f"{name}.txt.gz")


def statement(remat: hlofast.Remat, code: str) -> Any:
    (matching,) = [statement for statement in remat.statements if statement.code == code]
    return matching


def codes(remat: hlofast.Remat) -> set[str]:
    return {statement.code for statement in remat.statements}


def names_every_proof(remat: hlofast.Remat) -> bool:
    module = remat.module
    return all(
        statement.names == tuple(module[row].name for row in statement.instructions)
        for statement in remat.statements
    )


def test_the_issue_page(seeds: Seeds) -> None:
    (part,) = hlofast.find_modules(seeds.path("003").read_bytes())
    assert part.module is not None
    remat = linear_chain(part.module)
    assert len(remat.recomputed) == 13
    assert (
        "<ipython-input-18-8aea41049d30>:36, 37" in statement(remat, "recomputed-by-program").text
    )


def test_the_issue_program_compiled_again() -> None:
    linear_chain(fixture("norm_v0"))


def linear_chain(module: hlofast.Module) -> hlofast.Remat:
    """The gradient with respect to the activation only: what follows from its text."""
    remat = module.remat()
    assert remat.instructions["forward"] == 0
    assert len(remat.residuals) == 0
    assert sorted(remat.gathers["tensor"].tolist()) == ["down", "up"]
    assert set(remat.gathers["tensor_kind"].tolist()) == {"weight"}
    assert set(remat.gathers["fate"].tolist()) == {"backward"}
    assert set(remat.recomputed["by"].tolist()) == {"program"}
    assert codes(remat) == {
        "no-forward",
        "linear-chain",
        "products-are-convolutions",
        "weight-gathers",
        "recomputed-by-program",
        "name-before-constraint",
    }
    assert names_every_proof(remat)

    products = statement(remat, "products-are-convolutions")
    assert products.figures == {"count": 2, "flops": 8_589_934_592}
    assert {module[row].opcode for row in products.instructions} == {"convolution"}

    chain = statement(remat, "linear-chain")
    called = [module[row].metadata.op_name for row in chain.instructions[2:4]]
    assert sorted(called) == ["down", "up"]
    assert "with respect to activation only" in chain.text

    gathers = statement(remat, "weight-gathers")
    assert gathers.figures == {"gathers": 2, "kept": 0, "kept_activations": 0}
    assert gathers.instructions == tuple(remat.gathers["instruction"].tolist())

    recomputed = statement(remat, "recomputed-by-program")
    assert recomputed.figures["instructions"] == len(remat.recomputed)
    assert recomputed.instructions == tuple(remat.recomputed["instruction"].tolist())
    assert recomputed.figures["collectives"] == 0
    assert "all belong to a norm" in recomputed.text
    assert all("rematted_computation" in row["op_name"] for row in remat.recomputed)

    advice = statement(remat, "name-before-constraint").advice
    for words in ("checkpoint_name", "save_only_these_names", "value_and_grad", "recomputed"):
        assert words in advice
    for row in statement(remat, "name-before-constraint").instructions:
        assert module[row].metadata.op_name.endswith("/sharding_constraint")
    return remat


def test_gather_of_three_gradients_is_recomputed() -> None:
    remat = fixture("norm_v1_three_gradients").remat(mesh=hlofast.Mesh({"data": 2, "model": 4}))
    (gather,) = [row for row in remat.gathers if row["tensor_kind"] == "activation"]
    assert (gather["fate"], gather["shape"], gather["axes"]) == (
        "recomputed",
        "bf16[1,2048,1024]",
        "model",
    )
    assert gather["residual"] is None
    stated = statement(remat, "gather-recomputed")
    assert "bf16[1,2048,1024] along model" in stated.text
    assert stated.instructions == (gather["instruction"],)
    assert stated.advice is None
    assert codes(remat).isdisjoint({"gather-kept", "linear-chain", "name-before-constraint"})


@pytest.mark.parametrize(
    "name", ["norm_v4_named_after", "norm_v4_with_value", "norm_v3_with_value"]
)
def test_gather_named_after_its_constraint_is_kept(name: str) -> None:
    remat = fixture(name).remat(mesh=hlofast.Mesh({"data": 2, "model": 4}))
    (gather,) = [row for row in remat.gathers if row["fate"] == "kept"]
    assert (gather["tensor_kind"], gather["shape"], gather["axes"]) == (
        "activation",
        "f32[1,2048,1024]",
        "model",
    )
    kept = remat.residuals.row(gather["residual"])
    assert (kept["kind"], kept["shape"], kept["bytes"]) == (
        "gathered_activation",
        "bf16[1,2048,1024]",
        4 * MEBIBYTE,
    )
    stated = statement(remat, "gather-kept")
    assert stated.figures == {"gathers": 1, "bytes": 4 * MEBIBYTE}
    assert gather["instruction"] in stated.instructions
    line = f"{gather['source_file']}:{gather['source_line']}"
    assert line in stated.text
    assert f"before the constraint that gathers it, {line}" in stated.advice


def test_value_and_three_gradients_gather_twice() -> None:
    remat = fixture("norm_v1_with_value").remat()
    fates = [row["fate"] for row in remat.gathers if row["tensor_kind"] == "activation"]
    assert sorted(fates) == ["backward", "forward", "recomputed"] or fates.count("kept") == 0
    assert "no-forward" not in codes(remat)


def test_widened_weights_of_a_pipeline_stage(seeds: Seeds) -> None:
    remat = hlofast.load(seeds.path("001")).remat()
    stated = statement(remat, "widened-weights-kept")
    assert stated.figures["bytes"] == 884_998_144
    assert "45.5 %" in stated.text
    assert {"convert.222", "convert.196", "convert.193"} < set(stated.names)
    copies = [row for row in remat.residuals if row["kind"] == "weight_copy"]
    assert {row["widened_from"] for row in copies} >= {"f16"}
    assert sum(row["bytes"] for row in copies) == 884_998_144 + 16_384


def test_copies_of_weights_of_the_fixture() -> None:
    path = FIXTURES / "seedlike" / "pipeline_stage.txt.gz"
    remat = hlofast.loads(gzip.decompress(path.read_bytes())).remat()
    copies = [row for row in remat.residuals if row["kind"] == "weight_copy"]
    assert [row["shape"] for row in copies] == ["f32[16,48]", "f32[48,16]", "f32[16,64]", "f32[16]"]
    assert {row["widened_from"] for row in copies} == {"f16"}
    assert {remat.module[row["source"]].opcode for row in copies} == {"parameter"}
    assert {remat.module[row["made_by"]].opcode for row in copies} == {"convert"}
    assert "widened-weights-kept" not in codes(remat)  # all of them are small


FORWARD = 'metadata={op_name="jit(f)/jvp()/mul"}'
BACKWARD = 'metadata={op_name="jit(f)/transpose(jvp())/mul"}'
COPY = f"""HloModule m

ENTRY e {{
  w = f16[SIZE] parameter(0)
  x = f32[SIZE] parameter(1)
  wide = f32[SIZE] convert(w), {FORWARD}
  y = f32[SIZE] multiply(wide, x), {FORWARD}
  g = f32[SIZE] negate(y), {BACKWARD}
  ROOT d = f32[SIZE] multiply(wide, g), {BACKWARD}
}}
"""


@pytest.mark.parametrize(("size", "is_found"), [(MEBIBYTE // 4, True), (MEBIBYTE // 4 - 1, False)])
def test_small_copies_of_weights_are_no_finding(size: int, is_found: bool) -> None:
    remat = hlofast.loads(COPY.replace("SIZE", str(size))).remat()
    kinds = {row["name"]: row["kind"] for row in remat.residuals}
    assert kinds == {"wide": "weight_copy", "y": "activation"}
    assert ("widened-weights-kept" in codes(remat)) == is_found


def test_clones_of_the_compiler() -> None:
    text = COPY.replace("SIZE", "8").replace(
        "  ROOT d = f32[8] multiply(wide, g)",
        "  wide.remat = f32[8] convert(w)\n  ROOT d = f32[8] multiply(wide.remat, g)",
    )
    remat = hlofast.loads(text).remat()
    (row,) = remat.recomputed
    assert (row["name"], row["by"], row["multiplicity"]) == ("wide.remat", "compiler", 1)
    assert [row["name"] for row in remat.residuals] == ["y"]
    assert statement(remat, "recomputed-by-compiler").names == ("wide.remat",)


TWINS = f"""HloModule m

ENTRY e {{
  x = f32[8,8] parameter(0)
  y = f32[8,8] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {FORWARD}
  s = f32[8,8] sine(y), {FORWARD}
  barrier = f32[8,8] opt-barrier(x)
  again = f32[8,8] dot(barrier, barrier), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {BACKWARD}
  ROOT d = f32[8,8] multiply(again, s), {BACKWARD}
}}
"""


def test_twins_without_names() -> None:
    module = hlofast.loads(TWINS)
    remat = module.remat()
    (row,) = remat.recomputed
    assert (row["name"], row["by"]) == ("again", "twin")
    assert module[row["twin"]].name == "y"
    assert row["flops"] == 2 * 8**3
    assert "recomputed-by-twin" in codes(remat)


JOINED = f"""HloModule m

ENTRY e {{
  x = f32[8,8] parameter(0)
  a = f32[4,8] slice(x), slice={{[0:4], [0:8]}}
  b = f32[4,8] slice(x), slice={{[4:8], [0:8]}}
  y = f32[8,8] custom-call(a, b), custom_call_target="ConcatBitcast"
  s = f32[8,8] sine(y), {FORWARD}
  again = f32[8,8] custom-call(a, b), custom_call_target="ConcatBitcast"
  ROOT d = f32[8,8] multiply(again, s), {BACKWARD}
}}
"""


def test_a_text_without_names_says_how_to_get_them() -> None:
    text = lzma.decompress((FIXTURES / "peaks" / "decoder_names_v6e.before.txt.xz").read_bytes())
    module = hlofast.loads(text)
    assert module.op_names == () and len(module.remat().residuals) > 0
    for result in (module.verdict(), module.remat()):
        notes = {note.code: note.text for note in result.notes}
        assert "debug_info=True" in notes["no-op-names"]
        assert "no-backward" not in notes
    named = fixture("mlp_scan_plain").remat()
    assert "no-op-names" not in {note.code for note in named.notes}


def test_values_that_are_joined_again_are_not_recomputed() -> None:
    assert len(hlofast.loads(JOINED).remat().recomputed) == 0
    own = JOINED.replace("ConcatBitcast", "my_kernel")
    assert hlofast.loads(own).remat().recomputed.values("by") == ["twin"]


def test_a_gather_of_its_own_part_is_not_kept() -> None:
    remat = fixture("mlp_scan_plain").remat()
    stacked = [row for row in remat.residuals if row["is_stacked"]]
    assert {row["trip_count"] for row in stacked} == {4}
    parts = [row for row in stacked if row["shape"] == "bf16[4,8,512,2048]"]
    assert {row["kind"] for row in parts} == {"activation"}


def test_a_stack_of_gathered_activations_is_kept() -> None:
    remat = fixture("mlp_scan_saved").remat()
    (gather,) = [row for row in remat.gathers if row["fate"] == "kept"]
    assert (gather["tensor_kind"], gather["shape"]) == ("activation", "bf16[8,2048,2048]")
    kept = remat.residuals.row(gather["residual"])
    assert (kept["kind"], kept["shape"]) == ("gathered_activation", "bf16[4,8,2048,2048]")
    assert (kept["is_stacked"], kept["trip_count"], kept["bytes"]) == (1, 4, 256 * MEBIBYTE)
    stated = statement(remat, "gather-kept")
    assert (
        "stacked by a loop: 268,435,456 B; the shards before gathering take 67,108,864 B"
        in stated.text
    )


def test_gathers_of_unrolled_layers_are_kept_until_checkpointed() -> None:
    remat = fixture("mlp_unrolled_plain").remat()
    stated = statement(remat, "gather-kept")
    assert stated.figures == {"gathers": 3, "bytes": 3 * 64 * MEBIBYTE}
    kept = [row for row in remat.gathers if row["fate"] == "kept"]
    # The schedule also gathers one weight before the turn and reads it after it.
    shapes = sorted(row["shape"] for row in kept)
    assert shapes == ["bf16[2048,2048]"] + 3 * ["bf16[8,2048,2048]"]
    nothing = fixture("mlp_scan_nothing").remat()
    assert "kept" not in nothing.gathers["fate"].tolist()


def test_totals_by_column() -> None:
    remat = fixture("mlp_unrolled_plain").remat()
    by_kind = {row["kind"]: row["bytes"] for row in remat.by("kind")}
    assert sum(by_kind.values()) == sum(remat.residuals["bytes"].tolist())
    by_fate = {row["fate"]: row["rows"] for row in remat.by("fate", "gathers")}
    assert sum(by_fate.values()) == len(remat.gathers)
    flops = remat.by("by", "recomputed", totals=["flops"])
    assert sum(flops["flops"].tolist()) == sum(remat.recomputed["flops"].tolist())
    for wrong in (("kind", "statements"), ("none", "residuals")):
        with pytest.raises(KeyError):
            remat.by(*wrong)


def test_pickle_and_repr() -> None:
    remat = fixture("norm_v4_named_after").remat(mesh=hlofast.Mesh({"data": 2, "model": 4}))
    again = pickle.loads(pickle.dumps(remat))
    assert again.gathers == remat.gathers
    assert [own.to_dict() for own in again.statements] == [
        own.to_dict() for own in remat.statements
    ]
    assert "3 gathers" in repr(remat)
    assert "gather-kept" in repr(statement(remat, "gather-kept"))


def test_rules_name_phases() -> None:
    text = COPY.replace("SIZE", "8").replace("jit(f)/jvp()", "ahead")
    text = text.replace("jit(f)/transpose(jvp())", "behind")
    assert len(hlofast.loads(text).remat().residuals) == 0
    rules = [("ahead.*", "forward"), ("behind.*", "backward")]
    remat = hlofast.loads(text).remat(rules=rules)
    assert remat.residuals["name"].tolist() == ["wide", "y"]


def test_modules_without_anything_to_say() -> None:
    remat = hlofast.loads("HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }").remat()
    assert remat.statements == ()
    assert len(remat.recomputed) == len(remat.residuals) == len(remat.gathers) == 0


def test_every_committed_dump() -> None:
    paths = sorted((FIXTURES / "sharded").glob("*.txt.gz"))
    assert paths
    for path in paths:
        remat = hlofast.load(path).remat()
        assert names_every_proof(remat), path.name
        assert len(set(remat.gathers["instruction"].tolist())) == len(remat.gathers)
        for row in remat.gathers:
            assert (row["fate"] == "kept") == (row["residual"] is not None), path.name
        for row in remat.residuals:
            assert row["bytes"] > 0, (path.name, row["name"])
            assert row["first_use"] <= row["last_use"]
            assert row["span"] == row["last_use"] - row["instruction"]


def test_policies_that_are_left_out_are_told(train_step: Path) -> None:
    notes = {note.code: note.text for note in hlofast.load(train_step).remat().notes}
    # There may be no layers to model, so policies are not promised.
    assert "to model them" in notes["policies-left-out"]
    told = hlofast.load(train_step, hbm="16GiB").remat()
    assert told.policies is not None or told.no_policies
    assert "policies-left-out" not in {note.code for note in told.notes}


def test_gathers_of_updated_weights_have_the_names_of_the_weights() -> None:
    text = """HloModule m, is_scheduled=true, num_partitions=4, ALIASES

update {
  a.1 = f32[16,32] parameter(0)
  b.1 = f32[64,32] parameter(1)
  i = s32[] constant(0)
  s = f32[16,32] dynamic-slice(b.1, i, i), dynamic_slice_sizes={16,32}
  u = f32[16,32] subtract(s, a.1), metadata={op_name="jit(step)/sub"}
  ROOT t = (f32[16,32], f32[16,32]) tuple(u, a.1)
}

ENTRY e {
  p = f32[64,32] parameter(0), metadata={op_name="weights['up']"}
  x = f32[16,32] parameter(1), metadata={op_name="x"}
  y = f32[16,32] multiply(x, x), metadata={op_name="jit(step)/jvp()/mul"}
  g = f32[16,32] multiply(y, x), metadata={op_name="jit(step)/transpose(jvp())/mul"}
  z = (f32[16,32], f32[16,32]) fusion(g, p), kind=kLoop, calls=update
  u = f32[16,32] get-tuple-element(z), index=0, metadata={op_name="jit(step)/sub"}
  a = f32[64,32] all-gather(u), replica_groups=[1,4]<=[4], dimensions={0}
  c = f32[64,32] copy(a)
  ROOT t = (f32[64,32], f32[16,32]) tuple(c, y)
}
"""
    for aliases, name in (
        ("input_output_alias={ {0}: (0, {}, may-alias) }", "weights['up']"),
        ("input_output_alias={ {9}: (0, {}, may-alias) }", "jit(step)/sub"),
        ("input_output_alias={ {0}: (9, {}, may-alias) }", "jit(step)/sub"),
    ):
        remat = hlofast.loads(text.replace("ALIASES", aliases)).remat()
        assert f"gathers weights ({name})" in statement(remat, "weight-gathers").text
