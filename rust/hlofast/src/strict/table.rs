//! Which attributes each opcode takes, and what only XLA newer than jaxlib 0.10.2 understands.

use crate::ir::Opcode;

/// The grammar of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grammar {
    Boolean,
    Booleans,
    Integer,
    Int32,
    Float,
    Text,
    Integers,
    Pairs,
    Computation,
    Computations,
    Names,
    Sharding,
    Frontend,
    Statistics,
    Origin,
    Metadata,
    BackendConfig,
    Accuracy,
    Groups,
    Window,
    DimLabels,
    Padding,
    Slice,
    Aliasing,
    Shapes,
    Shape,
    Literal,
    Domain,
    Sparsity,
    Precision,
    Word,
}

macro_rules! attributes {
    ($($name:ident = $text:literal, $grammar:ident;)*) => {
        /// An attribute of instructions.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum Attribute { $($name,)* }

        impl Attribute {
            /// The attribute that HLO text calls `word`.
            #[allow(non_upper_case_globals, reason = "constants named as their variants")]
            pub fn from_bytes(word: &[u8]) -> Option<Attribute> {
                // The commonest first.
                if word == b"metadata" {
                    return Some(Attribute::Metadata);
                }
                $(
                    const $name: &[u8] = $text.as_bytes();
                )*
                match word {
                    $($name => Some(Attribute::$name),)*
                    _ => None,
                }
            }

            /// The word HLO text uses.
            pub fn as_str(self) -> &'static str {
                match self { $(Attribute::$name => $text,)* }
            }

            /// How its value is written.
            pub fn grammar(self) -> Grammar {
                match self { $(Attribute::$name => Grammar::$grammar,)* }
            }

            const ALL: &'static [Attribute] = &[$(Attribute::$name,)*];
        }
    };
}

