//! The text of values, without comments and line breaks.

use crate::ir::ElementType;
use crate::text::{Cursor, is_identifier_byte};

/// The treatment of whitespace between tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// Each run of whitespace becomes one space.
    Readable,
    /// Spaces stay only where tokens would otherwise join: the form in which values are compared.
    Tight,
}

/// Appends the value of attribute `key`.
pub(crate) fn write_value(out: &mut Vec<u8>, key: &[u8], value: &[u8], spacing: Spacing) {
    match (key, value.first()) {
        _ if is_opaque(key, value) => out.extend_from_slice(value),
        (b"frontend_attributes", Some(b'{')) => write_tokens(out, value, spacing, true),
        _ => write_tokens(out, value, spacing, false),
    }
}

/// Whether every byte between the braces of a value belongs to it.
pub(crate) fn is_opaque(key: &[u8], value: &[u8]) -> bool {
    key == b"backend_config" && value.first() == Some(&b'{')
}

/// Appends the literal of a constant, without the repeated shape of old dumps. In the form in which
/// values are compared, a negative zero has one spelling.
pub(crate) fn write_literal(out: &mut Vec<u8>, payload: &[u8], spacing: Spacing) {
    let start = out.len();
    write_tokens(out, without_shape(payload), spacing, false);
    if spacing == Spacing::Tight
        && let Some(text) = with_signed_zeros(out.get(start..).unwrap_or_default(), b"-0")
    {
        out.truncate(start);
        out.extend_from_slice(&text);
    }
}

/// `literal` with `spelling` for each negative zero; None if there is none to change.
///
/// XLA prints a negative floating-point zero as `-0`, but its parser reads `-0` as the integer 0
/// and loses the sign. `-0.0` keeps it.
pub(crate) fn with_signed_zeros(literal: &[u8], spelling: &[u8]) -> Option<Vec<u8>> {
    if !literal.contains(&b'-') {
        return None;
    }
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-');
    let mut out = Vec::new();
    let mut done = 0;
    for at in memchr::memmem::find_iter(literal, b"-0") {
        let rest = literal.get(at..).unwrap_or_default();
        let number = rest.get(..rest.iter().take_while(|byte| is_part(byte)).count());
        let number = number.unwrap_or_default();
        let is_begun = at > 0 && literal.get(at - 1).is_some_and(is_part);
        let digits = number.get(1..).unwrap_or_default();
        let is_zero = digits.iter().all(|byte| matches!(byte, b'0' | b'.'))
            && digits.iter().filter(|byte| **byte == b'.').count() <= 1;
        if !is_begun && is_zero && number != spelling {
            out.extend_from_slice(literal.get(done..at).unwrap_or_default());
            out.extend_from_slice(spelling);
            done = at + number.len();
        }
    }
    if done == 0 {
        return None;
    }
    out.extend_from_slice(literal.get(done..).unwrap_or_default());
    Some(out)
}

/// The literal without the shape that old dumps repeat in front of it: `f32[2] {1, 2}`.
fn without_shape(payload: &[u8]) -> &[u8] {
    let mut cursor = Cursor::new(payload);
    let read = (|| {
        cursor.skip_space().ok()?;
        ElementType::from_bytes(cursor.identifier())?;
        if cursor.peek() != b'[' {
            return None;
        }
        cursor.balanced().ok()?;
        if cursor.peek() == b'{' {
            let before = cursor;
            cursor.balanced().ok()?;
            cursor.skip_space().ok()?;
            if cursor.is_at_end() {
                cursor = before;
            }
        }
        cursor.skip_space().ok()?;
        (!cursor.is_at_end()).then_some(())
    })();
    if read.is_some() { cursor.rest() } else { payload }
}

/// Appends the tokens of `text`. With `dictionaries`, values in braces after `=` are opaque.
pub(crate) fn write_tokens(out: &mut Vec<u8>, text: &[u8], spacing: Spacing, dictionaries: bool) {
    let stays = match spacing {
        Spacing::Readable => is_plain(text),
        Spacing::Tight => is_tight(text),
    };
    if stays {
        out.extend_from_slice(text);
        return;
    }
    if spacing == Spacing::Tight && !dictionaries && has_only_spaces(text) {
        return write_without_spaces(out, text);
    }
    let start = out.len();
    let mut cursor = Cursor::new(text);
    loop {
        let before = cursor.position();
        if cursor.skip_space().is_err() {
            out.extend_from_slice(cursor.rest());
            return;
        }
        if cursor.is_at_end() {
            return;
        }
        let byte = cursor.peek();
        if cursor.position() > before && out.len() > start {
            let wanted = match spacing {
                Spacing::Readable => !matches!(byte, b'=' | b','),
                Spacing::Tight => out.last().is_some_and(|last| sticks(*last)) && sticks(byte),
            };
            if wanted {
                out.push(b' ');
            }
        }
        let at = cursor.position();
        match byte {
            b'"' | b'\'' => {
                if cursor.string().is_err() {
                    out.extend_from_slice(cursor.rest());
                    return;
                }
                write_string(out, cursor.since(at));
            }
            b'{' if dictionaries && out.len() > start && cursor.dictionary().is_ok() => {
                out.extend_from_slice(cursor.since(at));
            }
            _ => {
                let rest = cursor.rest();
                let more = rest.iter().skip(1).take_while(|byte| is_inside(**byte, dictionaries));
                let length = 1 + more.count();
                out.extend_from_slice(rest.get(..length).unwrap_or(rest));
                cursor.advance(length);
            }
        }
    }
}

