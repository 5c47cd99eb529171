//! Why a module has no policies to compare, and the scans that the model does not cover.

use super::graph::{Graph, Node};
use super::hosted;
use super::pairs::{looped, trips_of};
use super::scans::{Scan, is_heavy, stacked};
use crate::cost::Cost;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};

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
    /// A scan over groups of layers, which are scanned themselves.
    Nested,
    /// Scheduled loops with values in host memory that are not stacks which the model follows.
    Offloaded,
    /// The memory of the module cannot be counted.
    Memory,
}

impl NoPolicies {
    /// The word that the bindings use.
    pub fn as_str(self) -> &'static str {
        match self {
            NoPolicies::NoLayers => "no-layers",
            NoPolicies::Nested => "nested",
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
            if !inner.is_empty() {
                return Some(NoPolicies::Nested);
            }
        }
    }
    None
}

/// The loops that run over layers in the body of another loop, which is over groups of layers: loops
/// that slice a slice of weights, and loops of one iteration that the program tells XLA to keep.
/// `loops` are all loops of the module, ascending. None if the budget is spent.
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
        let is_layers = |(at, own): (u32, &Node)| {
            let sliced = inner.operands(at).first().filter(|_| own.opcode == Opcode::DynamicSlice);
            let element = sliced.and_then(|own| inner.nodes[*own as usize].element);
            let source = element.and_then(|own| state.get(own as usize)).and_then(|own| own.node());
            source.is_some_and(|source| is_sliced_weight(&graph, source) || is_stack(source))
        };
        if (0u32..).zip(&inner.nodes).any(is_layers) {
            found.push(row);
            opened.push((node, inner));
        }
    }
    found.sort_unstable();
    Some(found)
}

/// Whether the program tells XLA to keep a loop of one iteration.
pub fn is_kept_apart(module: &Module, row: Row) -> bool {
    let attributes = module.attribute_bytes(row, "frontend_attributes");
    attributes.is_some_and(|own| own.windows(KEPT.len()).any(|part| part == KEPT))
}

/// Whether a value is a slice of an element of the state that the loop does not change, converted or
/// rearranged.
fn is_sliced_weight(graph: &Graph, node: u32) -> bool {
    let mut at = node;
    for _ in 0..MOST_STEPS {
        let own = &graph.nodes[at as usize];
        let Some(first) = graph.operands(at).first() else { return false };
        if own.opcode == Opcode::DynamicSlice {
            return super::scans::is_unchanged(graph, *first);
        }
        if is_heavy(own.opcode) || graph.operands(at).len() > 1 {
            return false;
        }
        at = *first;
    }
    false
}
