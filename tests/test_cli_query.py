"""`hlofast query`: what it prints, its JSON, its files, its exit codes."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from hlofast._scan.query import Query
from test_cli import document, hlofast_command, without_reader

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")


DUMPS = FIXTURES / "dump_folders" / "cpu"
MODULES = "SELECT stage, flops, step, is_scheduled FROM modules ORDER BY path, line"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("query") / "tables"
    hlofast.scan(DUMPS, out, format="jsonl")
    return out


def asked(*arguments: str | Path) -> Any:
    """The tables of an answer, as JSON has it."""
    (result,) = document("query", *arguments)["results"]
    return result["tables"]


def test_rows_are_printed(dataset: Path) -> None:
    done = hlofast_command("query", dataset, MODULES, "--top", "2")
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "First 2 rows"
    assert lines[5] == "note: there are more rows: --top 0 gives all"
    assert lines[1].split() == ["stage", "flops", "step"]
    flops = hlofast.open_dataset(dataset).query(MODULES)["flops"].tolist()
    assert f"{flops[0]:,}" in lines[2]
    assert lines[4] == "" and lines[6:] == [""]


def test_the_document_keeps_to_its_schema(dataset: Path) -> None:
    printed = asked(dataset, MODULES)
    assert [column["type"] for column in printed["columns"]] == [
        "VARCHAR",
        "BIGINT",
        "BIGINT",
        "BOOLEAN",
    ]
    table = hlofast.open_dataset(dataset).query(MODULES)
    assert [row["flops"] for row in printed["rows"]] == table["flops"].tolist()
    assert None in [row["step"] for row in printed["rows"]]
    assert not document("query", dataset, MODULES)["results"][0]["notes"]
    (cut,) = document("query", dataset, MODULES, "--top", "1")["results"]
    assert cut["name"] == MODULES and cut["tables"]["rows"] == printed["rows"][:1]
    assert [(note["code"], note["figures"]) for note in cut["notes"]] == [("cut", {"rows": 1})]


def test_lists_and_structures_stay_what_they_are(dataset: Path) -> None:
    rows = asked(dataset, "SELECT [1, 2] AS l, {'a': true} AS s, NULL AS n")["rows"]
    assert rows == [{"l": [1, 2], "s": {"a": True}, "n": None}]


def test_an_answer_says_what_the_command_prints(dataset: Path) -> None:
    with Query(hlofast.open_dataset(dataset), MODULES) as query:
        answer = query.answer()
    assert str(answer) == hlofast_command("query", dataset, MODULES).stdout.rstrip("\n")
    with Query(hlofast.open_dataset(dataset), "SELECT '<b>' AS x") as query:
        assert "&lt;b&gt;" in query.answer()._repr_html_()


def test_rows_as_files(dataset: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    expected = asked(dataset, MODULES)["rows"]
    names = [f"rows.{form}" for form in ("csv", "jsonl", "parquet")]
    for name in names:
        done = hlofast_command("query", dataset, MODULES, "-o", tmp_path / name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == expected
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist() == expected
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["flops"] for row in rows] == [str(row["flops"]) for row in expected]
    assert {row["is_scheduled"] for row in rows} <= {"true", "false"}


def test_rows_on_standard_output(dataset: Path) -> None:
    done = hlofast_command(
        "query", dataset, "-", "--format", "csv", "--top", "1", input="SELECT 1 AS a, 'b,c' AS b"
    )
    assert (done.returncode, done.stdout) == (0, 'a,b\n1,"b,c"\n')
    done = hlofast_command("query", dataset, "SELECT 1 AS a", "-o", "-")
    assert json.loads(done.stdout) == {"a": 1}


@pytest.mark.parametrize("options", [("--format", "csv"), ("-o", "-"), ("--json",), ()])
def test_a_reader_that_goes_is_no_error(dataset: Path, options: tuple[str, ...]) -> None:
    done = without_reader("query", dataset, "FROM range(100000)", "--top", "0", *options)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_files_that_cannot_be_written_are_named(dataset: Path, tmp_path: Path, ending: str) -> None:
    path = tmp_path / "none" / f"rows.{ending}"
    done = hlofast_command("query", dataset, "SELECT 1", "-o", path)
    assert done.returncode == 3
    assert done.stderr == f"hlofast: {path}: No such file or directory\n"


def test_a_query_needs_no_pyarrow(tmp_path: Path) -> None:
    hlofast.scan(DUMPS, tmp_path / "tables", tables=["modules"])
    query = "SELECT count(*) AS modules FROM modules"
    code = (
        "import sys\nsys.modules['pyarrow'] = None\nfrom hlofast.cli import main\n"
        f"sys.exit(main(['query', {str(tmp_path / 'tables')!r}, {query!r}]))"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = len(hlofast.scan(DUMPS, tables=["modules"])["modules"])
    assert done.stdout.split() == ["1", "row", "modules", str(expected)]


@pytest.mark.parametrize("absent", [("duckdb",), ("duckdb", "pyarrow")])
def test_what_is_not_installed_is_named(tmp_path: Path, absent: tuple[str, ...]) -> None:
    hlofast.scan(DUMPS, tmp_path / "tables", tables=["modules"])
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({absent!r}))\n"
        "from hlofast.cli import main\n"
        f"sys.exit(main(['query', {str(tmp_path / 'tables')!r}, 'SELECT 1']))"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "need duckdb: pip install 'hlofast[duckdb]'" in line


def test_dumps_are_scanned_first(dataset: Path) -> None:
    printed = asked(DUMPS, MODULES)
    assert printed["rows"] == asked(dataset, MODULES)["rows"]


def test_a_query_that_fails_leaves_no_file(dataset: Path, tmp_path: Path) -> None:
    sql = "SELECT error('x') FROM range(10)"
    done = hlofast_command("query", dataset, sql, "-o", tmp_path / "rows.csv")
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("{dataset}", "SELECT nope FROM modules"), 2, "LINE 1"),
        (("{dataset}", "FROM nothing"), 2, "no table 'nothing'; available tables: files"),
        (("{dataset}", "SELECT 1", "-o", "rows.txt"), 2, "--format"),
        (("{dataset}", "SELECT 1", "--format", "parquet"), 2, "-o FILE"),
        (("{dataset}", "SELECT 1", "--json", "--format", "csv"), 2, "--json"),
        (("{dataset}", "SELECT 1", "-o", "{dataset}/none/rows.csv"), 3, "No such file"),
        (("{dataset}/nowhere", "SELECT 1"), 3, "No such file"),
    ],
)
def test_what_goes_wrong(dataset: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    given = [argument.replace("{dataset}", str(dataset)) for argument in arguments]
    done = hlofast_command("query", *given)
    assert done.returncode == code
    assert said in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_what_is_no_file_is_written_into(dataset: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        sql = "SELECT 1 AS one"
        done = subprocess.run(
            [sys.executable, "-P", "-m", "hlofast", "query", dataset, sql, "-o", pipe], check=False
        )
        assert reader.stdout is not None
        assert reader.stdout.read().split() == ["one", "1"]
    assert done.returncode == 0
    assert pipe.is_fifo()


def test_files_that_cannot_be_read_are_not_passed_over(tmp_path: Path) -> None:
    """As in `scan`: the exit code says that rows are missing, and standard error how many files."""
    sql = "SELECT count(*) AS modules FROM modules"
    whole = "HloModule m\n\nENTRY e {\n  ROOT x = f32[2] parameter(0)\n}\n"
    (tmp_path / "whole.txt").write_text(whole)
    done = hlofast_command("query", tmp_path, sql)
    assert (done.returncode, done.stdout.split()[-1], done.stderr) == (0, "1", "")
    (tmp_path / "cut.txt").write_text(whole[:-20])
    done = hlofast_command("query", tmp_path, sql)
    assert (done.returncode, done.stdout.split()[-1]) == (3, "1")
    assert "1 file could not be read and is left out" in done.stderr
    (tmp_path / "none").mkdir()
    done = hlofast_command("query", tmp_path / "none", sql)
    assert (done.returncode, done.stdout.split()[-1]) == (3, "0")
    assert "no XLA dumps here; write them with" in done.stderr
