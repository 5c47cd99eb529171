//! Compressed lists: one flat column of items, and the offset at which each row's items begin.

/// Lists of `u32`, one per row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Csr {
    /// One entry more than rows.
    pub offsets: Vec<u32>,
    /// The items of all rows, in row order.
    pub items: Vec<u32>,
}

impl Csr {
    /// The list of `row`.
    #[inline]
    pub fn get(&self, row: u32) -> &[u32] {
        let i = row as usize;
        &self.items[self.offsets[i] as usize..self.offsets[i + 1] as usize]
    }

    /// Builds the lists from (row, item) pairs sorted by row.
    pub fn from_sorted(rows: usize, pairs: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        let mut items = Vec::new();
        offsets.push(0);
        for (row, item) in pairs {
            while offsets.len() <= row as usize {
                offsets.push(items.len() as u32);
            }
            items.push(item);
        }
        offsets.resize(rows + 1, items.len() as u32);
        Self { offsets, items }
    }

    /// For each item of `0..rows`, the rows whose list (`offsets`, `items`) holds it, ascending.
    /// A row that holds an item twice is listed once.
    pub fn transpose(offsets: &[u32], items: &[u32], rows: usize) -> Self {
        let lists = || {
            let lists = (0u32..).zip(offsets.windows(2));
            lists.map(|(row, range)| (row, &items[range[0] as usize..range[1] as usize]))
        };
        // By item: the last row that holds it, so that a row that holds it twice counts once. The second pass
        // inverts the bits of rows, and need not forget those of the first.
        let mut last = vec![u32::MAX; rows];
        // By item: how many rows hold it; then where the next such row goes.
        let mut next = vec![0u32; rows];
        for (row, list) in lists() {
            for item in list {
                let before = std::mem::replace(&mut last[*item as usize], row);
                next[*item as usize] += u32::from(before != row);
            }
        }
        let mut starts = Vec::with_capacity(rows + 1);
        let mut sum = 0;
        for count in &mut next {
            starts.push(sum);
            sum += std::mem::replace(count, sum);
        }
        starts.push(sum);
        let mut users = vec![0u32; sum as usize];
        for (row, list) in lists() {
            for item in list {
                if std::mem::replace(&mut last[*item as usize], !row) != !row {
                    let place = &mut next[*item as usize];
                    users[*place as usize] = row;
                    *place += 1;
                }
            }
        }
        Self { offsets: starts, items: users }
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        4 * (self.offsets.capacity() + self.items.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn transposes_lists_with_repeated_items(
            lists in proptest::collection::vec(proptest::collection::vec(0u32..12, 0..9), 0..40)
        ) {
            let pairs = (0u32..).zip(&lists);
            let pairs = pairs.flat_map(|(row, list)| list.iter().map(move |item| (row, *item)));
            let csr = Csr::from_sorted(lists.len(), pairs);
            let users = Csr::transpose(&csr.offsets, &csr.items, 12);
            for item in 0..12 {
                let holders = (0u32..).zip(&lists).filter(|(_, list)| list.contains(&item));
                let rows: Vec<u32> = holders.map(|(row, _)| row).collect();
                prop_assert_eq!(users.get(item), rows);
            }
        }
    }
}
