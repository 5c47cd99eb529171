"""`hlofast remat`: what is recomputed and kept, for people and as JSON."""

import gzip
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, Seeds
from test_cli import document, hlofast_command, validated

SHARDED = FIXTURES / "sharded"
MESH = ("--mesh", "data=2,model=4")
KEPT = SHARDED / "norm_v4_named_after.txt.gz"
STACKED = SHARDED / "mlp_scan_plain.txt.gz"

NEGATED = """\
HloModule small, is_scheduled=true

ENTRY e {
  p = f32[8]{0} parameter(0)
  ROOT n = f32[8]{0} negate(p)
}
"""


def only(*arguments: str | Path) -> Any:
    (module,) = document("remat", *arguments)["results"]
    return module


def values(module: Any) -> dict[str, Any]:
    return {name: fact["value"] for name, fact in module["facts"].items()}


def proofs(module: Any) -> dict[str, list[str]]:
    """The names of the instructions that prove each statement, by its code."""
    by_code: dict[str, list[str]] = {}
    for row in module["tables"]["proofs"]:
        code = module["tables"]["statements"][row["statement"]]["code"]
        by_code.setdefault(code, []).append(row["instruction"])
    return by_code


def shown(*arguments: str | Path) -> str:
    done = hlofast_command("remat", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def statement(module: Any, code: str) -> Any:
    (matching,) = [row for row in module["tables"]["statements"] if row["code"] == code]
    return matching


@pytest.mark.parametrize("path", [KEPT, STACKED, FIXTURES / "seedlike" / "gpu_train_step.txt.gz"])
def test_document_is_the_python_report(path: Path) -> None:
    module = only(path)
    remat = hlofast.load(path).remat()
    facts, tables = values(module), module["tables"]
    assert {row["phase"]: row["instructions"] for row in tables["phases"]} == remat.instructions
    for name in ("recomputed", "residuals", "gathers"):
        table = getattr(remat, name)
        assert facts[name] == len(tables[name]) == len(table)
        assert sorted(row["name"] for row in tables[name]) == sorted(table["name"].tolist())
    assert facts["residual_bytes"] == sum(remat.residuals["bytes"].tolist())
    assert facts["recomputed_flops"] == sum(remat.recomputed["flops"].tolist())
    assert sum(row["flops"] for row in tables["operations"]) == facts["recomputed_flops"]
    assert facts["recomputed"] == sum(facts[f"by_{by}"] for by in ("program", "compiler", "twin"))
    assert [row["code"] for row in tables["statements"]] == [own.code for own in remat.statements]
    for number, stated in enumerate(remat.statements):
        printed = tables["statements"][number]
        assert (printed["statement"], printed["text"]) == (number, stated.text)
        assert printed["advice"] == stated.advice
        own = [row["instruction"] for row in tables["proofs"] if row["statement"] == number]
        assert tuple(own) == stated.names
        figures = [row for row in tables["figures"] if row["statement"] == number]
        assert {row["figure"]: row["value"] for row in figures} == stated.figures


def test_statements_of_the_issue_page(seeds: Seeds) -> None:
    module = only(seeds.path("003"))
    assert module["line"] == 124
    proven = proofs(module)
    assert proven["products-are-convolutions"] == ["convolution.5", "convolution.2"]
    assert proven["no-forward"] == ["convolution.5", "convolution.2"]
    assert proven["weight-gathers"] == ["all-gather", "all-gather.1"]
    assert len(proven["recomputed-by-program"]) == 13
    assert {"param.1", "param.2"} < set(proven["linear-chain"])
    assert "save_only_these_names" in statement(module, "name-before-constraint")["advice"]
    assert values(module)["kept_gathers"] == values(module)["residuals"] == 0


def test_kept_gather_for_people() -> None:
    text = shown(KEPT, *MESH)
    assert "\nall-gathers             3\nkept all-gathers        1\n" in text
    assert "f32[1,2048,1024] along model" in text
    assert "[gather-kept]\n  evidence: all-gather.23, " in text
    assert "  advice: save neither the tensor nor the shard before the constraint" in text
    module = only(KEPT, *MESH)
    (kept,) = [row for row in module["tables"]["gathers"] if row["fate"] == "kept"]
    assert kept["kept_as"] == "reduce_precision.2"
    assert (kept["kept_index"], kept["kept_bytes"]) == ("{}", 4_194_304)
    assert (kept["axes"], kept["group_size"], kept["wire_bytes"]) == ("model", 4, 6_291_456)


def test_stacks_for_people() -> None:
    text = shown(STACKED, "--top", "0")
    stacks = [row for row in only(STACKED)["tables"]["residuals"] if row["is_stacked"]]
    assert {row["trip_count"] for row in stacks} == {4}
    assert "  stacked  trip count  " in text
    assert "\nKept from forward to backward\n" in text


def test_top() -> None:
    text = shown(STACKED, "--top", "2")
    count = len(only(STACKED, "--top", "2")["tables"]["residuals"])
    assert f"\nKept from forward to backward (2 of {count})\n" in text


def test_notes(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text("HloModule m\nENTRY e { ROOT p = f32[8] parameter(0) }\n")
    module = only(path)
    assert {note["code"] for note in module["notes"]} == {"no-backward", "unscheduled"}
    assert module["tables"]["statements"] == []
    assert "note: no instruction is known to belong to a backward pass" in shown(path)


def test_residuals_told_by_their_place() -> None:
    module = only(SHARDED / "layers_cpu_4x2.txt.gz")
    residuals = module["tables"]["residuals"]
    count = sum(not row["is_named"] for row in residuals)
    assert 0 < count < len(residuals)
    (note,) = [note for note in module["notes"] if note["code"] == "by-place"]
    assert note["figures"] == {"residuals": count}
    assert note["text"].startswith(f"{count} residuals identified by position")


def test_rules(tmp_path: Path) -> None:
    path, rules = tmp_path / "m.txt", tmp_path / "rules.toml"
    path.write_text(
        "HloModule m\n\nENTRY e {\n"
        "  x = f32[8] parameter(0)\n"
        '  y = f32[8] negate(x), metadata={op_name="ahead"}\n'
        '  ROOT d = f32[8] multiply(y, x), metadata={op_name="behind"}\n}\n'
    )
    assert only(path)["tables"]["residuals"] == []
    rules.write_text(
        '[[rule]]\npattern = "ahead"\nphase = "forward"\n'
        '[[rule]]\npattern = "behind"\nphase = "backward"\n'
    )
    residuals = only(path, "--rules", rules)["tables"]["residuals"]
    assert [row["name"] for row in residuals] == ["y"]


def test_the_command_prints_the_result() -> None:
    remat = hlofast.load(KEPT, mesh="data=2,model=4").remat()
    printed = shown(KEPT, *MESH).splitlines()
    assert [printed[0], *printed[2:]] == [*str(remat).splitlines(), ""]
    (own,) = validated("remat", remat.to_json())["results"]
    assert own == remat.to_dict()
    assert set(remat.tables) == set(only(KEPT, *MESH)["tables"])


def test_statements_that_are_not_shown_are_counted() -> None:
    count = len(hlofast.load(KEPT).remat().statements)
    assert count > 2
    assert f"\nConclusions (2 of {count})\n" in shown(KEPT, "--top", "2")


def test_html_escapes_names() -> None:
    text = gzip.decompress(KEPT.read_bytes()).decode().replace("sharded_models.py", "<b>.py")
    html = hlofast.loads(text).remat()._repr_html_()
    assert "&lt;b&gt;.py" in html
    assert "<b>.py" not in html
    assert "4,194,304 B" in html


@pytest.mark.parametrize(
    "arguments", [("--mesh", "data"), ("--hosts", "3"), ("--rules", "none.toml")]
)
def test_wrong_arguments(arguments: tuple[str, ...]) -> None:
    done = hlofast_command("remat", KEPT, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hlofast: ")


def test_unreadable_files(tmp_path: Path) -> None:
    done = hlofast_command("remat", tmp_path / "none.txt", "--json")
    assert done.returncode == 3


class TestSizesWithoutUnits:
    @pytest.mark.parametrize("verb", ["remat", "stages"])
    def test_small_ones_are_said_to_be_bytes(self, verb: str, train_step: Path) -> None:
        said = "hlofast: note: --hbm 16 is read as bytes; did you mean 16GiB or 16MiB?\n"
        assert hlofast_command(verb, "--hbm", "16", train_step).stderr == said
        for size in ("16GiB", "17179869184"):
            assert hlofast_command(verb, "--hbm", size, train_step).stderr == ""

    @pytest.mark.parametrize("verb", ["remat", "stages"])
    def test_no_memory_is_refused(self, verb: str, train_step: Path) -> None:
        done = hlofast_command(verb, "--hbm", "0", train_step)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--hbm 0: '0' is not a memory" in done.stderr

    def test_what_no_plan_helps_is_said(self, tmp_path: Path) -> None:
        path = tmp_path / "small.txt"
        path.write_text(NEGATED)
        done = hlofast_command("remat", "--hbm", "16", path)
        assert "no candidate lowers the peak, and it does not fit" in (done.stdout)
        assert "fits as it is; nothing to recompute" in (
            hlofast_command("remat", "--hbm", "16GiB", path).stdout
        )


def test_a_module_that_cannot_be_written_is_exit_code_3(tmp_path: Path) -> None:
    out = tmp_path / "none" / "new.txt"
    unrolled = SHARDED / "mlp_unrolled_plain.txt.gz"
    wanted = hlofast.load(unrolled).remat().steps[0]
    done = hlofast_command("remat", "--hbm", str(wanted), "--apply", "-o", out, unrolled)
    assert done.returncode == 3
    assert f"{out.parent}: No such file or directory" in done.stderr


def test_the_place_is_checked_even_where_nothing_would_be_written(tmp_path: Path) -> None:
    unrolled = SHARDED / "mlp_unrolled_plain.txt.gz"
    fits = ("remat", "--hbm", "16GiB", "--apply", "-o")
    done = hlofast_command(*fits, tmp_path / "new.txt", unrolled)
    assert done.returncode == 1 and "nothing was written" in done.stderr
    none = tmp_path / "none"
    for out, said in (
        (none / "new.txt", f"{none}: No such file"),
        (tmp_path, f"{tmp_path}: Is a directory"),
    ):
        done = hlofast_command(*fits, out, unrolled)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith(f"hlofast: {said}")
