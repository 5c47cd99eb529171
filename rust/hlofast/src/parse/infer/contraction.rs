//! Dots: plain, scaled and ragged.

use super::dimension::{agree, raw};
use super::request::{Array, Context};
use crate::error::Result;
use crate::ir::{Dimension, ShapeId};

/// The dimension numbers of a dot, checked against its operands.
struct DotDimensions {
    left_batch: Vec<usize>,
    right_batch: Vec<usize>,
    left_contracting: Vec<usize>,
    right_contracting: Vec<usize>,
}

impl DotDimensions {
    fn read(context: &Context<'_, '_>, left: &Array, right: &Array) -> Result<Self> {
        let read = |batch: &str, contracting: &str, rank: usize| {
            let batch_values = context.listed_integers(batch)?;
            let mut values = batch_values.clone();
            values.extend(context.listed_integers(contracting)?);
            // No dimension is both batch and contracting.
            let mut indices = context.indices(contracting, &values, rank)?;
            let rest = indices.split_off(batch_values.len());
            Ok((indices, rest))
        };
        let (left_batch, left_contracting) =
            read("lhs_batch_dims", "lhs_contracting_dims", left.rank())?;
        let (right_batch, right_contracting) =
            read("rhs_batch_dims", "rhs_contracting_dims", right.rank())?;
        for (what, a, b) in [
            ("batch", &left_batch, &right_batch),
            ("contracting", &left_contracting, &right_contracting),
        ] {
            if a.len() != b.len() {
                return Err(context.mismatch(format_args!("the sides differ in {what} dimensions")));
            }
            if a.iter().zip(b).any(|(a, b)| !agree(left.dimensions[*a], right.dimensions[*b])) {
                let message = format_args!("{what} sizes of {left} and {right} differ");
                return Err(context.mismatch(message));
            }
        }
        Ok(Self { left_batch, right_batch, left_contracting, right_contracting })
    }

    /// The batch dimensions, then the remaining dimensions of each side.
    fn result(&self, left: &Array, right: &Array, group: Option<usize>) -> Vec<Dimension> {
        let mut dimensions: Vec<Dimension> =
            self.left_batch.iter().map(|index| left.dimensions[*index]).collect();
        let mut left_over = |array: &Array, batch: &[usize], contracting: &[usize], group| {
            let mut is_used = vec![false; array.rank()];
            for index in batch.iter().chain(contracting).chain(&group) {
                is_used[*index] = true;
            }
            let free = array.dimensions.iter().zip(is_used).filter(|(_, is_used)| !is_used);
            dimensions.extend(free.map(|(dimension, _)| *dimension));
        };
        left_over(left, &self.left_batch, &self.left_contracting, None);
        left_over(right, &self.right_batch, &self.right_contracting, group);
        dimensions
    }
}

fn dot_of(context: &mut Context<'_, '_>, left: usize, right: usize) -> Result<ShapeId> {
    let (left, right) = (context.array(left)?, context.array(right)?);
    let numbers = DotDimensions::read(context, &left, &right)?;
    let element_type = context.wider(left.element_type, right.element_type)?;
    Ok(context.intern(Array::new(element_type, numbers.result(&left, &right, None))))
}

pub(super) fn dot(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    dot_of(context, 0, 1)
}

/// The operands are left side, its scale, right side, its scale; the scales do not affect the
/// shape.
pub(super) fn scaled_dot(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    dot_of(context, 0, 2)
}

/// The role of the ragged dimension on the left side.
#[derive(PartialEq)]
enum Ragged {
    Free,
    Contracting,
    Batch,
}

pub(super) fn ragged_dot(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let (left, right, sizes) = (context.array(0)?, context.array(1)?, context.array(2)?);
    let numbers = DotDimensions::read(context, &left, &right)?;
    let values = context.listed_integers("lhs_ragged_dims")?;
    let &[value] = values.as_slice() else {
        return Err(context.invalid("lhs_ragged_dims", "exactly one dimension must be ragged"));
    };
    let ragged = context.index("lhs_ragged_dims", value, left.rank())?;
    // Group sizes may differ along the dimensions before the ragged dimension.
    let position = |list: &[usize]| list.iter().position(|index| *index == ragged);
    let (mode, before): (Ragged, Vec<usize>) = if let Some(at) = position(&numbers.left_batch) {
        (Ragged::Batch, numbers.left_batch.iter().take(at).copied().collect())
    } else if let Some(at) = position(&numbers.left_contracting) {
        let contracting = numbers.left_contracting.iter().take(at);
        (Ragged::Contracting, numbers.left_batch.iter().chain(contracting).copied().collect())
    } else {
        let is_free = |index: &usize| {
            !numbers.left_batch.contains(index) && !numbers.left_contracting.contains(index)
        };
        let free = (0..ragged).filter(is_free);
        (Ragged::Free, numbers.left_batch.iter().copied().chain(free).collect())
    };
    let groups = group_count(context, &left, &sizes, &before)?;
    let values = context.listed_integers("rhs_group_dims")?;
    let group = match (mode == Ragged::Free, values.as_slice()) {
        (true, &[value]) => {
            let group = context.index("rhs_group_dims", value, right.rank())?;
            if numbers.right_batch.contains(&group) || numbers.right_contracting.contains(&group) {
                let message = "the group dimension must not be batch or contracting";
                return Err(context.invalid("rhs_group_dims", message));
            }
            if !agree(right.dimensions[group], groups) {
                let message = format_args!("group sizes {sizes} do not fit {right}");
                return Err(context.mismatch(message));
            }
            Some(group)
        }
        (false, &[]) => None,
        (true, _) => {
            let message = "exactly one dimension of the right side must hold the groups";
            return Err(context.invalid("rhs_group_dims", message));
        }
        (false, _) => {
            let message = "no dimension of the right side may hold the groups";
            return Err(context.invalid("rhs_group_dims", message));
        }
    };
    let element_type = context.wider(left.element_type, right.element_type)?;
    let mut dimensions = numbers.result(&left, &right, group);
    if mode == Ragged::Contracting {
        dimensions.insert(0, groups);
    }
    Ok(context.intern(Array::new(element_type, dimensions)))
}

/// The number of groups: the last dimension of `sizes`, whose other dimensions are absent or equal
/// `before`.
fn group_count(
    context: &Context<'_, '_>,
    left: &Array,
    sizes: &Array,
    before: &[usize],
) -> Result<Dimension> {
    let fits = |given: &[Dimension]| {
        given.is_empty()
            || (given.len() == before.len()
                && given.iter().zip(before).all(|(a, b)| raw(*a) == raw(left.dimensions[*b])))
    };
    match sizes.dimensions.split_last() {
        Some((groups, rest)) if fits(rest) => Ok(*groups),
        _ => Err(context.mismatch(format_args!("group sizes {sizes} do not fit {left}"))),
    }
}
