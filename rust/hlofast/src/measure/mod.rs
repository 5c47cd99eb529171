//! What a profile measured of a module: seconds of each instruction, and where the time of a step
//! went.
//!
//! Start at [`measure`]. `join.rs` finds the module's program and the row that each event names,
//! `runs.rs` the runs of the program on each device, `parts.rs` divides the time of one run, and
//! `rows.rs` sums by instruction. Figures of "the step" are those of the run of median length on
//! each device, averaged over devices: they belong to one run, so parts add up to the whole.

mod join;
mod parts;
mod rows;
mod runs;
mod spans;

pub use parts::{AxisTime, Parts};
pub use rows::RowTimes;

use crate::comms::Collectives;
use crate::ir::{Module, Opcode, Row};
use crate::profile::{NONE, Profile, TrackKind};
use join::Joined;
use std::collections::HashMap;

/// Seconds in a picosecond.
const PICOSECOND: f64 = 1e-12;

/// One run of the program on one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Index in [`Profile::devices`].
    pub device: u32,
    /// Begin, on the clock of the device's host.
    pub start_ps: i64,
    /// Length: from the begin of the first event to the end of the last.
    pub duration_ps: i64,
    /// Time since the end of the previous run on this device; None for the first.
    pub gap_ps: Option<i64>,
    /// What the time was spent on.
    pub parts: Parts,
}

/// Events in runs of the program that name no instruction of the module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unjoined {
    /// The name of the events.
    pub label: String,
    /// How many there are.
    pub events: u64,
    /// Their time, in seconds, summed over runs and devices.
    pub seconds: f64,
}

/// What a profile says about one module.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Index of the module's program in [`Profile::programs`].
    pub program: u32,
    /// Its runs, by device and start.
    pub runs: Vec<Run>,
    /// Index in `runs` of the run of median length on each device.
    pub typical: Vec<u32>,
    /// The parts of the step, by collective axes; see [`measure`].
    pub step: Parts,
    /// Times of each instruction.
    pub rows: RowTimes,
    /// By collective: seconds in the step from its start to its end, and the part of them that no
    /// computation hides; NaN if no event belongs to it.
    pub collectives: Vec<(f64, f64)>,
    /// Device time of events in runs that name an instruction, in seconds over all runs.
    pub joined_seconds: f64,
    /// Device time of all events in runs.
    pub device_seconds: f64,
    /// Time of events of this program outside runs: runs that the profile cut off.
    pub outside_seconds: f64,
    /// Events that name no instruction, longest first.
    pub unjoined: Vec<Unjoined>,
}

/// What an event is, for the parts of a run. Time in which several things happen belongs to the
/// first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Compute,
    Communication,
    Copy,
    Control,
}

/// An event of one run.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: i64,
    end: i64,
    row: u32,
    /// Index of the collective, or [`NONE`].
    collective: u32,
    class: Class,
    /// Whether it lies on a track of asynchronous operations, whose time other tracks also show.
    is_async: bool,
}

/// Measures `module` in `profile`; `program` says which of its programs the module is, otherwise
/// [`Measured::program`] is found by name and instructions. `axes` gives the mesh axes of each
/// collective as text, empty if unknown. None if no event names an instruction of the module.
pub fn measure(
    module: &Module,
    collectives: &Collectives,
    axes: &[&str],
    profile: &Profile,
    program: Option<u32>,
) -> Option<Measured> {
    let joined = join::join(module, profile, program)?;
    let mut runs = runs::runs(module, profile, &joined);
    let kinds = Kinds::new(module, collectives);
    let mut measured = Measured { program: joined.program, ..Measured::default() };
    let mut inside = assign(profile, &joined, &kinds, &runs, &mut measured);

    let axes = parts::Axes::new(axes);
    measured.typical = typical(&runs);
    let mut is_typical = vec![false; runs.len()];
    for run in &measured.typical {
        is_typical[*run as usize] = true;
    }
    let waits_inside = parts::without_transfers(profile);
    let mut sums = rows::Sums::default();
    let mut waits = parts::Waits::new(collectives.collectives.len());
    for (number, pieces) in inside.iter_mut().enumerate() {
        let run = &mut runs[number];
        if waits_inside.get(run.device as usize).copied().unwrap_or(false) {
            parts::add_transfers(pieces, collectives);
        }
        let own = parts::own_times(pieces);
        sums.add(number as u32, pieces, &own);
        let waits = is_typical[number].then_some(&mut waits);
        run.parts = parts::parts(pieces, run, &axes, waits);
    }
    measured.step = parts::mean(measured.typical.iter().map(|run| &runs[*run as usize].parts));
    measured.collectives = waits.mean(measured.typical.len());
    measured.rows = sums.rows(module.row_count(), runs.len(), &is_typical);
    measured.runs = runs;
    Some(measured)
}

/// The run of median length on each device; of two in the middle the shorter.
fn typical(runs: &[Run]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..runs.len() as u32).collect();
    order.sort_by_key(|at| {
        let run = &runs[*at as usize];
        (run.device, run.duration_ps, run.start_ps)
    });
    let mut typical = Vec::new();
    for same in order.chunk_by(|a, b| runs[*a as usize].device == runs[*b as usize].device) {
        typical.push(same[(same.len() - 1) / 2]);
    }
    typical
}

