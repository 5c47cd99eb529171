//! What rules find.

use crate::Provenance;
use crate::flow::Phase;
use crate::ir::Row;

/// What is found. Names are stable: continuous integration fails on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Code {
    /// An all-reduce whose result each device takes its own part of: a reduce-scatter does.
    MissedReduceScatter,
    /// Arrays that are reduced apart and then added.
    ReducedTwice,
    /// A gather of what the devices hold already.
    GatheredTwice,
    /// Collectives that recomputation repeats.
    RecomputedCollectives,
    /// Products of 32-bit copies of 16-bit parameters.
    LowPrecisionInF32,
    /// Matrix products with a one-hot matrix.
    OneHotMatmul,
    /// Large parameters that several devices hold the same of.
    ReplicatedParameter,
    /// Asynchronous collectives with nothing to do meanwhile.
    NotOverlapped,
    /// Arrays made whole on every device only to be cut again.
    FullRematerialisation,
    /// Collectives in a loop that give the same in every iteration.
    LoopInvariantCollective,
    /// Copies of weights in a wider type, kept from forward to backward.
    WidenedWeightsKept,
}

impl Code {
    /// Every code, in the order of the rules.
    pub const ALL: [Code; 11] = [
        Code::MissedReduceScatter,
        Code::ReducedTwice,
        Code::GatheredTwice,
        Code::RecomputedCollectives,
        Code::LowPrecisionInF32,
        Code::OneHotMatmul,
        Code::ReplicatedParameter,
        Code::NotOverlapped,
        Code::FullRematerialisation,
        Code::LoopInvariantCollective,
        Code::WidenedWeightsKept,
    ];

    /// The name people and programs use.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::MissedReduceScatter => "missed-reduce-scatter",
            Code::ReducedTwice => "reduced-twice",
            Code::GatheredTwice => "gathered-twice",
            Code::RecomputedCollectives => "recomputed-collectives",
            Code::LowPrecisionInF32 => "low-precision-in-f32",
            Code::OneHotMatmul => "one-hot-matmul",
            Code::ReplicatedParameter => "replicated-parameter",
            Code::NotOverlapped => "not-overlapped",
            Code::FullRematerialisation => "full-rematerialisation",
            Code::LoopInvariantCollective => "loop-invariant-collective",
            Code::WidenedWeightsKept => "widened-weights-kept",
        }
    }
}

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
    /// What it is.
    pub code: Code,
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
