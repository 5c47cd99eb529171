//! The search over policies, and the best policies that it has seen.
//!
//! What a set of saved values costs is not the sum of its members: a saved value makes others
//! superfluous, and the peak moves. So policies are judged by the model itself, and those that no
//! other one beats in both peak and work are kept. If there are few values, every policy is tried.
//! Otherwise two paths lead from nothing to everything and back, one value at a time, the one that
//! saves most work per byte first; then single values and pairs of values change their fates in the
//! best policies around the budget while that helps. The results of a kernel count as one value
//! here: it runs again if one of them is not kept. `benches/policy_search.py` compares the result
//! with every policy tried.

use super::{Fate, Outcome, Policies, Prices, SavableKind};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Row};
use hashbrown::{HashMap, HashSet};
use std::collections::BinaryHeap;
use std::hash::BuildHasher;

/// Limit on the policies that are tried.
const MOST_TRIED: usize = 1 << 14;
/// The policies that are tried in any case.
const LEAST_TRIED: usize = 64;
/// Limit on the nodes and steps that are visited for all policies together.
const MOST_WORK: usize = 3 << 27;
/// Limit on the values that are considered: those with most bytes.
const MOST_VALUES: usize = 1024;
/// Pairs of values are exchanged if this many values or fewer lie between them in size.
const REACH: usize = 24;
/// The policies around a budget whose values change their fates.
const AROUND: usize = 10;
/// Limit on the policies that are kept.
const MOST_KEPT: usize = 4096;

/// A policy that no other one beats in both peak and work.
#[derive(Clone, Debug)]
pub struct Point {
    /// Bytes at the peak.
    pub peak: i64,
    /// Work that runs again and waiting for the host: seconds, without a device FLOPs.
    pub work: f64,
    /// The fate of each savable value.
    pub fates: Vec<Fate>,
}

/// The best policies, by ascending peak and descending work.
#[derive(Debug, Default)]
struct Archive {
    points: Vec<Point>,
}

impl Archive {
    fn add(&mut self, peak: i64, work: f64, fates: &[Fate]) {
        let at = self.points.partition_point(|own| own.peak <= peak);
        let is_beaten = at.checked_sub(1).is_some_and(|at| self.points[at].work <= work);
        if is_beaten || (self.points.len() >= MOST_KEPT && at > 0) {
            return;
        }
        let same = self.points[..at].iter().rev().take_while(|own| own.peak == peak).count();
        let beaten = self.points[at..].iter().take_while(|own| own.work >= work).count();
        let point = Point { peak, work, fates: fates.to_vec() };
        self.points.splice(at - same..at + beaten, [point]);
    }

    /// The policy with least work within `budget` bytes; the one with the lowest peak if none is.
    fn best(&self, budget: i64) -> Option<&Point> {
        let at = self.points.partition_point(|own| own.peak <= budget);
        self.points.get(at.saturating_sub(1))
    }
}

/// A change of one value's fate, ordered by the work that it saves per byte.
struct Move {
    rank: f64,
    value: usize,
    fate: Fate,
    /// Work and kept bytes after the change.
    after: (f64, i64),
    /// The number of changes that had been made when these were found.
    at: usize,
}

impl PartialEq for Move {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Move {}

impl PartialOrd for Move {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Move {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank.total_cmp(&other.rank).then(other.value.cmp(&self.value))
    }
}

/// Savable values that share their fate.
#[derive(Debug)]
struct Unit {
    members: Vec<usize>,
    /// Whether a policy can move them to host memory.
    moves: bool,
}

impl Unit {
    fn set(&self, fates: &mut [Fate], fate: Fate) {
        self.members.iter().for_each(|member| fates[*member] = fate);
    }

    fn fate(&self, fates: &[Fate]) -> Fate {
        self.members.first().map_or(Fate::Recomputed, |member| fates[*member])
    }

