"""Keys of MaxText without a model: figures that depend on them are unknown, a note names them."""

import pytest

from hlofast import config
from hlofast.config.maxtext import _unmodelled
from maxtext_files import newest
from test_cli import hlofast_command

LLAMA = ("model_name=llama3.1-8b", "per_device_batch_size=1")
MIXTRAL = ("model_name=mixtral-8x7b", "per_device_batch_size=1")
DEEPSEEK = ("model_name=deepseek3-671b", "per_device_batch_size=1", "attention=dot_product")
OTHER = {
    "weight_sparsity_n": 2, "unquantized_modules": ["gate"], "weight_block_size": 128,
    "training_objective": "block_diffusion", "trainable_parameters_mask": ["norm"],
    "dropout_rate": 0.1, "te_comm_gemm_overlap": "mlp", "moe_dropless_fallback": "step",
    "compile_xla_flags": "--x=1", "shard_mode": "explicit", "engram_layers": [1],
    "attention_output_dim": 768, "moe_expert_input_dim": 768, "mtp_num_layers": 1,
    "mhc_expansion_rate": 4, "num_moe_token_chunks": 2, "num_moe_emb_chunks": 2,
    "mla_qk_head_chunk_size": 2, "lora_rank": 8,
}  # fmt: skip
"""Values of the keys of the table that are not switches."""


def on(base, *given, instance="v5p-64"):
    return config.loads("", path="run.yml", overrides=given, base=base).select(instance)


def changed(folder, model, key):
    """A run that sets a key, and the same run without it."""
    off = _unmodelled._OFF[key][1][0]
    value = OTHER.get(key, not off if isinstance(off, bool) else None)
    assert value is not None
    before = on(newest(folder, **{key: [] if off == () else off}), *model)
    return before, on(newest(folder, **{key: value}), *model)


def named(effective, key):
    return [row["kind"] for row in effective.notes if row["path"] == key] + [
        "gap" for path, why in effective.verdict().gaps if path == key or f"{key}=" in why
    ]


@pytest.mark.parametrize("key", list(_unmodelled._OFF))
class TestTable:
    def test_each_key_is_named_and_leaves_no_figure_that_it_changes(self, tmp_path, key):
        before, after = changed(tmp_path, MIXTRAL, key)
        effect = _unmodelled._OFF[key][0]
        assert named(before, key) == [] and named(after, key)
        memory, verdict = after.memory(), after.verdict()
        assert before.verdict().step_seconds is not None
        if effect == _unmodelled.NOTED:
            assert verdict.step_seconds == before.verdict().step_seconds
            assert named(after, key) == ["not-checked"]
            return
        assert verdict.step_seconds is None
        if effect == _unmodelled.TIME:
            assert verdict.expected_peak_bytes == before.verdict().expected_peak_bytes
            return
        assert verdict.expected_peak_bytes is None and memory.saved_bytes is None
        is_known = effect not in (_unmodelled.PARAMETERS, _unmodelled.STATE)
        assert (memory.state_bytes is not None) == is_known
        assert (after.parameter_count() is not None) == (effect != _unmodelled.PARAMETERS)

    def test_keys_of_experts_change_no_other_model(self, tmp_path, key):
        before, after = changed(tmp_path, LLAMA, key)
        if _unmodelled._OFF[key][0] == _unmodelled.EXPERTS:
            assert after.verdict().expected_peak_bytes == before.verdict().expected_peak_bytes


def test_a_plan_says_what_its_times_leave_out(tmp_path):
    base = newest(tmp_path, te_comm_gemm_overlap="disabled")
    given = (*LLAMA, "te_comm_gemm_overlap=mlp", "--base", base, "--instance", "v5p-16")
    out = hlofast_command("plan", *given).stdout
    why = "te_comm_gemm_overlap=mlp is not modelled; choices are ranked without it"
    assert why in out


class TestIndexer:
    def test_its_weights_are_known_and_its_activations_are_not(self, tmp_path):
        base = newest(tmp_path)
        plain, own = (
            on(base, *DEEPSEEK, *more, instance="v5p-128") for more in ((), ("use_indexer=true",))
        )
        # Of 61 layers, 64 heads of 128 from a rank of 1,536, one key of 128 and 64 weights from a
        # width of 7,168, and a norm: 671,877,944,064 parameters in all (DeepSeek-V3.2).
        more = 61 * (1536 * 64 * 128 + 7168 * 128 + 7168 * 64 + 2 * 128)
        assert own.parameter_count() == plain.parameter_count() + more == 671_877_944_064
        rows = {row["path"]: row for row in own.parameters() if "/indexer/" in row["path"]}
        assert len(rows) == 2 * 5
        head = rows["decoder/moe_layers/self_attention/indexer/weights_proj/kernel"]
        assert (head["dtype"], head["elements"]) == ("float32", 58 * 7168 * 64)
        memory = own.memory()
        assert memory.state_bytes > plain.memory().state_bytes and memory.saved_bytes is None
        assert own.verdict().step_seconds is None
        assert any(path == "use_indexer" for path, _ in memory.gaps)

    def test_its_matmuls_count_where_it_selects(self, tmp_path):
        base = newest(tmp_path)
        indexed = ("use_indexer=true",)
        short, long = (
            on(base, *DEEPSEEK, *indexed, f"max_target_length={length}", instance="v5p-128")
            for length in (2048, 8192)
        )  # fmt: skip
        for own, cfg in ((short, short.config), (long, long.config)):
            logged = cfg.logged_flops().learnable_weight
            assert own.flops().matmul / own.devices == pytest.approx(logged * 1e12, rel=1e-12)
        assert short.flops().attention is not None and long.flops().attention is None

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            (("attention=flash",), "take dot_product, or flash with use_tokamax_splash=true"),
            (("attention=dot_product", "q_lora_rank=0"), "needs a q_lora_rank"),
            (("attention=dot_product", "attention_type=global"), "needs attention_type=mla"),
        ],
    )
    def test_what_maxtext_refuses(self, tmp_path, given, why):
        base = newest(tmp_path)
        own = on(base, *DEEPSEEK[:2], "use_indexer=true", "override_model_config=true", *given)
        texts = [row["text"] for row in own.notes if row["kind"] == "fails"]
        assert any(why in text for text in texts)


