//! Call contexts: a computation together with the name prefix of its call sites.
//!
//! A computation that forward and backward code share belongs to both. Its names continue different
//! prefixes, so it has one node per prefix, with the same rows but different phases and scopes. If
//! no name is relative, as in most optimised text, every computation has one node.
//!
//! The rules for prefixes follow unoptimised dumps of JAX 0.10. Only `call` starts a function, whose
//! names continue the call's name. Bodies and conditions of loops, branches, fusions and
//! asynchronously wrapped computations are parts of the surrounding function (the body of a `while`
//! named `while` contains `while/body/add`). Computations that are applied to elements (`to_apply`
//! of reduce, scatter, sort, ...) have one node for all callers, because their cost is counted at
//! the callers.

use super::names::Names;
use super::scope::ScopeTree;
use crate::ir::intern::BuildMix;
use crate::ir::{Call, CallRole, ComputationId, Module, Opcode, Row};
use hashbrown::HashMap;
use std::ops::Range;

/// Index of a node.
pub type NodeId = u32;

/// A computation in one context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The computation.
    pub computation: ComputationId,
    /// The scope that relative names in the computation continue.
    pub prefix: u32,
    /// Whether the computation is applied to elements (`to_apply` of a reduce, scatter, sort, ...).
    pub is_applied: bool,
    /// Position of its first row in columns over (node, row): see `Contexts::position`.
    pub start: u32,
}

/// One call, in one context of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The caller.
    pub caller: NodeId,
    /// Index into `Module::all_calls()`.
    pub call: u32,
    /// The callee.
    pub callee: NodeId,
}

/// The nodes and the edges between them.
///
/// Node 0 is the entry computation. The nodes of a computation are adjacent, callers come before
/// callees, and computations that the entry does not reach come last, without edges.
#[derive(Clone, Debug, Default)]
pub struct Contexts {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// The edges by caller, and in text order for each caller.
    pub edges: Vec<Edge>,
    /// For each node the index of its first edge; then the number of edges.
    first_edge: Vec<u32>,
    /// The first node of each computation.
    first: Vec<NodeId>,
    /// Number of nodes that the entry reaches.
    reached: u32,
    /// Total rows of all nodes.
    pub positions: usize,
    /// Whether there were too many contexts: every computation then has one node, with the prefix
    /// of its first call site.
    pub is_merged: bool,
    /// Whether the calls form a cycle; the calls that close it have no edges.
    pub is_cyclic: bool,
}

/// A prefix longer than this is not extended, so that nested calls cannot grow names without bound.
const LONGEST_PREFIX: u32 = 4096;

impl Contexts {
    /// One node per computation, ignoring names.
    pub fn plain(module: &Module) -> Contexts {
        let order = CallOrder::of(module);
        build(module, &order, None, &mut |_| true, &mut |_, _| ScopeTree::ROOT).unwrap_or_default()
    }

    /// One node per computation and per chain of `call`s that leads to it, as if calls were
    /// inlined.
    pub fn by_call(module: &Module) -> Contexts {
        let order = CallOrder::of(module);
        let weights: Vec<usize> = module
            .computations()
            .iter()
            .zip(&order.calls)
            .map(|(computation, calls)| computation.rows().len() + calls.len() + 1)
            .collect();
        let mut chains: HashMap<(u32, u32), u32, BuildMix> = HashMap::default();
        let mut prefix = |from: u32, call: &Call| {
            if module.opcode(call.row) != Opcode::Call {
                return from;
            }
            let next = ScopeTree::ROOT + 1 + chains.len() as u32;
            *chains.entry((from, call.row.0)).or_insert(next)
        };
        let mut is_one = |call: &Call| applies(module, call);
        build(module, &order, Some(&weights), &mut is_one, &mut prefix)
            .unwrap_or_else(|| Contexts { is_merged: true, ..Contexts::plain(module) })
    }

