//! Reductions, the checks of reducers that several opcodes share, and batch normalisation.

use super::dimension::{agree, all_agree, same_type};
use super::request::{Array, Context};
use crate::error::Result;
use crate::ir::{CallRole, Dimension, ElementKind, ElementType, Opcode, ShapeId, ShapeView};

/// Checks that the computation called as `role` reduces elements of types `inputs` into values of
/// the types of `starts`; returns the element types of its results.
pub(super) fn check_reducer(
    context: &Context<'_, '_>,
    role: CallRole,
    starts: &[ShapeId],
    inputs: &[ElementType],
) -> Result<Vec<ElementType>> {
    let reducer = context.callee(role)?;
    let count = inputs.len();
    let (accumulators, elements) = match reducer.parameters.split_at_checked(count) {
        Some((accumulators, elements)) if elements.len() == count => (accumulators, elements),
        _ => {
            let given = reducer.parameters.len();
            let message = format_args!("the reducer takes {given} parameters, not two per input");
            return Err(context.mismatch(message));
        }
    };
    let results = match context.table().get(reducer.result) {
        ShapeView::Tuple(children) => children.to_vec(),
        _ => vec![reducer.result],
    };
    if results.len() != count {
        let given = results.len();
        let message = format_args!("the reducer returns {given} values for {count} inputs");
        return Err(context.mismatch(message));
    }
    let scalar =
        |id: ShapeId| context.as_array(id).filter(Array::is_scalar).map(|array| array.element_type);
    let mut types = Vec::with_capacity(count);
    for (index, result) in results.iter().enumerate() {
        let fit = (|| {
            let result_type = scalar(*result)?;
            let is_result = scalar(*accumulators.get(index)?)? == result_type;
            let element = scalar(*elements.get(index)?)?;
            let fits = is_result
                && same_type(result_type, scalar(*starts.get(index)?)?)
                && same_type(*inputs.get(index)?, element)
                && same_type(result_type, element);
            fits.then_some(result_type)
        })();
        let Some(result_type) = fit else {
            let message =
                format_args!("the reducer does not fit input {index} and its start value");
            return Err(context.mismatch(message));
        };
        types.push(result_type);
    }
    Ok(types)
}

pub(super) fn reduce(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let count = context.request.operands.len() / 2;
    let starts = context.request.operands.get(count..).unwrap_or_default();
    if count == 0 || starts.len() != count {
        return Err(context.missing("an operand and a start value"));
    }
    let arrays: Vec<Array> = (0..count).map(|index| context.array(index)).collect::<Result<_>>()?;
    let Some((first, others)) = arrays.split_first() else {
        return Err(context.missing("an operand"));
    };
    for other in others {
        if !all_agree(&first.dimensions, &other.dimensions) {
            return Err(context.mismatch(format_args!("operands differ: {first} and {other}")));
        }
    }
    let inputs: Vec<ElementType> = arrays.iter().map(|array| array.element_type).collect();
    let types = check_reducer(context, CallRole::ToApply, starts, &inputs)?;
    let values = context.demanded_integers("dimensions")?;
    let mut is_reduced = vec![false; first.rank()];
    for index in context.indices("dimensions", &values, first.rank())? {
        is_reduced[index] = true;
    }
    let kept = first.dimensions.iter().zip(is_reduced).filter(|(_, is_reduced)| !is_reduced);
    let kept: Vec<Dimension> = kept.map(|(dimension, _)| *dimension).collect();
    let mut results: Vec<Array> =
        types.into_iter().map(|element_type| Array::new(element_type, kept.clone())).collect();
    Ok(match results.pop() {
        Some(only) if results.is_empty() => context.intern(only),
        last => {
            results.extend(last);
            context.intern_tuple(results)
        }
    })
}

/// The operands are the data, then one value per feature (scale, offset or statistics); a gradient
/// also has the gradient of the result.
pub(super) fn batch_norm(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let arrays = context.arrays()?;
    let Some((data, others)) = arrays.split_first() else {
        return Err(context.missing("operands"));
    };
    let value = context.demanded_integer("feature_index")?;
    let feature = data.dimensions[context.index("feature_index", value, data.rank())?];
    let mut per_feature = others;
    if context.opcode() == Opcode::BatchNormGrad
        && let Some((gradient, rest)) = others.split_last()
    {
        if !all_agree(&data.dimensions, &gradient.dimensions) {
            let message = format_args!("data and gradient differ in shape: {data} and {gradient}");
            return Err(context.mismatch(message));
        }
        per_feature = rest;
    }
    for array in &arrays {
        if array.element_type.kind() != ElementKind::Float {
            return Err(context.mismatch(format_args!("not defined on {array}")));
        }
    }
    for array in per_feature {
        if !matches!(array.dimensions.as_slice(), [size] if agree(*size, feature)) {
            return Err(context.mismatch(format_args!("{array} does not fit features of {data}")));
        }
    }
    if context.opcode() == Opcode::BatchNormInference {
        return context.operand(0);
    }
    let features = Array::new(data.element_type, vec![feature]);
    let result = data.clone();
    Ok(context.intern_tuple(vec![result, features.clone(), features]))
}
