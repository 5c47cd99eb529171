"""`hlofast.scan`: every file of a dump directory with its kind and outcome."""

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import hlofast
from dump_tree import MAX_TEXT_BYTES, Expected, Tree, grow, mixed_texts


def scan(path: Path, out: Path | None = None, **options: Any) -> hlofast.Scan:
    options = {"workers": 2, "max_text_bytes": MAX_TEXT_BYTES, "format": "jsonl", **options}
    return hlofast.scan(path, out, **options)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return grow(tmp_path_factory.mktemp("scan") / "dump", mixed_texts(6))


@pytest.fixture(scope="module")
def scanned(tree: Tree) -> hlofast.Scan:
    return scan(tree.root)


def rows_of(scanned: hlofast.Scan, root: Path) -> dict[str, dict[str, Any]]:
    rows = {os.path.relpath(row["path"], root): row for row in scanned.files}
    assert len(rows) == len(scanned.files)
    return rows


def test_every_file_is_what_it_was_made_as(tree: Tree, scanned: hlofast.Scan) -> None:
    rows = rows_of(scanned, tree.root)
    assert rows.keys() == tree.expected.keys()
    wrong = {}
    for name, expected in tree.expected.items():
        row = rows[name]
        if expected != Expected(
            *(row[key] or "" for key in ("kind", "status", "stage")), expected.reason
        ):
            wrong[name] = row
        if expected.reason not in (row["reason"] or ""):
            wrong[name] = row
    assert not wrong


def test_the_sums_match(tree: Tree, scanned: hlofast.Scan) -> None:
    assert sum(scanned.counts.values()) == len(tree.expected)
    # rglob follows no links, but names them.
    there = {path for path in tree.root.rglob("*") if path.is_symlink() or not path.is_dir()}
    assert there == {tree.root / name for name in tree.expected}
    for status in ("read", "failed", "skipped"):
        assert scanned.counts[status] == sum(e.status == status for e in tree.expected.values())
        assert scanned.counts[status] == scanned.files["status"].tolist().count(status)
    assert all(row["reason"] for row in scanned.files if row["status"] != "read")
    assert not any(row["reason"] for row in scanned.files if row["status"] == "read")


def test_faults_have_their_place(tree: Tree, scanned: hlofast.Scan) -> None:
    row = rows_of(scanned, tree.root)["odd/module_0901.cut.after_optimizations.txt"]
    text = (tree.root / "odd/module_0901.cut.after_optimizations.txt").read_text()
    assert row["line"] == text.count("\n") + 1
    assert row["column"] > 1


def test_modules_say_what_the_module_says(tree: Tree, scanned: hlofast.Scan) -> None:
    modules = [row for row in scanned["modules"] if row["path"].endswith("after_optimizations.txt")]
    assert len(modules) > 8
    for row in modules[:8]:
        module = hlofast.load(row["path"])
        cost, memory = module.cost(), module.memory()
        collectives = module.collectives()
        assert row["flops"] == cost.flops
        assert row["live_peak"] == memory.live_peak
        assert row["instructions"] == module.summary().values["instructions"]
        assert row["fingerprint"] == module.fingerprint()
        assert row["collectives"] == len(set(collectives["instruction"].tolist()))
        wire = collectives.values("total_wire_bytes")
        assert row["wire_bytes"] == sum(size for size in wire if size is not None)


@pytest.mark.parametrize("table", ["collectives", "matmuls", "buffers", "remat", "computations"])
def test_rows_of_a_table_are_those_of_the_module(scanned: hlofast.Scan, table: str) -> None:
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in scanned[table]:
        rows.setdefault(row["path"], []).append(row)
    for path, own in sorted(rows.items())[:6]:
        if path.endswith(".log"):
            continue
        module = hlofast.load(path)
        expected = {
            "collectives": lambda m: m.collectives(),
            "matmuls": lambda m: m.matmuls(),
            "buffers": lambda m: m.memory().live,
            "remat": lambda m: m.remat().recomputed,
            "computations": lambda m: m.cost().computations,
        }[table](module).to_pylist()
        if table == "remat":
            own = [row for row in own if row["what"] == "recomputed"]
        assert [row["name" if "name" in row else "computation"] for row in own] == [
            row["name" if "name" in row else "computation"] for row in expected
        ]
        shared = own[0].keys() & expected[0].keys() - {"bytes"} if own else set()
        for key in shared:
            assert [row[key] for row in own] == [row[key] for row in expected], (path, key)