    /// One node per computation and prefix. `scopes` receives the prefixes.
    pub(super) fn named(
        module: &Module,
        names: &mut Names<'_>,
        scopes: &mut ScopeTree,
    ) -> Contexts {
        let order = CallOrder::of(module);
        let (needs, weights) = needs_prefix(module, &order, names);
        let mut prefix = |from: u32, call: &Call| {
            if !applies(module, call) && module.opcode(call.row) != Opcode::Call {
                return from;
            }
            let Some(id) = names.id(call.row) else { return from };
            let scope = names.scope(scopes, from, id);
            if scopes.length(scope) > LONGEST_PREFIX { from } else { scope }
        };
        let mut is_one = |call: &Call| applies(module, call) || !needs[call.computation.0 as usize];
        if let Some(separate) = build(module, &order, Some(&weights), &mut is_one, &mut prefix) {
            return separate;
        }
        let merged = build(module, &order, None, &mut |_| true, &mut prefix);
        Contexts { is_merged: true, ..merged.unwrap_or_default() }
    }

    /// The nodes of computation `id`; there is at least one.
    pub fn nodes_of(&self, id: ComputationId) -> Range<NodeId> {
        let first = self.first[id.0 as usize];
        let others = self.nodes[first as usize..].iter().skip(1);
        let count = others.take_while(|node| node.computation == id).count() as u32;
        first..first + 1 + count
    }

    /// The first node of computation `id`, which the columns over rows describe.
    pub fn first_node(&self, id: ComputationId) -> NodeId {
        self.first[id.0 as usize]
    }

    /// Whether the entry reaches `node`.
    pub fn is_reached(&self, node: NodeId) -> bool {
        node < self.reached
    }

    /// The index of (`node`, `row`) in columns over all nodes' rows. For the first node of each
    /// computation, the index is the row itself; further nodes follow.
    #[inline]
    pub fn position(&self, module: &Module, node: NodeId, row: Row) -> usize {
        let node = &self.nodes[node as usize];
        (node.start + (row.0 - module.computation(node.computation).first_row)) as usize
    }

    /// The range of `edges` that belongs to `caller`.
    pub(super) fn edge_range(&self, caller: NodeId) -> Range<usize> {
        let at = caller as usize;
        self.first_edge[at] as usize..self.first_edge[at + 1] as usize
    }

    /// The edges of `caller`.
    pub fn edges_of(&self, caller: NodeId) -> &[Edge] {
        &self.edges[self.edge_range(caller)]
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.edges.capacity() * size_of::<Edge>()
            + (self.first.capacity() + self.first_edge.capacity()) * 4
    }
}

/// How often each node runs when the entry runs once: the sum over its calls of the caller's count
/// times `times` of the call (an index into `Module::all_calls()`). None if a count is unknown or
/// exceeds 64 bits, and for every node if calls form a cycle; 0 for nodes that the entry does not
/// reach.
pub fn multiplicities(
    contexts: &Contexts,
    mut times: impl FnMut(usize) -> Option<u64>,
) -> Vec<Option<u64>> {
    if contexts.is_cyclic {
        return vec![None; contexts.nodes.len()];
    }
    let mut counts = vec![Some(0u64); contexts.nodes.len()];
    // The entry, and in a fragment every computation that nothing calls.
    let mut is_called = vec![false; counts.len()];
    for edge in &contexts.edges {
        is_called[edge.callee as usize] = true;
    }
    for node in 0..contexts.reached as usize {
        if !is_called[node] || node == 0 {
            counts[node] = Some(1);
        }
    }
    for edge in &contexts.edges {
        let caller = counts[edge.caller as usize];
        // A caller that never runs adds 0, even if the count of the call is unknown.
        let added = match (caller, times(edge.call as usize)) {
            (Some(0), _) | (_, Some(0)) => Some(0),
            (Some(caller), Some(times)) => caller.checked_mul(times),
            _ => None,
        };
        let count = &mut counts[edge.callee as usize];
        *count = count.zip(added).and_then(|(count, added)| count.checked_add(added));
    }
    counts
}

