"""The memory after `Module.what_if()`: it grows with the batch, and its range knows the old peak."""

import itertools
import json
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES

SIZES = ("batch", "sequence", "layers")


def sharded(name: str) -> hlofast.Module:
    return hlofast.load(FIXTURES / "sharded" / f"{name}.txt.gz")


def facts(module: hlofast.Module, **sizes: str) -> dict[str, object]:
    return {fact.name: fact.value for fact in module.what_if(**sizes).facts}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["decoder_v5e_2", "layers_v6e_8", "decoder_v6e_4"])
def test_a_larger_batch_takes_no_less_hbm(name: str) -> None:
    module = sharded(name)
    results = [module.what_if(batch=own) for own in ("0.5x", "1x", "2x", "4x", "8x")]
    allocated = [own.figures["allocated_in_hbm"][1] for own in results]
    assert allocated == sorted(allocated)
    # XLA's own peak may fall: it counts the largest heap, which may be that of fast memory.
    for less, more in itertools.pairwise(results):
        if more.figures["xla_peak"][1] < less.figures["xla_peak"][1]:
            assert "fast-heap" in {note.code for note in more.notes}


COMPILED = [
    json.loads(line) for line in (FIXTURES / "what_if" / "fast.jsonl").read_text().splitlines()
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", COMPILED, ids=lambda row: f"{row['program']}-{row['batch']}x")
def test_ranges_hold_what_the_compiler_needs(row: dict[str, Any]) -> None:
    """Programs whose arrays lie in fast memory for much of a step, compiled with other batches."""
    result = sharded(row["program"]).what_if(batch=f"{row['batch']}x")
    known = {fact.name: fact.value for fact in result.facts}
    peak = known["xla_peak_after"]
    least, most = known.get("xla_peak_least", peak), known.get("xla_peak_most", peak)
    assert least * 0.95 <= row["xla_peak"] <= most * 1.05
    if result.peak_undecided:
        assert least <= row["xla_peak"] <= most
    least, most = result.needed
    assert least * 0.95 <= row["allocated_in_hbm"] <= most * 1.05
    # XLA itself has a smaller peak for twice the batch in two of the programs.
    before = known["xla_peak_before"]
    if row["batch"] == 2 and row["program"] != "decoder_v6e_4":
        assert row["xla_peak"] < before and peak < before


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("role", "name"), [("batch", "decoder_v5p_16"), ("sequence", "decoder_v5p_16"),
                                            ("batch", "accumulated_v6e_8")])  # fmt: skip
def test_half_of_a_size_needs_no_more_than_the_whole(role: str, name: str) -> None:
    known = facts(sharded(name), **{role: "0.5x"})
    least, most = known["xla_peak_least"], known["xla_peak_most"]
    assert least <= known["xla_peak_after"] <= most == known["xla_peak_before"]


@pytest.mark.filterwarnings("ignore")
def test_a_longer_sequence_needs_no_less() -> None:
    known = facts(sharded("accumulated_v6e_8"), sequence="2x")
    least, most = known["xla_peak_least"], known["xla_peak_most"]
    assert least == known["xla_peak_before"] <= known["xla_peak_after"] < most


def test_compiled_programs_need_no_less_of_more() -> None:
    """What the ranges stand on: variants of programs that differ in one size."""
    lines = (FIXTURES / "what_if" / "records.jsonl").read_text().splitlines()
    pairs = [
        (less["allocated"]["0"], more["allocated"]["0"])
        for less, more in itertools.permutations(map(json.loads, lines), 2)
        for own in SIZES
        if less["program"] == more["program"] and less[own] < more[own]
        if all(less[name] == more[name] for name in (*SIZES, "mesh") if name != own)
    ]
    assert len(pairs) == 52
    assert all(less <= more for less, more in pairs)


@pytest.mark.filterwarnings("ignore")
def test_whether_it_fits_is_not_said_inside_the_range() -> None:
    module = sharded("accumulated_v6e_8")
    result = module.what_if(sequence="2x")
    least, most = result.needed
    for memory, fits in ((least - 1, False), ((least + most) // 2, None), (most, True)):
        result = module.with_context(hbm=memory).what_if(sequence="2x")
        assert {fact.name: fact.value for fact in result.facts}.get("fits") is fits
        assert ("undecided-fits" in {note.code for note in result.notes}) is (fits is None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "axes"), [("decoder_undonated_v5e", "4 devices along fsdp"),
                                            ("decoder_names_v6e", "8 devices along fsdp")])  # fmt: skip
def test_before_partitioning_the_mesh_has_to_divide_the_batch_too(name: str, axes: str) -> None:
    module = hlofast.load(FIXTURES / "peaks" / f"{name}.before.txt.xz")
    for batch in (1, 2, 3):
        words = f"dimension 0 of tokens.1 would be {batch}, which does not divide over {axes}"
        with pytest.raises(ValueError, match=words):
            module.what_if(batch=batch)
    before, after = module.what_if(batch="2x").figures["xla_peak"]
    assert before < after


@pytest.mark.filterwarnings("ignore")
def test_batches_that_the_text_itself_does_not_divide_may_change() -> None:
    text = """\
HloModule before, num_partitions=4

ENTRY main {
  tokens = s32[6,16] parameter(0), sharding={devices=[4,1]<=[4]}, metadata={op_name="batch['tokens']"}
  ROOT sum = s32[6,16] add(tokens, tokens)
}
"""
    assert "s32[7,16]" in hlofast.loads(text).what_if(batch=7).changed.to_text()
    with pytest.raises(ValueError, match="does not divide over 4 devices along axis_0"):
        hlofast.loads(text.replace("[6,", "[8,")).what_if(batch=7)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("device", ["tpu-v5e", "tpu-v5p"])
def test_a_device_brings_its_memory(device: str) -> None:
    """What is changed is compared with the memory of the device that the module is given."""
    module = sharded("accumulated_v6e_8").with_context(device=device)
    memory = {fact.name: fact.value for fact in module.memory().facts}
    known = facts(module, layers="0.5x")
    assert (known["hbm"], known["fits"]) == (memory["hbm"], True)
    assert known["allocated_in_hbm_before"] == memory["allocated_in_hbm"]
    assert known["xla_peak_before"] == memory["xla_peak"]
