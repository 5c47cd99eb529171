"""Training steps that do more than train a stack of layers: `tests/fixtures/other_steps.py`."""

from __future__ import annotations

import tarfile
from functools import cache

import pytest

import hlofast
from conftest import FIXTURES

WIDTH, HIDDEN, BATCH, DEVICES = 256, 1024, 512, 8


@cache
def module(name: str) -> hlofast.Module:
    with tarfile.open(FIXTURES / "other_steps.tar.xz") as archive:
        member = archive.extractfile(f"{name}.txt")
        assert member is not None
        return hlofast.loads(member.read())


def matmul_flops(name: str) -> dict[str, int]:
    """FLOPs of matmuls by phase."""
    flops: dict[str, int] = {}
    for row in module(name).matmuls().to_pylist():
        flops[row["phase"]] = flops.get(row["phase"], 0) + row["flops"]
    return flops


def forward_flops(depth: int, outputs: int) -> int:
    """FLOPs of one forward pass of a net of all devices."""
    return 2 * BATCH * WIDTH * (depth * 2 * HIDDEN + outputs)


@pytest.mark.parametrize("name", ["actors.before", "actors.after"])
def test_a_forward_pass_with_updated_parameters_is_forward_work(name: str) -> None:
    # Two nets give targets, the critic and the actor learn, the actor through the updated critic,
    # and both are evaluated after the update.
    actor, critic = forward_flops(2, WIDTH), forward_flops(4, 1)
    # The actor's loss itself is unused, and so are the critic's last two matmuls for it.
    expected = 4 * critic + 3 * actor - 2 * BATCH * WIDTH * (HIDDEN + 1)
    found = matmul_flops(name)
    whole = found["forward"] * (1 if name.endswith("before") else DEVICES)
    assert abs(whole / expected - 1) < 0.001
    assert "optimizer" not in found


@pytest.mark.parametrize("name", ["nameless.before", "nameless.after"])
def test_an_evaluation_in_plain_functions_is_known_by_its_lines(name: str) -> None:
    found = matmul_flops(name)
    whole = found["forward"] * (1 if name.endswith("before") else DEVICES)
    assert whole == 2 * 4 * 2 * BATCH * WIDTH * WIDTH
    assert "optimizer" not in found


def test_matmuls_of_gradients_stay_optimizer_work() -> None:
    plain, muon = matmul_flops("distilled.before"), matmul_flops("muon.before")
    assert plain["forward"] == forward_flops(2, 128) + forward_flops(4, 128) == muon["forward"]
    assert plain["backward"] == muon["backward"]
    assert "optimizer" not in plain
    # Five Newton-Schulz steps of X Xᵀ, A A and B X for each matrix.
    assert muon["optimizer"] > plain["forward"]


def test_one_line_for_all_matmuls_does_not_make_an_optimizer_forward_work() -> None:
    found = matmul_flops("helper.before")
    # The loss and an evaluation with three weights; three Newton-Schulz steps of two matmuls for each.
    assert found["forward"] == 2 * 3 * 2 * BATCH * WIDTH * WIDTH
    assert found["optimizer"] == 3 * 3 * 2 * 2 * WIDTH**3


@pytest.mark.parametrize("name", ["recurrent.after", "recurrent_checkpointed.before"])
def test_a_recurrence_has_time_steps(name: str) -> None:
    remat = module(name).remat(device="v5e")
    policies = remat.policies
    assert policies is not None
    assert policies.iteration == "time step"
    assert policies.sections()[0].title == "Checkpoint policies of the time steps"
    note = next(note for note in remat.notes if note.code == "policy-iterations")
    assert "all 64 iterations" in str(note)
    code = policies.policy("nothing_saveable").code
    assert "jax.lax.scan(step, carry, inputs)" in code
    assert "layer" not in code


def test_layers_that_share_weights_are_layers() -> None:
    policies = module("tied.before").remat(device="v5e").policies
    assert policies is not None
    assert policies.iteration == "layer"


def test_both_layers_of_a_recurrence_are_found() -> None:
    policies = module("recurrent.before").remat(device="v5e").policies
    assert policies is not None
    # Two matmuls in each of 64 steps of two layers; XLA's text with nothing saved has as many FLOPs.
    again = 2 * 64 * 2 * 2 * (512 // DEVICES) * 512 * 2048
    assert policies.policy("nothing_saveable").recomputed_flops == again == 34_359_738_368


def test_a_pipeline_has_layers_and_figures_of_one_device() -> None:
    text = module("pipeline.before")
    remat = text.remat(device="v5e")
    policies = remat.policies
    assert policies is not None
    # `jax.checkpoint` is around the layers of a stage, which every tick scans.
    assert policies.iteration == "layer"
    # Every stage recomputes the first matmul of its layers in each of 11 ticks.
    again = 11 * 4 * 2 * (4096 // 2 // 8) * WIDTH * HIDDEN
    assert policies.as_compiled.recomputed_flops == again
    of_text = sum(row["flops"] for row in remat.recomputed if "dot" in row["opcode"])
    assert of_text == again
    label = next(fact.field.label for fact in remat.facts if fact.field.name == "recomputed_flops")
    assert label == "recomputed FLOP of all devices, in shard_map of one"
    assert any("except inside shard_map" in str(note) for note in remat.notes)


def codes(name: str) -> set[str]:
    return {finding.code for finding in module(name).lint()}


@pytest.mark.parametrize("name", ["contrastive.after", "graph.after"])
def test_a_gather_that_the_algorithm_needs_is_no_finding(name: str) -> None:
    kinds = {row["kind"] for row in module(name).collectives()}
    assert "all-gather" in kinds
    assert "batch-gathered" not in codes(name)


def test_a_matmul_that_only_feeds_an_addition_is_not_recomputed() -> None:
    policies = module("blocks.before").remat(device="v5e").policies
    assert policies is not None
    # Of the two matmuls in each of four blocks the backward pass needs the result of the first.
    again = 4 * 2 * BATCH // DEVICES * WIDTH * HIDDEN
    assert policies.policy("nothing_saveable").recomputed_flops == again
    checkpointed = module("blocks_checkpointed.before").remat().recomputed
    products = [row["flops"] for row in checkpointed if row["opcode"] == "dot"]
    assert sum(products) == again * DEVICES
