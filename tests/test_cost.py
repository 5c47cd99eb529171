"""`Module.cost()` and `Module.matmuls()`: totals, columns, groups, rules, costs given by users."""

from pathlib import Path

import numpy
import pytest

import hlofast
from conftest import FIXTURES
from probes.catalog import all_probes
from test_cost_traps import BRANCHES, CONDITIONAL, LOOPED, NESTED, UNPRICED, count

KEYS = ("phase", "scope", "source", "source_file", "opcode", "dtype", "computation")
DUMPS = sorted((FIXTURES / "dumps").glob("*.txt.gz")) + [
    FIXTURES / "train_step.after_optimizations.txt"
]
SPLIT = ("bytes_read", "bytes_written", "other_bytes_read", "other_bytes_written")


@pytest.fixture(scope="module", params=DUMPS, ids=lambda path: path.name.partition(".txt")[0])
def dump(request: pytest.FixtureRequest) -> hlofast.Module:
    """Every dump of the fixtures."""
    return hlofast.load(request.param)


def test_there_are_dumps() -> None:
    assert len(DUMPS) > 30


class TestDumps:
    @pytest.mark.parametrize("xla", [False, True], ids=["executed", "xla"])
    @pytest.mark.parametrize("key", KEYS)
    def test_groups_add_up_to_the_module(self, dump: hlofast.Module, key: str, xla: bool) -> None:
        cost = dump.cost(xla=xla)
        for depth in (0, 1, 3, 1000) if key == "scope" else (3,):
            groups = cost.by(key, depth=depth)
            assert groups.columns[:2] == (key, "instructions")
            assert sum(groups["instructions"]) == dump.summary().values["instructions"]
            assert sum(groups["flops"].tolist()) == cost.flops
            assert sum(groups["transcendentals"].tolist()) == cost.transcendentals
            assert sum(groups["bytes_accessed"].tolist()) == cost.bytes_accessed
            assert len(set(groups[key].tolist())) == len(groups)
            assert ("bytes_read" in groups) is ("exact_flops" in groups) is not xla
        if not xla:
            groups = cost.by(key)
            assert sum(groups["bytes_read"].tolist()) == cost.bytes_read
            assert sum(groups["bytes_written"].tolist()) == cost.bytes_written
            sums = [sum(groups[name].tolist()) for name in SPLIT]
            assert sum(sums) == cost.bytes_accessed
            assert sum(groups["exact_flops"].tolist()) == cost.flops_by_provenance["exact"]

    def test_columns_times_multiplicity_are_the_totals(self, dump: hlofast.Module) -> None:
        cost = dump.cost()
        times = cost.columns.multiplicity.tolist()
        assert min(times) >= 0
        for name in ("flops", "transcendentals"):
            once = cost.columns[name].tolist()
            assert sum(map(int.__mul__, once, times)) == getattr(cost, name)
        assert sum(cost.flops_by_provenance.values()) == cost.flops

    def test_memory_spaces_hold_all_bytes(self, dump: hlofast.Module) -> None:
        cost = dump.cost()
        spaces = cost.memory_spaces.to_pylist()
        assert spaces[0] == {
            "memory_space": 0,
            "bytes_read": cost.bytes_read,
            "bytes_written": cost.bytes_written,
        }
        total = sum(row["bytes_read"] + row["bytes_written"] for row in spaces)
        assert total == cost.bytes_accessed

    def test_every_matrix_product_is_part_of_the_cost(self, dump: hlofast.Module) -> None:
        cost = dump.cost()
        products = cost.matmuls()
        assert products == dump.matmuls()
        for row in products:
            at = row["instruction"]
            assert row["flops_once"] == cost.columns.flops[at]
            assert row["flops"] == row["flops_once"] * row["multiplicity"]
            assert dump[at].name == row["name"]
        executions = products.by("instruction", totals=["multiplicity"]).to_pylist()
        for row in executions:
            assert row["multiplicity"] == cost.columns.multiplicity[row["instruction"]]
        dots = {int(row) for row in dump.where(opcode=["dot", "convolution", "ragged-dot"])}
        assert dots <= {row["instruction"] for row in products}
        for key in ("phase", "kind", "scope", "source_file"):
            assert sum(products.by(key)["flops"].tolist()) == sum(products["flops"].tolist())

    def test_table(self, dump: hlofast.Module) -> None:
        cost = dump.cost()
        table = cost.table()
        assert len(table) == len(dump.columns.opcode)
        assert table["flops"].tolist() == cost.columns.flops.tolist()
        words = [hlofast.phases[code] for code in cost.columns.phase]
        assert table["phase"].tolist() == words
        scopes = [cost.scopes[code] or None for code in cost.columns.scope]
        assert table["scope"].tolist() == scopes

    def test_explanation_counts_instructions_of_the_module(self, dump: hlofast.Module) -> None:
        explanation = dump.cost().explain().to_pylist()
        concerned = {row["rule"]: row["instructions"] for row in explanation}
        assert concerned["loops"] == len(dump.where(opcode="while")) == len(dump.cost().loops)
        assert concerned["conditionals"] == len(dump.where(opcode="conditional"))
        calls = concerned["custom calls"] + concerned["markers"]
        assert calls == len(dump.where(opcode="custom-call"))
        assert all(row["xla"] and row["executed"] for row in explanation)


