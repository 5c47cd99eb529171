"""The seed documents and facts about them that any reader must find."""

import json
import math
import struct
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import Seeds


@cache
def read(path: Path) -> hlofast.Module:
    (part,) = hlofast.find_modules(path.read_bytes())
    return part.module


@pytest.fixture
def alpa_stage(seeds: Seeds) -> hlofast.Module:
    """Seed 001: a pipeline stage before sharding."""
    return read(seeds.path("001"))


@pytest.fixture
def alpa_step(seeds: Seeds) -> hlofast.Module:
    """Seed 002: one device's optimised GPU program of a 16-device train step."""
    return read(seeds.path("002"))


@pytest.fixture
def issue_page(seeds: Seeds) -> hlofast.Module:
    """Seed 003: a TPU dump inside an issue page."""
    return read(seeds.path("003"))


def opcodes(module: hlofast.Module) -> dict[str, int]:
    return {row["opcode"]: row["instructions"] for row in module.summary().opcodes}


def counted(text: str) -> dict[str, int]:
    """From `add 53, divide 36`."""
    pairs = (entry.split() for entry in text.split(","))
    return {opcode: int(count) for opcode, count in pairs}


def multiply_adds(shape: hlofast.Shape, contracted: list[int], result: hlofast.Shape) -> int:
    return math.prod(result.dimensions) * math.prod(shape.dimensions[d] for d in contracted)


def binary(config: str | bytes) -> bytes:
    return config.encode() if isinstance(config, str) else config


def flops_by_phase(module: hlofast.Module) -> dict[str, int]:
    return {row["phase"]: row["flops"] for row in module.matmuls().by("phase")}


def instructions_by_phase(module: hlofast.Module) -> dict[str, int]:
    return {row["phase"]: row["instructions"] for row in module.cost().by("phase")}


def group_sets(instruction: hlofast.Instruction) -> list[list[int]]:
    return [list(group) for group in instruction.attributes["replica_groups"]]


SIZES = {
    "001": {"computations": 35, "instructions": 1021, "entry_instructions": 606},
    "002": {"computations": 481, "instructions": 9679, "entry_instructions": 1656},
    "003": {"computations": 15, "instructions": 118, "entry_instructions": 31},
}


@pytest.mark.parametrize("number", SIZES)
def test_counts(seeds: Seeds, number: str) -> None:
    counts = read(seeds.path(number)).summary().values
    assert SIZES[number].items() <= counts.items()


STATUS = {
    "001": ("unoptimised", None),
    "002": ("optimised", "gpu"),
    "003": ("scheduled", "tpu"),
}


@pytest.mark.parametrize("number", STATUS)
def test_status_and_backend(seeds: Seeds, number: str) -> None:
    summary = read(seeds.path(number)).summary()
    assert (summary.status, summary.backend) == STATUS[number]


SIGNATURES = {
    "001": (25, 3_294_166_544, 50, 5_680_803_876, 20),
    "002": (239, 194_152_460, 233, 194_070_536, 233),
    "003": (4, 6_295_552, 1, 2_097_152, 0),
}


@pytest.mark.parametrize("number", SIGNATURES)
def test_signature_and_donation(seeds: Seeds, number: str) -> None:
    summary = read(seeds.path(number)).summary()
    values = summary.values
    assert SIGNATURES[number] == (
        len(summary.parameters),
        values["parameter_bytes"],
        len(summary.outputs),
        values["output_bytes"],
        values["aliases"],
    )


def test_the_trainer_configuration_is_not_hlo(seeds: Seeds) -> None:
    text = seeds.path("004").read_text()
    for read_text in (hlofast.find_modules, hlofast.loads):
        with pytest.raises(hlofast.ParseError) as caught:
            read_text(text)
        assert caught.value.kind == "no-module"


