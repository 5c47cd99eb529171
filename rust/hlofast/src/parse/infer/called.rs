//! Opcodes whose result shape follows from the computations they call.

use super::dimension::{all_agree, same_type};
use super::request::{Array, Context, Signature};
use crate::error::Result;
use crate::ir::{CallRole, Dimension, ElementType, ShapeId, ShapeView};
use crate::text::Span;
use std::sync::Arc;

pub(super) fn call(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let callee = context.callee(CallRole::ToApply)?;
    let operands = context.request.operands;
    if callee.parameters.len() != operands.len() {
        let (takes, given) = (callee.parameters.len(), operands.len());
        let message = format_args!("the computation takes {takes} operands, but {given} are given");
        return Err(context.mismatch(message));
    }
    for (index, (parameter, operand)) in callee.parameters.iter().zip(operands).enumerate() {
        if !context.compatible(*parameter, *operand) {
            let message = format_args!("operand {index} does not have its parameter's shape");
            return Err(context.mismatch(message));
        }
    }
    Ok(callee.result)
}

pub(super) fn while_loop(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let (condition, body) = (context.callee(CallRole::Condition)?, context.callee(CallRole::Body)?);
    let start = context.operand(0)?;
    let gives = context.as_array(condition.result);
    if !gives.is_some_and(|array| array.is_scalar() && array.element_type == ElementType::Pred) {
        return Err(context.mismatch("condition= must return pred[]"));
    }
    let (&[condition_takes], &[body_takes]) =
        (condition.parameters.as_slice(), body.parameters.as_slice())
    else {
        return Err(context.mismatch("condition= and body= must take one value"));
    };
    for other in [condition_takes, body_takes, body.result] {
        if !context.compatible(start, other) {
            let message = "condition=, body= and the start value differ in shape";
            return Err(context.mismatch(message));
        }
    }
    Ok(start)
}

pub(super) fn conditional(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let selector = context.array(0)?;
    let branches: Vec<Arc<Signature>> = match selector.element_type {
        ElementType::Pred if selector.is_scalar() => vec![
            context.callee(CallRole::TrueComputation)?,
            context.callee(CallRole::FalseComputation)?,
        ],
        ElementType::S32 if selector.is_scalar() => {
            let callees = context.request.callees.iter();
            let branches = callees.filter(|callee| callee.role == CallRole::Branch);
            branches.map(|callee| context.signature(callee)).collect::<Result<_>>()?
        }
        _ => {
            return Err(
                context.mismatch(format_args!("the selector {selector} is not pred or s32"))
            );
        }
    };
    let operands = context.request.operands.get(1..).unwrap_or_default();
    let Some(first) = branches.first() else {
        return Err(context.missing("branch_computations="));
    };
    if branches.len() != operands.len() {
        let (count, given) = (branches.len(), operands.len());
        return Err(context.mismatch(format_args!("{count} branches have {given} operands")));
    }
    for (index, (branch, operand)) in branches.iter().zip(operands).enumerate() {
        let takes_operand = matches!(branch.parameters.as_slice(),
            &[parameter] if context.compatible(parameter, *operand));
        if !takes_operand {
            let message = format_args!("branch {index} does not take its operand's shape");
            return Err(context.mismatch(message));
        }
        if !context.compatible(first.result, branch.result) {
            return Err(context.mismatch(format_args!("branch {index} returns a different shape")));
        }
    }
    Ok(first.result)
}

pub(super) fn map(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let arrays = context.arrays()?;
    let Some(mut widest) = arrays.first() else { return Err(context.missing("an operand")) };
    for array in &arrays {
        if all_agree(&widest.dimensions, &array.dimensions) || array.is_scalar() {
            continue;
        }
        if !widest.is_scalar() {
            return Err(context.mismatch(format_args!("operands differ: {widest} and {array}")));
        }
        widest = array;
    }
    let dimensions = context.demanded_integers("dimensions")?;
    if dimensions.len() != widest.rank() || !dimensions.iter().zip(0..).all(|(a, b)| *a == b) {
        return Err(context.invalid("dimensions", "a map runs over all dimensions in order"));
    }
    let callee = context.callee(CallRole::ToApply)?;
    let fits = |parameter: &ShapeId, array: &Array| {
        context.as_array(*parameter).is_some_and(|parameter| {
            parameter.is_scalar() && same_type(parameter.element_type, array.element_type)
        })
    };
    let takes_elements = callee.parameters.len() == arrays.len()
        && callee.parameters.iter().zip(&arrays).all(|(parameter, array)| fits(parameter, array));
    if !takes_elements {
        return Err(context.mismatch("the computation does not take elements of the operands"));
    }
    match context.as_array(callee.result) {
        Some(result) if result.is_scalar() => {
            let dimensions = widest.dimensions.clone();
            Ok(context.intern(Array::new(result.element_type, dimensions)))
        }
        _ => Err(context.mismatch("the computation does not return a scalar")),
    }
}

/// The operands are the inputs, then the carried values. The computation returns one step's
/// outputs, which are stacked along the scanned dimension, then the carried values.
pub(super) fn scan(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let callee = context.callee(CallRole::ToApply)?;
    let operands = context.request.operands;
    if callee.parameters.len() != operands.len() {
        let (takes, given) = (callee.parameters.len(), operands.len());
        let message = format_args!("the computation takes {takes} operands, but {given} are given");
        return Err(context.mismatch(message));
    }
    let carried = context.demanded_integer("num_carries")?;
    let Some(carried) = usize::try_from(carried).ok().filter(|count| *count < operands.len())
    else {
        return Err(context.invalid("num_carries", "a scan needs an input that is not carried"));
    };
    let values = context.demanded_integers("dimensions")?;
    let &[value] = values.as_slice() else {
        return Err(context.invalid("dimensions", "exactly one dimension must be scanned"));
    };
    let input = context.array(0)?;
    let along = context.index("dimensions", value, input.rank())?;
    let Some(length) = input.dimensions[along].bound() else {
        return Err(context.mismatch(format_args!("the scanned size of {input} has no bound")));
    };
    let results = match context.table().get(callee.result) {
        ShapeView::Tuple(children) => children.to_vec(),
        _ => vec![callee.result],
    };
    let outputs = results.len().saturating_sub(carried);
    let mut scanned = Vec::with_capacity(results.len());
    for (index, result) in results.iter().enumerate() {
        if index >= outputs {
            scanned.push(*result);
            continue;
        }
        let Some(mut output) = context.as_array(*result).filter(|array| along <= array.rank())
        else {
            let message = format_args!("output {index} cannot be stacked along dimension {along}");
            return Err(context.mismatch(message));
        };
        output.dimensions.insert(along, Dimension::Static(length));
        scanned.push(context.intern(Array::new(output.element_type, output.dimensions)));
    }
    match (context.table().tuple(callee.result), scanned.as_slice()) {
        (None, &[only]) => Ok(only),
        _ => Ok(context.interner.tuple(&scanned, Span::EMPTY)),
    }
}
