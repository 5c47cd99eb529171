//! The fast path: one instruction per line, in the form XLA prints.
//!
//! ```text
//!   ROOT %add.3 = f32[2]{0} add(f32[2]{0} %x, f32[2]{0} %y), metadata={op_name="a"}
//! ```
//! The masks of the line mark the ends of identifiers, strings and brackets, so that no byte is
//! examined twice. Anything not in this form is left unread for the general path (`instruction`),
//! which reads the whole language; both produce equal rows.

#![allow(unsafe_code, reason = "calls kernels whose CPU features were detected")]

use super::instruction::{Form, opcode_of};
use super::masked_line::MaskedLine;
use super::names::equal;
use super::reader::Reader;
use crate::error::Result;
use crate::ir::module::{NO_METADATA, ValueEnd};
use crate::ir::{CallRole, Flags, Opcode};
use crate::text::Span;
use crate::text::kernel::{Kernel, LineMasks, NOT_IDENTIFIER, OUTSIDE, SPACE};
use crate::text::{is_identifier_byte, is_identifier_start};
use std::ops::Range;

/// The length from which operand lists count as long.
const MANY: usize = 8;

/// The outcome of reading a line.
pub(super) enum Line {
    /// A row was appended; the next line starts here.
    Read(usize),
    /// The line is not in the printed form; nothing was appended.
    Other,
}

