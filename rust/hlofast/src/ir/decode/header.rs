//! Values of module header attributes.

use super::AttributeValue;
use super::other::{
    Alias, OriginalValue, ShapeIndex, alias_target, decode_aliases, original_array,
};
use super::scan::{Trailing, key, list, string, whole, word};
use super::{decode_as, shape_text};
use crate::error::Result;
use crate::ir::attribute::{Grammar, HEADER, HeaderGrammar};
use crate::ir::{ShapeId, ShapeInterner};
use crate::text::Cursor;
use std::borrow::Cow;

/// The typed value of a header attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum HeaderValue<'a> {
    /// A value of a form that instructions have too: booleans, integers, frontend attributes,
    /// raw text of unknown attributes.
    Plain(AttributeValue<'a>),
    /// `input_output_alias`: results that share memory with parameters.
    Aliases(Vec<Alias>),
    /// `buffer_donor`: parameters whose memory may be reused.
    BufferDonors(Vec<BufferDonor>),
    /// `entry_computation_layout`.
    EntryLayout(EntryLayout<'a>),
    /// `origin_recovery_table`.
    OriginRecovery(Vec<OriginRecovery<'a>>),
    /// `debug_attributes`.
    DebugAttributes(Vec<DebugAttribute<'a>>),
}

/// A parameter, or a part of one, whose memory may be reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferDonor {
    /// Parameter number.
    pub parameter: i64,
    /// Path into the parameter.
    pub index: ShapeIndex,
}

/// Shapes with layouts of the entry computation's parameters and result, as texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryLayout<'a> {
    /// The shape of each parameter.
    pub parameters: Vec<&'a [u8]>,
    /// The shape of the result.
    pub result: &'a [u8],
}

/// How to compute an original value that optimisation removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginRecovery<'a> {
    /// The value that was removed.
    pub removed: Option<OriginalValue<'a>>,
    /// The value that takes its place.
    pub replacing: Option<OriginalValue<'a>>,
    /// The text of the module that computes the removed value from the replacing value.
    pub module: Option<Cow<'a, [u8]>>,
}

/// Debug settings of one original value: raw texts of the records in braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugAttribute<'a> {
    /// The original value.
    pub value: Option<OriginalValue<'a>>,
    /// `key=value` pairs of each record.
    pub records: Vec<Vec<(&'a [u8], &'a [u8])>>,
}

/// The typed value of header attribute `key`. Unknown attributes are raw.
pub fn decode_header<'a>(key: &[u8], value: &'a [u8]) -> Result<HeaderValue<'a>> {
    use AttributeValue as V;
    let Some((_, grammar, _)) = HEADER.iter().find(|(known, ..)| known.as_bytes() == key) else {
        return Ok(HeaderValue::Plain(V::Raw(value)));
    };
    Ok(match grammar {
        HeaderGrammar::Boolean => HeaderValue::Plain(decode_as(Grammar::Boolean, value)?),
        HeaderGrammar::Integer => HeaderValue::Plain(decode_as(Grammar::Integer, value)?),
        HeaderGrammar::Propagation => HeaderValue::Plain(decode_propagation(value)?),
        HeaderGrammar::Frontend => HeaderValue::Plain(decode_as(Grammar::Frontend, value)?),
        HeaderGrammar::Aliases => HeaderValue::Aliases(decode_aliases(value)?),
        HeaderGrammar::Donors => HeaderValue::BufferDonors(decode_buffer_donors(value)?),
        HeaderGrammar::EntryLayout => HeaderValue::EntryLayout(decode_entry_layout(value)?),
        HeaderGrammar::Recovery => HeaderValue::OriginRecovery(decode_origin_recovery(value)?),
        HeaderGrammar::Debug => HeaderValue::DebugAttributes(decode_debug_attributes(value)?),
    })
}

/// One boolean without braces, or a list.
fn decode_propagation(value: &[u8]) -> Result<AttributeValue<'_>> {
    if value.trim_ascii_start().first() == Some(&b'{') {
        return decode_as(Grammar::Booleans, value);
    }
    decode_as(Grammar::Boolean, value)
}

