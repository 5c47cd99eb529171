"""Profiles: XSpaces and traces as tables, against ProfileData, and shapes that sources describe."""

import gzip
import json
import lzma
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import CHECKOUT, FIXTURES
from hlofast.cli import main
from xplane_writer import Event, Plane, message, number, space

FOLDER = FIXTURES / "profiles"
NAMES = ("sharded", "several")
US = 1_000_000
"""Picoseconds."""


def truth(name: str) -> Any:
    return json.loads(lzma.decompress((FOLDER / f"{name}.truth.json.xz").read_bytes()))


def written(name: str) -> bytes:
    return lzma.decompress((FOLDER / f"{name}.xplane.pb.xz").read_bytes())


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_planes_lines_events_and_stats_are_those_of_profile_data(name: str) -> None:
    profile = hlofast.load_profile(FOLDER / f"{name}.xplane.pb.xz")
    expected = truth(name)["planes"]
    assert [plane.name for plane in profile.planes] == [plane["name"] for plane in expected]
    events = 0
    for plane, own in zip(profile.planes, expected, strict=True):
        assert [line.name for line in plane.lines] == [line["name"] for line in own["lines"]]
        assert plane.stats.keys() == own["stats"].keys()
        for line, truth_line in zip(plane.lines, own["lines"], strict=True):
            assert [event.name for event in line.events] == truth_line["names"]
            assert [event.start_ns for event in line.events] == truth_line["starts_ns"]
            assert [event.duration_ns for event in line.events] == truth_line["durations_ns"]
            for at, stats in truth_line["stats"].items():
                assert line.events[int(at)].stats == stats
            events += len(line.events)
    assert events == sum(profile.lines.values("events")) > 50


def instructions_in(expected: Any) -> Iterator[tuple[str, float, float]]:
    """Names and times of host events that other events show to be instructions."""
    for plane in expected["planes"]:
        for line in plane["lines"]:
            named = {
                line["names"][int(at)] for at, stats in line["stats"].items() if "hlo_op" in stats
            }
            columns = zip(line["names"], line["starts_ns"], line["durations_ns"], strict=True)
            yield from (event for event in columns if event[0] in named)


def test_events_have_their_device_program_and_time() -> None:
    profile = hlofast.load_profile(FOLDER / "sharded.xplane.pb.xz")
    events = list(profile.events)
    found = {
        (row["instruction"], round(row["start"] * 1e9, 3), round(row["duration"] * 1e9, 3))
        for row in events
        if row["track"] != "asynchronous operations"
    }
    expected = set(instructions_in(truth("sharded")))
    assert len(expected) > 50
    assert expected <= found
    assert {row["device"] for row in events} == {f"/device:CPU:{at}" for at in range(8)}
    assert {row["program"] for row in events} == {"jit_train_step"}
    # Every instruction that ran is one of the module.
    (module,) = [own for own in profile.modules if own.name == "jit_train_step"]
    assert {row["instruction"] for row in events} <= {own.name for own in module}


def test_steps_and_launches() -> None:
    profile = hlofast.load_profile(FOLDER / "sharded.xplane.pb.xz")
    steps = list(profile.steps)
    assert [row["number"] for row in steps] == [0, 1, 2]
    assert [row["device"] for row in steps] == [None] * 3
    launches = list(profile.launches)
    assert len(launches) == 3 * 8
    assert len({row["run"] for row in launches}) == 3
    for row in launches:
        (step,) = [
            own for own in steps if own["start"] <= row["start"] < own["start"] + own["duration"]
        ]
        assert row["start"] + row["duration"] <= step["start"] + step["duration"]


def test_every_module_of_a_profile_loads(name: str) -> None:
    path = FOLDER / f"{name}.xplane.pb.xz"
    profile = hlofast.load_profile(path)
    labels = profile.module_table.values("label")
    assert labels
    assert [module.name for module in profile.modules] == profile.module_table.values("module")
    found = hlofast.find_modules(path.read_bytes(), path=str(path))
    assert [own.label for own in found] == labels
    assert all(own.module is not None and len(own.module) for own in found)
    for at, label in enumerate(labels):
        assert hlofast.load(path, module=label).name == label.partition("(")[0]
        assert hlofast.load(path, module=at).name == label.partition("(")[0]


