//! Decides by data flow the phases that names leave open.
//!
//! * JAX of 2022 and 2023 gives `remat(core_fn)` names to both recomputed and backward
//!   instructions. An instruction that depends on a cotangent, a value that a backward instruction
//!   computes, is backward.
//! * In a module with backward work, an undifferentiated instruction is optimizer work if it
//!   depends on a value of the backward pass. Otherwise, the instruction is forward work if
//!   differentiated work uses it (masks, casts, slices of the batch), optimizer work if only
//!   optimizer work uses it (learning rates, decays), and forward work if neither uses it (an
//!   independent program). Code that is differentiated elsewhere in the module is forward work, and
//!   what depends on its values alone does not depend on the backward pass: an evaluation with updated
//!   parameters, a target for the next update.
//!
//! Values of earlier iterations are ignored: in a loop over whole steps, every value depends on the
//! previous step's backward pass. For the same reason cotangents do not pass through
//! undifferentiated instructions. A node that is called several times keeps the union of the bits
//! from all calls.

use super::contexts::{Edge, Node, NodeId};
use super::phase::NameClass;
use super::values::{Arguments, Values, Within, is_structural, passes_on};
use crate::ir::{CallRole, Opcode, Row};
use std::ops::Range;

/// The value depends on a cotangent.
const COTANGENT: u8 = 1;
/// The value depends on a value that the backward pass computed.
const AFTER_BACKWARD: u8 = 2;
/// Differentiated work uses the value.
const FOR_MODEL: u8 = 4;
/// Undifferentiated work that depends on the backward pass uses the value.
const FOR_OPTIMIZER: u8 = 8;

const DEPENDS: u8 = COTANGENT | AFTER_BACKWARD;
const USED: u8 = FOR_MODEL | FOR_OPTIMIZER;

/// The classes of names whose phase data flow decides.
const OPEN: u8 =
    1 << NameClass::Either as u8 | 1 << NameClass::Plain as u8 | 1 << NameClass::Line as u8;

/// The state of the data-flow analysis.
pub(super) struct Flow<'a> {
    values: &'a Values<'a>,
    /// The class of each position's name.
    class: &'a [NameClass],
    /// By node: the classes of its rows, one bit for each.
    classes: Vec<u8>,
    bits: Vec<u8>,
    /// Remaining budget of rows for visiting nodes again from further callers.
    budget: usize,
    is_visited: Vec<bool>,
}

/// One visit of a node.
struct Frame<'a> {
    node: NodeId,
    values: Within<'a>,
    arguments: Option<Arguments>,
    /// The next row; in reverse, one past the next row.
    row: u32,
    /// One past the last row; in reverse, the first row.
    end: u32,
    /// Wrapping offset from a row to its position.
    offset: u32,
    /// The node's calls that are not yet visited, and the row of the next call.
    edges: Range<usize>,
    edge_row: u32,
    /// Number of the row's calls visited so far.
    branch: usize,
}

const NO_ROW: u32 = u32::MAX;

impl<'a> Flow<'a> {
    pub fn new(values: &'a Values<'a>, class: &'a [NameClass]) -> Self {
        let classes = |node: &Node| {
            let rows = values.module.computation(node.computation).rows().len();
            let own = &class[node.start as usize..node.start as usize + rows];
            own.iter().fold(0, |all, class| all | 1 << *class as u8)
        };
        Self {
            values,
            class,
            classes: values.contexts.nodes.iter().map(classes).collect(),
            bits: vec![0; values.count],
            budget: values.contexts.positions.saturating_mul(8).saturating_add(1 << 20),
            is_visited: Vec::new(),
        }
    }

    /// Follows all values from operands to users.
    pub fn forwards(&mut self) {
        self.is_visited = vec![false; self.values.contexts.nodes.len()];
        let mut stack: Vec<Frame<'_>> = self.frame(0, None, false).into_iter().collect();
        while let Some(frame) = stack.last_mut() {
            // Proceed to the next row with a call.
            while frame.row < frame.end && frame.row != frame.edge_row {
                self.compute(frame, frame.row);
                frame.row += 1;
            }
            if frame.row >= frame.end {
                stack.pop();
                continue;
            }
            let edge = self.values.contexts.edges[frame.edges.start];
            frame.edges.start += 1;
            frame.edge_row = self.row_of_edge(&frame.edges, frame.edges.start);
            let arguments = self.values.arguments(&edge, frame.branch);
            frame.branch += 1;
            if frame.edge_row != frame.row {
                frame.branch = 0;
            }
            if let Some(arguments) = arguments
                && self.is_worth_visiting(edge.callee, |flow| flow.brings_more(edge, arguments))
                && !self.is_without_backward(edge.callee, arguments)
                && !self.gives_backward(edge.callee)
            {
                stack.extend(self.frame(edge.callee, Some(arguments), false));
            }
        }
    }

