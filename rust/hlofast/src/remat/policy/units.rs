//! What one `jax.checkpoint` is around in layers that a program repeats without a loop: a whole layer, or
//! each of several functions that make up one.
//!
//! The call stacks of the rows of a layer tell which function calls which. If all of them are in one
//! function that computes nothing else, that is the layer's. Otherwise the loop of the program calls
//! several functions for a layer, such as one for attention and one for the MLP, and a text without
//! `jax.checkpoint` cannot tell which of them will be checkpointed. If each is, what one leaves to the next
//! is kept too, and the next starts from that instead of from the layer's input.
//!
//! In a text with `jax.checkpoint` functions are checkpointed each if nothing recomputes what one leaves to
//! the next.

use super::graph::Graph;
use super::layered::{Kind, Layers};
use super::named::is_recomputed;
use crate::flow::Phase;
use crate::ir::decode::StackFrames;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Row};
use hashbrown::{HashMap, HashSet};

/// Limit on the frames of a call stack that are followed.
const MOST_FRAMES: usize = 256;
/// Limit on the functions of a layer.
const MOST_UNITS: usize = 16;

/// A function that computes a layer or a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    /// The kind of layers.
    pub kind: u32,
    /// The frame that calls it; 0 if the text does not show it.
    pub call: u32,
    /// A frame in it.
    pub inner: u32,
}

/// What tells a function that is called for a layer: the frame that calls it, and its name.
type Key = (u32, i64);

/// Call stacks.
struct Stacks<'a> {
    module: &'a Module,
    tables: &'a StackFrames,
    /// By frame: the stack, outermost first.
    known: HashMap<u32, Vec<u32>, BuildMix>,
}

impl<'a> Stacks<'a> {
    fn new(module: &'a Module) -> Self {
        Self { module, tables: module.frame_tables(), known: HashMap::default() }
    }

    /// The stack of a row, outermost first.
    fn of(&mut self, row: Row) -> &[u32] {
        let columns = self.module.metadata_columns();
        let own = columns.frame.get(row.0 as usize).copied().unwrap_or(0);
        let own = u32::try_from(own).unwrap_or(0);
        let tables = self.tables;
        self.known.entry(own).or_insert_with(|| {
            let ids = tables.stack(i64::from(own)).take(MOST_FRAMES);
            let mut stack: Vec<u32> = ids.filter_map(|id| u32::try_from(id).ok()).collect();
            stack.reverse();
            stack
        })
    }

    /// The number of the function that a frame is in.
    fn function(&self, frame: u32) -> i64 {
        self.tables.function(i64::from(frame))
    }
}

/// The calls of a kind of layers.
struct Calls {
    /// The functions, in the order in which they run.
    keys: Vec<Key>,
    /// For each a frame in it.
    inner: Vec<u32>,
    /// The function that calls them, and its depth in the stacks.
    caller: (i64, usize),
    /// A stack down to the caller.
    above: Vec<u32>,
}

/// The functions of the layers of `graph`, and whether each is taken by itself. Layers are split into those
/// of their functions if the text does so, or if `is_apart` and it cannot tell.
pub fn with_units(
    module: &Module,
    graph: &Graph,
    mut layers: Layers,
    phase: impl Fn(Row) -> Phase,
    is_checkpointed: bool,
    is_apart: bool,
) -> Layers {
    let phases: Vec<Phase> = graph.nodes.iter().map(|node| phase(node.row)).collect();
    let mut stacks = Stacks::new(module);
    if stacks.tables.is_empty() {
        return layers;
    }
    // By kind: its functions and, by node, which of them computes it.
    let mut split: Vec<Option<Vec<Option<u32>>>> = Vec::with_capacity(layers.kinds.len());
    let mut found: Vec<Vec<Unit>> = Vec::with_capacity(layers.kinds.len());
    for kind in 0..layers.kinds.len() as u32 {
        let finder = Finder {
            module,
            graph,
            layers: &layers,
            phase: &phase,
            phases: &phases,
            kind,
            is_checkpointed,
        };
        let Some(calls) = finder.calls(&mut stacks) else {
            found.push(Vec::new());
            split.push(None);
            continue;
        };
        let unit = |(key, inner): (&Key, &u32)| Unit { kind, call: key.0, inner: *inner };
        let own: Vec<Unit> = calls.keys.iter().zip(&calls.inner).map(unit).collect();
        let of_nodes = (own.len() > 1)
            .then(|| finder.assign(&calls, &mut stacks))
            .flatten()
            .filter(|of| finder.is_in_order(of));
        let is_one = match (&of_nodes, is_checkpointed) {
            (None, _) => true,
            (Some(of), true) => finder.recomputes_between(of, &mut stacks),
            (Some(_), false) => !finder.is_loops(&calls, &mut stacks),
        };
        match of_nodes.filter(|_| !is_one) {
            Some(of) if is_checkpointed || is_apart => {
                found.push(own);
                split.push(Some(of));
            }
            Some(_) => {
                found.push(own);
                split.push(None);
            }
            None => {
                found.push(finder.whole(&calls, &mut stacks).into_iter().collect());
                split.push(None);
            }
        }
    }
    layers.is_ambiguous = found.iter().zip(&split).any(|(own, of)| own.len() > 1 && of.is_none());
    layers.units = found.into_iter().flatten().collect();
    if split.iter().any(Option::is_some) {
        layers.split(graph, &split);
    }
    layers
}

