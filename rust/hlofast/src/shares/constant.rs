//! Values that every user recomputes: Shardy splits each copy on its own
//! (`constant_or_scalar_splitter.cc`).

use super::spread::{Known, Spread};
use crate::flow::{Contexts, NodeId};
use crate::ir::{Module, Opcode, Row};

/// By value: whether it is a constant, counts upwards, repeats a scalar, or is made of such values alone.
pub(super) fn constants(spread: &Spread<'_>, contexts: &Contexts) -> Vec<bool> {
    let mut found = vec![false; spread.values.count];
    for (node, own) in contexts.nodes.iter().enumerate() {
        for row in spread.module.computation(own.computation).rows() {
            let values = spread.values.of(node as NodeId, row);
            if values.len() == 1
                && spread.known[values.start] == Known::Implied
                && is_constant(spread, node as NodeId, row, &found)
            {
                found[values.start] = true;
            }
        }
    }
    found
}

fn is_constant(spread: &Spread<'_>, node: NodeId, row: u32, found: &[bool]) -> bool {
    let module: &Module = spread.module;
    let opcode = module.opcode(Row(row));
    let operands = module.operands(Row(row));
    let mut values = operands.iter().map(|operand| spread.values.of(node, *operand));
    match opcode {
        Opcode::Constant | Opcode::Iota => true,
        Opcode::Broadcast => values.all(|own| {
            own.len() == 1 && (spread.dimensions(own.start).is_empty() || found[own.start])
        }),
        Opcode::Slice => values.all(|own| own.len() == 1 && found[own.start]),
        _ if opcode.is_elementwise() => {
            !operands.is_empty() && values.all(|own| own.len() == 1 && found[own.start])
        }
        _ => false,
    }
}
