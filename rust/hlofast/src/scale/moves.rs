//! Moves between HBM and fast memory that a change makes needless.
//!
//! The compiler keeps arrays in fast memory while they are used, and moves them there and back. An
//! array that has grown too large stays in HBM: then nothing is moved, and who read the copy reads
//! the array itself. A move is a `copy-start` with its `copy-done`, or several asynchronous slices
//! that a `ConcatBitcast` puts together.

use super::spread::Spread;
use crate::ir::{ComputationId, Flags, Module, Opcode, Row};
use std::collections::{HashMap, HashSet};

/// What a changed text does without.
#[derive(Debug, Default)]
pub(super) struct Needless {
    /// By the row that gives the moved array: the row with the array.
    sources: HashMap<Row, Row>,
    /// All rows that vanish.
    pub rows: HashSet<Row>,
    /// Computations that only rows that vanish call.
    pub computations: Vec<ComputationId>,
}

impl Needless {
    /// The moves after which an array is where it was. `place` is the text of the shape of the first
    /// array of a row, with its memory space: as compiled, and after the change.
    pub fn find(spread: &Spread<'_>, place: impl Fn(Row) -> Option<[Vec<u8>; 2]>) -> Self {
        let module = spread.module;
        let mut found = Self::default();
        let is_needless = |from: Row, to: Row| {
            let (Some([old_from, new_from]), Some([old_to, new_to])) = (place(from), place(to))
            else {
                return false;
            };
            old_from != old_to && new_from == new_to
        };
        for row in module.rows() {
            if module.flags(row) & Flags::ROOT != 0 {
                continue;
            }
            match module.opcode(row) {
                Opcode::CopyDone => {
                    let Some(start) = first_operand(module, row) else { continue };
                    let Some(from) = first_operand(module, start) else { continue };
                    let is_start = module.opcode(start) == Opcode::CopyStart;
                    if is_start && is_read_by(module, start, row) && is_needless(from, row) {
                        found.sources.insert(row, from);
                        found.rows.extend([start, row]);
                    }
                }
                Opcode::CustomCall => {
                    let Some(from) = spread.tiled_by(row) else { continue };
                    if is_needless(from, row)
                        && let Some((rows, calls)) = parts(module, row)
                    {
                        found.sources.insert(row, from);
                        found.rows.extend(rows);
                        found.computations.extend(calls);
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// The row that gives the array of `row`, if a move to `row` is needless.
    pub fn source(&self, row: Row) -> Option<Row> {
        let mut source = *self.sources.get(&row)?;
        // A source is an earlier row, so this ends.
        while let Some(next) = self.sources.get(&source) {
            source = *next;
        }
        Some(source)
    }
}

/// The rows of a move in parts, and the computations that only these call.
fn parts(module: &Module, whole: Row) -> Option<(Vec<Row>, Vec<ComputationId>)> {
    let (mut rows, mut calls) = (vec![whole], Vec::new());
    for part in module.operands(whole).iter().map(|part| Row(*part)) {
        if !is_read_by(module, part, whole) {
            return None;
        }
        rows.push(part);
        if module.opcode(part) == Opcode::AsyncDone {
            let start = first_operand(module, part)?;
            let id = module.calls(start).first()?.computation;
            let call = module.computation(id);
            let is_apart = !call.is_inline && !call.is_implicit && call.execution_thread.is_empty();
            let is_own = is_apart && module.callers(id).len() == 1;
            if module.opcode(start) != Opcode::AsyncStart
                || !is_own
                || !is_read_by(module, start, part)
            {
                return None;
            }
            rows.push(start);
            rows.extend(call.rows().map(Row));
            calls.push(id);
        }
    }
    Some((rows, calls))
}

fn first_operand(module: &Module, row: Row) -> Option<Row> {
    module.operands(row).first().map(|row| Row(*row))
}

/// Whether `reader` alone reads `row`.
fn is_read_by(module: &Module, row: Row, reader: Row) -> bool {
    let is_root = module.flags(row) & Flags::ROOT != 0;
    !is_root && module.users().get(row.0).iter().all(|user| *user == reader.0)
}
