//! The attributes of one instruction, taken one by one: what nobody takes has no field.

use super::at;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::attribute::Use;
use crate::ir::decode::{self, AttributeValue};
use crate::ir::{Attribute, Module, Row};
use crate::text::Span;
use AttributeValue as V;

/// The attributes that were not taken yet.
pub(super) struct Keys<'m> {
    module: &'m Module,
    left: Vec<Attribute>,
}

impl<'m> Keys<'m> {
    pub(super) fn new(module: &'m Module, row: Row) -> Result<Keys<'m>> {
        let left: Vec<Attribute> = module.attributes(row).collect();
        let mut keys: Vec<(&[u8], Span)> =
            left.iter().map(|one| (module.bytes(one.key), one.key)).collect();
        keys.sort_by_key(|(key, span)| (*key, span.start));
        for pair in keys.windows(2) {
            if let [(first, _), (second, span)] = pair
                && first == second
            {
                let message = format!("{} is given twice", String::from_utf8_lossy(second));
                return Err(ParseError::new(ErrorKind::DuplicateAttribute, *span, message));
            }
        }
        Ok(Keys { module, left })
    }

    /// Where the value of `key` stands; not again.
    pub(super) fn take(&mut self, key: &str) -> Option<Span> {
        let at = self.left.iter().position(|one| self.module.bytes(one.key) == key.as_bytes())?;
        Some(self.left.remove(at).value)
    }

    /// Where the value of `key` stands.
    pub(super) fn peek(&self, key: &str) -> Option<Span> {
        let mut left = self.left.iter();
        left.find(|one| self.module.bytes(one.key) == key.as_bytes()).map(|one| one.value)
    }

    /// The value of `attribute` as `read` makes it of the decoded value; an error where that is of
    /// a form that only texts of earlier years have.
    pub(super) fn with<T>(
        &mut self,
        attribute: &Use,
        read: impl FnOnce(V<'m>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let Some(span) = self.take(attribute.key) else { return Ok(None) };
        let value = decode::decode_as(attribute.grammar, self.module.bytes(span))
            .map_err(|error| error.shifted(span.start))?;
        // Faults of values know no place of their own.
        let place = |error: ParseError| match error.span() {
            Span::EMPTY => at(error, span),
            _ => error.shifted(span.start),
        };
        match read(value).map_err(place)? {
            Some(value) => Ok(Some(value)),
            None => {
                let message = format!("a protobuf has no field for this form of {}", attribute.key);
                Err(ParseError::new(ErrorKind::InvalidAttribute, span, message))
            }
        }
    }

    /// An error that names the first attribute that nobody took.
    pub(super) fn finish(self, word: &[u8]) -> Result<()> {
        let Some(first) = self.left.first() else { return Ok(()) };
        let key = String::from_utf8_lossy(self.module.bytes(first.key));
        let word = String::from_utf8_lossy(word);
        let message = format!("a protobuf has no field for {key} of {word}");
        Err(ParseError::new(ErrorKind::UnexpectedAttribute, first.key, message))
    }
}

/// The place of `word` among `words`, in capitals or not.
pub(super) fn code_of(word: &[u8], words: &[&str]) -> Result<i64> {
    let found = words.iter().position(|known| known.as_bytes().eq_ignore_ascii_case(word));
    found.map(|code| code as i64).ok_or_else(|| {
        let message = format!("a protobuf has no number for {}", String::from_utf8_lossy(word));
        ParseError::new(ErrorKind::InvalidAttribute, Span::EMPTY, message)
    })
}
