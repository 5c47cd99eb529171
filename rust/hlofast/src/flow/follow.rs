//! Follows a value backwards through instructions that only pass it on: tuples, copies, calls,
//! fusions, loops that leave it unchanged.

use super::linear::{IntegerType, Linear};
use super::origin::Path;
use crate::ir::decode::{Extent, Literal};
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row, ShapeId, ShapeView};
use std::collections::HashMap;

/// Why a trip count is unknown, as a message.
pub(super) type Reason = &'static str;

pub(super) const TOO_COMPLEX: Reason = "the loop is too complex to follow";
const CYCLE: Reason = "the loop's state depends on itself";
const NO_CALLER: Reason = "the trip count depends on an entry parameter";
const MANY_CALLERS: Reason = "call sites or branches may pass different values";
const FROM_DATA: Reason = "the trip count depends on computed data";
const LOOP_VARIES: Reason = "the trip count depends on the result of another loop";

/// Limit on the nesting of values, calls and loops; beyond it, trip counts are unknown.
const DEPTH_LIMIT: u32 = 96;
/// Limit on the nesting of tuples. Paths are stored, so their length bounds memory.
const LONGEST_PATH: usize = 32;
/// Limit on the call sites that are compared with each other.
const MOST_CALLERS: usize = 8;

/// A computation seen from one call site.
#[derive(Clone, Copy, Debug)]
enum Frame {
    /// Called from any of its call sites.
    Anywhere,
    /// Runs as the condition or body of this loop: parameter 0 is the loop's state.
    Loop(Row),
    /// Called from `row` in another frame. Parameter `n` is operand `operand + n` of `row`.
    Called { frame: usize, row: Row, operand: usize },
}

/// A value: element `path` of `row` in a frame.
#[derive(Clone, Debug)]
pub(super) struct Place {
    frame: usize,
    pub(super) row: Row,
    pub(super) path: Path,
}

/// Where following a value backwards ends.
enum Origin {
    /// The instruction that computes the value, or a constant.
    Computed(Place),
    /// An element of a loop's state.
    State(Row, IntegerType, Path),
    /// One of several values, which may be equal.
    OneOf(Vec<Place>),
}

enum Step {
    InProgress,
    Done(Result<Linear, Reason>),
}

/// Follows values of one module. Its budget bounds the total work.
pub(super) struct Tracer<'a> {
    pub(super) module: &'a Module,
    frames: Vec<Frame>,
    /// By element of a loop's state: its value after one iteration.
    steps: HashMap<(Row, Path), Step, BuildMix>,
    /// By element of a loop's state: its value, if it is the same constant in all iterations.
    kept: HashMap<(Row, Path), Option<i128>, BuildMix>,
    budget: usize,
    depth: u32,
}

impl<'a> Tracer<'a> {
    pub(super) fn new(module: &'a Module, budget: usize) -> Self {
        let (steps, kept) = Default::default();
        Self { module, frames: vec![Frame::Anywhere], steps, kept, budget, depth: 0 }
    }

    /// Element `path` of the root of `computation`, the condition or body of loop `row`, whose
    /// parameter is the loop's state.
    pub(super) fn root_in_loop(
        &mut self,
        row: Row,
        computation: ComputationId,
        path: Path,
    ) -> Place {
        self.frames.push(Frame::Loop(row));
        let root = Row(self.module.computation(computation).root);
        Place { frame: self.frames.len() - 1, row: root, path }
    }

    /// Operand `index` of an instruction in the same frame.
    pub(super) fn operand(&self, place: &Place, index: usize) -> Option<Place> {
        let row = Row(*self.module.operands(place.row).get(index)?);
        Some(Place { frame: place.frame, row, path: Path::new() })
    }

