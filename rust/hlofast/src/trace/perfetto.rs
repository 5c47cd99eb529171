//! Traces as Perfetto's protobuf: packets of one sequence with interned texts.
//!
//! Field numbers are taken from `perfetto_trace.proto`.

use super::arguments::{Described, Value};
use super::events::{Event, events};
use super::wire::Message;
use super::{Sample, Slice};
use crate::ir::intern::hash_bytes;
use hashbrown::HashTable;
use std::io::{Result, Write};

/// `Trace.packet`.
const PACKET: u32 = 1;
/// `TracePacket`: timestamp, trusted_packet_sequence_id, track_event, interned_data,
/// sequence_flags, track_descriptor.
mod packet {
    pub const TIMESTAMP: u32 = 8;
    pub const SEQUENCE: u32 = 10;
    pub const TRACK_EVENT: u32 = 11;
    pub const INTERNED_DATA: u32 = 12;
    pub const SEQUENCE_FLAGS: u32 = 13;
    pub const TRACK_DESCRIPTOR: u32 = 60;
}
/// `SEQ_INCREMENTAL_STATE_CLEARED` and `SEQ_NEEDS_INCREMENTAL_STATE`.
const CLEARED: u64 = 1;
const NEEDED: u64 = 2;
/// `TrackEvent`.
mod event {
    pub const CATEGORY: u32 = 3;
    pub const ANNOTATION: u32 = 4;
    pub const TYPE: u32 = 9;
    pub const NAME: u32 = 10;
    pub const TRACK: u32 = 11;
    pub const COUNTER: u32 = 30;
}
/// `TrackEvent.Type`.
const BEGIN: u64 = 1;
const END: u64 = 2;
const COUNTER: u64 = 4;
/// `DebugAnnotation`.
mod annotation {
    pub const NAME: u32 = 1;
    pub const INTEGER: u32 = 4;
    pub const REAL: u32 = 5;
    pub const TEXT: u32 = 17;
}
/// `TrackDescriptor`, `ProcessDescriptor` and `CounterDescriptor`.
mod track {
    pub const UUID: u32 = 1;
    pub const NAME: u32 = 2;
    pub const PROCESS: u32 = 3;
    pub const PARENT: u32 = 5;
    pub const COUNTER: u32 = 8;
    pub const CHILD_ORDERING: u32 = 11;
    pub const RANK: u32 = 12;
    /// `ChildTracksOrdering.EXPLICIT`.
    pub const EXPLICIT: u64 = 3;
    pub const PROCESS_ID: u32 = 1;
    pub const PROCESS_NAME: u32 = 6;
    pub const COUNTER_UNIT: u32 = 3;
    /// `CounterDescriptor.UNIT_SIZE_BYTES`.
    pub const BYTES: u64 = 3;
}

/// Interned texts of one kind, in a field of `InternedData`.
struct Texts {
    field: u32,
    numbers: HashTable<(Box<[u8]>, u64)>,
}

impl Texts {
    fn new(field: u32) -> Self {
        Self { field, numbers: HashTable::new() }
    }

    /// The id of `text`; a new text is also added to `fresh`.
    fn number(&mut self, text: &[u8], fresh: &mut Message) -> u64 {
        let hash = hash_bytes(text);
        if let Some((_, number)) = self.numbers.find(hash, |known| *known.0 == *text) {
            return *number;
        }
        let number = self.numbers.len() as u64 + 1;
        self.numbers.insert_unique(hash, (text.into(), number), |known| hash_bytes(&known.0));
        let mut entry = Message::default();
        // Fields 1 and 2 hold the id and the text for every kind of text. Strings are UTF-8.
        entry.unsigned(1, number).bytes(2, String::from_utf8_lossy(text).as_bytes());
        fresh.message(self.field, &entry);
        number
    }
}

/// UUIDs of the process track, of the live-bytes track, and of the first other track.
const PROCESS: u64 = 1;
const ALIVE: u64 = 2;
const FIRST: u64 = 3;

struct Writer<'a, 'b> {
    described: &'a Described<'b>,
    categories: Texts,
    names: Texts,
    argument_names: Texts,
    texts: Texts,
}

