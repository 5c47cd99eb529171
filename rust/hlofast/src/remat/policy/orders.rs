//! In which of its orders XLA runs a step under a policy.

use super::again::Again;
use super::base::Changes;
use super::chip::Chip;
use super::scans::Scan;
use super::{Fate, Outcome, Policies, SavableKind};
use crate::cost::Backend;
use crate::flow::has_compiler_clones;
use crate::ir::Module;
use crate::memory::{LiveValue, Scheduler, is_constant};
use std::ops::RangeInclusive;

/// How many times the peak of the list scheduler's order the peak of the text's order must be to be replaced. For
/// texts in another order, its simulated peak is up to 3 % lower, with parameters up to 2 %.
const MARGIN: f64 = 1.02;
/// The same under policies that save values. XLA kept the order of programs whose peaks are 1.21 and 1.28 times
/// apart, and changed it where they are 1.35 times apart (`roomy_model_v5e_4` in `tests/fixtures/policy_roomy.py`).
const APART: f64 = 1.3;
/// How many times lower the peak must be with the gradient of the head before the backward loop (`waiting.rs`), under
/// policies that save values, for XLA to run it there. Fitted: the gradient waited at 1.16 (`drawn108`), and ran
/// before the loop at 1.20 (`drawn109`, `drawn306`) and 1.30 (`drawn145`).
const WAITING_APART: f64 = 1.18;
/// How many times lower the peak must be with gradients of weights that do not wait (`late.rs`). Fitted: the gradients
/// waited at up to 1.12 (`long_v5e_16`), and ran at once at 1.16 (`vision_v6e_8`) and 1.19 to 1.25 (`drawn112`).
const MOVING_APART: f64 = 1.15;
/// The tolerance with which the count of XLA's memory scheduler is modelled. Fitted on the programs of
/// `benches/policy_accuracy.py` that have no rings.
const COUNTED: f64 = 0.97;

/// By step: the most bytes that work before it needs, and those of them that the step itself counts.
type Prefixes = Vec<(u32, (i64, i64))>;
/// By forward loop: its first step, and the bytes of the stacks that it writes.
type Stacks = Vec<(RangeInclusive<u32>, i64)>;

impl Policies {
    /// Whether a policy keeps less in device memory than the step as it is.
    pub(super) fn keeps_less(&self, fates: &[Fate]) -> bool {
        self.savable.iter().zip(fates).any(|(value, fate)| {
            let stays = *fate == Fate::Offloaded && self.is_on_host(value);
            value.is_kept && *fate != Fate::Saved && !stays
        })
    }

    /// Whether a policy saves any value that layers make in device memory.
    pub(super) fn saves_any(&self, fates: &[Fate]) -> bool {
        self.savable
            .iter()
            .zip(fates)
            .any(|(value, fate)| value.kind != SavableKind::Input && *fate == Fate::Saved)
    }

    /// How many times the peak of the list scheduler's order the peak of the text's order must be for XLA to
    /// take the other; None if it does not.
    ///
    /// Where a policy saves values, gradients of weights read them from stacks and hold little else while they
    /// wait, so the order mostly stays that of the text. Where it saves none, they would hold all that runs
    /// again. In texts whose products run in loops around rings they wait even then.
    pub(super) fn least_apart(&self, fates: &[Fate]) -> Option<f64> {
        if self.has_host_stacks() {
            return Some(MARGIN);
        }
        let is_in_rings = self.scans.iter().any(|scan| scan.is_in_rings);
        (!is_in_rings).then(|| if self.saves_any(fates) { APART } else { MARGIN })
    }

    /// Whether XLA may run the module in another order than that of its text. A text that XLA has rematerialised by
    /// itself has the order of a program that does not fit (`late.rs`), which is near enough unless devices exchange
    /// scores. Of checkpointed layers only those that use host memory are nearer with: `benches/policy_accuracy.py`.
    pub(super) fn may_be_listed(&self, module: &Module, chip: Option<Chip>) -> bool {
        let is_tpu = Backend::of_module(module) == Backend::Tpu;
        let is_open = self.has_host_stacks() || !self.is_checkpointed();
        let follows_text = has_compiler_clones(module) && !self.exchanges_scores_on(chip);
        is_tpu && is_open && !follows_text
    }

