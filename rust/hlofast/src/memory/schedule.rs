//! The order in which instructions run: one step per instruction, callees before their callers.
//!
//! As in XLA's `HloLiveRange`: condition and body of a loop come once, before the loop; branches
//! come before their conditional; the insides of fusions and reductions have no steps.

use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};

/// Stands for an absent step or row.
pub(super) const NONE: u32 = u32::MAX;

/// The source of an order of instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The text's own order, which is the schedule of a scheduled module.
    #[default]
    Text,
    /// Operands before users, otherwise in text order.
    PostOrder,
}

impl Order {
    /// All orders.
    pub const ALL: [Order; 2] = [Order::Text, Order::PostOrder];

    /// The name used in options, tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Order::Text => "text",
            Order::PostOrder => "post_order",
        }
    }
}

/// The steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    /// The row of each step.
    pub rows: Vec<u32>,
    /// By row: its step, or `NONE`.
    pub step_of: Vec<u32>,
    /// By computation: its first step, and one past its last; `NONE` for computations without
    /// steps.
    pub spans: Vec<(u32, u32)>,
    /// By computation: its first caller, and the index of the call among that row's calls.
    pub callers: Vec<(u32, u32)>,
    /// By step: the earliest end of the result's live range. A root's result lives to the end of
    /// its computation.
    pub ends: Vec<u32>,
    /// By step: the start of the result's live range. Parameters start with their computation.
    pub starts: Vec<u32>,
    /// Number of steps whose operands come later: the module cannot run in this order.
    pub disordered: u32,
    /// Rows that call a computation whose steps belong to an earlier caller.
    pub repeated: Vec<u32>,
}

struct Frame {
    /// Position of the next row in the order.
    at: u32,
    end: u32,
    computation: u32,
    first_step: u32,
    /// Number of entered calls of the row at `at`.
    calls: u32,
}

impl Steps {
    /// The steps of the entry computation and its callees. `order` is a permutation of the rows
    /// that keeps the rows of each computation together; None keeps the order of the text.
    pub fn new(module: &Module, order: Option<&[u32]>) -> Self {
        let computations = module.computations().len();
        let count = module.row_count();
        let mut steps = Steps {
            rows: Vec::with_capacity(count),
            step_of: vec![NONE; count],
            spans: vec![(NONE, NONE); computations],
            callers: vec![(NONE, 0); computations],
            ends: Vec::new(),
            starts: Vec::new(),
            disordered: 0,
            repeated: Vec::new(),
        };
        let mut stack: Vec<Frame> = Vec::new();
        steps.enter(module, module.entry(), &mut stack);
        while let Some(frame) = stack.last_mut() {
            if frame.at == frame.end {
                let end = steps.rows.len() as u32;
                steps.spans[frame.computation as usize] = (frame.first_step, end);
                stack.pop();
                continue;
            }
            let row = match order {
                Some(order) => order.get(frame.at as usize).copied().unwrap_or(frame.at),
                None => frame.at,
            };
            let opcode = module.opcode(Row(row));
            if may_descend(opcode) {
                let number = frame.calls;
                if let Some(callee) = nth_call(module, Row(row), opcode, number) {
                    frame.calls += 1;
                    if steps.spans[callee.0 as usize].0 == NONE {
                        steps.callers[callee.0 as usize] = (row, number);
                        steps.enter(module, callee, &mut stack);
                    } else if steps.callers[callee.0 as usize].0 != row {
                        steps.repeated.push(row);
                    }
                    continue;
                }
            }
            frame.at += 1;
            frame.calls = 0;
            let step = steps.rows.len() as u32;
            let is_late = |operand: &u32| steps.step_of[*operand as usize] == NONE;
            steps.disordered += u32::from(module.operands(Row(row)).iter().any(is_late));
            steps.step_of[row as usize] = step;
            steps.rows.push(row);
        }
        steps.bound(module);
        steps
    }

    /// Number of steps.
    pub fn len(&self) -> u32 {
        self.rows.len() as u32
    }

    /// The step of `row`.
    #[inline]
    pub fn of(&self, row: u32) -> Option<u32> {
        self.step_of.get(row as usize).copied().filter(|step| *step != NONE)
    }

    fn enter(&mut self, module: &Module, id: ComputationId, stack: &mut Vec<Frame>) {
        let rows = module.computation(id).rows();
        let first_step = self.rows.len() as u32;
        // Marks the computation as entered, so that a recursive call is detected.
        self.spans[id.0 as usize] = (first_step, NONE);
        stack.push(Frame {
            at: rows.start,
            end: rows.end,
            computation: id.0,
            first_step,
            calls: 0,
        });
    }

    fn bound(&mut self, module: &Module) {
        let count = self.len();
        self.ends = (0..count).collect();
        self.starts = (0..count).collect();
        for (index, (start, end)) in self.spans.iter().copied().enumerate() {
            if start == NONE || end == NONE {
                continue;
            }
            let computation = module.computation(ComputationId(index as u32));
            if let Some(step) = self.step_of.get(computation.root as usize)
                && let Some(root_end) = self.ends.get_mut(*step as usize)
            {
                *root_end = end;
            }
            for row in computation.rows() {
                let step = self.step_of[row as usize];
                if module.opcode(Row(row)) == Opcode::Parameter && step != NONE {
                    self.starts[step as usize] = start;
                }
            }
        }
        self.stretch_asynchronous(module);
    }

    /// Extends results of an asynchronous computation to the end of the whole operation.
    fn stretch_asynchronous(&mut self, module: &Module) {
        for index in 0..self.callers.len() {
            let (caller, _) = self.callers[index];
            let (start, end) = self.spans[index];
            if caller == NONE || end == NONE || start == end {
                continue;
            }
            if module.opcode(Row(caller)) != Opcode::AsyncStart {
                continue;
            }
            let Some(done) = last_of_chain(module, caller).and_then(|row| self.of(row)) else {
                continue;
            };
            for step in start..end {
                let bound = &mut self.ends[step as usize];
                *bound = (*bound).max(done);
            }
        }
    }
}

/// The row that ends the asynchronous operation started by `start`.
fn last_of_chain(module: &Module, start: u32) -> Option<u32> {
    let mut row = start;
    for _ in 0..64 {
        let users = module.users().get(row);
        let is_next = |user: &&u32| {
            matches!(module.opcode(Row(**user)), Opcode::AsyncUpdate | Opcode::AsyncDone)
        };
        row = *users.iter().find(is_next)?;
        if module.opcode(Row(row)) == Opcode::AsyncDone {
            return Some(row);
        }
    }
    None
}

/// Whether the computations called by `opcode` have steps of their own.
#[inline]
pub(super) fn may_descend(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::Call | Opcode::Conditional | Opcode::While | Opcode::AsyncStart)
}

/// Callee `number` of `row`, in the order in which callees get their steps.
pub(super) fn nth_call(
    module: &Module,
    row: Row,
    opcode: Opcode,
    number: u32,
) -> Option<ComputationId> {
    if opcode == Opcode::While {
        return match number {
            0 => module.called(row, CallRole::Condition),
            1 => module.called(row, CallRole::Body),
            _ => None,
        };
    }
    module.calls(row).get(number as usize).map(|call| call.computation)
}
