//! Collectives that XLA has combined from several, such as gathers of the weights of all layers.
//!
//! Each result depends on one operand alone, so that what reads the weights of one layer depends on no other layer.
//! The node of the collective has no operands; `runs_after` gives what has to run before it.

use super::{Builder, Graph};
use crate::ir::{Opcode, ShapeId};

impl Graph {
    /// The combined collective of which a node is one result.
    pub fn combined_of(&self, node: u32) -> Option<u32> {
        self.nodes[node as usize].whole.filter(|own| self.combined.contains_key(own))
    }

    /// What runs before a node: its operands; before a combined collective those of all that it is combined from,
    /// and before their results the collective.
    pub fn runs_after(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let combined = self.combined.get(&node).into_iter().flatten();
        self.operands(node).iter().chain(combined).copied().chain(self.combined_of(node))
    }
}

impl Builder<'_, '_> {
    /// Whether a collective is several that XLA has combined, each result of one operand.
    pub fn is_combined(&self, opcode: Opcode, shape: ShapeId, read: &[u32]) -> bool {
        use Opcode::{AllGather, AllReduce, CollectivePermute, ReduceScatter};
        let each = self.module.shapes().tuple(shape).map(<[ShapeId]>::len);
        matches!(opcode, AllGather | AllReduce | CollectivePermute | ReduceScatter)
            && !self.opens
            && read.len() > 1
            && each == Some(read.len())
    }
}
