//! Tokens as XLA's lexer produces them, with its context-free number patterns, and with `=` and `:`
//! attached to the word before them.

use super::string::is_unescapable;
use crate::error::{ErrorKind, ParseError};
use crate::ir::ElementType;
use crate::text::{Cursor, Span, is_identifier_byte, is_identifier_start};

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    End,
    /// Bytes that are not a token; `Lexer::fault` gives the reason.
    Error,
    Equal,
    Comma,
    Colon,
    Asterisk,
    Question,
    Octothorp,
    Plus,
    Tilde,
    LeftSquare,
    RightSquare,
    LeftBrace,
    RightBrace,
    LeftParen,
    RightParen,
    Dots,
    Arrow,
    LessEqual,
    /// `%name`, or `name:` with its colon.
    Name,
    /// A word and the `=` after it.
    AttributeName,
    /// An element type.
    Type,
    /// A reserved word.
    Keyword,
    Ident,
    DimLabels,
    Dxd,
    Pad,
    Int,
    Decimal,
    NegativeInf,
    String,
}

/// Why bytes are not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Character,
    Comment,
    String,
    UnclosedString,
    Number,
    Dictionary,
}

/// Bytes that can start a reserved word or a `DimLabels`.
const MAYBE_RESERVED: [bool; 256] = {
    let mut table = [false; 256];
    let firsts = b"tfiHERFSmrlsunpbco";
    let mut i = 0;
    while i < firsts.len() {
        table[firsts[i] as usize] = true;
        i += 1;
    }
    table
};

/// Whether `word` is an element type.
#[inline]
pub(super) fn is_type(word: &[u8]) -> bool {
    match word {
        [b'f' | b's' | b'u' | b'c', b'0'..=b'9', ..] => ElementType::from_bytes(word).is_some(),
        b"bf16" | b"pred" | b"token" | b"opaque" => true,
        _ => false,
    }
}

/// Whether `word` can only be a name if it has `%` before it.
#[inline]
pub(super) fn is_reserved(word: &[u8]) -> bool {
    word.first().is_some_and(|byte| MAYBE_RESERVED[*byte as usize])
        && (is_type(word) || is_keyword(word) || word == b"nan")
}

/// Whether `word` is a keyword.
#[inline]
fn is_keyword(word: &[u8]) -> bool {
    match word.first() {
        Some(b't') => word == b"true",
        Some(b'f') => word == b"false",
        Some(b'i') => word == b"inf",
        Some(b'm') => word == b"maximal" || word == b"manual",
        Some(b'r') => word == b"replicated",
        Some(b'l') => word == b"last_tile_dim_replicate",
        Some(b's') => word == b"shard_as" || word == b"shard_like",
        Some(b'u') => word == b"unknown" || word == b"unreduced",
        Some(b'R') => word == b"ROOT",
        Some(b'E') => word == b"ENTRY",
        Some(b'H') => word == b"HloModule",
        Some(b'S') => word == b"StackFrames",
        Some(b'F') => matches!(word, b"FileLocations" | b"FileNames" | b"FunctionNames"),
        _ => false,
    }
}

/// A position in the text and the token at that position.
#[derive(Clone, Copy)]
pub(super) struct Lexer<'a> {
    text: &'a [u8],
    position: usize,
    /// The current token.
    pub kind: Kind,
    /// Offset of its first byte; for names, without `%`.
    pub start: usize,
    /// Offset after its last byte, without an attached `:` or `=`.
    pub end: usize,
    /// The value of an `Int`.
    pub value: i64,
    /// The payload of a `Decimal` that is NaN.
    pub nan_payload: Option<u64>,
    fault: Fault,
}

impl<'a> Lexer<'a> {
    /// Creates a lexer whose current token is the first token from `position` on.
    pub fn new(text: &'a [u8], position: usize) -> Self {
        let mut lexer = Self {
            text,
            position,
            kind: Kind::End,
            start: position,
            end: position,
            value: 0,
            nan_payload: None,
            fault: Fault::Character,
        };
        lexer.advance();
        lexer
    }

