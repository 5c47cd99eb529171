//! Detects text cut off before its entry computation, which still reads as a complete module.

use super::decode::{HeaderValue, decode_header};
use super::intern::ShapeInterner;
use super::module::{Module, Row};
use super::shape_text::parse_shape;
use crate::error::{ErrorKind, ParseError};
use crate::text::Span;

impl Module {
    /// An error if the text seems to end before its entry computation: no computation is marked
    /// `ENTRY`, and the last computation, which then counts as the entry, does not have the
    /// parameters and result that the header gives. XLA and `parse` both read such text without an
    /// error.
    pub fn missing_entry(&self) -> Option<ParseError> {
        let entry = self.computation(self.entry());
        // Collected faults are already reported, and the missing entry may be one of them.
        if entry.is_marked_entry || !self.errors().is_empty() {
            return None;
        }
        let value = self.header_attribute("entry_computation_layout")?;
        // A layout that cannot be read is not evidence.
        let HeaderValue::EntryLayout(layout) =
            decode_header(b"entry_computation_layout", self.bytes(value)).ok()?
        else {
            return None;
        };
        let mut interner = ShapeInterner::default();
        let (mut shapes, result) = layout.intern(&mut interner, parse_shape).ok()?;
        shapes.push(result);
        let told = interner.into_table();
        let mut rows = self.parameters(self.entry());
        rows.push(Row(entry.root));
        let is_told =
            |(row, shape): (&Row, _)| self.shapes().is_compatible(self.shape(*row), &told, shape);
        if rows.len() == shapes.len() && rows.iter().zip(shapes).all(is_told) {
            return None;
        }
        let name = String::from_utf8_lossy(self.bytes(entry.name));
        let message = format!(
            "no computation is marked as ENTRY, and the last one, {name}, does not match \
             entry_computation_layout: the text seems to be cut off"
        );
        let end = Span::at(entry.body.end as usize);
        Some(ParseError::new(ErrorKind::InvalidComputation, end, message))
    }
}
