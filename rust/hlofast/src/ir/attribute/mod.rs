//! Attributes: how values are written, which opcodes take them, and which protobuf field holds
//! them. `table.rs` states all of these facts; decoding, strict checks, and reading and writing
//! protobufs derive from that table.

mod table;
mod words;

use super::opcode::{Opcode, load, slot_of, tail_of};
pub(crate) use table::HEADER;
use table::LINES;
pub(crate) use words::{PRECISIONS, Words};

/// The grammar of an attribute's value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grammar {
    Boolean,
    Booleans,
    Integer,
    Int32,
    Float,
    Text,
    Integers,
    IntegerLists,
    Pairs,
    Computation,
    Computations,
    Names,
    Sharding,
    Frontend,
    Statistics,
    Origin,
    Metadata,
    BackendConfig,
    Accuracy,
    Groups,
    Window,
    DimLabels,
    Padding,
    Slice,
    Aliasing,
    Shapes,
    Shape,
    Literal,
    Domain,
    Sparsity,
    Precision,
    Word(&'static Words),
}

/// The grammar of a header attribute's value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HeaderGrammar {
    Boolean,
    Integer,
    /// A boolean, or a list of booleans.
    Propagation,
    Frontend,
    Aliases,
    Donors,
    EntryLayout,
    Recovery,
    Debug,
}

/// One attribute, for a set of opcodes.
#[derive(Clone, Copy)]
pub(crate) struct Use {
    pub(crate) id: Key,
    pub(crate) key: &'static str,
    pub(crate) grammar: Grammar,
    /// Opcodes for which XLA's parser requires the attribute.
    needed: &'static [Opcode],
    /// Opcodes for which XLA's parser accepts the attribute; every opcode for common attributes.
    taken: &'static [Opcode],
    /// Opcodes for which only XLA newer than jaxlib 0.10.2 accepts the attribute.
    newer: &'static [Opcode],
    /// Opcodes that have the attribute only in protobufs and older texts.
    also: &'static [Opcode],
    pub(crate) field: Field,
}

/// The field of `HloInstructionProto` that holds an attribute.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    /// The enclosing messages, 0 for none: `[90, 1]` for a field of the message in field 1 of the
    /// message in field 90.
    pub(crate) path: [u8; 2],
    /// The field's number, 0 for no field.
    pub(crate) number: u8,
    /// A second field of the same attribute, or 0.
    pub(crate) with: u8,
    pub(crate) form: Form,
    /// Whether text has the attribute even if the field is absent.
    pub(crate) is_always_printed: bool,
    /// The value that text without the attribute implies.
    pub(crate) absent: i64,
    /// Whether the field is only written: when reading protobufs, another attribute covers the
    /// field.
    pub(crate) is_only_written: bool,
    /// The information that a conversion to a protobuf loses, if any.
    pub(crate) loses: Option<&'static str>,
}

/// The form of a field where the grammar does not determine it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Integers and flags as varints, lists packed, words by their numbers, strings as bytes.
    Plain,
    /// An integer as the only element of a list.
    OneOfList,
    /// An integer of 32 bits.
    Small,
    /// An integer for which 0 differs from absent.
    Presence,
    /// A flag: 0 if unknown, 1 if true, 2 if false.
    ThreeValued,
    /// A word as a string.
    Spelled,
    /// The name of a thread, which text omits if it is `main`.
    Thread,
}

const NO_FIELD: Field = Field {
    path: [0, 0],
    number: 0,
    with: 0,
    form: Form::Plain,
    is_always_printed: false,
    absent: 0,
    is_only_written: false,
    loses: None,
};

const fn at(number: u8) -> Field {
    Field { number, ..NO_FIELD }
}

/// No field holds the value and nothing implies it: a conversion to a protobuf loses `what`.
const fn lost(what: &'static str) -> Field {
    NO_FIELD.losing(what)
}

impl Field {
    /// The field with number `number` inside the message in this field.
    const fn part(self, number: u8) -> Field {
        let path = if self.path[0] == 0 { [self.number, 0] } else { [self.path[0], self.number] };
        Field { path, number, ..self }
    }

    const fn with(self, with: u8) -> Field {
        Field { with, ..self }
    }

    const fn always(self) -> Field {
        Field { is_always_printed: true, ..self }
    }

    const fn absent(self, absent: i64) -> Field {
        Field { absent, ..self }
    }

