//! Literals: `constant(...)` payloads, split into leaves and decoded into flat arrays.
//!
//! Memory is bounded by the text, never by the numbers in a shape: an elided literal yields only
//! the elements in the text and is marked as elided.

use super::scan::{bytes, invalid, invalid_since, number_text};
use super::shape_text;
use super::small_float::{FloatFault, float_bits};
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::dtype::{ElementKind, ElementType};
use crate::ir::shape::{ArrayShape, ShapeId, ShapeTable, ShapeView};
use crate::text::{Cursor, Span};

const KIND: ErrorKind = ErrorKind::InvalidLiteral;

/// A literal, cut into the leaves of its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Literal<'a> {
    payload: &'a [u8],
    /// One per leaf of the shape, in order.
    pub leaves: Vec<LiteralLeaf>,
}

/// The literal of one array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiteralLeaf {
    /// The text within the payload; empty if a whole tuple around it is elided.
    pub span: Span,
    /// The array's shape.
    pub shape: ShapeId,
}

/// How much of an array a literal gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Every element.
    Full,
    /// `...` stands for all elements after the elements in the text, if there are any.
    Elided,
    /// One element without braces for a whole array: XLA sets the first and leaves the rest 0.
    FirstOnly,
}

/// Decoded elements of one array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiteralData {
    /// The element type.
    pub element_type: ElementType,
    /// How much of the array `bytes` holds.
    pub extent: Extent,
    /// Number of elements in `bytes`.
    pub count: usize,
    /// The elements in row-major order, little-endian, each in whole bytes: sub-byte integers are
    /// sign- or zero-extended to one byte, small floats are in the low bits, `pred` is 0 or 1,
    /// complex numbers are real part, imaginary part.
    pub bytes: Vec<u8>,
}

impl<'a> Literal<'a> {
    /// Cuts the payload of a constant of shape `shape` into leaves. The elements are not read.
    pub fn split(payload: &'a [u8], shapes: &ShapeTable, shape: ShapeId) -> Result<Self> {
        let mut cursor = Cursor::new(payload);
        skip_shape_prefix(&mut cursor)?;
        let mut leaves = Vec::new();
        // Open tuples: the elements still to be read.
        let mut open: Vec<std::slice::Iter<'_, ShapeId>> = Vec::new();
        let mut next = Some(shape);
        loop {
            while cursor.eat(b',')? {}
            let Some(shape) = next.take() else {
                let Some(rest) = open.last_mut() else { break };
                match rest.next() {
                    Some(child) => {
                        if cursor.peek() == b')' {
                            return Err(invalid(&cursor, KIND, "the tuple has too few elements"));
                        }
                        next = Some(*child);
                    }
                    None => {
                        cursor.expect(b')', "at the end of the tuple")?;
                        open.pop();
                    }
                }
                continue;
            };
            match shapes.get(shape) {
                ShapeView::Tuple(children) if cursor.peek() == b'(' => {
                    cursor.advance(1);
                    while cursor.eat(b',')? {}
                    if cursor.eat(b')')? {
                        elide(shapes, shape, &mut leaves);
                    } else {
                        open.push(children.iter());
                    }
                }
                ShapeView::Tuple(_) => {
                    let start = cursor.position();
                    if cursor.peek() != b'{' {
                        return Err(cursor.expected("(", "at the start of a tuple"));
                    }
                    let span = cursor.balanced()?;
                    let inner = bytes(&cursor, span).get(1..span.len() - 1).unwrap_or_default();
                    if inner.trim_ascii() != b"..." {
                        return Err(invalid_since(&cursor, start, KIND, "not a tuple"));
                    }
                    elide(shapes, shape, &mut leaves);
                }
                ShapeView::Array(_) | ShapeView::Buffer(_) => {
                    let span = value_span(&mut cursor)?;
                    leaves.push(LiteralLeaf { span, shape });
                }
            }
        }
        cursor.skip_space()?;
        if !cursor.is_at_end() {
            return Err(invalid(&cursor, KIND, "unexpected text after the literal"));
        }
        Ok(Self { payload, leaves })
    }

