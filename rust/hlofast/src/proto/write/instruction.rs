//! `HloInstructionProto`: the fields of all instructions.

use super::Writer;
use super::keys::Keys;
use super::literal;
use super::own;
use super::shape::{Shapes, Style};
use super::wire::Message;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::attribute::{Key, field_of};
use crate::ir::shape_text::parse_shape;
use crate::ir::{Call, CallRole, Opcode, Row, ShapeId, ShapeInterner};
use crate::text::Cursor;

impl Writer<'_> {
    /// Encodes `row`.
    pub(super) fn instruction(&mut self, row: Row) -> Result<Message> {
        let module = self.module;
        let opcode = module.opcode(row);
        let mut fields = Message::default();
        fields.text(1, self.names.row(row));
        if opcode == Opcode::Unknown {
            let (span, _) = module.opcode_and_payload(row);
            let word = String::from_utf8_lossy(module.opcode_text(row));
            let message = format!("{word} is not an opcode that XLA can read from a protobuf");
            return Err(ParseError::new(ErrorKind::UnknownOpcode, span, message));
        }
        fields.text(2, opcode.as_str().as_bytes());
        let place = self.place(row);
        // A literal always has a layout, and XLA requires the constant to have the same layout.
        let style = if opcode == Opcode::Constant { Style::Laid } else { Style::Full };
        let shape = self.shapes.get(module.shape(row), style);
        fields.element(3, shape.map_err(|error| super::at(error, place))?);
        fields.integer(35, self.id(row));
        self.operands(&mut fields, row)?;
        let mut keys = Keys::new(module, row)?;
        self.calls(&mut fields, &mut keys, row)?;
        own::common(self, &mut fields, &mut keys, row)?;
        match opcode {
            Opcode::Parameter => {
                let number = module.parameter_number(row).unwrap_or_default();
                fields.integer(9, i64::try_from(number).unwrap_or(i64::MAX));
            }
            Opcode::Constant => self.constant(&mut fields, row)?,
            _ => {}
        }
        own::write(self, &mut fields, &mut keys, row)?;
        keys.finish(opcode.as_str().as_bytes())?;
        Ok(fields)
    }

    /// Checks that operands precede their users and that XLA's reader accepts their number.
    fn operands(&self, fields: &mut Message, row: Row) -> Result<()> {
        let (module, opcode) = (self.module, self.module.opcode(row));
        if matches!(opcode, Opcode::Parameter | Opcode::Constant) {
            return Ok(());
        }
        let operands = module.operands(row);
        let fault = |kind, message: String| Err(ParseError::new(kind, self.place(row), message));
        if !opcode.arity().accepts(operands.len()) {
            let message = format!("{} with {} operands", opcode.as_str(), operands.len());
            return fault(ErrorKind::OperandCount, message);
        }
        if operands.iter().any(|operand| self.id(Row(*operand)) >= self.id(row)) {
            return fault(
                ErrorKind::ForwardReference,
                "an operand that depends on its user".into(),
            );
        }
        fields.integers(36, operands.iter().map(|operand| self.id(Row(*operand))));
        Ok(())
    }

    fn constant(&mut self, fields: &mut Message, row: Row) -> Result<()> {
        let (_, payload) = self.module.opcode_and_payload(row);
        let text = self.module.bytes(payload);
        let literal = literal::constant(text, &mut self.shapes, self.module.shape(row));
        // XLA also prints `{...}` for a constant without a value.
        if let Some(value) = literal.map_err(|error| error.shifted(payload.start))? {
            fields.message(const { field_of("literal") }, value);
        }
        Ok(())
    }

    /// The computations that `row` calls, in protobuf order.
    fn calls(&self, fields: &mut Message, keys: &mut Keys<'_>, row: Row) -> Result<()> {
        let opcode = self.module.opcode(row);
        if !opcode.may_call() {
            return Ok(());
        }
        let mut calls: Vec<&Call> = self.module.calls(row).iter().collect();
        for call in &calls {
            Key::from_bytes(call.role.as_str().as_bytes()).and_then(|key| keys.take(key));
        }
        if opcode == Opcode::CustomCall {
            // The list may be empty.
            keys.take(const { Key::of("called_computations") });
        }
        if matches!(opcode, Opcode::AsyncUpdate | Opcode::AsyncDone) {
            // These opcodes call the computation of the start at the end of their operand chain.
            return Ok(());
        }
        if calls.iter().any(|call| !self.is_written(call.computation)) {
            let message = "a computation that calls itself, which XLA does not read";
            return Err(ParseError::new(ErrorKind::InvalidComputation, self.place(row), message));
        }
        // The sort is stable, so branches of a conditional keep their order.
        calls.sort_by_key(|call| match call.role {
            CallRole::Condition | CallRole::Scatter | CallRole::FalseComputation => 1,
            _ => 0,
        });
        fields.integers(
            const { field_of("calls") },
            calls.iter().map(|call| self.computation_id(call.computation)),
        );
        Ok(())
    }

    /// The ids of the control predecessors of `row`.
    pub(super) fn predecessors(&self, row: Row) -> Vec<i64> {
        let module = self.module;
        if super::is_wrapped(module, row) {
            return Vec::new();
        }
        let pairs = module.control_predecessors();
        let start = pairs.partition_point(|(user, _)| *user < row);
        let own = pairs.iter().skip(start).take_while(|(user, _)| *user == row);
        own.map(|(_, predecessor)| self.id(*predecessor)).collect()
    }

    /// The `ShapeProto` of a shape in an attribute. Spans of errors are relative to `text`.
    pub(super) fn shape_of_text(&self, text: &[u8]) -> Result<Vec<u8>> {
        let mut interner = ShapeInterner::default();
        let id = whole_shape(text, &mut interner)?;
        let mut shapes = Shapes::new(&interner.table, self.limit);
        Ok(shapes.get(id, Style::Full)?.to_vec())
    }
}

/// The shape that the whole of `text` spells.
pub(super) fn whole_shape(text: &[u8], interner: &mut ShapeInterner) -> Result<ShapeId> {
    let mut cursor = Cursor::new(text);
    let id = parse_shape(&mut cursor, interner)?;
    cursor.skip_space()?;
    if cursor.is_at_end() { Ok(id) } else { Err(cursor.expected("the end", "after a shape")) }
}
