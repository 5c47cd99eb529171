//! The contents of calls: computations and counts, seconds by track, and the number of iterations
//! to show.

use super::ShownLoop;
use crate::cost::{Cost, Loop};
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use crate::memory::Memory;
use crate::time::{Recording, Resource, Simulation};
use std::collections::HashMap;

/// Seconds by resource.
pub type Totals = Vec<(Resource, f64)>;

/// A module whose schedule has been timed.
pub struct Program<'a> {
    pub module: &'a Module,
    pub simulation: &'a Simulation,
    pub recording: &'a Recording,
    pub memory: Option<&'a Memory>,
    loops: &'a [Loop],
    taken: HashMap<Row, ComputationId>,
    /// By computation: one run with everything it calls.
    totals: Vec<Totals>,
    /// By computation: peak of live bytes in one run.
    peaks: Vec<i64>,
}

/// How much to show.
pub struct Extent {
    /// Limit on the iterations shown per loop.
    pub iterations: u64,
    /// By computation: rows and slices shown for one run with everything it calls.
    pub sizes: Vec<u64>,
    /// Limit on rows and slices; beyond it, computations already shown are aggregated.
    pub limit: u64,
}

impl<'a> Program<'a> {
    pub fn new(
        module: &'a Module,
        cost: &'a Cost,
        simulation: &'a Simulation,
        recording: &'a Recording,
        memory: Option<&'a Memory>,
    ) -> Self {
        let count = module.computations().len();
        let mut program = Self {
            module,
            simulation,
            recording,
            memory,
            loops: &cost.loops,
            taken: simulation.branches.iter().copied().collect(),
            totals: vec![Totals::new(); count],
            peaks: vec![0; count],
        };
        for id in module.computation_post_order().iter().copied() {
            let mut sums: HashMap<Resource, f64> = HashMap::new();
            let mut peak = 0;
            if memory.is_some() {
                let alive = module.computation(id).rows().filter_map(|row| program.alive(Row(row)));
                peak = alive.max().unwrap_or(0);
            }
            for stretch in recording.of(id.0) {
                if stretch.resource != Resource::Called {
                    *sums.entry(stretch.resource).or_default() += stretch.end - stretch.begin;
                    continue;
                }
                for (callee, times) in program.calls(stretch.row) {
                    for (resource, seconds) in &program.totals[callee.0 as usize] {
                        *sums.entry(*resource).or_default() += seconds * times as f64;
                    }
                    peak = peak.max(program.peaks[callee.0 as usize]);
                }
            }
            let mut totals: Totals = sums.into_iter().collect();
            totals.sort_unstable_by_key(|entry| entry.0);
            program.totals[id.0 as usize] = totals;
            program.peaks[id.0 as usize] = peak;
        }
        program
    }

    /// The computations that one execution of `row` (a loop, conditional or call) runs, with
    /// counts.
    pub fn calls(&self, row: Row) -> Vec<(ComputationId, u64)> {
        let called = |call: &crate::ir::Call| (call.computation, 1);
        match self.module.opcode(row) {
            Opcode::While => {
                let times = self.trip_count(row).unwrap_or(1);
                let condition = self.module.called(row, CallRole::Condition);
                let body = self.module.called(row, CallRole::Body);
                let condition = condition.map(|id| (id, times.saturating_add(1)));
                condition.into_iter().chain(body.map(|id| (id, times))).collect()
            }
            Opcode::Conditional => self.taken.get(&row).map(|id| (*id, 1)).into_iter().collect(),
            _ => self.module.calls(row).iter().map(called).collect(),
        }
    }

    /// Trip count of loop `row`; None if unknown.
    pub fn trip_count(&self, row: Row) -> Option<u64> {
        let at = self.loops.binary_search_by_key(&row, |entry| entry.row).ok()?;
        self.loops.get(at)?.trip_count.count
    }

    /// Seconds of one run of a computation with everything it calls.
    pub fn seconds(&self, id: ComputationId) -> f64 {
        self.simulation.computations.get(id.0 as usize).map_or(0.0, |split| split.seconds)
    }

    /// Seconds of one run by resource.
    pub fn totals(&self, id: ComputationId) -> &[(Resource, f64)] {
        self.totals.get(id.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// Peak of live bytes while a computation runs.
    pub fn peak(&self, id: ComputationId) -> i64 {
        self.peaks.get(id.0 as usize).copied().unwrap_or(0)
    }

    /// Live bytes while `row` runs; None if the row is not a step of the memory timeline.
    pub fn alive(&self, row: Row) -> Option<i64> {
        let memory = self.memory?;
        memory.timeline.get(memory.step_of(row)? as usize).copied()
    }

    /// Number of iterations shown of loop `row` if every loop shows at most `iterations`.
    pub fn shown(&self, row: Row, iterations: u64) -> u64 {
        self.trip_count(row).unwrap_or(1).min(iterations)
    }

    /// The largest extent that fits: starts with all iterations and halves the limit until it fits.
    pub fn extent(&self, wanted: Option<u64>) -> Extent {
        let limit = if wanted.is_some() { MOST_WANTED } else { MOST };
        let most = self.loops.iter().filter_map(|entry| entry.trip_count.count).max().unwrap_or(1);
        let mut iterations = wanted.unwrap_or(most).clamp(1, most.max(1));
        let order = self.module.computation_post_order();
        loop {
            let sizes = self.sizes(order, iterations);
            let entry = sizes.get(self.module.entry().0 as usize).copied().unwrap_or(0);
            if entry <= limit || iterations == 1 {
                return Extent { iterations, sizes, limit };
            }
            iterations /= 2;
        }
    }

    fn sizes(&self, order: &[ComputationId], iterations: u64) -> Vec<u64> {
        let mut sizes = vec![0u64; self.module.computations().len()];
        for id in order {
            let stretches = self.recording.of(id.0);
            let rows = self.module.computation(*id).rows().len();
            let mut size = 1 + (rows + stretches.len()) as u64;
            let called = |stretch: &&crate::time::Stretch| stretch.resource == Resource::Called;
            for stretch in stretches.iter().filter(called) {
                for (callee, times) in self.calls(stretch.row) {
                    let shown = times.min(iterations.saturating_add(1));
                    let callee = sizes.get(callee.0 as usize).copied().unwrap_or(0);
                    size = size.saturating_add(callee.saturating_mul(shown));
                }
            }
            if let Some(place) = sizes.get_mut(id.0 as usize) {
                *place = size;
            }
        }
        sizes
    }

    /// The loops in executed computations, by row.
    pub fn loops(&self, iterations: u64) -> Vec<ShownLoop> {
        let runs = |row: Row| {
            let computation = self.module.computation_of(row).0 as usize;
            self.simulation.executions.get(computation).is_some_and(|count| *count > 0)
        };
        let running = self.loops.iter().filter(|entry| runs(entry.row));
        let shown = |entry: &Loop| ShownLoop {
            row: entry.row,
            trip_count: entry.trip_count.count,
            shown: self.shown(entry.row, iterations),
        };
        running.map(shown).collect()
    }
}

/// Limit on rows and slices, repetitions included; 100,000 give 10 MB of JSON.
const MOST: u64 = 100_000;
/// The limit if the user asks for a number of iterations.
const MOST_WANTED: u64 = 5_000_000;
