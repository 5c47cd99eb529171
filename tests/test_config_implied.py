"""What a config implies: parameters, memory, operations, traffic, and whether it fits."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlofast
from conftest import FIXTURES, Seeds
from hlofast.config import Builder, Config, EffectiveConfig, StepMemory
from test_cli import document, hlofast_command

_spec = importlib.util.spec_from_file_location("decoder_configs", FIXTURES / "decoder_configs.py")
assert _spec is not None and _spec.loader is not None
decoder_configs: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(decoder_configs)

LAYER = "model.decoder.transformer.layer"
TOKENS = 1024 * 4096
GB = 10**9
RULES: list[tuple[str, int | None, int, float, float, float, float]] = [
    # Instance, devices, state; gradients, layer inputs, saved, offloaded in GB.
    ("tpu-v5litepod-256-4", None, 9_666_920_448, 3.222, 5.369, 0, 49.661),
    ("tpu-v5p-1024", None, 8_062_599_168, 2.688, 10.737, 72.813, 0),
    ("tpu-v5p-512", None, 9_666_920_448, 3.222, 21.475, 145.626, 0),
    ("tpu-v6e-256-4", None, 9_666_920_448, 3.222, 5.369, 0, 12.080),
    ("tpu-v6e-256-8", None, 9_666_920_448, 3.222, 2.684, 0, 6.040),
    ("tpu-v6e-256", None, 9_666_920_448, 3.222, 5.369, 0, 12.080),
    ("gpu-p5.48xlarge-512", None, 12_875_563_008, 4.292, 10.737, 24.159, 0),
    ("gpu-a4-highgpu-8g-256", None, 57_796_558_848, 19.266, 21.475, 48.318, 0),
]
ONLY_SEED: list[tuple[str, int | None, int, float, float, float, float]] = [
    ("gpu-a3-highgpu-8g-256", None, 19_292_848_128, 6.431, 21.475, 48.318, 0),
    ("gpu-a3-highgpu-8g-512", None, 19_292_848_128, 6.431, 10.737, 24.159, 0),
    ("neuron-trn2.48xlarge-64", 4096, 217_939_968, 0.0726, 5.369, 11.073, 0),
]


@pytest.fixture(scope="module")
def large() -> Config:
    return hlofast.config.load(FIXTURES / "configs" / "decoder_70b.txt")


@pytest.fixture(scope="module")
def fuji(seeds: Seeds) -> Config:
    return hlofast.config.load(seeds.path("004"))


def decoder(**changes: Any) -> Config:
    """A small decoder, other than usual in what `changes` says."""
    sizes = {"layers": 3, "dim": 64, "heads": 8, "kv_heads": 2, "vocabulary": 100}
    sizes |= {"sequence": 32, "batch": 16, "hidden": 96}
    text = decoder_configs.text(**{**sizes, **changes})
    config = hlofast.config.loads(text)
    assert config.to_text() == text
    return config


def on(config: Config, **axes: int) -> EffectiveConfig:
    """The config on a mesh of these axes."""
    names = ("pipeline", "data", "expert", "fsdp", "seq", "model")
    shape = [axes.get(name, 1) for name in names]
    return config.with_value("mesh_shape", shape).select("local", devices=math.prod(shape))


def paths(config: Config) -> dict[str, int]:
    return {row["path"]: row["elements"] for row in config.parameters()}


class TestParameters:
    def test_seventy_billion(self, large: Config) -> None:
        assert large.parameter_count() == 68_989_231_104
        assert sum(large.parameters()["elements"]) == 68_989_231_104
        rows = {row["path"]: row for row in large.parameters()}
        fused = rows[
            "decoder/transformer/repeat/layer/self_attention/attention/i_proj/i_proj/qkv_proj/weight"
        ]
        assert fused["shape"] == "80,8192,80,128"
        assert fused["partition_spec"] == (
            "PartitionSpec(None, ('expert', 'fsdp', 'seq'), 'model', None)"
        )
        assert fused["layers"] == 80 and fused["dtype"] == "float32"
        assert fused["bytes"] == 4 * fused["elements"] and fused["bytes_per_device"] == -1
        assert len(large.unmodelled()) == 0

    @pytest.mark.seeds
    def test_the_seed(self, fuji: Config) -> None:
        assert fuji.parameter_count() == 68_989_231_104
        assert len(fuji.unmodelled()) == 0
        for instance in ("tpu-v6e-256-4", "tpu-v5p-1024", "gpu-p5.48xlarge-256"):
            assert fuji.select(instance).parameter_count() == 68_989_231_104
        stacked = fuji.select("neuron-trn2n.48xlarge-64", devices=4096)
        assert stacked.parameter_count() == 68_989_231_104
        rows = {row["path"]: row for row in stacked.parameters()}
        query = rows[
            "decoder/transformer/layer*/self_attention/attention/i_proj/i_proj/q_proj/weight"
        ]
        assert query["shape"] == "8192,64,128" and query["copies"] == 80
        assert not any("bias" in path for path in rows)

    @pytest.mark.parametrize(
        ("qkv", "elements"),
        [
            ("fused-grouped", {"qkv_proj": 64 * 12 * 8}),
            ("grouped", {"q_proj": 64 * 64, "k_proj": 64 * 2 * 8, "v_proj": 64 * 2 * 8}),
            ("fused", {"qkv_proj": 3 * 64 * 64}),
            ("separate", {"q_proj": 64 * 64, "k_proj": 64 * 64, "v_proj": 64 * 64}),
        ],
    )
    @pytest.mark.parametrize("rope", [True, False])
    def test_projections(self, qkv: str, elements: dict[str, int], rope: bool) -> None:
        found = paths(decoder(qkv=qkv, rope=rope))
        prefix = "decoder/transformer/repeat/layer/self_attention/attention/i_proj/"
        prefix += "i_proj/" if rope else ""
        assert {
            path.removeprefix(prefix): size for path, size in found.items() if prefix in path
        } == {f"{name}/weight": 3 * size for name, size in elements.items()}

    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("gated", [True, False])
    @pytest.mark.parametrize("norm", ["RMSNorm", "LayerNorm"])
    @pytest.mark.parametrize("tied", [True, False])
    @pytest.mark.parametrize("stack", ["repeated", "stacked"])
    def test_every_kind(self, bias: bool, gated: bool, norm: str, tied: bool, stack: str) -> None:
        config = decoder(
            bias=bias, gated=gated, norm=norm, tied=tied, stack=stack, qkv="grouped", head_dim=16
        )
        ups = 2 if gated else 1
        attention = 64 * (8 + 2 * 2) * 16 + 8 * 16 * 64
        forward = ups * 64 * 96 + 96 * 64
        norms = 64 * (2 if norm == "LayerNorm" else 1)
        biases = ((8 + 4) * 16 + 64 + ups * 96 + 64) if bias else 0
        expected = 3 * (attention + forward + biases + 2 * norms) + norms
        expected += 100 * 64 * (1 if tied else 2)
        assert config.parameter_count() == expected
        found = paths(config)
        assert ("decoder/lm_head/weight" in found) is not tied
        name = "layer*" if stack == "stacked" else "repeat/layer"
        linear = "linear1_0" if gated else "linear1"
        assert f"decoder/transformer/{name}/feed_forward/{linear}/weight" in found

    def test_layers_of_different_kinds(self) -> None:
        config = decoder(stack="stacked", layers=2)
        layer = config[LAYER]
        other = layer.with_value("feed_forward.hidden_dim", 32)
        mixed = config.with_value("model.decoder.transformer.layer", [layer, other])
        found = paths(mixed)
        assert found["decoder/transformer/layer0/feed_forward/linear2/weight"] == 96 * 64
        assert found["decoder/transformer/layer1/feed_forward/linear2/weight"] == 32 * 64
        wrong = mixed.with_value("model.decoder.transformer.num_layers", 3)
        assert wrong.parameter_count() is None
        assert "2 layers where num_layers is 3" in wrong.unmodelled().row(0)["why"]

    @pytest.mark.parametrize(
        ("structure", "names"),
        [
            ("prenorm", {"norm"}),
            ("postnorm", {"norm"}),
            ("hybridnorm", {"prenorm", "postnorm"}),
            ("nonorm", set()),
        ],
    )
    def test_structures(self, structure: str, names: set[str]) -> None:
        config = decoder().with_value(f"{LAYER}.feed_forward.structure", structure)
        found = [path.split("/") for path in paths(config) if "feed_forward" in path]
        assert {steps[-2] for steps in found if steps[-1] == "scale"} == names

    def test_norms_of_queries_and_keys(self) -> None:
        scale = hlofast.config.loads(
            "klass: 'axlearn.common.attention.ScaleQuery'\n"
            "norm.klass: 'axlearn.common.layers.RMSNorm'\n"
        )
        config = decoder().with_value(f"{LAYER}.self_attention.attention.query_scale", scale)
        name = "decoder/transformer/repeat/layer/self_attention/attention/scale_query/norm/scale"
        assert paths(config)[name] == 3 * 8

    @pytest.mark.parametrize(
        ("hidden", "expected"),
        [
            ({"scale": 2.5, "round_up_to_multiples_of": 128}, 256),
            ({"scale": 2, "round_up_to_multiples_of": 128}, 128),
            ({"scale": 2.6}, 166),
        ],
    )
    def test_hidden_by_a_function(self, hidden: dict[str, float], expected: int) -> None:
        text = decoder(hidden=None).to_text()
        config = hlofast.config.loads(text).without(f"{LAYER}.feed_forward.hidden_dim")
        lines = ["fn: 'axlearn.experiments.text.gpt.common.scale_fn'"]
        lines += [f"{key}: {value}" for key, value in hidden.items()]
        part = hlofast.config.loads("\n".join(lines))
        config = config.with_value(f"{LAYER}.feed_forward.hidden_dim", part)
        found = paths(config)["decoder/transformer/repeat/layer/feed_forward/linear2/weight"]
        assert found == 3 * expected * 64


class TestUnmodelled:
    def test_unknown_class(self) -> None:
        config = decoder().with_value(f"{LAYER}.feed_forward.klass", "my.layers.Experts")
        assert config.parameter_count() is None
        assert config.unmodelled().to_pylist() == [
            {"path": f"{LAYER}.feed_forward", "why": "my.layers.Experts: the class is not modelled"}
        ]
        assert "decoder/lm_head/weight" in paths(config)  # What is known is still there.
        effective = on(config, fsdp=4)
        assert effective.memory().state_bytes is None
        assert effective.memory().hbm_lower_bound is None
        assert effective.flops().model is None and effective.flops().six_n_t is None
        verdict = effective.verdict("tpu-v5e")
        assert verdict.status == "unknown" and verdict.step_seconds is None
        assert any("my.layers.Experts" in text for text in verdict.statements)

    def test_part_that_nobody_looks_at(self) -> None:
        extra = hlofast.config.loads("klass: 'my.layers.Gate'\n")
        config = decoder().with_value(f"{LAYER}.self_attention.attention.gate", extra)
        assert config.parameter_count() is None
        assert config.unmodelled().row(0)["path"] == f"{LAYER}.self_attention.attention.gate"

    def test_known_class_in_another_place(self) -> None:
        linear = hlofast.config.loads("klass: 'axlearn.common.layers.Linear'\n")
        config = decoder().with_value(f"{LAYER}.self_attention.norm", linear)
        assert config.parameter_count() is None
        assert config.unmodelled()["path"].tolist() == [f"{LAYER}.self_attention.norm"]

    def test_registered_class(self) -> None:
        name = "test_config_implied.Gate"

        @hlofast.config.register_module(name)
        def gate(builder: Builder) -> None:
            weight = builder.parameter("gate", (builder.width, 5), (("fsdp",), ()))
            builder.product("gate", weight, builder.width * 5)

        config = decoder(tied=True).with_value(
            "model.decoder.lm_head", hlofast.config.loads(f"klass: {name!r}\n")
        )
        assert paths(config)["decoder/lm_head/gate"] == 64 * 5
        plain = decoder(tied=True)
        difference = config.flops().matmul - plain.flops().matmul
        assert difference == 6 * 64 * 5 * 16 * 32

    def test_unknown_policy(self) -> None:
        effective = on(decoder(policy="my.policies.keep_some"), fsdp=4)
        memory = effective.memory()
        assert memory.state_bytes is not None
        assert memory.saved_bytes is None and memory.hbm_lower_bound is None
        assert effective.flops().model is not None and effective.flops().executed is None
        assert "my.policies.keep_some" in effective.unmodelled().row(0)["why"]

    def test_unknown_optimizer(self) -> None:
        config = decoder().with_value(
            "learner.optimizer.args[1].fn", "axlearn.common.optimizers.adafactor_optimizer"
        )
        memory = on(config, fsdp=4).memory()
        assert memory.state_bytes is None and memory["parameters"] is not None
        assert "adafactor" in config.unmodelled().row(0)["why"]

    def test_no_batch(self) -> None:
        for path in ("input.input_dispatcher", "input.input_partitioner"):
            effective = on(decoder().without(path), fsdp=4)
            assert effective.memory().state_bytes is not None
            assert effective.memory().layer_input_bytes is None
            assert effective.unmodelled().row(0)["path"] == "input"

    def test_no_model(self) -> None:
        config = hlofast.config.loads("a: 1\n")
        assert config.parameter_count() is None
        assert len(config.parameters()) == 0
        assert config.select("tpu-v5e-8").memory().state_bytes is None

    def test_remat_within_remat(self) -> None:
        spec = decoder()[f"{LAYER}.remat_spec"]
        config = decoder().with_value(f"{LAYER}.feed_forward.remat_spec", spec)
        assert config.parameter_count() is None
        assert "remat inside" in config.unmodelled().row(0)["why"]


class TestMemory:
    @pytest.mark.parametrize("row", RULES, ids=lambda row: row[0])
    def test_rules(self, large: Config, row: Any) -> None:
        check_memory(large, row)

    @pytest.mark.seeds
    @pytest.mark.parametrize("row", RULES + ONLY_SEED, ids=lambda row: row[0])
    def test_rules_of_the_seed(self, fuji: Config, row: Any) -> None:
        check_memory(fuji, row)

    def test_provenance(self, large: Config) -> None:
        table = large.select("tpu-v6e-256").memory().table
        kinds = dict(zip(table["term"], table["provenance"]))
        assert kinds["parameters"] == kinds["optimizer state"] == "exact"
        assert kinds["gradients"] == kinds["layer inputs"] == kinds["offloaded"] == "modelled"

    def test_replicated_tables(self, large: Config) -> None:
        memory = large.select("tpu-v6e-256-4").memory()
        rows = memory.replicated.to_pylist()
        assert [row["path"] for row in rows] == [
            "decoder/emb/token_emb/weight",
            "decoder/lm_head/weight",
        ]
        assert sum(row["state_bytes"] for row in rows) == 6_442_450_944
        assert {row["axes"] for row in rows} == {"fsdp"}
        sharded = hlofast.config.load(FIXTURES / "configs" / "decoder_70b_sharded_tables.txt")
        better = sharded.select("tpu-v5litepod-256-4").memory()
        assert better.state_bytes == 3_249_635_328 and len(better.replicated) == 0
        assert memory.state_bytes is not None
        assert memory.state_bytes - better.state_bytes == sum(row["bytes_saved"] for row in rows)

    def test_uneven_batch(self, large: Config) -> None:
        effective = large.select("tpu-v6e-256-8")
        memory = effective.memory()
        assert memory["padding"] == memory.layer_input_bytes + memory.offloaded_bytes
        verdict = effective.verdict()
        assert verdict.sequences_per_device == 0.5
        assert any("1,024 sequences do not divide by 2,048 shards" in t for t in verdict.statements)
        even = large.select("tpu-v6e-256-4")
        assert memory.hbm_lower_bound == even.memory().hbm_lower_bound
        with pytest.raises(KeyError):
            even.memory()["padding"]

    def test_uneven_weights_are_padded(self) -> None:
        row = next(row for row in on(decoder(), fsdp=7).parameters() if "linear2" in row["path"])
        assert row["elements_per_device"] == 3 * 96 * 10  # 64 in seven parts.

    @pytest.mark.parametrize(
        ("policy", "saved", "offloaded"),
        [
            # Numbers per token and layer: q 64, k and v 16, o 64, linear1 96, attention 64 + 2·8·2.
            (decoder_configs.names(r".*[qkvo]_proj"), 64 + 32 + 64, 0),
            (decoder_configs.names(None, r".*linear1_.*"), 0, 2 * 96),
            (decoder_configs.names(r".*linear1_0", r".*linear1_.*"), 96, 96),
            (decoder_configs.names(r".*flash_residuals"), 64 + 32, 0),
            (decoder_configs.names(r"linear1_0"), 0, 0),  # Names have a class before them.
            (decoder_configs.names(r".*linear2"), 0, 0),  # Backward does not read it.
            (decoder_configs.OFFLOAD_DOTS, 0, 96 + 64 + 2 * 96),
            (decoder_configs.OFFLOAD_ATTENTION, 0, 64 + 32 + 64),
            ("jax._src.ad_checkpoint.nothing_saveable", 0, 0),
            ("jax._src.ad_checkpoint.dots_saveable", 96 + 64 + 2 * 96, 0),
            ("jax._src.ad_checkpoint.dots_with_no_batch_dims_saveable", 96 + 64 + 2 * 96, 0),
        ],
    )
    def test_policies(self, policy: Any, saved: int, offloaded: int) -> None:
        memory = on(decoder(policy=policy), data=2, fsdp=2).memory()
        tokens = 16 * 32 // 4
        assert memory.saved_bytes == 3 * tokens * saved * 2
        assert memory.offloaded_bytes == 3 * tokens * offloaded * 2
        assert memory.layer_input_bytes == 3 * tokens * 64 * 2

    def test_plain_attention_keeps_squares(self) -> None:
        dots = "jax._src.ad_checkpoint.dots_saveable"
        plain = {"attention": "plain", "policy": dots}
        memory = on(decoder(**plain), fsdp=4).memory()
        rest = 96 + 64 + 2 * 96
        assert memory.saved_bytes == 3 * 128 * 2 * (rest + 8 * 32 + 64)
        without = on(
            decoder(**{**plain, "policy": f"{dots[:-13]}dots_with_no_batch_dims_saveable"}), fsdp=4
        )
        assert without.memory().saved_bytes == 3 * 128 * 2 * rest

    def test_activations(self) -> None:
        policy = decoder_configs.names(r".*linear1_0", r".*[qk]_proj")
        memory = on(decoder(policy=policy), data=2).memory()
        rows = {row["name"]: row for row in memory.activations if row["name"]}
        fates = {name.partition(".")[2]: row["fate"] for name, row in rows.items()}
        assert fates == {
            "q_proj": "offloaded",
            "k_proj": "offloaded",
            "v_proj": "recomputed",
            "flash_residuals": "recomputed",
            "o_proj": "recomputed",
            "linear1_0": "saved",
            "linear1_1": "recomputed",
            "linear2": "recomputed",
        }
        query = rows["FlashAttention.q_proj"]
        assert query["bytes"] == 256 * 64 * 2 and query["total_bytes"] == 3 * query["bytes"]
        kept = memory.activations["total_bytes"].sum()
        assert kept == memory.saved_bytes + memory.offloaded_bytes
        nowhere = hlofast.config.loads(decoder().to_text()).with_value("mesh_shape", None)
        assert set(nowhere.select("x").memory().activations["bytes"]) == {-1}

    def test_no_rematerialisation(self) -> None:
        config = decoder().without(f"{LAYER}.remat_spec")
        memory = on(config, fsdp=4).memory()
        assert memory.layer_input_bytes == 0
        # Inputs and norms of both halves, q, k, v, attention, output, linear1 twice, their product.
        assert memory.saved_bytes == 3 * 128 * 2 * (4 * 64 + 96 + 96 + 64 + 2 * 96 + 96)
        assert config.flops().recomputed == 0

    def test_axes_divide_activations(self) -> None:
        config = decoder(policy=decoder_configs.names(".*"), kv_heads=4)
        whole = on(config, data=2).memory()
        cut = on(config, data=2, seq=2, model=2).memory()
        # Heads and inner width are divided by `model`, the output of attention is not.
        assert whole.saved_bytes == 3 * 256 * 2 * (64 + 64 + 96 + 64 + 2 * 96)
        assert cut.saved_bytes == 3 * 128 * 2 * (32 + 32 + 48 + 64 + 96)
        assert cut.layer_input_bytes == whole.layer_input_bytes // 2

    def test_learners(self) -> None:
        adam = on(decoder(), fsdp=4).memory()
        parameters = adam["parameters"]
        assert parameters is not None and adam.state_bytes == 3 * parameters
        average = on(decoder(ema_decay=0.999), fsdp=4).memory()
        assert average.state_bytes == 4 * parameters and average["averages"] == parameters
        lion = decoder().with_value(
            "learner.optimizer.args[1].fn", "axlearn.common.optimizers.lion_optimizer"
        )
        assert on(lion, fsdp=4).memory().state_bytes == 2 * parameters
        inner = hlofast.config.loads(
            "fn: 'axlearn.common.optimizers.skip_and_clip_by_global_norm'\n"
            "inner.fn: 'axlearn.common.optimizers.adamw_optimizer'\n"
        )
        wrapped = decoder().with_value("learner.optimizer", inner)
        assert on(wrapped, fsdp=4).memory().state_bytes == 3 * parameters

    def test_accumulation_divides_activations(self, large: Config) -> None:
        split = large.select("tpu-v6e-256")
        assert split.accumulation_steps == 4
        assert split.memory().offloaded_bytes == 12_079_595_520
        assert split.verdict().sequences_per_device == 1

    def test_without_a_mesh(self, large: Config) -> None:
        effective = large.select("neuron-trn2.48xlarge-64")
        if effective.mesh is None:
            assert effective.memory().state_bytes is None
            assert effective.traffic().total() is None
            assert effective.verdict().status == "unknown"
        nowhere = large.with_value("mesh_shape", [1, 1, 1, -1, -1, 1]).select("tpu-v4-8")
        assert nowhere.mesh is None
        assert nowhere.memory().hbm_lower_bound is None and nowhere.traffic().gathered_bytes is None
        assert nowhere.verdict().status == "unknown"
        assert nowhere.flops().six_n_t is not None


def check_memory(config: Config, row: Any) -> None:
    instance, devices, state, *figures = row
    effective = config.select(instance, devices=devices)
    memory = effective.memory()
    assert memory.state_bytes == state
    found = (
        memory.gradient_bytes,
        memory.layer_input_bytes,
        memory.saved_bytes,
        memory.offloaded_bytes,
    )
    for size, expected in zip(found, figures):
        assert size is not None and size / GB == pytest.approx(expected, abs=6e-4)
    assert memory.gradient_bytes is not None and memory.gradient_bytes * 3 == state
    padding = sum(
        term.bytes for term in memory.terms if term.name == "padding" and term.place == "device"
    )
    assert memory.hbm_lower_bound == state + sum(found[:3]) + padding


class TestFlops:
    def test_seventy_billion(self, large: Config) -> None:
        flops = large.flops()
        assert flops.tokens == TOKENS
        assert flops.six_n_t == 1_736_170_847_858_589_696
        assert flops.matmul == 1_729_382_256_910_270_464
        assert flops.full_attention == 135_107_988_821_114_880
        assert flops.attention == 67_553_994_410_557_440
        assert flops.model == flops.matmul + flops.attention
        assert sum(flops.table["forward"]) * 3 == flops.model

    def test_recomputed(self, large: Config) -> None:
        matrix = 2 * TOKENS * 80
        attention = 67_553_994_410_557_440 // 3
        dots = large.select("tpu-v5litepod-256-4").flops()
        assert dots.recomputed_matmul == 0 and dots.recomputed_attention == attention
        names = large.select("tpu-v5p-1024").flops()
        assert names.recomputed_matmul == matrix * 234_881_024
        assert names.recomputed_attention == 0
        default = large.select("gpu-p5.48xlarge-512").flops()
        assert default.recomputed_matmul == 2 * matrix * 234_881_024
        nothing = decoder(policy="jax._src.ad_checkpoint.nothing_saveable").flops()
        # All but the second product of the feed-forward layer and the head.
        layer = 64 * 12 * 8 + 64 * 64 + 2 * 64 * 96
        assert nothing.recomputed_matmul == 2 * 512 * 3 * layer

    @pytest.mark.parametrize(
        ("device", "devices", "seconds", "percent"),
        [
            ("tpu-v5e", 1024, 14.3736, 59.88),
            ("tpu-v6e", 1024, 4.9, 37.69),
            ("tpu-v6e", 256, 19.5, 37.89),
            ("h100", 512, 12.9, 26.58),
        ],
    )
    def test_mfu_of_published_steps(
        self, large: Config, device: str, devices: int, seconds: float, percent: float
    ) -> None:
        chip = hlofast.devices.get(device)
        found = large.flops().mfu(seconds, devices, chip)
        assert 100 * found == pytest.approx(percent, abs=0.02)

    def test_mfu_refuses(self, large: Config) -> None:
        chip = hlofast.devices.get("tpu-v5e")
        for seconds, devices in ((0.0, 4), (-1.0, 4), (math.nan, 4), (1.0, 0)):
            with pytest.raises(ValueError):
                large.flops().mfu(seconds, devices, chip)
        with pytest.raises(ValueError, match="not known"):
            hlofast.config.loads("a: 1\n").flops().mfu(1.0, 1, chip)


class TestTraffic:
    def test_gathers(self, large: Config) -> None:
        traffic = large.select("tpu-v6e-256-4").traffic()
        assert traffic.gathered_bytes == 273_804_165_120
        assert traffic.gathered_bytes_per_layer == 1_711_276_032
        layer = [each for each in traffic.transfers if each.kind == "all-gather"]
        assert sorted(each.payload for each in layer if each.phase == "forward") == sorted(
            [167_772_160, 134_217_728, 469_762_048, 469_762_048, 469_762_048]
        )
        accumulated = large.select("tpu-v6e-256").traffic()
        assert accumulated.gathered_bytes == 4 * 273_804_165_120

    def test_gradients(self, large: Config) -> None:
        traffic = large.select("tpu-v6e-256-4").traffic()
        scattered = traffic.total("reduce-scatter", "gradients", "fsdp")
        assert scattered == 80 * 1_711_276_032
        # The parts of each device, then summed over slices.
        parts = traffic.total("all-reduce", "gradients", "data") - traffic.total(
            "all-reduce", "gradients", "fsdp"
        )
        assert parts == 80 * 1_711_276_032 // 256
        tables = [
            each
            for each in traffic.transfers
            if each.tensor.endswith(("emb/weight", "head/weight"))
        ]
        assert {(each.kind, each.axes, each.payload) for each in tables} == {
            ("all-reduce", ("data", "fsdp"), 536_870_912)
        }

    def test_tensor_parallel(self) -> None:
        nothing = decoder(policy="jax._src.ad_checkpoint.nothing_saveable")
        traffic = on(nothing, data=2, model=4).traffic()
        rows = [each for each in traffic.transfers if each.moved == "activations"]
        assert {each.axes for each in rows} == {("model",)}
        logits = [each for each in rows if "head" in each.tensor]
        assert [(each.phase, each.payload) for each in logits] == [("forward", 16 // 2 * 32 * 200)]
        rows = [each for each in rows if "transformer" in each.tensor]
        size = 16 // 2 * 32 * 64 * 2
        assert {each.payload for each in rows} == {size}
        by_phase = dict.fromkeys(("forward", "recomputed", "backward"), 0)
        for each in rows:
            by_phase[each.phase] += each.count
        # Forward and backward two for each layer; again that of attention's output.
        assert by_phase == {"forward": 6, "recomputed": 3, "backward": 6}
        assert traffic.total("all-gather") == 0

    def test_sharded_tables(self) -> None:
        traffic = on(decoder(table=decoder_configs.SHARDED_TABLE), fsdp=4).traffic()
        tables = [each for each in traffic.transfers if "transformer" not in each.tensor]
        gathers = [(each.tensor, each.phase) for each in tables if each.kind == "all-gather"]
        assert gathers == [
            ("decoder/emb/token_emb/weight", "forward"),
            ("decoder/lm_head/weight", "forward"),
            ("decoder/lm_head/weight", "backward"),
        ]

    def test_axes_that_are_none(self) -> None:
        config = decoder(table=("rows", None))
        why = on(config, fsdp=2).memory().gaps[0][1]
        assert why == "'rows' in its partition spec is no axis of the mesh"
        assert on(config, fsdp=2).memory().state_bytes is not None

    def test_what_is_not_modelled(self) -> None:
        traffic = on(decoder(), seq=2).traffic()
        assert traffic.total() is None and traffic.gathered_bytes is not None
        whys = [why for _, why in on(decoder(), seq=2).traffic().gaps]
        assert any("seq" in why for why in whys)


class TestVerdict:
    @pytest.mark.parametrize(
        ("instance", "status"),
        [
            ("tpu-v5litepod-256-4", "does not fit"),
            ("tpu-v5p-512", "does not fit"),
            ("tpu-v5p-1024", "tight"),
            ("tpu-v5p-2048", "fits"),
            ("tpu-v6e-256-4", "fits"),
            ("tpu-v6e-256", "fits"),
            ("gpu-p5.48xlarge-512", "fits"),
            ("gpu-a4-highgpu-8g-256", "fits"),
        ],
    )
    def test_rules(self, large: Config, instance: str, status: str) -> None:
        verdict = large.select(instance).verdict()
        assert verdict.status == status
        assert (verdict.excess_bytes > 0) == (status == "does not fit")

    @pytest.mark.seeds
    @pytest.mark.parametrize(
        ("instance", "devices", "status", "binding"),
        [
            ("tpu-v5litepod-256-4", None, "does not fit", "optimizer state"),
            ("tpu-v5p-1024", None, "tight", "saved"),
            ("tpu-v5p-512", None, "does not fit", "saved"),
            ("tpu-v6e-256-4", None, "fits", "optimizer state"),
            ("tpu-v6e-256", None, "fits", "optimizer state"),
            ("gpu-p5.48xlarge-512", None, "fits", "saved"),
            ("gpu-a3-highgpu-8g-256", None, "does not fit", "saved"),
            ("gpu-a3-ultragpu-8g-256", None, "fits", "saved"),
            ("gpu-a3-highgpu-8g-512", None, "fits", "saved"),
            ("gpu-a4-highgpu-8g-256", None, "fits", "saved"),
            ("neuron-trn2.48xlarge-64", 4096, "fits", "saved"),
        ],
    )
    def test_rules_of_the_seed(
        self, fuji: Config, instance: str, devices: int | None, status: str, binding: str
    ) -> None:
        verdict = fuji.select(instance, devices=devices).verdict()
        assert (verdict.status, verdict.binding_term) == (status, binding)
        assert verdict.step_seconds is not None and 0 < verdict.mfu < 1

    def test_time(self, large: Config) -> None:
        effective = large.select("tpu-v6e-256-4")
        verdict = effective.verdict()
        flops = effective.flops()
        assert verdict.compute_seconds == pytest.approx(flops.executed / (1024 * 918e12))
        assert verdict.step_seconds == max(verdict.compute_seconds, verdict.communication_seconds)
        chip = hlofast.devices.get("tpu-v6e")
        assert verdict.mfu == flops.mfu(verdict.step_seconds, 1024, chip)
        # Measured steps take longer than the ideal one.
        assert verdict.step_seconds < 4.9

    def test_layer_inputs_along_the_model_axis(self) -> None:
        effective = on(decoder(), data=2, model=4)
        size = effective.memory().layer_input_bytes
        text = f"{3 * size // 4:,} bytes less if the sequence were"
        assert any(text in statement for statement in effective.verdict("tpu-v5e").statements)

    def test_other_devices(self, large: Config) -> None:
        effective = large.select("tpu-v5litepod-256-4")
        assert effective.verdict("tpu-v6e").status == "fits"
        small = hlofast.devices.get("tpu-v6e").replace(hbm_usable_bytes=8e9)
        assert effective.verdict(small).status == "does not fit"
        with pytest.raises(hlofast.devices.UnknownDeviceError):
            effective.verdict("tpu-v99")
        assert on(decoder(), fsdp=2).verdict().status == "unknown"


class TestCommand:
    """`hlofast config` shows what is implied."""

    PATH = FIXTURES / "configs" / "decoder_70b.txt"

    def test_json_is_the_python_objects(self, large: Config) -> None:
        (printed,) = document("config", self.PATH, "--instance", "tpu-v6e-256-8")["configs"]
        effective = large.select("tpu-v6e-256-8")
        implied = printed["selections"][0]["implied"]
        verdict, memory, flops = effective.verdict(), effective.memory(), effective.flops()
        assert printed["parameters"] == implied["parameters"] == 68_989_231_104
        assert implied["status"] == verdict.status == "fits"
        assert implied["state_bytes"] == memory.state_bytes
        assert implied["hbm_lower_bound"] == memory.hbm_lower_bound
        assert implied["expected_peak_bytes"] == memory.expected_peak_bytes
        assert implied["relaxed_peak_bytes"] == memory.relaxed_peak_bytes
        assert implied["memory"] == memory.table.to_pylist()
        assert implied["replicated"] == memory.replicated.to_pylist()
        assert implied["flops"]["executed"] == flops.executed
        assert implied["traffic"] == effective.traffic().table.to_pylist()
        assert implied["gathered_bytes"] == effective.traffic().gathered_bytes
        assert implied["step_seconds"] == verdict.step_seconds and implied["mfu"] == verdict.mfu
        assert implied["sequences_per_device"] == 0.5
        assert implied["statements"] == list(verdict.statements)

    def test_one_instance_for_people(self) -> None:
        done = hlofast_command("config", self.PATH, "--instance", "tpu-v5litepod-256-4")
        assert done.returncode == 0 and done.stderr == ""
        for shown in (
            "parameters  68,989,231,104",
            "verdict        does not fit, by ",
            "state          9,666,920,448 B",
            "host memory    49,660,559,360 B",
            "gathered       273,804,165,120 B",
            "note: decoder/emb/token_emb/weight is not divided along fsdp: 3,221,225,472 bytes",
        ):
            assert shown in done.stdout, shown

    def test_all_rules_for_people(self) -> None:
        done = hlofast_command("config", self.PATH)
        lines = done.stdout.splitlines()
        start = lines.index("What they imply, on one device")
        assert lines[start + 1].split()[:6] == ["rule", "instance", "state", "bound", "peak", "of"]
        row = next(line for line in lines[start:] if "tpu-v5litepod-256-4" in line)
        assert "17.00 GiB" in row and "15.75 GiB" in row and "does not fit" in row
        assert any("1,024 sequences do not divide by 2,048 shards" in line for line in lines)

    def test_what_is_not_known(self, tmp_path: Path) -> None:
        path = tmp_path / "other.txt"
        path.write_text(decoder().with_value(f"{LAYER}.klass", "my.Layer").to_text())
        (printed,) = document("config", path, "--instance", "tpu-v5e-8")["configs"]
        implied = printed["selections"][0]["implied"]
        assert printed["parameters"] is None and implied["status"] == "unknown"
        assert implied["unmodelled"][0]["path"] == LAYER
        assert {row["bytes"] for row in implied["memory"]} == {None}
        done = hlofast_command("config", path, "--instance", "tpu-v5e-8")
        assert f"note: not modelled: {LAYER}: my.Layer" in done.stdout


class TestHostile:
    @settings(max_examples=150)
    @given(st.data())
    def test_any_value_anywhere(self, data: st.DataObject) -> None:
        config = decoder(
            rules=decoder_configs.large_rules(),
            stack=data.draw(st.sampled_from(["repeated", "stacked"])),
        )
        leaves = [path for path, _ in config.leaves() if not path.startswith("mesh_rules")]
        for path in data.draw(st.lists(st.sampled_from(leaves), min_size=1, max_size=4)):
            value = data.draw(
                st.none()
                | st.booleans()
                | st.integers(-(2**70), 2**70)
                | st.floats()
                | st.sampled_from(
                    ["", "model", "fsdp", "(", ".*" * 40, "axlearn.common.layers.Linear"]
                )
                | st.just((1, 2))
            )
            if path in config:
                config = config.with_value(path, value)
        count = config.parameter_count()
        assert count is None or count >= 0
        effective = config.select("tpu-v5p-64")
        assert isinstance(effective.memory(), StepMemory)
        assert repr(effective.verdict()) and repr(effective.traffic()) and repr(effective.flops())
        assert len(effective.parameters()) == len(config.parameters())

    def test_sizes_beyond_any_machine(self) -> None:
        config = decoder(stack="stacked").with_value("model.decoder.transformer.num_layers", 2**39)
        assert config.parameter_count() is not None
        assert on(config, fsdp=4).memory().hbm_lower_bound > 2**56
        assert decoder().with_value("model.decoder.dim", 2**41).parameter_count() is None
        assert decoder().with_value("model.decoder.dim", -8).parameter_count() is None
        assert decoder().with_value("model.decoder.dim", True).parameter_count() is None
