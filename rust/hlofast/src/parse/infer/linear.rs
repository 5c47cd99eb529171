//! Fourier transforms and linear algebra.

use super::dimension::{agree, raw};
use super::request::{Array, Context};
use crate::error::Result;
use crate::ir::{Dimension, ElementKind, ElementType, ShapeId};

pub(super) fn fft(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let mut operand = context.array(0)?;
    let Some(kind) = context.word("fft_type")? else { return Err(context.missing("fft_type=")) };
    let lengths = context.demanded_integers("fft_length")?;
    if !(1..=3).contains(&lengths.len()) {
        return Err(context.invalid("fft_length", "an FFT must have one to three dimensions"));
    }
    let Some(first) = operand.rank().checked_sub(lengths.len()) else {
        let message = format_args!("{operand} has fewer dimensions than the FFT");
        return Err(context.mismatch(message));
    };
    let element_type = match (kind, operand.element_type) {
        (b"FFT" | b"IFFT", ElementType::C64 | ElementType::C128) => operand.element_type,
        (b"RFFT", ElementType::F32) => ElementType::C64,
        (b"RFFT", ElementType::F64) => ElementType::C128,
        (b"IRFFT", ElementType::C64) => ElementType::F32,
        (b"IRFFT", ElementType::C128) => ElementType::F64,
        (b"FFT" | b"IFFT" | b"RFFT" | b"IRFFT", _) => {
            let message = format_args!("not defined on {operand} with this fft_type");
            return Err(context.mismatch(message));
        }
        _ => return Err(context.invalid("fft_type", "unknown fft_type")),
    };
    operand.element_type = element_type;
    if kind == b"FFT" || kind == b"IFFT" {
        return Ok(context.intern(operand));
    }
    for (index, length) in lengths.iter().enumerate() {
        let dimension = operand.dimensions[first + index];
        let is_last = index + 1 == lengths.len();
        let half = length / 2 + 1;
        // The inverse transform starts from half of the spectrum.
        let is_half = kind == b"IRFFT" && is_last;
        let expected = if is_half { half } else { *length };
        // XLA accepts both an empty array and a single element as the spectrum of an empty signal.
        let fits = agree(dimension, Dimension::Static(expected))
            || (is_half && *length == 0 && dimension.bound() == Some(0));
        if *length < 0 || !fits {
            let message = format_args!("length {length} does not fit {operand}");
            return Err(context.invalid("fft_length", message));
        }
        if is_last && (is_half || *length != 0) {
            let size = if is_half { *length } else { half };
            operand.dimensions[first + index] = match dimension {
                Dimension::Bounded(_) => Dimension::Bounded(size),
                _ => Dimension::Static(size),
            };
        }
    }
    Ok(context.intern(operand))
}

fn is_field(array: &Array) -> bool {
    matches!(array.element_type.kind(), ElementKind::Float | ElementKind::Complex)
}

pub(super) fn cholesky(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let operand = context.array(0)?;
    match operand.dimensions.as_slice() {
        [.., rows, columns] if agree(*rows, *columns) && is_field(&operand) => context.operand(0),
        _ => Err(context.mismatch(format_args!("{operand} must hold square matrices of floats"))),
    }
}

pub(super) fn triangular_solve(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let (a, b) = (context.array(0)?, context.array(1)?);
    if a.element_type != b.element_type || !is_field(&a) {
        return Err(context.mismatch(format_args!("not defined on elements of {a} and {b}")));
    }
    if a.rank() != b.rank() {
        return Err(context.mismatch(format_args!("operands differ in rank: {a} and {b}")));
    }
    let same = |x: &Dimension, y: &Dimension| raw(*x) == raw(*y);
    let ([a_batch @ .., a_rows, a_columns], [b_batch @ .., b_rows, b_columns]) =
        (a.dimensions.as_slice(), b.dimensions.as_slice())
    else {
        return Err(context.mismatch(format_args!("{a} is not a matrix")));
    };
    if !agree(*a_rows, *a_columns) {
        return Err(context.mismatch(format_args!("{a} must hold square matrices")));
    }
    let shared = if context.flag("left_side")? { b_rows } else { b_columns };
    if !agree(*shared, *a_columns) {
        return Err(context.mismatch(format_args!("shared sizes of {a} and {b} differ")));
    }
    if a_batch.iter().zip(b_batch).any(|(x, y)| !same(x, y)) {
        return Err(context.mismatch(format_args!("batch sizes of {a} and {b} differ")));
    }
    match context.word("transpose_a")? {
        Some(b"NO_TRANSPOSE" | b"TRANSPOSE" | b"ADJOINT") => context.operand(1),
        Some(_) => Err(context.invalid("transpose_a", "unknown transpose_a")),
        None => Err(context.missing("transpose_a=")),
    }
}
