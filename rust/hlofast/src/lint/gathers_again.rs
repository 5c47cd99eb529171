//! Gathers of weights that go once recomputed collectives are saved (`recomputed-collectives`).
//!
//! XLA merges two equal gathers of a computation if few instructions lie between the users of the first one and the
//! second one (`schedule-aware-collective-cse`). Between the gather of a weight for a recomputed matmul and the one
//! for the gradient of its input lies all that is computed from a recomputed sum: the rest of the layer, and the
//! gradient of this rest. Once the sum is saved, only the gradient between the two is left.

use super::finding::Figure;
use super::program::Program;
use super::site::{Site, source};
use crate::comms::{Collective, Moved};
use crate::flow::Phase;
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, Module, Opcode, Row};
use std::collections::{HashMap, HashSet};

/// XLA merges two gathers if few instructions lie between their users: it compares the heights of the users in the
/// graph (`schedule_aware_collective_ops_cse.cc` of openxla/xla). This limit counts the instructions on the longest path
/// between the two matmuls in the final text, and is fitted: in planted steps, gathers that XLA merges once results are
/// saved are 24 to 68 apart (`masked.summed_again`).
const NEAR: u32 = 68;
/// Those that it keeps apart are 138 or more instructions apart (`video.summed_once`). Between the two limits it is
/// not known.
const FAR: u32 = 138;
/// Limit on fusions in fusions.
const DEEPEST: usize = 4;
/// Limit on the rows that are looked at to measure all distances of a module, and on those between a gather and what
/// computes with it.
const MOST_VISITED: usize = 1 << 20;
const MOST_PASSED: usize = 256;

/// Adds the gathers of weights that go with the collectives: those of matmuls that are then not recomputed, where
/// the backward pass has a gather of its own of the same weight, and those of the backward pass that the compiler
/// then merges with the gather of a recomputed matmul (see `feeds`).
pub(super) fn gathers_again(program: &Program<'_>, sites: &mut [Site]) {
    let collectives = &program.collectives.collectives;
    let module = program.module;
    let columns = module.metadata_columns();
    let weight = |collective: &Collective| {
        let pieces = collective.pieces.start as usize..collective.pieces.end as usize;
        match program.collectives.pieces.get(pieces)? {
            [piece] if collective.moved == Moved::Weight => piece.source,
            _ => None,
        }
    };
    let in_phase = |phase: Phase| {
        let is_in = move |own: &&Collective| program.runs_of(own).phase == phase;
        collectives.iter().filter(is_in).filter_map(|own| Some((own, weight(own)?)))
    };
    let payload = |own: &Collective| program.runs_of(own).times(own.payload()?);
    let within = |row: Row| module.computation_of(program.scheduled(row));
    let mut backward: HashMap<Row, Vec<&Collective>, BuildMix> = HashMap::default();
    for (collective, weight) in in_phase(Phase::Backward) {
        backward.entry(weight).or_default().push(collective);
    }
    if backward.is_empty() {
        return;
    }
    let feeds = feeds(program, sites);
    let saved = sites.iter().filter_map(|site| site.subjects.first());
    let saved = saved.map(|row| program.scheduled(*row)).collect();
    let mut places: HashMap<(i32, i32), usize> = HashMap::new();
    for (at, site) in sites.iter().enumerate() {
        let row = source(program, site.subjects.get(..1).unwrap_or_default());
        let place = row.map(|row| program.sources().place(columns, row));
        if let Some(place) = place.filter(|place| place.0 >= 0) {
            places.entry(place).or_insert(at);
        }
    }
    // The computations of gathers that are far apart in the schedule: whether they then become one is not known.
    let mut unknown: HashSet<ComputationId, BuildMix> = HashSet::default();
    let mut paths = Paths { module, saved, depths: HashMap::default(), left: MOST_VISITED };
    for (collective, weight) in in_phase(Phase::Recompute) {
        let Some(others) = backward.get_mut(&weight) else { continue };
        let place = program.sources().place(columns, collective.row);
        let is_alike = |other: &&Collective| {
            within(other.row) == within(collective.row)
                && other.payload() == collective.payload()
                && other.groups == collective.groups
        };
        let its = places.get(&place).copied();
        let fed = feeds.get(&end(program, collective)).copied();
        let (at, gone) = match (its, fed) {
            (Some(at), _) => (at, collective),
            (None, Some(at)) => {
                let alike = (0..others.len()).filter(|other| is_alike(&others[*other]));
                let apart =
                    alike.map(|other| (paths.between(program, collective, others[other]), other));
                // Those whose distance is not known come last.
                match apart.min_by_key(|(apart, _)| apart.unwrap_or(u32::MAX)) {
                    Some((Some(apart), other)) if apart <= NEAR => (at, others.swap_remove(other)),
                    Some((Some(FAR..), _)) | None => continue,
                    Some(_) => {
                        sites[at].is_lower_bound = true;
                        continue;
                    }
                }
            }
            (None, None) => {
                unknown.insert(within(collective.row));
                continue;
            }
        };
        let site = &mut sites[at];
        if let (Some(payload), Some(bytes)) = (payload(gone), site.bytes) {
            site.bytes = Some(bytes.saturating_add(payload));
            match site.sums.iter_mut().find(|own| own.name == "weight_bytes") {
                Some(own) => own.value = own.value.saturating_add(payload),
                None => site.sums.push(Figure { name: "weight_bytes", value: payload }),
            }
            site.evidence.push(gone.row);
        }
    }
    for site in sites {
        let row = site.subjects.first();
        site.is_lower_bound |= row.is_some_and(|row| unknown.contains(&within(*row)));
    }
}