attributes! {
    Sharding = "sharding", Sharding;
    FrontendAttributes = "frontend_attributes", Frontend;
    Statistics = "statistics", Statistics;
    ParameterReplication = "parameter_replication", Booleans;
    ControlPredecessors = "control-predecessors", Names;
    Origin = "origin", Origin;
    Metadata = "metadata", Metadata;
    BackendConfig = "backend_config", BackendConfig;
    ResultAccuracy = "result_accuracy", Accuracy;
    Direction = "direction", Word;
    Type = "type", Word;
    IotaDimension = "iota_dimension", Integer;
    Index = "index", Integer;
    InferredDimension = "inferred_dimension", Integer;
    Dimensions = "dimensions", Integers;
    Slice = "slice", Slice;
    Padding = "padding", Padding;
    DynamicSliceSizes = "dynamic_slice_sizes", Integers;
    OffsetDims = "offset_dims", Integers;
    CollapsedSliceDims = "collapsed_slice_dims", Integers;
    StartIndexMap = "start_index_map", Integers;
    IndexVectorDim = "index_vector_dim", Integer;
    SliceSizes = "slice_sizes", Integers;
    OperandBatchingDims = "operand_batching_dims", Integers;
    StartIndicesBatchingDims = "start_indices_batching_dims", Integers;
    IndicesAreSorted = "indices_are_sorted", Boolean;
    UniqueIndices = "unique_indices", Boolean;
    UpdateWindowDims = "update_window_dims", Integers;
    InsertedWindowDims = "inserted_window_dims", Integers;
    ScatterDimsToOperandDims = "scatter_dims_to_operand_dims", Integers;
    InputBatchingDims = "input_batching_dims", Integers;
    ScatterIndicesBatchingDims = "scatter_indices_batching_dims", Integers;
    ToApply = "to_apply", Computation;
    LhsContractingDims = "lhs_contracting_dims", Integers;
    RhsContractingDims = "rhs_contracting_dims", Integers;
    LhsBatchDims = "lhs_batch_dims", Integers;
    RhsBatchDims = "rhs_batch_dims", Integers;
    LhsRaggedDims = "lhs_ragged_dims", Integers;
    RhsGroupDims = "rhs_group_dims", Integers;
    OperandPrecision = "operand_precision", Precision;
    Algorithm = "algorithm", Word;
    Window = "window", Window;
    DimLabels = "dim_labels", DimLabels;
    FeatureGroupCount = "feature_group_count", Integer;
    BatchGroupCount = "batch_group_count", Integer;
    ConvolutionKind = "convolution_kind", Word;
    SparsityConfig = "sparsity_config", Sparsity;
    FftType = "fft_type", Word;
    FftLength = "fft_length", Integers;
    Lower = "lower", Boolean;
    LeftSide = "left_side", Boolean;
    UnitDiagonal = "unit_diagonal", Boolean;
    TransposeA = "transpose_a", Word;
    Select = "select", Computation;
    Scatter = "scatter", Computation;
    ExponentBits = "exponent_bits", Integer;
    MantissaBits = "mantissa_bits", Integer;
    IsStable = "is_stable", Boolean;
    NumCarries = "num_carries", Integer;
    IsReverse = "is_reverse", Boolean;
    IsAssociative = "is_associative", Boolean;
    K = "k", Integer;
    Largest = "largest", Boolean;
    Epsilon = "epsilon", Float;
    FeatureIndex = "feature_index", Integer;
    IsComposite = "is_composite", Boolean;
    Condition = "condition", Computation;
    Body = "body", Computation;
    TrueComputation = "true_computation", Computation;
    FalseComputation = "false_computation", Computation;
    BranchComputations = "branch_computations", Computations;
    Kind = "kind", Word;
    Calls = "calls", Computation;
    OutputToOperandAliasing = "output_to_operand_aliasing", Aliasing;
    CustomCallTarget = "custom_call_target", Text;
    OperandLayoutConstraints = "operand_layout_constraints", Shapes;
    CustomCallHasSideEffect = "custom_call_has_side_effect", Boolean;
    CalledComputations = "called_computations", Computations;
    PaddingType = "padding_type", Word;
    Literal = "literal", Literal;
    Schedule = "schedule", Word;
    ApiVersion = "api_version", Word;
    Domain = "domain", Domain;
    InfeedConfig = "infeed_config", Text;
    OutfeedConfig = "outfeed_config", Text;
    OutfeedShape = "outfeed_shape", Shape;
    ChannelId = "channel_id", Integer;
    IsHostTransfer = "is_host_transfer", Boolean;
    CrossProgramPrefetchIndex = "cross_program_prefetch_index", Int32;
    Distribution = "distribution", Word;
    Delta = "delta", Integer;
    ReplicaGroups = "replica_groups", Groups;
    ConstrainLayout = "constrain_layout", Boolean;
    UseGlobalDeviceIds = "use_global_device_ids", Boolean;
    Mode = "mode", Word;
    HasDynamicRoot = "has_dynamic_root", Boolean;
    SourceTargetPairs = "source_target_pairs", Pairs;
    AsyncExecutionThread = "async_execution_thread", Text;
}

/// A set of attributes.
pub(super) type Set = u128;

/// The set with only `attribute`.
pub(super) const fn only(attribute: Attribute) -> Set {
    1 << attribute as u8
}

const fn set(attributes: &[Attribute]) -> Set {
    let mut all = 0;
    let mut i = 0;
    while i < attributes.len() {
        all |= only(attributes[i]);
        i += 1;
    }
    all
}

/// Attributes that every opcode takes.
pub(super) const COMMON: Set = {
    use Attribute::*;
    set(&[
        Sharding,
        FrontendAttributes,
        Statistics,
        ParameterReplication,
        ControlPredecessors,
        Origin,
        Metadata,
        BackendConfig,
    ])
};

/// What an opcode requires, and what else it takes.
#[derive(Clone, Copy)]
pub(super) struct Signature {
    pub required: Set,
    pub optional: Set,
}

const fn signature(required: &[Attribute], optional: &[Attribute]) -> Signature {
    Signature { required: set(required), optional: set(optional) }
}

