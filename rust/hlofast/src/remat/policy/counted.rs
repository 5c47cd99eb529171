//! What is counted of a scheduled module besides its live values.
//!
//! A row may write over a value that it reads, also one whose dimensions have another order, as the gradient of the
//! scores over that of the weights of attention. XLA's account knows that; live ranges have both values at the step.

use super::LEAST;
use super::chip::Chip;
use crate::ir::Row;
use crate::ir::intern::BuildMix;
use crate::memory::{LiveValue, Memory, Scheduler};
use hashbrown::HashMap;

/// What is known of a scheduled module besides its live values.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// The peak that is compared with the device's memory. It may exceed that of live values by pointer tables and
    /// constants, or be lower where rows write over what they read.
    pub peak: i64,
    /// The rows that write over values that they read, with the bytes of these values.
    pub overwriting: &'a [(Row, i64)],
    /// Of layers without a loop: whether each function is taken by itself if the text does not tell whether they are
    /// checkpointed together.
    pub is_apart: bool,
    /// The chip, if it is known and matters.
    pub chip: Option<Chip>,
    /// In which order the rows run.
    pub order: OrderOf,
}

/// In which order an account has the rows of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderOf {
    /// That of the text.
    Text,
    /// That of a scheduler, as the compiled program has it.
    Compiled(Scheduler),
    /// That of a scheduler, as XLA counts it to choose one, before later passes.
    Scheduled(Scheduler),
}

impl Counted<'_> {
    /// The steps of an order at which `values` count twice what is written over what a row reads, with the bytes.
    pub fn twice(&self, memory: &Memory, values: &[LiveValue]) -> Vec<(u32, i64)> {
        let large = self.overwriting.iter().filter(|(_, bytes)| *bytes >= LEAST);
        let steps = large.filter_map(|(row, bytes)| Some((memory.step_of(*row)?, *bytes)));
        let mut twice: Vec<(u32, i64)> = steps.collect();
        twice.sort_unstable();
        let ends = values.iter().map(|own| (own.last_step, own.bytes));
        let mut left: HashMap<(u32, i64), u32, BuildMix> = HashMap::default();
        for own in ends.filter(|own| twice.binary_search(own).is_ok()) {
            *left.entry(own).or_default() += 1;
        }
        // As many as there are values that end.
        twice.retain(|own| match left.get_mut(own) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        });
        twice
    }
}

/// The bytes at each step without those that are counted `twice`.
pub fn counted_once(memory: &Memory, twice: &[(u32, i64)]) -> Vec<i64> {
    let mut bytes = memory.timeline.clone();
    for (step, size) in twice {
        if let Some(own) = bytes.get_mut(*step as usize) {
            *own = own.saturating_sub(*size);
        }
    }
    bytes
}
