//! Checks that the operands of a copy still exist when the copy runs.
//!
//! In a scheduled module, values share a buffer because nobody reads the earlier value after the
//! later value is computed. A late copy could be such a reader.

use super::RewriteError;
use super::asynchronous::{async_gather, reads};
use crate::ir::{Module, Row};
use crate::memory::{Memory, Options, Rule, Sizes, Space, memory};
use std::collections::HashMap;

/// The steps at which the values in each buffer are computed.
pub(super) struct Buffers {
    memory: Memory,
    /// By value (instruction and part): its buffer and first step.
    made: HashMap<(Row, u32), (u32, u32)>,
    /// By buffer: first step and instruction of each value in it, ascending.
    turns: HashMap<u32, Vec<(u32, Row)>>,
}

impl Buffers {
    pub fn new(module: &Module) -> Option<Self> {
        let options = Options {
            rule: Rule::Values,
            sizes: Sizes::Logical,
            space: Space::All,
            ..Options::default()
        };
        let memory = memory(module, &options).ok()?;
        let mut made = HashMap::new();
        let mut turns: HashMap<u32, Vec<(u32, Row)>> = HashMap::new();
        for value in memory.all_values(module) {
            made.insert((value.row, value.part), (value.buffer, value.first_step));
            turns.entry(value.buffer).or_default().push((value.first_step, value.row));
        }
        turns.values_mut().for_each(|turns| turns.sort_unstable());
        Some(Self { memory, made, turns })
    }

    /// The buffer and first step of every value that `row` holds.
    fn held(&self, row: Row) -> impl Iterator<Item = (u32, u32)> + '_ {
        let made = (0..).map_while(move |part| self.memory.maker_of(row, part));
        made.filter_map(|maker| self.made.get(&maker).copied())
    }

    /// The instruction that overwrites a value of `row` before `user` runs.
    pub fn overwriter(&self, row: Row, user: Row) -> Option<Row> {
        let until = self.memory.step_of(user)?;
        self.held(row).find_map(|(buffer, first)| {
            let turns = self.turns.get(&buffer)?;
            let next = turns.get(turns.partition_point(|(step, _)| *step <= first))?;
            (next.0 < until).then_some(next.1)
        })
    }

    /// Whether `row` computes a value in the memory of `operand`.
    fn is_in_place(&self, row: Row, operand: Row) -> bool {
        let made = self.memory.makes(row).filter_map(|part| self.made.get(&(row, part)));
        let buffers: Vec<u32> = made.map(|(buffer, _)| *buffer).collect();
        self.held(operand).any(|(buffer, _)| buffers.contains(&buffer))
    }

    /// Checks copies placed before `user`: their operands must still hold their values there, and no
    /// copy may write into its operand.
    pub fn check(&self, module: &Module, copied: &[Row], user: Row) -> Result<(), RewriteError> {
        for row in copied {
            for operand in reads(module, *row, |row| copied.contains(&row)) {
                if copied.contains(&operand) {
                    continue;
                }
                if async_gather(module, *row).is_none() && self.is_in_place(*row, operand) {
                    let reason = "it overwrites its operand, and a copy must not";
                    return Err(RewriteError::new(module, *row, reason));
                }
                if let Some(by) = self.overwriter(operand, user) {
                    return Err(RewriteError::overwritten(module, operand, by));
                }
            }
        }
        Ok(())
    }
}
