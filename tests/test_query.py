"""SQL over the tables of a scan: tables, missing tables, and forbidden statements."""

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlofast
from dump_tree import MAX_TEXT_BYTES, grow, mixed_texts
from hlofast._scan.folder import DatasetError
from hlofast._scan.query import QueryError

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")


TABLES = ("programs", "files", "modules", "collectives", "matmuls", "buffers", "remat", "lint")
FORMATS = ("parquet", "jsonl", "csv")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("query") / "dump"
    return grow(root, mixed_texts(2), hosts=1, passes=1).root


@pytest.fixture(scope="module")
def in_memory(dumps: Path) -> hlofast.Scan:
    return hlofast.scan(dumps, max_text_bytes=MAX_TEXT_BYTES)


@pytest.fixture(scope="module")
def datasets(dumps: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    # Names that are patterns and texts of SQL elsewhere.
    outs = {form: tmp_path_factory.mktemp("it's [a] *?") / form for form in FORMATS}
    for form, out in outs.items():
        hlofast.scan(dumps, out, format=form, max_text_bytes=MAX_TEXT_BYTES, batch_bytes=1 << 18)
        assert len(list(out.glob("table=modules/*"))) > 1
    return outs


@pytest.fixture(scope="module")
def dataset(datasets: dict[str, Path]) -> hlofast.Scan:
    return hlofast.open_dataset(datasets["jsonl"])


def sorted_rows(table: hlofast.Table) -> list[str]:
    # NaN is not equal to itself.
    return sorted(str(row) for row in table)


@pytest.fixture(scope="module")
def expected(in_memory: hlofast.Scan) -> dict[str, tuple[list[str], list[str]]]:
    """By table: the rows in memory, and the types that a query of them has."""
    return {
        table: (
            sorted_rows(in_memory[table]),
            in_memory.query(f"DESCRIBE {table}")["column_type"].tolist(),
        )
        for table in TABLES
    }


@pytest.mark.parametrize("form", FORMATS)
def test_a_query_sees_what_python_sees(
    datasets: dict[str, Path],
    in_memory: hlofast.Scan,
    expected: dict[str, tuple[list[str], list[str]]],
    form: str,
) -> None:
    opened = hlofast.open_dataset(datasets[form])
    assert opened.counts == in_memory.counts
    assert set(opened.tables) == set(in_memory.tables)
    for table in TABLES:
        rows, types = expected[table]
        assert sorted_rows(opened[table]) == rows
        answer = opened.query(f"SELECT * FROM {table}")
        assert answer.columns == in_memory[table].columns
        assert len(answer) == len(rows) > 0
        # Flags come as they are in tables, and empty texts as well.
        assert sorted_rows(answer) == rows
        assert opened.query(f"DESCRIBE {table}")["column_type"].tolist() == types


def test_to_arrow_has_the_types_of_memory(
    datasets: dict[str, Path], in_memory: hlofast.Scan
) -> None:
    def types(scan: hlofast.Scan, table: str) -> list[str]:
        return [str(kind).removeprefix("large_") for kind in scan.to_arrow(table).schema.types]

    for form in FORMATS:
        opened = hlofast.open_dataset(datasets[form])
        for table in TABLES:
            assert types(opened, table) == types(in_memory, table)


def test_tables_without_rows_have_columns(dumps: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }\n")
    for out in (None, tmp_path / "out"):
        scanned = hlofast.scan(
            tmp_path / "in", out, tables=["modules", "collectives"], format="csv"
        )
        assert scanned.query("SELECT count(*) AS n, sum(payload) FROM collectives").row(0) == {
            "n": 0,
            "sum(payload)": None,
        }
        assert scanned.query("SELECT name FROM collectives").columns == ("name",)
        assert len(scanned["collectives"]) == 0 and "payload" in scanned["collectives"]
        with pytest.raises(ValueError, match="scan did not include it"):
            scanned.query("FROM matmuls")


def test_values_of_the_answer(dataset: hlofast.Scan) -> None:
    table = dataset.query(
        "SELECT 1 AS a, 2 AS a, NULL AS n, 2.5 AS x, true AS b, 'text' AS t, [1, 2] AS l, "
        "1 / 0 AS inf, 3::HUGEINT << 70 AS huge, DATE '2020-02-03' AS d, NULL::DOUBLE AS nan"
    )
    row = table.row(0)
    assert row == {
        "a": 1,
        "a_1": 2,
        "n": None,
        "nan": None,
        "inf": None,
        "x": 2.5,
        "b": True,
        "t": "text",
        "l": "[1, 2]",
        "huge": 2**63 - 1,
        "d": "2020-02-03",
    }
    assert len(dataset.query("SELECT path FROM files WHERE false")) == 0
    numbers = dataset.query(
        "SELECT * FROM (VALUES (-1, true, 0.5::DOUBLE), (NULL, false, NULL)) t(a, b, c)"
    )
    assert [numbers.values(name) for name in "abc"] == [[-1, None], [True, False], [0.5, None]]
    assert [field.kind for field in numbers.fields] == ["number", "flag", "number"]
    assert numbers["b"].dtype == bool


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM '{outside}'",
        "SELECT * FROM read_text('{outside}')",
        "SELECT * FROM read_csv('{outside}')",
        "SELECT * FROM glob('{folder}/*')",
        "SELECT * FROM local",
        "COPY (SELECT 1) TO '{folder}/new.csv'",
        "COPY (SELECT 1 AS path) TO '{part}'",
        "EXPLAIN ANALYZE COPY (SELECT 1 AS path) TO '{part}'",
        "WITH x AS (COPY (SELECT 1 AS path) TO '{part}') SELECT 1",
        "EXPORT DATABASE '{folder}/export'",
        "ATTACH '{folder}/new.db'",
        "CREATE TABLE t AS SELECT 1",
        "DROP VIEW files",
        "INSERT INTO files SELECT * FROM files",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "PRAGMA enable_profiling",
        "SELECT 1; SELECT 2",
        "",
    ],
)
def test_nothing_else_is_read_and_nothing_written(
    datasets: dict[str, Path], tmp_path: Path, sql: str
) -> None:
    import pyarrow

    local = pyarrow.table({"secret": [1]})
    outside = tmp_path / "outside.csv"
    outside.write_text("secret\n1\n")
    part = sorted(datasets["csv"].glob("table=files/*"))[0]
    before = contents(datasets["csv"]) | contents(tmp_path)
    sql = sql.format(outside=outside, folder=tmp_path, part=str(part).replace("'", "''"))
    with pytest.raises(ValueError):
        hlofast.open_dataset(datasets["csv"]).query(sql)
    assert contents(datasets["csv"]) | contents(tmp_path) == before
    assert local.num_rows == 1


