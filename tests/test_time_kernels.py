"""Time of hand-written kernels, what binds, MFU by type, assumptions: minimal programs."""

import json
from collections.abc import Iterator

import pytest

import hlofast
from test_cli import hlofast_command

ESTIMATES = ("model", "roofline", "compiler")
V5E, V5E_S8, H100 = 197e12, 393e12, 989e12

QKV = """HloModule m, is_scheduled=true

ENTRY e {
  q = bf16[1,64,4096,128]{3,2,1,0:T(8,128)(2,1)} parameter(0)
  k = bf16[1,64,4096,128]{3,2,1,0:T(8,128)(2,1)} parameter(1)
  v = bf16[1,64,4096,128]{3,2,1,0:T(8,128)(2,1)} parameter(2)
  ROOT a = bf16[1,64,4096,128]{3,2,1,0:T(8,128)(2,1)} custom-call(q, k, v), custom_call_target="TARGET"CONFIG
}
"""
ESTIMATE = (
    ', backend_config={"custom_call_config":{"body":"","cost_estimate":{"flops":"549755813888",'
    '"transcendentals":"1073741824","bytes_accessed":"268435456"}}}'
)
FLOPS = 549755813888


def kernel(target: str = "tpu_custom_call", config: str = ESTIMATE) -> hlofast.Module:
    return hlofast.loads(QKV.replace("TARGET", target).replace("CONFIG", config))


def call(result: str, operands: list[str], name: str = "kernel", attributes: str = "",
         target: str = "tpu_custom_call") -> hlofast.Module:  # fmt: skip
    """A module with one custom call."""
    lines = [f"  p{n} = {shape} parameter({n})" for n, shape in enumerate(operands)]
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    lines.append(
        f'  ROOT {name} = {result} custom-call({names}), custom_call_target="{target}"{attributes}'
    )
    body = "\n".join(lines)
    return hlofast.loads(f"HloModule m, is_scheduled=true\n\nENTRY e {{\n{body}\n}}\n")


def seconds_of(time: hlofast.Time, name: str) -> float:
    return dict(zip(time.table().values("name"), time.table().values("seconds"), strict=True))[name]


class TestEstimatedKernels:
    @pytest.mark.parametrize("estimates", ESTIMATES)
    @pytest.mark.parametrize("chip", ["tpu-v5e", "tpu-v5p", "tpu-v6e"])
    def test_no_estimate_is_above_the_peak(self, chip: str, estimates: str) -> None:
        time = kernel().time(chip, estimates=estimates)
        peak = hlofast.devices.get(chip).per_jax_device("flops.bf16")
        assert time.step_seconds >= FLOPS / peak
        assert 0 < time.mfu <= time.utilization.hfu <= 1
        assert time.bound == "compute"
        assert not time.is_lower_bound

    def test_the_model_assumes_a_rate(self) -> None:
        time = kernel().time("tpu-v5e")
        assert time.step_seconds == pytest.approx(FLOPS / V5E / 0.4)
        assert time.table().values("provenance")[-1] == "assumed"

    @pytest.mark.parametrize("target", ["__gpu$xla.gpu.triton", "triton_kernel_call"])
    def test_kernels_of_gpus_use_tensor_cores(self, target: str) -> None:
        text = QKV.replace("TARGET", target).replace("CONFIG", ESTIMATE)
        time = hlofast.loads(text.replace(":T(8,128)(2,1)", "")).time("h100")
        assert FLOPS / H100 < time.step_seconds < 4 * FLOPS / H100

    def test_a_kernel_multiplies_its_narrowest_floats_of_16_bits_or_more(self) -> None:
        config = ', backend_config={"cost_estimate":{"flops":1000000000000,"bytes_accessed":4096}}'
        wide, half, bytes_ = "f32[512,512]", "bf16[512,512]", "s8[512,512]"
        peaks = {}
        for operands in ([wide, half], [half, bytes_], [bytes_, bytes_]):
            time = call(wide, operands, attributes=config).time("tpu-v5e", estimates="roofline")
            peaks[tuple(operands)] = 1e12 / time.step_seconds
        assert peaks[wide, half] == pytest.approx(V5E)
        assert peaks[half, bytes_] == pytest.approx(V5E)
        assert peaks[bytes_, bytes_] == pytest.approx(V5E_S8)

    def test_a_kernel_of_one_array_is_vector_work(self) -> None:
        config = ', backend_config={"cost_estimate":{"flops":1000000000,"bytes_accessed":4096}}'
        one = call("f32[512,512]", ["f32[512,512]"], attributes=config).time("tpu-v5e")
        two = call("f32[512,512]", ["f32[512,512]"] * 2, attributes=config).time("tpu-v5e")
        assert one.step_seconds > 10 * two.step_seconds


