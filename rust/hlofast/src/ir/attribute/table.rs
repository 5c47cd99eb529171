//! The table of instruction attributes, one line per form, in the order in which XLA prints them;
//! then the table of header attributes. Nothing else lists attributes.

use super::Grammar::*;
use super::words::*;
use super::{HeaderGrammar as H, Key, NO_FIELD, Use, at, lost};
use crate::ir::Opcode;

macro_rules! opcodes {
    [*] => { Opcode::ALL };
    [$($name:ident)*] => { &[$(Opcode::$name),*] };
}

macro_rules! table {
    ($($key:literal: $grammar:expr, $needed:tt $taken:tt
        $(newer $newer:tt)? $(also $also:tt)?, $field:expr;)*) => {
        pub(super) const LINES: [Use; COUNT] = [$(Use {
            id: Key(0),
            key: $key,
            grammar: $grammar,
            needed: opcodes! $needed,
            taken: opcodes! $taken,
            newer: table!(@ $($newer)?),
            also: table!(@ $($also)?),
            field: $field,
        },)*];
        const COUNT: usize = [$($key,)*].len();
    };
    (@) => { &[] };
    (@ $names:tt) => { opcodes! $names };
}

// "key": grammar, [opcodes that need the attribute] [opcodes that take it], field of
// HloInstructionProto.
//   `newer`: opcodes that take the attribute only in XLA newer than jaxlib 0.10.2.
//   `also`: opcodes that have the attribute only in protobufs and older texts, and for which XLA's
//   parser rejects it. `Unknown` in this list prints the attribute for unknown opcodes too.
// `at(30).part(3)` is field 3 of the message in field 30.
table! {
    "parameter_replication": Booleans, [] [*] also [Parameter], at(61);
    "index": Integer, [GetTupleElement] [], at(13).always();
    "iota_dimension": Integer, [Iota] [], at(14).one_of_list().always();
    "inferred_dimension": Integer, [] [Reshape], at(14).one_of_list();
    "slice": Slice, [Slice] [], at(17).always();
    "dynamic_slice_sizes": Integers, [DynamicSlice] [], at(20).always();
    "padding": Padding, [Pad] [], at(21).always();
    "direction": Word(&DIRECTIONS), [Compare] [], at(63).spelled();
    "type": Word(&COMPARISON_TYPES), [] [Compare], at(72).spelled();

    "lhs_batch_dims": Integers, [] [Dot ScaledDot], at(30).part(3);
    "lhs_contracting_dims": Integers, [] [Dot ScaledDot], at(30).part(1).always();
    "rhs_batch_dims": Integers, [] [Dot ScaledDot], at(30).part(4);
    "rhs_contracting_dims": Integers, [] [Dot ScaledDot], at(30).part(2).always();
    "lhs_batch_dims": Integers, [] [RaggedDot], at(90).part(1).part(3);
    "lhs_contracting_dims": Integers, [] [RaggedDot], at(90).part(1).part(1).always();
    "rhs_batch_dims": Integers, [] [RaggedDot], at(90).part(1).part(4);
    "rhs_contracting_dims": Integers, [] [RaggedDot], at(90).part(1).part(2).always();
    "lhs_ragged_dims": Integers, [] [RaggedDot], at(90).part(2);
    "rhs_group_dims": Integers, [] [RaggedDot], at(90).part(3);

    "offset_dims": Integers, [Gather] [], at(33).part(1).always();
    "collapsed_slice_dims": Integers, [Gather] [], at(33).part(2).always();
    "start_index_map": Integers, [Gather] [], at(33).part(3).always();
    "operand_batching_dims": Integers, [] [Gather], at(33).part(5);
    "start_indices_batching_dims": Integers, [] [Gather], at(33).part(6);
    "index_vector_dim": Integer, [Gather] [], at(33).part(4).always();
    "slice_sizes": Integers, [Gather] [], at(34).always();
    "update_window_dims": Integers, [Scatter] [], at(48).part(1).always();
    "inserted_window_dims": Integers, [Scatter] [], at(48).part(2).always();
    "scatter_dims_to_operand_dims": Integers, [Scatter] [], at(48).part(3).always();
    "input_batching_dims": Integers, [] [Scatter], at(48).part(5);
    "scatter_indices_batching_dims": Integers, [] [Scatter], at(48).part(6);
    "index_vector_dim": Integer, [Scatter] [], at(48).part(4).always();
    "indices_are_sorted": Boolean, [] [Gather Scatter], at(67);
    "unique_indices": Boolean, [] [Scatter], at(69);

    "window": Window, [] [Convolution CustomCall ReduceWindow SelectAndScatter], at(15);
    "dim_labels": DimLabels, [Convolution] [CustomCall], at(16);
    "feature_group_count": Integer, [] [Convolution CustomCall], at(50).absent(1);
    "batch_group_count": Integer, [] [Convolution CustomCall], at(58).absent(1);
    "operand_precision": Precision, [] [Convolution CustomCall Dot RaggedDot ScaledDot],
        at(51).part(1);
    "algorithm": Word(&ALGORITHMS), [] [Dot ScaledDot] newer [Convolution]
        also [CustomCall RaggedDot], at(51).part(2);
    "convolution_kind": Word(&CONVOLUTION_KINDS), [] [Convolution], at(97);
    "sparsity_config": Sparsity, [] [Convolution], at(98);
    "padding_type": Word(&PADDING_TYPES), [] [CustomCall], at(75);
    "custom_call_target": Text, [CustomCall] [], at(28).always();
    // Field 56 is the flag, field 57 holds the shapes.
    "operand_layout_constraints": Shapes, [] [CustomCall], at(56).with(57);
    "custom_call_has_side_effect": Boolean, [] [CustomCall], at(65);
    "literal": Literal, [] [CustomCall], at(8);

    // Field 45 is `all_reduce_id`, which all-reduce had before `channel_id`.
    "channel_id": Integer, [] [AllGather AllGatherStart AllReduce AllReduceStart AllToAll
        CollectiveBroadcast CollectivePermute CollectivePermuteStart RaggedAllToAll Recv RecvDone
        ReduceScatter Send SendDone] also [Unknown], at(26).with(45)
        .losing("a channel_id below 1, which protobufs read as absent");
    // The groups are in field 49, 87, 92 or 93, depending on their form.
    "replica_groups": Groups, [] [AllGather AllGatherStart AllReduce AllReduceStart AllToAll
        CollectiveBroadcast RaggedAllToAll ReduceScatter], at(87).always();
    "source_target_pairs": Pairs, [CollectivePermute CollectivePermuteStart] [], at(52).always();
    "slice_sizes": IntegerLists, [] [CollectivePermute CollectivePermuteStart],
        at(20).losing("the grouping of the slice_sizes");
    "constrain_layout": Boolean, [] [AllGather AllGatherStart AllReduce AllReduceStart AllToAll
        ReduceScatter] also [CollectiveBroadcast RaggedAllToAll], at(56);
    "has_dynamic_root": Boolean, [] [] newer [CollectiveBroadcast], at(100);
    "dimensions": Integers, [AllGather AllGatherStart] [], at(14);
    "use_global_device_ids": Boolean, [] [AllGather AllGatherStart AllReduce AllReduceStart
        ReduceScatter] also [Unknown], at(71);
    "mode": Word(&MODES), [] [AllReduce AllReduceStart ReduceScatter] also [AllGather
        AllGatherStart], lost("the mode of a collective, which XLA derives");
    "is_host_transfer": Boolean, [] [Recv RecvDone Send SendDone] also [Unknown], at(47);

    "dimensions": Integers, [Reduce Reverse Transpose] [Broadcast Map], at(14).always();
    "dimensions": Integers, [Concatenate GetDimensionSize ReduceScatter Scan SetDimensionSize Sort]
        [AllToAll RaggedAllToAll] also [Unknown], at(14);
    "domain": Domain, [Domain] [], at(54).with(55).always();
    "infeed_config": Text, [] [Infeed], at(27);
    "outfeed_shape": Shape, [] [Outfeed], at(29);
    "outfeed_config": Text, [] [Outfeed], at(22);
    "epsilon": Float, [BatchNormGrad BatchNormInference BatchNormTraining] [], at(24).always();
    "feature_index": Integer, [BatchNormGrad BatchNormInference BatchNormTraining] [],
        at(25).always();
    "exponent_bits": Integer, [ReducePrecision] [], at(18).small().always();
    "mantissa_bits": Integer, [ReducePrecision] [], at(19).small().always();
    "distribution": Word(&DISTRIBUTIONS), [Rng] [], at(23).always();
    "algorithm": Word(&RANDOM_ALGORITHMS), [RngBitGenerator] [], at(70).always();
    "delta": Integer, [RngGetAndUpdateState] [], at(66).always();
    "fft_type": Word(&FFT_TYPES), [Fft] [], at(31).always();
    "fft_length": Integers, [Fft] [], at(32).always();
    "lower": Boolean, [] [Cholesky], at(62).part(1);
    "left_side": Boolean, [] [TriangularSolve], at(59).part(1);
    "lower": Boolean, [] [TriangularSolve], at(59).part(2);
    "unit_diagonal": Boolean, [] [TriangularSolve], at(59).part(3);
    "transpose_a": Word(&TRANSPOSES), [] [TriangularSolve], at(59).part(4);
    "k": Integer, [Topk] [], at(81).always();
    // Without the attribute, XLA takes the largest elements.
    "largest": Boolean, [] [Topk], at(85).absent(1).always();
    "is_stable": Boolean, [] [Sort] newer [Topk], at(60);
    "num_carries": Integer, [Scan] [], at(95).always();
    "is_reverse": Boolean, [] [Scan], at(94);
    "is_associative": Boolean, [] [Scan], at(96).three_valued();
    // Field 73 is an older flag that stands for the first prefetch.
    "cross_program_prefetch_index": Int32, [] [CopyStart], at(80).with(73).presence();
    "result_accuracy": Accuracy, [] [Acos Acosh Asin Asinh Atanh Cbrt Cosh Cosine Erf Exponential
        ExponentialMinusOne Log LogPlusOne Logistic Rsqrt Sine Sinh Sqrt Tan Tanh] also [Unknown],
        at(91);
    "kind": Word(&FUSION_KINDS), [Fusion] [], at(11).spelled();
    "async_execution_thread": Text, [] [AsyncStart], at(79).thread();
    // The thread is taken from the start at the end of the operand chain.
    "async_execution_thread": Text, [] [AsyncDone AsyncUpdate], NO_FIELD;
    "output_to_operand_aliasing": Aliasing, [] [AsyncStart CustomCall Fusion] newer [AsyncUpdate]
        also [AsyncDone Call Unknown], at(74);
    "schedule": Word(&SCHEDULES), [] [CustomCall], at(76);
    "api_version": Word(&API_VERSIONS), [] [CustomCall], at(77).absent(1);

    "condition": Computation, [While] [], at(38);
    "body": Computation, [While] [], at(38);
    "select": Computation, [SelectAndScatter] [], at(38);
    "scatter": Computation, [SelectAndScatter] [], at(38);
    "true_computation": Computation, [] [Conditional], at(38);
    "false_computation": Computation, [] [Conditional], at(38);
    "branch_computations": Computations, [] [Conditional], at(38);
    "calls": Computation, [AsyncStart Fusion] [AsyncDone AsyncUpdate], at(38);
    "to_apply": Computation, [AllReduce AllReduceStart Call Map Reduce ReduceScatter ReduceWindow
        Scan Scatter Sort] [CustomCall], at(38);
    "called_computations": Computations, [] [CustomCall], at(38);
    "is_composite": Boolean, [] [Call], at(89);

    "sharding": Sharding, [] [*], at(40);
    "frontend_attributes": Frontend, [] [*], at(68);
    "control-predecessors": Names, [] [*], at(37);
    "statistics": Statistics, [] [*], at(82);
    "origin": Origin, [] [*], at(88);
    "metadata": Metadata, [] [*], at(7);
    // Field 99, the payload, is XLA's later form.
    "backend_config": BackendConfig, [] [*], at(43).with(99);

    // Attributes of older texts and of computations.
    "is_cross_program_prefetch": Boolean, [] [] also [CopyStart], at(73).only_written();
    "all_reduce_id": Integer, [] [] also [AllReduce], at(45).only_written();
    "replica_group_ids": Integers, [] [], NO_FIELD;
    "async_group_id": Integer, [] [], NO_FIELD;
    "barrier": Text, [] [], NO_FIELD;
    "opaque": Text, [] [], NO_FIELD;
    "execution_thread": Text, [] [], NO_FIELD;
}

/// Header attributes: key, grammar, and whether only XLA newer than jaxlib 0.10.2 accepts it. Their
/// fields of `HloModuleProto` have different forms, so this table does not list them.
pub(crate) const HEADER: [(&str, H, bool); 12] = [
    ("is_scheduled", H::Boolean, false),
    ("replica_count", H::Integer, false),
    ("num_partitions", H::Integer, false),
    ("alias_passthrough_params", H::Boolean, false),
    ("input_output_alias", H::Aliases, false),
    ("buffer_donor", H::Donors, false),
    ("entry_computation_layout", H::EntryLayout, false),
    ("allow_spmd_sharding_propagation_to_parameters", H::Propagation, false),
    ("allow_spmd_sharding_propagation_to_output", H::Propagation, false),
    ("frontend_attributes", H::Frontend, false),
    ("origin_recovery_table", H::Recovery, false),
    ("debug_attributes", H::Debug, true),
];
