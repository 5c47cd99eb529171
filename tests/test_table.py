"""`Table`, and the instruction table through Arrow."""

import gc
import pickle
import sys

import numpy
import pytest

import hlofast
from test_module import TEXT


@pytest.fixture
def module() -> hlofast.Module:
    return hlofast.loads(TEXT)


@pytest.fixture
def table(module: hlofast.Module) -> hlofast.Table:
    return module.table()


def expected(module: hlofast.Module) -> list[dict[str, object]]:
    return [
        {
            "instruction": i.row,
            "name": i.name,
            "opcode": i.opcode,
            "computation": i.computation.name,
            "shape": str(i.shape),
            "shape_bytes": i.shape.bytes,
            "op_name": i.metadata and i.metadata.op_name,
            "source_file": i.source and i.source.file,
            "source_line": i.source.line if i.source else 0,
        }
        for i in module
    ]


def test_rows_and_columns(module: hlofast.Module, table: hlofast.Table) -> None:
    rows = expected(module)
    assert len(table) == len(module) == 9
    assert table.to_pylist() == list(table) == rows
    assert table.row(3) == rows[3]
    assert table.columns == tuple(rows[0])
    for name in table.columns:
        assert table[name].tolist() == [row[name] for row in rows]
        assert not table[name].flags.writeable
        assert table[name] is table[name]
    assert "opcode" in table
    assert "nothing" not in table
    with pytest.raises(KeyError):
        table["nothing"]


def test_order_and_choice(table: hlofast.Table) -> None:
    rows = table.to_pylist()
    by_bytes = table.sort_by("shape_bytes", descending=True)
    assert by_bytes.to_pylist() == sorted(rows, key=lambda row: -row["shape_bytes"])
    assert table.top(2, "shape_bytes").to_pylist() == by_bytes.to_pylist()[:2]
    assert table.top(3).to_pylist() == rows[:3]
    assert len(table.top(100)) == len(rows)
    named = [row for row in rows if row["op_name"] is not None]
    by_name = table.sort_by("op_name").to_pylist()
    assert by_name[: len(named)] == sorted(named, key=lambda row: row["op_name"])
    assert all(row["op_name"] is None for row in by_name[len(named) :])
    assert table.take([4, 1]).to_pylist() == [rows[4], rows[1]]
    assert table.take(numpy.array([2])).to_pylist() == [rows[2]]
    taken = table.take(row for row in (8, 0))
    assert [taken[name].dtype for name in taken.columns] == [table[n].dtype for n in table.columns]
    for outside in (9, -1):
        with pytest.raises(IndexError):
            table.take([outside])


def test_numbers_are_views(module: hlofast.Module, table: hlofast.Table) -> None:
    assert numpy.shares_memory(table["shape_bytes"], module.columns.shape_bytes)


def test_shown(table: hlofast.Table) -> None:
    lines = repr(table).splitlines()
    assert lines[0].split() == list(table.columns)
    assert "add.1" in repr(table)
    html = hlofast.Table([("t", hlofast.TextColumn(["<b>"]))])._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html


def test_pickle(table: hlofast.Table) -> None:
    assert pickle.loads(pickle.dumps(table)) == table


def test_empty_and_uneven() -> None:
    assert hlofast.Table([]).to_pylist() == []
    assert len(hlofast.Table([])) == 0
    one, two = (hlofast.Column(numpy.zeros(n)) for n in (1, 2))
    with pytest.raises(ValueError, match="length"):
        hlofast.Table([("a", one), ("b", two)])


def test_unknown_opcodes() -> None:
    module = hlofast.loads(
        "HloModule m\nENTRY e {\n  a = f32[] parameter(0)\n  ROOT b = f32[] brand-new(a)\n}\n"
    )
    assert module.table()["opcode"].tolist() == ["parameter", "brand-new"]


def test_pyarrow_reads_it(module: hlofast.Module, table: hlofast.Table) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    read = table.to_arrow()
    assert read.to_pylist() == expected(module)
    read.validate(full=True)
    assert pyarrow.array(table).to_pylist() == expected(module)
    assert pyarrow.schema(table).names == list(table.columns)
    assert pyarrow.types.is_dictionary(read.schema.field("opcode").type)


def test_arrow_keeps_the_memory_alive(module: hlofast.Module) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    rows = expected(module)
    read = pyarrow.table(module.table())
    column = read["shape_bytes"]
    del module, read
    gc.collect()
    others = [hlofast.loads(TEXT).table() for _ in range(20)]
    assert column.to_pylist() == [row["shape_bytes"] for row in rows]
    assert len(others) == 20


def test_capsules_may_be_dropped_unread(table: hlofast.Table) -> None:
    for _ in range(10):
        table.__arrow_c_stream__()
        table.__arrow_c_array__()
        table.__arrow_c_schema__()
    gc.collect()
    assert table.to_pylist()


def test_polars_reads_it(module: hlofast.Module, table: hlofast.Table) -> None:
    pytest.importorskip("polars")
    assert table.to_polars().to_dicts() == expected(module)


