//! Brackets and quotes that are never closed, found where they open.
//!
//! What an unclosed bracket swallows is only noticed where something does not fit any more, which
//! may be pages later. So a text with a fault is read a second time, and then each instruction is
//! first followed to its end: if the next instruction or computation begins while a bracket or a
//! string is open, that one is at fault. Texts without a fault are never read this way: strings and
//! dictionaries may hold anything, whole modules too.

use super::reader::Reader;
use crate::error::{ErrorKind, ParseError, Result};
use crate::text::{Cursor, Span, is_computation, is_instruction, line};

/// A bracket that is open.
struct Open {
    at: usize,
    /// It holds instructions: a computation in place of a name.
    is_block: bool,
    /// Only braces and strings count inside, as in `backend_config`.
    is_opaque: bool,
}

/// What the second reading of a text knows of brackets and strings that are not closed.
pub(super) struct Unclosed {
    /// Bytes that may still be followed; 0 in a first reading. Following what is not closed again
    /// and again stays linear this way.
    budget: usize,
    /// Whether anything was found.
    pub is_found: bool,
    /// Where reading goes on after the last one: the next instruction, and how far the text was
    /// looked at.
    pub resume: Option<(usize, usize)>,
}

impl Unclosed {
    /// Nothing is followed.
    pub const UNCHECKED: Self = Self { budget: 0, is_found: false, resume: None };

    /// For the second reading of a text of `length` bytes.
    pub fn checked(length: usize) -> Self {
        // As many times the text as faults may cost.
        Self { budget: length.saturating_mul(16).saturating_add(1 << 20), ..Self::UNCHECKED }
    }
}

/// How far behind a brace the first instruction of a block is looked for, and how much of a line
/// is looked at to know one: enough for any name and the beginning of a shape.
const NEAR: usize = 4096;

/// Brackets inside each other up to which an instruction is followed: XLA reads no more than a
/// hundred levels of any kind.
const DEEPEST: usize = 1024;

impl Reader<'_> {
    /// Follows the instruction (or the header) at `start` to its end; an error where something in
    /// it is not closed. All else that is wrong with it is left to those who read it.
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
        // The bracket that a line beginning with `}` closed last.
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
        // The body's brace was taken for one of the instruction's.
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

    /// Moves behind the string at `at`; an error if instructions stand in it and what follows it
    /// is nothing that follows strings.
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

    /// The error for the bracket at `at`, seen when the reader had come to `reached`; the next
    /// instruction is on `line`.
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

/// Where an instruction goes on behind the line break at `at`, if it does.
fn goes_on(text: &[u8], start: usize, at: usize) -> Option<usize> {
    let before = text.get(start..at)?.trim_ascii_end().last();
    let mut cursor = Cursor::new(text);
    cursor.set_position(at);
    cursor.skip_space().ok()?;
    let goes_on = matches!(before, Some(b',' | b'=')) || b",{([<\"".contains(&cursor.peek());
    goes_on.then_some(cursor.position())
}

/// Whether `line` (trimmed) opens a computation, and is not the beginning of a value.
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
