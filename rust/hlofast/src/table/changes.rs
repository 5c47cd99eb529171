//! The tables of differences between two modules.

use super::{Columns, Field, Origin, common, row_or_none};
use crate::diff::{Change, Diff};
use crate::ir::Row;

/// The row of a change in one of the modules.
type RowOf = fn(&Change) -> Option<Row>;

/// One row per change from `before` to `after`: all changes, or only changes that do not follow
/// from others.
pub fn changes(before: &Origin<'_>, after: &Origin<'_>, diff: &Diff, only_causes: bool) -> Columns {
    let changes = diff.changes.iter();
    let each = || changes.clone().filter(|change| !(only_causes && change.is_consequence));
    let mut table = Columns::default();
    table.texts(
        Field::word("kind", "The kind of change: added, removed, changed and so on."),
        each().map(|change| change.kind.as_str()),
    );
    table.texts(
        Field::text("aspect", "The property of the instruction that changed.").nullable(),
        each().map(|change| &change.aspect),
    );
    // Origins come from the second module if it has the instruction.
    let place = |change: &Change| match (change.before, change.after) {
        (_, Some(row)) => Some((after, row)),
        (Some(row), None) => Some((before, row)),
        (None, None) => None,
    };
    let opcode = |change| {
        place(change).map(|(origin, row)| origin.module.opcode_text(row)).unwrap_or_default()
    };
    table.texts(common::opcode().nullable(), each().map(opcode));
    table.texts(
        Field::text("before", "The value in the first module.").nullable(),
        each().map(|change| &change.before_text),
    );
    table.texts(
        Field::text("after", "The value in the second module.").nullable(),
        each().map(|change| &change.after_text),
    );
    table.flags(
        Field::flag("is_consequence", "Whether this change follows from another one.")
            .label("consequence"),
        each().map(|change| change.is_consequence),
    );
    let sides: [(_, _, RowOf); 2] = [
        (
            [
                common::name().renamed("name_before", "The name in the first module."),
                common::computation()
                    .renamed("computation_before", "The computation in the first module."),
                common::instruction()
                    .renamed("instruction_before", "The row number in the first module."),
            ],
            before.module,
            |c| c.before,
        ),
        (
            [
                common::name().renamed("name_after", "The name in the second module."),
                common::computation()
                    .renamed("computation_after", "The computation in the second module."),
                common::instruction()
                    .renamed("instruction_after", "The row number in the second module."),
            ],
            after.module,
            |c| c.after,
        ),
    ];
    for ([name, computation, instruction], module, row) in sides {
        let own_name = |change| row(change).map(|row| module.instruction_name(row));
        table.texts(name.nullable(), each().map(|change| own_name(change).unwrap_or_default()));
        let own_place =
            |change| row(change).map(|row| module.computation_name(module.computation_of(row)));
        table.texts(
            computation.nullable(),
            each().map(|change| own_place(change).unwrap_or_default()),
        );
        table.numbers(instruction.nullable(), each().map(|change| row_or_none(row(change))));
    }
    let op_name = |change| place(change).and_then(|(origin, row)| origin.op_name(row));
    table.texts(common::op_name(), each().map(|change| op_name(change).unwrap_or_default()));
    let file = |change| place(change).and_then(|(origin, row)| origin.source_file(row));
    table.texts(common::source_file(), each().map(|change| file(change).unwrap_or_default()));
    let line = |change| place(change).map_or(-1, |(origin, row)| origin.source_line(row));
    table.numbers(common::source_line(), each().map(line));
    table
}

/// One row per instruction that both modules have.
pub fn pairs(diff: &Diff) -> Columns {
    let mut table = Columns::default();
    table.rows(
        Field::instruction("instruction_before", "The row number in the first module."),
        diff.pairs.iter().map(|pair| pair.0),
    );
    table.rows(
        Field::instruction("instruction_after", "The row number in the second module."),
        diff.pairs.iter().map(|pair| pair.1),
    );
    table
}
