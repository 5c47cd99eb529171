//! What a step would need under another checkpoint policy, read off the text of this one.
//!
//! A scan over layers compiles to two loops: the forward loop stacks what the backward loop reads.
//! Under `jax.checkpoint` the backward body would compute those values again, from the layer's input
//! and from what the policy saves. The model therefore walks back from every stacked value through
//! the forward body to values that the policy keeps; what it passes is recomputed. Bytes at each
//! step are those of the text, without the stacks, with the stacks of the policy, and, in the
//! backward body, with the recomputed values from their computation to their last use.
//!
//! XLA repeats cheap elementwise work in the fusions that read it and keeps the results of products,
//! reductions and collectives; so does the model (`scans.rs`). A program that does not fit
//! has been through XLA's own rematerialisation, which a program that fits has not: its clones are
//! joined, and expensive values that several products read count as kept (`base.rs`). A text whose
//! layers are checkpointed recomputes values itself; these stay where the text has them unless the
//! policy saves them (`recomputed.rs`). Judged by programs compiled under each policy:
//! `benches/policy_accuracy.py`.

mod again;
mod base;
mod batches;
mod before;
mod chip;
mod choose;
mod counted;
mod delayed;
mod fixed;
mod graph;
mod groups;
mod hosted;
mod inner;
mod iterations;
mod kernels;
mod laid_checkpoints;
mod laid_groups;
mod laid_layers;
mod laid_loops;
mod laid_scans;
mod laid_values;
mod late;
mod layer_order;
mod layered;
mod layout;
mod loaded;
mod named;
mod nameless;
mod orders;
mod origins;
mod outcome;
mod pairs;
mod passes;
mod price;
mod products;
mod recomputed;
mod remade;
mod reordered;
mod resharded;
mod retimed;
mod rings;
mod run_order;
mod same;
mod savable;
mod scans;
mod scores;
mod search;
mod simulated;
mod simulated_layers;
mod softmax;
mod spread;
mod stacks;
mod stepped;
mod stored;
mod turned;
mod units;
mod unknown;
mod unrolled;
mod value;
mod waiting;
mod widened;

pub use before::How;
pub use chip::Chip;
pub use choose::{choose, frontier};
pub use counted::{Counted, OrderOf};
pub use iterations::Iteration;
pub use outcome::Outcome;
pub use price::{Host, Prices};
pub use savable::{Savable, SavableKind};
pub use units::Unit;
pub use unknown::NoPolicies;

use crate::comms::CollectiveKind;
use crate::cost::{Backend, Cost, device_sizes};
use crate::flow::{Attribution, has_compiler_clones};
use crate::ir::{Module, Opcode, Row};
use crate::memory::{LiveValue, Memory, Scheduler};
use crate::shares::Local;
use again::Again;
use base::Timeline;
use before::{Before, LaidScans, scans_before};
use delayed::Delayed;
use fixed::Fixed;
use graph::MOST_ROWS;
use reordered::Reordered;
use savable::{find_savable, keep_as_in_text};
use scans::{Scan, scans};
use scores::with_scores;
use simulated::Simulated;
use simulated_layers::SimulatedLayers;
use std::ops::RangeInclusive;
use stepped::Stepped;
use unknown::unknown;
use unrolled::Unrolled;
use waiting::waiting;

/// Values of less than this many bytes per iteration are left out of the account.
const LEAST: i64 = 1024;

/// What becomes of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// It is recomputed.
    #[default]
    Recomputed,
    /// It is kept in device memory.
    Saved,
    /// It is kept in host memory.
    Offloaded,
}

