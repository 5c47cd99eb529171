//! What one scan keeps and recomputes under a policy, and what that does to the bytes at each step.

use super::base::Changes;
use super::graph::Node;
use super::kernels::kept_bytes;
use super::savable::is_input;
use super::scans::{Scan, is_heavy};
use super::stored::{plain, writes_stack, written};
use super::{Fate, Outcome, Policies, Prices, is_collective};
use crate::ir::{Module, Opcode, Row};
use std::ops::RangeInclusive;

/// What the backward body of a scan recomputes under a policy.
pub struct Again {
    /// The scan's number.
    number: u32,
    /// The recomputed nodes that stay in memory, in text order, with bytes, apart from those that
    /// the text recomputes itself.
    heavy: Vec<(u32, i64)>,
    /// The recomputed nodes that take time, in text order.
    runs: Vec<u32>,
    /// By node: the last step of the backward body that needs it; None if none does.
    last: Vec<Option<u32>>,
    /// By node: the last recomputed node that reads it.
    read_by: Vec<u32>,
    is_needed: Vec<bool>,
    /// By node.
    fate: Vec<Fate>,
    /// Bytes per iteration of inputs and saved values that are kept in device memory.
    kept: i64,
    /// Bytes per iteration of values in host memory, with the steps that read them, and whether the
    /// text moves them already.
    pub offloaded: Vec<(i64, RangeInclusive<u32>, bool)>,
}

impl Again {
    pub fn new(
        policies: &Policies,
        number: u32,
        scan: &Scan,
        fates: &[Fate],
        outcome: &mut Outcome,
    ) -> Self {
        let body = &scan.body;
        let count = body.nodes.len();
        let mut fate = vec![Fate::Recomputed; count];
        let mut of = vec![None; count];
        for (at, savable) in (0u32..).zip(&policies.savable) {
            if savable.scan == number {
                fate[savable.node as usize] = fates.get(at as usize).copied().unwrap_or_default();
                of[savable.node as usize] = Some(at);
            }
        }
        let instead = narrow_forms(policies, scan, &fate);
        let mut is_counted = vec![false; count];
        let mut must_run = vec![false; count];
        // Values in host memory: nodes and bytes. Readers that come later in this walk may extend
        // their time in device memory.
        let mut moved: Vec<(usize, i64)> = Vec::new();
        let mut again = Again {
            number,
            heavy: Vec::new(),
            runs: Vec::new(),
            last: vec![None; count],
            read_by: vec![0; count],
            is_needed: vec![false; count],
            fate,
            kept: 0,
            offloaded: Vec::new(),
        };
        for (node, last) in &scan.recomputed.needs {
            let at = *node as usize;
            again.is_needed[at] = true;
            again.last[at] = again.last[at].max(Some(*last));
        }
        for stack in scan.stacks.iter().filter(|stack| stack.is_read) {
            let at = stack.node as usize;
            again.is_needed[at] = true;
            let is_light = is_light(scan, stack.node, &again.fate);
            for read in &stack.reads {
                let last = match &read.copies {
                    Some(_) if is_light => read.step,
                    _ => read.last,
                };
                again.last[at] = again.last[at].max(Some(last));
            }
        }
        for node in (0..count as u32).rev() {
            let at = node as usize;
            if !again.is_needed[at] {
                continue;
            }
            let own = &body.nodes[at];
            let size = body.bytes(node, &policies.sizes);
            if own.element.is_some() {
                if !is_input(scan, node, &policies.sizes) {
                    continue;
                }
                // Nothing recomputes what a layer gets from the layer before.
                if again.fate[at] == Fate::Offloaded {
                    outcome.saved.extend(of[at]);
                    moved.push((at, size));
                } else {
                    again.kept = again.kept.saturating_add(size);
                }
                continue;
            }
            // A value whose narrower form is saved is read in that form.
            let wide = at;
            let at = instead[at].map_or(at, |narrow| narrow as usize);
            again.last[at] = again.last[at].max(again.last[wide]);
            if again.fate[at] != Fate::Recomputed && !must_run[at] {
                if std::mem::replace(&mut is_counted[at], true) {
                    continue;
                }
                outcome.saved.extend(of[at]);
                let size = kept_bytes(body, at as u32, &policies.sizes);
                match again.fate[at] {
                    Fate::Offloaded => moved.push((at, size)),
                    _ => again.kept = again.kept.saturating_add(size),
                }
                continue;
            }
            // A kernel runs again for any of its results that is not kept.
            if let Some(kernel) = own.whole {
                must_run[kernel as usize] = true;
            }
            let is_heavy = is_heavy(own.opcode);
            let in_text = scan.recomputed.step_of(node);
            if is_heavy {
                again.runs.push(node);
            }
            if is_heavy && in_text.is_none() {
                again.heavy.push((node, size));
            }
            let (last, read_by) = (again.last[at], again.read_by[at]);
            for operand in body.operands(node) {
                let operand = *operand as usize;
                again.is_needed[operand] = true;
                if in_text.is_some() {
                    again.last[operand] = again.last[operand].max(in_text);
                } else if is_heavy {
                    again.read_by[operand] = again.read_by[operand].max(node);
                } else {
                    again.last[operand] = again.last[operand].max(last);
                    again.read_by[operand] = again.read_by[operand].max(read_by);
                }
            }
        }
        let start = *scan.back_steps.start();
        let steps = |at: usize| start..=again.last[at].unwrap_or(start);
        let is_moved =
            |at: usize| scan.stacks.iter().any(|own| own.node as usize == at && own.is_host);
        again.offloaded =
            moved.into_iter().map(|(at, size)| (size, steps(at), is_moved(at))).collect();
        again.heavy.reverse();
        again.runs.reverse();
        outcome.saved.sort_unstable();
        outcome.saved.dedup();
        again
    }

