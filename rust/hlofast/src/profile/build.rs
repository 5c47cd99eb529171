//! Builds a [`Profile`] from what a reader finds, whatever the format.

use super::events::{
    DeviceKind, Launch, NONE, Profile, ProfiledDevice, Program, Step, Track, TrackKind,
};
use crate::error::{ErrorKind, ParseError, Result};
use crate::text::Span;
use std::collections::HashMap;

/// Most events of devices in one profile. Each takes 32 bytes; a step of a large model on one
/// device has some 10,000.
const MOST_EVENTS: usize = 1 << 26;

/// Most devices in one profile.
const MOST_DEVICES: usize = 1 << 18;

/// Bound of times in picoseconds (53 days), so that sums of a time and a length fit 64 bits.
const BOUND: i64 = 1 << 62;

/// Collects devices, tracks, programs and events of several hosts.
#[derive(Debug, Default)]
pub(super) struct Builder {
    pub(super) profile: Profile,
    devices: HashMap<(u32, Box<str>), u32>,
    tracks: HashMap<(u32, Box<str>, bool), u32>,
    /// Programs by number and name; the first of a number has that under the empty name too.
    by_id: HashMap<u64, HashMap<Box<str>, u32>>,
    /// The first program of a name.
    by_name: HashMap<Box<str>, u32>,
    /// Executions on CPU devices: device, program and run, with a place in `spans`.
    runs: HashMap<Run, u32>,
    /// First begin and last end of each run.
    spans: Vec<(i64, i64)>,
    /// The run of the event before, which most events share.
    last_run: Option<(Run, u32)>,
    /// Begun operations of CPU devices, with the number by which their end refers to them.
    begun: Vec<(Referred, Begun)>,
    ended: Vec<(Referred, u32, i64)>,
}

/// Device, program and number of an execution.
type Run = (u32, u32, u64);

/// Host, type and number with which one event refers to another.
type Referred = (u32, i64, i64);

/// An operation of a CPU device that may end on another thread.
#[derive(Clone, Copy, Debug)]
struct Begun {
    name: u32,
    device: u32,
    program: u32,
    start: i64,
    end: i64,
}

/// What the stats of an event on a thread of a host say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThreadEvent {
    pub(super) op: Option<u32>,
    pub(super) program: Option<u32>,
    pub(super) device: Option<i64>,
    pub(super) run: Option<u64>,
    /// Type and number with which a later event refers to this one.
    pub(super) produces: Option<(i64, i64)>,
    pub(super) start: i64,
    pub(super) duration: i64,
}

/// The CPU devices of which a thread runs operations: number, device and track.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadTracks {
    seen: Option<(i64, u32, u32)>,
    all: HashMap<i64, (u32, u32)>,
}

impl Builder {
    /// Adds a host.
    pub(super) fn host(&mut self, name: &str) -> u32 {
        self.profile.hosts.push(name.into());
        self.profile.hosts.len() as u32 - 1
    }

    /// The device `name` of `host`.
    pub(super) fn device(
        &mut self,
        host: u32,
        name: &str,
        ordinal: Option<u32>,
        kind: DeviceKind,
    ) -> u32 {
        if let Some(device) = self.devices.get(&(host, Box::from(name))) {
            return *device;
        }
        let device = self.profile.devices.len() as u32;
        let chip = None;
        self.profile.devices.push(ProfiledDevice { host, name: name.into(), ordinal, kind, chip });
        self.devices.insert((host, name.into()), device);
        device
    }

    /// The track `name` of `device`.
    pub(super) fn track(&mut self, device: u32, name: &str, kind: TrackKind) -> u32 {
        let key = (device, Box::from(name), kind == TrackKind::Async);
        if let Some(track) = self.tracks.get(&key) {
            return *track;
        }
        let track = self.profile.tracks.len() as u32;
        self.profile.tracks.push(Track { device, name: name.into(), kind });
        self.tracks.insert(key, track);
        track
    }