/// Whether `byte` neither begins nor ends a string, a comment, whitespace or, if there are
/// `dictionaries`, one of them.
fn is_inside(byte: u8, dictionaries: bool) -> bool {
    byte > b' ' && !matches!(byte, b'/' | b'"' | b'\'') && !(dictionaries && byte == b'{')
}

/// Whether `text` has no comments, and no whitespace except spaces.
fn is_plain(text: &[u8]) -> bool {
    !text.iter().any(|byte| matches!(byte, b'\n' | b'\r' | b'\t' | b'/'))
        && memchr::memmem::find(text, b" =").is_none()
}

/// Whether `text` has no whitespace and no comments. The loop has no early exit, so that it
/// vectorises.
pub(crate) fn is_tight(text: &[u8]) -> bool {
    !text.iter().fold(false, |is_loose, byte| is_loose | (*byte <= b' ') | (*byte == b'/'))
}

/// Whether `text` has no strings and no comments, and no whitespace except spaces.
fn has_only_spaces(text: &[u8]) -> bool {
    !text.iter().fold(false, |is_other, byte| {
        is_other | (*byte < b' ') | (*byte == b'/') | (*byte == b'"') | (*byte == b'\'')
    })
}

/// Appends `text` without the spaces between tokens that would not join.
fn write_without_spaces(out: &mut Vec<u8>, text: &[u8]) {
    let mut words = text.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let Some(first) = words.next() else { return };
    out.extend_from_slice(first);
    let mut last = first.last();
    for word in words {
        if last.is_some_and(|byte| sticks(*byte)) && word.first().is_some_and(|byte| sticks(*byte))
        {
            out.push(b' ');
        }
        out.extend_from_slice(word);
        last = word.last();
    }
}

/// Whether two adjacent bytes of this kind could join into one token.
fn sticks(byte: u8) -> bool {
    is_identifier_byte(byte) || matches!(byte, b'"' | b'\'' | b'?' | b'%' | b'*' | b'#')
}

/// Appends a string with its quotes; line breaks become escapes, so that it stays on one line.
fn write_string(out: &mut Vec<u8>, string: &[u8]) {
    if memchr::memchr2(b'\n', b'\r', string).is_none() {
        out.extend_from_slice(string);
        return;
    }
    for byte in string {
        match byte {
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            _ => out.push(*byte),
        }
    }
}

/// Appends `text` without the layouts of the shapes in it: braces that follow a `]`.
pub(crate) fn write_without_layouts(out: &mut Vec<u8>, text: &[u8]) {
    let mut tight = Vec::with_capacity(text.len());
    write_tokens(&mut tight, text, Spacing::Tight, false);
    let mut cursor = Cursor::new(&tight);
    while !cursor.is_at_end() {
        let byte = cursor.peek();
        cursor.advance(1);
        out.push(byte);
        if byte == b']' && cursor.peek() == b'{' && cursor.balanced().is_err() {
            break;
        }
    }
    out.extend_from_slice(cursor.rest());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str, spacing: Spacing) -> String {
        let mut out = Vec::new();
        write_tokens(&mut out, text.as_bytes(), spacing, false);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn comments_and_line_breaks_go_tokens_stay() {
        let text = "{size=2 /* a */\n  stride =1,\t\"a /* b */\nc\" // end\n}";
        assert_eq!(tokens(text, Spacing::Readable), "{size=2 stride=1, \"a /* b */\\nc\" }");
        assert_eq!(tokens(text, Spacing::Tight), "{size=2 stride=1,\"a /* b */\\nc\"}");
        assert_eq!(tokens("[2,1] 0, 1 last", Spacing::Tight), "[2,1]0,1 last");
    }

    #[test]
    fn dictionaries_keep_every_byte() {
        let text = b"{a={x  // y\n}, b=\"c\" }";
        let mut out = Vec::new();
        write_value(&mut out, b"frontend_attributes", text, Spacing::Tight);
        assert_eq!(out, b"{a={x  // y\n},b=\"c\"}");
    }

    #[test]
    fn layouts_are_taken_out_of_entry_layouts() {
        let mut out = Vec::new();
        write_without_layouts(
            &mut out,
            b"{(f32[2,3]{1,0:T(8,128)}, /*index=1*/s32[])->(f32[2]{0})}",
        );
        assert_eq!(out, b"{(f32[2,3],s32[])->(f32[2])}");
    }

    #[test]
    fn zeros_with_a_sign_get_one_spelling() {
        let spelt = |text: &str, spelling: &str| {
            let rewritten = with_signed_zeros(text.as_bytes(), spelling.as_bytes());
            rewritten.map(|text| String::from_utf8(text).unwrap())
        };
        assert_eq!(spelt("-0", "-0.0").as_deref(), Some("-0.0"));
        assert_eq!(
            spelt("{{-0,1},{-0.,-00.00}}", "-0").as_deref(),
            Some("{{-0,1},{-0,-0}}"),
            "zeros with this spelling stay"
        );
        assert_eq!(spelt("(-0, -0)", "-0.0").as_deref(), Some("(-0.0, -0.0)"));
        for text in ["0", "-0", "-0.5", "1e-0", "-0x1", "-1", "-0.0.0", "{2,-03}", "-", ""] {
            assert_eq!(spelt(text, "-0"), None, "{text}");
        }
    }

    #[test]
    fn a_repeated_shape_before_a_literal_goes() {
        assert_eq!(without_shape(b"f32[2] {1, 2}"), b"{1, 2}");
        assert_eq!(without_shape(b"f32[2]{0} {1, 2}"), b"{1, 2}");
        assert_eq!(without_shape(b"f32[2]{1, 2}"), b"{1, 2}");
        assert_eq!(without_shape(b"{1, 2}"), b"{1, 2}");
        assert_eq!(without_shape(b"nan"), b"nan");
    }
}
