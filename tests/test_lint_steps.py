"""Promises of findings on planted train steps of trainers, and their clean twins.

`fixtures/make_planted_steps.py` compiles `fixtures/planted_steps.py`, `planted_others.py`,
`planted_later.py`, `planted_final.py`, `planted_fresh.py`, `planted_next.py`, `planted_eighth.py`,
`planted_ninth.py` and `planted_tenth.py` for TPUs.
`benches/advice_accuracy.py` compares each promise with what the twin measures, whose source follows the remedy.
"""

import re
import sys
from typing import Any

import pytest

import hlofast
from conftest import CHECKOUT, FIXTURES

sys.path.insert(0, str(CHECKOUT / "benches"))
import advice_accuracy

SOURCES = [
    (FIXTURES / f"{name}.py").read_text().splitlines()
    for name in (
        "planted_steps",
        "planted_others",
        "planted_parts",
        "planted_final",
        "planted_fresh",
        "planted_next",
        "planted_eighth",
        "planted_ninth",
        "planted_tenth",
    )
]
LOOSE = {
    # The compiler partitions the scores of attention otherwise in the twin.
    ("decoder.wide_stream", "allocated"),
    ("tied.logits_in_full", "allocated"),
}
"""Promises that say "at least" and are more than a tenth too low."""
LOW = {
    # Permutes between layouts of two axes of the batch vanish with the gathers.
    "experts.batch_gathered": 0.8,
}
"""Promises that are lower, and by how much at most."""
MISSED = {
    # The matmuls of adapters are small: what is kept is 16-bit, and f32 values of one layer take memory.
    ("lora.wide_adapter", "float32-residuals"),
}
"""Faults that no finding names."""
CLEAN = {
    # Nothing says how the scores of attention are sharded.
    "decoder.none": {"recomputed-collectives", "resharded-scores"},
    "decoder.saved": {"resharded-scores"},
    "grouped.none": {"recomputed-collectives"},
    # The mean of gradients is that of f32 ones.
    "shared.none": {"widened-payload"},
    "encoder.none": set(),
    # The table of the tokens is replicated over `expert`.
    "experts.none": {"recomputed-collectives", "replicated-parameter"},
    "experts.split_table": {"recomputed-collectives"},
    # The loop over microbatches gathers the weights of layers.
    "tied.none": {"loop-invariant-collective"},
    # Data parallelism, as the program says.
    "neox.none": {"replicated-parameter"},
    "neox.summed_once": {"replicated-parameter"},
    "t5.none": set(),
    "vit.none": {"replicated-compute", "replicated-parameter"},
    "dit.none": set(),
    "dit.checkpoint_once": set(),
    "switched.none": set(),
    "vocabulary.none": {"replicated-parameter", "widened-payload"},
    "pipeline.none": {"not-overlapped", "replicated-parameter"},
    "lora.none": {"replicated-parameter"},
    "towers.none": {"replicated-parameter"},
    # The compiler gathers pooled features by itself.
    "towers.batch_gathered": {"replicated-parameter"},
    # The compiler keeps the stream as it is.
    "neox.wide_scale": {"replicated-parameter"},
    "sequence.none": {"recomputed-collectives"},
    "bound.none": {"replicated-parameter"},
    "residual.none": {"padding-waste", "replicated-parameter"},
    "routed.none": {"replicated-parameter"},
    "speech.none": set(),
    "speech.checkpoint_once": set(),
    # The latent is computed on every rank of `tensor`; tables are split over `data` alone.
    "latent.none": {"replicated-compute", "replicated-parameter"},
    # Gates and contents are f32 on purpose, though 16-bit matmuls make them.
    "gated.none": set(),
    "gated.checkpoint_once": set(),
    "graphs.none": set(),
    "preferred.none": set(),
    # Keys and values of one head are computed on every rank of `tensor`; the table is split over `fsdp` alone.
    "parallel.none": {"recomputed-collectives", "replicated-compute", "replicated-parameter"},
    "parallel.summed_once": {
        "recomputed-collectives",
        "replicated-compute",
        "replicated-parameter",
    },
    "distilled.none": {"copied-parameter"},
    "states.none": {"replicated-parameter"},
    # The compiler keeps the stream as it is.
    "states.wide_stream": {"replicated-parameter"},
    # Patches of images are embedded on every rank of `model`.
    "caption.none": {"replicated-compute"},
    "caption.summed_once": {"replicated-compute"},
    # Decays of all layers are kept in 16 bits, although sums that are 128 times smaller give them.
    "hybrid.none": {"replicated-parameter", "stacked-masks"},
    "hybrid.decays_once": {"replicated-parameter"},
    # The loop over microbatches gathers the weights; the table is split over `data` alone.
    "learned.none": {"loop-invariant-collective", "replicated-parameter"},
    "learned.summed_once": {"loop-invariant-collective", "replicated-parameter"},
    # A convolution makes 8 channels of 256.
    "unet.none": {"padding-waste"},
    "perceiver.none": {"replicated-parameter"},
    # Patches are embedded, and what the decoder reads is made, on every rank of `model`.
    "masked.none": {"replicated-compute"},
    # Patches are embedded and made on every rank of `tensor`; attention in time has 8 frames.
    "video.none": {"padding-waste", "replicated-compute", "replicated-parameter"},
    # Gates need the sums of MLPs, which are not saved.
    "video.summed_once": {
        "padding-waste",
        "recomputed-collectives",
        "replicated-compute",
        "replicated-parameter",
    },
    "mixture.none": set(),
    # Three heads on each device.
    "delta.none": {"padding-waste"},
    "delta.summed_once": {"padding-waste"},
    # The loop over microbatches gathers the head.
    "banded.none": {"loop-invariant-collective"},
    "conformer.none": set(),
    # Data parallelism, as the program says.
    "mixer.none": {"replicated-parameter"},
    # What pairs are computed with is small.
    "folding.none": {"replicated-parameter"},
    "rotary.none": set(),
    # Data parallelism, as the program says.
    "swin.none": {"replicated-parameter"},
    "wave.none": set(),
    "olmo.none": set(),
}
"""Twins, and the rules that find something there besides the planted faults."""


