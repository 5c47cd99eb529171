"""Section 6: attributes with plain values: booleans, integers, words, lists, names."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ADD, Probe, module, table
from .opcode_table import BRANCHES, CALLEE, Minimal, minimal_instructions

BOOL_WRONG = ("True", "1", "0", '"true"', "{true}", "", "yes", "t", "TRUE", "true true", "(true)")
INT_WRONG = ("", "x", "1.0", "1.5", '"1"', "{1}", "true", "1_0", "1x1", "(1)", "inf", "0x1", "1 1", "18446744073709551616", "1e3", "?", "*")
INT_OPEN = ("0", "1", "-1", "2147483648", "-9223372036854775808", "18446744073709551615", "99")
LIST_WRONG = ("0", "(0)", "[0]", "{0", "{0 1}", "{x}", "{0.5}", "{{0}}", "", '{"0"}', "{0;1}", "{0:1}", "{true}", "{0}{1}", "{,0}", "{*}", "{1_0}", "{...}")
LIST_OPEN = ("{}", "{0}", "{1}", "{0,1}", "{0,}", "{ 0 , 1 }", "{9}", "{-1}", "{0,0}", "{0,,1}", "{18446744073709551615}", "{99999999999999999999}")

BOOLS = (
    ("sort", "is_stable"), ("topk", "largest"), ("gather", "indices_are_sorted"), ("scatter", "unique_indices"),
    ("call", "is_composite"), ("send", "is_host_transfer"), ("scan", "is_reverse"), ("scan", "is_associative"),
    ("all-gather", "constrain_layout"), ("custom-call", "custom_call_has_side_effect"), ("cholesky", "lower"),
    ("triangular-solve", "left_side"), ("triangular-solve", "unit_diagonal"),
)
INTS = (
    ("get-tuple-element", "index"), ("gather", "index_vector_dim"), ("iota", "iota_dimension"), ("reshape", "inferred_dimension"),
    ("all-gather", "channel_id"), ("batch-norm-inference", "feature_index"), ("convolution", "feature_group_count"),
    ("convolution", "batch_group_count"), ("reduce-precision", "exponent_bits"), ("reduce-precision", "mantissa_bits"),
    ("rng-get-and-update-state", "delta"), ("topk", "k"), ("scan", "num_carries"), ("copy-start", "cross_program_prefetch_index"),
)
LISTS = (
    ("transpose", "dimensions"), ("broadcast", "dimensions"), ("reduce", "dimensions"), ("concatenate", "dimensions"), ("sort", "dimensions"),
    ("all-gather", "dimensions"), ("all-to-all", "dimensions"), ("reduce-scatter", "dimensions"), ("get-dimension-size", "dimensions"), ("set-dimension-size", "dimensions"),
    ("map", "dimensions"), ("scan", "dimensions"), ("reverse", "dimensions"),
    ("fft", "fft_length"), ("gather", "offset_dims"), ("gather", "slice_sizes"), ("dynamic-slice", "dynamic_slice_sizes"),
    ("dot", "lhs_contracting_dims"), ("dot", "rhs_batch_dims"), ("scatter", "update_window_dims"), ("ragged-dot", "lhs_ragged_dims"),
    ("dot", "lhs_batch_dims"), ("dot", "rhs_contracting_dims"), ("ragged-dot", "rhs_group_dims"), ("scaled-dot", "lhs_contracting_dims"),
    ("gather", "collapsed_slice_dims"), ("gather", "start_index_map"), ("gather", "operand_batching_dims"), ("gather", "start_indices_batching_dims"),
    ("scatter", "inserted_window_dims"), ("scatter", "scatter_dims_to_operand_dims"), ("scatter", "input_batching_dims"), ("scatter", "scatter_indices_batching_dims"),
)
CALLERS = (
    ("while", "condition", "cond"), ("while", "body", "body"), ("select-and-scatter", "select", "at_least"), ("select-and-scatter", "scatter", "add_f32"),
    ("conditional", "true_computation", "one"), ("conditional", "false_computation", "two"), ("fusion", "calls", "callee"), ("async-start", "calls", "callee"),
    ("call", "to_apply", "callee"), ("sort", "to_apply", "less"), ("map", "to_apply", "add_f32"), ("scatter", "to_apply", "add_f32"), ("reduce-window", "to_apply", "add_f32"),
    ("all-reduce", "to_apply", "add_f32"), ("reduce-scatter", "to_apply", "add_f32"), ("custom-call", "to_apply", "callee"), ("async-done", "calls", "callee"),
)
WORDS = (
    ("compare", "direction", ("EQ", "NE", "GE", "GT", "LE", "LT"), ("eq", "Lt", '"EQ"', "equal", "", "{EQ}", "1", "EQ NE", "EQUAL")),
    ("compare", "type", ("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"), ("float", "TOTAL_ORDER", '"FLOAT"', "", "INT", "f32", "PRED")),
    ("fusion", "kind", ("kLoop", "kInput", "kOutput", "kCustom"), ("loop", "kloop", "Loop", "kFoo", '"kLoop"', "", "KLOOP", "kTransposeDot")),
    ("fft", "fft_type", ("FFT", "IFFT", "RFFT", "IRFFT"), ("fft", "DFT", "", '"FFT"', "Fft")),
    ("rng", "distribution", ("rng_uniform", "rng_normal", "rng_invalid", "RNG_UNIFORM", "Rng_Normal"), ("uniform", "normal", "", "rng_bernoulli", '"rng_uniform"', "1")),
    ("rng-bit-generator", "algorithm", ("rng_default", "rng_three_fry", "rng_philox", "RNG_PHILOX", "Rng_Default"), ("philox", "rng_threefry", "", '"rng_default"', "dot_f32_f32_f32")),
    (
        "dot", "algorithm",
        (
            "dot_any_f8_any_f8_f32", "dot_any_f8_any_f8_f32_fast_accum", "dot_f16_f16_f16", "dot_f16_f16_f32", "dot_bf16_bf16_bf16",
            "dot_bf16_bf16_f32", "dot_bf16_bf16_f32_x3", "dot_bf16_bf16_f32_x6", "dot_bf16_bf16_f32_x9", "dot_tf32_tf32_f32", "dot_tf32_tf32_f32_x3",
            "dot_f32_f32_f32", "dot_f64_f64_f64", "unset", "DOT_F32_F32_F32", "Dot_F16_f16_F32", "UNSET",
        ),
        ("ALG_DOT_F32_F32_F32", "dot_f32", "", '"dot_f32_f32_f32"', "dot_bf16_bf16_f32_x2", "alg_unset", "rng_default", "dot_f8_f8_f32"),
    ),
    ("dot", "operand_precision", ("{default,default}", "{high,highest}", "{HIGH,Highest}", "{ default , high }", "{default,highest,}"), ("high,high", "{low,low}", "{packed_nibble,default}", "(high,high)", "{high highest}", '{"high","high"}', "", "{,high}", "{1,2}")),
    ("triangular-solve", "transpose_a", ("TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"), ('"ADJOINT"', "", "true", "1")),
    ("convolution", "convolution_kind", ("fprop", "wgrad", "dgrad", "unset"), ("FPROP", "forward", "", '"fprop"')),
    ("custom-call", "padding_type", ("PADDING_INVALID", "PADDING_VALID", "PADDING_SAME"), ("padding_valid", "VALID", "", '"PADDING_VALID"', "PADDING")),
    ("custom-call", "schedule", ("SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST", "schedule_latest"), ("LATEST", "", '"SCHEDULE_NONE"', "SCHEDULE_FIRST")),
    (
        "custom-call", "api_version",
        ("API_VERSION_ORIGINAL", "API_VERSION_STATUS_RETURNING", "API_VERSION_STATUS_RETURNING_UNIFIED", "API_VERSION_TYPED_FFI", "api_version_typed_ffi"),
        ("API_VERSION_UNSPECIFIED", "TYPED_FFI", "4", "", '"API_VERSION_ORIGINAL"'),
    ),
    (
        "all-reduce", "mode", ("cross_replica", "cross_partition", "cross_replica_and_partition", "flattened_id"),
        ("CROSS_REPLICA", "kCrossReplica", "", '"cross_replica"', "flattened"),
    ),
)
WORDS_OPEN = {
    "transpose_a": ("no_transpose", "NONE", "foo"),
    "operand_precision": ("{}", "{high}", "{high,high,high}", "{default}"),
}
STRINGS = (("custom-call", "custom_call_target"), ("infeed", "infeed_config"), ("outfeed", "outfeed_config"), ("async-start", "async_execution_thread"))
STRING_WRONG = ("x", "1", "", '{"a"}', '"a', "true", '"a" "b"', "{a}")
STRING_OPEN = ('"a"', "'a'", '""', r'"\303\251$<>/"', '"a b"', '"main"')
FLOATS = ("0.001", "1", "1e-5", "-1", "0", ".5", "1.", "-.5", "inf", "-inf", "nan", "1e39", "1e-60", '"1"', "true", "", "x", "{1}", "1_0", "9999999999", "1e400")
COMPUTATIONS = (
    ("add_f32", "accept"), ("%add_f32", "accept"), ("add_f32:", ""), ("missing", "reject"), ('"add_f32"', "reject"), ("", "reject"), ("{add_f32}", "reject"),
    ("p0", "reject"), ("e", "reject"), ("add_f32, add_f32", "reject"), ("1", "reject"), ("(add_f32)", "reject"), ("add_f32 add_f32", "reject"), ("true", "reject"),
)


def instruction(op: Minimal, name: str, value: str) -> str:
    """The minimal instruction with this attribute set to `value`."""
    text = op.instruction(attributes=op.required | {name: value})
    body = f"{op.setup}\n{text}" if op.setup else text
    return module(body, computations=op.computations, parameters=op.operands)


def plain_values() -> Iterator[Probe]:
    ops = {op.opcode: op for op in minimal_instructions()}
    for opcode, name in BOOLS:
        def wrap(value, op=ops[opcode], name=name):
            return instruction(op, name, value)
        yield from table(f"bool/{opcode}.{name}", f"6:{name}", wrap, ("true", "false"), BOOL_WRONG[: 11 if opcode == "sort" else 3])
    for opcode, name in INTS:
        def wrap(value, op=ops[opcode], name=name):
            return instruction(op, name, value)
        wrong = INT_WRONG if name in ("index", "iota_dimension", "cross_program_prefetch_index") else INT_WRONG[:5]
        yield from table(f"int/{opcode}.{name}", f"6:{name}", wrap, (), wrong, INT_OPEN)
    for opcode, name in LISTS:
        def wrap(value, op=ops[opcode], name=name):
            return instruction(op, name, value)
        wrong = LIST_WRONG if opcode in ("transpose", "dot") else LIST_WRONG[:5]
        values = LIST_OPEN if opcode in ("transpose", "dot") else LIST_OPEN[:8]
        yield from table(f"list/{opcode}.{name}", f"6:{name}", wrap, (), wrong, values)
    for opcode, name, accepted, rejected in WORDS:
        def wrap(value, op=ops[opcode], name=name):
            return instruction(op, name, value)
        yield from table(f"word/{opcode}.{name}", f"6:{name}", wrap, accepted, rejected, WORDS_OPEN.get(name, ()))
    for opcode, name in STRINGS:
        def wrap(value, op=ops[opcode], name=name):
            return instruction(op, name, value)
        yield from table(f"string/{opcode}.{name}", f"6:{name}", wrap, (), STRING_WRONG, STRING_OPEN)
    yield from table(
        "float/epsilon", "6:epsilon", lambda value: instruction(ops["batch-norm-inference"], "epsilon", value), (), (), FLOATS
    )
    for value, expected in COMPUTATIONS:
        text = instruction(ops["reduce"], "to_apply", value)
        yield Probe(f"computation/to_apply/{value or 'empty'}", "6:to_apply", text, expected)
    yield from channel_and_devices(ops)


def channel_and_devices(ops: dict[str, Minimal]) -> Iterator[Probe]:
    """`use_global_device_ids` is only allowed beside a channel."""
    for opcode in ("all-reduce", "all-reduce-start", "reduce-scatter", "all-gather", "all-gather-start"):
        for name, extra, expected in (
            ("true-with-channel", ", channel_id=1, use_global_device_ids=true", "accept"),
            ("true-before-channel", ", use_global_device_ids=true, channel_id=1", "accept"),
            ("false-without-channel", ", use_global_device_ids=false", "accept"),
            ("true-without-channel", ", use_global_device_ids=true", ""),
            ("true-with-channel-zero", ", channel_id=0, use_global_device_ids=true", ""),
        ):
            op = ops[opcode]
            text = module(op.instruction(extra=extra), computations=op.computations, parameters=op.operands)
            yield Probe(f"global-ids/{opcode}/{name}", "6:use_global_device_ids", text, expected)
    send = "s = (f32[2], u32[], token[]) send(p0, p1), channel_id=1"
    for name, first, done, expected in (
        ("equal", send, "token[] send-done(s), channel_id=1", "accept"),
        ("other", send, "token[] send-done(s), channel_id=2", "reject"),
        ("missing-on-done", send, "token[] send-done(s)", ""),
        ("missing-on-send", send.replace(", channel_id=1", ""), "token[] send-done(s), channel_id=1", ""),
        ("missing-on-both", send.replace(", channel_id=1", ""), "token[] send-done(s)", ""),
        ("operand-is-tuple", "s = (f32[2], u32[], token[]) tuple(p0, p2, p1)", "token[] send-done(s), channel_id=2", ""),
        ("operand-is-recv", "s = (f32[2], u32[], token[]) recv(p1), channel_id=1", "token[] send-done(s), channel_id=2", ""),
        ("recv-done-of-send", send, "(f32[2], token[]) recv-done(s), channel_id=2", ""),
        ("host-flag-differs", send, "token[] send-done(s), channel_id=1, is_host_transfer=true", ""),
    ):
        text = module(f"{first}\nROOT r = {done}", parameters=["f32[2]", "token[]", "u32[]"])
        yield Probe(f"channel/{name}", "5:send-done recv-done", text, expected)


def computation_lists() -> Iterator[Probe]:
    def custom(value: str) -> str:
        return module(
            f'ROOT r = f32[2] custom-call(p0), custom_call_target="t", called_computations={value}',
            computations=CALLEE, parameters=["f32[2]"],
        )

    yield from table(
        "computations/called_computations", "6:called_computations", custom,
        ("{}", "{callee}", "{%callee}", "{callee, callee}", "{ callee }", "{{ ROOT x = f32[2] parameter(0) }}", "{callee, { ROOT x = f32[2] parameter(0) }}"),
        ("callee", "{callee callee}", "{callee,}", "{,callee}", "{missing}", "", "(callee)", '{"callee"}', "{callee"),
    )
    yield Probe("computations/to-apply-and-called", "6:called_computations", custom("{callee}, to_apply=callee"), "")
    yield Probe("computations/calls-on-custom-call", "6:calls", custom("{}, calls=callee"), "reject")
    index = ["s32[]", "f32[2]", "f32[2]"]
    for name, kind, tail, expected in (
        ("pred-two-names", "pred[]", "true_computation=one, false_computation=two", "accept"),
        ("pred-list", "pred[]", "branch_computations={one, two}", "reject"),
        ("pred-both", "pred[]", "true_computation=one, false_computation=two, branch_computations={one, two}", "reject"),
        ("pred-one", "pred[]", "true_computation=one", "reject"), ("pred-none", "pred[]", "", "reject"),
        ("index-list", "s32[]", "branch_computations={one, two}", "accept"),
        ("index-two-names", "s32[]", "true_computation=one, false_computation=two", "reject"),
        ("index-list-of-one", "s32[]", "branch_computations={one}", "reject"),
        ("index-list-of-three", "s32[]", "branch_computations={one, two, one}", "reject"),
        ("index-empty-list", "s32[]", "branch_computations={}", "reject"), ("index-none", "s32[]", "", "reject"),
        ("float-selector-list", "f32[]", "branch_computations={one, two}", ""),
        ("unsigned-selector-list", "u32[]", "branch_computations={one, two}", ""),
        ("vector-pred", "pred[2]", "true_computation=one, false_computation=two", ""),
        ("vector-index", "s32[3]", "branch_computations={one, two}", ""),
        ("tuple-selector", "(pred[])", "branch_computations={one, two}", ""),
        ("s64-selector", "s64[]", "branch_computations={one, two}", ""),
    ):
        for shape in ("f32[2] ", ""):
            suffix = "" if shape else "-inferred"
            body = f"ROOT r = {shape}conditional(p0, p1, p2)" + (f", {tail}" if tail else "")
            text = module(body, computations=BRANCHES, parameters=[kind, *index[1:]])
            yield Probe(f"conditional/{name}{suffix}", "5:conditional", text, expected)


def callers() -> Iterator[Probe]:
    """Each attribute that names one computation."""
    ops = {op.opcode: op for op in minimal_instructions()}
    for opcode, name, good in CALLERS:
        def wrap(value, op=ops[opcode], name=name):
            return instruction(op, name, value)
        # A done operation must name the computation of its start, not another one of equal text.
        inline = "{ ROOT x = f32[2] parameter(0) }"
        yield from table(
            f"caller/{opcode}.{name}", f"6:{name}", wrap, (good, f"%{good}"), ("missing", f"{{{good}}}", f'"{good}"', "", f"{good}, {good}", "{}"), (inline, f"{good}:"),
        )
    index = ["s32[]", "f32[2]", "f32[2]"]
    yield from table(
        "caller/conditional.branch_computations", "6:branch_computations",
        lambda value: module(f"ROOT r = f32[2] conditional(p0, p1, p2), branch_computations={value}", computations=BRANCHES, parameters=index),
        ("{one, two}", "{%one,%two}", "{one, one}", "{ one , two }"), ("{one}", "{one, two, one}", "{}", "one, two", "{one two}", "{one, two,}", "{one, missing}", "", "(one, two)", '{"one", "two"}', "{{one}, {two}}"),
    )
    yield from table(
        "backend-config", "6:backend_config",
        lambda value: module(f"ROOT r = f32[2] negate(p0), backend_config={value}", parameters=["f32[2]"]),
        ('"a"', "'a'", "{}", '{"a":1}', '""', '"{\\"a\\":1}"', '{"a":"b"}', "{x}"), ("a", "1", "", "true", "[1]", "(a)", "{", '"', "{}{}", '"a" "b"', "null"),
    )
    yield Probe("backend-config/twice", "6:backend_config", module('ROOT r = f32[2] negate(p0), backend_config="a", backend_config={}', parameters=["f32[2]"]), "reject")


def predecessors() -> Iterator[Probe]:
    def text(value: str) -> str:
        return module(f"a = f32[2] abs(p0)\nROOT r = f32[2] negate(p0), control-predecessors={value}\nz = f32[2] abs(p0)", parameters=["f32[2]"])

    yield from table(
        "control-predecessors", "6:control-predecessors", text,
        ("{a}", "{%a}", "{a, p0}", "{ a , p0 }", "{a:}"),
        ("{}", "a", "{r}", "{z}", "{missing}", "{a p0}", "{a,}", "", "(a)", '{"a"}', "{1}", "{add_f32}", "{a", "{f32[2] a}"), ("{a, a}",),
    )


def probes() -> Iterator[Probe]:
    yield from plain_values()
    yield from computation_lists()
    yield from predecessors()
    yield from callers()
    yield Probe("computation/of-other-opcode", "6:to_apply", module("ROOT r = f32[2] abs(p0), to_apply=add_f32", computations=ADD, parameters=["f32[2]"]), "reject")
