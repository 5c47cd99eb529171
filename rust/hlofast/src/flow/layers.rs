//! Layers that a program repeats without a loop: layer numbers in scopes, and scopes that differ
//! only in these numbers.

use super::scope::ScopeTree;
use crate::ir::Module;
use std::borrow::Cow;
use std::collections::HashMap;

/// The character that stands for a layer number.
const ANY: u8 = b'*';

/// Endings of the name in front of a layer number.
const LAYERS: [&[u8]; 5] = [b"layer", b"layers", b"block", b"blocks", b"blk"];

/// `component` of a scope with `*` for the numbers of layers: `layer_3`, `layers[3]`, `block12`,
/// `h0_attn`, and `3` by itself. Numbers after other names distinguish different parts of one layer
/// (`Dense_0`, `Dense_1`) and stay.
pub fn without_layer_numbers(component: &[u8]) -> Cow<'_, [u8]> {
    if !component.iter().any(u8::is_ascii_digit) {
        return Cow::Borrowed(component);
    }
    let mut text: Vec<u8> = Vec::new();
    let (mut copied, mut at) = (0, 0);
    while at < component.len() {
        let digits = component[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            at += 1;
            continue;
        }
        let is_whole = at == 0 && digits == component.len();
        if is_whole || numbers_layers(&component[..at]) {
            text.extend_from_slice(&component[copied..at]);
            text.push(ANY);
            copied = at + digits;
        }
        at += digits;
    }
    if copied == 0 {
        return Cow::Borrowed(component);
    }
    text.extend_from_slice(&component[copied..]);
    Cow::Owned(text)
}

/// `component` of a scope with `*` for all numbers that end a word, also those of parts of one layer: `attn_3`,
/// `mlp12`, `blocks[3]`, but not `conv2d`.
pub fn without_numbers(component: &[u8]) -> Cow<'_, [u8]> {
    let mut text: Vec<u8> = Vec::with_capacity(component.len());
    let mut at = 0;
    while at < component.len() {
        let digits = component[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let is_end = component.get(at + digits).is_none_or(|next| !next.is_ascii_alphanumeric());
        match digits {
            0 => text.push(component[at]),
            _ if is_end => text.push(ANY),
            _ => text.extend_from_slice(&component[at..at + digits]),
        }
        at += digits.max(1);
    }
    match text == component {
        true => Cow::Borrowed(component),
        false => Cow::Owned(text),
    }
}

/// Whether a number after `before` is a layer number.
fn numbers_layers(before: &[u8]) -> bool {
    // Characters between name and number: `layer_3`, `layers.3`, `['layers'][3]`,
    // `[\'layers\'][3]`.
    let is_between = |byte: &u8| b"_-.[]'\"\\".contains(byte);
    let end = before.len() - before.iter().rev().take_while(|byte| is_between(byte)).count();
    let is_letter = |byte: &u8| byte.is_ascii_alphabetic();
    let length = before[..end].iter().rev().take_while(|byte| is_letter(byte)).count();
    let word = before[end - length..end].to_ascii_lowercase();
    let is_start = end == length || !before[end - length - 1].is_ascii_alphanumeric();
    LAYERS.iter().any(|name| word.ends_with(name)) || (word == b"h" && is_start)
}

impl ScopeTree {
    /// For each scope, the first scope whose path differs only in layer numbers.
    pub fn merged_layers(&self, module: &Module) -> Vec<u32> {
        self.merged(module, without_layer_numbers)
    }

    /// For each scope, the first scope whose path differs only in numbers at the ends of words: `attn_3`.
    pub fn merged_numbers(&self, module: &Module) -> Vec<u32> {
        self.merged(module, without_numbers)
    }

    /// For each scope, the first scope whose components `without` makes the same.
    pub fn merged(&self, module: &Module, without: impl Fn(&[u8]) -> Cow<'_, [u8]>) -> Vec<u32> {
        let mut first: HashMap<(u32, Cow<'_, [u8]>), u32> = HashMap::new();
        let mut merged: Vec<u32> = Vec::with_capacity(self.len());
        for scope in 0..self.len() as u32 {
            if scope == Self::ROOT {
                merged.push(scope);
                continue;
            }
            // Parents precede their children.
            let parent = merged[self.parent(scope) as usize];
            let name = without(self.component(module, scope));
            merged.push(*first.entry((parent, name)).or_insert(scope));
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_the_ends_of_words_are_left_out() {
        for (component, expected) in [
            ("attn_3", "attn_*"),
            ("jvp(mlp12)", "jvp(mlp*)"),
            ("blocks[3]", "blocks[*]"),
            ("conv2d", "conv2d"),
            ("Dense_0", "Dense_*"),
            ("3", "*"),
            ("", ""),
        ] {
            let own = without_numbers(component.as_bytes());
            assert_eq!(String::from_utf8_lossy(&own), expected);
        }
    }

    #[test]
    fn only_the_numbers_of_layers_are_left_out() {
        for (component, expected) in [
            ("layer_0", "layer_*"),
            ("layers_47", "layers_*"),
            ("block12", "block*"),
            ("3", "*"),
            ("layers[3]", "layers[*]"),
            ("jvp(Decoder.layers_3)", "jvp(Decoder.layers_*)"),
            ("TransformerBlock_7", "TransformerBlock_*"),
            ("encoderblock_1", "encoderblock_*"),
            ("h3", "h*"),
            ("h0_ln_1", "h*_ln_1"),
            ("params['layers'][3]['kernel']", "params['layers'][*]['kernel']"),
            ("params[\\'layer_3\\'][\\'kernel\\']", "params[\\'layer_*\\'][\\'kernel\\']"),
            ("layer_1_block_2", "layer_*_block_*"),
            ("Dense_0", "Dense_0"),
            ("LayerNorm_1", "LayerNorm_1"),
            ("conv2d", "conv2d"),
            ("match3", "match3"),
            ("3d", "3d"),
            ("attention", "attention"),
            ("", ""),
        ] {
            let own = without_layer_numbers(component.as_bytes());
            assert_eq!(String::from_utf8_lossy(&own), expected);
        }
    }
}
