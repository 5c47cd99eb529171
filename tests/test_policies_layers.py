"""Checkpoint policies of further programs whose layers are in a Python loop."""

from __future__ import annotations

import statistics

import pytest

from test_policies_roomy import distances, errors_of


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, float]]:
    return errors_of("layers")


@pytest.mark.parametrize(("is_held_out", "count", "worst"), [(False, 12, 0.19), (True, 9, 0.05)])
def test_peaks_are_near_those_of_the_compiled_programs(errors, is_held_out, count, worst):
    every = distances(errors, is_held_out)
    assert len(every) == count
    assert statistics.median(every) <= 0.04
    assert max(every) <= worst
