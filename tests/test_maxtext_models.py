"""Models of MaxText: parameters against published counts, weights of compiled runs, logged FLOPs."""

import pytest

from hlofast import config
from maxtext_files import newest

PUBLISHED = {
    # Elements of the safetensors files of the model's repository, as its card shows them, except:
    # [K] Keras Hub's preset; [R] elements counted in the files without scales (the card adds them).
    # The files hold 64 rotary frequencies per layer, which are not parameters.
    "llama2-7b": (6_738_417_664, "meta-llama/Llama-2-7b-hf", -32 * 64),
    "llama2-13b": (13_015_866_880, "meta-llama/Llama-2-13b-hf", -40 * 64),
    "llama2-70b": (68_976_653_312, "meta-llama/Llama-2-70b-hf", -80 * 64),
    "llama3-8b": (8_030_261_248, "meta-llama/Meta-Llama-3-8B", 0),
    "llama3-70b": (70_553_706_496, "meta-llama/Meta-Llama-3-70B", 0),
    "llama3.1-8b": (8_030_261_248, "meta-llama/Llama-3.1-8B", 0),
    "llama3.1-405b": (405_853_388_800, "meta-llama/Llama-3.1-405B", 0),
    "llama3.3-70b": (70_553_706_496, "meta-llama/Llama-3.3-70B-Instruct", 0),
    "mistral-7b": (7_241_732_096, "mistralai/Mistral-7B-v0.1", 0),
    "mixtral-8x7b": (46_702_792_704, "mistralai/Mixtral-8x7B-v0.1", 0),
    "mixtral-8x22b": (140_630_071_296, "mistralai/Mixtral-8x22B-Instruct-v0.1", 0),
    # MaxText pads the vocabulary of Gemma 1 and 2 by 128 rows, from 256,000.
    "gemma-2b": (2_506_172_416, "google/gemma-2b", 128 * 2048),
    "gemma-7b": (8_537_680_896, "google/gemma-7b", 128 * 3072),
    "gemma2-2b": (2_614_341_888, "google/gemma-2-2b", 128 * 2304),
    "gemma2-9b": (9_241_705_984, "google/gemma-2-9b", 128 * 3584),
    "gemma2-27b": (27_227_128_320, "google/gemma-2-27b", 128 * 4608),
    # Without the vision tower.
    "gemma3-4b": (3_880_099_328, "[K] gemma3_4b_text", 0),
    "gemma3-12b": (11_765_788_416, "[K] gemma3_12b_text", 0),
    "gemma3-27b": (27_009_002_240, "[K] gemma3_27b_text", 0),
    # The files of the smallest hold the tied embedding twice: 151,936 · 1,024 elements.
    "qwen3-0.6b": (751_632_384, "Qwen/Qwen3-0.6B", -151_936 * 1024),
    "qwen3-4b": (4_022_468_096, "Qwen/Qwen3-4B", 0),
    "qwen3-8b": (8_190_735_360, "Qwen/Qwen3-8B", 0),
    "qwen3-14b": (14_768_307_200, "Qwen/Qwen3-14B", 0),
    "qwen3-32b": (32_762_123_264, "Qwen/Qwen3-32B", 0),
    "qwen3-30b-a3b": (30_532_122_624, "Qwen/Qwen3-30B-A3B", 0),
    "qwen3-235b-a22b": (235_093_634_560, "Qwen/Qwen3-235B-A22B", 0),
    "qwen3-480b-a35b": (480_154_875_392, "Qwen/Qwen3-Coder-480B-A35B-Instruct", 0),
    "deepseek2-16b": (15_706_484_224, "deepseek-ai/DeepSeek-V2-Lite", 0),
    "deepseek2-236b": (235_741_434_880, "deepseek-ai/DeepSeek-V2", 0),
    # Without the layer that predicts further tokens.
    "deepseek3-671b": (671_026_419_200, "[R] deepseek-ai/DeepSeek-V3", 0),
    "kimi-k2-1t": (1_026_408_232_448, "[R] moonshotai/Kimi-K2-Instruct", 0),
    "gpt-oss-20b": (20_914_757_184, "openai/gpt-oss-20b", 0),
    "gpt-oss-120b": (116_829_156_672, "openai/gpt-oss-120b", 0),
}
"""Published parameters, where, and how many MaxText's own model has more."""

