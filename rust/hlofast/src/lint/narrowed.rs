//! What takes half its bytes once residuals that are f32 have 16 bits: arrays of their shapes, and gradients.
//!
//! The gradient of a conversion to 16 bits converts the gradient back. The compiler leaves this to what reads the
//! gradient last, the optimizer, so the gradient of a weight that is converted for its matmul waits in 16 bits, and is
//! summed over devices in 16 bits. The gradient of a weight that is multiplied in f32 waits in f32.

use super::float32_residuals::{Products, added, element_type, is_f32, settle, update};
use super::program::Program;
use super::widened_operands::has_statistic;
use crate::flow::walk::Trail;
use crate::flow::{Phase, Place};
use crate::ir::{Dimension, ElementKind, ElementType, Module, Opcode, Row, ShapeId};
use crate::memory::Resized;
use crate::remat::{Residual, ResidualKind};
use std::collections::HashSet;

/// What a loop writes into a stack of f32 values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// A 16-bit value, converted because it meets an f32 value later.
    Widened,
    /// An f32 value computed with one number for each row of features, as in a norm that is f32 on purpose.
    Norm,
    /// Another f32 value.
    Wide,
}

/// What the loop writes into the stack that `residual` is.
pub(super) fn written(program: &Program<'_>, residual: &Residual) -> Stored {
    let module = program.module;
    let stack = update(module, residual);
    let is_update = |own: &Trail| module.opcode(own.row) == Opcode::DynamicUpdateSlice;
    let value = stack.filter(is_update).and_then(|stack| stack.operand(module, 1));
    let Some(value) = value.map(|value| settle(module, value, added)) else { return Stored::Wide };
    let before = module.operands(value.row).first();
    let is_16_bit = |row: &u32| {
        let own = element_type(module, Row(*row));
        own.is_some_and(|own| own.kind() == ElementKind::Float && own.bits() == 16)
    };
    if module.opcode(value.row) == Opcode::Convert && before.is_some_and(is_16_bit) {
        return Stored::Widened;
    }
    match has_statistic(program, value) {
        true => Stored::Norm,
        false => Stored::Wide,
    }
}

/// What loops write into stacks of the shape of `residual`, itself among them.
pub(super) fn alike(program: &Program<'_>, residual: &Residual, all: &[Residual]) -> Vec<Stored> {
    let alike = all.iter().filter(|other| {
        let is_stack = other.stacked.is_some() && other.kind == ResidualKind::Activation;
        is_stack && residual.stacked.is_some() && other.shape == residual.shape
    });
    alike.map(|other| written(program, other)).collect()
}

/// The f32 arrays that take less once `residual` is 16-bit: those of its sizes, and of one layer of it. None
/// before partitioning. Of several stacks of one shape, those of norms stay f32; where `residual` is a converted
/// copy, so do all but such copies. The account knows arrays by shape, so that each shrinks by its part.
pub(super) fn halved(program: &Program<'_>, residual: &Residual, all: &[Residual]) -> Vec<Resized> {
    let shapes = program.module.shapes();
    let Some(own) = shapes.array(residual.shape).filter(|_| program.is_partitioned()) else {
        return Vec::new();
    };
    let sizes: Vec<_> = own.dimensions().collect();
    let layer = residual.stacked.and(sizes.get(1..)).unwrap_or(&sizes);
    let is_its = |shape: &ShapeId| {
        shapes.array(*shape).is_some_and(|array| {
            let of = |wanted: &[Dimension]| array.dimensions().eq(wanted.iter().copied());
            let is_slice = array.dimension(0).and_then(|first| first.bound()) == Some(1)
                && residual.stacked.is_some()
                && array.dimensions().skip(1).eq(layer.iter().copied());
            array.element_type == ElementType::F32 && (of(&sizes) || of(layer) || is_slice)
        })
    };
    let alike = alike(program, residual, all);
    let is_copy = residual.stacked.is_some() && written(program, residual) == Stored::Widened;
    let shrinks = alike.iter().filter(|own| match own {
        Stored::Widened => true,
        Stored::Norm => false,
        Stored::Wide => !is_copy,
    });
    let (part, whole) = match alike.len() as u64 {
        0 => (1, 1),
        whole => (shrinks.count().max(1) as u64, whole),
    };
    // What layers hand on, and its gradient, lie outside stacks.
    let is_one = |shape| {
        let array = shapes.array(shape);
        residual.stacked.is_some()
            && array.is_some_and(|own| own.dimensions().eq(layer.iter().copied()))
    };
    let half = |shape: ShapeId| {
        let bytes = shapes.logical_bytes(shape).unwrap_or(0);
        let (part, whole) = if is_one(shape) { (1, 1) } else { (part, whole) };
        Resized { shape, bytes: bytes - (bytes / 2).saturating_mul(part) / whole }
    };
    shapes.ids().filter(is_its).map(half).collect()
}

