//! Loads the files of one run, one per host, as one profile.

use super::build::Builder;
use super::chrome;
use super::events::{DeviceKind, Profile};
use super::lanes::{Lanes, lanes, with_host};
use super::xplane::{Embedded, Plane, Space, Value, is_space};
use crate::error::{ErrorKind, ParseError, Result};
use crate::text::{Compression, SharedBytes, Source, Span, decompress, decompress_head};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// One file of a run.
#[derive(Clone)]
pub struct File {
    /// The bytes, possibly compressed.
    pub bytes: SharedBytes,
    /// The path, for messages; also names the host where the file does not.
    pub path: Option<Box<str>>,
}

/// A module inside one of the files.
#[derive(Clone, Debug)]
pub struct Module {
    /// The file, by its place in [`Loaded::spaces`].
    pub space: usize,
    /// The module.
    pub module: Embedded,
}

/// What a profile says of a device; None for what it does not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceFacts {
    /// Peak FLOP/s, in the precision that the profiler counts (bf16 on TPUs).
    pub peak_flops: Option<f64>,
    /// Bytes per second between the chip and its HBM.
    pub hbm_bandwidth: Option<f64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Number of cores: streaming multiprocessors of a GPU.
    pub cores: Option<u64>,
    /// Clock in Hz.
    pub clock_hz: Option<f64>,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct LineRow {
    /// The host in [`Profile::hosts`].
    pub host: u32,
    /// The plane.
    pub plane: String,
    /// The line; empty for a plane without lines.
    pub line: String,
    /// What it is read as: ops, async, stream, modules, steps or threads; or empty.
    pub read_as: &'static str,
    /// Number of events.
    pub events: i64,
    /// Picoseconds from the first begin to the last end.
    pub duration_ps: i64,
}

/// The files of a run and the profile that they make.
pub struct Loaded {
    /// What ran.
    pub profile: Arc<Profile>,
    /// The contents of the files that are XSpaces, one per host.
    pub spaces: Vec<Arc<Space>>,
    /// The host of each space in [`Profile::hosts`].
    pub hosts: Vec<u32>,
    /// The file of each space, by its place among those given.
    pub files: Vec<usize>,
    /// The lines of files in Chrome's trace format.
    pub trace_lines: Vec<LineRow>,
    /// The modules in them: programs of one name and number once.
    pub modules: Vec<Module>,
    /// What the profile says of each of its devices.
    pub facts: Vec<DeviceFacts>,
    /// What went wrong while it was recorded, with the host.
    pub errors: Vec<(u32, Box<str>)>,
    /// What the profiler warns of, with the host.
    pub warnings: Vec<(u32, Box<str>)>,
}

