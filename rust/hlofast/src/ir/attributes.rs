//! The attributes of an instruction as raw key and value spans, found on demand.

use super::attribute::{ASYNCHRONOUS, COMMON, Key};
use super::module::{Flags, METADATA, Module, NO_METADATA, Row, ValueEnd};
use crate::error::Result;
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
    /// Where the values end, if the row was read from one line.
    ends: &'a [ValueEnd],
    is_known: bool,
    /// The number added to positions to get module offsets (arena rows are read from the arena).
    base: u32,
    filter: Filter,
}

/// Async sugar writes one list for two rows: the async instruction and the instruction it wraps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filter {
    All,
    Async,
    Wrapped,
}

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
        attributes.ends = module.columns.value_ends(row);
        attributes.is_known = !attributes.ends.is_empty();
        attributes
    }

    /// The attributes in `tail`, a span of the module's bytes of the form `, key=value, ...`.
    pub fn of_text(module: &'a Module, tail: Span) -> Self {
        let text = module.text();
        let base = if tail.end as usize <= text.len() { 0 } else { text.len() as u32 };
        let bytes = if base == 0 { text } else { &module.arena };
        let span = Span { start: tail.start - base, end: tail.end - base };
        Self {
            cursor: Cursor::within(bytes, span),
            base,
            ends: &[],
            is_known: false,
            filter: Filter::All,
        }
    }

    fn next_raw(&mut self) -> Option<Attribute> {
        if self.is_known {
            return self.next_known();
        }
        let cursor = &mut self.cursor;
        while cursor.eat(b',').ok()? {}
        let start = cursor.position();
        while is_identifier_byte(cursor.peek()) && !cursor.is_at_end() {
            cursor.advance(1);
        }
        let key = cursor.span_since(start);
        let word = cursor.since(start);
        if key.is_empty() || !cursor.eat(b'=').ok()? {
            return None;
        }
        skip_to_value(cursor, word).ok()?;
        let value = read_value(cursor, word).ok()?;
        Some(Attribute { key: key.shifted(self.base), value: value.shifted(self.base) })
    }

    /// The next attribute of a line in the printed form, `, key=value`.
    #[inline]
    fn next_known(&mut self) -> Option<Attribute> {
        let (known, rest) = self.ends.split_first()?;
        self.ends = rest;
        // Whitespace after the last value belongs to no attribute.
        let end = (known.end as usize).min(self.cursor.end());
        let start = self.cursor.position() + 2;
        self.cursor.set_position(end);
        let length = match known.key_length {
            u16::MAX => memchr::memchr(b'=', self.cursor.text().get(start..end)?)?,
            length => length.into(),
        };
        let key = Span::new(start, start + length);
        Some(Attribute { key, value: Span::new(start + length + 1, end) })
    }
}

/// The attributes of a line in the printed form, `, key=value, key=value`, as text.
pub(crate) struct Printed<'a> {
    text: &'a [u8],
    /// Where the next key starts, and where the last value ends.
    start: usize,
    end: usize,
    ends: &'a [ValueEnd],
    /// Where the value of the metadata that is left out starts.
    left_out: usize,
}

impl<'a> Iterator for Printed<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (known, rest) = self.ends.split_first()?;
            self.ends = rest;
            let start = self.start;
            // Whitespace after the last value belongs to no attribute.
            let end = self.end.min(known.end as usize);
            self.start = end + 2;
            if start + METADATA.len() == self.left_out {
                continue;
            }
            let text = self.text.get(start..end)?;
            let length = match known.key_length {
                u16::MAX => memchr::memchr(b'=', text)?,
                length => length.into(),
            };
            let (key, value) = text.split_at_checked(length)?;
            return Some((key, value.get(1..)?));
        }
    }
}

/// What tells the keys that a module's rows have from most others: length and first letter. Most
/// searches are for keys that no row has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeysInUse([u64; 4]);

impl KeysInUse {
    fn of_module(module: &Module) -> Self {
        let mut keys = Self::default();
        for known in &module.columns.value_ends {
            keys.add(known.key_length.into(), known.key_first);
        }
        let columns = &module.columns;
        let ends = columns.value_offsets.windows(2).zip(&columns.tail_ends);
        let others =
            module.rows().zip(&columns.tail_starts).zip(ends).filter(|((_, start), known)| {
                let (offsets, end) = *known;
                offsets[0] == offsets[1] && *start < end
            });
        for ((row, _), _) in others {
            // Async sugar writes one list for two rows, of which the text has one.
            let flags = module.flags(row);
            let is_sugar = flags & Flags::SUGAR != 0;
            if is_sugar && flags & Flags::IMPLICIT != 0 {
                continue;
            }
            let own = if is_sugar {
                Attributes::of_text(module, module.tail(row))
            } else {
                module.attributes(row)
            };
            for attribute in own {
                let key = module.bytes(attribute.key);
                keys.add(key.len(), key.first().copied().unwrap_or_default());
            }
        }
        keys
    }

