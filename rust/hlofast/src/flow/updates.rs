//! Arrays that a row updates in place.

use crate::ir::{CallRole, Module, Opcode, Row};

/// Limit on the views between a result and the update that it shows.
const MOST_VIEWS: usize = 64;

/// By array of the result of a row: the `dynamic-update-slice` that makes it, in another form or as it
/// is. Empty unless each element of the result is one array.
pub(crate) fn updates(module: &Module, row: Row) -> Vec<Option<Row>> {
    let root = match module.opcode(row) {
        Opcode::DynamicUpdateSlice => return vec![Some(row)],
        Opcode::Fusion => module.called(row, CallRole::Calls),
        _ => None,
    };
    let Some(root) = root.map(|id| Row(module.computation(id).root)) else { return Vec::new() };
    let results: Vec<Row> = match module.opcode(root) {
        Opcode::Tuple => module.operands(root).iter().copied().map(Row).collect(),
        _ => vec![root],
    };
    let is_nested = |result: &Row| module.shapes().tuple(module.shape(*result)).is_some();
    match results.iter().any(is_nested) {
        true => Vec::new(),
        false => results.into_iter().map(|result| update_of(module, result)).collect(),
    }
}

fn update_of(module: &Module, result: Row) -> Option<Row> {
    let mut at = result;
    for _ in 0..MOST_VIEWS {
        match module.opcode(at) {
            Opcode::DynamicUpdateSlice => return Some(at),
            Opcode::Bitcast | Opcode::Convert | Opcode::Copy | Opcode::Reshape => {
                at = Row(*module.operands(at).first()?);
            }
            _ => return None,
        }
    }
    None
}
