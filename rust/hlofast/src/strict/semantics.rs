//! Consistency rules between an instruction, its operands and its callees.

use super::Build;
use super::Checker;
use super::instruction::{Facts, Form, Subject};
use super::newer::Newer;
use super::operands::NO_ROW;
use crate::error::{ErrorKind, ParseError, Result};
use crate::ir::attribute::Key;
use crate::ir::{
    Arity, CallRole, ComputationId, ElementType, Module, Opcode, Row, ShapeId, ShapeView,
};
use crate::text::Span;
use hashbrown::{HashMap, HashSet};

/// Asynchronous operations and transfers seen so far.
#[derive(Default)]
pub(super) struct Asynchronous {
    /// `async_execution_thread` of starts, without quotes.
    threads: HashMap<Row, Span, Build>,
    /// Computations named by a start.
    started: HashSet<ComputationId, Build>,
    /// `channel_id` of sends and receives.
    channels: HashMap<Row, Option<i64>, Build>,
}

/// Whether XLA always gives the opcode a token as its result, whatever the text says.
pub(super) fn is_always_token(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::AfterAll | Opcode::Outfeed | Opcode::SendDone)
}

impl<'a> Checker<'a> {
    fn operand_rows(&self, subject: Subject) -> &[u32] {
        self.operands.get(subject.first_operand..).unwrap_or_default()
    }

    /// The shape of operand `index`, if known.
    fn operand_shape(&self, subject: Subject, index: usize) -> Option<ShapeId> {
        let row = self.operand_rows(subject).get(index).copied()?;
        (row != NO_ROW).then(|| self.module.shape(Row(row)))
    }

    fn operand_rank(&self, subject: Subject, index: usize) -> Option<usize> {
        let array = self.module.shapes().array(self.operand_shape(subject, index)?)?;
        Some(array.rank())
    }

    pub(super) fn is_scalar_operand(&self, subject: Subject) -> bool {
        self.operand_rank(subject, 0) == Some(0)
    }

    pub(super) fn selects_by_predicate(&self, subject: Subject) -> bool {
        let array =
            self.operand_shape(subject, 0).and_then(|shape| self.module.shapes().array(shape));
        array.is_some_and(|array| array.element_type == ElementType::Pred)
    }

