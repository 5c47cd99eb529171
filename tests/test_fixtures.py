"""The committed fixtures are complete and agree with the scripts that made them."""

import gzip
import importlib
import json
import lzma
import pathlib
import re
import tarfile

import pytest

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
INDEX = json.loads((FIXTURES / "dumps" / "index.json").read_text())


def read(path):
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def text_path(name):
    plain = FIXTURES / f"{name}.txt"
    return plain if plain.exists() else FIXTURES / "dumps" / f"{name}.txt.gz"


def view_of(name):
    path = text_path(name)
    return json.loads(read(path.with_name(f"{name}.xla.json.gz")))


@pytest.mark.parametrize("row", INDEX["dumps"], ids=lambda row: row["name"])
def test_index_describes_the_texts(row):
    data, view = read(text_path(row["name"])), view_of(row["name"])
    assert len(data) == row["bytes"]
    assert max(map(len, data.split(b"\n"))) == row["longest_line"]
    assert data.startswith(b"HloModule " + view["module"].encode())
    assert (b"\nStackFrames\n1 {" in data) == row["has_stack_frames"]
    sizes = [len(computation["instructions"]) for computation in view["computations"]]
    assert (len(sizes), sum(sizes)) == (row["computations"], row["instructions"])
    optimised = row["stage"] == "after_optimizations"
    assert ("memory_analysis" in view) == optimised
    if optimised:
        assert view["memory_analysis"]["peak_memory_in_bytes"] > 0


def test_every_file_is_in_the_index():
    names = {row["name"] for row in INDEX["dumps"]}
    files = {path.name.removesuffix(".txt.gz") for path in (FIXTURES / "dumps").glob("*.txt.gz")}
    assert files | {"train_step.after_optimizations"} == names


def test_committed_fixtures_stay_small():
    sizes = [path.stat().st_size for path in (FIXTURES / "dumps").iterdir()]
    assert max(sizes) < 400_000
    assert sum(sizes) < 3_000_000


def test_no_text_names_the_machine_that_made_it():
    paths = [text_path(row["name"]) for row in INDEX["dumps"]]
    for path in [*paths, *FIXTURES.glob("dumps/*.pb"), *FIXTURES.glob("*/**/*.gz")]:
        assert not re.search(
            rb'"/(?!app/|host:|device:)\w|/home/|/root/|/tmp/|site-packages', read(path)
        ), path


def texts_in(path):
    """The content of a compressed file, or of each file in an archive."""
    if not path.name.endswith(".tar.xz"):
        return [lzma.decompress(path.read_bytes())]
    with tarfile.open(path) as archive:
        return [archive.extractfile(one).read() for one in archive if one.isfile()]


@pytest.mark.parametrize("folder", sorted({path.parent for path in FIXTURES.rglob("*.xz")}))
def test_no_stack_frame_names_the_machine_that_made_it(folder):
    for path in folder.glob("*.xz"):
        for text in texts_in(path):
            names = re.search(rb"\nFileNames\n.*?\n\n", text, re.DOTALL)
            assert names is None or not re.search(
                rb'"/(?!home/user/)(?:home|root|tmp|work)/', names[0]
            ), path


def test_dump_folders_hold_the_stages_of_the_train_step():
    (after,) = FIXTURES.glob("dump_folders/cpu/*.cpu_after_optimizations.txt.gz")
    assert read(after) == read(text_path("cpu_train_step.after"))
    (partitioned,) = FIXTURES.glob("dump_folders/cpu/*after_spmd-partitioning*.txt.gz")
    assert read(partitioned) == read(text_path("cpu_train_step.partitioned"))
    for backend in ("cpu", "tpu"):
        names = [path.name for path in (FIXTURES / "dump_folders" / backend).iterdir()]
        for report in ("buffer-assignment", "live-range", "memory-usage-report"):
            assert any(f"after_optimizations-{report}.txt" in name for name in names)


@pytest.mark.parametrize(
    ("name", "module", "function"),
    [
        ("pipeline_stage", "seedlike_pipeline", "pipeline_stage"),
        ("gpu_train_step", "seedlike_gpu", "gpu_step"),
    ],
)
def test_seedlike_texts_are_what_their_scripts_write(monkeypatch, name, module, function):
    monkeypatch.syspath_prepend(str(FIXTURES))
    text, facts = getattr(importlib.import_module(module), function)()
    assert read(FIXTURES / "seedlike" / f"{name}.txt.gz").decode() == text
    kept = json.loads((FIXTURES / "seedlike" / f"{name}.facts.json").read_text())
    assert kept.items() >= facts.items()
    assert kept["instructions"] == sum(facts["opcodes"].values())


@pytest.mark.parametrize("name", ["issue_page", "prefixed_log"])
def test_places_of_embedded_modules(name):
    data = read(FIXTURES / "seedlike" / f"{name}.txt.gz")
    facts = json.loads((FIXTURES / "seedlike" / f"{name}.facts.json").read_text())
    for line, offset in zip(facts["lines"], facts["offsets"]):
        assert data[offset:].startswith(b"HloModule " + facts["module"].encode())
        assert data.count(b"\n", 0, offset) == line - 1


@pytest.mark.oracle
@pytest.mark.parametrize("row", INDEX["dumps"], ids=lambda row: row["name"])
def test_views_are_what_xla_says(monkeypatch, row):
    monkeypatch.syspath_prepend(str(FIXTURES))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    xla_view = importlib.import_module("xla_view")
    fresh = json.loads(json.dumps(xla_view.view(read(text_path(row["name"])).decode())))
    kept = view_of(row["name"])
    assert {name: kept[name] for name in fresh} == fresh