    /// Follows all values from users to operands; requires `forwards` first.
    pub fn backwards(&mut self) {
        self.is_visited = vec![false; self.values.contexts.nodes.len()];
        let mut stack: Vec<Frame<'_>> = self.frame(0, None, true).into_iter().collect();
        while let Some(frame) = stack.last_mut() {
            while frame.row > frame.end && frame.row - 1 != frame.edge_row {
                frame.row -= 1;
                self.ask(frame, frame.row);
            }
            if frame.row <= frame.end {
                stack.pop();
                continue;
            }
            frame.edges.end -= 1;
            let edge = self.values.contexts.edges[frame.edges.end];
            frame.edge_row = self.row_of_edge(&frame.edges, frame.edges.end.wrapping_sub(1));
            let branch = self.calls_before(&frame.edges, &edge);
            if let Some(arguments) = self.values.arguments(&edge, branch) {
                let is_more = self.ask_root(&edge, arguments.row);
                if self.is_worth_visiting(edge.callee, |_| is_more)
                    && !self.asks_for_model(edge.callee, arguments)
                {
                    stack.extend(self.frame(edge.callee, Some(arguments), true));
                }
            }
        }
    }

    /// Whether a `remat(...)` row at (`node`, `row`) is backward work.
    pub fn is_backward(&self, node: NodeId, row: u32) -> bool {
        self.any(self.values.of(node, row)) & COTANGENT != 0
    }

    /// Whether an undifferentiated row at (`node`, `row`) is optimizer work.
    pub fn is_optimizer(&self, node: NodeId, row: u32) -> bool {
        let bits = self.any(self.values.of(node, row));
        bits & AFTER_BACKWARD != 0 || bits & (FOR_MODEL | FOR_OPTIMIZER) == FOR_OPTIMIZER
    }

    /// Marks `node` as visited if nothing in it depends on the backward pass: it runs nothing, none
    /// of its rows is backward work, and neither are `arguments`.
    fn is_without_backward(&mut self, node: NodeId, arguments: Arguments) -> bool {
        let contexts = self.values.contexts;
        let id = contexts.nodes[node as usize].computation;
        if !self.runs_nothing(node) {
            return false;
        }
        let module = self.values.module;
        let within = self.values.within(arguments.node);
        let depends = |parameter: &u32| {
            let operand = arguments.of_parameter(module, *parameter);
            operand.is_some_and(|operand| self.any(within.of(operand)) & DEPENDS != 0)
        };
        if self.classes[node as usize] & 1 << NameClass::Backward as u8 != 0
            || module.parameter_rows(id).iter().any(depends)
        {
            return false;
        }
        self.enter(node);
        true
    }

    /// Whether `node` has rows whose phase data flow decides.
    pub fn is_open(&self, node: NodeId) -> bool {
        self.classes[node as usize] & OPEN != 0
    }

    /// Whether `node` runs nothing, and only its result and its parameters have to be followed.
    fn is_simple(&self, node: NodeId) -> bool {
        !self.is_open(node) && self.runs_nothing(node)
    }

    /// Whether `node` runs no other node; computations that it applies to elements do not count.
    fn runs_nothing(&self, node: NodeId) -> bool {
        let edges = self.values.contexts.edges_of(node);
        edges.iter().all(|edge| self.values.arguments(edge, 0).is_none())
    }

    /// Marks `node` as visited if it is simple and its result is backward work, whatever its
    /// arguments.
    fn gives_backward(&mut self, node: NodeId) -> bool {
        let id = self.values.contexts.nodes[node as usize].computation;
        let computation = self.values.module.computation(id);
        if computation.rows().is_empty() || !self.is_simple(node) {
            return false;
        }
        let offset = self.offset(node);
        if !self.is_backward_work(computation.root, offset, 0) {
            return false;
        }
        self.enter(node);
        self.add(self.values.of(node, computation.root), DEPENDS);
        true
    }

