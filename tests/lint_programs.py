"""Small programs, each of which triggers, or nearly triggers, one rule of `Module.lint`."""

from __future__ import annotations

from collections.abc import Iterable

import hlofast
from conftest import FIXTURES
from hlofast import Findings

ADD = "add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }"
MAXIMUM = ADD.replace("add(a, b)", "maximum(a, b)")
ALL = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true"
PAIRS = "channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true"


def lint(
    body: str, *, before: str = ADD, header: str = "num_partitions=4", **options: float
) -> Findings:
    """The findings in a program whose entry has the instructions `body`."""
    text = f"HloModule m, {header}\n\n{before}\n\nENTRY e {{\n{body}\n}}\n"
    return hlofast.loads(text, strict=True).lint(**options)


def codes(body: str, *, before: str = ADD, header: str = "num_partitions=4") -> list[str]:
    """The codes of the findings."""
    return [finding.code for finding in lint(body, before=before, header=header)]


PART = """
  id = u32[] partition-id()
  table = s32[4] constant({0, 16, 32, 48})
  row = s32[1] dynamic-slice(table, id), dynamic_slice_sizes={1}
  at = s32[] reshape(row)
  zero = s32[] constant(0)
"""
"""Where the part of 16 rows of each of 4 devices starts."""

SLICED_REDUCTION = f"""
  x = f32[64,32] parameter(0)
  {PART}
  r = f32[64,32] all-reduce(x), {ALL}, to_apply=add
  ROOT part = f32[16,32] dynamic-slice(r, at, zero), dynamic_slice_sizes={{16,32}}
"""

ADDED_REDUCTIONS = f"""
  x = f32[64,32] parameter(0)
  y = f32[64,32] parameter(1)
  a = f32[64,32] all-reduce(x), {ALL}, to_apply=add
  b = f32[64,32] all-reduce(y), {ALL}, to_apply=add
  ROOT s = f32[64,32] add(a, b)
"""

CONCATENATED_REDUCTIONS = f"""
  x = f32[2048] parameter(0)
  y = f32[2048] parameter(1)
  z = f32[100] parameter(2)
  all = f32[4196] concatenate(x, y, z), dimensions={{0}}
  r = f32[4196] all-reduce(all), {ALL}, to_apply=add
  a = f32[2048] slice(r), slice={{[0:2048]}}
  b = f32[2048] slice(r), slice={{[2048:4096]}}
  c = f32[100] slice(r), slice={{[4096:4196]}}
  s = f32[2048] fusion(a, b), kind=kLoop, calls=sum
  ROOT t = (f32[2048], f32[100]) tuple(s, c)
"""
SUM = """
sum {
  p = f32[2048] parameter(0)
  q = f32[2048] parameter(1)
  half = f32[] constant(0.5)
  halves = f32[2048] broadcast(half), dimensions={}
  h = f32[2048] multiply(p, halves)
  ROOT s = f32[2048] add(h, q)
}
"""

UNDONATED = """
  w = f32[512,512] parameter(0)
  m = f32[512,512] parameter(1)
  x = f32[64,512] parameter(2)
  count = s32[] parameter(3)
  y = f32[64,512] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0},
    metadata={op_name="jit(step)/jvp(M)/dot_general"}
  g = f32[512,512] dot(x, y), lhs_contracting_dims={0}, rhs_contracting_dims={0},
    metadata={op_name="jit(step)/transpose(jvp(M))/dot_general"}
  nm = f32[512,512] add(m, g), metadata={op_name="jit(step)/add"}
  nw = f32[512,512] subtract(w, nm), metadata={op_name="jit(step)/sub"}
  one = s32[] constant(1)
  nc = s32[] add(count, one)
  ROOT r = (f32[512,512], f32[512,512], s32[]) tuple(nw, nm, nc)
"""
CACHE = """
  cache = f32[1024,1024] parameter(0)
  row = f32[1,1024] parameter(1)
  at = s32[] parameter(2)
  zero = s32[] constant(0)
  new = f32[1024,1024] dynamic-update-slice(cache, row, at, zero)
  sums = f32[1,1024] add(row, row)
  ROOT r = (f32[1024,1024], f32[1,1024]) tuple(new, sums)
"""
RESIDUAL_STREAM = """
  x = f32[1024,1024] parameter(0)
  w = f32[1024,1024] parameter(1)
  y = f32[1024,1024] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT s = f32[1024,1024] add(x, y)
"""

