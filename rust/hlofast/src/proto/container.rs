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
        // In an HloProto, field 1 is a message that holds the module; in a module, field 1 is a
        // name. A snapshot with a result and a platform has some of the fields of a module.
        let outer = first(bytes, 1);
        let proto = outer.filter(|inner| !is_module(inner));
        if let Some(module) = proto.and_then(|proto| first(proto, 1)).filter(|m| is_module(m)) {
            return beside(module, proto.unwrap_or(bytes));
        }
        return match outer.filter(|inner| is_module(inner)) {
            Some(module) => beside(module, bytes),
            None => Ok(Found { module: bytes, assignment: None }),
        };
    }
    if let Some(inner) = first(bytes, 1) {
        // An HloProto, or a module with its configuration.
        if is_module(inner) {
            return beside(inner, bytes);
        }
        // An HloSnapshot.
        if let Some(module) = first(inner, 1).filter(|module| is_module(module)) {
            read_to_end(bytes)?;
            return beside(module, inner);
        }
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

/// The `module` of an `HloProto`, with the proto's buffer assignment.
fn beside<'a>(module: &'a [u8], proto: &'a [u8]) -> Read<Found<'a>> {
    read_to_end(proto)?;
    Ok(Found { module, assignment: first(proto, 3) })
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
/// name, id or program shape.
fn is_module(bytes: &[u8]) -> bool {
    let (mut has_computations, mut has_entry) = (false, false);
    let mut fields = Fields::new(bytes);
    loop {
        match fields.next() {
            Ok(Some((3, Value::Bytes(_)))) => has_computations = true,
            Ok(Some((3, _))) | Err(_) => return false,
            Ok(Some((4 | 2, Value::Bytes(_)) | (6, Value::Varint(_)))) => has_entry = true,
            Ok(Some(_)) => {}
            Ok(None) => return has_computations && has_entry,
        }
    }
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
