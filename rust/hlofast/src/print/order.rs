//! Orders in which definitions precede uses, as XLA's parser requires.

use crate::ir::{ComputationId, Module, Row};

/// The rows of a computation, operands and control predecessors first; otherwise in text order.
pub(crate) fn row_order(module: &Module, id: ComputationId) -> Vec<Row> {
    let rows = module.computation(id).rows();
    if is_in_order(module, id) {
        return rows.map(Row).collect();
    }
    let pairs = edges(module, id);
    let first = rows.start;
    let order = post_order(rows.len(), |local, index| {
        let row = Row(first + local as u32);
        let operands = module.operands(row);
        if let Some(operand) = operands.get(index) {
            return Some((*operand - first) as usize);
        }
        let start = pairs.partition_point(|(user, _)| *user < row);
        let (user, predecessor) = pairs.get(start + index - operands.len())?;
        (*user == row).then(|| (predecessor.0 - first) as usize)
    });
    order.into_iter().map(|local| Row(first + local as u32)).collect()
}

/// Whether [`row_order`] is the order of the text.
pub(crate) fn is_in_order(module: &Module, id: ComputationId) -> bool {
    let is_before = |row: u32| module.operands(Row(row)).iter().all(|operand| *operand < row);
    (module.is_ordered() || module.computation(id).rows().all(is_before))
        && edges(module, id).iter().all(|(row, predecessor)| predecessor < row)
}

/// The rows of a computation that have control predecessors, each with one of them.
fn edges(module: &Module, id: ComputationId) -> &[(Row, Row)] {
    let pairs = module.control_predecessors();
    if pairs.is_empty() {
        return pairs;
    }
    let rows = module.computation(id).rows();
    let from = pairs.partition_point(|(row, _)| row.0 < rows.start);
    let to = pairs.partition_point(|(row, _)| row.0 < rows.end);
    pairs.get(from..to).unwrap_or_default()
}

/// All nodes, each after the targets of its edges (node `n` has `edge(n, 0)`, `edge(n, 1)`, ...),
/// otherwise by number. Edges that close a cycle are ignored.
fn post_order(nodes: usize, edge: impl Fn(usize, usize) -> Option<usize>) -> Vec<usize> {
    let mut met = vec![false; nodes];
    let mut order = Vec::with_capacity(nodes);
    let mut stack: Vec<(usize, usize)> = Vec::new();
    for node in 0..nodes {
        if std::mem::replace(&mut met[node], true) {
            continue;
        }
        stack.push((node, 0));
        while let Some((node, index)) = stack.last_mut() {
            match edge(*node, *index) {
                Some(target) => {
                    *index += 1;
                    if met.get(target) == Some(&false) {
                        met[target] = true;
                        stack.push((target, 0));
                    }
                }
                None => {
                    order.push(*node);
                    stack.pop();
                }
            }
        }
    }
    order
}
