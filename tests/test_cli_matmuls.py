"""`hlofast matmuls`: every matrix product, for people and as JSON."""

from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import Seeds
from hlofast.cli.matmuls import KEYS
from test_cli import TWO_MODULES, document, hlofast_command


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
