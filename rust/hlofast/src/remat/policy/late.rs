//! Gradients of weights that wait until the rest of a backward body is done.
//!
//! For a program that does not fit, XLA looks for the schedule that takes the least memory: it
//! multiplies the gradient of a weight as soon as its operands are there, and frees them. In a program
//! that fits, it hides transfers behind products, and nothing in the layer waits for these gradients: they
//! run late, and what they read stays in memory until then. So where XLA for TPUs has rematerialised by itself,
//! the model lets them wait under every policy that keeps less than the text does. Judged by
//! `benches/policy_accuracy.py`.

use super::graph::Graph;
use super::run_order::MANY;
use super::scans::{is_heavy, node_of};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
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
    /// By row, if XLA has not rematerialised: the step at which its operands are there.
    ready: Option<HashMap<Row, u32, BuildMix>>,
    /// Nodes that the body results in.
    is_result: HashSet<u32, BuildMix>,
    /// Whether weights are gathered from few devices. Then the gradients do not wait under policies that
    /// keep nothing of a layer; fitted on `benches/policy_accuracy.py`.
    is_few: bool,
    /// The changes of bytes if the gradients wait.
    pub changes: Vec<(RangeInclusive<u32>, i64)>,
}

impl Late {
    /// Those of the backward body `back`, whose gradients of weights end in stacks. `values` are live in
    /// it; `is_fixed` tells which nodes of the forward body are made from weights alone.
    pub fn new<'a>(
        module: &Module,
        memory: &Memory,
        [body, back]: [&Graph; 2],
        is_fixed: &[bool],
        values: impl Iterator<Item = &'a LiveValue>,
        is_pressed: bool,
    ) -> Self {
        let mut open = Vec::new();
        back.root.leaves(&mut open, &mut 0);
        let is_result = open.iter().copied().collect();
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
        let rows: HashSet<Row, BuildMix> = rows.filter(|row| !needed.contains(row)).collect();
        let ready = (!is_pressed).then(|| ready(memory, back, &rows));
        let is_few = gathered_from(module, body, is_fixed) < MANY;
        let mut late = Late { rows, end, ready, is_result, is_few, changes: Vec::new() };
        late.changes = values.flat_map(|value| late.change(module, memory, back, value)).collect();
        late
    }

    /// The last step at which `row` reads a value that it reads at `step` in the text.
    pub fn read_at(&self, row: Row, step: u32) -> u32 {
        match &self.ready {
            Some(ready) => ready.get(&row).map_or(step, |own| step.min(*own)),
            None if self.rows.contains(&row) => step.max(self.end),
            None => step,
        }
    }

    /// Whether gradients of weights move under a policy that keeps something of a layer in device memory
    /// (`is_any_saved`) or anywhere (`is_any_kept`), if the text checkpoints layers or moves values to host memory.
    pub fn moves(
        &self,
        [is_any_saved, is_any_kept]: [bool; 2],
        [is_checkpointed, is_on_host]: [bool; 2],
    ) -> bool {
        match self.ready {
            Some(_) => is_on_host || !is_any_kept && !is_checkpointed,
            None => !self.rows.is_empty() && (is_any_saved || !self.is_few),
        }
    }

    /// What late rows read is live for longer, and what they make is not live before the other work is
    /// done; the opposite where they run as soon as they can.
    fn change(
        &self,
        module: &Module,
        memory: &Memory,
        back: &Graph,
        value: &LiveValue,
    ) -> Vec<(RangeInclusive<u32>, i64)> {
        let is_state = matches!(module.opcode(value.row), Opcode::Parameter | Opcode::While);
        if value.bytes < LEAST || is_state || self.ready.is_none() && value.first_step > self.end {
            return Vec::new();
        }
        let Some(node) = node_of(back, value) else { return Vec::new() };
        let own = &back.nodes[node as usize];
        // Slices of stacks leave with the stacks (`again.rs`).
        let is_stack = matches!(own.opcode, Opcode::DynamicSlice | Opcode::DynamicUpdateSlice);
        let is_late = self.rows.contains(&value.row);
        let users = || back.users(node).iter().map(|user| back.nodes[*user as usize].outer);
        if let Some(ready) = &self.ready {
            if is_stack || own.element.is_some() {
                return Vec::new();
            }
            let mut last = if self.is_result.contains(&node) { value.last_step } else { 0 };
            for user in users() {
                let at = ready.get(&user).copied().or_else(|| memory.step_of(user));
                last = last.max(at.unwrap_or(value.last_step));
            }
            let first = ready.get(&value.row).copied().unwrap_or(value.first_step);
            if last == 0 || last >= value.last_step && first >= value.first_step {
                return Vec::new();
            }
            let last = last.min(value.last_step).max(first);
            let was = (value.first_step..=value.last_step, -value.bytes);
            return vec![was, (first.min(value.first_step)..=last, value.bytes)];
        }
        if is_late {
            let last = value.last_step.min(self.end);
            return match is_stack {
                true => Vec::new(),
                false => vec![(value.first_step..=last, -value.bytes)],
            };
        }
        let is_read_late = own.element.is_none() && users().any(|user| self.rows.contains(&user));
        if is_read_late && value.last_step < self.end {
            return vec![(value.last_step + 1..=self.end, value.bytes)];
        }
        Vec::new()
    }
}

