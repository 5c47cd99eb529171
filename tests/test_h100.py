"""Train steps measured on an H100: clocks, XLA's figures and a profile, against what hlofast says."""

import re
import statistics
import sys
import warnings
from pathlib import Path

import pytest

import hlofast
from conftest import FIXTURES

sys.path.insert(0, str(FIXTURES))

import gpu_texts

CLOCKS = gpu_texts.clocks()
TEXTS = gpu_texts.texts()
BUILT_IN = {
    "nothing": "nothing_saveable",
    "dots": "dots_saveable",
    "plain_dots": "dots_with_no_batch_dims_saveable",
}


@pytest.fixture(scope="module")
def steps() -> dict[tuple[str, str], hlofast.Module]:
    return {pair: hlofast.loads(TEXTS[pair]) for pair in CLOCKS}


def test_step_times_are_near_the_clock(steps: dict[tuple[str, str], hlofast.Module]) -> None:
    errors = {}
    for pair, seconds in CLOCKS.items():
        modelled = steps[pair].time("h100").step_seconds
        assert modelled is not None
        errors[pair] = modelled / seconds - 1
    assert len(errors) == 22
    left_out = [abs(own) for (name, _), own in errors.items() if name not in gpu_texts.FITTED]
    assert statistics.median(left_out) < 0.04
    assert max(map(abs, errors.values())) < 0.07


def test_peaks_are_those_of_xla(steps: dict[tuple[str, str], hlofast.Module]) -> None:
    records = gpu_texts.records()
    for pair, module in steps.items():
        assert module.memory().hbm_peak == pytest.approx(records[pair]["peak"], rel=1e-4), pair


def test_copies_beside_kernels_take_time(steps: dict[tuple[str, str], hlofast.Module]) -> None:
    # XLA copies slices into stacks on streams of their own; the kernels beside them get slower.
    module = steps["gelu", "none"]
    by_opcode = {row["opcode"]: row for row in module.time("h100").by("opcode")}
    # The profile has 14.6 ms of such copies.
    assert by_opcode["async-start"]["step_seconds"] == pytest.approx(14.6e-3, rel=0.15)


@pytest.mark.parametrize("name", ["gelu", "kernel", "vision", "vocabulary", "wide", "small"])
def test_peaks_under_policies_from_text_without_checkpointing(name: str) -> None:
    # Stacks that XLA copies into another order between the loops, and products of libraries.
    records = gpu_texts.records()
    policies = hlofast.loads(TEXTS[name, "none"]).remat(device="h100").policies
    assert policies is not None
    known = [own for own in BUILT_IN if (name, own) in records]
    assert known
    for own in known:
        modelled = policies.policy(BUILT_IN[own]).peak
        assert modelled == pytest.approx(records[name, own]["peak"], rel=0.1), own


def test_peaks_under_policies_from_checkpointed_text() -> None:
    records, errors = gpu_texts.records(), []
    for (name, under), text in TEXTS.items():
        policies = hlofast.loads(text).remat(device="h100").policies
        if under != "nothing" or policies is None:
            continue
        for own, policy in BUILT_IN.items():
            if own != under and (name, own) in records:
                peak = policies.policy(policy).peak
                errors.append(abs(peak / records[name, own]["peak"] - 1))
    assert len(errors) >= 10
    assert statistics.median(errors) < 0.03
    assert max(errors) < 0.12


def test_peaks_before_optimisation_on_gpus() -> None:
    # Masks that loops take, operands of matmuls and float32 gradients of weights of attention are in memory there.
    records, errors = gpu_texts.records(), {False: [], True: []}
    for (name, under), text in gpu_texts.texts("before").items():
        if under != "nothing":
            continue
        for is_known, found in errors.items():
            remat = hlofast.loads(text).remat(device="h100" if is_known else None)
            for own, policy in BUILT_IN.items():
                if own != under and (name, own) in records:
                    peak = remat.policies.policy(policy).peak
                    found.append(abs(peak / records[name, own]["peak"] - 1))
    assert len(errors[True]) >= 10
    assert statistics.median(errors[True]) < 0.025
    assert max(errors[True]) < 0.12 < max(errors[False])


