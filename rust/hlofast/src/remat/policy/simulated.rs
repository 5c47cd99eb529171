//! In which order XLA for TPUs runs a step under a policy.
//!
//! XLA orders a module by three schedulers and takes the order with the lowest peak by a count of its own, in which
//! both values count where one takes over from the other in a loop's state, and arrays in host memory count too:
//! `benches/scheduler_orders.py` simulates both on the texts that XLA schedules. So a policy that saves little runs as
//! the list scheduler has it, whose backward bodies need the least, and one that saves much as another has it: the list
//! makes the arrays that gradients go to before the forward loop, which counts all stacks twice as it takes them over.
//!
//! Here the orders are those of the compiled text, and the policy's account is added to each. On v5e and v6e the
//! latency hiding scheduler moves collectives, and with them much else, after that.

use super::chip::Chip;
use super::orders::least_apart;
use super::scans::Scan;
use super::{Fate, Policies};
use crate::cost::Backend;
use crate::flow::has_compiler_clones;
use crate::ir::Module;
use crate::memory::{Rule, Scheduler};

/// How many times lower the peak of an order must be than that of the text's for XLA to take it. The modelled peaks of
/// ten programs whose order is known are up to 0.6 % wrong in their ratio.
const APART: f64 = 1.01;

/// The scans of a module in the orders of XLA's schedulers.
#[derive(Debug)]
pub struct Simulated {
    /// By scheduler, as XLA's schedulers count.
    orders: [Box<Policies>; 3],
    /// The scheduler of the text.
    own: Scheduler,
    /// Whether later passes keep the order.
    is_final: bool,
    /// By scheduler, as XLA counts a compiled program; None for the order of the text, and for all if the text is of a
    /// program that did not fit.
    accounts: [Option<Box<Policies>>; 3],
}

impl Simulated {
    /// Those of a scheduled module with the policies `own`, whose bytes are counted by `rule`, if they tell the order of
    /// a policy. `listed` gives the policies in the order of a scheduler by a rule.
    pub fn new(
        module: &Module,
        own: &Policies,
        (chip, rule): (Option<Chip>, Rule),
        listed: impl Fn(Scheduler, Rule) -> Option<Box<Policies>>,
    ) -> Option<Self> {
        let is_plain = |scan: &Scan| !scan.recomputed.is_checkpointed && scan.group.is_none();
        let is_final = chip == Some(Chip::V5p);
        let has_clones = has_compiler_clones(module);
        let keeps = is_final || !has_clones && own.scans.iter().all(|scan| !scan.is_in_rings);
        let is_tpu = Backend::of_module(module) == Backend::Tpu;
        if !(is_tpu && keeps && own.scans.iter().all(is_plain)) {
            return None;
        }
        let [list, depth_first, post_order] = Scheduler::ALL.map(|own| listed(own, Rule::Values));
        let orders = [list?, depth_first?, post_order?];
        // Programs that do not fit keep the most, and were all in this order.
        let accounts = [None, None, None];
        let mut simulated = Self { orders, own: Scheduler::DepthFirst, is_final, accounts };
        if !has_clones {
            simulated.own = simulated.taken(&own.as_is());
            for (account, scheduler) in simulated.accounts.iter_mut().zip(Scheduler::ALL) {
                if scheduler != simulated.own && (is_final || scheduler == Scheduler::List) {
                    *account = Some(listed(scheduler, rule)?);
                }
            }
        }
        Some(simulated)
    }

    /// The scheduler whose order XLA takes under a policy.
    pub fn taken(&self, fates: &[Fate]) -> Scheduler {
        let stays = |fate: &Fate| if *fate == Fate::Offloaded { Fate::Saved } else { *fate };
        let fates: Vec<Fate> = fates.iter().map(stays).collect();
        let peak = |own: &Policies| own.at_peak(&fates).0 as f64;
        let weighed = self.orders.iter().zip(Scheduler::ALL).map(|(own, scheduler)| {
            let times = if scheduler == self.own { 1.0 } else { APART };
            (peak(own) * times, scheduler)
        });
        let lowest = weighed.min_by(|(a, _), (b, _)| a.total_cmp(b));
        lowest.map_or(self.own, |(_, scheduler)| scheduler)
    }

    /// The policies in the order that XLA takes, if it is known and not that of the text, and how many times lower
    /// their peak must be than in that.
    pub fn account(&self, taken: Scheduler, saves_any: bool) -> Option<(&Policies, f64)> {
        let own = self.accounts.iter().zip(Scheduler::ALL).find(|(_, own)| *own == taken);
        let times = if self.is_final { 0.0 } else { least_apart(saves_any) };
        own.and_then(|(account, _)| Some((account.as_deref()?, times)))
    }
}
