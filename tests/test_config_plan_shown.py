"""Plans as pages and on the command line."""

import subprocess
import sys
from pathlib import Path

import pytest

from browser import Browser
from test_cli import document, hlofast_command
from test_config_plan import EIGHT, run


@pytest.fixture(scope="module")
def eight():
    return run(*EIGHT).plan("v5p-512")


class TestPage:
    def test_figures_are_those_of_the_library(self, eight, tmp_path: Path) -> None:
        page = eight.report(tmp_path / "plan.html", plots=False)
        assert page.path == str(tmp_path / "plan.html")
        assert (tmp_path / "plan.html").read_text() == page.html
        best = eight.best
        assert page.verdict == {
            "step": best["step_seconds"],
            "mfu": best["mfu"],
            "peak": best["peak_bytes"],
            "exposed": best["exposed_seconds"],
        }
        (finding,) = page.tables["findings"]
        assert "takes 6.6" in finding["text"] and best["policy"] in finding["remedy"]

    def test_nothing_fits(self) -> None:
        page = run("model_name=llama3.1-405b").plan("v5e-16").report()
        assert page.verdict == {"step": None}
        assert "no choice fits" in page.html
        assert "Nothing to change" not in page.html

    def test_no_step_times(self, tmp_path: Path) -> None:
        plan = run("model_name=llama2-7b", "quantization=int8").plan("v5e-16")
        page = plan.report(tmp_path / "plan.html")
        assert page.verdict == {"step": None, "peak": plan.best["peak_bytes"]}
        (finding,) = page.tables["findings"]
        assert finding["text"].startswith("step times are not modelled: quantization: ")
        assert "memory is that of unquantised values" in page.html
        # A plan without step times has no chart.
        assert "Memory against time on the fastest mesh" in page.html

    def test_in_a_browser(self, browser: Browser, eight, tmp_path: Path) -> None:
        pytest.importorskip("bokeh")
        eight.report(tmp_path / "plan.html")
        opened = browser.open(tmp_path / "plan.html")
        assert not opened.errors and len(opened.requests) == 1
        assert "fsdp=256" in opened.text("#meshes")
        assert "Memory against time" in opened.text("#frontier")
        assert opened.text("#choice pre") == "\n".join(eight.lines)

    def test_machines_in_a_browser(self, browser: Browser, tmp_path: Path) -> None:
        pytest.importorskip("bokeh")
        page = tmp_path / "machines.html"
        given = ("model_name=llama2-7b", "--device", "v5e", "--device", "v5p", "--chips", "16")
        assert hlofast_command("plan", *given, "--tokens", "1e12", "-o", page).returncode == 0
        opened = browser.open(page)
        assert not opened.errors and len(opened.requests) == 1
        (first, second) = document("plan", *given, "--tokens", "1e12")["results"][-1]["tables"][
            "machines"
        ]
        shown = opened.text("#machines")
        for row in (first, second):
            assert f"{row['chip_hours']:,.0f}" in shown
            assert f"{row['tokens_per_second']:,.0f}" in shown
        assert "To paste" in opened.text("#plan0") and "fsdp=16" in opened.text("#plan1")

    def test_of_the_command(self, tmp_path: Path) -> None:
        page = tmp_path / "plan.html"
        given = ("plan", "model_name=llama2-7b", "--instance", "v5e-16", "-o", page)
        assert hlofast_command(*given).returncode == 0
        assert page.read_text().startswith("<!DOCTYPE html>")
        assert hlofast_command(*given, "--like", "own").returncode == 2
        done = hlofast_command(*given[:-1], tmp_path / "none" / "plan.html")
        said = f"hlofast: {tmp_path / 'none'}: No such file or directory\n"
        assert (done.returncode, done.stdout, done.stderr) == (3, "", said)
        done = hlofast_command(*given[:-1], "-")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("<!DOCTYPE html>") and done.stdout.endswith("</html>\n")
        config = tmp_path / "run.yml"
        config.write_text("model_name: llama2-7b\n")
        done = hlofast_command("plan", config, "--instance", "v5e-16", "-o", config)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"hlofast: {config}: an input, which would be overwritten\n"
        assert config.read_text() == "model_name: llama2-7b\n"


