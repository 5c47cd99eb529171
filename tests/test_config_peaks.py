"""Peaks that configs imply, against steps of MaxText compiled for TPUs (`benches/config_peaks.py`)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from hlofast import config
from test_benches import bench_module

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.once


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
        assert max(abs(error) for error in errors.values()) <= 0.12, errors

    def test_whether_a_step_fits(self, half: str) -> None:
        wrong = [row["name"] for row in self.own(half) if not row["is_right"]]
        assert wrong == []


def test_refused_steps_are_among_the_points() -> None:
    assert any(not row["fits"] for row in rows())


def test_choices_of_plans_fit_and_are_no_slower_than_published_ones() -> None:
    pairs = bench_module("plan_choices").rows()
    assert len(pairs) >= 3
    assert [row["name"] for row in pairs if not (row["plan_fits"] and row["wins"])] == []


def run(*overrides: str) -> config.EffectiveConfig:
    given = ("model_name=llama3.1-8b", "remat_policy=full", "attention=flash")
    return config.loads("", path="run.yml", overrides=[*given, *overrides]).select("v6e-256")


class TestWindowedEinsums:
    """Weights in 32 shards or fewer are multiplied in loops over the shards."""

    def terms(self, *overrides: str) -> dict[str, int]:
        memory = run("per_device_batch_size=2", "max_target_length=4096", *overrides).memory()
        return {row["term"]: row["bytes"] for row in memory.expected_terms}

    def test_the_logits_stay_until_the_gradient_of_the_head(self) -> None:
        few = self.terms("ici_data_parallelism=8", "ici_fsdp_parallelism=32")
        # The logits and the head's input, in bfloat16.
        assert few["logits"] == 2 * 4096 * (128256 + 4096) * 2
        assert "a head's gradient" not in few

    def test_in_more_shards_the_gradient_of_the_head_waits(self) -> None:
        many = self.terms("ici_data_parallelism=4", "ici_fsdp_parallelism=64")
        assert many["a head's gradient"] == 4096 * 128256 * 2
        assert "logits" not in many

    def test_accumulators_along_tensor_axes(self) -> None:
        own = self.terms("ici_tensor_parallelism=8", "ici_fsdp_parallelism=32")
        # Three products, two directions, an accumulator and a received part.
        assert own["windows"] == 3 * 2 * 2 * (2 * 8) * 4096 * (4096 // 8) * 2
        assert "windows" not in self.terms("ici_data_parallelism=8", "ici_fsdp_parallelism=32")


class TestPeakOnADevice:
    def test_a_step_with_room_has_the_relaxed_peak(self) -> None:
        verdict = run("per_device_batch_size=1", "max_target_length=4096").verdict()
        assert verdict.peak_bytes == verdict.relaxed_peak_bytes

    def test_a_step_without_has_the_needed_terms(self) -> None:
        verdict = run("per_device_batch_size=12", "max_target_length=8192").verdict()
        assert verdict.status == "does not fit"
        assert verdict.peak_bytes == verdict.expected_peak_bytes

    def test_a_step_that_needs_room_is_between_its_bounds(self) -> None:
        # 256 shards: gradients that wait, and weights gathered ahead of time, need not stay.
        verdict = run("per_device_batch_size=8", "max_target_length=8192").verdict()
        assert verdict.status == "tight" and verdict.relaxed_peak_bytes > verdict.capacity_bytes
        middle = (verdict.expected_peak_bytes + verdict.capacity_bytes) // 2
        assert verdict.peak_bytes == middle

    def test_it_is_not_known_where_an_axis_is_not_modelled(self) -> None:
        assert run("ici_pipeline_parallelism=4").verdict().peak_bytes is None
