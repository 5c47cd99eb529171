//! When backward work runs under `jax.checkpoint`.
//!
//! In a step that keeps everything XLA often puts the gradients of weights after those of all layers,
//! to overlap their collectives, and the values that they read stay in memory for longer. Where layers
//! are checkpointed their barriers keep the backward work of a layer together: weight gradients run
//! as soon as their operands are known. So deferred rows move behind the row of their last operand.
//!
//! Where rings add gradients up while nothing else runs asynchronously in fusions, they are last also in
//! checkpointed steps. Of these XLA has two orders: in `unrolled_v6e_8` with nothing or products saved rings make
//! room before the scores of the last layer (`rings.rs`), and gradients that free a value of the forward pass run
//! at once; with the results of attention or all scores saved all gradients are last, and rings make room as late
//! as they can. XLA's memory scheduler takes the one of its orders that needs the least memory, and so does
//! the model. Where no scores make rings hold room (`unrolled_vision_v6e_8`), it has the second order alone.

use super::graph::Graph;
use super::groups::chain;
use super::layered::Layers;
use super::scans::{is_heavy, node_of};
use crate::flow::Phase;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use crate::memory::{LiveValue, Memory};
use hashbrown::{HashMap, HashSet};
use std::ops::Range;

/// Values of fewer bytes are not waited for and not freed early; as in `waiting.rs`.
const LARGE: i64 = 1 << 24;

/// A row of the optimizer.
#[derive(Default)]
struct Update {
    /// The first step after which it can run.
    first: u32,
    /// Bytes of the largest gradient that it reads and that is made earlier than in the text.
    read: i64,
}

/// By step: the step after which its row runs if layers are checkpointed, in the order of the text where
/// this is the same. `starts` are the steps at which the backward parts of the layers start, `steps`
/// those of the nodes. Deferred rows run as soon as their operands are known, if there are `freeing`
/// rows only these.
///
/// Dependencies are those of values: fusions also carry collectives of other layers.
pub fn new_steps(
    module: &Module,
    memory: &Memory,
    graph: &Graph,
    layers: &Layers,
    (starts, steps, bytes): (&[u32], &[u32], &[i64]),
    phase: impl Fn(Row) -> Phase,
    freeing: Option<&HashSet<Row, BuildMix>>,
) -> Vec<u32> {
    let count = memory.timeline.len() as u32;
    let mut new: Vec<u32> = (0..count).collect();
    let mut ascending: Vec<u32> = starts.to_vec();
    ascending.sort_unstable();
    let back = ascending.first().copied().unwrap_or(count);
    let start_of = |layer: Option<u32>| layer.map_or(0, |layer| starts[layer as usize]);
    let is_work = |at: usize| {
        let node = &graph.nodes[at];
        is_heavy(node.opcode) && steps[at] > back && phase(node.row) == Phase::Backward
    };
    // The backward part of a layer ends where the next one starts, that of the last one where the
    // first deferred matmul of another layer runs.
    let next_start = |layer: Option<u32>| {
        let start = layer.map_or(0, |layer| starts[layer as usize]);
        ascending.get(ascending.partition_point(|other| *other <= start)).copied()
    };
    let mut deferred = count;
    for (at, node) in graph.nodes.iter().enumerate() {
        if node.opcode.is_matmul() && is_work(at) {
            let end = next_start(layers.of_row(node.row));
            if end.is_some_and(|end| steps[at] >= end) {
                deferred = deferred.min(steps[at]);
            }
        }
    }
    // By node: the first step at which its value can be there, and whether deferred work makes it.
    let mut ready = vec![0u32; graph.nodes.len()];
    let mut is_moved = vec![false; graph.nodes.len()];
    let mut updates: HashMap<Row, Update, BuildMix> = HashMap::default();
    let operands = |at: usize| graph.operands(at as u32).iter().map(|own| *own as usize);
    // By row that has moved: its new step.
    let mut moved: HashMap<Row, u32, BuildMix> = HashMap::default();
    for (at, node) in graph.nodes.iter().enumerate() {
        let before = || graph.runs_after(at as u32).map(|own| own as usize);
        let first = before().map(|own| ready[own]).max().unwrap_or(0);
        let follows = before().any(|own| is_moved[own]);
        if !is_heavy(node.opcode) || node.element.is_some() {
            (ready[at], is_moved[at]) = (first, follows);
            if phase(node.outer) == Phase::Optimizer && steps[at] > back {
                let own = updates.entry(node.outer).or_default();
                own.first = own.first.max(first);
                let read =
                    operands(at).filter(|own| is_moved[*own] && is_heavy(graph.nodes[*own].opcode));
                own.read = read.map(|own| bytes[own]).max().unwrap_or(0).max(own.read);
            }
            continue;
        }
        let layer = layers.of_row(node.row);
        let end = next_start(layer).unwrap_or(deferred);
        // What the loss takes from the logits may wait in the text, as it does where XLA had to rematerialise.
        let read = operands(at).map(|own| bytes[own]).max().unwrap_or(0);
        let waits = steps[at] > back
            && phase(node.row) == Phase::Forward
            && read >= LARGE
            && bytes[at] <= read / 2;
        let is_late = waits
            || match freeing {
                Some(freeing) => steps[at] > back && freeing.contains(&node.outer),
                None => is_work(at) && steps[at] >= end,
            };
        let follows = follows && steps[at] > back && phase(node.row) != Phase::Optimizer;
        ready[at] = steps[at];
        if is_late || follows {
            ready[at] = first.max(start_of(layer)).min(steps[at]);
            is_moved[at] = ready[at] < steps[at];
        }
        let own = moved.entry(node.outer).or_insert(0);
        *own = (*own).max(ready[at]);
    }
    // A row of the optimizer that reads a whole gradient and writes its device's part runs as soon as it can.
    let made = |row: Row| {
        let shapes = module.shapes();
        let shape = module.shape(row);
        let each = shapes.tuple(shape).unwrap_or(std::slice::from_ref(&shape));
        each.iter().filter_map(|own| shapes.logical_bytes(*own)).sum::<u64>()
    };
    for (row, own) in updates {
        if own.read >= LARGE && u64::try_from(own.read).is_ok_and(|read| made(row) <= read / 2) {
            moved.entry(row).and_modify(|step| *step = own.first.max(*step)).or_insert(own.first);
        }
    }
    // Rows that only move values or repeat cheap work come with what reads them.
    let rows = graph.rows();
    let mut first_use = vec![u32::MAX; rows.len()];
    for (row, step) in memory.sequence().iter().zip(0..count).rev() {
        if !rows.contains(row) {
            continue;
        }
        let at = (row - rows.start) as usize;
        let own = Row(*row);
        if step > back {
            new[step as usize] = match moved.get(&own) {
                Some(moved) => step.min(*moved),
                None if phase(own) == Phase::Optimizer => step,
                None => step.min(first_use[at]),
            };
        }
        for operand in module.operands(own).iter().filter(|operand| rows.contains(operand)) {
            let use_of = &mut first_use[(operand - rows.start) as usize];
            *use_of = (*use_of).min(new[step as usize]);
        }
    }
    new
}

