//! Pieces of a module as people paste them: instruction lines without a computation, computations
//! with lines left out, lines of a profile or of `grep`, quoted or numbered lines, lines cut at the
//! right edge.
//!
//! [`fragment`] makes a copy that has the instructions, the headers and the closing braces of the
//! text, each on its line of the original, and nothing else. The reader of modules turns the copy
//! into a module with placeholders for what is missing. The search looks at the shape of lines
//! only; every line is read a bounded number of times.

use super::block::{self, is_computation};
use super::piece::{Repaired, instruction_start, is_elision, repair, without_elisions};
use super::prefix::Prefix;
use super::source::{LineOrigin, Source};
use memchr::{memchr, memchr_iter, memmem};
use std::borrow::Cow;

/// How many instructions and headers of computations make other text a fragment. A single line of
/// prose may look like an instruction; a text of nothing but instructions needs one.
const ENOUGH: u64 = 3;

/// Lines that may continue an instruction that a terminal or a mail program wrapped.
const WRAPPED: usize = 16;

/// What a fragment lacks, judged by its lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// Instruction lines.
    pub instructions: u64,
    /// Places at which the text says that lines were left out.
    pub gaps: u64,
    /// Lines that end inside an instruction.
    pub cut: u64,
    /// Other lines with text, which are not part of the fragment.
    pub others: u64,
}

/// The pieces of a module in `source`, a text in which no whole module was found or that could not
/// be read as one; None if it is not such a text.
///
/// A text with a module header is one only if its lines show that a person left something out:
/// otherwise it is a damaged module.
pub fn fragment(source: &Source) -> Option<Source> {
    let text = source.bytes();
    // The messages of allocators quote instructions that belong to no common text.
    if memmem::find(text, b"XLA label:").is_some() || memmem::find(text, b"XLA Label:").is_some() {
        return None;
    }
    let first = first_instruction(text)?;
    let mut cleaner = Cleaner::new(text, first.prefix);
    cleaner.read();
    let pieces = cleaner.pieces;
    let is_enough = match pieces.others {
        0 => pieces.instructions > 0,
        _ => pieces.instructions > 0 && pieces.instructions + cleaner.openings >= ENOUGH,
    };
    if !is_enough || cleaner.has_header && !cleaner.is_shortened() {
        return None;
    }
    let mut text = cleaner.copy;
    text.shrink_to_fit();
    Some(source.cleaned_part(text, cleaner.origins, 0).with_pieces(pieces))
}

/// The first instruction of a text, whose prefix the lines before it have too.
struct First {
    prefix: Option<Prefix>,
}

fn first_instruction(text: &[u8]) -> Option<First> {
    text.split(|byte| *byte == b'\n').map(plain).find_map(|line| {
        let before = line.get(..instruction_start(&line)?)?;
        is_prefix(before).then(|| First { prefix: Prefix::of(before) })
    })
}

struct Cleaner<'a> {
    text: &'a [u8],
    copy: Vec<u8>,
    origins: Vec<LineOrigin>,
    pieces: Pieces,
    /// The prefix of the last instruction that had one.
    prefix: Option<Prefix>,
    has_header: bool,
    /// Whether the header has attributes, as those of whole dumps do.
    has_attributes: bool,
    /// Whether lines are those of the tables after the header.
    in_tables: bool,
    /// Headers of computations.
    openings: u64,
    /// Whether a computation is open at the end.
    is_open: bool,
    /// Characters of the widest line, and of the lines that are certainly cut.
    widest: usize,
    cut_widths: [usize; 2],
}

/// What a line is.
enum Kind {
    Blank,
    Header,
    Table,
    Computation,
    Close,
    Instruction,
    Gap,
    Other,
}

impl<'a> Cleaner<'a> {
    fn new(text: &'a [u8], prefix: Option<Prefix>) -> Self {
        let lines = memchr_iter(b'\n', text).count() + 1;
        Self {
            text,
            copy: Vec::with_capacity(text.len()),
            origins: Vec::with_capacity(lines),
            pieces: Pieces::default(),
            prefix,
            has_header: false,
            has_attributes: false,
            in_tables: false,
            openings: 0,
            is_open: false,
            widest: 0,
            cut_widths: [0; 2],
        }
    }

