//! The stack frame tables between the module header and the first computation.

use super::scan::{at_string, integer, invalid_since, key, string};
use crate::error::{ErrorKind, Result};
use crate::ir::module::{Header, Module};
use crate::text::{Cursor, Span};

/// Lines and columns of a location, as the table gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// First line.
    pub line: i64,
    /// Last line.
    pub end_line: i64,
    /// First column.
    pub column: i64,
    /// Last column.
    pub end_column: i64,
}

/// The four tables as columns. Identifiers are 1-based positions; the numbers that the text writes
/// before each entry are ignored, as in XLA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackFrames {
    /// Content of each file name.
    pub file_names: Vec<Vec<u8>>,
    /// Content of each function name.
    pub function_names: Vec<Vec<u8>>,
    /// Each location's file, 1-based.
    pub location_files: Vec<i64>,
    /// Each location's function, 1-based.
    pub location_functions: Vec<i64>,
    /// Each location's place in its file.
    pub location_positions: Vec<Positions>,
    /// Each frame's location, 1-based.
    pub frame_locations: Vec<i64>,
    /// Each frame's parent, 1-based, 0 for none. The text writes this number plus one.
    pub frame_parents: Vec<i64>,
}

impl StackFrames {
    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        let names = |names: &Vec<Vec<u8>>| {
            let content = names.iter().map(Vec::capacity).sum::<usize>();
            content + names.capacity() * size_of::<Vec<u8>>()
        };
        names(&self.file_names)
            + names(&self.function_names)
            + self.location_positions.capacity() * size_of::<Positions>()
            + (self.location_files.capacity()
                + self.location_functions.capacity()
                + self.frame_locations.capacity()
                + self.frame_parents.capacity())
                * size_of::<i64>()
    }
}

/// One resolved frame. Parts missing from the tables are empty or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'t> {
    /// File name.
    pub file: &'t [u8],
    /// Function name.
    pub function: &'t [u8],
    /// Lines and columns.
    pub positions: Positions,
}

/// Iterator over a frame and its parents, innermost first.
pub struct Frames<'t> {
    tables: &'t StackFrames,
    next: i64,
    /// Frames still allowed. A chain longer than the table contains a cycle.
    left: usize,
}

/// The entry with 1-based number `id`.
fn entry<T>(column: &[T], id: i64) -> Option<&T> {
    column.get(usize::try_from(id).ok()?.checked_sub(1)?)
}

/// The name that `location` refers to through the column `ids`.
fn name<'t>(names: &'t [Vec<u8>], ids: &[i64], location: i64) -> &'t [u8] {
    entry(ids, location).and_then(|id| entry(names, *id)).map_or(&[], Vec::as_slice)
}

impl StackFrames {
    /// The tables of `module`; empty columns if it has none.
    pub fn of_module(module: &Module) -> Result<Self> {
        Self::of_header(module.header(), |span| module.bytes(span))
    }

