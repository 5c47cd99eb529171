//! When backward work runs under `jax.checkpoint`.
//!
//! In a step that keeps everything XLA often puts the gradients of weights after those of all layers,
//! to overlap their collectives, and the values that they read stay in memory for longer. Where layers
//! are checkpointed their barriers keep the backward work of a layer together: weight gradients run
//! as soon as their operands are known. So deferred rows move to the step of their last operand.

use super::graph::Graph;
use super::layered::Layers;
use super::scans::node_of;
use crate::flow::Phase;
use crate::ir::{Module, Opcode, Row};
use crate::memory::{LiveValue, Memory};

/// Whether the row only passes on or moves a value.
fn is_plumbing(opcode: Opcode) -> bool {
    use Opcode::{
        AsyncDone, AsyncStart, AsyncUpdate, Bitcast, Copy, CopyDone, CopyStart, GetTupleElement,
        Reshape, Tuple,
    };
    matches!(
        opcode,
        AsyncDone
            | AsyncStart
            | AsyncUpdate
            | Bitcast
            | Copy
            | CopyDone
            | CopyStart
            | GetTupleElement
            | Reshape
            | Tuple
    )
}

/// Whether a custom call only joins the parts of a value.
fn is_joint(module: &Module, row: Row) -> bool {
    module.opcode(row) == Opcode::CustomCall
        && module.attribute_bytes(row, "custom_call_target") == Some(b"\"ConcatBitcast\"")
}

/// By step: the step at which its row runs if layers are checkpointed. `starts` are the steps at which
/// the backward parts of the layers start.
pub fn new_steps(
    module: &Module,
    memory: &Memory,
    layers: &Layers,
    starts: &[u32],
    phase: impl Fn(Row) -> Phase,
) -> Vec<u32> {
    let count = memory.timeline.len() as u32;
    let mut new: Vec<u32> = (0..count).collect();
    let rows = module.computation(module.entry()).rows();
    let mut ascending: Vec<u32> = starts.to_vec();
    ascending.sort_unstable();
    let back = ascending.first().copied().unwrap_or(count);
    // The backward part of a layer ends where the next one starts. That of the last has no such end.
    let end_of = |layer: Option<u32>| {
        let start = layer.map_or(0, |layer| starts[layer as usize]);
        let next = ascending.partition_point(|other| *other <= start);
        ascending.get(next).copied().unwrap_or(start)
    };
    // Rows that move values, and forward work that backward code repeats, come with what reads them.
    let is_carried = |row: Row| {
        let is_work = matches!(phase(row), Phase::Backward | Phase::Optimizer);
        is_plumbing(module.opcode(row)) || is_joint(module, row) || !is_work
    };
    // By row: the first step at which its value can be there, and whether it has moved.
    let mut known: Vec<u32> = vec![0; rows.len()];
    let mut is_moved = vec![false; rows.len()];
    let in_order = || {
        let own = memory.sequence().iter().zip(0u32..);
        own.filter(|(row, _)| rows.contains(row))
    };
    for (row, step) in in_order() {
        let at = (row - rows.start) as usize;
        let own = Row(*row);
        let opcode = module.opcode(own);
        known[at] = step;
        if step <= back || opcode == Opcode::Parameter {
            continue;
        }
        let operands = module.operands(own).iter().filter(|operand| rows.contains(operand));
        let (mut ready, mut follows) = (0, false);
        for operand in operands {
            let operand = (operand - rows.start) as usize;
            ready = ready.max(known[operand]);
            follows |= is_moved[operand];
        }
        let is_plumbing = is_carried(own);
        let layer = layers.of_row(own);
        let is_backward = phase(own) == Phase::Backward;
        let is_late = is_backward && step >= end_of(layer);
        if is_plumbing && !follows {
            known[at] = ready.min(step);
        } else if (follows && (is_plumbing || is_backward)) || (is_late && !is_plumbing) {
            let start = layer.map_or(back, |layer| starts[layer as usize]);
            known[at] = ready.max(start).min(step);
            new[step as usize] = known[at];
            is_moved[at] = known[at] < step;
        }
    }
    // A row that moves a value for deferred rows comes before them.
    let mut first_use = vec![u32::MAX; rows.len()];
    let ordered: Vec<(u32, u32)> = in_order().map(|(row, step)| (*row, step)).collect();
    for (row, step) in ordered.into_iter().rev() {
        let at = (row - rows.start) as usize;
        let own = Row(row);
        if step > back && is_carried(own) && !is_moved[at] {
            new[step as usize] = step.min(first_use[at]).max(back);
        }
        for operand in module.operands(own).iter().filter(|operand| rows.contains(operand)) {
            let use_of = &mut first_use[(operand - rows.start) as usize];
            *use_of = (*use_of).min(new[step as usize]);
        }
    }
    new
}

/// Moves the live ranges of `values` to the steps `new`, and returns the change of the bytes at each
/// step from the step before.
pub fn retime(
    module: &Module,
    memory: &Memory,
    graph: &Graph,
    new: &[u32],
    values: &mut [LiveValue],
) -> Vec<i64> {
    let mut changes = vec![0i64; new.len() + 1];
    let rows = module.computation(module.entry()).rows();
    for value in values.iter_mut().filter(|value| rows.contains(&value.row.0)) {
        let (first, last) = (value.first_step, value.last_step);
        let to = |step: u32| new.get(step as usize).copied().unwrap_or(step);
        let mut end = to(last);
        if let Some(node) = node_of(graph, value) {
            for user in graph.users(node) {
                let step = memory.step_of(graph.nodes[*user as usize].outer);
                if let Some(step) = step.filter(|step| (first..=last).contains(step)) {
                    end = end.max(to(step));
                }
            }
        }
        let start = to(first);
        let end = end.max(start);
        if (start, end) == (first, last) {
            continue;
        }
        super::base::add(&mut changes, first..=last, -value.bytes);
        super::base::add(&mut changes, start..=end, value.bytes);
        (value.first_step, value.last_step) = (start, end);
    }
    changes
}
