//! Shapes from text: `f32[2,3]{1,0:T(8,128)S(1)}`, `(f32[], (s32[2], token[]))`, `b(f32[8])`.
//!
//! Iterative, so that nesting costs no stack; depth is bounded as in XLA.

use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::{Dimension, ElementType, Layout, ShapeId, ShapeInterner};
use crate::text::{Cursor, Span};

/// The nesting depth that XLA's parser accepts.
pub const MAX_DEPTH: usize = 8192;

/// An open tuple: where it starts and where its children start on the value stack.
struct Open {
    start: usize,
    first: usize,
    buffer: bool,
}

/// Whether a shape may start at the cursor (after whitespace was skipped): a parenthesis, or an
/// element type followed by its brackets, or `b(`.
pub fn starts_shape(cursor: &Cursor<'_>) -> bool {
    let mut ahead = *cursor;
    if ahead.peek() == b'(' {
        return true;
    }
    let word = ahead.identifier();
    if word == b"b" {
        return ahead.skip_space().is_ok() && ahead.peek() == b'(';
    }
    ElementType::from_bytes(word).is_some() && ahead.skip_space().is_ok() && ahead.peek() == b'['
}

/// Reads one shape.
pub fn parse_shape(cursor: &mut Cursor<'_>, interner: &mut ShapeInterner) -> Result<ShapeId> {
    interner.begin_text(cursor.text());
    let mut values: Vec<ShapeId> = Vec::new();
    let mut opens: Vec<Open> = Vec::new();
    loop {
        cursor.skip_space()?;
        let start = cursor.position();
        // A value, or the opening of a tuple.
        if cursor.peek() == b'(' {
            cursor.advance(1);
            opens.push(Open { start, first: values.len(), buffer: false });
            cursor.skip_space()?;
            if cursor.peek() != b')' {
                check_depth(&opens, start)?;
                continue;
            }
        } else if let Some(known) = known_element(cursor, interner, &opens) {
            values.push(known);
        } else {
            let word = cursor.identifier();
            if word == b"b" {
                cursor.skip_space()?;
                if cursor.peek() == b'(' {
                    cursor.advance(1);
                    opens.push(Open { start, first: values.len(), buffer: true });
                    check_depth(&opens, start)?;
                    continue;
                }
            }
            let Some(element_type) = ElementType::from_bytes(word) else {
                let end = cursor.position().max(start + 1).min(cursor.end());
                let message = if word.is_empty() {
                    "expected a shape".to_string()
                } else {
                    format!("'{}' is not an element type", String::from_utf8_lossy(word))
                };
                return Err(ParseError::new(
                    ErrorKind::InvalidShape,
                    Span::new(start.min(end), end),
                    message,
                ));
            };
            let array = parse_array(cursor, interner, element_type, start)?;
            if opens.is_empty() {
                return Ok(array);
            }
            interner.remember_array(cursor.since(start), cursor.span_since(start), array);
            values.push(array);
        }
        // Close the tuples that end here.
        loop {
            let Some(open) = opens.last() else {
                return values.pop().ok_or_else(|| cursor.expected("a shape", ""));
            };
            cursor.skip_space()?;
            match cursor.peek() {
                b',' if !open.buffer => {
                    cursor.advance(1);
                    break;
                }
                b')' => {
                    cursor.advance(1);
                    let span = cursor.span_since(open.start);
                    let id = if open.buffer {
                        let inner = values[open.first];
                        if values.len() != open.first + 1 || interner.table.array(inner).is_none() {
                            return Err(ParseError::new(
                                ErrorKind::InvalidShape,
                                span,
                                "a buffer holds exactly one array shape",
                            ));
                        }
                        interner.buffer(inner, span)
                    } else {
                        interner.tuple(&values[open.first..], span)
                    };
                    values.truncate(open.first);
                    values.push(id);
                    opens.pop();
                }
                _ => return Err(cursor.expected("',' or ')'", "in a tuple shape")),
            }
        }
    }
}

