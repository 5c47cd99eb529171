//! Loads the files of one run, one per host, as one profile.

use super::build::Builder;
use super::events::{DeviceKind, Profile};
use super::lanes::{Lanes, lanes, with_host};
use super::xplane::{Embedded, Plane, Space, Value, is_space};
use crate::error::{ErrorKind, ParseError, Result};
use crate::text::{SharedBytes, Source, Span, decompress};
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

/// The files of a run and the profile that they make.
pub struct Loaded {
    /// What ran.
    pub profile: Arc<Profile>,
    /// The contents of the files that are XSpaces, one per host.
    pub spaces: Vec<Arc<Space>>,
    /// The host of each space in [`Profile::hosts`].
    pub hosts: Vec<u32>,
    /// The modules in them: programs of one name and number once.
    pub modules: Vec<Module>,
    /// What the profile says of each of its devices.
    pub facts: Vec<DeviceFacts>,
    /// What went wrong while it was recorded, with the host.
    pub errors: Vec<(u32, Box<str>)>,
    /// What the profiler warns of, with the host.
    pub warnings: Vec<(u32, Box<str>)>,
}

/// Loads the files of one run. An error comes with the number of its file.
///
/// Decompressed files may have `max_bytes`, or [`crate::text::DEFAULT_MAX_BYTES`] if None.
pub fn load(
    files: &[File],
    max_bytes: Option<u64>,
) -> std::result::Result<Loaded, (usize, ParseError)> {
    let mut builder = Builder::default();
    let mut spaces: Vec<Arc<Space>> = Vec::new();
    let (mut errors, mut warnings, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
    for (number, file) in files.iter().enumerate() {
        let space = read(file, max_bytes).map_err(|error| (number, error))?;
        let host = builder.profile.hosts.len() as u32;
        let name = host_name(file, &space, &builder.profile.hosts);
        space.add_to(&mut builder, &name).map_err(|error| (number, error))?;
        let text = |text: &[u8]| -> Box<str> { String::from_utf8_lossy(text).into() };
        errors.extend(space.errors().map(|message| (host, text(message))));
        warnings.extend(space.warnings().map(|message| (host, text(message))));
        hosts.push(host);
        spaces.push(Arc::new(space));
    }
    let modules = modules(&spaces);
    let names: Vec<(u64, Box<str>)> =
        modules.iter().map(|own| (own.module.id, own.module.name.clone())).collect();
    let mut profile = builder.finish(&names).map_err(|error| (0, error))?;
    let facts = device_facts(&mut profile, &spaces);
    Ok(Loaded { profile: Arc::new(profile), spaces, hosts, modules, facts, errors, warnings })
}

impl Loaded {
    /// The text of an embedded module; `path` names the file in messages.
    pub fn module_text(&self, module: &Module, path: Option<&str>) -> Result<Source> {
        match self.spaces.get(module.space) {
            Some(space) => space.module_text(&module.module, path),
            None => Err(ParseError::new(ErrorKind::NoModule, Span::EMPTY, "no such module")),
        }
    }
}

/// Reads one file.
fn read(file: &File, max_bytes: Option<u64>) -> Result<Space> {
    let bytes = match decompress((*file.bytes).as_ref(), max_bytes)? {
        Some(bytes) => Arc::new(bytes),
        None => SharedBytes::clone(&file.bytes),
    };
    let whole = (*bytes).as_ref();
    if !is_space(whole) {
        // An empty XSpace is an empty file.
        return Err(match crate::proto::is_proto(whole) {
            true => not_a_profile("a protobuf that is not a profile (XSpace)"),
            false => not_a_profile("this is not a profile"),
        });
    }
    Space::read(bytes)
}

#[cold]
fn not_a_profile(message: &str) -> ParseError {
    ParseError::new(ErrorKind::NotHlo, Span::EMPTY, message)
        .with_help("give an *.xplane.pb that jax.profiler wrote, or the folder that holds it")
}

/// The name of the host of a file: the one that it gives unless another file gives the same one, or
/// else the beginning of the file's name.
fn host_name(file: &File, space: &Space, others: &[Box<str>]) -> String {
    let mut given = space.hostnames();
    let own = match (given.next(), given.next()) {
        (Some(name), None) if !name.is_empty() => Some(String::from_utf8_lossy(name).into_owned()),
        _ => None,
    };
    let is_free = |name: &str| others.iter().all(|other| &**other != name);
    let stem = file.path.as_deref().map(|path| {
        let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
        name.split_once(".xplane.pb").map_or(name, |(stem, _)| stem).to_owned()
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
    let mut seen = std::collections::HashSet::new();
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

/// What the planes of devices say of them, which includes the chips' names.
fn device_facts(profile: &mut Profile, spaces: &[Arc<Space>]) -> Vec<DeviceFacts> {
    let mut facts = vec![DeviceFacts::default(); profile.devices.len()];
    for (device, facts) in profile.devices.iter_mut().zip(&mut facts) {
        let Some(space) = spaces.get(device.host as usize) else { continue };
        let whole = space.bytes();
        let plane = space.planes().iter().find(|plane| {
            let name = String::from_utf8_lossy(plane.name(whole));
            matches!(lanes(with_host(&name).1),
                Lanes::Device { name, part: "", .. } if name == &*device.name)
        });
        if let Some(plane) = plane {
            device.chip = read_facts(facts, plane, whole, device.kind);
        }
    }
    facts
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