LOGGED = {
    # TFLOPs of matmuls with weights and of attention at 3 sequences of 8,192 tokens per device (GPT-3:
    # 1,024), from the formulas of MaxText's maxtext_utils.py at commit 020763fe2b7f, evaluated apart
    # from hlofast.
    "llama2-7b": (974.253201555456, 158.329674399744),
    "llama2-70b": (10132.17144864768, 791.64837199872),
    "llama3.1-8b": (1106.606913748992, 158.329674399744),
    "llama3.1-405b": (59535.04995075687, 2493.692371795968),
    "mistral-7b": (1048.470236430336, 158.329674399744),
    "mixtral-8x7b": (1879.855645851648, 158.329674399744),
    "mixtral-8x22b": (5744.804373725184, 415.615395299328),
    "gemma-7b": (1258.964436123648, 138.538465099776),
    "gemma2-2b": (385.50821142528, 56.281251446784),
    "gemma2-27b": (4014.764703350784, 199.149043580928),
    "gemma3-4b": (572.0896438272, 29.18430277632),
    "gemma3-27b": (3982.439705739264, 109.77936408576),
    "qwen3-0.6b": (87.881473327104, 69.269232549888),
    "qwen3-32b": (4716.16400130048, 633.318697598976),
    "qwen3-30b-a3b": (448.510549819392, 237.494511599616),
    "qwen3-235b-a22b": (3180.277253799936, 930.186837098496),
    "deepseek2-16b": (361.460152664064, 83.49416423424),
    "deepseek3-671b": (5400.516574052352, 1509.07970912256),
    "kimi-k2-1t": (4672.300574048256, 754.53985456128),
    "gpt-oss-20b": (531.8947897344, 61.214558257152),
    "gpt-oss-120b": (756.61150519296, 91.821837385728),
    "gpt3-22b": (404.482840068096, 5.566277615616),
    "gpt3-175b": (25740.55504871424, 1424.967069597696),
}


def run(*overrides):
    return config.loads("", path="defaults.yml", overrides=overrides)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("scan", ["true", "false"])
def test_parameters_are_those_that_are_published(name, scan):
    published, _, more = PUBLISHED[name]
    cfg = run(f"model_name={name}", f"scan_layers={scan}")
    assert cfg.parameter_count() == published + more
    assert sum(cfg.parameters().values("elements")) == published + more


@pytest.mark.parametrize("name", LOGGED)
def test_logged_flops_are_those_of_maxtext_to_the_last_digit(name):
    length = () if name == "gpt3-22b" else ("max_target_length=8192",)
    own = run(f"model_name={name}", "per_device_batch_size=3", *length).logged_flops()
    assert (own.learnable_weight, own.attention) == LOGGED[name]
    assert own.total == sum(LOGGED[name])


BEFORE = {
    "gemma2-2b": 48.241072668672,
    "gemma2-27b": 170.699180212224,
    "gemma3-4b": 21.337397526528,
    "gemma3-27b": 81.638738362368,
    "gpt-oss-20b": 60.30134083584,
    "gpt-oss-120b": 90.45201125376,
}
"""Attention that 0.1.0 to 0.2.1 log: half of all pairs of a token and a window."""


@pytest.mark.parametrize("name", BEFORE)
def test_earlier_versions_count_windows_otherwise(name, tmp_path):
    """A base.yml tells the version: `global_head_dim` came with the later count, in 0.2.2."""
    base = newest(tmp_path)
    given = [f"model_name={name}", "per_device_batch_size=3", "max_target_length=8192"]
    later = config.load(base, overrides=given).logged_flops()
    assert (later.learnable_weight, later.attention) == LOGGED[name]
    lines = base.read_text().splitlines(keepends=True)
    base.write_text("".join(own for own in lines if not own.startswith("global_head_dim")))
    before = config.load(base, overrides=given).logged_flops()
    assert (before.learnable_weight, before.attention) == (LOGGED[name][0], BEFORE[name])


