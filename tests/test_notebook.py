"""Notebooks: results as compact HTML, charts and pages in frames; docs/notebook.ipynb runs."""

import ast
import importlib.util
import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import CHECKOUT
from figures_read import Tables, agrees, unexplained
from hlofast import _text
from hlofast._result import Result
from hlofast.table import Table

NOTEBOOK = CHECKOUT / "docs" / "notebook.ipynb"
HOSTILE = """\
HloModule hostile, is_scheduled=true

ENTRY main {
  a = f32[64,64]{1,0} parameter(0), metadata={op_name="</script><img src=x onerror=alert(1)>"}
  ROOT b = f32[64,64]{1,0} dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/</iframe><script>alert(2)</script>/$$x$$/dot" source_file="\\"><svg onload=alert(3)>.py" source_line=1}
}
"""
DONE = "body[data-state=complete]"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The executed notebook and the folder in which it ran."""
    for package in ("nbclient", "ipykernel", "bokeh"):
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location("notebooks", CHECKOUT / "docs" / "notebooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("notebook")
    return module.executed(str(folder)), folder


def code_cells(notebook: Any) -> list[tuple[str, list[Any]]]:
    return [(cell.source, cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]


def html_of(outputs: list[Any]) -> str:
    return "".join(output.data.get("text/html", "") for output in outputs if "data" in output)


def test_it_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    assert NOTEBOOK.stat().st_size < 10_000


def test_every_cell_runs_and_shows_something(notebook: tuple[Any, Path]) -> None:
    for source, outputs in code_cells(notebook[0]):
        assert outputs, source
        errors = [output.text for output in outputs if output.get("name") == "stderr"]
        # `Module.memory` warns of what the note in its HTML says too.
        assert all("have no layout" in text for text in errors), source
        assert source.startswith("!") or html_of(outputs), source


def check_table(shown: tuple[str, str, list[list[str]]], table: Table, module: Any) -> int:
    """Compare the cells of a table of HTML with the values; returns the number of cells."""
    _, _, (heads, *rows) = shown
    fields = {_text.heading_of(field): field for field in reversed(table.fields)}
    for at, head in enumerate(heads):
        field = fields[head]
        values = table.values(field.name)
        assert len(rows) == min(len(values), len(rows)) and rows
        for row, value in zip(rows, values):
            assert agrees(row[at], field, value, module), (head, row[at], value)
    return len(heads) * len(rows)


def test_figures_are_those_of_the_python_api(
    notebook: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cells run here too; what they return is compared with what the notebook shows."""
    monkeypatch.chdir(notebook[1])
    scope: dict[str, Any] = {}
    facts = cells = 0
    for source, outputs in code_cells(notebook[0]):
        if source.startswith("!"):
            continue
        *before, last = ast.parse(source).body
        assert isinstance(last, ast.Expr)
        exec(compile(ast.Module(before, []), "cell", "exec"), scope)
        if ".plot." in source or "report" in source:
            continue
        with pytest.warns() if "memory()" in source else nullcontext():
            result = eval(compile(ast.Expression(last.value), "cell", "eval"), scope)
        tables = Tables(html_of(outputs)).tables
        if isinstance(result, Table):
            (shown,) = tables
            cells += check_table(shown, result, None)
            continue
        assert isinstance(result, Result)
        ((kind, _, rows), *others) = tables
        assert kind == "facts"
        assert unexplained(result, [(label, text) for label, text, _ in rows]) == []
        provenances = {fact.field.label: fact.provenance for fact in result.facts}
        assert all(how in ("", provenances.get(label)) for label, _, how in rows)
        assert sum(bool(how) for _, _, how in rows) >= 1
        facts += len(rows)
        sections = {section.title: section.table for section in result.sections()}
        for shown in others:
            table = sections[re.sub(r" \((?:first .* of )?[\d,]+ rows?\)$", "", shown[1])]
            cells += check_table(shown, table, result._module)
    assert facts > 60 and cells > 300