def at(name: str) -> int:
    """The line that the fault is about."""
    places = [
        number
        for source in SOURCES
        for number, line in enumerate(source, 1)
        if name in line.partition("# at:")[2].split()
    ]
    assert len(places) == 1
    return places[0]


def named(finding: Any) -> set[int]:
    """The line of a finding, those that call it, and those of its instructions."""
    calls = [place for calls in finding.called_at for place in calls.split(" from ")]
    return {finding.source_line} | {int(place.rpartition(":")[2]) for place in calls}


@pytest.mark.parametrize(
    ("name", "codes", "kind"), advice_accuracy.PROMISES + advice_accuracy.UNSEEN
)
def test_promise_is_what_the_twin_measures(name: str, codes: tuple[str, ...], kind: str) -> None:
    own = advice_accuracy.judge(name, codes, kind)
    found = [finding for code in codes for finding in advice_accuracy.module(name).lint().of(code)]
    if (name, *codes) in MISSED:
        assert not found
        return
    assert found
    assert own["promised"] > 0
    if (name, kind) in LOOSE:
        assert any(finding.is_lower_bound for finding in found)
        assert own["promised"] < own["measured"]
    else:
        assert LOW.get(name, 0.9) <= round(own["ratio"], 2) <= 1.1


LATER_LOW = {
    # Queries, keys and values follow the scores of some layers.
    ("gemma.moved_scores", "payload"): 0.86,
    ("residual.wide_stream", "allocated"): 0.87,
    # The compiler orders the loop over layers otherwise in the twin: see below for the peak.
    ("gated.wide_stream", "allocated"): 0.76,
    ("gated.whole_moments", "allocated"): 0.85,
    ("parallel.tensor_moments", "allocated"): 1.14,
    # The heap of the twin has more gaps: see below for the peak.
    ("learned.wide_positions", "allocated"): 2.37,
    ("learned.undonated", "allocated"): 1.45,
    # The twin is in another order, and keeps less of what norms make of the stream.
    ("video.wide_stream", "allocated"): 0.72,
    ("conformer.wide_stream", "allocated"): 0.52,
    # The heap of the twin has more gaps: see below for the peak.
    ("mixture.wide_stream", "allocated"): 1.31,
    ("mixture.wide_shared", "allocated"): 1.14,
    ("swin.wide_stream", "allocated"): 0.9,
    ("rotary.wide_stream", "allocated"): 1.22,
    # Scores of attention fit into fast memory besides the stream of the twin.
    ("olmo.wide_stream", "allocated"): 0.56,
}
"""Promises of later steps that are too low or too high: what they are of the measured."""
NOTHING = {"speech.checkpoint_twice", "gated.checkpoint_twice"}
"""Faults that the compiler removes: the twin runs as many matmuls."""
HARMLESS = {
    # The peak is not where the skips are.
    ("unet.wide_skip", "allocated"),
    ("wave.wide_skips", "allocated"),
    # The stream is f32, which collectives show (`float32-activations`).
    ("perceiver.wide_latents", "allocated"),
    ("delta.wide_shift", "allocated"),
}
"""Faults whose twins allocate more."""
UNPROMISED = {
    # Nothing is kept in f32: what the layers hand on and its gradient take memory.
    ("masked.wide_places", "allocated"),
    # Nothing is kept: gates are recomputed in f32.
    ("folding.wide_product", "allocated"),
}
"""Faults whose findings promise no memory, or that no finding names."""


