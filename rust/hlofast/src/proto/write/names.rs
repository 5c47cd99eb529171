//! Names as XLA requires them: unique among all instructions of a module, and among all
//! computations.

use crate::ir::{ComputationId, Module, Row};
use crate::print::Names;
use std::collections::{HashMap, HashSet};

/// Names by the rows and computations of a module.
pub(super) struct UniqueNames<'m> {
    module: &'m Module,
    names: &'m Names,
    /// The names that had to change.
    rows: HashMap<Row, Vec<u8>>,
    computations: HashMap<ComputationId, Vec<u8>>,
}

impl<'m> UniqueNames<'m> {
    /// The first user of a name keeps the name; later users get numbered names.
    pub(super) fn new(module: &'m Module, names: &'m Names) -> UniqueNames<'m> {
        let ids = (0..module.computations().len() as u32).map(ComputationId);
        let rows = distinct(module.rows().map(|row| (row, names.row(module, row))));
        let computations = distinct(ids.map(|id| (id, names.computation(module, id))));
        UniqueNames { module, names, rows, computations }
    }

    pub(super) fn row(&self, row: Row) -> &[u8] {
        self.rows.get(&row).map_or_else(|| self.names.row(self.module, row), Vec::as_slice)
    }

    pub(super) fn computation(&self, id: ComputationId) -> &[u8] {
        let changed = self.computations.get(&id).map(Vec::as_slice);
        changed.unwrap_or_else(|| self.names.computation(self.module, id))
    }
}

/// New names for items that share a name with an earlier item.
fn distinct<'n, K: Copy + Eq + std::hash::Hash>(
    all: impl Iterator<Item = (K, &'n [u8])>,
) -> HashMap<K, Vec<u8>> {
    let mut taken: HashSet<Vec<u8>> = HashSet::new();
    let mut first: HashSet<&[u8]> = HashSet::new();
    let doubled: Vec<(K, &[u8])> = all.filter(|(_, name)| !first.insert(name)).collect();
    let mut counts: HashMap<&[u8], u64> = HashMap::new();
    let mut changed = HashMap::new();
    for (key, name) in doubled {
        let count = counts.entry(name).or_default();
        let fresh = loop {
            *count += 1;
            let candidate = [name, b".", count.to_string().as_bytes()].concat();
            if !first.contains(candidate.as_slice()) && taken.insert(candidate.clone()) {
                break candidate;
            }
        };
        changed.insert(key, fresh);
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_keeps_its_name() {
        let names: [&[u8]; 6] = [b"a", b"b", b"a", b"a.1", b"a", b"b"];
        let changed = distinct(names.into_iter().enumerate());
        let expected = [(2, b"a.2".to_vec()), (4, b"a.3".to_vec()), (5, b"b.1".to_vec())];
        assert_eq!(changed, HashMap::from(expected));
    }
}
