//! How memory is counted.

use super::schedule::Order;

/// Which values share memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// As XLA's live-range file: values that must share a buffer do, and where one takes over from
    /// another both count in that step. The peak is where that file puts it.
    Values,
    /// Results may also take the memory of operands that end with them, as in XLA's buffer
    /// assignment; a buffer counts once. Pipeline markers hand on what they are given.
    #[default]
    InPlace,
    /// As libtpu's account of a compiled program: parameters, constants and results that take no
    /// parameter's memory stay from beginning to end, the rest shares buffers where it must.
    Xla,
}

impl Rule {
    /// The word used in options, tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Rule::Values => "values",
            Rule::InPlace => "in_place",
            Rule::Xla => "xla",
        }
    }
}

/// What an array takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sizes {
    /// On the module's backend: in whole tiles, elements as the layout says.
    #[default]
    Device,
    /// Number of elements times their bytes.
    Logical,
}

impl Sizes {
    /// The word used in options, tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Sizes::Device => "device",
            Sizes::Logical => "logical",
        }
    }
}

/// How long constants stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Constants {
    /// From where they stand to their last use.
    #[default]
    LastUse,
    /// While the program runs.
    Program,
}

impl Constants {
    /// The word used in options, tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Constants::LastUse => "last_use",
            Constants::Program => "program",
        }
    }
}

/// Which memory counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// One memory space, by the number in layouts (`S(5)`); 0 is the device's main memory.
    One(i64),
    /// All of them.
    All,
}

impl Default for Space {
    fn default() -> Self {
        Space::One(0)
    }
}

/// How to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Which values share memory.
    pub rule: Rule,
    /// What an array takes.
    pub sizes: Sizes,
    /// How long constants stay.
    pub constants: Constants,
    /// Which memory counts.
    pub space: Space,
    /// The order in which instructions run.
    pub order: Order,
}
