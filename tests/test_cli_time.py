"""`hlofast time`: text, JSON and refused arguments."""

from pathlib import Path

import pytest

import hlofast
from conftest import FIXTURES
from shown import check_one_source, codes, figures
from test_cli import document, hlofast_command
from test_time import OVERLAPPED

DUMPS = Path(__file__).parent / "fixtures" / "dumps"


@pytest.fixture
def overlapped(tmp_path: Path) -> Path:
    path = tmp_path / "overlapped.txt"
    path.write_text(OVERLAPPED)
    return path


@pytest.fixture
def toys(tmp_path: Path) -> Path:
    path = tmp_path / "toys.toml"
    path.write_text(
        "[toy]\nbackend = 'other'\nhbm_bandwidth = 1e9\njax_devices = 1\ntopology = 'switch'\n"
        "link_count = 1\nlink_bandwidth = 1e6\nlink_latency = 1e-12\nflops.bf16 = 1e9\nflops.f32 = 1e9\n"
    )
    return path


def test_words(overlapped: Path, toys: Path) -> None:
    options = ("--device", "toy", "--devices", toys, "--mesh", "x=4")
    done = hlofast_command("time", *options, overlapped)
    assert done.returncode == 0, done.stderr
    shown = [line.split() for line in done.stdout.splitlines()]
    assert ["step", "12", "ms"] in shown
    assert ["bound", "by", "communication", "along", "x"] in shown
    assert ["exposed", "x"] in [line[:2] for line in shown]
    assert "MFU" in done.stdout
    assert "all-gather" in done.stdout
    assert "all devices count as one network level" in done.stdout


def test_json(overlapped: Path, toys: Path) -> None:
    printed = document("time", "--device", "toy", "--devices", toys, "--mesh", "x=4", overlapped)
    (module,) = printed["results"]
    values, tables = figures(module), module["tables"]
    step = module["facts"]["step_seconds"]
    assert (step["value"], step["provenance"]) == (pytest.approx(12e-3), "modelled")
    assert {row["part"] for row in tables["parts"]} == {"compute", "memory", "other", "exposed"}
    assert [row["axes"] for row in tables["parts"] if row["part"] == "exposed"] == ["x"]
    assert sum(row["seconds"] for row in tables["parts"]) == pytest.approx(12e-3)
    assert sum(row["share"] for row in tables["parts"]) == pytest.approx(1)
    assert (values["device"], values["mesh"], values["mesh_source"]) == ("toy", "x=4", "given")
    assert (values["estimates"], values["collective_model"]) == ("model", "topology")
    assert (values["peak_flops"], values["num_devices"]) == (1e9, 1)
    known = {row["figure"]: row for row in tables["figures"]}
    bandwidth = known["hbm_bandwidth"]
    assert (bandwidth["value"], bandwidth["source"]) == (1e9, str(toys))
    (collective,) = tables["collectives"]
    assert collective["wire_bytes"] == 12000
    assert collective["bytes_per_second"] == pytest.approx(1e6)
    assert "one-level" in codes(module)


def test_one_source(overlapped: Path) -> None:
    dump = FIXTURES / "train_step.after_optimizations.txt"
    mesh = "data=2,model=4"
    done = hlofast_command("time", "--device", "tpu-v5e", "--mesh", mesh, dump)
    check_one_source(hlofast.load(dump).time("tpu-v5e", mesh=mesh), done.stdout)
    done = hlofast_command("time", "--device", "trainium2", overlapped)
    check_one_source(hlofast.load(overlapped).time("trainium2"), done.stdout)


def test_hostile_names_in_notebooks() -> None:
    mesh = hlofast.Mesh([("<script>", 4)])
    html = hlofast.loads(OVERLAPPED).time("h100", mesh=mesh)._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert " us</td>" in html


def test_the_device_of_the_dump_folder(tmp_path: Path) -> None:
    from test_context import TARGET, dump

    path = dump(tmp_path, target_arguments=TARGET)
    (module,) = document("time", path)["results"]
    assert figures(module)["device"] == "tpu-v5e"
    assert "found-device" in codes(module)
    (module,) = document("time", path, "--device", "tpu-v5p")["results"]
    assert figures(module)["device"] == "tpu-v5p"
    assert "found-device" not in codes(module)
    done = hlofast_command("trace", path, "-o", tmp_path / "step.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert ["device", "tpu-v5e"] in [line.split() for line in done.stdout.splitlines()]


def test_roofline_is_the_same_verb(overlapped: Path, toys: Path) -> None:
    options = ("--device", "toy", "--devices", toys, overlapped)
    assert hlofast_command("roofline", *options).stdout == hlofast_command("time", *options).stdout


def test_a_device_is_asked_for(overlapped: Path) -> None:
    done = hlofast_command("time", overlapped)
    assert done.returncode == 2
    assert "known devices: tpu-v4, tpu-v5e" in done.stderr
    assert done.stderr.startswith(f"hlofast: {overlapped}: no device given")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--device", "tpu-v99"), "unknown device 'tpu-v99'; known devices: tpu-v4"),
        (("--device", "h100", "--mesh", "x=nine"), "nine"),
        (("--device", "h100", "--devices", "no-such-file.toml"), "no-such-file.toml"),
        (("--device", "h100", "--collectives", "no-such-file.csv"), "no-such-file.csv"),
        # Without --mesh the hosts are those of the mesh of the text.
        (("--device", "h100", "--hosts", "3"), "4 devices cannot be spread evenly over 3 hosts"),
    ],
)
def test_what_makes_no_sense_is_exit_code_2(
    overlapped: Path, options: tuple[str, ...], message: str
) -> None:
    done = hlofast_command("time", *options, overlapped)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_figures_are_said(overlapped: Path) -> None:
    done = hlofast_command("time", "--device", "trainium2", overlapped)
    assert done.returncode == 0
    assert "unknown: " in done.stdout
    assert "at least" in done.stdout
    (module,) = document("time", "--device", "trainium2", overlapped)["results"]
    assert module["facts"]["step_seconds"]["provenance"] == "bound"
    assert module["tables"]["unknown"]
    assert "unknown-figures" in codes(module)


@pytest.mark.parametrize("device", ["tpu-v5e", "tpu-v7", "mi300x", "trainium2"])
def test_documents_of_dumps_keep_to_the_schema(device: str) -> None:
    # A program for TPUs runs on no other device; one for CPUs stands for that of any device.
    kind = "*" if device.startswith("tpu") else "cpu"
    paths = sorted(DUMPS.glob(f"{kind}_train_step*.txt.gz"))
    assert len(paths) >= 3
    printed = document("time", "--device", device, *paths)
    assert len(printed["results"]) == len(paths)
    for module in printed["results"]:
        assert figures(module)["step_seconds"] > 0
