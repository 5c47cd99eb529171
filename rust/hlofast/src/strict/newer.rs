//! Constructs, other than attributes, that only XLA newer than jaxlib 0.10.2 understands.

/// A construct, other than an attribute, that jaxlib 0.10.2 and newer XLA treat differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Newer {
    /// `%x#1#0`: an operand that is a tuple element.
    CompactOperands,
    /// More operands of updates and dones, starts without operands, and starts connected to updates
    /// and dones through other operations.
    LateOperands,
    /// A computation shared by several asynchronous operations.
    SharedComputations,
    /// `unreduced=max{'a'}` in shardings over a mesh.
    UnreducedKinds,
    /// Tile assignments and iota groups must have as many devices as their dimensions imply; only
    /// newer XLA demands this.
    DeviceCounts,
}

/// All constructs, which `Checker::allows` accepts in strict mode "newest".
pub(super) const NEWEST_CONSTRUCTS: &[Newer] = &[
    Newer::CompactOperands,
    Newer::LateOperands,
    Newer::SharedComputations,
    Newer::UnreducedKinds,
    Newer::DeviceCounts,
];
