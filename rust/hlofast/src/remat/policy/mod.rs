//! What a step would need under another checkpoint policy, read off the text of this one.
//!
//! A scan over layers compiles to two loops: the forward loop stacks what the backward loop reads.
//! Under `jax.checkpoint` the backward body would compute those values again, from the layer's input
//! and from what the policy saves. The model therefore walks back from every stacked value through
//! the forward body to values that the policy keeps; what it passes is recomputed. Bytes at each
//! step are those of the text, without the stacks, with the stacks of the policy, and, in the
//! backward body, with the recomputed values from their computation to their last use.
//!
//! XLA repeats cheap elementwise work in the fusions that read it and keeps the results of products,
//! reductions and collectives; so does the model (`scans.rs`). A program that does not fit
//! has been through XLA's own rematerialisation, which a program that fits has not: its clones are
//! joined, and expensive values that several products read count as kept (`base.rs`). Judged by
//! programs compiled under each policy: `benches/policy_accuracy.py`.

mod base;
mod choose;
mod graph;
mod layered;
mod named;
mod price;
mod retimed;
mod scans;
mod unrolled;

pub use choose::choose;
pub use price::Prices;

use crate::comms::CollectiveKind;
use crate::cost::{Backend, Cost, device_sizes};
use crate::flow::Attribution;
use crate::ir::{Module, Opcode, Row, ShapeId};
use crate::memory::Memory;
use base::Timeline;
use graph::Node;
use scans::{MOST_REARRANGED, Scan, is_heavy, is_rearrangement, is_unchanged, scans};
use std::ops::RangeInclusive;
use unrolled::Unrolled;

/// Values of less than this many bytes per iteration are left out of the account.
const LEAST: i64 = 1024;

/// What becomes of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// It is recomputed.
    #[default]
    Recomputed,
    /// It is kept in device memory.
    Saved,
    /// It is kept in host memory.
    Offloaded,
}

/// The kind of a value that a policy could save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SavableKind {
    /// A matmul without batch dimensions.
    Product,
    /// A matmul with batch dimensions.
    BatchedProduct,
    /// The result of a collective.
    Collective,
    /// Another value that the step as it is keeps.
    Other,
}

impl SavableKind {
    /// The name used in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            SavableKind::Product => "matmul",
            SavableKind::BatchedProduct => "batched_matmul",
            SavableKind::Collective => "collective",
            SavableKind::Other => "other",
        }
    }
}

/// A value of a layer that a policy could save.
#[derive(Clone, Copy, Debug)]
pub struct Savable {
    /// Its scan: an index of [`Policies::loops`].
    pub scan: u32,
    /// The row that computes it.
    pub row: Row,
    /// Bytes of the values of all layers on one device.
    pub bytes: i64,
    /// Its shape in one layer.
    pub shape: ShapeId,
    /// Its kind.
    pub kind: SavableKind,
    node: u32,
}

/// What a step would need under a policy.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Bytes at the peak of device memory; modelled.
    pub peak: i64,
    /// The row at whose step the peak is.
    pub at: Option<Row>,
    /// Bytes kept from the forward to the backward loops, with the inputs of the layers.
    pub kept: i64,
    /// Bytes kept in host memory, each moved there and back once a step.
    pub on_host: i64,
    /// Of the savable values: those that the policy saves and the backward pass needs.
    pub saved: Vec<u32>,
    /// The rows that run again: products, collectives and other heavy work.
    pub again: Vec<Row>,
    /// FLOPs of products that run again in a step; None beyond 64 bits.
    pub flops: Option<i64>,
    /// Bytes that each device sends again in a step, around rings; None if unknown.
    pub wire_bytes: Option<i64>,
    /// Seconds that the work takes again, without overlap; None without a device or if unknown.
    pub seconds: Option<f64>,
}

/// The layers of a module, and the values that policies could save.
#[derive(Debug)]
pub struct Policies {
    scans: Vec<Scan>,
    /// Layers that are repeated without a loop; None in a module with scans.
    unrolled: Option<Unrolled>,
    timeline: Timeline,
    /// By shape: bytes.
    sizes: Vec<i64>,
    /// The values that a policy could save, by scan and text order.
    pub savable: Vec<Savable>,
    /// Bytes at the peak as it is.
    pub peak: i64,
}

