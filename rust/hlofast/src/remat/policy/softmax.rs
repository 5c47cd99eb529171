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
use crate::ir::{ArrayShape, Module, Opcode};
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
    let of = |opcode: Opcode| {
        scan.stacks.iter().filter(move |own| body.nodes[own.node as usize].opcode == opcode)
    };
    let is_product = |node: &u32| body.nodes[*node as usize].opcode.is_matmul();
    let mut found: Vec<Softmax> = Vec::new();
    for exponentials in of(Opcode::Exponential) {
        let made = between(module, body, exponentials.node, |node| node.opcode.is_matmul());
        let Some((product, ways)) = made else { continue };
        let is_made_from = |weights: &&Stack| {
            let made = between(module, body, weights.node, |own| own.opcode == Opcode::Exponential);
            made.is_some_and(|(node, _)| node == exponentials.node)
        };
        let Some(weights) = of(Opcode::Convert).find(is_made_from) else { continue };
        let gradient = exponentials.reads.iter().map(|read| read.last).max();
        let multiplied = weights.reads.iter().map(|read| read.last).max();
        let Some((gradient, multiplied)) = gradient.zip(multiplied) else { continue };
        if !is_of_stack(module, scan, product, weights) {
            continue;
        }
        found.push(Softmax {
            product,
            exponentials: exponentials.node,
            weights: weights.node,
            mixed: body.users(weights.node).iter().copied().find(is_product),
            is_written: ways.iter().any(|own| !is_plain(*own)),
            needs_product: ways.contains(&Opcode::Tanh) && body.copies(product).is_empty(),
            gradient,
            multiplied,
        });
    }
    found
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

/// Whether a product has the dimensions of one layer of a stack, in their order.
fn is_of_stack(module: &Module, scan: &Scan, product: u32, stack: &Stack) -> bool {
    let shapes = module.shapes();
    let is_stack = |own: &&Node| own.element.is_some_and(|own| stack.read_as.contains(&own));
    let stack = scan.back.nodes.iter().find(is_stack).and_then(|own| shapes.array(own.shape));
    let product = shapes.array(scan.body.nodes[product as usize].shape);
    let (Some(stack), Some(product)) = (stack, product) else { return false };
    let sizes = |own: ArrayShape<'_>| own.dimensions().map(|size| size.bound()).collect::<Vec<_>>();
    sizes(stack).get(1..) == Some(&sizes(product)[..])
}
