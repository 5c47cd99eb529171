//! Data derived from the columns, computed once on first use and kept in the module.

use super::ShapeInterner;
use super::attributes::KeysInUse;
use super::csr::Csr;
use super::decode::{Alias, HeaderValue, ShapeIndex, StackFrames, decode_header};
use super::derived_metadata::MetadataColumns;
use super::intern::hash_bytes;
use super::module::{Call, Computation, ComputationId, Flags, Module, Row};
use super::opcode::Opcode;
use super::row_set::RowSet;
use super::shape_text::parse_shape;
use super::size::{Backend, ShapeCost};
use crate::text::{Cursor, Span, is_identifier_byte};
use std::ops::Range;
use std::sync::OnceLock;

/// Lazily filled columns. Computing a column never calls into Python, so threads may race to
/// compute it.
#[derive(Debug, Default)]
pub struct Derived {
    users: OnceLock<Csr>,
    computation_of: OnceLock<Vec<u32>>,
    shape_bytes: OnceLock<Vec<i64>>,
    leaf_offsets: OnceLock<Vec<u64>>,
    names: OnceLock<Vec<(u32, u32)>>,
    computation_names: OnceLock<Vec<(u32, u32)>>,
    pub(super) callers: OnceLock<Csr>,
    pub(super) call_starts: OnceLock<Vec<u32>>,
    pub(super) calling: OnceLock<Calling>,
    numbers: OnceLock<Numbers>,
    aliases: OnceLock<Option<Vec<Alias>>>,
    parameters: OnceLock<Csr>,
    is_ordered: OnceLock<bool>,
    pub(super) post_order: OnceLock<Vec<ComputationId>>,
    pub(super) backend: OnceLock<Backend>,
    pub(super) shape_costs: OnceLock<Vec<ShapeCost>>,
    pub(super) element_types: OnceLock<Vec<u8>>,
    pub(super) ranks: OnceLock<Vec<i32>>,
    pub(super) elements: OnceLock<Vec<i64>>,
    pub(super) parameter_numbers: OnceLock<Vec<i64>>,
    pub(super) metadata: OnceLock<MetadataColumns>,
    pub(super) frames: OnceLock<StackFrames>,
    pub(super) keys: OnceLock<KeysInUse>,
}

impl Derived {
    /// Bytes held on the heap so far.
    pub fn heap_bytes(&self) -> usize {
        self.users.get().map_or(0, Csr::heap_bytes)
            + self.computation_of.get().map_or(0, |v| v.capacity() * 4)
            + self.shape_bytes.get().map_or(0, |v| v.capacity() * 8)
            + self.leaf_offsets.get().map_or(0, |v| v.capacity() * 8)
            + self.names.get().map_or(0, |v| v.capacity() * 8)
            + self.computation_names.get().map_or(0, |v| v.capacity() * 8)
            + self.callers.get().map_or(0, Csr::heap_bytes)
            + self.call_starts.get().map_or(0, |v| v.capacity() * 4)
            + self.calling.get().map_or(0, Calling::heap_bytes)
            + self.numbers.get().map_or(0, Numbers::heap_bytes)
            + self.aliases.get().and_then(Option::as_ref).map_or(0, alias_bytes)
            + self.post_order.get().map_or(0, |v| v.capacity() * 4)
            + self.shape_costs.get().map_or(0, |v| v.capacity() * size_of::<ShapeCost>())
            + self.parameters.get().map_or(0, Csr::heap_bytes)
            + self.element_types.get().map_or(0, Vec::capacity)
            + self.ranks.get().map_or(0, |v| v.capacity() * 4)
            + self.elements.get().map_or(0, |v| v.capacity() * 8)
            + self.parameter_numbers.get().map_or(0, |v| v.capacity() * 8)
            + self.metadata_heap_bytes()
    }
}

/// Bytes that `aliases` hold on the heap.
fn alias_bytes(aliases: &Vec<Alias>) -> usize {
    let heap = |index: &ShapeIndex| if index.spilled() { 8 * index.capacity() } else { 0 };
    let indices = |alias: &Alias| heap(&alias.output_index) + heap(&alias.index);
    aliases.capacity() * size_of::<Alias>() + aliases.iter().map(indices).sum::<usize>()
}

/// The rows that call computations.
#[derive(Debug)]
pub(super) struct Calling {
    rows: RowSet,
    /// By member of `rows`: where its calls start in the module's calls; then the number of calls.
    starts: Vec<u32>,
}

