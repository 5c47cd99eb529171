"""`Table`, and the instruction table through Arrow."""

import copy
import gc
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

import hlofast
from hlofast import Table
from hlofast._core import Field
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
            "source_line": i.source and i.source.line,
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


@pytest.mark.parametrize(
    ("rows", "caption"), [(1, "1 row"), (2, "2 rows"), (5_000, "first 10 of 5,000 rows")]
)
def test_the_caption_tells_the_rows_left_out(rows: int, caption: str) -> None:
    table = hlofast.Table([("n", hlofast.TextColumn(["a"] * rows))])
    assert f"<caption>{caption}</caption>" in table._repr_html_()


def test_pickle(table: hlofast.Table) -> None:
    again = pickle.loads(pickle.dumps(table))
    assert again == table
    assert again.fields == table.fields
    assert [again[name].dtype for name in again.columns] == [
        table[name].dtype for name in table.columns
    ]


def test_a_table_that_nothing_has_read_is_copied_pickled_and_read_from_threads() -> None:
    text = (
        "HloModule m\n\nENTRY e {\n  a = f32[8,8] parameter(0)\n"
        "  ROOT d = f32[8,8] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n"
    )

    def fresh() -> hlofast.Table:
        return hlofast.loads(text).matmuls()

    rows = fresh().to_pylist()
    assert len(rows) == 1
    assert copy.copy(fresh()).to_pylist() == rows
    assert pickle.loads(pickle.dumps(fresh())).to_pylist() == rows
    assert not hasattr(fresh(), "no_such_name")
    for _ in range(20):
        own = fresh()
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(len, [own] * 8)) == {1}


def test_pickle_keeps_floats_of_which_none_is_known() -> None:
    table = Table.of([(SECONDS, [None, None])])
    again = pickle.loads(pickle.dumps(table))
    assert again["seconds"].dtype == numpy.float64
    assert again.values("seconds") == [None, None]


def test_empty_and_uneven() -> None:
    assert hlofast.Table([]).to_pylist() == []
    assert len(hlofast.Table([])) == 0
    shorter, two = (hlofast.Column(numpy.zeros(n)) for n in (1, 2))
    with pytest.raises(ValueError, match="length"):
        hlofast.Table([("a", shorter), ("b", two)])


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
    rows = duckdb.connect().register("table_", table.to_arrow()).execute(query).fetchall()
    assert rows == sorted(
        (opcode, module.opcodes().count(opcode)) for opcode in set(module.opcodes())
    )


KIND = Field("word", "kind", "What it is.", nullable=True)
FLOPS = Field("flops", "flops", "Operations.", label="FLOP", nullable=True, adds_up=True)
SIZE = Field("count", "m", "Rows of the result.")
LINE = Field("index", "source_line", "The line.", nullable=True)
SECONDS = Field("seconds", "seconds", "Time.", nullable=True, adds_up=True)
IS_OPEN = Field("flag", "is_open", "Whether it is open.")
DISTANCE = Field("number", "distance", "How far it is.", nullable=True, signed=True)


class TestFields:
    @pytest.fixture
    def table(self) -> Table:
        """One column of each sort, in whose second row is unknown what may be."""
        return Table.of(
            [
                (KIND, ["x", None, "y"]),
                (FLOPS, [3, None, 4]),
                (SECONDS, [0.5, None, 0.25]),
                (DISTANCE, [-1, None, 7]),
                (IS_OPEN, [True, False, True]),
            ]
        )

    def test_they_say_what_columns_hold(self, table: Table) -> None:
        assert table.fields == (KIND, FLOPS, SECONDS, DISTANCE, IS_OPEN)
        assert table.field("flops") == FLOPS
        with pytest.raises(KeyError):
            table.field("nothing")
        said = (FLOPS.name, FLOPS.kind, FLOPS.unit, FLOPS.label, FLOPS.doc)
        assert said == ("flops", "flops", "FLOP", "FLOP", "Operations.")
        assert LINE.label == "source line"
        assert (SECONDS.unit, SIZE.unit, KIND.is_text, LINE.is_amount) == ("s", "", True, False)
        with pytest.raises(ValueError, match="kind"):
            Field("colour", "x", "What there is not.")

    def test_what_is_unknown_is_none_in_rows(self, table: Table) -> None:
        assert table.row(1) == {
            "kind": None,
            "flops": None,
            "seconds": None,
            "distance": None,
            "is_open": False,
        }
        assert table.to_pylist()[1] == table.row(1) == table.row(-2)
        assert table.values("distance") == [-1, None, 7]

    def test_what_is_unknown_is_masked_in_numpy(self, table: Table) -> None:
        for name, total in (("flops", 7), ("seconds", 0.75), ("distance", 6)):
            array = table[name]
            assert isinstance(array, numpy.ma.MaskedArray)
            assert array.mask.tolist() == [False, True, False]
            assert array.sum() == total
            assert array.tolist() == table.values(name)
        assert table["flops"].data[1] == FLOPS.unknown == -1
        assert numpy.isnan(table["seconds"].data[1])
        assert table["kind"].tolist() == ["x", None, "y"]

    def test_flags_are_bools(self, table: Table) -> None:
        assert table["is_open"].dtype == numpy.bool_
        assert table.values("is_open") == [True, False, True]
        assert Table.of([(IS_OPEN, [])])["is_open"].dtype == numpy.bool_
        assert table.take([1])["is_open"].tolist() == [False]

    def test_unknown_values_come_last(self, table: Table) -> None:
        for is_descending in (False, True):
            ordered = table.sort_by("flops", descending=is_descending)
            assert ordered.values("flops")[-1] is None
        assert table.top(1, "flops").values("flops") == [4]

    def test_arrow_has_nulls_and_what_fields_say(self, table: Table) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        read = pyarrow.table(table)
        read.validate(full=True)
        assert read.to_pylist() == table.to_pylist()
        assert [read[name].null_count for name in table.columns] == [1, 1, 1, 1, 0]
        assert read.schema.field("is_open").type == pyarrow.bool_()
        assert read.schema.field("flops").metadata == {
            b"kind": b"flops",
            b"unit": b"FLOP",
            b"label": b"FLOP",
            b"doc": b"Operations.",
        }

    def test_pandas_has_missing_values(self, table: Table) -> None:
        pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        frame = table.to_pandas()
        for name in ("kind", "flops", "seconds", "distance"):
            assert frame[name].isna().tolist() == [False, True, False]
        assert frame["is_open"].dtype == bool

    def test_polars_has_nulls(self, table: Table) -> None:
        pytest.importorskip("polars")
        assert table.to_polars().to_dicts() == table.to_pylist()

    def test_pickle_keeps_them(self, table: Table) -> None:
        again = pickle.loads(pickle.dumps(table))
        assert again.fields == table.fields
        assert again == table


