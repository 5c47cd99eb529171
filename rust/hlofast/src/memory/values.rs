//! Finds parts of results that hold the same value, as in XLA's dataflow analysis.
//!
//! A value is defined at one node (see `nodes.rs`) and identified by that node's number. Tuples,
//! their elements, bitcasts, barriers, calls and the `-done` of asynchronous pairs pass values on.
//! An element of loop state is a value of its own in the condition, in the body and after the loop,
//! unless every iteration passes it on unchanged; the element then holds the value that entered the
//! loop.

use super::nodes::{Nodes, ShapeNodes};
use super::schedule::{NONE, Steps, nth_call};
use crate::flow::markers::is_marker;
use crate::ir::{ComputationId, Module, Opcode, Row, ShapeId};
use std::ops::Range;

/// The value at every node.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    /// By node: the node that defines its value.
    pub of: Vec<u32>,
    /// Nodes whose value could not be followed because shapes do not match; they count as new
    /// values.
    pub mismatched: u32,
    /// Whether pipeline markers passed values on.
    pub has_followed_markers: bool,
}

pub(super) struct Reader<'a> {
    pub module: &'a Module,
    pub steps: &'a Steps,
    pub shapes: &'a ShapeNodes,
    pub nodes: &'a Nodes,
}

impl Reader<'_> {
    /// The nodes of `row`; None if `row` has no step before step `before`.
    #[inline]
    fn earlier(&self, row: u32, before: u32) -> Option<Range<u32>> {
        let step = self.steps.of(row).filter(|step| *step < before)?;
        Some(self.nodes.of(step))
    }

    /// The nodes of operand `index` of the instruction at `step`.
    #[inline]
    pub fn operand(&self, step: u32, index: usize) -> Option<Range<u32>> {
        let row = *self.module.operands(Row(self.steps.rows[step as usize])).get(index)?;
        self.earlier(row, step)
    }

    fn operand_shape(&self, row: u32, index: usize) -> Option<ShapeId> {
        let operand = *self.module.operands(Row(row)).get(index)?;
        Some(self.module.shape(Row(operand)))
    }

    /// The nodes of element `index` of the operand with the nodes `of`.
    fn element(&self, of: &Range<u32>, shape: ShapeId, index: usize) -> Option<Range<u32>> {
        let inside = self.shapes.element(self.module, shape, index)?;
        (inside.end <= of.end - of.start).then(|| of.start + inside.start..of.start + inside.end)
    }

    /// The root of the computation that `row` calls as its `number`th.
    fn root(&self, row: u32, opcode: Opcode, number: u32, before: u32) -> Option<Range<u32>> {
        let callee = nth_call(self.module, Row(row), opcode, number)?;
        self.earlier(self.module.computation(callee).root, before)
    }
}

impl Values {
    /// With `through_markers` pipeline markers pass their values on.
    pub fn new(reader: &Reader<'_>, through_markers: bool) -> Self {
        let of = (0..reader.nodes.len() as u32).collect();
        let mut values = Values { of, mismatched: 0, has_followed_markers: false };
        // By computation: the step of parameter 0.
        let mut carried = vec![NONE; reader.module.computations().len()];
        let mut computations = Computations::new(reader);
        for (step, row) in (0u32..).zip(&reader.steps.rows) {
            let opcode = reader.module.opcode(Row(*row));
            if opcode == Opcode::Parameter {
                let computation = computations.of(*row);
                if reader.module.parameter_number(Row(*row)) == Some(0) {
                    carried[computation as usize] = step;
                }
                values.parameter(reader, step, *row, computation);
            } else if hands_on(opcode) {
                values.row(reader, step, *row, opcode, &carried);
            } else if through_markers
                && opcode == Opcode::CustomCall
                && is_marker(reader.module, Row(*row))
            {
                values.has_followed_markers = true;
                values.copy(reader.nodes.of(step), reader.operand(step, 0));
            }
        }
        values.settle();
        values
    }

    /// Makes every node name the defining node of its value directly.
    fn settle(&mut self) {
        for node in 0..self.of.len() {
            let value = self.resolve(node as u32);
            self.of[node] = value;
        }
    }

