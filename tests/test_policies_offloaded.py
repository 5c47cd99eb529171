"""Checkpoint policies of scheduled texts whose scans move values to host memory already."""

from __future__ import annotations

import statistics
import sys

import pytest

import hlofast
from conftest import FIXTURES
from test_policies import assert_alike, errors_of

sys.path.insert(0, str(FIXTURES))
import policy_texts


@pytest.fixture(scope="module")
def texts() -> dict[str, bytes]:
    """By program and policy, such as `dense_v5e_8.offload_mlp`: scheduled texts."""
    return policy_texts.unpack("offloaded")


@pytest.fixture(scope="module")
def dense(texts) -> hlofast.Policies:
    """A transformer that moves the gate and the up product of each layer."""
    return hlofast.loads(texts["dense_v5e_8.offload_mlp"]).remat().policies


def test_peaks_are_those_of_the_compiled_programs(texts):
    errors = errors_of(texts, policy_texts.peaks())
    assert len(errors) >= 3 * 12
    assert statistics.median(errors) <= 0.03
    assert sum(error <= 0.05 for error in errors) >= 0.8 * len(errors)
    assert sum(error <= 0.12 for error in errors) >= 0.9 * len(errors)


def test_the_step_as_it_is(texts):
    compiled = policy_texts.pairs("offloaded")
    for name, text in texts.items():
        program, policy = name.split(".")
        now = hlofast.loads(text).remat().policies.as_compiled
        known = compiled[program, policy]
        assert now.peak == pytest.approx(known["peak"], rel=0.01), name
        # The layers outside of the loops count too.
        assert now.recomputed_flops == known["flops"] > 0, name
        assert now.on_host > 0


def test_what_is_moved_is_read_from_the_text(dense):
    now = dense.as_compiled
    moved = [at for at in now.saved_numbers if now.is_offloaded(at)]
    rows = dense.savable.to_pylist()
    assert [rows[at]["shape"] for at in moved] == 2 * ["bf16[8,2048,4096]"]
    # Twelve layers, one of which is outside of the loops.
    up = 12 * 8 * 2048 * 4096 * 2
    assert now.on_host == 2 * up and now.kept == 12 * 8 * 2048 * 2048 * 2
    kept = dense.policy(save=moved)
    assert kept.on_host == 0 and kept.kept == now.kept + 2 * up
    assert kept.peak > now.peak
    assert kept.recomputed_flops == now.recomputed_flops
    again = dense.policy("nothing_saveable")
    assert again.recomputed_flops > now.recomputed_flops


def test_moved_inputs_of_layers_are_read_from_the_text(texts):
    policies = hlofast.loads(texts["gelu_v6e_8.offload_input"]).remat(device="tpu-v6e").policies
    now = policies.as_compiled
    rows = policies.savable.to_pylist()
    moved = {rows[at]["kind"] for at in now.saved_numbers if now.is_offloaded(at)}
    assert moved == {"input", "batched_matmul"}
    assert now.moving_seconds > now.waiting_seconds > 0
    stays = policies.policy("nothing_saveable")
    assert stays.on_host == 0 and stays.moving_seconds == 0


def test_a_text_that_moves_values_says_what_one_that_does_not_says(texts):
    plain = hlofast.loads(policy_texts.unpack("texts")["dense_v5e_8"]).remat().policies
    moved = hlofast.loads(texts["dense_v5e_8.offload_mlp"]).remat().policies
    assert_alike(moved, plain)


def test_weights_in_host_memory_are_refused(texts):
    """The model knows stacks that the layers write, and nothing else in host memory."""
    text = texts["dense_v5e_8.offload_mlp"].decode()
    whole = "bf16[12,1024,4096]{2,1,0:T(8,128)(2,1)}"
    assert whole in text
    remat = hlofast.loads(text.replace(whole, whole.replace(")}", ")S(5)}"))).remat()
    assert remat.policies is None
    assert "host memory" in remat.no_policies and "text before optimisation" in remat.no_policies
