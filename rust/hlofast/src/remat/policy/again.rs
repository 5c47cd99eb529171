//! What one scan keeps and recomputes under a policy, and what that does to the bytes at each step.

use super::base::{Changes, prefix};
use super::fixed::Fixed;
use super::passes;
use super::resharded::Resharded;
use super::scans::{Scan, is_heavy};
use super::scores::read_until;
use super::softmax::Softmax;
use super::stored::{plain, remade, writes_stack, written};
use super::{Fate, Outcome, Policies, Prices, is_collective};
use crate::ir::{Module, Opcode, Row};
use std::ops::RangeInclusive;

/// Limit on cheap work between a value and what it is made from.
const MOST_LIGHT: usize = 16;

/// What the backward body of a scan recomputes under a policy.
pub struct Again<'a> {
    policies: &'a Policies,
    /// The scan.
    pub scan: &'a Scan,
    fixed: &'a Fixed,
    /// The recomputed nodes that stay in memory, in text order, with bytes, apart from those that
    /// the text recomputes itself.
    heavy: Vec<(u32, i64)>,
    /// The recomputed nodes that take time, in text order.
    runs: Vec<u32>,
    /// By node.
    states: Vec<State>,
    /// Bytes per iteration of inputs and saved values that are kept in device memory.
    kept: i64,
    /// Bytes per iteration of values in host memory, with the steps that read them, and whether the
    /// text moves them already.
    pub offloaded: Vec<(i64, RangeInclusive<u32>, bool)>,
    /// Whether gradients of weights move (`late.rs`): only where the policy keeps less than the text.
    pub moves: bool,
}

/// A node under a policy. The search visits every node of a body for every policy, so what it reads
/// and writes there lies together.
#[derive(Clone, Copy, Default)]
struct State {
    /// One more than the last step of the backward body that needs the node; 0 if none does.
    end: u32,
    /// The last recomputed node that reads it.
    read_by: u32,
    fate: Fate,
    is_needed: bool,
    /// Whether the bytes of the saved value are counted.
    is_counted: bool,
    /// Whether a kernel runs again although a policy keeps some of its results.
    must_run: bool,
}

impl State {
    /// The last step of the backward body that needs the node; None if none does.
    fn last(self) -> Option<u32> {
        self.end.checked_sub(1)
    }

    fn is_kept(self) -> bool {
        self.fate != Fate::Recomputed
    }

    fn need(&mut self, end: u32, read_by: u32) {
        self.is_needed = true;
        self.end = self.end.max(end);
        self.read_by = self.read_by.max(read_by);
    }
}

/// One more than a step.
fn end_of(step: u32) -> u32 {
    step.saturating_add(1)
}

