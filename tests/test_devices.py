"""Devices: figures with sources, unknown figures, users' files."""

import pickle
import tomllib
from importlib import resources

import numpy
import pytest

import hlofast
from hlofast import devices

ASKED = """
tpu-v4 tpu-v5e tpu-v5p tpu-v6e tpu-v7 a100 h100 h200 b200 mi300x trainium2
""".split()


def test_the_devices_that_are_asked_for_are_there() -> None:
    assert set(ASKED) <= set(devices.names())
    assert hlofast.devices is devices


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("v5p", "tpu-v5p"),
        ("TPU v5 lite", "tpu-v5e"),
        ("H100", "h100"),
        ("tpu7x", "tpu-v7"),
        ("trn2", "trainium2"),
        ("tpu_v6e", "tpu-v6e"),
    ],
)
def test_aliases_in_any_case(alias: str, name: str) -> None:
    assert devices.get(alias).name == name


def test_no_name_or_alias_means_two_devices() -> None:
    owners: dict[str, str] = {}
    for name in devices.names():
        for alias in (name, *devices.get(name).aliases):
            assert owners.setdefault(alias.lower(), name) == name


@pytest.mark.parametrize("name", ASKED)
def test_every_cell_has_a_source_that_is_listed(name: str) -> None:
    text = (resources.files("hlofast") / "devices.toml").read_text(encoding="utf-8")
    listed = set(tomllib.loads(text)["sources"].values())
    device = devices.get(name)
    assert device.flops["bf16"].value > 1e14
    assert device.require("hbm_bandwidth") > 4e11
    for figure in (*device.flops.values(), *device.values()):
        assert figure.source in listed


def test_every_listed_source_is_used() -> None:
    text = (resources.files("hlofast") / "devices.toml").read_text(encoding="utf-8")
    listed = set(tomllib.loads(text)["sources"].values())
    used = {row["source"] for row in devices.table()} - {None}
    assert used == listed


def test_physical_and_usable_memory_are_told_apart() -> None:
    v5e = devices.get("v5e")
    assert v5e.value("hbm_usable_bytes") == 15.75 * 2**30
    assert v5e.value("hbm_bytes") == 16e9


def test_chips_and_jax_devices_are_told_apart() -> None:
    v7 = devices.get("v7")
    assert v7.value("jax_devices") == 2
    assert v7.per_jax_device("hbm_bandwidth") == v7.value("hbm_bandwidth") / 2


def test_tpu_v4_is_one_device_a_chip_or_one_a_core() -> None:
    """Trainers compile for megacore, which joins the two cores of a chip."""
    v4, cores = devices.get("v4"), devices.get("tpu-v4-cores")
    assert v4.per_jax_device("hbm_usable_bytes") == 30.75 * 2**30
    assert cores.per_jax_device("hbm_usable_bytes") == 15.25 * 2**30
    assert v4.value("flops.bf16") == cores.value("flops.bf16")
    assert cores.value("cores") == cores.value("jax_devices") == 2


def test_unknown_figures_are_said() -> None:
    trainium = devices.get("trainium2")
    assert trainium.value("link_bandwidth") is None
    assert trainium.source("link_bandwidth") is None
    with pytest.raises(devices.UnknownFigureError, match="link_bandwidth of trainium2"):
        trainium.require("link_bandwidth")
    known = trainium.replace(link_bandwidth=1e11)
    assert known.require("link_bandwidth") == 1e11
    assert known.source("link_bandwidth") == "given by the caller"
    assert trainium.value("link_bandwidth") is None
    with pytest.raises(KeyError):
        trainium.value("no_such_figure")


def test_a_figure_can_be_taken_away_and_a_peak_given() -> None:
    changed = devices.get("v5e").replace(clock=None, flops={"f8": 3e14})
    assert changed.value("clock") is None
    assert changed.value("flops.f8") == 3e14
    assert changed.value("flops.bf16") == 197e12


def test_an_unknown_device_is_refused_with_the_list() -> None:
    with pytest.raises(KeyError, match="known devices: tpu-v4, tpu-v5e"):
        devices.get("tpu-v99")
    with pytest.raises(ValueError, match="tpu-v99"):
        devices.get("tpu-v99")