    /// The program of this name and number; an empty name is one that another place gives.
    pub(super) fn program(&mut self, name: &str, id: Option<u64>) -> u32 {
        let programs = &mut self.profile.programs;
        let next = programs.len() as u32;
        let Some(id) = id else {
            if let Some(program) = self.by_name.get(name) {
                return *program;
            }
            self.by_name.insert(name.into(), next);
            programs.push(Program { name: name.into(), id: None });
            return next;
        };
        let same = self.by_id.entry(id).or_default();
        if let Some(program) = same.get(name) {
            return *program;
        }
        let first = same.get("").copied();
        let unnamed = first.filter(|first| programs[*first as usize].name.is_empty());
        let program = unnamed.unwrap_or(next);
        match unnamed {
            Some(first) => programs[first as usize].name = name.into(),
            None => programs.push(Program { name: name.into(), id: Some(id) }),
        }
        if first.is_none() {
            same.insert("".into(), program);
        }
        same.insert(name.into(), program);
        self.by_name.entry(name.into()).or_insert(program);
        program
    }

    /// Adds an event of a device.
    pub(super) fn event(
        &mut self,
        track: u32,
        program: u32,
        op: u32,
        label: u32,
        (start, duration): (i64, i64),
    ) -> Result<()> {
        let is_too_large = self.profile.events.len() >= MOST_EVENTS;
        if is_too_large || self.profile.devices.len() > MOST_DEVICES {
            return Err(too_large(is_too_large));
        }
        let (start, duration) = (bounded(start), bounded(duration.max(0)));
        self.profile.events.push(track, program, op, label, start, duration);
        Ok(())
    }

    /// Adds an execution of a program.
    pub(super) fn launch(
        &mut self,
        device: u32,
        program: u32,
        (start, duration): (i64, i64),
        run: Option<u64>,
    ) {
        let (start_ps, duration_ps) = (bounded(start), bounded(duration.max(0)));
        self.profile.launches.push(Launch { device, program, start_ps, duration_ps, run });
    }

    /// Adds a step.
    pub(super) fn step(
        &mut self,
        host: u32,
        device: Option<u32>,
        number: Option<i64>,
        (start, duration): (i64, i64),
    ) {
        let (start_ps, duration_ps) = (bounded(start), bounded(duration.max(0)));
        self.profile.steps.push(Step { host, device, number, start_ps, duration_ps });
    }

    /// Adds an operation of a CPU device, found on the thread `thread` of `host`. `last` keeps the
    /// devices of the thread.
    pub(super) fn thread_event(
        &mut self,
        host: u32,
        thread: &str,
        last: &mut ThreadTracks,
        event: &ThreadEvent,
    ) -> Result<()> {
        let Some(op) = event.op else { return Ok(()) };
        let ordinal = event.device.unwrap_or(0);
        let (device, track) = match last.seen {
            Some((seen, device, track)) if seen == ordinal => (device, track),
            _ => match last.all.get(&ordinal) {
                Some(known) => *known,
                None => {
                    let number = u32::try_from(ordinal).ok();
                    let name = format!("/device:CPU:{ordinal}");
                    let device = self.device(host, &name, number, DeviceKind::Cpu);
                    let track = self.track(device, thread, TrackKind::Ops);
                    last.all.insert(ordinal, (device, track));
                    (device, track)
                }
            },
        };
        last.seen = Some((ordinal, device, track));
        let program = event.program.unwrap_or(NONE);
        let (start, end) = self.span(event.start, event.duration);
        self.event(track, program, op, op, (start, end - start))?;
        if let (Some(run), true) = (event.run, program != NONE) {
            self.add_to_run((device, program, run), start, end);
        }
        if let Some((kind, number)) = event.produces {
            let begun = Begun { name: op, device, program, start, end };
            self.begun.push(((host, kind, number), begun));
        }
        Ok(())
    }

    /// Extends an execution by an event.
    fn add_to_run(&mut self, run: Run, start: i64, end: i64) {
        let at = match self.last_run {
            Some((last, at)) if last == run => at,
            _ => {
                let spans = &mut self.spans;
                let at = *self.runs.entry(run).or_insert_with(|| {
                    spans.push((start, end));
                    spans.len() as u32 - 1
                });
                self.last_run = Some((run, at));
                at
            }
        };
        let seen = &mut self.spans[at as usize];
        *seen = (seen.0.min(start), seen.1.max(end));
    }

