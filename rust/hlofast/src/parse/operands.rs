//! Operand lists in full generality: typed and untyped names, `%x#0` paths, nested instructions,
//! empty slots.

use super::reader::{Pending, Reader};
use super::shape::{parse_shape, starts_shape};
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::module::NO_METADATA;
use crate::ir::{ElementType, Flags, Opcode, ShapeId};
use crate::text::{Cursor, Span};

/// Maximum nesting of instructions inside operand lists.
const MAX_NESTING: usize = super::shape::MAX_DEPTH;

/// An operand, resolved or pending.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    Row(u32),
    Named(Span),
}

/// The contents of an operand list.
#[derive(Default)]
pub(super) struct Operands {
    pub list: Vec<Operand>,
    /// Whether the list contained anything but plain or typed names.
    pub folded: bool,
}

impl Reader<'_> {
    /// Reads from the opening to the closing parenthesis.
    pub(super) fn read_operands(
        &mut self,
        cursor: &mut Cursor<'_>,
        depth: usize,
    ) -> Result<Operands> {
        let open = cursor.position();
        let mut operands = Operands::default();
        cursor.advance(1);
        loop {
            cursor.skip_space()?;
            match cursor.peek() {
                b')' => {
                    cursor.advance(1);
                    return Ok(operands);
                }
                b',' => {
                    operands.folded = true;
                    cursor.advance(1);
                    continue;
                }
                _ if cursor.is_at_end() => return Err(unclosed(open)),
                _ => {}
            }
            let slot = *cursor;
            match self.read_operand(cursor, depth, &mut operands.folded) {
                Ok(Some(operand)) => operands.list.push(operand),
                Ok(None) => operands.folded = true,
                Err(error) => {
                    // XLA drops a slot that it cannot read if the reader stops at the end of the
                    // slot.
                    let stopped = matches!(cursor.peek(), b',' | b')');
                    let mut word = slot;
                    let reserved = starts_shape(&slot) || is_reserved(word.identifier());
                    if !(stopped && reserved && cursor.position() > slot.position()) {
                        *cursor = slot;
                        // An inner slot that cannot be dropped also prevents dropping the outer
                        // slots.
                        let hopeless = slot.position() < self.undroppable;
                        if hopeless || !skip_droppable(cursor, &mut self.undroppable) {
                            return Err(error);
                        }
                    }
                    // Instructions that were complete before the failure are kept, as in XLA.
                    let rows = self.next_row();
                    while self.parameters.last().is_some_and(|last| last.1 >= rows) {
                        self.parameters.pop();
                    }
                    operands.folded = true;
                }
            }
            cursor.skip_space()?;
            match cursor.peek() {
                b',' => cursor.advance(1),
                b')' => {}
                _ if cursor.is_at_end() => return Err(unclosed(open)),
                _ => {
                    return Err(ParseError::new(
                        ErrorKind::InvalidOperand,
                        Span::new(cursor.position(), cursor.position() + 1),
                        "expected ',' or ')' after an operand",
                    ));
                }
            }
        }
    }

    /// Reads one operand; None for a type without a name, which XLA drops.
    fn read_operand(
        &mut self,
        cursor: &mut Cursor<'_>,
        depth: usize,
        folded: &mut bool,
    ) -> Result<Option<Operand>> {
        let start = cursor.position();
        let mut shape = None;
        if starts_shape(cursor) {
            shape = Some(parse_shape(cursor, &mut self.shapes)?);
            cursor.skip_space()?;
            if matches!(cursor.peek(), b',' | b')') {
                if let (true, Some(_)) = (self.missing.is_some(), shape) {
                    let name = format!("missing.{}", self.next_row());
                    let row = self.push_placeholder(name.as_bytes(), shape)?;
                    return Ok(Some(Operand::Row(row)));
                }
                return match (self.single_instruction, shape) {
                    (true, Some(shape)) => {
                        let name = format!("parameter.{}", self.next_row());
                        self.push_parameter(name.as_bytes(), shape).map(|r| Some(Operand::Row(r)))
                    }
                    _ => Ok(None),
                };
            }
        }
        let Some(name) = cursor.name()? else {
            return Err(ParseError::new(
                ErrorKind::InvalidOperand,
                Span::new(start, (cursor.position() + 1).min(cursor.end()).max(start)),
                "expected an operand: a name, or an instruction",
            ));
        };
        let marked = name.start > 0 && self.text[name.start as usize - 1] == b'%';
        let after = cursor.position();
        cursor.skip_space()?;
        if cursor.peek() == b'(' && !marked {
            *folded = true;
            // Recursion is as deep as the nesting in the text, so it must not depend on the size of
            // the thread's stack.
            return stacker::maybe_grow(64 << 10, 1 << 20, || {
                self.read_nested(cursor, name, shape, depth)
            })
            .map(Some);
        }
        cursor.set_position(after);
        if cursor.peek() == b'#' {
            *folded = true;
            return self.read_tuple_path(cursor, name).map(Some);
        }
        let at = (name.start as usize, name.len());
        if let Some(row) = self.lookup(at) {
            return Ok(Some(Operand::Row(row)));
        }
        if self.single_instruction {
            let key: Box<[u8]> = self.text[name.range()].into();
            // A dropped slot removes its parameters.
            if let Some(row) = self.single_parameters.get(&key).copied()
                && self.is_parameter(row, &key)
            {
                return Ok(Some(Operand::Row(row)));
            }
            if let Some(shape) = shape {
                let row = self.push_parameter(&key, shape)?;
                self.single_parameters.insert(key, row);
                return Ok(Some(Operand::Row(row)));
            }
        }
        if let Some(row) = self.anonymous.get(&self.text[name.range()]) {
            return Ok(Some(Operand::Row(*row)));
        }
        if let Some(operand) = self.missing_operand(name, shape)? {
            return Ok(Some(operand));
        }
        if !marked && is_reserved(&self.text[name.range()]) {
            return Ok(None);
        }
        Ok(Some(Operand::Named(name)))
    }

    /// Whether `row` is the implicit parameter `name`.
    pub(super) fn is_parameter(&self, row: u32, name: &[u8]) -> bool {
        let columns = &self.columns;
        let at = row as usize;
        columns.opcodes.get(at) == Some(&Opcode::Parameter)
            && columns.name_lengths[at] as usize == name.len().min(255)
            && self.bytes(Span::new(0, name.len()).shifted(columns.name_starts[at])) == name
    }

    /// Appends an implicit parameter (single-instruction text).
    fn push_parameter(&mut self, name: &[u8], shape: ShapeId) -> Result<u32> {
        let number = self.parameters.len() as u64;
        let row = self.next_row();
        self.parameters.push((number, row));
        self.push_implicit(name, Opcode::Parameter, shape, &number.to_string(), &[])
    }

    /// Reads `%x#1#0`: get-tuple-elements, with one row per distinct path.
    fn read_tuple_path(&mut self, cursor: &mut Cursor<'_>, name: Span) -> Result<Operand> {
        let Some(mut row) = self.lookup((name.start as usize, name.len())) else {
            return Err(unknown_instruction(self.text, name));
        };
        for steps in 0.. {
            if cursor.peek() != b'#' {
                break;
            }
            cursor.advance(1);
            let at = cursor.position();
            let index = cursor.integer()?;
            let Some(index) = index.and_then(|index| u32::try_from(index).ok()) else {
                return Err(cursor.expected("a tuple index", "after '#'"));
            };
            let shape = self.columns.shapes[row as usize];
            let Some(elements) = self.shapes.table.tuple(shape) else {
                return Err(ParseError::new(
                    ErrorKind::InvalidOperand,
                    name.to(cursor.span_since(at)),
                    "'#' takes an element of a tuple, but this is not a tuple",
                ));
            };
            let Some(element) = elements.get(index as usize).copied() else {
                return Err(ParseError::new(
                    ErrorKind::InvalidOperand,
                    cursor.span_since(at),
                    format!("no element {index}: the tuple has {} elements", elements.len()),
                ));
            };
            row = match self.tuple_elements.get(&(row, index)) {
                Some(known) => *known,
                None => {
                    let mut spelled = &self.text[name.start as usize..cursor.position()];
                    // Full names would repeat all earlier steps of a long path at each step, and
                    // names longer than 254 bytes are cut.
                    let short = format!("get-tuple-element.anon.{at}");
                    if spelled.len() > if steps > 0 { 64 } else { 254 } {
                        spelled = short.as_bytes();
                    }
                    let operands = [Operand::Row(row)];
                    let tail = format!(", index={index}");
                    let new = self.push_implicit_with_tail(
                        spelled,
                        Opcode::GetTupleElement,
                        element,
                        "",
                        &operands,
                        tail.as_bytes(),
                    )?;
                    self.tuple_elements.insert((row, index), new);
                    self.tuple_element_keys.push((row, index));
                    new
                }
            };
        }
        Ok(Operand::Row(row))
    }

    /// Reads `multiply(a, b)` in place of an operand; the cursor is at the parenthesis.
    fn read_nested(
        &mut self,
        cursor: &mut Cursor<'_>,
        word: Span,
        shape: Option<ShapeId>,
        depth: usize,
    ) -> Result<Operand> {
        if depth >= MAX_NESTING {
            return Err(ParseError::new(
                ErrorKind::TooDeep,
                word,
                format!("instructions nest deeper than {MAX_NESTING} levels"),
            ));
        }
        let Some(opcode) = Opcode::from_bytes(&self.text[word.range()]) else {
            return Err(ParseError::new(
                ErrorKind::InvalidOperand,
                word,
                "expected an operand: a name, or an instruction with a known opcode",
            ));
        };
        let open = cursor.position();
        let mut operands = Operands::default();
        let mut payload = Span::EMPTY;
        if opcode == Opcode::Parameter {
            let whole = cursor.balanced()?;
            payload = Span { start: whole.start + 1, end: whole.end - 1 };
            let number = self.parameter_payload(payload)?;
            if self.has_parameter(number) {
                return Err(ParseError::new(
                    ErrorKind::DuplicateParameter,
                    word,
                    format!("this computation already has parameter {number}"),
                ));
            }
            self.parameters.push((number, self.next_row()));
        } else if opcode == Opcode::Constant {
            cursor.advance(1);
            cursor.skip_space()?;
            let start = cursor.position();
            if matches!(cursor.peek(), b'{' | b'(') {
                cursor.balanced()?;
            } else {
                while !matches!(cursor.peek(), b',' | b')') && !cursor.is_at_end() {
                    cursor.advance(1);
                }
            }
            payload = cursor.span_since(start);
            cursor.expect(b')', "after a literal")?;
        } else {
            operands = self.read_operands(cursor, depth + 1)?;
        }
        self.check_operand_count(opcode, operands.list.len(), word, open)?;
        let shape = match shape {
            Some(shape) => shape,
            None => self.infer_shape(opcode, &operands.list, &[], &[], word)?,
        };
        let payload = String::from_utf8_lossy(&self.text[payload.range()]).into_owned();
        // XLA generates these names too, and text may refer to them.
        let mut name = format!("{}.anon", opcode.as_str());
        if self.anonymous.contains_key(name.as_bytes()) {
            name = format!("{name}.{}", self.anonymous.len());
        }
        let row = self.push_implicit(name.as_bytes(), opcode, shape, &payload, &operands.list)?;
        let key: Box<[u8]> = name.into_bytes().into();
        self.anonymous_keys.push(key.clone());
        self.anonymous.insert(key, row);
        Ok(Operand::Row(row))
    }

    /// Appends an implicit row; its text goes to the arena.
    pub(super) fn push_implicit(
        &mut self,
        name: &[u8],
        opcode: Opcode,
        shape: ShapeId,
        payload: &str,
        operands: &[Operand],
    ) -> Result<u32> {
        self.push_implicit_with_tail(name, opcode, shape, payload, operands, b"")
    }

    pub(super) fn push_implicit_with_tail(
        &mut self,
        name: &[u8],
        opcode: Opcode,
        shape: ShapeId,
        payload: &str,
        operands: &[Operand],
        tail: &[u8],
    ) -> Result<u32> {
        let mut line = Vec::with_capacity(name.len() + payload.len() + tail.len() + 32);
        line.push(b'%');
        line.extend_from_slice(name);
        line.extend_from_slice(b" = ");
        line.extend_from_slice(opcode.as_str().as_bytes());
        line.push(b'(');
        line.extend_from_slice(payload.as_bytes());
        line.push(b')');
        let tail_at = line.len();
        line.extend_from_slice(tail);
        let span = self.append_to_arena(&line)?;
        self.push_operands(operands);
        let row = self.next_row();
        let tail = Span { start: span.start + tail_at as u32, end: span.end };
        let name = (span.start as usize + 1, name.len());
        self.push_row(opcode, Flags::IMPLICIT, shape, name, tail, NO_METADATA);
        Ok(row)
    }

    /// Appends the operands of the row that will be pushed next.
    pub(super) fn push_operands(&mut self, operands: &[Operand]) {
        for operand in operands {
            let row = match *operand {
                Operand::Row(row) => row,
                Operand::Named(name) => match self.lookup((name.start as usize, name.len())) {
                    Some(row) => row,
                    None => {
                        let slot = Some(self.columns.operands.len() as u32);
                        self.pending.push(Pending { row: self.next_row(), slot, name });
                        u32::MAX
                    }
                },
            };
            self.columns.operands.push(row);
        }
    }

    /// Whether the computation being read already has parameter `number`.
    fn has_parameter(&mut self, number: u64) -> bool {
        for (index, (known, _)) in self.parameters.iter().enumerate().skip(self.indexed_parameters)
        {
            self.parameter_index.insert(*known, index);
        }
        self.indexed_parameters = self.parameters.len();
        // The index entry of a removed parameter may point to a different parameter.
        let index = self.parameter_index.get(&number).copied();
        index.and_then(|index| self.parameters.get(index)).is_some_and(|known| known.0 == number)
    }

    /// Parses the number in `parameter(number)`.
    pub(super) fn parameter_payload(&self, payload: Span) -> Result<u64> {
        let mut cursor = Cursor::within(self.text, payload);
        let number = cursor.integer()?;
        cursor.skip_space()?;
        match number.and_then(|number| u64::try_from(number).ok()) {
            Some(number) if cursor.is_at_end() => Ok(number),
            _ => Err(ParseError::new(
                ErrorKind::InvalidOperand,
                payload,
                "expected a parameter number",
            )),
        }
    }

    pub(super) fn check_operand_count(
        &self,
        opcode: Opcode,
        count: usize,
        word: Span,
        open: usize,
    ) -> Result<()> {
        use crate::ir::Arity;
        if opcode.arity().accepts(count) {
            return Ok(());
        }
        let wanted = match opcode.arity() {
            Arity::Exactly(1) => "1 operand".to_string(),
            Arity::Exactly(n) => format!("{n} operands"),
            Arity::AtLeast(n) => format!("at least {n} operands"),
            Arity::Even => "an even number of operands".to_string(),
            Arity::Odd => "an odd number of operands".to_string(),
            Arity::Any | Arity::Payload => "other operands".to_string(),
        };
        Err(ParseError::new(
            ErrorKind::OperandCount,
            Span::new(word.start as usize, open + 1),
            format!("{} takes {wanted}, but has {count}", opcode.as_str()),
        ))
    }
}

