//! Batches of which a device has one sequence.
//!
//! A dimension of one element is in no product, slice or order of memory, so a compiled text often
//! lacks it, or has it where nothing ties it to the input. What has positions of a sequence, and is
//! computed from the input, has them of every sequence: tables of positions and masks are computed
//! from nothing.

use super::size::{Dim, Factor, tidy};
use super::spread::{How, Spread};
use super::symbols::Seed;
use super::{Found, Role};
use crate::ir::{CallRole, Module, Opcode, Row};

impl Spread<'_> {
    /// Gives arrays with positions, but without the sequences that a device has one of, these.
    pub(super) fn ones(&mut self, seeds: &[Seed], found: &[Found]) {
        let roots = |role: Role| -> Vec<u32> {
            let own = found.iter().filter(|own| own.role == role);
            own.map(|own| own.root).collect()
        };
        let (batches, sequences) = (roots(Role::Batch), roots(Role::Sequence));
        let [batch] = batches[..] else { return };
        let root = |seed: &Seed| self.symbols.root(seed.symbol).0;
        let inputs: Vec<&Seed> = seeds.iter().filter(|seed| root(seed) == batch).collect();
        let factor = |seed: &&Seed| match self.get(self.places.array(seed.row)?.at(seed.dimension)?)
        {
            Some([factor]) if factor.is_one() => Some(*factor),
            _ => None,
        };
        let Some(Some(one)) = inputs.first().map(factor) else { return };
        // Positions that parameters have too, as learned tables do, are also there without a batch.
        let is_input = |seed: &Seed| inputs.iter().any(|own| own.row == seed.row);
        let learned = |own: &u32| seeds.iter().any(|seed| root(seed) == *own && !is_input(seed));
        let sequences: Vec<u32> = sequences.into_iter().filter(|own| !learned(own)).collect();
        if sequences.is_empty() {
            return;
        }
        let rows: Vec<Row> = inputs.iter().map(|seed| seed.row).collect();
        let reached = reached(self.module, &rows);
        let has = |dim: u32, roots: &[u32]| {
            let own = self.get(dim).unwrap_or_default();
            own.iter().any(|factor| roots.contains(&self.symbols.root(factor.symbol).0))
        };
        let mut changes: Vec<(u32, Dim)> = Vec::new();
        for row in self.module.rows() {
            let first = self.module.leaf_offsets().get(row.0 as usize).copied().unwrap_or(0);
            for leaf in 0..self.places.leaves(row) {
                let is_reached = reached.get(first as usize + leaf) == Some(&true);
                let Some(slot) = self.places.leaf(row, leaf).filter(|_| is_reached) else {
                    continue;
                };
                let positions = slot.dims().find(|dim| has(*dim, &sequences));
                let (Some(positions), false) =
                    (positions, slot.dims().any(|dim| has(dim, &[batch])))
                else {
                    continue;
                };
                // The first dimension of one element takes them, or else they lie outside positions.
                let is_free = |dim: &u32| {
                    self.get(*dim).is_some_and(|own| own.iter().all(Factor::is_constant))
                };
                let free = slot.dims().filter(|dim| self.places.size(*dim) == 1).find(is_free);
                let place = free.unwrap_or(positions);
                let own = self.get(place).unwrap_or_default().iter().copied();
                changes.push((place, tidy(std::iter::once(one).chain(own).collect())));
            }
        }
        for (dim, value) in changes {
            let place = dim as usize;
            if let (Some(slot), Some(how)) = (self.dims.get_mut(place), self.how.get_mut(place)) {
                *slot = Some(value.into_boxed_slice());
                *how = How::Assumed;
            }
        }
    }
}

/// By array of all rows: whether it is computed from these parameters.
fn reached(module: &Module, inputs: &[Row]) -> Vec<bool> {
    let first = |row: Row| module.leaf_offsets().get(row.0 as usize).copied().unwrap_or(0) as usize;
    let count = |row: Row| module.shapes().leaf_count(module.shape(row)) as usize;
    let mut reached = vec![false; module.leaf_offsets().last().copied().unwrap_or(0) as usize];
    for row in inputs {
        reached.iter_mut().skip(first(*row)).take(count(*row)).for_each(|own| *own = true);
    }
    // Leaves that follow from leaves, as (from, to, number).
    let mut links: Vec<(usize, usize, usize)> = Vec::new();
    let mut link = |from: Row, at: usize, to: Row, place: usize| {
        let number = count(from).saturating_sub(at).min(count(to).saturating_sub(place));
        links.push((first(from) + at, first(to) + place, number));
    };
    // Rows whose arrays all follow from each array of their operands.
    let mut plain = Vec::new();
    for row in module.rows() {
        let operands: Vec<Row> = module.operands(row).iter().map(|own| Row(*own)).collect();
        match module.opcode(row) {
            Opcode::Tuple => {
                let mut at = 0;
                for operand in operands {
                    link(operand, 0, row, at);
                    at += count(operand);
                }
            }
            Opcode::GetTupleElement => {
                if let (Some(tuple), Some(index)) = (operands.first(), module.tuple_index(row))
                    && let Some(at) = module.shapes().first_leaf(module.shape(*tuple), index)
                {
                    link(*tuple, at as usize, row, 0);
                }
            }
            Opcode::While => {
                let Some(start) = operands.first() else { continue };
                link(*start, 0, row, 0);
                for call in module.calls(row).iter().filter(|call| call.role == CallRole::Body) {
                    let root = Row(module.computation(call.computation).root);
                    for parameter in module.parameters(call.computation) {
                        link(*start, 0, parameter, 0);
                        link(root, 0, parameter, 0);
                    }
                    link(root, 0, row, 0);
                }
            }
            Opcode::Fusion | Opcode::Call => {
                let Some(call) = module.calls(row).first() else { continue };
                for (operand, parameter) in operands.iter().zip(module.parameters(call.computation))
                {
                    link(*operand, 0, parameter, 0);
                }
                link(Row(module.computation(call.computation).root), 0, row, 0);
            }
            opcode => {
                plain.push(row);
                let skipped = usize::from(opcode == Opcode::Conditional);
                if !matches!(opcode, Opcode::AsyncStart | Opcode::Conditional) {
                    continue;
                }
                let parameters = module.calls(row).iter();
                let parameters = parameters.flat_map(|call| module.parameters(call.computation));
                for (operand, parameter) in operands.iter().skip(skipped).zip(parameters) {
                    link(*operand, 0, parameter, 0);
                }
            }
        }
    }
    loop {
        let mut is_same = true;
        for row in &plain {
            let own = first(*row)..first(*row) + count(*row);
            if own.clone().all(|leaf| reached.get(leaf) == Some(&true)) {
                continue;
            }
            let mut operands = module.operands(*row).iter().map(|own| Row(*own));
            let is_any = operands.any(|operand| {
                reached.iter().skip(first(operand)).take(count(operand)).any(|own| *own)
            });
            if is_any {
                reached.get_mut(own).into_iter().flatten().for_each(|leaf| *leaf = true);
                is_same = false;
            }
        }
        for (from, to, number) in &links {
            for at in 0..*number {
                if reached.get(from + at) == Some(&true)
                    && let Some(slot) = reached.get_mut(to + at)
                    && !std::mem::replace(slot, true)
                {
                    is_same = false;
                }
            }
        }
        if is_same {
            return reached;
        }
    }
}