/// The attributes of `opcode` apart from the common ones. For a conditional both spellings are
/// optional here: the selector's type decides.
pub(super) const fn signature_of(opcode: Opcode) -> Signature {
    use Attribute::*;
    use Opcode as O;
    match opcode {
        O::Acos
        | O::Acosh
        | O::Asin
        | O::Asinh
        | O::Atanh
        | O::ExponentialMinusOne
        | O::Log
        | O::LogPlusOne
        | O::Logistic
        | O::Sqrt
        | O::Cbrt
        | O::Rsqrt
        | O::Tanh
        | O::Erf
        | O::Sine
        | O::Sinh
        | O::Cosine
        | O::Cosh
        | O::Tan
        | O::Exponential => signature(&[], &[ResultAccuracy]),
        O::Compare => signature(&[Direction], &[Type]),
        O::Iota => signature(&[IotaDimension], &[]),
        O::GetTupleElement => signature(&[Index], &[]),
        O::Reshape => signature(&[], &[InferredDimension]),
        O::Broadcast => signature(&[], &[Dimensions]),
        O::Transpose | O::Reverse | O::Concatenate | O::GetDimensionSize | O::SetDimensionSize => {
            signature(&[Dimensions], &[])
        }
        O::Slice => signature(&[Slice], &[]),
        O::Pad => signature(&[Padding], &[]),
        O::DynamicSlice => signature(&[DynamicSliceSizes], &[]),
        O::Gather => signature(
            &[OffsetDims, CollapsedSliceDims, StartIndexMap, IndexVectorDim, SliceSizes],
            &[OperandBatchingDims, StartIndicesBatchingDims, IndicesAreSorted],
        ),
        O::Scatter => signature(
            &[
                UpdateWindowDims,
                InsertedWindowDims,
                ScatterDimsToOperandDims,
                IndexVectorDim,
                ToApply,
            ],
            &[InputBatchingDims, ScatterIndicesBatchingDims, IndicesAreSorted, UniqueIndices],
        ),
        O::Dot | O::ScaledDot => signature(
            &[],
            &[
                LhsContractingDims,
                RhsContractingDims,
                LhsBatchDims,
                RhsBatchDims,
                OperandPrecision,
                Algorithm,
            ],
        ),
        O::RaggedDot => signature(
            &[],
            &[
                LhsContractingDims,
                RhsContractingDims,
                LhsBatchDims,
                RhsBatchDims,
                LhsRaggedDims,
                RhsGroupDims,
                OperandPrecision,
            ],
        ),
        O::Convolution => signature(
            &[DimLabels],
            &[
                Window,
                FeatureGroupCount,
                BatchGroupCount,
                OperandPrecision,
                Algorithm,
                ConvolutionKind,
                SparsityConfig,
            ],
        ),
        O::Fft => signature(&[FftType, FftLength], &[]),
        O::Cholesky => signature(&[], &[Lower]),
        O::TriangularSolve => signature(&[], &[LeftSide, Lower, UnitDiagonal, TransposeA]),
        O::Reduce => signature(&[Dimensions, ToApply], &[]),
        O::ReduceWindow => signature(&[ToApply], &[Window]),
        O::SelectAndScatter => signature(&[Select, Scatter], &[Window]),
        O::ReducePrecision => signature(&[ExponentBits, MantissaBits], &[]),
        O::Map => signature(&[ToApply], &[Dimensions]),
        O::Sort => signature(&[Dimensions, ToApply], &[IsStable]),
        O::Scan => signature(&[ToApply, Dimensions, NumCarries], &[IsReverse, IsAssociative]),
        O::Topk => signature(&[K], &[Largest, IsStable]),
        O::BatchNormTraining | O::BatchNormInference | O::BatchNormGrad => {
            signature(&[Epsilon, FeatureIndex], &[])
        }
        O::Call => signature(&[ToApply], &[IsComposite]),
        O::While => signature(&[Condition, Body], &[]),
        O::Conditional => signature(&[], &[TrueComputation, FalseComputation, BranchComputations]),
        O::Fusion => signature(&[Kind, Calls], &[OutputToOperandAliasing]),
        O::CustomCall => signature(
            &[CustomCallTarget],
            &[
                Window,
                DimLabels,
                FeatureGroupCount,
                BatchGroupCount,
                OperandLayoutConstraints,
                CustomCallHasSideEffect,
                ToApply,
                CalledComputations,
                OutputToOperandAliasing,
                PaddingType,
                Literal,
                OperandPrecision,
                Schedule,
                ApiVersion,
            ],
        ),
        O::Domain => signature(&[Domain], &[]),
        O::Infeed => signature(&[], &[InfeedConfig]),
        O::Outfeed => signature(&[], &[OutfeedShape, OutfeedConfig]),
        O::Send | O::Recv | O::SendDone | O::RecvDone => {
            signature(&[], &[ChannelId, IsHostTransfer])
        }
        O::CopyStart => signature(&[], &[CrossProgramPrefetchIndex]),
        O::Rng => signature(&[Distribution], &[]),
        O::RngBitGenerator => signature(&[Algorithm], &[]),
        O::RngGetAndUpdateState => signature(&[Delta], &[]),
        O::AllReduce | O::AllReduceStart => signature(
            &[ToApply],
            &[ReplicaGroups, ChannelId, ConstrainLayout, UseGlobalDeviceIds, Mode],
        ),
        O::ReduceScatter => signature(
            &[ToApply, Dimensions],
            &[ReplicaGroups, ChannelId, ConstrainLayout, UseGlobalDeviceIds, Mode],
        ),
        O::AllGather | O::AllGatherStart => signature(
            &[Dimensions],
            &[ReplicaGroups, ChannelId, ConstrainLayout, UseGlobalDeviceIds],
        ),
        O::AllToAll => signature(&[], &[Dimensions, ReplicaGroups, ChannelId, ConstrainLayout]),
        O::RaggedAllToAll => signature(&[], &[Dimensions, ReplicaGroups, ChannelId]),
        O::CollectiveBroadcast => signature(&[], &[ReplicaGroups, ChannelId, HasDynamicRoot]),
        O::CollectivePermute | O::CollectivePermuteStart => {
            signature(&[SourceTargetPairs], &[ChannelId, SliceSizes])
        }
        O::AsyncStart => signature(&[Calls], &[AsyncExecutionThread, OutputToOperandAliasing]),
        O::AsyncUpdate => signature(&[], &[Calls, AsyncExecutionThread, OutputToOperandAliasing]),
        O::AsyncDone => signature(&[], &[Calls, AsyncExecutionThread]),
        _ => signature(&[], &[]),
    }
}

