//! Chooses the value that a copy waits for: a value that is computed only shortly before the copy
//! is needed.
//!
//! In a scheduled module, this value is the latest operand of a late user that is computed before
//! the first late user, or else the last value computed before that user. In other modules, the
//! value is the deepest operand in the graph among the operands of late users and their followers,
//! and it must be deeper than the original value.

use super::Use;
use super::copyable::is_forwarding;
use crate::ir::{ComputationId, ElementKind, Flags, Module, Opcode, Row};
use std::collections::HashSet;

/// In a scheduled module: limit on the rows before the first late user that are searched.
const LONGEST_SEARCH: usize = 4096;

/// The lateness of values, and the places for copies, in one computation.
pub(super) struct Lateness<'a> {
    module: &'a Module,
    is_scheduled: bool,
    first_row: u32,
    end_row: u32,
    /// Position or depth of each row from `first_row`; a forwarding row takes the rank of its
    /// operand.
    ranks: Vec<u32>,
}

impl<'a> Lateness<'a> {
    pub fn new(module: &'a Module, id: ComputationId) -> Self {
        let rows = module.computation(id).rows();
        let is_scheduled = module.is_scheduled();
        let mut ranks = vec![0u32; rows.len()];
        for row in module.post_order(id) {
            let local = (row - rows.start) as usize;
            let operands = module.operands(Row(row)).iter();
            let latest = operands
                .filter_map(|operand| ranks.get(operand.wrapping_sub(rows.start) as usize))
                .copied()
                .max();
            let opcode = module.opcode(Row(row));
            let rank = match (opcode, latest) {
                (Opcode::Parameter | Opcode::Constant | Opcode::Iota, _) => 0,
                (_, Some(latest)) if is_forwarding(opcode) => latest,
                _ if is_scheduled => local as u32 + 1,
                (_, latest) => latest.unwrap_or(0) + 1,
            };
            if let Some(slot) = ranks.get_mut(local) {
                *slot = rank;
            }
        }
        Self { module, is_scheduled, first_row: rows.start, end_row: rows.end, ranks }
    }

    fn rank(&self, row: Row) -> u32 {
        let local = row.0.wrapping_sub(self.first_row) as usize;
        self.ranks.get(local).copied().unwrap_or(0)
    }

    /// The value that a copy of `producer` for `uses` waits for. None if every candidate is
    /// computed before the producer, depends on the copy itself or is in `avoided`.
    pub fn tie(&self, producer: Row, uses: &[Use], avoided: &HashSet<Row>) -> Option<Row> {
        let first = uses.iter().map(|usage| usage.user).min()?;
        let follows = self.followers(uses);
        let is_candidate = |row: Row| {
            self.rank(row) > self.rank(producer)
                && !avoided.contains(&row)
                && !follows.contains(row.0.wrapping_sub(self.first_row))
                && self.is_suitable(row)
                && (!self.is_scheduled || row < first)
        };
        let users = uses.iter().map(|usage| usage.user);
        if let Some(best) = self.best_operand(users, &is_candidate) {
            return Some(best);
        }
        if self.is_scheduled {
            let before = (self.first_row..first.0).rev().take(LONGEST_SEARCH).map(Row);
            return before
                .filter(|row| self.rank(*row) == row.0 - self.first_row + 1)
                .find(|row| is_candidate(*row));
        }
        follows.levels.iter().find_map(|level| {
            self.best_operand(level.iter().map(|local| Row(local + self.first_row)), &is_candidate)
        })
    }

    fn best_operand(
        &self,
        users: impl Iterator<Item = Row>,
        is_candidate: &impl Fn(Row) -> bool,
    ) -> Option<Row> {
        let operands = users.flat_map(|user| self.module.operands(user)).map(|row| Row(*row));
        operands.filter(|row| is_candidate(*row)).max_by_key(|row| (self.rank(*row), *row))
    }

    /// Whether `row` is an array in memory that a barrier can pass on.
    fn is_suitable(&self, row: Row) -> bool {
        let module = self.module;
        module.flags(row) & Flags::IMPLICIT == 0
            && module.shapes().array(module.shape(row)).is_some_and(|array| {
                let space = array.layout.map_or(0, |layout| layout.memory_space);
                matches!(space, 0 | 1) && array.element_type.kind() != ElementKind::Opaque
            })
    }

    /// Everything that depends on the users, by distance from them.
    fn followers(&self, uses: &[Use]) -> Followers {
        let count = (self.end_row - self.first_row) as usize;
        let mut followers = Followers { is_met: vec![false; count], levels: Vec::new() };
        let mut level = Vec::new();
        let mut later: Vec<(Row, Row)> = Vec::new();
        let pairs = self.module.control_predecessors();
        later.extend(pairs.iter().map(|(row, before)| (*before, *row)));
        later.sort_unstable();
        for usage in uses {
            followers.meet(usage.user.0.wrapping_sub(self.first_row), &mut level);
        }
        while !level.is_empty() {
            let mut next = Vec::new();
            for local in &level {
                let row = local + self.first_row;
                for user in self.module.users().get(row) {
                    followers.meet(user.wrapping_sub(self.first_row), &mut next);
                }
                let from = later.partition_point(|(before, _)| before.0 < row);
                let after = later.get(from..).unwrap_or_default();
                for (_, user) in after.iter().take_while(|(before, _)| before.0 == row) {
                    followers.meet(user.0.wrapping_sub(self.first_row), &mut next);
                }
            }
            followers.levels.push(std::mem::replace(&mut level, next));
        }
        followers
    }
}

struct Followers {
    is_met: Vec<bool>,
    levels: Vec<Vec<u32>>,
}

impl Followers {
    fn meet(&mut self, local: u32, level: &mut Vec<u32>) {
        if let Some(is_met) = self.is_met.get_mut(local as usize)
            && !std::mem::replace(is_met, true)
        {
            level.push(local);
        }
    }

    fn contains(&self, local: u32) -> bool {
        self.is_met.get(local as usize).copied().unwrap_or(false)
    }
}
