"""Peaks under checkpoint policies of train steps in the styles of ``unlike4_models.py``."""

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
    return policy_texts.unpack("unlike4")


@functools.cache
def used():
    """By program and policy: XLA's peak of the step that was compiled under the policy."""
    lines = (policy_texts.FOLDER / "unlike4.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {(own["program"], own["policy"]): own["used"] for own in records}


@functools.cache
def policies(program, text):
    return hlofast.loads(texts()[program + ENDS[text]]).remat().policies


def error(program, text, policy):
    found = policies(program, text).policy(policy_texts.BUILT_IN[policy]).peak
    return found / used()[program, policy] - 1


@pytest.mark.parametrize("text", ENDS)
def test_einsums_of_three_operands_save_what_sums_up_nothing(text):
    """XLA writes the product between the others, which sums up nothing, as a multiplication."""
    named = policies("mamba2", text).savable.to_pylist()
    decays = [
        row for row in named if row["kind"] == "batched_matmul" and "256,256,48" in row["shape"]
    ]
    assert decays
    assert abs(error("mamba2", text, "dots")) < 0.05
    assert abs(error("mamba2", text, "plain_dots")) < 0.05


def test_two_towers_are_two_kinds_of_layers():
    """Neither tower reads the other, so that their backward parts run one after the other."""
    assert abs(error("clip", "after", "nothing")) < 0.015
    assert abs(error("clip", "after", "dots")) < 0.03


def test_the_head_of_a_tower_is_not_in_its_last_layer():
    """The projection and the scores of all pairs, lines 123 to 126, follow the layers."""
    rows = policies("clip", "after").savable.to_pylist()
    lines = {row["source_line"] for row in rows if row["kind"] != "other"}
    assert lines and not lines & {123, 125, 126}


def test_names_that_differ_by_tower_are_said():
    """Both towers call one function, so that a name in it reaches the values of both."""
    remat = hlofast.loads(texts()["clip.none"]).remat(hbm=4_000_000_000, device="tpu-v6e")
    own = remat.policies
    (note,) = (note for note in own.notes if note.code == "policy-names")
    assert note.text.startswith("block computes layers of several stacks")
    kept = {own.savable.row(at)["scan"] for at in own.chosen.saved_numbers}
    assert len(kept) == 2 and note.figures["peak"] > own.chosen.peak
    assert f"{note.figures['peak']:,} B instead of {own.chosen.peak:,} B" in note.text


def test_layers_with_scales_hold_what_they_hand_on():
    """Before optimisation, no fusion adds up what all layers before have added."""
    assert abs(error("clip", "before", "nothing")) < 0.125


def test_the_loss_frees_the_logits():
    """The sums of a loss stand last in the text before optimisation, where only the loss needs them."""
    assert abs(error("maxtext", "before", "nothing")) < 0.05


def test_scattered_sums_are_kept_in_parts():
    """What XLA for TPUs writes as an all-reduce and a slice in one fusion is a reduce-scatter."""
    rows = policies("megatron", "after").savable.to_pylist()
    parts = [row for row in rows if row["kind"] == "matmul" and row["shape"] == "bf16[8,512,2048]"]
    whole = [
        row for row in rows if row["kind"] == "matmul" and "bqhc,hcd" in (row["op_name"] or "")
    ]
    assert parts and not [row for row in whole if row["shape"] == "bf16[8,2048,2048]"]
    assert abs(error("megatron", "after", "dots")) < 0.02


def test_code_for_two_stacks_is_for_the_layers_of_both():
    code = policies("whisper", "after").policy("nothing_saveable").code
    assert "# for the layers of each of the 2 scans" in code
    assert "scans" not in policies("llama", "after").policy("nothing_saveable").code
