//! The parts of results that take memory: arrays and the pointer tables of tuples.
//!
//! A shape's nodes are numbered in pre-order: a tuple is node 0, followed by the nodes of its first
//! element, and so on. Pairs (step, node) number all parts of all results consecutively, so that
//! tuples and their elements are ranges.

use super::schedule::Steps;
use crate::ir::{Module, Row, ShapeId, ShapeView};
use smallvec::SmallVec;
use std::ops::Range;

/// The nodes of every shape of a module.
#[derive(Clone, Debug, Default)]
pub(super) struct ShapeNodes {
    /// By shape: number of nodes.
    counts: Vec<u32>,
    /// By shape: where its elements start in `firsts`; only tuples have elements.
    starts: Vec<u32>,
    /// The first node of each element, within its tuple.
    firsts: Vec<u32>,
}

impl ShapeNodes {
    /// One pass over the shapes: elements have smaller ids than the tuples that contain them.
    pub fn new(module: &Module) -> Self {
        let shapes = module.shapes();
        let mut nodes = ShapeNodes {
            counts: Vec::with_capacity(shapes.len()),
            starts: Vec::with_capacity(shapes.len()),
            firsts: Vec::new(),
        };
        for id in shapes.ids() {
            nodes.starts.push(nodes.firsts.len() as u32);
            let mut count = 1u32;
            if let ShapeView::Tuple(children) = shapes.get(id) {
                for child in children {
                    nodes.firsts.push(count);
                    count = count.saturating_add(nodes.count(*child));
                }
            }
            nodes.counts.push(count);
        }
        nodes
    }

    /// Number of nodes of `shape`.
    #[inline]
    pub fn count(&self, shape: ShapeId) -> u32 {
        self.counts.get(shape.0 as usize).copied().unwrap_or(1)
    }

    /// The nodes of element `index` of tuple `shape`.
    #[inline]
    pub fn element(&self, module: &Module, shape: ShapeId, index: usize) -> Option<Range<u32>> {
        let child = *module.shapes().tuple(shape)?.get(index)?;
        let start = *self.starts.get(shape.0 as usize)? as usize;
        let first = *self.firsts.get(start.checked_add(index)?)?;
        Some(first..first.checked_add(self.count(child))?)
    }

    /// The node of `shape` at `path`, and its shape.
    pub fn at_path(&self, module: &Module, shape: ShapeId, path: &[i64]) -> Option<(u32, ShapeId)> {
        let mut node = 0u32;
        let mut shape = shape;
        for step in path {
            let index = usize::try_from(*step).ok()?;
            node = node.checked_add(self.element(module, shape, index)?.start)?;
            shape = *module.shapes().tuple(shape)?.get(index)?;
        }
        Some((node, shape))
    }

    /// The element of tuple `shape` that contains `node`, its shape, and the node within it; None
    /// for the tuple itself and for other shapes.
    fn inside(&self, module: &Module, shape: ShapeId, node: u32) -> Option<(u32, ShapeId, u32)> {
        if node == 0 {
            return None;
        }
        let children = module.shapes().tuple(shape)?;
        let start = self.starts[shape.0 as usize] as usize;
        let firsts = &self.firsts[start..start + children.len()];
        let index = firsts.partition_point(|first| *first <= node).checked_sub(1)?;
        Some((index as u32, children[index], node - firsts[index]))
    }

    /// The path to node `node` of `shape`.
    pub fn path(&self, module: &Module, shape: ShapeId, node: u32) -> Vec<u32> {
        let mut path = Vec::new();
        let (mut shape, mut node) = (shape, node);
        while let Some((index, child, rest)) = self.inside(module, shape, node) {
            path.push(index);
            (shape, node) = (child, rest);
        }
        path
    }

    /// The first index of the path to node `node` of `shape`; 0 for the whole result.
    #[inline]
    pub fn element_of(&self, module: &Module, shape: ShapeId, node: u32) -> u32 {
        // Most results are arrays.
        if node == 0 {
            return 0;
        }
        self.inside(module, shape, node).map_or(0, |(index, ..)| index)
    }

    /// The shape of node `node` of `shape`.
    #[inline]
    pub fn shape_at(&self, module: &Module, shape: ShapeId, node: u32) -> ShapeId {
        let (mut shape, mut node) = (shape, node);
        while node > 0
            && let Some((_, child, rest)) = self.inside(module, shape, node)
        {
            (shape, node) = (child, rest);
        }
        shape
    }
}

/// The shapes of the nodes of one shape, in order.
pub(super) fn node_shapes(module: &Module, shape: ShapeId, out: &mut Vec<ShapeId>) {
    // Most results are arrays.
    if module.shapes().tuple(shape).is_none() {
        out.push(shape);
        return;
    }
    let shapes = module.shapes();
    out.push(shape);
    let elements = shapes.tuple(shape).unwrap_or_default();
    // Most elements of tuples are arrays.
    let flat = elements.iter().take_while(|element| shapes.tuple(**element).is_none()).count();
    let (flat, others) = elements.split_at(flat);
    out.extend_from_slice(flat);
    let mut stack: SmallVec<[ShapeId; 8]> = others.iter().rev().copied().collect();
    while let Some(id) = stack.pop() {
        out.push(id);
        if let Some(children) = shapes.tuple(id) {
            stack.extend(children.iter().rev().copied());
        }
    }
}

/// All nodes of all steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes {
    /// By step: its first node; one entry more than there are steps.
    pub firsts: Vec<u32>,
    /// The step of each node.
    pub steps: Vec<u32>,
}

impl Nodes {
    /// Numbers the nodes; None if there are far more than the text could have written.
    pub fn new(module: &Module, steps: &Steps, shapes: &ShapeNodes) -> Option<Self> {
        let limit = module.text().len().saturating_mul(16).saturating_add(1 << 20) as u64;
        let mut firsts = Vec::with_capacity(steps.rows.len() + 1);
        let mut count = 0u64;
        for row in &steps.rows {
            firsts.push(count as u32);
            count += u64::from(shapes.count(module.shape(Row(*row))));
            if count > limit.min(u64::from(u32::MAX) - 1) {
                return None;
            }
        }
        firsts.push(count as u32);
        let mut of = Vec::with_capacity(count as usize);
        for (step, range) in firsts.windows(2).enumerate() {
            if range[1] - range[0] == 1 {
                of.push(step as u32);
            } else {
                of.resize(range[1] as usize, step as u32);
            }
        }
        Some(Self { firsts, steps: of })
    }

    /// The nodes of `step`.
    #[inline]
    pub fn of(&self, step: u32) -> Range<u32> {
        self.firsts[step as usize]..self.firsts[step as usize + 1]
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.steps.len()
    }
}