    /// The most bytes in device memory under a policy and their step, with all gradients of weights where this order
    /// has them.
    pub(super) fn at_peak(&self, fates: &[Fate]) -> (i64, usize) {
        let (mut bytes, prefixes, _) = self.accounted(Some(fates), false);
        self.delayed.add_to(&mut bytes);
        bytes.highest(&prefixes)
    }

    /// The same if these gradients wait as they do in a program that fits and is not in the list's order (`late.rs`).
    pub(super) fn with_late(&self, fates: &[Fate]) -> (i64, usize) {
        let (mut bytes, prefixes, _) = self.accounted(Some(fates), false);
        for (steps, size) in self.scans.iter().flat_map(|scan| &scan.late.changes) {
            bytes.add(steps.clone(), *size);
        }
        bytes.highest(&prefixes)
    }

    /// The same on v5e and v6e, in the order of the list scheduler after the latency hiding scheduler (`delayed.rs`).
    fn delayed_peak(&self, fates: &[Fate], share: f64) -> (i64, usize) {
        let [once, late] = [false, true].map(|may_move| {
            let (mut bytes, prefixes, _) = self.accounted(Some(fates), may_move);
            self.delayed.add_to(&mut bytes);
            bytes.highest(&prefixes)
        });
        let more = late.0.saturating_sub(once.0) as f64 * share;
        (once.0.saturating_add(more as i64), if share < 1.0 { once.1 } else { late.1 })
    }

    /// Whether XLA's memory scheduler may prefer the order of a list, for which it counts `listed` bytes, to the text's
    /// order with this peak. If it counts more than the peak for the text's order, then while a forward loop runs, and
    /// a list needs the same there and the gradients' arrays besides. Not asked for policies that offload: XLA counts
    /// their stacks too and takes a list in few programs, but the model counts too much in other orders then.
    pub(super) fn prefers(&self, listed: i64, peak: i64, fates: &[Fate]) -> bool {
        // Its order is that of a program whose stacks on the host are counted too.
        if self.has_host_stacks() {
            return true;
        }
        let counted = self.highest(Some(fates), false).2;
        counted <= peak && listed as f64 * COUNTED < peak as f64
    }

    /// Whether devices exchange attention scores, on a chip whose latency hiding scheduler moves much.
    pub(super) fn exchanges_scores_on(&self, chip: Option<Chip>) -> bool {
        let is_moved = matches!(chip, Some(Chip::V5e | Chip::V6e));
        is_moved && self.fixed.iter().any(|own| !own.resharded.is_empty())
    }

    /// Whether the text moves stacks to the host.
    pub(super) fn has_host_stacks(&self) -> bool {
        self.scans.iter().flat_map(|scan| &scan.stacks).any(|own| own.is_host)
    }

    /// The most bytes in device memory under a policy or as it is, their step, and the most bytes as XLA's memory
    /// scheduler counts them, of a module with scans. It counts what a list makes early (`early`). Where a forward loop
    /// takes its stacks over, it counts them twice: where these are large, a list, which makes the gradients' arrays
    /// before them, needs more than the other orders.
    pub(super) fn highest(&self, fates: Option<&[Fate]>, is_list: bool) -> (i64, usize, i64) {
        let (mut bytes, prefixes, written) = self.accounted(fates, true);
        let (most, at) = bytes.highest(&prefixes);
        let early = self.early.iter().filter(|_| is_list);
        early.chain(&written).for_each(|(steps, size)| bytes.add(steps.clone(), *size));
        (most, at, bytes.highest(&prefixes).0)
    }

