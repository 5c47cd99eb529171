//! Elementwise opcodes of one to three operands.

use super::dimension::{agree, all_agree, component, is_dynamic, most_specific, same_type};
use super::request::{Array, Context};
use crate::error::Result;
use crate::ir::{Dimension, ElementKind, ElementType, Opcode, ShapeId};

/// Whether `opcode` is defined on elements of `kind`.
fn accepts(opcode: Opcode, kind: ElementKind) -> bool {
    use ElementKind as Kind;
    use Opcode::*;
    match opcode {
        Add | Multiply | Maximum | Minimum | Mulhi | Compare => true,
        Negate | Subtract | Divide | Remainder | Power | ShiftLeft | ShiftRightArithmetic
        | ShiftRightLogical => kind != Kind::Predicate,
        Not | And | Or | Xor => {
            matches!(kind, Kind::Predicate | Kind::Signed | Kind::Unsigned)
        }
        CountLeadingZeros | Popcnt => matches!(kind, Kind::Signed | Kind::Unsigned),
        Abs | Sign => matches!(kind, Kind::Signed | Kind::Float | Kind::Complex),
        Ceil | Floor | RoundNearestAfz | RoundNearestEven | Cbrt | Erf | IsFinite | Complex => {
            kind == Kind::Float
        }
        _ => matches!(kind, Kind::Float | Kind::Complex),
    }
}

fn check_type(context: &Context<'_, '_>, array: &Array) -> Result<()> {
    if accepts(context.opcode(), array.element_type.kind()) {
        return Ok(());
    }
    let word = array.element_type.as_str();
    Err(context.mismatch(format_args!("not defined on elements of type {word}")))
}

pub(super) fn unary(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let mut array = context.array(0)?;
    check_type(context, &array)?;
    match context.opcode() {
        Opcode::IsFinite => array.set_element_type(ElementType::Pred),
        Opcode::Abs | Opcode::Real | Opcode::Imag => {
            array.set_element_type(component(array.element_type));
        }
        _ => {}
    }
    Ok(context.intern(array))
}

pub(super) fn binary(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let (left, right) = (context.array(0)?, context.array(1)?);
    if !same_type(left.element_type, right.element_type) {
        return Err(context.different_types(&left, &right));
    }
    check_type(context, &left)?;
    let element_type = context.wider(left.element_type, right.element_type)?;
    let mut result = broadcast_both(context, &left, &right)?;
    result.set_element_type(match (context.opcode(), left.element_type, right.element_type) {
        (Opcode::Compare, ..) => ElementType::Pred,
        (Opcode::Complex, ElementType::F32, ElementType::F32) => ElementType::C64,
        (Opcode::Complex, ElementType::F64, ElementType::F64) => ElementType::C128,
        (Opcode::Complex, ..) => return Err(context.different_types(&left, &right)),
        _ => element_type,
    });
    Ok(context.intern(result))
}

/// The dimensions of a binary operation: equal sizes, sizes of 1, or a scalar.
fn broadcast_both(context: &Context<'_, '_>, left: &Array, right: &Array) -> Result<Array> {
    if left.is_scalar() && !right.is_scalar() {
        return Ok(Array::new(right.element_type, right.dimensions.clone()));
    }
    if right.is_scalar() && !left.is_scalar() {
        return Ok(Array::new(left.element_type, left.dimensions.clone()));
    }
    let both = || left.dimensions.iter().copied().zip(right.dimensions.iter().copied());
    let merged: Option<Vec<Dimension>> = both().map(|(a, b)| broadcast_size(a, b)).collect();
    let Some(dimensions) = merged.filter(|_| left.rank() == right.rank()) else {
        return Err(context.mismatch(format_args!("incompatible operands: {left} and {right}")));
    };
    let keeps_layout = both().all(|(a, b)| a.bound().is_some() && a.bound() == b.bound());
    let layout = left.layout.clone().filter(|_| keeps_layout);
    Ok(Array { element_type: left.element_type, dimensions, layout })
}

fn broadcast_size(a: Dimension, b: Dimension) -> Option<Dimension> {
    match (a.bound(), b.bound()) {
        (a_bound, b_bound) if a_bound == b_bound => most_specific(a, b),
        (Some(1), _) => Some(b),
        (_, Some(1)) => Some(a),
        _ => most_specific(a, b),
    }
}

pub(super) fn clamp(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let (low, value, high) = (context.array(0)?, context.array(1)?, context.array(2)?);
    for bound in [&low, &high] {
        if !same_type(bound.element_type, value.element_type) {
            return Err(context.different_types(bound, &value));
        }
        if !bound.is_scalar() && !all_agree(&bound.dimensions, &value.dimensions) {
            return Err(context.mismatch(format_args!("incompatible bound: {bound} and {value}")));
        }
    }
    Ok(context.intern(value))
}

pub(super) fn select(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let (chooser, yes, no) = (context.array(0)?, context.array(1)?, context.array(2)?);
    if !same_type(yes.element_type, no.element_type) {
        return Err(context.different_types(&yes, &no));
    }
    if !all_agree(&yes.dimensions, &no.dimensions) {
        return Err(context.mismatch(format_args!("values differ in shape: {yes} and {no}")));
    }
    if chooser.element_type != ElementType::Pred {
        return Err(context.mismatch(format_args!("the predicate is {chooser}")));
    }
    let fits = |values: &Array| all_agree(&chooser.dimensions, &values.dimensions);
    if !(chooser.is_scalar() || fits(&yes) && fits(&no)) {
        let message = format_args!("predicate and values differ in shape: {chooser} and {yes}");
        return Err(context.mismatch(message));
    }
    let element_type = context.wider(yes.element_type, no.element_type)?;
    let base = if chooser.is_scalar() { &yes } else { &chooser };
    let merged = base.dimensions.iter().zip(yes.dimensions.iter().zip(&no.dimensions));
    let dimensions: Vec<Dimension> =
        merged.map(|(base, (yes, no))| selected_size(*base, *yes, *no)).collect();
    let is_static = !dimensions.iter().any(|dimension| is_dynamic(*dimension));
    let layout = base.layout.clone().filter(|_| is_static);
    let mut result = Array { element_type, dimensions, layout };
    // The dimensions come from the predicate, the element size from the first value.
    result.set_element_bits(yes.element_bits());
    Ok(context.intern(result))
}

fn selected_size(base: Dimension, yes: Dimension, no: Dimension) -> Dimension {
    use Dimension::Unbounded;
    match (yes, no) {
        (Unbounded, other) | (other, Unbounded) => other,
        _ if base == Unbounded => Unbounded,
        _ if is_dynamic(base) => base,
        _ if agree(yes, no) && is_dynamic(no) => no,
        _ => yes,
    }
}