impl<'a> Again<'a> {
    /// What the scan `number` recomputes if the savable values have these fates, and gradients of weights wait only if
    /// they `may_move`. Adds to `outcome` the values that are saved.
    pub fn new(
        policies: &'a Policies,
        number: u32,
        fates: &[Fate],
        may_move: bool,
        outcome: &mut Outcome,
    ) -> Self {
        let (scan, fixed) = (&policies.scans[number as usize], &policies.fixed[number as usize]);
        let body = &scan.body;
        let mut states = vec![State::default(); body.nodes.len()];
        for (node, _) in &fixed.kept_bytes {
            let own = fixed.savable[*node as usize].and_then(|at| fates.get(at as usize));
            states[*node as usize].fate = own.copied().unwrap_or_default();
        }
        let moves = may_move && moves(policies, scan, fixed, &states);
        // Values in host memory: nodes and bytes. Readers that come later in this walk may extend
        // their time in device memory.
        let mut moved: Vec<(usize, i64)> = Vec::new();
        let mut again = Again {
            policies,
            scan,
            fixed,
            heavy: Vec::new(),
            runs: Vec::new(),
            states: Vec::new(),
            kept: 0,
            offloaded: Vec::new(),
            moves,
        };
        for (node, last) in &scan.recomputed.needs {
            states[*node as usize].need(end_of(*last), 0);
        }
        for stack in scan.stacks.iter().filter(|stack| stack.is_read) {
            // Exponentials are computed anew where they are read, and not copied.
            let is_softmax = || fixed.softmaxes.iter().any(|own| own.exponentials == stack.node);
            let is_light = is_light(scan, fixed, stack.node, &states) && !is_softmax();
            for read in &stack.reads {
                let last = match &read.copies {
                    // Gradients that wait need the value for longer than a copy of it lives.
                    _ if moves && read.late > read.last => read.late,
                    Some(_) if is_light => read.step,
                    _ if moves => read.late,
                    _ => read.last,
                };
                states[stack.node as usize].need(end_of(last), 0);
            }
            states[stack.node as usize].is_needed = true;
        }
        for (number, node) in fixed.visited.iter().copied().enumerate().rev() {
            let at = node as usize;
            if !states[at].is_needed {
                continue;
            }
            let own = &body.nodes[at];
            let size = fixed.bytes[at];
            if is_input(scan, fixed, node) {
                if !fixed.is_input[at] {
                    continue;
                }
                // Nothing recomputes what a layer gets from the layer before.
                if states[at].fate == Fate::Offloaded {
                    outcome.saved.extend(fixed.savable[at]);
                    moved.push((at, size));
                } else {
                    again.kept = again.kept.saturating_add(size);
                }
                continue;
            }
            // A value whose narrower form is saved is read in that form.
            let narrow = fixed.narrow[at].map(|narrow| narrow as usize);
            let narrow = narrow.filter(|own| states[*own].is_kept() && !states[at].is_kept());
            let wide = at;
            let at = narrow.unwrap_or(at);
            states[at].end = states[at].end.max(states[wide].end);
            let state = states[at];
            if state.is_kept() && !state.must_run {
                states[at].is_counted = true;
                if state.is_counted {
                    continue;
                }
                outcome.saved.extend(fixed.savable[at]);
                let size = fixed.kept_bytes_of(at as u32);
                // A loop that runs again gets what is kept of a product in it as a slice of the stack.
                if body.passing.contains_key(&(at as u32)) {
                    again.heavy.push((at as u32, size));
                }
                match state.fate {
                    Fate::Offloaded => moved.push((at, size)),
                    _ => again.kept = again.kept.saturating_add(size),
                }
                continue;
            }
            // A kernel runs again for any of its results that is not kept.
            if let Some(kernel) = own.whole {
                states[kernel as usize].must_run = true;
            }
            let is_heavy = fixed.is_heavy[node as usize];
            let in_text = scan.recomputed.step_of(node);
            if is_heavy {
                again.runs.push(node);
            }
            if is_heavy && in_text.is_none() {
                again.heavy.push((node, size));
            }
            let (end, read_by) = match in_text {
                Some(step) => (end_of(step), 0),
                None if is_heavy => (0, node),
                None => (state.end, state.read_by),
            };
            for operand in fixed.operands.get(number as u32) {
                states[*operand as usize].need(end, read_by);
            }
        }
        let start = *scan.back_steps.start();
        let steps = |at: usize| start..=states[at].last().unwrap_or(start);
        let is_moved =
            |at: usize| scan.stacks.iter().any(|own| own.node as usize == at && own.is_host);
        again.offloaded =
            moved.into_iter().map(|(at, size)| (size, steps(at), is_moved(at))).collect();
        again.states = states;
        again.heavy.reverse();
        again.runs.reverse();
        outcome.saved.sort_unstable();
        outcome.saved.dedup();
        again
    }

    /// Bytes while the first part of the backward body recomputes values: the most, and those
    /// that the rest of the body still needs.
    pub fn prefix(&self) -> (i64, i64) {
        let values = self.heavy.iter().map(|(node, size)| {
            let state = self.states[*node as usize];
            (*node, *size, state.last().is_none().then_some(state.read_by))
        });
        prefix(&values.collect::<Vec<_>>())
    }

