"""Section 1: white space, comments, names, numbers, strings, dictionaries."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ACCEPT, REJECT, Probe, module, slug, table

PRIMITIVES = (
    "pred s1 s2 s4 s8 s16 s32 s64 u1 u2 u4 u8 u16 u32 u64 f16 bf16 f32 f64 f8e5m2 f8e4m3 f8e3m4 "
    "f8e4m3fn f8e4m3b11fnuz f8e5m2fnuz f8e4m3fnuz f8e8m0fnu f4e2m1fn f6e3m2fn f6e2m3fn c64 c128 token opaque"
).split()
KEYWORDS = (
    "true false inf nan HloModule ENTRY ROOT FileLocations FileNames FunctionNames StackFrames maximal "
    "replicated manual last_tile_dim_replicate shard_as shard_like unknown unreduced"
).split()
PLAIN_WORDS = (
    "tuple buffer b add constant parameter sharding metadata True INF hlomodule Root T S E D max "
    "mesh dimensions f i32 F32 pred_ execution_thread x- x. x.-y a-b.c- _ _x __xla_x A9"
).split()


def whitespace() -> Iterator[Probe]:
    """1.1"""
    base = "HloModule m\nENTRY e {¤ROOT p¤=¤f32[]¤parameter(¤0¤)¤}¤"
    for name, value in (
        ("space", " "), ("tab", "\t"), ("newline", "\n"), ("carriage-return", "\r"), ("crlf", "\r\n"),
        ("comment", " /*c*/ "), ("line-comment", " // c\n"), ("line-comment-cr", " // c\r"),
        ("comment-glued-right", " /*c*/"), ("comment-multi-line", " /* a\n b */ "),
        ("comment-with-stars", " /***/ "), ("comment-with-quote", ' /* " */ '),
        ("comment-with-brace", " /* } */ "), ("comment-non-ascii", " /* é */ "),
        ("line-comment-with-block-end", " // */\n"), ("empty-line-comment", " //\n"),
        ("comment-with-line-comment", " /* // */ "), ("line-comment-with-block-start", " // /*\n"),
    ):
        yield Probe(f"whitespace/{name}", "1.1:whitespace and comments", base.replace("¤", value), ACCEPT)
    for name, value in (
        ("form-feed", "\f"), ("vertical-tab", "\v"), ("no-break-space", "\u00a0"), ("byte-order-mark", "\ufeff"),
        ("nul", "\0"), ("lone-slash", " / "), ("hash-comment", " # c\n"), ("unclosed-comment", " /* c "),
        ("nested-comment", " /* a /* b */ c */ "), ("slash-space-star", " / * c */ "), ("semicolon", ";"),
        ("at", " @ "), ("backslash", " \\ "), ("delete", "\x7f"),
    ):
        text = base.replace("¤", " ", 3).replace("¤", value, 1).replace("¤", " ")
        yield Probe(f"whitespace/{name}", "1.1:whitespace and comments", text, REJECT)
    plain = module("ROOT p = f32[] parameter(0)")
    for name, text, expected in (
        ("leading-newlines", "\n\n" + plain, ACCEPT), ("leading-comment", "// c\n" + plain, ACCEPT),
        ("leading-bom", "\ufeff" + plain, REJECT), ("trailing-comment", plain + "// end", ACCEPT),
        ("trailing-block-comment", plain + "/* end */", ACCEPT), ("trailing-unclosed-comment", plain + "/* end", REJECT),
        ("trailing-word", plain + "end", REJECT), ("trailing-nul", plain + "\0", REJECT),
        ("trailing-brace", plain + "}", REJECT), ("no-final-newline", plain.rstrip(), ACCEPT),
        ("one-line", " ".join(plain.split()), ACCEPT), ("empty", "", REJECT), ("only-spaces", " \n", REJECT),
        ("only-comment", "/* c */", REJECT), ("comment-glued-to-name", plain.replace("p =", "p/*c*/="), ACCEPT),
        ("comment-inside-name", plain.replace("parameter", "para/*c*/meter"), REJECT),
        ("comment-before-equals", plain.replace("p = ", "p /*c*/=/*c*/"), ACCEPT),
    ):
        yield Probe(f"whitespace/{name}", "1.1:whitespace and comments", text, expected)
    five = module(
        "ROOT t = (f32[], f32[], f32[], f32[], f32[], /*index=5*/f32[]) tuple(p0, p0, p0, p0, p0, /*index=5*/p0)",
        parameters=["f32[]"],
    )
    yield Probe("comments/index", "1.1:index comments", five, ACCEPT)
    yield Probe("comments/after-brace", "1.1:index comments", plain.rstrip() + " // e\n", ACCEPT)


def names() -> Iterator[Probe]:
    """1.2, identifiers"""
    def defined(name: str) -> str:
        return module(f"{name} = f32[2] parameter(0)\nROOT r = f32[2] negate({name})")

    for word in PLAIN_WORDS:
        yield Probe(f"names/bare/{slug(word)}", "1.2:identifiers", defined(word), ACCEPT)
        yield Probe(f"names/percent/{slug(word)}", "1.2:identifiers", defined("%" + word), ACCEPT)
    for word in KEYWORDS:
        yield Probe(f"names/bare-keyword/{word}", "1.2:keywords", defined(word), REJECT)
        yield Probe(f"names/percent-keyword/{word}", "1.2:keywords", defined("%" + word), ACCEPT)
    for word in PRIMITIVES:
        yield Probe(f"names/bare-type/{word}", "1.2:type words as names", defined(word), REJECT)
    for word in ("f32", "pred", "token", "opaque", "s4", "f8e4m3fn"):
        yield Probe(f"names/percent-type/{word}", "1.2:sanitised names", defined("%" + word), REJECT)
    yield from table(
        "names/wrong", "1.2:identifiers", defined, (),
        ("1x", "%1", '%"foo"', "% foo", "%", "a$b", "a/b", "a<b", "-x", ".x", "x@y", "%%x", "x:y", "é", "x'"),
    )
    for word in ("__x", "%__x", "__", "%__foo.1"):
        yield Probe(f"names/underscores/{slug(word)}", "1.2:sanitised names", defined(word), REJECT)
    yield from table(
        "names/definition", "1.2:name and attribute tokens",
        lambda text: module(text),
        (
            "ROOT %x=f32[] parameter(0)", "ROOT x =f32[] parameter(0)", "ROOT x: = f32[] parameter(0)",
            "ROOT %x = f32[] parameter(0)", "ROOT x:= f32[] parameter(0)",
            "%x = f32[] parameter(0) ROOT y = f32[] negate(x)", "x = f32[] parameter(0) ROOT y = f32[] negate(%x)",
            "x = f32[] parameter(0) ROOT y = f32[] negate(x:)",
        ),
        (
            "ROOT x=f32[] parameter(0)", "ROOT x : = f32[] parameter(0)", "ROOT = f32[] parameter(0)",
            "ROOT x f32[] parameter(0)", "ROOT x == f32[] parameter(0)", "ROOT 'x' = f32[] parameter(0)",
            "ROOT bf_io->bf = f32[] parameter(0)", "x-> = f32[] parameter(0)", "0_0-> = f32[] parameter(0)", "ROOT %x: = f32[] parameter(0)",
        ),
    )
    yield from table(
        "names/attribute-equals", "1.2:name and attribute tokens",
        lambda text: module(f"ROOT r = f32[3,2] transpose(p0), {text}", parameters=["f32[2,3]"]),
        ("dimensions={1,0}", "dimensions= {1,0}", "dimensions=\n{1,0}", "dimensions=/*c*/{1,0}"),
        ("dimensions ={1,0}", "dimensions = {1,0}", "%dimensions={1,0}", "dimensions:{1,0}", "dimensions{1,0}", "dimensions==", "'dimensions'={1,0}"),
    )
    yield from table(
        "names/header", "1.2:name and attribute tokens",
        lambda text: f"HloModule {text}\n\nENTRY e {{\n  ROOT p = f32[] parameter(0)\n}}\n",
        ("m", "m:", "%m", "a-b.c", "tuple", "%f32", "__m", "%true", "b", "m.1:", "bf_"),
        ("", "f32", "true", "ENTRY", "m m", "'m'", "1", "m=", "m :", "nan", "inf", "a/b", "%"),
    )


def numbers() -> Iterator[Probe]:
    """1.2, numbers, seen through constants and integer attributes"""
    def float_constant(text: str) -> str:
        return module(f"ROOT c = f32[] constant({text})")

    def int_constant(text: str) -> str:
        return module(f"ROOT c = s64[] constant({text})")

    def index(text: str) -> str:
        return module(f"ROOT g = f32[] get-tuple-element(p0), index={text}", parameters=["(f32[], f32[])"])

    yield from table(
        "numbers/float", "1.2:float", float_constant,
        ("1", "-1", "1.", "-1.", "1.5", "-.5", "1e5", "1E5", "1e+5", "1e-5", "-1.5e-3", "1.e5", "0.0", "-0", "-0.0", "00.5", "007", "-.5e1", "inf", "-inf", "nan", "-nan", "nan(0x1)", "-nan(0x1)", "nan(0xAbC)", "1e-50", "1e-400"),
        (".5", "+1", "0x1p3", "1f", "1e", "1e+", "--1", "1.2.3", "1_0", "0x10", "- 1", "-inf(0x1)", "+inf", "infinity", "NaN", "Inf", "nan (0x1)", "nan(1)", "nan(0x)", "nan( 0x1)", "1,5,", "-", "1 2", "-true", "e5", "1.5.", "1d5", ".5e1", "?", "..."),
    )
    yield from table(
        "numbers/int", "1.2:int", int_constant,
        ("0", "-0", "007", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551615"),
        ("18446744073709551616", "-9223372036854775809", "1.0", "1e3", "0x10", "+1", "1_0", "1x2", "99999999999999999999999", "inf", "nan", "'1'"),
    )
    yield from table(
        "numbers/index", "1.2:int", index, ("0", "1", "01", "-0"),
        ("1_0", "1x1", "0.", "1e0", "'0'", "{0}", "true", "x", "-", "18446744073709551616", "0 0", "0x0", "+0"),
    )


def strings() -> Iterator[Probe]:
    """1.2, strings"""
    def backend_config(text: str) -> str:
        return module(f"ROOT r = f32[] negate(p0), backend_config={text}", parameters=["f32[]"])

    yield from table(
        "strings/escape", "1.2:strings", lambda text: backend_config(f'"{text}"'),
        ("", "a", r"\a\b\f\n\r\t\v", r"\\", r"\?", r"\'", r"\"", r"\0", r"\12", r"\101", r"\1011", r"\377", r"\x41", r"\x4", r"\xff", r"\x0041", r"\u0041", r"\u00e9", r"\U0001F600", "a\nb", "a\tb", "é", "//", "/* */", "a'b", "{", r"\000", "a\rb", r"\uFFFF", r"\U0010FFFF"),
        (r"\q", r"\e", r"\/", r"\8", r"\9", r"\400", r"\777", r"\x41b", r"\x", r"\xg", r"\u41", r"\u", r"\ud800", r"\U41", r"\U00110000", r"\ ", "\\\n", r"\z", r"\N"),
    )
    yield from table(
        "strings/quoting", "1.2:strings", backend_config,
        ("'a'", "''", "'a\"b'", '"a\\"b"', "'a\\'b'", '"a" /*c*/', "'\\101'", "'{'"),
        ('"a', "'a", "\"a'", "a", '"a""b"', '"a" "b"', "`a`", '"a\\"', "1", "true", "(a)", "[a]", "", '"a"b'),
    )
    yield Probe("strings/nul-inside", "1.2:strings", backend_config('"a\0b"'), "")
    yield Probe("strings/long", "1.2:strings", backend_config('"' + "x" * 3000 + '"'), ACCEPT)


def dictionaries() -> Iterator[Probe]:
    """1.2, unquoted dictionaries"""
    def backend_config(text: str) -> str:
        return module(f"ROOT r = f32[] negate(p0), backend_config={text}", parameters=["f32[]"])

    yield from table(
        "dictionaries/backend-config", "1.2:dictionaries", backend_config,
        ("{}", '{"a":1}', '{"a":{"b":"}"}}', "{a}", "{mesh = #sdy.mesh<[\"fsdp\"=2]>}", "{n = 1 : i32, tensor = dense<1> : tensor<i32>}", '{"a":"\\"}"}', "{ /* } */ }".replace("}", "", 1), "{@$!^&;|}", "{\n}", "{'a'}", "{{}{}}", "{é}", '{"a\\\\"}', "{,}", "{a:b}"),
        ("{", "{{}", "{}}", "{ // }\n}", '{"a}', "{'}'}", "{} {}", "{ /* } */ }", '{"a":"\\"}', "{};", "{}x"),
    )
    yield from table(
        "dictionaries/frontend", "1.2:dictionaries",
        lambda text: module(f"ROOT r = f32[] negate(p0), frontend_attributes={{a={text}}}", parameters=["f32[]"]),
        ("{}", '{"x":"}"}', "{<@#$>}", '"s"', "'s'", "{ {} }"), ("{", "x", "1", "true", "[]", "()", "", "{}{}"),
    )


def punctuation() -> Iterator[Probe]:
    """1.2, tokens that stand for nothing"""
    yield from table(
        "punctuation/stray", "1.2:punctuation",
        lambda text: module(f"ROOT r = f32[] negate(p0) {text}", parameters=["f32[]"]), (),
        ("$", "@", "!", "&", "|", "^", ";", ".", "..", "...", "<", ">", "<=", "->", "*", "+", "~", "?", "#", "=", ":", "(", ")", "[", "]", "{", ",", "0", "'s'", "true", "f32", "-", "\\", "`"),
    )


def probes() -> Iterator[Probe]:
    yield from whitespace()
    yield from names()
    yield from numbers()
    yield from strings()
    yield from dictionaries()
    yield from punctuation()
