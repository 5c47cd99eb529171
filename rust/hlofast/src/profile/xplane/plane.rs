//! Planes, their lines and events, and the metadata that events and stats refer to.

use super::stat::{Stats, beyond, check as check_stat, inside};
use super::{Place, not_a};
use crate::proto::wire::{Fields, Read, Value, field, varint};
use hashbrown::HashMap;

type Map<V> = HashMap<i64, V, crate::ir::intern::BuildMix>;

/// A source of timelines: a device, the threads of a host, or metadata.
#[derive(Debug, Default)]
pub struct Plane {
    /// Its number.
    pub id: i64,
    name: Place,
    lines: Vec<Line>,
    events: Table<EventMetadata>,
    stats: Table<StatMetadata>,
    /// Where the plane is; its own stats are read from there.
    whole: Place,
}

/// One timeline: a stream, a thread, the modules of a core.
#[derive(Debug, Default)]
pub struct Line {
    /// Its number; lines of one number continue each other.
    pub id: i64,
    /// The number by which viewers group lines.
    pub display_id: i64,
    /// Its beginning in nanoseconds, to which events are relative.
    pub timestamp_ns: i64,
    /// Its length in picoseconds; 0 if the profiler does not say.
    pub duration_ps: i64,
    name: Place,
    display_name: Place,
    /// Where the length of each event is; with [`MIXED`].
    events: Vec<u32>,
}

/// The bit of an event whose fields do not end with its stats, as no profiler writes it but for
/// aggregated events.
const MIXED: u32 = 1 << 31;

/// What events of one kind have in common.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventMetadata {
    /// The number that events refer to.
    pub id: i64,
    name: Place,
    display_name: Place,
    whole: Place,
}

/// The name of a stat.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatMetadata {
    /// The number that stats refer to.
    pub id: i64,
    name: Place,
    description: Place,
}

/// One event of a line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Event<'a> {
    /// The number of its metadata.
    pub metadata_id: i64,
    /// Begin in picoseconds from the line's timestamp; 0 for an aggregated event.
    pub offset_ps: i64,
    /// Length in picoseconds.
    pub duration_ps: i64,
    /// How often it occurred, for an aggregated event.
    pub occurrences: Option<i64>,
    whole: &'a [u8],
    /// Where its fields from the first stat on begin and end.
    stats: (usize, usize),
}

/// Entries of a map in the order of the file, found by their numbers.
#[derive(Debug)]
struct Table<T> {
    list: Vec<T>,
    places: Map<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { list: Vec::new(), places: Map::default() }
    }
}

impl<T> Table<T> {
    /// The last entry of a number counts, as in a protobuf map.
    fn push(&mut self, id: i64, entry: T) {
        match self.places.get(&id) {
            Some(at) => self.list[*at as usize] = entry,
            None => {
                self.places.insert(id, self.list.len() as u32);
                self.list.push(entry);
            }
        }
    }

    fn index(&self, id: i64) -> Option<usize> {
        self.places.get(&id).map(|at| *at as usize)
    }
}

/// Wire types 0 and 2 of fields, as the tags end.
const NUMBER: u32 = 0;
const BYTES: u32 = 2;

/// Passes number, and number or bytes, of each field of `message` that has wire type 0 or 2.
#[inline(always)]
fn each<'a>(
    message: &'a [u8],
    mut take: impl FnMut(u32, u32, i64, &'a [u8]) -> Read<()>,
) -> Read<()> {
    let mut at = 0;
    while at < message.len() {
        let (tag, value, next) = field(message, at)?;
        match tag & 7 {
            NUMBER => take(tag >> 3, NUMBER, value as i64, &[])?,
            BYTES => {
                let (start, length) = ((value >> 32) as usize, value as u32 as usize);
                let inside = message.get(start..).and_then(|rest| rest.get(..length));
                take(tag >> 3, BYTES, 0, inside.unwrap_or_default())?;
            }
            _ => {}
        }
        at = next;
    }
    Ok(())
}

impl Plane {
    pub(super) fn read(whole: &[u8], message: &[u8]) -> Read<Plane> {
        let mut plane = Plane { whole: Place::of(whole, message), ..Plane::default() };
        each(message, |number, wire, value, inside| {
            match (number, wire) {
                (1, NUMBER) => plane.id = value,
                (2, BYTES) => plane.name = Place::of(whole, inside),
                (3, BYTES) => plane.lines.push(Line::read(whole, inside)?),
                (4, BYTES) => {
                    let (key, value) = entry(inside)?;
                    let metadata = EventMetadata::read(whole, value, key)?;
                    plane.events.push(key, metadata);
                }
                (5, BYTES) => {
                    let (key, value) = entry(inside)?;
                    plane.stats.push(key, StatMetadata::read(whole, value, key)?);
                }
                (6, BYTES) => check_stat(inside, 0..inside.len())?,
                (1..=6, _) => return Err(not_a("a plane", message)),
                _ => {}
            }
            Ok(())
        })?;
        plane.lines.shrink_to_fit();
        Ok(plane)
    }