/// The rows that recomputed work uses for the recomputed collectives of `sites`, each with the number of one site: of
/// those that a row leads to, the first in the program, which may not be the nearest.
fn feeds(program: &Program<'_>, sites: &[Site]) -> HashMap<Row, usize, BuildMix> {
    let module = program.module;
    let is_other = |row: Row| {
        // Rows without a name pass values on, such as the ends of asynchronous collectives.
        let phase = program.attribution.phase.get(row.0 as usize);
        program.op_name(row).is_some()
            && matches!(phase, Some(Phase::Forward | Phase::Backward | Phase::Optimizer))
    };
    let mut found: HashMap<Row, usize, BuildMix> = HashMap::default();
    let mut open = Vec::new();
    for (number, site) in sites.iter().enumerate() {
        open.extend(site.subjects.first().map(|row| (program.scheduled(*row), number)));
        while let Some((row, number)) = open.pop() {
            for before in module.operands(row).iter().map(|row| Row(*row)) {
                if !is_other(before) && !found.contains_key(&before) {
                    found.insert(before, number);
                    open.push((before, number));
                }
            }
        }
    }
    found
}

/// The last of the rows that run a collective: the one that returns its result.
fn end(program: &Program<'_>, collective: &Collective) -> Row {
    let members = collective.members.start as usize..collective.members.end as usize;
    let members = program.collectives.members.get(members).unwrap_or_default();
    program.scheduled(members.last().copied().unwrap_or(collective.row))
}

/// Paths between the rows of a computation, counted in the instructions of the program before fusion.
struct Paths<'a> {
    module: &'a Module,
    /// The recomputed collectives, whose results are then saved.
    saved: HashSet<Row, BuildMix>,
    /// By fused computation: the longest path from each parameter to the result.
    depths: HashMap<ComputationId, Vec<u32>, BuildMix>,
    /// Rows that may still be visited.
    left: usize,
}

impl Paths<'_> {
    /// The instructions on the longest path from the gather `first` to what computes with the later gather `second`, once
    /// results are saved. None without a path, and once the budget is spent.
    fn between(
        &mut self,
        program: &Program<'_>,
        first: &Collective,
        second: &Collective,
    ) -> Option<u32> {
        let module = self.module;
        let (from, to) = (end(program, first), end(program, second));
        let last = self.reader(to).filter(|last| from.0 < last.0)?;
        // Rows follow each other in the order of the schedule.
        self.left = self.left.checked_sub((last.0 - from.0) as usize)?;
        let mut lengths: HashMap<Row, u32, BuildMix> = HashMap::from_iter([(from, 0)]);
        for row in (from.0 + 1..=last.0).map(Row) {
            if self.saved.contains(&row) {
                continue;
            }
            let operands = module.operands(row).iter().enumerate();
            let lengths_of = operands.filter_map(|(at, own)| Some((at, *lengths.get(&Row(*own))?)));
            let lengths_of: Vec<_> = lengths_of.collect();
            let steps = lengths_of.into_iter();
            let longest = steps.map(|(at, own)| own.saturating_add(self.step(row, at, DEEPEST)));
            lengths.extend(longest.max().map(|own| (row, own)));
        }
        lengths.get(&last).copied()
    }

    /// The first row that computes with the value of `row`.
    fn reader(&self, row: Row) -> Option<Row> {
        let mut open = vec![row];
        let mut passed: HashSet<Row, BuildMix> = HashSet::default();
        let mut found: Option<Row> = None;
        while let Some(row) = open.pop() {
            for user in self.module.users().get(row.0).iter().map(|user| Row(*user)) {
                if !passes(self.module.opcode(user)) {
                    found = Some(found.map_or(user, |own| own.min(user)));
                } else if passed.len() < MOST_PASSED && passed.insert(user) {
                    open.push(user);
                }
            }
        }
        found
    }

    /// The instructions on the longest path from operand `at` of `row` to its result.
    fn step(&mut self, row: Row, at: usize, deepest: usize) -> u32 {
        let opcode = self.module.opcode(row);
        let callee = self.module.calls(row).first().map(|call| call.computation);
        match callee.filter(|_| opcode == Opcode::Fusion && deepest > 0) {
            Some(callee) => self.depths(callee, deepest - 1).get(at).copied().unwrap_or(1),
            None => u32::from(!passes(opcode)),
        }
    }

    /// The longest path from each parameter of a fused computation to its result.
    fn depths(&mut self, id: ComputationId, deepest: usize) -> &[u32] {
        if !self.depths.contains_key(&id) {
            let module = self.module;
            let mut after: HashMap<Row, u32, BuildMix> = HashMap::default();
            let mut depths = Vec::new();
            for row in module.computation(id).rows().map(Row).rev() {
                let own = after.get(&row).copied().unwrap_or(0);
                for (at, before) in module.operands(row).iter().enumerate() {
                    let length = own.saturating_add(self.step(row, at, deepest));
                    let longest = after.entry(Row(*before)).or_insert(0);
                    *longest = length.max(*longest);
                }
                if let Some(number) =
                    module.parameter_number(row).and_then(|own| usize::try_from(own).ok())
                    && number < module.computation(id).rows().len()
                {
                    depths.resize(depths.len().max(number + 1), 0);
                    depths[number] = own;
                }
            }
            self.depths.insert(id, depths);
        }
        self.depths.get(&id).map_or(&[], Vec::as_slice)
    }
}

/// Whether an operation hands its operand on.
fn passes(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        Bitcast | Copy | CopyStart | CopyDone | GetTupleElement | OptBarrier | Parameter | Tuple
    )
}
