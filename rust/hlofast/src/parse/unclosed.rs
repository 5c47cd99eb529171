//! Finds brackets and quotes that are never closed, at the place where they open.
//!
//! The parser notices an unclosed bracket only where the text stops making sense, possibly pages
//! later. A faulty text is therefore read a second time, and each instruction is first followed to
//! its end: if the next instruction or computation begins while a bracket or string is open, that
//! bracket or string is the fault. Texts without a fault are never read this way, because strings
//! and dictionaries may contain anything, even whole modules.

use super::reader::Reader;
use crate::error::{ErrorKind, ParseError, Result};
use crate::text::{Cursor, Span, is_computation, is_instruction, line};

/// An open bracket.
struct Open {
    at: usize,
    /// Whether the bracket contains instructions: a computation in place of a name.
    is_block: bool,
    /// Whether only braces and strings count inside the bracket, as in `backend_config`.
    is_opaque: bool,
}

/// State of the second reading of a text, for unclosed brackets and strings.
pub(super) struct Unclosed {
    /// Bytes that may still be followed; 0 in a first reading. The budget keeps the work linear if
    /// unclosed brackets are followed repeatedly.
    budget: usize,
    /// Whether anything was found.
    pub is_found: bool,
    /// Where reading continues after the last unclosed bracket: the next instruction, and how far
    /// the text was examined.
    pub resume: Option<(usize, usize)>,
}

impl Unclosed {
    /// The state in which brackets are not followed.
    pub const UNCHECKED: Self = Self { budget: 0, is_found: false, resume: None };

    /// The state for the second reading of a text of `length` bytes.
    pub fn checked(length: usize) -> Self {
        // The budget is the same multiple of the text's length as the budget for faults.
        Self { budget: length.saturating_mul(16).saturating_add(1 << 20), ..Self::UNCHECKED }
    }
}

/// Limit on the bytes after a brace that are searched for a block's first instruction, and on the
/// bytes of a line that are examined to recognise an instruction: enough for any name and the
/// beginning of a shape.
const NEAR: usize = 4096;

/// Bracket nesting up to which an instruction is followed; XLA reads at most a hundred levels of
/// any kind.
const DEEPEST: usize = 1024;

