"""Section 6.1: the three generations of replica groups."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ADD, Probe, module, table

LISTS_OK = ("{}", "{{}}", "{{0}}", "{{0,1},{2,3}}", "{{0,1,2},{3}}", "{ { 0 , 1 } }", "{{0,1},{}}", "{{3,2},{1,0}}", "{{0,0}}", "{{-1}}", "{{99}}")
LISTS_WRONG = ("{0,1}", "{{0 1}}", "{{0,1}{2,3}}", "{{0,1},{2,3}", "", "0", "{{x}}", "{{0.5}}", "[[0,1]]", "{[0,1]}", "((0,1))", '"{}"', "{{{0}}}", "{{0,1};{2,3}}")
LISTS_OPEN = ("{{0,}}", "{{0,1},}", "{,{0}}", "{{18446744073709551615}}", "{{0},{0}}")
IOTA_OK = ("[2,2]<=[4]", "[2,2] <= [4]", "[2,2]<=[2,2]T(1,0)", "[4,2]<=[2,4]T(1,0)", "[2,4]<=[2,2,2]T(0,2,1)", "[ 2 , 2 ]<=[ 4 ]", "[2,2]<=[2,2]T(0,1)", "[1,4]<=[4]", "[4,1]<=[4]", "[2,2]<=[2,2] T (1,0)", "[2,2]<=/*c*/[4]")
IOTA_WRONG = ("[4]<=[4]", "[2,2,1]<=[4]", "[2,2]", "[2,2]<=", "[2,2]<=4", "[2,2]<=[2,2]", "[2,2]<=[4]T(0,1)", "[2,2]=[4]", "[2,2]<[4]", "[2,2]< =[4]", "{2,2}<=[4]", "[2,2]<=(4)", "[2,2]<=[2,2]T[1,0]", "[2,2]<=[2,2]t(1,0)", "[2,x]<=[4]", "[]<=[4]", "[2,2]<={4}", "[2 2]<=[4]", "[2,2]<=[2,2]T", "(2,2)<=[4]")
IOTA_OPEN = ("[2,2]<=[8]", "[2,2]<=[2]", "[2,2]<=[4]T(0)", "[2,2]<=[2,2]T(0,0)", "[2,2]<=[2,2]T(5,7)", "[2,2]<=[2,2]T()", "[0,2]<=[0]", "[-2,2]<=[4]", "[2,2]<=[]", "[2,2]<=[2,2]T(-1,0)", "[2,2]<=[2,2]T(0,1,2)", "[2,2]<=[-4]", "[2,2]<=[0]")
MESH_OK = (
    "mesh['a'=2,'b'=4] {'a'}", "mesh['a'=2,'b'=4] {'b'}", "mesh['a'=2,'b'=4] {'a','b'}", "mesh['a'=2,'b'=4] {'b','a'}", "mesh['a'=2] {}", "mesh[\"a\"=2] {\"a\"}", "mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}",
    "mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'a'}", "maximal_mesh[device_id=1] {}", "mesh['a'=2,'b'=4]{'b':(2)2}", "mesh['a'=2,'b'=4]{'b':(1)2}", "mesh['a'=2,'b'=4], {'a'}", "mesh['a'=2]{'a'}", "mesh['a'=2,'b'=2] {'0'}", "mesh['a'=2,'b'=2] { 'a' , 'b' }", "mesh['a'=2,'b'=2], device_ids=([4]) {'a'}",
)
MESH_WRONG = (
    "mesh['a'=2]", "mesh['a'=2] 'a'", "mesh['a'=2] {a}", "mesh['a'] {'a'}", "mesh[a=2] {'a'}", "mesh['a'=2,] {'a'}", "mesh('a'=2) {'a'}", "mesh{'a'=2} {'a'}", "mesh['a'=2] {'a'", "mesh['a'=2 {'a'}", "mesh['a'=x] {'a'}", "mesh['a'=2] {'a':2}", "mesh['a'=4] {'a':(2)}", "mesh['a'=4] {'a':2(2)}",
    "maximal_mesh[1] {}", "maximal_mesh {}", "maximal_mesh[device_id=x] {}", "mesh['a'=2,'b'=2], device_ids=[0,1,2,3] {'a'}", "mesh['a'=2,'b'=2], device_ids={0,1,2,3} {'a'}", "mesh['a'=2,'b'=2], devices=(0,1,2,3) {'a'}", "mesh['a'=2], device_ids=() {'a'}", "Mesh['a'=2] {'a'}", "mesh",
)
MESH_OPEN = (
    "mesh['a'=2] {'z'}", "mesh['a'=2] {'5'}", "mesh['a'=2] {'a','a'}", "mesh['a'=2,'a'=2] {'a'}", "mesh['a'=0] {'a'}", "mesh['a'=-2] {'a'}", "mesh['a'=2,'b'=4] {'b':(2)4}", "mesh['a'=2,'b'=4] {'b':(3)2}", "mesh['a'=2,'b'=4] {'b':(0)2}", "mesh[] {}", "mesh['a'=2,'b'=2], device_ids=(0,1,2) {'a'}", "mesh['a'=2,'b'=2], device_ids=(0,0,1,1) {'a'}",
    "mesh['a'=2,'b'=2], device_ids=([2,2]T(1)) {'a'}", "mesh['a'=2,'b'=2], device_ids=([2,2]) {'a'}", "mesh['a'=2,'b'=2], device_ids=([3,3]T(1,0)) {'a'}", "maximal_mesh[device_id=1] {'a'}", "mesh['a'=2], {}", "mesh['a'=2],, {'a'}", "mesh['0'=2,'1'=4] {'1'}", "mesh['a'=2,'b'=4] {'b':(2)2,'b':(1)2}", "mesh['a b'=2] {'a b'}", "mesh[''=2] {''}",
    "maximal_mesh[device_id=-1] {}", "mesh['a'=2] {'a' 'b'}", "mesh['a'=2 'b'=2] {'a'}",
)


def text(value: str) -> str:
    return module(
        f"ROOT r = f32[2] all-reduce(p0), replica_groups={value}, to_apply=add_f32",
        header="replica_count=8", computations=ADD, parameters=["f32[2]"],
    )


def probes() -> Iterator[Probe]:
    yield from table("groups/list", "6.1:list of lists", text, LISTS_OK, LISTS_WRONG, LISTS_OPEN)
    yield from table("groups/iota", "6.1:iota", text, IOTA_OK, IOTA_WRONG, IOTA_OPEN)
    yield from table("groups/mesh", "6.1:mesh", text, MESH_OK, MESH_WRONG, MESH_OPEN)
    for opcode, shape, tail in (
        ("all-gather", "f32[4]", ", dimensions={0}"), ("all-to-all", "f32[2]", ""), ("reduce-scatter", "f32[1]", ", dimensions={0}, to_apply=add_f32"),
        ("collective-broadcast", "f32[2]", ""), ("all-reduce-start", "f32[2]", ", to_apply=add_f32"), ("all-gather-start", "(f32[2], f32[4])", ", dimensions={0}"),
    ):
        for name, value in (("list", "{{0,1}}"), ("iota", "[1,2]<=[2]"), ("mesh", "mesh['a'=2] {'a'}")):
            body = f"ROOT r = {shape} {opcode}(p0){tail}, replica_groups={value}"
            yield Probe(f"groups/on/{opcode}/{name}", f"6.1:{'list of lists' if name == 'list' else name}", module(body, computations=ADD, parameters=["f32[2]"]), "accept")