    fn allows(&self, fate: Fate) -> bool {
        self.moves || fate != Fate::Offloaded
    }
}

/// The values that a search considers, largest first. Saving a value that is cheap to recompute
/// gains next to nothing, and the results of collectives that the partitioner inserts have no name
/// in the program.
fn units(policies: &Policies, module: &Module, prices: &Prices<'_>) -> Vec<Unit> {
    use SavableKind::{BatchedProduct, Input, Kernel, MappedProduct, Product, RaggedProduct};
    let mut units: Vec<(i64, Unit)> = Vec::new();
    // A policy keeps all kernels that it knows by their primitive.
    let mut kernels: HashMap<Option<(u32, Row)>, usize, BuildMix> = HashMap::default();
    for (at, value) in policies.savable.iter().enumerate() {
        let is_kernel = value.kind == Kernel;
        let is_dear = is_kernel
            || matches!(value.kind, Product | BatchedProduct | MappedProduct | RaggedProduct)
            || value.kind == Input && prices.host.is_some();
        if !is_dear {
            continue;
        }
        if is_kernel {
            let kernel = value.is_nameable(module).then_some((value.scan, value.row));
            if let Some(unit) = kernels.get(&kernel) {
                units[*unit].0 = units[*unit].0.saturating_add(value.bytes);
                units[*unit].1.members.push(at);
                continue;
            }
            kernels.insert(kernel, units.len());
        }
        units.push((value.bytes, Unit { members: vec![at], moves: value.is_nameable(module) }));
    }
    units.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    units.into_iter().map(|(_, unit)| unit).collect()
}

/// The search over the policies of a module.
pub struct Search<'a, 'b> {
    policies: &'a Policies,
    module: &'a Module,
    prices: &'a Prices<'b>,
    /// The values that may be saved, largest first.
    values: Vec<Unit>,
    /// The fates that a value may have.
    fates: &'static [Fate],
    /// Whether work is measured in seconds. Without a device it is measured in FLOPs.
    by_seconds: bool,
    tried: usize,
    most_tried: usize,
    seen: HashSet<u64, BuildMix>,
    archive: Archive,
}

impl<'a, 'b> Search<'a, 'b> {
    /// A search that tries at most `most_tried` policies, by default as many as a bounded time
    /// allows.
    pub fn new(
        policies: &'a Policies,
        module: &'a Module,
        prices: &'a Prices<'b>,
        most_tried: Option<usize>,
    ) -> Self {
        let allowed = (MOST_WORK / policies.work().max(1)).clamp(LEAST_TRIED, MOST_TRIED);
        let mut values = units(policies, module, prices);
        let fates: &[Fate] = match prices.host {
            Some(_) => &[Fate::Recomputed, Fate::Saved, Fate::Offloaded],
            None => &[Fate::Recomputed, Fate::Saved],
        };
        let most_tried = most_tried.unwrap_or(allowed).max(LEAST_TRIED);
        // A path tries each fate of a value once, and the fate that it gets once more.
        values.truncate(MOST_VALUES.min((most_tried / 4 * 3 - 8) / fates.len()));
        let mut search = Self {
            policies,
            module,
            prices,
            values,
            fates,
            by_seconds: true,
            tried: 0,
            most_tried,
            seen: HashSet::default(),
            archive: Archive::default(),
        };
        let nothing = vec![Fate::Recomputed; policies.savable.len()];
        let lowest = policies.outcome(module, &nothing, prices);
        search.by_seconds = lowest.seconds.is_some();
        search.see(&nothing);
        search
    }

    /// Tries every policy if there are few. Otherwise follows the paths between nothing and
    /// everything and improves the best policy of each budget.
    pub fn run(&mut self, budgets: &[i64]) -> &[Point] {
        if self.count(self.fates.len()) <= self.most_tried {
            self.every(self.fates);
            return &self.archive.points;
        }
        if self.count(2) <= self.most_tried {
            self.every(&self.fates[..2]);
        } else {
            self.path(Fate::Recomputed);
            self.path(Fate::Saved);
        }
        for (at, budget) in budgets.iter().enumerate() {
            // Each budget gets its share of what may still be tried.
            let left = self.most_tried.saturating_sub(self.tried);
            self.improve(*budget, self.tried + left / (budgets.len() - at));
        }
        &self.archive.points
    }

    /// The best policy for a budget, of those that were tried.
    pub fn best(&self, budget: i64) -> Option<&Point> {
        self.archive.best(budget)
    }

    /// Number of policies if each value has one of `fates` fates.
    fn count(&self, fates: usize) -> usize {
        let possible = &self.fates[..fates];
        let of = |unit: &Unit| possible.iter().filter(|fate| unit.allows(**fate)).count();
        self.values.iter().map(of).fold(1, usize::saturating_mul)
    }

    /// Work that runs again, and waiting: seconds on the device or FLOPs.
    fn work(&self, outcome: &Outcome) -> f64 {
        match self.by_seconds {
            true => outcome.added_seconds().unwrap_or(f64::INFINITY),
            false => outcome.flops.map_or(f64::INFINITY, |flops| flops as f64),
        }
    }

    /// What a policy costs, and the bytes that it keeps in device memory; None if it needs more host
    /// memory than there is.
    fn measure(&mut self, fates: &[Fate]) -> Option<(f64, i64)> {
        self.tried += 1;
        let outcome = self.policies.outcome(self.module, fates, self.prices);
        if !self.prices.holds(outcome.on_host) {
            return None;
        }
        let work = self.work(&outcome);
        self.archive.add(outcome.peak, work, fates);
        Some((work, outcome.kept))
    }

    /// Tries a policy that has not been tried.
    fn see(&mut self, fates: &[Fate]) {
        if self.seen.insert(self.key(fates)) {
            self.measure(fates);
        }
    }

    fn key(&self, fates: &[Fate]) -> u64 {
        let codes: Vec<u8> = fates.iter().map(|fate| *fate as u8).collect();
        self.seen.hasher().hash_one(codes)
    }

    /// Tries every policy.
    fn every(&mut self, possible: &'static [Fate]) {
        let mut fates = vec![Fate::Recomputed; self.policies.savable.len()];
        let mut digits = vec![0usize; self.values.len()];
        loop {
            self.see(&fates);
            let more = |(digit, unit): (&usize, &Unit)| {
                possible.get(digit + 1).is_some_and(|fate| unit.allows(*fate))
            };
            let Some(place) = digits.iter().zip(&self.values).position(more) else { return };
            digits[..place].fill(0);
            digits[place] += 1;
            for (digit, unit) in digits.iter().zip(&self.values).take(place + 1) {
                unit.set(&mut fates, possible[*digit]);
            }
        }
    }

