//! Tables of a profile: devices, programs, launches, steps, modules, and what its files hold.

use super::{Columns, Field};
use crate::profile::{Loaded, NONE, Profile, TrackKind};
use std::collections::HashSet;

const PER_SECOND: f64 = 1e12;

/// The seconds of a time in picoseconds.
pub fn seconds(picoseconds: i64) -> f64 {
    picoseconds as f64 / PER_SECOND
}

fn host(profile: &Profile, host: u32) -> &str {
    profile.hosts.get(host as usize).map_or("", |name| name)
}

fn device(profile: &Profile, device: Option<u32>) -> &str {
    let device = device.and_then(|at| profile.devices.get(at as usize));
    device.map_or("", |device| &device.name)
}

fn integer(value: Option<u64>) -> i64 {
    value.and_then(|value| i64::try_from(value).ok()).unwrap_or(-1)
}

/// The field of a host's name.
pub fn host_field() -> Field {
    Field::name("host", "The host.")
}

/// The field of a device's name.
pub fn device_field() -> Field {
    Field::name("device", "The device by its name in the profile.")
}

/// The field of a begin.
pub fn start_field() -> Field {
    Field::seconds("start", "Start, in seconds on the host's clock.")
}

/// The field of a length.
pub fn duration_field() -> Field {
    Field::seconds("duration", "Length in seconds.").summed()
}

/// One row per device.
pub fn profiled_devices(loaded: &Loaded) -> Columns {
    let profile = &*loaded.profile;
    let (devices, facts) = (&profile.devices, &loaded.facts);
    let mut columns = Columns::default();
    columns.texts(host_field(), devices.iter().map(|own| host(profile, own.host)));
    columns.texts(device_field(), devices.iter().map(|own| &*own.name));
    columns.texts(
        Field::word("kind", "The kind of device: tpu, gpu, cpu or other."),
        devices.iter().map(|own| own.kind.as_str()),
    );
    columns.texts(
        Field::name("chip", "The chip as the profiler names it.").nullable(),
        devices.iter().map(|own| own.chip.as_deref().unwrap_or("")),
    );
    columns.numbers(
        Field::index("ordinal", "The number of the device on its host or in the run.").nullable(),
        devices.iter().map(|own| own.ordinal.map_or(-1, i64::from)),
    );
    let (mut counts, mut busy) = (vec![0; devices.len()], vec![0; devices.len()]);
    let events = &profile.events;
    let mut union = Union::default();
    for at in 0..events.len() {
        let track = &profile.tracks[events.track[at] as usize];
        counts[track.device as usize] += 1;
        if track.kind != TrackKind::Async {
            let added = union.add(events.track[at], events.start_ps[at], events.duration_ps[at]);
            let busy: &mut i64 = &mut busy[track.device as usize];
            *busy = busy.saturating_add(added);
        }
    }
    columns.numbers(Field::count("events", "Events on its tracks.").summed(), counts.into_iter());
    columns.reals(
        Field::seconds(
            "busy",
            "Seconds with an event, summed over its streams or threads, without asynchronous \
            operations.",
        )
        .summed(),
        busy.into_iter().map(seconds),
    );
    let real = |value: Option<f64>| value.unwrap_or(f64::NAN);
    columns.reals(
        Field::number("peak_flops", "Peak FLOP/s according to the profiler.").nullable(),
        facts.iter().map(|own| real(own.peak_flops)),
    );
    columns.reals(
        Field::number("hbm_bandwidth", "HBM bandwidth in B/s according to the profiler.")
            .nullable(),
        facts.iter().map(|own| real(own.hbm_bandwidth)),
    );
    columns.numbers(
        Field::bytes("memory_bytes", "Device memory according to the profiler.").nullable(),
        facts.iter().map(|own| integer(own.memory_bytes)),
    );
    columns.numbers(
        Field::count("cores", "Streaming multiprocessors of a GPU.").nullable(),
        facts.iter().map(|own| integer(own.cores)),
    );
    columns
}

