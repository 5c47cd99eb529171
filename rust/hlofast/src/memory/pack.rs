//! Packing of live ranges into a heap, as XLA places temporaries: what fragmentation adds to the
//! peak of live bytes.
//!
//! Follows `GlobalDecreasingSizeBestFitHeap` of XLA's `heap_simulator.cc`: buffers are placed one
//! after another, each into the smallest gap that is free throughout its life. Two orders are
//! tried, largest first and longest-lived first, and the smaller heap wins.

use std::cmp::Reverse;

/// A buffer to be placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    pub bytes: i64,
    /// First and last time of each life, ascending, without overlap.
    pub lives: Vec<(u32, u32)>,
    /// How long the first of the values in the block lives.
    first_life: u32,
}

impl Block {
    /// Sorts the lives and joins those without a gap.
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

/// Bytes of the heap that holds `blocks` at multiples of `alignment`; None if that exceeds 64 bits
/// or takes more than `MOST_VISITS` comparisons.
pub(super) fn packed(blocks: &[Block], alignment: i64) -> Option<i64> {
    let mut order: Vec<usize> =
        (0..blocks.len()).filter(|block| blocks[*block].bytes > 0).collect();
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

/// The offset of the smallest gap between `taken` that holds `bytes`, the lowest of equal ones.
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

/// Lives of placed blocks, found by time: a tree over all lives in the order of their beginnings,
/// whose nodes hold the latest end of what is placed below them.
struct Placed {
    /// (beginning, end, block), ascending.
    lives: Vec<(u32, u32, usize)>,
    /// By life: offset and end of the block; empty until it is placed.
    chunks: Vec<(i64, i64)>,
    /// By block: its lives' positions.
    positions: Vec<Vec<u32>>,
    /// A binary tree in an array, leaves at `leaves..`; -1 without placed lives.
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

/// Real steps take some millions.
const MOST_VISITS: u64 = 400_000_000;