class TestUnknownKernels:
    MODULE = kernel(config="")

    def test_the_step_is_a_lower_bound(self) -> None:
        time = self.MODULE.time("tpu-v5e")
        assert time.is_lower_bound
        assert time.unpriced == ("a",)
        facts = {fact.name: fact for fact in time.facts}
        assert facts["step_seconds"].provenance == "bound"
        assert "at least" in repr(time)
        assert [note.code for note in time.notes if note.code == "unpriced"] == ["unpriced"]

    def test_every_print_says_so(self, tmp_path) -> None:
        path = tmp_path / "m.txt"
        path.write_text(QKV.replace("TARGET", "tpu_custom_call").replace("CONFIG", ""))
        shown = hlofast_command("time", path, "--device", "v5e").stdout
        assert "at least" in next(line for line in shown.splitlines() if line.startswith("step"))
        document = json.loads(hlofast_command("time", path, "--device", "v5e", "--json").stdout)
        facts = document["results"][0]["facts"]
        assert facts["step_seconds"]["provenance"] == "bound"
        verdict = hlofast_command(path, "--device", "v5e").stdout
        assert any("at least" in line for line in verdict.splitlines() if "tep" in line)

    def test_a_function_for_the_target_gives_time_and_flops(self) -> None:
        module = kernel(config="")
        before = module.time("tpu-v5e").step_seconds
        try:
            hlofast.register_custom_call("tpu_custom_call", lambda _: {"flops": FLOPS})
            time = module.time("tpu-v5e")
            assert not time.is_lower_bound
            assert time.step_seconds == pytest.approx(FLOPS / V5E / 0.4)
            assert time.step_seconds > 2 * before
        finally:
            hlofast.unregister_custom_call("tpu_custom_call")
        assert module.time("tpu-v5e").step_seconds == before


B, H, S, D = 2, 4, 2048, 128
ACTIVATION = f"bf16[{B},{H},{S},{D}]"
ROWS = f"f32[{B},{H},8,{S}]"
MASK = ["s8[1,4,4]", "s8[1,4,4]"]
SQUARE = 2 * B * H * S * S * D
"""FLOPs of one product over all scores."""
BLOCKS = 10 / 16
"""Of 4 x 4 blocks, a causal kernel computes 10."""


