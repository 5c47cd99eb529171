//! Source columns of instructions: op_name, source file and line.

use super::decode::{StackFrames, unescape};
use super::derived::Derived;
use super::intern::hash_bytes;
use super::module::{Module, NO_METADATA, Row, bytes_of};
use crate::text::{Cursor, Span};
use hashbrown::HashTable;

/// One entry per row; ids number the distinct texts in the order of their first use, -1 = none.
#[derive(Clone, Debug, Default)]
pub struct MetadataColumns {
    /// Into `op_names`.
    pub op_name: Vec<i32>,
    /// Into `source_files`.
    pub source_file: Vec<i32>,
    /// 1-based; 0 = none.
    pub source_line: Vec<i32>,
    /// The stack frame; 0 = none. Empty if the module has no table of frames.
    pub frame: Vec<i32>,
    /// The distinct operation names, without quotes and still escaped.
    pub op_names: Vec<Span>,
    /// The distinct file names.
    pub source_files: Vec<Box<[u8]>>,
}

impl MetadataColumns {
    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        let columns = [&self.op_name, &self.source_file, &self.source_line, &self.frame];
        4 * columns.iter().map(|column| column.capacity()).sum::<usize>()
            + 8 * self.op_names.capacity()
            + self.source_files.iter().map(|name| name.len() + 16).sum::<usize>()
    }
}

impl Module {
    /// op_name, source file and line of every row. If the text gives only a stack frame, file and
    /// line are taken from the innermost frame.
    pub fn metadata_columns(&self) -> &MetadataColumns {
        self.derived().metadata.get_or_init(|| build(self))
    }

    /// The stack-frame tables; empty if they cannot be read.
    pub fn frame_tables(&self) -> &StackFrames {
        self.derived().frames.get_or_init(|| StackFrames::of_module(self).unwrap_or_default())
    }

    /// The braces of `metadata={...}` of `row`.
    pub fn metadata_span(&self, row: Row) -> Option<Span> {
        let start = self.metadata_start(row)?;
        let end = self.tail(row).end;
        let mut cursor = Cursor::new(self.bytes(Span { start, end }));
        let span = if cursor.peek() == b'{' { cursor.balanced().ok()? } else { return None };
        Some(span.shifted(start))
    }

    /// Where the value of `metadata` starts.
    fn metadata_start(&self, row: Row) -> Option<u32> {
        let start = self.columns.metadata_starts[row.0 as usize];
        (start != NO_METADATA).then_some(start)
    }
}

impl Derived {
    pub(super) fn metadata_heap_bytes(&self) -> usize {
        self.metadata.get().map_or(0, MetadataColumns::heap_bytes)
            + self.frames.get().map_or(0, StackFrames::heap_bytes)
    }
}

/// The facts of one `metadata={...}` that have columns. Spans are without quotes.
#[derive(Default)]
struct Facts {
    op_name: Option<Span>,
    source_file: Option<Span>,
    source_line: i32,
    frame: i64,
    /// The operation name and the file are those of the last row that has one.
    is_last_name: bool,
    is_last_file: bool,
}

/// What neighbouring rows mostly share, so that its end need not be searched.
#[derive(Default)]
struct Last {
    op_name: Span,
    file: Span,
}

/// The length of the text of `last` if `quoted`, what follows a quote, is the same text.
#[inline]
fn same_as(last: Span, quoted: &[u8], text: &[u8]) -> Option<usize> {
    let known = text.get(last.range()).filter(|known| !known.is_empty())?;
    let is_same = quoted.get(known.len()) == Some(&b'"') && quoted.starts_with(known);
    is_same.then_some(known.len())
}

