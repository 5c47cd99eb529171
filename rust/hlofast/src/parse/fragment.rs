//! Reads pieces of a module, as [`crate::text::fragment`] cleans them: each line is an instruction,
//! the header of a computation, or its closing brace. Operands that no line defines become
//! placeholders: implicit parameters without a number, of the shape that their use gives or else of
//! unknown shape. Called computations that are missing are left out, and counted.

use super::operands::{Operand, Operands};
use super::reader::{Mark, Reader};
use crate::error::{ErrorKind, Result};
use crate::ir::{Arity, Computation, Dimension, ElementType, Flags, Fragment, Opcode, ShapeId};
use crate::text::{Pieces, Span, is_computation, is_identifier_byte, line};
use std::ops::Range;

/// What reading a fragment needs and finds.
#[derive(Default)]
pub(super) struct Missing<'a> {
    /// Where the last line begins that defines a name, by the names of the run of lines being read.
    defined: hashbrown::HashMap<&'a [u8], usize, crate::ir::intern::BuildMix>,
    /// What the fragment lacks.
    pub lacks: Fragment,
}

/// A computation being read.
struct Open {
    computation: Computation,
    /// Whether its lines came without a header.
    is_loose: bool,
    mark: Mark,
}

impl<'a> Reader<'a> {
    /// Reads the whole text as pieces of a module.
    pub(super) fn read_fragment(&mut self, pieces: Pieces) -> Result<()> {
        self.missing = Some(Box::default());
        self.lacks(|lacks| lacks.pieces = pieces);
        let mut at = self.fragment_header();
        let mut open: Option<Open> = None;
        let mut is_listed = false;
        while at < self.text.len() {
            let whole = line(self.text, at);
            let next = at + whole.len() + 1;
            let start = at + (whole.len() - whole.trim_ascii_start().len());
            let own = whole.trim_ascii();
            if own.starts_with(b"}") {
                self.end_piece(open.take(), next - 1)?;
                is_listed = false;
            } else if is_computation(own) {
                self.end_piece(open.take(), start)?;
                open = Some(self.begin_computation(start, own)?);
                is_listed = false;
            } else if !own.is_empty() {
                if !is_listed {
                    self.list_definitions(at);
                    is_listed = true;
                }
                let current = match open.take() {
                    Some(open) => open,
                    None => self.begin_loose(start)?,
                };
                open = Some(self.read_piece(current, start)?);
            }
            at = next;
        }
        self.end_piece(open, self.text.len())?;
        self.end_fragment();
        Ok(())
    }

    /// Reads the header, as far as it can be read; returns where the next line begins.
    fn fragment_header(&mut self) -> usize {
        let mut cursor = self.cursor(0);
        if self.read_header(&mut cursor).is_ok() {
            return cursor.position();
        }
        let first = self.header.name.start as usize;
        self.header.span = if self.header.name.is_empty() { Span::EMPTY } else { self.header.name };
        first + line(self.text, first).len() + 1
    }

    /// Notes the names that the lines from `at` to the end of the computation define.
    fn list_definitions(&mut self, mut at: usize) {
        let text: &'a [u8] = self.text;
        let Some(missing) = &mut self.missing else { return };
        missing.defined.clear();
        while at < text.len() {
            let whole = line(text, at);
            let own = whole.trim_ascii();
            if own.starts_with(b"}") || is_computation(own) {
                return;
            }
            missing.defined.insert(defined_name(own), at);
            at += whole.len() + 1;
        }
    }

    /// Begins the computation whose header is at `start`.
    fn begin_computation(&mut self, start: usize, own: &[u8]) -> Result<Open> {
        let mark = self.mark();
        let end = start + own.len();
        let mut cursor = self.cursor(start);
        let read = self.read_computation_header(&mut cursor).ok().flatten();
        let mut computation = match read {
            Some(read) if cursor.position() <= end => read,
            // A header that was cut: the name is known at most.
            _ => {
                let mut cursor = self.cursor(start);
                let is_marked_entry = cursor.identifier() == b"ENTRY" && cursor.peek() != b':';
                if !is_marked_entry {
                    cursor.set_position(start);
                }
                let name = cursor.name().ok().flatten().unwrap_or(Span::EMPTY);
                let header = Span::new(start, end);
                Computation { name, header, is_marked_entry, ..Computation::default() }
            }
        };
        computation.body = Span::new((computation.header.end as usize).max(start + 1) - 1, end);
        let is_known = computation.name.is_empty() || {
            let name = computation.name;
            self.find_computation(name).is_some()
        };
        if is_known {
            computation.name = self.piece_name()?;
        }
        computation.is_marked_entry &= self.entry.is_none();
        self.start_computation();
        Ok(Open { computation, is_loose: false, mark })
    }

    /// Begins a computation for lines without a header.
    fn begin_loose(&mut self, start: usize) -> Result<Open> {
        let mark = self.mark();
        let name = self.piece_name()?;
        let header = Span::at(start);
        let computation = Computation { name, header, body: header, ..Computation::default() };
        self.start_computation();
        Ok(Open { computation, is_loose: true, mark })
    }

    /// A name for a computation without one.
    fn piece_name(&mut self) -> Result<Span> {
        let name = match self.computations.len() {
            0 => "fragment".to_owned(),
            number => format!("fragment.{number}"),
        };
        self.append_to_arena(name.as_bytes())
    }

