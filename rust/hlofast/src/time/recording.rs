//! What a schedule spends its time on, stretch by stretch, for pictures of it.

use crate::ir::Row;
use std::ops::Range;

/// What a stretch of time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// A row bound by computing.
    Compute,
    /// A row bound by moving data, or waiting for a copy.
    Memory,
    /// A row bound by its launch, or by what is not known.
    Other,
    /// Waiting for a collective; the number is that of the axes in `Simulation::axes`.
    Exposed(u16),
    /// A collective on the links of these axes.
    Links(u16),
    /// A copy between memories beside everything else.
    Copies,
    /// A loop, a conditional or a call, with all it contains.
    Called,
}

/// One stretch of time, relative to the begin of its computation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// The row that spends it.
    pub row: Row,
    /// Of collectives, their number.
    pub collective: Option<u32>,
    /// On what.
    pub resource: Resource,
    /// Seconds until it begins.
    pub begin: f64,
    /// Seconds until it ends.
    pub end: f64,
}

/// Every stretch of one run of every computation, each computation's own in the order in which
/// their rows run.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    pub(super) stretches: Vec<Stretch>,
    /// By computation.
    pub(super) ranges: Vec<Range<u32>>,
}

impl Recording {
    /// The stretches of the computation with this number.
    pub fn of(&self, computation: u32) -> &[Stretch] {
        let range = self.ranges.get(computation as usize).cloned().unwrap_or_default();
        self.stretches.get(range.start as usize..range.end as usize).unwrap_or_default()
    }
}
