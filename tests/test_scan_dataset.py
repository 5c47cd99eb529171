"""Datasets that `hlofast.scan` writes: formats, resuming, changes, interruptions."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import LONG
from dump_tree import MAX_TEXT_BYTES, Tree, grow, mixed_texts

Rows = dict[str, list[str]]


def scan(path: Path, out: Path, **options: Any) -> hlofast.Scan:
    options = {"workers": 2, "max_text_bytes": MAX_TEXT_BYTES, "format": "jsonl", **options}
    return hlofast.scan(path, out, **{"batch_bytes": 1, **options})


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_csv(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path, partitioning=None).to_pylist()
    return rows


READERS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "jsonl": read_jsonl,
    "csv": read_csv,
    "parquet": read_parquet,
}


def content(out: Path) -> Rows:
    """All rows of all tables, sorted; fails on anything else."""
    rows: Rows = {}
    named = set()
    for line in read_jsonl(out / "hlofast-manifest.jsonl")[1:]:
        added = [part[0] for batch in line.get("add", ()) for part in batch["parts"].values()]
        named.update(added + [line["programs"][0]] if "programs" in line else added)
    for path in sorted(out.rglob("*")):
        if path.is_dir() or path.name == "hlofast-manifest.jsonl":
            continue
        assert str(path.relative_to(out)) in named
        table = path.parent.name.removeprefix("table=")
        read = READERS[path.suffix[1:]]
        rows.setdefault(table, []).extend(json.dumps(row, sort_keys=True) for row in read(path))
    return {table: sorted(own) for table, own in sorted(rows.items())}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return grow(tmp_path_factory.mktemp("dataset") / "dump", mixed_texts(4), hosts=1)


@pytest.fixture(scope="module")
def undisturbed(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    scan(tree.root, out)
    return content(out)


@pytest.fixture(scope="module")
def memory(tree: Tree) -> hlofast.Scan:
    return hlofast.scan(tree.root, max_text_bytes=MAX_TEXT_BYTES)


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_dataset_holds_what_memory_holds(
    tree: Tree, memory: hlofast.Scan, tmp_path: Path, form: str
) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    scanned = scan(tree.root, tmp_path / "out", format=form)
    assert scanned.counts == memory.counts
    rows = content(tmp_path / "out")
    assert set(rows) == {"programs", *(set(memory.tables) - {"programs"})}
    for table in memory.tables:
        assert len(rows[table]) == len(memory[table])
    flops = sorted(str(json.loads(row)["flops"]) for row in rows["modules"])
    assert flops == sorted(str(value) for value in memory["modules"]["flops"].tolist())


def test_tables_of_a_dataset_can_be_read_back(
    tree: Tree, memory: hlofast.Scan, tmp_path: Path
) -> None:
    scanned = scan(tree.root, tmp_path / "out", format="parquet")
    for table in ("files", "modules", "collectives", "lint"):
        # NaN is not equal to itself.
        assert sorted(map(str, scanned[table])) == sorted(map(str, memory[table]))
    assert set(scanned.tables) == set(memory.tables)
    duckdb = pytest.importorskip("duckdb")
    count = scanned.to_duckdb(duckdb.connect()).execute("select count(*) from modules").fetchone()
    assert count == (len(memory["modules"]),)


def test_a_large_table_comes_back(tree: Tree, tmp_path: Path) -> None:
    scanned = scan(tree.root, tmp_path / "out", format="parquet", tables=["instructions"])
    in_memory = hlofast.scan(tree.root, tables=["instructions"], max_text_bytes=MAX_TEXT_BYTES)
    written, held = scanned["instructions"], in_memory["instructions"]
    assert len(held) * len(held.fields) > 1 << 16
    for field in held.fields:
        # NaN is not equal to itself.
        assert str(written.values(field.name)) == str(held.values(field.name)), field.name


def test_columns_of_parquet_files_describe_themselves(tree: Tree, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    scan(tree.root, tmp_path / "out", format="parquet", tables=["modules"])
    for path in sorted((tmp_path / "out").rglob("*.parquet")):
        schema = pyarrow.parquet.read_schema(path)
        own = hlofast._core._scan_fields(path.parent.name.removeprefix("table="))
        assert schema.names == [field.name for field in own]
        for field in own:
            expected = {"kind": field.kind, "unit": field.unit, "label": field.label}
            written = schema.field(field.name).metadata
            assert {key: written[key.encode()].decode() for key in expected} == expected


def test_parquet_needs_no_library(tree: Tree, memory: hlofast.Scan, tmp_path: Path) -> None:
    program = """
