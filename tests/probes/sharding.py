"""Section 6.2: shardings of all generations."""

from __future__ import annotations

from collections.abc import Iterator

from .base import Probe, module, table

WORDS_OK = (
    "{replicated}", "{manual}", "{unknown}", "{unreduced}", "{maximal device=0}", "{maximal device=7}", "{device=1 maximal}", "{ replicated }", "{replicated metadata={op_name=\"a\"}}",
    '{replicated metadata={{op_name="a"}, {op_name="b"}}}', '{metadata={op_name="a"} replicated}', "{replicated shard_as 1}", "{replicated shard_like 1}", "{manual shard_as 0}", "{replicated\n}", "{replicated/*c*/}", "{maximal device=0 metadata={}}",
)
WORDS_WRONG = (
    "replicated", "{replicated, manual}", "{Replicated}", "{maximal}", "{maximal=0}", "{maximal device=x}", "{device=0}", "{replicated", "", "{foo}", '{"replicated"}', "{replicated device=0}", "{manual device=1}", "{maximal device=0 device=1}", "{shard_as 1}", "{replicated shard_as}", "{replicated shard_as=1}", "{replicated devices=[2]0,1}",
    "{maximal devices=[2]0,1}", "{replicated metadata=1}", "(replicated)", "[replicated]", "{replicated;}", "{unreduced=max}", "{unreduced=max{}}", "{maximal device={0}}", "{replicated metadata={foo=1}}", "{tuple}", "{last_tile_dim_replicate}", "{other}", "{devices}", "{shard_like 1}", "{metadata={}}",
)
WORDS_OPEN = (
    "{replicated manual}", "{manual replicated}", "{replicated replicated}", "{maximal replicated device=0}", "{maximal device=-1}", "{replicated shard_as 1 shard_like 2}", "{replicated shard_as -1}", "{unknown manual}", "{unreduced unknown}", "{manual unreduced}", "{replicated last_tile_dim_replicate}", "{replicated last_tile_dims={manual}}", "{replicated metadata={} metadata={}}", "{}", "{maximal maximal device=0}", "{maximal manual device=3}",
    "{,replicated}", "{replicated,}", "{shard_as 1 replicated}", "{unreduced device=1}",
)
TILED_OK = (
    "{devices=[2,1]0,1}", "{devices=[2,2]0,1,2,3}", "{devices=[2,1]<=[2]}", "{devices=[2,2]<=[4]}", "{devices=[2,2]<=[2,2]T(1,0)}", "{devices=[2,1,2]<=[4] last_tile_dim_replicate}", "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}", "{devices=[2,1,2]<=[4] last_tile_dims={manual}}", "{devices=[1,1,2,2]<=[4] last_tile_dims={manual, replicated}}",
    "{devices=[2,1,2]<=[4] last_tile_dims={unreduced}}", "{devices=[2,2]<=[4] metadata={op_name=\"a\"}}", "{devices=[2,2]<=[4] shard_as 3}", "{devices=[2,2]<=[4] shard_like 3}", "{devices=[ 2 , 1 ] 0 , 1}", "{last_tile_dim_replicate devices=[2,1,2]<=[4]}", "{devices=[2,1]<=[2] }", "{devices=[2,1]1,0}", "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dims={replicated}}",
    "{devices=[2,2] <= [4]}", '{metadata={op_name="a"} devices=[2,2]<=[4]}',
)
TILED_WRONG = (
    "{devices=[2,1]}", "{devices=[2,2]<=}", "{devices=2,1}", "{devices=[1]0}", "{devices=[1,1]0}", "{devices=[2,1]0 1}", "{devices=[2,1]{0,1}}", "{devices=(2,1)0,1}", "{devices={2,1}0,1}", "{devices=[2,1]<=2}", "{devices=[2,2]<=[2,2]}", "{devices=[2,2]<=[4]T(1,0)}", "{devices=[2,2]<=[2,2]T[1,0]}", "{devices=[x]0,1}", "{devices=[2,1]0,x}", "{devices=0,1}", "{devices=[2,1]0,1,}", "{devices =[2,1]0,1}",
    "{devices=[2,1]0,1, replicated}", "{devices=[2,1,2]<=[4] last_tile_dims=manual}", "{devices=[2,1,2]<=[4] last_tile_dims={foo}}", "{devices=[2,1,2]<=[4], last_tile_dim_replicate}", "{devices=[2,1]0:1}", "{f32[2] devices=[2,1]0,1}", "{devices=[2,1]<[2]}", "devices=[2,1]0,1", "{devices=[2,1,2]<=[4] last_tile_dims={manual,}}", "{devices=[2,1,2]<=[4] last_tile_dims={manual replicated}}",
)
TILED_OPEN = (
    "{devices=[2,2]0,1}", "{devices=[2,1]0,1,2}", "{devices=[2,2]<=[8]}", "{devices=[2,2]<=[2]}", "{devices=[2]<=[2]}", "{devices=[2,2,2]<=[8]}", "{devices=[]0,1}", "{devices=[0]0,1}", "{devices=[2,1]0,0}", "{devices=[2,1]-1,0}", "{devices=[2,1,2]<=[4] last_tile_dims={}}", "{devices=[2,1,2]<=[4] last_tile_dims={manual} last_tile_dim_replicate}", "{devices=[2,1,2]<=[4] last_tile_dims={maximal}}",
    "{devices=[2,2]<=[4] devices=[2,2]<=[4]}", "{devices=[2,2]<=[4] manual}", "{devices=[2,2]<=[4] replicated}", "{devices=[1,1]<=[1]}", "{devices=[2,2]<=[2,2]T(0,0)}", "{devices=[2,2]<=[2,2]T(2,3)}", "{devices=[2,2]<=[2,2]T(1)}", "{devices=[-2,1]0,1}", "{devices=[2,1]0,1 device=0}", "{devices=[2,1]0,1 unreduced}", "{devices=[1,1,4]<=[4] last_tile_dims={manual, manual}}", "{devices=[2,1,2]<=[4] last_tile_dims={manual,replicated,manual,manual}}",
    "{devices=[4,1]<=[4] last_tile_dim_replicate}", "{devices=[2,1,1]<=[2] last_tile_dim_replicate}", "{devices=[2,1]<=[2]T(0)}", "{devices=[1,2]<=[2] last_tile_dims={unknown}}", "{devices=[2,1]18446744073709551615,0}", "{devices=[2,1]+0,1}",
)
TUPLES_OK = ("{{replicated}, {replicated}}", "{{replicated},{manual}}", "{{devices=[2,1]<=[2]}, {maximal device=0}}", "{replicated}", "{{replicated}, /*index=5*/{replicated}}", "{devices=[2,1]<=[2]}", "{{mesh['a'=2], [{'a'}]}, {replicated}}", "{{devices=[2,1]0,1}, {devices=[2,1]<=[2]}}", "{ {replicated} , {replicated} }")
TUPLES_WRONG = ("{{replicated}}", "{{replicated}, {replicated}, {replicated}}", "{{replicated} {replicated}}", "{{replicated}, {replicated},}", "{replicated, replicated}", "{{{replicated}}, {replicated}}", "({replicated}, {replicated})", "{{replicated}, replicated}", "{{replicated}, {replicated}", "{{foo}, {replicated}}", "{,{replicated}}")
TUPLES_OPEN = ("{}", "{{}, {}}", "{{replicated}, {}}", "{{{replicated}, {replicated}}}", "{{replicated}, {replicated}} metadata={}")
NAMED_OK = (
    "{mesh['a'=2,'b'=4], [{'a'}, {'b'}]}", "{mesh['a'=2,'b'=4], [{'a','b'}, {}]}", "{mesh['a'=2,'b'=4], [{'a'}, {?}]}", "{mesh['a'=2,'b'=4], [{'a', ?}, {'b', ?}]}", "{mesh['a'=2,'b'=4], [{}, {}], replicated={'a'}}", "{mesh['a'=2,'b'=4], [{'a'}, {}], unreduced={'b'}}", "{mesh['a'=2,'b'=4], [{'a'}, {}], manual={'b'}}",
    "{mesh['a'=2,'b'=4], [{'a'}, {'b':(2)2}]}", "{mesh['a'=2,'b'=4] [{'a'}, {'b'}]}", "{mesh[\"a\"=2,'b'=4], [{'a'}, {\"b\"}]}", "{mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)), [{'a'}, {'b'}]}", "{mesh['a'=2,'b'=2], device_ids=(0,2,1,3), [{'a'}, {'b'}]}", "{mesh['a'=2], replicated}", "{mesh['a'=2], manual}", "{mesh['a'=2], unreduced}", "{maximal_mesh[device_id=1]}",
    "{mesh['a'=2,'b'=4], [{'a'}, {}], replicated={}, unreduced={'b'}}", "{mesh['a'=2,'b'=4], [{'a'}, {'b'}], metadata={{op_name=\"x\"}}}", "{mesh['a'=2,'b'=4], [{'0'}, {'1'}]}", "{mesh['a'=2,'b'=2,'c'=2], [{'a'}, {}], manual={'c'}, replicated={'b'}}",
)
NAMED_WRONG = (
    "{mesh['a'=2,'b'=4], ['a', 'b']}", "{mesh['a'=2,'b'=4], {{'a'}, {'b'}}}", "{mesh['a'=2,'b'=4], [{a}, {b}]}", "{mesh['a'=2,'b'=4], [{'a'} {'b'}]}", "{mesh['a'=2,'b'=4], [{?, 'a'}, {}]}", "{mesh['a'=2,'b'=4], [{'a' ?}, {}]}", "{mesh[a=2], [{'a'}, {}]}", "{mesh['a'=2], [{'a'}, {}], foo={'a'}}", "{mesh['a'=2], [{'a'}, {}] replicated={}", "{mesh['a'=2]", "{mesh}",
    "{mesh['a'=2], [{'a'}, {}], replicated='a'}", "{mesh['a'=2] foo}", "{@mesh, [{'a'}, {}]}", "{maximal_mesh}", "{maximal_mesh[1]}", "mesh['a'=2], [{'a'}, {}]", "{[{'a'}, {}]}", "{mesh['a'=2], ({'a'}, {})}", "{mesh['a'=2], [{'a'}, {}}", "{mesh['a'=2], [{'a'}, {}], unreduced=avg{'a'}}",
)
NAMED_OPEN = (
    "{mesh['a'=2,'b'=4]}", "{mesh['a'=2], [{'z'}, {}]}", "{mesh['a'=2], [{'7'}, {}]}", "{mesh['a'=2], [{'a'}, {'a'}]}", "{mesh['a'=2], [{'a'}]}", "{mesh['a'=2], [{'a'}, {}, {}]}", "{mesh['a'=2], []}", "{mesh[]}", "{mesh[], []}", "{mesh[], [{}, {}]}", "{mesh['a'=2,'b'=4], [{'a'}, {}], unreduced=sum{'b'}}", "{mesh['a'=2,'b'=4], [{'a'}, {}], unreduced=max{'b'}}", "{mesh['a'=2,'b'=4], [{'a'}, {}], unreduced=min{'b'}}",
    "{mesh['a'=2], unreduced=max{'a'}}", "{mesh['a'=2], [{'a'}, {}], replicated={'a'}}", "{mesh['a'=2,'b'=4], [{'b':(2)4}, {}]}", "{mesh['a'=2,'b'=4], [{'b':(3)2}, {}]}", "{mesh['a'=3,'b'=4], [{'a'}, {}]}", "{mesh['a'=2], [{'a'}, {}], replicated={}, replicated={}}", "{mesh['a'=2], [{'a'}, {}] replicated={}}", "{mesh['a'=2], [{'a'}, {}],}", "{mesh['a'=2], [{'a'}, {}], metadata={op_name=\"x\"}}", "{mesh['a'=2,'b'=2], device_ids=(0,1), [{'a'}, {}]}",
    "{mesh['a'=2], maximal}", "{mesh['a'=2], replicated, manual}", "{mesh['a'=2], [{'a'}, {}], shard_as 1}", "{maximal_mesh[device_id=1], [{}, {}]}", "{maximal_mesh[device_id=1], []}", "{mesh['a'=1], [{'a'}, {}]}", "{mesh['a'=2], [{'a'}, {},]}", "{mesh['a'=2], [{'a',}, {}]}", "{mesh['a'=2,'b'=4], [{'b':(1)2}, {}]}", "{mesh['a'=2,'b'=4], [{'b':(2)2,'b':(1)2}, {}]}",
    "{mesh['a'=2],, [{'a'}, {}]}", "{mesh['a'=2], device_ids=([2]), [{'a'}, {}]}", "{mesh['a'=2], [{'a'}, {}], manual={}, unreduced={}}", "{mesh['a'=2,'b'=4], [{'a'}, {}], replicated={'b'}, manual={'b'}}",
)


