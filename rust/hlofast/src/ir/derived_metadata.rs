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
}

fn build(module: &Module) -> MetadataColumns {
    let rows = module.row_count();
    let mut columns = MetadataColumns {
        op_name: Vec::with_capacity(rows),
        source_file: Vec::with_capacity(rows),
        source_line: Vec::with_capacity(rows),
        ..MetadataColumns::default()
    };
    let frames = module.frame_tables();
    if !frames.is_empty() {
        columns.frame.reserve_exact(rows);
    }
    let mut op_names = Texts::new(module);
    let mut written_files = Texts::new(module);
    let mut files = Files::default();
    // The file of each text in `written_files`.
    let mut file_of: Vec<i32> = Vec::new();
    // The file of each name in the table of file names.
    let mut file_of_table: Vec<Option<i32>> = vec![None; frames.file_names.len()];
    let mut last_frame = (0, -1, 0);
    let text = module.text();
    let mut last_file = Span::EMPTY;
    for row in module.rows() {
        let facts = match module.metadata_start(row) {
            Some(start) => {
                let end = module.columns.tail_ends[row.0 as usize];
                let bytes = bytes_of(text, &module.arena, Span { start, end });
                read_printed(bytes, start, text, &mut last_file)
                    .unwrap_or_else(|| read_facts(bytes, start))
            }
            None => Facts::default(),
        };
        columns.op_name.push(facts.op_name.map_or(-1, |span| op_names.id(span)));
        let (file, line) = if let Some(span) = facts.source_file {
            let text = written_files.id(span) as usize;
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
        columns.source_file.push(file);
        columns.source_line.push(line);
        if !frames.is_empty() {
            columns.frame.push(line_number(facts.frame));
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

/// Reads the two forms that XLA prints most, without escapes: `{op_name="a" source_file="b"
/// source_line=1}` and `{op_name="a" stack_frame_id=1}`; None for any other.
fn read_printed(bytes: &[u8], base: u32, text: &[u8], last_file: &mut Span) -> Option<Facts> {
    const OP_NAME: &[u8] = b"{op_name=\"";
    const FILE: &[u8] = b" source_file=\"";
    let quoted = bytes.strip_prefix(OP_NAME)?;
    let length = memchr::memchr2(b'"', b'\\', quoted)?;
    let span = |start: usize, length: usize| Span::new(start, start + length).shifted(base);
    let mut facts = Facts { op_name: Some(span(OP_NAME.len(), length)), ..Facts::default() };
    let after = quoted.get(length..)?.strip_prefix(b"\"")?;
    if let Some(number) = after.strip_prefix(b" stack_frame_id=") {
        facts.frame = digits(number)?;
        return Some(facts);
    }
    let quoted = after.strip_prefix(FILE)?;
    // Neighbouring rows mostly share a file, so the end of the file name need not be searched.
    let known = text.get(last_file.range())?;
    let length =
        if !known.is_empty() && quoted.starts_with(known) && quoted.get(known.len()) == Some(&b'"')
        {
            known.len()
        } else {
            memchr::memchr2(b'"', b'\\', quoted)?
        };
    let start = bytes.len() - quoted.len();
    let file = span(start, length);
    let number = quoted.get(length..)?.strip_prefix(b"\" source_line=")?;
    facts.source_line = i32::try_from(digits(number)?).ok()?;
    facts.source_file = Some(file);
    if file.end as usize <= text.len() {
        *last_file = file;
    }
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
        Self { text, arena, spans: Vec::new(), ids: HashTable::new(), last: -1 }
    }

    fn id(&mut self, span: Span) -> i32 {
        let Self { text, arena, spans, ids, last } = self;
        let text_of = |id: i32| spans.get(id as usize).map(|span| bytes_of(text, arena, *span));
        let bytes = bytes_of(text, arena, span);
        // Neighbouring instructions often share their text.
        if text_of(*last) == Some(bytes) {
            return *last;
        }
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
