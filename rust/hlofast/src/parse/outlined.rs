//! Instructions of which it is known beforehand where their parts are: text that stands for a
//! protobuf. Gives what the path for lines gives, without looking for anything.

use super::line::{Line, parameter_number};
use super::reader::Reader;
use crate::error::Result;
use crate::ir::Opcode;
use crate::text::kernel::Kernel;
use crate::text::{OutlinedLine, Span};
use std::ops::Range;

impl Reader<'_> {
    /// Reads the instruction that starts at `start`, if its parts are known.
    #[inline(always)]
    pub(super) fn outlined_line<K: Kernel>(&mut self, start: usize) -> Result<Line> {
        let Some((line, operands)) = self.next_outlined(start) else { return Ok(Line::Other) };
        let (name, open) = (line.name as usize, line.open as usize);
        let length = line.name_end as usize - name;
        // The name is entered last; its slot can be on its way by then.
        let hash = self.keys.hash(self.text, name, length);
        if let Some(slot) = self.scope.slot(hash) {
            K::prefetch(slot);
        }
        let shape = (name + length + 3, line.shape_end as usize);
        let Some(opcode) = Opcode::from_text(self.text, shape.1 + 1, open) else {
            return Ok(Line::Other);
        };
        let Some(shape) = self.shape_of_text(shape.0, shape.1) else { return Ok(Line::Other) };
        let number = match opcode {
            Opcode::Parameter => {
                let digits = self.text.get(open + 1..line.close as usize).unwrap_or_default();
                let Some(number) = parameter_number(digits) else { return Ok(Line::Other) };
                Some(number)
            }
            _ => None,
        };
        let row = self.next_row();
        let known = self.outline.operands.get(operands).unwrap_or_default();
        // After a line that was left out, or for an operand that comes later, names decide.
        let is_known = row - self.first_row == line.row && known.iter().all(|one| *one < line.row);
        if !is_known || !opcode.arity().accepts(known.len()) {
            return Ok(Line::Other);
        }
        self.columns.operands.extend(known.iter().map(|operand| self.first_row + operand));
        self.define_hashed((name, length), hash)?;
        self.parameters.extend(number.map(|number| (number, row)));
        let tail = Span { start: line.close + 1, end: line.end };
        self.push_row(opcode, 0, shape, (name, length), tail, line.metadata);
        if name > start + 1 {
            self.mark_root(row, Span::new(start, start + 4))?;
        }
        Ok(Line::Read(line.end as usize))
    }

    /// The outline of the line that starts at `start`, and which operands are its.
    #[inline(always)]
    fn next_outlined(&mut self, start: usize) -> Option<(OutlinedLine, Range<usize>)> {
        let lines = &self.outline.lines;
        loop {
            let line = *lines.get(self.outlined)?;
            if line.start as usize == start {
                let before = self.outlined.checked_sub(1).and_then(|before| lines.get(before));
                let first = before.map_or(0, |before| before.operands_end as usize);
                return Some((line, first..line.operands_end as usize));
            }
            if line.start as usize > start {
                return None;
            }
            self.outlined += 1;
        }
    }
}
