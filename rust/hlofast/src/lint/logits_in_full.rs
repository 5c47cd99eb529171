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

use super::constraint::{Stated, is_constraint, stated};
use super::finding::Measure;
use super::program::{Program, bytes, counted, form, grouped};
use super::site::{Rule, Site};
use crate::Provenance;
use crate::comms::{MOST_AXES, Varying, axes_text};
use crate::cost::Backend;
use crate::flow::Phase;
use crate::flow::walk::{Trail, converts};
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::intern::BuildMix;
use crate::ir::{ArrayShape, CallRole, Module, Opcode, Row, ShapeId};
use crate::memory::{Alike, Change, Resized, Spared};

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

/// Limit on the logits for which other arrays of the program are looked through.
const MOST_FOLLOWED: usize = 64;

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

/// The reductions of `module`.
fn reductions(module: &Module) -> impl Iterator<Item = Row> + '_ {
    let opcodes = module.columns().opcodes.iter().zip(0..);
    opcodes.filter(|(opcode, _)| **opcode == Opcode::Reduce).map(|(_, row)| Row(row))
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
    let products: std::collections::HashSet<Row, BuildMix> = program.products().collect();
    let mut seen = std::collections::HashSet::new();
    for row in reductions(module) {
        let Some((_, size)) = maximum_over(module, row).filter(|(_, size)| *size >= LEAST) else {
            continue;
        };
        let Some(&logits) = module.operands(row).first() else { continue };
        let axes = varying.equal(module, Row(logits));
        let (_, devices) = axes_text(program.mesh(), axes);
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
        let alike = |row| {
            let elements = elements(module, row)?;
            Some(Alike { elements, dimension: size, parts: devices, bits: None })
        };
        site.change.divided.extend(alike(whole));
        let is_followed = seen.len() <= MOST_FOLLOWED;
        if let Some(gather) = gather.filter(|_| is_followed) {
            ungathered(program, &mut site.change, (gather, trail.row), (size, devices));
        }
        // A weight that was gathered has the whole vocabulary too, and so has its gradient.
        let sides = module.operands(trail.row).iter().take(2).map(|row| Row(*row));
        for weight in sides.filter(|row| !varying.is_from_batch(module, *row)) {
            let made = Trail::new(weight).follow(module, converts).row;
            if module.opcode(made) != Opcode::Parameter {
                site.change.divided.extend(alike(weight));
            }
            if is_followed {
                site.change.resized.extend(resized(program, varying, weight, (axes, size)));
            }
        }
        let weight = state_bytes(module, &site.change.resized);
        if weight > 0 {
            site = site.common("weight_bytes", weight);
        }
        sites.push(site);
    }
}

/// What else changes if the logits that `product` makes in parts are not gathered by `gather`. A gather writes its
/// result in the type that is sent, beside its operand, and what every device computes from all of it lies beside it
/// in f32. Without one, compilers for TPUs keep the result of the matmul and compute the others anew in the fusions
/// that need them, or round them to the type of the matmul of the backward pass: no twin of
/// `benches/advice_accuracy.py` has a wider array of its size.
fn ungathered(
    program: &Program<'_>,
    change: &mut Change,
    (gather, product): (Row, Row),
    (size, devices): (u64, u64),
) {
    let (module, shapes) = (program.module, program.module.shapes());
    let array = |row| shapes.array(module.shape(row));
    let Some((made, all)) = array(product).zip(elements(module, gather)) else { return };
    if program.cost.backend != Backend::Tpu {
        return;
    }
    let bits = Some(made.element_type.bits());
    change.divided.iter_mut().for_each(|own| own.bits = bits);
    let shard = Alike { elements: all / devices, dimension: size / devices, parts: 1, bits };
    change.divided.push(shard);
    let is_logits = |shape: ShapeId| {
        shapes.array(shape).filter(|own| own.elements() == Some(all) && has(own, size))
    };
    let is_wide = |shape: &ShapeId| {
        is_logits(*shape).is_some_and(|own| own.element_type.bits() > made.element_type.bits())
    };
    for row in module.computation(module.computation_of(gather)).rows().map(Row) {
        let mut operands = module.operands(row).iter().map(|row| Row(*row));
        let from = match module.opcode(row) {
            Opcode::AllGather if row == gather => operands.next(),
            opcode if opcode == Opcode::Fusion || opcode.is_elementwise() => {
                operands.find(|operand| is_logits(module.shape(*operand)).is_some())
            }
            _ => None,
        };
        let Some(from) = from else { continue };
        let leaves = shapes.leaves(module.shape(row));
        let spared = leaves.filter(|leaf| row == gather || is_wide(leaf));
        change.spared.extend(spared.map(|shape| Spared { row, shape, from: from.into() }));
    }
}

