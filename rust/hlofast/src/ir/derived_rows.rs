//! Columns and orders derived from the rows' shapes, payloads and calls.

use super::csr::Csr;
use super::module::{Call, CallRole, ComputationId, Module, Row};
use super::opcode::Opcode;
use super::shape::{ShapeId, ShapeView};
use std::ops::Range;

impl CallRole {
    /// Every role, by its code.
    pub const ALL: [CallRole; 11] = [
        CallRole::Calls,
        CallRole::ToApply,
        CallRole::Condition,
        CallRole::Body,
        CallRole::Select,
        CallRole::Scatter,
        CallRole::TrueComputation,
        CallRole::FalseComputation,
        CallRole::Branch,
        CallRole::Called,
        CallRole::Wrapped,
    ];
}

impl Module {
    /// The bytes after the source text, which this crate wrote and not the user.
    pub fn arena(&self) -> &[u8] {
        &self.arena
    }

    /// Element type codes of the rows' shapes: `ElementType as u8`, `TUPLE` or `BUFFER`.
    pub fn element_type_column(&self) -> &[u8] {
        self.derived().element_types.get_or_init(|| {
            let codes: Vec<u8> = self.shapes.ids().map(|id| self.shapes.code(id)).collect();
            self.columns.shapes.iter().map(|shape| codes[shape.0 as usize]).collect()
        })
    }

    /// Number of dimensions of each row's shape; -1 for tuples and buffers.
    pub fn rank_column(&self) -> &[i32] {
        self.derived().ranks.get_or_init(|| {
            let ranks: Vec<i32> = self.shapes.ids().map(|id| self.rank(id)).collect();
            self.columns.shapes.iter().map(|shape| ranks[shape.0 as usize]).collect()
        })
    }

    fn rank(&self, id: ShapeId) -> i32 {
        match self.shapes.get(id) {
            ShapeView::Array(array) => i32::try_from(array.rank()).unwrap_or(i32::MAX),
            ShapeView::Tuple(_) | ShapeView::Buffer(_) => -1,
        }
    }

    /// Number of elements of each row's shape, dynamic dimensions at their bound; -1 for tuples,
    /// buffers and unbounded shapes.
    pub fn elements_column(&self) -> &[i64] {
        self.derived().elements.get_or_init(|| {
            let by_shape: Vec<i64> = self.shapes.ids().map(|id| self.shape_elements(id)).collect();
            self.columns.shapes.iter().map(|shape| by_shape[shape.0 as usize]).collect()
        })
    }

    /// Number of elements of array shape `id`; -1 if unknown or not an array.
    pub fn shape_elements(&self, id: ShapeId) -> i64 {
        let elements = self.shapes.array(id).and_then(|array| array.elements());
        elements.and_then(|count| i64::try_from(count).ok()).unwrap_or(-1)
    }

    /// The number of each parameter (at most `i64::MAX`); -1 for other rows.
    pub fn parameter_number_column(&self) -> &[i64] {
        self.derived().parameter_numbers.get_or_init(|| {
            let number = |row| self.parameter_number(row).map_or(-1, |number| number as i64);
            self.rows().map(number).collect()
        })
    }

    /// The rows that call computation `id`, ascending.
    pub fn callers(&self, id: ComputationId) -> &[u32] {
        let callers = self.derived().callers.get_or_init(|| {
            let pair = |call: &Call| (call.computation.0, call.row.0);
            let mut pairs: Vec<(u32, u32)> = self.calls.iter().map(pair).collect();
            pairs.sort_unstable();
            pairs.dedup();
            Csr::from_sorted(self.computations.len(), pairs.into_iter())
        });
        callers.get(id.0)
    }

