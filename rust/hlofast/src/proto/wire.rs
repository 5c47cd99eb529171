//! The protobuf wire format: reads the fields of a message in place, without copying. A claimed
//! length never causes an allocation.

use crate::error::ErrorKind;

/// A fault and its address. The caller outside this module knows the start of the file, and
/// converts the address to an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) at: usize,
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
}

pub(crate) type Read<T> = Result<T, Fault>;

impl Fault {
    /// A fault at the start of `bytes`.
    #[cold]
    pub(crate) fn new(bytes: &[u8], message: impl Into<String>) -> Fault {
        let at = bytes.as_ptr() as usize;
        Fault { at, kind: ErrorKind::InvalidProto, message: message.into() }
    }
}

/// The value of one field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1.
    Fixed64(u64),
    /// Wire type 2: a message, a string, bytes or packed scalars.
    Bytes(&'a [u8]),
    /// Wire type 5.
    Fixed32(u32),
}

impl<'a> Value<'a> {
    /// A message or a string; None for other wire types, which are skipped as in C++.
    pub(crate) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A number; negative 32-bit numbers are encoded with 64 bits.
    pub(crate) fn integer(self) -> Option<i64> {
        match self {
            Value::Varint(value) => Some(value as i64),
            _ => None,
        }
    }

    /// Passes every element of a repeated integer field, packed or not, to `take`.
    #[inline(always)]
    pub(crate) fn integers(self, mut take: impl FnMut(i64) -> Read<()>) -> Read<()> {
        let (mut rest, mut single): (&[u8], _) = match self {
            Value::Varint(value) => (&[], Some(value)),
            Value::Bytes(bytes) => (bytes, None),
            _ => (&[], None),
        };
        // There is a single call site, so that the compiler inlines the callee.
        while single.is_some() || !rest.is_empty() {
            let value = match single.take() {
                Some(value) => value,
                None => varint(&mut rest)?,
            };
            take(value as i64)?;
        }
        Ok(())
    }
}

/// Reads the varint at the start of `rest`.
#[inline(always)]
pub(crate) fn varint(rest: &mut &[u8]) -> Read<u64> {
    match rest {
        [first, tail @ ..] if *first < 0x80 => {
            *rest = tail;
            Ok(u64::from(*first))
        }
        [first, second, tail @ ..] if *second < 0x80 => {
            *rest = tail;
            Ok(u64::from(*first & 0x7f) | u64::from(*second) << 7)
        }
        _ => long_varint(rest),
    }
}

/// The top bits of eight bytes.
const TOPS: u64 = 0x8080_8080_8080_8080;

#[inline]
fn long_varint(rest: &mut &[u8]) -> Read<u64> {
    let word = match rest.first_chunk() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        // Many numbers are at the end of their message, where padding fills the word. Padding bytes
        // have the top bit set, so they never end a number.
        None => rest.iter().rev().fold(TOPS, |word, byte| word << 8 | u64::from(*byte)),
    };
    let ends = !word & TOPS;
    if ends == 0 {
        return slow_varint(rest);
    }
    *rest = &rest[ends.trailing_zeros() as usize / 8 + 1..];
    Ok(joined(word, ends))
}

/// The bits up to the byte that ends the number, the lowest of `ends`: seven bits per byte, joined
/// together.
#[inline(always)]
fn joined(word: u64, ends: u64) -> u64 {
    let bits = word & (ends ^ ends.wrapping_sub(1)) & !TOPS;
    let bits = (bits & 0x007f_007f_007f_007f) | (bits & 0x7f00_7f00_7f00_7f00) >> 1;
    let bits = (bits & 0x0000_3fff_0000_3fff) | (bits & 0x3fff_0000_3fff_0000) >> 2;
    (bits & 0x0fff_ffff) | (bits & 0x0fff_ffff_0000_0000) >> 4
}

