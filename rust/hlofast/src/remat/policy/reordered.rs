//! Checkpointed layers under policies for which XLA for TPUs takes another order than the text has.
//!
//! A checkpointed text is mostly in the order of the list scheduler, which runs gradients of weights at once. A policy
//! that saves more runs as the depth-first scheduler has it, where these gradients wait and what they read stays in
//! memory (`simulated.rs`). The three orders are those of the text, counted under the policy.
//!
//! On v5e, gradients then wait until all other work of the layer is done (`late.rs`), unless the products of all scans
//! run in loops around rings: they wait in the text's own order. Elsewhere the latency hiding scheduler moves some of
//! them, and the list scheduler would order the program of the policy otherwise than that of the text, so the peak
//! moves by a part of what two simulated orders of the text differ by. Judged by `benches/policy_accuracy.py`.

use super::chip::Chip;
use super::simulated::in_all_orders;
use super::{Fate, Policies};
use crate::cost::Backend;
use crate::flow::has_compiler_clones;
use crate::ir::Module;
use crate::memory::{Rule, Scheduler};

/// The peak moves by one part of so many of what two orders of the text differ by. Fitted: by all of it,
/// `pair_v5p_8` with nothing saved would be 8 % too low, and by none, `scattered_v6e_16` with the values of attention
/// saved 11 % too high.
const PARTS: i64 = 2;
/// The orders that one outcome asks for at most: what all schedulers count, two as compiled, and with gradients that
/// wait.
pub const ORDERS: usize = Scheduler::ALL.len() + 3;

/// The scans of a checkpointed text in the orders of XLA's schedulers.
#[derive(Debug)]
pub struct Reordered {
    /// By scheduler, as XLA's schedulers count.
    counted: [Box<Policies>; 3],
    /// By scheduler, as a program in this order is compiled.
    compiled: [Box<Policies>; 3],
    /// By scheduler, what the text needs as it is, as XLA's schedulers count.
    as_is: [i64; 3],
    /// Whether all gradients of weights wait in the order of the depth-first scheduler.
    are_late: bool,
}

impl Reordered {
    /// Those of a scheduled module with the policies `own`, whose bytes are counted by `rule`; None if its layers are
    /// not checkpointed, or the order of a policy is not known. `listed` gives the policies in the order of a
    /// scheduler by a rule.
    pub fn new(
        module: &Module,
        own: &Policies,
        (chip, rule): (Option<Chip>, Rule),
        listed: impl Fn((Scheduler, Rule)) -> Option<Box<Policies>>,
    ) -> Option<Self> {
        let is_tpu = Backend::of_module(module) == Backend::Tpu && chip.is_some();
        let is_plain = !own.is_grouped() && !own.repeats_groups() && !own.has_host_stacks();
        if !(is_tpu && is_plain && own.is_checkpointed()) || has_compiler_clones(module) {
            return None;
        }
        let counted = in_all_orders(&listed, Rule::Values)?;
        let compiled = in_all_orders(&listed, rule)?;
        let as_is = counts(&counted, &own.as_is());
        let is_in_rings = own.scans.iter().all(|scan| scan.is_in_rings);
        let are_late = chip == Some(Chip::V5e) && !is_in_rings;
        Some(Self { counted, compiled, as_is, are_late })
    }

    /// The bytes of the peak under a policy, where the text's order has `peak`, and its step if that is another one.
    pub fn highest(&self, own: &Policies, fates: &[Fate], peak: i64) -> (i64, Option<usize>) {
        let is_moved = fates.contains(&Fate::Offloaded);
        // XLA counts stacks on the host too.
        let in_memory = |own: &Fate| match own {
            Fate::Offloaded => Fate::Saved,
            own => *own,
        };
        let counted = counts(&self.counted, &fates.iter().map(in_memory).collect::<Vec<_>>());
        if self.are_late && !is_moved && self.leaves_list(counted) {
            let (late, step) = own.with_late(fates);
            return (late, Some(step));
        }
        let [from, to] = [self.as_is, counted].map(lowest);
        let peak_in = |at: usize| self.compiled[at].at_peak(fates).0;
        let more = if from == to { 0 } else { peak_in(to).saturating_sub(peak_in(from)) };
        (peak.saturating_add(more / PARTS), None)
    }

    /// Whether a policy leaves the order of the list scheduler. Where gradients run at once, that is the text's: if the
    /// count of the text prefers another, it is that far off.
    fn leaves_list(&self, counted: [i64; 3]) -> bool {
        let apart = |[list, depth_first, post_order]: [i64; 3]| {
            list as f64 / depth_first.min(post_order).max(1) as f64
        };
        apart(counted) > apart(self.as_is).max(1.0)
    }
}

/// The scheduler whose order has the lowest peak, as a number of `Scheduler::ALL`.
fn lowest(counted: [i64; 3]) -> usize {
    let every = counted.into_iter().enumerate();
    every.min_by_key(|(_, peak)| *peak).map_or(0, |(at, _)| at)
}

/// The peak under a policy by scheduler. Before the latency hiding scheduler, gradients wait in all orders but the
/// list's.
fn counts([list, depth_first, post_order]: &[Box<Policies>; 3], fates: &[Fate]) -> [i64; 3] {
    [list.at_peak(fates).0, depth_first.with_late(fates).0, post_order.with_late(fates).0]
}
