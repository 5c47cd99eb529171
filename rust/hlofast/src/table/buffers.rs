//! The table of values in memory.

use super::{Columns, Origin, ScopeTexts, index_text, shape_text};
use crate::flow::Attribution;
use crate::ir::{Module, Row};
use crate::memory::{Classes, LiveValue, Memory};

/// One row per value of `values`.
pub fn buffers(
    module: &Module,
    memory: &Memory,
    attribution: &Attribution,
    values: &[LiveValue],
) -> Columns {
    let phases = attribution.phase.get(..module.row_count()).unwrap_or_default();
    let classes = Classes::new(module, memory, phases);
    // What a loop carries has no name of its own: that of the loop stands for it.
    let described: Vec<Row> =
        values.iter().map(|value| memory.described_by(module, value.row)).collect();
    let each = || values.iter();
    let rows = || described.iter().map(|row| row.0 as usize);
    let mut table = Columns::default();
    table.rows("instruction", each().map(|value| value.row));
    table.texts("name", each().map(|value| module.instruction_name(value.row)));
    table.texts("index", each().map(|value| index_text(&value.path)));
    table.texts("opcode", each().map(|value| module.opcode_text(value.row)));
    // Written shapes stay far below this; inferred ones share parts and could be endless.
    let mut left = module.text().len().saturating_mul(8).saturating_add(1 << 20);
    let shape = |value: &LiveValue| {
        let text = shape_text(module, value.shape, left.max(256));
        left = left.saturating_sub(text.len());
        text
    };
    table.texts("shape", each().map(shape));
    table.numbers("bytes", each().map(|value| value.bytes));
    table.numbers("memory_space", each().map(|value| value.memory_space));
    table.numbers("first_step", each().map(|value| i64::from(value.first_step)));
    table.numbers("last_step", each().map(|value| i64::from(value.last_step)));
    let byte_steps = |value: &LiveValue| {
        let steps = i64::from(value.last_step) - i64::from(value.first_step) + 1;
        value.bytes.saturating_mul(steps.max(0))
    };
    table.numbers("byte_steps", each().map(byte_steps));
    table.numbers("buffer", each().map(|value| i64::from(value.buffer)));
    table.texts("class", each().map(|value| classes.of(value).as_str()));
    table.texts("phase", rows().map(|row| phases.get(row).map_or("", |phase| phase.as_str())));
    let scopes = ScopeTexts::new(module, &attribution.scopes);
    let scope = |row: usize| scopes.text(attribution.scope.get(row).copied().unwrap_or(0));
    table.texts("scope", rows().map(scope));
    Origin::new(module).columns(described.iter().copied(), &mut table);
    table
}