impl Calling {
    pub fn new(module: &Module) -> Self {
        let mut starts = Vec::new();
        let mut last = None;
        let first = |(at, call): (u32, &Call)| {
            let is_first = last.replace(call.row) != Some(call.row);
            is_first.then(|| {
                starts.push(at);
                call.row.0
            })
        };
        let rows = RowSet::new(module.row_count(), (0..).zip(&module.calls).filter_map(first));
        starts.push(module.calls.len() as u32);
        Self { rows, starts }
    }

    /// Where the calls of `row` are in the module's calls.
    #[inline]
    pub fn range(&self, row: Row) -> Option<Range<usize>> {
        let place = self.rows.place(row)?;
        Some(self.starts[place] as usize..self.starts[place + 1] as usize)
    }

    fn heap_bytes(&self) -> usize {
        self.rows.heap_bytes() + 4 * self.starts.capacity()
    }
}

/// The numbers of parameters, and the indices of get-tuple-elements.
#[derive(Debug)]
struct Numbers {
    /// By row; `UNNUMBERED` for other rows and numbers that cannot be read.
    rows: Vec<u32>,
    /// Whether every parameter has a number.
    is_complete: bool,
}

const UNNUMBERED: u32 = u32::MAX;
/// A number that only the text holds.
const LARGE_NUMBER: u32 = u32::MAX - 1;

impl Numbers {
    fn new(module: &Module) -> Self {
        let mut is_complete = true;
        let number = |row: Row| match module.opcode(row) {
            Opcode::Parameter => {
                let number = module.written_number(row);
                is_complete &= number.is_some();
                let small = |number| u32::try_from(number).unwrap_or(LARGE_NUMBER);
                number.map_or(UNNUMBERED, |number| small(number).min(LARGE_NUMBER))
            }
            Opcode::GetTupleElement => module.written_index(row).unwrap_or(UNNUMBERED),
            _ => UNNUMBERED,
        };
        Self { rows: module.rows().map(number).collect(), is_complete }
    }

    fn heap_bytes(&self) -> usize {
        4 * self.rows.capacity()
    }
}

impl Module {
    #[inline]
    pub(super) fn derived(&self) -> &Derived {
        self.derived.get_or_init(Box::default)
    }

    /// The users of each row, ascending, each once.
    pub fn users(&self) -> &Csr {
        self.derived().users.get_or_init(|| {
            Csr::transpose(&self.columns.operand_offsets, &self.columns.operands, self.row_count())
        })
    }

    /// The computation of each row.
    pub fn computation_column(&self) -> &[u32] {
        self.derived().computation_of.get_or_init(|| {
            let mut column = Vec::with_capacity(self.row_count());
            for (index, computation) in self.computations.iter().enumerate() {
                column.resize(computation.end_row as usize, index as u32);
            }
            column
        })
    }

    /// The computation of `row`; the last for a row that does not exist.
    #[inline]
    pub fn computation_of(&self, row: Row) -> ComputationId {
        let last = self.computations.len().saturating_sub(1) as u32;
        ComputationId(self.computation_column().get(row.0 as usize).copied().unwrap_or(last))
    }

    /// Unpadded bytes of each row's result; -1 where a dimension has no bound.
    pub fn shape_bytes_column(&self) -> &[i64] {
        self.derived().shape_bytes.get_or_init(|| {
            let by_shape = self.shapes.all_logical_bytes();
            self.columns.shapes.iter().map(|shape| by_shape[shape.0 as usize]).collect()
        })
    }

    /// Numbers all values densely: leaf `k` of row `r` is value `leaf_offsets()[r] + k`. One entry
    /// more than rows.
    pub fn leaf_offsets(&self) -> &[u64] {
        self.derived().leaf_offsets.get_or_init(|| {
            let mut offsets = Vec::with_capacity(self.row_count() + 1);
            let mut sum = 0u64;
            offsets.push(0);
            for shape in &self.columns.shapes {
                sum += u64::from(self.shapes.leaf_count(*shape));
                offsets.push(sum);
            }
            offsets
        })
    }

    /// (hash of the name, row), sorted.
    fn rows_by_name(&self) -> &[(u32, u32)] {
        self.derived().names.get_or_init(|| {
            let hash = |row: Row| name_hash(self.instruction_name(row));
            let mut rows: Vec<(u32, u32)> = self.rows().map(|row| (hash(row), row.0)).collect();
            rows.sort_unstable();
            rows
        })
    }

