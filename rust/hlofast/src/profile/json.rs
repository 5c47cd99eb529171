//! Reads JSON front to back without building a tree: memory stays that of the text.

use crate::error::{ErrorKind, ParseError, Result};
use crate::text::Span;
use std::borrow::Cow;

/// Deepest nesting of skipped values. Traces nest four levels.
const DEEPEST: usize = 128;

/// A place in a JSON text.
#[derive(Clone, Debug)]
pub(super) struct Json<'a> {
    text: &'a [u8],
    at: usize,
}

/// A string, number or word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar<'a> {
    /// The inside of a string, with escapes as written.
    Text(&'a [u8]),
    /// A number, true, false or null as written.
    Word(&'a [u8]),
}

impl<'a> Scalar<'a> {
    /// The text, or the word as written.
    pub(super) fn text(self) -> Cow<'a, str> {
        match self {
            Scalar::Word(word) => String::from_utf8_lossy(word),
            Scalar::Text(raw) if !raw.contains(&b'\\') => String::from_utf8_lossy(raw),
            Scalar::Text(raw) => Cow::Owned(unescaped(raw)),
        }
    }

    /// The integer, written as a number or a string.
    pub(super) fn integer(self) -> Option<i64> {
        let (Scalar::Text(raw) | Scalar::Word(raw)) = self;
        let text = std::str::from_utf8(raw).ok()?;
        // Numbers of programs have 64 bits without sign.
        text.parse().ok().or_else(|| text.parse::<u64>().ok().map(|value| value as i64))
    }

    /// Microseconds: whole ones, and the rest in picoseconds; exact where they are written as
    /// decimals.
    pub(super) fn microseconds(self) -> Option<(i64, i64)> {
        let (Scalar::Text(raw) | Scalar::Word(raw)) = self;
        let text = std::str::from_utf8(raw).ok()?;
        let digits = text.strip_prefix('-').unwrap_or(text);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_decimal = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 18 || !is_decimal(whole) || !is_decimal(fraction) {
            let value: f64 = text.parse().ok()?;
            let whole = value.trunc();
            // The conversion saturates.
            let rest = ((value - whole) * 1e6).round() as i64;
            return value.is_finite().then_some((whole as i64, rest));
        }
        let whole: i64 = whole.parse().ok()?;
        let digit =
            |place| fraction.as_bytes().get(place).map_or(0, |digit| i64::from(digit - b'0'));
        let rest = (0..6).fold(0, |rest, place| rest * 10 + digit(place));
        let rest = rest + i64::from(digit(6) >= 5);
        Some(if digits.len() < text.len() { (-whole, -rest) } else { (whole, rest) })
    }

    /// Microseconds as picoseconds.
    pub(super) fn picoseconds(self) -> Option<i64> {
        let (whole, rest) = self.microseconds()?;
        Some(whole.saturating_mul(1_000_000).saturating_add(rest))
    }
}

/// A string without its escapes; invalid ones stay as written.
fn unescaped(raw: &[u8]) -> String {
    let quoted = [b"\"", raw, b"\""].concat();
    serde_json::from_slice(&quoted).unwrap_or_else(|_| String::from_utf8_lossy(raw).into_owned())
}

