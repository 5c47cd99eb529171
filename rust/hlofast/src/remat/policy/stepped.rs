//! The steps and live ranges of the values of an entry computation that repeats layers without a loop:
//! those of its schedule, or those that it would get.

use super::base::{Timeline, add, clones_of, joined};
use super::before::How;
use super::graph::{Graph, MOST_ROWS};
use super::laid_layers::lay_out_layers;
use super::layered::{Layers, layers};
use super::layout::Layout;
use super::named;
use super::pairs::Places;
use super::retimed::{frees_value, in_order, new_steps, retime, sums_last};
use super::rings::Early;
use super::scans::node_of;
use super::units::with_units;
use super::widened::Widened;
use crate::cost::Cost;
use crate::flow::{Attribution, Phase, has_compiler_clones};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use crate::memory::{LiveValue, Memory};
use crate::shares::Local;
use hashbrown::HashSet;
use std::ops::RangeInclusive;

/// A value of the entry computation in memory.
#[derive(Clone, Debug)]
pub struct Held {
    pub node: u32,
    /// The row that makes it.
    pub row: Row,
    pub bytes: i64,
    pub steps: RangeInclusive<u32>,
}

/// An entry computation whose nodes have steps.
pub struct Stepped {
    pub graph: Graph,
    pub layers: Layers,
    /// By layer: the step at which its backward part starts.
    pub starts: Vec<u32>,
    /// By node: the step that computes it.
    pub steps: Vec<u32>,
    /// By node: bytes.
    pub bytes: Vec<i64>,
    pub held: Vec<Held>,
    /// What is in memory before it is used, if layers are checkpointed.
    pub early: Early,
    /// Before optimisation: scores of attention in the type of their softmaxes.
    pub widened: Vec<Widened>,
    /// Whether rings make room before they run.
    pub is_early: bool,
    /// Whether XLA may put all sums of gradients last.
    pub are_last: bool,
    /// By node: whether it belongs to the backward pass.
    pub is_backward: Vec<bool>,
    /// Whether layers are under `jax.checkpoint`.
    pub is_checkpointed: bool,
    /// The rows that `jax.checkpoint` recomputes.
    pub recomputed: HashSet<Row, BuildMix>,
    /// Whether the layers are in a loop, as in one over parts of a batch whose gradients are added up.
    pub is_in_loop: bool,
}

/// The live ranges of the values of the entry. Clones that XLA has rematerialised are one value, which a step
/// that fits keeps from the first to the last.
fn held(module: &Module, graph: &Graph, place: ComputationId, values: &[LiveValue]) -> Vec<Held> {
    let of = |value: &LiveValue, (steps, bytes): (RangeInclusive<u32>, i64)| {
        Some(Held { node: node_of(graph, value)?, row: value.row, bytes, steps })
    };
    let clones = match has_compiler_clones(module) {
        true => clones_of(module, graph, place, values, u32::MAX),
        false => Vec::new(),
    };
    let mut is_single: Vec<bool> = values.iter().map(|value| value.bytes > 0).collect();
    clones.iter().flatten().for_each(|at| is_single[*at] = false);
    let single = values.iter().zip(is_single).filter(|(_, is_single)| *is_single);
    let single = single.filter_map(|(own, _)| of(own, (own.first_step..=own.last_step, own.bytes)));
    let one = |clones: &Vec<usize>| {
        let first = clones.iter().min_by_key(|at| values[**at].first_step)?;
        of(&values[*first], joined(values, clones))
    };
    single.chain(clones.iter().filter_map(one)).collect()
}

impl Stepped {
    /// The layers of `graph`, without steps yet; None if there are none.
    fn of_layers(
        module: &Module,
        attribution: &Attribution,
        graph: Graph,
        is_apart: bool,
    ) -> Option<Self> {
        let layers = layers(module, attribution, &graph)?;
        let phase = phase_of(module, attribution);
        let is_checkpointed = named::is_checkpointed(module, &graph, usize::MAX);
        let layers = with_units(module, &graph, layers, &phase, is_checkpointed, is_apart);
        let is_backward = backward(&graph, &phase, is_checkpointed);
        let is_recomputed = |row: &Row| named::is_recomputed(module, *row, phase(*row));
        Some(Self {
            graph,
            layers,
            starts: Vec::new(),
            steps: Vec::new(),
            bytes: Vec::new(),
            held: Vec::new(),
            early: Early::new(),
            widened: Vec::new(),
            is_early: true,
            are_last: false,
            is_backward,
            is_checkpointed,
            recomputed: module.rows().filter(is_recomputed).collect(),
            is_in_loop: false,
        })
    }

