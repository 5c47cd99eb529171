//! What is in memory before the rings run in which devices multiply by weights that are split over all of
//! them, in a module that repeats layers without a loop.
//!
//! XLA adds up the gradient of such a weight in a loop around a ring of devices, with one sum for each of two
//! directions. Sums depend on nothing, and XLA makes room for them before the work that needs the most memory:
//! the scores of grouped attention in the last layer, in `unrolled_fsdp_v5e_16` under every policy and in
//! `unrolled_v6e_8` with nothing or products saved. It does the same for products of layers that add up the parts
//! of a weight, whose results are larger than what they multiply, if layers are checkpointed: else the weight is
//! gathered once for both passes. The weight of the head is gathered while the last layer runs. Without such
//! scores (`unrolled_vision_v6e_8`) sums are made as late as they are needed. A scheduled text has the sums of
//! gradients already.

use super::graph::Graph;
use super::groups::chain;
use super::layered::Layers;
use super::origins::{Origin, parameter_of};
use super::run_order::{Gathered, MANY, MOST_IN_RING};
use super::scans::is_rearrangement;
use super::stepped::Held;
use crate::cost::matmul::contraction;
use crate::flow::Phase;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row, ShapeId};
use hashbrown::HashMap;
use std::ops::RangeInclusive;

/// Sums of the gradient of one weight.
const DIRECTIONS: i64 = 2;

/// Bytes, and the steps at which they are in memory.
pub type Early = Vec<(i64, RangeInclusive<u32>)>;

/// An entry computation in which devices multiply by weights that are split over all of them.
pub struct Rings<'a, B> {
    pub graph: &'a Graph,
    /// By node: the step at which it runs.
    pub runs: &'a [u32],
    /// By node: its phase.
    pub phases: &'a [Phase],
    /// By node: the layer that it is in.
    pub layer: &'a [Option<u32>],
    /// The bytes of a node.
    pub bytes: B,
}

impl<B: Fn(u32) -> i64> Rings<'_, B> {
    /// The sums of gradients of weights; `is_gradient` tells which nodes these are.
    pub fn sums(&self, is_gradient: &[bool]) -> Early {
        let nodes = (0..self.graph.nodes.len() as u32).filter(|node| is_gradient[*node as usize]);
        let sums = nodes.filter_map(|node| {
            let last = self.runs[node as usize].checked_sub(1)?;
            Some(((self.bytes)(node).saturating_mul(DIRECTIONS), 0..=last))
        });
        sums.collect()
    }

    /// By layer: the first step of its forward part.
    fn first(&self) -> HashMap<u32, u32, BuildMix> {
        let mut first: HashMap<u32, u32, BuildMix> = HashMap::default();
        for (at, node) in self.graph.nodes.iter().enumerate() {
            let is_forward = node.opcode.is_matmul() && self.phases[at] == Phase::Forward;
            if let Some(own) = self.layer[at].filter(|_| is_forward) {
                let known = first.entry(own).or_insert(self.runs[at]);
                *known = self.runs[at].min(*known);
            }
        }
        first
    }

    /// The `gathered` weights of the head, while the last layer runs.
    pub fn head(&self, gathered: &[Gathered]) -> Early {
        let last_layer = self.first().values().copied().max().unwrap_or(0);
        let is_head = |own: &&Gathered| {
            let at = own.product as usize;
            self.layer[at].is_none() && self.phases[at] == Phase::Forward
        };
        let heads = gathered.iter().filter(is_head).filter_map(|own| {
            let until = self.runs[own.product as usize].checked_sub(1)?;
            (last_layer <= until).then_some((own.bytes, last_layer..=until))
        });
        heads.collect()
    }

    /// The results of products of layers with `gathered` weights, if layers are checkpointed.
    pub fn results(&self, gathered: &[Gathered]) -> Early {
        let first = self.first();
        let results = gathered.iter().filter(|own| own.adds_up).filter_map(|own| {
            let (node, at) = (own.product, own.product as usize);
            let until = self.runs[at].checked_sub(1)?;
            let from = match self.phases[at] {
                Phase::Forward => first.get(&self.layer[at]?).copied().unwrap_or(0),
                Phase::Backward if self.layer[at].is_some() => 0,
                _ => return None,
            };
            let read = self.graph.operands(node).iter().filter(|read| **read != own.weight);
            let read = read.map(|own| (self.bytes)(*own)).max().unwrap_or(0);
            let bytes = (self.bytes)(node);
            (bytes > read && from <= until).then_some((bytes, from..=until))
        });
        results.collect()
    }
}

