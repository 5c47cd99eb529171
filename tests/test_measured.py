"""Measured time: profiles joined with modules, against computations of another kind."""

import csv
import io
import itertools
import json
import lzma
import re
import shutil
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hlofast
from conftest import A100, A100_STEP, A100_TRACE, FIXTURES, SHARDED, seeds_folder
from hlofast.cli import main
from test_cli import hlofast_command


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(lzma.decompress(path.read_bytes()).decode())))


class Thunks:
    """The thunks of each run, read from the trace without hlofast."""

    def __init__(self, rows: list[dict[str, str]]) -> None:
        self.runs: list[tuple[int, int]] = []
        """Begin and length of each run, in ns."""
        numbers: dict[str, int] = {}
        for row in rows:
            if row["Name"].startswith("TSL:XlaModule:"):
                numbers[row["RangeId"]] = len(self.runs)
                self.runs.append((int(row["Projected Start"]), int(row["Projected Duration"])))
        nccl = {row["ParentId"] for row in rows if row["Name"].startswith("NCCL:")}
        self.events: list[list[tuple[str, int, int, bool]]] = [[] for _ in self.runs]
        """By run: instruction, begin, end, whether it communicates."""
        for row in rows:
            if found := re.search(r"hlo_op=([^,#]+)#$", row["Name"]):
                start = int(row["Projected Start"])
                end = start + int(row["Projected Duration"])
                event = found[1], start, end, row["RangeId"] in nccl
                self.events[numbers[row["ParentId"]]].append(event)

    def parts(self, run: int) -> tuple[int, int, int]:
        """Nanoseconds of computing, exposed communication and idleness in a run.

        Every nanosecond at which something begins or ends is a point; between two points the same
        events run.
        """
        start, length = self.runs[run]
        changes: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for _, begin, end, communicates in self.events[run]:
            changes[begin][communicates] += 1
            changes[end][communicates] -= 1
        points = sorted({start, start + length, *changes})
        compute = exposed = idle = computing = communicating = 0
        for point, following in itertools.pairwise(points):
            computing += changes[point][0] if point in changes else 0
            communicating += changes[point][1] if point in changes else 0
            span = following - point
            if computing:
                compute += span
            elif communicating:
                exposed += span
            else:
                idle += span
        return compute, exposed, idle


@pytest.fixture(scope="module")
def thunks() -> Thunks:
    return Thunks(rows_of(A100_TRACE))


@pytest.fixture(scope="module")
def measured() -> hlofast.Measured:
    return hlofast.load(A100_STEP, profile=A100_TRACE, mesh="data=4").profile(device="a100")


def test_every_thunk_of_the_a100_step_is_joined(measured: hlofast.Measured, thunks: Thunks) -> None:
    assert measured.joined_share == 1
    assert len(measured.tables["unjoined"]) == 0
    whole = sum(end - start for run in thunks.events for _, start, end, _ in run)
    assert measured._data.joined()[1] == pytest.approx(whole * 1e-9, rel=1e-12)


def test_parts_of_each_run_are_those_of_an_independent_sweep(
    measured: hlofast.Measured, thunks: Thunks
) -> None:
    runs = measured.runs.to_pylist()
    assert len(runs) == len(thunks.runs) == 5
    for number, run in enumerate(runs):
        compute, exposed, idle = thunks.parts(number)
        assert run["seconds"] == pytest.approx(thunks.runs[number][1] * 1e-9, rel=1e-9)
        assert run["compute_seconds"] == pytest.approx(compute * 1e-9, rel=1e-9)
        assert run["exposed_seconds"] == pytest.approx(exposed * 1e-9, rel=1e-9)
        assert run["idle_seconds"] == pytest.approx(idle * 1e-9, rel=1e-9)
    lengths = sorted(length for _, length in thunks.runs)
    assert measured.step_seconds == pytest.approx(lengths[2] * 1e-9)
    # As NVIDIA's own analysis of the same rank has it: 127.5 ms.
    assert measured.step_seconds == pytest.approx(0.1275, rel=1e-3)


def test_seconds_of_instructions_are_the_sums_of_their_events(
    measured: hlofast.Measured, thunks: Thunks
) -> None:
    runs = [Counter[str]() for _ in thunks.events]
    for counter, events in zip(runs, thunks.events, strict=True):
        for op, start, end, _ in events:
            counter[op] += end - start
    typical = next(at for at, run in enumerate(measured.runs) if run["is_median"])
    table = measured.table()
    module = measured.module
    assert len(table) == 2576
    scheduled = {  # Inside an asynchronous computation; the table has the start instead.
        inner.name: start.name
        for start in module
        if start.opcode == "async-start"
        for inner in start.called_computations[0]
    }
    sums = Counter[str]()
    for op, nanoseconds in runs[typical].items():
        sums[scheduled.get(op, op)] += nanoseconds
    for row in table:
        name = module[row["instruction"]].name
        assert row["measured_seconds"] == pytest.approx(sums[name] * 1e-9, rel=1e-9), name
        assert row["least_seconds"] <= row["median_seconds"] <= row["most_seconds"]
    for key in ("phase", "scope", "source", "opcode", "computation"):
        total = sum(measured.by(key).values("measured_seconds"))
        assert total == pytest.approx(sum(sums.values()) * 1e-9, rel=1e-9)


