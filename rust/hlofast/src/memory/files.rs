//! XLA's own memory files, matched to their module: `-live-range.txt`, `-buffer-assignment.txt`,
//! `-memory-usage-report.txt`.
//!
//! A file does not name its module, so all its contents are checked against the module: names,
//! order, shapes and sizes. A mismatch is an error with its line.

use super::nodes::ShapeNodes;
use super::schedule::Steps;
use crate::ir::{Module, Opcode, Row, ShapeId};
use memchr::memmem;
use std::collections::BTreeSet;

/// The kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// The live range of every value.
    LiveRange,
    /// The allocation of every value.
    BufferAssignment,
    /// The sizes of values in every allocation.
    UsageReport,
}

impl FileKind {
    /// The name used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            FileKind::LiveRange => "live_range",
            FileKind::BufferAssignment => "buffer_assignment",
            FileKind::UsageReport => "memory_usage_report",
        }
    }
}

/// Why a file cannot be read, or belongs to another module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// The line, from 1; 0 for the file as a whole.
    pub line: u32,
    /// What is wrong.
    pub message: String,
}

impl std::fmt::Display for FileError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => formatter.write_str(&self.message),
            line => write!(formatter, "line {line}: {}", self.message),
        }
    }
}

impl std::error::Error for FileError {}

/// One value, or one line of a usage report. Figures that a kind of file lacks are -1 or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileRow {
    /// The instruction that defines the value.
    pub row: Option<Row>,
    /// The index of the value in its result.
    pub path: Vec<u32>,
    /// The number of the allocation that holds the value.
    pub allocation: i64,
    /// The purpose of the allocation: `parameter`, `constant`, `output`, `temporary` or `other`.
    pub kind: &'static str,
    /// Bytes of the value.
    pub bytes: i64,
    /// Whether `bytes` is exact; usage reports round.
    pub is_exact: bool,
    /// Offset in the allocation.
    pub offset: i64,
    /// First and last step of its live range.
    pub steps: (i64, i64),
    /// Whether the value is live at the file's peak.
    pub is_at_peak: bool,
    /// In a usage report: number of values that share the place.
    pub values: i64,
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XlaFile {
    /// The kind of file.
    pub kind: FileKind,
    /// Its rows, in the file's order.
    pub rows: Vec<FileRow>,
    /// Bytes of all allocations; None if the file does not say.
    pub total_bytes: Option<i64>,
    /// Bytes of the allocations in the default memory space, which on TPU is HBM.
    pub default_bytes: Option<i64>,
    /// The step that a live-range file calls the peak.
    pub peak_step: Option<u32>,
    /// Live bytes at that step, according to the file.
    pub peak_bytes: Option<i64>,
}

struct Reader<'a> {
    module: &'a Module,
    shapes: ShapeNodes,
    /// Opcodes and shapes of instructions that the text writes as part of asynchronous
    /// instructions.
    wrapped: Vec<(Opcode, ShapeId)>,
    line: u32,
}

type FileResult<T> = Result<T, FileError>;

/// Reads `text`, XLA's account of the memory of `module`.
pub fn read_file(module: &Module, text: &[u8]) -> FileResult<XlaFile> {
    let implicit = module.rows().filter(|row| module.is_implicit(*row));
    let wrapped: BTreeSet<_> =
        implicit.map(|row| (module.opcode(row), module.shape(row))).collect();
    let wrapped = wrapped.into_iter().collect();
    let mut reader = Reader { module, shapes: ShapeNodes::new(module), wrapped, line: 0 };
    let start = &text[..text.len().min(4096)];
    if memmem::find(start, b"HloLiveRange").is_some() {
        reader.live_range(text)
    } else if start.starts_with(b"BufferAssignment") {
        reader.buffer_assignment(text)
    } else if memmem::find(start, b"cumulative_size").is_some()
        || start.starts_with(b"Memory Space")
    {
        reader.usage_report(text)
    } else {
        Err(reader
            .error("not one of XLA's live-range, buffer-assignment or memory-usage-report files"))
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let numbered = (1u32..).zip(text.split(|byte| *byte == b'\n'));
    numbered.map(|(number, line)| (number, line.strip_suffix(b"\r").unwrap_or(line)))
}

fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().take(80).collect()
}

