//! `batch-gathered`: activations that are all-gathered along an axis that shards the batch.
//!
//! Only floating-point arrays that are computed from the inputs of the step count. Weights and
//! gradients of weights are gathered along the same axis by FSDP and ZeRO. In the backward pass a
//! gather counts only if a matmul of it is repeated along the axis: partitioners also gather there to
//! compute each shard of a weight's gradient from the whole batch. A gather that the program itself
//! spells (`jax.lax.all_gather` in shard_map) is meant. So is one that the algorithm needs: a matmul of
//! the gathered rows with rows of each device's own (similarities of all pairs of a batch), or a lookup
//! of rows by index (messages along the edges of a graph).
//!
//! A text before partitioning has the constraints that cause gathers, but no gathers.

use super::batch_follows::{Gather, follows, saved_by};
use super::constraint::{Stated, first_size, is_constraint, stated, stated_before};
use super::cut::results;
use super::finding::Measure;
use super::program::{Program, bytes, counted, form, percent};
use super::site::{Rule, Site};
use crate::Provenance;
use crate::comms::{AxisPart, Collective, CollectiveKind, Moved};
use crate::comms::{Varying, axes_text};
use crate::flow::Phase;
use crate::flow::walk::{Trail, Use, conversions, converts, uses};
use crate::ir::{ElementKind, Module, Opcode, Row};
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
    if !program.is_partitioned() {
        return find_constraints(program, sites);
    }
    let Some(varying) = program.varying() else { return };
    let mut reported = Vec::new();
    for (number, collective) in program.collectives.collectives.iter().enumerate() {
        let axes = gathered(program, number);
        if axes != 0 && !is_needed(program, varying, collective, axes) {
            reported.push(Gather { number, axes });
        }
    }
    let follows = follows(program, &reported);
    let known: Vec<usize> = follows.iter().flat_map(|own| &own.saved).map(|own| own.0).collect();
    let others = LazyCell::new(|| left_out(program, varying, &known));
    for (Gather { number, axes }, follows) in reported.iter().zip(&follows) {
        let Some(collective) = program.collectives.collectives.get(*number) else { continue };
        let Some(own) = saved_by(program, *number, *axes) else { continue };
        let mut site = Site::new(collective.row).runs(&program.runs_of(collective)).of(*number);
        site.is_lower_bound |= *others & axes != 0;
        let (mut saved, mut wire, mut seconds) = (0, 0, Some(0.0));
        for (number, bytes) in [(*number, own)].iter().chain(&follows.saved) {
            saved += bytes;
            let part = part_of(program, *number, *bytes).unwrap_or_default();
            wire += part.0;
            seconds = seconds.zip(part.1).map(|(sum, own)| sum + own);
        }
        let left = saved.saturating_sub(follows.added);
        // What the partitioner sends instead is not in the text.
        if !follows.saved.is_empty() || follows.added > 0 {
            site.provenance = Provenance::Modelled;
        }
        site.bytes = Some(left);
        // Reductions that take the place of gathers are taken to send as fast.
        site.seconds = seconds.map(|all| all * left as f64 / saved.max(1) as f64);
        let rows = follows.saved.iter().filter_map(|(number, _)| {
            program.collectives.collectives.get(*number).map(|own| own.row)
        });
        site.evidence.extend(rows);
        site = site
            .sum("gathered_bytes", own)
            .sum("wire_bytes", wire)
            .sum("following_collectives", follows.saved.len() as u64)
            .sum("following_bytes", saved - own)
            .sum("reduced_bytes", follows.added);
        if follows.weights > 0 {
            site = site.sum("weight_bytes", follows.weights);
        }
        site.key = *axes;
        sites.push(site);
    }
}

/// Wire bytes and seconds of `bytes` of the payload of collective `number`.
fn part_of(program: &Program<'_>, number: usize, bytes: u64) -> Option<(u64, Option<f64>)> {
    let collective = program.collectives.collectives.get(number)?;
    let runs = program.runs_of(collective);
    let part = bytes as f64 / runs.times(collective.payload()?)?.max(1) as f64;
    let wire = runs.times(collective.ring_wire_bytes()?)? as f64 * part;
    Some((wire as u64, program.collective_seconds(number).map(|all| all * part)))
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
    if axes == 0 || is_spelled(program, collective) || !is_wasted(program, collective, axes) {
        return 0;
    }
    let mut operands = module.operands(collective.row).iter().map(|row| Row(*row));
    let is_batch = operands.any(|row| is_float(module, row) && varying.is_from_batch(module, row));
    if is_batch { axes } else { 0 }
}

