"""Tables in terminals of any width: the name, the main figure and the source are in every row."""

import gzip
import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import check_programs
import hlofast
from conftest import FIXTURES
from hlofast import _text
from hlofast._layout import FIGURE, NAME, SOURCE, file_of, roles
from hlofast._result import Section
from hlofast.cli import main

WIDTHS = (80, 100, 120, 200)
PROGRAMS = (
    FIXTURES / "train_step.after_optimizations.txt",
    FIXTURES / "dumps" / "cpu_collectives.after.txt.gz",
    FIXTURES / "dumps" / "cpu_attention.before.txt.gz",
    FIXTURES / "dumps" / "cpu_train_step.after.txt.gz",
    FIXTURES / "dumps" / "cpu_convolution_kinds.after.txt.gz",
)
ANALYSES = ("matmuls", "collectives", "remat", "memory", "cost", "time", "summary", "lint")


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def results() -> dict[tuple[Path, str], Any]:
    by_place = {}
    for path in PROGRAMS:
        module = hlofast.load(path, device="tpu-v5e")
        by_place |= {(path, name): getattr(module, name)() for name in ANALYSES}
        by_place[path, "diff"] = module.diff(hlofast.load(PROGRAMS[3]))
    return by_place


def printed(result: Any, section: Section, width: int | None) -> list[str]:
    stream = Terminal()
    printer = _text.Printer(stream)
    printer.colour, printer.width = False, width
    printer.section(section, result._module, 10)
    return stream.getvalue().splitlines()


def tables(sections: Iterable[Section]) -> Iterator[tuple[Section, list[str]]]:
    """The sections that are printed as tables, with their columns."""
    for section in sections:
        columns = [own for own in section.columns if _text.says_something(section.table, own)]
        if section.paragraphs is None and len(section.table) and columns:
            yield section, columns


