//! Interned shapes. A shape is an id into the module's `ShapeTable`; equal structure means equal
//! id, whatever the spacing and comments of the text it came from.

use super::dtype::ElementType;
use super::intern::BuildMix;
use crate::text::Span;
use smallvec::{SmallVec, smallvec};

/// The id of a shape in its module's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ShapeId(pub u32);

/// Code of a tuple in `ShapeTable::codes` (array codes are `ElementType as u8`).
pub const TUPLE: u8 = 254;
/// Code of a buffer, `b(f32[8])`.
pub const BUFFER: u8 = 255;

pub(super) const NO_LAYOUT: u32 = u32::MAX;

/// One dimension of an array shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// A fixed size.
    Static(i64),
    /// `<=n`: dynamic with an upper bound.
    Bounded(i64),
    /// `?`: dynamic without a bound.
    Unbounded,
}

impl Dimension {
    /// The size or its upper bound; None without one.
    pub fn bound(self) -> Option<i64> {
        match self {
            Dimension::Static(size) | Dimension::Bounded(size) => Some(size),
            Dimension::Unbounded => None,
        }
    }

    pub(super) fn encode(self) -> i64 {
        match self {
            Dimension::Static(size) => size,
            Dimension::Bounded(size) => -1 - size.min(i64::MAX - 1),
            Dimension::Unbounded => i64::MIN,
        }
    }

    fn decode(code: i64) -> Self {
        match code {
            i64::MIN => Dimension::Unbounded,
            code if code < 0 => Dimension::Bounded(-1 - code),
            size => Dimension::Static(size),
        }
    }
}

/// The memory space of fast on-chip memory, as XLA for TPUs numbers it in layouts.
pub const FAST_SPACE: i64 = 1;
/// The memory space of the host, as XLA for TPUs numbers it in layouts.
pub const HOST_SPACE: i64 = 5;

/// A layout: the content of the braces after an array shape. The default of each field means "not
/// written".
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Dimension numbers from the fastest-varying to the slowest. Not validated, as in XLA.
    pub minor_to_major: Box<[i64]>,
    /// Tiles, outermost first; `*` (combine with the next minor dimension) is `i64::MIN`.
    pub tiles: Box<[Box<[i64]>]>,
    /// `L(n)`: tail padding alignment in elements, default 1.
    pub tail_padding_alignment: i64,
    /// `#(u32)`: index element type of legacy sparse layouts.
    pub index_type: Option<ElementType>,
    /// `*(u32)`: pointer element type of legacy sparse layouts.
    pub pointer_type: Option<ElementType>,
    /// `E(n)`: element size in bits, 0 = natural.
    pub element_bits: i64,
    /// `S(n)`: memory space, 0 = default.
    pub memory_space: i64,
    /// `SC(d:i,..)`: split dimension and indices.
    pub splits: Box<[(i64, Box<[i64]>)]>,
    /// `M(n)`: bytes of dynamic-shape metadata before the data.
    pub metadata_prefix_bytes: i64,
    /// Whether legacy dimension level types `D(..)` were written (they carry no meaning today).
    pub had_level_types: bool,
}

impl Layout {
    /// A layout that gives only the dimension order.
    pub fn with_order(minor_to_major: Box<[i64]>) -> Self {
        Self { minor_to_major, tail_padding_alignment: 1, ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Offset into `dimensions` (arrays) or `children` (tuples, buffers).
    pub(super) start: u32,
    pub(super) count: u32,
    pub(super) layout: u32,
    pub(super) leaves: u32,
    /// Leaves, tuples and buffers together.
    pub(super) nodes: u32,
    pub(super) text: Span,
    pub(super) code: u8,
}

/// The shapes of a module. Ids are dense, children have smaller ids than their parents.
#[derive(Clone, Debug, Default)]
pub struct ShapeTable {
    pub(super) records: Vec<Record>,
    pub(super) dimensions: Vec<i64>,
    pub(super) children: Vec<ShapeId>,
    /// Parallel to `children`: the first leaf of the child within its parent.
    pub(super) child_leaves: Vec<u32>,
    pub(super) layouts: Vec<Layout>,
}

/// A shape, borrowed from its table.
#[derive(Clone, Copy, Debug)]
pub enum ShapeView<'a> {
    /// An array.
    Array(ArrayShape<'a>),
    /// A tuple of the given shapes.
    Tuple(&'a [ShapeId]),
    /// A buffer that holds the given array.
    Buffer(ShapeId),
}

/// An array shape, borrowed from its table.
#[derive(Clone, Copy, Debug)]
pub struct ArrayShape<'a> {
    /// Element type.
    pub element_type: ElementType,
    codes: &'a [i64],
    /// Layout, if the text gives one.
    pub layout: Option<&'a Layout>,
}

impl<'a> ArrayShape<'a> {
    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.codes.len()
    }

    /// The dimensions, major first.
    pub fn dimensions(&self) -> impl ExactSizeIterator<Item = Dimension> + 'a {
        self.codes.iter().map(|code| Dimension::decode(*code))
    }

