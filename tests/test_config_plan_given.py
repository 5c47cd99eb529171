"""What a plan is given: machines other than their names say, attention, defaults, arguments."""

import json
from pathlib import Path

import numpy
import pytest

import hlofast
from conftest import FIXTURES
from hlofast._result import Result
from test_cli import document, hlofast_command
from test_config_plan import SEVEN, run

SMALL = FIXTURES / "configs" / "decoder_small.txt"
KERNELS = ("cudnn_flash_te", "cudnn_flash_jax")


def told(result: Result, code: str) -> list[str]:
    return [note.text for note in result.notes if note.code == code]


class TestMachines:
    @pytest.mark.parametrize("config", [run(*SEVEN), hlofast.config.load(SMALL)])
    def test_other_devices_than_the_name_says(self, config: hlofast.config.Config) -> None:
        text = "32 devices are given, but the name says 64 (128 cores, two per device)"
        plan = config.plan("tpu-v5p-128", 32)
        assert told(plan, "overridden") == told(plan.like({}), "overridden") == [text]
        notes = config.select("tpu-v5p-128", 32).notes
        assert text in [row["text"] for row in notes if row["kind"] == "devices"]
        for count in (None, 64):
            assert not told(config.plan("tpu-v5p-128", count), "overridden")
            notes = config.select("tpu-v5p-128", count).notes
            assert not any("the name says" in row["text"] for row in notes)

    def test_the_topology_of_a_run_is_a_name(self) -> None:
        given = ("plan", "model_name=llama2-7b", "compile_topology=v5p-128", "--top", "1")
        done = hlofast_command(*given, "--device-count", "32")
        assert "note: 32 devices are given, but the name says 64 " in done.stdout
        assert "devices are given" not in hlofast_command(*given).stdout

    def test_another_kind_of_device_than_the_name_says(self) -> None:
        plan = run(*SEVEN).plan("v5p-32", device="tpu-v6e")
        text = "figures are those of tpu-v6e, but the name says tpu-v5p"
        assert told(plan, "overridden") == told(plan.like({"own": 1}), "overridden") == [text]
        # Other figures of the same kind are what a user gives them for.
        device = hlofast.devices.get("tpu-v5p").replace(hbm_usable_bytes=5e10)
        assert not told(run(*SEVEN).plan("v5p-32", device=device), "overridden")

    def test_one_of_several_machines_that_has_no_plan(self) -> None:
        given = ("plan", "model_name=llama2-7b", "attention=cudnn_flash_te", "--chips", "16")
        done = hlofast_command(*given, "--device", "v5p", "--device", "h100", "--json")
        shown = json.loads(done.stdout)
        assert [own["name"] for own in shown["results"]] == ["gpu-p5.48xlarge-16"]
        (error,) = shown["errors"]
        assert done.returncode == 3 and error["message"].startswith("tpu-v5p-32: MaxText fails")
        assert done.stderr.count("\n") == 1


class TestKernelsOfGpus:
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_maxtext_fails_on_tpus(self, kernel: str) -> None:
        config = run(*SEVEN, f"attention={kernel}")
        text = (
            f"MaxText fails here: attention '{kernel}' needs cuDNN, which tpu-v5p lacks; take flash"
        )
        effective = config.select("v5p-32")
        assert [row["text"] for row in effective.notes if row["kind"] == "fails"] == [text]
        verdict = effective.verdict()
        assert (verdict.status, verdict.step_seconds) == ("unknown", None)
        with pytest.raises(ValueError, match=text):
            config.plan("v5p-32")

    @pytest.mark.parametrize("kernel", KERNELS)
    def test_gpus_have_them(self, kernel: str) -> None:
        config = run(*SEVEN, f"attention={kernel}")
        assert "fails" not in config.select("gpu-p5.48xlarge-16").notes["kind"]
        plan = config.plan("gpu-p5.48xlarge-16")
        flash = run(*SEVEN, "attention=flash").plan("gpu-p5.48xlarge-16")
        assert plan.best is not None and plan.best["mesh"] == flash.best["mesh"]

    def test_the_device_of_the_plan_counts(self) -> None:
        config = run(*SEVEN, "attention=cudnn_flash_te")
        with pytest.raises(ValueError, match="which tpu-v5e lacks"):
            config.plan("gpu-p5.48xlarge-16", device="tpu-v5e")
        verdict = config.select("gpu-p5.48xlarge-16").verdict("tpu-v5e")
        assert verdict.status == "unknown"
        assert [why for path, why in verdict.gaps if path == "attention"] == [
            "MaxText fails here: attention 'cudnn_flash_te' needs cuDNN, which tpu-v5e lacks; "
            "take flash"
        ]

    def test_a_name_of_tpus_refuses_nothing_on_gpus(self) -> None:
        config = run(*SEVEN, "attention=cudnn_flash_te")
        verdict = config.select("v5p-32").verdict("h100")
        assert verdict.gaps == () and verdict.step_seconds
        plan = config.plan("v5p-32", device="h100")
        flash = run(*SEVEN, "attention=flash").plan("v5p-32", device="h100")
        own, other = ({fact.name: fact.value for fact in each.facts} for each in (plan, flash))
        assert own["own_status"] == other["own_status"] == "fits"
        assert own["own_step_seconds"] == other["own_step_seconds"] is not None
        assert "lacks" not in str(plan) + str(plan.like("own"))
        # Without the device, the name is what counts.
        assert "which tpu-v5p lacks" in str(config.select("v5p-32").verdict().gaps)

    def test_nodes_of_gpus_say_nothing_of_tpus(self) -> None:
        config = run(*SEVEN)
        assert told(config.plan("a3-highgpu-8g-12"), "slice") == [
            "12 devices are not a whole number of nodes of 8"
        ]
        (text,) = told(config.plan("a3-highgpu-8g-12", device="tpu-v5e"), "slice")
        assert text.startswith("slices of tpu-v5e")