    /// Whether all values of `row` depend on backward work, as its name or the names of its operands
    /// say. `offset` is the wrapping offset from a row to its position.
    fn is_backward_work(&self, row: u32, offset: u32, depth: usize) -> bool {
        const DEEPEST: usize = 2;
        const MOST_OPERANDS: usize = 16;
        let module = self.values.module;
        let opcode = module.opcode(Row(row));
        let is_named = self.class[row.wrapping_add(offset) as usize] == NameClass::Backward;
        if is_structural(opcode) && opcode != Opcode::Tuple {
            return false;
        }
        if is_named && opcode != Opcode::Tuple {
            return true;
        }
        let operands = module.operands(Row(row));
        if depth == DEEPEST || operands.is_empty() || operands.len() > MOST_OPERANDS {
            return false;
        }
        let is_backward =
            |operand: &u32| *operand < row && self.is_backward_work(*operand, offset, depth + 1);
        if passes_on(opcode) {
            return operands.iter().all(is_backward);
        }
        operands.iter().any(is_backward)
    }

    /// Marks `node` as visited if it is simple and differentiated work in it uses all of its used
    /// parameters, which then counts as a use of `arguments`. What else uses them does not matter.
    fn asks_for_model(&mut self, node: NodeId, arguments: Arguments) -> bool {
        if !self.is_simple(node) {
            return false;
        }
        let module = self.values.module;
        let id = self.values.contexts.nodes[node as usize].computation;
        let (root, offset) = (module.computation(id).root, self.offset(node));
        let is_model = |user: &u32| {
            let class = self.class[user.wrapping_add(offset) as usize];
            class != NameClass::Unknown && !is_structural(module.opcode(Row(*user)))
        };
        let is_asked = |parameter: &u32| {
            let users = module.users().get(*parameter);
            *parameter != root && (users.is_empty() || users.iter().any(is_model))
        };
        let parameters = module.parameter_rows(id);
        if !parameters.iter().all(is_asked) {
            return false;
        }
        self.enter(node);
        for parameter in parameters {
            if let Some(operand) = arguments.of_parameter(module, *parameter)
                && !module.users().get(*parameter).is_empty()
            {
                self.add(self.values.of(arguments.node, operand), FOR_MODEL);
            }
        }
        true
    }

    /// Wrapping offset from a row of `node` to its position.
    fn offset(&self, node: NodeId) -> u32 {
        self.values.contexts.nodes[node as usize].start.wrapping_sub(self.rows(node).start)
    }

    /// Marks `node` as visited.
    fn enter(&mut self, node: NodeId) {
        self.is_visited[node as usize] = true;
        self.budget = self.budget.saturating_sub(self.rows(node).len() + 1);
    }

    fn rows(&self, node: NodeId) -> Range<u32> {
        let id = self.values.contexts.nodes[node as usize].computation;
        self.values.module.computation(id).rows()
    }

