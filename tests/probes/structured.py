"""Section 6: attributes with a grammar of their own."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ADD, Probe, module, slug, table
from .opcode_table import CALLEE

A, R, OPEN = "accept", "reject", ""


def unary(tail: str, shape: str = "f32[2]") -> str:
    return module(f"ROOT r = {shape} negate(p0), {tail}", parameters=[shape])


def reduce_window(window: str) -> str:
    return module(
        f"ROOT r = f32[2,1] reduce-window(p0, p1), window={window}, to_apply=add_f32",
        computations=ADD, parameters=["f32[2,3]", "f32[]"],
    )


def custom_call(tail: str, shape: str = "f32[2]", parameters: tuple[str, ...] = ("f32[2]",)) -> str:
    operands = ", ".join(f"p{number}" for number in range(len(parameters)))
    return module(
        f'ROOT r = {shape} custom-call({operands}), custom_call_target="t", {tail}',
        computations=CALLEE, parameters=parameters,
    )


WINDOW_OK = (
    "{size=1x3}", "{size=1x3 stride=1x1}", "{size=1x3 stride=1x1 pad=0_0x1_1}", "{pad=0_0x1_1 size=1x3}", "{size=1x3 pad=-1_0x0_-1}", "{}", "{ }",
    "{size=1x3 lhs_dilate=1x2 rhs_dilate=2x1}", "{size=1x3 rhs_reversal=0x1}", "{size=1x3\n stride=1x1}", "{size= 1x3}", "{size=0x0}",
    "{rhs_reversal=1x1 rhs_dilate=1x1 lhs_dilate=1x1 pad=0_0x0_0 stride=1x1 size=1x3}", "{size=3}", "{size=1x3/*c*/}", "{size=1x3x4x5}",
)
WINDOW_WRONG = (
    "{size=1x3, stride=1x1}", "{size=1x3 size=1x3}", "{size=1x3 stride=1}", "{stride=1x1}", "{pad=0_0}", "{size=1x3 pad=0_0}", "{size=1x3 pad=0x0}",
    "{size=1x3 pad=0_0_0x0_0_0}", "{size=1_3}", "{size={1,3}}", "{size=1x}", "{size=x3}", "{size =1x3}", "{foo=1}", "{size}", "{size=}", "{size=1x3",
    "size=1x3", "", "{size=1x3 pad=1}", "{size=1x3 lhs_dilate=2}", "{size=1x3 dilate=1x1}", "{size=1 x 3}", "{size=1x3;}", "{size=1.0x3}", "{size=1x-3}",
    "(size=1x3)", "{{size=1x3}}", "{size=1x3 window_reversal=0x0}", "{size=1x3 pad=0_0,0_0}", "{size='1x3'}", "{,size=1x3}",
)
WINDOW_OPEN = ("{size=-1}", "{size=1x3 rhs_reversal=2x3}", "{size=1x3 stride=0x0}", "{size=99999999999999999999x1}", "{size=1 pad=1_1}", "{size=1 stride=-1}", "{size=18446744073709551615}")
PADDING = (
    ("0_0x0_0", A), ("1_2x3_4", A), ("1_2_3x3_4_5", A), ("1_2_3x3_4", A), ("-1_0x0_-2", A), ("0_0x0_0x0_0", OPEN), ("0_0", OPEN),
    ("1", R), ("1x1", R), ("", R), ("{1_2}", R), ("1_2x", R), ("1_2_-1x0_0", R), ("1_x", R), ('"1_2"', R), ("1_2_3_4x0_0", R), ("1_2 x 1_2", R),
    ("1_2,1_2", R), ("1.0_2x0_0", R), ("0_0x0_0 1", R), ("99999999999999999999_0x0_0", OPEN), ("0_0x0_0_0", A),
)
SLICES_OK = ("{[0:1], [0:3]}", "{[0:1:1], [0:3:2]}", "{[0:1], [0:3:2]}", "{[0:1],[0:3]}", "{ [ 0 : 1 ] , [0:3] }", "{[5:9], [7:8]}", "{[0:2], [0:3]}")
SLICES_WRONG = ("{[0:1]", "{[0], [0:3]}", "{[0:1:1:1], [0:3]}", "{0:1, 0:3}", "{(0:1), (0:3)}", "[0:1], [0:3]", "", "{[0:x], [0:3]}", "{[:1], [0:3]}", "{[0:], [0:3]}", "{[0,1], [0:3]}", "{[0:1] [0:3]}", "{[0 1], [0:3]}", "{[]}", "{[0:1.5], [0:3]}")
SLICES_OPEN = ("{}", "{[0:1]}", "{[0:1], [0:3], [0:1]}", "{[0:1], [0:3],}", "{[-1:1], [0:3]}", "{[0:1:0], [0:3]}", "{[0:1:-1], [0:3]}", "{[2:1], [0:3]}")
LABELS_OK = ("b0f_0io->b0f", "bf0_io0->bf0", "0bf_0io->b0f", "f0b_i0o->0fb", "b?0f_?0io->b?0f", "b01f_01io->b01f", "bf_io->bf", "b10f_01oi->b01f", "b0f_0io->bf0", "b0f?_0io?->b0f?", "b01f_10io->f10b")
LABELS_WRONG = (
    "b0f_0io", "b0f->b0f", "bf0_io0-> bf0", "b0f _0io->b0f", '"b0f_0io->b0f"', "", "b0x_0io->b0f", "b0f_0bf->b0f", "i0o_0io->b0f", "bb0f_0io->b0f", "b00f_00io->b00f", "b0_0io->b0f",
    "b0f_0i->b0f", "b0f_0io->b0", "b1f_0io->b0f", "b0f_1io->b0f", "b0f_0io->b1f", "b01f_0io->b0f", "b0f_01io->b0f", "b0f_0io->b01f", "0f_0io->b0f", "bf_io_bf", "{b0f_0io->b0f}", "b0f_0io->", "_->", "b0f_0io->b0fb",
    "b02f_02io->b02f", "b0f_0iio->b0f", "b0ff_0io->b0f", "B0F_0IO->B0F",
)
METADATA_OK = (
    "{}", '{op_name="a"}', '{op_type="t" op_name="a"}', '{op_type="t", op_name="a"}', '{,op_name="a"}', '{op_name="a" source_file="f.py" source_line=3}', '{source_line=3 op_name="a"}',
    '{source_line=3 source_end_line=4 source_column=5 source_end_column=6}', "{source_line=0}", "{source_line=-1}", "{source_line=2147483647}", "{stack_frame_id=5}",
    "{profile_type={0}}", "{profile_type={1,2,3}}", '{deduplicated_name="d"}', '{scheduling_name="s"}', '{metadata_payload="p"}', "{op_name='a'}", '{op_name="a\\"b"}', '{ op_name = "a" }'.replace(" = ", "= "), '{op_name="jit(f)/jvp(g)/dot_general[dimension_numbers=(((1,), (0,)), ((), ()))]"}',
    '{op_type="t" op_name="a" source_file="f" source_line=1 source_end_line=2 source_column=3 source_end_column=4 profile_type={1} deduplicated_name="d" scheduling_name="s" stack_frame_id=0 metadata_payload="p"}', "{profile_type={}}", '{op_name=""}', "{\n}",
)
METADATA_WRONG = (
    '{op_name="a" op_name="b"}', "{foo=1}", '{op_name="a",}', '{op_name="a",, op_type="b"}', "{op_name=a}", "{op_name=1}", '{source_line="3"}', "{source_line=2147483648}", "{source_line=1.5}", "{source_line=-2147483649}",
    "{profile_type=1}", "{profile_type={4}}", "{profile_type={x}}", "{source_file=f}", '{op_name:"a"}', '{"op_name"="a"}', '{op_name ="a"}', "{op_name}", '{op_name="a"', 'op_name="a"', '"a"', "", "()", '{op_name="a"; op_type="b"}', "{size_of_generated_code_in_bytes=4}", "{profile_info={}}",
    "{creation_pass_id=1}", "{logical_creation_pass_id=1}", "{preserve_layout=true}", "{{}}", "{op_name={a}}", "{stack_frame_id=x}", "{size_of_memory_working_set_in_bytes=1}", "{profile_type={-1}}", "{scheduling_name=s}",
)
STATISTICS = (
    ("{}", A), ("{visualizing_index=0}", A), ("{visualizing_index=1,a=1.5,b=2}", A), ("{visualizing_index=0, a=1}", A), ("{x=0,a=1}", A), ("{visualizing_index=0,a=-1.5}", A), ("{visualizing_index=0,a=1e9}", A),
    ("{visualizing_index=1.5}", R), ("{a}", R), ("{visualizing_index=0 a=1}", R), ('{visualizing_index="0"}', R), ("", R), ("{visualizing_index=0,a=x}", R), ("{visualizing_index=0,}", R), ("visualizing_index=0", R), ('{visualizing_index=0,a="1"}', R),
    ("{visualizing_index=5,a=1}", OPEN), ("{visualizing_index=-1}", OPEN), ("{visualizing_index=0,a=1,a=2}", OPEN), ("{visualizing_index=0,a=inf}", OPEN), ("{visualizing_index=0,a=nan}", OPEN), ("{0}", R), ("{visualizing_index:0}", R), ("{visualizing_index =0}", R),
)
ORIGIN = (
    ("{}", OPEN), ("{{}}", A), ('{{"v"}}', A), ('{{"v" {0}}}', A), ('{{"v" {0,1}}}', A), ("{[synthetic_call]}", A), ('{({"a"}, {"b"})}', A), ('{(({"v1"}, {"v2" {0,1}}), {})}', A), ("{()}", A),
    ("{({})}", A), ("{v}", R), ('{"v"}', R), ("{{v}}", R), ("", R), ("[synthetic_call]", R), ("{[foo]}", R), ('{{"v" 0}}', R), ('{{"v", {0}}}', R), ('{{"v"}', R), ('{({"a"} {"b"})}', OPEN), ("{synthetic_call}", R), ('{{"v" {x}}}', R), ('{{1}}', R),
    ('{({"a"}}', OPEN), ("{[synthetic_call}", OPEN), ('{{"a"}{"b"}}', OPEN), ('{({"a"},)}', OPEN), ('{((({"a"})))}', OPEN), ("{{'v'}}", A), ("{({}, {}, {})}", OPEN),
)
ACCURACY = (
    ("{mode=default}", A), ("{mode=highest}", A), ("{mode=HIGHEST}", A), ("{mode=Default}", A), ("{tolerance={atol=1,rtol=2,ulps=3}}", A), ("{tolerance={atol=1e-3}}", A), ("{tolerance={ulps=5}}", A), ("{tolerance={rtol=0.5, atol=0.1}}", A), ("{tolerance={}}", A),
    ("{mode=high}", R), ("{mode=}", R), ("{}", OPEN), ("highest", R), ("", R), ("{tolerance={ulps=1.5}}", OPEN), ("{tolerance={foo=1}}", R), ("{tolerance=1}", R), ("{tolerance={atol=x}}", R), ("{mode=highest, tolerance={}}", OPEN), ('{mode="highest"}', R), ("{foo=1}", R),
    ("{tolerance={atol=-1}}", OPEN), ("{tolerance={ulps=-1}}", OPEN), ("{tolerance={atol=1 rtol=2}}", OPEN), ("{tolerance={atol=inf}}", OPEN), ("{tolerance={atol=1,atol=2}}", OPEN), ("{mode=highest mode=default}", OPEN), ("{tolerance={rtol=1}, tolerance={rtol=2}}", OPEN),
)
ALIASING = (
    ("{}", A), ("{{}: (0, {})}", A), ("{ {}: (0, {}) }", A), ("{{}: (0, {}), {}: (0, {})}", OPEN), ("{{}: (0, {}),}", OPEN), ("{{}: (0, {}, must-alias)}", R), ("{{}: (0, {}, may-alias)}", R), ("{{}: 0}", R), ("{{}: (x, {})}", R), ("{{} (0, {})}", R), ("{(0, {})}", R),
    ("{{0}: (0, {})}", OPEN), ("{{}: (7, {})}", OPEN), ("{{}: (0, {3})}", OPEN), ("{{-1}: (0, {})}", OPEN), ("{{}: (-1, {})}", OPEN), ("", R), ("{{}: (0)}", R), ("{{}: (0, {})", R),
)
PAIRS = (
    ("{}", A), ("{{0,1}}", A), ("{{0,1},{1,0}}", A), ("{ { 0 , 1 } , {1,0} }", A), ("{{0,1},}", OPEN), ("{{0}}", R), ("{{0,1,2}}", R), ("{0,1}", R), ("{{0,1} {1,0}}", R), ("{{}}", R), ("", R), ("{{0,x}}", R), ("{{0,1},{2}}", R), ("((0,1))", R), ("{{-1,0}}", OPEN), ("{{0,1},{0,1}}", OPEN), ("{{0,0}}", A), ("{{{0,1}}}", R),
)
CONSTRAINTS = (
    ("{f32[2]{0}}", A), ("{f32[2]}", A), ("{ f32[2]{0} }", A), ("{}", OPEN), ("{f32[2]{0}, f32[2]{0}}", R), ("{f32[3]{0}}", R), ("{s32[2]{0}}", R), ("f32[2]{0}", R), ("{(f32[2]{0})}", R), ("", R), ("{f32[2]{0},}", OPEN), ("{p0}", R), ("{f32[2]{0}", R), ("{f32[2,1]{1,0}}", R), ("{f32[<=2]{0}}", OPEN), ("{f32[2]{0:T(128)}}", A), ("{{f32[2]}}", R),
)
REPLICATION = (
    ("f32[2]", "{true}", A), ("f32[2]", "{false}", A), ("f32[2]", "{}", R), ("f32[2]", "{true,true}", R), ("f32[2]", "true", R), ("f32[2]", "{1}", R), ("f32[2]", "", R), ("(f32[2], s32[])", "{true,false}", A), ("(f32[2], s32[])", "{true}", R),
    ("(f32[2], s32[])", "{true,false,true}", R), ("()", "{}", A), ("(f32[2], (s32[], s32[]))", "{true,false,true}", A), ("f32[2]", "{true,}", OPEN), ("token[]", "{true}", OPEN),
)
LITERAL_ATTRIBUTE = (
    ("s32[2]{0} {1, 2}", A), ("f32[] 0.1", A), ("(f32[] 1, s32[] 2)", A), ("(f32[] 1, s32[2]{0} {1, 2})", A), ("s32[2] {1, 2}", R), ("pred[] true", A), ("c64[] (1, 2)", A), ("0.1", R), ("{1, 2}", R), ("s32[2]{0} {1, 2, 3}", R), ("", R), ("f32[]", R), ("(1, 2)", R), ("s32[2]{0} {...}", OPEN), ("()", A),
    ("f32[2]{0} 1", OPEN), ("((f32[] 1), s32[] 2)", A), ("(f32[] 1 s32[] 2)", OPEN), ("token[]", OPEN), ("(f32[] 1,)", OPEN), ("(f32[]) 1", OPEN), ("s32[2,2]{1,0} {{1,2},{3,4}}", A),
)
DOMAINS = (
    ('{kind="sharding", entry={replicated}, exit={maximal device=0}}', A), ('{kind="sharding", entry={}, exit={}}', A), ('{exit={replicated}, entry={replicated}, kind="sharding"}', A), ('{kind="sharding" entry={replicated} exit={replicated}}', OPEN), ('{kind="sharding", entry={replicated}}', R),
    ('{entry={replicated}, exit={replicated}}', R), ('{kind="other", entry={replicated}, exit={replicated}}', R), ("{kind=sharding, entry={replicated}, exit={replicated}}", R), ("{}", R), ("", R), ('{kind="sharding", entry={replicated}, exit={replicated}, foo=1}', R), ('"sharding"', R), ('{kind="sharding", kind="sharding", entry={replicated}, exit={replicated}}', R), ('{kind="", entry={replicated}, exit={replicated}}', OPEN),
)
SLICE_SIZES = (("{}", OPEN), ("{{1}}", OPEN), ("{{2},{2}}", OPEN), ("{{1},{1}}", OPEN), ("{1}", R), ("1", R), ("", R), ("{{x}}", R), ("{{1} {1}}", R), ("{{1},}", OPEN))
SPARSITY = (
    ("{lhs={sparsity=2x4 dimension=1 stride=1}}", OPEN), ("{ lhs={sparsity=2x4 dimension=1 stride=1} rhs={sparsity=1x2 dimension=0 stride=2}}", OPEN), ("{}", OPEN), ("{rhs={sparsity=2x4 dimension=1 stride=1}}", OPEN), ("{lhs={}}", OPEN), ("{lhs={sparsity=2}}", R), ("{foo={}}", R), ("", R), ("{lhs={sparsity=2x4, dimension=1}}", OPEN), ("{lhs={dimension=1}}", OPEN), ("lhs", R),
)


def values(prefix: str, row: str, wrap, rows) -> Iterator[Probe]:
    """Like `table`, for lists that carry the expected verdict beside each value."""
    for value, expected in rows:
        yield Probe(f"{prefix}/{slug(value) or 'empty'}", row, wrap(value), expected)


def windows_and_slices() -> Iterator[Probe]:
    yield from table("window", "6:window", reduce_window, WINDOW_OK, WINDOW_WRONG, WINDOW_OPEN)
    yield from values(
        "padding", "6:padding",
        lambda value: module(f"ROOT r = f32[5,9] pad(p0, p1), padding={value}", parameters=["f32[2,3]", "f32[]"]), PADDING,
    )
    scalar = ["f32[]", "f32[]"]
    yield Probe("padding/of-scalar-empty", "6:padding", module("ROOT r = f32[] pad(p0, p1), padding=", parameters=scalar), R)
    yield Probe("padding/of-scalar", "6:padding", module("ROOT r = f32[] pad(p0, p1), padding=0_0", parameters=scalar), OPEN)
    yield from table(
        "slice", "6:slice", lambda value: module(f"ROOT r = f32[1,3] slice(p0), slice={value}", parameters=["f32[2,3]"]),
        SLICES_OK, SLICES_WRONG, SLICES_OPEN,
    )
    yield Probe("slice/of-scalar", "6:slice", module("ROOT r = f32[] slice(p0), slice={}", parameters=["f32[]"]), A)
    yield from table(
        "dim-labels", "6:dim_labels",
        lambda value: module(
            f"ROOT r = f32[1,4,2] convolution(p0, p1), dim_labels={value}, window={{size=3}}",
            parameters=["f32[1,6,3]", "f32[3,3,2]"],
        ), LABELS_OK, LABELS_WRONG,
    )
    yield Probe("dim-labels/no-window", "6:dim_labels", module("ROOT r = f32[1,2] convolution(p0, p1), dim_labels=bf_io->bf", parameters=["f32[1,3]", "f32[3,2]"]), A)
    yield from values(
        "sparsity", "6:sparsity_config",
        lambda value: module(
            f"ROOT r = f32[1,4,2] convolution(p0, p1), dim_labels=b0f_0io->b0f, window={{size=3}}, sparsity_config={value}",
            parameters=["f32[1,6,3]", "f32[3,3,2]"],
        ), SPARSITY,
    )


def annotations() -> Iterator[Probe]:
    yield from table("metadata", "6:metadata", lambda value: unary(f"metadata={value}"), METADATA_OK, METADATA_WRONG)
    yield from values("statistics", "6:statistics", lambda value: unary(f"statistics={value}"), STATISTICS)
    yield from values("origin", "6:origin", lambda value: unary(f"origin={value}"), ORIGIN)
    pair = "(f32[2], f32[2])"
    for value in ('{({"a"}, {"b"})}', '{{"a"}}', '{({"a"})}', '{({"a"}, {"b"}, {"c"})}', "{[synthetic_call]}"):
        text = module(f"ROOT r = {pair} tuple(p0, p0), origin={value}", parameters=["f32[2]"])
        yield Probe(f"origin/of-tuple/{slug(value)}", "6:origin", text, OPEN)
    yield from values(
        "accuracy", "6:result_accuracy",
        lambda value: module(f"ROOT r = f32[2] tanh(p0), result_accuracy={value}", parameters=["f32[2]"]), ACCURACY,
    )
    for shape, value, expected in REPLICATION:
        text = module(f"ROOT p = {shape} parameter(0), parameter_replication={value}")
        yield Probe(f"parameter-replication/{slug(shape)}/{slug(value)}", "6:parameter_replication", text, expected)
    for opcode, text in (
        ("negate", unary("parameter_replication={true}")), ("constant", module("ROOT c = f32[] constant(1), parameter_replication={true}")),
        ("negate-wrong-count", unary("parameter_replication={}")),
    ):
        yield Probe(f"parameter-replication/on/{opcode}", "6:parameter_replication", text, OPEN)
    frontend = (
        ("{}", A), ('{a="b"}', A), ('{a="b",c="d"}', A), ('{a="b", c={d}}', A), ('{a="1",a="2"}', A), ('{a-b.c="x"}', A), ("{a='b'}", A), ('{_xla="x"}', A), ("{a=b}", R), ("{a=1}", R), ("{a=true}", R), ('{"a"="b"}', R), ('{a="b" c="d"}', R), ('{a="b",}', R),
        ("", R), ('"a"', R), ("{a}", R), ("{a=}", R), ('{a ="b"}', R), ('{a= "b"}', A), ("{a={}}", A), ('{f32="x"}', A), ('{true="x"}', A), ('{1="x"}', R), ('{%a="b"}', R), ('{a="b"', R), ("{{}}", R),
    )
    yield from values("frontend", "6:frontend_attributes", lambda value: unary(f"frontend_attributes={value}"), frontend)


def calls_and_transfers() -> Iterator[Probe]:
    yield from values("aliasing/custom-call", "6:output_to_operand_aliasing", lambda value: custom_call(f"output_to_operand_aliasing={value}"), ALIASING)
    yield from values(
        "aliasing/fusion", "6:output_to_operand_aliasing",
        lambda value: module(f"ROOT r = f32[2] fusion(p0), kind=kLoop, calls=callee, output_to_operand_aliasing={value}", computations=CALLEE, parameters=["f32[2]"]),
        [row for row in ALIASING if row[1] != R],
    )
    yield from values(
        "pairs", "6:source_target_pairs",
        lambda value: module(f"ROOT r = f32[2] collective-permute(p0), source_target_pairs={value}", parameters=["f32[2]"]), PAIRS,
    )
    for count in (1, 2, 4):
        inside = ", ".join(f"p{number}" for number in range(count))
        parameters = ["f32[4]", "f32[4]", "(s32[])", "(s32[])"][:count]
        for value, expected in SLICE_SIZES:
            text = module(f"ROOT r = f32[4] collective-permute({inside}), source_target_pairs={{{{0,1}}}}, slice_sizes={value}", parameters=parameters)
            yield Probe(f"permute-slices/{count}-operands/{slug(value) or 'empty'}", "6:slice_sizes (collective-permute)", text, expected)
        text = module(f"ROOT r = f32[4] collective-permute({inside}), source_target_pairs={{{{0,1}}}}", parameters=parameters)
        yield Probe(f"permute-slices/{count}-operands/without", "6:slice_sizes (collective-permute)", text, OPEN)
    yield from values("layout-constraints", "6:operand_layout_constraints", lambda value: custom_call(f"operand_layout_constraints={value}"), CONSTRAINTS)
    yield Probe("layout-constraints/of-tuple", "6:operand_layout_constraints", custom_call("operand_layout_constraints={(f32[2]{0}, s32[])}", parameters=("(f32[2], s32[])",)), A)
    yield Probe("layout-constraints/no-result-layout", "6:operand_layout_constraints", custom_call("operand_layout_constraints={f32[2]{0}}", shape="f32[2]{0}"), A)
    yield Probe("layout-constraints/tuple-result", "6:operand_layout_constraints", custom_call("operand_layout_constraints={f32[2]{0}}", shape="(f32[2], f32[2]{0})"), A)
    yield from values("literal-attribute", "6:literal", lambda value: custom_call(f"literal={value}"), LITERAL_ATTRIBUTE)
    yield from values(
        "domain", "6:domain", lambda value: module(f"ROOT r = f32[2] domain(p0), domain={value}", parameters=["f32[2]"]), DOMAINS,
    )
    yield from table(
        "outfeed-shape", "6:outfeed_shape",
        lambda value: module(f"ROOT r = token[] outfeed(p0, p1), outfeed_shape={value}", parameters=["f32[2]", "token[]"]),
        ("f32[2]{0}", "f32[2]", "f32[3]", "(f32[2], s32[])", "()"), ("", "f32", "{f32[2]}", "x", "'f32[2]'", "f32[2]{1,0}"),
    )
    precision = ("{default}", "{high,high}", "{}", "{default,default,highest}")
    yield from table("custom-precision", "6:operand_precision", lambda value: custom_call(f"operand_precision={value}"), (), (), precision)


def probes() -> Iterator[Probe]:
    yield from windows_and_slices()
    yield from annotations()
    yield from calls_and_transfers()
