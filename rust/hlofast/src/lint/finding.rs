//! What rules report.

use crate::Provenance;
use crate::flow::Phase;
use crate::ir::Row;

/// The meaning of a finding's bytes. All byte counts are per device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Bytes sent per step, with ring algorithms.
    Wire,
    /// Bytes of the arrays that collectives work on, per step.
    Payload,
    /// Bytes of memory on one device.
    Memory,
    /// Bytes of memory that parameters take on one device, in any text.
    Parameters,
    /// Bytes of memory of arrays; before partitioning, of all devices together.
    Arrays,
    /// Bytes read from and written to memory, per step.
    Traffic,
    /// The finding is about FLOPs, not bytes.
    None,
}

impl Measure {
    /// The name used in tables and JSON; empty for `None`.
    pub fn as_str(self) -> &'static str {
        match self {
            Measure::Wire => "wire",
            Measure::Payload => "payload",
            Measure::Memory | Measure::Parameters | Measure::Arrays => "memory",
            Measure::Traffic => "traffic",
            Measure::None => "",
        }
    }

    /// What the bytes are of, as text after a number.
    pub fn of(self) -> &'static str {
        match self {
            Measure::Parameters => "of parameters",
            measure => measure.as_str(),
        }
    }

    /// Whether the bytes are bytes of memory.
    pub fn is_memory(self) -> bool {
        matches!(self, Measure::Memory | Measure::Parameters | Measure::Arrays)
    }
}

/// A number behind a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The name of the figure.
    pub name: &'static str,
    /// The value of the figure.
    pub value: u64,
}

/// By how much the memory of a step falls if what a finding names changes and all else stays
/// (`memory::memory_after`), bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Falls {
    /// The peak.
    pub peak: u64,
    /// What XLA allocates, gaps between values among it; None if unknown.
    pub allocated: Option<u64>,
    /// The bytes of the gaps that XLA allocates now; None if unknown.
    pub gaps: Option<u64>,
}

/// A finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The code of the rule. Codes are stable: continuous integration fails on them.
    pub code: &'static str,
    /// Instructions: the most costly first, then further evidence.
    pub rows: Vec<Row>,
    /// The instruction whose source line is the line of the finding: the first one that has a source,
    /// or the one that makes what the first one moves. None if no source is known.
    pub source: Option<Row>,
    /// Number of places that the finding combines: places on one source line or, for some rules,
    /// with the same devices.
    pub places: u64,
    /// Bytes at stake per step and device; None if unknown or if the finding is not about bytes.
    pub bytes: Option<u64>,
    /// The kind of `bytes`: wire, payload, memory or traffic.
    pub measure: Measure,
    /// By how much memory falls; None if unknown, or if the rule does not say.
    pub falls: Option<Falls>,
    /// FLOPs at stake per step; None if unknown or if the finding is not about FLOPs.
    pub flops: Option<u64>,
    /// Modelled seconds that the bytes or FLOPs at stake take per step, without overlap; None without
    /// a device, and for bytes of memory, which save time only through what they are used for.
    pub seconds: Option<f64>,
    /// The numbers behind the message.
    pub figures: Vec<Figure>,
    /// The parameters of the program that the finding is about.
    pub parameters: Vec<Row>,
    /// The phases of the places, each once.
    pub phases: Vec<Phase>,
    /// Whether more may be at stake: an instruction runs in a loop of unknown trip count, or arrays
    /// shrink that the compiler may then not need.
    pub is_lower_bound: bool,
    /// Provenance of the bytes or FLOPs at stake.
    pub provenance: Provenance,
    /// The description of the finding, with its figures.
    pub message: String,
    /// What to change.
    pub remedy: &'static str,
}

impl Finding {
    /// Whether the figures at stake are those of all devices together in a program that is not
    /// partitioned.
    pub fn is_of_all_devices(&self) -> bool {
        self.flops.is_some() || self.measure == Measure::Arrays
    }

    /// The value of figure `name`.
    pub fn figure(&self, name: &str) -> Option<u64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}

/// The findings of a module; findings with more at stake come first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// The findings.
    pub findings: Vec<Finding>,
}
