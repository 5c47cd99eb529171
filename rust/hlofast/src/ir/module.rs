//! The frozen module: columns over instruction rows, and the records around them.
//!
//! Rows are XLA's graph in text order: instructions that the text only implies (get-tuple-elements
//! of `%x#0`, wrapped computations of async sugar, nested operands) are rows flagged
//! `Flags::IMPLICIT`. Rows of one computation are contiguous. Nothing changes after `parse`.

use super::attributes::Attributes;
use super::derived::{Calling, Derived};
use super::opcode::Opcode;
use super::shape::{ShapeId, ShapeTable};
use crate::error::ParseError;
use crate::text::{Pieces, Source, Span, is_identifier_byte};
use std::ops::Range;
use std::sync::OnceLock;

/// The number of an instruction's row in its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Row(pub u32);

/// The number of a computation in its module, in text order. An implicit computation follows the
/// computation whose text implies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ComputationId(pub u32);

/// Facts about a row, as bits.
pub struct Flags;

impl Flags {
    /// The root of its computation (marked `ROOT`, or last).
    pub const ROOT: u8 = 1;
    /// Not an instruction of the text, but implied by it.
    pub const IMPLICIT: u8 = 2;
    /// The text omits the result shape, so the shape was inferred.
    pub const SHAPE_INFERRED: u8 = 4;
    /// The text has the short form of an asynchronous operation: `X-start`, `X-update` or `X-done`
    /// for an opcode `X` that has no such opcodes.
    pub const SUGAR: u8 = 8;
    /// The text marks the instruction as `ROOT`.
    pub const MARKED_ROOT: u8 = 16;
    /// The operand list holds something other than plain or typed names (nested instructions,
    /// `#` paths, empty slots).
    pub const FOLDED_OPERANDS: u8 = 32;
}

/// The attribute through which a caller names a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CallRole {
    /// `calls=`.
    Calls,
    /// `to_apply=`.
    ToApply,
    /// `condition=`.
    Condition,
    /// `body=`.
    Body,
    /// `select=`.
    Select,
    /// `scatter=`.
    Scatter,
    /// `true_computation=`.
    TrueComputation,
    /// `false_computation=`.
    FalseComputation,
    /// An element of `branch_computations={}`.
    Branch,
    /// An element of `called_computations={}`.
    Called,
    /// The implicit computation that async sugar wraps.
    Wrapped,
}

impl CallRole {
    /// The role that attribute `key` gives the computations it names.
    #[inline(always)]
    pub fn from_key(key: &[u8]) -> Option<CallRole> {
        Some(match key {
            b"calls" => CallRole::Calls,
            b"to_apply" => CallRole::ToApply,
            b"condition" => CallRole::Condition,
            b"body" => CallRole::Body,
            b"select" => CallRole::Select,
            b"scatter" => CallRole::Scatter,
            b"true_computation" => CallRole::TrueComputation,
            b"false_computation" => CallRole::FalseComputation,
            b"branch_computations" => CallRole::Branch,
            b"called_computations" => CallRole::Called,
            _ => return None,
        })
    }

    /// The attribute's name in HLO text.
    pub fn as_str(self) -> &'static str {
        match self {
            CallRole::Calls | CallRole::Wrapped => "calls",
            CallRole::ToApply => "to_apply",
            CallRole::Condition => "condition",
            CallRole::Body => "body",
            CallRole::Select => "select",
            CallRole::Scatter => "scatter",
            CallRole::TrueComputation => "true_computation",
            CallRole::FalseComputation => "false_computation",
            CallRole::Branch => "branch_computations",
            CallRole::Called => "called_computations",
        }
    }
}

/// One call edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The caller's row.
    pub row: Row,
    /// The callee.
    pub computation: ComputationId,
    /// The attribute that names it.
    pub role: CallRole,
}

/// A computation and its place in the text.
#[derive(Clone, Debug, Default)]
pub struct Computation {
    /// The name, without `%`. Empty for inline computations, whose name the arena holds instead.
    pub name: Span,
    /// From `ENTRY` or the name to the opening brace; empty for implicit ones.
    pub header: Span,
    /// `(parameters) -> shape`, empty in the short form.
    pub signature: Span,
    /// From the opening to the closing brace, both included; empty for implicit ones.
    pub body: Span,
    /// The text of `execution_thread=`, with its quotes; empty if absent.
    pub execution_thread: Span,
    /// Its first row.
    pub first_row: u32,
    /// One past its last row.
    pub end_row: u32,
    /// The row of its root.
    pub root: u32,
    /// The text marks the computation as `ENTRY`.
    pub is_marked_entry: bool,
    /// The text has the computation as a block in place of its name.
    pub is_inline: bool,
    /// The text implies the computation: async sugar wraps it.
    pub is_implicit: bool,
}

