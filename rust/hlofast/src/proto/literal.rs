//! `LiteralProto` as text.

use super::out::Out;
use super::record::{Record, Store, repeated};
use super::shape::{MAX_DEPTH, TUPLE, element_type, type_code};
use super::wire::{Fault, Read, Value};
use crate::ir::decode::float_value;
use crate::ir::{ElementKind, ElementType};

/// Maximum number of dimensions; XLA's own limit is far lower.
const MAX_RANK: usize = 64;
/// Maximum number of braces in a literal without elements; literals with more are elided.
const MAX_EMPTY: usize = 1024;

/// The field of `LiteralProto` that holds elements of a type, and its storage.
pub(super) fn field(element_type: ElementType) -> Option<(u32, Storage)> {
    use ElementType as T;
    use Storage::*;
    Some(match element_type {
        T::Pred => (2, Varints),
        T::U8 => (3, Little(1)),
        T::S32 => (4, Varints),
        T::S64 => (5, Varints),
        T::U32 => (6, Varints),
        T::U64 => (7, Varints),
        T::F32 => (8, Fixed(4)),
        T::F64 => (9, Fixed(8)),
        T::F16 => (11, Little(2)),
        T::C64 => (12, Fixed(4)),
        T::Bf16 => (13, Little(2)),
        T::S8 => (15, Little(1)),
        T::U16 => (16, Little(2)),
        T::S16 => (17, Little(2)),
        T::C128 => (18, Fixed(8)),
        T::F8e5m2 => (19, Little(1)),
        T::F8e4m3fn => (20, Little(1)),
        T::S4 => (21, Little(1)),
        T::U4 => (22, Little(1)),
        T::F8e4m3b11fnuz => (23, Little(1)),
        T::F8e5m2fnuz => (24, Little(1)),
        T::F8e4m3fnuz => (25, Little(1)),
        T::S2 => (26, Little(1)),
        T::U2 => (27, Little(1)),
        T::F8e4m3 => (28, Little(1)),
        T::F8e3m4 => (29, Little(1)),
        T::S1 => (30, Little(1)),
        T::U1 => (31, Little(1)),
        T::F4e2m1fn => (32, Little(1)),
        T::F8e8m0fnu => (33, Little(1)),
        T::F6e3m2fn => (35, Little(1)),
        T::F6e2m3fn => (36, Little(1)),
        T::Token | T::Opaque => return None,
    })
}

/// The storage of elements in a field of `LiteralProto`.
#[derive(Clone, Copy)]
pub(super) enum Storage {
    /// Packed varints.
    Varints,
    /// Packed numbers of the given number of bytes.
    Fixed(usize),
    /// A string with the given number of bytes per element.
    Little(usize),
}

/// Appends the literal as in `constant(...)`; with `with_shape`, as in `literal=`.
pub(super) fn write<'a>(
    out: &mut Out<'a>,
    literal: &'a [u8],
    with_shape: bool,
    depth: u32,
) -> Read<()> {
    if depth >= MAX_DEPTH {
        return Err(Fault::new(literal, "a literal nested deeper than 100"));
    }
    let mut store = Store::default();
    let fields = store.read(literal, u128::MAX ^ repeated(&[1]))?;
    let shape = fields.bytes(1).unwrap_or_default();
    let code = type_code(shape)?;
    if code == TUPLE {
        out.push(b"( ");
        for (index, element) in fields.messages(10).enumerate() {
            if index > 0 {
                out.push(b", ");
            }
            write(out, element, with_shape, depth + 1)?;
        }
        out.push(b" )");
        return Ok(());
    }
    let Some(element_type) = element_type(code) else {
        return Err(Fault::new(literal, format!("a literal of unknown element type {code}")));
    };
    if with_shape {
        super::shape::write(out, shape, super::shape::Style::Full, depth)?;
        out.byte(b' ');
    }
    let Some((number, storage)) = field(element_type) else {
        return Err(Fault::new(literal, "a literal of a type that has no values"));
    };
    let (sizes, strides, count) = extents(shape, literal)?;
    let values = Values::read(&fields, number, storage, element_type, count)?;
    // A literal without elements may still have any number of empty braces.
    let leading = sizes.iter().take_while(|size| **size != 0);
    if count == 0 && leading.fold(1usize, |all, size| all.saturating_mul(*size)) > MAX_EMPTY {
        out.push(b"{...}");
        return Ok(());
    }
    let printer = Printer { values: &values, sizes: &sizes, strides: &strides, element_type };
    printer.write(out, 0, 0, 0);
    Ok(())
}