    /// That of a scheduled module; None if it has no layers or is too large. `values` move to the steps
    /// at which they would be in memory if layers were checkpointed; where sums of gradients are last, all of them
    /// are if `are_late`. Functions of a layer are layers by themselves if `is_apart` and the text does not tell.
    pub fn scheduled(
        module: &Module,
        attribution: &Attribution,
        memory: &Memory,
        values: &mut [LiveValue],
        (sizes, peak): (&[i64], i64),
        (are_late, is_apart): (bool, bool),
    ) -> Option<(Self, Timeline)> {
        let budget = &mut { MOST_ROWS };
        let of = |place, budget: &mut usize| {
            let graph = Graph::of_layers(module, place, budget)?;
            Some((place, Self::of_layers(module, attribution, graph, is_apart)?))
        };
        let found = of(module.entry(), budget).or_else(|| of(largest_loop(module)?, budget));
        let (place, mut own) = found?;
        own.is_in_loop = place != module.entry();
        let phase = phase_of(module, attribution);
        let end = u32::try_from(memory.timeline.len()).ok()?;
        let (graph, layers) = (&own.graph, &own.layers);
        let mut steps: Vec<u32> =
            graph.nodes.iter().map(|node| memory.step_of(node.outer).unwrap_or(end)).collect();
        let starts = starts(graph, layers, &steps, end, &own.is_backward)?;
        let bytes: Vec<i64> =
            (0..graph.nodes.len() as u32).map(|node| graph.bytes(node, sizes)).collect();
        let are_last = sums_last(module, graph);
        let is_alike = !are_last || own.is_checkpointed;
        let size = |node: u32| bytes[node as usize];
        let frees = |node: &u32| frees_value(graph, &phase, size, *node);
        let freeing = (0..graph.nodes.len() as u32).filter(|node| !are_late && frees(node));
        let freeing: HashSet<Row, BuildMix> =
            freeing.map(|node| graph.nodes[node as usize].outer).collect();
        let freeing = are_last.then_some(&freeing);
        let own_steps = (starts.as_slice(), steps.as_slice(), bytes.as_slice());
        // Barriers are in a checkpointed text already.
        let new = match own.is_checkpointed {
            true => (0..end).collect(),
            false => new_steps(module, memory, graph, layers, own_steps, &phase, freeing),
        };
        let new = in_order(memory, graph.rows(), new);
        let moved = retime(memory, graph, &new, values);
        for step in &mut steps {
            *step = new.get(*step as usize).copied().unwrap_or(*step);
        }
        let starts = self::starts(graph, layers, &steps, end, &own.is_backward)?;
        let order = (new.as_slice(), moved.as_slice());
        let timeline = Timeline::of_entry(module, memory, values, graph, order, (place, peak))?;
        let held = held(module, graph, place, values);
        (own.starts, own.steps, own.held, own.bytes) = (starts, steps, held, bytes);
        (own.is_early, own.are_last) = (!are_late, !is_alike);
        Some((own, timeline))
    }