    /// The rows of computation `id`, operands before users; otherwise in text order.
    pub fn post_order(&self, id: ComputationId) -> Vec<u32> {
        let range = self.computation(id).rows();
        let first = range.start;
        // In printed text, operands come before their users.
        let is_before = |row: u32| self.operands(Row(row)).iter().all(|operand| *operand < row);
        if self.is_ordered() || range.clone().all(is_before) {
            return range.collect();
        }
        let mut done = vec![false; range.len()];
        let mut order = Vec::with_capacity(range.len());
        let mut stack: Vec<(u32, usize)> = Vec::new();
        for row in range.clone() {
            if std::mem::replace(&mut done[(row - first) as usize], true) {
                continue;
            }
            stack.push((row, 0));
            while let Some((top, next)) = stack.last_mut() {
                let Some(operand) = self.operands(Row(*top)).get(*next).copied() else {
                    order.push(*top);
                    stack.pop();
                    continue;
                };
                *next += 1;
                if !range.contains(&operand) {
                    continue;
                }
                // Marked when first reached, so that a cycle in malformed text also ends here.
                if !std::mem::replace(&mut done[(operand - first) as usize], true) {
                    stack.push((operand, 0));
                }
            }
        }
        order
    }

    /// By computation: whether only fusions call it. The rows of such a computation move no bytes
    /// by themselves and have no schedule, so their text order carries no meaning.
    pub fn computations_in_fusions(&self) -> Vec<bool> {
        let count = self.computations.len();
        let mut is_fused = vec![false; count];
        let mut runs = vec![false; count];
        let mark = |table: &mut Vec<bool>, id: ComputationId| {
            if let Some(slot) = table.get_mut(id.0 as usize) {
                *slot = true;
            }
        };
        mark(&mut runs, self.entry());
        for call in &self.calls {
            let is_fusion = self.opcode(call.row) == Opcode::Fusion;
            mark(if is_fusion { &mut is_fused } else { &mut runs }, call.computation);
        }
        is_fused.iter().zip(&runs).map(|(fused, runs)| *fused && !runs).collect()
    }

    /// Where execution starts: the entry, and in a fragment every computation that nothing calls.
    pub fn starts(&self) -> Vec<ComputationId> {
        let mut starts = vec![self.entry];
        if self.fragment.is_some() {
            let mut is_called = vec![false; self.computations.len()];
            for call in &self.calls {
                if let Some(called) = is_called.get_mut(call.computation.0 as usize) {
                    *called = true;
                }
            }
            let ids = (0..self.computations.len() as u32).map(ComputationId);
            starts.extend(ids.filter(|id| !is_called[id.0 as usize] && *id != self.entry));
        }
        starts
    }

    /// The range of `all_calls` that holds the calls of computation `id`.
    pub fn calls_within(&self, id: ComputationId) -> Range<usize> {
        let starts = self.derived().call_starts.get_or_init(|| {
            let rows: Vec<u32> = self.calls.iter().map(|call| call.row.0).collect();
            self.starts_by_computation(&rows)
        });
        starts[id.0 as usize] as usize..starts[id.0 as usize + 1] as usize
    }

    /// Where the rows of each computation begin in `rows`, which ascend; one entry more than
    /// computations.
    pub(crate) fn starts_by_computation(&self, rows: &[u32]) -> Vec<u32> {
        let mut starts = Vec::with_capacity(self.computations.len() + 1);
        let mut at = 0;
        starts.push(0);
        for computation in &self.computations {
            at += rows[at..].iter().take_while(|row| **row < computation.end_row).count();
            starts.push(at as u32);
        }
        starts
    }

    /// The computations, callees before callers; otherwise in text order.
    pub fn computation_post_order(&self) -> &[ComputationId] {
        self.derived().post_order.get_or_init(|| self.find_post_order())
    }

    fn find_post_order(&self) -> Vec<ComputationId> {
        let count = self.computations.len();
        let mut done = vec![false; count];
        let mut order = Vec::with_capacity(count);
        let mut stack: Vec<(u32, usize, usize)> = Vec::new();
        let calls_of = |id: u32| {
            let calls = self.calls_within(ComputationId(id));
            (calls.start, calls.end)
        };
        for id in 0..count as u32 {
            if std::mem::replace(&mut done[id as usize], true) {
                continue;
            }
            let (start, end) = calls_of(id);
            stack.push((id, start, end));
            while let Some((top, next, end)) = stack.last_mut() {
                if next == end {
                    order.push(ComputationId(*top));
                    stack.pop();
                    continue;
                }
                let callee = self.calls[*next].computation.0;
                *next += 1;
                if !std::mem::replace(&mut done[callee as usize], true) {
                    let (start, end) = calls_of(callee);
                    stack.push((callee, start, end));
                }
            }
        }
        order
    }
}