def test_what_policies_save_costs_time_to_store() -> None:
    policies = hlofast.loads(TEXTS["gelu", "none"]).remat(device="h100").policies
    assert policies is not None
    nothing = policies.policy("nothing_saveable")
    assert nothing.storing_seconds is not None
    assert nothing.recomputed_seconds is not None
    assert nothing.storing_seconds < 0 < nothing.recomputed_seconds
    # XLA recomputes by itself what does not fit.
    assert nothing.relief_seconds is not None and nothing.relief_seconds > 0
    assert nothing.added_seconds == pytest.approx(
        nothing.storing_seconds + nothing.recomputed_seconds - nothing.relief_seconds
    )
    # On the machine the step that stores everything is slower than the one that stores nothing.
    assert CLOCKS["gelu", "none"] > CLOCKS["gelu", "nothing"]
    assert nothing.step_seconds is not None
    assert policies.step_seconds is not None
    assert nothing.step_seconds < policies.step_seconds


@pytest.mark.parametrize("archive", ["texts", "before"])
def test_notes_give_the_error_on_gpus(archive: str) -> None:
    text = gpu_texts.texts(archive)["gelu", "none"]
    policies = hlofast.loads(text).remat(device="h100").policies
    assert policies is not None
    note = next(note for note in policies.notes if note.code == "policy-error")
    assert "H100" in note.text and "TPU" not in note.text


def test_a_profile_joins_the_text(tmp_path: Path) -> None:
    pair, data = gpu_texts.profile()
    name, policy = pair.split(".")
    place = tmp_path / "host.xplane.pb"
    place.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile = hlofast.loads(TEXTS[name, policy]).with_context(profile=place).profile()
    assert profile.step_seconds == pytest.approx(CLOCKS[name, policy], rel=0.03)
    joined = sum(row["median_seconds"] or 0.0 for row in profile.table())
    assert joined == pytest.approx(profile.step_seconds, rel=0.02)


def test_a_copy_that_two_elements_share_counts_once() -> None:
    # The loop hands a second element through that is the same copy of a stack in another order.
    text = TEXTS["gelu", "none"].decode()
    copy, shape = "%input_transpose_fusion.8", "f32[12,8,16,1,1024,1024]{5,4,3,2,1,0}"
    loop = re.search(r"%while\.1 = (\(.*?\)) while\((%[\w.]+)\).*?body=(%[\w.]+)", text)
    assert loop is not None
    state, given, body = loop.groups()
    start = text.index(f"\n{body} ")
    end = text.index("\n}", start)
    inside = text[start:end]
    taken = re.search(r"\n  (%[\w.]+) = .* parameter\(0\)", inside)
    assert taken is not None
    handed = f"  %shared = {shape} get-tuple-element({taken[1]}), index=46\n"
    inside = re.sub(r"(\n  )(ROOT .* tuple\(.*)\)", rf"\n{handed}  \2, %shared)", inside)
    text = text[:start] + inside + text[end:]
    text = re.sub(rf"({re.escape(given)} = .*? tuple\(.*)\)", rf"\1, {copy})", text)
    text = text.replace(state, f"{state[:-1]}, {shape})")
    peaks = []
    for own in (TEXTS["gelu", "none"], text.encode()):
        policies = hlofast.loads(own).remat(device="h100").policies
        assert policies is not None
        peaks.append((policies.peak, policies.policy("nothing_saveable").peak))
    assert peaks[1] == pytest.approx(peaks[0], rel=1e-3)


def test_chosen_policies_fit_and_are_as_fast_as_the_best_of_jax() -> None:
    plans = gpu_texts.plans()
    assert len(plans) >= 15
    slower = []
    for plan in plans:
        # The policy that ran is chosen today, except one whose modelled peak is now above the limit.
        text = gpu_texts.texts(plan["text"])[plan["program"], "none"]
        policies = hlofast.loads(text).remat(device="h100", hbm=plan["hbm"]).policies
        assert policies is not None
        assert policies.chosen is not None
        if not plan.get("was_chosen"):
            assert policies.chosen.peak == plan["peak"]
        assert plan["ran"]["peak"] <= plan["hbm"]
        assert abs(plan["peak"] / plan["ran"]["peak"] - 1) < 0.12
        slower.append(plan["ran"]["seconds"] / plan["fastest"]["seconds"] - 1)
    assert statistics.median(slower) < 0.01
    assert max(slower) < 0.03


def test_steps_on_a_gpu_that_nothing_was_fitted_on() -> None:
    errors = []
    for step in gpu_texts.planned():
        module = hlofast.loads(step["text"])
        assert module.memory().hbm_peak == pytest.approx(step["peak"], rel=1e-3)
        seconds = module.time(gpu_texts.PLANNED_ON).step_seconds
        assert seconds is not None
        errors.append(abs(seconds / step["seconds"] - 1))
    assert len(errors) >= 39
    assert statistics.median(errors) < 0.1
    assert max(errors) < 0.15
