//! Interned shapes. A shape is an id into the module's `ShapeTable`; equal structure means equal
//! id, whatever the spacing and comments of the text it came from.

use super::dtype::ElementType;
use crate::text::{Cursor, Span};
use hashbrown::HashMap;

/// The id of a shape in its module's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ShapeId(pub u32);

/// Code of a tuple in `ShapeTable::codes` (array codes are `ElementType as u8`).
pub const TUPLE: u8 = 254;
/// Code of a buffer, `b(f32[8])`.
pub const BUFFER: u8 = 255;

const NO_LAYOUT: u32 = u32::MAX;

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

    fn encode(self) -> i64 {
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

/// A layout: what stands in the braces after an array shape. Defaults are the value that means
/// "not written".
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
struct Record {
    /// Into `dimensions` (arrays) or `children` (tuples, buffers).
    start: u32,
    count: u32,
    layout: u32,
    leaves: u32,
    text: Span,
    code: u8,
}

/// The shapes of a module. Ids are dense, children have smaller ids than their parents.
#[derive(Clone, Debug, Default)]
pub struct ShapeTable {
    records: Vec<Record>,
    dimensions: Vec<i64>,
    children: Vec<ShapeId>,
    /// Parallel to `children`: the first leaf of the child within its parent.
    child_leaves: Vec<u32>,
    layouts: Vec<Layout>,
}

/// What a shape is, borrowed from its table.
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

    /// Bytes of the elements, unpadded: sub-byte types take whole bytes unless the layout gives
    /// `E(n)`, then they pack. None if unbounded or beyond 64 bits. `token` and `opaque` are 0.
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

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// All ids.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = ShapeId> + use<> {
        (0..self.records.len() as u32).map(ShapeId)
    }

    /// What `id` is.
    #[inline]
    pub fn get(&self, id: ShapeId) -> ShapeView<'_> {
        let record = &self.records[id.0 as usize];
        let range = record.start as usize..(record.start + record.count) as usize;
        match record.code {
            TUPLE => ShapeView::Tuple(&self.children[range]),
            BUFFER => ShapeView::Buffer(self.children[range.start]),
            code => ShapeView::Array(ArrayShape {
                element_type: ElementType::from_code(code).unwrap_or(ElementType::Opaque),
                codes: &self.dimensions[range],
                layout: self.layouts.get(record.layout as usize),
            }),
        }
    }

    /// The array shape `id`, if it is one.
    pub fn array(&self, id: ShapeId) -> Option<ArrayShape<'_>> {
        match self.get(id) {
            ShapeView::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The element shapes of tuple `id`, if it is one.
    #[inline]
    pub fn tuple(&self, id: ShapeId) -> Option<&[ShapeId]> {
        match self.get(id) {
            ShapeView::Tuple(children) => Some(children),
            _ => None,
        }
    }

    /// `ElementType as u8`, `TUPLE` or `BUFFER`.
    #[inline]
    pub fn code(&self, id: ShapeId) -> u8 {
        self.records[id.0 as usize].code
    }

    /// Number of array (or buffer, token, opaque) leaves; an empty tuple has none.
    #[inline]
    pub fn leaf_count(&self, id: ShapeId) -> u32 {
        self.records[id.0 as usize].leaves
    }

    /// For tuple `id`: the number of its first leaf that belongs to element `index`.
    pub fn first_leaf(&self, id: ShapeId, index: usize) -> Option<u32> {
        let record = &self.records[id.0 as usize];
        if record.code != TUPLE || index >= record.count as usize {
            return None;
        }
        self.child_leaves.get(record.start as usize + index).copied()
    }

    /// One text that spells this shape, as a span into the module's bytes (empty for shapes that
    /// were only inferred).
    pub fn text(&self, id: ShapeId) -> Span {
        self.records[id.0 as usize].text
    }

    /// The leaf shapes of `id` in order, without recursion.
    pub fn leaves(&self, id: ShapeId) -> Leaves<'_> {
        Leaves { table: self, stack: vec![id] }
    }

    /// Sum of the leaves' unpadded bytes; None if some leaf is unbounded or the sum overflows.
    pub fn logical_bytes(&self, id: ShapeId) -> Option<u64> {
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
        let same_table = std::ptr::eq(self, other);
        while let Some((a, b)) = stack.pop() {
            if same_table && a == b {
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
    stack: Vec<ShapeId>,
}

impl Iterator for Leaves<'_> {
    type Item = ShapeId;

    fn next(&mut self) -> Option<ShapeId> {
        while let Some(id) = self.stack.pop() {
            match self.table.get(id) {
                ShapeView::Tuple(children) => self.stack.extend(children.iter().rev()),
                _ => return Some(id),
            }
        }
        None
    }
}

/// Grows a `ShapeTable`, giving equal structures equal ids.
#[derive(Default)]
pub struct ShapeInterner {
    /// The table so far.
    pub table: ShapeTable,
    by_structure: hashbrown::HashTable<ShapeId>,
    layouts: HashMap<Layout, u32, BuildMix>,
    recent_layouts: Vec<RecentLayout>,
    recent_arrays: Vec<RecentArray>,
}

/// An array shape's text met a short while ago.
#[derive(Clone, Copy)]
struct RecentArray {
    /// Its first eight bytes, and which of them there are.
    head: u64,
    head_mask: u64,
    text: Span,
    shape: ShapeId,
}

/// The id of an interned layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutId(u32);

/// A layout text met a short while ago.
#[derive(Clone, Copy)]
struct RecentLayout {
    text: Span,
    layout: LayoutId,
    rank: usize,
}

/// Hasher state for structural keys: keyed once per process, so that collisions cannot be
/// prepared.
#[derive(Clone, Default)]
pub struct BuildMix(std::hash::RandomState);

impl std::hash::BuildHasher for BuildMix {
    type Hasher = std::hash::DefaultHasher;
    fn build_hasher(&self) -> Self::Hasher {
        self.0.build_hasher()
    }
}

impl ShapeInterner {
    /// Continues an existing table, so that new shapes can be added to a module's.
    pub fn from_table(table: ShapeTable) -> Self {
        let mut interner = Self { table, ..Self::default() };
        for (index, layout) in interner.table.layouts.iter().enumerate() {
            interner.layouts.insert(layout.clone(), index as u32);
        }
        for id in interner.table.ids() {
            let key = interner.hash_of(id);
            let Self { table, by_structure, .. } = &mut interner;
            by_structure.insert_unique(key, id, |other| structure_hash(table, *other));
        }
        interner
    }

    /// The id of an array shape. `text` may be empty.
    pub fn array(
        &mut self,
        element_type: ElementType,
        dimensions: &[Dimension],
        layout: Option<Layout>,
        text: Span,
    ) -> ShapeId {
        let layout = layout.map(|layout| self.layout(layout));
        self.array_with_layout(element_type, dimensions, layout, text)
    }

    /// As `array`, with a layout that is already interned.
    pub fn array_with_layout(
        &mut self,
        element_type: ElementType,
        dimensions: &[Dimension],
        layout: Option<LayoutId>,
        text: Span,
    ) -> ShapeId {
        let layout = layout.map_or(NO_LAYOUT, |layout| layout.0);
        let start = self.table.dimensions.len() as u32;
        self.table.dimensions.extend(dimensions.iter().map(|dimension| dimension.encode()));
        self.push(Record {
            start,
            count: dimensions.len() as u32,
            layout,
            leaves: 1,
            text,
            code: element_type as u8,
        })
    }

    /// The id of a tuple shape.
    pub fn tuple(&mut self, children: &[ShapeId], text: Span) -> ShapeId {
        let start = self.table.children.len() as u32;
        let mut leaves = 0u32;
        for child in children {
            self.table.child_leaves.push(leaves);
            leaves = leaves.saturating_add(self.table.leaf_count(*child));
        }
        self.table.children.extend_from_slice(children);
        let count = children.len() as u32;
        self.push(Record { start, count, layout: NO_LAYOUT, leaves, text, code: TUPLE })
    }

    /// The id of the buffer shape that holds array `inner`.
    pub fn buffer(&mut self, inner: ShapeId, text: Span) -> ShapeId {
        let start = self.table.children.len() as u32;
        self.table.children.push(inner);
        self.table.child_leaves.push(0);
        self.push(Record { start, count: 1, layout: NO_LAYOUT, leaves: 1, text, code: BUFFER })
    }

    /// The id of `source`'s shape `id`, copied with everything below it.
    pub fn import(&mut self, source: &ShapeTable, id: ShapeId) -> ShapeId {
        // Children precede parents, so an explicit stack of unfinished tuples suffices.
        let mut done: HashMap<ShapeId, ShapeId, BuildMix> = HashMap::default();
        let mut stack = vec![id];
        while let Some(&top) = stack.last() {
            if done.contains_key(&top) {
                stack.pop();
                continue;
            }
            let children: Vec<ShapeId> = match source.get(top) {
                ShapeView::Tuple(children) => children.to_vec(),
                ShapeView::Buffer(inner) => vec![inner],
                ShapeView::Array(_) => Vec::new(),
            };
            let missing: Vec<ShapeId> =
                children.iter().copied().filter(|child| !done.contains_key(child)).collect();
            if !missing.is_empty() {
                stack.extend(missing);
                continue;
            }
            let text = source.text(top);
            let new = match source.get(top) {
                ShapeView::Array(array) => {
                    let dimensions: Vec<Dimension> = array.dimensions().collect();
                    self.array(array.element_type, &dimensions, array.layout.cloned(), text)
                }
                ShapeView::Buffer(inner) => self.buffer(done[&inner], text),
                ShapeView::Tuple(_) => {
                    let mapped: Vec<ShapeId> = children.iter().map(|child| done[child]).collect();
                    self.tuple(&mapped, text)
                }
            };
            done.insert(top, new);
            stack.pop();
        }
        done[&id]
    }

    /// The finished table, without unused capacity.
    pub fn into_table(self) -> ShapeTable {
        let mut table = self.table;
        table.records.shrink_to_fit();
        table.dimensions.shrink_to_fit();
        table.children.shrink_to_fit();
        table.child_leaves.shrink_to_fit();
        table.layouts.shrink_to_fit();
        table
    }

    /// The id of `layout`.
    pub fn layout(&mut self, layout: Layout) -> LayoutId {
        if let Some(id) = self.layouts.get(&layout) {
            return LayoutId(*id);
        }
        let id = self.table.layouts.len() as u32;
        self.table.layouts.push(layout.clone());
        self.layouts.insert(layout, id);
        LayoutId(id)
    }

    /// The layout that the text at the cursor starts with, if one of the last few did too, and
    /// its number of dimensions; takes it. Layout texts end with their only closing brace, so
    /// none is a prefix of another.
    pub(crate) fn recent_layout(&mut self, cursor: &mut Cursor<'_>) -> Option<(LayoutId, usize)> {
        let rest = cursor.rest();
        let found = self.recent_layouts.iter().position(|known| {
            let length = known.text.len();
            rest.len() >= length && cursor.text().get(known.text.range()) == rest.get(..length)
        })?;
        let known = self.recent_layouts[found];
        self.recent_layouts.swap(found, found / 2);
        cursor.advance(known.text.len());
        Some((known.layout, known.rank))
    }

    /// The array shape that the text at the cursor starts with, if one of the last few did too
    /// and a comma or parenthesis follows; takes it.
    pub(crate) fn recent_array(&mut self, cursor: &mut Cursor<'_>) -> Option<ShapeId> {
        let rest = cursor.rest();
        let head = rest.first_chunk::<8>().map(|head| u64::from_le_bytes(*head))?;
        let found = self.recent_arrays.iter().position(|known| {
            let length = known.text.len();
            (head ^ known.head) & known.head_mask == 0
                && matches!(rest.get(length), Some(b',' | b')'))
                && cursor.text().get(known.text.range()) == rest.get(..length)
        })?;
        let known = self.recent_arrays[found];
        self.recent_arrays.swap(found, found / 2);
        cursor.advance(known.text.len());
        Some(known.shape)
    }

    /// Remembers that `text` spells array `shape`.
    pub(crate) fn remember_array(&mut self, bytes: &[u8], text: Span, shape: ShapeId) {
        let mut head = [0u8; 8];
        let length = bytes.len().min(8);
        head[..length].copy_from_slice(&bytes[..length]);
        let head_mask = if length == 8 { u64::MAX } else { (1u64 << (8 * length)) - 1 };
        let entry = RecentArray { head: u64::from_le_bytes(head), head_mask, text, shape };
        if self.recent_arrays.len() < 12 {
            self.recent_arrays.push(entry);
        } else if let Some(last) = self.recent_arrays.last_mut() {
            *last = entry;
        }
    }

    /// Remembers that `text` spells `layout`, which orders `rank` dimensions.
    pub(crate) fn remember_layout(&mut self, text: Span, layout: LayoutId, rank: usize) {
        let entry = RecentLayout { text, layout, rank };
        if self.recent_layouts.len() < 12 {
            self.recent_layouts.push(entry);
        } else if let Some(last) = self.recent_layouts.last_mut() {
            *last = entry;
        }
    }

    fn hash_of(&self, id: ShapeId) -> u64 {
        structure_hash(&self.table, id)
    }

    /// Interns the record whose contents were just appended; drops them again if it is known.
    fn push(&mut self, record: Record) -> ShapeId {
        let id = ShapeId(self.table.records.len() as u32);
        self.table.records.push(record);
        let hash = self.hash_of(id);
        let Self { table, by_structure, .. } = self;
        let known = by_structure.find(hash, |other| same_structure(table, *other, id)).copied();
        if let Some(known) = known {
            table.records.pop();
            if record.code >= TUPLE {
                table.children.truncate(record.start as usize);
                table.child_leaves.truncate(record.start as usize);
            } else {
                table.dimensions.truncate(record.start as usize);
            }
            let text = &mut table.records[known.0 as usize].text;
            if text.is_empty() {
                *text = record.text;
            }
            return known;
        }
        by_structure.insert_unique(hash, id, |other| structure_hash(table, *other));
        id
    }
}

fn structure_hash(table: &ShapeTable, id: ShapeId) -> u64 {
    let record = &table.records[id.0 as usize];
    let range = record.start as usize..(record.start + record.count) as usize;
    let mut hash = hash_seed() ^ (u64::from(record.code) << 32 | u64::from(record.layout));
    let mut mix = |value: u64| {
        let product = u128::from(hash ^ value) * 0x9e37_79b9_7f4a_7c15_u128;
        hash = (product as u64) ^ ((product >> 64) as u64);
    };
    mix(u64::from(record.count));
    if record.code >= TUPLE {
        table.children[range].iter().for_each(|child| mix(u64::from(child.0) + 1));
    } else {
        table.dimensions[range].iter().for_each(|dimension| mix(*dimension as u64));
    }
    hash
}

fn same_structure(table: &ShapeTable, a: ShapeId, b: ShapeId) -> bool {
    let (a, b) = (&table.records[a.0 as usize], &table.records[b.0 as usize]);
    if (a.code, a.layout, a.count) != (b.code, b.layout, b.count) {
        return false;
    }
    let range = |r: &Record| r.start as usize..(r.start + r.count) as usize;
    if a.code >= TUPLE {
        table.children[range(a)] == table.children[range(b)]
    } else {
        table.dimensions[range(a)] == table.dimensions[range(b)]
    }
}

/// A number drawn once per process, so that colliding inputs cannot be prepared.
pub fn hash_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    static SEED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SEED.get_or_init(|| std::hash::RandomState::new().build_hasher().finish() | 1)
}
