//! What XLA for TPUs writes of scores of attention that run again as the product of `softmax.rs` in another order.
//!
//! Without checkpointing, a layer stacks the exponentials and the weights, and the gradient of the scores is written
//! over that of the weights. Where the scores run again, their readers compute from the product of `query` and `key`.
//! With one query head for each key head, the products that read the weights or the gradient of the scores make them
//! in their own fusions. With several, the product has the heads of a group last, and what is written depends on the
//! chip: libtpu 0.0.42 for v5e writes neither, for v6e the gradient of the scores, and for v5p also the weights at
//! some sizes (`rewrites_weights`), in groups or not. The gradient is then not written over that of the weights, whose
//! dimensions are in another order. Judged by `benches/policy_accuracy.py`.

use super::base::Timeline;
use super::chip::Chip;
use super::counted::OrderOf;
use super::fixed::Fixed;
use super::graph::Graph;
use super::resharded::resharded;
use super::scans::{MOST_REARRANGED, Scan, is_rearrangement};
use super::softmax::{between, row_length};
use super::stacks::Stack;
use crate::cost::Backend;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, ShapeId};
use crate::shares::Local;
use hashbrown::HashMap;

/// The dimensions of scores of heads in groups: batch, key heads, query heads of one, queries and keys.
const IN_GROUPS: usize = 5;

/// Columns of a tile in memory.
const TILE: u64 = 128;
/// Values of fewer bytes do not matter.
const LEAST: i64 = 1 << 20;
/// Limit on the nodes that are opened to find the products that read a value.
const MOST_OPENED: usize = 256;

/// Scores of attention between a product and a stack of exponentials.
#[derive(Clone, Copy, Debug)]
pub struct Scores {
    /// The node of the exponentials.
    pub exponentials: u32,
    /// The node of the product.
    pub product: u32,
    /// The node of the weights.
    pub weights: u32,
    /// The step of the gradient of the scores.
    pub gradient: u32,
    /// Bytes of the product.
    pub bytes: i64,
    /// Whether the text writes the gradient of the scores over that of the weights.
    is_over: bool,
    /// Whether XLA writes the weights again; false if unknown, as on most chips.
    pub writes_weights: bool,
    /// Whether it writes the gradient of the scores, if the product runs again and if it is kept; None if unknown.
    writes_gradient: [Option<bool>; 2],
}

impl Scores {
    /// The bytes at the step of the gradient of the scores beyond those of the text, where the product runs again or
    /// is kept.
    pub fn beyond(&self, is_kept: bool) -> i64 {
        match (self.writes_gradient[usize::from(is_kept)], self.is_over) {
            (Some(true), true) => self.bytes,
            (Some(false), false) => -self.bytes,
            _ => 0,
        }
    }
}

/// What policies have in common, with the scores of each scan. `local` are the sizes on one device of a module that is
/// not scheduled.
pub fn with_scores(
    mut fixed: Vec<Fixed>,
    module: &Module,
    scans: &[Scan],
    timeline: &Timeline,
    local: Option<&Local>,
    (chip, order): (Option<Chip>, OrderOf),
) -> Vec<Fixed> {
    let is_scheduled = module.is_scheduled();
    if chip == Some(Chip::Gpu) || is_scheduled && Backend::of_module(module) != Backend::Tpu {
        return fixed;
    }
    for (own, scan) in fixed.iter_mut().zip(scans) {
        // Beside a kernel, libtpu 0.0.42 for v5e lets the products that read the gradient of the scores compute it.
        let is_v5e = chip == Some(Chip::V5e);
        own.softmaxes
            .iter_mut()
            .for_each(|own| own.writes_gradient = !(is_v5e && own.is_in_kernel));
        own.resharded = resharded(module, scan, &own.softmaxes, timeline, (chip, order));
        let mut scores = scores(module, scan, own, timeline, local, chip);
        scores.retain(|scores| !own.is_resharded(scores.exponentials));
        own.scores = scores;
    }
    fixed
}