/// The steps at which the operands of `rows` are there if each of these runs as soon as it can.
fn ready(
    memory: &Memory,
    back: &Graph,
    rows: &HashSet<Row, BuildMix>,
) -> HashMap<Row, u32, BuildMix> {
    let mut ready: HashMap<Row, u32, BuildMix> = HashMap::default();
    let steps = back.nodes.iter().filter(|own| own.element.is_none());
    let start = steps.filter_map(|own| memory.step_of(own.outer)).min().unwrap_or(0);
    for (node, own) in (0u32..).zip(&back.nodes) {
        if own.element.is_some() || !rows.contains(&own.outer) {
            continue;
        }
        let mut step = start;
        for operand in back.operands(node) {
            let from = &back.nodes[*operand as usize];
            if from.outer == own.outer || from.element.is_some() {
                continue;
            }
            let at = ready.get(&from.outer).copied().or_else(|| memory.step_of(from.outer));
            step = step.max(at.unwrap_or(0));
        }
        let known = ready.entry(own.outer).or_default();
        *known = step.max(*known);
    }
    // What only late rows read is not made before the first of them can run.
    let mut first: HashMap<Row, u32, BuildMix> = HashMap::default();
    for node in (0..back.nodes.len() as u32).rev() {
        let own = &back.nodes[node as usize];
        if own.element.is_some() || !rows.contains(&own.outer) {
            continue;
        }
        let users = back.users(node).iter().map(|user| back.nodes[*user as usize].outer);
        let runs = |row: &Row| ready.get(row).map(|own| *own.max(first.get(row).unwrap_or(&0)));
        let runs = users.filter(|user| *user != own.outer).map(|user| runs(&user).unwrap_or(0));
        if let Some(at) = runs.min() {
            let known = first.entry(own.outer).or_insert(at);
            *known = at.min(*known);
        }
    }
    // Never later than in the text, where rows that only move a value are not nodes.
    for (row, step) in &mut ready {
        *step = first.get(row).copied().unwrap_or(0).max(*step);
        *step = memory.step_of(*row).map_or(*step, |own| own.min(*step));
    }
    ready
}

/// The devices from which a body gathers weights; `MANY` where products run in loops around rings.
fn gathered_from(module: &Module, body: &Graph, is_fixed: &[bool]) -> i64 {
    let elements = |node: u32| {
        let array = module.shapes().array(body.nodes[node as usize].shape);
        array.and_then(|array| array.elements()).and_then(|own| i64::try_from(own).ok())
    };
    let ways = (0u32..).zip(&body.nodes).filter_map(|(node, own)| {
        if own.opcode.is_matmul() && module.opcode(own.outer) == Opcode::While {
            return Some(MANY);
        }
        let is_gather = own.opcode == Opcode::AllGather && is_fixed[node as usize];
        let source = *body.operands(node).first().filter(|_| is_gather)?;
        elements(node)?.checked_div(elements(source)?)
    });
    ways.max().unwrap_or(1)
}