def test_groups_of_every_probe_add_up() -> None:
    counted = 0
    for probe in all_probes():
        try:
            module = hlofast.loads(probe.text)
        except hlofast.ParseError:
            continue
        for cost in (module.cost(), module.cost(xla=True)):
            figures = (cost.flops, cost.transcendentals, cost.bytes_accessed)
            if max(map(abs, figures)) >= 2**62:
                continue  # Columns of 64 bits stop there; totals do not.
            counted += 1
            for key in ("phase", "opcode"):
                groups = cost.by(key)
                names = ("flops", "transcendentals", "bytes_accessed")
                assert tuple(sum(groups[name].tolist()) for name in names) == figures, probe.id
    assert counted > 2000


SHARED = """
HloModule m

layer {
  x = f32[8,8] parameter(0)
  ROOT d = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="layer/dot"}
}

ENTRY e {
  x = f32[8,8] parameter(0)
  a = f32[8,8] call(x), to_apply=layer, metadata={op_name="jit(f)/jvp(M)"}
  b = f32[8,8] call(a), to_apply=layer, metadata={op_name="jit(f)/jvp(M)"}
  ROOT c = f32[8,8] call(b), to_apply=layer, metadata={op_name="jit(f)/transpose(jvp(M))/rematted_computation"}
}
"""


def test_a_computation_that_phases_share_belongs_to_each() -> None:
    cost = hlofast.loads(SHARED).cost()
    dot = 2 * 8**3
    rows = [
        (row["name"], row["phase"], row["multiplicity"], row["flops"]) for row in cost.matmuls()
    ]
    assert rows == [("d", "forward", 2, 2 * dot), ("d", "recompute", 1, dot)]
    assert {row["phase"]: row["flops"] for row in cost.by("phase") if row["flops"]} == {
        "forward": 2 * dot,
        "recompute": dot,
    }
    used = cost.mfu(1.0, float(dot))
    assert (used.matmul_mfu, used.matmul_hfu, used.mfu, used.hfu) == (2.0, 3.0, 2.0, 3.0)


class TestColumns:
    @pytest.fixture
    def cost(self, train_step: Path) -> hlofast.Cost:
        return hlofast.load(train_step).cost()

    def test_types_and_lengths(self, cost: hlofast.Cost) -> None:
        types = {name: str(array.dtype) for name, array in cost.columns.items()}
        counts = ("flops", "transcendentals", "bytes_accessed", "bytes_read", "bytes_written")
        assert types == dict.fromkeys((*counts, "multiplicity"), "int64") | {
            "provenance": "uint8",
            "phase": "uint8",
            "scope": "uint32",
        }
        assert {len(array) for array in cost.columns.values()} == {len(cost.module.columns.opcode)}

    def test_views_of_one_memory_that_cannot_be_written(self, cost: hlofast.Cost) -> None:
        for name, array in cost.columns.items():
            assert not array.flags.writeable
            assert not array.flags.owndata
            with pytest.raises(ValueError):
                array[0] = 1
            with pytest.raises(ValueError):
                array.flags.writeable = True
            assert cost.columns[name] is getattr(cost.columns, name) is array
            again = numpy.asarray(cost._data.column(name))
            assert numpy.shares_memory(array, again)

    def test_they_outlive_the_cost(self, train_step: Path) -> None:
        flops = hlofast.load(train_step).cost().columns.flops
        assert flops.tolist() == hlofast.load(train_step).cost().columns.flops.tolist()

    def test_what_is_no_column(self, cost: hlofast.Cost) -> None:
        with pytest.raises(KeyError):
            cost.columns["nothing"]
        with pytest.raises(AttributeError):
            cost.columns.nothing
        assert "bytes_read" not in cost.module.cost(xla=True).columns
        assert set(cost.columns) <= set(dir(cost.columns))
        assert "flops" in repr(cost.columns)


