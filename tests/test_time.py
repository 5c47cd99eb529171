"""Time of modules: rows, schedules, collectives, loops and branches, unknown figures."""

import csv
import json
import math
import pickle
from pathlib import Path

import pytest

import hlofast
from hlofast import devices
from hlofast.devices import Device, Figure

ADD = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""

OVERLAPPED = """HloModule overlapped, is_scheduled=true, num_partitions=4

ENTRY %e (p: f32[1000], q: f32[1000]) -> (f32[4000], f32[1000]) {
  %p = f32[1000]{0} parameter(0)
  %q = f32[1000]{0} parameter(1)
  %s = (f32[1000]{0}, f32[4000]{0}) all-gather-start(%p), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
  %n = f32[1000]{0} negate(%q)
  %d = f32[4000]{0} all-gather-done(%s)
  ROOT %t = (f32[4000]{0}, f32[1000]{0}) tuple(%d, %n)
}
"""

LOOP = """HloModule loop, is_scheduled=true

%body (t: (pred[], f32[1000])) -> (pred[], f32[1000]) {
  %t = (pred[], f32[1000]{0}) parameter(0)
  %i = pred[] get-tuple-element(%t), index=0
  %x = f32[1000]{0} get-tuple-element(%t), index=1
  %n = f32[1000]{0} negate(%x)
  ROOT %r = (pred[], f32[1000]{0}) tuple(%i, %n)
}

%condition (t: (pred[], f32[1000])) -> pred[] {
  %t = (pred[], f32[1000]{0}) parameter(0)
  ROOT %c = pred[] get-tuple-element(%t), index=0
}

ENTRY %e (p: (pred[], f32[1000])) -> (pred[], f32[1000]) {
  %p = (pred[], f32[1000]{0}) parameter(0)
  ROOT %w = (pred[], f32[1000]{0}) while(%p), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"10"}}
}
"""


def toy(**figures: float | str | None) -> Device:
    """A device with round figures: 1e9 of everything per second, links of 1e6 bytes per second.

    It is no GPU, whose kernels and collectives take longer than at the peaks.
    """
    known = {
        "hbm_bandwidth": 1e9,
        "jax_devices": 1,
        "topology": "switch",
        "link_count": 1,
        "link_bandwidth": 1e6,
        "link_latency": 1e-12,
    }
    peaks = {"bf16": Figure(1e9, "test"), "f32": Figure(1e9, "test")}
    cells = {key: Figure(value, "test") for key, value in known.items()}
    return Device("toy", cells, peaks, backend="other").replace(**figures)


def parts(time: hlofast.Time) -> float:
    own = time.compute_seconds + time.memory_seconds + time.other_seconds
    return own + sum(time.exposed.values())