impl Reader<'_> {
    /// Reads the instruction that starts at `start` (after indentation).
    ///
    /// # Safety
    /// The CPU must have the features of `K`.
    #[inline(always)]
    pub(super) unsafe fn line<K: Kernel>(
        &mut self,
        start: usize,
        masks: &mut LineMasks,
    ) -> Result<Line> {
        // SAFETY: the caller guarantees the features.
        let closed = unsafe { masks.scan::<K>(self.text, start) };
        if self.scope.is_large() {
            self.prefetch_name::<K>(start + masks.length + 1);
        }
        let result = if closed { self.scanned_line::<K>(start, masks) } else { Ok(Line::Other) };
        if matches!(result, Ok(Line::Other)) {
            self.general_until = start + masks.length;
        }
        result
    }

    /// Prefetches the hash slot of the name that the line at `start` defines, while the previous
    /// line is read. In a table of megabytes, every new name is a cache miss.
    #[inline(always)]
    fn prefetch_name<K: Kernel>(&self, start: usize) {
        let Some(rest) = self.text.get(start..) else { return };
        let indent = rest.iter().take(4).take_while(|b| matches!(b, b' ' | b'%')).count();
        let length = rest[indent..].iter().take(40).take_while(|b| is_identifier_byte(**b)).count();
        let hash = self.keys.hash(self.text, start + indent, length);
        if let Some(slot) = self.scope.slot(hash) {
            K::prefetch(slot);
        }
    }

    #[inline(always)]
    fn scanned_line<K: Kernel>(&mut self, start: usize, masks: &LineMasks) -> Result<Line> {
        let Some(line) = self.text.get(start..start + masks.length) else { return Ok(Line::Other) };
        let masked = MaskedLine { line, masks };
        if masks.has_special && !masked.has_only_harmless_specials() {
            return Ok(Line::Other);
        }
        // ROOT %name = shape opcode(
        let mut at = 0;
        let is_root = line.starts_with(b"ROOT ");
        at += 5 * usize::from(is_root);
        at += usize::from(masked.byte(at) == b'%');
        let name = at;
        let name_end = masks.next::<NOT_IDENTIFIER>(name);
        if !is_identifier_start(masked.byte(name))
            || line.get(name_end..name_end + 3) != Some(b" = ")
        {
            return Ok(Line::Other);
        }
        // The name is inserted last, so its slot can be fetched in the meantime.
        let hash = self.keys.hash(self.text, start + name, name_end - name);
        if let Some(slot) = self.scope.slot(hash) {
            K::prefetch(slot);
        }
        let shape_start = name_end + 3;
        let shape_end = if masked.byte(shape_start) == b'(' {
            match masked.closing(shape_start) {
                Some(end) => end + 1,
                None => return Ok(Line::Other),
            }
        } else {
            masks.next::<SPACE>(shape_start)
        };
        let word = shape_end + 1;
        let open = masks.next::<NOT_IDENTIFIER>(word.min(line.len()));
        if masked.byte(shape_end) != b' ' || masked.byte(open) != b'(' {
            return Ok(Line::Other);
        }
        let (opcode, flags) = match Opcode::from_text(line, word, open) {
            Some(opcode) => (opcode, 0),
            None => match opcode_of(&line[word..open]) {
                // Sugar that does not wrap a new computation.
                (opcode @ (Opcode::AsyncDone | Opcode::AsyncUpdate), Form::Sugar(_)) => {
                    (opcode, Flags::SUGAR)
                }
                _ => return Ok(Line::Other),
            },
        };
        let Some(shape) = self.shape_of_text(start + shape_start, start + shape_end) else {
            return Ok(Line::Other);
        };
        let first_operand = self.columns.operands.len();
        let first_pending = self.pending.len();
        let first_call = self.calls.len();
        let first_pending_call = self.pending_calls.len();
        let first_parameter = self.parameters.len();
        let first_value = self.columns.value_ends.len();
        let read = self.operands_and_tail(start, &masked, opcode, flags == 0, open);
        let accepted = match read {
            Some(_) => opcode.arity().accepts(self.columns.operands.len() - first_operand),
            None => false,
        };
        if !accepted {
            self.columns.operands.truncate(first_operand);
            self.pending.truncate(first_pending);
            self.calls.truncate(first_call);
            self.pending_calls.truncate(first_pending_call);
            self.parameters.truncate(first_parameter);
            self.columns.value_ends.truncate(first_value);
            return Ok(Line::Other);
        }
        let (tail, metadata) = read.unwrap_or((line.len(), NO_METADATA));
        self.define_hashed((start + name, name_end - name), hash)?;
        let row = self.next_row();
        let mut end = line.len();
        while end > tail && matches!(line[end - 1], b' ' | b'\r' | b'\t') {
            end -= 1;
        }
        self.push_row(
            opcode,
            flags,
            shape,
            (start + name, name_end - name),
            Span::new(start + tail, start + end),
            metadata,
        );
        if is_root {
            self.mark_root(row, Span::new(start, start + 4))?;
        }
        Ok(Line::Read(start + masks.length))
    }

    /// Reads from the opening parenthesis at `open` to the end of the line. Returns the start of
    /// the text after the closing parenthesis, and the start of the metadata.
    #[inline(always)]
    fn operands_and_tail(
        &mut self,
        start: usize,
        masked: &MaskedLine<'_, '_>,
        opcode: Opcode,
        plain: bool,
        open: usize,
    ) -> Option<(usize, u32)> {
        let close = match opcode {
            Opcode::Constant => masked.closing(open)?,
            Opcode::Parameter => {
                let end = masked.masks.next::<NOT_IDENTIFIER>(open + 1);
                let number = parameter_number(masked.line.get(open + 1..end)?)?;
                if masked.byte(end) != b')' {
                    return None;
                }
                self.parameters.push((number, self.next_row()));
                end
            }
            _ => self.operand_list(start, masked, open)?,
        };
        let metadata = self.tail(start, masked, opcode.may_call() && plain, close + 1)?;
        self.ends_here(start + masked.line.len()).then_some((close + 1, metadata))
    }

    /// The end of the tuple type at `at`. Old dumps repeat a tuple's whole type in each of its
    /// get-tuple-elements, so the type is compared with the last few types before its brackets are
    /// matched.
    #[inline(always)]
    fn tuple_type_end(
        &mut self,
        start: usize,
        masked: &MaskedLine<'_, '_>,
        at: usize,
    ) -> Option<usize> {
        for index in 0..self.tuple_types.len() {
            let (known, length) = self.tuple_types[index];
            if length != 0
                && masked.byte(at + length) == b' '
                && equal(self.text, known, start + at, length)
            {
                self.tuple_types.swap(index, index / 2);
                return Some(at + length);
            }
        }
        let end = masked.closing(at)? + 1;
        let last = self.tuple_types.len() - 1;
        self.tuple_types[last] = (start + at, end - at);
        Some(end)
    }

    /// Whether the type written before an operand is a shape. Usually the type has the same text as
    /// at the operand's definition.
    #[inline(always)]
    fn check_operand_type(
        &mut self,
        spelled: &[u8],
        start: usize,
        typed: &Range<usize>,
        row: u32,
    ) -> Option<()> {
        let shape = *self.columns.shapes.get(row as usize)?;
        let known = self.shapes.table.text(shape);
        let at = known.start as usize;
        if known.len() == spelled.len() && equal(self.text, at, start + typed.start, spelled.len())
        {
            return Some(());
        }
        self.shape_of_text(start + typed.start, start + typed.end).map(|_| ())
    }

    /// Whether the instruction ends with its line, which is true if the next line starts a new
    /// instruction or ends the body.
    #[inline(always)]
    pub(super) fn ends_here(&self, newline: usize) -> bool {
        let mut at = newline + 1;
        loop {
            match self.text.get(at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => at += 1,
                Some(b',' | b'{' | b'(' | b'[' | b'/' | b'<' | b'"') => return false,
                _ => return true,
            }
        }
    }

    /// Reads the operands after the parenthesis at `open`; returns the position of the closing
    /// parenthesis.
    #[inline(always)]
    fn operand_list(
        &mut self,
        start: usize,
        masked: &MaskedLine<'_, '_>,
        open: usize,
    ) -> Option<usize> {
        let masks = masked.masks;
        let mut at = open + 1;
        if masked.byte(at) == b')' {
            return Some(at);
        }
        let mut position = 0usize;
        loop {
            at = masked.skip_comment(at);
            let first = masked.byte(at);
            let mut marked = first == b'%';
            let mut typed = at..at;
            if marked {
                at += 1;
            } else {
                // A type before the name, or a name without `%`.
                let type_end = if first == b'(' {
                    self.tuple_type_end(start, masked, at)?
                } else {
                    let word = masks.next::<NOT_IDENTIFIER>(at);
                    if masked.byte(word) == b'[' { masks.next::<SPACE>(word) } else { at }
                };
                if type_end != at {
                    if !matches!(masked.byte(type_end.wrapping_sub(1)), b']' | b'}' | b')')
                        || masked.byte(type_end) != b' '
                    {
                        return None;
                    }
                    typed = at..type_end;
                    at = type_end + 1;
                    marked = masked.byte(at) == b'%';
                    at += usize::from(marked);
                }
            }
            let end = masks.next::<NOT_IDENTIFIER>(at);
            if !is_identifier_start(masked.byte(at)) {
                return None;
            }
            let name = (start + at, end - at);
            // Operands of a large tuple are mostly consecutive rows.
            let next = self.columns.operands.last().map_or(0, |row| row.wrapping_add(1));
            let operand = if position >= MANY && self.is_named(next, name) {
                Some(next)
            } else {
                self.lookup(name)
            };
            position += 1;
            match operand {
                Some(row) => {
                    if !typed.is_empty() {
                        self.check_operand_type(
                            masked.line.get(typed.clone())?,
                            start,
                            &typed,
                            row,
                        )?;
                    }
                    self.columns.operands.push(row);
                }
                None if marked => {
                    if !typed.is_empty() {
                        self.shape_of_text(start + typed.start, start + typed.end)?;
                    }
                    self.push_pending(name);
                }
                None => return None,
            }
            match masked.byte(end) {
                b',' if masked.byte(end + 1) == b' ' => at = end + 2,
                b')' => return Some(end),
                _ => return None,
            }
        }
    }

    /// Reads the attributes from `at`; None unless all have the form `, key=value` with matching
    /// brackets. Returns the start of the metadata.
    #[inline(always)]
    fn tail(
        &mut self,
        start: usize,
        masked: &MaskedLine<'_, '_>,
        may_call: bool,
        at: usize,
    ) -> Option<u32> {
        let masks = masked.masks;
        let length = masked.line.len();
        let mut metadata = NO_METADATA;
        let mut at = at;
        while at < length {
            if masked.byte(at) != b',' || masked.byte(at + 1) != b' ' {
                let rest = masked.line.get(at..)?;
                return rest.iter().all(|b| matches!(b, b' ' | b'\r' | b'\t')).then_some(metadata);
            }
            let key = at + 2;
            let key_end = masks.next::<NOT_IDENTIFIER>(key);
            if masked.byte(key_end) != b'=' || !is_identifier_start(masked.byte(key)) {
                return None;
            }
            let value = key_end + 1;
            let end = match masked.byte(value) {
                b'{' => masked.closing(value)? + 1,
                b' ' | b',' | b'\n' => return None,
                b'"' => masks.next::<OUTSIDE>(value + 1) + 1,
                b'm' if masked.line.get(value..value + 5) == Some(b"mesh[") => {
                    // `mesh['a'=2] {'a'}`, the printed form unless devices are listed.
                    let axes = masked.closing(value + 4)? + 2;
                    if masked.byte(axes - 1) != b' ' || masked.byte(axes) != b'{' {
                        return None;
                    }
                    masked.closing(axes)? + 1
                }
                first => {
                    let end = masked.value_end(value)?;
                    let word = value + usize::from(first == b'%');
                    if masks.next::<NOT_IDENTIFIER>(word) != end {
                        masked.plain_value(value, end)?;
                    }
                    end
                }
            };
            match masked.byte(key) {
                b'c' if key_end - key == 20 => return None, // control-predecessors
                b'm' if metadata == NO_METADATA
                    && masked.line.get(key..key_end) == Some(b"metadata") =>
                {
                    metadata = (start + value) as u32;
                }
                b'c' | b't' | b'b' | b's' | b'f' if may_call => {
                    if let Some(role) = CallRole::from_key(masked.line.get(key..key_end)?) {
                        self.call_value(start, masked, role, value, end)?;
                    }
                }
                _ => {}
            }
            self.columns.value_ends.push(ValueEnd {
                end: (start + end) as u32,
                key_length: (key_end - key).min(u16::MAX.into()) as u16,
                key_first: masked.byte(key),
            });
            at = end;
        }
        Some(metadata)
    }

    /// Reads `%name` or `{%a, %b}`.
    #[inline(always)]
    fn call_value(
        &mut self,
        start: usize,
        masked: &MaskedLine<'_, '_>,
        role: CallRole,
        value: usize,
        end: usize,
    ) -> Option<()> {
        let list = matches!(role, CallRole::Branch | CallRole::Called);
        let mut at = value;
        let mut stop = end;
        if list {
            if masked.byte(value) != b'{' {
                return None;
            }
            at += 1;
            stop = end - 1;
            if at == stop {
                return Some(());
            }
        }
        loop {
            at = masked.skip_comment(at);
            at += usize::from(masked.byte(at) == b'%');
            let name_end = masked.masks.next::<NOT_IDENTIFIER>(at);
            if !is_identifier_start(masked.byte(at)) || name_end > stop {
                return None;
            }
            self.push_call(Span::new(start + at, start + name_end), role);
            if name_end == stop {
                return Some(());
            }
            if !list || masked.byte(name_end) != b',' || masked.byte(name_end + 1) != b' ' {
                return None;
            }
            at = name_end + 2;
        }
    }
}

/// Parses `digits`, if there are few.
#[inline(always)]
pub(super) fn parameter_number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 9 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}
