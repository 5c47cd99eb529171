//! Simulates the schedule: one compute unit, links by axis, transfers to and from other memories.
//! An asynchronous operation overlaps the rows between its start and its done; the done waits for
//! the remaining time, which counts as exposed. A wait for links that another collective occupies
//! counts as that collective's.

use super::communication::Communication;
use super::device::Device;
use super::host::host_bytes;
use super::links::{Flight, Links};
use super::place::Lane;
use super::recording::{Recording, Resource, Stretch};
use super::roofline::{Bound, Rows};
use super::simulation::Simulation;
use super::split::Split;
use super::transfer::Transfer;
use crate::comms::Collectives;
use crate::cost::Cost;
use crate::ir::{Call, CallRole, ComputationId, Module, Opcode, Row};
use std::collections::HashMap;

/// Plays the schedule of `module`. `communications` are the times of the collectives, in order.
pub fn simulate(
    module: &Module,
    cost: &Cost,
    device: &Device,
    rows: &Rows,
    collectives: &Collectives,
    communications: &[Communication],
) -> Simulation {
    play(module, cost, device, rows, collectives, communications, None).result
}

/// Plays the schedule of `module` as [`simulate`] does, and records how it spends its time.
pub fn record(
    module: &Module,
    cost: &Cost,
    device: &Device,
    rows: &Rows,
    collectives: &Collectives,
    communications: &[Communication],
) -> Recording {
    let ranges = vec![0..0; module.computations().len()];
    let empty = Recording { stretches: Vec::new(), ranges };
    let player = play(module, cost, device, rows, collectives, communications, Some(empty));
    player.recording.unwrap_or_default()
}

fn play<'a>(
    module: &'a Module,
    cost: &'a Cost,
    device: &Device,
    rows: &'a Rows,
    collectives: &'a Collectives,
    communications: &[Communication],
    recording: Option<Recording>,
) -> Player<'a> {
    let count = module.row_count();
    let mut player = Player {
        module,
        cost,
        rows,
        copy_rate: device.share(device.hbm_bandwidth),
        host_rate: rows.host_bytes_per_second,
        copies_compete: device.is_gpu,
        transfers: vec![Transfer::None; count],
        further: HashMap::new(),
        result: Simulation {
            computations: vec![Split::default(); module.computations().len()],
            start: vec![0.0; count],
            end: vec![0.0; count],
            exposed: vec![0.0; count],
            taken: vec![0.0; count],
            collectives: vec![(0.0, 0.0); communications.len()],
            queued: vec![0.0; communications.len()],
            ..Simulation::default()
        },
        axis_of: Vec::new(),
        lanes: communications.iter().map(|entry| entry.lane).collect(),
        busy: vec![Vec::new(); module.computations().len()],
        loose: vec![Vec::new(); module.computations().len()],
        seconds: communications.iter().map(|entry| entry.estimate.seconds).collect(),
        last_of_channel: HashMap::new(),
        collectives,
        recording,
    };
    player.prepare(communications);
    for id in module.computation_post_order().iter().copied() {
        player.computation(id);
    }
    let entry = module.entry().0 as usize;
    player.result.step = player.result.computations.get(entry).cloned().unwrap_or_default();
    player.result.step.exposed.resize(player.result.axes.len(), 0.0);
    player.result.executions = player.executions(1);
    player.leave_out_transfers();
    player
}

/// Limit on distinct axes; the rest share links.
const MOST_AXES: usize = 64;
const OTHER_AXES: &str = "other axes";

struct Player<'a> {
    module: &'a Module,
    cost: &'a Cost,
    rows: &'a Rows,
    copy_rate: Option<f64>,
    /// Bytes per second of the link to the host, in one direction.
    host_rate: Option<f64>,
    /// Whether asynchronous copies within HBM slow the kernels beside them by as much as they take.
    copies_compete: bool,
    transfers: Vec<Transfer>,
    /// Further collectives of rows that already have one in `transfers`.
    further: HashMap<Row, Vec<u32>>,
    result: Simulation,
    /// By collective: index of its axes.
    axis_of: Vec<usize>,
    /// By collective: the directions of the links that it occupies.
    lanes: Vec<Lane>,
    /// By computation, axis and direction: seconds in which one run occupies the links.
    busy: Vec<Vec<[f64; 2]>>,
    /// By computation and axis: seconds of transfers that a caller waits for.
    loose: Vec<Vec<f64>>,
    seconds: Vec<f64>,
    /// By start row of an asynchronous copy: when the copy ends.
    last_of_channel: HashMap<u32, f64>,
    collectives: &'a Collectives,
    /// The record of the use of time, if requested.
    recording: Option<Recording>,
}