fn build(module: &Module) -> MetadataColumns {
    let rows = module.row_count();
    let frames = module.frame_tables();
    let mut columns = MetadataColumns {
        op_name: vec![-1; rows],
        source_file: vec![-1; rows],
        source_line: vec![0; rows],
        frame: vec![0; if frames.is_empty() { 0 } else { rows }],
        ..MetadataColumns::default()
    };
    let mut op_names = Texts::new(module);
    let mut written_files = Texts::few(module);
    let mut files = Files::default();
    // The file of each text in `written_files`.
    let mut file_of: Vec<i32> = Vec::new();
    // The file of each name in the table of file names.
    let mut file_of_table: Vec<Option<i32>> = vec![None; frames.file_names.len()];
    let mut last_frame = (0, -1, 0);
    let text = module.text();
    let mut last = Last::default();
    let places = columns.op_name.iter_mut().zip(&mut columns.source_file);
    let places = places.zip(&mut columns.source_line).enumerate();
    for (row, ((op_name, source_file), source_line)) in places {
        let start = module.columns.metadata_starts[row];
        if start == NO_METADATA {
            continue;
        }
        let bytes =
            bytes_of(text, &module.arena, Span { start, end: module.columns.tail_ends[row] });
        let facts = read_printed(bytes, start, text, &mut last).unwrap_or_else(|| {
            last = Last::default();
            read_facts(bytes, start)
        });
        if facts.is_last_name {
            *op_name = op_names.last;
        } else if let Some(span) = facts.op_name {
            *op_name = op_names.id(span);
        }
        (*source_file, *source_line) = if let Some(span) = facts.source_file {
            let text = match facts.is_last_file {
                true => written_files.last as usize,
                false => written_files.id(span) as usize,
            };
            if text == file_of.len() {
                let raw = module.bytes(span);
                file_of.push(files.id(&unescape(raw).unwrap_or(raw.into())));
            }
            (file_of[text], facts.source_line)
        } else if facts.frame == 0 {
            (-1, facts.source_line)
        } else {
            if facts.frame != last_frame.0 {
                let place = frames.place(facts.frame);
                let (file, line) = place.map_or((-1, 0), |(number, name, line)| {
                    let file = file_of_table[number].get_or_insert_with(|| files.id(name));
                    (*file, line_number(line))
                });
                last_frame = (facts.frame, file, line);
            }
            (last_frame.1, last_frame.2)
        };
        if let Some(frame) = columns.frame.get_mut(row) {
            *frame = line_number(facts.frame);
        }
    }
    columns.op_names = op_names.spans;
    columns.op_names.shrink_to_fit();
    columns.source_files = files.names;
    columns
}

/// A line or frame number as stored in its column; 0 if out of range.
fn line_number(value: i64) -> i32 {
    i32::try_from(value).unwrap_or(0).max(0)
}

/// Distinct file names, numbered by first use.
#[derive(Default)]
struct Files {
    names: Vec<Box<[u8]>>,
    ids: HashTable<i32>,
}

impl Files {
    fn id(&mut self, name: &[u8]) -> i32 {
        let Self { names, ids } = self;
        let name_of = |id: i32| names.get(id as usize).map(|known| &known[..]);
        let hash = hash_bytes(name);
        if let Some(id) = ids.find(hash, |id| name_of(*id) == Some(name)) {
            return *id;
        }
        let id = names.len() as i32;
        ids.insert_unique(hash, id, |id| hash_bytes(name_of(*id).unwrap_or_default()));
        names.push(name.into());
        id
    }
}

/// Reads the forms that XLA prints most, without escapes: `{op_name="a" source_file="b"
/// source_line=1}`, `{op_name="a" stack_frame_id=1}` and `{op_name="a"}`; None for any other.
fn read_printed(bytes: &[u8], base: u32, text: &[u8], last: &mut Last) -> Option<Facts> {
    const OP_NAME: &[u8] = b"{op_name=\"";
    const FILE: &[u8] = b" source_file=\"";
    let quoted = bytes.strip_prefix(OP_NAME)?;
    let same = same_as(last.op_name, quoted, text);
    let length = match same {
        Some(length) => length,
        None => memchr::memchr2(b'"', b'\\', quoted)?,
    };
    let span = |start: usize, length: usize| Span::new(start, start + length).shifted(base);
    let name = span(OP_NAME.len(), length);
    let is_last_name = same.is_some();
    let mut facts = Facts { op_name: Some(name), is_last_name, ..Facts::default() };
    let after = quoted.get(length..)?.strip_prefix(b"\"")?;
    if let Some(number) = after.strip_prefix(b" stack_frame_id=") {
        facts.frame = digits(number)?;
        last.op_name = name;
        return Some(facts);
    }
    if after.first() == Some(&b'}') {
        last.op_name = name;
        return Some(facts);
    }
    let quoted = after.strip_prefix(FILE)?;
    let same = same_as(last.file, quoted, text);
    let length = match same {
        Some(length) => length,
        None => memchr::memchr2(b'"', b'\\', quoted)?,
    };
    facts.is_last_file = same.is_some();
    let file = span(bytes.len() - quoted.len(), length);
    let number = quoted.get(length..)?.strip_prefix(b"\" source_line=")?;
    facts.source_line = i32::try_from(digits(number)?).ok()?;
    facts.source_file = Some(file);
    (last.op_name, last.file) = (name, file);
    Some(facts)
}

