"""XLA's `gpu_target_config.pbtxt` describes the device of a dump."""

from __future__ import annotations

import lzma
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hlofast
from conftest import FIXTURES
from hlofast import devices
from hlofast._target_config import read


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """XLA's own descriptions (Apache-2.0), and one that a compilation in 2025 wrote."""
    folder = tmp_path_factory.mktemp("configs")
    with tarfile.open(FIXTURES / "target_configs.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


NAMES = (
    *("a100_pcie_80", "a100_sxm_40", "a100_sxm_80", "b200", "b300", "gb200", "h100_pcie"),
    *("h100_sxm", "h200", "mi200", "mi350", "v100"),
)


@pytest.mark.parametrize("name", NAMES)
def test_every_description_of_xla_is_a_device(configs: Path, name: str) -> None:
    device = devices.read_target_config(configs / f"{name}.txtpb")
    assert device.backend == "gpu"
    for figure in ("hbm_bytes", "hbm_bandwidth", "fast_memory_bytes", "clock", "cores"):
        assert device.value(figure) > 0
        assert device.source(figure) == f"{name}.txtpb"
    assert device.value("flops.f16") > 1e14
    assert device.value("flops.f32") > 1e13


BUILT_IN = {
    "a100_sxm_80": "a100", "a100_sxm_40": "a100-40gb", "v100": "v100", "h100_sxm": "h100",
    "h100_pcie": "h100-pcie", "h200": "h200", "b200": "b200", "gb200": "gb200",
}  # fmt: skip
ROUNDED = {("b200", "hbm_bandwidth")}
"""The datasheet of DGX B200 says 8 TB/s, the description 7.67."""


@pytest.mark.parametrize("name", BUILT_IN)
def test_figures_are_those_of_the_built_in_devices(configs: Path, name: str) -> None:
    described = devices.read_target_config(configs / f"{name}.txtpb")
    built_in = devices.get(BUILT_IN[name])
    assert devices.get(described.label) == built_in
    figures = ["hbm_bytes", "hbm_bandwidth", "fast_memory_bytes", "clock", "cores", "link_count"]
    figures += [f"flops.{peak}" for peak in built_in.flops if peak != "s4"]
    for figure in figures:
        told, known = described.value(figure), built_in.value(figure)
        if told is not None and known is not None:
            near = 0.05 if (name, figure) in ROUNDED else 0.013
            assert told == pytest.approx(known, rel=near), figure
    assert set(built_in.flops) - {"s4"} <= set(described.flops)


def test_descriptions_of_older_xla_have_no_matrix_units(configs: Path) -> None:
    told = devices.read_target_config(configs / "a100_fsdp4.pbtxt")
    newer = devices.read_target_config(configs / "a100_sxm_40.txtpb")
    assert told.label == newer.label == "NVIDIA A100-SXM4-40GB"
    for peak in ("bf16", "f16", "tf32", "f64", "f32", "s8"):
        assert told.flops[peak].value == pytest.approx(newer.flops[peak].value)
    assert told.flops["bf16"].source.startswith("assumed: cores x clock")
    assert not newer.flops["bf16"].source.startswith("assumed")
    # Datasheet of the A100 40 GB: 1555 GB/s, 312 TFLOP/s.
    assert told.value("hbm_bandwidth") == 1555.2e9
    assert told.flops["bf16"].value == pytest.approx(312e12, rel=1e-3)
    assert told.source("link_bandwidth") == "assumed: as on a100-40gb"
    built_in = devices.get("a100-40gb")
    measured = ("launch", "matmul_efficiency", "link_efficiency", "collective_latency")
    for figure in (*measured, "hbm_achieved_bandwidth", "compute_capability"):
        assert told.value(figure) == pytest.approx(built_in.value(figure), rel=1e-3)


def test_measured_figures_are_those_of_the_generation(configs: Path) -> None:
    told = devices.read_target_config(configs / "h100_pcie.txtpb")
    share = told.require("hbm_achieved_bandwidth") / told.require("hbm_bandwidth")
    assert share == pytest.approx(0.898, rel=0.001)
    assert told.source("hbm_achieved_bandwidth").startswith("assumed: as on h100-pcie")
    assert told.value("collective_latency") is None
    other = devices.read_target_config(configs / "b300.txtpb")
    assert other.value("compute_capability") == 10.3
    assert other.source("matmul_efficiency") == "assumed: as on b300"


def test_a_dump_names_a_device_that_is_not_built_in(configs: Path, tmp_path: Path) -> None:
    module = "HloModule jit_f, is_scheduled=true\n\nENTRY e { ROOT p = f32[8] parameter(0) }\n"
    path = tmp_path / "module_0007.jit_f.sm_8.0_gpu_after_optimizations.txt"
    path.write_text(module)
    beside = tmp_path / "module_0007.jit_f.gpu_target_config.pbtxt"
    described = (configs / "a100_fsdp4.pbtxt").read_text()
    beside.write_text(described.replace("A100-SXM4-40GB", "A100-SXM4-48GB"))
    context = hlofast.load(path).context
    assert context.device is not None
    assert context.device.name == "nvidia-a100-sxm4-48gb"
    assert context.sources["device"] == beside.name
    assert hlofast.load(path).time().step_seconds is not None
    packed = beside.with_name(f"{beside.name}.xz")
    packed.write_bytes(lzma.compress(beside.read_bytes()))
    beside.unlink()
    assert hlofast.load(path).context.device == context.device
    # A built-in device keeps its figures.
    shutil.copy(configs / "a100_sxm_80.txtpb", beside)
    packed.unlink()
    assert hlofast.load(path).context.device == devices.get("a100")


@pytest.mark.parametrize(
    "text",
    ["", "x", "gpu_device_info {", "gpu_device_info { } device_description_str: ''", "a{" * 100],
)
def test_other_text_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "gpu_target_config.pbtxt"
    path.write_text(text)
    with pytest.raises(ValueError, match="gpu_target_config"):
        devices.read_target_config(path)
    path.write_bytes(lzma.compress(text.encode())[:-3])
    with pytest.raises(ValueError, match="gpu_target_config"):
        devices.read_target_config(path)


TOKENS = st.sampled_from(
    ["gpu_device_info {", "}", "core_count: 108", "clock_rate_ghz: 1e999", "core_count: -3", "[",
     "device_description_str: 'x'", "matrix_unit_description {", "rate_infos {", "key: 2", "value {",
     "units_per_core: 4", "ops_per_clock: nan", "clock_rate_ghz: 1.5", ":", '"', "l2_cache_size: {}",
     "cuda_compute_capability { major: 8 }", "fpus_per_core: 64", "# c\n"]
)  # fmt: skip


@given(st.lists(TOKENS, max_size=30))
def test_any_description_is_read_or_refused(tokens: list[str]) -> None:
    try:
        device = read(" ".join(tokens), "d.pbtxt", devices.built_in())
    except ValueError:
        return
    assert all(figure.value == "switch" or figure.value > 0 for figure in device.values())
    assert all(0 < peak.value < 1e30 for peak in device.flops.values())
