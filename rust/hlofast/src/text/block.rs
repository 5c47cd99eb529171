//! Finds the end of a module or a computation from the shape of its lines.
//!
//! A body ends at a line that begins with `}` and is indented no further than the line that opened
//! the body. Quotes are only counted as long as an even count shows that the line is outside
//! strings; after that, they are matched one by one.

use super::{is_identifier_byte, is_identifier_start};
use memchr::{memchr, memchr_iter, memchr2, memchr3, memmem};

/// The end of a module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    /// The offset just after the module's last byte.
    pub(super) end: usize,
    /// Number of computations seen.
    pub(super) count: usize,
    /// Whether text that is not part of the module follows, so that more text would not change the
    /// end.
    pub(super) followed: bool,
}

/// The line at `at`, without its line break.
pub(crate) fn line(text: &[u8], at: usize) -> &[u8] {
    let rest = text.get(at..).unwrap_or_default();
    rest.get(..memchr(b'\n', rest).unwrap_or(rest.len())).unwrap_or_default()
}

/// The first line from `at` on (the start of a line) that is not empty; the end if there is none.
pub(super) fn skip_empty_lines(text: &[u8], mut at: usize) -> usize {
    while at < text.len() {
        let line = line(text, at);
        if !line.iter().all(u8::is_ascii_whitespace) {
            return at;
        }
        at += line.len() + 1;
    }
    text.len()
}

/// Skips whitespace and comments.
pub(super) fn skip_blank(text: &[u8], mut at: usize) -> usize {
    loop {
        let rest = text.get(at..).unwrap_or_default();
        at += rest.len() - rest.trim_ascii_start().len();
        let rest = text.get(at..).unwrap_or_default();
        let comment = if rest.starts_with(b"//") {
            memchr(b'\n', rest)
        } else if rest.starts_with(b"/*") {
            memmem::find(rest, b"*/").map(|end| end + 2)
        } else {
            return at;
        };
        at += comment.unwrap_or(rest.len());
    }
}

/// Whether the line at `at` can only be a module header: `HloModule`, a name and an attribute.
pub(super) fn is_module_header(text: &[u8], at: usize) -> bool {
    let line = line(text, at);
    let rest = line.strip_prefix(b"HloModule").unwrap_or(line).trim_ascii_start();
    let rest = rest.strip_prefix(b"%").unwrap_or(rest);
    let length = rest.iter().take_while(|byte| is_identifier_byte(**byte)).count();
    let after = rest.get(length..).unwrap_or_default();
    let attributes = after.trim_ascii_start().strip_prefix(b",");
    length > 0 && attributes.is_some_and(|attributes| is_assignment(attributes.trim_ascii()))
}

fn is_assignment(text: &[u8]) -> bool {
    let length = text.iter().take_while(|byte| is_identifier_byte(**byte)).count();
    length > 0 && text.get(length..).is_some_and(|rest| rest.trim_ascii_start().starts_with(b"="))
}

/// The extent of the module whose `HloModule` is at `start`.
pub(super) fn module(text: &[u8], start: usize, budget: &mut usize) -> Blocks {
    // When the budget is used up, only the first line is searched for the header.
    let limit = if *budget > 0 { text.len() } else { start + line(text, start).len() };
    let text_or_line = text.get(..limit).unwrap_or(text);
    let long = header(text_or_line, start, true);
    // A string is unclosed: its line is damaged, but the rest of the module may be intact.
    let damaged = long.is_none();
    let (end, body) = long.or_else(|| header(text_or_line, start, false)).unwrap_or((limit, limit));
    *budget = budget.saturating_sub(if damaged { text.len() - start } else { body - start });
    let blocks = computations(text, body);
    let followed = blocks.followed && !damaged;
    if blocks.count == 0 {
        return Blocks { end, count: 0, followed };
    }
    Blocks { followed, ..blocks }
}

