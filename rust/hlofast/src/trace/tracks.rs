//! Turns stretches of time into slices on tracks: rounded to nanoseconds, nested or consecutive.

use super::{Shown, Slice, Track};
use crate::ir::Row;
use crate::time::{Resource, Stretch};
use std::collections::BTreeMap;

/// Limit on the tracks for overlapping slices of one resource.
pub const MOST_LANES: usize = 64;

/// Seconds rounded to nanoseconds.
pub fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// A slice before it has a track.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub row: Row,
    pub collective: Option<u32>,
    pub resource: Resource,
    /// Seconds from the start of the step.
    pub begin: f64,
    pub end: f64,
    /// Duration.
    pub seconds: f64,
    pub shown: Shown,
}

impl Piece {
    pub fn new(row: Row, resource: Resource, begin: f64, end: f64) -> Self {
        let (collective, shown) = (None, Shown::Instruction);
        Self { row, collective, resource, begin, end, seconds: end - begin, shown }
    }

    /// A stretch of a computation that begins at `base`.
    pub fn from(stretch: &Stretch, base: f64) -> Self {
        let (begin, end) = (base + stretch.begin, base + stretch.end);
        let seconds = stretch.end - stretch.begin;
        let piece = Self::new(stretch.row, stretch.resource, begin, end);
        Self { seconds, collective: stretch.collective, ..piece }
    }

    pub fn shown(self, shown: Shown) -> Self {
        Self { shown, ..self }
    }
}

#[derive(Default)]
struct Lane {
    /// End of the last slice.
    end: u64,
    slices: Vec<Slice>,
    left_out: u64,
    left_out_seconds: f64,
}

/// The tracks under construction.
pub struct Tracks {
    min_seconds: f64,
    lanes: BTreeMap<Resource, Vec<Lane>>,
    /// By depth: begin and end of the open slice on the track of calls.
    open: Vec<(u64, u64)>,
    /// By depth: end of the last slice.
    last: Vec<u64>,
}

impl Tracks {
    pub fn new(min_seconds: f64) -> Self {
        let first = || vec![Lane::default()];
        // These tracks are kept even if they are empty.
        let shown = [Resource::Called, Resource::Compute, Resource::Memory];
        let lanes = shown.into_iter().map(|resource| (resource, first())).collect();
        Self { min_seconds, lanes, open: Vec::new(), last: Vec::new() }
    }

    /// Adds a slice that may contain others, inside `depth` slices.
    pub fn nest(&mut self, piece: Piece, depth: usize) {
        self.open.truncate(depth);
        self.last.truncate(depth + 1);
        self.last.resize(depth + 1, 0);
        let (from, to) = self.open.last().copied().unwrap_or((0, u64::MAX));
        // Sums in a different order differ in their last digits, so the slice is clamped to its
        // neighbours.
        let last = self.last.get(depth).copied().unwrap_or(0);
        let begin = nanoseconds(piece.begin).max(from).max(last).min(to);
        let end = nanoseconds(piece.end).clamp(begin, to);
        self.open.resize(depth, (from, to));
        self.open.push((begin, end));
        if let Some(last) = self.last.get_mut(depth) {
            *last = end;
        }
        self.push(piece, 0, begin, end);
    }

    /// Adds a slice on the first track of its resource that is free at its start.
    pub fn add(&mut self, piece: Piece) {
        let begin = nanoseconds(piece.begin);
        let lanes = self.lanes.entry(piece.resource).or_default();
        // Tolerates a rounding error of one nanosecond.
        let free = lanes.iter().position(|lane| lane.end <= begin.saturating_add(1));
        let at = free.unwrap_or(lanes.len());
        if at == MOST_LANES {
            self.leave_out(piece.resource, piece.seconds);
            return;
        }
        if at == lanes.len() {
            lanes.push(Lane::default());
        }
        let begin = begin.max(lanes.get(at).map_or(0, |lane| lane.end));
        let end = nanoseconds(piece.end).max(begin);
        self.push(piece, at, begin, end);
    }

    /// Counts a slice that is left out.
    pub fn leave_out(&mut self, resource: Resource, seconds: f64) {
        let lanes = self.lanes.entry(resource).or_default();
        if lanes.is_empty() {
            lanes.push(Lane::default());
        }
        if let Some(lane) = lanes.first_mut() {
            lane.left_out += 1;
            lane.left_out_seconds += seconds;
        }
    }

    fn push(&mut self, piece: Piece, lane: usize, begin: u64, end: u64) {
        let Piece { row, collective, seconds, shown, .. } = piece;
        let may_go = matches!(shown, Shown::Instruction | Shown::Iteration(_));
        if may_go && seconds < self.min_seconds {
            self.leave_out(piece.resource, seconds);
            return;
        }
        let lanes = self.lanes.get_mut(&piece.resource);
        if let Some(lane) = lanes.and_then(|lanes| lanes.get_mut(lane)) {
            lane.end = end;
            lane.slices.push(Slice { track: 0, begin, end, seconds, row, collective, shown });
        }
    }

    /// The tracks and their slices; empty extra tracks are dropped.
    pub fn finish(self, axes: &[String]) -> (Vec<Track>, Vec<Slice>) {
        let (mut tracks, mut slices) = (Vec::new(), Vec::new());
        for (resource, lanes) in order(self.lanes) {
            let name = name(resource, axes);
            for (number, lane) in lanes.into_iter().enumerate() {
                if number > 0 && lane.slices.is_empty() {
                    continue;
                }
                let outermost =
                    |slice: &&Slice| resource != Resource::Called || slice.shown == Shown::Module;
                let shown = lane.slices.iter().filter(outermost);
                let track = Track {
                    name: if number == 0 {
                        name.clone()
                    } else {
                        format!("{name} ({})", number + 1)
                    },
                    resource,
                    slices: lane.slices.len() as u64,
                    seconds: shown.map(|slice| slice.seconds).sum(),
                    left_out: lane.left_out,
                    left_out_seconds: lane.left_out_seconds,
                };
                let number = tracks.len() as u32;
                slices
                    .extend(lane.slices.into_iter().map(|slice| Slice { track: number, ..slice }));
                tracks.push(track);
            }
        }
        (tracks, slices)
    }
}

/// The track of calls first, then all other tracks in the order of resources.
fn order(mut lanes: BTreeMap<Resource, Vec<Lane>>) -> impl Iterator<Item = (Resource, Vec<Lane>)> {
    let called = lanes.remove(&Resource::Called).map(|lanes| (Resource::Called, lanes));
    called.into_iter().chain(lanes)
}

fn name(resource: Resource, axes: &[String]) -> String {
    let of = |axis: u16| axes.get(usize::from(axis)).map_or("", String::as_str);
    match resource {
        Resource::Called => "program".to_owned(),
        Resource::Compute => "compute".to_owned(),
        Resource::Memory => "memory".to_owned(),
        Resource::Other => "other".to_owned(),
        Resource::Exposed(axis) => format!("exposed, {}", of(axis)),
        Resource::Links(axis) => format!("links, {}", of(axis)),
        Resource::Copies => "copies".to_owned(),
    }
}
