//! Copies of whole stacks in another order, which XLA for GPUs makes between the two loops.

use crate::flow::moved::step_back;
use crate::flow::origin::Place;
use crate::ir::{CallRole, Module, Opcode, Row};

/// Limit on the rows of a fusion that turn a value one after another.
const MOST_TURNS: usize = 16;

/// Goes from the value at `at` to the one that its row only copies in another order. Returns false, and
/// leaves `at` unchanged, if the row does anything else.
pub fn turn_back(module: &Module, at: &mut Place) -> bool {
    let Some(first) = module.operands(at.row).first().map(|row| Row(*row)) else { return false };
    match module.opcode(at.row) {
        Opcode::Transpose | Opcode::Reshape => at.row = first,
        Opcode::Fusion => match turned_by(module, at) {
            Some(place) => *at = place,
            None => return false,
        },
        _ => return false,
    }
    true
}

/// The operand that a fusion only copies in another order into the result at `at`.
fn turned_by(module: &Module, at: &Place) -> Option<Place> {
    let fused = module.computation(module.called(at.row, CallRole::Calls)?);
    let mut inner = Place { row: Row(fused.root), path: at.path.clone() };
    for _ in 0..MOST_TURNS {
        if module.opcode(inner.row) == Opcode::Parameter {
            let number = usize::try_from(module.parameter_number(inner.row)?).ok()?;
            let operand = module.operands(at.row).get(number)?;
            return Some(Place { row: Row(*operand), path: inner.path });
        }
        let is_turned = matches!(module.opcode(inner.row), Opcode::Transpose | Opcode::Reshape);
        if is_turned {
            inner.row = Row(*module.operands(inner.row).first()?);
        } else if !step_back(module, &mut inner) {
            return None;
        }
    }
    None
}
