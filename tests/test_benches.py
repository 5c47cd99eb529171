"""The quick benches run, tables show the recorded results, generated texts have the given size."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import hlofast
from conftest import CHECKOUT


def bench_module(name: str) -> ModuleType:
    """A file of `benches`, which is no package and needs no JAX for this."""
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / "benches" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


bench_module("rows")
table = bench_module("table")
generate = bench_module("generate")


def run_quick(folder: Path, *arguments: str) -> str:
    """What `pytest benches` prints in `folder`, in a process of its own as users run it."""
    pytest.importorskip("pytest_benchmark")
    command = [sys.executable, "-P", "-m", "pytest", str(CHECKOUT / "benches"), "-p", "no:xdist"]
    own = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [*command, *arguments], cwd=folder, env=own, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_quick_benches_run(tmp_path):
    """Without jaxlib the rows of XLA are skipped, and the reason is shown."""
    shown = run_quick(tmp_path, "--benchmark-disable")
    assert "45 passed" in shown or ("34 passed, 11 skipped" in shown and "jaxlib is not" in shown)


def test_quick_benches_take_own_dumps_and_compare_runs(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    text = "HloModule m\n\nENTRY e {\n  ROOT x = f32[2] constant({1, 2})\n}"
    (folder / "small.txt").write_text(text)
    (folder / "notes.txt").write_text("no module\n")
    (folder / "newer.txt").write_text(text.replace("constant({1, 2})", "opcode_of_tomorrow()"))
    arguments = (f"--dumps={folder}", "-k", "bench_parse", "--benchmark-max-time=0.001")
    run_quick(tmp_path, *arguments, "--benchmark-save=old")
    shown = run_quick(tmp_path, *arguments, "--benchmark-compare")
    assert "bench_parse[small.txt-hlofast] (NOW)" in shown
    assert "bench_parse[small.txt-hlofast] (0001_old)" in shown
    (saved,) = (tmp_path / ".benchmarks").rglob("0001_old.json")
    rows = json.loads(saved.read_text())["benchmarks"]
    peers = {"xla"} if importlib.util.find_spec("jaxlib") else set()
    small, newer = (
        [row for row in rows if row["group"] == f"parse: {name}, 0.0 MB"]
        for name in ("small.txt", "newer.txt")
    )
    assert {row["params"]["who"] for row in small} == {"hlofast", "hlofast_strict"} | peers
    assert [row["params"]["who"] for row in newer] == ["hlofast"]
    assert "strict parsing refuses newer.txt: " in shown
    assert "XLA does not read newer.txt: " in shown or not peers
    for row in small:
        assert row["extra_info"]["bytes"] == len(text)
        rate = len(text) / 1e6 / row["stats"]["min"]
        assert row["extra_info"]["MB/s"] == pytest.approx(rate, abs=0.01)


def test_pages_show_the_recorded_results():
    for path, text in table.pages().items():
        assert path.read_text() == text


def test_every_recorded_figure_has_words_of_its_own():
    results = {result["name"]: result for result in table.load()}
    assert results.keys() == {section.result for section in table.SECTIONS}
    for section in table.SECTIONS:
        for row, figure in table.matched(section, results[section.result]):
            assert row in section.rows, figure["what"]


def test_results_say_where_when_and_of_what():
    for result in table.load():
        assert result["schema"] == "hlofast.benches"
        assert not result["quick"], "quick runs are not recorded"
        assert result["machine"]["cpu"] and result["machine"]["cores"] >= 1
        assert result["versions"]["hlofast"] != "absent"
        assert result["commit"] != "unknown"
        assert result["figures"]


def test_results_judge_their_figures_truly():
    for result in table.load():
        for figure in result["figures"]:
            least, most = figure["at_least"], figure["at_most"]
            met = (least is None or figure["measured"] >= least) and (
                most is None or figure["measured"] <= most
            )
            assert figure["met"] == met, figure["what"]


def test_table_names_what_is_open():
    """Figures without a row of their own keep their recorded words."""
    figure = {"what": "w", "unit": "×", "at_least": 2, "at_most": None, "note": ""}
    run = {
        "name": "startup", "date": "d", "commit": "c", "machine": {"cpu": "p", "cores": 2},
        "versions": {"python": "3"}, "details": [],
    }  # fmt: skip
    shown = [figure | {"measured": 1.5, "met": False}, figure | {"measured": 25, "met": True}]
    text = table.table([run | {"figures": shown}])
    assert "| w |  |  | 1.50× | ≥ 2× | **open** |" in text
    assert "| w |  |  | 25.0× | ≥ 2× | yes |" in text
    assert text.startswith("1 of 2 targets are missed:\n\n* Start of a process: w:")
    assert "1 of 2 targets are missed" in table.front_table([run | {"figures": shown}])
    with pytest.raises(ValueError, match="lacks"):
        table.between("no markers", "text")


@pytest.mark.parametrize(
    ("kind", "size", "instructions", "computations"),
    [
        ("instructions", 1000, 1000, 42),
        ("giant", 500, 500, 1),
        ("similar", 1200, 1200, 12),
        ("untyped_tuple", 50, 51, 1),
        ("typed_tuple", 30, 31, 1),
        ("header_line", 5000, 2, 1),
    ],
)
def test_generated_texts_have_the_size_asked_for(kind, size, instructions, computations):
    text = generate.text(kind, size)
    for strict in (False, True):
        module = hlofast.loads(text, strict=strict)
        assert module.instruction_count == instructions
        assert len(module.computations) == computations
    assert len(text.partition(b"\n")[0]) >= (size if kind == "header_line" else 0)