import sys
sys.modules["pyarrow"] = None
import hlofast
for _ in range(2):
    found = hlofast.scan(sys.argv[1], sys.argv[2], max_text_bytes=int(sys.argv[3]))
print(len(found["modules"]), found.counts["unchanged"], sum(found.counts.values()))
"""
    given = [str(tree.root), str(tmp_path / "out"), str(MAX_TEXT_BYTES)]
    done = subprocess.run(
        [sys.executable, "-c", program, *given], capture_output=True, text=True, check=True
    )
    count = sum(memory.counts.values())
    assert done.stdout.split() == [str(len(memory["modules"])), str(count), str(count)]


def test_a_damaged_part_is_named(tree: Tree, tmp_path: Path) -> None:
    found = scan(tree.root, tmp_path / "out", format="parquet", tables=["modules"])
    part = min((tmp_path / "out").glob("table=modules/*.parquet"))
    data = bytearray(part.read_bytes())
    data[-64:-8] = bytes(56)
    part.write_bytes(data)
    with pytest.raises(ValueError, match=part.name):
        found["modules"]


def test_a_second_scan_has_nothing_to_do(tree: Tree, undisturbed: Rows, tmp_path: Path) -> None:
    out = tmp_path / "out"
    scan(tree.root, out)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("table=[!p]*/*")}
    again = scan(tree.root, out)
    assert again.counts["unchanged"] == sum(again.counts.values()) == len(tree.expected)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("table=[!p]*/*")}
    assert content(out) == undisturbed


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_only_what_changed_is_done_again(tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    tree = grow(tmp_path / "dump", mixed_texts(2), hosts=1, odd=False)
    out, root = tmp_path / "out", tree.root
    # One part, so that it has to be taken apart.
    scan(root, out, format=form, batch_bytes=1 << 30)
    names = sorted(name for name, e in tree.expected.items() if e.status == "read")
    changed, gone, touched = names[0], names[1], names[2]
    stamp = (root / changed).stat()
    text = (root / changed).read_bytes()
    (root / changed).write_bytes(text.replace(b"parameter(0)", b"parameter(7)", 1))
    os.utime(root / changed, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    (root / gone).unlink()
    (root / touched).touch()
    (root / "new.ll").write_bytes(b"; new\n")
    scanned = scan(root, out, format=form, batch_bytes=1 << 30)
    assert scanned.counts["unchanged"] == len(tree.expected) - 2
    assert sum(scanned.counts.values()) == len(tree.expected)
    scan(root, tmp_path / "fresh", format=form, batch_bytes=1 << 30)
    assert content(out) == content(tmp_path / "fresh")


def test_other_options_start_over(tree: Tree, tmp_path: Path) -> None:
    out = tmp_path / "out"
    scan(tree.root, out, tables=["modules"])
    scanned = scan(tree.root, out, tables=["modules", "lint"])
    assert scanned.is_started_over
    assert scanned.counts["unchanged"] == 0
    assert "lint" in content(out)


def test_a_torn_row_of_the_manifest_is_done_again(
    tree: Tree, undisturbed: Rows, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    scan(tree.root, out)
    manifest = out / "hlofast-manifest.jsonl"
    whole = manifest.read_bytes()
    for cut in random.Random(3).sample(range(len(whole)), 10 if LONG else 2):
        manifest.write_bytes(whole[:cut])
        scan(tree.root, out)
        assert content(out) == undisturbed


def test_a_part_that_is_lost_or_cut_is_done_again(
    tree: Tree, undisturbed: Rows, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    scan(tree.root, out)
    parts = sorted(out.rglob("part-*.jsonl"))
    parts[0].unlink()
    parts[-1].write_bytes(parts[-1].read_bytes()[:-5])
    (out / "table=files" / ".part-00009999.jsonl").write_bytes(b"{")
    scan(tree.root, out)
    assert content(out) == undisturbed


def test_folders_that_are_no_datasets_are_left_alone(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="not a dataset"):
        scan(tree.root, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_dataset_within_the_dump_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(mixed_texts(1)[0].after)
    out = tmp_path / "tables"
    first = scan(tmp_path, out)
    second = scan(tmp_path, out)
    assert sum(first.counts.values()) == sum(second.counts.values()) == 2
    assert second.counts["unchanged"] == 2


def test_two_scans_do_not_write_to_one_dataset(tree: Tree, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    from hlofast._scan.dataset import Dataset, DatasetError

    dataset = Dataset(str(tmp_path / "out"), "jsonl", {})
    with pytest.raises(DatasetError, match="another scan"):
        scan(tree.root, tmp_path / "out")
    dataset.close()
    scan(tree.root, tmp_path / "out")


def command(root: Path, out: Path, *options: str) -> list[str]:
    base = [sys.executable, "-P", "-m", "hlofast", "scan", str(root), "-o", str(out)]
    return [*base, "--format", "jsonl", "--batch-bytes", "1", *options]


def killed_after(seconds: float, arguments: list[str], number: int) -> int:
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    process.send_signal(number)
    return process.wait()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """A tree for tests that scan again and again, in processes of their own."""
    return grow(tmp_path_factory.mktemp("small") / "dump", mixed_texts(2), hosts=1, odd=LONG)


@pytest.fixture(scope="module")
def timed(small: Tree, tmp_path_factory: pytest.TempPathFactory) -> tuple[float, Rows]:
    """How long a process takes that nobody disturbs, and what it leaves."""
    out = tmp_path_factory.mktemp("timed") / "out"
    begin = time.monotonic()
    subprocess.run(command(small.root, out), stdout=subprocess.DEVNULL, check=False)
    return time.monotonic() - begin, content(out)


def test_killed_scans_are_taken_up(small: Tree, timed: tuple[float, Rows], tmp_path: Path) -> None:
    """kill -9 at random moments, 50 times where there is time."""
    duration, expected = timed
    chance = random.Random(7)
    kills = unfinished = 0
    while kills < (50 if LONG else 5):
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        # Now and then what takes it up is killed as well.
        for _ in range(chance.choice((1, 2, 3))):
            code = killed_after(
                chance.uniform(0.1, 1.0) * duration, command(small.root, out), signal.SIGKILL
            )
            kills += 1
            unfinished += code == -signal.SIGKILL
        scanned = scan(small.root, out, max_text_bytes=1 << 30, tables=None)
        assert sum(scanned.counts.values()) == len(small.expected)
        assert content(out) == expected
    assert unfinished > kills // 4


@pytest.mark.parametrize("share", (0.3, 0.5, 0.6, 0.7, 0.8, 0.9) if LONG else (0.7,))
def test_an_interrupted_scan_leaves_a_dataset(
    small: Tree, timed: tuple[float, Rows], tmp_path: Path, share: float
) -> None:
    duration, expected = timed
    out = tmp_path / "out"
    code = killed_after(share * duration, command(small.root, out), signal.SIGINT)
    assert code in (130, 3, 0, -signal.SIGINT)
    if (out / "hlofast-manifest.jsonl").exists():
        content(out)
    scan(small.root, out, max_text_bytes=1 << 30, tables=None)
    assert content(out) == expected


def test_watch_follows_a_job(tmp_path: Path) -> None:
    text = mixed_texts(1)[0]
    root, out = tmp_path / "dump", tmp_path / "out"
    root.mkdir()
    process = subprocess.Popen(
        command(root, out, "--watch", "0.05"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        for number in range(3):
            (root / f"module_{number:04}.f.after_optimizations.txt").write_bytes(text.after)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                parts = list(out.glob("table=modules/part-*"))
                if sum(len(read_jsonl(part)) for part in parts) == number + 1:
                    break
                time.sleep(0.05)
            else:
                pytest.fail(f"module {number} was not seen")
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"1 read" in said
    scan(root, tmp_path / "fresh", max_text_bytes=1 << 30)
    assert content(out) == content(tmp_path / "fresh")
