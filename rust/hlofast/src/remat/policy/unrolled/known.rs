//! What is known of unrolled layers, for the programs that `simulated_layers` makes of them.

use super::Unrolled;
use crate::ir::Row;
use crate::remat::policy::origins::Origin;

impl Unrolled {
    /// Whether the layers are in a loop.
    pub fn is_in_loop(&self) -> bool {
        self.is_in_loop
    }

    /// The layer of a row, and whether it is known.
    pub fn layer_of_row(&self, row: Row) -> (Option<u32>, bool) {
        (self.layers.of_row(row), self.layers.knows(row))
    }

    /// The rows that compute values of the program, not weights or constants.
    pub fn rows_of_values(&self) -> impl Iterator<Item = Row> + '_ {
        let of = self.graph.nodes.iter().zip(&self.origins);
        of.filter(|(_, origin)| **origin == Origin::Values).map(|(node, _)| node.row)
    }

    /// By savable value: in each layer the row that computes it, and the row of the computation in which that runs.
    pub fn members(&self) -> impl Iterator<Item = impl Iterator<Item = (Row, Row)> + '_> + '_ {
        self.members.iter().map(move |nodes| nodes.iter().map(|node| self.rows_of(*node)))
    }

    /// Products of the forward pass that are in a wider type if nothing keeps them: their rows as above, the bytes in
    /// that type, and the bytes beside theirs if they run again and if they are kept.
    pub fn wide(&self) -> impl Iterator<Item = ((Row, Row), i64, [i64; 2])> + '_ {
        self.wide.iter().map(|(node, whole, beside)| (self.rows_of(*node), *whole, *beside))
    }

    fn rows_of(&self, node: u32) -> (Row, Row) {
        let node = &self.graph.nodes[node as usize];
        (node.row, node.outer)
    }
}
