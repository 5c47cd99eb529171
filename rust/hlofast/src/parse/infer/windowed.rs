//! Opcodes that move a window over an array.

use super::dimension::{all_agree, is_dynamic, raw};
use super::reduction::check_reducer;
use super::request::{Array, Context};
use crate::error::Result;
use crate::ir::decode::{AttributeValue, DimensionLabel, DimensionLabels, WindowDimension};
use crate::ir::{CallRole, Dimension, ElementType, ShapeId};

/// The number of window positions along each dimension of `base`.
fn positions(
    context: &Context<'_, '_>,
    base: &[Dimension],
    window: &[WindowDimension],
) -> Result<Vec<Dimension>> {
    if base.len() != window.len() {
        let message =
            format_args!("the window has {} dimensions, not {}", window.len(), base.len());
        return Err(context.invalid("window", message));
    }
    let mut dimensions = Vec::with_capacity(base.len());
    for (dimension, window) in base.iter().zip(window) {
        let positive = [window.size, window.stride, window.base_dilation, window.window_dilation];
        if positive.iter().any(|value| *value <= 0) {
            let message = "sizes, strides and dilations of a window must be positive";
            return Err(context.invalid("window", message));
        }
        dimensions.push(match dimension.bound() {
            None => *dimension,
            Some(size) => context.resized(*dimension, position_count(size, window))?,
        });
    }
    Ok(dimensions)
}

/// None if an intermediate number is negative or does not fit 64 bits.
fn position_count(size: i64, window: &WindowDimension) -> Option<i64> {
    let padded = dilated(size, window.base_dilation)?
        .checked_add(window.padding_low)?
        .checked_add(window.padding_high)?;
    let width = dilated(window.size, window.window_dilation)?;
    match padded.checked_sub(width)? {
        _ if padded < 0 => None,
        room if padded == 0 || room < 0 => Some(0),
        room => room.checked_div(window.stride)?.checked_add(1),
    }
}

/// The extent of `size` elements with a distance of `dilation`.
fn dilated(size: i64, dilation: i64) -> Option<i64> {
    if size == 0 { Some(0) } else { size.checked_sub(1)?.checked_mul(dilation)?.checked_add(1) }
}

/// XLA's parser infers the shape for one input only and ignores operands after the first two.
pub(super) fn reduce_window(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let (operand, start) = (context.array(0)?, context.operand(1)?);
    check_reducer(context, CallRole::ToApply, &[start], &[operand.element_type])?;
    let dimensions = positions(context, &operand.dimensions, &context.window()?)?;
    let element_type = context.array(1)?.element_type;
    Ok(context.intern(Array::new(element_type, dimensions)))
}

pub(super) fn select_and_scatter(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let (operand, source) = (context.array(0)?, context.array(1)?);
    let start = context.operand(2)?;
    let select = context.callee(CallRole::Select)?;
    let result = context.as_array(select.result);
    if !result.is_some_and(|r| r.is_scalar() && r.element_type == ElementType::Pred) {
        return Err(context.mismatch("select= must return pred[]"));
    }
    let takes_elements = select.parameters.len() == 2
        && select.parameters.iter().all(|parameter| {
            context.as_array(*parameter).is_some_and(|parameter| {
                parameter.is_scalar()
                    && super::dimension::same_type(parameter.element_type, operand.element_type)
            })
        });
    if !takes_elements {
        return Err(context.mismatch(format_args!("select= must take two elements of {operand}")));
    }
    check_reducer(context, CallRole::Scatter, &[start], &[source.element_type])?;
    let dimensions = positions(context, &operand.dimensions, &context.window()?)?;
    if !all_agree(&dimensions, &source.dimensions)
        || !super::dimension::same_type(operand.element_type, source.element_type)
    {
        let wanted = Array::new(operand.element_type, dimensions);
        return Err(context.mismatch(format_args!("the source is {source}, not {wanted}")));
    }
    context.operand(0)
}

