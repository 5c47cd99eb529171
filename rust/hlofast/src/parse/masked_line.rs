//! A line with the masks of its bytes: matches brackets and finds the ends of attribute values.

use crate::text::kernel::{CLOSE, COMMA, LineMasks, NOT_IDENTIFIER, OPEN, SPECIAL};

/// Maximum nesting of brackets inside one attribute value or literal on the fast path.
const MAX_NESTING: usize = 16;

/// A line and its masks.
pub(super) struct MaskedLine<'m, 'a> {
    pub line: &'a [u8],
    pub masks: &'m LineMasks,
}

impl MaskedLine<'_, '_> {
    /// The byte at `at`, or a newline past the end.
    #[inline(always)]
    pub fn byte(&self, at: usize) -> u8 {
        self.line.get(at).copied().unwrap_or(b'\n')
    }

    /// The bracket that closes the bracket at `open`; None if the brackets do not match.
    #[inline(always)]
    pub fn closing(&self, open: usize) -> Option<usize> {
        let at = self.masks.next_of::<OPEN, CLOSE>(open + 1);
        if self.byte(at) == partner(self.byte(open)) {
            return Some(at);
        }
        self.closing_nested(open, at)
    }

    /// Like `closing`, with nested brackets in between; `at` is the first nested bracket.
    #[inline(always)]
    pub fn closing_nested(&self, open: usize, at: usize) -> Option<usize> {
        let mut stack = [0u8; MAX_NESTING];
        stack[0] = partner(self.byte(open));
        let mut depth = 1;
        let mut at = at;
        loop {
            let byte = *self.line.get(at)?;
            let closes = partner(byte);
            if closes != 0 {
                *stack.get_mut(depth)? = closes;
                depth += 1;
            } else {
                depth -= 1;
                if stack[depth] != byte {
                    return None;
                }
                if depth == 0 {
                    return Some(at);
                }
            }
            at = self.masks.next_of::<OPEN, CLOSE>(at + 1);
        }
    }

    /// Whether every special byte is part of an index comment, `/*index=5*/`, or of the quotes
    /// around a plain word, `'axis_0'`.
    #[cold]
    #[inline(never)]
    pub fn has_only_harmless_specials(&self) -> bool {
        let mut at = self.masks.next::<SPECIAL>(0);
        while at < self.line.len() {
            let end = self.masks.next::<SPECIAL>(at + 1);
            let Some(inside) = self.line.get(at..=end) else { return false };
            let harmless = match inside {
                [b'/', b'*', b'i', b'n', b'd', b'e', b'x', b'=', digits @ .., b'*', b'/'] => {
                    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
                }
                [b'\'', .., b'\''] => self.masks.next::<NOT_IDENTIFIER>(at + 1) == end,
                _ => false,
            };
            if !harmless {
                return false;
            }
            at = self.masks.next::<SPECIAL>(end + 1);
        }
        true
    }

    /// Skips an index comment at `at`.
    #[inline(always)]
    pub fn skip_comment(&self, at: usize) -> usize {
        if self.byte(at) == b'/' { self.masks.next::<SPECIAL>(at + 1) + 1 } else { at }
    }

    /// Checks that the general path would also read `value..end` as one value. The general path
    /// ends values at gaps, continues after comments and allows a comma in a mesh.
    #[cold]
    #[inline(never)]
    pub fn plain_value(&self, value: usize, end: usize) -> Option<()> {
        let mut text = self.line.get(value..end)?;
        if end == self.line.len() {
            text = text.trim_ascii_end();
        }
        let word = text.split(|byte| *byte == b'[').next()?;
        let is_plain = !text.is_empty()
            && !text.iter().any(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'/'))
            && !matches!(word, b"mesh" | b"maximal_mesh");
        is_plain.then_some(())
    }

    /// The end of the attribute value at `value`: the comma, or the line's end.
    #[inline(always)]
    pub fn value_end(&self, value: usize) -> Option<usize> {
        let mut at = value;
        loop {
            let comma = self.masks.next::<COMMA>(at);
            let bracket = self.masks.next_of::<OPEN, CLOSE>(at);
            if comma <= bracket {
                return Some(comma);
            }
            at = self.closing(bracket)? + 1;
        }
    }
}

/// The bracket that closes `open`; 0 if `open` is not an opening bracket.
#[inline(always)]
fn partner(open: u8) -> u8 {
    match open {
        b'(' => b')',
        b'[' => b']',
        b'{' => b'}',
        _ => 0,
    }
}
