"""Expectations: limits that a program must keep, in files, in Python and in pytest."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import check_programs
import hlofast
from conftest import FIXTURES
from test_check import SMALL, program
from test_cli import hlofast_command


class TestExpectations:
    @pytest.mark.parametrize(
        ("expected", "holds"),
        [
            ({"collectives.any.ragged-all-to-all.max_count": 0}, True),
            ({"collectives.any.ragged-all-to-all.min_count": 1}, False),
            ({"collectives": {"model": {"all-reduce": {"min_bytes": 1}}}}, True),
            ({"collectives.data.all-gather.exactly_bytes": 0}, True),
            ({"collectives.model.any.max_wire_bytes": "1KiB"}, False),
            ({"peak.max": "1GiB", "arguments.exactly": 13_401_124}, True),
            ({"peak.max": "1MiB"}, False),
            ({"host.exactly": 0, "flops.min": 1}, True),
            ({"flops.max": 1.0}, False),
            ({"lint.forbid": ["one-hot-matmul"]}, True),
        ],
    )
    def test_limits(self, expected: dict[str, Any], holds: bool) -> None:
        check = hlofast.check(
            hlofast.Declaration.loads("[mesh]\naxes = { data = 2, model = 4 }"),
            program("decoder_cpu_2x4"),
            expected,
        )
        assert check.ok is holds
        rows = [row for row in check.comparisons if row["code"] == "expectation"]
        assert len(rows) == len(expected)

    def test_axes_that_the_mesh_has_not(self) -> None:
        """A limit of an axis that is misspelled would always hold."""
        expected = {"collectives.modle+data.all-reduce.max_bytes": 1 << 60}
        mesh = hlofast.Declaration.loads("[mesh]\naxes = { data = 2, model = 4 }")
        for declared in (mesh, hlofast.Declaration()):
            (finding,) = hlofast.check(declared, program("decoder_cpu_2x4"), expected).found()
            assert (finding.severity, finding.compiled) == ("error", "no such axis")
        part = {"collectives.model:(2)2.all-reduce.max_bytes": 1 << 60}
        assert hlofast.check(mesh, program("decoder_cpu_2x4"), part).ok

    @pytest.mark.parametrize(
        ("limit", "severity"), [("max", "warning"), ("exactly", "error"), ("min", None)]
    )
    def test_what_runs_nobody_knows_how_often(self, limit: str, severity: str | None) -> None:
        """A loop whose trip count the text does not tell."""
        module = hlofast.loads(
            "HloModule m, num_partitions=2\n"
            "body { b = f32[8] parameter(0)\n ROOT r = f32[8] all-reduce(b), channel_id=1, "
            "replica_groups={{0,1}}, use_global_device_ids=true, to_apply=sum }\n"
            "sum { x = f32[] parameter(0)\n y = f32[] parameter(1)\n ROOT z = f32[] add(x, y) }\n"
            "condition { c = f32[8] parameter(0)\n ROOT d = pred[] custom-call(c), "
            'custom_call_target="unknown" }\n'
            "ENTRY e { p = f32[8] parameter(0)\n ROOT w = f32[8] while(p), condition=condition, "
            "body=body }\n"
        )
        expected = {f"collectives.any.all-reduce.{limit}_bytes": {"min": 32}.get(limit, 1000)}
        findings = hlofast.check(hlofast.Declaration(), module, expected).found("expectation")
        assert [finding.severity for finding in findings] == ([severity] if severity else [])
        assert severity != "warning" or "not known to hold: 1 instruction" in findings[0].message

    def test_sums_are_those_of_the_table(self) -> None:
        mesh = hlofast.Mesh({"data": 2, "model": 4})
        module = program("decoder_cpu_2x4")
        rows = [
            row
            for row in module.collectives(mesh)
            if row["axes"] == "model" and row["kind"] == "all-gather"
        ]
        total = sum(row["total_payload"] for row in rows)
        count = sum(row["multiplicity"] for row in rows)
        assert total > 0
        declared = hlofast.Declaration(mesh=mesh)
        for name, value in (("exactly_bytes", total), ("exactly_count", count)):
            assert hlofast.check(
                declared, module, {f"collectives.model.all-gather.{name}": value}
            ).ok
            check = hlofast.check(
                declared, module, {f"collectives.model.all-gather.{name}": value + 1}
            )
            assert not check.ok

    def test_forbidden_findings(self) -> None:
        module = hlofast.load(FIXTURES / "dumps" / "tpu_mixture.after.txt.gz")
        codes = list(module.lint().counts())
        assert codes
        check = hlofast.check(hlofast.Declaration(), module, {"lint.forbid": ["any"]})
        assert {finding.subject for finding in check.found("expectation")} == {
            f"lint.{code}" for code in codes
        }
        assert all(finding.instruction is not None for finding in check.found("expectation"))

    @pytest.mark.parametrize(
        ("expected", "reason"),
        [
            ({"colour.max": 3}, "unknown key 'colour'"),
            ({"peak": 3}, "peak must be a table"),
            ({"peak.most": 3}, "peak takes min, max, exactly"),
            ({"peak.max": "much"}, "peak.max"),
            ({"flops.max": "16GiB"}, "flops.max must be a non-negative number"),
            ({"collectives.any.gather.max_bytes": 1}, "unknown kind of collective 'gather'"),
            ({"collectives.any.any.bytes": 1}, "not 'bytes'"),
            ({"lint.forbid": ["colour"]}, "unknown code 'colour'"),
            ({"lint.forbid": "any"}, "a list"),
            ({"peak": 1, "peak.max": 2}, "already a value"),
        ],
    )
    def test_faults_are_named(self, expected: dict[str, Any], reason: str) -> None:
        with pytest.raises(ValueError, match="the expectations: ") as error:
            hlofast.Expectations(expected)
        assert reason in str(error.value)


class TestPytestPlugin:
    def run(self, folder: Path, body: str) -> subprocess.CompletedProcess[str]:
        (folder / "test_step.py").write_text(body)
        loaded = bool(list(entry_points(group="pytest11", name="hlofast")))
        plugin = [] if loaded else ["-p", "hlofast.pytest_plugin"]
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin]
        place = str(Path(hlofast.__file__).parent.parent)
        environment = os.environ | {"PYTHONPATH": place, "PYTEST_ADDOPTS": ""}
        return subprocess.run(
            [*command, str(folder)],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=environment,
        )

    def test_what_holds_passes(self, tmp_path: Path) -> None:
        (tmp_path / "mesh.toml").write_text(check_programs.toml("decoder_cpu_2x4"))
        done = self.run(
            tmp_path,
            f"""
