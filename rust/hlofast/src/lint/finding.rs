//! What rules find.

use crate::Provenance;
use crate::flow::Phase;
use crate::ir::Row;

/// What the bytes of a finding are. All are those of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Sent in a step, if collectives go around a ring.
    Wire,
    /// Of the arrays that collectives work on in a step.
    Payload,
    /// Held in memory.
    Memory,
    /// The finding has FLOPs at stake, no bytes.
    None,
}

impl Measure {
    /// The word tables and JSON use; empty for none.
    pub fn as_str(self) -> &'static str {
        match self {
            Measure::Wire => "wire",
            Measure::Payload => "payload",
            Measure::Memory => "memory",
            Measure::None => "",
        }
    }
}

/// A number behind a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// What it is.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
}

/// A finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What it is: the code of its rule. Codes are stable: continuous integration fails on them.
    pub code: &'static str,
    /// The instructions that prove it: the subjects, those with most at stake first, then others.
    pub rows: Vec<Row>,
    /// How many places it was found at that belong together: those of one source line, or, of some
    /// rules, of the same devices.
    pub places: u64,
    /// Bytes at stake in a step on each device; None if there are none or they are not known.
    pub bytes: Option<u64>,
    /// What these bytes are.
    pub measure: Measure,
    /// FLOPs at stake in a step; None if there are none or they are not known.
    pub flops: Option<u64>,
    /// The numbers that the message speaks of.
    pub figures: Vec<Figure>,
    /// The phases of the places, each once.
    pub phases: Vec<Phase>,
    /// What is at stake may be more: something runs in a loop of unknown trip count.
    pub is_lower_bound: bool,
    /// How what is at stake is known.
    pub provenance: Provenance,
    /// What was found, in words with the numbers.
    pub message: String,
    /// What to change.
    pub remedy: &'static str,
}

impl Finding {
    /// The value of figure `name`.
    pub fn figure(&self, name: &str) -> Option<u64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}

/// The findings of a module, those with most at stake first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// The findings.
    pub findings: Vec<Finding>,
}
