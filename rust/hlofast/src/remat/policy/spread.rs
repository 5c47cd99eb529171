//! What XLA for v6e has in memory where it takes the maxima of scores of grouped heads in the forward pass.
//!
//! One fusion makes masked scores less their maxima, in the type of the softmax, from `query` and `key`. With many keys
//! it reads the product in its own type, and in a range of lengths also its masks and factors, each as an array as
//! large as the scores. Scores without a mask are made from the product in its own type, too.

use super::graph::{Graph, Node};
use super::softmax::{between, has_mask};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode};
use hashbrown::HashSet;
use std::ops::RangeInclusive;

/// The numbers of keys with which masks and factors are arrays. Of libtpu 0.0.42: they are with 3,072 and 4,096 keys, and
/// are not with 2,560, nor where the scores have no factor (`make_softmaxes.py`). The upper limit is from steps that are
/// not committed: they are with 5,120 keys, and are not with 6,144. So is that groups of 4 and 8 heads behave like pairs.
const SPREAD_KEYS: RangeInclusive<u64> = 3072..=5120;

/// What the fusion reads.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Whether it reads the product.
    pub reads_product: bool,
    /// The bytes of masks and factors in arrays as large as the scores.
    pub bytes: i64,
}

impl Spread {
    /// That of the scores of a product, which takes `bytes`. `scores` are the node that is reduced to maxima, if it is
    /// known, and the number of keys (`softmax::reduced`).
    pub fn of(
        module: &Module,
        graph: &Graph,
        (product, bytes): (u32, i64),
        scores: Option<(u32, u64)>,
    ) -> Self {
        let read = scores.and_then(|(scores, _)| masks(module, graph, product, scores));
        let keys = scores.map_or(0, |(_, keys)| keys);
        let is_scaled = read.as_ref().is_some_and(|(_, is_scaled)| *is_scaled);
        let bits_of = |own: u32| {
            let array = module.shapes().array(graph.nodes[own as usize].shape);
            array.map_or(1, |array| i64::from(array.element_type.bits()).max(1))
        };
        let arrays = read.as_ref().filter(|_| is_scaled && SPREAD_KEYS.contains(&keys));
        // An element of a mask takes a byte.
        let bits: i64 = arrays.iter().flat_map(|own| &own.0).map(|own| bits_of(*own).max(8)).sum();
        Spread {
            reads_product: read.is_none() || keys >= *SPREAD_KEYS.start(),
            bytes: bytes.saturating_mul(bits) / bits_of(product),
        }
    }
}

/// The masks and factors between a product and the `scores` of which maxima are taken, and whether there is a factor;
/// None without a mask.
fn masks(
    module: &Module,
    graph: &Graph,
    product: u32,
    scores: u32,
) -> Option<(HashSet<u32, BuildMix>, bool)> {
    let elements = |own: u32| module.shapes().array(graph.nodes[own as usize].shape)?.elements();
    let opcode = |own: u32| graph.nodes[own as usize].opcode;
    let count = elements(product);
    let is_product = |own: &Node| own.opcode.is_matmul();
    let (_, mut ways) = between(module, graph, scores, is_product)?;
    ways.push(scores);
    if !has_mask(graph, &ways) {
        return None;
    }
    // Loops take masks that are the same in all layers.
    let is_spread = |own: &u32| {
        opcode(*own) == Opcode::Broadcast || graph.nodes[*own as usize].element.is_some()
    };
    let read = ways.iter().flat_map(|own| graph.operands(*own).iter().copied());
    let masks = read.filter(|own| elements(*own) == count && is_spread(own)).collect();
    Some((masks, ways.iter().any(|own| opcode(*own) == Opcode::Multiply)))
}
