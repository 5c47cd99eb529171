"""Section 5: asynchronous operations, plain and with sugar."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ADD, Probe, module, slug
from .opcode_table import CALLEE, Minimal, minimal_instructions

A, R, OPEN = "accept", "reject", ""
SHAPE = "((f32[2]), f32[2], u32[])"
NATIVE = ("all-gather", "all-reduce", "collective-permute", "copy", "recv", "send")
ALREADY = ("async-start", "async-update", "async-done", "all-gather-start", "all-gather-done", "all-reduce-start", "all-reduce-done", "collective-permute-start", "collective-permute-done", "copy-start", "copy-done", "send-done", "recv-done")


def stems(op: Minimal) -> Iterator[tuple[str, str, str]]:
    """start, update, done of one stem; then parts of the chain."""
    inside = ", ".join(op.operands)
    shape = f"(({inside}), {op.shape}, u32[])"
    tail = "".join(f", {name}={value}" for name, value in op.required.items())
    operands = op.payload if op.payload is not None else ", ".join(op.operand_names())
    start = f"s = {shape} {op.opcode}-start({operands}){tail}"

    def text(*lines: str) -> str:
        return module("\n".join(lines), computations=op.computations, parameters=op.operands)

    expected = OPEN if op.payload is not None or op.setup else A
    if op.opcode in NATIVE:
        expected = OPEN
    yield "start-done", text(start, f"ROOT d = {op.shape} {op.opcode}-done(s)"), expected
    update = f"u = {shape} {op.opcode}-update(s)"
    yield "start-update-done", text(start, update, f"ROOT d = {op.shape} {op.opcode}-done(u)"), expected
    if tail and op.opcode not in NATIVE:
        yield "start-without-attributes", text(start.removesuffix(tail), f"ROOT d = {op.shape} {op.opcode}-done(s)"), OPEN
        yield "done-with-attributes", text(start, f"ROOT d = {op.shape} {op.opcode}-done(s){tail}"), R


def details() -> Iterator[tuple[str, str, str]]:
    start = f"s = {SHAPE} negate-start(p0)"
    done = "ROOT d = f32[2] negate-done(s)"
    update = f"u = {SHAPE} negate-update(s)"
    thread = ', async_execution_thread="t"'
    for name, lines, expected in (
        ("thread-on-all", (start + thread, update + thread, done.replace("(s)", "(u)") + thread), A), ("thread-on-start-only", (start + thread, done), OPEN), ("thread-on-done-only", (start, done + thread), R), ("thread-differs", (start + thread, done + thread.replace('"t"', '"u"')), R),
        ("thread-on-start-and-update", (start + thread, update + thread, done.replace("(s)", "(u)")), OPEN), ("main-on-done", (start, done + thread.replace('"t"', '"main"')), A), ("thread-word", (start + thread.replace('"t"', "t"), done), R),
        ("aliasing-on-start", (start + ", output_to_operand_aliasing={{}: (0, {})}", done), OPEN), ("aliasing-on-update", (start, update + ", output_to_operand_aliasing={{}: (0, {})}", done.replace("(s)", "(u)")), OPEN), ("aliasing-on-done", (start, done + ", output_to_operand_aliasing={{}: (0, {})}"), R),
        ("metadata-on-all", (start + ', metadata={op_name="a"}', done + ', metadata={op_name="b"}'), A), ("backend-config-on-start", (start + ', backend_config="c"', done), A), ("sharding-on-start", (start + ", sharding={replicated}", done), OPEN), ("frontend-on-start", (start + ', frontend_attributes={a="b"}', done), A),
        ("predecessors-on-start", ("q = f32[2] abs(p0)", start + ", control-predecessors={q}", done), A), ("calls-on-start", (start + ", calls=callee", done), R), ("calls-on-done", (start, done + ", calls=callee"), R), ("calls-on-update", (start, update + ", calls=callee", done.replace("(s)", "(u)")), R),
        ("group-id-on-start", (start + ", async_group_id=1", done), R), ("shape-not-tuple", ("s = f32[2] negate-start(p0)", done), R), ("shape-empty-tuple", ("s = () negate-start(p0)", done), R), ("shape-of-one", ("s = ((f32[2])) negate-start(p0)", done), R), ("shape-of-two", ("s = ((f32[2]), f32[2]) negate-start(p0)", done), A),
        ("shape-of-five", ("s = ((f32[2]), f32[2], u32[], s32[], f32[]) negate-start(p0)", done), A), ("shape-first-not-tuple", ("s = (f32[2], f32[2], u32[]) negate-start(p0)", done), R), ("shape-first-other-count", ("s = ((f32[2], f32[2]), f32[2], u32[]) negate-start(p0)", done), OPEN), ("shape-first-other-type", ("s = ((f32[3]), f32[2], u32[]) negate-start(p0)", done), OPEN),
        ("shape-first-empty", ("s = ((), f32[2], u32[]) negate-start(p0)", done), OPEN), ("start-no-shape", (start.replace(SHAPE + " ", ""), done), R), ("update-no-shape", (start, update.replace(SHAPE + " ", ""), done.replace("(s)", "(u)")), R), ("done-no-shape", (start, done.replace("f32[2] ", "")), R), ("done-other-shape", (start, done.replace("f32[2]", "f32[9]")), OPEN),
        ("update-other-shape", (start, update.replace("u32[]", "s32[]"), done.replace("(s)", "(u)")), OPEN), ("start-two-operands", (start.replace("(p0)", "(p0, p0)"), done), R), ("start-no-operands", (start.replace("(p0)", "()"), done), R), ("done-two-operands", (start, done.replace("(s)", "(s, s)")), R), ("done-no-operands", (start, done.replace("(s)", "()")), R),
        ("done-of-parameter", (start, done.replace("(s)", "(p0)")), R), ("done-of-tuple", ("t = ((f32[2]), f32[2], u32[]) parameter(1)", "ROOT d = f32[2] negate-done(t)"), R), ("update-of-parameter", ("t = ((f32[2]), f32[2], u32[]) parameter(1)", "ROOT u = ((f32[2]), f32[2], u32[]) negate-update(t)"), R), ("done-of-other-opcode", (start, "ROOT d = f32[2] abs-done(s)"), R),
        ("update-of-other-opcode", (start, f"u = {SHAPE} abs-update(s)", done.replace("(s)", "(u)")), R), ("plain-done-of-sugared-start", (start, "ROOT d = f32[2] async-done(s)"), A), ("plain-update-of-sugared-start", (start, f"u = {SHAPE} async-update(s)", "ROOT d = f32[2] negate-done(u)"), A), ("update-of-done", (start, "d = f32[2] negate-done(s)", f"ROOT u = {SHAPE} negate-update(d)"), R),
        ("start-never-done", ("ROOT " + start,), OPEN), ("done-twice", (start, "a = f32[2] negate-done(s)", done), OPEN), ("two-updates", (start, update, f"v = {SHAPE} negate-update(u)", done.replace("(s)", "(v)")), A), ("typed-operand-of-done", (start, done.replace("(s)", f"({SHAPE} s)")), A), ("two-starts", (start, start.replace("s =", "q ="), "a = f32[2] negate-done(q)", done), A),
        ("update-alone", (f"ROOT u = {SHAPE} negate-update()",), R), ("start-of-parameter", ("s = ((), f32[2], u32[]) parameter-start(1)", "ROOT d = f32[2] parameter-done(s)"), OPEN), ("start-of-constant", ("s = ((), f32[2], u32[]) constant-start({1,2})", "ROOT d = f32[2] constant-done(s)"), OPEN),
    ):
        yield f"sugar/{name}", module("\n".join(lines), computations=CALLEE, parameters=["f32[2]"]), expected
    start = f"s = {SHAPE} async-start(p0), calls=callee"
    done = "ROOT d = f32[2] async-done(s)"
    update = f"u = {SHAPE} async-update(s)"
    threaded = CALLEE + ', execution_thread="t"'
    other = CALLEE.replace("callee", "other")
    for name, lines, computations, expected in (
        ("start-done", (start, done), CALLEE, A), ("start-update-done", (start, update, done.replace("(s)", "(u)")), CALLEE, A), ("calls-on-all", (start, update + ", calls=callee", done.replace("(s)", "(u)") + ", calls=callee"), CALLEE, A), ("calls-other-on-done", (start, done + ", calls=other"), CALLEE + "\n\n" + other, R),
        ("calls-other-on-update", (start, update + ", calls=other", done.replace("(s)", "(u)")), CALLEE + "\n\n" + other, R), ("calls-inline", (start.replace("callee", "{ x = f32[2] parameter(0) ROOT n = f32[2] abs(x) }"), done), CALLEE, A), ("calls-missing", (start.replace(", calls=callee", ""), done), CALLEE, R), ("thread-of-computation", (start + thread, done + thread), threaded, A),
        ("thread-of-computation-only", (start, done), threaded, OPEN), ("thread-of-start-only", (start + thread, done), CALLEE, OPEN), ("thread-differs-from-computation", (start + thread.replace('"t"', '"u"'), done), threaded, OPEN), ("computation-also-called", (start, "c = f32[2] call(p0), to_apply=callee", done), CALLEE, R), ("computation-started-twice", (start, start.replace("s =", "q ="), "a = f32[2] async-done(q)", done), CALLEE, OPEN),
        ("sugared-done", (start, "ROOT d = f32[2] negate-done(s)"), CALLEE, A), ("sugared-done-of-other", (start, "ROOT d = f32[2] abs-done(s)"), CALLEE, R), ("start-operand-count", (start.replace("(p0)", "(p0, p0)"), done), CALLEE, OPEN), ("start-operand-type", (start.replace("(p0)", "(p1)"), done), CALLEE, OPEN), ("start-no-operands", (start.replace("(p0)", "()"), done), CALLEE, OPEN),
        ("shape-not-tuple", (start.replace(SHAPE, "f32[2]"), done), CALLEE, R), ("shape-result-differs", (start.replace(", f32[2], u32", ", f32[9], u32"), done), CALLEE, OPEN), ("start-group-id", (start + ", async_group_id=0", done), CALLEE, R), ("done-is-used", (start, "d = f32[2] async-done(s)", "ROOT a = f32[2] abs(d)"), CALLEE, A), ("start-shape-omitted", (start.replace(SHAPE + " ", ""), done), CALLEE, R),
        ("done-shape-omitted", (start, done.replace("f32[2] ", "")), CALLEE, R), ("start-of-tuple", ("t = (f32[2]) tuple(p0)", start.replace("(p0)", "(t)"), done), CALLEE, OPEN), ("through-gte", ("s0 = (((f32[2]), f32[2], u32[])) parameter(2)", f"g = {SHAPE} get-tuple-element(s0), index=0", "ROOT d = f32[2] async-done(g)"), CALLEE, R),
    ):
        yield f"plain/{name}", module("\n".join(lines), computations=computations, parameters=["f32[2]", "s32[]"]), expected


def probes() -> Iterator[Probe]:
    for op in minimal_instructions():
        if op.opcode in ALREADY or op.opcode.endswith(("-start", "-done")) or op.setup:
            continue
        for name, text, expected in stems(op):
            yield Probe(f"async/{op.opcode}/{name}", "5:async sugar", text, expected)
    for name in (*ALREADY, "all-gather-update", "all-reduce-update", "copy-update", "collective-permute-update", "send-start", "send-update", "recv-start", "recv-update", "foo-start", "-start", "start", "done", "add-start-done", "add-started", "Add-start", "add_start", "async-start-done", "send-done-start", "copy-start-start"):
        text = module(f"ROOT r = {SHAPE} {name}(p0)", parameters=["f32[2]"])
        yield Probe(f"async/name/{slug(name)}", "5:async sugar", text, R if name not in ("copy-start",) else OPEN)
    for name, text, expected in details():
        yield Probe(f"async/{name}", "5:async-start async-update async-done", text, expected)
    for text in ("add-start(p0)", "add-start(p0, p0, p0)", "reshape-start(p0, p0)", 'custom-call-start(), custom_call_target="t"', "sort-start(p0), dimensions={}", "reduce-start(p0), dimensions={0}, to_apply={ x = f32[] parameter(0) ROOT y = f32[] negate(x) }", "transpose-start(p0), dimensions={9,9}", "dynamic-slice-start(p0), dynamic_slice_sizes={2}", "tuple-start(p0)", "replica-id-start(p0)", "replica-id-start()", "iota-start(p0), iota_dimension=0", "broadcast-start(p0)", "get-tuple-element-start(p0), index=0", "select-start(p0, p0)", "convert-start()", "slice-start(p0, p0), slice={}", "all-to-all-start()", "call-start(), to_apply={ ROOT x = f32[2] parameter(0) }", "fft-start(p0), fft_type=FFT, fft_length={}", "copy-done-start(p0)", "scan-start(p0), dimensions={0}, num_carries=0, to_apply={ ROOT x = f32[2] parameter(0) }"):
        whole = module(f"ROOT s = {SHAPE} {text}", parameters=["f32[2]"])
        yield Probe(f"async/operands/{slug(text)}", "5:async sugar", whole)
    chain = module("s = ((f32[2], f32[]), f32[], u32[]) reduce-start(p0, p1), dimensions={0}, to_apply=add_f32\nROOT d = f32[] reduce-done(s)", computations=ADD, parameters=["f32[2]", "f32[]"])
    yield Probe("async/sugar/start-with-called-computation", "5:async sugar", chain, A)
