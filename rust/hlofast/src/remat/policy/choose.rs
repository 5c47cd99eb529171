//! The policy that fits a budget at least cost, and the best policies of all budgets.

use super::search::Search;
use super::{Fate, Policies, Prices};
use crate::ir::Module;

/// The budgets between the lowest and the highest peak for which the search improves policies.
const BUDGETS: i64 = 8;
/// Two policies of a frontier differ by at least this share of all work that could run again.
const LEAST_DIFFERENCE: f64 = 1.0 / 64.0;

/// Chooses which values to save or to move to host memory so that the step needs at most `budget`
/// bytes and takes least time: the fate of each savable value. If no policy fits, the one with the
/// lowest peak. `most_tried` limits the policies that are tried.
pub fn choose(
    policies: &Policies,
    module: &Module,
    prices: &Prices<'_>,
    budget: i64,
    most_tried: Option<usize>,
) -> Vec<Fate> {
    let mut search = Search::new(policies, module, prices, most_tried);
    search.run(&[budget]);
    search.best(budget).map_or_else(Vec::new, |best| best.fates.clone())
}

/// The policies with a peak of at most `budget`, or that of the step as it is, that no other policy
/// beats in both peak and time, by ascending peak. Policies that differ little are left out, but never the best
/// one within `budget`.
pub fn frontier(
    policies: &Policies,
    module: &Module,
    prices: &Prices<'_>,
    budget: Option<i64>,
) -> Vec<Vec<Fate>> {
    let nothing = vec![Fate::Recomputed; policies.savable.len()];
    let low = policies.outcome(module, &nothing, prices).peak;
    let high = policies.peak.max(budget.unwrap_or(0));
    let step = high.saturating_sub(low).max(0) / BUDGETS;
    let mut budgets: Vec<i64> = budget.into_iter().collect();
    budgets.extend((0..BUDGETS).map(|number| low.saturating_add(step.saturating_mul(number))));
    let mut search = Search::new(policies, module, prices, None);
    let points = search.run(&budgets);
    let points = &points[..points.partition_point(|own| own.peak <= high)];
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    let least = (first.work - last.work) * LEAST_DIFFERENCE;
    let chosen = budget.map(|budget| points.partition_point(|own| own.peak <= budget));
    let mut shown: Vec<Vec<Fate>> = Vec::new();
    let mut work = f64::INFINITY;
    for (at, point) in points.iter().enumerate() {
        let is_chosen = chosen == Some(at + 1) || at + 1 == points.len();
        if is_chosen || at == 0 || work - point.work >= least {
            work = point.work;
            shown.push(point.fates.clone());
        }
    }
    shown
}
