//! `widened-payload`: collectives that send numbers in a wider type than the one they were made in.
//!
//! A number counts as wider than it needs to be if it comes from a convert of a narrower
//! floating-point type and nothing was computed in between. What moves numbers gives the same
//! result to the bit if the convert comes after it. A sum does not: in the narrow type every
//! addition rounds, so reductions count from 16 to 32 bits only and the message says so.
//!
//! Where compilers widen by themselves it is no finding: XLA's AllReducePromotion and float
//! normalisation for CPUs, which have no 16-bit sums, put a convert before and one after. Programs
//! for CPUs are left out, and so is what is only converted back.

use super::cut::results;
use super::finding::Measure;
use super::program::{Program, bytes, counted};
use super::site::{Rule, Site};
use super::walk::{Trail, Use, converts, uses};
use crate::Provenance;
use crate::comms::{Collective, CollectiveKind};
use crate::cost::Backend;
use crate::ir::{ElementKind, ElementType, Module, Opcode, Row};

pub(super) const RULE: Rule = Rule {
    code: "widened-payload",
    what: "collectives that send numbers in a wider type than these were made in",
    measure: Measure::Wire,
    find,
    message,
    remedy: "convert after the collective instead of before it; for gradients, differentiate with \
             respect to the narrow copies of the weights, reduce, then convert to the type of the \
             optimizer",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    if is_compiled_for_cpu(program) {
        return;
    }
    let collectives = program.collectives.collectives.iter().enumerate();
    sites.extend(
        collectives.filter_map(|(number, collective)| widened(program, number, collective)),
    );
}

/// Whether XLA has compiled it for CPUs or is about to. Programs without tiles may be for GPUs too,
/// which tells apart only before fusions are made.
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
    // In place, a permute has a buffer and offsets beside what it sends.
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
    let runs = program.runs_of(collective);
    let wire = runs.times(collective.ring_wire_bytes()?)?;
    let saved = u128::from(wire) * u128::from(saved) / u128::from(all.max(1));
    let saved = u64::try_from(saved).ok()?;
    let mut site = Site::new(collective.row)
        .runs(&runs)
        .sum("wire_bytes", wire)
        .sum("wire_bytes_after", wire.checked_sub(saved)?)
        .of(number);
    site.key = collective.kind as u64 | (narrow? as u64) << 8;
    site.evidence = evidence;
    site.bytes = Some(saved);
    site.provenance = Provenance::Modelled;
    Some(site)
}

/// The convert that made the numbers of `row` wider, and from which type to which.
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

/// What keeps the numbers of its first operand, or some of them, as they are.
fn keeps(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(opcode, Bitcast | Copy | Reshape | Transpose | Slice | DynamicSlice)
}

/// Whether all that becomes of what `collective` makes of operand `index` is a convert back.
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
    // Several arrays come as a tuple, one for each operand.
    results.retain(|row| module.tuple_index(*row).is_none_or(|element| element == index));
    !results.is_empty()
        && results.iter().all(|row| {
            uses(&program.walk, *row, passes, narrows).is_some_and(|found| !found.is_empty())
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
            "; sums in that type round at every addition"
        }
        _ => ", with the same result",
    };
    format!(
        "{} over {} in {to} of numbers converted from {from}: {} around the ring, {} in {from}{rounds}",
        counted(site.places, kind, &format!("{kind}s")),
        program.along(collective),
        bytes(site.figure("wire_bytes")),
        bytes(site.figure("wire_bytes_after")),
    )
}