def test_parts_axes_and_shares_add_up(measured: hlofast.Measured) -> None:
    parts = measured.tables["parts"]
    assert sum(parts.values("measured_seconds")) == pytest.approx(measured.step_seconds)
    assert sum(parts.values("share")) == pytest.approx(1)
    axes = measured.tables["axes"]
    assert axes.values("axes") == ["data"]
    assert sum(axes.values("exposed_seconds")) == pytest.approx(measured.exposed_seconds)
    collectives = measured.collectives
    assert None not in collectives.values("calls")
    assert all(
        0 <= exposed <= seconds
        for seconds, exposed in zip(
            collectives.values("measured_seconds"),
            collectives.values("measured_exposed_seconds"),
            strict=True,
        )
    )


def test_utilization_is_that_of_the_measured_step(measured: hlofast.Measured) -> None:
    used = measured.module.cost().mfu(measured.step_seconds, 312e12)
    facts = {fact.name: fact for fact in measured.facts}
    assert facts["mfu"].value == used.mfu
    assert facts["mfu"].provenance in ("measured", "bound")
    assert facts["step_seconds"].provenance == "measured"
    rates = [row for row in measured.table() if row["roofline_share"] is not None]
    # A matmul of the step reaches most of the peak of 312 TFLOP/s, none more than all of it.
    fastest = max(row["flops_per_second"] or 0 for row in rates)
    assert 200e12 < fastest < 312e12


def test_tables_of_modelled_time_have_the_measured_time(measured: hlofast.Measured) -> None:
    module = measured.module
    assert module.context.step_seconds == measured.step_seconds
    assert module.context.sources["step_seconds"] == "profile"
    time = module.time("a100")
    facts = {fact.name: fact for fact in time.facts}
    assert facts["measured_step"].value == measured.step_seconds
    assert facts["measured_step"].provenance == "measured"
    seconds = np.asarray(measured._data.column("seconds"))
    assert np.nansum(time.table()["measured_seconds"]) == pytest.approx(np.nansum(seconds))
    for key in ("phase", "bound"):
        sums = time.by(key).values("measured_seconds")
        assert sum(sums) == pytest.approx(np.nansum(seconds))
    assert "measured_exposed_seconds" in time.collectives
    # A given step time wins over the profile's.
    given = module.with_context(step_seconds="300ms")
    assert given.context.step_seconds == 0.3
    without = hlofast.load(A100_STEP).time("a100")
    assert set(without.table().values("measured_seconds")) == {None}
    assert set(without.by("phase").values("measured_seconds")) == {None}


def test_a_profile_of_another_kind_of_device_is_not_set_beside_the_model() -> None:
    other = hlofast.load_profile(SHARDED).modules
    step = max(other, key=len)
    measured = step.with_context(profile=SHARDED).profile(device="tpu-v5e")
    assert measured.modelled is None
    assert {note.code for note in measured.notes} >= {"other-device"}
    assert "mfu" not in {fact.name for fact in measured.facts}


def test_cpu_devices_are_measured_one_by_one() -> None:
    profile = hlofast.load_profile(SHARDED)
    step = max(profile.modules, key=len)
    measured = step.profile(profile)
    devices = measured.tables["devices"]
    assert len(devices) == 8
    assert measured.joined_share > 0.99
    runs = measured.runs.to_pylist()
    for run in runs:
        parts = ("compute", "exposed", "copy", "other", "idle")
        whole = sum(run[f"{part}_seconds"] for part in parts)
        assert whole == pytest.approx(run["seconds"], rel=1e-9)
    assert sum(run["is_median"] for run in runs) == 8
    # Loop bodies run several times in a step.
    assert max(measured.table().values("calls")) > 1


def test_a_profile_without_the_module_says_what_ran() -> None:
    module = hlofast.loads("HloModule other\nENTRY e { ROOT q.unlike = f32[] parameter(0) }")
    with pytest.raises(ValueError, match=r"names an instruction of other.*pjit__wrapped_step_fn"):
        module.profile(A100_TRACE)
    with pytest.raises(hlofast.ContextError, match="no profile given"):
        module.profile()


def members(folder: Path) -> Iterator[tuple[Path, str]]:
    yield A100_STEP, f"dump/{A100_STEP.name}"
    yield A100_TRACE, "nvtx_gpu_proj_trace/trace.csv.xz"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "run.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for own, name in members(A100):
            packed.write(own, name)
    return path


