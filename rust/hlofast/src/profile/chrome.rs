//! Chrome's trace format as the profiler writes it: `*.trace.json.gz`, `perfetto_trace.json.gz`.
//!
//! Processes are the planes of the XSpace, threads its lines. The text is read twice, first for the
//! names of processes and threads, which may follow their events. The profiler leaves out events
//! beyond a million, the line Async XLA Ops and most numbers of programs
//! (`xplane_to_trace_events.cc` of XLA), so that an `*.xplane.pb` beside it says more.

use super::build::{Builder, ThreadEvent, ThreadTracks, instruction, named};
use super::events::NONE;
use super::json::{Json, Scalar};
use super::lanes::{Lane, Lanes, is_stream, lane, lanes, read_as, step_number, with_host};
use super::read::LineRow;
use crate::error::Result;
use memchr::memmem;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Whether `head`, the beginning of a file, is that of a trace.
pub(super) fn is_trace(head: &[u8]) -> bool {
    let start = head.trim_ascii_start();
    let has = |words: &[u8]| memmem::find(head, words).is_some();
    match start.first() {
        Some(b'{') => has(b"\"traceEvents\""),
        // A list of events alone.
        Some(b'[') => has(b"\"ph\"") && has(b"\"pid\""),
        _ => false,
    }
}

/// One event of the text, as far as it matters.
#[derive(Default)]
struct Event<'a> {
    phase: Option<Scalar<'a>>,
    name: Option<Scalar<'a>>,
    process: i64,
    thread: i64,
    /// Begin: microseconds, and the rest in picoseconds.
    start: Option<(i64, i64)>,
    duration: i64,
    /// The argument `name`, by which metadata events name processes and threads.
    named: Option<Scalar<'a>>,
    op: Option<Scalar<'a>>,
    module: Option<Scalar<'a>>,
    program_id: Option<i64>,
    run_id: Option<i64>,
    device: Option<i64>,
    step: Option<i64>,
    long_name: Option<Scalar<'a>>,
}

/// The lines of the trace, by process and thread.
type Lines = BTreeMap<(i64, i64), Found>;

/// One line of the trace.
#[derive(Default)]
struct Found {
    name: String,
    events: i64,
    first: i64,
    last: i64,
    role: Option<Role>,
}

/// Where the events of a line go.
#[derive(Clone)]
enum Role {
    Device { lane: Lane, device: Option<u32>, track: u32 },
    Threads { host: u32, tracks: ThreadTracks },
    Other,
}

/// Passes every event of the trace to `take`.
fn each<'a>(text: &'a [u8], mut take: impl FnMut(Event<'a>) -> Result<()>) -> Result<()> {
    let mut json = Json::new(text);
    let mut list = |json: &mut Json<'a>| json.list(|json| take(event(json)?));
    if json.peek() == Some(b'[') {
        return list(&mut json);
    }
    json.object(|json, key| match key {
        b"traceEvents" => list(json),
        _ => json.skip(),
    })
}

fn event<'a>(json: &mut Json<'a>) -> Result<Event<'a>> {
    let mut event = Event::default();
    json.object(|json, key| {
        match key {
            b"ph" => event.phase = json.scalar()?,
            b"name" => event.name = json.scalar()?,
            b"pid" => event.process = json.scalar()?.and_then(Scalar::integer).unwrap_or(0),
            b"tid" => event.thread = json.scalar()?.and_then(Scalar::integer).unwrap_or(0),
            b"ts" => event.start = json.scalar()?.and_then(Scalar::microseconds),
            b"dur" => event.duration = json.scalar()?.and_then(Scalar::picoseconds).unwrap_or(0),
            b"args" if json.peek() == Some(b'{') => json.object(|json, key| {
                let value = json.scalar()?;
                let integer = value.and_then(Scalar::integer);
                match key {
                    b"name" => event.named = value,
                    b"hlo_op" => event.op = value,
                    b"hlo_module" => event.module = value,
                    b"program_id" => event.program_id = integer,
                    b"run_id" => event.run_id = integer,
                    b"device_ordinal" => event.device = integer,
                    b"step_num" => event.step = integer,
                    b"long_name" => event.long_name = value,
                    _ => {}
                }
                Ok(())
            })?,
            _ => json.skip()?,
        }
        Ok(())
    })?;
    Ok(event)
}

