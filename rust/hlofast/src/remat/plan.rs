//! Plans which values to recompute so that the peak needs less memory.
//!
//! Nothing is estimated: each candidate is rewritten into a module of its own, whose live bytes are
//! counted as in the original (see `counted.rs`).

use super::candidates::{Candidate, candidates};
use super::counted::{AtPeak, Counting, count};
use super::residuals::Residual;
use super::rewrite::{Recompute, Rewritten, rewrite};
use crate::comms::Collectives;
use crate::cost::Cost;
use crate::flow::Attribution;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use crate::memory::MemoryError;
use hashbrown::HashMap;

/// Order of candidates without modelled seconds: one byte sent to other devices counts as this many
/// FLOPs.
pub const FLOPS_PER_WIRE_BYTE: i128 = 1000;
/// One byte read or written in memory counts as this many FLOPs; see [`FLOPS_PER_WIRE_BYTE`].
pub const FLOPS_PER_BYTE: i128 = 100;

/// See [`PlanOptions::most_measured`].
pub const MOST_ROWS: usize = 4_000_000;

/// Without a budget, a candidate has to lower the peak by one part in this many: less is not worth a
/// change of the program, and peaks differ by more from one version of XLA to the next.
const LEAST_PART: i64 = 1000;
/// Limit on the depth of nested fusions that are examined.
const DEEPEST: u32 = 4;

/// Why a plan chooses nothing in a module that is not scheduled. XLA's passes before scheduling remove
/// optimization barriers and merge copies with their originals: of 16 programs that its CPU compiler
/// judged (`tests/fixtures/plans_unscheduled.json`), 14 need as much memory as without the plan.
const UNSCHEDULED: &str = "XLA has not scheduled the module, and merges recomputed values with \
                           their originals before it does";

/// The goal of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// How memory is counted.
    pub counting: Counting,
    /// The largest acceptable peak in bytes; None plans for the lowest peak, in steps of at least one
    /// part in a thousand.
    pub budget: Option<i64>,
    /// Limit on the rewritten modules that are measured. The limit is lowered, to no less than 8,
    /// if these modules together would have more than four million instructions.
    pub most_measured: u32,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { counting: Counting::default(), budget: None, most_measured: 96 }
    }
}

/// The cost of a recomputation in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Price {
    /// FLOPs; None if unknown.
    pub flops: Option<i64>,
    /// Bytes read and written; None if unknown.
    pub bytes: Option<i64>,
    /// Bytes that each device sends around a ring; None if unknown.
    pub wire_bytes: Option<i64>,
    /// Seconds on the device; None if unknown.
    pub seconds: Option<f64>,
}

impl Price {
    /// The key by which candidates are ordered.
    fn weight(&self) -> f64 {
        if let Some(seconds) = self.seconds {
            return seconds;
        }
        let of = |figure: Option<i64>| i128::from(figure.unwrap_or(i64::MAX));
        let weight = of(self.flops)
            + FLOPS_PER_WIRE_BYTE * of(self.wire_bytes)
            + FLOPS_PER_BYTE * of(self.bytes);
        weight as f64
    }
}

/// A candidate with its price and its effect on the peak.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The instructions to copy, and the residual they replace.
    pub candidate: Candidate,
    /// Whether the residual is live at the peak.
    pub is_alive: bool,
    /// The cost of recomputing it.
    pub price: Price,
    /// Bytes at the peak of the module that recomputes only this residual.
    pub peak: Option<i64>,
    /// Why no such module exists or was tried.
    pub refusal: Option<String>,
    /// For a measured candidate without a saving: why recomputing it does not save memory.
    pub no_saving: Option<&'static str>,
    /// Its position among the chosen candidates.
    pub chosen: Option<u32>,
}

/// A plan: which residuals to recompute.
#[derive(Debug)]
pub struct Plan {
    /// Bytes at the peak of the original.
    pub before: i64,
    /// The instruction that runs at the peak of the original.
    pub at: Option<Row>,
    /// Under the rule `xla`, the number of the memory space with the most bytes at the peak;
    /// otherwise the requested memory space.
    pub space: i64,
    /// All candidates. Candidates that save most for their price come first, then candidates
    /// without a saving, then candidates that cannot be rewritten.
    pub entries: Vec<Entry>,
    /// Bytes at the peak after each chosen candidate, in the order of the choice.
    pub steps: Vec<i64>,
    /// Whether the budget is met; None without a budget.
    pub fits: Option<bool>,
    /// The module that recomputes the chosen candidates; None if none was chosen.
    pub rewritten: Option<Rewritten>,
    /// Why the plan chooses nothing, whatever the candidates save in the order of the text.
    pub refusal: Option<&'static str>,
}

impl Plan {
    /// Bytes at the peak of the new module, or of the original if nothing was chosen.
    pub fn after(&self) -> i64 {
        self.steps.last().copied().unwrap_or(self.before)
    }

    /// The requests of the entries with these numbers; None if an entry does not exist.
    pub fn recomputes(&self, numbers: &[usize]) -> Option<Vec<Recompute>> {
        let mut asked = Vec::new();
        for number in numbers {
            asked.extend(self.entries.get(*number)?.candidate.recomputes.iter().cloned());
        }
        Some(asked)
    }
}

