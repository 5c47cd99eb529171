//! Where the executed cost departs from XLA's, rule by rule, and what that concerns in a module.

use super::custom_call::{CustomCallKind, custom_call_cost};
use crate::ir::{Module, Opcode, Row, ShapeView};

/// One rule that differs.
#[derive(Clone, Copy)]
pub struct Departure {
    /// What it is about, in a word or two.
    pub rule: &'static str,
    /// What XLA counts.
    pub xla: &'static str,
    /// What is counted here.
    pub executed: &'static str,
    /// Whether it concerns an instruction.
    concerns: fn(&Module, Row) -> bool,
}

fn is(opcodes: &[Opcode], module: &Module, row: Row) -> bool {
    opcodes.contains(&module.opcode(row))
}

fn has_kind(module: &Module, row: Row, kinds: &[CustomCallKind]) -> bool {
    module.opcode(row) == Opcode::CustomCall && kinds.contains(&custom_call_cost(module, row).kind)
}

/// Every departure, the weightiest first.
pub const DEPARTURES: &[Departure] = &[
    Departure {
        rule: "loops",
        xla: "body and condition count once",
        executed: "the body as often as it runs, the condition once more; once if unknown",
        concerns: |m, r| is(&[Opcode::While], m, r),
    },
    Departure {
        rule: "call paths",
        xla: "a computation counts where the entry reaches it",
        executed: "each call site counts, loops inside loops multiply",
        concerns: |m, r| is(&[Opcode::Call, Opcode::AsyncStart], m, r),
    },
    Departure {
        rule: "custom calls",
        xla: "-1 FLOP, -1 byte each",
        executed: "library calls and kernels by target and backend_config; bytes are operands and \
                   results; others are listed as unknown",
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
        xla: "for each figure the largest of all branches",
        executed: "one whole branch: the one with the most FLOPs",
        concerns: |m, r| is(&[Opcode::Conditional], m, r),
    },
    Departure {
        rule: "memory spaces",
        xla: "all memory alike",
        executed: "HBM (memory space 0) apart from fast memory and the host's",
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
        xla: "start and done both count, with context and alias",
        executed: "what is read and written, once, at the done; of TPU fusions around a \
                   collective, at the one that waits",
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
        xla: "an update that is the fusion's root, whatever it updates",
        executed: "an update of an operand, also renamed or converted; a scatter likewise",
        concerns: |m, r| is(&[Opcode::DynamicUpdateSlice, Opcode::Scatter], m, r),
    },
    Departure {
        rule: "operands of fusions",
        xla: "read again by each broadcast, reshape and slice, whole by gathers",
        executed: "read once at most, and only what slices and gathers take",
        concerns: |m, r| is(&[Opcode::Fusion], m, r),
    },
    Departure {
        rule: "operands given twice",
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
        rule: "indices of slices",
        xla: "the first index is read",
        executed: "every index is read",
        concerns: |m, r| is(&[Opcode::DynamicSlice, Opcode::DynamicUpdateSlice], m, r),
    },
    Departure {
        rule: "tuples and barriers",
        xla: "pointer tables count as bytes, barriers as all they hold",
        executed: "nothing",
        concerns: |m, r| is(&[Opcode::Tuple, Opcode::OptBarrier], m, r),
    },
    Departure {
        rule: "flags and scalars on TPU",
        xla: "4096 bytes each",
        executed: "their few bytes",
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
        xla: "all-reduce adds every element once, reduce-scatter nothing",
        executed: "a ring: (n-1)/n of the elements on each of n devices; no part of MFU",
        concerns: |m, r| {
            is(&[Opcode::AllReduce, Opcode::AllReduceStart, Opcode::ReduceScatter], m, r)
        },
    },
    Departure {
        rule: "ragged dots",
        xla: "the ragged dimension is left out",
        executed: "every row meets one group",
        concerns: |m, r| is(&[Opcode::RaggedDot], m, r),
    },
    Departure {
        rule: "transforms of several dimensions",
        xla: "logarithms of the lengths are multiplied",
        executed: "added: one transform after the other",
        concerns: |m, r| is(&[Opcode::Fft], m, r),
    },
    Departure {
        rule: "sorts",
        xla: "n log2 n of all elements",
        executed: "of each line that is sorted",
        concerns: |m, r| is(&[Opcode::Sort], m, r),
    },
    Departure {
        rule: "batch norms and top-k",
        xla: "no FLOPs",
        executed: "batch norms are unknown; top-k compares ceil(log2(k + 1)) times per element",
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

/// For each departure the number of instructions it concerns.
pub fn explain(module: &Module) -> Vec<(&'static Departure, u64)> {
    let count = |departure: &Departure| {
        module.rows().filter(|row| (departure.concerns)(module, *row)).count() as u64
    };
    DEPARTURES.iter().map(|departure| (departure, count(departure))).collect()
}