/// The end of the header (with its tables), and the start of the first line after it. None if the
/// header has a string that does not close.
fn header(text: &[u8], start: usize, long_strings: bool) -> Option<(usize, usize)> {
    let mut at = start;
    let mut depth = 0usize;
    loop {
        // The header is one line, but its strings may hold line breaks (and whole modules).
        let mut last = b'\n';
        loop {
            let Some(skip) = text.get(at..).and_then(header_stop) else {
                let end = start + text.get(start..).map_or(0, |rest| rest.trim_ascii_end().len());
                return Some((end, text.len()));
            };
            if let Some(&byte) =
                text.get(at..at + skip).and_then(|skipped| skipped.trim_ascii_end().last())
            {
                last = byte;
            }
            at += skip;
            match text.get(at) {
                Some(b'\n') => break,
                Some(b'"') => {
                    at = match closing_quote(text, at, text.len(), !long_strings) {
                        Some(end) => end,
                        None if long_strings => return None,
                        None => at + 1,
                    };
                    last = b'"';
                }
                Some(b'{') => {
                    depth += 1;
                    at += 1;
                    last = b'{';
                }
                _ => {
                    depth = depth.saturating_sub(1);
                    at += 1;
                    last = b'}';
                }
            }
        }
        let end = at;
        at = skip_empty_lines(text, at + 1);
        let next = line(text, at).trim_ascii();
        let goes_on = !next.starts_with(b"HloModule ")
            && !is_computation(next)
            && (depth > 0
                || last == b','
                || next.starts_with(b",")
                || next.starts_with(b"//")
                || next.starts_with(b"/*")
                || is_table_line(next));
        if !goes_on {
            return Some((end, at));
        }
    }
}

/// The next byte that matters in a header: a quote, a brace or a line break.
fn header_stop(rest: &[u8]) -> Option<usize> {
    let near = memchr3(b'"', b'{', b'\n', rest);
    let close = memchr(b'}', rest.get(..near.unwrap_or(rest.len())).unwrap_or_default());
    close.or(near)
}

pub(super) fn is_table_line(line: &[u8]) -> bool {
    const TABLES: [&[u8]; 4] = [b"FileNames", b"FunctionNames", b"FileLocations", b"StackFrames"];
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let entry = digits > 0
        && line.get(digits..).is_some_and(|rest| {
            rest.first() == Some(&b' ')
                && matches!(rest.trim_ascii_start().first(), Some(b'"' | b'{'))
        });
    entry || TABLES.contains(&line)
}

/// The extent of the computations from `start` on (the start of a line, or of a computation).
pub(super) fn computations(text: &[u8], start: usize) -> Blocks {
    let mut blocks = Blocks { end: start, count: 0, followed: false };
    let mut at = start;
    let mut limit = None;
    loop {
        let next = skip_between(text, at);
        if limit.is_none() && !is_computation(line(text, next).trim_ascii()) {
            blocks.followed = next < text.len();
            return blocks;
        }
        let limit = *limit.get_or_insert_with(|| next_module(text, start));
        if next >= limit || !is_computation(line(text, next).trim_ascii()) {
            blocks.followed = next < text.len();
            return blocks;
        }
        blocks.count += 1;
        let Some(end) = computation_end(text, next, limit) else {
            // The text is cut off. The best guess for the end is the start of the next module.
            let rest = text.get(next..limit).unwrap_or_default();
            blocks.end = next + rest.trim_ascii_end().len();
            blocks.followed = limit < text.len();
            return blocks;
        };
        blocks.end = end;
        at = end;
    }
}

/// Skips empty lines and comments, but not the blanks before the next text.
fn skip_between(text: &[u8], at: usize) -> usize {
    let mut at = skip_blank(text, at);
    // Go back to the start of the line if only blanks precede.
    while at > 0 && matches!(text.get(at - 1), Some(b' ' | b'\t')) {
        at -= 1;
    }
    at
}

/// The next line that begins with `HloModule `, or the end.
fn next_module(text: &[u8], start: usize) -> usize {
    let rest = text.get(start..).unwrap_or_default();
    memmem::find(rest, b"\nHloModule ").map_or(text.len(), |at| start + at + 1)
}

/// Whether `line` (trimmed) opens a computation.
pub(crate) fn is_computation(line: &[u8]) -> bool {
    let (entry, rest) = match line.strip_prefix(b"ENTRY") {
        Some(rest) if matches!(rest.first(), None | Some(b' ' | b'\t' | b'%' | b'{')) => {
            (true, rest.trim_ascii_start())
        }
        _ => (false, line),
    };
    let (percent, rest) = match rest.strip_prefix(b"%") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let length = rest.iter().take_while(|byte| is_identifier_byte(**byte)).count();
    let named = rest.first().is_some_and(|byte| is_identifier_start(*byte));
    let after = rest.get(length..).unwrap_or_default().trim_ascii_start();
    let after = after.strip_prefix(b":").map_or(after, |after| after.trim_ascii_start());
    match after.first() {
        Some(b'{') => named || entry,
        Some(b'(') if named => {
            entry
                || percent
                || (memmem::find(after, b"->").is_some() || memmem::find(after, b"-&gt;").is_some())
                    && memchr(b'{', after).is_some()
        }
        None => entry,
        _ => false,
    }
}

