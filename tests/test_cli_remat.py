"""`hlofast remat`: what is recomputed and kept, for people and as JSON."""

from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, Seeds
from test_cli import document, hlofast_command

pytestmark = pytest.mark.once

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
    (module,) = document("remat", *arguments)["modules"]
    return module


def shown(*arguments: str | Path) -> str:
    done = hlofast_command("remat", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def statement(module: Any, code: str) -> Any:
    (found,) = [found for found in module["statements"] if found["code"] == code]
    return found


@pytest.mark.parametrize("path", [KEPT, STACKED, FIXTURES / "seedlike" / "gpu_train_step.txt.gz"])
def test_document_is_the_python_report(path: Path) -> None:
    module = only(path)
    remat = hlofast.load(path).remat()
    assert module["instructions"] == remat.instructions
    for name in ("recomputed", "residuals", "gathers"):
        table = getattr(remat, name)
        assert module["totals"][name] == len(module[name]) == len(table)
        assert sorted(row["name"] for row in module[name]) == sorted(table["name"].tolist())
    assert module["totals"]["residual_bytes"] == sum(remat.residuals["bytes"].tolist())
    assert module["totals"]["recomputed_flops"] == sum(remat.recomputed["flops"].tolist())
    assert [found["code"] for found in module["statements"]] == [
        found.code for found in remat.statements
    ]
    for printed, found in zip(module["statements"], remat.statements, strict=True):
        assert (printed["text"], printed["advice"]) == (found.text, found.advice)
        assert tuple(proof["row"] for proof in printed["instructions"]) == found.instructions
        assert tuple(proof["name"] for proof in printed["instructions"]) == found.names


def test_statements_of_the_issue_page(seeds: Seeds) -> None:
    module = only(seeds.path("003"))
    assert module["line"] == 124
    proofs = {
        found["code"]: [proof["name"] for proof in found["instructions"]]
        for found in module["statements"]
    }
    assert proofs["products-are-convolutions"] == ["convolution.5", "convolution.2"]
    assert proofs["no-forward"] == ["convolution.5", "convolution.2"]
    assert proofs["weight-gathers"] == ["all-gather", "all-gather.1"]
    assert len(proofs["recomputed-by-program"]) == 13
    assert {"param.1", "param.2"} < set(proofs["linear-chain"])
    assert "save_only_these_names" in statement(module, "name-before-constraint")["advice"]
    assert module["totals"]["kept_gathers"] == module["totals"]["residuals"] == 0


def test_kept_gather_for_people() -> None:
    text = shown(KEPT, *MESH)
    assert "\ngathers     3 all-gathers, 1 kept from forward to backward\n" in text
    assert "f32[1,2048,1024] over model" in text
    assert "[gather-kept]\n  proof: all-gather.23, " in text
    assert "  advice: name the tensor before the constraint" in text
    module = only(KEPT, *MESH)
    (kept,) = [row for row in module["gathers"] if row["fate"] == "kept"]
    assert kept["residual"] == {"name": "reduce_precision.2", "index": "{}", "bytes": 4_194_304}
    assert (kept["axes"], kept["group_size"], kept["wire_bytes"]) == ("model", 4, 6_291_456)


def test_stacks_for_people() -> None:
    text = shown(STACKED, "--top", "0")
    assert "activation, stacked 4 times" in text
    assert "\nKept from forward to backward\n" in text


def test_top() -> None:
    text = shown(STACKED, "--top", "2")
    count = len(only(STACKED, "--top", "2")["residuals"])
    assert f"\nKept from forward to backward (first 2 of {count})\n" in text


def test_notes(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text("HloModule m\nENTRY e { ROOT p = f32[8] parameter(0) }\n")
    module = only(path)
    assert {note["kind"] for note in module["notes"]} == {"no-backward", "global", "unscheduled"}
    assert module["statements"] == []
    assert "note: no instruction is known to be of a backward pass" in shown(path)


def test_residuals_told_by_their_place() -> None:
    module = only(SHARDED / "layers_cpu_4x2.txt.gz")
    count = sum(not row["is_named"] for row in module["residuals"])
    assert 0 < count < len(module["residuals"])
    (note,) = [note for note in module["notes"] if note["kind"] == "by-place"]
    assert note["text"].startswith(f"{count} residuals told by their place")


def test_rules(tmp_path: Path) -> None:
    path, rules = tmp_path / "m.txt", tmp_path / "rules.toml"
    path.write_text(
        "HloModule m\n\nENTRY e {\n"
        "  x = f32[8] parameter(0)\n"
        '  y = f32[8] negate(x), metadata={op_name="ahead"}\n'
        '  ROOT d = f32[8] multiply(y, x), metadata={op_name="behind"}\n}\n'
    )
    assert only(path)["residuals"] == []
    rules.write_text(
        '[[rule]]\npattern = "ahead"\nphase = "forward"\n'
        '[[rule]]\npattern = "behind"\nphase = "backward"\n'
    )
    assert [row["name"] for row in only(path, "--rules", rules)["residuals"]] == ["y"]


@pytest.mark.parametrize(
    "arguments", [("--mesh", "data"), ("--hosts", "2"), ("--rules", "none.toml")]
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
        said = "hlofast: note: --hbm 16 is in bytes; with a unit it is 16GiB or 16MiB\n"
        assert hlofast_command(verb, "--hbm", "16", train_step).stderr == said
        for size in ("16GiB", "17179869184", "0"):
            assert hlofast_command(verb, "--hbm", size, train_step).stderr == ""

    def test_what_no_plan_helps_is_said(self, tmp_path: Path) -> None:
        path = tmp_path / "small.txt"
        path.write_text(NEGATED)
        done = hlofast_command("remat", "--hbm", "16", path)
        assert (
            "no value that could be computed again brings the peak down, and it does not fit"
            in (done.stdout)
        )
        assert "fits as it is; nothing has to be computed again" in (
            hlofast_command("remat", "--hbm", "16GiB", path).stdout
        )


def test_a_module_that_cannot_be_written_is_exit_code_3(tmp_path: Path) -> None:
    out = tmp_path / "none" / "new.txt"
    unrolled = SHARDED / "mlp_unrolled_plain.txt.gz"
    wanted = hlofast.load(unrolled).remat().steps[0]
    done = hlofast_command("remat", "--hbm", str(wanted), "--apply", "-o", out, unrolled)
    assert done.returncode == 3
    assert f"{out}: No such file or directory" in done.stderr
