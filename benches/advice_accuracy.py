#!/usr/bin/env python
"""What findings promise of planted train steps, and what their twins measure.

    python benches/advice_accuracy.py               one line per promise, then the summary
    python benches/advice_accuracy.py --json FILE   the same as records

``tests/fixtures/planted_steps.py`` has the train steps, one fault each; those of
``planted_others.py`` were written and compiled before any rule was changed for them, those of
``planted_later.py`` after that, those of ``planted_final.py`` after the rules had been mended for
those, those of ``planted_fresh.py``, ``planted_next.py``, ``planted_eighth.py``,
``planted_ninth.py``, ``planted_tenth.py`` and ``planted_eleventh.py`` later; those of
``planted_masks.py`` are about one rule, those of ``planted_causes.py`` second witnesses of what
the eleventh set showed. The source of a twin follows the remedy; both are compiled for TPUs.
Measured are payload of all collectives and FLOPs of all matmuls of the compiled texts, and the
bytes that XLA allocates in HBM, gaps in its heap included; the peak without these is measured too.
Nothing is compiled here.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import statistics
import sys
import tarfile
import warnings

import hlofast

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures"
NAMES = tuple(
    f"planted_{own}"
    for own in (
        "steps",
        "others",
        "later",
        "final",
        "fresh",
        "next",
        "masks",
        "eighth",
        "ninth",
        "tenth",
        "eleventh",
        "causes",
    )
)
FOLDERS = [FIXTURES / own for own in NAMES]
DEVICES = {
    "decoder": "tpu-v5p",
    "encoder": "tpu-v5e",
    "experts": "tpu-v6e",
    "tied": "tpu-v5e",
    "neox": "tpu-v5e",
    "t5": "tpu-v5p",
    "vit": "tpu-v6e",
    "dit": "tpu-v5e",
    "switched": "tpu-v6e",
    "vocabulary": "tpu-v5e",
    "pipeline": "tpu-v5e",
    "lora": "tpu-v6e",
    "towers": "tpu-v5e",
    "sequence": "tpu-v6e",
    "bound": "tpu-v5p",
    "grouped": "tpu-v5p",
    "shared": "tpu-v5e",
    "gemma": "tpu-v6e",
    "residual": "tpu-v5e",
    "routed": "tpu-v5p",
    "speech": "tpu-v5e",
    "latent": "tpu-v5p",
    "gated": "tpu-v6e",
    "graphs": "tpu-v5e",
    "preferred": "tpu-v5e",
    "parallel": "tpu-v5p",
    "distilled": "tpu-v6e",
    "states": "tpu-v5e",
    "caption": "tpu-v5e",
    "hybrid": "tpu-v5e",
    "learned": "tpu-v5p",
    "unet": "tpu-v6e",
    "perceiver": "tpu-v5e",
    "ring": "tpu-v5p",
    "context": "tpu-v6e",
    "blocks": "tpu-v5e",
    "dropped": "tpu-v6e",
    "windows": "tpu-v5p",
    "parts": "tpu-v5e",
    "masked": "tpu-v5e",
    "video": "tpu-v6e",
    "mixture": "tpu-v5p",
    "delta": "tpu-v5e",
    "banded": "tpu-v5p",
    "conformer": "tpu-v6e",
    "mixer": "tpu-v5e",
    "folding": "tpu-v5e",
    "rotary": "tpu-v6e",
    "swin": "tpu-v5e",
    "wave": "tpu-v5p",
    "olmo": "tpu-v5e",
    "deepseek": "tpu-v5p",
    "retention": "tpu-v6e",
    "ranking": "tpu-v5e",
    "translation": "tpu-v5e",
    "convnext": "tpu-v5p",
    "denoiser": "tpu-v5e",
}
TWINS = {
    "decoder.none": "decoder.saved",
    "experts.none": "experts.split_table",
    "decoder.summed_again": "decoder.summed_once",
    "encoder.checkpoint_twice": "encoder.checkpoint_once",
    "tied.summed_again": "tied.checkpoint_once",
    "neox.summed_again": "neox.summed_once",
    "dit.checkpoint_twice": "dit.checkpoint_once",
    "gemma.summed_again": "gemma.summed_once",
    "speech.checkpoint_twice": "speech.checkpoint_once",
    "latent.summed_again": "latent.summed_once",
    "gated.checkpoint_twice": "gated.checkpoint_once",
    "parallel.summed_again": "parallel.summed_once",
    "caption.summed_again": "caption.summed_once",
    "learned.summed_again": "learned.summed_once",
    "hybrid.none": "hybrid.decays_once",
    "video.summed_again": "video.summed_once",
    "delta.summed_again": "delta.summed_once",
    "retention.checkpoint_twice": "retention.checkpoint_once",
    "banded.none": "banded.gathered_once",
    "learned.none": "learned.gathered_once",
    "tied.none": "tied.gathered_once",
    "conformer.free_gathered": "conformer.free",
    "states.free_gathered": "states.free",
}
PROMISES = (
    # Train step, rules that find the fault, what they promise.
    ("decoder.batch_gathered", ("batch-gathered",), "payload"),
    ("encoder.batch_gathered", ("batch-gathered",), "payload"),
    ("encoder.batch_gathered", ("replicated-compute",), "flops"),
    ("experts.batch_gathered", ("batch-gathered",), "payload"),
    ("experts.logits_in_full", ("batch-gathered",), "payload"),
    ("tied.batch_gathered", ("batch-gathered",), "payload"),
    ("tied.batch_gathered", ("replicated-compute",), "flops"),
    ("decoder.idle_axis", ("replicated-compute",), "flops"),
    ("decoder.logits_in_full", ("replicated-compute",), "flops"),
    ("experts.idle_axis", ("replicated-compute",), "flops"),
    ("experts.logits_in_full", ("replicated-compute",), "flops"),
    ("tied.logits_in_full", ("replicated-compute",), "flops"),
    ("tied.logits_in_full", ("logits-in-full",), "allocated"),
    ("decoder.checkpoint_twice", ("recomputed-twice",), "flops"),
    ("encoder.checkpoint_twice", ("recomputed-twice",), "flops"),
    ("decoder.summed_again", ("recomputed-collectives",), "payload"),
    ("tied.summed_again", ("recomputed-collectives",), "payload"),
    ("decoder.none", ("recomputed-collectives",), "payload"),
    ("decoder.wide_product", ("float32-activations",), "payload"),
    ("tied.wide_product", ("float32-activations",), "payload"),
    ("tied.wide_stream", ("float32-activations",), "payload"),
    ("decoder.wide_stream", ("float32-residuals",), "allocated"),
    ("encoder.wide_product", ("float32-residuals",), "allocated"),
    ("decoder.one_hot", ("one-hot-matmul",), "flops"),
    ("experts.one_hot", ("one-hot-matmul",), "flops"),
    ("tied.one_hot", ("one-hot-matmul",), "flops"),
    ("decoder.whole_moments", ("replicated-parameter",), "allocated"),
    ("experts.none", ("replicated-parameter",), "allocated"),
    ("experts.whole_moments", ("replicated-parameter",), "allocated"),
    ("tied.whole_state", ("replicated-parameter",), "allocated"),
    ("tied.undonated", ("undonated-state",), "allocated"),
    ("tied.gathered_each", ("loop-invariant-collective",), "payload"),
    ("grouped.moved_scores", ("resharded-scores",), "payload"),
    ("grouped.wide_stream", ("float32-residuals",), "allocated"),
    ("shared.summed_apart", ("reduced-twice",), "payload"),
)
"""Each promise is compared with what the twin measures."""
UNSEEN = (
    ("neox.summed_again", ("recomputed-collectives",), "payload"),
    ("neox.undonated", ("undonated-state",), "allocated"),
    ("t5.one_hot", ("one-hot-matmul",), "flops"),
    ("t5.wide_product", ("float32-residuals",), "allocated"),
    ("t5.batch_gathered", ("batch-gathered",), "payload"),
    ("t5.undonated", ("undonated-state",), "allocated"),
    ("vit.wide_stream", ("float32-activations",), "payload"),
    ("vit.idle_axis", ("replicated-compute",), "flops"),
    ("vit.whole_moments", ("replicated-parameter",), "allocated"),
    ("dit.wide_modulation", ("float32-residuals",), "allocated"),
    ("dit.whole_average", ("replicated-parameter",), "allocated"),
    ("dit.checkpoint_twice", ("recomputed-twice",), "flops"),
    ("switched.wide_dispatch", ("float32-activations",), "payload"),
    ("switched.one_hot", ("one-hot-matmul",), "flops"),
    ("vocabulary.logits_in_full", ("logits-in-full",), "allocated"),
    ("pipeline.each_stage", ("replicated-compute",), "flops"),
    ("pipeline.each_stage", ("logits-in-full",), "allocated"),
    ("lora.wide_adapter", ("float32-residuals",), "allocated"),
    ("towers.wide_product", ("float32-residuals",), "allocated"),
    ("sequence.moved_scores", ("resharded-scores",), "payload"),
    ("sequence.wide_norm", ("float32-activations",), "payload"),
    ("bound.one_hot", ("one-hot-matmul",), "flops"),
    ("bound.logits_in_full", ("logits-in-full",), "allocated"),
    ("bound.logits_in_full", ("replicated-compute",), "flops"),
)
"""Promises of train steps that no rule had seen when they were written."""
LATER = (
    ("gemma.moved_scores", ("resharded-scores",), "payload"),
    ("gemma.wide_product", ("float32-activations",), "payload"),
    ("gemma.late_cast", ("float32-activations",), "payload"),
    ("gemma.summed_again", ("recomputed-collectives",), "payload"),
    ("residual.wide_stream", ("float32-residuals",), "allocated"),
    ("residual.undonated", ("undonated-state",), "allocated"),
    ("routed.one_hot", ("one-hot-matmul",), "flops"),
    ("routed.idle_axis", ("replicated-compute",), "flops"),
    ("speech.one_hot", ("one-hot-matmul",), "flops"),
    ("speech.batch_gathered", ("batch-gathered",), "payload"),
    ("speech.whole_moments", ("replicated-parameter",), "allocated"),
    ("speech.checkpoint_twice", ("recomputed-twice",), "flops"),
)
"""Promises of train steps that were written after the rules had been mended once."""
FINAL = (
    ("latent.wide_latent", ("float32-activations",), "payload"),
    ("latent.logits_in_full", ("replicated-compute",), "flops"),
    ("latent.logits_in_full", ("logits-in-full",), "allocated"),
    ("latent.summed_again", ("recomputed-collectives",), "payload"),
    ("gated.wide_stream", ("float32-residuals",), "allocated"),
    ("gated.whole_moments", ("replicated-parameter",), "allocated"),
    ("gated.checkpoint_twice", ("recomputed-twice",), "flops"),
    ("graphs.one_hot", ("one-hot-matmul",), "flops"),
    ("graphs.batch_gathered", ("batch-gathered",), "payload"),
    ("graphs.batch_gathered", ("replicated-compute",), "flops"),
    ("graphs.undonated", ("undonated-state",), "allocated"),
    ("preferred.idle_axis", ("replicated-compute",), "flops"),
    ("preferred.whole_state", ("replicated-parameter",), "allocated"),
    ("preferred.logits_in_full", ("logits-in-full",), "allocated"),
)
"""Promises of train steps that were written after all rules, chosen before the first reading."""
FRESH = (
    ("parallel.logits_in_full", ("replicated-compute",), "flops"),
    ("parallel.logits_in_full", ("logits-in-full",), "allocated"),
    ("parallel.whole_moments", ("replicated-parameter",), "allocated"),
    ("parallel.wide_stream", ("float32-residuals",), "allocated"),
    ("parallel.summed_again", ("recomputed-collectives",), "payload"),
    ("distilled.logits_in_full", ("logits-in-full",), "allocated"),
    ("distilled.whole_state", ("replicated-parameter",), "allocated"),
    ("distilled.wide_memory", ("float32-activations",), "payload"),
    ("states.wide_adapter", ("float32-residuals",), "allocated"),
    ("states.whole_moments", ("replicated-parameter",), "allocated"),
    ("caption.wide_patches", ("float32-activations",), "payload"),
    ("caption.logits_in_full", ("replicated-compute",), "flops"),
    ("caption.logits_in_full", ("logits-in-full",), "allocated"),
    ("caption.summed_again", ("recomputed-collectives",), "payload"),
)
"""Promises of train steps that were written after the rules had been mended for those above."""
LAST = (
    ("parallel.gathered", ("logits-in-full",), "allocated"),
    ("parallel.tensor_moments", ("replicated-parameter",), "allocated"),
    ("parallel.wide_product", ("float32-activations",), "payload"),
    ("distilled.whole_moments", ("replicated-parameter",), "allocated"),
    ("distilled.idle_axis", ("replicated-compute",), "flops"),
    ("caption.gathered", ("logits-in-full",), "allocated"),
    ("caption.whole_moments", ("replicated-parameter",), "allocated"),
    ("caption.idle_axis", ("replicated-compute",), "flops"),
    ("caption.wide_stream", ("float32-activations",), "payload"),
)
"""Promises of further faults of the same models, added after the rules had been mended for them."""
NEXT = (
    ("hybrid.wide_gate", ("float32-residuals",), "allocated"),
    ("hybrid.whole_moments", ("replicated-parameter",), "allocated"),
    ("hybrid.stacked_mask", ("stacked-masks",), "allocated"),
    ("learned.wide_positions", ("float32-residuals",), "allocated"),
    ("learned.logits_in_full", ("replicated-compute",), "flops"),
    ("learned.logits_in_full", ("logits-in-full",), "allocated"),
    ("learned.summed_again", ("recomputed-collectives",), "payload"),
    ("learned.undonated", ("undonated-state",), "allocated"),
    ("unet.wide_skip", ("float32-residuals",), "allocated"),
    ("unet.batch_gathered", ("batch-gathered",), "payload"),
    ("unet.batch_gathered", ("replicated-compute",), "flops"),
    ("perceiver.logits_in_full", ("logits-in-full",), "allocated"),
    ("perceiver.wide_latents", ("float32-activations",), "allocated"),
)
"""Promises of train steps written after all rules, chosen before the first reading."""
NEXT_TWIN = (("hybrid.none", ("stacked-masks",), "allocated"),)
"""What the rules, once mended, find on a twin of these; compiled after that."""
MASKS = tuple(
    (f"{own}.stacked_mask", ("stacked-masks",), "allocated")
    for own in ("ring", "context", "blocks", "dropped", "windows", "parts")
)
"""Promises of train steps whose masks a loop keeps; the last two were written after the rule."""
EIGHTH = (
    ("masked.wide_places", ("float32-activations",), "allocated"),
    ("masked.wide_product", ("float32-activations",), "allocated"),
    ("masked.summed_again", ("recomputed-collectives",), "payload"),
    ("video.wide_stream", ("float32-residuals",), "allocated"),
    ("video.wide_modulation", ("float32-activations",), "allocated"),
    ("video.summed_again", ("recomputed-collectives",), "payload"),
    ("mixture.wide_shared", ("float32-activations",), "allocated"),
    ("mixture.wide_stream", ("float32-residuals",), "allocated"),
    ("mixture.summed_again", ("recomputed-collectives",), "payload"),
    ("delta.wide_shift", ("float32-activations",), "allocated"),
    ("delta.wide_stream", ("float32-residuals",), "allocated"),
    ("delta.summed_again", ("recomputed-collectives",), "payload"),
)
"""Promises of train steps written after all rules, chosen before the first reading."""
EIGHTH_SENT = tuple(
    (own, ("float32-activations",), "payload")
    for own in (
        "masked.wide_places",
        "masked.wide_product",
        "video.wide_modulation",
        "mixture.wide_shared",
        "delta.wide_shift",
    )
)
"""Faults of these that collectives show: what is sent."""
NINTH = (
    ("banded.wide_stream", ("float32-residuals",), "allocated"),
    ("banded.wide_gate", ("float32-activations",), "allocated"),
    ("conformer.wide_stream", ("float32-residuals",), "allocated"),
    ("conformer.wide_product", ("float32-activations",), "allocated"),
    ("mixer.wide_stream", ("float32-residuals",), "allocated"),
    ("mixer.wide_product", ("float32-residuals",), "allocated"),
    ("folding.wide_pairs", ("float32-residuals",), "allocated"),
    ("folding.wide_product", ("float32-residuals",), "allocated"),
)
"""Promises of float32 values, written and compiled before the rule was changed for those above."""
TENTH = tuple(
    (own, ("float32-residuals", "float32-activations"), "allocated")
    for own in (
        "rotary.wide_stream",
        "rotary.wide_product",
        "swin.wide_stream",
        "swin.wide_product",
        "wave.wide_stream",
        "wave.wide_skips",
        "olmo.wide_stream",
    )
)
"""Promises of float32 values, written after the rules had been mended for those above."""
ELEVENTH = (
    ("deepseek.one_hot", ("one-hot-matmul",), "flops"),
    ("deepseek.batch_gathered", ("batch-gathered",), "payload"),
    ("deepseek.batch_gathered", ("replicated-compute",), "flops"),
    ("deepseek.logits_in_full", ("batch-gathered",), "payload"),
    ("deepseek.logits_in_full", ("replicated-compute",), "flops"),
    ("deepseek.logits_in_full", ("logits-in-full",), "allocated"),
    ("deepseek.moved_again", ("recomputed-collectives",), "payload"),
    ("deepseek.whole_moments", ("replicated-parameter",), "allocated"),
    ("retention.gathered_each", ("loop-invariant-collective",), "payload"),
    ("retention.stacked_decay", ("stacked-masks",), "allocated"),
    ("retention.undonated", ("undonated-state",), "allocated"),
    ("retention.whole_moments", ("replicated-parameter",), "allocated"),
    ("retention.checkpoint_twice", ("recomputed-twice",), "flops"),
    ("ranking.whole_tables", ("replicated-parameter",), "allocated"),
    ("ranking.one_hot", ("one-hot-matmul",), "flops"),
    ("ranking.undonated", ("undonated-state",), "allocated"),
    ("ranking.batch_gathered", ("batch-gathered",), "payload"),
    ("ranking.batch_gathered", ("replicated-compute",), "flops"),
    ("translation.memory_each", ("loop-invariant-collective",), "payload"),
    ("translation.moved_scores", ("resharded-scores",), "payload"),
    ("translation.summed_again", ("recomputed-collectives",), "payload"),
    ("translation.logits_in_full", ("logits-in-full",), "allocated"),
    ("translation.wide_memory", ("float32-residuals", "float32-activations"), "allocated"),
    ("convnext.wide_stream", ("float32-residuals", "float32-activations"), "allocated"),
    ("convnext.whole_average", ("replicated-parameter",), "allocated"),
    ("convnext.undonated", ("undonated-state",), "allocated"),
    ("convnext.batch_gathered", ("batch-gathered",), "payload"),
    ("convnext.batch_gathered", ("replicated-compute",), "flops"),
    ("denoiser.one_hot", ("one-hot-matmul",), "flops"),
    ("denoiser.summed_again", ("recomputed-collectives",), "payload"),
    ("denoiser.idle_axis", ("replicated-compute",), "flops"),
    ("denoiser.whole_state", ("replicated-parameter",), "allocated"),
)
"""Promises of all other kinds, written after all rules and chosen before the first reading."""
CAUSES = (
    ("banded.none", ("loop-invariant-collective",), "payload"),
    ("learned.none", ("loop-invariant-collective",), "payload"),
    ("tied.none", ("loop-invariant-collective",), "payload"),
    ("conformer.batch_gathered", ("batch-gathered", "full-rematerialisation"), "payload"),
    ("conformer.free_gathered", ("batch-gathered",), "payload"),
    ("conformer.free_gathered", ("replicated-compute",), "flops"),
    ("states.free_gathered", ("batch-gathered",), "payload"),
    ("states.free_gathered", ("replicated-compute",), "flops"),
)
"""Second witnesses of what that reading showed, compiled after it; the rules had been mended before
those of ``tied`` and ``states``."""


@functools.cache
def texts():
    """Texts by name."""
    found = {}
    for folder in FOLDERS:
        with tarfile.open(folder / "texts.tar.xz") as archive:
            for own in archive:
                found[own.name.removesuffix(".txt")] = archive.extractfile(own).read()
    return found


@functools.cache
def truth():
    """Bytes that XLA allocates in HBM, by name."""
    lines = [line for own in FOLDERS for line in (own / "truth.jsonl").read_text().splitlines()]
    records = map(json.loads, lines)
    return {record["name"]: int(record["allocated"]["0"]) for record in records}


@functools.cache
def module(name):
    """A compiled train step."""
    return hlofast.loads(texts()[name], device=DEVICES[name.partition(".")[0]])


def twin(name):
    """The train step that follows the remedy."""
    return TWINS.get(name, f"{name.partition('.')[0]}.none")


def measured(name, kind):
    """One figure of the compiled train step."""
    if kind == "allocated":
        return truth()[name]
    if kind == "peak":
        # XLA's peak to 0.01 %: `benches/memory_accuracy.py`.
        return module(name).memory().xla_peak
    if kind == "flops":
        return sum(row["flops"] for row in module(name).matmuls().to_pylist())
    rows = module(name).collectives().to_pylist()
    return sum(row["total_payload"] or 0 for row in rows)


def stake(name, codes, kind):
    """What the findings of these rules promise together."""
    found = [own for own in module(name).lint() if own.code in codes]
    keys = {"payload": "bytes", "flops": "flops", "allocated": "peak_bytes", "peak": "peak_bytes"}

    def promised(finding):
        if kind == "allocated" and finding.allocated_bytes is not None:
            return finding.allocated_bytes
        # Where the heap is not packed anew, the gaps between its values stay as they are.
        return getattr(finding, keys[kind]) or 0

    return sum(promised(own) for own in found)


def judge(name, codes, kind):
    """A promise and what came of it. The fault is what the twin does not have at stake."""
    other = twin(name)
    promised = stake(name, codes, kind) - stake(other, codes, kind)
    moved = measured(name, kind) - measured(other, kind)
    return {
        "name": name,
        "rules": list(codes),
        "kind": kind,
        "promised": promised,
        "measured": moved,
        "ratio": promised / moved if moved else None,
        "lines": sorted(
            {
                own.source_line
                for own in module(name).lint()
                if own.code in codes and own.source_line
            }
        ),
    }


def without_gaps(record):
    """The promise of the peak, which has no gaps, and what it is compared with; None for others."""
    if record["kind"] != "allocated":
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return judge(record["name"], record["rules"], "peak")


def main():
    """Prints the promises."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    sets = (
        PROMISES,
        UNSEEN,
        LATER,
        FINAL,
        FRESH,
        LAST,
        NEXT + NEXT_TWIN,
        MASKS,
        EIGHTH + EIGHTH_SENT,
        NINTH,
        TENTH,
        ELEVENTH,
        CAUSES,
    )
    records = [judge(*promise) for own in sets for promise in own]
    for own in records:
        ratio = "    -" if own["ratio"] is None else f"{own['ratio']:5.2f}"
        beside = ""
        if peak := without_gaps(own):
            own["without_gaps"] = {key: peak[key] for key in ("promised", "measured", "ratio")}
            part = "-" if peak["ratio"] is None else f"{peak['ratio']:.2f}"
            beside = f" (without gaps {part} of {peak['measured']:,})"
        print(
            f"{own['name']:26} {'+'.join(own['rules']):26} {own['kind']:9} promised"
            f" {own['promised']:20,} measured {own['measured']:20,} ratio {ratio}{beside}"
            f" {own['lines']}"
        )
    # Faults that the compiler removes promise nothing, and the twin measures nothing.
    counted = [own for own in records if own["promised"] or own["measured"]]
    for own in counted:
        # Rules about what collectives send may promise memory too.
        is_beside = own["kind"] == "allocated" and own["rules"] == ["float32-activations"]
        own["group"] = "+".join(own["rules"]) + (" memory" if is_beside else "")
    for rule in dict.fromkeys(own["group"] for own in counted):
        ratios = [own["ratio"] or 0 for own in counted if own["group"] == rule]
        good = sum(abs(ratio - 1) <= 0.1 for ratio in ratios)
        print(
            f"{rule:26} promises {len(ratios)}, within 10 %: {good}, promised of measured"
            f" {min(ratios):.2f} to {max(ratios):.2f}"
        )
    what = (
        "promises of planted train steps",
        "promises of steps unseen when written",
        "promises of steps written later",
        "promises of steps written after all rules",
        "promises of steps written last",
        "promises of faults added after that",
        "promises of steps written after those",
        "promises of steps whose masks a loop keeps",
        "promises of the eighth set",
        "promises of the ninth set",
        "promises of the tenth set",
        "promises of the eleventh set",
        "promises of second witnesses for that",
    )
    rest = records
    for text, own in zip(what, sets, strict=True):
        some, rest = [own for own in rest[: len(own)] if own in counted], rest[len(own) :]
        errors = [abs((own["ratio"] or 0) - 1) for own in some]
        good = sum(error <= 0.1 for error in errors)
        print(
            f"{text}: {len(some)}, within 10 %: {good}, median error"
            f" {100 * statistics.median(errors):.1f} %"
        )
    if given.json:
        given.json.write_text(json.dumps(records, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
