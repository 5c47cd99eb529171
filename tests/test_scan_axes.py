"""Axis names that only the module before optimisation has: scans take them as `load` does."""

import gzip
import json
import lzma
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hlofast
from hlofast import _core
from test_context import BEFORE, BODY, HEADER, TEXT
from test_executors import processes

OTHER = BEFORE.replace('"data"=2', '"rows"=2').replace('"model"=4', '"columns"=4')
NAMED = {"module_0001.f": "model", "module_0002.f": "columns", "module_0003.f": "axis_1"}
"""The axis of each program's collective; the texts after optimisation are equal."""


def fill(folder: Path) -> Path:
    """Programs with equal texts after a pass and after optimisation; two of them have names."""
    folder.mkdir(exist_ok=True)
    for stem in NAMED:
        (folder / f"{stem}.after_optimizations.txt").write_text(TEXT)
        (folder / f"{stem}.0001.p.after_x.before_y.txt").write_text(TEXT)
    (folder / "module_0001.f.before_optimizations.txt").write_text(BEFORE)
    (folder / "module_0002.f.before_optimizations.txt").write_text(OTHER)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "dump")


def axes(scan: hlofast.Scan, table: str = "collectives") -> dict[str, str]:
    """The axes of the collectives after optimisation, by program."""
    rows = scan[table].to_pylist()
    return {row["program"]: row["axes"] for row in rows if "after_opt" in row["path"]}


def resumed(folder: Path, **options: Any) -> hlofast.Scan:
    return hlofast.scan(folder, folder.parent / "out", format="jsonl", workers=1, **options)


