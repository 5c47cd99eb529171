"""`hlofast cost`: text, JSON, notes and exit codes."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hlofast
import schemas
from conftest import Seeds
from hlofast import _text as output
from hlofast._cost_sections import KEYS
from hlofast.cli import main
from shown import check_one_source, figures
from test_cli import TWO_MODULES, document, hlofast_command
from test_cost import DUMPS
from test_cost_traps import BRANCHES, CONDITIONAL, LOOPED, NESTED, UNPRICED


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes a module with this entry and gives its path."""

    def write(body: str, *computations: str, header: str = "HloModule m") -> Path:
        path = tmp_path / "m.txt"
        path.write_text("\n".join([header, *computations, f"ENTRY e {{\n{body.strip()}\n}}\n"]))
        return path

    return write


def only(*arguments: str | Path) -> Any:
    (module,) = document("cost", *arguments)["results"]
    return module


def notes(path: Path, *arguments: str) -> dict[str, Any]:
    return {note["code"]: note["figures"] for note in only(path, *arguments)["notes"]}


UNKNOWN_NAME = """x = f32[8] parameter(0)
a = f32[8] negate(x), metadata={op_name="jit(f)/jvp(m)/neg"}
ROOT b = f32[8] negate(a), metadata={op_name="model/dense"}"""


