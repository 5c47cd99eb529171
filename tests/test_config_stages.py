"""Stages of MaxText's pipelines: state, kept values, peaks; what is refused, and how."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from hlofast import config
from test_benches import bench_module

STAGES = (
    "model_name=llama2-7b", "per_device_batch_size=4", "max_target_length=2048",
    "attention=flash", "remat_policy=full", "ici_pipeline_parallelism=4",
    "num_layers_per_pipeline_stage=8", "num_pipeline_microbatches=8",
)  # fmt: skip


def run(*overrides: str, instance: str = "v5p-32") -> config.EffectiveConfig:
    given = [*STAGES, *overrides]
    return config.loads("", path="run.yml", overrides=given).select(instance)


@cache
def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bench_module("config_stages").rows()
    return found


class TestCompiled:
    @pytest.mark.parametrize("is_read", [True, False])
    def test_the_peak(self, is_read: bool) -> None:
        own = [row for row in rows() if row["is_read"] == is_read and row["modelled"]]
        errors = {row["name"]: row["error"] for row in own}
        assert len(errors) >= 4, errors
        assert max(map(abs, errors.values())) <= 0.06, errors

    def test_the_state(self) -> None:
        states = [row["state"] for row in rows() if row["state"] is not None]
        assert len(states) >= 14
        assert max(map(abs, states)) < 0.001

    def test_whether_steps_fit(self) -> None:
        assert [row["name"] for row in rows() if row["modelled"] and not row["is_right"]] == []

    def test_the_step_has_no_figure(self) -> None:
        assert all(any("the step" in why for why in row["gaps"]) for row in rows() if row["xla"])


class TestMemory:
    def test_every_iteration_keeps_the_inputs_of_its_layers(self) -> None:
        # 8 micro-batches of 8 sequences, 3 further iterations; 4 shards of a micro-batch.
        memory = run().memory()
        assert memory.layer_input_bytes == 11 * 8 * 2 * 2048 * 4096 * 2
        circular = run("num_layers_per_pipeline_stage=2").memory()
        assert circular.layer_input_bytes == (8 * 4 + 3) * 2 * 2 * 2048 * 4096 * 2

    def test_a_policy_saves_values_of_every_iteration(self) -> None:
        memory = run("remat_policy=save_out_proj").memory()
        assert memory.saved_bytes == memory.layer_input_bytes
        kept = [row["total_bytes"] for row in memory.activations if row["fate"] == "saved"]
        assert sum(kept) == memory.saved_bytes

    def test_stages_stack_weights_in_any_case(self) -> None:
        one_by_one = run("scan_layers=false").memory()
        assert one_by_one.state_bytes == run().memory().state_bytes

    def test_the_bubble_is_told(self) -> None:
        told = run().verdict().statements
        assert "4 stages run 11 iterations of 8 layers, 3 of them (27%) on nothing" in told
        assert not any("not sharded along stage: sharding the sequence" in text for text in told)


class TestRefused:
    def test_the_step_and_its_traffic(self) -> None:
        verdict = run().verdict()
        assert verdict.expected_peak_bytes is not None and verdict.status == "fits"
        assert verdict.step_seconds is None and verdict.traffic.total() is None
        assert {row["tensor"].partition("/")[2] for row in verdict.traffic.table} == {
            "embedding", "logits_dense/kernel", "decoder_norm/scale",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ("pipeline_fsdp_ag_once=true", "pipeline_fsdp_ag_once=True"),
            ("pipeline_delay_activation_forwarding=true", "pipeline_delay_activation_forwarding"),
            ("remat_policy=minimal_offloaded", "the policy minimal_offloaded"),
            ("ici_tensor_parallelism=2", "stages combined with tensor"),
            ("pipeline_parallel_layers=16", "layers outside of the pipeline"),
            ("model_name=gemma2-9b", "the decoder block gemma2"),
            ("gradient_accumulation_steps=2", "gradient_accumulation_steps=2"),
            ("per_device_batch_size=1", "16 sequences do not divide into 32 parts"),
        ],
    )
    def test_what_no_compiled_step_has(self, given: str, why: str) -> None:
        verdict = run(given).verdict()
        assert any(why in text and "not modelled" in text for _, text in verdict.gaps)
        assert verdict.expected_peak_bytes is None and verdict.step_seconds is None
        assert verdict.memory.state_bytes is not None

    @pytest.mark.parametrize(
        ("given", "why"),
        [
            ("num_layers_per_pipeline_stage=3", "4 stages of 3 layers do not divide 32 layers"),
            ("num_pipeline_repeats=3", "num_pipeline_repeats is 3, and 32 layers make"),
            ("num_pipeline_microbatches=6", "4 stages do not divide 6 micro-batches"),
        ],
    )
    def test_what_maxtext_cannot_run(self, given: str, why: str) -> None:
        effective = run(given)
        assert any(f"MaxText fails here: {why}" in text for _, text in effective.verdict().gaps)
        plan = config.loads("", path="run.yml", overrides=[*STAGES, given]).plan("v5p-32")
        (note,) = plan.like({"own": 1}).notes
        assert note.text.startswith("it has no figures: stage is not modelled")

    def test_the_own_choice_has_a_peak_and_no_step(self) -> None:
        plan = config.loads("", path="run.yml", overrides=STAGES).plan("v5p-32")
        liked = plan.like({"own": 1})
        facts = {fact.name: fact.value for fact in liked.facts}
        of_plan = {fact.name: fact.value for fact in plan.facts}
        assert facts["fits"] and of_plan["own_status"] == "fits"
        assert facts["peak_bytes"] == run().verdict().expected_peak_bytes
        assert facts["step_seconds"] is None
        assert liked.is_fitting
        (note,) = liked.notes
        assert note.text.startswith("only its memory is modelled: stage is not modelled")

    def test_plans_have_no_stages(self) -> None:
        plan = config.loads("", path="run.yml", overrides=STAGES).plan("v5p-32")
        why = {row["axis"]: row["why"] for row in plan.tables["unused"]}
        assert "compiled steps" in why["stage"]
        assert plan.best is not None and "stage" not in plan.best["mesh"]


def test_check_compares_no_layers_of_stages() -> None:
    """Compiled programs name, stack and repeat the layers of stages in another way."""
    module = hlofast.load(FIXTURES / "maxtext_dumps" / "8b_stages.txt.xz")
    given = (
        "model_name=llama3.1-8b", "per_device_batch_size=2", "max_target_length=4096",
        "num_layers_per_pipeline_stage=1", "num_pipeline_microbatches=4",
    )  # fmt: skip
    check = hlofast.check(run(*given, instance="v5p-64"), module)
    assert [own.code for own in check.found() if own.severity in ("error", "warning")] == []
    other = ("ici_data_parallelism=8", "ici_fsdp_parallelism=1")
    wrong = hlofast.check(run(*given, *other, instance="v5p-64"), module)
    assert any(own.severity == "error" for own in wrong.found())
