//! The memory that results and donated parameters open in XLA's buffer assignment, and when it is in
//! use.

/// When a value is live: its first and last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    pub start: u32,
    pub end: u32,
    pub value: u32,
}

/// Memory that stays allocated, and when it is in use.
struct Allocation {
    bytes: i64,
    /// Ascending; consecutive uses overlap in at most one step.
    uses: Vec<Use>,
}

/// The allocations of a program.
pub(super) struct Allocations {
    list: Vec<Allocation>,
    /// By block of 64 steps and by allocation: a bit for each step that a use goes on after. Uses that
    /// overlap in more than one step have a bit in common. They decide most tries.
    blocks: Vec<Vec<u64>>,
    /// How many more allocations have bits; all of those of most programs.
    room: usize,
    /// How many more allocations may be examined.
    tries: usize,
    /// The bits of the uses that are asked for.
    wanted: Vec<(usize, u64)>,
}

/// Bytes of bits; a program of 100,000 steps with 600 allocations takes all.
const MOST_BITS: usize = 8 << 20;

impl Use {
    /// The first and the last step as one number, which sorts faster.
    #[inline]
    pub fn pair(self) -> u64 {
        u64::from(self.start) << 32 | u64::from(self.end)
    }

    /// Calls `each` with the blocks of the steps that the use goes on after, and the bits of these steps.
    #[inline]
    fn each_block(self, mut each: impl FnMut(usize, u64)) {
        if self.start >= self.end {
            return;
        }
        let (from, to) = (self.start as usize, self.end as usize - 1);
        let (first, last) = (from / 64, to / 64);
        let (after, before) = (u64::MAX << (from % 64), u64::MAX >> (63 - to % 64));
        if first == last {
            return each(first, after & before);
        }
        each(first, after);
        (first + 1..last).for_each(|block| each(block, u64::MAX));
        each(last, before);
    }
}

impl Allocation {
    fn extend(&mut self, uses: &[Use]) {
        for new in uses {
            let at = self.uses.partition_point(|known| known < new);
            self.uses.insert(at, *new);
        }
    }

    /// Whether the allocation is free during `new`. `shares(operand, user)` tells whether two
    /// values may overlap in the step in which the first ends and the second begins.
    fn is_free(&self, new: Use, shares: impl Fn(u32, u32) -> bool) -> bool {
        let before = self.uses.partition_point(|known| known.start <= new.end);
        for known in self.uses[..before].iter().rev() {
            if known.end < new.start {
                break;
            }
            let is_in_place = if new.end == known.start {
                shares(new.value, known.value)
            } else {
                known.end == new.start && shares(known.value, new.value)
            };
            if !is_in_place {
                return false;
            }
        }
        true
    }
}