    /// The value of element `path` of the state of `while_row` after one iteration.
    pub(super) fn step(&mut self, while_row: Row, path: &Path) -> Result<Linear, Reason> {
        let key = (while_row, path.clone());
        match self.steps.get(&key) {
            Some(Step::InProgress) => return Err(CYCLE),
            Some(Step::Done(value)) => return value.clone(),
            None => {}
        }
        let body = self.module.called(while_row, CallRole::Body).ok_or("the loop has no body")?;
        self.steps.insert(key.clone(), Step::InProgress);
        let root = self.root_in_loop(while_row, body, path.clone());
        let value = self.linear(root);
        self.steps.insert(key, Step::Done(value.clone()));
        value
    }

    /// Element `path` of the initial state of loop `while_row`.
    pub(super) fn start(&mut self, while_row: Row, path: &Path) -> Result<Linear, Reason> {
        let state = self.module.operands(while_row).first().ok_or("the loop has no state")?;
        self.linear(Place { frame: 0, row: Row(*state), path: path.clone() })
    }

    /// The value of element `path` of a loop's state, if it is the same in all iterations.
    fn kept_constant(&mut self, while_row: Row, path: &Path) -> Option<i128> {
        let key = (while_row, path.clone());
        if let Some(value) = self.kept.get(&key) {
            return *value;
        }
        if let Some(Step::InProgress) = self.steps.get(&key) {
            return None;
        }
        // Until the answer is known, a nested query for this element gets "varies", which is always
        // safe.
        self.kept.insert(key.clone(), None);
        let stays = self.step(while_row, path).is_ok_and(|step| step.is_element(path));
        let start = if stays { self.start(while_row, path).ok() } else { None };
        let value = start.and_then(|start| start.as_constant());
        self.kept.insert(key, value);
        value
    }

    /// `place` as a linear form of one element of the surrounding loop's state, or as a constant.
    pub(super) fn linear(&mut self, place: Place) -> Result<Linear, Reason> {
        self.depth += 1;
        let value = if self.depth > DEPTH_LIMIT { Err(TOO_COMPLEX) } else { self.evaluate(place) };
        self.depth -= 1;
        value
    }

    fn evaluate(&mut self, place: Place) -> Result<Linear, Reason> {
        let place = match self.origin(place)? {
            Origin::State(while_row, integer_type, path) => {
                return Ok(match self.kept_constant(while_row, &path) {
                    Some(value) => Linear::constant(integer_type, value),
                    None => Linear::state(integer_type, path),
                });
            }
            Origin::OneOf(places) => return self.common(places),
            Origin::Computed(place) => place,
        };
        let row = place.row;
        let opcode = self.module.opcode(row);
        if !place.path.is_empty() {
            return Err(if opcode == Opcode::While { LOOP_VARIES } else { FROM_DATA });
        }
        let no_integer = "a compared value is not an integer";
        let integer_type = self.integer_type(self.module.shape(row)).ok_or(no_integer)?;
        let mut operand = |index: usize| {
            let operand = self.operand(&place, index).ok_or("an operand is missing")?;
            self.linear(operand)
        };
        let not_linear = "the trip count is not linear in the loop's state";
        let binary = |fold: fn(i128, i128) -> Option<i128>, a: Linear, b: Linear| {
            let value = a.as_constant().zip(b.as_constant()).and_then(|(a, b)| fold(a, b));
            Ok(Linear::constant(integer_type, value.ok_or(not_linear)?))
        };
        match opcode {
            Opcode::Constant => self.constant(row, integer_type),
            Opcode::Add => operand(0)?.plus(operand(1)?, 1).ok_or(not_linear),
            Opcode::Subtract => operand(0)?.plus(operand(1)?, -1).ok_or(not_linear),
            Opcode::Multiply => operand(0)?.times(operand(1)?).ok_or(not_linear),
            Opcode::Negate => {
                let zero = Linear::constant(integer_type, 0);
                zero.plus(operand(0)?, -1).ok_or(not_linear)
            }
            Opcode::Convert => operand(0)?.converted(integer_type).ok_or(not_linear),
            Opcode::BitcastConvert | Opcode::Bitcast => {
                operand(0)?.reinterpreted(integer_type).ok_or(not_linear)
            }
            Opcode::Maximum => binary(|a, b| Some(a.max(b)), operand(0)?, operand(1)?),
            Opcode::Minimum => binary(|a, b| Some(a.min(b)), operand(0)?, operand(1)?),
            Opcode::Divide => binary(i128::checked_div, operand(0)?, operand(1)?),
            Opcode::Remainder => binary(i128::checked_rem, operand(0)?, operand(1)?),
            Opcode::Select => {
                let places = [1, 2].map(|index| self.operand(&place, index));
                self.common(places.into_iter().flatten().collect())
            }
            _ => Err(FROM_DATA),
        }
    }

