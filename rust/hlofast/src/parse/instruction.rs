//! The general path: one instruction in any valid form.

use super::infer::{Attribute, Callee, Request, Signature, infer};
use super::operands::{Operand, Operands};
use super::reader::{Pending, Queued, Reader};
use super::shape::{parse_shape, starts_shape};
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::attributes::{read_value, skip_to_value};
use crate::ir::derived::skip_to_opcode;
use crate::ir::module::{NO_METADATA, ValueEnd};
use crate::ir::{Call, CallRole, Computation, ComputationId, Flags, Opcode, Row, ShapeId};
use crate::text::{Cursor, Span, is_identifier_byte};
use std::sync::Arc;

/// Maximum nesting of blocks that are read ahead for their signatures. Each level takes 20 KiB of a
/// stack that may be as small as 2 MiB.
const MAX_BLOCK_LEVEL: u8 = 32;

/// Levels without a limit on text; `Reader::signature_budget` limits deeper levels.
const FREE_BLOCK_LEVELS: u8 = 8;

/// How an opcode is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    /// `X-start`, `X-update` or `X-done` for an opcode `X` without native asynchronous forms.
    Sugar(Opcode),
}

/// An attribute read by the general path.
pub(super) struct RawAttribute {
    pub key: Span,
    pub value: Span,
}

