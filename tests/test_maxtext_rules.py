"""Meshes, rules and keys beside a base.yml of MaxText: `custom_mesh_and_rule`, `types.py`."""

import pickle

import pytest

from hlofast import config
from hlofast.config import ConfigError
from maxtext_files import RULES, newest, written
from test_cli import document, hlofast_command

PURE = {
    "mesh_axes": ["fsdp"],
    "data_sharding": [["fsdp"]],
    "logical_axis_rules": [
        [name, ["fsdp"]]
        for name in (
            "activation_batch", "activation_kv_batch", "activation_embed_and_logits_batch",
            "embed", "embed_attn", "embed_vocab", "embed_moe", "embed_router",
        )
    ],
}  # fmt: skip
"""`pure-fsdp.yml` of MaxText 0.2.5, as far as a training step needs it."""
LLAMA = ("model_name=llama3.1-8b", "per_device_batch_size=1")


@pytest.fixture
def base(tmp_path):
    """A base.yml with three rules beside it."""
    folder = tmp_path / "custom_mesh_and_rule"
    written(folder / "pure-fsdp.yml", PURE)
    # As `fsdp-as-dp-for-attn.yml`: weights of attention lie along `expert` alone.
    whole = [["embed_attn", ["expert"]], ["embed", ["fsdp"]], ["mlp", ["tensor"]]]
    values = {"mesh_axes": ["data", "fsdp", "expert"], "logical_axis_rules": whole}
    written(folder / "attention-whole.yml", values)
    rules = [rule for rule in RULES if rule[0] != "exp"] + [["exp", ["expert", "fsdp"]]]
    values = {"mesh_axes": ["fsdp", "expert"], "logical_axis_rules": rules}
    written(folder / "experts-on-fsdp.yml", values)
    return newest(tmp_path)


def run(base, *given):
    return config.loads("", path="run.yml", overrides=given, base=base)


