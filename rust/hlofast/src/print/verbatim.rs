//! The text as it was read, byte for byte.

use crate::ir::{ComputationId, Flags, Module, Row};
use crate::text::{Cursor, Span};

impl Module {
    /// The span of `row`'s text, from `ROOT` or its name to its last attribute. For rows that the
    /// text only implies, the span covers generated text in the arena.
    pub fn instruction_span(&self, row: Row) -> Span {
        let name = self.name_span(row);
        let end = self.tail(row).end;
        let text = self.text();
        if name.start as usize >= text.len() {
            return Span { start: name.start.saturating_sub(1), end };
        }
        let computation = self.computation(self.computation_of(row));
        if computation.header.is_empty() {
            // The text is a single instruction, perhaps without a name.
            return Span { start: computation.body.start, end };
        }
        let mut start = name.start as usize;
        start -= usize::from(text.get(..start).is_some_and(|before| before.ends_with(b"%")));
        if self.flags(row) & Flags::MARKED_ROOT != 0 {
            let from = self.end_before(row).unwrap_or(computation.body.start + 1);
            let mut cursor = Cursor::within(text, Span::new((from as usize).min(start), start));
            let between = cursor.rest();
            let _ = cursor.skip_space();
            let at = cursor.position();
            // If errors were collected, skipped lines may come before the instruction.
            if cursor.identifier() == b"ROOT" {
                start = at;
            } else if let Some(skip) = memchr::memmem::rfind(between, b"ROOT") {
                start = from as usize + skip;
            }
        }
        Span::new(start, end as usize)
    }

    /// The end of the last instruction before `row` in the text of its computation.
    fn end_before(&self, row: Row) -> Option<u32> {
        let first = self.computation(self.computation_of(row)).first_row;
        let mut rows = (first..row.0).rev().map(Row);
        rows.find(|row| !self.is_implicit(*row)).map(|row| self.tail(row).end)
    }

    /// The text of `row`, with `ROOT` and `%` where the text has them.
    pub fn instruction_text(&self, row: Row) -> &[u8] {
        self.bytes(self.instruction_span(row))
    }

    /// The span of computation `id`, from `ENTRY` or its name to its closing brace and thread;
    /// empty for computations that the text only implies.
    pub fn computation_span(&self, id: ComputationId) -> Span {
        let computation = self.computation(id);
        if computation.is_implicit {
            return Span::EMPTY;
        }
        let whole = if computation.header.is_empty() {
            computation.body
        } else {
            computation.header.to(computation.body)
        };
        if computation.execution_thread.is_empty() {
            whole
        } else {
            whole.to(computation.execution_thread)
        }
    }

    /// The text of computation `id`.
    pub fn computation_text(&self, id: ComputationId) -> &[u8] {
        self.bytes(self.computation_span(id))
    }
}
