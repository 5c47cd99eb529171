//! The events of devices as columns, in the form that every reader fills.

use std::collections::HashMap;

/// The absence of a name, a program or a launch in the columns of [`Events`].
pub const NONE: u32 = u32::MAX;

/// What kind of device an event ran on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A TPU core.
    Tpu,
    /// A GPU.
    Gpu,
    /// A CPU device of XLA.
    Cpu,
    /// A device of another kind.
    #[default]
    Other,
}

impl DeviceKind {
    /// The lower-case name.
    pub fn as_str(self) -> &'static str {
        match self {
            DeviceKind::Tpu => "tpu",
            DeviceKind::Gpu => "gpu",
            DeviceKind::Cpu => "cpu",
            DeviceKind::Other => "other",
        }
    }
}

/// What the events of a track are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TrackKind {
    /// Instructions in program order: events nest (a loop contains the instructions of its body)
    /// and never overlap otherwise. The XLA Ops line of a TPU core, the thread of a CPU device.
    #[default]
    Ops,
    /// Asynchronous operations from start to done, which overlap each other. The line
    /// Async XLA Ops.
    Async,
    /// The kernels and copies of one GPU stream, in order, without nesting.
    Stream,
}

impl TrackKind {
    /// The lower-case name.
    pub fn as_str(self) -> &'static str {
        match self {
            TrackKind::Ops => "ops",
            TrackKind::Async => "async",
            TrackKind::Stream => "stream",
        }
    }
}

/// A device in a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfiledDevice {
    /// Index of the host in [`Profile::hosts`].
    pub host: u32,
    /// The name in the profile, such as `/device:TPU:0`.
    pub name: Box<str>,
    /// The number of the device on its host or, if the profile has only that, in the whole run.
    pub ordinal: Option<u32>,
    /// The kind.
    pub kind: DeviceKind,
    /// The chip's name, such as `TPU v5 lite`, if the profile has it.
    pub chip: Option<Box<str>>,
}

/// One sequence of events of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// Index of the device in [`Profile::devices`].
    pub device: u32,
    /// The name in the profile, such as `XLA Ops` or `Stream #13(Compute)`.
    pub name: Box<str>,
    /// What its events are.
    pub kind: TrackKind,
}

/// A program that ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Program {
    /// The module's name without a number that the profiler appends: `jit_step`.
    pub name: Box<str>,
    /// The profiler's number of the program, by which hosts and the embedded modules name it.
    pub id: Option<u64>,
}

/// One execution of a program on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Index of the device in [`Profile::devices`].
    pub device: u32,
    /// Index of the program in [`Profile::programs`].
    pub program: u32,
    /// Begin, in picoseconds on the clock of the device's host.
    pub start_ps: i64,
    /// Length in picoseconds.
    pub duration_ps: i64,
    /// The number that launches on all devices share, if the profile has it.
    pub run: Option<u64>,
}

/// One step that the training loop or the profiler marked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Index of the host in [`Profile::hosts`].
    pub host: u32,
    /// Index of the device; None for a step marked by the host.
    pub device: Option<u32>,
    /// The number of the step.
    pub number: Option<i64>,
    /// Begin, in picoseconds on the clock of the host.
    pub start_ps: i64,
    /// Length in picoseconds.
    pub duration_ps: i64,
}

/// Texts, each kept once.
#[derive(Clone, Debug, Default)]
pub struct Names {
    texts: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u32>,
}

impl Names {
    /// The number of `text`.
    pub fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(text.into());
        self.numbers.insert(text.into(), number);
        number
    }

    /// The text of `number`; None for [`NONE`].
    pub fn get(&self, number: u32) -> Option<&str> {
        self.texts.get(number as usize).map(|text| &**text)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }
}

/// Events of devices, as columns of one length, sorted by track, then by start, and the longer first
/// where two start together, so that a loop precedes its body.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// Index of the track in [`Profile::tracks`].
    pub track: Vec<u32>,
    /// Index of the program, or [`NONE`].
    pub program: Vec<u32>,
    /// Number in [`Profile::names`] of the instruction, or [`NONE`] for an event of no instruction.
    pub op: Vec<u32>,
    /// Number in [`Profile::names`] of the event itself: a kernel's name, or the instruction's.
    pub label: Vec<u32>,
    /// Begin, in picoseconds on the clock of the device's host.
    pub start_ps: Vec<i64>,
    /// Length in picoseconds.
    pub duration_ps: Vec<i64>,
}

impl Events {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.track.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.track.is_empty()
    }

    /// Appends one event; call [`Profile::sort`] at the end.
    pub fn push(&mut self, track: u32, program: u32, op: u32, label: u32, start: i64, length: i64) {
        self.track.push(track);
        self.program.push(program);
        self.op.push(op);
        self.label.push(label);
        self.start_ps.push(start);
        self.duration_ps.push(length);
    }
}

/// What ran on the devices of one run, from one or several profile files.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Names of the hosts.
    pub hosts: Vec<Box<str>>,
    /// The devices that ran instructions.
    pub devices: Vec<ProfiledDevice>,
    /// The tracks of the devices.
    pub tracks: Vec<Track>,
    /// The programs that ran.
    pub programs: Vec<Program>,
    /// Names of instructions and events.
    pub names: Names,
    /// Every event on a track.
    pub events: Events,
    /// Every execution of a program that the profile marks as such.
    pub launches: Vec<Launch>,
    /// Every step that is marked.
    pub steps: Vec<Step>,
}

impl Profile {
    /// Sorts the events as [`Events`] says.
    pub fn sort(&mut self) {
        let events = &mut self.events;
        let key = |at: &u32| {
            let at = *at as usize;
            (events.track[at], events.start_ps[at], std::cmp::Reverse(events.duration_ps[at]))
        };
        if (0..events.len() as u32).is_sorted_by_key(|at| key(&at)) {
            return;
        }
        // By track first, in two passes: the events of a track mostly come sorted.
        let count = events.track.iter().max().map_or(0, |last| *last as usize + 1);
        let mut ends = vec![0usize; count + 1];
        events.track.iter().for_each(|track| ends[*track as usize + 1] += 1);
        for at in 1..ends.len() {
            ends[at] += ends[at - 1];
        }
        let mut order = vec![0u32; events.len()];
        let mut next = ends.clone();
        for (at, track) in (0..).zip(&events.track) {
            let place = &mut next[*track as usize];
            order[*place] = at;
            *place += 1;
        }
        for bounds in ends.windows(2) {
            let own = &mut order[bounds[0]..bounds[1]];
            if !own.is_sorted_by_key(key) {
                own.sort_by_key(key);
            }
        }
        fn permute<T: Copy>(column: &mut Vec<T>, order: &[u32]) {
            *column = order.iter().map(|at| column[*at as usize]).collect();
        }
        permute(&mut events.track, &order);
        permute(&mut events.program, &order);
        permute(&mut events.op, &order);
        permute(&mut events.label, &order);
        permute(&mut events.start_ps, &order);
        permute(&mut events.duration_ps, &order);
    }
}