    /// The value of `places`, if all of them have the same value.
    fn common(&mut self, places: Vec<Place>) -> Result<Linear, Reason> {
        let mut common: Option<Linear> = None;
        for place in places {
            let value = self.linear(place)?;
            match &common {
                None => common = Some(value),
                Some(other) if *other == value => {}
                Some(_) => {
                    return Err("the trip count depends on which of several values is selected");
                }
            }
        }
        common.ok_or("an operand or branch is missing")
    }

    /// The boolean constant `row`.
    pub(super) fn boolean(&self, row: Row) -> Option<bool> {
        let value = self.single_element(row)?;
        value.first().map(|byte| *byte != 0)
    }

    /// The bytes of a constant that has one element.
    fn single_element(&self, row: Row) -> Option<Vec<u8>> {
        let payload = self.module.bytes(self.module.opcode_and_payload(row).1);
        let shape = self.module.shape(row);
        let elements = self.module.shape_elements(shape);
        let literal = Literal::split(payload, self.module.shapes(), shape).ok()?;
        let data =
            (elements == 1).then(|| literal.decode(0, self.module.shapes()).ok()).flatten()?;
        (data.count == 1 && data.extent != Extent::Elided).then_some(data.bytes)
    }

    fn constant(&self, row: Row, integer_type: IntegerType) -> Result<Linear, Reason> {
        let bytes = self.single_element(row).ok_or("a constant is not a single number")?;
        let value = bytes.iter().rev().fold(0i128, |value, byte| value << 8 | i128::from(*byte));
        Ok(Linear::constant(integer_type, value))
    }

    /// The integer type of a shape's elements.
    pub(super) fn integer_type(&self, shape: ShapeId) -> Option<IntegerType> {
        IntegerType::new(self.module.shapes().array(shape)?.element_type)
    }

    /// Follows `place` to the instruction that computes it; also used for booleans.
    pub(super) fn computed(&mut self, place: Place) -> Result<Place, Reason> {
        match self.origin(place)? {
            Origin::Computed(place) if place.path.is_empty() => Ok(place),
            Origin::Computed(_) => Err(FROM_DATA),
            Origin::State(..) => Err("the condition is part of the loop's state"),
            Origin::OneOf(_) => Err(MANY_CALLERS),
        }
    }