    const fn only_written(self) -> Field {
        Field { is_only_written: true, ..self }
    }

    const fn losing(self, what: &'static str) -> Field {
        Field { loses: Some(what), ..self }
    }

    const fn form(self, form: Form) -> Field {
        Field { form, ..self }
    }

    const fn one_of_list(self) -> Field {
        self.form(Form::OneOfList)
    }

    const fn small(self) -> Field {
        self.form(Form::Small)
    }

    const fn presence(self) -> Field {
        self.form(Form::Presence)
    }

    const fn three_valued(self) -> Field {
        self.form(Form::ThreeValued)
    }

    const fn spelled(self) -> Field {
        self.form(Form::Spelled)
    }

    const fn thread(self) -> Field {
        self.form(Form::Thread)
    }

    /// The outermost fields of `HloInstructionProto` that the attribute uses, as bits.
    const fn outer(self) -> u128 {
        let first = if self.path[0] == 0 { self.number } else { self.path[0] };
        (1 << first | 1 << self.with) & !1
    }
}

impl Use {
    /// Whether its field is a list.
    pub(crate) const fn is_repeated(&self) -> bool {
        use Grammar::*;
        matches!(self.field.form, Form::OneOfList)
            || matches!(
                self.grammar,
                Integers
                    | IntegerLists
                    | Pairs
                    | Computation
                    | Computations
                    | Names
                    | Aliasing
                    | Slice
                    | Precision
            )
    }
}

/// The number of an attribute's key, the same for every opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u8);

/// A set of attributes, one bit per key.
pub(crate) type Set = u128;

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// The table with each key numbered, the first line of each key, and how many keys there are.
const NUMBERED: ([Use; LINES.len()], [u8; LINES.len()], usize) = {
    let (mut table, mut first, mut count) = (LINES, [0; LINES.len()], 0);
    let mut line = 0;
    while line < table.len() {
        let mut key = 0;
        while key < count
            && !is_same(table[first[key] as usize].key.as_bytes(), table[line].key.as_bytes())
        {
            key += 1;
        }
        table[line].id = Key(key as u8);
        if key == count {
            first[key] = line as u8;
            count += 1;
        }
        line += 1;
    }
    (table, first, count)
};

static TABLE: [Use; LINES.len()] = NUMBERED.0;

/// The number of attributes; a set has a bit for each.
const COUNT: usize = NUMBERED.2;
const _: () = assert!(COUNT <= 128 && LINES.len() < NONE as usize);

const NONE: u8 = 255;

/// Frequently used facts about an attribute.
struct Facts {
    key: &'static str,
    /// First and last eight bytes and length of the key.
    word: (u64, u64, usize),
    grammar: Grammar,
    /// Whether the grammar is the same for every opcode.
    is_uniform: bool,
}

static FACTS: [Facts; COUNT] = {
    const EMPTY: Facts =
        Facts { key: "", word: (0, 0, 0), grammar: Grammar::Boolean, is_uniform: true };
    let mut facts = [EMPTY; COUNT];
    let mut line = 0;
    while line < TABLE.len() {
        let key = TABLE[line].id.0 as usize;
        let bytes = TABLE[line].key.as_bytes();
        let is_first = NUMBERED.1[key] as usize == line;
        let word = (load(bytes, 0), tail_of(bytes), bytes.len());
        if is_first {
            facts[key] = Facts {
                key: TABLE[line].key,
                word,
                grammar: TABLE[line].grammar,
                is_uniform: true,
            };
        } else if !is_alike(facts[key].grammar, TABLE[line].grammar) {
            facts[key].is_uniform = false;
        }
        line += 1;
    }
    facts
};

/// Whether two grammars are known to be equal; false for equal grammars that are not listed here.
const fn is_alike(a: Grammar, b: Grammar) -> bool {
    use Grammar::*;
    matches!(
        (a, b),
        (Boolean, Boolean)
            | (Integer, Integer)
            | (Integers, Integers)
            | (Text, Text)
            | (Computation, Computation)
    )
}

const SLOTS: usize = 1024;

/// Open-addressed table from the hash of a word to the number of its key.
static SLOT_KEYS: [u8; SLOTS] = {
    let mut table = [NONE; SLOTS];
    let mut key = 0;
    while key < COUNT {
        let (head, tail, length) = FACTS[key].word;
        let mut slot = slot_of(head, tail, length);
        while table[slot] != NONE {
            slot = (slot + 1) % SLOTS;
        }
        table[slot] = key as u8;
        key += 1;
    }
    table
};