/// The layers of a module, and the values that policies could save.
#[derive(Debug)]
pub struct Policies {
    scans: Vec<Scan>,
    /// Layers that are repeated without a loop; None in a module with scans.
    unrolled: Option<Unrolled>,
    /// These layers with all sums of gradients last, if XLA may run them so.
    late: Option<Box<(Unrolled, Timeline)>>,
    /// The scans in the order of XLA's list scheduler, if XLA may run the module so.
    listed: Option<Box<Policies>>,
    /// The scans in the orders of XLA's schedulers, if these tell which one XLA takes.
    simulated: Option<Box<Simulated>>,
    /// Layers without a loop as XLA would run them under a policy, if the text tells.
    simulated_layers: Option<Box<SimulatedLayers>>,
    /// The scans of a checkpointed text in these orders.
    reordered: Option<Box<Reordered>>,
    /// In the order of a list: the steps and bytes of what it makes before it is read.
    early: Vec<(RangeInclusive<u32>, i64)>,
    /// What is known before optimisation; None in a scheduled module.
    before: Option<Before>,
    timeline: Timeline,
    /// What changes if rows that need nothing of the backward loop run before it, in a text that XLA has
    /// rematerialised.
    waiting: Vec<(RangeInclusive<u32>, i64)>,
    /// What waits in the order of the list scheduler on v5e and v6e.
    delayed: Delayed,
    /// By scan.
    fixed: Vec<Fixed>,
    /// The values that a policy could save, by scan and text order.
    pub savable: Vec<Savable>,
    /// Bytes at the peak as it is.
    pub peak: i64,
}

impl Policies {
    /// The scans of `module`. An error if the module has no layers that the model covers, or is too large.
    pub fn new(
        module: &Module,
        cost: &Cost,
        attribution: &Attribution,
        memory: &Memory,
        counted: Counted<'_>,
    ) -> Result<Self, NoPolicies> {
        let mut values = memory.all_values(module);
        let Counted { peak, is_apart, chip, .. } = counted;
        let sizes = device_sizes(module, Backend::of_module(module));
        let scans = scans(module, cost, attribution, memory, &values, &sizes)?;
        if scans.is_empty() {
            let mut late = values.clone();
            let stepped = |values: &mut [LiveValue], are_late| {
                let of = (sizes.as_slice(), peak);
                Stepped::scheduled(module, attribution, memory, values, of, (are_late, is_apart))
            };
            let (own, timeline) = stepped(&mut values, false).ok_or(NoPolicies::NoLayers)?;
            let late = own.are_last.then(|| stepped(&mut late, true)).flatten();
            let unrolled = Unrolled::new(module, own, Some(&sizes), chip);
            let late = late.and_then(|(late, timeline)| {
                Some((Unrolled::new(module, late, Some(&sizes), chip)?, timeline))
            });
            let is_ahead = unrolled.as_ref().is_some_and(Unrolled::makes_room);
            let (mut own, late) = match late {
                Some((late, timeline)) if !is_ahead => {
                    (Self::of_layers(module, Some(late), timeline)?, None)
                }
                late => (Self::of_layers(module, unrolled, timeline)?, late),
            };
            own.late = late.and_then(|(mut late, timeline)| {
                late.save_like(own.unrolled.as_ref()?);
                Some(Box::new((late, timeline)))
            });
            own.simulated_layers = own.unrolled.as_ref().and_then(|unrolled| {
                let how = (peak, chip);
                SimulatedLayers::new(module, unrolled, &sizes, attribution, how).map(Box::new)
            });
            return Ok(Self { peak, ..own });
        }
        if let Some(reason) = unknown(module, cost, &scans, true, &mut { MOST_ROWS }) {
            return Err(reason);
        }
        let own = Self::of_scans(module, memory, (scans, &values), &sizes, counted)?;
        let listed = |how| {
            own.listed((module, cost, attribution, memory), (&sizes, counted), how).map(Box::new)
        };
        let rule = memory.options.rule;
        let simulated = Simulated::new(module, &own, (chip, rule), listed).map(Box::new);
        let reordered = Reordered::new(module, &own, (chip, rule), listed).map(Box::new);
        let may_be_listed = own.may_be_listed(module, chip);
        let listed = may_be_listed.then(|| listed((Scheduler::List, rule))).flatten();
        let is_exchanged = own.exchanges_scores_on(chip);
        let rings = simulated.as_deref().filter(|_| !is_exchanged).map(Simulated::rings);
        let delayed = Delayed::of_text(module, (memory, &values), &own.scans, (rings, chip));
        Ok(Self { listed, simulated, reordered, delayed, ..own })
    }