/// Takes a tuple element whose text equals one of the last few texts.
fn known_element(
    cursor: &mut Cursor<'_>,
    interner: &mut ShapeInterner,
    opens: &[Open],
) -> Option<ShapeId> {
    if opens.is_empty() { None } else { interner.recent_array(cursor) }
}

fn check_depth(opens: &[Open], at: usize) -> Result<()> {
    if opens.len() > MAX_DEPTH {
        return Err(ParseError::new(
            ErrorKind::TooDeep,
            Span::at(at),
            format!("shapes nest deeper than {MAX_DEPTH} levels"),
        ));
    }
    Ok(())
}

/// The dimensions and layout of an array whose element type was just read.
fn parse_array(
    cursor: &mut Cursor<'_>,
    interner: &mut ShapeInterner,
    element_type: ElementType,
    start: usize,
) -> Result<ShapeId> {
    let mut inline = [Dimension::Static(0); 8];
    let mut spilled: Vec<Dimension> = Vec::new();
    let mut rank = 0;
    cursor.expect(b'[', "after an element type")?;
    cursor.skip_space()?;
    if cursor.peek() == b']' {
        cursor.advance(1);
    } else {
        loop {
            let dimension = parse_dimension(cursor)?;
            if rank < inline.len() {
                inline[rank] = dimension;
            } else {
                if spilled.is_empty() {
                    spilled.extend_from_slice(&inline);
                }
                spilled.push(dimension);
            }
            rank += 1;
            cursor.skip_space()?;
            match cursor.peek() {
                b',' => cursor.advance(1),
                b']' => {
                    cursor.advance(1);
                    break;
                }
                _ => return Err(cursor.expected("',' or ']'", "in the dimensions of a shape")),
            }
        }
    }
    let dimensions = if spilled.is_empty() { &inline[..rank] } else { &spilled[..] };
    let after = cursor.position();
    skip_legacy_format(cursor)?;
    let mut layout = None;
    if opens_layout(cursor) {
        let at = cursor.position();
        let (id, ordered) = match interner.known_layout(cursor) {
            Some(known) => known,
            None => {
                let parsed = parse_layout(cursor)?;
                let ordered = parsed.minor_to_major.len();
                let id = interner.layout(parsed);
                interner.remember_layout(cursor.since(at), cursor.span_since(at), id, ordered);
                (id, ordered)
            }
        };
        if ordered != rank {
            return Err(ParseError::new(
                ErrorKind::InvalidLayout,
                cursor.span_since(at),
                format!("the shape has {rank} dimensions, but its layout orders {ordered}"),
            ));
        }
        layout = Some(id);
    } else if cursor.position() != after && !cursor.eat_bytes(b"{}") {
        cursor.set_position(after);
    }
    Ok(interner.array_with_layout(element_type, dimensions, layout, cursor.span_since(start)))
}

fn parse_dimension(cursor: &mut Cursor<'_>) -> Result<Dimension> {
    cursor.skip_space()?;
    let at = cursor.position();
    if cursor.peek() == b'?' {
        cursor.advance(1);
        return Ok(Dimension::Unbounded);
    }
    let bounded = cursor.eat_bytes(b"<=");
    let Some(size) = cursor.integer()? else {
        return Err(cursor.expected("a dimension size", ""));
    };
    // XLA reads a bound of 2^63 as no bound.
    if bounded && (size == i64::MIN || size == i64::MAX) {
        return Ok(Dimension::Unbounded);
    }
    if size < 0 {
        return Err(ParseError::new(
            ErrorKind::InvalidShape,
            cursor.span_since(at),
            "a dimension size is negative",
        ));
    }
    Ok(if bounded { Dimension::Bounded(size) } else { Dimension::Static(size) })
}

