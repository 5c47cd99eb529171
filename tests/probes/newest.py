"""Constructs on which XLA of August 2026 differs from jaxlib 0.10.2; `expected` is the newer verdict."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ADD, Probe, module
from .opcode_table import CALLEE

A, R = "accept", "reject"
TUPLE = ["(f32[2], (s32[], f32[3]))"]
SHAPE = "((f32[2]), f32[2], u32[])"


def compact_gte() -> Iterator[tuple[str, str, str]]:
    for name, body, expected in (
        ("one-step", "ROOT r = f32[2] negate(p0#0)", A), ("percent", "ROOT r = f32[2] negate(%p0#0)", A), ("two-steps", "ROOT r = s32[] negate(p0#1#0)", A), ("typed", "ROOT r = f32[2] negate(f32[2] p0#0)", A), ("typed-with-layout", "ROOT r = f32[2] negate(f32[2]{0} %p0#0)", A), ("tuple-part", "ROOT r = (s32[], f32[3]) copy(p0#1)", A),
        ("tuple-part-typed", "ROOT r = (s32[], f32[3]) copy((s32[], f32[3]) p0#1)", A), ("used-twice", "ROOT r = f32[2] add(p0#0, p0#0)", A), ("used-in-two-instructions", "a = f32[2] negate(p0#0)\nROOT r = f32[2] add(a, p0#0)", A), ("two-paths", "a = f32[3] negate(p0#1#1)\nb = f32[2] negate(p0#0)\nROOT r = (f32[3], f32[2]) tuple(a, b)", A), ("beside-plain", "ROOT r = (f32[2], (f32[2], (s32[], f32[3]))) tuple(p0#0, p0)", A),
        ("shape-inferred", "ROOT r = negate(p0#0)", A), ("of-array", "a = f32[2] get-tuple-element(p0), index=0\nROOT r = f32[2] negate(a#0)", R), ("out-of-range", "ROOT r = f32[2] negate(p0#2)", R), ("inner-out-of-range", "ROOT r = s32[] negate(p0#1#2)", R), ("too-deep", "ROOT r = f32[2] negate(p0#0#0)", R), ("typed-mismatch", "ROOT r = f32[2] negate(f32[3] p0#0)", R), ("undefined", "ROOT r = f32[2] negate(q#0)", R), ("no-index", "ROOT r = f32[2] negate(p0#)", R), ("word-index", "ROOT r = f32[2] negate(p0#x)", R), ("negative", "ROOT r = f32[2] negate(p0#-1)", R),
    ):
        yield name, module(body, parameters=TUPLE), expected


def late_bound() -> Iterator[tuple[str, str, str]]:
    start = f"s = {SHAPE} async-start(), calls=callee\n"
    for name, body, expected in (
        ("on-update", f"{start}u = {SHAPE} async-update(s, p0)\nROOT d = f32[2] async-done(u)", A), ("on-done", f"{start}ROOT d = f32[2] async-done(s, p0)", A), ("on-update-and-none-on-done", f"{start}u = {SHAPE} async-update(s, p0), calls=callee\nROOT d = f32[2] async-done(u), calls=callee", A),
    ):
        yield name, module(body, computations=CALLEE, parameters=["f32[2]"]), expected


def debug_attributes() -> Iterator[tuple[str, str, str]]:
    plain = module("ROOT r = f32[2] negate(p0)", parameters=["f32[2]"])
    for name, value, expected in (
        ("empty", "{}", A), ("one", '{ {"a"}: {log_mode=default} }', A), ("all-fields", '{ {"a"}: {log_mode=fusion_debugger,callback_id=1,partitioned=true,op_id=2} }', A), ("list", '{ {"a"}: ({op_id=1}, {op_id=2}) }', A), ("two-entries", '{ {"a"}: {op_id=1}, {"b" {0}}: {op_id=2} }', A), ("unknown-field", '{ {"a"}: {foo=1} }', R), ("unknown-mode", '{ {"a"}: {log_mode=loud} }', R), ("no-colon", '{ {"a"} {op_id=1} }', R), ("not-braced", "1", R),
    ):
        yield name, plain.replace("HloModule m", f"HloModule m, debug_attributes={value}"), expected


def attributes() -> Iterator[tuple[str, str, str, str, str]]:
    """construct, row, name, text, newer verdict"""
    topk = "ROOT r = (f32[2], s32[2]) topk(p0), k=2, is_stable={}"
    for value, expected in (("true", A), ("false", A), ("1", R), ("{true}", R)):
        yield "topk is_stable", "5:topk", f"topk-is-stable/{value}", module(topk.format(value), parameters=["f32[4]"]), expected
    broadcast = "ROOT r = f32[2] collective-broadcast(p0{}), replica_groups={{{{0,1}}}}, has_dynamic_root={}"
    for value, extra, expected in (("true", ", p1", A), ("false", "", A), ("1", "", R), ("maybe", "", R)):
        text = module(broadcast.format(extra, value), parameters=["f32[2]", "s32[]"])
        yield "collective-broadcast has_dynamic_root", "5:collective-broadcast", f"has-dynamic-root/{value}", text, expected
    convolution = "ROOT r = f32[1,4,2] convolution(p0, p1), dim_labels=b0f_0io->b0f, window={{size=3}}, {}"
    for construct, tail, expected in (
        ("convolution algorithm", "algorithm=dot_f32_f32_f32", A), ("convolution algorithm", "algorithm=DOT_TF32_TF32_F32_X3", A), ("convolution algorithm", "algorithm=rng_default", R),
    ):
        text = module(convolution.format(tail), parameters=["f32[1,6,3]", "f32[3,3,2]"])
        yield construct, "5:convolution", f"convolution/{tail}", text, expected
    update = f"s = {SHAPE} async-start(p0), calls=callee\nu = {SHAPE} async-update(s), output_to_operand_aliasing={{{{1}}: (0, {{}})}}\nROOT d = f32[2] async-done(u)"
    yield "async output_to_operand_aliasing", "5:async-start async-update async-done", "async-aliasing/update", module(update, computations=CALLEE, parameters=["f32[2]"]), A
    reshape = "the reshape element count is an error instead of a crash"
    yield reshape, "5:reshape", "reshape-count", module("ROOT r = f32[7] reshape(p0)", parameters=["f32[2,3]"]), R
    empty = "an empty list of one dimension is an error instead of an exception"
    for name, body in (
        ("concatenate", "ROOT r = f32[2] concatenate(p0), dimensions={}"), ("sort", "ROOT r = f32[2] sort(p0), dimensions={}, to_apply=add_f32"), ("all-gather", "ROOT r = f32[2] all-gather(p0), dimensions={}"), ("get-dimension-size", "ROOT r = s32[] get-dimension-size(p0), dimensions={}"),
    ):
        yield empty, f"5:{name}", f"empty-dimensions/{name}", module(body, computations=ADD, parameters=["f32[2]"]), R
    axis = "an unknown mesh axis is an error instead of a crash"
    yield axis, "6.2:named (V3)", "unknown-axis/sharding", module("ROOT r = f32[2,3] abs(p0), sharding={mesh['a'=2], [{'z'}, {}]}", parameters=["f32[2,3]"]), R
    yield axis, "6.1:mesh", "unknown-axis/groups", module("ROOT r = f32[2] all-reduce(p0), replica_groups=mesh['a'=2] {'z'}, to_apply=add_f32", computations=ADD, parameters=["f32[2]"]), R
    iota = "the products of iota replica groups must match"
    yield iota, "6.1:iota", "iota-product/larger", module("ROOT r = f32[2] all-reduce(p0), replica_groups=[2,2]<=[8], to_apply=add_f32", computations=ADD, parameters=["f32[2]"]), R
    yield iota, "6.1:iota", "iota-product/smaller", module("ROOT r = f32[2] all-reduce(p0), replica_groups=[2,2]<=[2], to_apply=add_f32", computations=ADD, parameters=["f32[2]"]), R
    count = "the device count of a tiled sharding must be the product of its dimensions"
    for name, value in (("too-few", "[2,2]0,1"), ("too-many", "[2,1]0,1,2")):
        yield count, "6.2:tiled (V1, V2)", f"device-count/{name}", module(f"ROOT r = f32[4,8] abs(p0), sharding={{devices={value}}}", parameters=["f32[4,8]"]), R


def probes() -> Iterator[Probe]:
    for construct, row, make in (
        ("compact get-tuple-element operands", "3.3:compact operands", compact_gte), ("late-bound async operands", "5:async-start async-update async-done", late_bound), ("debug_attributes", "2:debug_attributes", debug_attributes),
    ):
        for name, text, expected in make():
            yield Probe(f"newest/{construct.split()[0]}/{name}", row, text, expected, newest=construct)
    for construct, row, name, text, expected in attributes():
        yield Probe(f"newest/{name}", row, text, expected, newest=construct)
