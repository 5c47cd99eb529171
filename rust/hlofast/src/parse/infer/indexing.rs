//! Gather and scatter.

use super::dimension::raw;
use super::reduction::check_reducer;
use super::request::{Array, Context};
use crate::error::Result;
use crate::ir::{CallRole, Dimension, ElementKind, ShapeId};

/// Attributes that gather and scatter share under different names.
struct Names {
    window: &'static str,
    dropped: &'static str,
    index_map: &'static str,
    batching: &'static str,
    indices_batching: &'static str,
}

const GATHER: Names = Names {
    window: "offset_dims",
    dropped: "collapsed_slice_dims",
    index_map: "start_index_map",
    batching: "operand_batching_dims",
    indices_batching: "start_indices_batching_dims",
};

const SCATTER: Names = Names {
    window: "update_window_dims",
    dropped: "inserted_window_dims",
    index_map: "scatter_dims_to_operand_dims",
    batching: "input_batching_dims",
    indices_batching: "scatter_indices_batching_dims",
};

/// The checked dimension numbers of a gather or scatter.
struct IndexDimensions {
    /// The window dimensions of the result or the updates.
    window: Vec<usize>,
    /// The operand dimensions that are not in the window.
    dropped: Vec<usize>,
    batching: Vec<usize>,
    /// The sizes of the index array, without the index vector dimension.
    outer: Vec<Dimension>,
}

impl IndexDimensions {
    /// Reads the attributes. `rank` is the rank of the operand; `window_rank` is the rank of the
    /// array with window dimensions, None if it has to be derived.
    fn read(
        context: &Context<'_, '_>,
        names: &Names,
        rank: usize,
        indices: &Array,
        window_rank: Option<usize>,
    ) -> Result<Self> {
        let kind = indices.element_type.kind();
        if !matches!(kind, ElementKind::Signed | ElementKind::Unsigned) {
            return Err(context.mismatch(format_args!("the indices {indices} are not integers")));
        }
        let value = context.demanded_integer("index_vector_dim")?;
        // A missing last dimension counts as a dimension of size 1.
        let vector = context.index("index_vector_dim", value, indices.rank() + 1)?;
        let mut outer = indices.dimensions.clone();
        let length = if vector < outer.len() { outer.remove(vector) } else { Dimension::Static(1) };
        let window = context.demanded_integers(names.window)?;
        let window_rank = window_rank.unwrap_or(outer.len() + window.len());
        if window_rank != outer.len() + window.len() {
            let wanted = outer.len() + window.len();
            return Err(context.mismatch(format_args!("the updates need {wanted} dimensions")));
        }
        let window = ascending(context, names.window, &window, window_rank)?;
        let map = context.demanded_integers(names.index_map)?;
        if length != Dimension::Unbounded && i64::try_from(map.len()).ok() != length.bound() {
            let message =
                format_args!("{} does not fit the index vectors of {indices}", names.index_map);
            return Err(context.invalid(names.index_map, message));
        }
        context.indices(names.index_map, &map, rank)?;
        let dropped = context.demanded_integers(names.dropped)?;
        let dropped = ascending(context, names.dropped, &dropped, rank)?;
        let batching = context.listed_integers(names.batching)?;
        let batching = ascending(context, names.batching, &batching, rank)?;
        let other = context.listed_integers(names.indices_batching)?;
        let other = context.indices(names.indices_batching, &other, indices.rank())?;
        if batching.len() != other.len() {
            let message = "operand and indices differ in the number of batching dimensions";
            return Err(context.invalid(names.batching, message));
        }
        if window.len() + dropped.len() + batching.len() != rank {
            let message = format_args!("the window does not fit an operand of rank {rank}");
            return Err(context.invalid(names.window, message));
        }
        Ok(Self { window, dropped, batching, outer })
    }

    fn is_in_window(&self, dimension: usize) -> bool {
        !self.dropped.contains(&dimension) && !self.batching.contains(&dimension)
    }
}

