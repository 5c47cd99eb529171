//! Unused names and channels.

use crate::ir::{Attributes, ComputationId, Module, Row};
use std::collections::{HashMap, HashSet};

/// Gives out names and channels, each of them once.
pub(super) struct Fresh {
    names: HashSet<Vec<u8>>,
    /// By base name: the number of the next copy.
    next: HashMap<Vec<u8>, u32>,
    next_channel: Option<i64>,
}

impl Fresh {
    pub fn new(module: &Module) -> Self {
        let rows = module.rows().map(|row| module.instruction_name(row));
        let computations = 0..module.computations().len() as u32;
        let computations = computations.map(|id| module.computation_name(ComputationId(id)));
        let names = rows.chain(computations).map(<[u8]>::to_vec).collect();
        Self { names, next: HashMap::new(), next_channel: next_channel(module) }
    }

    /// The name of a copy of `name`, as XLA forms it: `x.remat`, then `x.remat2`.
    pub fn copy_of(&mut self, name: &[u8]) -> Vec<u8> {
        let base = without_remat(name).to_vec();
        loop {
            let number = self.next.entry(base.clone()).or_insert(1);
            let mut candidate = base.clone();
            candidate.extend_from_slice(b".remat");
            if *number > 1 {
                candidate.extend_from_slice(number.to_string().as_bytes());
            }
            *number = number.saturating_add(1);
            if self.names.insert(candidate.clone()) {
                return candidate;
            }
        }
    }

    /// `name`, with a number if it is taken.
    pub fn name(&mut self, name: &[u8]) -> Vec<u8> {
        let mut candidate = name.to_vec();
        while !self.names.insert(candidate.clone()) {
            let number = self.next.entry(name.to_vec()).or_insert(1);
            candidate = [name, b".", number.to_string().as_bytes()].concat();
            *number = number.saturating_add(1);
        }
        candidate
    }

    /// An unused channel; None if there is none left.
    pub fn channel(&mut self) -> Option<i64> {
        let channel = self.next_channel?;
        self.next_channel = channel.checked_add(1);
        Some(channel)
    }
}

/// One more than the largest channel in use, at least 1.
fn next_channel(module: &Module) -> Option<i64> {
    memchr::memmem::find(module.text(), b"channel_id").map_or(Some(1), |_| {
        let channels = module.rows().filter_map(|row| channel_of(module, row));
        channels.fold(0, i64::max).checked_add(1)
    })
}

/// The channel of `row`, or of the collective that it wraps in the same text.
pub(super) fn channel_of(module: &Module, row: Row) -> Option<i64> {
    let mut attributes = Attributes::of_text(module, module.tail(row));
    let attribute = attributes.find(|attribute| module.bytes(attribute.key) == b"channel_id")?;
    std::str::from_utf8(module.bytes(attribute.value)).ok()?.trim().parse().ok()
}

/// `name` without `.remat` and its number.
fn without_remat(name: &[u8]) -> &[u8] {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let stem = name.get(..name.len() - digits).unwrap_or(name);
    stem.strip_suffix(b".remat").filter(|base| !base.is_empty()).unwrap_or(name)
}
