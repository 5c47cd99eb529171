//! The attributes of one instruction, taken one by one: an attribute that is never taken has no
//! field.

use super::at;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::attribute::{Key, Set, Use};
use crate::ir::decode::{self, AttributeValue};
use crate::ir::{Attribute, Module, Row};
use crate::text::Span;
use AttributeValue as V;

/// The attributes not taken yet.
pub(super) struct Keys<'m> {
    module: &'m Module,
    left: Vec<(Option<Key>, Attribute)>,
    /// Attributes not taken yet that are in the table of attributes.
    known: Set,
}

impl<'m> Keys<'m> {
    pub(super) fn new(module: &'m Module, row: Row) -> Result<Keys<'m>> {
        let all = module.attributes(row);
        let left: Vec<(Option<Key>, Attribute)> = all
            .map(|attribute| (Key::from_bytes(module.bytes(attribute.key)), attribute))
            .collect();
        let mut keys: Vec<(&[u8], Span)> = left
            .iter()
            .map(|(_, attribute)| (module.bytes(attribute.key), attribute.key))
            .collect();
        keys.sort_by_key(|(key, span)| (*key, span.start));
        for pair in keys.windows(2) {
            if let [(first, _), (second, span)] = pair
                && first == second
            {
                let message = format!("{} is given twice", String::from_utf8_lossy(second));
                return Err(ParseError::new(ErrorKind::DuplicateAttribute, *span, message));
            }
        }
        let known = left.iter().filter_map(|(key, _)| *key).fold(0, |set, key| set | key.only());
        Ok(Keys { module, left, known })
    }

    /// Takes the span of the value of `key`.
    pub(super) fn take(&mut self, key: Key) -> Option<Span> {
        if self.known & key.only() == 0 {
            return None;
        }
        let at = self.left.iter().position(|(known, _)| *known == Some(key))?;
        Some(self.left.remove(at).1.value)
    }

    /// Decodes the value of `attribute` at `span` and passes it to `read`; an error if `read` says
    /// that only old text has this form.
    pub(super) fn read(
        &self,
        attribute: &Use,
        span: Span,
        read: impl FnOnce(V<'m>) -> Result<bool>,
    ) -> Result<()> {
        let value = decode::decode_as(attribute.grammar, self.module.bytes(span))
            .map_err(|error| error.shifted(span.start))?;
        // A fault without a place of its own is placed at the whole value.
        let place = |error: ParseError| match error.span() {
            Span::EMPTY => at(error, span),
            _ => error.shifted(span.start),
        };
        if read(value).map_err(place)? {
            return Ok(());
        }
        let message = format!("a protobuf has no field for this form of {}", attribute.key);
        Err(ParseError::new(ErrorKind::InvalidAttribute, span, message))
    }

    /// Checks that all attributes were taken; the error names the first attribute that was not.
    pub(super) fn finish(self, word: &[u8]) -> Result<()> {
        let Some((_, first)) = self.left.first() else { return Ok(()) };
        let key = String::from_utf8_lossy(self.module.bytes(first.key));
        let word = String::from_utf8_lossy(word);
        let message = format!("a protobuf has no field for {key} of {word}");
        Err(ParseError::new(ErrorKind::UnexpectedAttribute, first.key, message))
    }
}

/// The index of `word` in `words`, in lower or upper case.
pub(super) fn code_of(word: &[u8], words: &[&str]) -> Result<i64> {
    let code = words.iter().position(|known| known.as_bytes().eq_ignore_ascii_case(word));
    code.map(|code| code as i64).ok_or_else(|| {
        let message = format!("a protobuf has no number for {}", String::from_utf8_lossy(word));
        ParseError::new(ErrorKind::InvalidAttribute, Span::EMPTY, message)
    })
}
