"""Policies of train steps that are drawn at random, those of ``drawn_models.py``."""

from __future__ import annotations

import functools
import json
import sys

import pytest

import hlofast
from conftest import FIXTURES

sys.path.insert(0, str(FIXTURES))
import policy_texts

RECORDS = {
    (own["program"], own["policy"]): own
    for own in map(json.loads, (policy_texts.FOLDER / "drawn.jsonl").read_text().splitlines())
}


@functools.cache
def texts():
    return policy_texts.unpack("drawn")


@functools.cache
def policies(program):
    device = f"tpu-{RECORDS[program, 'none']['chip']}"
    found = hlofast.loads(texts()[f"{program}.none"], device=device).remat().policies
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("program", "policy", "most"),
    [
        # Exponentials are in memory in place of a copy out of their stack, those of cross-attention are made from the
        # product, which a scale in 16 bits is part of, by a kernel: 55 and 42 % too high without.
        ("drawn101", "nothing", 0.03),
        ("drawn120", "nothing", 0.05),
        ("drawn120", "plain_dots", 0.05),
        # Each fusion computes the weights for its product, or makes them beside their gradient: 26 and 18 % too high
        # without.
        ("drawn107", "nothing", 0.05),
        ("drawn107", "plain_dots", 0.03),
        # The gradient of the head runs before the backward loop, although it waits in the text of a step that does
        # not fit: 42 % too high without.
        ("drawn108", "nothing", 0.06),
        # The gradient of 16-bit scores is written over that of the weights: 74 % too high without.
        ("drawn109", "nothing", 0.05),
        ("drawn109", "dots", 0.06),
        # The gradient of the head runs before the backward loop here too, under a policy that saves values: 21 % too
        # high without.
        ("drawn109", "plain_dots", 0.03),
        # XLA combines the gathers of all layers' weights: each result is one of them. The biases at the end of a layer are
        # its own: 47 % too high without. A gradient ends where the sum over devices that takes its place begins, also
        # if that runs earlier: 5 % too high without.
        ("drawn122_short", "nothing", 0.03),
        # Layers in the body of a loop over parts of the batch: not modelled without.
        ("drawn146_short", "nothing", 0.06),
        ("drawn146_short", "dots", 0.06),
    ],
)
def test_peaks_are_those_that_xla_needs(program, policy, most):
    said = policies(program).policy(policy_texts.BUILT_IN[policy]).peak
    assert said == pytest.approx(RECORDS[program, policy]["used"], rel=most)


def test_layers_of_a_decoder_read_what_an_encoder_has_made():
    """Keys and values of what the encoder has made are products of decoder layers, on the line of their queries."""
    own = policies("drawn122_short")
    for policy, most in (("plain_dots", 0.0), ("nothing", 0.03)):
        again = own.policy(policy_texts.BUILT_IN[policy]).recomputed_flops
        assert again == pytest.approx(RECORDS["drawn122_short", policy]["again"], rel=most)


@pytest.mark.parametrize("policy", policy_texts.BUILT_IN)
def test_layers_in_a_loop_over_parts_of_a_batch_run_again_in_each(policy):
    again = policies("drawn146_short").policy(policy_texts.BUILT_IN[policy]).recomputed_flops
    assert again == RECORDS["drawn146_short", policy]["again"]
