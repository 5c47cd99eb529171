//! Bytes of a shape by backend, as XLA's `shape_size` functions count them.
//!
//! Computed once per interned shape. Sources: `CpuExecutable::ShapeSizeBytes` for CPU and GPU
//! (sub-byte types are packed only if the layout has `E(n)`; dynamic arrays carry 32 bits per
//! dimension); for TPU, the tiled sizes that ahead-of-time compiled programs report.

use super::{ArrayShape, Dimension, ElementType, Layout, Module, ShapeId, ShapeTable, ShapeView};

/// The backend whose size rules apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// XLA:CPU: elements without padding.
    Cpu,
    /// XLA:GPU: as on CPU.
    Gpu,
    /// XLA:TPU: dimensions padded to the layout's first tile.
    Tpu,
}

impl Backend {
    /// Every backend.
    pub const ALL: [Backend; 3] = [Backend::Cpu, Backend::Gpu, Backend::Tpu];

    /// The name used in options, tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
            Backend::Gpu => "gpu",
            Backend::Tpu => "tpu",
        }
    }

    /// TPU if a layout of `module` has tiles, which only TPU programs have; otherwise CPU, whose
    /// sizes equal GPU sizes.
    pub fn of_module(module: &Module) -> Self {
        *module.derived().backend.get_or_init(|| {
            let shapes = module.shapes();
            let is_tiled = |id: ShapeId| {
                let layout = shapes.array(id).and_then(|array| array.layout);
                layout.is_some_and(|layout| !layout.tiles.is_empty())
            };
            if shapes.ids().any(is_tiled) { Backend::Tpu } else { Backend::Cpu }
        })
    }

    /// Bytes of the pointer table of a tuple of `length` elements.
    fn table_bytes(self, length: usize) -> i64 {
        match self {
            Backend::Cpu | Backend::Gpu => 8 * length as i64,
            // Measured on v5e. Later chips round up to 32 bytes, but the text does not name the
            // chip.
            Backend::Tpu => (4 * length as u64).next_multiple_of(512).max(512) as i64,
        }
    }
}

/// Bytes of every shape of `module` on `backend`, by id; for a tuple, the sum of its leaves. -1 if
/// unknown.
pub fn device_sizes(module: &Module, backend: Backend) -> Vec<i64> {
    let bytes = |cost: &ShapeCost| if cost.is_tuple { cost.leaves } else { cost.size };
    match backend == Backend::of_module(module) {
        true => module.shape_costs().iter().map(bytes).collect(),
        false => shape_costs(module.shapes(), backend, false).iter().map(bytes).collect(),
    }
}

impl Module {
    /// The figures of every shape on the backend of this module, sub-byte types packed as layouts
    /// say.
    pub fn shape_costs(&self) -> &[ShapeCost] {
        let find = || shape_costs(self.shapes(), Backend::of_module(self), false);
        self.derived().shape_costs.get_or_init(find)
    }
}

/// The figures of one shape that the cost rules need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShapeCost {
    /// XLA's size of the shape itself; for a tuple, of the pointer table only. -1 if unknown.
    pub size: i64,
    /// Sum of the leaves' sizes. -1 if unknown.
    pub leaves: i64,
    /// Elements of an array; 1 for tokens, 0 for tuples. -1 if unknown.
    pub elements: i64,
    /// Memory space of an array; 0 for tuples.
    pub memory_space: u8,
    /// Whether the shape is a tuple.
    pub is_tuple: bool,
    /// Whether sizes are upper bounds because a dimension is dynamic.
    pub is_bound: bool,
    /// Whether all leaves are in memory space 0.
    pub is_default_memory: bool,
}

/// The figures of every shape of `module` on `backend`, by id, with sub-byte types packed even where the layout
/// does not say so.
pub fn packed_costs(module: &Module, backend: Backend) -> Vec<ShapeCost> {
    let known = (backend == Backend::of_module(module)).then(|| module.shape_costs());
    costs_of(module.shapes(), backend, |id, array| {
        match known.and_then(|own| own.get(id.0 as usize)) {
            Some(cost) if !packing_matters(array, backend) => *cost,
            _ => array_cost(array, backend, true),
        }
    })
}