/// Words that XLA reads as the start of a type or an instruction, not as a name.
fn is_reserved(word: &[u8]) -> bool {
    ElementType::from_bytes(word).is_some()
        || super::instruction::opcode_of(word).0 != Opcode::Unknown
}

/// Skips an operand slot that XLA drops: a slot that XLA cannot read although it stops at the end
/// of the slot, such as a type without a name or an opcode without operands. For any other slot,
/// returns false and sets `stopped` to the position where reading stopped.
fn skip_droppable(cursor: &mut Cursor<'_>, stopped: &mut usize) -> bool {
    let mut ahead = *cursor;
    if !starts_shape(cursor) && !is_reserved(ahead.identifier()) {
        return false;
    }
    let mut depth = 0usize;
    loop {
        match ahead.peek() {
            b',' if depth == 0 => break,
            b')' if depth == 0 => break,
            b'(' | b'{' => depth += 1,
            b')' | b'}' => depth = depth.saturating_sub(1),
            b'%' | b'"' | b'=' | b'\n' => {
                *stopped = ahead.position();
                return false;
            }
            _ if ahead.is_at_end() => {
                *stopped = ahead.position();
                return false;
            }
            _ => {}
        }
        ahead.advance(1);
    }
    *cursor = ahead;
    true
}

/// The error for an undefined name.
#[cold]
pub(super) fn unknown_instruction(text: &[u8], name: Span) -> ParseError {
    let shown = String::from_utf8_lossy(&text[name.range()]).into_owned();
    ParseError::new(
        ErrorKind::UnknownInstruction,
        name,
        format!("no instruction of this computation is called {shown}"),
    )
}

#[cold]
fn unclosed(open: usize) -> ParseError {
    ParseError::new(ErrorKind::UnclosedBracket, Span::new(open, open + 1), "'(' is never closed")
}
