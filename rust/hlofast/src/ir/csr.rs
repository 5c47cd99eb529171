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
        const NONE: u32 = u32::MAX;
        let mut last = vec![NONE; rows];
        let mut starts = vec![0u32; rows + 1];
        for (row, range) in offsets.windows(2).enumerate() {
            for item in &items[range[0] as usize..range[1] as usize] {
                if std::mem::replace(&mut last[*item as usize], row as u32) != row as u32 {
                    starts[*item as usize + 1] += 1;
                }
            }
        }
        for i in 0..rows {
            starts[i + 1] += starts[i];
        }
        let mut next = starts.clone();
        let mut users = vec![0u32; starts[rows] as usize];
        last.fill(NONE);
        for (row, range) in offsets.windows(2).enumerate() {
            for item in &items[range[0] as usize..range[1] as usize] {
                if std::mem::replace(&mut last[*item as usize], row as u32) != row as u32 {
                    users[next[*item as usize] as usize] = row as u32;
                    next[*item as usize] += 1;
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
