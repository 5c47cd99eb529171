"""`hlofast lint`: findings for people, as JSON and as exit codes."""

from pathlib import Path
from typing import Any

import pytest

import hlofast
import lint_programs as programs
from conftest import Seeds
from lint_programs import ADD
from test_cli import TWO_MODULES, document, hlofast_command

pytestmark = pytest.mark.once


def write(path: Path, body: str) -> Path:
    path.write_text(f"HloModule m, num_partitions=4\n\n{ADD}\n\nENTRY e {{\n{body}\n}}\n")
    return path


@pytest.fixture
def sliced(tmp_path: Path) -> Path:
    return write(tmp_path / "sliced.txt", programs.SLICED_REDUCTION)


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return write(tmp_path / "clean.txt", "ROOT p = f32[8] parameter(0)")


def only(*arguments: str | Path) -> Any:
    (module,) = document("lint", *arguments)["modules"]
    return module


def test_document_is_the_python_object(sliced: Path) -> None:
    module = only(sliced)
    findings = hlofast.load(sliced).lint()
    assert module["status"] == "partitioned"
    assert module["options"] == findings.options
    assert module["counts"] == findings.counts() == {"missed-reduce-scatter": 1}
    (printed,) = module["findings"]
    expected = findings[0].to_dict()
    names = expected.pop("names")
    assert [row["name"] for row in printed["instructions"]] == list(names)
    rows = expected.pop("instructions")
    assert [row["instruction"] for row in printed.pop("instructions")] == list(rows)
    assert printed | {"phases": tuple(printed["phases"])} == expected


def test_for_people(sliced: Path, clean: Path) -> None:
    done = hlofast_command("lint", "--mesh", "model=4", sliced)
    assert done.returncode == 0
    for shown in (
        "missed-reduce-scatter: 6,144 B wire",
        "over model (4 devices)",
        "change: constrain the result",
        "shown by: r, part",
        "min share 0.001",
        "partitioned: compilers may yet change",
    ):
        assert shown in done.stdout
    assert "none" in hlofast_command("lint", clean).stdout


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ("missed-reduce-scatter", 1),
        ("one-hot-matmul,missed-reduce-scatter", 1),
        ("any", 1),
        ("one-hot-matmul", 0),
        ("colour", 2),
    ],
)
def test_fail_on(sliced: Path, clean: Path, codes: str, expected: int) -> None:
    done = hlofast_command("lint", sliced, clean, "--fail-on", codes)
    assert done.returncode == expected
    if expected == 1:
        assert "found: missed-reduce-scatter" in done.stderr
    if expected == 2:
        assert "colour" in done.stderr
    quiet = hlofast_command("lint", clean, "--fail-on", codes)
    assert quiet.returncode == (2 if expected == 2 else 0)


def test_failed_codes_in_json(sliced: Path) -> None:
    printed = document("lint", sliced, "--fail-on", "any")
    assert printed["failed"] == ["missed-reduce-scatter"]
    assert document("lint", sliced)["failed"] == []


def test_what_cannot_be_read_comes_first(sliced: Path) -> None:
    done = hlofast_command("lint", "no such file", sliced, "--fail-on", "any")
    assert done.returncode == 3


def test_thresholds(sliced: Path) -> None:
    assert only(sliced, "--min-share", "0.6")["findings"] == []
    assert hlofast_command("lint", sliced, "--min-share", "-1").returncode == 2
    assert hlofast_command("lint", sliced, "--min-share", "nan").returncode == 2
    assert hlofast_command("lint", sliced, "--mesh", "model").returncode == 2


def test_codes_are_described(sliced: Path) -> None:
    shown = hlofast_command("lint", "--help").stdout
    for code in hlofast.Findings.CODES:
        assert f"  {code} " in shown


def test_several_modules(tmp_path: Path) -> None:
    path = tmp_path / "page.txt"
    path.write_text(TWO_MODULES)
    modules = document("lint", path)["modules"]
    assert [module["findings"] for module in modules] == [[], []]


def test_seeds(seeds: Seeds) -> None:
    found = {
        "001": {"low-precision-in-f32": 1, "widened-weights-kept": 1},
        "002": {
            "one-hot-matmul": 1,
            "recomputed-collectives": 1,
            "replicated-parameter": 1,
            "reduced-twice": 1,
        },
        "003": {"missed-reduce-scatter": 1},
    }
    for number, counts in found.items():
        assert only(seeds.path(number))["counts"] == counts
    assert hlofast_command("lint", seeds.path("003"), "--fail-on", "any").returncode == 1
