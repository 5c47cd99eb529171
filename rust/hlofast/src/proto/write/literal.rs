//! Literals as `LiteralProto`.

use super::instruction::whole_shape;
use super::shape::{MAX_DEPTH, Shapes, Style};
use super::wire::Message;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::decode::{Extent, Literal, LiteralData, LiteralLeaf, shape_text};
use crate::ir::{ElementKind, ShapeId, ShapeInterner, ShapeTable, ShapeView};
use crate::proto::literal::{Storage, field};
use crate::text::{Cursor, Span};

/// The `LiteralProto` of the literal `payload` of shape `shape`; None if the text elides the whole
/// literal, which the protobuf then omits. Spans of errors are relative to `payload`.
pub(super) fn constant(
    payload: &[u8],
    shapes: &mut Shapes<'_>,
    shape: ShapeId,
) -> Result<Option<Message>> {
    let literal = Literal::split(payload, shapes.table(), shape)?;
    let mut values = Vec::with_capacity(literal.leaves.len());
    let mut elided = 0;
    for (index, leaf) in literal.leaves.iter().enumerate() {
        let value = leaf_value(&literal, index, leaf, shapes.table())?;
        elided += usize::from(value.is_none());
        values.push(value);
    }
    if elided > 0 && elided == values.len() {
        return Ok(None);
    }
    if let Some(index) = values.iter().position(Option::is_none) {
        let span = literal.leaves.get(index).map_or(Span::EMPTY, |leaf| leaf.span);
        return Err(cut(span));
    }
    let mut values = values.into_iter().flatten();
    tree(shapes, shape, &mut values).map(Some)
}

/// The error for a partly elided literal: a protobuf can express neither the elided values nor
/// their absence.
fn cut(span: Span) -> ParseError {
    let message = "a part of this literal is elided, so its values are not known";
    ParseError::new(ErrorKind::InvalidLiteral, span, message)
        .with_help("dump with --xla_dump_large_constants=true")
}

/// Maximum number of elements of a constant filled with zeros: memory must not grow without bound
/// with a number in the text.
const MOST_FILLED: u64 = 1 << 20;

/// None if the whole leaf is elided.
fn leaf_value(
    literal: &Literal<'_>,
    index: usize,
    leaf: &LiteralLeaf,
    table: &ShapeTable,
) -> Result<Option<LiteralData>> {
    let array = table.array(leaf.shape);
    let mut data = literal.decode(index, table)?;
    let elements = array.and_then(|array| array.elements());
    if array.is_none_or(|array| array.element_type.kind() == ElementKind::Opaque) {
        let message = "a literal of a shape that has no values";
        return Err(ParseError::new(ErrorKind::InvalidLiteral, leaf.span, message));
    }
    match (data.extent, data.count) {
        (Extent::Full, _) if elements == Some(data.count as u64) => Ok(Some(data)),
        (Extent::Elided, 0) if elements == Some(0) => Ok(Some(data)),
        (Extent::Elided, 0) => Ok(None),
        (Extent::Elided, _) => Err(cut(leaf.span)),
        // XLA's parser sets the first element and leaves all other elements zero.
        (Extent::FirstOnly, 1) if elements.is_some_and(|count| count <= MOST_FILLED) => {
            let count = elements.and_then(|count| usize::try_from(count).ok()).unwrap_or(1);
            data.bytes.resize(data.bytes.len().saturating_mul(count), 0);
            data.count = count;
            Ok(Some(data))
        }
        (Extent::FirstOnly | Extent::Full, _) => {
            let message = "a literal with fewer values than its shape has elements";
            Err(ParseError::new(ErrorKind::InvalidLiteral, leaf.span, message))
        }
    }
}

fn tree(
    shapes: &mut Shapes<'_>,
    shape: ShapeId,
    values: &mut impl Iterator<Item = LiteralData>,
) -> Result<Message> {
    let mut message = Message::default();
    message.element(1, shapes.get(shape, Style::Order)?);
    // `get` has refused tuples nested too deeply for recursion.
    match shapes.table().get(shape) {
        ShapeView::Tuple(children) => {
            for child in children {
                message.message(10, tree(shapes, *child, values)?);
            }
        }
        ShapeView::Array(_) | ShapeView::Buffer(_) => {
            if let Some(data) = values.next() {
                elements(&mut message, shapes.table(), shape, &data);
            }
        }
    }
    Ok(message)
}