def test_programs_hold_what_belongs_together(tree: Tree, scanned: hlofast.Scan) -> None:
    programs = {row["program"]: row for row in scanned.programs}
    name = mixed_texts(1)[0].name
    row = programs[f"host-1/xla_dump/module_0000.jit_{name}"]
    assert row["host"] == "host-1"
    assert (row["module_name"], row["module_id"]) == (f"jit_{name}", 0)
    own = [n for n in tree.expected if f"host-1/xla_dump/module_0000.jit_{name}" in n]
    assert row["files"] == len(own) + 1  # And the schedule, which has no number.
    assert row["before"].endswith("before_optimizations.txt")
    assert row["canonical"] == row["after"]
    assert row["flops"] == hlofast.load(row["canonical"]).cost().flops
    tpu = programs["real/tpu/module_0000.jit_train_step"]
    assert tpu["memory_files"] == 3
    assert tpu["changelist"] == 933746096
    stamped = [row for row in scanned.programs if row["timestamp"] is not None]
    assert {row["timestamp"] for row in stamped} == {1700000000000001}
    split = [row for row in scanned.programs if row["host"] == "worker-3_4711"]
    assert len(split) == 2


def test_the_last_stage_stands_for_a_program(tmp_path: Path) -> None:
    text = mixed_texts(1)[0]
    names = [
        "module_0000.f.before_optimizations.txt",
        "module_0000.f.0001.p.after_a.before_b.txt",
        "module_0000.f.0012.p.after_b.before_c.txt",
        "module_0000.f.after_optimizations_before_buffer_assignment.txt",
        "module_0000.f.after_optimizations.txt",
        "module_0000.f.after_codegen.txt",
    ]
    for name in names:
        (tmp_path / name).write_bytes(text.after)
        (row,) = scan(tmp_path, tables=["modules"]).programs
        assert Path(row["canonical"]).name == name


def test_halves_with_other_numbers_are_partners(tmp_path: Path) -> None:
    text = mixed_texts(1)[0]
    (tmp_path / "module_0003.f.before_optimizations.txt").write_bytes(text.before)
    (tmp_path / "module_0005.f.after_optimizations.txt").write_bytes(text.after)
    (tmp_path / "module_0105.f.after_optimizations.txt").write_bytes(text.after)
    programs = scan(tmp_path, tables=["modules"]).programs
    assert programs["partner"].tolist() == ["module_0005.f", "module_0003.f", None]


def test_a_log_gives_its_modules_their_names(scanned: hlofast.Scan) -> None:
    rows = [row for row in scanned["modules"] if row["path"].endswith("stdout.log")]
    assert [row["label"] for row in rows] == [
        f"module_{number:04}.logged.after_optimizations.txt" for number in (11, 12)
    ]
    assert [row["program"] for row in rows] == ["odd/module_0011.logged", "odd/module_0012.logged"]
    assert {row["stage"] for row in rows} == {"after"}
    assert rows[1]["line"] > rows[0]["line"] > 1


def test_modules_are_timed_for_the_chip_that_the_dump_names(scanned: hlofast.Scan) -> None:
    rows = [row for row in scanned["modules"] if row["device"]]
    assert {row["device"] for row in rows} == {"tpu-v5e"}
    assert {"cl_933746096" in row["path"] for row in rows} == {True}
    row = next(row for row in rows if row["path"].endswith("after_optimizations.txt"))
    time = hlofast.load(row["path"]).time("tpu-v5e")
    assert row["step_seconds"] == pytest.approx(time.step_seconds, rel=1e-12)


def test_buffer_assignments_are_linked_to_their_modules(tree: Tree, scanned: hlofast.Scan) -> None:
    rows = {row["path"]: row["allocated_bytes"] for row in scanned["modules"]}
    for backend, name in (("cpu", "cpu_after_optimizations"), ("tpu", "after_optimizations")):
        (path,) = (tree.root / "real" / backend).glob(f"*.{name}.txt.gz")
        (beside,) = (tree.root / "real" / backend).glob(f"*.{name}-buffer-assignment.txt.gz")
        file = hlofast.load(path).memory().file(gzip.decompress(beside.read_bytes()))
        assert rows.pop(str(path)) == file.total_bytes > 0
    assert set(rows.values()) == {None}


