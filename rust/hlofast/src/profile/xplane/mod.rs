//! XSpace, the protobuf of `*.xplane.pb`: planes of lines of events, read in place.
//!
//! [`Space::read`] checks every byte of the message and keeps four bytes per event, so that its
//! memory stays below that of the file times three whatever the file holds; names, events and stats
//! are decoded from the bytes when they are asked for. The schema is `xplane.proto` of TSL
//! (`third_party/tsl/tsl/profiler/protobuf/xplane.proto` of openxla/xla).

mod fill;
mod modules;
mod plane;
mod stat;

pub use modules::Embedded;
pub use plane::{Event, EventMetadata, Line, Plane, StatMetadata};
pub use stat::{Stat, Stats, Value};

use super::error;
use crate::error::{ErrorKind, ParseError, Result};
use crate::proto::wire::{Fault, Fields, Read};
use crate::text::{SharedBytes, Span};

/// Most bytes of a file: protobufs end there, and places of events keep a bit for themselves.
const MOST_BYTES: usize = 1 << 31;

/// A range of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    at: u32,
    length: u32,
}

impl Place {
    /// The place of `part`, a slice of `whole`.
    fn of(whole: &[u8], part: &[u8]) -> Place {
        let at = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
        match part.is_empty() {
            true => Place::default(),
            false => Place { at: at as u32, length: part.len() as u32 },
        }
    }

    /// The place as a range.
    fn range(self) -> std::ops::Range<usize> {
        self.at as usize..self.at as usize + self.length as usize
    }

    /// The bytes at this place of `whole`.
    fn get(self, whole: &[u8]) -> &[u8] {
        whole
            .get(self.at as usize..)
            .and_then(|rest| rest.get(..self.length as usize))
            .unwrap_or(b"")
    }
}

/// The contents of one `*.xplane.pb`.
pub struct Space {
    bytes: SharedBytes,
    planes: Vec<Plane>,
    errors: Vec<Place>,
    warnings: Vec<Place>,
    hostnames: Vec<Place>,
}

impl std::fmt::Debug for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Space of {} planes", self.planes.len())
    }
}

impl Space {
    /// Reads the message in `bytes`, which must be uncompressed. Errors give the byte offset.
    pub fn read(bytes: SharedBytes) -> Result<Space> {
        let whole = &bytes[..];
        if whole.len() >= MOST_BYTES {
            let message = "a profile of 2 GiB or more, the limit of protobufs";
            return Err(ParseError::new(ErrorKind::TooLarge, Span::EMPTY, message));
        }
        let mut space = Space { bytes: SharedBytes::clone(&bytes), ..Space::empty() };
        space.fill(whole).map_err(|fault| error(whole, fault))?;
        Ok(space)
    }

    fn empty() -> Space {
        Space {
            bytes: SharedBytes::new(),
            planes: Vec::new(),
            errors: Vec::new(),
            warnings: Vec::new(),
            hostnames: Vec::new(),
        }
    }

    fn fill(&mut self, whole: &[u8]) -> Read<()> {
        let mut fields = Fields::new(whole);
        while let Some((number, value)) = fields.next()? {
            let Some(inside) = value.bytes() else { continue };
            match number {
                1 => self.planes.push(Plane::read(whole, inside)?),
                2 => self.errors.push(Place::of(whole, inside)),
                3 => self.warnings.push(Place::of(whole, inside)),
                4 => self.hostnames.push(Place::of(whole, inside)),
                _ => {}
            }
        }
        Ok(())
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The planes, in the order of the file.
    pub fn planes(&self) -> &[Plane] {
        &self.planes
    }

    /// What went wrong while the profile was recorded.
    pub fn errors(&self) -> impl Iterator<Item = &[u8]> {
        self.errors.iter().map(|place| place.get(self.bytes()))
    }

    /// What the profiler warns of.
    pub fn warnings(&self) -> impl Iterator<Item = &[u8]> {
        self.warnings.iter().map(|place| place.get(self.bytes()))
    }

    /// The names of the hosts that the file is of.
    pub fn hostnames(&self) -> impl Iterator<Item = &[u8]> {
        self.hostnames.iter().map(|place| place.get(self.bytes()))
    }

    /// How many events it holds.
    pub fn event_count(&self) -> usize {
        self.planes.iter().flat_map(Plane::lines).map(Line::event_count).sum()
    }
}

/// Whether `bytes`, the beginning of a file or all of it, are an XSpace: a plane that begins with
/// its number or its name, and whose fields have the wire types of the schema.
///
/// A module's first field is its name or the message around it, whose first field is a name too; the
/// second field of a plane is its name, which no module has in that place.
pub fn is_space(bytes: &[u8]) -> bool {
    let mut fields = Fields::new(bytes);
    // Only planes are looked at; a truncated head ends the look inside the first one.
    let mut rest = match bytes {
        [0x0a, rest @ ..] => rest,
        // A file of errors or hosts alone.
        [0x12 | 0x1a | 0x22, ..] => {
            return std::iter::from_fn(|| fields.next().ok().flatten())
                .any(|(number, value)| number == 1 && value.bytes().is_some_and(is_plane));
        }
        _ => return false,
    };
    let Ok(length) = crate::proto::wire::varint(&mut rest) else { return false };
    let inside = usize::try_from(length).ok().and_then(|length| rest.get(..length));
    is_plane(inside.unwrap_or(rest))
}

/// Whether `bytes` begin as a plane does: an optional number, then a name or a map's entry.
fn is_plane(bytes: &[u8]) -> bool {
    let mut fields = Fields::new(bytes);
    let mut is_numbered = false;
    loop {
        match fields.next() {
            Ok(Some((1, value))) if !is_numbered && value.integer().is_some() => is_numbered = true,
            // Names of planes: `/host:CPU`, `/device:TPU:0`, `Task Environment`, `#Chip ...`.
            Ok(Some((2, value))) => {
                return value.bytes().is_some_and(|name| {
                    !name.is_empty() && name.iter().all(|byte| !byte.is_ascii_control())
                });
            }
            // A plane without a name, with a line that begins with a number or a name.
            Ok(Some((3, value))) => {
                let line = value.bytes().unwrap_or_default();
                return is_numbered && matches!(line.first(), Some(0x08 | 0x12 | 0x18 | 0x22));
            }
            _ => return false,
        }
    }
}

/// The fault of a stat, event or line that a reader found to be none.
fn not_a(what: &str, bytes: &[u8]) -> Fault {
    Fault::new(bytes, format!("field of {what} with the wrong wire type"))
}
