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

/// Arrays that follow from arrays: the `number` from `to` on from those from `from` on.
struct Link {
    from: usize,
    to: usize,
    number: usize,
}

/// What follows from what.
struct Links {
    /// From all arrays of a row, sorted.
    whole: Vec<Link>,
    /// From elements of a tuple, sorted.
    parts: Vec<Link>,
    /// By row: whether all of its arrays follow from each array of its operands.
    is_plain: Vec<bool>,
}

fn first(module: &Module, row: Row) -> usize {
    module.leaf_offsets().get(row.0 as usize).copied().unwrap_or(0) as usize
}

fn count(module: &Module, row: Row) -> usize {
    module.shapes().leaf_count(module.shape(row)) as usize
}

impl Links {
    fn new(module: &Module) -> Self {
        let count = |row| count(module, row);
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        let span = |from: Row, at: usize, to: Row, place: usize| {
            let number = count(from).saturating_sub(at).min(count(to).saturating_sub(place));
            Link { from: first(module, from) + at, to: first(module, to) + place, number }
        };
        let mut link = |from: Row, to: Row, place: usize| whole.push(span(from, 0, to, place));
        let mut is_plain = vec![false; module.row_count()];
        for row in module.rows() {
            let operands: Vec<Row> = module.operands(row).iter().map(|own| Row(*own)).collect();
            match module.opcode(row) {
                Opcode::Tuple => {
                    let mut at = 0;
                    for operand in operands {
                        link(operand, row, at);
                        at += count(operand);
                    }
                }
                Opcode::GetTupleElement => {
                    if let (Some(tuple), Some(index)) = (operands.first(), module.tuple_index(row))
                        && let Some(at) = module.shapes().first_leaf(module.shape(*tuple), index)
                    {
                        parts.push(span(*tuple, at as usize, row, 0));
                    }
                }
                Opcode::While => {
                    let Some(start) = operands.first() else { continue };
                    link(*start, row, 0);
                    for call in module.calls(row).iter().filter(|call| call.role == CallRole::Body)
                    {
                        let root = Row(module.computation(call.computation).root);
                        for parameter in module.parameters(call.computation) {
                            link(*start, parameter, 0);
                            link(root, parameter, 0);
                        }
                        link(root, row, 0);
                    }
                }
                Opcode::Fusion | Opcode::Call => {
                    let Some(call) = module.calls(row).first() else { continue };
                    for (operand, parameter) in
                        operands.iter().zip(module.parameters(call.computation))
                    {
                        link(*operand, parameter, 0);
                    }
                    link(Row(module.computation(call.computation).root), row, 0);
                }
                opcode => {
                    if let Some(slot) = is_plain.get_mut(row.0 as usize) {
                        *slot = true;
                    }
                    let skipped = usize::from(opcode == Opcode::Conditional);
                    if !matches!(opcode, Opcode::AsyncStart | Opcode::Conditional) {
                        continue;
                    }
                    let parameters = module.calls(row).iter();
                    let parameters =
                        parameters.flat_map(|call| module.parameters(call.computation));
                    for (operand, parameter) in operands.iter().skip(skipped).zip(parameters) {
                        link(*operand, parameter, 0);
                    }
                }
            }
        }

        for links in [&mut whole, &mut parts] {
            links.retain(|link: &Link| link.number > 0);
            links.sort_by_key(|link| link.from);
        }
        Self { whole, parts, is_plain }
    }

    /// Calls `reach` with each array that a link leads to from `leaf`.
    fn follow(&self, leaf: usize, reach: &mut impl FnMut(usize)) {
        for links in [&self.whole, &self.parts] {
            // Elements of a tuple are the same or apart: only the last links that begin up to here
            // can hold the array.
            let end = links.partition_point(|link| link.from <= leaf);
            let own = links.get(..end).unwrap_or_default();
            let start = own.last().map_or(0, |link| link.from);
            for link in own.iter().rev().take_while(|link| link.from == start) {
                if leaf - start < link.number {
                    reach(link.to + leaf - start);
                }
            }
        }
    }
}

/// By array of all rows: whether it is computed from these parameters.
fn reached(module: &Module, inputs: &[Row]) -> Vec<bool> {
    let mut links = Links::new(module);
    let mut reached = vec![false; module.leaf_offsets().last().copied().unwrap_or(0) as usize];
    // Arrays that turned true; what follows from them is still to be found.
    let mut open = Vec::new();
    let mut reach = |leaf: usize, open: &mut Vec<usize>| {
        crate::ir::work::count(1);
        if let Some(slot) = reached.get_mut(leaf)
            && !std::mem::replace(slot, true)
        {
            open.push(leaf);
        }
    };
    let leaves = |row: Row| first(module, row)..first(module, row) + count(module, row);
    inputs.iter().flat_map(|row| leaves(*row)).for_each(|leaf| reach(leaf, &mut open));
    let mut is_seen = vec![false; module.row_count()];
    while let Some(leaf) = open.pop() {
        links.follow(leaf, &mut |leaf| reach(leaf, &mut open));
        let row = module.leaf_offsets().partition_point(|start| *start <= leaf as u64) - 1;
        let Some(slot) = is_seen.get_mut(row) else { continue };
        if std::mem::replace(slot, true) {
            continue;
        }
        for user in module.users().get(row as u32) {
            // Its first operand that is reached gives all of its arrays.
            let Some(slot) = links.is_plain.get_mut(*user as usize) else { continue };
            if std::mem::replace(slot, false) {
                leaves(Row(*user)).for_each(|leaf| reach(leaf, &mut open));
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::reached;
    use crate::ir::Row;
    use crate::ir::work::steps_of;
    use crate::{parse, text};
    use std::fmt::Write;

    /// Steps for a program with `count` fusions, each of the one before.
    fn steps(count: usize) -> usize {
        let mut program = String::from("HloModule m\n\n");
        let mut entry = String::from("ENTRY e {\n  f0 = s32[4]{0} parameter(0)\n");
        for number in 1..=count {
            let _ = writeln!(
                program,
                "c{number} {{\n  p = s32[4]{{0}} parameter(0)\n  \
                 ROOT n = s32[4]{{0}} negate(p)\n}}\n"
            );
            let _ = writeln!(
                entry,
                "  {}f{number} = s32[4]{{0}} fusion(f{}), kind=kLoop, calls=c{number}",
                if number == count { "ROOT " } else { "" },
                number - 1
            );
        }
        program.push_str(&entry);
        program.push_str("}\n");
        let source = text::Source::from_slice(program.as_bytes());
        let module = parse(source, &crate::Options::default()).unwrap();
        let inputs: Vec<Row> = module.parameters(module.entry());
        let (steps, reached) = steps_of(|| reached(&module, &inputs));
        assert!(reached.iter().all(|own| *own));
        steps
    }

    #[test]
    fn chains_of_fusions_take_linear_work() {
        let (less, more) = (steps(500), steps(2000));
        assert!(less > 0 && more < 5 * less, "{less} steps for 500 fusions, {more} for 2000");
    }
}
