//! Which values of layers without a loop are one value of the program.
//!
//! A name in a layer's function reaches a value in all layers that call the function. XLA may give the
//! value another form in one of them: another shape, order of dimensions, type, layout or memory space, or
//! another collective that adds its partial products up. So a product is known by what the program shows:
//! its scope without layer numbers, equation, source line and call stack. Several products of one line are
//! known by the weights that they multiply by, and without weights by their order in the layer, which XLA
//! may change.

use super::graph::Graph;
use super::layered::{Layers, Name};
use super::origins::{Origin, parameter_of};
use super::{Savable, SavableKind};
use crate::flow::ScopeTree;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode};
use hashbrown::{HashMap, HashSet};

/// A value of one layer that a policy could save.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub node: u32,
    pub kind: SavableKind,
    /// Whether the text keeps it.
    pub is_kept: bool,
    pub layer: u32,
    /// The product that it is, or is a sum of.
    pub product: Option<u32>,
    /// The number of the parameter that the product multiplies by.
    pub weight: Option<u32>,
    pub bytes: i64,
}

/// What tells a value from others of its layer, apart from their order.
type Like = (Name, u16, u8, u64);

/// A value in all layers that have it.
struct Same {
    like: Like,
    scan: u32,
    is_product: bool,
    layers: HashSet<u32, BuildMix>,
    /// Numbers of what was found.
    own: Vec<usize>,
}

/// The number of the parameter that a product multiplies by; None if it has no such operand, or two.
pub fn weight_of(graph: &Graph, origins: &[Origin], product: u32) -> Option<u32> {
    let is_weight = |own: &&u32| origins[**own as usize] == Origin::Weight;
    let mut weights = graph.operands(product).iter().filter(is_weight);
    let weight = *weights.next().filter(|_| weights.next().is_none())?;
    graph.nodes[parameter_of(graph, weight)? as usize].element
}

/// One savable value for the same value of all layers of a kind, and its node in each of them. `found` is
/// in the order of the graph.
pub fn one_of_each(
    module: &Module,
    graph: &Graph,
    layers: &Layers,
    found: &[Found],
) -> (Vec<Savable>, Vec<Vec<u32>>) {
    let mut known: HashMap<_, usize, BuildMix> = HashMap::default();
    let mut same: Vec<Same> = Vec::new();
    let likes: Vec<Like> = found.iter().map(|own| like(module, graph, layers, own)).collect();
    for ((at, own), rank) in found.iter().enumerate().zip(ranks(found, &likes)) {
        let (scan, like) = (layers.kind_of(own.layer), likes[at]);
        let number = *known.entry((scan, like, rank)).or_insert(same.len());
        if number == same.len() {
            let is_product = own.product.is_some();
            let (layers, own) = (HashSet::default(), Vec::new());
            same.push(Same { like, scan, is_product, layers, own });
        }
        same[number].layers.insert(own.layer);
        same[number].own.push(at);
    }
    join(&mut same);
    let values = same.iter().map(|value| savable(module, graph, found, value));
    let nodes = |value: &Same| value.own.iter().map(|at| found[*at].node).collect();
    (values.collect(), same.iter().map(nodes).collect())
}

/// The place of each value among those of its layer that are like it: by weights if these differ.
fn ranks(found: &[Found], likes: &[Like]) -> Vec<usize> {
    let mut groups: HashMap<_, Vec<usize>, BuildMix> = HashMap::default();
    for (at, (own, like)) in found.iter().zip(likes).enumerate() {
        groups.entry((own.layer, *like)).or_default().push(at);
    }
    let mut ranks = vec![0; found.len()];
    for mut group in groups.into_values() {
        let weights: Option<HashSet<u32, BuildMix>> =
            group.iter().map(|at| found[*at].weight).collect();
        if weights.is_some_and(|weights| weights.len() == group.len()) {
            group.sort_unstable_by_key(|at| found[*at].weight);
        }
        group.iter().enumerate().for_each(|(rank, at)| ranks[*at] = rank);
    }
    ranks
}

/// What tells a value from others of its layer. The size tells products of one line apart.
fn like(module: &Module, graph: &Graph, layers: &Layers, own: &Found) -> Like {
    let node = &graph.nodes[own.node as usize];
    let array = module.shapes().array(node.shape);
    let elements = array.and_then(|array| array.elements()).unwrap_or(0);
    match own.product {
        Some(product) => {
            let row = graph.nodes[product as usize].row;
            (layers.name_of(module, row), Opcode::Dot as u16, 0, elements)
        }
        None => {
            let kind = array.map_or(0, |array| array.element_type as u8);
            (layers.name_of(module, node.row), node.opcode as u16, kind, elements)
        }
    }
}

/// Joins products of the same name that no layer has both of: the same product, of another size.
fn join(same: &mut Vec<Same>) {
    let mut firsts: HashMap<(u32, Name), Vec<usize>, BuildMix> = HashMap::default();
    let mut joined: Vec<Same> = Vec::with_capacity(same.len());
    for value in same.drain(..) {
        let name = value.like.0;
        // Without names nothing says that they are the same.
        let is_named = name.0 != ScopeTree::ROOT || name.1 > 0;
        let own = firsts.entry((value.scan, name)).or_default();
        let other = own.iter().copied().find(|at| joined[*at].layers.is_disjoint(&value.layers));
        match other.filter(|_| value.is_product && is_named) {
            Some(at) => {
                joined[at].layers.extend(value.layers);
                joined[at].own.extend(value.own);
            }
            None => {
                if value.is_product {
                    own.push(joined.len());
                }
                joined.push(value);
            }
        }
    }
    *same = joined;
}

/// The value of all layers, as most of them have it.
fn savable(module: &Module, graph: &Graph, found: &[Found], value: &Same) -> Savable {
    let shape = |at: usize| graph.nodes[found[at].node as usize].shape;
    let is_like = |one: usize, other: usize| {
        let arrays = module.shapes().array(shape(one)).zip(module.shapes().array(shape(other)));
        arrays.map_or(shape(one) == shape(other), |(one, other)| one.is_compatible(&other))
    };
    // By form: the first that has it, and how many have it.
    let mut forms: Vec<(usize, usize)> = Vec::new();
    for at in &value.own {
        match forms.iter_mut().find(|(first, _)| is_like(*first, *at)) {
            Some((_, count)) => *count += 1,
            None => forms.push((*at, 1)),
        }
    }
    let most = forms.iter().map(|(_, count)| *count).max();
    let first = forms.iter().find(|(_, count)| Some(*count) == most).map_or(0, |(first, _)| *first);
    let Found { node, kind, is_kept, .. } = found[first];
    let bytes = value.own.iter().map(|at| found[*at].bytes).fold(0, i64::saturating_add);
    let (scan, row) = (value.scan, graph.nodes[node as usize].row);
    Savable { scan, row, bytes, shape: shape(first), kind, is_kept, node }
}
