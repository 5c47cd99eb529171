"""Peaks that configs imply, against steps of MaxText compiled for TPUs (`benches/config_peaks.py`)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from hlofast import config
from hlofast.config._plan import MARGIN
from test_benches import bench_module

if TYPE_CHECKING:
    from collections.abc import Callable


@cache
def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bench_module("config_peaks").maxtext_rows()
    return found


def known(row: dict[str, Any]) -> bool:
    return bool(row["xla"])


HALVES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "fitted": lambda row: row["is_fitted"],
    "held out": lambda row: not row["is_fitted"],
}


@pytest.mark.parametrize("half", HALVES)
class TestAccuracy:
    def own(self, half: str) -> list[dict[str, Any]]:
        return [row for row in rows() if HALVES[half](row)]

    def test_the_peak(self, half: str) -> None:
        errors = {row["name"]: row["error"] for row in self.own(half) if known(row)}
        assert errors and None not in errors.values()
        near = [name for name, error in errors.items() if abs(error) <= 0.05]
        assert len(near) >= 0.8 * len(errors), errors
        assert max(map(abs, errors.values())) <= 0.12, errors

    def test_whether_a_step_fits(self, half: str) -> None:
        wrong = [row["name"] for row in self.own(half) if not row["is_right"]]
        assert len(wrong) <= 0.03 * len(self.own(half)), wrong


def test_plans_would_not_choose_refused_steps() -> None:
    refused = [row for row in rows() if not row["fits"]]
    assert len(refused) >= 7
    usable = {row["name"]: (1 - MARGIN) * capacity_of(row) for row in refused}
    assert [row["name"] for row in refused if row["least"] <= usable[row["name"]]] == []


def capacity_of(row: dict[str, Any]) -> int:
    verdict = config.loads("", path="run.yml").select(row["instance"]).verdict()
    assert verdict.capacity_bytes is not None
    return verdict.capacity_bytes


def test_choices_of_plans_fit_and_are_mostly_no_slower_than_published_ones() -> None:
    pairs = bench_module("plan_choices").rows()
    assert len(pairs) >= 10
    assert [row["name"] for row in pairs if not row["plan_fits"]] == []
    assert sum(row["wins"] for row in pairs) >= 0.9 * len(pairs)


def test_axes_that_plans_leave_at_1_cost_more_than_those_beside_them() -> None:
    # Steps along `sequence`, which MaxText 0.2 has no more, are as long or shorter.
    pairs = [row for row in bench_module("config_axes").rows() if "_sequence_" not in row["name"]]
    pairs += [row for row in bench_module("config_axes").rows() if "tensor_seq" in row["name"]]
    assert len(pairs) == 7
    for row in pairs:
        assert row["state"] > -0.01 and row["peak"] > -0.05 and row["seconds"] > -0.01, row
        # By far in at least one figure.
        assert max(row["peak"], row["payload"], row["seconds"]) > 0.1, row


def run(*overrides: str) -> config.EffectiveConfig:
    given = ("model_name=llama3.1-8b", "remat_policy=full", "attention=flash")
    return config.loads("", path="run.yml", overrides=[*given, *overrides]).select("v6e-256")


class TestPhases:
    """Weights in 32 shards or fewer are multiplied in loops over the shards, others are gathered."""

    WINDOWED = ("ici_data_parallelism=8", "ici_fsdp_parallelism=32")
    SMALL = ("override_model_config=true", "vocab_size=32000")

    def terms(self, *overrides: str) -> dict[str, int]:
        sizes = ("per_device_batch_size=2", "max_target_length=4096")
        memory = run(*sizes, *overrides).memory()
        return {row["term"]: row["bytes"] for row in memory.expected_terms if row["is_needed"]}

    def test_the_logits_stay_until_the_gradient_of_the_head(self) -> None:
        few = self.terms(*self.WINDOWED, *self.SMALL)
        # The logits and the head's input, in bfloat16.
        assert few["logits"] == 2 * 4096 * (32000 + 4096) * 2
        assert "a head's gradient" not in few

    def test_in_more_shards_the_gradient_of_the_head_waits(self) -> None:
        many = self.terms(*self.SMALL)
        assert many["a head's gradient"] == 4096 * 32000 * 2
        assert "logits" not in many

    def test_of_many_tokens_the_logits_stay_or_are_computed_again(self) -> None:
        memory = run(
            "per_device_batch_size=4", "max_target_length=8192", "override_model_config=true",
            "vocab_size=40000",
        ).memory()  # fmt: skip
        own = {row["term"]: row["bytes"] for row in memory.expected_terms}
        weights = 4096 * 40000 * 2
        assert own["logits"] == weights + 4 * 8192 * 4096 * 2
        # Not needed: XLA computes them again from the weights.
        assert own["further logits"] == 4 * 8192 * 40000 * 2 - weights

    def test_with_a_large_vocabulary_the_peak_is_at_the_head(self) -> None:
        width, logits, weights = (2 * 4096 * each * 2 for each in (4096, 128256, 128256 // 2))
        # The head's input twice; with windowed einsums, the logits and their gradient.
        assert self.terms(*self.WINDOWED)["the head"] == 2 * width + 2 * logits + weights
        assert self.terms()["the head"] == 2 * width + logits + 2 * weights

    def test_the_backward_pass_of_attention(self) -> None:
        tokens = 2 * 4096
        # Of 32 heads of queries and 8 of keys: the result, the gradient twice, and four parts that
        # the rotary embedding of Llama 3.1 moves. Three values of the layer's width.
        assert self.terms(*self.SMALL)["attention"] == tokens * 2 * (40 * 7 * 128 + 3 * 4096)
        halves = run("model_name=llama2-7b", "max_target_length=4096", "per_device_batch_size=2")
        terms = {row["term"]: row["bytes"] for row in halves.memory().expected_terms}
        # Two halves of 64 elements, which take 128.
        assert terms["attention"] == tokens * 2 * (64 * 5 * 128 + 3 * 4096)

    def test_accumulators_along_tensor_axes(self) -> None:
        own = self.terms("ici_tensor_parallelism=8", "ici_fsdp_parallelism=32", *self.SMALL)
        # Three products, two directions, an accumulator and a received part.
        assert own["windows"] == 3 * 2 * 2 * (2 * 8) * 4096 * (4096 // 8) * 2
        assert "windows" not in self.terms(*self.WINDOWED, *self.SMALL)

    @pytest.mark.parametrize(
        ("given", "copied"),
        [
            (("out_proj=device", "query_proj=offload"), 4096),
            (("mlpwi_0=device", "mlpwi_1=offload"), 14336),
            (("out_proj=device", "query_proj=offload", "max_target_length=2048"), None),
            (("out_proj=device", "query_proj=device"), None),
        ],
    )
    def test_copies_of_saved_values_where_others_are_offloaded(
        self, given: tuple[str, ...], copied: int | None
    ) -> None:
        own = ("per_device_batch_size=4", "remat_policy=custom", "decoder_layer_input=offload")
        name = "a copy of a saved value"
        size = self.terms(*self.SMALL, *own, *given).get(name)
        assert size == (None if copied is None else 32 * 4 * 4096 * copied * 2)

    def test_in_parts_of_a_batch_the_copy_comes_before_the_head(self) -> None:
        own = (
            "per_device_batch_size=1", "max_target_length=8192", "remat_policy=custom",
            "out_proj=device", "query_proj=offload",
        )  # fmt: skip
        once, parts = self.terms(*own), self.terms(*own, "gradient_accumulation_steps=2")
        assert "the head" in once and "a copy of a saved value" not in once
        assert parts["the head"] == once["the head"]
        assert parts["a copy of a saved value"] == 32 * 8192 * 4096 * 2


@pytest.mark.parametrize(("given", "fate"), [((), "saved"), (("moe_mlpwi_1=remat",), "recomputed")])
def test_versions_since_0_2_have_another_name_for_the_second_grouped_matmul(
    given: tuple[str, ...], fate: str
) -> None:
    own = ("model_name=mixtral-8x7b", "remat_policy=minimal", "per_device_batch_size=1")
    fates = {row["value"]: row["fate"] for row in run(*own, *given).memory().activations}
    assert fates["wi_0"] == "saved" and fates["wi_1"] == fate


class TestTensorSequence:
    """Tokens between layers lie along the axis, heads and inner sizes within them."""

    def test_it_holds_and_sends_what_a_tensor_axis_does(self) -> None:
        own = ("per_device_batch_size=1", "max_target_length=4096", "ici_fsdp_parallelism=64")
        one, other = (
            run(*own, f"ici_{axis}_parallelism=4") for axis in ("tensor", "tensor_sequence")
        )
        peaks = [each.verdict().peak_bytes for each in (one, other)]
        assert peaks[1] == pytest.approx(peaks[0], rel=0.001)
        sums = [each.traffic().total(tensor_kind="activations") for each in (one, other)]
        assert sums[0] == sums[1] and sums[0]


class TestPeakOnADevice:
    def test_a_step_with_room_has_the_relaxed_peak(self) -> None:
        verdict = run("per_device_batch_size=1", "max_target_length=4096").verdict()
        assert verdict.peak_bytes == verdict.relaxed_peak_bytes

    def test_a_step_without_has_the_needed_terms(self) -> None:
        verdict = run("per_device_batch_size=12", "max_target_length=8192").verdict()
        assert verdict.status == "does not fit"
        assert verdict.peak_bytes == verdict.expected_peak_bytes

    def test_a_step_that_needs_room_is_between_its_bounds(self) -> None:
        # 256 shards: weights gathered ahead of time need not stay, and logits are computed again.
        verdict = run("per_device_batch_size=6", "max_target_length=8192").verdict()
        assert verdict.status == "tight" and verdict.relaxed_peak_bytes > verdict.capacity_bytes
        middle = (verdict.expected_peak_bytes + verdict.capacity_bytes) // 2
        assert verdict.peak_bytes == middle

    def test_it_is_not_known_where_an_axis_is_not_modelled(self) -> None:
        assert run("ici_pipeline_parallelism=4").verdict().peak_bytes is None
