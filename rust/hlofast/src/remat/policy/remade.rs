//! What the backward parts of unrolled layers recompute already, in a text whose layers are under
//! `jax.checkpoint`: which expensive values of the forward pass, and while which steps they are in memory.

use super::graph::Graph;
use super::layered::{Layers, inside};
use super::named::{components, is_step};
use super::products::Products;
use super::recomputed::{COMPONENTS, expensive};
use super::stepped::Held;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use hashbrown::{HashMap, HashSet};
use std::ops::RangeInclusive;

/// Values, each with the node that names it.
type Pairs = Vec<(u32, u32)>;
/// What tells the values of a layer apart: layer, opcode, elements, names, source line and stack.
type Key<'a> = (u32, u16, u64, Vec<&'a [u8]>, i32, i32);

/// Recomputed values.
#[derive(Debug, Default)]
pub struct Remade {
    /// By node of the forward pass: the node that recomputes it.
    pub twin: Vec<Option<u32>>,
    /// Recomputed values in memory: the node of the forward pass, bytes and steps.
    pub live: Vec<(u32, i64, RangeInclusive<u32>)>,
    /// Values that gradients read: the node of the forward pass, and the last step that reads it.
    pub needs: Vec<(u32, u32)>,
}

impl Remade {
    /// What `graph` recomputes; `step_of` gives the step of a node, `is_backward` whether it belongs to the
    /// backward pass, `is_recomputed` whether `jax.checkpoint` recomputes a row.
    pub fn new(
        module: &Module,
        graph: &Graph,
        layers: &Layers,
        values: &[Held],
        is_backward: &[bool],
        step_of: impl Fn(u32) -> u32,
        is_recomputed: impl Fn(Row) -> bool,
    ) -> Self {
        let is_again: Vec<bool> = graph.nodes.iter().map(|node| is_recomputed(node.row)).collect();
        let all = expensive(graph, &Products::new(module, graph));
        let mut twin: Vec<Option<u32>> = vec![None; graph.nodes.len()];
        // By recomputed node: the node of the forward pass.
        let mut of: HashMap<u32, u32, BuildMix> = HashMap::default();
        for with_frame in [true, false] {
            let mut known: HashMap<Key<'_>, Vec<u32>, BuildMix> = HashMap::default();
            let (again, first): (Pairs, Pairs) = all
                .iter()
                .copied()
                .partition(|(node, of)| is_again[*node as usize] || is_again[*of as usize]);
            for (node, named) in first.into_iter().rev() {
                // Gradients may have the names of what they are gradients of.
                if twin[node as usize].is_none() && !is_backward[named as usize] {
                    let key = key(module, graph, layers, node, named, with_frame);
                    known.entry(key).or_default().push(node);
                }
            }
            for (node, named) in again {
                if of.contains_key(&node) {
                    continue;
                }
                let key = key(module, graph, layers, node, named, with_frame);
                if let Some(found) = known.get_mut(&key).and_then(Vec::pop) {
                    twin[found as usize] = Some(node);
                    of.insert(node, found);
                }
            }
        }
        // By node: the last step at which gradients read it.
        let mut read: Vec<Option<u32>> = vec![None; graph.nodes.len()];
        let mut needs = Vec::new();
        for node in (0..graph.nodes.len() as u32).rev() {
            let last = match is_again[node as usize] {
                true => read[node as usize],
                false => Some(step_of(node)),
            };
            if let Some(forward) = of.get(&node) {
                needs.extend(last.map(|last| (*forward, last)));
                continue;
            }
            for operand in graph.operands(node) {
                let operand = &mut read[*operand as usize];
                *operand = (*operand).max(last);
            }
        }
        let is_value: HashSet<u32, BuildMix> = all.iter().map(|(node, _)| *node).collect();
        let mut live = Vec::new();
        for value in values {
            let node = value.node;
            let mut forward = of.get(&node).copied();
            // Rows that compute the same value from the same operands are one node already.
            if forward.is_none() && is_value.contains(&node) && is_recomputed(value.row) {
                needs.push((node, *value.steps.end()));
                twin[node as usize] = Some(node);
                forward = Some(node);
            }
            live.extend(forward.map(|forward| (forward, value.bytes, value.steps.clone())));
        }
        Remade { live, twin, needs }
    }
}

fn key<'a>(
    module: &'a Module,
    graph: &Graph,
    layers: &Layers,
    node: u32,
    named: u32,
    with_frame: bool,
) -> Key<'a> {
    let own = &graph.nodes[graph.nodes[named as usize].whole.unwrap_or(named) as usize];
    let opcode = if own.opcode.is_matmul() { Opcode::Dot } else { own.opcode };
    let shape = module.shapes().array(graph.nodes[node as usize].shape);
    let elements = shape.and_then(|array| array.elements()).unwrap_or(0);
    let columns = module.metadata_columns();
    let at = |column: &[i32]| column.get(own.row.0 as usize).copied().unwrap_or(-1);
    let names = components(module, own.row).filter(|name| !is_step(name)).map(inside);
    let names = names.filter(|name| !name.is_empty()).take(COMPONENTS).collect();
    let layer = layers.of_row(own.row).unwrap_or(u32::MAX);
    let frame = if with_frame { at(&columns.frame) } else { -1 };
    (layer, opcode as u16, elements, names, at(&columns.source_line), frame)
}