class TestDefaults:
    def test_they_are_not_called_a_file(self, tmp_path: Path) -> None:
        name = "MaxText's defaults"
        assert hlofast.config.load(overrides=["model_name=llama2-7b"]).file == name
        given = ("model_name=llama2-7b", "--instance", "v5e-16")
        for verb in ("plan", "config"):
            first = document(verb, *given)["results"][0]["facts"]
            assert first["file"]["value"] == name
        done = hlofast_command("plan", *given, "--like", "pace=3")
        assert done.returncode == 2
        assert done.stderr.startswith(f"hlofast: {name}: --like: 'pace' is not a choice")
        base = tmp_path / "base.yml"
        base.write_text(hlofast.config.load().to_text())
        assert hlofast.config.load(base=base).file == str(base)

    def test_a_file_of_any_name_is_read(self, tmp_path: Path) -> None:
        file = tmp_path / "defaults.yml"
        file.write_text("model_name: gemma2-2b\n")
        done = hlofast_command("config", "defaults.yml", "--json", cwd=tmp_path)
        (shown,) = json.loads(done.stdout)["results"][:1]
        assert shown["facts"]["file"]["value"] == "defaults.yml"
        same = hlofast.config.load(overrides=["model_name=gemma2-2b"])
        assert shown["facts"]["parameters"]["value"] == same.parameter_count()


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"sequences": 1.5}, "sequences must be a whole number from 0 to .*, not 1.5"),
            ({"sequences": "3"}, "sequences must be a whole number from 0 to .*, not '3'"),
            ({"sequences": -1}, "sequences must be a whole number from 0 to .*, not -1"),
            ({"tokens": "15T"}, "tokens must be a positive number, not '15T'"),
            ({"tokens": 10**400}, "tokens must be a positive number, not 1000"),
            ({"margin": "5%"}, "margin must be a number from 0 and below 1, not '5%'"),
            ({"margin": 1}, "margin must be a number from 0 and below 1, not 1"),
            ({"devices": 0}, "devices must be between 1 and"),
        ],
    )
    def test_values_out_of_range(self, arguments, words) -> None:
        with pytest.raises(ValueError, match=words):
            run(*SEVEN).plan("v5e-16", **arguments)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"instance": None}, "instance must be a name such as tpu-v5p-128, not None"),
            ({"instance": 16}, "instance must be a name such as tpu-v5p-128, not 16"),
            ({"devices": 16.5}, "devices must be a whole number, not 16.5"),
            ({"devices": "16"}, "devices must be a whole number, not '16'"),
            ({"device": 5}, "device must be a name or a Device, not 5"),
        ],
    )
    def test_values_of_other_types(self, arguments, words) -> None:
        given = {"instance": "v5e-16", **arguments}
        for config in (run(*SEVEN), hlofast.config.load(SMALL)):
            with pytest.raises(TypeError, match=words):
                config.plan(**given)

    def test_integers_of_numpy(self) -> None:
        plan = run(*SEVEN).plan("v5e-16", numpy.int64(16), sequences=numpy.int64(64))
        same = run(*SEVEN).plan("v5e-16")
        assert plan.to_json() == same.to_json()

    def test_numbers_of_numpy(self) -> None:
        config = run(*SEVEN)
        plan = config.plan("v5e-16", tokens=numpy.int64(10**9), margin=numpy.float32(0.125))
        same = config.plan("v5e-16", tokens=10**9, margin=0.125)
        assert plan.to_json() == same.to_json() and str(plan) == str(same)
        with pytest.raises(ValueError, match=r"margin must be a number .*True"):
            config.plan("v5e-16", margin=numpy.bool_(True))

    def test_texts_that_resemble_reasons(self) -> None:
        for text in (
            "x = , does not divide y",
            "fsdp = , does not divide y",
            "fsdp = \N{ARABIC-INDIC DIGIT FIVE} does not divide y",
            f"fsdp = {'1' * 5000} does not divide y",
            "fsdp = 1 does not divide y",
        ):
            plan = run(*SEVEN[:1], f"attention={text}").plan("v5e-16")
            assert plan.best is None
            assert text in " ".join(own["reason"] for own in plan.tables["excluded"])