/// The functions of one kind of layers.
struct Finder<'a> {
    module: &'a Module,
    graph: &'a Graph,
    layers: &'a Layers,
    phase: &'a dyn Fn(Row) -> Phase,
    /// By node.
    phases: &'a [Phase],
    kind: u32,
    is_checkpointed: bool,
}

impl Finder<'_> {
    /// The layer of a node, if it is of this kind.
    fn layer(&self, at: usize) -> Option<u32> {
        let own = self.layers.of_row(self.graph.nodes[at].row);
        own.filter(|layer| self.layers.kind_of(*layer) == self.kind)
    }

    /// Whether `jax.checkpoint` recomputes a node.
    fn is_again(&self, at: usize) -> bool {
        is_recomputed(self.module, self.graph.nodes[at].row, self.phases[at])
    }

    /// Whether the stack of a node tells the calls of its layer: the forward work of a function under
    /// `jax.checkpoint` is traced by itself, so that its stacks lack the call.
    fn tells(&self, at: usize) -> bool {
        let is_its = match self.is_checkpointed {
            true => self.is_again(at),
            false => self.phases[at] == Phase::Forward && self.graph.nodes[at].opcode.is_matmul(),
        };
        is_its && self.layer(at).is_some()
    }

    fn calls(&self, stacks: &mut Stacks<'_>) -> Option<Calls> {
        let telling: Vec<usize> =
            (0..self.graph.nodes.len()).filter(|at| self.tells(*at)).collect();
        let mut above: Option<Vec<u32>> = None;
        for at in &telling {
            let own = stacks.of(self.graph.nodes[*at].row);
            match &mut above {
                _ if own.is_empty() => {}
                None => above = Some(own.to_vec()),
                Some(above) => {
                    let alike = above.iter().zip(own).take_while(|(a, b)| a == b).count();
                    above.truncate(alike);
                }
            }
        }
        let mut above = above?;
        let mut below: Option<i64> = None;
        let mut is_one = true;
        for at in &telling {
            let own = stacks.of(self.graph.nodes[*at].row);
            let next = own.get(above.len()).copied();
            let next = next.map(|frame| stacks.function(frame));
            is_one &= next.is_some_and(|own| *below.get_or_insert(own) == own);
        }
        let caller = match below.filter(|_| is_one) {
            Some(function) => (function, above.len()),
            None => {
                let frame = above.pop()?;
                (stacks.function(frame), above.len())
            }
        };
        let mut calls = Calls { keys: Vec::new(), inner: Vec::new(), caller, above };
        let mut found: Vec<(Key, u32)> = Vec::new();
        for at in &telling {
            let row = self.graph.nodes[*at].row;
            let own = key_of(&calls, stacks, row);
            let own = own.filter(|(key, _)| found.iter().all(|(known, _)| known != key));
            found.extend(own.filter(|_| found.len() < MOST_UNITS));
        }
        // What is recomputed runs in the opposite order.
        let mut firsts: HashMap<i64, usize, BuildMix> = HashMap::default();
        for (at, node) in self.graph.nodes.iter().enumerate() {
            if self.phases[at] == Phase::Forward && self.layer(at).is_some() {
                for frame in stacks.of(node.row).to_vec() {
                    firsts.entry(stacks.function(frame)).or_insert(at);
                }
            }
        }
        if self.is_checkpointed {
            found.sort_by_key(|((_, function), _)| firsts.get(function).copied());
        }
        for (key, inner) in found {
            calls.keys.push(key);
            calls.inner.push(inner);
        }
        Some(calls)
    }

    /// By node: the function that computes it; None if that is unknown or not all work is in functions.
    fn assign(&self, calls: &Calls, stacks: &mut Stacks<'_>) -> Option<Vec<Option<u32>>> {
        let graph = self.graph;
        let mut functions: HashMap<i64, u32, BuildMix> = HashMap::default();
        for (number, (_, function)) in (0u32..).zip(&calls.keys) {
            // Two calls of one function cannot be told apart where stacks lack the call.
            if functions.insert(*function, number).is_some() {
                return None;
            }
        }
        let mut unit: Vec<Option<u32>> = vec![None; graph.nodes.len()];
        for (at, node) in graph.nodes.iter().enumerate() {
            if self.layer(at).is_none() {
                continue;
            }
            let stack = stacks.of(node.row).to_vec();
            let mut own = stack.iter().filter_map(|frame| functions.get(&stacks.function(*frame)));
            unit[at] = own.next().copied();
            // Other work may have the place of what it is moved or combined with.
            let is_product = node.opcode.is_matmul() && !stack.is_empty();
            if unit[at].is_none() && is_product && self.phases[at] == Phase::Forward {
                return None;
            }
        }
        let is_alike = |a: usize, b: usize| self.layer(a) == self.layer(b);
        for at in 0..graph.nodes.len() {
            if unit[at].is_none() && self.layer(at).is_some() {
                let read = graph.operands(at as u32).iter().map(|own| *own as usize);
                let read = read.filter(|own| is_alike(*own, at)).filter_map(|own| unit[own]);
                unit[at] = match self.phases[at] {
                    Phase::Backward => read.min(),
                    _ => read.max(),
                };
            }
        }
        for at in (0..graph.nodes.len()).rev() {
            if unit[at].is_none() && self.layer(at).is_some() {
                let users = graph.users(at as u32).iter().map(|own| *own as usize);
                let users = users.filter(|own| is_alike(*own, at)).filter_map(|own| unit[own]);
                unit[at] = users.min();
            }
        }
        Some(unit)
    }

    /// Whether every function has forward matmuls in every layer, and reads nothing of later ones.
    fn is_in_order(&self, unit: &[Option<u32>]) -> bool {
        let graph = self.graph;
        let mut is_known: HashSet<(u32, u32), BuildMix> = HashSet::default();
        for (at, node) in graph.nodes.iter().enumerate() {
            let (Some(layer), Some(own)) = (self.layer(at), unit[at]) else { continue };
            if self.phases[at] != Phase::Forward {
                continue;
            }
            if node.opcode.is_matmul() {
                is_known.insert((layer, own));
            }
            let mut read = graph.operands(at as u32).iter().map(|own| *own as usize);
            let is_later = |from: usize| {
                self.phases[from] == Phase::Forward
                    && self.layer(from) == Some(layer)
                    && unit[from].is_some_and(|from| from > own)
            };
            if read.any(is_later) {
                return false;
            }
        }
        let units = unit.iter().flatten().max().map_or(0, |last| *last as usize + 1);
        is_known.len() == units * self.layers.kinds[self.kind as usize].layers.len()
    }

    /// Whether the text recomputes what one function of a layer leaves to the next.
    fn recomputes_between(&self, unit: &[Option<u32>], stacks: &mut Stacks<'_>) -> bool {
        let graph = self.graph;
        let columns = self.module.metadata_columns();
        let line = |row: Row, stacks: &mut Stacks<'_>| {
            let line = columns.source_line.get(row.0 as usize).copied().unwrap_or(-1);
            let function = stacks.of(row).last().copied();
            let function = function.map_or(0, |frame| stacks.function(frame));
            let array = self.module.shapes().array(self.module.shape(row));
            (function, line, array.and_then(|array| array.elements()).unwrap_or(0))
        };
        let mut left: HashSet<(i64, i32, u64), BuildMix> = HashSet::default();
        for at in 0..graph.nodes.len() {
            if self.phases[at] != Phase::Forward || self.layer(at).is_none() {
                continue;
            }
            let is_next = |user: &u32| {
                let user = *user as usize;
                self.phases[user] == Phase::Forward
                    && self.layer(user) == self.layer(at)
                    && unit[user] > unit[at]
            };
            if unit[at].is_some() && graph.users(at as u32).iter().any(is_next) {
                left.insert(line(graph.nodes[at].row, stacks));
            }
        }
        // What is recomputed from the same values is one node.
        let mut rows = self.module.rows();
        rows.any(|row| {
            is_recomputed(self.module, row, (self.phase)(row)) && left.contains(&line(row, stacks))
        })
    }

    /// Whether the function that calls those of a layer computes other work too: the loop is in it.
    fn is_loops(&self, calls: &Calls, stacks: &mut Stacks<'_>) -> bool {
        let columns = self.module.metadata_columns();
        let line = |row: Row| columns.source_line.get(row.0 as usize).copied().unwrap_or(-1);
        let nodes = || (0..self.graph.nodes.len()).filter(|at| self.phases[*at] == Phase::Forward);
        let row = |at: usize| self.graph.nodes[at].row;
        let own = nodes().filter(|at| self.layers.of_row(row(*at)).is_some());
        let own: HashSet<i32, BuildMix> = own.map(|at| line(row(at))).collect();
        let (function, depth) = calls.caller;
        nodes().filter(|at| self.layers.of_row(row(*at)).is_none()).any(|at| {
            let stack = stacks.of(row(at)).to_vec();
            !own.contains(&line(row(at)))
                && stack.starts_with(&calls.above)
                && stack.get(depth).is_some_and(|frame| stacks.function(*frame) == function)
        })
    }

    /// The function that is one layer, if there is one.
    fn whole(&self, calls: &Calls, stacks: &mut Stacks<'_>) -> Option<Unit> {
        if self.is_loops(calls, stacks) {
            return None;
        }
        let kind = self.kind;
        let first = (0..self.graph.nodes.len()).find(|at| self.tells(*at))?;
        let stack = stacks.of(self.graph.nodes[first].row);
        let inner = stack.get(calls.caller.1).copied()?;
        Some(Unit { kind, call: calls.above.last().copied().unwrap_or(0), inner })
    }
}

