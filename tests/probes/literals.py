"""Section 7: literals."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ACCEPT, REJECT, Probe, module, slug, table

A, R, OPEN = ACCEPT, REJECT, ""

SIGNED = {"s1": 1, "s2": 2, "s4": 4, "s8": 8, "s16": 16, "s32": 32, "s64": 64}
UNSIGNED = {"u1": 1, "u2": 2, "u4": 4, "u8": 8, "u16": 16, "u32": 32, "u64": 64}
FLOATS = {
    # largest finite value, a value that rounds to it, one that overflows
    "f16": ("65504", "65519", "65520"), "bf16": ("3.38953e38", "3.39e38", "3.4e38"), "f32": ("3.40282347e38", "3.4028235e38", "3.40282357e38"),
    "f64": ("1.7976931348623157e308", "1.79769313486231575e308", "1.8e308"), "f8e5m2": ("57344", "61439", "61440"), "f8e4m3": ("240", "247", "248"),
    "f8e3m4": ("15.5", "15.7", "15.75"), "f8e4m3fn": ("448", "463", "480"), "f8e4m3b11fnuz": ("30", "30.9", "31"), "f8e5m2fnuz": ("57344", "61439", "61440"),
    "f8e4m3fnuz": ("240", "247", "248"), "f8e8m0fnu": ("1.7014118346046923e38", "2e38", "2.6e38"), "f4e2m1fn": ("6", "6.9", "7"),
}
SPECIAL = ("inf", "-inf", "nan", "-nan", "nan(0x1)", "-0.0", "-1", "0", "0.1", "nan(0x0)", "1e-300", "1e400", "nan(0x7f)", "nan(0x3)")
PAYLOADS = {
    "bf16": (0x7F, 0x80), "f16": (0x3FF, 0x400), "f32": (0x7FFFFF, 0x800000), "f64": (2**52 - 1, 2**52),
    "f8e5m2": (0x3, 0x4), "f8e4m3": (0x7, 0x8), "f8e3m4": (0xF, 0x10),
}


def constant(shape: str, literal: str) -> str:
    return module(f"ROOT c = {shape} constant({literal})")


def ranges() -> Iterator[Probe]:
    row = "7:integer range"
    for word, bits in SIGNED.items():
        for value, expected in (
            (2 ** (bits - 1) - 1, A), (-(2 ** (bits - 1)), A), (2 ** (bits - 1), R if bits < 64 else A), (-(2 ** (bits - 1)) - 1, R), (2**bits - 1, OPEN),
        )[: 4 if bits == 1 else 5]:
            yield Probe(f"literals/range/{word}/{value}", row, constant(f"{word}[]", str(value)), expected)
    for word, bits in UNSIGNED.items():
        for value, expected in ((2**bits - 1, A), (2**bits, R), (-1, A if bits == 64 else OPEN), (0, A)):
            yield Probe(f"literals/range/{word}/{value}", row, constant(f"{word}[]", str(value)), expected)
    for word, values in FLOATS.items():
        for value, expected in zip(values, (A, A, R), strict=True):
            yield Probe(f"literals/float-range/{word}/{value}", "7:float range", constant(f"{word}[]", value), expected)
            yield Probe(f"literals/float-range/{word}/-{value}", "7:float range", constant(f"{word}[]", "-" + value), "" if word == "f8e8m0fnu" else expected)
        for value in SPECIAL:
            yield Probe(f"literals/special/{word}/{value}", "7:special floats", constant(f"{word}[]", value), "")
    for word, (largest, beyond) in PAYLOADS.items():
        for value, expected in ((largest, A), (beyond, R)):
            yield Probe(f"literals/nan-payload/{word}/{value:#x}", "7:NaN payload", constant(f"{word}[]", f"nan({value:#x})"), expected)
            yield Probe(f"literals/nan-payload/{word}/-{value:#x}", "7:NaN payload", constant(f"{word}[]", f"-nan({value:#x})"), expected)


SCALARS = {
    "pred": (("true", A), ("false", A), ("1", A), ("0", A), ("2", A), ("-1", OPEN), ("1.0", R), ("True", R), ("inf", R), ("{true}", R), ("18446744073709551615", OPEN), ("nan", R)),
    "s32": (("1", A), ("-1", A), ("1.0", R), ("1e3", R), ("true", OPEN), ("inf", R), ("nan", R), ("-inf", R), ("'1'", R), ("", R), ("{1}", R), ("(1)", R), ("1, 2", R), ("1,", OPEN), (",1", OPEN), ("...", R), ("{...}", R), ("x", R), ("(1, 2)", R), ("1 2", R), ("/*c*/1", A), ("s32[] 1", R), ("()", R), ("{}", R), (",", OPEN), (",,1,,", OPEN)),
    "f32": (("1", A), ("1.5", A), ("true", OPEN), ("false", OPEN), ("inf", A), ("{1}", R), ("(1, 2)", R), ("...", R), ("", R), ("1,", OPEN), ("99999999999999999999", OPEN), ("18446744073709551615", OPEN), ("0x1", R), ("f32[] 1", R), ("1_0", R), ("{...}", R), ("1.5 /*c*/", A)),
    "c64": (("(1, 2)", A), ("(1.5, -2)", A), ("(inf, nan)", A), ("( 1 , 2 )", A), ("(1 2)", OPEN), ("1", OPEN), ("(1)", OPEN), ("(1, 2, 3)", R), ("()", R), ("((1, 2))", R), ("(true, 1)", OPEN), ("(1e39, 0)", R), ("(0, 1e39)", R), ("(nan(0x1), 0)", OPEN), ("(0, nan(0x1))", OPEN), ("{1, 2}", R), ("(1, 2", R), ("1, 2", OPEN), ("(, 1, 2)", OPEN), ("(1, 2,)", OPEN), ("1 2", OPEN), ("(1,, 2)", OPEN)),
    "c128": (("(1, 2)", A), ("(1e308, -1e308)", A), ("(1.8e308, 0)", R), ("1", OPEN)),
    "token": (("0", OPEN), ("{}", OPEN), ("", OPEN)),
    "opaque": (("0", OPEN),),
}
VECTORS = {
    "s32[3]": (
        ("{1, 2, 3}", A), ("{1 2 3}", A), ("{1,2,3,}", A), ("{,1,,2,3}", A), ("{1,2}", R), ("{1,2,3,4}", R), ("{}", R), ("{ 1 , 2 , 3 }", A), ("1", A), ("1, 2, 3", OPEN), ("{{1,2,3}}", R), ("{1,{2},3}", R), ("{1,2,3", R), ("1,2,3}", R), ("(1,2,3)", R), ("[1,2,3]", R), ("{1;2;3}", R), ("{1.5,2,3}", R),
        ("{...}", A), ("{1, ...}", A), ("{1, 2, 3, ...}", OPEN), ("{1,2,3,4, ...}", R), ("{..., 3}", OPEN), ("...", R), ("{...", R), ("{... ...}", OPEN), ("{/*i0=0*/ 1, 2, 3}", A), ("s32[3] {1,2,3}", R), ("{1,2,3}}", R), ("{1,2,3} {1,2,3}", OPEN), ("{1,2,true}", OPEN), ("{x}", R), ("", R), ("{1,2,3} x", R), ("{1,2,3},", OPEN), (",{1,2,3}", OPEN), ("3}", R), ("{1,2,3...}", OPEN), ("1 2", OPEN), ("{", R), ("}", R),
    ),
    "f32[3]": (("{1, 2.5, -inf}", A), ("{nan, inf, 1e5}", A), ("{1e39, 0, 0}", R), ("{1,2,x}", R), ("{true,0,0}", OPEN)),
    "pred[3]": (("{1,0,1}", A), ("{true,false,true}", A), ("{true,0,2}", A), ("{...}", A), ("{1,0}", R), ("{1.0,0,1}", R)),
    "c64[2]": (("{(1,2), (3,4)}", A), ("{(1,2) (3,4)}", A), ("{1,2}", OPEN), ("{(1,2)}", R), ("{(1,2),(3,4),(5,6)}", R), ("{...}", A), ("{(1,2),(3)}", OPEN), ("{((1,2)),(3,4)}", R), ("{(1,2), ...}", A)),
    "f32[0]": (("{}", A), ("{ }", A), ("{1}", R), ("", OPEN), ("1", OPEN), ("{{}}", R), ("{...}", OPEN)),
    "f32[1]": (("{1}", A), ("1", A), ("{}", R), ("{{1}}", R), ("{...}", A)),
    "s32[<=3]": (("{1,2,3}", OPEN), ("{1,2}", OPEN)),
    "s32[?]": (("{1,2,3}", OPEN),),
    "s4[4]": (("{-8,7,0,1}", A), ("{8,0,0,0}", R)),
    "f32[3]{0}": (("{1,2,3}", A),),
    "f32[3]{0:T(128)S(1)}": (("{1,2,3}", A),),
}
MATRICES = {
    "s32[2,2]": (
        ("{{1,2},{3,4}}", A), ("{ { 1, 2 }, { 3, 4 } }", A), ("{{1,2}{3,4}}", A), ("{,{1,2},,{3,4,},}", A), ("{1,2,3,4}", R), ("{{1,2}}", R), ("{{1,2},{3}}", R), ("{{1,2},{3,4},{5,6}}", R), ("{{1,2,3},{4}}", R), ("{...}", A), ("{{1,2}, ...}", A), ("{{...},{...}}", R), ("{{1,...},{3,4}}", R), ("{{{1,2},{3,4}}}", R), ("1", A), ("{1}", OPEN), ("{}", R), ("{{},{}}", R), ("{{1,2},3}", R), ("{{1,2},{3,4}", R), ("{1, {2,3}}", R), ("{ {1,2}, {3,4} } ...", R), ("{...,{1,2}}", OPEN), ("{{1,2},{3,...}}", R),
    ),
    "s32[2,2]{0,1}": (("{{1,2},{3,4}}", A),),
    "f32[2,0]": (("{{},{}}", A), ("{ {}, {} }", A), ("{}", OPEN), ("{{}}", R), ("{...}", OPEN), ("{{},{},{}}", R)),
    "f32[0,3]": (("{}", A), ("{{}}", R), ("{{1,2,3}}", R)),
    "f32[0,0]": (("{}", A),),
    "s32[1,1]": (("{{1}}", A), ("{{ 1 }}", A), ("{1}", OPEN)),
    "s32[2,1,2]": (("{{{1,2}},{{3,4}}}", A), ("{{{1,2},{3,4}}}", R), ("{...}", A), ("{{{1,2}}, ...}", A)),
    "s32[1,1,1,2]": (("{ { /*i0=0*/ { /*i1=0*/ { 1, 2 } } } }", A), ("{{{{1,2}}}}", A), ("{{{{1,2}}}", R)),
    "c64[1,2]": (("{{(1,2),(3,4)}}", A), ("{{(1,2)}}", R)),
}
TUPLES = {
    "()": (("()", A), ("", OPEN), ("{}", R), ("(1)", OPEN), ("...", OPEN), ("( )", A)),
    "(s32[], f32[2])": (
        ("(1, {2, 3})", A), ("(1 {2, 3})", OPEN), ("( 1 , { 2, 3 } )", A), ("(1, {2, 3},)", OPEN), ("(1)", R), ("(1, {2}, 3)", R), ("{1, {2,3}}", R), ("(1, {...})", A), ("({...}, {2,3})", R), ("{...}", R), ("(...)", R), ("()", A), ("1, {2,3}", R), ("(1, {2, 3}", R), ("(s32[] 1, f32[2] {2, 3})", R), ("", R), ("(1, 2)", A), ("(1,, {2,3})", OPEN), ("(,1, {2,3})", OPEN), ("((1, {2,3}))", R), ("(1, {2, 3}, )", OPEN),
    ),
    "((s32[2], s32[2]), s32[])": (("(( {1, 2}, {3, 4} ), 3)", A), ("({1,2}, {3,4}, 3)", R), ("((), 3)", OPEN), ("(({1,2}), 3)", R)),
    "(c64[], s32[])": (("((1,2), 3)", A), ("(1, 2)", OPEN)),
    "(token[])": (("()", OPEN), ("(0)", OPEN), ("({})", OPEN)),
    "(s32[])": (("(1)", A), ("1", R), ("(1,)", OPEN), ("()", A)),
    "b(f32[2])": (("{1,2}", OPEN), ("(1,2)", OPEN)),
}


def no_shape() -> Iterator[Probe]:
    for value in ("1", "{1,2}", "s32[] 1", "f32[2]{0} {1,2}", "true"):
        yield Probe(f"literals/no-result-shape/{slug(value)}", "7:shape", module(f"ROOT c = constant({value})"), R)
    for shape, value, expected in (
        ("f32[3]", "{1,2}", R), ("f32", "1", R), ("f32[-1]", "{}", R), ("f32[2]{1}", "{1,2}", OPEN), ("f32[2]{0:E(4)}", "{1,2}", OPEN), ("s4[2]{0:E(4)}", "{1,2}", A), ("f32[2,2]{0,0}", "{{1,2},{3,4}}", OPEN), ("f32[2,2]{5,1}", "{{1,2},{3,4}}", OPEN),
    ):
        yield Probe(f"literals/shape/{slug(shape)}/{slug(value)}", "7:shape", constant(shape, value), expected)


def probes() -> Iterator[Probe]:
    yield from ranges()
    for word, rows in SCALARS.items():
        for value, expected in rows:
            yield Probe(f"literals/scalar/{word}/{slug(value) or 'empty'}", "7:scalars", constant(f"{word}[]", value), expected)
    for row, groups in (("7:rank 1", VECTORS), ("7:rank 2 and more", MATRICES), ("7:tuples", TUPLES)):
        for shape, rows in groups.items():
            for value, expected in rows:
                yield Probe(f"literals/{row[2:].split()[0]}/{slug(shape)}/{slug(value) or 'empty'}", row, constant(shape, value), expected)
    yield from no_shape()
    yield from table(
        "literals/operand-list", "7:shape", lambda text: module(f"ROOT c = f32[] {text}"),
        ("constant(1)", "constant (1)", "constant( 1 )"), ("constant", "constant()", "constant(1", "constant 1", "constant{1}", "constant(1)(2)", "constant(1), 2"),
    )