/// The figures of every shape of `module`, by id. With `packed`, sub-byte types are packed even
/// where the layout does not say so.
pub fn shape_costs(shapes: &ShapeTable, backend: Backend, packed: bool) -> Vec<ShapeCost> {
    costs_of(shapes, backend, |_, array| array_cost(array, backend, packed))
}

fn costs_of(
    shapes: &ShapeTable,
    backend: Backend,
    of_array: impl Fn(ShapeId, &ArrayShape<'_>) -> ShapeCost,
) -> Vec<ShapeCost> {
    let mut costs: Vec<ShapeCost> = Vec::with_capacity(shapes.len());
    for id in shapes.ids() {
        let cost = match shapes.get(id) {
            ShapeView::Array(array) => of_array(id, &array),
            ShapeView::Buffer(inner) => costs.get(inner.0 as usize).copied().unwrap_or_default(),
            ShapeView::Tuple(children) => {
                let length = children.len();
                let children = || children.iter().filter_map(|child| costs.get(child.0 as usize));
                let leaves = children().try_fold(0i64, |sum, child| {
                    (child.leaves >= 0).then(|| sum.checked_add(child.leaves))?
                });
                ShapeCost {
                    size: backend.table_bytes(length),
                    leaves: leaves.unwrap_or(-1),
                    elements: 0,
                    memory_space: 0,
                    is_tuple: true,
                    is_bound: children().any(|child| child.is_bound),
                    is_default_memory: children().all(|child| child.is_default_memory),
                }
            }
        };
        costs.push(cost);
    }
    costs
}

/// Sizes of all shapes if layouts did not pack elements; None if no layout packs elements.
pub fn unpacked_sizes(shapes: &ShapeTable, costs: &[ShapeCost]) -> Option<Vec<i64>> {
    let packing = |id: ShapeId| {
        let array = shapes.array(id)?;
        let layout = array.layout.filter(|layout| layout.element_bits > 0)?;
        let bytes = i64::from(array.element_type.storage_bits() / 8);
        (layout.element_bits > 0).then(|| array.elements().map(|n| (n, bytes)))?
    };
    shapes.ids().any(|id| packing(id).is_some()).then(|| {
        let size = |id: ShapeId| match packing(id) {
            Some((elements, bytes)) => {
                i64::try_from(elements).ok().and_then(|n| n.checked_mul(bytes)).unwrap_or(-1)
            }
            None => costs[id.0 as usize].size,
        };
        shapes.ids().map(size).collect()
    })
}

fn array_cost(array: &ArrayShape<'_>, backend: Backend, packed: bool) -> ShapeCost {
    let size = array_size(array, backend, packed).unwrap_or(-1);
    let space = array.layout.map_or(0, |layout| layout.memory_space);
    let elements = array.elements().and_then(|count| i64::try_from(count).ok()).unwrap_or(-1);
    ShapeCost {
        size,
        leaves: size,
        elements,
        memory_space: u8::try_from(space).unwrap_or(u8::MAX),
        is_tuple: false,
        is_bound: array.dimensions().any(|size| !matches!(size, Dimension::Static(_))),
        is_default_memory: space == 0,
    }
}

/// The memory spaces of synchronisation flags and scalars on TPU.
const FLAG_SPACES: [i64; 2] = [2, 4];
/// Measured: libtpu's size of an untiled array in `FLAG_SPACES`, and of an untiled scalar in any
/// space.
const UNTILED_BYTES: i64 = 4096;

/// Whether libtpu gives `array` a slot of `UNTILED_BYTES`.
fn is_place(array: &ArrayShape<'_>, backend: Backend) -> bool {
    let is_small = |layout: &Layout| {
        let is_small = array.rank() == 0 || FLAG_SPACES.contains(&layout.memory_space);
        layout.tiles.is_empty() && is_small
    };
    backend == Backend::Tpu && array.layout.map_or(array.rank() == 0, is_small)
}

/// Whether the size of `array` may depend on whether sub-byte types are packed.
fn packing_matters(array: &ArrayShape<'_>, backend: Backend) -> bool {
    let element = array.element_type;
    element.bits() != element.storage_bits() || is_place(array, backend)
}

fn array_size(array: &ArrayShape<'_>, backend: Backend, packed: bool) -> Option<i64> {
    match array.element_type {
        ElementType::Token => return Some(0),
        // A placeholder of a fragment has no size, as any array without a bound.
        ElementType::Opaque => return array.elements().map(|_| 8),
        _ => {}
    }
    // With `packed`, only the actual bytes count: the rest of the slot causes no traffic.
    if !packed && is_place(array, backend) {
        return Some(UNTILED_BYTES);
    }
    let bytes = part_size(array, backend, packed, |index| array.dimension(index)?.bound())?;
    let is_dynamic = array.dimensions().any(|size| !matches!(size, Dimension::Static(_)));
    let metadata = if is_dynamic { 4 * array.rank() as i64 } else { 0 };
    bytes.checked_add(metadata)
}

/// Bytes of a part of `array` whose sizes are `dimension`, stored as an array of its own.
fn part_size(
    array: &ArrayShape<'_>,
    backend: Backend,
    packed: bool,
    dimension: impl Fn(usize) -> Option<i64>,
) -> Option<i64> {
    let bits = match array.layout {
        Some(layout) if layout.element_bits > 0 => u64::try_from(layout.element_bits).ok()?,
        _ if packed && array.element_type != ElementType::Pred => {
            u64::from(array.element_type.bits())
        }
        _ => u64::from(array.element_type.storage_bits()),
    };
    let elements = match array.layout {
        Some(layout) if backend == Backend::Tpu && !layout.tiles.is_empty() => {
            tiled_elements(array.rank(), layout, dimension)?
        }
        _ => (0..array.rank()).try_fold(1u128, |product, index| {
            product.checked_mul(u128::try_from(dimension(index)?).ok()?)
        })?,
    };
    i64::try_from(elements.checked_mul(u128::from(bits))?.div_ceil(8)).ok()
}

/// Bytes of a part of `array` whose sizes are `sizes`: padded to whole tiles, and without padding.
pub fn part_sizes(
    array: &ArrayShape<'_>,
    sizes: &[i64],
    backend: Backend,
    packed: bool,
) -> Option<(i64, i64)> {
    let of = |backend| part_size(array, backend, packed, |index| sizes.get(index).copied());
    Some((of(backend)?, of(Backend::Cpu)?))
}

/// Elements with the minor dimensions rounded up to the first tile; if the tile has more dimensions
/// than the array, leading dimensions are 1. Further tiles only reorder elements within the first
/// tile.
fn tiled_elements(
    rank: usize,
    layout: &Layout,
    size_of: impl Fn(usize) -> Option<i64>,
) -> Option<u128> {
    let tile = layout.tiles.first()?;
    let is_complete = layout.minor_to_major.len() == rank;
    let mut product = 1u128;
    // A `*` merges its dimension into the next minor one before rounding.
    let mut joined = 1u64;
    for position in 0..rank.max(tile.len()) {
        // Positions count from the slowest-varying dimension.
        let size = match (position + rank).checked_sub(tile.len().max(rank)) {
            Some(major) => {
                let physical = rank - 1 - major;
                let dimension = if is_complete {
                    usize::try_from(*layout.minor_to_major.get(physical)?).ok()?
                } else {
                    major
                };
                u64::try_from(size_of(dimension)?).ok()?
            }
            None => 1,
        };
        let size = size.checked_mul(std::mem::replace(&mut joined, 1))?;
        let tile = (position + tile.len()).checked_sub(tile.len().max(rank)).map(|at| tile[at]);
        let padded = match tile {
            None => size,
            Some(i64::MIN) => {
                joined = size;
                continue;
            }
            Some(tile) => {
                let tile = u64::try_from(tile).ok().filter(|tile| *tile > 0)?;
                size.div_ceil(tile).checked_mul(tile)?
            }
        };
        product = product.checked_mul(u128::from(padded))?;
    }
    product = product.checked_mul(u128::from(joined))?;
    match u128::try_from(layout.tail_padding_alignment) {
        Ok(alignment) if alignment > 1 => product.div_ceil(alignment).checked_mul(alignment),
        _ => Some(product),
    }
}