def test_pandas_reads_it(module: hlofast.Module, table: hlofast.Table) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = table.to_pandas()
    assert frame["name"].tolist() == module.names()
    assert frame["shape_bytes"].tolist() == [i.shape.bytes for i in module]


def test_duckdb_reads_it(module: hlofast.Module, table: hlofast.Table) -> None:
    duckdb = pytest.importorskip("duckdb")
    query = "select opcode, count(*) from table_ group by 1 order by 1"
    found = duckdb.connect().register("table_", table.to_arrow()).execute(query).fetchall()
    assert found == sorted(
        (opcode, module.opcodes().count(opcode)) for opcode in set(module.opcodes())
    )


def columns(**values: list[object]) -> hlofast.Table:
    """A table of these columns."""
    made: list[tuple[str, hlofast.Column | hlofast.TextColumn]] = []
    for name, column in values.items():
        if any(isinstance(value, str) for value in column):
            texts = sorted({value for value in column if value is not None})
            codes = [-1 if value is None else texts.index(value) for value in column]
            codes = hlofast.Column(numpy.array(codes, dtype=numpy.int32))
            made.append((name, hlofast.TextColumn(texts, codes)))
        else:
            made.append((name, hlofast.Column(numpy.array(column))))
    return hlofast.Table(made)


class TestBy:
    def test_sums_what_counts_something(self) -> None:
        table = columns(
            phase=["b", "a", "b", None],
            flops=[1, 2, 2**60, 8],
            m=[4, 4, 4, 4],
            source_line=[1, 2, 3, 4],
        )
        grouped = table.by("phase")
        assert grouped.columns == ("phase", "rows", "flops")
        assert grouped.to_pylist() == [
            {"phase": "b", "rows": 2, "flops": 2**60 + 1},
            {"phase": "a", "rows": 1, "flops": 2},
            {"phase": None, "rows": 1, "flops": 8},
        ]
        assert grouped["flops"].dtype == numpy.int64

    def test_totals_that_are_named(self) -> None:
        table = columns(kind=["x", "x"], flops=[1, 2], m=[3, 4], seconds=[0.5, 0.25])
        grouped = table.by("kind", totals=["m", "seconds"])
        assert grouped.to_pylist() == [{"kind": "x", "rows": 2, "m": 7, "seconds": 0.75}]

    def test_by_a_number(self) -> None:
        table = columns(k=[64, 8, 64], multiplicity=[1, 2, 3])
        assert table.by("k").to_pylist() == [
            {"k": 64, "rows": 2, "multiplicity": 4},
            {"k": 8, "rows": 1, "multiplicity": 2},
        ]

    def test_a_summed_column_may_be_the_key(self) -> None:
        assert columns(flops=[5, 5]).by("flops").to_pylist() == [{"flops": 5, "rows": 2}]

    def test_unknown_stays_unknown(self) -> None:
        table = columns(kind=["x", "x", "y"], multiplicity=[-1, 7, 7], flops=[-1, 7, 7])
        sums = [(row["multiplicity"], row["flops"]) for row in table.by("kind")]
        # Of FLOPs, -1 is a number: what XLA counts for a custom call.
        assert sums == [(-1, 6), (7, 7)]

    def test_beyond_64_bits(self) -> None:
        table = columns(kind=["x", "x"], flops=[2**63 - 1, 5])
        assert table.by("kind")["flops"].tolist() == [2**63 - 1]

    def test_what_is_no_column_and_no_number(self) -> None:
        table = columns(kind=["x"], name=["y"])
        with pytest.raises(KeyError):
            table.by("nothing")
        with pytest.raises(KeyError):
            table.by("kind", totals=["nothing"])
        with pytest.raises(TypeError):
            table.by("kind", totals=["name"])

    def test_nothing(self) -> None:
        table = columns(kind=["x"], flops=[1]).take([])
        assert (len(table.by("kind")), table.by("kind").columns) == (0, ("kind", "rows", "flops"))

    def test_groups_of_every_column_have_all_rows(self, table: hlofast.Table) -> None:
        for name in table.columns:
            grouped = table.by(name)
            assert sum(grouped["rows"]) == len(table)
            assert len(set(grouped[name].tolist())) == len(grouped)
            if name != "shape_bytes":
                assert sum(grouped["shape_bytes"]) == sum(table["shape_bytes"])


@pytest.mark.parametrize(
    ("method", "absent", "extra"),
    [
        ("to_arrow", "pyarrow", "arrow"),
        ("to_pandas", "pandas", "pandas"),
        ("to_pandas", "pyarrow", "pandas"),
        ("to_polars", "polars", "polars"),
    ],
)
def test_what_is_not_installed_is_named(
    module: hlofast.Module, monkeypatch: pytest.MonkeyPatch, method: str, absent: str, extra: str
) -> None:
    if method == "to_pandas" and absent == "pyarrow":
        pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, absent, None)
    said = rf"this needs {absent}: pip install 'hlofast\[{extra}\]'"
    with pytest.raises(ModuleNotFoundError, match=said):
        getattr(module.table(), method)()
    scan = hlofast.Scan(None, None)
    with pytest.raises(ModuleNotFoundError, match="pip install 'hlofast"):
        getattr(scan, method)("files")