/// Adds the events of a trace to `builder`; `host` is the name of the host where the trace gives
/// none. Returns the lines that it has.
pub(super) fn add_to(builder: &mut Builder, text: &[u8], host: &str) -> Result<Vec<LineRow>> {
    let (mut processes, mut lines) = (BTreeMap::<i64, String>::new(), Lines::new());
    let (mut earliest, mut latest) = (i64::MAX, i64::MIN);
    each(text, |event| {
        if let Some((start, _)) = event.start {
            (earliest, latest) = (earliest.min(start), latest.max(start));
        }
        if let (Some(Scalar::Text(b"M")), Some(name)) = (event.phase, event.named) {
            match event.name {
                Some(Scalar::Text(b"process_name")) => {
                    processes.insert(event.process, name.text().into_owned());
                }
                Some(Scalar::Text(b"thread_name")) => {
                    let line = lines.entry((event.process, event.thread)).or_default();
                    line.name = name.text().into_owned();
                }
                _ => {}
            }
        }
        Ok(())
    })?;
    // Times since 1970 are counted from the first, as their picoseconds would not fit 64 bits.
    let base = if latest > i64::MAX / 2_000_000 { earliest } else { 0 };
    let mut hosts: HashMap<String, u32> = HashMap::new();
    let of: BTreeMap<i64, u32> = processes
        .iter()
        .map(|(process, name)| {
            let own = match with_host(name).0 {
                "" => host,
                own => own,
            };
            let number = *hosts.entry(own.to_owned()).or_insert_with(|| builder.host(own));
            (*process, number)
        })
        .collect();
    let with_streams: HashSet<i64> = lines
        .iter()
        .filter(|(_, line)| is_stream(&line.name))
        .map(|((process, _), _)| *process)
        .collect();
    let fallback = hosts.values().min().copied();
    let fallback = fallback.unwrap_or_else(|| builder.host(host));
    each(text, |event| {
        if !matches!(event.phase, Some(Scalar::Text(b"X"))) {
            return Ok(());
        }
        let place = (event.process, event.thread);
        if lines.get(&place).is_none_or(|line| line.role.is_none()) {
            let host = of.get(&event.process).copied().unwrap_or(fallback);
            let process = processes.get(&place.0).map_or("", |name| with_host(name).1);
            let name = lines.get(&place).map_or("", |line| &line.name);
            let role = role(builder, process, name, with_streams.contains(&place.0), host);
            lines.entry(place).or_default().role = Some(role);
        }
        let Some(line) = lines.get_mut(&place) else { return Ok(()) };
        let start = event.start.map(|(whole, rest)| {
            whole.saturating_sub(base).saturating_mul(1_000_000).saturating_add(rest)
        });
        line.count(start.unwrap_or(0), event.duration);
        match start {
            Some(start) => add(builder, line, &event, (start, event.duration)),
            None => Ok(()),
        }
    })?;
    Ok(rows(&processes, &of, lines, fallback))
}

/// What the line `name` of `process` is.
fn role(builder: &mut Builder, process: &str, name: &str, has_streams: bool, host: u32) -> Role {
    match lanes(process) {
        Lanes::Threads => Role::Threads { host, tracks: ThreadTracks::default() },
        Lanes::Other => Role::Other,
        Lanes::Device { name: device, ordinal, kind, part } => {
            let lane = lane(name, kind, part, has_streams);
            let Lane::Events(track_kind) = lane else {
                let is_read = lane != Lane::Other;
                let device = is_read.then(|| builder.device(host, device, ordinal, kind));
                return Role::Device { lane, device, track: 0 };
            };
            let device = builder.device(host, device, ordinal, kind);
            let track_name = match part {
                "" => name.to_owned(),
                part => format!("{part}: {name}"),
            };
            let track = builder.track(device, &track_name, track_kind);
            Role::Device { lane, device: Some(device), track }
        }
    }
}