/// The number that `bytes` start with, if a closing brace follows it.
fn digits(bytes: &[u8]) -> Option<i64> {
    let mut value = 0i64;
    for (index, byte) in bytes.iter().enumerate().take(10) {
        match byte {
            b'0'..=b'9' => value = value * 10 + i64::from(byte - b'0'),
            b'}' if index > 0 => return Some(value),
            _ => return None,
        }
    }
    None
}

/// Reads `{op_type="..." op_name="..." source_line=3}`; `base` is where it starts. Unknown values
/// are skipped.
fn read_facts(bytes: &[u8], base: u32) -> Facts {
    let mut facts = Facts::default();
    let mut cursor = Cursor::new(bytes);
    if cursor.peek() != b'{' {
        return facts;
    }
    cursor.advance(1);
    // XLA prints op_name first in nearly all metadata.
    if cursor.eat_bytes(b"op_name=") {
        let Ok(quoted) = cursor.string() else { return facts };
        facts.op_name = Some(Span { start: quoted.start + 1, end: quoted.end - 1 }.shifted(base));
    }
    loop {
        while matches!(cursor.peek(), b' ' | b',') && !cursor.is_at_end() {
            cursor.advance(1);
        }
        if cursor.peek() == b'}' || cursor.skip_space().is_err() {
            return facts;
        }
        let key = cursor.identifier();
        if key.is_empty() || !matches!(cursor.eat(b'='), Ok(true)) {
            return facts;
        }
        let start = cursor.position();
        match cursor.peek() {
            b'"' => {
                let Ok(quoted) = cursor.string() else { return facts };
                let inner = Span { start: quoted.start + 1, end: quoted.end - 1 }.shifted(base);
                match key {
                    b"op_name" => facts.op_name = Some(inner),
                    b"source_file" => facts.source_file = Some(inner),
                    _ => {}
                }
            }
            b'0'..=b'9' | b'-' => {
                let value = match cursor.integer() {
                    Ok(Some(value)) => value,
                    _ => return facts,
                };
                match key {
                    b"source_line" => facts.source_line = line_number(value),
                    b"stack_frame_id" => facts.frame = value,
                    _ => {}
                }
            }
            b'{' => {
                if cursor.balanced().is_err() {
                    return facts;
                }
            }
            _ => {
                cursor.identifier();
                if cursor.position() == start {
                    return facts;
                }
            }
        }
    }
}

/// Distinct texts, numbered by first use.
struct Texts<'a> {
    text: &'a [u8],
    arena: &'a [u8],
    spans: Vec<Span>,
    ids: HashTable<(u64, i32)>,
    last: i32,
}

impl<'a> Texts<'a> {
    fn new(module: &'a Module) -> Self {
        let (text, arena) = (module.text(), &module.arena[..]);
        // A sixth of the rows has a name that no row before has; a guess that is too low costs little.
        let distinct = module.row_count() / 8;
        let ids = HashTable::with_capacity(distinct);
        Self { text, arena, spans: Vec::with_capacity(distinct), ids, last: -1 }
    }

    /// Room for few texts.
    fn few(module: &'a Module) -> Self {
        let (text, arena) = (module.text(), &module.arena[..]);
        Self { text, arena, spans: Vec::new(), ids: HashTable::new(), last: -1 }
    }

    fn id(&mut self, span: Span) -> i32 {
        let Self { text, arena, spans, ids, last } = self;
        let text_of = |id: i32| spans.get(id as usize).map(|span| bytes_of(text, arena, *span));
        let bytes = bytes_of(text, arena, span);
        let hash = hash_bytes(bytes);
        let same = |entry: &(u64, i32)| entry.0 == hash && text_of(entry.1) == Some(bytes);
        if let Some((_, id)) = ids.find(hash, same) {
            *last = *id;
            return *last;
        }
        let id = spans.len() as i32;
        ids.insert_unique(hash, (hash, id), |entry| entry.0);
        spans.push(span);
        *last = id;
        id
    }
}
