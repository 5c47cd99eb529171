//! Layers that an unscheduled module repeats without a loop: when their values would be in memory.
//!
//! As in the bodies of loops, the values of products, kernels and reductions are in memory until the last
//! of them that reads them, also through cheap work, which XLA fuses into the operations that read its
//! result. A cheap value that several products read is computed once; for products of both passes it is
//! computed once in each, unless weights come from many devices. XLA adds what goes around a layer to the
//! layer's last product in one operation, so that the sum is in memory, and not the product.

use super::graph::Graph;
use super::layer_order::{is_last, layer_order};
use super::layout::{Layout, Steps};
use super::origins::{Origin, origins};
use super::rings::{Early, Rings};
use super::run_order::{Transfers, gathered_weights, shared};
use super::scans::{MOST_REARRANGED, is_heavy};
use super::stepped::Held;
use super::widened::Widened;
use crate::cost::{Backend, device_sizes};
use crate::flow::Phase;
use crate::ir::{Module, Opcode, Row};
use std::ops::RangeInclusive;

/// An entry computation that repeats layers, laid out.
pub struct LaidLayers {
    /// By node: the step at which it runs.
    pub runs: Vec<u32>,
    /// By node: its bytes.
    pub bytes: Vec<i64>,
    /// The values in memory.
    pub held: Vec<Held>,
    /// What is in memory before it is used, if layers are checkpointed.
    pub early: Early,
    /// Scores of attention in the type of their softmaxes.
    pub widened: Vec<Widened>,
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
/// `layer` are those of nodes, `phase` tells that of a row.
pub fn lay_out_layers(
    mut layout: Layout<'_>,
    graph: &mut Graph,
    phases: &[Phase],
    layer: &[Option<u32>],
    phase: impl Fn(Row) -> Phase,
) -> LaidLayers {
    layout.mark_transfers(graph);
    let origins = origins(graph);
    let is_in_layer = |node: u32| layer[node as usize].is_some();
    let mut is_sum = sums(&layout, graph, is_in_layer, &origins);
    for (own, is_handed_on) in is_sum.iter_mut().zip(handed_on(graph, layer, &origins)) {
        *own |= is_handed_on;
    }
    let transfers = Transfers::of(graph, layout.local, true);
    let is_kept = kept_for_both(graph, transfers);
    let own = shared(layout.module, graph, layout.is_gpu(), |node, a, b| {
        let are_together = is_kept[node as usize] || is_later(phases, a) == is_later(phases, b);
        are_together && is_in_layer(a) && is_in_layer(b)
    });
    graph.shared.extend(own.into_iter().filter(|own| is_in_layer(*own)));
    let order = layer_order(&layout, graph, phases, layer, &origins, transfers);
    let mut steps = run(&mut layout, graph, order);
    let back = first_backward(graph, phases, &steps);
    let made = made(layout.module, graph, phase);
    let nodes = 0..graph.nodes.len() as u32;
    let bytes: Vec<i64> = match made {
        // What runs on one device already writes what its shapes tell.
        Some(_) => {
            let sizes = device_sizes(layout.module, Backend::of_module(layout.module));
            nodes.map(|node| graph.bytes(node, &sizes)).collect()
        }
        None => nodes.map(|node| layout.bytes(graph, node)).collect(),
    };
    let values = Values { graph, phases, made, is_sum, is_kept, back };
    let reads = values.reads(&steps);
    for (last, own) in steps.last.iter_mut().zip(&reads) {
        *last = own.aft.or(own.fore).map(|(_, last)| last);
    }
    steps.in_place = layout.in_place(graph, &steps, transfers);
    let held = values.held(&steps, &reads, &bytes);
    held.iter().for_each(|own| layout.add(own.steps.clone(), own.bytes));
    let gathered: Vec<_> = gathered_weights(graph, layout.local, true).collect();
    for own in &gathered {
        let runs = steps.runs[own.product as usize];
        layout.add(runs..=runs, own.bytes);
    }
    let until = |node: u32| reads[node as usize].fore.map(|(_, last)| last);
    let widened = layout.hold_exponentials(graph, &steps, until);
    let mut early = Early::new();
    if transfers == Transfers::All && !widened.is_empty() {
        let bytes = |node: u32| layout.bytes(graph, node);
        let rings = Rings { graph, runs: &steps.runs, phases, layer, bytes };
        let is_gradient = weight_gradients(graph, phases, &origins);
        let always = [rings.sums(&is_gradient), rings.head(&gathered)].concat();
        early = rings.results(&gathered);
        always.iter().for_each(|(bytes, steps)| layout.add(steps.clone(), *bytes));
    }
    layout.hold_arguments(&steps);
    let Layout { changes, rows, .. } = layout;
    LaidLayers { runs: steps.runs, bytes, held, early, widened, changes, rows }
}

/// Which rows of the entry computation result in a value.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Made {
    /// None: it stays inside of fusions.
    #[default]
    Nowhere,
    /// Rows of one pass.
    Once,
    /// Rows of the forward pass, and later rows that recompute it.
    Again,
}

