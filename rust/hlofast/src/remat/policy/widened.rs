//! Products of scores that the forward body writes in a wider type than their own.
//!
//! XLA for TPUs makes a softmax over more than [`MOST_KEYS`] keys from scores in the type in which it sums. A policy
//! that keeps the product keeps it in its own type, so that its fusion writes both: so do `long_v5p_8`,
//! `held_long_v5p_16` and `roomy_long_v5e_8` with all matmuls saved. On v6e no text shows it, nor the contrary.

use super::graph::Graph;
use super::scans::node_of;
use super::softmax::{MOST_KEYS, between, row_length};
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, Module, Opcode};
use crate::memory::LiveValue;
use hashbrown::HashMap;
use std::ops::RangeInclusive;

/// A product that is in memory in a wider type: its node, by how many bytes less is in memory if it is kept (then in
/// its own type), and the steps.
pub type Widened = (u32, i64, RangeInclusive<u32>);

/// Values of fewer bytes do not matter.
const LEAST: i64 = 1 << 20;

/// The products of a scheduled body that are written in a wider type, until their exponentials have been read.
pub fn widened(
    module: &Module,
    (body, id): (&Graph, ComputationId),
    values: &[LiveValue],
    sizes: &[i64],
) -> Vec<Widened> {
    let node = |node: u32| &body.nodes[node as usize];
    let elements = |own: u32| module.shapes().array(node(own).shape)?.elements();
    let is_exponential = |own: &u32| node(*own).opcode == Opcode::Exponential;
    let exponentials: Vec<u32> = (0..body.nodes.len() as u32).filter(is_exponential).collect();
    if exponentials.is_empty() {
        return Vec::new();
    }
    let rows = module.computation(id).rows();
    let mut held: HashMap<u32, Vec<&LiveValue>, BuildMix> = HashMap::default();
    for value in values.iter().filter(|own| own.bytes > LEAST && rows.contains(&own.row.0)) {
        if let Some(node) = node_of(body, value) {
            held.entry(node).or_default().push(value);
        }
    }
    let mut found: Vec<Widened> = Vec::new();
    for own in exponentials {
        let Some((product, ways)) = between(module, body, own, |own| own.opcode.is_matmul()) else {
            continue;
        };
        let narrow = body.bytes(product, sizes);
        let wide = |own: &u32| {
            let values = held.get(own).into_iter().flatten();
            values.filter(|value| value.bytes > narrow)
        };
        let scores = || ways.iter().chain([&product]).flat_map(wide);
        let keys = row_length(body, product, elements);
        let Some(first) = scores().map(|value| value.first_step).min() else { continue };
        if keys.is_some_and(|keys| keys > MOST_KEYS) && narrow > LEAST {
            let last = scores().chain(wide(&own)).map(|value| value.last_step);
            found.push((product, -narrow, first..=last.max().unwrap_or(first)));
        }
    }
    found.sort_unstable_by_key(|own| (own.0, *own.2.start(), *own.2.end()));
    found.dedup_by(|later, own| {
        let is_same = later.0 == own.0;
        if is_same {
            own.2 = *own.2.start()..=(*own.2.end()).max(*later.2.end());
        }
        is_same
    });
    found
}