impl Found {
    fn count(&mut self, start: i64, duration: i64) {
        let end = start.saturating_add(duration.max(0));
        self.first = if self.events == 0 { start } else { self.first.min(start) };
        self.last = if self.events == 0 { end } else { self.last.max(end) };
        self.events += 1;
    }
}

/// The program that an event names, or [`NONE`].
fn program(builder: &mut Builder, event: &Event<'_>) -> u32 {
    let id = event.program_id.map(|id| id as u64);
    match event.module {
        None => id.map_or(NONE, |id| builder.program("", Some(id))),
        Some(module) => {
            let text = module.text();
            let (name, own) = named(&text);
            builder.program(name, own.or(id))
        }
    }
}

/// Adds an event of `line`.
fn add(builder: &mut Builder, line: &mut Found, event: &Event<'_>, span: (i64, i64)) -> Result<()> {
    let name = event.name.map(Scalar::text).unwrap_or_default();
    match &mut line.role {
        Some(Role::Device { lane: Lane::Events(_), track, .. }) => {
            let long = event.long_name.map(Scalar::text);
            let label = match long.as_deref().filter(|long| long.contains(" = ")) {
                Some(long) => builder.profile.names.number(instruction(long)),
                None => builder.profile.names.number(instruction(&name)),
            };
            let is_stream = is_stream(&line.name);
            let op = match event.op.map(Scalar::text) {
                Some(op) => builder.profile.names.number(instruction(&op)),
                None if is_stream => NONE,
                None => label,
            };
            let program = program(builder, event);
            builder.event(*track, program, op, label, span)
        }
        Some(Role::Device { lane: Lane::Modules, device: Some(device), .. }) => {
            let (name, id) = named(&name);
            let id = id.or(event.program_id.map(|id| id as u64));
            let program = builder.program(name, id);
            builder.launch(*device, program, span, event.run_id.map(|run| run as u64));
            Ok(())
        }
        Some(Role::Device { lane: Lane::Steps, device: Some(device), .. }) => {
            let host = builder.profile.devices[*device as usize].host;
            let number = event.step.or_else(|| step_number(&name));
            builder.step(host, Some(*device), number, span);
            Ok(())
        }
        Some(Role::Threads { host, tracks }) => {
            if let Some(op) = event.op.map(Scalar::text) {
                let op = Some(builder.profile.names.number(instruction(&op)));
                let program = Some(program(builder, event));
                let run = event.run_id.map(|run| run as u64);
                let (device, produces) = (event.device, None);
                let (start, duration) = span;
                let own = ThreadEvent { op, program, device, run, produces, start, duration };
                return builder.thread_event(*host, &line.name, tracks, &own);
            }
            if event.step.is_some() {
                builder.step(*host, None, event.step, span);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The lines as rows of a table.
fn rows(
    processes: &BTreeMap<i64, String>,
    hosts: &BTreeMap<i64, u32>,
    lines: Lines,
    fallback: u32,
) -> Vec<LineRow> {
    let names_of = |process: i64| -> Vec<String> {
        lines
            .range((process, i64::MIN)..=(process, i64::MAX))
            .map(|(_, own)| own.name.clone())
            .collect()
    };
    let mut words: HashMap<i64, std::vec::IntoIter<&'static str>> = HashMap::new();
    let all: Vec<i64> = lines.keys().map(|(process, _)| *process).collect();
    for process in all {
        words.entry(process).or_insert_with(|| {
            let name = processes.get(&process).map_or("", |name| with_host(name).1);
            read_as(lanes(name), &names_of(process)).into_iter()
        });
    }
    let row = |((process, thread), line): (&(i64, i64), &Found)| LineRow {
        host: hosts.get(process).copied().unwrap_or(fallback),
        plane: processes.get(process).cloned().unwrap_or_else(|| process.to_string()),
        line: if line.name.is_empty() { thread.to_string() } else { line.name.clone() },
        read_as: words.get_mut(process).and_then(Iterator::next).unwrap_or(""),
        events: line.events,
        duration_ps: line.last.saturating_sub(line.first),
    };
    lines.iter().map(row).collect()
}