/// By node: which rows result in it, where XLA has fused operations already.
fn made(module: &Module, graph: &Graph, phase: impl Fn(Row) -> Phase) -> Option<Vec<Made>> {
    let rows = module.computation(module.entry()).rows().map(Row);
    if !rows.clone().any(|row| module.opcode(row) == Opcode::Fusion) {
        return None;
    }
    let mut made = vec![Made::Nowhere; graph.nodes.len()];
    let mut leaves = Vec::new();
    let is_step = |row: &Row| !matches!(module.opcode(*row), Opcode::Tuple | Opcode::Constant);
    // Rows that hand a value on compute nothing.
    let is_work = |row: Row| {
        use Opcode::{Bitcast, Copy, CopyDone, CopyStart, GetTupleElement, Reshape, Transpose};
        let hands_on = [Bitcast, Copy, CopyDone, CopyStart, GetTupleElement, Reshape, Transpose];
        !hands_on.contains(&module.opcode(row))
    };
    for row in rows.filter(is_step) {
        leaves.clear();
        graph.result(row).leaves(&mut leaves, &mut 0);
        for node in &leaves {
            let own = &mut made[*node as usize];
            let is_forward = phase(graph.nodes[*node as usize].row) == Phase::Forward;
            *own = match *own {
                Made::Nowhere => Made::Once,
                _ if is_forward && is_work(row) && phase(row) == Phase::Recompute => Made::Again,
                known => known,
            };
        }
    }
    Some(made)
}

/// Whether a node belongs to the backward pass or is recomputed for it.
fn is_later(phases: &[Phase], node: u32) -> bool {
    matches!(phases[node as usize], Phase::Backward | Phase::Recompute)
}

/// By node: whether its value, if it is computed once, is kept for the backward pass.
fn kept_for_both(graph: &Graph, transfers: Transfers) -> Vec<bool> {
    match transfers {
        Transfers::Many => vec![true; graph.nodes.len()],
        Transfers::All => is_softmax(graph).into_iter().map(|own| !own).collect(),
        _ => vec![false; graph.nodes.len()],
    }
}

/// By node: whether it is the gradient of a weight, a product of values that no other product needs.
fn weight_gradients(graph: &Graph, phases: &[Phase], origins: &[Origin]) -> Vec<bool> {
    let is_made_of_values = |node: u32| {
        let mut operands = graph.operands(node).iter();
        operands.all(|own| origins[*own as usize] == Origin::Values)
    };
    let own = (0u32..).zip(is_last(graph));
    own.map(|(node, own)| own && is_later(phases, node) && is_made_of_values(node)).collect()
}

/// Gives the nodes of a graph their steps, in this order.
fn run(layout: &mut Layout<'_>, graph: &Graph, order: Vec<u32>) -> Steps {
    let mut steps = Steps::new(graph, 0);
    for node in order {
        steps.runs[node as usize] = layout.step(graph.nodes[node as usize].row);
    }
    steps.all = 0..=(layout.rows.len() as u32).saturating_sub(1);
    steps
}

/// The step of the first product of the backward pass; the last step without one.
fn first_backward(graph: &Graph, phases: &[Phase], steps: &Steps) -> u32 {
    let nodes = 0..graph.nodes.len() as u32;
    let products = nodes.filter(|node| graph.nodes[*node as usize].opcode.is_matmul());
    let own = products.filter(|node| is_later(phases, *node));
    own.map(|node| steps.runs[node as usize]).min().unwrap_or(*steps.all.end())
}