    fn frame(
        &mut self,
        node: NodeId,
        arguments: Option<Arguments>,
        is_reverse: bool,
    ) -> Option<Frame<'a>> {
        self.is_visited.get(node as usize)?;
        self.enter(node);
        let rows = self.rows(node);
        let (row, last) = if is_reverse { (rows.end, rows.start) } else { (rows.start, rows.end) };
        let offset = self.offset(node);
        let edges = self.values.contexts.edge_range(node);
        let next = if is_reverse { edges.end.wrapping_sub(1) } else { edges.start };
        let edge_row = self.row_of_edge(&edges, next);
        let values = self.values.within(node);
        Some(Frame { node, values, arguments, row, end: last, offset, edges, edge_row, branch: 0 })
    }

    /// The row of edge `index`; `NO_ROW` if it is not in `edges`.
    fn row_of_edge(&self, edges: &Range<usize>, index: usize) -> u32 {
        if !edges.contains(&index) {
            return NO_ROW;
        }
        let call = self.values.contexts.edges[index].call;
        self.values.module.all_calls()[call as usize].row.0
    }

    /// Number of calls of the same conditional in `edges`, which ends before `edge`.
    fn calls_before(&self, edges: &Range<usize>, edge: &Edge) -> usize {
        let all = &self.values.contexts.edges[edges.clone()];
        let calls = self.values.module.all_calls();
        let row = calls[edge.call as usize].row;
        if self.values.module.opcode(row) != Opcode::Conditional {
            return 0;
        }
        all.len() - all.partition_point(|other| calls[other.call as usize].row < row)
    }

    fn is_worth_visiting(
        &mut self,
        node: NodeId,
        brings_more: impl FnOnce(&mut Self) -> bool,
    ) -> bool {
        if !self.is_visited[node as usize] {
            return true;
        }
        let rows = self.rows(node).len() + 1;
        self.budget > rows && brings_more(self)
    }

    /// Whether the arguments of `edge` have bits that the callee's parameters lack.
    fn brings_more(&mut self, edge: Edge, arguments: Arguments) -> bool {
        let rows = self.rows(edge.callee);
        self.budget = self.budget.saturating_sub(rows.len());
        let module = self.values.module;
        rows.filter(|row| module.opcode(Row(*row)) == Opcode::Parameter).any(|row| {
            let Some(operand) = arguments.of_parameter(module, row) else { return false };
            let from = self.values.of(arguments.node, operand);
            let to = self.values.of(edge.callee, row);
            if from.len() != to.len() {
                return self.any(from) & !self.any(to) != 0;
            }
            from.zip(to).any(|(from, to)| self.bits[from] & !self.bits[to] != 0)
        })
    }

    /// The union of the bits of a range of values.
    #[inline]
    fn any(&self, range: Range<usize>) -> u8 {
        // Fast path: most ranges hold one value, where the vectorised loop is slow.
        if range.len() == 1 {
            return self.bits[range.start];
        }
        self.bits[range].iter().fold(0, |all, bits| all | bits)
    }

    #[inline]
    fn add(&mut self, range: Range<usize>, bits: u8) {
        if range.len() == 1 {
            self.bits[range.start] |= bits;
            return;
        }
        self.bits[range].iter_mut().for_each(|place| *place |= bits);
    }

    /// Adds the bits of `from` that are in `mask` to `to`: value by value if the lengths match,
    /// otherwise their union to every value.
    fn pass(&mut self, from: Range<usize>, to: Range<usize>, mask: u8) {
        if from.len() == 1 && to.len() == 1 {
            self.bits[to.start] |= self.bits[from.start] & mask;
        } else if from.len() == to.len() {
            for (from, to) in from.zip(to) {
                self.bits[to] |= self.bits[from] & mask;
            }
        } else {
            let bits = self.any(from) & mask;
            self.add(to, bits);
        }
    }

    /// Computes the bits of the result of `row` in `frame` from its operands' bits.
    fn compute(&mut self, frame: &Frame<'_>, row: u32) {
        let values = frame.values;
        let module = self.values.module;
        let opcode = module.opcode(Row(row));
        let own = values.of(row);
        let operands = module.operands(Row(row));
        match opcode {
            Opcode::Parameter => {
                if let Some(arguments) = &frame.arguments
                    && let Some(operand) = arguments.of_parameter(module, row)
                {
                    self.pass(self.values.of(arguments.node, operand), own, DEPENDS);
                }
                return;
            }
            Opcode::GetTupleElement => {
                if let Some(operand) = operands.first() {
                    self.pass(self.values.element(values, row, *operand), own, DEPENDS);
                }
                return;
            }
            Opcode::Fusion | Opcode::Call | Opcode::While | Opcode::Conditional => {
                self.compute_call(frame, row, opcode, own.clone());
            }
            _ if passes_on(opcode) => self.pass_operands(values, operands, own.clone()),
            _ => {
                let mut bits = 0;
                for operand in operands {
                    bits |= self.any(values.of(*operand));
                }
                self.add(own.clone(), bits & DEPENDS);
            }
        }
        let is_single = own.len() == 1;
        if is_structural(opcode) && !(opcode == Opcode::Fusion && is_single) {
            return;
        }
        match self.class[row.wrapping_add(frame.offset) as usize] {
            NameClass::Backward => self.add(own, DEPENDS),
            NameClass::Plain => self.bits[own].iter_mut().for_each(|bits| *bits &= !COTANGENT),
            NameClass::Model => self.bits[own].iter_mut().for_each(|bits| *bits &= !DEPENDS),
            NameClass::Line => {
                let is_free = |row: &u32| self.any(values.of(*row)) & DEPENDS == 0;
                let ended = if operands.iter().any(is_free) { DEPENDS } else { COTANGENT };
                self.bits[own].iter_mut().for_each(|bits| *bits &= !ended);
            }
            _ => {}
        }
    }

    /// Passes the operands' bits to `own`, value by value if the total lengths match, otherwise as
    /// a union.
    fn pass_operands(&mut self, values: Within<'_>, operands: &[u32], own: Range<usize>) {
        if let [operand] = operands {
            self.pass(values.of(*operand), own, DEPENDS);
            return;
        }
        let width: usize = operands.iter().map(|row| values.of(*row).len()).sum();
        let mut at = own.start;
        for operand in operands {
            let from = values.of(*operand);
            if width == own.len() {
                let to = at..at + from.len();
                at = to.end;
                self.pass(from, to, DEPENDS);
            } else {
                let bits = self.any(from) & DEPENDS;
                self.add(own.clone(), bits);
            }
        }
    }

    fn compute_call(&mut self, frame: &Frame<'_>, row: u32, opcode: Opcode, own: Range<usize>) {
        let (values, within) = (self.values, frame.values);
        let module = values.module;
        let operands = module.operands(Row(row));
        // A loop may run zero times, so its result also depends on its operands; the result of a
        // conditional also depends on its selector.
        if opcode == Opcode::While {
            self.pass_operands(within, operands, own.clone());
        } else if opcode == Opcode::Conditional
            && let Some(selector) = operands.first()
        {
            let bits = self.any(within.of(*selector)) & DEPENDS;
            self.add(own.clone(), bits);
        }
        let edges = values.contexts.edges_of(frame.node);
        let calls = module.all_calls();
        let first = edges.partition_point(|edge| calls[edge.call as usize].row.0 < row);
        for edge in &edges[first..] {
            let call = &calls[edge.call as usize];
            if call.row.0 != row {
                break;
            }
            if values.arguments(edge, 0).is_none() || is_condition(call.role) {
                continue;
            }
            let computation = module.computation(call.computation);
            if !computation.rows().is_empty() {
                let root = values.of(edge.callee, computation.root);
                self.pass(root, own.clone(), DEPENDS);
            }
        }
    }

    /// Passes the use bits of `row` to the root of the computation that `edge` calls; returns
    /// whether any bit is new.
    fn ask_root(&mut self, edge: &Edge, row: u32) -> bool {
        let module = self.values.module;
        let call = &module.all_calls()[edge.call as usize];
        let computation = module.computation(call.computation);
        if is_condition(call.role) || computation.rows().is_empty() {
            return false;
        }
        let from = self.values.of(edge.caller, row);
        let to = self.values.of(edge.callee, computation.root);
        let is_alike = from.len() == to.len();
        let all = self.any(from.clone()) & USED;
        let mut is_news = false;
        for (index, to) in to.enumerate() {
            let bits = if is_alike { self.bits[from.start + index] & USED } else { all };
            is_news |= bits & !self.bits[to] != 0;
            self.bits[to] |= bits;
        }
        is_news
    }

    /// Passes use bits of `row` in `frame` to its operands.
    fn ask(&mut self, frame: &Frame<'_>, row: u32) {
        let values = frame.values;
        let module = self.values.module;
        let opcode = module.opcode(Row(row));
        let own = values.of(row);
        let operands = module.operands(Row(row));
        match opcode {
            Opcode::Parameter => {
                if let Some(arguments) = &frame.arguments
                    && let Some(operand) = arguments.of_parameter(module, row)
                {
                    self.pass(own, self.values.of(arguments.node, operand), USED);
                }
                return;
            }
            Opcode::GetTupleElement => {
                if let Some(operand) = operands.first() {
                    self.pass(own, self.values.element(values, row, *operand), USED);
                }
                return;
            }
            // Parameters of the callee have already passed the bits to the operands.
            Opcode::Fusion | Opcode::Call => return,
            Opcode::Conditional => {
                if let Some(selector) = operands.first() {
                    let bits = self.any(own) & USED;
                    self.add(values.of(*selector), bits);
                }
                return;
            }
            _ => {}
        }
        let mut bits = self.any(own.clone());
        if !is_structural(opcode) {
            match self.class[row.wrapping_add(frame.offset) as usize] {
                NameClass::Forward
                | NameClass::Model
                | NameClass::Backward
                | NameClass::Recompute
                | NameClass::Either => bits |= FOR_MODEL,
                NameClass::Plain | NameClass::Line if bits & AFTER_BACKWARD != 0 => {
                    bits |= FOR_OPTIMIZER;
                }
                _ => {}
            }
        }
        if passes_on(opcode) || opcode == Opcode::While {
            let width: usize = operands.iter().map(|row| values.of(*row).len()).sum();
            if width == own.len() && is_structural(opcode) {
                let mut at = own.start;
                for operand in operands {
                    let to = values.of(*operand);
                    let from = at..at + to.len();
                    at = from.end;
                    self.pass(from, to, USED);
                }
                return;
            }
        }
        for operand in operands {
            self.add(values.of(*operand), bits & USED);
        }
    }
}

fn is_condition(role: CallRole) -> bool {
    role == CallRole::Condition
}
