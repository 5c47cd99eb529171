"""Plans for recomputation: `Remat.candidates`, `Remat.apply`, `hlofast remat --hbm … --apply`."""

import gzip
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from test_cli import document, hlofast_command

MEBIBYTE = 1 << 20
UNROLLED = FIXTURES / "sharded" / "mlp_unrolled_plain.txt.gz"
REWRITES = FIXTURES / "rewrites"
NAMED = ("norm_v4_named_after", "norm_v4_with_value", "norm_v3_with_value")


def fixture(name: str) -> hlofast.Module:
    return hlofast.load(FIXTURES / "sharded" / f"{name}.txt.gz")


def peak(module: hlofast.Module) -> int:
    """The peak of a module read again from its text, by a report of its own."""
    return hlofast.loads(module.to_text()).remat().peak


def applied(remat: hlofast.Remat, number: int) -> hlofast.Module:
    """The module in which one candidate is computed again, which says so if that saves nothing."""
    why = remat.candidates.row(number)["no_saving"]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        module = remat.apply([number])
    assert [str(warning.message).split(": ")[-1] for warning in told] == ([why] if why else [])
    return module


def chosen(remat: hlofast.Remat) -> list[dict[str, Any]]:
    rows = [row for row in remat.candidates if row["chosen"] is not None]
    return sorted(rows, key=lambda row: int(row["chosen"]))


@pytest.mark.parametrize("name", NAMED)
def test_variants_of_the_issue_name_the_gathered_tensor(name: str) -> None:
    remat = fixture(name).remat()
    (number,) = [n for n, row in enumerate(remat.candidates) if row["peak"] is not None]
    row = remat.candidates.row(number)
    assert (row["kind"], row["name"]) == ("gathered_activation", "reduce_precision.2")
    gather = next(row for row in remat.gathers if row["fate"] == "kept")
    assert gather["name"] in row["again"].split()
    assert f"{gather['source_file']}:{gather['source_line']}" in row["change"]
    assert "save_only_these_names" in row["change"]
    assert (row["no_saving"], row["saved"], row["refusal"]) == ("kept in fast memory", 0, None)
    with pytest.warns(
        UserWarning, match="reduce_precision.2: the peak does not change: .* fast memory"
    ):
        again = remat.apply([number])
    assert peak(again) == row["peak"] == remat.peak
    # XLA's own peak counts fast memory here; the peak of HBM tells whether a program fits.
    assert remat.rule == "xla"
    assert [f"{gather['name']}.remat"] == [
        name for name in again.names() if name.startswith(f"{gather['name']}.remat")
    ]
    # What is gathered lies in fast memory, so the peak of HBM is as it was.
    assert row["is_alive_at_peak"] == 0
    assert remat.steps == ()
    with pytest.raises(ValueError, match="nothing to recompute"):
        remat.apply()


@pytest.mark.parametrize("name", ["norm_v1_three_gradients", "norm_v3_named_before", "norm_v0"])
def test_where_the_gather_is_recomputed_there_is_nothing_to_plan(name: str) -> None:
    remat = fixture(name).remat()
    # The device's own part may be kept, which the gather of the backward pass reads.
    assert {row["kind"] for row in remat.candidates} <= {"activation"}
    assert remat.peak == remat.peak_after > 0


def test_unrolled_layers() -> None:
    module = hlofast.load(UNROLLED)
    remat = module.remat()
    assert remat.peak_at is not None
    rows = chosen(remat)
    assert [row["kind"] for row in rows] == ["gathered_activation"] * 3
    assert remat.steps[-1] == remat.peak_after == peak(remat.apply())
    assert remat.peak_after < remat.peak - 2 * 64 * MEBIBYTE
    for number, row in enumerate(remat.candidates):
        assert (row["peak"] is None) == bool(row["refusal"])
        assert (row["saved"] is None or row["saved"] <= 0) == bool(
            row["refusal"] or row["no_saving"]
        )
        if row["peak"] is not None:
            assert row["saved"] == remat.peak - row["peak"]
            assert peak(applied(remat, number)) == row["peak"]
            assert row["kept_instead"] < row["bytes"]
    # Without a device seconds are not known.
    assert all(row["seconds"] is None for row in remat.candidates)
    wire = [row["wire_bytes"] for row in rows]
    assert wire == [3 * 16 * MEBIBYTE] * 3


def test_seconds_are_those_of_the_device() -> None:
    mesh = hlofast.Mesh({"data": 2, "model": 4})
    module = hlofast.load(UNROLLED)
    remat = module.remat(device="tpu-v5e", mesh=mesh)
    time = module.time("tpu-v5e", mesh=mesh)
    gathers = {row["name"]: row["seconds"] for row in time.collectives}
    alone = [row for row in remat.candidates if row["again"] in gathers]
    assert alone
    for row in alone:
        assert row["seconds"] == pytest.approx(gathers[row["again"]])