    /// The word and the bit of a key.
    #[inline]
    fn place(length: usize, first: u8) -> (usize, u64) {
        // All lengths above those of columns share a place.
        let place = (length.min(u16::MAX.into()) & 7) << 5 | usize::from(first & 31);
        (place >> 6, 1 << (place & 63))
    }

    #[inline]
    fn add(&mut self, length: usize, first: u8) {
        let (word, bit) = Self::place(length, first);
        // Nearly all keys are known: reading alone does not wait for what was written last.
        if self.0[word] & bit == 0 {
            self.0[word] |= bit;
        }
    }

    #[inline]
    fn may_hold(&self, key: &str) -> bool {
        let (word, bit) = Self::place(key.len(), key.bytes().next().unwrap_or_default());
        self.0[word] & bit != 0
    }
}

impl Module {
    /// Whether some row may have attribute `key`; if not, none has it.
    #[inline]
    pub(crate) fn may_have(&self, key: &str) -> bool {
        self.derived().keys.get_or_init(|| KeysInUse::of_module(self)).may_hold(key)
    }

    /// The rows that may have attribute `key`; no other row has it.
    pub(crate) fn rows_that_may_have(&self, key: &str) -> impl Iterator<Item = Row> + '_ {
        let rows = if self.may_have(key) { self.row_count() } else { 0 };
        let (length, first) = (key.len(), key.bytes().next().unwrap_or_default());
        let may_have = move |row: &Row| match self.columns.value_ends(*row) {
            [] => !self.tail(*row).is_empty(),
            ends => ends
                .iter()
                .any(|own| own.key_first == first && usize::from(own.key_length) == length),
        };
        (0..rows as u32).map(Row).filter(may_have)
    }

    /// The attributes of `row`, with or without metadata, if it was read from a line in the printed
    /// form; None for other rows.
    #[inline]
    pub(crate) fn printed_attributes(&self, row: Row, metadata: bool) -> Option<Printed<'_>> {
        let (tail, text) = (self.tail(row), self.text());
        let ends = self.columns.value_ends(row);
        if ends.is_empty() || self.flags(row) & Flags::SUGAR != 0 || tail.end as usize > text.len()
        {
            return None;
        }
        let left_out = match metadata {
            true => NO_METADATA,
            false => self.columns.metadata_starts[row.0 as usize],
        };
        let (start, end) = (tail.start as usize + 2, tail.end as usize);
        Some(Printed { text, start, end, ends, left_out: left_out as usize })
    }

    /// The text of the attributes of `row`, if those are followed by metadata at most and it was read
    /// from a line in the printed form.
    pub(crate) fn attributes_before_metadata(&self, row: Row) -> Option<&[u8]> {
        let tail = self.tail(row);
        if self.flags(row) & Flags::SUGAR != 0 || tail.end as usize > self.text().len() {
            return None;
        }
        let end = match self.columns.metadata_starts[row.0 as usize] {
            NO_METADATA => tail.end,
            start => {
                let before = start.checked_sub(METADATA.len() as u32 + 2)?;
                let others = self.columns.value_ends(row).split_last()?.1;
                let is_last = others.last().map_or(tail.start, |last| last.end) == before;
                is_last.then_some(before)?
            }
        };
        Some(self.bytes(Span { start: tail.start, end }))
    }

    /// Whether `row` has an attribute `metadata` and no other; false where that is not known without
    /// reading the text.
    #[inline]
    pub(crate) fn has_only_metadata(&self, row: Row) -> bool {
        let start = self.tail(row).start as usize + 2 + METADATA.len();
        matches!(self.columns.value_ends(row), [_])
            && self.columns.metadata_starts[row.0 as usize] as usize == start
    }
}

/// Skips whitespace before a value. `padding=` of a scalar has no value and may end its line.
pub(crate) fn skip_to_value(cursor: &mut Cursor<'_>, key: &[u8]) -> Result<()> {
    if key == b"padding" {
        while cursor.peek() == b' ' {
            cursor.advance(1);
        }
        return Ok(());
    }
    cursor.skip_space()
}