    /// Bytes while the first part of the backward body recomputes values: the most, and those
    /// that the rest of the body still needs.
    pub fn prefix(&self) -> (i64, i64) {
        let (mut live, mut most, mut left) = (0i64, 0i64, 0i64);
        let mut ends: Vec<(u32, i64)> = Vec::new();
        for (node, size) in &self.heavy {
            if self.last[*node as usize].is_none() {
                ends.push((self.read_by[*node as usize], *size));
            } else {
                left = left.saturating_add(*size);
            }
        }
        ends.sort_unstable();
        let mut ended = ends.iter().peekable();
        for (node, size) in &self.heavy {
            live = live.saturating_add(*size);
            most = most.max(live);
            while let Some((_, size)) = ended.next_if(|(end, _)| end <= node) {
                live = live.saturating_sub(*size);
            }
        }
        (most, left)
    }

    /// Changes the bytes at each step to those of the policy.
    pub fn account(
        &self,
        policies: &Policies,
        scan: &Scan,
        bytes: &mut Changes<'_>,
        outcome: &mut Outcome,
    ) {
        let trips = i64::try_from(scan.trips).unwrap_or(i64::MAX);
        let start = *scan.back_steps.start();
        for stack in &scan.stacks {
            let end = match stack.is_weight {
                true => (*stack.live.end()).min(scan.forward_end()),
                false => *stack.live.end(),
            };
            bytes.add(*stack.live.start()..=end, -stack.bytes);
            stack.turned.iter().for_each(|(size, steps)| bytes.add(steps.clone(), -size));
            let aft = stack.aft.iter().filter(|_| !stack.is_weight);
            for (size, steps) in stack.fore.iter().chain(aft) {
                bytes.add(steps.clone(), -size);
            }
        }
        let kept = self.kept.saturating_mul(trips);
        outcome.kept = outcome.kept.saturating_add(kept);
        // Where values move to host memory, a layer runs after the backward loop.
        let stacks = scan.stacks.iter().filter(|own| !own.is_weight && scan.trips > scan.in_loop);
        let ends = stacks.filter(|_| !self.offloaded.is_empty()).map(|own| *own.live.end());
        let steps = scan.kept_steps();
        let end = ends.max().unwrap_or(0).max(*steps.end());
        bytes.add(*steps.start()..=end, kept);
        if let Some(group) = &scan.group {
            let kept = self.kept.saturating_mul(group.layers);
            bytes.add(group.fore.clone(), kept);
            bytes.add(group.aft.clone(), kept);
        }
        for stack in &scan.stacks {
            if self.fate[stack.node as usize] != Fate::Offloaded {
                stack.moving.iter().for_each(|(size, steps)| bytes.add(steps.clone(), -size));
            }
        }
        for (size, steps, is_moved) in &self.offloaded {
            outcome.on_host = outcome.on_host.saturating_add(size.saturating_mul(trips));
            if *is_moved {
                continue;
            }
            bytes.add(steps.clone(), *size);
            // The value of the layer before is on its way while a layer runs.
            bytes.add(scan.kept_steps(), *size);
        }
        for (node, size) in &self.heavy {
            if let Some(last) = self.last[*node as usize] {
                bytes.add(start..=last, *size);
            }
        }
        let is_kept = |node: u32| self.fate[node as usize] != Fate::Recomputed;
        for (size, steps) in scan.recomputed.superfluous(&scan.back, is_kept) {
            bytes.add(steps, -size);
        }
        for shared in policies.timeline.shared(self.number) {
            if shared.stacks.iter().any(|node| is_light(scan, *node, &self.fate)) {
                bytes.add(shared.steps.clone(), shared.bytes);
            }
        }
        for stack in &scan.stacks {
            if is_light(scan, stack.node, &self.fate) {
                if let Some(last) = policies.timeline.is_kept(scan, stack, |node| self.holds(node))
                {
                    bytes.add(start..=last, scan.body.bytes(stack.node, &policies.sizes));
                }
                continue;
            }
            // The value itself stays in memory, so a copy out of the stack is not needed.
            for (size, live) in stack.reads.iter().filter_map(|read| read.copies.as_ref()).flatten()
            {
                bytes.add(live.clone(), -size);
            }
        }
    }

