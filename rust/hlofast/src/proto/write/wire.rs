//! Writes messages: fields are added in any order and written in the order of their numbers.

/// A protobuf message. Numbers and strings equal to their default are omitted.
#[derive(Default)]
pub(super) struct Message {
    bytes: Vec<u8>,
    /// The number of each field, and its end in `bytes`.
    fields: Vec<(u32, usize)>,
}

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;
const FIXED32: u32 = 5;

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

impl Message {
    fn head(&mut self, number: u32, wire_type: u32) {
        varint(&mut self.bytes, u64::from(number << 3 | wire_type));
    }

    fn end(&mut self, number: u32) {
        self.fields.push((number, self.bytes.len()));
    }

    /// Writes a number even if it is 0, for fields whose absence has another meaning than 0.
    pub(super) fn present(&mut self, number: u32, value: i64) {
        self.head(number, VARINT);
        varint(&mut self.bytes, value as u64);
        self.end(number);
    }

    pub(super) fn integer(&mut self, number: u32, value: i64) {
        if value != 0 {
            self.present(number, value);
        }
    }

    pub(super) fn flag(&mut self, number: u32, value: bool) {
        self.integer(number, value.into());
    }

    pub(super) fn single(&mut self, number: u32, value: f32) {
        if value.to_bits() != 0 {
            self.head(number, FIXED32);
            self.bytes.extend_from_slice(&value.to_le_bytes());
            self.end(number);
        }
    }

    pub(super) fn double(&mut self, number: u32, value: f64) {
        if value.to_bits() != 0 {
            self.head(number, FIXED64);
            self.bytes.extend_from_slice(&value.to_le_bytes());
            self.end(number);
        }
    }

    /// Writes bytes even if they are empty: list elements, and messages whose presence matters.
    pub(super) fn element(&mut self, number: u32, value: &[u8]) {
        self.head(number, BYTES);
        varint(&mut self.bytes, value.len() as u64);
        self.bytes.extend_from_slice(value);
        self.end(number);
    }

    pub(super) fn text(&mut self, number: u32, value: &[u8]) {
        if !value.is_empty() {
            self.element(number, value);
        }
    }

    /// Writes a message even if it is empty.
    pub(super) fn message(&mut self, number: u32, message: Message) {
        self.element(number, &message.finish());
    }

    /// Writes packed numbers.
    pub(super) fn integers(&mut self, number: u32, values: impl IntoIterator<Item = i64>) {
        let mut packed = Vec::new();
        values.into_iter().for_each(|value| varint(&mut packed, value as u64));
        self.text(number, &packed);
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of the message: fields ordered by number, equal numbers in the order they were
    /// added.
    pub(super) fn finish(self) -> Vec<u8> {
        if self.fields.is_sorted_by_key(|(number, _)| *number) {
            return self.bytes;
        }
        let mut start = 0;
        let mut parts: Vec<(u32, std::ops::Range<usize>)> = Vec::with_capacity(self.fields.len());
        for (number, end) in self.fields {
            parts.push((number, start..end));
            start = end;
        }
        parts.sort_by_key(|(number, _)| *number);
        let mut sorted = Vec::with_capacity(self.bytes.len());
        for (_, range) in parts {
            sorted.extend_from_slice(self.bytes.get(range).unwrap_or_default());
        }
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_in_the_order_of_their_numbers() {
        let mut message = Message::default();
        message.integers(14, [0, 300]);
        message.text(2, b"ab");
        message.integer(3, 0);
        message.flag(1, true);
        message.integer(14, -1);
        message.single(24, -0.0);
        message.message(7, Message::default());
        let minus_one = [0x70, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        let expected = [
            &[8, 1, 0x12, 2, b'a', b'b', 0x3a, 0, 0x72, 3, 0, 0xac, 2][..],
            &minus_one,
            &[0xc5, 1, 0, 0, 0, 0x80],
        ];
        assert_eq!(message.finish(), expected.concat());
    }
}
