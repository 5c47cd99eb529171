//! `resharded-scores`: scores of attention that all-to-alls move between devices.
//!
//! Scores are the matmul of two activations, queries and keys, of which a softmax takes the maximum: the
//! largest arrays of attention, as large as the square of the tokens. The partitioner moves them where
//! what makes them and what uses them are sharded along different dimensions: by a constraint on heads
//! here and on tokens there, or without any constraint on the scores, whose gradient then takes another
//! sharding than they have. An all-to-all keeps the number of elements on each device and most sizes, by
//! which the scores, their weights and their gradients are known wherever they move. Scores sharded along one
//! dimension throughout are not sent at all, whatever type they have.

use super::finding::Measure;
use super::program::{Program, bytes, counted, form, percent};
use super::site::{Rule, Site};
use crate::comms::{Collective, CollectiveKind, Moved};
use crate::flow::walk::{Trail, converts, is_maximum};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use std::collections::{HashMap, HashSet};

pub(super) const RULE: Rule = Rule {
    code: "resharded-scores",
    what: "scores of attention that all-to-alls move because their sharding changes",
    measure: Measure::Payload,
    find,
    message,
    remedy: "give the scores one sharding: constrain the product of queries and keys with \
             jax.lax.with_sharding_constraint to the axes of the batch and of the heads, as queries, \
             keys and values are, and use no other constraint between it and the product with the values; \
             its gradient then has the same sharding. Collectives that sent f32 scores in 16 bits rounded them; \
             without these, values change slightly",
};

/// The least payload of one collective per step.
const LEAST: u64 = 1 << 20;

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    for number in moved(program) {
        let Some(collective) = program.collectives.collectives.get(*number) else { continue };
        let runs = program.runs_of(collective);
        let Some(payload) = collective.payload().and_then(|payload| runs.times(payload)) else {
            continue;
        };
        let mut site = Site::new(collective.row).runs(&runs).of(*number);
        site.bytes = Some(payload);
        let wire = collective.ring_wire_bytes().and_then(|wire| runs.times(wire)).unwrap_or(0);
        site = site.sum("payload_bytes", payload).sum("wire_bytes", wire);
        // Queries, keys and values may follow the scores.
        site.is_lower_bound = true;
        site.is_anywhere = true;
        sites.push(site);
    }
}

/// The all-to-alls that move scores, ascending by number.
pub(super) fn moved<'a>(program: &'a Program<'_>) -> &'a [usize] {
    program.resharded.get_or_init(|| {
        let all = program.collectives.collectives.iter().enumerate();
        let exchanges: Vec<(usize, &Collective)> = all.filter(|(_, own)| is_large(own)).collect();
        if exchanges.is_empty() {
            return Vec::new();
        }
        let made = Made::of(program);
        let is_moved = |own: &Collective| {
            let operands = program.module.operands(own.row).iter().map(|row| Row(*row));
            let elements =
                operands.clone().try_fold(0u64, |sum, row| sum.checked_add(program.elements(row)?));
            let first = operands.clone().next().map(|row| sizes(program, row));
            elements.zip(first).is_some_and(|(elements, sizes)| made.is_score(elements, &sizes))
        };
        exchanges.iter().filter(|(_, own)| is_moved(own)).map(|(number, _)| *number).collect()
    })
}

fn is_large(collective: &Collective) -> bool {
    collective.kind == CollectiveKind::AllToAll
        && collective.moved == Moved::Activation
        && collective.payload().is_some_and(|payload| payload >= LEAST)
}

/// By number of elements: the different sizes of arrays.
type Kinds = HashMap<u64, HashSet<Vec<u64>>>;
/// Limit on the different sizes that one array is compared with.
const MOST_KINDS: usize = 256;

/// The sizes of the results of matmuls on one device.
#[derive(Default)]
struct Made {
    scores: Kinds,
    /// Results of matmuls of an activation with a weight.
    others: Kinds,
}

