//! Differences between the headers of two modules.

use super::meaning::Meaning;
use super::{Change, Kind, Options, cut};
use crate::ir::decode::{Alias, HeaderValue, ShapeIndex, decode_header};
use crate::ir::{Module, Row};
use crate::print::{Seen, Spacing, is_metadata, shape_to_text_within, write_value};
use std::collections::BTreeMap;

/// One change per attribute; lists of aliases and donors have one change per entry.
pub(super) fn changes(a: &Module, b: &Module, options: &Options) -> Vec<Change> {
    let (of_a, of_b) = (attributes(a), attributes(b));
    let mut changes = Vec::new();
    let mut keys: Vec<&[u8]> = of_a.keys().chain(of_b.keys()).copied().collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let (x, y) = (of_a.get(key).copied(), of_b.get(key).copied());
        match key {
            b"is_scheduled" if !options.schedule => {}
            b"entry_computation_layout" => {
                if options.layouts {
                    entry_layout(a, b, (x, y), &mut changes);
                }
            }
            b"input_output_alias" | b"buffer_donor" => match (entries(key, x), entries(key, y)) {
                (Some(x), Some(y)) => compare_entries(key, &x, &y, &mut changes),
                _ => compare_texts(key, x, y, &mut changes),
            },
            _ => compare_texts(key, x, y, &mut changes),
        }
    }
    changes
}

type Attributes<'a> = BTreeMap<&'a [u8], &'a [u8]>;

fn attributes(module: &Module) -> Attributes<'_> {
    let mut attributes = Attributes::new();
    let mut seen = Seen::default();
    for (key, value) in &module.header().attributes {
        let (key, value) = (module.bytes(*key), module.bytes(*value));
        if !is_metadata(key) && seen.is_new(key) {
            attributes.insert(key, value);
        }
    }
    attributes
}

fn change(key: &[u8], before: &[u8], after: &[u8]) -> Change {
    Change {
        kind: Kind::Changed,
        aspect: String::from_utf8_lossy(key).into_owned(),
        before: None,
        after: None,
        before_text: cut(before),
        after_text: cut(after),
        is_consequence: false,
    }
}

/// XLA's default if the header lacks the attribute.
fn default_of(key: &[u8]) -> &'static [u8] {
    match key {
        b"num_partitions" | b"replica_count" => b"1",
        b"is_scheduled" | b"alias_passthrough_params" => b"false",
        _ => b"",
    }
}

fn compare_texts(key: &[u8], a: Option<&[u8]>, b: Option<&[u8]>, changes: &mut Vec<Change>) {
    let text = |value: Option<&[u8]>| {
        let mut out = Vec::new();
        write_value(&mut out, key, value.unwrap_or(default_of(key)), Spacing::Tight);
        out
    };
    let (x, y) = (text(a), text(b));
    if x != y && !Meaning::default().is_same(key, &x, &y) {
        changes.push(change(key, &x, &y));
    }
}

/// The entries of a list by their subject, each as text.
fn entries(key: &[u8], value: Option<&[u8]>) -> Option<BTreeMap<ShapeIndex, String>> {
    let Some(value) = value else { return Some(BTreeMap::new()) };
    let braces = |index: &[i64]| {
        let numbers: Vec<String> = index.iter().map(i64::to_string).collect();
        format!("{{{}}}", numbers.join(","))
    };
    let mut entries = BTreeMap::new();
    match decode_header(key, value).ok()? {
        HeaderValue::Aliases(aliases) => {
            for Alias { output_index, number, index, must_alias } in aliases {
                let kind = if must_alias { "must" } else { "may" };
                let text = format!(
                    "{}: ({number}, {}, {kind}-alias)",
                    braces(&output_index),
                    braces(&index)
                );
                entries.entry(output_index).or_insert(text);
            }
        }
        HeaderValue::BufferDonors(donors) => {
            for donor in donors {
                let text = format!("({}, {})", donor.parameter, braces(&donor.index));
                entries.insert(std::iter::once(donor.parameter).chain(donor.index).collect(), text);
            }
        }
        _ => return None,
    }
    Some(entries)
}

fn compare_entries(
    key: &[u8],
    a: &BTreeMap<ShapeIndex, String>,
    b: &BTreeMap<ShapeIndex, String>,
    changes: &mut Vec<Change>,
) {
    let text = |entry: Option<&String>| entry.map(String::as_bytes).unwrap_or_default().to_vec();
    for (place, x) in a {
        let y = b.get(place);
        if y != Some(x) {
            changes.push(change(key, x.as_bytes(), &text(y)));
        }
    }
    for (place, y) in b {
        if !a.contains_key(place) {
            changes.push(change(key, b"", y.as_bytes()));
        }
    }
}

/// The layouts of parameters and result at the program's interface, if they differ from the layouts
/// of the instructions.
fn entry_layout(
    a: &Module,
    b: &Module,
    (x, y): (Option<&[u8]>, Option<&[u8]>),
    changes: &mut Vec<Change>,
) {
    let (x, y) = (border(a, x), border(b, y));
    // Without the attribute, the layouts of the instructions apply; `compare` compares them.
    let (Some(x), Some(y)) = (x, y) else { return };
    if x.len() != y.len() {
        return;
    }
    let last = x.len().saturating_sub(1);
    for (index, ((before, is_plain), (after, is_plain_too))) in x.iter().zip(&y).enumerate() {
        if before == after || *is_plain && *is_plain_too {
            continue;
        }
        let name = if index == last { "result".into() } else { format!("parameter {index}") };
        let text = |shape: &[u8]| [name.as_bytes(), b": ", shape].concat();
        changes.push(change(b"entry_computation_layout", &text(before), &text(after)));
    }
}

/// The shapes of parameters and result in the header, and whether they match the instructions. None
/// without the attribute or if it cannot be read.
fn border(module: &Module, value: Option<&[u8]>) -> Option<Vec<(Vec<u8>, bool)>> {
    let HeaderValue::EntryLayout(layout) =
        decode_header(b"entry_computation_layout", value?).ok()?
    else {
        return None;
    };
    let entry = module.entry();
    let mut rows = module.parameters(entry);
    rows.push(Row(module.computation(entry).root));
    let texts = layout.parameters.iter().copied().chain([layout.result]);
    let tight = |text: &[u8]| {
        let mut out = Vec::new();
        write_value(&mut out, b"", text, Spacing::Tight);
        out
    };
    let is_own = |index: usize, text: &[u8]| {
        rows.get(index).is_some_and(|row| {
            let shape = module.shape(*row);
            let own = shape_to_text_within(module.shapes(), shape, text.len() * 2 + 64);
            tight(&own) == text
        })
    };
    let texts = texts.map(tight).enumerate();
    Some(
        texts
            .map(|(index, text)| {
                let own = is_own(index, &text);
                (text, own)
            })
            .collect(),
    )
}
