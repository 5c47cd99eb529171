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

    /// The block if it lived from its first beginning to its last end.
    fn merged(&self) -> Block {
        let ends = self.lives.first().zip(self.lives.last());
        let lives = ends.map(|(first, last)| (first.0, last.1)).into_iter().collect();
        Block { bytes: self.bytes, lives, first_life: self.first_life }
    }

    fn span(&self) -> i64 {
        let ends = (self.lives.first(), self.lives.last());
        let (Some(first), Some(last)) = ends else { return 0 };
        i64::from(last.1) - i64::from(first.0)
    }
}

/// Bytes of the heap that holds `blocks` at multiples of `alignment`, packed with care if it has more than
/// `most` bytes otherwise; None if the size exceeds 64 bits or one of the three placements takes more than
/// `MOST_VISITS` comparisons.
pub(super) fn packed(blocks: &[Block], alignment: i64, most: i64) -> Option<i64> {
    let mut order: Vec<usize> =
        (0..blocks.len()).filter(|block| blocks[*block].bytes > 0).collect();
    let merged: Vec<Block> = blocks.iter().map(Block::merged).collect();
    order.sort_by_key(|block| (merged[*block].lives.first(), -blocks[*block].bytes, *block));
    let fast = place_all(&merged, &order, alignment)?;
    if fast <= most {
        return Some(fast);
    }
    order.sort_by_key(|block| (-blocks[*block].bytes, Reverse(blocks[*block].first_life), *block));
    let by_size = place_all(blocks, &order, alignment)?;
    order.sort_by_key(|block| (-blocks[*block].span(), -blocks[*block].bytes, *block));
    let by_time = place_all(blocks, &order, alignment)?;
    Some(by_size.min(by_time))
}

fn place_all(blocks: &[Block], order: &[usize], alignment: i64) -> Option<i64> {
    let mut placed = Placed::new(blocks, order);
    let mut heap = 0i64;
    let mut taken: Vec<(i64, i64)> = Vec::new();
    for block in order {
        let bytes = blocks[*block].bytes;
        taken.clear();
        for life in &blocks[*block].lives {
            placed.overlapping(*life, &mut taken)?;
        }
        taken.sort_unstable();
        let offset = smallest_gap(&taken, bytes, alignment)?;
        let end = offset.checked_add(bytes)?;
        placed.place(*block, offset, end);
        heap = heap.max(end);
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
    positions: Vec<Vec<u32>>,
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
        let mut positions = vec![Vec::new(); blocks.len()];
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
