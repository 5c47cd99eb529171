//! What waits until after the backward loop although it reads nothing that the loop makes.
//!
//! XLA rematerialises a program that does not fit after it has scheduled it, so its text has the order of a program
//! of another size: the gradient of the head often runs last there, and the logits are in memory during the backward
//! loop. XLA's memory scheduler takes the one of its orders that needs the least memory. Under a policy the loop is
//! where the peak is, and an order with these rows before the loop needs less; if the policy saves values, only if it
//! needs much less (`orders.rs`). XLA for v5p keeps the order of the text: the gradient of the head waits in
//! `sgd_v5p_8` and `drawn123` whatever the policy.

use super::scans::Scan;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use crate::memory::{LiveValue, Memory};
use hashbrown::{HashMap, HashSet};
use std::ops::RangeInclusive;

/// Values of fewer bytes do not matter.
const LEAST: i64 = 1 << 24;
/// Limit on the rows that are opened for one value.
const MOST_OPENED: usize = 256;

/// The changes of bytes, with steps, if rows that wait run before the first backward loop.
pub fn waiting(
    module: &Module,
    memory: &Memory,
    values: &[LiveValue],
    scans: &[Scan],
) -> Vec<(RangeInclusive<u32>, i64)> {
    let first = scans.iter().min_by_key(|scan| *scan.back_steps.start());
    let Some(first) = first.filter(|_| scans.iter().all(|scan| scan.group.is_none())) else {
        return Vec::new();
    };
    let (start, end) = (*first.back_steps.start(), *first.back_steps.end());
    let place = module.computation_of(first.backward);
    let loops: HashSet<Row, BuildMix> = scans.iter().map(|scan| scan.backward).collect();
    let of_place = |own: &&LiveValue| module.computation_of(own.row) == place;
    let is_over = |own: &&LiveValue| {
        own.bytes >= LEAST
            && own.first_step < start
            && own.last_step > end
            && module.opcode(own.row) != Opcode::Parameter
    };
    let over: Vec<&LiveValue> = values.iter().filter(of_place).filter(is_over).collect();
    let mut made: HashMap<Row, Vec<&LiveValue>, BuildMix> = HashMap::default();
    for own in values.iter().filter(of_place).filter(|own| own.first_step > end) {
        made.entry(own.row).or_default().push(own);
    }
    let is_late = |row: &Row| memory.step_of(*row).is_some_and(|step| step > end);
    let bytes_of = |row: &Row| {
        let own = made.get(row).into_iter().flatten().map(|own| own.bytes);
        own.fold(0, i64::saturating_add)
    };
    let mut free: HashMap<Row, bool, BuildMix> = HashMap::default();
    let late: Vec<Option<Vec<Row>>> = over
        .iter()
        .map(|own| {
            let mut readers = readers(module, own)?;
            if readers.iter().any(|row| loops.contains(row)) {
                return None;
            }
            readers.retain(is_late);
            // Without one, another row keeps the value, such as one that writes over it.
            let mut is_free = |row: &Row| {
                let is_free = || is_independent(module, memory, *row, (start, &loops));
                *free.entry(*row).or_insert_with(is_free)
            };
            (!readers.is_empty() && readers.iter().all(&mut is_free)).then_some(readers)
        })
        .collect();
    let mut moved: HashSet<Row, BuildMix> = HashSet::default();
    for (own, late) in over.iter().zip(&late) {
        let Some(late) = late else { continue };
        if late.iter().map(bytes_of).fold(0, i64::saturating_add) <= own.bytes / 2 {
            moved.extend(late);
        }
    }
    let mut changes = Vec::new();
    for (own, late) in over.iter().zip(&late) {
        if late.as_ref().is_some_and(|late| late.iter().all(|row| moved.contains(row))) {
            changes.push((start..=own.last_step, -own.bytes));
        }
    }
    for own in moved.iter().filter_map(|row| made.get(row)).flatten() {
        changes.push((start..=own.first_step.saturating_sub(1), own.bytes));
    }
    changes
}

/// The rows that read a value, each once; None if it leaves the computation or is on its way while others run.
pub fn readers(module: &Module, value: &LiveValue) -> Option<Vec<Row>> {
    let users = |row: Row| module.users().get(row.0).iter().map(|own| Row(*own));
    let mut found = Vec::new();
    let mut known: HashSet<Row, BuildMix> = HashSet::default();
    let mut open: Vec<Row> = Vec::new();
    let is_part = |row: &Row| {
        let index = module.tuple_index(*row);
        value.path.first().is_none_or(|own| index.is_none_or(|index| index == *own as usize))
    };
    open.extend(users(value.row).filter(is_part));
    for _ in 0..MOST_OPENED {
        let Some(row) = open.pop() else { return Some(found) };
        if !known.insert(row) {
            continue;
        }
        match module.opcode(row) {
            Opcode::Bitcast | Opcode::GetTupleElement => open.extend(users(row)),
            Opcode::Tuple | Opcode::CopyStart | Opcode::AsyncStart | Opcode::OptBarrier => {
                return None;
            }
            _ => found.push(row),
        }
    }
    None
}

/// Whether no loop makes what a row reads.
fn is_independent(
    module: &Module,
    memory: &Memory,
    row: Row,
    (start, loops): (u32, &HashSet<Row, BuildMix>),
) -> bool {
    let mut open = vec![row];
    let mut known: HashSet<Row, BuildMix> = HashSet::default();
    let mut left = MOST_OPENED;
    while let Some(at) = open.pop() {
        if loops.contains(&at) || left == 0 {
            return false;
        }
        left -= 1;
        let is_before = memory.step_of(at).is_some_and(|step| step < start);
        if at != row && is_before || !known.insert(at) {
            continue;
        }
        open.extend(module.operands(at).iter().map(|own| Row(*own)));
    }
    true
}
