//! `reduced-twice`: arrays that are all-reduced separately and then added.
//!
//! Sums may be taken in any order: all-reduces of several arrays over the same devices add up to
//! one all-reduce of their sum. The gradient of a parameter that is used in several places (tied
//! embeddings) is such a sum, and so is the gradient of an activation that several matmuls read
//! (the projections to queries, keys and values).
//!
//! Where one of two summands is scattered (the gradient of a lookup), partitioners all-reduce the other
//! one first, keep it on one device with zeros on the others, scatter into it and all-reduce again.

use super::cut::results;
use super::finding::Measure;
use super::program::{Program, bytes, counted, form, grouped};
use super::site::{Rule, Site};
use crate::comms::{Collective, CollectiveKind, Moved};
use crate::flow::Phase;
use crate::flow::walk::{Trail, Use, Walk, conversions, converts, uses_within};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, Module, Opcode, Row};
use std::collections::HashMap;

pub(super) const RULE: Rule = Rule {
    code: "reduced-twice",
    what: "arrays all-reduced separately and then added, such as gradients of tied embeddings",
    measure: Measure::Payload,
    find,
    message,
    remedy: "add before reducing: sum the gradients of a parameter that is used in several places, \
             then reduce once. In shard_map, add before psum. Under jit alone, the partitioner reduces \
             the gradient of each use (tied embeddings): call jax.value_and_grad inside \
             jax.shard_map over these axes, with the batch split along them and the parameters \
             whole, and take jax.lax.pmean of loss and gradients. With hand-written reductions, \
             reduce the gradient of each parameter rather than of each use",
};

/// The remedy where matmuls that read one activation each all-reduce its gradient.
const FUSE: &str = "fuse the matmuls that read the activation (queries, keys and values; gate and \
                    up): one weight, concatenated along the output features or stacked along a \
                    new dimension, gives one matmul and one all-reduce of the gradient; in \
                    shard_map, add the gradients before psum";

/// Limit on the rounds in which sums of sums are joined: one array more each round if they are added
/// one after another.
const MOST_ROUNDS: usize = 16;

/// The result of an all-reduce, or a slice of it, or the sum of several, and the additions that are
/// its only uses.
struct Sum {
    groups: u32,
    /// The arrays: their collectives, rows and bytes.
    arrays: Vec<(usize, Row, u64)>,
    /// The additions inside the sum, with the fusions around them.
    inside: Vec<Use>,
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
            if let Some(additions) = additions(&program.walk, row, &[]) {
                let arrays = vec![(number, row, program.bytes(row))];
                sums.push(Sum { groups, arrays, inside: Vec::new(), additions });
            }
        }
    }
    for _ in 0..MOST_ROUNDS {
        let joined = joined(program, &mut sums);
        if joined == 0 {
            break;
        }
    }
    for sum in sums.iter().chain(&kept_by_one(program)) {
        if sum.arrays.len() > 1 {
            sites.extend(site(program, sum));
        }
    }
}

/// Pairs of all-reduces of which the second adds up what the first has added up already: one device
/// keeps that, the others have zeros.
fn kept_by_one(program: &Program<'_>) -> Vec<Sum> {
    let module = program.module;
    let all = || program.collectives.collectives.iter().enumerate();
    let sums = all().filter(|(_, own)| {
        own.kind == CollectiveKind::AllReduce && own.groups.is_some() && adds(module, own.row)
    });
    let firsts: HashMap<Row, (usize, Option<u32>), BuildMix> = sums
        .clone()
        .flat_map(|(number, own)| {
            results(module, own).into_iter().map(move |row| (row, (number, own.groups)))
        })
        .collect();
    let mut pairs = Vec::new();
    for (number, second) in sums {
        for operand in module.operands(second.row).iter().map(|row| Row(*row)) {
            let Some(kept) = kept(module, operand) else { continue };
            let Some(&(first, groups)) = firsts.get(&kept) else { continue };
            let Some(groups) = groups.filter(|_| groups == second.groups && first != number) else {
                continue;
            };
            if module.users().get(kept.0).len() == 1 {
                let arrays = vec![
                    (first, kept, program.bytes(kept)),
                    (number, operand, program.bytes(operand)),
                ];
                pairs.push(Sum { groups, arrays, inside: Vec::new(), additions: Vec::new() });
            }
        }
    }
    pairs
}

/// The array to which `row` adds, if one device has it and all others have zeros.
fn kept(module: &Module, row: Row) -> Option<Row> {
    let adds_to = |opcode| converts(opcode) || opcode == Opcode::Scatter;
    let spreads =
        |opcode| converts(opcode) || matches!(opcode, Opcode::Broadcast | Opcode::Compare);
    let select = Trail::new(row).follow(module, adds_to);
    if module.opcode(select.row) != Opcode::Select {
        return None;
    }
    let chosen = select.operand(module, 0)?.follow(module, spreads);
    if !matches!(module.opcode(chosen.row), Opcode::PartitionId | Opcode::ReplicaId) {
        return None;
    }
    let sides =
        [1, 2].map(|index| Some(select.operand(module, index)?.follow(module, spreads).row));
    let is_constant =
        |row: &Option<Row>| row.is_some_and(|row| module.opcode(row) == Opcode::Constant);
    match sides {
        [zeros, kept] if is_constant(&zeros) => kept,
        [kept, zeros] if is_constant(&zeros) => kept,
        _ => None,
    }
}

