//! Small readers that all decoders share: required tokens, lists, and the end of a value.

use super::string::unescape;
use crate::error::{ErrorKind, ParseError, Result};
use crate::text::{Cursor, Span, is_identifier_byte};
use std::borrow::Cow;

/// Nesting deeper than this is an error, as in XLA.
pub const DEPTH_LIMIT: usize = 8192;

/// Whether a list may end with a comma.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trailing {
    Comma,
    Nothing,
}

/// An error at the cursor.
#[cold]
pub(crate) fn invalid(cursor: &Cursor<'_>, kind: ErrorKind, message: &str) -> ParseError {
    let at = cursor.position();
    ParseError::new(kind, Span::new(at, (at + 1).min(cursor.end()).max(at)), message)
}

/// An error about the bytes since `start`.
#[cold]
pub(crate) fn invalid_since(
    cursor: &Cursor<'_>,
    start: usize,
    kind: ErrorKind,
    message: impl Into<Box<str>>,
) -> ParseError {
    ParseError::new(kind, cursor.span_since(start), message)
}

/// Runs `read` over the whole of `value`; only space may follow the part that it reads.
pub(crate) fn whole<'a, T>(
    value: &'a [u8],
    read: impl FnOnce(&mut Cursor<'a>) -> Result<T>,
) -> Result<T> {
    let mut cursor = Cursor::new(value);
    let result = read(&mut cursor)?;
    finish(&mut cursor)?;
    Ok(result)
}

/// Requires that only space is left.
pub(crate) fn finish(cursor: &mut Cursor<'_>) -> Result<()> {
    cursor.skip_space()?;
    if cursor.is_at_end() {
        return Ok(());
    }
    Err(invalid(cursor, ErrorKind::InvalidAttribute, "unexpected text after the value"))
}

/// Reads `open item, item, ... close`, possibly without items.
pub(crate) fn list<'a>(
    cursor: &mut Cursor<'a>,
    (open, close): (u8, u8),
    trailing: Trailing,
    mut item: impl FnMut(&mut Cursor<'a>) -> Result<()>,
) -> Result<()> {
    cursor.expect(open, "at the start of the list")?;
    if cursor.eat(close)? {
        return Ok(());
    }
    loop {
        item(cursor)?;
        if cursor.eat(close)? {
            return Ok(());
        }
        if !cursor.eat(b',')? {
            return Err(cursor.expected(&(close as char).to_string(), "at the end of the list"));
        }
        if trailing == Trailing::Comma && cursor.eat(close)? {
            return Ok(());
        }
    }
}

/// Reads a required integer.
pub(crate) fn integer(cursor: &mut Cursor<'_>) -> Result<i64> {
    match cursor.integer()? {
        Some(value) if !is_identifier_byte(cursor.peek()) || cursor.peek() == b'x' => Ok(value),
        Some(_) => Err(invalid(cursor, ErrorKind::InvalidNumber, "not an integer")),
        None => Err(cursor.expected("an integer", "")),
    }
}

/// `{1,2,3}`.
pub(crate) fn integers<V: Default + Extend<i64>>(
    cursor: &mut Cursor<'_>,
    trailing: Trailing,
) -> Result<V> {
    let mut values = V::default();
    list(cursor, (b'{', b'}'), trailing, |cursor| {
        values.extend([integer(cursor)?]);
        Ok(())
    })?;
    Ok(values)
}

/// The integers of `{1,20}` as XLA prints them, of up to 9 digits each; None for any other text.
pub(crate) fn printed_integers(value: &[u8]) -> Option<Vec<i64>> {
    let mut rest = value.strip_prefix(b"{")?.strip_suffix(b"}")?;
    let mut values = Vec::with_capacity(rest.len().div_ceil(2));
    while !rest.is_empty() {
        let mut number = 0i64;
        let mut length = 0;
        while let Some(digit) = rest.get(length).filter(|byte| byte.is_ascii_digit()) {
            number = number * 10 + i64::from(digit - b'0');
            length += 1;
            if length > 9 {
                return None;
            }
        }
        values.push(number);
        rest = match rest.split_at_checked(length)? {
            (b"", _) => return None,
            (_, b"") => b"",
            (_, [b',', more @ ..]) if !more.is_empty() => more,
            _ => return None,
        };
    }
    Some(values)
}