/// Writes `described` as one `Trace` message.
pub fn write_perfetto(described: &Described<'_>, out: &mut dyn Write) -> Result<()> {
    let trace = described.trace;
    let mut head = Message::default();
    for packet in descriptors(described) {
        put(&packet, &mut head, out)?;
    }
    let mut writer = Writer {
        described,
        categories: Texts::new(1),
        names: Texts::new(2),
        argument_names: Texts::new(3),
        texts: Texts::new(29),
    };
    let mut packet = Message::default();
    for (at, event) in events(trace) {
        packet.0.clear();
        packet.unsigned(packet::TIMESTAMP, at).unsigned(packet::SEQUENCE, 1);
        packet.unsigned(packet::SEQUENCE_FLAGS, NEEDED);
        match event {
            Event::Begin(number) => match trace.slices.get(number as usize) {
                Some(slice) => writer.begin(slice, &mut packet),
                None => continue,
            },
            Event::End(number) => match trace.slices.get(number as usize) {
                Some(slice) => end(slice, &mut packet),
                None => continue,
            },
            Event::Sample(number) => match trace.samples.get(number as usize) {
                Some(sample) => counter(sample, &mut packet),
                None => continue,
            },
        }
        put(&packet, &mut head, out)?;
    }
    Ok(())
}

/// Writes a packet; `head` is a scratch buffer for its tag and length.
fn put(packet: &Message, head: &mut Message, out: &mut dyn Write) -> Result<()> {
    head.0.clear();
    head.open(PACKET, packet.0.len());
    out.write_all(&head.0)?;
    out.write_all(&packet.0)
}

/// The packets that name the tracks.
fn descriptors(described: &Described<'_>) -> Vec<Message> {
    let name = String::from_utf8_lossy(described.module.name());
    let mut process = Message::default();
    process.signed(track::PROCESS_ID, 1).bytes(track::PROCESS_NAME, name.as_bytes());
    let mut first = Message::default();
    first.unsigned(track::UUID, PROCESS).message(track::PROCESS, &process);
    first.unsigned(track::CHILD_ORDERING, track::EXPLICIT);
    let mut messages = vec![first];
    let tracks = &described.trace.tracks;
    for (number, track) in (0u64..).zip(tracks) {
        messages.push(child(FIRST + number, &track.name, number));
    }
    if !described.trace.samples.is_empty() {
        let mut counter = Message::default();
        counter.unsigned(track::COUNTER_UNIT, track::BYTES);
        let mut alive = child(ALIVE, "live bytes", tracks.len() as u64);
        alive.message(track::COUNTER, &counter);
        messages.push(alive);
    }
    let in_packet = |(number, descriptor): (usize, &Message)| {
        let mut packet = Message::default();
        let flags = if number == 0 { CLEARED } else { NEEDED };
        packet.unsigned(packet::SEQUENCE, 1).unsigned(packet::SEQUENCE_FLAGS, flags);
        packet.message(packet::TRACK_DESCRIPTOR, descriptor);
        packet
    };
    messages.iter().enumerate().map(in_packet).collect()
}

fn child(uuid: u64, name: &str, rank: u64) -> Message {
    let mut message = Message::default();
    message.unsigned(track::UUID, uuid).unsigned(track::PARENT, PROCESS);
    message.bytes(track::NAME, name.as_bytes()).unsigned(track::RANK, rank);
    message
}

impl Writer<'_, '_> {
    fn begin(&mut self, slice: &Slice, packet: &mut Message) {
        let (mut fresh, mut event) = (Message::default(), Message::default());
        event.unsigned(event::TYPE, BEGIN).unsigned(event::TRACK, FIRST + u64::from(slice.track));
        let name = self.described.name(slice);
        event.unsigned(event::NAME, self.names.number(name.as_bytes(), &mut fresh));
        let category = self.described.category(slice);
        event.unsigned(event::CATEGORY, self.categories.number(category.as_bytes(), &mut fresh));
        let mut argument = Message::default();
        for (name, value) in self.described.arguments(slice) {
            argument.0.clear();
            let name = self.argument_names.number(name.as_bytes(), &mut fresh);
            argument.unsigned(annotation::NAME, name);
            match value {
                Value::Text(text) => {
                    argument.unsigned(annotation::TEXT, self.texts.number(&text, &mut fresh))
                }
                Value::Integer(value) => argument.signed(annotation::INTEGER, value),
                Value::Real(value) => argument.double(annotation::REAL, value),
            };
            event.message(event::ANNOTATION, &argument);
        }
        if !fresh.0.is_empty() {
            packet.message(packet::INTERNED_DATA, &fresh);
        }
        packet.message(packet::TRACK_EVENT, &event);
    }
}

fn end(slice: &Slice, packet: &mut Message) {
    let mut event = Message::default();
    event.unsigned(event::TYPE, END).unsigned(event::TRACK, FIRST + u64::from(slice.track));
    packet.message(packet::TRACK_EVENT, &event);
}

fn counter(sample: &Sample, packet: &mut Message) {
    let mut event = Message::default();
    event.unsigned(event::TYPE, COUNTER).unsigned(event::TRACK, ALIVE);
    event.signed(event::COUNTER, sample.bytes);
    packet.message(packet::TRACK_EVENT, &event);
}
