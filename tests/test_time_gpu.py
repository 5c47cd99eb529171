"""The time model of GPUs: collectives, matmuls and other kernels against measurements."""

from pathlib import Path
from typing import Any

import numpy
import pytest

import hlofast
from conftest import FIXTURES, seeds_folder
from hlofast import devices
from hlofast.devices import Device, UnknownFigureError
from test_benches import bench_module

gpu_accuracy = bench_module("gpu_accuracy")
time_accuracy = bench_module("time_accuracy")
GPUS = [name for name in devices.names() if devices.get(name).backend == "gpu"]
SEEDS = seeds_folder()
MODULES = sorted((FIXTURES / "a100").glob("*.hlo.pb.xz"))
if SEEDS is not None:  # Compiled for 16 GPUs by Alpa.
    MODULES += sorted(SEEDS.glob("001_*.txt"))


@pytest.fixture(scope="module")
def judged() -> dict[str, Any]:
    result: dict[str, Any] = gpu_accuracy.measure(time_accuracy.spearman)
    return result


class TestMeasured:
    def test_collectives_of_xlas_table_that_the_fit_did_not_see(self, judged: dict) -> None:
        left = judged["collectives"]["all"]["left_out"]
        assert left["entries"] > 500
        assert left["median_error"] <= 0.15
        assert left["share_within"] >= 0.9

    def test_matmuls_of_xlas_table_that_the_fit_did_not_see(self, judged: dict) -> None:
        left = judged["matmuls"]["all"]["left_out"]
        assert left["entries"] > 400
        assert left["median_error"] <= 0.1
        assert left["share_within"] >= 0.9

    def test_instructions_of_the_a100_step_that_the_fit_did_not_see(self, judged: dict) -> None:
        own = judged["step"]["left_out"]
        assert own["share_of_time_within"] >= 0.8
        assert own["spearman_above_20_us"] >= 0.95
        assert own["total"] == pytest.approx(1, abs=0.05)

    def test_the_a100_step(self, judged: dict) -> None:
        own = judged["step"]
        assert own["model_compute"] == pytest.approx(own["measured_compute"], rel=0.05)
        assert own["model_step"] == pytest.approx(own["measured_step"], rel=0.1)


class TestCollectives:
    @pytest.mark.parametrize(
        ("device", "kind", "size", "group", "microseconds", "near"),
        [
            # XLA's table, which the figures of findings quote.
            ("h100", "all-reduce", 2**16, 8, 39.7, 0.25),
            ("h100", "all-reduce", 2**20, 8, 51.9, 0.25),
            ("h100", "all-reduce", 2**28, 8, 1262, 0.1),
            ("h100", "all-gather", 2**24, 8, 82.2, 0.15),
            ("h100", "all-gather", 2**28, 8, 729, 0.1),
            ("b200", "all-reduce", 2**28, 8, 843, 0.1),
            ("gb200", "all-gather", 2**30, 64, 1750, 0.15),
            # Least times of the A100 step.
            ("a100-40gb", "all-reduce", 4, 4, 11.1, 0.1),
            ("a100-40gb", "all-gather", 77e6, 4, 411, 0.25),
        ],
    )
    def test_seconds_are_those_that_were_measured(
        self, device: str, kind: str, size: float, group: int, microseconds: float, near: float
    ) -> None:
        estimate = devices.get(device).collective_time(kind, size, group)
        assert estimate.seconds * 1e6 == pytest.approx(microseconds, rel=near)
        assert 0 < estimate.alpha_seconds <= estimate.seconds

    def test_chips_without_a_latency_name_it(self) -> None:
        with pytest.raises(UnknownFigureError, match="collective_latency"):
            devices.get("mi300x").collective_time("all-reduce", 1e6, 8)
        known = devices.get("mi300x").replace(collective_latency=2e-5)
        estimate = known.collective_time("all-gather", 8e6, 8)
        assert estimate.seconds == pytest.approx(2e-5 + 1e6 / 64e9)
        slower = known.replace(link_efficiency=0.5).collective_time("all-gather", 8e6, 8)
        assert slower.seconds == pytest.approx(2e-5 + 2e6 / 64e9)
        time = reduced(8).time("mi300x")
        assert "collective_latency" in time.unknown
        for column in ("seconds", "alpha_seconds", "exposed_seconds"):
            assert time.collectives.values(column) == [None]
        assert time.is_lower_bound

    def test_devices_fill_hosts_in_order(self) -> None:
        h100 = devices.get("h100")
        among = h100.collective_time("all-reduce", 2**28, 64, near=8).seconds
        assert h100.collective_time("all-reduce", 2**28, 64).seconds == among
        assert reduced(64).time("h100").collectives.values("seconds") == [pytest.approx(among)]
        # A rack of 72 is one switch.
        rack = devices.get("gb200").collective_time("all-reduce", 2**28, 64, near=64).seconds
        assert reduced(64).time("gb200").collectives.values("seconds") == [pytest.approx(rack)]
        assert among > 2 * h100.collective_time("all-reduce", 2**28, 8).seconds

    def test_groups_across_hosts_use_the_network(self) -> None:
        # Groups of every eighth device: one device a host.
        strided = reduced(64, "[8,8]<=[8,8]T(1,0)").time("h100")
        alone = devices.get("h100").collective_time("all-reduce", 2**28, 8, near=1).seconds
        assert strided.collectives.values("seconds") == [pytest.approx(alone)]

    @pytest.mark.parametrize("figure", ["link_bandwidth", "link_efficiency"])
    @pytest.mark.parametrize(
        "kind", ["all-reduce", "all-gather", "all-to-all", "collective-permute"]
    )
    def test_more_bandwidth_is_never_slower(self, figure: str, kind: str) -> None:
        device = devices.get("h100")
        better = device.replace(**{figure: device.require(figure) * 1.1})
        for size in (1, 2**10, 2**20, 2**30, 2**36):
            slow = device.collective_time(kind, size, 8).seconds
            assert better.collective_time(kind, size, 8).seconds <= slow

    def test_the_latency_is_a_scalar(self) -> None:
        device = devices.get("h100")
        half = device.replace(collective_latency=device.require("collective_latency") / 2)
        small = [chip.collective_time("all-reduce", 1, 8).seconds for chip in (device, half)]
        assert small[0] == pytest.approx(2 * small[1], rel=0.01)

    @pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
    @pytest.mark.parametrize("device", ["a100", "h100", "b200", "gb200"])
    def test_more_bytes_are_never_faster(self, device: str, kind: str) -> None:
        chip = devices.get(device)
        for group in (2, 3, 4, 8):
            times = [chip.collective_time(kind, 2.0**at, group).seconds for at in range(40)]
            assert times == sorted(times)


