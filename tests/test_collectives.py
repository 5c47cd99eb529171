"""`Module.collectives`: kinds, payloads, tensor kinds, mesh axes and call counts."""

import pickle
from typing import Any

import pytest

import hlofast
from hlofast import Mesh

MESH = Mesh({"data": 2, "model": 4})
ADD = """
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}
"""
MODEL = "replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true"
DATA = "replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true"


def module(entry: str, others: str = "", header: str = ", num_partitions=8") -> hlofast.Module:
    return hlofast.loads(f"HloModule m{header}\n{ADD}{others}\nENTRY e {{\n{entry}\n}}\n")


def only(text: str, others: str = "", **options: Any) -> dict[str, Any]:
    (row,) = module(text, others, **options).collectives(MESH)
    return row


def figures(row: dict[str, Any]) -> list[Any]:
    names = "kind axes group_size payload_in payload_out wire_bytes".split()
    return [row[name] for name in names]


def test_at_once() -> None:
    row = only(
        f"  p = f32[1024] parameter(0)\n"
        f"  ROOT a = f32[1024] all-reduce(p), channel_id=3, {MODEL}, to_apply=add,"
        f' metadata={{op_name="jit(f)/jvp(M)/psum" source_file="m.py" source_line=7}}'
    )
    assert figures(row) == ["all-reduce", "model", 4, 4096, 4096, 2 * 3 * 4096 // 4]
    assert (row["name"], row["channel_id"], row["done"]) == ("a", 3, None)
    assert (row["multiplicity"], row["trip_count"], row["is_lower_bound"]) == (1, 1, 0)
    assert (row["phase"], row["source_file"], row["source_line"]) == ("forward", "m.py", 7)
    assert (row["tensor_kind"], row["tensor"], row["tensors"]) == ("weight", "p", 1)
    assert row["total_payload"] == 4096
    assert row["groups"] == "[2,4]<=[8]"


SYNC = """\
  p = f32[1024] parameter(0)
  g = f32[4096] all-gather(p), channel_id=1, dimensions={0}, GROUPS
  s = f32[256] reduce-scatter(p), channel_id=2, dimensions={0}, to_apply=add, GROUPS
  t = f32[1024] all-to-all(p), channel_id=3, dimensions={0}, GROUPS
  b = f32[1024] collective-broadcast(p), channel_id=4, replica_groups={{0,1,2,3},{4,5,6,7}}
  c = f32[1024] collective-permute(p), channel_id=5, source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}
  ROOT r = (f32[4096], f32[256], f32[1024], f32[1024], f32[1024]) tuple(g, s, t, b, c)
"""


def test_kinds() -> None:
    collectives = module(
        SYNC.replace("GROUPS", MODEL).replace("dimensions={0}, replica", "dimensions={0}, replica")
    ).collectives(MESH)
    rows = {row["name"]: figures(row) for row in collectives}
    assert rows == {
        "g": ["all-gather", "model", 4, 4096, 16384, 12288],
        "s": ["reduce-scatter", "model", 4, 4096, 1024, 3072],
        "t": ["all-to-all", "model", 4, 4096, 4096, 3072],
        "b": ["collective-broadcast", "model", 4, 4096, 4096, 3072],
        "c": ["collective-permute", "model", None, 4096, 4096, 4096],
    }
    shifts = {row["name"]: row["shift"] for row in collectives}
    assert shifts["c"] == "model +1"
    assert collectives.mismatches.to_pylist() == []
    payloads = {row["name"]: row["payload"] for row in collectives}
    assert payloads["g"] == 16384


def test_permutes_in_place() -> None:
    """What follows the array is where it goes, which is not sent."""
    row = only(
        "  p = f32[1024] parameter(0)\n  b = f32[4096] parameter(1)\n  z = s32[] constant(0)\n"
        "  at = (s32[]) tuple(z)\n  ROOT c = f32[4096] collective-permute(p, b, at, at), "
        "channel_id=1, source_target_pairs={{0,1},{1,0}}, slice_sizes={{1024}}"
    )
    assert figures(row)[3:] == [4096, 16384, 4096]


NATIVE = f"""\
  p = f32[64,64] parameter(0)
  q = f32[64,64] parameter(1)
  start = f32[64,64] all-reduce-start(p), channel_id=1, {DATA}, to_apply=add
  d = f32[64,64] dot(q, q), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  done = f32[64,64] all-reduce-done(start)
  gs = (f32[64,64], f32[128,64]) all-gather-start(q), channel_id=2, dimensions={{0}}, {DATA}
  gd = f32[128,64] all-gather-done(gs)
  cs = (f32[64,64], f32[64,64], u32[], u32[]) collective-permute-start(q), channel_id=3, source_target_pairs={{{{0,4}},{{4,0}}}}
  cd = f32[64,64] collective-permute-done(cs)
  ROOT r = (f32[64,64], f32[64,64], f32[128,64], f32[64,64]) tuple(d, done, gd, cd)
"""


def test_native_start_and_done() -> None:
    collectives = module(NATIVE, header=", is_scheduled=true, num_partitions=8").collectives(MESH)
    rows = {row["name"]: row for row in collectives}
    assert {name: figures(row) for name, row in rows.items()} == {
        "start": ["all-reduce", "data", 2, 16384, 16384, 16384],
        "gs": ["all-gather", "data", 2, 16384, 32768, 16384],
        "cs": ["collective-permute", "data", None, 16384, 16384, 16384],
    }
    assert collectives.module[rows["start"]["done"]].name == "done"
    assert rows["start"]["instructions_between"] == 1
    assert rows["start"]["flops_between"] == 2 * 64**3
    assert rows["gs"]["instructions_between"] == 0
    assert len(collectives.members) == 3


WRAPPED = f"""
wrapped {{
  w = f32[1024] parameter(0)
  ROOT rs = f32[256] reduce-scatter(w), channel_id=1, dimensions={{0}}, to_apply=add, {MODEL}
}}
"""


def test_asynchronous_computation() -> None:
    row = only(
        "  p = f32[1024] parameter(0)\n"
        "  s = ((f32[1024]), f32[256], u32[]) async-start(p), calls=wrapped\n"
        "  u = ((f32[1024]), f32[256], u32[]) async-update(s)\n"
        "  ROOT d = f32[256] async-done(u)",
        WRAPPED,
    )
    assert figures(row) == ["reduce-scatter", "model", 4, 4096, 1024, 3072]
    assert (row["name"], row["computation"]) == ("rs", "e")
    assert row["instructions_between"] == 1


def test_sugar() -> None:
    collectives = module(
        "  p = f32[1024] parameter(0)\n"
        f"  s = ((f32[1024]), f32[256]) reduce-scatter-start(p), channel_id=1, dimensions={{0}}, to_apply=add, {MODEL}\n"
        "  ROOT d = f32[256] reduce-scatter-done(s)"
    ).collectives(MESH)
    (row,) = collectives
    assert figures(row) == ["reduce-scatter", "model", 4, 4096, 1024, 3072]
    assert collectives.module[row["scheduled_as"]].name == "s"
    assert collectives.module[row["done"]].name == "d"
    assert len(collectives.members) == 1


def test_in_a_fusion() -> None:
    row = only(
        "  p = f32[1024] parameter(0)\n  ROOT f = f32[4096] fusion(p), kind=kCustom, calls=fused",
        "fused {\n  w = f32[1024] parameter(0)\n"
        f"  ROOT g = f32[4096] all-gather(w), channel_id=1, dimensions={{0}}, {MODEL}\n}}\n",
    )
    assert figures(row) == ["all-gather", "model", 4, 4096, 16384, 12288]
    assert (row["name"], row["computation"], row["tensor"]) == ("g", "e", "p")


def test_several_operands() -> None:
    collectives = module(
        "  p = f32[1024] parameter(0)\n  q = bf16[512] parameter(1)\n  i = s32[8] parameter(2)\n"
        f"  a = (f32[1024], bf16[512], s32[8]) all-reduce(p, q, i), channel_id=1, {MODEL}, to_apply=add\n"
        f"  g = (f32[4096], bf16[2048]) all-gather(p, q), channel_id=2, dimensions={{0}}, {MODEL}\n"
        "  t = (f32[1024], f32[1024], f32[1024], f32[1024]) all-to-all(p, p, p, p), channel_id=3, replica_groups={{0,1,2,3},{4,5,6,7}}\n"
        "  ROOT r = ((f32[1024], bf16[512], s32[8]), (f32[4096], bf16[2048])) tuple(a, g)"
    ).collectives(MESH)
    rows = {row["name"]: row for row in collectives}
    assert figures(rows["a"]) == ["all-reduce", "model", 4, 5152, 5152, 2 * 3 * 5152 // 4]
    assert figures(rows["g"]) == ["all-gather", "model", 4, 5120, 20480, 15360]
    assert figures(rows["t"]) == ["all-to-all", "model", 4, 16384, 16384, 12288]
    pieces = [
        piece for piece in collectives.pieces if piece["instruction"] == rows["a"]["instruction"]
    ]
    assert [(piece["tensor"], piece["payload_in"], piece["tensor_kind"]) for piece in pieces] == [
        ("p", 4096, "weight"),
        ("q", 1024, "weight"),
        ("i", 32, "other"),
    ]
    assert rows["a"]["tensors"] == 3


def test_concatenated_arrays_are_told_apart() -> None:
    collectives = module(
        "  p = f32[1024] parameter(0)\n  q = f32[512] parameter(1)\n  n = f32[512] negate(q)\n"
        "  c = f32[1536] concatenate(p, n), dimensions={0}\n"
        f"  a = f32[1536] all-reduce(c), channel_id=1, {DATA}, to_apply=add\n"
        "  s = f32[1024] slice(a), slice={[0:1024]}\n"
        "  ROOT r = (f32[1024]) tuple(s)"
    ).collectives(MESH)
    pieces = [(row["tensor"], row["payload_in"], row["tensor_kind"]) for row in collectives.pieces]
    assert pieces == [("p", 4096, "weight"), ("n", 2048, "activation")]
    assert collectives.to_pylist()[0]["tensors"] == 2


GATHER_AS_SUM = f"""\
  p = f32[256] parameter(0)
  i = s32[] parameter(1)
  z = f32[] constant(0)
  b = f32[1024] broadcast(z), dimensions={{}}
  u = f32[1024] dynamic-update-slice(b, p, i)
  ROOT a = f32[1024] all-reduce(u), channel_id=1, {MODEL}, to_apply=add
"""


def test_gather_written_as_all_reduce() -> None:
    row = only(GATHER_AS_SUM)
    assert figures(row) == ["all-gather", "model", 4, 1024, 4096, 3072]
    assert (row["written_as"], row["tensor_kind"], row["tensor"]) == ("all-reduce", "weight", "p")


def test_sum_into_what_is_not_zero_is_no_gather() -> None:
    assert only(GATHER_AS_SUM.replace("constant(0)", "constant(1)"))["kind"] == "all-reduce"


TRANSFERS = """\
  p = f32[256] parameter(0)
  t = token[] after-all()
  s = (f32[256], u32[], token[]) send(p, t), channel_id=7ATTRIBUTES
  sd = token[] send-done(s), channel_id=7ATTRIBUTES
  r = (f32[256], u32[], token[]) recv(t), channel_id=7ATTRIBUTES
  rd = (f32[256], token[]) recv-done(r), channel_id=7ATTRIBUTES
  ROOT o = f32[256] get-tuple-element(rd), index=0
"""


def test_send_and_receive_are_one() -> None:
    pairs = ', frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1},{1,2},{2,3},{4,5},{5,6},{6,7}}"}'
    collectives = module(TRANSFERS.replace("ATTRIBUTES", pairs)).collectives(MESH)
    (row,) = collectives
    assert figures(row) == ["send-recv", "model", None, 1024, 1024, 1024]
    assert row["shift"] == "model +1 without wraparound"
    assert collectives.module[row["done"]].name == "rd"
    assert sorted(collectives.module[member].name for member in collectives.members["member"]) == [
        "r",
        "s",
    ]


def test_host_transfers_are_no_collectives() -> None:
    collectives = module(TRANSFERS.replace("ATTRIBUTES", ", is_host_transfer=true")).collectives(
        MESH
    )
    assert len(collectives) == len(collectives.members) == 0
    assert [collectives.module[row].name for row in collectives.host_transfers] == ["s", "r"]


MEGASCALE = (
    ', is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.1",'
    '_xla_megascale_target="{1,2,3,4}x{0:7}",_xla_megascale_transfer_type="ALL_REDUCE"}'
)


def test_transfer_between_slices_is_what_it_stands_for() -> None:
    text = TRANSFERS.replace("ATTRIBUTES", MEGASCALE)
    mesh = Mesh({"slice": 4, "model": 8}, slices=4)
    (row,) = module(text).collectives(mesh)
    assert figures(row) == ["all-reduce", "slice", 4, 1024, 1024, 1536]
    assert row["network"] == "between slices"
    (row,) = module(text).collectives(MESH)
    assert figures(row) == ["all-reduce", None, None, 1024, 1024, None]


LOOP = """
body {{
  s = (s32[], f32[1024], f32[1024]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  w = f32[1024] get-tuple-element(s), index=1
  o = s32[] constant(1)
  n = s32[] add(i, o)
  g = f32[1024] all-reduce(w), channel_id=1, {groups}, to_apply=add, metadata={{op_name="jit(f)/while/body/psum"}}
  ROOT t = (s32[], f32[1024], f32[1024]) tuple(n, w, g)
}}

condition {{
  s = (s32[], f32[1024], f32[1024]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  l = s32[] {limit}
  ROOT c = pred[] compare(i, l), direction=LT
}}
"""
LOOP_ENTRY = f"""\
  p = f32[1024] parameter(0)
  first = f32[1024] all-reduce(p), channel_id=2, {MODEL}, to_apply=add, metadata={{op_name="jit(f)/while/body/psum"}}
  z = s32[] constant(0)
  s = (s32[], f32[1024], f32[1024]) tuple(z, p, first)
  l = (s32[], f32[1024], f32[1024]) while(s), condition=condition, body=body
  ROOT r = f32[1024] get-tuple-element(l), index=2
"""


def test_loops_and_iterations_taken_out_of_them() -> None:
    collectives = module(LOOP_ENTRY, LOOP.format(groups=MODEL, limit="constant(79)")).collectives(
        MESH
    )
    rows = {row["name"]: row for row in collectives}
    assert (rows["g"]["multiplicity"], rows["g"]["trip_count"]) == (79, 79)
    assert rows["g"]["total_wire_bytes"] == 79 * rows["g"]["wire_bytes"] == 79 * 6144
    assert rows["first"]["multiplicity"] == 1
    assert collectives.module[rows["first"]["peeled_from"]].name == "g"
    assert rows["g"]["peeled_from"] is None
    (group,) = collectives.by("axes")
    assert (group["collectives"], group["multiplicity"]) == (2, 80)
    assert group["total_payload"] == 80 * 4096


def test_iterations_of_like_collectives_are_told_apart() -> None:
    """Two in the loop, of two weights under one name: each has one iteration outside."""
    name = 'metadata={op_name="jit(f)/while/body/gather"}'
    gather = f"all-gather(%s), dimensions={{0}}, channel_id=%d, {MODEL}, {name}"
    body = f"""
body {{
  s = (s32[], f32[8], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[8] get-tuple-element(s), index=1
  w = f32[8] get-tuple-element(s), index=2
  o = s32[] constant(1)
  n = s32[] add(i, o)
  gv = f32[32] {gather % ("v", 1)}
  gw = f32[32] {gather % ("w", 2)}
  ROOT t = (s32[], f32[8], f32[8]) tuple(n, v, w)
}}
"""
    condition = LOOP.format(groups=MODEL, limit="constant(3)").split("condition {")[1]
    entry = f"""\
  a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  ob = f32[32] {gather % ("b", 3)}
  oa = f32[32] {gather % ("a", 4)}
  z = s32[] constant(0)
  s = (s32[], f32[8], f32[8]) tuple(z, a, b)
  ROOT l = (s32[], f32[8], f32[8]) while(s), condition=condition, body=body
"""
    condition = condition.replace("f32[1024]", "f32[8]")
    collectives = module(entry, body + "condition {" + condition).collectives(MESH)
    peeled = {row["name"]: row["peeled_from"] for row in collectives}
    assert collectives.module[peeled["oa"]].name == "gv"
    assert collectives.module[peeled["ob"]].name == "gw"


def test_unknown_trip_count_counts_once_and_is_said() -> None:
    limit = 'custom-call(), custom_call_target="limit"'
    collectives = module(LOOP_ENTRY, LOOP.format(groups=MODEL, limit=limit)).collectives(MESH)
    rows = {row["name"]: row for row in collectives}
    assert (rows["g"]["multiplicity"], rows["g"]["trip_count"]) == (1, None)
    assert (rows["g"]["is_lower_bound"], rows["first"]["is_lower_bound"]) == (1, 0)


EVERYONE = """\
  p = f32[1024] parameter(0)
  ROOT a = f32[1024] all-reduce(p), replica_groups={}, to_apply=add
"""


def test_everyone_of_a_number_that_only_the_mesh_knows() -> None:
    without = module(EVERYONE, header="").collectives()
    assert without.mesh is None
    assert without.mesh_source is None
    (row,) = without
    assert figures(row) == ["all-reduce", None, None, 4096, 4096, None]
    (group,) = without.by("kind")
    assert (group["total_payload"], group["total_wire_bytes"]) == (4096, None)
    (row,) = module(EVERYONE, header="").collectives(MESH)
    assert figures(row) == ["all-reduce", "data×model", 8, 4096, 4096, 7168]


def test_groups_that_follow_no_axes() -> None:
    groups = "replica_groups={{0,1},{2,3,4,5,6,7}}, use_global_device_ids=true"
    collectives = module(
        "  p = f32[1024] parameter(0)\n"
        f"  ROOT a = f32[1024] all-reduce(p), channel_id=1, {groups}, to_apply=add"
    ).collectives(MESH)
    (row,) = collectives
    assert (row["axes"], row["groups"]) == ("no axis subset", "{{0,1},{2,3,4,5,6,7}}")
    (mismatch,) = collectives.mismatches
    assert (mismatch["name"], mismatch["reason"]) == ("a", "the groups differ in size")
    (cost,) = collectives.alpa_cost()
    assert (cost["collectives"], cost["unpriced"], cost["cost"]) == (1, 1, 0)


def test_mesh_of_another_number_of_devices() -> None:
    with pytest.raises(hlofast.ContextError, match="mesh x=16 has 16 devices, the module is for 8"):
        module(SYNC.replace("GROUPS", MODEL)).collectives(Mesh({"x": 16}))


def test_network_levels() -> None:
    text = (
        SYNC.replace("GROUPS", MODEL)
        + f"  x = f32[1024] all-reduce(p), channel_id=9, {DATA}, to_apply=add\n"
    )
    for blocks, model, data in (
        ({"hosts": 2}, "within a host", "between hosts"),
        ({"slices": 2}, "within a slice", "between slices"),
        ({"slices": 2, "hosts": 4}, "between hosts", "between slices"),
        ({"slices": 1, "hosts": 2}, "within a host", "between hosts"),
    ):
        collectives = module(text).collectives(Mesh({"data": 2, "model": 4}, **blocks))
        rows = {row["name"]: row["network"] for row in collectives}
        assert rows == {"g": model, "s": model, "t": model, "b": model, "c": model, "x": data}
        assert collectives.has_network
    assert not module(text).collectives(MESH).has_network


def test_mesh_of_the_text() -> None:
    collectives = module(
        "  p = f32[32,32] parameter(0), sharding={devices=[2,4]<=[8]}\n"
        f"  ROOT a = f32[32,32] all-reduce(p), channel_id=1, {MODEL}, to_apply=add"
    ).collectives()
    assert collectives.mesh_source == "entry_shardings"
    assert collectives.mesh is not None
    assert collectives.mesh.invented_names
    given = module(EVERYONE).collectives(MESH)
    assert given.mesh == MESH
    assert given.mesh_source == "given"


def test_element_type_of_most_bytes() -> None:
    """Gradients that are reduced in f32 where bf16 would do show in sums by `dtype`."""
    collectives = module(
        "  p = f32[1024] parameter(0)\n"
        "  q = bf16[1024] parameter(1)\n"
        "  i = s32[] parameter(2)\n"
        f"  a = (f32[1024], s32[]) all-reduce(p, i), channel_id=1, {MODEL}, to_apply=add\n"
        f"  b = bf16[4096] all-gather(q), channel_id=2, {MODEL}, dimensions={{0}}\n"
        "  ROOT t = ((f32[1024], s32[]), bf16[4096]) tuple(a, b)"
    ).collectives(MESH)
    assert {row["name"]: row["dtype"] for row in collectives} == {"a": "f32", "b": "bf16"}
    # What arrays are put together and converted before does not count.
    joined = only(
        "  p = bf16[1024] parameter(0)\n"
        "  q = bf16[512] parameter(1)\n"
        "  both = bf16[1536] concatenate(p, q), dimensions={0}\n"
        "  wide = f32[1536] convert(both)\n"
        f"  ROOT a = f32[1536] all-reduce(wide), channel_id=1, {MODEL}, to_apply=add"
    )
    assert joined["dtype"] == "f32"
    payload = {row["dtype"]: row["total_payload"] for row in collectives.by("dtype")}
    assert payload == {"f32": 4096 + 4, "bf16": 8192}


def test_totals_by_any_column() -> None:
    collectives = module(SYNC.replace("GROUPS", MODEL)).collectives(MESH)
    for name in (
        "axes",
        "kind",
        "phase",
        "source",
        "tensor_kind",
        "scope",
        "tensor",
        "computation",
    ):
        grouped = collectives.by(name)
        assert grouped.columns[:2] == (name, "collectives")
        assert sum(grouped["collectives"]) == 5
        assert sum(grouped["total_payload"]) == sum(collectives["total_payload"])
        assert sum(grouped["total_wire_bytes"]) == sum(collectives["total_wire_bytes"])
    columns = ("kind", "collectives", "payload_in", "unknown")
    assert collectives.by("kind", totals=["payload_in"]).columns == columns
    with pytest.raises(KeyError):
        collectives.by("colour")
    with pytest.raises(TypeError):
        collectives.by("kind", totals=["name"])


def test_rules_name_phases() -> None:
    text = f"""\
  p = f32[1024] parameter(0)
  ROOT a = f32[1024] all-reduce(p), channel_id=1, {MODEL}, to_apply=add, metadata={{op_name="mine/psum"}}"""
    (row,) = module(text).collectives(rules=[("mine/.*", "optimizer")])
    assert row["phase"] == "optimizer"


def test_alpa_formulas() -> None:
    collectives = module(SYNC.replace("GROUPS", MODEL)).collectives(MESH)
    (row,) = collectives.alpa_cost(mesh_alpha=(1, 2), mesh_beta=(1, 0.5))
    gather = 2 + 0.5 * 3 / 4 * 16384 + 0.1
    scatter = 2 + 0.5 * 3 / 4 * 4096 + 0.001
    exchange = 2 + 0.5 * 3 / 16 * 4096 * 2 + 0.001
    assert row["cost"] == pytest.approx(gather + scatter + exchange)
    assert (row["axes"], row["collectives"], row["unpriced"]) == ("model", 5, 2)
    with pytest.raises(ValueError, match="the mesh has 2 axes"):
        collectives.alpa_cost(mesh_alpha=(1,))
    with pytest.raises(ValueError, match="no mesh"):
        module(EVERYONE, header="").collectives().alpa_cost()
    assert collectives.alpa_counters() == {
        "total": 5,
        "all-reduce": 0,
        "all-gather": 1,
        "reduce-scatter": 1,
        "all-to-all": 1,
    }
    assert collectives.grad_sync_channel_ids == "."


def test_alpa_scalars_and_gradient_channels() -> None:
    collectives = module(
        "  p = f32[1024] parameter(0)\n  q = f32[] parameter(1)\n"
        f"  a = f32[1024] all-reduce(p), channel_id=5, {MODEL}, to_apply=add\n"
        f"  b = f32[] all-reduce(q), channel_id=12, {MODEL}, to_apply=add\n"
        "  s = f32[512] slice(a), slice={[0:512]}\n"
        "  ROOT r = (f32[512], f32[]) tuple(s, b)"
    ).collectives(MESH)
    assert collectives.alpa_counters()["all-reduce"] == 2
    assert collectives.alpa_counters(ignore_scalars=True)["total"] == 1
    assert collectives.grad_sync_channel_ids == ".5.12."


def test_pickles() -> None:
    collectives = module(SYNC.replace("GROUPS", MODEL)).collectives(MESH)
    again = pickle.loads(pickle.dumps(collectives))
    assert isinstance(again, hlofast.Collectives)
    assert again == collectives
    assert again.mesh == MESH
    derived = module(EVERYONE).collectives()
    assert pickle.loads(pickle.dumps(derived)).mesh_source == derived.mesh_source


def test_module_without_collectives() -> None:
    collectives = module("  ROOT p = f32[] parameter(0)", header="").collectives()
    assert (
        len(collectives),
        len(collectives.pieces),
        len(collectives.members),
        collectives.host_transfers,
    ) == (
        0,
        0,
        0,
        (),
    )
    assert len(collectives.by("source")) == len(collectives.mismatches) == 0


def test_phase_of_nameless_collectives() -> None:
    collectives = module(
        '  w = f32[256] parameter(0), metadata={op_name="w"}\n'
        f"  gathered = f32[1024] all-gather(w), channel_id=1, {MODEL}, dimensions={{0}}\n"
        '  ROOT used = f32[1024] negate(gathered), metadata={op_name="jit(f)/jvp(g)/neg"}'
    ).collectives()
    (row,) = collectives
    assert (row["tensor_kind"], row["phase"], row["is_phase_inferred"]) == ("weight", "forward", 1)