    /// Dimension `index`.
    pub fn dimension(&self, index: usize) -> Option<Dimension> {
        self.codes.get(index).map(|code| Dimension::decode(*code))
    }

    /// Whether both have the same element type and dimension sizes (dynamic flags and layouts
    /// are ignored: XLA's "compatible").
    pub fn is_compatible(&self, other: &ArrayShape<'_>) -> bool {
        self.element_type == other.element_type
            && self.codes.len() == other.codes.len()
            && self.dimensions().zip(other.dimensions()).all(|(a, b)| a.bound() == b.bound())
    }

    /// Number of elements, using upper bounds; None if a dimension has no bound or the product
    /// does not fit 64 bits.
    pub fn elements(&self) -> Option<u64> {
        if self.codes.contains(&0) {
            return Some(0);
        }
        self.dimensions().try_fold(1u64, |product, dimension| {
            product.checked_mul(u64::try_from(dimension.bound()?).ok()?)
        })
    }

    /// Bytes of the elements, unpadded: sub-byte types take whole bytes unless the layout packs
    /// them with `E(n)`. None if unbounded or beyond 64 bits; 0 for `token` and `opaque`.
    pub fn logical_bytes(&self) -> Option<u64> {
        let elements = self.elements()?;
        let bits = match self.layout {
            Some(layout) if layout.element_bits > 0 => u64::try_from(layout.element_bits).ok()?,
            _ => u64::from(self.element_type.storage_bits()),
        };
        u64::try_from((u128::from(elements) * u128::from(bits)).div_ceil(8)).ok()
    }
}

