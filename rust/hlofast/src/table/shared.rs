//! The tables of the share of one device before partitioning.

use super::{Columns, Field, common, narrow, shape_text};
use crate::ir::{Module, Row};
use crate::shares::{Array, Product};

/// Limit on the characters of a shape; longer texts are cut.
const SHAPE_LIMIT: usize = 120;

/// One row per array.
pub fn shared_arrays(module: &Module, arrays: &[Array]) -> Columns {
    let each = || arrays.iter();
    let mut table = Columns::default();
    table.rows(common::instruction(), each().map(|array| array.row));
    table.texts(common::name(), each().map(|array| module.instruction_name(array.row)));
    let field = Field::index("leaf", "The position of the array in the result.");
    table.numbers(field, each().map(|array| i64::from(array.leaf)));
    let field = Field::shape("shape", "The shape of the array on all devices together.");
    table.texts(field, each().map(|array| shape_text(module, array.shape, SHAPE_LIMIT)));
    let mut bytes = |name, doc, label, of: fn(&Array) -> i64| {
        table.numbers(Field::bytes(name, doc).summed().label(label), each().map(of));
    };
    bytes("bytes", "Bytes of the array, of all devices together.", "all devices", |array| {
        array.bytes.whole
    });
    bytes(
        "device_bytes",
        "Bytes on one device; all bytes if the sharding is unknown.",
        "one device",
        |array| array.bytes.device,
    );
    bytes("least", "The fewest bytes that one device may hold.", "at least", |array| {
        array.bytes.least
    });
    bytes("most", "The most bytes that one device may hold.", "at most", |array| array.bytes.most);
    let doc = "The source of the bytes per device: the array's own sharding, shardings of other \
               values, or unknown.";
    table.texts(Field::word("sharding", doc), each().map(|array| array.bytes.source.as_str()));
    table
}

/// One row per matmul.
pub fn shared_products(module: &Module, products: &[Product]) -> Columns {
    let each = || products.iter();
    let rows = || each().map(|product| product.row);
    let mut table = Columns::default();
    table.rows(common::instruction(), rows());
    table.texts(common::name(), rows().map(|row: Row| module.instruction_name(row)));
    let mut flops = |field: Field, of: fn(&Product) -> i128| {
        table.numbers(field.summed(), each().map(|product| narrow(of(product))));
    };
    flops(
        Field::flops("flops", "FLOPs of all calls, on all devices together.").label("all devices"),
        |product| product.whole,
    );
    let field = Field::flops("least", "The fewest FLOPs of one device.").label("at least");
    flops(field, |product| product.least);
    let field = Field::flops("most", "The most FLOPs of one device.").label("at most");
    flops(field, |product| product.most);
    let doc = "Whether the shardings determine the FLOPs of one device.";
    table.flags(Field::flag("is_determined", doc), each().map(Product::is_determined));
    table
}
