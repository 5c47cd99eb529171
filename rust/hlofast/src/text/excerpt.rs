//! Turns byte offsets into lines, columns and excerpts for people.
//!
//! This code runs only when someone looks at an error. Columns count characters from 1, as editors
//! do; each byte that is not UTF-8 counts as one, unless it looks like the rest of a character.
//! Lines end at `\n`.

use super::{LineIndex, Source, Span};
use crate::error::{ErrorKind, ParseError};
use std::fmt::Write;

/// Display columns of an excerpt, without the gutter.
const WINDOW: usize = 100;
/// Display columns before the caret in a line that is cut.
const BEFORE: usize = 40;
/// Limit on the bytes examined on each side of the caret; lines may have millions.
const REACH: usize = 8 * WINDOW;
const ELLIPSIS: &str = "…";
const TAB: &str = "    ";

/// Where an error is in its file, as plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPlace {
    /// Line of the first byte, from 1.
    pub line: u64,
    /// Column of the first byte, from 1, in characters.
    pub column: u64,
    /// Line of the end.
    pub end_line: u64,
    /// Column just after the last character.
    pub end_column: u64,
    /// Byte offset of the first byte in the file (after decompression).
    pub offset: usize,
    /// Byte offset of the end.
    pub end_offset: usize,
    /// The line around the place with carets below it; empty if the error has no place.
    pub excerpt: String,
}

impl ErrorPlace {
    /// The place of `error` in the file of which `source` is a part.
    pub fn new(source: &Source, error: &ParseError) -> Self {
        Self::with_index(source, &index_for(source.bytes(), error), error)
    }

    /// Like `new`, with an existing index, for many errors in one text.
    pub fn with_index(source: &Source, index: &LineIndex, error: &ParseError) -> Self {
        let text = source.bytes();
        let span = within(text, error.span());
        // Offsets into a protobuf do not have a line.
        let place = |at: u32| match error.kind() {
            ErrorKind::InvalidProto => (1, 1),
            _ => index.place(text, at as usize),
        };
        let (line, column) = place(span.start);
        let (end_line, end_column) = place(span.end);
        let first = source.lines_before();
        Self {
            line: first + line,
            column: source.column_in_file(line, column),
            end_line: first + end_line,
            end_column: source.column_in_file(end_line, end_column),
            offset: source.offset_in_file(span.start as usize),
            end_offset: source.offset_in_file(span.end as usize),
            excerpt: if is_about_everything(error) {
                String::new()
            } else {
                let gutter = gutter_width(first + line);
                excerpt(text, index, span, first, gutter, &Style::plain())
            },
        }
    }
}

/// An index of the lines up to the lines of `error`. An index of the whole text could be larger
/// than the text, because lines may be as short as two bytes.
fn index_for(text: &[u8], error: &ParseError) -> LineIndex {
    if is_about_everything(error) {
        return LineIndex::default();
    }
    let related = error.related().map_or(0, |related| related.end);
    let end = (error.span().end.max(related) as usize).min(text.len());
    let rest = text.get(end..).unwrap_or_default();
    let line = memchr::memchr(b'\n', rest).map_or(text.len(), |skip| end + skip + 1);
    LineIndex::new(text.get(..line).unwrap_or(text))
}

/// The whole message for people: place, message, excerpt, the related place and one line of help.
/// With `color`, for a terminal.
pub fn render(source: &Source, error: &ParseError, color: bool) -> String {
    let style = if color { Style::terminal() } else { Style::plain() };
    let mut path = clean(source.path().unwrap_or("<text>"));
    if source.is_translated() {
        path.push_str(" (as text)");
    }
    let mut out = String::new();
    let text = source.bytes();
    let placeless = is_about_everything(error);
    let index = index_for(text, error);
    let span = within(text, error.span());
    let _ = write!(out, "{}{path}:", style.strong);
    if !placeless {
        let (line, column) = index.place(text, span.start as usize);
        let column = source.column_in_file(line, column);
        let _ = write!(out, "{}:{column}:", source.lines_before() + line);
    }
    let Style { fault, strong, reset, note, .. } = style;
    let _ = writeln!(out, "{reset} {fault}error:{reset} {strong}{}{reset}", clean(error.message()));
    if !placeless {
        let first = source.lines_before();
        let related = error.related().map(|related| within(text, related));
        let last = related.map_or(span.start, |related| related.start.max(span.start));
        let gutter = gutter_width(first + index.place(text, last as usize).0);
        out.push_str(&excerpt(text, &index, span, first, gutter, &style));
        out.push('\n');
        if let Some(related) = related {
            let (line, column) = index.place(text, related.start as usize);
            let column = source.column_in_file(line, column);
            let _ = writeln!(out, "{path}:{}:{column}: {note}related:{reset}", first + line);
            out.push_str(&excerpt(text, &index, related, first, gutter, &style));
            out.push('\n');
        }
    }
    if let Some(help) = error.help() {
        let _ = writeln!(out, "{note}help:{reset} {}", clean(help));
    }
    out.truncate(out.trim_end().len());
    out
}

