"""`hlofast collectives`: collectives as text and as JSON."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, Seeds
from hlofast._collectives import KEYS, MESH_SOURCES
from test_cli import TWO_MODULES, document, hlofast_command
from test_collectives import ADD, LOOP, LOOP_ENTRY, MEGASCALE, MODEL, SYNC, TRANSFERS

MESH = ("--mesh", "data=2,model=4")
LARGE = ("--mesh", "data=16,model=4")
SCANNED = FIXTURES / "sharded" / "mlp_scan_plain.txt.gz"


def written(folder: Path, entry: str, others: str = "", header: str = ", num_partitions=8") -> Path:
    path = folder / "m.txt"
    path.write_text(f"HloModule m{header}\n{ADD}{others}\nENTRY e {{\n{entry}\n}}\n")
    return path


def only(*arguments: str | Path) -> Any:
    (result,) = document("collectives", *arguments)["results"]
    return result | result["tables"]


def fact(result: Any, name: str) -> Any:
    return result["facts"][name]["value"]


def shown(*arguments: str | Path) -> str:
    done = hlofast_command("collectives", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def note(module: Any, kind: str) -> Any:
    (matching,) = [note for note in module["notes"] if note["code"] == kind]
    return matching


def test_document_is_the_python_table(train_step: Path) -> None:
    module = only(train_step)
    collectives = hlofast.load(train_step).collectives()
    rows = sorted(collectives.to_pylist(), key=lambda row: -row["total_wire_bytes"])
    for name in ("instruction", "name", "kind", "payload_in", "total_wire_bytes", "tensor"):
        expected = [row["name"] if name == "instruction" else row[name] for row in rows]
        assert [row[name] for row in module["collectives"]] == expected
    assert fact(module, "collectives") == len(collectives)
    assert fact(module, "wire_bytes") == collectives["total_wire_bytes"].sum()
    assert fact(module, "mesh") == str(collectives.mesh)
    assert fact(module, "mesh_source") == MESH_SOURCES[str(collectives.mesh_source)]
    assert not {"pieces", "alpa_counters"} & module.keys()
    assert {own.name: own.value for own in collectives.facts} == {
        name: own["value"] for name, own in module["facts"].items()
    }
    assert [own.to_dict() for own in collectives.notes] == module["notes"]
    # What is printed is what the result says of itself, but for the place of the file.
    printed = shown(train_step).splitlines()
    assert [
        line for line in printed if not line.startswith("file ")
    ] == f"{collectives}\n\n".splitlines()


@pytest.mark.parametrize("by", KEYS)
def test_groups_add_up(by: str) -> None:
    module = only(SCANNED, *MESH, "--by", by)
    names = {
        "collectives": "collectives",
        "multiplicity": "executions",
        "total_payload": "payload",
        "total_wire_bytes": "wire_bytes",
    }
    for column, name in names.items():
        assert sum(group[column] for group in module["groups"]) == fact(module, name)
    assert sum(group["share"] for group in module["groups"]) == pytest.approx(1)
    keys = [group["key"] for group in module["groups"]]
    assert len(set(keys)) == len(keys) > 0
    text = shown(SCANNED, *MESH, "--by", by, "--top", "0")
    assert f"\nBy {by.replace('_', ' ')}\n" in text
    assert "\nCollectives" not in text


def test_axis_is_the_default() -> None:
    text = shown(SCANNED, *MESH)
    assert "\nmesh         data=2,model=4\nmesh from    given\n" in text
    assert "\nBy axis\n" in text
    assert "\nCollectives" in text
    assert "one network level" in text


def test_kinds_and_shifts(tmp_path: Path) -> None:
    path = written(tmp_path, SYNC.replace("GROUPS", MODEL))
    module = only(path, *MESH)
    (group,) = module["groups"]
    assert (group["key"], group["collectives"]) == ("model", 5)
    text = shown(path, *MESH)
    assert re.search(r" model +model \+1 ", text)
    text = shown(path, *MESH, "--hosts", "2")
    assert "\nhosts        2\n" in text
    assert "  within a host  " in text
    assert "one network level" not in text
    assert fact(only(path, *MESH, "--hosts", "2"), "hosts") == 2
    network = only(path, "--mesh", "data=2,model=4", "--slices", "2", "--by", "network")
    assert [group["key"] for group in network["groups"]] == ["within a slice"]


def test_loops_and_peeled_iterations(tmp_path: Path) -> None:
    loop = LOOP.format(groups=MODEL, limit="constant(79)")
    path = written(tmp_path, LOOP_ENTRY, loop)
    module = only(path, *MESH)
    assert note(module, "peeled")["figures"] == {"collectives": 1, "peeled": 1}
    text = shown(path, *MESH)
    assert "peeled from" in text
    assert "g (79 inside, 1 outside)" in text


def test_lower_bounds(tmp_path: Path) -> None:
    loop = LOOP.format(groups=MODEL, limit='custom-call(), custom_call_target="limit"')
    path = written(tmp_path, LOOP_ENTRY, loop)
    module = only(path, *MESH)
    assert module["facts"]["wire_bytes"]["provenance"] == "bound"
    assert module["collectives"][0]["is_lower_bound"] is True
    assert note(module, "lower-bound")["figures"] == {"collectives": 1}
    text = shown(path, *MESH)
    assert "is lower bound" in text
    assert "at least 12,288 B" in text


def test_what_is_never_executed(tmp_path: Path) -> None:
    """A collective in the cheaper branch stands in no total, which is said."""
    branches = (
        f"one {{\n  p = f32[1024] parameter(0)\n"
        f"  ROOT a = f32[1024] all-reduce(p), channel_id=1, {MODEL}, to_apply=add\n}}\n"
        "other {\n  p = f32[1024] parameter(0)\n  m = f32[1024] multiply(p, p)\n"
        "  n = f32[1024] multiply(m, p)\n  ROOT r = f32[1024] multiply(n, p)\n}\n"
    )
    entry = (
        "  i = pred[] parameter(0)\n  p = f32[1024] parameter(1)\n  ROOT r = f32[1024] "
        "conditional(i, p, p), true_computation=one, false_computation=other"
    )
    path = written(tmp_path, entry, branches)
    module = only(path)
    assert [row["multiplicity"] for row in module["collectives"]] == [0]
    assert fact(module, "wire_bytes") == 0
    assert note(module, "not-executed")["figures"] == {"collectives": 1}
    assert "not executed: in a branch" in " ".join(shown(path).split())


def test_unknown_sizes(tmp_path: Path) -> None:
    entry = "  p = f32[8] parameter(0)\n  ROOT a = f32[8] all-reduce(p), replica_groups={}, to_apply=add"
    path = written(tmp_path, entry, header="")
    module = only(path)
    assert "mesh" not in module["facts"]
    assert module["collectives"][0]["wire_bytes"] is None
    assert module["groups"][0]["total_wire_bytes"] is None
    assert module["groups"][0]["unknown"] == 1
    assert note(module, "unknown")["figures"] == {"collectives": 1}
    assert note(module, "no-mesh")
    assert fact(only(path, *MESH), "wire_bytes") == 2 * 32 * 7 // 8


def test_groups_beside_the_mesh(tmp_path: Path) -> None:
    groups = MODEL.replace("{{0,1,2,3},{4,5,6,7}}", "{{0,1,2,4},{3,5,6,7}}")
    path = written(tmp_path, SYNC.replace("GROUPS", groups))
    module = only(path, *MESH)
    assert all(row["reason"] for row in module["mismatches"])
    assert note(module, "no-axis-subset")
    text = shown(path, *MESH)
    assert "\nGroups that match no mesh axes" in text
    assert "{{0,1,2,4},{3,5,6,7}}" in text


def test_host_transfers(tmp_path: Path) -> None:
    path = written(tmp_path, TRANSFERS.replace("ATTRIBUTES", ", is_host_transfer=true"))
    module = only(path)
    assert [row["instruction"] for row in module["host_transfers"]] == ["s", "r"]
    assert "2 transfers between device and host, not listed here: s, r" in shown(path)
    path = written(tmp_path, TRANSFERS.replace("ATTRIBUTES", MEGASCALE))
    module = only(path, "--mesh", "slice=4,model=8", "--slices", "4", "--by", "network")
    assert "host_transfers" not in module
    assert [group["key"] for group in module["groups"]] == ["between slices"]


def test_pieces() -> None:
    path = FIXTURES / "seedlike" / "gpu_train_step.txt.gz"
    module = only(path, *MESH, "--pieces")
    collectives = hlofast.load(path).collectives(hlofast.Mesh({"data": 2, "model": 4}))
    assert len(module["pieces"]) == len(collectives.pieces) > len(collectives)
    assert "\nArrays moved per call" in shown(path, *MESH, "--pieces")


def test_alpa() -> None:
    path = FIXTURES / "seedlike" / "gpu_train_step.txt.gz"
    module = only(path, *MESH, "--alpa")
    collectives = hlofast.load(path).collectives(hlofast.Mesh({"data": 2, "model": 4}))
    counters = {row["counter"]: row["instructions"] for row in module["alpa_counters"]}
    assert counters == collectives.alpa_counters()
    plain = {row["counter"]: row["without_scalars"] for row in module["alpa_counters"]}
    assert plain == collectives.alpa_counters(ignore_scalars=True)
    assert sum(row["cost"] for row in module["alpa_costs"]) == sum(collectives.alpa_cost()["cost"])
    (row,) = module["alpa_gradients"]
    assert row["grad_sync_channel_ids"] == collectives.grad_sync_channel_ids
    text = shown(path, *MESH, "--alpa")
    assert "\nAlpa's counters" in text
    assert "\nAlpa's costs" in text
    # Alpa's solver has costs for meshes of two axes.
    assert "alpa_costs" not in only(path, "--mesh", "x=8", "--alpa")


def test_top() -> None:
    count = len(only(SCANNED, "--top", "2")["collectives"])
    assert count > 2
    assert f"(2 of {count})" in shown(SCANNED, "--top", "2")


def test_none(tmp_path: Path) -> None:
    path = tmp_path / "page.txt"
    path.write_text(TWO_MODULES)
    results = document("collectives", path)["results"]
    assert [result["tables"]["collectives"] for result in results] == [[], []]
    assert shown(path).count("\ncollectives  0\n") == 2


def test_rules(tmp_path: Path) -> None:
    entry = (
        f"  p = f32[8] parameter(0)\n  ROOT a = f32[8] all-reduce(p), channel_id=1, {MODEL}, "
        'to_apply=add, metadata={op_name="mine/psum"}'
    )
    path = written(tmp_path, entry)
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\npattern = 'mine'\nphase = 'optimizer'\n")
    (row,) = only(path, "--rules", rules)["collectives"]
    assert row["phase"] == "optimizer"
    rules.write_text("rule")
    assert hlofast_command("collectives", path, "--rules", rules).returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("--by", "colour"),
        ("--mesh", "data"),
        ("--mesh", "data=0"),
        ("--mesh", "data=2,data=2"),
        ("--mesh", "data=4", "--hosts", "3"),
        ("--mesh", "data=4", "--slices", "-1"),
        ("--mesh", "data=4", "--slices", "9" * 30),
        ("--mesh", "data=4", "--hosts", "9" * 30),
        ("--hosts", "3"),
        ("--step-seconds", "soon"),
        ("--hbm", "much"),
        ("--device", "tpu-v0"),
    ],
    ids=" ".join,
)
def test_wrong_usage(train_step: Path, arguments: tuple[str, ...]) -> None:
    done = hlofast_command("collectives", train_step, *arguments)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_unreadable() -> None:
    assert hlofast_command("collectives").returncode == 2
    assert hlofast_command("collectives", "no such file").returncode == 3


def test_seeds(seeds: Seeds) -> None:
    module = only(seeds.path("002"), "--alpa")
    assert fact(module, "payload") == 364_305_412
    assert [(group["key"], group["total_wire_bytes"]) for group in module["groups"]] == [
        ("axis_1", 557_899_776),
        ("axis_0", 45_505_540),
    ]
    text = shown(seeds.path("002"), "--alpa")
    counters = {row["counter"]: row["instructions"] for row in module["alpa_counters"]}
    assert list(counters.values()) == [43, 43, 0, 0, 0]
    assert sum(row["cost"] for row in module["alpa_costs"]) == pytest.approx(101_295_561.030)
    assert "does not name the mesh axes" in text
    text = shown(seeds.path("003"), *MESH)
    for part in ("weight +down", "weight +up", "12,582,912"):
        assert re.search(part, text)


class TestMeshesOfAnotherSize:
    """Every verb that takes a mesh ends with exit code 2 where the module has other devices."""

    @pytest.mark.parametrize(
        "verb",
        [
            ("collectives",),
            ("lint",),
            ("remat",),
            ("time", "--device", "tpu-v5e"),
            ("trace", "--device", "tpu-v5e", "-o", "trace.json"),
            ("report", "-o", "page.html", "--no-charts"),
            ("top",),
            ("diff", SCANNED),
        ],
        ids=lambda verb: verb[0],
    )
    def test_it_is_refused(self, verb: tuple[str, ...], tmp_path: Path) -> None:
        right = hlofast_command(*verb, SCANNED, *MESH, cwd=tmp_path)
        assert (right.returncode, right.stderr) == (0, "")
        small = hlofast_command(*verb, SCANNED, "--mesh", "data=2", cwd=tmp_path)
        text = f"hlofast: {SCANNED}: mesh data=2 has 2 devices, the module is for 8\n"
        assert (small.returncode, small.stderr, small.stdout) == (2, text, "")
        large = hlofast_command(*verb, SCANNED, "--mesh", "data=16,model=4", cwd=tmp_path)
        assert large.returncode == 2
        assert "for the program of one slice, give slices=8 (--slices 8)\n" in large.stderr

    def test_a_program_of_one_slice_fits(self) -> None:
        done = hlofast_command("time", "--device", "tpu-v5e", SCANNED, "--slices", "8", *LARGE)
        assert (done.returncode, done.stderr) == (0, "")

    def test_the_history_says_it_of_the_last_dump(self, tmp_path: Path) -> None:
        name = "module_0001.jit_f.after_optimizations.txt"
        (tmp_path / name).write_bytes(gzip.decompress(SCANNED.read_bytes()))
        done = hlofast_command("history", tmp_path, "--mesh", "data=2")
        assert done.returncode == 2
        assert f"{name}: mesh data=2 has 2 devices, the module is for 8\n" in done.stderr

    def test_python_says_the_same(self) -> None:
        with pytest.raises(hlofast.ContextError, match="give slices=8"):
            hlofast.load(SCANNED).collectives("data=16,model=4")
