"""Traces: both formats hold the same events, tracks add up to the time model's figures."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlofast
from hlofast.devices import UnknownDeviceError
from shown import check_one_source, codes, figures
from test_cli import document, hlofast_command
from test_time import LOOP, OVERLAPPED, toy
from trace_files import TraceFile, check_nesting, read, read_json, read_pftrace

DUMPS = Path(__file__).parent / "fixtures" / "dumps"
CASES = sorted(DUMPS.glob("*_train_step*.txt.gz")) + [
    DUMPS / "cpu_scanned.after.txt.gz",
    DUMPS / "tpu_kernels_in_loop.after.txt.gz",
    DUMPS / "tpu_offloaded.after.txt.gz",
    DUMPS / "cpu_control_flow.after.txt.gz",
    DUMPS / "cpu_collectives.after.txt.gz",
]

NESTED = """HloModule nested, is_scheduled=true

%inner (t: (s32[], f32[1000])) -> (s32[], f32[1000]) {
  %t = (s32[], f32[1000]{0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[1000]{0} get-tuple-element(%t), index=1
  %sine = f32[1000]{0} sine(%x)
  ROOT %r = (s32[], f32[1000]{0}) tuple(%i, %sine)
}

%more (t.1: (s32[], f32[1000])) -> pred[] {
  %t.1 = (s32[], f32[1000]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%t.1), index=0
  %n = s32[] constant(5)
  ROOT %less = pred[] compare(%i.1, %n), direction=LT
}

%outer (t.2: (s32[], f32[1000])) -> (s32[], f32[1000]) {
  %t.2 = (s32[], f32[1000]{0}) parameter(0)
  ROOT %loop = (s32[], f32[1000]{0}) while(%t.2), condition=%more, body=%inner, backend_config={"known_trip_count":{"n":"INNER"}}
}

%more.1 (t.3: (s32[], f32[1000])) -> pred[] {
  %t.3 = (s32[], f32[1000]{0}) parameter(0)
  %i.3 = s32[] get-tuple-element(%t.3), index=0
  %n.3 = s32[] constant(7)
  ROOT %less.3 = pred[] compare(%i.3, %n.3), direction=LT
}

ENTRY %e (p: (s32[], f32[1000])) -> (s32[], f32[1000]) {
  %p = (s32[], f32[1000]{0}) parameter(0)
  ROOT %w = (s32[], f32[1000]{0}) while(%p), condition=%more.1, body=%outer, backend_config={"known_trip_count":{"n":"OUTER"}}
}
"""

CROSSING = """HloModule crossing, is_scheduled=true, num_partitions=4

%body (t: (pred[], f32[1000])) -> (pred[], f32[1000]) {
  %t = (pred[], f32[1000]{0}) parameter(0)
  %i = pred[] get-tuple-element(%t), index=0
  %x = f32[1000]{0} get-tuple-element(%t), index=1
  %g = f32[4000]{0} all-gather(%x), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
  %n = f32[1000]{0} negate(%x)
  ROOT %r = (pred[], f32[1000]{0}) tuple(%i, %n)
}

%condition (t: (pred[], f32[1000])) -> pred[] {
  %t = (pred[], f32[1000]{0}) parameter(0)
  ROOT %c = pred[] get-tuple-element(%t), index=0
}

ENTRY %e (p: (pred[], f32[1000]), q: f32[1000]) -> (f32[4000], (pred[], f32[1000])) {
  %p = (pred[], f32[1000]{0}) parameter(0)
  %q = f32[1000]{0} parameter(1)
  %s = (f32[1000]{0}, f32[4000]{0}) all-gather-start(%q), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true
  %w = (pred[], f32[1000]{0}) while(%p), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"10"}}
  %d = f32[4000]{0} all-gather-done(%s)
  ROOT %out = (f32[4000]{0}, (pred[], f32[1000]{0})) tuple(%d, %w)
}
"""


def nested(outer: int, inner: int) -> hlofast.Module:
    return hlofast.loads(NESTED.replace("OUTER", str(outer)).replace("INNER", str(inner)))


def both(trace: hlofast.Trace, folder: Path) -> TraceFile:
    """What a trace's files hold, which is the same in both formats."""
    trace.write(folder / "t.json")
    trace.write(folder / "t.pftrace")
    chrome, perfetto = read(folder / "t.json"), read(folder / "t.pftrace")
    assert chrome == perfetto
    assert [row["track"] for row in trace.tracks] == chrome.tracks
    return chrome


