//! Finds out which message a file holds, and where in the message the module is.

use super::wire::{Fault, Fields, Read, Value, varint};
use crate::error::ErrorKind;

/// A module found in a file.
pub(super) struct Found<'a> {
    /// An `HloModuleProto`.
    pub(super) module: &'a [u8],
    /// The `BufferAssignmentProto` beside the module.
    pub(super) assignment: Option<&'a [u8]>,
}

/// Whether `bytes` can be a protobuf but not text: they begin with a field of HLO's messages and
/// contain bytes that text does not have.
pub(super) fn is_binary_message(bytes: &[u8]) -> bool {
    let head = bytes.get(..4096).unwrap_or(bytes);
    let is_control = |byte: &u8| *byte < 32 && !matches!(byte, 7 | 9..=13 | 27);
    let mut rest = bytes;
    // A delimited message begins with its length.
    let is_delimited = varint(&mut rest).is_ok_and(|length| {
        usize::try_from(length).is_ok_and(|length| length > 0 && length <= rest.len())
            && begins_with_field(rest)
    });
    (begins_with_field(bytes) || is_delimited) && head.iter().any(is_control)
}

/// Whether `bytes` begin with a name or message in fields 1 to 4, as HLO's messages do.
fn begins_with_field(bytes: &[u8]) -> bool {
    let [tag @ (0x0a | 0x12 | 0x1a | 0x22), rest @ ..] = bytes else { return false };
    let mut rest = rest;
    let Ok(length) = varint(&mut rest) else { return false };
    let inside = usize::try_from(length).ok().and_then(|length| rest.get(..length));
    // A truncated message also counts if another message begins inside it.
    let inside = inside.unwrap_or(rest);
    let is_name = inside.iter().all(|byte| (0x20..0x7f).contains(byte));
    inside.is_empty() || *tag != 0x0a || is_name || matches!(inside[0], 0x0a | 0x12 | 0x1a | 0x22)
}

/// Whether `head` begins with `HloProto.hlo_module` and in it the module's name, or with
/// `HloModuleProto.name` followed by the entry computation's name or a computation.
pub(super) fn begins_with_module(head: &[u8]) -> bool {
    let Some((length, inside)) = first_field(head) else { return false };
    if let Some((length, name)) = first_field(inside) {
        return is_name(name, length);
    }
    let after = usize::try_from(length).ok().and_then(|length| inside.get(length));
    is_name(inside, length) && after.is_some_and(|tag| matches!(tag, 0x12 | 0x1a))
}

/// Length and content of field 1 if `bytes` begin with it; the end may be truncated.
fn first_field(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut rest = bytes.strip_prefix(&[0x0a])?;
    let length = varint(&mut rest).ok()?;
    Some((length, rest))
}

/// Whether `bytes` begin with a name of `length` bytes.
fn is_name(bytes: &[u8], length: u64) -> bool {
    let name = usize::try_from(length).ok().and_then(|length| bytes.get(..length));
    let is_part = |byte: &u8| byte.is_ascii_graphic() || *byte >= 0x80;
    (1..4096).contains(&length) && name.unwrap_or(bytes).iter().all(is_part)
}

/// Finds the module in `bytes`, inside any of the messages that contain one; the bytes must be
/// complete.
pub(super) fn find(bytes: &[u8]) -> Read<Found<'_>> {
    if is_module(bytes) {
        return Ok(Found { module: bytes, assignment: None });
    }
    // HloProto and the module with its configuration have it in field 1, HloSnapshot has an
    // HloProto there, and the serialized executables of PJRT nest deeper.
    let mut outer = bytes;
    for depth in 0..EXECUTABLE_DEPTH {
        let Some(inner) = first(outer, 1) else { break };
        if is_module(inner) {
            read_to_end(bytes)?;
            read_to_end(outer)?;
            let assignment = if depth < 2 { first(outer, 3) } else { None };
            return Ok(Found { module: inner, assignment });
        }
        outer = inner;
    }
    // An unoptimized snapshot: length, message, then the arguments.
    let mut rest = bytes;
    if let Ok(length) = varint(&mut rest)
        && let Some(message) = usize::try_from(length).ok().and_then(|length| rest.get(..length))
        && let Some(module) = first(message, 1).filter(|module| is_module(module))
    {
        return Ok(Found { module, assignment: None });
    }
    Err(explain(bytes))
}

/// The name of the module in `bytes`.
pub(super) fn name(bytes: &[u8]) -> Option<&[u8]> {
    first(find(bytes).ok()?.module, 1)
}

/// Levels of messages around a module in a serialized executable, and in the metadata before it.
const EXECUTABLE_DEPTH: usize = 8;