pub(super) fn convolution(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let (left, right) = (context.array(0)?, context.array(1)?);
    let labels = match context.value("dim_labels")? {
        Some(AttributeValue::DimensionLabels(labels)) => labels,
        _ => return Err(context.missing("dim_labels=")),
    };
    let window = context.window()?;
    let spatial = labels.spatial_rank();
    if left.rank() != spatial + 2 || right.rank() != spatial + 2 {
        return Err(context.mismatch(format_args!("dim_labels= does not fit {left} and {right}")));
    }
    let base = labelled_spatial(context, &left, &labels.lhs, spatial)?;
    let kernel = labelled_spatial(context, &right, &labels.rhs, spatial)?;
    let mut output = positions(context, &base, &window)?;
    for (index, window) in window.iter().enumerate() {
        if raw(kernel[index]) != window.size {
            return Err(context.invalid("window", format_args!("the window is not {right}")));
        }
        if let (true, Dimension::Static(size)) = (is_dynamic(kernel[index]), output[index]) {
            output[index] = Dimension::Bounded(size);
        }
    }
    let (batch, features) = grouped(context, &left, &right, &labels)?;
    let out_of_range = || context.invalid("dim_labels", "the result has too few dimensions");
    let mut dimensions = vec![Dimension::Static(0); spatial + 2];
    let mut place = |label, dimension| {
        let position = DimensionLabels::position(&labels.output, label);
        let slot = position.and_then(|position| dimensions.get_mut(position));
        slot.map(|slot| *slot = dimension).ok_or_else(out_of_range)
    };
    place(DimensionLabel::Batch, batch)?;
    place(DimensionLabel::Feature, features)?;
    for (number, dimension) in (0u8..).zip(output) {
        place(DimensionLabel::Spatial(number), dimension)?;
    }
    let element_type = context.wider(left.element_type, right.element_type)?;
    Ok(context.intern(Array::new(element_type, dimensions)))
}

/// The dimension of `array` with `label`.
fn labelled(
    context: &Context<'_, '_>,
    array: &Array,
    labels: &[DimensionLabel],
    label: DimensionLabel,
) -> Result<Dimension> {
    let position = DimensionLabels::position(labels, label);
    let dimension = position.and_then(|position| array.dimensions.get(position)).copied();
    dimension.ok_or_else(|| {
        context.invalid("dim_labels", format_args!("dim_labels= does not fit {array}"))
    })
}

fn labelled_spatial(
    context: &Context<'_, '_>,
    array: &Array,
    labels: &[DimensionLabel],
    spatial: usize,
) -> Result<Vec<Dimension>> {
    let numbers = (0u8..).take(spatial);
    numbers
        .map(|number| labelled(context, array, labels, DimensionLabel::Spatial(number)))
        .collect()
}

/// Batch and feature dimension of the result of a convolution.
fn grouped(
    context: &Context<'_, '_>,
    left: &Array,
    right: &Array,
    labels: &DimensionLabels,
) -> Result<(Dimension, Dimension)> {
    let feature_groups = context.integer("feature_group_count")?.unwrap_or(1);
    let batch_groups = context.integer("batch_group_count")?.unwrap_or(1);
    for (key, count) in
        [("feature_group_count", feature_groups), ("batch_group_count", batch_groups)]
    {
        if count <= 0 {
            return Err(context.invalid(key, format_args!("{key} must be positive")));
        }
    }
    if feature_groups > 1 && batch_groups > 1 {
        let message = "features and batch cannot both be grouped";
        return Err(context.invalid("batch_group_count", message));
    }
    let batch = labelled(context, left, &labels.lhs, DimensionLabel::Batch)?;
    let inputs = labelled(context, left, &labels.lhs, DimensionLabel::Feature)?;
    let kernel_inputs = labelled(context, right, &labels.rhs, DimensionLabel::InputFeature)?;
    let outputs = labelled(context, right, &labels.rhs, DimensionLabel::OutputFeature)?;
    if is_dynamic(outputs) {
        return Err(context.mismatch(format_args!("the output features of {right} are dynamic")));
    }
    let divides = |size: i64, count: i64| size.checked_rem(count) == Some(0);
    if !divides(raw(inputs), feature_groups)
        || raw(inputs).checked_div(feature_groups) != Some(raw(kernel_inputs))
    {
        let message = format_args!("input features of {left} and {right} do not fit");
        return Err(context.mismatch(message));
    }
    if !divides(raw(outputs), feature_groups) || !divides(raw(outputs), batch_groups) {
        let message = format_args!("output features of {right} do not divide into groups");
        return Err(context.mismatch(message));
    }
    let batch = match batch.bound() {
        None if batch_groups == 1 => batch,
        Some(size) if divides(size, batch_groups) => {
            context.resized(batch, size.checked_div(batch_groups))?
        }
        _ => {
            let message = format_args!("the batch of {left} does not divide into groups");
            return Err(context.mismatch(message));
        }
    };
    Ok((batch, outputs))
}
