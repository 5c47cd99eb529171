//! Instructions whose results are never used.

use super::rules::{Class, class_of};
use crate::ir::{Flags, Module, Opcode, Row};

/// Rows of instructions that do work although no root and no instruction with a side effect needs
/// their results, directly or indirectly. Ascending.
///
/// May miss dead operands of an instruction that precedes them in the text.
pub fn dead_rows(module: &Module) -> Vec<Row> {
    let mut is_dead = vec![false; module.row_count()];
    let mut dead = Vec::new();
    let rows: Vec<Row> = module.rows().collect();
    for row in rows.into_iter().rev() {
        let opcode = module.opcode(row);
        let flags = module.flags(row);
        if flags & (Flags::ROOT | Flags::IMPLICIT) != 0 || has_effect(opcode) {
            continue;
        }
        if !module.users().get(row.0).iter().all(|user| is_dead[*user as usize]) {
            continue;
        }
        is_dead[row.0 as usize] = true;
        if class_of(opcode) != Class::Free && opcode != Opcode::Tuple {
            dead.push(row);
        }
    }
    dead.reverse();
    dead
}

/// Whether an instruction may have an effect although nothing uses its result.
fn has_effect(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        Parameter
            | AfterAll
            | AddDependency
            | Domain
            | Infeed
            | Outfeed
            | Send
            | SendDone
            | Recv
            | RecvDone
            | RngGetAndUpdateState
            | CustomCall
            | Call
            | While
            | Conditional
            | AsyncStart
            | AsyncUpdate
            | AsyncDone
            | CopyStart
            | CopyDone
            | AllReduce
            | AllReduceStart
            | AllReduceDone
            | AllGather
            | AllGatherStart
            | AllGatherDone
            | ReduceScatter
            | AllToAll
            | RaggedAllToAll
            | CollectivePermute
            | CollectivePermuteStart
            | CollectivePermuteDone
            | CollectiveBroadcast
            | Unknown
    )
}
