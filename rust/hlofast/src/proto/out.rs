//! The output text, limited in size.

use super::shape::{self, Style};
use super::wire::{Fault, Read};
use crate::error::ErrorKind;
use crate::text::kernel::{CLOSE, KernelChoice, LineMasks, OPEN};

/// The text of a real module takes two to four times the bytes of its proto. A reference is a few
/// bytes in a proto but a whole name in text, so a hostile proto could otherwise demand text of any
/// size.
const GROWTH: usize = 64;
const FLOOR: usize = 16 << 20;

/// HLO text being written.
pub(super) struct Out<'a> {
    pub(super) text: Vec<u8>,
    limit: usize,
    /// Recently written messages and the positions of their text: a few messages recur often.
    known: Vec<Known<'a>>,
    /// Number of messages written, excluding copies.
    written: u32,
    pub(super) quotes: Quotes,
}

/// Finds bytes outside the strings of a text.
pub(super) struct Quotes {
    kernel: KernelChoice,
    masks: LineMasks,
}

impl Quotes {
    /// The brackets in `text` outside strings; None if it has several lines, escaped quotes or
    /// unclosed strings.
    pub(super) fn brackets(&mut self, text: &[u8]) -> Option<impl Iterator<Item = usize>> {
        let is_plain = memchr::memchr2(b'\\', b'\n', text).is_none();
        if !is_plain || !self.kernel.scan(&mut self.masks, text, 0) {
            return None;
        }
        let next = |from: usize| {
            let at = self.masks.next_of::<OPEN, CLOSE>(from);
            (at < text.len()).then_some(at)
        };
        Some(std::iter::successors(next(0), move |at| next(at + 1)))
    }
}

/// The kind of message: equal bytes of different kinds may have different text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    None,
    Shape,
    PlainShape,
    Literal,
    Metadata,
    Sharding,
    Configuration,
}

/// A message and the range of its text.
#[derive(Clone, Copy)]
struct Known<'a> {
    message: &'a [u8],
    meaning: Meaning,
    start: u32,
    end: u32,
    /// The number of texts written before this one.
    number: u32,
}

const UNKNOWN: Known<'_> =
    Known { message: &[], meaning: Meaning::None, start: 0, end: 0, number: 0 };

