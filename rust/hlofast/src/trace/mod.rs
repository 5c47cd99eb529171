//! The simulated schedule as a trace: slices on tracks and the bytes alive, for timeline viewers.
//!
//! Start at [`trace`]. `program.rs` says what calls contain and how many iterations fit in;
//! `play.rs` plays the schedule from the entry on; `tracks.rs` turns seconds into nanoseconds on
//! tracks; `events.rs` puts begins and ends in order, `arguments.rs` says what is told of each;
//! `chrome.rs` and `perfetto.rs` write them.

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

/// What to show.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// How many iterations of a loop are shown one by one; None: as many as fit well.
    pub iterations: Option<u64>,
    /// Slices that take fewer seconds are left out.
    pub min_seconds: f64,
}

/// Why there is no trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TraceError {
    /// The step takes longer than a trace can hold, or no finite time.
    TooLong(f64),
}

impl std::fmt::Display for TraceError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TraceError::TooLong(seconds) = self;
        write!(formatter, "a step of {seconds:e} s is longer than a trace can hold, 146 years")
    }
}

impl std::error::Error for TraceError {}

/// What a slice shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The whole module.
    Module,
    /// An instruction: computing, moving, on the links, or waiting; a loop or a call with all in it.
    Instruction,
    /// One iteration of a loop, by number.
    Iteration(u64),
    /// Iterations of a loop that are not shown one by one, or one call, as a whole.
    Rest(u64),
}

/// A slice of a track.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slice {
    /// In [`Trace::tracks`].
    pub track: u32,
    /// Nanoseconds from the begin of the step, rounded.
    pub begin: u64,
    /// Likewise.
    pub end: u64,
    /// Its length in seconds as it was modelled, not rounded.
    pub seconds: f64,
    /// The instruction.
    pub row: Row,
    /// Of a collective, its number.
    pub collective: Option<u32>,
    /// What it shows.
    pub shown: Shown,
}

/// A track.
#[derive(Clone, Debug, PartialEq)]
pub struct Track {
    /// What people read.
    pub name: String,
    /// What its slices take up.
    pub resource: Resource,
    /// Slices on it.
    pub slices: u64,
    /// Their seconds, as modelled; of `program`, the step.
    pub seconds: f64,
    /// Slices that were too short.
    pub left_out: u64,
    /// Their seconds.
    pub left_out_seconds: f64,
}

/// How a loop is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownLoop {
    /// The while instruction.
    pub row: Row,
    /// None: not known, counted once.
    pub trip_count: Option<u64>,
    /// Iterations shown one by one; the rest is one slice per track.
    pub shown: u64,
}

/// Bytes alive from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Nanoseconds from the begin of the step, rounded.
    pub at: u64,
    /// Bytes alive.
    pub bytes: i64,
}

/// The schedule as slices and samples.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The tracks, from top to bottom. What overlaps on the same links is on several.
    pub tracks: Vec<Track>,
    /// By track, as they begin; what contains others comes first.
    pub slices: Vec<Slice>,
    /// Bytes alive, as time passes; empty without [`Memory`].
    pub samples: Vec<Sample>,
    /// The loops that run, by row.
    pub loops: Vec<ShownLoop>,
    /// Calls shown as a whole since the trace would be too large.
    pub not_played: u64,
}

/// The trace of one run of `module`, timed in `simulation` and `recording`. Bytes alive are those
/// of `memory`.
///
/// Of each loop the first iterations are played, and the rest is one slice per track as long as all
/// of it together, so that the slices of every track add up to what was timed.
pub fn trace(
    module: &Module,
    cost: &Cost,
    simulation: &Simulation,
    recording: &Recording,
    memory: Option<&Memory>,
    options: &Options,
) -> Result<Trace, TraceError> {
    let seconds = simulation.step.seconds;
    // Half of what nanoseconds in 63 bits hold, for what overlaps the end.
    if !(0.0..=4.6e9).contains(&seconds) {
        return Err(TraceError::TooLong(seconds));
    }
    let program = program::Program::new(module, cost, simulation, recording, memory);
    Ok(play::play(&program, options))
}
