//! Stats: named values of planes, events and their metadata.

use super::not_a;
use crate::proto::wire::{Fault, Read, field};
use std::ops::Range;

/// A stat as the file has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stat<'a> {
    /// The number of its name.
    pub id: i64,
    /// The value; None if it has none.
    pub value: Option<Value<'a>>,
}

/// The value of a stat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A real number.
    Real(f64),
    /// A number without sign.
    Unsigned(u64),
    /// A number with sign.
    Signed(i64),
    /// A text.
    Text(&'a [u8]),
    /// Bytes, such as a serialised message.
    Bytes(&'a [u8]),
    /// A text that is the name of the stat of this number.
    Reference(u64),
    /// A text compressed with gzip.
    Packed(&'a [u8]),
}

impl Value<'_> {
    /// The integer, if it is one.
    pub fn integer(&self) -> Option<i64> {
        match *self {
            Value::Unsigned(value) => Some(value as i64),
            Value::Signed(value) => Some(value),
            _ => None,
        }
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match *self {
            Value::Real(value) => Some(value),
            Value::Unsigned(value) => Some(value as f64),
            Value::Signed(value) => Some(value as f64),
            _ => None,
        }
    }
}

/// The stats of one message, in the order of the file.
#[derive(Clone, Debug)]
pub struct Stats<'a> {
    /// Bytes around the message, as [`field`] is quick where eight bytes follow.
    around: &'a [u8],
    at: usize,
    end: usize,
    /// The tag of stats in that message.
    tag: u32,
}

impl<'a> Stats<'a> {
    /// The stats in field `number` of the message at `place` of `around`, which has been checked.
    pub(super) fn of(around: &'a [u8], place: Range<usize>, number: u32) -> Stats<'a> {
        Stats { around, at: place.start, end: place.end, tag: number << 3 | 2 }
    }

    /// The place of the next stat.
    #[inline(always)]
    fn place(&mut self) -> Option<Range<usize>> {
        while self.at < self.end {
            let Ok((tag, value, next)) = field(self.around, self.at) else {
                self.at = self.end;
                return None;
            };
            self.at = next;
            if tag == self.tag {
                return Some(inside(value));
            }
        }
        None
    }

    /// The next stat whose number `wanted` accepts. Others are not decoded, where they begin with
    /// their number as every writer has it.
    #[inline(always)]
    pub(super) fn next_of(&mut self, wanted: impl Fn(i64) -> bool) -> Option<Stat<'a>> {
        loop {
            let place = self.place()?;
            if let Some([0x08, id @ 0..0x80]) = self.around.get(place.start..place.start + 2)
                && place.len() >= 2
                && !wanted(i64::from(*id))
            {
                continue;
            }
            return decode(self.around, place).ok();
        }
    }
}

/// The place of the bytes whose `value` [`field`] gave.
#[inline(always)]
pub(super) fn inside(value: u64) -> Range<usize> {
    let (start, length) = ((value >> 32) as usize, value as u32 as usize);
    start..start + length
}

/// The fault of a field at `at` that does not end where its message does.
#[cold]
pub(super) fn beyond(around: &[u8], at: usize) -> Fault {
    let rest = around.get(at..).unwrap_or_default();
    Fault::new(rest, "a field goes beyond the end of its message")
}

impl<'a> Iterator for Stats<'a> {
    type Item = Stat<'a>;

    fn next(&mut self) -> Option<Stat<'a>> {
        self.next_of(|_| true)
    }
}

/// Reads the stat at `place` of `around`.
#[inline(always)]
fn decode(around: &[u8], place: Range<usize>) -> Read<Stat<'_>> {
    let mut stat = Stat { id: 0, value: None };
    let mut at = place.start;
    while at < place.end {
        let (tag, bits, next) = field(around, at)?;
        if next > place.end {
            return Err(beyond(around, at));
        }
        let bytes = || around.get(inside(bits)).unwrap_or_default();
        match tag {
            0x08 => stat.id = bits as i64,
            0x11 => stat.value = Some(Value::Real(f64::from_bits(bits))),
            0x18 => stat.value = Some(Value::Unsigned(bits)),
            0x20 => stat.value = Some(Value::Signed(bits as i64)),
            0x2a => stat.value = Some(Value::Text(bytes())),
            0x32 => stat.value = Some(Value::Bytes(bytes())),
            0x38 => stat.value = Some(Value::Reference(bits)),
            0x42 => stat.value = Some(Value::Packed(bytes())),
            _ if (1..=8).contains(&(tag >> 3)) => return Err(not_a("a stat", &around[at..])),
            _ => {}
        }
        at = next;
    }
    Ok(stat)
}

/// Checks the stat at `place` of `around`.
#[inline(always)]
pub(super) fn check(around: &[u8], place: Range<usize>) -> Read<()> {
    decode(around, place).map(|_| ())
}
