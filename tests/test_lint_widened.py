"""`Module.lint`: weights and payloads in a wider type than they need."""

from __future__ import annotations

import pytest

import hlofast
import lint_programs as programs
from conftest import Seeds
from lint_programs import ALL, codes, fixture, lint, only


def test_widened_payload() -> None:
    finding = only(lint(programs.WIDENED_REDUCTION))
    assert finding.code == "widened-payload"
    assert finding.names == ("r", "c")
    # 8,192 B among 4: 2 * 3/4 of it, and half of that in 16 bits.
    assert finding.figures == {"wire_bytes": 12_288, "wire_bytes_after": 6_144}
    assert (finding.bytes, finding.bytes_are, finding.provenance) == (6_144, "wire", "modelled")
    assert "f32 values converted from bf16" in finding.message
    assert "in bf16, where every addition rounds" in finding.message


GATHERED = programs.WIDENED_REDUCTION.replace(
    f"r = f32[64,32] all-reduce(flat), {ALL}, to_apply=add",
    f"r = f32[256,32] all-gather(flat), {ALL}, dimensions={{0}}",
)


def test_what_is_only_moved_stays_the_same_in_the_narrow_type() -> None:
    for narrow, factor in (("bf16", 2), ("f8e4m3fn", 4)):
        finding = only(lint(GATHERED.replace("bf16", narrow)))
        assert finding.code == "widened-payload"
        assert "with the same result" in finding.message
        sent, after = finding.figures["wire_bytes"], finding.figures["wire_bytes_after"]
        assert (sent, after) == (3 * 8_192, 3 * 8_192 // factor)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Something is computed in f32.
        ("c = f32[2048] convert(x)", "w = f32[2048] convert(x)\n  c = f32[2048] negate(w)"),
        # It is an f32 number that was rounded on its way.
        ("x = bf16[2048] parameter(0)", "x = f32[2048] parameter(0)"),
        # Sums in 8 bits are worth little.
        ("x = bf16[2048]", "x = f8e4m3fn[2048]"),
        # The compiler widened it, for what cannot add in 16 bits.
        (f"ROOT r = f32[64,32] all-reduce(flat), {ALL}, to_apply=add",
         f"r = f32[64,32] all-reduce(flat), {ALL}, to_apply=add\n  b = bf16[64,32] convert(r)\n"
         "  ROOT n = bf16[64,32] negate(b)"),
        # The numbers are integers.
        ("bf16[2048]", "s16[2048]"),
    ],
)  # fmt: skip
def test_payload_that_has_to_be_wide(old: str, new: str) -> None:
    text = programs.WIDENED_REDUCTION.replace(old, new)
    assert text != programs.WIDENED_REDUCTION
    assert codes(text) == []


def test_programs_compiled_for_cpus_are_wide_by_themselves() -> None:
    header = "num_partitions=4, is_scheduled=true"
    assert codes(programs.WIDENED_REDUCTION, header=header) == []
    tiled = programs.WIDENED_REDUCTION.replace("[64,32] ", "[64,32]{1,0:T(8,128)} ")
    assert codes(tiled, header=header) == ["widened-payload"]


def test_gradients_of_a_tpu_program_reduced_wide() -> None:
    findings = fixture("sharded/experts_v6e_8.txt.gz").lint()
    finding = only(findings.of("widened-payload"))
    assert finding.names[0] == "all-reduce"
    assert finding.bytes == 4 * 1024 * 4096 * 2


WIDENED = """HloModule m

ENTRY e {
  w = f16[1024,512] parameter(0)
  small = f16[256,512] parameter(1)
  x = f32[1024,512] parameter(2)
  wide = f32[1024,512] convert(w), FORWARD
  narrow = f32[256,512] convert(small), FORWARD
  y = f32[1024,512] multiply(wide, x), FORWARD
  z = f32[256,512] negate(narrow), FORWARD
  g = f32[1024,512] multiply(wide, y), BACKWARD
  h = f32[256,512] multiply(narrow, z), BACKWARD
  ROOT r = (f32[1024,512], f32[256,512]) tuple(g, h)
}
"""


def widened() -> hlofast.Findings:
    text = WIDENED.replace("FORWARD", 'metadata={op_name="jit(f)/jvp()/mul"}')
    text = text.replace("BACKWARD", 'metadata={op_name="jit(f)/transpose(jvp())/mul"}')
    return hlofast.loads(text).lint()


def test_widened_weights_kept() -> None:
    (finding,) = [finding for finding in widened() if finding.code == "widened-weights-kept"]
    assert finding.names == ("wide", "w", "g")
    assert (finding.bytes, finding.bytes_are) == (1 << 21, "memory")
    kept = 2 * (1 << 21) + 2 * (1 << 19)  # the copies and what they are multiplied with
    assert finding.figures == {"copied_bytes": 1 << 21, "residual_bytes": kept}
    assert "1 copy of weights in a wider type is kept" in finding.message


def test_widened_weights_of_a_pipeline_stage(seeds: Seeds) -> None:
    findings = hlofast.load(seeds.path("001")).lint()
    (finding,) = [finding for finding in findings if finding.code == "widened-weights-kept"]
    assert finding.bytes == 884_998_144
    assert finding.places == 3
    assert finding.figures["residual_bytes"] == 1_944_137_736
    assert {"convert.222", "convert.196", "convert.193"} < set(finding.names)