/// The length of a union of intervals, which come sorted by track and begin.
#[derive(Default)]
struct Union {
    track: Option<u32>,
    end: i64,
}

impl Union {
    /// What the interval adds to the union of those before it on the same track.
    fn add(&mut self, track: u32, start: i64, length: i64) -> i64 {
        if self.track != Some(track) {
            *self = Union { track: Some(track), end: i64::MIN };
        }
        let end = start.saturating_add(length);
        let added = end.saturating_sub(start.max(self.end)).max(0);
        self.end = self.end.max(end);
        added
    }
}

/// One row per program that ran.
pub fn profiled_programs(loaded: &Loaded) -> Columns {
    let profile = &*loaded.profile;
    let programs = &profile.programs;
    let count = programs.len();
    let (mut launches, mut spent) = (vec![0i64; count], vec![0i64; count]);
    for launch in &profile.launches {
        if let Some(launches) = launches.get_mut(launch.program as usize) {
            *launches += 1;
            let spent = &mut spent[launch.program as usize];
            *spent = spent.saturating_add(launch.duration_ps);
        }
    }
    let (mut events, mut busy) = (vec![0i64; count], vec![0i64; count]);
    let own = &profile.events;
    let mut unions: Vec<Union> = programs.iter().map(|_| Union::default()).collect();
    for at in 0..own.len() {
        let (track, program) = (own.track[at], own.program[at]);
        if program == NONE || program as usize >= count {
            continue;
        }
        events[program as usize] += 1;
        if profile.tracks[track as usize].kind != TrackKind::Async {
            let union = &mut unions[program as usize];
            let added = union.add(track, own.start_ps[at], own.duration_ps[at]);
            busy[program as usize] = busy[program as usize].saturating_add(added);
        }
    }
    let ids: HashSet<u64> = loaded.modules.iter().map(|own| own.module.id).collect();
    let names: HashSet<&str> = loaded.modules.iter().map(|own| &*own.module.name).collect();
    let is_embedded = |id: Option<u64>, name: &str| match id {
        Some(id) => ids.contains(&id),
        None => names.contains(name),
    };
    let mut columns = Columns::default();
    columns.texts(
        Field::name("program", "The module's name.").nullable(),
        programs.iter().map(|own| &*own.name),
    );
    // As text: numbers of TPU programs are fingerprints of 64 bits without sign.
    columns.texts(
        Field::name("program_id", "The profiler's number of the program.").nullable(),
        programs.iter().map(|own| own.id.map(|id| id.to_string()).unwrap_or_default()),
    );
    columns.numbers(
        Field::count("launches", "Executions, counted on every device.").summed(),
        launches.iter().copied(),
    );
    columns.reals(
        Field::seconds("launched", "Seconds of all executions; unknown if none is marked.")
            .nullable()
            .summed(),
        spent.iter().zip(&launches).map(|(spent, count)| match count {
            0 => f64::NAN,
            _ => seconds(*spent),
        }),
    );
    columns.numbers(
        Field::count("events", "Events of its instructions.").summed(),
        events.into_iter(),
    );
    columns.reals(
        Field::seconds(
            "busy",
            "Seconds with an event of the program, summed over streams or threads, without \
            asynchronous operations.",
        )
        .summed(),
        busy.into_iter().map(seconds),
    );
    columns.flags(
        Field::flag("has_module", "Whether the profile holds its module."),
        programs.iter().map(|own| is_embedded(own.id, &own.name)),
    );
    columns
}

