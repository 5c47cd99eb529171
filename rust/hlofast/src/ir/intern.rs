//! Grows a shape table so that equal structures get equal ids, and remembers recent texts.

use super::dtype::ElementType;
use super::shape::{
    BUFFER, Dimension, Layout, NO_LAYOUT, Record, ShapeId, ShapeTable, ShapeView, TUPLE,
};
use crate::text::{Cursor, Span};
use hashbrown::HashMap;
use std::hash::BuildHasher;

/// Grows a `ShapeTable`, giving equal structures equal ids.
#[derive(Default)]
pub struct ShapeInterner {
    /// The table so far.
    pub table: ShapeTable,
    by_structure: hashbrown::HashTable<ShapeId>,
    /// Layout ids by layout.
    layouts: hashbrown::HashTable<u32>,
    /// Slots by the hash of the text; a slot with empty text is free.
    known_layouts: Vec<KnownLayout>,
    recent_arrays: Vec<RecentArray>,
    /// Address and length of the text that the spans of both caches refer to.
    text: (usize, usize),
}

/// An array shape's text seen recently.
#[derive(Clone, Copy)]
struct RecentArray {
    /// The text's first eight bytes, and a mask of the bytes that exist.
    head: u64,
    head_mask: u64,
    text: Span,
    shape: ShapeId,
}

/// Slots for layout texts seen before.
const KNOWN_LAYOUTS: usize = 256;
/// Longer layout texts are not cached.
const LONGEST_LAYOUT: usize = 128;

/// The id of an interned layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutId(u32);

/// A layout text seen before.
#[derive(Clone, Copy)]
struct KnownLayout {
    text: Span,
    layout: LayoutId,
    rank: usize,
}

/// Hasher state for structural keys, with a key drawn once per process, so that nobody can prepare
/// colliding inputs.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildMix;