    fn origin(&mut self, mut place: Place) -> Result<Origin, Reason> {
        loop {
            self.pay_for(place.row)?;
            let module = self.module;
            let row = place.row;
            let operand = |index: usize| module.operands(row).get(index).map(|row| Row(*row));
            let next = match module.opcode(row) {
                Opcode::GetTupleElement => {
                    let index = module.tuple_index(row).and_then(|n| u32::try_from(n).ok());
                    if place.path.len() >= LONGEST_PATH {
                        return Err(TOO_COMPLEX);
                    }
                    place.path.push(index.ok_or("an index is missing")?);
                    operand(0)
                }
                Opcode::Tuple => match place.path.pop() {
                    Some(index) => operand(index as usize),
                    None => return Err("a compared value is a whole tuple"),
                },
                Opcode::Copy
                | Opcode::Reshape
                | Opcode::Broadcast
                | Opcode::Transpose
                | Opcode::Slice
                | Opcode::DynamicSlice
                | Opcode::Reverse
                | Opcode::OptBarrier
                | Opcode::AddDependency
                | Opcode::Domain => operand(0),
                Opcode::Bitcast if self.keeps_type(row) => operand(0),
                Opcode::CustomCall if passes_value_on(module, row) => operand(0),
                Opcode::CopyDone => operand(0)
                    .filter(|start| module.opcode(*start) == Opcode::CopyStart)
                    .and_then(|start| module.operands(start).first().map(|row| Row(*row))),
                Opcode::AsyncDone => {
                    let mut start = operand(0);
                    while let Some(row) = start
                        && module.opcode(row) == Opcode::AsyncUpdate
                    {
                        self.pay_for(row)?;
                        start = module.operands(row).first().map(|row| Row(*row));
                    }
                    start
                        .filter(|start| module.opcode(*start) == Opcode::AsyncStart)
                        .and_then(|start| self.enter(&mut place.frame, start))
                }
                Opcode::Fusion | Opcode::Call => self.enter(&mut place.frame, row),
                Opcode::While => {
                    if !self.step(row, &place.path)?.is_element(&place.path) {
                        return Ok(Origin::Computed(place));
                    }
                    operand(0)
                }
                Opcode::Conditional => return Ok(Origin::OneOf(self.branches(place)?)),
                Opcode::Parameter => match self.argument(&mut place)? {
                    Argument::Passed => continue,
                    Argument::Ended(origin) => return Ok(origin),
                },
                _ => return Ok(Origin::Computed(place)),
            };
            place.row = next.ok_or("an operand is missing")?;
        }
    }

    /// Deducts a visit of `row` from the budget. Each visit searches the attributes, so longer rows
    /// cost more.
    fn pay_for(&mut self, row: Row) -> Result<(), Reason> {
        const BYTES_PER_UNIT: usize = 256;
        let columns = self.module.columns();
        let bounds =
            (columns.name_starts.get(row.0 as usize), columns.tail_ends.get(row.0 as usize));
        let (Some(start), Some(end)) = bounds else { return Err(TOO_COMPLEX) };
        let units = 1 + end.saturating_sub(*start) as usize / BYTES_PER_UNIT;
        self.budget = self.budget.checked_sub(units).ok_or(TOO_COMPLEX)?;
        Ok(())
    }

    fn keeps_type(&self, row: Row) -> bool {
        let operand = self.module.operands(row).first();
        let code = |row: Row| self.module.shapes().code(self.module.shape(row));
        operand.is_some_and(|operand| code(Row(*operand)) == code(row))
    }

    /// The root of the one computation that `row` calls, in a new frame.
    fn enter(&mut self, frame: &mut usize, row: Row) -> Option<Row> {
        let [call] = self.module.calls(row) else { return None };
        self.frames.push(Frame::Called { frame: *frame, row, operand: 0 });
        *frame = self.frames.len() - 1;
        Some(Row(self.module.computation(call.computation).root))
    }

    /// The roots of a conditional's branches, each in a new frame.
    fn branches(&mut self, place: Place) -> Result<Vec<Place>, Reason> {
        let calls = self.module.calls(place.row);
        if calls.len() > MOST_CALLERS {
            return Err(TOO_COMPLEX);
        }
        let mut places = Vec::with_capacity(calls.len());
        for (index, call) in calls.iter().enumerate() {
            let operand = branch_operand(call.role, index);
            self.frames.push(Frame::Called { frame: place.frame, row: place.row, operand });
            places.push(Place {
                frame: self.frames.len() - 1,
                row: Row(self.module.computation(call.computation).root),
                path: place.path.clone(),
            });
        }
        Ok(places)
    }

