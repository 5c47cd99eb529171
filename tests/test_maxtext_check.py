"""`check` of MaxText configs against the steps that MaxText compiled from them, and against others."""

from pathlib import Path

import pytest

import hlofast
from conftest import FIXTURES
from hlofast.config import EffectiveConfig
from maxtext_files import RULES, newest, written
from test_cli import hlofast_command

COMMON = ("max_target_length=2048", "attention=flash")
RUNS = {
    "16b": ("v5e-256", "per_device_batch_size=6", "remat_policy=full", "global_parameter_scale=16"),
    "128b": (
        "v5p-256", "per_device_batch_size=1", "remat_policy=minimal", "global_parameter_scale=128",
        "ici_tensor_parallelism=8",
    ),
}  # fmt: skip
"""Instance and arguments that the dumps were compiled with."""
PLANTED = [
    ("16b", ("per_device_batch_size=4",), {("sizes", "batch")}),
    ("16b", ("max_target_length=4096",), {("sizes", "sequence")}),
    ("16b", ("global_parameter_scale=8",), {("sizes", "width")}),
    ("16b", ("weight_dtype=bfloat16",), {("state-bytes", "parameters and optimizer state")}),
    ("16b", ("quantization=int8",), {("matmul-types", "type of matmuls")}),
    ("16b", ("attention=dot_product",), {("attention", "attention")}),
    ("16b", ("gradient_accumulation_steps=2",), {("gathered-bytes", "weights of layers")}),
    (
        "16b",
        ("remat_policy=minimal",),
        {("kept-values", "mlpwi_0"), ("kept-values", "query_proj"), ("flops", "matmuls")},
    ),
    (
        "16b",
        ("ici_tensor_parallelism=4", "ici_fsdp_parallelism=64"),
        {
            ("gathered-bytes", "weights of layers"),
            ("parameter-sharding", "state/model/decoder/decoder_norm/scale/value"),
        },
    ),
    (
        "16b",
        ("ici_fsdp_parallelism=1", "ici_data_parallelism=256"),
        {
            ("state-bytes", "parameters and optimizer state"),
            ("parameter-sharding", "state/model/token_embedder/embedding/value"),
        },
    ),
    (
        "128b",
        ("ici_tensor_parallelism=4",),
        {("parameter-sharding", "state/model/decoder/layers/mlp/wo/kernel/value")},
    ),
]  # fmt: skip
"""Changes of a run that the dump does not have, with errors of the check: code and subject."""


@pytest.fixture(scope="module")
def dumps() -> dict[str, hlofast.Module]:
    return {name: hlofast.load(path(name)) for name in RUNS}


def path(name: str) -> Path:
    return FIXTURES / "maxtext_dumps" / f"{name}.txt.xz"


def declared(name: str, *changes: str) -> EffectiveConfig:
    instance, *arguments = RUNS[name]
    overrides = [*COMMON, *arguments, *changes]
    return hlofast.config.loads("", path="run.yml", overrides=overrides).select(instance)


@pytest.mark.parametrize("name", RUNS)
def test_the_run_that_was_compiled(name, dumps) -> None:
    check = hlofast.check(declared(name), dumps[name])
    assert [own.code for own in check.found() if own.severity in ("error", "warning")] == []
    agreeing = {row["code"] for row in check.comparisons if row["severity"] == "agrees"}
    assert {"state-bytes", "gathered-bytes", "flops", "parameter-sharding"} <= agreeing


@pytest.mark.parametrize(("name", "changes", "expected"), PLANTED)
def test_other_runs_are_told_by_name(name, changes, expected, dumps) -> None:
    check = hlofast.check(declared(name, *changes), dumps[name])
    errors = {(own.code, own.subject) for own in check.found() if own.severity == "error"}
    assert expected <= errors


def test_weights_that_the_config_does_not_have(dumps) -> None:
    """With tied embeddings the head has no weights, and no moments of them."""
    check = hlofast.check(declared("16b", "logits_via_embedding=true"), dumps["16b"])
    assert not check.ok
    (weights, others) = check.found("parameter-undeclared")
    assert (weights.severity, others.severity) == ("error", "note")
    assert weights.subject == "3 parameters" and weights.bytes == 3 * 4 * 16 * 32000
    for place in ("model", "optimizer/opt_state/0/mu", "optimizer/opt_state/0/nu"):
        assert f"state/{place}/decoder/logits_dense/kernel/value" in weights.message
    (state,) = check.found("state-bytes")
    assert state.severity == "error" and state.bytes == weights.bytes


def test_a_declaration_of_some_weights(dumps) -> None:
    """What TOML leaves out is not compared."""
    text = """
        [mesh]
        axes = { fsdp = 256 }
        [[parameters]]
        name = ".*/embedding/value"
        spec = ["", "fsdp"]
    """
    check = hlofast.check(hlofast.Declaration.loads(text), dumps["16b"])
    assert {own.severity for own in check.found("parameter-undeclared")} == {"note"}


