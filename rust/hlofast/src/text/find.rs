//! Modules embedded in other text: pages, logs with line prefixes, framed standard output,
//! several modules in one file, and text without a module header.
//!
//! The search looks only at the shape of lines and leaves validity to the parser, so it also finds
//! damaged modules. Every input costs a bounded number of passes: reading text twice (a header with
//! a string over several lines, a cleaned copy) draws on a budget.

use super::block::{self, Blocks};
use super::prefix::Prefix;
use super::source::LineOrigin;
use memchr::{memchr, memchr_iter, memmem, memrchr};
use std::ops::Range;

const HEADER: &[u8] = b"HloModule ";

/// Limit on the bytes between the start of the line and `HloModule`.
const LONGEST_PREFIX: usize = 512;

/// First piece of a prefixed text that is cleaned to see whether it holds the whole module.
const FIRST_PIECE: usize = 64 << 10;

/// A module (or loose computations) in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The range of the module in the text.
    pub span: Range<usize>,
    /// Number of lines before the module.
    pub lines_before: u64,
    /// The file name with which a dump to standard output announces the module.
    pub label: Option<Range<usize>>,
    /// A copy without the log prefixes or HTML entities of the original, if it had any.
    pub cleaned: Option<Cleaned>,
}

/// A copy of a module's lines without their prefixes. It has as many lines as the original.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleaned {
    /// The copy.
    pub text: Vec<u8>,
    /// The origin of each line.
    pub lines: Vec<LineOrigin>,
}

/// Finds every module in `text`, in order. Without any module header, finds the computations of a
/// headerless module or a single instruction instead.
pub fn find_modules(text: &[u8]) -> Vec<Found> {
    let mut search = Search { text, taken: Vec::new(), counted: (0, 0), budget: 0 };
    search.budget = text.len().saturating_mul(4).saturating_add(1 << 20);
    search.modules();
    if search.taken.is_empty() {
        search.headerless();
    }
    search.taken
}

/// Whether the first token of `text` is `HloModule`, so that the text most likely is a single
/// module.
pub fn starts_with_module(text: &[u8]) -> bool {
    let start = block::skip_blank(text, 0);
    text.get(start..).is_some_and(|rest| {
        rest.strip_prefix(b"HloModule")
            .is_some_and(|rest| matches!(rest.first(), Some(b' ' | b'\t' | b'\n' | b'\r' | b'/')))
    })
}

struct Search<'a> {
    text: &'a [u8],
    taken: Vec<Found>,
    /// An offset and the lines before it.
    counted: (usize, u64),
    /// Bytes that may still be read more than once.
    budget: usize,
}

impl<'a> Search<'a> {
    fn modules(&mut self) {
        let finder = memmem::Finder::new(HEADER);
        let mut at = 0;
        while let Some(hit) = self.text.get(at..).and_then(|rest| finder.find(rest)) {
            let hit = at + hit;
            at = match self.module_at(hit, at) {
                Some(end) => end.max(hit + HEADER.len()),
                None => hit + HEADER.len(),
            };
        }
    }

    /// Takes the module whose header is at `hit`, if there is one; returns where it ends.
    /// Everything before `floor` belongs to earlier modules.
    fn module_at(&mut self, hit: usize, floor: usize) -> Option<usize> {
        let floor = floor.max(hit.saturating_sub(LONGEST_PREFIX));
        let start = match memrchr(b'\n', self.text.get(floor..hit)?) {
            Some(newline) => floor + newline + 1,
            None if floor == 0 => 0,
            // Either the previous module ends on this line, or the prefix is too long.
            None if self.taken.last().is_some_and(|last| last.span.end == floor) => floor,
            None => return None,
        };
        let before = self.text.get(start..hit)?;
        if before.iter().all(u8::is_ascii_whitespace) {
            let blocks = block::module(self.text, hit, &mut self.budget);
            // A header without further text is a truncated module if it cannot be prose.
            let first = self.taken.is_empty() && block::skip_blank(self.text, 0) == hit;
            if blocks.count == 0 && !first && !block::is_module_header(self.text, hit) {
                return None;
            }
            return Some(self.take(start, hit, blocks));
        }
        if let Some(prefix) = Prefix::of(before)
            && let Some(end) = self.prefixed(&prefix, start, hit)
        {
            return Some(end);
        }
        // `print("compiled:", text)` puts text in front of the first line only.
        let blocks = block::module(self.text, hit, &mut self.budget);
        (blocks.count > 0).then(|| self.take(start, hit, blocks))
    }

    fn take(&mut self, line: usize, start: usize, blocks: Blocks) -> usize {
        let end = blocks.end;
        let label = self.label(line);
        let cleaned = self.text.get(start..end).and_then(|text| unescape(text, start));
        let lines_before = self.lines_before(start);
        self.taken.push(Found { span: start..end, lines_before, label, cleaned });
        end
    }

    /// A module whose lines all have a prefix like the prefix of the first line.
    fn prefixed(&mut self, prefix: &Prefix, line: usize, hit: usize) -> Option<usize> {
        self.repeats(prefix, hit).then_some(())?;
        let mut piece = FIRST_PIECE;
        loop {
            let limit = line.saturating_add(piece).min(self.text.len());
            let limit = match memchr(b'\n', self.text.get(limit..)?) {
                Some(newline) => limit + newline + 1,
                None => self.text.len(),
            };
            self.budget = self.budget.checked_sub(limit - line)?;
            let mut cleaned = clean(prefix, self.text, line, limit);
            let blocks = block::module(&cleaned.text, 0, &mut self.budget);
            if !blocks.followed && limit < self.text.len() {
                piece = piece.saturating_mul(4);
                continue;
            }
            if blocks.count == 0 {
                return None;
            }
            let lines = cleaned.lines.partition_point(|line| (line.start as usize) < blocks.end);
            cleaned.lines.truncate(lines);
            cleaned.text.truncate(blocks.end);
            cleaned.text.shrink_to_fit();
            let last = cleaned.lines.last()?;
            let end = last.offset + (blocks.end - last.start as usize);
            let label = self.label(line);
            let lines_before = self.lines_before(hit);
            let cleaned = Some(cleaned);
            self.taken.push(Found { span: hit..end, lines_before, label, cleaned });
            return Some(end);
        }
    }

