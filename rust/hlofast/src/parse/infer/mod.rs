//! Result shapes that the text omits, by XLA's shape inference rules.

use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::{Opcode, ShapeId, ShapeInterner};
use crate::text::Span;

/// What an instruction says about itself when its result shape is missing.
pub struct Request<'a> {
    /// The opcode.
    pub opcode: Opcode,
    /// Result shapes of the operands.
    pub operands: &'a [ShapeId],
    /// Raw attributes: key and value text.
    pub attributes: &'a [(&'a [u8], &'a [u8])],
    /// Root shapes of the called computations in text order, where known.
    pub callee_results: &'a [Option<ShapeId>],
}

/// The result shape of `request`. Errors carry no place; the caller knows it.
pub fn infer(request: &Request<'_>, interner: &mut ShapeInterner) -> Result<ShapeId> {
    let _ = interner;
    Err(ParseError::new(
        ErrorKind::CannotInferShape,
        Span::EMPTY,
        format!("cannot infer the omitted result shape of {}", request.opcode.as_str()),
    ))
}