impl Reader<'_> {
    /// Reads the instruction at `start`; returns where it ends.
    pub(super) fn instruction(&mut self, start: usize) -> Result<usize> {
        let mut cursor = self.cursor(start);
        self.undroppable = 0;
        let is_root = self.eat_root(&mut cursor)?;
        let Some(name) = cursor.name()? else {
            return Err(ParseError::new(
                ErrorKind::ExpectedName,
                Span::new(cursor.position(), (cursor.position() + 1).min(cursor.end())),
                "expected an instruction's name, or '}'",
            ));
        };
        cursor.expect(b'=', "after an instruction's name")?;
        let read = self.right_hand_side(&mut cursor, Some(name));
        self.reached = cursor.position();
        let row = read?;
        if is_root {
            self.mark_root(row, Span::new(start, start + 4))?;
        }
        Ok(cursor.position())
    }

    /// Skips `ROOT` if it is the keyword, not a name.
    fn eat_root(&mut self, cursor: &mut Cursor<'_>) -> Result<bool> {
        cursor.skip_space()?;
        let before = *cursor;
        if cursor.identifier() == b"ROOT" {
            cursor.skip_space()?;
            if cursor.peek() != b'=' && cursor.peek() != b':' {
                return Ok(true);
            }
        }
        *cursor = before;
        Ok(false)
    }

    /// Reads `shape? opcode(...)attributes` and appends the row; returns its number.
    pub(super) fn right_hand_side(
        &mut self,
        cursor: &mut Cursor<'_>,
        name: Option<Span>,
    ) -> Result<u32> {
        cursor.skip_space()?;
        let shape =
            if starts_shape(cursor) { Some(parse_shape(cursor, &mut self.shapes)?) } else { None };
        cursor.skip_space()?;
        let at = cursor.position();
        let text = cursor.identifier();
        let word = cursor.span_since(at);
        if text.is_empty() {
            return Err(match shape {
                // A malformed shape is the more likely fault here.
                None => parse_shape(cursor, &mut self.shapes).map_or_else(
                    |error| error,
                    |_| cursor.expected("an opcode", "after the result shape"),
                ),
                Some(_) => ParseError::new(
                    ErrorKind::ExpectedOpcode,
                    Span::new(at, (at + 1).min(cursor.end())),
                    "expected an opcode after the result shape",
                ),
            });
        }
        let (opcode, form) = opcode_of(text);
        cursor.skip_space()?;
        let open = cursor.position();
        if cursor.peek() != b'(' {
            return Err(cursor.expected("(", "after an opcode"));
        }
        let mut operands = self.payload_or_operands(cursor, opcode)?;
        self.pad_operands(opcode, &mut operands)?;
        let tail_start = cursor.position();
        let attributes = self.read_attributes(cursor)?;
        let tail = Span::new(tail_start, cursor.position());
        self.check_operand_count(opcode, operands.list.len(), word, open)?;
        let (calls, queued) =
            if opcode.may_call() { self.call_attributes(&attributes)? } else { Default::default() };
        let mut flags = if operands.folded { Flags::FOLDED_OPERANDS } else { 0 };
        let shape = match shape {
            Some(shape) => shape,
            None => {
                flags |= Flags::SHAPE_INFERRED;
                self.infer_shape(opcode, &operands.list, &attributes, &calls, word)?
            }
        };
        let name = match name {
            Some(name) => (name.start as usize, name.len()),
            None => (at, word.len()),
        };
        self.define(name)?;
        self.push_operands(&operands.list);
        self.control_predecessors(&attributes)?;
        match form {
            Form::Plain => self.push_calls(calls, queued),
            Form::Sugar(stem) => {
                flags |= Flags::SUGAR;
                if opcode == Opcode::AsyncStart {
                    self.queue_wrapped(stem, tail, calls, queued)?;
                }
            }
        }
        let row = self.next_row();
        let metadata = attributes.iter().find(|a| &self.text[a.key.range()] == b"metadata");
        let metadata = metadata.map_or(NO_METADATA, |a| a.value.start);
        self.push_value_ends(tail, &attributes);
        self.push_row(opcode, flags, shape, name, tail, metadata);
        Ok(row)
    }

    fn payload_or_operands(&mut self, cursor: &mut Cursor<'_>, opcode: Opcode) -> Result<Operands> {
        match opcode {
            Opcode::Parameter => {
                let whole = cursor.balanced()?;
                let number =
                    self.parameter_payload(Span { start: whole.start + 1, end: whole.end - 1 })?;
                self.parameters.push((number, self.next_row()));
                Ok(Operands::default())
            }
            Opcode::Constant => cursor.balanced().map(|_| Operands::default()),
            _ => self.read_operands(cursor, 0),
        }
    }

    /// Reads any number of `, key=value`.
    fn read_attributes(&mut self, cursor: &mut Cursor<'_>) -> Result<Vec<RawAttribute>> {
        let mut attributes = Vec::new();
        loop {
            let end = cursor.position();
            cursor.skip_space()?;
            if cursor.peek() != b',' {
                cursor.set_position(end);
                return Ok(attributes);
            }
            cursor.advance(1);
            cursor.skip_space()?;
            let start = cursor.position();
            while is_identifier_byte(cursor.peek()) && !cursor.is_at_end() {
                cursor.advance(1);
            }
            let key = cursor.span_since(start);
            if key.is_empty() {
                return Err(cursor.expected("an attribute's name", "after ','"));
            }
            cursor.expect(b'=', "after an attribute's name")?;
            let word = &self.text[key.range()];
            skip_to_value(cursor, word)?;
            let value = read_value(cursor, word)?;
            if value.is_empty() && word != b"padding" {
                return Err(cursor.expected("a value", "after '='"));
            }
            attributes.push(RawAttribute { key, value });
        }
    }

    /// Keeps where the values of `tail` end if it has the printed form, `, key=value, key=value` on one
    /// line, so that analyses need not search them again.
    fn push_value_ends(&mut self, tail: Span, attributes: &[RawAttribute]) {
        let mut end = tail.start;
        let is_printed = attributes.iter().all(|own| {
            let gap = Span { start: end, end: own.key.start };
            end = own.value.end;
            &self.text[gap.range()] == b", " && own.key.end + 1 == own.value.start
        });
        let text = &self.text[tail.range()];
        if !is_printed || end != tail.end || memchr::memchr(b'\n', text).is_some() {
            return;
        }
        self.columns.value_ends.extend(attributes.iter().map(|own| ValueEnd {
            end: own.value.end,
            key_length: own.key.len().min(u16::MAX.into()) as u16,
            key_first: self.text[own.key.start as usize],
        }));
    }

    /// Returns the computations named by attributes, and the blocks that replace names.
    fn call_attributes(&mut self, attributes: &[RawAttribute]) -> Result<CallsAndBlocks> {
        let mut calls = Vec::new();
        let mut blocks = Vec::new();
        for attribute in attributes {
            let Some(role) = CallRole::from_key(&self.text[attribute.key.range()]) else {
                continue;
            };
            let mut cursor = Cursor::within(self.text, attribute.value);
            let list = matches!(role, CallRole::Branch | CallRole::Called);
            if list {
                cursor.expect(b'{', "before a list of computations")?;
            }
            loop {
                cursor.skip_space()?;
                match cursor.peek() {
                    b'}' if list => break,
                    b',' if list => {
                        cursor.advance(1);
                        continue;
                    }
                    b'{' => {
                        let body = cursor.balanced()?;
                        let inside = &self.text[body.start as usize + 1..body.end as usize - 1];
                        if inside.trim_ascii().is_empty() {
                            return Err(ParseError::new(
                                ErrorKind::InvalidComputation,
                                body,
                                "a computation needs at least one instruction",
                            ));
                        }
                        blocks.push(calls.len());
                        calls.push((body, role));
                    }
                    _ => match cursor.name()? {
                        Some(name) => calls.push((name, role)),
                        None => return Err(cursor.expected("a computation's name", "")),
                    },
                }
                if !list {
                    break;
                }
            }
        }
        Ok((calls, blocks))
    }

    /// Adds the call edges of the row that will be pushed next.
    pub(super) fn push_calls(&mut self, calls: Vec<(Span, CallRole)>, blocks: Vec<usize>) {
        let row = Row(self.next_row());
        for (index, (span, role)) in calls.into_iter().enumerate() {
            if blocks.binary_search(&index).is_ok() {
                let call = self.calls.len() as u32;
                self.queue.push_back(Queued::Inline { call, body: span, depth: self.depth });
                self.calls.push(Call { row, computation: ComputationId(u32::MAX), role });
            } else {
                self.push_call(span, role);
            }
        }
    }

    /// Queues the computation wrapped by async sugar.
    fn queue_wrapped(
        &mut self,
        opcode: Opcode,
        tail: Span,
        calls: Vec<(Span, CallRole)>,
        blocks: Vec<usize>,
    ) -> Result<()> {
        let start = Row(self.next_row());
        let call = self.calls.len() as u32;
        self.calls.push(Call {
            row: start,
            computation: ComputationId(u32::MAX),
            role: CallRole::Wrapped,
        });
        let depth = self.depth;
        self.queue.push_back(Queued::Wrapped { depth, call, start, opcode, tail, calls, blocks });
        Ok(())
    }

    fn control_predecessors(&mut self, attributes: &[RawAttribute]) -> Result<()> {
        let row = self.next_row();
        for attribute in attributes {
            if &self.text[attribute.key.range()] != b"control-predecessors" {
                continue;
            }
            let mut cursor = Cursor::within(self.text, attribute.value);
            cursor.expect(b'{', "before control predecessors")?;
            loop {
                cursor.skip_space()?;
                match cursor.peek() {
                    b'}' => break,
                    b',' => cursor.advance(1),
                    _ => {
                        let Some(name) = cursor.name()? else {
                            return Err(cursor.expected("an instruction's name", ""));
                        };
                        match self.lookup((name.start as usize, name.len())) {
                            Some(predecessor) if predecessor != row => {
                                self.control_predecessors.push((Row(row), Row(predecessor)));
                            }
                            _ => self.pending.push(Pending { row, slot: None, name }),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Infers an omitted result shape.
    pub(super) fn infer_shape(
        &mut self,
        opcode: Opcode,
        operands: &[Operand],
        attributes: &[RawAttribute],
        calls: &[(Span, CallRole)],
        word: Span,
    ) -> Result<ShapeId> {
        let mut shapes = Vec::with_capacity(operands.len());
        for operand in operands {
            match operand {
                Operand::Row(row) => shapes.push(self.columns.shapes[*row as usize]),
                Operand::Named(name) => {
                    return Err(super::operands::unknown_instruction(self.text, *name).with_help(
                        "an omitted result shape can only be inferred from operands defined before",
                    ));
                }
            }
        }
        let attributes: Vec<Attribute<'_>> = attributes
            .iter()
            .map(|a| Attribute {
                key: &self.text[a.key.range()],
                value: &self.text[a.value.range()],
                at: a.value,
            })
            .collect();
        let callees: Vec<Callee> = calls
            .iter()
            .map(|(name, role)| Callee { role: *role, signature: self.signature(*name) })
            .collect();
        let request = Request {
            opcode,
            operands: &shapes,
            attributes: &attributes,
            callees: &callees,
            most_nodes: most_nodes(self.whole.len()),
        };
        infer(&request, &mut self.shapes).map_err(|error| match error.span() {
            Span::EMPTY => ParseError::new(error.kind(), word, error.message()),
            _ => error,
        })
    }

    /// Parameter and result shapes of the computation `name`, if it is already defined. A block may
    /// replace the name.
    fn signature(&mut self, name: Span) -> Option<Arc<Signature>> {
        if self.text.get(name.start as usize) == Some(&b'{') {
            return self.block_signature(name);
        }
        let id = self.find_computation(name)?;
        if let Some(known) = self.signatures.get(&id) {
            return Some(known.clone());
        }
        let signature = Arc::new(self.signature_of(id)?);
        self.signatures.insert(id, signature.clone());
        Some(signature)
    }

    fn signature_of(&self, id: u32) -> Option<Signature> {
        let computation = self.computations.get(id as usize)?;
        let result = self.columns.shapes.get(computation.root as usize).copied()?;
        let mut parameters = Vec::new();
        for row in computation.rows().map(Row) {
            if self.columns.opcodes[row.0 as usize] == Opcode::Parameter {
                let shape = self.columns.shapes[row.0 as usize];
                parameters.push((self.parameter_number(row)?, shape));
            }
        }
        parameters.sort_unstable_by_key(|(number, _)| *number);
        let parameters = parameters.into_iter().map(|(_, shape)| shape).collect();
        Some(Signature { parameters, result })
    }

    /// Blocks are read after the computation that contains them, so a block whose signature is
    /// needed earlier is read twice. Blocks inside it may also be read twice, up to
    /// `MAX_BLOCK_LEVEL` levels.
    fn block_signature(&mut self, body: Span) -> Option<Arc<Signature>> {
        if self.block_level >= MAX_BLOCK_LEVEL {
            return None;
        }
        if self.block_level >= FREE_BLOCK_LEVELS {
            self.signature_budget = self.signature_budget.checked_sub(body.len())?;
        }
        let mut reader = Box::new(Reader::of_part(self.whole, body.range(), self.options));
        reader.options.collect_errors = false;
        reader.block_level = self.block_level + 1;
        reader.signature_budget = self.signature_budget;
        let read = reader.read_block_signature(body);
        self.signature_budget = reader.signature_budget;
        let Signature { parameters, result } = read?;
        let mut import = |shape: ShapeId| self.shapes.import(&reader.shapes.table, shape);
        let parameters = parameters.into_iter().map(&mut import).collect();
        Some(Arc::new(Signature { parameters, result: import(result) }))
    }

    fn read_block_signature(&mut self, body: Span) -> Option<Signature> {
        let open = body.start as usize;
        let mut computation = Computation { is_inline: true, ..Computation::default() };
        self.read_body(open + 1, &mut computation, open).ok()?;
        let id = self.finish_computation(computation).ok()?;
        self.signature_of(id.0)
    }

    /// The number of parameter `row`.
    fn parameter_number(&self, row: Row) -> Option<u64> {
        let start = self.columns.name_starts[row.0 as usize];
        let rest = self.bytes(Span { start, end: self.columns.tail_starts[row.0 as usize] });
        let mut cursor = Cursor::new(rest);
        while is_identifier_byte(cursor.peek()) {
            cursor.advance(1);
        }
        cursor.eat(b':').ok()?;
        cursor.eat(b'=').ok()?;
        skip_to_opcode(&mut cursor)?;
        cursor.eat(b'(').ok()?;
        cursor.integer().ok()?.and_then(|number| u64::try_from(number).ok())
    }
}

type CallsAndBlocks = (Vec<(Span, CallRole)>, Vec<usize>);

/// The opcode spelled by `word`, with async sugar undone.
pub(super) fn opcode_of(word: &[u8]) -> (Opcode, Form) {
    if let Some(opcode) = Opcode::from_bytes(word) {
        return (opcode, Form::Plain);
    }
    for (suffix, opcode) in [
        (&b"-start"[..], Opcode::AsyncStart),
        (b"-update", Opcode::AsyncUpdate),
        (b"-done", Opcode::AsyncDone),
    ] {
        if let Some(stem) = word.strip_suffix(suffix).and_then(Opcode::from_bytes)
            && stem.may_be_wrapped()
        {
            return (opcode, Form::Sugar(stem));
        }
    }
    (Opcode::Unknown, Form::Plain)
}

/// Limit on the leaves, tuples and buffers of an inferred shape in a text of `length` bytes:
/// proportional to the length, and more than any real text needs.
fn most_nodes(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX).saturating_mul(4).saturating_add(1 << 16)
}
