//! Gradients of weights that wait until the rest of a backward body is done.
//!
//! In a program that does not fit, the latency hiding scheduler works under a limit of memory: it multiplies the
//! gradient of a weight as soon as its operands are there, and frees them. In a program that fits, nothing in the layer
//! waits for these gradients: unless it is in the order of the list scheduler, they run late, and what they read stays
//! in memory until then. So where XLA for TPUs has rematerialised by itself, the model lets them wait under every policy
//! that keeps less than the text does, unless XLA takes the list's order (`simulated.rs`; on v5e and v6e some wait
//! then too, `delayed.rs`). Where the order is not known, and on v5e and v6e where the count does not say that it is the
//! list's, they run at once if the peak is much lower then (`orders.rs`). Where XLA has not rematerialised, the text's
//! order is that of a program that fits, and the model looks at another of XLA's orders as well (`memory/listed.rs`).
//! If its layers are checkpointed, the gradients wait under policies that XLA runs in another order (`reordered.rs`).
//! Judged by `benches/policy_accuracy.py`.

use super::graph::Graph;
use super::recomputed::Recomputed;
use super::run_order::MANY;
use super::scans::{is_heavy, node_of};
use crate::flow::has_compiler_clones;
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use crate::memory::{LiveValue, Memory};
use hashbrown::{HashMap, HashSet};
use std::ops::RangeInclusive;

/// Values of fewer bytes do not matter.
const LEAST: i64 = 1 << 20;

/// The rows of a backward body that what it hands to the layer before does not need.
#[derive(Debug, Default)]
pub struct Late {
    rows: HashSet<Row, BuildMix>,
    /// The last step of the other work.
    end: u32,
    /// Whether weights are gathered from few devices. Then the gradients do not wait under policies that
    /// keep nothing of a layer; fitted on `benches/policy_accuracy.py`.
    is_few: bool,
    /// Whether XLA has not rematerialised the text. Then gradients move only where `reordered.rs` says so.
    fits: bool,
    /// The changes of bytes if the gradients move.
    pub changes: Vec<(RangeInclusive<u32>, i64)>,
}

impl Late {
    /// Those of the body `back` of the loop `backward`, whose gradients of weights end in stacks. None in a text that
    /// fits and is not checkpointed.
    pub fn new(
        module: &Module,
        memory: &Memory,
        ([body, back], backward): ([&Graph; 2], Row),
        recomputed: &Recomputed,
        values: &[LiveValue],
    ) -> Self {
        let fits = !has_compiler_clones(module);
        let body_of = module.called(backward, CallRole::Body);
        let Some(id) = body_of.filter(|_| !fits || recomputed.is_checkpointed) else {
            return Self::default();
        };
        let of = |id: ComputationId| {
            let rows = module.computation(id).rows();
            values.iter().filter(move |value| rows.contains(&value.row.0))
        };
        let mut open = Vec::new();
        back.root.leaves(&mut open, &mut 0);
        let opcode = |node: u32| back.nodes[node as usize].opcode;
        open.retain(|node| opcode(*node) != Opcode::DynamicUpdateSlice);
        let mut is_needed = vec![false; back.nodes.len()];
        let mut needed: HashSet<Row, BuildMix> = HashSet::default();
        let mut end = 0;
        while let Some(at) = open.pop() {
            if std::mem::replace(&mut is_needed[at as usize], true) {
                continue;
            }
            let own = &back.nodes[at as usize];
            needed.insert(own.outer);
            if own.element.is_none() && is_heavy(own.opcode) {
                end = end.max(memory.step_of(own.outer).unwrap_or(0));
            }
            open.extend(back.operands(at).iter().chain(&own.whole));
        }
        let rows = back.nodes.iter().filter(|own| own.element.is_none()).map(|own| own.outer);
        let mut rows: HashSet<Row, BuildMix> = rows.filter(|row| !needed.contains(row)).collect();
        if fits {
            rows.extend(beside_collectives(back, &is_needed));
        }
        let is_few = gathered_from(module, body, &recomputed.is_fixed) < MANY;
        let mut late = Late { rows, end, is_few, fits, changes: Vec::new() };
        let change = |value| late.change(module, back, value, &is_needed);
        late.changes = of(id).filter_map(change).collect();
        late
    }

