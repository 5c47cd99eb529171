//! Plays the schedule from the entry, with calls expanded where they are made.

use super::program::{Extent, Program};
use super::tracks::{MOST_LANES, Piece, Tracks, nanoseconds};
use super::{Options, Sample, Shown, Trace};
use crate::ir::{CallRole, ComputationId, Opcode, Row};
use crate::time::Resource;
use std::collections::BTreeMap;

/// A pending task; the last task in the list comes next. The stack is explicit, because the text
/// determines how deep calls nest.
enum Task {
    /// Plays a computation, starting with this row and stretch.
    Play { id: ComputationId, base: f64, row: u32, stretch: usize, depth: usize },
    /// Enters a computation, or aggregates it if it does not fit.
    Enter { caller: Row, id: ComputationId, base: f64, depth: usize },
    /// Samples live bytes of a call, after everything inside it.
    Sample { row: Row, at: f64 },
    /// Continues a loop with this iteration.
    Repeat { row: Row, at: f64, iteration: u64, depth: usize },
}

struct Player<'a> {
    program: &'a Program<'a>,
    extent: Extent,
    tracks: Tracks,
    samples: Vec<Sample>,
    /// By computation: whether it has been shown.
    seen: Vec<bool>,
    /// Rows and slices shown so far.
    played: u64,
    not_played: u64,
    tasks: Vec<Task>,
}

pub fn play(program: &Program<'_>, options: &Options) -> Trace {
    let module = program.module;
    let extent = program.extent(options.iterations);
    let loops = program.loops(extent.iterations);
    let mut player = Player {
        program,
        extent,
        tracks: Tracks::new(options.min_seconds),
        samples: Vec::new(),
        seen: vec![false; module.computations().len()],
        played: 0,
        not_played: 0,
        tasks: Vec::new(),
    };
    let entry = module.entry();
    let seconds = program.seconds(entry);
    let root = Row(module.computation(entry).root);
    player.tracks.nest(Piece::new(root, Resource::Called, 0.0, seconds).shown(Shown::Module), 0);
    player.tasks.push(Task::Enter { caller: root, id: entry, base: 0.0, depth: 1 });
    while let Some(task) = player.tasks.pop() {
        player.perform(task);
    }
    let (tracks, slices) = player.tracks.finish(&program.simulation.axes);
    Trace { tracks, slices, samples: player.samples, loops, not_played: player.not_played }
}