impl<'a> Json<'a> {
    pub(super) fn new(text: &'a [u8]) -> Json<'a> {
        Json { text, at: 0 }
    }

    /// An error here.
    #[cold]
    pub(super) fn error(&self, expected: &str) -> ParseError {
        let at = self.at.min(u32::MAX as usize);
        let (kind, found) = match self.text.get(self.at) {
            None => (ErrorKind::UnexpectedEnd, "the text ends".to_owned()),
            Some(byte) => {
                (ErrorKind::UnexpectedCharacter, format!("found {:?}", char::from(*byte)))
            }
        };
        let message = format!("expected {expected}, {found} (at byte {at} of the trace)");
        ParseError::new(kind, Span::new(at, at), message)
    }

    /// The next byte that is not blank, which stays.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.text.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    /// Takes `byte` if it is next.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Takes `byte`, which must be next.
    pub(super) fn expect(&mut self, byte: u8) -> Result<()> {
        match self.take(byte) {
            true => Ok(()),
            false => Err(self.error(&format!("{:?}", char::from(byte)))),
        }
    }

    /// The string that must be next, with escapes as written.
    pub(super) fn string(&mut self) -> Result<&'a [u8]> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            match memchr::memchr2(b'"', b'\\', rest) {
                Some(skip) if rest[skip] == b'"' => {
                    self.at += skip + 1;
                    return Ok(&self.text[start..self.at - 1]);
                }
                Some(skip) => self.at = (self.at + skip + 2).min(self.text.len()),
                None => {
                    self.at = self.text.len();
                    return Err(self.error("the end of a string"));
                }
            }
        }
    }

    /// The scalar that is next; None for an object or list, which is skipped.
    pub(super) fn scalar(&mut self) -> Result<Option<Scalar<'a>>> {
        match self.peek() {
            Some(b'"') => self.string().map(|text| Some(Scalar::Text(text))),
            Some(b'{' | b'[') => self.skip().map(|()| None),
            Some(b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') => {
                let start = self.at;
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                while self.text.get(self.at).is_some_and(is_part) {
                    self.at += 1;
                }
                Ok(Some(Scalar::Word(&self.text[start..self.at])))
            }
            _ => Err(self.error("a value")),
        }
    }

    /// Skips the value that is next. Its brackets and strings have to close; what is between them is
    /// not checked further.
    pub(super) fn skip(&mut self) -> Result<()> {
        let mut open: Vec<u8> = Vec::new();
        loop {
            match self.peek() {
                Some(byte @ (b'{' | b'[')) => {
                    if open.len() >= DEEPEST {
                        let message = format!("values nested more than {DEEPEST} deep");
                        return Err(ParseError::new(ErrorKind::TooDeep, Span::EMPTY, message));
                    }
                    self.at += 1;
                    open.push(if byte == b'{' { b'}' } else { b']' });
                }
                Some(byte @ (b'}' | b']')) if open.last() == Some(&byte) => {
                    self.at += 1;
                    open.pop();
                }
                Some(b',' | b':') if !open.is_empty() => self.at += 1,
                _ => _ = self.scalar()?,
            }
            if open.is_empty() {
                return Ok(());
            }
        }
    }

    /// Passes each key of the object that must be next to `value`, which takes or skips its value.
    pub(super) fn object(
        &mut self,
        mut value: impl FnMut(&mut Json<'a>, &'a [u8]) -> Result<()>,
    ) -> Result<()> {
        self.expect(b'{')?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            value(self, key)?;
            if self.take(b'}') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Calls `element` before each element of the list that must be next.
    pub(super) fn list(
        &mut self,
        mut element: impl FnMut(&mut Json<'a>) -> Result<()>,
    ) -> Result<()> {
        self.expect(b'[')?;
        if self.take(b']') {
            return Ok(());
        }
        loop {
            element(self)?;
            if self.take(b']') {
                return Ok(());
            }
            self.expect(b',')?;
            // The profiler's writer ends some lists with a comma.
            if self.take(b']') {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_exact() {
        let exact = |text: &[u8]| Scalar::Word(text).picoseconds();
        assert_eq!(exact(b"47588.123"), Some(47_588_123_000));
        assert_eq!(exact(b"0.000001"), Some(1));
        assert_eq!(exact(b"-1.5"), Some(-1_500_000));
        assert_eq!(exact(b"1e3"), Some(1_000_000_000));
        assert_eq!(exact(b"0.0000019"), Some(2));
        assert_eq!(exact(b"true"), None);
        assert_eq!(exact(b"99999999999999999999"), Some(i64::MAX));
    }

    #[test]
    fn hostile_texts_are_errors() {
        let deep = [b'['; 4096];
        for text in [&b"{"[..], b"[1", b"\"a", b"[}", b"\x01", b"", &deep] {
            let mut json = Json::new(text);
            assert!(json.skip().is_err() || json.peek().is_some(), "{text:?}");
        }
        let mut json = Json::new(b"{\"a\": [1, {\"b\": \"x\\\"\"}], \"c\": null}");
        assert!(json.skip().is_ok() && json.peek().is_none());
    }
}
