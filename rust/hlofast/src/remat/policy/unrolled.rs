//! Checkpoint policies of layers that the program repeats without a loop.
//!
//! The entry computation is one graph. The live range of a value that a layer leaves to its backward
//! part ends, unless the policy saves the value, at its last forward use, and the value is recomputed
//! when the backward part of the layer starts. `jax.checkpoint` puts barriers around unrolled
//! layers (`prevent_cse`), so recomputation starts no earlier and weights are converted and
//! gathered once more.

mod cost;
mod forms;
mod known;
mod rerun;

use super::base::{Changes, Timeline, prefix};
use super::chip::Chip;
use super::graph::Graph;
use super::laid_layers::is_softmax;
use super::layered::Layers;
use super::origins::{Origin, origins};
use super::passes::{Pass, passes};
use super::price::Prices;
use super::products::Products;
use super::remade::Remade;
use super::rings::{Early, ahead as held_ahead, in_rings};
use super::same::{Found, one_of_each, weight_of};
use super::savable::is_value;
use super::softmax::{InLayer, MOST_KEYS, Passes, reduced};
use super::spread::Spread;
use super::stepped::{Held, Stepped};
use super::units::Unit;
use super::widened::Widened;
use super::{Fate, LEAST, Outcome, Savable, SavableKind};
use crate::cost::Backend;
use crate::flow::is_compiler_clone;
use crate::ir::{Module, Opcode, Row};
use cost::{Combined, combined_bytes};
use forms::Kept;
use rerun::Again;
use std::ops::RangeInclusive;

/// Dimensions of more than one element that a matmul of a TPU writes in any order; of programs
/// compiled by libtpu 0.0.42: attention with four dimensions of scores has no wide copies, grouped
/// attention with five has two.
const MOST_WRITTEN: usize = 4;

/// A value in memory that the forward pass makes and the backward pass reads.
#[derive(Clone, Debug)]
struct Residual {
    node: u32,
    bytes: i64,
    /// The steps after its last forward use.
    rest: RangeInclusive<u32>,
}

/// The layers of an entry computation.
#[derive(Debug)]
pub struct Unrolled {
    pub graph: Graph,
    layers: Layers,
    /// By node.
    origins: Vec<Origin>,
    /// By node: the layer in whose backward part it would run again; None outside of layers.
    layer: Vec<Option<u32>>,
    /// By node: whether another layer or the rest of the forward pass reads it.
    is_boundary: Vec<bool>,
    /// The first step of the backward pass.
    back: u32,
    /// By layer: the step at which its backward part starts.
    starts: Vec<u32>,
    residuals: Vec<Residual>,
    /// By node: bytes.
    bytes: Vec<i64>,
    /// By node: the last step at which the text keeps it; None if it never is in memory.
    ends: Vec<Option<u32>>,
    /// By node: the step that computes it.
    steps: Vec<u32>,
    /// The rows that run matmuls, ascending.
    products: Vec<Row>,
    /// Those of them that reduce products, ascending.
    passes: Vec<Pass>,
    /// Products of the forward pass that would be kept in a wider type, with the bytes in that, and the extra bytes at
    /// their step: recomputed, kept.
    wide: Vec<(u32, i64, [i64; 2])>,
    /// Weights that are gathered for a backward part before it starts: bytes and steps.
    early: Vec<(i64, RangeInclusive<u32>)>,
    /// What is in memory before it is used, if layers are checkpointed: bytes and steps.
    ahead: Early,
    /// By node: whether softmaxes make it.
    is_softmax: Vec<bool>,
    /// Softmaxes of which more is in memory than products when they run again.
    softmaxes: Vec<InLayer>,
    /// Scores that the forward pass has in a wider type than their products. If a product is kept, the exponentials
    /// are made from that.
    widened: Vec<Widened>,
    /// Whether the module is scheduled.
    is_scheduled: bool,
    /// By node: whether a product in a loop around a ring reads it, into which XLA fuses nothing.
    is_in_ring: Vec<bool>,
    /// By savable value: its node in each layer.
    members: Vec<Vec<u32>>,
    /// By savable value: the number of the parameter that its product in one layer multiplies by.
    weights: Vec<Option<u32>>,
    /// By collective that XLA has combined of several: the bytes of its results.
    combined: Combined,
    /// Whether the layers are in a loop, whose parameters are not those of the module.
    is_in_loop: bool,
    /// What the text recomputes; None if its layers are not under `jax.checkpoint`.
    remade: Option<Remade>,
    /// What XLA recomputes in the text: node, bytes, steps.
    clones: Vec<(u32, i64, RangeInclusive<u32>)>,
}

