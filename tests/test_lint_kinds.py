"""Promises of findings of all kinds on planted train steps that were written after all rules, and their clean twins.

`fixtures/make_planted_steps.py --set eleventh` and `--set causes` compile `fixtures/planted_eleventh.py`, the models of
`planted_optimizers.py` and the second witnesses of `planted_causes.py` for TPUs.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import CHECKOUT, FIXTURES

sys.path.insert(0, str(CHECKOUT / "benches"))
import advice_accuracy

PLACES = {
    fault: (f"{name}.py", number)
    for name in ("planted_eleventh", "planted_optimizers", "planted_causes")
    for number, line in enumerate((FIXTURES / f"{name}.py").read_text().splitlines(), 1)
    for fault in line.partition("# at:")[2].split()
}
"""By fault: the file and the line that it is about."""
KNOWN = {
    # Queries are split by their tokens in all of the layer then, and its values are gathered again.
    ("translation.moved_scores", "payload"): 0.59,
    # XLA orders the step of the twin otherwise.
    ("ranking.whole_tables", "allocated"): 0.62,
    # The heap of the twin has fewer gaps, or more: see below for the peak.
    ("retention.undonated", "allocated"): 1.32,
    ("denoiser.whole_state", "allocated"): 1.10,
}
"""Promises that are too low or too high: what they are of the measured."""
NOTHING = {
    # The compiler keeps logits and the matmul as they were; a gather of 67 MB of gradients is left.
    ("deepseek.logits_in_full", "payload"),
    ("deepseek.logits_in_full", "flops"),
    ("deepseek.logits_in_full", "allocated"),
    # The matmuls are shared among the ranks of `model` as before.
    ("ranking.batch_gathered", "flops"),
    # The heap of the twin has more gaps.
    ("ranking.undonated", "allocated"),
    # Nothing is kept in f32: collectives show the fault.
    ("translation.wide_memory", "allocated"),
    ("convnext.wide_stream", "allocated"),
    # The compiler shards the frames in all layers of the encoder: other rules find what this repeats.
    ("translation.memory_each", "payload"),
}
"""Figures that nothing is promised of."""
CLEAN = {
    "deepseek.none": set(),
    "retention.none": set(),
    # The sum after the attention is recomputed with it.
    "retention.checkpoint_once": {"recomputed-collectives"},
    # Small tables and scales are whole on each device.
    "ranking.none": {"replicated-parameter"},
    # Bands of audio are convolved on every rank of `model`.
    "translation.none": {"replicated-compute"},
    "convnext.none": set(),
    "denoiser.none": set(),
    "banded.gathered_once": set(),
    "tied.gathered_once": set(),
    "conformer.free": set(),
    # Tables are split over `data` alone.
    "learned.gathered_once": {"replicated-parameter"},
    # Matrices of low rank are whole on each device.
    "states.free": {"replicated-parameter"},
}
"""Twins, and the rules that find something there besides the planted faults."""


@pytest.mark.parametrize(
    ("name", "codes", "kind"), advice_accuracy.ELEVENTH + advice_accuracy.CAUSES
)
def test_promises(name: str, codes: tuple[str, ...], kind: str) -> None:
    own = advice_accuracy.judge(name, codes, kind)
    if (name, kind) in NOTHING:
        assert own["promised"] == 0
    else:
        known = KNOWN.get((name, kind))
        most = 0.1 if known is None else 0.02
        assert own["ratio"] == pytest.approx(1 if known is None else known, abs=most)


@pytest.mark.filterwarnings("ignore:some arrays have no layout")
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("retention.undonated", "undonated-state"),
        ("ranking.undonated", "undonated-state"),
        ("convnext.undonated", "undonated-state"),
        ("denoiser.whole_state", "replicated-parameter"),
    ],
)
def test_the_peak_falls_as_promised(name: str, code: str) -> None:
    own = advice_accuracy.judge(name, (code,), "peak")
    assert own["ratio"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", CLEAN)
def test_clean_twins(name: str) -> None:
    assert {finding.code for finding in advice_accuracy.module(name).lint()} == CLEAN[name]


def named(finding: Any) -> set[tuple[str, int]]:
    """The file and line of a finding, and those that call it."""
    calls = [place for calls in finding.called_at for place in calls.split(" from ")]
    places = [place.rpartition(":") for place in calls]
    places.append((finding.source_file, ":", finding.source_line))
    return {(Path(file).name, int(line)) for file, _, line in places}


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("deepseek.one_hot", "one-hot-matmul"),
        ("deepseek.batch_gathered", "batch-gathered"),
        ("deepseek.moved_again", "recomputed-collectives"),
        ("retention.gathered_each", "loop-invariant-collective"),
        ("retention.stacked_decay", "stacked-masks"),
        ("retention.checkpoint_twice", "recomputed-twice"),
        ("ranking.one_hot", "one-hot-matmul"),
        ("ranking.batch_gathered", "batch-gathered"),
        ("translation.moved_scores", "resharded-scores"),
        ("translation.summed_again", "recomputed-collectives"),
        ("translation.logits_in_full", "logits-in-full"),
        ("denoiser.one_hot", "one-hot-matmul"),
        ("denoiser.summed_again", "recomputed-collectives"),
        ("denoiser.idle_axis", "replicated-compute"),
    ],
)
def test_the_line_is_that_of_the_fault(name: str, code: str) -> None:
    found = advice_accuracy.module(name).lint().of(code)
    # A constraint is written beside the value that it gathers.
    places = set().union(*map(named, found))
    file, line = PLACES[name]
    assert any(own == file and abs(at - line) <= 3 for own, at in places)


def test_f32_frames_are_found_by_their_collectives() -> None:
    own = advice_accuracy.judge("translation.wide_memory", ("float32-activations",), "payload")
    assert own["ratio"] == pytest.approx(1, abs=0.02)


def test_frames_that_the_encoder_shards_are_found_by_what_follows() -> None:
    own = advice_accuracy.judge("translation.memory_each", ("replicated-compute",), "flops")
    assert own["ratio"] == pytest.approx(1, abs=0.001)
    found = advice_accuracy.module("translation.memory_each").lint()
    assert found.of("resharded-scores")


def test_reductions_that_are_fusions_have_lines() -> None:
    (finding,) = advice_accuracy.module("denoiser.summed_again").lint().of("recomputed-collectives")
    assert (Path(finding.source_file).name, finding.source_line) == PLACES["denoiser.summed_again"]
    # The weights of the second matmul of six of eight layers: those of two are merged already.
    assert finding.figures["weight_bytes"] == 6 * 8192 * 4096 * 2


def test_one_gather_of_the_weights_is_left_of_two_loops() -> None:
    found = advice_accuracy.module("retention.gathered_each").lint()
    own = found.of("loop-invariant-collective")
    # On each device the weights of the MLPs of six layers, sharded along `tensor`.
    held = [6 * 3 * 2048 * 5632 // 2 * 2]
    assert [sum(finding.figures["held_bytes"] for finding in own)] == held
    assert all("if the device has room" in finding.remedy for finding in own)


def test_devices_take_back_what_they_gave() -> None:
    found = advice_accuracy.module("conformer.batch_gathered").lint()
    (finding,) = found.of("full-rematerialisation")
    # The gradient of what four convolutions read, whole on each device.
    assert finding.bytes == 4 * 64 * 1024 * 1024 * 2
    assert "takes back the part that it gave" in finding.message
