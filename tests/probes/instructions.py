"""Section 3.3: definitions, operands, nested instructions, dropped slots."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ACCEPT, Probe, module, table

VECTOR = ["f32[2]"]
TUPLE = ["(f32[2], (s32[], f32[3]))"]

OPERANDS_OK = (
    "p0, p1", "%p0, %p1", "f32[2] p0, p1", "f32[2]{0} %p0, f32[2]{0} %p1", "p0,p1", "p0 , p1", "p0, /*index=1*/p1",
    "f32[2]{0:T(128)S(1)} p0, p1", "p0, p0", "p0:, p1", "f32[2]p0, p1", "p0, p1,", ",p0, p1", "p0,, p1", ",,p0,,p1,,",
    "f32[2] p0, f32[2], p1", "f32[2], p0, p1", "p0, p1, f32[9]", "p0, f32[], p1", "p0, negate(p1)", "p0, f32[2] negate(p1)",
    "negate(p0), negate(p1)", "p0, negate(negate(p1))", "p0, f32[2]{0} add(p0, p1)", "p0, f32[2] constant({1, 2})",
    "p0, broadcast(f32[] constant(1))", "p0\n,\np1", "p0, f32[2] /*c*/ p1", "f32[2]{0:E(32)} p0, p1", "p0, (f32[2]), p1", "p0, pred, p1",
)
OPERANDS_WRONG = (
    "p0 p1", "p0", "p0, p2", "p0, p1, p0", "f32[3] p0, p1", "s32[2] p0, p1", "f32[2,1] p0, p1", "(f32[2]) p0, p1", "p0, f32[2]{1,0} p1",
    "p0, 1", "p0, 's'", "p0, {}", "p0, true", "p0; p1", "p0, p1)", "(p0, p1)", "p0, p1=", "p0, *", "p0, ...", "...", "null , p1",
    "p0, p1 p0", "p0, f32[2] f32[2] p1", "p0, r", "p0, negate(p1), p0", "p0, foo(p1)", "p0, negate p1", "p0, f32[2] negate", "p0, [p1]",
    "p0, transpose(p1)", "p0, negate(p1), metadata={}", "f32 p0, p1", "p0, f32[ p1", "p0, f32[2] ...(+3)", "p0, compare(p0, p1)", "p0, f32[2] parameter(0)",
    "p0, p1#0", "p0, -", "p0, negate(p1, p1)", "p0, iota()", "p0, negate(p1", "p0, %negate(p1)",
)
OPERANDS_OPEN = (
    "p0, f32[<=2] p1", "p0, f32[?] p1", "p0, f32[2]{} p1", "p0, (p1", "p0, negate(p1,)", "p0, f32[2] parameter(2)", "p0, foo", "p0, foo, p1",
    "p0, f32[2] foo, p1", "p0, tuple(p1), p1", "p0, b, p1", "p0, b(f32[2]), p1", "p0, [, p1", "p0, f32[2]{0, p1", "p0, f32[2]{0}, p1",
    "f32[3], p0, p1", "p0, constant, p1", "p0, foo(, p1", "p0, f32[x], p1", "p0, f32[2] %, p1", "p0, abs(p9), p1",
)


def operands() -> Iterator[Probe]:
    def text(inside: str) -> str:
        return module(f"ROOT r = f32[2] add({inside})", parameters=["f32[2]", "f32[2]"])

    yield from table("operands/of-two", "3.3:operands", text, OPERANDS_OK, OPERANDS_WRONG, OPERANDS_OPEN)
    yield from table(
        "operands/tuple", "3.3:tuple-shaped operands",
        lambda inside: module(f"ROOT r = (f32[2], (s32[], f32[3])) copy({inside})", parameters=TUPLE),
        ("p0", "(f32[2], (s32[], f32[3])) p0", "(f32[2]{0}, (s32[], f32[3]{0})) %p0", "(f32[2], /*index=5*/(s32[], f32[3])) p0", "( f32[2] , ( s32[] , f32[3] ) ) p0"),
        ("(f32[2], s32[], f32[3]) p0", "(f32[2], (s32[])) p0", "(f32[2], (s32[], f32[4])) p0", "f32[2] p0", "() p0", "(f32[2], (s32[], f32[3]),) p0", "(f32[2] (s32[], f32[3])) p0", "((f32[2], (s32[], f32[3]))) p0"),
    )
    yield from table(
        "operands/none-wanted", "3.3:operands",
        lambda inside: module(f"ROOT r = s32[4] iota({inside}), iota_dimension=0", parameters=VECTOR),
        ("", " ", "\n", "/*c*/", ",", ",,", "f32[2]"), ("p0", "0", "()", "{}", "'a'", "p9"),
    )
    yield from table(
        "operands/token", "3.3:operands",
        lambda inside: module(f"ROOT r = token[] after-all({inside})", parameters=["token[]", "token[]"]),
        ("", "p0", "p0, p1", "token[] p0", "p0,,p1", "p0, token[] p1", ",p0"), ("f32[] p0", "token p0", "p2"),
    )
    for name, prefix in (("space", " "), ("newline", "\n"), ("tab", "\t"), ("comment", "/*c*/")):
        body = module(f"ROOT r = f32[2] add{prefix}(p0, p0)", parameters=VECTOR)
        yield Probe(f"operands/{name}-before-parenthesis", "3.3:operands", body, ACCEPT)


def definitions() -> Iterator[Probe]:
    row = "3.3:instruction"
    yield from table(
        "instruction/right-hand-side", row,
        lambda text: module(f"ROOT r = {text}", parameters=VECTOR),
        ("f32[2] negate(p0)", "negate(p0)", "f32[2]{0} negate(p0)", "f32[2]{0:S(1)} negate(p0)", "(f32[2]) tuple(p0)", "tuple(p0)", "f32 [2] {0} negate(p0)", "f32[2]negate(p0)", "f32[2] negate (p0)", "f32[2]\nnegate\n(\np0\n)\n"),
        ("f32[2]", "negate", "negate()", "f32[2] negate", "f32[2] negate p0", "f32[2] (p0)", "f32[2], negate(p0)", "f32[2] f32[2] negate(p0)", "negate(p0) f32[2]", "%negate(p0)", "f32[2] negate(p0", "f32[2] negate p0)", "f32[2] negate[p0]", "f32[2] negate{p0}", "p0", "f32[2] p0", "f32[2] negate(p0) negate(p0)", "f32[2] negate(p0):", "f32[2] Negate(p0)", "f32[2]{0", "f32[2]{} negate(p0)", "f32 negate(p0)", "'f32[2]' negate(p0)"),
    )
    yield from table(
        "instruction/attributes", "3.3:attribute list",
        lambda text: module(f"ROOT r = f32[2] negate(p0){text}", parameters=VECTOR),
        ("", ', metadata={op_name="a"}', ',metadata={op_name="a"}', '\n,\nmetadata={op_name="a"}', ', metadata={op_name="a"}, backend_config="b"', ', backend_config="b", metadata={op_name="a"}', ', /*c*/ metadata={op_name="a"} // d'),
        (",", ', metadata={op_name="a"},', ' metadata={op_name="a"}', ', metadata={op_name="a"} backend_config="b"', ',, metadata={op_name="a"}', ', metadata={op_name="a"}, metadata={op_name="a"}', ", foo", ", foo=", ", metadata", ", metadata=", ", =1", ", negate=1", ", opcode=negate", ", %metadata={}", ', metadata=op_name="a"', ", Metadata={}", ", metadata={}}", ", metadata={} {}"),
    )
    parameter_row = "3.3:parameter"
    yield from table(
        "instruction/parameter", parameter_row,
        lambda text: module(f"ROOT p = f32[2] parameter({text})"),
        ("0", " 0 ", "00", "/*c*/0", "-0"), ("", "-1", "x", "0, 0", "0.0", "'0'", "{0}", "f32[2] 0", "true", "0_0", "18446744073709551616", "0x0", "(0)"),
    )
    yield from table(
        "instruction/parameter-number", parameter_row,
        lambda text: module(f"ROOT p = f32[2] parameter({text})"), (), (),
        ("1", "2", "9223372036854775807", "18446744073709551615", "2147483648"),
    )


NESTED_OK = (
    "negate(negate(p0))", "negate(f32[2] negate(f32[2] p0))", "negate(add(p0, abs(p0)))", "negate(f32[2] constant({1,2}))",
    "add(negate(p0), negate(p0))", "negate(f32[2]{0} abs(f32[2]{0} %p0))", "negate(broadcast(f32[] constant(3)))",
    "negate(get-tuple-element(tuple(p0)))", "tuple(negate(p0))", "negate(f32[2] parameter(1))", "negate(f32[2] convert(p0))",
    "negate(f32[2] broadcast(constant(3)))", "negate(tanh(p0))", "tuple(iota())", "negate(f32[2] bitcast(p0))",
    "negate(select(pred[2] constant({1,0}), p0, p0))", "negate(f32[2] rng(p0, p0))", "negate(custom-call(p0))", "negate(f32[2] reshape(p0))",
    "tuple(after-all())", "negate(add-start(p0, p0))", "negate(f32[2] infeed(p0))", "tuple(replica-id())", "negate(dot(p0, p0))",
    "negate(f32[2] collective-permute(p0))", "tuple(f32[2] all-to-all(p0))", "negate(map(p0))", "negate(f32[2] copy-start(p0))",
)


def nested() -> Iterator[Probe]:
    yield from table(
        "nested", "3.3:nested instructions",
        lambda text: module(f"ROOT r = {text}", parameters=VECTOR), (), (), NESTED_OK,
    )
    deep = "p0"
    for _ in range(50):
        deep = f"negate({deep})"
    yield Probe("nested/fifty-deep", "3.3:nested instructions", module(f"ROOT r = {deep}", parameters=VECTOR), ACCEPT)
    clash = module("negate.anon = f32[2] abs(p0)\nROOT r = negate(negate(negate.anon))", parameters=VECTOR)
    yield Probe("nested/generated-name-taken", "3.3:nested instructions", clash, "")
    clash = module("a = f32[2] negate(abs(p0))\nnegate.anon = f32[2] abs(a)\nROOT r = negate(abs(negate.anon))", parameters=VECTOR)
    yield Probe("nested/generated-name-defined-later", "3.3:nested instructions", clash, "")
    clash = module("a = f32[2] negate(abs(p0))\nROOT r = negate(abs.anon)", parameters=VECTOR)
    yield Probe("nested/generated-name-used", "3.3:nested instructions", clash, "")
    twice = module("a = f32[2] negate(abs(p0))\nROOT r = add(abs(a), abs(p0))", parameters=VECTOR)
    yield Probe("nested/several", "3.3:nested instructions", twice, ACCEPT)


def dropped_slots() -> Iterator[Probe]:
    """The quirk: a slot that fails to parse but stops at `,` or `)` is dropped."""
    row = "3.3:dropped slots"
    yield from table(
        "dropped/of-tuple", row,
        lambda inside: module(f"ROOT r = tuple({inside})", parameters=VECTOR), (), (),
        (",", ",,", "p0,", ",p0", "p0,,p0", "f32[2]", "f32[2], p0", "(f32[2])", "pred[]", "p0, ()", "()", "foo", "foo, p0", "p0, foo", "%foo", "%foo, p0", "f32[2] foo", "f32[2] foo, p0", "f32[2] %foo", "f32", "f32[", "f32[2", "f32[x]", "negate", "negate, p0", "negate(", "negate(foo)", "negate(foo), p0", "negate()", "negate(p0, p0), p0", "f32[3] p0", "f32[3] p0, p0", "p0 p0", "{}", "*", "=", "b", "b(f32[2])", "b(f32[2]), p0", "p0, f32[2]{0}", "p0, f32[2]{0:T(8)}", "p0, f32[-1]", "p0, f32[2]{1,0}, p0", "true", "ROOT p0", "p0, ENTRY", "f32[2] f32[2]", "f32[2] f32[2], p0", "transpose(p0)", "transpose(p0), p0", "f32[2] parameter(-1)", "constant(1)", "f32[] constant(x)", "f32[] constant(x), p0", "p0, 1", "1, p0", "p0, token[]", "f32[2] p0 p0", "add-done(p0)", "foo(p0)", "foo(p0), p0", "foo.1(p0)", "f32[2] foo(p0)", "add, p0", "add", "f32[2] add, p0", "%add, p0", "add:, p0", "add.1, p0", "add p0, p0", "negate-start, p0", "negate-done, p0", "sort(p0), p0", "f32[2] constant({1,2,3}), p0", "f32[2] constant({1,2}, p0", "f32[2] slice(p0), p0", "convert(p0), p0", "f32[2] reshape(p0, p0), p0", "add(p0,negate(foo)), p0", "negate(negate), p0", "negate(add, p0), p0", "(f32[2], p0), p0", "(p0), p0", "((f32[2]), p0", "f32[2]{0, p0", "f32[2]{0:, p0", "f32[2]{0:T(8), p0", "f32[2]{5,}, p0", "f32[2,], p0", "f32[,2], p0", "b(, p0", "b(f32[2], p0", "f32[2] ROOT, p0", "tuple(p0, p0 p0), p0", "tuple(p0, p0, p0), p0", "f32[], p0", "constant, p0", "parameter(0), p0", "f32[2] parameter(0), p0", "f32[2] parameter(1), p0", "f32[] parameter(), p0", "iota(), p0", "s32[4] iota(), p0", "f32[2] negate(p0){0}, p0", "negate(p0), metadata={}, p0", "negate(p0) p0"),
    )


def opcode_words_as_names() -> Iterator[Probe]:
    """A name that is an opcode word is looked up first; if that fails it is an opcode without operands."""
    row = "3.3:dropped slots"
    for name, body in (
        ("defined", "add = f32[2] negate(p0)\nROOT t = tuple(add, p0)"),
        ("defined-typed", "add = f32[2] negate(p0)\nROOT t = tuple(f32[2] add, p0)"),
        ("defined-other-shape", "add = f32[3] parameter(1)\nROOT t = tuple(f32[2] add)"),
        ("defined-and-nested", "add = f32[2] negate(p0)\nROOT t = tuple(add(p0, p0), p0)"),
        ("defined-other-shape-plain-name", "sum = f32[3] parameter(1)\nROOT t = tuple(f32[2] sum)"),
        ("defined-later", "ROOT t = tuple(add, p0)\nadd = f32[2] negate(p0)"),
        ("of-counted-opcode", "ROOT t = f32[2] add(multiply, p0, p0)"),
        ("of-counted-opcode-missing", "ROOT t = f32[2] add(multiply, p0)"),
    ):
        yield Probe(f"dropped/opcode-word/{name}", row, module(body, parameters=VECTOR))


def probes() -> Iterator[Probe]:
    yield from opcode_words_as_names()
    yield from definitions()
    yield from operands()
    yield from nested()
    yield from dropped_slots()