    /// Those of scans of a scheduled module.
    fn of_scans(
        module: &Module,
        memory: &Memory,
        (scans, values): (Vec<Scan>, &[LiveValue]),
        sizes: &[i64],
        counted: Counted<'_>,
    ) -> Result<Self, NoPolicies> {
        let Counted { peak, chip, order, .. } = counted;
        let twice = counted.twice(memory, values);
        let timeline = Timeline::new(module, memory, values, &scans, (peak, &twice));
        let timeline = timeline.ok_or(NoPolicies::Memory)?;
        let savable = find_savable(module, &scans, sizes);
        let fixed = Fixed::of_scans(module, &scans, &savable, sizes);
        let fixed = with_scores(fixed, module, &scans, &timeline, None, (chip, order));
        let waiting = match has_compiler_clones(module) && chip != Some(Chip::V5p) {
            true => waiting(module, memory, values, &scans),
            false => Vec::new(),
        };
        Ok(Self { waiting, ..Self::plain(scans, timeline, fixed, savable, peak) })
    }

    /// Those in one order.
    fn plain(
        scans: Vec<Scan>,
        timeline: Timeline,
        fixed: Vec<Fixed>,
        savable: Vec<Savable>,
        peak: i64,
    ) -> Self {
        Self {
            scans,
            unrolled: None,
            late: None,
            listed: None,
            simulated: None,
            simulated_layers: None,
            reordered: None,
            early: Vec::new(),
            before: None,
            timeline,
            waiting: Vec::new(),
            delayed: Delayed::default(),
            fixed,
            savable,
            peak,
        }
    }

    /// The layers of a module that is not scheduled, with the bytes of `local`. All bytes are modelled. An error if
    /// the module has no layers that the model covers, or is too large.
    pub fn before_schedule(
        module: &Module,
        cost: &Cost,
        attribution: &Attribution,
        local: &Local,
        how: How,
    ) -> Result<Self, NoPolicies> {
        let before = Some(Before::new(module, cost, local, how.is_whole));
        let laid = match scans_before(module, cost, attribution, local, how, true) {
            Err(NoPolicies::NoLayers) => {
                let own = Stepped::unscheduled(module, cost, attribution, local, how);
                let (stepped, timeline) = own.ok_or(NoPolicies::NoLayers)?;
                if !stepped.graph.on_host.is_empty() {
                    return Err(NoPolicies::Offloaded);
                }
                let unrolled = Unrolled::new(module, stepped, None, how.chip);
                let own = Self::of_layers(module, unrolled, timeline)?;
                return Ok(Self { before, ..own });
            }
            found => found?,
        };
        if let Some(reason) = unknown(module, cost, &laid.scans, false, &mut { MOST_ROWS }) {
            return Err(reason);
        }
        let may_wait = laid.may_wait;
        let own = Self { before, ..Self::of_laid(module, laid, local, how.chip) };
        match may_wait.then(|| scans_before(module, cost, attribution, local, how, false)) {
            Some(Ok(list)) => Ok(own.listed_before(Self::of_laid(module, list, local, how.chip))),
            _ => Ok(own),
        }
    }

    /// Those of scans of a module that is not scheduled.
    fn of_laid(module: &Module, laid: LaidScans, local: &Local, chip: Option<Chip>) -> Self {
        let LaidScans { scans, timeline, early, .. } = laid;
        let mut savable = find_savable(module, &scans, &[]);
        let peak = timeline.changes().highest(&[]).0;
        let fixed = Fixed::of_scans(module, &scans, &savable, &[]);
        let fixed =
            with_scores(fixed, module, &scans, &timeline, Some(local), (chip, OrderOf::Text));
        keep_as_in_text(&scans, &mut savable);
        let mut own = Self { early, ..Self::plain(scans, timeline, fixed, savable, peak) };
        if let Some(fates) = own.fates_in_text() {
            own.peak = own.highest(Some(&fates), false).0;
        }
        own
    }