    /// Whether a text with a module header shows that something was left out: a line that says so,
    /// lines cut at one edge, or a header as people shorten it and an end inside a computation.
    fn is_shortened(&self) -> bool {
        let [first, second] = self.cut_widths;
        let has_edge = first > 0 && first == second && first == self.widest;
        self.pieces.gaps > 0 || has_edge || self.is_open && !self.has_attributes
    }

    fn read(&mut self) {
        let mut at = 0;
        while at < self.text.len() {
            at = self.read_line(at);
        }
    }

    /// Copies the line at `at`, if it belongs to the fragment; returns where the next one begins.
    fn read_line(&mut self, at: usize) -> usize {
        let raw = block::line(self.text, at);
        let next = at + raw.len() + 1;
        let line = plain(raw);
        let width = characters(raw.trim_ascii_end());
        self.widest = self.widest.max(width);
        let (removed, kind) = self.classify(&line);
        let kept = line.get(removed..).unwrap_or_default().trim_ascii_end();
        self.in_tables = match kind {
            Kind::Header | Kind::Table => true,
            Kind::Blank => self.in_tables,
            _ => false,
        };
        match kind {
            Kind::Blank => self.push(at, 0, b""),
            Kind::Gap => {
                self.pieces.gaps += 1;
                self.push(at, 0, b"");
            }
            Kind::Other => {
                self.pieces.others += 1;
                self.push(at, 0, b"");
            }
            Kind::Header => {
                self.has_header = true;
                let repaired = repair(kept);
                self.has_attributes = memchr(b',', &repaired.text).is_some();
                self.push(at, removed, &repaired.text);
            }
            Kind::Close => {
                self.is_open = false;
                self.push(at, removed, b"}");
            }
            Kind::Table => self.push(at, removed, kept),
            Kind::Computation => {
                self.is_open = true;
                self.openings += 1;
                self.push(at, removed, kept);
            }
            Kind::Instruction => {
                self.pieces.instructions += 1;
                self.is_open = true;
                return self.instruction(at, removed, kept, next, width);
            }
        }
        next
    }

    /// Copies an instruction, with the lines that continue it; returns where the next line begins.
    fn instruction(
        &mut self,
        at: usize,
        removed: usize,
        kept: &[u8],
        next: usize,
        width: usize,
    ) -> usize {
        let kept = without_elisions(kept);
        let repaired = repair(&kept);
        if !repaired.is_cut {
            self.push(at, removed, &repaired.text);
            return next;
        }
        if let Some((whole, end)) = self.joined(&kept, next) {
            self.push(at, removed, &whole);
            let mut line = next;
            while line < end {
                self.push(line, 0, b"");
                line += block::line(self.text, line).len() + 1;
            }
            return end;
        }
        self.pieces.cut += 1;
        self.cut_widths = [width, self.cut_widths[0]];
        self.push(at, removed, &repaired.text);
        next
    }

    /// The instruction that begins with `start` together with the lines from `next` on that
    /// continue it, and where the line after them begins; None if they do not complete it.
    fn joined(&mut self, start: &[u8], next: usize) -> Option<(Vec<u8>, usize)> {
        let mut whole = start.to_vec();
        let mut at = next;
        for _ in 0..WRAPPED {
            if at >= self.text.len() {
                return None;
            }
            let raw = block::line(self.text, at);
            let line = plain(raw);
            let (removed, kind) = self.classify(&line);
            // Arrays of constants have lines that begin with braces.
            let is_brace = matches!(kind, Kind::Close) && line.trim_ascii() != b"}";
            if !is_brace && !matches!(kind, Kind::Other) {
                return None;
            }
            let rest = line.get(removed..).unwrap_or_default();
            if rest.trim_ascii().starts_with(b"```") {
                return None;
            }
            // Words are wrapped at blanks or anywhere; blanks between tokens do not matter.
            whole.extend_from_slice(without_elisions(rest.trim_ascii()).as_ref());
            at += raw.len() + 1;
            let Repaired { text, is_cut } = repair(&whole);
            if !is_cut {
                return Some((text.into_owned(), at));
            }
        }
        None
    }

