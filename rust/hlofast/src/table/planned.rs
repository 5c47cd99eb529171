//! The tables of candidates for rematerialisation and of values that checkpoint policies save.

use super::{Columns, Field, Origin, common};
use crate::ir::{Module, Row};
use crate::print::plain_shape_within;
use crate::remat::policy::{Policies, Savable};
use crate::remat::{Entry, Plan, Recompute};

/// Limit on the characters of a shape; longer texts are cut in the middle.
const SHAPE_LIMIT: usize = 120;

/// One row per candidate of `plan`.
pub fn candidates(module: &Module, plan: &Plan) -> Columns {
    let each = || plan.entries.iter();
    let mut table = Columns::default();
    let field = Field::index("residual", "The row of the value in the table of residuals.");
    table.numbers(field, each().map(|entry| entry.candidate.residual.into()));
    let words = |rows: &[Row]| {
        let names = rows.iter().map(|row| module.instruction_name(*row));
        names.collect::<Vec<_>>().join(&b" "[..])
    };
    let field = Field::text("again", "The instructions to recompute.").nullable();
    table.texts(field, each().map(|entry| words(&entry.candidate.again)));
    let stacked = |entry: &Entry| {
        let asked = &entry.candidate.recomputes;
        asked.iter().any(|step| matches!(step, Recompute::FromStack { .. }))
    };
    let doc = "Whether the value is kept once per iteration of a loop.";
    table.flags(Field::flag("is_stack", doc).label("stacked"), each().map(stacked));
    let kept = |entry: &Entry| match entry.candidate.recomputes.is_empty() {
        true => -1,
        false => entry.candidate.kept_instead,
    };
    let field =
        Field::bytes("kept_instead", "Bytes that are kept instead of the value.").nullable();
    table.numbers(field, each().map(kept));
    let field = Field::flag("is_alive_at_peak", "Whether the value is live at the peak.");
    table.flags(field.label("live at peak"), each().map(|entry| entry.is_alive));
    let field =
        Field::bytes("peak", "Bytes at the peak if only this value is recomputed.").nullable();
    table.numbers(field, each().map(|entry| entry.peak.unwrap_or(-1)));
    let saved = |entry: &Entry| entry.peak.map_or(i64::MIN, |peak| plan.before - peak);
    let doc = "Bytes by which recomputing only this value lowers the peak.";
    table.numbers(Field::bytes("saved", doc).nullable().signed(), each().map(saved));
    let known = |entry: &Entry| !entry.candidate.recomputes.is_empty();
    let figure = |entry: &Entry, figure: Option<i64>| figure.filter(|_| known(entry)).unwrap_or(-1);
    let field = Field::flops("flops", "FLOPs of recomputing the value.").nullable().summed();
    table.numbers(field, each().map(|entry| figure(entry, entry.price.flops)));
    let doc = "Bytes that recomputing the value reads and writes.";
    let field = Field::bytes("bytes_moved", doc).nullable().summed();
    table.numbers(field, each().map(|entry| figure(entry, entry.price.bytes)));
    let doc = "Bytes that each device sends to recompute the value.";
    let field = Field::bytes("wire_bytes", doc).nullable().summed().label("wire B");
    table.numbers(field, each().map(|entry| figure(entry, entry.price.wire_bytes)));
    let seconds = |entry: &Entry| entry.price.seconds.filter(|_| known(entry)).unwrap_or(f64::NAN);
    let field = Field::seconds("seconds", "Modelled time of recomputing the value.").nullable();
    table.reals(field.summed(), each().map(seconds));
    let doc = "The position among the chosen candidates; unknown for the others.";
    let field = Field::index("chosen", doc).nullable();
    table.numbers(field, each().map(|entry| entry.chosen.map_or(-1, i64::from)));
    let field = Field::text("refusal", "Why the value cannot be recomputed.").nullable();
    table.texts(field, each().map(|entry| entry.refusal.clone().unwrap_or_default()));
    let field = Field::text("no_saving", "Why recomputing the value saves nothing.").nullable();
    table.texts(field, each().map(|entry| entry.no_saving.unwrap_or_default()));
    table
}

/// One row per value that a checkpoint policy could save.
pub fn savable(origin: &Origin<'_>, policies: &Policies) -> Columns {
    let module = origin.module;
    let each = || policies.savable.iter();
    let mut table = Columns::default();
    table.rows(common::instruction(), each().map(|value| value.row));
    table.texts(common::name(), each().map(|value| module.instruction_name(value.row)));
    let loops: Vec<Row> = policies.loops().map(|(row, _)| row).collect();
    let scan = |value: &Savable| loops.get(value.scan as usize).copied().unwrap_or(value.row);
    let doc = "The forward loop over layers that computes the value, or a row of the first layer.";
    table.rows(Field::instruction("scan", doc), each().map(scan));
    let doc = "matmul, batched_matmul (with batch dimensions, or a convolution), mapped_matmul (under \
               jax.vmap, and the text does not tell which of these), ragged_matmul (jax.lax.ragged_dot), \
               kernel, collective, other, or input (of a layer, which no policy recomputes).";
    table.texts(Field::word("kind", doc), each().map(|value| value.kind.as_str()));
    let shape = |value: &Savable| plain_shape_within(module.shapes(), value.shape, SHAPE_LIMIT);
    table.texts(common::shape(), each().map(shape));
    let doc = "Bytes of the values of all layers on one device.";
    table.numbers(Field::bytes("bytes", doc).summed(), each().map(|value| value.bytes));
    let doc = "Whether the step as compiled keeps it from the forward to the backward loop.";
    table.flags(Field::flag("is_kept", doc), each().map(|value| value.is_kept));
    let doc = "Whether checkpoint_name can name it; kernel results only if the kernel's library \
               names them.";
    let is_nameable = |value: &Savable| value.is_nameable(module);
    table.flags(Field::flag("is_nameable", doc), each().map(is_nameable));
    origin.columns(each().map(|value| value.row), &mut table);
    table
}
