//! Why a module has no policies to compare, and the scans that the model does not cover.

use super::graph::Graph;
use super::hosted;
use super::scans::{Scan, is_heavy};
use crate::cost::Cost;
use crate::ir::{CallRole, Module, Opcode, Row};

/// Limit on the loops in a layer that are looked at.
const MOST_LOOPS: usize = 1 << 10;
/// Limit on the rows between a weight and the slice of it that a layer gets.
const MOST_STEPS: usize = 16;

/// Why a module has no policies to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPolicies {
    /// There are no layers that the model finds, or the module is too large.
    NoLayers,
    /// A scan over groups of layers, which are scanned themselves.
    Nested,
    /// Scheduled loops with values in host memory that are no stacks which the model follows.
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

/// Why the model does not cover one of these scans; None if it covers all.
pub fn unknown(
    module: &Module,
    cost: &Cost,
    scans: &[Scan],
    budget: &mut usize,
) -> Option<NoPolicies> {
    let mut loops: Vec<Row> = cost.loops.iter().map(|own| own.row).collect();
    loops.sort_unstable();
    for scan in scans {
        let known = scan.stacks.iter().filter(|stack| stack.is_host).count();
        if hosted::elements(module, module.shape(scan.forward)) > known {
            return Some(NoPolicies::Offloaded);
        }
        // A module with more loops has been through unrolling; it is not looked at.
        let is_small = loops.len() <= MOST_LOOPS;
        if is_small && scans_layers(module, scan, &loops, budget)? {
            return Some(NoPolicies::Nested);
        }
    }
    None
}

/// Whether a layer of a scan is a scan over weights itself: a loop that slices a slice of weights.
/// None if the budget is spent.
fn scans_layers(module: &Module, scan: &Scan, loops: &[Row], budget: &mut usize) -> Option<bool> {
    let graph = Graph::new(module, scan.body_id, loops, budget)?;
    for (node, state) in &graph.states {
        let body = module.called(graph.nodes[*node as usize].row, CallRole::Body);
        let inner = Graph::new(module, body?, &[], budget)?;
        if !inner.nodes.iter().any(|node| node.opcode.is_matmul()) {
            continue;
        }
        for (at, own) in inner.nodes.iter().enumerate() {
            let sliced = match own.opcode {
                Opcode::DynamicSlice => inner.operands(at as u32).first(),
                _ => None,
            };
            let element = sliced.and_then(|own| inner.nodes[*own as usize].element);
            let source = element.and_then(|own| state.get(own as usize)).and_then(|own| own.node());
            if source.is_some_and(|source| is_sliced_weight(&graph, source)) {
                return Some(true);
            }
        }
    }
    Some(false)
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