/// A plan for a module with these `residuals`. `seconds` gives the time of each row on a device,
/// collectives included, NaN if unknown. Returns an error if memory cannot be counted.
pub fn plan(
    module: &Module,
    cost: &Cost,
    attribution: &Attribution,
    collectives: &Collectives,
    residuals: &[Residual],
    seconds: Option<&[f64]>,
    options: &PlanOptions,
) -> Result<Plan, MemoryError> {
    let original = count(module, &options.counting)?;
    let affordable = (MOST_ROWS / module.row_count().max(1)).max(8);
    let most = options.most_measured.min(u32::try_from(affordable).unwrap_or(u32::MAX));
    let options = &PlanOptions { most_measured: most, ..*options };
    let mut planner = Planner { module, options, measured: 0 };
    let alive = original.alive(module);
    let prices = Prices::new(module, cost, collectives, seconds);
    let candidates = candidates(module, attribution, residuals);
    let mut entries: Vec<Entry> = candidates
        .into_iter()
        .map(|candidate| {
            let mut held = candidate.held.iter();
            Entry {
                is_alive: held.any(|place| original.is_one_of(module, place, &alive)),
                price: prices.of(&candidate),
                peak: None,
                refusal: candidate.obstacle.map(str::to_owned),
                no_saving: None,
                chosen: None,
                candidate,
            }
        })
        .collect();
    let size = |entry: &Entry| residuals[entry.candidate.residual as usize].bytes;
    entries.sort_by_key(|entry| (!entry.is_alive, std::cmp::Reverse(size(entry))));
    for entry in entries.iter_mut().filter(|entry| entry.refusal.is_none()) {
        if planner.measured >= options.most_measured / 2 {
            let others = if entry.is_alive { "larger values" } else { "values live at the peak" };
            entry.refusal = Some(format!("not tried: too many {others} were tried before"));
        } else {
            match planner.measure(&entry.candidate.recomputes) {
                Ok((peak, _)) => {
                    entry.peak = Some(peak);
                    entry.no_saving = (peak >= original.peak).then(|| no_saving(&original, entry));
                }
                Err(reason) => entry.refusal = Some(reason),
            }
        }
    }
    let before = original.peak;
    let rank = |entry: &Entry| {
        let saved = entry.peak.map_or(0, |peak| before - peak);
        saved as f64 / entry.price.weight().max(f64::MIN_POSITIVE)
    };
    entries.sort_by(|a, b| {
        let order = |entry: &Entry| (entry.peak.is_none(), !entry.is_alive);
        order(a).cmp(&order(b)).then_with(|| rank(b).total_cmp(&rank(a)))
    });
    let mut plan = Plan {
        before,
        at: original.peak_row(),
        space: original.space,
        entries,
        steps: Vec::new(),
        fits: options.budget.map(|budget| before <= budget),
        rewritten: None,
        refusal: (!module.is_scheduled()).then_some(UNSCHEDULED),
    };
    if plan.refusal.is_none() {
        planner.choose(&mut plan);
    }
    Ok(plan)
}

/// The peak and the module after `recomputes`, or the reason why it cannot be rewritten.
pub fn measure(
    module: &Module,
    recomputes: &[Recompute],
    options: &PlanOptions,
) -> Result<(i64, Rewritten), String> {
    let rewritten = rewrite(module, recomputes).map_err(|error| error.to_string())?;
    let counted = count(&rewritten.module, &options.counting);
    let counted = counted.map_err(|error| error.to_string())?;
    Ok((counted.peak, rewritten))
}

/// Why recomputing `entry` saves no memory.
fn no_saving(original: &AtPeak<'_>, entry: &Entry) -> &'static str {
    if let Some(where_) = original.kept_elsewhere(&entry.candidate.held) {
        return where_;
    }
    match entry.is_alive {
        true => "another step, or the recomputation itself, needs the same memory",
        false => "not live at the peak",
    }
}

struct Planner<'a> {
    module: &'a Module,
    options: &'a PlanOptions,
    measured: u32,
}

