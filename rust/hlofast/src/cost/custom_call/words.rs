//! Reads single values of a backend_config by name, without parsing all of it: a step has hundreds
//! of calls, and some configurations contain a whole kernel. The text may be JSON, JSON inside a
//! string with any quote escapes, or an MLIR dictionary.

/// The text after the word `key` and `:` or `=`, without opening quotes.
pub(super) fn value_after<'a>(text: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let mut places = memchr::memmem::find_iter(text, key);
    places.find_map(|at| {
        // Reject `key` as the end of a longer word.
        let before = at.checked_sub(1).and_then(|before| text.get(before));
        if before.is_some_and(|byte| byte.is_ascii_lowercase() || *byte == b'_') {
            return None;
        }
        let after = skip_quotes(text.get(at + key.len()..)?);
        Some(skip_quotes(after.strip_prefix(b":").or_else(|| after.strip_prefix(b"="))?))
    })
}

/// The list of integers after the word `key`; empty if the word is absent, because protobuf omits
/// empty lists. None if the word is not followed by a list of integers.
pub(super) fn integers_after(text: &[u8], key: &[u8]) -> Option<Vec<i64>> {
    let Some(after) = value_after(text, key) else { return Some(Vec::new()) };
    let mut rest = skip_quotes(after.strip_prefix(b"[")?);
    let mut integers = Vec::new();
    loop {
        if rest.first() == Some(&b']') {
            return Some(integers);
        }
        if !integers.is_empty() {
            rest = skip_quotes(rest.strip_prefix(b",")?);
        }
        let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, after) = rest.split_at_checked(length)?;
        integers.push(std::str::from_utf8(digits).ok()?.parse().ok()?);
        rest = skip_quotes(after);
    }
}

/// Skips whitespace and quotes, escaped or not: `"`, `\"`, `\22`, `\x22`, `\u0022`.
fn skip_quotes(mut text: &[u8]) -> &[u8] {
    const QUOTES: [&[u8]; 6] = [b"x22", b"X22", b"u0022", b"U00000022", b"22", b"042"];
    loop {
        match text {
            [b' ' | b'\t' | b'\n' | b'\r' | b'"' | b'\'', rest @ ..] => text = rest,
            [b'\\', rest @ ..] => {
                text = QUOTES.iter().find_map(|quote| rest.strip_prefix(*quote)).unwrap_or(rest);
            }
            _ => return text,
        }
    }
}
