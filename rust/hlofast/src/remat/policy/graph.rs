//! The values of one computation as a graph: fusions and calls are opened, rows that only move a
//! value are left out, and rows that compute the same value from the same operands are one node.
//!
//! Equal rows are joined because XLA's own rematerialisation clones rows (`x.remat`) when a program
//! does not fit, and because fusions repeat cheap work. A node is thus a value of the program, not a
//! row of the text.

mod combined;
pub mod keys;
mod loops;
pub mod without;

use super::products::{of_library, passes_on};
pub use super::value::Value;
use crate::cost::Cost;
use crate::ir::csr::Csr;
use crate::ir::intern::BuildMix;
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row, ShapeId};
use hashbrown::{HashMap, HashSet};
use std::ops::Range;

/// Limit on the rows that are opened for all graphs of a module.
pub const MOST_ROWS: usize = 1 << 22;
/// Limit on the depth of nested fusions, calls and loops.
const DEEPEST: u32 = 12;
/// The memory space of a value that JAX moves to host memory.
const HOST: &[u8] = b"\"pinned_host\"";

/// A value that a row computes, or an element of the computation's parameter.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// The first row that computes it.
    pub row: Row,
    /// The row of the computation in which that row runs: `row` itself or the fusion around it.
    pub outer: Row,
    /// What computes it; `Parameter` for elements of the parameter, `Convolution` for a loop that
    /// adds up products.
    pub opcode: Opcode,
    /// Its shape.
    pub shape: ShapeId,
    /// For elements of the parameter: the index. For the entry, the parameter's number.
    pub element: Option<u32>,
    /// For elements of the tuple that an operation results in: the operation's node.
    pub whole: Option<u32>,
}

/// The values of a computation.
#[derive(Debug, Default)]
pub struct Graph {
    /// Every node, operands first.
    pub nodes: Vec<Node>,
    operands: Csr,
    users: Csr,
    first_row: u32,
    /// By row of the computation: its result.
    results: Vec<Value>,
    /// The result of the computation.
    pub root: Value,
    /// By node that is a sum of partial products in a wider type than theirs: how many times wider.
    /// The program's value has the type of the products.
    pub wider: HashMap<u32, i64, BuildMix>,
    /// Nodes whose bytes are not those of their shape: operations that result in a tuple, whose
    /// elements are nodes of their own (0), or kernels (what is read of all results).
    pub own_bytes: HashMap<u32, i64, BuildMix>,
    /// By node that is a loop which adds up products: the products after the first.
    further: HashMap<u32, Vec<Row>, BuildMix>,
    /// By product that its fusion computes more than once: the rows after the first.
    copies: HashMap<u32, Vec<Row>, BuildMix>,
    /// By node that is a loop which is not opened: the elements of its initial state.
    pub states: HashMap<u32, Vec<Value>, BuildMix>,
    /// Cheap values that are computed once, because several products read them.
    pub shared: HashSet<u32, BuildMix>,
    /// Nodes whose values the text moves to host memory.
    pub on_host: HashSet<u32, BuildMix>,
    /// By node whose sharding is written: the last row that writes it.
    pub written: HashMap<u32, Row, BuildMix>,
    /// By node that is an element of an operation's tuple: its index.
    pub indices: HashMap<u32, u32, BuildMix>,
    /// By node of a loop of the program that is opened: the loop.
    pub within: HashMap<u32, Row, BuildMix>,
    /// By collective that XLA has combined from several (`combined.rs`): what these read, in the order of its results.
    combined: HashMap<u32, Vec<u32>, BuildMix>,
    /// By product in such a loop that is in memory for one iteration only (`inner.rs`): the body that computes it.
    pub passing: HashMap<u32, ComputationId, BuildMix>,
    /// By such product: bytes if it is kept, for all iterations.
    pub kept: HashMap<u32, i64, BuildMix>,
}

