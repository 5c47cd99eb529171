//! What libtpu wrote about its algorithm for a collective: `collective_algorithm_config` of the
//! backend_config.
//!
//! Its debug text names the sides of the torus in the order of the phases (`cores:{16 16}`) and
//! the number of colours: parts of the array that go round in different orders at the same time.

use crate::ir::{Module, Row};

/// libtpu's algorithm for one collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strategy {
    /// Devices along each side; empty if not told.
    pub sides: Vec<u64>,
    /// Links, one way each, that a device uses at the same time; None if not told.
    pub lanes: Option<u64>,
    /// Whether all devices of the group form one ring.
    pub is_ring: bool,
    /// The sides of the whole slice, if told.
    pub slice: Vec<u64>,
}

/// Limit on the text searched after the key.
const MOST_TEXT: usize = 4096;

/// The algorithm in the backend_config of `row`; None if there is none.
pub fn strategy(module: &Module, row: Row) -> Option<Strategy> {
    let config = module.attribute_bytes(row, "backend_config")?;
    let at = memchr::memmem::find(config, b"collective_algorithm_config")?;
    let text = config.get(at..config.len().min(at + MOST_TEXT))?;
    let after = |key: &[u8]| {
        let at = memchr::memmem::find(text, key)? + key.len();
        text.get(at..)
    };
    let number = |key: &[u8]| {
        let rest = after(key)?;
        let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
        std::str::from_utf8(rest.get(..end)?).ok()?.parse::<u64>().ok()
    };
    let numbers = |key: &[u8], ends: &[u8]| -> Vec<u64> {
        let Some(rest) = after(key) else { return Vec::new() };
        let end = rest.iter().position(|byte| ends.contains(byte)).unwrap_or(0);
        let list = rest.get(..end).unwrap_or_default();
        let words = list.split(|byte| b" ,".contains(byte)).filter(|word| !word.is_empty());
        let read = |word: &[u8]| std::str::from_utf8(word).ok()?.parse().ok();
        words.map(read).collect::<Option<_>>().unwrap_or_default()
    };
    let sides = numbers(b"cores:{", b"}");
    // A strategy of pairs of arms goes both ways, one of single rings one way per colour.
    let ways = if after(b"UniDirection").is_some() { 1 } else { 2 };
    let slice = match after(b"active_dims:111").is_some() {
        true => numbers(b"dim_sizes:", b" }"),
        false => Vec::new(),
    };
    let is_gather_ring = after(b"emitter").is_some_and(|rest| {
        let word = rest.get(..rest.len().min(16)).unwrap_or_default();
        memchr::memmem::find(word, b"1DAllGather").is_some()
    });
    Some(Strategy {
        lanes: number(b"colors:")
            .filter(|_| sides.len() > 1)
            .map(|colors| colors.saturating_mul(ways)),
        is_ring: is_gather_ring || sides.len() == 1,
        sides,
        slice,
    })
}
