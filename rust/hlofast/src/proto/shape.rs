//! `ShapeProto` and `LayoutProto` as text.

use super::out::Out;
use super::record::{List, Store, repeated};
use super::wire::{Fault, Fields, Read};
use crate::ir::ElementType;

/// Maximum nesting of messages: protobuf parsers, including XLA's, stop at depth 100.
pub(super) const MAX_DEPTH: u32 = 100;

pub(super) const TUPLE: i64 = 13;
pub(super) const BUFFER: i64 = 34;

use ElementType as T;

/// Element types by `PrimitiveType`; None for tuples, buffers and unused numbers.
const TYPES: [Option<ElementType>; 37] = [
    None,
    Some(T::Pred),
    Some(T::S8),
    Some(T::S16),
    Some(T::S32),
    Some(T::S64),
    Some(T::U8),
    Some(T::U16),
    Some(T::U32),
    Some(T::U64),
    Some(T::F16),
    Some(T::F32),
    Some(T::F64),
    None,
    Some(T::Opaque),
    Some(T::C64),
    Some(T::Bf16),
    Some(T::Token),
    Some(T::C128),
    Some(T::F8e5m2),
    Some(T::F8e4m3fn),
    Some(T::S4),
    Some(T::U4),
    Some(T::F8e4m3b11fnuz),
    Some(T::F8e5m2fnuz),
    Some(T::F8e4m3fnuz),
    Some(T::S2),
    Some(T::U2),
    Some(T::F8e4m3),
    Some(T::F8e3m4),
    Some(T::S1),
    Some(T::U1),
    Some(T::F4e2m1fn),
    Some(T::F8e8m0fnu),
    None,
    Some(T::F6e3m2fn),
    Some(T::F6e2m3fn),
];

/// The element type with number `code` in `PrimitiveType`; None for tuples, buffers and unknown
/// numbers.
pub(super) fn element_type(code: i64) -> Option<ElementType> {
    TYPES.get(usize::try_from(code).ok()?).copied().flatten()
}

/// The number of an element type in `PrimitiveType`.
pub(super) fn code_of(element_type: ElementType) -> i64 {
    TYPES.iter().position(|known| *known == Some(element_type)).unwrap_or_default() as i64
}

/// The parts of a shape to write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// All parts, as in instructions.
    Full,
    /// Without layouts, as in signatures.
    Plain,
}

/// Writes `/*index=5*/` before every fifth element.
pub(super) fn index_comment(out: &mut Out<'_>, index: usize) {
    if index != 0 && index.is_multiple_of(5) {
        out.push(b"/*index=");
        out.unsigned(index as u64);
        out.push(b"*/");
    }
}

/// The code of the shape's element type.
pub(super) fn type_code(shape: &[u8]) -> Read<i64> {
    let mut fields = Fields::new(shape);
    let mut code = 0;
    while let Some((number, value)) = fields.next()? {
        match number {
            2 => code = value.integer().unwrap_or(code),
            3.. => break,
            _ => {}
        }
    }
    Ok(code)
}

/// Number of dimensions of an array.
pub(super) fn rank(shape: &[u8]) -> Read<usize> {
    let mut fields = Fields::new(shape);
    let mut rank = 0;
    while let Some((number, value)) = fields.next()? {
        if number == 3 {
            value.integers(|_| {
                rank += 1;
                Ok(())
            })?;
        }
    }
    Ok(rank)
}

/// The element shapes of a tuple.
pub(super) fn elements(shape: &[u8]) -> Read<Vec<&[u8]>> {
    let mut fields = Fields::new(shape);
    let mut elements = Vec::new();
    while let Some((number, value)) = fields.next()? {
        if let (4, Some(element)) = (number, value.bytes()) {
            elements.push(element);
        }
    }
    Ok(elements)
}

/// Appends the text of `shape`.
pub(super) fn write<'a>(out: &mut Out<'a>, shape: &'a [u8], style: Style, depth: u32) -> Read<()> {
    if depth >= MAX_DEPTH {
        return Err(Fault::new(shape, "a shape nested deeper than 100"));
    }
    let mut code = 0;
    let mut layout = None;
    let (mut sizes, mut dynamic) = (List::default(), List::default());
    let mut fields = Fields::new(shape);
    let mut elements = fields;
    while let Some((number, value)) = fields.next()? {
        match number {
            2 => code = value.integer().unwrap_or(code),
            3 => value.integers(|size| limited(&mut sizes, size, shape))?,
            5 => layout = value.bytes().or(layout),
            6 => value.integers(|flag| limited(&mut dynamic, flag, shape))?,
            _ => {}
        }
    }
    if code == TUPLE || code == BUFFER {
        out.push(if code == TUPLE { b"(" } else { b"b(" });
        let mut index = 0;
        while let Some((number, value)) = elements.next()? {
            if let (4, Some(element)) = (number, value.bytes()) {
                if index > 0 {
                    out.push(b", ");
                    index_comment(out, index);
                }
                index += 1;
                match type_code(element)? {
                    TUPLE | BUFFER => write(out, element, style, depth + 1)?,
                    _ => drop(out.shape(element, style)?),
                }
            }
        }
        out.byte(b')');
        return Ok(());
    }
    let Some(element_type) = element_type(code) else {
        return Err(Fault::new(shape, format!("a shape of unknown element type {code}")));
    };
    if !dynamic.is_empty() && dynamic.len() != sizes.len() {
        return Err(Fault::new(shape, "a shape with a wrong number of dynamic flags"));
    }
    out.push(element_type.as_str().as_bytes());
    out.byte(b'[');
    for (index, size) in sizes.iter().enumerate() {
        if index > 0 {
            out.byte(b',');
        }
        let is_dynamic = dynamic.get(index).is_some_and(|flag| *flag != 0);
        match (*size, is_dynamic) {
            (i64::MIN, _) => out.byte(b'?'),
            (size, _) if size < 0 => {
                return Err(Fault::new(shape, format!("a dimension of size {size}")));
            }
            (size, true) => {
                out.push(b"<=");
                out.integer(size);
            }
            (size, false) => out.integer(size),
        }
    }
    out.byte(b']');
    if let Some(layout) = layout.filter(|_| style == Style::Full) {
        write_layout(out, layout, sizes.len(), depth + 1)?;
    }
    Ok(())
}