impl Allocations {
    /// No allocations of a program with `steps` steps, of which `tries` may be examined.
    pub fn new(steps: usize, tries: usize) -> Self {
        // Most programs have few allocations.
        const FEW: usize = 32;
        let blocks: Vec<Vec<u64>> = (0..steps / 64 + 1).map(|_| Vec::with_capacity(FEW)).collect();
        let room = MOST_BITS / 8 / blocks.len();
        Self { list: Vec::new(), blocks, room, tries, wanted: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Says for which uses the next calls ask.
    #[inline]
    pub fn ask(&mut self, uses: &[Use]) {
        self.wanted.clear();
        for alive in uses {
            alive.each_block(|block, bits| self.wanted.push((block, bits)));
        }
    }

    /// Whether a use that is asked for has a bit in common with allocation `index`.
    #[inline]
    fn is_met(&self, index: usize) -> bool {
        self.wanted.iter().any(|(block, bits)| {
            let used = self.blocks.get(*block).and_then(|block| block.get(index));
            used.is_some_and(|used| used & bits != 0)
        })
    }

    /// Whether allocation `index`, which has no bit in common with `uses`, is free during all of them
    /// and its bytes `fit`.
    fn takes(
        &self,
        index: usize,
        uses: &[Use],
        fit: impl Fn(i64) -> bool,
        shares: impl Fn(u32, u32) -> bool,
    ) -> bool {
        let allocation = &self.list[index];
        fit(allocation.bytes) && uses.iter().all(|alive| allocation.is_free(*alive, &shares))
    }

    /// Whether allocation `index` is free during all `uses`, which are asked for, and its bytes `fit`.
    #[inline]
    pub fn is_free(
        &mut self,
        index: usize,
        uses: &[Use],
        fit: impl Fn(i64) -> bool,
        shares: impl Fn(u32, u32) -> bool,
    ) -> bool {
        let Some(left) = self.tries.checked_sub(1) else { return false };
        self.tries = left;
        !self.is_met(index) && self.takes(index, uses, fit, shares)
    }

    /// The last allocation that is free during all `uses`, which are asked for, and whose bytes `fit`.
    #[inline]
    pub fn find_last(
        &mut self,
        uses: &[Use],
        fit: impl Fn(i64) -> bool,
        shares: impl Fn(u32, u32) -> bool,
    ) -> Option<usize> {
        let count = self.list.len();
        let last = count.saturating_sub(self.tries);
        let takes = |index: &usize| self.takes(*index, uses, &fit, &shares);
        let found = match self.wanted[..] {
            // Most values live shortly, within one block.
            [(block, bits)] => {
                let used = self.blocks.get(block).map_or(&[][..], Vec::as_slice);
                let is_met = |index: usize| used.get(index).is_some_and(|used| used & bits != 0);
                (last..count).rev().find(|index| !is_met(*index) && takes(index))
            }
            _ => (last..count).rev().find(|index| !self.is_met(*index) && takes(index)),
        };
        self.tries -= count - found.unwrap_or(last);
        found
    }

    pub fn open(&mut self, bytes: i64) -> usize {
        if let Some(left) = self.room.checked_sub(1) {
            self.room = left;
            self.blocks.iter_mut().for_each(|block| block.push(0));
        }
        // Most allocations hold many values, one after the other.
        const USUAL: usize = 16;
        self.list.push(Allocation { bytes, uses: Vec::with_capacity(USUAL) });
        self.list.len() - 1
    }

    #[inline]
    pub fn extend(&mut self, index: usize, uses: &[Use]) {
        self.list[index].extend(uses);
        for alive in uses {
            alive.each_block(|block, bits| {
                let block = self.blocks.get_mut(block);
                if let Some(used) = block.and_then(|block| block.get_mut(index)) {
                    *used |= bits;
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_have_bits_in_common_if_they_overlap_in_more_than_one_step() {
        let bits = |start: u32, end: u32| {
            let mut all = Vec::new();
            Use { start, end, value: 0 }.each_block(|block, bits| all.push((block, bits)));
            all
        };
        let ends = [0, 1, 2, 62, 63, 64, 65, 127, 128, 129, 200];
        let uses = || ends.iter().flat_map(|start| ends.iter().map(move |end| (*start, *end)));
        for (start, end) in uses().filter(|(start, end)| start <= end) {
            for (other, last) in uses().filter(|(start, end)| start <= end) {
                let overlaps = start.max(other) < end.min(last);
                let (own, other_bits) = (bits(start, end), bits(other, last));
                let is_met = own.iter().any(|(block, bits)| {
                    other_bits.iter().any(|(at, own)| at == block && bits & own != 0)
                });
                assert_eq!(is_met, overlaps, "{start}..{end}, {other}..{last}");
            }
        }
    }

    #[test]
    fn allocations_without_bits_are_tried_too() {
        let one = |start: u32, end: u32| Use { start, end, value: start };
        let mut few = Allocations { room: 1, ..Allocations::new(300, 100) };
        for uses in [[one(0, 10)], [one(5, 250)]] {
            let index = few.open(8);
            few.extend(index, &uses);
        }
        let mut find = |alive: Use| {
            few.ask(&[alive]);
            few.find_last(&[alive], |_| true, |_, _| false)
        };
        assert_eq!(find(one(260, 270)), Some(1));
        assert_eq!(find(one(20, 200)), Some(0));
        assert_eq!(find(one(4, 6)), None);
        assert_eq!(few.tries, 100 - 1 - 2 - 2);
    }
}
