"""Section 8, missing result shapes: what XLA infers, and what it then refuses."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ADD, Probe, module, slug
from .opcode_table import BRANCHES, CALLEE, GREATER, LESS, SCANNED, WHILE_PARTS

# opcode with payload and attributes -> lists of operand shapes; p0, p1, ... stand for the operands.
CASES: dict[str, tuple[str, ...]] = {
    "negate(p0)": ("f32[2]{0:S(1)}", "f32[2,3]{0,1}", "f32[<=2]", "f32[?]", "pred[2]", "s32[]", "(f32[2])", "token[]", "c64[2]", "u8[2]"),
    "not(p0)": ("pred[2]", "f32[2]", "u8[2]", "c64[]"),
    "popcnt(p0)": ("u8[2]", "f32[2]", "pred[]"),
    "count-leading-zeros(p0)": ("s64[2]", "f32[]"),
    "abs(p0)": ("c64[2]", "c128[2]", "s32[2]", "pred[]", "u32[2]"),
    "sign(p0)": ("c64[2]", "s32[]", "u32[]", "pred[]"),
    "real(p0)": ("c64[2]", "c128[2]", "f32[2]", "s32[2]", "f16[2]"),
    "imag(p0)": ("c64[2]", "f32[2]", "s32[2]"),
    "is-finite(p0)": ("f32[2]", "s32[2]", "c64[2]", "bf16[2,3]{0,1}"),
    "floor(p0)": ("f32[2]", "s32[2]", "c64[2]"),
    "tanh(p0)": ("f32[2]", "s32[2]", "c64[2]", "pred[2]"),
    "erf(p0)": ("f32[2]", "c64[2]", "s32[]"),
    "logistic(p0)": ("f32[]", "s32[]", "c64[]"),
    "exponential(p0)": ("s32[2]", "c64[2]", "f8e4m3fn[2]"),
    "sine(p0)": ("s32[2]", "c64[2]"),
    "round-nearest-even(p0)": ("f32[]", "s32[]"),
    "copy(p0)": ("f32[2]{0:T(128)}", "(f32[2], s32[])", "token[]"),
    "opt-barrier(p0)": ("f32[2]", "(f32[2], s32[])"),
    "add(p0, p1)": (
        "f32[2];f32[2]", "f32[2,3]{0,1};f32[2,3]", "f32[2];f32[3]", "f32[2];s32[2]", "f32[2];f32[]", "f32[<=2];f32[2]", "f32[2];f32[<=2]", "f32[?];f32[2]", "f32[?];f32[?]", "f32[1];f32[2]", "pred[2];pred[2]", "f32[2];bf16[2]", "(f32[2]);(f32[2])", "c64[];c64[]", "f32[2]{0:S(1)};f32[2]", "f32[<=3];f32[<=2]", "f32[2,3];f32[3,2]", "token[];token[]",
    ),
    **{
        f"{opcode}(p0, p1)": ("pred[];pred[]", "s32[2];s32[2]", "c64[];c64[]", "f32[2,1];f32[2,3]", "f32[];s32[]")
        for opcode in ("subtract", "multiply", "divide", "maximum", "minimum", "or", "xor", "shift-right-logical", "shift-right-arithmetic")
    },
    **{
        f"{opcode}(p0)": ("f16[2]{0:T(128)}", "s32[]", "c64[]", "pred[]")
        for opcode in ("acos", "acosh", "asin", "asinh", "atanh", "exponential-minus-one", "log", "log-plus-one", "sqrt", "cbrt", "rsqrt", "sinh", "cosine", "cosh", "tan", "ceil", "round-nearest-afz")
    },
    "and(p0, p1)": ("pred[];pred[]", "f32[];f32[]", "s32[2];s32[2]", "c64[];c64[]"),
    "shift-left(p0, p1)": ("s32[];s32[]", "f32[];f32[]", "pred[];pred[]"),
    "mulhi(p0, p1)": ("s32[];s32[]", "f32[];f32[]", "u64[];u64[]"),
    "atan2(p0, p1)": ("f32[];f32[]", "s32[];s32[]", "c64[];c64[]"),
    "power(p0, p1)": ("s32[];s32[]", "pred[];pred[]"),
    "remainder(p0, p1)": ("c64[];c64[]", "pred[];pred[]"),
    "complex(p0, p1)": ("f32[2];f32[2]", "f64[2];f64[2]", "f16[2];f16[2]", "s32[2];s32[2]", "f32[2];f64[2]", "f32[2];f32[3]"),
    "compare(p0, p1), direction=LT": ("f32[2];f32[2]", "f32[2,3]{0,1};f32[2,3]", "c64[];c64[]", "pred[];pred[]", "f32[2];f32[3]", "f32[2];s32[2]", "(f32[]);(f32[])", "f32[<=2];f32[<=2]"),
    "compare(p0, p1), direction=EQ": ("c64[];c64[]", "token[];token[]"),
    "clamp(p0, p1, p2)": ("f32[];f32[2];f32[]", "f32[2];f32[2];f32[2]", "f32[2];f32[];f32[2]", "s32[];f32[2];f32[]", "f32[2];f32[2];f32[]", "f32[3];f32[2];f32[3]", "pred[];pred[];pred[]", "f32[];f32[<=2];f32[]"),
    "select(p0, p1, p2)": ("pred[2];f32[2];f32[2]", "pred[];f32[2];f32[2]", "pred[2];f32[2];f32[3]", "s32[2];f32[2];f32[2]", "pred[3];f32[2];f32[2]", "pred[];(f32[2]);(f32[2])", "pred[2];f32[2];s32[2]", "pred[1];f32[2];f32[2]"),
    "tuple(p0, p1)": ("f32[2];s32[]", "(f32[2]);token[]", "f32[2,3]{0,1};f32[]{:S(1)}"),
    "tuple()": ("",),
    "get-tuple-element(p0), index=1": ("(f32[2], s32[3]{0:T(128)})", "(f32[2], (s32[], f32[]))"),
    "after-all()": ("",),
    "after-all(p0, p1)": ("token[];token[]", "token[];f32[]"),
    "add-dependency(p0, p1)": ("f32[2];token[]", "f32[2];f32[]", "(f32[2]);token[]", "f32[2]{0:S(1)};token[]"),
    "broadcast(p0), dimensions={4}": ("f32[2]", "f32[]"),
    "broadcast(p0), dimensions={}": ("f32[2]", "f32[]"),
    "broadcast(p0), dimensions={0,1}": ("f32[2,3]",),
    "broadcast(p0), dimensions={-1}": ("f32[2]",),
    "transpose(p0), dimensions={1,0}": ("f32[2,3]", "f32[2,3]{0,1}", "f32[2]", "f32[2,3,4]", "f32[<=2,3]", "(f32[2,3])"),
    "transpose(p0), dimensions={}": ("f32[]", "f32[2]"),
    "transpose(p0), dimensions={0,2}": ("f32[2,3]",),
    "transpose(p0), dimensions={2,0,1}": ("f32[2,3,4]", "f32[2,3,4]{0,1,2}"),
    "reverse(p0), dimensions={0}": ("f32[2]", "f32[2]{0:S(1)}", "(f32[2])", "f32[]"),
    "reverse(p0), dimensions={5}": ("f32[2]",),
    "reverse(p0), dimensions={0,0}": ("f32[2]",),
    "pad(p0, p1), padding=1_2": ("f32[2];f32[]", "f32[2];s32[]", "f32[2];f32[1]", "f32[<=2];f32[]", "f32[2]{0:S(1)};f32[]", "f32[0];f32[]"),
    "pad(p0, p1), padding=1_2_3": ("f32[4];f32[]", "f32[0];f32[]", "f32[1];f32[]"),
    "pad(p0, p1), padding=-1_-2": ("f32[4];f32[]", "f32[2];f32[]"),
    "pad(p0, p1), padding=0_1x2_0": ("f32[2,3];f32[]", "f32[2,3]{0,1};f32[]"),
    "concatenate(p0, p1), dimensions={0}": ("f32[2];f32[3]", "f32[2];s32[3]", "f32[2,3];f32[4,3]", "f32[2,3];f32[2,4]", "f32[];f32[]", "f32[2];f32[2,1]", "f32[<=2];f32[3]", "f32[2,3]{0,1};f32[4,3]", "f32[?];f32[3]", "f32[2];bf16[3]"),
    "concatenate(p0, p1), dimensions={1}": ("f32[2,3];f32[2,4]", "f32[2];f32[2]"),
    "concatenate(p0), dimensions={0}": ("f32[2]",),
    "concatenate(), dimensions={0}": ("",),
    "concatenate(p0), dimensions={0,1}": ("f32[2,3]",),
    "get-dimension-size(p0), dimensions={0}": ("f32[2]", "f32[]", "(f32[2])", "f32[<=2]"),
    "get-dimension-size(p0), dimensions={0,1}": ("f32[2,3]",),
    "set-dimension-size(p0, p1), dimensions={0}": ("f32[2];s32[]", "f32[<=2];s32[]", "f32[2];s64[]", "f32[2];s32[1]", "f32[];s32[]"),
    "dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}": ("f32[2,3];f32[3,4]", "f32[2,3]{0,1};f32[3,4]", "f32[2,3];f32[4,3]", "f32[2,3];bf16[3,4]", "bf16[2,3];bf16[3,4]", "s8[2,3];s8[3,4]", "f8e4m3fn[2,3];f8e5m2[3,4]", "f32[2];f32[2]", "f32[<=2,3];f32[3,4]", "f32[2,?];f32[3,4]", "s32[2,3];f32[3,4]", "(f32[2,3]);f32[3,4]"),
    "dot(p0, p1), lhs_contracting_dims={2}, rhs_contracting_dims={1}, lhs_batch_dims={0}, rhs_batch_dims={0}": ("f32[5,2,3];f32[5,3,4]", "f32[5,2,3];f32[6,3,4]"),
    "dot(p0, p1), lhs_contracting_dims={0}, rhs_contracting_dims={0}": ("f32[3];f32[3]", "f32[3,2];f32[3,4]"),
    "dot(p0, p1), lhs_contracting_dims={0,1}, rhs_contracting_dims={0}": ("f32[3,2];f32[3,4]",),
    "dot(p0, p1), lhs_contracting_dims={5}, rhs_contracting_dims={0}": ("f32[3,2];f32[3,4]",),
    "dot(p0, p1), lhs_contracting_dims={0,0}, rhs_contracting_dims={0,0}": ("f32[3,2];f32[3,4]",),
    "dot(p0, p1), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={0}, rhs_contracting_dims={0}": ("f32[3,2];f32[3,4]",),
    "dot(p0, p1)": ("f32[2];f32[3]", "f32[];f32[]", "f32[2,3];f32[4]"),
    "gather(p0, p1), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}": ("f32[10,4];s32[3,1]", "f32[10,4];f32[3,1]", "f32[10,3];s32[3,1]", "f32[10,4];s32[3,2]", "f32[10,4];s32[3]", "f32[10];s32[3,1]", "f32[10,4];s64[<=3,1]"),
    "gather(p0, p1), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={2,4}": ("f32[10,4];s32[3,1]",),
    "gather(p0, p1), offset_dims={1,2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}": ("f32[10,4];s32[3,1]",),
    "gather(p0, p1), offset_dims={0,1}, collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}": ("f32[10,4];s32[3]",),
    "gather(p0, p1), offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1}, index_vector_dim=2, slice_sizes={1,1,4}, operand_batching_dims={0}, start_indices_batching_dims={0}": ("f32[5,10,4];s32[5,3,1]",),
    "scatter(p0, p1, p2), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add_f32": ("f32[10,4];s32[3,1];f32[3,4]", "f32[10,4];f32[3,1];f32[3,4]", "f32[10,4];s32[3,1];f32[3,5]", "f32[10,4];s32[3,1];s32[3,4]", "f32[10,4]{0,1};s32[3,1];f32[3,4]"),
    "convolution(p0, p1), dim_labels=b0f_0io->b0f, window={size=3}": ("f32[1,6,3];f32[3,3,2]", "f32[1,6,3];f32[3,4,2]", "f32[1,6,3];f32[4,3,2]", "bf16[1,6,3];bf16[3,3,2]", "s8[1,6,3];s8[3,3,2]", "f32[1,6];f32[3,3,2]", "f32[1,6,3];f32[3,3]"),
    "convolution(p0, p1), dim_labels=b0f_0io->b0f, window={size=3 stride=2 pad=1_1}": ("f32[1,6,3];f32[3,3,2]",),
    "convolution(p0, p1), dim_labels=b0f_0io->0bf, window={size=3 lhs_dilate=2 rhs_dilate=2}": ("f32[1,6,3];f32[3,3,2]",),
    "convolution(p0, p1), dim_labels=b0f_0io->b0f, window={size=3}, feature_group_count=3": ("f32[1,6,3];f32[3,1,6]", "f32[1,6,3];f32[3,3,6]", "f32[1,6,3];f32[3,1,5]"),
    "convolution(p0, p1), dim_labels=b0f_0io->b0f, window={size=3}, batch_group_count=2": ("f32[4,6,3];f32[3,3,2]", "f32[3,6,3];f32[3,3,2]"),
    "convolution(p0, p1), dim_labels=b0f_0io->b0f": ("f32[1,6,3];f32[3,3,2]",),
    "convolution(p0, p1), dim_labels=bf_io->bf": ("f32[2,3];f32[3,4]",),
    "fft(p0), fft_type=FFT, fft_length={8}": ("c64[8]", "c64[2,8]", "f32[8]", "c64[9]", "c128[8]", "c64[]"),
    "fft(p0), fft_type=RFFT, fft_length={8}": ("f32[8]", "f64[3,8]", "c64[8]", "f32[7]"),
    "fft(p0), fft_type=IRFFT, fft_length={8}": ("c64[5]", "c64[8]", "f32[5]", "c64[3,5]"),
    "fft(p0), fft_type=IFFT, fft_length={4,8}": ("c64[4,8]", "c64[8]"),
    "fft(p0), fft_type=FFT, fft_length={}": ("c64[8]",),
    "fft(p0), fft_type=FFT, fft_length={1,1,1,1}": ("c64[1,1,1,1]",),
    "cholesky(p0)": ("f32[3,3]", "f32[2,3,3]", "f32[3,4]", "f32[3]", "s32[3,3]", "c64[3,3]", "f32[3,3]{0,1}"),
    "triangular-solve(p0, p1), left_side=true, transpose_a=NO_TRANSPOSE": ("f32[3,3];f32[3,2]", "f32[3,3];f32[2,3]", "f32[3,4];f32[3,2]", "f64[3,3];f32[3,2]", "s32[3,3];s32[3,2]", "f32[3];f32[3]"),
    "triangular-solve(p0, p1), transpose_a=TRANSPOSE": ("f32[3,3];f32[2,3]",),
    "triangular-solve(p0, p1), left_side=true": ("f32[3,3];f32[3,2]",),
    "triangular-solve(p0, p1), left_side=true, transpose_a=TRANSPOSE_INVALID": ("f32[3,3];f32[3,2]",),
    "reduce(p0, p1), dimensions={1}, to_apply=add_f32": ("f32[2,3];f32[]", "f32[2,3]{0,1};f32[]", "f32[2];f32[]", "s32[2,3];s32[]", "f32[2,3];f32[1]", "f32[2,3];s32[]", "f32[<=2,3];f32[]", "f32[2,<=3,4];f32[]"),
    "reduce(p0, p1), dimensions={}, to_apply=add_f32": ("f32[2,3];f32[]",),
    "reduce(p0, p1), dimensions={1,1}, to_apply=add_f32": ("f32[2,3];f32[]",),
    "reduce(p0, p1), dimensions={1,0}, to_apply=add_f32": ("f32[2,3];f32[]",),
    "reduce(p0, p1), dimensions={0}, to_apply=callee": ("f32[2,3];f32[]",),
    "reduce(p0, p0, p1, p1), dimensions={1}, to_apply={ a = f32[] parameter(0) b = f32[] parameter(1) c = f32[] parameter(2) d = f32[] parameter(3) ROOT t = (f32[], f32[]) tuple(a, b) }": ("f32[2,3];f32[]",),
    "reduce-window(p0, p1), window={size=1x3}, to_apply=add_f32": ("f32[2,3];f32[]", "f32[2,3]{0,1};f32[]", "f32[2];f32[]", "f32[2,2];f32[]", "s32[2,3];s32[]"),
    "reduce-window(p0, p1), window={size=2x2 stride=2x1 pad=0_1x1_1}, to_apply=add_f32": ("f32[4,3];f32[]",),
    "reduce-window(p0, p1), window={size=2x2 lhs_dilate=2x2 rhs_dilate=2x1}, to_apply=add_f32": ("f32[4,3];f32[]",),
    "reduce-window(p0, p1), window={size=0x1}, to_apply=add_f32": ("f32[4,3];f32[]",),
    "reduce-window(p0, p1), window={size=1x1 stride=0x1}, to_apply=add_f32": ("f32[4,3];f32[]",),
    "reduce-window(p0, p1), to_apply=add_f32": ("f32[2,3];f32[]",),
    "select-and-scatter(p0, p1, p2), select=at_least, scatter=add_f32, window={size=2 stride=2}": ("f32[4];f32[2];f32[]", "f32[4];f32[3];f32[]", "s32[4];f32[2];f32[]", "f32[4];f32[2];f32[1]"),
    "map(p0, p1), dimensions={0}, to_apply=add_f32": ("f32[2];f32[2]", "f32[2];f32[3]", "s32[2];s32[2]", "f32[2];s32[2]"),
    "map(p0, p1), dimensions={}, to_apply=add_f32": ("f32[];f32[]", "f32[2];f32[2]"),
    "map(p0), dimensions={0}, to_apply=add_f32": ("f32[2]",),
    "sort(p0), dimensions={0}, to_apply=less": ("f32[4]", "f32[4]{0:S(1)}", "s32[4]", "(f32[4])"),
    "sort(p0, p1), dimensions={0}, to_apply=less": ("f32[4];f32[4]", "f32[4];s32[5]"),
    "sort(p0), dimensions={7}, to_apply=less": ("f32[4]",),
    "sort(p0), dimensions={0,1}, to_apply=less": ("f32[4,4]",),
    "sort(), dimensions={0}, to_apply=less": ("",),
    "scan(p0, p1), dimensions={0}, num_carries=1, to_apply=step": ("f32[4];f32[]", "f32[4,3];f32[]", "f32[4,3];f32[3]"),
    "scan(p0, p1), dimensions={0}, num_carries=5, to_apply=step": ("f32[4];f32[]",),
    "topk(p0), k=2": ("f32[4]", "f32[3,4]", "f32[3,4]{0,1}", "f32[1]", "f32[]", "bf16[4]", "(f32[4])"),
    "topk(p0), k=-1": ("f32[4]",),
    "topk(p0), k=0": ("f32[4]",),
    "batch-norm-training(p0, p1, p2), epsilon=0.1, feature_index=1": ("f32[2,3];f32[3];f32[3]", "f32[2,3];f32[2];f32[2]", "s32[2,3];s32[3];s32[3]", "f32[2];f32[2];f32[2]"),
    "batch-norm-training(p0, p1, p2), epsilon=0.1, feature_index=9": ("f32[2,3];f32[3];f32[3]",),
    "batch-norm-inference(p0, p1, p1, p1, p1), epsilon=0.1, feature_index=1": ("f32[2,3];f32[3]", "f32[2,3];f32[2]"),
    "batch-norm-grad(p0, p1, p1, p1, p0), epsilon=0.1, feature_index=1": ("f32[2,3];f32[3]", "f32[2,3];f32[4]"),
    "call(p0), to_apply=callee": ("f32[2]", "f32[3]", "s32[2]", "(f32[2])"),
    "call(), to_apply=callee": ("",),
    "call(p0, p1), to_apply=callee": ("f32[2];f32[2]",),
    "while(p0), condition=cond, body=body": ("f32[2]", "f32[3]", "(f32[2])", "f32[2]{0:S(1)}"),
    "while(p0), condition=body, body=body": ("f32[2]",),
    "conditional(p0, p1, p1), true_computation=one, false_computation=two": ("pred[];f32[2]", "pred[];f32[3]", "pred[1];f32[2]"),
    "conditional(p0, p1, p1), branch_computations={one, two}": ("s32[];f32[2]", "u32[];f32[2]", "s32[];s32[2]"),
    'domain(p0), domain={kind="sharding", entry={replicated}, exit={replicated}}': ("f32[2]", "(f32[2])"),
    "replica-id()": ("",),
    "partition-id()": ("",),
    "ragged-dot(p0, p1, p2), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}": ("f32[5,3];f32[2,3,4];s32[2]", "f32[5,3];f32[2,6,4];s32[2]", "f32[5,3];f32[2,3,4];s32[3]", "f32[5,3];f32[2,3,4];f32[2]"),
    "ragged-dot(p0, p1, p2), lhs_contracting_dims={1}, rhs_contracting_dims={0}, lhs_ragged_dims={1}": ("f32[5,3];f32[3,4];s32[2]",),
    "scaled-dot(p0, p1, p2, p3), lhs_contracting_dims={1}, rhs_contracting_dims={0}": ("bf16[2,32];f8e8m0fnu[2,1];bf16[32,4];f8e8m0fnu[1,4]", "f32[2,3];f32[];f32[3,4];f32[]"),
}
COMPUTATIONS = "\n\n".join((ADD, CALLEE, LESS, GREATER, SCANNED, WHILE_PARTS, BRANCHES))
NOT_INFERABLE = (
    "convert(p0)", "bitcast(p0)", "reshape(p0)", "slice(p0), slice={[0:1]}", "iota(), iota_dimension=0", "parameter(1)", "dynamic-slice(p0), dynamic_slice_sizes={1}", 'custom-call(p0), custom_call_target="t"', "fusion(p0), kind=kLoop, calls=callee", "all-reduce(p0), to_apply=add_f32", "all-gather(p0), dimensions={0}", "constant(1)", "copy-start(p0)",
    "reduce-precision(p0), exponent_bits=5, mantissa_bits=2", "collective-permute(p0), source_target_pairs={}", "rng(p0, p0), distribution=rng_uniform", "reduce-scatter(p0), dimensions={0}, to_apply=add_f32", "all-to-all(p0)", "bitcast-convert(p0)",
)


def used(right_hand_side: str) -> str:
    """Only those computations that the instruction names, in definition order."""
    parts = COMPUTATIONS.split("\n\n")
    return "\n\n".join(part for part in parts if f"={part.split()[0]}" in right_hand_side or f"{{{part.split()[0]}" in right_hand_side or f" {part.split()[0]}}}" in right_hand_side)


def probes() -> Iterator[Probe]:
    for instruction, lists in CASES.items():
        opcode = instruction.partition("(")[0]
        for shapes in lists:
            text = module(f"ROOT r = {instruction}", computations=used(instruction), parameters=shapes.split(";") if shapes else ())
            name = f"{slug(instruction)}/{slug(shapes) or 'none'}"
            yield Probe(f"inference/{name}", f"8:missing result shape, {opcode}", text)
    for instruction in NOT_INFERABLE:
        text = module(f"ROOT r = {instruction}", computations=used(instruction), parameters=["f32[2]"])
        yield Probe(f"inference/never/{slug(instruction)}", "8:missing result shape, not inferable", text, "reject")