impl Graph {
    /// The graph of computation `id`. Loops that it runs are opened only to find out which of their
    /// results are sums of products; loops in `closed`, which ascends, are not opened. None if more than `budget`
    /// rows would have to be opened.
    pub fn new(
        module: &Module,
        id: ComputationId,
        closed: &[Row],
        budget: &mut usize,
    ) -> Option<Self> {
        let opens = id != module.entry() || !closed.is_empty();
        Self::opened(module, id, (closed, opens), budget)
    }

    /// That of a computation `id` that repeats layers without a loop: loops in them are not opened.
    pub fn of_layers(module: &Module, id: ComputationId, budget: &mut usize) -> Option<Self> {
        Self::opened(module, id, (&[], false), budget)
    }

    fn opened(
        module: &Module,
        id: ComputationId,
        (closed, opens): (&[Row], bool),
        budget: &mut usize,
    ) -> Option<Self> {
        let mut builder = Builder {
            module,
            graph: Graph::default(),
            known: HashMap::default(),
            elements: HashMap::default(),
            budget,
            closed,
            opens,
            key: Vec::new(),
        };
        let rows = module.computation(id).rows();
        let mut results = vec![Value::Nothing; rows.len()];
        builder.graph.root = builder.open(id, None, None, 0, Some(&mut results))?;
        let mut graph = builder.graph;
        graph.first_row = rows.start;
        graph.results = results;
        for (number, node) in (0u32..).zip(&graph.nodes) {
            if module.shapes().tuple(node.shape).is_some() {
                graph.own_bytes.insert(number, 0);
            }
        }
        graph.find_users();
        Some(graph)
    }

    /// Finds the users of each node once all nodes are known.
    fn find_users(&mut self) {
        if self.operands.offsets.is_empty() {
            self.operands.offsets.push(0);
        }
        let Csr { offsets, items } = &self.operands;
        self.users = Csr::transpose(offsets, items, self.nodes.len());
    }

    /// The rows of the computation.
    pub fn rows(&self) -> Range<u32> {
        self.first_row..self.first_row + self.results.len() as u32
    }

    /// Sets the bytes of the products in loops that a policy could keep: those of one iteration, which `bytes`
    /// tells, in all iterations of a run of computation `id`.
    pub fn keep_passing(
        &mut self,
        cost: &Cost,
        id: ComputationId,
        bytes: impl Fn(&Self, u32) -> i64,
    ) {
        let runs = |id: ComputationId| cost.executions.get(id.0 as usize).copied().flatten();
        let of = |(node, place): (&u32, &ComputationId)| {
            let times = runs(*place)?.checked_div(runs(id)?)?;
            Some((*node, bytes(self, *node).checked_mul(times)?))
        };
        self.kept = self.passing.iter().filter_map(of).collect();
    }

    /// Makes the results of the loops that were not opened elements of the state, of numbers that no
    /// element has: values that come from outside, and change from one iteration to the next.
    pub fn cut(&mut self) {
        let states = &self.states;
        for (number, node) in (0u32..).zip(&mut self.nodes) {
            if node.whole.is_some_and(|whole| states.contains_key(&whole)) {
                node.element = Some(u32::MAX - number);
            }
        }
    }

    /// The row whose operation name tells the phase of a node: the loop in which it is, since names in a loop
    /// do not tell what is around it before optimisation.
    pub fn named_by(&self, node: u32) -> Row {
        self.within.get(&node).copied().unwrap_or(self.nodes[node as usize].row)
    }

    /// The operands of a node.
    pub fn operands(&self, node: u32) -> &[u32] {
        self.operands.get(node)
    }

    /// The products after the first whose sum a node is, if a loop adds them up.
    pub fn further(&self, node: u32) -> &[Row] {
        self.further.get(&node).map_or(&[], Vec::as_slice)
    }

    /// The rows after the first that compute a product in its fusion. One fusion for TPUs computes scores of
    /// attention once for their maxima and once for the exponentials, where writing them would take longer.
    pub fn copies(&self, node: u32) -> &[Row] {
        self.copies.get(&node).map_or(&[], Vec::as_slice)
    }

