//! Header attributes in the form in which headers are compared: attributes with their default value
//! are left out, and the entry's layout is written even if the text omits it.

use super::shape::{write_default_layout, write_shape_within};
use super::value::{Spacing, write_tokens, write_value, write_without_layouts};
use super::{Seen, is_metadata};
use crate::ir::Module;
use crate::text::Cursor;

/// Header attributes with their default values, in tight form: the initial values of XLA's
/// `HloModuleConfig`.
const IMPLIED: [(&[u8], &[u8]); 10] = [
    (b"alias_passthrough_params", b"false"),
    (b"allow_spmd_sharding_propagation_to_output", b"{false}"),
    (b"allow_spmd_sharding_propagation_to_parameters", b"{false}"),
    (b"buffer_donor", b"{}"),
    (b"frontend_attributes", b"{}"),
    (b"input_output_alias", b"{}"),
    (b"is_scheduled", b"false"),
    (b"num_partitions", b"1"),
    (b"replica_count", b"1"),
    (ENTRY_LAYOUT, b""),
];

const ENTRY_LAYOUT: &[u8] = b"entry_computation_layout";

/// Limit on the length of an entry layout that the text omits. Inferred shapes share parts, so
/// their text could exceed any memory. Twenty thousand parameters fit. The limit does not depend on
/// the text's length, which differs between spellings of one program.
const LONGEST: usize = 1 << 20;

/// Header attributes by key. Without `layouts` the entry's layout has shapes only.
pub(super) fn header_attributes(
    module: &Module,
    layouts: bool,
    metadata: bool,
) -> Vec<(&[u8], Vec<u8>)> {
    let mut attributes: Vec<(&[u8], Vec<u8>)> = Vec::new();
    let mut seen = Seen::default();
    for (key, value) in &module.header().attributes {
        let (key, value) = (module.bytes(*key), module.bytes(*value));
        if !metadata && is_metadata(key) || !seen.is_new(key) {
            continue;
        }
        let mut text = Vec::with_capacity(value.len());
        match key == ENTRY_LAYOUT {
            true => write_shapes(&mut text, value, layouts),
            false => write_value(&mut text, key, value, Spacing::Tight),
        }
        if !IMPLIED.contains(&(key, &text[..])) {
            attributes.push((key, text));
        }
    }
    if seen.is_new(ENTRY_LAYOUT)
        && let Some(text) = entry_layout(module)
    {
        let mut tight = Vec::with_capacity(text.len());
        write_shapes(&mut tight, &text, layouts);
        attributes.push((ENTRY_LAYOUT, tight));
    }
    attributes.sort_unstable();
    attributes
}

/// The entry layout that XLA assumes if the text has none: the shapes of the entry's parameters and
/// result. None if its text is longer than `LONGEST`.
fn entry_layout(module: &Module) -> Option<Vec<u8>> {
    let mut out = b"{(".to_vec();
    let parameters = module.parameters(module.entry());
    for (index, row) in parameters.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_shape_within(&mut out, module.shapes(), module.shape(row), true, false, LONGEST);
    }
    out.extend_from_slice(b")->");
    let root = crate::ir::Row(module.computation(module.entry()).root);
    write_shape_within(&mut out, module.shapes(), module.shape(root), true, false, LONGEST);
    out.push(b'}');
    (out.len() <= LONGEST).then_some(out)
}

/// Appends `text` with the default layout after each array shape that lacks a layout, or with all
/// layouts removed.
fn write_shapes(out: &mut Vec<u8>, text: &[u8], layouts: bool) {
    if !layouts {
        return write_without_layouts(out, text);
    }
    let mut tight = Vec::with_capacity(text.len());
    write_tokens(&mut tight, text, Spacing::Tight, false);
    let mut cursor = Cursor::new(&tight);
    while !cursor.is_at_end() {
        let at = cursor.position();
        let rest = cursor.rest();
        let until = memchr::memchr(b'[', rest).unwrap_or(rest.len());
        if until > 0 || cursor.balanced().is_err() {
            cursor.set_position(at + until.max(1));
            out.extend_from_slice(cursor.since(at));
            continue;
        }
        let dimensions = cursor.since(at);
        out.extend_from_slice(dimensions);
        if dimensions.len() > 2 && cursor.peek() != b'{' {
            let commas = dimensions.iter().filter(|byte| **byte == b',').count();
            write_default_layout(out, commas + 1);
        }
    }
}
