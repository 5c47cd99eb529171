//! XLA-compatible cost: `HloCostAnalysis`, rule by rule, quirks included.
//!
//! Generic over exact integers and 32-bit floats; floats are added in XLA's order, so that results
//! are bit for bit equal.

use super::custom_call::{CustomCallKind, custom_call_target, known_target};
use super::facts::{Fact, FactCursor, Facts};
use super::rules::{Class, Rules, Work, class_of};
use crate::Provenance;
use crate::ir::size::Backend;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// The number type in which costs are summed.
pub(super) trait Number: Copy + Default + PartialOrd {
    fn of(value: i128) -> Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, factor: i128) -> Self;
    /// Whether the result is independent of the order of additions.
    const IS_EXACT: bool;
    /// Half of a size, as XLA halves it.
    fn half_of(value: i64) -> Self;
}

impl Number for i128 {
    const IS_EXACT: bool = true;
    fn of(value: i128) -> Self {
        value
    }
    fn plus(self, other: Self) -> Self {
        self.saturating_add(other)
    }
    fn times(self, factor: i128) -> Self {
        self.saturating_mul(factor)
    }
    fn half_of(value: i64) -> Self {
        i128::from(value) / 2
    }
}

impl Number for f32 {
    const IS_EXACT: bool = false;
    fn of(value: i128) -> Self {
        value as f32
    }
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn times(self, factor: i128) -> Self {
        self * factor as f32
    }
    fn half_of(value: i64) -> Self {
        value as f32 / 2.0
    }
}

/// The properties that XLA's analysis sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Properties<N> {
    pub flops: N,
    pub transcendentals: N,
    pub bytes: N,
    /// -1 for each custom call. A fusion or asynchronous start that contains a custom call has 0:
    /// XLA computes its seconds from its own figures, and without a device it has no rates.
    pub optimal_seconds: N,
}

impl<N: Number> Properties<N> {
    fn plus(self, other: Self) -> Self {
        Self {
            flops: self.flops.plus(other.flops),
            transcendentals: self.transcendentals.plus(other.transcendentals),
            bytes: self.bytes.plus(other.bytes),
            optimal_seconds: self.optimal_seconds.plus(other.optimal_seconds),
        }
    }

    /// The larger value of each property; a 0 in `other` is ignored, even if the value here is -1.
    fn maximum(self, other: Self) -> Self {
        let max = |a: N, b: N| if b > a && b != N::default() { b } else { a };
        Self {
            flops: max(self.flops, other.flops),
            transcendentals: max(self.transcendentals, other.transcendentals),
            bytes: max(self.bytes, other.bytes),
            optimal_seconds: max(self.optimal_seconds, other.optimal_seconds),
        }
    }
}

/// XLA's figures for every row, and for every computation as if it were the entry.
pub(super) struct XlaCost<N> {
    pub rows: Vec<Properties<N>>,
    pub computations: Vec<Properties<N>>,
}

/// Runs XLA's analysis over every computation of the module.
pub(super) fn analyse<N: Number>(rules: Rules<'_>, facts: &Facts, backend: Backend) -> XlaCost<N> {
    let module = rules.module;
    let mut engine = Engine::new(rules, facts, backend);
    engine.cost = XlaCost {
        rows: vec![Properties::default(); module.row_count()],
        computations: vec![Properties::default(); module.computations().len()],
    };
    let mut order = VisitOrder::new(module);
    for id in module.computation_post_order() {
        engine.computation(*id, &mut order);
    }
    engine.cost
}

pub(super) struct Engine<'a, N> {
    pub(super) rules: Rules<'a>,
    pub(super) facts: &'a Facts,
    pub(super) backend: Backend,
    pub(super) cost: XlaCost<N>,
    /// Remaining steps for following operands into nested fusions.
    pub(super) budget: Cell<u64>,
    /// Bytes of large constants by computation; only used if additions are exact.
    pub(super) constants: RefCell<HashMap<u32, i128>>,
}