/// Which values of an entry computation are in memory, and until when.
struct Values<'a> {
    graph: &'a Graph,
    phases: &'a [Phase],
    /// By node: which operations of the text write it; None before XLA has decided what operations do.
    made: Option<Vec<Made>>,
    /// By node: whether XLA adds it to a product in one operation.
    is_sum: Vec<bool>,
    /// By node: whether its value, if it is computed once, is kept for the backward pass.
    is_kept: Vec<bool>,
    /// The first step of the backward pass.
    back: u32,
}

impl Values<'_> {
    /// Whether the value of a node is in memory from its step to its last reader.
    fn is_held(&self, node: u32) -> bool {
        let at = node as usize;
        if let Some(made) = &self.made {
            return made[at] == Made::Once;
        }
        let is_kept = self.is_kept[at] && self.graph.shared.contains(&node);
        is_heavy(self.graph.nodes[at].opcode) || self.is_sum[at] || is_kept
    }

    /// Whether the value of a node that is not held is in memory in each pass that reads it.
    fn is_shared(&self, node: u32) -> bool {
        match &self.made {
            Some(made) => made[node as usize] == Made::Again,
            None => self.graph.shared.contains(&node),
        }
    }

    /// By node: when its value is read.
    fn reads(&self, steps: &Steps) -> Vec<Reads> {
        let graph = self.graph;
        let mut reads = vec![Reads::default(); graph.nodes.len()];
        let mut ends = Vec::new();
        graph.root.leaves(&mut ends, &mut 0);
        let end = Reads::at(*steps.all.end(), self.back);
        ends.into_iter().for_each(|own| reads[own as usize].add(end));
        for node in (0..graph.nodes.len() as u32).rev() {
            let at = node as usize;
            let mut own = Reads::at(steps.runs[at], self.back);
            if !self.is_held(node) {
                match self.is_shared(node) {
                    // The backward pass recomputes it from its operands.
                    true => own.aft = own.aft.or(reads[at].aft),
                    false => own = reads[at],
                }
            }
            graph.operands(node).iter().for_each(|operand| reads[*operand as usize].add(own));
        }
        reads
    }

    /// The values in memory.
    fn held(&self, steps: &Steps, reads: &[Reads], bytes: &[i64]) -> Vec<Held> {
        let mut held = Vec::new();
        for (node, own) in (0u32..).zip(&self.graph.nodes) {
            let bytes = bytes[node as usize];
            if own.element.is_some() || bytes <= 0 {
                continue;
            }
            let spans = self.spans(node, steps, reads[node as usize]);
            let row = own.row;
            held.extend(spans.into_iter().map(|steps| Held { node, row, bytes, steps }));
        }
        held
    }

    /// The steps at which a value is in memory.
    fn spans(&self, node: u32, steps: &Steps, reads: Reads) -> Vec<RangeInclusive<u32>> {
        let (at, from) = (node as usize, steps.held_from(node));
        let mut spans = Vec::new();
        if self.is_held(node) {
            spans.push(from..=steps.last[at].unwrap_or(steps.runs[at]));
        } else if self.is_shared(node) {
            let is_early = steps.runs[at] < self.back;
            let last = if is_early { reads.fore } else { reads.aft };
            spans.extend(last.map(|(_, last)| from..=last));
            let again = self.graph.users(node).iter().filter(|user| is_later(self.phases, **user));
            if is_early && (self.made.is_some() || again.take(2).count() == 2) {
                spans.extend(reads.aft.map(|(first, last)| first..=last));
            }
        }
        spans
    }
}