/// The size and stride (in elements) of each dimension, and the number of elements.
fn extents(shape: &[u8], literal: &[u8]) -> Read<(Vec<usize>, Vec<usize>, usize)> {
    let mut store = Store::default();
    let fields = store.read(shape, repeated(&[3, 4, 6]))?;
    let mut sizes = Vec::new();
    fields.integers(3, |size| {
        sizes.push(usize::try_from(size).map_err(|_| Fault::new(literal, "a negative size"))?);
        Ok(())
    })?;
    let mut order = Vec::new();
    let mut layout_store = Store::default();
    let layout = fields.bytes(5).unwrap_or_default();
    let layout = layout_store.read(layout, repeated(&[1, 6, 9, 13, 14, 17]))?;
    layout.integers(1, |dimension| {
        order.push(usize::try_from(dimension).unwrap_or(usize::MAX));
        Ok(())
    })?;
    if order.is_empty() {
        order = (0..sizes.len()).rev().collect();
    }
    if sizes.len() > MAX_RANK {
        return Err(Fault::new(literal, "a literal of more than 64 dimensions"));
    }
    let mut strides = vec![0usize; sizes.len()];
    let mut count = 1usize;
    if order.len() != sizes.len() {
        return Err(Fault::new(literal, "a literal whose layout does not fit its shape"));
    }
    for dimension in order {
        match strides.get_mut(dimension) {
            Some(stride) if *stride == 0 => *stride = count,
            _ => return Err(Fault::new(literal, "a literal whose layout is not a permutation")),
        }
        // A size of zero counts as one, because a stride of 0 marks a dimension that has not
        // occurred yet.
        let next = count.checked_mul(sizes[dimension].max(1));
        count = next.ok_or_else(|| Fault::new(literal, "a literal of too many elements"))?;
    }
    if sizes.contains(&0) {
        count = 0;
    }
    Ok((sizes, strides, count))
}

/// The elements of an array.
enum Values<'a> {
    Integers(Vec<i64>),
    /// Bytes of each number, and the count of numbers per element (two for complex types).
    Bytes(std::borrow::Cow<'a, [u8]>, usize),
}

impl<'a> Values<'a> {
    fn read(
        fields: &Record<'a, '_>,
        number: u32,
        storage: Storage,
        element_type: ElementType,
        count: usize,
    ) -> Read<Values<'a>> {
        let parts = if element_type.kind() == ElementKind::Complex { 2 } else { 1 };
        let (values, value_count) = match storage {
            Storage::Varints => {
                let mut list = Vec::new();
                fields.integers(number, |value| {
                    list.push(value);
                    Ok(())
                })?;
                let value_count = list.len();
                (Values::Integers(list), Some(value_count))
            }
            Storage::Fixed(width) | Storage::Little(width) => {
                let mut chunks = fields.all(number);
                let bytes = match (chunks.next(), chunks.next()) {
                    (Some(Value::Bytes(bytes)), None) => bytes.into(),
                    _ => joined(fields, number).into(),
                };
                let bytes: std::borrow::Cow<'a, [u8]> = bytes;
                let value_count = bytes.len().is_multiple_of(width).then(|| bytes.len() / width);
                (Values::Bytes(bytes, width), value_count)
            }
        };
        if value_count != count.checked_mul(parts) {
            let message = format!(
                "a literal of {} values where its shape has {count} elements",
                value_count
                    .map_or_else(|| "broken".to_owned(), |value_count| value_count.to_string())
            );
            return Err(Fault::new(fields.message(), message));
        }
        Ok(values)
    }

    fn bits(&self, index: usize) -> u64 {
        match self {
            Values::Integers(list) => list.get(index).map_or(0, |value| *value as u64),
            Values::Bytes(bytes, width) => {
                let bytes = bytes.get(index * width..(index + 1) * width).unwrap_or_default();
                bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte))
            }
        }
    }
}

