"""Seconds of compiler passes, from Nsight Systems, beside what each pass changed."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hlofast
from conftest import FIXTURES
from hlofast._pass_times import PassTime, pass_seconds, read
from test_cli import document, hlofast_command

REAL = FIXTURES / "pass_times" / "report_nvtx_pushpop_trace.csv.xz"
TRUTH = json.loads((FIXTURES / "pass_times" / "truth.json").read_text())
NAME = "jit_train_step"


def test_own_seconds_are_those_of_nsight_systems() -> None:
    times = read(REAL).of("pjit__wrapped_step_fn", 40)
    own: dict[str, list[float]] = {}
    for (kind, _, name), time in times.items():
        if kind == "XlaPass":
            sums = own.setdefault(name, [0, 0.0])
            sums[0] += time.runs
            sums[1] += time.seconds
    assert len(TRUTH["own"]) > 100
    for name, (runs, seconds) in TRUTH["own"].items():
        assert own[name] == [runs, pytest.approx(seconds, abs=1e-9)], name
    (compiled,) = (time for (kind, _, _), time in times.items() if kind == "XlaCompile")
    assert compiled.total_seconds == pytest.approx(TRUTH["compile_seconds"])
    priority = times["XlaPass", "fusion", "priority-fusion"]
    assert priority.seconds == pytest.approx(2.2913134)
    # Every moment of the compilation belongs to one range.
    every = read(REAL)
    total = sum(time.seconds for module in every.modules for time in every._times[module].values())
    assert total == pytest.approx(TRUTH["compile_seconds"])


def write(path: Path, events: list[tuple[str, int, int]]) -> None:
    """Writes ranges in the form of Nsight Systems."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Start (ns)", "End (ns)", "Duration (ns)", "Name", "PID", "TID"])
        for name, start, duration in events:
            writer.writerow([start, start + duration, duration, name, 1, 1])