def facts_of(*arguments: str | Path) -> dict[str, float]:
    done = hlofast_command("profile", "--json", *map(str, arguments))
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    return {name: fact["value"] for name, fact in result["facts"].items()}


def test_archives_folders_and_files_of_nsys_jax(archive: Path, tmp_path: Path) -> None:
    expected = facts_of(A100_TRACE, A100_STEP)
    assert expected["runs"] == 5
    assert facts_of(A100) == expected
    assert facts_of(archive) == expected
    assert facts_of(archive, A100_STEP) == expected
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    assert facts_of(folder) == expected


def test_the_whole_parquet_trace_gives_the_same_step(tmp_path: Path) -> None:
    seeds = seeds_folder()
    if seeds is None or not (seeds.parent / "measured").is_dir():
        pytest.skip("no measured data beside the seed documents")
    source = seeds.parent / "measured" / "a100-fsdp4" / "trace.parquet"
    shutil.copy(source, tmp_path / "trace.parquet")
    whole, part = facts_of(tmp_path / "trace.parquet", A100_STEP), facts_of(A100_TRACE, A100_STEP)
    assert whole == part


def test_damaged_archives_are_errors(archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    for length in (4, 100, len(whole) // 2, len(whole) - 30):
        broken = tmp_path / "broken.zip"
        broken.write_bytes(whole[:length])
        done = hlofast_command("profile", str(broken))
        assert done.returncode == 3
        assert "broken.zip" in done.stderr
        assert "Traceback" not in done.stderr
    text = lzma.decompress(A100_TRACE.read_bytes())
    for content in (b"", b"Name\n", text[:5000], text.replace(b"TSL:", b"XXX:"), b"\xff" * 999):
        path = tmp_path / "nvtx_gpu_proj_trace.csv"
        path.write_bytes(content)
        done = hlofast_command("profile", str(path), str(A100_STEP))
        assert done.returncode in (0, 3)
        assert "Traceback" not in done.stderr
    (tmp_path / "trace.parquet").write_bytes(b"PAR1 nothing PAR1")
    done = hlofast_command("profile", str(tmp_path / "trace.parquet"), str(A100_STEP))
    assert done.returncode == 3
    assert "trace.parquet" in done.stderr


RANGES = """Name,Projected Start (ns),Projected Duration (ns),RangeId,ParentId
"TSL:XlaModule:#hlo_module=jit_f,program_id=4#",{start},50,1,
"TSL:Thunk:#hlo_op=a.1,hlo_module=jit_f#",{thunk},{length},{number},1
"""


def test_times_of_nsys_since_1970_keep_their_differences(tmp_path: Path) -> None:
    """Nanoseconds since 1970 fit neither picoseconds of 64 bits nor the digits of a float."""
    path = tmp_path / "nvtx_gpu_proj_trace.csv"
    start = 1_700_000_000_000_000_101
    path.write_text(RANGES.format(start=start, thunk=start + 11, length=20, number=2))
    profile = hlofast.load_profile(path)
    assert profile.launches.values("start") == [0.0]
    assert profile.events.values("start") == [pytest.approx(11e-9)]


@pytest.mark.parametrize(
    ("length", "number"), [(2**63 - 1, 2), ("1e300", 2), (20, 10**30), (-5, 2), ("x", 2)]
)
def test_numbers_of_nsys_beyond_64_bits_are_errors(
    tmp_path: Path, length: object, number: int
) -> None:
    path = tmp_path / "nvtx_gpu_proj_trace.csv"
    path.write_text(RANGES.format(start=1, thunk=2, length=length, number=number))
    with pytest.raises(ValueError, match="no thunk of XLA"):
        hlofast.load_profile(path)


def test_traces_of_nsys_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small archive may expand to any size."""
    path = tmp_path / "nvtx_gpu_proj_trace.csv"
    path.write_text(RANGES.format(start=1, thunk=2, length=20, number=2))
    for limit in ("_MOST_BYTES", "_MOST_ROWS"):
        with monkeypatch.context() as patch:
            patch.setattr(f"hlofast._nsys.{limit}", 2)
            with pytest.raises(ValueError, match="a trace of more than"):
                hlofast.load_profile(path)


def test_names_that_are_not_utf8_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = lzma.decompress((FIXTURES / "profiles" / "sharded.xplane.pb.xz").read_bytes())
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(content.replace(b"make_profiles.py", b"make_profile\xe9.py"))
    assert main(["profile", "--by", "source", str(path)]) == 0
    assert "make_profile\ufffd.py:33" in capsys.readouterr().out


def test_the_path_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    profile = str(FIXTURES / "profiles" / "sharded.xplane.pb.xz")
    assert main(["profile", profile, "absent.txt"]) == 3
    assert capsys.readouterr().err == "hlofast: absent.txt: No such file or directory\n"