class TestCustomMeshAndRule:
    def test_the_file_replaces_mesh_and_rules_of_all_other_sources(self, base):
        cfg = run(base, *LLAMA, "custom_mesh_and_rule=pure-fsdp", "mesh_axes=[data, fsdp]")
        assert cfg["mesh_axes"] == ("fsdp",)
        rules = cfg["logical_axis_rules"].to_python()
        assert [name for name, _ in rules] == [name for name, _ in PURE["logical_axis_rules"]]
        place = f"{base.parent / 'custom_mesh_and_rule' / 'pure-fsdp.yml'}:1"
        assert cfg.origin("mesh_axes") == ("file", place)
        assert pickle.loads(pickle.dumps(cfg)) == cfg
        effective = cfg.select("v5p-128")
        assert dict(effective.mesh.shape) == {"fsdp": 64}
        plain = run(base, *LLAMA).select("v5p-128")
        # Norms are whole under both; their rule names `tensor` in base.yml.
        assert effective.memory().state_bytes == plain.memory().state_bytes
        assert "tensor" not in "".join(_specs(effective).values())

    def test_weights_of_attention_have_an_axis_of_their_own(self, base):
        given = ("custom_mesh_and_rule=attention-whole", "ici_expert_parallelism=2")
        specs = _specs(run(base, *LLAMA, *given).select("v5p-128"))
        layer = "decoder/layers"
        query, wi = (specs[f"{layer}/{own}/kernel"] for own in ("self_attention/query", "mlp/wi_0"))
        assert query.startswith("PartitionSpec('expert', None") and "fsdp" not in query
        # This file has no rule for `embed_vocab`, and `tensor` is not an axis of its mesh.
        assert wi.startswith("PartitionSpec('fsdp', None") and "tensor" not in wi
        assert "'" not in specs["token_embedder/embedding"]

    def test_weights_of_experts_have_one_too(self, base):
        """`mlp_moe` comes before `embed_moe`, `mlp` after it: by `mlp`, `tensor` is left out."""
        given = ("model_name=mixtral-8x7b", "per_device_batch_size=1", "ici_tensor_parallelism=8")
        own = run(base, *given).select("v5p-512")
        # Weights and both moments in float32, shared by 256 devices but for norms and routers.
        even = own.parameter_count() * 12 // 256
        assert even <= own.memory().state_bytes < even * 1.001

    def test_experts_along_another_axis_have_no_activations(self, base):
        given = ("model_name=mixtral-8x7b", "custom_mesh_and_rule=experts-on-fsdp")
        effective = run(base, *given, "ici_expert_parallelism=2").select("v5p-16")
        memory = effective.memory()
        assert memory.state_bytes is not None and memory.saved_bytes is None
        assert ("mesh_axes", "activations along mesh axis 'fsdp' (experts) are not modelled") in (
            memory.gaps
        )

    def test_an_unknown_name_is_refused_with_those_that_exist(self, base):
        with pytest.raises(ConfigError) as caught:
            run(base, "custom_mesh_and_rule=pure-fdsp")
        assert caught.value.kind == "unknown-rule"
        assert str(caught.value) == (
            "custom_mesh_and_rule=pure-fdsp: no custom_mesh_and_rule 'pure-fdsp'; did you mean "
            "pure-fsdp? known: attention-whole, experts-on-fsdp, pure-fsdp"
        )
        with pytest.raises(ConfigError, match="was not read"):
            run(base).with_value("custom_mesh_and_rule", "pure-fsdp")

    def test_without_the_files_it_says_what_it_needs(self, tmp_path):
        text = "in a folder custom_mesh_and_rule beside MaxText's base.yml, which was not found"
        with pytest.raises(ConfigError, match=text):
            config.load(overrides=["custom_mesh_and_rule=pure-fsdp"])
        with pytest.raises(ConfigError, match=text):
            run(newest(tmp_path), "custom_mesh_and_rule=pure-fsdp")

    def test_lines_of_a_plan_keep_the_mesh_that_it_chose(self, base):
        given = (*LLAMA, "custom_mesh_and_rule=pure-fsdp")
        plan = document("plan", *given, "--base", base, "--instance", "v5p-16")["results"][0]
        lines = [row["code"] for row in plan["tables"]["lines"]]
        assert plan["facts"]["mesh"]["value"] == "fsdp=8" and "ici_fsdp_parallelism=8" in lines
        verdict = run(base, *given, *lines).select("v5p-16").verdict()
        assert verdict.expected_peak_bytes == plan["facts"]["peak_bytes"]["value"]


def _specs(effective):
    return {row["path"]: row["partition_spec"] for row in effective.parameters()}


class TestRules:
    OWN = (["mlp", ["data"]], ["mine", ["fsdp"]])

    def rules(self, cfg):
        return [name for name, _ in cfg["logical_axis_rules"].to_python()]

    def test_those_of_a_model_and_of_arguments_are_all_added(self, tmp_path):
        base = newest(tmp_path)
        written(tmp_path / "models" / "own.yml", {"logical_axis_rules": self.OWN})
        whole = [name for name, _ in RULES if name != "mlp"]
        assert self.rules(run(base, "model_name=own")) == [*whole, "mlp", "mine"]
        given = "logical_axis_rules=[[mlp, [data]], [mine, [fsdp]]]"
        assert self.rules(run(base, given)) == [*whole, "mlp", "mine"]

    def test_a_model_or_arguments_can_replace_all(self, tmp_path):
        """As `deepseek3-671b-2dfsdp.yml`, which has no rule for experts."""
        base, key = newest(tmp_path), "override_logical_axis_rules"
        written(tmp_path / "models" / "own.yml", {"logical_axis_rules": self.OWN, key: True})
        assert self.rules(run(base, "model_name=own")) == ["mlp", "mine"]
        given = "logical_axis_rules=[[mlp, [data]], [mine, [fsdp]]]"
        assert self.rules(run(base, given, f"{key}=true")) == ["mlp", "mine"]

    def test_experts_that_the_rules_leave_whole_have_no_activations(self, tmp_path):
        rules = [rule for rule in RULES if rule[0] != "exp"]
        base = newest(tmp_path, logical_axis_rules=rules)
        given = ("model_name=mixtral-8x7b", "per_device_batch_size=1")
        assert run(base, *given).select("v5p-16").memory().saved_bytes is not None
        own = run(base, *given, "ici_expert_parallelism=2").select("v5p-16")
        assert own.memory().saved_bytes is None and own.memory().state_bytes is not None


