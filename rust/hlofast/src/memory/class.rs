//! The purpose of live values.
//!
//! | class | what |
//! |---|---|
//! | `constant` | a constant |
//! | `optimizer_state` | a parameter of the entry whose name in the metadata says so (`opt_state`, `.mu`, `.nu`, ...) |
//! | `parameter` | another parameter of the entry |
//! | `output` | a result of the program, unless it aliases a parameter |
//! | `gathered_weight` | the result of an all-gather of a parameter |
//! | `residual` | computed by the forward pass and used by the backward pass |
//! | `gradient` | computed by the backward pass with the dimensions of a parameter |
//! | `temporary` | anything else whose phase is known |
//! | `unknown` | none of these, and the phase is unknown |

use super::{LiveValue, Memory};
use crate::flow::{Phase, source_of};
use crate::ir::decode::unescape;
use crate::ir::{ArrayShape, CallRole, Module, Opcode, Row};

/// The purpose of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A constant.
    Constant,
    /// A parameter that holds an optimizer's state.
    OptimizerState,
    /// A parameter.
    Parameter,
    /// A result of the program.
    Output,
    /// The result of an all-gather of a parameter.
    GatheredWeight,
    /// Kept by the forward pass for the backward pass.
    Residual,
    /// Computed by the backward pass with the dimensions of a parameter.
    Gradient,
    /// None of these.
    Temporary,
    /// Unknown.
    Unknown,
}

impl Class {
    /// Every class.
    pub const ALL: [Class; 9] = [
        Class::Constant,
        Class::OptimizerState,
        Class::Parameter,
        Class::Output,
        Class::GatheredWeight,
        Class::Residual,
        Class::Gradient,
        Class::Temporary,
        Class::Unknown,
    ];

    /// The name used in options, tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Constant => "constant",
            Class::OptimizerState => "optimizer_state",
            Class::Parameter => "parameter",
            Class::Output => "output",
            Class::GatheredWeight => "gathered_weight",
            Class::Residual => "residual",
            Class::Gradient => "gradient",
            Class::Temporary => "temporary",
            Class::Unknown => "unknown",
        }
    }
}

/// Classifies values of one analysis.
pub struct Classes<'a> {
    module: &'a Module,
    memory: &'a Memory,
    /// By row: its phase.
    phases: &'a [Phase],
    /// Dimensions of the entry's parameters, sorted.
    weights: Vec<Vec<i64>>,
}

/// How many operations between a parameter and a derived value are followed.
const MOST_STEPS: usize = 64;

impl<'a> Classes<'a> {
    /// For the values of `memory`; `phases` are by row.
    pub fn new(module: &'a Module, memory: &'a Memory, phases: &'a [Phase]) -> Self {
        let entry = module.computation(module.entry());
        let mut weights = Vec::new();
        for row in entry.rows().map(Row).filter(|row| module.opcode(*row) == Opcode::Parameter) {
            for leaf in module.shapes().leaves(module.shape(row)).take(MOST_LEAVES) {
                let array = module.shapes().array(leaf);
                weights.extend(array.filter(|array| array.rank() > 0).map(|array| sizes(&array)));
            }
        }
        weights.sort_unstable();
        weights.dedup();
        Self { module, memory, phases, weights }
    }

    /// The class of `value`.
    pub fn of(&self, value: &LiveValue) -> Class {
        let (module, row) = (self.module, value.row);
        let opcode = module.opcode(row);
        if opcode == Opcode::Constant {
            return Class::Constant;
        }
        let of_entry = module.computation(module.entry()).rows().contains(&row.0);
        if opcode == Opcode::Parameter && of_entry {
            return if self.is_optimizer_state(row) {
                Class::OptimizerState
            } else {
                Class::Parameter
            };
        }
        if let Some(parameter) = self.parameter_of(value.buffer) {
            // It aliases a donated parameter.
            return if self.is_optimizer_state(parameter) {
                Class::OptimizerState
            } else {
                Class::Parameter
            };
        }
        if value.last_step as usize >= self.memory.sequence().len() {
            return Class::Output;
        }
        if self.is_gathered_weight(row) {
            return Class::GatheredWeight;
        }
        let phase = self.phase(self.memory.described_by(module, row));
        let used = self.memory.sequence().get(value.last_step as usize);
        let used = used.map_or(Phase::Unattributed, |row| self.phase(Row(*row)));
        if phase == Phase::Forward && matches!(used, Phase::Backward | Phase::Recompute) {
            return Class::Residual;
        }
        let is_gradient = || {
            let array = module.shapes().array(value.shape);
            array.is_some_and(|array| self.weights.binary_search(&sizes(&array)).is_ok())
        };
        match phase {
            Phase::Backward if is_gradient() => Class::Gradient,
            Phase::Unattributed => Class::Unknown,
            _ => Class::Temporary,
        }
    }

    fn phase(&self, row: Row) -> Phase {
        self.phases.get(row.0 as usize).copied().unwrap_or_default()
    }