    fn resolve(&self, node: u32) -> u32 {
        let mut value = node;
        // Chains lead to earlier nodes; a loop value may lead one node further.
        loop {
            let next = self.of[value as usize];
            if next == value {
                return value;
            }
            value = next;
        }
    }

    /// Gives the nodes `to` the values of the nodes `from`.
    fn copy(&mut self, to: Range<u32>, from: Option<Range<u32>>) {
        match from {
            Some(from) if from.len() == to.len() => {
                for (to, from) in to.zip(from) {
                    self.of[to as usize] = self.resolve(from);
                }
            }
            _ => self.mismatched += to.len() as u32,
        }
    }

    /// Like `copy`, but the outermost tuple is a new value.
    fn copy_elements(&mut self, to: Range<u32>, from: Option<Range<u32>>) {
        let inner = |range: Range<u32>| (range.start + 1).min(range.end)..range.end;
        if to.len() > 1 {
            self.copy(inner(to), from.map(inner));
        }
    }

    fn parameter(&mut self, reader: &Reader<'_>, step: u32, row: u32, computation: u32) {
        let (caller, number) = reader.steps.callers[computation as usize];
        if caller == NONE {
            return;
        }
        let opcode = reader.module.opcode(Row(caller));
        let Some(parameter) = reader.module.parameter_number(Row(row)) else { return };
        let operand = match opcode {
            // Loop state is resolved after the loop.
            Opcode::While => return,
            Opcode::Conditional => (parameter == 0).then_some(number as usize + 1),
            _ => usize::try_from(parameter).ok(),
        };
        let from = operand.and_then(|index| {
            let row = *reader.module.operands(Row(caller)).get(index)?;
            reader.earlier(row, step)
        });
        self.copy(reader.nodes.of(step), from);
    }

    fn row(&mut self, reader: &Reader<'_>, step: u32, row: u32, opcode: Opcode, carried: &[u32]) {
        let to = reader.nodes.of(step);
        let shape = reader.module.shape(Row(row));
        let first = reader.operand(step, 0);
        match opcode {
            Opcode::Bitcast
            | Opcode::AddDependency
            | Opcode::Domain
            | Opcode::OptBarrier
            | Opcode::AllReduceDone => self.copy(to, first),
            Opcode::Copy => self.copy_elements(to, first),
            Opcode::Tuple => {
                let mut at = to.start + 1;
                for index in 0..reader.module.operands(Row(row)).len() {
                    let Some(from) = reader.operand(step, index) else {
                        self.mismatched += to.end.saturating_sub(at);
                        return;
                    };
                    let end = at.saturating_add(from.len() as u32);
                    if end > to.end {
                        self.mismatched += to.end.saturating_sub(at);
                        return;
                    }
                    self.copy(at..end, Some(from));
                    at = end;
                }
            }
            Opcode::GetTupleElement => {
                let from = (|| {
                    let index = reader.module.tuple_index(Row(row))?;
                    reader.element(&first?, reader.operand_shape(row, 0)?, index)
                })();
                self.copy(to, from);
            }
            Opcode::CopyDone => {
                let from = self.done_element(reader, row, first, 0);
                self.copy(to, from);
            }
            Opcode::AllGatherDone | Opcode::CollectivePermuteDone => {
                let from = self.done_element(reader, row, first, 1);
                match to.len() {
                    1 => self.copy(to, from),
                    _ => self.copy_elements(to, from),
                }
            }
            Opcode::RecvDone | Opcode::Send => {
                let from = match opcode {
                    Opcode::Send => first,
                    _ => self.done_element(reader, row, first, 0),
                };
                if let Some(to) = reader.element(&to, shape, 0) {
                    self.copy(to, from);
                }
            }
            Opcode::CopyStart => {
                if let Some(to) = reader.element(&to, shape, 1) {
                    self.copy(to, first);
                }
            }
            Opcode::AllGatherStart | Opcode::CollectivePermuteStart => {
                let Some(to) = reader.element(&to, shape, 0) else { return };
                let operands = reader.module.operands(Row(row)).len();
                // An in-place permute also lists its buffer and offsets.
                let is_in_place = opcode == Opcode::CollectivePermuteStart && operands == 4;
                if to.len() == 1 {
                    self.copy(to, first);
                } else if operands == 1 || is_in_place {
                    self.copy_elements(to, first);
                } else {
                    self.operands_in_tuple(reader, step, row, to);
                }
            }
            Opcode::AsyncStart => {
                if let Some(to) = reader.element(&to, shape, 0) {
                    self.operands_in_tuple(reader, step, row, to);
                }
                if let Some(to) = reader.element(&to, shape, 1) {
                    let from = reader.root(row, opcode, 0, step);
                    match to.len() {
                        1 => self.copy(to, from),
                        _ => self.copy_elements(to, from),
                    }
                }
            }
            Opcode::AsyncUpdate => self.copy_arrays(reader, to, shape, first),
            Opcode::AsyncDone => {
                let from = self.done_element(reader, row, first, 1);
                self.copy_arrays(reader, to, shape, from);
            }
            Opcode::Call => {
                let callee = nth_call(reader.module, Row(row), opcode, 0);
                // If a computation has several callers, only the first shares its values.
                let is_own = |id: &ComputationId| reader.steps.callers[id.0 as usize].0 == row;
                if callee.is_some_and(|id| is_own(&id)) {
                    self.copy(to, reader.root(row, opcode, 0, step));
                }
            }
            Opcode::While => self.loop_values(reader, row, to, first, carried),
            Opcode::Conditional => self.branch_values(reader, step, row, to),
            _ => {}
        }
    }

