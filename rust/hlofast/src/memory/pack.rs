//! Packing of live ranges into a heap, as XLA places temporaries. The difference from the peak of
//! live bytes is fragmentation.
//!
//! Follows `GlobalDecreasingSizeBestFitHeap` of XLA's `heap_simulator.cc`: buffers are placed one
//! after another, each into the smallest gap that is free throughout its live range.
//!
//! libtpu first places them in the order in which they begin to live, and takes values that share a buffer
//! for one value that lives throughout (`kFastMerge`). Programs that would then leave less than about 2.5 GiB
//! of the device free (`spare` in `xla.rs`) are packed with care: largest first and longest-lived first, of
//! which the smaller heap is kept.
//! Found with libtpu 0.0.42; `benches/memory_accuracy.py` compares. XLA has `kFastMerge` since 2025, by the
//! date of its `free_chunks_manager.cc`; before, every program was packed with care.

use smallvec::SmallVec;
use std::cmp::Reverse;

/// A buffer to be placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    pub bytes: i64,
    /// First and last time of each live range, ascending, without overlap.
    pub lives: Vec<(u32, u32)>,
    /// Length of the live range of the block's first value.
    first_life: u32,
}

impl Block {
    /// Sorts the live ranges and joins adjacent ones.
    pub fn join_lives(&mut self) {
        self.lives.sort_unstable();
        self.first_life = self.lives.first().map_or(0, |life| life.1 - life.0);
        self.lives.dedup_by(|next, life| {
            let is_joined = next.0 <= life.1.saturating_add(1);
            if is_joined {
                life.1 = life.1.max(next.1);
            }
            is_joined
        });
    }

    fn span(&self) -> i64 {
        let ends = (self.lives.first(), self.lives.last());
        let (Some(first), Some(last)) = ends else { return 0 };
        i64::from(last.1) - i64::from(first.0)
    }
}

/// A block as libtpu first sees it: it lives from its first beginning to its last end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub bytes: i64,
    pub first: u32,
    pub last: u32,
}

/// Bytes of the heap that holds `spans`, which come in the order in which they are placed, that of their
/// beginnings, at multiples of `alignment`. None if the size exceeds 64 bits or more than `MOST_VISITS`
/// comparisons are needed.
pub(super) fn packed_in_turn(spans: &[Span], alignment: i64) -> Option<i64> {
    // Offset, aligned end and last time of what is in use, ascending. Nothing that is placed begins later than
    // what is placed next, so that what ended before is never met again.
    let mut used: Vec<(i64, i64, u32)> = Vec::new();
    let (mut heap, mut visits) = (0i64, 0u64);
    for span in spans {
        visits += used.len() as u64;
        if visits > MOST_VISITS {
            return None;
        }
        used.retain(|(_, _, last)| *last >= span.first);
        let mut best: Option<(i64, i64, usize)> = None;
        let mut end = 0i64;
        for (place, (offset, next, _)) in used.iter().enumerate() {
            let gap = offset - end;
            if gap >= span.bytes && best.is_none_or(|best| gap < best.0) {
                best = Some((gap, end, place));
            }
            end = *next;
        }
        let (offset, place) = best.map_or((end, used.len()), |best| (best.1, best.2));
        let end = offset.checked_add(span.bytes)?;
        heap = heap.max(end);
        used.insert(place, (offset, aligned(end, alignment)?, span.last));
    }
    Some(heap)
}

/// Bytes of the heap that holds `blocks` at multiples of `alignment`, packed with care; None if the size exceeds
/// 64 bits or one of the two placements takes more than `MOST_VISITS` comparisons.
pub(super) fn packed_with_care(blocks: &[Block], alignment: i64) -> Option<i64> {
    let mut order: Vec<usize> =
        (0..blocks.len()).filter(|block| blocks[*block].bytes > 0).collect();
    order.sort_by_key(|block| (-blocks[*block].bytes, Reverse(blocks[*block].first_life), *block));
    let by_size = place_all(blocks, &order, alignment, i64::MAX)?;
    order.sort_by_key(|block| (-blocks[*block].span(), -blocks[*block].bytes, *block));
    place_all(blocks, &order, alignment, by_size)
}

/// Bytes of the heap once the blocks are placed in this order; `most` if it has as many, whatever else there is
/// to place.
fn place_all(blocks: &[Block], order: &[usize], alignment: i64, most: i64) -> Option<i64> {
    let mut placed = Placed::new(blocks, order);
    let mut heap = 0i64;
    let mut taken: Vec<(i64, i64)> = Vec::new();
    for block in order {
        let bytes = blocks[*block].bytes;
        taken.clear();
        for life in &blocks[*block].lives {
            placed.overlapping(*life, &mut taken)?;
        }
        // Of two that begin at one offset, either may come first: no gap is between them.
        taken.sort_unstable_by_key(|own| own.0);
        let offset = smallest_gap(&taken, bytes, alignment)?;
        let end = offset.checked_add(bytes)?;
        placed.place(*block, offset, end);
        heap = heap.max(end);
        if heap >= most {
            return Some(most);
        }
    }
    Some(heap)
}

