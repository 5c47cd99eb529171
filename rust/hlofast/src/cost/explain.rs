//! How the executed cost differs from XLA's, rule by rule, and the instructions each rule affects.

use super::custom_call::{CustomCallKind, custom_call_cost};
use crate::ir::{Module, Opcode, Row, ShapeView};

/// One rule that differs.
#[derive(Clone, Copy)]
pub struct Departure {
    /// The subject of the rule, in a few words.
    pub rule: &'static str,
    /// What XLA counts.
    pub xla: &'static str,
    /// What the executed cost counts.
    pub executed: &'static str,
    /// Whether the rule affects an instruction.
    concerns: fn(&Module, Row) -> bool,
}

fn is(opcodes: &[Opcode], module: &Module, row: Row) -> bool {
    opcodes.contains(&module.opcode(row))
}

fn has_kind(module: &Module, row: Row, kinds: &[CustomCallKind]) -> bool {
    module.opcode(row) == Opcode::CustomCall && kinds.contains(&custom_call_cost(module, row).kind)
}

/// Every departure, most important first.
pub const DEPARTURES: &[Departure] = &[
    Departure {
        rule: "loops",
        xla: "body and condition are counted once",
        executed: "body times trip count, condition once more; once if the trip count is unknown",
        concerns: |m, r| is(&[Opcode::While], m, r),
    },
    Departure {
        rule: "call paths",
        xla: "a computation is counted where the entry reaches it",
        executed: "each call site is counted; nested loops multiply",
        concerns: |m, r| is(&[Opcode::Call, Opcode::AsyncStart], m, r),
    },
    Departure {
        rule: "custom calls",
        xla: "-1 FLOP, -1 byte each",
        executed: "library calls and kernels by target and backend_config, bytes from operands \
                   and results; other targets are listed as unknown",
        concerns: |m, r| {
            is(&[Opcode::CustomCall], m, r) && !has_kind(m, r, &[CustomCallKind::Marker])
        },
    },
    Departure {
        rule: "markers",
        xla: "-1 FLOP, -1 byte each",
        executed: "nothing",
        concerns: |m, r| has_kind(m, r, &[CustomCallKind::Marker]),
    },
    Departure {
        rule: "conditionals",
        xla: "each figure from the branch where it is largest",
        executed: "the branch with the most FLOPs, all figures from it",
        concerns: |m, r| is(&[Opcode::Conditional], m, r),
    },
    Departure {
        rule: "memory spaces",
        xla: "no distinction",
        executed: "HBM (memory space 0) separate from on-chip and host memory",
        concerns: |m, r| {
            let shapes = m.shapes();
            shapes.leaf_count(m.shape(r)) < 64
                && shapes.leaves(m.shape(r)).any(|leaf| match shapes.get(leaf) {
                    ShapeView::Array(array) => {
                        array.layout.is_some_and(|layout| layout.memory_space != 0)
                    }
                    _ => false,
                })
        },
    },
    Departure {
        rule: "asynchronous pairs",
        xla: "start and done are both counted, with context and alias",
        executed: "reads and writes once, at the done; for TPU fusions around a collective, at \
                   the fusion that waits",
        concerns: |m, r| {
            is(
                &[
                    Opcode::CopyStart,
                    Opcode::AllGatherStart,
                    Opcode::AllReduceStart,
                    Opcode::CollectivePermuteStart,
                    Opcode::AsyncStart,
                    Opcode::Send,
                    Opcode::Recv,
                ],
                m,
                r,
            )
        },
    },
    Departure {
        rule: "in-place updates",
        xla: "an update at the fusion's root, whatever it updates",
        executed: "an update or scatter of an operand, even if bitcast or converted",
        concerns: |m, r| is(&[Opcode::DynamicUpdateSlice, Opcode::Scatter], m, r),
    },
    Departure {
        rule: "operands of fusions",
        xla: "each broadcast, reshape and slice reads again; a gather reads the whole operand",
        executed: "read at most once; slices and gathers read only what they take",
        concerns: |m, r| is(&[Opcode::Fusion], m, r),
    },
    Departure {
        rule: "repeated operands",
        xla: "read twice",
        executed: "read once",
        concerns: |m, r| {
            let operands = m.operands(r);
            operands.len() == 2
                && operands[0] == operands[1]
                && !is(&[Opcode::Fusion, Opcode::Tuple, Opcode::Call], m, r)
        },
    },
    Departure {
        rule: "slice indices",
        xla: "only the first index is read",
        executed: "every index is read",
        concerns: |m, r| is(&[Opcode::DynamicSlice, Opcode::DynamicUpdateSlice], m, r),
    },
    Departure {
        rule: "tuples and barriers",
        xla: "pointer tables count as bytes, barriers count all their contents",
        executed: "nothing",
        concerns: |m, r| is(&[Opcode::Tuple, Opcode::OptBarrier], m, r),
    },
    Departure {
        rule: "flags and scalars on TPU",
        xla: "4096 bytes each",
        executed: "their actual size",
        concerns: |m, r| {
            let array = m.shapes().array(m.shape(r));
            let layout = array.and_then(|array| array.layout);
            layout.is_some_and(|layout| {
                matches!(layout.memory_space, 2 | 4) && layout.tiles.is_empty()
            })
        },
    },
    Departure {
        rule: "sub-byte types",
        xla: "a whole byte unless the layout packs",
        executed: "packed",
        concerns: |m, r| {
            let array = m.shapes().array(m.shape(r));
            array.is_some_and(|array| matches!(array.element_type.bits(), 2..8))
        },
    },
    Departure {
        rule: "reductions between devices",
        xla: "all-reduce: one FLOP per element; reduce-scatter: none",
        executed: "ring: each of n devices adds (n-1)/n of the elements; excluded from MFU",
        concerns: |m, r| {
            is(&[Opcode::AllReduce, Opcode::AllReduceStart, Opcode::ReduceScatter], m, r)
        },
    },
    Departure {
        rule: "ragged dots",
        xla: "the ragged dimension is left out",
        executed: "every row is multiplied with one group",
        concerns: |m, r| is(&[Opcode::RaggedDot], m, r),
    },
    Departure {
        rule: "multi-dimensional FFTs",
        xla: "the logarithms of the lengths are multiplied",
        executed: "added, as one transform runs after the other",
        concerns: |m, r| is(&[Opcode::Fft], m, r),
    },
    Departure {
        rule: "sorts",
        xla: "n log2 n over all elements",
        executed: "n log2 n over each sorted line",
        concerns: |m, r| is(&[Opcode::Sort], m, r),
    },
    Departure {
        rule: "batch norms and top-k",
        xla: "no FLOPs",
        executed: "batch norms: unknown; top-k: ceil(log2(k + 1)) comparisons per element",
        concerns: |m, r| {
            is(
                &[
                    Opcode::BatchNormGrad,
                    Opcode::BatchNormInference,
                    Opcode::BatchNormTraining,
                    Opcode::Topk,
                ],
                m,
                r,
            )
        },
    },
    Departure {
        rule: "sums",
        xla: "32-bit floats",
        executed: "integers",
        concerns: |m, r| r.0 == m.computation(m.entry()).root,
    },
];

/// Each departure with the number of instructions it affects.
pub fn explain(module: &Module) -> Vec<(&'static Departure, u64)> {
    let count = |departure: &Departure| {
        module.rows().filter(|row| (departure.concerns)(module, *row)).count() as u64
    };
    DEPARTURES.iter().map(|departure| (departure, count(departure))).collect()
}