/// The entry of JAX's compilation cache in `bytes`: the seconds of the compilation in four bytes,
/// the length and content of IFRT's description (since JAX 0.6), then the executable. None if it
/// is not one. `rest` may be cut after the description.
pub(super) fn cached_executable(bytes: &[u8]) -> Option<&[u8]> {
    /// A compilation of a week; the first byte tells an entry from text and from messages.
    const LONGEST: u32 = 7 * 24 * 3600;
    let (seconds, rest) = bytes.split_first_chunk::<4>()?;
    if u32::from_be_bytes(*seconds) > LONGEST {
        return None;
    }
    let mut described = rest;
    if let Ok(length) = varint(&mut described)
        && let Some((description, executable)) =
            usize::try_from(length).ok().and_then(|length| described.split_at_checked(length))
        // The number of a version, then the platform.
        && matches!(description, [0x08, _, 0x12, ..])
    {
        return Some(executable);
    }
    begins_with_field(rest).then_some(rest)
}

/// Finds the module in a serialized executable: the first message, from the outside inwards and in
/// the order of fields, that is one. Every byte is visited once per level.
pub(super) fn find_in_executable(bytes: &[u8]) -> Read<Found<'_>> {
    let mut level = vec![bytes];
    for _ in 0..EXECUTABLE_DEPTH {
        if let Some(module) = level.iter().find(|one| is_module(one) && has_instructions(one)) {
            return Ok(Found { module, assignment: None });
        }
        let mut next = Vec::new();
        for message in level {
            let before = next.len();
            let mut fields = Fields::new(message);
            loop {
                match fields.next() {
                    // A smaller message cannot hold a module.
                    Ok(Some((_, Value::Bytes(inner)))) if inner.len() >= 16 => next.push(inner),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    // Not a message but a string, or code.
                    Err(_) => {
                        next.truncate(before);
                        break;
                    }
                }
            }
        }
        level = next;
    }
    let message = "the executable in this compilation cache entry contains no HLO module";
    Err(Fault { kind: ErrorKind::NotHlo, ..Fault::new(bytes, message) })
}

/// Checks that a message consists of whole fields.
fn read_to_end(bytes: &[u8]) -> Read<()> {
    let mut fields = Fields::new(bytes);
    while fields.next()?.is_some() {}
    Ok(())
}

/// The first value of a field that contains a message; None if the bytes before it are not valid
/// fields.
fn first(bytes: &[u8], wanted: u32) -> Option<&[u8]> {
    let mut fields = Fields::new(bytes);
    while let Some((number, value)) = fields.next().ok()? {
        if let (true, Value::Bytes(bytes)) = (number == wanted, value) {
            return Some(bytes);
        }
    }
    None
}

/// Whether `bytes` consist of whole fields and look like a module: computations, and an entry's
/// name, id or program shape. Messages around a module may have the same fields, but a message
/// instead of a name.
fn is_module(bytes: &[u8]) -> bool {
    let (mut has_computations, mut has_entry) = (false, false);
    let is_name = |name: &[u8]| name.iter().all(|byte| *byte >= 0x20);
    let mut fields = Fields::new(bytes);
    loop {
        match fields.next() {
            Ok(Some((3, Value::Bytes(_)))) => has_computations = true,
            Ok(Some((1, Value::Bytes(name)))) if !is_name(name) => return false,
            Ok(Some((3, _))) | Err(_) => return false,
            Ok(Some((4 | 2, Value::Bytes(_)) | (6, Value::Varint(_)))) => has_entry = true,
            Ok(Some(_)) => {}
            Ok(None) => return has_computations && has_entry,
        }
    }
}

/// Whether the first computation of what looks like a module has an instruction with an opcode.
fn has_instructions(module: &[u8]) -> bool {
    let instruction = first(module, 3).and_then(|computation| first(computation, 2));
    let opcode = instruction.and_then(|instruction| first(instruction, 2));
    let is_letter = |byte: &u8| byte.is_ascii_lowercase() || *byte == b'-';
    opcode.is_some_and(|word| !word.is_empty() && word.iter().all(is_letter))
}

/// Explains why `bytes` contain no module: the first fault found, if any.
fn explain(bytes: &[u8]) -> Fault {
    let mut level = bytes;
    for _ in 0..3 {
        let mut fields = Fields::new(level);
        let mut next = None;
        loop {
            match fields.next() {
                Ok(Some((1, Value::Bytes(inner)))) if next.is_none() => next = Some(inner),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(fault) => return fault,
            }
        }
        match next {
            // Field 1 is a message and not a name.
            Some(inner) if inner.first() == Some(&0x0a) => level = inner,
            _ => break,
        }
    }
    Fault { kind: ErrorKind::NotHlo, ..Fault::new(bytes, "a protobuf that contains no HLO module") }
}
