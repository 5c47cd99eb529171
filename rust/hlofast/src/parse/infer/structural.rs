//! Tuples, tokens, and opcodes that only move data.

use super::dimension::{all_agree, most_specific, same_type};
use super::request::{Array, Context};
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::decode::AttributeValue;
use crate::ir::{Dimension, ElementType, Layout, ShapeId};
use crate::text::Span;

pub(super) fn first_operand(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    context.operand(0)
}

pub(super) fn tuple(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let operands = context.request.operands;
    let most = context.request.most_nodes;
    let table = context.table();
    let nodes = operands.iter().fold(1u32, |sum, id| sum.saturating_add(table.node_count(*id)));
    // Without the limit, a few lines of `tuple(t, t)` would double a shape to any size.
    if nodes > most {
        return Err(ParseError::new(
            ErrorKind::TooLarge,
            Span::EMPTY,
            format!("an inferred tuple in this text may have at most {most} elements in total"),
        ));
    }
    Ok(context.interner.tuple(operands, Span::EMPTY))
}

pub(super) fn get_tuple_element(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let index = context.demanded_integer("index")?;
    let Some(elements) = context.table().tuple(context.operand(0)?) else {
        return Err(context.mismatch("the operand is not a tuple"));
    };
    let element = usize::try_from(index).ok().and_then(|index| elements.get(index)).copied();
    element.ok_or_else(|| {
        let count = elements.len();
        context.invalid("index", format_args!("the tuple has no element {index} of {count}"))
    })
}

pub(super) fn after_all(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    Ok(context.intern(Array::new(ElementType::Token, Vec::new())))
}

pub(super) fn device_number(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    Ok(context.intern(Array::new(ElementType::U32, Vec::new())))
}

/// If the result shape is omitted, `dimensions` lists sizes to prepend and not the operand's
/// dimensions in the result, because XLA's parser shares this rule with its client interface.
pub(super) fn broadcast(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let operand = context.array(0)?;
    let sizes = match context.integers("dimensions")? {
        Some(sizes) => sizes,
        None if operand.is_scalar() => Vec::new(),
        None => return Err(context.missing("dimensions=")),
    };
    if operand.dimensions.contains(&Dimension::Unbounded) {
        return Err(context.mismatch(format_args!("the operand {operand} has no bound")));
    }
    let mut dimensions = Vec::with_capacity(sizes.len() + operand.rank());
    for size in sizes {
        dimensions.push(context.sized(Some(size))?);
    }
    dimensions.extend(operand.dimensions);
    let result = Array::new(operand.element_type, dimensions);
    let bounds = result.dimensions.iter().filter_map(|dimension| dimension.bound());
    if bounds.clone().all(|size| size != 0)
        && bounds.clone().try_fold(1i64, i64::checked_mul).is_none()
    {
        return Err(context.mismatch(format_args!("too many elements: {result}")));
    }
    Ok(context.intern(result))
}

pub(super) fn transpose(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let operand = context.array(0)?;
    let values = context.demanded_integers("dimensions")?;
    let permutation = context.indices("dimensions", &values, operand.rank())?;
    if permutation.len() != operand.rank() {
        let message = format_args!("dimensions= is not a permutation for {operand}");
        return Err(context.invalid("dimensions", message));
    }
    let dimensions = permutation.iter().map(|index| operand.dimensions[*index]).collect();
    // An array without a layout has the default layout, which is also permuted with its dimensions.
    let default = || Layout::with_order((0..operand.rank() as i64).rev().collect());
    let is_identity = permutation.iter().copied().eq(0..operand.rank());
    let layout = match operand.layout.clone() {
        None if is_identity => None,
        layout => transposed(layout.unwrap_or_else(default), &permutation),
    };
    Ok(context.intern(Array { element_type: operand.element_type, dimensions, layout }))
}

/// The layout in which the same bytes represent the transposed array.
fn transposed(mut layout: Layout, permutation: &[usize]) -> Option<Layout> {
    let mut inverse = vec![0i64; permutation.len()];
    for (new, old) in permutation.iter().enumerate() {
        *inverse.get_mut(*old)? = i64::try_from(new).ok()?;
    }
    for dimension in &mut layout.minor_to_major {
        *dimension = *inverse.get(usize::try_from(*dimension).ok()?)?;
    }
    Some(layout)
}

pub(super) fn reverse(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let operand = context.array(0)?;
    let values = context.demanded_integers("dimensions")?;
    context.indices("dimensions", &values, operand.rank())?;
    context.operand(0)
}