    /// The nodes that read a node.
    pub fn users(&self, node: u32) -> &[u32] {
        self.users.get(node)
    }

    /// Bytes of the value of a node, by the bytes of shapes: XLA keeps a value that is only widened
    /// for computing, or for adding partial products, in its narrow type. Unknown sizes count as 0.
    pub fn bytes(&self, node: u32, sizes: &[i64]) -> i64 {
        if let Some(own) = self.own_bytes.get(&node) {
            return *own;
        }
        let size = |node: u32| self.size(node, sizes);
        let users = self.users(node).iter();
        let narrowed = users.filter(|user| self.nodes[**user as usize].opcode == Opcode::Convert);
        let own = size(node) / self.wider.get(&node).copied().unwrap_or(1);
        // One in fewer bits than another does not hold what the other's readers need.
        narrowed.map(|user| size(*user)).filter(|narrow| *narrow < own).max().unwrap_or(own)
    }

    /// Bytes of a node in the type that it has in the text, by the bytes of shapes.
    pub fn size(&self, node: u32, sizes: &[i64]) -> i64 {
        let shape = self.nodes[node as usize].shape;
        let own = self.own_bytes.get(&node).or_else(|| sizes.get(shape.0 as usize));
        own.copied().unwrap_or(0).max(0)
    }

    /// The result of a row of the computation.
    pub fn result(&self, row: Row) -> Value {
        let at = row.0.checked_sub(self.first_row).map(|at| at as usize);
        at.and_then(|at| self.results.get(at)).cloned().unwrap_or_default()
    }
}

struct Builder<'a, 'b> {
    module: &'a Module,
    graph: Graph,
    /// Nodes by what they compute.
    known: HashMap<u128, u32, BuildMix>,
    /// Nodes of elements of tuples that are one value.
    elements: HashMap<(u32, usize), u32, BuildMix>,
    budget: &'b mut usize,
    /// Loops that are not opened.
    closed: &'a [Row],
    /// Whether products in loops of the program are nodes of their own (`inner.rs`).
    opens: bool,
    /// Scratch space for keys.
    key: Vec<u8>,
}

impl Builder<'_, '_> {
    /// The result of computation `id` with these arguments; None if the budget is spent.
    fn open(
        &mut self,
        id: ComputationId,
        arguments: Option<&[Value]>,
        outer: Option<Row>,
        depth: u32,
        results: Option<&mut Vec<Value>>,
    ) -> Option<Value> {
        let computation = self.module.computation(id);
        let rows = computation.rows();
        *self.budget = self.budget.checked_sub(rows.len() + 1)?;
        let mut values = vec![Value::Nothing; rows.len()];
        for row in rows.clone().map(Row) {
            let value = self.value(row, rows.start, &values, arguments, outer, depth)?;
            values[(row.0 - rows.start) as usize] = value;
        }
        let at = computation.root.checked_sub(rows.start).map(|at| at as usize);
        let root = at.and_then(|at| values.get(at)).cloned().unwrap_or_default();
        if let Some(results) = results {
            *results = values;
        }
        Some(root)
    }

