//! Stats: named values of planes, events and their metadata.

use super::not_a;
use crate::proto::wire::{Read, field};

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
    message: &'a [u8],
    at: usize,
    /// The tag of stats in that message.
    tag: u32,
}

impl<'a> Stats<'a> {
    /// The stats in field `number` of `message`, which has been checked.
    pub(super) fn of(message: &'a [u8], number: u32) -> Stats<'a> {
        Stats { message, at: 0, tag: number << 3 | 2 }
    }
}

impl<'a> Stats<'a> {
    /// The message of the next stat.
    #[inline(always)]
    fn message(&mut self) -> Option<&'a [u8]> {
        while self.at < self.message.len() {
            let Ok((tag, value, next)) = field(self.message, self.at) else {
                self.at = self.message.len();
                return None;
            };
            self.at = next;
            if tag == self.tag {
                let (start, length) = ((value >> 32) as usize, value as u32 as usize);
                let inside = self.message.get(start..).and_then(|rest| rest.get(..length));
                return Some(inside.unwrap_or_default());
            }
        }
        None
    }

    /// The next stat whose number `wanted` accepts. Others are not decoded, where they begin with
    /// their number as every writer has it.
    #[inline(always)]
    pub(super) fn next_of(&mut self, wanted: impl Fn(i64) -> bool) -> Option<Stat<'a>> {
        loop {
            let message = self.message()?;
            if let [0x08, id @ 0..0x80, ..] = message
                && !wanted(i64::from(*id))
            {
                continue;
            }
            return decode(message).ok();
        }
    }
}

impl<'a> Iterator for Stats<'a> {
    type Item = Stat<'a>;

    fn next(&mut self) -> Option<Stat<'a>> {
        self.next_of(|_| true)
    }
}

/// Reads a stat.
#[inline(always)]
fn decode(message: &[u8]) -> Read<Stat<'_>> {
    let mut stat = Stat { id: 0, value: None };
    let mut at = 0;
    while at < message.len() {
        let (tag, bits, next) = field(message, at)?;
        let inside = || {
            let (start, length) = ((bits >> 32) as usize, bits as u32 as usize);
            message.get(start..).and_then(|rest| rest.get(..length)).unwrap_or_default()
        };
        match tag {
            0x08 => stat.id = bits as i64,
            0x11 => stat.value = Some(Value::Real(f64::from_bits(bits))),
            0x18 => stat.value = Some(Value::Unsigned(bits)),
            0x20 => stat.value = Some(Value::Signed(bits as i64)),
            0x2a => stat.value = Some(Value::Text(inside())),
            0x32 => stat.value = Some(Value::Bytes(inside())),
            0x38 => stat.value = Some(Value::Reference(bits)),
            0x42 => stat.value = Some(Value::Packed(inside())),
            _ if (1..=8).contains(&(tag >> 3)) => return Err(not_a("a stat", &message[at..])),
            _ => {}
        }
        at = next;
    }
    Ok(stat)
}

/// Checks that `message` is a stat.
#[inline(always)]
pub(super) fn check(message: &[u8]) -> Read<()> {
    decode(message).map(|_| ())
}