def test_a_chip_of_the_callers_choice(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(mixed_texts(1)[0].after)
    assert scan(tmp_path, device="h100")["modules"]["device"].tolist() == ["h100"]
    assert scan(tmp_path, device=None)["modules"]["step_seconds"].tolist() != [0]
    with pytest.raises(ValueError, match="nonsense"):
        scan(tmp_path, device="nonsense")


def test_threads_change_nothing(tree: Tree, scanned: hlofast.Scan) -> None:
    serial = scan(tree.root, workers=1)
    for table in ("files", "modules", "collectives", "matmuls", "buffers", "remat", "lint"):
        # NaN is not equal to itself.
        assert str(serial[table].to_pylist()) == str(scanned[table].to_pylist())


def test_larger_files_than_allowed_fail(tmp_path: Path) -> None:
    text = mixed_texts(1)[0]
    (tmp_path / "a.after_optimizations.txt").write_bytes(text.after)
    (tmp_path / "b.after_optimizations.txt").write_bytes(b"HloModule b\n")
    scanned = scan(tmp_path, max_bytes=len(text.after) - 1)
    assert scanned.counts["failed"] >= 1
    assert "the size cap" in scanned.files.row(0)["reason"]


def test_files_that_take_too_long_fail_and_the_others_do_not(tmp_path: Path) -> None:
    (tmp_path / "a.after_optimizations.txt").write_bytes(mixed_texts(1)[0].after)
    (tmp_path / "b.ll").write_bytes(b"; x\n")
    scanned = scan(tmp_path, max_seconds=0.0)
    assert scanned.counts == {"read": 0, "failed": 1, "skipped": 1, "unchanged": 0}
    assert "the time cap" in scanned.files.row(0)["reason"]


def test_a_missing_path_is_a_row(tmp_path: Path) -> None:
    scanned = scan(tmp_path / "nowhere")
    (row,) = scanned.files
    assert (row["status"], row["kind"]) == ("failed", "other")
    assert "No such file" in row["reason"]


def test_a_dataset_needs_a_path_that_exists(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        scan(tmp_path / "nowhere", tmp_path / "dataset")
    assert not (tmp_path / "dataset").exists()
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "a.after_optimizations.txt").write_bytes(mixed_texts(1)[0].after)
    scan(tmp_path / "dumps", tmp_path / "dataset")
    (tmp_path / "dumps").rename(tmp_path / "moved")
    # A folder that is gone, such as an unmounted one, must not cost the rows of its files.
    with pytest.raises(FileNotFoundError):
        scan(tmp_path / "dumps", tmp_path / "dataset")
    assert list((tmp_path / "dataset" / "table=files").iterdir())
    again = scan([tmp_path / "nowhere", tmp_path / "moved"], tmp_path / "dataset")
    assert (again.counts["read"], again.counts["failed"]) == (1, 1)


def test_skipped_files_are_counted_by_kind(tmp_path: Path) -> None:
    (tmp_path / "a.after_optimizations.txt").write_bytes(mixed_texts(1)[0].after)
    for name in ("c.ll", "b.ll", "README"):
        (tmp_path / name).write_bytes(b"; x\n")
    (skipped,) = (own for own in scan(tmp_path).sections() if own.name == "skipped")
    found = {row["kind"]: (row["files"], row["example"]) for row in skipped.table}
    assert found == {"code": (2, "b.ll"), "other": (1, "README")}


def test_a_folder_without_permission_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "open.after_optimizations.txt").write_bytes(mixed_texts(1)[0].after)
    for name in ("closed", "secret.after_optimizations.txt"):
        (tmp_path / name).mkdir() if name == "closed" else (tmp_path / name).write_bytes(b"x")
        (tmp_path / name).chmod(0)
    # Root may enter every folder: the process reads as somebody else.
    code = (
        "import os, sys, hlofast\n"
        "hlofast.scan([])\n"
        "if os.geteuid() == 0:\n"
        "    os.setgroups([]), os.setgid(65534), os.setuid(65534)\n"
        "for row in hlofast.scan(sys.argv[1]).files:\n"
        "    print(row['status'], row['kind'], row['reason'], sep='|')\n"
    )
    for parent in (tmp_path, *tmp_path.parents):
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    (tmp_path / "closed").chmod(0o755)
    assert lines == [
        "failed|folder|Permission denied",
        "read|module|None",
        "failed|module|Permission denied",
    ], done.stderr