/// Errors about the input as a whole have no line to show.
fn is_about_everything(error: &ParseError) -> bool {
    use ErrorKind::{InvalidCompression, InvalidProto, NoModule, NotHlo, SeveralModules, TooLarge};
    let kinds = [InvalidCompression, NoModule, NotHlo, SeveralModules, TooLarge];
    error.kind() == InvalidProto || error.span() == Span::EMPTY && kinds.contains(&error.kind())
}

/// `span` clamped to the text (a decoder may point at bytes that a rewrite added after it).
fn within(text: &[u8], span: Span) -> Span {
    let start = (span.start as usize).min(text.len());
    Span::new(start, (span.end as usize).clamp(start, text.len()))
}

fn gutter_width(line: u64) -> usize {
    line.to_string().len()
}

struct Style {
    strong: &'static str,
    fault: &'static str,
    note: &'static str,
    dim: &'static str,
    reset: &'static str,
}

impl Style {
    fn plain() -> Self {
        Self { strong: "", fault: "", note: "", dim: "", reset: "" }
    }

    fn terminal() -> Self {
        Self {
            strong: "\x1b[1m",
            fault: "\x1b[1;31m",
            note: "\x1b[1;36m",
            dim: "\x1b[34m",
            reset: "\x1b[0m",
        }
    }
}

/// The line of `span` with carets below it, cut to a window around the first caret.
fn excerpt(
    text: &[u8],
    index: &LineIndex,
    span: Span,
    lines_before: u64,
    gutter: usize,
    style: &Style,
) -> String {
    let (start, end) = (span.start as usize, span.end as usize);
    let line = index.line_range(text, start);
    let number = lines_before + index.place(text, start).0;
    // Only the neighbourhood of the caret is decoded.
    let from = boundary(text, line.start, start.saturating_sub(REACH).max(line.start));
    let to = line.end.min(start.saturating_add(REACH));
    let cells = cells(text.get(from..to).unwrap_or_default());
    let widths: Vec<usize> = cells.iter().map(|cell| width(&cell.shown)).collect();
    let caret = cells.partition_point(|cell| from + cell.offset < start);
    let after = cells.partition_point(|cell| from + cell.offset < end).max(caret + 1);

    let whole = from == line.start && to == line.end && widths.iter().sum::<usize>() <= WINDOW;
    let (mut first, mut last) = (0, cells.len());
    if !whole {
        // The window grows to the left by its share, then to the right; the left gets the space
        // that the right does not need.
        let mut used = 0;
        first = caret.min(cells.len());
        while first > 0 && used + widths[first - 1] <= BEFORE {
            first -= 1;
            used += widths[first];
        }
        last = caret.min(cells.len());
        while last < cells.len() && used + widths[last] <= WINDOW {
            used += widths[last];
            last += 1;
        }
        while first > 0 && used + widths[first - 1] <= WINDOW {
            first -= 1;
            used += widths[first];
        }
    }
    let cut_left = first > 0 || from > line.start;
    let cut_right = last < cells.len() || to < line.end;

    let mut shown = String::new();
    if cut_left {
        shown.push_str(ELLIPSIS);
    }
    shown.extend(cells[first..last].iter().map(|cell| cell.shown.as_str()));
    if cut_right {
        shown.push_str(ELLIPSIS);
    }
    let pad = usize::from(cut_left) + widths[first..caret.min(last)].iter().sum::<usize>();
    let run = widths.get(caret..after.min(last)).map_or(0, |widths| widths.iter().sum());
    let Style { fault, dim, reset, .. } = style;
    format!(
        " {dim}{number:>gutter$} |{reset} {shown}\n {dim}{blank:>gutter$} |{reset} {blank:pad$}{fault}{carets}{reset}",
        blank = "",
        carets = "^".repeat(run.max(1)),
    )
}