class TestTotals:
    def test_xla_does_not_tell_reads_from_writes(self, train_step: Path) -> None:
        cost = hlofast.load(train_step).cost(xla=True)
        assert cost.xla
        assert (cost.bytes_read, cost.bytes_written) == (None, None)
        assert cost.bytes_accessed > 0

    def test_cost_analysis_has_the_keys_of_jax(self) -> None:
        analysis = count("x = f32[8] parameter(0)\nROOT y = f32[8] exponential(x)").cost_analysis()
        # As in JAX, what is zero is absent.
        assert analysis == {"transcendentals": 8.0, "bytes accessed": 64.0}
        assert {type(value) for value in analysis.values()} == {float}
        assert count(UNPRICED, xla=True).cost_analysis() == {
            "flops": -2.0,
            "bytes accessed": -2.0,
            "optimal_seconds": -2.0,
            "bytes accessed0{}": -2.0,
            "bytes accessedout{}": -2.0,
            "utilization0{}": 2.0,
        }

    def test_backend(self) -> None:
        cost = count("ROOT x = f32[8] parameter(0)", backend="gpu")
        assert cost.backend == "gpu"
        with pytest.raises(ValueError):
            count("ROOT x = f32[8] parameter(0)", backend="abacus")

    def test_float32_goes_with_xla(self) -> None:
        with pytest.raises(ValueError):
            count("ROOT x = f32[8] parameter(0)", float32=True)

    def test_keys_and_depths_that_do_not_exist(self) -> None:
        cost = count("ROOT x = f32[8] parameter(0)")
        with pytest.raises(KeyError):
            cost.by("colour")
        with pytest.raises(ValueError):
            cost.by("scope", depth=-1)

    def test_what_cannot_be_known_is_named(self) -> None:
        cost = count(
            "x = f32[?] parameter(0)\ny = f32[?] negate(x)\nROOT z = f32[8] iota(), iota_dimension=0"
        )
        assert [cost.module[int(row)].name for row in cost.unknown] == ["y"]
        assert cost.columns.provenance[cost.module["y"].row] == hlofast.provenances.index("unknown")
        assert cost.flops == 0

    def test_shown(self) -> None:
        cost = hlofast.loads(
            "HloModule m\nENTRY e {\n x = f32[8] parameter(0)\n"
            ' ROOT y = f32[8] negate(x), metadata={op_name="jit(<i>)/neg"}\n}\n'
        ).cost()
        assert repr(cost) == "<Cost of m as executed: 8 FLOPs, 0 transcendentals, 64 bytes>"
        assert '<table class="facts">' in cost._repr_html_()
        scopes = cost.by("scope")._repr_html_()
        assert "&lt;i&gt;" in scopes
        assert "<i>" not in scopes
        assert "as XLA counts" in repr(cost.module.cost(xla=True))