def test_a_folder_is_read_once_however_many_links_lead_to_it(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.after_optimizations.txt").write_bytes(mixed_texts(1)[0].after)
    for name in ("a", "c", "b/d"):
        (tmp_path / name).symlink_to(tmp_path / "b", target_is_directory=True)
    (tmp_path / "twice.after_optimizations.txt").symlink_to("b/x.after_optimizations.txt")
    scanned = scan(tmp_path)
    assert scanned.counts == {"read": 2, "failed": 0, "skipped": 3, "unchanged": 0}


def test_compressed_dumps_are_read(tmp_path: Path) -> None:
    text = mixed_texts(1)[0]
    (tmp_path / "module_0001.f.after_optimizations.txt.gz").write_bytes(gzip.compress(text.after))
    (tmp_path / "unnamed.gz").write_bytes(gzip.compress(text.after))
    scanned = scan(tmp_path)
    assert scanned.files["text_bytes"].tolist() == [len(text.after)] * 2
    assert scanned.programs["program"].tolist() == ["unnamed", "module_0001.f"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_large_files_that_are_no_hlo_take_no_memory(tmp_path: Path) -> None:
    size = 256 << 20
    names = {
        "module_0001.f.after_optimizations.txt": ("failed", "binary data, not HLO"),
        "module_0002.f.after_optimizations.txt.gz": ("failed", "binary data, not HLO"),
        "module_0003.f.after_optimizations.txt.gz": ("failed", "NUL bytes after text"),
        "log": ("skipped", "not HLO: other text"),
    }
    sparse, bomb, text_bomb, log = (tmp_path / name for name in names)
    with sparse.open("wb") as file:
        file.truncate(size)
    for path, head in ((bomb, b""), (text_bomb, b"HloModule m\n")):
        path.write_bytes(gzip.compress(head + bytes(size), 9))
    with log.open("wb") as file:
        for _ in range(size >> 20):
            file.write(b"2026-11-27 step done, loss = 1.25\n" * ((1 << 20) // 34))
    program = """
import sys, hlofast
for row in hlofast.scan(sys.argv[1], workers=1).files:
    print(row["path"].rpartition("/")[2], row["status"], row["reason"], sep="|")
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) << 10)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    *rows, peak = done.stdout.splitlines()
    assert int(peak) < size // 2
    for name, status, reason in (row.split("|", 2) for row in rows):
        assert (name, status) == (name, names[name][0])
        assert names[name][1] in reason
    assert len(rows) == len(names)


def test_a_log_is_read_wherever_its_module_is(tmp_path: Path) -> None:
    line = b"2026-11-27 step done, loss = 1.25\n"
    module = mixed_texts(1)[0].after
    piece = 1 << 20
    for shift in range(-12, 2):
        before = line * (9 * piece // len(line))
        before = before[: 9 * piece + shift - 1] + b"\n"
        (tmp_path / f"log{shift}").write_bytes(before + module)
    scanned = scan(tmp_path, tables=["modules"])
    assert scanned.counts["read"] == 14


def test_options_that_cannot_be(tmp_path: Path) -> None:
    for options in ({"tables": ["files", "nothing"]}, {"workers": -1}, {"max_seconds": -1.0}):
        with pytest.raises(ValueError):
            scan(tmp_path, **options)
    with pytest.raises(ValueError, match="format"):
        hlofast.scan(tmp_path, tmp_path / "out", format="xml")


def test_other_libraries_get_the_tables(tree: Tree, scanned: hlofast.Scan) -> None:
    pytest.importorskip("pyarrow")
    modules = scanned.to_arrow("modules")
    assert modules.num_rows == len(scanned["modules"])
    assert modules["flops"].to_pylist() == scanned["modules"]["flops"].tolist()
    # What has no number is null there.
    assert modules["step"].to_pylist() == scanned["modules"].values("step")
    assert None in modules["step"].to_pylist()
    polars = pytest.importorskip("polars")
    assert scanned.to_polars("collectives").filter(polars.col("payload") > 0).height > 0
    duckdb = pytest.importorskip("duckdb")
    connection = scanned.to_duckdb(duckdb.connect())
    query = "select count(*) from files where status = 'failed'"
    assert connection.execute(query).fetchone() == (scanned.counts["failed"],)
    pytest.importorskip("pandas")
    assert len(scanned.to_pandas("files")) == len(tree.expected)


def test_instructions_are_a_table_on_request(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "fixtures" / "train_step.after_optimizations.txt", tmp_path)
    scanned = scan(tmp_path, tables=["instructions"])
    module = hlofast.load(tmp_path / "train_step.after_optimizations.txt")
    rows = scanned["instructions"]
    assert rows["name"].tolist() == [instruction.name for instruction in module]
    assert rows["opcode"].tolist() == [instruction.opcode for instruction in module]
    assert rows["flops"].tolist() == module.cost().table()["flops"].tolist()
    assert "modules" not in scanned.tables
    assert len(scanned["modules"]) == 0