class TestRows:
    def test_the_longer_of_computing_and_moving_counts(self) -> None:
        module = hlofast.loads(
            "HloModule m\nENTRY %e (p: f32[100,100], q: f32[100,100]) -> f32[100,100] {\n"
            "  %p = f32[100,100]{1,0} parameter(0)\n  %q = f32[100,100]{1,0} parameter(1)\n"
            "  %d = f32[100,100]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
            "  ROOT %n = f32[100,100]{1,0} negate(%d)\n}\n"
        )
        time = module.time(toy())
        dot, negate = module["d"].row, module["n"].row
        # 2 * 100^3 FLOPs against 3 * 40 kB; 10^4 operations against 2 * 40 kB.
        assert time.column("seconds")[dot] == pytest.approx(2e-3)
        assert time.column("memory_seconds")[dot] == pytest.approx(1.2e-4)
        assert time.column("seconds")[negate] == pytest.approx(8e-5)
        bounds = [row["bound"] for row in time.table()]
        assert bounds[dot] == "compute"
        assert bounds[negate] == "memory"
        assert time.step_seconds == pytest.approx(2.08e-3)
        assert (time.compute_seconds, time.memory_seconds) == pytest.approx((2e-3, 8e-5))
        assert time.bound == "compute"
        assert time.mfu == pytest.approx((2e6 + 1e4) / (2.08e-3 * 1e9))

    def test_launching_counts_where_it_is_known(self) -> None:
        module = hlofast.loads(OVERLAPPED)
        negate = module["n"].row
        plain = module.time(toy()).column("seconds")[negate]
        assert module.time(toy(launch=1e-3)).column("seconds")[negate] == plain + 1e-3

    def test_precision_chooses_the_peak(self) -> None:
        text = (
            "HloModule m\nENTRY %e (p: f32[8,8]) -> f32[8,8] {\n  %p = f32[8,8]{1,0} parameter(0)\n"
            "  ROOT %d = f32[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}PRECISION\n}\n"
        )
        device = toy().replace(flops={"tf32": 2e9})

        def computing(precision: str) -> float:
            module = hlofast.loads(text.replace("PRECISION", precision))
            return float(module.time(device).column("compute_seconds")[module["d"].row])

        peaks = (device.value("flops.tf32"), device.value("flops.f32"))
        highest = ", operand_precision={highest,highest}"
        assert computing("") == pytest.approx(1024 / peaks[0])
        assert computing(highest) == pytest.approx(1024 / peaks[1])

    def test_the_compilers_estimate_can_be_chosen(self) -> None:
        text = (
            "HloModule m, is_scheduled=true\nENTRY %e (p: f32[8,128]) -> f32[8,128] {\n"
            "  %p = f32[8,128]{1,0:T(8,128)} parameter(0)\n"
            "  ROOT %n = f32[8,128]{1,0:T(8,128)} negate(%p), backend_config="
            '{"window_config":{"kernel_window_bounds":[],"output_window_bounds":["1","1"],'
            '"input_window_bounds":[],"estimated_cycles":"1500","iteration_bounds":["1","1"]}}\n}\n'
        )
        module = hlofast.loads(text)
        row = module["n"].row
        time = module.time("v5e", estimates="compiler")
        assert time.column("seconds")[row] == pytest.approx(1e-6)
        assert time.table().row(row)["provenance"] == "from_backend_config"
        modelled = module.time("v5e")
        assert modelled.column("compiler_seconds")[row] == pytest.approx(1e-6)
        assert modelled.table().row(row)["provenance"] == "modelled"
        ideal = module.time("v5e", estimates="roofline").step_seconds
        assert ideal == pytest.approx(8192 / 819e9)
        missing = text.replace('"1500"', '"18446744073709551615"')
        assert math.isnan(hlofast.loads(missing).time("v5e").column("compiler_seconds")[row])