/// The number at the start of `text`, and the rest.
fn number(text: &[u8]) -> Option<(i64, &[u8])> {
    let length = text.iter().take(19).take_while(|byte| byte.is_ascii_digit()).count();
    let digits = std::str::from_utf8(text.get(..length)?).ok()?;
    Some((digits.parse().ok()?, text.get(length..)?))
}

fn after<'a>(text: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    text.get(memmem::find(text, word)? + word.len()..)
}

impl Reader<'_> {
    fn error(&self, message: impl Into<String>) -> FileError {
        FileError { line: self.line, message: message.into() }
    }

    fn foreign(&self, what: String) -> FileError {
        self.error(format!("{what}; the file belongs to another module"))
    }

    fn row(&self, name: &[u8]) -> FileResult<Row> {
        match self.module.find_instructions(name)[..] {
            [row] => Ok(Row(row)),
            [] => Err(self.foreign(format!("the module has no instruction {}", shown(name)))),
            _ => Err(self.error(format!("several instructions have the name {}", shown(name)))),
        }
    }

    /// `name{1,0}` or, with an empty path, `name`.
    fn value(&self, text: &[u8]) -> FileResult<(Row, Vec<u32>, ShapeId)> {
        let open = text.iter().position(|byte| *byte == b'{').unwrap_or(text.len());
        let (name, index) = text.split_at(open);
        let row = self.row(name)?;
        let mut path = Vec::new();
        let inside = index.strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}"));
        for digits in inside.unwrap_or_default().split(|byte| *byte == b',') {
            if digits.is_empty() {
                continue;
            }
            match number(digits) {
                Some((step, b"")) => path.push(step),
                _ => return Err(self.error(format!("not an index: {}", shown(index)))),
            }
        }
        let part = self.shapes.at_path(self.module, self.module.shape(row), &path);
        let Some((_, shape)) = part else {
            return Err(self.foreign(format!("the module has no value {}", shown(text))));
        };
        Ok((row, path.iter().map(|step| *step as u32).collect(), shape))
    }

    /// Whether `name` is an instruction that the text writes as part of an asynchronous
    /// instruction, as `slice` in `slice-start`. Such an instruction has a name in the file but not
    /// in the text.
    fn is_wrapped(&self, name: &[u8], shape_text: &[u8]) -> bool {
        if !self.module.find_instructions(name).is_empty() {
            return false;
        }
        let stem = name.split(|byte| *byte == b'.').next().unwrap_or_default();
        self.wrapped.iter().any(|(opcode, shape)| {
            opcode.as_str().as_bytes() == stem
                && self.module.shapes().array(*shape).is_some()
                && self.check_shape(*shape, shape_text, name).is_ok()
        })
    }

    /// Checks that `text` begins with `shape`, ignoring layouts.
    fn check_shape(&self, shape: ShapeId, text: &[u8], name: &[u8]) -> FileResult<()> {
        let shapes = self.module.shapes();
        let Some(array) = shapes.array(shape) else { return Ok(()) };
        let Some(open) = text.iter().position(|byte| *byte == b'[') else { return Ok(()) };
        let Some(close) = text.iter().position(|byte| *byte == b']') else { return Ok(()) };
        let sizes = text.get(open + 1..close).unwrap_or_default();
        let is_type =
            array.element_type.as_str().as_bytes() == text.get(..open).unwrap_or_default();
        let mut written = sizes.split(|byte| *byte == b',').filter(|size| !size.is_empty());
        let is_same = array.dimensions().all(|size| {
            let digits = written.next().map(|size| size.strip_prefix(b"<=").unwrap_or(size));
            digits.and_then(number).map(|(value, _)| value) == size.bound()
        });
        if is_type && is_same && written.next().is_none() {
            return Ok(());
        }
        let text = shown(text.get(..close + 1).unwrap_or_default());
        Err(self.foreign(format!("{} does not have the shape {text} in the module", shown(name))))
    }

    fn live_range(&mut self, text: &[u8]) -> FileResult<XlaFile> {
        #[derive(PartialEq)]
        enum Part {
            Start,
            Sequence,
            Ranges,
            Peak,
            Rest,
        }
        let steps = Steps::new(self.module, None);
        let mut part = Part::Start;
        let mut file = XlaFile::new(FileKind::LiveRange);
        let mut count = 0usize;
        let mut places: std::collections::HashMap<Vec<u8>, usize> = Default::default();
        let mut sum = 0i64;
        for (line, text) in lines(text) {
            self.line = line;
            let Some(entry) = text.strip_prefix(b"    ") else {
                part = match text.trim_ascii() {
                    b"" => continue,
                    b"InstructionSequence:" => Part::Sequence,
                    b"BufferLiveRange:" => Part::Ranges,
                    heading if heading.starts_with(b"Live ranges at ") => {
                        let step = after(heading, b"Live ranges at ").and_then(number);
                        file.peak_step = step.and_then(|(step, _)| u32::try_from(step).ok());
                        Part::Peak
                    }
                    _ if part == Part::Start => Part::Start,
                    _ => Part::Rest,
                };
                continue;
            };
            match part {
                Part::Sequence => {
                    let name = number(entry).and_then(|(_, rest)| rest.strip_prefix(b":"));
                    let Some(name) = name else {
                        return Err(self.error("expected a step and an instruction"));
                    };
                    let row = self.row(name)?;
                    match steps.rows.get(count) {
                        Some(own) if *own == row.0 => {}
                        Some(own) => {
                            let own = self.module.instruction_name(Row(*own));
                            let (listed, own) = (shown(name), shown(own));
                            let what = format!(
                                "step {count} is {listed} in the file and {own} in the module"
                            );
                            return Err(self.foreign(what));
                        }
                        None => {
                            return Err(
                                self.foreign("the file has more steps than the module".to_owned())
                            );
                        }
                    }
                    count += 1;
                }
                Part::Ranges => {
                    let Some(colon) = entry.iter().rposition(|byte| *byte == b':') else {
                        return Err(self.error("expected a value and its range"));
                    };
                    let (name, range) = entry.split_at(colon);
                    let range = number(&range[1..]).and_then(|(first, rest)| {
                        let (last, rest) = number(rest.strip_prefix(b"-")?)?;
                        rest.is_empty().then_some((first, last))
                    });
                    let Some((first, last)) = range else {
                        return Err(self.error("expected a range of steps"));
                    };
                    if first > last {
                        return Err(self.error("the range ends before it begins"));
                    }
                    if usize::try_from(last).is_ok_and(|last| last > steps.rows.len()) {
                        return Err(self.foreign(format!("the module has no step {last}")));
                    }
                    let (row, path, shape) = self.value(name)?;
                    places.insert(name.to_vec(), file.rows.len());
                    let bytes = self.module.shapes().array(shape).and_then(|a| a.logical_bytes());
                    let table =
                        self.module.shapes().tuple(shape).map(|parts| 8 * parts.len() as u64);
                    let bytes = bytes.or(table).and_then(|bytes| i64::try_from(bytes).ok());
                    file.rows.push(FileRow {
                        row: Some(row),
                        path,
                        bytes: bytes.unwrap_or(-1),
                        is_exact: bytes.is_some(),
                        steps: (first, last),
                        ..FileRow::none()
                    });
                }
                Part::Peak => {
                    let parts = memmem::rfind(entry, b"}: ").map(|at| entry.split_at(at + 1));
                    let Some((name, rest)) = parts else { continue };
                    let bytes = after(rest, b": ").and_then(number).map(|(value, _)| value);
                    let place = places.get(name).copied();
                    let (Some(bytes), Some(place)) = (bytes, place) else {
                        return Err(self.error("expected a value with a range and its bytes"));
                    };
                    let row = &mut file.rows[place];
                    let is_array = row.path.is_empty() || row.is_exact;
                    if is_array && row.bytes >= 0 && row.bytes != bytes {
                        let (name, own) = (shown(name), row.bytes);
                        let what =
                            format!("{name} has {bytes} bytes in the file and {own} in the module");
                        return Err(self.foreign(what));
                    }
                    (row.bytes, row.is_exact, row.is_at_peak) = (bytes, true, true);
                    sum = sum.saturating_add(bytes);
                }
                Part::Start | Part::Rest => {}
            }
        }
        self.line = 0;
        if count != steps.rows.len() {
            let what = format!("{count} steps in the file and {} in the module", steps.rows.len());
            return Err(self.foreign(what));
        }
        file.peak_bytes = file.peak_step.map(|_| sum);
        Ok(file)
    }

    fn buffer_assignment(&mut self, text: &[u8]) -> FileResult<XlaFile> {
        let mut file = XlaFile::new(FileKind::BufferAssignment);
        let mut allocation = None;
        let (mut sum, mut default) = (0i64, 0i64);
        for (line, text) in lines(text) {
            self.line = line;
            if let Some(rest) = text.strip_prefix(b"allocation ") {
                let parts = number(rest).and_then(|(index, rest)| {
                    let (size, rest) = number(rest.strip_prefix(b": size ")?)?;
                    Some((index, size, rest))
                });
                let Some((index, size, rest)) = parts else {
                    return Err(self.error("expected an allocation and its size"));
                };
                let has = |word: &[u8]| memmem::find(rest, word).is_some();
                let kind = if rest.starts_with(b", parameter ") {
                    "parameter"
                } else if rest.starts_with(b", constant") {
                    "constant"
                } else if has(b"maybe-live-out") {
                    "output"
                } else if has(b"preallocated-temp") {
                    "temporary"
                } else {
                    "other"
                };
                sum = sum
                    .checked_add(size)
                    .ok_or_else(|| self.error("the sizes add up to more than 64 bits hold"))?;
                let color = rest.strip_prefix(b", color ").and_then(number);
                if color.is_none_or(|(space, _)| space == 0) {
                    default += size;
                }
                allocation = Some((index, size, kind));
            } else if let Some(rest) = text.strip_prefix(b" value: <") {
                let Some((allocation, size, kind)) = allocation else {
                    return Err(self.error("a value outside any allocation"));
                };
                let row = self.assigned(rest, size)?;
                file.rows.push(FileRow { allocation, kind, ..row });
            } else if let Some(rest) = text.strip_prefix(b"Total bytes used: ") {
                file.total_bytes = number(rest).map(|(value, _)| value);
            } else if text.starts_with(b"Used values:") {
                break;
            }
        }
        self.line = 0;
        if allocation.is_none() {
            return Err(self.error("a buffer assignment without allocations"));
        }
        match file.total_bytes {
            Some(total) if total != sum => {
                let what = format!("allocations add up to {sum} bytes, not {total}");
                Err(self.error(what))
            }
            _ => Ok(XlaFile { total_bytes: Some(sum), default_bytes: Some(default), ..file }),
        }
    }

    /// `112 w.1 @0> (size=262144,offset=0): f32[4]{0}`.
    fn assigned(&self, text: &[u8], allocation: i64) -> FileResult<FileRow> {
        let expected = || self.error("expected a value with its size and offset");
        let close = memmem::find(text, b"> (size=").ok_or_else(expected)?;
        let (name, rest) = text.split_at(close);
        let mut words = name.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let name = words.nth(1).ok_or_else(expected)?;
        let (bytes, rest) = rest.get(8..).and_then(number).ok_or_else(expected)?;
        let rest = rest.strip_prefix(b",offset=").ok_or_else(expected)?;
        let (offset, rest) = number(rest).ok_or_else(expected)?;
        let end = bytes.checked_add(offset).filter(|end| *end <= allocation);
        if end.is_none() {
            return Err(self.error(format!("{} lies outside of its allocation", shown(name))));
        }
        let shape_text = rest.strip_prefix(b"): ").unwrap_or_default();
        if self.is_wrapped(name, shape_text) {
            return Ok(FileRow { bytes, is_exact: true, offset, ..FileRow::none() });
        }
        let (row, path, shape) = self.value(name)?;
        self.check_shape(shape, shape_text, name)?;
        Ok(FileRow { row: Some(row), path, bytes, is_exact: true, offset, ..FileRow::none() })
    }

    fn usage_report(&mut self, text: &[u8]) -> FileResult<XlaFile> {
        let mut file = XlaFile::new(FileKind::UsageReport);
        let mut allocation = -1i64;
        let own: Vec<Vec<u8>> = self.array_texts();
        let mut is_default = true;
        for (line, text) in lines(text) {
            self.line = line;
            if let Some(rest) = text.strip_prefix(b"Total bytes: ") {
                let total = number(rest).map(|(value, _)| value);
                file.total_bytes = match (file.total_bytes, total) {
                    (Some(sum), Some(total)) => sum.checked_add(total),
                    (sum, total) => total.or(sum),
                };
                if is_default {
                    file.default_bytes = total;
                }
            } else if text.starts_with(b"Memory Space: ") {
                is_default = memmem::find(text, b"(color=0)").is_some();
            } else if memmem::find(text, b"cumulative_size;").is_some() {
                allocation += 1;
            } else if text.iter().filter(|byte| **byte == b';').count() >= 4 {
                let mut cells = text.splitn(5, |byte| *byte == b';').map(<[u8]>::trim_ascii);
                let mut cell = || cells.next().unwrap_or_default();
                let (_, size, offset, values, shapes) = (cell(), cell(), cell(), cell(), cell());
                let whole = |text: &[u8]| number(text).map(|(value, _)| value);
                let (Some((bytes, is_exact)), Some(offset), Some(values)) =
                    (rounded(size), whole(offset), whole(values))
                else {
                    return Err(self.error("expected sizes, an offset and a count"));
                };
                for shape in shapes.split(|byte| *byte == b' ').filter(|word| !word.is_empty()) {
                    self.check_known(shape, &own)?;
                }
                file.rows.push(FileRow {
                    allocation,
                    kind: "other",
                    bytes,
                    is_exact,
                    offset,
                    values,
                    ..FileRow::none()
                });
            }
        }
        self.line = 0;
        if file.total_bytes.is_none() {
            return Err(self.error("a memory usage report without a total"));
        }
        Ok(file)
    }

    /// The array shapes of the module without layouts, sorted.
    fn array_texts(&self) -> Vec<Vec<u8>> {
        let shapes = self.module.shapes();
        let text = |id: ShapeId| {
            let array = shapes.array(id)?;
            let sizes: Vec<String> = array
                .dimensions()
                .map(|size| size.bound().map_or_else(|| "?".to_owned(), |size| size.to_string()))
                .collect();
            Some(format!("{}[{}]", array.element_type.as_str(), sizes.join(",")).into_bytes())
        };
        let mut texts: Vec<Vec<u8>> = shapes.ids().filter_map(text).collect();
        texts.sort_unstable();
        texts.dedup();
        texts
    }

    /// Checks that `3×f32[4,8],` is a shape of the module, ignoring parts of tuples.
    fn check_known(&self, word: &[u8], own: &[Vec<u8>]) -> FileResult<()> {
        let word = after(word, "×".as_bytes()).unwrap_or(word);
        let Some(close) = word.iter().position(|byte| *byte == b']') else { return Ok(()) };
        let shape = &word[..=close];
        let is_plain = shape.first().is_some_and(u8::is_ascii_lowercase) && !shape.contains(&b'<');
        if !is_plain || own.binary_search_by(|text| text.as_slice().cmp(shape)).is_ok() {
            return Ok(());
        }
        Err(self.foreign(format!("the module has no {}", shown(shape))))
    }
}

