//! The protobuf wire format: fields of a message as they stand, nothing copied, nothing allocated
//! for a length that is only claimed.

use crate::error::ErrorKind;

/// What is wrong, and at which address; the address becomes an offset when the error leaves the
/// room, where the beginning of the file is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) kind: ErrorKind,
    pub(super) message: String,
}

pub(super) type Read<T> = Result<T, Fault>;

impl Fault {
    /// A fault where `bytes` begin.
    #[cold]
    pub(super) fn new(bytes: &[u8], message: impl Into<String>) -> Fault {
        let at = bytes.as_ptr() as usize;
        Fault { at, kind: ErrorKind::InvalidProto, message: message.into() }
    }
}

/// The value of one field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
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
    /// A message or a string; None for another wire type, which readers then skip as C++ does.
    pub(super) fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A number; negative ones of 32 bits are written with 64.
    pub(super) fn integer(self) -> Option<i64> {
        match self {
            Value::Varint(value) => Some(value as i64),
            _ => None,
        }
    }

    /// `float`.
    pub(super) fn float(self) -> Option<f32> {
        match self {
            Value::Fixed32(bits) => Some(f32::from_bits(bits)),
            _ => None,
        }
    }

    /// `double`.
    pub(super) fn double(self) -> Option<f64> {
        match self {
            Value::Fixed64(bits) => Some(f64::from_bits(bits)),
            _ => None,
        }
    }

    /// Gives every element of a repeated integer field: packed or one by one.
    #[inline(always)]
    pub(super) fn integers(self, mut take: impl FnMut(i64) -> Read<()>) -> Read<()> {
        let (mut rest, mut single): (&[u8], _) = match self {
            Value::Varint(value) => (&[], Some(value)),
            Value::Bytes(bytes) => (bytes, None),
            _ => (&[], None),
        };
        // One place that calls, so that what it calls stands here.
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

/// The varint that `rest` begins with.
#[inline(always)]
pub(super) fn varint(rest: &mut &[u8]) -> Read<u64> {
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
        // Many numbers stand at the end of their message. What is not there never ends one.
        None => rest.iter().rev().fold(TOPS, |word, byte| word << 8 | u64::from(*byte)),
    };
    let ends = !word & TOPS;
    if ends == 0 {
        return slow_varint(rest);
    }
    *rest = &rest[ends.trailing_zeros() as usize / 8 + 1..];
    Ok(joined(word, ends))
}

/// The bits up to the byte that ends the number, the lowest of `ends`: seven of each, moved
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
        // Bits beyond the 64th are dropped, as C++ does.
        value |= u64::from(byte & 0x7f) << (7 * index);
        if *byte < 0x80 {
            *rest = &rest[index + 1..];
            return Ok(value);
        }
    }
    Err(match rest.len() {
        0..10 => Fault::new(rest, "a number is cut off"),
        _ => Fault::new(rest, "a number of more than 10 bytes"),
    })
}