class TestSchedule:
    def test_what_runs_meanwhile_hides_a_collective(self) -> None:
        module = hlofast.loads(OVERLAPPED)
        slow = module.time(toy(), mesh="x=4")
        # 3/4 of 16 kB at 1e6 bytes per second; 8 us of the negate run meanwhile.
        assert slow.step_seconds == pytest.approx(12e-3)
        assert slow.exposed == {"x": pytest.approx(12e-3 - 8e-6)}
        assert slow.bound == "communication along x"
        fast = module.time(toy(link_bandwidth=1e10), mesh="x=4")
        assert fast.exposed == {"x": 0.0}
        assert fast.step_seconds == pytest.approx(8e-6)
        assert parts(slow) == pytest.approx(slow.step_seconds)
        start, done = module["s"].row, module["d"].row
        assert slow.column("end_seconds")[start] == pytest.approx(12e-3)
        assert slow.column("exposed_seconds")[done] == pytest.approx(12e-3 - 8e-6)

    def test_axes_are_links_of_their_own(self) -> None:
        text = "HloModule m, is_scheduled=true, num_partitions=4\n" + ADD
        text += """
ENTRY %e (p: f32[1000], q: f32[1000]) -> (f32[1000], f32[1000]) {
  %p = f32[1000]{0} parameter(0)
  %q = f32[1000]{0} parameter(1)
  %a = f32[1000]{0} all-reduce-start(%p), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=%add
  %b = f32[1000]{0} all-reduce-start(%q), channel_id=2, replica_groups=GROUPS, use_global_device_ids=true, to_apply=%add
  %c = f32[1000]{0} all-reduce-done(%a)
  %d = f32[1000]{0} all-reduce-done(%b)
  ROOT %t = (f32[1000]{0}, f32[1000]{0}) tuple(%c, %d)
}
"""
        same = hlofast.loads(text.replace("GROUPS", "{{0,1},{2,3}}")).time(toy(), mesh="x=2,y=2")
        other = hlofast.loads(text.replace("GROUPS", "{{0,2},{1,3}}")).time(toy(), mesh="x=2,y=2")
        # Twice half of 4 kB at 1e6 bytes per second each.
        assert same.step_seconds == pytest.approx(8e-3)
        assert other.step_seconds == pytest.approx(4e-3)
        assert same.exposed == {"y": pytest.approx(8e-3)}
        assert set(other.exposed) == {"x", "y"}
        assert parts(other) == pytest.approx(4e-3)

    def test_loops_run_as_often_as_they_do(self) -> None:
        time = hlofast.loads(LOOP).time(toy())
        assert time.step_seconds == pytest.approx(10 * 8e-6)
        assert time.open_loops == ()
        once = hlofast.loads(LOOP.partition(", backend_config")[0] + "\n}\n").time(toy())
        assert once.step_seconds == pytest.approx(8e-6)
        assert once.open_loops == ("w",)
        assert "at least" in repr(once)

    def test_the_longest_branch_counts(self) -> None:
        module = hlofast.loads("""HloModule m
%short (x: f32[1000]) -> f32[1000] {
  %x = f32[1000]{0} parameter(0)
  ROOT %n = f32[1000]{0} negate(%x)
}
%long (x: f32[1000]) -> f32[1000] {
  %x = f32[1000]{0} parameter(0)
  %c = f32[1000]{0} copy(%x)
  ROOT %d = f32[1000]{0} copy(%c)
}
ENTRY %e (i: s32[], x: f32[1000]) -> f32[1000] {
  %i = s32[] parameter(0)
  %x = f32[1000]{0} parameter(1)
  ROOT %k = f32[1000]{0} conditional(%i, %x, %x), branch_computations={%short, %long}
}
""")
        # The short branch has more FLOPs, the long one takes more time.
        assert module.time(toy()).step_seconds == pytest.approx(16e-6)

    def test_copies_run_beside_what_is_scheduled(self) -> None:
        text = """HloModule m, is_scheduled=true
ENTRY %e (p: f32[1000], q: f32[1000]) -> (f32[1000], f32[1000]) {
  %p = f32[1000]{0} parameter(0)
  %q = f32[1000]{0} parameter(1)
  %s = (f32[1000]{0:S(1)}, f32[1000]{0}, u32[]{:S(2)}) copy-start(%p)
  %n = f32[1000]{0} negate(%q)
  %d = f32[1000]{0:S(1)} copy-done(%s)
  ROOT %t = (f32[1000]{0:S(1)}, f32[1000]{0}) tuple(%d, %n)
}
"""
        assert hlofast.loads(text).time(toy()).step_seconds == pytest.approx(8e-6)

    def test_moves_between_device_and_host_take_the_link_to_the_host(self) -> None:
        text = """HloModule m, is_scheduled=true
ENTRY %e (p: f32[1000], q: f32[1000]) -> (f32[1000], f32[1000]) {
  %p = f32[1000]{0} parameter(0)
  %q = f32[1000]{0:S(5)} parameter(1)
  %away = (f32[1000]{0:S(5)}, f32[1000]{0}, u32[]{:S(2)}) copy-start(%p)
  %back = (f32[1000]{0}, f32[1000]{0:S(5)}, u32[]{:S(2)}) copy-start(%q)
  %gone = f32[1000]{0:S(5)} copy-done(%away)
  %here = f32[1000]{0} copy-done(%back)
  ROOT %t = (f32[1000]{0:S(5)}, f32[1000]{0}) tuple(%gone, %here)
}
"""
        # 4000 bytes in each direction, at the same time.
        module = hlofast.loads(text)
        assert module.time(toy(host_bandwidth=1e6)).step_seconds == pytest.approx(4e-3)
        assert module.time(toy(host_bandwidth=1e5)).step_seconds == pytest.approx(4e-2)


