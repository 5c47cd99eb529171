//! Values that depend on which device runs the program.

use super::GroupContext;
use crate::flow::walk::{Trail, converts};
use crate::ir::decode::{Literal, LiteralData};
use crate::ir::intern::BuildMix;
use crate::ir::{ElementKind, Module, Opcode, Row};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Limit on the depth to which an expression is followed.
const DEEPEST: usize = 32;
const MOST_STEPS: usize = 2048;
/// Limit on the steps for all expressions of a program together.
const MOST_STEPS_OF_ALL: usize = 1 << 24;

/// A device, as the program identifies it.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub partition: u64,
    pub replica: u64,
}

/// The values of an expression on several devices.
enum Values {
    /// The same on all.
    One(i128),
    Each(Vec<i128>),
}

impl Values {
    fn at(&self, index: usize) -> Option<i128> {
        match self {
            Values::One(value) => Some(*value),
            Values::Each(values) => values.get(index).copied(),
        }
    }

    fn map(mut self, of: impl Fn(i128) -> Option<i128>) -> Option<Values> {
        match &mut self {
            Values::One(value) => *value = of(*value)?,
            Values::Each(values) => {
                for value in values {
                    *value = of(*value)?;
                }
            }
        }
        Some(self)
    }

    fn with(self, other: Values, of: impl Fn(i128, i128) -> Option<i128>) -> Option<Values> {
        match (self, other) {
            (Values::One(a), other) => other.map(|b| of(a, b)),
            (own, Values::One(b)) => own.map(|a| of(a, b)),
            (Values::Each(mut all), Values::Each(others)) => {
                for (own, other) in all.iter_mut().zip(others) {
                    *own = of(*own, other)?;
                }
                Some(Values::Each(all))
            }
        }
    }
}

/// Evaluates integer expressions for given devices.
pub(crate) struct Offsets<'a> {
    module: &'a Module,
    /// By constant: its elements.
    tables: RefCell<HashMap<Row, Option<Vec<i128>>, BuildMix>>,
    /// Remaining steps.
    left: Cell<usize>,
}

/// Whether `row` reads the number of the slice.
pub(crate) fn is_slice_id(module: &Module, row: Row) -> bool {
    module.opcode(row) == Opcode::CustomCall
        && module.attribute_bytes(row, "custom_call_target") == Some(b"\"SliceId\"")
}

impl<'a> Offsets<'a> {
    pub fn new(module: &'a Module) -> Self {
        Self { module, tables: RefCell::default(), left: Cell::new(MOST_STEPS_OF_ALL) }
    }

    /// The value of the scalar at `trail` on each of `devices`; None if one of the values depends on
    /// anything but the device.
    pub fn values(&self, trail: Trail, devices: &[Device]) -> Option<Vec<i128>> {
        let mut steps = 0;
        let values = self.evaluate(trail, devices, 0, &mut steps);
        self.left.set(self.left.get().saturating_sub(steps.saturating_mul(devices.len())));
        Some(match values? {
            Values::One(value) => vec![value; devices.len()],
            Values::Each(values) => values,
        })
    }