def test_faults_have_their_place(dataset: hlofast.Scan) -> None:
    with pytest.raises(ValueError, match="nope") as fault:
        dataset.query("SELECT path,\n  nope FROM modules")
    lines = str(fault.value).splitlines()
    (shown,) = (number for number, line in enumerate(lines) if line.startswith("LINE 2:"))
    assert lines[shown + 1].index("^") == lines[shown].index("nope")
    with pytest.raises(ValueError, match="syntax error"):
        dataset.query("SELEKT 1")


def test_unknown_tables_are_told_the_known(dataset: hlofast.Scan) -> None:
    with pytest.raises(ValueError, match="no table 'module'; available tables: files, ") as fault:
        dataset.query("SELECT * FROM module")
    assert "modules" in str(fault.value) and "^" in str(fault.value)
    assert "pg_" not in str(fault.value)


def test_parts_that_do_not_count(datasets: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(datasets["jsonl"], out)
    parts = sorted(out.glob("table=modules/part-*"))
    # One that was written but not taken up, one of which only the name was taken back.
    shutil.copy(parts[0], out / "table=modules" / "part-00009999.jsonl")
    shutil.copy(parts[0], out / "table=modules" / ".part-00009998.jsonl")
    whole = hlofast.open_dataset(datasets["jsonl"])
    opened = hlofast.open_dataset(out)
    count = "SELECT count(*) AS n FROM modules"
    assert opened.query(count) == whole.query(count)
    assert len(opened["modules"]) == len(whole["modules"]) == opened.to_arrow("modules").num_rows
    # One that is cut: its batch has to be done again, and does not count until it is.
    parts[0].write_bytes(parts[0].read_bytes()[:-3])
    cut = hlofast.open_dataset(out)
    left = sum(len(part.read_text().splitlines()) for part in parts[1:])
    assert cut.query(count)["n"].tolist() == [left] == [len(cut["modules"])]


@settings(max_examples=40)
@given(st.data())
def test_damaged_manifests(datasets: dict[str, Path], data: st.DataObject) -> None:
    whole = (datasets["jsonl"] / "hlofast-manifest.jsonl").read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    damage = data.draw(st.binary(max_size=3))
    folder = datasets["jsonl"].parent / "damaged"
    folder.mkdir(exist_ok=True)
    for path in datasets["jsonl"].glob("table=*"):
        if not (folder / path.name).exists():
            (folder / path.name).symlink_to(path, target_is_directory=True)
    (folder / "hlofast-manifest.jsonl").write_bytes(whole[:cut] + damage)
    with contextlib.suppress(DatasetError):
        opened = hlofast.open_dataset(folder)
        assert len(opened.files) <= len(hlofast.open_dataset(datasets["jsonl"]).files)


@settings(max_examples=15)
@given(st.text() | st.text("()'\"*,;selctfromd ", max_size=40))
def test_any_text_is_answered_or_refused(in_memory: hlofast.Scan, sql: str) -> None:
    with contextlib.suppress(QueryError):
        in_memory.query(sql)


def test_folders_that_are_no_datasets(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a dataset"):
        hlofast.open_dataset(tmp_path)
    with pytest.raises(FileNotFoundError):
        hlofast.open_dataset(tmp_path / "nowhere")


def test_without_duckdb(dataset: hlofast.Scan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(ValueError, match=r"pip install 'hlofast\[duckdb\]'"):
        dataset.query("SELECT 1")


def test_a_connection_of_ones_own(dataset: hlofast.Scan, in_memory: hlofast.Scan) -> None:
    answers: list[Any] = []
    for scan in (dataset, in_memory):
        connection = scan.to_duckdb()
        answers.append(connection.execute("SELECT count(*), sum(flops) FROM modules").fetchone())
    assert answers[0] == answers[1]
