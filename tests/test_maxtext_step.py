"""A step of a MaxText run on a mesh: shardings, checkpoint policies, memory, traffic, time, refusals."""

import json

import pytest

from conftest import FIXTURES
from hlofast import config

LLAMA = ("model_name=llama2-7b", "max_target_length=4096", "per_device_batch_size=2")


def run(*overrides):
    return config.loads("", path="defaults.yml", overrides=overrides)


def mesh(effective):
    return {axis: size for axis, size in effective.mesh.shape.items() if size > 1}


def noted(effective):
    return {row["kind"]: row["text"] for row in effective.notes}


QKV = ("query_proj", "key_proj", "value_proj")
MINIMAL = (*QKV, "out_proj", "mlpwi_0", "mlpwi_1", "mlpwo")
KEPT = {
    "full": {},
    "minimal": dict.fromkeys(MINIMAL, "saved"),
    "minimal_with_context": dict.fromkeys((*MINIMAL, "context"), "saved"),
    "minimal_with_quantization": dict.fromkeys(MINIMAL, "saved"),
    "minimal_with_context_and_quantization": dict.fromkeys((*MINIMAL, "context"), "saved"),
    "minimal_flash": dict.fromkeys((*MINIMAL, "context"), "saved"),
    "save_out_proj": {"out_proj": "saved"},
    "qkv_proj_offloaded": dict.fromkeys(QKV, "offloaded"),
}
"""Checkpoint names and fates of the values that a policy keeps."""


SPLIT = ("allow_split_physical_axes=true",)


class TestMesh:
    def test_the_rest_of_a_slice_and_of_the_slices(self):
        effective = run("ici_tensor_parallelism=8").select("v5p-256-4")
        assert mesh(effective) == {"data": 4, "fsdp": 16, "tensor": 8}
        assert (effective.devices, effective.instance.slices) == (512, 4)

    def test_axes_between_slices(self):
        given = ("dcn_fsdp_parallelism=2", "dcn_data_parallelism=2", "ici_data_parallelism=2")
        effective = run(*given).select("v5e-16-4")
        assert mesh(effective) == {"data": 4, "fsdp": 16}

    def test_the_topology_of_the_config(self):
        given = ("compile_topology=v5p-128", "compile_topology_num_slices=2")
        (effective,) = run(*given).select_all()
        assert mesh(effective) == {"data": 2, "fsdp": 64}

    def test_pipeline_stages_come_first(self):
        effective = run("ici_pipeline_parallelism=4").select("v5e-16")
        assert list(effective.mesh.shape)[:2] == ["stage", "data"]

    def test_own_axes(self):
        effective = run("mesh_axes=[data, fsdp, mine]", "ici_fsdp_parallelism=-1").select("v5e-4")
        assert dict(effective.mesh.shape) == {"data": 1, "fsdp": 4, "mine": 1}

    def test_a_number_of_devices(self):
        assert mesh(run().select("v5e-256", 64)) == {"fsdp": 64}

    def test_sizes_that_do_not_fit_are_noted(self):
        effective = run("ici_fsdp_parallelism=3").select("v5e-256")
        assert effective.mesh is None and "not 256" in noted(effective)["mesh"]

    def test_a_custom_order_is_noted(self):
        sizes = ("ici_fsdp_parallelism=64", "ici_tensor_parallelism=4")
        effective = run("custom_mesh=hybrid_ring_64x4", *SPLIT, *sizes).select("v5e-256")
        assert "reorders devices" in noted(effective)["mesh"]
        assert effective.verdict().status != "unknown"

    @pytest.mark.parametrize(
        ("given", "instance", "kind", "words"),
        [
            (("custom_mesh=ring",), "v5e-256", "no-effect", "allow_split_physical_axes=true"),
            (("custom_mesh=ring", *SPLIT), "v5e-256", "fails", "known: hybrid_ring_64x4, hybrid"),
            (("custom_mesh=hybrid_ring_64x4", *SPLIT), "v5e-256", "fails", "4 and 64 devices"),
            (("custom_mesh=hybrid_ring_64x4",), "tpu-v5e-256-2", "fails", "not [256]"),
            (("quantization=int9",), "v5e-256", "fails", "did you mean int8"),
            (("gradient_accumulation_steps=0",), "v5e-256", "fails", "accumulation_steps is 0"),
            (("per_device_batch_size=-4",), "v5e-256", "fails", "per_device_batch_size is -4.0"),
            (("per_device_batch_size=nan",), "v5e-256", "fails", "per_device_batch_size is nan"),
        ],
    )
    def test_values_that_maxtext_refuses(self, given, instance, kind, words):
        effective = run(*given).select(instance)
        assert words in noted(effective)[kind]
        verdict = effective.verdict()
        if kind == "fails":
            assert (verdict.status, verdict.step_seconds) == ("unknown", None)
            # A note tells it once.
            assert not any(words in text for text in verdict.statements)

    def test_nodes_of_gpus_are_slices(self):
        assert mesh(run().select("gpu-p5.48xlarge-64")) == {"data": 8, "fsdp": 8}
        assert mesh(run("num_slices=1").select("gpu-h100-64")) == {"fsdp": 64}
        assert mesh(run("dcn_data_parallelism=4", "dcn_fsdp_parallelism=2").select("h100-64")) == {
            "data": 4,
            "fsdp": 16,
        }
        wrong = run("num_slices=2").select("gpu-h100-64")
        assert wrong.mesh is None and "each of the 8 nodes" in noted(wrong)["mesh"]

    @pytest.mark.parametrize(
        ("instance", "words"),
        [
            ("v5e-512", "a slice of tpu-v5e has at most 256 chips, not 512"),
            ("v5e-48", "slices of tpu-v5e have 32 or 64 chips, not 48"),
            ("v5p-272", "slices of tpu-v5p have 128 or 192 chips, not 136"),
            ("v5p-128", None),
            ("v5e-256", None),
        ],
    )
    def test_slices_that_do_not_exist_are_told(self, instance, words):
        assert noted(run().select(instance)).get("devices") == words

    def test_uneven_weights_are_noted(self):
        effective = run("base_emb_dim=2040").select("v5e-256")
        assert "fsdp = 256 does not divide 2,040" in noted(effective)["fails"]
        assert effective.verdict().status == "unknown"


