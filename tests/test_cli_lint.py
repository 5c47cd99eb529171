"""`hlofast lint`: findings for people, as JSON and as exit codes."""

import re
from pathlib import Path
from typing import Any

import pytest

import hlofast
import lint_programs as programs
from conftest import FIXTURES, Seeds
from lint_programs import ADD
from shown import check_one_source, codes, figures
from test_cli import TWO_MODULES, document, hlofast_command


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
    (module,) = document("lint", *arguments)["results"]
    return module


def counts(module: Any) -> dict[str, int]:
    return {row["code"]: row["findings"] for row in module["tables"]["codes"]}


def test_document_is_the_python_object(sliced: Path) -> None:
    module = only(sliced)
    findings = hlofast.load(sliced).lint()
    assert figures(module) == {
        "status": "partitioned",
        "findings": 1,
        "device": None,
        **findings.options,
    }
    assert counts(module) == findings.counts() == {"missed-reduce-scatter": 1}
    tables = module["tables"]
    (printed,) = tables["findings"]
    expected = findings[0].to_dict()
    evidence = [(row["finding"], row["instruction"]) for row in tables["evidence"]]
    assert evidence == [(0, name) for name in expected.pop("names")]
    assert printed["instructions"] == len(expected.pop("instructions")) == 2
    behind = {row["figure"]: row["value"] for row in tables["figures"]}
    assert behind == expected.pop("figures")
    assert printed["values"] == (", ".join(expected.pop("values")) or None)
    assert printed["called_at"] == (", ".join(expected.pop("called_at")) or None)
    assert printed["phase"] == "+".join(expected.pop("phases"))
    assert {name: printed[name] for name in expected} == expected
    assert codes(module) == {"unfinished"}


def test_one_source(sliced: Path, train_step: Path) -> None:
    for path in (sliced, train_step):
        check_one_source(hlofast.load(path).lint(), hlofast_command("lint", path).stdout)


def test_names_are_escaped_in_html() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    body = programs.SLICED_REDUCTION.replace(
        "to_apply=add", f'to_apply=add, metadata={{op_name="a" source_file="{hostile}"}}'
    )
    findings = programs.lint(body)
    assert hostile in str(findings.table()["source_file"])
    html = findings._repr_html_()
    assert "<img" not in html
    assert "<br>found: " in html and "&lt;img" in html


def test_findings_beyond_the_top_are_counted() -> None:
    path = FIXTURES / "dumps" / "tpu_decode.after.txt.gz"
    count = len(hlofast.load(path).lint())
    assert count > 2
    shown = hlofast_command("lint", path, "--top", "2").stdout
    assert (shown.count("  found: "), f"\nFindings (2 of {count})\n" in shown) == (2, True)
    shown = hlofast_command("lint", path, "--top", "0").stdout
    assert shown.count("  found: ") == count
    assert not re.search(r"^Findings \(", shown, re.M)


def test_for_people(sliced: Path, clean: Path) -> None:
    done = hlofast_command("lint", "--mesh", "model=4", sliced)
    assert done.returncode == 0
    for shown in (
        "missed-reduce-scatter: 6,144 B wire",
        "along model (4 devices)",
        "remedy: compute the matmul in shard_map",
        "evidence: r, part",
        "min share 0.001",
        "partitioned: later passes may remove",
    ):
        assert shown in " ".join(done.stdout.split())
    assert ["findings", "0"] in [
        line.split() for line in hlofast_command("lint", clean).stdout.splitlines()
    ]


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


@pytest.mark.parametrize("option", ["--fail-on", "--only"])
@pytest.mark.parametrize("codes", ["", " , "])
def test_an_option_without_codes_is_refused(sliced: Path, option: str, codes: str) -> None:
    """A script's unset variable does not switch its check off."""
    done = hlofast_command("lint", sliced, option, codes)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{option} {codes!r} names no code" in done.stderr


def test_failed_codes_with_json(sliced: Path) -> None:
    done = hlofast_command("lint", sliced, "--fail-on", "any", "--json")
    assert done.returncode == 1
    assert done.stderr == "hlofast: found: missed-reduce-scatter\n"
    assert hlofast_command("lint", sliced, "--json").stderr == ""


def test_what_cannot_be_read_comes_first(sliced: Path) -> None:
    done = hlofast_command("lint", "no such file", sliced, "--fail-on", "any")
    assert done.returncode == 3


def test_thresholds(sliced: Path) -> None:
    assert only(sliced, "--min-share", "0.6")["tables"]["findings"] == []
    assert hlofast_command("lint", sliced, "--min-share", "-1").returncode == 2
    assert hlofast_command("lint", sliced, "--min-share", "nan").returncode == 2
    assert hlofast_command("lint", sliced, "--mesh", "model").returncode == 2


def test_rules_are_described_alike_everywhere(sliced: Path) -> None:
    """What a rule finds stands in its Rust file; help and results repeat it."""
    shown = hlofast_command("lint", "--help").stdout
    assert tuple(hlofast.Findings.RULES) == hlofast.Findings.CODES
    for code, what in hlofast.Findings.RULES.items():
        assert re.search(rf"^  {code} +{re.escape(what)}$", shown, re.MULTILINE)
    (row,) = only(sliced)["tables"]["codes"]
    assert row["what"] == hlofast.Findings.RULES[row["code"]]


def test_several_modules(tmp_path: Path) -> None:
    path = tmp_path / "page.txt"
    path.write_text(TWO_MODULES)
    modules = document("lint", path)["results"]
    assert [module["tables"]["findings"] for module in modules] == [[], []]


def test_seeds(seeds: Seeds) -> None:
    by_seed = {
        "001": {"low-precision-in-f32": 1, "widened-weights-kept": 1},
        "002": {
            "one-hot-matmul": 1,
            "recomputed-collectives": 1,
            "replicated-parameter": 1,
            "reduced-twice": 1,
        },
        "003": {"missed-reduce-scatter": 1},
    }
    for number, expected in by_seed.items():
        assert counts(only(seeds.path(number))) == expected
    assert hlofast_command("lint", seeds.path("003"), "--fail-on", "any").returncode == 1
