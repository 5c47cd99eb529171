//! The stacks between a forward and a backward loop: values of each layer, kept side by side.

use super::graph::Graph;
use crate::ir::{Opcode, Row};
use std::ops::RangeInclusive;

/// A value that the forward loop stacks and the backward loop reads, or would without `jax.checkpoint`
/// (`laid_checkpoints.rs`).
#[derive(Clone, Debug)]
pub struct Stack {
    /// The node of the forward body whose value is stacked.
    pub node: u32,
    /// The elements of the backward loop's state that hold the stack.
    pub read_as: Vec<u32>,
    /// Bytes of the whole stack.
    pub bytes: i64,
    /// The steps at which it is live.
    pub live: RangeInclusive<u32>,
    /// The steps at which two of its values count, because one takes over from the other; none by most rules.
    pub twice: Vec<RangeInclusive<u32>>,
    /// Whether it repeats weights, which stay in memory under any policy.
    pub is_weight: bool,
    /// How the backward body reads it.
    pub reads: Vec<Read>,
    /// Whether gradients read it, and not only values that the text recomputes.
    pub is_read: bool,
    /// Whether it is in host memory.
    pub is_host: bool,
    /// The rows that fill it, write it and copy it as a whole; in groups of layers also those of the
    /// stack of one group, and the slices that the backward body of a group takes out.
    pub rows: Vec<Row>,
    /// The rows of the backward body that read it, with whether they only move its values.
    pub readers: Vec<(Row, bool)>,
    /// Bytes and live ranges of copies of the whole stack in another order.
    pub turned: Vec<(i64, RangeInclusive<u32>)>,
    /// If it is in host memory: bytes and steps of its values on their way, in device memory.
    pub moving: Vec<(i64, RangeInclusive<u32>)>,
    /// Bytes and live ranges of its buffers in the forward body of a group of layers.
    pub fore: Vec<(i64, RangeInclusive<u32>)>,
    /// The same in the backward body of a group.
    pub aft: Vec<(i64, RangeInclusive<u32>)>,
}

impl Stack {
    /// The stack of the values of `node`, which the backward loop reads as one element of its state.
    pub fn new(
        body: &Graph,
        node: u32,
        read_as: u32,
        bytes: i64,
        live: RangeInclusive<u32>,
    ) -> Self {
        Stack {
            node,
            read_as: vec![read_as],
            bytes,
            live,
            twice: Vec::new(),
            is_weight: is_weight(body, node),
            reads: Vec::new(),
            is_read: false,
            is_host: false,
            rows: Vec::new(),
            readers: Vec::new(),
            turned: Vec::new(),
            moving: Vec::new(),
            fore: Vec::new(),
            aft: Vec::new(),
        }
    }
}

/// A row of the backward body that reads a slice of a stack.
#[derive(Clone, Debug)]
pub struct Read {
    /// The step of the row.
    pub step: u32,
    /// The last step that reads the slice, through rows that only rearrange it.
    pub last: u32,
    /// The same if gradients of weights move (`late.rs`).
    pub late: u32,
    /// Whether a product multiplies the slice.
    pub feeds_product: bool,
    /// Whether a loop in the layer reads the slice, which has to be taken out for it.
    pub for_loop: bool,
    /// If the row only copies the slice out of the stack: bytes and live range of the copies.
    pub copies: Option<Vec<(i64, RangeInclusive<u32>)>>,
    /// If devices exchange the slice: the node that does, and the steps to the last reader, from the row, or from the
    /// first reader before optimisation, where no exchange is in memory.
    pub exchanged: Option<(u32, RangeInclusive<u32>)>,
}

/// The node whose value the body writes into the stack in element `element` of its state.
pub fn stacked(body: &Graph, element: u32) -> Option<u32> {
    let made = body.root.element(element as usize).node()?;
    if body.nodes[made as usize].opcode != Opcode::DynamicUpdateSlice {
        return None;
    }
    let [stack, value, ..] = body.operands(made) else { return None };
    (body.nodes[*stack as usize].element == Some(element)).then_some(*value)
}

/// The row that makes element `element` of a body's result.
pub fn written_by(body: &Graph, element: u32) -> Option<Row> {
    let made = body.root.element(element as usize).node()?;
    Some(body.nodes[made as usize].outer)
}

/// Whether the value is a slice of an element of the state that the loop does not change.
pub fn is_weight(body: &Graph, node: u32) -> bool {
    let mut at = node;
    while let Opcode::DynamicSlice | Opcode::Slice | Opcode::Convert =
        body.nodes[at as usize].opcode
    {
        match body.operands(at).first() {
            Some(operand) => at = *operand,
            None => return false,
        }
    }
    is_unchanged(body, at)
}

/// Whether `node` is an element of the state that every iteration hands on unchanged, or a copy of
/// such an element that the iteration before has fetched.
pub fn is_unchanged(body: &Graph, node: u32) -> bool {
    let next = |node: u32| {
        let element = body.nodes[node as usize].element;
        element.and_then(|element| body.root.element(element as usize).node())
    };
    next(node).is_some_and(|made| made == node || next(made) == Some(made))
}

/// The steps at which a loop takes over its stacks: those at which all of them count twice that ever do.
pub fn handed_on(stacks: &[Stack]) -> Vec<RangeInclusive<u32>> {
    let mut own = stacks.iter().map(|own| &own.twice).filter(|own| !own.is_empty());
    let mut common = own.next().cloned().unwrap_or_default();
    own.for_each(|twice| common.retain(|steps| twice.contains(steps)));
    common
}
