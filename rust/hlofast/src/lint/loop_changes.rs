//! How values change between the iterations of loops, for `loop-invariant-collective`.
//!
//! A loop inside another one, such as the one over layers in the one over microbatches, computes equal values from
//! equal parts of what the outer loop keeps: in iteration k of the inner loop, the weights of layer k. These change
//! from layer to layer, but not from microbatch to microbatch.

use crate::flow::walk::{Trail, converts, is_kept};
use crate::ir::intern::BuildMix;
use crate::ir::{Call, CallRole, ComputationId, Module, Opcode, Row};
use std::cell::OnceCell;
use std::collections::HashMap;

/// How a value changes between iterations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Constancy {
    /// Computed from constants only. Loops that send such values come from compilers, not from
    /// programs.
    Constant,
    /// Computed from values that the loop passes on unchanged.
    Kept,
    /// The value may change.
    Changes,
}

/// Limit on the passes through one body until the state of an inner loop is settled.
const MOST_PASSES: usize = 16;
/// Limit on loops in loops.
const DEEPEST: usize = 8;

/// The changes of a module.
pub(super) struct Changes<'a> {
    module: &'a Module,
    varying: OnceCell<Vec<bool>>,
    /// By body of a loop, and by body of a loop inside it, or the same body: how its rows change between iterations of
    /// the first.
    known: HashMap<(ComputationId, ComputationId), Vec<Constancy>, BuildMix>,
}

impl<'a> Changes<'a> {
    pub fn new(module: &'a Module) -> Self {
        Self { module, varying: OnceCell::new(), known: HashMap::default() }
    }

    /// The loops around `row` whose bodies contain each other directly, innermost first.
    pub fn loops(&self, row: Row) -> Vec<Row> {
        let next = |row: &Row| loop_of(self.module, self.module.computation_of(*row));
        std::iter::successors(next(&row), next).take(DEEPEST).collect()
    }

    /// How the operands of `row` change between iterations of the loop `around` the scheduled instruction `outer`,
    /// which is `row` or has it inside.
    pub fn of_operands(&mut self, row: Row, outer: Row, around: Row) -> Option<Constancy> {
        let module = self.module;
        let body = module.computation_of(outer);
        let rows = self.of_rows(module.called(around, CallRole::Body)?, body, DEEPEST)?;
        let first = module.computation(body).first_row;
        let known = |row: Row| {
            let at = row.0.checked_sub(first).and_then(|at| rows.get(at as usize));
            at.copied().unwrap_or(Constancy::Changes)
        };
        let own = module.operands(row).iter().map(|row| outside(module, Row(*row), body));
        match own.collect::<Option<Vec<Row>>>() {
            Some(own) => own.into_iter().map(known).max(),
            None => module.operands(outer).iter().map(|row| known(Row(*row))).max(),
        }
    }

    /// By row of `body`: how it changes between iterations of the loop with body `outer`.
    fn of_rows(
        &mut self,
        outer: ComputationId,
        body: ComputationId,
        left: usize,
    ) -> Option<&[Constancy]> {
        let left = left.checked_sub(1)?;
        if !self.known.contains_key(&(outer, body)) {
            let is_inner = outer != body;
            let mut state =
                if is_inner { self.state(outer, body, left)? } else { self.own_state(body) };
            let mut rows = self.rows(body, &state);
            // An inner loop changes its own state; what its iterations make of kept values is kept.
            for passes in (0..).take_while(|_| is_inner) {
                let next = self.next(body, &rows);
                let more: Vec<Constancy> =
                    state.iter().zip(&next).map(|(own, next)| *own.max(next)).collect();
                if more == state {
                    break;
                }
                state =
                    if passes < MOST_PASSES { more } else { vec![Constancy::Changes; state.len()] };
                rows = self.rows(body, &state);
            }
            self.known.insert((outer, body), rows);
        }
        self.known.get(&(outer, body)).map(Vec::as_slice)
    }

    /// By element of the state of the loop with body `body`: how it changes from iteration to iteration.
    fn own_state(&self, body: ComputationId) -> Vec<Constancy> {
        let root = Row(self.module.computation(body).root);
        let elements = 0..self.module.operands(root).len();
        let change = |index| match is_kept(self.module, body, index) {
            true => Constancy::Kept,
            false => Constancy::Changes,
        };
        elements.map(change).collect()
    }

    /// By element of the state of the loop with body `body`: how its first value changes between iterations of the
    /// loop with body `outer`.
    fn state(
        &mut self,
        outer: ComputationId,
        body: ComputationId,
        left: usize,
    ) -> Option<Vec<Constancy>> {
        let module = self.module;
        let around = loop_of(module, body)?;
        let parent = module.computation_of(around);
        let first = module.computation(parent).first_row;
        let tuple = Row(*module.operands(around).first()?);
        let count = module.operands(Row(module.computation(body).root)).len();
        let rows = self.of_rows(outer, parent, left)?;
        let change = |row: &u32| {
            let at = row.checked_sub(first).and_then(|at| rows.get(at as usize));
            at.copied().unwrap_or(Constancy::Changes)
        };
        if module.opcode(tuple) != Opcode::Tuple {
            return Some(vec![change(&tuple.0).max(Constancy::Kept); count]);
        }
        Some(module.operands(tuple).iter().map(change).collect())
    }

