//! Follows one value: back to its origin, and forward to its uses.

use crate::flow::markers::is_marker;
use crate::flow::origin::Path;
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Limit on the steps for following a value.
const MOST_STEPS: usize = 512;
const DEEPEST: usize = 16;

/// Opcodes that keep every element of their first operand.
pub(crate) fn converts(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(opcode, Bitcast | Convert | Copy | Reshape | Transpose | ReducePrecision)
}

/// The fusions and calls around a value, outermost first.
pub(crate) type Calls = SmallVec<[Row; 4]>;

/// A value on its way back to its origin.
#[derive(Clone, Debug)]
pub(crate) struct Trail {
    pub row: Row,
    /// Index path into the result of `row`, innermost index first.
    path: Path,
    /// The fusions and calls that were entered.
    calls: Calls,
    steps: usize,
}

impl Trail {
    pub fn new(row: Row) -> Self {
        Self { row, path: Path::new(), calls: Calls::new(), steps: 0 }
    }

    /// Like `new`, inside the fusions and calls `calls`, outermost first.
    pub fn within(row: Row, calls: &[Row]) -> Self {
        Self { calls: Calls::from_slice(calls), ..Self::new(row) }
    }

    /// The value's index path in the result of `row`, innermost index first.
    pub fn path(&self) -> &[u32] {
        &self.path
    }

    /// The fusions and calls around the value, outermost first.
    pub fn calls(&self) -> &[Row] {
        &self.calls
    }

    /// The value of operand `index` of the current row.
    pub fn operand(&self, module: &Module, index: usize) -> Option<Trail> {
        let row = Row(*module.operands(self.row).get(index)?);
        let calls = Calls::from_slice(&self.calls);
        Some(Trail { row, path: Path::new(), calls, steps: self.steps })
    }

    /// Goes back through rows that pass the value on, and through the first operands of opcodes
    /// that `through` accepts.
    pub fn follow(mut self, module: &Module, through: fn(Opcode) -> bool) -> Trail {
        while self.step(module, through) {}
        self
    }

    /// Goes one step back; false if the value does not come from another row.
    pub fn step(&mut self, module: &Module, through: fn(Opcode) -> bool) -> bool {
        self.steps += 1;
        if self.steps > MOST_STEPS || self.path.len() > DEEPEST {
            return false;
        }
        self.before(module, through).is_some_and(|row| {
            self.row = row;
            true
        })
    }

    fn before(&mut self, module: &Module, through: fn(Opcode) -> bool) -> Option<Row> {
        use Opcode::*;
        let row = self.row;
        let operand = |index: usize| module.operands(row).get(index).map(|row| Row(*row));
        match module.opcode(row) {
            GetTupleElement => {
                let before = operand(0)?;
                self.path.push(u32::try_from(module.tuple_index(row)?).ok()?);
                Some(before)
            }
            Tuple => {
                let before = operand(*self.path.last()? as usize)?;
                self.path.pop();
                Some(before)
            }
            OptBarrier | Domain | AddDependency => operand(0),
            CopyDone => {
                let start = operand(0)?;
                module.operands(start).first().map(|row| Row(*row))
            }
            CustomCall if is_marker(module, row) => operand(0),
            CustomCall if is_concatenation(module, row) => copied_in_parts(module, row),
            Call | Fusion if self.calls.len() < DEEPEST => {
                let callee = module.calls(row).first()?.computation;
                self.calls.push(row);
                Some(Row(module.computation(callee).root))
            }
            While => {
                let body = module.called(row, CallRole::Body)?;
                let index = *self.path.last()? as usize;
                is_kept(module, body, index).then(|| operand(0)).flatten()
            }
            Parameter => {
                let number = usize::try_from(module.parameter_number(row)?).ok()?;
                if let Some(call) = self.calls.pop() {
                    return module.operands(call).get(number).map(|row| Row(*row));
                }
                let id = module.computation_of(row);
                let &[caller] = module.callers(id) else { return None };
                let caller = Row(caller);
                match module.opcode(caller) {
                    Fusion | Call | AsyncStart => {
                        module.operands(caller).get(number).map(|row| Row(*row))
                    }
                    While if number == 0 => {
                        let body = module.called(caller, CallRole::Body)?;
                        let index = *self.path.last()? as usize;
                        let init = module.operands(caller).first().map(|row| Row(*row));
                        is_kept(module, body, index).then_some(init).flatten()
                    }
                    _ => None,
                }
            }
            opcode if through(opcode) => operand(0),
            _ => None,
        }
    }
}

