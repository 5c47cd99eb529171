//! Values that devices exchange before others are made from them, or before they are put into stacks: the same
//! parts of the mesh split another dimension of the value that reads them, or of the stack.

use super::parts::Mask;
use super::spread::Spread;
use crate::flow::{Contexts, NodeId};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, Module, Opcode, Row};
use hashbrown::HashMap;
use std::ops::Range;

/// Limit on the sweeps over all rows: what a call returns is looked at in the next one.
const MOST_SWEEPS: usize = 4;
/// Limit on the operands of a row that are looked at.
const MOST_OPERANDS: usize = 8;

/// By elementwise row, broadcast, and row that writes into a stack: the numbers of the operands that devices
/// exchange first.
pub(super) type Exchanged = HashMap<Row, Vec<u32>, BuildMix>;

/// The operands of elementwise rows and broadcasts, and the values of stacks, in any context, that devices
/// exchange. What is split otherwise where it is sliced or reshaped, where a computation is called with it, or
/// in a loop that only reads it, is exchanged where it is read: libtpu exchanges the slices of a stack, not
/// the stack, in the backward loops of `scattered_v5e_8`.
pub(super) fn exchanged(spread: &Spread<'_>, contexts: &Contexts) -> Exchanged {
    let given = vec![false; spread.values.count];
    let mut own =
        Finder { spread, contexts, found: Exchanged::default(), given, is_changed: false };
    for _ in 0..MOST_SWEEPS {
        own.is_changed = false;
        for node in 0..contexts.nodes.len() as u32 {
            if contexts.is_reached(node) && !contexts.nodes[node as usize].is_applied {
                own.rows(node);
                own.calls(node);
            }
        }
        if !own.is_changed {
            break;
        }
    }
    own.found
}

struct Finder<'s, 'a> {
    spread: &'s Spread<'a>,
    contexts: &'s Contexts,
    found: Exchanged,
    /// By value: whether it is split otherwise than what it is the same as or a slice of.
    given: Vec<bool>,
    is_changed: bool,
}

impl Finder<'_, '_> {
    fn array(&self, node: NodeId, row: u32) -> Option<usize> {
        let values = self.spread.values.of(node, row);
        (values.len() == 1).then_some(values.start)
    }

    fn give(&mut self, value: usize) {
        self.is_changed |= !std::mem::replace(&mut self.given[value], true);
    }

    /// Values that others hold, one by one.
    fn pass(&mut self, from: Range<usize>, to: Range<usize>, is_made: bool) {
        if from.len() != to.len() {
            return;
        }
        for (from, to) in from.zip(to) {
            let is_its = || !is_made && is_otherwise(self.spread, from, to, Alike::All);
            if self.given[from] || is_its() {
                self.give(to);
            }
        }
    }

    fn rows(&mut self, node: NodeId) {
        let module = self.spread.module;
        let values = &self.spread.values;
        let computation = self.contexts.nodes[node as usize].computation;
        for row in module.computation(computation).rows() {
            let (opcode, operands) = (module.opcode(Row(row)), module.operands(Row(row)));
            let (alike, read) = match opcode {
                Opcode::Tuple => {
                    let mut at = values.of(node, row).start;
                    for operand in operands {
                        let theirs = values.of(node, *operand);
                        let next = at + theirs.len();
                        self.pass(theirs, at..next, is_made(module, *operand));
                        at = next;
                    }
                    continue;
                }
                Opcode::GetTupleElement => {
                    let Some(operand) = operands.first() else { continue };
                    let theirs = values.element(values.within(node), row, *operand);
                    self.pass(theirs, values.of(node, row), is_made(module, row));
                    continue;
                }
                Opcode::Reshape | Opcode::Copy => (Alike::ButOnes, 0..1),
                Opcode::Broadcast | Opcode::DynamicSlice => (Alike::InParts, 0..1),
                Opcode::DynamicUpdateSlice => (Alike::InParts, 1..2),
                _ if opcode.is_elementwise() => (Alike::All, 0..MOST_OPERANDS),
                _ => continue,
            };
            let Some(result) = self.array(node, row) else { continue };
            let passes = matches!(opcode, Opcode::Reshape | Opcode::Copy | Opcode::DynamicSlice);
            let all = (0u32..).zip(operands.iter().copied());
            for (index, operand) in all.skip(read.start).take(read.len()) {
                let Some(from) = self.array(node, operand) else { continue };
                let is_its =
                    || !is_made(module, operand) && is_otherwise(self.spread, from, result, alike);
                if !self.given[from] && !is_its() {
                    continue;
                }
                if passes {
                    self.give(result);
                    continue;
                }
                let known = self.found.entry(Row(row)).or_default();
                if !known.contains(&index) {
                    known.push(index);
                }
            }
        }
    }