    /// The text of leaf `index`.
    pub fn text(&self, index: usize) -> Option<&'a [u8]> {
        self.payload.get(self.leaves.get(index)?.span.range())
    }

    /// The texts of the elements of leaf `index` that are written, in row-major order.
    pub fn elements(&self, index: usize, shapes: &ShapeTable) -> Result<(Extent, Vec<&'a [u8]>)> {
        let mut elements = Vec::new();
        let extent = self.walk(index, shapes, |text, _| {
            elements.push(text);
            Ok(())
        })?;
        Ok((extent, elements))
    }

    /// Decodes leaf `index`.
    pub fn decode(&self, index: usize, shapes: &ShapeTable) -> Result<LiteralData> {
        let element_type = self.array(index, shapes)?.element_type;
        let mut bytes = Vec::new();
        let mut count = 0;
        let extent = self.walk(index, shapes, |text, span| {
            count += 1;
            encode_element(text, span, element_type, &mut bytes)
        })?;
        Ok(LiteralData { element_type, extent, count, bytes })
    }

    fn array<'s>(&self, index: usize, shapes: &'s ShapeTable) -> Result<ArrayShape<'s>> {
        let array = self.leaves.get(index).and_then(|leaf| match shapes.get(leaf.shape) {
            ShapeView::Array(array) => Some(array),
            ShapeView::Buffer(inner) => shapes.array(inner),
            ShapeView::Tuple(_) => None,
        });
        // An elided leaf needs no elements, whatever its type.
        let elided = self.leaves.get(index).is_some_and(|leaf| leaf.span.is_empty());
        array.filter(|array| elided || array.element_type.kind() != ElementKind::Opaque).ok_or_else(
            || {
                ParseError::new(
                    KIND,
                    Span::new(0, self.payload.len()),
                    "values of this shape have no literals",
                )
            },
        )
    }

    /// Calls `element` for every element written and checks that the braces fit the shape.
    fn walk(
        &self,
        index: usize,
        shapes: &ShapeTable,
        mut element: impl FnMut(&'a [u8], Span) -> Result<()>,
    ) -> Result<Extent> {
        let array = self.array(index, shapes)?;
        let span = self.leaves.get(index).map_or(Span::EMPTY, |leaf| leaf.span);
        let mut cursor = Cursor::within(self.payload, span);
        if span.is_empty() {
            return Ok(Extent::Elided);
        }
        let rank = array.rank();
        let mut take = |cursor: &mut Cursor<'a>| {
            let span = value_span(cursor)?;
            element(bytes(cursor, span), span)
        };
        if cursor.peek() != b'{' {
            take(&mut cursor)?;
            return Ok(if rank == 0 { Extent::Full } else { Extent::FirstOnly });
        }
        let bounds: Vec<Option<u64>> =
            array.dimensions().map(|d| d.bound().and_then(|b| u64::try_from(b).ok())).collect();
        let mut counts: Vec<u64> = Vec::new();
        let mut extent = Extent::Full;
        loop {
            while cursor.eat(b',')? {}
            let level = counts.len();
            match cursor.peek() {
                b'.' if cursor.eat_bytes(b"...") => extent = Extent::Elided,
                b'}' if level > 0 => {
                    let count = counts.pop().unwrap_or_default();
                    if extent == Extent::Full
                        && bounds.get(level - 1).copied().flatten().is_some_and(|b| b != count)
                    {
                        let message = format!("too few elements in dimension {}", level - 1);
                        return Err(invalid(&cursor, KIND, &message));
                    }
                    cursor.advance(1);
                    if counts.is_empty() {
                        return Ok(extent);
                    }
                }
                byte => {
                    if extent == Extent::Elided {
                        return Err(cursor.expected("}", "after '...'"));
                    }
                    if byte == b'{' && level >= rank.max(1) || byte != b'{' && level != rank {
                        let message = format!("the braces do not fit {rank} dimensions");
                        return Err(invalid(&cursor, KIND, &message));
                    }
                    if let Some((level, count)) = counts.iter_mut().enumerate().next_back() {
                        *count += 1;
                        if bounds.get(level).copied().flatten().is_some_and(|b| *count > b) {
                            let message = format!("too many elements in dimension {level}");
                            return Err(invalid(&cursor, KIND, &message));
                        }
                    }
                    if byte == b'{' {
                        cursor.advance(1);
                        counts.push(0);
                    } else {
                        take(&mut cursor)?;
                    }
                }
            }
        }
    }
}

/// Marks every leaf of `shape` as elided.
fn elide(shapes: &ShapeTable, shape: ShapeId, leaves: &mut Vec<LiteralLeaf>) {
    let elided = shapes.leaves(shape).map(|shape| LiteralLeaf { span: Span::EMPTY, shape });
    leaves.extend(elided);
}

/// Texts of 2017 and 2018 repeat the shape before the value.
fn skip_shape_prefix(cursor: &mut Cursor<'_>) -> Result<()> {
    cursor.skip_space()?;
    let mut ahead = *cursor;
    if cursor.peek() == b'(' {
        ahead.balanced()?;
    } else {
        if ElementType::from_bytes(ahead.identifier()).is_none() || !ahead.eat(b'[')? {
            return Ok(());
        }
        while !ahead.eat(b']')? && !ahead.is_at_end() {
            ahead.advance(1);
        }
        // The first of two brace groups is the layout.
        ahead.skip_space()?;
        let mut layout = ahead;
        if layout.peek() == b'{' {
            layout.balanced()?;
            layout.skip_space()?;
            if layout.peek() == b'{' {
                ahead = layout;
            }
        }
    }
    ahead.skip_space()?;
    if !ahead.is_at_end() && matches!(ahead.peek(), b'(' | b'{') {
        *cursor = ahead;
    }
    Ok(())
}

