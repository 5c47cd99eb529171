//! Apart from attributes, what only XLA newer than jaxlib 0.10.2 understands.

/// A construct on which XLA newer than jaxlib 0.10.2 differs from it, apart from attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Newer {
    /// `%x#1#0`: an operand that is an element of a tuple.
    CompactOperands,
    /// Further operands of updates and dones, starts without operands, and starts that reach
    /// updates and dones through other operations.
    LateOperands,
    /// A computation that several asynchronous operations run.
    SharedComputations,
    /// `unreduced=max{'a'}` in shardings over a mesh.
    UnreducedKinds,
    /// Tile assignments and iota groups must have as many devices as their dimensions say. This
    /// one is stricter than before.
    DeviceCounts,
}

/// All of them: what `Checker::allows` answers for strict mode "newest".
pub(super) const NEWEST_CONSTRUCTS: &[Newer] = &[
    Newer::CompactOperands,
    Newer::LateOperands,
    Newer::SharedComputations,
    Newer::UnreducedKinds,
    Newer::DeviceCounts,
];
