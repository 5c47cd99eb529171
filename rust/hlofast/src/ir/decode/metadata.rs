//! `metadata={...}`: where an instruction comes from.

use super::scan::{
    Trailing, at_string, bytes, integer, integers, invalid_since, key, string, whole,
};
use super::string::escape_into;
use crate::error::{ErrorKind, Result};
use crate::text::{Cursor, is_identifier_byte};
use std::borrow::Cow;

/// Where an instruction comes from. Absent fields are None; unknown keys are kept with their raw
/// values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata<'a> {
    /// The framework's operation type.
    pub op_type: Option<Cow<'a, [u8]>>,
    /// The framework's name stack.
    pub op_name: Option<Cow<'a, [u8]>>,
    /// Source file.
    pub source_file: Option<Cow<'a, [u8]>>,
    /// First line.
    pub source_line: Option<i64>,
    /// Last line.
    pub source_end_line: Option<i64>,
    /// First column.
    pub source_column: Option<i64>,
    /// Last column.
    pub source_end_column: Option<i64>,
    /// Kinds of profile guidance that were applied.
    pub profile_type: Option<Vec<i64>>,
    /// The name of the computation that replaced the duplicate.
    pub deduplicated_name: Option<Cow<'a, [u8]>>,
    /// The name that the scheduler uses for the instruction.
    pub scheduling_name: Option<Cow<'a, [u8]>>,
    /// Frame number in the module's stack frame table; 0 = none.
    pub stack_frame_id: Option<i64>,
    /// A payload without defined meaning.
    pub metadata_payload: Option<Cow<'a, [u8]>>,
    /// Other keys and their raw values.
    pub other: Vec<(&'a [u8], &'a [u8])>,
}

/// Skips the separators between two fields; returns whether another field follows.
fn another_field(cursor: &mut Cursor<'_>) -> Result<bool> {
    while cursor.eat(b',')? {}
    Ok(!cursor.eat(b'}')?)
}

/// Skips a value of unknown form: a string, bracketed runs, or bare text up to a separator.
fn skip_value(cursor: &mut Cursor<'_>) -> Result<()> {
    cursor.skip_space()?;
    let start = cursor.position();
    loop {
        match cursor.peek() {
            b'"' | b'\'' => {
                cursor.string()?;
            }
            b'{' | b'(' | b'[' => {
                cursor.balanced()?;
            }
            byte if is_identifier_byte(byte) || matches!(byte, b'@' | b':' | b'+' | b'%') => {
                cursor.advance(1);
            }
            _ if cursor.position() == start => return Err(cursor.expected("a value", "")),
            _ => return Ok(()),
        }
    }
}

/// Reads `{key=value key=value}`; commas between fields are tolerated.
pub(crate) fn metadata<'a>(cursor: &mut Cursor<'a>) -> Result<Metadata<'a>> {
    let mut metadata = Metadata::default();
    cursor.expect(b'{', "at the start of the metadata")?;
    while another_field(cursor)? {
        let start = cursor.position();
        let key = key(cursor)?;
        let repeated = match key {
            b"op_type" => metadata.op_type.replace(string(cursor)?).is_some(),
            b"op_name" => metadata.op_name.replace(string(cursor)?).is_some(),
            b"source_file" => metadata.source_file.replace(string(cursor)?).is_some(),
            b"deduplicated_name" => metadata.deduplicated_name.replace(string(cursor)?).is_some(),
            b"scheduling_name" => metadata.scheduling_name.replace(string(cursor)?).is_some(),
            b"metadata_payload" => metadata.metadata_payload.replace(string(cursor)?).is_some(),
            b"source_line" => metadata.source_line.replace(integer(cursor)?).is_some(),
            b"source_end_line" => metadata.source_end_line.replace(integer(cursor)?).is_some(),
            b"source_column" => metadata.source_column.replace(integer(cursor)?).is_some(),
            b"source_end_column" => metadata.source_end_column.replace(integer(cursor)?).is_some(),
            b"stack_frame_id" => metadata.stack_frame_id.replace(integer(cursor)?).is_some(),
            b"profile_type" => {
                metadata.profile_type.replace(integers(cursor, Trailing::Nothing)?).is_some()
            }
            _ => {
                cursor.skip_space()?;
                let value = cursor.position();
                skip_value(cursor)?;
                metadata.other.push((key, cursor.since(value)));
                false
            }
        };
        if repeated {
            return Err(invalid_since(
                cursor,
                start,
                ErrorKind::DuplicateAttribute,
                format!("{} is given twice", String::from_utf8_lossy(key)),
            ));
        }
    }
    Ok(metadata)
}