    fn span(&self, start: i64, duration: i64) -> (i64, i64) {
        let start = bounded(start);
        (start, start + bounded(duration.max(0)))
    }

    /// Adds the end of an operation `name` of a CPU device, which refers to its beginning.
    pub(super) fn thread_end(&mut self, host: u32, refers: (i64, i64), name: u32, at: i64) {
        let (refers, at) = ((host, refers.0, refers.1), bounded(at));
        // Most operations end inside their own event, which comes just before.
        if let Some((own, begun)) = self.begun.last()
            && (*own, begun.name) == (refers, name)
            && at <= begun.end
        {
            self.begun.pop();
            return;
        }
        self.ended.push((refers, name, at));
    }

    /// The finished profile. `names` are those of programs known by their numbers.
    pub(super) fn finish(mut self, names: &[(u64, Box<str>)]) -> Result<Profile> {
        self.end_asynchronous()?;
        for ((device, program, run), at) in std::mem::take(&mut self.runs) {
            let (start, end) = self.spans[at as usize];
            self.launch(device, program, (start, end.saturating_sub(start)), Some(run));
        }
        let launches = &mut self.profile.launches;
        launches.sort_by_key(|launch| (launch.device, launch.start_ps, launch.program, launch.run));
        for (id, name) in names {
            let first = self.by_id.get(id).and_then(|same| same.get(""));
            if let Some(first) = first {
                let known = &mut self.profile.programs[*first as usize].name;
                if known.is_empty() {
                    known.clone_from(name);
                }
            }
        }
        self.assign_programs();
        self.order_devices();
        self.profile.sort();
        Ok(self.profile)
    }

    /// Operations of CPU devices whose end is on another thread or later than their event: from begin
    /// to end, on a track of their own, as they overlap others.
    fn end_asynchronous(&mut self) -> Result<()> {
        let mut begun = std::mem::take(&mut self.begun);
        begun.sort_by_key(|(refers, begun)| (*refers, begun.start));
        for (refers, name, at) in std::mem::take(&mut self.ended) {
            let before = begun.partition_point(|(own, begun)| (*own, begun.start) <= (refers, at));
            let Some((own, begun)) = before.checked_sub(1).map(|last| begun[last]) else {
                continue;
            };
            if own != refers {
                continue;
            }
            if begun.name != name || at <= begun.end {
                continue;
            }
            let track = self.track(begun.device, "asynchronous operations", TrackKind::Async);
            let span = (begun.start, at - begun.start);
            self.event(track, begun.program, begun.name, begun.name, span)?;
        }
        Ok(())
    }

    /// Orders devices by host, kind and number, and tracks by device.
    fn order_devices(&mut self) {
        let Profile { devices, tracks, events, launches, steps, .. } = &mut self.profile;
        let by_device = order(devices.len(), |at| {
            let device = &devices[at];
            (device.host, device.kind as u8, device.ordinal, device.name.clone())
        });
        *devices = moved(devices, &by_device);
        let place = inverse(&by_device);
        tracks.iter_mut().for_each(|track| track.device = place[track.device as usize]);
        launches.iter_mut().for_each(|launch| launch.device = place[launch.device as usize]);
        for step in steps.iter_mut() {
            step.device = step.device.map(|device| place[device as usize]);
        }
        let by_track = order(tracks.len(), |at| (tracks[at].device, tracks[at].kind as u8));
        *tracks = moved(tracks, &by_track);
        let place = inverse(&by_track);
        events.track.iter_mut().for_each(|track| *track = place[*track as usize]);
        launches.sort_by_key(|launch| (launch.device, launch.start_ps, launch.program, launch.run));
        steps.sort_by_key(|step| (step.host, step.device, step.start_ps, step.number));
    }