SAME_GATHER = f"""
  x = f32[16,32] parameter(0)
  c = bf16[16,32] convert(x)
  a = bf16[64,32] all-gather(c), {ALL}, dimensions={{0}}
  b = bf16[64,32] all-gather(c), {ALL.replace("id=1", "id=2")}, dimensions={{0}}
  ROOT t = (bf16[64,32], bf16[64,32]) tuple(a, b)
"""

GATHER_OF_PART = f"""
  x = f32[16,32] parameter(0)
  {PART}
  whole = f32[64,32] all-gather(x), {ALL}, dimensions={{0}}
  part = f32[16,32] dynamic-slice(whole, at, zero), dynamic_slice_sizes={{16,32}}
  again = f32[64,32] all-gather(part), {ALL.replace("id=1", "id=2")}, dimensions={{0}}
  ROOT t = (f32[64,32], f32[64,32]) tuple(whole, again)
"""

RECOMPUTED = f"""
  x = f32[16,32] parameter(0)
  c = f32[16,32] cosine(x)
  a = f32[64,32] all-gather(c), {ALL}, dimensions={{0}},
    metadata={{op_name="jit(f)/jvp(M)/checkpoint/all_gather"}}
  s = f32[16,32] sine(x)
  b = f32[64,32] all-gather(s), {ALL.replace("id=1", "id=2")}, dimensions={{0}},
    metadata={{op_name="jit(f)/transpose(jvp(M))/checkpoint/rematted_computation/all_gather"}}
  ROOT t = (f32[64,32], f32[64,32]) tuple(a, b)
"""

WIDE_PRODUCT = """
  w = bf16[256,128] parameter(0)
  x = f32[64,256] parameter(1)
  dy = f32[64,128] parameter(2)
  c = f32[256,128] convert(w)
  y = f32[64,128] dot(x, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  dw = f32[128,256] dot(dy, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  t = f32[256,128] transpose(dw), dimensions={1,0}
  n = bf16[256,128] convert(t)
  ROOT r = (f32[64,128], bf16[256,128]) tuple(y, n)
"""

ONE_HOT = """
  ids = s32[64] parameter(0)
  table = f32[1024,128] parameter(1)
  i = s32[1024] iota(), iota_dimension=0
  columns = s32[64,1024] broadcast(i), dimensions={1}
  rows = s32[64,1024] broadcast(ids), dimensions={0}
  hot = pred[64,1024] compare(rows, columns), direction=EQ
  h = f32[64,1024] convert(hot)
  ROOT y = f32[64,128] dot(h, table), lhs_contracting_dims={1}, rhs_contracting_dims={0}
"""

REPLICATED = """
  a = f32[1024,256] parameter(0), sharding={devices=[4,1]<=[4]}
  b = f32[4096,256] parameter(1), sharding={replicated}
  c = f32[2048,256] parameter(2), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}
  d = s32[9999] parameter(3), sharding={replicated}
  ROOT s = (f32[1024,256], f32[4096,256], f32[2048,256], s32[9999]) tuple(a, b, c, d)
"""

ASYNCHRONOUS = f"""
  x = f32[1024,256] parameter(0)
  w = f32[256,256] parameter(1)
  start = (f32[1024,256], f32[4096,256]) all-gather-start(x), {ALL}, dimensions={{0}}
  done = f32[4096,256] all-gather-done(start)
  y = f32[1024,256] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT t = (f32[4096,256], f32[1024,256]) tuple(done, y)
"""

GATHERED_AND_CUT = f"""
  x = f32[64,16] parameter(0)
  {PART}
  whole = f32[64,64] all-gather(x), {ALL}, dimensions={{1}}
  ROOT part = f32[16,64] dynamic-slice(whole, at, zero), dynamic_slice_sizes={{16,64}}
"""

WIDENED_REDUCTION = f"""
  x = bf16[2048] parameter(0)
  c = f32[2048] convert(x)
  flat = f32[64,32] reshape(c)
  ROOT r = f32[64,32] all-reduce(flat), {ALL}, to_apply=add
"""