    /// The name, such as `/device:TPU:0`.
    pub fn name<'a>(&self, whole: &'a [u8]) -> &'a [u8] {
        self.name.get(whole)
    }

    /// The lines, in the order of the file.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The stats of the plane itself, such as capabilities of a device.
    pub fn own_stats<'a>(&self, whole: &'a [u8]) -> Stats<'a> {
        Stats::of(whole, self.whole.range(), 6)
    }

    /// What events refer to.
    pub fn event_metadata(&self) -> &[EventMetadata] {
        &self.events.list
    }

    /// What stats refer to.
    pub fn stat_metadata(&self) -> &[StatMetadata] {
        &self.stats.list
    }

    /// The position of the event metadata of number `id`.
    pub fn metadata_of(&self, id: i64) -> Option<usize> {
        self.events.index(id)
    }

    /// The position of the stat metadata of number `id`.
    pub fn stat_of(&self, id: i64) -> Option<usize> {
        self.stats.index(id)
    }

    /// The name of the stat of number `id`; empty if the plane does not define it.
    pub fn stat_name<'a>(&self, whole: &'a [u8], id: i64) -> &'a [u8] {
        self.stat_of(id).map_or(b"", |at| self.stats.list[at].name.get(whole))
    }
}

/// Key and value of a map's entry.
fn entry(message: &[u8]) -> Read<(i64, &[u8])> {
    let mut found: (i64, &[u8]) = (0, &[]);
    each(message, |number, wire, value, inside| {
        match (number, wire) {
            (1, NUMBER) => found.0 = value,
            (2, BYTES) => found.1 = inside,
            (1 | 2, _) => return Err(not_a("a map", message)),
            _ => {}
        }
        Ok(())
    })?;
    Ok(found)
}

impl Line {
    fn read(whole: &[u8], message: &[u8]) -> Read<Line> {
        let mut line = Line::default();
        let base = Place::of(whole, message).at;
        let mut at = 0;
        while at < message.len() {
            let (tag, value, next) = field(message, at)?;
            match tag {
                // Events, which are most of a file. The length precedes the message.
                0x22 => {
                    let mixed = check_event(message, value)?;
                    line.events.push((base + at as u32 + 1) | mixed);
                }
                0x08 => line.id = value as i64,
                0x18 => line.timestamp_ns = value as i64,
                0x48 => line.duration_ps = value as i64,
                0x50 => line.display_id = value as i64,
                0x12 | 0x5a => {
                    let (start, length) = ((value >> 32) as usize, value as u32 as usize);
                    let name = message.get(start..).and_then(|rest| rest.get(..length));
                    let name = Place::of(whole, name.unwrap_or_default());
                    *(if tag == 0x12 { &mut line.name } else { &mut line.display_name }) = name;
                }
                _ => match tag >> 3 {
                    1..=4 | 9..=11 => return Err(not_a("a line", &message[at..])),
                    _ => {}
                },
            }
            at = next;
        }
        line.events.shrink_to_fit();
        Ok(line)
    }

    /// The name, such as `XLA Ops`.
    pub fn name<'a>(&self, whole: &'a [u8]) -> &'a [u8] {
        self.name.get(whole)
    }

    /// The name that viewers show instead; may be empty.
    pub fn display_name<'a>(&self, whole: &'a [u8]) -> &'a [u8] {
        self.display_name.get(whole)
    }

    /// How many events it has.
    pub fn event_count(&self) -> usize {
        self.events.len()
    }

    /// The event `index`.
    pub fn event<'a>(&self, whole: &'a [u8], index: usize) -> Option<Event<'a>> {
        self.events.get(index).map(|at| event_at(whole, *at))
    }

    /// The events, in the order of the file.
    pub fn events<'a>(&'a self, whole: &'a [u8]) -> impl ExactSizeIterator<Item = Event<'a>> {
        self.events.iter().map(|at| event_at(whole, *at))
    }
}

