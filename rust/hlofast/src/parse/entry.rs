//! Text that ends before its entry computation: it reads as a whole module of less.

use super::shape::parse_shape;
use crate::error::{ErrorKind, ParseError};
use crate::ir::decode::{HeaderValue, decode_header};
use crate::ir::{Module, Row, ShapeInterner};
use crate::text::Span;

/// The fault of a module without a computation marked as entry whose header says that the entry
/// has other parameters or another result than the last computation, which would be it.
pub(super) fn missing_entry(module: &Module) -> Option<ParseError> {
    let entry = module.computation(module.entry());
    if entry.is_marked_entry {
        return None;
    }
    let value = module.header_attribute("entry_computation_layout")?;
    // One that cannot be read tells nothing.
    let HeaderValue::EntryLayout(layout) =
        decode_header(b"entry_computation_layout", module.bytes(value)).ok()?
    else {
        return None;
    };
    let mut interner = ShapeInterner::default();
    let (mut shapes, result) = layout.intern(&mut interner, parse_shape).ok()?;
    shapes.push(result);
    let told = interner.into_table();
    let mut rows = module.parameters(module.entry());
    rows.push(Row(entry.root));
    let is_alike = rows.len() == shapes.len()
        && rows
            .iter()
            .zip(&shapes)
            .all(|(row, shape)| module.shapes().is_compatible(module.shape(*row), &told, *shape));
    if is_alike {
        return None;
    }
    let name = String::from_utf8_lossy(module.bytes(entry.name)).into_owned();
    let message = format!(
        "the text ends before its ENTRY computation: the last one, {name}, is not what \
         entry_computation_layout describes"
    );
    let error =
        ParseError::new(ErrorKind::InvalidComputation, Span::at(module.text().len()), message);
    Some(error.with_help("the file may be cut off, or still be written"))
}
