"""Policies of train steps of further families, those of ``unlike5_models.py`` and ``unlike5_others.py``."""

from __future__ import annotations

import functools
import json
import sys

import pytest

import hlofast
from conftest import FIXTURES

sys.path.insert(0, str(FIXTURES))
import policy_texts

ENDS = {"after": ".none", "before": ".none.before"}


@functools.cache
def texts():
    return policy_texts.unpack("unlike5")


@functools.cache
def records():
    """By program and policy: what XLA made of the step that was compiled under the policy."""
    lines = (policy_texts.FOLDER / "unlike5.jsonl").read_text().splitlines()
    own = [json.loads(line) for line in lines]
    return {(record["program"], record["policy"]): record for record in own}


@functools.cache
def policies(program, text):
    return hlofast.loads(texts()[program + ENDS[text]]).remat().policies


def error(program, text, policy):
    found = policies(program, text).policy(policy_texts.BUILT_IN[policy]).peak
    return found / records()[program, policy]["used"] - 1


@pytest.mark.parametrize("text", ENDS)
def test_layers_of_stages_that_run_in_every_iteration_are_layers(text):
    """The stages of a circular pipeline are the same in all iterations, so no iteration slices their weights."""
    assert abs(error("circle", text, "nothing")) < 0.08
    assert abs(error("circle", text, "dots")) < 0.02
    again = policies("circle", text).policy("nothing_saveable").recomputed_flops
    assert again == records()["circle", "nothing"]["again"]


def test_a_loop_around_a_ring_is_no_loop_over_layers():
    """It slices the numbers of its steps, from which masks are made, and hands on keys."""
    for text in ENDS:
        again = policies("ring", text).policy("nothing_saveable").recomputed_flops
        assert again == records()["ring", "nothing"]["again"]
    assert abs(error("ring", "after", "nothing")) < 0.05
    assert abs(error("ring", "after", "plain_dots")) < 0.05


@pytest.mark.parametrize("text", ENDS)
def test_modules_that_flax_numbers_by_class_are_layers(text):
    """`Bottleneck_0` to `Bottleneck_15`, in four stages of other sizes, each with `Conv_0` to `Conv_2`."""
    found = policies("resnet", text)
    again = found.policy("nothing_saveable").recomputed_flops
    assert again == records()["resnet", "nothing"]["again"]
    lines = {row["source_line"] for row in found.savable.to_pylist() if "matmul" in row["kind"]}
    stem, blocks = 283, {264, 265, 266, 268}
    assert lines <= {stem} | blocks and lines >= blocks - {266}


def test_names_in_modules_that_flax_numbers_are_those_of_all_layers():
    module = hlofast.loads(texts()["resnet.none"], device="tpu-v5e")
    code = module.remat(hbm=5 << 30).policies.chosen.code
    assert '"Bottleneck_Conv_' in code and "Bottleneck_8" not in code


def test_what_a_layer_hands_on_is_kept_once():
    """XLA keeps a sum behind `relu` in 16 bits, of which the text has a wide form too."""
    assert abs(error("resnet", "after", "nothing")) < 0.02


def test_what_relu_makes_of_a_sum_is_not_added_up_again():
    """Before optimisation, no fusion adds up what all blocks before have added."""
    none = records()["resnet", "none"]["used"]
    assert abs(policies("resnet", "before").peak / none - 1) < 0.12


def test_an_encoder_before_the_layers_is_not_in_the_first():
    """It calls the layers' function, and rows that the compiler adds to it have no names to tell them apart."""
    again = policies("graph", "after").policy("nothing_saveable").recomputed_flops
    compiled = records()["graph", "nothing"]["again"]
    assert abs(again / compiled - 1) < 0.002


@pytest.mark.parametrize("text", ENDS)
def test_all_matmuls_of_mapped_stages_have_a_batch_dimension(text):
    """Each device has one stage, so that the text after optimisation does not have the dimension of the stages."""
    assert abs(error("circle", text, "plain_dots")) < 0.08
    again = policies("circle", text).policy(policy_texts.BUILT_IN["plain_dots"]).recomputed_flops
    assert again == records()["circle", "plain_dots"]["again"]
    assert "policy-vmap" not in {note.code for note in policies("circle", text).notes}


def test_policies_that_are_not_modelled_are_not_said_to_be_useless():
    verdict = hlofast.loads(texts()["clicks.none"], device="tpu-v5e").verdict()
    assert verdict.module.remat().policies is None
    assert "no known policy would help" not in verdict.nothing
    assert "not modelled" in verdict.nothing