impl Unrolled {
    /// The unrolled layers of an entry computation. `sizes` are the bytes of shapes in a scheduled module.
    pub fn new(
        module: &Module,
        stepped: Stepped,
        sizes: Option<&[i64]>,
        chip: Option<Chip>,
    ) -> Option<Self> {
        let Stepped { graph, layers, starts, steps, bytes, held, .. } = stepped;
        let Stepped { early: ahead, is_early, is_backward, is_checkpointed, .. } = stepped;
        let Stepped { recomputed, widened, is_in_loop, .. } = stepped;
        let matmuls = graph.nodes.iter().filter(|node| node.opcode.is_matmul());
        let mut products: Vec<Row> = matmuls.map(|node| node.outer).collect();
        products.sort_unstable();
        let count = graph.nodes.len();
        let passes = passes(&graph, |node| bytes[node as usize]);
        let mut unrolled = Unrolled {
            origins: origins(&graph),
            layer: vec![None; count],
            is_boundary: vec![false; count],
            back: starts.iter().copied().min()?,
            starts,
            residuals: Vec::new(),
            bytes,
            ends: vec![None; count],
            steps,
            products,
            passes,
            wide: Vec::new(),
            early: Vec::new(),
            ahead,
            is_softmax: is_softmax(&graph),
            softmaxes: Vec::new(),
            widened,
            is_scheduled: sizes.is_some(),
            is_in_ring: if sizes.is_some() { in_rings(module, &graph) } else { vec![false; count] },
            members: Vec::new(),
            weights: Vec::new(),
            combined: combined_bytes(module, &graph),
            is_in_loop,
            remade: None,
            clones: Vec::new(),
            graph,
            layers,
        };
        unrolled.place(&is_backward);
        // A module that is not scheduled names no backend, and is taken as one for TPUs.
        if sizes.is_none() || Backend::of_module(module) == Backend::Tpu {
            let own = &unrolled;
            let (graph, layer, steps, held) = (&own.graph, &own.layer, &own.steps, &held);
            let passes = Passes { module, graph, layer, steps, back: own.back, held };
            let softmaxes = passes.softmaxes();
            unrolled.widened.extend(softmaxes.iter().flat_map(|own| own.widened.clone()));
            unrolled.softmaxes = softmaxes;
        }
        unrolled.find_residuals(&held);
        unrolled.find_clones(module, &held);
        if is_checkpointed {
            let own = &unrolled;
            let step_of = |node: u32| own.steps[node as usize];
            let (graph, layers) = (&own.graph, &own.layers);
            let is_again = |row: Row| recomputed.contains(&row);
            let remade = Remade::new(module, graph, layers, &held, &is_backward, step_of, is_again);
            unrolled.remade = Some(remade);
        } else if let Some(sizes) = sizes {
            unrolled.find_wide(module, sizes, chip);
            unrolled.find_early(&held);
            if is_early && !unrolled.wide.is_empty() {
                let (steps, bytes) = (unrolled.steps.as_slice(), unrolled.bytes.as_slice());
                let of = (steps, bytes, is_backward.as_slice());
                let (graph, origins) = (&unrolled.graph, unrolled.origins.as_slice());
                unrolled.ahead = held_ahead(module, graph, (&unrolled.layers, origins), of, &held);
            }
        }
        Some(unrolled)
    }

