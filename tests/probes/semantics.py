"""Section 8: scopes, order, compatibility, texts that end XLA's process, limits."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ADD, Probe, module
from .opcode_table import CALLEE

A, R, OPEN = "accept", "reject", ""
HEAD = "HloModule m\n\n"


def scopes() -> Iterator[tuple[str, str, str, str]]:
    row = "8:instruction names"
    yield row, "name-twice", module("x = f32[2] abs(p0)\nx = f32[2] abs(p0)\nROOT r = f32[2] negate(x)", parameters=["f32[2]"]), R
    yield row, "name-twice-percent", module("x = f32[2] abs(p0)\nROOT %x = f32[2] abs(p0)", parameters=["f32[2]"]), R
    yield row, "name-of-parameter-twice", module("p0 = f32[2] abs(p0)", parameters=["f32[2]"]), R
    yield row, "same-name-in-two-computations", module("x = f32[2] call(p0), to_apply=callee\nROOT n = f32[2] negate(x)", computations=CALLEE, parameters=["f32[2]"]), A
    yield row, "instruction-named-as-computation", module("callee = f32[2] call(p0), to_apply=callee", computations=CALLEE, parameters=["f32[2]"]), A
    yield row, "instruction-named-as-own-computation", module("e = f32[2] abs(p0)", parameters=["f32[2]"]), A
    yield row, "instruction-named-as-module", module("m = f32[2] abs(p0)", parameters=["f32[2]"]), A
    yield row, "names-differ-in-case", module("X = f32[2] abs(p0)\nx = f32[2] abs(X)", parameters=["f32[2]"]), A
    yield row, "name-of-other-computation", module("c = f32[2] call(p0), to_apply=callee\nROOT r = f32[2] negate(x)", computations=CALLEE, parameters=["f32[2]"]), R
    yield row, "operand-undefined", module("ROOT r = f32[2] negate(q)", parameters=["f32[2]"]), R
    yield row, "operand-is-computation", module("ROOT r = f32[2] negate(callee)", computations=CALLEE, parameters=["f32[2]"]), R
    row = "8:no forward references"
    yield row, "operand-forward", module("a = f32[2] negate(b)\nb = f32[2] abs(p0)\nROOT r = f32[2] negate(a)", parameters=["f32[2]"]), R
    yield row, "operand-forward-typed", module("a = f32[2] negate(f32[2] b)\nb = f32[2] abs(p0)\nROOT r = f32[2] negate(a)", parameters=["f32[2]"]), R
    yield row, "operand-itself", module("ROOT a = f32[2] negate(a)", parameters=["f32[2]"]), R
    yield row, "parameter-after-use", HEAD + "ENTRY e {\n  a = f32[2] negate(p)\n  ROOT p = f32[2] parameter(0)\n}\n", R
    yield row, "parameters-in-any-order", HEAD + "ENTRY e {\n  q = f32[2] parameter(1)\n  p = f32[2] parameter(0)\n  ROOT s = f32[2] add(p, q)\n}\n", A
    yield row, "parameter-after-instruction", HEAD + "ENTRY e {\n  q = f32[2] parameter(0)\n  a = f32[2] abs(q)\n  p = f32[2] parameter(1)\n  ROOT s = f32[2] add(p, a)\n}\n", A
    yield row, "computation-forward", HEAD + "ENTRY e {\n  p = f32[2] parameter(0)\n  ROOT c = f32[2] call(p), to_apply=callee\n}\n\n" + CALLEE, R
    yield row, "computation-itself", HEAD + "ENTRY e {\n  p = f32[2] parameter(0)\n  ROOT c = f32[2] call(p), to_apply=e\n}\n", R
    yield row, "computation-missing", HEAD + "ENTRY e {\n  p = f32[2] parameter(0)\n  ROOT c = f32[2] call(p), to_apply=q\n}\n", R
    yield row, "predecessor-forward", module("a = f32[2] abs(p0), control-predecessors={b}\nb = f32[2] abs(p0)\nROOT r = f32[2] add(a, b)", parameters=["f32[2]"]), R
    row = "8:computation names"
    yield row, "computation-twice", module("ROOT a = f32[2] abs(p0)", computations=CALLEE + "\n\n" + CALLEE, parameters=["f32[2]"]), R
    yield row, "computation-twice-percent", module("ROOT a = f32[2] abs(p0)", computations=CALLEE + "\n\n%" + CALLEE, parameters=["f32[2]"]), R
    yield row, "computation-named-as-entry", module("ROOT a = f32[2] abs(p0)", computations=CALLEE.replace("callee", "e"), parameters=["f32[2]"]), R
    yield row, "computation-named-as-module", module("ROOT a = f32[2] abs(p0)", computations=CALLEE.replace("callee", "m"), parameters=["f32[2]"]), A
    yield row, "computation-name-sanitised", module("ROOT a = f32[2] call(p0), to_apply=%f32", computations=CALLEE.replace("callee", "%f32"), parameters=["f32[2]"]), A
    yield row, "computation-name-underscores", module("ROOT a = f32[2] call(p0), to_apply=__c", computations=CALLEE.replace("callee", "__c"), parameters=["f32[2]"]), A
    yield row, "computation-name-type-word", module("ROOT a = f32[2] abs(p0)", computations=CALLEE.replace("callee", "f32"), parameters=["f32[2]"]), R
    yield row, "computation-name-keyword", module("ROOT a = f32[2] abs(p0)", computations=CALLEE.replace("callee", "true"), parameters=["f32[2]"]), R
    yield row, "computation-called-twice", module("a = f32[2] call(p0), to_apply=callee\nROOT b = f32[2] call(a), to_apply=callee", computations=CALLEE, parameters=["f32[2]"]), A
    yield row, "same-computation-as-body-and-fusion", module("a = f32[2] fusion(p0), kind=kLoop, calls=callee\nROOT b = f32[2] call(a), to_apply=callee", computations=CALLEE, parameters=["f32[2]"]), OPEN


def parameters() -> Iterator[tuple[str, str, str, str]]:
    row = "8:parameters"
    for name, numbers, expected in (
        ("duplicate", (0, 0), R), ("gap-at-start", (1,), "abort"), ("gap", (0, 2), "abort"), ("huge", (1000000,), OPEN), ("reversed", (2, 1, 0), A), ("none", (), A),
    ):
        lines = "\n".join(f"q{place} = f32[2] parameter({number})" for place, number in enumerate(numbers))
        yield row, f"numbers-{name}", module(f"{lines}\nROOT c = f32[] constant(1)"), expected
    call = "ROOT r = f32[2] {text}"
    bad = "bad {\n  x = f32[2] parameter(1)\n  ROOT n = f32[2] negate(x)\n}"
    yield row, "gap-in-callee", module("ROOT c = f32[2] call(p0, p0), to_apply=bad", computations=bad, parameters=["f32[2]"]), "abort"
    for name, text, expected in (
        ("call-too-few", "call(), to_apply=callee", OPEN), ("call-too-many", "call(p0, p0), to_apply=callee", OPEN), ("fusion-too-few", "fusion(), kind=kLoop, calls=callee", OPEN),
        ("fusion-too-many", "fusion(p0, p0), kind=kLoop, calls=callee", OPEN), ("reduce-computation-of-one", "reduce(p0, p1), dimensions={0}, to_apply=callee", OPEN), ("map-arity", "map(p0, p0), to_apply=callee", OPEN),
        ("while-arity", "while(p0), condition=callee, body=callee", OPEN), ("sort-arity", "sort(p0), dimensions={0}, to_apply=callee", OPEN), ("scan-arity", "scan(p0, p0), dimensions={0}, num_carries=1, to_apply=callee", OPEN), ("call-type", "call(p2), to_apply=callee", OPEN),
    ):
        yield row, name, module(call.format(text=text), computations=CALLEE, parameters=["f32[2]", "f32[]", "s32[7]"]), expected


def aborting() -> Iterator[tuple[str, str, str, str]]:
    row = "8:inputs that end XLA's process"
    vector = ["f32[2,3]"]
    for name, body, expected in (
        ("true-for-float", "ROOT c = f32[] constant(true)", "abort"), ("true-for-int", "ROOT c = s32[] constant(true)", "abort"), ("token-with-dims", "ROOT p = token[2] parameter(5)", "abort"), ("token-constant", "ROOT c = token[] constant(0)", "abort"),
        ("gte-out-of-range-inferred", "t = (f32[2,3]) tuple(p0)\nROOT g = get-tuple-element(t), index=1", "abort"), ("gte-of-array-inferred", "ROOT g = get-tuple-element(p0), index=0", "abort"),
        ("gte-of-array", "ROOT g = f32[2] get-tuple-element(p0), index=0", OPEN), ("gte-negative-inferred", "t = (f32[2,3]) tuple(p0)\nROOT g = get-tuple-element(t), index=-1", OPEN), ("reshape-count", "ROOT r = f32[7] reshape(p0)", "abort"),
        ("empty-dimensions-concatenate", "ROOT r = f32[2,3] concatenate(p0), dimensions={}", "abort"), ("empty-dimensions-sort", "ROOT r = f32[2,3] sort(p0), dimensions={}, to_apply=add_f32", "abort"), ("empty-dimensions-gather", "ROOT r = f32[2,3] all-gather(p0), dimensions={}", "abort"),
        ("empty-dimensions-get-size", "ROOT r = s32[] get-dimension-size(p0), dimensions={}", OPEN), ("unknown-transpose-a", "ROOT r = f32[2,3] triangular-solve(p0, p0), transpose_a=FOO", "abort"), ("tuple-with-array-shape", "ROOT r = f32[2] tuple(p0)", OPEN), ("tuple-arity", "ROOT r = (f32[2,3], f32[2,3]) tuple(p0)", R),
        ("tuple-element-mismatch", "ROOT r = (f32[9]) tuple(p0)", OPEN), ("dot-of-one", "ROOT r = f32[2] dot(p0)", OPEN), ("dot-of-none", "ROOT r = f32[2] dot()", OPEN), ("dot-of-one-inferred", "ROOT r = dot(p0)", "abort"), ("dot-of-three", "ROOT r = f32[2] dot(p0, p0, p0)", OPEN),
        ("unknown-mesh-axis", "ROOT r = f32[2,3] abs(p0), sharding={mesh['a'=2], [{'z'}, {}]}", "abort"), ("get-size-out-of-range-inferred", "ROOT r = get-dimension-size(p0), dimensions={9}", OPEN), ("transpose-count", "ROOT r = transpose(p0), dimensions={0}", OPEN), ("transpose-repeat", "ROOT r = transpose(p0), dimensions={0,0}", OPEN),
        ("broadcast-scalar-no-dimensions", "c = f32[] constant(1)\nROOT r = f32[4] broadcast(c)", A), ("broadcast-vector-no-dimensions", "ROOT r = f32[4,2,3] broadcast(p0)", R), ("broadcast-scalar-inferred", "c = f32[] constant(1)\nROOT r = broadcast(c), dimensions={}", OPEN), ("broadcast-scalar-inferred-none", "c = f32[] constant(1)\nROOT r = broadcast(c)", OPEN),
        ("iota-of-scalar", "ROOT r = s32[] iota(), iota_dimension=0", OPEN), ("iota-dimension-range", "ROOT r = s32[2] iota(), iota_dimension=5", OPEN), ("dynamic-slice-too-many", "i = s32[] constant(0)\nROOT r = f32[2,3] dynamic-slice(p0, i, i, i), dynamic_slice_sizes={2,3}", OPEN),
        ("dynamic-slice-too-few", "i = s32[] constant(0)\nROOT r = f32[2,3] dynamic-slice(p0, i), dynamic_slice_sizes={2,3}", OPEN), ("dynamic-slice-vector", "i = s32[2] constant({0,0})\nROOT r = f32[2,3] dynamic-slice(p0, i), dynamic_slice_sizes={2,3}", A), ("dynamic-slice-none", "ROOT r = f32[2,3] dynamic-slice(p0), dynamic_slice_sizes={2,3}", OPEN), ("dynamic-slice-empty", "ROOT r = f32[2,3] dynamic-slice(), dynamic_slice_sizes={2,3}", OPEN),
        ("update-slice-vector", "i = s32[2] constant({0,0})\nROOT r = f32[2,3] dynamic-update-slice(p0, p0, i)", A), ("update-slice-too-few", "i = s32[] constant(0)\nROOT r = f32[2,3] dynamic-update-slice(p0, p0, i)", OPEN), ("update-slice-too-many", "i = s32[] constant(0)\nROOT r = f32[2,3] dynamic-update-slice(p0, p0, i, i, i)", OPEN), ("update-slice-one", "ROOT r = f32[2,3] dynamic-update-slice(p0)", OPEN), ("update-slice-none", "ROOT r = f32[2,3] dynamic-update-slice()", OPEN),
        ("dynamic-reshape-sizes", "i = s32[] constant(6)\nROOT r = f32[<=2,<=3] dynamic-reshape(p0, i, i)", A), ("dynamic-reshape-too-few", "i = s32[] constant(6)\nROOT r = f32[<=2,<=3] dynamic-reshape(p0, i)", OPEN), ("dynamic-reshape-none", "ROOT r = f32[2,3] dynamic-reshape(p0)", OPEN), ("dynamic-reshape-empty", "ROOT r = f32[2,3] dynamic-reshape()", OPEN),
        ("infeed-array", "k = token[] after-all()\nROOT r = f32[2] infeed(k)", OPEN), ("infeed-tuple-of-one", "k = token[] after-all()\nROOT r = (f32[2]) infeed(k)", OPEN), ("infeed-empty-tuple", "k = token[] after-all()\nROOT r = () infeed(k)", OPEN), ("recv-array", "k = token[] after-all()\nROOT r = f32[2] recv(k), channel_id=1", OPEN), ("recv-done-array", "k = token[] after-all()\ns = (f32[2], u32[], token[]) recv(k), channel_id=1\nROOT r = f32[2] recv-done(s), channel_id=1", OPEN),
        ("recv-empty-tuple", "k = token[] after-all()\nROOT r = () recv(k), channel_id=1", OPEN), ("send-array", "k = token[] after-all()\nROOT r = f32[2] send(p0, k), channel_id=1", OPEN), ("infeed-of-array", "ROOT r = ((f32[2]), token[]) infeed(p0)", OPEN), ("outfeed-of-array", "ROOT r = token[] outfeed(p0, p0)", OPEN), ("send-of-array", "ROOT r = (f32[2,3], u32[], token[]) send(p0, p0), channel_id=1", OPEN), ("after-all-of-array", "ROOT r = token[] after-all(p0)", OPEN), ("after-all-shape", "ROOT r = f32[2] after-all()", A), ("outfeed-shape", "k = token[] after-all()\nROOT r = f32[2] outfeed(p0, k)", A),
        ("add-dependency-shape", "k = token[] after-all()\nROOT r = f32[9] add-dependency(p0, k)", OPEN), ("domain-shape", 'ROOT r = f32[9] domain(p0), domain={kind="sharding", entry={replicated}, exit={replicated}}', OPEN), ("reduce-window-no-window", "c = f32[] constant(0)\nROOT r = f32[2,3] reduce-window(p0, c), to_apply=add_f32", OPEN), ("copy-start-tuple", "ROOT r = f32[2,3] copy-start(p0)", OPEN),
        ("convolution-of-scalars", "c = f32[] constant(0)\nROOT r = f32[] convolution(c, c), dim_labels=bf_io->bf", OPEN), ("sort-of-tuple-shape", "ROOT r = (f32[2,3], f32[2,3]) sort(p0, p0), dimensions={1}, to_apply=add_f32", OPEN), ("fusion-empty-shape", "ROOT r = () fusion(p0), kind=kLoop, calls={ ROOT x = f32[2,3] parameter(0) }", OPEN),
        ("reshape-of-tuple", "t = (f32[2,3]) tuple(p0)\nROOT r = f32[6] reshape(t)", OPEN), ("reshape-to-tuple", "ROOT r = (f32[6]) reshape(p0)", OPEN), ("reshape-dynamic", "ROOT r = f32[<=6] reshape(p0)", OPEN), ("reshape-dynamic-count", "ROOT r = f32[<=7] reshape(p0)", OPEN), ("broadcast-dimension-range", "ROOT r = f32[2,3] broadcast(p0), dimensions={0,9}", OPEN),
        ("pad-count", "c = f32[] constant(0)\nROOT r = f32[4,5] pad(p0, c), padding=1_1", OPEN), ("pad-count-inferred", "c = f32[] constant(0)\nROOT r = pad(p0, c), padding=1_1", OPEN), ("rng-bit-no-operand", "ROOT r = u64[2] rng-bit-generator(), algorithm=rng_default", OPEN), ("conditional-none", "ROOT r = f32[2] conditional()", OPEN), ("while-none", "ROOT r = f32[2] while(), condition=add_f32, body=add_f32", R),
    ):
        yield row, name, module(body, computations=ADD, parameters=vector), expected


def compatibility() -> Iterator[tuple[str, str, str, str]]:
    row = "8:compatibility"
    for declared, actual, expected in (
        ("f32[2]", "f32[2]{0:S(1)}", A), ("f32[2,3]{0,1}", "f32[2,3]{1,0}", A), ("f32[2]", "f32[<=2]", OPEN), ("f32[<=2]", "f32[2]", OPEN), ("f32[?]", "f32[2]", OPEN), ("f32[2]", "f32[?]", OPEN), ("f32[2]", "f16[2]", R), ("f32[2]", "f32[2,1]", R), ("f32[]", "f32[1]", R), ("(f32[2])", "f32[2]", R),
        ("(f32[2], ())", "(f32[2], ())", A), ("(f32[2], ())", "(f32[2])", R), ("token[]", "token[]", A), ("token[]", "opaque[]", R), ("s4[2]{0:E(4)}", "s4[2]", A), ("b(f32[2])", "b(f32[2])", A), ("b(f32[2])", "f32[2]", R), ("f32[2]", "b(f32[2])", OPEN), ("f32[<=3]", "f32[<=2]", R), ("pred[2]", "u8[2]", R), ("f32[0]", "f32[0]", A), ("s32[2]", "u32[2]", R), ("f32[?]", "f32[?]", A), ("f32[?,2]", "f32[3,2]", OPEN),
    ):
        yield row, f"operand/{declared}~{actual}", module(f"ROOT r = {actual} copy({declared} p0)", parameters=[actual]), expected
        text = f"{HEAD}ENTRY e (x: {actual}) -> {declared} {{\n  ROOT x = {actual} parameter(0)\n}}\n"
        yield row, f"signature/{declared}~{actual}", text, expected


def limits() -> Iterator[tuple[str, str, str, str]]:
    row = "8:limits"
    for depth in (100, 400):
        yield row, f"tuple-shape-depth-{depth}", module(f"ROOT p = {'(' * depth}f32[]{')' * depth} parameter(0)"), A
        nested = "p0"
        for _ in range(depth):
            nested = f"abs({nested})"
        yield row, f"nested-operand-depth-{depth}", module(f"ROOT r = {nested}", parameters=["f32[]"]), A
    yield row, "unclosed-tuple-shapes", module(f"ROOT p = {'(' * 2000} parameter(0)"), R
    yield row, "unclosed-literal-braces", module(f"ROOT p = f32[2] constant({'{' * 2000}"), R
    yield row, "unclosed-metadata-braces", module(f"ROOT p = f32[] parameter(0), metadata={'{' * 500}"), R
    yield row, "unclosed-dictionary", module(f"ROOT p = f32[] parameter(0), backend_config={'{' * 2000}"), R
    yield row, "recursion-limit-passed", module(f"ROOT p = {'(' * 9000}f32[]{')' * 9000} parameter(0)"), R


def probes() -> Iterator[Probe]:
    for make in (scopes, parameters, aborting, compatibility, limits):
        for row, name, text, expected in make():
            yield Probe(f"semantics/{name}", row, text, expected)
