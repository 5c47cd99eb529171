"""Checkpoint policies of layers with attention kernels, with nested checkpoints, and in groups."""

from __future__ import annotations

import statistics
import sys

import pytest

import hlofast
from conftest import FIXTURES
from test_policies import BUILT_IN

sys.path.insert(0, str(FIXTURES))
import policy_texts

KERNELS = ("flash", "splash")


@pytest.fixture(scope="module")
def texts() -> dict[str, bytes]:
    """By program of `policy_variants`: its scheduled text without checkpointing."""
    return policy_texts.unpack("variants")


@pytest.fixture(scope="module")
def compiled() -> dict[str, dict[str, int]]:
    """By program and policy: bytes at the peak of the program compiled under the policy."""
    return policy_texts.peaks()


def test_peaks_are_those_of_the_compiled_programs(texts, compiled):
    errors = []
    programs = [name for name in texts if any(kind in name for kind in KERNELS)]
    for program in programs:
        policies = hlofast.loads(texts[program]).remat().policies
        assert policies.peak == compiled[program]["none"], program
        for policy, name in BUILT_IN.items():
            errors.append(abs(policies.policy(name).peak / compiled[program][policy] - 1))
    assert len(programs) >= 6 and len(errors) >= 18
    assert statistics.median(errors) <= 0.05
    assert max(errors) <= 0.12


@pytest.fixture(scope="module", params=["after", "before"])
def flash(request, texts) -> hlofast.Policies:
    """Policies of a step with flash attention, of its text after and before optimisation."""
    lowered = policy_texts.unpack("lowered")["flash_v5e_8.none"]
    text = texts["flash_v5e_8"] if request.param == "after" else lowered
    return hlofast.loads(text).remat().policies


def test_results_of_a_kernel_are_separate_values(flash):
    kernels = [row for row in flash.savable if row["kind"] == "kernel"]
    # The output and two statistics, of which the lane that is read counts.
    output = 12 * 8 * 8 * 2048 * 128 * 2
    statistic = 12 * 8 * 8 * 2048 * 4
    assert sorted(row["bytes"] for row in kernels) == [statistic, statistic, output]
    assert len({row["name"] for row in kernels}) == 1


def test_a_kernel_runs_again_for_any_result_that_is_not_kept(flash):
    rows = flash.savable.to_pylist()
    kernels = [at for at, row in enumerate(rows) if row["kind"] == "kernel"]
    (output,) = (at for at in kernels if rows[at]["shape"].startswith("bf16"))
    nothing = flash.policy("nothing_saveable")
    dots = flash.policy("dots_saveable")
    saved = flash.policy("dots_saveable", save=kernels)
    only = flash.policy("dots_saveable", save=[output])
    assert saved.recomputed_flops == 0 < dots.recomputed_flops < nothing.recomputed_flops
    assert only.recomputed_flops == dots.recomputed_flops
    assert only.kept == dots.kept + rows[output]["bytes"]
    assert saved.kept == only.kept + sum(rows[at]["bytes"] for at in kernels if at != output)
    # Queries on keys and weights on values of twelve layers, by the kernel's own estimate, which
    # counts masked keys too.
    whole = 12 * 2 * 2 * 8 * 8 * 2048 * 2048 * 128
    assert dots.recomputed_flops == pytest.approx(whole, rel=0.02)


def test_flops_are_those_that_the_compiled_programs_recompute(texts):
    """Of texts without checkpointing, against the recomputed matmuls and kernels of others."""
    again = {(own["program"], own["policy"]): own.get("flops") for own in policy_texts.truth()}
    for program in (name for name in texts if not name.startswith("grouped")):
        policies = hlofast.loads(texts[program]).remat().policies
        for policy, name in BUILT_IN.items():
            flops = policies.policy(name).recomputed_flops
            assert flops == again[program, policy], (program, policy)
        assert again[program, "nothing"] > 0


def test_flops_before_and_after_optimisation_are_the_same(texts):
    lowered = policy_texts.unpack("lowered")
    for program in (name for name in texts if any(kind in name for kind in KERNELS)):
        before = hlofast.loads(lowered[f"{program}.none"]).remat().policies
        after = hlofast.loads(texts[program]).remat().policies
        for name in BUILT_IN.values():
            figures = [own.policy(name).recomputed_flops for own in (before, after)]
            assert figures[0] == figures[1], (program, name)


def test_a_checkpoint_in_a_checkpoint(texts, compiled):
    policies = hlofast.loads(texts["inner_v5e_8"]).remat().policies
    for policy, name in BUILT_IN.items():
        peak = compiled["inner_v5e_8"][policy]
        assert policies.policy(name).peak == pytest.approx(peak, rel=0.05)


def test_what_a_stage_of_a_pipeline_gets_is_its_input():
    """MaxText selects it, from the stage before or from the batch, and checkpoints what follows."""
    module = hlofast.load(FIXTURES / "maxtext_dumps" / "8b_stages.txt.xz")
    policies = module.remat().policies
    rows = policies.savable.to_pylist()
    inputs = [row for row in rows if row["kind"] == "input"]
    assert [row["op_name"].rpartition("/")[2] for row in inputs] == ["select_n"]
    assert not any(row["kind"] == "other" for row in rows)
    # The step is compiled under `full`, which keeps the inputs alone.
    nothing = policies.policy("nothing_saveable")
    assert nothing.kept == inputs[0]["bytes"]
    assert nothing.peak == policies.as_compiled.peak


@pytest.mark.parametrize("program", ["groups_whole_v5e_8.nothing", "groups_whole_v5p_8.none"])
def test_collectives_that_run_again_twice_are_added_up(program):
    """Where groups are checkpointed, the layers of a group run again, and each layer once more."""
    text = policy_texts.unpack("groups")[program]
    nothing = hlofast.loads(text).remat().policies.policy("nothing_saveable")
    sent = [row["wire_bytes"] for row in nothing.recomputed_collectives]
    assert sum(sent) == nothing.recomputed_wire_bytes > 0


def test_a_policy_that_was_asked_for_has_a_row(flash):
    policies = flash
    kept = [row["name"] for row in policies.savable.to_pylist() if row["kind"] == "matmul"]
    plain = policies.policy("dots_with_no_batch_dims_saveable")
    own = policies.policy(save=kept)
    assert own.fates == plain.fates
    assert policies._table([own]).values("policy")[-1] == "own"


def test_values_match_by_whole_words_of_names(flash):
    policies = flash
    row = next(row for row in policies.savable.to_pylist() if row["kind"] == "matmul")
    component = row["op_name"].split("/")[-2]
    policies.policy(save=component)
    with pytest.raises(ValueError, match="whole words of an operation name"):
        policies.policy(save=component[:-1])
    with pytest.raises(ValueError, match="cannot be both saved and moved to host memory"):
        policies.policy(save=row["name"], offload=row["name"])


def test_lanes_that_are_fetched_in_slices_count_one_lane():
    """A policy keeps one lane of the log-sum-exps of 16 layers: 16 x 2 x 4,096 of float32."""
    every = policy_texts.unpack("unlike3")
    for name in ("tensor_splash.none", "tensor_splash.none.before"):
        savable = hlofast.loads(every[name]).remat().policies.savable
        (lanes,) = [row for row in savable if row["kind"] == "kernel" and "f32" in row["shape"]]
        assert lanes["bytes"] == 16 * (16 * 2 * 4096) * 4, name
