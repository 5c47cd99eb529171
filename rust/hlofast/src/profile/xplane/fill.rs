//! From the planes of a space to the columns of a profile.

use super::plane::{Event, Line, Plane};
use super::{Space, Stats, Value};
use crate::error::Result;
use crate::profile::build::{Builder, ThreadEvent, ThreadTracks, instruction, named, picoseconds};
use crate::profile::events::{NONE, TrackKind};
use crate::profile::lanes::{Lane, Lanes, is_stream, lane, lanes, read_as, step_number, with_host};
use std::borrow::Cow;
use std::collections::HashMap;

/// The stats that matter, by their names in `xplane_schema.cc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Key {
    Other,
    HloOp,
    HloModule,
    ProgramId,
    RunId,
    DeviceOrdinal,
    StepNum,
    ProducerType,
    Producer,
    ConsumerType,
    Consumer,
}

impl Key {
    fn of(name: &[u8]) -> Key {
        match name {
            b"hlo_op" => Key::HloOp,
            b"hlo_module" => Key::HloModule,
            b"program_id" => Key::ProgramId,
            b"run_id" => Key::RunId,
            b"device_ordinal" => Key::DeviceOrdinal,
            b"step_num" => Key::StepNum,
            b"_pt" => Key::ProducerType,
            b"_p" => Key::Producer,
            b"_ct" => Key::ConsumerType,
            b"_c" => Key::Consumer,
            _ => Key::Other,
        }
    }
}

/// What the stats of an event say.
#[derive(Clone, Copy, Debug, Default)]
struct Facts<'a> {
    op: Option<Text<'a>>,
    module: Option<Text<'a>>,
    program_id: Option<u64>,
    run_id: Option<u64>,
    device: Option<i64>,
    step: Option<i64>,
    produces: (Option<i64>, Option<i64>),
    consumes: (Option<i64>, Option<i64>),
}

/// A text, or the stat whose name it is.
#[derive(Clone, Copy, Debug)]
enum Text<'a> {
    Written(&'a [u8]),
    Named(usize),
}

/// What events of one kind have in common, as numbers of the profile.
#[derive(Clone, Copy, Debug)]
struct Kind {
    label: u32,
    op: u32,
    program: u32,
}

/// A stat's name, or an event's metadata, that has no number yet.
const UNREAD: u32 = u32::MAX - 1;

/// Reads the lines of one plane.
struct Reader<'a> {
    whole: &'a [u8],
    plane: &'a Plane,
    host: u32,
    base: i64,
    /// What the stat of a number is; numbers are small in every file seen.
    keys: Vec<Key>,
    far_keys: HashMap<i64, Key>,
    /// The number of each stat's name among those of the profile.
    named: Vec<u32>,
    kinds: Vec<Option<Kind>>,
    /// The instruction whose end the events of each metadata are; [`NONE`] if they are not ends.
    ends: Vec<u32>,
    /// The program found last, with what named it.
    last_program: Option<(usize, u64, u32)>,
    builder: &'a mut Builder,
}

/// Numbers of stats that have a place in a table.
const NEAR: usize = 1 << 16;

impl Space {
    /// Adds what ran on the devices of this space, as the host `name`.
    pub(in crate::profile) fn add_to(&self, builder: &mut Builder, name: &str) -> Result<()> {
        let host = builder.host(name);
        let base = self.base();
        for plane in self.planes() {
            let plane_name = String::from_utf8_lossy(plane.name(self.bytes()));
            let lanes = lanes(with_host(&plane_name).1);
            if lanes == Lanes::Other {
                continue;
            }
            let mut reader = Reader::new(self.bytes(), plane, host, base, builder);
            match lanes {
                Lanes::Threads => reader.threads()?,
                _ => reader.device(lanes)?,
            }
        }
        Ok(())
    }

    /// The nanoseconds that times are counted from: 0, or the first timestamp where nanoseconds are
    /// those since 1970, whose picoseconds would not fit 64 bits.
    pub(in crate::profile) fn base(&self) -> i64 {
        let lines = || self.planes().iter().flat_map(Plane::lines);
        let stamps = || lines().filter(|line| line.event_count() > 0).map(|line| line.timestamp_ns);
        match stamps().max() {
            Some(last) if last > i64::MAX / 2000 => {
                // A line without a timestamp is relative to the profile's start already.
                stamps().filter(|stamp| *stamp > i64::MAX / 2000).min().unwrap_or(0)
            }
            _ => 0,
        }
    }
}

