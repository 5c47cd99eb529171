//! Instructions whose results nothing needs.

use super::rules::{Class, class_of};
use crate::ir::{Flags, Module, Opcode, Row};

/// Rows of instructions that do something, but for no one: neither a root nor anything with an
/// effect of its own needs their results, directly or through others. Ascending.
///
/// Where an instruction stands in the text before what it needs, its needs may be missed.
pub fn dead_rows(module: &Module) -> Vec<Row> {
    let mut is_dead = vec![false; module.row_count()];
    let mut found = Vec::new();
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
            found.push(row);
        }
    }
    found.reverse();
    found
}

/// Whether an instruction may matter although nothing uses its result.
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
