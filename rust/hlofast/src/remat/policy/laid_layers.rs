//! Layers that an unscheduled module repeats without a loop: when their values would be in memory.
//!
//! As in the bodies of loops, the values of products, kernels and reductions are in memory until the last
//! of them that reads them, also through cheap work, which XLA fuses into the operations that read its
//! result. A cheap value that several products read is computed once; for products of both passes it is
//! computed once in each, unless weights come from many devices. XLA adds what goes around a layer to the
//! layer's last product in one operation, so that the sum is in memory, and not the product.

use super::graph::Graph;
use super::layer_order::layer_order;
use super::layout::{Layout, Steps};
use super::origins::{Origin, origins};
use super::run_order::{Transfers, gathered_weights, shared};
use super::scans::is_heavy;
use super::stepped::Held;
use crate::flow::Phase;
use crate::ir::Opcode;

/// An entry computation that repeats layers, laid out.
pub struct LaidLayers {
    /// By node: the step at which it runs.
    pub runs: Vec<u32>,
    /// By node: its bytes.
    pub bytes: Vec<i64>,
    /// The values in memory.
    pub held: Vec<Held>,
    /// By step: the change of the bytes from the step before.
    pub changes: Vec<i64>,
    /// By step: the row that runs.
    pub rows: Vec<u32>,
}

/// When a value is read, also through cheap work: the first and the last step in each pass.
#[derive(Clone, Copy, Default)]
struct Reads {
    fore: Option<(u32, u32)>,
    aft: Option<(u32, u32)>,
}

impl Reads {
    fn at(step: u32, back: u32) -> Self {
        let own = Some((step, step));
        if step < back { Reads { fore: own, aft: None } } else { Reads { fore: None, aft: own } }
    }

    fn add(&mut self, other: Self) {
        let join = |a: Option<(u32, u32)>, b: Option<(u32, u32)>| match (a, b) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (own, None) | (None, own) => own,
        };
        *self = Reads { fore: join(self.fore, other.fore), aft: join(self.aft, other.aft) };
    }
}