impl Made {
    fn of(program: &Program<'_>) -> Self {
        let module = program.module;
        let mut made = Self::default();
        let Some(varying) = program.varying() else { return made };
        let products: HashSet<Row, BuildMix> = program.products().collect();
        let softmaxes = module.rows().filter(|row| is_maximum(module, *row));
        let read: HashSet<Row> = softmaxes
            .filter_map(|row| Trail::new(row).operand(module, 0))
            .filter_map(|value| product(module, &products, value, &mut { MOST_TERMS }))
            .collect();
        for row in products {
            let Some(elements) = program.elements(row) else { continue };
            let sides = module.operands(row).iter().take(2);
            let of_batch = sides.filter(|row| varying.is_from_batch(module, Row(**row))).count();
            if of_batch < 2 {
                made.others.entry(elements).or_default().insert(sizes(program, row));
            } else if read.contains(&row) {
                made.scores.entry(elements).or_default().insert(sizes(program, row));
            }
        }
        made
    }

    /// Whether an array that an all-to-all moves has the elements of scores, and more sizes in common with
    /// scores than with what else has as many elements.
    fn is_score(&self, elements: u64, own: &[u64]) -> bool {
        let common = |all: &Kinds| {
            let all = all.get(&elements).into_iter().flatten().take(MOST_KINDS);
            all.map(|other| in_both(own, other)).max()
        };
        common(&self.scores).is_some_and(|scores| Some(scores) > common(&self.others))
    }
}

/// Limit on the terms between a matmul and the maximum of its softmax.
const MOST_TERMS: u32 = 128;

/// The matmul of whose result the value at `trail` is a function of each element, moved or not.
fn product(
    module: &Module,
    products: &HashSet<Row, BuildMix>,
    trail: Trail,
    left: &mut u32,
) -> Option<Row> {
    let next = left.checked_sub(1)?;
    *left = next;
    let trail = trail.follow(module, converts);
    let row = trail.row;
    if products.contains(&row) {
        return Some(row);
    }
    let opcode = module.opcode(row);
    let is_moved = matches!(opcode, Opcode::AllToAll | Opcode::Concatenate | Opcode::Slice);
    let count = match opcode {
        _ if is_moved => 1,
        _ if opcode.is_elementwise() => module.operands(row).len(),
        _ => 0,
    };
    (0..count).find_map(|index| product(module, products, trail.operand(module, index)?, left))
}

/// The sizes of the dimensions of `row`, ascending, without those of 1.
pub(super) fn sizes(program: &Program<'_>, row: Row) -> Vec<u64> {
    let Some(array) = program.module.shapes().array(program.module.shape(row)) else {
        return Vec::new();
    };
    let sizes = array.dimensions().filter_map(|own| u64::try_from(own.bound()?).ok());
    let mut sizes: Vec<u64> = sizes.filter(|size| *size > 1).collect();
    sizes.sort_unstable();
    sizes
}

/// How many sizes two ascending lists have in common.
fn in_both(first: &[u64], second: &[u64]) -> usize {
    let (mut at, mut common) = (0, 0);
    for size in first {
        at += second[at..].iter().take_while(|own| *own < size).count();
        if second.get(at) == Some(size) {
            (at, common) = (at + 1, common + 1);
        }
    }
    common
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let along = match site.collective(program) {
        Some(collective) if site.places == 1 => format!(" {}", program.along(collective)),
        _ => String::new(),
    };
    let payload = site.figure("payload_bytes");
    format!(
        "{}{along} {} scores of attention, their weights or their gradients from one sharding to another: \
         {} of payload per step, {} of all collectives, and {} on the wire",
        counted(site.places, "all-to-all", "all-to-alls"),
        form(site.places, "moves", "move"),
        bytes(payload),
        percent(payload, program.payload()),
        bytes(site.figure("wire_bytes")),
    )
}
