//! What it costs to keep values from the forward to the backward loop, besides memory.
//!
//! A loop writes each stack in a row of its body; before the loop another row fills the stack, and on GPUs
//! kernels copy the whole stack into another order. A policy that keeps a value no longer, or keeps
//! another one, changes these seconds. A row that only moves the stack goes with it. A row that also
//! makes the value stays, without the stores: they are slow if the layout of the stack is not that of the
//! value, so what stays takes `PLAIN` times the bound by its FLOPs and its other bytes, if that is less.
//! So does a row of the backward loop that computes with a slice of a stack which is dropped, unless a
//! fusion that runs again leaves the value in memory as it does in the forward loop; rows that only take
//! the slice out and copy it go (`loaded.rs`). A collective stays: it sends the recomputed value.
//! A row whose values nothing else reads goes. In groups of layers, the stack of one group is filled,
//! copied into the stack of all groups, and taken out of it again. Layers without a loop have no stacks:
//! what they keep is written and read anyway. `benches/h100_steps.py` compares with clocks,
//! `benches/what_if_accuracy.py --policies` and, for groups, `benches/policy_accuracy.py` with the time
//! model on compiled texts.

use super::again::Again;
use super::price::Prices;
use super::scans::Scan;
use crate::flow::updates;
use crate::ir::{CallRole, Module, Opcode, Row};

/// The time of a row without its stores, over the bound by its FLOPs and other bytes: of 1.0, 1.3 and 1.6
/// the one with the least median error on texts for TPUs without checkpointing, whose layouts differ most.
/// Together with reads that are dropped too, 1.0 and 1.6 have larger errors of chosen policies or of others.
pub const PLAIN: f64 = 1.3;
/// How often a value that is kept passes HBM: to be written and to be read.
const PASSES: f64 = 2.0;
/// How often a value passes HBM, at least, that is kept and was not before: what makes it writes it, a row of
/// its own copies it into the stack or to the host, and the backward loop reads it. So XLA compiles scores of
/// attention that a policy saves (`held_long_v5p_16`); on an H200, saving them made `gelu` and `wide`
/// slower, and `vision`, `pair` and `small` little faster (`tests/fixtures/h100/plans.json`).
const PASSES_ANEW: f64 = 4.0;
/// The same in groups of layers: of 4 to 20, the number with the least median error of step times from 18
/// texts of `policy_groups` compiled under a policy to one that keeps more (4.5 %; 9.3 % with 4; of the 9
/// texts held out 1.9 % and 4.6 %). `benches/policy_accuracy.py --groups` judges all of them.
const PASSES_ANEW_IN_GROUPS: f64 = 14.0;
/// Limit on the users of a row that are looked at.
const MOST_USERS: usize = 64;