/// The scores of a scan, apart from those in the form of `softmax.rs`.
fn scores(
    module: &Module,
    scan: &Scan,
    fixed: &Fixed,
    timeline: &Timeline,
    local: Option<&Local>,
    chip: Option<Chip>,
) -> Vec<Scores> {
    let body = &scan.body;
    let opcode = |node: u32| body.nodes[node as usize].opcode;
    let is_exponential = |own: &&Stack| opcode(own.node) == Opcode::Exponential;
    let stacks = scan.stacks.iter().filter(is_exponential).map(|own| (own.node, own));
    let stacks: HashMap<u32, &Stack, BuildMix> = stacks.collect();
    let of_weights = |weights: &Stack| {
        if opcode(weights.node) != Opcode::Convert
            || fixed.softmaxes.iter().any(|own| own.weights == weights.node)
        {
            return None;
        }
        let (node, _) =
            between(module, body, weights.node, |own| own.opcode == Opcode::Exponential)?;
        let made = |node: u32| between(module, body, node, |own| own.opcode.is_matmul());
        let (product, _) = made(node)?;
        // XLA may compute the exponentials twice, in two orders of their dimensions.
        let same =
            || stacks.values().find(|own| made(own.node).is_some_and(|(own, _)| own == product));
        let exponentials = stacks.get(&node).or_else(same)?;
        let gradient = exponentials.reads.iter().map(|read| read.last).max()?;
        let shape = |node: u32| body.nodes[node as usize].shape;
        let [of_product, own] = [product, node].map(|own| sizes(module, shape(own)));
        let is_single = of_product == own;
        let known = local.and_then(|local| local.product(body.nodes[product as usize].row));
        let dimensions = known.map_or(own?.len(), |own| own.rank);
        let in_groups = chip.map(|own| own != Chip::V5e);
        let from_kept = if is_single { Some(false) } else { in_groups };
        let writes_gradient = if dimensions == IN_GROUPS { from_kept } else { Some(false) };
        let writes_weights = chip == Some(Chip::V5p)
            && rewrites_weights(module, body, [product, node, weights.node]);
        let bytes = weights.bytes.checked_div(i64::try_from(scan.trips).ok()?)?;
        (bytes >= LEAST).then(|| Scores {
            exponentials: exponentials.node,
            product,
            weights: weights.node,
            gradient,
            bytes,
            is_over: !timeline.rises(gradient, bytes / 2),
            writes_weights,
            writes_gradient: [writes_gradient, from_kept],
        })
    };
    scan.stacks.iter().filter_map(of_weights).collect()
}

/// Whether libtpu for v5p writes the weights of a softmax again for the two products that read them, and does not make
/// them in both. It does where the depth of a head is not a multiple of 128, or where it is 128 and the numbers of
/// queries and keys, the last dimensions, are multiples of 128. With an unknown depth it counts as written. Compiled with
/// libtpu 0.0.42 for depths of 64 to 256, 512 to 1,088 queries and keys, with and without a mask.
fn rewrites_weights(
    module: &Module,
    body: &Graph,
    [product, exponentials, weights]: [u32; 3],
) -> bool {
    let shape = |node: u32| body.nodes[node as usize].shape;
    let elements = |node: u32| module.shapes().array(shape(node))?.elements();
    let depth = || {
        let keys = row_length(body, product, elements)?;
        let mixed = *products_of(body, weights).first()?;
        elements(mixed)?.checked_mul(keys)?.checked_div(elements(exponentials)?)
    };
    let fills = |size: u64| size.is_multiple_of(TILE);
    let are_filled = || {
        let size = |own: &Option<i64>| own.and_then(|own| u64::try_from(own).ok());
        let last =
            |own: &[Option<i64>]| own.iter().rev().take(2).all(|own| size(own).is_some_and(fills));
        sizes(module, shape(exponentials)).is_some_and(|own| last(&own))
    };
    depth().is_none_or(|depth| !fills(depth) || depth == TILE && are_filled())
}

/// The dimensions of an array that are not one.
pub fn sizes(module: &Module, shape: ShapeId) -> Option<Vec<Option<i64>>> {
    let array = module.shapes().array(shape)?;
    Some(array.dimensions().map(|own| own.bound()).filter(|own| *own != Some(1)).collect())
}

/// The last step at which products of the backward pass read what `stack` holds of a layer, if a product of the forward
/// pass that reads it runs again.
pub fn read_until(scan: &Scan, stack: &Stack, is_again: impl Fn(u32) -> bool) -> Option<u32> {
    if !products_of(&scan.body, stack.node).into_iter().any(is_again) {
        return None;
    }
    let reads = stack.reads.iter().filter(|read| read.feeds_product && read.copies.is_none());
    reads.map(|read| read.last).max()
}

/// The products that read a value, through rows that only rearrange it.
pub fn products_of(graph: &Graph, node: u32) -> Vec<u32> {
    let mut products = Vec::new();
    let mut stack = vec![(node, 0)];
    let mut opened = 0;
    while let Some((at, depth)) = stack.pop() {
        for user in graph.users(at) {
            opened += 1;
            let opcode = graph.nodes[*user as usize].opcode;
            if opcode.is_matmul() {
                products.push(*user);
            } else if is_rearrangement(opcode) && depth < MOST_REARRANGED && opened < MOST_OPENED {
                stack.push((*user, depth + 1));
            }
        }
    }
    products
}