import hlofast
def test_limits(hlofast_check):
    check = hlofast_check({str(SMALL)!r}, {{"peak.max": "1GiB", "lint.forbid": ["one-hot-matmul"]}})
    assert check.ok
def test_declaration(hlofast_check):
    hlofast_check(hlofast.load({str(SMALL)!r}), declaration="mesh.toml")
""",
        )
        assert "2 passed" in done.stdout

    def test_what_does_not_hold_fails_with_the_findings(self, tmp_path: Path) -> None:
        done = self.run(
            tmp_path,
            f"""
def test_limits(hlofast_check):
    hlofast_check({str(SMALL)!r}, {{"peak.max": "1KiB"}})
""",
        )
        assert done.returncode == 1
        assert "expectation: peak: declared at most 1,024" in done.stdout

    def test_loading_it_loads_nothing_heavy(self) -> None:
        code = "import sys, hlofast.pytest_plugin; print(json.dumps(sorted(sys.modules)))"
        done = subprocess.run(
            [sys.executable, "-P", "-c", f"import json; {code}"],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": str(Path(hlofast.__file__).parent.parent)},
        )
        loaded = set(json.loads(done.stdout))
        assert "hlofast.pytest_plugin" in loaded
        assert not {"numpy", "hlofast._check", "hlofast._remat", "hlofast.devices"} & loaded


class TestFolders:
    """Of a dump directory, the largest program or the one named is checked."""

    @pytest.fixture
    @staticmethod
    def dump(tmp_path: Path) -> Path:
        folder = tmp_path / "dump"
        folder.mkdir()
        small = "HloModule jit_init\n\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n"
        (folder / "module_0001.jit_init.after_optimizations.txt").write_text(small)
        step = (FIXTURES / "train_step.after_optimizations.txt").read_text()
        (folder / "module_0002.jit_train_step.after_optimizations.txt").write_text(step)
        return folder

    @pytest.mark.parametrize(
        ("given", "code", "name"),
        [
            ((), 1, "jit_train_step"),
            (("--module", "jit_train_step"), 1, "jit_train_step"),
            (("--module", "jit_init"), 0, ""),
            (("--module", "jit_trane_step"), 2, ""),
        ],
    )
    def test_the_program_that_is_checked(
        self, dump: Path, given: tuple[str, ...], code: int, name: str
    ) -> None:
        limits = dump.parent / "limits.toml"
        limits.write_text("peak.max = '1MiB'\n")
        done = hlofast_command("check", "--expect", limits, dump, "--markdown", *given)
        assert done.returncode == code
        assert done.stdout.partition("\n")[0].replace("\\", "") == (f"### {name}" if name else "")
        assert ("at most 1,048,576" in done.stdout) == bool(name)
        assert ("did you mean jit_train_step?" in done.stderr) == (code == 2)

    def test_a_folder_without_programs(self, tmp_path: Path) -> None:
        limits = tmp_path / "limits.toml"
        limits.write_text("peak.max = '1MiB'\n")
        done = hlofast_command("check", "--expect", limits, tmp_path)
        assert (done.returncode, done.stdout) == (3, "")
        assert "no XLA dumps here; write them with" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("{file}", "{program}"), ("--expect", "{file}", "{program}")]
)
@pytest.mark.parametrize("text", ["", "# peak.max = '1GiB'\n"])
def test_a_check_against_nothing_does_not_pass(
    tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    """An empty file, or one that is commented out, is a mistake of the pipeline that wrote it."""
    file = tmp_path / "limits.toml"
    file.write_text(text)
    program = FIXTURES / "sharded" / "decoder_cpu_8.txt.gz"
    given = [part.format(file=file, program=program) for part in arguments]
    done = hlofast_command("check", *given)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"hlofast: {file}: ")
    assert ("declares nothing" if len(given) == 2 else "has no limits") in done.stderr
    with pytest.raises(ValueError, match="declares nothing"):
        hlofast.check(file, hlofast.load(program))


def test_limits_alone_are_named_with_the_mesh_of_the_module(tmp_path: Path) -> None:
    limits = tmp_path / "limits.toml"
    limits.write_text("peak.max = '1TiB'\n")
    module = hlofast.load(FIXTURES / "sharded" / "decoder_v5e_256.txt.gz")
    expected = hlofast.Expectations.load(limits)
    facts = {
        fact.name: fact.value
        for fact in hlofast.check(hlofast.Declaration(), module, expected).facts
    }
    assert (facts["declared_by"], facts["mesh"]) == (str(limits), str(module.mesh()))
    declared = hlofast.Declaration.loads("[model]\nlayers = 3\n", source="mesh.toml")
    both = hlofast.check(declared, module, expected).facts[0]
    assert both.value == f"mesh.toml, {limits}"
