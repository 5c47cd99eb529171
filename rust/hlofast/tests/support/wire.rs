//! Protobufs written by hand, for tests.

/// A message under way.
#[derive(Clone, Debug, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    pub fn new() -> Message {
        Message::default()
    }

    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// A number.
    pub fn number(mut self, field: u32, value: i64) -> Message {
        self.varint(u64::from(field) << 3);
        self.varint(value as u64);
        self
    }

    /// Bytes, a string or a message.
    pub fn bytes(mut self, field: u32, value: impl AsRef<[u8]>) -> Message {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(value.as_ref().len() as u64);
        self.0.extend_from_slice(value.as_ref());
        self
    }

    /// Packed numbers.
    pub fn packed(self, field: u32, values: &[i64]) -> Message {
        let mut inside = Message::new();
        values.iter().for_each(|value| inside.varint(*value as u64));
        self.bytes(field, inside)
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// `f32[2]`.
pub fn shape() -> Message {
    Message::new().number(2, 11).packed(3, &[2]).bytes(5, Message::new().packed(1, &[0]))
}

/// An instruction of shape `f32[2]`.
pub fn instruction(id: i64, name: &str, opcode: &str) -> Message {
    Message::new().bytes(1, name).bytes(2, opcode).bytes(3, shape()).number(35, id)
}

/// A computation; ids of instructions as they stand.
pub fn computation(id: i64, name: &str, root: i64, instructions: &[Message]) -> Message {
    let start = Message::new().bytes(1, name);
    let all = instructions.iter().fold(start, |message, instruction| message.bytes(2, instruction));
    all.number(5, id).number(6, root)
}

/// A module whose entry is the computation with id `entry`.
pub fn module(entry: i64, computations: &[Message]) -> Message {
    let start = Message::new().bytes(1, "m");
    let all = computations.iter().fold(start, |message, computation| message.bytes(3, computation));
    all.bytes(4, Message::new()).number(6, entry)
}

/// A module of two instructions.
pub fn negation() -> Message {
    let parameter = instruction(0, "p", "parameter");
    let root = instruction(1, "r", "negate").packed(36, &[0]);
    module(0, &[computation(0, "e", 1, &[parameter, root])])
}
