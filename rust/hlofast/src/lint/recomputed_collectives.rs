//! `recomputed-collectives`: collectives that run again because the forward pass is recomputed for
//! the backward pass.
//!
//! Gathers of weights do not count. The gradient of a layer's input needs the weight too, so the
//! backward pass gathers it with or without recomputation, and one gather serves both: XLA sends the
//! same bytes for a step with `jax.checkpoint` as for a step without (`weights_gathered` in
//! `tests/oracle/judge_advice.py`). Keeping the gathered weights of all layers would save that
//! gather, at the price of the memory for which the weights were sharded.
//!
//! A matmul that is recomputed has a gather of its own where the compiler overlaps the two, or where its gradient
//! is far away. Saving the result of the matmul's collective saves this gather too. It also brings the gathers of
//! matmuls before it closer to those for their gradients, so that the compiler merges them.
//!
//! The result of any other collective is either needed by recomputed work alone, or is an activation
//! that the forward pass can keep. Keeping it takes memory, which the message states; a checkpoint
//! inside a checkpoint repeats a collective twice, but keeps one result. A loop over layers keeps the
//! results in a stack. Where a loop over layers runs in a loop over groups of them, the backward pass
//! copies the results of one group out of the stack, and the peak grows by that copy too. It also copies
//! the results of one layer. This copy mostly replaces the recomputed result. Where the scheduler
//! fetches it early, the peak grows by up to its size (pairs of this rule in `COSTS` of
//! `tests/fixtures/advice_cases.py`).

use super::batch_gathered;
use super::finding::Measure;
use super::gathers_again::gathers_again;
use super::program::{Program, bytes, counted, form, grouped, percent};
use super::recomputed_twice::{By, nested};
use super::resharded_scores;
use super::site::{Rule, Site};
use crate::comms::{Collective, Moved, Piece};
use crate::flow::{Phase, is_compiler_clone};
use crate::ir::intern::BuildMix;
use crate::ir::{ComputationId, Opcode, Row};
use std::collections::{HashMap, HashSet};

pub(super) const RULE: Rule = Rule {
    code: "recomputed-collectives",
    what: "collectives repeated by recomputation for the backward pass",
    measure: Measure::Payload,
    find,
    message,
    remedy: "if that memory is free, save the results of these collectives: name each result and \
             constrain it to its sharding, x = with_sharding_constraint(checkpoint_name(x, \
             'full'), spec), and add the name to the checkpoint policy (save_only_these_names); \
             without the constraint, the compiler may keep one shard and gather again; or move \
             jax.checkpoint so that the collective is outside",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    let collectives = &program.collectives.collectives;
    let is_again = |collective: &Collective| {
        collective.executions.iter().any(|entry| entry.phase == Phase::Recompute)
    };
    if !collectives.iter().any(is_again) {
        return;
    }
    let links = program.links();
    let by_outer: HashSet<_, BuildMix> = collectives
        .iter()
        .filter_map(|own| nested(program, own.row))
        .filter_map(|(by, likeness)| (by == By::Outer).then_some(likeness))
        .collect();
    let is_counted = |row: Row| {
        nested(program, row).is_some_and(|(by, own)| by == By::Inner && by_outer.contains(&own))
    };
    let mut passes = Passes { program, has_forward: HashMap::default() };
    // By link: payload of all collectives along it.
    let mut totals = vec![0u64; collectives.len()];
    for (collective, link) in collectives.iter().zip(&links) {
        let payload = collective.payload().and_then(|b| program.runs_of(collective).times(b));
        let total = link.and_then(|link| totals.get_mut(link as usize));
        if let (Some(payload), Some(total)) = (payload, total) {
            *total = total.saturating_add(payload);
        }
    }
    for (number, collective) in collectives.iter().enumerate() {
        let combined = Share::combined(program, collective);
        let again = collective.executions.iter();
        let again = again.filter(|entry| combined.is_some() || entry.phase == Phase::Recompute);
        let count = again
            .map(|entry| entry.count)
            .try_fold(0u64, |sum, count| sum.checked_add(u64::try_from(count?).ok()?));
        let (Some(_), Some(link), Some(payload)) =
            (collective.groups, links[number], collective.payload())
        else {
            continue;
        };
        // No checkpoint policy keeps what the compiler repeats by itself because memory is short.
        let is_other =
            collective.moved == Moved::Weight || is_compiler_clone(program.module, collective.row);
        if is_other || count == Some(0) || collective.group_size == Some(1) {
            continue;
        }
        // With the batch sharded, or scores sharded alike throughout, these are not sent at all.
        let is_resharded = || resharded_scores::moved(program).binary_search(&number).is_ok();
        if batch_gathered::gathered(program, number) != 0 || is_resharded() {
            continue;
        }
        let share = combined.unwrap_or_else(|| Share::of(program, collective));
        let bytes = count.and_then(|count| share.of_bytes(payload).checked_mul(count));
        let total = totals.get(link as usize).copied().unwrap_or(0);
        let wire = collective.ring_wire_bytes();
        let wire = wire.and_then(|wire| share.of_bytes(wire).checked_mul(count?));
        let held = count.filter(|_| !is_counted(collective.row)).and_then(|count| {
            let number = passes.number(collective.outer)?;
            let once = share.of_bytes(collective.payload_out?);
            let kept = once.checked_mul(count / number)?;
            let loops = passes.loops(collective.outer);
            let copy = |runs: &u64| match runs / number {
                0 | 1 => 0,
                parts => kept / parts,
            };
            let groups = loops.iter().skip(1).map(copy).fold(kept, u64::saturating_add);
            Some((kept, groups, loops.first().map_or(0, copy)))
        });
        let mut site = Site::new(collective.row)
            .sum("payload_bytes", bytes.unwrap_or(0))
            .sum("wire_bytes", wire.unwrap_or(0))
            .sum("kept_bytes", held.map_or(0, |held| held.0))
            .sum("kept_peak_bytes", held.map_or(0, |held| held.1))
            .sum("read_bytes", held.map_or(0, |held| held.2))
            .sum("executions", count.unwrap_or(0))
            .common("group_payload_bytes", total)
            .of(number);
        site.bytes = bytes;
        site.phases = vec![Phase::Recompute];
        site.is_lower_bound = program.runs_of(collective).is_lower_bound;
        site.key = u64::from(link);
        site.kind = Some(collective.kind);
        site.is_anywhere = true;
        sites.push(site);
    }
    gathers_again(program, sites);
}

