//! Values that the tables of several analyses give for a row.

use super::{Columns, ScopeTexts, common};
use crate::comms::Piece;
use crate::flow::{Attribution, Sources};
use crate::ir::decode::{unescape, unescape_or_copy};
use crate::ir::{MetadataColumns, Module, Row, ShapeId};
use crate::print::shape_to_text_within;
use std::borrow::Cow;
use std::io::Write;

/// An unsigned number as a signed number; -1 if it is unknown or too large.
pub fn number(value: Option<u64>) -> i64 {
    value.and_then(|value| i64::try_from(value).ok()).unwrap_or(-1)
}

/// The number of a row; -1 if there is no row.
pub fn row_or_none(row: Option<Row>) -> i64 {
    row.map_or(-1, |row| i64::from(row.0))
}

/// A sum as a 64-bit number; saturates.
pub fn narrow(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// Appends a path into a shape, as `{0,1}`.
pub fn write_index(path: &[u32], out: &mut Vec<u8>) {
    out.push(b'{');
    for (number, index) in path.iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        // Writing to memory does not fail.
        let _ = write!(out, "{index}");
    }
    out.push(b'}');
}

/// The length at which a shape's text is cut. Inferred shapes share parts, so their full text may
/// exceed any memory.
const LONGEST_SHAPE: usize = 1 << 24;

/// The canonical text of a shape; a text longer than about `limit` characters is cut and ends in
/// `...`.
pub fn shape_text(module: &Module, id: ShapeId, limit: usize) -> String {
    let limit = limit.min(LONGEST_SHAPE);
    let bytes = shape_to_text_within(module.shapes(), id, limit);
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push_str("...");
    }
    text
}

/// The source of rows: operation name, file and line, and how scopes are written.
#[derive(Clone, Copy)]
pub struct Origin<'a> {
    /// The module.
    pub module: &'a Module,
    columns: &'a MetadataColumns,
    sources: &'a Sources,
    merges_layers: bool,
}

impl<'a> Origin<'a> {
    /// The origins of the rows of `module`. `sources` chooses the frame of a stack that is shown;
    /// `merges_layers` leaves layer numbers out of scopes.
    pub fn new(module: &'a Module, sources: &'a Sources, merges_layers: bool) -> Self {
        Self { module, columns: module.metadata_columns(), sources, merges_layers }
    }

    /// The texts of the scopes of `attribution`.
    pub fn scopes(&self, attribution: &'a Attribution) -> ScopeTexts<'a> {
        ScopeTexts::new(self.module, &attribution.scopes, self.merges_layers)
    }

    /// The name of parameter `row` in the program; its own name if the text has only a scope for it.
    pub fn argument_name(&self, row: Row) -> Cow<'a, [u8]> {
        let is_scope = |name: &[u8]| memchr::memmem::find(name, b")/").is_some();
        let name = self.op_name(row).filter(|name| !is_scope(name));
        name.unwrap_or_else(|| Cow::Borrowed(self.module.instruction_name(row)))
    }

    /// The operation name of `row`.
    pub fn op_name(&self, row: Row) -> Option<Cow<'a, [u8]>> {
        let text = self.escaped_op_name(row)?;
        Some(unescape(text).unwrap_or(Cow::Borrowed(text)))
    }

    /// Appends the operation name of `row`, if any.
    pub fn write_op_name(&self, row: Row, out: &mut Vec<u8>) {
        if let Some(text) = self.escaped_op_name(row) {
            unescape_or_copy(text, out);
        }
    }

    /// Whether `row` has an operation name.
    pub fn has_op_name(&self, row: Row) -> bool {
        self.escaped_op_name(row).is_some()
    }

    fn escaped_op_name(&self, row: Row) -> Option<&'a [u8]> {
        let id = usize::try_from(self.columns.op_name[row.0 as usize]).ok()?;
        Some(self.module.bytes(*self.columns.op_names.get(id)?))
    }

    /// The source file of `row`.
    pub fn source_file(&self, row: Row) -> Option<&'a [u8]> {
        let (file, _) = self.sources.place(self.columns, row);
        self.sources.file(self.columns, file)
    }

    /// The source line of `row`; -1 if unknown.
    pub fn source_line(&self, row: Row) -> i64 {
        let (_, line) = self.sources.place(self.columns, row);
        if line > 0 { i64::from(line) } else { -1 }
    }

    /// Adds operation name, source file and source line of `rows`.
    pub fn columns(&self, rows: impl Iterator<Item = Row> + Clone, table: &mut Columns) {
        table.written(common::op_name(), rows.clone(), |row, out| self.write_op_name(row, out));
        let file = |row: Row| self.source_file(row).unwrap_or_default();
        table.texts(common::source_file(), rows.clone().map(file));
        table.numbers(common::source_line(), rows.map(|row| self.source_line(row)));
    }

    /// Appends the display name of the array of a piece: for a parameter its name in the program.
    pub fn write_tensor(&self, piece: &Piece, out: &mut Vec<u8>) {
        match piece.source {
            Some(row) if self.has_op_name(row) => self.write_op_name(row, out),
            Some(row) => out.extend_from_slice(self.module.instruction_name(row)),
            None => {}
        }
    }
}
