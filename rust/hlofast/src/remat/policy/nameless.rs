//! The layers of a program that repeats them in a plain loop, whose scopes have no numbers: found by
//! structure.
//!
//! Matmuls of the forward pass that stem from one line are one matmul of each layer if each depends on
//! the one before. Other forward work lies between matmuls of known layers. What lies between the last
//! matmul of a layer and the first of the next belongs to the next if the first layer starts with work
//! of the same lines, as normalisation does, and otherwise to the layer before, as does the sum that
//! ends it, with the biases and scales that it reads. A backward matmul multiplies a gradient by what a matmul of its
//! layer has read.

use super::graph::Graph;
use super::layered::{Kind, Layers, Name};
use super::origins::{Origin, origins};
use crate::flow::{Phase, ScopeTree};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use hashbrown::{HashMap, HashSet};

/// Limit on the kinds of layers.
const MOST_KINDS: usize = 8;
/// Limit on the times that lines of matmuls are compared for a kind.
const MOST_ROUNDS: usize = 32;

/// What tells the matmuls of a layer apart, in all layers.
type Like = (Name, u16, u64);

/// A forward pass.
struct Finder<'a> {
    module: &'a Module,
    graph: &'a Graph,
    /// By node: what it is made from.
    origins: Vec<Origin>,
    names: &'a Layers,
    /// By node: its phase.
    phases: Vec<Phase>,
    /// By node: the layer that its matmul is in.
    layer: Vec<Option<u32>>,
    /// By node of the forward pass: the last layer whose matmuls it depends on.
    before: Vec<Option<u32>>,
    /// By node of the forward pass: the first layer whose matmuls depend on it.
    after: Vec<Option<u32>>,
}

/// Adds the layers of `graph` to `names`, which has none; None if there are none.
pub fn layers(
    module: &Module,
    graph: &Graph,
    mut names: Layers,
    phase: impl Fn(Row) -> Phase,
) -> Option<Layers> {
    let count = graph.nodes.len();
    let mut finder = Finder {
        module,
        graph,
        names: &names,
        phases: graph.nodes.iter().map(|node| phase(node.row)).collect(),
        layer: vec![None; count],
        origins: origins(graph),
        before: vec![None; count],
        after: vec![None; count],
    };
    let mut groups = finder.groups();
    let kinds = (0..MOST_KINDS).filter_map(|_| finder.kind(&mut groups));
    let kinds: Vec<(usize, Vec<Vec<u32>>)> = kinds.collect();
    let before = finder.kinds_before(&kinds);
    let first = |groups: &[Vec<u32>]| groups.iter().filter_map(|own| own.first().copied()).min();
    let mut kinds: Vec<_> = before.into_iter().zip(kinds).collect();
    kinds.sort_by_key(|(before, (_, groups))| (*before, first(groups)));
    let kinds: Vec<(usize, Vec<Vec<u32>>)> = kinds.into_iter().map(|(_, kind)| kind).collect();
    let mut found: Vec<Kind> = Vec::new();
    let mut kind_of: Vec<u32> = Vec::new();
    for (layers, groups) in &kinds {
        let (from, layers) = (kind_of.len() as u32, *layers as u32);
        let first = groups.iter().filter_map(|own| own.first()).min().copied().unwrap_or(0);
        let own = Kind {
            first: graph.nodes[first as usize].row,
            layers: (from..from + layers).collect(),
        };
        kind_of.extend((0..layers).map(|_| found.len() as u32));
        found.push(own);
        for group in groups {
            let each = group.len() as u32 / layers;
            for (rank, node) in (0u32..).zip(group) {
                finder.layer[*node as usize] = Some(from + rank / each);
            }
        }
    }
    if found.is_empty() {
        return None;
    }
    finder.order();
    let firsts: HashSet<u32, BuildMix> =
        found.iter().filter_map(|kind| kind.layers.first()).copied().collect();
    let forward = finder.forward(&firsts);
    let assigned = finder.backward(&forward);
    names.kinds = found;
    names.set(kind_of, graph.nodes.iter().map(|node| node.row).zip(assigned));
    Some(names)
}

