//! The attributes of an instruction as raw key and value spans, found when asked for.

use super::module::{Flags, Module, Row};
use crate::text::{Cursor, Span, is_identifier_byte};

/// One attribute: `key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The key.
    pub key: Span,
    /// The value, without surrounding whitespace.
    pub value: Span,
}

/// Iterator over the attributes of one row, in text order.
pub struct Attributes<'a> {
    cursor: Cursor<'a>,
    /// What to add to positions to get module offsets (arena rows are read from the arena).
    base: u32,
    filter: Filter,
}

/// Async sugar writes one list for two rows: the async instruction and what it wraps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filter {
    All,
    Async,
    Wrapped,
}

const ASYNC_ONLY: [&[u8]; 2] = [b"async_execution_thread", b"output_to_operand_aliasing"];
const COMMON: [&[u8]; 8] = [
    b"sharding",
    b"frontend_attributes",
    b"statistics",
    b"parameter_replication",
    b"control-predecessors",
    b"origin",
    b"metadata",
    b"backend_config",
];

impl<'a> Attributes<'a> {
    pub(crate) fn of_row(module: &'a Module, row: Row) -> Self {
        let flags = module.flags(row);
        let filter = match (flags & Flags::SUGAR != 0, flags & Flags::IMPLICIT != 0) {
            (true, false) => Filter::Async,
            (true, true) => Filter::Wrapped,
            _ => Filter::All,
        };
        let mut attributes = Self::of_text(module, module.tail(row));
        attributes.filter = filter;
        attributes
    }

    /// The attributes in `tail`, a span of the module's bytes of the form `, key=value, ...`.
    pub fn of_text(module: &'a Module, tail: Span) -> Self {
        let text = module.text();
        let base = if tail.end as usize <= text.len() { 0 } else { text.len() as u32 };
        let bytes = if base == 0 { text } else { &module.arena };
        let span = Span { start: tail.start - base, end: tail.end - base };
        Self { cursor: Cursor::within(bytes, span), base, filter: Filter::All }
    }

    fn next_raw(&mut self) -> Option<Attribute> {
        let cursor = &mut self.cursor;
        while cursor.eat(b',').ok()? {}
        let start = cursor.position();
        while is_identifier_byte(cursor.peek()) && !cursor.is_at_end() {
            cursor.advance(1);
        }
        let key = cursor.span_since(start);
        if key.is_empty() || !cursor.eat(b'=').ok()? {
            return None;
        }
        cursor.skip_space().ok()?;
        let value = read_value(cursor, cursor.text().get(key.range()).unwrap_or_default()).ok()?;
        Some(Attribute { key: key.shifted(self.base), value: value.shifted(self.base) })
    }
}

/// Skips the value of attribute `key`; shared by loading and lazy reading, so that both agree.
pub(crate) fn read_value(cursor: &mut Cursor<'_>, key: &[u8]) -> crate::error::Result<Span> {
    if cursor.peek() == b'{' && key == b"backend_config" {
        return cursor.dictionary();
    }
    cursor.bare_value()
}

impl Iterator for Attributes<'_> {
    type Item = Attribute;

    fn next(&mut self) -> Option<Attribute> {
        loop {
            let attribute = self.next_raw()?;
            if self.filter == Filter::All {
                return Some(attribute);
            }
            let span =
                Span { start: attribute.key.start - self.base, end: attribute.key.end - self.base };
            let key = self.cursor.text().get(span.range()).unwrap_or_default();
            let keep = match self.filter {
                Filter::Async => ASYNC_ONLY.contains(&key) || COMMON.contains(&key),
                _ => !ASYNC_ONLY.contains(&key),
            };
            if keep {
                return Some(attribute);
            }
        }
    }
}
