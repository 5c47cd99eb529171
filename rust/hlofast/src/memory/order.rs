//! Orders of instructions other than the order of the text.

use super::schedule::Order;
use crate::ir::{ComputationId, Module, Row};
use std::ops::Range;

/// The rows in `order`, computation by computation; None for the text's order.
pub(super) fn permutation(module: &Module, order: Order) -> Option<Vec<u32>> {
    match order {
        Order::Text => None,
        Order::PostOrder => {
            let all = 0..module.computations().len() as u32;
            Some(post_orders(module, all.map(ComputationId)))
        }
    }
}

/// The rows of some computations, one computation after another, operands before users.
pub(super) fn post_orders(
    module: &Module,
    computations: impl Iterator<Item = ComputationId>,
) -> Vec<u32> {
    let mut rows = Vec::with_capacity(module.row_count());
    let mut is_seen = vec![false; module.row_count()];
    for id in computations {
        post_order(module, module.computation(id).rows(), &mut is_seen, &mut rows);
    }
    rows
}

/// Operands before users, starting from unused rows, first to last.
fn post_order(module: &Module, rows: Range<u32>, is_seen: &mut [bool], order: &mut Vec<u32>) {
    let users = module.users();
    let mut stack: Vec<(u32, std::slice::Iter<'_, u32>)> = Vec::new();
    // Malformed text may contain cycles without outside users; these come last.
    let sinks = rows.clone().filter(|row| users.get(*row).is_empty());
    for start in sinks.chain(rows.clone()) {
        if std::mem::replace(&mut is_seen[start as usize], true) {
            continue;
        }
        stack.push((start, module.operands(Row(start)).iter()));
        while let Some((row, operands)) = stack.last_mut() {
            match operands.next() {
                Some(operand) => {
                    if rows.contains(operand)
                        && !std::mem::replace(&mut is_seen[*operand as usize], true)
                    {
                        stack.push((*operand, module.operands(Row(*operand)).iter()));
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
