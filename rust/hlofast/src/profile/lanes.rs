//! What the planes and lines of profilers are, by their names.
//!
//! The names are those of `xplane_schema.cc` (xla/tsl/profiler/utils of openxla/xla) and of the
//! collectors: `cupti_collector.cc` names the streams of a GPU, libtpu the lines of a core.

use super::events::{DeviceKind, TrackKind};

/// What a plane, or a process of a trace, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lanes<'a> {
    /// A device, or a part of one that works beside it.
    Device {
        /// The device's name, such as `/device:TPU:0`.
        name: &'a str,
        /// Its number.
        ordinal: Option<u32>,
        /// Its kind.
        kind: DeviceKind,
        /// The part, such as `SparseCore 1`; empty for the device itself.
        part: &'a str,
    },
    /// The threads of a host.
    Threads,
    /// Another one.
    Other,
}

/// What a line, or a thread of a trace, is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Events of a track of this kind.
    Events(TrackKind),
    /// Executions of programs.
    Modules,
    /// Steps.
    Steps,
    /// Something that another line has too, or that is not about instructions.
    Other,
}

/// The host that the name of a plane begins with, if any, and the rest of the name. Traces of
/// several hosts have both in one name.
pub(super) fn with_host(name: &str) -> (&str, &str) {
    let at = name.find("/device:").or_else(|| name.find("/host:")).unwrap_or(0);
    (name[..at].trim(), &name[at..])
}

/// What the plane `name` is.
pub(super) fn lanes(name: &str) -> Lanes<'_> {
    if name == "/host:CPU" {
        return Lanes::Threads;
    }
    let Some(rest) = name.strip_prefix("/device:") else { return Lanes::Other };
    let (head, part) = rest.split_once(' ').unwrap_or((rest, ""));
    let ordinal = head.rsplit(':').next().and_then(|digits| digits.parse().ok());
    let kind = match head.split(':').next() {
        Some("TPU") => DeviceKind::Tpu,
        Some("GPU") => DeviceKind::Gpu,
        Some("CPU") => DeviceKind::Cpu,
        _ => DeviceKind::Other,
    };
    match (kind, part) {
        (DeviceKind::Tpu, part) if part.is_empty() || part.starts_with("SparseCore") => {
            let name = &name[..name.len() - rest.len() + head.len()];
            Lanes::Device { name, ordinal, kind, part }
        }
        _ => Lanes::Device { name, ordinal, kind, part: "" },
    }
}

/// What the line `name` of a device is. With `has_streams` the device has the kernels themselves, so
/// that lines derived from them would count twice.
pub(super) fn lane(name: &str, kind: DeviceKind, part: &str, has_streams: bool) -> Lane {
    let is_stream = name.starts_with("Stream #");
    if !part.is_empty() {
        // A sparse core works beside the tensor core, whose launches and steps it shares.
        return match name {
            "Sparse Core Ops" | "XLA Ops" | "Async XLA Ops" => Lane::Events(TrackKind::Async),
            _ => Lane::Other,
        };
    }
    match name {
        _ if is_stream && kind != DeviceKind::Tpu => Lane::Events(TrackKind::Stream),
        "XLA Modules" => Lane::Modules,
        "Steps" => Lane::Steps,
        _ if has_streams => Lane::Other,
        "XLA Ops" => Lane::Events(TrackKind::Ops),
        "Async XLA Ops" | "Host Offload Ops" => Lane::Events(TrackKind::Async),
        _ => Lane::Other,
    }
}

/// The names of `lines` of a device with what each is read as; the empty word for lines that are not
/// read.
pub(super) fn read_as(lanes: Lanes<'_>, lines: &[impl AsRef<str>]) -> Vec<&'static str> {
    let has_streams = lines.iter().any(|name| is_stream(name.as_ref()));
    let word = |name: &str| match lanes {
        Lanes::Threads => "threads",
        Lanes::Device { kind, part, .. } => match lane(name, kind, part, has_streams) {
            Lane::Events(kind) => kind.as_str(),
            Lane::Modules => "modules",
            Lane::Steps => "steps",
            Lane::Other => "",
        },
        Lanes::Other => "",
    };
    lines.iter().map(|name| word(name.as_ref())).collect()
}

/// Whether a line of this name holds the kernels of a GPU stream.
pub(super) fn is_stream(name: &str) -> bool {
    name.starts_with("Stream #")
}

/// The number of a step from its name: `12`, or `train 12`.
pub(super) fn step_number(name: &str) -> Option<i64> {
    name.rsplit(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_of_devices() {
        let tpu = |part| Lanes::Device {
            name: "/device:TPU:3",
            ordinal: Some(3),
            kind: DeviceKind::Tpu,
            part,
        };
        assert_eq!(lanes("/device:TPU:3"), tpu(""));
        assert_eq!(lanes("/device:TPU:3 SparseCore 1"), tpu("SparseCore 1"));
        assert_eq!(lanes("/host:CPU"), Lanes::Threads);
        assert_eq!(lanes("/host:metadata"), Lanes::Other);
        assert_eq!(with_host("vm-3 /device:TPU:3"), ("vm-3", "/device:TPU:3"));
        assert_eq!(with_host("Task Environment"), ("", "Task Environment"));
    }

    #[test]
    fn steps_by_name() {
        assert_eq!(step_number("12"), Some(12));
        assert_eq!(step_number("train 7"), Some(7));
        assert_eq!(step_number("train"), None);
    }
}
