"""Checkpoint policies of attention, by the form in which a program writes its softmax."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES

sys.path.insert(0, str(FIXTURES))
import policy_texts

LINES = (FIXTURES / "policies" / "softmaxes.jsonl").read_text().splitlines()
RECORDS = {(own["program"], own["policy"]): own for own in map(json.loads, LINES)}


@pytest.fixture(scope="module")
def texts() -> dict[str, bytes]:
    return policy_texts.unpack("softmaxes")


def policies_of(texts: dict[str, bytes], program: str, is_before: bool = False) -> Any:
    module = hlofast.loads(texts[f"{program}.none{'.before' * is_before}"])
    policies = module.with_context(device=f"tpu-{program.rsplit('_', 1)[1]}").remat().policies
    assert policies is not None
    return policies


def error(texts: dict[str, bytes], program: str, policy: str, is_before: bool = False) -> float:
    own = policies_of(texts, program, is_before).policy(policy_texts.BUILT_IN[policy])
    return float(own.peak / RECORDS[program, policy]["peak"] - 1)


@pytest.mark.parametrize("policy", policy_texts.BUILT_IN)
@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
@pytest.mark.parametrize("form", ["causal", "capped", "heads_first", "added_mask", "window"])
def test_exponentials_weights_and_gradient_are_in_memory_together(
    texts: dict[str, bytes], form: str, chip: str, policy: str
) -> None:
    assert abs(error(texts, f"{form}_{chip}", policy)) <= 0.09
    assert abs(error(texts, f"{form}_{chip}", policy, is_before=True)) <= 0.05


@pytest.mark.parametrize("policy", policy_texts.BUILT_IN)
@pytest.mark.parametrize(
    ("form", "chip"),
    [("scaled", "v5e"), ("scaled", "v5p"), *(("encoder", chip) for chip in ("v5e", "v5p", "v6e"))],
)
def test_weights_are_made_beside_their_gradient_or_in_a_kernel(
    texts: dict[str, bytes], form: str, chip: str, policy: str
) -> None:
    assert abs(error(texts, f"{form}_{chip}", policy)) <= (0.06 if form == "encoder" else 0.112)


@pytest.mark.parametrize("chip", ["v5p", "v6e"])
def test_without_a_mask_the_product_takes_the_place_of_exponentials(
    texts: dict[str, bytes], chip: str
) -> None:
    causal, unmasked = (
        policies_of(texts, f"{form}_{chip}").policy("nothing_saveable").peak
        for form in ("causal", "unmasked")
    )
    wide, narrow = (RECORDS[f"{form}_{chip}", "nothing"]["peak"] for form in ("causal", "unmasked"))
    assert causal - unmasked == pytest.approx(wide - narrow, rel=0.15)


def test_scores_computed_twice_by_a_fusion_run_twice_again(texts: dict[str, bytes]) -> None:
    """XLA for v6e computes them for their maxima and once more for the exponentials."""
    policies = policies_of(texts, "causal_v6e")
    for policy in ("nothing", "plain_dots"):
        again = policies.policy(policy_texts.BUILT_IN[policy]).recomputed_flops
        assert again == RECORDS["causal_v6e", policy]["recomputed_flops"]
    once = policies_of(texts, "causal_v5e").policy("nothing_saveable").recomputed_flops
    assert policies.policy("nothing_saveable").recomputed_flops > once


@pytest.mark.parametrize("policy", policy_texts.BUILT_IN)
@pytest.mark.parametrize("form", ["3072", "4096", "_capped4096"])
def test_masks_of_grouped_scores_are_arrays_on_v6e_with_many_keys(
    texts: dict[str, bytes], form: str, policy: str
) -> None:
    assert abs(error(texts, f"grouped{form}_v6e", policy, is_before=True)) <= 0.03


@pytest.mark.parametrize("policy", policy_texts.BUILT_IN)
@pytest.mark.parametrize("form", ["2560", "_unscaled4096"])
def test_masks_take_no_memory_on_v6e_with_fewer_keys_or_without_a_factor(
    texts: dict[str, bytes], form: str, policy: str
) -> None:
    assert abs(error(texts, f"grouped{form}_v6e", policy, is_before=True)) <= 0.03


def test_without_a_named_chip_masks_take_no_memory(texts: dict[str, bytes]) -> None:
    text = texts["grouped4096_v6e.none.before"]
    peaks = {
        device: hlofast.loads(text).remat(device=device).policies.policy("nothing_saveable").peak
        for device in (None, "tpu-v5e", "tpu-v6e")
    }
    assert peaks[None] == peaks["tpu-v5e"] < 0.6 * peaks["tpu-v6e"]


LOOP_LINES = (FIXTURES / "policies" / "loop_softmaxes.jsonl").read_text().splitlines()
LOOP_RECORDS = {(own["program"], own["policy"]): own for own in map(json.loads, LOOP_LINES)}


@pytest.fixture(scope="module")
def loop_texts() -> dict[str, bytes]:
    return policy_texts.unpack("loop_softmaxes")


def assert_is_near(loop_texts: dict[str, bytes], program: str, policy: str, worst: float) -> None:
    """The peak modelled under a policy, after and before optimisation, is XLA's within an error."""
    for is_before in (False, True):
        policies = policies_of(loop_texts, program, is_before)
        peak = policies.policy(policy_texts.BUILT_IN[policy]).peak
        assert peak == pytest.approx(LOOP_RECORDS[program, policy]["peak"], rel=worst)


class TestLayersInPythonLoops:
    @pytest.mark.parametrize("policy", policy_texts.BUILT_IN)
    @pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
    @pytest.mark.parametrize("form", ["causal", "capped", "heads_first", "added_mask", "window"])
    def test_exponentials_weights_and_gradient_are_in_memory_together(
        self, loop_texts: dict[str, bytes], form: str, chip: str, policy: str
    ) -> None:
        assert_is_near(loop_texts, f"loop_{form}_{chip}", policy, 0.07)

    @pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
    @pytest.mark.parametrize("policy", ["nothing", "plain_dots"])
    def test_without_a_mask_weights_are_written_but_no_exponentials(
        self, loop_texts: dict[str, bytes], policy: str, chip: str
    ) -> None:
        program = f"loop_unmasked_{chip}"
        peak = policies_of(loop_texts, program).policy(policy_texts.BUILT_IN[policy]).peak
        assert peak == pytest.approx(LOOP_RECORDS[program, policy]["peak"], rel=0.06)

    @pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
    def test_a_kept_product_of_grouped_attention_leaves_one_wide_array(
        self, loop_texts: dict[str, bytes], chip: str
    ) -> None:
        assert_is_near(loop_texts, f"loop_grouped_{chip}", "dots", 0.02)

    @pytest.mark.parametrize("chip", ["v5e", "v5p"])
    @pytest.mark.parametrize("length", [3072, 4096])
    def test_with_many_keys_there_are_two(
        self, loop_texts: dict[str, bytes], length: int, chip: str
    ) -> None:
        assert_is_near(loop_texts, f"loop_grouped{length}_{chip}", "dots", 0.05)

    @pytest.mark.parametrize("policy", policy_texts.BUILT_IN)
    @pytest.mark.parametrize("length", [3072, 4096])
    def test_masks_of_grouped_scores_are_arrays_on_v6e_with_many_keys(
        self, loop_texts: dict[str, bytes], length: int, policy: str
    ) -> None:
        assert_is_near(loop_texts, f"loop_grouped{length}_v6e", policy, 0.03)