    /// What calls are given and return, and what loops are given.
    fn calls(&mut self, node: NodeId) {
        let module = self.spread.module;
        let values = &self.spread.values;
        for edge in self.contexts.edges_of(node) {
            let call = &module.all_calls()[edge.call as usize];
            let is_loop = match (module.opcode(call.row), call.role) {
                (Opcode::Call, _) => false,
                (Opcode::While, CallRole::Body) => true,
                _ => continue,
            };
            let Some(arguments) = values.arguments(edge, 0) else { continue };
            let callee = self.contexts.nodes[edge.callee as usize].computation;
            let root = module.computation(callee).root;
            for parameter in module.parameters(callee) {
                let Some(operand) = arguments.of_parameter(module, parameter.0) else { continue };
                let from = values.of(node, operand);
                let to = values.of(edge.callee, parameter.0);
                if !is_loop {
                    self.pass(from, to, is_made(module, operand));
                    continue;
                }
                let ends = module.operands(Row(root));
                if from.len() != to.len() || ends.len() != to.len() {
                    continue;
                }
                for (at, ((from, to), end)) in from.zip(to).zip(ends).enumerate() {
                    let is_only_read = module.opcode(Row(*end)) == Opcode::GetTupleElement
                        && module.operands(Row(*end)) == [parameter.0]
                        && module.tuple_index(Row(*end)) == Some(at);
                    if is_only_read {
                        self.pass(from..from + 1, to..to + 1, false);
                    }
                }
            }
            if !is_loop {
                self.pass(values.of(edge.callee, root), values.of(node, call.row.0), false);
            }
        }
    }
}

/// Whether each device makes a value where it is needed: copies of one number, and masks.
fn is_made(module: &Module, row: u32) -> bool {
    let array = module.shapes().array(module.shape(Row(row)));
    let is_mask = array.is_some_and(|array| array.element_type.bits() == 1);
    is_mask
        || matches!(module.opcode(Row(row)), Opcode::Broadcast | Opcode::Constant | Opcode::Iota)
}

/// Which dimensions of two values are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alike {
    /// All, of values of the same sizes.
    All,
    /// All that are longer than 1, of which both values have the same.
    ButOnes,
    /// Those of the same size, of a part and the whole.
    InParts,
}

/// Whether parts of the mesh that split a dimension of one value split another dimension of the other.
fn is_otherwise(spread: &Spread<'_>, from: usize, to: usize, alike: Alike) -> bool {
    let used = spread.used(to);
    let own = |value: usize| {
        let dimensions = spread.dimensions(value);
        let sizes = spread.sizes[dimensions.clone()].iter().copied();
        let all = sizes.zip(spread.masks[dimensions].iter().copied());
        let own = all.filter(|(size, _)| alike != Alike::ButOnes || *size != 1);
        own.collect::<Vec<(i64, Mask)>>()
    };
    let (from, to) = (own(from), own(to));
    let mut pairs = from.iter().zip(&to);
    if from.len() != to.len()
        || alike != Alike::InParts && pairs.clone().any(|(from, to)| from.0 != to.0)
    {
        return false;
    }
    pairs.any(|(from, to)| from.0 == to.0 && from.1 & !to.1 & used != 0)
}