impl Policies {
    /// The scans of `module`. `peak` is the peak that is compared with the device's memory, which
    /// may exceed the peak of `memory` by pointer tables and constants. None if the module has no
    /// scan with known iterations, or is too large.
    pub fn new(
        module: &Module,
        cost: &Cost,
        attribution: &Attribution,
        memory: &Memory,
        peak: i64,
    ) -> Option<Self> {
        let mut values = memory.all_values(module);
        let scans = scans(module, cost, attribution, memory, &values);
        let sizes = device_sizes(module, Backend::of_module(module));
        if scans.is_empty() {
            let own = Unrolled::new(module, attribution, memory, &mut values, &sizes, peak);
            let (mut unrolled, timeline) = own?;
            let savable = unrolled.find_savable(module);
            let unrolled = Some(unrolled);
            return Some(Self { scans, unrolled, timeline, sizes, savable, peak });
        }
        let timeline = Timeline::new(module, memory, &values, &scans, &sizes, peak)?;
        let savable = Vec::new();
        let mut policies = Self { scans, unrolled: None, timeline, sizes, savable, peak };
        policies.find_savable(module);
        Some(policies)
    }

    /// The forward loop of each scan, and its iterations.
    pub fn loops(&self) -> impl Iterator<Item = (Row, u64)> + '_ {
        let scans = self.scans.iter().map(|scan| (scan.forward, scan.trips));
        scans.chain(self.unrolled.iter().flat_map(Unrolled::loops))
    }

    /// Bytes that the step as it is keeps from forward to backward loops, apart from weights.
    pub fn kept(&self) -> i64 {
        let stacks = self.scans.iter().flat_map(|scan| &scan.stacks);
        let bytes = stacks.filter(|stack| !stack.is_weight).map(|stack| stack.bytes);
        let unrolled = self.unrolled.as_ref().map_or(0, Unrolled::kept);
        bytes.fold(unrolled, i64::saturating_add)
    }

    /// Whether layers are under `jax.checkpoint` in the step as it is.
    pub fn is_checkpointed(&self, module: &Module) -> bool {
        self.scans.iter().any(|scan| named::is_checkpointed(module, &scan.back))
            || self.unrolled.as_ref().is_some_and(|own| own.is_checkpointed(module))
    }

    /// Nodes and steps that one outcome visits.
    fn work(&self) -> usize {
        let nodes = self.scans.iter().map(|scan| scan.body.nodes.len());
        let scans = self.scans.len().max(1);
        let unrolled = self.unrolled.as_ref().map_or(0, Unrolled::work);
        nodes.sum::<usize>() + unrolled + scans * (self.timeline.steps() + self.savable.len())
    }

    fn find_savable(&mut self, module: &Module) {
        let mut savable = Vec::new();
        for (number, scan) in (0u32..).zip(&self.scans) {
            let body = &scan.body;
            let count = body.nodes.len();
            let (mut is_needed, mut is_part) = (vec![false; count], vec![false; count]);
            let mut is_stacked = vec![false; count];
            for stack in scan.stacks.iter().filter(|stack| !stack.is_weight) {
                is_needed[stack.node as usize] = true;
                is_stacked[stack.node as usize] = true;
            }
            let from = savable.len();
            for node in (0..count as u32).rev() {
                let at = node as usize;
                let opcode = body.nodes[at].opcode;
                if !is_needed[at] || body.nodes[at].element.is_some() {
                    continue;
                }
                let product = named::product_of(module, body, node);
                // A sum of partial products is one value; conversions may lie between.
                let is_sum = product.is_some_and(|of| of != node) || is_part[at];
                for operand in body.operands(node) {
                    is_needed[*operand as usize] = true;
                    is_part[*operand as usize] |= is_sum && !opcode.is_matmul();
                }
                let bytes = scan.body.bytes(node, &self.sizes);
                let kind = match product {
                    _ if is_part[at] => None,
                    Some(of) => {
                        Some(match named::is_batched(module, body.nodes[of as usize].row) {
                            true => SavableKind::BatchedProduct,
                            false => SavableKind::Product,
                        })
                    }
                    None if is_value(opcode) && !reads_weights_alone(scan, node) => {
                        Some(SavableKind::Collective)
                    }
                    None if is_stacked[at] => Some(SavableKind::Other),
                    None => None,
                };
                if let Some(kind) = kind.filter(|_| bytes >= LEAST) {
                    let bytes = bytes.saturating_mul(i64::try_from(scan.trips).unwrap_or(i64::MAX));
                    let Node { row, shape, .. } = body.nodes[at];
                    savable.push(Savable { scan: number, row, bytes, shape, kind, node });
                }
            }
            savable[from..].reverse();
        }
        self.savable = savable;
    }

    /// What the step needs if the savable values have these fates.
    pub fn outcome(&self, module: &Module, fates: &[Fate], prices: &Prices<'_>) -> Outcome {
        let mut outcome = Outcome {
            flops: Some(0),
            wire_bytes: Some(0),
            seconds: prices.seconds.map(|_| 0.0),
            ..Outcome::default()
        };
        let mut bytes = self.timeline.changes();
        let mut prefixes = Vec::new();
        for (number, scan) in (0u32..).zip(&self.scans) {
            let again = Again::new(self, number, scan, fates, &mut outcome);
            again.account(self, scan, &mut bytes, &mut outcome);
            prefixes.push((*scan.back_steps.start(), again.prefix()));
            again.price(module, scan, prices, &mut outcome);
        }
        if let Some(unrolled) = &self.unrolled {
            prefixes = unrolled.outcome(module, fates, prices, &mut bytes, &mut outcome);
        }
        let (peak, step) = bytes.highest(&prefixes);
        // Nothing could be kept instead: the policy is that of the text.
        outcome.peak = if self.savable.is_empty() { self.peak } else { peak };
        outcome.at = self.timeline.row(step);
        outcome
    }
}