    /// The argument of a parameter.
    fn argument(&mut self, place: &mut Place) -> Result<Argument, Reason> {
        let module = self.module;
        let number = module.parameter_number(place.row).and_then(|n| usize::try_from(n).ok());
        let number = number.ok_or("a parameter has no number")?;
        match self.frames.get(place.frame).copied().unwrap_or(Frame::Anywhere) {
            Frame::Called { frame, row, operand } => {
                let index = operand.checked_add(number).ok_or(TOO_COMPLEX)?;
                let row = module.operands(row).get(index).ok_or("an argument is missing")?;
                (place.frame, place.row) = (frame, Row(*row));
                Ok(Argument::Passed)
            }
            Frame::Loop(while_row) => {
                let shape = self.element(module.shape(place.row), &place.path);
                let shape = shape.filter(|shape| module.shape_elements(*shape) == 1);
                let integer_type = shape.and_then(|shape| self.integer_type(shape));
                let integer_type =
                    integer_type.ok_or("an element of the loop's state is not an integer")?;
                let path = std::mem::take(&mut place.path);
                Ok(Argument::Ended(Origin::State(while_row, integer_type, path)))
            }
            Frame::Anywhere => self.argument_from_anywhere(place, number),
        }
    }

    /// The argument of parameter `number` of a computation at its call sites.
    fn argument_from_anywhere(
        &mut self,
        place: &mut Place,
        number: usize,
    ) -> Result<Argument, Reason> {
        let module = self.module;
        let computation = module.computation_of(place.row);
        if computation == module.entry() {
            return Err(NO_CALLER);
        }
        let mut places = Vec::new();
        let callers = module.callers(computation);
        if callers.len() > MOST_CALLERS {
            return Err(MANY_CALLERS);
        }
        for caller in callers.iter().map(|row| Row(*row)) {
            let calls = module.calls(caller);
            if calls.len() > MOST_CALLERS {
                return Err(TOO_COMPLEX);
            }
            for (index, call) in calls.iter().enumerate() {
                if call.computation != computation {
                    continue;
                }
                let first = match (module.opcode(caller), call.role) {
                    (Opcode::While, CallRole::Condition | CallRole::Body) => {
                        if !self.step(caller, &place.path)?.is_element(&place.path) {
                            return Err("a bound changes in the surrounding loop");
                        }
                        0
                    }
                    (Opcode::Conditional, role) if number == 0 => branch_operand(role, index),
                    (Opcode::Fusion | Opcode::Call | Opcode::AsyncStart, _) => 0,
                    // These opcodes only repeat the call of the start.
                    (Opcode::AsyncUpdate | Opcode::AsyncDone, _) => continue,
                    _ => return Err("the trip count depends on a computation applied per element"),
                };
                let index = first.checked_add(number).ok_or(TOO_COMPLEX)?;
                let row = module.operands(caller).get(index).ok_or("an argument is missing")?;
                places.push(Place { frame: 0, row: Row(*row), path: place.path.clone() });
            }
        }
        if places.len() > 1 {
            return Ok(Argument::Ended(Origin::OneOf(places)));
        }
        *place = places.pop().ok_or("nothing calls the computation")?;
        Ok(Argument::Passed)
    }

    /// The shape of element `path` of `shape`.
    fn element(&self, shape: ShapeId, path: &[u32]) -> Option<ShapeId> {
        path.iter().rev().try_fold(shape, |shape, index| match self.module.shapes().get(shape) {
            ShapeView::Tuple(children) => children.get(*index as usize).copied(),
            _ => None,
        })
    }
}

enum Argument {
    /// `place` was moved to the argument.
    Passed,
    Ended(Origin),
}

/// The operand passed to parameter 0 of a conditional's branch; `index` counts its calls.
fn branch_operand(role: CallRole, index: usize) -> usize {
    match role {
        CallRole::TrueComputation => 1,
        CallRole::FalseComputation => 2,
        _ => index + 1,
    }
}

/// Whether `row` is a custom call that marks a value and returns it.
fn passes_value_on(module: &Module, row: Row) -> bool {
    const MARKERS: [&[u8]; 9] = [
        b"Sharding",
        b"SPMDFullToShardShape",
        b"SPMDShardToFullShape",
        b"LayoutConstraint",
        b"annotate_device_placement",
        b"MoveToHost",
        b"MoveToDevice",
        b"pipeline_marker",
        b"xla_fallback_pipeline_marker",
    ];
    let target = module.attribute_bytes(row, "custom_call_target").unwrap_or_default();
    let target = target.get(1..target.len().saturating_sub(1)).unwrap_or_default();
    MARKERS.contains(&target)
}
