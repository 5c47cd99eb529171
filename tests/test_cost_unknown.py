"""Costs report what they do not know: unknown trip counts, matmuls of unknown size, long names."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import hlofast
from shown import codes, figures
from test_cli import document, hlofast_command
from test_cost_traps import UNPRICED, count

CUT = 4096
ENDLESS = (
    "c {\n s = (pred[], f32[8,8]) parameter(0)\n ROOT p = pred[] get-tuple-element(s), index=0\n}",
    """b {
  s = (pred[], f32[8,8]) parameter(0)
  p = pred[] get-tuple-element(s), index=0
  v = f32[8,8] get-tuple-element(s), index=1
  w = f32[8,8] call(v), to_apply=square
  q = pred[] not(p)
  ROOT t = (pred[], f32[8,8]) tuple(q, w)
}""",
)
SQUARE = """square {
  a = f32[8,8] parameter(0)
  ROOT d = f32[8,8] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""
LOOP = """
x = f32[8,8] parameter(0)
p = pred[] parameter(1)
y = f32[8,8] call(x), to_apply=square
t = (pred[], f32[8,8]) tuple(p, y)
ROOT w = (pred[], f32[8,8]) while(t), condition=c, body=b
"""
DOT = 2 * 8**3
UNSIZED = """
x = f32[?,8] parameter(0)
y = f32[8,8] parameter(1)
d = f32[?,8] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
g = f32[?,8] custom-call(x, y), custom_call_target="__cublas$gemm"
f = f32[8,8] custom-call(y), custom_call_target="nobody_knows"
ROOT e = f32[8,8] dot(y, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes a module with this entry and gives its path."""

    def write(body: str, *computations: str, header: str = "HloModule m") -> Path:
        path = tmp_path / "m.txt"
        path.write_text("\n".join([header, *computations, f"ENTRY e {{\n{body.strip()}\n}}\n"]))
        return path

    return write


def only(verb: str, *arguments: str | Path) -> Any:
    """The one module of a document that keeps to its schema."""
    (module,) = document(verb, *arguments)["results"]
    return module


def shown(*arguments: str | Path) -> str:
    done = hlofast_command(*arguments)
    assert done.returncode == 0
    return done.stdout


class TestLongNames:
    def test_texts_are_made_for_scopes_of_rows_and_cut(self) -> None:
        deep = "jit(f)" + "/a" * 20_000
        body = (
            f'x = f32[8] parameter(0)\ny = f32[8] negate(x), metadata={{op_name="{deep}/neg"}}\n'
            'ROOT z = f32[8] negate(y), metadata={op_name="jit(f)/b/neg"}'
        )
        cost = count(body)
        scopes = [cost.scopes[code] for code in cost.columns.scope]
        assert scopes == ["", deep[:CUT] + "…", "jit(f)/b/neg"]
        # Prefixes keep their numbers and have no text.
        assert len(cost.scopes) > 20_000
        assert sum(map(len, cost.scopes)) == CUT + 1 + len("jit(f)/b/neg")
        assert cost.table()["scope"].tolist() == [scope or None for scope in scopes]

    @pytest.mark.parametrize("length", [CUT - 1, CUT, CUT + 1])
    def test_where_texts_are_cut(self, length: int) -> None:
        name = (
            ("a/" * length)[: length - 2] + "/c" if length % 2 else "a/" * (length // 2 - 1) + "cd"
        )
        assert len(name) == length
        lines = [
            f'y{n} = f32[] negate(x), metadata={{op_name="{text}"}}'
            for n, text in enumerate((name, name + "/more", "b" * length, "b" * length + "/more"))
        ]
        cost = count("\n".join(["x = f32[] parameter(0)", *lines, "ROOT r = f32[] add(y0, y1)"]))
        scopes = [cost.scopes[code] for code in cost.columns.scope[1:5]]
        for text, scope in zip(
            (name, name + "/more", "b" * length, "b" * length + "/more"), scopes, strict=True
        ):
            assert scope == (text if len(text) <= CUT else text[:CUT] + "…")

    @pytest.mark.parametrize("before", range(4))
    def test_characters_stay_whole(self, before: int) -> None:
        name = "a" * (CUT - before) + "\U0001d6fc" * 10
        cost = count(f'ROOT x = f32[8] iota(), iota_dimension=0, metadata={{op_name="{name}"}}')
        text = cost.scopes[cost.columns.scope[0]]
        assert text == "a" * (CUT - before) + "…"

    def test_products_and_the_command_line(self, write: Any) -> None:
        deep = "jit(f)" + "/a" * 20_000
        dot = "dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        path = write(
            f'x = f32[8,8] parameter(0)\nROOT d = f32[8,8] {dot}, metadata={{op_name="{deep}"}}'
        )
        (row,) = only("matmuls", path)["tables"]["matmuls"]
        assert row["scope"] == deep[:CUT] + "…"
        assert "no-names" not in codes(only("cost", path))


class TestLoopsOfUnknownTripCount:
    def test_their_flops_stand_apart(self) -> None:
        cost = count(LOOP, SQUARE, *ENDLESS)
        assert cost.flops == 2 * DOT + 1
        # The same computation outside the loop is exact.
        known = cost.flops_by_provenance
        assert {name: flops for name, flops in known.items() if flops} == {
            "exact": DOT,
            "unknown_trip_count": DOT + 1,
        }
        exact = {row["computation"]: row["exact_flops"] for row in cost.by("computation")}
        assert {name: flops for name, flops in exact.items() if flops} == {"square": DOT}
        assert cost.matmuls()["is_lower_bound"].tolist() == [1]
        assert cost.mfu(1.0, 1e12).is_lower_bound

    def test_loops_of_known_length_are_exact(self, train_step: Path) -> None:
        cost = hlofast.load(train_step).cost()
        assert len(cost.loops) == 2
        assert cost.flops_by_provenance["unknown_trip_count"] == 0
        assert not cost.matmuls()["is_lower_bound"].any()

    def test_a_loop_inside_one_of_unknown_length(self) -> None:
        condition = """k {
  s = (s32[], f32[8,8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)
  ROOT lt = pred[] compare(i, n), direction=LT
}"""
        inner = """l {
  s = (s32[], f32[8,8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[8,8] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  d = f32[8,8] dot(v, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (s32[], f32[8,8]) tuple(j, d)
}"""
        body = ENDLESS[1].replace(
            "w = f32[8,8] call(v), to_apply=square",
            "z = s32[] constant(0)\n u = (s32[], f32[8,8]) tuple(z, v)\n"
            " r = (s32[], f32[8,8]) while(u), condition=k, body=l\n"
            " w = f32[8,8] get-tuple-element(r), index=1",
        )
        cost = count(
            LOOP.replace("call(x), to_apply=square", "negate(x)"),
            condition,
            inner,
            ENDLESS[0],
            body,
        )
        inside = 5 * (DOT + 1) + 6 + 1
        assert cost.flops_by_provenance["unknown_trip_count"] == inside
        assert cost.flops_by_provenance["exact"] == cost.flops - inside == 64

    def test_the_command_line_says_so(self, write: Any) -> None:
        path = write(LOOP, SQUARE, *ENDLESS)
        times = ("--step-seconds", "1", "--peak-flops", "1e12")
        module = only("cost", path, *times)
        known = {row["provenance"]: row["flops"] for row in module["tables"]["provenance"]}
        assert known["unknown_trip_count"] == DOT + 1
        table = hlofast_command("cost", path).stdout.partition("By phase")[2].splitlines()
        assert "not exact" in table[1]
        # One of two products, and the compare beside it.
        assert [line for line in table[2:4] if "50." in line]
        for name in ("flops", "bytes_read", "matmul_flops", "mfu", "matmul_hfu"):
            assert module["facts"][name]["provenance"] == "bound"
        text = " ".join(shown("cost", path, *times).split())
        assert f"exact {DOT:,} 50.0 %" in text
        assert f"unknown_trip_count {DOT + 1:,} 50.0 %" in text
        assert "note: 1 loop of unknown trip count, counted once: w" in text
        assert " MFU at least " in text
        assert f"matmul FLOP at least {2 * DOT / 1000:.2f} kFLOP" in text
        module = only("matmuls", path)
        assert [row["is_lower_bound"] for row in module["tables"]["matmuls"]] == [True]
        assert module["facts"]["flops"]["provenance"] == "bound"
        text = shown("matmuls", path)
        assert "is lower bound" in text
        assert "1 matmul inside loops of unknown trip count, counted once: w" in text


class TestUnknownProducts:
    def test_they_are_listed(self) -> None:
        cost = count(UNSIZED)
        assert [cost.module[int(row)].name for row in cost.unknown_products] == ["d", "g"]
        assert cost.unknown_products.dtype == "uint32"
        assert [row["name"] for row in cost.matmuls()] == ["e"]
        assert cost.mfu(1.0, 1e12).is_lower_bound
        xla = count(UNSIZED, xla=True)
        assert [cost.module[int(row)].name for row in xla.unknown_products] == ["d", "g"]

    def test_calls_that_someone_prices_are_known(self) -> None:
        cost = count(UNSIZED, custom_calls={"__cublas$gemm": lambda _: {"flops": 5}})
        assert [cost.module[int(row)].name for row in cost.unknown_products] == ["d"]

    def test_a_sized_module_has_none(self, train_step: Path) -> None:
        assert len(hlofast.load(train_step).cost().unknown_products) == 0

    @pytest.mark.parametrize("verb", ["cost", "matmuls"])
    def test_the_command_line_names_them(self, write: Any, verb: str) -> None:
        path = write(UNSIZED)
        module = only(verb, path)
        names = [row["instruction"] for row in module["tables"]["unknown_products"]]
        assert names == ["d", "g"]
        (note,) = (note for note in module["notes"] if note["code"] == "unknown-products")
        assert note["figures"] == {"products": 2}
        text = shown(verb, path)
        assert "note: 2 matmuls of unknown size, left out of totals: d, g" in text
        assert "at least" in text


def test_products_show_how_they_are_known(train_step: Path) -> None:
    header, *rows = shown("matmuls", train_step, "--top", "0").split("by FLOPs\n")[1].splitlines()
    assert "  provenance" in header
    assert all("  exact" in row for row in rows if row)


class TestUtilization:
    BODY = "x = f32[8,8] parameter(0){}\nROOT d = f32[8,8] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    HEADER = "HloModule m, num_partitions=8"

    def test_devices_share_what_is_not_partitioned(self, write: Any) -> None:
        body = self.BODY.format(", sharding={replicated}")
        used = count(body, header=self.HEADER).mfu(1.0, 1.0)
        assert (used.num_devices, used.is_lower_bound) == (8, False)
        assert Fraction(used.matmul_mfu) == Fraction(DOT, 8)
        assert used.mfu == used.hfu == used.matmul_hfu == used.matmul_mfu
        path = write(body, header=self.HEADER)
        times = ("--step-seconds", "1", "--peak-flops", "1e12")
        assert ["devices", "for", "MFU", "8"] in [
            line.split() for line in shown("cost", path, *times).splitlines()
        ]
        assert figures(only("cost", path, *times))["num_devices"] == 8

    def test_one_device_and_its_program(self, train_step: Path) -> None:
        assert count(self.BODY.format("")).mfu(1.0, 1.0).matmul_mfu == DOT
        module = hlofast.load(train_step)
        assert module.summary().values["num_partitions"] == 8
        used = module.cost().mfu(1.0, 1.0)
        assert used.num_devices == 1
        assert used.matmul_mfu < used.matmul_hfu == sum(module.matmuls()["flops"])

    def test_not_in_the_way_of_xla(self) -> None:
        with pytest.raises(ValueError, match="xla=True"):
            count(self.BODY.format(""), xla=True).mfu(1.0, 1.0)

    @pytest.mark.parametrize(
        "body",
        [UNPRICED, "x = f32[?] parameter(0)\nROOT y = f32[?] negate(x)"],
        ids=["unpriced", "unknown"],
    )
    def test_unknown_costs_make_lower_bounds(self, body: str) -> None:
        assert count(body).mfu(1.0, 1.0).is_lower_bound


class TestStated:
    def price(self, **figures: Any) -> hlofast.Cost:
        return count(UNPRICED, custom_calls={"nobody_knows": lambda _: figures})

    def test_what_is_missing(self) -> None:
        bytes_alone = self.price(bytes_read=7, bytes_written=0)
        assert (bytes_alone.bytes_read, bytes_alone.bytes_written) == (14, 0)
        assert len(bytes_alone.unpriced) == 1
        flops_alone = self.price(flops=5)
        assert (flops_alone.flops, flops_alone.transcendentals) == (10, 0)
        assert flops_alone.bytes_accessed == count(UNPRICED).bytes_accessed

    @pytest.mark.parametrize("name", ["bytes_read", "bytes_written"])
    def test_bytes_are_stated_both_or_not_at_all(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"^b: bytes_read and bytes_written"):
            self.price(flops=1, **{name: 7})

    @pytest.mark.parametrize("value", [1.5, "7", [1]])
    def test_what_is_no_integer_names_the_instruction(self, value: object) -> None:
        with pytest.raises(TypeError, match=r"^b: flops must be an integer"):
            self.price(flops=value)


class TestXlaForPeople:
    def test_custom_calls(self, train_step: Path, write: Any) -> None:
        known = "custom calls by their cost estimate, or as -1 FLOP and -1 byte"
        assert known in shown("cost", "--xla", "--backend", "tpu", train_step)
        text = shown("cost", "--xla", "--backend", "gpu", train_step)
        assert "every custom call as -1 FLOP and -1 byte" in text