def test_load_wants_one_module_of_a_profile() -> None:
    path = FOLDER / "several.xplane.pb.xz"
    with pytest.raises(hlofast.ParseError, match="modules where one was expected") as raised:
        hlofast.load(path)
    assert raised.value.kind == "several-modules"
    with pytest.raises(hlofast.ParseError, match='no module "gone" among'):
        hlofast.load(path, module="gone")
    assert hlofast.load(path, module="jit_attend").name == "jit_attend"


def test_a_trace_gives_the_events_of_its_xspace() -> None:
    full = hlofast.load_profile(FOLDER / "sharded.xplane.pb.xz")
    trace = hlofast.load_profile(FOLDER / "sharded.trace.json.gz")
    assert len(trace.module_table) == 0

    def rows(profile: hlofast.Profile) -> list[tuple[object, ...]]:
        return sorted(
            (row["device"], row["instruction"], round(row["duration"] * 1e9))
            for row in profile.events
            if row["track"] != "asynchronous operations"
        )

    assert rows(trace) == rows(full)
    assert trace.steps.values("number") == full.steps.values("number")
    assert len(trace.launches) == len(full.launches)


# TPU: lines, names and stats as libtpu writes them.
OP_1 = "%fusion.1 = bf16[8,128]{1,0:T(8,128)} fusion(%param.0), kind=kLoop"
OP_2 = "%while.3 = (s32[], bf16[8,128]) while(%tuple.1), condition=%c, body=%b"
BIG = 0xFEDCBA9876543210


def tpu(number: int, step: int = 10 * US) -> Plane:
    program = {"program_id": BIG, "hlo_category": "loop fusion"}
    plane = Plane(f"/device:TPU:{number}", number)
    plane.stats(
        device_type_string="TPU v5 lite",
        peak_teraflops_per_second=197.0,
        peak_hbm_bw_gigabytes_per_second=819.0,
    )
    starts = [at * step for at in range(2)]
    plane.line("Steps", [Event(str(at), start, step) for at, start in enumerate(starts, 7)])
    run = [{"run_id": 100 + at} for at in range(2)]
    plane.line(
        "XLA Modules",
        [Event(f"jit_step({BIG})", at, 9 * US, own) for at, own in zip(starts, run, strict=True)],
    )
    ops = []
    for start in starts:
        ops.append(Event(OP_2, start, 8 * US, {"device_offset_ps": start}, program, "while.3"))
        ops.append(Event(OP_1, start + US, 3 * US, {}, program, "fusion.1"))
        ops.append(Event(OP_1, start + 4 * US, 3 * US, {}, program, "fusion.1"))
    plane.line("XLA Ops", ops)
    flight = Event("all-gather-start.2", US, 6 * US, {"hlo_op": "all-gather-start.2", "flow": 5})
    plane.line("Async XLA Ops", [flight])
    plane.line("TensorFlow Name Scope", [Event("scope", 0, US)])
    plane.line("TC Overlay", [Event("overlay", 0, US)])
    return plane


def test_tpu_planes() -> None:
    sparse = Plane("/device:TPU:0 SparseCore 1", 9)
    sparse.line("Sparse Core Ops", [Event("%gather.9 = f32[8] custom-call()", US, US)])
    sparse.line("Sparse Core Modules", [Event("sparse", 0, US)])
    content = space([tpu(1), tpu(0), sparse], hostnames=["vm-4"], warnings=["buffer was full"])
    profile = hlofast.load_profile(content)
    assert profile.hosts == ("vm-4",)
    assert profile.warnings == (("vm-4", "buffer was full"),)
    devices = list(profile.devices)
    assert [row["device"] for row in devices] == ["/device:TPU:0", "/device:TPU:1"]
    assert devices[0] == devices[0] | {
        "kind": "tpu", "chip": "TPU v5 lite", "ordinal": 0,
        "peak_flops": 197e12, "hbm_bandwidth": 819e9,
    }  # fmt: skip
    assert [row["busy"] for row in devices] == [16e-6, 16e-6]
    (program,) = profile.programs
    assert (program["program"], program["program_id"]) == ("jit_step", str(BIG))
    assert program["launches"] == 4
    assert not program["has_module"]
    assert [(row["number"], row["start"]) for row in profile.steps][:2] == [(7, 0), (8, 10e-6)]
    assert profile.launches.values("run") == [100, 101] * 2
    of_first = [row for row in profile.events if row["device"] == "/device:TPU:0"]
    in_order = [row["instruction"] for row in of_first if row["track"] == "XLA Ops"]
    assert in_order == ["while.3", "fusion.1", "fusion.1"] * 2
    beside = {row["track"]: row["instruction"] for row in of_first if row["track"] != "XLA Ops"}
    assert beside == {
        "Async XLA Ops": "all-gather-start.2",
        "SparseCore 1: Sparse Core Ops": "gather.9",
    }
    # An asynchronous operation belongs to the program that runs when it begins.
    assert {row["program"] for row in of_first} == {"jit_step"}
    read_as = {row["line"]: row["read_as"] for row in profile.lines}
    assert read_as["TC Overlay"] is None
    assert read_as["Sparse Core Modules"] is None
    assert read_as["XLA Modules"] == "modules"