/// Whether `row` takes maxima, as a softmax does of each row of scores.
pub(crate) fn is_maximum(module: &Module, row: Row) -> bool {
    // Compilers for TPUs take the maximum of a row by a window.
    matches!(module.opcode(row), Opcode::Reduce | Opcode::ReduceWindow)
        && module.called(row, CallRole::ToApply).is_some_and(|applied| {
            module.opcode(Row(module.computation(applied).root)) == Opcode::Maximum
        })
}

/// Whether loop body `body` passes element `index` of its state on unchanged. Compilers move such values to
/// fast memory and back.
pub(crate) fn is_kept(module: &Module, body: ComputationId, index: usize) -> bool {
    is_kept_within(module, body, index, &mut { MOST_KEPT })
}

/// Like `is_kept`; `budget` is what may be looked at in this body and in all loops inside it.
fn is_kept_within(module: &Module, body: ComputationId, index: usize, budget: &mut u32) -> bool {
    let root = Row(module.computation(body).root);
    let Some(&element) = module.operands(root).get(index) else { return false };
    module.opcode(root) == Opcode::Tuple
        && is_element(module, Row(element), index, MOST_MOVES, budget)
}

/// Limit on the moves between two iterations.
const MOST_MOVES: u32 = 8;
/// Limit on the rows that are looked at, and so on loops in loops.
const MOST_KEPT: u32 = 512;

/// Whether `row` is element `index` of the parameter of its computation, perhaps moved.
fn is_element(module: &Module, row: Row, index: usize, left: u32, budget: &mut u32) -> bool {
    use Opcode::*;
    let Some(left) = left.checked_sub(1) else { return false };
    let Some(rest) = budget.checked_sub(1) else { return false };
    *budget = rest;
    let mut operands = module.operands(row).iter().map(|row| Row(*row));
    let Some(first) = operands.next() else { return false };
    match module.opcode(row) {
        GetTupleElement if module.opcode(first) == Parameter => {
            module.tuple_index(row) == Some(index)
        }
        // An inner loop hands the value on.
        GetTupleElement if module.opcode(first) == While => {
            let at = module.tuple_index(row);
            let kept = module.called(first, CallRole::Body).zip(at);
            let kept = kept.filter(|(body, at)| is_kept_within(module, *body, *at, budget));
            let before = kept.and_then(|(_, at)| {
                let state = Row(*module.operands(first).first()?);
                let is_tuple = module.opcode(state) == Tuple;
                module.operands(state).get(at).filter(|_| is_tuple).map(|row| Row(*row))
            });
            before.is_some_and(|row| is_element(module, row, index, left, budget))
        }
        CopyStart | CopyDone | AsyncDone => is_element(module, first, index, left, budget),
        AsyncStart if copies_part(module, row) => is_element(module, first, index, left, budget),
        CustomCall if is_concatenation(module, row) => std::iter::once(first)
            .chain(operands)
            .all(|row| is_element(module, row, index, left, budget)),
        _ => false,
    }
}

/// Whether the computation of async-start `row` only copies its operand or a part of it.
pub(crate) fn copies_part(module: &Module, row: Row) -> bool {
    let called = module.calls(row).first().map(|call| module.computation(call.computation));
    called.is_some_and(|called| {
        let root = module.opcode(Row(called.root));
        converts(root) || matches!(root, Opcode::Slice | Opcode::DynamicSlice)
    })
}