INDEXED = ("model_name=deepseek3-671b", "use_indexer=true")
ENGRAM = {
    "engram_layers": [1, 4], "engram_max_ngram_size": 3, "engram_num_heads": 8,
    "engram_head_dim": 1280, "engram_kernel_size": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "total", "weights", "attention"),
    [
        # Sequences that the indexer leaves whole.
        (INDEXED, 5777.786501332992, 5400.516574052352, 377.26992728064),
        (
            (*INDEXED, "max_target_length=8192"),
            25961.891893346303, 22104.30688690176, 3857.585006444544,
        ),
        (
            ("model_name=deepseek3-671b", *(f"{key}={value}" for key, value in ENGRAM.items())),
            5864.3836116664315, 5487.1115704565755, 377.272041209856,
        ),
        (
            ("model_name=llama3.1-8b", "share_kv_projections=true"),
            1126.39812304896, 1086.815704449024, 39.582418599936,
        ),
    ],
)  # fmt: skip
def test_logged_flops_of_parts_of_0_2_5(tmp_path, given, total, weights, attention):
    """What `calculate_tflops_training_per_device` of the wheel 0.2.5 returns for these runs."""
    base = newest(tmp_path, **dict.fromkeys(ENGRAM, 0) | {"engram_layers": []})
    own = config.load(base, overrides=given).logged_flops()
    assert (own.total, own.learnable_weight, own.attention) == (total, weights, attention)


@pytest.mark.parametrize("block", ["deepseek4", "gemma4", "qwen3_5", "llama4", "mine"])
def test_no_log_of_blocks_with_another_formula(block):
    with pytest.raises(ValueError, match=f"logs for {block} are not modelled"):
        run(f"decoder_block={block}").logged_flops()


@pytest.mark.parametrize("name", PUBLISHED)
def test_matmuls_of_the_parts_add_up_to_the_log(name):
    cfg = run(f"model_name={name}", "per_device_batch_size=2")
    counted = cfg.select("v5e-256").flops().model / 256
    assert counted == pytest.approx(cfg.logged_flops().total * 1e12, rel=1e-12)


class TestRunsOfMaxText:
    """Two runs that MaxText compiled ahead of time for v5e-256 and v5p-256, and what it printed."""

    LARGE = ("per_device_batch_size=2", "global_parameter_scale=64", "attention=flash")
    WIDE = (
        "per_device_batch_size=1", "global_parameter_scale=128", "ici_tensor_parallelism=8",
        "remat_policy=minimal", "attention=flash",
    )  # fmt: skip

    def test_its_log(self):
        own = run(*self.LARGE).logged_flops()
        printed = (1563.3509158748159, 1536.962636808192, 26.388279066624)
        assert (own.total, own.learnable_weight, own.attention) == printed
        own = run(*self.WIDE).logged_flops()
        printed = (1560.1296904028159, 1533.741411336192, 26.388279066624)
        assert (own.total, own.learnable_weight, own.attention) == printed

    def test_before_the_change_the_whole_square_counts(self):
        before, after = (run(*self.LARGE).logged_flops(causal=own) for own in (False, True))
        assert before.attention == 2 * after.attention
        assert before.learnable_weight == after.learnable_weight

    def test_its_weights(self):
        """Names, shapes and shards of the weights of the program."""
        rows = run(*self.WIDE).select("v5p-256").parameters()
        shapes = {row["path"]: row["shape"] for row in rows}
        assert shapes == {
            "token_embedder/embedding": "32000,8192",
            "decoder/decoder_norm/scale": "8192",
            "decoder/logits_dense/kernel": "8192,32000",
            "decoder/layers/pre_self_attention_layer_norm/scale": "8192,64",
            "decoder/layers/post_self_attention_layer_norm/scale": "8192,64",
            "decoder/layers/self_attention/query/kernel": "8192,64,128,128",
            "decoder/layers/self_attention/key/kernel": "8192,64,128,128",
            "decoder/layers/self_attention/value/kernel": "8192,64,128,128",
            "decoder/layers/self_attention/out/kernel": "128,64,128,8192",
            "decoder/layers/mlp/wi_0/kernel": "8192,64,57344",
            "decoder/layers/mlp/wi_1/kernel": "8192,64,57344",
            "decoder/layers/mlp/wo/kernel": "57344,64,8192",
        }
        held = {row["path"].rpartition("layers/")[2]: row["elements_per_device"] for row in rows}
        assert held["token_embedder/embedding"] == 4000 * 512
        assert held["pre_self_attention_layer_norm/scale"] == 1024 * 64
        assert held["self_attention/query/kernel"] == 512 * 64 * 16 * 128
        assert held["self_attention/out/kernel"] == 16 * 64 * 128 * 512
        assert held["mlp/wo/kernel"] == 7168 * 64 * 512

    @pytest.mark.parametrize(
        ("overrides", "instance", "donated"),
        [(LARGE, "v5e-256", 2_956_523_520), (WIDE, "v5p-256", 11_727_710_208)],
    )
    def test_its_state(self, overrides, instance, donated):
        """The donated bytes of the program; random keys and counters, 30 kB, are not modelled."""
        state = run(*overrides).select(instance).memory().state_bytes
        assert 0 <= donated - state <= 32 << 10