def test_a_budget_takes_as_few_as_are_enough() -> None:
    module = hlofast.load(UNROLLED)
    everything = module.remat()
    for count, wanted in enumerate(everything.steps, 1):
        remat = module.remat(hbm=wanted)
        assert remat.fits is True
        assert remat.peak_after <= wanted
        assert len(chosen(remat)) <= count
        assert peak(remat.apply()) == remat.peak_after
    assert module.remat(hbm=everything.peak).fits is True
    assert module.remat(hbm=everything.peak).steps == ()
    too_little = module.remat(hbm="1MB")
    assert too_little.fits is False
    assert too_little.peak_after == everything.peak_after


def test_a_stack_in_a_loop() -> None:
    remat = hlofast.load(REWRITES / "stacked_features" / "module.txt.gz").remat()
    number, row = next((number, row) for number, row in enumerate(remat.candidates) if row["saved"])
    assert row["is_stack"] == 1
    assert row["shape"] == "f32[6,64,512]"
    assert row["kept_instead"] * 8 == row["bytes"] == 6 * 64 * 512 * 4
    assert row["saved"] == row["bytes"] - row["kept_instead"]
    assert peak(applied(remat, number)) == row["peak"] == remat.peak - row["saved"]


def test_a_stack_that_a_fusion_of_a_compiled_program_writes() -> None:
    remat = fixture("mlp_scan_saved").remat()
    (row,) = chosen(remat)
    assert (row["kind"], row["shape"]) == ("gathered_activation", "bf16[4,8,2048,2048]")
    assert (row["is_stack"], row["is_alive_at_peak"]) == (1, 1)
    assert row["kept_instead"] == 64 * MEBIBYTE
    assert row["saved"] == 3 * 64 * MEBIBYTE
    assert peak(remat.apply()) == remat.peak_after == remat.peak - row["saved"]
    others = [row["refusal"] for row in remat.candidates if row["chosen"] is None]
    assert all(others)


@pytest.mark.parametrize(
    "path", sorted(REWRITES.glob("*/module.txt.gz")), ids=lambda p: p.parent.name
)
def test_predictions_hold_for_programs_before_fusion(path: Path) -> None:
    remat = hlofast.load(path).remat()
    for number, row in enumerate(remat.candidates):
        if row["peak"] is not None:
            assert peak(applied(remat, number)) == row["peak"], row["name"]


JUDGED = json.loads((FIXTURES / "plans_unscheduled.json").read_text())
"""Peaks of programs that XLA has not scheduled, by hlofast and by XLA: `judge_plans.py`."""


def test_plans_of_unscheduled_modules_are_refused(tmp_path: Path) -> None:
    # What XLA needs of what such plans would be: with its passes, most peaks stay as they are.
    kept = [own["xla"]["all"] for own in JUDGED.values()]
    assert len(kept) >= 12
    assert sum(after >= before for before, after in kept) > len(kept) / 2
    path = REWRITES / "gathered_layers" / "module.txt.gz"
    remat = hlofast.load(path).remat(hbm="1MiB")
    assert (remat.steps, remat.peak_after, remat.fits) == ((), remat.peak, False)
    with pytest.raises(ValueError, match=r"XLA has not scheduled the module.*scheduled module"):
        remat.apply()
    assert any(note.code == "plan-unscheduled" for note in remat.notes)
    out = tmp_path / "less.txt"
    done = hlofast_command("remat", path, "--hbm", "1MiB", "--apply", "-o", out)
    assert done.returncode == 1 and "XLA has not scheduled the module" in done.stderr
    assert "no values are planned: XLA has not scheduled the module" in done.stdout
    assert not out.exists()
    # Candidates can be written one by one, to be measured.
    number = next(n for n, row in enumerate(remat.candidates) if row["saved"])
    assert peak(remat.apply([number])) < remat.peak


