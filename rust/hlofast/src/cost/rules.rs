//! FLOPs and transcendentals of one instruction: as `HloCostAnalysis` counts them, and as executed
//! where XLA's count differs from what runs.
//!
//! The two engines add called computations, because they know how often each computation runs.
//! Products are 128-bit, so that no input makes them wrap.

use super::facts::Fact;
use crate::Provenance;
use crate::ir::decode::WindowDimension;
use crate::ir::size::{Backend, ShapeCost, part_sizes};
use crate::ir::{CallRole, ComputationId, ElementKind, Module, Opcode, Row};

/// How an opcode is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The instruction neither computes nor moves data.
    Free,
    /// The instruction performs one operation per element of the result.
    Elementwise,
    /// The instruction performs one transcendental per element of the result.
    Transcendental,
    /// The instruction only reads its operands and writes its result.
    Moves,
    /// The opcode has its own rule.
    Special,
}

const fn class(opcode: Opcode) -> Class {
    use Opcode::*;
    match opcode {
        Parameter | Constant | GetTupleElement | Bitcast | Domain | AfterAll | AddDependency => {
            Class::Free
        }
        Abs | Add | And | BitcastConvert | Ceil | Clamp | Compare | Complex | Convert
        | CountLeadingZeros | Divide | Floor | Imag | IsFinite | Maximum | Minimum | Mulhi
        | Multiply | Negate | Not | Or | Popcnt | Real | ReducePrecision | Remainder
        | RoundNearestAfz | RoundNearestEven | Select | ShiftLeft | ShiftRightArithmetic
        | ShiftRightLogical | Sign | StochasticConvert | Subtract | Xor => Class::Elementwise,
        Acos | Acosh | Asin | Asinh | Atan2 | Atanh | Cbrt | Cosh | Cosine | Erf | Exponential
        | ExponentialMinusOne | Log | LogPlusOne | Logistic | Power | Rsqrt | Sine | Sinh
        | Sqrt | Tan | Tanh => Class::Transcendental,
        Broadcast | Concatenate | Copy | DynamicReshape | GetDimensionSize | Iota | Pad
        | PartitionId | ReplicaId | Reshape | Reverse | SetDimensionSize | RngGetAndUpdateState => {
            Class::Moves
        }
        _ => Class::Special,
    }
}

const CLASSES: [Class; Opcode::ALL.len()] = {
    let mut table = [Class::Special; Opcode::ALL.len()];
    let mut code = 0;
    while code < table.len() {
        table[code] = class(Opcode::ALL[code]);
        code += 1;
    }
    table
};

/// How `opcode` is counted.
#[inline]
pub(super) fn class_of(opcode: Opcode) -> Class {
    CLASSES[opcode as usize]
}

/// The work of one execution of an instruction, without called computations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub flops: i128,
    pub transcendentals: i128,
    pub provenance: Provenance,
}

impl Work {
    fn flops(flops: i128) -> Self {
        Self { flops, ..Self::default() }
    }

    fn modelled(flops: i128) -> Self {
        Self { flops, provenance: Provenance::Modelled, ..Self::default() }
    }

    fn unknown() -> Self {
        Self { provenance: Provenance::Unknown, ..Self::default() }
    }
}

/// A computation that an instruction applies to elements, and how many times.
pub(super) type Application = (ComputationId, i128);

/// The input of the rules.
#[derive(Clone, Copy)]
pub(super) struct Rules<'a> {
    pub module: &'a Module,
    pub shapes: &'a [ShapeCost],
    /// The backend that the sizes in `shapes` belong to.
    pub backend: Backend,
    /// Follows XLA even where it is wrong.
    pub is_xla: bool,
    /// By shape: sizes of constants, if they differ from the sizes of other values. XLA's parser
    /// drops `E(n)` from the layouts of constants.
    pub constant_sizes: Option<&'a [i64]>,
}

