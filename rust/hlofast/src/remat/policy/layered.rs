//! The layers of a program that repeats them without a loop, by the numbers in their scopes:
//! `layer_0`, `blocks[3]`; where no scope has a number, by structure (`nameless.rs`).

use super::graph::Graph;
use super::named::is_early_checkpoint;
use super::nameless;
use super::units::Unit;
use crate::flow::{Attribution, Phase, ScopeTree, without_layer_numbers};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Row};
use hashbrown::{HashMap, HashSet};
use std::borrow::Cow;
use std::collections::BTreeSet;

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
    /// By row: its layer.
    layer: Vec<u32>,
    /// By row: whether its layer is known, if it is in one.
    is_known: Vec<bool>,
    /// By row: its scope.
    scope: Vec<u32>,
    /// By scope: the first scope that differs only in layer numbers.
    merged: Vec<u32>,
    /// The functions that compute layers, in the order in which they run; none for kinds of layers
    /// whose functions are unknown.
    pub units: Vec<Unit>,
    /// Whether several of them are taken as one layer because the text does not tell how they are checkpointed.
    pub is_ambiguous: bool,
}

impl Layers {
    /// Without layers, but with the names of rows.
    fn of_no_row(module: &Module, attribution: &Attribution, merged: Vec<u32>) -> Self {
        let scope = attribution.scope.get(..module.row_count()).unwrap_or_default().to_vec();
        Layers {
            kinds: Vec::new(),
            kind: Vec::new(),
            layer: vec![NONE; scope.len()],
            is_known: vec![false; scope.len()],
            scope,
            merged,
            units: Vec::new(),
            is_ambiguous: false,
        }
    }

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

    /// Whether the row has an operation name, or its layer is known otherwise.
    pub fn knows(&self, row: Row) -> bool {
        self.is_known.get(row.0 as usize).copied().unwrap_or(false)
    }

    /// The layer that the row is in.
    pub fn of_row(&self, row: Row) -> Option<u32> {
        self.layer.get(row.0 as usize).copied().filter(|layer| *layer != NONE)
    }

    /// Sets the kinds of layers and the layers of rows. A row of several nodes, such as a call that is
    /// opened, is in the first layer that one of them is in: constants in it are in none.
    pub fn set(&mut self, kind: Vec<u32>, layers: impl Iterator<Item = (Row, Option<u32>)>) {
        self.kind = kind;
        for (row, layer) in layers {
            let at = row.0 as usize;
            let Some(known) = self.is_known.get_mut(at) else { continue };
            if !*known || self.layer[at] == NONE {
                *known = true;
                self.layer[at] = layer.unwrap_or(NONE);
            }
        }
    }

    /// Replaces the layers; `new` tells that of a row in one of the old layers.
    pub fn relabel(&mut self, kinds: Vec<Kind>, kind: Vec<u32>, new: impl Fn(Row, u32) -> u32) {
        (self.kinds, self.kind) = (kinds, kind);
        for (row, layer) in (0u32..).zip(&mut self.layer) {
            if *layer != NONE {
                *layer = new(Row(row), *layer);
            }
        }
    }

    /// The name of a row's value within its layer.
    pub fn name_of(&self, module: &Module, row: Row) -> Name {
        let columns = module.metadata_columns();
        let of = |column: &[i32]| column.get(row.0 as usize).copied().unwrap_or(-1);
        let merged = self.merged.get(self.scope_of(row) as usize).copied().unwrap_or(0);
        (merged, of(&columns.source_line), of(&columns.frame))
    }
}

/// The layers that forward matmuls of `graph` are in; None if no two layers are alike.
pub fn layers(module: &Module, attribution: &Attribution, graph: &Graph) -> Option<Layers> {
    let numbered = numbered_layers(module, attribution, graph, Numbers::OfLayers);
    let numbered =
        numbered.or_else(|| numbered_layers(module, attribution, graph, Numbers::OfClasses));
    numbered.or_else(|| {
        let phases = attribution.phases(module);
        let phase = |row: Row| phases.get(row.0 as usize).copied().unwrap_or_default();
        let of = |merged| {
            let names = Layers::of_no_row(module, attribution, merged);
            nameless::layers(module, graph, names, phase)
        };
        // Scopes may have numbers that are not known as those of layers: `attn_3`.
        of(attribution.scopes.merged_layers(module))
            .or_else(|| of(attribution.scopes.merged_numbers(module)))
    })
}

/// Which numbers in scopes are those of layers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbers {
    /// Those after words such as `layer` or `block`.
    OfLayers,
    /// Those that Flax gives to the modules of a class in the order in which their parent makes them: `Bottleneck_3`.
    /// `Conv_1` has one too, so only modules of several products are layers.
    OfClasses,
}

