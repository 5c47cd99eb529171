//! What is in memory before the rings run in which devices multiply by weights that are split over all of
//! them, in an unscheduled module that repeats layers without a loop.
//!
//! XLA adds up the gradient of such a weight in a loop around a ring of devices, with one sum for each of two
//! directions. Sums depend on nothing, and XLA makes room for them before the work that needs the most memory:
//! the scores of grouped attention in the last layer, in `unrolled_fsdp_v5e_16` under every policy and in
//! `unrolled_v6e_8` with nothing or products saved. It does the same for products of layers that add up the parts
//! of a weight, whose results are larger than what they multiply, if layers are checkpointed: else the weight is
//! gathered once for both passes. The weight of the head is gathered while the last layer runs. Without such
//! scores (`unrolled_vision_v6e_8`) sums are made as late as they are needed.

use super::graph::Graph;
use super::layout::{Layout, Steps};
use super::run_order::{Transfers, gathered_weights};
use crate::flow::Phase;
use crate::ir::intern::BuildMix;
use hashbrown::HashMap;
use std::ops::RangeInclusive;

/// Sums of the gradient of one weight.
const DIRECTIONS: i64 = 2;

/// Bytes, and the steps at which they are in memory.
pub type Early = Vec<(i64, RangeInclusive<u32>)>;

/// What is in memory before it is used.
#[derive(Debug, Default)]
pub struct Rings {
    /// In any step.
    pub always: Early,
    /// In steps whose layers are checkpointed.
    pub checkpointed: Early,
}

impl Rings {
    /// That of an entry computation; `is_gradient` tells by node whether it is the gradient of a weight,
    /// `is_wide` whether scores are in memory in a wider type.
    pub fn new(
        layout: &Layout<'_>,
        graph: &Graph,
        steps: &Steps,
        (phases, layer): (&[Phase], &[Option<u32>]),
        is_gradient: &[bool],
        transfers: Transfers,
        is_wide: bool,
    ) -> Self {
        let mut rings = Rings::default();
        if transfers != Transfers::All || !is_wide {
            return rings;
        }
        let runs = |node: u32| steps.runs[node as usize];
        for node in (0..graph.nodes.len() as u32).filter(|node| is_gradient[*node as usize]) {
            if let Some(last) = runs(node).checked_sub(1) {
                rings.always.push((layout.bytes(graph, node).saturating_mul(DIRECTIONS), 0..=last));
            }
        }
        let is_forward = |node: u32| phases[node as usize] == Phase::Forward;
        // By layer: the first step of its forward part.
        let mut first: HashMap<u32, u32, BuildMix> = HashMap::default();
        let products = (0u32..).zip(&graph.nodes).filter(|(_, own)| own.opcode.is_matmul());
        for (node, _) in products.filter(|(node, _)| is_forward(*node)) {
            if let Some(own) = layer[node as usize] {
                let known = first.entry(own).or_insert(runs(node));
                *known = runs(node).min(*known);
            }
        }
        let last_layer = first.values().copied().max().unwrap_or(0);
        for own in gathered_weights(graph, layout.local, true) {
            let (node, at) = (own.product, own.product as usize);
            let (Some(until), is_own) = (runs(node).checked_sub(1), is_forward(node)) else {
                continue;
            };
            let Some(layer) = layer[at] else {
                if is_own && last_layer <= until {
                    rings.always.push((own.bytes, last_layer..=until));
                }
                continue;
            };
            let from = match phases[at] {
                Phase::Forward => first.get(&layer).copied().unwrap_or(0),
                Phase::Backward => 0,
                _ => continue,
            };
            let bytes = layout.bytes(graph, node);
            let read = graph.operands(node).iter().filter(|read| **read != own.weight);
            let read = read.map(|own| layout.bytes(graph, *own)).max().unwrap_or(0);
            if bytes > read && from <= until {
                rings.checkpointed.push((bytes, from..=until));
            }
        }
        rings
    }
}
