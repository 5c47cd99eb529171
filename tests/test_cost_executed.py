"""Executed costs beyond the reference's traps: code that runs once, partly or never."""

import hlofast


def test_asynchronous_collectives_of_tpus_count_once() -> None:
    # Both fusions hold the reduction: one starts it, the other waits for its end.
    text = """HloModule m, replica_count=8

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

start {
  p = f32[1024] parameter(0)
  r = f32[1024] all-reduce(p), replica_groups={}, to_apply=add
  ROOT s = (f32[1024], f32[1024], u32[]{:S(2)}) custom-call(r), custom_call_target="AsyncCollectiveStart"
}

done {
  p = f32[1024] parameter(0)
  q = f32[1024] parameter(1)
  r = f32[1024] all-reduce(p), replica_groups={}, to_apply=add
  ROOT d = f32[1024] custom-call(p, q, r), custom_call_target="AsyncCollectiveDone"
}

ENTRY e {
  p = f32[1024] parameter(0)
  s = (f32[1024], f32[1024], u32[]{:S(2)}) fusion(p), kind=kCustom, calls=start
  a = f32[1024] get-tuple-element(s), index=0
  b = f32[1024] get-tuple-element(s), index=1
  ROOT d = f32[1024] fusion(a, b), kind=kCustom, calls=done
}
"""
    cost = hlofast.loads(text).cost()
    assert cost.flops == 7 * 1024 // 8
    assert (cost.bytes_read, cost.bytes_written) == (4096, 4096)


def test_uneven_groups_count_by_the_largest() -> None:
    text = """HloModule m, replica_count=4

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY e {
  p = f32[900] parameter(0)
  ROOT r = f32[900] all-reduce(p), replica_groups={{0,1,2},{3}}, to_apply=add
}
"""
    assert hlofast.loads(text).cost().flops == 600


def test_ragged_dimension_may_be_contracted() -> None:
    text = """HloModule m

ENTRY e {
  a = f32[64,128] parameter(0)
  b = f32[64,256] parameter(1)
  g = s32[8] parameter(2)
  ROOT r = f32[8,128,256] ragged-dot(a, b, g), lhs_contracting_dims={0}, rhs_contracting_dims={0}, lhs_ragged_dims={0}
}
"""
    module = hlofast.loads(text)
    assert module.cost().flops == 2 * 64 * 128 * 256
    assert module.matmuls()["flops"].tolist() == [2 * 64 * 128 * 256]


def test_unreadable_attributes_are_unknown() -> None:
    text = """HloModule m

ENTRY e {
  a = f32[64,64] parameter(0)
  ROOT r = f32[64,64] dot(a, a), lhs_contracting_dims={junk}, rhs_contracting_dims={0}
}
"""
    cost = hlofast.loads(text).cost()
    assert cost.flops == 0
    assert cost.unknown.tolist() == [1]


def test_fused_gathers_read_rows() -> None:
    text = """HloModule m

f {
  t = f32[50000,1024] parameter(0)
  i = s32[16,1] parameter(1)
  g = f32[16,1024] gather(t, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,1024}
  ROOT n = f32[16,1024] negate(g)
}

ENTRY e {
  t = f32[50000,1024] parameter(0)
  i = s32[16,1] parameter(1)
  ROOT r = f32[16,1024] fusion(t, i), kind=kLoop, calls=f
}
"""
    cost = hlofast.loads(text).cost()
    assert (cost.bytes_read, cost.bytes_written) == (65536 + 64, 65536)


def test_nothing_is_reduced_from_nothing() -> None:
    text = """HloModule m

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY e {
  p = f32[4,0] parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[4] reduce(p, z), dimensions={1}, to_apply=add
}
"""
    assert hlofast.loads(text).cost().flops == 0
    # XLA's own figure.
    assert hlofast.loads(text).cost(xla=True).flops == -4