/// The arrays that shrink with the weight `side` of logits over a vocabulary of `size`, if the parameter behind it is
/// whole along some of `axes` too: the remedy shards it, and with it the state of the optimizer and its gradient.
/// Where several weights have its sizes, each array shrinks by its part.
fn resized(
    program: &Program<'_>,
    varying: &Varying,
    side: Row,
    (axes, size): (u64, u64),
) -> Vec<Resized> {
    let (module, shapes) = (program.module, program.module.shapes());
    let row = Trail::new(side).follow(module, shards).row;
    let own = shapes.array(module.shape(row));
    let is_own = module.opcode(row) == Opcode::Parameter
        && module.computation_of(row) == module.entry()
        && own.is_some_and(|own| has(&own, size));
    let Some(own) = own.filter(|_| is_own) else { return Vec::new() };
    // A weight that no axis divides may stay so: the loss can be split along its rows instead.
    let (_, devices) = axes_text(program.mesh(), varying.equal(module, row));
    if Some(devices) == program.device_count() {
        return Vec::new();
    }
    let (_, parts) = axes_text(program.mesh(), varying.equal(module, row) & axes);
    let is_like = |shape: ShapeId| {
        shapes.array(shape).is_some_and(|array| array.dimensions().eq(own.dimensions()))
    };
    let phases = &program.attribution.whose(module).phase;
    let weights = module.parameters(module.entry()).into_iter().filter(|row| {
        is_like(module.shape(*row)) && phases.get(row.0 as usize) != Some(&Phase::Optimizer)
    });
    let weights = weights.count().max(1) as u64;
    let less = |shape: ShapeId| {
        let bytes = shapes.logical_bytes(shape).unwrap_or(0);
        Resized { shape, bytes: bytes - (bytes - bytes / parts.max(1)) / weights }
    };
    shapes.ids().filter(|shape| parts > 1 && is_like(*shape)).map(less).collect()
}

/// By how much the parameters of the program shrink: the weight, and the state that the optimizer keeps of it.
fn state_bytes(module: &Module, resized: &[Resized]) -> u64 {
    let shapes = module.shapes();
    let less = |row: Row| {
        let own = resized.iter().find(|own| own.shape == module.shape(row))?;
        shapes.logical_bytes(own.shape)?.checked_sub(own.bytes)
    };
    let rows = module.parameters(module.entry()).into_iter();
    rows.filter_map(less).fold(0, u64::saturating_add)
}

/// What lies between a parameter and a matmul that multiplies all of it.
fn shards(opcode: Opcode) -> bool {
    use Opcode::*;
    converts(opcode)
        || matches!(
            opcode,
            AllGather
                | AllGatherStart
                | AllGatherDone
                | CollectivePermute
                | CollectivePermuteStart
                | CollectivePermuteDone
                | Slice
                | DynamicSlice
        )
}

fn has(array: &ArrayShape<'_>, size: u64) -> bool {
    let mut sizes = array.dimensions().filter_map(|own| own.bound());
    sizes.any(|own| u64::try_from(own) == Ok(size))
}

/// Before partitioning: logits whose vocabulary no axis divides, although axes are left that divide neither
/// the batch.
fn find_written(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    let mut seen = std::collections::HashSet::new();
    for row in reductions(module) {
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
        let (_, devices) = axes_text(program.mesh(), left);
        let (_, parts) = axes_text(program.mesh(), inputs.batch());
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
    let (axes, devices) = axes_text(program.mesh(), site.key);
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
        site.peak().map(|peak| falls(peak, site.figure("weight_bytes"))).unwrap_or_default(),
    )
}

/// By how much the peak falls. Arrays of the size of the logits shrink too: logits in f32, exponentials,
/// their gradient. Others may then not be made at all: fusions of smaller arrays differ.
fn falls(peak: u64, weight: u64) -> String {
    if peak == 0 {
        return "; the peak of memory is where other values are live, and stays".to_owned();
    }
    let weight = match weight {
        0 => String::new(),
        weight => format!(
            ", and with their weight, which is whole along these axes too, its gradient and the state of \
             the optimizer ({} of parameters)",
            bytes(weight)
        ),
    };
    format!(
        "; the peak of memory falls by at least {}, with the arrays of that size which are computed \
         from them{weight}",
        bytes(peak)
    )
}