class TestAttention:
    @pytest.mark.parametrize(
        ("name", "operands", "result", "products", "share"),
        [
            ("splash_mha_fwd_residuals", [*MASK, *[ACTIVATION] * 3], ACTIVATION, 2, BLOCKS),
            ("splash_mha_fwd_no_residuals", [ACTIVATION] * 3, ACTIVATION, 2, 1),
            ("splash_mha_dq_segmented", [*MASK, *[ACTIVATION] * 3, ROWS], ACTIVATION, 3, BLOCKS),
            (
                "splash_mha_dkv_no_residuals.1",
                [*MASK, *[ACTIVATION] * 3, ROWS],
                f"(f32[{B},512,{D}], f32[{B},512,{D}], {ACTIVATION}, {ACTIVATION})",
                4,
                BLOCKS,
            ),
            (
                "splash_mha_dkv_block_kv_dkv_512_block_q_dkv_512",
                [*MASK, *[ACTIVATION] * 3, ROWS],
                f"(f32[{B},512,{D}], bf16[4,{B},{H},{S},{D}], {ACTIVATION}, {ACTIVATION})",
                5,
                BLOCKS,
            ),
            ("flash_mha_bwd_dkv_block_q_512", [ACTIVATION] * 3, ACTIVATION, 4, 0.5),
            ("flash_mha_bwd_dq_block_q_512", [ACTIVATION] * 3, ACTIVATION, 3, 0.5),
            ("flash_attention.7", [ACTIVATION] * 3, ACTIVATION, 2, 0.5),
        ],
    )  # fmt: skip
    def test_known_by_name_and_operands(
        self, name: str, operands: list[str], result: str, products: int, share: float
    ) -> None:
        module = call(result, operands, name)
        cost, time = module.cost(), module.time("tpu-v5e")
        assert cost.flops == products * SQUARE * share
        row = cost.matmuls().to_pylist()[0]
        assert (row["kind"], row["m"], row["n"], row["k"]) == ("fused_attention", S, S, D)
        assert (row["batch"], row["flops"]) == (B * H, cost.flops)
        how = "modelled" if share == 1 else "assumed"
        assert cost.flops_by_provenance[how] == cost.flops
        assert not time.is_lower_bound
        assert time.step_seconds == pytest.approx(cost.flops / V5E / 0.4)

    def test_block_sizes_of_the_metadata(self) -> None:
        sizes = r"{\"block_q\": 1024, \"block_kv\": 512, \"q_layout\": 1}"
        attributes = f', frontend_attributes={{kernel_metadata={{"xprof_metadata":"{sizes}"}}}}'
        module = call(
            ACTIVATION, ["s8[1,2,4]", "s8[1,2,4]", *[ACTIVATION] * 3], "splash_mha_fwd", attributes
        )
        assert module.cost().flops == 2 * SQUARE * 6 / 8
        local = call(
            ACTIVATION, ["s8[1,2,1]", "s8[1,2,1]", *[ACTIVATION] * 3], "splash_mha_fwd", attributes
        )
        assert local.cost().flops == 2 * SQUARE * 2 / 8

    def test_queries_that_share_keys(self) -> None:
        shared = f"bf16[{B},{S},{D}]"
        module = call(ACTIVATION, [*MASK, ACTIVATION, shared, shared], "splash_mqa_fwd_residuals")
        assert module.cost().flops == 2 * SQUARE * BLOCKS

    def test_scope_names_a_kernel_whose_instruction_does_not(self) -> None:
        attributes = ', metadata={op_name="jit(f)/splash_mha_dq/pallas_call"}'
        module = call(ACTIVATION, [*MASK, *[ACTIVATION] * 3], "custom", attributes)
        assert module.cost().flops == 3 * SQUARE * BLOCKS

    def test_kernels_of_gpus(self) -> None:
        rows = f"bf16[{B},{S},{H},{D}]"
        target = "__gpu$xla.gpu.triton"
        module = call(rows, [rows] * 3, "mha_forward.2", target=target)
        assert module.cost().flops == 2 * SQUARE / 2
        assert call(rows, [rows] * 3, "mha_backward", target=target).cost().flops == 7 * SQUARE / 2

    def test_pages(self) -> None:
        paged = call(
            "bf16[8,16,128]",
            ["s32[8]", "s32[64]", "bf16[8,16,128]", "bf16[4,512,32,128]", "bf16[4,512,32,128]"],
            "paged_attention",
        )  # fmt: skip
        assert paged.cost().flops == 4 * 8 * 16 * (8 * 32) * 128
        ragged = call(
            "bf16[24,16,128]",
            ["s32[8]", "s32[8,4]", "bf16[24,16,128]", "bf16[512,32,8,128]"],
            "ragged_paged_attention_kernel.1",
        )
        assert ragged.cost().flops == 4 * 24 * 16 * (4 * 32) * 128
        assert not ragged.time("tpu-v6e").is_lower_bound

    def test_a_causal_mask_of_cudnn_halves(self) -> None:
        config = (
            ', backend_config={"cudnn_fmha_backend_config":{"intermediate_tensor_shape":'
            '{"element_type":"BF16","dimensions":["2","4","128","128"]},"mask_type":"MASK"}}'
        )
        flops = [
            call(
                "(bf16[2,4,128,64], u8[0])",
                ["bf16[2,128,4,64]"] * 3,
                attributes=config.replace("MASK", mask),
                target="__cudnn$fmhaSoftmax",
            )
            .cost()
            .flops
            for mask in ("NO_MASK", "CAUSAL")
        ]
        assert flops[0] == 2 * flops[1] == 4 * 2 * 4 * 128 * 128 * 64