/// `metadata={...}`.
pub(crate) fn decode_metadata(value: &[u8]) -> Result<Metadata<'_>> {
    whole(value, metadata)
}

/// The string field `wanted` of a metadata value, without decoding other fields; None if the field
/// is absent or the text before it cannot be read.
pub fn metadata_string<'a>(value: &'a [u8], wanted: &[u8]) -> Option<Cow<'a, [u8]>> {
    let mut cursor = Cursor::new(value);
    cursor.expect(b'{', "").ok()?;
    while another_field(&mut cursor).ok()? {
        let is_wanted = key(&mut cursor).ok()? == wanted;
        if is_wanted {
            return string(&mut cursor).ok();
        }
        skip_value(&mut cursor).ok()?;
    }
    None
}

impl Metadata<'_> {
    /// The canonical text, fields in XLA's order.
    pub fn to_text(&self) -> Vec<u8> {
        let mut text = vec![b'{'];
        let start = |text: &mut Vec<u8>, key: &[u8]| {
            if text.len() > 1 {
                text.push(b' ');
            }
            text.extend_from_slice(key);
            text.push(b'=');
        };
        let string = |text: &mut Vec<u8>, content: &[u8]| {
            text.push(b'"');
            escape_into(content, text);
            text.push(b'"');
        };
        for (key, value) in [
            ("op_type", &self.op_type),
            ("op_name", &self.op_name),
            ("source_file", &self.source_file),
        ] {
            if let Some(value) = value {
                start(&mut text, key.as_bytes());
                string(&mut text, value);
            }
        }
        for (key, value) in [
            ("source_line", self.source_line),
            ("source_end_line", self.source_end_line),
            ("source_column", self.source_column),
            ("source_end_column", self.source_end_column),
        ] {
            if let Some(value) = value {
                start(&mut text, key.as_bytes());
                text.extend_from_slice(value.to_string().as_bytes());
            }
        }
        if let Some(kinds) = &self.profile_type {
            start(&mut text, b"profile_type");
            text.push(b'{');
            super::iota::write_list(&mut text, kinds.iter().copied());
            text.push(b'}');
        }
        for (key, value) in [
            ("deduplicated_name", &self.deduplicated_name),
            ("scheduling_name", &self.scheduling_name),
        ] {
            if let Some(value) = value {
                start(&mut text, key.as_bytes());
                string(&mut text, value);
            }
        }
        if let Some(value) = self.stack_frame_id {
            start(&mut text, b"stack_frame_id");
            text.extend_from_slice(value.to_string().as_bytes());
        }
        if let Some(value) = &self.metadata_payload {
            start(&mut text, b"metadata_payload");
            string(&mut text, value);
        }
        for (key, value) in &self.other {
            start(&mut text, key);
            text.extend_from_slice(value);
        }
        text.push(b'}');
        text
    }
}

/// One frontend attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendAttribute<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The content of the string, or the braces with their content.
    pub value: Cow<'a, [u8]>,
    /// Whether the value is written in braces instead of as a string.
    pub is_dictionary: bool,
}

/// `frontend_attributes={key="value",key={...}}`, in text order. The last of equal keys counts.
pub(crate) fn decode_frontend_attributes(value: &[u8]) -> Result<Vec<FrontendAttribute<'_>>> {
    whole(value, |cursor| {
        let mut attributes = Vec::new();
        super::scan::list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
            let key = key(cursor)?;
            if at_string(cursor)? {
                let value = string(cursor)?;
                attributes.push(FrontendAttribute { key, value, is_dictionary: false });
            } else if cursor.peek() == b'{' {
                let span = cursor.dictionary()?;
                let value = Cow::Borrowed(bytes(cursor, span));
                attributes.push(FrontendAttribute { key, value, is_dictionary: true });
            } else {
                return Err(cursor.expected("a string or braces", "as a frontend attribute"));
            }
            Ok(())
        })?;
        Ok(attributes)
    })
}
