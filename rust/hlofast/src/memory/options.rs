//! Options for counting memory.

use super::schedule::Order;

/// Which values share memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// As in XLA's live-range file: values share a buffer only if they must, and in the step in
    /// which one value takes over from another, both count. The peak is at the step that the file
    /// would give.
    Values,
    /// As in XLA's buffer assignment: a result may also reuse the memory of an operand whose last
    /// use computes the result. A buffer counts once. Pipeline markers pass their operands on.
    #[default]
    InPlace,
    /// As in libtpu's account of a compiled program: parameters, constants and results that alias
    /// no parameter stay from beginning to end; other values share buffers only if they must.
    Xla,
}

impl Rule {
    /// The name used in options, tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Rule::Values => "values",
            Rule::InPlace => "in_place",
            Rule::Xla => "xla",
        }
    }
}

/// How the size of an array is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sizes {
    /// On the module's backend: whole tiles, with element sizes as in the layout.
    #[default]
    Device,
    /// Number of elements times bytes per element.
    Logical,
}

impl Sizes {
    /// The name used in options, tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Sizes::Device => "device",
            Sizes::Logical => "logical",
        }
    }
}

/// How long constants are live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Constants {
    /// From their position in the schedule to their last use.
    #[default]
    LastUse,
    /// For the whole program.
    Program,
}

impl Constants {
    /// The name used in options, tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Constants::LastUse => "last_use",
            Constants::Program => "program",
        }
    }
}

/// Which memory spaces count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// One memory space, by its number in layouts (`S(5)`); 0 is the device's main memory.
    One(i64),
    /// All memory spaces.
    All,
}

impl Default for Space {
    fn default() -> Self {
        Space::One(0)
    }
}

/// How memory is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Which values share memory.
    pub rule: Rule,
    /// How sizes are computed.
    pub sizes: Sizes,
    /// How long constants are live.
    pub constants: Constants,
    /// Which memory spaces count.
    pub space: Space,
    /// The order in which instructions run.
    pub order: Order,
}
