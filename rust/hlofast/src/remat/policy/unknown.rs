//! Why a module has no policies to compare, and the scans that the model does not cover.

use super::graph::{Graph, Node};
use super::groups::chain;
use super::hosted;
use super::inner::is_of_program;
use super::is_collective;
use super::pairs::{looped, trips_of};
use super::scans::{Scan, is_heavy, is_rearrangement};
use super::stacks::{is_unchanged, stacked};
use crate::cost::Cost;
use crate::flow::walk::is_kept;
use crate::ir::{CallRole, ComputationId, Dimension, ElementType, Module, Opcode, Row, ShapeId};

/// Limit on the loops in a layer that are looked at.
const MOST_LOOPS: usize = 1 << 10;
/// Limit on the rows between a weight and the slice of it that a layer gets.
const MOST_STEPS: usize = 16;
/// What keeps a loop of one iteration in a text.
const KEPT: &[u8] = b"skip-simplify-while-loops_trip-count-one=\"true\"";

/// Why a module has no policies to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPolicies {
    /// There are no layers that the model finds, or the module is too large.
    NoLayers,
    /// A scan over groups of layers, which are scanned themselves: the loop that has no partner.
    Nested(Row),
    /// Scheduled loops with values in host memory that are not stacks which the model follows.
    Offloaded,
    /// The memory of the module cannot be counted.
    Memory,
}

impl NoPolicies {
    /// The loop that the model does not cover, if it is one loop.
    pub fn row(self) -> Option<Row> {
        match self {
            NoPolicies::Nested(row) => Some(row),
            _ => None,
        }
    }

    /// The word that the bindings use.
    pub fn as_str(self) -> &'static str {
        match self {
            NoPolicies::NoLayers => "no-layers",
            NoPolicies::Nested(_) => "nested",
            NoPolicies::Offloaded => "offloaded",
            NoPolicies::Memory => "memory",
        }
    }
}

/// Why the model does not cover one of these scans; None if it covers all. The groups of layers of
/// a scheduled module are looked at where its scans are found.
pub fn unknown(
    module: &Module,
    cost: &Cost,
    scans: &[Scan],
    is_scheduled: bool,
    budget: &mut usize,
) -> Option<NoPolicies> {
    let mut loops: Vec<Row> = cost.loops.iter().map(|own| own.row).collect();
    loops.sort_unstable();
    for scan in scans {
        let known = scan.stacks.iter().filter(|stack| stack.is_host).count();
        if hosted::elements(module, module.shape(scan.outer()[0])) > known {
            return Some(NoPolicies::Offloaded);
        }
        // Layers beside the loops over the layers of a group share their body.
        let is_beside = scans.iter().any(|own| own.outer() == scan.outer() && own.group.is_some());
        if !is_scheduled && (scan.group.is_some() || !is_beside) {
            let inner = loops_over_layers(module, cost, scan.body_id, &loops, budget)?;
            if let Some(row) = inner.first() {
                return Some(NoPolicies::Nested(*row));
            }
        }
    }
    None
}

/// The loops that run over layers in the bodies of a forward and of a backward loop, which are over groups of
/// layers. What a forward loop tells decides: the loops in a layer slice stacks in a backward pass, as loops
/// over layers do. None if the budget is spent.
pub fn loops_over_layers_of(
    module: &Module,
    cost: &Cost,
    bodies: [ComputationId; 2],
    loops: &[Row],
    budget: &mut usize,
) -> Option<[Vec<Row>; 2]> {
    let forward = loops_over_layers(module, cost, bodies[0], loops, budget)?;
    if forward.is_empty() {
        return Some([forward, Vec::new()]);
    }
    Some([forward, loops_over_layers(module, cost, bodies[1], loops, budget)?])
}

/// The loops that run over layers in the body of another loop, which is over groups of layers: loops
/// that slice a slice of weights and multiply what they hand on, and loops of one iteration that the program
/// tells XLA to keep. `loops` are all loops of the module, ascending. None if the budget is spent.
pub fn loops_over_layers(
    module: &Module,
    cost: &Cost,
    body: ComputationId,
    loops: &[Row],
    budget: &mut usize,
) -> Option<Vec<Row>> {
    let mut found = Vec::new();
    let rows = module.computation(body).rows();
    // Before optimisation, the inner loop may be in a computation that the body calls.
    let is_call = |row: u32| module.opcode(Row(row)) == Opcode::Call;
    let may_loop = loops.iter().any(|row| rows.contains(&row.0)) || rows.clone().any(is_call);
    // A module with more loops has been through unrolling; it is not looked at.
    if loops.len() > MOST_LOOPS || !may_loop {
        return Some(found);
    }
    let graph = Graph::new(module, body, loops, budget)?;
    let mut opened: Vec<(u32, Graph)> = Vec::new();
    for (row, node) in looped(&graph) {
        if trips_of(cost, row) == Some(1) && is_kept_apart(module, row) {
            found.push(row);
            continue;
        }
        let inner = Graph::new(module, module.called(row, CallRole::Body)?, &[], budget)?;
        if !inner.nodes.iter().any(|node| node.opcode.is_matmul()) {
            continue;
        }
        // Groups under `jax.checkpoint` stack the weights of their layers for the backward loop.
        let is_stack = |source: u32| {
            let made = graph.nodes[source as usize].whole.zip(graph.indices.get(&source));
            made.is_some_and(|(whole, index)| {
                let known = opened.iter().find(|(own, _)| *own == whole);
                known.is_some_and(|(_, body)| stacked(body, *index).is_some())
            })
        };
        let state = &graph.states[&node];
        // Loops around rings, which the partitioner writes in a layer, may slice what a layer gets.
        let is_own = is_of_program(module, row, &inner);
        let is_weight = |(at, own): (u32, &Node)| {
            let sliced = inner.operands(at).first().filter(|_| own.opcode == Opcode::DynamicSlice);
            let element = sliced.and_then(|own| inner.nodes[*own as usize].element);
            let source = element.and_then(|own| state.get(own as usize)).and_then(|own| own.node());
            let is_whole = |source: u32| {
                is_own && is_matrix(module, own.shape) && is_whole_weight(module, &graph, source)
            };
            let is_any = |own: u32| is_sliced_weight(&graph, own) || is_stack(own) || is_whole(own);
            source.is_some_and(is_any)
        };
        let nodes = (0u32..).zip(&inner.nodes);
        let weights: Vec<u32> = nodes.filter(|own| is_weight(*own)).map(|own| own.0).collect();
        if multiplies_handed_on(&inner, &weights) {
            found.push(row);
            opened.push((node, inner));
        }
    }
    found.sort_unstable();
    Some(found)
}