def test_values_that_the_policy_does_not_keep(dumps) -> None:
    check = hlofast.check(declared("128b", "remat_policy=full"), dumps["128b"])
    kept = [own for own in check.found() if own.code == "kept-undeclared"]
    assert len(kept) == 6 and all(own.severity == "warning" for own in kept)
    sizes = sorted(own.bytes or 0 for own in kept)
    # Both halves of the dense layer, of 64 layers with 8 sequences of 2,048 tokens, in bfloat16.
    assert sizes[-2:] == [64 * 8 * 2048 * 7168 * 2] * 2


class TestArguments:
    def test_overrides_and_a_base(self, tmp_path: Path) -> None:
        instance, *values = RUNS["16b"]
        run, base = tmp_path / "run.yml", tmp_path / "configs" / "base.yml"
        run.write_text("base_config: base.yml\nattention: flash\n")
        base.parent.mkdir()
        base.write_text(hlofast.config.loads("", path="run.yml").to_text())
        given = [*values, *COMMON]
        told = ("--instance", instance, "--base", base)
        for arguments in (
            (run, *given, path("16b"), *told),
            (run, path("16b"), *told, *given),
            (*given, path("16b"), *told),
        ):
            done = hlofast_command("check", *arguments)
            assert done.returncode == 0, done.stdout + done.stderr
        other = (*given, "per_device_batch_size=4")
        wrong = hlofast_command("check", run, *other, path("16b"), *told)
        assert wrong.returncode == 1 and "error: sizes" in wrong.stdout
        run.write_text("base_config: gone.yml\nattention: flash\n")
        lost = hlofast_command("check", run, *given, path("16b"), "--instance", instance)
        assert lost.returncode == 3 and "give MaxText's base.yml (--base)" in lost.stderr

    def test_a_custom_mesh_and_rule(self, tmp_path: Path) -> None:
        """Its file beside base.yml is the mesh that is compared."""
        instance, *values = RUNS["16b"]
        base, rules = newest(tmp_path), tmp_path / "custom_mesh_and_rule"
        every = [[name, ["fsdp"]] for name, axes in RULES if "fsdp" in axes]
        written(rules / "pure.yml", {"mesh_axes": ["fsdp"], "logical_axis_rules": every})
        whole = [["activation_batch", ["fsdp"]], ["activation_kv_batch", ["fsdp"]]]
        written(rules / "whole.yml", {"mesh_axes": ["fsdp"], "logical_axis_rules": whole})
        told = (*values, *COMMON, path("16b"), "--instance", instance, "--base", base)
        done = hlofast_command("check", *told, "custom_mesh_and_rule=pure")
        assert done.returncode == 0, done.stdout + done.stderr
        other = hlofast_command("check", *told, "custom_mesh_and_rule=whole")
        assert other.returncode == 1 and "error: parameter-sharding" in other.stdout
        lost = hlofast_command("check", *told, "custom_mesh_and_rule=pur")
        assert lost.returncode == 3 and "did you mean pure" in lost.stderr

    def test_an_instance_of_the_config(self) -> None:
        instance, *values = RUNS["16b"]
        given = (*values, *COMMON, path("16b"))
        done = hlofast_command("check", *given, f"compile_topology={instance}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"declared by  the config on tpu-{instance}" in done.stdout
        other = hlofast_command("check", *given, "compile_topology=v5e-16", "--instance", instance)
        assert other.returncode == 0
        without = hlofast_command("check", *given)
        assert without.returncode == 2 and "or in MaxText compile_topology" in without.stderr

    def test_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        instance, *values = RUNS["16b"]
        monkeypatch.setenv("M_MAX_TARGET_LENGTH", "4096")
        done = hlofast_command(
            "check", *values, "attention=flash", path("16b"), "--instance", instance
        )
        assert done.returncode == 1 and "sequence" in done.stdout

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("steps=1",), "give the FILE to compare with"),
            (("a.yml", "b.yml", "c.txt"), "give one CONFIG and one FILE"),
            (("mesh.toml", "steps=1", "step.txt"), "need a MaxText config"),
        ],
    )
    def test_misuse(self, arguments, words, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mesh.toml").write_text("[mesh]\naxes = { data = 4 }\n")
        done = hlofast_command("check", *arguments)
        assert done.returncode == 2 and words in done.stderr


def test_a_policy_that_is_misspelt(tmp_path: Path) -> None:
    run = tmp_path / "run.yml"
    run.write_text("remat_policy: minimul\nper_device_batch_size: 6\nglobal_parameter_scale: 16\n")
    done = hlofast_command("check", run, path("16b"), "--instance", "v5e-256")
    assert "did you mean minimal" in done.stdout and "not compared" in done.stdout


def test_tiles_of_the_vocabulary_are_told_as_not_checked(dumps) -> None:
    for given, expected in (((), 0), (("num_vocab_tiling=2",), 1)):
        check = hlofast.check(declared("16b", *given), dumps["16b"])
        assert check.ok
        found = [own for own in check.found("not-declared") if own.subject == "num_vocab_tiling"]
        assert len(found) == expected
