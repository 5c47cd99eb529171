//! Name tables: open addressing over spans of the text, confirmed by comparing bytes.

use crate::text::is_identifier_byte;

/// Random hash keys, drawn once per process, so that nobody can craft colliding names.
#[derive(Clone, Copy)]
pub(super) struct HashKeys(u64, u64);

impl HashKeys {
    pub fn new() -> Self {
        let seed = crate::ir::intern::hash_seed();
        Self(seed, seed.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    #[inline(always)]
    fn fold(a: u64, b: u64) -> u64 {
        let product = u128::from(a) * u128::from(b);
        (product as u64) ^ ((product >> 64) as u64)
    }

    /// A 32-bit hash of `text[start..start + length]`.
    #[inline(always)]
    pub fn hash(self, text: &[u8], start: usize, length: usize) -> u32 {
        if length <= 16 {
            let (low, high) = load16(text, start, length);
            let hash = Self::fold(low ^ self.0, high ^ self.1 ^ (length as u64));
            return (hash >> 16) as u32 ^ hash as u32;
        }
        self.hash_long(text, start, length)
    }

    fn hash_long(self, text: &[u8], start: usize, length: usize) -> u32 {
        let Some(bytes) = text.get(start..start + length) else { return 0 };
        let mut hash = self.0 ^ length as u64;
        let mut chunks = bytes.chunks_exact(16);
        for chunk in &mut chunks {
            let (low, high) = halves(chunk);
            hash = Self::fold(low ^ hash, high ^ self.1);
        }
        if let Some(last) = bytes.last_chunk::<16>() {
            let (low, high) = halves(last);
            hash = Self::fold(low ^ hash, high ^ self.1);
        }
        (hash >> 16) as u32 ^ hash as u32
    }
}

#[inline(always)]
fn halves(chunk: &[u8]) -> (u64, u64) {
    let word = |from: usize| {
        chunk
            .get(from..from + 8)
            .and_then(|b| b.first_chunk())
            .map_or(0, |b| u64::from_le_bytes(*b))
    };
    (word(0), word(8))
}

const LOW_MASKS: [u64; 17] = {
    let mut masks = [u64::MAX; 17];
    let mut i = 0;
    while i < 8 {
        masks[i] = (1u64 << (8 * i)) - 1;
        i += 1;
    }
    masks
};

const HIGH_MASKS: [u64; 17] = {
    let mut masks = [0u64; 17];
    let mut i = 9;
    while i < 16 {
        masks[i] = (1u64 << (8 * (i - 8))) - 1;
        i += 1;
    }
    masks[16] = u64::MAX;
    masks
};

/// The first `length` (at most 16) bytes from `start` as two words, zero-padded.
#[inline(always)]
fn load16(text: &[u8], start: usize, length: usize) -> (u64, u64) {
    let masks = (LOW_MASKS[length.min(16)], HIGH_MASKS[length.min(16)]);
    if let Some(chunk) = text.get(start..).and_then(|rest| rest.first_chunk::<16>()) {
        let (low, high) = halves(chunk);
        return (low & masks.0, high & masks.1);
    }
    let mut padded = [0u8; 16];
    for (to, from) in padded.iter_mut().zip(text.iter().skip(start).take(length)) {
        *to = *from;
    }
    halves(&padded)
}

/// Whether `length` bytes at `a` and `b` are equal.
#[inline(always)]
pub(super) fn equal(text: &[u8], a: usize, b: usize, length: usize) -> bool {
    if length <= 16 {
        return load16(text, a, length) == load16(text, b, length);
    }
    let (Some(x), Some(y)) = (text.get(a..a + length), text.get(b..b + length)) else {
        return false;
    };
    if length <= 32
        && let (Some(x0), Some(y0)) = (x.first_chunk::<16>(), y.first_chunk::<16>())
        && let (Some(x1), Some(y1)) = (x.last_chunk::<16>(), y.last_chunk::<16>())
    {
        return (u128::from_le_bytes(*x0) ^ u128::from_le_bytes(*y0))
            | (u128::from_le_bytes(*x1) ^ u128::from_le_bytes(*y1))
            == 0;
    }
    x == y
}

/// The location of an item's name.
pub(super) trait Names {
    /// Start and length of the name of item `id`.
    fn name(&self, text: &[u8], id: u32) -> (usize, usize);
}

/// Instruction names: the columns themselves.
pub(super) struct InstructionNames<'a> {
    pub starts: &'a [u32],
    pub lengths: &'a [u8],
}

impl Names for InstructionNames<'_> {
    #[inline(always)]
    fn name(&self, text: &[u8], id: u32) -> (usize, usize) {
        let start = self.starts.get(id as usize).copied().unwrap_or(0) as usize;
        let length = self.lengths.get(id as usize).copied().unwrap_or(0);
        (start, if length < 255 { length as usize } else { long_name(text, start) })
    }
}

#[cold]
fn long_name(text: &[u8], start: usize) -> usize {
    text.iter().skip(start).take_while(|byte| is_identifier_byte(**byte)).count()
}

/// A list of (start, length) pairs, indexed by id.
impl Names for [(u32, u32)] {
    #[inline(always)]
    fn name(&self, _text: &[u8], id: u32) -> (usize, usize) {
        self.get(id as usize).map_or((0, 0), |(start, length)| (*start as usize, *length as usize))
    }
}

const SMALL: usize = 128;
/// The number of slots from which a table no longer fits the second-level cache.
const LARGE: usize = 1 << 16;

/// The names in one scope. A slot holds a 32-bit hash and id + 1; 0 means empty.
pub(super) struct Scope {
    slots: Vec<u64>,
    mask: usize,
    count: usize,
}

impl Scope {
    pub fn new() -> Self {
        Self { slots: vec![0; SMALL], mask: SMALL - 1, count: 0 }
    }

