//! Caches of a check: keyed hashes of texts, and attribute values that passed.

use super::Checker;
use super::instruction::Subject;
use super::lexer::Kind;
use super::operands::NO_ROW;
use crate::ir::attribute::{Grammar, Key};
use crate::ir::intern::{hash_bytes, hash_seed};
use crate::text::Span;
use std::hash::{BuildHasher, Hasher};

/// Slots for passed values.
const SLOTS: usize = 1024;
/// Maximum number of bytes of a value that determine its slot.
const LONGEST_KEY: usize = 512;

/// Hasher state for texts and ids, keyed once per process.
#[derive(Clone, Copy, Default)]
pub(super) struct BuildText;

impl BuildHasher for BuildText {
    type Hasher = TextHasher;
    fn build_hasher(&self) -> TextHasher {
        TextHasher(hash_seed())
    }
}

pub(super) struct TextHasher(u64);

impl TextHasher {
    #[inline]
    fn mix(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for TextHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.mix(hash_bytes(bytes));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Values in braces that passed. Such a value ends where its braces close, so text that starts with
/// the bytes of a passed value starts with that value.
#[derive(Default)]
pub(super) struct PassedValues {
    slots: Vec<(Key, Span)>,
}

/// Whether reading a value in braces depends only on its bytes and has no result other than
/// passing.
fn is_self_contained(grammar: Grammar) -> bool {
    matches!(
        grammar,
        Grammar::Sharding | Grammar::Frontend | Grammar::BackendConfig | Grammar::Groups
    )
}

impl Checker<'_> {
    /// Skips the value at the current token if it passed before; otherwise returns the slot in
    /// which `remember_value` may store it.
    #[inline]
    pub(super) fn passed_value(
        &mut self,
        attribute: Key,
        grammar: Grammar,
        subject: Subject,
    ) -> PassedValue {
        if self.kind() != Kind::LeftBrace || !is_self_contained(grammar) || subject.row.0 == NO_ROW
        {
            return PassedValue::Unknown;
        }
        let start = self.lexer.start;
        let end = self.module.tail(subject.row).end as usize;
        let Some(rest) = self.text.get(start..end) else { return PassedValue::Unknown };
        let mut key = rest.get(..LONGEST_KEY).unwrap_or(rest);
        // The text up to the first closing brace identifies a value well enough, except for a
        // backend configuration, which may contain braces and is the last attribute.
        if !matches!(grammar, Grammar::BackendConfig)
            && let Some(close) = memchr::memchr(b'}', key)
        {
            key = key.get(..close).unwrap_or(key);
        }
        let slot = hash_bytes(key) as usize % SLOTS;
        if let Some((known, span)) = self.passed_values.slots.get(slot)
            && *known == attribute
            && !span.is_empty()
            && self.text.get(span.range()) == rest.get(..span.len())
        {
            self.lexer.resume(start + span.len());
            return PassedValue::Skipped;
        }
        PassedValue::Slot { slot, start }
    }

    /// Remembers in `slot` the value from `start` to the current token.
    pub(super) fn remember_value(&mut self, attribute: Key, slot: usize, start: usize) {
        let Some(read) = self.text.get(start..self.lexer.start) else { return };
        let value = read.trim_ascii_end();
        // The last brace might be inside a comment.
        if value.last() != Some(&b'}') || memchr::memmem::find(value, b"//").is_some() {
            return;
        }
        let slots = &mut self.passed_values.slots;
        if slots.is_empty() {
            slots.resize(SLOTS, (attribute, Span::EMPTY));
        }
        if let Some(entry) = slots.get_mut(slot) {
            *entry = (attribute, Span::new(start, start + value.len()));
        }
    }
}

/// Whether a value is remembered.
#[derive(Clone, Copy)]
pub(super) enum PassedValue {
    Skipped,
    Slot { slot: usize, start: usize },
    Unknown,
}