class TestDpo:
    def test_state_peak_and_step_are_unknown(self, tmp_path):
        base = newest(tmp_path)
        plain, own = (on(base, *LLAMA, *more) for more in ((), ("use_dpo=true",)))
        assert own.parameter_count() == plain.parameter_count()
        assert plain.memory().state_bytes is not None and own.memory().state_bytes is None
        assert own.verdict().expected_peak_bytes is None and own.verdict().step_seconds is None
        out = hlofast_command(
            "config", *LLAMA, "use_dpo=true", "--base", base, "--instance", "v5p-64"
        )
        assert "use_dpo=True: the reference model, its forward pass and the pairs" in out.stdout
        plan = hlofast_command(
            "plan", *LLAMA, "use_dpo=true", "--base", base, "--instance", "v5p-64"
        )
        assert plan.returncode == 1 and "use_dpo" in plan.stdout + plan.stderr


class TestSizesOfNoAxis:
    def test_they_have_a_note(self, tmp_path):
        """0.2.5 has the key `ici_sequence_parallelism` and no axis of that name."""
        base = newest(tmp_path)
        own = on(base, *LLAMA, "ici_sequence_parallelism=4")
        why = "the mesh has no axis 'sequence', so MaxText does not read it"
        told = [(row["kind"], row["text"]) for row in own.notes]
        assert told == [("no-effect", f"ici_sequence_parallelism=4: {why}")]
        staged = on(base, *LLAMA, "ici_pipeline_parallelism=4")
        assert "no-effect" not in staged.notes.values("kind")


class TestFieldsBesideBase:
    """Keys that base.yml lacks and the types.py beside it has."""

    def run(self, tmp_path, *given):
        base = newest(tmp_path)
        fields = ("lora_rank", "use_tunix_gradient_accumulation", "learn_to_init_mode", "a_field")
        (tmp_path / "types.py").write_text("".join(f"  {own}: int = 0\n" for own in fields))
        return on(base, *LLAMA, *given)

    @pytest.mark.parametrize("given", ["lora_rank=8", "learn_to_init_mode=true"])
    def test_parameters_are_unknown(self, tmp_path, given):
        own = self.run(tmp_path, given)
        assert own.parameter_count() is None and own.memory().state_bytes is None
        assert not [row for row in own.notes if "available" in row["text"]]

    def test_micro_batches_of_tunix_leave_no_peak(self, tmp_path):
        own = self.run(tmp_path, "use_tunix_gradient_accumulation=true")
        assert own.memory().state_bytes and own.verdict().expected_peak_bytes is None

    def test_another_field_has_a_note(self, tmp_path):
        own = self.run(tmp_path, "a_field=3")
        told = [(row["kind"], row["text"]) for row in own.notes]
        text = "a_field: base.yml lacks this key, which the types.py beside it has"
        assert [(kind, why.startswith(text)) for kind, why in told] == [("not-checked", True)]

    def test_errors_in_arguments_name_the_base(self, tmp_path):
        base = newest(tmp_path)
        given = ("a_key_of_nothing=3", "--base", base, "--json")
        result = hlofast_command("config", *LLAMA, *given)
        shown = result.stdout + result.stderr
        assert result.returncode and str(base) in shown and "MaxText's defaults" not in shown


class TestSinksOfLatentAttention:
    def test_one_per_head_and_layer(self):
        """`MLA` inherits the constructor of `Attention` (0.2.5): 27 layers of 16 heads."""
        plain, own = (
            config.loads("", path="run.yml", overrides=("model_name=deepseek2-16b", *more))
            for more in ((), ("attention_sink=true",))
        )
        assert own.parameter_count() - plain.parameter_count() == 27 * 16


class TestUnbalancedContext:
    def test_all_devices_wait_for_the_last_shard(self, tmp_path):
        """Of n consecutive shards, causal attention of the last has (2n - 1)/n of the mean work."""
        given = (*LLAMA, "ici_context_parallelism=4", "attention=flash", "max_target_length=8192")
        times = []
        for is_balanced in (True, False):
            base = newest(tmp_path, context_parallel_load_balance=is_balanced)
            parts = dict(on(base, *given).verdict().time.parts)
            times.append(parts)
        balanced, own = times
        assert own.pop("attention") == pytest.approx(balanced.pop("attention") * 7 / 4)
        assert own == balanced