/// What rings of a scheduled module hold before they run if its layers are checkpointed. `steps`, `bytes`
/// and `is_backward` are those of nodes, `held` the values in memory.
pub fn ahead(
    module: &Module,
    graph: &Graph,
    (layers, origins): (&Layers, &[Origin]),
    (steps, bytes, is_backward): (&[u32], &[i64], &[bool]),
    held: &[Held],
) -> Early {
    let bytes = |node: u32| bytes[node as usize];
    let gathered = gathered_from_all(module, graph, origins);
    let layer: Vec<Option<u32>> = graph.nodes.iter().map(|node| layers.of_row(node.row)).collect();
    let phase = |own: &bool| if *own { Phase::Backward } else { Phase::Forward };
    let phases: Vec<Phase> = is_backward.iter().map(phase).collect();
    let rings = Rings { graph, runs: steps, phases: &phases, layer: &layer, bytes };
    let mut ahead = rings.results(&gathered);
    for own in &gathered {
        // The text itself gathers the weight of the head later.
        let chain = chain(graph, own.weight);
        let held = held.iter().filter(|held| chain.contains(&held.node));
        let first = held.map(|held| *held.steps.start()).min().unwrap_or(u32::MAX);
        let until = |steps: &RangeInclusive<u32>| first.saturating_sub(1).min(*steps.end());
        let head = rings.head(std::slice::from_ref(own)).into_iter();
        ahead.extend(head.map(|(bytes, steps)| (bytes, *steps.start()..=until(&steps))));
    }
    ahead
}

/// By node: whether a product in a loop reads it, through rows that only rearrange it.
pub fn in_rings(module: &Module, graph: &Graph) -> Vec<bool> {
    let mut found = vec![false; graph.nodes.len()];
    for (at, node) in graph.nodes.iter().enumerate().rev() {
        let is_product = node.opcode.is_matmul() && module.opcode(node.outer) == Opcode::While;
        if is_product || is_rearrangement(node.opcode) && found[at] {
            graph.operands(at as u32).iter().for_each(|own| found[*own as usize] = true);
        }
    }
    found
}

/// The weights that devices gather from all others for the products of a scheduled entry computation,
/// none if there are few devices.
fn gathered_from_all(module: &Module, graph: &Graph, origins: &[Origin]) -> Vec<Gathered> {
    let count = |own: Option<i64>| own.unwrap_or(1).max(1);
    let devices = count(module.num_partitions()).saturating_mul(count(module.replica_count()));
    let shapes = module.shapes();
    let elements = |shape| {
        let array = shapes.array(shape).and_then(|array| array.elements());
        array.and_then(|own| i64::try_from(own).ok())
    };
    let products = (0u32..).zip(&graph.nodes).filter(|(_, own)| own.opcode.is_matmul());
    let gathered = products.flat_map(|(product, own)| {
        let rows = module.operands(own.row).iter();
        rows.zip(graph.operands(product)).map(move |(row, weight)| (product, Row(*row), *weight))
    });
    // The operand of the row is whole where what a fusion hands on is a part.
    let gathered = gathered.filter_map(|(product, row, weight)| {
        let is_weight = origins[weight as usize] == Origin::Weight;
        let is_parameter = graph.nodes[weight as usize].element.is_some();
        let part = (is_weight || is_parameter).then(|| parameter_of(graph, weight))??;
        let whole = module.shape(row);
        let ways = elements(whole)?.checked_div(elements(graph.nodes[part as usize].shape)?)?;
        let bytes = i64::try_from(shapes.logical_bytes(whole)?).ok()?;
        let is_whole = ways == devices && (MANY..=MOST_IN_RING).contains(&ways);
        let adds_up =
            is_contracted(module, graph, product, [whole, graph.nodes[part as usize].shape]);
        is_whole.then_some(Gathered { product, weight, bytes, ways, adds_up })
    });
    gathered.collect()
}

/// Whether a product contracts the dimension in which a weight and the part of one device differ.
fn is_contracted(module: &Module, graph: &Graph, product: u32, shapes: [ShapeId; 2]) -> bool {
    let [whole, part] = shapes.map(|shape| {
        let array = module.shapes().array(shape);
        let sizes = array.map(|own| own.dimensions().filter_map(|size| size.bound()).collect());
        let sizes: Vec<_> = sizes.unwrap_or_default();
        sizes.into_iter().filter(|size| *size > 1).collect::<Vec<_>>()
    });
    let Some(own) = contraction(module, graph.nodes[product as usize].row) else { return false };
    let split = whole.iter().zip(&part).find(|(whole, part)| whole != part);
    split.is_some_and(|(whole, _)| u64::try_from(*whole) == Ok(own.k))
}
