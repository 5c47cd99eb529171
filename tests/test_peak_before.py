"""Before optimisation there is one peak to go by: that of the model of checkpoint policies."""

from __future__ import annotations

import gzip
import html
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from hlofast import cli

sys.path.insert(0, str(FIXTURES))
import policy_texts

ADDED = ("collectives", "payload", "wire_bytes")
"""The figures of what the partitioner adds."""
SHARED = "held_gelu_v5e_16.none"
"""A text of 16 devices together."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("before") / "lowered.txt"
    path.write_bytes(policy_texts.unpack("lowered")[SHARED])
    return path


def facts(result: Any) -> dict[str, Any]:
    return {fact.name: fact.value for fact in result.facts}


@pytest.mark.parametrize("kind", ["of all devices together", "of one device"])
def test_every_surface_has_the_peak_of_the_policies(place: Path, kind: str) -> None:
    path = place if kind != "of one device" else FIXTURES / "policies" / "two_forms.txt.gz"
    module = hlofast.load(path, device="tpu-v5e")
    policies = module.remat().policies
    assert policies is not None and policies.is_modelled
    memory, verdict = module.memory(), module.verdict()
    # The text in its own order needs something else, and is not what is judged.
    assert memory.live_peak != policies.peak
    assert memory.needed == (policies.peak, "modelled")
    assert facts(memory)["modelled_peak"] == facts(verdict)["peak"] == policies.peak
    hbm = facts(memory)["hbm"]
    assert facts(memory)["hbm_left"] == hbm - policies.peak
    assert facts(memory)["fits"] == (policies.peak <= hbm)
    assert module.what_if(policy="nothing_saveable").figures["xla_peak"][0] == policies.peak
    assert module.what_if().figures["xla_peak"][0] == policies.peak


def test_memory_says_what_its_peaks_are_and_which_to_trust(place: Path) -> None:
    module = hlofast.load(place)
    memory = module.memory()
    [note] = [note.text for note in memory.notes if note.code == "modelled-peak"]
    assert note.startswith("use the modelled peak")
    assert "median error" in note and "of all devices together" in note
    assert "live peak" in note
    labels = {fact.name: fact.field.label for fact in memory.facts}
    assert labels["modelled_peak"] == "modelled peak of one device"
    assert labels["live_peak"] == "live peak of all devices"
    # The page shows the note beside the figures, and the verdict how far its peak is off.
    page = html.unescape(re.sub(r"<[^>]+>", " ", module.report(plots=False).html))
    assert note in page
    assert "policy-error" in {note.code for note in module.verdict().notes}


def test_what_does_not_fit_is_judged_for_one_device(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """16.9 GB of HBM do not hold the step, but hold it under a policy; the text says 111 GB."""
    verdict = hlofast.load(place, device="tpu-v5e").verdict()
    [own] = [own for own in verdict.statements if own.code == "does-not-fit"]
    assert "at the peak of one device" in own.text
    assert own.remedy.startswith("put the layers under jax.checkpoint")
    roomy = hlofast.load(place, device="tpu-v5p")
    assert facts(roomy.memory())["fits"] is True
    assert not [own for own in roomy.verdict().statements if own.code == "does-not-fit"]
    assert cli.main(["remat", "--plan", str(place)]) == 0
    shown = capsys.readouterr().out
    assert "the peak to use is that of the policies" in shown


def test_bytes_of_all_devices_are_not_compared_with_the_memory_of_one() -> None:
    module = hlofast.load(FIXTURES / "shares" / "tp.before.txt.xz", device="tpu-v5e")
    assert module.remat().policies is None
    memory = module.memory()
    assert memory.needed is None
    assert "fits" not in facts(memory)


def test_a_scheduled_module_has_the_peak_that_xla_counts() -> None:
    module = hlofast.load(FIXTURES / "sharded" / "mlp_scan_saved.txt.gz")
    assert module.remat().policies is not None
    memory = module.memory()
    assert memory.peak_before is None
    assert "modelled_peak" not in facts(memory)
    assert "modelled-peak" not in {note.code for note in memory.notes}


def test_a_difference_has_both_peaks_and_says_what_they_cover(place: Path) -> None:
    before = hlofast.load(place)
    after = before.what_if(batch="2x").changed
    totals = {row["measure"]: row for row in before.diff(after).totals()}
    modelled, live = totals["modelled_peak"], totals["live_peak"]
    policies = [module.remat().policies for module in (before, after)]
    assert [modelled["before"], modelled["after"]] == [own.peak for own in policies if own]
    assert (modelled["devices_before"], modelled["devices_after"]) == (1, 1)
    assert (live["devices_before"], totals["flops"]["devices_after"]) == (16, 16)
    assert totals["instructions"]["devices_before"] is None
    for measure in ADDED:
        row = totals[measure]
        assert row["before"] is row["after"] is row["change"] is None, measure
        assert row["provenance"] == "unknown"
    codes = {note.code: note.text for note in before.diff(after).notes}
    assert codes["global"] == "both: not partitioned yet: figures cover all 16 devices together"
    assert "median error" in codes["modelled-peak"]


def test_all_devices_are_not_subtracted_from_one_device() -> None:
    folder = FIXTURES / "peaks"
    before = hlofast.load(folder / "mlp_adam_v6e.before.txt.xz")
    after = hlofast.load(folder / "mlp_adam_v6e.txt.xz")
    totals = {row["measure"]: row for row in before.diff(after).totals()}
    for measure in ("flops", "bytes_accessed", "live_peak"):
        row = totals[measure]
        assert row["before"] > row["after"] > 0 and row["change"] is None, measure
        assert (row["devices_before"], row["devices_after"]) == (4, 1)
    assert totals["instructions"]["change"] == after.instruction_count - before.instruction_count
    # One side is known, and is what the model says of it.
    modelled = totals["modelled_peak"]
    assert modelled["before"] and modelled["after"] is None
    assert modelled["provenance"] == "modelled"


def test_what_the_partitioner_adds_is_no_change() -> None:
    """0 B before partitioning and 10 MB after it are one program."""
    folder = FIXTURES / "peaks"
    before = hlofast.load(folder / "mlp_adam_v6e.before.txt.xz")
    after = hlofast.load(folder / "mlp_adam_v6e.txt.xz")
    for diff, own, other in (
        (before.diff(after), "after", "before"),
        (after.diff(before), "before", "after"),
    ):
        totals = {row["measure"]: row for row in diff.totals()}
        for measure in ADDED:
            row = totals[measure]
            assert row[own] > 0 and row[other] is row["change"] is row["share"] is None, measure
        assert (totals["collectives"]["provenance"], totals["payload"]["provenance"]) == (
            "exact",
            "exact",
        )
        assert len(diff.collectives())
        for row in diff.collectives():
            assert row[f"wire_bytes_{own}"] > 0 and row[f"wire_bytes_{other}"] is None
            assert row[f"executions_{other}"] is None


def test_growth_of_figures_that_cover_other_devices_is_not_called_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sides = [str(FIXTURES / "peaks" / f"mlp_adam_v6e{end}.txt.xz") for end in (".before", "")]
    limits = "wire_bytes=5%,live_peak=5%,flops=5%"
    assert cli.main(["diff", "--max-growth", limits, *sides]) == 1
    told = capsys.readouterr().err
    why = "cannot be compared: BEFORE covers 4 devices, AFTER covers 1 device; allowed: 5 %"
    assert f"live_peak {why}" in told and f"flops {why}" in told
    assert "wire_bytes unknown" in told


def test_growth_that_no_model_covers_is_told_in_the_order_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(FIXTURES / "peaks" / "mlp_adam_v6e.txt.xz")
    assert cli.main(["diff", "--max-growth", "modelled_peak=1%,flops=0%", path, path]) == 1
    assert "modelled_peak unknown: no model covers" in capsys.readouterr().err


def test_bytes_that_the_partitioner_adds_are_unknown_everywhere(
    place: Path, tmp_path: Path
) -> None:
    module = hlofast.load(place)
    collectives = module.collectives()
    assert not {"payload", "wire_bytes"} & set(facts(collectives))
    assert "unknown" in {note.code: note.text for note in collectives.notes}["global"]
    shutil.copy(place, tmp_path / "module_0001.jit_step.before_optimizations.txt")
    scanned = hlofast.scan(tmp_path)
    for table, names in (("programs", ("collectives", "wire_bytes")), ("modules", ADDED)):
        for name in names:
            assert scanned[table].values(name) == [None], (table, name)
    assert "unknown" in {note.code: note.text for note in scanned.notes}["global"]


def test_tables_of_bytes_of_all_devices_say_so(place: Path) -> None:
    titles = [section.title for section in hlofast.load(place).memory().sections()]
    assert titles[0] == "At the peak of all devices, by class"
    assert titles[1].startswith("Live at ") and titles[1].endswith(" of all devices")
    after = hlofast.load(FIXTURES / "sharded" / "mlp_scan_saved.txt.gz").memory().sections()
    assert not [section.title for section in after if "of all devices" in section.title]


def test_a_changed_step_has_the_sizes_of_the_text(place: Path) -> None:
    """The batch of the text is that of all devices, and is not multiplied by them once more."""
    module = hlofast.load(place, device="tpu-v5e")
    changed = module.what_if()
    (batch,) = (own for own in changed.symbols if own.role == "batch")
    assert f"batch__tokens__.1 = s32[{batch.size}," in module.text
    doubled, twice = module.what_if(batch=2 * batch.size), module.what_if(batch="2x")
    assert doubled.figures == twice.figures
    flops = doubled.figures["flops"]
    assert flops[1] == pytest.approx(2 * flops[0], rel=0.01)
    assert doubled.figures["xla_peak"][1] > doubled.figures["xla_peak"][0]
    with pytest.raises(ValueError, match="not partitioned yet"):
        module.what_if(mesh={"data": 4})


def test_a_changed_step_says_what_its_figures_cover(place: Path) -> None:
    result = hlofast.load(place, device="tpu-v5e").what_if(batch="2x")
    labels = {fact.name: fact.field.label for fact in result.facts}
    assert labels["xla_peak_after"] == "modelled peak of one device after"
    assert labels["flops_after"] == "FLOP of all devices after"
    assert labels["step_seconds_before"] == "step time of one device alone before"
    assert result.figures["wire_bytes"] == result.figures["exposed_seconds"] == (None, None)
    codes = {note.code: note.text for note in result.notes}
    assert "of all 16 devices, times" in codes["global"]
    assert "median error" in codes["modelled-peak"]
    assert "as-compiled" not in codes
    unmodelled = hlofast.load(FIXTURES / "shares" / "attention.before.txt.xz", device="tpu-v5e")
    assert unmodelled.remat().policies is None
    assert unmodelled.what_if().needed is None


def test_a_message_is_joined_to_the_peak_of_one_device(place: Path) -> None:
    message = (FIXTURES / "messages" / "scanned_v6e_0024.txt").read_text()
    module = hlofast.load(place)
    result = hlofast.oom(message, module=module)
    told = facts(result)
    assert told["modelled_peak"] == module.memory().needed[0]
    assert "live_peak" not in told
    titles = [section.title for section in result.sections()]
    assert f"Module {module.name} of all devices at its peak, by class" in titles
    assert not [own for own in result.advice if "rematerialise" in own.text]
    assert {"global", "modelled-peak"} <= {note.code for note in result.notes}


def test_residuals_of_all_devices_are_labelled(place: Path) -> None:
    remat = hlofast.load(place).remat()
    labels = {fact.name: fact.field.label for fact in remat.facts}
    assert labels["residual_bytes"] == "residual bytes of all devices"
    [kept] = [own for own in remat.statements if own.code == "residuals"]
    assert "B of all devices (" in kept.text


def test_a_folder_has_the_peak_of_one_device(place: Path, tmp_path: Path) -> None:
    shutil.copy(place, tmp_path / "module_0001.jit_step.before_optimizations.txt")
    verdict = hlofast.report(tmp_path, device="tpu-v5e", plots=False).verdict
    assert verdict["modelled_peak"] == hlofast.load(place).memory().needed[0]
    assert verdict["step"] is None
    assert not {"live_peak", "wire_bytes"} & set(verdict)
    scanned = hlofast.scan(tmp_path)
    assert scanned["modules"].values("devices_together") == [16]
    (section, *_) = scanned.sections()
    assert "devices_together" in section.columns
    assert "all devices together" in {note.code: note.text for note in scanned.notes}["global"]


def test_a_folder_says_which_programs_are_modelled(tmp_path: Path) -> None:
    """The peaks of many programs would take long; the largest may be another program's."""
    text = gzip.decompress((FIXTURES / "policies" / "two_forms.txt.gz").read_bytes())
    for number in range(25):
        name = f"module_{number:04}.jit_step{number}.before_optimizations.txt"
        small = b"HloModule jit_small\n\nENTRY e {\n  ROOT p = f32[8] parameter(0)\n}\n"
        (tmp_path / name).write_bytes(small if number else text)
        if number == 23:
            page = hlofast.report(tmp_path, device="tpu-v5e", plots=False)
            assert page.verdict["modelled_peak"]
            assert "with the most FLOPs" not in page.html
    page = hlofast.report(tmp_path, device="tpu-v5e", plots=False)
    assert "of the 24 programs with the most FLOPs" in page.html


