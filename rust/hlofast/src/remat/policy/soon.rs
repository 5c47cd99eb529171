//! Gradients of weights that wait in the text, if they ran as soon as they can.
//!
//! In a program that keeps much and fits, gradients of weights and what they read often stay in memory until the
//! end of a backward body. A row runs as soon as its operands are there, and not before a row that reads its
//! result can. Rows that only move a value follow it.

use super::late::LEAST;
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use crate::memory::{LiveValue, Memory};
use hashbrown::HashSet;
use std::ops::RangeInclusive;

/// Arrays of fewer elements, such as indices, are there at any time.
const FEWEST: i64 = 1 << 12;
/// Limit on the rows that are followed from a value to the rows that read it.
const MOST_READERS: usize = 64;

/// The steps at which waiting rows of a body would run.
#[derive(Debug)]
pub struct Soon {
    first_row: u32,
    /// By row of the body: the step; None unless the row waits.
    runs: Vec<Option<u32>>,
}

impl Soon {
    /// Those of computation `id`, of which the rows `late` wait.
    pub fn new(
        module: &Module,
        memory: &Memory,
        id: ComputationId,
        late: &HashSet<Row, BuildMix>,
    ) -> Self {
        let rows = module.computation(id).rows();
        let first_row = rows.start;
        let step = |row: u32| memory.step_of(Row(row));
        let start = rows.clone().filter_map(step).min().unwrap_or(0);
        // By row: the step at which its value is there.
        let mut there = vec![start; rows.len()];
        for row in rows.clone().filter(|row| !is_small(module, Row(*row))) {
            let own = step(row).unwrap_or(start);
            let follows = passes(module, Row(row)) || late.contains(&Row(row));
            let operands = module.operands(Row(row)).iter();
            let before = operands.filter_map(|own| own.checked_sub(first_row));
            let before = before.filter_map(|at| there.get(at as usize).copied());
            let at = if follows { before.max().unwrap_or(start) } else { own };
            there[(row - first_row) as usize] = at.min(own);
        }
        // By row that waits or only moves a value: the step before which nothing reads its result.
        let mut unread: Vec<Option<u32>> = vec![None; rows.len()];
        for row in rows.clone().rev() {
            let users = module.users().get(row).iter().filter_map(|user| {
                let at = user.checked_sub(first_row)? as usize;
                let follows = passes(module, Row(*user)) || late.contains(&Row(*user));
                let waits = || unread[at].unwrap_or(start).max(there[at]);
                let is_end = module.users().get(*user).is_empty() && passes(module, Row(*user));
                (!is_end).then(|| if follows { waits() } else { start })
            });
            // Results of few bytes do not wait for a reader.
            unread[(row - first_row) as usize] =
                users.min().filter(|_| !is_reduced(module, Row(row)));
        }
        let run = |row: u32| {
            let at = (row - first_row) as usize;
            let run = unread[at].unwrap_or(start).max(there[at]);
            late.contains(&Row(row)).then(|| run.min(step(row).unwrap_or(run)))
        };
        Soon { first_row, runs: rows.map(run).collect() }
    }

    /// The step at which a row would run, if it waits.
    pub fn runs(&self, row: Row) -> Option<u32> {
        let at = row.0.checked_sub(self.first_row)? as usize;
        self.runs.get(at).copied().flatten()
    }

    /// The first and last step of a value whose readers are known.
    pub fn steps(&self, module: &Module, memory: &Memory, value: &LiveValue) -> Option<(u32, u32)> {
        let (mut last, mut last_in_text) = (0, 0);
        let mut open = vec![value.row];
        let mut opened = 0;
        while let Some(row) = open.pop() {
            for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
                opened += 1;
                let is_part = module.opcode(user) == Opcode::GetTupleElement && row == value.row;
                let index = module.tuple_index(user).and_then(|own| u32::try_from(own).ok());
                if is_part && value.path.last().copied() != index {
                    continue;
                }
                if opened > MOST_READERS || module.opcode(user) == Opcode::Tuple {
                    return None;
                }
                if passes(module, user) {
                    open.push(user);
                } else {
                    let step = memory.step_of(user)?;
                    last_in_text = step.max(last_in_text);
                    last = self.runs(user).unwrap_or(step).max(last);
                }
            }
        }
        // Otherwise its memory holds another value after it.
        let is_whole = last_in_text == value.last_step && value.path.len() < 2;
        let first = self.runs(value.row).unwrap_or(value.first_step).min(value.first_step);
        is_whole.then_some((first, last.max(first)))
    }
}

