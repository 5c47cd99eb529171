"""The recorded results of the benches, the table made from them, and the texts they generate."""

import importlib.util
import sys
from types import ModuleType

import pytest

import hlofast
from conftest import CHECKOUT

pytestmark = pytest.mark.once


def bench_module(name: str) -> ModuleType:
    """A file of `benches`, which is no package and needs no JAX for this."""
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / "benches" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    spec.loader.exec_module(module)
    return module


table = bench_module("table")
generate = bench_module("generate")


def test_readme_shows_the_recorded_results():
    readme = table.README.read_text()
    assert readme == table.with_table(readme, table.load())


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


def test_table_marks_what_was_missed():
    figure = {"what": "w", "unit": "×", "at_least": 2, "at_most": None, "note": ""}
    run = {
        "name": "n", "date": "d", "commit": "c", "machine": {"cpu": "p", "cores": 2},
        "versions": {"python": "3"},
    }  # fmt: skip
    shown = [figure | {"measured": 1.5, "met": False}, figure | {"measured": 25, "met": True}]
    text = table.table([run | {"figures": shown}])
    assert "| w | ≥ 2 | 1.50× (missed) |" in text
    assert "| w | ≥ 2 | 25.0× |" in text
    with pytest.raises(ValueError, match="lacks"):
        table.with_table("no markers", [])


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