def test_tables_say_how_many_rows_and_columns_are_left_out() -> None:
    module = hlofast.load(CHECKOUT / "tests/fixtures/train_step.after_optimizations.txt")
    table = module.collectives().tables["collectives"]
    html = table._repr_html_()
    ((_, caption, rows),) = Tables(html).tables
    assert caption == f"first 10 of {len(table)} rows"
    assert len(rows) == 11
    (left_out,) = re.findall(r"further columns: ([^<]+)<", html)
    shown = [
        _text.heading_of(field) for field in table.fields if _text.says_something(table, field.name)
    ]
    assert sorted(rows[0] + left_out.split(", ")) == sorted(shown)


def written(path: Path, outputs: list[str], paper: str, ink: str) -> Path:
    """A page with outputs, in the colours of a notebook."""
    style = f"body{{margin:0 24px;background:{paper};color:{ink};font:14px sans-serif}}"
    body = "".join(f"<div>{output}</div>" for output in outputs)
    path.write_text(
        f"<!DOCTYPE html><html><head><meta charset=utf-8><title>n</title><style>{style}</style>"
        f"</head><body>{body}</body></html>"
    )
    return path


@pytest.mark.parametrize(
    ("paper", "ink"), [("rgb(255, 255, 255)", "#222"), ("rgb(17, 24, 39)", "#e5e7eb")]
)
def test_it_shows_in_the_colours_around_it(
    notebook: tuple[Any, Path], browser: Any, tmp_path: Path, paper: str, ink: str
) -> None:
    outputs = [html for _, own in code_cells(notebook[0]) if (html := html_of(own))]
    page = written(tmp_path / "page.html", outputs, paper, ink)
    is_dark = paper != "rgb(255, 255, 255)"
    for width in (1440, 420):
        opened = browser.open(
            page,
            until="iframe",
            viewport={"width": width, "height": 900},
            color_scheme="light" if is_dark else "dark",  # Of the system, unlike the notebook.
        )
        frames = opened.page.frames[1:]
        assert len(frames) == 5
        for frame in frames:
            frame.wait_for_selector(DONE, state="attached")
        charts, report = frames[:-1], frames[-1]
        for frame in charts:
            frame.wait_for_function(
                "paper => getComputedStyle(document.body).backgroundColor === paper", arg=paper
            )
            # Waited for: BokehJS lays a chart out again after it has drawn it.
            frame.wait_for_function("document.documentElement.scrollHeight <= innerHeight")
        theme = "dark" if is_dark else "light"
        report.wait_for_function(
            "theme => document.documentElement.dataset.theme === theme", arg=theme
        )
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        wide = opened.page.evaluate(
            "Math.max(...[...document.querySelectorAll('table')].map((own) => own.offsetWidth))"
        )
        assert wide <= 1300
        colours = opened.page.evaluate(
            "[...document.querySelectorAll('td')].map((own) => getComputedStyle(own).color)"
        )
        assert set(colours) == {"rgb(229, 231, 235)" if is_dark else "rgb(34, 34, 34)"}
        assert [url for url in opened.requests if not url.startswith(("file:", "about:"))] == []
        assert [said for said in opened.errors if "bokeh" not in said] == []


def test_hostile_names_stay_text(browser: Any, tmp_path: Path) -> None:
    module = hlofast.loads(HOSTILE)
    plots = [module.plot.memory(), module.plot.roofline("tpu-v5e"), module.plot.scopes()]
    results = [module.summary(), module.cost(), module.matmuls(), module.cost().by("scope")]
    shown = [own._repr_html_() for own in (*results, *plots, module.report())]
    for html in shown:
        assert "<img" not in html and "<svg" not in html
        assert html.count("<script") == html.count("<iframe")
    opened = browser.open(written(tmp_path / "page.html", shown, "#fff", "#000"), until="iframe")
    for frame in opened.page.frames[1:]:
        frame.wait_for_selector(DONE, state="attached")
    assert [said for said in opened.errors if "bokeh" not in said] == []
    assert opened.page.evaluate("document.images.length") == 0
