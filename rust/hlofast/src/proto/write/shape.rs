//! Shapes as `ShapeProto`, each encoded once.

use super::wire::Message;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::{Dimension, ElementKind, Layout, ShapeId, ShapeTable, ShapeView};
use crate::proto::shape::{BUFFER, TUPLE, code_of};
use crate::text::Span;
use std::collections::HashMap;

/// Maximum nesting of tuples that XLA can read: its reader stops at messages nested 100 deep, and a
/// shape is inside up to 8 other messages.
pub(super) const MAX_DEPTH: usize = 90;

/// How much of a layout is written.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Style {
    /// The layout as in the text; no layout if the text has none.
    Full,
    /// The layout as XLA reads the text; the default layout if the text has none.
    Laid,
    /// For literals: only the order of dimensions, the default one if the text has none.
    Order,
}

/// The encoded shapes of a table.
pub(super) struct Shapes<'m> {
    table: &'m ShapeTable,
    /// The range of each encoded shape in `bytes`.
    known: HashMap<(ShapeId, Style), (usize, usize)>,
    bytes: Vec<u8>,
    limit: usize,
}

impl<'m> Shapes<'m> {
    /// Creates the encoder for `table`, limited to `limit` bytes in total.
    pub(super) fn new(table: &'m ShapeTable, limit: usize) -> Shapes<'m> {
        Shapes { table, known: HashMap::new(), bytes: Vec::new(), limit }
    }

    pub(super) fn table(&self) -> &'m ShapeTable {
        self.table
    }

    /// The `ShapeProto` of shape `id`. Spans of errors refer to the module's text, or are empty.
    pub(super) fn get(&mut self, id: ShapeId, style: Style) -> Result<&[u8]> {
        let (start, end) = self.place(id, style, 0)?;
        Ok(self.bytes.get(start..end).unwrap_or_default())
    }

    fn place(&mut self, id: ShapeId, style: Style, depth: usize) -> Result<(usize, usize)> {
        if let Some(place) = self.known.get(&(id, style)) {
            return Ok(*place);
        }
        let span = self.table.text(id);
        if depth > MAX_DEPTH {
            let message = format!("tuples nested deeper than {MAX_DEPTH}, which XLA cannot read");
            return Err(ParseError::new(ErrorKind::TooDeep, span, message));
        }
        let mut message = Message::default();
        match self.table.get(id) {
            ShapeView::Array(array) => {
                let code = code_of(array.element_type);
                let sizes = array.dimensions().map(|dimension| match dimension {
                    Dimension::Static(size) | Dimension::Bounded(size) => size,
                    Dimension::Unbounded => i64::MIN,
                });
                message.integer(2, code);
                message.integers(3, sizes);
                let is_opaque = array.element_type.kind() == ElementKind::Opaque;
                if !is_opaque || array.layout.is_some_and(has_items) {
                    let usual = Layout::with_order((0..array.rank() as i64).rev().collect());
                    let layout = match (style, array.layout) {
                        (_, Some(layout)) => Some(layout),
                        // A scalar has only one layout, which text omits.
                        (Style::Full, None) => (array.rank() == 0).then_some(&usual),
                        (Style::Laid | Style::Order, None) => Some(&usual),
                    };
                    if let Some(layout) = layout {
                        check_order(&layout.minor_to_major, array.rank(), span)?;
                        message.message(5, layout_proto(layout, style));
                    }
                }
                let is_dynamic = array.dimensions().map(|dimension| match dimension {
                    Dimension::Static(_) => 0,
                    Dimension::Bounded(_) | Dimension::Unbounded => 1,
                });
                message.integers(6, is_dynamic);
            }
            ShapeView::Tuple(children) => {
                message.integer(2, TUPLE);
                for child in children {
                    let (start, end) = self.place(*child, style, depth + 1)?;
                    message.element(4, self.bytes.get(start..end).unwrap_or_default());
                    if message.len() > self.limit {
                        return Err(too_large(span, self.limit));
                    }
                }
            }
            ShapeView::Buffer(inner) => {
                message.integer(2, BUFFER);
                let (start, end) = self.place(inner, style, depth + 1)?;
                message.element(4, self.bytes.get(start..end).unwrap_or_default());
            }
        }
        let bytes = message.finish();
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(too_large(span, self.limit));
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&bytes);
        let place = (start, self.bytes.len());
        self.known.insert((id, style), place);
        Ok(place)
    }
}

pub(super) fn too_large(span: Span, limit: usize) -> ParseError {
    let message = format!("more than {limit} bytes as a protobuf, far beyond the size of the text");
    ParseError::new(ErrorKind::TooLarge, span, message)
}

fn has_items(layout: &Layout) -> bool {
    *layout != Layout::with_order(Box::default())
}

fn check_order(order: &[i64], rank: usize, span: Span) -> Result<()> {
    let mut seen = vec![false; order.len().min(rank)];
    let is_permutation = order.len() == rank
        && order.iter().all(|dimension| {
            let place = usize::try_from(*dimension).ok().and_then(|place| seen.get_mut(place));
            place.is_some_and(|seen| !std::mem::replace(seen, true))
        });
    if is_permutation {
        return Ok(());
    }
    let message = format!("a layout that does not order the {rank} dimensions of its shape");
    Err(ParseError::new(ErrorKind::InvalidLayout, span, message))
}

fn layout_proto(layout: &Layout, style: Style) -> Message {
    let mut message = Message::default();
    message.integers(1, layout.minor_to_major.iter().copied());
    if style == Style::Order {
        message.integer(16, 1);
        return message;
    }
    for tile in &layout.tiles {
        let mut sizes = Message::default();
        sizes.integers(1, tile.iter().copied());
        message.message(6, sizes);
    }
    message.integer(7, layout.element_bits);
    message.integer(8, layout.memory_space);
    for (number, element_type) in [(11, layout.index_type), (12, layout.pointer_type)] {
        message.integer(number, element_type.map_or(0, code_of));
    }
    message.integer(15, layout.metadata_prefix_bytes);
    message.integer(16, layout.tail_padding_alignment);
    for (dimension, indices) in &layout.splits {
        let mut split = Message::default();
        split.integer(1, *dimension);
        split.integers(2, indices.iter().copied());
        message.message(17, split);
    }
    message
}