    /// The fates of the savable values in the text, if its layers are laid out as if they were not checkpointed; None
    /// where the timeline is that of the text.
    fn fates_in_text(&self) -> Option<Vec<Fate>> {
        self.scans.iter().any(|scan| scan.residuals.is_some()).then(|| self.as_is())
    }

    /// Whether policies of both can save the same values.
    fn has_values_of(&self, other: &Self) -> bool {
        let of = |own: &Savable| (own.scan, own.node);
        self.savable.iter().map(of).eq(other.savable.iter().map(of))
    }

    /// With the order of a list, of a module that is not scheduled.
    ///
    /// XLA tries three orders and takes the one whose peak is the lowest. Two go through a layer before they
    /// come to the gradients of its weights. The third is a list, from which it takes at each step what
    /// frees most: it does not let gradients wait, but makes the arrays that these go to before the
    /// forward pass. Where it is taken, later passes move these arrays to the loop that writes them.
    /// Where layers convert their weights, a list makes the converted ones first too; the peaks of the three
    /// orders are then so close that the model cannot tell which is taken, and gradients wait.
    fn listed_before(mut self, list: Self) -> Self {
        if list.has_values_of(&self) {
            let (most, _, counted) = list.highest(self.fates_in_text().as_deref(), true);
            if counted <= self.peak {
                self.peak = most;
            }
            self.listed = Some(Box::new(list));
        }
        self
    }

    /// Those of layers that are repeated without a loop. An error if there are none.
    fn of_layers(
        module: &Module,
        unrolled: Option<Unrolled>,
        mut timeline: Timeline,
    ) -> Result<Self, NoPolicies> {
        let mut unrolled = unrolled.ok_or(NoPolicies::NoLayers)?;
        let savable = unrolled.find_savable(module);
        let kept = |value: &Savable| if value.is_kept { Fate::Saved } else { Fate::Recomputed };
        let fates: Vec<Fate> = savable.iter().map(kept).collect();
        let peak = timeline.changes().highest(&[]).0;
        if let Some(changes) = unrolled.beyond(&fates, timeline.changes()) {
            timeline.apply(&changes);
        }
        let (scans, fixed) = (Vec::new(), Vec::new());
        Ok(Self { unrolled: Some(unrolled), ..Self::plain(scans, timeline, fixed, savable, peak) })
    }

    /// Whether the module is not scheduled, so that all bytes are modelled.
    pub fn is_modelled(&self) -> bool {
        self.before.is_some()
    }