class TestUnknown:
    def test_missing_figures_are_named(self) -> None:
        module = hlofast.loads(OVERLAPPED)
        time = module.time(toy(link_bandwidth=None, hbm_bandwidth=None))
        assert set(time.unknown) == {"hbm_bandwidth", "link_bandwidth"}
        assert time.table().row(module["n"].row)["provenance"] == "unknown"
        assert time.table().row(module["n"].row)["bound"] == "unknown"
        assert time.collectives.row(0)["unknown"] == "link_bandwidth"
        assert "at least" in repr(time)
        assert module.time(toy()).unknown == ()

    def test_a_device_that_is_not_known_is_refused(self) -> None:
        with pytest.raises(devices.UnknownDeviceError, match="known devices"):
            hlofast.loads(OVERLAPPED).time("tpu-v99")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"estimates": "guess"}, "estimates must be"),
            ({"collectives": "guess"}, "collectives must be one of"),
            ({"mesh": "x=three"}, "three"),
            ({"mesh": {"x": 0}}, "0"),
        ],
    )
    def test_options_that_make_no_sense_are_refused(self, options, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            hlofast.loads(OVERLAPPED).time(toy(), **options)

    def test_a_missing_peak_is_said(self) -> None:
        module = hlofast.loads(
            "HloModule m\nENTRY %e (p: f64[8,8]) -> f64[8,8] {\n  %p = f64[8,8]{1,0} parameter(0)\n"
            "  ROOT %d = f64[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n"
        )
        assert module.time(toy()).unknown == ("flops",)


class TestCollectives:
    def test_ring_shares(self) -> None:
        device = toy(link_bandwidth=1.0)
        for kind, share in (
            ("all-reduce", 1.75),
            ("all-gather", 0.875),
            ("reduce-scatter", 0.875),
            ("all-to-all", 0.875),
            ("collective-permute", 1.0),
        ):
            estimate = device.collective_time(kind, 1000, 8)
            assert estimate.wire_bytes == pytest.approx(1000 * share)
            assert estimate.seconds == pytest.approx(1000 * share)
        assert device.collective_time("all-reduce", 1000, 1).seconds == 0

    def test_torus_with_and_without_wraparound(self) -> None:
        v5e = devices.get("v5e").replace(link_latency=1e-15)
        size = 64 * 2**20
        open_axis = v5e.collective_time("all-gather", size, 4).seconds
        closed = v5e.replace(wraparound_multiple=4).collective_time("all-gather", size, 4).seconds
        assert open_axis == pytest.approx(0.75 * size / 45e9)  # 1.12 ms
        assert closed == pytest.approx(0.56e-3, rel=0.01)
        reduced = v5e.collective_time("all-reduce", size, 16).seconds
        assert reduced == pytest.approx(2 * 15 / 16 * size / 90e9)
        exchanged = v5e.collective_time("all-to-all", size, 16).seconds
        assert exchanged == pytest.approx(16 * size / (8 * 45e9))
        assert v5e.collective_time("all-gather", size, 256, axes=2).seconds == pytest.approx(
            255 / 256 * size / 180e9
        )

    def test_latency_is_shown_apart(self) -> None:
        estimate = devices.get("v5p").collective_time("all-gather", 1e6, 8)
        assert estimate.alpha_seconds == pytest.approx(4e-6)
        assert estimate.seconds == pytest.approx(4e-6 + 7 / 8 * 1e6 / 180e9)
        assert estimate.bytes_per_second == pytest.approx(180e9)

    def test_hosts_are_a_second_level(self) -> None:
        h100 = devices.get("h100")
        size = 2**28
        estimate = h100.collective_time("all-reduce", size, 16, near=8)
        inner = [h100.collective_time(kind, size, 8) for kind in ("reduce-scatter", "all-gather")]
        # Two messages between the hosts, each half a round trip.
        outer = h100.require("network_round_trip") + 2 * 1 / 2 * (size / 8) / 50e9
        assert estimate.seconds == pytest.approx(inner[0].seconds + outer + inner[1].seconds)

    @pytest.mark.parametrize(
        ("device", "kind", "microseconds"),
        [
            ("h100", "all-gather", 1438),
            ("h100", "all-reduce", 2831),
            ("b200", "all-gather", 744),
            ("b200", "all-reduce", 1443),
        ],
    )
    def test_speed_of_light_of_two_hosts(self, device: str, kind: str, microseconds: float) -> None:
        estimate = devices.get(device).collective_time(
            kind, 2**28, 16, near=8, model="speed-of-light"
        )
        assert estimate.seconds * 1e6 == pytest.approx(microseconds, rel=1e-3)

    def test_alpa(self) -> None:
        device = toy()
        cost = [
            device.collective_time(kind, 800, 8, model="alpa", alpha=1, beta=0.1).seconds
            for kind in ("all-gather", "all-reduce", "reduce-scatter", "all-to-all")
        ]
        assert cost == pytest.approx([71.1, 141.01, 71.001, 1 + 0.1 * 7 / 64 * 800 * 4 + 0.001])
        with pytest.raises(ValueError, match="no formula"):
            device.collective_time("collective-permute", 1, 2, model="alpa")

    def test_missing_figures_are_raised(self) -> None:
        with pytest.raises(devices.UnknownFigureError, match="topology of trainium2"):
            devices.get("trn2").replace(link_bandwidth=1e11).collective_time("all-reduce", 1, 2)
        with pytest.raises(ValueError, match="unknown kind"):
            toy().collective_time("all-shuffle", 1, 2)

    @pytest.mark.parametrize(
        ("device", "sizes", "message"),
        [
            ("v5e", {"axes": 3}, "axes is from 1 to 2 on tpu-v5e, not 3"),
            ("v5p", {"axes": 0}, "axes is from 1 to 3 on tpu-v5p, not 0"),
            ("h100", {"near": 0}, "near is from 1 to the 8 devices of the group, not 0"),
            ("h100", {"near": 9}, "near is from 1 to the 8 devices of the group, not 9"),
        ],
    )
    def test_sizes_that_do_not_exist_are_refused(
        self, device: str, sizes: dict[str, int], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            devices.get(device).collective_time("all-reduce", 1000, 8, **sizes)


class TestMeasurements:
    ROWS = (("all-gather", 4, 1000, 1e-3), ("all-gather", 4, 3000, 2e-3))

    def check(self, measurements: devices.Measurements) -> None:
        assert measurements.seconds("all-gather", 1000, 4) == pytest.approx(1e-3)
        assert measurements.seconds("all-gather", 2000, 4) == pytest.approx(1.5e-3)
        assert measurements.seconds("all-gather", 5000, 4) == pytest.approx(3e-3)
        assert measurements.seconds("all-gather", 10, 4) == pytest.approx(1e-3)
        assert measurements.seconds("all-gather", 1000, 8) is None
        assert measurements.seconds("all-reduce", 1000, 4) is None

    def test_csv_and_json(self, tmp_path: Path) -> None:
        names = ("kind", "group_size", "bytes", "seconds")
        with (tmp_path / "m.csv").open("w", newline="") as file:
            csv.writer(file).writerows([names, *self.ROWS])
        (tmp_path / "m.json").write_text(json.dumps([dict(zip(names, r)) for r in self.ROWS]))
        for name in ("m.csv", "m.json"):
            self.check(devices.read_measurements(tmp_path / name))

    def test_they_replace_formulas(self, tmp_path: Path) -> None:
        measured = devices.Measurements([("all-gather", 4, 16000, 0.5)])
        time = hlofast.loads(OVERLAPPED).time(toy(), collectives=measured)
        assert time.step_seconds == pytest.approx(0.5)

    @staticmethod
    def alpa_pickle(extra: bytes = b"") -> bytes:
        """What pickle writes for Alpa's database, built without Alpa."""
        groups = ((0, 1, 2, 3),)
        table = {(groups, "f32"): [(250, 1e-3), (750, 2e-3)]}
        inner = pickle.dumps({"all_gather_cost_dict": table}, protocol=2)[2:-1]
        key = pickle.dumps(("cluster", (1, 4)), protocol=2)[2:-1]
        record = b"calpa.mesh_profiling\nMeshProfilingResult\n)\x81" + inner + b"b"
        data = b"}" + pickle.dumps("data", protocol=2)[2:-1] + b"}" + key + record + b"s" + b"s"
        head = b"\x80\x02calpa.mesh_profiling\nProfilingResultDatabase\n)\x81"
        return head + data + b"b" + extra + b"."

    def test_alpas_database_counts_elements(self, tmp_path: Path) -> None:
        path = tmp_path / "prof_database.pkl"
        path.write_bytes(self.alpa_pickle())
        self.check(devices.read_measurements(path))

    def test_a_pickle_runs_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "evil.pkl"
        target = tmp_path / "written"
        path.write_bytes(f"cos\nsystem\n(S'touch {target}'\ntR.".encode())
        with pytest.raises(ValueError, match=r"os\.system is not allowed"):
            devices.read_measurements(path)
        assert not target.exists()

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("x.csv", b"kind,bytes\nall-gather,1\n"),
            ("x.csv", b"kind,group_size,bytes,seconds\nall-gather,4,many,1\n"),
            ("x.csv", b"kind,group_size,bytes,seconds\nall-shuffle,4,1,1\n"),
            ("x.csv", b"kind,group_size,bytes,seconds\nall-gather,4,1,-1\n"),
            ("x.json", b"{}"),
            ("x.json", b"[1]"),
            ("x.json", b"["),
            ("x.pkl", b"nonsense"),
            ("x.pkl", b"\x80\x02}."),
            ("x.pkl", b"\x80\x02cbuiltins\neval\n."),
            ("x.txt", b""),
        ],
    )
    def test_faults_are_value_errors(self, tmp_path: Path, name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError):
            devices.read_measurements(tmp_path / name)