impl Loaded {
    /// A profile without files: no contents, modules or facts.
    pub fn of(profile: Profile) -> Self {
        let facts = vec![DeviceFacts::default(); profile.devices.len()];
        Self {
            profile: Arc::new(profile),
            spaces: Vec::new(),
            hosts: Vec::new(),
            files: Vec::new(),
            trace_lines: Vec::new(),
            modules: Vec::new(),
            facts,
            errors: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

/// Loads the files of one run. An error comes with the number of its file.
///
/// Decompressed files may have `max_bytes`, or [`crate::text::DEFAULT_MAX_BYTES`] if None.
pub fn load(
    files: &[File],
    max_bytes: Option<u64>,
) -> std::result::Result<Loaded, (usize, ParseError)> {
    let mut builder = Builder::default();
    let mut loaded = Loaded {
        profile: Arc::default(),
        spaces: Vec::new(),
        hosts: Vec::new(),
        files: Vec::new(),
        trace_lines: Vec::new(),
        modules: Vec::new(),
        facts: Vec::new(),
        errors: Vec::new(),
        warnings: Vec::new(),
    };
    for (number, file) in files.iter().enumerate() {
        let added = loaded.add(&mut builder, number, file, max_bytes);
        added.map_err(|error| (number, error))?;
    }
    loaded.modules = modules(&loaded.spaces);
    let names: Vec<(u64, Box<str>)> =
        loaded.modules.iter().map(|own| (own.module.id, own.module.name.clone())).collect();
    let mut profile = builder.finish(&names).map_err(|error| (0, error))?;
    loaded.facts = loaded.device_facts(&mut profile);
    loaded.profile = Arc::new(profile);
    Ok(loaded)
}

impl Loaded {
    /// Adds a file.
    fn add(
        &mut self,
        builder: &mut Builder,
        number: usize,
        file: &File,
        max_bytes: Option<u64>,
    ) -> Result<()> {
        let bytes = match decompress(&file.bytes, max_bytes)? {
            Some(bytes) => bytes.into(),
            None => SharedBytes::clone(&file.bytes),
        };
        let whole = &bytes[..];
        let host = builder.profile.hosts.len() as u32;
        if chrome::is_trace(whole.get(..HEAD).unwrap_or(whole)) {
            let name = host_name(file, None, &builder.profile.hosts);
            let lines = chrome::add_to(builder, whole, &name)?;
            self.trace_lines.extend(lines);
            return Ok(());
        }
        if !is_space(whole) {
            return Err(not_a_profile(whole));
        }
        let space = Space::read(bytes)?;
        let name = host_name(file, Some(&space), &builder.profile.hosts);
        space.add_to(builder, &name)?;
        let text = |text: &[u8]| -> Box<str> { String::from_utf8_lossy(text).into() };
        self.errors.extend(space.errors().map(|message| (host, text(message))));
        self.warnings.extend(space.warnings().map(|message| (host, text(message))));
        self.hosts.push(host);
        self.files.push(number);
        self.spaces.push(Arc::new(space));
        Ok(())
    }

    /// What the planes of devices say of them, which includes the chips' names.
    fn device_facts(&self, profile: &mut Profile) -> Vec<DeviceFacts> {
        let mut planes = HashMap::new();
        for (space, host) in self.spaces.iter().zip(&self.hosts) {
            for plane in space.planes() {
                let name = String::from_utf8_lossy(plane.name(space.bytes()));
                if let Lanes::Device { name, part: "", .. } = lanes(with_host(&name).1) {
                    planes.entry((*host, name.to_owned())).or_insert((plane, space.bytes()));
                }
            }
        }
        let mut facts = vec![DeviceFacts::default(); profile.devices.len()];
        for (device, facts) in profile.devices.iter_mut().zip(&mut facts) {
            if let Some((plane, whole)) = planes.get(&(device.host, device.name.to_string())) {
                device.chip = read_facts(facts, plane, whole, device.kind);
            }
        }
        facts
    }

    /// The lines of the files, in their order; a plane without lines has one row.
    pub fn lines(&self) -> Vec<LineRow> {
        let mut rows = Vec::new();
        for (space, host) in self.spaces.iter().zip(&self.hosts) {
            space
                .planes()
                .iter()
                .for_each(|plane| plane_rows(plane, space.bytes(), *host, &mut rows));
        }
        rows.extend(self.trace_lines.iter().cloned());
        rows
    }

    /// The text of an embedded module; `path` names the file in messages.
    pub fn module_text(&self, module: &Module, path: Option<&str>) -> Result<Source> {
        match self.spaces.get(module.space) {
            Some(space) => space.module_text(&module.module, path),
            None => Err(ParseError::new(ErrorKind::NoModule, Span::EMPTY, "no such module")),
        }
    }
}

/// The rows of a plane of a host.
fn plane_rows(plane: &Plane, whole: &[u8], host: u32, rows: &mut Vec<LineRow>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let name = text(plane.name(whole));
    for (line, read_as) in plane.lines().iter().zip(plane.read_as(whole)) {
        let line_name = match (line.name(whole), line.display_name(whole)) {
            (b"", b"") => line.id.to_string(),
            (b"", shown) => text(shown),
            (own, _) => text(own),
        };
        let (mut first, mut last) = (i64::MAX, i64::MIN);
        for event in line.events(whole) {
            first = first.min(event.offset_ps);
            last = last.max(event.offset_ps.saturating_add(event.duration_ps.max(0)));
        }
        let events = line.event_count() as i64;
        let duration_ps = if events == 0 { 0 } else { last.saturating_sub(first) };
        let plane = name.clone();
        rows.push(LineRow { host, plane, line: line_name, read_as, events, duration_ps });
    }
    if plane.lines().is_empty() {
        let (line, read_as) = (String::new(), "");
        rows.push(LineRow { host, plane: name, line, read_as, events: 0, duration_ps: 0 });
    }
}

/// How much of a file shows what it is.
const HEAD: usize = 64 << 10;

/// Whether a file that begins with `head` (at least 64 KiB, or all of it) is a profile, possibly
/// compressed.
pub fn is_profile(head: &[u8]) -> bool {
    let unpacked = Compression::of(head).map(|_| decompress_head(head, HEAD));
    let head = unpacked.as_deref().unwrap_or(head);
    is_space(head) || chrome::is_trace(head.get(..HEAD).unwrap_or(head))
}

#[cold]
fn not_a_profile(whole: &[u8]) -> ParseError {
    let message = match crate::proto::is_proto(whole) {
        true => "a protobuf that is not a profile (XSpace)",
        false => "this is not a profile",
    };
    ParseError::new(ErrorKind::NotHlo, Span::EMPTY, message).with_help(
        "give an *.xplane.pb or *.trace.json.gz that jax.profiler wrote, or the folder that holds it",
    )
}

/// The name of the host of a file: the one that it gives unless another file gives the same one, or
/// else the beginning of the file's name.
fn host_name(file: &File, space: Option<&Space>, others: &[Box<str>]) -> String {
    let mut given = space.into_iter().flat_map(Space::hostnames);
    let own = match (given.next(), given.next()) {
        (Some(name), None) if !name.is_empty() => Some(String::from_utf8_lossy(name).into_owned()),
        _ => None,
    };
    let is_free = |name: &str| others.iter().all(|other| &**other != name);
    let stem = file.path.as_deref().map(|path| {
        let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
        let ends = [".xplane.pb", ".trace.json"];
        let end = ends.iter().find_map(|end| name.find(end));
        name[..end.unwrap_or(name.len())].to_owned()
    });
    let names = [own.clone(), stem.clone()].into_iter().flatten().filter(|name| !name.is_empty());
    let first = names.clone().find(|name| is_free(name));
    first.unwrap_or_else(|| {
        let name = own.or(stem).unwrap_or_else(|| "host".to_owned());
        let numbered = |number| format!("{name} {number}");
        let free = (2..).map(numbered).find(|name| is_free(name));
        if is_free(&name) { name } else { free.unwrap_or_default() }
    })
}

/// The modules of all files. Hosts that ran the same program have the same module; a program of one
/// name and number whose protobufs differ in length is kept for each.
fn modules(spaces: &[Arc<Space>]) -> Vec<Module> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for (number, space) in spaces.iter().enumerate() {
        for module in space.modules() {
            if seen.insert((module.label.clone(), module.id, module.length())) {
                found.push(Module { space: number, module });
            }
        }
    }
    found
}

/// Fills `facts` from the stats of a device's plane; returns the chip's name.
///
/// Units are those of `device_caps_utils.cc` of xprof and of `cupti_collector.cc`.
fn read_facts(
    facts: &mut DeviceFacts,
    plane: &Plane,
    whole: &[u8],
    kind: DeviceKind,
) -> Option<Box<str>> {
    let mut chip = None;
    for stat in plane.own_stats(whole) {
        let name = plane.stat_name(whole, stat.id);
        let Some(value) = stat.value else { continue };
        let number = value.number().filter(|number| *number > 0.0 && number.is_finite());
        match name {
            b"peak_teraflops_per_second" => facts.peak_flops = number.map(|own| own * 1e12),
            b"peak_hbm_bw_gigabytes_per_second" => {
                facts.hbm_bandwidth = number.map(|own| own * 1e9);
            }
            // GPUs: bytes per second, from the memory's clock and width.
            b"memory_bandwidth" if facts.hbm_bandwidth.is_none() => facts.hbm_bandwidth = number,
            b"memory_size" => facts.memory_bytes = value.integer().map(|bytes| bytes as u64),
            b"core_count" => facts.cores = value.integer().map(|count| count as u64),
            b"clock_rate" => facts.clock_hz = number.map(|own| own * 1e3),
            b"device_type_string" | b"gpu_device_name" => {
                let text = match value {
                    Value::Text(text) | Value::Bytes(text) => text,
                    Value::Reference(id) => plane.stat_name(whole, id as i64),
                    _ => b"",
                };
                if !text.is_empty() && (chip.is_none() || kind == DeviceKind::Gpu) {
                    chip = Some(String::from_utf8_lossy(text).into());
                }
            }
            _ => {}
        }
    }
    chip
}