class TestShardings:
    def sharding(self, path, *overrides):
        rows = run(*overrides).parameters()
        return {row["path"]: row["partition_spec"] for row in rows}[path]

    def test_the_first_rule_whose_axes_are_free_applies(self):
        wo = self.sharding("decoder/layers/mlp/wo/kernel")
        # `mlp` takes fsdp_transpose, so `embed` falls to the rule without it.
        assert "('fsdp', 'sequence', 'tensor_transpose', 'context', 'expert')" in wo
        assert wo.startswith("PartitionSpec(('fsdp_transpose', 'tensor', ")

    def test_rules_of_the_run_apply(self):
        rules = "logical_axis_rules=[[embed, [fsdp]], [vocab, tensor]]"
        assert self.sharding("token_embedder/embedding", rules) == "PartitionSpec('tensor', 'fsdp')"

    def test_the_rules_of_a_model_shard_its_norms(self):
        path = "decoder/decoder_norm/scale"
        assert self.sharding(path, "model_name=llama2-7b") == "PartitionSpec('fsdp',)"


class TestPolicies:
    @pytest.mark.parametrize("policy", KEPT)
    def test_values_by_name(self, policy):
        rows = run(*LLAMA, f"remat_policy={policy}").select("v5e-256").memory().activations
        kept = {row["name"]: row["fate"] for row in rows if row["fate"] != "recomputed"}
        assert kept == KEPT[policy]

    def test_a_choice_per_tensor(self):
        given = ("remat_policy=custom", "query_proj=offload", "mlpwo=device", "context=device")
        effective = run(*LLAMA, *given).select("v5e-256")
        memory = effective.memory()
        fates = {row["name"]: row["fate"] for row in memory.activations if row["name"]}
        assert (fates["query_proj"], fates["context"], fates["key_proj"]) == (
            "offloaded", "saved", "recomputed",
        )  # fmt: skip
        # 32 layers of 2 sequences of 4,096 tokens, in bfloat16; the kernel's sums are float32.
        tokens = 32 * 2 * 4096
        assert memory.offloaded_bytes == tokens * 4096 * 2
        assert memory.saved_bytes == tokens * (4096 * 2 + 32 * 2 * 4)
        assert memory.layer_input_bytes == tokens * 4096 * 2

    def test_offloaded_layer_inputs_leave_the_device(self):
        given = ("remat_policy=custom", "decoder_layer_input=offload")
        memory = run(*LLAMA, *given).select("v5e-256").memory()
        assert memory.layer_input_bytes == 0
        assert memory.host_bytes == 32 * 2 * 4096 * 4096 * 2

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (["remat_policy=mine"], "remat_policy 'mine' is not modelled; known: full"),
            (["remat_policy=custom", "mlpwo=host"], "mlpwo is 'host'"),
            (["remat_policy=custom", "decoder_layer_input=remat"], "MaxText fails here"),
        ],
    )
    def test_others_are_refused(self, given, words):
        effective = run(*LLAMA, *given).select("v5e-256")
        memory = effective.memory()
        assert memory.saved_bytes is None and memory.state_bytes is not None
        assert any(words in why for why in effective.unmodelled().values("why"))

    def test_saving_a_query_does_not_spare_the_matmul_before_its_norm(self):
        given = ("remat_policy=minimal", "max_target_length=4096")
        rows = run("model_name=qwen3-8b", *given).select("v5e-256").flops().table
        again = {row["product"].rpartition("/")[0][-5:]: row["recomputed"] for row in rows}
        assert again["query"] > 0 and again["n/key"] > 0 and again["value"] == 0

    def test_recomputed_operations(self):
        flops = {
            policy: run(*LLAMA, f"remat_policy={policy}").select("v5e-256").flops()
            for policy in ("full", "minimal", "minimal_flash")
        }
        # Under `full`, backward runs all forward matmuls but the last of the layer again.
        last = 2 * 11008 * 4096 * 32 * 2 * 4096 * 256
        head = 2 * 4096 * 32000 * 2 * 4096 * 256
        assert flops["full"].recomputed_matmul == flops["full"].matmul // 3 - last - head
        assert flops["minimal"].recomputed_matmul == 0
        assert flops["minimal"].recomputed_attention == flops["minimal"].attention // 3
        assert flops["minimal_flash"].recomputed == 0


