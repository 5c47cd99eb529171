//! Values that devices exchange before others are made from them: the same parts of the mesh split another
//! dimension of the value that reads them.

use super::parts::Mask;
use super::spread::Spread;
use crate::flow::{Contexts, NodeId};
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Opcode, Row};
use hashbrown::{HashMap, HashSet};

/// Limit on the operands of a row that are looked at.
const MOST_OPERANDS: usize = 8;

/// By elementwise row: the numbers of the operands that devices exchange first.
pub(super) type Exchanged = HashMap<Row, Vec<u32>, BuildMix>;

/// The operands of elementwise rows, in any context, that devices exchange. What a computation is called
/// with is exchanged where the computation reads it.
pub(super) fn exchanged(spread: &Spread<'_>, contexts: &Contexts) -> Exchanged {
    let module = spread.module;
    let mut found = Exchanged::default();
    // Parameters that are split otherwise than what their computation is called with.
    let mut given: HashSet<(NodeId, u32), BuildMix> = HashSet::default();
    for node in 0..contexts.nodes.len() as u32 {
        let own = &contexts.nodes[node as usize];
        if !contexts.is_reached(node) || own.is_applied {
            continue;
        }
        let array = |row: u32| {
            let values = spread.values.of(node, row);
            (values.len() == 1).then_some(values.start)
        };
        let rows = module.computation(own.computation).rows();
        for row in rows.filter(|row| module.opcode(Row(*row)).is_elementwise()) {
            let Some(result) = array(row) else { continue };
            for (index, operand) in
                (0u32..).zip(module.operands(Row(row)).iter().take(MOST_OPERANDS))
            {
                let is_given = given.contains(&(node, *operand));
                let is_moved =
                    |from: usize| is_otherwise(spread, from, result) && !is_made(module, *operand);
                if !is_given && !array(*operand).is_some_and(is_moved) {
                    continue;
                }
                let known = found.entry(Row(row)).or_default();
                if !known.contains(&index) {
                    known.push(index);
                }
            }
        }
        for edge in contexts.edges_of(node) {
            let call = &module.all_calls()[edge.call as usize];
            let arguments = spread.values.arguments(edge, 0);
            let Some(arguments) = arguments.filter(|_| module.opcode(call.row) == Opcode::Call)
            else {
                continue;
            };
            let callee = contexts.nodes[edge.callee as usize].computation;
            for parameter in module.parameters(callee) {
                let operand = arguments.of_parameter(module, parameter.0);
                let from = operand.filter(|own| !is_made(module, *own)).and_then(array);
                let to = spread.values.of(edge.callee, parameter.0);
                if from.is_some_and(|from| to.len() == 1 && is_otherwise(spread, from, to.start)) {
                    given.insert((edge.callee, parameter.0));
                }
            }
        }
    }
    found
}

/// Whether each device makes a value where it is needed: copies of one number, and masks.
fn is_made(module: &Module, row: u32) -> bool {
    let array = module.shapes().array(module.shape(Row(row)));
    let is_mask = array.is_some_and(|array| array.element_type.bits() == 1);
    is_mask
        || matches!(module.opcode(Row(row)), Opcode::Broadcast | Opcode::Constant | Opcode::Iota)
}

/// Whether parts of the mesh that split a dimension of one value split another dimension of the other,
/// which has the same sizes.
fn is_otherwise(spread: &Spread<'_>, from: usize, to: usize) -> bool {
    let (from, to) = (spread.dimensions(from), spread.dimensions(to));
    if spread.sizes[from.clone()] != spread.sizes[to.clone()] {
        return false;
    }
    let (from, to): (&[Mask], &[Mask]) = (&spread.masks[from], &spread.masks[to]);
    let used = to.iter().fold(0, |all, mask| all | mask);
    from.iter().zip(to).any(|(from, to)| from & !to & used != 0)
}