/// The part of a collective's bytes that belongs to recomputed arrays: XLA combines collectives of
/// several phases.
struct Share {
    again: u64,
    all: u64,
}

impl Share {
    /// The recomputed activations among the arrays of a collective that counts as one of the backward pass,
    /// if there are any.
    fn combined(program: &Program<'_>, collective: &Collective) -> Option<Self> {
        let is_backward = |phase| phase == Phase::Backward;
        if !collective.executions.iter().all(|entry| is_backward(entry.phase)) {
            return None;
        }
        let pieces = collective.pieces.start as usize..collective.pieces.end as usize;
        let pieces = program.collectives.pieces.get(pieces).filter(|pieces| pieces.len() > 1)?;
        let phase = |row: Row| program.attribution.phase.get(row.0 as usize);
        // Copies into another memory have the phase of what reads them.
        let is_again = |piece: &&Piece| {
            let phases = [Some(piece.row), piece.source].map(|row| phase(row?));
            piece.moved == Moved::Activation && phases.contains(&Some(&Phase::Recompute))
        };
        let sum = |sum: u64, piece: &Piece| sum.saturating_add(piece.bytes);
        let again = pieces.iter().filter(is_again).fold(0, sum);
        (again > 0).then(|| Self { again, all: pieces.iter().fold(0, sum) })
    }

    fn of(program: &Program<'_>, collective: &Collective) -> Self {
        let pieces = collective.pieces.start as usize..collective.pieces.end as usize;
        let pieces = program.collectives.pieces.get(pieces).unwrap_or_default();
        let sum = |other: &[Phase]| {
            let phase = |row: Row| program.attribution.phase.get(row.0 as usize);
            let own = pieces
                .iter()
                .filter(|piece| phase(piece.row).is_none_or(|phase| !other.contains(phase)));
            own.fold(0u64, |sum, piece| sum.saturating_add(piece.bytes))
        };
        let (again, all) = (sum(&[Phase::Forward, Phase::Backward]), sum(&[]));
        // The text may tell the phase of a collective but not those of its arrays.
        if again == 0 { Self { again: 1, all: 1 } } else { Self { again, all } }
    }

    fn of_bytes(&self, bytes: u64) -> u64 {
        let part = u128::from(bytes) * u128::from(self.again) / u128::from(self.all.max(1));
        u64::try_from(part).unwrap_or(bytes)
    }
}