impl Player<'_> {
    fn prepare(&mut self, communications: &[Communication]) {
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let collectives = &self.collectives.collectives;
        for (number, (collective, entry)) in collectives.iter().zip(communications).enumerate() {
            let axes = &mut self.result.axes;
            let axis = *numbers.entry(&entry.axes).or_insert_with(|| {
                if axes.len() < MOST_AXES {
                    axes.push(entry.axes.clone());
                } else if axes.len() == MOST_AXES {
                    axes.push(OTHER_AXES.to_owned());
                }
                axes.len() - 1
            });
            self.axis_of.push(axis);
            if let Some(entry) = self.result.collectives.get_mut(number) {
                entry.0 = self.seconds.get(number).copied().unwrap_or(0.0);
            }
            let number = number as u32;
            let outer = collective.outer;
            let Some(place) = self.transfers.get_mut(outer.0 as usize) else { continue };
            if *place != Transfer::None {
                // A fusion may contain several collectives; all but the first run together with it.
                self.further.entry(outer).or_default().push(number);
                continue;
            }
            let Some(done) = collective.done else {
                let members = collective.members.start as usize..collective.members.end as usize;
                let members = self.collectives.members.get(members).unwrap_or_default();
                let is_receive = |row: &&Row| self.module.opcode(**row) == Opcode::Recv;
                let is_sent = self.module.opcode(outer) == Opcode::Send;
                let receives = members.iter().filter(is_receive).filter(|_| is_sent);
                let users = receives.flat_map(|row| self.module.users().get(row.0));
                let waits: Vec<u32> = users.copied().collect();
                *place = Transfer::Now(number);
                if !waits.is_empty() {
                    *place = Transfer::LetGo(number);
                }
                for row in waits {
                    if let Some(place) = self.transfers.get_mut(row as usize) {
                        *place = Transfer::Await(number);
                    }
                }
                continue;
            };
            *place = Transfer::Start(number);
            if let Some(place) = self.transfers.get_mut(done.0 as usize) {
                *place = Transfer::Done(number);
            }
        }
    }

    /// Records a stretch of time; drops empty stretches, except of loops, conditionals and calls.
    fn keep(&mut self, row: Row, resource: Resource, begin: f64, end: f64) {
        self.keep_of(row, None, resource, begin, end);
    }

    fn keep_of(
        &mut self,
        row: Row,
        collective: Option<u32>,
        resource: Resource,
        begin: f64,
        end: f64,
    ) {
        if let Some(recording) = &mut self.recording
            && (end > begin || resource == Resource::Called)
        {
            recording.stretches.push(Stretch { row, collective, resource, begin, end });
        }
    }

    fn computation(&mut self, id: ComputationId) {
        let first = self.recording.as_ref().map_or(0, |recording| recording.stretches.len());
        let calls = self.module.calls_within(id);
        let calls: &[Call] = self.module.all_calls().get(calls).unwrap_or_default();
        let mut play = Play {
            clock: 0.0,
            links: Links::new(self.result.axes.len()),
            copies: 0.0,
            host: [0.0; 2],
            split: Split::default(),
            calls,
        };
        for row in self.module.computation(id).rows() {
            let row = Row(row);
            let begin = play.clock;
            let end = self.row(row, &mut play);
            if let Some(start) = self.result.start.get_mut(row.0 as usize) {
                *start = begin;
            }
            if let Some(place) = self.result.end.get_mut(row.0 as usize) {
                *place = end.max(play.clock);
            }
        }
        // Transfers without a done in this computation end before the caller continues.
        for (number, flight) in play.links.rest() {
            self.wait_for(None, number, flight, &mut play);
        }
        if let Some(place) = self.busy.get_mut(id.0 as usize) {
            *place = std::mem::take(&mut play.links.busy);
        }
        if let Some(place) = self.loose.get_mut(id.0 as usize) {
            *place = std::mem::take(&mut play.links.loose);
        }
        if let Some(recording) = &mut self.recording
            && let Some(range) = recording.ranges.get_mut(id.0 as usize)
        {
            *range = first as u32..recording.stretches.len() as u32;
        }
        if let Some(place) = self.result.computations.get_mut(id.0 as usize) {
            *place = play.split;
        }
    }

    /// Plays one row; returns when the transfer it starts ends, or when the row ends.
    fn row(&mut self, row: Row, play: &mut Play<'_>) -> f64 {
        let at = row.0 as usize;
        let opcode = self.module.opcode(row);
        let own = self.rows.seconds.get(at).copied().unwrap_or(0.0);
        for number in self.further.get(&row).cloned().unwrap_or_default() {
            self.exchange(row, number, play);
        }
        match self.transfers.get(at).copied().unwrap_or(Transfer::None) {
            Transfer::Start(number) => {
                let flight = self.take(number, play);
                play.links.start(number, flight);
                let links = Resource::Links(flight.axis as u16);
                self.keep_of(row, Some(number), links, flight.begin, flight.end);
                return flight.end;
            }
            Transfer::LetGo(number) => {
                let flight = self.take(number, play);
                play.links.let_go(flight);
                let links = Resource::Links(flight.axis as u16);
                self.keep_of(row, Some(number), links, flight.begin, flight.end);
                return flight.end;
            }
            Transfer::Await(number) => {
                let flight = self.flight_from(number, play.clock);
                let end = play.links.all_free(flight.axis).max(play.clock);
                self.wait_for(Some(row), number, Flight { end, ..flight }, play);
                return play.clock;
            }
            Transfer::Done(number) => {
                // If the start is elsewhere, for example in the previous iteration, the full
                // duration counts.
                let flight = match play.links.land(number) {
                    Some(flight) => flight,
                    None => self.flight_from(number, play.clock),
                };
                self.wait_for(Some(row), number, flight, play);
                return play.clock;
            }
            Transfer::Now(number) => {
                self.exchange(row, number, play);
                return play.clock;
            }
            Transfer::None => {}
        }
        match opcode {
            Opcode::CopyStart | Opcode::AsyncStart => {
                if let Some((lane, seconds)) = self.moved_to_host(row) {
                    let begin = play.clock.max(play.host[lane]);
                    let end = begin + seconds;
                    play.host[lane] = end;
                    self.keep(row, Resource::Copies, begin, end);
                    self.last_of_channel.insert(row.0, end);
                    return end;
                }
                let begin = play.clock.max(play.copies);
                let end = begin + self.copied(row);
                if self.copies_compete && opcode == Opcode::AsyncStart {
                    let taken = end - play.clock;
                    play.clock = end;
                    play.split.seconds += taken;
                    play.split.memory += taken;
                    self.take_time(row, taken);
                }
                play.copies = end;
                self.keep(row, Resource::Copies, begin, end);
                self.last_of_channel.insert(row.0, end);
                end
            }
            Opcode::CopyDone | Opcode::AsyncDone => {
                let start = self.module.operands(row).first().copied();
                let end = start.and_then(|start| self.last_of_channel.get(&start).copied());
                let waited = end.map_or(0.0, |end| (end - play.clock).max(0.0));
                self.keep(row, Resource::Memory, play.clock, play.clock + waited);
                play.clock += waited;
                play.split.seconds += waited;
                play.split.memory += waited;
                self.take_time(row, waited);
                play.clock
            }
            Opcode::While | Opcode::Conditional | Opcode::Call => {
                let begin = play.clock;
                match opcode {
                    Opcode::While => self.repeat(row, play),
                    Opcode::Conditional => self.branch(row, play),
                    _ => {
                        for call in calls_of(play.calls, row) {
                            self.enter(call.computation, 1.0, play);
                        }
                    }
                }
                self.keep(row, Resource::Called, begin, play.clock);
                play.clock
            }
            _ => {
                let begin = play.clock;
                play.clock += own;
                play.split.seconds += own;
                self.take_time(row, own);
                let bound = self.rows.bound.get(at).copied().unwrap_or_default();
                let (sum, resource) = match bound {
                    Bound::Compute => (&mut play.split.compute, Resource::Compute),
                    Bound::Memory => (&mut play.split.memory, Resource::Memory),
                    _ => (&mut play.split.other, Resource::Other),
                };
                *sum += own;
                self.keep(row, resource, begin, play.clock);
                play.clock
            }
        }
    }

    /// The flight of collective `number` if it begins at `begin`.
    fn flight_from(&self, number: u32, begin: f64) -> Flight {
        let at = number as usize;
        let end = begin + self.seconds.get(at).copied().unwrap_or(0.0);
        let axis = self.axis_of.get(at).copied().unwrap_or(0);
        Flight { axis, lane: self.lanes.get(at).copied().unwrap_or_default(), begin, end }
    }

    /// Occupies links for collective `number` as soon as they are free.
    fn take(&self, number: u32, play: &mut Play<'_>) -> Flight {
        let Flight { axis, lane, begin, end } = self.flight_from(number, 0.0);
        play.links.take(axis, lane, play.clock, end - begin)
    }

    /// Runs collective `number` synchronously.
    fn exchange(&mut self, row: Row, number: u32, play: &mut Play<'_>) {
        let flight = self.take(number, play);
        let links = Resource::Links(flight.axis as u16);
        self.keep_of(row, Some(number), links, flight.begin, flight.end);
        self.wait_for(Some(row), number, flight, play);
    }

    /// Takes nothing of the step for computations of asynchronous transfers: they run beside it.
    fn leave_out_transfers(&mut self) {
        let played = self.executions(0);
        for (id, (runs, played)) in (0..).zip(self.result.executions.iter().zip(played)) {
            if *runs == played {
                continue;
            }
            let rows = self.module.computation(ComputationId(id)).rows();
            let share = if *runs > 0 { played as f64 / *runs as f64 } else { 0.0 };
            for taken in self
                .result
                .taken
                .get_mut(rows.start as usize..rows.end as usize)
                .into_iter()
                .flatten()
            {
                *taken *= share;
            }
        }
    }

    /// How often each computation runs; an asynchronous transfer runs its own `transfers` times.
    fn executions(&self, transfers: u64) -> Vec<u64> {
        let mut counts = vec![0u64; self.module.computations().len()];
        let mut longest: HashMap<Row, ComputationId> =
            self.result.branches.iter().copied().collect();
        if let Some(entry) = counts.get_mut(self.module.entry().0 as usize) {
            *entry = 1;
        }
        for id in self.module.computation_post_order().iter().copied().rev() {
            let runs = counts.get(id.0 as usize).copied().unwrap_or(0);
            let calls = self.module.calls_within(id);
            for call in self.module.all_calls().get(calls).unwrap_or_default() {
                let times = match self.module.opcode(call.row) {
                    Opcode::Call => 1,
                    Opcode::AsyncStart => transfers,
                    Opcode::While => {
                        let trips = self.trips(call.row).unwrap_or(1);
                        let is_condition = call.role == CallRole::Condition;
                        trips.saturating_add(u64::from(is_condition))
                    }
                    // If two branches share a computation, it still runs once.
                    Opcode::Conditional if longest.get(&call.row) == Some(&call.computation) => {
                        longest.remove(&call.row);
                        1
                    }
                    _ => 0,
                };
                if let Some(count) = counts.get_mut(call.computation.0 as usize) {
                    *count = count.saturating_add(runs.saturating_mul(times));
                }
            }
        }
        counts
    }

    fn trips(&self, row: Row) -> Option<u64> {
        let loops = &self.cost.loops;
        let at = loops.binary_search_by_key(&row, |entry| entry.row).ok()?;
        loops.get(at)?.trip_count.count
    }

    /// Waits for the end of `flight`. Until it begins, the collectives before it on its links are
    /// waited for.
    fn wait_for(&mut self, row: Option<Row>, number: u32, flight: Flight, play: &mut Play<'_>) {
        for (other, seconds) in play.links.queue(flight, play.clock) {
            let place = self.collectives.collectives.get(other as usize);
            let done = place.map(|place| place.done.unwrap_or(place.outer));
            self.wait(done, other, flight.axis, seconds, play);
        }
        let seconds = (flight.end - play.clock).max(0.0);
        let own = self.seconds.get(number as usize).copied().unwrap_or(0.0);
        if let Some(queued) = self.result.queued.get_mut(number as usize) {
            *queued += (seconds - own).max(0.0);
        }
        self.wait(row, number, flight.axis, seconds, play);
    }

    fn wait(
        &mut self,
        row: Option<Row>,
        number: u32,
        axis: usize,
        seconds: f64,
        play: &mut Play<'_>,
    ) {
        let end = play.clock + seconds;
        let row = row.or_else(|| Some(self.collectives.collectives.get(number as usize)?.outer));
        if let Some(row) = row {
            self.keep_of(row, Some(number), Resource::Exposed(axis as u16), play.clock, end);
            self.take_time(row, seconds);
        }
        play.clock = end;
        play.split.wait(axis, seconds);
        if let Some(entry) = self.result.collectives.get_mut(number as usize) {
            entry.1 += seconds;
        }
        let place = row.and_then(|row| self.result.exposed.get_mut(row.0 as usize));
        if let Some(place) = place {
            *place += seconds;
        }
    }

    /// One run of its computation spends `seconds` in `row`.
    fn take_time(&mut self, row: Row, seconds: f64) {
        if let Some(sum) = self.result.taken.get_mut(row.0 as usize) {
            *sum += seconds;
        }
    }

    /// The direction and the seconds of an asynchronous copy or slice between the device and its host;
    /// None if it is another one, or the bandwidth is unknown.
    fn moved_to_host(&self, row: Row) -> Option<(usize, f64)> {
        let (lane, bytes) = host_bytes(self.module, row)?;
        Some((lane, bytes as f64 / self.host_rate?))
    }

    /// Seconds of an asynchronous copy or slice at HBM bandwidth.
    fn copied(&self, row: Row) -> f64 {
        let Some(rate) = self.copy_rate else { return 0.0 };
        let moved = |row: u32| {
            let of = |column: &[i64]| column.get(row as usize).copied().unwrap_or(0) as f64;
            of(&self.cost.bytes_read) + of(&self.cost.bytes_written)
        };
        let mut bytes = moved(self.module.users().get(row.0).first().copied().unwrap_or(row.0));
        if self.module.opcode(row) == Opcode::AsyncStart {
            let called = |role| self.module.called(row, role);
            let is_open = self.copies_compete && bytes == 0.0;
            let wrapped = || called(CallRole::Wrapped).filter(|_| is_open);
            let body = called(CallRole::Calls).or_else(wrapped);
            let rows = body.map(|body| self.module.computation(body).rows());
            bytes += rows.into_iter().flatten().map(moved).sum::<f64>();
        }
        bytes / rate
    }

    fn enter(&self, id: ComputationId, times: f64, play: &mut Play<'_>) {
        if let Some(split) = self.result.computations.get(id.0 as usize) {
            let span = split.seconds * times;
            let busy = self.busy.get(id.0 as usize).map(Vec::as_slice).unwrap_or_default();
            play.links.share(play.clock, span, busy, times);
            let loose = self.loose.get(id.0 as usize).map(Vec::as_slice).unwrap_or_default();
            play.links.follow(play.clock, loose, times);
            play.clock += span;
            play.split.add(split, times);
        }
    }

    fn repeat(&mut self, row: Row, play: &mut Play<'_>) {
        let count = self.trips(row);
        if count.is_none() {
            self.result.open_loops.push(row);
        }
        let times = count.map_or(1.0, |count| count as f64);
        for call in calls_of(play.calls, row) {
            match call.role {
                CallRole::Condition => self.enter(call.computation, times + 1.0, play),
                _ => self.enter(call.computation, times, play),
            }
        }
    }

    fn branch(&mut self, row: Row, play: &mut Play<'_>) {
        let seconds = |call: &Call| {
            let split = self.result.computations.get(call.computation.0 as usize);
            split.map_or(0.0, |split| split.seconds)
        };
        let mut longest: Option<&Call> = None;
        for call in calls_of(play.calls, row) {
            if longest.is_none_or(|best| seconds(call) > seconds(best)) {
                longest = Some(call);
            }
        }
        if let Some(call) = longest {
            self.result.branches.push((row, call.computation));
            self.enter(call.computation, 1.0, play);
        }
    }
}

/// The state of the computation being played.
struct Play<'a> {
    clock: f64,
    links: Links,
    /// When the copy engine is free.
    copies: f64,
    /// When the link to the host is free, by direction.
    host: [f64; 2],
    split: Split,
    /// Calls of the computation, ascending by row.
    calls: &'a [Call],
}

fn calls_of<'a>(calls: &'a [Call], row: Row) -> impl Iterator<Item = &'a Call> + 'a {
    let start = calls.partition_point(|call| call.row.0 < row.0);
    let rest = calls.get(start..).unwrap_or_default();
    rest.iter().take_while(move |call| call.row == row)
}