    /// Reads the tables of a header; `bytes` gives the text of a span.
    pub fn of_header<'a>(header: &Header, bytes: impl Fn(Span) -> &'a [u8]) -> Result<Self> {
        let mut tables = Self::default();
        if !header.has_tables {
            return Ok(tables);
        }
        tables.read_names(&bytes, header.file_names, false)?;
        tables.read_names(&bytes, header.function_names, true)?;
        // XLA prints an entry in no fewer bytes.
        const LOCATION: usize = 77;
        const FRAME: usize = 40;
        let locations = header.file_locations.range().len() / LOCATION + 1;
        tables.location_files.reserve_exact(locations);
        tables.location_functions.reserve_exact(locations);
        tables.location_positions.reserve_exact(locations);
        let frames = header.stack_frames.range().len() / FRAME + 1;
        tables.frame_locations.reserve_exact(frames);
        tables.frame_parents.reserve_exact(frames);
        entries(bytes(header.file_locations), header.file_locations, |cursor| {
            const KEYS: [&[u8]; 6] = [
                b"file_name_id",
                b"function_name_id",
                b"line",
                b"end_line",
                b"column",
                b"end_column",
            ];
            let [file, function, line, end_line, column, end_column] = fields(cursor, &KEYS)?;
            tables.location_files.push(file);
            tables.location_functions.push(function);
            tables.location_positions.push(Positions { line, end_line, column, end_column });
            Ok(())
        })?;
        entries(bytes(header.stack_frames), header.stack_frames, |cursor| {
            const KEYS: [&[u8]; 2] = [b"file_location_id", b"parent_frame_id"];
            let [location, parent] = fields(cursor, &KEYS)?;
            tables.frame_locations.push(location);
            tables.frame_parents.push(parent.saturating_sub(1));
            Ok(())
        })?;
        Ok(tables)
    }

    fn read_names<'a>(
        &mut self,
        bytes: &impl Fn(Span) -> &'a [u8],
        span: Span,
        functions: bool,
    ) -> Result<()> {
        let column = if functions { &mut self.function_names } else { &mut self.file_names };
        entries(bytes(span), span, |cursor| {
            // A function without a name gets an empty one.
            let unnamed = functions && !at_string(cursor)?;
            column.push(if unnamed { Vec::new() } else { string(cursor)?.into_owned() });
            Ok(())
        })
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.frame_locations.len()
    }

    /// Whether there is no frame.
    pub fn is_empty(&self) -> bool {
        self.frame_locations.is_empty()
    }

    /// Frame `id` and its parents, innermost first; empty for 0 and for numbers beyond the table.
    /// If the parents form a cycle, the iterator ends after as many frames as the table has.
    pub fn resolve(&self, id: i64) -> Frames<'_> {
        Frames { tables: self, next: id, left: self.len() }
    }

    /// The ids of frame `id` and its parents, innermost first; ends as [`resolve`](Self::resolve) does.
    pub fn stack(&self, id: i64) -> impl Iterator<Item = i64> + '_ {
        let parent = |id: &i64| entry(&self.frame_parents, *id).copied();
        let is_known = |id: &i64| entry(&self.frame_locations, *id).is_some();
        std::iter::successors(Some(id), parent).take_while(is_known).take(self.len())
    }

    /// The number of the function that frame `id` is in; 0 if unknown.
    pub fn function(&self, id: i64) -> i64 {
        let location = entry(&self.frame_locations, id).copied().unwrap_or(0);
        entry(&self.location_functions, location).copied().unwrap_or(0)
    }

    /// Frame `id` without its parents.
    pub fn frame(&self, id: i64) -> Option<Frame<'_>> {
        let location = *entry(&self.frame_locations, id)?;
        Some(Frame {
            file: name(&self.file_names, &self.location_files, location),
            function: name(&self.function_names, &self.location_functions, location),
            positions: entry(&self.location_positions, location).copied().unwrap_or_default(),
        })
    }

    /// Index and content of the file name of frame `id`, and its line; None without a file name.
    pub(crate) fn place(&self, id: i64) -> Option<(usize, &[u8], i64)> {
        let location = *entry(&self.frame_locations, id)?;
        let file = *entry(&self.location_files, location)?;
        let name = entry(&self.file_names, file).filter(|name| !name.is_empty())?;
        let positions = entry(&self.location_positions, location);
        Some((usize::try_from(file).ok()? - 1, name, positions.map_or(0, |own| own.line)))
    }

    /// Describes the first reference to an entry that does not exist. XLA drops such frames; a
    /// strict reader may report them.
    pub fn first_dangling(&self) -> Option<String> {
        let beyond = |id: i64, length: usize| id < 1 || id as u64 > length as u64;
        for (i, file) in self.location_files.iter().enumerate() {
            if beyond(*file, self.file_names.len()) {
                return Some(format!("location {} names file {file}", i + 1));
            }
        }
        for (i, function) in self.location_functions.iter().enumerate() {
            if beyond(*function, self.function_names.len()) {
                return Some(format!("location {} names function {function}", i + 1));
            }
        }
        for (i, (location, parent)) in
            self.frame_locations.iter().zip(&self.frame_parents).enumerate()
        {
            if beyond(*location, self.location_files.len()) {
                return Some(format!("frame {} names location {location}", i + 1));
            }
            if *parent != 0 && beyond(*parent, self.len()) {
                return Some(format!("frame {} names parent frame {parent}", i + 1));
            }
        }
        None
    }
}

