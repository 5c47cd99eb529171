"""`hlofast matmuls`: every matrix product, for people and as JSON."""

from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import Seeds
from hlofast.cli import matmuls
from hlofast.cli.matmuls import KEYS
from test_cli import TWO_MODULES, document, hlofast_command

pytestmark = pytest.mark.once


def only(*arguments: str | Path) -> Any:
    (module,) = document("matmuls", *arguments)["modules"]
    return module


@pytest.fixture
def product(tmp_path: Path) -> Path:
    path = tmp_path / "m.txt"
    path.write_text(
        "HloModule m\n\nENTRY e {\n"
        "  a = bf16[4,128,512] parameter(0)\n  b = bf16[4,512,256] parameter(1)\n"
        "  ROOT d = f32[4,128,256] dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0},"
        " lhs_contracting_dims={2}, rhs_contracting_dims={1},"
        ' metadata={op_name="jit(f)/jvp(M)/dot" source_file="model.py" source_line=12}\n}\n'
    )
    return path


def test_document_is_the_python_table(train_step: Path) -> None:
    module = only(train_step)
    table = hlofast.load(train_step).matmuls()
    rows = sorted(table.to_pylist(), key=lambda row: -row["flops"])
    assert module["matmuls"] == rows
    assert module["groups"] is None
    assert module["totals"] == {
        "instructions": len(table),
        "flops": sum(table["flops"]),
        "is_lower_bound": False,
    }


def test_one_product(product: Path) -> None:
    (row,) = only(product)["matmuls"]
    assert [row[name] for name in ("kind", "batch", "m", "n", "k")] == ["dot", 4, 128, 256, 512]
    assert row["flops"] == 2 * 4 * 128 * 256 * 512
    assert (row["source_file"], row["source_line"]) == ("model.py", 12)
    assert (row["lhs_dtype"], row["output_dtype"]) == ("bf16", "f32")
    assert row["phase"] == "forward"
    shown = hlofast_command("matmuls", product).stdout
    assert "model.py:12" in shown
    assert "bf16 bf16 -> f32" in shown
    assert "100.0 %" in shown


@pytest.mark.parametrize("by", KEYS)
def test_groups_add_up(train_step: Path, by: str) -> None:
    module = only(train_step, "--by", by)
    for name in ("instructions", "flops"):
        assert sum(group[name] for group in module["groups"]) == module["totals"][name]
    keys = [group["key"] for group in module["groups"]]
    assert len(set(keys)) == len(keys)
    title = f"\nBy {by.replace('_', ' ')}\n"
    assert title in hlofast_command("matmuls", train_step, "--by", by, "--top", "0").stdout


@pytest.mark.parametrize("depth", [0, 1, 2, 5, 1000])
def test_depth_of_scopes(train_step: Path, depth: int) -> None:
    arguments = ("--by", "scope", "--depth", str(depth))
    whole = document("matmuls", train_step, *arguments)
    assert (whole["by"], whole["depth"]) == ("scope", depth)
    (module,) = whole["modules"]
    assert sum(group["flops"] for group in module["groups"]) == module["totals"]["flops"]
    # The same scopes as those of all instructions.
    scopes = hlofast.load(train_step).cost().by("scope", depth=depth)["scope"].tolist()
    assert {group["key"] or "" for group in module["groups"]} <= set(scopes)
    title = f"\nBy scope to depth {depth}"
    assert title in hlofast_command("matmuls", train_step, *arguments).stdout
    assert document("matmuls", train_step, "--by", "scope")["depth"] is None


def test_slashes_in_brackets_part_no_scope() -> None:
    scope = "jit(f)/dot[dims=(/)]/c"
    found = [matmuls._to_depth(scope, depth) for depth in range(4)]
    assert found == ["", "jit(f)", "jit(f)/dot[dims=(/)]", scope]


def test_long_scopes_are_cut_for_people_only(tmp_path: Path) -> None:
    scope = "jit(f)/" + "/".join(["very_long_component"] * 20)
    path = tmp_path / "long.txt"
    path.write_text(
        "HloModule m\n\nENTRY e {\n  a = f32[4,4] parameter(0)\n  ROOT d = f32[4,4] dot(a, a), "
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}, "
        f'metadata={{op_name="{scope}/dot_general"}}\n}}\n'
    )
    assert only(path)["matmuls"][0]["scope"].startswith(scope)
    for verb, *more in (("matmuls",), ("matmuls", "--by", "scope"), ("cost", "--by", "scope")):
        shown = hlofast_command(verb, path, *more, "--depth", "40").stdout
        assert scope not in shown
        assert "jit(f)/very_long_com" in shown
        assert "…" in shown
    groups = document("cost", path, "--by", "scope", "--depth", "40")["modules"][0]["groups"]
    assert max(len(group["key"] or "") for group in groups) >= len(scope)


def test_top(train_step: Path) -> None:
    count = len(hlofast.load(train_step).matmuls())
    assert f"(first 3 of {count})" in hlofast_command("matmuls", train_step, "--top", "3").stdout
    assert len(only(train_step, "--top", "3")["matmuls"]) == count


def test_none(tmp_path: Path) -> None:
    path = tmp_path / "page.txt"
    path.write_text(TWO_MODULES)
    modules = document("matmuls", path)["modules"]
    assert [module["matmuls"] for module in modules] == [[], []]
    done = hlofast_command("matmuls", path)
    assert done.returncode == 0
    assert done.stdout.count("0 instructions") == 2


def test_rules(product: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\npattern = 'jvp'\nphase = 'recompute'\n")
    (row,) = only(product, "--rules", rules)["matmuls"]
    assert row["phase"] == "recompute"
    rules.write_text("rule")
    assert hlofast_command("matmuls", product, "--rules", rules).returncode == 2


def test_wrong_usage(train_step: Path) -> None:
    assert hlofast_command("matmuls", train_step, "--by", "colour").returncode == 2
    assert hlofast_command("matmuls").returncode == 2
    assert hlofast_command("matmuls", "no such file").returncode == 3


def test_seeds(seeds: Seeds) -> None:
    facts = {
        "001": (9, 3_398_392_872_960),
        "002": (151, 631_360_192_512),
        "003": (2, 8_589_934_592),
    }
    for number, (instructions, flops) in facts.items():
        totals = only(seeds.path(number))["totals"]
        assert (totals["instructions"], totals["flops"]) == (instructions, flops)
