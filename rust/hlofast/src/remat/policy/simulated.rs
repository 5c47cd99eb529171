//! In which order XLA for v5p runs a step under a policy.
//!
//! XLA orders a module by three schedulers and takes the order with the lowest peak by a count of its own, in which
//! both values count where one takes over from the other in a loop's state, and arrays in host memory count too:
//! `benches/scheduler_orders.py` simulates both on the texts that XLA schedules. So a policy that saves little runs as
//! the list scheduler has it, whose backward bodies need the least, and one that saves much as another has it: the list
//! makes the arrays that gradients go to before the forward loop, which counts all stacks twice as it takes them over.
//!
//! Here the orders are those of the compiled text, and the policy's account is added to each. On v5e and v6e the
//! latency hiding scheduler moves collectives, and with them much else, after that, so there only the list's order is
//! known, and only if it is clearly better (`orders.rs`). So it is for policies that offload: their accounts are too
//! high in other orders.

use super::chip::Chip;
use super::scans::Scan;
use super::{Fate, Policies};
use crate::cost::Backend;
use crate::flow::has_compiler_clones;
use crate::ir::Module;
use crate::memory::{Rule, Scheduler};

/// The scans of a module in the orders of XLA's schedulers.
#[derive(Debug)]
pub struct Simulated {
    /// By scheduler, as XLA's schedulers count.
    orders: [Box<Policies>; 3],
    /// In post-order, as XLA counts a compiled program; None if the text is of a program that did not fit. Steps that
    /// keep everything run in the order of the depth-first scheduler, as all 36 did that were looked at.
    pub post_order: Option<Box<Policies>>,
}

impl Simulated {
    /// Those of a scheduled module with the policies `own`, whose bytes are counted by `rule`; None if they do not tell
    /// the order of a policy. `listed` gives the policies in the order of a scheduler by a rule.
    pub fn new(
        module: &Module,
        own: &Policies,
        rule: Rule,
        listed: impl Fn((Scheduler, Rule)) -> Option<Box<Policies>>,
    ) -> Option<Self> {
        let is_plain = |scan: &Scan| !scan.recomputed.is_checkpointed && scan.group.is_none();
        let is_tpu = Backend::of_module(module) == Backend::Tpu;
        if !(is_tpu && own.chip == Some(Chip::V5p) && own.scans.iter().all(is_plain)) {
            return None;
        }
        let [list, depth_first, post_order] =
            Scheduler::ALL.map(|scheduler| listed((scheduler, Rule::Values)));
        let orders = [list?, depth_first?, post_order?];
        let fits = !has_compiler_clones(module);
        let post_order = fits.then(|| listed((Scheduler::PostOrder, rule))).flatten();
        Some(Self { orders, post_order })
    }

    /// The scheduler whose order XLA takes under a policy that offloads nothing.
    pub fn taken(&self, fates: &[Fate]) -> Scheduler {
        let peaks = self.orders.iter().map(|own| own.at_peak(fates).0);
        let lowest = peaks.zip(Scheduler::ALL).min_by_key(|(peak, _)| *peak);
        lowest.map_or(Scheduler::DepthFirst, |(_, scheduler)| scheduler)
    }
}
