//! Removes elements that nobody reads any more from barriers.
//!
//! When the late users of a value read a copy, the barrier that passed the value on would still
//! keep it live. The element is therefore replaced by an input of the copies, as openxla/xla pull
//! request 19163 proposed for all-gathers; a barrier without any readers is removed.

use super::stack::ShapeText;
use super::{Plan, Use};
use crate::edit::Edit;
use crate::ir::{Module, Opcode, Row};
use crate::print::shape_to_text;
use crate::remat::handed_on::{Behind, behind};
use std::collections::{BTreeSet, HashSet};

/// An element of a tuple, or the array of a barrier, that nobody reads behind the barrier.
struct Unread {
    usage: Use,
    behind: Behind,
    /// Its replacement.
    filler: Row,
}

impl Plan<'_> {
    /// Removes originals from barriers if all readers behind the barriers read copies; returns the
    /// removed rows. `waited_for` are rows that other rows name as control predecessors.
    pub(super) fn empty_barriers(&mut self, waited_for: &HashSet<Row>) -> HashSet<Row> {
        let module = self.module;
        let unread = self.unread(waited_for);
        let mut removed: HashSet<Row> = HashSet::new();
        let rows = unread.iter().flat_map(|entry| {
            let held = entry.behind.held.iter().map(|place| place.row);
            held.chain(entry.behind.rows.iter().copied())
        });
        // Users come after their operands, so rows are visited in reverse.
        for row in rows.collect::<BTreeSet<Row>>().into_iter().rev() {
            let mut users = module.users().get(row.0).iter().map(|user| Row(*user));
            let is_used = users.any(|user| {
                let operands = module.operands(user).iter().enumerate();
                let mut reads = operands.filter(|(_, operand)| **operand == row.0);
                let is_left = |operand| !self.replaced.contains(&Use { user, operand });
                !removed.contains(&user) && reads.any(|(operand, _)| is_left(operand))
            });
            if !is_used && !waited_for.contains(&row) && !self.read.contains(&row) {
                removed.insert(row);
                self.edits.push(Edit::Remove { row });
            }
        }
        for Unread { usage, behind, filler } in unread {
            if removed.contains(&usage.user) {
                continue;
            }
            self.read.insert(filler);
            self.replaced.insert(usage);
            let name = module.instruction_name(filler).to_vec();
            self.edits.push(Edit::ReplaceOperand { row: usage.user, index: usage.operand, name });
            let shape = module.shape(filler);
            let shape = ShapeText {
                full: shape_to_text(module, shape, true),
                bare: shape_to_text(module, shape, false),
            };
            // The remaining holders pass the filler on.
            for place in behind.held.iter().filter(|place| !removed.contains(&place.row)) {
                let path = place.path.iter().rev().map(|index| *index as usize).collect();
                self.shapes.change_part(place.row, path, shape.clone());
            }
            for row in behind.rows.iter().filter(|row| !removed.contains(*row)) {
                self.shapes.change_part(*row, Vec::new(), shape.clone());
            }
        }
        removed
    }

    fn unread(&self, waited_for: &HashSet<Row>) -> Vec<Unread> {
        let module = self.module;
        let mut originals: Vec<Row> = self.originals.iter().copied().collect();
        originals.sort_unstable();
        let mut unread = Vec::new();
        for original in originals {
            let Some(filler) = self.filler(original) else { continue };
            for user in module.users().get(original.0).iter().map(|user| Row(*user)) {
                if !matches!(module.opcode(user), Opcode::Tuple | Opcode::OptBarrier) {
                    continue;
                }
                let operands = module.operands(user).iter().enumerate();
                for (operand, _) in operands.filter(|(_, row)| **row == original.0) {
                    let usage = Use { user, operand };
                    let Some(behind) = behind(module, user, operand) else { continue };
                    let is_replaced = |(user, operand): &(Row, usize)| {
                        self.replaced.contains(&Use { user: *user, operand: *operand })
                    };
                    let is_needed = |row: &Row| waited_for.contains(row) || self.read.contains(row);
                    if !self.replaced.contains(&usage)
                        && behind.reads.iter().all(is_replaced)
                        && !behind.rows.iter().any(is_needed)
                    {
                        unread.push(Unread { usage, behind, filler });
                    }
                }
            }
        }
        unread
    }

    /// The smallest array that copies of `original` read.
    fn filler(&self, original: Row) -> Option<Row> {
        let module = self.module;
        let inputs = self.inputs.get(&original)?.iter().copied();
        let inputs = inputs.filter(|row| !self.originals.contains(row));
        inputs.filter_map(|row| Some((size(module, row)?, row))).min().map(|(_, row)| row)
    }
}

/// Bits of the array `row`.
fn size(module: &Module, row: Row) -> Option<u128> {
    let array = module.shapes().array(module.shape(row))?;
    Some(u128::from(array.elements()?) * u128::from(array.element_type.bits()))
}