    /// The peak under a policy, and its step. A text that XLA has rematerialised has the order of a program that does
    /// not fit. A step under a policy that fits may have another one: the gradient of the head, which waits in the text,
    /// runs before the backward loop, and gradients of weights, which would wait (`moves`), run at once. XLA takes the
    /// order that needs the least memory by its own count. If `scheduler` does not tell which, that is one other than
    /// the text's only if its modelled peak is clearly lower. The list scheduler lets no gradient of weights wait, as
    /// they free more than they make.
    pub(super) fn lowest(
        &self,
        fates: &[Fate],
        (mut bytes, prefixes): (Changes<'_>, &Prefixes),
        (moves, scheduler): (bool, Option<Scheduler>),
    ) -> (i64, usize) {
        if let Some(share) = self.delayed.share.filter(|_| scheduler == Some(Scheduler::List)) {
            return self.delayed_peak(fates, share);
        }
        // With rings XLA may take a list against the count (`vision_v6e_8` with nothing saved): the peaks decide then.
        let scheduler = scheduler.filter(|_| self.delayed.share.is_none());
        let mut lowest = bytes.highest(prefixes);
        let mut is_ahead = false;
        if !self.waiting.is_empty() && self.keeps_less(fates) {
            let times = if self.saves_any(fates) { WAITING_APART } else { 1.0 };
            self.waiting.iter().for_each(|(steps, size)| bytes.add(steps.clone(), *size));
            let ahead = bytes.highest(prefixes);
            is_ahead = ahead.0 as f64 * times < lowest.0 as f64;
            lowest = if is_ahead { ahead } else { lowest };
        }
        if moves {
            let (mut bytes, prefixes, _) = self.accounted(Some(fates), false);
            let waiting = self.waiting.iter().filter(|_| is_ahead);
            waiting.for_each(|(steps, size)| bytes.add(steps.clone(), *size));
            let at_once = bytes.highest(&prefixes);
            let runs_at_once = match scheduler {
                Some(scheduler) => scheduler == Scheduler::List,
                None => at_once.0 as f64 * MOVING_APART < lowest.0 as f64,
            };
            lowest = if runs_at_once { at_once } else { lowest };
        }
        lowest
    }

    /// The bytes at each step of a module with scans under a policy or as it is, with the work before its backward
    /// bodies, and the stacks that each forward loop writes under a policy. Gradients of weights wait if they
    /// `may_move` (`late.rs`).
    fn accounted(&self, fates: Option<&[Fate]>, may_move: bool) -> (Changes<'_>, Prefixes, Stacks) {
        let mut outcome = Outcome::default();
        let mut bytes = self.timeline.changes();
        let mut prefixes = Vec::new();
        let mut written = Vec::new();
        for (number, scan) in (0u32..).zip(&self.scans) {
            let Some(fates) = fates else { break };
            let again = Again::new(self, number, fates, may_move, &mut outcome);
            let before = outcome.kept;
            again.account(&mut bytes, &mut outcome);
            prefixes.push((*scan.back_steps.start(), again.prefix()));
            if scan.group.is_none() {
                let start = *scan.body_steps.start();
                written.push((start..=start, outcome.kept.saturating_sub(before)));
            }
        }
        (bytes, prefixes, written)
    }
}

/// The bytes of arrays of one constant that a scheduled module makes between its loops, for the backward loops to fill,
/// with the steps by which a list makes them earlier: from the first forward loop to where the text makes them.
pub fn made_early(
    module: &Module,
    values: &[LiveValue],
    scans: &[Scan],
) -> Vec<(RangeInclusive<u32>, i64)> {
    let start = scans.iter().map(|scan| *scan.body_steps.start()).min().unwrap_or(0);
    let fore = scans.iter().map(|scan| scan.forward_end()).max().unwrap_or(0);
    let aft = scans.iter().map(|scan| *scan.back_steps.start()).max().unwrap_or(0);
    let is_filled = |own: &&LiveValue| {
        is_constant(module, own.row) && own.first_step > fore && own.first_step < aft
    };
    let early = values.iter().filter(is_filled);
    early.map(|own| (start..=own.first_step - 1, own.bytes)).collect()
}
