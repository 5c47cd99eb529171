//! The order in which the operations of an unscheduled module that repeats layers without a loop would run.
//!
//! XLA prints what is needed late at a late place of the text, so text order is not the order of execution: a
//! gradient of a weight may stand next to the optimizer. Work of the backward pass runs as soon as its
//! operands are there, and what `jax.checkpoint` recomputes when the gradient of the layer's result is.
//! If weights are split over all devices, XLA adds up their gradients in loops around a ring, and puts these
//! loops last, but those that free a large value at once: so in `unrolled_v6e_8` and `unrolled_vision_v6e_8` with
//! nothing saved. With values of the MLP saved XLA puts all of them last, which the model does not know.

use super::graph::Graph;
use super::layout::Layout;
use super::origins::Origin;
use super::run_order::Transfers;
use crate::flow::Phase;
use crate::ir::intern::BuildMix;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// The nodes of an entry computation in the order in which they run. `phases`, `layer` and `origins` are
/// those of nodes.
pub fn layer_order(
    layout: &Layout<'_>,
    graph: &Graph,
    phases: &[Phase],
    layer: &[Option<u32>],
    origins: &[Origin],
    transfers: Transfers,
) -> Vec<u32> {
    let is_later = |node: u32| matches!(phases[node as usize], Phase::Backward | Phase::Recompute);
    let is_last = is_last(graph);
    // The gradient of a weight is the product of a gradient and a value of the forward pass.
    let frees_little = |node: u32| {
        let [a, b] = graph.operands(node) else { return false };
        let is_gradient = phases[*a as usize] == Phase::Backward;
        let (gradient, value) = if is_gradient { (*a, *b) } else { (*b, *a) };
        layout.bytes(graph, value) <= layout.bytes(graph, gradient)
    };
    let is_late = |node: u32| {
        let at = node as usize;
        let is_its = layer[at].is_some() && is_later(node) && is_last[at];
        transfers == Transfers::All && is_its && frees_little(node)
    };
    let starts = gradients(graph, phases, layer, origins);
    let is_forward = |node: &u32| {
        let at = *node as usize;
        graph.nodes[at].opcode.is_matmul() && phases[at] == Phase::Forward
    };
    let head = (0..graph.nodes.len() as u32).rev().find(is_forward);
    let awaited = |node: u32| match phases[node as usize] {
        Phase::Recompute => layer[node as usize].and_then(|own| starts.get(&own)).copied(),
        // The gradient of the loss starts with work on labels alone.
        Phase::Backward if layer[node as usize].is_none() => head,
        _ => None,
    };
    // The loss is needed last: its place in the text is behind the backward pass.
    let is_loss =
        |node: u32| phases[node as usize] == Phase::Forward && layer[node as usize].is_none();
    order(graph, awaited, |node| is_later(node) || is_loss(node), is_late)
}

/// Work runs in text order, but products, what only serves them, and what `is_soon` as soon as their operands
/// and the node that is `awaited` are there; what `is_late` when the text cannot go on without it.
fn order(
    graph: &Graph,
    awaited: impl Fn(u32) -> Option<u32>,
    is_soon: impl Fn(u32) -> bool,
    is_late: impl Fn(u32) -> bool,
) -> Vec<u32> {
    let count = graph.nodes.len() as u32;
    let mut runs_soon = vec![false; graph.nodes.len()];
    let mut missing = vec![0u32; graph.nodes.len()];
    let mut awaiting: HashMap<u32, Vec<u32>, BuildMix> = HashMap::default();
    for node in (0..count).rev() {
        let (at, users) = (node as usize, graph.users(node));
        let only_serves = || !users.is_empty() && users.iter().all(|own| runs_soon[*own as usize]);
        runs_soon[at] = graph.nodes[at].opcode.is_matmul() || is_soon(node) || only_serves();
        users.iter().for_each(|own| missing[*own as usize] += 1);
        // The text has it before, so that this ends.
        if let Some(own) = awaited(node).filter(|own| *own < node) {
            awaiting.entry(own).or_default().push(node);
            missing[at] += 1;
        }
    }
    let is_ready = |node: &u32| runs_soon[*node as usize] && missing[*node as usize] == 0;
    let ready: VecDeque<u32> = (0..count).filter(is_ready).collect();
    let mut order = Vec::with_capacity(graph.nodes.len());
    let (mut open, mut late) = (ready, VecDeque::new());
    let mut is_done = vec![false; graph.nodes.len()];
    let mut next = 0;
    loop {
        // The next node in the text; then what is late, if it waits for that or nothing else is left.
        while next < count && (is_done[next as usize] || runs_soon[next as usize]) {
            next += 1;
        }
        if next < count && missing[next as usize] == 0 {
            open.push_back(next);
        } else {
            open.extend(late.pop_front().or_else(|| (next < count).then_some(next)));
        }
        if open.is_empty() {
            break;
        }
        while let Some(node) = open.pop_front() {
            if std::mem::replace(&mut is_done[node as usize], true) {
                continue;
            }
            order.push(node);
            let awaiting = awaiting.get(&node).into_iter().flatten();
            for user in graph.users(node).iter().chain(awaiting) {
                let left = &mut missing[*user as usize];
                *left = left.saturating_sub(1);
                if *left == 0 && runs_soon[*user as usize] {
                    if is_late(*user) { &mut late } else { &mut open }.push_back(*user);
                }
            }
        }
    }
    // All have run: each waits only for nodes that stand before it.
    let rest = (0..count).filter(|node| !is_done[*node as usize]);
    order.extend(rest);
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

/// By node: whether it is a product that no other product needs, such as the gradient of a weight.
pub fn is_last(graph: &Graph) -> Vec<bool> {
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
