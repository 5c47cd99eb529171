//! What a simulated schedule gives.

use super::split::Split;
use crate::ir::{ComputationId, Row};

/// The schedule of a module in time.
#[derive(Clone, Debug, Default)]
pub struct Simulation {
    /// One run of the module, by resource.
    pub step: Split,
    /// The distinct axes of communication.
    pub axes: Vec<String>,
    /// By computation: one run with everything it calls.
    pub computations: Vec<Split>,
    /// By computation: how often it runs outside fusions. Loops of unknown trip count run once,
    /// conditionals take the longest branch; saturates at 64 bits.
    pub executions: Vec<u64>,
    /// By row: when it starts within its computation; for an asynchronous start, when the transfer
    /// may start.
    pub start: Vec<f64>,
    /// By row: when the next row may start; for an asynchronous start, when the transfer ends.
    pub end: Vec<f64>,
    /// By row: seconds of waiting for a collective.
    pub exposed: Vec<f64>,
    /// By row: seconds that one run of its computation spends in it, waiting included. Loops,
    /// branches and calls spend theirs in the computations they call.
    pub taken: Vec<f64>,
    /// By collective, in the given order: seconds of one execution, and how long the schedule
    /// waits for it.
    pub collectives: Vec<(f64, f64)>,
    /// By collective: the part of its wait in which loops beside it occupied its links.
    pub queued: Vec<f64>,
    /// Loops of unknown trip count, counted as one iteration.
    pub open_loops: Vec<Row>,
    /// The branches taken: the longest of each conditional.
    pub branches: Vec<(Row, ComputationId)>,
}

/// The name of the wait for other slices among the axes.
pub const OTHER_SLICES: &str = "other slices";

impl Simulation {
    /// Adds the wait for other slices: jitter that grows with their number (fitted on published
    /// steps), beside the transfers between slices, which the schedule plays.
    pub(super) fn wait_for_slices(&mut self, share: f64) {
        let seconds = self.step.seconds * share;
        let axis = self.axes.len();
        self.axes.push(OTHER_SLICES.to_owned());
        self.step.wait(axis, seconds);
    }
}
