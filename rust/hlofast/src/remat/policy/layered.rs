//! The layers of a program that repeats them without a loop, by the numbers in their scopes:
//! `layer_0`, `blocks[3]`.

use super::graph::Graph;
use crate::flow::{Attribution, Phase, ScopeTree, without_layer_numbers};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Row};
use hashbrown::HashMap;

/// No layer.
const NONE: u32 = u32::MAX;
/// Components of paths that JAX inserts around layers.
const INSERTED: [&[u8]; 5] = [b"", b"checkpoint", b"rematted_computation", b"remat", b"remat2"];

/// Layers that differ only in their numbers.
#[derive(Debug)]
pub struct Kind {
    /// The first row of the first layer.
    pub first: Row,
    /// The layers.
    pub layers: Vec<u32>,
}

/// What tells the values of one layer apart: the operation name without layer numbers and the place
/// in the source.
pub type Name = (u32, i32, i32);

/// The layers of the entry computation.
#[derive(Debug)]
pub struct Layers {
    /// The kinds of layers, by their first rows.
    pub kinds: Vec<Kind>,
    /// By layer: its kind.
    kind: Vec<u32>,
    /// By scope: its layer.
    by_scope: Vec<u32>,
    /// By row: its scope.
    scope: Vec<u32>,
    /// By scope: the first scope that differs only in layer numbers.
    merged: Vec<u32>,
}

impl Layers {
    /// Number of layers.
    pub fn count(&self) -> usize {
        self.kind.len()
    }

    /// The kind of a layer.
    pub fn kind_of(&self, layer: u32) -> u32 {
        self.kind[layer as usize]
    }

    fn scope_of(&self, row: Row) -> u32 {
        self.scope.get(row.0 as usize).copied().unwrap_or(ScopeTree::ROOT)
    }

    /// Whether the row has an operation name.
    pub fn knows(&self, row: Row) -> bool {
        self.scope_of(row) != ScopeTree::ROOT
    }

    /// The layer in whose scope the row is.
    pub fn of_row(&self, row: Row) -> Option<u32> {
        let layer = self.by_scope.get(self.scope_of(row) as usize).copied();
        layer.filter(|layer| *layer != NONE)
    }

    /// The name of a row's value within its layer.
    pub fn name_of(&self, module: &Module, row: Row) -> Name {
        let columns = module.metadata_columns();
        let of = |column: &[i32]| column.get(row.0 as usize).copied().unwrap_or(-1);
        let merged = self.merged.get(self.scope_of(row) as usize).copied().unwrap_or(0);
        (merged, of(&columns.source_line), of(&columns.frame))
    }
}

/// The layers that forward matmuls of `graph` are in; None if no two layers differ only in their
/// numbers.
pub fn layers(module: &Module, attribution: &Attribution, graph: &Graph) -> Option<Layers> {
    let (mut by_scope, kinds) = numbered(module, &attribution.scopes);
    let phases = attribution.phases(module);
    let scope = attribution.scope.get(..module.row_count()).unwrap_or_default().to_vec();
    let mut firsts: HashMap<u32, Row, BuildMix> = HashMap::default();
    let mut order: Vec<u32> = Vec::new();
    for node in graph.nodes.iter().filter(|node| node.opcode.is_matmul()) {
        let at = node.row.0 as usize;
        let is_forward = phases.get(at) == Some(&Phase::Forward);
        let own = scope.get(at).map_or(NONE, |scope| by_scope[*scope as usize]);
        if is_forward && own != NONE && !firsts.contains_key(&own) {
            firsts.insert(own, node.row);
            order.push(own);
        }
    }
    let mut counts: HashMap<u32, u32, BuildMix> = HashMap::default();
    order.iter().for_each(|own| *counts.entry(kinds[*own as usize]).or_default() += 1);
    order.retain(|own| counts[&kinds[*own as usize]] > 1);
    if order.is_empty() {
        return None;
    }
    let mut renumbered: HashMap<u32, u32, BuildMix> = HashMap::default();
    let mut known: HashMap<u32, u32, BuildMix> = HashMap::default();
    let mut found = Layers {
        kinds: Vec::new(),
        kind: Vec::new(),
        by_scope: Vec::new(),
        scope,
        merged: attribution.scopes.merged_layers(module),
    };
    for (layer, own) in (0u32..).zip(&order) {
        renumbered.insert(*own, layer);
        let number = *known.entry(kinds[*own as usize]).or_insert(found.kinds.len() as u32);
        if number as usize == found.kinds.len() {
            found.kinds.push(Kind { first: firsts[own], layers: Vec::new() });
        }
        found.kinds[number as usize].layers.push(layer);
        found.kind.push(number);
    }
    for own in &mut by_scope {
        *own = renumbered.get(own).copied().unwrap_or(NONE);
    }
    found.by_scope = by_scope;
    Some(found)
}

/// By scope the numbered scope that it lies in, and by numbered scope its kind. Forward and backward
/// work of a layer are in scopes that differ in the transformations around names.
fn numbered(module: &Module, scopes: &ScopeTree) -> (Vec<u32>, Vec<u32>) {
    let mut paths: HashMap<(u32, Vec<u8>), u32, BuildMix> = HashMap::default();
    let mut path_of: Vec<u32> = Vec::with_capacity(scopes.len());
    let mut by_scope: Vec<u32> = Vec::with_capacity(scopes.len());
    let mut numbers: HashMap<u32, u32, BuildMix> = HashMap::default();
    let mut kinds: Vec<u32> = Vec::new();
    for scope in 0..scopes.len() as u32 {
        if scope == ScopeTree::ROOT {
            path_of.push(0);
            by_scope.push(NONE);
            continue;
        }
        let parent = scopes.parent(scope) as usize;
        let name = inside(scopes.component(module, scope));
        let (above, around) = (path_of[parent], by_scope[parent]);
        if around != NONE || INSERTED.contains(&name) {
            path_of.push(above);
            by_scope.push(around);
            continue;
        }
        let mut path = |name: &[u8]| {
            let next = paths.len() as u32 + 1;
            *paths.entry((above, name.to_vec())).or_insert(next)
        };
        let own = path(name);
        path_of.push(own);
        let merged = without_layer_numbers(name);
        if *merged == *name {
            by_scope.push(NONE);
            continue;
        }
        let kind = path(&merged);
        let next = kinds.len() as u32;
        let number = *numbers.entry(own).or_insert(next);
        if number == next {
            kinds.push(kind);
        }
        by_scope.push(number);
    }
    (by_scope, kinds)
}

/// A component without the transformations around its name: `layer_0` of `transpose(jvp(layer_0))`.
fn inside(component: &[u8]) -> &[u8] {
    let mut rest = component;
    while let Some(open) = rest.iter().position(|byte| *byte == b'(') {
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        match rest.strip_suffix(b")") {
            Some(without) if open > 0 && rest[..open].iter().all(is_word) => {
                rest = &without[open + 1..];
            }
            _ => break,
        }
    }
    rest
}
