//! From text to a frozen module.

mod chunk;
mod finish;
mod header_line;
pub mod infer;
mod instruction;
mod line;
mod masked_line;
mod module;
mod names;
mod operands;
mod outlined;
mod reader;
mod tables;
mod unclosed;

use crate::error::{ErrorKind, ParseError, Result};
pub use crate::ir::shape_text as shape;

use crate::ir::Module;
use crate::text::{Source, Span};
use reader::Reader;

/// Offsets are 32-bit, and the arena needs room behind the text.
const MAX_TEXT: usize = u32::MAX as usize - (64 << 20);

/// How strictly to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// Unknown opcodes, attributes and keys are data; forward references resolve.
    #[default]
    Tolerant,
    /// As the XLA parser of jaxlib 0.10.2 accepts and rejects.
    Jaxlib,
    /// Also what only newer XLA accepts.
    Newest,
}

/// How to read a module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How strictly.
    pub strictness: Strictness,
    /// Go on after a fault at the next instruction or computation and keep the faults in
    /// `Module::errors`, instead of failing at the first.
    pub collect_errors: bool,
    /// Threads for large texts; 0 and 1 mean one.
    pub threads: usize,
    /// Texts of at least this many bytes are read by several threads; 0 means 8 MB.
    pub parallel_from: usize,
    /// Use the portable scanning kernels even where faster ones exist (tests).
    pub force_scalar: bool,
    /// Never use the line-based fast path (tests: both paths must agree).
    pub force_general: bool,
}

/// Reads the one module that `source` holds, tolerantly; `crate::parse()` also checks strictly.
pub fn read(source: Source, options: &Options) -> Result<Module> {
    let text = source.bytes();
    if text.len() >= MAX_TEXT {
        return Err(ParseError::new(
            ErrorKind::TooLarge,
            Span::EMPTY,
            "the text of one module must be below 4 GiB",
        ));
    }
    let outline = source.take_outline();
    let outline = outline.filter(|_| !options.force_general && !options.collect_errors);
    let read = || -> Result<finish::Parts> {
        let reader = match chunk::read_parallel(text, options) {
            Some(reader) => reader,
            None => {
                let mut reader = Reader::new(text, *options);
                reader.outline = outline.unwrap_or_default();
                reader.read_module()?;
                reader
            }
        };
        reader.into_parts()
    };
    // The parts borrow nothing of the source's bytes, which the module then owns.
    let parts = match read() {
        Ok(parts) if parts.errors.is_empty() => parts,
        faulty => read_again(text, options, faulty)?,
    };
    Ok(parts.into_module(source))
}

/// Reads a text with a fault once more, to see whether a bracket or string that is never closed
/// made it; `first` if none did.
#[cold]
fn read_again(
    text: &[u8],
    options: &Options,
    first: Result<finish::Parts>,
) -> Result<finish::Parts> {
    // The fast path reads strings over several lines, so everything takes the general one.
    let options = Options { force_general: true, ..*options };
    let mut reader = Reader::new(text, options);
    reader.unclosed = unclosed::Unclosed::checked(text.len());
    let read = reader.read_module();
    if !reader.unclosed.is_found {
        return first;
    }
    let second = read.and_then(|()| reader.into_parts());
    match (&first, &second) {
        // A text that was followed wrongly has lost more than it should.
        (Ok(one), Ok(other)) if other.row_count() < one.row_count() => first,
        _ => second,
    }
}