def reduced(count: int, groups: str | None = None) -> hlofast.Module:
    """An all-reduce of 256 MiB among `count` devices."""
    listed = groups or f"[1,{count}]<=[{count}]"
    return hlofast.loads(
        f"HloModule m, is_scheduled=true, replica_count={count}\n\n"
        "s {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\n"
        "ENTRY e {\n  p = f32[67108864]{0} parameter(0)\n"
        f"  ROOT r = f32[67108864]{{0}} all-reduce(p), replica_groups={listed}, to_apply=s\n}}\n"
    )


def product(m: int, n: int, k: int, kind: str = "bf16", batch: int = 1) -> hlofast.Module:
    return hlofast.loads(
        "HloModule m, is_scheduled=true\n\nENTRY e {\n"
        f"  l = {kind}[{batch},{m},{k}]{{2,1,0}} parameter(0)\n"
        f"  r = {kind}[{batch},{k},{n}]{{2,1,0}} parameter(1)\n"
        f"  ROOT d = {kind}[{batch},{m},{n}]{{2,1,0}} dot(l, r), lhs_batch_dims={{0}}, "
        "lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}\n}\n"
    )


def seconds_of(module: hlofast.Module, name: str, device: str | Device) -> float:
    return float(module.time(device).column("seconds")[module[name].row])


class TestProducts:
    @pytest.mark.parametrize("name", GPUS)
    def test_large_products_are_near_the_peak_and_compute_bound(self, name: str) -> None:
        time = product(8192, 8192, 8192, "f16").time(name)
        peak = devices.get(name).require("flops.f16")
        assert 0.6 * peak < 2 * 8192**3 / time.step_seconds < peak
        assert time.bound == "compute"

    def test_few_rows_are_memory_bound(self) -> None:
        time = product(8, 16384, 16384).time("h100")
        assert time.bound == "memory"
        assert time.step_seconds == pytest.approx(2 * 16384**2 / 3350e9, rel=0.15)

    def test_waves_count(self) -> None:
        # 132 tiles of 128 x 256 fill all cores once; one more tile needs a second wave.
        one = seconds_of(product(128 * 12, 256 * 11, 8192), "d", "h100")
        two = seconds_of(product(128 * 12, 256 * 11 + 1, 8192), "d", "h100")
        assert two > 1.3 * one

    def test_the_efficiency_is_a_scalar(self) -> None:
        device = devices.get("h100")
        half = device.replace(matmul_efficiency=device.require("matmul_efficiency") / 2)
        module = product(8192, 8192, 8192)
        assert seconds_of(module, "d", half) == pytest.approx(
            2 * seconds_of(module, "d", device), rel=0.01
        )


