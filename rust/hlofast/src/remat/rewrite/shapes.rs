//! Changes shapes of loop state, and the signatures and operands that depend on them.

use super::Use;
use super::stack::ShapeText;
use crate::edit::Edit;
use crate::ir::{ComputationId, Flags, Module, Opcode, Row, ShapeId};
use crate::print::shape_to_text;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The shapes that change, for all stacks together.
#[derive(Default)]
pub(super) struct Shapes {
    arrays: HashSet<Row>,
    /// By tuple: the elements that change, by path.
    parts: BTreeMap<Row, BTreeMap<Vec<usize>, ShapeText>>,
    /// Parameters of fusions that now take a slice.
    parameters: BTreeMap<Row, ShapeText>,
}

impl Shapes {
    /// Records a new shape for the array `row`; false if a new shape is already recorded.
    pub fn change_array(&mut self, row: Row) -> bool {
        self.arrays.insert(row)
    }

    /// Records a new shape for an element of `row`.
    pub fn change_element(&mut self, row: Row, element: usize, shape: ShapeText) {
        self.change_part(row, vec![element], shape);
    }

    /// Records a new shape for a nested element; paths start at the outermost tuple.
    pub fn change_part(&mut self, row: Row, path: Vec<usize>, shape: ShapeText) {
        self.parts.entry(row).or_default().insert(path, shape);
    }

    /// Records a new shape for a fusion's parameter.
    pub fn change_parameter(&mut self, row: Row, shape: ShapeText) {
        self.parameters.insert(row, shape);
    }

    /// Adds the edits: shapes of tuples, signatures, and operands that are written with shapes.
    pub fn edit(&self, module: &Module, replaced: &HashSet<Use>, edits: &mut Vec<Edit>) {
        let mut computations = BTreeSet::new();
        for row in self.parts.keys().chain(self.parameters.keys()) {
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
        let changed = self.parts.keys().chain(self.parameters.keys());
        for row in self.arrays.iter().chain(changed) {
            for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
                let payload = module.bytes(module.opcode_and_payload(user).1);
                if !payload.contains(&b'[') {
                    continue;
                }
                for (index, operand) in module.operands(user).iter().enumerate() {
                    let usage = Use { user, operand: index };
                    if *operand == row.0 && !replaced.contains(&usage) {
                        let name = module.instruction_name(*row).to_vec();
                        edits.push(Edit::ReplaceOperand { row: user, index, name });
                    }
                }
            }
        }
    }

    /// The text of a tuple's shape with the changes.
    fn text(&self, module: &Module, row: Row, layouts: bool) -> Vec<u8> {
        if let Some(shape) = self.parameters.get(&row) {
            return if layouts { shape.full.clone() } else { shape.bare.clone() };
        }
        let shape = module.shape(row);
        match self.parts.get(&row) {
            Some(changes) => {
                let mut text = Vec::new();
                push_tuple(module, shape, changes, &mut Vec::new(), layouts, &mut text);
                text
            }
            None => shape_to_text(module, shape, layouts),
        }
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

/// Appends the part of a shape at `path`, with the changes.
fn push_tuple(
    module: &Module,
    shape: ShapeId,
    changes: &BTreeMap<Vec<usize>, ShapeText>,
    path: &mut Vec<usize>,
    layouts: bool,
    text: &mut Vec<u8>,
) {
    if let Some(change) = changes.get(path) {
        text.extend_from_slice(if layouts { &change.full } else { &change.bare });
        return;
    }
    // Longer paths that start with this path follow it.
    let is_within =
        changes.range(path.clone()..).next().is_some_and(|(at, _)| at.starts_with(path));
    let Some(parts) = module.shapes().tuple(shape).filter(|_| is_within) else {
        text.extend_from_slice(&shape_to_text(module, shape, layouts));
        return;
    };
    for (index, part) in parts.iter().enumerate() {
        text.extend_from_slice(if index == 0 { b"(" } else { b", " });
        path.push(index);
        push_tuple(module, *part, changes, path, layouts, text);
        path.pop();
    }
    text.push(b')');
}
