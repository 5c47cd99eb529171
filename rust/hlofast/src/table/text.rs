//! Tables as JSON lines and as CSV.

use super::columns::{Columns, Values};
use super::field::Field;
use std::io::Write;

/// Iterates over the values of a column.
struct Cells<'a> {
    values: Cursor<'a>,
    /// The number that represents an unknown value.
    unknown: Option<i64>,
    /// Whether an empty text represents an absent value.
    is_nullable: bool,
}

enum Cursor<'a> {
    Rows(std::slice::Iter<'a, u32>),
    Numbers(std::slice::Iter<'a, i64>),
    Reals(std::slice::Iter<'a, f64>),
    Flags(std::slice::Iter<'a, bool>),
    Texts(Box<dyn Iterator<Item = &'a [u8]> + 'a>),
}

/// One value; None if unknown or absent.
enum Cell<'a> {
    Integer(i64),
    Real(f64),
    Flag(bool),
    Text(&'a [u8]),
}

impl<'a> Cells<'a> {
    fn of(field: &Field, values: &'a Values) -> Self {
        let cursor = match values {
            Values::Rows(values) => Cursor::Rows(values.iter()),
            Values::Numbers(values) => Cursor::Numbers(values.iter()),
            Values::Reals(values) => Cursor::Reals(values.iter()),
            Values::Flags(values) => Cursor::Flags(values.iter()),
            texts => Cursor::Texts(texts.texts().unwrap_or_else(|| Box::new(std::iter::empty()))),
        };
        Self { values: cursor, unknown: field.unknown(), is_nullable: field.is_nullable }
    }

    fn next(&mut self) -> Option<Cell<'a>> {
        match &mut self.values {
            Cursor::Rows(values) => values.next().map(|value| Cell::Integer(i64::from(*value))),
            Cursor::Numbers(values) => {
                let known = |value: &&i64| Some(**value) != self.unknown;
                values.next().filter(known).map(|value| Cell::Integer(*value))
            }
            Cursor::Reals(values) => {
                values.next().filter(|value| value.is_finite()).map(|value| Cell::Real(*value))
            }
            Cursor::Flags(values) => values.next().map(|value| Cell::Flag(*value)),
            Cursor::Texts(values) => {
                let known = |text: &&[u8]| !(self.is_nullable && text.is_empty());
                values.next().filter(known).map(Cell::Text)
            }
        }
    }
}

/// JSON lines: one object per row. Unknown and absent values are null. With `label`, every object
/// starts with a key `table` of that value.
pub fn json_lines(columns: &Columns, label: Option<&str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(columns.len() * 128);
    let mut cells: Vec<(Vec<u8>, Cells<'_>)> = Vec::new();
    for (number, (field, values)) in columns.iter().enumerate() {
        let open = if number == 0 && label.is_none() { "" } else { ", " };
        let key = format!("{open}\"{}\": ", field.name).into_bytes();
        cells.push((key, Cells::of(field, values)));
    }
    for _ in 0..columns.len() {
        out.push(b'{');
        if let Some(label) = label {
            out.extend_from_slice(format!("\"table\": \"{label}\"").as_bytes());
        }
        for (key, cells) in &mut cells {
            out.extend_from_slice(key);
            match cells.next() {
                None => out.extend_from_slice(b"null"),
                Some(Cell::Text(text)) => json_text(text, &mut out),
                Some(cell) => plain(&cell, &mut out),
            }
        }
        out.extend_from_slice(b"}\n");
    }
    out
}

/// One line per row, comma-separated as in RFC 4180; unknown and absent values are empty.
pub fn csv(columns: &Columns, header: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(columns.len() * 96);
    if header {
        let names: Vec<&str> = columns.iter().map(|(field, _)| &*field.name).collect();
        out.extend_from_slice(names.join(",").as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    let each = columns.iter().map(|(field, values)| Cells::of(field, values));
    let mut cells: Vec<Cells<'_>> = each.collect();
    for _ in 0..columns.len() {
        for (number, cells) in cells.iter_mut().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            match cells.next() {
                None => {}
                Some(Cell::Text(text)) => csv_text(text, &mut out),
                Some(cell) => plain(&cell, &mut out),
            }
        }
        out.extend_from_slice(b"\r\n");
    }
    out
}

fn plain(cell: &Cell<'_>, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = match cell {
        Cell::Integer(value) => write!(out, "{value}"),
        // The text always has a point or an exponent, so that readers infer a column of real
        // numbers.
        Cell::Real(value) => write!(out, "{value:?}"),
        Cell::Flag(value) => write!(out, "{value}"),
        Cell::Text(_) => Ok(()),
    };
}

/// Appends `text` as a JSON string; bytes that are not UTF-8 become replacement characters.
pub(crate) fn json_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let text = String::from_utf8_lossy(text);
    let mut rest = text.as_bytes();
    let special = |byte: &u8| matches!(byte, 0..=31 | b'"' | b'\\' | 127);
    while let Some(at) = rest.iter().position(special) {
        let (before, after) = rest.split_at(at);
        out.extend_from_slice(before);
        match after.first() {
            Some(b'"') => out.extend_from_slice(b"\\\""),
            Some(b'\\') => out.extend_from_slice(b"\\\\"),
            Some(b'\n') => out.extend_from_slice(b"\\n"),
            Some(b'\t') => out.extend_from_slice(b"\\t"),
            Some(byte) => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            None => {}
        }
        rest = after.get(1..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

fn csv_text(text: &[u8], out: &mut Vec<u8>) {
    let text = String::from_utf8_lossy(text);
    if !text.contains(['"', ',', '\n', '\r']) {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(b'"');
    out.extend_from_slice(text.replace('"', "\"\"").as_bytes());
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Row;

    fn columns() -> Columns {
        let mut columns = Columns::default();
        columns.same(Field::path("path", ""), b"a \"b\"\\,\n", 2);
        columns.rows(Field::instruction("instruction", ""), [Row(0), Row(7)].into_iter());
        columns.numbers(Field::bytes("bytes", "").nullable(), [-1, 12].into_iter());
        columns.reals(Field::seconds("seconds", "").nullable(), [1.0, f64::NAN].into_iter());
        columns.flags(Field::flag("is_open", ""), [true, false].into_iter());
        columns.texts(Field::name("name", "").nullable(), ["", "x\u{1}é"].into_iter());
        columns
    }

    #[test]
    fn json_lines_are_json() {
        let text = String::from_utf8(json_lines(&columns(), Some("t"))).unwrap();
        let rows: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected = serde_json::json!([
            {"table": "t", "path": "a \"b\"\\,\n", "instruction": 0, "bytes": null, "seconds": 1.0,
             "is_open": true, "name": null},
            {"table": "t", "path": "a \"b\"\\,\n", "instruction": 7, "bytes": 12, "seconds": null,
             "is_open": false, "name": "x\u{1}é"},
        ]);
        assert_eq!(serde_json::Value::from(rows), expected);
    }

    #[test]
    fn csv_quotes_what_needs_it() {
        let text = String::from_utf8(csv(&columns(), true)).unwrap();
        let expected = "path,instruction,bytes,seconds,is_open,name\r\n\
            \"a \"\"b\"\"\\,\n\",0,,1.0,true,\r\n\"a \"\"b\"\"\\,\n\",7,12,,false,x\u{1}é\r\n";
        assert_eq!(text, expected);
        assert_eq!(csv(&Columns::default(), false), b"");
    }
}