fn decode_buffer_donors(value: &[u8]) -> Result<Vec<BufferDonor>> {
    let mut donors = Vec::new();
    whole(value, |cursor| {
        list(cursor, (b'{', b'}'), Trailing::Comma, |cursor| {
            let (parameter, index, _) = alias_target(cursor)?;
            donors.push(BufferDonor { parameter, index });
            Ok(())
        })
    })?;
    Ok(donors)
}

fn decode_entry_layout(value: &[u8]) -> Result<EntryLayout<'_>> {
    whole(value, |cursor| {
        let mut parameters = Vec::new();
        cursor.expect(b'{', "at the start of the entry layout")?;
        list(cursor, (b'(', b')'), Trailing::Comma, |cursor| {
            parameters.push(shape_text(cursor)?);
            Ok(())
        })?;
        cursor.skip_space()?;
        if !cursor.eat_bytes(b"->") {
            return Err(cursor.expected("->", "after the parameters"));
        }
        let result = shape_text(cursor)?;
        cursor.expect(b'}', "at the end of the entry layout")?;
        Ok(EntryLayout { parameters, result })
    })
}

impl EntryLayout<'_> {
    /// Interns the shapes with `parse`, the reader of shapes: parameters, then the result. Spans
    /// of errors are relative to the text of the shape that cannot be read.
    pub fn intern(
        &self,
        interner: &mut ShapeInterner,
        mut parse: impl FnMut(&mut Cursor<'_>, &mut ShapeInterner) -> Result<ShapeId>,
    ) -> Result<(Vec<ShapeId>, ShapeId)> {
        let mut shape_of = |text: &[u8]| parse(&mut Cursor::new(text), interner);
        let mut parameters = Vec::with_capacity(self.parameters.len());
        for text in &self.parameters {
            parameters.push(shape_of(text)?);
        }
        Ok((parameters, shape_of(self.result)?))
    }
}

fn decode_origin_recovery(value: &[u8]) -> Result<Vec<OriginRecovery<'_>>> {
    whole(value, |cursor| {
        let mut entries = Vec::new();
        cursor.expect(b'{', "at the start of the table")?;
        while !cursor.eat(b'}')? {
            let removed = original_array(cursor)?;
            cursor.expect(b':', "after the removed value")?;
            let replacing = original_array(cursor)?;
            let module = if cursor.eat(b',')? { Some(string(cursor)?) } else { None };
            entries.push(OriginRecovery { removed, replacing, module });
        }
        Ok(entries)
    })
}

fn decode_debug_attributes(value: &[u8]) -> Result<Vec<DebugAttribute<'_>>> {
    let mut attributes = Vec::new();
    whole(value, |cursor| {
        list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
            let value = original_array(cursor)?;
            cursor.expect(b':', "after the original value")?;
            let mut records = Vec::new();
            cursor.skip_space()?;
            if cursor.peek() == b'(' {
                list(cursor, (b'(', b')'), Trailing::Nothing, |cursor| {
                    records.push(debug_record(cursor)?);
                    Ok(())
                })?;
            } else {
                records.push(debug_record(cursor)?);
            }
            attributes.push(DebugAttribute { value, records });
            Ok(())
        })
    })?;
    Ok(attributes)
}

fn debug_record<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<(&'a [u8], &'a [u8])>> {
    let mut fields = Vec::new();
    list(cursor, (b'{', b'}'), Trailing::Nothing, |cursor| {
        let key = key(cursor)?;
        cursor.skip_space()?;
        let start = cursor.position();
        if cursor.integer()?.is_none() {
            word(cursor, "a word or an integer")?;
        }
        fields.push((key, cursor.since(start)));
        Ok(())
    })?;
    Ok(fields)
}

/// The first alias that repeats the result index of an earlier alias; XLA uses the earlier alias.
pub fn first_duplicate_alias(aliases: &[Alias]) -> Option<usize> {
    let mut seen = std::collections::HashSet::new();
    aliases.iter().position(|alias| !seen.insert(&alias.output_index))
}
