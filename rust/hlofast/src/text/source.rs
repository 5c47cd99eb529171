//! Where a module's text comes from: shared bytes, a range of them, and what to call them.

use std::ops::Range;
use std::sync::Arc;

/// Shared, immutable bytes of any owner (a Rust vector, a Python object).
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The text of one module: a range of shared bytes, so that modules found in one file share it.
#[derive(Clone)]
pub struct Source {
    bytes: SharedBytes,
    start: usize,
    end: usize,
    path: Option<Arc<str>>,
    lines_before: u64,
}

impl Source {
    /// The whole of `bytes`.
    pub fn new(bytes: SharedBytes) -> Self {
        let end = (*bytes).as_ref().len();
        Self { bytes, start: 0, end, path: None, lines_before: 0 }
    }

    /// Copies `bytes`.
    pub fn from_slice(bytes: &[u8]) -> Self {
        Self::new(Arc::new(bytes.to_vec()))
    }

    /// Names the source for error messages.
    #[must_use]
    pub fn with_path(mut self, path: &str) -> Self {
        self.path = Some(path.into());
        self
    }

    /// A range of this source (relative to it) that starts after `lines` of its lines.
    #[must_use]
    pub fn part(&self, range: Range<usize>, lines: u64) -> Self {
        let start = (self.start + range.start).min(self.end);
        let end = (self.start + range.end).clamp(start, self.end);
        Self { start, end, lines_before: self.lines_before + lines, ..self.clone() }
    }

    /// The text.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref().get(self.start..self.end).unwrap_or_default()
    }

    /// What to call it in messages.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// Lines of the file before this text.
    pub fn lines_before(&self) -> u64 {
        self.lines_before
    }

    /// Bytes of the file before this text.
    pub fn offset(&self) -> usize {
        self.start
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Source({:?}, {}..{})", self.path, self.start, self.end)
    }
}