    /// Element `index` of the result of the `-start` at operand 0 of `row`.
    fn done_element(
        &self,
        reader: &Reader<'_>,
        row: u32,
        first: Option<Range<u32>>,
        index: usize,
    ) -> Option<Range<u32>> {
        reader.element(&first?, reader.operand_shape(row, 0)?, index)
    }

    /// Makes `to` a tuple of the operands' values.
    fn operands_in_tuple(&mut self, reader: &Reader<'_>, step: u32, row: u32, to: Range<u32>) {
        let mut at = to.start + 1;
        for index in 0..reader.module.operands(Row(row)).len() {
            let Some(from) = reader.operand(step, index) else { break };
            let end = at.saturating_add(from.len() as u32);
            if end > to.end {
                break;
            }
            match from.len() {
                1 => self.copy(at..end, Some(from)),
                _ => self.copy_elements(at..end, Some(from)),
            }
            at = end;
        }
    }

    /// Passes array values on; tuples become new values.
    fn copy_arrays(
        &mut self,
        reader: &Reader<'_>,
        to: Range<u32>,
        shape: ShapeId,
        from: Option<Range<u32>>,
    ) {
        let Some(from) = from.filter(|from| from.len() == to.len()) else {
            self.mismatched += to.len() as u32;
            return;
        };
        let shapes_of = reader.module.shapes();
        // Most values are arrays.
        if to.len() == 1 && shapes_of.tuple(shape).is_none() {
            self.of[to.start as usize] = self.resolve(from.start);
            return;
        }
        let mut shapes = Vec::new();
        super::nodes::node_shapes(reader.module, shape, &mut shapes);
        for ((to, from), shape) in to.zip(from).zip(shapes) {
            if shapes_of.tuple(shape).is_none() {
                self.of[to as usize] = self.resolve(from);
            }
        }
    }

    fn loop_values(
        &mut self,
        reader: &Reader<'_>,
        row: u32,
        result: Range<u32>,
        initial: Option<Range<u32>>,
        carried: &[u32],
    ) {
        let parameter = |number| {
            let id = nth_call(reader.module, Row(row), Opcode::While, number)?;
            let is_own = reader.steps.callers[id.0 as usize].0 == row;
            let step = *carried.get(id.0 as usize)?;
            (is_own && step != NONE).then(|| reader.nodes.of(step))
        };
        let before = reader.steps.step_of[row as usize];
        let root = reader.root(row, Opcode::While, 1, before);
        let parts = initial.zip(root).zip(parameter(0).zip(parameter(1)));
        let Some(((initial, root), (condition, body))) = parts else {
            self.mismatched += result.len() as u32;
            return;
        };
        let length = result.len();
        if [&initial, &root, &condition, &body].iter().any(|nodes| nodes.len() != length) {
            self.mismatched += length as u32;
            return;
        }
        // A carried value may be unchanged only if another carried value is. A few rounds suffice;
        // elements that remain unresolved are separate values.
        for _ in 0..4 {
            let mut is_changed = false;
            for index in 0..length as u32 {
                let parameter = body.start + index;
                if self.of[parameter as usize] != parameter {
                    continue;
                }
                let enters = self.resolve(initial.start + index);
                let returns = self.resolve(root.start + index);
                if returns == parameter || returns == enters {
                    self.of[parameter as usize] = enters;
                    is_changed = true;
                }
            }
            if !is_changed {
                break;
            }
        }
        for index in 0..length as u32 {
            let enters = self.resolve(initial.start + index);
            if self.resolve(root.start + index) == enters {
                self.of[(condition.start + index) as usize] = enters;
                self.of[(result.start + index) as usize] = enters;
            }
        }
    }