/// Writes the field that holds the elements, in memory order.
fn elements(message: &mut Message, table: &ShapeTable, shape: ShapeId, data: &LiteralData) {
    let (Some(array), Some((number, storage))) = (table.array(shape), field(data.element_type))
    else {
        return;
    };
    let sizes: Vec<usize> = array
        .dimensions()
        .map(|size| usize::try_from(size.bound().unwrap_or_default()).unwrap_or_default())
        .collect();
    let order: Vec<usize> = match array.layout {
        Some(layout) => layout.minor_to_major.iter().map(|d| *d as usize).collect(),
        None => (0..sizes.len()).rev().collect(),
    };
    let width = data.bytes.len().checked_div(data.count).unwrap_or_default();
    let bytes = in_memory_order(&data.bytes, width, &sizes, &order);
    let bits = data.element_type.bits();
    match storage {
        Storage::Varints => {
            let is_signed = data.element_type.kind() == ElementKind::Signed;
            message.integers(
                number,
                bytes.chunks_exact(width.max(1)).map(|element| {
                    let value =
                        element.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
                    let unused = 64 - 8 * element.len() as u32;
                    if is_signed { (value << unused) as i64 >> unused } else { value as i64 }
                }),
            );
        }
        // Bits beyond the width of a small type are zero.
        Storage::Little(1) if bits < 8 => {
            let mask = (1u8 << bits) - 1;
            message.text(number, &bytes.iter().map(|byte| byte & mask).collect::<Vec<u8>>());
        }
        Storage::Little(_) | Storage::Fixed(_) => message.text(number, &bytes),
    }
    if array.dimensions().any(|dimension| !matches!(dimension, crate::ir::Dimension::Static(_))) {
        message.integers(34, sizes.iter().map(|size| *size as i64));
    }
}

/// Reorders row-major elements of `width` bytes so that dimension `order[0]` varies fastest.
fn in_memory_order(bytes: &[u8], width: usize, sizes: &[usize], order: &[usize]) -> Vec<u8> {
    if order.iter().rev().copied().eq(0..sizes.len()) {
        return bytes.to_vec();
    }
    let mut strides = vec![width; sizes.len()];
    for place in (1..sizes.len()).rev() {
        if let (Some(stride), Some(size)) = (strides.get(place).copied(), sizes.get(place))
            && let Some(before) = strides.get_mut(place - 1)
        {
            *before = stride * size;
        }
    }
    // Sizes and strides, fastest dimension first.
    let walk: Vec<(usize, usize)> = order
        .iter()
        .filter_map(|dimension| Some((*sizes.get(*dimension)?, *strides.get(*dimension)?)))
        .collect();
    let mut counters = vec![0usize; walk.len()];
    let mut sorted = Vec::with_capacity(bytes.len());
    let mut at = 0usize;
    for _ in 0..bytes.len().checked_div(width).unwrap_or_default() {
        sorted.extend_from_slice(bytes.get(at..at + width).unwrap_or_default());
        for (counter, (size, stride)) in counters.iter_mut().zip(&walk) {
            *counter += 1;
            at += stride;
            if *counter < *size {
                break;
            }
            at -= stride * size;
            *counter = 0;
        }
    }
    sorted
}

/// The `LiteralProto` of a literal in which every array follows its shape.
pub(super) fn typed(text: &[u8], limit: usize) -> Result<Message> {
    let mut cursor = Cursor::new(text);
    let mut interner = ShapeInterner::default();
    let mut bare = Vec::with_capacity(text.len());
    let shape = leaf_or_tuple(&mut cursor, &mut interner, &mut bare, 0)?;
    cursor.skip_space()?;
    if !cursor.is_at_end() {
        return Err(cursor.expected("the end", "after a literal"));
    }
    let mut shapes = Shapes::new(&interner.table, limit);
    let literal = constant(&bare, &mut shapes, shape).map_err(super::without_place)?;
    literal.ok_or_else(|| {
        let message = "this literal is elided, so its values are not known";
        ParseError::new(ErrorKind::InvalidLiteral, Span::EMPTY, message)
    })
}

/// Reads one value; appends its text without shapes to `bare`.
fn leaf_or_tuple(
    cursor: &mut Cursor<'_>,
    interner: &mut ShapeInterner,
    bare: &mut Vec<u8>,
    depth: usize,
) -> Result<ShapeId> {
    cursor.skip_space()?;
    if depth > MAX_DEPTH {
        return Err(cursor.expected("a shape", "this deep in a literal"));
    }
    if cursor.peek() == b'(' {
        cursor.advance(1);
        bare.push(b'(');
        let mut elements = Vec::new();
        loop {
            while cursor.eat(b',')? {
                bare.push(b',');
            }
            if cursor.eat(b')')? {
                bare.push(b')');
                return Ok(interner.tuple(&elements, Span::EMPTY));
            }
            elements.push(leaf_or_tuple(cursor, interner, bare, depth + 1)?);
        }
    }
    let shape = whole_shape(shape_text(cursor)?, interner).map_err(super::without_place)?;
    cursor.skip_space()?;
    let start = cursor.position();
    if matches!(cursor.peek(), b'{' | b'(') {
        cursor.balanced()?;
    } else {
        while !cursor.is_at_end() && !matches!(cursor.peek(), b',' | b')' | b' ' | b'\n') {
            cursor.advance(1);
        }
    }
    bare.extend_from_slice(cursor.since(start));
    bare.push(b' ');
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_stored_as_they_lie_in_memory() {
        let rows = [1, 2, 3, 4, 5, 6];
        assert_eq!(in_memory_order(&rows, 1, &[2, 3], &[1, 0]), rows);
        assert_eq!(in_memory_order(&rows, 1, &[2, 3], &[0, 1]), [1, 4, 2, 5, 3, 6]);
        assert_eq!(in_memory_order(&rows, 2, &[1, 3], &[0, 1]), rows);
        assert_eq!(in_memory_order(&[1, 2, 3, 4], 1, &[2, 1, 2], &[0, 2, 1]), [1, 3, 2, 4]);
    }
}