/// Whether `line` defines an instruction: `name = shape ...`. Names without `%` need a shape;
/// otherwise assignments in other languages would match.
pub(crate) fn is_instruction(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let line = match line.strip_prefix(b"ROOT") {
        Some(rest) if rest.first().is_some_and(u8::is_ascii_whitespace) => rest.trim_ascii_start(),
        _ => line,
    };
    let (percent, rest) = match line.strip_prefix(b"%") {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    if !rest.first().is_some_and(|byte| is_identifier_start(*byte)) {
        return false;
    }
    let length = rest.iter().take_while(|byte| is_identifier_byte(**byte)).count();
    let after = rest.get(length..).unwrap_or_default().trim_ascii_start();
    let Some(value) = after.strip_prefix(b"=") else { return false };
    let value = value.trim_ascii_start();
    let word = value.iter().take_while(|byte| is_identifier_byte(**byte)).count();
    match value.get(word) {
        Some(b'[') => word > 0 && is_shape(value),
        Some(b'(') => percent || word == 0,
        _ => false,
    }
}

/// Whether `value` begins with an element type and a bracket.
pub(super) fn is_shape(value: &[u8]) -> bool {
    const TYPES: [&[u8]; 11] =
        [b"pred", b"token", b"opaque", b"bf16", b"s", b"u", b"f", b"c", b"tuple", b"buffer", b"b"];
    TYPES.iter().any(|name| {
        value.strip_prefix(*name).is_some_and(|rest| {
            let rest = rest.trim_ascii_start();
            rest.first().is_some_and(|byte| *byte == b'[' || byte.is_ascii_digit())
        })
    })
}

/// Whether the line at `at` opens a computation and the next text is its first instruction.
pub(super) fn is_headerless_computation(text: &[u8], at: usize) -> bool {
    let opening = line(text, at);
    if !is_computation(opening.trim_ascii()) {
        return false;
    }
    let brace = opening.trim_ascii_end();
    let body = if brace.last() == Some(&b'{') {
        at + brace.len()
    } else {
        match memmem::find(opening, b"{ ") {
            Some(brace) => at + brace + 1,
            None => return false,
        }
    };
    // The range is bounded, because an unclosed comment must not be read once per line.
    let near = text.get(..body.saturating_add(4096).min(text.len())).unwrap_or(text);
    is_instruction(line(near, skip_blank(near, body)))
}

/// The offset just after the brace that closes the computation at `start`, and after any attributes
/// on the line of the brace.
fn computation_end(text: &[u8], start: usize, limit: usize) -> Option<usize> {
    let opening = line(text, start);
    let indentation = opening.len() - opening.trim_ascii_start().len();
    let first_line = (start + opening.len()).min(limit);
    if let Some(end) = balanced_end(text, start, first_line) {
        return Some(with_attributes(text, end, limit));
    }
    let mut strings = Strings { at: start, odd: false };
    // The end of the body according to brackets, computed when lines alone do not show it.
    let mut balanced = None;
    let mut at = first_line;
    // In the usual case, without indentation, not every line is inspected.
    let pattern: &[u8] = if indentation == 0 { b"\n}" } else { b"\n" };
    let finder = memmem::Finder::new(pattern);
    while let Some(skip) = text.get(at..limit).and_then(|rest| finder.find(rest)) {
        at += skip + 1;
        let mut brace = at;
        while brace - at < indentation && is_blank(text, brace) {
            brace += 1;
        }
        if brace < limit
            && text.get(brace) == Some(&b'}')
            && !is_inside_dictionary(text, brace + 1)
            && strings.are_closed(text, brace, limit)
        {
            let is_end = !is_inside_instruction(text, brace + 1, limit) || {
                let end = balanced.get_or_insert_with(|| balanced_end(text, start, limit));
                end.is_none_or(|end| end <= brace + 1)
            };
            if is_end {
                return Some(with_attributes(text, brace + 1, limit));
            }
        }
    }
    // The brace is at the end of a line with other text.
    balanced_end(text, start, limit).map(|end| with_attributes(text, end, limit))
}

/// Whether the text after a closing brace shows that the computation goes on: the rest of a value,
/// another attribute, another instruction, or the brace of the body. None of these can follow the
/// end of a computation, but damaged text may look as if one did.
fn is_inside_instruction(text: &[u8], after: usize, limit: usize) -> bool {
    let near = text.get(..after.saturating_add(4096).min(limit)).unwrap_or_default();
    let rest = line(near, after).trim_ascii();
    if let Some(attribute) = rest.strip_prefix(b",") {
        return !attribute.trim_ascii_start().starts_with(b"execution_thread");
    }
    if !rest.is_empty() {
        return matches!(rest.first(), Some(b')' | b']' | b'}'));
    }
    let next = line(near, skip_blank(near, after)).trim_ascii();
    matches!(next.first(), Some(b'}' | b',' | b')' | b']')) || is_instruction(next)
}

/// Whether a dictionary goes on after a closing brace: another key, or another brace. A
/// backend_config may span lines whose braces are placed like the braces of a computation.
fn is_inside_dictionary(text: &[u8], after: usize) -> bool {
    let rest = text.get(after..).unwrap_or_default();
    match rest.strip_prefix(b",") {
        Some(rest) => rest.strip_prefix(b" ").unwrap_or(rest).first() == Some(&b'"'),
        None => rest.first() == Some(&b'}'),
    }
}

fn is_blank(text: &[u8], at: usize) -> bool {
    matches!(text.get(at), Some(b' ' | b'\t'))
}

/// `}, execution_thread="x"`: attributes on the line of the closing brace belong to the
/// computation.
fn with_attributes(text: &[u8], end: usize, limit: usize) -> usize {
    let rest = line(text.get(..limit).unwrap_or(text), end);
    match rest.trim_ascii().strip_prefix(b",") {
        Some(attributes) if is_assignment(attributes.trim_ascii()) => {
            end + rest.trim_ascii_end().len()
        }
        _ => end,
    }
}

/// The offset just after the brace that closes the first opening brace from `start` on, if it is
/// before `limit`.
fn balanced_end(text: &[u8], start: usize, limit: usize) -> Option<usize> {
    let mut at = start;
    let mut depth = 0usize;
    // A signature and its layouts come before the body's brace: braces that open directly after
    // `]` or `)` are layouts.
    let mut body = false;
    loop {
        at += memchr3(b'{', b'}', b'"', text.get(at..limit)?)?;
        match text.get(at)? {
            b'"' => at = closing_quote(text, at, limit, true).unwrap_or(at + 1),
            b'{' => {
                let before = at.checked_sub(1).and_then(|before| text.get(before));
                body |= depth == 0 && !matches!(before, Some(b']' | b')'));
                depth += 1;
                at += 1;
            }
            _ => {
                depth = depth.saturating_sub(1);
                at += 1;
                if depth == 0 && body {
                    return Some(at);
                }
            }
        }
    }
}

/// Tracks whether a place is inside a string.
struct Strings {
    /// Strings that begin before this place also end before it; if `odd`, the place is the position
    /// of the exact reader.
    at: usize,
    odd: bool,
}

impl Strings {
    /// Whether every string that begins before `place` ends before it. Places ascend.
    fn are_closed(&mut self, text: &[u8], place: usize, limit: usize) -> bool {
        if !self.odd {
            // An escaped quote is rare and comes with a second one; if the count is even, no
            // string is open. Otherwise the exact reader takes over for this computation.
            let between = text.get(self.at..place).unwrap_or_default();
            if memchr_iter(b'"', between).count().is_multiple_of(2) {
                self.at = place;
                return true;
            }
            self.odd = true;
        }
        while self.at < place {
            let Some(skip) = text.get(self.at..place).and_then(|rest| memchr(b'"', rest)) else {
                self.at = place;
                return true;
            };
            match closing_quote(text, self.at + skip, limit, false) {
                Some(end) => self.at = end,
                // The string never closes: quotes from here on are ignored.
                None => {
                    self.at = limit;
                    return true;
                }
            }
        }
        self.at == place || self.at >= limit
    }
}

/// The offset just after the quote that closes the string at `open`; None if `limit` (or, if asked,
/// the end of the line) comes first.
fn closing_quote(text: &[u8], open: usize, limit: usize, one_line: bool) -> Option<usize> {
    let limit = if one_line {
        let rest = text.get(open..limit)?;
        open + memchr(b'\n', rest).unwrap_or(rest.len())
    } else {
        limit
    };
    let mut at = open + 1;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..limit)?)?;
        if text.get(at) == Some(&b'"') {
            return Some(at + 1);
        }
        at += 2;
    }
}