def compiled(rows: list[dict[str, Any]], module: str) -> list[tuple[str, int, int]]:
    """A compilation that runs every dumped pass for one second, and one more pass."""
    events = [(f"TSL:XlaCompile:#module={module},program_id=0#", 0, 10**12)]
    start = 0
    for row in rows:
        if row["pass"]:
            inside = f"module={module},program_id=0#"
            pipeline = f"TSL:XlaPassPipeline:#name={row['pipeline']},{inside}"
            events.append((pipeline, start, 2 * 10**9))
            events.append((f"TSL:XlaPass:#name={row['pass']},{inside}", start, 10**9))
            start += 2 * 10**9
    events.append((f"TSL:XlaPass:#name=slow-pass,module={module},program_id=0#", start, 7 * 10**9))
    return events


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked archive: dumps between passes, and the times of the passes beside them."""
    folder = tmp_path_factory.mktemp("archive")
    with tarfile.open(FIXTURES / "passes.tar.xz") as archive:
        archive.extractall(folder / "dump", filter="data")
    rows = hlofast.history(folder / "dump").to_pylist()
    write(folder / "report_nvtx_pushpop_trace.csv", compiled(rows, NAME))
    return folder / "dump"


def test_times_are_joined_by_pass_pipeline_and_module(dump: Path) -> None:
    history = hlofast.history(dump)
    rows = history.to_pylist()
    runs: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["pass"]:
            key = row["pipeline"], row["pass"]
            runs[key] = runs.get(key, 0) + 1
    for row in rows:
        expected = float(runs[row["pipeline"], row["pass"]]) if row["pass"] else None
        assert row["seconds"] == pytest.approx(expected)
    times = history.times.to_pylist()
    # The compilation itself comes first; a pass without a dump is a row too.
    assert times[0]["kind"] == "XlaCompile"
    (slow,) = (row for row in times if row["pass"] == "slow-pass")
    assert (slow["seconds"], slow["dumps"]) == (pytest.approx(7), None)
    joined = {(row["pipeline"], row["pass"]): row for row in times if row["kind"] == "pass"}
    for key, count in runs.items():
        assert joined[key]["runs"] == joined[key]["dumps"] == count
    changed = sum(row["changed"] or 0 for row in times)
    assert changed == sum(row["changed"] for row in rows if row["pass"])
    facts = {fact.name: fact.value for fact in history.facts}
    assert facts["compile_seconds"] == pytest.approx(1000)
    assert facts["pass_seconds"] == pytest.approx(2 * sum(runs.values()) + 7)
    assert pickle.loads(pickle.dumps(history)).times.to_pylist() == times


def test_the_file_is_found_or_given(dump: Path, tmp_path: Path) -> None:
    beside = dump.parent / "report_nvtx_pushpop_trace.csv"
    found = document("history", dump)["results"][0]
    assert found["facts"]["pass_times"]["value"] == str(beside)
    assert found["tables"]["times"]
    packed = {"times.csv.xz": lzma.compress, "times.csv.gz": gzip.compress}
    for name, compress in packed.items():
        path = tmp_path / name
        path.write_bytes(compress(beside.read_bytes()))
        assert read(path)._times == read(beside)._times
        given = hlofast.history(dump, pass_times=path)
        assert len(given.times) == len(found["tables"]["times"])
    shown = hlofast_command("history", "--pass-times", dump.parent, dump)
    assert shown.returncode == 0
    assert "slow-pass" in shown.stdout
    # Times of another program.
    other = hlofast.history(dump, pass_times=REAL)
    assert [note.code for note in other.notes][0] == "no-pass-times"
    assert len(other.times) == 0


def test_files_that_hold_no_times_are_refused(dump: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    header = "Start (ns),Duration (ns),Name\n"
    texts = [
        "",
        "a,b\n",
        f"{header}1\n",
        f"{header}x,1,TSL:XlaPass:#name=a#\n",
        f"{header}1,-1,n\n",
    ]
    for text in texts:
        path.write_text(text)
        with pytest.raises(ValueError, match=r"bad\.csv"):
            read(path)
        assert hlofast_command("history", "--pass-times", path, dump).returncode == 2
    content = header.encode() + b"1,1,TSL:XlaPass:#name=a#\n" * 100
    path.write_bytes(lzma.compress(content)[:-9])
    with pytest.raises(ValueError, match="decompressed"):
        read(path)
    missing = hlofast_command("history", "--pass-times", tmp_path / "none", dump)
    assert (missing.returncode, "none" in missing.stderr) == (3, True)


def test_ranges_nest_by_thread() -> None:
    def event(kind: str, name: str, start: int, duration: int, thread: int = 0) -> Any:
        return f"TSL:{kind}:#name={name},module=m,program_id=1#", start, duration, thread

    times = pass_seconds(
        [
            event("XlaPassPipeline", "p", 0, 100),
            event("XlaPass", "a", 0, 40),
            event("XlaPass", "b", 10, 20),
            event("XlaPass", "a", 5, 7, 1),
            event("XlaPass", "a", 40, 10),
            ("other", 50, 5, 0),
        ]
    )[("m", 1)]
    assert times["XlaPassPipeline", "p", ""] == PassTime(
        1, pytest.approx(50e-9), pytest.approx(100e-9)
    )
    assert times["XlaPass", "p", "a"] == PassTime(2, pytest.approx(30e-9), pytest.approx(50e-9))
    assert times["XlaPass", "p", "b"] == PassTime(1, pytest.approx(20e-9), pytest.approx(20e-9))
    assert times["XlaPass", "", "a"] == PassTime(1, pytest.approx(7e-9), pytest.approx(7e-9))


EVENTS = st.tuples(
    st.sampled_from(["TSL:XlaPass:#name=a,module=m#", "TSL:XlaPassPipeline:#name=p,,=#", "x", "#"]),
    st.integers(0, 10**18),
    st.integers(0, 10**18),
    st.integers(0, 2),
)


@given(st.lists(EVENTS, max_size=60))
def test_any_ranges_are_summed_or_refused(events: list[tuple[str, int, int, int]]) -> None:
    times = pass_seconds(iter(events))
    runs = sum(time.runs for passes in times.values() for time in passes.values())
    assert runs == sum(event[0].startswith("TSL") for event in events)
