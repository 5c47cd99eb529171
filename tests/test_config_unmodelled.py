"""Implications of a config are right or reported as unknown; nothing is guessed."""

from pathlib import Path
from typing import Any

import pytest

from hlofast.config import Config, Enumeration
from test_cli import hlofast_command
from test_config_implied import LAYER, decoder, decoder_configs, on

ATTENTION = f"{LAYER}.self_attention.attention"
BIASES = "axlearn.common.attention_bias"
TRANSFORMATION = "learner.forward_fn_transformation"
MINIBATCHES = "axlearn.common.gradient_accumulation.with_minibatch_steps"


class TestTypes:
    def test_a_layer_may_have_its_own(self) -> None:
        plain = on(decoder(), fsdp=2).memory()
        table = plain["parameters"], 100 * 64
        narrow = decoder().with_value("model.decoder.emb.token_emb.dtype", "jax.numpy.bfloat16")
        memory = on(narrow, fsdp=2).memory()
        assert memory["parameters"] == table[0] - 2 * table[1]
        # Gradients have the type of the computation, bfloat16.
        assert memory["gradients"] == plain["gradients"] == plain["parameters"] // 2
        assert narrow.parameter_count() == decoder().parameter_count()

    def test_layers_inside_have_it_too(self) -> None:
        half = on(decoder().with_value("model.decoder.dtype", "jax.numpy.bfloat16"), fsdp=2)
        state = on(decoder(), fsdp=2).memory().state_bytes
        assert state is not None and half.memory().state_bytes == state // 2

    def test_unknown_of_parameters(self) -> None:
        config = decoder().with_value("model.dtype", "jax.numpy.float8_e4m3fn")
        memory = on(config, fsdp=2).memory()
        assert memory.state_bytes is None and memory.hbm_lower_bound is None
        assert all("float8_e4m3fn" in why for _, why in memory.gaps)

    def test_unknown_of_activations(self) -> None:
        config = decoder().with_value("train_dtype", "jax.numpy.float8_e4m3fn")
        effective = on(config, fsdp=2)
        memory = effective.memory()
        assert memory.state_bytes == on(decoder(), fsdp=2).memory().state_bytes
        assert memory.saved_bytes is None and memory.layer_input_bytes is None
        assert effective.traffic().gathered_bytes is None
        assert ("train_dtype", "the type 'jax.numpy.float8_e4m3fn' is not modelled") in memory.gaps

    def test_no_time_at_another_types_peak(self) -> None:
        wide = on(decoder().without("train_dtype"), fsdp=2)
        assert wide.memory().saved_bytes == 2 * (on(decoder(), fsdp=2).memory().saved_bytes or 0)
        verdict = wide.verdict("tpu-v5e")
        assert verdict.status == "fits" and verdict.step_seconds is None
        assert "no step time for elements of 4 bytes: peaks are for bfloat16" in verdict.statements


class TestLearner:
    def test_parameters_without_updates(self) -> None:
        rule = [".*emb.*", Enumeration("UpdateType", "NO_UPDATE", "no_update")]
        config = decoder().with_value("learner.update_rules", [rule])
        effective = on(config, fsdp=2)
        memory = effective.memory()
        assert memory["parameters"] == on(decoder(), fsdp=2).memory()["parameters"]
        assert memory.state_bytes is None and memory.gradient_bytes is None
        assert effective.flops().matmul is None
        assert effective.verdict("tpu-v5e").status == "unknown"
        assert [path for path, _ in memory.gaps] == ["learner.update_rules"]

    @pytest.mark.parametrize("steps", [0, "4", None])
    def test_steps_that_are_none(self, steps: Any) -> None:
        fields = {"fn": MINIBATCHES, "steps": steps}
        self.check_not_known(decoder().with_value(TRANSFORMATION, fields))

    def test_other_transformations(self) -> None:
        self.check_not_known(decoder().with_value(TRANSFORMATION, {"fn": "my.transformation"}))

    def check_not_known(self, config: Config) -> None:
        effective = on(config, fsdp=2)
        assert effective.accumulation_steps is None
        assert effective.memory().state_bytes is not None
        assert effective.memory().layer_input_bytes is None
        assert effective.traffic().gathered_bytes is None
        assert effective.verdict("tpu-v5e").status == "unknown"
        assert effective.unmodelled().row(0)["path"] == TRANSFORMATION

    def test_steps_that_do_not_divide_the_batch(self) -> None:
        config = decoder(batch=16).with_value(TRANSFORMATION, {"fn": MINIBATCHES, "steps": 3})
        verdict = on(config, fsdp=2).verdict("tpu-v5e")
        assert verdict.status == "unknown"
        why = "AXLearn fails here: 3 steps do not divide 16 sequences"
        assert (f"{TRANSFORMATION}.steps", why) in verdict.gaps