    /// The last step at which `row` reads a value that it reads at `step` in the text.
    pub fn read_at(&self, row: Row, step: u32) -> u32 {
        if !self.fits && self.rows.contains(&row) { step.max(self.end) } else { step }
    }

    /// Whether gradients move under a policy that keeps something of a layer in device memory, or does not.
    pub fn moves(&self, is_any_saved: bool) -> bool {
        !self.fits && !self.rows.is_empty() && (is_any_saved || !self.is_few)
    }

    /// What late rows read is live for longer, and what they make is not live before the other work is done.
    fn change(
        &self,
        module: &Module,
        back: &Graph,
        value: &LiveValue,
        is_needed: &[bool],
    ) -> Option<(RangeInclusive<u32>, i64)> {
        let is_state = matches!(module.opcode(value.row), Opcode::Parameter | Opcode::While);
        let node = node_of(back, value).filter(|_| value.bytes >= LEAST && !is_state)?;
        let own = &back.nodes[node as usize];
        // Slices of stacks leave with the stacks (`again.rs`).
        let is_stack = matches!(own.opcode, Opcode::DynamicSlice | Opcode::DynamicUpdateSlice);
        let is_late = self.rows.contains(&value.row);
        // A collective that runs beside a late product is needed for itself.
        if value.first_step > self.end || is_late && (is_stack || is_needed[node as usize]) {
            return None;
        }
        if is_late {
            return Some((value.first_step..=value.last_step.min(self.end), -value.bytes));
        }
        let mut users = back.users(node).iter().map(|user| back.nodes[*user as usize].outer);
        let is_read_late = own.element.is_none() && users.any(|own| self.rows.contains(&own));
        let is_longer = is_read_late && value.last_step < self.end;
        is_longer.then(|| (value.last_step + 1..=self.end, value.bytes))
    }
}

/// The rows whose products only gradients of weights need, although a part of them is needed: XLA runs pieces of
/// asynchronous collectives in the fusions of products.
fn beside_collectives(back: &Graph, is_needed: &[bool]) -> impl Iterator<Item = Row> {
    let mut is_late: HashMap<Row, bool, BuildMix> = HashMap::default();
    for (own, needed) in back.nodes.iter().zip(is_needed) {
        if own.element.is_none() && own.opcode.is_matmul() {
            *is_late.entry(own.outer).or_insert(true) &= !needed;
        }
    }
    is_late.into_iter().filter(|(_, own)| *own).map(|(row, _)| row)
}

/// Whether products of a body run in loops that the compiler made to pass shards around a ring. Loops of the
/// program in a layer do not count.
pub fn is_in_rings(module: &Module, body: &Graph) -> bool {
    (0u32..).zip(&body.nodes).any(|(node, own)| {
        let is_in_loop = own.opcode.is_matmul() && module.opcode(own.outer) == Opcode::While;
        is_in_loop && !body.within.contains_key(&node)
    })
}

/// The devices from which a body gathers weights; `MANY` where products run in loops around rings.
fn gathered_from(module: &Module, body: &Graph, is_fixed: &[bool]) -> i64 {
    let elements = |node: u32| {
        let array = module.shapes().array(body.nodes[node as usize].shape);
        array.and_then(|array| array.elements()).and_then(|own| i64::try_from(own).ok())
    };
    if is_in_rings(module, body) {
        return MANY;
    }
    let ways = (0u32..).zip(&body.nodes).filter_map(|(node, own)| {
        let is_gather = own.opcode == Opcode::AllGather && is_fixed[node as usize];
        let source = *body.operands(node).first().filter(|_| is_gather)?;
        elements(node)?.checked_div(elements(source)?)
    });
    ways.max().unwrap_or(1)
}
