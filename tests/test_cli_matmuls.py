"""`hlofast matmuls`: every matmul, as text and as JSON."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import Seeds
from hlofast._matmuls import KEYS, to_depth
from shown import check_one_source, figures
from test_cli import TWO_MODULES, document, hlofast_command


def only(*arguments: str | Path) -> Any:
    (module,) = document("matmuls", *arguments)["results"]
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
    rows = table.sort_by("flops", descending=True).to_pylist()
    for row in rows:
        row["instruction"] = row["name"]
    printed = [{name: row[name] for name in table.columns} for row in module["tables"]["matmuls"]]
    assert printed == rows
    assert set(module["tables"]) == {"matmuls"}
    assert figures(module) == {"matmuls": len(table), "flops": sum(table["flops"])}
    assert module["facts"]["flops"]["provenance"] == "exact"
    assert not table.is_lower_bound


def test_one_source(train_step: Path) -> None:
    table = hlofast.load(train_step).matmuls()
    check_one_source(table, hlofast_command("matmuls", train_step).stdout)
    again = pickle.loads(pickle.dumps(table))
    assert again == table
    assert str(again) == str(table)


def test_names_are_escaped_in_html() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    module = hlofast.loads(
        "HloModule m\n\nENTRY e {\n  a = f32[4,4] parameter(0)\n  ROOT d = f32[4,4] dot(a, a), "
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}, "
        f'metadata={{op_name="{hostile}" source_file="{hostile}" source_line=1}}\n}}\n'
    )
    html = module.matmuls()._repr_html_() + module.cost()._repr_html_()
    assert "<img" not in html
    assert "&lt;img" in html
    assert "bytes accessed" in html
    assert ">FLOP<" in html


def test_one_product(product: Path) -> None:
    (row,) = only(product)["tables"]["matmuls"]
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
    groups = module["tables"]["groups"]
    for name, total in (("instructions", "matmuls"), ("flops", "flops")):
        assert sum(group[name] for group in groups) == figures(module)[total]
    assert sum(group["share"] for group in groups) == pytest.approx(1)
    keys = [group["key"] for group in groups]
    assert len(set(keys)) == len(keys)
    title = f"\nBy {by.replace('_', ' ')}\n"
    assert title in hlofast_command("matmuls", train_step, "--by", by, "--top", "0").stdout


@pytest.mark.parametrize("depth", [0, 1, 2, 5, 1000])
def test_depth_of_scopes(train_step: Path, depth: int) -> None:
    arguments = ("--by", "scope", "--depth", str(depth))
    module = only(train_step, *arguments)
    groups = module["tables"]["groups"]
    assert sum(group["flops"] for group in groups) == figures(module)["flops"]
    # The same scopes as those of all instructions.
    scopes = hlofast.load(train_step).cost().by("scope", depth=depth)["scope"].tolist()
    assert {group["key"] for group in groups} <= set(scopes)
    title = f"\nBy scope to depth {depth}"
    assert title in hlofast_command("matmuls", train_step, *arguments).stdout
    assert "\nBy scope\n" in hlofast_command("matmuls", train_step, "--by", "scope").stdout


def test_slashes_in_brackets_part_no_scope() -> None:
    scope = "jit(f)/dot[dims=(/)]/c"
    cut = [to_depth(scope, depth) for depth in range(4)]
    assert cut == ["", "jit(f)", "jit(f)/dot[dims=(/)]", scope]


def test_long_scopes_are_cut_for_people_only(tmp_path: Path) -> None:
    scope = "jit(f)/" + "/".join(["very_long_component"] * 20)
    path = tmp_path / "long.txt"
    path.write_text(
        "HloModule m\n\nENTRY e {\n  a = f32[4,4] parameter(0)\n  ROOT d = f32[4,4] dot(a, a), "
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}, "
        f'metadata={{op_name="{scope}/dot_general"}}\n}}\n'
    )
    assert only(path)["tables"]["matmuls"][0]["scope"].startswith(scope)
    for verb, *more in (("matmuls",), ("matmuls", "--by", "scope"), ("cost", "--by", "scope")):
        shown = hlofast_command(verb, path, *more, "--depth", "40").stdout
        assert scope not in shown
        assert "jit(f)/very_long_com" in shown
        assert "…" in shown
    (printed,) = document("cost", path, "--by", "scope", "--depth", "40")["results"]
    groups = printed["tables"]["groups"]
    assert max(len(group["key"] or "") for group in groups) >= len(scope)


def test_top(train_step: Path) -> None:
    count = len(hlofast.load(train_step).matmuls())
    assert f"(3 of {count})" in hlofast_command("matmuls", train_step, "--top", "3").stdout
    assert len(only(train_step, "--top", "3")["tables"]["matmuls"]) == count


def test_none(tmp_path: Path) -> None:
    path = tmp_path / "page.txt"
    path.write_text(TWO_MODULES)
    modules = document("matmuls", path)["results"]
    assert [module["tables"]["matmuls"] for module in modules] == [[], []]
    done = hlofast_command("matmuls", path)
    assert done.returncode == 0
    assert len(re.findall(r"\nmatmuls +0\n", done.stdout)) == 2


def test_rules(product: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\npattern = 'jvp'\nphase = 'recompute'\n")
    (row,) = only(product, "--rules", rules)["tables"]["matmuls"]
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
        totals = figures(only(seeds.path(number)))
        assert (totals["matmuls"], totals["flops"]) == (instructions, flops)