class TestCompiledRuns:
    """Three steps that MaxText compiled ahead of time with libtpu 0.0.42, and XLA's peak."""

    LARGE = (
        "per_device_batch_size=6", "global_parameter_scale=16", "attention=flash",
        "remat_policy=full",
    )  # fmt: skip

    @pytest.mark.parametrize(
        ("given", "instance", "peak"),
        [
            (LARGE, "v5e-256", 9_280_253_440),
            (
                (*LARGE, "per_device_batch_size=2", "global_parameter_scale=64"),
                "v5e-256", 13_309_480_448,
            ),
            (
                (*LARGE, "per_device_batch_size=1", "global_parameter_scale=128",
                 "remat_policy=minimal", "ici_tensor_parallelism=8"),
                "v5p-256", 67_086_594_880,
            ),
        ],
    )  # fmt: skip
    def test_the_peak_where_memory_is_not_short(self, given, instance, peak):
        memory = run(*given).select(instance).memory()
        assert abs(memory.relaxed_peak_bytes / peak - 1) < 0.04
        assert memory.expected_peak_bytes < 1.01 * peak


STEPS = json.loads((FIXTURES / "maxtext_steps.json").read_text())


class TestCompiledStandIns:
    """Steps in plain JAX that stand in for MaxText's: `fixtures/make_maxtext_steps.py`."""

    def memory(self, step):
        given = [
            f"model_name={step['model']}", f"max_target_length={step['length']}",
            f"per_device_batch_size={step['sequences']}", "attention=flash",
            f"ici_tensor_parallelism={step['tensor']}", "remat_policy=custom",
            *(f"{name}=device" for name in step.get("saved", ())),
            *(f"{name}=offload" for name in step.get("offloaded", ())),
        ]  # fmt: skip
        return run(*given).select(step["instance"]).memory()

    @pytest.mark.parametrize("name", ["7b_full_4", "8b_tensor"])
    def test_the_peak(self, name):
        step = STEPS[name]
        memory = self.memory(step)
        # The scales of norms, which MaxText shards along fsdp, are whole here.
        assert 0 <= step["arguments"] / memory.state_bytes - 1 < 0.001
        assert memory.expected_peak_bytes < 1.02 * step["peak"]
        assert abs(memory.relaxed_peak_bytes / step["peak"] - 1) < 0.04