pub(super) fn pad(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let (operand, value) = (context.array(0)?, context.array(1)?);
    let padding = match context.value("padding")? {
        Some(AttributeValue::Padding(padding)) => padding,
        _ => return Err(context.missing("padding=")),
    };
    if !value.is_scalar() {
        return Err(context.mismatch(format_args!("the padding value {value} is not a scalar")));
    }
    if !same_type(operand.element_type, value.element_type) {
        return Err(context.different_types(&operand, &value));
    }
    if padding.len() != operand.rank() {
        let message = format_args!("padding= has {} dimensions, not {operand}", padding.len());
        return Err(context.invalid("padding", message));
    }
    let mut dimensions = Vec::with_capacity(operand.rank());
    for (dimension, padding) in operand.dimensions.iter().zip(&padding) {
        if padding.interior < 0 {
            return Err(context.invalid("padding", "interior padding must not be negative"));
        }
        let Some(size) = dimension.bound() else {
            dimensions.push(*dimension);
            continue;
        };
        let gaps = size.saturating_sub(1).max(0).checked_mul(padding.interior);
        let edges = padding.low.checked_add(padding.high);
        let padded =
            gaps.and_then(|gaps| gaps.checked_add(size)).and_then(|size| size.checked_add(edges?));
        dimensions.push(context.resized(*dimension, padded)?);
    }
    let element_type = context.wider(operand.element_type, value.element_type)?;
    Ok(context.intern(Array::new(element_type, dimensions)))
}

pub(super) fn concatenate(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let arrays = context.arrays()?;
    let Some((first, others)) = arrays.split_first() else {
        return Err(context.missing("an operand"));
    };
    let values = context.demanded_integers("dimensions")?;
    let &[value] = values.as_slice() else {
        return Err(context.invalid("dimensions", "exactly one dimension must be concatenated"));
    };
    let along = context.index("dimensions", value, first.rank())?;
    let mut result = Array::new(first.element_type, first.dimensions.clone());
    for other in others {
        if !same_type(result.element_type, other.element_type) {
            return Err(context.different_types(first, other));
        }
        result.element_type = context.wider(result.element_type, other.element_type)?;
        let differ = || context.mismatch(format_args!("cannot concatenate {first} and {other}"));
        if other.rank() != first.rank() {
            return Err(differ());
        }
        for (index, new) in other.dimensions.iter().enumerate() {
            let old = result.dimensions[index];
            result.dimensions[index] = if index == along {
                match (old.bound(), new.bound()) {
                    (Some(a), Some(b)) => {
                        let dynamic = matches!(old, Dimension::Bounded(_));
                        context.resized(if dynamic { old } else { *new }, a.checked_add(b))?
                    }
                    _ => Dimension::Unbounded,
                }
            } else {
                most_specific(old, *new).ok_or_else(differ)?
            };
        }
    }
    Ok(context.intern(result))
}

/// The dimension named by `dimensions=` of the dimension-size opcodes.
fn sized_dimension(context: &Context<'_, '_>, rank: usize) -> Result<usize> {
    let values = context.demanded_integers("dimensions")?;
    match values.first() {
        Some(value) => context.index("dimensions", *value, rank),
        None => Err(context.invalid("dimensions", "a dimension must be named")),
    }
}

pub(super) fn get_dimension_size(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let operand = context.array(0)?;
    let index = sized_dimension(context, operand.rank())?;
    if operand.dimensions[index].bound().is_some_and(|size| size > i64::from(i32::MAX)) {
        return Err(context.mismatch(format_args!("the size of {operand} does not fit s32")));
    }
    Ok(context.intern(Array::new(ElementType::S32, Vec::new())))
}

pub(super) fn set_dimension_size(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let (mut operand, size) = (context.array(0)?, context.array(1)?);
    let index = sized_dimension(context, operand.rank())?;
    if !size.is_scalar() || size.element_type != ElementType::S32 {
        return Err(context.mismatch(format_args!("the size is {size}, not s32[]")));
    }
    if let Some(bound) = operand.dimensions[index].bound() {
        operand.dimensions[index] = Dimension::Bounded(bound);
    }
    Ok(context.intern(operand))
}

pub(super) fn top_k(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let operand = context.array(0)?;
    let k = context.demanded_integer("k")?;
    let mut dimensions = operand.dimensions.clone();
    match dimensions.last_mut() {
        Some(last) if last.bound().is_some_and(|size| (0..=size).contains(&k)) => {
            *last = Dimension::Static(k);
        }
        _ => {
            return Err(context.mismatch(format_args!("k={k} does not fit {operand}")));
        }
    }
    let indices = Array::new(ElementType::S32, dimensions.clone());
    Ok(context.intern_tuple(vec![Array::new(operand.element_type, dimensions), indices]))
}

pub(super) fn sort(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    if context.demanded_integers("dimensions")?.len() != 1 {
        return Err(context.invalid("dimensions", "exactly one dimension must be sorted"));
    }
    let operands = context.request.operands;
    if let &[only] = operands {
        return Ok(only);
    }
    let arrays = context.arrays()?;
    if let Some((keys, values)) = arrays.split_first() {
        for value in values {
            if !all_agree(&keys.dimensions, &value.dimensions) {
                let message = format_args!("keys and values differ: {keys} and {value}");
                return Err(context.mismatch(message));
            }
        }
    }
    Ok(context.interner.tuple(operands, Span::EMPTY))
}