    /// The rows called `name` in any computation, in text order.
    pub fn find_instructions(&self, name: &[u8]) -> Vec<u32> {
        let hash = name_hash(name);
        let sorted = self.rows_by_name();
        let start = sorted.partition_point(|entry| entry.0 < hash);
        let same = sorted[start..].iter().take_while(|entry| entry.0 == hash);
        same.map(|entry| entry.1).filter(|row| self.instruction_name(Row(*row)) == name).collect()
    }

    /// The row called `name` in computation `id`.
    pub fn find_in_computation(&self, id: ComputationId, name: &[u8]) -> Option<Row> {
        let rows = self.computation(id).rows();
        let hash = name_hash(name);
        let sorted = self.rows_by_name();
        let start = sorted.partition_point(|entry| *entry < (hash, rows.start));
        let mut inside = sorted[start..]
            .iter()
            .take_while(|entry| entry.0 == hash && entry.1 < rows.end)
            .map(|entry| Row(entry.1));
        inside.find(|row| self.instruction_name(*row) == name)
    }

    /// The computation called `name`.
    pub fn find_computation(&self, name: &[u8]) -> Option<ComputationId> {
        let hash = name_hash(name);
        let sorted = self.derived().computation_names.get_or_init(|| {
            let hash = |c: &Computation| name_hash(self.bytes(c.name));
            let hashes = self.computations.iter().map(hash);
            let mut ids: Vec<(u32, u32)> = hashes.zip(0..).collect();
            ids.sort_unstable();
            ids
        });
        let start = sorted.partition_point(|entry| entry.0 < hash);
        let mut same = sorted[start..].iter().take_while(|entry| entry.0 == hash);
        let named = same.find(|entry| self.computation_name(ComputationId(entry.1)) == name);
        named.map(|entry| ComputationId(entry.1))
    }

    /// The opcode's text, and the text between the parentheses after it: the operand list, a
    /// parameter's number, or a constant's literal.
    pub fn opcode_and_payload(&self, row: Row) -> (Span, Span) {
        let name = self.name_span(row);
        let limit = self.columns.tail_starts[row.0 as usize];
        let text = self.text();
        let base = if limit as usize <= text.len() { 0 } else { text.len() as u32 };
        let bytes = if base == 0 { text } else { &self.arena[..] };
        let rest = Span { start: name.end - base, end: limit - base };
        let printed = bytes.get(rest.range()).and_then(|text| {
            let shape = self.bytes(self.shapes.text(self.shape(row)));
            opcode_after(text, shape).or_else(|| printed_opcode(text))
        });
        if let Some(opcode) = printed {
            let opcode = opcode.shifted(rest.start);
            let close = (limit - base) as usize - 1;
            let payload = Span::new(opcode.end as usize + 1, close.max(opcode.end as usize + 1));
            return (opcode.shifted(base), payload.shifted(base));
        }
        let mut cursor = Cursor::within(bytes, rest);
        let spans = (|| {
            cursor.eat(b':').ok()?;
            // A single instruction without a name is named after its opcode.
            let opcode = if cursor.eat(b'=').ok()? {
                skip_to_opcode(&mut cursor)?
            } else {
                Span { start: name.start - base, end: name.end - base }
            };
            cursor.skip_space().ok()?;
            let open = cursor.position();
            let close = (limit - base) as usize - 1;
            (open < close + 1).then(|| (opcode, Span::new(open + 1, close.max(open + 1))))
        })();
        let (opcode, payload) = spans.unwrap_or_default();
        (opcode.shifted(base), payload.shifted(base))
    }

    /// The opcode as the text writes it (sugar such as `all-to-all-start` included).
    pub fn opcode_text(&self, row: Row) -> &[u8] {
        let opcode = self.opcode(row);
        let is_plain = self.flags(row) & (Flags::SUGAR | Flags::IMPLICIT) == 0;
        if is_plain && opcode != Opcode::Unknown {
            return opcode.as_str().as_bytes();
        }
        self.bytes(self.opcode_and_payload(row).0)
    }

    /// The number of parameter `row`; None if `row` is not a parameter.
    #[inline]
    pub fn parameter_number(&self, row: Row) -> Option<u64> {
        if self.opcode(row) != Opcode::Parameter {
            return None;
        }
        match self.numbers().rows[row.0 as usize] {
            UNNUMBERED => None,
            LARGE_NUMBER => self.written_number(row)?.try_into().ok(),
            number => Some(number.into()),
        }
    }