/// Whether a product of a loop's body multiplies one of these slices of weights with what is made from a value
/// that every iteration hands on to the next. Loops over experts multiply the same value with each.
fn multiplies_handed_on(body: &Graph, weights: &[u32]) -> bool {
    if weights.is_empty() {
        return false;
    }
    // By node: whether cheap work makes it from such a slice, and whether it is made from what is handed on.
    let mut of_weight = vec![false; body.nodes.len()];
    let mut is_handed_on = vec![false; body.nodes.len()];
    weights.iter().for_each(|node| of_weight[*node as usize] = true);
    for (node, own) in (0u32..).zip(&body.nodes) {
        let at = node as usize;
        if let Some(element) = own.element {
            let made = body.root.element(element as usize).node();
            // Compilers fetch weights an iteration ahead.
            let fetched = made.and_then(|made| chain(body, made).last().copied());
            of_weight[at] = fetched.is_some_and(|own| weights.binary_search(&own).is_ok());
            let is_stack = || stacked(body, element).is_some();
            let is_other = || of_weight[at] || is_stack() || adds_constant(body, node);
            is_handed_on[at] = made.is_some_and(|made| made != node) && !is_other();
            continue;
        }
        let operands = body.operands(node);
        let is_made = |known: &[bool]| operands.iter().any(|own| known[*own as usize]);
        if own.opcode.is_matmul() && is_made(&of_weight) && is_made(&is_handed_on) {
            return true;
        }
        // Devices gather their parts of a weight first.
        let hands_on = !is_heavy(own.opcode) || is_collective(own.opcode);
        of_weight[at] |= hands_on && is_made(&of_weight);
        is_handed_on[at] = is_made(&is_handed_on);
    }
    false
}

/// Whether a node is an element of the state to which every iteration adds a constant.
fn adds_constant(body: &Graph, node: u32) -> bool {
    let element = body.nodes[node as usize].element;
    let made = element.and_then(|own| body.root.element(own as usize).node());
    let Some(made) = made.filter(|made| body.nodes[*made as usize].opcode == Opcode::Add) else {
        return false;
    };
    body.operands(made)
        .iter()
        .all(|own| *own == node || body.nodes[*own as usize].opcode == Opcode::Constant)
}

/// Whether the program tells XLA to keep a loop of one iteration.
pub fn is_kept_apart(module: &Module, row: Row) -> bool {
    let attributes = module.attribute_bytes(row, "frontend_attributes");
    attributes.is_some_and(|own| own.windows(KEPT.len()).any(|part| part == KEPT))
}

/// Whether a shape can be that of the weight of a product: it has two dimensions at least, unlike counters of
/// iterations and biases, and its elements are not predicates, unlike those of masks.
fn is_matrix(module: &Module, shape: ShapeId) -> bool {
    let Some(array) = module.shapes().array(shape) else { return false };
    let long = |size: &Dimension| size.bound().is_some_and(|size| size > 1);
    array.element_type != ElementType::Pred && array.dimensions().filter(long).count() > 1
}

/// Whether a value is an element of the state that the loop does not change, converted or rearranged: a pipeline
/// runs the same layers in every iteration.
fn is_whole_weight(module: &Module, graph: &Graph, node: u32) -> bool {
    let Some(last) = chain(graph, node).last().copied() else { return false };
    let own = &graph.nodes[last as usize];
    let read = graph.operands(last).first().filter(|_| is_rearrangement(own.opcode));
    let at = read.copied().unwrap_or(last);
    graph.nodes[at as usize].element.is_some()
        && (is_unchanged(graph, at) || is_handed_through(module, graph, at))
}

/// Whether an element of the state is handed on unchanged by an inner loop, which reads it.
fn is_handed_through(module: &Module, graph: &Graph, node: u32) -> bool {
    let through = || {
        let element = graph.nodes[node as usize].element?;
        let made = graph.root.element(element as usize).node()?;
        let inner = graph.nodes[made as usize].whole?;
        let index = *graph.indices.get(&made)? as usize;
        let is_same = graph.states.get(&inner)?.get(index)?.node() == Some(node);
        let body = module.called(graph.nodes[inner as usize].row, CallRole::Body)?;
        Some(is_same && is_kept(module, body, index))
    };
    through().unwrap_or(false)
}

/// Whether a value is a slice of an element of the state that the loop does not change, converted or
/// rearranged.
fn is_sliced_weight(graph: &Graph, node: u32) -> bool {
    let mut at = node;
    for _ in 0..MOST_STEPS {
        let own = &graph.nodes[at as usize];
        let Some(first) = graph.operands(at).first() else { return false };
        if own.opcode == Opcode::DynamicSlice {
            return is_unchanged(graph, *first);
        }
        if is_heavy(own.opcode) || graph.operands(at).len() > 1 {
            return false;
        }
        at = *first;
    }
    false
}
