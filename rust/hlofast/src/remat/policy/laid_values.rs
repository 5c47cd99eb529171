//! What is in memory of an unscheduled module beside the values of products and reductions: gathered
//! weights, exchanged values, exponentials; and which values take the memory of others.

use super::chip::Chip;
use super::graph::Graph;
use super::laid_groups::{Around, Laid};
use super::layout::{Layout, Steps, stays};
use super::run_order::{Transfers, gathered_weights, is_in_place};
use super::scans::is_heavy;
use super::softmax::{MOST_KEYS, reduced};
use super::spread::Spread;
use super::stacks::{is_unchanged, stacked};
use super::widened::Widened;
use crate::ir::Opcode;
use crate::ir::intern::BuildMix;
use hashbrown::HashSet;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Dimensions on a device of scores of attention in which several heads share keys: XLA for TPU then
/// writes the exponentials of a softmax in the forward pass to memory, in all ten such programs of
/// `benches/policy_accuracy.py` and in no other.
const GROUPED: usize = 5;
/// Limits on the nodes between a product and the exponentials that are made from it, and on the users of
/// each of them.
const MOST_OPENED: usize = 64;
const MOST_USERS: usize = 16;

impl Layout<'_> {
    /// The values that take the memory of others as these end.
    pub fn in_place(
        &self,
        graph: &Graph,
        steps: &Steps,
        transfers: Transfers,
    ) -> HashSet<u32, BuildMix> {
        let takes_over = |node: &u32| {
            let runs = Some(steps.runs[*node as usize]);
            let bytes = self.bytes(graph, *node);
            let is_free =
                |own: u32| steps.last[own as usize] == runs && self.bytes(graph, own) == bytes;
            let ends = |own: u32| stays(graph, own).then(|| is_free(own));
            is_in_place(self.module, graph, *node, transfers, ends)
        };
        graph.shared.iter().copied().filter(takes_over).collect()
    }

    /// Adds the bytes of weights that products gather first. Products between which no loop runs share
    /// what they gather of one weight.
    pub fn hold_gathered(&mut self, graph: &Graph, steps: &Steps, is_entry: bool) {
        let loops = graph.states.keys().map(|node| steps.runs[*node as usize]);
        let mut loops: Vec<u32> = loops.collect();
        loops.sort_unstable();
        // By weight, and number of loops before: steps and bytes.
        let mut held: BTreeMap<(u32, usize), (u32, u32, i64)> = BTreeMap::new();
        for own in gathered_weights(graph, self.local, is_entry) {
            let runs = steps.runs[own.product as usize];
            let before = loops.partition_point(|end| *end < runs);
            let entry = held.entry((own.weight, before)).or_insert((runs, runs, own.bytes));
            *entry = (entry.0.min(runs), entry.1.max(runs), entry.2.max(own.bytes));
        }
        for (first, last, bytes) in held.into_values() {
            self.add(first..=last, bytes);
        }
    }

    /// Adds the bytes of weights that the forward body of a pair of loops converts to a narrower type: XLA takes the
    /// conversion of the whole array out of both loops. Where the forward loop stacks the converted weights for the
    /// backward one, they are in memory already.
    pub fn hold_narrowed(&mut self, around: &Around<'_>, [fore, back]: [&Laid; 2]) {
        let (graph, body) = (around.graph, &fore.0);
        let state = graph.states.get(&around.whole).map_or(&[][..], Vec::as_slice);
        let elements = 0..state.len() as u32;
        let stacks: HashSet<u32, BuildMix> =
            elements.filter_map(|own| stacked(body, own)).collect();
        // By weight and bits: bytes.
        let mut narrowed: BTreeMap<(u32, i64), i64> = BTreeMap::new();
        // By node: the element of which it is a part.
        let mut weights: Vec<Option<u32>> = Vec::with_capacity(body.nodes.len());
        for (node, own) in (0u32..).zip(&body.nodes) {
            let first = body.operands(node).first().copied();
            let of = first.and_then(|first| weights[first as usize]);
            let is_part =
                matches!(own.opcode, Opcode::DynamicSlice | Opcode::Slice | Opcode::Convert);
            let element = own.element.filter(|_| is_unchanged(body, node));
            weights.push(if is_part { of } else { element });
            let bits = self.bits(body, node);
            let is_narrowed = own.opcode == Opcode::Convert
                && first.is_some_and(|wide| bits < self.bits(body, wide));
            let given = of.and_then(|element| state.get(element as usize)?.node());
            if let Some(weight) = given.filter(|_| is_narrowed && !stacks.contains(&node)) {
                let bytes = self.own_bytes(graph, weight) / self.bits(graph, weight);
                narrowed.insert((weight, bits), bytes.saturating_mul(bits));
            }
        }
        let steps = *fore.1.all.start()..=*back.1.all.end();
        narrowed.into_values().for_each(|bytes| self.add(steps.clone(), bytes));
    }

    /// Whether products read weights of a body in a narrower type than the body gets them in.
    pub fn converts_weights(&self, graph: &Graph) -> bool {
        gathered_weights(graph, self.local, false)
            .any(|own| self.bits(graph, own.product) < self.bits(graph, own.weight))
    }

    /// Adds the bytes of a softmax in the forward pass whose scores have many dimensions: first the scores
    /// and then their exponentials are in memory in the type in which these are summed, and both at the step
    /// that makes the exponentials. Backward passes read the scores in their own type. For v6e, see
    /// `spread.rs`. Returns what differs if the product is kept.
    pub fn hold_exponentials(
        &mut self,
        graph: &Graph,
        steps: &Steps,
        until: impl Fn(u32) -> Option<u32>,
    ) -> Vec<Widened> {
        let mut found = Vec::new();
        for product in 0..graph.nodes.len() as u32 {
            let own = &graph.nodes[product as usize];
            let rank = self.local.product(own.row).map_or(0, |own| own.rank);
            if !own.opcode.is_matmul() || rank < GROUPED {
                continue;
            }
            let Some(until) = until(product) else { continue };
            let Some(made) = self.exponentials(graph, product) else { continue };
            let bytes = self.own_bytes(graph, product);
            let wide = bytes.saturating_mul(self.bits(graph, made)) / self.bits(graph, product);
            let (first, sums) = (steps.runs[product as usize], steps.runs[made as usize]);
            let last = until.max(sums);
            let wider = wide.saturating_sub(self.bytes(graph, product));
            let elements = |node: u32| self.elements(graph, node);
            let scores = reduced(graph, product, elements);
            if self.chip == Some(Chip::V6e) {
                let own = Spread::of(self.module, graph, (product, bytes), scores);
                match own.reads_product {
                    true => self.add(sums..=last, wide),
                    false => self.add(first..=last, wider),
                }
                self.add(sums..=sums, own.bytes);
                // Nothing differs, but layers in rings ask whether there is such a product.
                found.push((product, 0, first..=last));
                continue;
            }
            self.add(first..=last, wider);
            self.add(sums..=sums, wide);
            let further = match scores.is_some_and(|(_, keys)| keys > MOST_KEYS) {
                true => -self.bytes(graph, product),
                false => wider,
            };
            found.push((product, further, first..=last));
        }
        found
    }

    /// Adds the bytes of cheap values that loops take and hand on unchanged, such as masks: XLA for GPUs gives them
    /// buffers, that for TPUs computes them in the loop.
    pub fn hold_taken(&mut self, graph: &Graph, steps: &Steps) {
        let mut taken: BTreeMap<u32, RangeInclusive<u32>> = BTreeMap::new();
        for (node, state) in &graph.states {
            let row = graph.nodes[*node as usize].row;
            let (first, last) = (steps.first[*node as usize], steps.runs[*node as usize]);
            for (element, value) in (0u32..).zip(state) {
                let Some(at) = value.node() else { continue };
                let own = &graph.nodes[at as usize];
                let is_cheap =
                    own.element.is_none() && own.opcode != Opcode::Constant && !stays(graph, at);
                if is_cheap && !self.changes_element(row, element) {
                    let known = taken.entry(at).or_insert(first..=last);
                    *known = first.min(*known.start())..=last.max(*known.end());
                }
            }
        }
        for (node, steps) in taken {
            self.add(steps, self.bytes(graph, node));
        }
    }

    /// Adds the bytes that XLA for GPUs takes where a backward pass makes scores again. It writes the gradient of
    /// the weights in the type of the softmax, in another order of dimensions; one kernel then makes the weights and
    /// the gradient of the scores from it and from the scores.
    pub fn hold_wide_gradients(&mut self, graph: &Graph, steps: &Steps) {
        for product in 0..graph.nodes.len() as u32 {
            if !graph.nodes[product as usize].opcode.is_matmul() {
                continue;
            }
            let Some(made) = self.exponentials(graph, product) else { continue };
            let Some(step) = self.last_made(graph, steps, made) else { continue };
            let wide = self.own_bytes(graph, product).saturating_mul(self.bits(graph, made))
                / self.bits(graph, product);
            self.add(step..=step, wide);
        }
    }

    /// The step of the last value in memory that is made from exponentials by cheap work: the gradient of
    /// their scores.
    fn last_made(&self, graph: &Graph, steps: &Steps, exponentials: u32) -> Option<u32> {
        let mut last = None;
        self.follow_cheap(graph, exponentials, |user| {
            let is_shared = graph.shared.contains(&user);
            if is_shared {
                last = last.max(Some(steps.runs[user as usize]));
            }
            !is_shared
        });
        last
    }

    /// The exponentials that are made from a product by cheap work, if a sum reads them.
    fn exponentials(&self, graph: &Graph, product: u32) -> Option<u32> {
        let mut found = None;
        self.follow_cheap(graph, product, |user| {
            let users = graph.users(user).iter().take(MOST_USERS);
            let mut readers = users.map(|own| graph.nodes[*own as usize].opcode);
            let is_exponential = graph.nodes[user as usize].opcode == Opcode::Exponential;
            if found.is_none() && is_exponential && readers.any(|own| own == Opcode::Reduce) {
                found = Some(user);
            }
            found.is_none()
        });
        found
    }

    /// Calls `goes_on` with what cheap work makes of the elements of a value, and goes on from those for which it is
    /// true.
    fn follow_cheap(&self, graph: &Graph, from: u32, mut goes_on: impl FnMut(u32) -> bool) {
        let count = self.elements(graph, from);
        let mut open = vec![from];
        for _ in 0..MOST_OPENED {
            let Some(at) = open.pop() else { break };
            for user in graph.users(at).iter().take(MOST_USERS).copied() {
                let is_cheap = !is_heavy(graph.nodes[user as usize].opcode);
                if is_cheap && self.elements(graph, user) == count && goes_on(user) {
                    open.push(user);
                }
            }
        }
    }

    /// Marks cheap values that devices gather or exchange: they are in memory, as collectives' results
    /// are.
    pub fn mark_transfers(&self, graph: &mut Graph) {
        let is_gathered = |node: &u32| {
            // Its sharding and that of the value which it is made from are written and differ.
            let Some(source) = self.written_source(graph, *node) else { return false };
            let held =
                |node: u32, bits: i64| i128::from(self.own_bytes(graph, node)) * i128::from(bits);
            held(source, self.bits(graph, *node)) < held(*node, self.bits(graph, source))
        };
        let gathered: Vec<u32> = graph.written.keys().copied().filter(is_gathered).collect();
        let numbers = 0..graph.nodes.len() as u32;
        let exchanged = numbers.flat_map(|node| {
            let operands = self.local.exchanged(graph.nodes[node as usize].row).iter();
            operands.filter_map(move |index| Some((node, usize::try_from(*index).ok()?)))
        });
        let exchanged = exchanged.filter_map(|(node, index)| graph.operands(node).get(index));
        let is_cheap = |node: &u32| {
            let own = &graph.nodes[*node as usize];
            own.element.is_none() && !is_heavy(own.opcode)
        };
        let exchanged: Vec<u32> = exchanged.copied().filter(is_cheap).collect();
        for node in gathered {
            graph.nodes[node as usize].opcode = Opcode::AllGather;
        }
        for node in exchanged {
            graph.nodes[node as usize].opcode = Opcode::CollectivePermute;
        }
    }
}
