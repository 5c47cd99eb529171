//! Layers that an unscheduled module repeats without a loop: the steps at which their values would be in
//! memory.
//!
//! What the backward pass reads of the forward pass is in memory until then. As in the bodies of loops, that
//! are the values of products, kernels and reductions; XLA fuses cheap work into the operations that read
//! its result, so a cheap value that products of both passes read is computed once in each pass. A sum of a product and
//! what goes around it takes the place of the product.

use super::graph::Graph;
use super::layout::{Layout, Steps};
use super::origins::{Origin, origins};
use super::pairs::Places;
use super::run_order::{Transfers, gathered_weights, shared};
use super::scans::is_heavy;
use super::stepped::Held;
use crate::flow::Phase;
use crate::ir::Opcode;
use crate::ir::intern::BuildMix;
use hashbrown::HashMap;
use std::collections::VecDeque;

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
    let is_in_layer: Vec<bool> = layer.iter().map(Option::is_some).collect();
    layout.mark_transfers(graph);
    let origins = origins(graph);
    let is_later = |node: u32| matches!(phases[node as usize], Phase::Backward | Phase::Recompute);
    let is_sum: Vec<bool> = sums(&layout, graph, &is_in_layer, &origins);
    let transfers = Transfers::of(graph, layout.local, true);
    // By node: whether its value, if it is computed once, is kept for the backward pass.
    let is_kept: Vec<bool> = match transfers {
        Transfers::Many => vec![true; graph.nodes.len()],
        Transfers::All => is_softmax(graph).into_iter().map(|own| !own).collect(),
        _ => vec![false; graph.nodes.len()],
    };
    let own = shared(graph, |node, a, b| is_kept[node as usize] || is_later(a) == is_later(b));
    graph.shared.extend(own.into_iter().filter(|own| is_in_layer[*own as usize]));
    let mut steps = Steps::new(graph, 0);
    let starts = gradients(graph, phases, layer, &origins);
    let is_last = is_last(graph);
    // Gradients of weights that would free a large value are computed at once.
    let is_small = |node: u32| match graph.operands(node) {
        [a, b] => {
            let is_gradient = phases[*a as usize] == Phase::Backward;
            let (gradient, value) = if is_gradient { (*a, *b) } else { (*b, *a) };
            layout.bytes(graph, value) <= layout.bytes(graph, gradient)
        }
        _ => false,
    };
    let is_late = |node: u32| {
        let is_its = is_in_layer[node as usize] && is_later(node) && is_last[node as usize];
        transfers == Transfers::All && is_its && is_small(node)
    };
    let last = (0..graph.nodes.len() as u32).rev();
    let last = last.filter(|node| is_later(*node) && graph.nodes[*node as usize].opcode.is_matmul());
    let last = last.filter(|node| is_in_layer[*node as usize] && !is_last[*node as usize]).next();
    // Barriers make what `jax.checkpoint` computes again wait for the gradient of the layer's result.
    let awaited = |node: u32| match phases[node as usize] {
        Phase::Recompute => layer[node as usize].and_then(|own| starts.get(&own)).copied(),
        _ => last.filter(|_| is_late(node)),
    };
    let order = order(graph, awaited, is_later);
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
                // The backward pass computes it again.
                true if is_kept[at] => {}
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
    if let Ok(want) = std::env::var("DBGN") { // DBG
        for node in nodes.clone() {
            if layout.module.instruction_name(graph.nodes[node as usize].row) == want.as_bytes() {
                for own in graph.operands(node) { let n = &graph.nodes[*own as usize]; eprintln!("phase {:?} layer {:?}", phases[node as usize], layer[node as usize]); eprintln!("operand {} {:?} number {} runs {} of {}", String::from_utf8_lossy(layout.module.instruction_name(n.row)), n.opcode, own, steps.runs[*own as usize], node); }
                let mut open = vec![(node, 0)];
                while let Some((at, depth)) = open.pop() {
                    let row = graph.nodes[at as usize].row;
                    eprintln!("{}{} {:?} runs {} last {:?} held {} shared {}", " ".repeat(depth), String::from_utf8_lossy(layout.module.instruction_name(row)), graph.nodes[at as usize].opcode, steps.runs[at as usize], steps.last[at as usize], is_held(at), graph.shared.contains(&at));
                    if depth == 0 || !is_held(at) && depth < 12 { for user in graph.users(at) { open.push((*user, depth + 1)); } }
                }
            }
        }
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
        if std::env::var("DBG").is_ok() { eprintln!("gathered at {} {} ways {}", runs, own.bytes, own.ways); } // DBG
    }
    let until = |node: u32| reads[node as usize].fore.map(|(_, last)| last);
    layout.hold_exponentials(graph, &steps, until);
    layout.hold_arguments(&steps);
    let Layout { changes, rows, .. } = layout;
    LaidLayers { runs: steps.runs, bytes, held, changes, rows }
}