def adds_up(trace: hlofast.Trace, written: TraceFile) -> None:
    """Tracks add up to the figures of the time model."""
    time = trace.time
    left_out = {row["track"]: row["left_out_seconds"] for row in trace.tracks}

    def shown(name: str) -> float:
        several = [name, *(f"{name} ({number})" for number in range(2, 65))]
        tracks = [track for track in several if track in written.tracks]
        for track in tracks:
            # Each end of a slice is rounded to a nanosecond.
            slices = written.on(track)
            rounded = sum(end - begin for _, begin, end, *_ in slices) if name != "program" else 0
            exact = sum(arguments["seconds"] for *_, arguments in slices) if rounded else 0
            assert rounded * 1e-9 == pytest.approx(exact, rel=1e-12, abs=1e-9 * len(slices))
        return sum(written.seconds(track) + left_out[track] for track in tracks)

    assert shown("program") == pytest.approx(time.step_seconds)
    assert shown("compute") == pytest.approx(time.compute_seconds)
    assert shown("memory") == pytest.approx(time.memory_seconds)
    assert shown("other") == pytest.approx(time.other_seconds)
    for axes, seconds in time.exposed.items():
        assert shown(f"exposed, {axes}") == pytest.approx(seconds)
    links: dict[str, float] = {}
    for row in time.collectives:
        seconds = row["seconds"] * row["multiplicity"]
        links[row["axes"]] = links.get(row["axes"], 0.0) + seconds
    for axes, seconds in links.items():
        assert shown(f"links, {axes}") == pytest.approx(seconds)


@pytest.mark.filterwarnings("ignore:some arrays have no layout")
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name.removesuffix(".txt.gz"))
def test_tracks_of_dumps_add_up(path: Path, tmp_path: Path) -> None:
    module = hlofast.load(path)
    device = "tpu-v5e" if "tpu" in path.name else "h100"
    trace = module.trace(device=device)
    written = both(trace, tmp_path)
    assert trace.time.step_seconds > 0
    adds_up(trace, written)
    assert (
        trace.peak == max(alive for _, alive in written.samples) == module.memory().timeline.max()
    )


def test_slices_say_what_is_known_of_instructions(train_step: Path, tmp_path: Path) -> None:
    module = hlofast.load(train_step)
    trace = module.trace(device="tpu-v5e")
    written = both(trace, tmp_path)
    cost = module.cost().columns
    seen = set()
    for track, _, _, name, category, arguments in written.slices:
        if category in ("module", "iteration", "aggregate"):
            continue
        instruction = module.computations[arguments["computation"]][name]
        seen.add(track.partition(",")[0])
        assert arguments["opcode"] == category == instruction.opcode
        metadata = instruction.metadata
        assert arguments.get("op_name") == (metadata.op_name if metadata else None)
        place = instruction.source
        assert arguments.get("source") == (place and f"{place.file}:{place.line}")
        if track in ("compute", "memory"):
            row = instruction.row
            assert arguments["bytes"] == cost["bytes_read"][row] + cost["bytes_written"][row]
            assert arguments["flops"] >= cost["flops"][row]
        if track.startswith("links, "):
            assert arguments["axes"] in track
            assert arguments["wire_bytes"] > 0
    assert {"program", "memory", "links", "exposed", "copies"} <= seen
    (head,) = [arguments for *_, category, arguments in written.slices if category == "module"]
    assert head["device"] == "tpu-v5e"
    assert head["mesh"] == trace.time.mesh
    assert "nothing was measured" in head["provenance"]


def test_flops_of_all_slices_are_those_of_the_cost(tmp_path: Path) -> None:
    module = hlofast.load(DUMPS / "cpu_train_step.after.txt.gz")
    written = both(module.trace(device="h100"), tmp_path)
    known = [arguments.get("flops", 0) for *_, arguments in written.slices]
    assert sum(known) == module.cost().flops


