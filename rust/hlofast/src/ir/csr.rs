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
        // By item: the last row that holds it, and how many do; then where the next such row goes.
        let mut state = vec![(NONE, 0u32); rows];
        let lists = || (0u32..).zip(offsets.windows(2));
        for (row, range) in lists() {
            for item in &items[range[0] as usize..range[1] as usize] {
                let (last, count) = &mut state[*item as usize];
                *count += u32::from(std::mem::replace(last, row) != row);
            }
        }
        let mut starts = Vec::with_capacity(rows + 1);
        let mut sum = 0;
        for (last, count) in &mut state {
            starts.push(sum);
            (*last, sum) = (NONE, sum + std::mem::replace(count, sum));
        }
        starts.push(sum);
        let mut users = vec![0u32; sum as usize];
        for (row, range) in lists() {
            for item in &items[range[0] as usize..range[1] as usize] {
                let (last, next) = &mut state[*item as usize];
                if std::mem::replace(last, row) != row {
                    users[*next as usize] = row;
                    *next += 1;
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