/// Whether `call` applies a computation to elements.
pub(super) fn applies(module: &Module, call: &Call) -> bool {
    match call.role {
        CallRole::ToApply => !matches!(
            module.opcode(call.row),
            Opcode::Call | Opcode::CustomCall | Opcode::AsyncStart
        ),
        CallRole::Select | CallRole::Scatter => true,
        _ => false,
    }
}

/// The computations that the entry reaches, callers before callees.
struct CallOrder {
    computations: Vec<u32>,
    /// By computation: its place in `computations`; `u32::MAX` if the entry does not reach it.
    place: Vec<u32>,
    /// By computation: its calls.
    calls: Vec<Range<u32>>,
    is_cyclic: bool,
}

impl CallOrder {
    fn of(module: &Module) -> CallOrder {
        let calls = module.all_calls();
        let mut ranges = Vec::with_capacity(module.computations().len());
        let mut at = 0;
        for computation in module.computations() {
            let start = at;
            while calls.get(at).is_some_and(|call| call.row.0 < computation.end_row) {
                at += 1;
            }
            ranges.push(start as u32..at as u32);
        }
        let mut order = CallOrder {
            computations: Vec::new(),
            place: vec![u32::MAX; ranges.len()],
            calls: ranges,
            is_cyclic: false,
        };
        let mut is_seen = vec![false; order.calls.len()];
        // The order is reversed, so that the entry becomes the first.
        for start in module.starts().into_iter().rev() {
            let Some(left) = order.calls.get(start.0 as usize).cloned() else { continue };
            is_seen[start.0 as usize] = true;
            let mut stack = vec![(start.0, left)];
            while let Some((top, left)) = stack.last_mut() {
                let Some(call) = left.next() else {
                    order.computations.push(*top);
                    stack.pop();
                    continue;
                };
                let callee = calls[call as usize].computation.0;
                if !std::mem::replace(&mut is_seen[callee as usize], true) {
                    stack.push((callee, order.calls[callee as usize].clone()));
                }
            }
        }
        order.computations.reverse();
        for (place, computation) in order.computations.iter().enumerate() {
            order.place[*computation as usize] = place as u32;
        }
        order.is_cyclic = order.computations.iter().any(|computation| {
            let mut calls = order.calls[*computation as usize].clone();
            calls.any(|call| !order.descends(*computation, &module.all_calls()[call as usize]))
        });
        order
    }

    /// Whether `call` in `caller` leads further down; false if it closes a cycle.
    fn descends(&self, caller: u32, call: &Call) -> bool {
        self.place[call.computation.0 as usize] > self.place[caller as usize]
    }
}

/// For every computation: whether names in it or in its callees need its prefix, and the cost of
/// one more node of it, in rows.
fn needs_prefix(module: &Module, order: &CallOrder, names: &Names<'_>) -> (Vec<bool>, Vec<usize>) {
    let mut needs = vec![false; order.calls.len()];
    let mut weights = vec![0; order.calls.len()];
    for computation in order.computations.iter().rev() {
        let rows = module.computation(ComputationId(*computation)).rows();
        let mut weight = rows.len() + order.calls[*computation as usize].len() + 1;
        let mut is_needed = false;
        for id in rows.filter_map(|row| names.id(Row(row))) {
            if names.is_relative(id) {
                is_needed = true;
                weight += names.length(id) / 16;
            }
        }
        let mut calls = order.calls[*computation as usize].clone();
        let is_passed_on = |call: &Call| {
            needs[call.computation.0 as usize]
                && !applies(module, call)
                && (module.opcode(call.row) != Opcode::Call || names.id(call.row).is_none())
        };
        is_needed |= calls.any(|call| is_passed_on(&module.all_calls()[call as usize]));
        needs[*computation as usize] = is_needed;
        weights[*computation as usize] = weight;
    }
    (needs, weights)
}

/// A node whose number is not assigned yet.
struct Draft {
    prefix: u32,
    /// The next node of the same computation.
    next: u32,
    number: NodeId,
    is_applied: bool,
}

const NONE: u32 = u32::MAX;

