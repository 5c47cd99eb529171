//! Reads instructions whose parts have known positions, as in text generated from a protobuf. The
//! result equals the result of the line path, without any scanning.

use super::line::parameter_number;
use super::names::InstructionNames;
use super::reader::Reader;
use crate::error::Result;
use crate::ir::{CallRole, Computation, Opcode, ShapeId};
use crate::text::kernel::Kernel;
use crate::text::{Outline, OutlinedCall, OutlinedHeader, OutlinedLine, Span};

/// Number of lines that are read before their names are inserted, so that the hash slots are
/// prefetched.
const RUN: usize = 64;

/// Stands for a shape whose number has not occurred yet.
const UNKNOWN: ShapeId = ShapeId(u32::MAX);

impl Reader<'_> {
    /// The computation header at `start`, if its positions are known.
    pub(super) fn outlined_header(&mut self, start: usize) -> Option<Computation> {
        let headers = self.outline.headers.get(self.outlined_headers..)?;
        let behind = |header: &&OutlinedHeader| (header.whole.start as usize) < start;
        self.outlined_headers += headers.iter().take_while(behind).count();
        let header = *self.outline.headers.get(self.outlined_headers)?;
        if header.whole.start as usize != start {
            return None;
        }
        self.outlined_headers += 1;
        if self.outlined_shapes.get(header.shape as usize).is_none_or(|shape| *shape == UNKNOWN) {
            let end = header.signature.end as usize;
            self.outlined_shape(header.shape, header.result as usize, end)?;
        }
        Some(Computation {
            name: header.name,
            header: header.whole,
            signature: header.signature,
            is_marked_entry: header.name.start > header.whole.start + 1,
            ..Computation::default()
        })
    }

    /// Reads the instruction at `start` (after indentation) and some of the next instructions, if
    /// their positions are known; returns the end of the last line. Faults end the parse: callers
    /// that collect errors do not use an outline.
    #[inline(always)]
    pub(super) fn outlined_lines<K: Kernel>(&mut self, start: usize) -> Result<Option<usize>> {
        if self.outlined >= self.outline.lines.len() {
            return Ok(None);
        }
        let outline = std::mem::take(&mut self.outline);
        let end = self.read_outlined::<K>(&outline, start);
        self.outline = outline;
        end
    }

    #[inline(always)]
    fn read_outlined<K: Kernel>(
        &mut self,
        outline: &Outline,
        start: usize,
    ) -> Result<Option<usize>> {
        let behind = |line: &OutlinedLine| (line.start as usize) < start;
        while outline.lines.get(self.outlined).is_some_and(behind) {
            self.outlined += 1;
        }
        let lines = outline.lines.get(self.outlined..).unwrap_or_default();
        let before = self.outlined.checked_sub(1).and_then(|before| outline.lines.get(before));
        let first = before.map_or((0, 0), |line| (line.operands_end, line.calls_end));
        let mut hashes = [0; RUN];
        let (mut count, mut next, mut reached) = (0usize, start, first);
        for (line, hash) in lines.iter().zip(&mut hashes) {
            let operands = reached.0 as usize..line.operands_end as usize;
            let calls = reached.1 as usize..line.calls_end as usize;
            let operands = outline.operands.get(operands).unwrap_or_default();
            let calls = outline.calls.get(calls).unwrap_or_default();
            if line.start as usize != next || self.outlined_line(line, operands, calls).is_none() {
                break;
            }
            // The name is inserted last, so its slot can be fetched in the meantime.
            let name = line.name as usize;
            *hash = self.keys.hash(self.text, name, line.name_end as usize - name);
            if let Some(slot) = self.scope.slot(*hash) {
                K::prefetch(slot);
            }
            reached = (line.operands_end, line.calls_end);
            // Skips the newline and the indentation.
            next = line.end as usize + 3;
            count += 1;
        }
        let Some(last) = count.checked_sub(1) else { return Ok(None) };
        let lines = &lines[..count];
        self.outlined += count;
        let operands = outline.operands.get(first.0 as usize..reached.0 as usize);
        self.push_outlined(lines, operands.unwrap_or_default(), first.0);
        let names = self.next_row() - count as u32..;
        for ((row, line), hash) in names.zip(lines).zip(hashes) {
            let name = (line.name as usize, (line.name_end - line.name) as usize);
            let names = InstructionNames {
                starts: &self.columns.name_starts,
                lengths: &self.columns.name_lengths,
            };
            if let Some(known) = self.scope.insert(&names, self.text, name, hash, row) {
                return Err(self.duplicate_instruction(name, known));
            }
            if line.name > line.start + 1 {
                let start = line.start as usize;
                self.mark_root(row, Span::new(start, start + 4))?;
            }
        }
        Ok(Some(lines[last].end as usize))
    }

    /// Reads the facts that the text of `line` determines: opcode, shape, parameter number, calls.
    /// None, with nothing read, if the row or its operands differ from the outline.
    #[inline(always)]
    fn outlined_line(
        &mut self,
        line: &OutlinedLine,
        operands: &[u32],
        calls: &[OutlinedCall],
    ) -> Option<()> {
        let row = self.next_row();
        let open = line.open as usize;
        let opcode = Opcode::from_text(self.text, line.shape_end as usize + 1, open)?;
        // After an omitted line, or if an operand comes later, operands are found by name.
        let is_known =
            row - self.first_row == line.row && operands.iter().all(|operand| *operand < line.row);
        if !is_known || !opcode.arity().accepts(operands.len()) {
            return None;
        }
        let shape = match self.outlined_shapes.get(line.shape as usize) {
            Some(shape) if *shape != UNKNOWN => *shape,
            _ => {
                let start = line.name_end as usize + 3;
                self.outlined_shape(line.shape, start, line.shape_end as usize)?
            }
        };
        if opcode == Opcode::Parameter {
            let digits = self.text.get(open + 1..line.close as usize)?;
            self.parameters.push((parameter_number(digits)?, row));
        }
        if opcode.may_call() {
            for call in calls {
                let role = CallRole::from_key(self.text.get(call.key.range())?)?;
                self.push_call(call.name, role);
            }
        }
        self.columns.opcodes.push(opcode);
        self.columns.shapes.push(shape);
        Some(())
    }

    #[cold]
    #[inline(never)]
    fn outlined_shape(&mut self, number: u32, start: usize, end: usize) -> Option<ShapeId> {
        let shape = self.shape_of_text(start, end)?;
        let place = number as usize;
        if place >= self.outlined_shapes.len() {
            self.outlined_shapes.resize(place + 1, UNKNOWN);
        }
        self.outlined_shapes[place] = shape;
        Some(shape)
    }

    /// Appends the outline's data for `lines` to the columns, which already have their opcodes and
    /// shapes. `operands` are the operands of `lines`, which start at `operands_start` in the
    /// outline.
    #[inline(always)]
    fn push_outlined(&mut self, lines: &[OutlinedLine], operands: &[u32], operands_start: u32) {
        let columns = &mut self.columns;
        let rows = columns.opcodes.len();
        let shift = (columns.operands.len() as u32).wrapping_sub(operands_start);
        columns.flags.resize(rows, 0);
        columns.name_starts.extend(lines.iter().map(|line| line.name));
        columns
            .name_lengths
            .extend(lines.iter().map(|line| (line.name_end - line.name).min(255) as u8));
        columns.tail_starts.extend(lines.iter().map(|line| line.close + 1));
        columns.tail_ends.extend(lines.iter().map(|line| line.end));
        columns.metadata_starts.extend(lines.iter().map(|line| line.metadata));
        columns.value_offsets.resize(rows + 1, columns.value_ends.len() as u32);
        let ends = lines.iter().map(|line| line.operands_end.wrapping_add(shift));
        columns.operand_offsets.extend(ends);
        columns.operands.extend(operands.iter().map(|operand| self.first_row + operand));
    }
}
