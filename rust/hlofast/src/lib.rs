//! hlofast reads XLA HLO text dumps into a frozen, column-oriented module and analyses them.
//!
//! Start at [`parse()`]: it turns a [`text::Source`] into an [`ir::Module`]. The crate knows no
//! Python and reads no files; the bindings crate hands it bytes.

pub mod edit;
pub mod error;
pub mod ir;
pub mod parse;
pub mod print;
pub mod query;
mod strict;
pub mod summary;
pub mod text;

pub use error::{ErrorKind, ParseError, Result};
pub use parse::{Options, parse};