/// Joins sums that are only used to be added to each other; returns the number of pairs.
fn joined(program: &Program<'_>, sums: &mut Vec<Sum>) -> usize {
    // By addition, with the fusions around it: the sums that the addition adds.
    let mut places: Vec<(Row, &[Row], usize)> = Vec::new();
    for (index, sum) in sums.iter().enumerate() {
        places.extend(sum.additions.iter().map(|used| (used.row, &used.calls[..], index)));
    }
    places.sort_unstable();
    let is_pair = |index: usize, other: usize| {
        index < other
            && sums[other].groups == sums[index].groups
            && partner(sums, &places, other) == Some(index)
    };
    // Neither sum is used outside these additions.
    let pairs: Vec<(usize, usize)> = (0..sums.len())
        .filter_map(|index| Some((index, partner(sums, &places, index)?)))
        .filter(|(index, other)| is_pair(*index, *other))
        .collect();
    for (index, other) in &pairs {
        let Sum { arrays, inside, .. } = std::mem::replace(&mut sums[*other], Sum::nothing());
        let sum = &mut sums[*index];
        sum.arrays.extend(arrays);
        sum.inside.extend(inside);
        let made = std::mem::take(&mut sum.additions);
        // What becomes of the total, wherever it is added up; it need not be added to anything.
        let next: Option<Vec<Vec<Use>>> =
            made.iter().map(|made| additions(&program.walk, made.row, &made.calls)).collect();
        sum.additions = next.into_iter().flatten().flatten().collect();
        sum.inside.extend(made);
    }
    sums.retain(|sum| !sum.arrays.is_empty());
    pairs.len()
}

impl Sum {
    fn nothing() -> Self {
        Sum { groups: 0, arrays: Vec::new(), inside: Vec::new(), additions: Vec::new() }
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

fn site(program: &Program<'_>, sum: &Sum) -> Option<Site> {
    let all = &program.collectives.collectives;
    let of = |array: &(usize, Row, u64)| all.get(array.0);
    let collective = of(sum.arrays.first()?)?;
    let runs = program.runs_of(collective);
    // One array is left to reduce, the largest if their types differ.
    let (total, largest) = sum.arrays.iter().fold((0u64, 0u64), |(total, largest), array| {
        (total.saturating_add(array.2), largest.max(array.2))
    });
    let payload = runs.times(total - largest)?;
    let size = collective.group_size.unwrap_or(1);
    let mut site = Site::new(collective.row)
        .runs(&runs)
        .sum("arrays", sum.arrays.len() as u64)
        .sum("payload_bytes", payload)
        .sum("wire_bytes", CollectiveKind::AllReduce.ring_wire_bytes(payload, size))
        .of(sum.arrays.first()?.0);
    let mut evidence = |row: Row| {
        if row != collective.row && !site.evidence.contains(&row) {
            site.evidence.push(row);
        }
    };
    sum.arrays.iter().filter_map(of).for_each(|other| evidence(other.row));
    sum.arrays.iter().for_each(|array| evidence(array.1));
    sum.inside.iter().for_each(|used| evidence(*used.calls.first().unwrap_or(&used.row)));
    let is_activation = sum.arrays.iter().filter_map(of).all(|other| {
        let is_backward = |phase: Phase| matches!(phase, Phase::Backward);
        other.moved == Moved::Activation && is_backward(program.runs_of(other).phase)
    });
    if is_activation {
        site.remedy = Some(FUSE);
    }
    site.bytes = Some(payload);
    site.key = u64::from(sum.groups) * 2 + u64::from(is_activation);
    Some(site)
}

/// Whether the reduction in `row` adds.
pub(super) fn adds(module: &Module, row: Row) -> bool {
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

/// The additions that use `row`, inside the fusions `calls`, perhaps after multiplying it by a
/// number; None if it has other uses.
fn additions(walk: &Walk<'_>, row: Row, calls: &[Row]) -> Option<Vec<Use>> {
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
    uses_within(walk, row, calls, passes, is_addition).filter(|additions| !additions.is_empty())
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
        "{} all-reduced separately {} and then added{}: reducing {} once saves {} of payload and \
         {} on the wire per step",
        counted(site.figure("arrays"), "array is", "arrays are"),
        along.map(|collective| program.along(collective)).unwrap_or_default(),
        if site.places == 1 {
            String::new()
        } else {
            format!(" into {} sums", grouped(site.places))
        },
        form(site.places, "the sum", "each sum"),
        bytes(site.figure("payload_bytes")),
        bytes(site.figure("wire_bytes")),
    )
}