RAGGED = """HloModule m, is_scheduled=true

ENTRY e {
  counts = s32[4]{0} parameter(0)
  x = bf16[4096,2048]{1,0:T(8,128)(2,1)} parameter(1)
  w = bf16[4,2048,1024]{2,1,0:T(8,128)(2,1)} parameter(2)
  ragged-dot-metadata = (s32[5]{0}, s32[4]{0}, s32[4]{0}, s32[1]{0}) custom-call(counts), custom_call_target="tpu_custom_call"
  a = s32[1]{0} get-tuple-element(ragged-dot-metadata), index=3
  b = s32[5]{0} get-tuple-element(ragged-dot-metadata), index=0
  ROOT ragged-dot-none = bf16[4096,1024]{1,0:T(8,128)(2,1)} custom-call(a, b, x, w), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"","cost_estimate":{"flops":"17179869184","transcendentals":"0","bytes_accessed":"41943040"}}}
}
"""


def test_ragged_dots_of_tpus_are_matmuls() -> None:
    module = hlofast.loads(RAGGED)
    cost, time = module.cost(), module.time("tpu-v5e")
    row = cost.matmuls().to_pylist()[0]
    assert (row["kind"], row["m"], row["n"], row["k"]) == ("ragged_dot", 4096, 1024, 2048)
    assert row["flops"] == cost.flops == 2 * 4096 * 1024 * 2048
    assert row["provenance"] == "from_backend_config"
    ideal = cost.flops / V5E
    assert ideal <= seconds_of(time, "ragged-dot-none") < 1.5 * ideal
    assert not time.is_lower_bound


def product(kind: str, m: int, k: int, n: int, total: str | None = None, extra: str = "") -> str:
    return f"""HloModule m, is_scheduled=true

ENTRY e {{
  x = {kind}[{m},{k}]{{1,0}} parameter(0)
  y = {kind}[{k},{n}]{{1,0}} parameter(1)
  ROOT d = {total or kind}[{m},{n}]{{1,0}} dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{extra}
}}
"""


class TestWhatBinds:
    @pytest.mark.parametrize("estimates", ESTIMATES)
    @pytest.mark.parametrize("chip", ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "h100"])
    def test_a_large_product_computes(self, chip: str, estimates: str) -> None:
        module = hlofast.loads(product("bf16", 8192, 28672, 8192))
        time = module.time(chip, estimates=estimates)
        assert time.bound == "compute"
        assert time.compute_seconds == time.step_seconds
        last = len(module) - 1
        own = {name: time.column(name)[last] for name in ("seconds", "compute_seconds")}
        memory = time.column("memory_seconds")[last]
        assert memory < own["compute_seconds"] <= own["seconds"]

    def test_it_costs_little_more_than_its_peak(self) -> None:
        time = hlofast.loads(product("bf16", 8192, 28672, 8192)).time("tpu-v5e")
        assert 1 <= time.step_seconds / (2 * 8192 * 28672 * 8192 / V5E) < 1.06

    def test_windows_of_a_product_overlap(self) -> None:
        config = (
            ', backend_config={"window_config":{"kernel_window_bounds":["32","8"],'
            '"output_window_bounds":["64","8"],"input_window_bounds":["64","32"],'
            '"estimated_cycles":"60000000","iteration_bounds":["16","8","7"]}}'
        )
        module = hlofast.loads(product("bf16", 8192, 28672, 8192, extra=config))
        ideal = 2 * 8192 * 28672 * 8192 / V5E
        assert 1 <= module.time("tpu-v5e").step_seconds / ideal < 1.2
        compiler = module.time("tpu-v5e", estimates="compiler")
        assert compiler.step_seconds == pytest.approx(60e6 / 1.5e9)
        assert compiler.bound == "compute"


