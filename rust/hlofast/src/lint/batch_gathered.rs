//! `batch-gathered`: activations that are all-gathered along an axis that shards the batch.
//!
//! Only floating-point arrays that are computed from the inputs of the step count. Weights and
//! gradients of weights are gathered along the same axis by FSDP and ZeRO. In the backward pass a
//! gather counts only if a matmul of it is repeated along the axis: partitioners also gather there to
//! compute each shard of a weight's gradient from the whole batch. A gather that the program itself
//! spells (`jax.lax.all_gather` in shard_map) is meant. So is one that the algorithm needs: a matmul of
//! the gathered rows with rows of each device's own (similarities of all pairs of a batch), or a lookup
//! of rows by index (messages along the edges of a graph).

use super::cut::results;
use super::finding::Measure;
use super::program::{Program, bytes, counted, percent};
use super::site::{Rule, Site};
use super::varying::{Varying, axes_text};
use super::walk::{Use, conversions, uses};
use crate::comms::{AxisPart, Collective, CollectiveKind, Moved};
use crate::flow::Phase;
use crate::ir::{ElementKind, Opcode, Row};
use std::cell::LazyCell;

pub(super) const RULE: Rule = Rule {
    code: "batch-gathered",
    what: "activations that are all-gathered along the axis of the batch",
    measure: Measure::Payload,
    find,
    message,
    remedy: "keep the batch dimension sharded: constrain the activation with \
             jax.lax.with_sharding_constraint and the axes of the batch on its first dimension; a \
             constraint with None on that dimension gathers the batch; the weight gradients are \
             then all-reduced along these axes",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let Some(varying) = program.varying() else { return };
    let others = LazyCell::new(|| left_out(program, varying));
    for (number, collective) in program.collectives.collectives.iter().enumerate() {
        let axes = gathered(program, number);
        let Some(payload) = collective.payload().filter(|_| axes != 0) else { continue };
        if is_needed(program, varying, collective, axes) {
            continue;
        }
        let runs = program.runs_of(collective);
        let wire = collective.ring_wire_bytes().and_then(|wire| runs.times(wire));
        let mut site = Site::new(collective.row).runs(&runs).of(number);
        site.is_lower_bound |= *others & axes != 0;
        site.bytes = runs.times(payload);
        site = site.sum("wire_bytes", wire.unwrap_or(0));
        site.key = axes;
        sites.push(site);
    }
}

/// The batch axes along which collective `number` gathers activations; 0 if it does not.
pub(super) fn gathered(program: &Program<'_>, number: usize) -> u64 {
    let module = program.module;
    let (Some(varying), Some(collective)) =
        (program.varying(), program.collectives.collectives.get(number))
    else {
        return 0;
    };
    if collective.kind != CollectiveKind::AllGather || collective.moved != Moved::Activation {
        return 0;
    }
    let parts: &[AxisPart] = program.parts(number);
    let axes = varying.of_batch(parts);
    let is_float = |row: Row| {
        let array = module.shapes().array(module.shape(row));
        array.is_some_and(|array| array.element_type.kind() == ElementKind::Float)
    };
    if axes == 0 || is_spelled(program, collective) || !is_wasted(program, collective, axes) {
        return 0;
    }
    let mut operands = module.operands(collective.row).iter().map(|row| Row(*row));
    let is_batch = operands.any(|row| is_float(row) && varying.is_from_batch(module, row));
    if is_batch { axes } else { 0 }
}

/// Whether the name of `collective` is that of JAX's own primitive, not of an operation that the
/// partitioner made collective.
fn is_spelled(program: &Program<'_>, collective: &Collective) -> bool {
    let name = program.op_name(collective.row).unwrap_or_default();
    let last = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    last.starts_with(b"all_gather")
}

/// The batch axes along which the backward pass gathers activations that do not count. Some of these
/// gathers go too once the batch stays sharded, because gradients of weights are then reduced instead.
fn left_out(program: &Program<'_>, varying: &Varying) -> u64 {
    let collectives = program.collectives.collectives.iter().enumerate();
    let axes = collectives.map(|(number, collective)| {
        let axes = varying.of_batch(program.parts(number));
        let is_other = axes != 0
            && collective.kind == CollectiveKind::AllGather
            && collective.moved == Moved::Activation
            && program.runs_of(collective).phase == Phase::Backward
            && !is_wasted(program, collective, axes);
        if is_other { axes } else { 0 }
    });
    axes.fold(0, |all, axes| all | axes)
}

/// Whether the gather is in the forward pass, or a matmul of its result is repeated along `axes`.
fn is_wasted(program: &Program<'_>, collective: &Collective, axes: u64) -> bool {
    if program.runs_of(collective).phase != Phase::Backward {
        return true;
    }
    let module = program.module;
    let repeats = |used: &Use| {
        let varying = program.varying();
        let equal = varying.map_or(0, |varying| varying.equal_operands(module, used.row));
        program.product_flops(used.row).is_some_and(|flops| flops > 0) && equal & axes != 0
    };
    results(module, collective).iter().any(|row| {
        let uses = uses(&program.walk, *row, conversions, |_| true);
        uses.is_some_and(|uses| uses.iter().any(repeats))
    })
}

/// Whether devices need the rows of all others: to multiply them with activations that differ along `axes`,
/// or to look some of them up.
fn is_needed(program: &Program<'_>, varying: &Varying, collective: &Collective, axes: u64) -> bool {
    let module = program.module;
    let needs_all = |used: &Use| {
        let opcode = module.opcode(used.row);
        let mut others = module.operands(used.row).iter().enumerate();
        let is_own = |(at, row): (usize, &u32)| {
            let is_batch = varying.is_from_batch(module, Row(*row));
            at != used.operand && is_batch && varying.equal(module, Row(*row)) & axes == 0
        };
        opcode == Opcode::Gather && used.operand == 0 || opcode.is_matmul() && others.any(is_own)
    };
    results(module, collective).iter().any(|row| {
        let uses = uses(&program.walk, *row, conversions, |_| true);
        uses.is_some_and(|uses| uses.iter().any(needs_all))
    })
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let (axes, devices) = axes_text(program, site.key);
    let gathered = site.bytes.unwrap_or(0);
    format!(
        "{} activations along {axes} ({devices} devices), which shards the batch: every device \
         then holds the activations of all {devices}. {} of payload per step, {} of all \
         collectives, and {} on the wire",
        counted(site.places, "all-gather collects", "all-gathers collect"),
        bytes(gathered),
        percent(gathered, program.payload()),
        bytes(site.figure("wire_bytes")),
    )
}