class TestAlpaStage:
    def test_header(self, alpa_stage: hlofast.Module) -> None:
        assert alpa_stage.name == "train_step_pipeshard_parallel_mesh_1"
        assert alpa_stage.entry.name == "main.1056"
        assert not alpa_stage.is_scheduled
        assert alpa_stage.num_partitions == 1

    def test_opcodes(self, alpa_stage: hlofast.Module) -> None:
        expected = counted(
            """
            parameter 285, get-tuple-element 218, broadcast 102, constant 68, multiply 64,
            add 53, divide 36, select 32, convert 23, reduce 18, reshape 15, call 14,
            tuple 13, and 10, dot 9, subtract 9, custom-call 8, compare 8, sqrt 5,
            is-finite 4, gather 3, transpose 3, power 3, scatter 2, cosine 1
            """
        )
        assert expected.items() <= opcodes(alpa_stage).items()

    def test_entry_calls_wrappers_only(self, alpa_stage: hlofast.Module) -> None:
        counts = Counter(i.opcode for i in alpa_stage.entry)
        assert (counts["call"], counts["custom-call"]) == (8, 0)

    def test_state_and_inputs(self, alpa_stage: hlofast.Module) -> None:
        summary = alpa_stage.summary()
        sizes = summary.parameters.values("bytes")
        assert sum(sizes[:20]) == summary.values["aliased_bytes"] == 3_097_550_864
        assert sum(sizes[20:]) == 196_615_680
        assert summary.parameters.values("donated") == [True] * 20 + [False] * 5
        outputs = summary.outputs.values("bytes")
        parts = [outputs[:20], outputs[20:42], outputs[42:49], outputs[49:]]
        assert [sum(part) for part in parts] == [3_097_550_864, 1_944_137_744, 639_115_264, 4]

    def test_custom_calls(self, alpa_stage: hlofast.Module) -> None:
        assert alpa_stage.summary().custom_calls.to_pylist() == [
            {"target": "pipeline_marker", "instructions": 6},
            {"target": "__builtin$CrossMeshAllReduce", "instructions": 2},
        ]

    def test_dots_are_float32_and_their_flops(self, alpa_stage: hlofast.Module) -> None:
        dots = [i for c in alpa_stage.computations for i in c if i.opcode == "dot"]
        assert {o.shape.element_type for i in dots for o in i.operands} == {"f32"}
        flops = sum(
            2 * multiply_adds(i.operands[0].shape, i.attributes["lhs_contracting_dims"], i.shape)
            for i in dots
        )
        assert flops == 3_398_392_872_960

    def test_marker_sizes_are_the_leaf_sizes(self, alpa_stage: hlofast.Module) -> None:
        sizes: dict[str, list[int]] = {}
        for computation in alpa_stage.computations:
            for i in computation:
                if i.attributes.get("custom_call_target") != "pipeline_marker":
                    continue
                raw = binary(i.backend_config)
                sizes[i.metadata.op_name] = list(struct.unpack(f"<{len(raw) // 8}q", raw))
                (operand,) = i.operands
                assert sizes[i.metadata.op_name] == [leaf.bytes for leaf in operand.shape.leaves()]
        assert {name: (len(leaves), sum(leaves)) for name, leaves in sizes.items()} == {
            "layer_1$start": (10, 639_122_948),
            "layer_1$end": (22, 1_944_137_744),
            "layer_1_backward$start": (24, 2_098_805_260),
            "layer_1_backward$end": (7, 639_115_264),
            "1_apply_grad$start": (25, 3_540_058_132),
            "1_apply_grad$end": (21, 3_097_550_868),
        }
        first = [112721920, 90177536, 41943040, 90177536, 41943040, 8192, 262144000, 5120, 2560, 4]
        assert sizes["layer_1$start"] == first

    def test_cross_mesh_reductions(self, alpa_stage: hlofast.Module) -> None:
        calls = [
            i
            for c in alpa_stage.computations
            for i in c
            if i.attributes.get("custom_call_target") == "__builtin$CrossMeshAllReduce"
        ]
        reductions = {
            (binary(i.backend_config), i.shape.element_type, tuple(i.shape.dimensions))
            for i in calls
        }
        assert reductions == {(b"AND;0$1$", "pred", ()), (b"SUM;0$1$", "f32", ())}

    def test_matrix_products_by_phase(self, alpa_stage: hlofast.Module) -> None:
        assert len(alpa_stage.matmuls()) == 9
        # Applying gradients takes no matrix product.
        assert flops_by_phase(alpa_stage) == {
            "forward": 1_132_797_624_320,
            "backward": 2_265_595_248_640,
        }

    def test_what_xla_counts(self, alpa_stage: hlofast.Module) -> None:
        xla = alpa_stage.cost(xla=True)
        assert (xla.flops, xla.transcendentals) == (3_406_617_059_879, 331_359_237)
        assert xla.bytes_accessed == 102_166_097_687
        # As executed, the eight custom calls are no -1 each.
        assert alpa_stage.cost().flops == xla.flops + 8


