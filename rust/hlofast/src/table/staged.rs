//! The tables of pipeline stages.

use super::{Columns, Field, Origin, common, narrow, number, row_or_none};
use crate::ir::{Module, Row, ShapeId};
use crate::print::plain_shape_within;
use crate::stages::Stages;

/// Limit on the characters of a shape in a table; longer texts are cut in the middle.
const SHAPE_LIMIT: usize = 120;

fn shape(module: &Module, shape: ShapeId) -> Vec<u8> {
    plain_shape_within(module.shapes(), shape, SHAPE_LIMIT)
}

fn section_name(stages: &Stages, section: Option<u32>) -> &[u8] {
    let section = section.and_then(|id| stages.sections.get(id as usize));
    section.map(|section| section.bounds.name.as_bytes()).unwrap_or_default()
}

fn section() -> Field {
    Field::name("section", "The section of the pipeline stage.").nullable()
}

fn place() -> [Field; 2] {
    [
        Field::instruction(
            "place",
            "The row in the entry computation that contains the instruction.",
        ),
        Field::name("place_name", "The name of that row."),
    ]
}

/// One row per value of `rows`.
pub fn stage_values(origin: &Origin<'_>, rows: &[Row]) -> Columns {
    let module = origin.module;
    let each = || rows.iter().copied();
    let bytes = module.shape_bytes_column();
    let mut table = Columns::default();
    table.rows(common::instruction(), each());
    table.texts(common::name(), each().map(|row| module.instruction_name(row)));
    table.texts(common::shape(), each().map(|row| shape(module, module.shape(row))));
    let bytes = each().map(|row| bytes.get(row.0 as usize).copied().unwrap_or(-1));
    table.numbers(common::bytes().summed(), bytes);
    origin.columns(each(), &mut table);
    table
}

/// One row per pipeline marker.
pub fn markers(module: &Module, stages: &Stages) -> Columns {
    let each = || stages.markers.iter();
    let name = |row: Row| module.instruction_name(row);
    let [place, place_name] = place();
    let mut table = Columns::default();
    table.rows(common::instruction(), each().map(|marker| marker.row));
    table.texts(common::name(), each().map(|marker| name(marker.row)));
    table.rows(place, each().map(|marker| marker.place));
    table.texts(place_name, each().map(|marker| name(marker.place)));
    let field = Field::count("calls", "Calls between the entry computation and the marker.");
    table.numbers(field, each().map(|marker| i64::from(marker.calls)));
    table.texts(section(), each().map(|marker| &marker.name));
    let field = Field::word("mark", "Whether the marker starts or ends the section.");
    table.texts(field, each().map(|marker| &marker.mark));
    let field = Field::count("arrays", "Arrays that pass through the marker.").summed();
    table.numbers(field, each().map(|marker| marker.leaves.len() as i64));
    let sum = |leaves: &[Option<u64>]| {
        leaves.iter().try_fold(0u64, |sum, bytes| sum.checked_add((*bytes)?))
    };
    let field = Field::bytes("bytes", "Bytes of these arrays.").nullable().summed();
    table.numbers(field, each().map(|marker| number(sum(&marker.leaves))));
    let agrees = each().map(|marker| {
        let Some(stated) = &marker.sizes else { return "" };
        let stated = stated.iter().map(|size| u64::try_from(*size).ok());
        if stated.eq(marker.leaves.iter().copied()) { "yes" } else { "no" }
    });
    let doc = "Whether the sizes in the marker's configuration match the arrays: yes or no.";
    table.texts(Field::word("agrees", doc).nullable(), agrees);
    table
}

/// One row per section.
pub fn sections(stages: &Stages) -> Columns {
    let each = || stages.sections.iter();
    let mut table = Columns::default();
    table.texts(section(), each().map(|section| &section.bounds.name));
    table.texts(common::phase(), each().map(|section| section.bounds.phase.as_str()));
    let field = Field::instruction("start", "The row of the marker that starts the section.");
    table.rows(field, each().map(|section| section.bounds.start));
    let field =
        Field::instruction("end", "The row of the marker that ends the section.").nullable();
    table.numbers(field, each().map(|section| row_or_none(section.bounds.end)));
    table.numbers(common::instructions(), each().map(|section| section.instructions as i64));
    let field = Field::count("products", "Matmuls and convolutions.").summed().label("matmuls");
    table.numbers(field, each().map(|section| number(Some(section.products))));
    let field = Field::flops("product_flops", "FLOPs of matmuls and convolutions.").summed();
    let field = field.label("matmul FLOP");
    table.numbers(field, each().map(|section| narrow(section.product_flops)));
    table.numbers(common::flops(), each().map(|section| narrow(section.flops)));
    let field = Field::bytes("bytes_in", "Bytes that enter the section.").nullable().summed();
    table.numbers(field, each().map(|section| number(section.bytes_in)));
    let field = Field::bytes("bytes_out", "Bytes that leave the section.").nullable().summed();
    table.numbers(field, each().map(|section| number(section.bytes_out)));
    let peaks = stages.memory.as_ref().map(|memory| &memory.peaks[..]).unwrap_or_default();
    let peak = |section: usize| peaks.get(section).copied().flatten().unwrap_or(-1);
    let field = Field::bytes("peak", "Peak of live bytes while the section runs.").nullable();
    table.numbers(field, (0..stages.sections.len()).map(peak));
    table
}