    /// Whether a value of the forward body is written to device memory, to stay there or to move on.
    pub fn stores(&self, scan: &Scan, node: u32) -> bool {
        let at = node as usize;
        let is_input = scan.body.nodes[at].element.is_some();
        self.is_needed[at] && (is_input || self.fate[at] != Fate::Recomputed)
    }

    /// Bytes per iteration of each value that is kept, on the device or the host, and in the text is not,
    /// or that stays on the device and in the text does not.
    pub fn kept_anew(&self, scan: &Scan, sizes: &[i64]) -> impl Iterator<Item = i64> {
        let nodes = (0..scan.body.nodes.len() as u32).filter(|node| {
            let fate = self.fate[*node as usize];
            let is_kept = fate != Fate::Recomputed && self.stores(scan, *node);
            let is_moved_back = fate == Fate::Saved && scan.body.on_host.contains(node);
            is_kept && (is_moved_back || scan.stack_nodes.binary_search(node).is_err())
        });
        nodes.map(|node| kept_bytes(&scan.body, node, sizes))
    }

    fn holds(&self, node: u32) -> bool {
        self.runs.binary_search(&node).is_ok()
    }

    /// Adds the cost of everything that runs again.
    pub fn price(
        &self,
        module: &Module,
        policies: &Policies,
        scan: &Scan,
        prices: &Prices<'_>,
        outcome: &mut Outcome,
    ) {
        if scan.is_again {
            repeat(module, policies, scan, prices, outcome);
        }
        let multiplies = |node: &&Node| node.opcode.is_matmul();
        let mut products: Vec<Row> =
            scan.body.nodes.iter().filter(multiplies).map(|node| node.outer).collect();
        products.sort_unstable();
        let mut outer: Vec<Row> = Vec::new();
        let mut multiplied: Vec<Row> = Vec::new();
        for number in &self.runs {
            let node = &scan.body.nodes[*number as usize];
            if scan.recomputed.is_anyway(*number) {
                continue;
            }
            outcome.again.push(node.row);
            let is_dear = node.opcode.is_matmul() || is_collective(node.opcode);
            // A reduction fused with a product takes the time of the product, which may be saved.
            if is_dear || products.binary_search(&node.outer).is_err() {
                outer.push(node.outer);
            }
            let is_call = node.opcode == Opcode::CustomCall && node.whole.is_none();
            if node.opcode.is_matmul() || is_call {
                multiplied.push(node.row);
                multiplied.extend(scan.body.further(*number));
            }
            if is_collective(node.opcode) && node.whole.is_none() {
                let sent = prices.wire_bytes(module, node.row).and_then(|own| scan.of_layers(own));
                outcome.wire_bytes =
                    outcome.wire_bytes.zip(sent).and_then(|(a, b)| a.checked_add(b));
            }
        }
        multiplied.sort_unstable();
        multiplied.dedup();
        for row in multiplied {
            let flops = policies.flops(module, row, prices).and_then(|own| scan.of_layers(own));
            outcome.flops = outcome.flops.zip(flops).and_then(|(a, b)| a.checked_add(b));
        }
        outer.sort_unstable();
        outer.dedup();
        for row in outer {
            // What runs again writes no stack.
            let seconds = match writes_stack(scan, row) {
                true => {
                    written(scan, row, prices).and_then(|stacks| plain(module, row, stacks, prices))
                }
                false => prices.seconds_of(module, row, 0),
            };
            outcome.seconds = outcome.seconds.zip(seconds).map(|(a, b)| a + b * scan.share());
        }
    }
}