def test_loops_are_played_as_often_as_they_run(tmp_path: Path) -> None:
    trace = nested(3, 4).trace(device=toy())
    written = both(trace, tmp_path)
    adds_up(trace, written)
    assert trace.loops.to_pylist() == [
        {"instruction": trace.time.module["loop"].row, "name": "loop", "trip_count": 4, "shown": 4},
        {"instruction": trace.time.module["w"].row, "name": "w", "trip_count": 3, "shown": 3},
    ]
    names = [name for _, _, _, name, _, _ in written.on("memory") + written.on("compute")]
    assert names.count("sine") == 12
    assert names.count("less") == 3 * 5
    assert names.count("less.3") == 4
    (loop,) = [arguments for *_, name, _, arguments in written.on("program") if name == "w"]
    assert loop["trip_count"] == loop["iterations_shown"] == 3


@pytest.mark.parametrize(
    ("outer", "inner"), [(1, 1), (2, 1000), (1000, 1000), (10**5, 10**5), (0, 5)]
)
def test_what_does_not_fit_is_one_slice_per_track(outer: int, inner: int, tmp_path: Path) -> None:
    trace = nested(outer, inner).trace(device=toy())
    written = both(trace, tmp_path)
    adds_up(trace, written)
    assert len(written.slices) < 110_000
    rest = [row for row in trace.loops if row["shown"] < row["trip_count"]]
    assert bool(rest) == (outer * inner > 10**4)
    for row in rest:
        more = row["trip_count"] - row["shown"]
        assert any(
            name == f"{row['name']}, {more} more iterations" and arguments["executions"] == more
            for _, _, _, name, _, arguments in written.on("program")
        )


def test_iterations_may_be_chosen(tmp_path: Path) -> None:
    module = nested(20, 10)
    trace = module.trace(device=toy(), iterations=2)
    written = both(trace, tmp_path)
    adds_up(trace, written)
    assert [row["shown"] for row in trace.loops] == [2, 2]
    # Of each loop two iterations, and the rest as one; the inner one runs twice.
    sines = [1 for _, _, _, name, _, _ in written.slices if name == "sine"]
    assert len(sines) == 4
    assert len(both(module.trace(device=toy()), tmp_path).slices) > len(written.slices)


def test_a_loop_of_unknown_trip_count_counts_once(tmp_path: Path) -> None:
    text = LOOP.replace(', backend_config={"known_trip_count":{"n":"10"}}', "")
    trace = hlofast.loads(text).trace(device=toy())
    written = both(trace, tmp_path)
    adds_up(trace, written)
    (loop,) = [arguments for *_, name, _, arguments in written.on("program") if name == "w"]
    assert loop["trip_count"] == "unknown, counted once"
    assert trace.loops.row(0)["trip_count"] is None


def test_waiting_and_links(tmp_path: Path) -> None:
    trace = hlofast.loads(OVERLAPPED).trace(device=toy(), mesh="x=4")
    written = both(trace, tmp_path)
    adds_up(trace, written)
    ((_, begin, end, name, category, arguments),) = written.on("links, x")
    assert (begin, end, name, category) == (0, 12_000_000, "s", "all-gather-start")
    assert arguments["wire_bytes"] == 12000
    assert arguments["bytes"] == 16000
    ((_, begin, end, name, _, _),) = written.on("exposed, x")
    assert (begin, end, name) == (8_000, 12_000_000, "d")


def test_what_shares_links_is_on_tracks_of_its_own(tmp_path: Path) -> None:
    trace = hlofast.loads(CROSSING).trace(device=toy(), mesh="x=4")
    written = both(trace, tmp_path)
    adds_up(trace, written)
    assert {"links, x", "links, x (2)"} <= set(written.tracks)
    few = hlofast.loads(CROSSING).trace(device=toy(), mesh="x=4", iterations=1)
    adds_up(few, both(few, tmp_path))


def test_short_slices_may_be_left_out(tmp_path: Path) -> None:
    module = hlofast.load(DUMPS / "tpu_train_step_named.after.txt.gz")
    whole = module.trace(device="tpu-v5e")
    trace = module.trace(device="tpu-v5e", min_duration=1e-6)
    written = both(trace, tmp_path)
    adds_up(trace, written)
    assert all(
        arguments["seconds"] >= 1e-6 or category in ("module", "aggregate")
        for *_, category, arguments in written.slices
    )
    left_out = sum(row["left_out"] for row in trace.tracks)
    assert left_out > 0
    slices = [sum(row["slices"] for row in own.tracks) for own in (whole, trace)]
    assert slices[0] == slices[1] + left_out


