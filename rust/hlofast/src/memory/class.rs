//! The purpose of live values.
//!
//! | class | what |
//! |---|---|
//! | `constant` | a constant |
//! | `optimizer_state` | a parameter of the entry whose name in the metadata says so (`opt_state`, `.mu`, `.nu`, ...) |
//! | `parameter` | another parameter of the entry |
//! | `output` | a result of the program, unless it aliases a parameter |
//! | `gathered_weight` | the result of an all-gather of a parameter, also converted or rearranged |
//! | `residual` | computed by the forward pass and used by the backward pass |
//! | `gradient` | computed by the backward pass with the dimensions of a parameter |
//! | `temporary` | anything else whose phase is known |
//! | `unknown` | none of these, and the phase is unknown |
//!
//! A value that was only moved, whole or in parts, keeps the class of the original value.

use super::{LiveValue, Memory};
use crate::flow::moved::{moves, step_back};
use crate::flow::origin::{End, Place, Through, origins_within};
use crate::flow::{Attribution, Phase, ScopeTree, Whose, source_of};
use crate::ir::decode::unescape;
use crate::ir::{ArrayShape, CallRole, ElementKind, Module, Opcode, Row};
use std::borrow::Cow;
use std::cell::Cell;

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
    /// A value of any other purpose.
    Temporary,
    /// The purpose is unknown.
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
    attribution: &'a Attribution,
    whose: &'a Whose,
    /// Remaining steps for following gathered values.
    steps: Cell<usize>,
    /// Whether the module gathers anything.
    has_gathers: bool,
    /// Dimensions of the entry's parameters, sorted.
    weights: Vec<Vec<i64>>,
    /// By buffer that a loop carries: the last step of its values, without results of the program.
    ends: Vec<u32>,
}

/// Limit on the operations that are followed between a parameter and a derived value.
const MOST_STEPS: usize = 64;

impl<'a> Classes<'a> {
    /// Classifies the values of `memory`.
    pub fn new(module: &'a Module, memory: &'a Memory, attribution: &'a Attribution) -> Self {
        let entry = module.computation(module.entry());
        let mut leaves = Vec::new();
        for row in entry.rows().map(Row).filter(|row| module.opcode(*row) == Opcode::Parameter) {
            leaves.extend(module.shapes().leaves(module.shape(row)).take(MOST_LEAVES));
        }
        // Many parameters have the same shape.
        leaves.sort_unstable();
        leaves.dedup();
        let arrays = leaves.into_iter().filter_map(|leaf| module.shapes().array(leaf));
        let mut weights: Vec<Vec<i64>> =
            arrays.filter(|array| array.rank() > 0).map(|array| sizes(&array)).collect();
        weights.sort_unstable();
        weights.dedup();
        let steps = memory.sequence().len();
        let is_carried = |value: u32| {
            let row = memory.layout.steps.rows[memory.layout.nodes.steps[value as usize] as usize];
            match module.opcode(Row(row)) {
                Opcode::Parameter => module.computation_of(Row(row)) != module.entry(),
                opcode => opcode == Opcode::While,
            }
        };
        let last_step = |buffer: usize| {
            let values = memory.buffers.values(buffer);
            if !values.iter().any(|own| is_carried(*own)) {
                return 0;
            }
            let ends = values.iter().map(|own| memory.ranges.ends[*own as usize]);
            ends.filter(|end| (*end as usize) < steps).max().unwrap_or(0)
        };
        let gathers =
            |row: Row| matches!(module.opcode(row), Opcode::AllGather | Opcode::AllGatherStart);
        Self {
            module,
            memory,
            attribution,
            whose: attribution.whose(module),
            steps: Cell::new(module.row_count().saturating_mul(32).max(FEWEST_STEPS)),
            has_gathers: module.rows().any(gathers),
            weights,
            ends: (0..memory.buffers.len()).map(last_step).collect(),
        }
    }

    /// The row whose metadata describe `value`, and the value's phase. For a value that was only
    /// moved, the result is the row that computed it and the phase of that row. For an element of a
    /// loop's state, the result is the loop or, if the loop has no name, the row that writes the
    /// element.
    pub fn described(&self, value: &LiveValue) -> (Row, Phase) {
        let (module, whose) = (self.module, self.whose);
        let row = self.memory.described_by(module, value.row);
        let told_by = whose.told_by(row);
        let mut phase = self.phase(row);
        let scope = self.attribution.scope.get(told_by.0 as usize).copied();
        if scope.is_none_or(|scope| scope == ScopeTree::ROOT)
            && module.opcode(row) == Opcode::While
            && let Some(writer) = whose.writer(module, row, &value.path)
        {
            if phase == Phase::Unattributed {
                phase = self.phase(writer);
            }
            return (writer, phase);
        }
        (told_by, phase)
    }

    /// The class of `value`.
    pub fn of(&self, value: &LiveValue) -> Class {
        self.of_phase(value, || self.described(value).1)
    }

