"""`Module.lint` on the seed documents, and on a program like one of them."""

from __future__ import annotations

import hlofast
from conftest import Seeds
from lint_programs import fixture, only


def test_seed_001(seeds: Seeds) -> None:
    findings = hlofast.load(seeds.path("001")).lint()
    assert findings.counts() == {"low-precision-in-f32": 1, "widened-weights-kept": 1}
    finding = only(finding for finding in findings if finding.code == "low-precision-in-f32")
    assert finding.places == 9
    dots = [row["instruction"] for row in hlofast.load(seeds.path("001")).matmuls()]
    assert sorted(finding.instructions[:9]) == sorted(dots)
    assert finding.flops == 3_398_392_872_960
    assert set(finding.phases) == {"forward", "backward"}


def test_seed_002(seeds: Seeds) -> None:
    findings = hlofast.load(seeds.path("002")).lint()
    assert findings.counts() == {
        "one-hot-matmul": 1,
        "recomputed-collectives": 1,
        "replicated-parameter": 1,
        "reduced-twice": 1,
    }
    twice = only(findings.of("reduced-twice"))
    assert twice.bytes == 13_107_200
    assert twice.names[0] == "all-reduce.124"
    recomputed = only(findings.of("recomputed-collectives"))
    assert (recomputed.places, recomputed.bytes) == (12, 100_663_296)
    assert recomputed.figures["group_payload_bytes"] == 318_799_872
    assert "31.58 %" in recomputed.message
    hot = only(findings.of("one-hot-matmul"))
    assert hot.places == 4
    assert hot.flops == 2 * (2 * 4096 * 6400 * 1024 + 2 * 4096 * 128 * 1024)
    assert "17.35 %" in hot.message
    assert hot.phases == ("forward", "backward")


def test_seed_003(seeds: Seeds) -> None:
    module = hlofast.find_modules(seeds.path("003").read_bytes())[0].module
    assert module is not None
    finding = only(module.lint(hlofast.Mesh({"data": 2, "model": 4})))
    assert finding.code == "missed-reduce-scatter"
    assert finding.names == ("all-reduce", "fusion.3", "fusion.5")
    assert finding.bytes == 6_291_456
    expected = {
        "wire_bytes": 12_582_912,
        "wire_bytes_after": 6_291_456,
        "live_bytes": 8_388_608,
        "live_bytes_after": 2_097_152,
        "group_size": 4,
    }
    assert finding.figures == expected
    assert "along model (4 devices)" in finding.message
    assert finding.source_line == 47
    assert finding.phases == ("backward",)


def test_tied_embeddings_of_a_fixture() -> None:
    module = fixture("seedlike/gpu_train_step.txt.gz")
    finding = only(module.lint().of("reduced-twice"))
    reduction, *pieces = (module[row] for row in finding.instructions)
    assert reduction.opcode == "all-reduce"
    slices = [piece for piece in pieces if piece.opcode == "slice"]
    assert [piece.shape.bytes for piece in slices] == [finding.bytes] * 2
    hot = only(module.lint().of("one-hot-matmul"))
    products = [row for row in module.matmuls() if row["instruction"] in hot.instructions]
    assert hot.flops == sum(row["flops"] for row in products)
    assert set(hot.phases) == {"forward", "backward"}
