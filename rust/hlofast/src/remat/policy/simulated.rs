//! In which order XLA for TPUs runs a step under a policy.
//!
//! XLA orders a module by three schedulers and takes the order with the lowest peak by its own count
//! (`benches/scheduler_orders.py`). This count has all stacks twice where a loop takes them over. The list scheduler
//! makes the arrays that gradients go to before the forward loop, so it needs the most there, and the least in backward
//! bodies: a step that saves little runs in its order, one that saves much in another.
//!
//! Here the orders are those of the compiled text. The account of the policy (`again.rs`) changes the bytes at each
//! step of all three. On v5e and v6e the latency hiding scheduler moves collectives after that, and much else with
//! them. What it makes of the list's order is known where products run in loops around rings and XLA has rematerialised
//! the text, and where devices exchange attention scores (`delayed.rs`, `resharded.rs`). For checkpointed layers the
//! three orders are compared with those of the text itself (`reordered.rs`). Elsewhere, and for policies that offload
//! from a text that is not checkpointed, the rules of `orders.rs` hold.

use super::chip::Chip;
use super::counted::{Counted, OrderOf, counted_once};
use super::delayed::Delayed;
use super::orders::made_early;
use super::scans::scans;
use super::{Fate, Policies};
use crate::cost::{Backend, Cost};
use crate::flow::{Attribution, has_compiler_clones};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Row};
use crate::memory::{Memory, Rule, Scheduler, memory_listed};
use hashbrown::HashSet;

/// The scans of a module in the orders of XLA's schedulers.
#[derive(Debug)]
pub struct Simulated {
    /// By scheduler, as XLA's schedulers count.
    orders: [Box<Policies>; 3],
    /// In post-order, as XLA counts a compiled program for v5p; None if the text is of a program that did not fit. Steps
    /// that keep everything run in the order of the depth-first scheduler, as all did that were looked at.
    pub post_order: Option<Box<Policies>>,
}

impl Simulated {
    /// Those of a scheduled module with the policies `own`, whose bytes are counted by `rule`; None if they do not tell
    /// the order of a policy. `listed` gives the policies in the order of a scheduler by a rule.
    pub fn new(
        module: &Module,
        own: &Policies,
        (chip, rule): (Option<Chip>, Rule),
        listed: impl Fn((Scheduler, Rule)) -> Option<Box<Policies>>,
    ) -> Option<Self> {
        let is_tpu = Backend::of_module(module) == Backend::Tpu;
        let is_plain = !own.is_checkpointed() && !own.is_grouped() && !own.has_host_stacks();
        let fits = !has_compiler_clones(module);
        let is_known = match chip {
            Some(Chip::V5p) => true,
            Some(Chip::V5e | Chip::V6e) => {
                let is_in_rings = own.scans.iter().all(|scan| scan.is_in_rings);
                !fits && is_in_rings || own.exchanges_scores_on(chip)
            }
            _ => false,
        };
        if !(is_tpu && is_plain && is_known) {
            return None;
        }
        let orders = in_all_orders(&listed, Rule::Values)?;
        let has_post_order = fits && chip == Some(Chip::V5p);
        let post_order = has_post_order.then(|| listed((Scheduler::PostOrder, rule))).flatten();
        Some(Self { orders, post_order })
    }

    /// The scheduler whose order XLA takes under a policy that offloads nothing.
    pub fn taken(&self, fates: &[Fate]) -> Scheduler {
        let peaks = self.orders.iter().map(|own| own.at_peak(fates).0);
        let lowest = peaks.zip(Scheduler::ALL).min_by_key(|(peak, _)| *peak);
        lowest.map_or(Scheduler::DepthFirst, |(_, scheduler)| scheduler)
    }

    /// The rows of rings that the list scheduler ends after the backward loop.
    pub fn rings(&self) -> &HashSet<Row, BuildMix> {
        let [list, ..] = &self.orders;
        &list.delayed.rings
    }
}

/// What `listed` gives for each scheduler by a rule.
pub fn in_all_orders(
    listed: impl Fn((Scheduler, Rule)) -> Option<Box<Policies>>,
    rule: Rule,
) -> Option<[Box<Policies>; 3]> {
    let [list, depth_first, post_order] = Scheduler::ALL.map(|own| listed((own, rule)));
    Some([list?, depth_first?, post_order?])
}

impl Policies {
    /// The policies of the module by a rule, if it ran in the order of one of XLA's schedulers.
    pub(super) fn listed(
        &self,
        (module, cost, attribution, memory): (&Module, &Cost, &Attribution, &Memory),
        (sizes, counted): (&[i64], Counted<'_>),
        (scheduler, rule): (Scheduler, Rule),
    ) -> Option<Self> {
        // XLA counts before its pass that defers arrays of constants. Texts that offload are nearer without that pass
        // (`benches/policy_accuracy.py`).
        let are_deferred = rule != Rule::Values && !self.has_host_stacks();
        let how = (scheduler, rule, are_deferred);
        let other = memory_listed(module, memory, sizes, how).ok()?;
        let values = other.all_values(module);
        let scans = scans(module, cost, attribution, &other, &values, sizes).ok()?;
        let bytes = counted_once(&other, &counted.twice(&other, &values));
        let peak = bytes.into_iter().max()?.checked_add(self.timeline.beyond)?;
        let order = match rule {
            Rule::Values => OrderOf::Scheduled(scheduler),
            _ => OrderOf::Compiled(scheduler),
        };
        let counted = Counted { peak, order, ..counted };
        let early = match (scheduler, are_deferred) {
            (Scheduler::List, true) => made_early(module, &values, &scans),
            _ => Vec::new(),
        };
        let delayed = Delayed::of_order(module, (&other, &values), &scans, (sizes, counted));
        let listed = Self::of_scans(module, &other, (scans, &values), sizes, counted).ok()?;
        listed.has_values_of(self).then_some(Self { early, delayed, ..listed })
    }
}
