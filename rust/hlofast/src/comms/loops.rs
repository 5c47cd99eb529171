//! Loops around collectives, peeled iterations, and the work that overlaps each collective.

use super::collective::{Collective, Collectives};
use super::moved::Moved;
use crate::cost::Cost;
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Row};
use std::cell::RefCell;
use std::collections::HashMap;

/// The work scheduled between the start and the end of an asynchronous collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Number of instructions.
    pub instructions: u32,
    /// FLOPs of one execution of these instructions, including loops and calls.
    pub flops: i128,
}

/// Loops around computations, and sums over schedules.
pub(crate) struct LoopPlaces<'a> {
    module: &'a Module,
    cost: &'a Cost,
    /// By computation: the innermost loop around it.
    loops: Vec<Option<Row>>,
    /// By computation: FLOPs before each of its rows.
    flops: RefCell<HashMap<ComputationId, Vec<i128>>>,
}

impl<'a> LoopPlaces<'a> {
    pub fn new(module: &'a Module, cost: &'a Cost) -> Self {
        let mut loops = vec![None; module.computations().len()];
        for id in module.computation_post_order().iter().copied().rev() {
            for call in &module.all_calls()[module.calls_within(id)] {
                let around = match call.role {
                    CallRole::Body | CallRole::Condition => Some(call.row),
                    _ => loops[id.0 as usize],
                };
                let place = &mut loops[call.computation.0 as usize];
                *place = place.or(around);
            }
        }
        Self { module, cost, loops, flops: RefCell::default() }
    }

    /// The innermost loop around `row`.
    pub fn loop_of(&self, row: Row) -> Option<Row> {
        self.loops[self.module.computation_of(row).0 as usize]
    }

    /// None outside loops; otherwise the trip count of the innermost loop, if known.
    pub fn innermost(&self, row: Row) -> Option<Option<u64>> {
        let around = self.loop_of(row)?;
        let loops = &self.cost.loops;
        let position = loops.binary_search_by_key(&around, |entry| entry.row).ok();
        Some(position.and_then(|at| loops.get(at)?.trip_count.count))
    }

    /// The work between `start` and `end`; None if they are not in order in one computation.
    pub fn overlap(&self, start: Row, end: Row) -> Option<Overlap> {
        let id = self.module.computation_of(start);
        if id != self.module.computation_of(end) || end <= start {
            return None;
        }
        let mut sums = self.flops.borrow_mut();
        let sums = sums.entry(id).or_insert_with(|| self.flops_before(id));
        let first = self.module.computation(id).first_row;
        let before = |row: u32| sums.get((row - first) as usize).copied();
        Some(Overlap {
            instructions: end.0 - start.0 - 1,
            flops: before(end.0)?.saturating_sub(before(start.0 + 1)?),
        })
    }

    fn flops_before(&self, id: ComputationId) -> Vec<i128> {
        let module = self.module;
        let range = module.calls_within(id);
        let mut calls = range.clone().zip(&module.all_calls()[range]).peekable();
        let mut sum = 0i128;
        let mut sums = Vec::with_capacity(module.computation(id).rows().len() + 1);
        for row in module.computation(id).rows() {
            sums.push(sum);
            sum = sum.saturating_add(i128::from(self.cost.flops[row as usize]));
            while let Some((index, call)) = calls.next_if(|(_, call)| call.row.0 == row) {
                let times = self.cost.call_times.get(index).map_or(0, |call| call.times);
                let called = self.cost.computations[call.computation.0 as usize].flops;
                sum = sum.saturating_add(called.saturating_mul(i128::from(times)));
            }
        }
        sums.push(sum);
        sums
    }
}

/// The properties that a peeled iteration shares with the collective left in the loop.
#[derive(PartialEq, Eq, Hash)]
struct Likeness<'a> {
    kind: super::CollectiveKind,
    payload: (Option<u64>, Option<u64>),
    groups: Option<u32>,
    name: &'a [u8],
    /// For collectives without a name: the weight they move.
    weight: Option<Row>,
}

/// Limit on similar collectives per loop; the rest are ignored.
const MOST_ALIKE: usize = 256;

/// A collective in a loop.
struct Inside {
    number: u32,
    /// Number of its peeled iterations found so far.
    peeled: u32,
}

/// Finds collectives that are peeled loop iterations: they are next to the loop, and either have
/// the name of a collective in the loop or, without a name, move its weight.
pub(super) fn link_peeled(module: &Module, places: &LoopPlaces<'_>, all: &mut Collectives) {
    let names = module.metadata_columns();
    let name = |collective: &Collective| -> &[u8] {
        let of = |row: Row| {
            let id = usize::try_from(names.op_name[row.0 as usize]).ok()?;
            names.op_names.get(id).map(|name| module.bytes(*name))
        };
        of(collective.row).or_else(|| of(collective.outer)).unwrap_or_default()
    };
    let likeness = |collective: &Collective| -> Option<Likeness<'_>> {
        let name = name(collective);
        let piece = all.pieces.get(collective.pieces.start as usize);
        let weight = piece.filter(|piece| name.is_empty() && piece.moved == Moved::Weight);
        let weight = weight.and_then(|piece| piece.source);
        let says_something = memchr::memmem::find(name, b"while").is_some() || weight.is_some();
        says_something.then_some(Likeness {
            kind: collective.kind,
            payload: (collective.payload_in, collective.payload_out),
            groups: collective.groups,
            name,
            weight,
        })
    };
    let mut in_loops: HashMap<(ComputationId, Likeness<'_>), Vec<Inside>, BuildMix> =
        HashMap::default();
    let moves = |collective: &Collective| {
        let piece = all.pieces.get(collective.pieces.start as usize)?;
        piece.source.filter(|_| piece.moved == Moved::Weight)
    };
    let line = |collective: &Collective| names.source_line[collective.row.0 as usize];
    for (number, collective) in all.collectives.iter().enumerate() {
        let Some(around) = places.loop_of(collective.outer) else { continue };
        if let Some(likeness) = likeness(collective) {
            let beside = module.computation_of(around);
            let inside = Inside { number: number as u32, peeled: 0 };
            let alike = in_loops.entry((beside, likeness)).or_default();
            if alike.len() < MOST_ALIKE {
                alike.push(inside);
            }
        }
    }
    let mut peeled: Vec<Option<u32>> = Vec::with_capacity(all.collectives.len());
    for collective in &all.collectives {
        let place = module.computation_of(collective.outer);
        let alike = likeness(collective).and_then(|likeness| in_loops.get_mut(&(place, likeness)));
        // Among similar collectives, prefer the same weight, then the same source line, then the
        // fewest peeled iterations so far.
        let rank = |inside: &&mut Inside| {
            let candidate = &all.collectives[inside.number as usize];
            let is_other_weight = moves(candidate) != moves(collective);
            (is_other_weight, line(candidate) != line(collective), inside.peeled)
        };
        let nearest = alike.and_then(|alike| alike.iter_mut().min_by_key(rank));
        peeled.push(nearest.map(|inside| {
            inside.peeled += 1;
            inside.number
        }));
    }
    for (collective, peeled) in all.collectives.iter_mut().zip(peeled) {
        collective.peeled_from = peeled;
    }
}