class TestCommand:
    def test_text_and_json_are_those_of_the_library(self) -> None:
        arguments = ("model_name=llama2-7b", "--instance", "v5e-16", "--tokens", "1e9")
        plan = run("model_name=llama2-7b").plan("v5e-16", tokens=1e9)
        # The command calls the file of MaxText's defaults by another name.
        _, _, figures = str(plan).partition("\ninstance ")
        assert figures and figures in hlofast_command("plan", *arguments).stdout
        (shown,) = document("plan", *arguments)["results"]
        assert shown["facts"]["step_seconds"]["value"] == plan.best["step_seconds"]
        assert shown["tables"]["ranked"][0]["mesh"] == plan.best["mesh"]

    def test_machines(self) -> None:
        several = ("--device", "v5e", "--device", "v6e", "--chips", "64", "--slices", "2")
        results = document("plan", "model_name=llama2-7b", *several)["results"]
        assert [own["name"] for own in results] == [
            "tpu-v5litepod-32-2",
            "tpu-v6e-32-2",
            "tpu-v5litepod-32-2 and tpu-v6e-32-2",
        ]

    def test_the_machine_is_that_of_the_config(self) -> None:
        given = ("model_name=llama2-7b", "compile_topology=v5e-16", "compile_topology_num_slices=2")
        (shown,) = document("plan", *given)["results"]
        assert shown["name"] == "tpu-v5e-16" and shown["facts"]["devices"]["value"] == 32
        (other,) = document("plan", *given, "--instance", "v5p-32")["results"]
        assert other["name"] == "tpu-v5p-32"

    def test_a_reader_may_stop_reading(self) -> None:
        command = [sys.executable, "-P", "-m", "hlofast", "plan", "model_name=llama2-7b"]
        with subprocess.Popen(
            [*command, "--instance", "v5e-64"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""

    @pytest.mark.parametrize(("text", "tokens"), [("15T", 15e12), ("1.5b", 1.5e9), ("2e9", 2e9)])
    def test_token_budgets(self, text: str, tokens: float) -> None:
        given = ("model_name=llama2-7b", "--instance", "v5e-16", "--tokens", text)
        (shown,) = document("plan", *given)["results"]
        facts = {name: fact["value"] for name, fact in shown["facts"].items()}
        assert facts["chip_hours"] == pytest.approx(tokens / facts["tokens_per_second"] / 3600)

    def test_results_of_several_configs_name_them(self, tmp_path: Path) -> None:
        files = [tmp_path / "first.yml", tmp_path / "second.yml"]
        for file, model in zip(files, ("llama2-7b", "gemma2-2b"), strict=True):
            file.write_text(f"model_name: {model}\n")
        machines = ("--device", "v5e", "--device", "v5p", "--chips", "16")
        results = document("plan", *files, *machines)["results"]
        assert [own["facts"]["file"]["value"] for own in results] == [
            str(file) for file in files for _ in range(3)
        ]
        shown = hlofast_command("plan", *files, "--instance", "v5e-16", "--like", "own").stdout
        assert shown.count("\nfile          ") == 2 and all(str(file) in shown for file in files)

    def test_a_reader_that_stops_early(self, tmp_path: Path) -> None:
        """The page is written all the same."""
        page = tmp_path / "plan.html"
        given = ("model_name=llama2-7b", "--device", "v5e", "--device", "v6e", "--chips", "16")
        command = (sys.executable, "-m", "hlofast", "plan", *given, "--top", "0", "-o", str(page))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.close()
            said = process.stderr.read()
        assert process.returncode == 0 and said == b""
        assert page.read_text().startswith("<!DOCTYPE html>")

    def test_a_page_that_cannot_be_written(self, tmp_path: Path) -> None:
        page = tmp_path / "plan.html"
        page.mkdir()
        given = ("model_name=llama2-7b", "--instance", "v5e-16", "-o", page)
        done = hlofast_command("plan", *given)
        assert done.returncode == 3 and "plan.html" in done.stderr

    def test_overrides_between_options(self) -> None:
        apart = ("--instance", "v5e-16", "model_name=llama2-7b", "--no-offload")
        (shown,) = document("plan", *apart, "per_device_batch_size=2")["results"]
        assert shown["facts"]["sequences"]["value"] == 32

    def test_like(self) -> None:
        given = ("model_name=llama3.1-8b", "--instance", "v5p-512", "--like")
        (other,) = document("plan", *given, "fsdp=64,tensor=4,policy=minimal")["results"]
        assert other["facts"]["mesh"]["value"] == "fsdp=64,tensor=4"
        assert hlofast_command("plan", *given, "own").returncode == 0
        assert hlofast_command("plan", *given, "fsdp=128").returncode == 1
        done = hlofast_command("plan", *given, "pace=3")
        assert done.returncode == 2 and "is not a choice" in done.stderr
        for text in (
            "fsdp=64,fsdp=32",
            "own,own",
            "own=0",
            "own=1,policy=full",
            "",
            "=3",
            "policy=entire",
        ):
            done = hlofast_command("plan", *given, text)
            assert done.returncode == 2
            assert done.stderr.startswith("hlofast: ") and done.stderr.count("\n") == 1
        # A choice, but none of this config's step.
        done = hlofast_command("plan", *given, "batch=5")
        assert done.returncode == 3 and "does not make" in done.stderr

    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("--instance", "v5e-16", "--device", "v5e", "--chips", "16"),
            ("--device", "v5e"),
            ("--instance", "v5e-16", "--slices", "2"),
            ("--device", "v5e", "--chips", "16", "--slices", "0"),
            ("--device", "v5e", "--chips", "16", "--device-count", "8"),
            ("--instance", "v5e-16", "--like", "own", "--tokens", "15T"),
            ("--instance", "v5e-16", "--state-dtype", "int8"),
            ("--instance", "v5e-16", "--margin", "1"),
            ("--instance", "v5e-16", "--tokens", "0"),
            ("--instance", "v5e-16", "--tokens", "15X"),
        ],
    )
    def test_usage(self, arguments) -> None:
        assert hlofast_command("plan", "model_name=llama2-7b", *arguments).returncode == 2

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (("--batch", "-1"), "--batch: not a whole number from 0: '-1'"),
            (("--margin", "-1"), "--margin: not a number from 0: '-1'"),
            (("--margin", "nan"), "--margin: not a number from 0: 'nan'"),
        ],
    )
    def test_numbers_that_are_none(self, arguments, why) -> None:
        done = hlofast_command("plan", "model_name=llama2-7b", "--instance", "v5e-16", *arguments)
        assert done.returncode == 2 and why in done.stderr

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (("--device", "v9", "--chips", "16"), "v9"),
            (("--device", "trainium2", "--chips", "16"), "no instance name is known"),
            (("--device", "mi300x", "--chips", "64"), "network_bandwidth of mi300x is not known"),
            (("--device", "h100", "--chips", "64", "--slices", "2"), "leave --slices out"),
            (("--device", "v5p", "--chips", "100"), "64 or 128 chips, not 100: give --chips 64 or"),
            (
                ("--device", "v5p", "--chips", "200", "--slices", "2"),
                "have 64 or 128 chips, not 100: give --chips 128 or 256",
            ),
            (("--device", "v6e", "--chips", "512"), "at most 256 chips, not 512: give --slices 2"),
            (("--device", "v5e", "--chips", "16", "--slices", "3"), "do not divide"),
            (("--instance", "somewhere"), "such as tpu-v5p-64, gpu-p5.48xlarge-64"),
            (("--instance", "tpu-v9-64"), "MaxText also takes v5p-64"),
            (("--instance", "v5p-7"), "number of devices is not known"),
        ],
    )
    def test_machines_that_are_not_known(self, arguments, why) -> None:
        done = hlofast_command("plan", "model_name=llama2-7b", *arguments)
        assert done.returncode == 3
        assert why in done.stderr
        assert "Traceback" not in done.stderr
