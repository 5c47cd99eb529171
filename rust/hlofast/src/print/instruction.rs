//! One instruction as canonical text.

use super::names::is_tuple_path;
use super::shape::{number, write_array_in};
use super::value::{Spacing, write_literal, write_value};
use super::{Printer, Seen, is_metadata, literal_with_signs, wrapped, write_shape};
use crate::ir::{Attribute, Attributes, CallRole, Flags, Opcode, Row};

impl Printer<'_> {
    pub(super) fn instruction(&mut self, row: Row) {
        let module = self.module;
        if module.flags(row) & Flags::ROOT != 0 && !self.is_copy {
            self.out.extend_from_slice(b"ROOT ");
        }
        self.name(row);
        self.out.extend_from_slice(b" = ");
        // Shapes that are in the text are printed; shapes that the text implies may stay implied.
        let is_implied =
            module.flags(row) & Flags::SHAPE_INFERRED != 0 || is_tuple_path(module, row);
        // XLA infers a permuted layout if the shape is omitted, but assumes the default layout if
        // the shape is written without a layout.
        let is_permuted = is_implied
            && module.opcode(row) == Opcode::Transpose
            && module.shapes().array(module.shape(row)).is_some_and(|array| array.layout.is_none());
        if !is_implied || !is_permuted && self.affords(module.shape(row)) {
            self.shape(row);
            self.out.push(b' ');
        }
        if self.keeps_sugar(row) || module.opcode(row) == Opcode::Unknown {
            self.out.extend_from_slice(module.opcode_text(row));
        } else {
            self.out.extend_from_slice(module.opcode(row).as_str().as_bytes());
        }
        self.out.push(b'(');
        match module.opcode(row) {
            Opcode::Parameter => {
                // The placeholders of a fragment have no number.
                if let Some(parameter) = module.parameter_number(row) {
                    number(&mut self.out, format_args!("{parameter}"));
                }
            }
            Opcode::Constant => {
                let signed = if self.keeps_signs { literal_with_signs(module, row) } else { None };
                let payload = module.bytes(module.opcode_and_payload(row).1);
                let payload = signed.as_deref().unwrap_or(payload).trim_ascii();
                write_literal(&mut self.out, payload, Spacing::Readable);
            }
            _ => self.operands(row),
        }
        self.out.push(b')');
        self.attributes(row);
    }

    fn shape(&mut self, row: Row) {
        let (module, comments) = (self.module, self.is_long());
        let layouts = self.options.layouts;
        let renamed = self.names.renaming.shapes.get(&row.0).copied();
        let shape = renamed.unwrap_or(module.shape(row));
        if let Some(space) = self.names.renaming.spaces.get(&row.0) {
            write_array_in(&mut self.out, module.shapes(), shape, *space);
            return;
        }
        write_shape(&mut self.out, module.shapes(), shape, layouts, comments);
    }

    fn operands(&mut self, row: Row) {
        for (index, operand) in self.module.operands(row).iter().enumerate() {
            self.separator(index);
            let operand = Row(*operand);
            if self.options.operand_shapes && self.affords(self.module.shape(operand)) {
                self.shape(operand);
                self.out.push(b' ');
            }
            self.reference(operand);
        }
    }

    /// Appends the name of `row` as an operand; folded tuple elements are written as `%x#1#0`.
    fn reference(&mut self, row: Row) {
        let module = self.module;
        let mut path = Vec::new();
        let mut base = row;
        while self.options.fold
            && is_tuple_path(module, base)
            && let Some(operand) = module.operands(base).first()
        {
            path.push(module.attribute_bytes(base, "index").unwrap_or_default());
            base = Row(*operand);
        }
        self.name(base);
        for index in path.into_iter().rev() {
            self.out.push(b'#');
            self.out.extend_from_slice(index);
        }
    }

    fn attributes(&mut self, row: Row) {
        let module = self.module;
        let mut list: Attributes<'_> = module.attributes(row);
        // The row whose call edges the attributes name; with sugar, the wrapped instruction.
        let mut caller = row;
        if let Some(inner) = wrapped(module, row) {
            if self.keeps_sugar(row) {
                list = Attributes::of_text(module, module.tail(row));
                caller = Row(module.computation(inner).root);
            } else {
                self.out.extend_from_slice(b", calls=");
                self.computation_name(inner);
            }
        }
        let is_wrapped =
            module.flags(row) & (Flags::SUGAR | Flags::IMPLICIT) == Flags::SUGAR | Flags::IMPLICIT;
        let mut seen = Seen::default();
        for Attribute { key, value } in list {
            let (key, value) = (module.bytes(key), module.bytes(value));
            let is_moved = self.names.renaming.shapes.contains_key(&row.0)
                && matches!(key, b"backend_config" | b"frontend_attributes");
            if !seen.is_new(key) || self.is_left_out(key) || is_moved {
                continue;
            }
            if key == b"control-predecessors" {
                if !is_wrapped && !self.is_copy {
                    self.control_predecessors(row);
                }
                continue;
            }
            if let Some(role) = CallRole::from_key(key)
                && self.calls(caller, role)
            {
                continue;
            }
            self.out.extend_from_slice(b", ");
            self.out.extend_from_slice(key);
            self.out.push(b'=');
            match self.names.renaming.channels.get(&row.0) {
                Some(channel) if key == b"channel_id" => {
                    number(&mut self.out, format_args!("{channel}"));
                }
                _ => write_value(&mut self.out, key, value, Spacing::Readable),
            }
        }
    }

    fn is_left_out(&self, key: &[u8]) -> bool {
        !self.options.metadata && is_metadata(key)
            || !self.options.backend_config && key == b"backend_config"
    }

    fn control_predecessors(&mut self, row: Row) {
        let pairs = self.module.control_predecessors();
        let start = pairs.partition_point(|(user, _)| *user < row);
        let rest = pairs.get(start..).unwrap_or_default();
        let own = rest.iter().take_while(|(user, _)| *user == row);
        for (index, (_, predecessor)) in own.enumerate() {
            let open: &[u8] = if index == 0 { b", control-predecessors={" } else { b", " };
            self.out.extend_from_slice(open);
            self.name(*predecessor);
        }
        if rest.first().is_some_and(|(user, _)| *user == row) {
            self.out.push(b'}');
        }
    }

    /// Appends `, role=%computation`; returns whether `row` calls a computation in that role.
    fn calls(&mut self, row: Row, role: CallRole) -> bool {
        let is_list = matches!(role, CallRole::Branch | CallRole::Called);
        let calls = self.module.calls(row);
        let mut count = 0;
        for call in calls.iter().filter(|call| call.role == role) {
            self.out.extend_from_slice(b", ");
            if count == 0 {
                self.out.extend_from_slice(role.as_str().as_bytes());
                self.out.push(b'=');
                if is_list {
                    self.out.push(b'{');
                }
            }
            self.computation_name(call.computation);
            count += 1;
            if !is_list {
                return true;
            }
        }
        if count > 0 {
            self.out.push(b'}');
        }
        count > 0
    }
}