def test_a_file_overrides_and_extends(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        """
        [sources]
        bench = "our benchmark of May"

        [v5e]
        hbm_bandwidth = { value = 7.4e11, source = "bench" }
        launch = 2e-6

        [h800]
        base = "h100"
        aliases = ["nvidia h800"]
        link_count = 8

        [own-chip]
        backend = "other"
        flops.bf16 = 1e15
        """
    )
    table = devices.load(path)
    v5e = table["tpu-v5e"]
    assert v5e.value("hbm_bandwidth") == 7.4e11
    assert v5e.source("hbm_bandwidth") == "our benchmark of May"
    assert v5e.source("launch") == str(path)
    assert v5e.value("clock") == 1.5e9
    h800 = table["nvidia h800"]
    assert (h800.name, h800.value("link_count"), h800.backend) == ("h800", 8, "gpu")
    assert h800.value("link_bandwidth") == devices.get("h100").value("link_bandwidth")
    assert table["h100"].value("link_count") == 18
    assert table["own-chip"].value("hbm_bandwidth") is None
    assert devices.get("v5e").value("hbm_bandwidth") == 819e9
    assert len(table) == len(devices.names()) + 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[x]\nhbm_bandwith = 1", "unknown figure 'hbm_bandwith'"),
        ("[x]\nclock = -1", "positive number"),
        ("[x]\nclock = true", "positive number"),
        ("[x]\nclock = nan", "positive number"),
        ("[x]\nclock = inf", "positive number"),
        ("[x]\nclock = 'fast'", "positive number"),
        ("[x]\nlink_count = 1.5", "an integer"),
        ("[x]\ntopology = 'ring'", "topology must be one of"),
        ("[x]\ntopology = []", "topology must be one of"),
        ("[x]\nflops = 3", "flops must be a table"),
        ("[x]\nflops.bf16 = -3", "flops.bf16"),
        ("[x]\nclock = {value = 1, from = 'me'}", "clock must be a value or"),
        ("[x]\nbase = 'nothing'", "base 'nothing' is not a known device"),
        ("[x]\nbackend = 'abacus'", "backend must be one of"),
        ("x = 3", "a device must be a table"),
        ("[x", "mine.toml"),
    ],
)
def test_a_file_with_a_fault_is_refused(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        devices.load(path)


def test_the_table_lists_unknown_cells_too() -> None:
    rows = {(row["device"], row["figure"]): row for row in devices.table()}
    assert rows["tpu-v5e", "flops.bf16"]["value"] == 197e12
    topology = rows["tpu-v5e", "topology"]
    assert (topology["value"], topology["text"]) == (None, "torus-2d")
    assert rows["trainium2", "link_bandwidth"]["value"] is None
    assert {figure for _, figure in rows} >= set(devices.FIGURES)


def test_devices_are_values() -> None:
    device = devices.get("h200")
    assert pickle.loads(pickle.dumps(device)) == device
    assert device != device.replace(clock=1e9)
    assert len({device, devices.get("H200")}) == 1
    assert repr(device).startswith("<Device h200: NVIDIA H200 SXM; FLOP/s bf16 9.894e+14")
    error = devices.UnknownFigureError("x", "clock")
    assert pickle.loads(pickle.dumps(error)).figure == "clock"


def test_figures_are_numbers_of_any_library() -> None:
    v5p = devices.get("tpu-v5p")
    for given in (numpy.int64(2**35), numpy.float32(2**35), 2.0**35, 2**35):
        changed = v5p.replace(hbm_bytes=given, flops={"bf16": given})
        assert changed.value("hbm_bytes") == changed.value("flops.bf16") == 2**35
        assert type(changed.value("hbm_bytes")) in (int, float)
    for wrong in (True, numpy.bool_(True), numpy.float32("nan"), "5e10", None.__class__):
        with pytest.raises(ValueError, match="positive number"):
            v5p.replace(hbm_bytes=wrong)