fn is_collective(opcode: Opcode) -> bool {
    CollectiveKind::of_opcode(opcode).is_some()
}

/// Whether a program can name the result of a collective; permutes pass on parts of arrays.
fn is_value(opcode: Opcode) -> bool {
    is_collective(opcode) && opcode != Opcode::CollectivePermute
}

/// Whether a collective moves nothing but weights, which backward code gathers in any case.
fn reads_weights_alone(scan: &Scan, node: u32) -> bool {
    let mut at = node;
    for _ in 0..MOST_REARRANGED {
        let Some(operand) = scan.body.operands(at).first() else { return true };
        at = *operand;
        if scan.body.nodes[at as usize].element.is_some() {
            return is_unchanged(&scan.body, at);
        }
        if !is_rearrangement(scan.body.nodes[at as usize].opcode) {
            return false;
        }
    }
    false
}

/// What the backward body of a scan recomputes under a policy.
struct Again {
    /// The scan's number.
    number: u32,
    /// The recomputed nodes that stay in memory, in text order, with bytes.
    heavy: Vec<(u32, i64)>,
    /// By node: the last step of the backward body that needs it; None if none does.
    last: Vec<Option<u32>>,
    /// By node: the last recomputed node that reads it.
    read_by: Vec<u32>,
    is_needed: Vec<bool>,
    /// By node.
    fate: Vec<Fate>,
    /// Bytes per iteration of inputs and saved values that are kept in device memory.
    kept: i64,
    /// Bytes per iteration of values in host memory, with the steps that read them.
    offloaded: Vec<(i64, RangeInclusive<u32>)>,
}

