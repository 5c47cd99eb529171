//! Stacks in host memory, as XLA schedules them for TPUs.
//!
//! The moves run beside the work of a layer. So the forward loop writes in each iteration the value of
//! the iteration before, which it carries in its state, and the backward loop fetches the value of the
//! next one; the first layer has left the loops. What is carried is in device memory: bytes that a
//! policy which does not move the value would not need.

use super::graph::Graph;
use crate::ir::{HOST_SPACE, Module, Opcode, Row, ShapeId};
use std::ops::RangeInclusive;

/// Limit on the layers that leave a loop.
const MOST_PEELED: u64 = 2;

/// Whether an element of a loop's state is in host memory.
pub fn is_host(module: &Module, state: ShapeId, element: u32) -> bool {
    let elements = module.shapes().tuple(state);
    let element = elements.and_then(|elements| elements.get(element as usize));
    element.is_some_and(|element| is_on_host(module, *element))
}

/// The number of elements of a loop's state that are in host memory.
pub fn elements(module: &Module, state: ShapeId) -> usize {
    let elements = module.shapes().tuple(state).unwrap_or_default();
    elements.iter().filter(|element| is_on_host(module, **element)).count()
}

fn is_on_host(module: &Module, shape: ShapeId) -> bool {
    let layout = module.shapes().array(shape).and_then(|array| array.layout);
    layout.is_some_and(|layout| layout.memory_space == HOST_SPACE)
}

/// A stack in host memory.
pub struct Host<'a> {
    /// The forward body.
    pub body: &'a Graph,
    /// The backward body.
    pub back: &'a Graph,
    /// The element of the forward loop's state that holds it.
    pub element: u32,
    /// The element of the backward loop's state that holds it.
    pub read_as: u32,
}

impl Host<'_> {
    /// The node of the forward body whose value is moved, and the element of the state in which the
    /// value waits for its move; `written` is what an iteration writes.
    pub fn value(&self, written: u32) -> (u32, Option<u32>) {
        let Some(element) = self.body.nodes[written as usize].element else {
            return (written, None);
        };
        match self.body.root.element(element as usize).node() {
            Some(made) if made != written => (made, Some(element)),
            _ => (written, None),
        }
    }

    /// The number of layers: slices of the stack.
    pub fn layers(&self, module: &Module, forward: Row, node: u32, in_loop: u64) -> u64 {
        let shapes = module.shapes();
        let count = |shape: ShapeId| shapes.array(shape)?.elements();
        let elements = shapes.tuple(module.shape(forward));
        let whole = elements.and_then(|own| count(*own.get(self.element as usize)?));
        let one = count(self.body.nodes[node as usize].shape).filter(|one| *one > 0);
        let layers = whole.zip(one).map_or(in_loop, |(whole, one)| whole / one);
        if (in_loop..=in_loop + MOST_PEELED).contains(&layers) { layers } else { in_loop }
    }

    /// The elements of the backward loop's state that hold values of the stack: those whose values an
    /// iteration fetches for the next, or the stack itself; and the former alone.
    pub fn fetched(&self) -> (Vec<u32>, Vec<u32>) {
        let back = self.back;
        let is_stack = |node: &u32| back.nodes[*node as usize].element == Some(self.read_as);
        let leaf = (0..back.nodes.len() as u32).find(is_stack);
        let mut own: Vec<u32> = back.nodes.iter().filter_map(|node| node.element).collect();
        own.retain(|element| {
            let made = back.root.element(*element as usize).node();
            let made =
                made.filter(|made| back.nodes[*made as usize].opcode == Opcode::DynamicSlice);
            made.is_some_and(|made| back.operands(made).first().copied() == leaf)
        });
        match own.is_empty() {
            true => (vec![self.read_as], own),
            false => (own.clone(), own),
        }
    }
}

/// Whether a leaf of a body is the part of an unchanged stack that the iteration before has fetched.
pub fn is_fetched(body: &Graph, leaf: u32) -> bool {
    let element = body.nodes[leaf as usize].element;
    let made = element.and_then(|element| body.root.element(element as usize).node());
    let made = made.filter(|made| body.nodes[*made as usize].opcode == Opcode::DynamicSlice);
    let source = made.and_then(|made| body.operands(made).first().copied());
    source.is_some_and(|source| super::stacks::is_unchanged(body, source))
}

/// The union of ranges, without overlaps.
pub fn joined(mut ranges: Vec<RangeInclusive<u32>>) -> Vec<RangeInclusive<u32>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| *range.start());
    let mut joined: Vec<RangeInclusive<u32>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if *range.start() <= last.end().saturating_add(1) => {
                *last = *last.start()..=*last.end().max(range.end());
            }
            _ => joined.push(range),
        }
    }
    joined
}
