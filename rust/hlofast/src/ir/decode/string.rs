//! String contents: C escapes, and the way XLA's printer writes them.

use crate::error::{ErrorKind, ParseError, Result};
use crate::text::Span;
use std::borrow::Cow;

/// The content of a string without its quotes: escapes replaced. Borrowed if there are none. The
/// result may be any bytes; it need not be UTF-8.
pub fn unescape(content: &[u8]) -> Result<Cow<'_, [u8]>> {
    if memchr::memchr(b'\\', content).is_none() {
        return Ok(Cow::Borrowed(content));
    }
    let mut result = Vec::with_capacity(content.len());
    unescape_into(content, &mut result)?;
    Ok(Cow::Owned(result))
}

/// Appends the content of a string without its quotes: escapes replaced, or as it is written if they cannot be read.
pub fn unescape_or_copy(content: &[u8], result: &mut Vec<u8>) {
    let start = result.len();
    if unescape_into(content, result).is_err() {
        result.truncate(start);
        result.extend_from_slice(content);
    }
}

/// Appends the content of a string without its quotes: escapes replaced.
fn unescape_into(content: &[u8], result: &mut Vec<u8>) -> Result<()> {
    let mut at = 0;
    while let Some(rest) = content.get(at..).filter(|rest| !rest.is_empty()) {
        let skip = memchr::memchr(b'\\', rest).unwrap_or(rest.len());
        result.extend_from_slice(rest.get(..skip).unwrap_or_default());
        at += skip;
        if let Some(escape) = rest.get(skip..).filter(|escape| !escape.is_empty()) {
            at += one_escape(escape, at, result)?;
        }
    }
    Ok(())
}

/// Replaces the escape that `text` starts with; returns its length.
fn one_escape(text: &[u8], at: usize, result: &mut Vec<u8>) -> Result<usize> {
    let fail = |length: usize, message: &str| {
        let end = at + length.min(text.len());
        Err(ParseError::new(ErrorKind::InvalidString, Span::new(at, end), message))
    };
    let simple = match text.get(1) {
        Some(b'a') => 0x07,
        Some(b'b') => 0x08,
        Some(b'f') => 0x0c,
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'v') => 0x0b,
        Some(c @ (b'\\' | b'?' | b'\'' | b'"')) => *c,
        Some(b'0'..=b'7') => {
            let digits: &[u8] = text.get(1..4.min(text.len())).unwrap_or_default();
            let count = digits.iter().take_while(|b| matches!(b, b'0'..=b'7')).count();
            let value = digits.iter().take(count).fold(0, |v, b| v * 8 + u32::from(b - b'0'));
            let Ok(byte) = u8::try_from(value) else {
                return fail(count + 1, "octal escape above \\377");
            };
            result.push(byte);
            return Ok(count + 1);
        }
        Some(b'x') => {
            // All hexadecimal digits that follow belong to the escape, however many.
            let digits = text.get(2..).unwrap_or_default();
            let count = digits.iter().take_while(|b| b.is_ascii_hexdigit()).count();
            let value = digits
                .iter()
                .take(count)
                .try_fold(0u8, |value, digit| (value < 16).then(|| value * 16 + hex_value(*digit)));
            let Some(byte) = value.filter(|_| count > 0) else {
                return fail(count + 2, "\\x needs hexadecimal digits up to \\xff");
            };
            result.push(byte);
            return Ok(count + 2);
        }
        Some(c @ (b'u' | b'U')) => {
            let count = if *c == b'u' { 4 } else { 8 };
            let digits = text.get(2..2 + count).unwrap_or_default();
            let valid = digits.len() == count && digits.iter().all(u8::is_ascii_hexdigit);
            let value =
                digits.iter().fold(0u32, |v, b| v.wrapping_mul(16) + u32::from(hex_value(*b)));
            let Some(character) = char::from_u32(value).filter(|_| valid) else {
                return fail(count + 2, "\\u needs 4 and \\U 8 hexadecimal digits of a code point");
            };
            result.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            return Ok(count + 2);
        }
        _ => return fail(2, "unknown escape"),
    };
    result.push(simple);
    Ok(2)
}

fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        b'A'..=b'F' => digit - b'A' + 10,
        _ => 0,
    }
}

/// Appends `content` as XLA's printer writes it inside quotes: C escapes, octal for bytes that
/// are not printable ASCII.
pub fn escape_into(content: &[u8], text: &mut Vec<u8>) {
    for byte in content {
        match byte {
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            b'\t' => text.extend_from_slice(b"\\t"),
            b'"' | b'\'' | b'\\' => text.extend_from_slice(&[b'\\', *byte]),
            b' '..=b'~' => text.push(*byte),
            _ => text.extend_from_slice(&[
                b'\\',
                b'0' + (byte >> 6),
                b'0' + (byte >> 3 & 7),
                b'0' + (byte & 7),
            ]),
        }
    }
}

/// `content` as XLA's printer writes it, without quotes.
pub fn escape(content: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(content.len());
    escape_into(content, &mut text);
    text
}

/// `content` in double quotes, escaped.
pub fn quote(content: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(content.len() + 2);
    text.push(b'"');
    escape_into(content, &mut text);
    text.push(b'"');
    text
}

/// The sizes in a marker's binary `backend_config`, as Alpa writes them: a list of 64-bit
/// little-endian integers. None if the length does not fit.
pub fn marker_sizes(content: &[u8]) -> Option<Vec<i64>> {
    let (chunks, rest) = content.as_chunks::<8>();
    rest.is_empty().then(|| chunks.iter().map(|chunk| i64::from_le_bytes(*chunk)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_every_kind() {
        let read = |text: &str| unescape(text.as_bytes()).map(Cow::into_owned).ok();
        assert_eq!(read(r"plain"), Some(b"plain".to_vec()));
        assert_eq!(read(r#"\a\b\f\n\r\t\v\\\?\'\""#), Some(b"\x07\x08\x0c\n\r\t\x0b\\?'\"".into()));
        assert_eq!(read(r"\0\12\3771\18"), Some(b"\0\n\xff1\x018".to_vec()));
        assert_eq!(read(r"\x41\x0000ffz"), Some(b"A\xffz".to_vec()));
        assert_eq!(read(r"\u00e9\U0001F600"), Some("é😀".as_bytes().to_vec()));
        for bad in [r"\q", r"\e", r"\/", r"\8", r"\400", r"\x", r"\x41b", r"\ud800", r"\u12", r"\"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn errors_point_at_the_escape() {
        let error = unescape(b"ab\\qcd").unwrap_err();
        assert_eq!((error.kind(), error.span()), (ErrorKind::InvalidString, Span::new(2, 4)));
    }

    #[test]
    fn every_byte_survives() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescape(&escape(&all)).unwrap().as_ref(), all.as_slice());
        assert_eq!(escape(b"\0\xc3\xa9\x7f"), b"\\000\\303\\251\\177");
    }
}