/// By step: the step at which its row runs if rows run after the steps `after`. What a row calls runs
/// before it.
pub fn in_order(memory: &Memory, rows: Range<u32>, mut after: Vec<u32>) -> Vec<u32> {
    let mut own = u32::MAX;
    for (row, after) in memory.sequence().iter().zip(&mut after).rev() {
        if rows.contains(row) {
            own = *after;
        }
        *after = own;
    }
    let mut order: Vec<u32> = (0..after.len() as u32).collect();
    order.sort_by_key(|step| after[*step as usize]);
    let mut new = vec![0; order.len()];
    for (place, step) in (0u32..).zip(order) {
        new[step as usize] = place;
    }
    new
}

/// Moves the live ranges of `values` to the steps `new`, and returns the change of the bytes at each
/// step from the step before.
pub fn retime(memory: &Memory, graph: &Graph, new: &[u32], values: &mut [LiveValue]) -> Vec<i64> {
    let mut changes = vec![0i64; new.len() + 1];
    let rows = graph.rows();
    let to = |step: u32| new.get(step as usize).copied().unwrap_or(step);
    for value in values {
        let (first, last) = (value.first_step, value.last_step);
        let mut end = to(last);
        if let Some(node) = node_of(graph, value).filter(|_| rows.contains(&value.row.0)) {
            let users = graph.users(node).iter();
            let read =
                || users.clone().filter_map(|own| memory.step_of(graph.nodes[*own as usize].outer));
            // A value ends before the row that writes over it, as sums over devices do: it goes where that row goes.
            let next = last.saturating_add(1);
            if read().all(|step| step != last) && read().any(|step| step == next) {
                end = to(next).saturating_sub(1);
            }
            let within = read().filter(|step| (first..=last).contains(step));
            end = within.map(to).fold(end, u32::max);
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

/// Whether a product of a gradient frees a larger value of the forward pass. In `unrolled_v6e_8` with nothing saved XLA
/// runs these at once.
pub fn frees_value(
    graph: &Graph,
    phase: impl Fn(Row) -> Phase,
    bytes: impl Fn(u32) -> i64,
    node: u32,
) -> bool {
    if !graph.nodes[node as usize].opcode.is_matmul() {
        return false;
    }
    let (mut gradient, mut value) = (0, 0);
    for own in graph.operands(node) {
        let whole = chain(graph, *own).last().copied().unwrap_or(*own);
        match phase(graph.nodes[whole as usize].row) {
            Phase::Backward => gradient = bytes(*own).max(gradient),
            _ => value = bytes(*own).max(value),
        }
    }
    gradient > 0 && value > gradient
}

/// Whether XLA puts the sums of weight gradients last in any case. It does where loops add them up
/// around a ring while nothing else runs asynchronously in fusions.
pub fn sums_last(module: &Module, graph: &Graph) -> bool {
    let mut loops = graph.nodes.iter().filter(|node| module.opcode(node.outer) == Opcode::While);
    let is_start = |row: Row| {
        module.opcode(row) == Opcode::CustomCall
            && module.attribute_bytes(row, "custom_call_target")
                == Some(b"\"AsyncCollectiveStart\"")
    };
    loops.any(|node| node.opcode.is_matmul()) && !module.rows().any(is_start)
}
