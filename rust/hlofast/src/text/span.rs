//! Byte ranges with 32-bit ends.

use std::fmt;
use std::ops::Range;

/// A half-open byte range into a module's byte store: the source text, then the arena.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The empty span at offset 0.
    pub const EMPTY: Span = Span { start: 0, end: 0 };

    /// A span from `start` to `end`. Texts are below 4 GiB (`Source` checks it), so offsets fit.
    #[inline]
    pub fn new(start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end <= u32::MAX as usize);
        Self { start: start as u32, end: end as u32 }
    }

    /// The empty span at `offset`.
    #[inline]
    pub fn at(offset: usize) -> Self {
        Self::new(offset, offset)
    }

    /// Number of bytes.
    #[inline]
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether the span is empty.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The span as a range for slicing.
    #[inline]
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The span moved by `delta` bytes (saturating).
    #[must_use]
    pub fn shifted(self, delta: u32) -> Self {
        Self { start: self.start.saturating_add(delta), end: self.end.saturating_add(delta) }
    }

    /// The smallest span that holds both.
    #[must_use]
    pub fn to(self, other: Span) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}