/// Iterates over the fields of one message.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Number and value of the next field, None at the end.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Read<Option<(u32, Value<'a>)>> {
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

    /// The number and the wire type of the next field, of which there is one.
    #[inline(always)]
    fn tag(&mut self) -> Read<u32> {
        // Of one or two bytes, which is what writers make of all of HLO's fields.
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

    /// The value of field `number`, which began at `start`, of wire type 2.
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

    /// A tag that is not written as usual.
    #[cold]
    fn long_tag(&mut self) -> Read<u32> {
        let start = self.rest;
        let tag = varint(&mut self.rest)?;
        match u32::try_from(tag) {
            Ok(tag) if tag >> 3 != 0 && start.len() - self.rest.len() <= 5 => Ok(tag),
            _ => Err(Fault::new(start, format!("{tag} is no field of a message"))),
        }
    }

    fn fixed_value(&mut self, start: &[u8], number: u32, wire: u32) -> Read<Value<'a>> {
        match wire {
            1 => Ok(Value::Fixed64(u64::from_le_bytes(self.fixed(start, number)?))),
            5 => Ok(Value::Fixed32(u32::from_le_bytes(self.fixed(start, number)?))),
            wire => {
                let message = format!("field {number} has wire type {wire}, which HLO never has");
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

/// The set of field numbers that may stand several times.
pub(super) const fn repeated(numbers: &[u32]) -> u128 {
    let mut set = 0;
    let mut index = 0;
    while index < numbers.len() {
        set |= 1 << numbers[index];
        index += 1;
    }
    set
}

/// Room for the fields of one message, to be used again for the next.
pub(super) struct Store {
    /// The last value of each number: of bytes where they begin in the message and their length.
    values: [u64; NUMBERS],
    wires: [u8; NUMBERS],
}

/// Numbers beyond these have no meaning.
const NUMBERS: usize = 128;

impl Default for Store {
    fn default() -> Self {
        Store { values: [0; NUMBERS], wires: [0; NUMBERS] }
    }
}

impl Store {
    /// Reads `message`, in which only fields of `repeated` may stand several times. Parsers of
    /// protobuf let the last scalar win and merge messages; no writer doubles a field, so it is
    /// refused rather than half read.
    pub(super) fn read<'a>(&mut self, message: &'a [u8], repeated: u128) -> Read<Record<'a, '_>> {
        if message.len() > u32::MAX as usize {
            return Err(Fault::new(message, "a message of 4 GiB or more"));
        }
        let mut present = [0u64; 2];
        let (mut at, mut count) = (0, 0);
        while at < message.len() {
            let (tag, value, next) = match quick_field(message, at) {
                Some(field) => field,
                None => slow_field(message, at)?,
            };
            at = next;
            let number = (tag >> 3) as usize;
            if number < NUMBERS {
                count += 1;
                present[number / 64] |= 1 << (number % 64);
                self.values[number] = value;
                self.wires[number] = (tag & 7) as u8;
            }
        }
        let several = match present[0].count_ones() + present[1].count_ones() {
            distinct if distinct == count => 0,
            _ => several(message)?,
        };
        let present = u128::from(present[0]) | u128::from(present[1]) << 64;
        if several & !repeated != 0 {
            let number = (several & !repeated).trailing_zeros();
            return Err(Fault::new(message, format!("field {number} stands twice")));
        }
        Ok(Record { store: self, present, several, message })
    }
}

/// The numbers of fields that stand in `message` more than once.
#[cold]
fn several(message: &[u8]) -> Read<u128> {
    let (mut present, mut several) = (0u128, 0);
    let mut fields = Fields::new(message);
    while let Some((number, _)) = fields.next()? {
        if (number as usize) < NUMBERS {
            several |= present & 1 << number;
            present |= 1 << number;
        }
    }
    Ok(several)
}

/// Tag and value of the field at `at`, and where the next one begins: of bytes the value is where
/// they begin and their length. None for fields that are not written as most are, and for broken
/// ones.
#[inline(always)]
fn quick_field(message: &[u8], at: usize) -> Option<(u32, u64, usize)> {
    // The eight bytes from `at` on, zeros behind the end.
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
        // A number that goes on behind the eight bytes ends in their zeros.
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

/// The fields of one message, to be asked for in any order.
#[derive(Clone, Copy)]
pub(super) struct Record<'a, 's> {
    store: &'s Store,
    /// Which of the numbers below 128 are there.
    present: u128,
    /// Which of them stand more than once.
    several: u128,
    message: &'a [u8],
}

/// Every occurrence of a field.
pub(super) struct All<'a> {
    /// The only one, if it is.
    only: Option<Value<'a>>,
    fields: Fields<'a>,
    number: u32,
}

impl<'a> Iterator for All<'a> {
    type Item = Value<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Value<'a>> {
        match self.only.take() {
            None if !self.fields.rest.is_empty() => self.next_of_several(),
            only => only,
        }
    }
}

impl<'a> All<'a> {
    #[inline(never)]
    fn next_of_several(&mut self) -> Option<Value<'a>> {
        // The message was read before, so that nothing in it is broken.
        while let Ok(Some((number, value))) = self.fields.next() {
            if number == self.number {
                return Some(value);
            }
        }
        None
    }
}