def gpu() -> Plane:
    """Kernels with stats as `cupti_collector.cc` writes them, and lines derived from them."""
    own = {"hlo_module": "jit_step", "program_id": 4, "correlation_id": 11}
    plane = Plane("/device:GPU:0")
    plane.stats(
        device_vendor="Nvidia", gpu_device_name="NVIDIA H100 80GB HBM3", clock_rate=1_980_000,
        core_count=132, memory_bandwidth=3_350_000_000_000, memory_size=85_000_000_000,
    )  # fmt: skip
    gemm = own | {"hlo_op": "custom-call.5", "theoretical_occupancy_pct": 12.5}
    plane.line(
        "Stream #13(Compute,MemcpyD2D)",
        [
            Event("sm90_gemm", 0, 5 * US, gemm),
            Event("splitK_reduce", 5 * US, US, gemm),
            Event("loop_fusion", 7 * US, US, own | {"hlo_op": "fusion.2", "cuda_graph_id": 3}),
            Event("MemcpyD2D", 9 * US, US, {"memcpy_details": "kind_src:device size:64"}),
        ],
        key=13,
    )
    nccl = own | {"hlo_op": "all-reduce-start.1"}
    plane.line("Stream #17(Compute)", [Event("ncclDevKernel", US, 6 * US, nccl)], key=17)
    # Derived by viewers from the same kernels.
    plane.line("XLA Ops", [Event("custom-call.5", 0, 6 * US), Event("fusion.2", 7 * US, US)])
    plane.line("XLA Modules", [Event("jit_step(4)", 0, 8 * US)])
    plane.line("Steps", [Event("3", 0, 10 * US)])
    plane.line("Launch Stats", [Event("launch", 0, US)])
    return plane


def test_gpu_planes() -> None:
    profile = hlofast.load_profile(space([gpu()]))
    (device,) = profile.devices
    assert device == device | {
        "kind": "gpu", "chip": "NVIDIA H100 80GB HBM3", "cores": 132, "events": 5,
        "hbm_bandwidth": 3.35e12, "memory_bytes": 85_000_000_000, "peak_flops": None,
    }  # fmt: skip
    rows = [(row["label"], row["instruction"], row["program"]) for row in profile.events]
    assert rows == [
        ("sm90_gemm", "custom-call.5", "jit_step"),
        ("splitK_reduce", "custom-call.5", "jit_step"),
        ("loop_fusion", "fusion.2", "jit_step"),
        ("MemcpyD2D", None, None),
        ("ncclDevKernel", "all-reduce-start.1", "jit_step"),
    ]
    assert [row["number"] for row in profile.steps] == [3]
    assert len(profile.launches) == 1
    (line,) = profile.planes[0].lines[:1]
    assert line.events[0].stats["theoretical_occupancy_pct"] == 12.5
    assert line.events[0].stats["hlo_op"] == "custom-call.5"


def test_operations_that_end_on_another_thread() -> None:
    own = {"hlo_module": "jit_f", "program_id": 1, "run_id": 8, "device_ordinal": 2}
    host = Plane("/host:CPU")
    host.line(
        "pool/1",
        [
            Event("all-reduce.1", 0, US, own | {"hlo_op": "all-reduce.1", "_pt": 0, "_p": 77}),
            Event("dot.2", 2 * US, US, own | {"hlo_op": "dot.2", "_pt": 0, "_p": 78}),
            Event("end: dot.2", 2 * US, 10, {"_ct": 0, "_c": 78}),
        ],
    )
    host.line("pool/2", [Event("end: all-reduce.1", 5 * US, 10, {"_ct": 0, "_c": 77})])
    profile = hlofast.load_profile(space([host]))
    rows = [(row["track"], row["instruction"], row["duration"]) for row in profile.events]
    assert rows == [
        ("pool/1", "all-reduce.1", 1e-6),
        ("pool/1", "dot.2", 1e-6),
        ("asynchronous operations", "all-reduce.1", pytest.approx(5.00001e-6)),
    ]
    (launch,) = profile.launches
    assert (launch["device"], launch["run"], launch["duration"]) == ("/device:CPU:2", 8, 3e-6)