KERNELS = """HloModule m, is_scheduled=true

s {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

along {
  p = f32[8192,4096]{1,0} parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[8192]{0} reduce(p, z), dimensions={1}, to_apply=s
}

across {
  p = f32[8192,4096]{1,0} parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[4096]{0} reduce(p, z), dimensions={0}, to_apply=s
}

turned {
  p = f32[8192,4096]{1,0} parameter(0)
  z = f32[] constant(0)
  r = f32[8192]{0} reduce(p, z), dimensions={1}, to_apply=s
  t = f32[4096,8192]{1,0} transpose(p), dimensions={1,0}
  ROOT x = (f32[8192]{0}, f32[4096,8192]{1,0}) tuple(r, t)
}

kept {
  p = f32[8192,4096]{1,0} parameter(0)
  z = f32[] constant(0)
  r = f32[8192]{0} reduce(p, z), dimensions={1}, to_apply=s
  n = f32[8192,4096]{1,0} negate(p)
  ROOT x = (f32[8192]{0}, f32[8192,4096]{1,0}) tuple(r, n)
}

ENTRY e {
  p = f32[8192,4096]{1,0} parameter(0)
  tiny = f32[8]{0} parameter(1)
  plain = f32[8192,4096]{1,0} negate(p)
  small = f32[8]{0} negate(tiny)
  fast = f32[8192]{0} fusion(p), kind=kInput, calls=along
  slow = f32[4096]{0} fusion(p), kind=kInput, calls=across
  mixed = (f32[8192]{0}, f32[4096,8192]{1,0}) fusion(p), kind=kInput, calls=turned
  straight = (f32[8192]{0}, f32[8192,4096]{1,0}) fusion(p), kind=kInput, calls=kept
  ROOT t = () tuple()
}
"""


class TestKernels:
    def test_kernels_are_charged_for_what_they_do(self) -> None:
        module = hlofast.loads(KERNELS)
        device = devices.get("a100-40gb")
        seconds = {
            name: seconds_of(module, name, device)
            for name in ("plain", "small", "fast", "slow", "mixed", "straight")
        }
        launch, achieved = device.require("launch"), device.require("hbm_achieved_bandwidth")
        size = 4 * 8192 * 4096
        assert seconds["plain"] == pytest.approx(launch + 2 * size / achieved, rel=0.01)
        assert seconds["small"] == pytest.approx(launch, rel=0.01)
        read = size / achieved
        assert read < seconds["fast"] < seconds["slow"]
        assert seconds["mixed"] > 1.5 * seconds["straight"] > 1.5 * seconds["plain"]

    def test_the_launch_and_the_bandwidth_are_scalars(self) -> None:
        module = hlofast.loads(KERNELS)
        device = devices.get("h100")
        later = device.replace(launch=device.require("launch") + 1e-6)
        faster = device.replace(hbm_achieved_bandwidth=device.require("hbm_bandwidth"))
        plain = seconds_of(module, "plain", device)
        assert seconds_of(module, "plain", later) == pytest.approx(plain + 1e-6)
        assert seconds_of(module, "plain", faster) < plain


class TestSanity:
    @pytest.mark.parametrize("name", GPUS)
    @pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name[:24])
    def test_times_hang_together(self, path: Path, name: str) -> None:
        time = hlofast.load(path).time(name)
        seconds, ideal = time.column("seconds"), time.column("roofline_seconds")
        compute, memory = time.column("compute_seconds"), time.column("memory_seconds")
        bound = time.column("bound")
        names = ["none", "compute", "memory", "communication", "launch", "unknown"]
        # The roofline of a collective is that of its arrays in memory, its seconds are those on the
        # links, 0 if a figure of them is missing; the row that waits for it takes none.
        own = (bound != names.index("communication")) & (bound != names.index("none"))
        own &= (bound != names.index("unknown")) | (seconds > 0)
        assert (seconds[own] >= ideal[own] * (1 - 1e-9)).all()
        for at in numpy.flatnonzero(seconds > 0):
            word = names[bound[at]]
            if word == "compute":
                assert compute[at] > memory[at]
            elif word == "memory":
                assert memory[at] >= compute[at]
            assert max(compute[at], memory[at]) <= seconds[at] * (1 + 1e-9)
        if not time.unknown:
            assert 0 < time.mfu <= 1

    @pytest.mark.parametrize(
        "figure",
        ["hbm_bandwidth", "hbm_achieved_bandwidth", "clock", "matmul_efficiency", "link_bandwidth"],
    )
    def test_better_figures_are_never_slower(self, figure: str) -> None:
        module = hlofast.load(MODULES[0], mesh="data=4")
        device = devices.get("a100-40gb")
        better = device.replace(**{figure: device.require(figure) * 1.05})
        before, after = module.time(device), module.time(better)
        assert (after.column("seconds") <= before.column("seconds") * (1 + 1e-9)).all()
        assert after.step_seconds <= before.step_seconds * (1 + 1e-9)
        peaks = {name: peak.value * 1.05 for name, peak in device.flops.items()}
        faster = module.time(device.replace(flops=peaks))
        assert (faster.column("seconds") <= before.column("seconds") * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("alias", "name", "bandwidth"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb", 1555.2e9),
        ("a100-80gb", "a100", 2039e9),
        ("NVIDIA H100 PCIe", "h100-pcie", 2039e9),
        ("NVIDIA GB200", "gb200", 7928e9),
        ("NVIDIA B300", "b300", 7936e9),
        ("mi200", "mi250", 1638.4e9),
        ("gfx950", "mi350x", 8000e9),
        ("Tesla V100-SXM2-16GB", "v100", 898e9),
    ],
)
def test_chips_of_xlas_target_configs_are_known(alias: str, name: str, bandwidth: float) -> None:
    device = devices.get(alias)
    assert device.name == name
    assert device.value("hbm_bandwidth") == bandwidth
    assert 0 < device.require("hbm_achieved_bandwidth") < bandwidth