/// Skips the words of old dumps between dimensions and layout: `dense`, `sparse`, `invalid`.
fn skip_legacy_format(cursor: &mut Cursor<'_>) -> Result<()> {
    let before = cursor.position();
    let word = cursor.identifier();
    if !(matches!(word, b"dense" | b"sparse" | b"invalid") && cursor.peek() == b'{') {
        cursor.set_position(before);
    }
    Ok(())
}

/// A brace starts a layout only if an integer or a colon follows; otherwise it belongs elsewhere.
fn opens_layout(cursor: &mut Cursor<'_>) -> bool {
    let mut ahead = *cursor;
    if ahead.skip_space().is_err() || ahead.peek() != b'{' {
        return false;
    }
    let at = ahead.position();
    ahead.advance(1);
    if ahead.skip_space().is_err() {
        return false;
    }
    let next = ahead.peek();
    let is_layout = next == b':'
        || next.is_ascii_digit()
        || (next == b'-' && ahead.peek_at(1).is_ascii_digit());
    if is_layout {
        cursor.set_position(at);
    }
    is_layout
}

fn parse_layout(cursor: &mut Cursor<'_>) -> Result<Layout> {
    cursor.advance(1);
    cursor.skip_space()?;
    let mut order = Vec::new();
    if cursor.peek() != b':' {
        order = integers_until(cursor, b'}', b':')?;
    }
    let mut layout = Layout::with_order(order.into());
    cursor.skip_space()?;
    if cursor.peek() == b':' {
        cursor.advance(1);
        parse_layout_items(cursor, &mut layout)?;
    }
    cursor.skip_space()?;
    if cursor.peek() != b'}' {
        return Err(ParseError::new(
            ErrorKind::InvalidLayout,
            Span::new(cursor.position(), (cursor.position() + 1).min(cursor.end())),
            "expected '}' at the end of a layout",
        ));
    }
    cursor.advance(1);
    Ok(layout)
}

/// Layout items in XLA's fixed order; each at most once. If XLA cannot read an item, it stops there
/// and tries the next kind of item from the same place; so does this reader.
fn parse_layout_items(cursor: &mut Cursor<'_>, layout: &mut Layout) -> Result<()> {
    if eat_item(cursor, b"D")? {
        layout.had_level_types = true;
        cursor.advance(1);
        while matches!(cursor.peek(), b'D' | b'C' | b'S' | b'H' | b'+' | b'~' | b',' | b' ') {
            cursor.advance(1);
        }
        cursor.eat(b')')?;
    }
    if eat_item(cursor, b"T")?
        && let Some(tiles) = readable(groups(cursor))?
    {
        layout.tiles = tiles.into();
    }
    if eat_item(cursor, b"L")?
        && let Some(value) = readable(parenthesised_integer(cursor))?
    {
        layout.tail_padding_alignment = value;
    }
    for (symbol, is_index) in [(b'#', true), (b'*', false)] {
        if cursor.eat(symbol)? {
            cursor.eat(b'(')?;
            cursor.skip_space()?;
            let element_type = ElementType::from_bytes(cursor.identifier());
            *(if is_index { &mut layout.index_type } else { &mut layout.pointer_type }) =
                element_type;
            cursor.eat(b')')?;
        }
    }
    if eat_item(cursor, b"E")?
        && let Some(value) = readable(parenthesised_integer(cursor))?
    {
        layout.element_bits = value;
    }
    if eat_item(cursor, b"S")?
        && let Some(value) = readable(parenthesised_integer(cursor))?
    {
        layout.memory_space = value;
    }
    if eat_item(cursor, b"SC")? {
        let mut splits = Vec::new();
        while cursor.eat(b'(')? {
            match readable(parse_split(cursor))? {
                Some(split) => splits.push(split),
                None => break,
            }
        }
        layout.splits = splits.into();
    }
    if eat_item(cursor, b"P")? {
        let start = cursor.position();
        cursor.balanced()?;
        return Err(ParseError::new(
            ErrorKind::InvalidLayout,
            cursor.span_since(start),
            "a physical shape is only for sparse arrays, which XLA no longer supports",
        ));
    }
    if eat_item(cursor, b"M")?
        && let Some(value) = readable(parenthesised_integer(cursor))?
    {
        layout.metadata_prefix_bytes = value;
    }
    Ok(())
}