impl<'a, N: Number> Engine<'a, N> {
    /// An engine in its initial state.
    pub(super) fn new(rules: Rules<'a>, facts: &'a Facts, backend: Backend) -> Self {
        let cost = XlaCost { rows: Vec::new(), computations: Vec::new() };
        let budget = Cell::new(super::traffic::budget(rules.module));
        Self { rules, facts, backend, cost, budget, constants: RefCell::default() }
    }

    fn computation(&mut self, id: ComputationId, order: &mut VisitOrder) {
        let module = self.rules.module;
        let rows = module.computation(id).rows();
        let mut cursor = FactCursor::new(self.facts, id);
        for row in rows {
            self.cost.rows[row as usize] = self.row(Row(row), cursor.take(row));
        }
        let mut sum = Properties::default();
        if N::IS_EXACT {
            for row in module.computation(id).rows() {
                sum = sum.plus(self.cost.rows[row as usize]);
            }
        } else {
            for row in order.of(module, id) {
                sum = sum.plus(self.cost.rows[*row as usize]);
            }
        }
        self.cost.computations[id.0 as usize] = sum;
    }

    fn called(&self, row: Row, role: CallRole) -> Properties<N> {
        let called = self.rules.module.called(row, role);
        called.map_or_else(Properties::default, |id| self.cost.computations[id.0 as usize])
    }

    fn row(&self, row: Row, fact: Option<&Fact>) -> Properties<N> {
        let opcode = self.rules.module.opcode(row);
        match opcode {
            Opcode::Fusion => return self.fusion(row, fact),
            Opcode::CustomCall => return self.custom_call(row, fact),
            Opcode::Call => return self.called(row, CallRole::ToApply),
            Opcode::AsyncStart => {
                let role = match self.rules.module.called(row, CallRole::Calls) {
                    Some(_) => CallRole::Calls,
                    None => CallRole::Wrapped,
                };
                return Properties { optimal_seconds: N::default(), ..self.called(row, role) };
            }
            Opcode::While => {
                let body = Properties::default().plus(self.called(row, CallRole::Body));
                return body.plus(self.called(row, CallRole::Condition));
            }
            Opcode::Conditional => return self.conditional(row),
            _ => {}
        }
        let mut cost = self.work(row, opcode, fact);
        cost.bytes = self.bytes(row, opcode, fact);
        cost
    }

    /// FLOPs and transcendentals of an instruction and of the computations it applies to elements.
    pub(super) fn work(&self, row: Row, opcode: Opcode, fact: Option<&Fact>) -> Properties<N> {
        let Work { flops, transcendentals, .. } = self.rules.work(row, opcode, fact);
        let mut cost = Properties {
            flops: N::of(flops),
            transcendentals: N::of(transcendentals),
            ..Properties::default()
        };
        if class_of(opcode) != Class::Special {
            return cost;
        }
        let applications = self.rules.applications(row, opcode, fact).unwrap_or_default();
        for (computation, count) in applications.into_iter().flatten() {
            let applied = self.cost.computations[computation.0 as usize];
            cost.flops = cost.flops.plus(applied.flops.times(count));
            cost.transcendentals = cost.transcendentals.plus(applied.transcendentals.times(count));
        }
        cost
    }

    fn conditional(&self, row: Row) -> Properties<N> {
        let calls = self.rules.module.calls(row).iter();
        calls
            .map(|call| self.cost.computations[call.computation.0 as usize])
            .reduce(Properties::maximum)
            .unwrap_or_default()
    }