    /// Changes values one after another, from the policy in which all have the fate `from`: the
    /// change that saves most work, or costs least, per byte first. Ranks are found again only for
    /// the change that seems best.
    fn path(&mut self, from: Fate) {
        let (count, left) = (self.values.len(), self.most_tried.saturating_sub(self.tried));
        let needed = count * self.fates.len() + 1;
        let most = self.tried + (left / 2).max(needed).min(left / 4 * 3);
        if most < self.tried + needed {
            return;
        }
        let mut fates = vec![Fate::Recomputed; self.policies.savable.len()];
        self.values.iter().for_each(|unit| unit.set(&mut fates, from));
        let Some(mut now) = self.measure(&fates) else { return };
        let mut moves = BinaryHeap::new();
        for (value, unit) in self.values.iter().enumerate() {
            let possible = self.fates.iter().filter(|fate| **fate != from && unit.allows(**fate));
            for fate in possible {
                let (rank, after) = (f64::INFINITY, (0.0, 0));
                moves.push(Move { rank, value, fate: *fate, after, at: usize::MAX });
            }
        }
        let mut made = 0;
        while let Some(own) = moves.pop().filter(|_| self.tried < most) {
            if self.values[own.value].fate(&fates) != from {
                continue;
            }
            self.values[own.value].set(&mut fates, own.fate);
            if own.at == made {
                now = own.after;
                made += 1;
                continue;
            }
            let after = self.measure(&fates);
            self.values[own.value].set(&mut fates, from);
            let Some((work, kept)) = after else { continue };
            let (gain, bytes) = (now.0 - work, kept - now.1);
            // Saving has to gain work, giving up has to gain bytes.
            let rank = match from {
                Fate::Recomputed if gain > 0.0 => gain / bytes.max(1) as f64,
                Fate::Saved if bytes < 0 => gain / -bytes as f64,
                _ => continue,
            };
            moves.push(Move { rank, after: (work, kept), at: made, ..own });
        }
    }

    /// Changes the fates of single values, then of pairs, in the best policies around `budget`, until
    /// that gives no better policies or `most` policies were tried. Policies a little above the
    /// budget lead to some that no change of the best one reaches.
    fn improve(&mut self, budget: i64, most: usize) {
        let mut done: HashSet<(u64, bool), BuildMix> = HashSet::default();
        while self.tried < most {
            let points = &self.archive.points;
            let end = points.partition_point(|own| own.peak <= budget);
            let around = (0..AROUND).map(|number| match number % 2 {
                0 => end.wrapping_sub(1 + number / 2),
                _ => end + number / 2,
            });
            let around: Vec<&Point> = around.filter_map(|at| points.get(at)).collect();
            let starts = [false, true]
                .into_iter()
                .flat_map(|pairs| around.iter().map(move |point| (point, pairs)));
            let mut starts = starts.map(|(point, pairs)| (point, (self.key(&point.fates), pairs)));
            let Some((point, key)) = starts.find(|(_, key)| !done.contains(key)) else { return };
            let mut fates = point.fates.clone();
            done.insert(key);
            let count = self.values.len();
            for first in 0..count {
                let reach = if key.1 { count.min(first + 1 + REACH) } else { first + 1 };
                for second in first + 1..reach {
                    self.vary(&mut fates, &[first, second], most);
                }
                if !key.1 {
                    self.vary(&mut fates, &[first], most);
                }
            }
        }
    }

    /// Tries the policies in which each of `values` has another fate than in `fates`.
    fn vary(&mut self, fates: &mut [Fate], values: &[usize], most: usize) {
        let Some((value, rest)) = values.split_first() else {
            return self.see(fates);
        };
        let before = self.values[*value].fate(fates);
        for fate in self.fates.iter().filter(|fate| **fate != before) {
            let unit = &self.values[*value];
            if self.tried < most && unit.allows(*fate) {
                unit.set(fates, *fate);
                self.vary(fates, rest, most);
            }
        }
        self.values[*value].set(fates, before);
    }
}

#[cfg(test)]
mod tests {
    use super::{Archive, Fate};

    #[test]
    fn an_archive_keeps_what_nothing_beats() {
        let mut archive = Archive::default();
        let fates = [Fate::Saved];
        for (peak, work) in [(5, 5.0), (3, 9.0), (7, 5.0), (4, 4.0), (4, 3.0), (9, 1.0), (1, 9.5)] {
            archive.add(peak, work, &fates);
        }
        let kept: Vec<_> = archive.points.iter().map(|own| (own.peak, own.work)).collect();
        assert_eq!(kept, [(1, 9.5), (3, 9.0), (4, 3.0), (9, 1.0)]);
        assert_eq!(archive.best(8).map(|own| own.peak), Some(4));
        assert_eq!(archive.best(0).map(|own| own.peak), Some(1));
    }
}
