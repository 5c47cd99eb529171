"""A figure shown by several verbs is equal in all, or each says what it counts."""

from __future__ import annotations

import tarfile
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, Seeds
from console import output_of
from test_cli import document, hlofast_command
from test_diff import DUMPS, modules_of
from test_time import OVERLAPPED, toy

MESH = hlofast.Mesh({"data": 2, "model": 4})
AGAIN = "recomputed-collectives"


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps of the guide."""
    folder = tmp_path_factory.mktemp("guide")
    archive = resources.files("hlofast") / "guide" / "examples.tar.xz"
    with archive.open("rb") as file, tarfile.open(fileobj=file) as dumps:
        dumps.extractall(folder, filter="data")
    return folder


def sharded(name: str) -> Path:
    return FIXTURES / "sharded" / f"{name}.txt.gz"


def test_payload_of_lint_is_that_of_the_axis(guide: Path) -> None:
    module = hlofast.load(guide / "step.txt")
    by_axis = {
        row["axes"]: row["total_payload"]
        for row in module.collectives(MESH).by("axes", totals=["total_payload"])
    }
    findings = module.lint(MESH).of(AGAIN)
    assert findings
    for finding in findings:
        (axis,) = [axis for axis in by_axis if f" along {axis} (" in finding.message]
        assert finding.figures["group_payload_bytes"] == by_axis[axis]


def test_groups_without_a_mesh_are_those_of_devices_however_they_are_spelled() -> None:
    # Groups along no axis of any mesh that the text speaks of, in two orders.
    text = """HloModule m, is_scheduled=true, num_partitions=4

ENTRY %e (p: f32[16]) -> (f32[32], f32[32]) {
  %x = f32[16]{0} parameter(0)
  %p = f32[16]{0} negate(%x)
  %a = f32[32]{0} all-gather(%p), channel_id=1, replica_groups={{0,1},{2,3}}, dimensions={0}, use_global_device_ids=true, metadata={op_name="jit(f)/jvp(M)/checkpoint/all_gather"}
  %b = f32[32]{0} all-gather(%p), channel_id=2, replica_groups=[2,2]<=[4], dimensions={0}, use_global_device_ids=true, metadata={op_name="jit(f)/transpose(jvp(M))/checkpoint/rematted_computation/all_gather"}
  ROOT %t = (f32[32]{0}, f32[32]{0}) tuple(%a, %b)
}
"""
    (finding,) = hlofast.loads(text).lint().of(AGAIN)
    assert finding.figures["group_payload_bytes"] == 256
    assert "50.00 %" in finding.message


ODD_GROUPS = """\
HloModule m, num_partitions=8, is_scheduled=true