/// By node: whether it is a product that no other product needs, such as the gradient of a weight.
fn is_last(graph: &Graph) -> Vec<bool> {
    let mut is_needed = vec![false; graph.nodes.len()];
    let mut is_last = vec![false; graph.nodes.len()];
    for node in (0..graph.nodes.len() as u32).rev() {
        let is_product = graph.nodes[node as usize].opcode.is_matmul();
        is_last[node as usize] = is_product && !is_needed[node as usize];
        if is_product || is_needed[node as usize] {
            graph.operands(node).iter().for_each(|own| is_needed[*own as usize] = true);
        }
    }
    is_last
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

/// The order in which the nodes of a graph run. Text that XLA prints comes in an order in which what is
/// needed late stands late. So the forward pass runs in text order, but products, and in the backward pass
/// all work, run as soon as their operands are there, and after the node that is `awaited`.
fn order(
    graph: &Graph,
    awaited: impl Fn(u32) -> Option<u32>,
    is_later: impl Fn(u32) -> bool,
) -> Vec<u32> {
    let count = graph.nodes.len() as u32;
    let mut is_soon = vec![false; graph.nodes.len()];
    let mut missing = vec![0u32; graph.nodes.len()];
    let mut awaiting: HashMap<u32, Vec<u32>, BuildMix> = HashMap::default();
    for node in (0..count).rev() {
        let (at, users) = (node as usize, graph.users(node));
        let only_serves = || !users.is_empty() && users.iter().all(|own| is_soon[*own as usize]);
        is_soon[at] = graph.nodes[at].opcode.is_matmul() || is_later(node) || only_serves();
        missing[at] = graph.operands(node).len() as u32;
        // The text has it before, so that this ends.
        if let Some(own) = awaited(node).filter(|own| *own < node) {
            awaiting.entry(own).or_default().push(node);
            missing[at] += 1;
        }
    }
    let mut order = Vec::with_capacity(graph.nodes.len());
    let mut open = VecDeque::new();
    let mut is_done = vec![false; graph.nodes.len()];
    for next in 0..count {
        open.push_back(next);
        while let Some(node) = open.pop_front() {
            if std::mem::replace(&mut is_done[node as usize], true) {
                continue;
            }
            order.push(node);
            let awaiting = awaiting.get(&node).into_iter().flatten();
            for user in graph.users(node).iter().chain(awaiting) {
                let left = &mut missing[*user as usize];
                *left = left.saturating_sub(1);
                if *left == 0 && is_soon[*user as usize] {
                    open.push_back(*user);
                }
            }
        }
    }
    order
}

/// By layer: the first gradient that its backward part gets from other layers.
fn gradients(
    graph: &Graph,
    phases: &[Phase],
    layer: &[Option<u32>],
    origins: &[Origin],
) -> HashMap<u32, u32, BuildMix> {
    let mut found = HashMap::default();
    let is_gradient = |node: u32| {
        phases[node as usize] == Phase::Backward && origins[node as usize] == Origin::Values
    };
    for node in (0..graph.nodes.len() as u32).filter(|node| is_gradient(*node)) {
        let Some(own) = layer[node as usize] else { continue };
        let from = graph.operands(node).iter().copied();
        let from = from.filter(|part| is_gradient(*part) && layer[*part as usize] != Some(own));
        if let Some(first) = from.min() {
            let known = found.entry(own).or_insert(first);
            *known = first.min(*known);
        }
    }
    found
}

/// By node: whether it is the sum of a product that nothing else reads and of another value, so that XLA
/// adds it to the product in one operation.
fn sums(
    layout: &Layout<'_>,
    graph: &Graph,
    is_in_layer: &[bool],
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
            && is_in_layer[node as usize]
            && of.into_iter().any(is_product)
            && of.into_iter().all(|part| {
                origins[part as usize] == Origin::Values && like(part) == like(node)
            })
    };
    (0..graph.nodes.len() as u32).map(is_sum).collect()
}

/// Nothing to look for in loops.
pub fn no_places() -> Places {
    Places { pairs: Vec::new(), graphs: HashMap::default(), groups: Vec::new() }
}
