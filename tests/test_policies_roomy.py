"""Checkpoint policies of programs that take a small part of their chip's memory."""

from __future__ import annotations

import sys

import pytest

import hlofast
from conftest import FIXTURES
from test_policies import BUILT_IN, device_of

sys.path.insert(0, str(FIXTURES))
import policy_texts


def errors_of(archive: str) -> dict[str, dict[str, float]]:
    """By program and policy: how far the peak modelled from the text without checkpointing is from
    that of the compiled program."""
    compiled = policy_texts.pairs(archive)
    found: dict[str, dict[str, float]] = {}
    for name, text in policy_texts.unpack(archive).items():
        program = name.removesuffix(".none")
        policies = hlofast.loads(text).remat(device=device_of(program)).policies
        assert policies is not None and policies.peak == compiled[program, "none"]["peak"]
        found[program] = {
            policy: policies.policy(called).peak / compiled[program, policy]["peak"] - 1
            for policy, called in BUILT_IN.items()
            if (program, policy) in compiled  # not every set is compiled under all
        }
    return found


def distances(errors: dict[str, dict[str, float]], is_held_out: bool) -> list[float]:
    """The errors without their signs, of the programs that are held out or of the others."""
    own = [own for name, own in errors.items() if name.startswith("held_") == is_held_out]
    return [abs(error) for program in own for error in program.values()]


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, float]]:
    return errors_of("roomy")


def test_peaks_are_those_of_the_compiled_programs(errors):
    every = [abs(error) for own in errors.values() for error in own.values()]
    assert len(every) == 63
    assert sum(error <= 0.05 for error in every) >= 0.75 * len(every)
    assert max(every) <= 0.12


def test_a_policy_that_saves_products_keeps_the_order_of_the_text(errors):
    """The head's gradient waits behind the backward loop, as in the text, and the logits with it."""
    for policy in ("dots", "plain_dots"):
        assert abs(errors["roomy_model_v5e_8"][policy]) <= 0.02


def test_a_policy_that_saves_nothing_frees_values_early(errors):
    """The head's gradient runs before the backward loop, unlike in the text."""
    assert abs(errors["roomy_model_v5e_8"]["nothing"]) <= 0.02


def test_products_in_loops_around_rings_keep_the_order_of_the_text(errors):
    for program in ("roomy_dense_v5e_16", "held_roomy_vision_v6e_8"):
        assert abs(errors[program]["nothing"]) <= 0.05, program
    # The head's gradient waits behind the backward loop, unlike in the text: too low by the logits.
    assert abs(errors["roomy_gelu_v6e_8"]["nothing"]) <= 0.1