    /// The index of get-tuple-element `row`; None for other opcodes or an unreadable index.
    #[inline]
    pub fn tuple_index(&self, row: Row) -> Option<usize> {
        if self.opcode(row) != Opcode::GetTupleElement {
            return None;
        }
        let index = self.numbers().rows[row.0 as usize];
        (index != UNNUMBERED).then_some(index as usize)
    }

    #[inline]
    fn numbers(&self) -> &Numbers {
        self.derived().numbers.get_or_init(|| Numbers::new(self))
    }

    /// Whether every parameter has a number, as in all texts but fragments.
    pub(crate) fn is_numbered(&self) -> bool {
        self.numbers().is_complete
    }

    /// The index in the text of get-tuple-element `row`.
    fn written_index(&self, row: Row) -> Option<u32> {
        let digits = match self.bytes(self.tail(row)).strip_prefix(b", index=") {
            Some(rest) => rest,
            None => self.attribute_bytes(row, "index")?,
        };
        let length = digits.iter().take(9).take_while(|b| b.is_ascii_digit()).count();
        let is_number = length > 0 && !digits.get(length).is_some_and(u8::is_ascii_digit);
        is_number.then(|| digits[..length].iter().fold(0, |n, b| n * 10 + u32::from(b - b'0')))
    }

    /// The number in the text of parameter `row`.
    fn written_number(&self, row: Row) -> Option<i64> {
        // The digits end right before the closing parenthesis, unless spaces or comments follow.
        let end = self.columns.tail_starts[row.0 as usize];
        let start = self.columns.name_starts[row.0 as usize];
        if let Some(before) = self.bytes(Span { start, end }).strip_suffix(b")") {
            let (mut number, mut factor) = (0, 1);
            for byte in before.iter().rev().take(18) {
                match byte {
                    b'0'..=b'9' => number += factor * i64::from(byte - b'0'),
                    b'(' if factor > 1 => return Some(number),
                    _ => break,
                }
                factor *= 10;
            }
        }
        let payload = self.opcode_and_payload(row).1;
        Cursor::new(self.bytes(payload)).integer().ok()?.filter(|number| *number >= 0)
    }

    /// The entries of `input_output_alias`: which results share memory with parameters. None if the
    /// header has none, or if they cannot be read.
    pub fn aliases(&self) -> Option<&[Alias]> {
        const KEY: &str = "input_output_alias";
        let read = || {
            let value = self.bytes(self.header_attribute(KEY)?);
            match decode_header(KEY.as_bytes(), value) {
                Ok(HeaderValue::Aliases(aliases)) => Some(aliases),
                _ => None,
            }
        };
        self.derived().aliases.get_or_init(read).as_deref()
    }

    /// Whether operands come before their users in the whole text, as in text that XLA prints.
    pub(crate) fn is_ordered(&self) -> bool {
        *self.derived().is_ordered.get_or_init(|| {
            let (offsets, operands) = (&self.columns.operand_offsets, &self.columns.operands);
            (0u32..).zip(offsets.windows(2)).all(|(row, range)| {
                let own = &operands[range[0] as usize..range[1] as usize];
                own.iter().all(|operand| *operand < row)
            })
        })
    }

    /// The parameter rows of computation `id`, ordered by parameter number.
    pub fn parameters(&self, id: ComputationId) -> Vec<Row> {
        self.parameter_rows(id).iter().map(|row| Row(*row)).collect()
    }

    /// The numbers of the parameter rows of computation `id`, ordered by parameter number.
    pub(crate) fn parameter_rows(&self, id: ComputationId) -> &[u32] {
        let known = self.derived().parameters.get_or_init(|| {
            let mut numbered: Vec<(u32, u64, u32)> = Vec::new();
            for (id, computation) in (0u32..).zip(&self.computations) {
                let first = numbered.len();
                let number = |row: u32| Some((id, self.parameter_number(Row(row))?, row));
                numbered.extend(computation.rows().filter_map(number));
                numbered[first..].sort_unstable();
            }
            let rows = numbered.into_iter().map(|(id, _, row)| (id, row));
            Csr::from_sorted(self.computations.len(), rows)
        });
        known.get(id.0)
    }
}

/// The opcode in ` = shape opcode(`, the printed form of a result that is an array; None for others.
fn printed_opcode(text: &[u8]) -> Option<Span> {
    const EQUALS: &[u8] = b" = ";
    let rest = text.strip_prefix(EQUALS)?;
    let (shape, rest) = rest.split_at(memchr::memchr(b' ', rest)?);
    let sizes = memchr::memchr(b'[', shape)?;
    let is_shape = shape[..sizes].iter().all(u8::is_ascii_alphanumeric)
        && matches!(shape.last(), Some(b']' | b'}'))
        && !shape.contains(&b'/');
    let word = rest.get(1..)?;
    let length = word.iter().take_while(|byte| is_identifier_byte(**byte)).count();
    let is_opcode = word.first()?.is_ascii_lowercase() && word.get(length) == Some(&b'(');
    let start = EQUALS.len() + shape.len() + 1;
    (is_shape && is_opcode).then(|| Span::new(start, start + length))
}