    /// The current token's bytes.
    #[inline]
    pub fn word(&self) -> &'a [u8] {
        self.text.get(self.start..self.end).unwrap_or_default()
    }

    /// The current token's span.
    #[inline]
    pub fn span(&self) -> Span {
        Span::new(self.start, self.end)
    }

    /// Whether the current token is the reserved word `word`.
    #[inline]
    pub fn is_keyword(&self, word: &[u8]) -> bool {
        self.kind == Kind::Keyword && self.word() == word
    }

    /// The kind of the token after the current token.
    pub fn look_ahead(&self) -> Kind {
        let mut ahead = *self;
        ahead.advance();
        ahead.kind
    }

    #[inline]
    fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(0)
    }

    /// The offset after the current token.
    #[inline]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Reads the token at `position`; the text before it was read by other means.
    #[inline]
    pub fn resume(&mut self, position: usize) {
        self.position = position;
        self.advance();
    }

    /// Reads the next token.
    #[inline]
    pub fn advance(&mut self) {
        if self.kind == Kind::Error {
            return;
        }
        let mut at = self.position;
        loop {
            match self.byte(at) {
                b' ' | b'\t' | b'\n' | b'\r' => at += 1,
                b'/' => match self.skip_comment(at) {
                    Some(next) => at = next,
                    None => return self.broken(at, at + 1),
                },
                _ => break,
            }
        }
        self.start = at;
        let byte = self.byte(at);
        if is_identifier_start(byte) {
            return self.identifier(at);
        }
        let single = match byte {
            b',' => Kind::Comma,
            b'=' => Kind::Equal,
            b':' => Kind::Colon,
            b'{' => Kind::LeftBrace,
            b'}' => Kind::RightBrace,
            b'(' => Kind::LeftParen,
            b')' => Kind::RightParen,
            b'[' => Kind::LeftSquare,
            b']' => Kind::RightSquare,
            b'*' => Kind::Asterisk,
            b'#' => Kind::Octothorp,
            b'+' => Kind::Plus,
            b'~' => Kind::Tilde,
            b'%' => return self.percent(at),
            b'0'..=b'9' | b'-' | b'?' => return self.number(at),
            b'"' | b'\'' => return self.string(at, byte),
            b'.' if self.byte(at + 1) == b'.' && self.byte(at + 2) == b'.' => {
                return self.token(Kind::Dots, at + 3);
            }
            b'<' if self.byte(at + 1) == b'=' => return self.token(Kind::LessEqual, at + 2),
            0 if at >= self.text.len() => {
                self.start = self.text.len();
                return self.token(Kind::End, self.text.len());
            }
            _ => return self.broken(at, at + 1),
        };
        self.token(single, at + 1);
    }

    #[inline]
    fn token(&mut self, kind: Kind, end: usize) {
        self.kind = kind;
        self.end = end;
        self.position = end;
    }

    #[cold]
    fn broken(&mut self, start: usize, end: usize) {
        self.start = start.min(self.text.len());
        self.token(Kind::Error, end.min(self.text.len()));
    }

    #[cold]
    fn broken_by(&mut self, fault: Fault, start: usize, end: usize) {
        self.fault = fault;
        self.broken(start, end);
    }

    /// The offset after the comment at `at`.
    fn skip_comment(&mut self, at: usize) -> Option<usize> {
        let rest = self.text.get(at + 2..).unwrap_or_default();
        match self.byte(at + 1) {
            b'*' => match memchr::memmem::find(rest, b"*/") {
                Some(length) => Some(at + 2 + length + 2),
                None => {
                    self.fault = Fault::Comment;
                    None
                }
            },
            b'/' => Some(at + 2 + memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len())),
            _ => {
                self.fault = Fault::Character;
                None
            }
        }
    }

    #[inline]
    fn identifier_end(&self, from: usize) -> usize {
        let mut at = from;
        while is_identifier_byte(self.byte(at)) && at < self.text.len() {
            at += 1;
        }
        at
    }

    #[inline]
    fn identifier(&mut self, at: usize) {
        let end = self.identifier_end(at + 1);
        self.token(Kind::Ident, end);
        match self.byte(end) {
            b':' => {
                self.kind = Kind::Name;
                self.position = end + 1;
                return;
            }
            b'=' => {
                self.kind = Kind::AttributeName;
                self.position = end + 1;
                return;
            }
            _ => {}
        }
        if !MAYBE_RESERVED[self.byte(at) as usize] {
            return;
        }
        let word = self.word();
        if is_type(word) {
            self.kind = Kind::Type;
        } else if word == b"nan" {
            self.nan(end);
        } else if is_keyword(word) {
            self.kind = Kind::Keyword;
        } else if matches!(self.byte(at), b'b' | b'f')
            && let Some(end) = self.dim_labels(at)
        {
            self.token(Kind::DimLabels, end);
        }
    }

    /// Reads `nan`, optionally with `(0xPAYLOAD)`; `end` is the offset after the word.
    fn nan(&mut self, end: usize) {
        self.nan_payload = None;
        self.token(Kind::Decimal, end);
        if self.byte(end) != b'(' {
            return;
        }
        let digits = end + 3;
        let mut at = digits;
        let mut payload = 0u64;
        let mut fits = true;
        while let Some(digit) = (self.byte(at) as char).to_digit(16) {
            fits &= payload >> 60 == 0;
            payload = payload << 4 | u64::from(digit);
            at += 1;
        }
        let prefixed = self.byte(end + 1) == b'0' && self.byte(end + 2) == b'x';
        if !prefixed || at == digits || self.byte(at) != b')' || !fits || payload == 0 {
            return self.broken_by(Fault::Number, self.start, at);
        }
        self.nan_payload = Some(payload);
        self.token(Kind::Decimal, at + 1);
    }

    /// The end of `bf01_io01->bf01` at `at`, if present.
    fn dim_labels(&self, at: usize) -> Option<usize> {
        let run = |from: usize, letters: &[u8]| {
            let mut end = from;
            while self.byte(end).is_ascii_digit()
                || self.byte(end) == b'?'
                || letters.contains(&self.byte(end))
            {
                end += 1;
            }
            (end >= from + 2 && end <= self.text.len()).then_some(end)
        };
        let lhs = run(at, b"bf")?;
        if self.byte(lhs) != b'_' {
            return None;
        }
        let rhs = run(lhs + 1, b"io")?;
        if self.byte(rhs) != b'-' || self.byte(rhs + 1) != b'>' {
            return None;
        }
        run(rhs + 2, b"bf")
    }

    fn percent(&mut self, at: usize) {
        if !is_identifier_start(self.byte(at + 1)) {
            return self.broken_by(Fault::Character, at, at + 1);
        }
        let end = self.identifier_end(at + 2);
        self.start = at + 1;
        self.token(Kind::Name, end);
    }

    fn digits(&self, from: usize) -> usize {
        let mut at = from;
        while self.byte(at).is_ascii_digit() {
            at += 1;
        }
        at
    }

    /// The end of an exponent at `at`, if present.
    fn exponent(&self, at: usize) -> Option<usize> {
        if !matches!(self.byte(at), b'e' | b'E') {
            return None;
        }
        let from = at + 1 + usize::from(matches!(self.byte(at + 1), b'+' | b'-'));
        let end = self.digits(from);
        (end > from).then_some(end)
    }

    /// The end of a decimal number at `at`; a decimal has a point or an exponent.
    fn decimal(&self, at: usize) -> Option<usize> {
        let from = at + usize::from(self.byte(at) == b'-');
        let whole = self.digits(from);
        if self.byte(whole) != b'.' {
            return if whole > from { self.exponent(whole) } else { None };
        }
        let end = self.digits(whole + 1);
        if whole == from && end == whole + 1 {
            return None;
        }
        Some(self.exponent(end).unwrap_or(end))
    }

    #[inline]
    fn number(&mut self, at: usize) {
        // Plain integers are tried first, because they are by far the most frequent.
        let mut end = at;
        let mut value = 0i64;
        while self.byte(end).is_ascii_digit() && end - at < 18 {
            value = value * 10 + i64::from(self.byte(end) - b'0');
            end += 1;
        }
        if end > at
            && !matches!(
                self.byte(end),
                b'0'..=b'9' | b'.' | b'e' | b'E' | b'x' | b'_' | b'b' | b'f' | b'?'
            )
        {
            self.value = value;
            return self.token(Kind::Int, end);
        }
        self.general_number(at);
    }

    #[inline(never)]
    fn general_number(&mut self, at: usize) {
        if let Some(end) = self.decimal(at) {
            self.nan_payload = None;
            return self.token(Kind::Decimal, end);
        }
        if let Some(end) = self.dim_labels(at) {
            return self.token(Kind::DimLabels, end);
        }
        if let Some(end) = self.dxd(at) {
            return self.token(Kind::Dxd, end);
        }
        if let Some(end) = self.pad(at) {
            return self.token(Kind::Pad, end);
        }
        let negative = self.byte(at) == b'-';
        let digits = at + usize::from(negative);
        let end = self.digits(digits);
        if end > digits {
            let spelled = self.text.get(digits..end).unwrap_or_default();
            let magnitude =
                std::str::from_utf8(spelled).ok().and_then(|text| text.parse::<u64>().ok());
            let Some(magnitude) = magnitude.filter(|m| !negative || *m <= 1 << 63) else {
                return self.broken_by(Fault::Number, at, end);
            };
            self.value =
                if negative { (magnitude as i64).wrapping_neg() } else { magnitude as i64 };
            return self.token(Kind::Int, end);
        }
        if negative {
            let rest = self.text.get(at + 1..).unwrap_or_default();
            if rest.starts_with(b">") {
                return self.token(Kind::Arrow, at + 2);
            }
            if rest.starts_with(b"inf") {
                return self.token(Kind::NegativeInf, at + 4);
            }
            if rest.starts_with(b"nan") {
                return self.nan(at + 4);
            }
        } else if self.byte(at) == b'?' {
            return self.token(Kind::Question, at + 1);
        }
        self.broken_by(Fault::Number, at, at + 1);
    }

    /// `2x3x4`.
    fn dxd(&self, at: usize) -> Option<usize> {
        let mut end = self.digits(at);
        if end == at {
            return None;
        }
        let first = end;
        while self.byte(end) == b'x' {
            let next = self.digits(end + 1);
            if next == end + 1 {
                break;
            }
            end = next;
        }
        (end > first).then_some(end)
    }

    /// `0_1x-1_2_3`.
    fn pad(&self, at: usize) -> Option<usize> {
        let signed = |from: usize| {
            let digits = from + usize::from(self.byte(from) == b'-');
            let end = self.digits(digits);
            (end > digits).then_some(end)
        };
        let group = |from: usize| {
            let low = signed(from)?;
            if self.byte(low) != b'_' {
                return None;
            }
            let high = signed(low + 1)?;
            let interior = self.digits(high + 1);
            if self.byte(high) == b'_' && interior > high + 1 { Some(interior) } else { Some(high) }
        };
        let mut end = group(at)?;
        while self.byte(end) == b'x'
            && let Some(next) = group(end + 1)
        {
            end = next;
        }
        Some(end)
    }

    #[inline]
    fn string(&mut self, at: usize, quote: u8) {
        let mut from = at + 1;
        let mut escaped = false;
        let end = loop {
            let rest = self.text.get(from..).unwrap_or_default();
            match memchr::memchr2(quote, b'\\', rest) {
                Some(skip) if rest.get(skip) == Some(&quote) => break from + skip,
                Some(skip) => {
                    escaped = true;
                    if matches!(rest.get(skip + 1), None | Some(b'\n')) {
                        return self.broken_by(Fault::UnclosedString, at, at + 1);
                    }
                    from += skip + 2;
                }
                None => return self.broken_by(Fault::UnclosedString, at, at + 1),
            }
        };
        self.token(Kind::String, end + 1);
        let inside = self.text.get(at + 1..end).unwrap_or_default();
        if !inside.is_ascii() && std::str::from_utf8(inside).is_err() {
            return self.broken_by(Fault::String, at, end + 1);
        }
        if escaped && !is_unescapable(inside) {
            self.broken_by(Fault::String, at, end + 1);
        }
    }

    /// Turns the current `{` into a dictionary token, as XLA reads `backend_config={...}`.
    pub fn dictionary(&mut self) {
        let mut cursor = Cursor::new(self.text);
        cursor.set_position(self.start);
        match cursor.dictionary() {
            Ok(span) => self.token(Kind::String, span.end as usize),
            Err(_) => self.broken_by(Fault::Dictionary, self.start, self.start + 1),
        }
    }

    /// The error for an `Error` token.
    #[cold]
    pub fn error(&self) -> ParseError {
        let (kind, message) = match self.fault {
            Fault::Character => (ErrorKind::UnexpectedCharacter, "unexpected character"),
            Fault::Comment => (ErrorKind::UnclosedComment, "unclosed comment"),
            Fault::String => {
                (ErrorKind::InvalidString, "this string has an escape or bytes that XLA rejects")
            }
            Fault::UnclosedString => (ErrorKind::UnclosedString, "unclosed string"),
            Fault::Number => (ErrorKind::InvalidNumber, "this number cannot be read"),
            Fault::Dictionary => (ErrorKind::UnclosedBracket, "'{' is never closed"),
        };
        ParseError::new(kind, self.span(), message)
    }
}
