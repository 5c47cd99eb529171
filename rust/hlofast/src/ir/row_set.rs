//! A set of rows that numbers its members: one bit per row, and a count for every 64 rows.

use super::module::Row;

/// The rows with a property, such as those that call something.
#[derive(Clone, Debug, Default)]
pub(super) struct RowSet {
    /// By 64 rows: which of them are members, and the number of members before them.
    words: Vec<(u64, u32)>,
}

impl RowSet {
    /// The set of `members`, which ascend, of a module with `rows` rows.
    pub fn new(rows: usize, members: impl Iterator<Item = u32>) -> Self {
        let mut words = vec![(0u64, 0u32); rows.div_ceil(64)];
        for row in members {
            if let Some((bits, _)) = words.get_mut(row as usize / 64) {
                *bits |= 1 << (row % 64);
            }
        }
        let mut before = 0;
        for (bits, count) in &mut words {
            *count = before;
            before += bits.count_ones();
        }
        Self { words }
    }

    /// The number of members before `row`; None if `row` is not a member.
    #[inline]
    pub fn place(&self, row: Row) -> Option<usize> {
        let (bits, before) = *self.words.get(row.0 as usize / 64)?;
        let own = 1u64 << (row.0 % 64);
        (bits & own != 0).then(|| (before + (bits & (own - 1)).count_ones()) as usize)
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.words.capacity() * size_of::<(u64, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_members(members in proptest::collection::vec(any::<bool>(), 0..300)) {
            let rows = (0u32..).zip(&members).filter(|(_, is_member)| **is_member);
            let set = RowSet::new(members.len(), rows.map(|(row, _)| row));
            let mut before = 0;
            for (row, is_member) in (0u32..).zip(&members) {
                prop_assert_eq!(set.place(Row(row)), is_member.then_some(before));
                before += usize::from(*is_member);
            }
            prop_assert_eq!(set.place(Row(members.len() as u32 + 64)), None);
        }
    }
}