    /// What `line` is, and the length of the prefix to remove.
    fn classify(&mut self, line: &[u8]) -> (usize, Kind) {
        let blanks = line.len() - line.trim_ascii_start().len();
        let own = line.trim_ascii();
        if own.is_empty() {
            return (0, Kind::Blank);
        }
        if let Some(start) = instruction_start(line) {
            let before = line.get(..start).unwrap_or_default();
            if before.trim_ascii().is_empty() {
                return (blanks, Kind::Instruction);
            }
            if is_prefix(before) {
                self.prefix = Prefix::of(before).or_else(|| self.prefix.take());
                return (start, Kind::Instruction);
            }
        }
        if let Some(kind) = self.framed(own) {
            return (blanks, kind);
        }
        // A prefix like that of the last instruction, then those of editors and mails.
        let learned = self.prefix.as_ref().and_then(|prefix| prefix.matches(line));
        for removed in [learned.unwrap_or(0), simple_prefix(line)] {
            let rest = line.get(removed..).unwrap_or_default();
            let blanks = rest.len() - rest.trim_ascii_start().len();
            if removed > 0 {
                if rest.trim_ascii().is_empty() {
                    return (0, Kind::Blank);
                }
                if let Some(kind) = self.framed(rest.trim_ascii()) {
                    return (removed + blanks, kind);
                }
            }
        }
        (learned.unwrap_or(0), Kind::Other)
    }

    /// What a line without prefix is, if it is part of the frame around instructions.
    fn framed(&self, own: &[u8]) -> Option<Kind> {
        Some(if is_elision(own) {
            Kind::Gap
        } else if own.starts_with(b"HloModule ") {
            if self.has_header { Kind::Other } else { Kind::Header }
        } else if own.starts_with(b"}") {
            Kind::Close
        } else if self.in_tables && block::is_table_line(own) {
            Kind::Table
        } else if is_opening(own) {
            Kind::Computation
        } else if own.starts_with(b"```") {
            Kind::Blank
        } else {
            return None;
        })
    }

    /// Appends a line of the copy for the line of the text at `at`.
    fn push(&mut self, at: usize, removed: usize, kept: &[u8]) {
        if !self.origins.is_empty() {
            self.copy.push(b'\n');
        }
        self.origins.push(LineOrigin {
            start: self.copy.len() as u32,
            offset: at + removed,
            removed: removed as u32,
        });
        self.copy.extend_from_slice(kept);
    }
}

/// `line` without the escape sequences of terminals, and with plain blanks for those of web pages.
fn plain(line: &[u8]) -> Cow<'_, [u8]> {
    const NO_BREAK: &[u8] = b"\xc2\xa0";
    if memchr(0x1b, line).is_none() && memmem::find(line, NO_BREAK).is_none() {
        return Cow::Borrowed(line);
    }
    let mut plain = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some((&first, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(NO_BREAK) {
            plain.push(b' ');
            rest = after;
        } else if first == 0x1b {
            rest = after_escape(after);
        } else {
            plain.push(first);
            rest = after;
        }
    }
    Cow::Owned(plain)
}

/// What follows an escape sequence of ECMA-48; `rest` begins after the escape character.
fn after_escape(rest: &[u8]) -> &[u8] {
    let length = match rest.first() {
        // A control sequence ends with a byte from @ to ~.
        Some(b'[') => {
            let end = rest.iter().skip(1).position(|byte| (0x40..=0x7e).contains(byte));
            end.map_or(rest.len(), |end| end + 2)
        }
        // A command of the operating system (a title, a link) ends with BEL or ESC \.
        Some(b']') => match rest.iter().position(|byte| matches!(byte, 7 | 0x1b)) {
            Some(end) if rest.get(end) == Some(&0x1b) => end + 2,
            Some(end) => end + 1,
            None => rest.len(),
        },
        Some(_) => 1,
        None => 0,
    };
    rest.get(length.min(rest.len())..).unwrap_or_default()
}