/// None for an item that cannot be read; an unclosed comment stays an error.
fn readable<T>(item: Result<T>) -> Result<Option<T>> {
    match item {
        Ok(item) => Ok(Some(item)),
        Err(error) if error.kind() == ErrorKind::UnclosedComment => Err(error),
        Err(_) => Ok(None),
    }
}

/// `dimension:index,index)` after the opening parenthesis.
fn parse_split(cursor: &mut Cursor<'_>) -> Result<(i64, Box<[i64]>)> {
    let Some(dimension) = cursor.integer()? else {
        return Err(cursor.expected("a dimension", "in a split"));
    };
    cursor.expect(b':', "after the dimension of a split")?;
    let indices = integers_until(cursor, b')', b')')?.into();
    cursor.advance(1);
    Ok((dimension, indices))
}

/// Takes the word `item` if it is next; true if its parentheses follow.
fn eat_item(cursor: &mut Cursor<'_>, item: &[u8]) -> Result<bool> {
    cursor.skip_space()?;
    let before = cursor.position();
    if cursor.identifier() == item {
        cursor.skip_space()?;
        return Ok(cursor.peek() == b'(');
    }
    cursor.set_position(before);
    Ok(false)
}

fn parenthesised_integer(cursor: &mut Cursor<'_>) -> Result<i64> {
    cursor.expect(b'(', "in a layout item")?;
    let Some(value) = cursor.integer()? else {
        return Err(cursor.expected("an integer", "in a layout item"));
    };
    cursor.expect(b')', "in a layout item")?;
    Ok(value)
}

/// `(..)(..)`: one or more parenthesised lists of integers and `*`.
fn groups(cursor: &mut Cursor<'_>) -> Result<Vec<Box<[i64]>>> {
    let mut all = Vec::new();
    loop {
        cursor.skip_space()?;
        if cursor.peek() != b'(' {
            return Ok(all);
        }
        cursor.advance(1);
        let mut group = Vec::new();
        cursor.skip_space()?;
        if cursor.peek() == b')' {
            cursor.advance(1);
            all.push(group.into());
            continue;
        }
        loop {
            cursor.skip_space()?;
            if cursor.peek() == b'*' {
                cursor.advance(1);
                group.push(i64::MIN);
            } else if let Some(value) = cursor.integer()? {
                group.push(value);
            } else {
                return Err(cursor.expected("an integer", "in a tile"));
            }
            cursor.skip_space()?;
            match cursor.peek() {
                b',' => cursor.advance(1),
                b')' => {
                    cursor.advance(1);
                    break;
                }
                _ => return Err(cursor.expected("',' or ')'", "in a tile")),
            }
        }
        all.push(group.into());
    }
}

/// Integers separated by commas, up to one of two closing bytes, which is not taken.
fn integers_until(cursor: &mut Cursor<'_>, end: u8, other: u8) -> Result<Vec<i64>> {
    let mut values = Vec::new();
    cursor.skip_space()?;
    if cursor.peek() == end || cursor.peek() == other {
        return Ok(values);
    }
    loop {
        let Some(value) = cursor.integer()? else {
            return Err(cursor.expected("an integer", "in a layout"));
        };
        values.push(value);
        cursor.skip_space()?;
        let next = cursor.peek();
        if next == end || next == other {
            return Ok(values);
        }
        if next != b',' {
            return Err(ParseError::new(
                ErrorKind::InvalidLayout,
                Span::new(cursor.position(), (cursor.position() + 1).min(cursor.end())),
                "expected ',' or the end of the list in a layout",
            ));
        }
        cursor.advance(1);
    }
}