class TestAxesThatTheMeshLacks:
    def test_they_are_dropped(self, tmp_path):
        """As in `deepseek3-671b-2dfsdp.yml`, whose mesh lacks `tensor` and `tensor_sequence`."""
        axes = ["data", "stage", "fsdp", "fsdp_transpose", "expert", "context"]
        effective = run(newest(tmp_path, mesh_axes=axes), *LLAMA).select("v5p-16")
        assert effective.memory().gaps == () and effective.traffic().gaps == ()
        specs = _specs(effective)
        assert "tensor" not in "".join(specs.values())
        wide = specs["decoder/layers/mlp/wi_0/kernel"]
        assert wide == "PartitionSpec(('fsdp', 'context', 'expert'), 'stage', 'fsdp_transpose')"

    def test_versions_before_fail_at_them(self, tmp_path):
        axes = ["data", "fsdp", "expert", "context"]
        path = newest(tmp_path, mesh_axes=axes)
        text = path.read_text().splitlines(keepends=True)
        path.write_text("".join(own for own in text if not own.startswith("custom_mesh_and_rule")))
        gaps = run(path, *LLAMA).select("v5p-16").memory().gaps
        assert any("which is not a mesh axis" in why for _, why in gaps)


class TestKeysOfFiles:
    def test_a_key_that_maxtext_lacks_is_refused_with_its_line(self, tmp_path):
        base, own = newest(tmp_path), tmp_path / "own.yml"
        own.write_text("base_config: base.yml\nbase_emb_dimm: 4096\n")
        with pytest.raises(ConfigError) as caught:
            config.load(own)
        assert caught.value.kind == "unknown-key"
        text = f"{own}:2: no key 'base_emb_dimm'; did you mean base_emb_dim"
        assert str(caught.value).startswith(text)
        out = hlofast_command("config", own, "--base", base)
        assert out.returncode == 3 and text in out.stderr

    def test_a_field_of_types_py_is_a_key(self, tmp_path):
        base, own = newest(tmp_path), tmp_path / "own.yml"
        (tmp_path / "types.py").write_text("class C(B):\n  sharding_strategy: str = ''\n")
        own.write_text("base_config: base.yml\nsharding_strategy: x\n")
        assert config.load(own)["sharding_strategy"] == "x"
        assert run(base, "sharding_strategy=x")["sharding_strategy"] == "x"
        with pytest.raises(ConfigError, match="no key 'sharding_strateg'"):
            run(base, "sharding_strateg=x")

    def test_so_are_those_of_a_model_where_all_fields_are_known(self, tmp_path):
        base = newest(tmp_path)
        model = written(tmp_path / "models" / "own.yml", {"head_dim": 64, "vocab_sise": 64})
        assert run(base, "model_name=own")["head_dim"] == 64
        (tmp_path / "types.py").write_text("class C(B):\n  vision_encoder_block: str = ''\n")
        with pytest.raises(
            ConfigError, match=f"{model}:2: no key 'vocab_sise'; did you mean vocab"
        ):
            run(base, "model_name=own")
        written(model, {"head_dim": 64, "vision_encoder_block": "gemma3"})
        assert run(base, "model_name=own")["vision_encoder_block"] == "gemma3"

    def test_without_a_base_it_stays_a_note(self, tmp_path):
        own = tmp_path / "own.yml"
        own.write_text("base_config: base.yml\nbase_emb_dimm: 4096\n")
        notes = config.load(own).settings_notes
        assert any(kind == "not-checked" and "base_emb_dim" in text for kind, _, text in notes)
