"""The programs of a scan: figures, programs in logs, memory files, differing hosts."""

import gzip
import shutil
from pathlib import Path

import pytest

import hlofast
from conftest import FIXTURES
from dump_tree import mixed_texts
from test_cli import document, hlofast_command

FOLDERS = FIXTURES / "dump_folders"
FIGURES = {
    "line",
    "label",
    "stage",
    "status",
    "instructions",
    "fingerprint",
    "flops",
    "bytes_read",
    "bytes_written",
    "collectives",
    "wire_bytes",
    "live_peak",
    "xla_peak",
    "device",
    "step_seconds",
}


def logged(*numbers: int) -> bytes:
    """A log in which modules are framed, before and after optimisation."""
    text = mixed_texts(1)[0]
    parts = [b"I0000 start\n"]
    for number in numbers:
        for stage, module in (("after", text.after), ("before", text.before)):
            name = b"module_%04d.logged.%s_optimizations.txt" % (number, stage.encode())
            parts.append(b"*** Begin %b ***\n%b\n*** End %b ***\n" % (name, module, name))
    return b"".join(parts)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Real dumps, a log and a module that cannot be read."""
    root = tmp_path / "dump"
    shutil.copytree(FOLDERS, root / "real")
    (root / "host-a").mkdir()
    (root / "host-a" / "stdout.log").write_bytes(logged(11, 12))
    (root / "host-a" / "module_0003.bad.after_optimizations.txt").write_bytes(b"HloModule x\n\ny")
    return root


def rows(table: hlofast.Table) -> list[str]:
    # NaN is not equal to itself.
    return [str(row) for row in table]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_programs_are_the_same_in_memory_and_in_datasets(
    mixed: Path, tmp_path: Path, form: str
) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    expected = hlofast.scan(mixed).programs
    written = hlofast.scan(mixed, tmp_path / "out", format=form, batch_bytes=1)
    assert set(expected.columns) >= FIGURES
    assert rows(written.programs) == rows(expected)
    # From the rows that were there already.
    again = hlofast.scan(mixed, tmp_path / "out", format=form, batch_bytes=1)
    assert again.counts["unchanged"] == sum(again.counts.values())
    assert rows(again.programs) == rows(expected)
    opened = hlofast.open_dataset(tmp_path / "out")
    assert rows(opened.programs) == rows(expected)
    assert opened.counts == hlofast.scan(mixed, tables=[]).counts
    assert [row["path"] for row in opened.failures] == [row["path"] for row in written.failures]


def test_figures_are_those_of_the_canonical_module(mixed: Path) -> None:
    scanned = hlofast.scan(mixed)
    programs = {row["program"]: row for row in scanned.programs}
    row = programs["real/tpu/module_0000.jit_train_step"]
    module = hlofast.load(row["canonical"])
    assert (row["line"], row["label"], row["stage"]) == (1, None, "after")
    assert row["flops"] == module.cost().flops
    assert row["fingerprint"] == module.fingerprint()
    bad = programs["host-a/module_0003.bad"]
    assert (bad["flops"], bad["status"], bad["line"]) == (None, None, None)
    without = hlofast.scan(mixed, tables=["lint"]).programs
    assert set(without.values("flops")) == {None} and without.columns == scanned.programs.columns


def test_programs_that_only_a_log_has(mixed: Path) -> None:
    programs = {row["program"]: row for row in hlofast.scan(mixed).programs}
    text = mixed_texts(1)[0]
    log = mixed / "host-a" / "stdout.log"
    for number in (11, 12):
        row = programs[f"host-a/module_{number:04}.logged"]
        assert (row["module_name"], row["module_id"], row["host"]) == ("logged", number, "host-a")
        assert row["canonical"] == row["before"] == row["after"] == str(log)
        assert (row["files"], row["module_files"], row["bytes"]) == (1, 0, log.stat().st_size)
        assert row["label"] == f"module_{number:04}.logged.after_optimizations.txt"
        assert row["flops"] == hlofast.loads(text.after).cost().flops
        line = log.read_text().splitlines()[row["line"] - 1]
        assert line.startswith("HloModule ")
    assert [row["program"] for row in programs.values()] == sorted(programs)


def test_a_file_stands_for_its_program_before_a_log_does(tmp_path: Path) -> None:
    name = "module_0011.logged.before_optimizations.txt"
    (tmp_path / name).write_bytes(mixed_texts(1)[0].before)
    (tmp_path / "stdout.log").write_bytes(logged(11))
    (row,) = hlofast.scan(tmp_path).programs
    assert (row["canonical"], row["files"]) == (str(tmp_path / name), 1)
    assert row["flops"] == hlofast.load(row["canonical"]).cost().flops
    # Nothing but its schedule is a file: then the log has the modules.
    (tmp_path / name).rename(tmp_path / "module_0011.logged.thunk_sequence.txt")
    (row,) = hlofast.scan(tmp_path).programs
    assert row["canonical"] == str(tmp_path / "stdout.log")
    assert row["files"] == 2


def test_logs_of_several_folders_do_not_mix(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stdout.log").write_bytes(logged(1))
    scanned = hlofast.scan([tmp_path / "a", tmp_path / "b"])
    keys = [f"{tmp_path / name}/module_0001.logged" for name in ("a", "b")]
    assert scanned.programs["program"].tolist() == keys
    assert sorted(set(scanned["modules"]["program"].tolist())) == keys


def test_memory_files_are_linked_and_read() -> None:
    scanned = hlofast.scan(FOLDERS)
    files = [row for row in scanned.files if row["kind"] == "memory"]
    assert len(files) == 6
    modules = {row["path"]: row for row in scanned["modules"]}
    for row in files:
        module = modules[row["module_path"]]
        assert (
            row["module_path"]
            == row["path"].rsplit(
                "-", 2 if "live-range" in row["path"] or "buffer" in row["path"] else 3
            )[0]
            + ".txt.gz"
        )
        file = (
            hlofast.load(row["module_path"])
            .memory()
            .file(gzip.decompress(Path(row["path"]).read_bytes()))
        )
        assert module["allocated_bytes"] > 0
        if file.kind == "live_range":
            assert module["live_range_peak"] == file.peak_bytes > 0
        else:
            column = "allocated_bytes" if file.kind == "buffer_assignment" else "usage_report_bytes"
            assert module[column] == file.total_bytes > 0
    others = [row for path, row in modules.items() if path not in {r["module_path"] for r in files}]
    for column in ("allocated_bytes", "live_range_peak", "usage_report_bytes"):
        assert {row[column] for row in others} == {None}
    assert {row["module_path"] for row in scanned.files if row["kind"] != "memory"} == {None}


def test_a_memory_file_that_changes_is_read_again(tmp_path: Path) -> None:
    root = tmp_path / "dump"
    shutil.copytree(FOLDERS / "cpu", root)
    hlofast.scan(root, tmp_path / "out", format="jsonl")
    (report,) = root.glob("*-memory-usage-report.txt.gz")
    report.unlink()
    again = hlofast.scan(root, tmp_path / "out", format="jsonl")
    assert again.counts["read"] == 1
    assert set(again["modules"].values("usage_report_bytes")) == {None}


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """Three hosts, of which the last compiled one of two modules otherwise."""
    same, other = mixed_texts(2)
    for host in range(3):
        folder = tmp_path / f"host-{host}" / "xla_dump"
        folder.mkdir(parents=True)
        (folder / "module_0001.jit_same.after_optimizations.txt").write_bytes(same.after)
        changed = other.after if host < 2 else same.after
        (folder / "module_0002.jit_step.after_optimizations.txt").write_bytes(changed)
        # One host stopped earlier, which does not count as a difference.
        if host:
            name = "module_0003.jit_late.after_optimizations.txt"
            (folder / name).write_bytes(other.after)
        else:
            name = "module_0003.jit_late.before_optimizations.txt"
            (folder / name).write_bytes(other.before)
    return tmp_path


def test_hosts_that_compiled_something_else(hosts: Path) -> None:
    scanned = hlofast.scan(hosts, tables=["modules"])
    common, own = scanned.differing_hosts()
    assert common["module_name"] == own["module_name"] == "jit_step"
    assert (common["hosts"], common["other_hosts"]) == ("host-0, host-1", "host-2")
    assert (own["hosts"], own["other_hosts"]) == ("host-2", "host-0, host-1")
    assert own["program"] == "host-2/xla_dump/module_0002.jit_step"
    prints = hlofast.fingerprints(hosts)
    expected = {row["fingerprint"] for row in prints if row["program"] == "jit_step"}
    assert {common["fingerprint"], own["fingerprint"]} == expected
    shutil.rmtree(hosts / "host-2")
    assert len(hlofast.scan(hosts, tables=["modules"]).differing_hosts()) == 0


def test_differing_hosts_are_printed(hosts: Path, tmp_path: Path) -> None:
    done = hlofast_command("scan", hosts)
    section = done.stdout.split("Programs that differ between hosts\n")[1].splitlines()
    assert [line.split()[0] for line in section[1:3]] == ["jit_step", "jit_step"]
    assert section[2].endswith("host-2          host-0, host-1")
    for options in ((), ("-o", tmp_path / "out", "--format", "csv")):
        (printed,) = document("scan", hosts, *options)["results"]
        rows = printed["tables"]["differing_hosts"]
        assert [row["hosts"] for row in rows] == ["host-0, host-1", "host-2"]
        assert [row["other_hosts"] for row in rows] == ["host-2", "host-0, host-1"]


def test_given_files_have_the_programs_of_their_folder(tmp_path: Path) -> None:
    """`scan dump/*.txt` is `scan dump`: stages of a program belong together, and count once."""
    root = tmp_path / "dump"
    shutil.copytree(FOLDERS / "tpu", root)
    files = sorted(path for path in root.iterdir() if path.is_file())
    whole = hlofast.scan(root)
    for given in (files, [*files, *files], [*files, root], [root, root / "." / files[0].name]):
        scanned = hlofast.scan(given)
        assert scanned.counts == whole.counts
        assert rows(scanned.programs) == rows(whole.programs)
        assert sorted(rows(scanned["files"])) == sorted(rows(whole["files"]))
    # Programs of several folders are named by the path of their folder.
    other = tmp_path / "other"
    shutil.copytree(root, other)
    keys = set(hlofast.scan([*files, *other.iterdir()]).programs.values("program"))
    assert keys == {f"{folder}/module_0000.jit_train_step" for folder in (root, other)}
