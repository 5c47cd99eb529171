"""`hlofast time`: words, JSON, what it refuses."""

from pathlib import Path

import pytest

from test_cli import document, hlofast_command
from test_time import OVERLAPPED

pytestmark = pytest.mark.once

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
        "[toy]\nbackend = 'gpu'\nhbm_bandwidth = 1e9\njax_devices = 1\ntopology = 'switch'\n"
        "link_count = 1\nlink_bandwidth = 1e6\nflops.bf16 = 1e9\nflops.f32 = 1e9\n"
    )
    return path


def test_words(overlapped: Path, toys: Path) -> None:
    options = ("--device", "toy", "--devices", toys, "--mesh", "x=4")
    done = hlofast_command("time", *options, overlapped)
    assert done.returncode == 0, done.stderr
    assert "12 ms, bound by communication over x" in done.stdout
    assert "exposed, x" in done.stdout
    assert "MFU" in done.stdout
    assert "all-gather" in done.stdout
    assert "all devices are one network level" in done.stdout


def test_json(overlapped: Path, toys: Path) -> None:
    printed = document("time", "--device", "toy", "--devices", toys, "--mesh", "x=4", overlapped)
    (module,) = printed["modules"]
    step = module["step"]
    assert step["seconds"] == pytest.approx(12e-3)
    own = step["compute_seconds"] + step["memory_seconds"] + step["other_seconds"]
    assert own + sum(step["exposed_seconds"].values()) == pytest.approx(step["seconds"])
    assert printed["device"]["figures"]["hbm_bandwidth"] == {"value": 1e9, "source": str(toys)}
    (collective,) = module["collectives"]
    assert collective["wire_bytes"] == 12000
    assert collective["bytes_per_second"] == pytest.approx(1e6)


def test_roofline_is_the_same_verb(overlapped: Path, toys: Path) -> None:
    options = ("--device", "toy", "--devices", toys, overlapped)
    assert hlofast_command("roofline", *options).stdout == hlofast_command("time", *options).stdout


def test_a_device_is_asked_for(overlapped: Path) -> None:
    done = hlofast_command("time", overlapped)
    assert done.returncode == 2
    assert "which --device? known are: tpu-v4, tpu-v5e" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--device", "tpu-v99"), "unknown device 'tpu-v99'; known are: tpu-v4"),
        (("--device", "h100", "--mesh", "x=nine"), "nine"),
        (("--device", "h100", "--devices", "no-such-file.toml"), "no-such-file.toml"),
        (("--device", "h100", "--collectives", "no-such-file.csv"), "no-such-file.csv"),
        (("--device", "h100", "--hosts", "2"), "go with --mesh"),
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


@pytest.mark.parametrize("device", ["tpu-v5e", "tpu-v7", "mi300x", "trainium2"])
def test_documents_of_dumps_keep_to_the_schema(device: str) -> None:
    # Programs for CPUs stand for those of any device.
    backends = ("cpu", "tpu") if device.startswith("tpu") else ("cpu",)
    paths = sorted(DUMPS.glob("*_train_step*.txt.gz"))
    paths = [path for path in paths if path.name.startswith(backends)]
    printed = document("time", "--device", device, *paths)
    assert len(printed["modules"]) == len(paths)
    for module in printed["modules"]:
        assert module["step"]["seconds"] > 0
