"""`hlofast.history` and `hlofast history`: what each pass did to a module."""

from __future__ import annotations

import pickle
import shutil
import tarfile
from pathlib import Path

import pytest

import hlofast
from conftest import FIXTURES
from renamed import renamed
from test_cli import document, hlofast_command

pytestmark = pytest.mark.once

NAME = "module_0000.jit_train_step"


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps that XLA wrote between its passes."""
    folder = tmp_path_factory.mktemp("passes")
    with tarfile.open(FIXTURES / "passes.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def history(dump: Path) -> hlofast.History:
    return hlofast.history(dump)


def test_every_dump_is_a_row_in_order(dump: Path, history: hlofast.History) -> None:
    assert len(history) == len(list(dump.iterdir())) == 66
    rows = history.to_pylist()
    assert rows[0]["stage"] == "before"
    assert rows[-1]["stage"] == "after"
    steps = [row["step"] for row in rows[1:-1]]
    assert steps == list(range(64))
    assert not any(row["error"] for row in rows)
    inlined = rows[5]
    assert (inlined["pipeline"], inlined["pass"]) == ("spmd-partitioner", "call-inliner")


def test_files_are_named(dump: Path) -> None:
    done = hlofast_command("history", "--files", dump)
    files = [line.partition("file: ")[2] for line in done.stdout.splitlines() if "file: " in line]
    assert len(files) == 39
    assert all(Path(file).is_file() for file in files)
    assert "\n6 pipeline-start\n  file: " in done.stdout


def test_figures_are_those_of_the_modules(history: hlofast.History) -> None:
    for index in (0, 10, 65):
        module = history.module(index)
        row = history.row(index)
        assert row["instructions"] == module.instruction_count
        assert row["flops"] == module.cost().flops
        assert row["bytes_accessed"] == module.cost().bytes_accessed
        assert row["live_peak"] == module.memory().live_peak
        assert row["fusions"] == len(module.where(opcode="fusion"))
    before, after = history.row(0), history.row(65)
    assert before["fusions"] == 0 < after["fusions"]
    assert before["collectives"] == 0 < after["collectives"]


def test_passes_are_told_by_what_they_did(history: hlofast.History) -> None:
    rows = history.to_pylist()
    did = {(row["pipeline"], row["pass"]): row for row in rows}
    cleaned = did["spmd-cleanup", "dce"]
    assert (cleaned["vanished"], cleaned["appeared"], cleaned["changed"]) == (51, 0, 0)
    assert did["spmd-partitioner", "spmd-partitioning"]["collectives"] > 0
    annotated = did["HLO_passes_through_layout_assignment", "while-loop-trip-count-annotator"]
    counts = [annotated[kind] for kind in ("vanished", "appeared", "moved", "changed")]
    assert counts == [0, 0, 0, 2]
    wrapped = did["HLO_passes_after_layout_assignment", "fusion-wrapper"]
    assert wrapped["moved"] == wrapped["appeared"] == 13
    assert wrapped["fusions"] == rows[rows.index(wrapped) - 1]["fusions"] + 13
    assert did["HLO_passes_after_layout_assignment", "fusion"]["moved"] > 20
    copies = did["copy-insertion", "after_adding_copies_to_resolve_interference"]
    assert (copies["vanished"], copies["appeared"]) == (0, 22)
    # XLA dumps at the start of pipelines, too, where nothing has happened.
    starts = [row for row in rows[2:] if row["pass"] == "pipeline-start"]
    assert len(starts) > 10
    assert all(row["is_same"] for row in starts if row["pipeline"] == "simplification")


def test_neighbours_and_their_differences_agree(history: hlofast.History) -> None:
    for index in range(1, len(history)):
        row = history.row(index)
        if row["is_same"]:
            assert [row[kind] for kind in ("vanished", "appeared", "moved", "changed")] == [0] * 4
            before, after = history.module(index - 1), history.module(index)
            # The number of copies of equal computations does not count as a difference.
            if len(before.computations) == len(after.computations):
                assert before.instruction_count == after.instruction_count


def test_every_step_renamed_is_the_same_history(
    dump: Path, history: hlofast.History, tmp_path: Path
) -> None:
    for number, path in enumerate(sorted(dump.iterdir())):
        (tmp_path / path.name).write_text(renamed(hlofast.load(path), number))
    other = hlofast.history(tmp_path, "jit_train_step")
    # The order in the text decides the peak; operation names help to tell what became of what.
    for name in ("instructions", "fusions", "collectives", "flops", "is_same"):
        assert other[name].tolist() == history[name].tolist(), name


def test_modules_are_chosen_by_name_number_and_key(dump: Path, tmp_path: Path) -> None:
    for host in ("host0", "host1"):
        shutil.copytree(dump, tmp_path / host)
    for name in (None, "jit_train_step", 0, "0000"):
        with pytest.raises(ValueError, match=r"host0/module_0000\.jit_train_step"):
            hlofast.history(tmp_path, name)
    chosen = hlofast.history(tmp_path, f"host1/{NAME}")
    assert chosen.program.host == "host1"
    with pytest.raises(ValueError, match=r"no module 'jit_eval'.*jit_train_step"):
        hlofast.history(dump, "jit_eval")
    with pytest.raises(OSError, match="nothing"):
        hlofast.history(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no modules"):
        hlofast.history(tmp_path / "empty")


def test_the_module_with_passes_is_meant(dump: Path, tmp_path: Path) -> None:
    shutil.copytree(dump, tmp_path / "dump")
    after = tmp_path / "dump" / f"{NAME}.cpu_after_optimizations.txt"
    shutil.copy(after, after.with_name(after.name.replace("0000", "0001")))
    assert hlofast.history(tmp_path / "dump", "jit_train_step").program.module_id == 0


def test_what_cannot_be_read_is_a_row_with_its_reason(dump: Path, tmp_path: Path) -> None:
    for path in sorted(dump.iterdir())[:6]:
        shutil.copy(path, tmp_path)
    broken = sorted(tmp_path.iterdir())[3]
    broken.write_text(broken.read_text()[:3000])
    rows = hlofast.history(tmp_path).to_pylist()
    (failed,) = [row for row in rows if row["error"]]
    assert failed["file"] == str(broken)
    assert failed["instructions"] is failed["live_peak"] is None
    assert len(rows) == 6
    done = hlofast_command("history", tmp_path)
    assert done.returncode == 3
    assert broken.name in done.stderr
    assert "Traceback" not in done.stderr
    printed = document("history", tmp_path)
    (result,) = printed["results"]
    steps = result["tables"]["steps"]
    assert [step["instructions"] is None for step in steps].count(True) == 1
    assert [note["code"] for note in result["notes"]] == ["unreadable"]
    assert [error["path"] for error in printed["errors"]] == [str(broken)]


def test_a_notebook_shows_it(dump: Path, tmp_path: Path) -> None:
    step = next(iter(sorted(dump.iterdir())))
    folder = tmp_path / "<i>"
    folder.mkdir()
    shutil.copy(step, folder)
    html = hlofast.history(tmp_path)._repr_html_()
    assert "<i>" not in html
    assert "&lt;i&gt;/module_0000" in html
    assert ">live peak B</th>" in html


def test_pickle(dump: Path) -> None:
    history = hlofast.history(dump)
    assert pickle.loads(pickle.dumps(history)) == history


def test_document_is_the_table(dump: Path, history: hlofast.History) -> None:
    (printed,) = document("history", dump, "jit_train_step")["results"]
    facts = {name: fact["value"] for name, fact in printed["facts"].items()}
    assert facts == {"module": "jit_train_step", "dumps": 66, "same": sum(history["is_same"])}
    assert printed["name"] == NAME
    assert printed["notes"] == []
    steps = printed["tables"]["steps"]
    assert steps == history.to_pylist()
    assert steps[0]["step"] is None
    assert steps[1]["pass"] == "pipeline-start"


def test_for_people(dump: Path) -> None:
    done = hlofast_command("history", dump, "0")
    assert done.returncode == 0, done.stderr
    for shown in (NAME, "66", "spmd-partitioning", "fusion", "live peak"):
        assert shown in done.stdout
    assert done.stdout == f"{hlofast.history(dump)}\n\n"
    short = done.stdout.count("\n")
    assert hlofast_command("history", "--all", dump).stdout.count("\n") > short
    assert hlofast_command("history", dump, "jit_eval").returncode == 2
    assert hlofast_command("history", dump / "nothing").returncode == 3