LOOP = f"""
body {{
  s = (s32[], f32[64,32], f32[8,64,32], f32[64,32]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  w = f32[64,32] get-tuple-element(s), index=1
  stack = f32[8,64,32] get-tuple-element(s), index=2
  sum = f32[64,32] get-tuple-element(s), index=3
  half = f32[64,32] negate(w)
  r = f32[64,32] all-reduce(half), {ALL}, to_apply=add
  more = f32[64,32] add(sum, r)
  ROOT t = (s32[], f32[64,32], f32[8,64,32], f32[64,32]) tuple(next, w, stack, more)
}}
condition {{
  s = (s32[], f32[64,32], f32[8,64,32], f32[64,32]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(8)
  ROOT less = pred[] compare(i, n), direction=LT
}}
"""
IN_LOOP = """
  w = f32[64,32] parameter(0)
  stack = f32[8,64,32] parameter(1)
  sum = f32[64,32] parameter(2)
  zero = s32[] constant(0)
  s = (s32[], f32[64,32], f32[8,64,32], f32[64,32]) tuple(zero, w, stack, sum)
  l = (s32[], f32[64,32], f32[8,64,32], f32[64,32]) while(s), condition=condition, body=body
  ROOT r = f32[64,32] get-tuple-element(l), index=3
"""

_COUNTS = """
NAME {
  s = (s32[], f32[16,32]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(TRIPS)
  ROOT less = pred[] compare(i, n), direction=LT
}
"""
_NEXT = """
  s = (s32[], f32[16,32]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  x = f32[16,32] get-tuple-element(s), index=1
"""
ACCUMULATION = f"""
{_COUNTS.replace("NAME", "layers").replace("TRIPS", "8")}
{_COUNTS.replace("NAME", "steps").replace("TRIPS", "2")}
forward {{{_NEXT}
  c = f32[16,32] cosine(x), metadata={{op_name="jit(f)/while/body/jvp(M)/while/body/cos"}}
  ROOT t = (s32[], f32[16,32]) tuple(next, c)
}}
backward {{{_NEXT}
  c = f32[16,32] sine(x), metadata={{op_name="jit(f)/transpose(jvp(M))/while/body/mul"}}
  a = f32[64,32] all-gather(c), {ALL}, dimensions={{0}},
    metadata={{op_name="jit(f)/transpose(jvp(M))/while/body/rematted_computation/all_gather"}}
  part = f32[16,32] slice(a), slice={{[0:16], [0:32]}}
  y = f32[16,32] multiply(x, part), metadata={{op_name="jit(f)/transpose(jvp(M))/while/body/mul"}}
  ROOT t = (s32[], f32[16,32]) tuple(next, y)
}}
step {{{_NEXT}
  zero = s32[] constant(0)
  f0 = (s32[], f32[16,32]) tuple(zero, x)
  f = (s32[], f32[16,32]) while(f0), condition=layers, body=forward,
    metadata={{op_name="jit(f)/while/body/jvp(M)/while"}}
  y = f32[16,32] get-tuple-element(f), index=1
  b0 = (s32[], f32[16,32]) tuple(zero, y)
  b = (s32[], f32[16,32]) while(b0), condition=layers, body=backward,
    metadata={{op_name="jit(f)/transpose(jvp(M))/while"}}
  g = f32[16,32] get-tuple-element(b), index=1
  ROOT t = (s32[], f32[16,32]) tuple(next, g)
}}
"""
ACCUMULATED = """
  x = f32[16,32] parameter(0)
  zero = s32[] constant(0)
  s = (s32[], f32[16,32]) tuple(zero, x)
  l = (s32[], f32[16,32]) while(s), condition=steps, body=step
  ROOT r = f32[16,32] get-tuple-element(l), index=1
"""
"""Two accumulation steps, each forward through eight layers and back with a gather recomputed."""


def only(findings: Iterable[hlofast.Finding]) -> hlofast.Finding:
    (finding,) = findings
    return finding


def fixture(name: str) -> hlofast.Module:
    module = hlofast.find_modules((FIXTURES / name).read_bytes())[0].module
    assert module is not None
    return module


COPIED_PARAMETER = """HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

ENTRY e {
  w = bf16[1024,16384]{1,0} parameter(0), metadata={op_name="params['table']"}
  i = s32[8192]{0} parameter(1)
  c = bf16[1024,16384]{0,1} copy(w)
  b = bf16[16384,1024]{1,0} bitcast(c)
  g = bf16[8192,1024]{1,0} gather(b, i), offset_dims={1}, collapsed_slice_dims={0},
    start_index_map={0}, index_vector_dim=1, slice_sizes={1,1024}
  n = bf16[1024,16384]{0,1} negate(c)
  r = bf16[1024,16384]{1,0} copy(n)
  ROOT t = (bf16[1024,16384]{1,0}, bf16[8192,1024]{1,0}) tuple(r, g)
}
"""
"""A table that is stored by columns and read in rows; the new one is copied back."""