impl Reader<'_> {
    /// Follows the instruction (or header) at `start` to its end; an error if anything in it is not
    /// closed. Other faults are left to the parser.
    #[cold]
    pub(super) fn check_closed(&mut self, start: usize) -> Result<()> {
        if self.unclosed.budget == 0 {
            return Ok(());
        }
        let mut at = start;
        let checked = self.follow_brackets(start, &mut at);
        let budget = &mut self.unclosed.budget;
        *budget = budget.saturating_sub(at.saturating_sub(start));
        checked
    }

    fn follow_brackets(&mut self, start: usize, at: &mut usize) -> Result<()> {
        let text = self.text;
        let mut open: Vec<Open> = Vec::new();
        // The last bracket that a line beginning with `}` closed.
        let mut closed_by_line = None;
        while let Some(&byte) = text.get(*at) {
            let is_opaque = open.last().is_some_and(|open| open.is_opaque);
            match byte {
                b'"' => self.follow_string(at)?,
                b'\'' if !is_opaque => self.follow_string(at)?,
                b'/' if !is_opaque => {
                    let mut cursor = self.cursor(*at);
                    match cursor.skip_space() {
                        Ok(()) => *at = cursor.position(),
                        Err(error) if error.kind() == ErrorKind::UnclosedComment => return Ok(()),
                        Err(_) => *at += 1,
                    }
                }
                b'{' | b'(' | b'[' if byte == b'{' || !is_opaque => {
                    if open.len() == DEEPEST {
                        return Ok(());
                    }
                    open.push(Open {
                        at: *at,
                        is_block: byte == b'{' && !is_opaque && starts_block(text, *at),
                        is_opaque: byte == b'{' && (is_opaque || is_dictionary(text, *at)),
                    });
                    *at += 1;
                }
                b'}' | b')' | b']' if byte == b'}' || !is_opaque => {
                    let Some(last) = open.pop() else { return Ok(()) };
                    let inside = text.get(last.at..*at).unwrap_or_default();
                    let fits = matches!(
                        (inside.first(), byte),
                        (Some(b'{'), b'}') | (Some(b'('), b')') | (Some(b'['), b']')
                    );
                    if !fits {
                        let is_elsewhere = !last.is_block && inside.contains(&b'\n');
                        let error = is_elsewhere.then(|| self.unclosed_bracket(last.at, *at, *at));
                        return error.map_or(Ok(()), Err);
                    }
                    let blank = inside.get(inside.trim_ascii_end().len()..).unwrap_or_default();
                    if byte == b'}' && !last.is_block && blank.contains(&b'\n') {
                        closed_by_line = Some(last.at);
                    }
                    *at += 1;
                }
                b'\n' => {
                    let next = *at + 1;
                    let follows = line(text, next).trim_ascii();
                    let opens = is_header(follows);
                    match open.last() {
                        Some(last) if opens || !last.is_block && is_instruction(follows) => {
                            return Err(self.unclosed_bracket(last.at, next, next));
                        }
                        Some(_) => *at = next,
                        None if opens || is_instruction(follows) => break,
                        None => match goes_on(text, start, *at) {
                            Some(on) => *at = on.max(next),
                            None => break,
                        },
                    }
                }
                _ => *at += 1,
            }
        }
        // The closing brace of the body was taken for a brace of the instruction.
        let mut cursor = self.cursor(*at);
        let is_after_body = cursor.skip_space().is_ok()
            && (cursor.is_at_end() || is_header(line(text, cursor.position()).trim_ascii()));
        match closed_by_line.filter(|_| open.is_empty() && is_after_body) {
            Some(last) => {
                let rest = text.get(last..).unwrap_or_default();
                let next = memchr::memchr(b'\n', rest).map_or(text.len(), |skip| last + skip + 1);
                Err(self.unclosed_bracket(last, next, *at))
            }
            None => Ok(()),
        }
    }

    /// Moves past the string at `at`; an error if the string contains instructions and is followed
    /// by text that cannot follow a string.
    fn follow_string(&mut self, at: &mut usize) -> Result<()> {
        let open = *at;
        let mut cursor = self.cursor(open);
        let closed = cursor.string();
        *at = if closed.is_ok() { cursor.position() } else { self.text.len() };
        let follows = self.text.get(*at).copied().unwrap_or(b'\n');
        if closed.is_ok() && b",})] \t\r\n".contains(&follows) {
            return Ok(());
        }
        let inside = self.text.get(open..*at).unwrap_or_default();
        let mut breaks = memchr::memchr_iter(b'\n', inside).map(|skip| open + skip + 1);
        match breaks.find(|next| is_instruction(line(self.text, *next))) {
            Some(next) => {
                let error = self.unclosed_bracket(open, next, *at);
                Err(ParseError::new(ErrorKind::UnclosedString, error.span(), "unclosed string"))
            }
            None => closed.map(drop),
        }
    }

    /// The error for the bracket at `at`, noticed when the reader was at `reached`; the next
    /// instruction starts at `line`.
    fn unclosed_bracket(&mut self, at: usize, line: usize, reached: usize) -> ParseError {
        self.unclosed.resume = Some((line, reached));
        self.unclosed.is_found = true;
        let bracket = self.text.get(at).copied().unwrap_or_default() as char;
        ParseError::new(
            ErrorKind::UnclosedBracket,
            Span::new(at, at + 1),
            format!("'{bracket}' is never closed"),
        )
    }
}

/// The position after the line break at `at` where the instruction continues, if it does.
fn goes_on(text: &[u8], start: usize, at: usize) -> Option<usize> {
    let before = text.get(start..at)?.trim_ascii_end().last();
    let mut cursor = Cursor::new(text);
    cursor.set_position(at);
    cursor.skip_space().ok()?;
    let goes_on = matches!(before, Some(b',' | b'=')) || b",{([<\"".contains(&cursor.peek());
    goes_on.then_some(cursor.position())
}

/// Whether `line` (trimmed) opens a computation, rather than being the beginning of a value.
fn is_header(line: &[u8]) -> bool {
    is_computation(line)
        && (line.starts_with(b"ENTRY") || memchr::memmem::find(line, b"->").is_some())
}

/// Whether the brace at `at` opens the body of a computation.
fn starts_block(text: &[u8], at: usize) -> bool {
    let near = text.get(..at.saturating_add(NEAR).min(text.len())).unwrap_or_default();
    let mut cursor = Cursor::new(near);
    cursor.set_position(at + 1);
    cursor.skip_space().is_ok() && is_instruction(line(near, cursor.position()))
}

/// Whether the brace at `at` opens the value of `backend_config` or `origin`.
fn is_dictionary(text: &[u8], at: usize) -> bool {
    let before = text.get(..at).unwrap_or_default();
    let Some(key) = before.trim_ascii_end().strip_suffix(b"=") else { return false };
    let key = key.trim_ascii_end();
    key.ends_with(b"backend_config") || key.ends_with(b"origin")
}
