//! `logits-in-full`: logits over the vocabulary that several devices hold in full.
//!
//! Logits are the matmul of an activation with a weight whose result is reduced by a maximum along
//! one dimension: the first step of a softmax. Only dimensions of at least `LEAST` elements
//! count: routers and heads of attention have fewer.

use super::finding::Measure;
use super::program::{Program, bytes, counted, form, grouped};
use super::site::{Rule, Site};
use super::varying::axes_text;
use super::walk::{Trail, converts};
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

/// The size of the only dimension that `row` reduces by a maximum.
fn maximum_over(module: &Module, row: Row) -> Option<u64> {
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
    u64::try_from(array.dimension(usize::try_from(dimension).ok()?)?.bound()?).ok()
}

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let Some(varying) = program.varying() else { return };
    let module = program.module;
    let products: std::collections::HashSet<Row> = program.products().collect();
    let mut seen = std::collections::HashSet::new();
    for row in module.rows() {
        let Some(size) = maximum_over(module, row).filter(|size| *size >= LEAST) else { continue };
        let Some(&logits) = module.operands(row).first() else { continue };
        let axes = varying.equal(module, Row(logits));
        let (_, devices) = axes_text(program, axes);
        let trail = Trail::new(Row(logits)).follow(module, keeps);
        if axes == 0 || devices < 2 || !products.contains(&trail.row) {
            continue;
        }
        // One side is computed from the batch, the other is a weight: no scores of attention.
        let sides = module.operands(trail.row).iter().take(2);
        let activations = sides.filter(|row| varying.is_from_batch(module, Row(**row))).count();
        if activations != 1 || !seen.insert(trail.row) {
            continue;
        }
        let Some(held) = held(program, trail.row) else { continue };
        let mut site = Site::new(trail.row).runs(&program.runs(trail.row));
        site.evidence.push(row);
        // One array is live, however often it is computed.
        site.bytes = Some(held - held / devices);
        site = site.sum("held_bytes", held).common("devices", devices).common("vocabulary", size);
        site.key = axes;
        if let Some(elements) = program.elements(trail.row) {
            site.change.divided.push(Alike { elements, dimension: size, parts: devices });
        }
        sites.push(site);
    }
}

/// The bytes of the result of `row`, or of an array as large that the fusion around it returns.
fn held(program: &Program<'_>, row: Row) -> Option<u64> {
    let module = program.module;
    let elements = program.elements(row)?;
    let outer = program.scheduled(row);
    let leaves = module.shapes().leaves(module.shape(outer));
    let arrays = leaves.filter_map(|leaf| module.shapes().array(leaf));
    let alike = arrays.filter(|array| array.elements() == Some(elements));
    alike.filter_map(|array| array.logical_bytes()).max()
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let (axes, devices) = axes_text(program, site.key);
    format!(
        "{} logits over a vocabulary of {}, replicated on all {devices} devices along {axes}: {} \
         per device, of which sharding saves {}{}{}",
        counted(site.places, "matmul makes", "matmuls make"),
        grouped(site.figure("vocabulary")),
        bytes(site.figure("held_bytes")),
        bytes(site.bytes.unwrap_or(0)),
        form(site.places, "", " if all are live"),
        site.peak_bytes.map(falls).unwrap_or_default(),
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