/// Appends `{1,0:T(8,128)S(1)}`; nothing for a scalar with an empty layout.
fn write_layout<'a>(out: &mut Out<'a>, layout: &'a [u8], rank: usize, depth: u32) -> Read<()> {
    let mut order = List::default();
    let mut fields = Fields::new(layout);
    let mut has_items = false;
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => value.integers(|dimension| limited(&mut order, dimension, layout))?,
            // XLA always writes 1, which is the default.
            16 => has_items |= value.integer().is_some_and(|items| items > 1),
            7 | 8 | 11 | 12 | 15 => has_items |= value.integer().is_some_and(|value| value != 0),
            6 | 10 | 17 => has_items = true,
            _ => {}
        }
    }
    if order.len() != rank {
        let message = format!("a layout of {} dimensions for a shape of {rank}", order.len());
        return Err(Fault::new(layout, message));
    }
    // Orders of 64 or more dimensions are checked by the text reader.
    let mut seen = 0u64;
    for dimension in order.iter() {
        let bit = u32::try_from(*dimension).ok().filter(|d| (*d as usize) < rank);
        let Some(bit) = bit else {
            return Err(Fault::new(layout, "a layout of dimensions that the shape does not have"));
        };
        if bit < 64 {
            if seen & 1 << bit != 0 {
                return Err(Fault::new(layout, "a layout with a dimension twice"));
            }
            seen |= 1 << bit;
        }
    }
    if rank == 0 && !has_items {
        return Ok(());
    }
    out.byte(b'{');
    out.plain_integers(&order);
    if has_items {
        out.byte(b':');
        write_items(out, layout, depth)?;
    }
    out.byte(b'}');
    Ok(())
}

fn write_items<'a>(out: &mut Out<'a>, layout: &'a [u8], depth: u32) -> Read<()> {
    let mut store = Store::default();
    let items = store.read(layout, repeated(&[1, 6, 9, 13, 14, 17]))?;
    for (index, tile) in items.messages(6).enumerate() {
        if index == 0 {
            out.byte(b'T');
        }
        out.byte(b'(');
        let mut first = true;
        let mut fields = Fields::new(tile);
        while let Some((number, value)) = fields.next()? {
            if number == 1 {
                value.integers(|size| {
                    if !std::mem::take(&mut first) {
                        out.byte(b',');
                    }
                    match size {
                        i64::MIN => out.byte(b'*'),
                        size => out.integer(size),
                    }
                    Ok(())
                })?;
            }
        }
        out.byte(b')');
    }
    if items.integer(16) > 1 {
        out.push(b"L(");
        out.integer(items.integer(16));
        out.byte(b')');
    }
    for (number, open) in [(11, b"#("), (12, b"*(")] {
        let code = items.integer(number);
        if code != 0 {
            let Some(word) = element_type(code) else {
                return Err(Fault::new(layout, format!("a layout of unknown index type {code}")));
            };
            out.push(open);
            out.push(word.as_str().as_bytes());
            out.byte(b')');
        }
    }
    for (number, open) in [(7, b"E("), (8, b"S(")] {
        if items.integer(number) != 0 {
            out.push(open);
            out.integer(items.integer(number));
            out.byte(b')');
        }
    }
    for (index, split) in items.messages(17).enumerate() {
        let mut store = Store::default();
        let split = store.read(split, repeated(&[2]))?;
        out.push(if index == 0 { b"SC(" } else { b"(" });
        out.integer(split.integer(1));
        out.byte(b':');
        out.plain_integers(&split.list(2)?);
        out.byte(b')');
    }
    if let Some(physical) = items.bytes(10) {
        out.push(b"P(");
        write(out, physical, Style::Full, depth)?;
        out.byte(b')');
    }
    if items.integer(15) != 0 {
        out.push(b"M(");
        out.integer(items.integer(15));
        out.byte(b')');
    }
    Ok(())
}

/// More dimensions than any array has; a hostile proto could list millions.
const MAX_RANK: usize = 1 << 16;

fn limited(list: &mut List, value: i64, shape: &[u8]) -> Read<()> {
    if list.len() >= MAX_RANK {
        return Err(Fault::new(shape, "a shape of more than 65536 dimensions"));
    }
    list.push(value);
    Ok(())
}
