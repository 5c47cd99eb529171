//! What takes half its bytes once residuals that are f32 have 16 bits: the arrays of their shapes.

use super::float32_residuals::{added, settle, update};
use super::program::{Program, element_type};
use super::widened_operands::has_statistic;
use crate::flow::walk::Trail;
use crate::ir::{Dimension, ElementKind, ElementType, Opcode, Row, ShapeId};
use crate::memory::Resized;
use crate::remat::{Residual, ResidualKind};

/// The dimensions of an array whose slices shrink with it, though no loop stacks it.
const LEAST_SLICED: usize = 3;

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

/// The f32 arrays that take less once `residual` is 16-bit. None before partitioning. Of a stack, these are the arrays
/// of its shape, those of the sizes of one layer, and those of one layer in a stack; of an array that no loop stacks,
/// those of its sizes, and slices of it if it has three dimensions: one row of a matrix may be anything. Of several
/// stacks of one shape, those of norms stay f32; where `residual` is a converted copy, so do all but such copies. The
/// account knows arrays by shape, so that each shrinks by its part.
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
            let is_slice = (residual.stacked.is_some() || sizes.len() >= LEAST_SLICED)
                && array.dimension(0).and_then(|first| first.bound()) == Some(1)
                && array.dimensions().skip(1).eq(sizes.iter().skip(1).copied());
            // Scores, say, may have the sizes of a stack by chance, but they mostly have another layout.
            let is_whole = match residual.stacked {
                Some(_) => *shape == residual.shape,
                None => of(&sizes),
            };
            array.element_type == ElementType::F32 && (is_whole || of(layer) || is_slice)
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
