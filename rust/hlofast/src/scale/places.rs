//! Every dimension of every array in a module gets a number.

use super::ScaleError;
use crate::ir::{Module, Row, ShapeView};

/// Most dimensions that are attributed. Shapes of tuples repeat, so their number is not bounded by
/// the length of the text.
const MOST: usize = 1 << 25;

/// The numbers of the dimensions of one array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub start: u32,
    pub rank: u32,
}

impl Slot {
    pub fn at(self, dimension: usize) -> Option<u32> {
        (dimension < self.rank as usize).then(|| self.start + dimension as u32)
    }

    pub fn dims(self) -> std::ops::Range<u32> {
        self.start..self.start + self.rank
    }

    pub fn len(self) -> usize {
        self.rank as usize
    }
}

/// Numbers and sizes of all dimensions.
pub(super) struct Places<'m> {
    module: &'m Module,
    /// By leaf: its first dimension; one entry more than leaves.
    starts: Vec<u32>,
    /// The size of each dimension; -1 without a fixed size.
    pub sizes: Vec<i64>,
}

impl<'m> Places<'m> {
    pub fn new(module: &'m Module) -> Result<Self, ScaleError> {
        let leaves = module.leaf_offsets().last().copied().unwrap_or(0);
        if leaves > MOST as u64 {
            return Err(ScaleError::TooLarge);
        }
        let mut starts = Vec::with_capacity(leaves as usize + 1);
        let mut sizes = Vec::new();
        starts.push(0);
        for row in module.rows() {
            for leaf in module.shapes().leaves(module.shape(row)) {
                let array = match module.shapes().get(leaf) {
                    ShapeView::Array(array) => Some(array),
                    ShapeView::Buffer(inner) => module.shapes().array(inner),
                    ShapeView::Tuple(_) => None,
                };
                let dims = array
                    .map(|array| array.dimensions().collect::<Vec<_>>())
                    .unwrap_or_default()
                    .into_iter();
                sizes.extend(dims.map(|dim| match dim {
                    crate::ir::Dimension::Static(size) => size,
                    _ => -1,
                }));
                starts.push(sizes.len() as u32);
            }
            if sizes.len() > MOST {
                return Err(ScaleError::TooLarge);
            }
        }
        Ok(Self { module, starts, sizes })
    }

    /// Number of leaves of `row`.
    pub fn leaves(&self, row: Row) -> usize {
        self.module.shapes().leaf_count(self.module.shape(row)) as usize
    }

    /// Array `leaf` of `row`.
    pub fn leaf(&self, row: Row, leaf: usize) -> Option<Slot> {
        if leaf >= self.leaves(row) {
            return None;
        }
        let first = *self.module.leaf_offsets().get(row.0 as usize)? as usize;
        let start = *self.starts.get(first + leaf)?;
        Some(Slot { start, rank: self.starts.get(first + leaf + 1)? - start })
    }

    /// The number of the array that has dimension `dim`.
    pub fn array_of(&self, dim: usize) -> usize {
        self.starts.partition_point(|start| (*start as usize) <= dim)
    }

    /// The array of `row`, which is not a tuple.
    pub fn array(&self, row: Row) -> Option<Slot> {
        (self.leaves(row) == 1).then(|| self.leaf(row, 0)).flatten()
    }

    pub fn size(&self, dim: u32) -> i64 {
        self.sizes.get(dim as usize).copied().unwrap_or(-1)
    }

    pub fn sizes(&self, slot: Slot) -> &[i64] {
        self.sizes.get(slot.start as usize..(slot.start + slot.rank) as usize).unwrap_or_default()
    }

    /// The dimensions of the array in the order of memory, major first.
    pub fn by_memory(&self, row: Row, slot: Slot) -> Vec<u32> {
        let layout = self.module.shapes().array(self.module.shape(row)).and_then(|a| a.layout);
        let order = layout.map(|layout| layout.minor_to_major.as_ref()).unwrap_or_default();
        let mut dims: Vec<u32> = Vec::with_capacity(slot.len());
        for dimension in order.iter().rev() {
            if let Some(dim) = usize::try_from(*dimension).ok().and_then(|d| slot.at(d)) {
                dims.push(dim);
            }
        }
        if dims.len() == slot.len() { dims } else { slot.dims().collect() }
    }
}