    /// The forward loop of each scan, and its iterations.
    pub fn loops(&self) -> impl Iterator<Item = (Row, u64)> + '_ {
        let scans = self.scans.iter().map(|scan| (scan.forward, scan.trips));
        scans.chain(self.unrolled.iter().flat_map(Unrolled::loops))
    }

    /// The functions that compute layers without a loop, as far as the text shows them, and whether several
    /// are taken as one layer because the text does not tell how they are checkpointed.
    pub fn units(&self) -> (&[Unit], bool) {
        self.unrolled.as_ref().map_or((&[], false), Unrolled::units)
    }

    /// By savable value of layers without a loop: the number of the parameter that its product in one layer
    /// multiplies by.
    pub fn weights(&self) -> &[Option<u32>] {
        self.unrolled.as_ref().map_or(&[], Unrolled::weights)
    }

    /// Bytes that the step as it is keeps from forward to backward loops, apart from weights.
    pub fn kept(&self) -> i64 {
        let stacks = self.scans.iter().flat_map(Scan::stacks_of_text);
        let bytes = stacks.filter(|stack| !stack.is_weight).map(|stack| stack.bytes);
        let unrolled = self.unrolled.as_ref().map_or(0, Unrolled::kept);
        bytes.fold(unrolled, i64::saturating_add)
    }

    /// Whether layers are under `jax.checkpoint` in the step as it is.
    pub fn is_checkpointed(&self) -> bool {
        let unrolled = self.unrolled.as_ref();
        unrolled.is_some_and(Unrolled::is_checkpointed)
            || self.scans.iter().any(Scan::is_checkpointed)
    }

    /// What the scans run over. It is layers if one of them runs over layers, and without scans.
    pub fn iteration(&self, module: &Module) -> Iteration {
        let of = self.scans.iter().map(|scan| Iteration::of(module, scan));
        of.min().unwrap_or(Iteration::Layer)
    }

    /// Whether a loop of the program runs in each layer of a scan.
    pub fn has_loops(&self) -> bool {
        self.scans.iter().any(|scan| !scan.body.within.is_empty())
    }

    /// Whether such a loop is under `jax.checkpoint` inside.
    pub fn checkpoints_in_loops(&self) -> bool {
        self.scans.iter().any(|scan| scan.recomputed.checkpoints_in_loops)
    }

    /// Whether layers are scanned in groups that are not checkpointed themselves. XLA for TPUs refuses
    /// most of such programs if they move values to host memory, so the model does not cover that.
    pub fn is_grouped(&self) -> bool {
        self.scans.iter().any(|scan| scan.group.is_some())
    }

    /// Whether layers are scanned in groups that are under `jax.checkpoint`.
    pub fn repeats_groups(&self) -> bool {
        self.scans.iter().any(|scan| scan.is_again)
    }

    /// The fates of the savable values in the step as it is.
    pub fn as_is(&self) -> Vec<Fate> {
        let fate = |value: &Savable| match value.is_kept {
            true if self.is_on_host(value) => Fate::Offloaded,
            true => Fate::Saved,
            false => Fate::Recomputed,
        };
        self.savable.iter().map(fate).collect()
    }

    /// Whether the step as it is keeps a value in host memory.
    fn is_on_host(&self, value: &Savable) -> bool {
        let scan = self.scans.get(value.scan as usize);
        scan.is_some_and(|scan| scan.body.on_host.contains(&value.node))
    }

    /// A bound of what one outcome visits, by which the policies that are tried are limited: nodes and
    /// steps.
    fn work(&self) -> usize {
        let nodes = self.scans.iter().map(|scan| scan.body.nodes.len() + scan.back.nodes.len());
        let scans = self.scans.len().max(1);
        let unrolled = self.unrolled.as_ref().map_or(0, Unrolled::work);
        let own = nodes.sum::<usize>() + scans * (self.timeline.steps() + self.savable.len());
        let may_move = self.scans.iter().any(|scan| !scan.late.changes.is_empty());
        let simulated = self.simulated.as_ref().map_or(0, |_| Scheduler::ALL.len());
        let reordered = self.reordered.as_ref().map_or(0, |_| reordered::ORDERS);
        let orders = 1 + usize::from(self.listed.is_some()) + usize::from(may_move);
        let orders = orders + simulated + reordered;
        let programs = self.simulated_layers.as_deref().map_or(0, SimulatedLayers::work);
        unrolled + programs + orders * own
    }

    /// What the step needs if the savable values have these fates.
    pub fn outcome(&self, module: &Module, fates: &[Fate], prices: &Prices<'_>) -> Outcome {
        let mut outcome = Outcome {
            flops: Some(0),
            // The partitioner adds the collectives.
            wire_bytes: self.before.as_ref().is_none_or(|own| !own.is_whole).then_some(0),
            seconds: prices.seconds.map(|_| 0.0),
            moving: Some(0.0),
            waiting: Some(0.0),
            ..Outcome::default()
        };
        let mut bytes = self.timeline.changes();
        let mut prefixes = Vec::new();
        let mut every: Vec<Again<'_>> = Vec::new();
        for (number, scan) in (0u32..).zip(&self.scans) {
            let again = Again::new(self, number, fates, true, &mut outcome);
            again.account(&mut bytes, &mut outcome);
            prefixes.push((*scan.back_steps.start(), again.prefix()));
            let before = outcome.seconds;
            again.price(module, prices, &mut outcome);
            let seconds = outcome.seconds.zip(before).map(|(after, before)| after - before);
            let sizes = again.offloaded.iter().map(|(size, ..)| *size);
            let moved = sizes.fold(0, i64::saturating_add);
            let more = match moved {
                0 => Some([0.0; 2]),
                _ => stored::stored(module, std::slice::from_ref(&again), prices),
            };
            let more = more.zip(seconds).map(|([fore, aft], again)| [fore, aft + again]);
            let moves = prices.moves(module, scan, moved, more);
            outcome.moving = outcome.moving.zip(moves).map(|(sum, (own, _))| sum + own);
            outcome.waiting = outcome.waiting.zip(moves).map(|(sum, (_, own))| sum + own);
            every.push(again);
        }
        let stored = stored::stored(module, &every, prices);
        outcome.storing = stored.map(|[fore, aft]| fore + aft);
        if let Some(unrolled) = &self.unrolled {
            let flops = |row: Row| self.flops(module, row, prices);
            prefixes = unrolled.outcome(module, fates, (prices, flops), &mut bytes, &mut outcome);
            if outcome.on_host > 0 {
                (outcome.moving, outcome.waiting) = (None, None);
            }
        }
        let moves = every.iter().any(|again| again.moves);
        let is_simulated = self.keeps_less(fates) && outcome.on_host == 0;
        let simulated = self.simulated.as_deref().filter(|_| is_simulated);
        let scheduler = simulated.map(|own| own.taken(fates));
        let other = match scheduler {
            Some(Scheduler::List) => self.listed.as_deref(),
            Some(Scheduler::PostOrder) => simulated.and_then(|own| own.post_order.as_deref()),
            Some(Scheduler::DepthFirst) | None => None,
        };
        let (mut peak, mut step) = match other {
            Some(other) => other.at_peak(fates),
            None => self.lowest(fates, (bytes, &prefixes), (moves, scheduler)),
        };
        let mut timeline = other.map_or(&self.timeline, |own| &own.timeline);
        if let Some(reordered) = self.reordered.as_deref().filter(|_| fates != self.as_is()) {
            let (most, at) = reordered.highest(self, fates, peak);
            (peak, step) = (most, at.unwrap_or(step));
        }
        // The orders of a program with such layers are known.
        if let Some(own) = self.simulated_layers.as_deref()
            && outcome.on_host == 0
            && fates != self.as_is()
            && let Some((peak, row)) = own.highest(module, fates)
        {
            (outcome.peak, outcome.at) = (peak, Some(row));
            return outcome;
        }
        // Of its orders XLA takes the one that needs less memory.
        if let Some((late, own)) = self.late.as_deref() {
            let (most, at) = late.highest(fates, own);
            if most < peak {
                (peak, step, timeline) = (most, at, own);
            }
        }
        // Layers in loops may run in another order too.
        if let Some(listed) = self.listed.as_deref().filter(|_| scheduler.is_none()) {
            let (most, at, counted) = listed.highest(Some(fates), true);
            let is_taken = match self.before {
                Some(_) => counted <= peak,
                None => {
                    let is_apart = |times: f64| (most as f64) * times < peak as f64;
                    self.keeps_less(fates)
                        && self.least_apart(fates).is_some_and(is_apart)
                        && (outcome.on_host > 0 || self.prefers(counted, peak, fates))
                }
            };
            if is_taken {
                (peak, step, timeline) = (most, at, &listed.timeline);
            }
        }
        // Nothing could be kept instead: the policy is that of the text.
        outcome.peak = if self.savable.is_empty() { self.peak } else { peak };
        outcome.at = timeline.row(step);
        outcome
    }

    /// FLOPs that a product takes in a step on one device; None if unknown.
    fn flops(&self, module: &Module, row: Row, prices: &Prices<'_>) -> Option<i64> {
        let own = self.before.as_ref().and_then(|before| before.flops(row));
        own.or_else(|| prices.flops(module, row))
    }
}

fn is_collective(opcode: Opcode) -> bool {
    CollectiveKind::of_opcode(opcode).is_some()
}