impl Again {
    fn new(
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
        let mut again = Again {
            number,
            heavy: Vec::new(),
            last: vec![None; count],
            read_by: vec![0; count],
            is_needed: vec![false; count],
            fate,
            kept: 0,
            offloaded: Vec::new(),
        };
        for stack in &scan.stacks {
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
                if !is_unchanged(body, node) && size >= LEAST {
                    again.kept = again.kept.saturating_add(size);
                }
                continue;
            }
            if again.fate[at] != Fate::Recomputed {
                outcome.saved.extend(of[at]);
                match again.fate[at] {
                    Fate::Offloaded => {
                        let start = *scan.back_steps.start();
                        let last = again.last[at].unwrap_or(start);
                        again.offloaded.push((size, start..=last));
                    }
                    _ => again.kept = again.kept.saturating_add(size),
                }
                continue;
            }
            let is_heavy = is_heavy(own.opcode);
            if is_heavy {
                again.heavy.push((node, size));
            }
            let (last, read_by) = (again.last[at], again.read_by[at]);
            for operand in body.operands(node) {
                let operand = *operand as usize;
                again.is_needed[operand] = true;
                if is_heavy {
                    again.read_by[operand] = again.read_by[operand].max(node);
                } else {
                    again.last[operand] = again.last[operand].max(last);
                    again.read_by[operand] = again.read_by[operand].max(read_by);
                }
            }
        }
        again.heavy.reverse();
        outcome.saved.sort_unstable();
        again
    }

    /// Bytes while the first part of the backward body recomputes values: the most, and those
    /// that the rest of the body still needs.
    fn prefix(&self) -> (i64, i64) {
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
    fn account(
        &self,
        policies: &Policies,
        scan: &Scan,
        bytes: &mut base::Changes<'_>,
        outcome: &mut Outcome,
    ) {
        let trips = i64::try_from(scan.trips).unwrap_or(i64::MAX);
        let start = *scan.back_steps.start();
        for stack in &scan.stacks {
            let end = match stack.is_weight {
                true => (*stack.live.end()).min(*scan.body_steps.end()),
                false => *stack.live.end(),
            };
            bytes.add(*stack.live.start()..=end, -stack.bytes);
        }
        let kept = self.kept.saturating_mul(trips);
        outcome.kept = outcome.kept.saturating_add(kept);
        bytes.add(*scan.body_steps.start()..=*scan.back_steps.end(), kept);
        for (size, steps) in &self.offloaded {
            outcome.on_host = outcome.on_host.saturating_add(size.saturating_mul(trips));
            bytes.add(steps.clone(), *size);
        }
        for (node, size) in &self.heavy {
            if let Some(last) = self.last[*node as usize] {
                bytes.add(start..=last, *size);
            }
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

    fn holds(&self, node: u32) -> bool {
        self.heavy.binary_search_by_key(&node, |(node, _)| *node).is_ok()
    }

    /// Adds the cost of everything that runs again.
    fn price(&self, module: &Module, scan: &Scan, prices: &Prices<'_>, outcome: &mut Outcome) {
        let multiplies = |node: &&Node| node.opcode.is_matmul();
        let mut products: Vec<Row> =
            scan.body.nodes.iter().filter(multiplies).map(|node| node.outer).collect();
        products.sort_unstable();
        let mut outer: Vec<Row> = Vec::new();
        for (node, _) in &self.heavy {
            let node = &scan.body.nodes[*node as usize];
            outcome.again.push(node.row);
            let is_dear = node.opcode.is_matmul() || is_collective(node.opcode);
            // A reduction fused with a product takes the time of the product, which may be saved.
            if is_dear || products.binary_search(&node.outer).is_err() {
                outer.push(node.outer);
            }
            if node.opcode.is_matmul() {
                let flops = prices.flops(module, node.row);
                outcome.flops = outcome.flops.zip(flops).and_then(|(a, b)| a.checked_add(b));
            }
            if is_collective(node.opcode) {
                let sent = prices.wire_bytes(module, node.row);
                outcome.wire_bytes =
                    outcome.wire_bytes.zip(sent).and_then(|(a, b)| a.checked_add(b));
            }
        }
        outer.sort_unstable();
        outer.dedup();
        for row in outer {
            let seconds = prices.seconds_of(module, row, 0);
            outcome.seconds = outcome.seconds.zip(seconds).map(|(a, b)| a + b);
        }
    }
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
            Some(operand) if matches!(own.opcode, Opcode::Convert | Opcode::Transpose) => {
                at = *operand;
            }
            _ => return true,
        }
    }
}
