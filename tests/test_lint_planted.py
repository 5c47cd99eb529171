"""Rules on train steps with one planted fault each, and on their clean twins.

`fixtures/make_planted.py` compiles `fixtures/planted_models.py` for TPUs and CPUs. What a finding
says is at stake is compared with the twin, whose source follows the remedy: matmuls, collectives and
XLA's own figures.
"""

import functools
import json
import tarfile
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from hlofast import Finding, Module

FOLDER = FIXTURES / "planted"
MODELS = (FIXTURES / "planted_models.py", FIXTURES / "planted_kinds.py")
TWINS = {
    "whole_batch": "none",
    "whole_width": "none",
    "checkpoint_twice": "checkpoint_once",
    "logits_in_full": "none",
    "padded": "none",
    "parked": "none",
    "wide_stream": "narrow_stream",
    "one_hot": "none",
    "whole_table": "none",
    "undonated": "none",
    "whole_state": "none",
    "apart": "none",
    "summed_again": "checkpoint_once",
    # Of other kinds: experts; an encoder of images with a decoder of words.
    "experts_of_all": "experts_of_own",
    "memory_again": "memory_once",
}
CLEAN = (*TWINS.values(), "offloaded", "narrow_groups", "wide_groups")
FOUND = {
    "whole_batch": {"replicated-compute", "batch-gathered"},
    # Nor are the weights of the MLP split.
    "whole_width": {"replicated-compute", "replicated-parameter"},
    "checkpoint_twice": {"recomputed-twice"},
    "logits_in_full": {"logits-in-full", "replicated-compute", "replicated-parameter"},
    "padded": {"padding-waste"},
    "parked": {"offload-waited"},
    "wide_stream": {"float32-activations"},
    # Every rank of `model` multiplies by the whole table: a lookup repeats nothing.
    "one_hot": {"one-hot-matmul"},
    "whole_table": {"replicated-parameter"},
    "undonated": {"undonated-state"},
    "whole_state": {"replicated-parameter"},
    "apart": {"reduced-twice"},
    "summed_again": {"recomputed-collectives"},
    "experts_of_all": {"batch-gathered"},
    # Every layer gathers, and the backward pass of each does so anew.
    "memory_again": {"loop-invariant-collective", "recomputed-collectives"},
}


@functools.cache
def texts() -> dict[str, bytes]:
    found = {}
    with tarfile.open(FOLDER / "texts.tar.xz") as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            found[member.name.removesuffix(".txt")] = content.read()
    return found


@functools.cache
def module(name: str) -> Module:
    return hlofast.loads(texts()[name])


@functools.cache
def truth() -> dict[str, dict[str, Any]]:
    lines = (FOLDER / "truth.jsonl").read_text().splitlines()
    return {record["name"]: record for record in map(json.loads, lines)}


def findings(name: str, code: str) -> tuple[Finding, ...]:
    return module(name).lint().of(code)


def at(fault: str) -> int:
    """The line of the models that the fault is about."""
    lines = [line for model in MODELS for line in enumerate(model.read_text().splitlines(), 1)]
    marked = [number for number, line in lines if fault in line.partition("# at:")[2].split()]
    assert len(marked) == 1
    return marked[0]


def programs(*faults: str) -> list[str]:
    return [name for name in sorted(truth()) if name.partition(".")[0] in faults]


def twin(name: str) -> str:
    fault, _, rest = name.partition(".")
    return f"{TWINS[fault]}.{rest}"


def matmul_flops(name: str) -> int:
    return sum(row["flops"] for row in module(name).matmuls().to_pylist())


def payload(name: str, **wanted: str) -> int:
    """Payload bytes of the collectives of activations with these properties."""
    rows = module(name).collectives().to_pylist()
    wanted["tensor_kind"] = "activation"
    return sum(
        row["total_payload"]
        for row in rows
        if all(row[key] == value for key, value in wanted.items())
    )


def all_payload(name: str) -> int:
    return sum(row["total_payload"] for row in module(name).collectives().to_pylist())


def xla_bytes(name: str) -> int:
    """Bytes of temporaries (CPU), all bytes in HBM (TPU)."""
    record = truth()[name]
    return int(record["temporary_bytes"] if name.endswith(".cpu") else record["allocated"]["0"])


@pytest.mark.parametrize("name", programs(*TWINS))
def test_finds_the_fault_and_nothing_else(name: str) -> None:
    fault = name.partition(".")[0]
    assert {finding.code for finding in module(name).lint()} == FOUND[fault]


@pytest.mark.parametrize("name", programs(*CLEAN))
def test_clean_programs_have_no_finding_at_all(name: str) -> None:
    assert list(module(name).lint()) == []