    /// Finds the layer of each node of the forward pass, and the values that leave their layers.
    fn place(&mut self, is_backward: &[bool]) {
        let graph = &self.graph;
        for (at, node) in graph.nodes.iter().enumerate() {
            if node.element.is_some() || self.origins[at] == Origin::Constants {
                continue;
            }
            let own = match self.layers.knows(node.row) {
                true => self.layers.of_row(node.row),
                // Rows without a name continue what they read.
                false => {
                    let read = graph.operands(at as u32).iter();
                    read.filter_map(|operand| self.layer[*operand as usize]).max()
                }
            };
            self.layer[at] = own.filter(|_| !is_backward[at]);
        }
        // Conversions and gathers of weights belong to the layer that reads them.
        for at in (0..graph.nodes.len()).rev() {
            if self.origins[at] == Origin::Weight && graph.nodes[at].element.is_none() {
                let users = graph.users(at as u32).iter();
                let users = users.filter_map(|user| self.layer[*user as usize]);
                self.layer[at] = users.min().or(self.layer[at]);
            }
        }
        for (at, is_backward) in is_backward.iter().enumerate() {
            if *is_backward {
                continue;
            }
            for operand in graph.operands(at as u32) {
                let operand = *operand as usize;
                let is_value = self.origins[operand] == Origin::Values;
                self.is_boundary[operand] |= is_value && self.layer[operand] != self.layer[at];
            }
        }
    }

    /// Finds the values of layers that stay in memory until their backward part.
    fn find_residuals(&mut self, held: &[Held]) {
        // Values may be copied into another layout for the backward pass.
        let mut is_left = vec![false; self.graph.nodes.len()];
        for value in held.iter().filter(|value| *value.steps.end() >= self.back) {
            is_left[value.node as usize] = true;
        }
        for value in held.iter().filter(|value| *value.steps.start() < self.back) {
            let (first, last) = (*value.steps.start(), *value.steps.end());
            let at = value.node as usize;
            let end = self.ends[at].map_or(last, |end| end.max(last));
            self.ends[at] = Some(end);
            let is_layers = self.layer[at].is_some() && !self.is_boundary[at];
            if !is_left[at] || !is_layers || self.origins[at] == Origin::Constants {
                continue;
            }
            let users = self.graph.users(value.node).iter().map(|user| self.steps[*user as usize]);
            let forward = users.filter(|step| *step < self.back).max().unwrap_or(first);
            let rest = first.max(forward.saturating_add(1))..=last;
            if rest.start() <= rest.end() {
                self.residuals.push(Residual { node: value.node, bytes: value.bytes, rest });
            }
        }
    }

    /// Finds the values that XLA has rematerialised in the backward pass and keeps nowhere before: the account of
    /// a policy has what recomputes them or keeps them.
    fn find_clones(&mut self, module: &Module, held: &[Held]) {
        for value in held.iter().filter(|value| *value.steps.start() >= self.back) {
            let at = value.node as usize;
            let is_layers = self.layer[at].is_some() && !self.is_boundary[at];
            if is_layers && is_compiler_clone(module, value.row) {
                self.clones.push((value.node, value.bytes, value.steps.clone()));
            }
        }
    }

    /// Finds the products of forward layers that are widened at once, such as scores of grouped
    /// attention before a softmax. XLA writes one in its narrow type where the backward pass reads the
    /// value and other work is repeated in fusions. Without that reader XLA writes the wide type, before
    /// and after the work on each element, if the product has more dimensions than a matmul of TPUs
    /// can write in any order.
    fn find_wide(&mut self, module: &Module, sizes: &[i64], chip: Option<Chip>) {
        let graph = &self.graph;
        for (at, node) in graph.nodes.iter().enumerate() {
            let is_own = self.layer[at].is_some() && self.steps[at] < self.back;
            if !is_own || !node.opcode.is_matmul() || self.ends[at].is_none() {
                continue;
            }
            let array = module.shapes().array(node.shape);
            let long = array.map_or(0, |array| {
                array.dimensions().filter(|size| size.bound().is_some_and(|n| n > 1)).count()
            });
            let users = graph.users(at as u32).iter().map(|user| &graph.nodes[*user as usize]);
            let wide = users
                .filter(|user| user.opcode == Opcode::Convert)
                .filter_map(|user| sizes.get(user.shape.0 as usize).copied())
                .max();
            if let Some(wide) = wide.filter(|wide| long > MOST_WRITTEN && *wide > self.bytes[at]) {
                let shapes = module.shapes();
                let elements =
                    |node: u32| shapes.array(graph.nodes[node as usize].shape)?.elements();
                let scores = reduced(graph, at as u32, elements);
                let is_long = scores.is_some_and(|(_, keys)| keys > MOST_KEYS);
                let (at, narrow) = (at as u32, self.bytes[at]);
                // A product that is kept is written in its own type, and then the exponentials are in the wide one.
                let two = wide.saturating_mul(2);
                let both = [two - narrow, if is_long { two } else { wide }];
                // With fewer keys XLA for v6e writes one, but in rings (`unrolled_v6e_8`) the gradient of the logits,
                // which the model does not let wait, takes as much as the other.
                let spread = (chip == Some(Chip::V6e))
                    .then(|| Spread::of(module, graph, (at, narrow), scores))
                    .filter(|own| own.reads_product);
                let beside = spread.map_or(both, |own| [wide.saturating_add(own.bytes); 2]);
                self.wide.push((at, wide, beside));
            }
        }
    }

