"""Checkpoint policies of further programs whose layers are in a Python loop; no rule was made with them."""

from __future__ import annotations

import statistics

import pytest

from test_policies_roomy import distances, errors_of


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, float]]:
    return errors_of("layers")


@pytest.mark.parametrize(("is_held_out", "count"), [(False, 12), (True, 9)])
def test_peaks_are_near_those_of_the_compiled_programs(errors, is_held_out, count):
    every = distances(errors, is_held_out)
    assert len(every) == count
    assert statistics.median(every) <= 0.08
    assert max(every) <= 0.2
