"""A table is the same wherever it comes from: a module, a scan, a dataset, SQL."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES

pa = pytest.importorskip("pyarrow")

TABLES: dict[str, Callable[[hlofast.Module], Any]] = {
    "collectives": lambda module: module.collectives(),
    "matmuls": lambda module: module.matmuls(),
    "buffers": lambda module: module.memory().live,
    "lint": lambda module: module.lint().table(),
}
DUMPS = [
    FIXTURES / "train_step.after_optimizations.txt",
    FIXTURES / "sharded" / "norm_v4_named_after.txt.gz",
]


def plain(table: Any) -> Any:
    """The table with texts that are not shared among rows, which is no other content."""
    types = [pa.large_string() if is_text(field.type) else field.type for field in table.schema]
    fields = zip(table.schema.names, types, strict=True)
    return table.cast(pa.schema([pa.field(name, kind) for name, kind in fields]))


def is_text(kind: Any) -> bool:
    """Whether a column holds texts, shared or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


@pytest.fixture(scope="module", params=DUMPS, ids=lambda path: path.name.partition(".")[0])
def dump(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def dataset(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> hlofast.Scan:
    out = tmp_path_factory.mktemp("same") / "tables"
    hlofast.scan(dump, out, tables=TABLES)
    return hlofast.open_dataset(out)


@pytest.mark.parametrize("name", TABLES)
def test_rows_types_and_nulls_are_equal(dump: Path, dataset: hlofast.Scan, name: str) -> None:
    pytest.importorskip("duckdb")
    scan = hlofast.scan(dump, tables=[name])
    loaded = plain(TABLES[name](hlofast.load(dump)).to_arrow())
    columns = loaded.column_names
    assert len(loaded) > 0 or name == "lint"
    tables = {
        "scan": scan.to_arrow(name),
        "scan as a table": scan[name].to_arrow(),
        "dataset": dataset.to_arrow(name),
        "dataset as a table": dataset[name].to_arrow(),
        "SQL over a scan": scan.query(f"FROM {name}").to_arrow(),
        "SQL over a dataset": dataset.query(f"FROM {name}").to_arrow(),
    }
    for source, table in tables.items():
        own = plain(table).select(columns)
        assert own.schema.types == loaded.schema.types, source
        for column in columns:
            assert own[column].null_count == loaded[column].null_count, (source, column)
            assert own[column].to_pylist() == loaded[column].to_pylist(), (source, column)