    /// That of a module that is not scheduled, with the bytes of `local`; None if it has no layers or is
    /// too large.
    pub fn unscheduled(
        module: &Module,
        cost: &Cost,
        attribution: &Attribution,
        local: &Local,
        how: How,
    ) -> Option<(Self, Timeline)> {
        let mut graph = Graph::new(module, module.entry(), &[], &mut { MOST_ROWS })?;
        // Calls are opened. What layers share, such as an activation function, is known by its call.
        let rows = module.computation(module.entry()).rows();
        for node in &mut graph.nodes {
            if !rows.contains(&node.row.0) && !node.opcode.is_matmul() {
                node.row = node.outer;
            }
        }
        let mut own = Self::of_layers(module, attribution, graph, how.is_apart)?;
        let phase = phase_of(module, attribution);
        let nodes = &own.graph.nodes;
        let phases: Vec<Phase> = nodes.iter().map(|node| phase(node.row)).collect();
        let layer: Vec<Option<u32>> =
            nodes.iter().map(|node| own.layers.of_row(node.row)).collect();
        let mut layout = Layout::new(module, cost, local, Places::default(), MOST_ROWS);
        layout.chip = how.chip;
        let laid = lay_out_layers(layout, &mut own.graph, &phases, &layer, phase);
        let end = u32::try_from(laid.rows.len()).ok()?;
        let (graph, mut steps, held) = (&own.graph, laid.runs, laid.held);
        let starts = starts(graph, &own.layers, &steps, end, &own.is_backward)?;
        let back = starts.iter().copied().min()?;
        let is_held: HashSet<u32, BuildMix> = held.iter().map(|own| own.node).collect();
        // Cheap work is part of what reads it.
        for node in (0..graph.nodes.len() as u32).rev().filter(|node| !is_held.contains(node)) {
            let users = graph.users(node).iter().map(|user| steps[*user as usize]);
            let forward = users.clone().filter(|step| *step < back).max();
            let last = forward.or(users.max());
            steps[node as usize] = last.unwrap_or(steps[node as usize]);
        }
        let mut changes = laid.changes;
        if own.is_checkpointed {
            laid.early.iter().for_each(|(bytes, steps)| add(&mut changes, steps.clone(), *bytes));
        }
        let timeline = Timeline::of_changes(changes, laid.rows);
        (own.starts, own.steps, own.held) = (starts, steps, held);
        (own.bytes, own.early, own.widened) = (laid.bytes, laid.early, laid.widened);
        Some((own, timeline))
    }
}

/// The body of the largest loop of the entry computation: where gradients of parts of a batch are added up, it has the
/// layers.
fn largest_loop(module: &Module) -> Option<ComputationId> {
    let rows = module.computation(module.entry()).rows().map(Row);
    let loops = rows.filter(|row| module.opcode(*row) == Opcode::While);
    let bodies = loops.filter_map(|row| module.called(row, CallRole::Body));
    bodies.max_by_key(|body| module.computation(*body).rows().len())
}

/// The phases of rows.
fn phase_of<'a>(module: &'a Module, attribution: &'a Attribution) -> impl Fn(Row) -> Phase + 'a {
    let phases = attribution.phases(module);
    move |row| phases.get(row.0 as usize).copied().unwrap_or_default()
}

/// By node: whether it belongs to the backward pass.
fn backward(graph: &Graph, phase: impl Fn(Row) -> Phase, is_checkpointed: bool) -> Vec<bool> {
    let is_its = |phase: Phase| match phase {
        Phase::Backward => true,
        Phase::Recompute => is_checkpointed,
        _ => false,
    };
    graph.nodes.iter().map(|node| is_its(phase(node.row))).collect()
}

/// By layer: the step of the first matmul of its backward part, or `end`. None if no layer has any. A layer starts
/// behind the next one of its kind: a matmul before that is one of another layer that was taken for its own.
fn starts(
    graph: &Graph,
    layers: &Layers,
    steps: &[u32],
    end: u32,
    is_backward: &[bool],
) -> Option<Vec<u32>> {
    let mut matmuls: Vec<Vec<u32>> = vec![Vec::new(); layers.count()];
    for (at, node) in graph.nodes.iter().enumerate() {
        let layer = layers.of_row(node.row).filter(|_| node.opcode.is_matmul() && is_backward[at]);
        if let Some(layer) = layer {
            matmuls[layer as usize].push(steps[at]);
        }
    }
    // Layers that nothing differentiates keep nothing.
    let mut starts = vec![end; layers.count()];
    for kind in &layers.kinds {
        let mut next = None;
        for layer in kind.layers.iter().rev() {
            let own = || matmuls[*layer as usize].iter().copied();
            let behind = own().filter(|step| next.is_none_or(|next| *step > next)).min();
            if let Some(start) = behind.or(own().min()) {
                starts[*layer as usize] = start;
                next = next.max(Some(start));
            }
        }
    }
    starts.iter().any(|start| *start < end).then_some(starts)
}