class TestControlFlow:
    def test_loops(self) -> None:
        cost = count(LOOPED.format(shape="f32[64]"), *NESTED)
        loops = {row["name"]: row for row in cost.loops}
        assert {name: row["trip_count"] for name, row in loops.items()} == {"inner": 4, "w": 3}
        assert {name: row["multiplicity"] for name, row in loops.items()} == {"inner": 3, "w": 1}
        assert all(row["provenance"] == "exact" and row["reason"] for row in loops.values())

    def test_loops_of_unknown_length_count_once(self) -> None:
        condition = "c {\n s = (pred[], f32[8]) parameter(0)\n ROOT p = pred[] get-tuple-element(s), index=0\n}"
        body = """b {
          s = (pred[], f32[8]) parameter(0)
          p = pred[] get-tuple-element(s), index=0
          v = f32[8] get-tuple-element(s), index=1
          w = f32[8] negate(v)
          q = pred[] not(p)
          ROOT t = (pred[], f32[8]) tuple(q, w)
        }"""
        cost = count(
            "x = f32[8] parameter(0)\np = pred[] parameter(1)\nt = (pred[], f32[8]) tuple(p, x)\n"
            "ROOT w = (pred[], f32[8]) while(t), condition=c, body=b",
            condition,
            body,
        )
        (loop,) = cost.loops
        assert (loop["trip_count"], loop["provenance"]) == (None, "unknown")
        assert loop["reason"]
        assert cost.flops == 9

    def test_trip_counts_of_the_backend(self) -> None:
        text = LOOPED.format(shape="f32[64]").replace(
            "body=b", 'body=b, backend_config={"known_trip_count":{"n":"7"}}'
        )
        (row,) = (row for row in count(text, *NESTED).loops if row["name"] == "w")
        assert (row["trip_count"], row["provenance"]) == (7, "from_backend_config")

    def test_of_equal_branches_the_first_counts(self) -> None:
        branches = [
            f"b{n} {{\n x = f32[64,64] parameter(0)\n ROOT y = f32[64,64] negate(x)\n}}"
            for n in (0, 1)
        ]
        cost = count(CONDITIONAL, *branches)
        assert [row["is_counted"] for row in cost.branches] == [1, 0]
        assert cost.flops == 64 * 64

    def test_asynchronous_computations_count_per_call_site(self) -> None:
        wrapped = "w {\n p = f32[8] parameter(0)\n ROOT n = f32[8] negate(p)\n}"
        cost = count(
            """
            x = f32[8] parameter(0)
            s = ((f32[8]), f32[8], u32[]) async-start(x), calls=w
            d = f32[8] async-done(s), calls=w
            s2 = ((f32[8]), f32[8], u32[]) async-start(d), calls=w
            u2 = ((f32[8]), f32[8], u32[]) async-update(s2), calls=w
            ROOT d2 = f32[8] async-done(u2), calls=w
            """,
            wrapped,
        )
        assert (cost.flops, cost.bytes_read, cost.bytes_written) == (16, 64, 64)

    def test_branches(self) -> None:
        cost = count(CONDITIONAL, *BRANCHES)
        rows = cost.branches.to_pylist()
        assert [row["name"] for row in rows] == ["c", "c"]
        assert [row["branch"] for row in rows] == [0, 1]
        assert {row["computation"] for row in cost.by("computation")} == {"b0", "b1", "e"}
        (other,) = (row for row in cost.by("computation") if row["computation"] == "b1")
        assert (other["instructions"], other["transcendentals"]) == (2, 0)


class TestCustomCalls:
    def test_unpriced(self) -> None:
        (row,) = count(UNPRICED).unpriced
        assert row.pop("instruction") == 1
        assert row == {"target": "nobody_knows", "instructions": 2, "executions": 2}

    def test_functions_for_one_count(self) -> None:
        seen = []

        def price(instruction: hlofast.Instruction) -> dict[str, int]:
            seen.append(instruction.name)
            return {"flops": 100, "transcendentals": 3}

        cost = count(UNPRICED, custom_calls={"nobody_knows": price})
        assert seen == ["b", "c"]
        assert (cost.flops, cost.transcendentals, len(cost.unpriced)) == (200, 6, 0)
        assert cost.flops_by_provenance["modelled"] == 200
        assert count(UNPRICED).flops == 0

    def test_registered_functions(self) -> None:
        @hlofast.register_custom_call("nobody_knows")
        def price(instruction: hlofast.Instruction) -> dict[str, int] | None:
            if instruction.name == "c":
                return None
            return {"flops": 7, "bytes_read": 1, "bytes_written": 2}

        try:
            cost = count(UNPRICED)
            assert cost.flops == 7
            (left,) = cost.unpriced
            assert left["instructions"] == 1
            stated = count(UNPRICED, custom_calls={"nobody_knows": lambda _: {"flops": 1}})
            assert stated.flops == 2
            assert count(UNPRICED, xla=True).flops == -2
        finally:
            hlofast.unregister_custom_call("nobody_knows")
        assert count(UNPRICED).flops == 0
        with pytest.raises(KeyError):
            hlofast.unregister_custom_call("nobody_knows")
        assert price is not None

    def test_bytes_that_are_stated(self) -> None:
        stated = {"flops": 0, "bytes_read": 10, "bytes_written": 5}
        cost = count(UNPRICED, custom_calls={"nobody_knows": lambda _: stated})
        assert (cost.bytes_read, cost.bytes_written) == (20, 10)

    @pytest.mark.parametrize("figures", [{"flops": -1}, {"flops": 2**63}, {"flop": 1}])
    def test_figures_that_are_none(self, figures: dict[str, int]) -> None:
        with pytest.raises(ValueError):
            count(UNPRICED, custom_calls={"nobody_knows": lambda _: figures})


