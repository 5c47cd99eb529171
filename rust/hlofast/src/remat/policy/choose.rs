//! The policy that fits a budget and recomputes least.
//!
//! What a set of saved values costs is not the sum of its members: a saved value makes others
//! superfluous, and the peak moves. So sets are judged by the model itself. Up to [`MOST_EXACT`]
//! values every set is tried. Beyond, values are added one after another, the one that saves most
//! time per byte first, and then exchanged while that helps.

use super::{Fate, Outcome, Policies, Prices, SavableKind};
use crate::ir::Module;

/// Values up to which every set is tried.
const MOST_EXACT: usize = 10;
/// Limit on the sets that are tried.
const MOST_TRIED: usize = 4096;
/// Limit on the nodes and steps that are visited for all sets together.
const MOST_WORK: usize = 1 << 28;
/// Limit on the values that are considered: those with most bytes.
const MOST_VALUES: usize = 256;

struct Search<'a, 'b> {
    policies: &'a Policies,
    module: &'a Module,
    prices: &'a Prices<'b>,
    budget: i64,
    tried: usize,
    most_tried: usize,
    /// Whether work is measured in seconds. Without a device it is measured in FLOPs.
    by_seconds: bool,
}

impl Search<'_, '_> {
    /// Work that runs again: seconds on the device or FLOPs.
    fn work(&self, outcome: &Outcome) -> f64 {
        match self.by_seconds {
            true => outcome.seconds.unwrap_or(f64::INFINITY),
            false => outcome.flops.map_or(f64::INFINITY, |flops| flops as f64),
        }
    }

    /// Whether `a` is better than `b`: nearer to fitting, then less work, then a lower peak.
    fn is_better(&self, a: &Outcome, b: &Outcome) -> bool {
        let key =
            |own: &Outcome| (own.peak.saturating_sub(self.budget).max(0), self.work(own), own.peak);
        key(a) < key(b)
    }

    fn outcome(&mut self, fates: &[Fate]) -> Outcome {
        self.tried += 1;
        self.policies.outcome(self.module, fates, self.prices)
    }
}

/// Chooses which values to save so that the step needs at most `budget` bytes and recomputes least: the
/// fate of each savable value. If no set of values fits, the nearest one.
pub fn choose(policies: &Policies, module: &Module, prices: &Prices<'_>, budget: i64) -> Vec<Fate> {
    let most_tried = (MOST_WORK / policies.work().max(1)).clamp(16, MOST_TRIED);
    let by_seconds = prices.seconds.is_some();
    let mut search = Search { policies, module, prices, budget, tried: 0, most_tried, by_seconds };
    let count = policies.savable.len();
    let nothing = vec![Fate::Recomputed; count];
    let lowest = search.outcome(&nothing);
    // Saving a value that is cheap to recompute gains next to nothing, and the results of collectives
    // that the partitioner inserts have no name in the program.
    let is_product = |at: &usize| {
        matches!(policies.savable[*at].kind, SavableKind::Product | SavableKind::BatchedProduct)
    };
    let mut values: Vec<usize> = (0..count).filter(is_product).collect();
    values.sort_by_key(|at| std::cmp::Reverse(policies.savable[*at].bytes));
    values.truncate(MOST_VALUES);
    if values.len() <= MOST_EXACT && 1 << values.len() <= most_tried {
        return search.every_set(&values, nothing, lowest).0;
    }
    search.step_by_step(&values, nothing, lowest).0
}

impl Search<'_, '_> {
    fn every_set(
        &mut self,
        values: &[usize],
        nothing: Vec<Fate>,
        lowest: Outcome,
    ) -> (Vec<Fate>, Outcome) {
        let mut best = (nothing.clone(), lowest);
        for set in 1u32..1 << values.len() {
            let mut fates = nothing.clone();
            for (bit, value) in values.iter().enumerate() {
                if set >> bit & 1 == 1 {
                    fates[*value] = Fate::Saved;
                }
            }
            let outcome = self.outcome(&fates);
            if self.is_better(&outcome, &best.1) {
                best = (fates, outcome);
            }
        }
        best
    }

    fn step_by_step(
        &mut self,
        values: &[usize],
        nothing: Vec<Fate>,
        lowest: Outcome,
    ) -> (Vec<Fate>, Outcome) {
        let mut best = (nothing, lowest);
        loop {
            let mut found: Option<(f64, Vec<Fate>, Outcome)> = None;
            for value in values {
                if best.0[*value] != Fate::Recomputed || self.tried >= self.most_tried {
                    continue;
                }
                let mut fates = best.0.clone();
                fates[*value] = Fate::Saved;
                let outcome = self.outcome(&fates);
                if !self.is_better(&outcome, &best.1) {
                    continue;
                }
                let bytes = outcome.kept.saturating_sub(best.1.kept).max(1) as f64;
                let rank = (self.work(&best.1) - self.work(&outcome)) / bytes;
                if found.as_ref().is_none_or(|(known, _, _)| rank > *known) {
                    found = Some((rank, fates, outcome));
                }
            }
            match found {
                Some((_, fates, outcome)) => best = (fates, outcome),
                None => break,
            }
        }
        self.exchange(values, best)
    }

    /// Exchanges a saved value for another one while that leaves less work.
    fn exchange(
        &mut self,
        values: &[usize],
        mut best: (Vec<Fate>, Outcome),
    ) -> (Vec<Fate>, Outcome) {
        loop {
            let before = self.tried;
            let mut is_improved = false;
            for out in values {
                for into in values {
                    let is_pair = best.0[*out] == Fate::Saved && best.0[*into] == Fate::Recomputed;
                    if !is_pair || self.tried >= self.most_tried {
                        continue;
                    }
                    let mut fates = best.0.clone();
                    (fates[*out], fates[*into]) = (Fate::Recomputed, Fate::Saved);
                    let outcome = self.outcome(&fates);
                    if self.is_better(&outcome, &best.1) {
                        best = (fates, outcome);
                        is_improved = true;
                    }
                }
            }
            if !is_improved || self.tried == before || self.tried >= self.most_tried {
                return best;
            }
        }
    }
}
