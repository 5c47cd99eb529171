//! Arrays that no entry parameter determines: tables of positions, masks, zeros.
//!
//! The compiler keeps one such array for all its users, so two dimensions of the program that are
//! equally large by chance meet in it: positions of an encoder and of a decoder. Sizes spread through
//! it last, and symbols of different inputs are not joined by it. Only modules with two inputs of one
//! length are searched for them.

use super::places::Places;
use super::spread::Spread;
use crate::ir::{CallRole, Module, Opcode, Row};
use std::collections::VecDeque;

/// By array: whether its value follows from entry parameters.
struct Bound<'s, 'm> {
    spread: &'s Spread<'m>,
    module: &'m Module,
    is_bound: Vec<bool>,
    queue: VecDeque<Row>,
    is_queued: Vec<bool>,
    /// Limit on the arrays that are looked at: a loop may pass what one element says to the next of many.
    left: usize,
}

impl Spread<'_> {
    /// By dimension: whether no entry parameter determines the array.
    pub(super) fn find_free(&self) -> Vec<bool> {
        let module = self.module;
        let arrays = module.leaf_offsets().last().copied().unwrap_or(0) as usize;
        let mut bound = Bound {
            spread: self,
            module,
            is_bound: vec![false; arrays],
            queue: module.rows().collect(),
            is_queued: vec![true; module.row_count()],
            left: arrays.saturating_mul(256).max(1 << 22),
        };
        while let Some(row) = bound.queue.pop_front() {
            let read = match module.opcode(row) {
                Opcode::GetTupleElement => &[],
                _ => module.operands(row),
            };
            let seen = read.iter().map(|own| self.places.leaves(Row(*own)));
            let seen = seen.fold(self.places.leaves(row), usize::saturating_add);
            let Some(left) = bound.left.checked_sub(seen) else { return Vec::new() };
            bound.left = left;
            if let Some(slot) = bound.is_queued.get_mut(row.0 as usize) {
                *slot = false;
            }
            bound.visit(row);
        }
        let mut free = vec![false; self.places.sizes.len()];
        for row in module.rows() {
            for leaf in 0..self.places.leaves(row) {
                if bound.get(row, leaf) {
                    continue;
                }
                let dims = self.places.leaf(row, leaf).map(|slot| slot.dims());
                for dim in dims.into_iter().flatten() {
                    if let Some(slot) = free.get_mut(dim as usize) {
                        *slot = true;
                    }
                }
            }
        }
        free
    }

    /// Whether no entry parameter determines a dimension's array.
    pub(super) fn is_free(&self, dim: u32) -> bool {
        self.free.get(dim as usize).copied().unwrap_or(false)
    }

    /// Whether the row that is being visited makes or takes such an array.
    pub(super) fn meets_free(&self) -> bool {
        self.any_dim(self.current, |dim| self.is_free(dim))
    }
}

