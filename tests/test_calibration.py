"""Achieved rates of a machine, fitted on a profile."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import A100_STEP, A100_TRACE
from shown import check_one_source, document, figures
from xplane_writer import Event, Plane, space

FAST = hlofast.devices.get("a100").replace(launch=4e-6)
"""The machine that the synthetic profile was recorded on."""


def program(count: int = 64) -> str:
    """A program of small additions, each of which takes a launch."""
    lines = [
        f"  add.{at} = f32[128] add({'q' if at == 0 else f'add.{at - 1}'}, q)"
        for at in range(count)
    ]
    return "\n".join(
        ["HloModule step, is_scheduled=true", "ENTRY main {", "  q = f32[128] parameter(0)",
         *lines, f"  ROOT last = f32[128] negate(add.{count - 1})", "}"]
    )  # fmt: skip


def recorded(module: hlofast.Module, device: hlofast.devices.Device) -> hlofast.Profile:
    """A profile in which every instruction takes the modelled time on `device`."""
    seconds = module.time(device)._values("seconds")
    plane, start, ops = Plane("/device:GPU:0"), 0, []
    for instruction in module:
        length = round((seconds[instruction.row] or 0.0) * 1e12)
        if length:
            stats = {"hlo_op": instruction.name, "hlo_module": module.name}
            ops.append(Event(instruction.name, start, length, stats))
            start += length
    plane.line("Stream #7(Compute)", ops)
    return hlofast.load_profile(space([plane]))


def test_the_rates_of_a_known_machine_are_found() -> None:
    module = hlofast.loads(program())
    measured = module.profile(recorded(module, FAST), device="a100")
    calibration = measured.calibrate()
    assert calibration.device.value("launch") == pytest.approx(4e-6, rel=0.02)
    facts = {fact.name: fact.value for fact in calibration.facts}
    assert facts["after_step"] == pytest.approx(module.time(FAST).step_seconds, rel=0.02)
    assert facts["after_error"] < 0.02 < facts["before_error"]
    # No matmul and no collective says anything of these figures.
    kept = {note.text.partition(" ")[0] for note in calibration.notes if note.code == "too-few"}
    assert "launch" not in kept
    assert calibration.device.value("link_bandwidth") == FAST.value("link_bandwidth")


@pytest.fixture(scope="module")
def calibration(a100: hlofast.Module) -> hlofast.Calibration:
    """The machine of the measured step."""
    return a100.profile().calibrate()


def test_a_real_step_is_predicted_better_than_before(
    calibration: hlofast.Calibration, run: Any
) -> None:
    facts = {fact.name: fact.value for fact in calibration.facts}
    assert facts["measured_step"] == pytest.approx(0.12746, rel=1e-3)
    off = [abs(facts[name] / facts["measured_step"] - 1) for name in ("before_step", "after_step")]
    assert off[1] < off[0]
    assert facts["after_error"] < facts["before_error"]
    rows = list(calibration.tables["errors"])
    assert {row["half"] for row in rows} == {"fitted", "held out"}
    # Half of the instructions were not fitted, and long ones, too, are predicted better.
    held = [row for row in rows if row["half"] == "held out"]
    long = [row for row in held if row["bound"] in ("compute", "memory")]
    assert all(row["after_error"] < row["before_error"] for row in long)
    # 23 collectives, of which some wait for other devices, are too few.
    kept = {note.text.partition(" ")[0] for note in calibration.notes}
    assert kept == {"collective_latency", "link_efficiency"}
    code, out, _ = run("calibrate", A100_TRACE, A100_STEP)
    assert code == 0
    check_one_source(calibration, out)


def test_the_file_changes_predictions(
    tmp_path: Path, a100: hlofast.Module, calibration: hlofast.Calibration, run: Any
) -> None:
    path = tmp_path / "machine.toml"
    (result,) = document(run, "calibrate", A100_TRACE, A100_STEP, "-o", path)
    assert figures(result) == {fact.name: fact.value for fact in calibration.facts}
    content = path.read_text()
    assert "pjit__wrapped_step_fn" in tomllib.loads(content)["sources"]["calibration"]
    calibration.save(str(path))
    assert path.read_text() == content
    (result,) = document(run, "time", A100_STEP, "--device", "a100", "--devices", path)
    after = {fact.name: fact.value for fact in calibration.facts}["after_step"]
    assert figures(result)["step_seconds"] == after
    (note,) = [note for note in result["notes"] if note["code"] == "calibrated"]
    assert note["text"].startswith("the rates of a100 are fitted on 1,")
    # The file names its device; no option has to repeat it.
    (again,) = document(run, "time", A100_STEP, "--devices", path)
    assert figures(again) == figures(result)
    code, _, error = run("time", A100_STEP, "--devices", tmp_path / "absent.toml")
    assert (code, "absent.toml" in error) == (2, True)
    calibration.save(str(path), 'my "machine"')
    device = hlofast.devices.load(path)['my "machine"']
    assert {key: device.value(key) for key in device} == {
        key: calibration.device.value(key) for key in calibration.device
    }
    assert a100.with_context(profile=None).time(device).step_seconds == after


def test_time_takes_the_rates_of_a_profile(tmp_path: Path, run: Any) -> None:
    text = tmp_path / "other.txt"
    text.write_text(program(8))
    folder = tmp_path / "dump"
    folder.mkdir()
    module = hlofast.loads(program())
    (folder / "module_0001.step.sm_8.0_gpu_after_optimizations.txt").write_text(program())
    stats = recorded(module, FAST)
    assert stats.events
    plane = Plane("/device:GPU:0")
    plane.line(
        "Stream #7(Compute)",
        [
            Event(f"add.{at}", 5_000_000 * at, 4_000_000, {"hlo_op": f"add.{at}",
                                                           "hlo_module": "step"})
            for at in range(64)
        ],
    )  # fmt: skip
    profile = folder / "vm.xplane.pb"
    profile.write_bytes(space([plane]))
    usual, fitted = (
        figures(document(run, "time", text, "--device", "a100", *options)[0])["step_seconds"]
        for options in ((), ("--calibrate", profile))
    )
    assert fitted > 1.3 * usual
    # The mesh is that of the program to time.
    mesh = ("--mesh", "data=4")
    (own,) = document(run, "time", text, "--device", "a100", *mesh, "--calibrate", profile)
    assert figures(own)["step_seconds"] == fitted
    code, _, error = run("time", text, "--device", "a100", "--calibrate", tmp_path / "absent.pb")
    assert (code, "absent.pb" in error) == (3, True)


def test_nothing_is_held_out_of_nothing(tmp_path: Path) -> None:
    module = hlofast.loads(program(2))
    calibration = module.profile(recorded(module, FAST), device="a100").calibrate()
    assert calibration.fitted == []
    assert not [fact for fact in calibration.facts if fact.name == "after_error" and not fact.value]
    with pytest.raises(ValueError, match="nothing was fitted"):
        calibration.save(str(tmp_path / "machine.toml"))
    assert list(tmp_path.iterdir()) == []


def test_names_in_the_file(tmp_path: Path, calibration: hlofast.Calibration) -> None:
    path = tmp_path / "machine.toml"
    calibration.save(str(path), "machine\U0001f600")
    assert "machine\U0001f600" in hlofast.devices.load(path)
    with pytest.raises(ValueError, match="a different built-in device"):
        calibration.save(str(path), "h100")


def test_no_bandwidth_above_the_data_sheet() -> None:
    chip = hlofast.devices.get("a100")
    fast = chip.replace(hbm_bandwidth=20e12, hbm_achieved_bandwidth=20e12)
    lines = [f"  add.{at} = f32[4194304] negate(q)" for at in range(64)]
    text = "\n".join(["HloModule step, is_scheduled=true", "ENTRY main {",
                      "  q = f32[4194304] parameter(0)", *lines,
                      "  ROOT last = f32[4194304] negate(add.63)", "}"])  # fmt: skip
    module = hlofast.loads(text)
    device = module.profile(recorded(module, fast), device="a100").calibrate().device
    assert device.value("hbm_achieved_bandwidth") <= chip.value("hbm_bandwidth")


def test_without_a_device_or_with_another_kind_it_says_so(run: Any, tmp_path: Path) -> None:
    step = tmp_path / "step.txt"
    step.write_bytes(hlofast.load(A100_STEP).to_text().encode())
    code, _, error = run("calibrate", A100_TRACE, step)
    assert (code, "no device given" in error) == (2, True)
    assert "use --device NAME" in error
    code, _, error = run("calibrate", A100_TRACE, A100_STEP, "--device", "tpu-v5e")
    assert (code, "tpu-v5e" in error) == (2, True)
    code, _, error = run("calibrate", A100_TRACE, A100_STEP, "-o", tmp_path)
    assert (code, str(tmp_path) in error) == (3, True)