/// Skips the value of attribute `key`; shared by loading and lazy reading, so that both agree.
/// The cursor stands on the value's first byte.
pub(crate) fn read_value(cursor: &mut Cursor<'_>, key: &[u8]) -> Result<Span> {
    match (cursor.peek(), key) {
        (b'{', b"backend_config" | b"origin") => cursor.dictionary(),
        (b'{', b"frontend_attributes") => read_dictionaries(cursor),
        (b'{', _) => cursor.balanced(),
        (b'"' | b'\'', _) => cursor.string(),
        (b'm', _) => read_mesh(cursor),
        _ => read_run(cursor, key),
    }
}

/// `{key="text",key={opaque}}`; in opaque values, only braces have to balance.
fn read_dictionaries(cursor: &mut Cursor<'_>) -> Result<Span> {
    let start = cursor.position();
    let before = *cursor;
    cursor.advance(1);
    loop {
        cursor.skip_space()?;
        match cursor.peek() {
            b'}' => {
                cursor.advance(1);
                return Ok(cursor.span_since(start));
            }
            b',' => cursor.advance(1),
            b'"' | b'\'' => {
                cursor.string()?;
            }
            b'{' => {
                cursor.dictionary()?;
            }
            byte if is_identifier_byte(byte) || byte == b'=' => cursor.advance(1),
            _ => {
                *cursor = before;
                return cursor.balanced();
            }
        }
    }
}

/// `mesh['a'=2], device_ids=(..) {'a'}`: the only value with a comma outside brackets.
fn read_mesh(cursor: &mut Cursor<'_>) -> Result<Span> {
    let start = cursor.position();
    let word = cursor.identifier();
    if !matches!(word, b"mesh" | b"maximal_mesh") || cursor.peek() != b'[' {
        cursor.set_position(start);
        return read_run(cursor, b"");
    }
    cursor.balanced()?;
    loop {
        let end = cursor.position();
        cursor.skip_space()?;
        cursor.eat(b',')?;
        cursor.skip_space()?;
        if cursor.eat_bytes(b"device_ids=") {
            cursor.skip_space()?;
            if cursor.peek() == b'(' {
                cursor.balanced()?;
                continue;
            }
        }
        if cursor.peek() == b'{' {
            cursor.balanced()?;
            return Ok(cursor.span_since(start));
        }
        cursor.set_position(end);
        return Ok(cursor.span_since(start));
    }
}

/// A run of tokens: numbers, words, brackets. It ends at a comma, a closing bracket, or where the
/// next instruction starts.
fn read_run(cursor: &mut Cursor<'_>, key: &[u8]) -> Result<Span> {
    let start = cursor.position();
    loop {
        match cursor.peek() {
            b',' | b')' | b']' | b'}' => break,
            b'"' | b'\'' => {
                cursor.string()?;
            }
            b'(' | b'[' | b'{' => {
                cursor.balanced()?;
            }
            b' ' | b'\t' | b'\r' | b'\n' | b'/' => {
                let end = cursor.position();
                let lines_before = cursor.position();
                cursor.skip_space()?;
                if !run_continues(cursor, lines_before, key) {
                    cursor.set_position(end);
                    break;
                }
            }
            _ if cursor.is_at_end() => break,
            _ => cursor.advance(1),
        }
    }
    Ok(cursor.span_since(start))
}

/// Whether the token after a gap belongs to the value before the gap.
fn run_continues(cursor: &Cursor<'_>, gap: usize, key: &[u8]) -> bool {
    match cursor.peek() {
        b'{' | b'[' | b'(' | b'<' | b'"' | b'\'' => true,
        _ if cursor.is_at_end() => false,
        byte if is_identifier_byte(byte) => {
            if cursor.since(gap).contains(&b'\n') {
                return key == b"replica_groups" && byte == b'T' && cursor.peek_at(1) == b'(';
            }
            let mut ahead = *cursor;
            let word = ahead.identifier();
            word != b"ROOT" && !ahead.eat(b'=').unwrap_or(true)
        }
        _ => false,
    }
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
            let set = Key::from_bytes(key).map_or(0, Key::only);
            let keep = match self.filter {
                Filter::Async => set & (ASYNCHRONOUS | COMMON) != 0,
                _ => set & ASYNCHRONOUS == 0,
            };
            if keep {
                return Some(attribute);
            }
        }
    }
}