    /// Follows the expression once for all devices.
    fn evaluate(
        &self,
        trail: Trail,
        devices: &[Device],
        depth: usize,
        steps: &mut usize,
    ) -> Option<Values> {
        use Opcode::*;
        *steps += 1;
        let left = self.left.get() / devices.len().max(1);
        if depth > DEEPEST || *steps > MOST_STEPS.min(left) {
            return None;
        }
        let module = self.module;
        let trail = trail.follow(module, converts);
        let row = trail.row;
        let mut operand =
            |index: usize| self.evaluate(trail.operand(module, index)?, devices, depth + 1, steps);
        let is_scalar = module.elements_column()[row.0 as usize] == 1;
        let each = |of: fn(&Device) -> u64| {
            Some(Values::Each(devices.iter().map(|device| i128::from(of(device))).collect()))
        };
        match module.opcode(row) {
            PartitionId => each(|device| device.partition),
            ReplicaId => each(|device| device.replica),
            // A program for several slices is the program of each; the first stands for all.
            CustomCall if is_slice_id(module, row) => Some(Values::One(0)),
            Constant if is_scalar => self.elements(row, Values::One(0)),
            DynamicSlice if is_scalar => {
                let at = operand(1)?;
                let table = trail.operand(module, 0)?.follow(module, converts).row;
                let rank = module.shapes().array(module.shape(table))?.rank();
                if module.opcode(table) != Constant || rank != 1 {
                    return None;
                }
                let last = i128::from(module.elements_column()[table.0 as usize]) - 1;
                self.elements(table, at.map(|at| Some(at.clamp(0, last.max(0))))?)
            }
            Broadcast if is_scalar => operand(0),
            Add => operand(0)?.with(operand(1)?, i128::checked_add),
            Subtract => operand(0)?.with(operand(1)?, i128::checked_sub),
            Multiply => operand(0)?.with(operand(1)?, i128::checked_mul),
            // Operands are computed from device numbers, which are not negative.
            Divide => operand(0)?.with(operand(1)?, i128::checked_div),
            Remainder => operand(0)?.with(operand(1)?, i128::checked_rem),
            And => operand(0)?.with(operand(1)?, |a, b| Some(a & b)),
            Maximum => operand(0)?.with(operand(1)?, |a, b| Some(a.max(b))),
            Minimum => operand(0)?.with(operand(1)?, |a, b| Some(a.min(b))),
            Clamp => {
                let least = operand(1)?.with(operand(0)?, |a, b| Some(a.max(b)))?;
                least.with(operand(2)?, |a, b| Some(a.min(b)))
            }
            ShiftRightLogical => operand(0)?.with(operand(1)?, |value, by| {
                let by = u32::try_from(by).ok().filter(|_| value >= 0)?;
                value.checked_shr(by)
            }),
            Select => match operand(0)? {
                Values::One(chosen) => operand(if chosen != 0 { 1 } else { 2 }),
                Values::Each(chosen) => {
                    // Each device evaluates the operand that it takes, and no other.
                    let mut values = vec![0; devices.len()];
                    for (index, is_taken) in [(1, true), (2, false)] {
                        let at = |at: &usize| (chosen.get(*at) != Some(&0)) == is_taken;
                        let places: Vec<usize> = (0..devices.len()).filter(at).collect();
                        let own: Vec<Device> = places.iter().map(|at| devices[*at]).collect();
                        if own.is_empty() {
                            continue;
                        }
                        let taken = trail.operand(module, index)?;
                        let taken = self.evaluate(taken, &own, depth + 1, steps)?;
                        for (nth, at) in places.into_iter().enumerate() {
                            values[at] = taken.at(nth)?;
                        }
                    }
                    Some(Values::Each(values))
                }
            },
            Compare => {
                let is: fn(&i128, &i128) -> bool = match module.attribute_bytes(row, "direction")? {
                    b"EQ" => i128::eq,
                    b"NE" => i128::ne,
                    b"LT" => i128::lt,
                    b"LE" => i128::le,
                    b"GT" => i128::gt,
                    b"GE" => i128::ge,
                    _ => return None,
                };
                operand(0)?.with(operand(1)?, |a, b| Some(i128::from(is(&a, &b))))
            }
            _ => None,
        }
    }

    /// Elements of an integer constant.
    fn elements(&self, row: Row, at: Values) -> Option<Values> {
        let mut tables = self.tables.borrow_mut();
        let table = tables.entry(row).or_insert_with(|| integers(self.module, row));
        let table = table.as_ref()?;
        at.map(|at| table.get(usize::try_from(at).ok()?).copied())
    }

    /// The dimension along which dynamic-slice `slice` takes a different part on each of `devices`,
    /// and where each part starts; None if the parts do not differ along one dimension or are
    /// unknown.
    pub fn parts(&self, slice: &Trail, devices: &[Device]) -> Option<(usize, Vec<i128>)> {
        let count = self.module.operands(slice.row).len();
        let mut cut = None;
        for index in 1..count {
            let start = slice.operand(self.module, index)?;
            let starts = self.values(start, devices)?;
            if starts.iter().all(|other| Some(other) == starts.first()) {
                continue;
            }
            if cut.is_some() {
                return None;
            }
            cut = Some((index - 1, starts));
        }
        cut
    }
}

/// The elements of an integer constant that the text gives.
fn integers(module: &Module, row: Row) -> Option<Vec<i128>> {
    let (_, payload) = module.opcode_and_payload(row);
    let literal = Literal::split(module.bytes(payload), module.shapes(), module.shape(row)).ok()?;
    let LiteralData { element_type, count, bytes, .. } = literal.decode(0, module.shapes()).ok()?;
    let is_signed = match element_type.kind() {
        ElementKind::Signed => true,
        ElementKind::Unsigned | ElementKind::Predicate => false,
        _ => return None,
    };
    let width = bytes.len().checked_div(count).filter(|width| (1..=8).contains(width))?;
    let number = |element: &[u8]| {
        let is_negative = is_signed && element.last().is_some_and(|byte| *byte >= 0x80);
        let mut wide = [if is_negative { 0xff } else { 0 }; 16];
        for (to, from) in wide.iter_mut().zip(element) {
            *to = *from;
        }
        i128::from_le_bytes(wide)
    };
    Some(bytes.chunks_exact(width).map(number).collect())
}

/// How many devices of a group are evaluated.
const MOST_DEVICES: usize = 64;

/// The first few of `devices`, as the program identifies them.
pub(crate) fn devices(context: &GroupContext, devices: impl Iterator<Item = u64>) -> Vec<Device> {
    let few = devices.take(MOST_DEVICES);
    few.map(|device| context.place_of(device))
        .map(|(partition, replica)| Device { partition, replica })
        .collect()
}