    /// Checks the rules that apply before the attributes are read.
    pub(super) fn check_operands(&self, subject: Subject, facts: &Facts) -> Result<()> {
        let count = self.operand_rows(subject).len();
        let wrong =
            |kind: ErrorKind, message: &str| Err(ParseError::new(kind, facts.word, message));
        if let Form::Start(stem) = subject.form {
            // The update or done of such a start has all operands.
            if count == 0 && self.allows(Newer::LateOperands) {
                return Ok(());
            }
            let enough = match stem.arity() {
                Arity::Exactly(n) | Arity::AtLeast(n) => count >= n as usize,
                _ => true,
            };
            if !enough {
                return wrong(
                    ErrorKind::OperandCount,
                    "the wrapped operation has too few operands",
                );
            }
        }
        match subject.described() {
            Opcode::Conditional => {
                let shape = self.operand_shape(subject, 0);
                let array = shape.and_then(|shape| self.module.shapes().array(shape));
                let selects = array.is_some_and(|array| {
                    array.rank() == 0
                        && matches!(array.element_type, ElementType::Pred | ElementType::S32)
                });
                if !selects {
                    return wrong(
                        ErrorKind::InvalidOperand,
                        "the first operand must be a scalar of type pred or s32",
                    );
                }
            }
            Opcode::DynamicSlice => self.check_indices(subject, facts, 1)?,
            Opcode::DynamicUpdateSlice => self.check_indices(subject, facts, 2)?,
            Opcode::Dot if count < 2 => {
                return wrong(ErrorKind::OperandCount, "dot needs two operands");
            }
            Opcode::Reduce | Opcode::ReduceWindow | Opcode::Scatter
                if !subject.described().arity().accepts(count) =>
            {
                return wrong(ErrorKind::OperandCount, "wrong number of operands");
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks start indices: one scalar per dimension, or one vector.
    fn check_indices(&self, subject: Subject, facts: &Facts, first: usize) -> Result<()> {
        let count = self.operand_rows(subject).len();
        let is_vector = count == first + 1 && self.operand_rank(subject, first) == Some(1);
        let rank = self.operand_rank(subject, 0);
        if is_vector || rank.is_some_and(|rank| count == first + rank) {
            return Ok(());
        }
        Err(ParseError::new(
            ErrorKind::OperandCount,
            facts.word,
            "expected a start index for each dimension",
        ))
    }

    /// Checks the rules that need the attributes.
    #[inline]
    pub(super) fn check_instruction(&mut self, subject: Subject, facts: &Facts) -> Result<()> {
        if facts.replication.is_some() {
            self.check_replication(subject, facts)?;
        }
        use Opcode::*;
        match subject.opcode {
            AsyncStart => self.check_start(subject, facts)?,
            AsyncUpdate | AsyncDone => return self.check_continuation(subject, facts),
            _ => {}
        }
        match subject.described() {
            Concatenate | Sort | AllToAll | AllGather | AllGatherStart | ReduceScatter
            | GetDimensionSize | SetDimensionSize => self.check_dimensions(subject, facts),
            Scan | Conditional => self.check_callees(subject, facts),
            Tuple | Reshape | DynamicReshape | Recv | Infeed | ReplicaId | PartitionId
                if facts.has_shape && subject.row.0 != NO_ROW =>
            {
                self.check_result(subject, facts)
            }
            RecvDone | SendDone | Send | Recv => self.check_channel(subject, facts),
            AllReduce | AllReduceStart => self.check_device_ids(facts),
            CollectivePermute | CollectivePermuteStart => {
                let slices = facts.seen & const { Key::of("slice_sizes").only() } != 0;
                if slices && self.operand_rows(subject).len() != 4 {
                    return Err(ParseError::new(
                        ErrorKind::OperandCount,
                        facts.word,
                        "four operands are needed with slice_sizes",
                    ));
                }
                Ok(())
            }
            CustomCall => self.check_constraints(subject, facts),
            _ => Ok(()),
        }
    }

    fn check_device_ids(&self, facts: &Facts) -> Result<()> {
        if facts.use_global_device_ids && facts.channel_id.is_none() {
            return Err(ParseError::new(
                ErrorKind::InvalidAttribute,
                facts.word,
                "use_global_device_ids=true needs a channel_id",
            ));
        }
        Ok(())
    }

    fn check_dimensions(&self, subject: Subject, facts: &Facts) -> Result<()> {
        let opcode = subject.described();
        let count = facts.dimensions;
        let exact = matches!(opcode, Opcode::Concatenate | Opcode::Sort | Opcode::AllToAll);
        let given = facts.seen & const { Key::of("dimensions").only() } != 0;
        if given && (count == 0 || exact && count != 1) {
            return Err(ParseError::new(
                ErrorKind::InvalidAttribute,
                facts.word,
                format!("{} works along exactly one dimension", opcode.as_str()),
            ));
        }
        if opcode == Opcode::ReduceScatter { self.check_device_ids(facts) } else { Ok(()) }
    }

    fn check_replication(&self, subject: Subject, facts: &Facts) -> Result<()> {
        let leaves = (subject.row.0 != NO_ROW)
            .then(|| self.module.shapes().leaf_count(self.module.shape(subject.row)) as usize);
        if subject.opcode == Opcode::Parameter && facts.replication == leaves {
            return Ok(());
        }
        Err(ParseError::new(
            ErrorKind::InvalidAttribute,
            facts.word,
            "parameter_replication must have one value per leaf of the parameter",
        ))
    }

    fn check_callees(&self, subject: Subject, facts: &Facts) -> Result<()> {
        let count = self.operand_rows(subject).len();
        let fits = if subject.described() == Opcode::Scan {
            let parameters = facts.callee.map_or(count, |callee| self.parameter_count(callee));
            facts.dimensions == 1
                && parameters == count
                && usize::try_from(facts.index).is_ok_and(|n| n <= count)
        } else if self.selects_by_predicate(subject) {
            count == 3
        } else {
            count == facts.branches + 1
        };
        if fits {
            return Ok(());
        }
        Err(ParseError::new(
            ErrorKind::OperandCount,
            facts.word,
            "the operands do not match the called computations",
        ))
    }

    fn parameter_count(&self, id: ComputationId) -> usize {
        let rows = self.module.computation(id).rows();
        rows.filter(|row| self.module.opcode(Row(*row)) == Opcode::Parameter).count()
    }

    /// The result shape of the described operation.
    fn result(&self, subject: Subject) -> Option<ShapeId> {
        let shape = self.module.shape(subject.row);
        match subject.form {
            Form::Start(_) => self.module.shapes().tuple(shape)?.get(1).copied(),
            _ => Some(shape),
        }
    }

    fn check_result(&mut self, subject: Subject, facts: &Facts) -> Result<()> {
        let module: &'a Module = self.module;
        let shapes = module.shapes();
        let Some(result) = self.result(subject) else { return Ok(()) };
        let count = self.operand_rows(subject).len();
        let elements = shapes.tuple(result);
        let (fits, message) = match subject.described() {
            Opcode::Tuple => (
                subject.form != Form::Plain || elements.is_some_and(|e| e.len() == count),
                "the result of a tuple must have one element per operand",
            ),
            Opcode::Reshape => {
                (self.keeps_elements(subject, result), "a reshape must keep the number of elements")
            }
            Opcode::DynamicReshape => (
                shapes.array(result).is_some_and(|array| array.rank() + 1 == count)
                    && self.keeps_elements(subject, result),
                "a dynamic-reshape must keep the number of elements and have a size per dimension",
            ),
            Opcode::ReplicaId | Opcode::PartitionId => (
                shapes.array(result).is_some_and(|array| {
                    array.rank() == 0 && array.element_type == ElementType::U32
                }),
                "the result must be u32[]",
            ),
            _ => (
                elements.is_some_and(|elements| !elements.is_empty()),
                "the result must be a tuple with elements",
            ),
        };
        if !fits {
            return Err(ParseError::new(ErrorKind::ShapeMismatch, facts.word, message));
        }
        if subject.opcode == Opcode::Recv {
            return self.check_channel(subject, facts);
        }
        Ok(())
    }

    fn keeps_elements(&self, subject: Subject, result: ShapeId) -> bool {
        let shapes = self.module.shapes();
        let Some(operand) = self.operand_shape(subject, 0) else { return true };
        let (Some(operand), Some(result)) = (shapes.array(operand), shapes.array(result)) else {
            return false;
        };
        if operand.dimensions().any(|dimension| dimension.bound().is_none()) {
            return true;
        }
        // XLA omits dimensions without a bound (`ShapeUtil::StaticExtentProduct`).
        let product = |array: &crate::ir::shape::ArrayShape<'_>| {
            array
                .dimensions()
                .filter_map(|dimension| dimension.bound())
                .fold(1i64, i64::wrapping_mul)
        };
        product(&operand) == product(&result)
    }

    /// Checks that a transfer and its done have the same channel.
    fn check_channel(&mut self, subject: Subject, facts: &Facts) -> Result<()> {
        if matches!(subject.opcode, Opcode::Send | Opcode::Recv) {
            self.asynchronous.channels.insert(subject.row, facts.channel_id);
            return Ok(());
        }
        let Some(first) = self.operand_rows(subject).first().copied() else { return Ok(()) };
        if first == NO_ROW {
            return Ok(());
        }
        let first = Row(first);
        let wanted =
            if subject.described() == Opcode::SendDone { Opcode::Send } else { Opcode::Recv };
        let opcode = self.module.opcode(first);
        let wrong = |message: &str| {
            Err(ParseError::new(ErrorKind::InvalidAttribute, facts.word, message)
                .with_related(self.module.name_span(first)))
        };
        if matches!(opcode, Opcode::Send | Opcode::Recv) {
            let channel = self.asynchronous.channels.get(&first).copied().flatten();
            if opcode != wanted || channel != facts.channel_id {
                return wrong("the transfer completed here has another kind or channel");
            }
        }
        let shape = self.module.shape(first);
        let is_tuple = self.module.shapes().tuple(shape).is_some_and(|e| !e.is_empty());
        if subject.described() == Opcode::RecvDone && !is_tuple {
            return wrong("the operand of recv-done must be a tuple");
        }
        Ok(())
    }

    fn check_constraints(&mut self, subject: Subject, facts: &Facts) -> Result<()> {
        let Some(constraints) = &facts.constraints else { return Ok(()) };
        let rows = self.operand_rows(subject).to_vec();
        if constraints.len() != rows.len() {
            return Err(ParseError::new(
                ErrorKind::InvalidAttribute,
                facts.word,
                "operand_layout_constraints must have one shape per operand",
            ));
        }
        for (constraint, row) in constraints.iter().zip(rows) {
            if row != NO_ROW && !self.is_compatible(*constraint, Row(row))? {
                return Err(ParseError::new(
                    ErrorKind::ShapeMismatch,
                    *constraint,
                    "this layout constraint does not match its operand",
                ));
            }
        }
        Ok(())
    }

    fn wrong_async(&self, facts: &Facts, message: &str) -> ParseError {
        ParseError::new(ErrorKind::InvalidAsync, facts.word, message)
    }

    fn check_start(&mut self, subject: Subject, facts: &Facts) -> Result<()> {
        if subject.row.0 == NO_ROW {
            return Ok(());
        }
        let shapes = self.module.shapes();
        let elements = shapes.tuple(self.module.shape(subject.row)).unwrap_or_default();
        let inputs = elements.first().and_then(|inputs| shapes.tuple(*inputs));
        if elements.len() < 2 || inputs.is_none() {
            return Err(self.wrong_async(
                facts,
                "the result of an asynchronous start must be ((operands), result, ...)",
            ));
        }
        if let Some(thread) = facts.thread {
            let inside = Span { start: thread.start + 1, end: thread.end - 1 };
            self.asynchronous.threads.insert(subject.row, inside);
        }
        if subject.form == Form::Plain
            && let Some(callee) = facts.callee
            && !self.asynchronous.started.insert(callee)
            && !self.allows(Newer::SharedComputations)
        {
            return Err(self
                .wrong_async(facts, "this computation is already started by another instruction"));
        }
        Ok(())
    }

    /// Checks the update or done of an asynchronous operation: the operand must be the operation's
    /// start or an earlier update.
    fn check_continuation(&mut self, subject: Subject, facts: &Facts) -> Result<()> {
        let rows = self.operand_rows(subject);
        let first = rows.first().copied().filter(|row| *row != NO_ROW).map(Row);
        let goes_on =
            |row: Row| matches!(self.module.opcode(row), Opcode::AsyncStart | Opcode::AsyncUpdate);
        let Some(first) = first
            .filter(|row| goes_on(*row))
            .filter(|_| self.allows(Newer::LateOperands) || rows.len() == 1)
        else {
            if self.allows(Newer::LateOperands) && !rows.is_empty() {
                return Ok(());
            }
            return Err(self.wrong_async(
                facts,
                "an update or done must have one operand: an asynchronous start or update",
            ));
        };
        let mut start = first;
        while self.module.opcode(start) == Opcode::AsyncUpdate {
            let Some(previous) = self.module.operands(start).first().copied() else { break };
            if previous >= start.0 {
                break;
            }
            start = Row(previous);
        }
        let wrapped = self
            .module
            .calls(start)
            .iter()
            .find(|call| matches!(call.role, CallRole::Calls | CallRole::Wrapped))
            .map(|call| call.computation);
        let Some(wrapped) = wrapped else { return Ok(()) };
        if let Form::Update(stem) | Form::Done(stem) = subject.form {
            let root = Row(self.module.computation(wrapped).root);
            if self.module.opcode(root) != stem {
                return Err(self.wrong_async(facts, "the start wraps another operation"));
            }
        }
        if facts.callee.is_some_and(|callee| callee != wrapped) {
            return Err(self.wrong_async(facts, "the start calls another computation"));
        }
        if let Some(thread) = facts.thread {
            let own = self.bytes(Span { start: thread.start + 1, end: thread.end - 1 });
            let known = self.asynchronous.threads.get(&start).map(|span| self.bytes(*span));
            if known.unwrap_or(b"main") != own {
                return Err(self.wrong_async(facts, "the start runs on another thread"));
            }
        }
        if subject.opcode == Opcode::AsyncUpdate && subject.row.0 != NO_ROW {
            let (own, previous) = (self.module.shape(subject.row), self.module.shape(first));
            if !self.is_same_shape(own, previous) && !self.allows(Newer::LateOperands) {
                return Err(self.wrong_async(facts, "an update must have the shape of its operand"));
            }
        }
        Ok(())
    }

    /// Whether two shapes are equal; a missing layout means the default layout.
    fn is_same_shape(&self, a: ShapeId, b: ShapeId) -> bool {
        let shapes = self.module.shapes();
        let mut stack = vec![(a, b)];
        while let Some((a, b)) = stack.pop() {
            if a == b {
                continue;
            }
            match (shapes.get(a), shapes.get(b)) {
                (ShapeView::Array(x), ShapeView::Array(y)) => {
                    let order = |array: &crate::ir::shape::ArrayShape<'_>| {
                        array.layout.cloned().unwrap_or_else(|| {
                            let rank = array.rank() as i64;
                            crate::ir::Layout::with_order((0..rank).rev().collect())
                        })
                    };
                    if x.element_type != y.element_type
                        || !x.dimensions().eq(y.dimensions())
                        || order(&x) != order(&y)
                    {
                        return false;
                    }
                }
                (ShapeView::Buffer(x), ShapeView::Buffer(y)) => stack.push((x, y)),
                (ShapeView::Tuple(x), ShapeView::Tuple(y)) if x.len() == y.len() => {
                    stack.extend(x.iter().copied().zip(y.iter().copied()));
                }
                _ => return false,
            }
        }
        true
    }
}