def test_calls_of_calls_do_not_grow_without_bound(tmp_path: Path) -> None:
    calls = "".join(
        f"%c{i} (p{i}: f32[8]) -> f32[8] {{\n  %p{i} = f32[8]{{0}} parameter(0)\n"
        f"  %a{i} = f32[8]{{0}} call(%p{i}), to_apply=%c{i - 1}\n"
        f"  ROOT %b{i} = f32[8]{{0}} call(%a{i}), to_apply=%c{i - 1}\n}}\n\n"
        for i in range(1, 60)
    )
    text = (
        "HloModule deep, is_scheduled=true\n\n%c0 (p0: f32[8]) -> f32[8] {\n"
        "  %p0 = f32[8]{0} parameter(0)\n  ROOT %n0 = f32[8]{0} negate(%p0)\n}\n\n"
        f"{calls}ENTRY %e (p: f32[8]) -> f32[8] {{\n  %p = f32[8]{{0}} parameter(0)\n"
        "  ROOT %r = f32[8]{0} call(%p), to_apply=%c20\n}\n"
    )
    trace = hlofast.loads(text).trace(device=toy())
    written = both(trace, tmp_path)
    adds_up(trace, written)
    assert trace.not_played > 0
    assert any(name.endswith(", as a whole") for _, _, _, name, _, _ in written.slices)
    assert len(written.slices) < 200_000
    # 2^59 times 64 ns are more than a trace may last.
    with pytest.raises(ValueError, match="longer than a trace can hold"):
        hlofast.loads(text.replace("%p), to_apply=%c20\n}\n", "%p), to_apply=%c59\n}\n")).trace(
            device=toy()
        )


def test_unknown_figures_leave_an_empty_timeline_that_says_so(tmp_path: Path) -> None:
    module = hlofast.loads(LOOP)
    trace = module.trace(device=toy(hbm_bandwidth=None))
    written = both(trace, tmp_path)
    (head,) = [arguments for *_, category, arguments in written.slices if category == "module"]
    assert head["unknown_figures"] == ", ".join(trace.time.unknown) != ""
    assert written.on("memory") == []
    assert max(alive for _, alive in written.samples) == module.memory().live_peak


def test_bytes_alive_that_cannot_be_counted_are_called_unknown(tmp_path: Path) -> None:
    parameters = "".join(f"  p{i} = f32[1000000000,1000000000] parameter({i})\n" for i in range(4))
    text = f"HloModule m\n\nENTRY e {{\n{parameters}  ROOT t = tuple(p0, p1, p2, p3)\n}}\n"
    trace = hlofast.loads(text).trace(device=toy())
    assert trace.peak is None
    assert trace.live_bytes_unknown == "the sizes add up to more than 64 bits hold"
    written = both(trace, tmp_path)
    (head,) = [arguments for *_, category, arguments in written.slices if category == "module"]
    assert head["live_bytes"] == f"unknown: {trace.live_bytes_unknown}"
    assert written.samples == []