    fn value(
        &mut self,
        row: Row,
        first: u32,
        values: &[Value],
        arguments: Option<&[Value]>,
        outer: Option<Row>,
        depth: u32,
    ) -> Option<Value> {
        let module = self.module;
        let read = |operand: &u32| {
            let at = operand.checked_sub(first).map(|at| at as usize);
            at.and_then(|at| values.get(at)).cloned().unwrap_or_default()
        };
        let operands = module.operands(row);
        let operand = |index: usize| operands.get(index).map(read).unwrap_or_default();
        let opcode = module.opcode(row);
        Some(match opcode {
            Opcode::Parameter => {
                let number = module.parameter_number(row).and_then(|n| usize::try_from(n).ok());
                match arguments {
                    Some(arguments) => {
                        number.and_then(|n| arguments.get(n)).cloned().unwrap_or_default()
                    }
                    None => self.parameter(row, number.unwrap_or(0)),
                }
            }
            Opcode::Tuple => Value::many(operands.iter().map(read).collect()),
            Opcode::GetTupleElement => {
                let index = module.tuple_index(row).unwrap_or(usize::MAX);
                match operand(0) {
                    // An element of an operation's own tuple is a value of that operation.
                    Value::One(node) => {
                        let key = (node, index);
                        if let Some(known) = self.elements.get(&key) {
                            return Some(Value::One(*known));
                        }
                        let opcode = self.graph.nodes[node as usize].opcode;
                        let outer = outer.unwrap_or(row);
                        let own = self.graph.combined.get(&node).and_then(|own| own.get(index));
                        let read = [own.copied().unwrap_or(node)];
                        let part = self.push(row, outer, opcode, module.shape(row), &read);
                        self.graph.nodes[part as usize].whole = Some(node);
                        self.graph.indices.extend(u32::try_from(index).map(|own| (part, own)));
                        self.elements.insert(key, part);
                        Value::One(part)
                    }
                    value => value.element(index),
                }
            }
            Opcode::CopyStart => Value::many(vec![operand(0), operand(0)]),
            Opcode::CopyDone => match operand(0) {
                Value::Many(many) => many.elements.first().cloned().unwrap_or_default(),
                value => value,
            },
            Opcode::Bitcast if self.is_lane(row, &operand(0)) => {
                let lane = self.opaque(row, outer, Opcode::Slice, &[operand(0)]);
                self.pack(&lane);
                lane
            }
            // JAX rounds values that a policy saves to the precision that they have.
            Opcode::Bitcast
            | Opcode::Copy
            | Opcode::Reshape
            | Opcode::Transpose
            | Opcode::ReducePrecision
            | Opcode::OptBarrier
            | Opcode::Domain
            | Opcode::AsyncUpdate
            | Opcode::AsyncDone
            | Opcode::AllGatherDone
            | Opcode::AllReduceDone
            | Opcode::CollectivePermuteDone => operand(0),
            Opcode::AsyncStart | Opcode::Fusion | Opcode::Call => {
                let called = [CallRole::Calls, CallRole::ToApply, CallRole::Wrapped];
                let called = called.into_iter().find_map(|role| module.called(row, role));
                let given: Vec<Value> = operands.iter().map(read).collect();
                match called.filter(|_| depth < DEEPEST) {
                    Some(id) => {
                        let outer = outer.or(Some(row));
                        self.open(id, Some(&given), outer, depth + 1, None)?
                    }
                    None => self.opaque(row, outer, opcode, &given),
                }
            }
            Opcode::AllGatherStart => self.collective(row, outer, Opcode::AllGather, &operand(0)),
            Opcode::AllReduceStart => self.collective(row, outer, Opcode::AllReduce, &operand(0)),
            Opcode::CollectivePermuteStart => {
                self.collective(row, outer, Opcode::CollectivePermute, &operand(0))
            }
            Opcode::While => self.results_of_loop(row, outer, &operand(0), depth)?,
            Opcode::CustomCall => {
                let target = module.attribute_bytes(row, "custom_call_target").unwrap_or_default();
                match target {
                    b"\"ConcatBitcast\"" => self.joined(&operand(0)),
                    b"\"AsyncCollectiveStart\"" | b"\"AsyncCollectiveDone\"" => operand(0),
                    // Before partitioning: shardings and placements of values.
                    target if passes_on(target) => match operands.len() {
                        1 => {
                            let value = operand(0);
                            self.mark(row, target, value.node());
                            value
                        }
                        _ => Value::many(operands.iter().map(read).collect()),
                    },
                    // Memory that later rows write in parts.
                    b"\"AllocateBuffer\"" => {
                        self.node(row, outer, Opcode::Constant, module.shape(row), Vec::new())
                    }
                    _ => {
                        let given: Vec<Value> = operands.iter().map(read).collect();
                        match of_library(module, row) {
                            Some(shape) => self.product(row, outer, shape, &given),
                            None => self.opaque(row, outer, opcode, &given),
                        }
                    }
                }
            }
            Opcode::DynamicSlice if self.is_scattered(row, outer) => {
                self.scattered(row, outer, &operand(0))
            }
            _ => {
                let given: Vec<Value> = operands.iter().map(read).collect();
                self.opaque(row, outer, opcode, &given)
            }
        })
    }