impl Computation {
    /// Its rows.
    #[inline]
    pub fn rows(&self) -> Range<u32> {
        self.first_row..self.end_row
    }
}

/// The `HloModule` line and the tables after it.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// The module's name; in the arena for headerless text.
    pub name: Span,
    /// From `HloModule` to the last header attribute; empty for headerless text.
    pub span: Span,
    /// Key and value of each header attribute, in text order.
    pub attributes: Vec<(Span, Span)>,
    /// The text of `FileNames`, without the keyword; all four spans are empty without tables.
    pub file_names: Span,
    /// The text of `FunctionNames`.
    pub function_names: Span,
    /// The text of `FileLocations`.
    pub file_locations: Span,
    /// The text of `StackFrames`.
    pub stack_frames: Span,
    /// Whether the tables are present.
    pub has_tables: bool,
}

/// What stands before the value of the attribute `metadata`.
pub(super) const METADATA: &str = "metadata=";

/// Value in `Columns::metadata_starts` for rows without metadata.
pub const NO_METADATA: u32 = u32::MAX;

/// Where the value of an attribute ends in the text, and what tells its key from most others, so that
/// looking for another key does not touch the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueEnd {
    /// One past the value.
    pub end: u32,
    /// Bytes of the key; `u16::MAX` stands for all greater lengths.
    pub key_length: u16,
    /// The first byte of the key.
    pub key_first: u8,
}

/// The columns, one entry per row. Public within the crate: analyses read them directly.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// Opcode of each row.
    pub opcodes: Vec<Opcode>,
    /// `Flags` bits of each row.
    pub flags: Vec<u8>,
    /// Result shape of each row.
    pub shapes: Vec<ShapeId>,
    /// Where the name starts (after `%`) in the module's bytes.
    pub name_starts: Vec<u32>,
    /// Length of the name; 255 means "read on while identifier bytes follow".
    pub name_lengths: Vec<u8>,
    /// Where the text after the operand list's closing parenthesis starts.
    pub tail_starts: Vec<u32>,
    /// Where the instruction's text ends.
    pub tail_ends: Vec<u32>,
    /// Where the value of the attribute `metadata` starts; `NO_METADATA` for rows without metadata.
    pub metadata_starts: Vec<u32>,
    /// Where the values of attributes end, for rows that were read from one line of the text. Finding
    /// them again would mean scanning the text again.
    pub value_ends: Vec<ValueEnd>,
    /// Offsets into `value_ends`; one entry more than rows. Rows of another form have no entries.
    pub value_offsets: Vec<u32>,
    /// Offsets into `operands`; one entry more than rows.
    pub operand_offsets: Vec<u32>,
    /// Operand rows of all rows, in order.
    pub operands: Vec<u32>,
}

impl Columns {
    /// Number of rows.
    #[inline]
    pub fn len(&self) -> usize {
        self.opcodes.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.opcodes.is_empty()
    }

    /// Where the attribute values of `row` end; empty if the row has none, or not one line.
    #[inline]
    pub(super) fn value_ends(&self, row: Row) -> &[ValueEnd] {
        let i = row.0 as usize;
        let range = self.value_offsets[i] as usize..self.value_offsets[i + 1] as usize;
        &self.value_ends[range]
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.opcodes.capacity()
            + self.flags.capacity()
            + self.name_lengths.capacity()
            + 4 * (self.shapes.capacity()
                + self.name_starts.capacity()
                + self.tail_starts.capacity()
                + self.tail_ends.capacity()
                + self.metadata_starts.capacity()
                + self.value_ends.capacity() * (size_of::<ValueEnd>() / 4)
                + self.value_offsets.capacity()
                + self.operand_offsets.capacity()
                + self.operands.capacity())
    }
}

/// What a text lacks that has pieces of a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    /// What the lines say.
    pub pieces: Pieces,
    /// Operands that no line defines; each is a placeholder, an implicit parameter without number.
    pub operands: u64,
    /// Computations that are called and missing.
    pub computations: u64,
    /// Instruction lines that could not be read.
    pub unread: u64,
}

/// A parsed module.
#[derive(Debug)]
pub struct Module {
    pub(crate) source: Source,
    pub(crate) arena: Vec<u8>,
    pub(crate) header: Header,
    pub(crate) computations: Vec<Computation>,
    pub(crate) entry: ComputationId,
    pub(crate) columns: Columns,
    /// Sorted by row; the calls of one row are in text order.
    pub(crate) calls: Vec<Call>,
    /// (row, predecessor), sorted by row.
    pub(crate) control_predecessors: Vec<(Row, Row)>,
    pub(crate) shapes: ShapeTable,
    pub(crate) errors: Vec<ParseError>,
    /// Set if the text has pieces of a module.
    pub(crate) fragment: Option<Fragment>,
    /// Allocated on first use, which keeps small modules small.
    pub(crate) derived: OnceLock<Box<Derived>>,
}

