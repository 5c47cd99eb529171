//! hlofast reads XLA HLO text dumps into a frozen, column-oriented module and analyses them.
//!
//! Start at [`parse()`]: it turns a [`text::Source`] into an [`ir::Module`]. The crate knows no
//! Python; the bindings crate hands it bytes. Only [`dump`] reads files.

pub mod analyses;
pub mod comms;
pub mod cost;
pub mod diff;
pub mod dump;
pub mod edit;
pub mod error;
pub mod flow;
pub mod ir;
pub mod lint;
pub mod memory;
pub mod parse;
pub mod print;
pub mod proto;
pub mod provenance;
pub mod remat;
pub mod select;
pub mod stages;
mod strict;
pub mod summary;
pub mod table;
pub mod text;
pub mod time;
pub mod trace;

pub use analyses::{Analyses, Context};
pub use error::{ErrorKind, ParseError, Result};
pub use parse::Options;
pub use provenance::Provenance;

use parse::Strictness;

/// The text in `bytes`: decompressed if need be, translated if it is a protobuf. The modules in it
/// are found by [`text::modules`] or [`text::read_one`].
pub fn unpack(bytes: text::SharedBytes, options: &text::OpenOptions<'_>) -> Result<text::Source> {
    let source = text::unpack(bytes, options)?;
    if !proto::is_proto(source.bytes()) {
        return Ok(source);
    }
    let translation = proto::to_text(source.bytes())?;
    let proto::Translation { text, buffer_assignment, outline } = translation;
    Ok(source.translated(text, buffer_assignment, outline))
}

/// Reads the one module that `source` holds, as strictly as `options` say.
///
/// A strict mode reads tolerantly first and then checks the text, so that every mode gives the
/// same module. With `collect_errors` the faults are in `Module::errors`.
pub fn parse(source: text::Source, options: &Options) -> Result<ir::Module> {
    let mut module = parse::read(source, options)?;
    if options.strictness != Strictness::Tolerant
        && let Err(error) = strict::check(&module, options.strictness)
    {
        if !options.collect_errors {
            return Err(error);
        }
        module.errors.push(error);
    }
    Ok(module)
}
