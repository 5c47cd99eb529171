//! Writes protobuf messages: fields one after the other.

/// A message under construction.
#[derive(Clone, Debug, Default)]
pub struct Message(pub Vec<u8>);

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, field: u32, kind: u32) {
        self.varint(u64::from(field << 3 | kind));
    }

    /// A field of type uint32, uint64, bool or an enumeration.
    pub fn unsigned(&mut self, field: u32, value: u64) -> &mut Self {
        self.tag(field, VARINT);
        self.varint(value);
        self
    }

    /// A field of type int32 or int64.
    pub fn signed(&mut self, field: u32, value: i64) -> &mut Self {
        self.unsigned(field, value as u64)
    }

    /// A field of type double.
    pub fn double(&mut self, field: u32, value: f64) -> &mut Self {
        self.tag(field, FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Writes the tag and length of a field of `length` bytes.
    pub fn open(&mut self, field: u32, length: usize) {
        self.tag(field, LENGTH);
        self.varint(length as u64);
    }

    /// A field of type string or bytes.
    pub fn bytes(&mut self, field: u32, value: &[u8]) -> &mut Self {
        self.open(field, value.len());
        self.0.extend_from_slice(value);
        self
    }

    /// A field that is a message.
    pub fn message(&mut self, field: u32, value: &Message) -> &mut Self {
        self.bytes(field, &value.0)
    }
}
