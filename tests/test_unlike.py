"""What is said of the train steps of `make_unlike2.py`, on which these faults were found."""

from __future__ import annotations

import functools
import sys

import pytest

import hlofast
from conftest import FIXTURES

sys.path.insert(0, str(FIXTURES))
import policy_texts


@functools.cache
def texts() -> dict[str, bytes]:
    return policy_texts.unpack("unlike2")


def load(name: str, **given: str) -> hlofast.Module:
    return hlofast.loads(texts()[name], **given)


def test_what_xla_repeats_on_its_own_is_the_compilers() -> None:
    # The step has no jax.checkpoint; XLA repeats logits, within fusions, for lack of memory.
    step = load("top.none", device="tpu-v5e")
    facts = {fact.name: fact.value for fact in step.remat().facts}
    assert facts["by_program"] == 0
    assert facts["by_compiler"] > 0
    (said,) = (own for own in step.remat().statements if own.code.startswith("recomputed-by"))
    assert said.code == "recomputed-by-compiler"
    assert "dot_general" in said.text and " 0 FLOP" not in said.text
    # No checkpoint policy keeps the gathers that are repeated with them.
    assert "recomputed-collectives" not in step.lint().counts()


def test_stacks_are_residuals_while_the_forward_loop_writes_them() -> None:
    memory = load("top.none").memory()
    classes = {row["class"]: row["bytes"] for row in memory.by("class")}
    assert classes["residual"] > 0.8 * memory.live_peak


def test_weights_that_shard_map_gathers_are_weights() -> None:
    gathers = load("manual.none.before").remat().gathers
    assert len(gathers) == 6
    assert {row["tensor_kind"] for row in gathers} == {"weight"}


def test_blocks_of_a_unet_are_layers_although_their_sizes_differ() -> None:
    own = load("unet.none.before").remat().policies
    assert own is not None
    compiled = policy_texts.pairs("unlike2")["unet", "nothing"]
    assert own.policy("nothing_saveable").peak == pytest.approx(compiled["peak"], rel=0.08)


def test_the_key_of_a_random_generator_has_no_batch() -> None:
    changed = load("mae.none.before").what_if(batch="0.5x")
    assert changed.change == "batch 384 → 192"
    # The random order of patches hides from the text that the encoder has the batch of the images.
    (note,) = (own for own in changed.notes if own.code == "batch-in-part")
    assert 0.1 < note.figures["share"] < 0.5
    whole = load("muon.none.before").what_if(batch="0.5x")
    assert "batch-in-part" not in {own.code for own in whole.notes}


def test_findings_that_cost_next_to_nothing_are_not_what_to_change() -> None:
    step = load("dit.none", device="tpu-v6e")
    assert "loop-invariant-collective" in step.lint().counts()
    assert "loop-invariant-collective" not in {own.code for own in step.verdict().statements}


def test_a_policy_of_jax_that_is_hardly_slower_is_named_beside_the_chosen_one() -> None:
    module = load("t5.none", device="v5p")

    def said(hbm: float) -> list[str]:
        notes = module.remat(hbm=int(hbm)).policies.notes
        return [note.text for note in notes if note.code == "simpler"]

    policies = module.remat().policies
    simple = policies.policy("dots_with_no_batch_dims_saveable")
    (text,) = said(simple.peak * 1.2)
    assert text.startswith(f"{simple.name} fits too, without names for values; its step is ")
    chosen = module.remat(hbm=int(simple.peak * 1.2)).policies.chosen
    loss = simple.step_seconds / chosen.step_seconds - 1
    assert f"modelled {100 * loss:.1f} % slower" in text
    # It does not fit, or leaves too little memory free.
    assert not said(policies.policy("nothing_saveable").peak * 1.2)