/// By row: what its events are.
struct Kinds {
    classes: Vec<Class>,
    collectives: Vec<u32>,
    /// By collective: its instruction and its scheduled row.
    outer: Vec<(u32, u32)>,
}

impl Kinds {
    fn new(module: &Module, collectives: &Collectives) -> Kinds {
        let mut classes: Vec<Class> = module.rows().map(|row| class_of(module, row)).collect();
        let mut owners = vec![NONE; classes.len()];
        for (number, collective) in collectives.collectives.iter().enumerate() {
            let members = collectives
                .members
                .get(collective.members.start as usize..collective.members.end as usize);
            let members = members.unwrap_or_default().iter().copied();
            for row in members.chain([collective.row, collective.outer]).chain(collective.done) {
                // A fusion that computes while it communicates computes; XLA hides the collective
                // behind it.
                let is_mixed = module.opcode(row) == Opcode::Fusion && collective.done.is_some();
                if let (Some(class), false) = (classes.get_mut(row.0 as usize), is_mixed) {
                    *class = Class::Communication;
                }
                if let Some(owner) = owners.get_mut(row.0 as usize)
                    && *owner == NONE
                {
                    *owner = number as u32;
                }
            }
        }
        let outer = collectives.collectives.iter().map(|each| (each.row.0, each.outer.0));
        Kinds { classes, collectives: owners, outer: outer.collect() }
    }

    /// The scheduled row of an instruction inside an asynchronous computation, which carries the
    /// names that the instruction itself often lacks; other rows unchanged.
    fn scheduled(&self, row: u32, collective: u32) -> u32 {
        let wrapped = self.outer.get(collective as usize).filter(|(inner, _)| *inner == row);
        wrapped.map_or(row, |(_, outer)| *outer)
    }
}

fn class_of(module: &Module, row: Row) -> Class {
    match module.opcode(row) {
        Opcode::While | Opcode::Conditional | Opcode::Call => Class::Control,
        Opcode::CopyStart | Opcode::CopyDone | Opcode::Infeed | Opcode::Outfeed => Class::Copy,
        _ => Class::Compute,
    }
}

/// The class of an event that names no instruction, by the names that CUDA and NCCL give.
fn class_of_label(label: &str) -> Class {
    let label = label.to_ascii_lowercase();
    match label.as_str() {
        _ if label.contains("nccl") => Class::Communication,
        _ if label.contains("memcpy") => Class::Copy,
        _ => Class::Compute,
    }
}

/// The events of each run; those of no run and of no instruction are counted in `measured`.
fn assign(
    profile: &Profile,
    joined: &Joined,
    kinds: &Kinds,
    runs: &[Run],
    measured: &mut Measured,
) -> Vec<Vec<Piece>> {
    let events = &profile.events;
    let mut inside: Vec<Vec<Piece>> = vec![Vec::new(); runs.len()];
    let mut unjoined: HashMap<u32, (u64, f64)> = HashMap::new();
    for at in 0..events.len() {
        let program = events.program[at];
        if program != joined.program && program != NONE {
            continue;
        }
        let track = &profile.tracks[events.track[at] as usize];
        let (start, length) = (events.start_ps[at], events.duration_ps[at].max(0));
        let seconds = length as f64 * PICOSECOND;
        let next = runs.partition_point(|run| (run.device, run.start_ps) <= (track.device, start));
        let run = next.checked_sub(1).filter(|at| {
            let run = &runs[*at];
            run.device == track.device && start.saturating_sub(run.start_ps) < run.duration_ps
        });
        let Some(run) = run else {
            if program == joined.program && track.kind != TrackKind::Async {
                measured.outside_seconds += seconds;
            }
            continue;
        };
        let row = joined.row(events.op[at]);
        let is_async = track.kind == TrackKind::Async;
        let (class, collective) = match row {
            NONE => {
                let label = profile.names.get(events.label[at]).unwrap_or_default();
                (class_of_label(label), NONE)
            }
            row => (kinds.classes[row as usize], kinds.collectives[row as usize]),
        };
        let row = kinds.scheduled(row, collective);
        if row == NONE {
            let entry = unjoined.entry(events.label[at]).or_default();
            *entry = (entry.0 + 1, entry.1 + seconds);
        }
        if !is_async && class != Class::Control {
            measured.device_seconds += seconds;
            if row != NONE {
                measured.joined_seconds += seconds;
            }
        }
        let end = start.saturating_add(length);
        inside[run].push(Piece { start, end, row, collective, class, is_async });
    }
    measured.unjoined = unjoined
        .into_iter()
        .map(|(label, (events, seconds))| Unjoined {
            label: profile.names.get(label).unwrap_or_default().to_owned(),
            events,
            seconds,
        })
        .collect();
    measured
        .unjoined
        .sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.label.cmp(&b.label)));
    inside
}