    /// Whether a row is the result of a fusion and takes a part of what an all-reduce in it sums up: so XLA for
    /// TPUs writes a reduce-scatter, whose whole sum is nowhere in memory.
    fn is_scattered(&self, row: Row, outer: Option<Row>) -> bool {
        let module = self.module;
        let sum = module.operands(row).first().map(|own| Row(*own));
        let is_result = || module.computation(module.computation_of(row)).root == row.0;
        outer.is_some()
            && sum.is_some_and(|sum| module.opcode(sum) == Opcode::AllReduce)
            && is_result()
    }

    /// A reduce-scatter that is written as an all-reduce, whose node is `sum`, and a slice.
    fn scattered(&mut self, row: Row, outer: Option<Row>, sum: &Value) -> Value {
        let Some(sum) = sum.node() else { return Value::Nothing };
        let read = self.graph.operands(sum).to_vec();
        let own = &mut self.graph.nodes[sum as usize];
        own.opcode = Opcode::Bitcast;
        let of = own.row;
        self.node(of, outer, Opcode::ReduceScatter, self.module.shape(row), read)
    }

    /// Notes the sharding or the memory space that a custom call gives to a value.
    fn mark(&mut self, row: Row, target: &[u8], node: Option<u32>) {
        let Some(node) = node else { return };
        let attributes = || self.module.attribute_bytes(row, "frontend_attributes");
        if target == b"\"Sharding\"" {
            self.graph.written.insert(node, row);
        } else if attributes().is_some_and(|own| own.windows(HOST.len()).any(|part| part == HOST)) {
            self.graph.on_host.insert(node);
        }
    }

    /// The value whose parts were fetched one by one.
    fn joined(&self, part: &Value) -> Value {
        let Some(mut node) = part.node() else { return Value::Nothing };
        while self.graph.nodes[node as usize].opcode == Opcode::Slice {
            match self.graph.operands(node).first() {
                Some(operand) => node = *operand,
                None => break,
            }
        }
        Value::One(node)
    }

    /// Whether a bitcast takes one lane of a value: its result has fewer elements.
    fn is_lane(&self, row: Row, value: &Value) -> bool {
        let elements = |shape| self.module.shapes().array(shape).and_then(|own| own.elements());
        let whole = value.node().map(|node| self.graph.nodes[node as usize].shape);
        match (elements(self.module.shape(row)), whole.and_then(elements)) {
            (Some(own), Some(whole)) => own < whole,
            _ => false,
        }
    }

    /// Counts a lane without the lanes beside it: a copy packs it before it is kept.
    fn pack(&mut self, lane: &Value) {
        let Some(node) = lane.node() else { return };
        let array = self.module.shapes().array(self.graph.nodes[node as usize].shape);
        let bits =
            array.and_then(|own| own.elements()?.checked_mul(own.element_type.bits().into()));
        if let Some(bytes) = bits.and_then(|bits| i64::try_from(bits.div_ceil(8)).ok()) {
            self.graph.own_bytes.insert(node, bytes);
        }
    }