/// Builds nodes and edges. `is_one` says whether the callee has a single node, with the prefix of
/// its first call site; `prefix` returns the callee's prefix for a call in a context. None if the
/// `weights` of additional nodes exceed three times the rows plus a million.
fn build(
    module: &Module,
    order: &CallOrder,
    weights: Option<&[usize]>,
    is_one: &mut dyn FnMut(&Call) -> bool,
    prefix: &mut dyn FnMut(u32, &Call) -> u32,
) -> Option<Contexts> {
    let count = order.calls.len();
    let mut contexts = Contexts {
        nodes: Vec::with_capacity(count),
        edges: Vec::with_capacity(module.all_calls().len()),
        first: vec![0; count],
        is_cyclic: order.is_cyclic,
        positions: module.row_count(),
        ..Contexts::default()
    };
    let mut left = module.row_count().saturating_mul(3).saturating_add(1_000_000);
    let mut drafts: Vec<Draft> = Vec::with_capacity(count);
    // The first and the last draft of each computation.
    let mut ends = vec![(NONE, NONE); count];
    let mut known: HashMap<(u32, u32), u32, BuildMix> = HashMap::default();
    for start in module.starts() {
        if let Some(end) = ends.get_mut(start.0 as usize) {
            let draft = drafts.len() as u32;
            let prefix = ScopeTree::ROOT;
            drafts.push(Draft { prefix, next: NONE, number: 0, is_applied: false });
            *end = (draft, draft);
        }
    }
    for computation in &order.computations {
        let record = module.computation(ComputationId(*computation));
        let mut draft = ends[*computation as usize].0;
        contexts.first[*computation as usize] = contexts.nodes.len() as u32;
        let mut start = record.first_row;
        while let Some(Draft { prefix: own, next, number, is_applied }) =
            drafts.get_mut(draft as usize)
        {
            let (own, next_draft) = (*own, *next);
            let caller = contexts.nodes.len() as u32;
            *number = caller;
            contexts.nodes.push(Node {
                computation: ComputationId(*computation),
                prefix: own,
                is_applied: *is_applied,
                start,
            });
            contexts.first_edge.push(contexts.edges.len() as u32);
            start = contexts.positions as u32;
            if next_draft != NONE {
                contexts.positions += record.rows().len();
                left = left.checked_sub(weights.map_or(0, |w| w[*computation as usize]))?;
            }
            for index in order.calls[*computation as usize].clone() {
                let call = &module.all_calls()[index as usize];
                if !order.descends(*computation, call) {
                    continue;
                }
                let callee = call.computation.0;
                let (first, last) = ends[callee as usize];
                let mut draft = first;
                if first == NONE || !is_one(call) {
                    let prefix = prefix(own, call);
                    let next = drafts.len() as u32;
                    draft = match drafts.get(first as usize) {
                        None => next,
                        Some(first) if first.prefix == prefix => draft,
                        Some(_) => *known.entry((callee, prefix)).or_insert(next),
                    };
                    if draft == next {
                        let is_applied = applies(module, call);
                        drafts.push(Draft { prefix, next: NONE, number: 0, is_applied });
                        match drafts.get_mut(last as usize) {
                            None => ends[callee as usize] = (next, next),
                            Some(last) => {
                                last.next = next;
                                ends[callee as usize].1 = next;
                            }
                        }
                    }
                }
                contexts.edges.push(Edge { caller, call: index, callee: draft });
            }
            draft = next_draft;
        }
    }
    for edge in &mut contexts.edges {
        edge.callee = drafts[edge.callee as usize].number;
    }
    contexts.reached = contexts.nodes.len() as u32;
    for (computation, place) in order.place.iter().enumerate() {
        if *place == u32::MAX {
            let id = ComputationId(computation as u32);
            contexts.first[computation] = contexts.nodes.len() as u32;
            let start = module.computation(id).first_row;
            contexts.nodes.push(Node {
                computation: id,
                prefix: ScopeTree::ROOT,
                is_applied: false,
                start,
            });
        }
    }
    // Nodes that are not reached need an entry too.
    contexts.first_edge.resize(contexts.nodes.len() + 1, contexts.edges.len() as u32);
    Some(contexts)
}
