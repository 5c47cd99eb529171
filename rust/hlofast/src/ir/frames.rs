//! The stack-frame tables after the module header, read when someone asks.

use super::module::{Module, bytes_of};
use crate::text::{Cursor, Span};

/// Where an instruction comes from, as one entry of `FileLocations`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// 1-based position in `FileNames`; 0 if absent.
    pub file: u32,
    /// 1-based position in `FunctionNames`; 0 if absent.
    pub function: u32,
    /// First line.
    pub line: i32,
    /// Last line.
    pub end_line: i32,
    /// First column.
    pub column: i32,
    /// Last column.
    pub end_column: i32,
}

/// One frame of a call stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// 1-based position in `FileLocations`; 0 if absent.
    pub location: u32,
    /// 1-based position of the calling frame; 0 at the outermost.
    pub parent: u32,
}

/// The four tables. Ids are positions that count from 1; the numbers in the text are ignored, as
/// XLA ignores them.
#[derive(Clone, Debug, Default)]
pub struct FrameTables {
    /// File names, without their quotes and still escaped.
    pub file_names: Vec<Span>,
    /// Function names, without their quotes and still escaped.
    pub function_names: Vec<Span>,
    /// Places in files.
    pub locations: Vec<Location>,
    /// Frames.
    pub frames: Vec<Frame>,
}

impl FrameTables {
    /// Reads the tables that `module`'s header delimits. Entries that cannot be read end their
    /// table.
    pub(super) fn of(module: &Module) -> Self {
        let header = module.header();
        let mut tables = Self::default();
        if !header.has_tables {
            return tables;
        }
        tables.file_names = strings(module, header.file_names);
        tables.function_names = strings(module, header.function_names);
        for fields in records(module, header.file_locations) {
            let number = |key: &[u8]| fields.iter().find(|(k, _)| *k == key).map_or(0, |(_, v)| *v);
            tables.locations.push(Location {
                file: id(number(b"file_name_id")),
                function: id(number(b"function_name_id")),
                line: line(number(b"line")),
                end_line: line(number(b"end_line")),
                column: line(number(b"column")),
                end_column: line(number(b"end_column")),
            });
        }
        for fields in records(module, header.stack_frames) {
            let number = |key: &[u8]| fields.iter().find(|(k, _)| *k == key).map_or(0, |(_, v)| *v);
            // XLA prints the parent's number plus one.
            let parent = id(number(b"parent_frame_id")).saturating_sub(1);
            tables.frames.push(Frame { location: id(number(b"file_location_id")), parent });
        }
        tables
    }

    /// The location of frame `id` (1-based).
    pub fn location(&self, id: u32) -> Option<&Location> {
        let frame = self.frame(id)?;
        self.locations.get((frame.location as usize).checked_sub(1)?)
    }

    /// Frame `id` (1-based).
    pub fn frame(&self, id: u32) -> Option<&Frame> {
        self.frames.get((id as usize).checked_sub(1)?)
    }

    /// Frame `id` and its callers, innermost first. Ends where a frame comes up again.
    pub fn stack(&self, id: u32) -> Vec<u32> {
        let mut stack = Vec::new();
        let mut next = id;
        while let Some(frame) = self.frame(next) {
            if stack.len() == self.frames.len() {
                break;
            }
            stack.push(next);
            next = frame.parent;
        }
        stack
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        (self.file_names.capacity() + self.function_names.capacity() + self.frames.capacity()) * 8
            + self.locations.capacity() * size_of::<Location>()
    }
}

fn id(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn line(value: i64) -> i32 {
    i32::try_from(value).unwrap_or(0)
}

/// The strings of `1 "a" 2 "b"`, without quotes.
fn strings(module: &Module, table: Span) -> Vec<Span> {
    let mut found = Vec::new();
    let mut cursor = Cursor::new(bytes_of(module.text(), &[], table));
    while cursor.skip_space().is_ok() && matches!(cursor.integer(), Ok(Some(_))) {
        if cursor.skip_space().is_err() || cursor.peek() != b'"' {
            break;
        }
        let Ok(quoted) = cursor.string() else { break };
        let inner = Span { start: quoted.start + 1, end: quoted.end - 1 };
        found.push(inner.shifted(table.start));
    }
    found
}

/// The fields of `1 {a=1 b=2} 2 {...}`.
fn records<'a>(module: &'a Module, table: Span) -> Vec<Vec<(&'a [u8], i64)>> {
    let mut found = Vec::new();
    let mut cursor = Cursor::new(bytes_of(module.text(), &[], table));
    while cursor.skip_space().is_ok() && matches!(cursor.integer(), Ok(Some(_))) {
        let Some(fields) = record(&mut cursor) else { break };
        found.push(fields);
    }
    found
}

fn record<'a>(cursor: &mut Cursor<'a>) -> Option<Vec<(&'a [u8], i64)>> {
    let mut fields = Vec::with_capacity(6);
    cursor.eat(b'{').ok()?.then_some(())?;
    loop {
        while cursor.eat(b',').ok()? {}
        if cursor.eat(b'}').ok()? {
            return Some(fields);
        }
        cursor.skip_space().ok()?;
        let key = cursor.identifier();
        if key.is_empty() || !cursor.eat(b'=').ok()? {
            return None;
        }
        fields.push((key, cursor.integer().ok()??));
    }
}