class TestFigures:
    def test_gathers_are_the_weights_in_the_compute_type_twice(self):
        effective = run(*LLAMA).select("v5e-256")
        traffic = effective.traffic()
        # Tables and norms are gathered for the forward pass only.
        once = 32000 * 4096 + 65 * 4096
        assert traffic.gathered_bytes == 2 * (2 * effective.parameter_count() - once)

    def test_a_window_limits_the_pairs_of_tokens(self):
        given = ("max_target_length=8192", "per_device_batch_size=1")
        flops = run("model_name=gemma3-27b", *given).select("v5e-256").flops()
        pairs = 52 * (1024 * 8192 - 1024**2 // 2) + 10 * 8192**2 // 2
        assert flops.attention == 3 * 2 * 256 * 2 * 32 * 128 * pairs
        assert flops.full_attention == 3 * 2 * 256 * 2 * 32 * 128 * 62 * 8192**2

    def test_experts_compute_the_chosen_rows(self):
        given = ("model_name=mixtral-8x7b", "max_target_length=4096", "per_device_batch_size=1")
        operations = {}
        for name, own in {
            "sparse": (),
            "dense": ("sparse_matmul=false",),
            "capacity": ("sparse_matmul=false", "capacity_factor=1.25"),
        }.items():
            rows = run(*given, *own).select("v5e-256").flops().table
            operations[name] = sum(row["forward"] for row in rows if "/w" in row["product"])
        assert operations["dense"] == 4 * operations["sparse"]
        assert operations["capacity"] * 4 == 5 * operations["sparse"]

    def test_the_optimizer_state(self):
        sizes = {}
        for given in ("opt_type=adamw", "opt_type=sgd", "mu_dtype=bfloat16"):
            sizes[given] = run(*LLAMA, given).select("v5e-256").memory()["optimizer state"]
        parameters = run(*LLAMA).select("v5e-256").memory()["parameters"]
        assert sizes == {
            "opt_type=adamw": 2 * parameters,
            "opt_type=sgd": 0,
            "mu_dtype=bfloat16": parameters + parameters // 2,
        }

    def test_accumulation_splits_the_batch(self):
        effective = run(*LLAMA, "gradient_accumulation_steps=4").select("v5e-256")
        assert effective.accumulation_steps == 4
        assert effective.flops().tokens == 4 * 2 * 256 * 4096
        plain = run(*LLAMA).select("v5e-256")
        assert effective.memory().layer_input_bytes == plain.memory().layer_input_bytes

    def test_a_verdict_has_a_step(self):
        verdict = run(*LLAMA).select("v5e-256").verdict()
        assert verdict.status == "fits"
        assert verdict.step_seconds > verdict.compute_seconds > 0

    def test_layer_inputs_lie_along_the_tensor_axis(self):
        effective = run(*LLAMA, "ici_tensor_parallelism=4").select("v5e-256")
        assert effective.memory().layer_input_bytes == 32 * 8 * 4096 * 4096 * 2 // 4
        assert not [text for text in effective.verdict().statements if "layer inputs" in text]

    def test_quantised_matmuls_have_no_step(self):
        verdict = run(*LLAMA, "quantization=int8").select("v5e-256").verdict()
        assert verdict.step_seconds is None
        assert any("'int8'" in why for _, why in verdict.gaps)

    @pytest.mark.parametrize(
        ("given", "unknown"),
        [
            (["ici_sequence_parallelism=4"], "activations along mesh axis 'sequence'"),
            (["ici_pipeline_parallelism=4"], "stages combined with fsdp = 64"),
            (["opt_type=muon"], "the state of 'muon'"),
            (["optimizer_memory_host_offload=true"], "optimizer_memory_host_offload"),
            (["dtype=float8"], "dtype 'float8' is not modelled"),
        ],
    )
    def test_what_is_not_modelled_is_named_and_leaves_the_peak_unknown(self, given, unknown):
        effective = run(*LLAMA, *given).select("v5e-256")
        assert effective.memory().expected_peak_bytes is None
        assert any(unknown in why for _, why in effective.verdict().gaps)


class TestMasksOfARouter:
    """Einsums of dispatch and combine (`moe.py` of MaxText 0.2.5, `dense_matmul`)."""

    GIVEN = (
        "model_name=mixtral-8x7b", "max_target_length=4096", "per_device_batch_size=12",
        "sparse_matmul=false", "capacity_factor=1.25", "remat_policy=full",
    )  # fmt: skip

    def test_executed_operations_count_them_and_model_operations_do_not(self):
        flops = run(*self.GIVEN).select("v6e-256").flops()
        # Slots of all experts: 8 · 1.25 · 4096 · 2 / 8. Each of 32 layers runs dispatch forward,
        # again and for its rows, and combine forward, for its rows and for its weights.
        each = 2 * 4096 * 10_240 * flops.tokens * 32
        assert flops.routing == 6 * each
        assert flops.executed == flops.model + flops.recomputed + flops.routing
        rows = {row["product"]: row for row in flops.table if row["product"] in _EINSUMS}
        assert [row["forward"] for row in rows.values()] == [each, each]
        assert [row["backward"] for row in rows.values()] == [each, 2 * each]
        assert [row["recomputed"] for row in rows.values()] == [each, 0]
        sums = sum(
            row["forward"] + row["backward"] + row["recomputed"]
            for row in flops.table
            if row["product"] != "attention"
        )
        assert sums == flops.matmul + flops.recomputed_matmul + flops.routing

    def test_a_compiled_layer(self):
        """XLA counts 429.6 GFLOP per device of v5e 2x2 for S=2048, M=2048, E=128, F=768, K=8."""
        dense = 2 * 3 * 2048 * 768 * 128 * 128
        assert 2 * 2 * 2048 * 2048 * 128 * 128 + dense == pytest.approx(429.6e9, rel=1e-3)
        given = ("sparse_matmul=false", "capacity_factor=1", "max_target_length=2048")
        flops = run("model_name=qwen3-30b-a3b", *given).select("v5e-256").flops()
        found = [row["forward"] for row in flops.table if row["product"] in _EINSUMS]
        sequences, layers = flops.tokens // 2048, 48
        assert found == [2 * 2048 * 2048 * 128 * 128 * sequences * layers] * 2

    def test_grouped_matmuls_have_none(self):
        for own in ((), ("sparse_matmul=false",)):
            flops = run("model_name=mixtral-8x7b", *own).select("v5e-256").flops()
            assert flops.routing == 0

    def test_the_time_leaves_them_out_with_a_note_or_is_unknown(self):
        own = run(*self.GIVEN).select("v6e-256")
        told = [row["text"] for row in own.notes if row["path"] == "capacity_factor"]
        assert len(told) == 1 and "add 14% to those by weights" in told[0]
        verdict = own.verdict()
        assert verdict.step_seconds > verdict.compute_seconds
        wide = ("model_name=qwen3-30b-a3b", "sparse_matmul=false", "capacity_factor=1")
        verdict = run(*wide).select("v5e-256").verdict()
        assert verdict.step_seconds is None and verdict.expected_peak_bytes is not None
        assert any("published step tells their time" in why for _, why in verdict.gaps)


_EINSUMS = ("dispatch", "combine")