class TestMasks:
    @pytest.mark.parametrize(
        "mask",
        [
            {"fn": f"{BIASES}.sliding_window_causal_mask", "sliding_window_size": 8},
            {"klass": f"{BIASES}.SlidingWindowAttentionBias", "sliding_window_size": 8},
            "my.masks.every_other",
        ],
    )
    def test_others(self, mask: Any) -> None:
        flops = on(decoder().with_value(f"{ATTENTION}.mask", mask), fsdp=2).flops()
        assert flops.matmul is not None and flops.full_attention is not None
        assert flops.attention is None and flops.executed is None
        assert flops.gaps[0][0] == ATTENTION and "is not modelled" in flops.gaps[0][1]

    def test_causal_ones(self) -> None:
        expected = on(decoder(), fsdp=2).flops().attention
        without = decoder().without(f"{ATTENTION}.causal")
        own = without.with_value(f"{ATTENTION}.mask", {"klass": f"{BIASES}.CausalAttentionBias"})
        klass = "axlearn.common.attention.CausalAttentionLogitBiasLayer"
        of_decoder = without.with_value("model.decoder.attention_mask", {"klass": klass})
        for config in (own, of_decoder):
            assert on(config, fsdp=2).flops().attention == expected
        assert on(without, fsdp=2).flops().attention is None
        assert "the config has no mask" in without.unmodelled().row(0)["why"]


class TestSpecs:
    @pytest.mark.parametrize(
        ("spec", "why"),
        [
            (("fsdp", None, "model"), "weight has 2 dimensions, but its spec has 3"),
            (("fsdp", ("fsdp", "model")), "the spec of weight names 'fsdp' more than once"),
        ],
    )
    def test_those_that_jax_refuses(self, spec: Any, why: str) -> None:
        config = decoder(table=spec)
        assert any(row["why"].endswith(why) for row in config.unmodelled())
        assert on(config, fsdp=2).memory().state_bytes is None


class TestSizes:
    def test_heads_of_keys_that_do_not_divide(self) -> None:
        for groups in (3, 16):
            config = decoder(heads=8, kv_heads=groups)
            assert config.parameter_count() is None
            text = f"{groups} heads of keys and values do not divide 8 heads"
            assert config.unmodelled().row(0)["why"].endswith(text)

    def test_rows_of_other_embeddings(self) -> None:
        path = "model.decoder.emb.pos_emb"
        table = {"klass": "axlearn.common.layers.Embedding"}
        assert decoder().with_value(path, table).parameter_count() is None
        config = decoder().with_value(path, {**table, "num_embeddings": 32})
        count = decoder().parameter_count()
        assert count is not None and config.parameter_count() == count + 32 * 64

    def test_functions_that_only_sound_alike(self) -> None:
        config = decoder(hidden={"fn": "my.common.scale_fn", "scale": 4})
        assert config.parameter_count() is None
        assert "my.common.scale_fn is not modelled" in config.unmodelled().row(0)["why"]

    def test_axes_of_the_batch_that_are_none(self) -> None:
        config = decoder().without("input.input_partitioner")
        verdict = on(config.with_value("batch_axis_names", ["replica"]), fsdp=2).verdict("tpu-v5e")
        assert verdict.status == "unknown" and verdict.sequences_per_device is None
        assert (
            "input",
            "the batch is sharded along 'replica', which is not a mesh axis",
        ) in verdict.gaps
        assert verdict.step_seconds is None