/// One row per execution of a program on a device.
pub fn profiled_launches(profile: &Profile) -> Columns {
    let launches = &profile.launches;
    let at = |index: u32| profile.devices.get(index as usize);
    let program = |index: u32| profile.programs.get(index as usize);
    let mut columns = Columns::default();
    columns.texts(
        host_field(),
        launches.iter().map(|own| at(own.device).map_or("", |device| host(profile, device.host))),
    );
    columns.texts(device_field(), launches.iter().map(|own| device(profile, Some(own.device))));
    columns.texts(
        Field::name("program", "The module's name.").nullable(),
        launches.iter().map(|own| program(own.program).map_or("", |program| &program.name)),
    );
    columns.texts(
        Field::name("program_id", "The profiler's number of the program.").nullable(),
        launches.iter().map(|own| {
            let id = program(own.program).and_then(|program| program.id);
            id.map(|id| id.to_string()).unwrap_or_default()
        }),
    );
    columns.numbers(
        Field::index("run", "The number that one execution has on all devices.")
            .nullable()
            .signed(),
        // Some profilers write a hash, which may be negative.
        launches.iter().map(|own| own.run.map_or(i64::MIN, |run| run as i64)),
    );
    columns.reals(start_field(), launches.iter().map(|own| seconds(own.start_ps)));
    columns.reals(duration_field(), launches.iter().map(|own| seconds(own.duration_ps)));
    columns
}

/// One row per marked step.
pub fn profiled_steps(profile: &Profile) -> Columns {
    let steps = &profile.steps;
    let mut columns = Columns::default();
    columns.texts(host_field(), steps.iter().map(|own| host(profile, own.host)));
    columns.texts(
        Field::name("device", "The device; unknown for a step that the host marked.").nullable(),
        steps.iter().map(|own| device(profile, own.device)),
    );
    columns.numbers(
        Field::index("number", "The number of the step.").nullable().signed(),
        steps.iter().map(|own| own.number.unwrap_or(i64::MIN)),
    );
    columns.reals(start_field(), steps.iter().map(|own| seconds(own.start_ps)));
    columns.reals(duration_field(), steps.iter().map(|own| seconds(own.duration_ps)));
    columns
}

/// One row per module inside the files.
pub fn profiled_modules(loaded: &Loaded) -> Columns {
    let modules = &loaded.modules;
    let mut columns = Columns::default();
    let own_host = |space: usize| loaded.hosts.get(space).copied().unwrap_or(0);
    columns
        .texts(host_field(), modules.iter().map(|own| host(&loaded.profile, own_host(own.space))));
    columns.texts(
        Field::name("module", "The module's name."),
        modules.iter().map(|own| &*own.module.name),
    );
    columns.texts(
        Field::name("label", "The profiler's name: module name and number."),
        modules.iter().map(|own| &*own.module.label),
    );
    columns.texts(
        Field::name("program_id", "The profiler's number of the program."),
        modules.iter().map(|own| own.module.id.to_string()),
    );
    columns.numbers(
        Field::bytes("bytes", "Bytes of its protobuf.").summed(),
        modules.iter().map(|own| own.module.length() as i64),
    );
    columns
}

/// One row per line of the files' planes; a plane without lines has one row.
pub fn profiled_lines(loaded: &Loaded) -> Columns {
    let rows = loaded.lines();
    let mut columns = Columns::default();
    columns.texts(host_field(), rows.iter().map(|row| host(&loaded.profile, row.host)));
    columns.texts(Field::name("plane", "The plane."), rows.iter().map(|row| &row.plane));
    columns.texts(
        Field::name("line", "The line; unknown for a plane without lines.").nullable(),
        rows.iter().map(|row| &row.line),
    );
    columns.texts(
        Field::word(
            "read_as",
            "How hlofast reads the line: ops, async, stream, modules, steps or threads.",
        )
        .nullable(),
        rows.iter().map(|row| row.read_as),
    );
    columns.numbers(Field::count("events", "Events.").summed(), rows.iter().map(|row| row.events));
    columns.reals(
        Field::seconds("duration", "Seconds from the first start to the last end."),
        rows.iter().map(|row| seconds(row.duration_ps)),
    );
    columns
}
