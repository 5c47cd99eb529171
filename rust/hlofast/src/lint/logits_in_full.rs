//! `logits-in-full`: logits over the vocabulary that several devices hold in full.
//!
//! Logits are the matmul of an activation with a weight whose result is reduced by a maximum along
//! one dimension: the first step of a softmax. Only dimensions of at least `LEAST` elements
//! count: routers and heads of attention have fewer.
//!
//! Logits that devices compute in parts and then all-gather along the vocabulary are held in full too.
//!
//! Before partitioning, the constraint on the logits or, without one, the sharding of the weight says which
//! axes of the mesh divide neither the batch nor the vocabulary.

use super::along::MOST_AXES;
use super::constraint::{Stated, is_constraint, stated};
use super::finding::Measure;
use super::program::{Program, bytes, counted, form, grouped};
use super::site::{Rule, Site};
use super::varying::axes_text;
use super::walk::{Trail, converts};
use crate::Provenance;
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::{CallRole, Module, Opcode, Row};
use crate::memory::Alike;

pub(super) const RULE: Rule = Rule {
    code: "logits-in-full",
    what: "logits over the vocabulary that are replicated on several devices",
    measure: Measure::Memory,
    find,
    message,
    remedy: "shard the vocabulary along these axes: in the PartitionSpec of the output embedding, \
             and with jax.lax.with_sharding_constraint on the logits, which adds all-reduces of a \
             few numbers per token; or compute the loss for a part of the sequence at a time \
             (lax.map over a jax.checkpoint)",
};

/// The least size of a vocabulary.
const LEAST: u64 = 2048;

/// What lies between logits and the maximum: conversions, and functions of single elements.
fn keeps(opcode: Opcode) -> bool {
    use Opcode::*;
    converts(opcode)
        || matches!(
            opcode,
            AllReduce | AllReduceStart | AllReduceDone | Multiply | Divide | Tanh | Add | Clamp
        )
}

/// Whether `row` gathers the dimension of a vocabulary of `size`.
fn gathers_vocabulary(module: &Module, row: Row, size: u64) -> bool {
    if !matches!(module.opcode(row), Opcode::AllGather | Opcode::AllGatherStart) {
        return false;
    }
    let dimension = || {
        let text = module.attribute_bytes(row, "dimensions")?;
        let decoded = decode(b"dimensions", module.opcode(row), text).ok()?;
        let AttributeValue::Integers(dimensions) = decoded else { return None };
        let &[dimension] = &dimensions[..] else { return None };
        let own = module.shapes().leaves(module.shape(row)).last()?;
        let own = module.shapes().array(own)?.dimension(usize::try_from(dimension).ok()?)?;
        u64::try_from(own.bound()?).ok()
    };
    dimension() == Some(size)
}

/// The way back from `logits`, over a vocabulary of `size`, to the row that makes them, and the
/// all-gather on the way.
fn made(module: &Module, logits: Row, size: u64) -> (Trail, Option<Row>) {
    let mut trail = Trail::new(logits);
    let mut gather = None;
    loop {
        if gathers_vocabulary(module, trail.row, size)
            && gather.is_none()
            && let Some(shard) = trail.operand(module, 0)
        {
            gather = Some(trail.row);
            trail = shard;
        } else if module.opcode(trail.row) == Opcode::AllGatherDone
            && let Some(start) = trail.operand(module, 0)
        {
            trail = start;
        } else if !trail.step(module, keeps) {
            return (trail, gather);
        }
    }
}

/// The number and the size of the only dimension that `row` reduces by a maximum.
fn maximum_over(module: &Module, row: Row) -> Option<(usize, u64)> {
    if module.opcode(row) != Opcode::Reduce {
        return None;
    }
    let applied = module.computation(module.called(row, CallRole::ToApply)?);
    if module.opcode(Row(applied.root)) != Opcode::Maximum {
        return None;
    }
    let text = module.attribute_bytes(row, "dimensions")?;
    let AttributeValue::Integers(dimensions) = decode(b"dimensions", Opcode::Reduce, text).ok()?
    else {
        return None;
    };
    let &[dimension] = &dimensions[..] else { return None };
    let array = module.shapes().array(module.shape(Row(*module.operands(row).first()?)))?;
    let dimension = usize::try_from(dimension).ok()?;
    Some((dimension, u64::try_from(array.dimension(dimension)?.bound()?).ok()?))
}

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    if !program.is_partitioned() {
        return find_written(program, sites);
    }
    let Some(varying) = program.varying() else { return };
    let module = program.module;
    let products: std::collections::HashSet<Row> = program.products().collect();
    let mut seen = std::collections::HashSet::new();
    for row in module.rows() {
        let Some((_, size)) = maximum_over(module, row).filter(|(_, size)| *size >= LEAST) else {
            continue;
        };
        let Some(&logits) = module.operands(row).first() else { continue };
        let axes = varying.equal(module, Row(logits));
        let (_, devices) = axes_text(program, axes);
        let (trail, gather) = made(module, Row(logits), size);
        if axes == 0 || devices < 2 || !products.contains(&trail.row) {
            continue;
        }
        // One side is computed from the batch, the other is a weight: no scores of attention.
        let sides = module.operands(trail.row).iter().take(2);
        let activations = sides.filter(|row| varying.is_from_batch(module, Row(**row))).count();
        if activations != 1 || !seen.insert(trail.row) {
            continue;
        }
        let whole = gather.unwrap_or(trail.row);
        let Some(held) = held(program, whole) else { continue };
        let mut site = Site::new(trail.row).runs(&program.runs(trail.row));
        site.evidence.extend(gather);
        site.evidence.push(row);
        // One array is live, however often it is computed.
        site.bytes = Some(held - held / devices);
        site = site.sum("held_bytes", held).common("devices", devices).common("vocabulary", size);
        site.key = axes;
        // A weight that was gathered has the whole vocabulary too, and so has its gradient.
        let sides = module.operands(trail.row).iter().take(2).map(|row| Row(*row));
        let weight = sides.filter(|row| {
            let made = Trail::new(*row).follow(module, converts).row;
            !varying.is_from_batch(module, *row) && module.opcode(made) != Opcode::Parameter
        });
        let alike = std::iter::once(whole).chain(weight).filter_map(|row| elements(module, row));
        let alike = alike.map(|elements| Alike { elements, dimension: size, parts: devices });
        site.change.divided.extend(alike);
        sites.push(site);
    }
}