/// All numbers of a field that was not written as one packed string.
fn joined(fields: &Record<'_, '_>, number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in fields.all(number) {
        match value {
            Value::Bytes(packed) => bytes.extend_from_slice(packed),
            Value::Fixed32(bits) => bytes.extend_from_slice(&bits.to_le_bytes()),
            Value::Fixed64(bits) => bytes.extend_from_slice(&bits.to_le_bytes()),
            Value::Varint(_) => {}
        }
    }
    bytes
}

struct Printer<'a> {
    values: &'a Values<'a>,
    sizes: &'a [usize],
    strides: &'a [usize],
    element_type: ElementType,
}

impl Printer<'_> {
    /// Appends dimension `level`, which has index `number` in the enclosing dimension, with its
    /// contents.
    fn write(&self, out: &mut Out<'_>, level: usize, at: usize, number: usize) {
        let Some(size) = self.sizes.get(level).copied() else {
            self.element(out, at);
            return;
        };
        let rank = self.sizes.len();
        let is_innermost = level + 1 == rank;
        let is_tight = rank == 1 || is_innermost && size <= 1;
        out.push(if is_tight { b"{" } else { b"{ " });
        if rank >= 4 && level > 0 && !is_innermost {
            out.push(b"/*i");
            out.unsigned(level as u64 - 1);
            out.byte(b'=');
            out.unsigned(number as u64);
            out.push(b"*/ ");
        }
        for index in 0..size {
            if index > 0 {
                out.push(b", ");
            }
            self.write(out, level + 1, at + index * self.strides[level], index);
        }
        out.push(if is_tight { b"}" } else { b" }" });
    }

    fn element(&self, out: &mut Out<'_>, at: usize) {
        let element_type = self.element_type;
        match element_type.kind() {
            ElementKind::Predicate if self.sizes.is_empty() => {
                out.push(if self.values.bits(at) != 0 { b"true" } else { b"false" });
            }
            ElementKind::Predicate => out.byte(b'0' + u8::from(self.values.bits(at) != 0)),
            ElementKind::Signed => {
                let unused = 64 - element_type.bits();
                out.integer((self.values.bits(at) << unused) as i64 >> unused);
            }
            ElementKind::Unsigned => {
                let unused = 64 - element_type.bits();
                out.unsigned(self.values.bits(at) << unused >> unused);
            }
            ElementKind::Float => write_float(out, self.values.bits(at), element_type),
            ElementKind::Complex => {
                let part = if element_type == ElementType::C64 {
                    ElementType::F32
                } else {
                    ElementType::F64
                };
                out.byte(b'(');
                write_float(out, self.values.bits(2 * at), part);
                out.push(b", ");
                write_float(out, self.values.bits(2 * at + 1), part);
                out.byte(b')');
            }
            ElementKind::Opaque => {}
        }
    }
}

/// Appends a float as XLA does: the shorter of two precisions that round-trips; for small types, as
/// many digits as distinguish all values; for NaNs, the payload if it is unusual.
pub(super) fn write_float(out: &mut Out<'_>, bits: u64, element_type: ElementType) {
    let (value, payload) = float_value(bits, element_type);
    if value.is_nan() {
        out.push(if value.is_sign_negative() { b"-nan" } else { b"nan" });
        if let Some(payload) = payload {
            out.push(format!("(0x{payload:x})").as_bytes());
        }
    } else if value.is_infinite() {
        out.push(if value < 0.0 { b"-inf" } else { b"inf" });
    } else {
        let (short, long) = digits(element_type);
        write_general(out, value, short, long, element_type == ElementType::F32);
    }
}

