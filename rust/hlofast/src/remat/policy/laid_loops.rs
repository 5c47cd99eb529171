//! Loops in the layers of a module that is not scheduled: one iteration is in memory while such a loop runs,
//! beside what it stacks.

use super::graph::Graph;
use super::layout::Layout;
use super::pairs::DEEPEST;
use super::run_order::shared;
use super::scans::is_heavy;
use crate::ir::{CallRole, Opcode, Row};

impl Layout<'_> {
    /// Lays out one iteration of a loop in a layer.
    pub fn iteration_of(&mut self, row: Row, is_backward: bool, depth: u32) -> Option<()> {
        let Some(body) = self.module.called(row, CallRole::Body).filter(|_| depth < DEEPEST) else {
            return Some(());
        };
        let mut graph = Graph::new(self.module, body, &[], &mut self.budget)?;
        self.mark_transfers(&mut graph);
        let own = shared(self.module, &graph, self.is_gpu(), |_, _, _| true);
        graph.shared.extend(own);
        share_states(&mut graph);
        self.run(&graph, is_backward, depth + 1)?;
        Some(())
    }

    /// The bytes on one device of a product in one iteration of a loop in a layer, in the type of its node.
    pub fn bytes_of_shape(&self, graph: &Graph, node: u32) -> i64 {
        let own = &graph.nodes[node as usize];
        let bits = |shape| {
            let array = self.module.shapes().array(shape);
            array.map_or(1, |array| i64::from(array.element_type.bits()).max(1))
        };
        let held = self.local.bytes(self.module, own.row, 0);
        (held / bits(self.module.shape(own.row))).saturating_mul(bits(own.shape))
    }
}

/// Marks the cheap values that loops in a layer get: they are in memory.
pub fn share_states(graph: &mut Graph) {
    let read = graph.within.keys().flat_map(|node| graph.operands(*node)).copied();
    let is_made = |node: &u32| {
        let own = &graph.nodes[*node as usize];
        let is_cheap = own.element.is_none() && !is_heavy(own.opcode);
        is_cheap && own.opcode != Opcode::Constant && own.opcode != Opcode::Broadcast
    };
    let read: Vec<u32> = read.filter(is_made).collect();
    graph.shared.extend(read);
}
