"""`what-if`: matmuls that pass shards around a ring of devices on one of two meshes.

`rings.tar.xz` has two steps, each compiled for two meshes by `tests/fixtures/make_what_if.py`;
`what_if/dots_v5p.tar.xz` is a step on three: four devices in a square, eight, and four in a line.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest

import hlofast
from conftest import CHECKOUT, FIXTURES

sys.path += [str(CHECKOUT / "benches"), str(FIXTURES)]

import policy_texts

import what_if_accuracy

Step = tuple[dict[str, Any], hlofast.Module]


@pytest.fixture(scope="module")
def steps() -> dict[str, list[Step]]:
    """By program: the record and the step of each variant."""
    found: dict[str, list[Step]] = {}
    texts = what_if_accuracy.archived(FIXTURES / "rings.tar.xz")
    for own, text in (*texts, *what_if_accuracy.committed()):
        module = what_if_accuracy.loaded(own, text)
        found.setdefault(own["program"], []).append((own, module))
    return found


def modelled(result: hlofast.WhatIf) -> dict[str | None, int | None]:
    """Wire bytes after a change, as modelled."""
    rows = result.wire_bytes
    return {row["axes"]: row["modelled"] for row in rows if row["modelled"]}


@pytest.mark.parametrize("program", ["dots_v5p", "ring_plane_v6e", "scattered_v5e"])
def test_wire_bytes_count_the_rings_of_the_other_mesh(program: str, steps) -> None:
    """Four chips of a square form none; on v6e without `model`, all eight devices pass weights.

    `scattered_v5e` passes the sums of one matmul of activations, which is long.
    """
    for (own, module), (other, truth) in itertools.permutations(steps[program], 2):
        if own["mesh"] == other["mesh"]:
            continue
        sizes = {
            name: other[name]
            for name in ("batch", "sequence", "layers")
            if own[name] != other[name]
        }
        result = module.what_if(mesh=other["mesh"], **sizes)
        assert modelled(result) == what_if_accuracy.sent_by(truth)
        # The compiler's comparison is not public.
        axis = "model" if program == "scattered_v5e" else "fsdp"
        (row,) = (row for row in result.wire_bytes if row["axes"] == axis)
        assert row["after"] is None
        assert 0 <= row["decided"] < row["modelled"]
        assert "matmul" in row["undecided"]


def test_where_devices_lie_is_said_to_be_an_assumption(steps) -> None:
    _, square = steps["dots_v5p"][0]
    result = square.what_if(mesh={"fsdp": 8})
    (note,) = (note for note in result.notes if note.code == "rings")
    assert "JAX's order" in note.text and "on the old mesh, the new one or both" in note.text
    # The same mesh needs none.
    assert not any(note.code == "rings" for note in square.what_if(batch="2x").notes)


def test_rings_that_places_do_not_explain_stay(steps) -> None:
    """Without the device nothing is known of the slice: collectives stay those of the text."""
    _, square = steps["dots_v5p"][0]
    unknown = square.with_context(device=None).what_if(mesh={"fsdp": 8})
    assert not any(note.code == "rings" for note in unknown.notes)
    sent = what_if_accuracy.sent_by(unknown.changed)
    assert modelled(unknown)["fsdp"] != modelled(square.what_if(mesh={"fsdp": 8}))["fsdp"]
    assert sent["fsdp"] is not None


def test_one_of_two_inputs_of_one_length_changes() -> None:
    """Encoder and decoder have 1,024 positions each, and one table of positions."""
    text = policy_texts.unpack("texts")["pair_v6e_8"]
    module = hlofast.loads(text).with_context(mesh={"fsdp": 8}, device="tpu-v6e")
    sizes = {own.name: own.size for own in module.what_if().symbols if own.role == "sequence"}
    assert sizes == {"batch['tokens']": 1024, "batch['source']": 1024}
    whole = module.what_if()
    result = module.what_if(sequence={"tokens": 512})
    shapes = {
        own.metadata.op_name: own.shape.dimensions
        for own in result.changed.entry.parameters
        if own.metadata is not None
    }
    assert shapes["batch['tokens']"] == (4, 513)
    assert shapes["batch['source']"] == (4, 1024)
    assert result.change == "sequence of tokens 1,024 → 512"
    # The encoder's work stays.
    both = module.what_if(sequence=512)
    assert both.change == "sequence 1,024 → 512"
    flops = [own.figures["flops"][1] for own in (both, result, whole)]
    assert flops == sorted(flops)
    assert flops[1] - flops[0] > 0.2 * flops[2]


@pytest.mark.parametrize("other", ["source", "tokens"])
def test_inputs_of_one_length_keep_their_own(other: str) -> None:
    text = policy_texts.unpack("texts")["pair_v6e_8"]
    module = hlofast.loads(text).with_context(mesh={"fsdp": 8}, device="tpu-v6e")
    both = module.what_if(sequence={"tokens": 512, "source": 2048})
    assert both.change.count("sequence of ") == 2
    one = module.what_if(sequence={other: 1024})
    assert not one.is_changed


def test_peaks_at_which_values_wait_for_matmuls_are_undecided() -> None:
    """Operands of gradients live through the peak, although their matmuls could have run before."""
    texts = policy_texts.unpack("unrolled") | policy_texts.unpack("texts")
    for name, waits in (("held_unrolled_v5p_16", True), ("dense_v5e_8", False)):
        device = what_if_accuracy.device_of(name)
        module = hlofast.loads(texts[name]).with_context(device=device)
        result = module.what_if(batch="2x")
        assert ("order" in result.peak_undecided) == waits
        least, most = result.needed
        assert least <= result.figures["allocated_in_hbm"][1] <= most
        assert not module.what_if().peak_undecided