class TestDocument:
    @pytest.mark.parametrize("by", KEYS)
    def test_it_is_the_python_cost(self, train_step: Path, by: str) -> None:
        module = only(train_step, "--by", by)
        cost = hlofast.load(train_step).cost()
        totals, tables = figures(module), module["tables"]
        for name in ("flops", "transcendentals", "bytes_accessed", "bytes_read", "bytes_written"):
            assert totals[name] == getattr(cost, name)
        groups = {row[by]: row["flops"] for row in cost.by(by)}
        assert {row["key"]: row["flops"] for row in tables["groups"]} == groups
        for name in ("flops", "transcendentals", "bytes_accessed"):
            assert sum(row[name] for row in tables["groups"]) == totals[name]
        for name in ("flops_share", "bytes_share"):
            assert sum(row[name] for row in tables["groups"]) == pytest.approx(1)
        exact = sum(row["exact_flops"] for row in tables["groups"])
        assert exact == cost.flops_by_provenance["exact"]
        flops = [row["flops"] for row in tables["groups"]]
        assert flops == sorted(flops, reverse=True)
        known = {row["provenance"]: row["flops"] for row in tables["provenance"]}
        assert known == {how: own for how, own in cost.flops_by_provenance.items() if own}
        assert tables["memory_spaces"] == cost.memory_spaces.to_pylist()
        assert totals["matmul_flops"] == sum(cost.matmuls()["flops"])
        assert totals["matmul_share"] == totals["matmul_flops"] / cost.flops
        assert module["facts"]["flops"]["provenance"] == "modelled"

    def test_one_source(self, train_step: Path) -> None:
        for xla in (False, True):
            cost = hlofast.load(train_step).cost(xla=xla)
            options = ["--xla"] if xla else []
            check_one_source(cost, hlofast_command("cost", train_step, *options).stdout)

    def test_depth(self, train_step: Path) -> None:
        module = only(train_step, "--by", "scope", "--depth", "2")
        assert all((row["key"] or "").count("/") <= 1 for row in module["tables"]["groups"])
        shown = hlofast_command("cost", train_step, "--by", "scope", "--depth", "2").stdout
        assert "\nBy scope to depth 2" in shown

    def test_unattributed_share_is_there_whatever_the_rows(self, write: Any) -> None:
        path = write(UNKNOWN_NAME)
        expected = notes(path)["unattributed"]
        assert expected["instructions"] > 0
        (row,) = (row for row in hlofast.load(path).cost().by("phase").to_pylist()
                  if row["phase"] == "unattributed")  # fmt: skip
        assert expected == {name: row[name] for name in expected}
        assert notes(path, "--by", "opcode")["unattributed"] == expected
        text = "50.0 % of the FLOPs and 50.0 % of the bytes belong to no known phase"
        for options in ([], ["--xla"]):
            assert text in hlofast_command("cost", path, *options).stdout

    def test_xla(self, train_step: Path) -> None:
        module = only(train_step, "--xla")
        cost = hlofast.load(train_step).cost(xla=True)
        assert figures(module) == {
            "way": "as XLA's HloCostAnalysis",
            "backend": "tpu",
            "flops": cost.flops,
            "transcendentals": cost.transcendentals,
            "bytes_accessed": cost.bytes_accessed,
            "matmuls": len(cost.matmuls()),
        }
        assert [row["bytes_read"] for row in module["tables"]["groups"]] == [None] * 5

    def test_explain(self, train_step: Path) -> None:
        module = only(train_step, "--explain")
        cost = hlofast.load(train_step).cost()
        assert module["tables"]["explain"] == cost.explain().to_pylist()
        xla = cost.module.cost(xla=True)
        assert module["tables"]["xla"] == [
            {
                "figure": name,
                "executed": getattr(cost, name),
                "xla": getattr(xla, name),
                "share": getattr(xla, name) / getattr(cost, name),
            }
            for name in ("flops", "transcendentals", "bytes_accessed")
        ]
        assert not {"explain", "xla"} & set(only(train_step)["tables"])

    def test_backend(self, train_step: Path) -> None:
        cost = hlofast.load(train_step).cost(backend="cpu")
        module = only(train_step, "--backend", "cpu")
        assert figures(module)["backend"] == "cpu"
        assert figures(module)["bytes_accessed"] == cost.bytes_accessed

    def test_utilization(self, train_step: Path) -> None:
        module = only(train_step, "--step-seconds", "0.001", "--peak-flops", "197e12")
        used = hlofast.load(train_step).cost().mfu(0.001, 197e12)
        shown = figures(module)
        for name in ("mfu", "hfu", "matmul_mfu", "matmul_hfu", "step_seconds", "peak_flops"):
            assert shown[name] == getattr(used, name)
        assert module["facts"]["mfu"]["provenance"] == "modelled"
        assert "mfu" not in figures(only(train_step))
        module = only(train_step, "--step-seconds", "1ms", "--device", "tpu-v5e")
        assert figures(module)["peak_flops"] == hlofast.devices.get("tpu-v5e").per_jax_device(
            "flops.bf16"
        )
        told = hlofast.load(train_step, step_seconds=0.001, device="tpu-v5e").cost()
        assert {fact.name: fact.value for fact in told.facts} == figures(module)
        with pytest.raises(ValueError, match="not a rate such as 197T"):
            told.module.cost(peak_flops=0)

    def test_several_modules_and_what_cannot_be_read(self, tmp_path: Path) -> None:
        page = tmp_path / "page.txt"
        page.write_text(
            TWO_MODULES + "\nHloModule third\n\nENTRY e {\n ROOT x = f32[] add(y, z)\n}\n"
        )
        whole = document("cost", page)
        assert [module["name"] for module in whole["results"]] == ["first", "second"]
        assert [error["kind"] for error in whole["errors"]] != []
        done = hlofast_command("cost", page)
        assert done.returncode == 3
        assert "third" not in done.stdout

    def test_loops_branches_and_what_is_unknown(self, write: Any) -> None:
        module = only(write(LOOPED.format(shape="f32[64]"), *NESTED))
        assert [(row["name"], row["trip_count"]) for row in module["tables"]["loops"]] == [
            ("inner", 4),
            ("w", 3),
        ]
        module = only(write(CONDITIONAL, *BRANCHES))
        assert [row["is_counted"] for row in module["tables"]["branches"]] == [True, False]
        module = only(write(UNPRICED))
        assert module["tables"]["unpriced"] == [
            {"target": "nobody_knows", "instructions": 2, "executions": 2, "instruction": "b"}
        ]
        assert module["facts"]["flops"]["provenance"] == "bound"
        path = write("x = f32[?] parameter(0)\nROOT y = f32[?] negate(x)")
        assert notes(path)["unknown"] == {"instructions": 1}
        module = only(path)
        assert module["tables"]["unknown"] == [
            {"instruction": "y", "opcode": "negate", "shape": "f32[?]"}
        ]
        assert module["facts"]["bytes_accessed"]["provenance"] == "bound"

    def test_documents_of_every_dump_keep_to_the_schemas(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for verb, options in (("cost", ["--explain"]), ("cost", ["--xla"]), ("matmuls", [])):
            assert main([verb, *options, "--json", *map(str, DUMPS)]) == 0
            printed = json.loads(capsys.readouterr().out)
            schemas.check(verb, printed)
            assert len(printed["results"]) >= len(DUMPS)

    def test_seeds(self, seeds: Seeds) -> None:
        for number in ("001", "002", "003"):
            module = only(seeds.path(number), "--explain")
            flops = sum(row["flops"] for row in module["tables"]["groups"])
            assert flops == figures(module)["flops"]


SHARDED = "sharding={devices=[8]<=[8]}"


class TestNotes:
    def test_unfused_bytes_and_their_lower_bound(self, write: Any) -> None:
        path = write("x = f32[8] parameter(0)\na = f32[8] negate(x)\nROOT b = f32[8] negate(a)")
        assert notes(path)["unfused"] == {"lower_bound_bytes": 64}
        assert figures(only(path))["bytes_accessed"] == 128
        assert (
            "at least 64 B to read parameters and write results once"
            in hlofast_command("cost", path).stdout
        )

    def test_global_or_per_device(self, write: Any) -> None:
        header = "HloModule m, num_partitions=8"
        before = write(
            f"x = f32[8] parameter(0), {SHARDED}\nROOT y = f32[8] negate(x)", header=header
        )
        assert notes(before)["global"] == {"num_partitions": 8}
        after = write(
            "x = f32[1] parameter(0)\nROOT y = f32[8] all-gather(x), channel_id=1, dimensions={0}",
            header=header,
        )
        assert notes(after)["per-device"] == {"num_partitions": 8}
        assert "global" not in notes(after)

    def test_an_optimised_dump_has_no_such_notes(self, train_step: Path) -> None:
        assert set(notes(train_step)) == {"per-device"}

    def test_no_names(self, write: Any, train_step: Path) -> None:
        path = write("x = f32[8] parameter(0)\nROOT b = f32[8] negate(x)")
        assert "no-names" in notes(path)
        name = 'metadata={op_name="jit(f)/jvp(M)/neg"}'
        path = write(f"x = f32[8] parameter(0)\nROOT b = f32[8] negate(x), {name}")
        assert "no-names" not in notes(path)

    def test_dead_instructions(self, write: Any) -> None:
        path = write("x = f32[8] parameter(0)\nd = f32[8] negate(x)\nROOT b = f32[8] sine(x)")
        assert notes(path)["dead"] == {"instructions": 1, "flops_once": 8}

    def test_branches(self, write: Any) -> None:
        path = write(CONDITIONAL, *BRANCHES)
        assert notes(path)["branches"] == {"conditionals": 1}
        assert "branches" not in notes(path, "--xla")

    def test_executions_beyond_64_bits(self, write: Any) -> None:
        nested = [part.replace("constant(4)", "constant(2000000000)") for part in NESTED]
        nested = [part.replace("constant(3)", "constant(2000000000)") for part in nested]
        deep = [part.replace("b1", "b2").replace("c1", "c2") for part in nested[:2]]
        # A third level, so that 8e27 executions of its body are beyond 64 bits.
        nested[1] = nested[1].replace(
            "w = f32[64] add(v, v)",
            "z = s32[] constant(0)\n  t0 = (s32[], f32[64]) tuple(z, v)\n"
            "  loop = (s32[], f32[64]) while(t0), condition=c2, body=b2\n"
            "  w = f32[64] get-tuple-element(loop), index=1",
        )
        path = write(LOOPED.format(shape="f32[64]"), *deep, *nested)
        assert "overflow" in notes(path)
        assert hlofast_command("cost", path).returncode == 0


class TestForPeople:
    def test_headline_and_table(self, train_step: Path) -> None:
        cost = hlofast.load(train_step).cost()
        done = hlofast_command("cost", train_step)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{cost.module.name}\n")
        assert f"({cost.flops:,})" in done.stdout
        assert output.size(cost.bytes_read) in done.stdout
        assert "belong to no known phase" not in done.stdout
        for word in (
            "HBM read",
            "modelled: operands read once",
            "matmuls",
            "By phase",
            "Loops",
        ):
            assert word in done.stdout
        assert "\x1b" not in done.stdout

    def test_every_phase_row_has_its_share(self, train_step: Path) -> None:
        cost = hlofast.load(train_step).cost()
        lines = hlofast_command("cost", train_step).stdout.splitlines()
        for row in cost.by("phase"):
            (line,) = (
                line
                for line in lines
                if line.startswith(f"{row['phase']} ") and "belong" not in line
            )
            cells = f"{row['flops']:,} {output.share(row['flops'] / cost.flops, 1)}"
            assert cells in " ".join(line.split())

    def test_top(self, train_step: Path) -> None:
        cut = re.compile(r"^By opcode \(2 of \d+\)$", re.M)
        printed = {
            top: hlofast_command("cost", train_step, "--by", "opcode", "--top", top).stdout
            for top in ("2", "0")
        }
        assert cut.search(printed["2"])
        assert not re.search(r"\(\d+ of \d+\)", printed["0"])

    def test_xla_says_what_it_leaves_out(self, train_step: Path) -> None:
        shown = hlofast_command("cost", "--xla", train_step).stdout
        assert "every loop once, and custom calls by their cost estimate" in shown
        assert "not exact" not in shown
        assert "Loops (counted once)" in shown

    def test_explanation_lists_the_rules_that_concern_the_module(self, train_step: Path) -> None:
        shown = hlofast_command("cost", "--explain", "--top", "0", train_step).stdout
        for row in hlofast.load(train_step).cost().explain():
            stands = f"\n{row['rule']}: {row['instructions']:,} instruction" in shown
            assert stands is (row["instructions"] > 0)
        assert "As executed and by XLA's HloCostAnalysis" in shown

    def test_unknowns_are_named(self, write: Any) -> None:
        shown = hlofast_command("cost", write(UNPRICED)).stdout
        assert "nobody_knows" in shown
        assert "Custom calls of unknown cost" in shown
        condition = (
            "c {\n s = (pred[]) parameter(0)\n ROOT p = pred[] get-tuple-element(s), index=0\n}"
        )
        body = "b {\n s = (pred[]) parameter(0)\n ROOT t = (pred[]) copy(s)\n}"
        path = write(
            "p = pred[] parameter(0)\nt = (pred[]) tuple(p)\nROOT w = (pred[]) while(t), condition=c, body=b",
            condition,
            body,
        )
        shown = hlofast_command("cost", path).stdout
        assert "note: 1 loop of unknown trip count, counted once: w" in shown
        path = write("x = f32[?] parameter(0)\nROOT y = f32[?] negate(x)")
        assert "note: 1 instruction of unknown cost: y" in hlofast_command("cost", path).stdout

    def test_utilization(self, train_step: Path) -> None:
        used = hlofast.load(train_step).cost().mfu(0.001, 197e12)
        shown = hlofast_command(
            "cost", train_step, "--step-seconds", "0.001", "--peak-flops", "197e12"
        ).stdout
        lines = [line.split() for line in shown.splitlines()]
        assert ["matmul", "MFU", *output.share(used.matmul_mfu, 1).split()] in lines
        assert ["HFU", *output.share(used.hfu, 1).split()] in lines

    def test_names_cannot_steer_the_terminal(self, write: Any) -> None:
        path = write(
            'x = f32[8] parameter(0)\nROOT y = f32[8] custom-call(x), custom_call_target="a\\033[2J"'
        )
        assert "\x1b" not in hlofast_command("cost", path).stdout


class TestUsage:
    @pytest.mark.parametrize(
        "arguments",
        [
            ("--by", "colour"),
            ("--backend", "abacus"),
            ("--xla", "--explain"),
            ("--step-seconds", "1"),
            ("--peak-flops", "1"),
            ("--step-seconds", "0", "--peak-flops", "1"),
            ("--step-seconds", "nan", "--peak-flops", "1"),
            ("--step-seconds", "1", "--peak-flops", "1", "--xla"),
            ("--depth", "-1"),
            ("--top", "x"),
            ("--rules", "no such file.toml"),
        ],
    )
    def test_wrong_usage_is_exit_code_2(self, train_step: Path, arguments: tuple[str, ...]) -> None:
        done = hlofast_command("cost", train_step, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(
        "text",
        [
            "[[rule]]\npattern = '('\nphase = 'forward'\n",
            "[[rule]]\npattern = 'x'\nphase = 'sideways'\n",
            "[[rule]]\n",
            "rule",
            "\xff",
        ],
    )
    def test_rules_that_are_none(self, text: str, train_step: Path, tmp_path: Path) -> None:
        path = tmp_path / "rules.toml"
        path.write_text(text, encoding="latin-1")
        done = hlofast_command("cost", train_step, "--rules", path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"hlofast: {path}: ")
        assert "Traceback" not in done.stderr

    def test_rules(self, write: Any, tmp_path: Path) -> None:
        rules = tmp_path / "rules.toml"
        rules.write_text("[[rule]]\npattern = 'apply/'\nphase = 'optimizer'\n")
        path = write(
            'x = f32[8] parameter(0)\nROOT y = f32[8] negate(x), metadata={op_name="apply/neg"}'
        )
        module = only(path, "--rules", rules)
        groups = {row["key"]: row["flops"] for row in module["tables"]["groups"]}
        assert groups["optimizer"] == 8

    def test_loads_no_numpy(self, train_step: Path) -> None:
        rest = ["--explain", "--step-seconds", "1", "--peak-flops", "1e12", str(train_step)]
        code = (
            "import sys\nfrom hlofast.__main__ import main\n"
            f"main({['cost', *rest]!r})\nmain({['matmuls', str(train_step)]!r})\n"
            "print('\\n'.join(sys.modules), file=sys.stderr)"
        )
        command = [sys.executable, "-P", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert not {"numpy", "json", "inspect", "dataclasses", "typing"} & set(done.stderr.split())


class TestFigures:
    @pytest.mark.parametrize(
        ("count", "text"),
        [
            (0, "0 FLOP"),
            (999, "999 FLOP"),
            (1_000, "1.00 kFLOP (1,000)"),
            (631_360_192_512, "631.36 GFLOP (631,360,192,512)"),
            (999_999_999, "1.00 GFLOP (999,999,999)"),
            (-2, "-2 FLOP"),
        ],
    )
    def test_quantities(self, count: int, text: str) -> None:
        assert output.quantity(count, "FLOP") == text

    @pytest.mark.parametrize(
        ("part", "whole", "text"),
        [
            (0, 10, "0.0 %"),
            (10, 10, "100.0 %"),
            (1, 3, "33.3 %"),
            (1, 10**9, "<0.1 %"),
            (10**9 - 1, 10**9, ">99.9 %"),
            (3, 0, "-"),
        ],
    )
    def test_shares(self, part: int, whole: int, text: str) -> None:
        assert output.share(part, whole) == text