/// The bytes in `64.0KiB`, `1.25MiB` or `4B`, and whether they are exact.
fn rounded(text: &[u8]) -> Option<(i64, bool)> {
    let (whole, rest) = number(text)?;
    let (fraction, scale, rest) = match rest.strip_prefix(b".") {
        Some(rest) => {
            let digits = rest.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
            let (fraction, _) = number(rest.get(..digits)?)?;
            (fraction, 10i64.pow(digits as u32), rest.get(digits..)?)
        }
        None => (0, 1, rest),
    };
    let exponent = [&b"B"[..], b"KiB", b"MiB", b"GiB", b"TiB"];
    let power = exponent.iter().position(|unit| rest.starts_with(unit))?;
    let unit = 1i64 << (10 * power);
    let part = unit.checked_mul(fraction)? / scale;
    let bytes = whole.checked_mul(unit)?.checked_add(part)?;
    Some((bytes, power == 0))
}

impl XlaFile {
    fn new(kind: FileKind) -> Self {
        XlaFile {
            kind,
            rows: Vec::new(),
            total_bytes: None,
            default_bytes: None,
            peak_step: None,
            peak_bytes: None,
        }
    }
}

impl FileRow {
    fn none() -> Self {
        FileRow {
            allocation: -1,
            kind: "",
            bytes: -1,
            offset: -1,
            steps: (-1, -1),
            values: -1,
            ..FileRow::default()
        }
    }
}
