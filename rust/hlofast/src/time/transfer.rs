//! What rows of a schedule do to the links between devices.

/// A row's effect on the links.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Transfer {
    None,
    /// Runs this collective synchronously.
    Now(u32),
    /// Starts this collective.
    Start(u32),
    /// Starts this collective, for whose end another computation waits.
    LetGo(u32),
    /// Waits for this collective.
    Done(u32),
    /// Waits for all runs of this collective, which another computation starts.
    Await(u32),
}