def test_every_kind_has_three_programs() -> None:
    kinds = {fault: len(programs(fault)) for fault in TWINS}
    assert len(kinds) == 15
    assert min(kinds.values()) >= 3


@pytest.mark.parametrize("name", programs("memory_again"))
def test_memory_that_each_layer_gathers(name: str) -> None:
    [finding] = findings(name, "loop-invariant-collective")
    assert finding.source_line == at("memory_again")
    # The twin also spares the first gather of the backward pass.
    change = payload(name, kind="all-gather") - payload(twin(name), kind="all-gather")
    layers = finding.figures["trip_count"]
    assert finding.bytes == change // layers * (layers - 1) > 0


@pytest.mark.parametrize("name", programs("experts_of_all"))
def test_experts_of_the_whole_batch(name: str) -> None:
    [finding] = findings(name, "batch-gathered")
    assert finding.source_line == at("experts_of_all")
    assert finding.bytes == pytest.approx(all_payload(name) - all_payload(twin(name)), rel=0.03)


@pytest.mark.parametrize("name", programs("whole_batch", "whole_width"))
def test_replicated_compute(name: str) -> None:
    found = findings(name, "replicated-compute")
    assert at(name.partition(".")[0]) in {finding.source_line for finding in found}
    across = 2 if "crossed" in name else 4
    batch = 4 if "crossed" in name else 2
    devices = 2 if name.endswith("tpu") else across if "width" in name else batch
    for finding in found:
        assert finding.figures["devices"] == devices
        assert finding.flops is not None
        assert finding.figures["replicated_flops"] * (devices - 1) == finding.flops * devices
    # With the matmuls of the twin, whose source shards them, that many FLOPs less are executed.
    stake = sum(finding.flops or 0 for finding in found)
    assert stake == matmul_flops(name) - matmul_flops(twin(name))
    if name.endswith("unrolled.cpu"):
        # XLA counts loops once.
        assert truth()[name]["flops"] - truth()[twin(name)]["flops"] == pytest.approx(
            stake, rel=0.02
        )


@pytest.mark.parametrize("name", programs("checkpoint_twice"))
def test_recomputed_twice(name: str) -> None:
    [finding] = findings(name, "recomputed-twice")
    sources = [module(name)[row].source for row in finding.instructions]
    assert at("checkpoint_twice") in {source.line for source in sources if source is not None}
    assert finding.phases == ("recompute",)
    assert finding.flops == matmul_flops(name) - matmul_flops(twin(name))
    if name.endswith("unrolled.cpu"):
        change = truth()[name]["flops"] - truth()[twin(name)]["flops"]
        # XLA counts the softmax between the matmuls too.
        assert change == pytest.approx(finding.flops, rel=0.08)


@pytest.mark.parametrize("name", programs("whole_batch"))
def test_batch_gathered(name: str) -> None:
    found = findings(name, "batch-gathered")
    # The line of the value that is gathered, not that of the constraint.
    assert at("batch_gathered") in {finding.source_line for finding in found}
    assert {finding.phases for finding in found} == {("forward",), ("backward",)}
    # The lines that call the norm whose line is that of some of the gathers.
    shared = [finding for finding in found if finding.called_at]
    assert shared and all(own.partition(":")[0].endswith(".py") for own in shared[0].called_at)
    # Gradients of weights are reduced instead.
    stake = sum(finding.bytes or 0 for finding in found)
    assert stake == pytest.approx(all_payload(name) - all_payload(twin(name)), rel=0.02)
    assert payload(twin(name), kind="all-gather", axes="axis_0") == 0
    assert all("with_sharding_constraint" in finding.remedy for finding in found)


@pytest.mark.parametrize("name", programs("logits_in_full"))
def test_logits_in_full(name: str) -> None:
    [finding] = findings(name, "logits-in-full")
    assert finding.source_line == at("logits_in_full")
    assert finding.figures["vocabulary"] == 16_384
    # TPUs multiply in bf16, CPUs in f32.
    devices, size = (4, 4) if name.endswith("cpu") else (2, 2)
    sequences = 16
    if "crossed" in name:
        devices, sequences = 2, 8
    logits = sequences * 512 * 16_384 * size
    assert finding.figures["held_bytes"] == logits
    stake = logits - logits // devices
    assert (finding.bytes, finding.bytes_are) == (stake, "memory")
    # The weight, its gradient and copies of the logits come on top.
    assert xla_bytes(name) - xla_bytes(twin(name)) >= stake