#[inline(never)]
fn slow_varint(rest: &mut &[u8]) -> Read<u64> {
    let mut value = 0u64;
    for (index, byte) in rest.iter().take(10).enumerate() {
        // Bits beyond the 64th are dropped, as in C++.
        value |= u64::from(byte & 0x7f) << (7 * index);
        if *byte < 0x80 {
            *rest = &rest[index + 1..];
            return Ok(value);
        }
    }
    Err(match rest.len() {
        0..10 => Fault::new(rest, "a number is truncated"),
        _ => Fault::new(rest, "a number of more than 10 bytes"),
    })
}

/// Iterates over the fields of one message.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Number and value of the next field, None at the end.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Read<Option<(u32, Value<'a>)>> {
        let start = self.rest;
        if start.is_empty() {
            return Ok(None);
        }
        let tag = self.tag()?;
        let number = tag >> 3;
        let value = match tag & 7 {
            2 => Value::Bytes(self.bytes(start, number)?),
            0 => Value::Varint(varint(&mut self.rest)?),
            wire => self.fixed_value(start, number, wire)?,
        };
        Ok(Some((number, value)))
    }

    /// The number and wire type of the next field, which must exist.
    #[inline(always)]
    fn tag(&mut self) -> Read<u32> {
        // Tags of one or two bytes, which writers use for all fields of HLO.
        match self.rest {
            [tag @ 8..0x80, rest @ ..] => {
                self.rest = rest;
                Ok(u32::from(*tag))
            }
            [low @ 0x80..=0xff, high @ 1..0x80, rest @ ..] => {
                self.rest = rest;
                Ok(u32::from(*low & 0x7f) | u32::from(*high) << 7)
            }
            _ => self.long_tag(),
        }
    }

    /// The value of field `number`, of wire type 2, which began at `start`.
    #[inline(always)]
    fn bytes(&mut self, start: &[u8], number: u32) -> Read<&'a [u8]> {
        let length = varint(&mut self.rest)?;
        match usize::try_from(length).ok().and_then(|at| self.rest.split_at_checked(at)) {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => Err(self.cut_off(start, number, length)),
        }
    }

    /// Reads a tag with an unusual encoding.
    #[cold]
    fn long_tag(&mut self) -> Read<u32> {
        let start = self.rest;
        let tag = varint(&mut self.rest)?;
        match u32::try_from(tag) {
            Ok(tag) if tag >> 3 != 0 && start.len() - self.rest.len() <= 5 => Ok(tag),
            _ => Err(Fault::new(start, format!("{tag} is not a valid field tag"))),
        }
    }

    fn fixed_value(&mut self, start: &[u8], number: u32, wire: u32) -> Read<Value<'a>> {
        match wire {
            1 => Ok(Value::Fixed64(u64::from_le_bytes(self.fixed(start, number)?))),
            5 => Ok(Value::Fixed32(u32::from_le_bytes(self.fixed(start, number)?))),
            wire => {
                let message =
                    format!("field {number} has wire type {wire}, which XLA never writes");
                Err(Fault::new(start, message))
            }
        }
    }

    fn fixed<const N: usize>(&mut self, start: &[u8], number: u32) -> Read<[u8; N]> {
        match self.rest.split_first_chunk() {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(*bytes)
            }
            None => Err(self.cut_off(start, number, N as u64)),
        }
    }

    #[cold]
    fn cut_off(&self, start: &[u8], number: u32, length: u64) -> Fault {
        let left = self.rest.len();
        let message = format!("field {number} claims {length} bytes where {left} are left");
        Fault::new(start, message)
    }
}

/// Tag and value of the field of `message` at `at`, and the offset of the next field. The value of
/// a bytes field is its start in the upper half and its length in the lower half.
#[inline(always)]
pub(crate) fn field(message: &[u8], at: usize) -> Read<(u32, u64, usize)> {
    match quick_field(message, at) {
        Some(field) => Ok(field),
        None => slow_field(message, at),
    }
}

