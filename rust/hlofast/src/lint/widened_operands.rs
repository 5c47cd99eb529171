//! f32 values that the program makes of 16-bit ones, and that matmuls read.
//!
//! JAX names its conversions (`convert_element_type`). Conversions that compilers add, because a chip has no 16-bit
//! arithmetic or multiplies 16-bit values faster, have no such name. So a value which the program widens, and which the
//! compiler narrows for a matmul, is f32 in the source at this matmul.

use super::float32_residuals::{
    Products, Written, added, is_f32, moves, product_of, reduces, settle, update,
};
use super::program::Program;
use crate::flow::Phase;
use crate::flow::walk::{Trail, converts};
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::{ElementKind, Module, Opcode, Row, ShapeId};
use crate::memory::Resized;
use crate::remat::{Residual, ResidualKind};
use std::collections::{HashMap, HashSet};

/// Limit on the terms of an expression that are looked at.
const MOST_TERMS: u32 = 64;
/// How JAX names conversions.
const CONVERSION: &[u8] = b"convert_element_type";

fn is_16_bit(module: &Module, row: Row) -> bool {
    has_16_bits(module, module.shape(row))
}

fn has_16_bits(module: &Module, shape: ShapeId) -> bool {
    let array = module.shapes().array(shape);
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
pub(super) fn is_of_rows(module: &Module, row: Row) -> bool {
    let array = module.shapes().array(module.shape(row));
    let last = array.and_then(|own| i64::try_from(own.rank()).ok()).map_or(-1, |rank| rank - 1);
    let text = module.attribute_bytes(row, "dimensions");
    let decoded = text.and_then(|text| decode(b"dimensions", Opcode::Broadcast, text).ok());
    let Some(AttributeValue::Integers(kept)) = decoded else { return false };
    !kept.is_empty() && !kept.contains(&last)
}

/// Whether the value at `trail` is a function of each element and of one number for each row of features, as in a norm
/// that is f32 on purpose. What 16-bit values that the program widens are computed from does not count.
///
/// A sum of two arrays is what layers add to, even if one is a norm.
pub(super) fn has_statistic(program: &Program<'_>, trail: Trail) -> bool {
    let module = program.module;
    let is_array = |index: usize| {
        let term = trail.operand(module, index).map(|own| settle(module, own, moves));
        term.is_some_and(|own| module.opcode(own.row) != Opcode::Broadcast)
    };
    let is_sum = module.opcode(trail.row) == Opcode::Add && is_array(0) && is_array(1);
    !is_sum && widening(program, trail, &mut { MOST_TERMS }).is_none()
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
/// layer, where no loop is. A smaller f32 array, such as a gate, may multiply the result.
pub(super) fn is_widened_sum(program: &Program<'_>, products: &Products<'_>, row: Row) -> bool {
    let module = program.module;
    if module.opcode(row) != Opcode::Add || !is_f32(module, row) {
        return false;
    }
    let term = |index| Some(settle(module, Trail::new(row).operand(module, index)?, moves));
    let Some((first, second)) = term(0).zip(term(1)) else { return false };
    let is_made = |made: &Trail| {
        let source = || Some(settle(module, made.operand(module, 0)?, reduces));
        widens(program, made.row)
            && source().is_some_and(|own| products.is_weighted(program, product_of(module, &own)))
    };
    let is_gated = |made: &Trail| {
        let side = |index| Some(settle(module, made.operand(module, index)?, moves));
        module.opcode(made.row) == Opcode::Multiply
            && side(0).zip(side(1)).is_some_and(|(one, other)| {
                let is_spread = |own: &Trail| module.opcode(own.row) == Opcode::Broadcast;
                is_made(&one) && is_spread(&other) || is_made(&other) && is_spread(&one)
            })
    };
    let is_own = |made: &Trail, other: &Trail| {
        (is_made(made) || is_gated(made))
            && !widens(program, other.row)
            && is_f32(module, other.row)
    };
    is_own(&first, &second) || is_own(&second, &first)
}

/// What a loop writes into `residual`, whatever its type.
fn stacked_value(module: &Module, residual: &Residual) -> Option<Trail> {
    let stack = residual.stacked.and_then(|_| update(module, residual))?;
    let is_update = module.opcode(stack.row) == Opcode::DynamicUpdateSlice;
    Some(settle(module, stack.operand(module, 1).filter(|_| is_update)?, spreads))
}

fn spreads(opcode: Opcode) -> bool {
    converts(opcode) || opcode == Opcode::Broadcast
}

/// Where the program writes `row`; None if the text does not tell.
fn known<'a>(program: &'a Program<'_>, row: Row) -> Option<Written<'a>> {
    let own = program.written(row);
    (own.0 >= 0 && !own.2.is_empty()).then_some(own)
}

/// The 16-bit stacks that hold what another one holds, with the matmul whose f32 operand this is in the program: JAX
/// keeps a value and its conversion to f32, and the compiler narrows the conversion, which only matmuls read.
pub(super) fn kept_twice<'r>(
    program: &Program<'_>,
    products: &Products<'_>,
    residuals: &'r [Residual],
) -> Vec<(Row, &'r Residual)> {
    let module = program.module;
    let (wide, columns) = (products.wide(program), module.metadata_columns());
    let Some(varying) = program.varying().filter(|_| !wide.is_empty()) else { return Vec::new() };
    // By the place of a value: a matmul that reads it, on a line with matmuls that return f32.
    let mut readers = HashMap::new();
    for product in products.rows().filter(|row| program.runs(*row).phase == Phase::Forward) {
        if !wide.contains(&program.sources().place(columns, product)) {
            continue;
        }
        let sides = (0..2).filter_map(|index| Trail::new(product).operand(module, index));
        for side in sides.filter(|side| varying.is_from_batch(module, side.row)) {
            if let Some(key) = known(program, settle(module, side, spreads).row) {
                readers.entry(key).or_insert(product);
            }
        }
    }
    let mut seen = HashSet::new();
    let counts =
        |own: &&Residual| own.kind == ResidualKind::Activation && has_16_bits(module, own.shape);
    let mut twice = Vec::new();
    for residual in residuals.iter().filter(counts) {
        let Some(value) = stacked_value(module, residual) else { continue };
        let key = (residual.place.row, value.row, value.path().to_vec());
        let reader = known(program, value.row).and_then(|own| readers.get(&own));
        if let Some(reader) = reader.filter(|_| !seen.insert(key)) {
            twice.push((*reader, residual));
        }
    }
    twice
}

/// The arrays of the shape of the stack `residual` without `twice`: the account knows arrays by shape, so that each
/// shrinks by its part.
pub(super) fn spared(
    module: &Module,
    residual: &Residual,
    (twice, all): (&[(Row, &Residual)], &[Residual]),
) -> Vec<Resized> {
    let is_alike = |own: &Residual| own.shape == residual.shape;
    let count = all.iter().filter(|own| is_alike(own)).count().max(1) as u128;
    let gone = twice.iter().filter(|own| is_alike(own.1)).count() as u128;
    let bytes = module.shapes().logical_bytes(residual.shape).unwrap_or(0);
    let left = u128::from(bytes) * count.saturating_sub(gone) / count;
    vec![Resized { shape: residual.shape, bytes: u64::try_from(left).unwrap_or(bytes) }]
}

/// The matmul that reads what is computed from the same values as what a loop writes into `residual`, in f32.
pub(super) fn made_for(
    program: &Program<'_>,
    operands: &WidenedOperands<'_>,
    residual: &Residual,
) -> Option<Row> {
    let module = program.module;
    let stack = residual.stacked.and_then(|_| update(module, residual))?;
    let is_update = module.opcode(stack.row) == Opcode::DynamicUpdateSlice;
    let value = stack.operand(module, 1).filter(|_| is_update)?;
    operands.product(program, settle(module, value, added))
}