    /// XLA knows nothing about custom calls and reports -1. libtpu uses the kernel author's
    /// estimate and knows a few of its own calls (measured on compiled programs).
    pub(super) fn custom_call(&self, row: Row, fact: Option<&Fact>) -> Properties<N> {
        let unknown = Properties {
            flops: N::of(-1),
            transcendentals: N::default(),
            bytes: N::of(-1),
            optimal_seconds: N::of(-1),
        };
        let Some(Fact::CustomCall(call)) = fact else { return unknown };
        if self.backend != Backend::Tpu {
            return unknown;
        }
        let number = |value: Option<i64>| N::of(i128::from(value.unwrap_or(0)));
        let target = custom_call_target(self.rules.module, row);
        let is_kernel = target
            .as_deref()
            .and_then(known_target)
            .is_some_and(|known| known.kind == CustomCallKind::Kernel);
        if call.provenance == Provenance::FromBackendConfig
            && (is_kernel || call.contraction.is_none())
        {
            return Properties {
                flops: number(call.flops),
                transcendentals: number(call.transcendentals),
                bytes: number(call.bytes_read).plus(number(call.bytes_written)),
                optimal_seconds: N::default(),
            };
        }
        let module = self.rules.module;
        match target.as_deref() {
            Some(b"AllocateBuffer" | b"tpu_custom_call") => Properties::default(),
            Some(b"PartialReduce") => Properties { flops: N::default(), ..unknown },
            Some(b"TopK") => {
                let results = module.shapes().leaves(module.shape(row)).next();
                let kept = results
                    .and_then(|id| module.shapes().array(id))
                    .and_then(|array| array.dimension(array.rank().checked_sub(1)?)?.bound());
                let elements = self.rules.operand_elements(row, 0).unwrap_or(0);
                Properties {
                    flops: N::of(elements.saturating_mul(kept.unwrap_or(0).into())),
                    bytes: self.default_bytes(row),
                    ..Properties::default()
                }
            }
            _ => unknown,
        }
    }

    /// Sizes of the leaves of the result, plus sizes of the operands; a tuple operand counts as its
    /// pointer table.
    pub(super) fn default_bytes(&self, row: Row) -> N {
        let module = self.rules.module;
        let mut bytes = N::default();
        let shape = module.shape(row);
        let result = self.rules.shapes[shape.0 as usize];
        if N::IS_EXACT {
            bytes = size(result.leaves);
        } else if result.is_tuple {
            for leaf in module.shapes().leaves(shape) {
                bytes = bytes.plus(size(self.rules.shapes[leaf.0 as usize].size));
            }
        } else {
            bytes = size(self.rules.shape(row).size);
        }
        for operand in module.operands(row) {
            bytes = bytes.plus(size(self.rules.shape(Row(*operand)).size));
        }
        bytes
    }

    fn leaf_bytes(&self, row: Row) -> N {
        let shapes = self.rules.module.shapes();
        let leaves = shapes.leaves(self.rules.module.shape(row));
        leaves
            .fold(N::default(), |sum, leaf| sum.plus(size(self.rules.shapes[leaf.0 as usize].size)))
    }

    fn bytes(&self, row: Row, opcode: Opcode, fact: Option<&Fact>) -> N {
        let rules = &self.rules;
        let twice = |bytes: i64| size::<N>(bytes.saturating_mul(2));
        match opcode {
            _ if class_of(opcode) == Class::Free => N::default(),
            Opcode::Transpose if matches!(fact, Some(Fact::IsBitcast)) => N::default(),
            Opcode::Tuple => size(rules.shape(row).size),
            Opcode::Slice => twice(rules.shape(row).size),
            Opcode::DynamicSlice => {
                twice(rules.shape(row).size).plus(size(rules.operand(row, 1).size))
            }
            Opcode::DynamicUpdateSlice => {
                twice(rules.operand(row, 1).size).plus(size(rules.operand(row, 2).size))
            }
            Opcode::Gather => self.gather_bytes(row, fact),
            Opcode::Scatter => self.scatter_bytes(row, fact),
            Opcode::TriangularSolve => size::<N>(rules.shape(row).size)
                .plus(N::half_of(rules.operand(row, 0).size.max(0)))
                .plus(size(rules.operand(row, 1).size)),
            Opcode::Cholesky => {
                let half = N::half_of(rules.operand(row, 0).size.max(0));
                half.plus(half)
            }
            Opcode::Infeed => self.leaf_bytes(row),
            Opcode::Outfeed => {
                let operands = rules.module.operands(row).iter();
                operands.fold(N::default(), |sum, operand| sum.plus(self.leaf_bytes(Row(*operand))))
            }
            _ => self.default_bytes(row),
        }
    }