/// Checks the event whose place in `line` is `value`, as [`field`] gives it; returns [`MIXED`] or 0.
#[inline(always)]
fn check_event(line: &[u8], value: u64) -> Read<u32> {
    let (mut has_stats, mut mixed) = (false, 0);
    let place = inside(value);
    let mut at = place.start;
    while at < place.end {
        let (tag, value, next) = field(line, at)?;
        if next > place.end {
            return Err(beyond(line, at));
        }
        match tag {
            0x08 | 0x10 | 0x18 | 0x28 => mixed |= if has_stats { MIXED } else { 0 },
            0x22 => {
                has_stats = true;
                check_stat(line, inside(value))?;
            }
            _ if (1..=5).contains(&(tag >> 3)) => return Err(not_a("an event", &line[at..])),
            _ => {}
        }
        at = next;
    }
    Ok(mixed)
}

/// The event whose length is at `place`. [`Line::read`] has checked it.
#[inline]
fn event_at(whole: &[u8], place: u32) -> Event<'_> {
    let mut rest = whole.get((place & !MIXED) as usize..).unwrap_or_default();
    let length = varint(&mut rest).map_or(0, |length| length as usize);
    let mut at = whole.len() - rest.len();
    let end = whole.len().min(at.saturating_add(length));
    let mut event = Event { whole, stats: (end, end), ..Event::default() };
    while at < end {
        let Ok((tag, value, next)) = field(whole, at) else { break };
        match tag {
            0x08 => event.metadata_id = value as i64,
            // One of the two: the last counts.
            0x10 => (event.offset_ps, event.occurrences) = (value as i64, None),
            0x28 => (event.offset_ps, event.occurrences) = (0, Some(value as i64)),
            0x18 => event.duration_ps = value as i64,
            0x22 => {
                event.stats.0 = event.stats.0.min(at);
                if place & MIXED == 0 {
                    break;
                }
            }
            _ => {}
        }
        at = next;
    }
    event
}

impl<'a> Event<'a> {
    /// The stats of this occurrence; those of all its kind are in the metadata.
    pub fn stats(&self) -> Stats<'a> {
        Stats::of(self.whole, self.stats.0..self.stats.1, 4)
    }
}

impl EventMetadata {
    fn read(whole: &[u8], message: &[u8], id: i64) -> Read<EventMetadata> {
        let mut metadata =
            EventMetadata { id, whole: Place::of(whole, message), ..EventMetadata::default() };
        each(message, |number, wire, _, inside| {
            match (number, wire) {
                (2, BYTES) => metadata.name = Place::of(whole, inside),
                (4, BYTES) => metadata.display_name = Place::of(whole, inside),
                (5, BYTES) => check_stat(inside, 0..inside.len())?,
                (1, NUMBER) | (3, BYTES) | (6, _) => {}
                (1..=5, _) => return Err(not_a("event metadata", message)),
                _ => {}
            }
            Ok(())
        })?;
        Ok(metadata)
    }

    /// The name: the instruction as text, a kernel, a function.
    pub fn name<'a>(&self, whole: &'a [u8]) -> &'a [u8] {
        self.name.get(whole)
    }

    /// The name that viewers show instead; may be empty.
    pub fn display_name<'a>(&self, whole: &'a [u8]) -> &'a [u8] {
        self.display_name.get(whole)
    }

    /// Stats that all events of this kind share.
    pub fn stats<'a>(&self, whole: &'a [u8]) -> Stats<'a> {
        Stats::of(whole, self.whole.range(), 5)
    }

    /// Further metadata in serialised form; may be empty.
    pub fn serialised<'a>(&self, whole: &'a [u8]) -> &'a [u8] {
        let mut fields = Fields::new(self.whole.get(whole));
        let mut found: &[u8] = b"";
        while let Ok(Some((number, value))) = fields.next() {
            if let (3, Value::Bytes(bytes)) = (number, value) {
                found = bytes;
            }
        }
        found
    }
}

impl StatMetadata {
    fn read(whole: &[u8], message: &[u8], id: i64) -> Read<StatMetadata> {
        let mut metadata = StatMetadata { id, ..StatMetadata::default() };
        each(message, |number, wire, _, inside| {
            match (number, wire) {
                (2, BYTES) => metadata.name = Place::of(whole, inside),
                (3, BYTES) => metadata.description = Place::of(whole, inside),
                (1, NUMBER) => {}
                (1..=3, _) => return Err(not_a("stat metadata", message)),
                _ => {}
            }
            Ok(())
        })?;
        Ok(metadata)
    }

    /// The name.
    pub fn name<'a>(&self, whole: &'a [u8]) -> &'a [u8] {
        self.name.get(whole)
    }

    /// The description; may be empty.
    pub fn description<'a>(&self, whole: &'a [u8]) -> &'a [u8] {
        self.description.get(whole)
    }
}
