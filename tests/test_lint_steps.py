"""Promises of findings on planted train steps of trainers, and their clean twins.

`fixtures/make_planted_steps.py` compiles `fixtures/planted_steps.py` for TPUs. `benches/advice_accuracy.py`
compares each promise with what the twin measures, whose source follows the remedy.
"""

import sys
from typing import Any

import pytest

import hlofast
from conftest import CHECKOUT, FIXTURES

sys.path.insert(0, str(CHECKOUT / "benches"))
import advice_accuracy

pytestmark = pytest.mark.once

SOURCE = (FIXTURES / "planted_steps.py").read_text().splitlines()
LOOSE = {
    # The compiler partitions the scores of attention otherwise in the twin.
    ("decoder.wide_stream", "peak"),
    ("encoder.wide_product", "peak"),
    ("tied.logits_in_full", "peak"),
}
"""Promises that say "at least" and are more than a tenth too low."""
LOW = {
    # Permutes between layouts of two axes of the batch vanish with the gathers.
    "experts.batch_gathered": 0.8,
    # Some matmuls read a one-hot matrix that the compiler has stored.
    "experts.one_hot": 0.5,
    # The twin gathers two weights once less.
    "decoder.summed_again": 0.85,
}
"""Promises that are lower, and by how much at most."""
CLEAN = {
    "decoder.none": {"recomputed-collectives"},
    "decoder.saved": set(),
    "encoder.none": set(),
    # The table of the tokens is replicated over `expert`.
    "experts.none": {"recomputed-collectives", "replicated-parameter"},
    "experts.split_table": {"recomputed-collectives"},
    "tied.none": set(),
}
"""Twins, and the rules that have findings there which are none of the planted faults."""


def at(name: str) -> int:
    """The line that the fault is about."""
    places = [
        number
        for number, line in enumerate(SOURCE, 1)
        if name in line.partition("# at:")[2].split()
    ]
    assert len(places) == 1
    return places[0]


def named(finding: Any) -> set[int]:
    """The line of a finding, those that call it, and those of its instructions."""
    calls = [place for calls in finding.called_at for place in calls.split(" from ")]
    return {finding.source_line} | {int(place.rpartition(":")[2]) for place in calls}


@pytest.mark.parametrize(("name", "codes", "kind"), advice_accuracy.PROMISES)
def test_promise_is_what_the_twin_measures(name: str, codes: tuple[str, ...], kind: str) -> None:
    own = advice_accuracy.judge(name, codes, kind)
    found = [finding for code in codes for finding in advice_accuracy.module(name).lint().of(code)]
    assert found
    assert own["promised"] > 0
    if (name, kind) in LOOSE:
        assert any(finding.is_lower_bound for finding in found)
        assert own["promised"] < own["measured"]
    else:
        least = LOW.get(name, 0.9)
        assert least <= own["ratio"] <= 1.1


@pytest.mark.parametrize("name", CLEAN)
def test_clean_twins(name: str) -> None:
    assert {finding.code for finding in advice_accuracy.module(name).lint()} == CLEAN[name]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("encoder.batch_gathered", "batch-gathered"),
        ("decoder.idle_axis", "replicated-compute"),
        ("experts.idle_axis", "replicated-compute"),
        ("decoder.logits_in_full", "replicated-compute"),
        ("tied.logits_in_full", "logits-in-full"),
        ("decoder.checkpoint_twice", "recomputed-twice"),
        ("encoder.checkpoint_twice", "recomputed-twice"),
        ("tied.summed_again", "recomputed-collectives"),
        ("decoder.wide_product", "float32-activations"),
        ("encoder.wide_product", "float32-residuals"),
        ("decoder.one_hot", "one-hot-matmul"),
        ("experts.one_hot", "one-hot-matmul"),
        ("tied.one_hot", "one-hot-matmul"),
    ],
)
def test_the_line_is_that_of_the_fault(name: str, code: str) -> None:
    found = advice_accuracy.module(name).lint().of(code)
    assert at(name) in set().union(*map(named, found))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("decoder.batch_gathered", "batch-gathered"),
        ("encoder.batch_gathered", "batch-gathered"),
        ("experts.batch_gathered", "batch-gathered"),
        ("tied.batch_gathered", "batch-gathered"),
        ("decoder.logits_in_full", "logits-in-full"),
        ("tied.logits_in_full", "logits-in-full"),
    ],
)
def test_constraints_are_found_before_partitioning(name: str, code: str) -> None:
    before = hlofast.loads(advice_accuracy.texts()[f"{name}.before"]).lint()
    found = before.of(code)
    assert found and all(finding.provenance == "modelled" for finding in found)
    # A gather is where the constraint is written, logits where they are made.
    if code == "logits-in-full" or name.startswith("experts"):
        assert at(name) in set().union(*map(named, found))
    twin = hlofast.loads(advice_accuracy.texts()[f"{advice_accuracy.twin(name)}.before"]).lint()
    assert twin.of(code) == ()
    if code == "batch-gathered":
        assert all(finding.is_lower_bound for finding in found)
        after = sum(own.bytes or 0 for own in advice_accuracy.module(name).lint().of(code))
        assert 0 < sum(finding.bytes or 0 for finding in found) <= after


def test_a_lookup_that_takes_as_long_is_no_finding() -> None:
    # A gather of few rows of each sequence takes as long as the matmul.
    assert advice_accuracy.module("encoder.one_hot").lint().of("one-hot-matmul") == ()
    alone = hlofast.loads(advice_accuracy.texts()["encoder.one_hot"]).lint()
    (finding,) = alone.of("one-hot-matmul")
    change = [advice_accuracy.measured(f"encoder.{own}", "flops") for own in ("one_hot", "none")]
    assert finding.flops == change[0] - change[1] > 0


def test_offloaded_values_are_waited_for() -> None:
    (finding,) = advice_accuracy.module("encoder.parked").lint().of("offload-waited")
    # Two layers, 16 sequences of 512 tokens, there and back.
    assert finding.bytes == 2 * 2 * 16 * 512 * 1024 * 2
    assert finding.place.startswith("made at ")
