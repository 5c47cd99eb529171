"""Groups, permutes and shardings of programs that were compiled for known meshes.

`fixtures/sharded/truth.jsonl.gz` holds the mesh of each program and the axes of its collectives,
found from its serialised form by trying all subsets of axes; none of it comes from this package.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hlofast

FOLDER = Path(__file__).parent / "fixtures" / "sharded"
TRUTH = gzip.decompress((FOLDER / "truth.jsonl.gz").read_bytes())
RECORDS = [json.loads(line) for line in TRUTH.splitlines()]
DUMPS = {path.name.removesuffix(".txt.gz") for path in FOLDER.glob("*.txt.gz")}
COMMITTED = [record for record in RECORDS if record["name"] in DUMPS]


@pytest.fixture(params=COMMITTED, ids=lambda record: record["name"], name="program")
def fixture_program(request) -> tuple[dict[str, Any], hlofast.Module, hlofast.Mesh]:
    record = request.param
    module = hlofast.load(FOLDER / f"{record['name']}.txt.gz")
    slices = record["slices"] if record["slices"] > 1 else None
    return record, module, hlofast.Mesh(record["mesh"], slices=slices)


def rows(record: dict[str, Any], module: hlofast.Module) -> Iterator[tuple[dict, Any]]:
    """Each row of the record that has groups or pairs, and its instruction."""
    places: dict[tuple[str, str], hlofast.Instruction] = {}
    for instruction in module.instructions:
        places[instruction.computation.name, instruction.name] = instruction
    for row in record["collectives"]:
        if "axes" in row:
            yield row, places[row["computation"], row["name"]]


def test_there_are_programs() -> None:
    assert len(COMMITTED) >= 12
    chips = {record["chips"].split(":")[0] for record in COMMITTED}
    assert chips >= {"v5e", "v5p", "v6e"}


def test_groups_go_along_the_axes_they_were_made_for(program) -> None:
    record, module, mesh = program
    for row, instruction in rows(record, module):
        if "groups" not in row:
            continue
        match = mesh.axes_of(instruction)
        if row["axes"] is None:
            assert match.reason is not None, (row["name"], match)
            continue
        assert match.reason is None, (row["name"], match)
        assert list(match.axes) in [row["axes"], *row.get("other_axes", [])], row["name"]
        devices = 1
        for size in record["mesh"].values():
            devices *= size
        assert match.is_everything == (row["group_size"] == devices), row["name"]


def test_permutes_go_along_the_axes_in_which_pairs_differ(program) -> None:
    record, module, mesh = program
    for row, instruction in rows(record, module):
        if "source_target_pairs" not in row:
            continue
        match = mesh.axes_of(instruction)
        assert [axis.split(":")[0] for axis in match.axes] == row["axes"], row["name"]
        if row["shift"] is not None and len(row["axes"]) == 1 and ":" not in match.axes[0]:
            (axis,) = row["axes"]
            assert match.shift is not None
            assert match.shift % record["mesh"][axis] == row["shift"][axis], row["name"]


def test_the_derived_mesh_has_the_groups_of_the_known_one(program) -> None:
    """Without the mesh of the user: what is derived is made of the same axes or of parts of them,
    or of several taken as one, so every group along known axes goes along derived ones."""
    record, module, mesh = program
    derived = module.mesh()
    if mesh.device_count == 1:
        assert derived is None or derived.device_count == 1
        return
    assert derived is not None
    assert derived.device_count == mesh.device_count
    for row, instruction in rows(record, module):
        if row.get("axes") and "groups" in row:
            assert derived.axes_of(instruction).reason is None, row["name"]


def test_parameters_have_specs(program) -> None:
    """Every sharding of a parameter is made of axes of the mesh that it was made from."""
    _, module, mesh = program
    for instruction in module.entry.instructions:
        if instruction.opcode != "parameter" or instruction.sharding is None:
            continue
        for leaf in instruction.sharding.leaves:
            spec = leaf.spec(mesh)
            assert spec.reason is None, (instruction.name, spec)
            tiles = leaf.tile_dimensions
            if tiles is not None:
                assert len(spec) == len(tiles)
                for cut, axes in zip(tiles, spec, strict=True):
                    names = () if axes is None else (axes,) if isinstance(axes, str) else axes
                    size = 1
                    for name in names:
                        assert ":" not in name, (instruction.name, spec)
                        size *= mesh.shape[name]
                    assert size == cut