class TestUtilization:
    @pytest.mark.parametrize("estimates", ESTIMATES)
    def test_the_peak_is_that_of_the_type_multiplied(self, estimates: str) -> None:
        module = hlofast.loads(product("s8", 8192, 8192, 8192, "s32"))
        time = module.time("tpu-v5e", estimates=estimates)
        assert 0.9 < time.mfu <= 1
        assert time.utilization.peak_flops == V5E_S8

    def test_several_types_are_weighted_by_their_seconds(self) -> None:
        text = """HloModule m, is_scheduled=true

ENTRY e {
  x = bf16[2048,2048]{1,0} parameter(0)
  y = s8[2048,2048]{1,0} parameter(1)
  d = bf16[2048,2048]{1,0} dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  i = s32[2048,2048]{1,0} dot(y, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = (bf16[2048,2048]{1,0}, s32[2048,2048]{1,0}) tuple(d, i)
}
"""
        time = hlofast.loads(text).time("tpu-v5e")
        flops = 2 * 2048**3
        ideal = flops / V5E + flops / V5E_S8
        assert time.mfu == pytest.approx(ideal / time.step_seconds)
        assert time.utilization.peak_flops == pytest.approx(2 * flops / ideal)

    def test_a_given_peak_holds_for_all(self) -> None:
        cost = hlofast.loads(product("s8", 64, 64, 64, "s32")).cost()
        assert cost.mfu(1.0, 1e6).mfu == 2 * 64**3 / 1e6

    def test_without_names_recomputation_is_unknown(self) -> None:
        module = hlofast.loads(product("bf16", 64, 64, 64))
        assert "recompute-unknown" in [note.code for note in module.time("tpu-v5e").notes]
        name = ', metadata={op_name="jit(f)/dot"}'
        module = hlofast.loads(product("bf16", 64, 64, 64, extra=name))
        assert "recompute-unknown" not in [note.code for note in module.time("tpu-v5e").notes]


BRANCHES = """HloModule m, is_scheduled=true

small {
  x = f32[64,64]{1,0} parameter(0)
  ROOT n = f32[64,64]{1,0} negate(x)
}

large {
  x = f32[64,64]{1,0} parameter(0)
  ROOT d = f32[64,64]{1,0} dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY e {
  p = pred[] parameter(0)
  x = f32[64,64]{1,0} parameter(1)
  y = f32[64,64]{1,0} add(x, x)
  ROOT c = f32[64,64]{1,0} conditional(p, y, y), true_computation=large, false_computation=BRANCH
}
"""


