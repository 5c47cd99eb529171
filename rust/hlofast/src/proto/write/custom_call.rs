//! The fields of custom calls.

use super::Writer;
use super::instruction::whole_shape;
use super::keys::Keys;
use super::literal;
use super::shape::{MAX_DEPTH, Shapes};
use super::wire::Message;
use crate::error::{ErrorKind, Result};
use crate::ir::decode::{AttributeValue as V, shape_text};
use crate::ir::{ShapeId, ShapeInterner};
use crate::proto::words;
use crate::text::{Cursor, Span};

/// Appends them to `fields`.
pub(super) fn write(writer: &Writer<'_>, fields: &mut Message, keys: &mut Keys<'_>) -> Result<()> {
    fields.text(28, &keys.text("custom_call_target")?);
    fields.flag(65, keys.flag("custom_call_has_side_effect")?);
    fields.integer(75, keys.code("padding_type", &words::PADDING_TYPES)?);
    fields.integer(76, keys.code("schedule", &words::SCHEDULES)?);
    // Text without one means the first, a protobuf without one none.
    let version = keys.code("api_version", &words::API_VERSIONS)?;
    fields.integer(77, version.max(1));
    let shapes = keys.with("operand_layout_constraints", |value| match value {
        V::Shapes(shapes) => {
            let shapes = shapes.into_iter().map(|text| writer.shape_of_text(text));
            // Places within a list of shapes are not known.
            let shapes = shapes.collect::<Result<Vec<Vec<u8>>>>();
            shapes.map(Some).map_err(super::without_place)
        }
        _ => Ok(None),
    })?;
    if let Some(shapes) = shapes {
        fields.flag(56, true);
        shapes.iter().for_each(|shape| fields.element(57, shape));
    }
    let value = keys.with("literal", |value| match value {
        V::Literal(text) => typed_literal(text, writer.limit).map(Some),
        _ => Ok(None),
    })?;
    if let Some(value) = value {
        fields.message(8, value);
    }
    Ok(())
}

/// `LiteralProto` of a literal each of whose arrays has its shape before it.
fn typed_literal(text: &[u8], limit: usize) -> Result<Message> {
    let mut cursor = Cursor::new(text);
    let mut interner = ShapeInterner::default();
    let mut bare = Vec::with_capacity(text.len());
    let shape = leaf_or_tuple(&mut cursor, &mut interner, &mut bare, 0)?;
    cursor.skip_space()?;
    if !cursor.is_at_end() {
        return Err(cursor.expected("the end", "after a literal"));
    }
    let mut shapes = Shapes::new(&interner.table, limit);
    let found = literal::constant(&bare, &mut shapes, shape).map_err(super::without_place)?;
    found.ok_or_else(|| {
        let message = "this literal is elided, so its values are not known";
        crate::ParseError::new(ErrorKind::InvalidLiteral, Span::EMPTY, message)
    })
}

/// Reads one value; its text without shapes goes to `bare`.
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