impl<'a> Out<'a> {
    /// Creates the output for a proto of `bytes` bytes.
    pub(super) fn new(bytes: usize) -> Out<'a> {
        let limit = bytes.saturating_mul(GROWTH).saturating_add(FLOOR).min(u32::MAX as usize);
        let quotes = Quotes { kernel: KernelChoice::detect(false), masks: LineMasks::default() };
        Out {
            text: Vec::with_capacity(2 * bytes + 256),
            limit,
            known: Vec::new(),
            written: 0,
            quotes,
        }
    }

    #[inline(always)]
    pub(super) fn push(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
    }

    #[inline(always)]
    pub(super) fn byte(&mut self, byte: u8) {
        self.text.push(byte);
    }

    /// Appends text from elsewhere in the proto. A reference of few bytes can stand for a long
    /// text, so the sum of these texts has a limit.
    #[inline]
    pub(super) fn refer(&mut self, text: &[u8]) -> Read<()> {
        self.limit_reference(text)?;
        self.text.extend_from_slice(text);
        Ok(())
    }

    /// Checks that there is room for `text` from elsewhere in the proto, possibly escaped.
    #[inline]
    pub(super) fn limit_reference(&self, text: &[u8]) -> Read<()> {
        if self.text.len() + text.len() > self.limit {
            return Err(self.too_large());
        }
        Ok(())
    }

    #[cold]
    fn too_large(&self) -> Fault {
        let message = format!("more than {} bytes as text, far beyond its size", self.limit);
        Fault { at: 0, kind: ErrorKind::TooLarge, message }
    }

    /// Appends a copy of `range`, a name to which other instructions refer.
    #[inline]
    pub(super) fn copy(&mut self, range: std::ops::Range<usize>) -> Read<()> {
        if self.text.len() + range.len() > self.limit {
            return Err(self.too_large());
        }
        self.text.extend_from_within(range);
        Ok(())
    }

    /// Raises the limit by `bytes`.
    pub(super) fn raise_limit(&mut self, bytes: usize) {
        self.limit = self.limit.saturating_add(bytes).min(u32::MAX as usize);
    }

    /// Checks that the limit is not exceeded.
    #[inline]
    pub(super) fn check(&self) -> Read<()> {
        if self.text.len() > self.limit { Err(self.too_large()) } else { Ok(()) }
    }

    /// Appends the text that `write` produces for `message`, copied if it was written before.
    /// Returns a number that is shared only by copies of the same text.
    #[inline]
    pub(super) fn again(
        &mut self,
        message: &'a [u8],
        meaning: Meaning,
        write: impl FnOnce(&mut Self, &'a [u8]) -> Read<()>,
    ) -> Read<u32> {
        let place = self.place_of(message, meaning);
        if let Some(known) = self.known.get(place)
            && known.meaning == meaning
            && known.message == message
        {
            self.text.extend_from_within(known.start as usize..known.end as usize);
            return Ok(known.number);
        }
        let start = self.text.len() as u32;
        write(self, message)?;
        let number = self.written;
        self.written += 1;
        if self.known.is_empty() {
            let places = (self.text.capacity() / 256).next_power_of_two();
            self.known = vec![UNKNOWN; places.clamp(64, 8192)];
        }
        let place = self.place_of(message, meaning);
        self.known[place] = Known { message, meaning, start, end: self.text.len() as u32, number };
        Ok(number)
    }

    /// Continues the numbering of texts after the last number of `other`.
    pub(super) fn number_from(&mut self, other: &Out<'_>) {
        self.written = other.written;
    }

    /// The slot of `message` in the table of known messages; the table size is a power of two.
    #[inline]
    fn place_of(&self, message: &[u8], meaning: Meaning) -> usize {
        let chunk = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let mixed = match message.first_chunk() {
            Some(first) => {
                let middle = message.get(message.len() / 2..).unwrap_or_default();
                u64::from_le_bytes(*first)
                    ^ chunk(message.last_chunk()).rotate_left(29)
                    ^ chunk(middle.first_chunk()).rotate_left(47)
            }
            None => message.iter().fold(0, |mixed, byte| mixed << 8 | u64::from(*byte)),
        };
        let mixed = mixed ^ (message.len() as u64) << 56 ^ (meaning as u64) << 40;
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as usize & self.known.len().wrapping_sub(1)
    }

    /// Appends the text of `shape`; returns the number of that text.
    #[inline]
    pub(super) fn shape(&mut self, shape: &'a [u8], style: Style) -> Read<u32> {
        let meaning = match style {
            Style::Full => Meaning::Shape,
            Style::Plain => Meaning::PlainShape,
        };
        self.again(shape, meaning, |out, shape| shape::write(out, shape, style, 0))
    }

    /// Appends a decimal number.
    #[inline]
    pub(super) fn integer(&mut self, value: i64) {
        if (0..10).contains(&value) {
            self.text.push(b'0' + value as u8);
            return;
        }
        if value < 0 {
            self.text.push(b'-');
        }
        self.unsigned(value.unsigned_abs());
    }

    /// Appends an unsigned decimal number.
    pub(super) fn unsigned(&mut self, value: u64) {
        const EIGHT_DIGITS: u64 = 100_000_000;
        let (high, mut low) = (value / EIGHT_DIGITS, value % EIGHT_DIGITS);
        if high > 0 {
            self.unsigned(high);
        }
        // The first digit is produced last and becomes the lowest byte, so a single write appends
        // all digits.
        let (mut digits, mut count) = (0u64, 0);
        while count == 0 || low > 0 || high > 0 && count < 8 {
            let digit = u64::from(b'0') + low % 10;
            digits = digits << 8 | digit;
            low /= 10;
            count += 1;
        }
        let length = self.text.len() + count;
        self.text.extend_from_slice(&digits.to_le_bytes());
        self.text.truncate(length);
    }

    /// Appends `{1,2}`.
    pub(super) fn integers(&mut self, values: &[i64]) {
        self.byte(b'{');
        self.plain_integers(values);
        self.byte(b'}');
    }

    /// Appends `1,2`.
    pub(super) fn plain_integers(&mut self, values: &[i64]) {
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                self.byte(b',');
            }
            self.integer(*value);
        }
    }

    /// Appends a quoted string, escaped as XLA does: C escapes, octal for unprintable bytes.
    pub(super) fn string(&mut self, bytes: &[u8]) {
        self.byte(b'"');
        self.escaped(bytes);
        self.byte(b'"');
    }

    /// Appends the escaped content of a string.
    pub(super) fn escaped(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        loop {
            let (head, tail) = rest.split_at(plain_length(rest));
            self.push(head);
            let Some((special, tail)) = tail.split_first() else { return };
            rest = tail;
            match special {
                b'\n' => self.push(b"\\n"),
                b'\r' => self.push(b"\\r"),
                b'\t' => self.push(b"\\t"),
                b'"' | b'\'' | b'\\' => {
                    self.byte(b'\\');
                    self.byte(*special);
                }
                byte => {
                    let digits = [b'0' + (byte >> 6), b'0' + (byte >> 3 & 7), b'0' + (byte & 7)];
                    self.byte(b'\\');
                    self.push(&digits);
                }
            }
        }
    }
}

