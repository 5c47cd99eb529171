//! What a lack of memory costs a step.
//!
//! Where a program does not fit, XLA recomputes values by itself, and starts a transfer only when
//! something waits for it, so that nothing is in memory for longer than needed. A program of the same
//! operations that fits does neither.

use super::simulation::Simulation;
use crate::comms::Collectives;
use crate::flow::{has_compiler_clones, is_compiler_clone};
use crate::ir::{Module, Row};
use memchr::memmem;
use std::collections::BTreeMap;

/// What a lack of memory costs.
#[derive(Clone, Debug, Default)]
pub struct Pressure {
    /// Seconds of a step in which XLA recomputes values by itself, and in which transfers beside which
    /// their computation has work to do are waited for, whatever the cause. 0 if XLA recomputes nothing
    /// by itself, since then its memory sufficed.
    pub seconds: f64,
    /// By computation: seconds of one run in which such transfers are waited for.
    pub waited: Vec<f64>,
}

/// What a lack of memory costs a step.
pub fn pressure(module: &Module, collectives: &Collectives, simulation: &Simulation) -> Pressure {
    let mut found = Pressure { seconds: 0.0, waited: vec![0.0; module.computations().len()] };
    let of = |column: &[f64], row: Row| column.get(row.0 as usize).copied().unwrap_or(0.0);
    if !has_compiler_clones(module) {
        return found;
    }
    let mut beside: Vec<Beside> = vec![Beside::default(); module.computations().len()];
    for (collective, (seconds, exposed)) in
        collectives.collectives.iter().zip(&simulation.collectives)
    {
        let Some(done) = collective.done else { continue };
        if let Some(own) = beside.get_mut(module.computation_of(done).0 as usize) {
            own.exposed += exposed;
            own.hidden += (seconds - exposed).max(0.0);
        }
    }
    let runs = simulation.executions.iter().map(|runs| *runs as f64);
    let parts = module.computations().iter().zip(beside).zip(&mut found.waited);
    for (((computation, own), place), runs) in parts.zip(runs) {
        if runs == 0.0 {
            continue;
        }
        let seconds = |row: Row| of(&simulation.taken, row) - of(&simulation.exposed, row);
        let work: f64 = computation.rows().map(Row).map(seconds).sum();
        let waited = own.exposed.min((work - own.hidden).max(0.0));
        *place = waited;
        let again = repeated(module, computation.rows().map(Row), seconds);
        found.seconds += runs * (waited + again);
    }
    found
}

/// Seconds in which rows repeat others: all clones of a row if it is still there, else all but one.
fn repeated(module: &Module, rows: impl Iterator<Item = Row>, seconds: impl Fn(Row) -> f64) -> f64 {
    // By name of the original: the sum of all clones, and the longest. In order, so that the sum of
    // all does not depend on hashes.
    let mut clones: BTreeMap<&[u8], (f64, f64)> = BTreeMap::new();
    let mut others = Vec::new();
    for row in rows {
        let (name, own) = (module.instruction_name(row), seconds(row));
        if own <= 0.0 {
            continue;
        }
        if !is_compiler_clone(module, row) {
            others.push(name);
            continue;
        }
        let end = memmem::find(name, b".remat").unwrap_or(name.len());
        let (sum, longest) = clones.entry(&name[..end]).or_default();
        *sum += own;
        *longest = longest.max(own);
    }
    if clones.is_empty() {
        return 0.0;
    }
    for name in others {
        if let Some((_, longest)) = clones.get_mut(name) {
            *longest = 0.0;
        }
    }
    clones.values().map(|(sum, longest)| sum - longest).sum()
}

/// The asynchronous collectives of one run of a computation.
#[derive(Clone, Copy, Default)]
struct Beside {
    /// Seconds of waiting for them.
    exposed: f64,
    /// Seconds in which they run beside other work.
    hidden: f64,
}