@pytest.mark.parametrize(
    ("name", "codes", "kind"),
    advice_accuracy.LATER
    + advice_accuracy.FINAL
    + advice_accuracy.FRESH
    + advice_accuracy.LAST
    + advice_accuracy.NEXT
    + advice_accuracy.NEXT_TWIN
    + advice_accuracy.EIGHTH
    + advice_accuracy.EIGHTH_SENT
    + advice_accuracy.NINTH
    + advice_accuracy.TENTH,
)
def test_promises_of_later_steps(name: str, codes: tuple[str, ...], kind: str) -> None:
    own = advice_accuracy.judge(name, codes, kind)
    if name in NOTHING:
        assert own["promised"] == own["measured"] == 0
    elif (name, kind) in HARMLESS:
        assert own["promised"] == 0 > own["measured"]
    elif (name, kind) in UNPROMISED:
        assert own["promised"] == 0 < own["measured"]
    else:
        known = LATER_LOW.get((name, kind))
        is_exact = codes[0] in ("recomputed-collectives", "float32-activations")
        most = 0.06 if is_exact and kind == "payload" else 0.1
        assert own["ratio"] == pytest.approx(
            1 if known is None else known, abs=most if known is None else 0.02
        )


@pytest.mark.filterwarnings("ignore:some arrays have no layout")
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("learned.wide_positions", "float32-residuals"),
        ("learned.undonated", "undonated-state"),
    ],
)
def test_the_peak_falls_as_promised_where_gaps_grow(name: str, code: str) -> None:
    own = advice_accuracy.judge(name, (code,), "peak")
    assert own["ratio"] == pytest.approx(1, abs=0.1)
    (finding,) = advice_accuracy.module(name).lint().of(code)
    memory = advice_accuracy.module(name).memory()
    assert memory.allocated_in_hbm is not None and memory.xla_peak is not None
    gaps = memory.allocated_in_hbm - memory.xla_peak
    assert f"the heap has {gaps:,} B of gaps now" in finding.message


@pytest.mark.filterwarnings("ignore:some arrays have no layout")
@pytest.mark.parametrize(
    "name",
    [
        # The state of the loop and its gradient shrink besides the stacks of norms.
        "dit.wide_modulation",
        "gated.wide_stream",
        # What norms and gradients of the stream are converted to is computed inside matmuls.
        "parallel.wide_stream",
        "mixture.wide_stream",
        "folding.wide_pairs",
        # The rows of the embedding shrink before they are exchanged.
        "delta.wide_stream",
        # Layers add norms.
        "rotary.wide_stream",
        # Results of matmuls that are split into parts; scores have the sizes of what the experts keep.
        "banded.wide_gate",
        "mixture.wide_shared",
    ],
)
def test_the_peak_falls_by_all_that_shrinks(name: str) -> None:
    codes = ("float32-residuals", "float32-activations")
    own = advice_accuracy.judge(name, codes, "peak")
    assert own["ratio"] == pytest.approx(1, abs=0.005)


def test_layers_of_a_stack_are_counted_once() -> None:
    # The pairs outside the loop and the stack of them are one finding.
    (finding,) = advice_accuracy.module("folding.wide_pairs").lint().of("float32-residuals")
    assert finding.places == 2