/// The call of a function for the layer of a row, and a frame in that function; None if its caller itself
/// computes the row.
fn key_of(calls: &Calls, stacks: &mut Stacks<'_>, row: Row) -> Option<(Key, u32)> {
    let depth = calls.caller.1;
    let stack = stacks.of(row);
    let (call, inner) = (*stack.get(depth)?, *stack.get(depth + 1)?);
    Some(((call, stacks.function(inner)), inner))
}

impl Layers {
    /// Replaces layers by those of their functions; by kind, the function of each node.
    fn split(&mut self, graph: &Graph, split: &[Option<Vec<Option<u32>>>]) {
        let units = |kind: u32| {
            let of = split[kind as usize].iter().flatten().flatten();
            of.max().map_or(1, |last| last + 1)
        };
        let old: Vec<u32> = (0..self.count() as u32).map(|layer| self.kind_of(layer)).collect();
        // The first of the new layers of each.
        let mut firsts: Vec<u32> = Vec::with_capacity(old.len());
        let mut new_kinds: Vec<Kind> = Vec::new();
        let first_kind: Vec<u32> = (0..self.kinds.len() as u32)
            .scan(0, |next, kind| {
                let own = *next;
                *next += units(kind);
                Some(own)
            })
            .collect();
        for kind in 0..self.kinds.len() as u32 {
            let first = self.kinds[kind as usize].first;
            new_kinds.extend((0..units(kind)).map(|_| Kind { first, layers: Vec::new() }));
        }
        let mut kind_of: Vec<u32> = Vec::new();
        for kind in &old {
            firsts.push(kind_of.len() as u32);
            for unit in 0..units(*kind) {
                let own = first_kind[*kind as usize] + unit;
                new_kinds[own as usize].layers.push(kind_of.len() as u32);
                kind_of.push(own);
            }
        }
        let mut is_first_known: HashSet<u32, BuildMix> = HashSet::default();
        let mut of_rows: HashMap<Row, u32, BuildMix> = HashMap::default();
        for (at, node) in graph.nodes.iter().enumerate() {
            let Some(layer) = self.of_row(node.row) else { continue };
            let kind = old[layer as usize];
            let unit = split[kind as usize].as_ref().map_or(Some(0), |of| of[at]).unwrap_or(0);
            let own = firsts[layer as usize] + unit;
            of_rows.entry(node.row).or_insert(own);
            if node.opcode.is_matmul() && is_first_known.insert(kind_of[own as usize]) {
                new_kinds[kind_of[own as usize] as usize].first = node.row;
            }
        }
        let mut next: HashMap<u32, u32, BuildMix> = HashMap::default();
        for unit in &mut self.units {
            let of = split[unit.kind as usize].is_some();
            let number = next.entry(unit.kind).or_insert(0);
            let own = first_kind[unit.kind as usize] + if of { *number } else { 0 };
            *number += 1;
            unit.kind = own;
        }
        self.relabel(new_kinds, kind_of, |row, layer| {
            of_rows.get(&row).copied().unwrap_or(firsts[layer as usize])
        });
    }
}
