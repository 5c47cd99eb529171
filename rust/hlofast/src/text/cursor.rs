//! A byte cursor over HLO text: whitespace, comments, identifiers, strings and balanced runs.
//!
//! The tolerant reader uses it for attribute values and for all text outside the line-based fast
//! path. Positions are offsets into the slice the cursor was made with.

use super::Span;
use crate::error::{ErrorKind, ParseError, Result};

const IDENTIFIER: u8 = 1;
const IDENTIFIER_START: u8 = 2;
const SPACE: u8 = 4;
const BRACKET_OR_QUOTE: u8 = 8;

const CLASS: [u8; 256] = {
    let mut table = [0u8; 256];
    let mut i = 0;
    while i < 256 {
        let c = i as u8;
        if c.is_ascii_alphabetic() || c == b'_' {
            table[i] |= IDENTIFIER | IDENTIFIER_START;
        }
        if c.is_ascii_digit() || c == b'.' || c == b'-' {
            table[i] |= IDENTIFIER;
        }
        if matches!(c, b' ' | b'\t' | b'\n' | b'\r') {
            table[i] |= SPACE;
        }
        if matches!(c, b'{' | b'}' | b'(' | b')' | b'[' | b']' | b'"' | b'\'' | b'/') {
            table[i] |= BRACKET_OR_QUOTE;
        }
        i += 1;
    }
    table
};

/// Whether `byte` may be part of an identifier: `[A-Za-z0-9_.-]`.
#[inline]
pub fn is_identifier_byte(byte: u8) -> bool {
    CLASS[byte as usize] & IDENTIFIER != 0
}

/// Whether `byte` may start an identifier: `[A-Za-z_]`.
#[inline]
pub fn is_identifier_start(byte: u8) -> bool {
    CLASS[byte as usize] & IDENTIFIER_START != 0
}

/// A stack of offsets that allocates only when it gets deep.
#[derive(Default)]
struct Stack {
    shallow: [u32; 16],
    depth: usize,
    deep: Vec<u32>,
}

impl Stack {
    #[inline]
    fn push(&mut self, at: u32) {
        match self.shallow.get_mut(self.depth) {
            Some(slot) => *slot = at,
            None => self.deep.push(at),
        }
        self.depth += 1;
    }

    #[inline]
    fn pop(&mut self) -> Option<u32> {
        self.depth = self.depth.checked_sub(1)?;
        self.shallow.get(self.depth).copied().or_else(|| self.deep.pop())
    }

    fn last(&self) -> Option<u32> {
        let at = self.depth.checked_sub(1)?;
        self.shallow.get(at).copied().or_else(|| self.deep.last().copied())
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.depth == 0
    }
}

