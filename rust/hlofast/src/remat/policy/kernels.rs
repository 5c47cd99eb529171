//! The results of hand-written kernels, and whether a policy of names reaches them.
//!
//! Attention kernels write statistics into whole lanes, of which the program reads one: it slices the
//! result, and XLA writes a slice of one element as a reduction. What is kept is that lane.

use super::graph::Graph;
use super::named;
use crate::ir::{Module, Opcode, Row};

/// Bytes of the value of a node if it is kept: of a kernel's result what is sliced out of it, if
/// nothing else reads it.
pub fn kept_bytes(graph: &Graph, node: u32, sizes: &[i64]) -> i64 {
    if graph.passing.contains_key(&node) {
        return graph.kept.get(&node).copied().unwrap_or(0);
    }
    let whole = graph.bytes(node, sizes);
    let users = graph.users(node);
    let is_all = !users.is_empty() && users.iter().all(|user| is(graph, *user, Opcode::Slice));
    if !is_result(graph, node) || !is_all {
        return whole;
    }
    // Parts that are fetched one by one and joined again are slices without users.
    let is_read = |slice: &&u32| !graph.users(**slice).is_empty();
    let is_any_read = users.iter().any(|slice| is_read(&slice));
    let read = users.iter().filter(|slice| !is_any_read || is_read(slice)).map(|slice| {
        let own = graph.bytes(*slice, sizes);
        let readers = graph.users(*slice);
        match readers.iter().all(|reader| is(graph, *reader, Opcode::Reduce)) {
            true if !readers.is_empty() => {
                let each = readers.iter().map(|reader| graph.bytes(*reader, sizes));
                each.max().unwrap_or(own).min(own)
            }
            _ => own,
        }
    });
    read.fold(0, i64::saturating_add).min(whole)
}

/// Whether what is sliced out of a kernel's result is stacked.
pub fn has_stacked_slice(graph: &Graph, node: u32, is_stacked: &[bool]) -> bool {
    let slices = graph.users(node).iter().filter(|user| is(graph, **user, Opcode::Slice));
    let is_kept = |slice: &u32| {
        let mut readers = graph.users(*slice).iter();
        let is_read =
            |reader: &u32| is_stacked[*reader as usize] && is(graph, *reader, Opcode::Reduce);
        is_stacked[*slice as usize] || readers.any(is_read)
    };
    is_result(graph, node) && slices.into_iter().any(is_kept)
}

/// Whether the library of a kernel names its results for policies: JAX's splash attention
/// (`residual_checkpoint_name`), and AXLearn's attention (`flash_residuals`). No name outside a kernel
/// reaches what its backward pass reads.
pub fn is_named_inside(module: &Module, row: Row) -> bool {
    named::components(module, row)
        .any(|own| own.starts_with(b"splash_m") || own.ends_with(b"[FlashAttention]"))
}

fn is_result(graph: &Graph, node: u32) -> bool {
    let own = &graph.nodes[node as usize];
    own.opcode == Opcode::CustomCall && own.whole.is_some()
}

fn is(graph: &Graph, node: u32, opcode: Opcode) -> bool {
    graph.nodes[node as usize].opcode == opcode
}