NAMED = """
x = f32[8] parameter(0)
a = f32[8] negate(x), metadata={op_name="model/layer/neg"}
ROOT b = f32[8] negate(a), metadata={op_name="train/apply/neg"}
"""


def phases(cost: hlofast.Cost) -> dict[str, int]:
    return {row["phase"]: row["flops"] for row in cost.by("phase") if row["flops"]}


class TestRules:
    def test_names_that_are_not_of_jax_are_unattributed(self) -> None:
        assert phases(count(NAMED)) == {"unattributed": 16}

    def test_pairs(self) -> None:
        rules = [("apply/", "optimizer"), ("^model/", "forward")]
        assert phases(count(NAMED, rules=rules)) == {"forward": 8, "optimizer": 8}
        assert phases(count(NAMED, rules=iter(rules))) == {"forward": 8, "optimizer": 8}
        assert phases(count(NAMED, rules=[])) == {"unattributed": 16}

    def test_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "rules.toml"
        path.write_text('[[rule]]\npattern = "^model/"\nphase = "backward"\n')
        for given in (path, str(path)):
            assert phases(count(NAMED, rules=given)) == {"backward": 8, "unattributed": 8}

    @pytest.mark.parametrize("rules", [[("(", "forward")], [("x", "sideways")]])
    def test_no_pattern_and_no_phase(self, rules: list[tuple[str, str]]) -> None:
        with pytest.raises(ValueError):
            count(NAMED, rules=rules)

    @pytest.mark.parametrize(
        "text",
        [
            "[[rule]\n",
            "[[rules]]\npattern = 'x'\nphase = 'forward'\n",
            "[[rule]]\npattern = 'x'\n",
            "[[rule]]\npattern = 'x'\nphase = 'forward'\ncolour = 'red'\n",
            "[[rule]]\npattern = 1\nphase = 'forward'\n",
            "rule = 3\n",
            "rule = [3]\n",
        ],
    )
    def test_files_that_hold_no_rules(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "rules.toml"
        path.write_text(text)
        with pytest.raises(ValueError):
            count(NAMED, rules=path)

    def test_products_follow(self) -> None:
        text = NAMED + "x2 = f32[8,8] parameter(1)\n"
        dot = 'd = f32[8,8] dot(x2, x2), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="model/dot"}\n'
        module = hlofast.loads(f"HloModule m\nENTRY e {{\n{text}{dot}}}\n")
        (row,) = module.matmuls(rules=[("model", "recompute")])
        assert row["phase"] == "recompute"


class TestUtilization:
    TEXT = """
    x = f32[64,64] parameter(0)
    d = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp(M)/dot"}
    r = f32[64,64] dot(d, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/transpose(jvp(M))/rematted_computation/dot"}
    s = f32[64,64] all-reduce(r), to_apply=add, replica_groups={{0,1}}, metadata={op_name="jit(f)/transpose(jvp(M))/rematted_computation/psum"}
    ROOT n = f32[64,64] negate(s), metadata={op_name="jit(f)/transpose(jvp(M))/neg"}
    """

    def test_arithmetic(self) -> None:
        add = (
            "add {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(a, b)\n}"
        )
        cost = count(self.TEXT, add)
        dot = 2 * 64**3
        used = cost.mfu(0.5, 1e6)
        budget = 500_000
        assert used.matmul_mfu == pytest.approx(dot / budget, rel=1e-12)
        assert used.matmul_hfu == pytest.approx(2 * dot / budget, rel=1e-12)
        # The additions of the all-reduce are no part of either.
        assert used.mfu == pytest.approx((dot + 4096) / budget, rel=1e-12)
        assert used.hfu == pytest.approx((2 * dot + 4096) / budget, rel=1e-12)
        assert (used.step_seconds, used.peak_flops) == (0.5, 1e6)
        assert used == cost.mfu(0.5, 1e6) != cost.mfu(0.25, 1e6)
        assert used.as_dict()["mfu"] == used.mfu
        assert "matmul_mfu=" in repr(used)

    @pytest.mark.parametrize("given", [(0, 1e12), (1, 0), (-1, 1e12), (float("nan"), 1e12)])
    def test_times_and_peaks_that_are_none(self, given: tuple[float, float]) -> None:
        with pytest.raises(ValueError):
            count(self.TEXT.replace(", to_apply=add", "")).mfu(*given)