impl ShapeTable {
    /// Number of distinct shapes.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// All ids.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = ShapeId> + use<> {
        (0..self.records.len() as u32).map(ShapeId)
    }

    /// Shape `id`.
    #[inline]
    pub fn get(&self, id: ShapeId) -> ShapeView<'_> {
        let record = &self.records[id.0 as usize];
        let range = record.start as usize..(record.start + record.count) as usize;
        match record.code {
            TUPLE => ShapeView::Tuple(&self.children[range]),
            BUFFER => ShapeView::Buffer(self.children[range.start]),
            _ => ShapeView::Array(self.array_of(record)),
        }
    }

    #[inline]
    fn array_of(&self, record: &Record) -> ArrayShape<'_> {
        let range = record.start as usize..(record.start + record.count) as usize;
        ArrayShape {
            element_type: ElementType::from_code(record.code).unwrap_or(ElementType::Opaque),
            codes: &self.dimensions[range],
            layout: self.layouts.get(record.layout as usize),
        }
    }

    /// Shape `id` as an array; None for tuples and buffers.
    #[inline]
    pub fn array(&self, id: ShapeId) -> Option<ArrayShape<'_>> {
        // Not from `get`: few callers need more than one part of the array.
        let record = &self.records[id.0 as usize];
        (!matches!(record.code, TUPLE | BUFFER)).then(|| self.array_of(record))
    }

    /// The element shapes of tuple `id`; None if `id` is not a tuple.
    #[inline]
    pub fn tuple(&self, id: ShapeId) -> Option<&[ShapeId]> {
        let record = &self.records[id.0 as usize];
        let range = record.start as usize..(record.start + record.count) as usize;
        (record.code == TUPLE).then(|| &self.children[range])
    }

    /// The code of `id`: `ElementType as u8`, `TUPLE` or `BUFFER`.
    #[inline]
    pub fn code(&self, id: ShapeId) -> u8 {
        self.records[id.0 as usize].code
    }

    /// Number of array (or buffer, token, opaque) leaves; an empty tuple has none.
    #[inline]
    pub fn leaf_count(&self, id: ShapeId) -> u32 {
        self.records[id.0 as usize].leaves
    }

    /// Number of leaves, tuples and buffers, `id` itself included.
    #[inline]
    pub fn node_count(&self, id: ShapeId) -> u32 {
        self.records[id.0 as usize].nodes
    }

    /// For tuple `id`: the number of its first leaf that belongs to element `index`.
    pub fn first_leaf(&self, id: ShapeId, index: usize) -> Option<u32> {
        let record = &self.records[id.0 as usize];
        if record.code != TUPLE || index >= record.count as usize {
            return None;
        }
        self.child_leaves.get(record.start as usize + index).copied()
    }

    /// A text of this shape, as a span into the module's bytes; empty for shapes that were only
    /// inferred.
    pub fn text(&self, id: ShapeId) -> Span {
        self.records[id.0 as usize].text
    }

    /// The leaf shapes of `id` in order, without recursion.
    pub fn leaves(&self, id: ShapeId) -> Leaves<'_> {
        Leaves { table: self, stack: smallvec![id] }
    }

    /// Sum of the leaves' unpadded bytes; None if some leaf is unbounded or the sum overflows.
    pub fn logical_bytes(&self, id: ShapeId) -> Option<u64> {
        if let ShapeView::Array(array) = self.get(id) {
            return array.logical_bytes();
        }
        self.leaves(id).try_fold(0u64, |sum, leaf| {
            let bytes = match self.get(leaf) {
                ShapeView::Array(array) => array.logical_bytes()?,
                ShapeView::Buffer(inner) => self.array(inner)?.logical_bytes()?,
                ShapeView::Tuple(_) => 0,
            };
            sum.checked_add(bytes)
        })
    }

    /// `logical_bytes` of every shape, by id, in one pass (-1 = unknown).
    pub fn all_logical_bytes(&self) -> Vec<i64> {
        let mut bytes: Vec<i64> = Vec::with_capacity(self.len());
        for id in self.ids() {
            let value = match self.get(id) {
                ShapeView::Array(array) => {
                    array.logical_bytes().and_then(|b| i64::try_from(b).ok()).unwrap_or(-1)
                }
                ShapeView::Buffer(inner) => bytes[inner.0 as usize],
                ShapeView::Tuple(children) => children
                    .iter()
                    .try_fold(0i64, |sum, child| match bytes[child.0 as usize] {
                        -1 => None,
                        value => sum.checked_add(value),
                    })
                    .unwrap_or(-1),
            };
            bytes.push(value);
        }
        bytes
    }

    /// Whether two shapes, possibly of different tables, are compatible: same structure, element
    /// types and dimension sizes; layouts and dynamic flags are ignored.
    pub fn is_compatible(&self, a: ShapeId, other: &ShapeTable, b: ShapeId) -> bool {
        let mut stack = vec![(a, b)];
        // A shape may contain another many times, so each pair is compared once.
        let mut seen: hashbrown::HashSet<(ShapeId, ShapeId), BuildMix> = Default::default();
        let same_table = std::ptr::eq(self, other);
        while let Some((a, b)) = stack.pop() {
            if same_table && a == b || self.code(a) >= TUPLE && !seen.insert((a, b)) {
                continue;
            }
            match (self.get(a), other.get(b)) {
                (ShapeView::Array(x), ShapeView::Array(y)) if x.is_compatible(&y) => {}
                (ShapeView::Buffer(x), ShapeView::Buffer(y)) => stack.push((x, y)),
                (ShapeView::Tuple(x), ShapeView::Tuple(y)) if x.len() == y.len() => {
                    stack.extend(x.iter().copied().zip(y.iter().copied()));
                }
                _ => return false,
            }
        }
        true
    }

    /// Bytes this table holds on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>()
            + self.dimensions.capacity() * 8
            + self.children.capacity() * 4
            + self.child_leaves.capacity() * 4
            + self.layouts.capacity() * size_of::<Layout>()
            + self
                .layouts
                .iter()
                .map(|layout| {
                    (layout.minor_to_major.len() + layout.tiles.len() * 2) * 8
                        + layout.tiles.iter().map(|tile| tile.len() * 8).sum::<usize>()
                })
                .sum::<usize>()
    }
}

/// Iterator over the leaves of a shape.
pub struct Leaves<'a> {
    table: &'a ShapeTable,
    stack: SmallVec<[ShapeId; 4]>,
}

impl Iterator for Leaves<'_> {
    type Item = ShapeId;

    fn next(&mut self) -> Option<ShapeId> {
        while let Some(id) = self.stack.pop() {
            match self.table.get(id) {
                ShapeView::Tuple(children) => self.stack.extend(children.iter().rev().copied()),
                _ => return Some(id),
            }
        }
        None
    }
}
