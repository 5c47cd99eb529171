//! The products of a body: which values they result in, and which nodes are parts of their sums. What
//! custom calls are to a graph.
//!
//! The partitioner adds up partial products, so one matmul of the program may be several matmuls,
//! additions and a collective in the text. The last of these is the program's value.

use super::graph::Graph;
use super::named::{is_product_without_sum, product_in, product_of};
use crate::cost::custom_call::{CustomCallKind, custom_call_cost};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Row, ShapeId};
use hashbrown::HashMap;

/// The shape of the matmul or convolution that a custom call runs in a library for GPUs; None if it does
/// anything else.
pub fn of_library(module: &Module, row: Row) -> Option<ShapeId> {
    let kind = custom_call_cost(module, row).kind;
    if !matches!(kind, CustomCallKind::Gemm | CustomCallKind::Convolution) {
        return None;
    }
    let shape = module.shape(row);
    match module.shapes().tuple(shape) {
        Some(parts) => parts.first().copied(),
        None => Some(shape),
    }
}

/// Whether a custom call hands on its operands: a sharding, the border of manual partitioning, or the
/// memory space of a value.
pub fn passes_on(target: &[u8]) -> bool {
    let is_border = target.starts_with(b"\"SPMD") || target.starts_with(b"\"xla.sdy.");
    is_border || matches!(target, b"\"Sharding\"" | b"\"annotate_device_placement\"")
}

/// The products of a body.
#[derive(Debug, Default)]
pub struct Products {
    /// By node: a product whose value it is, or is a sum of.
    pub of: Vec<Option<u32>>,
    /// By node: whether it is only a part of such a sum.
    pub is_part: Vec<bool>,
}

impl Products {
    /// The products of `graph`.
    pub fn new(module: &Module, graph: &Graph) -> Self {
        let count = graph.nodes.len();
        let (mut of, mut is_part) = (vec![None; count], vec![false; count]);
        for node in (0..count as u32).rev() {
            let at = node as usize;
            if graph.nodes[at].element.is_some() {
                continue;
            }
            of[at] = match is_product_without_sum(module, graph, node) {
                true => Some(node),
                false => product_of(module, graph, node),
            };
            let is_sum = of[at].is_some_and(|of| of != node) || is_part[at];
            if is_sum && !graph.nodes[at].opcode.is_matmul() {
                let parts = graph.operands(node).iter();
                let parts = parts.filter(|part| product_in(module, graph, **part).is_some());
                parts.for_each(|part| is_part[*part as usize] = true);
            }
        }
        Self { of, is_part }
    }

    /// The operands of a value that are parts of the sum that it is.
    pub fn parts<'a>(
        &self,
        graph: &'a Graph,
        node: u32,
    ) -> impl Iterator<Item = u32> + use<'a, '_> {
        let is_matmul = graph.nodes[node as usize].opcode.is_matmul();
        let parts = graph.operands(node).iter().copied();
        parts.filter(move |part| !is_matmul && self.is_part[*part as usize])
    }

    /// The sums in a wider type than the products, and how many times wider.
    pub fn wider(&self, module: &Module, graph: &Graph) -> HashMap<u32, i64, BuildMix> {
        let bits = |node: u32| {
            let array = module.shapes().array(graph.nodes[node as usize].shape);
            array.map_or(0, |array| i64::from(array.element_type.bits()))
        };
        let sums = (0u32..).zip(&self.of).filter(|(node, _)| !self.is_part[*node as usize]);
        let known = sums.filter_map(|(node, of)| Some((node, bits(node), bits((*of)?))));
        let wider = known.filter(|(_, sum, product)| *product > 0 && sum > product);
        wider.map(|(node, sum, product)| (node, sum / product)).collect()
    }
}