class TestAlpaStep:
    def test_header(self, alpa_step: hlofast.Module) -> None:
        assert alpa_step.name == "train_step_shard_parallel.6"
        assert alpa_step.entry.name == "main.5888_spmd"
        assert not alpa_step.is_scheduled

    def test_opcodes(self, alpa_step: hlofast.Module) -> None:
        expected = counted(
            """
            parameter 2006, multiply 1240, broadcast 1098, add 1005, constant 642,
            get-tuple-element 624, bitcast 602, convert 412, divide 375, fusion 282,
            reduce 161, custom-call 151, subtract 143, slice 122, tuple 98, transpose 90,
            copy 84, sqrt 77, maximum 71, dynamic-slice 69, rsqrt 58, compare 48,
            all-reduce 43, partition-id 1
            """
        )
        assert expected.items() <= opcodes(alpa_step).items()

    def test_fusions_and_custom_calls(self, alpa_step: hlofast.Module) -> None:
        summary = alpa_step.summary()
        assert summary.fusions.to_pylist() == [
            {"kind": "kLoop", "instructions": 178},
            {"kind": "kInput", "instructions": 104},
        ]
        calls = summary.custom_calls.to_pylist()
        assert calls == [{"target": "__cublas$gemm", "instructions": 151}]

    def test_parameters_are_weights_and_two_moments(self, alpa_step: hlofast.Module) -> None:
        parameters = alpa_step.summary().parameters.to_pylist()
        sizes = [port["bytes"] for port in parameters]
        state = [sum(sizes[start : start + 77]) for start in (1, 79, 156)]
        assert state == [64_690_176] * 3
        assert [p["shape"].partition("{")[0] for p in parameters[233:]] == ["s32[4,1024]"] * 5 + [
            "u32[1]"
        ]

    def test_gemm_flops(self, alpa_step: hlofast.Module) -> None:
        flops = accumulating = 0
        for i in alpa_step.entry:
            if i.attributes.get("custom_call_target") != "__cublas$gemm":
                continue
            config = i.backend_config_json
            contracted = config["dot_dimension_numbers"]["lhs_contracting_dimensions"]
            lhs = i.operands[0].shape
            result = i.shape
            flops += 2 * multiply_adds(lhs, [int(d) for d in contracted], result)
            accumulating += config["beta"] == 1
            assert result.element_type == "f16"
        assert (flops, accumulating) == (631_360_192_512, 32)

    def test_all_reduces_by_groups(self, alpa_step: hlofast.Module) -> None:
        rows = alpa_step.where(opcode="all-reduce")
        payload: Counter[str] = Counter()
        count: Counter[str] = Counter()
        for i in alpa_step.entry:
            if i.opcode != "all-reduce":
                continue
            groups = group_sets(i)
            axis = {8: "model", 2: "data"}[len(groups[0])]
            expected = (
                [list(range(8)), list(range(8, 16))]
                if axis == "model"
                else [[k, k + 8] for k in range(8)]
            )
            assert groups == expected
            payload[axis] += sum(leaf.bytes for leaf in i.shape.leaves())
            count[axis] += 1
        assert len(rows) == 43
        assert count == {"model": 40, "data": 3}
        assert payload == {"model": 318_799_872, "data": 45_505_540}

    def test_matrix_products_by_phase(self, alpa_step: hlofast.Module) -> None:
        products = alpa_step.matmuls()
        assert {row["kind"] for row in products} == {"gemm"}
        assert (len(products), products["flops"].sum()) == (151, 631_360_192_512)
        assert flops_by_phase(alpa_step) == {
            "forward": 198_642_237_440,
            "recompute": 90_194_313_216,
            "backward": 342_523_641_856,
        }

    def test_what_xla_counts(self, alpa_step: hlofast.Module) -> None:
        xla = alpa_step.cost(xla=True)
        assert (xla.flops, xla.transcendentals) == (7_736_295_033, 685_401_602)
        assert xla.bytes_accessed == 7_596_084_773
        assert xla.cost_analysis()["optimal_seconds"] == -151


