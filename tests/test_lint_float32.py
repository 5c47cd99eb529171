"""Activations in f32 of programs that compute in 16 bits from f32 master weights: small programs.

What compilers make of such programs is in `test_advice_judged.py`.
"""

from __future__ import annotations

import pytest

import hlofast
from hlofast import Finding
from lint_programs import ADD

TIMES = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
MOST = "most { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] maximum(a, b) }"
MESH = hlofast.Mesh({"data": 2, "model": 2})
DATA = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"
MODEL = "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}"
ALONG_MODEL = "channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true"
STATE = "input_output_alias={ {0}: (1, {}, may-alias), {1}: (2, {}, may-alias) }"
PARTITIONED = f", num_partitions=4, {STATE}"


def named(name: str) -> str:
    return f'metadata={{op_name="jit(step)/{name}"}}'


# Two matmuls in 16 bits, and one in f32 whose result the backward pass reads.
KEPT = f"""
  x = bf16[4096,256] parameter(0)
  w = f32[256,256] parameter(1)
  n = bf16[256,256] convert(w)
  a = bf16[4096,256] dot(x, n), {TIMES}, {named("jvp(a)/dot_general")}
  b = bf16[4096,256] dot(a, n), {TIMES}, {named("jvp(b)/dot_general")}
  f = f32[4096,256] convert(b), {named("jvp(c)/convert_element_type")}
  y = f32[4096,256] dot(f, w), {TIMES}, {named("jvp(c)/dot_general")}
  low = f32[] constant(-inf)
  m = f32[4096,256] negate(y), {named("jvp(d)/neg")}
  t = f32[4096,256] multiply(y, y), {named("transpose(jvp(c))/mul")}
  g = f32[256,256] dot(t, t), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}},
    {named("transpose(jvp(c))/dot_general")}
  u = f32[256,256] subtract(w, g)
  ROOT r = (f32[256,256], f32[4096,256]) tuple(u, m)
"""


def lint(
    body: str, header: str = "", code: str = "float32-residuals", before: str = ""
) -> list[Finding]:
    text = f"HloModule m{header}\n\n{ADD}\n{MOST}\n{before}\nENTRY e {{\n{body}\n}}\n"
    found = hlofast.loads(text, strict=True).lint(MESH if "partitions" in header else None)
    return list(found.of(code))


def test_results_of_matmuls() -> None:
    [finding] = lint(KEPT)
    assert finding.names[0] == "y"
    held = 4096 * 256 * 4
    assert finding.figures == {"kept_bytes": held, "residual_bytes": held}
    assert (finding.bytes, finding.bytes_are) == (held // 2, "memory")
    assert "all devices" not in finding.message
    assert "rounded to 16 bits" in finding.remedy


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The program computes in f32.
        ("bf16", "f32"),
        # Most matmuls are f32, by lines and by FLOPs.
        ("b = bf16[4096,256] dot(a, n)", "c = f32[4096,256] convert(a)\n  b = f32[4096,256] dot(c, w)"),
        # Scores: both sides are computed.
        ("dot(f, w)", "dot(f, k)"),
        # The first step of a softmax.
        ("m = f32[4096,256] negate(y)", "o = f32[4096] reduce(y, low), dimensions={1}, "
         "to_apply=most\n  m = f32[4096,256] broadcast(o), dimensions={0}"),
        # A function of a norm.
        ("dot(f, w), " + TIMES, "tanh(f)"),
        # A small array.
        ("4096", "512"),
    ],
)  # fmt: skip
def test_what_is_f32_on_purpose(old: str, new: str) -> None:
    keys = "  j = bf16[256,256] slice(b), slice={[0:256], [0:256]}\n  k = f32[256,256] convert(j)\n"
    text = KEPT.replace("  f =", keys + "  f =")
    assert lint(text)
    assert old in text
    assert lint(text.replace(old, new)) == []


# A loop whose layers add 16-bit results to an f32 sum, which the backward pass reads.
STATE_TYPE = "(s32[], f32[4096,256], f32[4,4096,256], f32[4,256,256])"
LAYER = f"""
body {{
  p = {STATE_TYPE} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4096,256] get-tuple-element(p), index=1
  k = f32[4,4096,256] get-tuple-element(p), index=2
  w = f32[4,256,256] get-tuple-element(p), index=3
  one = s32[] constant(1)
  zero = s32[] constant(0)
  e = f32[1,4096,256] reshape(x)
  s = f32[4,4096,256] dynamic-update-slice(k, e, i, zero, zero),
    {named("jvp()/while/body/dynamic_update_slice")}
  l = f32[1,256,256] dynamic-slice(w, i, zero, zero), dynamic_slice_sizes={{1,256,256}}
  m = f32[256,256] reshape(l)
  n = bf16[256,256] convert(m)
  h = bf16[4096,256] convert(x)
  o = bf16[256,256] slice(h), slice={{[0:256], [0:256]}}
  a = bf16[4096,256] dot(h, n), {TIMES}, {named("jvp()/while/body/dot_general")}
  c = f32[4096,256] convert(a)
  y = f32[4096,256] add(x, c), {named("jvp()/while/body/add")}
  j = s32[] add(i, one)
  ROOT r = {STATE_TYPE} tuple(j, y, s, w)
}}
condition {{
  p = {STATE_TYPE} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  most = s32[] constant(4)
  ROOT r = pred[] compare(i, most), direction=LT
}}
"""
LAYERS = f"""
  b = bf16[4096,256] parameter(0)
  w = f32[4,256,256] parameter(1)
  x = f32[4096,256] convert(b), {named("jvp()/convert_element_type")}
  zero = s32[] constant(0)
  low = f32[] constant(0)
  k = f32[4,4096,256] broadcast(low), dimensions={{}}
  t = {STATE_TYPE} tuple(zero, x, k, w)
  u = {STATE_TYPE} while(t), condition=condition, body=body, {named("jvp()/while")}
  s = f32[4,4096,256] get-tuple-element(u), index=2
  ROOT g = f32[4,4096,256] multiply(s, s), {named("transpose(jvp())/mul")}
"""