/// The attributes of one opcode, except attributes common to all opcodes.
#[derive(Clone, Copy)]
struct OfOpcode {
    lines: [u8; MOST],
    count: u8,
    fields: u128,
    is_always_printed: bool,
    needed: Set,
    taken: Set,
    newer: Set,
}

/// The most attributes that one opcode has.
const MOST: usize = 20;

static OPCODES: [OfOpcode; Opcode::ALL.len()] = {
    const EMPTY: OfOpcode = OfOpcode {
        lines: [NONE; MOST],
        count: 0,
        fields: 0,
        is_always_printed: false,
        needed: 0,
        taken: 0,
        newer: 0,
    };
    let mut table = [EMPTY; Opcode::ALL.len()];
    let mut line = 0;
    while line < TABLE.len() {
        let attribute = &TABLE[line];
        let only = attribute.id.only();
        let mut list = 0;
        while list < 4 {
            let opcodes =
                [attribute.needed, attribute.taken, attribute.newer, attribute.also][list];
            let mut i = 0;
            while i < opcodes.len() && !is_every(opcodes) {
                let entry = &mut table[opcodes[i] as usize];
                entry.lines[entry.count as usize] = line as u8;
                entry.count += 1;
                entry.fields |= attribute.field.outer();
                entry.is_always_printed |= attribute.field.is_always_printed;
                match list {
                    0 => entry.needed |= only,
                    1 => entry.taken |= only,
                    2 => entry.newer |= only,
                    _ => {}
                }
                i += 1;
            }
            list += 1;
        }
        line += 1;
    }
    table
};

const fn is_every(opcodes: &[Opcode]) -> bool {
    opcodes.len() == Opcode::ALL.len()
}

/// The attributes that every opcode takes.
pub(crate) const COMMON: Set = {
    let (mut set, mut line) = (0, 0);
    while line < TABLE.len() {
        if is_every(TABLE[line].taken) {
            set |= TABLE[line].id.only();
        }
        line += 1;
    }
    set
};

/// The fields of `HloInstructionProto` that are lists.
pub(crate) const REPEATED: u128 = {
    let (mut set, mut line) = (0, 0);
    while line < TABLE.len() {
        if TABLE[line].is_repeated() && TABLE[line].field.path[0] == 0 {
            set |= (1 << TABLE[line].field.number) & !1;
        }
        line += 1;
    }
    set
};

/// The first line of the table with `key`; an unknown key does not compile.
const fn first_line(key: &str) -> &'static Use {
    let mut line = 0;
    while !is_same(TABLE[line].key.as_bytes(), key.as_bytes()) {
        line += 1;
    }
    &TABLE[line]
}

/// The field of an attribute that every opcode takes.
pub(crate) const fn field_of(key: &str) -> u32 {
    first_line(key).field.number as u32
}

/// The second field of an attribute that every opcode takes.
pub(crate) const fn second_field_of(key: &str) -> u32 {
    first_line(key).field.with as u32
}

/// The attributes that protobufs have for every opcode.
pub(crate) fn common() -> impl Iterator<Item = &'static Use> {
    /// The lines of these attributes, and their number.
    static LINES: ([u8; MOST], usize) = {
        let (mut lines, mut count, mut line) = ([NONE; MOST], 0, 0);
        while line < TABLE.len() {
            if is_every(TABLE[line].taken) && TABLE[line].also.is_empty() {
                lines[count] = line as u8;
                count += 1;
            }
            line += 1;
        }
        (lines, count)
    };
    LINES.0[..LINES.1].iter().map(|line| &TABLE[*line as usize])
}

/// The attributes of `opcode` in the order in which XLA prints them, except attributes that every
/// opcode takes.
#[inline]
pub(crate) fn uses(opcode: Opcode) -> impl ExactSizeIterator<Item = &'static Use> + Clone {
    let entry = &OPCODES[opcode as usize];
    entry.lines[..entry.count as usize].iter().map(|line| &TABLE[*line as usize])
}

/// The fields of `HloInstructionProto` that hold attributes of `opcode`.
#[inline]
pub(crate) fn fields(opcode: Opcode) -> u128 {
    OPCODES[opcode as usize].fields
}

