//! Live bytes at every step, and their peak.

use super::MemoryError;
use super::nodes::node_shapes;
use super::options::{Options, Rule, Sizes, Space};
use super::ranges::Ranges;
use super::values::Reader;
use crate::cost::Backend;
use crate::ir::size::{ShapeCost, shape_costs};
use crate::ir::{Module, Row, ShapeId, ShapeView};
use std::borrow::Cow;

/// The peak of live bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// The step.
    pub step: u32,
    /// The bytes.
    pub bytes: i64,
}

/// A live value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveValue {
    /// The instruction that defines the value.
    pub row: Row,
    /// The part of the result, in pre-order with tuples before their elements.
    pub part: u32,
    /// The path to the part.
    pub path: Vec<u32>,
    /// Its shape.
    pub shape: ShapeId,
    /// Its bytes; 0 if unknown or in a memory space that was not requested.
    pub bytes: i64,
    /// Its memory space.
    pub memory_space: i64,
    /// The first step at which the value is live.
    pub first_step: u32,
    /// The last step, inclusive; one past all steps for values that outlive the program.
    pub last_step: u32,
    /// Its buffer: values in the same buffer share memory.
    pub buffer: u32,
}

/// Bytes of values.
pub(super) struct Sized {
    /// By node: bytes of the value that the node defines.
    pub bytes: Vec<i64>,
    /// By node: the bytes that XLA counts for the value when it looks for the peak of its
    /// live-range file. A tuple counts as its pointer table. Empty under other rules.
    pub weights: Vec<i64>,
    /// Rows of unknown size, ascending.
    pub unknown: Vec<u32>,
}

impl Sized {
    pub fn new(reader: &Reader<'_>, values: &[u32], options: &Options, backend: Backend) -> Self {
        let module = reader.module;
        let backend = match options.sizes {
            Sizes::Device => backend,
            Sizes::Logical => Backend::Cpu,
        };
        let costs = match backend == Backend::of_module(module) {
            true => Cow::Borrowed(module.shape_costs()),
            false => Cow::Owned(shape_costs(module.shapes(), backend, false)),
        };
        let counted = |(id, cost): (ShapeId, &ShapeCost)| match options.space {
            Space::One(space) if space != memory_space(module, id) => 0,
            _ => cost.size,
        };
        let sizes: Vec<i64> = module.shapes().ids().zip(&*costs).map(counted).collect();
        let size = |shape: ShapeId| sizes.get(shape.0 as usize).copied().unwrap_or(0);
        let mut sized = Sized {
            bytes: Vec::with_capacity(values.len()),
            weights: Vec::new(),
            unknown: Vec::new(),
        };
        let is_weighed = options.rule == Rule::Values;
        let mut shapes = Vec::new();
        for row in &reader.steps.rows {
            let shape = module.shape(Row(*row));
            let weight = size(shape);
            let mut is_unknown = weight < 0;
            if reader.shapes.count(shape) == 1 {
                sized.bytes.push(weight.max(0));
            } else {
                shapes.clear();
                node_shapes(module, shape, &mut shapes);
                for shape in &shapes {
                    let size = size(*shape);
                    is_unknown |= size < 0;
                    sized.bytes.push(size.max(0));
                }
            }
            if is_weighed {
                sized.weights.resize(sized.bytes.len(), weight.max(0));
            }
            if is_unknown {
                sized.unknown.push(*row);
            }
        }
        sized.unknown.sort_unstable();
        for sizes in [&mut sized.bytes, &mut sized.weights] {
            for ((node, value), size) in (0u32..).zip(values).zip(sizes) {
                if *value != node {
                    *size = 0;
                }
            }
        }
        sized
    }
}

/// Whether some array has no layout although other arrays have tiles.
pub(super) fn lacks_layouts(reader: &Reader<'_>) -> bool {
    let shapes = reader.module.shapes();
    let lacks = |row: &u32| {
        shapes.array(reader.module.shape(Row(*row))).is_some_and(|array| array.layout.is_none())
    };
    reader.steps.rows.iter().any(lacks)
}

/// The memory space in the layout of an array; 0 for tuples and arrays without a layout.
pub(super) fn memory_space(module: &Module, shape: ShapeId) -> i64 {
    match module.shapes().get(shape) {
        ShapeView::Array(array) => array.layout.map_or(0, |layout| layout.memory_space),
        ShapeView::Buffer(inner) => match module.shapes().get(inner) {
            ShapeView::Array(array) => array.layout.map_or(0, |layout| layout.memory_space),
            _ => 0,
        },
        ShapeView::Tuple(_) => 0,
    }
}

/// Live bytes at each of `count` steps.
pub(super) fn timeline(
    ranges: &Ranges,
    bytes: &[i64],
    count: u32,
) -> Result<Vec<i64>, MemoryError> {
    let total: i128 = bytes.iter().map(|bytes| i128::from(*bytes)).sum();
    if total > i128::from(i64::MAX) {
        return Err(MemoryError::TooLarge);
    }
    Ok(summed(ranges, bytes, count, 0))
}

/// Sums over the ranges, each extended by `more` steps.
fn summed(ranges: &Ranges, weights: &[i64], count: u32, more: u32) -> Vec<i64> {
    let count = count as usize;
    let mut steps = vec![0i64; count + 1];
    for ((weight, start), end) in weights.iter().zip(&ranges.starts).zip(&ranges.ends) {
        let start = *start as usize;
        // A range that is empty or begins after the last step is never live.
        if *weight == 0 || start > *end as usize || start >= count {
            continue;
        }
        let after = (*end as usize + 1 + more as usize).min(count);
        steps[start] += weight;
        steps[after] -= weight;
    }
    let mut sum = 0;
    for step in &mut steps {
        sum += *step;
        *step = sum;
    }
    steps.truncate(count);
    steps
}

/// The first step with the most live bytes.
pub(super) fn highest(timeline: &[i64]) -> u32 {
    let mut at = 0;
    let mut most = 0;
    for (step, bytes) in (0u32..).zip(timeline) {
        if *bytes > most {
            (at, most) = (step, *bytes);
        }
    }
    at
}

/// The step of the peak in XLA's live-range file. There, XLA counts a value as live for one step
/// after its end, and counts every part of a tuple with the size of the tuple's pointer table.
pub(super) fn moment_of_xla(ranges: &Ranges, sized: &Sized, count: u32) -> u32 {
    let total: i128 = sized.weights.iter().map(|weight| i128::from(*weight)).sum();
    let weights = if total > i128::from(i64::MAX) { &sized.bytes } else { &sized.weights };
    highest(&summed(ranges, weights, count, 1))
}
