"""Which matmuls have batch dimensions for JAX, where `jax.vmap` maps a dimension that each device has one of."""

from __future__ import annotations

import functools
import sys
from collections import Counter

import pytest

import hlofast
from conftest import FIXTURES

sys.path.insert(0, str(FIXTURES))
import policy_texts

PLAIN_DOTS = "dots_with_no_batch_dims_saveable"
RECORDS = policy_texts.pairs("vmapped")
PROGRAMS = sorted({program for program, _ in RECORDS})
UNKNOWN = "manual_experts"
"""The program whose text does not tell what is mapped."""


@functools.cache
def texts():
    return policy_texts.unpack("vmapped")


@functools.cache
def policies(program, end=""):
    return hlofast.loads(texts()[f"{program}.none{end}"]).remat().policies


def kinds(program, end=""):
    """How many matmuls of a layer there are of each kind."""
    found = Counter(policies(program, end).savable.values("kind"))
    return {kind: count for kind, count in found.items() if "matmul" in kind}


@pytest.mark.parametrize("program", [own for own in PROGRAMS if own != UNKNOWN])
def test_matmuls_have_the_batch_dimensions_of_the_text_before_optimisation(program):
    """That text has the dimensions of all devices, and `dot` tells those of its batch."""
    assert kinds(program) == kinds(program, ".before")


@pytest.mark.parametrize(
    ("program", "plain", "batched"),
    [
        # The weights of stages are mapped too: no matmul is without batch dimensions.
        ("stages", 0, 8),
        ("held_two_stages", 0, 8),
        ("held_split_stages", 0, 8),
        # The program is partitioned by hand: each device sees its own stage alone.
        ("manual_stages", 6, 2),
        # The two matmuls of experts, and scores of attention.
        ("experts", 5, 4),
        ("held_two_experts", 5, 4),
        # Examples share their weights.
        ("examples", 6, 2),
        ("held_nested_examples", 6, 2),
        ("held_split_examples", 6, 2),
        # Heads share their input but not what comes out: only the last product of attention maps both.
        ("heads", 5, 3),
    ],
)
def test_a_matmul_has_a_batch_dimension_if_both_factors_are_mapped(program, plain, batched):
    found = kinds(program)
    assert (found.get("matmul", 0), found.get("batched_matmul", 0)) == (plain, batched)


@pytest.mark.parametrize("program", [own for own in PROGRAMS if own != UNKNOWN])
@pytest.mark.parametrize("end", ["", ".before"])
def test_what_runs_again_is_what_xla_compiled(program, end):
    again = policies(program, end).policy(PLAIN_DOTS).recomputed_flops
    assert again == RECORDS[program, "plain_dots"]["again"]


def test_a_text_that_does_not_tell_says_so():
    """In a `shard_map` shapes are those of one device, and may be mapped there."""
    found = policies(UNKNOWN)
    assert kinds(UNKNOWN)["mapped_matmul"] == 2
    with pytest.raises(ValueError, match=r"under jax.vmap \(2\)"):
        found.policy(PLAIN_DOTS)
    assert PLAIN_DOTS not in found.table.values("policy")
    note = next(note for note in found.notes if note.code == "policy-vmap")
    assert note.figures["count"] == 2
    used = RECORDS[UNKNOWN, "plain_dots"]["used"]
    assert note.figures["low"] < note.figures["high"]
    assert abs(note.figures["low"] / used - 1) < 0.1
    assert "mapped_matmul" not in kinds(UNKNOWN, ".before")


def test_other_texts_need_no_note():
    for program in PROGRAMS:
        if program != UNKNOWN:
            assert "policy-vmap" not in {note.code for note in policies(program).notes}
