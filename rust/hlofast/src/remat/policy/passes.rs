//! Reductions that the fusion of a product makes, such as the maxima of attention scores.
//!
//! If they run again and the product does not, because a policy keeps it, a row of its own reads the product from
//! memory, and writes again what the fusion left besides it.

use super::graph::Graph;
use super::price::Prices;
use super::stored::PLAIN;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use hashbrown::HashMap;

/// Limit on the conversions between a result of a fusion and what computes it.
const MOST_CONVERSIONS: usize = 8;

/// A row that computes a product and reduces it.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// The row.
    pub outer: Row,
    /// Bytes of its largest product, and of what it makes of that and writes.
    pub bytes: i64,
}

/// The rows of `graph` that reduce products, ascending; `bytes` are those of nodes.
pub fn passes(graph: &Graph, bytes: impl Fn(u32) -> i64) -> Vec<Pass> {
    // By row: the bytes of its largest product, and whether it reduces.
    let mut known: HashMap<Row, (i64, bool), BuildMix> = HashMap::default();
    for (number, node) in (0u32..).zip(&graph.nodes) {
        let own = known.entry(node.outer).or_default();
        if node.opcode.is_matmul() {
            own.0 = own.0.max(bytes(number));
        }
        own.1 |= is_reduction(node.opcode);
    }
    let of_row = |(outer, (product, reduces)): (Row, (i64, bool))| {
        let mut made = Vec::new();
        graph.result(outer).leaves(&mut made, &mut 0);
        made.sort_unstable();
        made.dedup();
        let is_written = |node: &&u32| {
            let opcode = graph.nodes[unconverted(graph, **node) as usize].opcode;
            is_reduction(opcode) || opcode == Opcode::Exponential
        };
        let written: i64 = made.iter().filter(is_written).map(|node| bytes(*node)).sum();
        (reduces && product > 0).then(|| Pass { outer, bytes: product.saturating_add(written) })
    };
    let mut found: Vec<Pass> = known.into_iter().filter_map(of_row).collect();
    found.sort_unstable_by_key(|own| own.outer);
    found
}

/// Seconds of the rows among `reduced` whose products do not run again; `again` are rows that do, ascending.
pub fn seconds(
    passes: &[Pass],
    module: &Module,
    reduced: &[Row],
    again: &[Row],
    prices: &Prices<'_>,
) -> Option<f64> {
    let Some(rate) = prices.bytes_per_second else { return Some(0.0) };
    let mut sum = 0.0;
    for row in reduced.iter().filter(|row| again.binary_search(row).is_err()) {
        let Ok(at) = passes.binary_search_by_key(row, |own| own.outer) else { continue };
        let runs = prices.runs(module.computation_of(*row))?;
        sum += PLAIN * passes[at].bytes as f64 * runs as f64 / rate;
    }
    Some(sum)
}

fn is_reduction(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Reduce | Opcode::ReduceWindow)
}

/// What a node converts.
fn unconverted(graph: &Graph, node: u32) -> u32 {
    let mut at = node;
    for _ in 0..MOST_CONVERSIONS {
        match graph.operands(at).first() {
            Some(operand) if graph.nodes[at as usize].opcode == Opcode::Convert => at = *operand,
            _ => break,
        }
    }
    at
}