/// Limit on the arrays that one gradient is followed through.
const MOST_ARRAYS: usize = 64;

/// The f32 arrays that hold gradients of weights of the forward matmuls whose results are f32, and what they become
/// on the way to the optimizer: sums over devices, and copies.
pub(super) fn wide_gradients(program: &Program<'_>, products: &Products<'_>) -> Vec<Place> {
    let (module, Some(varying)) = (program.module, program.varying()) else { return Vec::new() };
    let wide = products.wide(program);
    let columns = module.metadata_columns();
    let is_gradient = |row: &Row| {
        let sides = module.operands(*row).iter().take(2);
        is_f32(module, *row)
            && program.runs(*row).phase == Phase::Backward
            && wide.contains(&program.sources().place(columns, *row))
            && sides.filter(|side| varying.is_from_batch(module, Row(**side))).count() == 2
    };
    let mut found = HashSet::new();
    for product in program.products().filter(is_gradient) {
        let row = program.scheduled(product);
        let own = wide_elements(module, module.shape(product));
        let is_own = |shape: &ShapeId| wide_elements(module, *shape) == own;
        // A fusion around the matmul may return other arrays too.
        let mut open: Vec<(Row, Option<u32>)> = match module.shapes().tuple(module.shape(row)) {
            None => is_own(&module.shape(row)).then_some((row, None)).into_iter().collect(),
            Some(parts) => {
                let parts = (0..).zip(parts).filter(|(_, shape)| is_own(shape));
                parts.map(|(index, _)| (row, Some(index))).collect()
            }
        };
        for _ in 0..MOST_ARRAYS {
            let Some(array) = open.pop() else { break };
            if found.insert(array) {
                next(module, array, &mut open);
            }
        }
    }
    let place = |(row, index): (Row, Option<u32>)| Place { row, path: Vec::from_iter(index) };
    found.into_iter().map(place).collect()
}

/// The elements of an f32 array.
fn wide_elements(module: &Module, shape: ShapeId) -> Option<u64> {
    let array = module.shapes().array(shape)?;
    (array.element_type == ElementType::F32).then(|| array.elements())?
}

/// Appends the f32 arrays that sums over devices and copies make of an array: the result of a row, or an element of it.
fn next(module: &Module, (row, index): (Row, Option<u32>), open: &mut Vec<(Row, Option<u32>)>) {
    use Opcode::*;
    for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
        let position = || module.operands(user).iter().position(|own| Row(*own) == row);
        let after = match (module.opcode(user), index) {
            (GetTupleElement, Some(index)) => {
                (module.tuple_index(user) == Some(index as usize)).then_some(None)
            }
            (CopyDone, Some(_)) => Some(None),
            (AllReduceDone, _) => Some(index),
            (CopyStart, None) => Some(Some(0)),
            (AllReduce | AllReduceStart | ReduceScatter, None) => {
                let is_tuple = module.shapes().tuple(module.shape(user)).is_some();
                position().and_then(|at| u32::try_from(at).ok()).map(|at| is_tuple.then_some(at))
            }
            (Copy | Bitcast | Reshape | Transpose, None) => Some(None),
            _ => None,
        };
        open.extend(after.map(|index| (user, index)));
    }
}
