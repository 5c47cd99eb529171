//! Pairs of a forward and a backward loop in a module that is not scheduled, known by the stacks
//! between them.

use super::graph::Graph;
use super::stacks::stacked;
use super::unknown::loops_over_layers_of;
use crate::cost::Cost;
use crate::flow::origin::Place;
use crate::flow::{Attribution, Phase};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// Limit on the loops of a module whose scans are looked for.
const MOST_LOOPS: usize = 1 << 10;
/// Limit on the depth of loops around scans.
pub const DEEPEST: u32 = 4;
/// Limit on the nodes between the index of a slice and the counter of a loop.
const MOST_STEPS: usize = 16;

/// A pair of loops.
pub struct Pair {
    /// The loop of the forward pass.
    pub forward: Row,
    /// The loop of the backward pass.
    pub backward: Row,
    /// Elements of the forward result and of the backward state.
    pub read: Vec<(u32, u32)>,
    /// The loops over layers in the bodies of both, if they are loops over groups of layers.
    pub inner: [Vec<Row>; 2],
    /// Whether the forward loop repeats work of another, because groups are under `jax.checkpoint`.
    pub is_again: bool,
}

impl Pair {
    /// Whether the loops run over groups of layers, or the forward loop recomputes the layers of a group.
    pub fn is_of_groups(&self) -> bool {
        self.is_again || !self.inner.iter().all(Vec::is_empty)
    }
}

/// The loops of a module and what contains them.
#[derive(Default)]
pub struct Places {
    /// Pairs of loops.
    pub pairs: Vec<Pair>,
    /// The computations that contain scans, and the loops of these that are not opened.
    pub graphs: HashMap<ComputationId, Graph, BuildMix>,
    /// The loops over groups of layers, ascending.
    pub groups: Vec<Row>,
}

/// Finds pairs of a forward and a backward loop in the entry and in the bodies of its loops.
pub fn find(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    budget: &mut usize,
) -> Option<Places> {
    let all: Vec<Row> = cost.loops.iter().map(|own| own.row).collect();
    if all.is_empty() || all.len() > MOST_LOOPS || !all.is_sorted() {
        return None;
    }
    let phases = attribution.phases(module);
    let phase = |row: Row| phases.get(row.0 as usize).copied().unwrap_or_default();
    let mut places = Places::default();
    let mut closed: Vec<Row> = Vec::new();
    let mut found: Vec<ComputationId> = Vec::new();
    // Loops and the loops around them.
    let mut around: Vec<(ComputationId, Vec<Row>)> = vec![(module.entry(), Vec::new())];
    while let Some((place, outer)) = around.pop() {
        let graph = Graph::new(module, place, &all, budget)?;
        let mut loops: Vec<u32> = looped(&graph).into_iter().map(|(_, node)| node).collect();
        loops.sort_unstable();
        let mut own = pairs(module, cost, &graph, &loops, phase, budget)?;
        if own.is_empty() {
            let deeper = outer.len() < DEEPEST as usize;
            for row in loops.iter().map(|node| graph.nodes[*node as usize].row).filter(|_| deeper) {
                let body = module.called(row, CallRole::Body);
                let path = outer.iter().copied().chain([row]).collect();
                around.extend(body.map(|body| (body, path)));
            }
            continue;
        }
        for pair in &mut own {
            let bodies =
                [pair.forward, pair.backward].map(|row| module.called(row, CallRole::Body));
            let [Some(fore), Some(aft)] = bodies else { return None };
            pair.inner = loops_over_layers_of(module, cost, [fore, aft], &all, budget)?;
            let [inner, back] = &pair.inner;
            if inner.is_empty() && back.is_empty() {
                continue;
            }
            places.groups.extend([pair.forward, pair.backward]);
            closed.extend(inner.iter().chain(back));
            found.extend(bodies.into_iter().flatten());
            // Groups under `jax.checkpoint` run the forward loop over layers again.
            let Some(body) = bodies[1].filter(|_| back.len() > 1) else { continue };
            let graph = Graph::new(module, body, &all, budget)?;
            let mut loops: Vec<(Row, u32)> = looped(&graph);
            loops.retain(|(row, _)| back.binary_search(row).is_ok());
            let mut loops: Vec<u32> = loops.into_iter().map(|(_, node)| node).collect();
            loops.sort_unstable();
            let mut again = pairs(module, cost, &graph, &loops, phase, budget)?;
            again.retain(|own| back.binary_search(&own.forward).is_ok());
            places.pairs.extend(again.into_iter().map(|own| Pair { is_again: true, ..own }));
        }
        closed.extend(outer.iter().copied());
        closed.extend(own.iter().flat_map(|pair| [pair.forward, pair.backward]));
        found.push(place);
        found.extend(outer.iter().map(|row| module.computation_of(*row)));
        places.pairs.extend(own);
    }
    closed.sort_unstable();
    closed.dedup();
    places.groups.sort_unstable();
    found.push(module.entry());
    for place in found {
        if !places.graphs.contains_key(&place) {
            places.graphs.insert(place, Graph::new(module, place, &closed, budget)?);
        }
    }
    (!places.pairs.is_empty()).then_some(places)
}

/// The loops of a graph that are not opened, by row.
pub fn looped(graph: &Graph) -> Vec<(Row, u32)> {
    let mut loops: Vec<(Row, u32)> =
        graph.states.keys().map(|node| (graph.nodes[*node as usize].row, *node)).collect();
    loops.sort_unstable();
    loops
}

