"""Section 9: forms of old dumps, as today's XLA judges them."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ADD, Probe, module

A, R, OPEN = "accept", "reject", ""
VECTOR = ["f32[2]"]
MATRIX = ["f32[2,3]"]


def rows() -> Iterator[tuple[str, str, str, str]]:
    yield "2017-18 module name", "module-name-colon", module("ROOT c = f32[] constant(1)").replace("HloModule m", "HloModule m:"), A
    row = "2017-18 constants repeat the shape"
    yield row, "constant-matrix", module("ROOT c = f32[2,2] constant(f32[2,2] { { 1, 2 }, { 3, 4 } })"), R
    yield row, "constant-tuple", module("ROOT c = (f32[], f32[]) constant((f32[], f32[]) ( 1, 2 ))"), R
    yield row, "constant-vector-without", module("ROOT c = f32[2] constant({1, 2})"), A
    row = "2017-18 opcodes"
    for name in ("equal-to", "not-equal-to", "greater-than", "greater-than-or-equal-to", "less-than", "less-than-or-equal-to"):
        yield row, name, module(f"ROOT r = pred[2] {name}(p0, p0)", parameters=VECTOR), R
    for name, body in (
        ("cross-replica-sum", "ROOT r = f32[2] cross-replica-sum(p0), to_apply=add_f32"), ("generate-token", "ROOT r = token[] generate-token()"), ("tuple-select", "c = pred[] constant(true)\nt = (f32[2]) tuple(p0)\nROOT r = (f32[2]) tuple-select(c, t, t)"), ("trace", "ROOT r = () trace(p0)"), ("host-compute", "ROOT r = f32[2] host-compute(p0)"),
        ("send-without-token", "ROOT r = (f32[2], u32[]) send(p0), channel_id=1"), ("recv-without-token", "ROOT r = (f32[2], u32[]) recv(), channel_id=1"), ("infeed-without-token", "ROOT r = f32[2] infeed()"), ("outfeed-without-token", "ROOT r = () outfeed(p0)"), ("sort-without-comparator", "ROOT r = f32[2] sort(p0), dimensions={0}"), ("sort-of-two-without-comparator", "ROOT r = (f32[2], f32[2]) sort(p0, p0), dimensions={0}"),
        ("all-reduce-barrier", 'ROOT r = f32[2] all-reduce(p0), to_apply=add_f32, barrier=""'), ("all-reduce-id", "ROOT r = f32[2] all-reduce(p0), to_apply=add_f32, all_reduce_id=1"), ("replica-group-ids", "ROOT r = f32[2] all-reduce(p0), to_apply=add_f32, replica_group_ids={0,1}"), ("gather-elided-window", "ROOT r = f32[2] gather(p0, p0), output_window_dims={0}, elided_window_dims={}, gather_dims_to_operand_dims={0}, index_vector_dim=0, window_bounds={1}"),
    ):
        yield row, name, module(body, computations=ADD, parameters=VECTOR), R
    row = "2018-19 layouts and literals"
    yield row, "dense-layout", module("ROOT p = f32[2,3]dense{1,0} parameter(0)"), R
    yield row, "sparse-layout", module("ROOT p = f32[2,3]sparse{100} parameter(0)"), R
    yield row, "sparse-literal", module("ROOT c = f32[2,3] constant({[0,1]: 5, [1,1]: 6})"), R
    yield row, "opaque-on-custom-call", module('ROOT r = f32[2] custom-call(p0), custom_call_target="t", opaque="x"', parameters=VECTOR), R
    yield row, "sharding-tile-shape", module("ROOT r = f32[2,3] negate(p0), sharding={f32[2,1] devices=[1,2]0,1}", parameters=MATRIX), R
    row = "<=2020 aliasing"
    aliased = module("ROOT r = f32[2] negate(p0)", parameters=VECTOR)
    for name, value in (("plain-number", "{ {}: 0 }"), ("kind-user", "{ {}: (0, {}, USER) }"), ("kind-system", "{ {}: (0, {}, SYSTEM) }"), ("kind-underscore", "{ {}: (0, {}, may_alias) }")):
        yield row, f"aliasing-{name}", aliased.replace("HloModule m", f"HloModule m, input_output_alias={value}"), R
    yield "2020-22 no layout", "invalid-layout", module("ROOT p = f32[2]invalid{} parameter(0)"), R
    yield "<=2022 header", "dynamic-parameter-binding", aliased.replace("HloModule m", "HloModule m, dynamic_parameter_binding={(0, {}): 1, {}, 0}"), R
    yield "<=2022 header", "bare-header", aliased, A
    quoted = 'backend_config="{\\"a\\":1}"'
    yield "<=mid 2023 quoted backend_config", "backend-config-quoted", module(f"ROOT r = f32[2] negate(p0), {quoted}", parameters=VECTOR), A
    yield "<=mid 2023 quoted backend_config", "backend-config-octal", module('ROOT r = f32[2] negate(p0), backend_config="\\004\\000\\303\\251"', parameters=VECTOR), A
    row = "<=2023 async attributes"
    callee = "callee {\n  x = f32[2] parameter(0)\n  ROOT n = f32[2] negate(x)\n}"
    start = "s = ((f32[2]), f32[2], u32[]) async-start(p0){}, calls=callee\nROOT d = f32[2] async-done(s){}"
    yield row, "async-group-id", module(start.format(", async_group_id=0", ", async_group_id=0, calls=callee"), computations=callee, parameters=VECTOR), R
    yield row, "async-calls-on-done", module(start.format("", ", calls=callee"), computations=callee, parameters=VECTOR), A
    repeated = "s = ((f32[2]), f32[2], u32[]) all-to-all-start(p0), replica_groups={{0,1}}\nROOT d = f32[2] all-to-all-done(s), replica_groups={{0,1}}"
    yield row, "async-wrapped-attributes-on-done", module(repeated, parameters=VECTOR), R
    yield "<=2023 V1 device lists", "device-list", module(f"ROOT r = f32[64] negate(p0), sharding={{devices=[64]{','.join(map(str, range(64)))}}}", parameters=["f32[64]"]), A
    row = "2022-24 metadata and sparsity"
    for key in ("size_of_generated_code_in_bytes=4", "size_of_memory_working_set_in_bytes=4", "profile_info={profile_type={WINDOW}}", "creation_pass_id=3", "logical_creation_pass_id=3", "preserve_layout=true"):
        yield row, f"metadata-{key.partition('=')[0]}", module(f'ROOT r = f32[2] negate(p0), metadata={{op_name="a" {key}}}', parameters=VECTOR), R
    yield row, "dot-sparsity", module("ROOT r = f32[2,2] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sparsity=L.1@2:4", parameters=["f32[2,3]", "f32[3,2]"]), R
    yield row, "layout-level-types", module("ROOT p = f32[2,3]{1,0:D(D,C)} parameter(0)"), A
    yield row, "layout-index-types", module("ROOT p = f32[2,3]{1,0:D(D,C)#(u32)*(u32)} parameter(0)"), A
    yield row, "layout-physical-shape", module("ROOT p = f32[2,3]{1,0:D(D,C)P((s32[2],f32[6]))} parameter(0)"), R
    yield "2023-25 inline locations", "source-file-and-line", module('ROOT r = f32[2] negate(p0), metadata={op_type="neg" op_name="n" source_file="a.py" source_line=3}', parameters=VECTOR), A
    yield "2023-25 inline locations", "frame-without-tables", module('ROOT r = f32[2] negate(p0), metadata={op_name="n" stack_frame_id=7}', parameters=VECTOR), A


def probes() -> Iterator[Probe]:
    for row, name, text, expected in rows():
        yield Probe(f"history/{name}", f"9:{row}", text, expected)
