"""Collectives of real programs: known meshes, XLA's own graphs, the seed documents."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES, Seeds
from hlofast import Mesh

sys.path.insert(0, str(FIXTURES))

import collective_lists

MESH = Mesh({"data": 2, "model": 4})
TRUTH = [
    json.loads(line)
    for line in gzip.decompress((FIXTURES / "sharded" / "truth.jsonl.gz").read_bytes()).splitlines()
]
VIEWS = sorted((FIXTURES / "dumps").glob("*.xla.json.gz"))


@pytest.mark.parametrize(
    "record", [record for record in TRUTH if record["committed"]], ids=lambda record: record["name"]
)
def test_programs_with_known_meshes(record: dict[str, Any]) -> None:
    found_in = hlofast.load(FIXTURES / "sharded" / f"{record['name']}.txt.gz")
    slices = record["slices"] if record["slices"] > 1 else None
    collectives = found_in.collectives(Mesh(record["mesh"], slices=slices))
    assert collective_lists.difference(collectives, collective_lists.of_truth(record)) == {}
    assert collective_lists.axis_differences(collectives, record) == []
    assert len(collectives.mismatches) == 0


@pytest.mark.parametrize("view", VIEWS, ids=lambda path: path.name.removesuffix(".xla.json.gz"))
def test_the_collectives_of_xla(view: Path) -> None:
    text = view.with_name(view.name.replace(".xla.json.gz", ".txt.gz"))
    expected = collective_lists.of_view(json.loads(gzip.decompress(view.read_bytes())))
    collectives = hlofast.load(text).collectives()
    assert collective_lists.difference(collectives, expected) == {}


def test_the_views_hold_collectives() -> None:
    """The comparison above compares something."""
    views = [json.loads(gzip.decompress(view.read_bytes())) for view in VIEWS]
    assert sum(sum(collective_lists.of_view(view).values()) for view in views) > 150


def test_alpa_like_pipeline_stage() -> None:
    facts = json.loads((FIXTURES / "seedlike" / "pipeline_stage.facts.json").read_text())
    collectives = hlofast.load(FIXTURES / "seedlike" / "pipeline_stage.txt.gz").collectives()
    assert set(collectives["kind"]) == {"cross-mesh-all-reduce"}
    assert len(collectives) == len(facts["cross_mesh"]) == 2


def test_alpa_like_gpu_step() -> None:
    """The tied embedding is in the gradients' all-reduce twice."""
    collectives = hlofast.load(FIXTURES / "seedlike" / "gpu_train_step.txt.gz").collectives(MESH)
    by_axis = {row["axes"]: row for row in collectives.by("axes")}
    assert set(by_axis) == {"data", "model"}
    gradients = [row for row in collectives if row["tensor_kind"] == "gradient"]
    assert gradients
    assert all(row["axes"] == "data" for row in gradients)
    assert max(row["tensors"] for row in gradients) > 1


def test_seed_002(seeds: Seeds) -> None:
    collectives = hlofast.load(seeds.path("002")).collectives()
    assert collectives.mesh is not None
    assert list(collectives.mesh.shape.values()) == [2, 8]
    sums = {row["axes"]: list(row.values())[1:] for row in collectives.by("axes")}
    assert sums == {
        "axis_0": [3, 3, 45_505_540, 45_505_540, 0],
        "axis_1": [40, 40, 318_799_872, 557_899_776, 0],
    }
    assert list(collectives.alpa_counters().values()) == [43, 43, 0, 0, 0]
    assert list(collectives.alpa_counters(ignore_scalars=True).values()) == [42, 42, 0, 0, 0]
    assert collectives.grad_sync_channel_ids == "."
    costs = {row["axes"]: row["cost"] for row in collectives.alpa_cost()}
    assert costs == pytest.approx({"axis_0": 45_505_543.03, "axis_1": 55_790_018.0}, abs=1e-6)
    assert sum(costs.values()) == pytest.approx(101_295_561.03, abs=1e-6)
    tensors = [row for row in collectives.pieces if row["payload_in"] == 13_107_200]
    assert len(tensors) == 2
    assert len({row["instruction"] for row in tensors}) == 1
    recomputed = {row["phase"]: row["total_payload"] for row in collectives.by("phase")}
    assert recomputed["recompute"] == 100_663_296


def test_seed_003(seeds: Seeds) -> None:
    collectives = hlofast.load(seeds.path("003")).collectives(MESH)
    rows = [
        [
            row[name]
            for name in ("kind", "axes", "payload_in", "payload_out", "tensor_kind", "source_line")
        ]
        for row in collectives
    ]
    assert rows == [
        ["all-gather", "data", 1_048_576, 2_097_152, "weight", 48],
        ["all-gather", "data", 1_048_576, 2_097_152, "weight", 47],
        ["all-reduce", "model", 8_388_608, 8_388_608, "activation", 47],
    ]
    assert list(collectives["tensor"][:2]) == ["down", "up"]
    assert list(collectives["wire_bytes"]) == [1_048_576, 1_048_576, 12_582_912]
    assert set(collectives["phase"]) == {"backward"}
