//! Prefixes that log writers put before lines. The prefix of a module's first line is the example;
//! the prefixes of other lines differ only in numbers.

/// The form of a prefix.
pub(super) struct Prefix {
    pieces: Vec<Piece>,
}

enum Piece {
    /// A run of letters and digits with a digit in it: any such run fits.
    Number,
    /// A run of blanks: any such run fits.
    Blanks,
    /// This byte.
    Byte(u8),
    /// Blanks at the end: at most this many, because further blanks belong to the line itself.
    Last(usize),
}

impl Prefix {
    /// The form of `example`; None if it does not look like a prefix.
    pub(super) fn of(example: &[u8]) -> Option<Self> {
        let body = example.trim_ascii_end();
        // The characters that log writers and terminals put last; other text is prose.
        if !matches!(body.last()?, b']' | b':' | b'|' | b'>' | b')' | b'-' | b'F' | b'Z' | b'm') {
            return None;
        }
        let mut pieces = Vec::new();
        let mut rest = body;
        while let Some(&first) = rest.first() {
            let length = run(rest, u8::is_ascii_alphanumeric);
            let blanks = run(rest, is_blank);
            let word = rest.get(..length).unwrap_or_default();
            let taken = if word.iter().any(u8::is_ascii_digit) {
                pieces.push(Piece::Number);
                length
            } else if blanks > 0 {
                pieces.push(Piece::Blanks);
                blanks
            } else {
                // A word without digits matches byte by byte; otherwise `file.cc` would fit
                // `other.cc`.
                let count = length.max(1);
                pieces.extend(rest.iter().take(count).map(|&byte| Piece::Byte(byte)));
                count
            };
            debug_assert!(taken > 0, "no progress at {first}");
            rest = rest.get(taken..)?;
        }
        pieces.push(Piece::Last(example.len() - body.len()));
        Some(Self { pieces })
    }

    /// The length of the prefix of `line`, if the line has a prefix of this form.
    pub(super) fn matches(&self, line: &[u8]) -> Option<usize> {
        let mut at = 0;
        for piece in &self.pieces {
            let rest = line.get(at..)?;
            at += match piece {
                Piece::Number => match run(rest, u8::is_ascii_alphanumeric) {
                    0 => return None,
                    length => length,
                },
                Piece::Blanks => match run(rest, is_blank) {
                    0 => return None,
                    length => length,
                },
                Piece::Byte(byte) if rest.first() == Some(byte) => 1,
                Piece::Byte(_) => return None,
                Piece::Last(count) => run(rest, is_blank).min(*count),
            };
        }
        Some(at)
    }
}

/// Whether a log writer wrote `line`: it begins with a level and date, a date, or a time.
pub(super) fn is_log_line(line: &[u8]) -> bool {
    let form: Vec<u8> =
        line.iter().take(10).map(|byte| if byte.is_ascii_digit() { b'0' } else { *byte }).collect();
    let glog = form.get(1..6) == Some(b"0000 ".as_slice())
        && form.first().is_some_and(|level| b"DIWEFCV".contains(level));
    glog || form.starts_with(b"0000-00-00") || form.starts_with(b"00:00:00")
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn run(bytes: &[u8], holds: impl Fn(&u8) -> bool) -> usize {
    bytes.iter().take_while(|byte| holds(byte)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest<'a>(example: &str, line: &'a str) -> Option<&'a str> {
        Prefix::of(example.as_bytes())?.matches(line.as_bytes()).map(|length| &line[length..])
    }

    #[test]
    fn numbers_vary_and_words_do_not() {
        let glog = "I0521 12:04:45.883483    1509 hlo.cc:186] ";
        assert_eq!(rest(glog, "I0522 00:00:01.000001 21 hlo.cc:7]   %x"), Some("  %x"));
        assert_eq!(rest(glog, "I0522 00:00:01.000001 21 hlo.cc:7]"), Some(""));
        assert_eq!(rest(glog, "I0522 00:00:01.000001 21 gpu.cc:7]   %x"), None);
        assert_eq!(rest(glog, "  %x = f32[] parameter(0)"), None);
        assert_eq!(rest(glog, ""), None);
    }

    #[test]
    fn forms_of_other_writers() {
        for (example, line) in [
            ("INFO:absl:", "INFO:absl:}"),
            ("2024-05-21 12:04:45,883 - INFO - ", "2024-05-21 12:04:46,001 - INFO - }"),
            ("2024-05-21T12:04:45.883Z stdout F ", "2024-05-21T12:04:45.884Z stdout F }"),
            ("2024-05-21T12:04:45.883483Z ", "2024-05-21T12:04:45.883484Z }"),
            ("(Worker pid=123, ip=10.0.0.1) ", "(Worker pid=123, ip=10.0.0.1) }"),
            ("\x1b[36m(train pid=9)\x1b[0m ", "\x1b[36m(train pid=9)\x1b[0m }"),
            ("[rank0]: ", "[rank0]: }"),
            ("[1,0]<stdout>:", "[1,0]<stdout>:}"),
            ("0: ", "0: }"),
            ("worker-1  | ", "worker-1  | }"),
            ("> ", "> }"),
        ] {
            assert_eq!(rest(example, line), Some("}"), "{example}");
        }
        assert_eq!(rest("this is the ", "this is the }"), None);
    }

    #[test]
    fn lines_of_other_logs_are_known() {
        assert!(is_log_line(b"W1120 03:04:05.000000 7 other.cc:1] late"));
        assert!(is_log_line(b"2024-05-21 12:04:45.8: I x.cc:1] y"));
        assert!(is_log_line(b"12:04:45 INFO y"));
        assert!(!is_log_line(b"  %x = f32[] parameter(0)"));
        assert!(!is_log_line(b"}"));
        assert!(!is_log_line(b""));
    }
}