/// The changes of bytes in the computation around the loop `backward`, if what nothing in the loop reaches
/// ran as soon as it can: products that wait behind it, such as the gradient of a head, and rows of small
/// results, wherever they are. These free what they read: the logits that a loss picks its own from, which
/// otherwise stay until the end of the step, or until another model has run. `values` are those of the
/// loop's computation.
pub fn outside<'a>(
    module: &Module,
    memory: &Memory,
    backward: Row,
    values: impl Iterator<Item = &'a LiveValue>,
) -> Vec<(RangeInclusive<u32>, i64)> {
    let id = module.computation_of(backward);
    let mut depends: HashSet<u32, BuildMix> = HashSet::default();
    depends.insert(backward.0);
    let (mut products, mut small) = (HashSet::default(), HashSet::default());
    for row in module.computation(id).rows().filter(|row| *row != backward.0) {
        if module.operands(Row(row)).iter().any(|own| depends.contains(own)) {
            depends.insert(row);
        } else if row > backward.0 && multiplies(module, Row(row)) {
            products.insert(Row(row));
        } else if is_reduced(module, Row(row)) {
            small.insert(Row(row));
        }
    }
    let Some(end) = memory.step_of(backward) else { return Vec::new() };
    let values: Vec<&LiveValue> = values.filter(|value| value.bytes >= LEAST).collect();
    let moved = |late: &HashSet<Row, BuildMix>| {
        let soon = Soon::new(module, memory, id, late);
        let mut changes = Vec::new();
        for value in &values {
            let is_late = late.contains(&value.row);
            if value.first_step > end && !is_late {
                continue;
            }
            match soon.steps(module, memory, value) {
                Some((first, last)) if is_late || last < value.last_step => {
                    changes.push((value.first_step..=value.last_step, -value.bytes));
                    let last = if is_late { last.max(value.last_step) } else { last };
                    changes.push((first..=last, value.bytes));
                }
                _ => {}
            }
        }
        changes
    };
    let alone = moved(&small);
    if products.is_empty() {
        return alone;
    }
    products.extend(&small);
    let all = moved(&products);
    let at_loop = |changes: &[(RangeInclusive<u32>, i64)]| {
        let there = changes.iter().filter(|(steps, _)| steps.contains(&end));
        there.fold(0i64, |sum, (_, bytes)| sum.saturating_add(*bytes))
    };
    // Products of more bytes than they free wait.
    if at_loop(&all) < at_loop(&alone) { all } else { alone }
}

/// Whether a row computes an array of few bytes.
fn is_reduced(module: &Module, row: Row) -> bool {
    let bytes = module.shapes().logical_bytes(module.shape(row));
    let is_work =
        !passes(module, row) && !matches!(module.opcode(row), Opcode::While | Opcode::Parameter);
    is_work && bytes.is_some_and(|own| i64::try_from(own).is_ok_and(|own| own < LEAST))
}

/// Whether a row is a product, or a fusion of one.
fn multiplies(module: &Module, row: Row) -> bool {
    let called = module.called(row, CallRole::Calls);
    let mut inside = called.into_iter().flat_map(|id| module.computation(id).rows());
    module.opcode(row).is_matmul() || inside.any(|own| module.opcode(Row(own)).is_matmul())
}

/// Whether a row only moves or names a value.
fn passes(module: &Module, row: Row) -> bool {
    use Opcode::{Bitcast, Copy, CopyDone, CopyStart, GetTupleElement, Tuple};
    matches!(module.opcode(row), Bitcast | Copy | CopyDone | CopyStart | GetTupleElement | Tuple)
}

fn is_small(module: &Module, row: Row) -> bool {
    let array = module.shapes().array(module.shape(row));
    let elements = array.and_then(|array| array.elements());
    elements.is_some_and(|own| i64::try_from(own).is_ok_and(|own| own < FEWEST))
}
