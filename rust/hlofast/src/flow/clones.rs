//! Copies that a compiler made in order to recompute a value.
//!
//! A copy keeps the operation name of its original, which marks it as forward work even if it runs
//! for the backward pass. Its users determine its phase.

use super::contexts::Contexts;
use super::phase::Phase;
use crate::ir::{CallRole, Module, Opcode, Row};

/// What the names of all copies contain.
const MARK: &[u8] = b".remat";

/// Whether `row` is a copy made by a rematerialisation pass (XLA's or this library's); these are
/// called `x.remat`, `x.remat2` and so on.
pub(crate) fn is_compiler_clone(module: &Module, row: Row) -> bool {
    let name = module.instruction_name(row);
    // Few names have a part that begins like these. All bytes are looked at, because that is vectorised.
    if !name.windows(2).fold(false, |has, own| has | (own == b".r")) {
        return false;
    }
    let parts = name.split(|byte| *byte == b'.');
    parts.skip(1).any(|part| {
        part.strip_prefix(b"remat").is_some_and(|rest| rest.iter().all(u8::is_ascii_digit))
            || part == b"remat_compressed"
            || part == b"remat_uncompressed"
    })
}

/// The name of an instruction without the ending of a copy that XLA rematerialises whole or in part: `fusion.7` of
/// `fusion.7.remat2`. Copies that compress have another form and keep their names.
pub(crate) fn without_clone_number(name: &[u8]) -> &[u8] {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    name[..name.len() - digits].strip_suffix(MARK).unwrap_or(name)
}

/// Whether a compiler has rematerialised values by itself: the module has such copies.
pub(crate) fn has_compiler_clones(module: &Module) -> bool {
    memchr::memmem::find(module.text(), MARK).is_some()
        && module.rows().any(|row| is_compiler_clone(module, row))
}

/// The row has a forward or optimizer user (`EARLY`), or a backward or recompute user (`LATE`).
const EARLY: u8 = 1;
const LATE: u8 = 2;

/// Marks copies of forward work that only backward or recompute work uses as recompute, including
/// the computations they call.
pub(super) fn recompute_clones(module: &Module, contexts: &Contexts, phase: &mut [Phase]) {
    // By position: the kind that it has as a user; of an unattributed row those of its own users.
    let kind = |phase: &Phase| match phase {
        Phase::Backward | Phase::Recompute => LATE,
        Phase::Forward | Phase::Optimizer => EARLY,
        Phase::Unattributed => 0,
    };
    let mut kinds: Vec<u8> = phase.iter().map(kind).collect();
    // Empty without copies.
    let mut is_clone = Vec::new();
    let users = module.users();
    for node in &contexts.nodes {
        let rows = module.computation(node.computation).rows();
        let offset = node.start.wrapping_sub(rows.start);
        let position = |row: u32| row.wrapping_add(offset) as usize;
        for row in rows.rev() {
            let at = position(row);
            // Of the others, neither the phase nor the users' phases are asked for.
            if !matches!(phase[at], Phase::Forward | Phase::Unattributed) {
                continue;
            }
            let own = users.get(row).iter();
            let when_used = own.fold(0, |all, user| all | kinds[position(*user)]);
            if phase[at] == Phase::Unattributed {
                kinds[at] = when_used;
            }
            if when_used == LATE && is_compiler_clone(module, Row(row)) {
                (phase[at], kinds[at]) = (Phase::Recompute, LATE);
                is_clone.resize(contexts.positions, false);
                is_clone[at] = true;
            }
        }
    }
    if is_clone.is_empty() {
        return;
    }
    // Rows inside a fusion take its phase; callers come first.
    let mut is_other = vec![false; contexts.nodes.len()];
    let mut is_inside = vec![false; contexts.nodes.len()];
    for edge in &contexts.edges {
        let call = module.all_calls()[edge.call as usize];
        let is_fused = call.role == CallRole::Calls
            && matches!(module.opcode(call.row), Opcode::Fusion | Opcode::AsyncStart);
        let at = contexts.position(module, edge.caller, call.row);
        match is_fused
            && (is_clone[at] || is_inside[edge.caller as usize] && !is_other[edge.caller as usize])
        {
            true => is_inside[edge.callee as usize] = true,
            false => is_other[edge.callee as usize] = true,
        }
    }
    for (id, node) in contexts.nodes.iter().enumerate() {
        if is_inside[id] && !is_other[id] {
            for row in module.computation(node.computation).rows() {
                let at = contexts.position(module, id as u32, Row(row));
                if phase[at] == Phase::Forward {
                    phase[at] = Phase::Recompute;
                }
            }
        }
    }
}