    fn parameter(&mut self, row: Row, number: usize) -> Value {
        let module = self.module;
        let shape = module.shape(row);
        let mut leaf = |element: usize, shape: ShapeId| {
            let node = self.push(row, row, Opcode::Parameter, shape, &[]);
            self.graph.nodes[node as usize].element = u32::try_from(element).ok();
            Value::One(node)
        };
        match module.shapes().tuple(shape) {
            Some(elements) => {
                let is_array = |shape: ShapeId| module.shapes().tuple(shape).is_none();
                let each = elements.iter().enumerate().map(|(element, shape)| {
                    if is_array(*shape) { leaf(element, *shape) } else { Value::Nothing }
                });
                Value::many(each.collect())
            }
            None => leaf(number, shape),
        }
    }

    /// A collective whose start and end are two rows.
    fn collective(
        &mut self,
        row: Row,
        outer: Option<Row>,
        opcode: Opcode,
        operand: &Value,
    ) -> Value {
        let shape = self.module.shape(row);
        let result = match self.module.shapes().tuple(shape) {
            Some(elements) if opcode != Opcode::AllReduce => {
                elements.get(1).copied().unwrap_or(shape)
            }
            _ => shape,
        };
        let mut read = Vec::new();
        operand.leaves(&mut read, &mut 0);
        self.node(row, outer, opcode, result, read)
    }

    /// A row that is not opened; it reads all leaves of its operands.
    fn opaque(&mut self, row: Row, outer: Option<Row>, opcode: Opcode, given: &[Value]) -> Value {
        let mut read = Vec::new();
        let mut visits = 0;
        given.iter().for_each(|value| value.leaves(&mut read, &mut visits));
        // The budget that is left decides at the next computation whether to go on.
        *self.budget = self.budget.saturating_sub(read.len());
        self.node(row, outer, opcode, self.module.shape(row), read)
    }

    /// A product that a library for GPUs computes; the rest of its result is workspace.
    fn product(&mut self, row: Row, outer: Option<Row>, shape: ShapeId, given: &[Value]) -> Value {
        let mut read = Vec::new();
        given.iter().for_each(|value| value.leaves(&mut read, &mut 0));
        *self.budget = self.budget.saturating_sub(read.len());
        let made = self.node(row, outer, Opcode::Dot, shape, read);
        match self.module.shapes().tuple(self.module.shape(row)) {
            Some(_) => Value::many(vec![made]),
            None => made,
        }
    }

    /// The node of a row: an earlier one if it computes the same value.
    fn node(
        &mut self,
        row: Row,
        outer: Option<Row>,
        opcode: Opcode,
        shape: ShapeId,
        read: Vec<u32>,
    ) -> Value {
        let key = self.key_of(row, opcode, shape, &read);
        let outer = outer.unwrap_or(row);
        if let Some(known) = key.and_then(|key| self.known.get(&key)).copied() {
            self.note_copy(known, row, outer);
            return Value::One(known);
        }
        let node = match self.is_combined(opcode, shape, &read) {
            true => {
                let node = self.push(row, outer, opcode, shape, &[]);
                self.graph.combined.insert(node, read);
                node
            }
            false => self.push(row, outer, opcode, shape, &read),
        };
        if let Some(key) = key {
            self.known.insert(key, node);
        }
        Value::One(node)
    }

    /// Notes that the fusion of the product `node` computes it in `row` too.
    fn note_copy(&mut self, node: u32, row: Row, outer: Row) {
        let own = &self.graph.nodes[node as usize];
        if own.opcode.is_matmul() && own.outer == outer && own.row != row {
            let copies = self.graph.copies.entry(node).or_default();
            if !copies.contains(&row) {
                copies.push(row);
            }
        }
    }

    fn push(&mut self, row: Row, outer: Row, opcode: Opcode, shape: ShapeId, read: &[u32]) -> u32 {
        let number = self.graph.nodes.len() as u32;
        let operands = &mut self.graph.operands;
        if operands.offsets.is_empty() {
            operands.offsets.push(0);
        }
        operands.items.extend_from_slice(read);
        operands.offsets.push(operands.items.len() as u32);
        self.graph.nodes.push(Node { row, outer, opcode, shape, element: None, whole: None });
        number
    }
}