impl Module {
    /// The source that the module was read from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The module's source text.
    #[inline]
    pub fn text(&self) -> &[u8] {
        self.source.bytes()
    }

    /// The bytes of `span`: of the source text, or of the arena after it.
    #[inline]
    pub fn bytes(&self, span: Span) -> &[u8] {
        bytes_of(self.text(), &self.arena, span)
    }

    /// What is missing, if the text has pieces of a module instead of a module.
    pub fn fragment(&self) -> Option<Fragment> {
        self.fragment
    }

    /// Whether `row` stands for an operand that no line of a fragment defines.
    pub fn is_placeholder(&self, row: Row) -> bool {
        self.fragment.is_some()
            && self.is_implicit(row)
            && self.opcode(row) == Opcode::Parameter
            && self.parameter_number(row).is_none()
    }

    /// The module's name.
    pub fn name(&self) -> &[u8] {
        self.bytes(self.header.name)
    }

    /// Header and tables.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The raw value of a header attribute.
    pub fn header_attribute(&self, key: &str) -> Option<Span> {
        let attribute =
            self.header.attributes.iter().find(|(k, _)| self.bytes(*k) == key.as_bytes());
        attribute.map(|(_, value)| *value)
    }

    /// Whether text order is the schedule (`is_scheduled=true`).
    pub fn is_scheduled(&self) -> bool {
        self.header_attribute("is_scheduled").is_some_and(|value| self.bytes(value) == b"true")
    }

    fn header_count(&self, key: &str) -> Option<i64> {
        let Some(span) = self.header_attribute(key) else { return Some(1) };
        std::str::from_utf8(self.bytes(span)).ok()?.trim().parse().ok()
    }

    /// `num_partitions`, 1 if absent; None if it is not a 64-bit integer.
    pub fn num_partitions(&self) -> Option<i64> {
        self.header_count("num_partitions")
    }

    /// `replica_count`, 1 if absent; None if it is not a 64-bit integer.
    pub fn replica_count(&self) -> Option<i64> {
        self.header_count("replica_count")
    }

    /// The computations in text order.
    pub fn computations(&self) -> &[Computation] {
        &self.computations
    }

    /// Computation `id`.
    #[inline]
    pub fn computation(&self, id: ComputationId) -> &Computation {
        &self.computations[id.0 as usize]
    }

    /// The name of computation `id`.
    pub fn computation_name(&self, id: ComputationId) -> &[u8] {
        self.bytes(self.computation(id).name)
    }

    /// The entry computation: the computation marked `ENTRY`, otherwise the last in the text.
    pub fn entry(&self) -> ComputationId {
        self.entry
    }

    /// The columns.
    #[inline]
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Number of rows, implicit ones included.
    pub fn row_count(&self) -> usize {
        self.columns.len()
    }

