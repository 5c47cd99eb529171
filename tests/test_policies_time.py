"""Step times under other checkpoint policies, against programs compiled under them."""

import statistics
import sys

import pytest

import hlofast
from conftest import FIXTURES

sys.path.insert(0, str(FIXTURES))
sys.path.insert(0, str(FIXTURES.parent.parent / "benches"))
import policy_texts

import policy_accuracy

TEXTS = policy_texts.unpack("texts")
CHECKPOINTED = policy_texts.unpack("checkpointed")
BUILT_IN = {
    "nothing": "nothing_saveable",
    "dots": "dots_saveable",
    "plain_dots": "dots_with_no_batch_dims_saveable",
}


def test_step_times_under_policies_are_those_of_compiled_programs():
    errors = {}
    for program, text in CHECKPOINTED.items():
        model, policy = program.split(".")
        if policy not in BUILT_IN or model not in TEXTS:
            continue
        chip = next(part for part in model.split("_") if part in ("v5e", "v5p", "v6e"))
        policies = hlofast.loads(TEXTS[model]).remat(device=f"tpu-{chip}").policies
        own = policies.policy(BUILT_IN[policy])
        assert policies.as_compiled.step_seconds == pytest.approx(policies.step_seconds)
        compiled = hlofast.loads(text).time(f"tpu-{chip}").step_seconds
        errors[program] = own.step_seconds / compiled - 1
    assert len(errors) >= 20
    assert statistics.median(map(abs, errors.values())) <= 0.06
    assert max(map(abs, errors.values())) <= 0.25


def test_collectives_that_gradients_need_anyway_are_not_recomputed():
    """The experts' weights are gathered for the gradients; XLA shares these with the recomputation."""
    policies = hlofast.loads(TEXTS["moe_v6e_8"]).remat(device="tpu-v6e").policies
    own = policies.policy(BUILT_IN["plain_dots"])
    text = hlofast.loads(CHECKPOINTED["moe_v6e_8.plain_dots"]).text
    gathers = [line for line in text.splitlines() if " all-gather(" in line]
    again = [line for line in gathers if "transpose(jvp())" in line and "mlp/" in line]
    assert len(again) == 3 and len(own.recomputed_collectives) == 0


def test_recomputed_loops_hide_their_transfers():
    """Products beside which their operands move take no longer again than they do in the loop."""
    policies = hlofast.loads(TEXTS["gelu_v6e_8"]).remat(device="tpu-v6e").policies
    module = policies.module
    rows = module.time("tpu-v6e").table()
    [(forward, trips)] = policies._data.loops()
    row = rows.row(forward)
    taken = row["end_seconds"] - row["start_seconds"]
    assert trips > 1 and policies.policy(BUILT_IN["nothing"]).recomputed_seconds < taken


@pytest.fixture(scope="module")
def steps():
    """Step times under policies, beside the model on the compiled text, by kind of text."""
    return policy_accuracy.steps()


def test_steps_that_offload_wait_as_compiled(steps):
    """The judge moves values over the link to the host, as the model of policies does."""
    known = steps["scanned, to policies that offload"]
    errors = [abs(row["error"]) for row in known if row["text"] == "none"]
    assert len(errors) == 12
    assert statistics.median(errors) <= 0.1 and max(errors) <= 0.25


def test_policies_that_keep_the_same_take_as_long():
    compared = 0
    for program, text in CHECKPOINTED.items():
        chip = next(part for part in program.split("_") if part in ("v5e", "v5p", "v6e"))
        policies = hlofast.loads(text).remat(device=f"tpu-{chip}").policies
        for name in BUILT_IN.values():
            own = policies.policy(name)
            if own._keeps == policies.as_compiled._keeps:
                compared += 1
                assert own.step_seconds == pytest.approx(policies.step_seconds), program
    assert compared >= 10


def test_layers_in_a_plain_loop_take_as_long_as_compiled():
    for program, text in policy_texts.unpack("unrolled").items():
        chip = next(part for part in program.split("_") if part in ("v5e", "v5p", "v6e"))
        policies = hlofast.loads(text).remat(device=f"tpu-{chip}").policies
        assert policies.as_compiled.step_seconds == pytest.approx(policies.step_seconds)


def test_step_times_of_groups_are_those_of_compiled_programs(steps):
    """The stacks of one group and of all groups are stored; checkpointed groups run again."""
    errors = {row["program"]: row["error"] for row in steps["in groups"]}
    assert len(errors) == 12
    assert statistics.median(map(abs, errors.values())) <= 0.1
    assert max(map(abs, errors.values())) <= 0.3
    held = [abs(error) for program, error in errors.items() if program.startswith("held_")]
    assert len(held) == 4 and statistics.median(held) <= 0.1