def test_times_since_1970_keep_their_differences() -> None:
    now = 1_795_414_379_319_381_015
    plane = Plane("/device:TPU:0")
    plane.line("XLA Modules", [Event("jit_f(1)", 0, 5 * US)], timestamp_ns=now)
    plane.line("XLA Ops", [Event("%a = f32[] add()", US, US)], timestamp_ns=now + 2_000)
    profile = hlofast.load_profile(space([plane]))
    assert profile.launches.values("start") == [0]
    assert profile.events.values("start") == [3e-6]
    assert profile.events.values("program") == ["jit_f"]


def test_hosts_in_one_call_and_their_names(tmp_path: Path) -> None:
    for name in ("vm-0", "vm-1"):
        (tmp_path / f"{name}.xplane.pb").write_bytes(space([tpu(0)]))
    profile = hlofast.load_profile([tmp_path / "vm-0.xplane.pb", tmp_path / "vm-1.xplane.pb"])
    assert profile.hosts == ("vm-0", "vm-1")
    assert len(profile.programs) == 1
    assert profile.devices.values("host") == ["vm-0", "vm-1"]
    # Files that name the same host keep apart.
    same = space([tpu(0)], hostnames=["vm"])
    assert hlofast.load_profile([same, same]).hosts == ("vm", "vm 2")


def test_folders(tmp_path: Path) -> None:
    for run, step in (("2026_11_23_06_12_59", 10), ("2026_11_24_06_12_59", 20)):
        folder = tmp_path / "plugins" / "profile" / run
        folder.mkdir(parents=True)
        for host in ("a", "b"):
            content = space([tpu(0, step * US)])
            (folder / f"{host}.xplane.pb.gz").write_bytes(gzip.compress(content))
        (folder / "a.trace.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
    newest = hlofast.load_profile(tmp_path)
    assert (newest.run, newest.hosts) == ("2026_11_24_06_12_59", ("a", "b"))
    assert newest.steps.values("duration")[0] == 20e-6
    older = hlofast.load_profile(tmp_path, run="2026_11_23_06_12_59")
    assert older.steps.values("duration")[0] == 10e-6
    with pytest.raises(ValueError, match="no run '2026_11_23_06_12_58'; did you mean"):
        hlofast.load_profile(tmp_path, run="2026_11_23_06_12_58")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="no profile here"):
        hlofast.load_profile(empty)
    with pytest.raises(OSError, match="gone"):
        hlofast.load_profile(tmp_path / "gone")


def test_unknown_things_are_listed_not_dropped() -> None:
    plane = Plane("/device:CUSTOM:Megascale Trace")
    plane.line("flows", [Event("send", 0, US, {"new stat": b"\x01\x02", "real": 0.5})])
    profile = hlofast.load_profile(space([plane, Plane("#Chip TPU Non-Core HBM")]))
    assert len(profile.events) == 0
    lines = [(row["plane"], row["line"], row["events"]) for row in profile.lines]
    assert lines == [
        ("/device:CUSTOM:Megascale Trace", "flows", 1),
        ("#Chip TPU Non-Core HBM", None, 0),
    ]
    (event,) = profile.planes[0].lines[0].events
    assert event.stats == {"new stat": b"\x01\x02", "real": 0.5}


def test_events_without_metadata_and_aggregates() -> None:
    # Metadata 9 is not defined; the second event has occurrences instead of a begin.
    events = number(1, 9) + number(2, 5) + number(3, 6), number(1, 9) + number(5, 4)
    line = message(2, "XLA Ops") + b"".join(message(4, event) for event in events)
    content = message(1, message(2, "/device:TPU:0") + message(3, line))
    profile = hlofast.load_profile(content)
    assert len(profile.events) == 1
    first, second = profile.planes[0].lines[0].events
    assert (first.name, first.offset_ps, first.occurrences) == ("", 5, None)
    assert (second.occurrences, second.duration_ps) == (4, 0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"HloModule m\n",
        b"\x0a\xff\xff\xff\xff\x0f\x12\x01x",
        b"{}",
        b"\x1f\x8b\x08\x00",
        b"[1, 2]",
    ],
)
def test_what_is_no_profile_is_an_error(content: bytes) -> None:
    with pytest.raises(hlofast.ParseError):
        hlofast.load_profile(content)