def test_broadcast_scalars_do_not_pass_the_barrier_of_a_copy() -> None:
    text = """\
HloModule m

ENTRY e {
  x = f32[512,512] parameter(0)
  w = f32[512,512] parameter(1)
  rate = f32[] parameter(2)
  half = f32[] constant(0.5)
  halves = f32[512,512] broadcast(half), dimensions={}
  rates = f32[512,512] broadcast(rate), dimensions={}
  scaled = f32[512,512] multiply(x, halves), metadata={op_name="jit(f)/jvp(f)/mul"}
  kept = f32[512,512] multiply(scaled, rates), metadata={op_name="jit(f)/jvp(f)/mul"}
  up = f32[512,512] dot(kept, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp(f)/dot"}
  out = f32[512,512] dot(up, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/transpose(jvp(f))/dot"}
  back = f32[512,512] dot(out, kept), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/transpose(jvp(f))/dot"}
  ROOT t = (f32[512,512], f32[512,512]) tuple(out, back)
}
"""
    remat = hlofast.loads(text).remat()
    number = next(n for n, row in enumerate(remat.candidates) if row["peak"] is not None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = remat.apply([number])
    (barrier,) = [own for own in again.instructions if own.opcode == "opt-barrier"]
    handed_on = {operand.name for operand in barrier.operands[0].operands}
    assert not handed_on & {"halves", "rates"}
    copies = [own for own in again.instructions if ".remat" in own.name]
    assert sum(own.opcode == "broadcast" for own in copies) >= 1


@pytest.mark.parametrize(
    ("text", "count"),
    [("16GiB", 1 << 34), ("900 MB", 900_000_000), ("1.5kib", 1536), ("12", 12), (7, 7)],
)
def test_sizes(text: int | str, count: int) -> None:
    module = hlofast.loads("HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }")
    assert module.remat(hbm=text).hbm == count


@pytest.mark.parametrize("text", ["16 X", "GiB", "-1", -1, 1 << 63, "1e400GiB", "nan GiB", ""])
def test_wrong_sizes(text: int | str) -> None:
    module = hlofast.loads("HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }")
    with pytest.raises(ValueError, match="a number of bytes such as 16GiB"):
        module.remat(hbm=text)


def test_wrong_candidates() -> None:
    remat = hlofast.load(UNROLLED).remat()
    refused = next(n for n, row in enumerate(remat.candidates) if row["refusal"])
    with pytest.raises(ValueError, match=remat.candidates.row(refused)["name"]):
        remat.apply([refused])
    with pytest.raises(ValueError, match="candidates is empty"):
        remat.apply([])
    for wrong in ([-1], [len(remat.candidates)]):
        with pytest.raises(IndexError):
            remat.apply(wrong)


def test_pickle() -> None:
    remat = fixture("norm_v4_named_after").remat("1GiB", "tpu-v5e", rule="values")
    again = pickle.loads(pickle.dumps(remat))
    assert (again.hbm, again.device, again.fits) == (remat.hbm, remat.device, True)
    assert again.rule == "values"


@pytest.mark.parametrize("rule", ["in_place", "values", "xla"])
def test_rules(rule: str) -> None:
    module = hlofast.load(UNROLLED)
    remat = module.remat(rule=rule)
    assert remat.rule == rule

    def counted(module: hlofast.Module) -> int:
        again = hlofast.loads(module.to_text())
        return again.memory().hbm_peak if rule == "xla" else again.memory(rule=rule).live_peak

    assert remat.peak == counted(module)
    assert remat.steps
    assert remat.peak_after == counted(remat.apply())
    for number, row in enumerate(remat.candidates):
        if row["peak"] is not None:
            assert row["peak"] == counted(applied(remat, number))


def test_the_usual_rule() -> None:
    """XLA's figure of scheduled TPU modules, what is alive of others."""
    assert hlofast.load(UNROLLED).remat().rule == "xla"
    assert fixture("layers_cpu_4x2").remat().rule == "in_place"
    assert hlofast.load(REWRITES / "gathered_layers" / "module.txt.gz").remat().rule == "in_place"
    with pytest.raises(ValueError, match="rule must be one of in_place, values, xla"):
        hlofast.load(UNROLLED).remat(rule="guess")


def test_a_gather_that_fusions_start_and_end() -> None:
    remat = fixture("offload_v5e_16").remat()
    number, row = next(
        (number, row)
        for number, row in enumerate(remat.candidates)
        if row["again"] == "async-collective-done.3"
    )
    assert (row["kind"], row["refusal"]) == ("gathered_weight", None)
    assert row["kept_instead"] * 16 == row["bytes"] == 4096 * 32000 * 2
    assert row["wire_bytes"] == row["bytes"] * 15 // 16
    again = hlofast.loads(applied(remat, number).to_text(), strict=True)
    assert again["async-collective-done.3.remat"].opcode == "all-gather"


@pytest.mark.parametrize("name", ["checkpointed", "before_barrier", "before_barriers"])
def test_gathers_that_late_users_see_behind_a_barrier(name: str) -> None:
    """The pattern of openxla/xla pull request 19163; XLA's judgement is in rewrites/index.jsonl."""
    module = hlofast.load(REWRITES / f"gathered_{name}" / "module.txt.gz")
    assert any(instruction.opcode == "opt-barrier" for instruction in module.instructions)
    remat = module.remat()
    kinds = remat.candidates["kind"].tolist()
    numbers = [number for number, kind in enumerate(kinds) if kind.startswith("gathered")]
    rows = [remat.candidates.row(number) for number in numbers]
    assert len(rows) == 3
    for row in rows:
        # What a parameter is gathered from is there in any case.
        instead = 0 if row["kind"] == "gathered_weight" else row["bytes"] // 8
        assert (row["refusal"], row["kept_instead"]) == (None, instead)
    gathers = {row["name"] for row in rows}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Some save nothing, which is said.
        again = remat.apply(numbers)
    for barrier in again.instructions:
        if barrier.opcode == "opt-barrier" and "remat" not in barrier.name:
            (handed_on,) = barrier.operands
            assert not gathers & {operand.name for operand in handed_on.operands}


def test_command(tmp_path: Path) -> None:
    wanted = hlofast.load(UNROLLED).remat().steps[0]
    out = tmp_path / "less.txt"
    printed = document("remat", UNROLLED, "--hbm", str(wanted), "--apply", "-o", out)
    (module,) = printed["results"]
    (plan,) = module["tables"]["plan"]
    assert (plan["hbm"], plan["fits"], plan["outcome"]) == (wanted, "yes", "fits")
    steps = module["tables"]["steps"]
    assert steps[-1]["peak"] == plan["peak_after"]
    for step in steps:
        candidate = module["tables"]["candidates"][step["candidate"]]
        assert (candidate["name"], candidate["change"]) == (step["name"], step["change"])
    assert hlofast.load(out).remat().peak == plan["peak_after"] <= wanted
    assert [path.name for path in tmp_path.iterdir()] == ["less.txt"]
    done = hlofast_command("remat", UNROLLED, "--hbm", str(wanted), "--apply", "-o", out)
    applied = f"{out} is the module with {len(steps)} step"
    assert applied in done.stderr and "to be measured, not run" in done.stderr
    assert "no checkpoint policy is applied" in done.stderr
    assert (plan["rule"], plan["is_default"]) == ("xla", True)
    assert (plan["sizes"], plan["space"], plan["constants"]) == ("device", "hbm", "program")
    done = hlofast_command("remat", UNROLLED, "--device", "tpu-v5e", "--hbm", "1100MB", "--plan")
    assert done.returncode == 0, done.stderr
    text = done.stdout[done.stdout.index("\nPlan\n") :]
    assert "  fits     xla   hbm    tpu-v5e\n" in text
    assert "\n1. gathered activation all-gather" in text
    assert " ms\n  change: save neither the tensor nor the shard before the constraint" in text
    assert "plan" not in document("remat", UNROLLED)["results"][0]["tables"]
    (module,) = document("remat", UNROLLED, "--rule", "in_place")["results"]
    (plan,) = module["tables"]["plan"]
    assert plan["peak"] == hlofast.load(UNROLLED).memory().live_peak
    assert (plan["is_default"], plan["hbm"], plan["fits"]) == (False, None, None)


def test_command_says_why_a_candidate_saves_nothing() -> None:
    path = FIXTURES / "sharded" / "norm_v4_named_after.txt.gz"
    (module,) = document("remat", path, "--plan")["results"]
    (candidate,) = module["tables"]["candidates"]
    (plan,) = module["tables"]["plan"]
    assert (candidate["no_saving"], candidate["saved"]) == ("kept in fast memory", 0)
    assert (plan["rule"], plan["constants"]) == ("xla", "program")
    done = hlofast_command("remat", path, "--plan")
    assert "  xla   hbm\n" in done.stdout
    assert "  kept in fast memory\n" in done.stdout


def test_command_without_anything_to_apply(tmp_path: Path) -> None:
    out = tmp_path / "less.txt"
    path = FIXTURES / "sharded" / "norm_v0.txt.gz"
    done = hlofast_command("remat", path, "--apply", "-o", out)
    assert done.returncode == 1
    assert "nothing was written" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments",
    [("--apply",), ("-o", "x"), ("--hbm", "many"), ("--device", "abacus")],
)
def test_wrong_arguments(arguments: tuple[str, ...]) -> None:
    done = hlofast_command("remat", UNROLLED, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hlofast: ")


def test_wrong_rule() -> None:
    done = hlofast_command("remat", UNROLLED, "--rule", "none")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'in_place', 'values', 'xla'" in done.stderr


def test_several_modules_cannot_be_applied(tmp_path: Path) -> None:
    text = gzip.decompress((FIXTURES / "sharded" / "norm_v0.txt.gz").read_bytes()).decode()
    path, out = tmp_path / "two.txt", tmp_path / "out.txt"
    path.write_text(text + "\n\n" + text)
    done = hlofast_command("remat", path, "--apply", "-o", out)
    assert done.returncode == 2
    assert "one module" in done.stderr
    assert not out.exists()
