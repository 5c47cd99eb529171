//! What the values of layers without a loop are made from: constants, weights or other values.

use super::graph::Graph;
use super::is_collective;
use super::scans::{MOST_REARRANGED, is_rearrangement};
use crate::ir::Opcode;

/// What a node is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Constants alone: masks, positions, tables of angles.
    Constants,
    /// One parameter, converted, rearranged or gathered.
    Weight,
    /// Anything else.
    Values,
}

/// By node: what it is made from.
pub fn origins(graph: &Graph) -> Vec<Origin> {
    let mut origins = Vec::with_capacity(graph.nodes.len());
    // Rearrangements and gathers in a row, so far.
    let mut lengths = vec![0u32; graph.nodes.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        let operands = graph.operands(at as u32);
        let of = |operand: &u32| origins[*operand as usize];
        let origin = match operands {
            _ if node.element.is_some() => Origin::Weight,
            // The operands of a collective that XLA has combined of several are apart.
            [] if is_collective(node.opcode) => Origin::Values,
            [] if matches!(node.opcode, Opcode::Rng | Opcode::RngBitGenerator) => Origin::Values,
            [] => Origin::Constants,
            _ if operands.iter().all(|operand| of(operand) == Origin::Constants) => {
                Origin::Constants
            }
            [first, rest @ ..]
                if of(first) == Origin::Weight
                    && rest.iter().all(|operand| of(operand) == Origin::Constants)
                    && (is_rearrangement(node.opcode)
                        || is_collective(node.opcode)
                        || node.opcode == Opcode::CustomCall)
                    && lengths[*first as usize] < MOST_REARRANGED =>
            {
                lengths[at] = lengths[*first as usize] + 1;
                Origin::Weight
            }
            // XLA also gathers a weight by an all-reduce of zeros into which each device writes its part.
            [zeros, part, places @ ..]
                if node.opcode == Opcode::DynamicUpdateSlice
                    && of(zeros) == Origin::Constants
                    && of(part) == Origin::Weight
                    && places.iter().all(|place| of(place) == Origin::Constants)
                    && lengths[*part as usize] < MOST_REARRANGED =>
            {
                lengths[at] = lengths[*part as usize] + 1;
                Origin::Weight
            }
            _ => Origin::Values,
        };
        origins.push(origin);
    }
    origins
}

/// The parameter that a weight is made from.
pub fn parameter_of(graph: &Graph, weight: u32) -> Option<u32> {
    let mut at = weight;
    while graph.nodes[at as usize].element.is_none() {
        let index = usize::from(graph.nodes[at as usize].opcode == Opcode::DynamicUpdateSlice);
        at = *graph.operands(at).get(index)?;
    }
    Some(at)
}