/// Adds the cost of a forward loop that is recomputed as a whole.
fn repeat(
    module: &Module,
    policies: &Policies,
    scan: &Scan,
    prices: &Prices<'_>,
    outcome: &mut Outcome,
) {
    for (number, node) in (0u32..).zip(&scan.body.nodes) {
        let is_call = node.opcode == Opcode::CustomCall && node.whole.is_none();
        if node.opcode.is_matmul() || is_call {
            for row in scan.body.further(number).iter().chain([&node.row]) {
                let flops = policies.flops(module, *row, prices);
                outcome.flops = outcome.flops.zip(flops).and_then(|(a, b)| a.checked_add(b));
            }
        } else if is_collective(node.opcode) && node.whole.is_none() {
            let sent = prices.wire_bytes(module, node.row);
            outcome.wire_bytes = outcome.wire_bytes.zip(sent).and_then(|(a, b)| a.checked_add(b));
        }
    }
    let seconds = prices.seconds_of(module, scan.forward, 0);
    outcome.seconds = outcome.seconds.zip(seconds).map(|(a, b)| a + b);
}

/// By node: the saved value in a narrower type in which the node is read, if the policy saves that and not
/// the node: the widest narrower form that the program makes of it, since one in fewer bits does not hold
/// what the other readers need.
fn narrow_forms(policies: &Policies, scan: &Scan, fate: &[Fate]) -> Vec<Option<u32>> {
    let body = &scan.body;
    let size = |node: u32| {
        let shape = body.nodes[node as usize].shape;
        let own = body.own_bytes.get(&node).or_else(|| policies.sizes.get(shape.0 as usize));
        own.copied().unwrap_or(0)
    };
    let mut widest: Vec<Option<u32>> = vec![None; body.nodes.len()];
    for (narrow, node) in (0u32..).zip(&body.nodes) {
        let wide = body.operands(narrow).first().filter(|_| node.opcode == Opcode::Convert);
        let Some(wide) = wide.copied().filter(|wide| size(narrow) <= size(*wide)) else { continue };
        let other = &mut widest[wide as usize];
        if other.is_none_or(|other| size(other) <= size(narrow)) {
            *other = Some(narrow);
        }
    }
    let is_kept = |node: u32| fate[node as usize] != Fate::Recomputed;
    for (wide, narrow) in (0u32..).zip(&mut widest) {
        *narrow = narrow.filter(|narrow| is_kept(*narrow) && !is_kept(wide));
    }
    widest
}

/// Whether a stacked value would be recomputed inside the fusions that read it.
fn is_light(scan: &Scan, node: u32, fate: &[Fate]) -> bool {
    let mut at = node;
    loop {
        let own = &scan.body.nodes[at as usize];
        if fate[at as usize] != Fate::Recomputed || own.element.is_some() || is_heavy(own.opcode) {
            return false;
        }
        match scan.body.operands(at).first() {
            Some(operand) if own.opcode == Opcode::Convert => {
                at = *operand;
            }
            _ => return true,
        }
    }
}