/// Reads a required `true` or `false`.
pub(crate) fn boolean(cursor: &mut Cursor<'_>) -> Result<bool> {
    cursor.skip_space()?;
    let start = cursor.position();
    match cursor.identifier() {
        b"true" => Ok(true),
        b"false" => Ok(false),
        b"" => Err(cursor.expected("true or false", "")),
        _ => {
            Err(invalid_since(cursor, start, ErrorKind::InvalidAttribute, "expected true or false"))
        }
    }
}

/// Reads a required identifier.
pub(crate) fn word<'a>(cursor: &mut Cursor<'a>, what: &str) -> Result<&'a [u8]> {
    cursor.skip_space()?;
    match cursor.identifier() {
        b"" => Err(cursor.expected(what, "")),
        word => Ok(word),
    }
}

/// Reads a required name, with or without `%`.
pub(crate) fn name<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8]> {
    match cursor.name()? {
        Some(span) => Ok(bytes(cursor, span)),
        None => Err(ParseError::new(
            ErrorKind::ExpectedName,
            Span::at(cursor.position()),
            "expected a name",
        )),
    }
}

/// Reads a required `key=` and returns the key.
pub(crate) fn key<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8]> {
    let key = word(cursor, "a key")?;
    cursor.expect(b'=', "after the key")?;
    Ok(key)
}

/// The bytes of `span`, which the cursor returned.
pub(crate) fn bytes<'a>(cursor: &Cursor<'a>, span: Span) -> &'a [u8] {
    cursor.text().get(span.range()).unwrap_or_default()
}

/// Whether a string is next (after space).
pub(crate) fn at_string(cursor: &mut Cursor<'_>) -> Result<bool> {
    cursor.skip_space()?;
    Ok(matches!(cursor.peek(), b'"' | b'\''))
}

/// Reads a required string and returns its content without escapes.
pub(crate) fn string<'a>(cursor: &mut Cursor<'a>) -> Result<Cow<'a, [u8]>> {
    if !at_string(cursor)? {
        return Err(cursor.expected("a string", ""));
    }
    let start = cursor.position();
    let span = cursor.string()?;
    let quoted = bytes(cursor, span);
    let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
    unescape(inner).map_err(|error| error.shifted(start as u32 + 1))
}

/// The text of a number: an optional sign, digits, a fraction, an exponent, or a word such as
/// `inf` and `nan(0x7f)`.
pub(crate) fn number_text<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8]> {
    cursor.skip_space()?;
    let start = cursor.position();
    cursor.advance(usize::from(cursor.peek() == b'-'));
    while matches!(cursor.peek(), b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'.' | b'_')
        || (matches!(cursor.peek(), b'+' | b'-')
            && matches!(cursor.since(start).last(), Some(b'e' | b'E'))
            && cursor.since(start).iter().any(u8::is_ascii_digit))
    {
        cursor.advance(1);
    }
    if cursor.peek() == b'(' && cursor.since(start).ends_with(b"nan") {
        while cursor.peek() != b')' && !cursor.is_at_end() {
            cursor.advance(1);
        }
        cursor.advance(1);
    }
    Ok(cursor.since(start))
}

/// Reads a required number: decimal, `inf` or `nan`.
pub(crate) fn float(cursor: &mut Cursor<'_>) -> Result<f64> {
    cursor.skip_space()?;
    let start = cursor.position();
    let text = number_text(cursor)?;
    if text.is_empty() {
        return Err(cursor.expected("a number", ""));
    }
    let value = match text {
        b"inf" => Some(f64::INFINITY),
        b"-inf" => Some(f64::NEG_INFINITY),
        b"nan" => Some(f64::NAN),
        b"-nan" => Some(-f64::NAN),
        _ => decimal_text(text).and_then(|text| text.parse().ok()),
    };
    value.ok_or_else(|| invalid_since(cursor, start, ErrorKind::InvalidNumber, "not a number"))
}

/// `text` if it has the form of a decimal number.
pub(crate) fn decimal_text(text: &[u8]) -> Option<&str> {
    let plain = text.iter().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    let text = std::str::from_utf8(text).ok()?;
    (plain && !text.starts_with('+')).then_some(text)
}