ENTRY e {
  p = f32[1024]{0} parameter(0)
  ROOT g = f32[4096]{0} all-gather(p), channel_id=1, replica_groups={{0,1,2,4},{3,5,6,7}}, dimensions={0}, use_global_device_ids=true
}
"""


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: str(path.relative_to(FIXTURES)))
def test_figures_of_every_dump(path: Path) -> None:
    for module in modules_of(path):
        time = module.time("h100" if module.summary().backend == "gpu" else "v5e")
        parts = {
            "compute": time.compute_seconds,
            "memory": time.memory_seconds,
            "other": time.other_seconds,
            "communication": sum(time.exposed.values()),
        }
        if time.step_seconds > 0:
            kind = time.bound.partition(" ")[0].rstrip(",")
            assert parts[kind] == max(parts.values())
        rows = [row for row in time.collectives if row["unknown"] is None]
        names = {row["name"] for row in module.collectives()}
        assert {row["collective"] for row in rows} <= names
        remat = module.remat()
        outside = {row["instruction"] for row in remat.outside_phase()}
        inside = [row for row in remat.recomputed if row["instruction"] not in outside]
        phases = {row["phase"]: row for row in module.cost().by("phase")}
        own = phases.get("recompute", {"flops": 0, "instructions": 0})
        # Instructions without a name that serve only recomputed ones belong to the phase, too.
        assert sum(row["flops"] for row in inside) <= own["flops"]
        counts = module.summary().values
        totals = {row["measure"]: row["before"] for row in module.diff(module).totals()}
        for name in ("instructions", "computations"):
            assert totals[name] == counts[name]


def test_groups_along_no_axes_of_the_mesh_are_said(train_step: Path, tmp_path: Path) -> None:
    module = hlofast.load(train_step)
    assert module.time("v5e", mesh=MESH).bound == "communication, longest along data"
    with pytest.raises(hlofast.ContextError, match="mesh data=2 has 2 devices"):
        module.time("v5e", mesh="data=2")
    uneven = OVERLAPPED.replace("{{0,1,2,3}}", "{{0,1,2},{3}}")
    time = hlofast.loads(uneven).time(toy(), mesh="x=2,y=2")
    assert time.bound == "communication along no mesh axes"
    (note,) = [note for note in time.notes if note.code == "no-axes"]
    assert "1 collective with groups that match no axes of mesh x=2,y=2" in str(note)
    assert note.figures == {"collectives": 1}


def test_collectives_are_found_by_name_in_the_schedule(guide: Path) -> None:
    (timed,) = document("time", "--device", "v5e", guide / "step.txt")["results"]
    rows = {row["collective"]: row for row in timed["tables"]["collectives"]}
    (sent,) = document("collectives", guide / "step.txt")["results"]
    sent_rows = sent["tables"]["collectives"]
    inner = [row for row in sent_rows if rows[row["name"]]["name"] != row["name"]]
    assert inner
    module = hlofast.load(guide / "step.txt")
    table = {row["name"]: row["scheduled_as"] for row in module.collectives()}
    for row in inner:
        assert rows[row["name"]]["instruction"] == module[table[row["name"]]].name
    shown = hlofast_command("time", "--device", "v5e", "--top", "0", guide / "step.txt").stdout
    assert "scheduled as" in shown
    assert inner[0]["name"] in shown


def test_phases_leave_out_what_the_compiler_recomputes(guide: Path) -> None:
    (module,) = document("remat", guide / "too_large.txt")["results"]
    facts = {name: fact["value"] for name, fact in module["facts"].items()}
    (note,) = [note for note in module["notes"] if note["code"] == "other-phases"]
    groups = hlofast.load(guide / "too_large.txt").cost().by("phase")
    (row,) = [row for row in groups if row["phase"] == "recompute"]
    missing = facts["recomputed_flops"] - row["flops"]
    assert missing > 0
    assert f"excludes {missing:,} FLOP" in note["text"]
    assert note["figures"]["flops"] == missing
    shown = hlofast_command("remat", guide / "too_large.txt").stdout
    by = [row["by"] for row in module["tables"]["recomputed"]]
    assert facts["recomputed"] == len(by)
    # The program has no jax.checkpoint: all of it is the compiler's.
    assert facts["by_compiler"] == by.count("compiler") > 0
    assert facts["by_program"] == by.count("program") == 0
    assert "\nby compiler " in shown


def findings_of(module: hlofast.Module) -> list[dict[str, Any]]:
    findings: list[dict[str, Any]] = module.report(plots=False).to_dict()["tables"]["findings"]
    return findings


def test_what_lint_and_remat_find_is_told_once(seeds: Seeds) -> None:
    module = hlofast.load(seeds.path("001"))
    codes = [finding["code"] for finding in findings_of(module)]
    assert codes.count("widened-weights-kept") == 1
    assert "widened-weights-kept" in [statement.code for statement in module.remat().statements]


@pytest.mark.parametrize("name", ["norm_v4_with_value", "mlp_scan_plain", "norm_v1_with_value"])
def test_findings_say_which_verb_lists_them(name: str) -> None:
    module = hlofast.load(sharded(name))
    findings = findings_of(module)
    lint = [finding["code"] for finding in findings if finding["verb"] == "lint"]
    assert lint == [finding.code for finding in module.lint()]
    advised = [statement.code for statement in module.remat().statements if statement.advice]
    rest = [finding["code"] for finding in findings if finding["verb"] != "lint"]
    assert rest == [code for code in advised if code not in lint]
    assert {finding["verb"] for finding in findings} <= {"lint", "remat"}


def test_a_finding_of_remat_says_so(tmp_path: Path) -> None:
    path = FIXTURES / "sharded" / "norm_v4_named_after.txt.gz"
    command = f"hlofast report --no-charts {path} -o report.html"
    assert "\ngather-kept (hlofast remat)\n" in output_of(command, tmp_path)
    html = hlofast.load(path).report(plots=False).html
    assert "<code>gather-kept</code> (hlofast remat)" in html


@pytest.mark.parametrize("name", ["step.txt", "older_compiler.txt", "unconstrained.txt"])
def test_findings_of_a_protobuf_are_those_of_the_text(name: str, guide: Path) -> None:
    # Computations stand in another order in it.
    text = hlofast.load(guide / name)
    binary = hlofast.loads(text.to_proto())
    assert binary.names() != text.names()
    for mesh in (None, MESH):
        shown = [
            [
                (finding.message, finding.names, finding.source_file, finding.source_line)
                for finding in module.lint(mesh)
            ]
            for module in (text, binary)
        ]
        assert shown[0] == shown[1]


def test_what_one_text_only_implies_is_said() -> None:
    text = hlofast.load(sharded("decoder_v6e_4"))
    diff = text.diff(hlofast.loads(text.to_proto()))
    changes = {row["measure"]: row["change"] for row in diff.totals()}
    implied = changes["instructions"], changes["computations"]
    assert min(implied) > 0
    assert diff.notes[-1].code == "implied"
    assert str(diff.notes[-1]) == (
        f"before: the text implies {implied[0]:,} more instructions and {implied[1]:,} more "
        "computations, which are compared but not counted"
    )
    assert not any(note.code == "implied" for note in text.diff(text).notes)


def test_the_next_peak_names_the_value(guide: Path) -> None:
    with pytest.warns(UserWarning, match="no layout"):
        memory = hlofast.load(guide / "too_large.txt").memory()
    largest = memory.without_largest()
    row = memory.live.row(0)
    assert (largest["instruction"], largest["index"]) == (row["instruction"], row["index"])
    value = f"{row['name']}{row['index']}"
    assert value.endswith("}")
    shown = hlofast_command("memory", guide / "too_large.txt").stdout
    assert ["largest", "value", value] in [line.split() for line in shown.splitlines()]
