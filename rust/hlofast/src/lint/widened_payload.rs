//! `widened-payload`: collectives that send values in a wider type than they were computed in.
//!
//! A value is wider than it needs to be if a convert made it from a narrower floating-point type
//! and nothing was computed in the wider type before the collective. Collectives that only move
//! values give a bit-identical result if the convert comes after them. Reductions do not, because
//! every addition in the narrow type rounds; they count only from 16 to 32 bits, and the message
//! mentions the rounding.
//!
//! Widening by compilers is not reported: XLA's AllReducePromotion, and float normalisation for
//! CPUs, which cannot add 16-bit floats, put one convert before the collective and one after it.
//! The rule therefore skips programs for CPUs and results that are only converted back.

use super::cut::results;
use super::finding::Measure;
use super::float32_activations;
use super::program::{Program, bytes, counted, form};
use super::site::{Rule, Site};
use crate::Provenance;
use crate::comms::{Collective, CollectiveKind};
use crate::cost::Backend;
use crate::flow::walk::{Trail, Use, converts, uses};
use crate::ir::{ElementKind, ElementType, Module, Opcode, Row};

pub(super) const RULE: Rule = Rule {
    code: "widened-payload",
    what: "collectives that send values in a wider type than they were computed in",
    measure: Measure::Wire,
    find,
    message,
    remedy: "convert after the collective instead of before it; for gradients, differentiate with \
             respect to the narrow copies of the weights, reduce, then convert to the optimizer's \
             type",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    if is_compiled_for_cpu(program) {
        return;
    }
    // A stream of activations in f32 is one fault, which has its own rule.
    let streams = float32_activations::streams(program);
    let is_stream = |number: usize| streams.iter().any(|site| site.collective == Some(number));
    let collectives = program.collectives.collectives.iter().enumerate();
    let widened = collectives.filter_map(|(number, own)| widened(program, number, own));
    sites.extend(widened.filter(|site| site.collective.is_none_or(|number| !is_stream(number))));
}

/// Whether XLA has compiled the program for CPUs or is about to. A program without tiled layouts
/// may also be for GPUs; before fusion, nothing in the text distinguishes CPU from GPU.
fn is_compiled_for_cpu(program: &Program<'_>) -> bool {
    let opcodes = &program.module.columns().opcodes;
    program.cost.backend == Backend::Cpu
        && (program.module.is_scheduled() || opcodes.contains(&Opcode::Fusion))
}

fn widened(program: &Program<'_>, number: usize, collective: &Collective) -> Option<Site> {
    use CollectiveKind::*;
    let is_reduction = match collective.kind {
        AllReduce | ReduceScatter => true,
        AllGather | AllToAll | CollectivePermute | CollectiveBroadcast => false,
        _ => return None,
    };
    let module = program.module;
    // An in-place permute has a buffer and offsets as operands besides the array it sends.
    if module.attribute(collective.row, "slice_sizes").is_some() {
        return None;
    }
    let (mut all, mut saved) = (0u64, 0u64);
    let mut evidence = Vec::new();
    let mut narrow = None;
    for (index, operand) in module.operands(collective.row).iter().enumerate() {
        let size = program.bytes(Row(*operand));
        all = all.checked_add(size)?;
        let Some((convert, from, to)) = origin(module, Row(*operand)) else { continue };
        let is_enough = !is_reduction || (from.bits() == 16 && to.bits() == 32);
        if is_enough && !is_narrowed_again(program, collective, index, from) {
            saved += size - size / u64::from(to.bits()) * u64::from(from.bits());
            narrow = narrow.or(Some(from));
            evidence.push(convert);
        }
    }
    let narrow = narrow?;
    let runs = program.runs_of(collective);
    let wire = runs.times(collective.ring_wire_bytes()?)?;
    let saved = u128::from(wire) * u128::from(saved) / u128::from(all.max(1));
    let saved = u64::try_from(saved).ok()?;
    let mut site = Site::new(collective.row)
        .runs(&runs)
        .sum("wire_bytes", wire)
        .sum("wire_bytes_after", wire.checked_sub(saved)?)
        .of(number);
    site.key = collective.kind as u64 | (narrow as u64) << 8;
    site.evidence = evidence;
    site.bytes = Some(saved);
    site.provenance = Provenance::Modelled;
    Some(site)
}

/// The convert that widened `row`, with its source and target types.
fn origin(module: &Module, row: Row) -> Option<(Row, ElementType, ElementType)> {
    let float = |row: Row| {
        let of = module.shapes().array(module.shape(row))?.element_type;
        (of.kind() == ElementKind::Float).then_some(of)
    };
    let to = float(row)?;
    let mut trail = Trail::new(row);
    while trail.step(module, keeps) {}
    let from = float(trail.operand(module, 0)?.row)?;
    let is_wider = module.opcode(trail.row) == Opcode::Convert && from.bits() < to.bits();
    is_wider.then_some((trail.row, from, to))
}

/// Opcodes whose result consists of unchanged values of the first operand.
fn keeps(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(opcode, Bitcast | Copy | Reshape | Transpose | Slice | DynamicSlice)
}

/// Whether every use of the result of `collective` for operand `index` converts it back.
fn is_narrowed_again(
    program: &Program<'_>,
    collective: &Collective,
    index: usize,
    narrow: ElementType,
) -> bool {
    let module = program.module;
    let passes = |module: &Module, row: Row, operand: usize| {
        operand == 0 && converts(module.opcode(row)) && module.opcode(row) != Opcode::Convert
    };
    let narrows = |used: &Use| {
        let array = module.shapes().array(module.shape(used.row));
        module.opcode(used.row) == Opcode::Convert
            && array.is_some_and(|array| array.element_type.bits() <= narrow.bits())
    };
    let mut results = results(module, collective);
    // Several arrays form a tuple with one element per operand.
    results.retain(|row| module.tuple_index(*row).is_none_or(|element| element == index));
    !results.is_empty()
        && results.iter().all(|row| {
            uses(&program.walk, *row, passes, narrows).is_some_and(|uses| !uses.is_empty())
        })
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let Some(collective) = site.collective(program) else {
        return String::new();
    };
    let kind = collective.kind.as_str();
    let types = site.evidence.first().and_then(|row| origin(program.module, *row));
    let (from, to) = types.map_or(("", ""), |(_, from, to)| (from.as_str(), to.as_str()));
    let rounds = match collective.kind {
        CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => {
            ", where every addition rounds"
        }
        _ => ", with the same result",
    };
    format!(
        "{} {} {} {to} values converted from {from}: {} on the wire per step, {} in {from}{rounds}",
        counted(site.places, kind, &format!("{kind}s")),
        program.along(collective),
        form(site.places, "sends", "send"),
        bytes(site.figure("wire_bytes")),
        bytes(site.figure("wire_bytes_after")),
    )
}
