//! The values of a module in every context: one number per leaf of each row's result.

use super::contexts::{Contexts, Edge, NodeId};
use crate::ir::{CallRole, Module, Opcode, Row};
use std::ops::Range;

/// Numbers the values. If shapes have far more leaves than the text has bytes, each whole result
/// counts as one value.
pub(crate) struct Values<'a> {
    pub module: &'a Module,
    pub contexts: &'a Contexts,
    /// By node: wrapping offset from a row's first leaf to its first value; empty if results are
    /// not split.
    bases: Vec<usize>,
    leaves: &'a [u64],
    /// Number of values.
    pub count: usize,
}

impl<'a> Values<'a> {
    pub fn new(module: &'a Module, contexts: &'a Contexts) -> Self {
        let leaves = module.leaf_offsets();
        let limit = module.text().len().saturating_mul(16).saturating_add(1 << 20) as u64;
        let mut bases = Vec::with_capacity(contexts.nodes.len());
        let all = leaves.last().copied().unwrap_or(0);
        let mut count = all;
        for node in &contexts.nodes {
            let rows = module.computation(node.computation).rows();
            let first = leaves[rows.start as usize];
            if node.start == rows.start {
                bases.push(0);
            } else {
                bases.push((count as usize).wrapping_sub(first as usize));
                count = count.saturating_add(leaves[rows.end as usize] - first);
            }
        }
        let is_split = count <= limit;
        Self {
            module,
            contexts,
            bases: if is_split { bases } else { Vec::new() },
            leaves,
            count: if is_split { count as usize } else { contexts.positions },
        }
    }

    /// Whether every leaf of a result is a value of its own.
    pub fn is_split(&self) -> bool {
        !self.bases.is_empty()
    }

    /// The values of the rows of `node`.
    #[inline]
    pub fn within(&self, node: NodeId) -> Within<'a> {
        if let Some(base) = self.bases.get(node as usize) {
            return Within { leaves: Some(self.leaves), base: *base };
        }
        let node = &self.contexts.nodes[node as usize];
        let first = self.module.computation(node.computation).first_row;
        Within { leaves: None, base: (node.start as usize).wrapping_sub(first as usize) }
    }

    /// The values of `row` in `node`.
    #[inline]
    pub fn of(&self, node: NodeId, row: u32) -> Range<usize> {
        self.within(node).of(row)
    }

    /// The values of its operand that get-tuple-element `row` in `node` takes.
    #[inline]
    pub fn element(&self, node: Within<'_>, row: u32, operand: u32) -> Range<usize> {
        let values = node.of(operand);
        let shape = self.module.shape(Row(operand));
        let shapes = self.module.shapes();
        let leaves = (|| {
            let index = self.module.tuple_index(Row(row))?;
            let element = *shapes.tuple(shape)?.get(index)?;
            let first = values.start + shapes.first_leaf(shape, index)? as usize;
            Some(first..first + shapes.leaf_count(element) as usize)
        })();
        match leaves {
            Some(leaves) if leaves.end <= values.end && !self.bases.is_empty() => leaves,
            _ => values,
        }
    }

    /// How operands of the caller map to parameters of the computation that `edge` calls; None if
    /// they do not correspond. `branch` counts the row's calls before this one.
    #[inline]
    pub fn arguments(&self, edge: &Edge, branch: usize) -> Option<Arguments> {
        let call = self.module.all_calls().get(edge.call as usize)?;
        let caller = edge.caller;
        let (first, count) = match (self.module.opcode(call.row), call.role) {
            (Opcode::Fusion | Opcode::Call | Opcode::AsyncStart, _) => (0, usize::MAX),
            (Opcode::While, CallRole::Condition | CallRole::Body) => (0, 1),
            (Opcode::Conditional, _) => (branch + 1, 1),
            _ => return None,
        };
        Some(Arguments { node: caller, row: call.row.0, first, count })
    }
}

/// The values of the rows of one node.
#[derive(Clone, Copy)]
pub(crate) struct Within<'a> {
    /// By row: its first leaf; None if results are not split.
    leaves: Option<&'a [u64]>,
    /// Wrapping offset from a leaf, or else from a row, to its value.
    base: usize,
}

impl Within<'_> {
    /// The values of `row`.
    #[inline]
    pub fn of(&self, row: u32) -> Range<usize> {
        let Some(leaves) = self.leaves else {
            let at = self.base.wrapping_add(row as usize);
            return at..at + 1;
        };
        let place = |row: usize| self.base.wrapping_add(leaves[row] as usize);
        place(row as usize)..place(row as usize + 1)
    }
}

/// The operands that become parameters of a callee.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    pub node: NodeId,
    pub row: u32,
    /// Index of the operand that is parameter 0.
    first: usize,
    /// Number of operands that are parameters.
    count: usize,
}

impl Arguments {
    /// The caller's operand for parameter `row`.
    #[inline]
    pub fn of_parameter(&self, module: &Module, row: u32) -> Option<u32> {
        let number = usize::try_from(module.parameter_number(Row(row))?).ok()?;
        if number >= self.count {
            return None;
        }
        module.operands(Row(self.row)).get(self.first.checked_add(number)?).copied()
    }
}

/// Whether each value of the result corresponds to one value of an operand, in order.
#[inline]
pub(super) fn passes_on(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        Tuple
            | OptBarrier
            | Copy
            | Bitcast
            | Domain
            | AllReduce
            | AllReduceStart
            | AllReduceDone
            | AllGather
            | AllToAll
            | ReduceScatter
            | CollectivePermute
    )
}

/// Whether `opcode` itself does not compute; its work is in the computations it calls.
#[inline]
pub(super) fn is_structural(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        Parameter
            | Tuple
            | GetTupleElement
            | OptBarrier
            | Domain
            | While
            | Conditional
            | Call
            | Fusion
            | AsyncStart
            | AsyncUpdate
            | AsyncDone
    )
}
