//! f32 values that the program makes of 16-bit ones, and that matmuls read.
//!
//! JAX names its conversions (`convert_element_type`). Conversions that compilers add, because a chip has no 16-bit
//! arithmetic or multiplies 16-bit values faster, have no such name. So a value which the program widens, and which the
//! compiler narrows for a matmul, is f32 in the source at this matmul.

use super::float32_residuals::{Products, Written, is_f32, moves, product_of, reduces, settle};
use super::program::Program;
use crate::flow::Phase;
use crate::flow::walk::Trail;
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::{ElementKind, Module, Opcode, Row};
use std::collections::HashMap;

/// Limit on the terms of an expression that are looked at.
const MOST_TERMS: u32 = 64;
/// How JAX names conversions.
const CONVERSION: &[u8] = b"convert_element_type";

fn is_16_bit(module: &Module, row: Row) -> bool {
    let array = module.shapes().array(module.shape(row));
    array.is_some_and(|own| {
        own.element_type.kind() == ElementKind::Float && own.element_type.bits() == 16
    })
}

/// Whether `row` converts a 16-bit value to f32, or back, as the program says.
fn is_programs(program: &Program<'_>, row: Row) -> bool {
    program.op_name(row).is_some_and(|name| name.ends_with(CONVERSION))
}

/// Whether `row` converts a 16-bit value to f32 because the program says so.
///
/// Where the compiler computes the 16-bit value in f32, it converts f32 to f32.
fn widens(program: &Program<'_>, row: Row) -> bool {
    let module = program.module;
    let is_float = |before: &u32| is_16_bit(module, Row(*before)) || is_f32(module, Row(*before));
    module.opcode(row) == Opcode::Convert
        && is_f32(module, row)
        && module.operands(row).first().is_some_and(is_float)
        && is_programs(program, row)
}

/// The rows in the f32 expression at `trail` that widen 16-bit values, as the program says; None if the expression has
/// one number for each row of features, as norms, which are f32 on purpose, have.
fn widening(program: &Program<'_>, trail: Trail, left: &mut u32) -> Option<Vec<Row>> {
    let mut found = Vec::new();
    let Some(next) = left.checked_sub(1) else { return Some(found) };
    *left = next;
    let module = program.module;
    let trail = settle(module, trail, moves);
    let opcode = module.opcode(trail.row);
    if widens(program, trail.row) {
        found.push(trail.row);
    } else if opcode == Opcode::Broadcast && is_of_rows(module, trail.row) {
        return None;
    } else if is_f32(module, trail.row) && opcode.is_elementwise() {
        for index in 0..module.operands(trail.row).len() {
            if let Some(term) = trail.operand(module, index) {
                found.extend(widening(program, term, left)?);
            }
        }
    }
    Some(found)
}

/// Whether the broadcast `row` gives all features of a row one number.
fn is_of_rows(module: &Module, row: Row) -> bool {
    let array = module.shapes().array(module.shape(row));
    let last = array.and_then(|own| i64::try_from(own.rank()).ok()).map_or(-1, |rank| rank - 1);
    let text = module.attribute_bytes(row, "dimensions");
    let decoded = text.and_then(|text| decode(b"dimensions", Opcode::Broadcast, text).ok());
    let Some(AttributeValue::Integers(kept)) = decoded else { return false };
    !kept.is_empty() && !kept.contains(&last)
}

/// Whether the value at `trail` is a function of each element and of one number for each row of features, as in a norm
/// that is f32 on purpose. What 16-bit values that the program widens are computed from does not count.
pub(super) fn has_statistic(program: &Program<'_>, trail: Trail) -> bool {
    widening(program, trail, &mut { MOST_TERMS }).is_none()
}

/// What matmuls with weights read, if the program widens it.
pub(super) struct WidenedOperands<'a> {
    /// By the place of a conversion to f32: a matmul that reads what is computed from it.
    products: HashMap<Written<'a>, Row>,
}

impl<'a> WidenedOperands<'a> {
    pub fn new(program: &'a Program<'_>, products: &Products<'_>) -> Self {
        let (module, mut own) = (program.module, HashMap::new());
        let Some(varying) = program.varying() else { return Self { products: own } };
        for product in products.rows().filter(|row| program.runs(*row).phase == Phase::Forward) {
            for index in 0..module.operands(product).len().min(2) {
                let Some(side) = Trail::new(product).operand(module, index) else { continue };
                if !varying.is_from_batch(module, side.row) {
                    continue;
                }
                let terms = wide_terms(program, side).into_iter();
                let found: Option<Vec<_>> =
                    terms.map(|value| widening(program, value, &mut { MOST_TERMS })).collect();
                for row in found.into_iter().flatten().flatten() {
                    own.entry(program.written(row)).or_insert(product);
                }
            }
        }
        Self { products: own }
    }

    /// A matmul that reads what is computed from the same widened values as `value`, which a loop stacks.
    pub fn product(&self, program: &Program<'_>, value: Trail) -> Option<Row> {
        if self.products.is_empty() {
            return None;
        }
        let found = widening(program, value, &mut { MOST_TERMS })?;
        found.iter().find_map(|row| self.products.get(&program.written(*row)).copied())
    }
}

/// The f32 values from which the value at `side` of a matmul is computed; the compiler may have narrowed the last one,
/// by a conversion or by what computes it.
fn wide_terms(program: &Program<'_>, side: Trail) -> Vec<Trail> {
    let module = program.module;
    let side = settle(module, side, moves);
    if is_f32(module, side.row) {
        return vec![side];
    }
    let is_narrowed = module.opcode(side.row).is_elementwise()
        && is_16_bit(module, side.row)
        && !is_programs(program, side.row);
    let count = if is_narrowed { module.operands(side.row).len() } else { 0 };
    let terms = (0..count).filter_map(|index| side.operand(module, index));
    terms.filter(|term| is_f32(module, term.row)).collect()
}

/// Whether `row` adds the result of a matmul with a weight, which the program widens, to an f32 value: the sum of a
/// layer, where no loop is.
pub(super) fn is_widened_sum(program: &Program<'_>, products: &Products<'_>, row: Row) -> bool {
    let module = program.module;
    if module.opcode(row) != Opcode::Add || !is_f32(module, row) {
        return false;
    }
    let term = |index| Some(settle(module, Trail::new(row).operand(module, index)?, moves));
    let Some((first, second)) = term(0).zip(term(1)) else { return false };
    let is_own = |made: &Trail, other: &Trail| {
        let source = || Some(settle(module, made.operand(module, 0)?, reduces));
        widens(program, made.row)
            && !widens(program, other.row)
            && is_f32(module, other.row)
            && source().is_some_and(|own| products.is_weighted(program, product_of(module, &own)))
    };
    is_own(&first, &second) || is_own(&second, &first)
}