def on_array(value: str) -> str:
    return module(f"ROOT r = f32[4,8] negate(p0), sharding={value}", header="num_partitions=8", parameters=["f32[4,8]"])


def on_tuple(value: str) -> str:
    return module(
        f"ROOT r = (f32[4,8], f32[4,8]) tuple(p0, p0), sharding={value}", header="num_partitions=8", parameters=["f32[4,8]"],
    )


def elsewhere() -> Iterator[Probe]:
    row = "6.2:places"
    for name, body, expected in (
        ("parameter", "ROOT p = f32[4] parameter(0), sharding={devices=[2]0,1}", "accept"),
        ("constant", "ROOT c = f32[] constant(1), sharding={replicated}", "accept"),
        ("token", "ROOT t = token[] after-all(), sharding={maximal device=0}", "accept"),
        ("scalar-tiled", "ROOT c = f32[] constant(1), sharding={devices=[2]0,1}", ""),
        ("empty-tuple", "ROOT t = () tuple(), sharding={}", ""),
        ("empty-tuple-replicated", "ROOT t = () tuple(), sharding={replicated}", ""),
        ("empty-tuple-one", "ROOT t = () tuple(), sharding={{replicated}}", ""),
        ("nested-tuple-flat", "p = f32[4] parameter(0)\nu = (f32[4]) tuple(p)\nROOT t = ((f32[4]), f32[4]) tuple(u, p), sharding={{replicated}, {replicated}}", "accept"),
        ("nested-tuple-nested", "p = f32[4] parameter(0)\nu = (f32[4]) tuple(p)\nROOT t = ((f32[4]), f32[4]) tuple(u, p), sharding={{{replicated}}, {replicated}}", ""),
        ("tuple-sharding-on-array", "ROOT p = f32[4] parameter(0), sharding={{replicated}}", ""),
        ("tuple-of-two-on-array", "ROOT p = f32[4] parameter(0), sharding={{replicated}, {replicated}}", ""),
        ("partitions-exceeded", "ROOT p = f32[4] parameter(0), sharding={devices=[16]<=[16]}", "accept"),
    ):
        yield Probe(f"sharding/on/{name}", row, module(body), expected)


def probes() -> Iterator[Probe]:
    yield from table("sharding/word", "6.2:words", on_array, WORDS_OK, WORDS_WRONG, WORDS_OPEN)
    yield from table("sharding/tiled", "6.2:tiled (V1, V2)", on_array, TILED_OK, TILED_WRONG, TILED_OPEN)
    yield from table("sharding/tuple", "6.2:tuple", on_tuple, TUPLES_OK, TUPLES_WRONG, TUPLES_OPEN)
    yield from table("sharding/named", "6.2:named (V3)", on_array, NAMED_OK, NAMED_WRONG, NAMED_OPEN)
    yield from elsewhere()
