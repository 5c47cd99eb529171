//! Values that depend on which device runs the program.

use super::program::Program;
use super::walk::{Trail, converts};
use crate::ir::decode::{Literal, LiteralData};
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
pub(super) struct Device {
    pub partition: u64,
    pub replica: u64,
}

/// Evaluates integer expressions for given devices.
pub(super) struct Offsets<'a> {
    module: &'a Module,
    /// By constant: its elements.
    tables: RefCell<HashMap<Row, Option<Vec<i128>>>>,
    /// Remaining steps.
    left: Cell<usize>,
}

/// Whether `row` reads the number of the slice.
pub(super) fn is_slice_id(module: &Module, row: Row) -> bool {
    module.opcode(row) == Opcode::CustomCall
        && module.attribute_bytes(row, "custom_call_target") == Some(b"\"SliceId\"")
}

impl<'a> Offsets<'a> {
    pub fn new(module: &'a Module) -> Self {
        Self { module, tables: RefCell::default(), left: Cell::new(MOST_STEPS_OF_ALL) }
    }

    /// The value of the scalar at `trail` on `device`; None if the value depends on anything but
    /// the device.
    pub fn value(&self, trail: Trail, device: Device) -> Option<i128> {
        let mut steps = 0;
        let value = self.evaluate(trail, device, 0, &mut steps);
        self.left.set(self.left.get().saturating_sub(steps));
        value
    }

    fn evaluate(
        &self,
        trail: Trail,
        device: Device,
        depth: usize,
        steps: &mut usize,
    ) -> Option<i128> {
        use Opcode::*;
        *steps += 1;
        if depth > DEEPEST || *steps > MOST_STEPS.min(self.left.get()) {
            return None;
        }
        let module = self.module;
        let trail = trail.follow(module, converts);
        let row = trail.row;
        let mut operand =
            |index: usize| self.evaluate(trail.operand(module, index)?, device, depth + 1, steps);
        let is_scalar = module.elements_column()[row.0 as usize] == 1;
        Some(match module.opcode(row) {
            PartitionId => i128::from(device.partition),
            ReplicaId => i128::from(device.replica),
            // A program for several slices is the program of each; the first stands for all.
            CustomCall if is_slice_id(module, row) => 0,
            Constant if is_scalar => self.element(row, 0)?,
            DynamicSlice if is_scalar => {
                let at = operand(1)?;
                let table = trail.operand(module, 0)?.follow(module, converts).row;
                let rank = module.shapes().array(module.shape(table))?.rank();
                if module.opcode(table) != Constant || rank != 1 {
                    return None;
                }
                let last = i128::from(module.elements_column()[table.0 as usize]) - 1;
                self.element(table, usize::try_from(at.clamp(0, last.max(0))).ok()?)?
            }
            Broadcast if is_scalar => operand(0)?,
            Add => operand(0)?.checked_add(operand(1)?)?,
            Subtract => operand(0)?.checked_sub(operand(1)?)?,
            Multiply => operand(0)?.checked_mul(operand(1)?)?,
            // Operands are computed from device numbers, which are not negative.
            Divide => operand(0)?.checked_div(operand(1)?)?,
            Remainder => operand(0)?.checked_rem(operand(1)?)?,
            And => operand(0)? & operand(1)?,
            Maximum => operand(0)?.max(operand(1)?),
            Minimum => operand(0)?.min(operand(1)?),
            Clamp => operand(1)?.max(operand(0)?).min(operand(2)?),
            ShiftRightLogical => {
                let (value, by) = (operand(0)?, operand(1)?);
                if value < 0 {
                    return None;
                }
                value.checked_shr(u32::try_from(by).ok()?)?
            }
            Select => {
                let chosen = if operand(0)? != 0 { 1 } else { 2 };
                operand(chosen)?
            }
            Compare => {
                let (a, b) = (operand(0)?, operand(1)?);
                i128::from(match module.attribute_bytes(row, "direction")? {
                    b"EQ" => a == b,
                    b"NE" => a != b,
                    b"LT" => a < b,
                    b"LE" => a <= b,
                    b"GT" => a > b,
                    b"GE" => a >= b,
                    _ => return None,
                })
            }
            _ => return None,
        })
    }

    /// Element `index` of an integer constant.
    fn element(&self, row: Row, index: usize) -> Option<i128> {
        let mut tables = self.tables.borrow_mut();
        let table = tables.entry(row).or_insert_with(|| integers(self.module, row));
        table.as_ref()?.get(index).copied()
    }

    /// The dimension along which dynamic-slice `slice` takes a different part on each of `devices`,
    /// and where each part starts; None if the parts do not differ along one dimension or are
    /// unknown.
    pub fn parts(&self, slice: &Trail, devices: &[Device]) -> Option<(usize, Vec<i128>)> {
        let count = self.module.operands(slice.row).len();
        let mut cut = None;
        for index in 1..count {
            let start = slice.operand(self.module, index)?;
            let starts: Vec<i128> = devices
                .iter()
                .map(|device| self.value(start.clone(), *device))
                .collect::<Option<_>>()?;
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
pub(super) fn devices(program: &Program<'_>, devices: impl Iterator<Item = u64>) -> Vec<Device> {
    let few = devices.take(MOST_DEVICES);
    few.map(|device| program.place_of(device))
        .map(|(partition, replica)| Device { partition, replica })
        .collect()
}
