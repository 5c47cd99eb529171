//! What XLA for TPUs writes of a softmax of attention that runs again.
//!
//! Where the scores are the product as it is (`bqhd,bkhd->bhqk`), one fusion makes the weights and the gradient of
//! the scores, from the exponentials if anything but a conversion lies between the product and the softmax (a mask,
//! a scale), else from the product in its own type. Where they are the product with its dimensions in another order
//! (`bqghd,bkgd->bghqk`), each reader makes what it needs from the product. `tests/fixtures/make_softmaxes.py`
//! compiles the cases.

use super::graph::{Graph, Node};
use super::scans::{Scan, is_heavy};
use super::stacks::Stack;
use crate::ir::intern::BuildMix;
use crate::ir::{ArrayShape, Module, Opcode, ShapeId};
use hashbrown::HashMap;
use std::ops::RangeInclusive;

/// Limit on the nodes between a product and the weights made from it.
const MOST_BETWEEN: usize = 64;

/// A softmax between two products, whose exponentials and weights the forward loop stacks.
#[derive(Clone, Copy, Debug)]
pub struct Softmax {
    /// The node of the product.
    pub product: u32,
    /// The node of the exponentials.
    pub exponentials: u32,
    /// The node of the weights.
    pub weights: u32,
    /// Whether the exponentials are written.
    pub is_written: bool,
    /// The node of the product that reads the weights.
    pub mixed: Option<u32>,
    /// Whether what leads to the gradient of the scores needs the product besides the exponentials.
    needs_product: bool,
    /// The last step that reads the exponentials: the gradient of the scores.
    gradient: u32,
    /// The last step of a product that reads the weights.
    multiplied: u32,
}

impl Softmax {
    /// The steps from `start` at which exponentials are in memory. If the product is kept, the fusion that
    /// multiplies by the weights makes these from the exponentials.
    pub fn exponential_steps(&self, start: u32, is_kept: bool) -> RangeInclusive<u32> {
        start..=if is_kept { self.gradient.max(self.multiplied) } else { self.gradient }
    }

    /// The steps from `start` at which the product is in memory, if it runs again; None without.
    pub fn product_steps(&self, start: u32) -> Option<RangeInclusive<u32>> {
        let last = self.gradient.checked_sub(1).filter(|_| self.needs_product);
        last.map(|last| start..=last)
    }

    /// The steps at which the weights are in memory, if the same fusion makes them and the gradient of the scores.
    pub fn weight_steps(&self) -> RangeInclusive<u32> {
        self.gradient..=self.multiplied.max(self.gradient)
    }
}

/// The softmaxes of a scan of which one fusion makes the weights and the gradient of the scores.
pub fn softmaxes(module: &Module, scan: &Scan) -> Vec<Softmax> {
    let body = &scan.body;
    let is_product = |node: &u32| body.nodes[*node as usize].opcode.is_matmul();
    let is_exponential = |own: &&Stack| body.nodes[own.node as usize].opcode == Opcode::Exponential;
    let stacks = scan.stacks.iter().filter(is_exponential).map(|own| (own.node, own));
    let stacks: HashMap<u32, &Stack, BuildMix> = stacks.collect();
    if stacks.is_empty() {
        return Vec::new();
    }
    let elements = scan.back.nodes.iter().filter_map(|own| Some((own.element?, own.shape)));
    let elements: HashMap<u32, ShapeId, BuildMix> = elements.collect();
    let of_weights = |weights: &Stack| {
        let own = &body.nodes[weights.node as usize];
        let is_end = |own: &Node| own.opcode == Opcode::Exponential;
        let (node, _) = match own.opcode {
            Opcode::Convert => between(module, body, weights.node, is_end)?,
            _ => return None,
        };
        let exponentials = stacks.get(&node)?;
        let (product, ways) = between(module, body, node, |own| own.opcode.is_matmul())?;
        let gradient = exponentials.reads.iter().map(|read| read.last).max()?;
        let multiplied = weights.reads.iter().map(|read| read.last).max()?;
        let stack = *elements.get(weights.read_as.first()?)?;
        let is_plain_form = is_layer_of(module, body.nodes[product as usize].shape, stack);
        is_plain_form.then(|| Softmax {
            product,
            exponentials: node,
            weights: weights.node,
            mixed: body.users(weights.node).iter().copied().find(is_product),
            is_written: ways.iter().any(|own| !is_plain(*own)),
            needs_product: ways.contains(&Opcode::Tanh) && body.copies(product).is_empty(),
            gradient,
            multiplied,
        })
    };
    scan.stacks.iter().filter_map(of_weights).collect()
}

/// The one node for which `is_end` holds that cheap work makes `node` from, element by element, and the opcodes of
/// that work.
fn between(
    module: &Module,
    body: &Graph,
    node: u32,
    is_end: impl Fn(&Node) -> bool,
) -> Option<(u32, Vec<Opcode>)> {
    let shapes = module.shapes();
    let elements = |node: u32| shapes.array(body.nodes[node as usize].shape)?.elements();
    let count = elements(node);
    let mut end = None;
    let mut ways = Vec::new();
    let mut open = body.operands(node).to_vec();
    while let Some(at) = open.pop() {
        let own = &body.nodes[at as usize];
        if is_end(own) {
            if end.is_some_and(|end| end != at) {
                return None;
            }
            end = Some(at);
            continue;
        }
        if own.element.is_some() || is_heavy(own.opcode) || elements(at) != count {
            continue;
        }
        if ways.len() >= MOST_BETWEEN {
            return None;
        }
        ways.push(own.opcode);
        open.extend(body.operands(at));
    }
    end.map(|end| (end, ways))
}

/// Whether this work between a product and the exponentials keeps the product what is read.
fn is_plain(opcode: Opcode) -> bool {
    use Opcode::{Broadcast, Constant, Convert, Subtract};
    matches!(opcode, Broadcast | Constant | Convert | Subtract)
}

/// Whether a shape has the dimensions of one layer of a stack, in their order.
fn is_layer_of(module: &Module, layer: ShapeId, stack: ShapeId) -> bool {
    let array = |shape| module.shapes().array(shape);
    let (Some(layer), Some(stack)) = (array(layer), array(stack)) else { return false };
    let sizes = |own: ArrayShape<'_>| own.dimensions().map(|size| size.bound()).collect::<Vec<_>>();
    sizes(stack).get(1..) == Some(&sizes(layer)[..])
}