    /// Whether a line soon after the line of `hit` has `prefix` too. Lines of other threads may
    /// come first.
    fn repeats(&self, prefix: &Prefix, hit: usize) -> bool {
        let mut at = hit;
        for _ in 0..8 {
            at = block::skip_empty_lines(self.text, at + block::line(self.text, at).len() + 1);
            let line = block::line(self.text, at);
            if prefix.matches(line).is_some() {
                return true;
            }
            if !super::prefix::is_log_line(line) {
                return false;
            }
        }
        false
    }

    /// The file name in `*** Begin NAME ***` on the line before `line` (which may have a prefix).
    fn label(&self, line: usize) -> Option<Range<usize>> {
        let before = self.text.get(..line)?.trim_ascii_end();
        let from = before.len().saturating_sub(2 * LONGEST_PREFIX);
        let last = memrchr(b'\n', before.get(from..)?).map_or(from, |newline| from + newline + 1);
        let frame = b"*** Begin ";
        let start = last + memmem::rfind(before.get(last..)?, frame)? + frame.len();
        let name = before.get(start..)?.strip_suffix(b" ***")?;
        (!name.is_empty()).then(|| start..start + name.len())
    }

    /// Lines before `offset`; offsets come in ascending order.
    fn lines_before(&mut self, offset: usize) -> u64 {
        let (from, lines) = self.counted;
        let between = self.text.get(from..offset).unwrap_or_default();
        self.counted = (offset, lines + memchr_iter(b'\n', between).count() as u64);
        self.counted.1
    }

    /// Computations without a module header, or a single instruction at the start.
    fn headerless(&mut self) {
        let text = self.text;
        let start = block::skip_blank(text, 0);
        if block::is_instruction(block::line(text, start)) {
            let end = start + text.get(start..).map_or(0, |rest| rest.trim_ascii_end().len());
            let blocks = Blocks { end, count: 0, followed: false };
            self.take(start, start, blocks);
            return;
        }
        let mut at = 0;
        while at < text.len() {
            let line = block::line(text, at);
            if block::is_headerless_computation(text, at) {
                let start = at + (line.len() - line.trim_ascii_start().len());
                let blocks = block::computations(text, start);
                at = self.take(at, start, blocks).max(start + 1);
                at +=
                    memchr(b'\n', text.get(at..).unwrap_or_default()).map_or(text.len(), |n| n + 1);
            } else {
                at += line.len() + 1;
            }
        }
    }
}

/// The lines of `start..end` without `prefix`. Lines of other logs in between become empty, so
/// that line numbers stay correct.
fn clean(prefix: &Prefix, text: &[u8], start: usize, end: usize) -> Cleaned {
    let mut cleaned = Cleaned { text: Vec::with_capacity(end - start), lines: Vec::new() };
    let mut at = start;
    while at < end {
        let line = block::line(text, at);
        let kept = match prefix.matches(line) {
            Some(length) => length,
            None if super::prefix::is_log_line(line) => line.len(),
            None => 0,
        };
        let (removed, rest) = line.split_at(kept.min(line.len()));
        cleaned.lines.push(LineOrigin {
            start: cleaned.text.len() as u32,
            offset: at + removed.len(),
            removed: String::from_utf8_lossy(removed).chars().count() as u32,
        });
        cleaned.text.extend_from_slice(rest);
        at += line.len();
        if at < end {
            cleaned.text.push(b'\n');
            at += 1;
        }
    }
    cleaned
}

/// Replaces the HTML entities of a module copied from page source, whose arrows are all `-&gt;`.
fn unescape(text: &[u8], offset: usize) -> Option<Cleaned> {
    memmem::find(text, b"-&gt;")?;
    if memmem::find(text, b"->").is_some() {
        return None;
    }
    const ENTITIES: [(&[u8], u8); 6] = [
        (b"&gt;", b'>'),
        (b"&lt;", b'<'),
        (b"&quot;", b'"'),
        (b"&#34;", b'"'),
        (b"&#39;", b'\''),
        (b"&amp;", b'&'),
    ];
    let mut cleaned = Cleaned { text: Vec::with_capacity(text.len()), lines: Vec::new() };
    let mut at = 0;
    while at < text.len() {
        let line = block::line(text, at);
        cleaned.lines.push(LineOrigin {
            start: cleaned.text.len() as u32,
            offset: offset + at,
            removed: 0,
        });
        let mut rest = line;
        while let Some(skip) = memchr(b'&', rest) {
            let (plain, entity) = rest.split_at(skip);
            cleaned.text.extend_from_slice(plain);
            let known = ENTITIES.iter().find(|(name, _)| entity.starts_with(name));
            let (byte, length) = known.map_or((b'&', 1), |(name, byte)| (*byte, name.len()));
            cleaned.text.push(byte);
            rest = entity.get(length..).unwrap_or_default();
        }
        cleaned.text.extend_from_slice(rest);
        at += line.len();
        if at < text.len() {
            cleaned.text.push(b'\n');
            at += 1;
        }
    }
    Some(cleaned)
}