    /// Changes the bytes at each step to those of the policy.
    pub fn account(&self, bytes: &mut Changes<'_>, outcome: &mut Outcome) {
        let scan = self.scan;
        let trips = i64::try_from(scan.trips).unwrap_or(i64::MAX);
        let start = *scan.back_steps.start();
        for stack in &scan.stacks {
            let end = match stack.is_weight {
                true => (*stack.live.end()).min(scan.forward_end()),
                false => *stack.live.end(),
            };
            bytes.add(*stack.live.start()..=end, -stack.bytes);
            stack.twice.iter().for_each(|steps| bytes.add(steps.clone(), -stack.bytes));
            stack.turned.iter().for_each(|(size, steps)| bytes.add(steps.clone(), -size));
            let aft = stack.aft.iter().filter(|_| !stack.is_weight);
            // Without groups, `fore` holds the values that a loop in a layer stacks: they stay if the policy
            // keeps them.
            let stays = scan.group.is_none() && self.states[stack.node as usize].is_kept();
            let fore = stack.fore.iter().filter(|_| !stays);
            for (size, steps) in fore.chain(aft) {
                bytes.add(steps.clone(), -size);
            }
        }
        if self.moves {
            scan.late.changes.iter().for_each(|(steps, size)| bytes.add(steps.clone(), *size));
        }
        let kept = self.kept.saturating_mul(trips);
        outcome.kept = outcome.kept.saturating_add(kept);
        // Where values move to host memory, a layer runs after the backward loop.
        let stacks = scan.stacks.iter().filter(|own| !own.is_weight && scan.trips > scan.in_loop);
        let ends = stacks.filter(|_| !self.offloaded.is_empty()).map(|own| *own.live.end());
        let steps = scan.kept_steps();
        let end = ends.max().unwrap_or(0).max(*steps.end());
        bytes.add(*steps.start()..=end, kept);
        scan.handed_on.iter().for_each(|steps| bytes.add(steps.clone(), kept));
        if let Some(group) = &scan.group {
            let kept = self.kept.saturating_mul(group.layers);
            bytes.add(group.fore.clone(), kept);
            bytes.add(group.aft.clone(), kept);
        }
        for stack in &scan.stacks {
            if self.states[stack.node as usize].fate != Fate::Offloaded {
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
        let exchanged = self.fixed.resharded.iter().filter(|own| self.runs(own.exponentials));
        let exchanged: Vec<&Resharded> = exchanged.collect();
        for (node, size) in &self.heavy {
            if let Some(last) = self.states[*node as usize].last() {
                bytes.add(start..=last, *size);
                if let Some(own) = exchanged.iter().find(|own| own.product == *node) {
                    // `beyond` adds the product again.
                    let steps = start.max(*own.steps.start())..=last.min(*own.steps.end());
                    bytes.add(steps, -size);
                }
            }
        }
        for (product, less, steps) in &scan.widened {
            if self.states[*product as usize].is_kept() {
                bytes.add(steps.clone(), -less);
            }
        }
        for own in exchanged {
            let is_kept = |node: u32| self.states[node as usize].is_kept();
            let size = self.fixed.bytes[own.read() as usize];
            bytes.add(own.steps.clone(), own.beyond(size, is_kept));
        }
        let softmaxes = self.fixed.softmaxes.iter();
        for own in softmaxes.filter(|own| !self.fixed.is_resharded(own.exponentials)) {
            self.account_softmax(own, bytes);
        }
        for own in &self.fixed.scores {
            if self.runs(own.exponentials) {
                let is_kept = self.states[own.product as usize].is_kept();
                bytes.add(own.gradient..=own.gradient, own.beyond(is_kept));
            }
        }
        let is_kept = |node: u32| self.states[node as usize].is_kept();
        if self.fixed.twins.iter().any(|node| is_kept(*node)) {
            for (size, steps) in scan.recomputed.superfluous(&scan.back, is_kept) {
                bytes.add(steps, -size);
            }
        } else {
            for (size, steps) in &self.fixed.superfluous {
                bytes.add(steps.clone(), -size);
            }
        }
        for stack in &scan.stacks {
            if is_light(scan, self.fixed, stack.node, &self.states) {
                // The exponentials, or the product they are made from, are in memory and not a copy out of the stack.
                let is_needed = self.states[stack.node as usize].last().is_some();
                let made = self.fixed.softmaxes.iter().map(|own| own.exponentials);
                let mut made = made.chain(self.fixed.scores.iter().map(|own| own.exponentials));
                if is_needed && made.any(|own| own == stack.node) {
                    let copies = stack.reads.iter().filter_map(|read| read.copies.as_ref());
                    for (size, live) in copies.flatten() {
                        bytes.add(live.clone(), -size);
                    }
                }
                let mut scores = self.fixed.scores.iter();
                let writing = scores.find(|own| own.weights == stack.node && own.writes_weights);
                if let Some(own) = writing
                    && let Some(last) = read_until(scan, stack, |own| self.holds(own))
                {
                    // If only a gradient of weights reads that product, both run after the gradient of the scores,
                    // which frees more.
                    let is_early =
                        |own: u32| self.holds(own) && self.states[own as usize].read_by > 0;
                    let last = match read_until(scan, stack, is_early) {
                        Some(_) => last,
                        None => last.max(own.gradient),
                    };
                    bytes.add(start..=last, self.fixed.bytes[stack.node as usize]);
                }
                continue;
            }
            // The value itself stays in memory, so a copy out of the stack is not needed.
            let is_kept = self.states[stack.node as usize].is_kept();
            let reads = stack.reads.iter().filter(|read| !(is_kept && read.for_loop));
            for (size, live) in reads.filter_map(|read| read.copies.as_ref()).flatten() {
                bytes.add(live.clone(), -size);
            }
        }
    }

    /// Whether a node runs again, in the fusions that read it.
    fn runs(&self, node: u32) -> bool {
        let is_needed = self.states[node as usize].last().is_some();
        is_needed && is_light(self.scan, self.fixed, node, &self.states)
    }

    /// Adds what is written of a softmax that runs again.
    fn account_softmax(&self, own: &Softmax, bytes: &mut Changes<'_>) {
        let scan = self.scan;
        if !self.runs(own.exponentials) {
            return;
        }
        let start = *scan.back_steps.start();
        let product = &self.states[own.product as usize];
        let size = |node: u32| self.fixed.bytes[node as usize];
        if own.is_written {
            let steps = own.exponential_steps(start, product.is_kept());
            bytes.add(steps, size(own.exponentials));
            if let Some(last) = product.last().filter(|_| !product.is_kept()) {
                bytes.add(start..=last, -size(own.product));
                let steps = own.product_steps(start);
                steps.into_iter().for_each(|steps| bytes.add(steps, size(own.product)));
            }
        }
        if product.is_kept() || !is_light(scan, self.fixed, own.weights, &self.states) {
            return;
        }
        if !own.writes_gradient {
            // The gradient of the scores takes as much as the weights.
            bytes.add(own.gradient..=own.gradient, -size(own.weights));
        }
        if !own.is_in_kernel && !self.is_early(own) {
            let first = *own.weight_steps().start();
            bytes.add(first..=first, size(own.weights));
        }
        // The product by the weights runs with the gradient, to free the weights and what it reads. In the text it may
        // wait, as stacks are in memory anyway.
        if let Some(last) = product.last().filter(|last| !own.is_written && *last > own.gradient) {
            bytes.add(own.gradient + 1..=last, -size(own.product));
        }
    }

    /// Whether a value of the forward body is written to device memory, to stay there or to move on.
    pub fn stores(&self, node: u32) -> bool {
        let state = self.states[node as usize];
        let is_input = is_input(self.scan, self.fixed, node);
        state.is_needed && (is_input || state.is_kept())
    }

    /// Bytes per iteration of each value that is kept, on the device or the host, and in the text is not,
    /// or that stays on the device and in the text does not.
    pub fn kept_anew(&self) -> impl Iterator<Item = i64> {
        let scan = self.scan;
        let values = self.fixed.kept_bytes.iter().filter(|(node, _)| {
            let state = self.states[*node as usize];
            let is_kept = state.is_kept() && self.stores(*node);
            let is_moved_back = state.fate == Fate::Saved && scan.body.on_host.contains(node);
            is_kept && (is_moved_back || scan.stack_nodes.binary_search(node).is_err())
        });
        values.map(|(_, bytes)| *bytes)
    }

    /// Whether the weights of a softmax of heads in groups are written again, in the order in which a product that
    /// runs again for other products reads them: only of scores that run again too.
    fn rewrites(&self, own: &Softmax) -> bool {
        let is_light = is_light(self.scan, self.fixed, own.weights, &self.states);
        let is_needed = self.states[own.weights as usize].last().is_some();
        self.holds(own.product) && is_light && is_needed && self.is_early(own)
    }

    /// Whether a recomputed product needs the weights, so that they are made before gradients are.
    fn is_early(&self, own: &Softmax) -> bool {
        own.mixed.is_some_and(|own| self.holds(own) && self.states[own as usize].read_by > 0)
    }

    /// Whether rows that only rearrange a value, or the value of which it is a part, run again with it: the backward
    /// loop of the text rearranges what its own forward loop stacks.
    fn rearranges(&self, node: u32) -> bool {
        let scan = self.scan;
        let is_kept = |node: u32| self.states[node as usize].is_kept();
        if !self.states[node as usize].is_needed
            || is_kept(node) && scan.stack_nodes.binary_search(&node).is_ok()
        {
            return false;
        }
        let mut at = node;
        for _ in 0..MOST_LIGHT {
            if is_input(scan, self.fixed, at) {
                return false;
            }
            if is_kept(at) || is_heavy(scan.body.nodes[at as usize].opcode) {
                return true;
            }
            let Some(first) = scan.body.operands(at).first() else { return false };
            at = *first;
        }
        false
    }

    /// [`Fixed::is_tpu`] of the scan.
    pub fn is_on_tpu(&self) -> bool {
        self.fixed.is_tpu
    }

    /// Whether a fusion that runs again leaves a value in memory besides its product.
    pub fn leaves(&self, node: u32) -> bool {
        let left = &self.fixed.left;
        let own = &left[left.partition_point(|own| own.0 < node)..];
        own.iter().take_while(|own| own.0 == node).any(|own| self.holds(own.1))
    }

    fn holds(&self, node: u32) -> bool {
        self.runs.binary_search(&node).is_ok()
    }

    /// Adds the cost of everything that runs again.
    pub fn price(&self, module: &Module, prices: &Prices<'_>, outcome: &mut Outcome) {
        let (policies, scan) = (self.policies, self.scan);
        if scan.is_again {
            repeat(module, policies, scan, prices, outcome);
        }
        let mut outer: Vec<Row> = Vec::new();
        let mut reduced: Vec<Row> = Vec::new();
        let mut multiplied: Vec<Row> = Vec::new();
        for number in &self.runs {
            let node = &scan.body.nodes[*number as usize];
            if scan.recomputed.is_anyway(*number) {
                continue;
            }
            outcome.again.push(node.row);
            let is_dear = node.opcode.is_matmul() || is_collective(node.opcode);
            // A reduction fused with a product takes the time of the product, which may be saved. A loop in
            // the layer runs again for any of its results.
            let is_in_loop = scan.body.within.contains_key(number);
            if is_dear || is_in_loop || self.fixed.products.binary_search(&node.outer).is_err() {
                outer.push(node.outer);
            } else {
                reduced.push(node.outer);
            }
            let is_call = node.opcode == Opcode::CustomCall && node.whole.is_none();
            if node.opcode.is_matmul() || is_call {
                multiplied.push(node.row);
                multiplied.extend(scan.body.further(*number));
                let is_repeated = |own: &Softmax| own.product == *number && own.is_written;
                if self.fixed.softmaxes.iter().any(is_repeated) {
                    multiplied.extend(scan.body.copies(*number));
                }
            }
            if is_collective(node.opcode) && node.whole.is_none() {
                let sent = prices.wire_bytes(module, node.row).and_then(|own| scan.of_layers(own));
                outcome.send(prices.collective_of(node.row), sent);
            }
        }
        multiplied.extend(&scan.recomputed.in_loops);
        multiplied.sort_unstable();
        multiplied.dedup();
        for row in multiplied {
            let flops = policies.flops(module, row, prices).and_then(|own| scan.of_layers(own));
            outcome.flops = outcome.flops.zip(flops).and_then(|(a, b)| a.checked_add(b));
        }
        for rows in [&mut outer, &mut reduced] {
            rows.sort_unstable();
            rows.dedup();
        }
        let passes = passes::seconds(&self.fixed.passes, module, &reduced, &outer, prices);
        outcome.seconds = outcome.seconds.zip(passes).map(|(a, b)| a + b * scan.share());
        for own in self.fixed.grouped.iter().filter(|own| self.rewrites(own)) {
            let seconds = remade(module, scan, own.weights, prices);
            outcome.seconds = outcome.seconds.zip(seconds).map(|(a, b)| a + b * scan.share());
        }
        // Fusions and copies that only rearrange what runs again or is kept.
        let rearranging = self.fixed.rearranging.iter().filter(|(_, node)| self.rearranges(*node));
        outer.extend(rearranging.map(|(row, _)| *row));
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

/// Whether gradients of weights move (`late.rs`).
fn moves(policies: &Policies, scan: &Scan, fixed: &Fixed, states: &[State]) -> bool {
    let (mut is_any_saved, mut keeps_less) = (false, false);
    for (node, _) in &fixed.kept_bytes {
        let at = *node as usize;
        if fixed.is_input[at] {
            continue;
        }
        let is_saved = states[at].fate == Fate::Saved;
        is_any_saved |= is_saved;
        let own = fixed.savable[at].and_then(|own| policies.savable.get(own as usize));
        let is_moved = states[at].fate == Fate::Offloaded && scan.body.on_host.contains(node);
        keeps_less |= !is_saved && !is_moved && own.is_some_and(|own| own.is_kept);
    }
    keeps_less && scan.late.moves(is_any_saved)
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
            outcome.send(prices.collective_of(node.row), sent);
        }
    }
    let seconds = prices.seconds_of(module, scan.forward, 0);
    outcome.seconds = outcome.seconds.zip(seconds).map(|(a, b)| a + b);
}

/// Whether a node is an element of the state, or what checkpointed layers get.
fn is_input(scan: &Scan, fixed: &Fixed, node: u32) -> bool {
    scan.body.nodes[node as usize].element.is_some() || fixed.is_input[node as usize]
}

/// Whether a stacked value would be recomputed inside the fusions that read it.
fn is_light(scan: &Scan, fixed: &Fixed, node: u32, states: &[State]) -> bool {
    let mut at = node;
    loop {
        let own = &scan.body.nodes[at as usize];
        if states[at as usize].is_kept() || is_input(scan, fixed, at) || is_heavy(own.opcode) {
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
