//! What the iterations of a scan are: layers, time steps of a recurrence, or ticks of a pipeline.
//!
//! A scan over layers slices the weights of one layer in every iteration. Over time all iterations
//! multiply with the same weights, and slice the input of one step. A pipeline has the same weights too, and
//! hands results on to other devices. Layers that share their weights slice neither.

use super::graph::{Graph, Node};
use super::scans::{MOST_STEPS, is_rearrangement};
use super::stacks::is_unchanged;
use super::{Scan, is_collective};
use crate::ir::{ElementKind, Module, Opcode};

/// What an iteration of a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Iteration {
    /// A layer.
    Layer,
    /// A time step.
    TimeStep,
    /// A tick of a pipeline.
    Tick,
}

impl Iteration {
    /// The name used in columns and notes.
    pub fn as_str(self) -> &'static str {
        match self {
            Iteration::Layer => "layer",
            Iteration::TimeStep => "time step",
            Iteration::Tick => "pipeline tick",
        }
    }

    /// That of `scan`.
    pub fn of(module: &Module, scan: &Scan) -> Self {
        let body = &scan.body;
        let mut is_shared = false;
        let products = (0u32..).zip(&body.nodes).filter(|(_, own)| own.opcode.is_matmul());
        for (node, _) in products {
            let is_inner = body.within.contains_key(&node);
            for operand in body.operands(node) {
                match factor(body, *operand, is_inner) {
                    Factor::Sliced if !is_inner && !is_data(body, node, *operand) => {
                        return Iteration::Layer;
                    }
                    Factor::Shared => is_shared = true,
                    _ => {}
                }
            }
        }
        let is_handed_on = |opcode| opcode == Opcode::CollectivePermute;
        match is_shared {
            false => Iteration::Layer,
            true if body.nodes.iter().any(|own| is_handed_on(own.opcode)) => Iteration::Tick,
            true if slices_input(module, body) => Iteration::TimeStep,
            true => Iteration::Layer,
        }
    }
}

/// Whether a body takes one slice of floating-point numbers from a value that all iterations share. Integers
/// are keys of random numbers, which layers have too.
fn slices_input(module: &Module, body: &Graph) -> bool {
    let is_number = |own: &Node| {
        let array = module.shapes().array(own.shape);
        array.is_some_and(|own| own.element_type.kind() == ElementKind::Float)
    };
    let slices = (0u32..).zip(&body.nodes).filter(|(_, own)| own.opcode == Opcode::DynamicSlice);
    let mut slices = slices.filter(|(_, own)| is_number(own));
    slices.any(|(node, _)| factor(body, node, false) == Factor::Sliced)
}

/// What a product multiplies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Factor {
    /// A value that all iterations share.
    Shared,
    /// A part of such a value, another one in every iteration.
    Sliced,
    /// Anything else.
    Made,
}

/// What `node` is; in an inner loop, slices are those of that loop.
fn factor(body: &Graph, node: u32, is_inner: bool) -> Factor {
    let (mut at, mut is_sliced) = (node, false);
    for _ in 0..MOST_STEPS {
        let own = &body.nodes[at as usize];
        if own.element.is_some() {
            return match is_unchanged(body, at) {
                true if is_sliced => Factor::Sliced,
                true => Factor::Shared,
                false => Factor::Made,
            };
        }
        let is_moved = is_rearrangement(own.opcode) || is_collective(own.opcode);
        let Some(first) = body.operands(at).first().filter(|_| is_moved) else { break };
        is_sliced |= own.opcode == Opcode::DynamicSlice && !is_inner;
        at = *first;
    }
    Factor::Made
}

/// Whether a sliced factor of a product is data of the iteration: the other factor is a shared weight.
fn is_data(body: &Graph, product: u32, operand: u32) -> bool {
    let mut others = body.operands(product).iter().filter(|own| **own != operand);
    others.any(|own| factor(body, *own, false) == Factor::Shared)
}