impl Rules<'_> {
    #[inline]
    pub fn shape(&self, row: Row) -> ShapeCost {
        let id = self.module.shape(row).0 as usize;
        let shape = self.shapes[id];
        match self.constant_sizes {
            Some(sizes) if self.module.opcode(row) == Opcode::Constant => {
                ShapeCost { size: sizes[id], ..shape }
            }
            _ => shape,
        }
    }

    /// The shape of operand `index`; the empty default if it does not exist.
    #[inline]
    pub fn operand(&self, row: Row, index: usize) -> ShapeCost {
        let operand = self.module.operands(row).get(index);
        operand.map_or_else(ShapeCost::default, |operand| self.shape(Row(*operand)))
    }

    fn elements(&self, row: Row) -> Option<i128> {
        let elements = self.shape(row).elements;
        (elements >= 0).then_some(i128::from(elements))
    }

    pub fn operand_elements(&self, row: Row, index: usize) -> Option<i128> {
        let operand = *self.module.operands(row).get(index)?;
        self.elements(Row(operand))
    }

    /// Elements of all array leaves of the result.
    fn leaf_elements(&self, row: Row) -> Option<i128> {
        let mut sum = 0i128;
        for leaf in self.module.shapes().leaves(self.module.shape(row)) {
            let cost = self.shapes.get(leaf.0 as usize)?;
            sum += (cost.elements >= 0).then_some(i128::from(cost.elements))?;
        }
        Some(sum)
    }

    /// Elements of the result, or of its first element if it is a tuple.
    fn first_elements(&self, row: Row) -> Option<i128> {
        let shape = self.module.shape(row);
        let first = self.module.shapes().tuple(shape).and_then(|children| children.first());
        let elements = self.shapes.get(first.unwrap_or(&shape).0 as usize)?.elements;
        (elements >= 0).then_some(i128::from(elements))
    }

    /// Bytes that a gather or scatter moves between operand `operand` and `part` (its result or an
    /// update): the size of `part`, but on TPU every slice fills whole tiles.
    pub fn slices(&self, row: Row, operand: usize, part: ShapeCost, fact: Option<&Fact>) -> i64 {
        let padded_bytes = || {
            let Some(Fact::Slice(sizes)) = fact else { return None };
            let operand = *self.module.operands(row).get(operand)?;
            let array = self.module.shapes().array(self.module.shape(Row(operand)))?;
            if sizes.len() != array.rank() || part.size < 0 {
                return None;
            }
            let (padded, plain) = part_sizes(&array, sizes, self.backend, !self.is_xla)?;
            let bytes = i128::from(part.size) * i128::from(padded);
            i64::try_from(bytes.checked_div(plain.into())?).ok()
        };
        match self.backend {
            Backend::Cpu | Backend::Gpu => part.size,
            Backend::Tpu => padded_bytes().unwrap_or(part.size),
        }
    }

    /// Size of the last dimension of operand 0.
    fn last_dimension(&self, row: Row) -> Option<i128> {
        let operand = *self.module.operands(row).first()?;
        let array = self.module.shapes().array(self.module.shape(Row(operand)))?;
        let last = array.dimension(array.rank().checked_sub(1)?)?;
        last.bound().map(i128::from)
    }

    /// The work of `row`, without the computations it calls.
    pub fn work(&self, row: Row, opcode: Opcode, fact: Option<&Fact>) -> Work {
        match class_of(opcode) {
            Class::Free | Class::Moves => Work::default(),
            Class::Elementwise => self.elements(row).map_or_else(Work::unknown, Work::flops),
            Class::Transcendental => match self.elements(row) {
                Some(transcendentals) => Work { transcendentals, ..Work::default() },
                None => Work::unknown(),
            },
            Class::Special => self.special(row, opcode, fact).unwrap_or_else(Work::unknown),
        }
    }

    fn special(&self, row: Row, opcode: Opcode, fact: Option<&Fact>) -> Option<Work> {
        Some(match opcode {
            Opcode::Dot | Opcode::ScaledDot => {
                let Some(Fact::Contracted(contracted)) = fact else { return None };
                let flops = self.elements(row)?.checked_mul(2)?.checked_mul(*contracted)?;
                Work::flops(self.of_real_numbers(row, flops)?)
            }
            Opcode::RaggedDot => {
                let Some(Fact::RaggedDot { xla, executed }) = fact else { return None };
                Work::flops(if self.is_xla { *xla } else { (*executed)? })
            }
            Opcode::Convolution => {
                let Some(Fact::Flops(flops)) = fact else { return None };
                Work::flops(self.of_real_numbers(row, *flops)?)
            }
            Opcode::Rng => Work { transcendentals: self.elements(row)?, ..Work::default() },
            Opcode::RngBitGenerator => {
                Work { transcendentals: self.leaf_elements(row)?, ..Work::default() }
            }
            Opcode::Sort => self.sort(row, fact)?,
            Opcode::Fft => {
                let Some(Fact::FftLengths(lengths)) = fact else { return None };
                Work::modelled(self.fft(row, lengths)?)
            }
            Opcode::TriangularSolve => {
                let elements = self.operand_elements(row, 1)?;
                Work::modelled(self.last_dimension(row)?.checked_mul(elements)?.checked_mul(2)?)
            }
            Opcode::Cholesky => {
                let elements = self.operand_elements(row, 0)?;
                Work::modelled(self.last_dimension(row)?.checked_mul(elements)? / 3)
            }
            Opcode::AllReduce | Opcode::AllReduceStart if self.is_xla => {
                Work::flops(self.leaf_elements(row)?)
            }
            Opcode::AllReduce | Opcode::AllReduceDone | Opcode::ReduceScatter if !self.is_xla => {
                self.ring_reduction(row, opcode, fact)?
            }
            Opcode::Topk if !self.is_xla => {
                let shapes = self.module.shapes();
                let array = shapes.leaves(self.module.shape(row)).next();
                let array = array.and_then(|leaf| shapes.array(leaf))?;
                let kept = array.dimension(array.rank().checked_sub(1)?)?.bound()?;
                let comparisons = log2_ceiling(i128::from(kept) + 1);
                Work::modelled(self.operand_elements(row, 0)?.checked_mul(comparisons)?)
            }
            Opcode::BatchNormGrad | Opcode::BatchNormInference | Opcode::BatchNormTraining
                if !self.is_xla =>
            {
                Work::unknown()
            }
            // Unknown opcodes count as moving data; their arithmetic is unknown.
            Opcode::Unknown => Work::unknown(),
            _ => Work::default(),
        })
    }

    /// FLOPs of a product whose multiply-adds count two each. XLA counts complex numbers so; as
    /// executed they take eight.
    fn of_real_numbers(&self, row: Row, flops: i128) -> Option<i128> {
        let shapes = self.module.shapes();
        let operand = self.module.operands(row).first().copied();
        let array = operand.and_then(|operand| shapes.array(self.module.shape(Row(operand))));
        let is_complex =
            array.is_some_and(|array| array.element_type.kind() == ElementKind::Complex);
        if is_complex && !self.is_xla { flops.checked_mul(4) } else { Some(flops) }
    }

    /// XLA: n log2 n over all elements. As executed: a comparison sort of each line along the
    /// dimension.
    fn sort(&self, row: Row, fact: Option<&Fact>) -> Option<Work> {
        let elements = self.operand_elements(row, 0)?;
        if self.is_xla {
            return Some(Work::flops(elements * log2_ceiling(elements)));
        }
        let Some(Fact::SortedDimension(length)) = fact else { return None };
        Some(Work::modelled(elements * log2_ceiling(i128::from(*length))))
    }

    /// XLA multiplies the logarithms of the transformed lengths. A multi-dimensional transform runs
    /// one dimension after the other, so the executed count adds them.
    fn fft(&self, row: Row, lengths: &[i64]) -> Option<i128> {
        let elements = self.operand_elements(row, 0)?;
        let logarithms = lengths.iter().map(|length| log2_floor(*length));
        let factor = if self.is_xla {
            logarithms.fold(1i128, |product, log| product.saturating_mul(log))
        } else {
            logarithms.filter(|log| *log > 0).sum()
        };
        Some(elements.saturating_mul(factor).saturating_mul(8))
    }

    /// In a ring of n devices, each device adds (n-1)/n of the reduced elements.
    fn ring_reduction(&self, row: Row, opcode: Opcode, fact: Option<&Fact>) -> Option<Work> {
        let Some(Fact::Participants(participants)) = fact else { return None };
        let elements = match opcode {
            Opcode::ReduceScatter => {
                let operands = self.module.operands(row);
                operands.iter().try_fold(0i128, |sum, operand| {
                    Some(sum + self.leaf_elements(Row(*operand))?)
                })?
            }
            _ => self.leaf_elements(row)?,
        };
        let participants = i128::from((*participants)?).max(1);
        let added = elements.checked_mul(participants - 1)?;
        Some(Work::modelled((added + participants - 1) / participants))
    }

    /// The computations that `row` applies element by element, and how many times; empty for other
    /// opcodes. None if the count is unknown.
    pub fn applications(
        &self,
        row: Row,
        opcode: Opcode,
        fact: Option<&Fact>,
    ) -> Option<[Option<Application>; 2]> {
        // A reduction of an empty array applies nothing; XLA's count becomes negative.
        let least = if self.is_xla { i128::MIN } else { 0 };
        let applied = |count: i128| {
            let count = count.max(least);
            let call = self.module.called(row, CallRole::ToApply);
            [call.map(|computation| (computation, count)), None]
        };
        Some(match opcode {
            Opcode::Reduce => applied(self.operand_elements(row, 0)? - self.first_elements(row)?),
            Opcode::Map => applied(self.elements(row)?),
            Opcode::Scatter => {
                let updates = (self.module.operands(row).len().saturating_sub(1)) / 2 + 1;
                applied(self.operand_elements(row, updates)?)
            }
            Opcode::Scan => applied(self.operand_elements(row, 1)?),
            Opcode::ReduceWindow => {
                let Some(Fact::Window(window)) = fact else { return None };
                applied(self.window_reductions(row, window)?)
            }
            Opcode::SelectAndScatter => {
                let Some(Fact::Window(window)) = fact else { return None };
                let source = self.operand_elements(row, 1)?;
                let size = window_size(window)?;
                let call = |role, count: i128| {
                    let count = count.max(least);
                    self.module.called(row, role).map(|computation| (computation, count))
                };
                [
                    call(CallRole::Select, source.checked_mul(size - 1)?),
                    call(CallRole::Scatter, source),
                ]
            }
            _ => [None, None],
        })
    }

    /// XLA's count: window size - 1 per result element, except that a cumulative sum written as a
    /// window over one whole dimension counts one addition per element.
    fn window_reductions(&self, row: Row, window: &[WindowDimension]) -> Option<i128> {
        let elements = self.first_elements(row)?;
        let plain = elements.checked_mul(window_size(window)? - 1);
        let Some(array) = self.module.shapes().array(self.module.shape(row)) else { return plain };
        let mut wide = window.iter().enumerate().filter(|(_, dimension)| dimension.size != 1);
        let (Some((index, dimension)), None) = (wide.next(), wide.next()) else { return plain };
        let is_padded = |d: &WindowDimension| d.padding_low != 0 || d.padding_high != 0;
        let padded = window.iter().filter(|dimension| is_padded(dimension)).count();
        let length = i128::from(array.dimension(index).and_then(|length| length.bound())?);
        let is_cumulative = padded == 1
            && dimension.padding_low == dimension.padding_high
            && i128::from(dimension.padding_low) == length - 1
            && i128::from(dimension.size) == 2 * length - 1;
        if !is_cumulative || length <= 0 {
            return plain;
        }
        Some(elements / length + length - 1)
    }
}

fn window_size(window: &[WindowDimension]) -> Option<i128> {
    window.iter().try_fold(1i128, |product, d| product.checked_mul(i128::from(d.size)))
}

/// XLA's `Log2Ceiling`; 0 for 0 and 1.
fn log2_ceiling(value: i128) -> i128 {
    if value <= 1 { 0 } else { i128::from(128 - (value - 1).leading_zeros()) }
}

/// XLA's `Log2Floor`; -1 for 0, as in XLA.
fn log2_floor(value: i64) -> i128 {
    match u64::try_from(value) {
        Ok(value) if value > 0 => i128::from(63 - value.leading_zeros()),
        _ => -1,
    }
}