    /// The class of `value`, whose phase [`Classes::described`] gives.
    pub(crate) fn of_phase(&self, value: &LiveValue, phase: impl FnOnce() -> Phase) -> Class {
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
            // The value aliases a donated parameter.
            return if self.is_optimizer_state(parameter) {
                Class::OptimizerState
            } else {
                Class::Parameter
            };
        }
        if value.last_step as usize >= self.memory.sequence().len() {
            return Class::Output;
        }
        if let Some(parameter) = self.moved_parameter(value) {
            return if self.is_optimizer_state(parameter) {
                Class::OptimizerState
            } else {
                Class::Parameter
            };
        }
        if self.is_gathered_weight(row) || self.has_gathers && self.is_from_gather(value) {
            return Class::GatheredWeight;
        }
        let phase = phase();
        let used = self.memory.sequence().get(self.last_step(value) as usize);
        if phase == Phase::Forward && used.is_some_and(|row| self.is_late(Row(*row))) {
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

    /// The last step of a value, or of its buffer if a loop carries it: within the loop, the stacks of its
    /// results are values of their own that end with the loop's body.
    fn last_step(&self, value: &LiveValue) -> u32 {
        let end = self.ends.get(value.buffer as usize).copied();
        end.unwrap_or(0).max(value.last_step)
    }

    fn phase(&self, row: Row) -> Phase {
        self.whose.phase.get(row.0 as usize).copied().unwrap_or_default()
    }

    /// Whether `row` is backward or recomputed work, or moves a value to such work.
    fn is_late(&self, row: Row) -> bool {
        if moves(self.module, row) {
            return self.whose.is_read_late(self.module, self.attribution, row);
        }
        matches!(self.phase(row), Phase::Backward | Phase::Recompute)
    }

    /// The entry parameter from which `value` was moved.
    fn moved_parameter(&self, value: &LiveValue) -> Option<Row> {
        let module = self.module;
        if !moves(module, value.row) {
            return None;
        }
        let mut at = place_of(value);
        for _ in 0..MOST_STEPS {
            if !step_back(module, &mut at) {
                break;
            }
        }
        let entry = module.computation(module.entry()).rows();
        let is_parameter = module.opcode(at.row) == Opcode::Parameter && entry.contains(&at.row.0);
        is_parameter.then_some(at.row)
    }

    /// Whether `value` consists of converted or sliced gathered parameters.
    fn is_from_gather(&self, value: &LiveValue) -> bool {
        let ends = |through: Through| {
            let most = self.steps.get().min(MOST_GATHER_STEPS);
            let mut left = most;
            let origins = origins_within(self.module, place_of(value), through, &mut left);
            self.steps.set(self.steps.get() - (most - left));
            (!origins.is_partial).then_some(origins.ends)
        };
        let gathers = |row: &Row| {
            let calls_done = self.module.opcode(*row) == Opcode::CustomCall
                && self
                    .module
                    .operands(*row)
                    .iter()
                    .any(|operand| self.module.opcode(Row(*operand)) == Opcode::AllGather);
            let opcode = self.module.opcode(*row);
            let is_gather = matches!(
                opcode,
                Opcode::AllGather | Opcode::AllGatherStart | Opcode::AllGatherDone
            );
            is_gather || calls_done
        };
        let without = Through { conversions: true, slices: true, gathers: false };
        let Some(near) = ends(without) else { return false };
        let computed = |end: &End| match end {
            End::Computed(row) => Some(*row),
            _ => None,
        };
        if !near.iter().filter_map(computed).any(|row| gathers(&row)) {
            return false;
        }
        let Some(far) = ends(Through::EVERYTHING) else { return false };
        let is_weight = |end: &End| match end {
            End::Parameter(row) => is_floating(self.module, *row),
            End::Constant(_) => true,
            End::Computed(_) => false,
        };
        far.iter().all(is_weight) && far.iter().any(|end| matches!(end, End::Parameter(_)))
    }

    /// The entry parameter that `buffer` belongs to.
    fn parameter_of(&self, buffer: u32) -> Option<Row> {
        let module = self.module;
        let entry = module.computation(module.entry()).rows();
        let values = self.memory.buffers.of.len();
        let buffer = usize::try_from(buffer).ok().filter(|_| values > 0)?;
        let value = *self.memory.buffers.values(buffer).first()?;
        let step = *self.memory.layout.nodes.steps.get(value as usize)?;
        let row = *self.memory.layout.steps.rows.get(step as usize)?;
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
        let name = unescape(raw).unwrap_or(Cow::Borrowed(raw));
        let mut words = name.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
        // Most words begin with another letter.
        let may_be = |word: &&[u8]| word.first().is_some_and(|first| b"efmnost".contains(first));
        words.any(|word| may_be(&word) && OPTIMIZER_WORDS.contains(&word))
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

/// Limits on the steps for following gathered values: for one value, and the minimum for all
/// values.
const MOST_GATHER_STEPS: usize = 256;
const FEWEST_STEPS: usize = 1 << 20;

fn place_of(value: &LiveValue) -> Place {
    Place { row: value.row, path: value.path.iter().rev().copied().collect() }
}

/// Whether a parameter, or the first array in it, is of a floating-point type.
fn is_floating(module: &Module, row: Row) -> bool {
    let leaf = module.shapes().leaves(module.shape(row)).next();
    let array = leaf.and_then(|leaf| module.shapes().array(leaf));
    array.is_some_and(|array| array.element_type.kind() == ElementKind::Float)
}

fn sizes(array: &ArrayShape<'_>) -> Vec<i64> {
    array.dimensions().map(|size| size.bound().unwrap_or(-1)).collect()
}
