//! Identifies a file by its first bytes, whatever its name.

use crate::profile::xplane::is_space;
use crate::proto::{begins_with_module, is_cached};
use crate::text::{Compression, starts_with_module};
use memchr::memmem;

/// How many bytes at the beginning are examined.
pub const HEAD: usize = 8 << 10;

/// The content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// An empty file.
    Empty,
    /// Compressed data of this form; the content has to be examined after decompression.
    Compressed(Compression),
    /// The text of a module.
    Hlo,
    /// Text that contains modules after other text: a log, a page.
    HloInside,
    /// A serialised `HloProto` or `HloModuleProto`.
    Proto,
    /// One of XLA's memory files.
    Memory,
    /// StableHLO or another MLIR module.
    Mlir,
    /// Several files in one.
    Archive,
    /// Other text.
    Text,
    /// Other bytes, with their format if known.
    Binary(&'static str),
}

impl Content {
    /// The name shown to people.
    pub fn describe(self) -> &'static str {
        match self {
            Content::Empty => "nothing",
            Content::Compressed(_) => "compressed bytes",
            Content::Hlo | Content::HloInside => "HLO text",
            Content::Proto => "binary HLO",
            Content::Memory => "a memory file",
            Content::Mlir => "MLIR",
            Content::Archive => "an archive",
            Content::Text => "other text",
            Content::Binary(what) => what,
        }
    }
}

/// The content of a file that begins with `head`.
pub fn sniff(head: &[u8]) -> Content {
    if head.is_empty() {
        return Content::Empty;
    }
    if let Some(compression) = Compression::of(head) {
        return Content::Compressed(compression);
    }
    if starts_with_module(head) {
        return Content::Hlo;
    }
    if let Some(what) = signature(head) {
        return what;
    }
    if begins_with_module(head) || is_cached(head) {
        return Content::Proto;
    }
    if is_space(head) {
        return Content::Binary("a profile");
    }
    if looks_binary(head) {
        return Content::Binary("binary data");
    }
    text(head)
}

fn signature(head: &[u8]) -> Option<Content> {
    const SIGNATURES: [(&[u8], Content); 9] = [
        (b"\x89PNG", Content::Binary("a PNG picture")),
        (b"\xff\xd8\xff", Content::Binary("a JPEG picture")),
        (b"%PDF", Content::Binary("a PDF document")),
        (b"\x7fELF", Content::Binary("an object file")),
        (b"BC\xc0\xde", Content::Binary("LLVM bitcode")),
        (b"\x93NUMPY", Content::Binary("a NumPy array")),
        (b"PAR1", Content::Binary("a Parquet file")),
        (b"PK\x03\x04", Content::Archive),
        (b"7z\xbc\xaf\x27\x1c", Content::Archive),
    ];
    if head.get(257..262) == Some(b"ustar") {
        return Some(Content::Archive);
    }
    SIGNATURES.iter().find(|(bytes, _)| head.starts_with(bytes)).map(|(_, what)| *what)
}

fn looks_binary(head: &[u8]) -> bool {
    let odd = |byte: &&u8| matches!(byte, 0..=8 | 14..=26 | 28..=31);
    memchr::memchr(0, head).is_some() || head.iter().filter(odd).count() * 20 > head.len()
}

fn text(head: &[u8]) -> Content {
    let start = head.trim_ascii_start();
    const MEMORY: [&[u8]; 3] = [b"BufferAssignment:", b"HloLiveRange (max", b"Total bytes used"];
    if MEMORY.iter().any(|mark| start.starts_with(mark)) || is_report(start) {
        return Content::Memory;
    }
    if start.starts_with(b"module @")
        || start.starts_with(b"module {")
        || start.starts_with(b"#loc")
    {
        return Content::Mlir;
    }
    // A header inside a log, or the frame of a dump to standard output.
    if memmem::find(head, b"HloModule ").is_some() || memmem::find(head, b"*** Begin ").is_some() {
        return Content::HloInside;
    }
    Content::Text
}

/// `Memory Space: ... Total bytes: ...`, or the form that newer versions write.
fn is_report(start: &[u8]) -> bool {
    let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.starts_with(b"Memory Space:") || memmem::find(line, b"Total bytes:").is_some()
}
