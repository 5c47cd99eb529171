//! The table of known custom calls, the only place that lists them.

/// The kind of work of a custom call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CustomCallKind {
    /// A library matmul.
    Gemm,
    /// A library matmul over groups of rows.
    GroupedGemm,
    /// A library convolution.
    Convolution,
    /// A library's fused attention, forward.
    AttentionForward,
    /// A library's fused attention, backward.
    AttentionBackward,
    /// A hand-written kernel, in Triton or another kernel language.
    Kernel,
    /// Selection of the largest elements of each row.
    TopK,
    /// A library sort.
    Sort,
    /// Factorisations and solvers.
    LinearAlgebra,
    /// Other library work.
    Library,
    /// Random numbers.
    RandomNumbers,
    /// Copies, layout conversions and the like: bytes but no arithmetic.
    DataMovement,
    /// Copies between host and device.
    HostTransfer,
    /// A function that runs on the host.
    HostCallback,
    /// Exchange between devices.
    Communication,
    /// A marker that costs nothing.
    Marker,
    /// Not in the table.
    Unknown,
}

impl CustomCallKind {
    /// Whether a call of this kind computes something, rather than marks or moves a value.
    pub fn is_work(self) -> bool {
        use CustomCallKind::{DataMovement, HostTransfer, Marker};
        !matches!(self, DataMovement | HostTransfer | Marker)
    }

    /// The name used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            CustomCallKind::Gemm => "gemm",
            CustomCallKind::GroupedGemm => "grouped_gemm",
            CustomCallKind::Convolution => "convolution",
            CustomCallKind::AttentionForward => "attention_forward",
            CustomCallKind::AttentionBackward => "attention_backward",
            CustomCallKind::Kernel => "kernel",
            CustomCallKind::TopK => "top_k",
            CustomCallKind::Sort => "sort",
            CustomCallKind::LinearAlgebra => "linear_algebra",
            CustomCallKind::Library => "library",
            CustomCallKind::RandomNumbers => "random_numbers",
            CustomCallKind::DataMovement => "data_movement",
            CustomCallKind::HostTransfer => "host_transfer",
            CustomCallKind::HostCallback => "host_callback",
            CustomCallKind::Communication => "communication",
            CustomCallKind::Marker => "marker",
            CustomCallKind::Unknown => "unknown",
        }
    }
}

/// A target whose cost is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownTarget {
    /// The target; a final `*` stands for any ending.
    pub pattern: &'static str,
    /// The kind of work.
    pub kind: CustomCallKind,
    /// How calls of this target are counted, in one line.
    pub reason: &'static str,
}

impl KnownTarget {
    /// Whether the pattern matches `target`.
    pub fn matches(&self, target: &[u8]) -> bool {
        match self.pattern.strip_suffix('*') {
            Some(start) => target.starts_with(start.as_bytes()),
            None => target == self.pattern.as_bytes(),
        }
    }
}

const DIMENSIONS: &str = "2MNK from dot_dimension_numbers in backend_config; workspace excluded";
const CONVOLUTION: &str = "multiply-adds with an input element; workspace excluded";
const FORWARD: &str =
    "two matmuls and one exponential per score; half of the scores if the mask is causal";
const BACKWARD: &str =
    "five matmuls and one exponential per score; half of the scores if the mask is causal";
const KERNEL: &str = "the kernel author's cost_estimate if present, else unknown";
const COMPARED_TOP_K: &str = "ceil(log2(k + 1)) comparisons per element";
const FACTORISED: &str = "arithmetic of factorisations and solvers is not modelled";
const MOVED: &str = "moves data, no arithmetic";
const HOST: &str = "copies between host and device, no arithmetic";
const CALLBACK: &str = "runs on the host; what it computes is unknown";
const MARKED: &str = "marker; costs nothing";
const LIBRARY: &str = "arithmetic of this library call is not modelled";

macro_rules! targets {
    ($($kind:ident, $reason:expr, [$($pattern:literal),* $(,)?];)*) => {
        /// Every known target; the first match applies.
        pub const KNOWN_TARGETS: &[KnownTarget] = &[$($(KnownTarget {
            pattern: $pattern,
            kind: CustomCallKind::$kind,
            reason: $reason,
        },)*)*];
    };
}

