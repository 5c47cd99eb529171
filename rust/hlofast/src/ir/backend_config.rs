//! `backend_config` as JSON, in either of its spellings.

use super::decode::unescape;
use super::module::{Module, Row};
use serde_json::Value;
use std::borrow::Cow;

impl Module {
    /// The content of attribute `backend_config` of `row`: the dictionary as written, or the
    /// string without quotes and escapes. None if absent or not a valid string.
    pub fn backend_config(&self, row: Row) -> Option<Cow<'_, [u8]>> {
        config_content(self.attribute_bytes(row, "backend_config")?)
    }

    /// `backend_config` of `row`, read as JSON; None if it is absent or not JSON.
    pub fn backend_config_json(&self, row: Row) -> Option<Value> {
        let content = self.backend_config(row)?;
        // Other formats, some megabytes long, are not parsed.
        if content.trim_ascii_start().first() != Some(&b'{') {
            return None;
        }
        serde_json::from_slice(&content).ok()
    }
}

fn config_content(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let value = value.trim_ascii();
    match (value.first()?, value.last()?) {
        (b'{', _) => Some(Cow::Borrowed(value)),
        (b'"', b'"') | (b'\'', b'\'') if value.len() >= 2 => {
            unescape(value.get(1..value.len() - 1)?).ok()
        }
        _ => None,
    }
}

/// An integer that JSON gives as a number or as a string, as XLA writes 64-bit integers.
pub fn json_integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}
