//! String contents that XLA can unescape.

/// Whether every escape in a string's content is valid.
pub(super) fn is_unescapable(content: &[u8]) -> bool {
    let mut at = 0;
    let byte = |at: usize| content.get(at).copied().unwrap_or(0);
    let hex = |at: usize| (byte(at) as char).to_digit(16);
    while let Some(skip) = memchr::memchr(b'\\', content.get(at..).unwrap_or_default()) {
        at += skip + 1;
        let escape = byte(at);
        at += 1;
        match escape {
            b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'\\' | b'?' | b'\'' | b'"' => {}
            b'0'..=b'7' => {
                let mut value = u32::from(escape - b'0');
                for _ in 0..2 {
                    if !matches!(byte(at), b'0'..=b'7') || at >= content.len() {
                        break;
                    }
                    value = value * 8 + u32::from(byte(at) - b'0');
                    at += 1;
                }
                if value > 0o377 {
                    return false;
                }
            }
            b'x' | b'X' => {
                let mut value = 0u32;
                let first = at;
                while let Some(digit) = hex(at) {
                    value = (value << 4 | digit).min(0xffff);
                    at += 1;
                }
                if at == first || value > 0xff {
                    return false;
                }
            }
            b'u' | b'U' => {
                let count = if escape == b'u' { 4 } else { 8 };
                let mut value = 0u64;
                for _ in 0..count {
                    let Some(digit) = hex(at) else { return false };
                    value = value << 4 | u64::from(digit);
                    at += 1;
                }
                if value > 0x10_ffff || (0xd800..0xe000).contains(&value) {
                    return false;
                }
            }
            _ => return false,
        }
    }
    true
}
