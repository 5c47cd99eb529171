//! What it costs to run values of unrolled layers again.

use super::Unrolled;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Row};
use crate::remat::policy::graph::Graph;
use crate::remat::policy::passes;
use crate::remat::policy::price::Prices;
use crate::remat::policy::softmax::InLayer;
use crate::remat::policy::{Outcome, is_collective};
use hashbrown::HashMap;

/// By combined collective: the bytes of its results.
pub type Combined = HashMap<u32, u64, BuildMix>;

/// The bytes of the results of collectives that XLA has combined: each takes its part of the time.
pub fn combined_bytes(module: &Module, graph: &Graph) -> Combined {
    let mut sums = Combined::default();
    for (number, node) in (0u32..).zip(&graph.nodes) {
        let own = graph.combined_of(number).zip(module.shapes().logical_bytes(node.shape));
        if let Some((whole, bytes)) = own {
            let sum = sums.entry(whole).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    sums
}

impl Unrolled {
    /// Adds the cost of what runs again.
    pub fn price(
        &self,
        module: &Module,
        nodes: &[u32],
        (prices, flops): (&Prices<'_>, impl Fn(Row) -> Option<i64>),
        outcome: &mut Outcome,
    ) {
        let mut outer: Vec<Row> = Vec::new();
        let mut reduced: Vec<Row> = Vec::new();
        for number in nodes {
            let node = &self.graph.nodes[*number as usize];
            outcome.again.push(node.row);
            if let Some(whole) = self.graph.combined_of(*number) {
                let row = self.graph.nodes[whole as usize].row;
                let own = module.shapes().logical_bytes(node.shape);
                let share = own
                    .zip(self.combined.get(&whole))
                    .map(|(own, sum)| own as f64 / (*sum).max(1) as f64);
                let sent = prices.wire_bytes(module, row).zip(share);
                let sent = sent.map(|(sent, share)| (sent as f64 * share) as i64);
                outcome.send(prices.collective_of(row), sent);
                let outer = self.graph.nodes[whole as usize].outer;
                let seconds = prices.seconds_of(module, outer, 0).zip(share);
                let seconds = seconds.map(|(seconds, share)| seconds * share);
                outcome.seconds = outcome.seconds.zip(seconds).map(|(a, b)| a + b);
                continue;
            }
            let is_dear = node.opcode.is_matmul() || is_collective(node.opcode);
            // A reduction fused with a product takes the time of the product, which may be saved.
            if is_dear || self.products.binary_search(&node.outer).is_err() {
                outer.push(node.outer);
            } else {
                reduced.push(node.outer);
            }
            if node.opcode.is_matmul() {
                let is_repeated =
                    |own: &InLayer| own.softmax.product == *number && own.softmax.is_written;
                let copies = match self.softmaxes.iter().any(is_repeated) {
                    true => self.graph.copies(*number),
                    false => &[],
                };
                for row in copies.iter().chain([&node.row]) {
                    let own = flops(*row);
                    outcome.flops = outcome.flops.zip(own).and_then(|(a, b)| a.checked_add(b));
                }
            }
            if is_collective(node.opcode) && node.whole.is_none() {
                let sent = prices.wire_bytes(module, node.row);
                outcome.send(prices.collective_of(node.row), sent);
            }
        }
        for rows in [&mut outer, &mut reduced] {
            rows.sort_unstable();
            rows.dedup();
        }
        let passes = passes::seconds(&self.passes, module, &reduced, &outer, prices);
        outcome.seconds = outcome.seconds.zip(passes).map(|(a, b)| a + b);
        for row in outer {
            let seconds = prices.seconds_of(module, row, 0);
            outcome.seconds = outcome.seconds.zip(seconds).map(|(a, b)| a + b);
        }
    }
}