/// The offset of the smallest gap between `taken` that holds `bytes`; on a tie, the lowest.
fn smallest_gap(taken: &[(i64, i64)], bytes: i64, alignment: i64) -> Option<i64> {
    let mut best: Option<(i64, i64)> = None;
    let mut at = 0i64;
    for (offset, end) in taken {
        let gap = offset - at;
        if gap >= bytes && best.is_none_or(|best| gap < best.0) {
            best = Some((gap, at));
        }
        at = at.max(aligned(*end, alignment)?);
    }
    Some(best.map_or(at, |best| best.1))
}

/// The next multiple of `alignment`.
fn aligned(end: i64, alignment: i64) -> Option<i64> {
    let alignment = alignment.max(1);
    Some(end.checked_add(alignment - 1)? / alignment * alignment)
}

/// Live ranges of placed blocks, searchable by time: a tree over all live ranges, ordered by
/// beginning. Each node holds the latest end of the placed ranges below it.
struct Placed {
    /// (beginning, end, block), ascending.
    lives: Vec<(u32, u32, usize)>,
    /// By live range: offset and end of its block; empty until the block is placed.
    chunks: Vec<(i64, i64)>,
    /// By block: the positions of its live ranges.
    positions: Vec<SmallVec<[u32; 4]>>,
    /// A binary tree in an array, with leaves at `leaves..`; -1 where no range is placed.
    latest: Vec<i64>,
    leaves: usize,
    visits: u64,
}

impl Placed {
    fn new(blocks: &[Block], order: &[usize]) -> Self {
        let mut lives: Vec<(u32, u32, usize)> = Vec::new();
        for block in order {
            lives.extend(blocks[*block].lives.iter().map(|life| (life.0, life.1, *block)));
        }
        lives.sort_unstable();
        let mut positions = vec![SmallVec::new(); blocks.len()];
        for (position, life) in lives.iter().enumerate() {
            positions[life.2].push(position as u32);
        }
        let leaves = lives.len().next_power_of_two();
        let chunks = vec![(0, 0); lives.len()];
        Placed { lives, chunks, positions, latest: vec![-1; 2 * leaves], leaves, visits: 0 }
    }

    fn place(&mut self, block: usize, offset: i64, end: i64) {
        for position in &self.positions[block] {
            let position = *position as usize;
            self.chunks[position] = (offset, end);
            let last = i64::from(self.lives[position].1);
            let mut node = self.leaves + position;
            while node > 0 && self.latest[node] < last {
                self.latest[node] = last;
                node /= 2;
            }
        }
    }

    /// Appends the chunks in use at some time of `life`.
    fn overlapping(&mut self, life: (u32, u32), taken: &mut Vec<(i64, i64)>) -> Option<()> {
        let count = self.lives.partition_point(|known| known.0 <= life.1);
        let mut stack = vec![(1usize, 0usize, self.leaves)];
        while let Some((node, start, end)) = stack.pop() {
            if start >= count || self.latest[node] < i64::from(life.0) {
                continue;
            }
            self.visits += 1;
            if end - start == 1 {
                taken.push(self.chunks[start]);
            } else {
                let middle = start.midpoint(end);
                stack.extend([(2 * node, start, middle), (2 * node + 1, middle, end)]);
            }
        }
        (self.visits <= MOST_VISITS).then_some(())
    }
}

/// Real training steps take some millions of comparisons.
const MOST_VISITS: u64 = 400_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn one_pass_places_spans_where_the_tree_places_blocks(
            lives in proptest::collection::vec((0u32..200, 0u32..60, 1i64..100), 1..80)
        ) {
            let mut lives = lives;
            lives.sort_unstable();
            let span = |(first, length, bytes): &(u32, u32, i64)| {
                Span { bytes: *bytes, first: *first, last: first + length }
            };
            let spans: Vec<Span> = lives.iter().map(span).collect();
            let block = |own: &Span| {
                let lives = vec![(own.first, own.last)];
                Block { bytes: own.bytes, lives, first_life: own.last - own.first }
            };
            let blocks: Vec<Block> = spans.iter().map(block).collect();
            let order: Vec<usize> = (0..blocks.len()).collect();
            let placed = place_all(&blocks, &order, 16, i64::MAX);
            prop_assert!(placed.is_some());
            prop_assert_eq!(packed_in_turn(&spans, 16), placed);
        }
    }
}