/// The array of which `row` puts the parts together.
fn copied_in_parts(module: &Module, row: Row) -> Option<Row> {
    let first = |row: Row| module.operands(row).first().map(|row| Row(*row));
    let source = |done: Row| {
        let start = Some(done).filter(|row| module.opcode(*row) == Opcode::AsyncDone);
        let start = first(start?).filter(|row| module.opcode(*row) == Opcode::AsyncStart)?;
        copies_part(module, start).then(|| first(start)).flatten()
    };
    let mut sources = module.operands(row).iter().map(|part| source(Row(*part)));
    let whole = sources.next()??;
    sources.all(|own| own == Some(whole)).then_some(whole)
}

/// Whether `row` puts the parts of an array, copied to fast memory one by one, together.
pub(crate) fn is_concatenation(module: &Module, row: Row) -> bool {
    module.attribute_bytes(row, "custom_call_target") == Some(b"\"ConcatBitcast\"")
}

/// A use of a value.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    /// The row that uses the value.
    pub row: Row,
    /// The operand position.
    pub operand: usize,
    /// The fusions and calls around it, outermost first.
    pub calls: Calls,
}

/// How many uses of a value are examined.
const MOST_USES: usize = 256;
/// How many operands are searched for uses.
const MOST_OPERANDS: usize = 1 << 14;

/// A module with caches that speed up many walks through the same tuples and fusions.
pub(crate) struct Walk<'a> {
    pub module: &'a Module,
    elements: RefCell<HashMap<Row, Rc<Elements>, BuildMix>>,
}

/// The users of a tuple.
struct Elements {
    /// Get-tuple-elements with their indices, ascending by index.
    taken: Vec<(usize, Row)>,
    /// All other users.
    others: Vec<Row>,
}

impl<'a> Walk<'a> {
    pub fn new(module: &'a Module) -> Self {
        Self { module, elements: RefCell::default() }
    }

    fn elements(&self, row: Row) -> Rc<Elements> {
        let module = self.module;
        let find = || {
            let mut elements = Elements { taken: Vec::new(), others: Vec::new() };
            for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
                match module.opcode(user) {
                    Opcode::GetTupleElement => {
                        elements.taken.extend(module.tuple_index(user).map(|index| (index, user)));
                    }
                    _ => elements.others.push(user),
                }
            }
            elements.taken.sort_unstable();
            Rc::new(elements)
        };
        self.elements.borrow_mut().entry(row).or_insert_with(find).clone()
    }

    /// Parameter `number` of computation `id`.
    fn parameter(&self, id: ComputationId, number: u64) -> Option<Row> {
        let rows = self.module.parameter_rows(id);
        let number_of = |row: &&u32| self.module.parameter_number(Row(**row));
        let is_it = |row: &&u32| number_of(row) == Some(number);
        // The numbers of a computation of a valid module have no gaps.
        let likely = usize::try_from(number).ok().and_then(|at| rows.get(at)).filter(is_it);
        let search = || rows.get(rows.partition_point(|row| number_of(&row) < Some(number)));
        likely.or_else(|| search().filter(is_it)).map(|row| Row(*row))
    }

    /// Whether tuple `row` is only used by get-tuple-elements.
    fn is_taken_apart(&self, row: Row) -> bool {
        let id = self.module.computation_of(row);
        self.module.computation(id).root != row.0 && self.elements(row).others.is_empty()
    }

    /// The rows that take element `index` out of tuple `row`, which lies inside `calls`.
    fn takers(&self, row: Row, index: usize, calls: &[Row]) -> Next {
        let elements = self.elements(row);
        let first = elements.taken.partition_point(|(other, _)| *other < index);
        let rows = elements.taken[first..].iter().take_while(|(other, _)| *other == index);
        // One row more than the limit makes the caller give up.
        rows.take(MOST_STEPS + 1).map(|(_, user)| (*user, Calls::from_slice(calls))).collect()
    }
}

/// Whether a value may be followed through the row that takes it as the given operand.
pub(crate) type Passes = fn(&Module, Row, usize) -> bool;

/// Rows that keep every element of their operand.
pub(crate) fn conversions(module: &Module, row: Row, operand: usize) -> bool {
    operand == 0 && converts(module.opcode(row))
}