    /// Removes all names.
    pub fn clear(&mut self) {
        self.count = 0;
        self.mask = SMALL - 1;
        self.slots.truncate(SMALL);
        self.slots.fill(0);
    }

    /// Whether the table has outgrown the caches, so that prefetching slots pays off.
    #[inline(always)]
    pub fn is_large(&self) -> bool {
        self.mask >= LARGE
    }

    /// The slot at which a search for `hash` starts.
    #[inline(always)]
    pub fn slot(&self, hash: u32) -> Option<&u64> {
        self.slots.get(hash as usize & self.mask)
    }

    /// The item named `text[start..start + length]`.
    #[inline(always)]
    pub fn find<N: Names + ?Sized>(
        &self,
        names: &N,
        text: &[u8],
        (start, length): (usize, usize),
        hash: u32,
    ) -> Option<u32> {
        let mut at = hash as usize & self.mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            if (slot >> 32) as u32 == hash {
                let id = slot as u32 - 1;
                let (other, other_length) = names.name(text, id);
                if other_length == length && equal(text, other, start, length) {
                    return Some(id);
                }
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Adds item `id` named `text[start..start + length]`; returns the existing item if the name is
    /// taken.
    #[inline(always)]
    pub fn insert<N: Names + ?Sized>(
        &mut self,
        names: &N,
        text: &[u8],
        (start, length): (usize, usize),
        hash: u32,
        id: u32,
    ) -> Option<u32> {
        let mut at = hash as usize & self.mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                break;
            }
            if (slot >> 32) as u32 == hash {
                let known = slot as u32 - 1;
                let (other, other_length) = names.name(text, known);
                if other_length == length && equal(text, other, start, length) {
                    return Some(known);
                }
            }
            at = (at + 1) & self.mask;
        }
        self.slots[at] = u64::from(hash) << 32 | u64::from(id + 1);
        self.count += 1;
        if self.count * 3 > self.mask * 2 {
            self.grow();
        }
        None
    }

    /// Adds all items of `other` with `base` added to their ids; None if a name is taken. Names are
    /// only compared if their hashes are equal.
    pub fn insert_all<N: Names + ?Sized>(
        &mut self,
        names: &N,
        text: &[u8],
        other: &Scope,
        base: u32,
    ) -> Option<()> {
        // Inserting in slot order would cluster names at the start of a smaller table.
        while (self.count + other.count) * 3 > self.mask * 2 {
            self.grow();
        }
        for slot in other.slots.iter().filter(|slot| **slot != 0) {
            let (hash, id) = ((slot >> 32) as u32, *slot as u32 - 1 + base);
            let mut at = hash as usize & self.mask;
            while self.slots[at] != 0 {
                if (self.slots[at] >> 32) as u32 == hash {
                    let known = names.name(text, self.slots[at] as u32 - 1);
                    let name = names.name(text, id);
                    if known.1 == name.1 && equal(text, known.0, name.0, name.1) {
                        return None;
                    }
                }
                at = (at + 1) & self.mask;
            }
            self.slots[at] = u64::from(hash) << 32 | u64::from(id + 1);
        }
        self.count += other.count;
        Some(())
    }

    #[cold]
    fn grow(&mut self) {
        // Moving a large table costs a cache miss per name, so large tables grow faster.
        let size = (self.mask + 1) * if self.mask < LARGE / 8 { 2 } else { 4 };
        let fresh = vec![0; size];
        let old = std::mem::replace(&mut self.slots, fresh);
        self.mask = size - 1;
        for slot in old.into_iter().filter(|slot| *slot != 0) {
            let mut at = (slot >> 32) as usize & self.mask;
            while self.slots[at] != 0 {
                at = (at + 1) & self.mask;
            }
            self.slots[at] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_are_told_apart() {
        let keys = HashKeys::new();
        let mut text = Vec::new();
        let mut spans: Vec<(u32, u32)> = Vec::new();
        for length in 1..300u32 {
            for last in *b"xyz" {
                spans.push((text.len() as u32, length));
                text.extend(std::iter::repeat_n(b'a', length as usize - 1));
                text.push(last);
            }
        }
        let mut scope = Scope::new();
        for round in 0..2 {
            for (id, (start, length)) in spans.iter().enumerate() {
                let at = (*start as usize, *length as usize);
                let hash = keys.hash(&text, at.0, at.1);
                let known = scope.insert(&spans[..], &text, at, hash, id as u32);
                assert_eq!(known, (round == 1).then_some(id as u32));
                assert_eq!(scope.find(&spans[..], &text, at, hash), Some(id as u32));
            }
        }
        let half = |ids: std::ops::Range<usize>, base: u32| {
            let mut scope = Scope::new();
            for id in ids {
                let at = (spans[id].0 as usize, spans[id].1 as usize);
                let hash = keys.hash(&text, at.0, at.1);
                let id = id as u32 - base;
                let spans = &spans[base as usize..];
                assert_eq!(scope.insert(spans, &text, at, hash, id), None);
            }
            scope
        };
        let (mut joined, second) = (half(0..400, 0), half(400..spans.len(), 400));
        assert_eq!(joined.insert_all(&spans[..], &text, &second, 400), Some(()));
        for (id, (start, length)) in spans.iter().enumerate() {
            let at = (*start as usize, *length as usize);
            let hash = keys.hash(&text, at.0, at.1);
            assert_eq!(joined.find(&spans[..], &text, at, hash), Some(id as u32));
        }
        assert_eq!(joined.insert_all(&spans[..], &text, &second, 400), None);
        scope.clear();
        let hash = keys.hash(&text, 0, 1);
        assert_eq!(scope.find(&spans[..], &text, (0, 1), hash), None);
    }
}
