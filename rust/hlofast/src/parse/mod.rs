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
    let reader = match chunk::read_parallel(text, options) {
        Some(reader) => reader,
        None => {
            let mut reader = Reader::new(text, *options);
            reader.outline = outline.unwrap_or_default();
            reader.read_module()?;
            reader
        }
    };
    // The reader borrows the source's bytes, which the module then owns.
    let parts = reader.into_parts()?;
    Ok(parts.into_module(source))
}
