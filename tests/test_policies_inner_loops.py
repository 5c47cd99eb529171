"""Checkpoint policies of layers that contain a loop: blocks of attention, time, experts."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES

sys.path.insert(0, str(FIXTURES))
import policy_texts

BUILT_IN = {"nothing": "nothing_saveable", "dots": "dots_saveable"}


def records() -> dict[tuple[str, str], dict[str, Any]]:
    lines = (FIXTURES / "policies" / "inner_loops.jsonl").read_text().splitlines()
    return {(own["program"], own["policy"]): own for own in map(json.loads, lines)}


@pytest.fixture(scope="module")
def texts() -> dict[str, bytes]:
    return policy_texts.unpack("inner_loops")


def policies_of(text: bytes) -> Any:
    policies = hlofast.loads(text).remat().policies
    assert policies is not None
    return policies


def test_a_loop_in_a_layer_is_part_of_the_layer(texts: dict[str, bytes]) -> None:
    truth = records()
    for name, text in texts.items():
        program = name.split(".")[0]
        policies = policies_of(text)
        assert policies.has_loops and not policies.is_grouped and not policies.is_checkpointed
        # The loops over layers, not those in them.
        assert [trips for _, trips in policies._data.loops()] == [8]
        nothing = policies.policy("nothing_saveable")
        again = truth[program, "nothing"]["flops"] - truth[program, "none"]["flops"]
        assert nothing.recomputed_flops == again
        assert nothing.kept < policies.as_compiled.kept / 10


@pytest.mark.parametrize(
    ("name", "policy", "off"),
    [
        ("lstm.none", "nothing", 0.02),
        ("lstm.none.before", "nothing", 0.05),
        ("experts.none", "nothing", 0.1),
        ("online.none", "dots", 0.13),
        ("online.none.before", "nothing", 0.06),
    ],
)
def test_peaks_of_layers_with_loops(
    texts: dict[str, bytes], name: str, policy: str, off: float
) -> None:
    peak = records()[name.split(".")[0], policy]["peak"]
    modelled = policies_of(texts[name]).policy(BUILT_IN[policy]).peak
    assert abs(modelled / peak - 1) <= off


def test_peaks_as_compiled_of_layers_with_loops_before_optimisation(
    texts: dict[str, bytes],
) -> None:
    for program in ("online", "lstm", "experts"):
        peak = records()[program, "none"]["peak"]
        assert abs(policies_of(texts[f"{program}.none.before"]).peak / peak - 1) <= 0.03


def test_products_in_loops_are_kept_for_all_iterations(texts: dict[str, bytes]) -> None:
    policies = policies_of(texts["online.none"])
    products = [row for row in policies.savable if row["kind"] == "batched_matmul"]
    # Scores of 8 blocks of keys and what is mixed of each, in 8 layers, on one device.
    assert [row["bytes"] for row in products] == [
        8 * 8 * 4 * 4 * 2048 * 256 * 2,
        8 * 8 * 4 * 4 * 2048 * 128 * 2,
    ]
    assert not any(row["is_kept"] for row in products)
    assert policies.policy("dots_saveable").recomputed_flops == 0


def test_a_checkpoint_in_a_loop_is_not_one_of_the_layer() -> None:
    texts = policy_texts.unpack("unlike")
    peaks = (FIXTURES / "policies" / "unlike.jsonl").read_text().splitlines()
    peak = next(
        own["peak"]
        for own in map(json.loads, peaks)
        if (own["program"], own["policy"]) == ("chunkattn", "nothing")
    )
    for name in ("chunkattn.none", "chunkattn.none.before"):
        policies = policies_of(texts[name])
        assert policies.has_loops and not policies.is_grouped
        assert abs(policies.policy("nothing_saveable").peak / peak - 1) <= 0.035
        assert not policies.is_checkpointed
        with pytest.raises(ValueError, match=r"in a loop of its layers"):
            policies.policy("everything_saveable")