class TestTime:
    def test_half_of_the_devices_pad(self) -> None:
        full, half = (on(decoder(batch=16), fsdp=size).verdict("tpu-v5e") for size in (16, 32))
        assert half.sequences_per_device == 0.5
        assert half.compute_seconds == full.compute_seconds

    def test_devices_that_do_the_same(self) -> None:
        alone = on(decoder(), fsdp=2).verdict("tpu-v5e")
        verdict = on(decoder(), pipeline=2, fsdp=2).verdict("tpu-v5e")
        assert verdict.compute_seconds == alone.compute_seconds
        text = "mesh axes pipeline shard neither weights nor tokens: groups of 2 devices repeat the same"
        assert any(text in statement for statement in verdict.statements)
        assert not any("sharding the sequence" in text for text in verdict.statements)

    def test_traffic_that_is_not_modelled(self) -> None:
        verdict = on(decoder(), fsdp=2, seq=2).verdict("tpu-v5e")
        assert verdict.communication_seconds is None
        assert verdict.step_bound_seconds == verdict.compute_seconds
        assert any("the time of collectives is not known" in text for text in verdict.statements)


class TestRules:
    def test_modifiers_that_are_not_modelled(self) -> None:
        modifier = {"klass": "my.Modifier"}
        effective = decoder(rules=((".*-16", modifier),)).select("tpu-v5litepod-16")
        verdict = effective.verdict()
        assert verdict.status == "unknown" and "my.Modifier" in verdict.gaps[0][1]
        assert verdict.hbm_lower_bound is not None
        assert verdict.excess_bytes is None

    def test_what_is_known_exceeds_the_memory(self) -> None:
        """Whatever the modifier does, and whatever the policy keeps, the state does not fit."""
        large = {"layers": 80, "dim": 8192, "heads": 64, "kv_heads": 8, "hidden": 28672}
        modifier = {"klass": "my.Modifier"}
        rules = ((".*-16", modifier),)
        verdict = decoder(rules=rules, **large).select("tpu-v5litepod-16").verdict()
        assert verdict.status == "does not fit" and verdict.capacity_bytes is not None
        assert verdict.expected_peak_bytes is not None
        assert verdict.excess_bytes == verdict.expected_peak_bytes - verdict.capacity_bytes
        unknown = decoder(policy="my.policy", rules=rules, **large).select("tpu-v5litepod-16")
        verdict = unknown.verdict()
        assert verdict.expected_peak_bytes is None and verdict.hbm_lower_bound is None
        assert verdict.status == "does not fit"
        known = verdict.memory.known_bytes
        assert verdict.excess_bytes == known - 16_911_433_728 > 0
        assert any("the terms whose size is known exceed" in text for text in verdict.statements)

    def test_modifiers_at_which_axlearn_stops(self) -> None:
        klass = "axlearn.common.trainer_config_modifier.RematSpecModifier"
        policies = {decoder_configs.Quoted("model.encoder"): {"policy": None}}
        modifier = {"klass": klass, "remat_policies": policies}
        verdict = decoder(rules=((".*-16", modifier),)).select("tpu-v5litepod-16").verdict()
        assert verdict.status == "unknown" and "AXLearn fails here" in verdict.gaps[0][1]


def test_a_statement_names_each_instance_once(tmp_path: Path) -> None:
    """An instance of which there are two readings, of 64 devices and of 64 machines."""
    path = tmp_path / "config.txt"
    name = "neuron-trn2.48xlarge-64"
    path.write_text(decoder(rules=((name, decoder_configs.mesh(1, 1, 1, -1, 1, 1)),)).to_text())
    shown = hlofast_command("config", path).stdout
    assert f"the step time covers computation only ({name})" in shown


def test_parts_of_what_is_not_modelled_have_no_totals() -> None:
    """A mixture of experts: the gathers of the other layers are not a total."""
    klass = "axlearn.common.mixture_of_experts.TransformerFeedForwardMoE"
    traffic = on(decoder().with_value(f"{LAYER}.feed_forward.klass", klass), fsdp=2).traffic()
    assert traffic.gathered_bytes is None and traffic.gathered_bytes_per_layer is None
    assert traffic.total("all-gather") is None and len(traffic.transfers) > 0


@pytest.mark.parametrize("devices", ["0", "-1", "x", "1" * 40, "²"])
def test_numbers_of_devices_that_are_none(devices: str) -> None:
    for command in (("config", "--device-count"), ("stages", "--device-count")):
        done = hlofast_command(command[0], "any.txt", f"{command[1]}={devices}")
        assert done.returncode == 2
        assert f"not a device count: {devices!r}" in done.stderr