/// Before partitioning: logits whose vocabulary no axis divides, although axes are left that divide neither
/// the batch.
fn find_written(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    let mut seen = std::collections::HashSet::new();
    for row in module.rows() {
        let Some((at, size)) = maximum_over(module, row).filter(|(_, size)| *size >= LEAST) else {
            continue;
        };
        let Some(&logits) = module.operands(row).first() else { continue };
        let mut own = None;
        let mut trail = Trail::new(Row(logits)).follow(module, keeps);
        while is_constraint(module, trail.row)
            && let Some(before) = trail.operand(module, 0)
        {
            own = own.or_else(|| stated(program, trail.row));
            trail = before.follow(module, keeps);
        }
        let product = trail.row;
        if !module.opcode(product).is_matmul() || !seen.insert(product) {
            continue;
        }
        let Some(inputs) = program.inputs() else { return };
        let is_batch = |index: usize| {
            let side = module.operands(product).get(index);
            side.is_some_and(|side| inputs.is_from_batch(module, Row(*side)))
        };
        let weight = match (is_batch(0), is_batch(1)) {
            (true, false) => 1,
            (false, true) => 0,
            _ => continue,
        };
        let used = match &own {
            Some(own) if own.is_open(at) => continue,
            Some(own) if own.axes.get(at).is_none_or(|axes| *axes != 0) => continue,
            Some(own) => own.all(),
            None => {
                let Some(weight) = trail.operand(module, weight) else { continue };
                let Some(weight) = stated_of_weight(program, weight) else { continue };
                weight.all() | inputs.batch()
            }
        };
        let all = program.mesh().map(|mesh| mesh.axes()).unwrap_or_default().iter().enumerate();
        let all = all.filter(|(axis, own)| *axis < MOST_AXES && own.size > 1);
        let left = all.fold(0, |left, (axis, _)| left | 1 << axis) & !used;
        let (_, devices) = axes_text(program, left);
        let (_, parts) = axes_text(program, inputs.batch());
        if devices < 2 {
            continue;
        }
        let held = program.bytes(product).div_ceil(parts.max(1));
        let mut site = Site::new(product).runs(&program.runs(product));
        site.evidence.push(row);
        site.bytes = Some(held - held / devices);
        site.provenance = Provenance::Modelled;
        site = site.sum("held_bytes", held).common("devices", devices).common("vocabulary", size);
        site.key = left;
        sites.push(site);
    }
}

/// The sharding of the parameter that the weight at `trail` is, or of the constraint on it.
fn stated_of_weight(program: &Program<'_>, trail: Trail) -> Option<Stated> {
    let module = program.module;
    let weight = trail.follow(module, converts).row;
    let is_parameter = module.opcode(weight) == Opcode::Parameter
        && module.computation_of(weight) == module.entry();
    (is_parameter || is_constraint(module, weight)).then(|| stated(program, weight)).flatten()
}

/// The elements of the array that `row` makes; the start of a gather returns its operand first.
fn elements(module: &Module, row: Row) -> Option<u64> {
    let leaf = module.shapes().leaves(module.shape(row)).last()?;
    module.shapes().array(leaf)?.elements()
}

/// The bytes of the result of `row`, or of an array as large that the fusion around it returns.
fn held(program: &Program<'_>, row: Row) -> Option<u64> {
    let module = program.module;
    let elements = elements(module, row)?;
    let outer = program.scheduled(row);
    let leaves = module.shapes().leaves(module.shape(outer));
    let arrays = leaves.filter_map(|leaf| module.shapes().array(leaf));
    let alike = arrays.filter(|array| array.elements() == Some(elements));
    alike.filter_map(|array| array.logical_bytes()).max()
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let (axes, devices) = axes_text(program, site.key);
    let is_gather = |row: &Row| {
        matches!(program.module.opcode(*row), Opcode::AllGather | Opcode::AllGatherStart)
    };
    let how = match site.evidence.iter().any(is_gather) {
        true => "all-gathered, and so replicated",
        false => "replicated",
    };
    format!(
        "{} logits over a vocabulary of {}, {how} on all {devices} devices along {axes}: {} \
         per device, of which sharding saves {}{}{}",
        counted(site.places, "matmul makes", "matmuls make"),
        grouped(site.figure("vocabulary")),
        bytes(site.figure("held_bytes")),
        bytes(site.bytes.unwrap_or(0)),
        form(site.places, "", " if all are live"),
        site.peak().map(falls).unwrap_or_default(),
    )
}

/// By how much the peak falls. Arrays of the size of the logits shrink too: logits in f32, exponentials,
/// their gradient. Others may then not be made at all: fusions of smaller arrays differ.
fn falls(peak: u64) -> String {
    if peak == 0 {
        return "; the peak of memory is where other values are live, and stays".to_owned();
    }
    format!(
        "; the peak of memory falls by at least {}, with the arrays of that size which are computed \
         from them",
        bytes(peak)
    )
}
