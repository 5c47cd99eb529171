//! Orders of instructions other than the text's.

use super::schedule::Order;
use crate::cost::Backend;
use crate::cost::size::shape_costs;
use crate::ir::{Module, Opcode, Row};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// The rows in `order`, computation by computation; None for the text's order.
pub(super) fn permutation(module: &Module, order: Order) -> Option<Vec<u32>> {
    let mut rows = Vec::with_capacity(module.row_count());
    match order {
        Order::Text => return None,
        Order::PostOrder => {
            rows = post_order_of_all(module);
        }
        Order::List => {
            let costs = shape_costs(module.shapes(), Backend::of_module(module), false);
            let bytes: Vec<i64> = module
                .rows()
                .map(|row| match module.opcode(row) {
                    // These opcodes allocate nothing.
                    Opcode::Bitcast
                    | Opcode::Constant
                    | Opcode::GetTupleElement
                    | Opcode::Parameter
                    | Opcode::Tuple => 0,
                    _ => costs.get(module.shape(row).0 as usize).map_or(0, |cost| cost.leaves),
                })
                .collect();
            for computation in module.computations() {
                list_schedule(module, computation.rows(), &bytes, &mut rows);
            }
        }
    }
    Some(rows)
}

/// The rows of every computation, operands before users.
pub(super) fn post_order_of_all(module: &Module) -> Vec<u32> {
    let mut rows = Vec::with_capacity(module.row_count());
    let mut is_seen = vec![false; module.row_count()];
    for computation in module.computations() {
        post_order(module, computation.rows(), &mut is_seen, &mut rows);
    }
    rows
}

/// Operands before users, starting from unused rows, first to last.
fn post_order(module: &Module, rows: Range<u32>, is_seen: &mut [bool], order: &mut Vec<u32>) {
    let users = module.users();
    let mut stack: Vec<(u32, usize)> = Vec::new();
    // Broken text may have cycles that nothing outside uses: they come last.
    let sinks = rows.clone().filter(|row| users.get(*row).is_empty());
    for start in sinks.chain(rows.clone()) {
        if std::mem::replace(&mut is_seen[start as usize], true) {
            continue;
        }
        stack.push((start, 0));
        while let Some((row, operand)) = stack.last_mut() {
            match module.operands(Row(*row)).get(*operand).copied() {
                Some(operand_row) => {
                    *operand += 1;
                    if rows.contains(&operand_row)
                        && !std::mem::replace(&mut is_seen[operand_row as usize], true)
                    {
                        stack.push((operand_row, 0));
                    }
                }
                None => {
                    order.push(*row);
                    stack.pop();
                }
            }
        }
    }
}

/// Schedules, among ready instructions, the one that frees most memory net of its result, then the
/// first in the text. The last user of an operand frees it.
fn list_schedule(module: &Module, rows: Range<u32>, bytes: &[i64], order: &mut Vec<u32>) {
    let first = rows.start;
    let at = |row: u32| (row - first) as usize;
    let users = module.users();
    let size = |row: u32| bytes.get(row as usize).copied().unwrap_or(0).max(0);
    // Distinct operands still to wait for, and distinct users still to come.
    let mut waiting = vec![0u32; rows.len()];
    let mut left: Vec<u32> = Vec::with_capacity(rows.len());
    for row in rows.clone() {
        left.push(users.get(row).len() as u32);
        for user in users.get(row).iter().filter(|user| rows.contains(user)) {
            waiting[at(*user)] += 1;
        }
    }
    let gain = |row: u32, left: &[u32]| {
        let operands = module.operands(Row(row)).iter().filter(|operand| rows.contains(operand));
        let freed = operands.filter(|operand| left[at(**operand)] <= 1).map(|row| size(*row));
        freed.fold(0i64, i64::saturating_add).saturating_sub(size(row))
    };
    let mut is_done = vec![false; rows.len()];
    let mut ready: BinaryHeap<(i64, Reverse<u32>)> = BinaryHeap::new();
    for row in rows.clone().filter(|row| waiting[at(*row)] == 0) {
        ready.push((gain(row, &left), Reverse(row)));
    }
    while let Some((_, Reverse(row))) = ready.pop() {
        // A row may be queued more than once: its gain grows as its operands lose other users.
        if std::mem::replace(&mut is_done[at(row)], true) {
            continue;
        }
        order.push(row);
        for operand in module.operands(Row(row)).iter().filter(|operand| rows.contains(operand)) {
            let count = &mut left[at(*operand)];
            *count = count.saturating_sub(1);
            if *count == 1 {
                let last = users.get(*operand).iter().find(|user| {
                    rows.contains(user) && !is_done[at(**user)] && waiting[at(**user)] == 0
                });
                if let Some(last) = last {
                    ready.push((gain(*last, &left), Reverse(*last)));
                }
            }
        }
        for user in users.get(row).iter().filter(|user| rows.contains(user)) {
            let count = &mut waiting[at(*user)];
            *count = count.saturating_sub(1);
            if *count == 0 {
                ready.push((gain(*user, &left), Reverse(*user)));
            }
        }
    }
    // Cycles in broken text.
    order.extend(rows.clone().filter(|row| !is_done[at(*row)]));
}