/// Skips one value: braces, a complex number, a number or a word.
fn value_span(cursor: &mut Cursor<'_>) -> Result<Span> {
    cursor.skip_space()?;
    if matches!(cursor.peek(), b'{' | b'(') {
        return cursor.balanced();
    }
    let start = cursor.position();
    if number_text(cursor)?.is_empty() {
        return Err(cursor.expected("a value", ""));
    }
    Ok(cursor.span_since(start))
}

/// Appends the bytes of one element.
fn encode_element(
    text: &[u8],
    span: Span,
    element_type: ElementType,
    result: &mut Vec<u8>,
) -> Result<()> {
    let fail = |message: &str| {
        let message = format!("{message} for {}", element_type.as_str());
        ParseError::new(KIND, span, message)
    };
    let part_type = match element_type {
        ElementType::C64 => ElementType::F32,
        ElementType::C128 => ElementType::F64,
        _ => {
            let bits = match element_type.kind() {
                ElementKind::Float => {
                    float_bits(text, element_type).map_err(|f| fail(fault_text(f)))?
                }
                _ => integer_bits(text, element_type).ok_or_else(|| fail("not a value"))?,
            };
            push_bits(result, bits, element_type);
            return Ok(());
        }
    };
    let mut cursor = Cursor::new(text);
    cursor.expect(b'(', "at the start of a complex number").map_err(|e| e.shifted(span.start))?;
    for end in [b',', b')'] {
        let mut part = || {
            cursor.skip_space()?;
            let text = number_text(&mut cursor)?;
            cursor.expect(end, "after a part of a complex number")?;
            Ok(text)
        };
        let text = part().map_err(|error: ParseError| error.shifted(span.start))?;
        let bits = float_bits(text, part_type).map_err(|f| fail(fault_text(f)))?;
        push_bits(result, bits, part_type);
    }
    Ok(())
}

fn fault_text(fault: FloatFault) -> &'static str {
    match fault {
        FloatFault::NotANumber => "not a number",
        FloatFault::OutOfRange => "number out of range",
        FloatFault::NoSuchValue => "no such value",
    }
}

fn push_bits(result: &mut Vec<u8>, bits: u64, element_type: ElementType) {
    let size = (element_type.storage_bits() / 8) as usize;
    result.extend_from_slice(bits.to_le_bytes().get(..size).unwrap_or_default());
}

/// The bits of an integer or predicate, sign-extended.
fn integer_bits(text: &[u8], element_type: ElementType) -> Option<u64> {
    if element_type == ElementType::Pred {
        match text {
            b"true" => return Some(1),
            b"false" => return Some(0),
            _ => {}
        }
    }
    let text = std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'))?;
    let value: i128 = text.parse().ok()?;
    let bits = element_type.bits();
    let fits = match element_type.kind() {
        ElementKind::Predicate => {
            let read = value >= i128::from(i64::MIN) && value <= i128::from(u64::MAX);
            return read.then_some(u64::from(value != 0));
        }
        // 64 bits wrap, as in XLA.
        _ if bits == 64 => value >= i128::from(i64::MIN) && value <= i128::from(u64::MAX),
        ElementKind::Signed => value >= -(1 << (bits - 1)) && value < 1 << (bits - 1),
        ElementKind::Unsigned => value >= 0 && value < 1 << bits,
        _ => false,
    };
    fits.then_some(value as u64)
}

/// The leaves of a literal that carries its own shapes (`literal=` of custom calls), in order:
/// text of the shape, text of the value.
pub fn self_typed_leaves(value: &[u8]) -> Result<Vec<(&[u8], &[u8])>> {
    let mut cursor = Cursor::new(value);
    let mut leaves = Vec::new();
    let mut depth = 0usize;
    loop {
        while cursor.eat(b',')? {}
        match cursor.peek() {
            b'(' => {
                cursor.advance(1);
                depth += 1;
            }
            b')' if depth > 0 => {
                cursor.advance(1);
                depth -= 1;
            }
            _ => {
                let shape = shape_text(&mut cursor)?;
                let span = value_span(&mut cursor)?;
                leaves.push((shape, bytes(&cursor, span)));
            }
        }
        if depth == 0 {
            super::scan::finish(&mut cursor)?;
            return Ok(leaves);
        }
    }
}