/// Whether text has attributes of `opcode` that a protobuf leaves out if they are 0 or empty.
#[inline]
pub(crate) fn is_always_printed(opcode: Opcode) -> bool {
    OPCODES[opcode as usize].is_always_printed
}

/// The attributes that XLA's parser accepts for `opcode`.
#[inline]
pub(crate) fn taken(opcode: Opcode, newest: bool) -> Set {
    let entry = &OPCODES[opcode as usize];
    let all = entry.needed | entry.taken | COMMON;
    if newest { all | entry.newer } else { all }
}

/// The attributes that only XLA newer than jaxlib 0.10.2 accepts for `opcode`.
pub(crate) fn newer(opcode: Opcode) -> Set {
    OPCODES[opcode as usize].newer
}

/// The attributes that XLA's parser requires for `opcode`.
#[inline]
pub(crate) fn needed(opcode: Opcode) -> Set {
    OPCODES[opcode as usize].needed
}

/// The attributes of asynchronous starts themselves, not of the instructions they wrap.
pub(crate) const ASYNCHRONOUS: Set = OPCODES[Opcode::AsyncStart as usize].taken;

impl Key {
    /// The attribute called `key`; an unknown key does not compile.
    pub(crate) const fn of(key: &str) -> Key {
        first_line(key).id
    }

    /// The attribute that HLO text calls `word`.
    #[inline]
    pub(crate) fn from_bytes(word: &[u8]) -> Option<Key> {
        // The most common key.
        if word == b"metadata" {
            return Some(const { Key::of("metadata") });
        }
        let (head, tail) = match (word.first_chunk::<8>(), word.last_chunk::<8>()) {
            (Some(head), Some(tail)) => (u64::from_le_bytes(*head), u64::from_le_bytes(*tail)),
            _ => (load(word, 0), tail_of(word)),
        };
        let mut slot = slot_of(head, tail, word.len());
        loop {
            let facts = FACTS.get(SLOT_KEYS[slot] as usize)?;
            // For words of up to 16 bytes, the first and last eight bytes and the length determine
            // the word.
            if facts.word == (head, tail, word.len())
                && (word.len() <= 16 || facts.key.as_bytes() == word)
            {
                return Some(Key(SLOT_KEYS[slot]));
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    /// The first attribute of a set.
    pub(crate) fn first(set: Set) -> Option<Key> {
        (set != 0).then(|| Key(set.trailing_zeros() as u8))
    }

    /// The attribute's name in HLO text.
    pub(crate) fn as_str(self) -> &'static str {
        FACTS.get(self.0 as usize).map_or("", |facts| facts.key)
    }

    /// The set of only this attribute.
    #[inline]
    pub(crate) const fn only(self) -> Set {
        1 << self.0
    }

    /// The grammar of the attribute's value for `opcode`.
    #[inline]
    pub(crate) fn grammar(self, opcode: Opcode) -> Grammar {
        let facts = &FACTS[self.0 as usize];
        if facts.is_uniform {
            return facts.grammar;
        }
        let mut own = uses(opcode);
        own.find(|attribute| attribute.id == self)
            .map_or(facts.grammar, |attribute| attribute.grammar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_and_nothing_else() {
        for attribute in &TABLE {
            assert_eq!(
                Key::from_bytes(attribute.key.as_bytes()),
                Some(attribute.id),
                "{}",
                attribute.key
            );
            assert_eq!(attribute.id.as_str(), attribute.key);
        }
        for word in ["", "dim", "dimension", "dimensionss", "output_to_operand_aliasinG"] {
            assert_eq!(Key::from_bytes(word.as_bytes()), None, "{word}");
        }
    }

    /// Protobuf readers and writers handle the attributes of one message together, and each key
    /// once.
    #[test]
    fn lines_of_an_opcode_go_together() {
        for opcode in Opcode::ALL {
            let paths: Vec<[u8; 2]> = uses(*opcode).map(|attribute| attribute.field.path).collect();
            let mut runs = paths.clone();
            runs.dedup();
            runs.retain(|path| *path != [0, 0]);
            let count = runs.len();
            runs.sort_unstable();
            runs.dedup();
            assert_eq!(runs.len(), count, "{opcode:?}");
            let mut keys: Vec<&str> = uses(*opcode).map(|attribute| attribute.key).collect();
            keys.sort_unstable();
            let all = keys.len();
            keys.dedup();
            assert_eq!(keys.len(), all, "{opcode:?}");
        }
    }
}
