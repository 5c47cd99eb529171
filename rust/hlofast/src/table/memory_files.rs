//! The table of one of XLA's memory files.

use super::{Columns, Field, common, row_or_none, write_index};
use crate::ir::Module;
use crate::memory::FileRow;

/// One row per entry of the file.
pub fn memory_file(module: &Module, rows: &[FileRow]) -> Columns {
    let each = || rows.iter();
    let mut table = Columns::default();
    table.numbers(common::instruction().nullable(), each().map(|entry| row_or_none(entry.row)));
    let name = |entry: &FileRow| entry.row.map(|row| module.instruction_name(row));
    table.texts(common::name().nullable(), each().map(|entry| name(entry).unwrap_or_default()));
    let doc = "Index of the value in a tuple result; {} for the whole result.";
    table.written(Field::text("index", doc).nullable(), each(), |entry, out| {
        if entry.row.is_some() {
            write_index(&entry.path, out);
        }
    });
    let field = Field::index("allocation", "The number of the allocation.").nullable();
    table.numbers(field, each().map(|entry| entry.allocation));
    let field = Field::text("kind", "The kind of allocation, as the file names it.").nullable();
    table.texts(field, each().map(|entry| &entry.kind));
    let field = Field::bytes("bytes", "Bytes of the value.").nullable().summed();
    table.numbers(field, each().map(|entry| entry.bytes));
    let doc = "Whether the bytes are exact; some files round them.";
    table.flags(Field::flag("is_exact", doc).label("exact"), each().map(|entry| entry.is_exact));
    let field = Field::index("offset", "Offset in the allocation.").nullable();
    table.numbers(field, each().map(|entry| entry.offset));
    let field = Field::index("first_step", "The first step at which the value is live.").nullable();
    table.numbers(field, each().map(|entry| entry.steps.0));
    let field = Field::index("last_step", "The last step at which the value is live.").nullable();
    table.numbers(field, each().map(|entry| entry.steps.1));
    let field =
        Field::flag("is_at_peak", "Whether the value is live at the peak.").label("at peak");
    table.flags(field, each().map(|entry| entry.is_at_peak));
    let field = Field::count("values", "Values that share the memory.").nullable();
    table.numbers(field, each().map(|entry| entry.values));
    table
}
