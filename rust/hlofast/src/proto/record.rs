//! The fields of one message, accessible in any order.

use super::wire::{Fault, Fields, Read, Value, field, varint};

/// The set of field numbers that may occur several times.
pub(super) const fn repeated(numbers: &[u32]) -> u128 {
    let mut set = 0;
    let mut index = 0;
    while index < numbers.len() {
        set |= 1 << numbers[index];
        index += 1;
    }
    set
}

/// Storage for the fields of one message, reused for the next.
pub(super) struct Store {
    /// The last value of each field; for bytes, their offset in the message and their length.
    values: [u64; NUMBERS],
    wires: [u8; NUMBERS],
    /// The field numbers that are present.
    present: Numbers,
    /// The field numbers that occur more than once.
    several: Numbers,
}

/// A set of field numbers, one bit each.
#[derive(Clone, Copy, Default)]
struct Numbers([u64; 2]);

impl Numbers {
    #[inline(always)]
    fn has(self, number: u32) -> bool {
        self.0[number as usize / 64] >> (number % 64) & 1 != 0
    }

    #[inline(always)]
    fn has_any(self, numbers: u128) -> bool {
        self.0[0] & numbers as u64 | self.0[1] & (numbers >> 64) as u64 != 0
    }
}

/// The first unused field number; all higher numbers are unused too.
const NUMBERS: usize = 128;

impl Default for Store {
    fn default() -> Self {
        Store {
            values: [0; NUMBERS],
            wires: [0; NUMBERS],
            present: Numbers::default(),
            several: Numbers::default(),
        }
    }
}

impl Store {
    /// Reads `message`, in which only fields of `repeated` may occur several times. Protobuf
    /// parsers let the last scalar win and merge messages; no writer duplicates a field, so
    /// duplicates are refused rather than read partially.
    #[inline(always)]
    pub(super) fn read<'a>(&mut self, message: &'a [u8], repeated: u128) -> Read<Record<'a, '_>> {
        self.fill(message, repeated)?;
        Ok(Record { store: self, message })
    }

    #[inline(never)]
    fn fill(&mut self, message: &[u8], repeated: u128) -> Read<()> {
        if message.len() > u32::MAX as usize {
            return Err(Fault::new(message, "a message of 4 GiB or more"));
        }
        // Two variables stay in registers; an array would not.
        let (mut low, mut high) = (0u64, 0u64);
        let (mut at, mut count) = (0, 0);
        while at < message.len() {
            let (tag, value, next) = field(message, at)?;
            at = next;
            let number = (tag >> 3) as usize;
            if number < NUMBERS {
                count += 1;
                let bit = 1u64 << (number % 64);
                low |= if number < 64 { bit } else { 0 };
                high |= if number < 64 { 0 } else { bit };
                self.values[number] = value;
                self.wires[number] = (tag & 7) as u8;
            }
        }
        self.present = Numbers([low, high]);
        self.several = Numbers::default();
        if low.count_ones() + high.count_ones() != count {
            let several = several(message)?;
            if several & !repeated != 0 {
                let number = (several & !repeated).trailing_zeros();
                return Err(Fault::new(message, format!("field {number} occurs twice")));
            }
            self.several = Numbers([several as u64, (several >> 64) as u64]);
        }
        Ok(())
    }
}

/// The numbers of fields that occur more than once in `message`.
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

/// The fields of one message, accessible in any order.
#[derive(Clone, Copy)]
pub(super) struct Record<'a, 's> {
    store: &'s Store,
    message: &'a [u8],
}

/// All occurrences of a field.
pub(super) struct All<'a> {
    /// The value, if there is only one.
    only: Option<Value<'a>>,
    /// Otherwise the fields that follow.
    fields: Option<Fields<'a>>,
    number: u32,
}

impl<'a> Iterator for All<'a> {
    type Item = Value<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Value<'a>> {
        match self.only.take() {
            None if self.fields.is_some() => self.next_of_several(),
            only => only,
        }
    }
}

impl<'a> All<'a> {
    #[inline(never)]
    fn next_of_several(&mut self) -> Option<Value<'a>> {
        let fields = self.fields.as_mut()?;
        // The message was read before, so all its fields are valid.
        while let Ok(Some((number, value))) = fields.next() {
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
        self.store.present.has(number)
    }

    /// Whether any of `numbers` is present.
    #[inline]
    pub(super) fn has_any(&self, numbers: u128) -> bool {
        self.store.present.has_any(numbers)
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

    /// A message, string or bytes, if not empty.
    #[inline(always)]
    pub(super) fn text(&self, number: u32) -> Option<&'a [u8]> {
        self.bytes(number).filter(|bytes| !bytes.is_empty())
    }

    /// An integer; 0 if absent.
    #[inline(always)]
    pub(super) fn integer(&self, number: u32) -> i64 {
        self.value(number, 0).unwrap_or_default() as i64
    }

    /// A `float`; 0 if absent.
    pub(super) fn float(&self, number: u32) -> f32 {
        f32::from_bits(self.value(number, 5).unwrap_or_default() as u32)
    }

    /// A `double`; 0 if absent.
    pub(super) fn double(&self, number: u32) -> f64 {
        f64::from_bits(self.value(number, 1).unwrap_or_default())
    }

    /// Whether a flag is set.
    #[inline]
    pub(super) fn is_set(&self, number: u32) -> bool {
        self.integer(number) != 0
    }

    /// All occurrences of a repeated field.
    #[inline]
    pub(super) fn all(&self, number: u32) -> All<'a> {
        match self.store.several.has(number) {
            false => All { only: self.only(number), fields: None, number },
            true => All { only: None, fields: Some(Fields::new(self.message)), number },
        }
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

    /// All occurrences of a repeated message or string.
    pub(super) fn messages(&self, number: u32) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.all(number).filter_map(Value::bytes)
    }

    /// Passes every element of a repeated integer field to `take`.
    #[inline(always)]
    pub(super) fn integers(&self, number: u32, mut take: impl FnMut(i64) -> Read<()>) -> Read<()> {
        if !self.has(number) {
            return Ok(());
        }
        if self.store.several.has(number) {
            return self.all(number).try_for_each(|value| value.integers(&mut take));
        }
        match self.store.wires[number as usize] {
            0 => take(self.store.values[number as usize] as i64),
            2 => {
                let mut rest = self.bytes(number).unwrap_or_default();
                while !rest.is_empty() {
                    take(varint(&mut rest)? as i64)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The elements of a repeated integer field as a list.
    #[inline(always)]
    pub(super) fn list(&self, number: u32) -> Read<List> {
        let mut list = List::default();
        self.integers(number, |value| {
            list.push(value);
            Ok(())
        })?;
        Ok(list)
    }
}

/// A list of integers; a short list takes no heap memory.
#[derive(Default)]
pub(super) struct List {
    inline: [i64; 8],
    length: usize,
    /// All integers, if they do not fit inline.
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
