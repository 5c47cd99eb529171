"""`what-if` on other meshes: heads whose gradient XLA scatters or not, and one attention head per device.

`columns.tar.xz` has steps of a decoder with 50,304 words, and `columns.csv` sums of matrices, compiled by
`tests/fixtures/make_columns.py`; `heads.tar.xz` has steps on two meshes by `make_what_if.py`.
"""

from __future__ import annotations

import csv
import json
import lzma
import sys
import tarfile
from types import SimpleNamespace

import pytest

import hlofast
from conftest import CHECKOUT, FIXTURES
from hlofast import _what_if_padding

sys.path.insert(0, str(CHECKOUT / "benches"))

import what_if_accuracy

Steps = dict[str, hlofast.Module]


@pytest.fixture(scope="module")
def steps() -> Steps:
    """By program and variant: the compiled step."""
    with lzma.open(FIXTURES / "columns.tar.xz") as packed, tarfile.open(fileobj=packed) as archive:
        files = {own.name: file.read() for own in archive if (file := archive.extractfile(own))}
    return {
        name.removesuffix(".txt"): hlofast.loads(text).with_context(
            mesh=json.loads(files[name.replace(".txt", ".json")]), device="tpu-v5e"
        )
        for name, text in files.items()
        if name.endswith(".txt")
    }


@pytest.fixture(scope="module")
def others() -> Steps:
    """By program and variant: the steps of `heads.tar.xz`."""
    texts = what_if_accuracy.archived(FIXTURES / "heads.tar.xz")
    return {
        f"{own['program']}.{own['variant']}": what_if_accuracy.loaded(own, text)
        for own, text in texts
    }


def test_sums_of_matrices_laid_out_by_columns() -> None:
    """As many bytes as XLA's windows hold, and none to spare."""
    wrong = []
    with (FIXTURES / "columns.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        count, height, width = (int(row[key]) for key in ("devices", "rows", "columns"))
        shape = SimpleNamespace(dimensions=(height, width), bytes=2 * height * width)
        # Four devices of a slice of four fill a square.
        where = row["chip"], count == 4
        if _what_if_padding.has_windows(shape, count, where) != bool(int(row["scattered"])):
            wrong.append(row)
    assert len(rows) == 158 and not wrong


def sent(module: hlofast.Module) -> dict[str | None, int | None]:
    table = module.collectives().by("axes")
    return dict(zip(table.values("axes"), table.values("total_wire_bytes"), strict=True))


def test_a_head_that_is_summed_as_a_whole(steps: Steps) -> None:
    """12,576 columns per device have no even windows, 25,152 have; one head of keys per device."""
    truth = steps["four_heads.1"]
    result = steps["four_heads.0"].what_if(mesh=truth.context.mesh)
    rows = {row["axes"]: row for row in result.wire_bytes}
    fsdp, compiled = rows["fsdp"], sent(truth)["fsdp"]
    assert fsdp["after"] is None and fsdp["undecided"] == "one"
    assert fsdp["decided"] <= compiled
    # What is missing are the gathers of the weights of queries and keys for the backward pass.
    assert compiled - fsdp["modelled"] == 6 * 2 * 768 * (384 + 128)
    assert rows["model"]["after"] == sent(truth)["model"]


def test_back_to_scattered_sums(steps: Steps) -> None:
    truth = steps["four_heads.0"]
    result = steps["four_heads.2"].what_if(mesh=truth.context.mesh)
    rows = {row["axes"]: row for row in result.wire_bytes}
    assert rows["fsdp"]["after"] is None
    assert rows["fsdp"]["decided"] <= sent(truth)["fsdp"] <= rows["fsdp"]["modelled"]


def test_gathers_of_a_lookup_that_are_undone(steps: Steps) -> None:
    """Along `data` devices gather rows of tokens, of which each takes its own back."""
    truth = steps["four_heads.2"]
    result = steps["four_heads.0"].what_if(mesh=truth.context.mesh)
    rows = {row["axes"]: row for row in result.wire_bytes}
    compiled = sent(truth)
    for axes in ("data", "model"):
        assert rows[axes]["modelled"] == compiled[axes]
        assert rows[axes]["after"] in (None, compiled[axes])


def test_two_heads_per_device_gather_once(steps: Steps) -> None:
    """All bytes are decided, and those of the compiled step."""
    truth = steps["eight_heads.1"]
    result = steps["eight_heads.0"].what_if(mesh=truth.context.mesh)
    after = {row["axes"]: row["after"] for row in result.wire_bytes if row["after"] != 0}
    assert after == sent(truth)


def test_sums_whose_shards_become_whole_multiples(others: Steps) -> None:
    """384 columns per device are summed as a whole, 768 are scattered: known for v5p only."""
    truth = others["heads_four_v5e.1"]
    result = others["heads_four_v5e.0"].what_if(mesh=truth.context.mesh)
    fsdp = next(row for row in result.wire_bytes if row["axes"] == "fsdp")
    assert fsdp["after"] is None and fsdp["undecided"] == "padding"
    assert fsdp["modelled"] == sent(truth)["fsdp"]


def test_one_head_is_not_split(others: Steps) -> None:
    """Devices exchange keys and values along a part of the axis, of which the text has nothing."""
    truth = others["heads_two_v6e.1"]
    result = others["heads_two_v6e.0"].what_if(mesh=truth.context.mesh)
    rows = {row["axes"]: row for row in result.wire_bytes}
    assert rows["model"]["after"] is None and rows["model"]["undecided"] == "one"
    assert rows["model"]["decided"] < (sent(truth)["model"] or 0)
    assert rows["data"]["after"] == sent(truth)["data"]
    assert "model:(2)2" in sent(truth)