/// By node: whether cheap work makes it from exponentials that a sum reads.
pub fn is_softmax(graph: &Graph) -> Vec<bool> {
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

/// By node: whether it is a sum that a layer or its backward part hands on to another one, and that several read.
/// XLA does not add up once more, in the fusions that read it, what all layers before have added. What a function
/// such as `relu` makes of the sum alone may be handed on in its place.
fn handed_on(graph: &Graph, layer: &[Option<u32>], origins: &[Origin]) -> Vec<bool> {
    let is_value = |own: &&u32| origins[**own as usize] == Origin::Values;
    let is_sum_of = |node: u32| {
        let mut at = node;
        for _ in 0..MOST_REARRANGED {
            let opcode = graph.nodes[at as usize].opcode;
            if opcode == Opcode::Add || is_heavy(opcode) {
                return opcode == Opcode::Add;
            }
            let mut values = graph.operands(at).iter().filter(is_value);
            let Some(read) = values.next().filter(|_| values.next().is_none()) else { break };
            at = *read;
        }
        false
    };
    let is_its = |node: u32| {
        let at = node as usize;
        let is_sum = origins[at] == Origin::Values && is_sum_of(node);
        let users = graph.users(node);
        let mut others = users.iter().filter_map(|user| layer[*user as usize]);
        is_sum && users.len() > 1 && layer[at].is_some_and(|own| others.any(|user| user != own))
    };
    (0..graph.nodes.len() as u32).map(is_its).collect()
}

/// By node: whether it is the sum of a product that nothing else reads, with or without a bias, and of
/// another value, so that XLA adds it to the product in one operation.
fn sums(
    layout: &Layout<'_>,
    graph: &Graph,
    is_in_layer: impl Fn(u32) -> bool,
    origins: &[Origin],
) -> Vec<bool> {
    let like = |node: u32| (layout.elements(graph, node), layout.bits(graph, node));
    let is_plain =
        |node: u32| graph.nodes[node as usize].opcode.is_matmul() && graph.users(node).len() == 1;
    let is_bias = |node: u32| {
        let mut at = node;
        for _ in 0..MOST_REARRANGED {
            let opcode = graph.nodes[at as usize].opcode;
            let is_spread = matches!(opcode, Opcode::Broadcast | Opcode::Reshape);
            let Some(read) = graph.operands(at).first().filter(|_| is_spread) else { break };
            at = *read;
        }
        origins[at as usize] != Origin::Values
    };
    // The product that is added, if any. One that is scaled first, as layers with scales do, may be read by the
    // gradient of the scale too.
    let product = |node: u32| {
        let is_alone = graph.users(node).len() == 1;
        let opcode = |own: u32| graph.nodes[own as usize].opcode;
        let biased = |own: u32| match graph.operands(own) {
            _ if opcode(own).is_matmul() => Some(own),
            [a, b] | [b, a]
                if opcode(own) == Opcode::Add && opcode(*a).is_matmul() && is_bias(*b) =>
            {
                Some(*a)
            }
            _ => None,
        };
        let scaled = match graph.operands(node) {
            [a, b] if opcode(node) == Opcode::Multiply && is_alone && is_bias(*b) => biased(*a),
            [b, a] if opcode(node) == Opcode::Multiply && is_alone && is_bias(*b) => biased(*a),
            _ => None,
        };
        if scaled.is_some() {
            return scaled;
        }
        match graph.operands(node) {
            _ if is_plain(node) => Some(node),
            _ if graph.nodes[node as usize].opcode != Opcode::Add || !is_alone => None,
            [a, b] if is_plain(*a) && is_bias(*b) => Some(*a),
            [b, a] if is_plain(*a) && is_bias(*b) => Some(*a),
            _ => None,
        }
    };
    let is_made = |node: u32| origins[node as usize] == Origin::Values;
    let is_sum = |node: u32| {
        let [a, b] = graph.operands(node) else { return false };
        let Some(product) = product(*a).or_else(|| product(*b)) else { return false };
        // The first layer may add to an input of the program. A product of weights changes a weight.
        let is_layers = graph.operands(product).iter().any(|own| is_made(*own));
        let is_value = |part: u32| match origins[part as usize] {
            Origin::Values => true,
            Origin::Weight => is_layers,
            Origin::Constants => false,
        };
        graph.nodes[node as usize].opcode == Opcode::Add
            && is_in_layer(node)
            && [*a, *b].into_iter().all(|part| is_value(part) && like(part) == like(node))
    };
    (0..graph.nodes.len() as u32).map(is_sum).collect()
}
