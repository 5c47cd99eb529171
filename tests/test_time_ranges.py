"""The range of a modelled step, from the model's measured errors."""

import sys
from typing import Any

import pytest

import hlofast
from conftest import A100_STEP, CHECKOUT
from hlofast._time_parts import RANGES
from shown import document, figures


@pytest.fixture
def time_ranges(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the benches that measures the ranges."""
    monkeypatch.syspath_prepend(CHECKOUT / "benches")
    import time_ranges

    yield time_ranges
    for name in ("time_ranges", "gpu_accuracy"):
        sys.modules.pop(name, None)


def test_the_ranges_are_those_that_were_measured(time_ranges: Any) -> None:
    for part, (low, high) in time_ranges.gpu().items():
        assert RANGES["gpu"][part] == pytest.approx((low, high), abs=0.01)


def test_percentiles_have_weights(time_ranges: Any) -> None:
    assert time_ranges.quantiles([(at / 10, 1.0) for at in range(1, 11)]) == (0.1, 0.9)
    assert time_ranges.quantiles([(1.0, 98.0), (9.0, 1.0), (0.1, 1.0)]) == (1.0, 1.0)


def test_the_measured_step_is_in_the_range(a100: hlofast.Module, run: Any) -> None:
    time = a100.time("a100-40gb")
    low, high = time.range
    assert low is not None
    assert high is not None
    assert low < time.step_seconds < high
    assert low < a100.profile().step_seconds < high
    rows = list(time.tables["parts"])
    assert sum(row["low_seconds"] or 0 for row in rows) == pytest.approx(low)
    assert sum(row["high_seconds"] or 0 for row in rows) == pytest.approx(high)
    (result,) = document(run, "time", A100_STEP, "--device", "a100-40gb")
    shown = figures(result)
    assert (shown["step_low_seconds"], shown["step_high_seconds"]) == (low, high)


def test_no_range_without_measurements(a100: hlofast.Module) -> None:
    assert a100.time("a100", estimates="roofline").range == (None, None)
    assert a100.time("a100", collectives="speed-of-light").range == (None, None)
    chip = hlofast.devices.Device("chip", {}, {}, backend="other")
    own = chip.replace(hbm_bandwidth=1e12, jax_devices=1, launch=1e-6, flops={"bf16": 1e14})
    time = hlofast.loads("HloModule m\n\nENTRY e {\n  p = f32[8] parameter(0)\n  ROOT r = f32[8] "
                         "negate(p)\n}\n").time(own)  # fmt: skip
    assert time.range == (None, None)
    assert "step_low_seconds" not in {fact.name for fact in time.facts}


def test_a_lower_bound_has_no_range() -> None:
    text = """HloModule m, is_scheduled=true

ENTRY e {
  p = f32[1024] parameter(0)
  ROOT k = f32[1024] custom-call(p), custom_call_target="unheard_of"
}
"""
    time = hlofast.loads(text).time("h100")
    assert time.is_lower_bound
    assert time.range == (None, None)