/// Seconds by which the forward and the backward pass are longer than they are, because of what the
/// scans keep under a policy; negative if they keep less. None without the seconds of rows, the
/// bandwidth, or the number of runs.
pub fn stored(module: &Module, scans: &[Again<'_>], prices: &Prices<'_>) -> Option<[f64; 2]> {
    prices.seconds?;
    let rate = prices.bytes_per_second?;
    // One row may fill, write or copy stacks of several scans.
    let mut rows: Vec<(Row, bool, i64)> = Vec::new();
    // The same for rows that read stacks, with whether they only move them.
    let mut readers: Vec<(Row, bool, i64, bool)> = Vec::new();
    let mut seconds = [0.0; 2];
    // Bytes of all stacks, and of what the policy keeps besides them.
    let (mut stacked, mut anew) = (0.0, 0.0);
    for again in scans {
        let scan = again.scan;
        let runs = prices.runs(scan.body_id)? as f64 * scan.share();
        // In a loop over parts of a batch, the scan runs once for each.
        let whole = runs / (scan.trips as f64).max(1.0);
        for stack in scan.stacks.iter().filter(|stack| !stack.is_host && !stack.is_weight) {
            let is_kept = again.stores(stack.node);
            let bytes = (stack.bytes as f64 * whole) as i64;
            rows.extend(stack.rows.iter().map(|row| (*row, is_kept, bytes)));
            // Where what makes the value again leaves it in memory, what computes with it reads it as before.
            let is_left = again.leaves(stack.node);
            let read =
                |(row, moves): &(Row, bool)| (*row, is_kept || is_left && !moves, bytes, *moves);
            readers.extend(stack.readers.iter().map(read));
            stacked += bytes as f64;
        }
        let own = runs * again.kept_anew().map(|bytes| bytes as f64).sum::<f64>();
        match scan.group {
            // Half of the passes are those of the backward loop.
            Some(_) => {
                let passed = PASSES_ANEW_IN_GROUPS * own / rate;
                seconds = seconds.map(|own| own + passed / 2.0);
            }
            None => anew += own,
        }
    }
    rows.sort_unstable();
    for own in rows.chunk_by(|a, b| a.0 == b.0) {
        let (kept, dropped) = by_fate(own.iter().map(|entry| (entry.1, entry.2)));
        if dropped > 0.0 {
            let all = stores(module, own[0].0, kept + dropped, rate, prices)?;
            seconds[0] -= all * dropped / (kept + dropped);
        }
    }
    readers.sort_unstable();
    for own in readers.chunk_by(|a, b| a.0 == b.0) {
        let (kept, dropped) = by_fate(own.iter().map(|entry| (entry.1, entry.2)));
        if dropped > 0.0 {
            // A row may move the slice of one stack, and compute with that of another.
            let (row, is_move) = (own[0].0, own.iter().all(|entry| entry.3));
            // A row that computes still waits for the slices that are kept.
            if is_move || kept <= 0.0 {
                let all = loads(module, row, is_move, prices)?;
                seconds[1] -= all * dropped / (kept + dropped);
            }
        }
    }
    if anew > 0.0 {
        // XLA for TPUs stacks what is kept anew as it stacks other values, with as many copies into other layouts.
        let known = match scans.iter().any(Again::is_on_tpu) {
            true => moving(module, &rows, &readers, rate, prices)?,
            false => 0.0,
        };
        let passed = anew * (known / stacked.max(1.0)).max(PASSES_ANEW / rate);
        seconds = seconds.map(|own| own + passed / 2.0);
    }
    Some(seconds)
}

/// Seconds of the rows that fill, write and copy stacks, and of those of the backward loops that only move their
/// values. Both lists are in order.
fn moving(
    module: &Module,
    rows: &[(Row, bool, i64)],
    readers: &[(Row, bool, i64, bool)],
    rate: f64,
    prices: &Prices<'_>,
) -> Option<f64> {
    let mut seconds = 0.0;
    for own in rows.chunk_by(|a, b| a.0 == b.0) {
        let bytes = own.iter().map(|own| own.2 as f64).sum();
        seconds += stores(module, own[0].0, bytes, rate, prices)?;
    }
    for own in readers.chunk_by(|a, b| a.0 == b.0).filter(|own| own.iter().all(|own| own.3)) {
        seconds += loads(module, own[0].0, true, prices)?;
    }
    Some(seconds)
}

/// Seconds in which a value of the forward body that the text stacks is written again: those of the rows that stack
/// it, as far as they do.
pub fn remade(module: &Module, scan: &Scan, node: u32, prices: &Prices<'_>) -> Option<f64> {
    let stack = scan.stacks.iter().find(|own| own.node == node)?;
    let is_own = |row: &&Row| module.computation_of(**row) == scan.body_id;
    let mut sum = 0.0;
    for row in stack.rows.iter().filter(is_own) {
        let all = scan.stacks.iter().filter(|own| own.rows.binary_search(row).is_ok());
        let all: f64 = all.map(|own| own.bytes as f64).sum();
        sum += prices.seconds_of(module, *row, 0)? * (stack.bytes as f64 / all.max(1.0)).min(1.0);
    }
    Some(sum)
}

/// Bytes that are kept and bytes that are dropped, of pairs of whether they are kept and bytes.
fn by_fate(bytes: impl Iterator<Item = (bool, i64)>) -> (f64, f64) {
    bytes.fold((0.0, 0.0), |(kept, dropped), (is_kept, bytes)| match is_kept {
        true => (kept + bytes as f64, dropped),
        false => (kept, dropped + bytes as f64),
    })
}

/// Seconds of all runs of a row that reading stacks takes. Transfers run beside other work, and products
/// read the recomputed value as well.
fn loads(module: &Module, row: Row, is_move: bool, prices: &Prices<'_>) -> Option<f64> {
    use Opcode::{AsyncDone, AsyncStart, CopyDone, CopyStart};
    let runs_beside = |own| matches!(own, AsyncDone | AsyncStart | CopyDone | CopyStart);
    if runs_beside(module.opcode(row)) || multiplies(module, row) {
        return Some(0.0);
    }
    // A collective sends the recomputed value.
    if prices.sends(row) {
        return Some(0.0);
    }
    let seconds = prices.seconds_of(module, row, 0)?;
    Some(match is_move {
        true => seconds,
        false => (seconds - plain(module, row, 0.0, prices)?).max(0.0),
    })
}

fn multiplies(module: &Module, row: Row) -> bool {
    let opcode = module.opcode(row);
    let fused = module.called(row, CallRole::Calls).filter(|_| opcode == Opcode::Fusion);
    let mut rows = fused.into_iter().flat_map(|id| module.computation(id).rows());
    opcode.is_matmul() || rows.any(|row| module.opcode(Row(row)).is_matmul())
}

/// Seconds of all runs of `row` that the stores into stacks take; `bytes` are those of the stacks.
fn stores(module: &Module, row: Row, bytes: f64, rate: f64, prices: &Prices<'_>) -> Option<f64> {
    if module.opcode(row) == Opcode::AsyncStart {
        // Copies beside kernels take bandwidth from them on GPUs.
        return Some(PASSES * bytes / rate);
    }
    let known = prices.only_stores.borrow().get(&row).copied();
    let is_only = known.unwrap_or_else(|| only_moves(module, row) || only_stores(module, row));
    prices.only_stores.borrow_mut().insert(row, is_only);
    let seconds = prices.seconds_of(module, row, 0)?;
    match is_only {
        true => Some(seconds),
        false => Some((seconds - plain(module, row, bytes, prices)?).max(0.0)),
    }
}

/// Seconds of all runs of `row` if it does not write `less` bytes of what it does, at most those that it
/// takes.
pub fn plain(module: &Module, row: Row, less: f64, prices: &Prices<'_>) -> Option<f64> {
    let seconds = prices.seconds_of(module, row, 0)?;
    let bound = prices.bound_without(module, row, less);
    Some(bound.map_or(seconds, |bound| seconds.min(PLAIN * bound)))
}

/// Bytes of stacks that all runs of `row` write.
pub fn written(scan: &Scan, row: Row, prices: &Prices<'_>) -> Option<f64> {
    let runs = prices.runs(scan.body_id)? as f64 * scan.share();
    let whole = runs / (scan.trips as f64).max(1.0);
    let stacks = scan.stacks.iter().filter(|stack| stack.rows.binary_search(&row).is_ok());
    Some(stacks.map(|stack| stack.bytes as f64 * whole).sum())
}

/// Whether `row` writes one of the stacks of `scan`.
pub fn writes_stack(scan: &Scan, row: Row) -> bool {
    scan.stack_rows.binary_search(&row).is_ok()
}

/// Whether nothing but its place in the loop's result needs a fusion that writes stacks: what else
/// reads its values recomputes them.
fn only_stores(module: &Module, row: Row) -> bool {
    let root = module.computation(module.computation_of(row)).root;
    let mut open = vec![row];
    for _ in 0..MOST_USERS {
        let Some(at) = open.pop() else { break };
        for user in module.users().get(at.0).iter().copied().map(Row) {
            match module.opcode(user) {
                _ if user.0 == root => {}
                Opcode::GetTupleElement | Opcode::Bitcast => open.push(user),
                _ => return false,
            }
        }
    }
    let updates = updates(module, row);
    open.is_empty() && !updates.is_empty() && updates.iter().all(Option::is_some)
}

/// Whether a row computes nothing but where it writes.
pub fn only_moves(module: &Module, row: Row) -> bool {
    let fused = match module.opcode(row) {
        Opcode::Fusion => module.called(row, CallRole::Calls),
        _ => None,
    };
    let rows = fused.map_or(row.0..row.0 + 1, |id| module.computation(id).rows());
    rows.map(Row).all(|row| moves(module, row) || is_small(module, row))
}

fn moves(module: &Module, row: Row) -> bool {
    use Opcode::{
        Bitcast, Broadcast, Constant, Convert, Copy, DynamicSlice, DynamicUpdateSlice,
        GetTupleElement, Parameter, Reshape, Slice, Transpose, Tuple,
    };
    matches!(
        module.opcode(row),
        Bitcast
            | Broadcast
            | Constant
            | Convert
            | Copy
            | DynamicSlice
            | DynamicUpdateSlice
            | GetTupleElement
            | Parameter
            | Reshape
            | Slice
            | Transpose
            | Tuple
    )
}

/// Whether a row makes one number, such as the place of a slice.
fn is_small(module: &Module, row: Row) -> bool {
    let array = module.shapes().array(module.shape(row));
    array.is_some_and(|array| array.elements().is_some_and(|count| count <= 1))
}