impl<'t> Iterator for Frames<'t> {
    type Item = Frame<'t>;

    fn next(&mut self) -> Option<Frame<'t>> {
        self.left = self.left.checked_sub(1)?;
        let frame = self.tables.frame(self.next)?;
        self.next = entry(&self.tables.frame_parents, self.next).copied().unwrap_or(0);
        Some(frame)
    }
}

/// Reads `number entry` until the text ends. Spans of errors are relative to the module.
fn entries<'a>(
    text: &'a [u8],
    span: Span,
    mut entry: impl FnMut(&mut Cursor<'a>) -> Result<()>,
) -> Result<()> {
    let mut cursor = Cursor::new(text);
    let mut next_entry = |cursor: &mut Cursor<'a>| -> Result<bool> {
        cursor.skip_space()?;
        if cursor.is_at_end() {
            return Ok(false);
        }
        integer(cursor)?;
        entry(cursor)?;
        Ok(true)
    };
    loop {
        match next_entry(&mut cursor) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => return Err(error.shifted(span.start)),
        }
    }
}

/// Reads ` {key=1 key=2}` as XLA prints it; None, without a step, for any other spelling.
fn printed_fields<const N: usize>(cursor: &mut Cursor<'_>, keys: &[&[u8]; N]) -> Option<[i64; N]> {
    const MOST_DIGITS: usize = 18;
    let text = cursor.rest();
    let mut values = [0; N];
    let mut left = text.strip_prefix(b" {")?;
    for (index, (value, key)) in values.iter_mut().zip(keys).enumerate() {
        left = left.strip_prefix(*key)?.strip_prefix(b"=")?;
        let count = left.iter().take(MOST_DIGITS).take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, after) = left.split_at_checked(count).filter(|_| count > 0)?;
        *value = digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
        left = after.strip_prefix(if index + 1 < N { b" " } else { b"}" })?;
    }
    cursor.advance(text.len() - left.len());
    Some(values)
}

/// Reads `{key=1 key=2}` in any order, commas optional; every key is required once.
fn fields<const N: usize>(cursor: &mut Cursor<'_>, keys: &[&[u8]; N]) -> Result<[i64; N]> {
    if let Some(values) = printed_fields(cursor, keys) {
        return Ok(values);
    }
    let mut values: [Option<i64>; N] = [None; N];
    cursor.expect(b'{', "at the start of an entry")?;
    loop {
        while cursor.eat(b',')? {}
        if cursor.eat(b'}')? {
            break;
        }
        let start = cursor.position();
        let key = key(cursor)?;
        let slot = keys.iter().position(|known| *known == key).and_then(|i| values.get_mut(i));
        let value = integer(cursor)?;
        match slot {
            Some(slot @ None) => *slot = Some(value),
            Some(Some(_)) => {
                let message = "a field is given twice";
                return Err(invalid_since(cursor, start, ErrorKind::InvalidHeader, message));
            }
            None => {
                let message = "unknown field in the table";
                return Err(invalid_since(cursor, start, ErrorKind::InvalidHeader, message));
            }
        }
    }
    let mut result = [0; N];
    for ((result, value), key) in result.iter_mut().zip(values).zip(keys) {
        *result = value.ok_or_else(|| {
            let message = format!("{} is missing", String::from_utf8_lossy(key));
            super::scan::invalid(cursor, ErrorKind::InvalidHeader, &message)
        })?;
    }
    Ok(result)
}