/// The number of bytes at the start of `text` that need no escaping.
#[inline]
fn plain_length(text: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const TOPS: u64 = ONES << 7;
    // The top bit of each zero byte in `word`, and possibly of bytes above a zero byte.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & TOPS;
    let mut length = 0;
    for chunk in text.chunks_exact(16) {
        // Avoids a branch for each byte, so that all bytes are compared at once.
        let special = |byte: &u8| {
            u8::from(byte.wrapping_sub(0x20) >= 0x5f)
                | u8::from(*byte == b'"')
                | u8::from(*byte == b'\'')
                | u8::from(*byte == b'\\')
        };
        if chunk.iter().fold(0, |all, byte| all | special(byte)) != 0 {
            break;
        }
        length += 16;
    }
    for chunk in text[length..].chunks_exact(8) {
        let Some(chunk) = chunk.first_chunk() else { break };
        let word = u64::from_le_bytes(*chunk);
        let quotes = zeros(word ^ (ONES * b'"' as u64))
            | zeros(word ^ (ONES * b'\'' as u64))
            | zeros(word ^ (ONES * b'\\' as u64))
            | zeros(word ^ (ONES * 0x7f));
        let below_space = word.wrapping_sub(ONES * 0x20) & !word & TOPS;
        if quotes | below_space | word & TOPS != 0 {
            break;
        }
        length += 8;
    }
    length + text[length..].iter().take_while(|byte| is_plain(**byte)).count()
}

#[inline(always)]
fn is_plain(byte: u8) -> bool {
    (0x20..0x7f).contains(&byte) && !matches!(byte, b'"' | b'\'' | b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_at_every_place_is_escaped_as_one_by_one() {
        for place in 0..19 {
            for byte in 0..=255 {
                let mut text = *b"jit(f)/transpose/xy";
                text[place] = byte;
                let plain = text.iter().take_while(|byte| is_plain(**byte)).count();
                assert_eq!(plain_length(&text), plain, "{byte} at {place}");
            }
        }
    }

    #[test]
    fn strings_are_escaped_as_xla_does() {
        let mut out = Out::new(0);
        out.string(b"a\n\t\"\\\0\xc3\xa9'");
        assert_eq!(out.text, b"\"a\\n\\t\\\"\\\\\\000\\303\\251\\'\"");
    }

    #[test]
    fn numbers() {
        let powers = (0..19).map(|power| 10i64.pow(power));
        let beside = powers.flat_map(|power| [power - 1, power, -power, power + 1, 7 * power / 3]);
        for value in beside.chain([i64::MIN, i64::MAX]) {
            let mut out = Out::new(0);
            out.integer(value);
            assert_eq!(out.text, value.to_string().into_bytes());
        }
    }
}