impl BuildHasher for BuildMix {
    type Hasher = Mix;
    fn build_hasher(&self) -> Mix {
        let seed = hash_seed();
        Mix { hash: seed, key: seed.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }
}

/// Mixes words with multiplications that keep both halves of the product, as `hash_bytes` does.
pub struct Mix {
    hash: u64,
    key: u64,
}

impl Mix {
    #[inline]
    fn add(&mut self, word: u64) {
        let product = u128::from(self.hash ^ word) * u128::from(self.key);
        // The addition keeps a word that equals the hash from erasing the words before it.
        self.hash = ((product as u64) ^ ((product >> 64) as u64)).wrapping_add(self.key);
    }
}

impl std::hash::Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        self.add(hash_bytes(bytes));
    }

    fn write_u8(&mut self, value: u8) {
        self.add(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.add(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.add(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    fn finish(&self) -> u64 {
        let product = u128::from(self.hash) * u128::from(self.key);
        (product as u64) ^ ((product >> 64) as u64)
    }
}

impl ShapeInterner {
    /// Continues an existing table, so that new shapes can be added to a module's.
    pub fn from_table(table: ShapeTable) -> Self {
        let mut interner = Self { table, ..Self::default() };
        for id in 0..interner.table.layouts.len() {
            let hash = BuildMix.hash_one(&interner.table.layouts[id]);
            interner.remember_layout_id(hash, id as u32);
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

    /// Like `array`, with a layout that is already interned.
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
            nodes: 1,
            text,
            code: element_type as u8,
        })
    }

    /// The id of a tuple shape.
    pub fn tuple(&mut self, children: &[ShapeId], text: Span) -> ShapeId {
        let start = self.table.children.len() as u32;
        let (mut leaves, mut nodes) = (0u32, 1u32);
        for child in children {
            self.table.child_leaves.push(leaves);
            leaves = leaves.saturating_add(self.table.leaf_count(*child));
            nodes = nodes.saturating_add(self.table.node_count(*child));
        }
        self.table.children.extend_from_slice(children);
        let count = children.len() as u32;
        self.push(Record { start, count, layout: NO_LAYOUT, leaves, nodes, text, code: TUPLE })
    }

    /// The id of the buffer shape that holds array `inner`.
    pub fn buffer(&mut self, inner: ShapeId, text: Span) -> ShapeId {
        let start = self.table.children.len() as u32;
        self.table.children.push(inner);
        self.table.child_leaves.push(0);
        self.push(Record {
            start,
            count: 1,
            layout: NO_LAYOUT,
            leaves: 1,
            nodes: 2,
            text,
            code: BUFFER,
        })
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
        let hash = BuildMix.hash_one(&layout);
        let known = &self.table.layouts;
        if let Some(id) = self.layouts.find(hash, |id| known.get(*id as usize) == Some(&layout)) {
            return LayoutId(*id);
        }
        let id = known.len() as u32;
        self.table.layouts.push(layout);
        self.remember_layout_id(hash, id);
        LayoutId(id)
    }

    fn remember_layout_id(&mut self, hash: u64, id: u32) {
        let known = &self.table.layouts;
        let hash_of =
            |id: &u32| known.get(*id as usize).map_or(0, |layout| BuildMix.hash_one(layout));
        self.layouts.insert_unique(hash, id, hash_of);
    }

    /// Announces that a shape of `text` is read next. Clears caches that belong to another text,
    /// because they hold only spans.
    pub(crate) fn begin_text(&mut self, text: &[u8]) {
        let text = (text.as_ptr() as usize, text.len());
        if self.text != text {
            self.text = text;
            self.known_layouts.clear();
            self.recent_arrays.clear();
        }
    }

    /// Takes the layout at the cursor if its text is cached; returns it with its number of
    /// dimensions. A layout text ends with its only closing brace, so no layout text is a prefix of
    /// another.
    pub(crate) fn known_layout(&mut self, cursor: &mut Cursor<'_>) -> Option<(LayoutId, usize)> {
        let rest = cursor.rest();
        let window = rest.get(..rest.len().min(LONGEST_LAYOUT))?;
        let length = memchr::memchr(b'}', window)? + 1;
        let spelled = rest.get(..length)?;
        let known = self.known_layouts.get(hash_bytes(spelled) as usize % KNOWN_LAYOUTS)?;
        if known.text.len() != length || cursor.text().get(known.text.range()) != Some(spelled) {
            return None;
        }
        let layout_and_rank = (known.layout, known.rank);
        cursor.advance(length);
        Some(layout_and_rank)
    }

    /// Caches that `text`, with bytes `spelled`, is `layout`, which orders `rank` dimensions.
    pub(crate) fn remember_layout(
        &mut self,
        spelled: &[u8],
        text: Span,
        layout: LayoutId,
        rank: usize,
    ) {
        if self.known_layouts.is_empty() {
            let none = KnownLayout { text: Span::EMPTY, layout, rank };
            self.known_layouts.resize(KNOWN_LAYOUTS, none);
        }
        if let Some(slot) = self.known_layouts.get_mut(hash_bytes(spelled) as usize % KNOWN_LAYOUTS)
        {
            *slot = KnownLayout { text, layout, rank };
        }
    }

    /// Takes the array shape at the cursor if its text is one of the last few seen and a comma or
    /// parenthesis follows.
    pub(crate) fn recent_array(&mut self, cursor: &mut Cursor<'_>) -> Option<ShapeId> {
        let rest = cursor.rest();
        let head = rest.first_chunk::<8>().map(|head| u64::from_le_bytes(*head))?;
        let index = self.recent_arrays.iter().position(|known| {
            let length = known.text.len();
            (head ^ known.head) & known.head_mask == 0
                && matches!(rest.get(length), Some(b',' | b')'))
                && cursor.text().get(known.text.range()) == rest.get(..length)
        })?;
        let known = self.recent_arrays[index];
        self.recent_arrays.swap(index, index / 2);
        cursor.advance(known.text.len());
        Some(known.shape)
    }

    /// Caches that `text` spells array `shape`.
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

    fn hash_of(&self, id: ShapeId) -> u64 {
        structure_hash(&self.table, id)
    }

    /// Interns the record whose contents were just appended; removes them if the shape is known.
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

/// A number drawn once per process, so that nobody can prepare colliding inputs.
pub fn hash_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    static SEED: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    *SEED.get_or_init(|| std::hash::RandomState::new().build_hasher().finish() | 1)
}

/// A keyed hash of sixteen bytes at a time.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    let seed = hash_seed();
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        (product as u64) ^ ((product >> 64) as u64)
    };
    let words = |pair: &[u8; 16]| {
        let both = u128::from_le_bytes(*pair);
        (both as u64, (both >> 64) as u64)
    };
    let key = seed.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let (pairs, rest) = bytes.as_chunks::<16>();
    let mut hash = seed ^ bytes.len() as u64;
    for pair in pairs {
        let (low, high) = words(pair);
        hash = fold(low ^ hash, high ^ key);
    }
    // The remainder is read as the last sixteen bytes; shorter texts are padded.
    let mut padded = [0u8; 16];
    let last = match bytes.last_chunk::<16>() {
        Some(last) => last,
        None => {
            padded[..rest.len()].copy_from_slice(rest);
            &padded
        }
    };
    let (low, high) = words(last);
    fold(fold(low ^ hash, high ^ key), seed)
}
