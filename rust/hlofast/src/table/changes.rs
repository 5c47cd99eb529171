//! The tables of what differs between two modules.

use super::{Columns, Origin, row_or_none};
use crate::diff::{Change, Diff};
use crate::ir::{Module, Row};

/// The row of a change in one of the modules.
type RowOf = fn(&Change) -> Option<Row>;

/// One row per change of `before` to `after`: all, or those that no other brought about.
pub fn changes(before: &Module, after: &Module, diff: &Diff, only_causes: bool) -> Columns {
    let changes = diff.changes.iter();
    let each = || changes.clone().filter(|change| !(only_causes && change.is_consequence));
    let mut table = Columns::default();
    table.texts("kind", each().map(|change| change.kind.as_str()));
    table.texts("aspect", each().map(|change| &change.aspect));
    // What the second module says of an instruction, where it has it.
    let origins = (Origin::new(before), Origin::new(after));
    let place = |change: &Change| match (change.before, change.after) {
        (_, Some(row)) => Some((after, &origins.1, row)),
        (Some(row), None) => Some((before, &origins.0, row)),
        (None, None) => None,
    };
    let opcode =
        |change| place(change).map(|(module, _, row)| module.opcode_text(row)).unwrap_or_default();
    table.texts("opcode", each().map(opcode));
    table.texts("before", each().map(|change| &change.before_text));
    table.texts("after", each().map(|change| &change.after_text));
    table.flags("is_consequence", each().map(|change| change.is_consequence));
    let sides: [(_, _, RowOf); 2] = [
        (["name_before", "computation_before", "instruction_before"], before, |c| c.before),
        (["name_after", "computation_after", "instruction_after"], after, |c| c.after),
    ];
    for ([name, computation, instruction], module, row) in sides {
        let own_name = |change| row(change).map(|row| module.instruction_name(row));
        table.texts(name, each().map(|change| own_name(change).unwrap_or_default()));
        let own_place =
            |change| row(change).map(|row| module.computation_name(module.computation_of(row)));
        table.texts(computation, each().map(|change| own_place(change).unwrap_or_default()));
        table.numbers(instruction, each().map(|change| row_or_none(row(change))));
    }
    let op_name = |change| place(change).and_then(|(_, origin, row)| origin.op_name(row));
    table.texts("op_name", each().map(|change| op_name(change).unwrap_or_default()));
    let file = |change| place(change).and_then(|(_, origin, row)| origin.source_file(row));
    table.texts("source_file", each().map(|change| file(change).unwrap_or_default()));
    let line = |change| place(change).map_or(0, |(_, origin, row)| origin.source_line(row));
    table.numbers("source_line", each().map(line));
    table
}

/// One row per instruction that both modules have.
pub fn pairs(diff: &Diff) -> Columns {
    let mut table = Columns::default();
    table.rows("instruction_before", diff.pairs.iter().map(|pair| pair.0));
    table.rows("instruction_after", diff.pairs.iter().map(|pair| pair.1));
    table
}
