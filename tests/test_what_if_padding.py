"""`what-if`: shards of reduce-scatters, which XLA pads to windows of equal rows.

`padding.tar.xz` has sums of matmuls of six sizes, compiled for two meshes of each chip by
`tests/fixtures/make_padding.py`; `what_if/dots_v5p.tar.xz` is a train step.
"""

from __future__ import annotations

import itertools
import json
import lzma
import sys
import tarfile

import pytest

import hlofast
from conftest import CHECKOUT, FIXTURES
from hlofast import _what_if_wire

sys.path += [str(CHECKOUT / "benches"), str(FIXTURES)]

import policy_texts

import what_if_accuracy


@pytest.fixture(scope="module")
def sums() -> dict[str, list[hlofast.Module]]:
    """By chip: the compiled steps."""
    found: dict[str, list[hlofast.Module]] = {}
    path = FIXTURES / "padding.tar.xz"
    with lzma.open(path) as packed, tarfile.open(fileobj=packed) as archive:
        for entry in archive:
            chip, mesh = entry.name.split(" ", 1)
            file = archive.extractfile(entry)
            assert file is not None
            module = hlofast.loads(file.read())
            module = module.with_context(mesh=json.loads(mesh), device=f"tpu-{chip}")
            found.setdefault(chip, []).append(module)
    return found


@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
def test_shards_are_padded_as_the_compiler_pads_them(chip, sums) -> None:
    for own, other in itertools.permutations(sums[chip], 2):
        result = own.what_if(mesh=other.context.mesh)
        after, truth = _what_if_wire.after(result), what_if_accuracy.sent_by(other)
        assert after["fsdp"] == truth["fsdp"]
        # The shapes alone miss the padding.
        assert what_if_accuracy.sent_by(result.changed)["fsdp"] != truth["fsdp"]


def test_padding_of_two_devices_is_decided() -> None:
    """The table's gradient is summed along `model`, whose two devices stay."""
    steps = [
        (own, hlofast.loads(text).with_context(mesh=own["mesh"], device="tpu-v5p"))
        for own, text in what_if_accuracy.committed()
        if own["program"] == "dots_v5p" and own["variant"] in (0, 4)
    ]
    for (_, module), (own, truth) in itertools.permutations(steps, 2):
        rows = {row["axes"]: row for row in module.what_if(mesh=own["mesh"]).wire_bytes}
        assert rows["model"]["undecided"] is None
        assert rows["model"]["after"] == what_if_accuracy.sent_by(truth)["model"]
        assert rows["fsdp"]["undecided"] is not None
        assert rows["fsdp"]["decided"] >= 0


def test_no_rings_where_more_axes_divide_the_batch() -> None:
    """`data` and `fsdp` divide it: matmuls gather their weights along `fsdp`, and no ring."""
    text = policy_texts.unpack("texts")["dense_v5e_8"]
    mesh = {"data": 2, "fsdp": 2, "model": 2}
    module = hlofast.loads(text).with_context(mesh=mesh, device="tpu-v5e")
    result = module.what_if(mesh={"fsdp": 4}, batch=64)
    assert "matmul" not in result.undecided.values()
    # With one device along `data`, `fsdp` alone does.
    result = module.what_if(mesh={"data": 1, "fsdp": 4}, batch=64)
    assert "matmul" in result.undecided.values()