def is_readable(result: Any, section: Section, columns: list[str], width: int) -> None:
    """Fails unless name, main figure and source are whole in every row."""
    lines = printed(result, section, width)
    fields = [section.table.field(own) for own in columns]
    named = roles(fields, section.figure, section.named)
    kept = [
        (field, role)
        for field, role in zip(fields, named, strict=True)
        if role in (NAME, FIGURE, SOURCE)
    ]
    assert max(map(len, lines)) <= width, section.name
    for row in list(section.table.top(10)):
        cells = [(_text.cell(field, row[field.name], result._module), role) for field, role in kept]
        wanted = [file_of(cell) if role == SOURCE else cell for cell, role in cells]
        if sum(len(cell) + 2 for cell in wanted) > 70:
            continue  # It does not fit, so that names lose their middle.
        whole = any(all(cell in line for cell in wanted) for line in lines)
        assert whole, (section.name, wanted, lines)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_every_row_has_its_name_figure_and_source(
    results: dict[tuple[Path, str], Any], path: Path, width: int
) -> None:
    shown = 0
    for name in (*ANALYSES, "diff"):
        result = results[path, name]
        for section, columns in tables(result.sections()):
            is_readable(result, section, columns, width)
            shown += 1
    assert shown > 10


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Results of verbs over instructions, pipelines, passes, folders and declarations."""
    folder = tmp_path_factory.mktemp("passes")
    with tarfile.open(FIXTURES / "passes.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    shown = []
    for path in PROGRAMS:
        module = hlofast.load(path, device="tpu-v5e")
        firsts = {one.opcode: one for own in module.computations for one in own.instructions}
        shown += [module.show(f"{one.computation.name}/{one.name}") for one in firsts.values()]
        shown += [module.show(own.name) for own in module.computations]
    text = gzip.decompress((FIXTURES / "seedlike" / "pipeline_stage.txt.gz").read_bytes()).decode()
    longer = text.replace("layer_1", "transformer_layers_1_to_4")
    assert longer != text
    checks = []
    for name, changes in {
        "decoder_cpu_2x4": {},
        "decoder_cpu_2x2x2": {"heads": 4},
        "accumulated_v6e_8": {"accumulate": 2},
        "decoder_cpu_8": {"layers": 3},
        "decoder_v5p_2": {"remat": "names"},
    }.items():
        declared = hlofast.Declaration.loads(check_programs.toml(name, **changes))
        program = hlofast.load(FIXTURES / "sharded" / f"{name}.txt.gz")
        checks.append(hlofast.check(declared, program))
    return {
        "show": shown,
        "stages": [hlofast.loads(own).stages() for own in (text, longer)],
        "history": [hlofast.history(folder)],
        "scan": [hlofast.scan(FIXTURES / "dumps"), hlofast.scan(FIXTURES / "dump_folders")],
        "check": checks,
    }


KEPT = {
    ("stages", "sections"): ("section", "product_flops"),
    ("stages", "stash"): ("name", "bytes", "source"),
    ("history", "steps"): ("step", "pass", "flops"),
    ("scan", "programs"): ("program", "flops"),
    ("scan", "failures"): ("path", "line"),
    ("check", "agreeing"): ("subject", "compiled"),
    ("check", "collective_axes"): ("subject", "bytes"),
}
"""Columns that identify and measure a row, whatever the order of columns."""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("verb", ["show", "stages", "history", "scan", "check"])
def test_so_have_those_of_other_verbs(others: dict[str, list[Any]], verb: str, width: int) -> None:
    shown = 0
    for result in others[verb]:
        for section, columns in tables(result.every_section()):
            is_readable(result, section, columns, width)
            kept = KEPT.get((verb, section.name), ())
            heads = " ".join(printed(result, section, width)[1:4])
            assert all(
                _text.heading_of(section.table.field(own)).split()[0] in heads for own in kept
            )
            shown += 1
    assert shown >= {"history": 1, "scan": 2}.get(verb, 5)


@pytest.mark.parametrize("verb", ["matmuls", "collectives", "memory", "remat", "top", "verdict"])
def test_commands_know_the_width(
    verb: str, train_step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = {}
    for width in WIDTHS:
        stream = Terminal()
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr("sys.stdout", stream)
        options = ["--plain"] if verb == "top" else []
        assert main([verb, str(train_step), *options]) == 0
        shown[width] = stream.getvalue()
    # Paths and commands stay whole, for copying.
    broken = [line for line in shown[80].splitlines() if str(train_step) not in line]
    assert max(map(len, broken)) <= 80
    left_out = [text.count("not shown at this width") for text in shown.values()]
    assert left_out[0] >= left_out[-1]


def table(width: int, names: list[str], *, source: str = "layers/attention.py:12") -> list[str]:
    fields = (
        hlofast._core.Field("instruction", "name", "The name."),
        hlofast._core.Field("word", "kind", "The kind."),
        hlofast._core.Field("flops", "flops", "The figure."),
        hlofast._core.Field("path", "source", "The source."),
    )
    stream = Terminal()
    printer = _text.Printer(stream)
    printer.colour, printer.width = False, width
    rows = [(name, "convolution_as_dot", _text.Figure(10**15), source) for name in names]
    headings = [field.name for field in fields]
    printer.table("Title", headings, rows, len(rows), roles(fields))
    return stream.getvalue().splitlines()


def test_names_lose_their_middle_only_when_nothing_else_is_left() -> None:
    name = "convolution_bitcast_fusion_of_a_long_name.1234"
    for width in range(45, 120):
        lines = table(width, [name, "a.1"])
        row = next(line for line in lines if ".1234" in line)
        assert len(row) <= width
        assert "1000000000000000" in row
        assert ".py:12" in row
        if width >= len(name) + 16 + 15 + 4:
            assert name in row
        assert row.startswith("convol")
    assert "layers/" in table(200, [name])[-1]


def test_a_source_keeps_file_and_line() -> None:
    lines = table(60, ["convolution.1"], source="/very/long/folder/of/a/package/attention.py:1234")
    assert "attention.py:1234" in lines[3]
    assert lines[-1] == "not shown at this width: kind"
