//! The source of a module's text: shared bytes, a range of them, and a name for messages.

use super::fragment::Pieces;
use super::outline::Outline;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Shared, immutable bytes of any owner (a Rust vector, a Python object).
pub type SharedBytes = bytes::Bytes;

/// The text of one module: a range of shared bytes, so that modules found in one file share it.
#[derive(Clone)]
pub struct Source {
    bytes: SharedBytes,
    start: usize,
    end: usize,
    path: Option<Arc<str>>,
    lines_before: u64,
    origin: Option<Arc<Origin>>,
    /// Data of the protobuf besides the module, if the text was translated from a protobuf.
    proto: Option<Arc<FromProto>>,
    /// Set if the text has pieces of a module rather than a module.
    pieces: Option<Pieces>,
}

/// Data of a protobuf besides its module.
#[derive(Debug, Default)]
struct FromProto {
    buffer_assignment: Option<Vec<u8>>,
    /// Positions of the parts of the text's lines; the first reader takes them.
    outline: Mutex<Option<Outline>>,
}

/// The origin of a cleaned copy, from which log prefixes were removed line by line.
#[derive(Debug)]
struct Origin {
    /// One entry per line of the copy.
    lines: Vec<LineOrigin>,
}

/// The origin of one line of a cleaned copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineOrigin {
    /// Where the line begins in the copy.
    pub start: u32,
    /// Where the kept part of the line begins in the file.
    pub offset: usize,
    /// Characters removed before the kept part.
    pub removed: u32,
}

impl Source {
    /// The whole of `bytes`.
    pub fn new(bytes: SharedBytes) -> Self {
        let end = bytes.len();
        Self {
            bytes,
            start: 0,
            end,
            path: None,
            lines_before: 0,
            origin: None,
            proto: None,
            pieces: None,
        }
    }

    /// Copies `bytes`.
    pub fn from_slice(bytes: &[u8]) -> Self {
        Self::new(SharedBytes::copy_from_slice(bytes))
    }

    /// Names the source for error messages.
    #[must_use]
    pub fn with_path(mut self, path: &str) -> Self {
        self.path = Some(path.into());
        self
    }

    /// The bytes, shared, if this source is all of them.
    pub(crate) fn shared(&self) -> Option<SharedBytes> {
        let is_whole = self.start == 0 && self.end == self.bytes.len();
        is_whole.then(|| SharedBytes::clone(&self.bytes))
    }

    /// A range of this source (relative to it) that starts after `lines` of its lines.
    #[must_use]
    pub fn part(&self, range: Range<usize>, lines: u64) -> Self {
        let start = (self.start + range.start).min(self.end);
        let end = (self.start + range.end).clamp(start, self.end);
        Self { start, end, lines_before: self.lines_before + lines, ..self.clone() }
    }

    /// Whether only a byte order mark precedes the text.
    pub fn follows_mark(&self) -> bool {
        let before = self.bytes.get(..self.start);
        self.origin.is_none() && before == Some(b"\xef\xbb\xbf")
    }

    /// A cleaned copy of a part of this source that starts after `lines` of its lines; `origins`
    /// gives the place in this source from which each line of the copy comes.
    #[must_use]
    pub fn cleaned_part(&self, bytes: Vec<u8>, mut origins: Vec<LineOrigin>, lines: u64) -> Self {
        for line in &mut origins {
            line.offset += self.start;
        }
        Self {
            lines_before: self.lines_before + lines,
            path: self.path.clone(),
            origin: Some(Arc::new(Origin { lines: origins })),
            ..Self::new(bytes.into())
        }
    }

    /// The text translated from this source, a protobuf, with the outline of the text and XLA's
    /// buffer assignment, if the protobuf has one, in the form of `-buffer-assignment.txt`.
    #[must_use]
    pub(crate) fn translated(
        &self,
        text: Vec<u8>,
        buffer_assignment: Option<Vec<u8>>,
        outline: Outline,
    ) -> Self {
        let outline = Mutex::new(Some(outline));
        Self {
            path: self.path.clone(),
            proto: Some(Arc::new(FromProto { buffer_assignment, outline })),
            ..Self::new(text.into())
        }
    }

    /// Marks the text as pieces of a module, which are read with placeholders for what is missing.
    #[must_use]
    pub fn with_pieces(self, pieces: Pieces) -> Self {
        Self { pieces: Some(pieces), ..self }
    }

    /// What the lines say of the missing parts, if the text has pieces of a module.
    pub fn pieces(&self) -> Option<Pieces> {
        self.pieces
    }

    /// Takes the outline of the whole text; None from the second call on.
    pub(crate) fn take_outline(&self) -> Option<Outline> {
        if self.start != 0 || self.end != self.bytes.len() {
            return None;
        }
        self.proto.as_ref()?.outline.lock().ok()?.take()
    }

    /// Whether the text was translated from a protobuf, so that its lines are not lines of a file.
    pub fn is_translated(&self) -> bool {
        self.proto.is_some()
    }

    /// XLA's buffer assignment that came with a protobuf.
    pub fn buffer_assignment(&self) -> Option<&[u8]> {
        self.proto.as_ref()?.buffer_assignment.as_deref()
    }

    /// The text.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// The name used in messages.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// Lines of the file before this text.
    pub fn lines_before(&self) -> u64 {
        self.lines_before
    }

    /// Bytes of the file before this text.
    pub fn offset(&self) -> usize {
        self.offset_in_file(0)
    }

    /// The offset of byte `at` of this text in its (decompressed) file.
    pub fn offset_in_file(&self, at: usize) -> usize {
        let at = self.start + at;
        match self.line_origin(at) {
            Some(line) => line.offset + (at - line.start as usize),
            None => at,
        }
    }

    /// The column in the file for column `column` of line `line` of this text (both from 1).
    pub fn column_in_file(&self, line: u64, column: u64) -> u64 {
        let origin = self.origin.as_ref().and_then(|origin| {
            let first = origin.lines.partition_point(|line| (line.start as usize) < self.start + 1);
            let index = usize::try_from(line).ok()?.checked_add(first)?.checked_sub(2)?;
            origin.lines.get(index)
        });
        column + origin.map_or(0, |line| u64::from(line.removed))
    }

    /// The origin of each line of this text, in the form that `cleaned_part` takes; a single entry
    /// for a text that is unchanged in its file.
    pub fn line_origins(&self) -> Vec<LineOrigin> {
        let Some(origin) = &self.origin else {
            return vec![LineOrigin { start: 0, offset: self.start, removed: 0 }];
        };
        let after = origin.lines.partition_point(|line| line.start as usize <= self.start);
        let lines = origin.lines.iter().skip(after.saturating_sub(1));
        let lines = lines.take_while(|line| (line.start as usize) < self.end);
        let placed = lines.map(|line| {
            let inside = self.start.saturating_sub(line.start as usize);
            let start = (line.start as usize).saturating_sub(self.start) as u32;
            LineOrigin { start, offset: line.offset + inside, removed: line.removed }
        });
        placed.collect()
    }

    fn line_origin(&self, at: usize) -> Option<&LineOrigin> {
        let lines = &self.origin.as_ref()?.lines;
        let after = lines.partition_point(|line| line.start as usize <= at);
        lines.get(after.checked_sub(1)?)
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Source({:?}, {}..{})", self.path, self.start, self.end)
    }
}