def test_rows_are_equal_through_load_scan_dataset_and_sql(folder: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("duckdb")
    dataset = hlofast.scan(folder, folder.parent / "out")
    sources = {
        "scan": hlofast.scan(folder)["collectives"].to_pylist(),
        "dataset": dataset["collectives"].to_pylist(),
        "SQL": dataset.query("FROM collectives").to_pylist(),
    }
    for path in folder.iterdir():
        loaded = hlofast.load(path).collectives().to_pylist()
        assert [row["axes"] for row in loaded] == [NAMED[path.name[:13]]]
        for source, rows in sources.items():
            own = [row for row in rows if row["path"] == str(path)]
            shared = [{key: row[key] for key in loaded[0]} for row in own]
            assert shared == loaded, (source, path)


@pytest.mark.parametrize("workers", [1, 4])
def test_files_with_equal_bytes_have_the_names_of_their_program(folder: Path, workers: int) -> None:
    scan = hlofast.scan(folder, workers=workers)
    assert axes(scan) == NAMED
    meshes = {row["program"]: row["mesh"] for row in scan["modules"]}
    assert meshes == {
        "module_0001.f": "data=2,model=4",
        "module_0002.f": "rows=2,columns=4",
        "module_0003.f": "axis_0=2,axis_1=4",
    }


def test_executors_find_the_same(folder: Path) -> None:
    local = hlofast.scan(folder)
    for make in (processes, lambda: ThreadPoolExecutor(2)):
        with make() as executor:
            # A task per file: the module before optimisation is in another one.
            scan = hlofast.scan(folder, executor=executor, batch_bytes=1)
        assert axes(scan) == NAMED
        assert str(scan["collectives"].to_pylist()) == str(local["collectives"].to_pylist())


def test_a_module_renumbered_after_optimisation(tmp_path: Path) -> None:
    (tmp_path / "module_0001.jit_f.before_optimizations.txt").write_text(BEFORE)
    path = tmp_path / "module_0004.jit_f.after_optimizations.txt"
    path.write_text(TEXT)
    for scan in (hlofast.scan(tmp_path), hlofast.scan(tmp_path, executor=ThreadPoolExecutor(1))):
        assert axes(scan) == {"module_0004.jit_f": "model"}
    assert [row["axes"] for row in hlofast.load(path).collectives()] == ["model"]


def test_a_resumed_scan_notices_names(folder: Path) -> None:
    before = folder / "module_0001.f.before_optimizations.txt"
    assert axes(resumed(folder)) == NAMED
    again = resumed(folder)
    assert again.counts["unchanged"] == 8
    # The size stays the same: only the names differ.
    before.write_text(BEFORE.replace("model", "lodem"))
    found = resumed(folder)
    assert (found.counts["read"], found.counts["unchanged"]) == (3, 5)
    assert axes(found) == NAMED | {"module_0001.f": "lodem"}
    before.unlink()
    assert axes(resumed(folder)) == NAMED | {"module_0001.f": "axis_1"}
    (folder / "module_0003.f.before_optimizations.txt").write_text(OTHER)
    with ThreadPoolExecutor(2) as executor:
        found = resumed(folder, executor=executor, batch_bytes=1)
    assert axes(found)["module_0003.f"] == "columns"
    assert axes(resumed(folder)) == axes(hlofast.scan(folder))
    # What changes there without changing the mesh does not matter.
    (folder / "module_0003.f.before_optimizations.txt").write_text(OTHER + "\n")
    assert resumed(folder).counts["unchanged"] == 7


def test_a_given_mesh_or_a_misfit_leaves_names_out(folder: Path) -> None:
    assert set(axes(hlofast.scan(folder, mesh="x=2,y=4")).values()) == {"y"}
    before = folder / "module_0001.f.before_optimizations.txt"
    for text in ("no module", BEFORE.replace('"data"=2', '"data"=3'), TEXT, "", "HloModule f"):
        before.write_text(text)
        assert axes(hlofast.scan(folder))["module_0001.f"] == "axis_1", text


@pytest.mark.parametrize("form", ["gzip", "xz", "long", "long and gzip", "proto"])
def test_forms_of_the_module_before_optimisation(folder: Path, form: str) -> None:
    text = folder / "module_0001.f.before_optimizations.txt"
    names = "".join(f'value_{number}_{number * 7919:x}="1",' for number in range(9_000))
    long = BEFORE.replace("frontend_attributes={", f"frontend_attributes={{{names}")
    assert len(long) > 1 << 17
    match form:
        case "long":
            text.write_text(long)
        case "gzip" | "xz" | "long and gzip":
            data = (long if "long" in form else BEFORE).encode()
            packed = lzma.compress(data) if form == "xz" else gzip.compress(data)
            text.with_name(f"{text.name}.{'xz' if form == 'xz' else 'gz'}").write_bytes(packed)
            text.unlink()
        case "proto":
            text.with_name("module_0001.f.before_optimizations.hlo.pb").write_bytes(
                hlofast.loads(BEFORE).to_proto()
            )
            text.unlink()
    assert axes(hlofast.scan(folder)) == NAMED
    loaded = hlofast.load(folder / "module_0001.f.after_optimizations.txt")
    assert [row["axes"] for row in loaded.collectives()] == ["model"]


class Listing:
    """Files of a folder whose bytes come from Python, as those of object stores do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reads: list[tuple[str, int]] = []

    def scan(self) -> hlofast.Scan:
        def read(path: str, most: int) -> bytes:
            self.reads.append((Path(path).name, most))
            return Path(path).read_bytes()[:most]

        entries = [(str(path), path.stat().st_size, 0, None) for path in self.folder.iterdir()]
        survey = _core._survey_listing(entries, [str(self.folder)], read)
        return hlofast._scan.Scanner((), workers=1).scan(survey)


def test_one_more_read_per_program_and_none_without_need(folder: Path) -> None:
    listing = Listing(folder)
    assert axes(listing.scan()) == NAMED
    before = [name for name, most in listing.reads if most == 1 << 16]
    assert sorted(before) == [f"{stem}.before_optimizations.txt" for stem in sorted(NAMED)[:2]]
    assert len(listing.reads) == 8 + 2
    for path in folder.glob("*.txt"):
        path.write_text(BEFORE)
    listing = Listing(folder)
    assert set(axes(listing.scan()).values()) == {"model"}
    assert len(listing.reads) == 8


def test_object_stores(folder: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    for path in folder.iterdir():
        store.pipe_file(f"/axes/{path.name}", path.read_bytes())
    out = folder.parent / "out"
    scan = hlofast.scan("memory://axes", out, format="jsonl")
    assert axes(scan) == NAMED
    store.pipe_file("/axes/module_0003.f.before_optimizations.txt", OTHER.encode())
    assert axes(hlofast.scan("memory://axes", out, format="jsonl"))["module_0003.f"] == "columns"


def test_only_files_without_names_depend_on_others(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    folder.mkdir()
    (folder / "module_0001.f.after_optimizations.txt").write_text(BEFORE)
    (folder / "module_0002.g.after_optimizations.txt").write_text(f"{HEADER}\n{BODY}")
    resumed(folder)
    lines = (tmp_path / "out" / "hlofast-manifest.jsonl").read_text().splitlines()
    batches = [batch for line in lines for batch in json.loads(line).get("add", ())]
    states = {
        Path(path).name[:13]: state for own in batches for path, state in own["files"].items()
    }
    assert "~" not in states["module_0001.f"]
    assert states["module_0002.g"].endswith("~")


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_mesh_is_not_used_for_modules_of_other_devices(folder: Path, is_stored: bool) -> None:
    """Verbs refuse a mesh of another number of devices; a scan leaves its modules their own."""
    out = folder.parent / "out" if is_stored else None
    own = axes(hlofast.scan(folder))
    fits = hlofast.scan(folder, out, format="jsonl", mesh="rows=2,columns=4")
    assert set(axes(fits).values()) == {"columns"}
    assert "mesh" not in {note.code for note in fits.notes}
    other = hlofast.scan(folder, out, format="jsonl", mesh="rows=3")
    assert axes(other) == own == NAMED
    (note,) = [note for note in other.notes if note.code == "mesh"]
    assert note.text.startswith("mesh rows=3 has 3 devices; 8 modules are for another number")
