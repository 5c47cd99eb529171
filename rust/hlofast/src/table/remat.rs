//! The tables of recomputation, residuals and all-gathers.

use super::{Columns, Field, Origin, Sent, common, number, row_or_none};
use crate::cost::Cost;
use crate::ir::{Module, Row, ShapeId};
use crate::print::plain_shape_within;
use crate::remat::{Gather, Recomputed, Report, Residual};

/// Limit on the characters of a shape in a table; longer texts are cut in the middle.
const SHAPE_LIMIT: usize = 120;

/// The table of instructions that run again.
pub fn recomputed(origin: &Origin<'_>, cost: &Cost, report: &Report) -> Columns {
    let module = origin.module;
    let each = || report.recomputed.iter();
    let mut table = Columns::default();
    table.rows(common::instruction(), each().map(|entry| entry.row));
    let name = |row: Row| module.instruction_name(row).to_vec();
    table.texts(common::name(), each().map(|entry| name(entry.row)));
    let place = |row: Row| module.computation_name(module.computation_of(row)).to_vec();
    table.texts(common::computation(), each().map(|entry| place(entry.row)));
    table.texts(common::opcode(), each().map(|entry| module.opcode_text(entry.row).to_vec()));
    table.texts(
        Field::word("by", "What recomputes the instruction: the framework or the compiler."),
        each().map(|entry| entry.by.as_str()),
    );
    table.numbers(
        Field::instruction("twin", "The row that first computes the same value.").nullable(),
        each().map(|entry| row_or_none(entry.twin)),
    );
    table.flags(
        Field::flag("is_collective", "Whether the instruction is a collective.")
            .label("collective"),
        each().map(|entry| entry.is_collective),
    );
    table.numbers(common::multiplicity(), each().map(|entry| entry.executions.unwrap_or(-1)));
    let once = [&cost.flops, &cost.bytes_read, &cost.bytes_written];
    let fields = [common::flops(), common::bytes_read(), common::bytes_written()];
    for (field, once) in fields.into_iter().zip(once) {
        let total = |entry: &Recomputed| {
            let once = once.get(entry.row.0 as usize).copied().unwrap_or(0);
            entry.executions.map_or(-1, |runs| once.saturating_mul(runs))
        };
        table.numbers(field.nullable(), each().map(total));
    }
    origin.columns(each().map(|entry| entry.row), &mut table);
    table
}

/// The table of values kept from forward to backward.
pub fn residuals(origin: &Origin<'_>, report: &Report) -> Columns {
    let module = origin.module;
    let each = || report.residuals.iter();
    let mut table = Columns::default();
    table.rows(common::instruction(), each().map(|entry| entry.place.row));
    let name = |row: Row| module.instruction_name(row).to_vec();
    table.texts(common::name(), each().map(|entry| name(entry.place.row)));
    let path = |entry: &Residual| {
        let steps: Vec<String> = entry.place.path.iter().rev().map(u32::to_string).collect();
        format!("{{{}}}", steps.join(",")).into_bytes()
    };
    table.texts(
        Field::text("index", "Index of the value in a tuple result; {} for the whole result."),
        each().map(path),
    );
    table.texts(
        Field::word("kind", "The kind of value that is kept or recomputed."),
        each().map(|entry| entry.kind.as_str()),
    );
    table.texts(common::shape(), each().map(|entry| shape_text(module, Some(entry.shape))));
    table.numbers(common::bytes().summed(), each().map(|entry| entry.bytes));
    table.numbers(
        Field::index(
            "memory_space",
            "The farthest memory space that the value is moved to: 0 is HBM, 5 is host memory.",
        ),
        each().map(|entry| entry.memory_space),
    );
    table.numbers(
        Field::count(
            "span",
            "Length of the live range: instructions from the producer to the last use.",
        )
        .label("live range"),
        each().map(|entry| i64::from(entry.span)),
    );
    table.rows(
        Field::instruction("first_use", "The first row of the backward pass that uses the value."),
        each().map(|entry| entry.uses.0),
    );
    table.rows(
        Field::instruction("last_use", "The last row of the backward pass that uses the value."),
        each().map(|entry| entry.uses.1),
    );
    let widened = |entry: &Residual| entry.widened_from.map_or("", |from| from.as_str());
    table.texts(
        Field::word("widened_from", "The narrower element type that the value was converted from.")
            .nullable(),
        each().map(widened),
    );
    table.flags(
        Field::flag("is_stacked", "Whether the value is kept once per iteration of a loop.")
            .label("stacked"),
        each().map(|entry| entry.stacked.is_some()),
    );
    table.numbers(common::trip_count(), each().map(|entry| number(entry.stacked.flatten())));
    table.rows(
        Field::instruction("made_by", "The row whose result contains the value."),
        each().map(|entry| entry.made_by),
    );
    table.rows(
        Field::instruction("source", "The row that computes the value."),
        each().map(|entry| entry.source),
    );
    table.texts(
        Field::name("source_name", "The name of the row that computes the value."),
        each().map(|entry| name(entry.source)),
    );
    table.flags(
        Field::flag("is_named", "Whether checkpoint_name names the value.").label("named"),
        each().map(|entry| entry.is_named),
    );
    table.flags(
        Field::flag(
            "is_in_flight",
            "Whether the value is the result of an asynchronous collective that spans both passes.",
        )
        .label("in flight"),
        each().map(|entry| entry.is_in_flight),
    );
    origin.columns(each().map(|entry| entry.source), &mut table);
    table
}

