//! The canonical text of shapes.

use crate::ir::{Dimension, Layout, ShapeId, ShapeTable, ShapeView};
use std::collections::HashMap;
use std::io::Write;

/// Appends the text of `id`. With `comments`, every fifth tuple element is numbered.
pub(crate) fn write_shape(
    out: &mut Vec<u8>,
    table: &ShapeTable,
    id: ShapeId,
    layouts: bool,
    comments: bool,
) {
    write_shape_within(out, table, id, layouts, comments, usize::MAX);
}

/// Like `write_shape`, but stops soon after `limit` bytes: inferred shapes share parts, so their
/// text may exceed any memory.
pub(crate) fn write_shape_within(
    out: &mut Vec<u8>,
    table: &ShapeTable,
    id: ShapeId,
    layouts: bool,
    comments: bool,
    limit: usize,
) {
    // Tuples still open: their elements and how many of them are written.
    let mut open: Vec<(&[ShapeId], usize)> = Vec::new();
    let mut next = Some(id);
    while out.len() <= limit {
        if let Some(id) = next.take() {
            match table.get(id) {
                ShapeView::Tuple(elements) => {
                    out.push(b'(');
                    open.push((elements, 0));
                }
                ShapeView::Buffer(inner) => {
                    out.extend_from_slice(b"b(");
                    write_array(out, table, inner, layouts);
                    out.push(b')');
                }
                ShapeView::Array(_) => write_array(out, table, id, layouts),
            }
        }
        let Some((elements, written)) = open.last_mut() else { return };
        match elements.get(*written) {
            Some(element) => {
                if *written > 0 {
                    out.extend_from_slice(b", ");
                    write_index_comment(out, *written, comments);
                }
                *written += 1;
                next = Some(*element);
            }
            None => {
                out.push(b')');
                open.pop();
            }
        }
    }
}

/// `/*index=5*/` before every fifth element.
pub(crate) fn write_index_comment(out: &mut Vec<u8>, index: usize, wanted: bool) {
    if wanted && index > 0 && index.is_multiple_of(5) {
        number(out, format_args!("/*index={index}*/"));
    }
}

/// Appends formatted text; writing to a vector cannot fail.
pub(crate) fn number(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

/// Appends a number. Formatting through `std::fmt` takes several times as long, and most of the text of
/// a shape is numbers.
fn decimal(out: &mut Vec<u8>, value: i64) {
    // Most numbers of layouts have one digit.
    if let 0..10 = value {
        return out.push(b'0' + value as u8);
    }
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut left = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

fn write_array(out: &mut Vec<u8>, table: &ShapeTable, id: ShapeId, layouts: bool) {
    let Some(array) = table.array(id) else { return };
    out.extend_from_slice(array.element_type.as_str().as_bytes());
    out.push(b'[');
    for (index, dimension) in array.dimensions().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        match dimension {
            Dimension::Static(size) => decimal(out, size),
            Dimension::Bounded(size) => {
                out.extend_from_slice(b"<=");
                decimal(out, size);
            }
            Dimension::Unbounded => out.push(b'?'),
        }
    }
    out.push(b']');
    if let Some(layout) = array.layout
        && layouts
    {
        write_layout(out, layout);
    }
}

/// Appends array shape `id` with its layout. If the layout is absent, appends the layout that XLA's
/// parser assumes: from the last dimension to the first.
pub(crate) fn write_array_meaning(
    out: &mut Vec<u8>,
    table: &ShapeTable,
    id: ShapeId,
    layouts: bool,
) {
    write_array(out, table, id, layouts);
    if let Some(array) = table.array(id).filter(|array| layouts && array.layout.is_none()) {
        write_default_layout(out, array.rank());
    }
}

/// Appends the default layout of an array of `rank` dimensions.
pub(crate) fn write_default_layout(out: &mut Vec<u8>, rank: usize) {
    for dimension in (0..rank).rev() {
        out.push(if dimension + 1 == rank { b'{' } else { b',' });
        decimal(out, dimension as i64);
    }
    if rank > 0 {
        out.push(b'}');
    }
}

/// Appends array shape `id` with its layout, in memory space `space`.
pub(crate) fn write_array_in(out: &mut Vec<u8>, table: &ShapeTable, id: ShapeId, space: i64) {
    write_array(out, table, id, false);
    if let Some(layout) = table.array(id).and_then(|array| array.layout) {
        write_layout(out, &Layout { memory_space: space, ..layout.clone() });
    }
}

/// Appends a layout with its braces; nothing for a layout without items.
pub(crate) fn write_layout(out: &mut Vec<u8>, layout: &Layout) {
    let start = out.len();
    out.push(b'{');
    write_integers(out, &layout.minor_to_major);
    out.push(b':');
    let items = out.len();
    if !layout.tiles.is_empty() {
        out.push(b'T');
        for tile in &layout.tiles {
            write_group(out, tile);
        }
    }
    if layout.tail_padding_alignment != 1 {
        write_item(out, b'L', layout.tail_padding_alignment);
    }
    if let Some(word) = layout.index_type {
        number(out, format_args!("#({})", word.as_str()));
    }
    if let Some(word) = layout.pointer_type {
        number(out, format_args!("*({})", word.as_str()));
    }
    if layout.element_bits != 0 {
        write_item(out, b'E', layout.element_bits);
    }
    if layout.memory_space != 0 {
        write_item(out, b'S', layout.memory_space);
    }
    if !layout.splits.is_empty() {
        out.extend_from_slice(b"SC");
        for (dimension, indices) in &layout.splits {
            out.push(b'(');
            decimal(out, *dimension);
            out.push(b':');
            write_integers(out, indices);
            out.push(b')');
        }
    }
    if layout.metadata_prefix_bytes != 0 {
        write_item(out, b'M', layout.metadata_prefix_bytes);
    }
    if out.len() == items {
        out.pop();
    }
    if out.len() == start + 1 {
        out.pop();
    } else {
        out.push(b'}');
    }
}

/// Appends an item of a layout, such as `S(1)`; unlike in tiles, `i64::MIN` is a number.
fn write_item(out: &mut Vec<u8>, word: u8, value: i64) {
    out.push(word);
    out.push(b'(');
    decimal(out, value);
    out.push(b')');
}

fn write_group(out: &mut Vec<u8>, values: &[i64]) {
    out.push(b'(');
    write_integers(out, values);
    out.push(b')');
}

/// Appends integers with commas; `i64::MIN` is written as `*`, which combines dimensions in tiles.
fn write_integers(out: &mut Vec<u8>, values: &[i64]) {
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        if *value == i64::MIN {
            out.push(b'*');
        } else {
            decimal(out, *value);
        }
    }
}

