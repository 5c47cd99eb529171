//! The simulated schedule as a trace for timeline viewers: slices on tracks, and live bytes.
//!
//! Start at [`trace`]. `program.rs` gives the contents of calls and how many iterations fit;
//! `play.rs` plays the schedule from the entry; `tracks.rs` turns seconds into nanoseconds on
//! tracks; `events.rs` orders begin and end events; `arguments.rs` gives the details of each slice;
//! `chrome.rs` and `perfetto.rs` write the trace.

mod arguments;
mod chrome;
mod events;
mod perfetto;
mod play;
mod program;
mod tracks;
mod wire;

pub use arguments::{Described, Value};
pub use chrome::write_chrome;
pub use perfetto::write_perfetto;

use crate::cost::Cost;
use crate::ir::{Module, Row};
use crate::memory::Memory;
use crate::time::{Recording, Resource, Simulation};

/// Options of the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// Iterations of a loop shown individually; None: as many as fit.
    pub iterations: Option<u64>,
    /// Slices shorter than this are left out.
    pub min_seconds: f64,
}

/// Why a trace cannot be written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TraceError {
    /// The step time is not finite or exceeds the range of a trace.
    TooLong(f64),
}

impl std::fmt::Display for TraceError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TraceError::TooLong(seconds) = self;
        write!(formatter, "a step of {seconds:e} s is longer than a trace can hold, 146 years")
    }
}

impl std::error::Error for TraceError {}

/// What a slice represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The whole module.
    Module,
    /// An instruction: computing, moving, communicating or waiting; or a loop or call with
    /// everything inside.
    Instruction,
    /// One iteration of a loop, by index.
    Iteration(u64),
    /// The remaining iterations of a loop, or one call, aggregated.
    Rest(u64),
}

/// A slice of a track.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slice {
    /// Index into [`Trace::tracks`].
    pub track: u32,
    /// Nanoseconds from the start of the step, rounded.
    pub begin: u64,
    /// End in nanoseconds from the start of the step, rounded.
    pub end: u64,
    /// Modelled duration in seconds, not rounded.
    pub seconds: f64,
    /// The instruction.
    pub row: Row,
    /// Index of the collective, if the instruction is a collective.
    pub collective: Option<u32>,
    /// What the slice represents.
    pub shown: Shown,
}

/// A track.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// The displayed name.
    pub name: String,
    /// The resource that its slices occupy.
    pub resource: Resource,
    /// Number of slices.
    pub slices: u64,
    /// Modelled seconds of the slices; for `program`, of the step.
    pub seconds: f64,
    /// Slices left out.
    pub left_out: u64,
    /// Seconds of the slices left out.
    pub left_out_seconds: f64,
}

/// How a loop is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownLoop {
    /// The while instruction.
    pub row: Row,
    /// Trip count; None for an unknown trip count, which counts as one iteration.
    pub trip_count: Option<u64>,
    /// Iterations shown individually; the rest is one slice per track.
    pub shown: u64,
}

/// A change of live bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Nanoseconds from the start of the step, rounded.
    pub at: u64,
    /// Live bytes.
    pub bytes: i64,
}

/// The schedule as slices and samples.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The tracks, from top to bottom. Overlapping slices on the same links are on several tracks.
    pub tracks: Vec<Track>,
    /// The slices by track and start; enclosing slices come first.
    pub slices: Vec<Slice>,
    /// Live bytes over time; empty without [`Memory`].
    pub samples: Vec<Sample>,
    /// The executed loops, by row.
    pub loops: Vec<ShownLoop>,
    /// Calls aggregated into one slice because the trace would be too large.
    pub not_played: u64,
}

/// The trace of one run of `module`, timed in `simulation` and `recording`. Live bytes come from
/// `memory`.
///
/// The first iterations of each loop are played. The remaining iterations are one slice per track
/// with their total length, so that the slices of every track add up to the timed seconds.
pub fn trace(
    module: &Module,
    cost: &Cost,
    simulation: &Simulation,
    recording: &Recording,
    memory: Option<&Memory>,
    options: &Options,
) -> Result<Trace, TraceError> {
    let seconds = simulation.step.seconds;
    // Half the range of 63-bit nanoseconds, which leaves room for slices beyond the end.
    if !(0.0..=4.6e9).contains(&seconds) {
        return Err(TraceError::TooLong(seconds));
    }
    let program = program::Program::new(module, cost, simulation, recording, memory);
    Ok(play::play(&program, options))
}
