"""Two profiles compared, and traces with measured runs beside modelled ones."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import A100_STEP, A100_TRACE, SEVERAL, SHARDED
from hlofast import _text
from shown import document, figures
from xplane_writer import Event, Plane, space

STEP = """HloModule step, is_scheduled=true
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}
ENTRY main {
  q = f32[64,64] parameter(0)
  one = f32[64,64] exponential(q), metadata={op_name="jit(step)/jvp(attention)/exp" source_file="m.py" source_line=3}
  two = f32[64,64] negate(one), metadata={op_name="jit(step)/transpose(jvp(mlp))/neg" source_file="m.py" source_line=5}
  ROOT sum = f32[64,64] all-reduce(two), replica_groups={{0,1}}, to_apply=add
}
"""


def recorded(*times: tuple[str, int]) -> bytes:
    """A profile of two runs of a program, whose instructions take these numbers of ns."""
    plane = Plane("/device:TPU:0")
    whole = 1000 * sum(length for _, length in times)
    plane.line("XLA Modules", [Event("step(1)", at * 2 * whole, whole) for at in range(2)])
    ops = []
    for run in range(2):
        start = run * 2 * whole
        for name, length in times:
            ops.append(Event(f"%{name} = f32[] op()", start, 1000 * length, {}, {}, name))
            start += 1000 * length
    plane.line("XLA Ops", ops)
    return space([plane])


def test_two_profiles_of_two_programs_are_compared(tmp_path: Path, run: Any) -> None:
    # In the second program an instruction has another name, and another one is new.
    after = STEP.replace("one", "uno").replace(
        "ROOT sum = f32[64,64] all-reduce(two)",
        "more = f32[64,64] cosine(two)\n  ROOT sum = f32[64,64] all-reduce(more)",
    )
    for name, text, times in (
        ("a", STEP, (("one", 3000), ("two", 4000), ("sum", 2000))),
        ("b", after, (("uno", 6000), ("two", 2000), ("more", 500), ("sum", 2000))),
    ):
        (tmp_path / f"{name}.txt").write_text(text)
        (tmp_path / f"{name}.xplane.pb").write_bytes(recorded(*times))
    first = hlofast.load(tmp_path / "a.txt", profile=tmp_path / "a.xplane.pb")
    second = hlofast.load(tmp_path / "b.txt", profile=tmp_path / "b.xplane.pb")
    comparison = first.diff(second)
    assert comparison.measured is not None
    rows = {row["name"]: row for row in comparison.measured.instructions()}
    assert {
        name: (row["name_before"], row["before_seconds"], row["after_seconds"])
        for name, row in rows.items()
    } == {
        "uno": ("one", 3e-6, 6e-6),
        "two": (None, 4e-6, 2e-6),
        "more": (None, None, pytest.approx(0.5e-6)),
        "sum": (None, 2e-6, 2e-6),
    }
    assert [row["name"] for row in comparison.tables["measured_instructions"]] == [
        "uno", "two", "more",
    ]  # fmt: skip
    parts = {(row["part"], row["axes"]): row["change_seconds"]
             for row in comparison.tables["measured_parts"]}  # fmt: skip
    assert parts["step", None] == pytest.approx(1.5e-6)
    assert parts["compute", None] == pytest.approx(1.5e-6)
    phases = {row["phase"]: row["change_seconds"] for row in comparison.tables["measured_by_phase"]}
    assert phases["forward"] == pytest.approx(3e-6)
    # The instructions without a name, "more" and "sum", belong to the backward pass.
    assert phases["backward"] == pytest.approx(-1.5e-6)
    options = [tmp_path / "a.txt", tmp_path / "b.txt", "--profile", tmp_path / "a.xplane.pb",
               "--profile-after", tmp_path / "b.xplane.pb"]  # fmt: skip
    code, out, _ = run("diff", *options)
    assert code == 1
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "measured step before 9 us" in lines
    assert "change of the step +16.7 %" in lines
    assert "uno one 3 us 6 us +3 us +100.0 % forward m.py:3" in lines
    assert "two - 4 us 2 us -2 us -50.0 % backward m.py:5" in lines
    (result, _) = document(run, "diff", *options, code=1)
    assert figures(result)["measured_change"] == pytest.approx(1.5 / 9)


def test_measured_times_do_not_make_programs_different(tmp_path: Path, run: Any) -> None:
    (tmp_path / "a.txt").write_text(STEP)
    for name, length in (("a", 3000), ("b", 3500)):
        content = recorded(("one", length), ("two", 4000), ("sum", 2000))
        (tmp_path / f"{name}.xplane.pb").write_bytes(content)
    options = ["--profile", tmp_path / "a.xplane.pb", "--profile-after", tmp_path / "b.xplane.pb"]
    code, out, _ = run("diff", tmp_path / "a.txt", tmp_path / "a.txt", *options)
    assert code == 0
    assert "+500 ns" in out
    code, out, _ = run("diff", tmp_path / "a.txt", tmp_path / "a.txt", *options[:2])
    assert code == 0
    assert "no profile of the second module (--profile-after)" in out


def test_profiles_are_compared_by_their_own_modules(
    sharded: hlofast.Module, run: Any, tmp_path: Path
) -> None:
    step = _text.seconds(sharded.profile().step_seconds)
    code, out, _ = run("diff", SHARDED, SHARDED)
    assert code == 0
    assert f"measured step before  {step}\n" in out
    code, out, _ = run("diff", SEVERAL, SEVERAL, "--module", "jit_attend")
    assert code == 0
    assert out.startswith("jit_attend\n")
    # Folders of recordings are profiles too.
    for name in ("monday", "tuesday"):
        folder = tmp_path / name / "plugins" / "profile" / "2026_11_23_06_12_59"
        folder.mkdir(parents=True)
        (folder / "vm.xplane.pb").write_bytes(lzma.decompress(SHARDED.read_bytes()))
    code, out, _ = run("diff", tmp_path / "monday", tmp_path / "tuesday")
    assert code == 0
    assert f"measured step after   {step}\n" in out
    for pair in ((tmp_path / "monday", SHARDED), (SHARDED, tmp_path / "monday")):
        code, out, _ = run("diff", *pair)
        assert (code, f"measured step after   {step}\n" in out) == (0, True)
    code, _, error = run("diff", SHARDED, SHARDED.with_name("sharded.trace.json.gz"))
    assert code == 3
    assert "a module is needed of one of the programs in the profile: jit_train_step" in error


def chrome(path: Path, pid: int) -> tuple[dict[int, str], list[dict[str, Any]]]:
    """Names of the threads and complete events of one process of a trace."""
    events = [own for own in json.loads(path.read_text())["traceEvents"] if own["pid"] == pid]
    names = {own["tid"]: own["args"]["name"] for own in events if own["name"] == "thread_name"}
    return names, [own for own in events if own["ph"] == "X"]


def test_traces_have_the_measured_run_beside_the_modelled(
    a100: hlofast.Module, run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    trace = a100.trace(path)
    names, events = chrome(path, 2)
    assert set(names.values()) == {"thunks", "NCCL"}
    measured = a100.profile()
    by_name: dict[str, float] = {}
    for event in events:
        by_name[event["name"]] = by_name.get(event["name"], 0.0) + event["dur"] * 1e-6
    rows = {a100[row["instruction"]].name: row["measured_seconds"] for row in measured.table()}
    # One device: the step is the one run that the trace shows.
    # Events of an asynchronous collective have the name of the instruction inside.
    assert sum(by_name.values()) == pytest.approx(sum(rows.values()), rel=1e-6)
    assert by_name["custom-call.219.0"] == pytest.approx(rows["custom-call.219.0"])
    end = max(event["ts"] + event["dur"] for event in events) * 1e-6
    assert end == pytest.approx(measured.step_seconds, rel=1e-6)
    assert min(event["ts"] for event in events) == 0
    (gemm,) = [event for event in events if event["name"] == "custom-call.219.0"]
    assert gemm["cat"] == "custom-call"
    assert gemm["args"]["phase"] == "forward"
    assert gemm["args"]["source"] == "/opt/paxml/paxml/trainer_lib.py:799"
    # What is modelled does not change.
    plain = tmp_path / "plain.json"
    a100.with_context(profile=None).trace(plain)
    assert chrome(path, 1)[0] == chrome(plain, 1)[0]
    assert len(chrome(path, 1)[1]) == len(chrome(plain, 1)[1]) > 2000
    assert chrome(plain, 2) == ({}, [])
    tracks = {row["track"]: row["slices"] for row in trace.tables["measured_tracks"]}
    assert sum(tracks.values()) == len(events)
    (result,) = document(
        run,
        "trace",
        A100_STEP,
        "--device",
        "a100",
        "--profile",
        A100_TRACE,
        "-o",
        tmp_path / "b.json.gz",
    )
    assert {row["track"]: row["slices"] for row in result["tables"]["measured_tracks"]} == tracks


def test_both_formats_hold_the_same_measured_events(
    sharded: hlofast.Module, tmp_path: Path
) -> None:
    messages = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = sharded.trace(device="tpu-v5e")
    for name in ("a.json", "a.pftrace"):
        trace.write(tmp_path / name)
    names, events = chrome(tmp_path / "a.json", 2)
    assert len(names) == 8
    expected = sorted(
        (names[own["tid"]], round(own["ts"] * 1000), round((own["ts"] + own["dur"]) * 1000),
         own["name"], own["args"].get("opcode")) for own in events
    )  # fmt: skip
    content = (tmp_path / "a.pftrace").read_bytes()
    message = messages.Trace.FromString(content)
    assert message.ByteSize() == len(content)
    tracks: dict[int, str] = {}
    running: dict[int, list[tuple[int, str, str]]] = {}
    found = []
    last = 0
    for packet in message.packet:
        if packet.trusted_packet_sequence_id != 2:
            continue
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            if descriptor.HasField("process"):
                assert descriptor.process.process_name == "measured"
            else:
                tracks[descriptor.uuid] = descriptor.name
            continue
        event = packet.track_event
        assert packet.timestamp >= last
        last = packet.timestamp
        if event.type == messages.TrackEvent.TYPE_SLICE_BEGIN:
            arguments = {own.name: own.string_value for own in event.debug_annotations}
            begun = (packet.timestamp, event.name, arguments.get("opcode"))
            running.setdefault(event.track_uuid, []).append(begun)
        else:
            begin, name, opcode = running[event.track_uuid].pop()
            found.append((tracks[event.track_uuid], begin, packet.timestamp, name, opcode))
    assert not any(running.values())
    assert sorted(found) == expected
    assert len(found) == 8 * 76


def test_runs_without_marks_are_found_in_the_profile(tmp_path: Path) -> None:
    # Without launches, the runs are those that repeat; the second of three is the median.
    plane = Plane("/device:TPU:0")
    ops = []
    start = 5_000_000
    for length in (3000, 2000, 1000):
        for name, own in (("one", 1000), ("two", length), ("sum", 500)):
            program = {"hlo_module": "step", "program_id": 1}
            ops.append(Event(f"%{name} = f32[] op()", start, 1000 * own, {}, program, name))
            start += 1000 * own
        start += 700_000
    plane.line("XLA Ops", ops)
    module = hlofast.loads(STEP, profile=hlofast.load_profile(space([plane])))
    assert len(module.profile().runs) == 3
    module.trace(tmp_path / "t.json", device="tpu-v5e")
    _, events = chrome(tmp_path / "t.json", 2)
    found = [(own["name"], own["ts"], own["dur"]) for own in events]
    assert found == [("one", 0, 1), ("two", 1, 2), ("sum", 3, 0.5)]


def test_overlapping_events_take_further_tracks(tmp_path: Path) -> None:
    plane = Plane("/device:TPU:0")
    plane.line("XLA Modules", [Event("step(1)", 0, 9_000_000)])
    times = {"one": (0, 4), "two": (2, 4), "sum": (3, 1)}
    ops = [
        Event(f"%{name} = f32[] op()", begin * 1_000_000, length * 1_000_000, {}, {}, name)
        for name, (begin, length) in times.items()
    ]
    plane.line("XLA Ops", ops)
    module = hlofast.loads(STEP, profile=hlofast.load_profile(space([plane])))
    module.trace(tmp_path / "t.json", device="tpu-v5e")
    names, events = chrome(tmp_path / "t.json", 2)
    assert {own["name"]: names[own["tid"]] for own in events} == {
        "one": "XLA Ops", "two": "XLA Ops (2)", "sum": "XLA Ops",
    }  # fmt: skip
