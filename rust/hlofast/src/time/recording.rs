//! A record of how the schedule spends its time, for timelines.

use crate::ir::Row;
use std::ops::Range;

/// The resource that a stretch of time occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// A row bound by compute.
    Compute,
    /// A row bound by memory, or waiting for a copy.
    Memory,
    /// A row bound by its launch, or of unknown bound.
    Other,
    /// Waiting for a collective; the number is an index into `Simulation::axes`.
    Exposed(u16),
    /// A collective on the links of these axes (index into `Simulation::axes`).
    Links(u16),
    /// An asynchronous copy between memories.
    Copies,
    /// A loop, a conditional or a call, with everything inside.
    Called,
}

/// One stretch of time, relative to the start of its computation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// The row that takes the time.
    pub row: Row,
    /// Index of the collective, if the row is a collective.
    pub collective: Option<u32>,
    /// The resource in use.
    pub resource: Resource,
    /// Start in seconds.
    pub begin: f64,
    /// End in seconds.
    pub end: f64,
}

/// The stretches of one run of every computation, grouped by computation, in the order in which
/// rows run.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    pub(super) stretches: Vec<Stretch>,
    /// Range of `stretches` by computation.
    pub(super) ranges: Vec<Range<u32>>,
}

impl Recording {
    /// The stretches of the computation with this index.
    pub fn of(&self, computation: u32) -> &[Stretch] {
        let range = self.ranges.get(computation as usize).cloned().unwrap_or_default();
        self.stretches.get(range.start as usize..range.end as usize).unwrap_or_default()
    }
}