impl Finder<'_> {
    fn is_forward(&self, at: usize) -> bool {
        matches!(self.phases[at], Phase::Forward | Phase::Unattributed)
    }

    /// What tells a node of a layer apart, in all layers.
    fn like(&self, at: usize) -> Like {
        let node = &self.graph.nodes[at];
        let opcode = if node.opcode.is_matmul() { Opcode::Dot } else { node.opcode };
        let elements = self.module.shapes().array(node.shape).and_then(|array| array.elements());
        (self.names.name_of(self.module, node.row), opcode as u16, elements.unwrap_or(0))
    }

    /// The forward matmuls that are alike, in the order in which they run; the largest groups first.
    fn groups(&self) -> Vec<Vec<u32>> {
        let mut known: HashMap<Like, usize, BuildMix> = HashMap::default();
        let mut groups: Vec<Vec<u32>> = Vec::new();
        for (at, node) in self.graph.nodes.iter().enumerate() {
            if !node.opcode.is_matmul() || self.phases[at] != Phase::Forward {
                continue;
            }
            let number = *known.entry(self.like(at)).or_insert(groups.len());
            if number == groups.len() {
                groups.push(Vec::new());
            }
            groups[number].push(at as u32);
        }
        let mut apart: Vec<Vec<u32>> =
            groups.iter_mut().filter_map(|own| self.split(own)).collect();
        if !apart.is_empty() {
            // They depend on no layer, so XLA may run them in any order. That of the layers is the one in which they
            // are read.
            let readers = self.first_readers();
            apart.iter_mut().for_each(|own| own.sort_by_key(|node| readers[*node as usize]));
        }
        groups.extend(apart);
        groups.retain(|group| group.len() > 1);
        groups
    }

    /// By node of the forward pass: the first matmul that depends on it.
    fn first_readers(&self) -> Vec<u32> {
        let nodes = &self.graph.nodes;
        let mut first = vec![u32::MAX; nodes.len()];
        for at in (0..nodes.len()).rev().filter(|at| self.is_forward(*at)) {
            let own = if nodes[at].opcode.is_matmul() { at as u32 } else { first[at] };
            for operand in self.graph.operands(at as u32) {
                let known = &mut first[*operand as usize];
                *known = (*known).min(own);
            }
        }
        first
    }

    /// Takes from a group the matmuls of one value that more than half of it multiply, if others do not: keys and
    /// values that all layers make of what an encoder has made, on the line of their queries.
    fn split(&self, group: &mut Vec<u32>) -> Option<Vec<u32>> {
        let mut counts: HashMap<u32, usize, BuildMix> = HashMap::default();
        for node in group.iter() {
            let operands = self.graph.operands(*node);
            for (at, operand) in operands.iter().enumerate() {
                if !operands[..at].contains(operand) {
                    *counts.entry(*operand).or_default() += 1;
                }
            }
        }
        let is_part = |count: usize| count * 2 > group.len() && count < group.len();
        let shared = counts.into_iter().filter(|(_, count)| is_part(*count));
        let (value, _) = shared.max_by_key(|(value, count)| (*count, *value))?;
        let reads = |node: &u32| self.graph.operands(*node).contains(&value);
        let (shared, rest) = group.iter().partition(|node| reads(node));
        *group = rest;
        Some(shared)
    }

    /// The number of layers of one kind and the groups that are their matmuls, taken from `groups`.
    fn kind(&mut self, groups: &mut Vec<Vec<u32>>) -> Option<(usize, Vec<Vec<u32>>)> {
        let mut counts: HashMap<usize, usize, BuildMix> = HashMap::default();
        groups.iter().for_each(|group| *counts.entry(group.len()).or_default() += 1);
        // The most frequent number of matmuls is that of the layers.
        let layers = *counts.iter().max_by_key(|(size, times)| (**times, **size))?.0;
        let mut own: Vec<usize> =
            (0..groups.len()).filter(|at| groups[*at].len().is_multiple_of(layers)).collect();
        for round in 0..MOST_ROUNDS {
            self.layer.fill(None);
            for group in own.iter().map(|at| &groups[*at]) {
                let each = group.len() / layers;
                for (rank, node) in group.iter().enumerate() {
                    self.layer[*node as usize] = Some((rank / each) as u32);
                }
            }
            self.order();
            // By group: how many of its matmuls are in no order of layers, and how many there are.
            let parts: Vec<(u64, u64)> = own
                .iter()
                .map(|at| {
                    let broken = groups[*at].iter().filter(|node| !self.is_chained(**node));
                    (broken.count() as u64, groups[*at].len() as u64)
                })
                .collect();
            let is_more = |own: (u64, u64), other: (u64, u64)| own.0 * other.1 > other.0 * own.1;
            let most = parts
                .iter()
                .copied()
                .reduce(|most, own| if is_more(own, most) { own } else { most });
            let Some(most) = most.filter(|most| most.0 > 0) else { break };
            // A group that is broken makes those that read it so: only the worst ones go, in the last round all.
            let is_last = round + 1 == MOST_ROUNDS;
            let mut parts = parts.into_iter();
            own.retain(|_| {
                let part = parts.next().unwrap_or_default();
                if is_last { part.0 == 0 } else { is_more(most, part) }
            });
        }
        let own = self.connected(groups, &own);
        self.layer.fill(None);
        let mut kind = Vec::with_capacity(own.len());
        for at in &own {
            kind.push(std::mem::take(&mut groups[*at]));
        }
        groups.retain(|group| !group.is_empty());
        if kind.is_empty() {
            // What no kind can be made of is not tried again.
            groups.retain(|group| group.len() != layers);
            return None;
        }
        Some((layers, kind))
    }

    /// By kind: how many kinds its matmuls depend on. Layers are numbered in the order in which they depend on each
    /// other, which before optimisation is not that of the text.
    fn kinds_before(&self, kinds: &[(usize, Vec<Vec<u32>>)]) -> Vec<u32> {
        let mut own: HashMap<u32, usize, BuildMix> = HashMap::default();
        for (kind, (_, groups)) in kinds.iter().enumerate() {
            own.extend(groups.iter().flatten().map(|node| (*node, kind)));
        }
        // By node: a bit for each kind that it depends on.
        let mut depends = vec![0u32; self.graph.nodes.len()];
        let mut found = vec![0u32; kinds.len()];
        for at in (0..depends.len()).filter(|at| self.is_forward(*at)) {
            let operands = self.graph.operands(at as u32).iter();
            let read = operands.fold(0, |all, own| all | depends[*own as usize]);
            depends[at] = read;
            if let Some(kind) = own.get(&(at as u32)) {
                found[*kind] |= read & !(1 << kind);
                depends[at] |= 1 << kind;
            }
        }
        found.into_iter().map(u32::count_ones).collect()
    }

    /// The most of these groups that depend on each other: two stacks of layers of which neither reads the other,
    /// such as the towers of images and of words, are two kinds although they have as many layers.
    fn connected(&self, groups: &[Vec<u32>], own: &[usize]) -> Vec<usize> {
        let mut group_of: HashMap<u32, usize, BuildMix> = HashMap::default();
        for (number, at) in own.iter().enumerate() {
            group_of.extend(groups[*at].iter().map(|node| (*node, number)));
        }
        // By group: one that it depends on or that depends on it, up to one that is its own.
        let mut joined: Vec<usize> = (0..own.len()).collect();
        let root = |joined: &[usize], mut at: usize| {
            while joined[at] != at {
                at = joined[at];
            }
            at
        };
        // By node: the groups whose matmuls it depends on without matmuls of others between.
        let mut read: Vec<Vec<usize>> = Vec::with_capacity(self.graph.nodes.len());
        for at in 0..self.graph.nodes.len() {
            let operands = self.graph.operands(at as u32).iter().filter(|_| self.is_forward(at));
            let mut from: Vec<usize> = operands
                .flat_map(|own| &read[*own as usize])
                .map(|own| root(&joined, *own))
                .collect();
            from.sort_unstable();
            from.dedup();
            if let Some(number) = group_of.get(&(at as u32)) {
                let to = root(&joined, *number);
                from.iter().for_each(|own| joined[*own] = to);
                from = vec![to];
            }
            read.push(from);
        }
        let roots: Vec<usize> = (0..own.len()).map(|at| root(&joined, at)).collect();
        let size = |of: usize| roots.iter().filter(|own| **own == of).count();
        let Some(most) = roots.iter().copied().rev().max_by_key(|own| size(*own)) else {
            return Vec::new();
        };
        own.iter().zip(&roots).filter(|(_, root)| **root == most).map(|(own, _)| *own).collect()
    }

    /// Whether a matmul depends on its layer or the one before, and on no later one. One that depends on none, such
    /// as that of keys from what an encoder has made, is read in its layer first.
    fn is_chained(&self, node: u32) -> bool {
        let Some(layer) = self.layer[node as usize] else { return false };
        let operands = self.graph.operands(node).iter();
        match operands.filter_map(|own| self.before[*own as usize]).max() {
            Some(before) => before <= layer && before + 1 >= layer,
            None => {
                let users = self.graph.users(node).iter();
                let read = users.filter(|own| self.is_forward(**own as usize));
                let first = read.filter_map(|own| self.after[*own as usize]).min();
                layer == 0 || first == Some(layer)
            }
        }
    }

    /// Finds the layers before and after each node.
    fn order(&mut self) {
        let graph = self.graph;
        for at in 0..graph.nodes.len() {
            self.after[at] = None;
            let operands = graph.operands(at as u32).iter();
            let before = operands.filter_map(|own| self.before[*own as usize]).max();
            self.before[at] = before.max(self.layer[at]).filter(|_| self.is_forward(at));
        }
        for at in (0..graph.nodes.len()).rev() {
            if !self.is_forward(at) {
                continue;
            }
            let first = self.layer[at].or(self.after[at]);
            for operand in graph.operands(at as u32) {
                let after = &mut self.after[*operand as usize];
                *after = match (*after, first) {
                    (Some(own), Some(first)) => Some(own.min(first)),
                    (own, first) => own.or(first),
                };
            }
        }
    }

    /// By node of the forward pass: the last layer whose matmuls depend on it before those of further layers do.
    fn last_readers(&self) -> Vec<Option<u32>> {
        let mut last: Vec<Option<u32>> = vec![None; self.graph.nodes.len()];
        for at in (0..self.graph.nodes.len()).rev().filter(|at| self.is_forward(*at)) {
            let own = self.layer[at].or(last[at]);
            for operand in self.graph.operands(at as u32) {
                let known = &mut last[*operand as usize];
                *known = (*known).max(own);
            }
        }
        last
    }

    /// By node of the forward pass: its layer; `firsts` are the first layers of their kinds.
    fn forward(&self, firsts: &HashSet<u32, BuildMix>) -> Vec<Option<u32>> {
        let count = self.graph.nodes.len();
        let nodes = move || (0..count).filter(move |at| self.is_forward(*at));
        let is_between = |at: usize| match (self.before[at], self.after[at]) {
            (Some(before), Some(after)) => before < after && self.layer[at].is_none(),
            _ => false,
        };
        let starts = nodes().filter(|at| self.before[*at].is_none() && self.after[*at].is_some());
        let mut starts: HashSet<Like, BuildMix> = starts.map(|at| self.like(at)).collect();
        // Rows that the compiler adds have no name by which they could be told apart.
        starts.retain(|((scope, ..), ..)| *scope != ScopeTree::ROOT);
        let known: HashSet<u32, BuildMix> = self.layer.iter().flatten().copied().collect();
        let is_first = |layer: u32| firsts.contains(&layer);
        let follows = |layer: u32| known.contains(&(layer + 1)) && !is_first(layer + 1);
        // Before the first layer and after the last one only work like that of other layers is theirs.
        let is_inside = |at: usize| match (self.before[at], self.after[at]) {
            (Some(_), Some(_)) => true,
            (None, Some(after)) => !is_first(after),
            (Some(before), None) => self.layer[at].is_some() || follows(before),
            (None, None) => false,
        };
        let inside = nodes().filter(|at| is_inside(*at)).map(|at| self.like(at));
        let inside: HashSet<Like, BuildMix> = inside.collect();
        // The last layer has the products of the other layers, perhaps in other sizes. Further products, such as the
        // projection of a tower, follow the layers.
        let products: HashSet<Name, BuildMix> = inside
            .iter()
            .filter(|(_, opcode, _)| *opcode == Opcode::Dot as u16)
            .map(|(name, ..)| *name)
            .collect();
        let mut found: Vec<Option<u32>> = self.layer.clone();
        let last = self.last_readers();
        // Whether one layer of another kind alone reads a node, such as keys that a decoder makes of what an encoder
        // has made.
        let is_of_other = |at: usize, before: u32, after: u32| {
            last[at] == Some(after) && firsts.iter().any(|own| (before + 1..=after).contains(own))
        };
        // Work of the last layer that is unlike that of others, for the backward pass alone.
        let mut is_only_read_later = vec![false; count];
        let origins = &self.origins;
        // What the compiler adds, such as conversions, has no name in texts whose other rows have one, and tells
        // nothing.
        let is_named = |((scope, line, _), ..): &Like| *scope != ScopeTree::ROOT || *line > 0;
        let has_names = inside.iter().any(is_named);
        let tells = |like: &Like| is_named(like) || !has_names;
        for at in nodes().filter(|at| self.layer[*at].is_none()) {
            let operands = || self.graph.operands(at as u32).iter().map(|own| *own as usize);
            let read = operands().filter_map(|own| found[own]).max();
            let like = self.like(at);
            let is_start = starts.contains(&like);
            found[at] = match (self.before[at], self.after[at]) {
                (Some(_), after) if is_between(at) && is_start => after,
                (Some(before), Some(after)) if is_of_other(at, before, after) => Some(after),
                (Some(before), Some(after)) => {
                    // The first matmul that needs a bias or scale at the end of a layer is the next layer's, so
                    // weights do not tell the layer. Texts without names keep what their matmuls tell: an
                    // MLP with biases would otherwise have no layers that the model covers.
                    let is_told = is_named(&like);
                    let values = operands().filter(|own| !is_told || self.before[*own].is_some());
                    let read = values.filter_map(|own| found[own]).max();
                    Some(read.unwrap_or(0).clamp(before, after.max(before)))
                }
                (None, Some(after)) if !is_first(after) => Some(after),
                (None, Some(after)) if tells(&like) && inside.contains(&like) => Some(after),
                // Constants are shared with what precedes the layers, and conversions of weights, which have no names,
                // are like those in layers.
                (None, Some(_)) => {
                    let values = operands().filter(|own| origins[*own] == Origin::Values);
                    values.filter_map(|own| found[own]).max()
                }
                (None, None) => {
                    let inner = operands().filter(|own| self.graph.nodes[*own].element.is_none());
                    inner.filter_map(|own| found[own]).max()
                }
                (Some(before), None) if inside.contains(&like) => match is_start {
                    true => Some(before + 1).filter(|_| follows(before)),
                    false => read.max(Some(before)),
                },
                (Some(before), None) if follows(before) => read.max(Some(before)),
                (Some(before), None) => {
                    let is_own = |own: usize| {
                        found[own] == Some(before)
                            && (self.after[own].is_some() || is_only_read_later[own])
                    };
                    let is_further = like.1 == Opcode::Dot as u16 && !products.contains(&like.0);
                    is_only_read_later[at] = !is_further && operands().any(is_own);
                    Some(before).filter(|_| is_only_read_later[at])
                }
            };
        }
        // Biases and scales, perhaps for all rows of a value.
        let mut is_weight: Vec<bool> = Vec::with_capacity(count);
        for (at, node) in self.graph.nodes.iter().enumerate() {
            let is_same = matches!(node.opcode, Opcode::Broadcast | Opcode::Convert);
            let of = self.graph.operands(at as u32).first();
            let is_spread = is_same && of.is_some_and(|own| is_weight[*own as usize]);
            is_weight.push(origins[at] == Origin::Weight || is_spread);
        }
        // Such a row before the first layer belongs to the layer that reads it.
        for at in nodes().rev().filter(|at| self.before[*at].is_none()) {
            let users = self.graph.users(at as u32).iter().map(|own| *own as usize);
            let users = users.filter(|own| self.is_forward(*own));
            let layers: Vec<Option<u32>> = users.map(|own| found[own]).collect();
            let Some(is_first) = self.after[at].map(is_first) else { continue };
            if is_first && found[at].is_none() && !tells(&self.like(at)) {
                let layers: Option<Vec<u32>> = layers.into_iter().collect();
                found[at] = layers.and_then(|own| own.into_iter().min());
            } else if !is_first && is_weight[at] {
                // The first matmul that needs a bias at the end of a layer is the next layer's.
                found[at] = layers.into_iter().flatten().min().or(found[at]);
            }
        }
        found
    }

    /// By node that is a weight, perhaps gathered or converted: the first layer whose matmuls multiply by that weight.
    fn multiplied_in(&self) -> Vec<Option<u32>> {
        let graph = self.graph;
        let mut found = vec![None; graph.nodes.len()];
        let weights = || (0..graph.nodes.len()).filter(|at| self.origins[*at] == Origin::Weight);
        for at in weights().rev() {
            let users = graph.users(at as u32).iter().map(|own| *own as usize);
            let users = users.filter(|own| self.is_forward(*own));
            found[at] = users.filter_map(|own| self.layer[own].or(found[own])).min();
        }
        // It may be gathered once more for the backward pass alone.
        for at in weights() {
            let made_from = graph.operands(at as u32).iter().map(|own| *own as usize);
            found[at] = found[at].or(made_from.filter_map(|own| found[own]).max());
        }
        found
    }

    /// By node: its layer; `forward` are those of the forward pass.
    fn backward(&self, forward: &[Option<u32>]) -> Vec<Option<u32>> {
        let graph = self.graph;
        let multiplied_in = self.multiplied_in();
        let mut found = forward.to_vec();
        // Whether a node depends on a backward matmul.
        let mut is_gradient = vec![false; graph.nodes.len()];
        // By node that does not: the last layer whose values it is made from.
        let mut made_in = vec![None; graph.nodes.len()];
        // By the same nodes: the layer whose matmul reads it first. The gradient of a weight multiplies by what the
        // matmul has read, which the layer before may have made.
        let mut read_in = vec![None; graph.nodes.len()];
        // Whether it is made from what follows the last layer, as the gradient of the loss is.
        let mut is_behind = vec![false; graph.nodes.len()];
        for (at, node) in graph.nodes.iter().enumerate() {
            let operands = graph.operands(at as u32);
            // Work without a name may be of either pass.
            if self.is_forward(at) && !operands.iter().any(|own| is_gradient[*own as usize]) {
                let inside = forward[at].or(self.after[at]);
                made_in[at] = inside.or(self.before[at]);
                read_in[at] = self.after[at].or(made_in[at]).or(multiplied_in[at]);
                is_behind[at] = inside.is_none() && made_in[at].is_some();
                continue;
            }
            let read = operands.iter().map(|own| *own as usize);
            is_behind[at] = read.clone().any(|own| is_behind[own]);
            let known = read.clone().filter(|own| !is_gradient[*own]);
            made_in[at] = known.clone().filter_map(|own| made_in[own]).max();
            read_in[at] = known.filter_map(|own| read_in[own]).max();
            let depends = read.clone().any(|own| is_gradient[own]);
            let is_matmul = node.opcode.is_matmul() && self.phases[at] == Phase::Backward;
            is_gradient[at] = depends || is_matmul;
            found[at] = match self.phases[at] {
                Phase::Backward if !depends && is_behind[at] => None,
                // Gathers of weights among others; the first matmul of the pass is that of the head.
                Phase::Recompute | Phase::Backward if !depends && !is_matmul => made_in[at],
                _ if is_matmul && depends => read_in[at],
                _ => read.filter(|own| is_gradient[*own]).filter_map(|own| found[own]).min(),
            };
        }
        // What is recomputed from the input of a layer is the layer's, as what it is recomputed for.
        let is_again = |at: usize| self.phases[at] == Phase::Recompute;
        for at in (0..graph.nodes.len()).rev().filter(|at| is_again(*at)) {
            let users = graph.users(at as u32).iter().map(|own| *own as usize);
            let users = users.filter(|own| is_again(*own)).filter_map(|own| found[own]);
            found[at] = users.max().or(found[at]);
        }
        found
    }
}