/// One row per value kept from the forward to the backward section.
pub fn stash(origin: &Origin<'_>, stages: &Stages) -> Columns {
    let module = origin.module;
    let each = || stages.stash.iter();
    let name = |row: Row| module.instruction_name(row);
    let mut table = Columns::default();
    let field = Field::index("index", "The position among the inputs of the backward section.");
    table.numbers(field, each().map(|item| i64::from(item.index)));
    let doc = "The position among the outputs of the forward section.";
    let field = Field::index("forward_index", doc).nullable();
    table.numbers(field, each().map(|item| item.forward_index.map_or(-1, i64::from)));
    let sections = each().map(|item| section_name(stages, Some(item.section)));
    table.texts(section(), sections);
    let field =
        Field::word("kind", "The kind of value: activation, weight, copy of a weight and so on.");
    table.texts(field, each().map(|item| item.kind.as_str()));
    table.texts(common::shape(), each().map(|item| shape(module, item.shape)));
    table.numbers(common::bytes().summed(), each().map(|item| number(item.bytes)));
    table.rows(common::instruction(), each().map(|item| item.source));
    table.texts(common::name(), each().map(|item| name(item.source)));
    table.texts(common::opcode(), each().map(|item| module.opcode_text(item.source)));
    let doc = "The row of the weight that the value is computed from.";
    let field = Field::instruction("weight", doc).nullable();
    table.numbers(field, each().map(|item| row_or_none(item.weight)));
    let field = Field::name("weight_name", "The name of that weight.").nullable();
    table.texts(field, each().map(|item| item.weight.map(name).unwrap_or_default()));
    let doc = "The narrower element type that the value was converted from.";
    let field = Field::word("widened_from", doc).nullable();
    table.texts(field, each().map(|item| item.widened_from.map_or("", |from| from.as_str())));
    origin.columns(each().map(|item| item.source), &mut table);
    table
}

/// One row per cross-mesh reduction.
pub fn cross_mesh(module: &Module, stages: &Stages) -> Columns {
    let each = || stages.cross_mesh.iter();
    let name = |row: Row| module.instruction_name(row);
    let [place, place_name] = place();
    let mut table = Columns::default();
    table.rows(common::instruction(), each().map(|entry| entry.row));
    table.texts(common::name(), each().map(|entry| name(entry.row)));
    table.rows(place, each().map(|entry| entry.place));
    table.texts(place_name, each().map(|entry| name(entry.place)));
    table.texts(section(), each().map(|entry| section_name(stages, entry.section)));
    let operations = each().map(|entry| entry.reduction.as_ref().map(|own| &own.operation));
    let field = Field::word("operation", "The reduction: sum, max and so on.").nullable();
    table.texts(field, operations.map(|word| word.cloned().unwrap_or_default()));
    let join = |ids: &[u64]| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let meshes = each().map(|entry| entry.reduction.as_ref().map(|own| join(&own.meshes)));
    let field = Field::text("meshes", "The numbers of the meshes that take part.").nullable();
    table.texts(field, meshes.map(Option::unwrap_or_default));
    table.texts(common::shape(), each().map(|entry| shape(module, entry.shape)));
    table.numbers(common::bytes().summed(), each().map(|entry| number(entry.bytes)));
    table
}

/// One row per division by the number of micro-batches.
pub fn divisions(origin: &Origin<'_>, stages: &Stages) -> Columns {
    let module = origin.module;
    let each = || stages.micro_batches.divisions.iter();
    let name = |row: Row| module.instruction_name(row);
    let mut table = Columns::default();
    table.rows(common::instruction(), each().map(|division| division.row));
    table.texts(common::name(), each().map(|division| name(division.row)));
    let field = Field::instruction("constant", "The row of the constant divisor.");
    table.rows(field, each().map(|division| division.constant));
    let field = Field::name("constant_name", "The name of that constant.");
    table.texts(field, each().map(|division| name(division.constant)));
    let field = Field::number("divisor", "The constant.");
    table.reals(field, each().map(|division| division.divisor));
    origin.columns(each().map(|division| division.row), &mut table);
    table
}
