//! `reduced-twice`: arrays that are all-reduced separately and then added.
//!
//! Sums may be taken in any order: the all-reduces of two arrays over the same devices add up to
//! one all-reduce of their sum. The gradient of a parameter that is used in two places (tied
//! embeddings) is such a sum.

use super::cut::results;
use super::finding::Measure;
use super::program::{Program, bytes, counted};
use super::site::{Rule, Site};
use super::walk::{Use, Walk, conversions, uses};
use crate::comms::{Collective, CollectiveKind};
use crate::ir::{CallRole, Module, Opcode, Row};

pub(super) const RULE: Rule = Rule {
    code: "reduced-twice",
    what: "arrays all-reduced separately and then added, such as gradients of tied embeddings",
    measure: Measure::Payload,
    find,
    message,
    remedy: "add before reducing: sum the gradients of a parameter that is used in several places, \
             then reduce once (in shard_map, add before psum; with hand-written reductions, reduce \
             the gradient of each parameter rather than of each use)",
};

/// The result of an all-reduce, or a slice of it, and the additions that are its only uses.
struct Sum {
    collective: usize,
    groups: u32,
    row: Row,
    bytes: u64,
    additions: Vec<Use>,
}

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let module = program.module;
    let mut sums = Vec::new();
    for (number, collective) in program.collectives.collectives.iter().enumerate() {
        let (CollectiveKind::AllReduce, Some(groups)) = (collective.kind, collective.groups) else {
            continue;
        };
        if collective.group_size == Some(1) || !adds(module, collective.row) {
            continue;
        }
        for row in parts(module, collective) {
            if let Some(additions) = additions(&program.walk, row) {
                let bytes = program.bytes(row);
                sums.push(Sum { collective: number, groups, row, bytes, additions });
            }
        }
    }
    // By addition, with the fusions around it: the sums that the addition adds.
    let mut places: Vec<(Row, &[Row], usize)> = Vec::new();
    for (index, sum) in sums.iter().enumerate() {
        places.extend(sum.additions.iter().map(|used| (used.row, &used.calls[..], index)));
    }
    places.sort_unstable();
    for (index, sum) in sums.iter().enumerate() {
        // Neither sum is used outside this addition.
        let Some(other) = partner(&sums, &places, index) else { continue };
        let is_pair = index < other && partner(&sums, &places, other) == Some(index);
        if is_pair && sums[other].groups == sum.groups {
            sites.extend(site(program, sum, &sums[other]));
        }
    }
}

/// The sum to which every use of sum `index` adds it, if there is one.
fn partner(sums: &[Sum], places: &[(Row, &[Row], usize)], index: usize) -> Option<usize> {
    let mut others = sums[index].additions.iter().map(|used| {
        let key = (used.row, &used.calls[..]);
        let first = places.partition_point(|(row, calls, _)| (*row, *calls) < key);
        let same = places[first..].iter().take_while(|(row, calls, _)| (*row, *calls) == key);
        same.map(|(_, _, other)| *other).find(|other| *other != index)
    });
    let first = others.next()??;
    others.all(|other| other == Some(first)).then_some(first)
}

fn site(program: &Program<'_>, sum: &Sum, other: &Sum) -> Option<Site> {
    let collective = program.collectives.collectives.get(sum.collective)?;
    let second = program.collectives.collectives.get(other.collective)?;
    let runs = program.runs_of(collective);
    let payload = runs.times(sum.bytes.min(other.bytes))?;
    let size = collective.group_size.unwrap_or(1);
    let mut site = Site::new(collective.row)
        .runs(&runs)
        .sum("payload_bytes", payload)
        .sum("wire_bytes", CollectiveKind::AllReduce.ring_wire_bytes(payload, size))
        .of(sum.collective);
    if second.row != collective.row {
        site.evidence.push(second.row);
    }
    site.evidence.extend([sum.row, other.row]);
    site.evidence.extend(sum.additions.iter().map(|used| *used.calls.first().unwrap_or(&used.row)));
    site.bytes = Some(payload);
    site.key = u64::from(sum.groups);
    Some(site)
}

/// Whether the reduction in `row` adds.
fn adds(module: &Module, row: Row) -> bool {
    let Some(reducer) = module.called(row, CallRole::ToApply) else { return false };
    module.opcode(Row(module.computation(reducer).root)) == Opcode::Add
}

/// The results of `collective`; a result that is only sliced is represented by its slices.
fn parts(module: &Module, collective: &Collective) -> Vec<Row> {
    let mut parts = Vec::new();
    for row in results(module, collective) {
        let users = module.users().get(row.0);
        let is_cut = !users.is_empty()
            && users.iter().all(|user| module.opcode(Row(*user)) == Opcode::Slice);
        if is_cut {
            parts.extend(users.iter().map(|user| Row(*user)));
        } else {
            parts.push(row);
        }
    }
    parts
}

/// The additions that use `row`, perhaps after multiplying it by a number; None if it has other
/// uses.
fn additions(walk: &Walk<'_>, row: Row) -> Option<Vec<Use>> {
    let passes = |module: &Module, row: Row, operand: usize| {
        let is_number = |index: usize| {
            module.operands(row).get(index).is_some_and(|other| is_number(module, Row(*other)))
        };
        match module.opcode(row) {
            Opcode::Multiply => is_number(1 - operand.min(1)),
            Opcode::Divide => operand == 0 && is_number(1),
            _ => conversions(module, row, operand),
        }
    };
    let is_addition = |used: &Use| walk.module.opcode(used.row) == Opcode::Add;
    uses(walk, row, passes, is_addition).filter(|additions| !additions.is_empty())
}

/// Whether `row` repeats one constant. Sums with different factors cannot be combined before
/// scaling, but each array can be scaled first, then added and reduced.
fn is_number(module: &Module, row: Row) -> bool {
    let is_constant = |row: Row| module.opcode(row) == Opcode::Constant;
    match module.opcode(row) {
        Opcode::Broadcast => module.operands(row).first().is_some_and(|row| is_constant(Row(*row))),
        _ => is_constant(row) && module.elements_column()[row.0 as usize] == 1,
    }
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let along = site.collective(program);
    format!(
        "{} all-reduced separately {} and then added: reducing the sum once saves {} of payload \
         and {} on the wire per step",
        counted(site.places, "pair of arrays is", "pairs of arrays are"),
        along.map(|collective| program.along(collective)).unwrap_or_default(),
        bytes(site.figure("payload_bytes")),
        bytes(site.figure("wire_bytes")),
    )
}