/// A position in a text, with the basic readers on which all other readers build.
#[derive(Clone, Copy)]
pub struct Cursor<'a> {
    text: &'a [u8],
    position: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `text`.
    #[inline]
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, position: 0, end: text.len() }
    }

    /// A cursor over `span` of `text`; positions stay offsets into `text`.
    #[inline]
    pub fn within(text: &'a [u8], span: Span) -> Self {
        let end = (span.end as usize).min(text.len());
        Self { text, position: (span.start as usize).min(end), end }
    }

    /// The whole text the positions refer to.
    #[inline]
    pub fn text(&self) -> &'a [u8] {
        self.text
    }

    /// The position of the cursor.
    #[inline]
    pub fn position(&self) -> usize {
        self.position
    }

    /// The end of the cursor's range.
    #[inline]
    pub fn end(&self) -> usize {
        self.end
    }

    /// Moves to `position` (clamped to the end).
    #[inline]
    pub fn set_position(&mut self, position: usize) {
        self.position = position.min(self.end);
    }

    /// Whether the cursor is at the end of its range.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.position >= self.end
    }

    /// The byte here, or 0 at the end (a NUL byte is never valid outside strings).
    #[inline]
    pub fn peek(&self) -> u8 {
        if self.position < self.end { self.text[self.position] } else { 0 }
    }

    /// The byte `ahead` bytes further on, or 0.
    #[inline]
    pub fn peek_at(&self, ahead: usize) -> u8 {
        let at = self.position + ahead;
        if at < self.end { self.text[at] } else { 0 }
    }

    /// The rest of the range.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        &self.text[self.position.min(self.end)..self.end]
    }

    /// The bytes from `start` to here.
    #[inline]
    pub fn since(&self, start: usize) -> &'a [u8] {
        &self.text[start..self.position]
    }

    /// The span from `start` to here.
    #[inline]
    pub fn span_since(&self, start: usize) -> Span {
        Span::new(start, self.position)
    }

    /// Moves `count` bytes on.
    #[inline]
    pub fn advance(&mut self, count: usize) {
        self.position = (self.position + count).min(self.end);
    }

    /// Skips whitespace and comments.
    #[inline]
    pub fn skip_space(&mut self) -> Result<()> {
        loop {
            while CLASS[self.peek() as usize] & SPACE != 0 {
                self.position += 1;
            }
            if self.peek() != b'/' {
                return Ok(());
            }
            self.skip_comment()?;
        }
    }

    /// Skips one comment; the cursor must be at its slash.
    fn skip_comment(&mut self) -> Result<()> {
        let start = self.position;
        match self.peek_at(1) {
            b'*' => {
                let mut at = start + 2;
                while let Some(skip) =
                    memchr::memchr(b'*', self.text.get(at..self.end).unwrap_or_default())
                {
                    at += skip + 1;
                    if at < self.end && self.text[at] == b'/' {
                        self.position = at + 1;
                        return Ok(());
                    }
                }
                Err(ParseError::new(
                    ErrorKind::UnclosedComment,
                    Span::new(start, start + 2),
                    "unclosed comment",
                ))
            }
            b'/' => {
                let rest = &self.text[start..self.end];
                self.position = start + memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
                Ok(())
            }
            _ => Err(ParseError::new(
                ErrorKind::UnexpectedCharacter,
                Span::new(start, start + 1),
                "a single '/' does not start a comment",
            )),
        }
    }

    /// Takes `byte` (after whitespace) if it is next.
    #[inline]
    pub fn eat(&mut self, byte: u8) -> Result<bool> {
        let is_next = |own: &Self| own.peek() == byte && own.position < own.end;
        // Mostly, nothing is before it.
        if byte == b'/' || !is_next(self) {
            self.skip_space()?;
        }
        let is_next = is_next(self);
        self.position += usize::from(is_next);
        Ok(is_next)
    }

    /// Takes the bytes of `token` if they are next, without skipping whitespace.
    #[inline]
    pub fn eat_bytes(&mut self, token: &[u8]) -> bool {
        let is_next = self.rest().starts_with(token);
        if is_next {
            self.position += token.len();
        }
        is_next
    }

    /// Takes `byte` (after whitespace), or returns an error.
    #[inline]
    pub fn expect(&mut self, byte: u8, after: &str) -> Result<()> {
        if self.eat(byte)? {
            Ok(())
        } else {
            Err(self.expected(&(byte as char).to_string(), after))
        }
    }

    /// The error "expected X after Y" at this place.
    #[cold]
    pub fn expected(&self, what: &str, after: &str) -> ParseError {
        let at = self.position.min(self.end);
        let quoted = if what.len() <= 2 { format!("'{what}'") } else { what.to_string() };
        let mut message = format!("expected {quoted}");
        if !after.is_empty() {
            message.push(' ');
            message.push_str(after);
        }
        if at >= self.end {
            message.push_str(", but the text ends");
            return ParseError::new(ErrorKind::UnexpectedEnd, Span::at(at), message);
        }
        ParseError::new(ErrorKind::ExpectedToken, Span::new(at, at + 1), message)
    }

    /// The identifier here (possibly empty), without skipping whitespace.
    #[inline]
    pub fn identifier(&mut self) -> &'a [u8] {
        let start = self.position;
        if CLASS[self.peek() as usize] & IDENTIFIER_START != 0 {
            while CLASS[self.peek() as usize] & IDENTIFIER != 0 && self.position < self.end {
                self.position += 1;
            }
        }
        &self.text[start..self.position]
    }

    /// A name: an identifier with or without `%`, after whitespace; a colon directly after the name
    /// is skipped (`foo:` is the name `foo`). None if there is no name.
    pub fn name(&mut self) -> Result<Option<Span>> {
        self.skip_space()?;
        let before = self.position;
        let percent = self.peek() == b'%';
        self.position += usize::from(percent);
        let start = self.position;
        if self.identifier().is_empty() {
            self.position = before;
            return Ok(None);
        }
        let name = self.span_since(start);
        self.eat_bytes(b":");
        Ok(Some(name))
    }

    /// Skips a string; the cursor must be at its opening quote. Returns the span with both quotes.
    pub fn string(&mut self) -> Result<Span> {
        let start = self.position;
        let quote = self.peek();
        let mut at = start + 1;
        loop {
            match memchr::memchr2(quote, b'\\', &self.text[at.min(self.end)..self.end]) {
                Some(skip) if self.text[at + skip] == quote => {
                    self.position = at + skip + 1;
                    return Ok(self.span_since(start));
                }
                Some(skip) if at + skip + 2 <= self.end => at += skip + 2,
                _ => {
                    return Err(ParseError::new(
                        ErrorKind::UnclosedString,
                        Span::new(start, start + 1),
                        "unclosed string",
                    ));
                }
            }
        }
    }

    /// Skips a run from an opening bracket to its match, over strings and comments. The cursor must
    /// be at the opening bracket; returns the span with both brackets.
    pub fn balanced(&mut self) -> Result<Span> {
        let start = self.position;
        let mut stack = Stack::default();
        loop {
            let rest = self.rest();
            let is_special = |byte: &u8| CLASS[*byte as usize] & BRACKET_OR_QUOTE != 0;
            self.position += rest.iter().position(is_special).unwrap_or(rest.len());
            match self.peek() {
                b'"' | b'\'' => {
                    self.string()?;
                }
                b'/' => match self.peek_at(1) {
                    b'*' | b'/' => self.skip_comment()?,
                    _ => self.position += 1,
                },
                b'{' | b'(' | b'[' => {
                    stack.push(self.position as u32);
                    self.position += 1;
                }
                close @ (b'}' | b')' | b']') => {
                    let open = stack.pop().map_or(0, |at| self.text[at as usize]);
                    if !matches!((open, close), (b'{', b'}') | (b'(', b')') | (b'[', b']')) {
                        return Err(self.mismatched(close));
                    }
                    self.position += 1;
                    if stack.is_empty() {
                        return Ok(self.span_since(start));
                    }
                }
                _ => {
                    let open = stack.last().map_or(start, |at| at as usize);
                    return Err(ParseError::new(
                        ErrorKind::UnclosedBracket,
                        Span::new(open, open + 1),
                        format!("'{}' is never closed", self.text[open] as char),
                    ));
                }
            }
        }
    }

    #[cold]
    fn mismatched(&self, close: u8) -> ParseError {
        ParseError::new(
            ErrorKind::MismatchedBracket,
            Span::new(self.position, self.position + 1),
            format!("'{}' does not match the open bracket", close as char),
        )
    }

    /// Skips a brace dictionary (`backend_config={...}`, frontend attribute values): braces outside
    /// double-quoted strings are counted, all other text is opaque.
    pub fn dictionary(&mut self) -> Result<Span> {
        let start = self.position;
        let mut depth = 0usize;
        loop {
            let rest = &self.text[self.position..self.end];
            let Some(skip) = memchr::memchr3(b'{', b'}', b'"', rest) else {
                return Err(ParseError::new(
                    ErrorKind::UnclosedBracket,
                    Span::new(start, start + 1),
                    "'{' is never closed",
                ));
            };
            self.position += skip;
            match self.peek() {
                b'"' => {
                    self.string()?;
                }
                b'{' => {
                    depth += 1;
                    self.position += 1;
                }
                _ => {
                    self.position += 1;
                    depth -= 1;
                    if depth == 0 {
                        return Ok(self.span_since(start));
                    }
                }
            }
        }
    }

    /// Appends the integers of `1,20,3` as XLA prints them but the last, and takes them with their commas.
    /// Stops before an integer of another form, with more than 9 digits or before anything but a digit, so that
    /// `integer` may read on. Lists of devices are most of the text of some dumps.
    pub fn printed_integers(&mut self, values: &mut Vec<i64>) {
        let bytes = self.text.get(..self.end).unwrap_or_default();
        loop {
            let (mut number, mut at) = (0u32, self.position);
            while let Some(digit) = bytes.get(at).filter(|byte| byte.is_ascii_digit()) {
                number = number.wrapping_mul(10).wrapping_add(u32::from(digit - b'0'));
                at += 1;
            }
            let length = at - self.position;
            let more = bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
            if length == 0 || length > 9 || bytes.get(at) != Some(&b',') || !more {
                return;
            }
            values.push(i64::from(number));
            self.position = at + 1;
        }
    }

    /// An optionally negative decimal integer after whitespace; None if there is none, an error
    /// if it does not fit 64 bits. Values from 2^63 to 2^64-1 wrap, as in XLA.
    pub fn integer(&mut self) -> Result<Option<i64>> {
        self.skip_space()?;
        let start = self.position;
        let negative = self.peek() == b'-';
        self.position += usize::from(negative);
        let digits = self.position;
        let mut value: u64 = 0;
        let mut overflow = false;
        // So few digits cannot overflow.
        while self.peek().is_ascii_digit() && self.position < digits + 18 {
            value = value * 10 + u64::from(self.peek() - b'0');
            self.position += 1;
        }
        while self.peek().is_ascii_digit() {
            let digit = u64::from(self.peek() - b'0');
            match value.checked_mul(10).and_then(|v| v.checked_add(digit)) {
                Some(next) => value = next,
                None => overflow = true,
            }
            self.position += 1;
        }
        if self.position == digits {
            self.position = start;
            return Ok(None);
        }
        if overflow || (negative && value > 1 << 63) {
            return Err(ParseError::new(
                ErrorKind::InvalidNumber,
                self.span_since(start),
                "integer does not fit 64 bits",
            ));
        }
        Ok(Some(if negative { (value as i64).wrapping_neg() } else { value as i64 }))
    }
}
