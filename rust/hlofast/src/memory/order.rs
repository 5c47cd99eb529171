//! Orders of instructions other than the order of the text.

use super::schedule::Order;
use crate::ir::{ComputationId, Module};
use smallvec::SmallVec;
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
        let own = module.computation(id).rows();
        // Malformed text may contain cycles without outside users; these come last.
        let sinks = own.clone().filter(|row| module.users().get(*row).is_empty());
        post_order(module, own.clone(), sinks.chain(own), &mut is_seen, &mut rows);
    }
    rows
}

/// Adds those of `rows` that `starts` reach, operands before users, from the first start to the last.
pub(super) fn post_order(
    module: &Module,
    rows: Range<u32>,
    starts: impl Iterator<Item = u32>,
    is_seen: &mut [bool],
    order: &mut Vec<u32>,
) {
    let columns = module.columns();
    let (offsets, operands) = (&columns.operand_offsets[..], &columns.operands[..]);
    let of =
        |row: u32| &operands[offsets[row as usize] as usize..offsets[row as usize + 1] as usize];
    // Rows with the operands that are left.
    let mut stack: SmallVec<[(u32, &[u32]); 16]> = SmallVec::new();
    for start in starts {
        if std::mem::replace(&mut is_seen[start as usize], true) {
            continue;
        }
        stack.push((start, of(start)));
        while let Some((row, left)) = stack.last_mut() {
            let Some((operand, others)) = left.split_first() else {
                order.push(*row);
                stack.pop();
                continue;
            };
            *left = others;
            if rows.contains(operand) && !std::mem::replace(&mut is_seen[*operand as usize], true) {
                match of(*operand) {
                    [] => order.push(*operand),
                    own => stack.push((*operand, own)),
                }
            }
        }
    }
}