targets! {
    GroupedGemm, "2MNK, each row in one group; workspace excluded", ["__cublas$lt$groupedMatmul"];
    Gemm, DIMENSIONS, [
        "__cublas$gemm",
        "__cublas$lt$matmul",
        "__cublas$lt$matmul$f8",
        "__cublas$lt$matmul$mx",
    ];
    Gemm, "2MNK from the operands' shapes, transpositions from backend_config", ["__onednn$matmul"];
    Convolution, CONVOLUTION, [
        "__cudnn$convForward",
        "__cudnn$convForwardGraph",
        "__cudnn$convBiasActivationForward",
        "__cudnn$convBackwardInput",
        "__cudnn$convBackwardFilter",
    ];
    Convolution, "unknown: its dimensions are in a form that is not read", ["__onednn$convolution"];
    DataMovement, MOVED, ["__cudnn$convReorderFilter*", "__onednn$matmul_reorder"];
    AttentionBackward, BACKWARD, [
        "__cudnn$fmhaSoftmaxBackward*",
        "__cudnn$fmhaSoftmaxDropoutBackward*",
        "__cudnn$fmhaScaleBiasSoftmaxBackward*",
        "__cudnn$fmhaScaleBiasSoftmaxDropoutBackward*",
        "__cudnn$fmhaScaleMaskSoftmaxBackward*",
        "__cudnn$fmhaScaleMaskSoftmaxDropoutBackward*",
        "__cudnn$fmhaScaleBiasMaskSoftmaxBackward*",
        "__cudnn$fmhaScaleBiasMaskSoftmaxDropoutBackward*",
    ];
    AttentionForward, FORWARD, [
        "__cudnn$fmhaSoftmax*",
        "__cudnn$fmhaScaleBiasSoftmax*",
        "__cudnn$fmhaScaleMaskSoftmax*",
        "__cudnn$fmhaScaleBiasMaskSoftmax*",
    ];
    Library, LIBRARY, [
        "__cudnn$norm",
        "__onednn$layernorm",
        "__onednn$softmax",
        "__cudnn$blockScaledDot",
        "__op$block_scaled_dot",
    ];
    Kernel, KERNEL, [
        "tpu_custom_call",
        "__gpu$xla.gpu.triton",
        "triton_kernel_call",
        "triton_kernel_call_ffi",
        "mosaic_gpu*",
    ];
    TopK, COMPARED_TOP_K, ["TopK", "__gpu$TopK", "topk", "mhlo.topk"];
    TopK, "one comparison per element", ["ApproxTopK", "PartialReduce"];
    Sort, "a radix sort makes no comparisons", ["__cub$DeviceRadixSort*", "xla.gpu.ext.cub_sort_*"];
    RandomNumbers, "arithmetic of the generator is not modelled", ["cu_threefry2x32*", "hip_threefry2x32*"];
    LinearAlgebra, FACTORISED, [
        "lapack_*",
        "blas_*",
        "cusolver_*",
        "cu_cholesky_update*",
        "__cusolver$*",
        "__cublas$triangularSolve",
        "cublas_*",
        "hipblas_*",
        "hipsolver_*",
        "cuda_lu_pivots_to_permutation",
        "Cholesky",
        "CholeskyExpander",
        "CompactWyHelper",
        "Eigh*",
        "InvertDiagBlocksLowerTriangular",
        "InvertDiagBlocksUpperTriangular",
        "LuDecomposition",
        "LuDecompositionBlock",
        "ProductOfElementaryHouseholderReflectors",
        "Qr",
        "QrDecomposition",
        "QrDecompositionBlock",
    ];
    HostCallback, CALLBACK, [
        "xla_python_cpu_callback",
        "xla_python_gpu_callback",
        "xla_ffi_python_cpu_callback",
        "xla_ffi_python_gpu_callback",
        "xla_ffi_partitioned_python_cpu_callback",
        "xla_ffi_partitioned_python_gpu_callback",
        "xla_buffer_python_*",
        "CallbackToHost*",
        "HostExecute",
    ];
    HostTransfer, HOST, ["MoveToHost", "MoveToDevice"];
    Communication, "exchanges data between meshes, no arithmetic counted", [
        "__builtin$CrossMeshAllReduce",
    ];
    DataMovement, MOVED, [
        "GatherScatterIndicesBitpacked",
        "PadToStatic",
        "SliceToDynamic",
        "X64Combine",
        "X64SplitLow",
        "X64SplitHigh",
    ];
    Marker, "operands are already adjacent in memory; costs nothing", ["ConcatBitcast"];
    Marker, "names memory; costs nothing", ["AllocateBuffer", "CreateBuffer"];
    Marker, "reads the number of the slice; costs nothing", ["SliceId"];
    Marker, "clears the padding of an array in place; costs next to nothing", ["ZeroCrop"];
    Marker, "starts or ends a collective that is counted elsewhere", [
        "AsyncCollectiveStart",
        "AsyncCollectiveDone",
        "PrepareAsyncCallStart",
        "PrepareAsyncCallDone",
    ];
    Marker, MARKED, [
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "xla.sdy.*",
        "inspect_sharding_call",
        "annotate_device_placement",
        "LayoutConstraint",
        "AssumeGatherIndicesInBound",
        "SetBound",
        "shape_assertion",
        "pipeline_marker",
        "xla_fallback_pipeline_marker",
        "__xla_internal_call_marker_before",
        "__xla_internal_call_marker_after",
        "__nop",
    ];
}

/// The table entry for `target`, if any.
pub fn known_target(target: &[u8]) -> Option<&'static KnownTarget> {
    KNOWN_TARGETS.iter().find(|known| known.matches(target))
}