def test_findings_about_collectives_say_how_memory_falls() -> None:
    (finding,) = advice_accuracy.module("banded.wide_gate").lint().of("float32-activations")
    # The gates of six layers: 2 sequences of 2048 tokens on each device.
    held = 6 * 2 * 2048 * 5632 * 2
    assert f"the peak of memory falls by at least {finding.peak_bytes:,} B" in finding.message
    assert finding.peak_bytes == pytest.approx(held, rel=0.001)


def test_gathers_that_saved_sums_bring_together_are_named() -> None:
    (finding,) = advice_accuracy.module("decoder.summed_again").lint().of("recomputed-collectives")
    # Six layers: the weights of 8 heads of queries, and of 4 of keys and of values, on each device.
    assert finding.figures["weight_bytes"] == 6 * 2048 * (8 + 4 + 4) * 128 * 2


def test_f32_sums_that_join_16_bit_sums_vanish() -> None:
    (finding,) = advice_accuracy.module("parallel.wide_product").lint().of("float32-activations")
    # The MLP of eight layers, forward: 4 sequences of 2048 tokens on each device.
    joined = 8 * 4 * 2048 * 2048 * 4
    assert finding.figures["joined_bytes"] == joined
    assert f"{joined:,} B join 16-bit sums over the same devices" in finding.message


def test_f32_streams_of_latents_are_found_by_their_collectives() -> None:
    own = advice_accuracy.judge("perceiver.wide_latents", ("float32-activations",), "payload")
    assert own["ratio"] == pytest.approx(1, abs=0.05)


def test_values_that_the_program_converts_are_kept_twice() -> None:
    (finding,) = advice_accuracy.module("states.wide_adapter").lint().of("float32-residuals")
    assert "kept from forward to backward twice" in finding.message
    # Eight layers of the values that the adapter multiplies, 4 sequences of 2048 tokens.
    assert finding.bytes == finding.peak_bytes == 8 * 4 * 2048 * 1024 * 2


def test_values_that_small_arrays_give_are_no_masks() -> None:
    (finding,) = advice_accuracy.module("hybrid.none").lint().of("stacked-masks")
    assert "2 stacks hold the values of all iterations" in finding.message
    # Two layers in 16 bits: batch of 2, 16 chunks of 128 x 128 for 16 heads; one is made again.
    layers, layer = 4, 2 * 2 * 16 * 128 * 128 * 16 * 2
    assert finding.bytes == layers * layer
    assert finding.peak_bytes == (layers - 1) * layer


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
        ("grouped.moved_scores", "resharded-scores"),
        ("shared.summed_apart", "reduced-twice"),
        ("neox.summed_again", "recomputed-collectives"),
        ("t5.one_hot", "one-hot-matmul"),
        ("t5.wide_product", "float32-residuals"),
        ("vit.idle_axis", "replicated-compute"),
        ("dit.wide_modulation", "float32-residuals"),
        ("dit.checkpoint_twice", "recomputed-twice"),
        ("switched.one_hot", "one-hot-matmul"),
        ("switched.wide_dispatch", "float32-activations"),
        ("pipeline.each_stage", "replicated-compute"),
        ("towers.wide_product", "float32-residuals"),
        ("bound.one_hot", "one-hot-matmul"),
        ("bound.logits_in_full", "logits-in-full"),
        ("latent.logits_in_full", "logits-in-full"),
        ("latent.logits_in_full", "replicated-compute"),
        ("latent.summed_again", "recomputed-collectives"),
        ("graphs.one_hot", "one-hot-matmul"),
        ("preferred.idle_axis", "replicated-compute"),
        ("preferred.logits_in_full", "logits-in-full"),
        ("parallel.logits_in_full", "logits-in-full"),
        ("parallel.logits_in_full", "replicated-compute"),
        ("distilled.logits_in_full", "logits-in-full"),
        ("distilled.wide_memory", "float32-activations"),
        ("caption.wide_patches", "float32-activations"),
        ("caption.logits_in_full", "logits-in-full"),
        ("parallel.wide_product", "float32-activations"),
        ("distilled.idle_axis", "replicated-compute"),
        ("caption.gathered", "logits-in-full"),
        ("caption.idle_axis", "replicated-compute"),
        ("states.wide_adapter", "float32-residuals"),
        ("hybrid.wide_gate", "float32-residuals"),
        ("hybrid.stacked_mask", "stacked-masks"),
        ("learned.logits_in_full", "logits-in-full"),
        ("learned.logits_in_full", "replicated-compute"),
        ("learned.summed_again", "recomputed-collectives"),
        ("unet.batch_gathered", "batch-gathered"),
        ("unet.batch_gathered", "replicated-compute"),
        ("perceiver.logits_in_full", "logits-in-full"),
        ("masked.summed_again", "recomputed-collectives"),
        ("mixture.summed_again", "recomputed-collectives"),
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("experts.one_hot", "send rows instead of multiplying"),
        ("switched.one_hot", "send rows instead of multiplying"),
        ("routed.one_hot", "send rows instead of multiplying"),
        ("decoder.one_hot", "look up rows instead of multiplying"),
        ("t5.one_hot", "look up rows instead of multiplying"),
        ("graphs.one_hot", "look up rows instead of multiplying"),
    ],
)
def test_tokens_that_a_router_sends_are_no_lookup(name: str, words: str) -> None:
    found = advice_accuracy.module(name).lint().of("one-hot-matmul")
    assert found and all(words in finding.remedy for finding in found)
    # The twins follow this remedy.
    assert advice_accuracy.module(advice_accuracy.twin(name)).lint().of("one-hot-matmul") == ()


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("decoder.wide_product", "both sides of the matmuls"),
        ("switched.wide_dispatch", "before the values are sent"),
        ("sequence.wide_norm", "before the values are sent"),
        ("vit.wide_stream", "such as positions"),
    ],
)
def test_the_remedy_is_that_of_the_cause(name: str, words: str) -> None:
    found = advice_accuracy.module(name).lint().of("float32-activations")
    assert any(words in finding.remedy for finding in found)