/// The length of every shape's text, by id, without writing it: inferred shapes share parts, so
/// their text may exceed any memory.
pub(crate) fn text_lengths(table: &ShapeTable, layouts: bool) -> Vec<u64> {
    let mut lengths: Vec<u64> = Vec::with_capacity(table.len());
    let mut scratch = Vec::new();
    for id in table.ids() {
        let of = |id: ShapeId| lengths.get(id.0 as usize).copied().unwrap_or(u64::MAX);
        let length = match table.get(id) {
            ShapeView::Array(_) => {
                scratch.clear();
                write_array(&mut scratch, table, id, layouts);
                scratch.len() as u64
            }
            ShapeView::Buffer(inner) => of(inner).saturating_add(3),
            // The length of a tuple includes separators and comments.
            ShapeView::Tuple(elements) => elements
                .iter()
                .fold(2u64, |sum, element| sum.saturating_add(of(*element)).saturating_add(6)),
        };
        lengths.push(length);
    }
    lengths
}

/// Numbers the shapes of two tables so that equivalent shapes have the same number.
pub(crate) fn shape_classes(
    a: &ShapeTable,
    b: &ShapeTable,
    layouts: bool,
) -> (Vec<usize>, Vec<usize>) {
    #[derive(PartialEq, Eq, Hash)]
    enum Key {
        Array(Vec<u8>),
        Buffer(usize),
        Tuple(Vec<usize>),
    }
    let mut known: HashMap<Key, usize> = HashMap::new();
    let mut number = |table: &ShapeTable| {
        let mut classes: Vec<usize> = Vec::with_capacity(table.len());
        for id in table.ids() {
            // Elements have smaller ids than their tuples.
            let of = |id: ShapeId| classes.get(id.0 as usize).copied().unwrap_or(usize::MAX);
            let key = match table.get(id) {
                ShapeView::Array(_) => {
                    let mut text = Vec::new();
                    write_array_meaning(&mut text, table, id, layouts);
                    Key::Array(text)
                }
                ShapeView::Buffer(inner) => Key::Buffer(of(inner)),
                ShapeView::Tuple(elements) => Key::Tuple(elements.iter().map(|e| of(*e)).collect()),
            };
            let next = known.len();
            classes.push(*known.entry(key).or_insert(next));
        }
        classes
    };
    (number(a), number(b))
}