/// The opcode in ` = shape opcode(` for this shape; None if another text stands for the shape.
fn opcode_after(text: &[u8], shape: &[u8]) -> Option<Span> {
    const EQUALS: &[u8] = b" = ";
    let word = text.strip_prefix(EQUALS)?.strip_prefix(shape)?.strip_prefix(b" ")?;
    let length = word.iter().take_while(|byte| is_identifier_byte(**byte)).count();
    let is_opcode = word.first()?.is_ascii_lowercase() && word.get(length) == Some(&b'(');
    let start = EQUALS.len() + shape.len() + 1;
    is_opcode.then(|| Span::new(start, start + length))
}

/// A 32-bit hash of a name.
fn name_hash(name: &[u8]) -> u32 {
    (hash_bytes(name) >> 32) as u32
}

/// Skips an optional result shape and reads the opcode after it.
pub(crate) fn skip_to_opcode(cursor: &mut Cursor<'_>) -> Option<Span> {
    let mut has_shape = false;
    let start = cursor.position();
    loop {
        cursor.skip_space().ok()?;
        match cursor.peek() {
            b'(' | b'[' | b'{' => {
                if cursor.balanced().is_err() {
                    // XLA lets a layout leave parentheses open.
                    cursor.set_position(start);
                    parse_shape(cursor, &mut ShapeInterner::default()).ok()?;
                }
                has_shape = true;
            }
            _ => {
                let start = cursor.position();
                if cursor.identifier().is_empty() {
                    return None;
                }
                let word = cursor.span_since(start);
                let after = cursor.position();
                cursor.skip_space().ok()?;
                // The opcode is the word before a parenthesis, but `b(` starts a buffer.
                let is_shape = cursor.peek() != b'('
                    || (!has_shape
                        && word.len() == 1
                        && cursor.text()[start] == b'b'
                        && cursor.peek() == b'(');
                cursor.set_position(after);
                if !is_shape {
                    return Some(word);
                }
                has_shape = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_of_printed_arrays_are_found() {
        let opcode =
            |text: &'static str| printed_opcode(text.as_bytes()).map(|span| &text[span.range()]);
        for (text, expected) in [
            (" = f32[2,3]{1,0:T(8,128)S(1)} add(%a, %b)", "add"),
            (" = pred[] constant(true)", "constant"),
            (" = token[] after-all()", "after-all"),
        ] {
            assert_eq!(opcode(text), Some(expected), "{text}");
        }
        // Tuples, comments, shapes with spaces and results without a shape are read in full.
        for text in [
            " = (f32[2]{0}, s32[]) tuple(%a, %b)",
            " = f32[2]/*layout*/{0} add(%a, %b)",
            " = f32[2, 3]{1,0} add(%a, %b)",
            " = f32[2] {0} add(%a, %b)",
            " = add(f32[2]{0} %a, f32[2]{0} %b)",
            "= f32[2] add(%a, %b)",
            "",
        ] {
            assert_eq!(opcode(text), None, "{text}");
        }
    }

    #[test]
    fn opcodes_are_found_behind_the_text_of_the_shape() {
        let opcode = |text: &'static str, shape: &str| {
            opcode_after(text.as_bytes(), shape.as_bytes()).map(|span| &text[span.range()])
        };
        let tuple = "((f32[2]{0}), f32[1]{0}, u32[])";
        for (text, shape, expected) in [
            (" = ((f32[2]{0}), f32[1]{0}, u32[]) slice-start(%a)", tuple, Some("slice-start")),
            (" = f32[2, 3] add(%a, %b)", "f32[2, 3]", Some("add")),
            // Another text of the shape, a part of it, no shape, and another form.
            (" = ((f32[2]), f32[1], u32[]) slice-start(%a)", tuple, None),
            (" = f32[2]{0} add(%a, %b)", "f32[2]", None),
            (" = add(%a, %b)", "f32[2]", None),
            (" = f32[2] add (%a, %b)", "f32[2]", None),
        ] {
            assert_eq!(opcode(text, shape), expected, "{text}");
        }
    }
}