/// One character of the input and how it is shown.
struct Cell {
    offset: usize,
    shown: String,
}

/// The first character boundary at or before `at`, not before `start`.
fn boundary(text: &[u8], start: usize, at: usize) -> usize {
    (start..=at)
        .rev()
        .take(4)
        .find(|&at| text.get(at).is_none_or(|byte| byte & 0xc0 != 0x80))
        .unwrap_or(at)
}

fn cells(line: &[u8]) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut offset = 0;
    for chunk in line.utf8_chunks() {
        for character in chunk.valid().chars() {
            cells.push(Cell { offset, shown: show(character) });
            offset += character.len_utf8();
        }
        for byte in chunk.invalid() {
            cells.push(Cell { offset, shown: format!("\\x{byte:02x}") });
            offset += 1;
        }
    }
    cells
}

/// A character, escaped if it could move the cursor or reorder the line.
fn show(character: char) -> String {
    match character {
        '\t' => TAB.to_string(),
        _ if character.is_control() => format!("\\x{:02x}", character as u32),
        // Marks and controls of writing direction, zero-width characters, line separators.
        '\u{61c}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}' => format!("\\u{{{:x}}}", character as u32),
        _ => character.to_string(),
    }
}

/// `message` on one line, whatever parts of the input it quotes.
fn clean(message: &str) -> String {
    message.chars().map(show).collect()
}