impl Numbers {
    /// A component without such numbers.
    fn without(self, component: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Numbers::OfLayers => without_layer_numbers(component),
            Numbers::OfClasses => without_class_numbers(component),
        }
    }
}

/// The layers whose scopes differ only in their numbers.
fn numbered_layers(
    module: &Module,
    attribution: &Attribution,
    graph: &Graph,
    numbers: Numbers,
) -> Option<Layers> {
    let (mut by_scope, kinds) = numbered(module, &attribution.scopes, numbers);
    let phases = attribution.phases(module);
    let scope = attribution.scope.get(..module.row_count()).unwrap_or_default().to_vec();
    let mut firsts: HashMap<u32, Row, BuildMix> = HashMap::default();
    let mut order: Vec<u32> = Vec::new();
    let mut products: HashMap<u32, usize, BuildMix> = HashMap::default();
    for node in graph.nodes.iter().filter(|node| node.opcode.is_matmul()) {
        let at = node.row.0 as usize;
        if phases.get(at) != Some(&Phase::Forward) {
            continue;
        }
        let own = scope.get(at).map_or(NONE, |scope| by_scope[*scope as usize]);
        *products.entry(own).or_default() += 1;
        if own != NONE && !firsts.contains_key(&own) {
            firsts.insert(own, node.row);
            order.push(own);
        }
    }
    if numbers == Numbers::OfClasses {
        let alone = order.iter().filter(|own| products[*own] < 2);
        let alone: HashSet<u32, BuildMix> = alone.map(|own| kinds[*own as usize]).collect();
        order.retain(|own| !alone.contains(&kinds[*own as usize]));
    }
    let mut counts: HashMap<u32, u32, BuildMix> = HashMap::default();
    order.iter().for_each(|own| *counts.entry(kinds[*own as usize]).or_default() += 1);
    order.retain(|own| counts[&kinds[*own as usize]] > 1);
    if order.is_empty() {
        return None;
    }
    // Layers have most of the matmuls; modules with fewer are parts of layers, or heads.
    let all: usize = products.values().sum();
    let own: usize = order.iter().map(|own| products[own]).sum();
    if numbers == Numbers::OfClasses && own * 2 < all {
        return None;
    }
    let mut renumbered: HashMap<u32, u32, BuildMix> = HashMap::default();
    let mut known: HashMap<u32, u32, BuildMix> = HashMap::default();
    let scopes = &attribution.scopes;
    let merged = match numbers {
        Numbers::OfLayers => scopes.merged_layers(module),
        Numbers::OfClasses => {
            let order: HashSet<u32, BuildMix> = order.iter().copied().collect();
            let classes =
                (0..scopes.len() as u32).filter(|at| order.contains(&by_scope[*at as usize]));
            let classes = classes.map(|at| inside(scopes.component(module, at)));
            let classes = classes.filter_map(|own| Some(class_of(own)?.to_vec()));
            let classes: BTreeSet<Vec<u8>> = classes.collect();
            scopes.merged(module, |own| {
                match class_of(inside(own)).map(|own| classes.contains(own)) {
                    Some(true) => without_class_numbers(own),
                    _ => Cow::Borrowed(own),
                }
            })
        }
    };
    let mut found = Layers::of_no_row(module, attribution, merged);
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
    let layer_of = |scope: &u32| by_scope.get(*scope as usize).copied().unwrap_or(NONE);
    found.layer = scope.iter().map(layer_of).collect();
    found.is_known = scope.iter().map(|scope| *scope != ScopeTree::ROOT).collect();
    Some(found)
}

/// By scope the numbered scope that it lies in, and by numbered scope its kind. Forward and backward
/// work of a layer are in scopes that differ in the transformations around names.
fn numbered(module: &Module, scopes: &ScopeTree, of: Numbers) -> (Vec<u32>, Vec<u32>) {
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
        let component = scopes.component(module, scope);
        let name = inside(component);
        let (above, around) = (path_of[parent], by_scope[parent]);
        if around != NONE || INSERTED.contains(&name) || is_early_checkpoint(component) {
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
        let merged = of.without(name);
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

/// The class of a module that Flax has named: `Bottleneck` of `Bottleneck_3`.
fn class_of(component: &[u8]) -> Option<&[u8]> {
    let digits = component.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let class = component[..component.len() - digits].strip_suffix(b"_")?;
    let is_name = class.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    (digits > 0 && is_name && class.first()?.is_ascii_uppercase()).then_some(class)
}

/// A component with `*` for the number that Flax gives to a module.
fn without_class_numbers(component: &[u8]) -> Cow<'_, [u8]> {
    let name = inside(component);
    match class_of(name) {
        Some(class) => Cow::Owned([class, b"_*"].concat()),
        None => Cow::Borrowed(component),
    }
}

/// A component without the transformations around its name: `layer_0` of `transpose(jvp(layer_0))`.
pub fn inside(component: &[u8]) -> &[u8] {
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