    /// Reads the instruction at `start`. A second definition of a name begins another computation
    /// if the lines have no header, and is left out otherwise.
    fn read_piece(&mut self, mut open: Open, start: usize) -> Result<Open> {
        let mark = self.mark();
        let Err(error) = self.instruction(start) else { return Ok(open) };
        self.take_back(&mark);
        self.root = self.root.filter(|root| *root < self.next_row());
        let is_second = error.kind() == ErrorKind::DuplicateInstruction;
        if is_second && open.is_loose && self.next_row() > self.first_row {
            self.end_piece(Some(open), start)?;
            open = self.begin_loose(start)?;
            let mark = self.mark();
            if self.instruction(start).is_ok() {
                return Ok(open);
            }
            self.take_back(&mark);
            self.root = None;
        }
        self.lacks(|lacks| lacks.unread += 1);
        Ok(open)
    }

    /// Ends a computation; one without instructions is left out.
    fn end_piece(&mut self, open: Option<Open>, end: usize) -> Result<()> {
        let Some(Open { mut computation, mark, .. }) = open else { return Ok(()) };
        if self.next_row() == self.first_row {
            return Ok(());
        }
        let start = computation.body.start as usize;
        computation.body = Span::new(start, end.max(start));
        // Placeholders for names that were to be defined later follow the last instruction.
        self.root = self.root.or_else(|| self.next_row().checked_sub(1));
        if self.finish_computation(computation).is_err() {
            self.take_back(&mark);
            self.lacks(|lacks| lacks.unread += 1);
        }
        self.read_queue()
    }

    /// Counts what is missing, and chooses the entry: the computation marked as such, else the last
    /// one that no instruction calls.
    fn end_fragment(&mut self) {
        let mut called = vec![false; self.computations.len()];
        for call in &self.calls {
            if let Some(called) = called.get_mut(call.computation.0 as usize) {
                *called = true;
            }
        }
        let mut unknown: hashbrown::HashSet<&[u8], crate::ir::intern::BuildMix> =
            hashbrown::HashSet::default();
        for (_, name) in &self.pending_calls {
            match self.find_computation(*name) {
                Some(id) => called[id as usize] = true,
                None => {
                    unknown.insert(self.bytes(*name));
                }
            }
        }
        let count = unknown.len() as u64;
        drop(unknown);
        let is_last = |(id, one): (usize, &Computation)| {
            (!one.is_inline && !one.is_implicit && !called[id]).then_some(id as u32)
        };
        let last = self.computations.iter().enumerate().rev().find_map(is_last);
        self.entry = self.entry.or(last);
        let wrapped = self.computations.iter().filter(|one| one.is_implicit);
        let wrapped: usize = wrapped.map(|one| self.placeholders(one.rows())).sum();
        let operands = self.placeholders(0..self.next_row()) - wrapped;
        self.lacks(|lacks| {
            lacks.operands = operands as u64;
            lacks.computations = count;
        });
    }

    /// Implicit parameters among `rows`.
    fn placeholders(&self, rows: Range<u32>) -> usize {
        let is_placeholder = |row: &u32| {
            let at = *row as usize;
            self.columns.opcodes[at] == Opcode::Parameter
                && self.columns.flags[at] & Flags::IMPLICIT != 0
        };
        rows.filter(is_placeholder).count()
    }

    fn lacks(&mut self, change: impl FnOnce(&mut Fragment)) {
        if let Some(missing) = &mut self.missing {
            change(&mut missing.lacks);
        }
    }

    /// The operand `name` that no line before defines: pending if a later line does, else a
    /// placeholder. None if the text is a whole module.
    pub(super) fn missing_operand(
        &mut self,
        name: Span,
        shape: Option<ShapeId>,
    ) -> Result<Option<Operand>> {
        let Some(missing) = &self.missing else { return Ok(None) };
        let key = &self.text[name.range()];
        if missing.defined.get(key).is_some_and(|line| *line > name.start as usize) {
            return Ok(Some(Operand::Named(name)));
        }
        if let Some(row) = self.single_parameters.get(key).copied()
            && self.is_parameter(row, key)
        {
            return Ok(Some(Operand::Row(row)));
        }
        let key: Box<[u8]> = key.into();
        let row = self.push_placeholder(&key, shape)?;
        self.single_parameters.insert(key, row);
        Ok(Some(Operand::Row(row)))
    }

    /// Appends a placeholder; one without a shape has a shape of unknown size.
    pub(super) fn push_placeholder(&mut self, name: &[u8], shape: Option<ShapeId>) -> Result<u32> {
        let shape = match shape {
            Some(shape) => shape,
            None => {
                self.shapes.array(ElementType::Opaque, &[Dimension::Unbounded], None, Span::EMPTY)
            }
        };
        self.push_implicit(name, Opcode::Parameter, shape, "", &[])
    }

    /// Adds placeholders for the operands that a line has lost.
    pub(super) fn pad_operands(&mut self, opcode: Opcode, operands: &mut Operands) -> Result<()> {
        if self.missing.is_none() {
            return Ok(());
        }
        let count = operands.list.len();
        let wanted = match opcode.arity() {
            Arity::Exactly(wanted) | Arity::AtLeast(wanted) => usize::from(wanted).max(count),
            Arity::Even => count.next_multiple_of(2),
            Arity::Odd => count | 1,
            Arity::Any | Arity::Payload => count,
        };
        for _ in count..wanted {
            let name = format!("missing.{}", self.next_row());
            let row = self.push_placeholder(name.as_bytes(), None)?;
            operands.list.push(Operand::Row(row));
        }
        Ok(())
    }
}

/// The name that an instruction line defines.
fn defined_name(own: &[u8]) -> &[u8] {
    let rest = own.strip_prefix(b"ROOT ").map_or(own, <[u8]>::trim_ascii_start);
    let rest = rest.strip_prefix(b"%").unwrap_or(rest);
    let length = rest.iter().take_while(|byte| is_identifier_byte(**byte)).count();
    rest.get(..length).unwrap_or_default()
}