impl Planner<'_> {
    /// The peak and the module after `recomputes`.
    fn measure(&mut self, recomputes: &[Recompute]) -> Result<(i64, Rewritten), String> {
        self.measured += 1;
        measure(self.module, recomputes, self.options)
    }

    fn fits(&self, peak: i64) -> bool {
        self.options.budget.is_some_and(|budget| peak <= budget)
    }

    /// Chooses candidates one after another that lower the peak, until the budget is met; then
    /// drops candidates that the budget does not need.
    fn choose(&mut self, plan: &mut Plan) {
        if self.fits(plan.before) {
            return;
        }
        let mut taken: Vec<usize> = Vec::new();
        let mut peak = plan.before;
        let least = self.options.budget.map_or(plan.before / LEAST_PART, |_| 0);
        for number in 0..plan.entries.len() {
            let entry = &plan.entries[number];
            // A candidate that saves no memory by itself may save some together with others.
            if entry.peak.is_none() || self.measured >= self.options.most_measured {
                continue;
            }
            taken.push(number);
            match self.measure(&plan.recomputes(&taken).unwrap_or_default()) {
                Ok((less, _)) if less < peak - least => peak = less,
                _ => {
                    taken.pop();
                }
            }
            if self.fits(peak) {
                break;
            }
        }
        if self.fits(peak) {
            for number in taken.clone() {
                let fewer: Vec<usize> = taken.iter().copied().filter(|n| *n != number).collect();
                let is_enough = self.measured < self.options.most_measured
                    && self
                        .measure(&plan.recomputes(&fewer).unwrap_or_default())
                        .is_ok_and(|(p, _)| self.fits(p));
                if is_enough {
                    taken = fewer;
                }
            }
        }
        for count in 1..=taken.len() {
            let Ok((peak, rewritten)) =
                self.measure(&plan.recomputes(&taken[..count]).unwrap_or_default())
            else {
                break;
            };
            plan.steps.push(peak);
            plan.entries[taken[count - 1]].chosen = Some(count as u32 - 1);
            plan.rewritten = Some(rewritten);
        }
        if self.options.budget.is_some() {
            plan.fits = Some(self.fits(plan.after()));
        }
    }
}

/// The cost of running rows again.
struct Prices<'a> {
    module: &'a Module,
    cost: &'a Cost,
    collectives: &'a Collectives,
    seconds: Option<&'a [f64]>,
    /// By row: the collective to which it belongs.
    part_of: HashMap<Row, u32, BuildMix>,
}

impl<'a> Prices<'a> {
    fn new(
        module: &'a Module,
        cost: &'a Cost,
        collectives: &'a Collectives,
        seconds: Option<&'a [f64]>,
    ) -> Self {
        let mut part_of = HashMap::default();
        for (number, collective) in (0u32..).zip(&collectives.collectives) {
            part_of.insert(collective.row, number);
            part_of.insert(collective.outer, number);
            part_of.extend(collective.done.map(|done| (done, number)));
        }
        Self { module, cost, collectives, seconds, part_of }
    }

    /// The price of one candidate, over all executions of its computation.
    fn of(&self, candidate: &Candidate) -> Price {
        let cost = self.cost;
        let runs = cost.executions.get(candidate.place.0 as usize).copied().flatten();
        let mut sums = [Some(0i64); 3];
        let mut seconds = self.seconds.map(|_| 0.0);
        let mut sent: Vec<u32> = Vec::new();
        for row in &candidate.again {
            let index = row.0 as usize;
            let figure = |column: &[i64]| column.get(index).copied().filter(|figure| *figure >= 0);
            let both = figure(&cost.bytes_read).zip(figure(&cost.bytes_written));
            let mut moved = both.map(|(read, written)| read.saturating_add(written));
            let mut known = self.seconds.and_then(|column| column.get(index).copied());
            let mut wire = Some(0);
            // A collective costs once, wherever it starts and ends.
            if let Some(number) = self.part_of.get(row) {
                let is_first = !sent.contains(number);
                let collective = self.collectives.collectives.get(*number as usize);
                let collective = collective.filter(|_| is_first);
                sent.push(*number);
                if is_first {
                    let bytes = collective.and_then(|collective| collective.ring_wire_bytes());
                    wire = bytes.and_then(|bytes| i64::try_from(bytes).ok());
                }
                if let Some(collective) =
                    collective.filter(|collective| collective.done == Some(*row))
                {
                    // Only the fusion that ends the collective is copied, as a plain collective.
                    let outer = collective.outer.0 as usize;
                    known = self.seconds.and_then(|column| column.get(outer).copied());
                    let both = collective.payload_in.zip(collective.payload_out);
                    let both = both.and_then(|(read, written)| read.checked_add(written));
                    moved = both.and_then(|bytes| i64::try_from(bytes).ok());
                }
            }
            let flops = self.flops(*row, 0);
            for (sum, amount) in sums.iter_mut().zip([flops, moved, wire]) {
                let times = amount.zip(runs).map(|(amount, runs)| amount.saturating_mul(runs));
                *sum = sum.zip(times).map(|(sum, amount)| sum.saturating_add(amount));
            }
            let times = known.zip(runs).map(|(time, runs)| time * runs as f64);
            seconds = seconds.zip(times.filter(|time| time.is_finite())).map(|(a, b)| a + b);
        }
        let [flops, bytes, wire_bytes] = sums;
        Price { flops, bytes, wire_bytes, seconds }
    }

    /// FLOPs of one execution, including called computations.
    fn flops(&self, row: Row, depth: u32) -> Option<i64> {
        let module = self.module;
        let own = self.cost.flops.get(row.0 as usize).copied().filter(|f| *f >= 0)?;
        if depth > DEEPEST || !matches!(module.opcode(row), Opcode::Fusion | Opcode::AsyncStart) {
            return Some(own);
        }
        let mut inside = module.calls(row).iter().flat_map(|call| {
            let rows = module.computation(call.computation).rows();
            rows.map(|row| self.flops(Row(row), depth + 1))
        });
        inside.try_fold(own, |sum, flops| Some(sum.saturating_add(flops?)))
    }
}