class TestWeights:
    def paths(self, *overrides):
        return {row["path"]: row for row in run(*overrides).parameters()}

    def test_layers_that_are_not_scanned_have_an_array_each(self):
        rows = self.paths("model_name=llama2-7b", "scan_layers=false")
        row = rows["decoder/layers_*/mlp/wi_0/kernel"]
        assert (row["shape"], row["copies"]) == ("4096,11008", 32)

    def test_gemma_3_scans_cycles_of_six_layers_and_the_rest(self):
        rows = self.paths("model_name=gemma3-4b")
        assert rows["decoder/layers/layers_5/mlp/wo/kernel"]["shape"] == "10240,5,2560"
        assert rows["decoder/layers_remainder/layers_3/mlp/wo/kernel"]["shape"] == "10240,2560"
        assert "decoder/layers_remainder/layers_4/mlp/wo/kernel" not in rows

    def test_deepseek_has_dense_and_routed_layers(self):
        rows = self.paths("model_name=deepseek3-671b")
        assert rows["decoder/dense_layers/mlp/wi_0/kernel"]["shape"] == "7168,3,18432"
        experts = "decoder/moe_layers/DeepSeekMoeBlock_0/MoeBlock_0"
        assert rows[f"{experts}/wi_0"]["shape"] == "256,58,7168,2048"
        assert rows[f"{experts}/gate/bias"]["shape"] == "256,58"
        assert rows["decoder/moe_layers/self_attention/wkv_b/kernel"]["shape"] == "512,58,128,256"

    def test_experts_lie_along_their_own_axis(self):
        cfg = run("model_name=mixtral-8x7b", "ici_expert_parallelism=8", "ici_fsdp_parallelism=4")
        rows = {row["path"]: row for row in cfg.select("v5e-32").parameters()}
        row = rows["decoder/layers/MoeBlock_0/wi_0"]
        assert row["elements_per_device"] * 32 == row["elements"]

    def test_fused_projections_have_as_many_weights(self):
        fused = run("fused_qkv=true", "fused_mlp=true")
        assert fused.parameter_count() == run().parameter_count()
        paths = fused.parameters().values("path")
        assert "decoder/layers/self_attention/qkv_proj/kernel" in paths
        assert "decoder/layers/mlp/wi/kernel" in paths

    def test_a_block_that_is_not_modelled_is_named(self):
        for block in ("llama4", "qwen3_next", "olmo3", "mine"):
            cfg = run(f"decoder_block={block}")
            assert cfg.parameter_count() is None
            assert f"decoder_block {block!r} is not modelled" in cfg.unmodelled().values("why")[0]

    @pytest.mark.parametrize("key", ["use_multimodal=true", "mtp_num_layers=1", "moba=true"])
    def test_a_part_that_is_not_modelled_is_named(self, key):
        cfg = run(key)
        assert cfg.parameter_count() is None
        assert key.partition("=")[0] in cfg.unmodelled().values("why")[0]
