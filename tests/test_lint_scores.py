"""Scores of attention that all-to-alls move: small programs.

What real compilers make of them is in `test_lint_steps.py`.
"""

import pytest

import hlofast
from hlofast import Finding
from lint_programs import ADD

MESH = hlofast.Mesh({"data": 2, "model": 2})
HEADER = "num_partitions=4, input_output_alias={ {0}: (1, {}, may-alias) }"
HEADS = "{devices=[2,1,2,1]<=[4]}"
ALONG_MODEL = "channel_id=1, replica_groups={{0,1},{2,3}}"
MOST = "most { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] maximum(a, b) }"
TIMES = (
    "lhs_batch_dims={0,2}, rhs_batch_dims={0,2}, lhs_contracting_dims={3}, rhs_contracting_dims={3}"
)
SCORES = f"""
  q = f32[2,512,4,64] parameter(0), sharding={HEADS}
  w = f32[256,128] parameter(1), sharding={{replicated}}
  k = f32[2,512,4,64] parameter(2), sharding={HEADS}
  s = f32[2,4,512,512] dot(q, k), {TIMES}
  t = f32[2,4,512,512] all-to-all(s), {ALONG_MODEL}, dimensions={{2}}
  low = f32[] constant(-inf)
  m = f32[2,4,512] reduce(t, low), dimensions={{3}}, to_apply=most
  v = f32[256,128] negate(w)
  ROOT r = (f32[256,128], f32[2,4,512]) tuple(v, m)
"""
PAYLOAD = 2 * 4 * 512 * 512 * 4


def scores(body: str) -> list[Finding]:
    text = f"HloModule m, {HEADER}\n\n{ADD}\n\n{MOST}\n\nENTRY e {{\n{body}\n}}\n"
    findings = hlofast.loads(text, strict=True).lint(MESH)
    return [finding for finding in findings if finding.code == "resharded-scores"]


def test_scores_that_move() -> None:
    [finding] = scores(SCORES)
    assert finding.names == ("t",)
    assert finding.bytes == PAYLOAD
    assert finding.figures == {"payload_bytes": PAYLOAD, "wire_bytes": PAYLOAD // 2}
    assert finding.is_lower_bound
    assert "1 all-to-all along model (2 devices) moves scores of attention" in finding.message
    assert "100.00 % of all collectives" in finding.message
    assert "with_sharding_constraint" in finding.remedy


def test_other_values_with_as_many_elements() -> None:
    """An array with as many elements as scores, but other sizes, is not reported."""
    more = f"""
  o = f32[4096,256] broadcast(low), dimensions={{}}
  x = f32[4096,512] dot(o, u), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  y = f32[4096,512] all-to-all(x), {ALONG_MODEL}, dimensions={{0}}
"""
    parameter = "  u = f32[256,512] parameter(3), sharding={replicated}\n"
    text = SCORES.replace("  s = f32", parameter + "  s = f32", 1)
    [finding] = scores(text.replace("  v = f32", more.lstrip("\n") + "  v = f32", 1))
    assert finding.names == ("t",)


def test_16_bit_scores_move_too() -> None:
    text = SCORES.replace("f32[2,4,512,512]", "bf16[2,4,512,512]").replace(
        "  low =", "  u = f32[2,4,512,512] convert(t)\n  low ="
    )
    [finding] = scores(text.replace("reduce(t, low)", "reduce(u, low)"))
    assert finding.bytes == PAYLOAD // 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # No softmax reads the products: similarities, or attention without one.
        ("to_apply=most", "to_apply=add"),
        # Queries move, and not the scores.
        ("dot(q, k)", "dot(p, k)"),
        # The other side is a weight: logits.
        ("dot(q, k)", "dot(q, c)"),
    ],
)
def test_other_values_that_move(old: str, new: str) -> None:
    more = f"""
  p = f32[2,512,4,64] all-to-all(q), {ALONG_MODEL}, dimensions={{1}}
  c = f32[2,512,4,64] constant({{...}})
"""
    text = SCORES.replace("  s = f32", more + "  s = f32", 1)
    assert len(scores(text)) == 1
    changed = text.replace(old, new)
    if "dot(p, k)" in changed:
        changed = changed.replace("reduce(t, low)", "reduce(s, low)").replace(
            f"  t = f32[2,4,512,512] all-to-all(s), {ALONG_MODEL}, dimensions={{2}}\n", ""
        )
    assert changed != text
    assert scores(changed) == []