    /// Gives events without a program the one that runs on their device when they begin.
    fn assign_programs(&mut self) {
        let launches = &self.profile.launches;
        let events = &mut self.profile.events;
        for at in 0..events.len() {
            if events.program[at] != NONE || events.op[at] == NONE {
                continue;
            }
            let device = self.profile.tracks[events.track[at] as usize].device;
            let start = events.start_ps[at];
            let after = launches
                .partition_point(|launch| (launch.device, launch.start_ps) <= (device, start));
            let Some(launch) = after.checked_sub(1).and_then(|last| launches.get(last)) else {
                continue;
            };
            if launch.device == device && start - launch.start_ps < launch.duration_ps {
                events.program[at] = launch.program;
            }
        }
    }
}

#[cold]
fn too_large(in_events: bool) -> ParseError {
    let message = match in_events {
        true => format!("a profile with more than {MOST_EVENTS} events of devices"),
        false => format!("a profile with more than {MOST_DEVICES} devices"),
    };
    ParseError::new(ErrorKind::TooLarge, Span::EMPTY, message).with_help("profile fewer steps")
}

/// The numbers below `count`, sorted by `key`; equal keys keep their order.
fn order<K: Ord>(count: usize, key: impl Fn(usize) -> K) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|at| key(*at));
    order
}

/// The place of each number in `order`.
fn inverse(order: &[usize]) -> Vec<u32> {
    let mut places = vec![0; order.len()];
    order.iter().zip(0..).for_each(|(at, place)| places[*at] = place);
    places
}

fn moved<T: Clone>(list: &[T], order: &[usize]) -> Vec<T> {
    order.iter().map(|at| list[*at].clone()).collect()
}

/// `time` within [`BOUND`].
fn bounded(time: i64) -> i64 {
    time.clamp(-BOUND, BOUND - 1)
}

/// Picoseconds from nanoseconds since `base` and an offset in picoseconds.
pub(super) fn picoseconds(nanoseconds: i64, base: i64, offset: i64) -> i64 {
    nanoseconds.saturating_sub(base).saturating_mul(1000).saturating_add(offset)
}

/// Name and number of a program written `jit_step(123)`; the whole text if it has no number.
pub(super) fn named(text: &str) -> (&str, Option<u64>) {
    let parts = text.strip_suffix(')').and_then(|text| text.rsplit_once('('));
    let number = parts.and_then(|(name, digits)| Some((name, digits.parse().ok()?)));
    match number {
        Some((name, id)) => (name, Some(id)),
        None => (text, None),
    }
}

/// The name of the instruction in `text`: a name, or the instruction's whole line.
pub(super) fn instruction(text: &str) -> &str {
    let name = text.split_once(" = ").map_or(text, |(name, _)| name);
    let name = name.trim();
    let name = name.strip_prefix("ROOT ").unwrap_or(name).trim();
    name.strip_prefix('%').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_programs_and_instructions() {
        assert_eq!(named("jit_step(12)"), ("jit_step", Some(12)));
        assert_eq!(named("jit_step(18446744073709551615)"), ("jit_step", Some(u64::MAX)));
        assert_eq!(named("jit_f(x)(3)"), ("jit_f(x)", Some(3)));
        assert_eq!(named("jit_step(x)"), ("jit_step(x)", None));
        assert_eq!(instruction("%fusion.1 = bf16[2]{0} fusion(%p = x)"), "fusion.1");
        assert_eq!(instruction("ROOT %a = f32[] add(x, y)"), "a");
        assert_eq!(instruction("fusion.1"), "fusion.1");
    }

    #[test]
    fn times_never_overflow() {
        let mut builder = Builder::default();
        let device = builder.device(0, "d", None, DeviceKind::Tpu);
        let track = builder.track(device, "XLA Ops", TrackKind::Ops);
        for start in [i64::MIN, -1, i64::MAX] {
            for length in [i64::MIN, 0, i64::MAX] {
                builder.event(track, NONE, 0, 0, (start, length)).ok();
                builder.launch(device, 0, (start, length), None);
            }
        }
        let profile = builder.finish(&[]);
        let events = profile.map(|profile| profile.events).unwrap_or_default();
        assert_eq!(events.len(), 9);
        for (start, length) in events.start_ps.iter().zip(&events.duration_ps) {
            assert!(start.checked_add(*length).is_some());
        }
    }
}