/// Recomputed instructions and residuals in one table: `what` is `recomputed` or `kept`; `bytes`
/// are the bytes that all executions write, or the bytes kept.
pub fn remat(origin: &Origin<'_>, cost: &Cost, report: &Report) -> Columns {
    let module = origin.module;
    let again = || report.recomputed.iter();
    let kept = || report.residuals.iter();
    let written = |entry: &Recomputed| {
        let once = cost.bytes_written.get(entry.row.0 as usize).copied().unwrap_or(0);
        entry.executions.map_or(-1, |runs| once.saturating_mul(runs))
    };
    let flops = |entry: &Recomputed| {
        let once = cost.flops.get(entry.row.0 as usize).copied().unwrap_or(0);
        entry.executions.map_or(-1, |runs| once.saturating_mul(runs))
    };
    let rows = || again().map(|entry| entry.row).chain(kept().map(|entry| entry.place.row));
    let mut table = Columns::default();
    let what = again().map(|_| "recomputed").chain(kept().map(|_| "kept"));
    table.texts(Field::word("what", "Whether the value is recomputed or kept."), what);
    table.rows(common::instruction(), rows());
    table.texts(common::name(), rows().map(|row| module.instruction_name(row)));
    table.texts(common::opcode(), rows().map(|row| module.opcode_text(row)));
    let place = |row: Row| module.computation_name(module.computation_of(row));
    table.texts(common::computation(), rows().map(place));
    let by = again().map(|entry| entry.by.as_str());
    table.texts(
        Field::word("kind", "The kind of value that is kept or recomputed."),
        by.chain(kept().map(|entry| entry.kind.as_str())),
    );
    let runs = again().map(|entry| entry.executions.unwrap_or(-1));
    table.numbers(common::multiplicity(), runs.chain(kept().map(|_| 1)));
    table.numbers(
        common::bytes().summed(),
        again().map(written).chain(kept().map(|entry| entry.bytes)),
    );
    table.numbers(common::flops().nullable(), again().map(flops).chain(kept().map(|_| 0)));
    // Names are on the row that computes a kept value, not on the tuple that carries it.
    let named = || again().map(|entry| entry.row).chain(kept().map(|entry| entry.source));
    origin.columns(named().collect::<Vec<_>>().into_iter(), &mut table);
    table
}

/// The table of all-gathers.
pub fn gathers(origin: &Origin<'_>, report: &Report, sent: &Sent) -> Columns {
    let module = origin.module;
    let each = || report.gathers.iter();
    let index = |gather: &Gather| gather.collective as usize;
    let of = |gather: &Gather| &sent.collectives.collectives[index(gather)];
    let along = |gather: &Gather| sent.along.get(index(gather));
    let mut table = Columns::default();
    table.rows(common::instruction(), each().map(|gather| of(gather).row));
    let name = |row: Row| module.instruction_name(row).to_vec();
    table.texts(common::name(), each().map(|gather| name(of(gather).row)));
    let place = |row: Row| module.computation_name(module.computation_of(row)).to_vec();
    table.texts(common::computation(), each().map(|gather| place(of(gather).outer)));
    table.texts(
        Field::word(
            "fate",
            "How the gathered array is used: kept for the backward pass, gathered again and so on.",
        ),
        each().map(|gather| gather.fate.as_str()),
    );
    table.texts(common::tensor_kind(), each().map(|gather| of(gather).moved.as_str()));
    table.written(common::tensor(), each(), |gather, out| {
        sent.write_tensor(origin, of(gather), out);
    });
    let result = |gather: &Gather| result_shape(module, of(gather).row);
    table
        .texts(common::shape().nullable(), each().map(|gather| shape_text(module, result(gather))));
    let axes = |gather: &Gather| along(gather).map(|along| along.axes.clone().into_bytes());
    table.texts(common::axes(), each().map(|gather| axes(gather).unwrap_or_default()));
    let size = |gather: &Gather| number(sent.group_size(index(gather)));
    table.numbers(common::group_size(), each().map(size));
    table.numbers(common::payload_in(), each().map(|gather| number(of(gather).payload_in)));
    table.numbers(common::payload_out(), each().map(|gather| number(of(gather).payload_out)));
    let wire = |gather: &Gather| sent.wire_bytes(index(gather));
    table.numbers(common::wire_bytes(), each().map(wire));
    let runs = |gather: &Gather| {
        let mut counts = of(gather).executions.iter().map(|entry| entry.count);
        counts.try_fold(0i64, |sum, count| sum.checked_add(count?)).unwrap_or(-1)
    };
    table.numbers(common::multiplicity(), each().map(runs));
    let residual = |gather: &Gather| gather.residual.map_or(-1, i64::from);
    table.numbers(
        Field::index(
            "residual",
            "The row of the gathered array in the table of residuals, if it is kept.",
        )
        .nullable(),
        each().map(residual),
    );
    origin.columns(each().map(|gather| of(gather).row), &mut table);
    table
}

fn shape_text(module: &Module, shape: Option<ShapeId>) -> Vec<u8> {
    let text = |shape| plain_shape_within(module.shapes(), shape, SHAPE_LIMIT);
    shape.map(text).unwrap_or_default()
}

/// The array that a gather returns: the second element if `row` is a start.
fn result_shape(module: &Module, row: Row) -> Option<ShapeId> {
    let shape = module.shape(row);
    match module.shapes().tuple(shape) {
        Some(elements) => elements.get(1).copied(),
        None => Some(shape),
    }
}