    pub(super) fn gather_bytes(&self, row: Row, fact: Option<&Fact>) -> N {
        let result = self.rules.shape(row);
        let read = self.rules.slices(row, 0, result, fact);
        let indices = self.rules.operand(row, 1).size;
        size::<N>(result.size.saturating_add(read)).plus(size(indices))
    }

    pub(super) fn scatter_bytes(&self, row: Row, fact: Option<&Fact>) -> N {
        let inputs = self.rules.module.operands(row).len().saturating_sub(1) / 2;
        let mut updates = 0i64;
        for index in 0..inputs {
            let update = self.rules.operand(row, inputs + 1 + index);
            let moved = self.rules.slices(row, index, update, fact).max(0);
            updates = updates.saturating_add(update.size.max(0));
            updates = updates.saturating_add(moved.saturating_mul(2));
        }
        size::<N>(updates).plus(size(self.rules.operand(row, inputs).size))
    }
}

pub(super) fn size<N: Number>(bytes: i64) -> N {
    N::of(i128::from(bytes.max(0)))
}

/// The order in which XLA visits the rows of a computation: depth first, operands before users and
/// from left to right; unused rows come before the computation's root.
pub(super) struct VisitOrder {
    /// 0 = not seen, 1 = on the stack, 2 = visited.
    states: Vec<u8>,
    /// Whether each row is a control predecessor of another.
    has_successor: Vec<bool>,
    stack: Vec<u32>,
    order: Vec<u32>,
}

impl VisitOrder {
    pub(super) fn new(module: &Module) -> Self {
        let mut has_successor = vec![false; module.row_count()];
        for (_, predecessor) in module.control_predecessors() {
            has_successor[predecessor.0 as usize] = true;
        }
        let states = vec![0; module.row_count()];
        Self { states, has_successor, stack: Vec::new(), order: Vec::new() }
    }

    pub(super) fn of(&mut self, module: &Module, id: ComputationId) -> &[u32] {
        self.order.clear();
        let computation = module.computation(id);
        let within = |row: u32| computation.rows().contains(&row);
        for row in computation.rows() {
            let is_unused = module.users().get(row).is_empty()
                && row != computation.root
                && !self.has_successor[row as usize];
            if is_unused {
                self.visit(module, row, &within);
            }
        }
        self.visit(module, computation.root, &within);
        // Rows that are not reachable from any root lie on a cycle in malformed text.
        for row in computation.rows() {
            if self.states[row as usize] != 2 {
                self.visit(module, row, &within);
            }
        }
        &self.order
    }

    fn visit(&mut self, module: &Module, root: u32, within: &impl Fn(u32) -> bool) {
        self.stack.push(root);
        while let Some(row) = self.stack.last().copied() {
            match self.states[row as usize] {
                2 => {
                    self.stack.pop();
                }
                1 => {
                    self.stack.pop();
                    self.states[row as usize] = 2;
                    self.order.push(row);
                }
                _ => {
                    self.states[row as usize] = 1;
                    let base = self.stack.len();
                    let states = &self.states;
                    let is_new = |operand: &u32| within(*operand) && states[*operand as usize] == 0;
                    self.stack.extend(module.operands(Row(row)).iter().copied().filter(is_new));
                    let precedes = module.control_predecessors();
                    let from = precedes.partition_point(|pair| pair.0.0 < row);
                    let pairs = precedes[from..].iter().take_while(|pair| pair.0.0 == row);
                    self.stack.extend(pairs.map(|pair| pair.1.0).filter(is_new));
                    self.stack[base..].reverse();
                }
            }
        }
    }
}