/// Whether the name of `collective` is that of JAX's own primitive, not of an operation that the
/// partitioner made collective.
pub(super) fn is_spelled(program: &Program<'_>, collective: &Collective) -> bool {
    let name = program.op_name(collective.row).unwrap_or_default();
    let last = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    last.starts_with(b"all_gather")
}

/// The batch axes along which the backward pass gathers activations that do not count and are not `known`
/// to follow from what counts. Some of these gathers go too once the batch stays sharded, because gradients
/// of weights are then reduced instead.
fn left_out(program: &Program<'_>, varying: &Varying, known: &[usize]) -> u64 {
    let collectives = program.collectives.collectives.iter().enumerate();
    let axes = collectives.map(|(number, collective)| {
        let axes = varying.of_batch(program.parts(number));
        let is_other = axes != 0
            && !known.contains(&number)
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
/// or with their part of a weight that would take longer to gather, or to look some of them up.
fn is_needed(program: &Program<'_>, varying: &Varying, collective: &Collective, axes: u64) -> bool {
    let module = program.module;
    let gather = (program.runs_of(collective).phase, collective.payload().unwrap_or(0), axes);
    let needs_all = |used: &Use| {
        let opcode = module.opcode(used.row);
        let mut others = module.operands(used.row).iter().enumerate();
        let is_own = |(at, row): (usize, &u32)| {
            let is_batch = varying.is_from_batch(module, Row(*row));
            at != used.operand && is_batch && varying.equal(module, Row(*row)) & axes == 0
        };
        opcode == Opcode::Gather && used.operand == 0
            || opcode.is_matmul()
                && (others.any(is_own) || has_larger_weight(program, used, gather))
    };
    results(module, collective).iter().any(|row| {
        let uses = uses(&program.walk, *row, conversions, |_| true);
        uses.is_some_and(|uses| uses.iter().any(needs_all))
    })
}

/// Whether the other side of the matmul `used` is a weight of which each device along the axes of a `gather`
/// of the forward pass has a part, and which is too large to gather instead: in the forward and in the
/// backward pass, with a reduction of its gradient, instead of a gather of the activation and a reduction of
/// its gradient.
fn has_larger_weight(program: &Program<'_>, used: &Use, gather: (Phase, u64, u64)) -> bool {
    let (phase, payload, axes) = gather;
    let Some(varying) = program.varying().filter(|_| phase == Phase::Forward) else { return false };
    let module = program.module;
    let (_, devices) = axes_text(program.mesh(), axes);
    let others = module.operands(used.row).iter().take(2).enumerate();
    let mut others = others.filter(|(at, _)| *at != used.operand).map(|(_, row)| Row(*row));
    others.any(|row| {
        let is_part = varying.equal(module, row) & axes == 0 && !varying.is_from_batch(module, row);
        let whole = program.bytes(row).saturating_mul(devices);
        is_part && whole.saturating_mul(3) >= payload.saturating_mul(2)
    })
}

/// Before partitioning: constraints of the forward pass that leave out the axes of the batch, though what
/// they constrain is computed from a value that has them.
fn find_constraints(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    for row in module.rows().filter(|row| is_constraint(module, *row)) {
        let is_large = is_float(module, row) && program.bytes(row) >= LEAST;
        let runs = program.runs(row);
        if !is_large || !matches!(runs.phase, Phase::Forward | Phase::Recompute) {
            continue;
        }
        let Some(own) = stated(program, row).filter(|own| !own.is_open(0)) else { continue };
        let Some(inputs) = program.inputs() else { return };
        let lost = |before: Stated| Some(inputs.batch() & before.axes.first()? & !own.all());
        let Some(operand) = module.operands(row).first().map(|row| Trail::new(Row(*row))) else {
            continue;
        };
        let axes = stated_before(program, operand).and_then(lost).unwrap_or(0);
        let (_, devices) = axes_text(program.mesh(), axes);
        let (_, parts) = axes_text(program.mesh(), own.all());
        let payload = program.bytes(row).div_ceil(parts.max(1));
        if axes == 0
            || !inputs.is_from_batch(module, row)
            || is_compared(program, inputs, row, (payload, axes))
        {
            continue;
        }
        let mut site = Site::new(row).runs(&runs);
        // The text does not have the collectives that follow from it.
        site.is_lower_bound = true;
        site.provenance = Provenance::Modelled;
        site.bytes = runs.times(payload);
        let wire = CollectiveKind::AllGather.ring_wire_bytes(payload, devices);
        site = site.sum("wire_bytes", runs.times(wire).unwrap_or(0));
        site.key = axes;
        sites.push(site);
    }
}

/// The size of the smallest constrained arrays that count.
const LEAST: u64 = 1 << 20;

/// Before partitioning: whether `weight` is stated to be in parts along the axes of a gather, and is too large
/// to gather instead.
fn is_larger(program: &Program<'_>, weight: Row, gather: (u64, u64)) -> bool {
    let (payload, axes) = gather;
    let origin = Trail::new(weight).follow(program.module, converts).row;
    let Some(own) = stated(program, origin).filter(|own| own.all() & axes == axes) else {
        return false;
    };
    // Along the other axes of the batch it is gathered in any case.
    let batch = program.inputs().map_or(0, Varying::batch);
    let (_, parts) = axes_text(program.mesh(), own.all() & !axes & !batch);
    let whole = program.bytes(weight).div_ceil(parts.max(1));
    whole.saturating_mul(3) >= payload.saturating_mul(2)
}

pub(super) fn is_float(module: &Module, row: Row) -> bool {
    let array = module.shapes().array(module.shape(row));
    array.is_some_and(|array| array.element_type.kind() == ElementKind::Float)
}

/// Whether a matmul of the forward pass multiplies `row` with other activations, similarities of all pairs
/// of a batch, or with a weight that would take longer to gather: see `has_larger_weight`.
fn is_compared(program: &Program<'_>, inputs: &Varying, row: Row, gather: (u64, u64)) -> bool {
    let (payload, axes) = gather;
    let module = program.module;
    let size = first_size(module, row);
    let is_product = |used: &Use| {
        let others = module.operands(used.row).iter().take(2).enumerate();
        let mut others = others.filter(|(at, _)| *at != used.operand).map(|(_, row)| Row(*row));
        module.opcode(used.row).is_matmul()
            && program.runs(used.row).phase == Phase::Forward
            && first_size(module, used.row) == size
            && others.any(|row| {
                inputs.is_from_batch(module, row) || is_larger(program, row, (payload, axes))
            })
    };
    let uses = uses(&program.walk, row, conversions, |_| true);
    uses.is_some_and(|uses| uses.iter().any(is_product))
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let (axes, devices) = axes_text(program.mesh(), site.key);
    let saved = site.bytes.unwrap_or(0);
    if !program.is_partitioned() {
        return format!(
            "{} activations without {axes} ({devices} devices), which shards the batch: every device \
             then holds the activations of all {devices}, gathered with at least {} of payload per \
             step and device, {} on the wire",
            counted(
                site.places,
                "constraint states a sharding of",
                "constraints state shardings of"
            ),
            bytes(saved),
            bytes(site.figure("wire_bytes")),
        );
    }
    let follows = match site.figure("following_collectives") {
        0 => String::new(),
        count => format!(
            ", and {} of {} that {}: gathers of gradients, and activations with the rows of all devices",
            bytes(site.figure("following_bytes")),
            counted(count, "collective", "collectives"),
            form(count, "follows", "follow"),
        ),
    };
    let reduced = match site.figure("reduced_bytes") {
        0 => String::new(),
        reduced => format!(
            "; reductions of weight gradients{} take the place of {}",
            match site.figure("weight_bytes") {
                0 => "",
                _ => ", and gathers of weights that are sharded along these axes,",
            },
            bytes(reduced)
        ),
    };
    let is_alone = site.figure("following_collectives") == 0 && site.figure("reduced_bytes") == 0;
    let together = if is_alone { String::new() } else { format!("; together {}", bytes(saved)) };
    format!(
        "{} activations along {axes} ({devices} devices), which shards the batch: every device \
         then holds the activations of all {devices}. {} of payload per step go{follows}{reduced}{together}, \
         {} of all collectives, and {} on the wire",
        counted(site.places, "all-gather collects", "all-gathers collect"),
        bytes(site.figure("gathered_bytes")),
        percent(saved, program.payload()),
        bytes(site.figure("wire_bytes")),
    )
}