impl Bound<'_, '_> {
    fn places(&self) -> &Places<'_> {
        &self.spread.places
    }

    fn index(&self, row: Row, leaf: usize) -> Option<usize> {
        let first = *self.module.leaf_offsets().get(row.0 as usize)? as usize;
        (leaf < self.places().leaves(row)).then_some(first + leaf)
    }

    fn get(&self, row: Row, leaf: usize) -> bool {
        let own = self.index(row, leaf).and_then(|own| self.is_bound.get(own));
        own.copied().unwrap_or(false)
    }

    fn bind(&mut self, row: Row, leaf: usize) {
        if self.get(row, leaf) {
            return;
        }
        let Some(slot) = self.index(row, leaf).and_then(|own| self.is_bound.get_mut(own)) else {
            return;
        };
        *slot = true;
        let module = self.module;
        let users = module.users().get(row.0).iter().map(|user| Row(*user));
        let is_root = module.computation(module.computation_of(row)).root == row.0;
        let callers = if is_root { module.callers(module.computation_of(row)) } else { &[] };
        for next in users.chain(callers.iter().map(|caller| Row(*caller))) {
            if let Some(slot) = self.is_queued.get_mut(next.0 as usize)
                && !std::mem::replace(slot, true)
            {
                self.queue.push_back(next);
            }
        }
    }

    /// Binds the leaves of `to` whose counterparts in `from` are bound.
    fn pass(&mut self, from: Row, first: usize, to: Row, first_to: usize) {
        let rest = |row: Row, own: usize| self.places().leaves(row).saturating_sub(own);
        for leaf in 0..rest(from, first).min(rest(to, first_to)) {
            if self.get(from, first + leaf) {
                self.bind(to, first_to + leaf);
            }
        }
    }

    fn visit(&mut self, row: Row) {
        let module = self.module;
        let operands: Vec<Row> = module.operands(row).iter().map(|own| Row(*own)).collect();
        match module.opcode(row) {
            Opcode::Parameter => {
                if module.computation_of(row) == module.entry() {
                    self.bind_all(row);
                }
            }
            Opcode::Constant | Opcode::Iota | Opcode::PartitionId | Opcode::ReplicaId => {}
            Opcode::Broadcast => {
                // Only the dimensions of the operand say how large the result is.
                let sized = operands
                    .first()
                    .filter(|own| self.places().array(**own).is_some_and(|slot| slot.rank > 0));
                if let Some(operand) = sized {
                    self.pass(*operand, 0, row, 0);
                }
            }
            Opcode::GetTupleElement => {
                if let (Some(tuple), Some(index)) = (operands.first(), module.tuple_index(row))
                    && let Some(first) = module.shapes().first_leaf(module.shape(*tuple), index)
                {
                    self.pass(*tuple, first as usize, row, 0);
                }
            }
            Opcode::Tuple => {
                let mut first = 0;
                for operand in operands {
                    self.pass(operand, 0, row, first);
                    first += self.places().leaves(operand);
                }
            }
            Opcode::While => {
                if let Some(start) = operands.first() {
                    self.pass(*start, 0, row, 0);
                }
                for call in module.calls(row) {
                    if call.role == CallRole::Body {
                        let root = Row(module.computation(call.computation).root);
                        self.pass(root, 0, row, 0);
                    }
                    if let Some(parameter) = module.parameters(call.computation).first() {
                        self.pass(row, 0, *parameter, 0);
                    }
                }
            }
            Opcode::Fusion | Opcode::Call => self.visit_call(row, &operands, 0),
            Opcode::AsyncStart => {
                let mut first = 0;
                for operand in &operands {
                    self.pass(*operand, 0, row, first);
                    first += self.places().leaves(*operand);
                }
                self.visit_call(row, &operands, first);
            }
            Opcode::AsyncUpdate => {
                if let Some(start) = operands.first() {
                    self.pass(*start, 0, row, 0);
                }
            }
            Opcode::AsyncDone => {
                if let Some(start) = self.spread.start_of(row) {
                    let taken = module.operands(start).iter();
                    let taken = taken.map(|own| self.places().leaves(Row(*own))).sum();
                    self.pass(start, taken, row, 0);
                }
            }
            Opcode::Conditional => {
                for (call, operand) in module.calls(row).iter().zip(operands.iter().skip(1)) {
                    if let Some(parameter) = module.parameters(call.computation).first() {
                        self.pass(*operand, 0, *parameter, 0);
                    }
                    let root = Row(module.computation(call.computation).root);
                    self.pass(root, 0, row, 0);
                }
            }
            _ => {
                let is_bound = operands.is_empty()
                    || operands.iter().any(|own| {
                        (0..self.places().leaves(*own)).any(|leaf| self.get(*own, leaf))
                    });
                if is_bound {
                    self.bind_all(row);
                }
            }
        }
    }

    fn visit_call(&mut self, row: Row, operands: &[Row], first: usize) {
        let Some(call) = self.module.calls(row).first() else { return self.bind_all(row) };
        for (operand, parameter) in operands.iter().zip(self.module.parameters(call.computation)) {
            self.pass(*operand, 0, parameter, 0);
        }
        let root = Row(self.module.computation(call.computation).root);
        self.pass(root, 0, row, first);
    }

    fn bind_all(&mut self, row: Row) {
        for leaf in 0..self.places().leaves(row) {
            self.bind(row, leaf);
        }
    }
}