/// Tag and value of the field at `at`, and the offset of the next field; None for unusual encodings
/// and invalid fields.
#[inline(always)]
fn quick_field(message: &[u8], at: usize) -> Option<(u32, u64, usize)> {
    // The eight bytes from `at` on, followed by zeros past the end.
    let start = at.min(message.len().checked_sub(8)?);
    let mut word = u64::from_le_bytes(*message.get(start..)?.first_chunk()?) >> (8 * (at - start));
    let mut tag = word & 0x7f;
    let mut next = at + 1;
    if word & 0x80 != 0 {
        if word & 0x8000 != 0 {
            return None;
        }
        tag |= word >> 1 & 0x3f80;
        next += 1;
        word >>= 8;
    }
    word >>= 8;
    let mut value = word & 0x7f;
    if word & 0x80 == 0 {
        next += 1;
    } else {
        let ends = !word & TOPS;
        value = joined(word, ends);
        next += ends.trailing_zeros() as usize / 8 + 1;
        // Otherwise, a number that continues past the eight bytes would seem to end in the zeros.
        if next > start + 8 {
            return None;
        }
    }
    match tag & 7 {
        0 => {}
        2 if value < 1 << 31 => {
            value |= (next as u64) << 32;
            next += value as u32 as usize;
        }
        _ => return None,
    }
    (next <= message.len() && tag >= 8).then_some((tag as u32, value, next))
}

/// Like `quick_field`, for any field.
#[inline(never)]
fn slow_field(message: &[u8], at: usize) -> Read<(u32, u64, usize)> {
    let start = message.get(at..).unwrap_or_default();
    let mut fields = Fields::new(start);
    let tag = fields.tag()?;
    let (number, wire) = (tag >> 3, tag & 7);
    let value = match wire {
        2 => {
            let length = fields.bytes(start, number)?.len();
            let at = message.len() - fields.rest.len() - length;
            (at as u64) << 32 | length as u64
        }
        0 => varint(&mut fields.rest)?,
        _ => match fields.fixed_value(start, number, wire)? {
            Value::Fixed64(bits) => bits,
            Value::Fixed32(bits) => bits.into(),
            _ => 0,
        },
    };
    Ok((tag, value, message.len() - fields.rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_length() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                let mut left = value;
                while left >= 0x80 {
                    bytes.push(left as u8 | 0x80);
                    left >>= 7;
                }
                bytes.push(left as u8);
                for padding in [0, 1, 8] {
                    let mut padded = bytes.clone();
                    padded.resize(bytes.len() + padding, 0xff);
                    let mut rest = &padded[..];
                    assert_eq!(varint(&mut rest), Ok(value));
                    assert_eq!(rest.len(), padding);
                }
                let mut cut = &bytes[..bytes.len() - 1];
                assert!(varint(&mut cut).is_err());
            }
        }
        assert!(varint(&mut &[0xff; 11][..]).is_err());
    }

    /// Reading fields by their offsets and reading them one after another give equal results for
    /// any bytes.
    #[test]
    fn fields_at_any_place() {
        let mut state = 1u64;
        for round in 0..20_000 {
            let mut message = Vec::new();
            for _ in 0..round % 24 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // Small bytes form fields; large bytes form numbers that continue.
                let byte = (state >> 40) as u8;
                message.push(if state >> 33 & 3 == 0 { byte } else { byte & 0x1f });
            }
            let mut fields = Fields::new(&message);
            let mut at = 0;
            while at < message.len() {
                let (number, value, tag, bits, next) = match (fields.next(), field(&message, at)) {
                    (Ok(Some((number, value))), Ok((tag, bits, next))) => {
                        (number, value, tag, bits, next)
                    }
                    (read, other) => {
                        assert_eq!(read.err(), other.err());
                        break;
                    }
                };
                assert_eq!((number, message.len() - next), (tag >> 3, fields.rest.len()));
                let expected = match value {
                    Value::Varint(value) | Value::Fixed64(value) => value,
                    Value::Fixed32(value) => value.into(),
                    Value::Bytes(bytes) => ((next - bytes.len()) as u64) << 32 | bytes.len() as u64,
                };
                assert_eq!(bits, expected);
                at = next;
            }
        }
    }
}