impl<'a> Record<'a, '_> {
    /// The whole message.
    pub(super) fn message(&self) -> &'a [u8] {
        self.message
    }

    #[inline(always)]
    pub(super) fn has(&self, number: u32) -> bool {
        self.present >> number & 1 != 0
    }

    /// Whether one of `numbers` is there.
    #[inline]
    pub(super) fn has_any(&self, numbers: u128) -> bool {
        self.present & numbers != 0
    }

    /// The value of a field of wire type `wire`.
    #[inline(always)]
    fn value(&self, number: u32, wire: u8) -> Option<u64> {
        let is_there = self.has(number) && self.store.wires[number as usize] == wire;
        is_there.then(|| self.store.values[number as usize])
    }

    /// A message, string or bytes.
    #[inline(always)]
    pub(super) fn bytes(&self, number: u32) -> Option<&'a [u8]> {
        let value = self.value(number, 2)?;
        self.message.get((value >> 32) as usize..)?.get(..value as u32 as usize)
    }

    /// A message, string or bytes that says something.
    #[inline(always)]
    pub(super) fn text(&self, number: u32) -> Option<&'a [u8]> {
        self.bytes(number).filter(|bytes| !bytes.is_empty())
    }

    /// A number, 0 if absent.
    #[inline(always)]
    pub(super) fn integer(&self, number: u32) -> i64 {
        self.value(number, 0).unwrap_or_default() as i64
    }

    /// A `float`, 0 if absent.
    pub(super) fn float(&self, number: u32) -> f32 {
        f32::from_bits(self.value(number, 5).unwrap_or_default() as u32)
    }

    /// A `double`, 0 if absent.
    pub(super) fn double(&self, number: u32) -> f64 {
        f64::from_bits(self.value(number, 1).unwrap_or_default())
    }

    /// Whether a flag is set.
    #[inline]
    pub(super) fn is_set(&self, number: u32) -> bool {
        self.integer(number) != 0
    }

    /// Every occurrence of a repeated field.
    #[inline]
    pub(super) fn all(&self, number: u32) -> All<'a> {
        let is_several = self.several >> number & 1 != 0;
        let fields = Fields::new(if is_several { self.message } else { &[] });
        let only = if is_several { None } else { self.only(number) };
        All { only, fields, number }
    }

    fn only(&self, number: u32) -> Option<Value<'a>> {
        if !self.has(number) {
            return None;
        }
        let value = self.store.values[number as usize];
        match self.store.wires[number as usize] {
            0 => Some(Value::Varint(value)),
            1 => Some(Value::Fixed64(value)),
            2 => self.bytes(number).map(Value::Bytes),
            _ => Some(Value::Fixed32(value as u32)),
        }
    }

    /// Every occurrence of a repeated message or string.
    pub(super) fn messages(&self, number: u32) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.all(number).filter_map(Value::bytes)
    }

    /// Every element of a repeated integer field.
    #[inline(always)]
    pub(super) fn integers(&self, number: u32, mut take: impl FnMut(i64) -> Read<()>) -> Read<()> {
        if self.has(number) {
            for value in self.all(number) {
                value.integers(&mut take)?;
            }
        }
        Ok(())
    }

    /// The elements of a repeated integer field as a list.
    pub(super) fn list(&self, number: u32) -> Read<List> {
        let mut list = List::default();
        self.integers(number, |value| {
            list.push(value);
            Ok(())
        })?;
        Ok(list)
    }
}

/// Integers; the usual few take no heap.
#[derive(Default)]
pub(super) struct List {
    inline: [i64; 8],
    length: usize,
    /// All of them, if they are more.
    more: Vec<i64>,
}

impl List {
    #[inline]
    pub(super) fn push(&mut self, value: i64) {
        match self.inline.get_mut(self.length) {
            Some(place) => *place = value,
            None => {
                if self.more.is_empty() {
                    self.more.extend_from_slice(&self.inline);
                }
                self.more.push(value);
            }
        }
        self.length += 1;
    }
}

impl std::ops::Deref for List {
    type Target = [i64];

    #[inline]
    fn deref(&self) -> &[i64] {
        if self.more.is_empty() { &self.inline[..self.length] } else { &self.more }
    }
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
}