    /// Finds weights that are gathered during the forward pass for a backward part, which the barriers
    /// of a checkpointed layer forbid.
    fn find_early(&mut self, held: &[Held]) {
        for value in held.iter().filter(|value| *value.steps.start() < self.back) {
            let own = &self.graph.nodes[value.node as usize];
            let is_weight =
                self.origins[value.node as usize] == Origin::Weight && own.element.is_none();
            let layer = self.layers.of_row(own.row).filter(|_| is_weight);
            let Some(start) = layer.map(|layer| self.starts[layer as usize]) else { continue };
            if self.layer[value.node as usize].is_none() && *value.steps.start() < start {
                let until = (*value.steps.end()).min(start.saturating_sub(1));
                self.early.push((value.bytes, *value.steps.start()..=until));
            }
        }
    }

    /// The first row of the first layer of each kind, and the number of layers.
    pub fn loops(&self) -> impl Iterator<Item = (Row, u64)> + '_ {
        self.layers.kinds.iter().map(|kind| (kind.first, kind.layers.len() as u64))
    }

    /// The functions of the layers, and whether several are taken as one layer for lack of knowledge.
    pub fn units(&self) -> (&[Unit], bool) {
        (&self.layers.units, self.layers.is_ambiguous)
    }

    /// By savable value: the number of the parameter that its product in one layer multiplies by.
    pub fn weights(&self) -> &[Option<u32>] {
        &self.weights
    }

    /// Whether layers are under `jax.checkpoint` in the step as it is.
    pub fn is_checkpointed(&self) -> bool {
        self.remade.is_some()
    }

    /// Bytes that layers as they are keep until their backward parts, apart from weights.
    pub fn kept(&self) -> i64 {
        let own = self.residuals.iter();
        let own = own.filter(|own| self.origins[own.node as usize] != Origin::Weight);
        let own = own.filter(|own| *own.rest.end() >= self.back);
        own.map(|own| own.bytes).fold(0, i64::saturating_add)
    }

    /// Nodes that one outcome visits.
    pub fn work(&self) -> usize {
        self.graph.nodes.len()
    }

    /// The values that policies could save.
    pub fn find_savable(&mut self, module: &Module) -> Vec<Savable> {
        let again = self.again(&[]);
        let graph = &self.graph;
        let count = graph.nodes.len();
        let products = Products::new(module, graph);
        let mut is_residual = vec![false; count];
        for own in &self.residuals {
            is_residual[own.node as usize] = true;
        }
        let mut found: Vec<Found> = Vec::new();
        for node in (0..count as u32).rev() {
            let at = node as usize;
            let Some(layer) = self.layer[at].filter(|_| !self.is_boundary[at]) else { continue };
            if !again.is_needed[at] || self.origins[at] != Origin::Values {
                continue;
            }
            let opcode = graph.nodes[at].opcode;
            let kind = match products.of[at] {
                _ if products.is_part[at] => None,
                Some(of) => Some(SavableKind::of_product(module, graph.nodes[of as usize].row)),
                None if is_value(opcode) => Some(SavableKind::Collective),
                None if is_residual[at] => Some(SavableKind::Other),
                None => None,
            };
            if let Some(kind) = kind.filter(|_| self.bytes[at] >= LEAST) {
                let (product, bytes, is_kept) = (products.of[at], self.bytes[at], is_residual[at]);
                let weight = product.and_then(|own| weight_of(graph, &self.origins, own));
                found.push(Found { node, kind, is_kept, layer, product, weight, bytes });
            }
        }
        found.reverse();
        let (savable, members) = one_of_each(module, &self.graph, &self.layers, &found);
        let weight_in = |own: &Savable| {
            let product = products.of[own.node as usize].filter(|_| !self.is_in_loop)?;
            weight_of(&self.graph, &self.origins, product)
        };
        self.weights = savable.iter().map(weight_in).collect();
        self.members = members;
        savable
    }

    /// Adds what the step needs if the savable values have these fates; `flops` are those of products.
    /// Returns what runs at the starts of backward parts, for [`Changes::highest`].
    pub fn outcome(
        &self,
        module: &Module,
        fates: &[Fate],
        (prices, flops): (&Prices<'_>, impl Fn(Row) -> Option<i64>),
        bytes: &mut Changes<'_>,
        outcome: &mut Outcome,
    ) -> Vec<(u32, (i64, i64))> {
        let again = self.again(fates);
        let prefixes = self.account(&again, fates, bytes, outcome);
        again.heavy.iter().for_each(|nodes| self.price(module, nodes, (prices, &flops), outcome));
        prefixes
    }

    /// The most bytes if the savable values have these fates, and their step. `timeline` has the bytes at
    /// each step of the text.
    pub fn highest(&self, fates: &[Fate], timeline: &Timeline) -> (i64, usize) {
        let mut bytes = timeline.changes();
        let prefixes = self.account(&self.again(fates), fates, &mut bytes, &mut Outcome::default());
        bytes.highest(&prefixes)
    }

    /// Whether rings make room before they run.
    pub fn makes_room(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Takes over the savable values of the same layers.
    pub fn save_like(&mut self, other: &Unrolled) {
        self.members.clone_from(&other.members);
    }

    /// The changes of the bytes at each step by which a text whose layers are checkpointed differs from
    /// the account of what it does itself, so that the account of that is the text.
    pub fn beyond(&self, fates: &[Fate], mut bytes: Changes<'_>) -> Option<Vec<i64>> {
        self.remade.as_ref()?;
        self.account(&self.again(fates), fates, &mut bytes, &mut Outcome::default());
        Some(bytes.negated())
    }

    /// Adds the bytes of what is kept and what runs again.
    fn account(
        &self,
        again: &Again,
        fates: &[Fate],
        bytes: &mut Changes<'_>,
        outcome: &mut Outcome,
    ) -> Vec<(u32, (i64, i64))> {
        for own in &self.residuals {
            if again.fate[own.node as usize] == Fate::Recomputed {
                bytes.add(own.rest.clone(), -own.bytes);
            }
        }
        for own in self.kept_values(again) {
            self.keep(again, &own, bytes, outcome);
        }
        for (number, nodes) in (0u32..).zip(&self.members) {
            let fate = fates.get(number as usize).copied().unwrap_or_default();
            if fate != Fate::Recomputed && nodes.iter().any(|node| again.is_needed[*node as usize])
            {
                outcome.saved.push(number);
            }
        }
        for (size, steps) in &self.early {
            bytes.add(steps.clone(), -size);
        }
        for (node, size, steps) in &self.clones {
            if again.is_needed[*node as usize] {
                bytes.add(steps.clone(), -size);
            }
        }
        for (size, steps) in &self.ahead {
            bytes.add(steps.clone(), *size);
        }
        for (node, _, [beside, beside_kept]) in &self.wide {
            let at = *node as usize;
            let is_kept = again.fate[at] != Fate::Recomputed;
            let beside = if is_kept { *beside_kept } else { *beside };
            bytes.add(self.steps[at]..=self.steps[at], beside);
        }
        for (node, size, steps) in self.remade.iter().flat_map(|own| &own.live) {
            if !again.is_needed[*node as usize] || !self.is_again(again, *node) {
                bytes.add(steps.clone(), -size);
            }
        }
        for (node, layer, of) in &again.shared {
            if let Some(last) = again.last[*of as usize].filter(|_| self.remade.is_none()) {
                let start = self.starts[*layer as usize];
                bytes.add(start..=last, self.bytes[*node as usize]);
            }
        }
        for (product, size, steps) in self.widened.iter().filter(|_| self.remade.is_none()) {
            if again.fate[*product as usize] != Fate::Recomputed {
                bytes.add(steps.clone(), -size);
            }
        }
        for own in self.softmaxes.iter().filter(|_| self.remade.is_none()) {
            self.account_softmax(again, own, bytes);
        }
        // What the text recomputes stays where it is.
        let is_remade =
            |node: &u32| self.remade.as_ref().is_some_and(|own| own.twin[*node as usize].is_some());
        let mut prefixes = Vec::new();
        for (nodes, start) in again.heavy.iter().zip(&self.starts) {
            let new: Vec<u32> = nodes.iter().copied().filter(|node| !is_remade(node)).collect();
            for node in &new {
                if let Some(last) = again.last[*node as usize] {
                    bytes.add(*start..=last, self.bytes[*node as usize]);
                }
            }
            prefixes.push((*start, self.prefix(again, &new)));
        }
        prefixes
    }

    /// Adds what is written of a softmax that runs again.
    fn account_softmax(&self, again: &Again, softmax: &InLayer, bytes: &mut Changes<'_>) {
        let own = &softmax.softmax;
        let is_again = |node: u32| self.is_again(again, node);
        if !is_again(own.exponentials) {
            return;
        }
        let start = self.starts[softmax.layer as usize];
        let is_kept = !is_again(own.product);
        let size = |node: u32| self.bytes[node as usize];
        let last = |node: u32| again.last[node as usize];
        // Before optimisation products alone are in memory.
        let needs_product = last(own.product).is_some();
        let is_needed = last(own.exponentials).is_some() || !self.is_scheduled && needs_product;
        if own.is_written && is_needed {
            bytes.add(own.exponential_steps(start, is_kept), size(own.exponentials));
            let needed = own.product_steps(start);
            if let Some(last) = last(own.product) {
                let from = if is_kept { start.saturating_add(1) } else { start };
                let from = needed
                    .as_ref()
                    .filter(|_| is_kept)
                    .map_or(from, |own| own.end().saturating_add(1));
                bytes.add(from..=last, -size(own.product));
            }
            if let Some(steps) = needed.filter(|_| !is_kept) {
                bytes.add(steps, size(own.product));
            }
        }
        // Weights that recomputed products read are made before gradients are.
        let runs_for_others = |node: u32| is_again(node) && again.read_by[node as usize] > 0;
        let is_early = own.mixed.is_some_and(runs_for_others);
        let is_needed = needs_product || last(own.exponentials).is_some();
        if !is_kept && is_needed && is_again(own.weights) && !is_early {
            bytes.add(own.weight_steps(), size(own.weights));
        }
    }

    /// Accounts for a value that is kept for recomputation or for backward work.
    fn keep(&self, again: &Again, own: &Kept, bytes: &mut Changes<'_>, outcome: &mut Outcome) {
        let size = self.bytes[own.at];
        // Nothing holds the copies to the host and back to their layers, so the compiler leaves most
        // of the values of unrolled layers in device memory while the peak lasts.
        if again.fate[own.at] == Fate::Offloaded {
            outcome.on_host = outcome.on_host.saturating_add(size);
        } else if size >= LEAST {
            outcome.kept = outcome.kept.saturating_add(size);
        }
        let from = own.end.map_or(self.steps[own.at], |end| end.saturating_add(1));
        if from <= own.until {
            bytes.add(from..=own.until, size);
        }
    }

    /// Bytes while a layer is recomputed: the most, and those that its backward part still needs.
    fn prefix(&self, again: &Again, nodes: &[u32]) -> (i64, i64) {
        let values = nodes.iter().map(|node| {
            let at = *node as usize;
            (*node, self.bytes[at], again.last[at].is_none().then_some(again.read_by[at]))
        });
        prefix(&values.collect::<Vec<_>>())
    }
}
