//! The table of values in memory.

use super::{Columns, Field, Origin, Texts, Values, common, shape_text, write_index};
use crate::flow::{Attribution, Phase};
use crate::ir::intern::BuildMix;
use crate::ir::{Row, ShapeId};
use crate::memory::{Classes, LiveValue, Memory};
use hashbrown::HashMap;

/// One row per value of `values`.
pub fn buffers(
    origin: &Origin<'_>,
    memory: &Memory,
    attribution: &Attribution,
    values: &[LiveValue],
) -> Columns {
    let module = origin.module;
    let classes = Classes::new(module, memory, attribution);
    // Values that a loop carries, and values that were only moved, have no name of their own.
    let described: Vec<(Row, Phase)> =
        values.iter().map(|value| classes.described(value)).collect();
    let each = || values.iter();
    let rows = || described.iter().map(|(row, _)| row.0 as usize);
    let mut table = Columns::default();
    table.rows(
        common::instruction()
            .renamed("instruction", "The row number of the instruction that computes the value."),
        each().map(|value| value.row),
    );
    table.texts(common::name(), each().map(|value| module.instruction_name(value.row)));
    table.written(
        Field::text("index", "Index of the value in a tuple result; {} for the whole result."),
        each(),
        |value, out| write_index(&value.path, out),
    );
    table.texts(common::opcode(), each().map(|value| module.opcode_text(value.row)));
    // Shapes written in the text stay far below this limit. Inferred shapes share parts, so their
    // texts may be of any length.
    let mut left = module.text().len().saturating_mul(8).saturating_add(1 << 20);
    let mut known: HashMap<ShapeId, String, BuildMix> = HashMap::default();
    let mut shapes = Texts::default();
    for value in values {
        let most = left.max(256);
        let text = known
            .entry(value.shape)
            .and_modify(|text| {
                if text.len() > most {
                    *text = shape_text(module, value.shape, most);
                }
            })
            .or_insert_with(|| shape_text(module, value.shape, most));
        left = left.saturating_sub(text.len());
        shapes.push(text.as_bytes());
    }
    table.push(common::shape(), Values::Texts(shapes));
    table.numbers(
        Field::bytes("bytes", "Bytes of memory that the value occupies.").summed(),
        each().map(|value| value.bytes),
    );
    table.numbers(
        Field::index("memory_space", "The memory space of the layout: 0 is HBM."),
        each().map(|value| value.memory_space),
    );
    table.numbers(
        Field::index("first_step", "The step of the schedule that computes the value."),
        each().map(|value| i64::from(value.first_step)),
    );
    table.numbers(
        Field::index("last_step", "The last step at which the value is live."),
        each().map(|value| i64::from(value.last_step)),
    );
    let byte_steps = |value: &LiveValue| {
        let steps = i64::from(value.last_step) - i64::from(value.first_step) + 1;
        value.bytes.saturating_mul(steps.max(0))
    };
    table.numbers(
        Field::number("byte_steps", "Bytes times the steps for which the value is live.")
            .label("byte steps")
            .summed(),
        each().map(byte_steps),
    );
    table.numbers(
        Field::index("buffer", "The buffer; values in the same buffer share memory."),
        each().map(|value| i64::from(value.buffer)),
    );
    table.texts(
        Field::word(
            "class",
            "What the value is for: parameter, gradient, activation, temporary and so on.",
        ),
        each().zip(&described).map(|(value, known)| classes.of_phase(value, || known.1).as_str()),
    );
    table.texts(common::phase(), described.iter().map(|(_, phase)| phase.as_str()));
    let scopes = origin.scopes(attribution);
    let scope = |row: usize| attribution.scope.get(row).copied().unwrap_or(0);
    table.written(common::scope(), rows(), |row, out| scopes.write(scope(row), out));
    origin.columns(described.iter().map(|(row, _)| *row), &mut table);
    table
}