/// The names of the lines of a plane; the name to show where there is no other.
fn line_names<'a>(plane: &Plane, whole: &'a [u8]) -> Vec<Cow<'a, str>> {
    let name = |line: &Line| {
        let own = line.name(whole);
        String::from_utf8_lossy(if own.is_empty() { line.display_name(whole) } else { own })
    };
    plane.lines().iter().map(name).collect()
}

impl Plane {
    /// What each line is read as: ops, async, stream, modules, steps or threads; the empty word for
    /// lines of which the columns of a profile hold nothing.
    pub fn read_as(&self, whole: &[u8]) -> Vec<&'static str> {
        let name = String::from_utf8_lossy(self.name(whole));
        read_as(lanes(with_host(&name).1), &line_names(self, whole))
    }
}

impl<'a> Reader<'a> {
    fn new(
        whole: &'a [u8],
        plane: &'a Plane,
        host: u32,
        base: i64,
        builder: &'a mut Builder,
    ) -> Reader<'a> {
        let (mut keys, mut far_keys) = (Vec::new(), HashMap::new());
        for stat in plane.stat_metadata() {
            let key = Key::of(stat.name(whole));
            if key == Key::Other {
                continue;
            }
            match usize::try_from(stat.id) {
                Ok(id) if id < NEAR => {
                    keys.resize(keys.len().max(id + 1), Key::Other);
                    keys[id] = key;
                }
                _ => _ = far_keys.insert(stat.id, key),
            }
        }
        let named = vec![UNREAD; plane.stat_metadata().len()];
        let kinds = vec![None; plane.event_metadata().len()];
        let ends = vec![UNREAD; plane.event_metadata().len()];
        let last_program = None;
        Reader {
            whole,
            plane,
            host,
            base,
            keys,
            far_keys,
            named,
            kinds,
            ends,
            last_program,
            builder,
        }
    }

    fn key(&self, id: i64) -> Key {
        match usize::try_from(id).ok().and_then(|id| self.keys.get(id)) {
            Some(key) => *key,
            None if self.far_keys.is_empty() => Key::Other,
            None => self.far_keys.get(&id).copied().unwrap_or(Key::Other),
        }
    }

    /// Adds what `stats` say to `facts`.
    fn facts(&self, mut stats: Stats<'a>, facts: &mut Facts<'a>) {
        while let Some(stat) = stats.next_of(|id| self.key(id) != Key::Other) {
            let key = self.key(stat.id);
            let (Some(value), true) = (stat.value, key != Key::Other) else { continue };
            let integer = || {
                let text = match value {
                    Value::Text(text) => std::str::from_utf8(text).ok(),
                    _ => None,
                };
                value.integer().or_else(|| text?.parse().ok())
            };
            match key {
                Key::HloOp => facts.op = self.text(value),
                Key::HloModule => facts.module = self.text(value),
                Key::ProgramId => facts.program_id = integer().map(|id| id as u64),
                Key::RunId => facts.run_id = integer().map(|id| id as u64),
                Key::DeviceOrdinal => facts.device = integer(),
                Key::StepNum => facts.step = integer(),
                Key::ProducerType => facts.produces.0 = integer(),
                Key::Producer => facts.produces.1 = integer(),
                Key::ConsumerType => facts.consumes.0 = integer(),
                Key::Consumer => facts.consumes.1 = integer(),
                Key::Other => {}
            }
        }
    }

    /// The text of a stat; None for an empty one.
    fn text(&self, value: Value<'a>) -> Option<Text<'a>> {
        match value {
            Value::Text(text) | Value::Bytes(text) if !text.is_empty() => Some(Text::Written(text)),
            Value::Reference(id) => {
                let at = self.plane.stat_of(id as i64)?;
                let is_known = self.named[at] != UNREAD;
                (is_known || !self.written(Text::Named(at)).is_empty()).then_some(Text::Named(at))
            }
            _ => None,
        }
    }

    fn written(&self, text: Text<'a>) -> &'a [u8] {
        match text {
            Text::Written(text) => text,
            Text::Named(at) => {
                self.plane.stat_metadata().get(at).map_or(b"", |stat| stat.name(self.whole))
            }
        }
    }

    /// The number of the instruction that `text` names.
    fn op(&mut self, text: Text<'a>) -> u32 {
        if let Text::Named(at) = text
            && self.named[at] != UNREAD
        {
            return self.named[at];
        }
        let written = String::from_utf8_lossy(self.written(text));
        let number = self.builder.profile.names.number(instruction(&written));
        if let Text::Named(at) = text {
            self.named[at] = number;
        }
        number
    }

    /// The program that `facts` name.
    fn program(&mut self, facts: &Facts<'a>) -> u32 {
        // Most events have the program of the one before.
        let (Some(Text::Named(module)), Some(id)) = (facts.module, facts.program_id) else {
            return self.find_program(facts);
        };
        if let Some((last_module, last_id, program)) = self.last_program
            && (last_module, last_id) == (module, id)
        {
            return program;
        }
        let program = self.find_program(facts);
        self.last_program = Some((module, id, program));
        program
    }

    fn find_program(&mut self, facts: &Facts<'a>) -> u32 {
        let text = facts.module.map(|text| String::from_utf8_lossy(self.written(text)));
        match (text, facts.program_id) {
            (None, None) => NONE,
            (text, Some(id)) => {
                let name = text.as_deref().map_or("", |text| named(text).0);
                self.builder.program(name, Some(id))
            }
            (Some(text), None) => {
                let (name, id) = named(&text);
                self.builder.program(name, id)
            }
        }
    }

    /// What the events of the metadata with this number have in common.
    fn kind(&mut self, id: i64) -> Kind {
        let Some(at) = self.plane.metadata_of(id) else {
            // As viewers show it: an event without a name.
            let label = self.builder.profile.names.number("");
            return Kind { label, op: NONE, program: NONE };
        };
        if let Some(kind) = self.kinds[at] {
            return kind;
        }
        let metadata = &self.plane.event_metadata()[at];
        let name = String::from_utf8_lossy(metadata.name(self.whole));
        let shown = String::from_utf8_lossy(metadata.display_name(self.whole));
        // The whole line of the instruction is exact; the name to show may be shortened.
        let is_line = name.contains(" = ");
        let label = if is_line || shown.is_empty() { instruction(&name) } else { &shown };
        let label = self.builder.profile.names.number(label);
        let mut facts = Facts::default();
        self.facts(metadata.stats(self.whole), &mut facts);
        let op = facts.op.map_or(NONE, |text| self.op(text));
        let program = self.program(&facts);
        let kind = Kind { label, op, program };
        self.kinds[at] = Some(kind);
        kind
    }

    fn span(&self, line: &Line, event: &Event<'_>) -> (i64, i64) {
        (picoseconds(line.timestamp_ns, self.base, event.offset_ps), event.duration_ps)
    }

    /// Reads the lines of a device.
    fn device(&mut self, lanes: Lanes<'_>) -> Result<()> {
        let Lanes::Device { name, ordinal, kind, part } = lanes else { return Ok(()) };
        let plane = self.plane;
        let names = line_names(plane, self.whole);
        let has_streams = names.iter().any(|name| is_stream(name));
        for (line, line_name) in plane.lines().iter().zip(&names) {
            let found = lane(line_name, kind, part, has_streams);
            if found == Lane::Other || line.event_count() == 0 {
                continue;
            }
            let device = self.builder.device(self.host, name, ordinal, kind);
            match found {
                Lane::Events(track_kind) => {
                    let track_name = match part {
                        "" => line_name.to_string(),
                        part => format!("{part}: {line_name}"),
                    };
                    let track = self.builder.track(device, &track_name, track_kind);
                    self.events(line, track, track_kind)?;
                }
                Lane::Modules => self.modules(line, device),
                Lane::Steps => self.steps(line, device),
                Lane::Other => {}
            }
        }
        Ok(())
    }

    /// Reads instructions or kernels.
    fn events(&mut self, line: &'a Line, track: u32, track_kind: TrackKind) -> Result<()> {
        for event in line.events(self.whole) {
            if event.occurrences.is_some() {
                continue; // Counts without a time.
            }
            let mut kind = self.kind(event.metadata_id);
            // Stats of one occurrence name the kernel's instruction. Those of a core's instructions
            // are shared, and need not be read for each occurrence.
            let is_known = track_kind == TrackKind::Ops && kind.program != NONE;
            if !is_known {
                let mut facts = Facts::default();
                self.facts(event.stats(), &mut facts);
                if let Some(text) = facts.op {
                    kind.op = self.op(text);
                }
                if facts.module.is_some() || facts.program_id.is_some() {
                    kind.program = self.program(&facts);
                }
            }
            if kind.op == NONE && track_kind != TrackKind::Stream {
                kind.op = kind.label;
            }
            let span = self.span(line, &event);
            self.builder.event(track, kind.program, kind.op, kind.label, span)?;
        }
        Ok(())
    }

    /// Reads executions of programs.
    fn modules(&mut self, line: &'a Line, device: u32) {
        for event in line.events(self.whole) {
            let mut facts = Facts::default();
            let at = self.plane.metadata_of(event.metadata_id);
            let metadata = at.map(|at| self.plane.event_metadata()[at]).unwrap_or_default();
            self.facts(metadata.stats(self.whole), &mut facts);
            self.facts(event.stats(), &mut facts);
            let name = String::from_utf8_lossy(metadata.name(self.whole));
            let (name, id) = named(&name);
            let program = self.builder.program(name, id.or(facts.program_id));
            self.builder.launch(device, program, self.span(line, &event), facts.run_id);
        }
    }

    /// Reads the steps of a device.
    fn steps(&mut self, line: &'a Line, device: u32) {
        for event in line.events(self.whole) {
            let mut facts = Facts::default();
            self.facts(event.stats(), &mut facts);
            let at = self.plane.metadata_of(event.metadata_id);
            let name = at.map(|at| self.plane.event_metadata()[at].name(self.whole));
            let name = String::from_utf8_lossy(name.unwrap_or_default());
            let number = facts.step.or_else(|| step_number(&name));
            self.builder.step(self.host, Some(device), number, self.span(line, &event));
        }
    }

    /// Reads the threads of a host: operations of CPU devices, and steps that the program marks.
    fn threads(&mut self) -> Result<()> {
        for line in self.plane.lines() {
            let name = String::from_utf8_lossy(line.name(self.whole));
            let thread = match name.is_empty() {
                true => format!("thread {}", line.id).into(),
                false => name,
            };
            let mut tracks = ThreadTracks::default();
            for event in line.events(self.whole) {
                let mut facts = Facts::default();
                self.facts(event.stats(), &mut facts);
                let span = self.span(line, &event);
                if let Some(text) = facts.op {
                    let op = Some(self.op(text));
                    let program = Some(self.program(&facts));
                    let produces = match facts.produces {
                        (kind, Some(number)) => Some((kind.unwrap_or(0), number)),
                        _ => None,
                    };
                    let (device, run) = (facts.device, facts.run_id);
                    let (start, duration) = span;
                    let event = ThreadEvent { op, program, device, run, produces, start, duration };
                    self.builder.thread_event(self.host, &thread, &mut tracks, &event)?;
                } else if facts.step.is_some() {
                    self.builder.step(self.host, None, facts.step, span);
                } else if let (kind, Some(number)) = facts.consumes {
                    self.end(&event, (kind.unwrap_or(0), number), span);
                }
            }
        }
        Ok(())
    }

    /// Takes the event `end: NAME`, which a thunk's executor writes when an asynchronous thunk is
    /// done (`thunk_executor.cc` of XLA's CPU runtime).
    fn end(&mut self, event: &Event<'a>, refers: (i64, i64), (start, duration): (i64, i64)) {
        let Some(at) = self.plane.metadata_of(event.metadata_id) else { return };
        if self.ends[at] == UNREAD {
            let name = self.plane.event_metadata()[at].name(self.whole);
            let name = name.strip_prefix(b"end: ");
            self.ends[at] = name.map_or(NONE, |name| self.op(Text::Written(name)));
        }
        if self.ends[at] != NONE {
            let end = start.saturating_add(duration);
            self.builder.thread_end(self.host, refers, self.ends[at], end);
        }
    }
}