def test_sum_over_layers() -> None:
    [finding] = lint(LAYERS, before=LAYER)
    assert finding.names[:2] == ("y", "s")
    assert finding.bytes == 4 * 4096 * 256 * 4 // 2
    assert finding.is_lower_bound


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Attention in blocks: what is added is a product of activations.
        ("dot(h, n)", "dot(h, o)"),
        # A state that is scaled.
        ("add(x, c)", "multiply(x, c)"),
    ],
)
def test_states_that_are_f32_on_purpose(old: str, new: str) -> None:
    assert old in LAYER
    assert lint(LAYERS, before=LAYER.replace(old, new)) == []


SENT = f"""
  x = bf16[256,256] parameter(0), sharding={DATA}
  w = f32[256,256] parameter(1), sharding={{replicated}}
  v = f32[128,256] parameter(2), sharding={MODEL}
  id = u32[] partition-id()
  n = bf16[256,256] convert(w)
  a = bf16[256,256] dot(x, n), {TIMES}, {named("jvp(a)/dot_general")}
  b = bf16[256,256] dot(a, n), {TIMES}, {named("jvp(b)/dot_general")}
  f = f32[256,256] convert(b)
  h = f32[256,128] slice(f), slice={{[0:256], [0:128]}}
  y = f32[256,256] dot(h, v), {TIMES}, {named("jvp(c)/dot_general")}
  r = f32[256,256] all-reduce(y), {ALONG_MODEL}, to_apply=add, {named("jvp(c)/dot_general")}
  p = f32[256,256] negate(w)
  q = f32[128,256] negate(v)
  ROOT t = (f32[256,256], f32[128,256], f32[256,256]) tuple(p, q, r)
"""


def test_master_weights_are_no_reason_to_send_f32() -> None:
    [finding] = lint(SENT, PARTITIONED, "float32-activations")
    assert finding.names == ("r",)
    assert finding.bytes == 256 * 256 * 4 // 2
    assert "although most matmuls return 16-bit values" in finding.message
    assert lint(SENT.replace("bf16", "f32"), PARTITIONED, "float32-activations") == []


def test_figures_of_all_devices_say_so() -> None:
    # Before partitioning, shapes are those of all devices together.
    header = ", num_partitions=4"
    sharded = KEPT.replace("parameter(0)", f"parameter(0), sharding={DATA}")
    [finding] = lint(sharded, header)
    assert "of all residuals on all 4 devices together;" in finding.message
    assert finding.at_stake.endswith("memory of all devices")
    [alone] = lint(KEPT)
    assert alone.at_stake.endswith("memory")


# Line 6 is a cast, which lines 9 and 13 call; line 9 is a norm, which lines 12 and 20 call.
FRAMES = """
FileNames
1 "/home/me/model.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=20 end_line=20 column=1 end_column=2}
2 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=1 end_column=2}
3 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=1 end_column=2}
4 {file_name_id=1 function_name_id=1 line=6 end_line=6 column=1 end_column=2}
5 {file_name_id=1 function_name_id=1 line=13 end_line=13 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}
3 {file_location_id=3 parent_frame_id=2}
4 {file_location_id=3 parent_frame_id=3}
5 {file_location_id=4 parent_frame_id=4}
6 {file_location_id=4 parent_frame_id=5}
7 {file_location_id=5 parent_frame_id=1}
8 {file_location_id=4 parent_frame_id=8}
"""


@pytest.mark.parametrize(
    ("frame", "called"),
    [
        (5, "/home/me/model.py:9 from /home/me/model.py:20"),
        (6, "/home/me/model.py:9 from /home/me/model.py:12"),
        # One line calls no shared one.
        (8, "/home/me/model.py:13"),
    ],
)
def test_a_helper_in_a_helper_is_named_with_its_caller(frame: int, called: str) -> None:
    own = named("jvp(c)/dot_general")
    body = KEPT.replace(own, own.replace("}", f" stack_frame_id={frame}}}"), 1)
    [finding] = lint(body, header="\n" + FRAMES)
    assert finding.source_line == 6
    assert finding.called_at == (called,)