@pytest.mark.parametrize("name", ["sequence.moved_scores", "sequence.wide_scores"])
def test_scores_that_move_need_no_cast(name: str) -> None:
    found = advice_accuracy.module(name).lint()
    assert found.of("float32-activations") == ()
    assert sum(finding.bytes or 0 for finding in found.of("resharded-scores")) > 3 * 10**9


@pytest.mark.parametrize("name", ["neox.undonated", "t5.undonated", "graphs.undonated"])
def test_gaps_of_the_heap_are_said_where_they_matter(name: str) -> None:
    (finding,) = advice_accuracy.module(name).lint().of("undonated-state")
    peak, allocated = finding.peak_bytes, finding.allocated_bytes
    assert peak and allocated
    # XLA's own figures of both, to 0.5 %.
    moved = advice_accuracy.measured(name, "allocated") - advice_accuracy.measured(
        advice_accuracy.twin(name), "allocated"
    )
    assert allocated == pytest.approx(moved, rel=0.005)
    differs = abs(allocated - peak) > 0.05 * max(allocated, peak)
    assert differs == (name != "graphs.undonated")
    assert ("gaps between values" in finding.message) == differs
    if differs:
        assert f"what XLA allocates falls by {allocated:,} B" in finding.message


def test_ways_from_a_gather_are_not_followed_one_by_one() -> None:
    name = "decoder.summed_again"
    (finding,) = advice_accuracy.module(name).lint().of("recomputed-collectives")
    gather = value = finding.names[-1]
    lines = []
    for line in advice_accuracy.texts()[name].decode().splitlines():
        lines.append(line)
        if own := re.match(rf" *%{re.escape(gather)} = (\S+) all-gather\(", line):
            shape = own[1]
            # Four ways from each value to the next one.
            for number in range(40):
                lines += [
                    f"  %pair.{number} = ({shape}, {shape}) tuple(%{value}, %{value})",
                    f"  %one.{number} = {shape} get-tuple-element(%pair.{number}), index=0",
                    f"  %other.{number} = {shape} get-tuple-element(%pair.{number}), index=1",
                    f"  %both.{number} = ({shape}, {shape}) tuple(%one.{number}, %other.{number})",
                    f"  %next.{number} = {shape} get-tuple-element(%both.{number}), index=0",
                ]
                value = f"next.{number}"
    assert value == "next.39"
    module = hlofast.loads("\n".join(lines), device="tpu-v5p")
    (again,) = module.lint().of("recomputed-collectives")
    assert again.figures["weight_bytes"] == finding.figures["weight_bytes"]
