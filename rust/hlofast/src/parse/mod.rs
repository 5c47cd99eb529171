//! Parses text into a frozen module.

mod chunk;
mod finish;
mod fragment;
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

/// Offsets are 32-bit, and the arena's offsets follow the offsets of the text.
const MAX_TEXT: usize = u32::MAX as usize - (64 << 20);

/// How strictly to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// Unknown opcodes, attributes and keys are kept as data; forward references are resolved.
    #[default]
    Tolerant,
    /// Accepts exactly the texts that the XLA parser of jaxlib 0.10.2 accepts.
    Jaxlib,
    /// Also accepts texts that only newer XLA accepts.
    Newest,
}

/// How to read a module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// How strictly to read.
    pub strictness: Strictness,
    /// After a fault, continue at the next instruction or computation and keep the faults in
    /// `Module::errors`, instead of failing at the first.
    pub collect_errors: bool,
    /// Number of threads for large texts; 0 and 1 mean one.
    pub threads: usize,
    /// The size in bytes from which several threads read a text; 0 means 8 MiB.
    pub parallel_from: usize,
    /// Use the portable scanning kernels even if faster ones are available (tests).
    pub force_scalar: bool,
    /// Never use the line-based fast path (tests: both paths must agree).
    pub force_general: bool,
}

/// Reads the single module in `source` tolerantly; `crate::parse()` adds the strict checks.
pub fn read(source: Source, options: &Options) -> Result<Module> {
    let text = source.bytes();
    if text.len() >= MAX_TEXT {
        return Err(ParseError::new(
            ErrorKind::TooLarge,
            Span::EMPTY,
            "the text of one module must be smaller than 4 GiB",
        ));
    }
    if let Some(pieces) = source.pieces() {
        let options = Options { collect_errors: true, force_general: true, ..*options };
        let mut reader = Reader::new(text, options);
        reader.read_fragment(pieces)?;
        return Ok(reader.into_parts()?.into_module(source));
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
    // The parts do not borrow from the source, which the module takes over.
    let parts = match read() {
        Ok(parts) if parts.errors.is_empty() => Ok(parts),
        faulty => read_again(text, options, faulty),
    };
    let parts = parts.map_err(|error| advise_at_end(text, error))?;
    Ok(parts.into_module(source))
}

/// Advice on a text that ends too early.
const CUT_OFF: &str = "the text ends here: if the file was cut off, copy it again, or dump again";

/// Adds advice to a fault that a text has where it ends: most such files were cut off.
#[cold]
fn advise_at_end(text: &[u8], error: ParseError) -> ParseError {
    let text = text.trim_ascii_end();
    let rest = text.get(error.span().start as usize..).unwrap_or_default();
    let is_open = matches!(
        error.kind(),
        ErrorKind::UnclosedString | ErrorKind::UnclosedComment | ErrorKind::UnclosedBracket
    );
    let is_at_end = rest.is_empty() || (is_open && memchr::memchr(b'\n', rest).is_none());
    if error.help().is_some() || !is_at_end {
        return error;
    }
    error.with_help(CUT_OFF)
}

/// Reads a faulty text again to find out whether an unclosed bracket or string caused the fault; if
/// neither did, returns `first`.
#[cold]
fn read_again(
    text: &[u8],
    options: &Options,
    first: Result<finish::Parts>,
) -> Result<finish::Parts> {
    // The fast path reads strings across lines, so the second reading uses only the general path.
    let options = Options { force_general: true, ..*options };
    let mut reader = Reader::new(text, options);
    reader.unclosed = unclosed::Unclosed::checked(text.len());
    let read = reader.read_module();
    if !reader.unclosed.is_found {
        return first;
    }
    let second = read.and_then(|()| reader.into_parts());
    match (&first, &second) {
        // If the second reading loses more rows than the first, it followed brackets wrongly.
        (Ok(before), Ok(after)) if after.row_count() < before.row_count() => first,
        _ => second,
    }
}