class TestTables:
    def test_groups_add_up(self) -> None:
        time = hlofast.loads(LOOP).time(toy())
        whole = sum(time.column("seconds") * time.column("multiplicity"))
        for key in ("bound", "opcode", "computation", "phase", "scope", "source"):
            assert sum(row["seconds"] for row in time.by(key)) == pytest.approx(whole)
        with pytest.raises(KeyError):
            time.by("weather")

    def test_columns(self) -> None:
        time = hlofast.loads(LOOP).time(toy())
        row = time.table().row(time.module["n"].row)
        assert row["multiplicity"] == 10
        assert row["total_seconds"] == pytest.approx(8e-5)
        assert (row["start_seconds"], row["end_seconds"]) == pytest.approx((0, 8e-6))
        assert row["compiler_seconds"] is None


class TestPlaces:
    PERMUTE = (
        "HloModule m, is_scheduled=true, num_partitions=4\nENTRY %e (p: f32[1000]) -> f32[1000] {\n"
        "  %p = f32[1000]{0} parameter(0)\n  ROOT %c = f32[1000]{0} collective-permute(%p), "
        "channel_id=1, source_target_pairs=PAIRS\n}\n"
    )

    @pytest.mark.parametrize(
        ("pairs", "seconds"), [("{{0,1},{1,0}}", 4e-3), ("{{0,2},{2,0}}", 4e-2)]
    )
    def test_permutes_between_hosts_take_the_slow_network(self, pairs: str, seconds: float) -> None:
        module = hlofast.loads(self.PERMUTE.replace("PAIRS", pairs))
        mesh = hlofast.Mesh({"host": 2, "local": 2}, hosts=2)
        time = module.time(toy(network_bandwidth=1e5, network_latency=1e-12), mesh=mesh)
        assert time.step_seconds == pytest.approx(seconds)

    def test_every_collective_of_a_fusion_takes_its_time(self) -> None:
        module = hlofast.loads(
            f"HloModule m, is_scheduled=true, num_partitions=4\n{ADD}\n"
            "%both (a: f32[1000], b: f32[1000]) -> (f32[1000], f32[1000]) {\n"
            "  %a = f32[1000]{0} parameter(0)\n  %b = f32[1000]{0} parameter(1)\n"
            "  %r = f32[1000]{0} all-reduce(%a), channel_id=1, replica_groups={{0,1,2,3}}, "
            "use_global_device_ids=true, to_apply=%add\n"
            "  %s = f32[1000]{0} all-reduce(%b), channel_id=2, replica_groups={{0,1,2,3}}, "
            "use_global_device_ids=true, to_apply=%add\n"
            "  ROOT %t = (f32[1000]{0}, f32[1000]{0}) tuple(%r, %s)\n}\n"
            "ENTRY %e (p: f32[1000], q: f32[1000]) -> (f32[1000], f32[1000]) {\n"
            "  %p = f32[1000]{0} parameter(0)\n  %q = f32[1000]{0} parameter(1)\n"
            "  ROOT %f = (f32[1000]{0}, f32[1000]{0}) fusion(%p, %q), kind=kCustom, calls=%both\n}\n"
        )
        # Each sends 2 * 3/4 of 4 kB at 1 MB per second.
        assert sum(module.time(toy()).exposed.values()) == pytest.approx(1.2e-2)


def test_the_source_of_the_mesh_reads_as_in_collectives(train_step: Path) -> None:
    module = hlofast.load(train_step, device="tpu-v5e")
    told = [
        {fact.name: fact.value for fact in result.facts}["mesh_source"]
        for result in (module.time(), module.collectives())
    ]
    assert told[0] == told[1] and " " in told[0]
