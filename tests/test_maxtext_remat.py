"""Tensors of MaxText's checkpoint policy `custom`, by version: `moe_mlpwi_0` and the others."""

import pytest

from hlofast import config
from maxtext_files import newest
from test_cli import document

DEEPSEEK = ("model_name=deepseek2-16b", "per_device_batch_size=4", "remat_policy=custom")
MIXTRAL = ("model_name=mixtral-8x7b", "per_device_batch_size=1", "remat_policy=custom")
TOKENS = 4 * 2048
"""Tokens of a device."""


@pytest.fixture
def base(tmp_path):
    return newest(tmp_path)


def on(base, *given):
    return config.loads("", path="run.yml", overrides=given, base=base).select("v5p-64")


def saved(base, *given):
    return on(base, *given).memory().saved_bytes


class TestExperts:
    @pytest.mark.parametrize("name", ["mlpwi_0", "mlpwo"])
    def test_both_names_tag_one_value(self, base, name):
        one = saved(base, *MIXTRAL, f"{name}=device")
        assert one == saved(base, *MIXTRAL, f"moe_{name}=device") != 0
        assert one == saved(base, *MIXTRAL, f"{name}=device", f"moe_{name}=device")

    def test_dense_layers_have_the_former_names_alone(self, base):
        experts = saved(base, *DEEPSEEK, "moe_mlpwi_0=device")
        # 26 layers of experts: 6 rows of 1,408 elements per token.
        assert experts == 26 * TOKENS * 6 * 1408 * 2
        # Shared experts of 26 layers, and one dense layer, have no name of experts.
        rest = 26 * TOKENS * 2 * 1408 * 2 + TOKENS * 10944 * 2
        assert saved(base, *DEEPSEEK, "mlpwi_0=device") == experts + rest

    def test_grouped_matmuls_name_the_second_result_once(self, base):
        assert saved(base, *MIXTRAL, "mlpwi_1=device") == 0
        dense = ("sparse_matmul=false", "capacity_factor=1.25")
        both = [saved(base, *MIXTRAL, *dense, f"{name}mlpwi_1=device") for name in ("", "moe_")]
        assert both[0] == both[1] != 0

    def test_in_0_2_2_their_names_are_the_only_ones(self, base):
        lines = base.read_text().splitlines(keepends=True)
        base.write_text("".join(own for own in lines if "first_num_hash_layers" not in own))
        assert saved(base, *MIXTRAL, "mlpwi_0=device", "mlpwo=device") == 0
        assert saved(base, *MIXTRAL, "moe_mlpwi_0=device") != 0

    def test_a_run_without_a_base_takes_them_too(self):
        assert saved(None, *MIXTRAL, "moe_mlpwi_0=device") == saved(
            None, *MIXTRAL, "mlpwi_0=device"
        )

    def test_two_fates_of_one_value_are_not_guessed(self, base):
        effective = on(base, *MIXTRAL, "mlpwi_0=device", "moe_mlpwi_0=offload")
        assert effective.memory().saved_bytes is None
        assert any("mlpwi_0 is device and moe_mlpwi_0 is offload" in why
                   for _, why in effective.memory().gaps)  # fmt: skip
        dense = on(base, "model_name=llama3.1-8b", "remat_policy=custom", "mlpwi_0=device",
                   "moe_mlpwi_0=offload")  # fmt: skip
        assert dense.memory().saved_bytes is not None


class TestLatentAttention:
    def test_the_first_projections_can_be_kept(self, base):
        own = saved(base, *DEEPSEEK, "kv_wa_proj=device")
        assert own == 27 * TOKENS * (512 + 64) * 2
        # This model projects queries at once.
        assert saved(base, *DEEPSEEK, "query_wa_proj=device") == 0
        large = ("model_name=deepseek3-671b", "remat_policy=custom", "per_device_batch_size=4")
        assert saved(base, *large, "query_wa_proj=device") == 61 * TOKENS * 1536 * 2

    def test_kept_it_is_not_computed_twice(self, base):
        flops = [
            on(base, *DEEPSEEK, *more).flops().recomputed_matmul
            for more in ((), ("kv_wa_proj=device",))
        ]
        assert flops[0] - flops[1] == 2 * 27 * 2048 * (512 + 64) * TOKENS * 32


class TestOthers:
    @pytest.mark.parametrize(
        "name", ["attention_out", "moe_x_sorted", "moe_routing_maps", "indexer_cutoff_threshold"]
    )
    @pytest.mark.parametrize("choice", ["device", "offload"])
    def test_values_without_a_model_are_unknown(self, base, name, choice):
        effective = on(base, *DEEPSEEK, f"{name}={choice}")
        assert effective.memory().saved_bytes is None
        assert any(f"what {name}={choice} keeps" in why for _, why in effective.memory().gaps)

    @pytest.mark.parametrize("name", ["engram", "kv_proj"])
    def test_keys_without_effect(self, base, name):
        effective = on(base, *DEEPSEEK, f"{name}=device")
        assert effective.memory().saved_bytes == 0
        assert [row["kind"] for row in effective.notes if row["path"] == name] == ["no-effect"]
        full = on(base, *DEEPSEEK[:2], f"{name}=device")
        assert name not in full.notes.values("path")

    def test_lines_of_a_plan_reset_them(self, base):
        given = (*DEEPSEEK, "moe_mlpwi_0=device", "attention_out=offload", "kv_wa_proj=offload")
        place = ("--base", base, "--instance", "v5p-16")
        plan = document("plan", *given, *place)["results"][0]
        lines = [row["code"] for row in plan["tables"]["lines"]]
        assert {"moe_mlpwi_0=remat", "attention_out=remat"} <= set(lines)
        again = config.loads("", path="run.yml", overrides=[*given, *lines], base=base)
        verdict = again.select("v5p-16").verdict()
        assert verdict.expected_peak_bytes == plan["facts"]["peak_bytes"]["value"]