@pytest.mark.parametrize("name", programs("padded"))
def test_padding_waste(name: str) -> None:
    found = findings(name, "padding-waste")
    # 16 sequences, or 8, take 128 lanes.
    sequences = 8 if "crossed" in name else 16
    times = 128 // sequences
    for finding in found:
        assert finding.figures["tiled_bytes"] == times * finding.figures["logical_bytes"]
        assert f"{times}.0 times" in finding.message
    most = max(finding.bytes or 0 for finding in found)
    assert most == (times - 1) * sequences * 512 * 512 * 4
    stake = sum(finding.bytes or 0 for finding in found)
    assert xla_bytes(name) - xla_bytes(twin(name)) >= stake


@pytest.mark.parametrize("form", ["unrolled", "crossed", "single"])
def test_offload_waited(form: str) -> None:
    name = f"parked.{form}.tpu"
    [finding] = findings(name, "offload-waited")
    # One or two layers move 16 sequences of 512 tokens, or 8, in bf16 there and back.
    layers, sequences = 1 if form == "single" else 2, 8 if form == "crossed" else 16
    moved = 2 * layers * sequences * 512 * 512 * 2
    assert (finding.bytes, finding.bytes_are) == (moved, "traffic")
    assert finding.places == layers
    # The twin leaves nothing in host memory.
    assert truth()[name]["allocated"]["5"] > 0
    assert "5" not in truth()[twin(name)]["allocated"]


@pytest.mark.parametrize("name", programs("wide_stream"))
def test_float32_activations(name: str) -> None:
    # One fault, whatever the lines of the collectives that show it.
    [finding] = findings(name, "float32-activations")
    known = [module(name)[row].metadata for row in finding.instructions]
    assert at("whole_width") in {own.source_line for own in known if own is not None}
    assert finding.places > 1 and finding.message.startswith(f"{finding.places} collectives send")
    stake = finding.bytes
    change = payload(name) - payload(twin(name))
    # Statistics stay in f32 in both.
    assert stake == pytest.approx(change, rel=0.001)


@pytest.mark.parametrize("name", programs("one_hot"))
def test_one_hot_matmul(name: str) -> None:
    found = findings(name, "one-hot-matmul")
    assert {finding.source_line for finding in found} == {at("one_hot")}
    stake = sum(finding.flops or 0 for finding in found)
    assert stake == matmul_flops(name) - matmul_flops(twin(name))


@pytest.mark.parametrize("name", programs("undonated"))
def test_undonated_state(name: str) -> None:
    [finding] = findings(name, "undonated-state")
    assert any("embedding" in value for value in finding.values)
    # Parameters and moments: six arrays per layer or stack, the embedding and the head.
    stacks = 1 if "scanned" in name else 2
    assert finding.places == len(set(finding.values)) == 2 * (6 * stacks + 2)


@pytest.mark.parametrize("name", programs("whole_table", "whole_state"))
def test_replicated_parameters(name: str) -> None:
    found = findings(name, "replicated-parameter")
    values = {value for own in found for value in own.values}
    if name.startswith("whole_table"):
        assert values == {f"state['{kind}']['embedding']" for kind in ("parameters", "moments")}
    else:
        stacks = 1 if "scanned" in name else 2
        # All but the scales of norms, which are small.
        assert len(values) == 2 * (4 * stacks + 2)
        assert not any("scale" in value for value in values)
    copies = 8 if name.startswith("whole_table") else 4 if "crossed" in name else 2
    assert {own.figures["copies"] for own in found} == {copies}
    if name.endswith("tpu"):
        stake = sum(own.bytes or 0 for own in found)
        # The twin holds gathered weights of a layer besides.
        assert 0.8 * stake < xla_bytes(name) - xla_bytes(twin(name)) < 1.01 * stake


@pytest.mark.parametrize("name", programs("apart", "summed_again"))
def test_sums_over_devices_that_the_twin_spares(name: str) -> None:
    fault = name.partition(".")[0]
    [finding] = findings(name, *FOUND[fault])
    lines = {module(name)[row].source for row in finding.instructions}
    assert at(fault) in {source.line for source in lines if source is not None}
    every = {"kind": "all-reduce", "axes": "axis_1"}
    assert finding.bytes == payload(name, **every) - payload(twin(name), **every) > 0


def test_reduce_scatters_are_left_to_the_compiler() -> None:
    # Of one source, XLA for TPUs makes reduce-scatters of gradients, and XLA for CPUs all-reduces.
    for backend, kind in (("tpu", "reduce-scatter"), ("cpu", "all-reduce")):
        rows = module(f"none.scanned.{backend}").collectives().to_pylist()
        gradients = [
            row for row in rows if row["tensor_kind"] == "gradient" and row["payload"] > 1e5
        ]
        assert {row["kind"] for row in gradients} == {kind}
        assert findings(f"none.scanned.{backend}", "missed-reduce-scatter") == ()
