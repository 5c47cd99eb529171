//! Shapes of loop state that change, and what follows for signatures and operands.

use super::Use;
use super::stack::ShapeText;
use crate::edit::Edit;
use crate::ir::{ComputationId, Flags, Module, Opcode, Row};
use crate::print::shape_to_text;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Shapes that change, of all stacks together.
#[derive(Default)]
pub(super) struct Shapes {
    arrays: HashSet<Row>,
    elements: BTreeMap<Row, HashMap<usize, ShapeText>>,
    /// Parameters of fusions that take a slice now.
    parameters: BTreeMap<Row, ShapeText>,
}

impl Shapes {
    /// Notes that `row` is another array; false if it is already.
    pub fn change_array(&mut self, row: Row) -> bool {
        self.arrays.insert(row)
    }

    /// Notes that an element of `row` is another array.
    pub fn change_element(&mut self, row: Row, element: usize, shape: ShapeText) {
        self.elements.entry(row).or_default().insert(element, shape);
    }

    /// Notes that a fusion's parameter takes something else.
    pub fn change_parameter(&mut self, row: Row, shape: ShapeText) {
        self.parameters.insert(row, shape);
    }

    /// Adds the edits: shapes of tuples, signatures, and operands that are written with shapes.
    pub fn edit(&self, module: &Module, replaced: &HashSet<Use>, edits: &mut Vec<Edit>) {
        let mut computations = BTreeSet::new();
        for row in self.elements.keys().chain(self.parameters.keys()) {
            let shape = self.text(module, *row, true);
            edits.push(Edit::ReplaceShape { row: *row, shape });
            let is_root = module.flags(*row) & Flags::ROOT != 0;
            if is_root || module.opcode(*row) == Opcode::Parameter {
                computations.insert(module.computation_of(*row));
            }
        }
        for computation in computations {
            let signature = self.signature(module, computation);
            edits.push(Edit::ChangeSignature { computation, signature });
        }
        let changed = self.elements.keys().chain(self.parameters.keys());
        for row in self.arrays.iter().chain(changed) {
            for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
                let payload = module.bytes(module.opcode_and_payload(user).1);
                if !payload.contains(&b'[') {
                    continue;
                }
                for (index, operand) in module.operands(user).iter().enumerate() {
                    let one = Use { user, operand: index };
                    if *operand == row.0 && !replaced.contains(&one) {
                        let name = module.instruction_name(*row).to_vec();
                        edits.push(Edit::ReplaceOperand { row: user, index, name });
                    }
                }
            }
        }
    }

    /// The shape of a tuple with what changes in it.
    fn text(&self, module: &Module, row: Row, layouts: bool) -> Vec<u8> {
        if let Some(shape) = self.parameters.get(&row) {
            return if layouts { shape.full.clone() } else { shape.bare.clone() };
        }
        let (Some(changes), Some(parts)) =
            (self.elements.get(&row), module.shapes().tuple(module.shape(row)))
        else {
            return shape_to_text(module, module.shape(row), layouts);
        };
        let mut text = b"(".to_vec();
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                text.extend_from_slice(b", ");
            }
            match changes.get(&index) {
                Some(shape) if layouts => text.extend_from_slice(&shape.full),
                Some(shape) => text.extend_from_slice(&shape.bare),
                None => text.extend_from_slice(&shape_to_text(module, *part, layouts)),
            }
        }
        text.push(b')');
        text
    }

    fn signature(&self, module: &Module, id: ComputationId) -> Vec<u8> {
        let mut text = b"(".to_vec();
        for (index, row) in module.parameters(id).into_iter().enumerate() {
            if index > 0 {
                text.extend_from_slice(b", ");
            }
            text.extend_from_slice(module.instruction_name(row));
            text.extend_from_slice(b": ");
            text.extend_from_slice(&self.text(module, row, false));
        }
        text.extend_from_slice(b") -> ");
        let root = Row(module.computation(id).root);
        text.extend_from_slice(&self.text(module, root, false));
        text
    }
}