    /// The entry parameter that `buffer` belongs to.
    fn parameter_of(&self, buffer: u32) -> Option<Row> {
        let module = self.module;
        let entry = module.computation(module.entry()).rows();
        let values = self.memory.buffers.of.len();
        let buffer = usize::try_from(buffer).ok().filter(|_| values > 0)?;
        let value = *self.memory.buffers.values(buffer).first()?;
        let step = *self.memory.nodes.steps.get(value as usize)?;
        let row = *self.memory.steps.rows.get(step as usize)?;
        let is_parameter = module.opcode(Row(row)) == Opcode::Parameter && entry.contains(&row);
        is_parameter.then_some(Row(row))
    }

    fn is_optimizer_state(&self, row: Row) -> bool {
        let module = self.module;
        let metadata = module.metadata_columns();
        let name = metadata.op_name.get(row.0 as usize).copied().unwrap_or(-1);
        let Some(span) = usize::try_from(name).ok().and_then(|name| metadata.op_names.get(name))
        else {
            return false;
        };
        let raw = module.bytes(*span);
        let name = unescape(raw).map_or_else(|_| raw.to_vec(), |name| name.into_owned());
        let words = name.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
        words.into_iter().any(|word| OPTIMIZER_WORDS.contains(&word))
    }

    /// Whether `row` gathers a parameter, possibly sliced, converted or rearranged.
    fn is_gathered_weight(&self, row: Row) -> bool {
        let module = self.module;
        let gather = match module.opcode(row) {
            Opcode::AllGather | Opcode::AllGatherStart => Some(row),
            Opcode::AllGatherDone => module.operands(row).first().map(|start| Row(*start)),
            Opcode::Fusion => return self.is_gathering_fusion(row),
            Opcode::AsyncStart | Opcode::AsyncDone => return self.is_gathering_fusion(row),
            _ => None,
        };
        let source = gather.and_then(|row| module.operands(row).first().copied());
        source.is_some_and(|row| self.comes_from_parameter(Row(row)))
    }

    /// A fusion or an asynchronous computation that contains an all-gather.
    fn is_gathering_fusion(&self, row: Row) -> bool {
        let module = self.module;
        let Some(callee) =
            module.called(row, CallRole::Calls).or_else(|| module.called(row, CallRole::Wrapped))
        else {
            return false;
        };
        let gathers = |row: u32| module.opcode(Row(row)) == Opcode::AllGather;
        if !module.computation(callee).rows().any(gathers) {
            return false;
        }
        let operands = module.operands(row).iter().take(MOST_LEAVES);
        operands.into_iter().any(|operand| self.comes_from_parameter(Row(*operand)))
    }

    fn comes_from_parameter(&self, row: Row) -> bool {
        let module = self.module;
        let entry = module.computation(module.entry()).rows();
        let mut at = source_of(module, row, true);
        for _ in 0..MOST_STEPS {
            let is_form = matches!(
                module.opcode(at),
                Opcode::Bitcast
                    | Opcode::Convert
                    | Opcode::Copy
                    | Opcode::CopyDone
                    | Opcode::CopyStart
                    | Opcode::DynamicSlice
                    | Opcode::Reshape
                    | Opcode::Slice
                    | Opcode::Transpose
            ) || self.is_form_fusion(at);
            match module.opcode(at) {
                Opcode::Parameter => return entry.contains(&at.0),
                _ if is_form => {}
                _ => return false,
            }
            let Some(operand) = module.operands(at).first() else { return false };
            at = source_of(module, Row(*operand), true);
        }
        false
    }

    /// A fusion with one large operand that only reshapes, converts or rearranges it.
    fn is_form_fusion(&self, row: Row) -> bool {
        let module = self.module;
        if module.opcode(row) != Opcode::Fusion {
            return false;
        }
        let Some(callee) = module.called(row, CallRole::Calls) else { return false };
        let rows = module.computation(callee).rows();
        rows.len() <= MOST_STEPS
            && rows.into_iter().all(|row| {
                matches!(
                    module.opcode(Row(row)),
                    Opcode::Bitcast
                        | Opcode::Constant
                        | Opcode::Convert
                        | Opcode::Copy
                        | Opcode::DynamicSlice
                        | Opcode::Parameter
                        | Opcode::Reshape
                        | Opcode::Slice
                        | Opcode::Transpose
                )
            })
    }
}

const MOST_LEAVES: usize = 1 << 16;

/// Words in the names of parameters that hold optimizer state, as in optax, flax and other
/// libraries.
const OPTIMIZER_WORDS: [&[u8]; 14] = [
    b"opt_state",
    b"optimizer",
    b"optimizer_state",
    b"optimizer_states",
    b"opt_states",
    b"mu",
    b"nu",
    b"trace",
    b"momentum",
    b"moment",
    b"exp_avg",
    b"exp_avg_sq",
    b"first_moment",
    b"second_moment",
];

fn sizes(array: &ArrayShape<'_>) -> Vec<i64> {
    array.dimensions().map(|size| size.bound().unwrap_or(-1)).collect()
}
