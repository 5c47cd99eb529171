//! Which instructions may run a second time.

use super::asynchronous::async_gather;
use crate::ir::{ElementKind, Module, Opcode, Row, ShapeView};

/// Limit on the depth of nested computations that are examined.
const DEEPEST: usize = 16;
/// Limit on the parts of a result that is copied.
const MOST_LEAVES: u32 = 1 << 10;

/// Targets of custom calls that are half of a pair, or that return memory which other instructions
/// write.
const BOUND_TARGETS: [&[u8]; 5] = [
    b"AsyncCollectiveStart",
    b"AsyncCollectiveDone",
    b"AllocateBuffer",
    b"MoveToHost",
    b"MoveToDevice",
];

/// Why `row` cannot be copied; None if it can.
pub(super) fn obstacle(module: &Module, row: Row) -> Option<&'static str> {
    if async_gather(module, row).is_some() {
        return None;
    }
    let mut pending = vec![(row, 0)];
    let mut seen = std::collections::HashSet::new();
    while let Some((row, depth)) = pending.pop() {
        if let Some(reason) = own_obstacle(module, row, depth > 0) {
            return Some(reason);
        }
        for call in module.calls(row) {
            if depth == DEEPEST {
                return Some("its computations are nested too deeply");
            }
            if seen.insert(call.computation) {
                let rows = module.computation(call.computation).rows();
                pending.extend(rows.map(|row| (Row(row), depth + 1)));
            }
        }
    }
    None
}

/// Why `row` itself cannot be copied, ignoring the computations that it calls; None if it can.
fn own_obstacle(module: &Module, row: Row, is_inside: bool) -> Option<&'static str> {
    use Opcode::*;
    match module.opcode(row) {
        Parameter if is_inside => return None,
        Parameter => return Some("it is a parameter"),
        While => return Some("it is a loop"),
        Conditional => return Some("it is a conditional"),
        Call => return Some("it is a call"),
        Infeed | Outfeed | Send | SendDone | Recv | RecvDone => {
            return Some("it has a side effect");
        }
        Rng | RngGetAndUpdateState => return Some("it gives different numbers each time"),
        AfterAll | AddDependency => return Some("it orders side effects"),
        OptBarrier | Domain => return Some("it must stay where it is"),
        AsyncUpdate => return Some("it is the middle of an asynchronous operation"),
        Unknown => return Some("its opcode is unknown"),
        CustomCall => {
            if module.attribute_bytes(row, "custom_call_has_side_effect") == Some(b"true") {
                return Some("it has a side effect");
            }
            if target(module, row).is_some_and(|target| BOUND_TARGETS.contains(&target)) {
                return Some("it belongs to other instructions");
            }
        }
        _ => {}
    }
    let shapes = module.shapes();
    if shapes.leaf_count(module.shape(row)) > MOST_LEAVES {
        return Some("its result has too many parts");
    }
    let is_token = shapes.leaves(module.shape(row)).any(|leaf| match shapes.get(leaf) {
        ShapeView::Array(array) => array.element_type.kind() == ElementKind::Opaque,
        _ => true,
    });
    is_token.then_some("its result holds a token, a buffer or an opaque value")
}

/// The target of custom call `row`; None for other opcodes.
pub(super) fn target(module: &Module, row: Row) -> Option<&[u8]> {
    if module.opcode(row) != Opcode::CustomCall {
        return None;
    }
    let target = module.attribute_bytes(row, "custom_call_target")?.trim_ascii();
    target.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

/// Whether `opcode` only passes its operand's value on, in the same memory.
pub(super) fn is_forwarding(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(opcode, AddDependency | Bitcast | Domain | GetTupleElement | OptBarrier | Tuple)
}

/// Whether `opcode` ends an asynchronous operation.
pub(super) fn is_done(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(opcode, AllGatherDone | AllReduceDone | AsyncDone | CollectivePermuteDone | CopyDone)
}

/// Whether `opcode` starts an asynchronous operation.
pub(super) fn is_start(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        AllGatherStart | AllReduceStart | AsyncStart | CollectivePermuteStart | CopyStart
    )
}