def notes_of(module: hlofast.Module) -> dict[str, str]:
    """The notes on policies, by code."""
    remat = module.remat()
    assert remat.policies is not None
    return {note.code: note.text for note in remat.notes}


@pytest.mark.parametrize("kind", ["scanned", "without scans"])
def test_the_error_of_step_times_is_told(steps, kind):
    """The note has the figures of `benches/policy_accuracy.py` for the kind of the text."""
    rows = [row for row in steps[kind] if row["text"] == "none"]
    errors = [100 * abs(row["error"]) for row in rows]
    text = policy_accuracy.texts()[rows[0]["program"]]
    told = notes_of(hlofast.loads(text, device="tpu-v5e"))["policy-steps-error"]
    figures = f"is {statistics.median(errors):.2g} % and the worst {max(errors):.0f} %"
    assert f"{figures}, on {len(rows)} " in told


def test_no_error_is_told_where_none_was_measured():
    module = hlofast.load(FIXTURES / "frames" / "linen.cpu.txt.xz", device="tpu-v5e")
    assert "error is unknown" in notes_of(module)["policy-steps-error"]


def test_the_compiler_of_another_device_is_named():
    module = hlofast.load(FIXTURES / "frames" / "linen.cpu.txt.xz", device="tpu-v5e")
    assert "compiled for CPU, the device is tpu-v5e" in notes_of(module)["other-backend"]
    assert "other-backend" not in notes_of(hlofast.loads(TEXTS["dense_v5e_8"], device="tpu-v5e"))


def test_a_text_without_a_schedule_has_no_step_times():
    text = next(iter(policy_texts.unpack("lowered").values()))
    assert (
        "need a scheduled text" in notes_of(hlofast.loads(text, device="tpu-v5e"))["policy-steps"]
    )


def test_a_step_that_lacked_memory_is_relieved_of_its_cost():
    dense = hlofast.loads(TEXTS["dense_v5e_8"])
    policies = dense.remat(device="tpu-v5e").policies
    # XLA made copies of work to fit the program, and it did not fit.
    assert ".remat" in dense.text
    assert policies.as_compiled.relief_seconds == 0
    assert 0 < policies.policy("nothing_saveable").relief_seconds < policies.step_seconds / 2
    fits = TEXTS["dense_v5e_4"]
    assert b".remat" not in fits
    policies = hlofast.loads(fits).remat(device="tpu-v5e").policies
    assert policies.policy("nothing_saveable").relief_seconds < 0.01 * policies.step_seconds


def test_a_policy_chosen_for_a_step_that_fits_makes_it_faster():
    plans = [own for own in policy_texts.plans() if own["fits_as_is"] and "." not in own["program"]]
    promised = [own["step_seconds"] / own["as_is_seconds"] - 1 for own in plans]
    compiled = [own["compiled_seconds"] / own["as_is_seconds"] - 1 for own in plans]
    assert len(plans) >= 10
    # Groups that are checkpointed themselves recompute without the policy too.
    whole = ["_whole_" in own["program"] for own in plans]
    assert all(
        own <= (-0.02 if is_whole else -0.05) for own, is_whole in zip(promised, whole, strict=True)
    )
    # The time model on the program compiled under the policy: each is faster, by about as much.
    assert all(own < 0 for own in compiled)
    errors = sorted(abs(ours - theirs) for ours, theirs in zip(promised, compiled, strict=True))
    assert errors[len(errors) // 2] <= 0.04 and errors[-1] <= 0.09


def test_the_verdict_names_the_policy_that_is_faster():
    module = hlofast.loads(TEXTS["dense_v5e_4"]).with_context(device="tpu-v5e")
    found = [own for own in module.verdict().statements if own.code == "stored-for-longer"]
    assert len(found) == 1
    assert "jax.checkpoint" in (found[0].remedy or "")
    assert found[0].seconds == pytest.approx(
        -module.remat(hbm="15.75GiB", device="tpu-v5e").policies.chosen.added_seconds
    )
    # Without a gain that is above the model's error nothing is said.
    unrolled = hlofast.loads(policy_texts.unpack("unrolled")["unrolled_v5e_8"])
    assert unrolled.remat(hbm="15.75GiB", device="tpu-v5e").policies.chosen is None
