//! `BufferAssignmentProto` as the text of the file `-buffer-assignment.txt`.

use super::Map;
use super::metadata::clean_name;
use super::module::Context;
use super::out::Out;
use super::record::{Store, repeated};
use super::wire::{Fault, Read};

/// A value in an allocation.
struct Buffer<'a> {
    /// The `LogicalBufferProto.Location` of its definition.
    defined_at: &'a [u8],
    color: i64,
}

/// The text of `assignment` for the module `context`, whose lines are in `scratch`.
pub(super) fn to_text(assignment: &[u8], context: &Context<'_>, scratch: &[u8]) -> Read<Vec<u8>> {
    let mut store = Store::default();
    let fields = store.read(assignment, repeated(&[1, 2, 3, 4, 5]))?;
    let mut buffers = Map::default();
    for message in fields.messages(1) {
        let mut store = Store::default();
        let buffer = store.read(message, 0)?;
        let defined_at = buffer.bytes(3).unwrap_or_default();
        buffers.insert(buffer.integer(1), Buffer { defined_at, color: buffer.integer(4) });
    }
    let names = context.names(scratch);
    let mut out = Out::new(assignment.len());
    out.push(b"BufferAssignment:\n");
    let mut total = 0i64;
    for message in fields.messages(3) {
        let mut store = Store::default();
        let allocation = store.read(message, repeated(&[9, 10]))?;
        let size = allocation.integer(2);
        total = match total.checked_add(size).filter(|_| size >= 0) {
            Some(total) => total,
            None => return Err(Fault::new(message, "allocation sizes beyond 64 bits")),
        };
        out.push(b"allocation ");
        out.integer(allocation.integer(1));
        out.push(b": size ");
        out.integer(size);
        let (is_parameter, is_constant) = (allocation.is_set(5), allocation.is_set(12));
        if allocation.integer(8) != 0 {
            out.push(b", color ");
            out.integer(allocation.integer(8));
        }
        if is_parameter {
            out.push(b", parameter ");
            out.integer(allocation.integer(6));
            out.push(b" at ShapeIndex ");
            out.integers(&allocation.list(10)?);
        }
        for (is_so, word) in [
            (is_constant, &b", constant"[..]),
            (allocation.is_set(3), b", thread-local"),
            (allocation.is_set(7), b", maybe-live-out"),
        ] {
            if is_so {
                out.push(word);
            }
        }
        let is_other = is_parameter || is_constant || allocation.is_set(3) || allocation.is_set(7);
        out.push(if is_other { b":\n" } else { b", preallocated-temp:\n" });
        values(&mut out, &allocation, &buffers, &names)?;
    }
    out.push(b"\nTotal bytes used: ");
    out.integer(total);
    out.byte(b'\n');
    Ok(out.text)
}

/// Writes ` value: <112 w.1{0} @0> (size=262144,offset=0)`, in the order of the values' ids.
fn values(
    out: &mut Out<'_>,
    allocation: &super::record::Record<'_, '_>,
    buffers: &Map<i64, Buffer<'_>>,
    names: &Map<i64, &[u8]>,
) -> Read<()> {
    let mut assigned = Vec::new();
    for message in allocation.messages(9) {
        let mut store = Store::default();
        let fields = store.read(message, 0)?;
        assigned.push((fields.integer(1), fields.integer(2), fields.integer(3), message));
    }
    assigned.sort_by_key(|(id, ..)| *id);
    for (id, offset, size, message) in assigned {
        let Some(buffer) = buffers.get(&id) else {
            return Err(Fault::new(message, format!("no value with id {id}")));
        };
        let mut store = Store::default();
        let place = store.read(buffer.defined_at, repeated(&[3]))?;
        out.push(b" value: <");
        out.integer(id);
        out.byte(b' ');
        match (names.get(&place.integer(4)), place.text(2)) {
            // Until 2022, locations contained names.
            (_, Some(name)) => out.refer(&clean_name(name))?,
            (Some(name), None) => out.refer(name)?,
            (None, None) => {
                let message_text = format!("no instruction with id {}", place.integer(4));
                return Err(Fault::new(buffer.defined_at, message_text));
            }
        }
        let path = place.list(3)?;
        if !path.is_empty() {
            out.integers(&path);
        }
        out.push(b" @");
        out.integer(buffer.color);
        out.push(b"> (size=");
        out.integer(size);
        out.push(b",offset=");
        out.integer(offset);
        out.push(b")\n");
        out.check()?;
    }
    Ok(())
}