/// The pairs of loops of a graph of which one stacks what the other reads.
fn pairs(
    module: &Module,
    cost: &Cost,
    graph: &Graph,
    loops: &[u32],
    phase: impl Fn(Row) -> Phase,
    budget: &mut usize,
) -> Option<Vec<Pair>> {
    let mut pairs: Vec<Pair> = Vec::new();
    // By forward loop: which elements of its result are stacks.
    let mut stacked: HashMap<Row, Vec<bool>, BuildMix> = HashMap::default();
    for back in loops {
        let backward = graph.nodes[*back as usize].row;
        let direction = phase(backward);
        if matches!(direction, Phase::Forward | Phase::Optimizer) {
            continue;
        }
        // By forward loop: the elements that this loop reads.
        let mut read: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        for (element, value) in (0u32..).zip(&graph.states[back]) {
            let Some(node) = value.node() else { continue };
            let source = graph.nodes[node as usize].whole.zip(graph.indices.get(&node));
            if let Some((forward, index)) = source
                && graph.states.contains_key(&forward)
            {
                read.entry(forward).or_default().push((*index, element));
            }
        }
        for (forward, read) in read {
            let forward = graph.nodes[forward as usize].row;
            if !stacked.contains_key(&forward) {
                let body = module.called(forward, CallRole::Body)?;
                let body = Graph::new(module, body, &[], budget)?;
                let count = module.shapes().tuple(module.shape(forward)).map_or(0, <[_]>::len);
                let own = (0..count as u32).map(|own| self::stacked(&body, own).is_some());
                stacked.insert(forward, own.collect());
            }
            let own: &Vec<bool> = &stacked[&forward];
            // A later loop may read the forward loop's last value.
            if !read.iter().any(|(element, _)| own.get(*element as usize) == Some(&true)) {
                continue;
            }
            // A forward loop has one backward loop, which reads most of its stacks: that of the layers after
            // it reads their input.
            let stacks = |read: &[(u32, u32)]| {
                read.iter().filter(|(element, _)| own.get(*element as usize) == Some(&true)).count()
            };
            let known = pairs.iter().position(|pair| pair.forward == forward);
            let is_known = known.is_some_and(|at| stacks(&pairs[at].read) >= stacks(&read));
            let trips = trips_of(cost, forward).zip(trips_of(cost, backward));
            let is_equal = trips.is_some_and(|(a, b)| a == b);
            if is_known || !is_equal || phase(forward) == Phase::Backward {
                continue;
            }
            let is_told = matches!(direction, Phase::Backward | Phase::Recompute);
            if is_told || reads_backwards(module, backward, &read, budget)? {
                let inner = [Vec::new(), Vec::new()];
                if let Some(at) = known {
                    pairs.remove(at);
                }
                pairs.push(Pair { forward, backward, read, inner, is_again: false });
            }
        }
    }
    Some(pairs)
}

/// By loop: how many elements of its result one loop reads at most, if `sources` tells what each reads. That of
/// the layers after it reads less: their input.
pub fn most_read(sources: &[Vec<(u32, Place)>]) -> HashMap<Row, usize, BuildMix> {
    let mut most: HashMap<Row, usize, BuildMix> = HashMap::default();
    for sources in sources {
        let mut own: HashMap<Row, usize, BuildMix> = HashMap::default();
        for (_, source) in sources.iter().filter(|(_, source)| !source.path.is_empty()) {
            *own.entry(source.row).or_default() += 1;
        }
        for (row, count) in own {
            let known = most.entry(row).or_default();
            *known = count.max(*known);
        }
    }
    most
}

/// The iterations of a loop, if they are known and not zero.
pub fn trips_of(cost: &Cost, row: Row) -> Option<u64> {
    let at = cost.loops.binary_search_by_key(&row, |entry| entry.row).ok()?;
    cost.loops[at].trip_count.count.filter(|count| *count > 0)
}

/// Whether a loop reads slices of one of these elements of its state from the last to the first.
/// None if the budget is spent.
fn reads_backwards(
    module: &Module,
    row: Row,
    read: &[(u32, u32)],
    budget: &mut usize,
) -> Option<bool> {
    let Some(body) = module.called(row, CallRole::Body) else { return Some(false) };
    let graph = Graph::new(module, body, &[], budget)?;
    let is_read = |element| read.iter().any(|(_, own)| Some(*own) == element);
    let slices = (0u32..).zip(&graph.nodes).filter(|(_, node)| node.opcode == Opcode::DynamicSlice);
    for (slice, _) in slices {
        let [stack, indices @ ..] = graph.operands(slice) else { continue };
        if !is_read(graph.nodes[*stack as usize].element) {
            continue;
        }
        let mut open: Vec<u32> = indices.to_vec();
        for _ in 0..MOST_STEPS {
            let Some(at) = open.pop() else { break };
            let operands = graph.operands(at);
            // The counter is subtracted from a constant.
            let is_from = graph.nodes[at as usize].opcode == Opcode::Subtract
                && operands.get(1).is_some_and(|own| graph.nodes[*own as usize].element.is_some());
            if is_from {
                return Some(true);
            }
            open.extend(operands);
        }
    }
    Some(false)
}