/// Counts forward passes.
struct Passes<'a, 'b> {
    program: &'a Program<'b>,
    /// By computation: whether it contains work of the forward pass.
    has_forward: HashMap<ComputationId, bool, BuildMix>,
}

impl Passes<'_, '_> {
    /// How many forward passes a step makes of the kind whose backward pass contains `row`: steps
    /// that accumulate gradients make several, and values are kept for one at a time. None if
    /// unknown or zero.
    fn number(&mut self, row: Row) -> Option<u64> {
        let id = *self.around(row).last()?;
        self.runs(id).filter(|count| *count > 0)
    }

    /// How often the loops around `row` run their bodies, innermost first, up to those that make
    /// forward passes too.
    fn loops(&mut self, row: Row) -> Vec<u64> {
        let mut around = self.around(row);
        around.pop();
        let mut counts: Vec<u64> = around.into_iter().filter_map(|id| self.runs(id)).collect();
        // Fusions and asynchronous computations run as often as what calls them.
        counts.dedup();
        counts
    }

    fn runs(&self, id: ComputationId) -> Option<u64> {
        let count = (*self.program.cost.executions.get(id.0 as usize)?)?;
        u64::try_from(count).ok()
    }

    /// The computations around `row`, innermost first, up to the first one with work of the forward
    /// pass.
    fn around(&mut self, row: Row) -> Vec<ComputationId> {
        let program = self.program;
        let mut around = vec![program.module.computation_of(row)];
        // Computations call each other without cycles, so the way up ends at the entry.
        while let Some(&id) = around.last()
            && !self.has_forward(id)
            && let &[caller] = program.module.callers(id)
        {
            around.push(program.module.computation_of(Row(caller)));
        }
        around
    }

    fn has_forward(&mut self, id: ComputationId) -> bool {
        let program = self.program;
        *self.has_forward.entry(id).or_insert_with(|| {
            program.module.computation(id).rows().map(Row).any(|row| {
                let works = program.cost.flops.get(row.0 as usize).is_some_and(|n| *n > 0);
                let phase = program.attribution.phase.get(row.0 as usize);
                phase == Some(&Phase::Forward)
                    && (works || program.module.opcode(row) == Opcode::While)
            })
        })
    }
}

fn message(program: &Program<'_>, site: &Site) -> String {
    let collective = site.collective(program);
    let kind = site.kind.map_or("collective", |kind| kind.as_str());
    let place = collective.map(|collective| program.along(collective)).unwrap_or_default();
    let places = counted(site.places, kind, &format!("{kind}s"));
    if site.figure("executions") == 0 {
        // Call counts beyond 64 bits are unknown; so are totals that contain them.
        let are = form(site.places, "is", "are");
        return format!("{places} {place} {are} recomputed an unknown number of times per step");
    }
    let times = match (site.places, site.figure("executions")) {
        (1, 1) => " once per step".to_owned(),
        (1, count) => format!(" {} times per step", grouped(count)),
        (_, count) => format!(", {} executions per step in total,", grouped(count)),
    };
    let kept = match site.figure("kept_bytes") {
        0 => String::new(),
        kept => {
            let all = site.figure("kept_peak_bytes");
            let groups = match all.saturating_sub(kept) {
                0 => String::new(),
                read => format!(
                    ", {} of results and {} of those that an inner loop reads at once",
                    bytes(kept),
                    bytes(read)
                ),
            };
            let layer = match site.figure("read_bytes") {
                0 => String::new(),
                read => format!(
                    ", and up to {} more while the backward pass reads those of one layer",
                    bytes(read)
                ),
            };
            let takes = "keeping the results from the forward pass takes";
            format!("; {takes} {} per device{groups}{layer}", bytes(all))
        }
    };
    let weights = match site.figure("weight_bytes") {
        0 => String::new(),
        weights => format!(", with {} of gathers of weights that go too", bytes(weights)),
    };
    format!(
        "{places} {place} {} recomputed{times} and {} {} of payload again, {} of the {} along \
         these devices{weights}{kept}",
        form(site.places, "is", "are"),
        form(site.places, "sends", "send"),
        bytes(site.figure("payload_bytes")),
        percent(site.figure("payload_bytes"), site.figure("group_payload_bytes")),
        bytes(site.figure("group_payload_bytes")),
    )
}