    /// By element of the state of a loop: how what its body hands on changes.
    fn next(&self, body: ComputationId, rows: &[Constancy]) -> Vec<Constancy> {
        let computation = self.module.computation(body);
        let place = |row: &u32| row.checked_sub(computation.first_row).map(|at| at as usize);
        let root = Row(computation.root);
        let operands = self.module.operands(root).iter();
        let known = |row: &u32| place(row).and_then(|at| rows.get(at)).copied();
        let is_tuple = self.module.opcode(root) == Opcode::Tuple;
        operands.map(|row| known(row).filter(|_| is_tuple).unwrap_or(Constancy::Changes)).collect()
    }

    /// By row of loop body `body`, whose state changes as `state` says: how the row changes.
    fn rows(&self, body: ComputationId, state: &[Constancy]) -> Vec<Constancy> {
        use Opcode::*;
        let module = self.module;
        let varying = self.varying.get_or_init(|| varying_computations(module));
        let computation = module.computation(body);
        let mut rows = vec![Constancy::Changes; computation.rows().len()];
        let place = |row: u32| row.checked_sub(computation.first_row).map(|at| at as usize);
        for row in module.post_order(body) {
            let operands = module.operands(Row(row));
            let most = || {
                let known = |row: &u32| place(*row).and_then(|at| rows.get(at)).copied();
                operands.iter().map(|row| known(row).unwrap_or(Constancy::Changes)).max()
            };
            let is_state =
                || operands.first().is_some_and(|row| module.opcode(Row(*row)) == Parameter);
            let change = match module.opcode(Row(row)) {
                GetTupleElement if is_state() => {
                    let index = module.tuple_index(Row(row));
                    let own = index.and_then(|index| state.get(index)).copied();
                    own.unwrap_or(Constancy::Changes)
                }
                GetTupleElement => {
                    // One element of a tuple, or what an inner loop hands on.
                    let element = handed_on(module, Row(row)).and_then(|row| place(row.0));
                    let own = element.and_then(|at| rows.get(at)).copied();
                    own.or_else(most).unwrap_or(Constancy::Changes)
                }
                Constant | Iota | PartitionId | ReplicaId => Constancy::Constant,
                Parameter | AfterAll => Constancy::Changes,
                opcode if varies(opcode) => Constancy::Changes,
                _ if calls_varying(module.calls(Row(row)), varying) => Constancy::Changes,
                _ => most().unwrap_or(Constancy::Changes),
            };
            if let Some(slot) = place(row).and_then(|at| rows.get_mut(at)) {
                *slot = change;
            }
        }
        rows
    }
}

/// The row of `body` whose value `row`, perhaps inside a fusion, is.
fn outside(module: &Module, row: Row, body: ComputationId) -> Option<Row> {
    let mut trail = Trail::new(row);
    while module.computation_of(trail.row) != body || !trail.path().is_empty() {
        if !trail.step(module, converts) {
            return None;
        }
    }
    Some(trail.row)
}

/// The element of a tuple in the same computation that get-tuple-element `row` is, perhaps through a loop that keeps
/// it.
fn handed_on(module: &Module, row: Row) -> Option<Row> {
    let index = module.tuple_index(row)?;
    let before = Row(*module.operands(row).first()?);
    let tuple = match module.opcode(before) {
        Opcode::While => {
            let body = module.called(before, CallRole::Body)?;
            let state = module.operands(before).first().filter(|_| is_kept(module, body, index));
            Row(*state?)
        }
        _ => before,
    };
    let is_tuple = module.opcode(tuple) == Opcode::Tuple;
    module.operands(tuple).get(index).filter(|_| is_tuple).map(|row| Row(*row))
}

/// The loop whose body is `body`.
fn loop_of(module: &Module, body: ComputationId) -> Option<Row> {
    let &[around] = module.callers(body) else { return None };
    (module.called(Row(around), CallRole::Body) == Some(body)).then_some(Row(around))
}

/// Opcodes whose result comes from outside or may differ from call to call.
fn varies(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        Rng | RngBitGenerator
            | RngGetAndUpdateState
            | Infeed
            | Outfeed
            | Recv
            | RecvDone
            | Send
            | SendDone
            | CustomCall
            | Unknown
    )
}

/// By computation: whether equal arguments may give different results.
fn varying_computations(module: &Module) -> Vec<bool> {
    let mut varying = vec![false; module.computations().len()];
    for id in module.computation_post_order().iter().copied() {
        let rows = module.computation(id).rows();
        let own = &module.columns().opcodes[rows.start as usize..rows.end as usize];
        let calls = &module.all_calls()[module.calls_within(id)];
        varying[id.0 as usize] =
            own.iter().any(|opcode| varies(*opcode)) || calls_varying(calls, &varying);
    }
    varying
}

fn calls_varying(calls: &[Call], varying: &[bool]) -> bool {
    let is_varying = |id: ComputationId| varying.get(id.0 as usize).copied().unwrap_or(true);
    calls.iter().any(|call| is_varying(call.computation))
}