HOSTILE = [
    'x"y\\z',
    "</script><script>alert(1)</script>",
    "line\x01\x7f",
    "\u2028\U0001f600",
    "{}[],:",
    "a" * 5000,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_data(name: str, tmp_path: Path) -> None:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    text = (
        "HloModule m\n\nENTRY e {\n  p = f32[1000]{0} parameter(0)\n  ROOT n = f32[1000]{0} "
        f'negate(p), metadata={{op_name="{escaped}" source_file="{escaped}" source_line=3}}\n}}\n'
    )
    module = hlofast.loads(text)
    written = both(module.trace(device=toy()), tmp_path)
    (arguments,) = [arguments for *_, told, _, arguments in written.slices if told == "n"]
    assert arguments["op_name"] == name
    assert arguments["source"] == f"{module['n'].source.file}:3"


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    text = (
        b"HloModule m\n\nENTRY e {\n  p = f32[1000]{0} parameter(0)\n  ROOT n = f32[1000]{0} "
        b'negate(p), metadata={op_name="\xff\xfe\xc3" source_file="\x80"}\n}\n'
    )
    written = both(hlofast.loads(text).trace(device=toy()), tmp_path)
    (arguments,) = [arguments for *_, name, _, arguments in written.slices if name == "n"]
    assert "\ufffd" in arguments["op_name"]


@settings(max_examples=40)
@given(st.binary(max_size=40), st.integers(0, 1 << 62), st.integers(1, 4))
def test_whatever_the_text_both_files_are_valid(name: bytes, trips: int, iterations: int) -> None:
    name = name.replace(b'"', b"").replace(b"\\", b"")
    text = LOOP.encode().replace(b'"10"', b'"%d"' % trips)
    text = text.replace(b"negate(%x)", b'negate(%x), metadata={op_name="' + name + b'"}')
    module = hlofast.loads(text)
    if not module.time(toy()).step_seconds < 4.6e9:
        with pytest.raises(ValueError, match="longer than a trace can hold"):
            module.trace(device=toy(), iterations=iterations)
        return
    trace = module.trace(device=toy(), iterations=iterations)
    parts: dict[str, list[bytes]] = {"json": [], "pftrace": []}
    for form, written in parts.items():
        trace._data.write(form, [], written.append)
    chrome = read_json(b"".join(parts["json"]))
    assert chrome == read_pftrace(b"".join(parts["pftrace"]))
    for track in chrome.tracks:
        check_nesting([(begin, end) for _, begin, end, *_ in chrome.on(track)])
    adds_up(trace, chrome)


class TestFiles:
    def test_names_say_the_format(self, tmp_path: Path) -> None:
        module = hlofast.loads(OVERLAPPED)
        plain = tmp_path / "a.json"
        packed = tmp_path / "a.json.gz"
        trace = module.trace(plain, device=toy())
        trace.write(packed)
        assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
        trace.write(tmp_path / "b.json.gz")
        assert (tmp_path / "b.json.gz").read_bytes() == packed.read_bytes()
        trace.write(tmp_path / "other", form="pftrace")
        trace.write(tmp_path / "c.pftrace")
        assert (tmp_path / "other").read_bytes() == (tmp_path / "c.pftrace").read_bytes()
        names = {"a.json", "a.json.gz", "b.json.gz", "c.pftrace", "other"}
        assert {path.name for path in tmp_path.iterdir()} == names

    @pytest.mark.parametrize("name", ["trace.txt", "trace", "trace.gz", "json"])
    def test_other_names_are_refused_before_anything_is_done(
        self, name: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ValueError, match=r"must end in \.json, \.pftrace"):
            hlofast.loads(OVERLAPPED).trace(tmp_path / name, device=toy())
        assert list(tmp_path.iterdir()) == []

    def test_a_failure_leaves_the_old_file(self, tmp_path: Path) -> None:
        trace = hlofast.loads(OVERLAPPED).trace(device=toy())
        path = tmp_path / "a.json"
        path.write_text("old")

        def fails(form: str, facts: object, write: object) -> None:
            raise KeyboardInterrupt

        class Data:
            write = staticmethod(fails)

        trace._data = Data()  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            trace.write(path)
        assert path.read_text() == "old"
        assert [path.name for path in tmp_path.iterdir()] == ["a.json"]

    def test_what_the_receiver_raises_comes_out(self) -> None:
        trace = hlofast.loads(OVERLAPPED).trace(device=toy())

        def full(_: bytes) -> None:
            raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space left"):
            trace._data.write("json", [], full)

    def test_permissions_are_those_of_other_files(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pftrace"
        hlofast.loads(OVERLAPPED).trace(path, device=toy())
        beside = tmp_path / "plain"
        beside.write_text("")
        assert path.stat().st_mode == beside.stat().st_mode

    def test_arguments_that_make_no_sense(self) -> None:
        module = hlofast.loads(OVERLAPPED)
        with pytest.raises(UnknownDeviceError):
            module.trace(device="tpu-v99")
        for wrong in ({"iterations": 0}, {"min_duration": -1.0}, {"min_duration": float("nan")}):
            with pytest.raises(ValueError):
                module.trace(device=toy(), **wrong)
        with pytest.raises(ValueError, match="json, pftrace"):
            module.trace(device=toy()).write("x.json", form="xml")


class TestCommand:
    def test_words(self, train_step: Path, tmp_path: Path) -> None:
        path = tmp_path / "step.pftrace"
        done = hlofast_command(
            "trace", "--device", "tpu-v5e", "--mesh", "data=2,model=4", train_step, "-o", path
        )
        assert done.returncode == 0, done.stderr
        shown = [line.split() for line in done.stdout.splitlines()]
        assert ["written", str(path)] in shown
        assert ["format", "pftrace"] in shown
        assert "links, data" in done.stdout
        assert "exposed, model" in done.stdout
        assert read(path).slices

    def test_json(self, train_step: Path, tmp_path: Path) -> None:
        path = tmp_path / "step.json.gz"
        options = ("--device", "v5e", "--iterations", "1", "--min-duration", "1us")
        printed = document("trace", *options, train_step, "-o", path)
        (module,) = printed["results"]
        values = figures(module)
        assert (values["format"], values["is_compressed"]) == ("json", True)
        assert values["written"] == str(path)
        assert (values["device"], values["not_played"]) == ("tpu-v5e", 0)
        memory = hlofast.load(train_step).memory()
        assert values["live_peak"] == memory.live_peak
        written = read(path)
        tracks = module["tables"]["tracks"]
        assert [row["track"] for row in tracks] == written.tracks
        seconds = {row["track"]: row["seconds"] for row in tracks}
        assert seconds["program"] == pytest.approx(values["step_seconds"])
        assert codes(module) >= {"left-out", "compiler-scale", "iterations"}
        assert all(row["shown"] == 1 < row["trip_count"] for row in module["tables"]["loops"])

    def test_one_source(self, train_step: Path, tmp_path: Path) -> None:
        path = tmp_path / "step.json"
        done = hlofast_command("trace", "--device", "tpu-v5e", train_step, "-o", path)
        check_one_source(hlofast.load(train_step).trace(path, device="tpu-v5e"), done.stdout)

    def test_hostile_names_in_notebooks(self) -> None:
        mesh = hlofast.Mesh([("<script>", 4)])
        html = hlofast.loads(OVERLAPPED).trace(device="h100", mesh=mesh)._repr_html_()
        assert "&lt;script&gt;" in html
        assert "<script" not in html
        assert " us</td>" in html

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ((), "known devices: tpu-v4, tpu-v5e"),
            (("--device", "tpu-v99"), "unknown device 'tpu-v99'; known devices: tpu-v4"),
            (("--device", "h100", "-o", "x.txt"), "must end in .json, .pftrace"),
            (("--device", "h100", "--min-duration", "soon"), "not a time such as 300ms"),
            (("--device", "h100", "--min-duration", "nans"), "not a time such as 300ms"),
            (("--device", "h100", "--iterations", "0"), "not a number of iterations"),
        ],
    )
    def test_what_makes_no_sense_is_exit_code_2(
        self, train_step: Path, tmp_path: Path, options: tuple[str, ...], message: str
    ) -> None:
        done = hlofast_command("trace", train_step, "-o", tmp_path / "x.json", *options)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert list(tmp_path.iterdir()) == []

    def test_several_modules_are_asked_about(self, tmp_path: Path) -> None:
        page = tmp_path / "page.txt"
        page.write_text(OVERLAPPED + "\n" + LOOP)
        arguments = ("trace", "--device", "h100", page, "-o", tmp_path / "x.json")
        done = hlofast_command(*arguments)
        assert done.returncode == 2
        assert "choose one with --module: overlapped, loop" in done.stderr
        assert hlofast_command(*arguments, "--module", "loop").returncode == 0

    def test_what_cannot_be_read_is_in_the_document(self, tmp_path: Path) -> None:
        path = tmp_path / "broken.txt"
        path.write_text("HloModule m\n\nENTRY e {\n  ROOT x = f32[2] add(y, z)\n}\n")
        printed = document("trace", "--device", "h100", path, "-o", tmp_path / "x.json")
        assert printed["results"] == []
        assert printed["errors"][0]["line"] == 4
        assert not (tmp_path / "x.json").exists()

    def test_what_cannot_be_written_is_said(self, train_step: Path, tmp_path: Path) -> None:
        path = tmp_path / "no" / "folder" / "x.json"
        done = hlofast_command("trace", "--device", "v5e", train_step, "-o", path)
        assert done.returncode == 3
        assert f"{path}: No such file or directory" in done.stderr
        assert "Traceback" not in done.stderr

    def test_nothing_is_printed_but_words(self, train_step: Path, tmp_path: Path) -> None:
        path = tmp_path / "step.json"
        arguments = ("trace", "--device", "v5e", train_step, "-o", path, "--json")
        assert json.loads(hlofast_command(*arguments).stdout)["schema"] == "hlofast.trace"
        assert [path.name for path in tmp_path.iterdir()] == ["step.json"]
