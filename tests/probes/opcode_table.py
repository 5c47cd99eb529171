"""A minimal valid instruction for every opcode: the material of the opcode probes.

The required and optional attributes, operand counts and inferability are those of section 5 of the
format reference; the probes then find out whether XLA agrees.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .base import ADD


@dataclass(frozen=True, slots=True)
class Minimal:
    """One opcode with operands and attributes that XLA accepts."""

    opcode: str
    shape: str
    operands: tuple[str, ...] = ()
    required: dict[str, str] = field(default_factory=dict)
    optional: dict[str, str] = field(default_factory=dict)
    inferable: bool = True
    any_count: bool = False
    computations: str = ""
    payload: str | None = None
    setup: str = ""
    names: tuple[str, ...] = ()
    # Attributes without which the shape cannot be inferred although the parser does not ask for them.
    for_inference: dict[str, str] = field(default_factory=dict)

    def instruction(
        self, *, shape: str | None = None, operands: str | None = None,
        attributes: dict[str, str] | None = None, extra: str = "",
    ) -> str:
        """`ROOT r = SHAPE OPCODE(OPERANDS), ATTRIBUTES`."""
        shape = self.shape if shape is None else shape
        if operands is None:
            operands = self.payload if self.payload is not None else ", ".join(self.operand_names())
        attributes = self.required if attributes is None else attributes
        tail = "".join(f", {name}={value}" for name, value in attributes.items())
        result = f"{shape} " if shape else ""
        return f"ROOT r = {result}{self.opcode}({operands}){tail}{extra}"

    def operand_names(self) -> list[str]:
        return list(self.names) or [f"p{number}" for number in range(len(self.operands))]


DOT_DIMS = {"lhs_contracting_dims": "{1}", "rhs_contracting_dims": "{0}"}
GROUPS = {"replica_groups": "{{0,1}}"}
WHILE_PARTS = (
    "cond {\n  x = f32[2] parameter(0)\n  ROOT t = pred[] constant(true)\n}\n\n"
    "body {\n  ROOT x = f32[2] parameter(0)\n}"
)
BRANCHES = "one {\n  ROOT x = f32[2] parameter(0)\n}\n\ntwo {\n  x = f32[2] parameter(0)\n  ROOT n = f32[2] negate(x)\n}"
IDENTITY = "same {\n  ROOT x = f32[2] parameter(0)\n}"
CALLEE = "callee {\n  x = f32[2] parameter(0)\n  ROOT n = f32[2] negate(x)\n}"
LESS = "less {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT l = pred[] compare(x, y), direction=LT\n}"
GREATER = LESS.replace("less", "at_least").replace("LT", "GE")
SCANNED = (
    "step {\n  c = f32[] parameter(0)\n  x = f32[] parameter(1)\n  s = f32[] add(c, x)\n"
    "  ROOT t = (f32[], f32[]) tuple(s, s)\n}"
)
ASYNC_SHAPE = "((f32[2]), f32[2], u32[])"
ASYNC_START = f"s = {ASYNC_SHAPE} async-start(p0), calls=callee"

UNARY = (
    "abs round-nearest-afz round-nearest-even ceil copy floor negate sign opt-barrier "
).split()
UNARY_ACCURATE = (
    "acos acosh asin asinh atanh exponential-minus-one log log-plus-one logistic sqrt cbrt rsqrt "
    "tanh erf sine sinh cosine cosh tan exponential"
).split()
BINARY = (
    "add subtract multiply divide remainder maximum minimum power atan2"
).split()
BINARY_INTEGER = "mulhi and or xor shift-left shift-right-arithmetic shift-right-logical".split()


def elementwise() -> list[Minimal]:
    """Opcodes of one to three operands without attributes of their own."""
    two, accuracy = ("f32[2,3]",), {"result_accuracy": "{mode=highest}"}
    out = [Minimal(name, "f32[2,3]", two) for name in UNARY]
    out += [Minimal(name, "f32[2,3]", two, optional=accuracy) for name in UNARY_ACCURATE]
    out += [Minimal(name, "f32[2,3]", two * 2) for name in BINARY]
    out += [Minimal(name, "s32[2,3]", ("s32[2,3]",) * 2) for name in BINARY_INTEGER]
    out += [Minimal(name, "s32[2]", ("s32[2]",)) for name in ("not", "popcnt", "count-leading-zeros")]
    out += [Minimal(name, "f32[2]", ("c64[2]",)) for name in ("real", "imag")]
    out += [
        Minimal("is-finite", "pred[2]", ("f32[2]",)),
        Minimal("complex", "c64[2]", ("f32[2]", "f32[2]")),
        Minimal("convert", "s32[2]", ("f32[2]",), inferable=False),
        Minimal("bitcast", "f32[6]", ("f32[2,3]",), inferable=False),
        Minimal("bitcast-convert", "s32[2]", ("f32[2]",), inferable=False),
        Minimal("stochastic-convert", "s32[2]", ("f32[2]", "u32[2]"), inferable=False),
        Minimal("compare", "pred[2]", ("f32[2]", "f32[2]"), {"direction": "LT"}, {"type": "TOTALORDER"}),
        Minimal("clamp", "f32[2]", ("f32[2]",) * 3),
        Minimal("select", "f32[2]", ("pred[2]", "f32[2]", "f32[2]")),
        Minimal(
            "reduce-precision", "f32[2]", ("f32[2]",),
            {"exponent_bits": "5", "mantissa_bits": "10"}, inferable=False,
        ),
    ]
    return out


def data_movement() -> list[Minimal]:
    """Payload opcodes, tuples, shapes, slices, gathers."""
    return [
        Minimal("parameter", "f32[2]", payload="0", inferable=False),
        Minimal("constant", "f32[2]", payload="{1, 2}", inferable=False),
        Minimal("iota", "s32[4]", (), {"iota_dimension": "0"}, inferable=False),
        Minimal("tuple", "(f32[2], s32[])", ("f32[2]", "s32[]"), any_count=True),
        Minimal("get-tuple-element", "s32[]", ("(f32[2], s32[])",), {"index": "1"}),
        Minimal("after-all", "token[]", ("token[]", "token[]"), any_count=True),
        Minimal("add-dependency", "f32[2]", ("f32[2]", "token[]")),
        Minimal("reshape", "f32[6]", ("f32[2,3]",), {}, {"inferred_dimension": "0"}, inferable=False),
        Minimal("dynamic-reshape", "f32[<=6]", ("f32[2,3]", "s32[]"), inferable=False, any_count=True),
        Minimal("broadcast", "f32[2,3]", ("f32[3]",), {"dimensions": "{1}"}),
        Minimal("transpose", "f32[3,2]", ("f32[2,3]",), {"dimensions": "{1,0}"}),
        Minimal("reverse", "f32[2,3]", ("f32[2,3]",), {"dimensions": "{1}"}),
        Minimal("slice", "f32[1,3]", ("f32[2,3]",), {"slice": "{[0:1], [0:3]}"}, inferable=False),
        Minimal("pad", "f32[5]", ("f32[2]", "f32[]"), {"padding": "1_2"}),
        Minimal("concatenate", "f32[5]", ("f32[2]", "f32[3]"), {"dimensions": "{0}"}, any_count=True),
        Minimal(
            "dynamic-slice", "f32[1,2]", ("f32[2,3]", "s32[]", "s32[]"),
            {"dynamic_slice_sizes": "{1,2}"}, inferable=False,
        ),
        Minimal("dynamic-update-slice", "f32[2,3]", ("f32[2,3]", "f32[1,2]", "s32[]", "s32[]"), inferable=False),
        Minimal(
            "gather", "f32[3,4]", ("f32[10,4]", "s32[3,1]"),
            {
                "offset_dims": "{1}", "collapsed_slice_dims": "{0}", "start_index_map": "{0}",
                "index_vector_dim": "1", "slice_sizes": "{1,4}",
            },
            {
                "operand_batching_dims": "{}", "start_indices_batching_dims": "{}",
                "indices_are_sorted": "true",
            },
        ),
        Minimal(
            "scatter", "f32[10,4]", ("f32[10,4]", "s32[3,1]", "f32[3,4]"),
            {
                "update_window_dims": "{1}", "inserted_window_dims": "{0}",
                "scatter_dims_to_operand_dims": "{0}", "index_vector_dim": "1", "to_apply": "add_f32",
            },
            {
                "input_batching_dims": "{}", "scatter_indices_batching_dims": "{}",
                "indices_are_sorted": "true", "unique_indices": "false",
            },
            computations=ADD,
        ),
        Minimal("get-dimension-size", "s32[]", ("f32[2,3]",), {"dimensions": "{1}"}),
        Minimal("set-dimension-size", "f32[<=2,3]", ("f32[2,3]", "s32[]"), {"dimensions": "{0}"}),
    ]


def contractions() -> list[Minimal]:
    """Dots, convolutions and the linear algebra opcodes."""
    batch = {"lhs_batch_dims": "{}", "rhs_batch_dims": "{}"}
    precision = {"operand_precision": "{default,highest}"}
    ragged = {
        "lhs_contracting_dims": "{1}", "rhs_contracting_dims": "{1}",
        "lhs_ragged_dims": "{0}", "rhs_group_dims": "{0}",
    }
    return [
        Minimal(
            "dot", "f32[2,4]", ("f32[2,3]", "f32[3,4]"), {},
            DOT_DIMS | batch | precision | {"algorithm": "dot_f32_f32_f32"}, any_count=True,
            for_inference=DOT_DIMS,
        ),
        Minimal(
            "ragged-dot", "f32[5,4]", ("f32[5,3]", "f32[2,3,4]", "s32[2]"),
            {}, ragged | batch | precision, for_inference=ragged,
        ),
        Minimal(
            "scaled-dot", "f32[2,4]", ("f8e4m3fn[2,32]", "f8e8m0fnu[2,1]", "f8e4m3fn[32,4]", "f8e8m0fnu[1,4]"),
            {}, DOT_DIMS | batch | precision, for_inference=DOT_DIMS,
        ),
        Minimal(
            "convolution", "f32[1,4,2]", ("f32[1,6,3]", "f32[3,3,2]"),
            {"dim_labels": "b0f_0io->b0f", "window": "{size=3}"},
            {
                "feature_group_count": "1", "batch_group_count": "1",
                "operand_precision": "{high,default}",
            },
        ),
        Minimal("fft", "c64[8]", ("c64[8]",), {"fft_type": "FFT", "fft_length": "{8}"}),
        Minimal("cholesky", "f32[3,3]", ("f32[3,3]",), {}, {"lower": "true"}),
        Minimal(
            "triangular-solve", "f32[3,2]", ("f32[3,3]", "f32[3,2]"), {},
            {"left_side": "true", "lower": "true", "unit_diagonal": "false", "transpose_a": "NO_TRANSPOSE"},
            for_inference={"left_side": "true", "transpose_a": "NO_TRANSPOSE"},
        ),
    ]


def with_computations() -> list[Minimal]:
    """Opcodes that call other computations."""
    return [
        Minimal(
            "reduce", "f32[2]", ("f32[2,3]", "f32[]"), {"dimensions": "{1}", "to_apply": "add_f32"},
            computations=ADD,
        ),
        Minimal(
            "reduce-window", "f32[2,1]", ("f32[2,3]", "f32[]"),
            {"to_apply": "add_f32", "window": "{size=1x3}"}, computations=ADD,
        ),
        Minimal(
            "select-and-scatter", "f32[4]", ("f32[4]", "f32[2]", "f32[]"),
            {"select": "at_least", "scatter": "add_f32", "window": "{size=2 stride=2}"},
            computations=f"{GREATER}\n\n{ADD}",
        ),
        Minimal(
            "map", "f32[2]", ("f32[2]", "f32[2]"), {"to_apply": "add_f32"}, {"dimensions": "{0}"},
            computations=ADD, any_count=True, for_inference={"dimensions": "{0}"},
        ),
        Minimal(
            "sort", "f32[4]", ("f32[4]",), {"dimensions": "{0}", "to_apply": "less"},
            {"is_stable": "true"}, computations=LESS, any_count=True,
        ),
        Minimal(
            "scan", "(f32[4], f32[])", ("f32[4]", "f32[]"),
            {"to_apply": "step", "dimensions": "{0}", "num_carries": "1"},
            {"is_reverse": "true", "is_associative": "true"}, computations=SCANNED,
        ),
        Minimal("topk", "(f32[2], s32[2])", ("f32[4]",), {"k": "2"}, {"largest": "true"}),
        Minimal(
            "call", "f32[2]", ("f32[2]",), {"to_apply": "callee"}, {"is_composite": "true"},
            computations=CALLEE, any_count=True,
        ),
        Minimal("while", "f32[2]", ("f32[2]",), {"condition": "cond", "body": "body"}, computations=WHILE_PARTS),
        Minimal(
            "conditional", "f32[2]", ("pred[]", "f32[2]", "f32[2]"),
            {"true_computation": "one", "false_computation": "two"}, computations=BRANCHES,
        ),
        Minimal(
            "fusion", "f32[2]", ("f32[2]",), {"kind": "kLoop", "calls": "callee"},
            {"output_to_operand_aliasing": "{{}: (0, {})}"},
            inferable=False, any_count=True, computations=CALLEE,
        ),
        Minimal(
            "custom-call", "f32[2]", ("f32[2]",), {"custom_call_target": '"target"'},
            {
                "window": "{size=1}", "dim_labels": "bf_io->bf", "feature_group_count": "1",
                "batch_group_count": "1", "operand_layout_constraints": "{f32[2]{0}}",
                "custom_call_has_side_effect": "true", "to_apply": "callee",
                "called_computations": "{callee}", "output_to_operand_aliasing": "{{}: (0, {})}",
                "padding_type": "PADDING_VALID", "literal": "f32[] 1", "operand_precision": "{high}",
                "schedule": "SCHEDULE_LATEST", "api_version": "API_VERSION_TYPED_FFI",
            },
            inferable=False, any_count=True, computations=CALLEE,
        ),
        Minimal(
            "domain", "f32[2]", ("f32[2]",),
            {"domain": '{kind="sharding", entry={replicated}, exit={maximal device=0}}'},
        ),
        Minimal(
            "batch-norm-training", "(f32[2,3], f32[3], f32[3])", ("f32[2,3]", "f32[3]", "f32[3]"),
            {"epsilon": "0.001", "feature_index": "1"},
        ),
        Minimal(
            "batch-norm-inference", "f32[2,3]", ("f32[2,3]",) + ("f32[3]",) * 4,
            {"epsilon": "0.001", "feature_index": "1"},
        ),
        Minimal(
            "batch-norm-grad", "(f32[2,3], f32[3], f32[3])",
            ("f32[2,3]", "f32[3]", "f32[3]", "f32[3]", "f32[2,3]"),
            {"epsilon": "0.001", "feature_index": "1"},
        ),
    ]


def transfers() -> list[Minimal]:
    """Host transfers, copies, random numbers."""
    channel = {"channel_id": "1", "is_host_transfer": "true"}
    send = "s = (f32[2], u32[], token[]) send(p0, p1), channel_id=1"
    recv = "s = (f32[2], u32[], token[]) recv(p0), channel_id=1"
    return [
        Minimal("infeed", "((f32[2]), token[])", ("token[]",), {}, {"infeed_config": '"c"'}, inferable=False),
        Minimal(
            "outfeed", "token[]", ("f32[2]", "token[]"), {},
            {"outfeed_shape": "f32[2]{0}", "outfeed_config": '"c"'}, inferable=False,
        ),
        Minimal("send", "(f32[2], u32[], token[])", ("f32[2]", "token[]"), {}, channel, inferable=False),
        Minimal("recv", "(f32[2], u32[], token[])", ("token[]",), {}, channel, inferable=False),
        Minimal("send-done", "token[]", ("f32[2]", "token[]"), {"channel_id": "1"}, inferable=False, setup=send, names=("s",)),
        Minimal("recv-done", "(f32[2], token[])", ("token[]",), {"channel_id": "1"}, inferable=False, setup=recv, names=("s",)),
        Minimal("copy-start", "(f32[2], f32[2], u32[])", ("f32[2]",), {}, {"cross_program_prefetch_index": "0"}, inferable=False),
        Minimal(
            "copy-done", "f32[2]", ("f32[2]",), inferable=False,
            setup="s = (f32[2], f32[2], u32[]) copy-start(p0)", names=("s",),
        ),
        Minimal("rng", "f32[2]", ("f32[]", "f32[]"), {"distribution": "rng_uniform"}, inferable=False, any_count=True),
        Minimal("rng-bit-generator", "(u64[2], u32[4])", ("u64[2]",), {"algorithm": "rng_three_fry"}, inferable=False),
        Minimal("rng-get-and-update-state", "u64[2]", (), {"delta": "1"}, inferable=False),
        Minimal("replica-id", "u32[]"),
        Minimal("partition-id", "u32[]"),
    ]


def collectives() -> list[Minimal]:
    """Communication, native asynchronous pairs included."""
    common = GROUPS | {"channel_id": "1"}
    reducing = common | {"constrain_layout": "true", "use_global_device_ids": "true", "mode": "flattened_id"}
    apply = {"to_apply": "add_f32"}
    loose = {"inferable": False, "any_count": True}
    pairs = {"source_target_pairs": "{{0,1},{1,0}}"}
    return [
        Minimal("all-reduce", "f32[2]", ("f32[2]",), apply, reducing, computations=ADD, **loose),
        Minimal("all-reduce-start", "f32[2]", ("f32[2]",), apply, reducing, computations=ADD, **loose),
        Minimal(
            "all-reduce-done", "f32[2]", ("f32[2]",), inferable=False, computations=ADD,
            setup="s = f32[2] all-reduce-start(p0), to_apply=add_f32", names=("s",),
        ),
        Minimal("reduce-scatter", "f32[1]", ("f32[2]",), apply | {"dimensions": "{0}"}, reducing, computations=ADD, **loose),
        Minimal(
            "all-gather", "f32[4]", ("f32[2]",), {"dimensions": "{0}"},
            common | {"constrain_layout": "true", "use_global_device_ids": "true"}, **loose,
        ),
        Minimal(
            "all-gather-start", "(f32[2], f32[4])", ("f32[2]",), {"dimensions": "{0}"},
            common | {"constrain_layout": "true", "use_global_device_ids": "true"}, **loose,
        ),
        Minimal(
            "all-gather-done", "f32[4]", ("f32[2]",), inferable=False,
            setup="s = (f32[2], f32[4]) all-gather-start(p0), dimensions={0}", names=("s",),
        ),
        Minimal("all-to-all", "f32[2]", ("f32[2]",), {}, common | {"dimensions": "{0}", "constrain_layout": "true"}, **loose),
        Minimal(
            "ragged-all-to-all", "f32[4]", ("f32[4]", "f32[4]") + ("s64[2]",) * 4, {}, common, **loose,
        ),
        Minimal("collective-broadcast", "f32[2]", ("f32[2]",), {}, common, **loose),
        Minimal("collective-permute", "f32[2]", ("f32[2]",), pairs, {"channel_id": "1"}, **loose),
        Minimal("collective-permute-start", "(f32[2], f32[2])", ("f32[2]",), pairs, {"channel_id": "1"}, **loose),
        Minimal(
            "collective-permute-done", "f32[2]", ("f32[2]",), inferable=False,
            setup="s = (f32[2], f32[2]) collective-permute-start(p0), source_target_pairs={{0,1}}", names=("s",),
        ),
        Minimal(
            "async-start", ASYNC_SHAPE, ("f32[2]",), {"calls": "callee"},
            {"async_execution_thread": '"main"'}, computations=CALLEE, **loose,
        ),
        Minimal(
            "async-update", ASYNC_SHAPE, ("f32[2]",), {},
            {"calls": "callee", "async_execution_thread": '"main"'},
            computations=CALLEE, setup=ASYNC_START, names=("s",), inferable=False,
        ),
        Minimal(
            "async-done", "f32[2]", ("f32[2]",), {},
            {"calls": "callee", "async_execution_thread": '"main"'},
            computations=CALLEE, setup=ASYNC_START, names=("s",), inferable=False,
        ),
    ]


def minimal_instructions() -> list[Minimal]:
    """All 133 opcodes, each once."""
    return (
        elementwise() + data_movement() + contractions() + with_computations() + transfers()
        + collectives()
    )


ROW_OF_SIMILAR = (
    ("unary", frozenset(UNARY) | {
        "count-leading-zeros", "imag", "is-finite", "not", "popcnt", "real",
    }),
    ("unary with result_accuracy", frozenset(UNARY_ACCURATE)),
    ("unary not inferable", frozenset({
        "bitcast", "copy-done", "all-gather-done", "all-reduce-done", "collective-permute-done",
        "bitcast-convert", "convert",
    })),
    ("binary", frozenset(BINARY) | frozenset(BINARY_INTEGER) | {"complex"}),
)


def reference_row(opcode: str) -> str:
    """The row of the opcode table (section 5 of the reference) that holds this opcode."""
    for name, members in ROW_OF_SIMILAR:
        if opcode in members:
            return f"5:{name}"
    return f"5:{opcode}"
