"""Sections 3.1 and 3.2: which entry rule, computations, entry and root."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ACCEPT, REJECT, Probe, table

HEAD = "HloModule m\n\n"
PARAMETER = "p = f32[2] parameter(0)"
CALLEE = "c {\n  x = f32[2] parameter(0)\n  ROOT n = f32[2] negate(x)\n}\n\n"
CALL = "ENTRY e {\n  p = f32[2] parameter(0)\n  ROOT r = f32[2] call(p), to_apply=c\n}\n"


def entry_rules() -> Iterator[tuple[str, str, str]]:
    """3.1"""
    for name, text, expected in (
        ("entry-first", f"ENTRY e {{ {PARAMETER} }}", ACCEPT),
        ("entry-with-signature", f"ENTRY e (p: f32[2]) -> f32[2] {{ {PARAMETER} }}", ACCEPT),
        ("entry-percent", f"ENTRY %e {{ {PARAMETER} }}", ACCEPT),
        ("entry-without-name", f"ENTRY {{ {PARAMETER} }}", REJECT),
        ("name-and-brace", f"e {{ {PARAMETER} }}", ACCEPT),
        ("percent-name-and-brace", f"%e {{ {PARAMETER} }}", ACCEPT),
        ("name-and-signature", f"e (p: f32[2]) -> f32[2] {{ {PARAMETER} }}", REJECT),
        ("percent-name-and-signature", f"%e (p: f32[2]) -> f32[2] {{ {PARAMETER} }}", REJECT),
        ("two-computations", CALLEE + CALL, ACCEPT),
        ("signature-on-second", CALLEE + CALL.replace("ENTRY e", "ENTRY e (p: f32[2]) -> f32[2]"), ACCEPT),
        ("signature-on-both", CALLEE.replace("c {", "c (x: f32[2]) -> f32[2] {") + CALL, REJECT),
        ("no-entry-last-wins", CALLEE + CALL.replace("ENTRY ", ""), ACCEPT),
        ("name-colon-brace", f"e: {{ {PARAMETER} }}", ""),
        ("execution-thread", f'ENTRY e {{ {PARAMETER} }}, execution_thread="t"', ACCEPT),
        ("only-braces", f"{{ {PARAMETER} }}", REJECT),
        ("header-only-comma", f"HloModule m, ENTRY e {{ {PARAMETER} }}", REJECT),
    ):
        yield f"headerless/{name}", text, expected


SINGLE_OK = (
    "f32[2] add(f32[2] a, f32[2] b)", "r = f32[2] add(f32[2] a, f32[2] b)", "ROOT r = f32[2] add(f32[2] a, f32[2] b)",
    "%r = f32[2]{0} add(f32[2]{0} %a, f32[2]{0} %b)", "f32[2] add(f32[2], f32[2])", "f32[2] add(f32[2] a, f32[2] a)",
    "f32[2] negate(f32[2] add(f32[2] a, f32[2] b))", "f32[2] negate(f32[2] a), metadata={op_name=\"x\"}",
    "f32[] constant(1)", "c = f32[2] constant({1, 2})", "f32[2] parameter(0)", "(f32[2], f32[2]) tuple(f32[2] a, f32[2] b)",
    "f32[2] negate(f32[2] a) // c", "f32[2] call(f32[2] a), to_apply={ x = f32[2] parameter(0) ROOT n = f32[2] negate(x) }",
    "s32[4] iota(), iota_dimension=0", "f32[2] negate(f32[2] a)\n\n", "r = negate(f32[2] a)", "r = add(f32[2] a, f32[2] b)",
    "f32[2] add(f32[2], f32[2] b)", "f32[] negate(f32[] x.1)", "f32[2] custom-call(f32[2] a), custom_call_target=\"t\"",
    "b = f32[2] negate(f32[2] a)", "r = (f32[2]) tuple(f32[2] a)", "f32[2] get-tuple-element((f32[2], f32[]) t), index=0",
)
SINGLE_WRONG = (
    "f32[2] add(a, b)", "add(f32[2] a, f32[2] b)", "f32[2] add(f32[2] a, f32[2] b) x", "f32[2] add(f32[2] a, f32[2] b),",
    "f32[2] add(f32[2] a, f32[3] a)", "f32[2]", "r", "r =", "r = f32[2]", "f32[2] negate(f32[2] a) f32[2] negate(f32[2] b)",
    "f32[2] call(f32[2] a), to_apply=c", "f32[2] negate(f32[2] a) }", "{", "(", "=", "f32[2] negate(negate)", "ENTRY",
    "ENTRY f32[2] negate(f32[2] a)", "ROOT f32[2] negate(f32[2] a)", "x = y", "HloModule", "text", "1", "f32[2] negate(a f32[2])",
)


def single_instructions() -> Iterator[Probe]:
    row = "3.1:single instruction"
    yield from table("single", row, lambda text: text, SINGLE_OK, SINGLE_WRONG)


SIGNATURE_OK = (
    "", "()->f32[2]", "(p: f32[2]) -> f32[2]", "(p:f32[2])->f32[2]", "(p: f32[2]{0}) -> f32[2]{0}", "(q: s32[]) -> f32[2]",
    "(a: f32[2], b: f32[3]) -> f32[2]", "(p: (f32[2], s32[])) -> f32[2]", "(p.1: f32[2]) -> f32[2]{0:T(128)}",
    "(p: f32[2],\n /*index=5*/q: s32[]) -> f32[2]", "(p: f32[2], p: f32[2]) -> f32[2]", "( p: f32[2] ) -> f32[2]", "(a-b.c: f32[2]) -> f32[2]",
    "(true: f32[2]) -> f32[2]", "(f32: f32[2]) -> f32[2]", "(p: f32[?]) -> f32[2]", "(p: token[]) -> f32[2]", "(p: b(f32[2])) -> f32[2]",
)
SIGNATURE_WRONG = (
    "(p: f32[2]) -> f32[3]", "(p: f32[2]) -> s32[2]", "(p: f32[2]) -> (f32[2])", "(p: f32[2]) -> ()", "(p: f32[2])",
    "-> f32[2]", "(%p: f32[2]) -> f32[2]", "(p : f32[2]) -> f32[2]", "(f32[2]) -> f32[2]",
    "(p: f32[2],) -> f32[2]", "(p: f32[2] q: f32[2]) -> f32[2]", "(p: f32[2]) - > f32[2]", "(p: f32[2]) f32[2]",
    "(p: foo[2]) -> f32[2]", "(p: f32[2]) -> foo", "((unknown): f32[2]) -> f32[2]", "(p:) -> f32[2]", "(p: f32[2] -> f32[2]",
    "(,) -> f32[2]", "(p: f32) -> f32[2]", "(p: f32[2]) -> f32[2], f32[2]", "() -> f32[<=2]x",
)


def signatures() -> Iterator[Probe]:
    row = "3.2:signature"

    def text(signature: str) -> str:
        return f"{HEAD}ENTRY e {signature} {{\n  {PARAMETER}\n  ROOT n = f32[2] negate(p)\n}}\n"

    yield from table("signature", row, text, SIGNATURE_OK, SIGNATURE_WRONG, ("(p f32[2]) -> f32[2]", "(%p f32[2]) -> f32[2]", "(p: f32[2]) -> f32[<=2]", "(p: f32[2]) -> f32[?]"))
    tuple_root = f"{HEAD}ENTRY e (p: f32[2]) -> RESULT {{\n  {PARAMETER}\n  ROOT t = (f32[2], f32[2]) tuple(p, p)\n}}\n"
    yield from table(
        "signature/tuple-result", row, lambda shape: tuple_root.replace("RESULT", shape),
        ("(f32[2], f32[2])", "(f32[2]{0}, /*index=5*/f32[2])"),
        ("(f32[2])", "(f32[2], f32[3])", "(f32[2], (f32[2]))", "f32[2]", "(f32[2], f32[2],)", "(f32[2] f32[2])"),
    )
    for name, text_, expected in (
        ("layout-or-body", "ENTRY e (p: f32[2]) -> f32[2] { p = f32[2] parameter(0) }", ACCEPT),
        ("layout-then-body", "ENTRY e (p: f32[2]) -> f32[2]{0} { p = f32[2] parameter(0) }", ACCEPT),
        ("empty-layout-then-body", "ENTRY e (p: f32[2]) -> f32[2]{} { p = f32[2] parameter(0) }", REJECT),
        ("glued-body", "ENTRY e (p: f32[2])->f32[2]{ p = f32[2] parameter(0)}", ACCEPT),
        ("scalar-layout-items", "ENTRY e (p: f32[]) -> f32[]{:T(128)} { p = f32[] parameter(0) }", ACCEPT),
        ("body-after-newline", "ENTRY e (p: f32[2]) -> f32[2]\n{\n p = f32[2] parameter(0) }", ACCEPT),
        ("dims-in-name", "ENTRY e(p: f32[2]) -> f32[2] { p = f32[2] parameter(0) }", ACCEPT),
    ):
        yield Probe(f"signature/{name}", row, HEAD + text_, expected)


def computations() -> Iterator[tuple[str, str, str, str]]:
    """3.2: what follows, which is the entry, which the root"""
    unused = "u {\n  ROOT z = s32[] constant(0)\n}\n\n"
    two = CALLEE + CALL
    entry = "3.2:entry"
    yield "entry/marked-last", two, ACCEPT, entry
    yield "entry/marked-first", unused.replace("u {", "ENTRY a {") + CALLEE, ACCEPT, entry
    yield "entry/marked-in-middle", CALLEE + CALL + "\n" + unused, ACCEPT, entry
    yield "entry/none-marked", CALLEE + CALL.replace("ENTRY ", ""), ACCEPT, entry
    yield "entry/none-marked-first-used-last", CALLEE + CALL.replace("ENTRY ", "") + "\n" + unused, ACCEPT, entry
    yield "entry/two", CALLEE.replace("c {", "ENTRY c {") + CALL, REJECT, entry
    yield "entry/twice-word", CALL.replace("ENTRY e", "ENTRY ENTRY e").replace("to_apply=c", "to_apply=c"), REJECT, entry
    yield "entry/lower-case", two.replace("ENTRY", "entry"), REJECT, entry
    yield "entry/is-called", CALLEE.replace("c {", "ENTRY c {") + CALL.replace("ENTRY ", ""), "", entry
    yield "computations/unused", unused + two, ACCEPT, "3.2:computations"
    yield "computations/none", "", REJECT, "3.2:computations"
    yield "computations/empty-body", "ENTRY e {\n}\n", REJECT, "3.2:computations"
    yield "computations/empty-body-of-callee", "c {\n}\n\n" + CALL, REJECT, "3.2:computations"
    yield "computations/unclosed", "ENTRY e {\n  ROOT p = f32[2] parameter(0)\n", REJECT, "3.2:computations"
    yield "computations/no-brace", "ENTRY e\n  ROOT p = f32[2] parameter(0)\n", REJECT, "3.2:computations"
    yield "computations/comma-between", CALLEE.rstrip() + ",\n" + CALL, REJECT, "3.2:computations"
    yield "computations/semicolon-between", CALLEE.rstrip() + ";\n" + CALL, REJECT, "3.2:computations"
    yield "computations/comment-name-after-brace", CALLEE.rstrip() + " // c\n\n" + CALL, ACCEPT, "3.2:computations"
    yield "computations/glued", CALLEE.rstrip() + CALL, ACCEPT, "3.2:computations"
    yield "computations/several-instructions-per-line", two.replace("\n", " "), ACCEPT, "3.2:computations"
    yield "computations/comma-between-instructions", CALL.replace("parameter(0)\n", "parameter(0),\n").replace(", to_apply=c", "").replace("call", "negate"), REJECT, "3.2:computations"
    yield "computations/semicolon-between-instructions", CALL.replace("parameter(0)\n", "parameter(0);\n").replace(", to_apply=c", "").replace("call", "negate"), REJECT, "3.2:computations"
    yield "computations/nested-definition", CALL.replace("  ROOT", CALLEE + "  ROOT"), REJECT, "3.2:computations"
    for name, value, expected in (
        ("double-quotes", '"host"', ACCEPT), ("single-quotes", "'host'", ACCEPT), ("main", '"main"', ACCEPT),
        ("empty", '""', ACCEPT), ("word", "host", REJECT), ("number", "1", REJECT), ("nothing", "", REJECT),
    ):
        text = CALLEE.rstrip() + f", execution_thread={value}\n\n" + CALL
        yield f"execution-thread/{name}", text, expected, "3.2:execution_thread"
    for name, tail, expected in (
        ("no-comma", ' execution_thread="a"', REJECT), ("twice", ', execution_thread="a", execution_thread="a"', REJECT),
        ("unknown-attribute", ", foo=1", REJECT), ("metadata", ', metadata={op_name="x"}', REJECT), ("comma-only", ",", REJECT),
        ("on-next-line", '\n,\nexecution_thread="a"', ACCEPT), ("space-before-equals", ', execution_thread ="a"', REJECT),
    ):
        yield f"execution-thread/{name}", CALLEE.rstrip() + tail + "\n\n" + CALL, expected, "3.2:execution_thread"
    body = "ENTRY e {\n  %sp = f32[2] parameter(0)\n  %sa = f32[2] negate(p)\n  %sb = f32[2] abs(a)\n}\n"
    for name, marks, expected in (
        ("first", ("ROOT ", "", ""), ACCEPT), ("middle", ("", "ROOT ", ""), ACCEPT), ("last", ("", "", "ROOT "), ACCEPT),
        ("missing", ("", "", ""), ACCEPT), ("two", ("ROOT ", "", "ROOT "), REJECT), ("twice-word", ("", "", "ROOT ROOT "), REJECT),
        ("lower-case", ("", "", "root "), REJECT), ("percent", ("", "", "%ROOT "), REJECT), ("colon", ("", "", "ROOT: "), REJECT),
        ("comment-after", ("", "", "ROOT/*c*/"), ACCEPT), ("own-line", ("", "", "ROOT\n"), ACCEPT),
    ):
        yield f"root/{name}", body % marks, expected, "3.2:root"
    yield "root/alone-at-end", body.replace("}", "ROOT b\n}") % ("", "", ""), REJECT, "3.2:root"


INLINE = "{ x = f32[2] parameter(0) ROOT n = f32[2] negate(x) }"


def inline_computations() -> Iterator[tuple[str, str, str]]:
    call = "ENTRY e {\n  p = f32[2] parameter(0)\n  ROOT r = f32[2] call(p), to_apply=BODY\n}\n"
    for name, value, expected in (
        ("plain", INLINE, ACCEPT), ("over-lines", INLINE.replace("{ ", "\n{\n").replace(" ROOT", "\n ROOT").replace(" }", "\n}"), ACCEPT),
        ("same-names-inside", INLINE.replace("x", "p").replace("n =", "r ="), ACCEPT), ("outer-name-invisible", "{ ROOT n = f32[2] negate(p) }", REJECT),
        ("empty", "{}", REJECT), ("named", "c " + INLINE, REJECT), ("signature", "(x: f32[2]) -> f32[2] " + INLINE, REJECT),
        ("no-root", INLINE.replace("ROOT ", ""), ACCEPT), ("then-attribute", INLINE + ', metadata={op_name="a"}', ACCEPT),
        ("nested", "{ x = f32[2] parameter(0) ROOT n = f32[2] call(x), to_apply=" + INLINE + " }", ACCEPT),
        ("unclosed", INLINE[:-1], REJECT), ("execution-thread", INLINE + ', execution_thread="a"', REJECT), ("parentheses", "(" + INLINE[1:-1] + ")", REJECT),
    ):
        yield f"inline/{name}", call.replace("BODY", value), expected
    yield "inline/refers-to-named-computation", CALLEE + call.replace("BODY", "{ x = f32[2] parameter(0) ROOT n = f32[2] call(x), to_apply=c }"), ACCEPT
    conditional = (
        "ENTRY e {\n  i = s32[] parameter(0)\n  p = f32[2] parameter(1)\n"
        "  ROOT r = f32[2] conditional(i, p, p), branch_computations={LIST}\n}\n"
    )
    for name, value, expected in (
        ("list-of-inline", f"{INLINE}, {INLINE}", ACCEPT), ("list-mixed", f"c, {INLINE}", ACCEPT), ("list-named", "c, c", ACCEPT),
        ("list-percent", "%c, %c", ACCEPT), ("list-no-comma", f"{INLINE} {INLINE}", REJECT), ("list-trailing-comma", f"c, {INLINE},", REJECT),
    ):
        yield f"inline/{name}", CALLEE + conditional.replace("LIST", value), expected
    yield "inline/while-both", (
        "ENTRY e {\n  p = f32[2] parameter(0)\n  ROOT w = f32[2] while(p), condition={ x = f32[2] parameter(0) "
        f"ROOT t = pred[] constant(true) }}, body={INLINE}\n}}\n"
    ), ACCEPT
    yield "inline/fusion", f"ENTRY e {{\n  p = f32[2] parameter(0)\n  ROOT f = f32[2] fusion(p), kind=kLoop, calls=\n{INLINE}\n}}\n", ACCEPT


def probes() -> Iterator[Probe]:
    for name, text, expected in entry_rules():
        yield Probe(name, "3.1:headerless", text, expected)
    yield from single_instructions()
    yield from signatures()
    for name, text, expected, row in computations():
        yield Probe(name, row, HEAD + text, expected)
    for name, text, expected in inline_computations():
        yield Probe(name, "3.3:inline computations", HEAD + text, expected)