class TestIssuePage:
    def test_place_in_the_page(self, seeds: Seeds) -> None:
        (part,) = hlofast.find_modules(seeds.path("003").read_text())
        assert (part.line, part.offset) == (124, 5788)

    def test_header(self, issue_page: hlofast.Module) -> None:
        assert issue_page.is_scheduled
        assert issue_page.num_partitions == 8

    def test_groups_of_the_weight_gathers_agree(self, issue_page: hlofast.Module) -> None:
        gathers = [i for i in issue_page.entry if i.opcode == "all-gather"]
        expected = [[0, 4], [1, 5], [2, 6], [3, 7]]
        assert [group_sets(i) for i in gathers] == [expected, expected]
        assert [i.attributes["channel_id"] for i in gathers] == [1, 2]
        (reduction,) = [i for i in issue_page.entry if i.opcode == "all-reduce"]
        assert group_sets(reduction) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert reduction.shape.bytes == 8_388_608

    def test_schedule_positions(self, issue_page: hlofast.Module) -> None:
        order = [i.name for i in issue_page.entry]
        uses = {
            name: (order.index(name), max(order.index(user.name) for user in i.users))
            for i in issue_page.entry
            if (name := i.name) in {"all-gather", "all-gather.1", "all-reduce"}
        }
        assert uses == {"all-gather": (18, 21), "all-gather.1": (20, 21), "all-reduce": (22, 30)}

    def test_estimated_cycles(self, issue_page: hlofast.Module) -> None:
        cycles = {}
        for i in issue_page.entry:
            window: Any = (i.backend_config_json or {}).get("window_config", {})
            if "estimated_cycles" in window:
                cycles[i.name] = int(window["estimated_cycles"])
        assert cycles["fusion"] == 319_985
        assert sum(cycles.values()) == 377_129

    def test_products_are_convolutions(self, issue_page: hlofast.Module) -> None:
        products = [i for c in issue_page.computations for i in c if i.opcode == "convolution"]
        assert sorted(i.name for i in products) == ["convolution.2", "convolution.5"]
        assert {i.attributes.raw("dim_labels") for i in products} == {"bf_oi->bf"}

    def test_recomputed_instructions(self, issue_page: hlofast.Module) -> None:
        places = Counter(
            c.name
            for c in issue_page.computations
            for i in c
            if "rematted_computation" in (i.metadata.op_name if i.metadata else "")
        )
        assert sum(places.values()) == 13
        assert places[issue_page.entry.name] == 1

    def test_matrix_products(self, issue_page: hlofast.Module) -> None:
        products = issue_page.matmuls()
        assert {row["kind"] for row in products} == {"convolution_as_dot"}
        assert products["flops"].sum() == 8_589_934_592
        assert len(products) == 2

    def test_phases(self, issue_page: hlofast.Module) -> None:
        instructions = instructions_by_phase(issue_page)
        assert "forward" not in instructions
        # 13 have a name that says so; 8 without a name, most of them constants, serve only these.
        assert instructions["recompute"] == 21


def test_documents_summarise_to_json(seeds: Seeds) -> None:
    for number in SIZES:
        summary = read(seeds.path(number)).summary()
        (result,) = json.loads(summary.to_json())["results"]
        assert result == summary.to_dict()