/// Lays out the entry computation of `graph`, in which it marks what is computed once. `phases` and
/// `layer` are those of nodes.
pub fn lay_out_layers(
    mut layout: Layout<'_>,
    graph: &mut Graph,
    phases: &[Phase],
    layer: &[Option<u32>],
) -> LaidLayers {
    layout.mark_transfers(graph);
    let origins = origins(graph);
    let is_later = |node: u32| matches!(phases[node as usize], Phase::Backward | Phase::Recompute);
    let is_in_layer = |node: u32| layer[node as usize].is_some();
    let is_sum = sums(&layout, graph, is_in_layer, &origins);
    let transfers = Transfers::of(graph, layout.local, true);
    // By node: whether its value, if it is computed once, is kept for the backward pass.
    let is_kept: Vec<bool> = match transfers {
        Transfers::Many => vec![true; graph.nodes.len()],
        Transfers::All => is_softmax(graph).into_iter().map(|own| !own).collect(),
        _ => vec![false; graph.nodes.len()],
    };
    let own = shared(graph, |node, a, b| {
        let are_together = is_kept[node as usize] || is_later(a) == is_later(b);
        are_together && is_in_layer(a) && is_in_layer(b)
    });
    graph.shared.extend(own.into_iter().filter(|own| is_in_layer(*own)));
    let mut steps = Steps::new(graph, 0);
    let order = layer_order(&layout, graph, phases, layer, &origins, transfers);
    for node in order {
        steps.runs[node as usize] = layout.step(graph.nodes[node as usize].row);
    }
    let end = (layout.rows.len() as u32).saturating_sub(1);
    steps.all = 0..=end;
    let nodes = 0..graph.nodes.len() as u32;
    let products = nodes.clone().filter(|node| graph.nodes[*node as usize].opcode.is_matmul());
    let back = products.clone().filter(|node| is_later(*node));
    let back = back.map(|node| steps.runs[node as usize]).min().unwrap_or(end);
    let mut reads = vec![Reads::default(); graph.nodes.len()];
    let mut ends = Vec::new();
    graph.root.leaves(&mut ends, &mut 0);
    ends.into_iter().for_each(|own| reads[own as usize].add(Reads::at(end, back)));
    // By node: whether its value is in memory from its step to its last reader.
    let is_held = |node: u32| is_heavy(graph.nodes[node as usize].opcode) || is_sum[node as usize];
    for node in nodes.clone().rev() {
        let (at, runs) = (node as usize, steps.runs[node as usize]);
        let mut own = Reads::at(runs, back);
        if !is_held(node) {
            match graph.shared.contains(&node) {
                true if is_kept[at] => {}
                // The backward pass recomputes it from its operands.
                true => own.aft = own.aft.or(reads[at].aft),
                false => own = reads[at],
            }
        }
        graph.operands(node).iter().for_each(|operand| reads[*operand as usize].add(own));
    }
    for node in nodes.clone() {
        let own = reads[node as usize];
        steps.last[node as usize] = own.aft.or(own.fore).map(|(_, last)| last);
    }
    steps.in_place = layout.in_place(graph, &steps, transfers);
    let bytes: Vec<i64> = nodes.clone().map(|node| layout.bytes(graph, node)).collect();
    let mut held = Vec::new();
    for node in nodes.clone() {
        let (at, own) = (node as usize, reads[node as usize]);
        if graph.nodes[at].element.is_some() {
            continue;
        }
        let from = steps.held_from(node);
        let is_early = steps.runs[at] < back;
        let mut spans = Vec::new();
        if is_held(node) || is_kept[at] && graph.shared.contains(&node) {
            spans.push(from..=steps.last[at].unwrap_or(steps.runs[at]));
        } else if graph.shared.contains(&node) {
            let last = if is_early { own.fore } else { own.aft };
            spans.extend(last.map(|(_, last)| from..=last));
            let again = graph.users(node).iter().filter(|user| is_later(**user));
            if is_early && again.take(2).count() == 2 {
                spans.extend(own.aft.map(|(first, last)| first..=last));
            }
        }
        let row = graph.nodes[at].row;
        held.extend(spans.into_iter().map(|steps| Held { node, row, bytes: bytes[at], steps }));
    }
    held.retain(|own| own.bytes > 0);
    held.iter().for_each(|own| layout.add(own.steps.clone(), own.bytes));
    for own in gathered_weights(graph, layout.local, true) {
        let runs = steps.runs[own.product as usize];
        layout.add(runs..=runs, own.bytes);
    }
    let until = |node: u32| reads[node as usize].fore.map(|(_, last)| last);
    layout.hold_exponentials(graph, &steps, until);
    layout.hold_arguments(&steps);
    let Layout { changes, rows, .. } = layout;
    LaidLayers { runs: steps.runs, bytes, held, changes, rows }
}

/// By node: whether cheap work makes it from exponentials that a sum reads.
fn is_softmax(graph: &Graph) -> Vec<bool> {
    let opcode = |node: u32| graph.nodes[node as usize].opcode;
    let mut found = Vec::with_capacity(graph.nodes.len());
    for node in 0..graph.nodes.len() as u32 {
        let is_summed = || graph.users(node).iter().any(|own| opcode(*own) == Opcode::Reduce);
        let is_made = || graph.operands(node).iter().any(|own| found[*own as usize]);
        let own = opcode(node) == Opcode::Exponential && is_summed();
        found.push(own || !is_heavy(opcode(node)) && is_made());
    }
    found
}

/// By node: whether it is the sum of a product that nothing else reads and of another value, so that XLA
/// adds it to the product in one operation.
fn sums(
    layout: &Layout<'_>,
    graph: &Graph,
    is_in_layer: impl Fn(u32) -> bool,
    origins: &[Origin],
) -> Vec<bool> {
    let like = |node: u32| (layout.elements(graph, node), layout.bits(graph, node));
    let is_sum = |node: u32| {
        let own = &graph.nodes[node as usize];
        let [a, b] = graph.operands(node) else { return false };
        let is_product = |node: u32| {
            graph.nodes[node as usize].opcode.is_matmul() && graph.users(node).len() == 1
        };
        let of = [*a, *b];
        own.opcode == Opcode::Add
            && is_in_layer(node)
            && of.into_iter().any(is_product)
            && of
                .into_iter()
                .all(|part| origins[part as usize] == Origin::Values && like(part) == like(node))
    };
    (0..graph.nodes.len() as u32).map(is_sum).collect()
}