def test_damage_is_an_error_with_its_place() -> None:
    content = written("several")
    with pytest.raises(hlofast.ParseError, match=r"at byte \d+ of the protobuf") as raised:
        hlofast.load_profile(content[:-7])
    assert raised.value.kind == "invalid-proto"
    trace = gzip.decompress((FOLDER / "several.trace.json.gz").read_bytes())
    with pytest.raises(hlofast.ParseError, match=r"at byte \d+ of the trace"):
        hlofast.load_profile(trace[: len(trace) // 2])
    compressed = lzma.compress(content)
    with pytest.raises(hlofast.ParseError) as raised:
        hlofast.load_profile(compressed[:-20])
    assert raised.value.kind == "invalid-compression"


def test_numbers_in_traces_are_exact() -> None:
    meta = '{"ph":"M","pid":3,"name":"process_name","args":{"name":"/device:TPU:0"}}'
    thread = '{"ph":"M","pid":3,"tid":1,"name":"thread_name","args":{"name":"XLA Ops"}}'
    event = '{"ph":"X","pid":3,"tid":1,"ts":0.000123,"dur":1234567.000001,"name":"a\\u002e1"}'
    # Names may follow their events.
    text = f'{{"traceEvents":[{event},{meta},{thread},{{}}]}}'.encode()
    (row,) = hlofast.load_profile(text).events
    assert (row["device"], row["track"], row["instruction"]) == ("/device:TPU:0", "XLA Ops", "a.1")
    assert row["start"] == 123e-12
    assert row["duration"] == 1.234567000001


def test_summary_says_what_a_profile_holds() -> None:
    summary = hlofast.load_profile(FOLDER / "sharded.xplane.pb.xz").summary()
    facts = {fact.name: fact.value for fact in summary.facts}
    assert (facts["devices"], facts["steps"], facts["launches"]) == (8, 3, 24)
    assert facts["modules"] == len(summary.tables["profile_modules"]) >= 1
    assert facts["all_events"] == sum(summary.tables["lines"].values("events"))
    text = str(summary)
    assert "jit_train_step" in text
    assert "/host:CPU" in text


@pytest.mark.parametrize("verb", [[], ["summary"]])
def test_the_command_line_says_what_a_profile_holds(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(FOLDER / "sharded.xplane.pb.xz")
    assert main([*verb, path]) == 0
    shown = capsys.readouterr().out
    assert "jit_train_step" in shown
    assert ("median step" if "summary" in verb else "step time") in shown
    # A folder of recordings, and the same as JSON.
    run = tmp_path / "plugins" / "profile" / "2026_11_23_06_12_59"
    run.mkdir(parents=True)
    (run / "vm.xplane.pb").write_bytes(space([tpu(0)], errors=["\x1b[31mlost\x1b[0m"]))
    assert main([*verb, str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "2026_11_23_06_12_59" in shown
    assert "TPU v5 lite" in shown
    assert "lost" in shown
    assert "\x1b[31m" not in shown
    assert main([*verb, "--json", str(tmp_path)]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["facts"]["devices"]["value"] == 1
    assert result["tables"]["messages"][0]["kind"] == "error"
    # A damaged profile is an error with its place, and other files are still shown.
    (run / "cut.xplane.pb").write_bytes(space([tpu(0)])[:-3])
    assert main([*verb, str(run / "cut.xplane.pb"), path]) == 3
    said = capsys.readouterr()
    assert "at byte" in said.err
    assert "jit_train_step" in said.out


def test_verbs_read_the_modules_of_a_profile(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(FOLDER / "several.xplane.pb.xz")
    for name in ("jit_attend", "jit_attend(8)"):
        assert main(["cost", "--module", name, path]) == 0
        assert capsys.readouterr().out.startswith("jit_attend\n")
    assert main(["--module", "jit_sort", path]) == 0
    assert capsys.readouterr().out.startswith("jit_sort\n")
    assert main(["time", path, "--device", "tpu-v5e"]) == 0
    # The program with the most device time comes first.
    assert capsys.readouterr().out.startswith("jit_sort\n")
    assert main(["cost", str(FOLDER / "several.trace.json.gz")]) == 3
    assert "xplane.pb next to it" in capsys.readouterr().err


@pytest.mark.oracle
def test_profile_data_reads_the_same() -> None:
    pytest.importorskip("jax")
    script = CHECKOUT / "tests" / "oracle" / "check_profiles.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 differences") == 3