def test_a_history_says_which_dumps_cover_all_devices() -> None:
    history = hlofast.history(FIXTURES / "dump_folders" / "tpu")
    counts = history.values("devices_together")
    assert counts[0] == 8 and set(counts[1:]) == {1}
    for name in ("collectives", "wire_bytes"):
        values = history.values(name)
        assert values[0] is None and None not in values[1:], name
    assert history.values("flops")[0] > 4 * history.values("flops")[-1]
    [note] = [note for note in history.notes if note.code == "global"]
    assert note.figures["dumps"] == 1


def test_every_figure_of_all_devices_is_labelled(place: Path, tmp_path: Path) -> None:
    module = hlofast.load(place, device="tpu-v5e")
    trace = module.trace(tmp_path / "trace.json")
    for result, name in (
        (module.matmuls(), "flops"),
        (module.show("while.51"), "bytes"),
        (trace, "live_peak"),
        (trace, "step_seconds"),
    ):
        labels = {fact.name: fact.field.label for fact in result.facts}
        covered = " of one device alone" if name == "step_seconds" else " of all devices"
        assert labels[name].endswith(covered), (type(result).__name__, name)
    assert "global" in {note.code for note in module.matmuls().notes}


def test_the_error_is_not_told_of_texts_for_which_it_is_unknown() -> None:
    """Optimised, but not scheduled: the model's error is measured before optimisation."""
    module = hlofast.load(FIXTURES / "seedlike" / "gpu_train_step.txt.gz")
    assert module.summary().status == "optimised"
    [note] = [note for note in module.memory().notes if note.code == "modelled-peak"]
    assert "optimised already" in note.text