/// The dimensions in `values`, which must be ascending.
fn ascending(
    context: &Context<'_, '_>,
    key: &str,
    values: &[i64],
    rank: usize,
) -> Result<Vec<usize>> {
    let indices = context.indices(key, values, rank)?;
    if indices.windows(2).any(|pair| pair[0] > pair[1]) {
        return Err(context.invalid(key, format_args!("{key} must be ascending")));
    }
    Ok(indices)
}

pub(super) fn gather(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let (operand, indices) = (context.array(0)?, context.array(1)?);
    let numbers = IndexDimensions::read(context, &GATHER, operand.rank(), &indices, None)?;
    let sizes = context.demanded_integers("slice_sizes")?;
    if sizes.len() != operand.rank() {
        let message = format_args!("slice_sizes= does not fit {operand}");
        return Err(context.invalid("slice_sizes", message));
    }
    let mut window = Vec::with_capacity(sizes.len());
    for (index, (size, dimension)) in sizes.iter().zip(&operand.dimensions).enumerate() {
        let whole = raw(*dimension) == *size;
        let is_bounded = dimension.bound().is_none_or(|bound| *size <= bound);
        if !(whole || *size >= 0 && is_bounded) {
            let message = format_args!("a slice of {size} does not fit {operand}");
            return Err(context.invalid("slice_sizes", message));
        }
        if numbers.is_in_window(index) {
            window.push(if whole { *dimension } else { Dimension::Static(*size) });
        } else if *size > 1 {
            let message = format_args!("a slice of {size} cannot be dropped");
            return Err(context.invalid("slice_sizes", message));
        }
    }
    let rank = numbers.outer.len() + numbers.window.len();
    let (mut outer, mut window) = (numbers.outer.iter(), window.into_iter());
    let mut is_window = vec![false; rank];
    for index in &numbers.window {
        is_window[*index] = true;
    }
    let next = |is_window| if is_window { window.next() } else { outer.next().copied() };
    let dimensions: Option<Vec<Dimension>> = is_window.into_iter().map(next).collect();
    let Some(dimensions) = dimensions else {
        return Err(context.invalid("offset_dims", "the window has too few dimensions"));
    };
    Ok(context.intern(Array::new(operand.element_type, dimensions)))
}

pub(super) fn scatter(context: &mut Context<'_, '_>) -> Result<ShapeId> {
    let mut arrays = context.arrays()?;
    let count = arrays.len() / 2;
    if count == 0 || arrays.len() != 2 * count + 1 {
        return Err(context.missing("operands, indices and updates"));
    }
    let updates = arrays.split_off(count + 1);
    let Some(indices) = arrays.pop() else { return Err(context.missing("indices")) };
    let inputs: Vec<ShapeId> = arrays
        .iter()
        .map(|array| context.intern(Array::new(array.element_type, Vec::new())))
        .collect();
    let elements: Vec<_> = updates.iter().map(|array| array.element_type).collect();
    check_reducer(context, CallRole::ToApply, &inputs, &elements)?;
    for (operand, update) in arrays.iter().zip(&updates) {
        let rank = Some(update.rank());
        let numbers = IndexDimensions::read(context, &SCATTER, operand.rank(), &indices, rank)?;
        check_updates(context, operand, update, &numbers)?;
    }
    match context.request.operands.get(..count) {
        Some(&[only]) => Ok(only),
        Some(several) => {
            let several = several.to_vec();
            Ok(context.interner.tuple(&several, crate::text::Span::EMPTY))
        }
        None => Err(context.missing("operands")),
    }
}

fn check_updates(
    context: &Context<'_, '_>,
    operand: &Array,
    update: &Array,
    numbers: &IndexDimensions,
) -> Result<()> {
    let differ = || context.mismatch(format_args!("updates {update} do not fit {operand}"));
    let mut window = (0..operand.rank()).filter(|index| numbers.is_in_window(*index));
    let mut outer = numbers.outer.iter();
    for (index, dimension) in update.dimensions.iter().enumerate() {
        let fits = if numbers.window.contains(&index) {
            let target = window.next().map(|index| raw(operand.dimensions[index]));
            target.is_some_and(|target| raw(*dimension) <= target)
        } else {
            outer.next().is_some_and(|size| super::dimension::agree(*size, *dimension))
        };
        if !fits {
            return Err(differ());
        }
    }
    Ok(())
}