    /// The result of a conditional is a value of its own unless all branches return the same value.
    fn branch_values(&mut self, reader: &Reader<'_>, step: u32, row: u32, to: Range<u32>) {
        let mut roots: Vec<Range<u32>> = Vec::new();
        let mut number = 0;
        while nth_call(reader.module, Row(row), Opcode::Conditional, number).is_some() {
            match reader.root(row, Opcode::Conditional, number, step) {
                Some(root) if root.len() == to.len() => roots.push(root),
                _ => {
                    self.mismatched += to.len() as u32;
                    return;
                }
            }
            number += 1;
        }
        let Some((first, others)) = roots.split_first() else { return };
        for index in 0..to.len() as u32 {
            let value = self.resolve(first.start + index);
            if others.iter().all(|root| self.resolve(root.start + index) == value) {
                self.of[(to.start + index) as usize] = value;
            }
        }
    }
}

/// Finds the computations of consecutive rows.
struct Computations<'a> {
    module: &'a Module,
    last: (Range<u32>, u32),
}

impl<'a> Computations<'a> {
    fn new(reader: &Reader<'a>) -> Self {
        Self { module: reader.module, last: (0..0, 0) }
    }

    fn of(&mut self, row: u32) -> u32 {
        if !self.last.0.contains(&row) {
            let id = self.module.computation_of(Row(row));
            self.last = (self.module.computation(id).rows(), id.0);
        }
        self.last.1
    }
}

/// Whether a part of the result of `opcode` may be a value that another instruction defines.
#[inline]
fn hands_on(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        AddDependency
            | AllGatherDone
            | AllGatherStart
            | AllReduceDone
            | AsyncDone
            | AsyncStart
            | AsyncUpdate
            | Bitcast
            | Call
            | CollectivePermuteDone
            | CollectivePermuteStart
            | Conditional
            | Copy
            | CopyDone
            | CopyStart
            | Domain
            | GetTupleElement
            | OptBarrier
            | RecvDone
            | Send
            | Tuple
            | While
    )
}

#[cfg(test)]
mod tests {
    use crate::ir::work::steps_of;
    use crate::{memory, parse, text};
    use std::fmt::Write;

    fn steps_of_conditional(branches: usize) -> usize {
        let mut program = String::new();
        let mut names = Vec::new();
        for number in 0..branches {
            let _ = writeln!(program, "b{number} {{\n  ROOT a = f32[2]{{0}} parameter(0)\n}}\n");
            names.push(format!("b{number}"));
        }
        let _ = writeln!(
            program,
            "ENTRY e {{\n  i = s32[] parameter(0)\n  p = f32[2]{{0}} parameter(1)\n  \
             ROOT c = f32[2]{{0}} conditional(i{}), branch_computations={{{}}}\n}}",
            ", p".repeat(branches),
            names.join(", ")
        );
        let source = text::Source::from_slice(program.as_bytes());
        let module = parse(source, &crate::Options::default()).unwrap();
        steps_of(|| memory::memory(&module, &memory::Options::default()).unwrap()).0
    }

    #[test]
    fn many_branches_of_one_conditional_take_nearly_linear_work() {
        let (few, many) = (steps_of_conditional(250), steps_of_conditional(1000));
        assert!(many < 6 * few, "{few} steps for 250 branches, {many} for 1000");
    }
}