class TestAssumptions:
    def test_a_branch_is_assumed(self) -> None:
        module = hlofast.loads(BRANCHES.replace("BRANCH", "small"))
        cost, time = module.cost(), module.time("tpu-v5e")
        assert cost.flops_by_provenance["assumed"] == 2 * 64**3
        assert cost.flops_by_provenance["exact"] == 64 * 64
        assert sum(row["exact_flops"] for row in cost.by("opcode")) == 64 * 64
        assert {fact.name: fact.provenance for fact in cost.facts}["flops"] == "assumed"
        how = dict(zip(time.table().values("name"), time.table().values("provenance"), strict=True))
        assert (how["d"], how["y"]) == ("assumed", "modelled")
        assert time.assumed_branches == ("c",)
        assert "assumed-branches" in [note.code for note in time.notes]

    def test_equal_branches_are_exact(self) -> None:
        text = BRANCHES.replace("BRANCH", "same").replace(
            "ENTRY e", "same {\n  x = f32[64,64]{1,0} parameter(0)\n  ROOT d = f32[64,64]{1,0} "
            "dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n}\n\nENTRY e"
        )  # fmt: skip
        assert hlofast.loads(text).cost().flops_by_provenance["assumed"] == 0

    @pytest.mark.parametrize(("kind", "factor"), [("f32", 2), ("c64", 8), ("c128", 8)])
    def test_complex_products_run_eight_flops(self, kind: str, factor: int) -> None:
        cost = hlofast.loads(product(kind, 8, 16, 32)).cost()
        assert cost.flops == cost.flops_by_provenance["exact"] == factor * 8 * 16 * 32
        assert cost.matmuls().to_pylist()[0]["flops"] == cost.flops
        assert hlofast.loads(product(kind, 8, 16, 32)).cost(xla=True).flops == 2 * 8 * 16 * 32


def programs_without_sizes() -> Iterator[tuple[str, int]]:
    """Programs whose windows give no sizes, and XLA's FLOPs (jaxlib 0.10.2)."""
    for shape, kernel_shape, labels, window in (
        ("1,4", "4,1", "bf_io->bf", "{rhs_reversal=1}"),
        ("1,1,4", "1,4,1", "b0f_0io->b0f", "{rhs_reversal=1}"),
        ("1,1,1,4", "1,1,4,1", "b01f_01io->b01f", "{size=1x1 rhs_reversal=1x1}"),
    ):
        result = shape[:-1] + "1"
        yield (
            f"""HloModule m

ENTRY e {{
  x = f32[{shape}] parameter(0)
  k = f32[{kernel_shape}] parameter(1)
  ROOT c = f32[{result}] convolution(x, k), window={window}, dim_labels={labels}
}}
""",
            8,
        )
    yield (
        """HloModule m

ge {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT g = pred[] compare(a, b), direction=GE
}

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

ENTRY e {
  x = f32[] parameter(0)
  s = f32[] parameter(1)
  z = f32[] constant(0)
  ROOT r = f32[] select-and-scatter(x, s, z), select=ge, scatter=add
}
""",
        1,
    )


@pytest.mark.parametrize(("text", "flops"), list(programs_without_sizes()))
def test_windows_without_sizes(text: str, flops: int) -> None:
    module = hlofast.loads(text)
    assert module.cost(xla=True).flops == module.cost().flops == flops


class TestRelayouts:
    CONFIG = (
        '"window_config":{"output_window_bounds":["1","16","1","8"],'
        '"iteration_bounds":["8","4","14","1"],"kernel_window_bounds":[],"input_window_bounds":[]}'
    )

    def seconds(self, before: str, after: str) -> float:
        text = f"""HloModule m, is_scheduled=true

ENTRY e {{
  x = bf16[8,2,256,3584]{{{before}S(1)}} parameter(0)
  ROOT c = bf16[8,2,256,3584]{{{after}S(1)}} copy(x), backend_config={{{self.CONFIG}}}
}}
"""
        return hlofast.loads(text).time("tpu-v5e").step_seconds

    def test_a_copy_to_other_tiles_unpacks_and_waits(self) -> None:
        own = self.seconds("3,2,1,0:T(8,128)(2,1)", "3,1,2,0:T(2,128)(2,1)")
        assert own == pytest.approx(0.861e-3, rel=0.1)  # libtpu 0.0.42.1

    def test_a_transposition_of_lanes_takes_a_hundred_cycles_a_window(self) -> None:
        own = self.seconds("3,2,1,0:T(8,128)(2,1)", "2,3,1,0:T(8,128)(2,1)")
        assert own == pytest.approx(448 * 100 / 1.5e9)
