//! The fast path for the headers of modules and computations that are on one line.

use super::masked_line::MaskedLine;
use super::reader::Reader;
use crate::ir::Computation;
use crate::text::kernel::{LineMasks, NOT_IDENTIFIER, OUTSIDE, SPACE};
use crate::text::{Span, is_identifier_start};

impl Reader<'_> {
    /// Reads the module header's attributes, `, key=value` up to the end of the line at `start`;
    /// None, with nothing read, if the line contains anything else.
    pub(super) fn header_attributes_line(
        &mut self,
        start: usize,
        masks: &mut LineMasks,
    ) -> Option<usize> {
        if self.options.force_general || !self.kernel.scan(masks, self.text, start) {
            return None;
        }
        let line = self.text.get(start..start + masks.length)?;
        let masked = MaskedLine { line, masks };
        if masks.has_special && !masked.has_only_harmless_specials() {
            return None;
        }
        let end = line.trim_ascii_end().len();
        let mut attributes = Vec::new();
        let mut at = 0;
        while at < end {
            let key = at + 2;
            let key_end = masks.next::<NOT_IDENTIFIER>(key);
            let value = key_end + 1;
            if masked.byte(at) != b','
                || masked.byte(at + 1) != b' '
                || masked.byte(key_end) != b'='
                || !is_identifier_start(masked.byte(key))
            {
                return None;
            }
            at = match masked.byte(value) {
                b'{' => masked.closing(value)? + 1,
                b' ' | b',' | b'\n' | b'\r' => return None,
                b'"' => masks.next::<OUTSIDE>(value + 1) + 1,
                _ => {
                    let stop = masked.value_end(value)?.min(end);
                    // A space may end the value; the general path reads such lines.
                    if masks.next::<SPACE>(value) < stop {
                        return None;
                    }
                    stop
                }
            };
            attributes.push((
                Span::new(start + key, start + key_end),
                Span::new(start + value, start + at),
            ));
        }
        if !self.ends_here(start + masks.length) {
            return None;
        }
        self.header.attributes = attributes;
        Some(start + end)
    }

    /// Reads a computation's header if it fills the line: `ENTRY %name (x: f32[]) -> f32[] {` or
    /// `name {`.
    pub(super) fn computation_line(
        &mut self,
        start: usize,
        masks: &mut LineMasks,
    ) -> Option<Computation> {
        if start < self.general_until {
            return None;
        }
        if !self.kernel.scan(masks, self.text, start) {
            self.general_until = start + masks.length;
            return None;
        }
        let line = self.text.get(start..start + masks.length)?;
        let computation = self.scanned_computation_line(start, &MaskedLine { line, masks });
        if computation.is_none() {
            self.general_until = start + masks.length;
        }
        computation
    }

    #[inline(always)]
    fn scanned_computation_line(
        &mut self,
        start: usize,
        masked: &MaskedLine<'_, '_>,
    ) -> Option<Computation> {
        let line = masked.line;
        if masked.masks.has_special && !masked.has_only_harmless_specials() {
            return None;
        }
        let is_marked_entry = line.starts_with(b"ENTRY ");
        let mut at = 6 * usize::from(is_marked_entry);
        at += usize::from(masked.byte(at) == b'%');
        let name_end = masked.masks.next::<NOT_IDENTIFIER>(at);
        let signature = name_end + 1;
        if !is_identifier_start(masked.byte(at)) || masked.byte(name_end) != b' ' {
            return None;
        }
        let (brace, signature) = if masked.byte(signature) == b'{' {
            (signature, Span::EMPTY)
        } else {
            if masked.byte(signature) != b'(' {
                return None;
            }
            let close = masked.closing(signature)?;
            let shape = close + 5;
            let trimmed = line.trim_ascii_end().len();
            if line.get(close + 1..shape)? != b" -> " || !line[..trimmed].ends_with(b" {") {
                return None;
            }
            let end = trimmed - 2;
            if end < shape {
                return None;
            }
            // A number after the brace would make the brace part of the shape's layout.
            let next = self.text[start + line.len()..].iter().find(|b| !b.is_ascii_whitespace());
            if next.is_some_and(|b| matches!(b, b'0'..=b'9' | b':' | b'-' | b'/')) {
                return None;
            }
            self.shape_of_text(start + shape, start + end)?;
            (trimmed - 1, Span::new(start + signature, start + end))
        };
        if !line[brace + 1..].trim_ascii_end().is_empty() {
            return None;
        }
        Some(Computation {
            name: Span::new(start + at, start + name_end),
            header: Span::new(start, start + brace + 1),
            signature,
            is_marked_entry,
            ..Computation::default()
        })
    }
}