/// The uses of the result of `row`, looking through rows that `passes` accepts, into and out of
/// fusions, and through tuples that are taken apart again. None if the value leaves the
/// computation, has too many uses, or has a use that `wanted` rejects.
pub(crate) fn uses(
    walk: &Walk<'_>,
    row: Row,
    passes: Passes,
    wanted: impl Fn(&Use) -> bool,
) -> Option<Vec<Use>> {
    uses_within(walk, row, &[], passes, wanted)
}

/// Like `uses`, for a row inside the fusions and calls `calls`, outermost first.
pub(crate) fn uses_within(
    walk: &Walk<'_>,
    row: Row,
    calls: &[Row],
    passes: Passes,
    wanted: impl Fn(&Use) -> bool,
) -> Option<Vec<Use>> {
    let module = walk.module;
    let mut uses = Vec::new();
    let mut stack: Next = smallvec![(row, Calls::from_slice(calls))];
    let mut steps = 0;
    let mut operands = 0;
    while let Some((row, calls)) = stack.pop() {
        steps += 1;
        if steps > MOST_STEPS {
            return None;
        }
        let computation = module.computation(module.computation_of(row));
        if computation.root == row.0 {
            let (&call, around) = calls.split_last()?;
            stack.push((call, Calls::from_slice(around)));
        }
        for user in module.users().get(row.0).iter().map(|user| Row(*user)) {
            operands += module.operands(user).len();
            if operands > MOST_OPERANDS {
                return None;
            }
            for (index, operand) in module.operands(user).iter().enumerate() {
                if *operand != row.0 {
                    continue;
                }
                follow_use(walk, Use { row: user, operand: index, calls: calls.clone() }, passes)
                    .map_or_else(
                        |used| {
                            let is_wanted = wanted(&used) && uses.len() < MOST_USES;
                            uses.push(used);
                            is_wanted
                        },
                        |next| {
                            stack.extend(next);
                            true
                        },
                    )
                    .then_some(())?;
            }
        }
    }
    Some(uses)
}

/// Rows that hold a value next, each with the calls around it.
type Next = SmallVec<[(Row, Calls); 1]>;

/// The next uses of the value if `used` only passes it on; otherwise `used` itself.
fn follow_use(walk: &Walk<'_>, used: Use, passes: Passes) -> Result<Next, Use> {
    use Opcode::*;
    let module = walk.module;
    let row = used.row;
    match module.opcode(row) {
        Fusion | Call if used.calls.len() < DEEPEST => {
            let callee = module.calls(row).first().map(|call| call.computation);
            let number = used.operand as u64;
            match callee.and_then(|id| walk.parameter(id, number)) {
                Some(parameter) => {
                    let mut calls = used.calls;
                    calls.push(row);
                    Ok(smallvec![(parameter, calls)])
                }
                None => Err(used),
            }
        }
        Tuple => {
            let is_root = module.computation(module.computation_of(row)).root == row.0;
            if let (true, Some((call, around))) = (is_root, used.calls.split_last()) {
                let is_apart = walk.is_taken_apart(*call);
                return if is_apart {
                    Ok(walk.takers(*call, used.operand, around))
                } else {
                    Err(used)
                };
            }
            let elements = walk.elements(row);
            if is_root || elements.others.len() > MOST_USES {
                return Err(used);
            }
            let mut next = SmallVec::new();
            for user in &elements.others {
                if module.opcode(*user) != OptBarrier || !walk.is_taken_apart(*user) {
                    return Err(used);
                }
                next.extend(walk.takers(*user, used.operand, &used.calls));
            }
            next.extend(walk.takers(row, used.operand, &used.calls));
            Ok(next)
        }
        OptBarrier | Domain | CopyStart | CopyDone if used.operand == 0 => {
            Ok(smallvec![(row, used.calls)])
        }
        _ if passes(module, row, used.operand) => Ok(smallvec![(row, used.calls)]),
        _ => Err(used),
    }
}