class TestBy:
    def test_sums_what_adds_up(self) -> None:
        table = Table.of(
            [
                (KIND, ["b", "a", "b", None]),
                (FLOPS.replace(nullable=False), [1, 2, 2**60, 8]),
                (SIZE, [4, 4, 4, 4]),
                (LINE, [1, 2, 3, 4]),
            ]
        )
        grouped = table.by("kind")
        assert grouped.columns == ("kind", "rows", "flops")
        assert grouped.to_pylist() == [
            {"kind": "b", "rows": 2, "flops": 2**60 + 1},
            {"kind": "a", "rows": 1, "flops": 2},
            {"kind": None, "rows": 1, "flops": 8},
        ]
        assert grouped["flops"].dtype == numpy.int64
        assert grouped.field("kind") == KIND

    def test_totals_that_are_named(self) -> None:
        seconds = SECONDS.replace(nullable=False)
        table = Table.of(
            [(KIND, ["x", "x"]), (FLOPS, [1, 2]), (SIZE, [3, 4]), (seconds, [0.5, 0.25])]
        )
        grouped = table.by("kind", totals=["m", "seconds"])
        assert grouped.to_pylist() == [{"kind": "x", "rows": 2, "m": 7, "seconds": 0.75}]

    def test_by_a_number(self) -> None:
        table = Table.of([(SIZE, [64, 8, 64]), (FLOPS.replace(nullable=False), [1, 2, 3])])
        assert table.by("m").to_pylist() == [
            {"m": 64, "rows": 2, "flops": 4},
            {"m": 8, "rows": 1, "flops": 2},
        ]

    def test_a_summed_column_may_be_the_key(self) -> None:
        table = Table.of([(FLOPS, [5, 5])])
        assert table.by("flops").to_pylist() == [{"flops": 5, "rows": 2}]

    def test_unknown_values_are_left_out_and_counted(self) -> None:
        table = Table.of(
            [
                (KIND, ["x", "x", "x", "y", "z"]),
                (FLOPS, [None, 7, 7, None, 1]),
                (SECONDS, [None, None, 0.5, 0.25, 2.0]),
            ]
        )
        # A row that lacks both counts once.
        assert table.by("kind").to_pylist() == [
            {"kind": "x", "rows": 3, "flops": 14, "seconds": 0.5, "unknown": 2},
            {"kind": "y", "rows": 1, "flops": None, "seconds": 0.25, "unknown": 1},
            {"kind": "z", "rows": 1, "flops": 1, "seconds": 2.0, "unknown": 0},
        ]
        assert "unknown" not in table.by("kind", totals=[])

    def test_beyond_64_bits(self) -> None:
        table = Table.of([(KIND, ["x", "x"]), (FLOPS, [2**63 - 1, 5])])
        assert table.by("kind")["flops"].tolist() == [2**63 - 1]

    def test_what_is_no_column_and_no_amount(self) -> None:
        table = Table.of([(KIND, ["x"]), (LINE, [3])])
        with pytest.raises(KeyError):
            table.by("nothing")
        with pytest.raises(KeyError):
            table.by("kind", totals=["nothing"])
        for name in ("kind", "source_line"):
            with pytest.raises(TypeError):
                table.by("kind", totals=[name])

    def test_nothing(self) -> None:
        table = Table.of([(KIND, ["x"]), (FLOPS.replace(nullable=False), [1])]).take([])
        grouped = table.by("kind")
        assert (len(grouped), grouped.columns) == (0, ("kind", "rows", "flops"))

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


def test_slices_are_rows(table: hlofast.Table) -> None:
    rows = table.to_pylist()
    assert table[1:3].to_pylist() == rows[1:3]
    assert table[::-1].to_pylist() == rows[::-1]
    assert table[:0].to_pylist() == table[len(rows) :].to_pylist() == []
    assert list(table["name"][:2]) == table[:2].values("name")
    with pytest.raises(TypeError, match=r"columns are named, not 0; table\.row\(0\)"):
        table[0]