    /// All rows.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Row> + DoubleEndedIterator {
        (0..self.columns.len() as u32).map(Row)
    }

    /// Opcode of `row` (`Unknown` if it is not in the table; see `opcode_text`).
    #[inline]
    pub fn opcode(&self, row: Row) -> Opcode {
        self.columns.opcodes[row.0 as usize]
    }

    /// `Flags` bits of `row`.
    #[inline]
    pub fn flags(&self, row: Row) -> u8 {
        self.columns.flags[row.0 as usize]
    }

    /// Whether `row` is only implied by the text.
    pub fn is_implicit(&self, row: Row) -> bool {
        self.flags(row) & Flags::IMPLICIT != 0
    }

    /// Result shape of `row`.
    #[inline]
    pub fn shape(&self, row: Row) -> ShapeId {
        self.columns.shapes[row.0 as usize]
    }

    /// The shape table.
    #[inline]
    pub fn shapes(&self) -> &ShapeTable {
        &self.shapes
    }

    /// The span of `row`'s name, without `%`.
    #[inline]
    pub fn name_span(&self, row: Row) -> Span {
        let start = self.columns.name_starts[row.0 as usize] as usize;
        let length = self.columns.name_lengths[row.0 as usize] as usize;
        if length < 255 {
            return Span::new(start, start + length);
        }
        let from = Span::new(start, self.columns.tail_starts[row.0 as usize] as usize);
        let inside = |b: &u8| is_identifier_byte(*b) || *b == b'#';
        let length = self.bytes(from).iter().take_while(|b| inside(b)).count();
        Span::new(start, start + length)
    }

    /// The name of `row`.
    #[inline]
    pub fn instruction_name(&self, row: Row) -> &[u8] {
        self.bytes(self.name_span(row))
    }

    /// Operand rows of `row`.
    #[inline]
    pub fn operands(&self, row: Row) -> &[u32] {
        let offsets = &self.columns.operand_offsets;
        let i = row.0 as usize;
        &self.columns.operands[offsets[i] as usize..offsets[i + 1] as usize]
    }

    /// The number of operands of all of `rows`.
    pub(crate) fn operand_count(&self, rows: Range<u32>) -> usize {
        let at = |row: u32| self.columns.operand_offsets[row as usize] as usize;
        at(rows.end).saturating_sub(at(rows.start))
    }

    /// The call edges of `row`, in text order.
    #[inline]
    pub fn calls(&self, row: Row) -> &[Call] {
        super::work::count(1);
        let calling = self.derived().calling.get_or_init(|| Calling::new(self));
        calling.range(row).map_or(&[], |range| &self.calls[range])
    }

    /// All call edges, sorted by caller.
    pub fn all_calls(&self) -> &[Call] {
        &self.calls
    }

    /// The computation that `row` calls in `role`.
    #[inline]
    pub fn called(&self, row: Row, role: CallRole) -> Option<ComputationId> {
        self.calls(row).iter().find(|call| call.role == role).map(|call| call.computation)
    }

    /// (row, control predecessor) pairs, sorted by row.
    pub fn control_predecessors(&self) -> &[(Row, Row)] {
        &self.control_predecessors
    }

    /// The text between the operand list's closing parenthesis and the instruction's end.
    #[inline]
    pub fn tail(&self, row: Row) -> Span {
        let i = row.0 as usize;
        Span { start: self.columns.tail_starts[i], end: self.columns.tail_ends[i] }
    }

    /// The attributes of `row` in text order.
    pub fn attributes(&self, row: Row) -> Attributes<'_> {
        Attributes::of_row(self, row)
    }

    /// The raw value of attribute `key` of `row`.
    #[inline]
    pub fn attribute(&self, row: Row, key: &str) -> Option<Span> {
        // Most rows have metadata or nothing.
        if self.tail(row).is_empty()
            || key != "metadata" && self.has_only_metadata(row)
            || !self.may_have(key)
        {
            return None;
        }
        self.written_attribute(row, key)
    }

    fn written_attribute(&self, row: Row, key: &str) -> Option<Span> {
        let ends = self.columns.value_ends(row);
        let tail = self.tail(row);
        if ends.is_empty() || self.flags(row) & Flags::SUGAR != 0 {
            let mut attributes = self.attributes(row);
            return attributes.find(|a| self.bytes(a.key) == key.as_bytes()).map(|a| a.value);
        }
        // A line in the printed form: `, key=value, key=value`.
        let (first, length) = (key.bytes().next()?, key.len().min(u16::MAX.into()) as u16);
        let mut start = tail.start as usize + 2;
        for known in ends {
            if known.key_length == length
                && known.key_first == first
                && let Some(rest) = self.text()[start..].strip_prefix(key.as_bytes())
                && rest.first() == Some(&b'=')
            {
                let value = start + key.len() + 1;
                return Some(Span::new(value, known.end.min(tail.end) as usize));
            }
            start = known.end as usize + 2;
        }
        None
    }

    /// The bytes of attribute `key` of `row`.
    pub fn attribute_bytes(&self, row: Row, key: &str) -> Option<&[u8]> {
        self.attribute(row, key).map(|span| self.bytes(span))
    }

    /// Faults found while reading (only filled when errors are collected).
    pub fn errors(&self) -> &[ParseError] {
        &self.errors
    }

    /// The number of instructions in the text; implicit rows do not count.
    pub fn instruction_count(&self) -> usize {
        self.columns.flags.iter().filter(|flags| **flags & Flags::IMPLICIT == 0).count()
    }

    /// The number of computations in the text; implicit computations do not count.
    pub fn computation_count(&self) -> usize {
        self.computations.iter().filter(|computation| !computation.is_implicit).count()
    }

    /// Bytes held besides the text: columns, tables, arena and the data derived so far.
    pub fn heap_bytes(&self) -> usize {
        size_of::<Self>()
            + self.arena.capacity()
            + self.computations.capacity() * size_of::<Computation>()
            + self.columns.heap_bytes()
            + self.calls.capacity() * size_of::<Call>()
            + self.control_predecessors.capacity() * size_of::<(Row, Row)>()
            + self.shapes.heap_bytes()
            + self.header.attributes.capacity() * size_of::<(Span, Span)>()
            + self.derived.get().map_or(0, |derived| size_of::<Derived>() + derived.heap_bytes())
    }
}

/// The bytes of `span` in a text followed by an arena.
#[inline]
pub(crate) fn bytes_of<'a>(text: &'a [u8], arena: &'a [u8], span: Span) -> &'a [u8] {
    let range = span.range();
    if range.end <= text.len() {
        return &text[range];
    }
    let base = text.len();
    arena.get(range.start.wrapping_sub(base)..range.end - base).unwrap_or_default()
}
