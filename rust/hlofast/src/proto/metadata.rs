//! `OpMetadata`, frontend attributes, statistics and original values as text.

use super::out::{Out, Quotes};
use super::record::{List, Store, repeated};
use super::shape::MAX_DEPTH;
use super::wire::{Fault, Fields, Read, Value};
use crate::text::{Cursor, is_identifier_byte, is_identifier_start};

/// The bytes of a `Payload`: its own bytes, or an entry of `payloads` to which it refers.
pub(super) fn payload<'a>(payload: &'a [u8], payloads: &[&'a [u8]]) -> Read<&'a [u8]> {
    let mut store = Store::default();
    let fields = store.read(payload, 0)?;
    if let Some(value) = fields.bytes(1) {
        return Ok(value);
    }
    let number = fields.integer(2);
    let listed = usize::try_from(number).ok().and_then(|number| payloads.get(number));
    listed.copied().ok_or_else(|| {
        let message = format!("payload {number} of {}", payloads.len());
        Fault::new(payload, message)
    })
}

/// The keys of `metadata` in XLA's order, with their fields.
const KEYS: [(u32, &[u8]); 12] = [
    (1, b"op_type="),
    (2, b"op_name="),
    (3, b"source_file="),
    (4, b"source_line="),
    (17, b"source_end_line="),
    (18, b"source_column="),
    (19, b"source_end_column="),
    (5, b"profile_type="),
    (12, b"deduplicated_name="),
    (16, b"scheduling_name="),
    (15, b"stack_frame_id="),
    (20, b"metadata_payload="),
];

pub(super) const KEY: &[u8] = b", metadata=";

/// Appends `, metadata={...}`; nothing if it would be empty.
pub(super) fn write_attribute(out: &mut Out<'_>, metadata: &[u8], payloads: &[&[u8]]) -> Read<()> {
    let start = out.text.len();
    out.push(KEY);
    if !write(out, metadata, payloads)? {
        out.text.truncate(start);
    }
    Ok(())
}

/// Appends `{op_name="..." stack_frame_id=3}`; returns whether it is not empty.
pub(super) fn write(out: &mut Out<'_>, metadata: &[u8], payloads: &[&[u8]]) -> Read<bool> {
    let start = out.text.len();
    if let Some(is_some) = write_usual(out, metadata)? {
        return Ok(is_some);
    }
    out.text.truncate(start);
    write_any(out, metadata, payloads)
}

/// Like `write`, for metadata that has only the usual fields, in text order. For other metadata
/// returns None, and may have appended incomplete text.
fn write_usual(out: &mut Out<'_>, metadata: &[u8]) -> Read<Option<bool>> {
    out.byte(b'{');
    let start = out.text.len();
    let mut last = 0;
    let mut fields = Fields::new(metadata);
    while let Some((number, value)) = fields.next()? {
        let key: &[u8] = match number {
            _ if number <= last => return Ok(None),
            1 => b" op_type=",
            2 => b" op_name=",
            3 => b" source_file=",
            4 => b" source_line=",
            15 => b" stack_frame_id=",
            _ => return Ok(None),
        };
        last = number;
        let key = if out.text.len() == start { &key[1..] } else { key };
        match value {
            Value::Bytes(text) if number < 4 && !text.is_empty() => {
                out.push(key);
                out.string(text);
            }
            Value::Varint(value) if number >= 4 && value as i32 != 0 => {
                out.push(key);
                out.integer((value as i32).into());
            }
            _ => {}
        }
    }
    let is_some = out.text.len() > start;
    out.byte(b'}');
    Ok(Some(is_some))
}

fn write_any(out: &mut Out<'_>, metadata: &[u8], payloads: &[&[u8]]) -> Read<bool> {
    let mut store = Store::default();
    let fields = store.read(metadata, repeated(&[5]))?;
    out.byte(b'{');
    let start = out.text.len();
    for (number, key) in KEYS {
        if !fields.has(number) {
            continue;
        }
        let before = out.text.len();
        if before > start {
            out.byte(b' ');
        }
        out.push(key);
        match number {
            1 | 2 | 3 | 12 | 16 => match fields.text(number) {
                Some(text) => out.string(text),
                None => out.text.truncate(before),
            },
            5 => out.integers(&fields.list(5)?),
            20 => {
                let content = payload(fields.bytes(20).unwrap_or_default(), payloads)?;
                out.limit_reference(content)?;
                out.string(content);
            }
            _ => match fields.integer(number) as i32 {
                0 => out.text.truncate(before),
                value => out.integer(value.into()),
            },
        }
    }
    let is_some = out.text.len() > start;
    out.byte(b'}');
    Ok(is_some)
}

/// Whether `text` is a single `{...}` as delimited by the text reader.
fn is_dictionary(text: &[u8], quotes: &mut Quotes) -> bool {
    if text.first() != Some(&b'{') {
        return false;
    }
    let Some(mut brackets) = quotes.brackets(text) else {
        let mut cursor = Cursor::new(text);
        return cursor.dictionary().is_ok() && cursor.is_at_end();
    };
    let mut depth = 0usize;
    let end = brackets.find(|at| {
        match text[*at] {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    end.is_some_and(|end| end + 1 == text.len())
}

/// Appends the value of a backend configuration or frontend attribute: dictionaries as they are,
/// other values as a string.
pub(super) fn write_opaque(out: &mut Out<'_>, value: &[u8]) {
    if is_dictionary(value, &mut out.quotes) {
        out.push(value);
    } else {
        out.string(value);
    }
}

/// Appends `{a="1",b={opaque}}`, sorted by key as XLA does; nothing if there are none.
pub(super) fn write_frontend(out: &mut Out<'_>, key: &[u8], attributes: &[u8]) -> Read<()> {
    if attributes.is_empty() {
        return Ok(());
    }
    let mut entries: Vec<(&[u8], &[u8])> = Vec::new();
    let mut fields = Fields::new(attributes);
    while let Some((number, value)) = fields.next()? {
        if let (1, Some(entry)) = (number, value.bytes()) {
            let mut store = Store::default();
            let entry = store.read(entry, 0)?;
            let text = |number: u32| entry.bytes(number).unwrap_or_default();
            entries.push((text(1), text(2)));
        }
    }
    if entries.is_empty() {
        return Ok(());
    }
    // Of duplicate keys, the last counts.
    entries.reverse();
    entries.sort_by_key(|(key, _)| *key);
    entries.dedup_by_key(|(key, _)| *key);
    out.push(key);
    for (index, (key, value)) in entries.iter().enumerate() {
        out.byte(if index == 0 { b'{' } else { b',' });
        out.push(&clean_name(key));
        out.byte(b'=');
        write_opaque(out, value);
    }
    out.byte(b'}');
    Ok(())
}

/// The name with characters that text does not allow replaced by `_`, as in XLA.
pub(super) fn clean_name(name: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    // Avoids a branch for each byte.
    let is_word = |all: bool, byte: &u8| all & is_identifier_byte(*byte);
    let is_clean = name.first().is_some_and(|byte| is_identifier_start(*byte));
    if is_clean && name.iter().fold(true, is_word) {
        return name.into();
    }
    let clean = |byte: &u8| if is_identifier_byte(*byte) { *byte } else { b'_' };
    let mut cleaned: Vec<u8> = name.iter().map(clean).collect();
    if !cleaned.first().is_some_and(|byte| is_identifier_start(*byte)) {
        cleaned.insert(0, b'_');
    }
    cleaned.into()
}

/// Appends `, statistics={visualizing_index=0,name=1}` if there are any.
pub(super) fn write_statistics(out: &mut Out<'_>, statistics: &[u8]) -> Read<()> {
    let mut store = Store::default();
    let fields = store.read(statistics, repeated(&[2]))?;
    if !fields.has(2) {
        return Ok(());
    }
    out.push(b", statistics={visualizing_index=");
    out.integer(fields.integer(1));
    for statistic in fields.messages(2) {
        let mut store = Store::default();
        let statistic = store.read(statistic, 0)?;
        out.byte(b',');
        out.push(&clean_name(statistic.bytes(1).unwrap_or_default()));
        out.byte(b'=');
        super::literal::write_figure(out, statistic.double(2));
    }
    out.byte(b'}');
    Ok(())
}

/// Appends `, origin={(({"v1"}, {"v2" {0,1}}), {})}`, with brackets according to the tuple paths of
/// its elements.
pub(super) fn write_origin(out: &mut Out<'_>, origin: &[u8]) -> Read<()> {
    let mut store = Store::default();
    let fields = store.read(origin, repeated(&[1]))?;
    out.push(b", origin={");
    if fields.is_set(2) {
        out.push(b"[synthetic_call]");
    } else {
        if !fields.has(1) {
            out.push(b"()");
        }
        // The path of the previous element: brackets close and open where two paths diverge.
        let mut path = List::default();
        for (count, message) in fields.messages(1).enumerate() {
            let mut store = Store::default();
            let element = store.read(message, repeated(&[1]))?;
            let next = element.list(1)?;
            if next.len() > MAX_DEPTH as usize {
                return Err(Fault::new(message, "a tuple path deeper than 100"));
            }
            let shared = path.iter().zip(next.iter()).take_while(|(a, b)| a == b).count();
            if count > 0 {
                // The component in which the paths diverge stays inside the same brackets.
                (shared + 1..path.len()).for_each(|_| out.byte(b')'));
                out.push(b", ");
                (shared + 1..next.len()).for_each(|_| out.byte(b'('));
            } else {
                next.iter().for_each(|_| out.byte(b'('));
            }
            match element.bytes(2) {
                None => out.push(b"{}"),
                Some(array) => write_array(out, array)?,
            }
            path = next;
        }
        path.iter().for_each(|_| out.byte(b')'));
    }
    out.byte(b'}');
    Ok(())
}

/// Appends an `OriginalArrayProto`.
pub(super) fn write_array(out: &mut Out<'_>, array: &[u8]) -> Read<()> {
    let mut store = Store::default();
    let array = store.read(array, repeated(&[2]))?;
    out.byte(b'{');
    out.string(array.bytes(1).unwrap_or_default());
    if array.has(2) {
        out.byte(b' ');
        out.integers(&array.list(2)?);
    }
    out.byte(b'}');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_end_where_the_reader_of_text_ends_them() {
        const BYTES: &[u8] = b"{}\"[\\\n";
        let mut out = Out::new(0);
        for code in 0..BYTES.len().pow(6) {
            let place = |at: u32| BYTES[code / BYTES.len().pow(at) % BYTES.len()];
            let text: Vec<u8> = std::iter::once(b'{').chain((0..6).map(place)).collect();
            for length in 1..=text.len() {
                let mut cursor = Cursor::new(&text[..length]);
                let is_whole = cursor.dictionary().is_ok() && cursor.is_at_end();
                assert_eq!(is_dictionary(&text[..length], &mut out.quotes), is_whole, "{text:?}");
            }
        }
    }
}
