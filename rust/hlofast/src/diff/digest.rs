//! Hashes of the values that each row is computed from and of its uses.

use super::hash::Mixer;
use super::side::{Level, NONE, Side, callees};
use crate::ir::ComputationId;

/// Hashes of the rows of one module at one level.
pub(super) struct Digests {
    /// By row: the row and everything it is computed from.
    pub(super) below: Vec<u64>,
    /// By row: everything computed from the row within its computation, excluding the row itself.
    /// All rows that the root depends on have different hashes, because a path of operand numbers
    /// from the root leads to a single row.
    pub(super) above: Vec<u64>,
    /// By row: the row and all rows at most two edges away.
    pub(super) near: Vec<u64>,
    /// By computation: its root and all its rows, in any order.
    pub(super) computations: Vec<u64>,
}

impl Digests {
    pub(super) fn new(side: &Side<'_>, level: Level) -> Self {
        let count = side.module.row_count();
        let mut digests = Self {
            below: vec![0; count],
            above: vec![0; count],
            near: Vec::new(),
            computations: vec![0; side.module.computations().len()],
        };
        // The contents of called computations distinguish rows only at the level that compares
        // attributes.
        digests.look_down(side, side.labels(level), level == Level::Exact);
        digests.look_up(side, side.labels(level));
        let labels = side.labels(level);
        digests.near = around(side, labels, &around(side, labels, labels));
        digests
    }

    /// The hash of a row with everything below and above it.
    pub(super) fn both(&self, mixer: Mixer, row: u32) -> u64 {
        let of = |column: &[u64]| column.get(row as usize).copied().unwrap_or_default();
        let mut hash = mixer.start(8);
        hash.word(of(&self.below));
        hash.word(of(&self.above));
        hash.finish()
    }

    /// Like `both`, but also over everything below and above the neighbours: distinguishes repeated
    /// dead code.
    pub(super) fn refined(&self, side: &Side<'_>) -> Vec<u64> {
        let rows = 0..self.below.len() as u32;
        let labels: Vec<u64> = rows.clone().map(|row| self.both(side.mixer, row)).collect();
        let mut digests = Self {
            below: vec![0; labels.len()],
            above: vec![0; labels.len()],
            near: Vec::new(),
            computations: vec![0; self.computations.len()],
        };
        digests.look_down(side, &labels, false);
        digests.look_up(side, &labels);
        rows.map(|row| digests.both(side.mixer, row)).collect()
    }

    fn look_down(&mut self, side: &Side<'_>, labels: &[u64], with_callees: bool) {
        for ComputationId(id) in side.module.computation_post_order().iter().copied() {
            let mut sum = 0u64;
            for row in side.rows(id) {
                let mut hash = side.mixer.start(3);
                hash.word(labels.get(*row as usize).copied().unwrap_or_default());
                for operand in side.operands(*row) {
                    hash.word(self.below.get(*operand as usize).copied().unwrap_or_default());
                }
                if with_callees {
                    for (role, callee) in callees(side.module, *row) {
                        hash.bytes(role.as_bytes());
                        let callee = self.computations.get(callee as usize);
                        hash.word(callee.copied().unwrap_or_default());
                    }
                }
                let digest = hash.finish();
                sum = sum.wrapping_add(digest);
                if let Some(slot) = self.below.get_mut(*row as usize) {
                    *slot = digest;
                }
            }
            let root = side.module.computation(ComputationId(id)).root;
            let mut hash = side.mixer.start(4);
            hash.word(self.below.get(root as usize).copied().unwrap_or_default());
            hash.word(sum);
            if let Some(slot) = self.computations.get_mut(id as usize) {
                *slot = hash.finish();
            }
        }
    }

    fn look_up(&mut self, side: &Side<'_>, labels: &[u64]) {
        for computation in side.module.computations() {
            if let Some(slot) = self.above.get_mut(computation.root as usize) {
                *slot = side.mixer.start(13).finish();
            }
        }
        for row in side.order.iter().rev() {
            let above = self.above.get(*row as usize).copied().unwrap_or_default();
            let mut own = side.mixer.start(5);
            own.word(labels.get(*row as usize).copied().unwrap_or_default());
            own.word(above);
            for (index, operand) in side.operands(*row).iter().enumerate() {
                let mut hash = own;
                hash.word(index as u64);
                if let Some(slot) = self.above.get_mut(*operand as usize) {
                    // Hashes are added, because users have no order.
                    *slot = slot.wrapping_add(hash.finish());
                }
            }
        }
    }
}

/// The hash of each row combined with the hashes of its operands and users in `known`.
fn around(side: &Side<'_>, labels: &[u64], known: &[u64]) -> Vec<u64> {
    let of = |row: u32| known.get(row as usize).copied().unwrap_or_default();
    let mut around = Vec::with_capacity(labels.len());
    for (row, label) in labels.iter().enumerate() {
        let row = row as u32;
        let mut hash = side.mixer.start(6);
        hash.word(*label);
        side.operands(row).iter().for_each(|operand| hash.word(of(*operand)));
        hash.word(u64::from(NONE));
        let users = side.uses(row).iter().map(|(user, index)| {
            let mut use_ = side.mixer.start(7);
            use_.word(of(*user));
            use_.word(u64::from(*index));
            use_.finish()
        });
        hash.word(users.fold(u64::from(side.is_root(row)), u64::wrapping_add));
        around.push(hash.finish());
    }
    around
}