/// Whether `own` opens a computation. The line may be cut.
fn is_opening(own: &[u8]) -> bool {
    if !is_computation(own) {
        return false;
    }
    // A name and parentheses alone is a call in prose or code.
    let has_signature = memmem::find(own, b"->").is_some() || memmem::find(own, b": ").is_some();
    own.ends_with(b"{") || own.starts_with(b"ENTRY ") || own.starts_with(b"%") && has_signature
}

/// Whether the text before an instruction is something that tools put before lines, not prose.
fn is_prefix(before: &[u8]) -> bool {
    const LEVELS: [&[u8]; 5] = [b"INFO", b"WARN", b"ERROR", b"DEBUG", b"rank"];
    const LONGEST: usize = 512;
    let own = before.trim_ascii();
    // Ray's `(worker pid=3)` is the only writer that has equal signs.
    let is_ray = own.starts_with(b"(") && own.ends_with(b")");
    let is_odd = |byte: &u8| matches!(byte, b'"' | b'%' | b'{') || *byte == b'=' && !is_ray;
    if own.len() > LONGEST || own.iter().any(is_odd) {
        // Percentages and equal signs: only the columns of `--xla_hlo_profile`.
        return is_profile_row(own);
    }
    if own.iter().all(|byte| !byte.is_ascii_alphabetic()) {
        return true;
    }
    let ends = matches!(own.last(), Some(b']' | b':' | b'|' | b'>' | b')' | b'-' | b'F' | b'Z'));
    let is_word = !own.iter().any(u8::is_ascii_whitespace);
    let has_level = || LEVELS.iter().any(|level| memmem::find(own, level).is_some());
    ends && (is_word || own.iter().any(u8::is_ascii_digit) || has_level())
}

/// `1234 cycles ( 0.07% 100Σ) :: 6.3 usec (0.0 optimal) :: … ::`, which XLA's
/// `HumanReadableProfileBuilder` writes before the instruction.
fn is_profile_row(own: &[u8]) -> bool {
    let digits = own.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = own.get(digits..).unwrap_or_default();
    digits > 0 && rest.starts_with(b" cycles (") && own.ends_with(b"::")
}

/// The length of the quote marks, line numbers, file names and gutters at the start of `line`.
fn simple_prefix(line: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let rest = line.get(at..).unwrap_or_default();
        let blanks = rest.len() - rest.trim_ascii_start().len();
        let rest = rest.get(blanks..).unwrap_or_default();
        let taken = quote(rest).or_else(|| number(rest)).or_else(|| file_and_line(rest));
        match taken {
            Some(taken) if taken > 0 => at += blanks + taken,
            _ => return at,
        }
    }
}

fn quote(rest: &[u8]) -> Option<usize> {
    const MARKS: [&[u8]; 4] = [b">", b"|", "│".as_bytes(), "┃".as_bytes()];
    MARKS.iter().find(|mark| rest.starts_with(mark)).map(|mark| mark.len())
}

/// `12`, `12:`, `12-`, `12.` or `12|` before a blank or a brace.
fn number(rest: &[u8]) -> Option<usize> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    let mark = matches!(rest.get(digits), Some(b':' | b'-' | b'.' | b'|'));
    let length = digits + usize::from(mark);
    let ends = rest.get(length).is_none_or(|byte| mark || matches!(byte, b' ' | b'\t'));
    ends.then_some(length)
}

/// `path/file.txt:12:`, as grep and compilers write it.
fn file_and_line(rest: &[u8]) -> Option<usize> {
    let word = rest.iter().take(512).position(|byte| byte.is_ascii_whitespace());
    let word = rest.get(..word.unwrap_or(rest.len().min(512)))?;
    let ends = memchr_iter(b':', word).chain(memchr_iter(b'-', word));
    let is_place = |end: usize| {
        let path = word.get(..end)?;
        let digits = path.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let mark = path.len().checked_sub(digits + 1)?;
        let is_mark = matches!(path.get(mark), Some(b':' | b'-'));
        (digits > 0 && mark > 0 && is_mark).then_some(end + 1)
    };
    ends.filter_map(is_place).max()
}

/// Characters of UTF-8 text.
fn characters(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}