/// Display columns: 2 for the wide scripts and pictographs, 0 for combining marks.
fn width(shown: &str) -> usize {
    shown
        .chars()
        .map(|character| match character as u32 {
            0x300..=0x36f | 0x20d0..=0x20ff | 0xfe00..=0xfe0f => 0,
            0x1100..=0x115f
            | 0x2e80..=0xa4cf
            | 0xac00..=0xd7a3
            | 0xf900..=0xfaff
            | 0xfe30..=0xfe6f
            | 0xff00..=0xff60
            | 0xffe0..=0xffe6
            | 0x1f300..=0x1faff
            | 0x20000..=0x3fffd => 2,
            _ => 1,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, start: usize, end: usize) -> String {
        let source = Source::from_slice(text.as_bytes()).with_path("m.hlo");
        let error = ParseError::new(
            ErrorKind::ExpectedToken,
            Span::new(start, end),
            "expected ')' after the operands",
        );
        render(&source, &error, false)
    }

    #[test]
    fn a_short_line_is_shown_whole() {
        let text = "HloModule m\n\nENTRY e {\n  ROOT a = f32[] add(x, y\n}\n";
        let at = text.find("add").unwrap();
        assert_eq!(
            shown(text, at, at + 3),
            "m.hlo:4:18: error: expected ')' after the operands\n \
             4 |   ROOT a = f32[] add(x, y\n   |                  ^^^"
        );
        // The end of the text, after the last line break.
        assert_eq!(
            shown(text, text.len(), text.len()).lines().skip(1).collect::<Vec<_>>(),
            [" 6 | ", "   | ^"]
        );
        let end = text.find("y\n").unwrap() + 1;
        assert!(shown(text, end, end + 9).ends_with("   |                          ^"));
    }

    #[test]
    fn long_lines_are_cut_round_the_caret() {
        let mut text = "a".repeat(5_000_000);
        text.push_str("[X]");
        text.push_str(&"b".repeat(5_000_000));
        let lines: Vec<String> =
            shown(&text, 5_000_000, 5_000_003).lines().map(String::from).collect();
        assert_eq!(lines[0], "m.hlo:1:5000001: error: expected ')' after the operands");
        assert_eq!(lines[1], format!(" 1 | …{}[X]{}…", "a".repeat(40), "b".repeat(57)));
        assert_eq!(lines[2], format!("   | {}^^^", " ".repeat(41)));
        // At the ends of a line there is only one ellipsis, and the window stays full.
        let first = shown(&text, 0, 3);
        assert!(first.contains(&format!(" 1 | {}…\n   | ^^^", "a".repeat(100))), "{first}");
        let last = shown(&text, text.len(), text.len());
        assert!(last.contains(&format!(" 1 | …{}\n   | {}^", "b".repeat(100), " ".repeat(101))));
        // If the span is longer than the window, the carets stop at the window's end.
        let run = shown(&text, 5_000_000, 9_000_000);
        assert!(run.ends_with(&format!(" {}", "^".repeat(60))), "{run}");
    }

    #[test]
    fn nothing_can_move_the_cursor() {
        let text = "a\tb\u{202e}\x1b[31m\0é漢X\r\nnext";
        let at = text.find('X').unwrap();
        let lines: Vec<String> = shown(text, at, at + 1).lines().map(String::from).collect();
        assert_eq!(lines[0], "m.hlo:1:13: error: expected ')' after the operands");
        assert_eq!(lines[1], " 1 | a    b\\u{202e}\\x1b[31m\\x00é漢X");
        assert_eq!(lines[2], format!("   | {}^", " ".repeat(29)));
    }

    #[test]
    fn bytes_that_are_not_text_count_one_column_each() {
        let source = Source::from_slice(b"ab\xff\xfecd");
        let error =
            ParseError::new(ErrorKind::UnexpectedCharacter, Span::new(4, 5), "bad \x07 one");
        let place = ErrorPlace::new(&source, &error);
        assert_eq!((place.line, place.column, place.end_column), (1, 5, 6));
        assert_eq!(place.excerpt, " 1 | ab\\xff\\xfecd\n   |           ^");
        assert!(render(&source, &error, false).starts_with("<text>:1:5: error: bad \\x07 one\n"));
    }

    #[test]
    fn related_places_and_help_follow() {
        let text = "x = a()\ny = b()\nx = c()\n";
        let source = Source::from_slice(text.as_bytes()).with_path("m.hlo");
        let error = ParseError::new(ErrorKind::DuplicateInstruction, Span::new(16, 17), "again")
            .with_related(Span::new(0, 1))
            .with_help("rename one");
        assert_eq!(
            render(&source, &error, false),
            "m.hlo:3:1: error: again\n 3 | x = c()\n   | ^\n\
             m.hlo:1:1: related:\n 1 | x = a()\n   | ^\nhelp: rename one"
        );
        let colored = render(&source, &error, true);
        assert!(colored.contains("\x1b[1;31merror:\x1b[0m"));
        let mut plain = colored;
        for code in ["\x1b[0m", "\x1b[1m", "\x1b[34m", "\x1b[1;31m", "\x1b[1;36m"] {
            plain = plain.replace(code, "");
        }
        assert_eq!(plain, render(&source, &error, false));
    }

    #[test]
    fn places_are_those_of_the_file() {
        let text = b"# page\n\nHloModule m\nENTRY e {\n}\n";
        let file = Source::from_slice(text).with_path("page");
        let part = file.part(8..text.len(), 2);
        let error = ParseError::new(ErrorKind::InvalidComputation, Span::new(12, 21), "empty");
        let place = ErrorPlace::new(&part, &error);
        assert_eq!((place.line, place.column, place.end_line, place.end_column), (4, 1, 4, 10));
        assert_eq!((place.offset, place.end_offset), (20, 29));
        assert!(
            render(&part, &error, false).starts_with("page:4:1: error: empty\n 4 | ENTRY e {\n")
        );
        // A span over several lines, and a span outside the text.
        let error = ParseError::new(ErrorKind::InvalidComputation, Span::new(12, 23), "empty");
        assert_eq!(ErrorPlace::new(&part, &error).end_line, 5);
        let error = ParseError::new(ErrorKind::InvalidComputation, Span::new(900, 950), "empty");
        assert_eq!(ErrorPlace::new(&part, &error).offset, text.len());
    }

    #[test]
    fn errors_about_the_whole_input_have_no_excerpt() {
        let source = Source::from_slice(b"hello").with_path("a.txt");
        let error = ParseError::new(ErrorKind::NoModule, Span::EMPTY, "no module").with_help("h");
        assert_eq!(render(&source, &error, false), "a.txt: error: no module\nhelp: h");
        let place = ErrorPlace::new(&source, &error);
        assert_eq!((place.line, place.column, place.excerpt.as_str()), (1, 1, ""));
    }
}