/// Attributes that only XLA newer than jaxlib 0.10.2 takes, by opcode. The other differences
/// are `NEWEST_CONSTRUCTS`.
pub(super) const NEWEST_ATTRIBUTES: &[(Opcode, Attribute)] = &[
    (Opcode::Topk, Attribute::IsStable),
    (Opcode::CollectiveBroadcast, Attribute::HasDynamicRoot),
    (Opcode::Convolution, Attribute::Algorithm),
    (Opcode::AsyncUpdate, Attribute::OutputToOperandAliasing),
];

/// A construct on which XLA newer than jaxlib 0.10.2 differs from it, apart from attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Newer {
    /// The header attribute `debug_attributes`.
    DebugAttributes,
    /// `%x#1#0`: an operand that is an element of a tuple.
    CompactOperands,
    /// Further operands of updates and dones, and starts that reach them through other operations.
    LateOperands,
    /// `unreduced=max{'a'}` in shardings over a mesh.
    UnreducedKinds,
    /// Tile assignments and iota groups must have as many devices as their dimensions say. This
    /// one is stricter than before.
    DeviceCounts,
}

/// All of them: what `Checker::allows` answers for strict mode "newest".
pub(super) const NEWEST_CONSTRUCTS: &[Newer] = &[
    Newer::DebugAttributes,
    Newer::CompactOperands,
    Newer::LateOperands,
    Newer::UnreducedKinds,
    Newer::DeviceCounts,
];

/// Attributes of all opcodes, common ones included.
pub(super) fn allowed(opcode: Opcode, newest: bool) -> Set {
    let signature = SIGNATURES[opcode as usize];
    let all = signature.required | signature.optional | COMMON;
    if newest { all } else { all & !NEWER[opcode as usize] }
}

/// Attributes that `opcode` requires.
pub(super) fn required(opcode: Opcode) -> Set {
    SIGNATURES[opcode as usize].required
}

/// The first attribute of a set.
pub(super) fn first(set: Set) -> Option<Attribute> {
    Attribute::ALL.get(set.trailing_zeros() as usize).copied()
}

static SIGNATURES: [Signature; Opcode::ALL.len()] = {
    let mut table = [Signature { required: 0, optional: 0 }; Opcode::ALL.len()];
    let mut code = 0;
    while code < table.len() {
        table[code] = signature_of(Opcode::ALL[code]);
        code += 1;
    }
    table
};

static NEWER: [Set; Opcode::ALL.len()] = {
    let mut table = [0; Opcode::ALL.len()];
    let mut i = 0;
    while i < NEWEST_ATTRIBUTES.len() {
        let (opcode, attribute) = NEWEST_ATTRIBUTES[i];
        table[opcode as usize] |= only(attribute);
        i += 1;
    }
    table
};
