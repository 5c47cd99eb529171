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
