//! Instructions that only move a value: between memory spaces, in whole or in parts, or through
//! tuples and barriers.

use super::markers::is_marker;
use super::origin::Place;
use crate::ir::{CallRole, Module, Opcode, Row};

/// Limit on the moving instructions that are followed.
pub(crate) const MOST_MOVES: usize = 4096;
/// Limit on the moving instructions followed from each part of a value that is fetched in parts.
const MOST_OF_A_PART: usize = 64;

/// Whether `row` only moves values.
#[inline]
pub(crate) fn moves(module: &Module, row: Row) -> bool {
    match module.opcode(row) {
        Opcode::GetTupleElement
        | Opcode::Tuple
        | Opcode::CopyDone
        | Opcode::CopyStart
        | Opcode::OptBarrier
        | Opcode::Bitcast
        | Opcode::Copy
        | Opcode::Domain => true,
        Opcode::AsyncStart | Opcode::AsyncUpdate | Opcode::AsyncDone => fetches(module, row),
        Opcode::CustomCall => is_join(module, row),
        _ => false,
    }
}

/// The operand that `row` moves, if its opcode tells that; then `step_back` goes to the same row.
#[inline]
pub(crate) fn moved_operand(module: &Module, row: Row) -> Option<Row> {
    let is_told = match module.opcode(row) {
        Opcode::GetTupleElement => module.tuple_index(row).is_some(),
        Opcode::Bitcast | Opcode::Copy | Opcode::CopyStart | Opcode::CopyDone => true,
        _ => false,
    };
    module.operands(row).first().filter(|_| is_told).map(|first| Row(*first))
}

/// Goes from `at` to the value that its row moves. Returns false, and leaves `at` unchanged, if the
/// row does more than move a value.
pub(crate) fn step_back(module: &Module, at: &mut Place) -> bool {
    step(module, at, true)
}

fn step(module: &Module, at: &mut Place, through_joins: bool) -> bool {
    let Some(first) = module.operands(at.row).first().map(|row| Row(*row)) else { return false };
    match module.opcode(at.row) {
        Opcode::GetTupleElement => {
            let index = module.tuple_index(at.row).and_then(|index| u32::try_from(index).ok());
            let Some(index) = index else { return false };
            at.path.push(index);
            at.row = first;
        }
        Opcode::Tuple => {
            let operand = at.path.last().and_then(|at_| module.operands(at.row).get(*at_ as usize));
            let Some(operand) = operand else { return false };
            at.row = Row(*operand);
            at.path.pop();
        }
        Opcode::CopyDone => {
            at.path.push(0);
            at.row = first;
        }
        Opcode::CopyStart => {
            at.path.pop();
            at.row = first;
        }
        Opcode::OptBarrier | Opcode::Bitcast | Opcode::Copy | Opcode::Domain => at.row = first,
        Opcode::AsyncDone if fetches(module, at.row) => {
            at.path.push(1);
            at.row = first;
        }
        Opcode::AsyncUpdate if fetches(module, at.row) => at.row = first,
        Opcode::AsyncStart if fetches(module, at.row) => {
            let operand = match at.path.pop() {
                Some(0) => at.path.pop().unwrap_or(0) as usize,
                _ => 0,
            };
            at.row = Row(*module.operands(at.row).get(operand).unwrap_or(&first.0));
        }
        Opcode::CustomCall if is_marker(module, at.row) => at.row = first,
        Opcode::CustomCall if through_joins && is_join(module, at.row) => {
            match source_of_join(module, at) {
                Some(whole) => *at = whole,
                None => return false,
            }
        }
        _ => return false,
    }
    true
}

/// Whether `row` belongs to an asynchronous operation that reads an array, or a part of it.
fn fetches(module: &Module, row: Row) -> bool {
    wrapped(module, row).is_some_and(|opcode| {
        matches!(opcode, Opcode::Slice | Opcode::DynamicSlice | Opcode::Copy | Opcode::Bitcast)
    })
}

/// The operation that an asynchronous start, update or end stands for.
pub(crate) fn wrapped(module: &Module, row: Row) -> Option<Opcode> {
    let mut start = row;
    while matches!(module.opcode(start), Opcode::AsyncUpdate | Opcode::AsyncDone) {
        let operand = Row(*module.operands(start).first()?);
        // Text that is not in execution order may contain a cycle.
        if operand.0 >= start.0 {
            return None;
        }
        start = operand;
    }
    if module.opcode(start) != Opcode::AsyncStart {
        return None;
    }
    let calls = module.calls(start).iter();
    let called = |role| calls.clone().find(|call| call.role == role);
    let call = called(CallRole::Calls).or_else(|| called(CallRole::Wrapped))?;
    let callee = module.computation(call.computation);
    (!callee.rows().is_empty()).then(|| module.opcode(Row(callee.root)))
}

/// Whether `row` joins the parts of an array that were fetched one by one.
fn is_join(module: &Module, row: Row) -> bool {
    module.attribute_bytes(row, "custom_call_target") == Some(b"\"ConcatBitcast\"")
}

/// The value whose parts the row at `at` joins; None if the parts belong to several values.
fn source_of_join(module: &Module, at: &Place) -> Option<Place> {
    // Prefer the nearest common value, so that callers see its memory space.
    let near =
        |place: &Place| matches!(module.opcode(place.row), Opcode::AsyncStart | Opcode::AsyncDone);
    common_source(module, at, near).or_else(|| common_source(module, at, |_| true))
}

/// The one value that all parts come from, following each part while `follows` holds.
fn common_source(module: &Module, at: &Place, follows: impl Fn(&Place) -> bool) -> Option<Place> {
    let mut whole: Option<Place> = None;
    for operand in module.operands(at.row) {
        let mut part = Place { row: Row(*operand), path: at.path.clone() };
        for _ in 0..MOST_OF_A_PART {
            if !follows(&part) || !step(module, &mut part, false) {
                break;
            }
        }
        match &whole {
            None => whole = Some(part),
            Some(whole) if *whole == part => {}
            Some(_) => return None,
        }
    }
    whole
}