impl Player<'_> {
    fn perform(&mut self, task: Task) {
        match task {
            Task::Sample { row, at } => self.alive(row, at),
            Task::Enter { caller, id, base, depth } => self.enter(caller, id, base, depth),
            Task::Repeat { row, at, iteration, depth } => self.repeat(row, at, iteration, depth),
            Task::Play { id, base, row, stretch, depth } => {
                self.play(id, base, row, stretch, depth);
            }
        }
    }

    fn enter(&mut self, caller: Row, id: ComputationId, base: f64, depth: usize) {
        let computation = self.program.module.computation(id);
        let size = self.extent.sizes.get(id.0 as usize).copied().unwrap_or(0);
        let Some(seen) = self.seen.get_mut(id.0 as usize) else { return };
        // Every computation is shown at least once, which the text bounds.
        if *seen && self.played.saturating_add(size) > self.extent.limit {
            self.not_played += 1;
            self.whole(caller, &[(id, 1)], base, depth);
            return;
        }
        *seen = true;
        let stretches = self.program.recording.of(id.0).len();
        self.played += 1 + (computation.rows().len() + stretches) as u64;
        self.tasks.push(Task::Play { id, base, row: computation.rows().start, stretch: 0, depth });
    }

    /// Shows consecutive runs of computations as one slice per track.
    fn whole(&mut self, row: Row, runs: &[(ComputationId, u64)], begin: f64, depth: usize) {
        let program = self.program;
        let times = runs.iter().map(|run| run.1).max().unwrap_or(0);
        let length: f64 = runs.iter().map(|(id, times)| program.seconds(*id) * *times as f64).sum();
        let peak = runs.iter().map(|run| program.peak(run.0)).max().unwrap_or(0);
        self.sample(begin, peak);
        let shown = Shown::Rest(times);
        let piece = Piece::new(row, Resource::Called, begin, begin + length).shown(shown);
        self.tracks.nest(piece, depth);
        let mut sums: BTreeMap<Resource, f64> = BTreeMap::new();
        for (id, times) in runs {
            for (resource, seconds) in program.totals(*id) {
                *sums.entry(*resource).or_default() += seconds * *times as f64;
            }
        }
        for (resource, seconds) in sums {
            // Transfers that overlap or are never awaited may take longer than the whole, so they
            // are split over lanes.
            let mut rest = seconds;
            for _ in 0..MOST_LANES {
                let part = if rest > length * (1.0 + 1e-9) { length } else { rest };
                if part <= 0.0 {
                    break;
                }
                let piece = Piece::new(row, resource, begin, begin + part).shown(shown);
                self.tracks.add(Piece { seconds: part, ..piece });
                rest -= part;
            }
            if rest > 0.0 {
                self.tracks.leave_out(resource, rest);
            }
        }
    }

    fn repeat(&mut self, row: Row, at: f64, iteration: u64, depth: usize) {
        let program = self.program;
        let trips = program.trip_count(row).unwrap_or(1);
        let shown = program.shown(row, self.extent.iterations);
        let condition = program.module.called(row, CallRole::Condition);
        let body = program.module.called(row, CallRole::Body);
        let seconds = |id: Option<ComputationId>| id.map_or(0.0, |id| program.seconds(id));
        let length = seconds(condition) + seconds(body);
        let enter = |id, base, depth| Task::Enter { caller: row, id, base, depth };
        if iteration < shown {
            let piece = Piece::new(row, Resource::Called, at, at + length);
            self.tracks.nest(piece.shown(Shown::Iteration(iteration)), depth);
            let next = iteration + 1;
            self.tasks.push(Task::Repeat { row, at: at + length, iteration: next, depth });
            let begin = at + seconds(condition);
            self.tasks.extend(body.map(|id| enter(id, begin, depth + 1)));
            self.tasks.extend(condition.map(|id| enter(id, at, depth + 1)));
            return;
        }
        let rest = trips - shown;
        if rest > 0 {
            let runs: Vec<_> = condition.into_iter().chain(body).map(|id| (id, rest)).collect();
            self.whole(row, &runs, at, depth);
        }
        let end = at + length * rest as f64;
        self.tasks.extend(condition.map(|id| enter(id, end, depth)));
    }

    fn play(&mut self, id: ComputationId, base: f64, from: u32, first: usize, depth: usize) {
        let program = self.program;
        let stretches = program.recording.of(id.0);
        let mut next = first;
        for row in from..program.module.computation(id).end_row {
            let start = program.simulation.start.get(row as usize).copied().unwrap_or(0.0);
            let mut called = None;
            while let Some(stretch) = stretches.get(next).filter(|stretch| stretch.row == Row(row))
            {
                next += 1;
                let (begin, end) = (base + stretch.begin, base + stretch.end);
                let piece = Piece::from(stretch, base);
                if stretch.resource == Resource::Called {
                    self.tracks.nest(piece, depth);
                    called = Some((begin, end));
                } else {
                    self.tracks.add(piece);
                }
            }
            let Some((begin, end)) = called else {
                self.alive(Row(row), base + start);
                continue;
            };
            self.tasks.push(Task::Play { id, base, row: row + 1, stretch: next, depth });
            self.tasks.push(Task::Sample { row: Row(row), at: end });
            self.call(Row(row), begin, depth + 1);
            return;
        }
        for stretch in stretches.get(next..).unwrap_or_default() {
            self.tracks.add(Piece::from(stretch, base));
        }
    }

    fn call(&mut self, row: Row, begin: f64, depth: usize) {
        if self.program.module.opcode(row) == Opcode::While {
            self.tasks.push(Task::Repeat { row, at: begin, iteration: 0, depth });
            return;
        }
        let runs = self.program.calls(row);
        let mut base = begin;
        let first = self.tasks.len();
        for (id, _) in runs {
            self.tasks.push(Task::Enter { caller: row, id, base, depth });
            base += self.program.seconds(id);
        }
        if let Some(tasks) = self.tasks.get_mut(first..) {
            tasks.reverse();
        }
    }

    fn alive(&mut self, row: Row, at: f64) {
        if let Some(bytes) = self.program.alive(row) {
            self.sample(at, bytes);
        }
    }

    /// Keeps the highest and the last of several samples at one time.
    fn sample(&mut self, at: f64, bytes: i64) {
        if self.program.memory.is_none() {
            return;
        }
        let last = self.samples.last().copied();
        let at = nanoseconds(at).max(last.map_or(0, |last| last.at));
        if last.is_some_and(|last| last.bytes == bytes) {
            return;
        }
        if let [.., before, last] = self.samples.as_mut_slice()
            && before.at == at
            && last.at == at
        {
            before.bytes = before.bytes.max(last.bytes);
            last.bytes = bytes;
            return;
        }
        self.samples.push(Sample { at, bytes });
    }
}