/// Appends a `double` as XLA prints statistics and tolerances: six digits, or more if six would
/// lose precision.
pub(super) fn write_figure(out: &mut Out<'_>, value: f64) {
    if !value.is_finite() {
        write_float(out, value.to_bits(), ElementType::F64);
    } else if value.abs() < 1e5 {
        write_general(out, value, 6, 17, false);
    } else {
        let short = general(value, 6);
        let is_back = short.parse::<f64>().is_ok_and(|back| back == value);
        out.push(if is_back { short } else { general(value, 17) }.as_bytes());
    }
}

/// Appends a `float` as XLA prints it outside literals.
pub(super) fn write_single(out: &mut Out<'_>, value: f32) {
    if value.is_finite() {
        write_general(out, f64::from(value), 6, 9, true);
    } else {
        write_float(out, u64::from(value.to_bits()), ElementType::F32);
    }
}

/// The number of digits to try first, and the number that always suffices.
fn digits(element_type: ElementType) -> (usize, usize) {
    use ElementType as T;
    match element_type {
        T::F32 => (6, 9),
        T::F64 => (15, 17),
        T::F16 => (5, 5),
        T::Bf16 => (4, 4),
        T::F8e4m3 | T::F8e4m3fn | T::F8e4m3b11fnuz | T::F8e4m3fnuz | T::F8e3m4 | T::F6e2m3fn => {
            (3, 3)
        }
        _ => (2, 2),
    }
}

/// C's `%.{digits}g`, with `short` digits if they round-trip, otherwise with `long` digits.
fn write_general(out: &mut Out<'_>, value: f64, short: usize, long: usize, is_single: bool) {
    // Most constants are small whole numbers, which are printed the same in every precision.
    if value == value.trunc() && value.abs() < 100.0 && (value != 0.0 || value.is_sign_positive()) {
        let whole = value as i64;
        if short > 2 || whole.abs() < 100 {
            out.integer(whole);
            return;
        }
    }
    let text = general(value, short);
    let is_back = if is_single {
        text.parse::<f32>().is_ok_and(|back| back == value as f32)
    } else {
        text.parse::<f64>().is_ok_and(|back| back == value)
    };
    if is_back || short == long {
        out.push(text.as_bytes());
    } else {
        out.push(general(value, long).as_bytes());
    }
}

/// C's `%.{digits}g`.
fn general(value: f64, digits: usize) -> String {
    let scientific = format!("{value:.*e}", digits.saturating_sub(1));
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(mantissa), exponent.unsigned_abs());
    }
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    trimmed(&format!("{value:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_as_c_prints_them() {
        for (value, digits, text) in [
            (0.1, 6, "0.1"),
            (1e-5, 6, "1e-05"),
            (123456.0, 6, "123456"),
            (1234567.0, 6, "1.23457e+06"),
            (100.0, 6, "100"),
            (-0.0, 6, "-0"),
            (0.0001, 6, "0.0001"),
            (9.9999999, 6, "10"),
            (1e300, 15, "1e+300"),
            (448.0, 3, "448"),
            (57344.0, 2, "5.7e+04"),
        ] {
            assert_eq!(general(value, digits), text);
        }
    }

    #[test]
    fn the_shorter_form_that_gives_the_value_back() {
        let text = |value: f32| {
            let mut out = Out::new(0);
            write_single(&mut out, value);
            String::from_utf8(out.text).unwrap()
        };
        assert_eq!(text(0.1), "0.1");
        assert_eq!(text(-1.0), "-1");
        assert_eq!(text(-0.0), "-0");
        assert_eq!(text(1.0 / 3.0), "0.333333343");
        assert_eq!(text(f32::INFINITY), "inf");
    }
}
