//! Bytes that one execution of an instruction reads and writes, by memory space.
//!
//! The model: every operand is read once, the result is written once, and values inside a fusion
//! are free. Slices read only the elements they take, in-place updates write only the elements they
//! change, and of an asynchronous pair only the done counts.

use super::custom_call::CustomCallKind;
use super::facts::{AsyncBody, Fact, Facts, start_of};
use super::rules::{Class, Rules, class_of};
use crate::ir::size::ShapeCost;
use crate::ir::{CallRole, ComputationId, Flags, Module, Opcode, Row, ShapeId};

/// Bytes of one row in a memory space other than the default one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceBytes {
    /// The row.
    pub row: u32,
    /// `S(n)` of the layout; 255 stands for every value above 254.
    pub memory_space: u8,
    /// Bytes read per execution.
    pub read: i64,
    /// Bytes written per execution.
    pub written: i64,
}

/// Adds up the traffic of rows.
pub(super) struct Traffic<'a> {
    rules: Rules<'a>,
    facts: &'a Facts,
    /// Bytes of the current row in memory space 0.
    read: i64,
    written: i64,
    /// Whether a size of the current row is unknown.
    is_unknown: bool,
    row: u32,
    /// Bytes in other memory spaces, of all rows so far.
    pub other: Vec<SpaceBytes>,
    /// The last row that read each row, so that a repeated operand is read once.
    readers: Vec<u32>,
    pending: Vec<Row>,
    /// Updates that the current fusion makes in place.
    in_place: Vec<u32>,
    /// Bytes of large constants, by computation.
    constants: Vec<i64>,
    /// Remaining steps for following operands into nested fusions. Shared computations and long
    /// operand lists can make the tree of fusions large; once the budget is spent, operands count
    /// as read whole.
    budget: u64,
}

const NO_ROW: u32 = u32::MAX;
const NOT_COUNTED: i64 = -2;

impl<'a> Traffic<'a> {
    pub fn new(rules: Rules<'a>, facts: &'a Facts) -> Self {
        Self {
            rules,
            facts,
            read: 0,
            written: 0,
            is_unknown: false,
            row: NO_ROW,
            other: Vec::new(),
            readers: Vec::new(),
            pending: Vec::new(),
            in_place: Vec::new(),
            constants: Vec::new(),
            budget: budget(rules.module),
        }
    }

    /// Bytes that `row` reads and writes in memory space 0; other spaces go to `other`. None if a
    /// size is unknown.
    #[inline]
    pub fn of(&mut self, row: Row, opcode: Opcode, fact: Option<&Fact>) -> Option<(i64, i64)> {
        let class = class_of(opcode);
        if class == Class::Free {
            return Some((0, 0));
        }
        (self.read, self.written, self.is_unknown, self.row) = (0, 0, false, row.0);
        if class == Class::Special || opcode == Opcode::Transpose {
            self.special(row, opcode, fact);
        } else {
            self.plain(row);
        }
        (!self.is_unknown).then_some((self.read, self.written))
    }

    #[inline]
    fn add_read(&mut self, size: i64, memory_space: u8) {
        if size < 0 {
            self.is_unknown = true;
        } else if memory_space == 0 {
            self.read = self.read.saturating_add(size);
        } else {
            let entry = self.other_entry(memory_space);
            entry.read = entry.read.saturating_add(size);
        }
    }

    #[inline]
    fn add_written(&mut self, size: i64, memory_space: u8) {
        if size < 0 {
            self.is_unknown = true;
        } else if memory_space == 0 {
            self.written = self.written.saturating_add(size);
        } else {
            let entry = self.other_entry(memory_space);
            entry.written = entry.written.saturating_add(size);
        }
    }

    /// The current row's entry for `memory_space`. A row has few spaces, so the search is short.
    fn other_entry(&mut self, memory_space: u8) -> &mut SpaceBytes {
        let row = self.row;
        let position = self
            .other
            .iter()
            .rposition(|entry| entry.row != row || entry.memory_space == memory_space)
            .filter(|at| self.other[*at].row == row);
        let at = position.unwrap_or_else(|| {
            self.other.push(SpaceBytes { row, memory_space, read: 0, written: 0 });
            self.other.len() - 1
        });
        &mut self.other[at]
    }

    fn reads(&mut self, cost: ShapeCost) {
        // Reading a tuple is free: its elements were written by their producers and are read by
        // their users.
        if !cost.is_tuple {
            self.add_read(cost.size, cost.memory_space);
        }
    }

    fn writes(&mut self, shape: ShapeId) {
        let cost = self.rules.shapes[shape.0 as usize];
        if !cost.is_tuple || cost.is_default_memory {
            return self.add_written(cost.leaves, cost.memory_space);
        }
        for leaf in self.rules.module.shapes().leaves(shape) {
            let cost = self.rules.shapes[leaf.0 as usize];
            self.add_written(cost.size, cost.memory_space);
        }
    }

    fn reads_operand(&mut self, row: Row, index: usize) {
        if let Some(operand) = self.rules.module.operands(row).get(index) {
            self.reads(self.rules.shape(Row(*operand)));
        }
    }

    /// Reads each distinct operand from index `from` on once.
    #[inline]
    fn reads_operands(&mut self, row: Row, from: usize) {
        let operands = self.rules.module.operands(row).get(from..).unwrap_or_default();
        match operands {
            [] => {}
            [only] => self.reads(self.rules.shape(Row(*only))),
            [first, second] => {
                self.reads(self.rules.shape(Row(*first)));
                if second != first {
                    self.reads(self.rules.shape(Row(*second)));
                }
            }
            _ => {
                if self.readers.is_empty() {
                    self.readers = vec![NO_ROW; self.rules.module.row_count()];
                }
                for operand in operands {
                    let reader = &mut self.readers[*operand as usize];
                    if std::mem::replace(reader, row.0) != row.0 {
                        self.reads(self.rules.shape(Row(*operand)));
                    }
                }
            }
        }
    }

    #[inline]
    fn plain(&mut self, row: Row) {
        self.reads_operands(row, 0);
        self.writes(self.rules.module.shape(row));
    }

    fn special(&mut self, row: Row, opcode: Opcode, fact: Option<&Fact>) {
        let module = self.rules.module;
        match opcode {
            Opcode::Tuple
            | Opcode::OptBarrier
            | Opcode::Call
            | Opcode::While
            | Opcode::Conditional
            | Opcode::AsyncStart
            | Opcode::AsyncUpdate
            | Opcode::AsyncDone
            | Opcode::AllReduceStart
            | Opcode::AllGatherStart
            | Opcode::CollectivePermuteStart
            | Opcode::CopyStart
            | Opcode::SendDone
            | Opcode::Recv => {}
            Opcode::Transpose if matches!(fact, Some(Fact::IsBitcast)) => {}
            Opcode::Fusion => self.fusion(row, fact),
            Opcode::CustomCall => self.custom_call(row, fact),
            Opcode::Slice | Opcode::DynamicSlice => self.slice(row),
            Opcode::DynamicUpdateSlice => {
                self.reads_operands(row, 1);
                let update = self.rules.operand(row, 1);
                let space = self.rules.shape(row).memory_space;
                self.add_written(update.size, space);
            }
            Opcode::Gather => self.gather(row, fact),
            Opcode::Scatter => self.scatter(row, fact),
            Opcode::TriangularSolve => {
                let matrix = self.rules.operand(row, 0);
                self.add_read(half(matrix.size), matrix.memory_space);
                self.reads_operand(row, 1);
                self.writes(module.shape(row));
            }
            Opcode::Cholesky => {
                let matrix = self.rules.operand(row, 0);
                self.add_read(half(matrix.size), matrix.memory_space);
                let result = self.rules.shape(row);
                self.add_written(half(result.size), result.memory_space);
            }
            Opcode::Outfeed => self.reads_leaves(row, 0),
            Opcode::Send => self.reads_leaves(row, 0),
            Opcode::RecvDone | Opcode::Infeed => self.writes(module.shape(row)),
            Opcode::AllReduceDone
            | Opcode::AllGatherDone
            | Opcode::CollectivePermuteDone
            | Opcode::CopyDone => {
                match start_of(module, row) {
                    Some(start) => self.reads_operands(start, 0),
                    // The start is elsewhere, for example in an earlier loop: the bytes read are
                    // taken to be the bytes written.
                    None => {
                        let cost = self.rules.shape(row);
                        self.add_read(cost.leaves, cost.memory_space);
                    }
                }
                self.writes(module.shape(row));
            }
            _ => self.plain(row),
        }
    }

    /// Counts as many bytes read from operand 0 as the result holds, and the whole of the other
    /// operands.
    fn slice(&mut self, row: Row) {
        let result = self.rules.shape(row);
        self.add_read(result.size, self.rules.operand(row, 0).memory_space);
        self.reads_operands(row, 1);
        self.add_written(result.size, result.memory_space);
    }

    fn gather(&mut self, row: Row, fact: Option<&Fact>) {
        let result = self.rules.shape(row);
        let read = self.rules.slices(row, 0, result, fact);
        self.add_read(read, self.rules.operand(row, 0).memory_space);
        self.reads_operands(row, 1);
        self.add_written(result.size, result.memory_space);
    }

    /// The target is updated in place: only the elements that the updates touch are read and
    /// written.
    fn scatter(&mut self, row: Row, fact: Option<&Fact>) {
        let inputs = self.rules.module.operands(row).len().saturating_sub(1) / 2;
        self.reads_operand(row, inputs);
        for index in inputs + 1..=2 * inputs {
            let update = self.rules.operand(row, index);
            let target = self.rules.operand(row, index - inputs - 1).memory_space;
            self.add_read(update.size, update.memory_space);
            let moved = self.rules.slices(row, index - inputs - 1, update, fact);
            self.add_read(moved, target);
            self.add_written(moved, target);
        }
    }

    fn reads_leaves(&mut self, row: Row, index: usize) {
        let module = self.rules.module;
        let Some(operand) = module.operands(row).get(index) else { return };
        for leaf in module.shapes().leaves(module.shape(Row(*operand))) {
            self.reads(self.rules.shapes[leaf.0 as usize]);
        }
    }

    /// Reads the leaves of each distinct operand once.
    fn reads_all_leaves(&mut self, row: Row) {
        if self.readers.is_empty() {
            self.readers = vec![NO_ROW; self.rules.module.row_count()];
        }
        for (index, operand) in self.rules.module.operands(row).iter().enumerate() {
            let reader = &mut self.readers[*operand as usize];
            if std::mem::replace(reader, row.0) == row.0 {
                continue;
            }
            let cost = self.rules.shape(Row(*operand));
            if cost.is_tuple && !cost.is_default_memory {
                self.reads_leaves(row, index);
            } else {
                self.add_read(cost.leaves, cost.memory_space);
            }
        }
    }

    fn custom_call(&mut self, row: Row, fact: Option<&Fact>) {
        let Some(Fact::CustomCall(call)) = fact else { return self.plain(row) };
        if call.kind == CustomCallKind::Marker {
            return;
        }
        match (call.bytes_read, call.bytes_written) {
            (None, None) => {
                self.reads_all_leaves(row);
                self.writes(self.rules.module.shape(row));
            }
            (read, written) => {
                self.add_read(read.unwrap_or(0).max(0), 0);
                self.add_written(written.unwrap_or(0).max(0), 0);
            }
        }
    }

    fn fusion(&mut self, row: Row, fact: Option<&Fact>) {
        let module = self.rules.module;
        let Some(&Fact::Fusion { callee: id, .. }) = fact else { return self.plain(row) };
        let body = self.facts.async_body(id);
        match body {
            AsyncBody::Start => return,
            AsyncBody::Done => return self.async_done(row, id),
            AsyncBody::None | AsyncBody::Overlapped => {}
        }
        self.in_place.clear();
        self.fusion_results(row, id, body);
        self.in_place.sort_unstable();
        let constants = self.constant_bytes(id);
        self.add_read(constants, 0);
        let root = module.computation(id).root;
        // A shared computation may have more parameters than its callers have operands.
        let given = module.operands(row).len();
        for parameter in self.facts.parameters(module, id).iter().take(given) {
            let mut users = module.users().get(*parameter).iter();
            let passes = |user: &u32| *user == root || is_in_flight(module, Row(*user));
            if body == AsyncBody::Overlapped && users.all(passes) {
                continue;
            }
            self.parameter(Row(*parameter));
        }
    }

    /// The end of an asynchronous collective counts the reads and writes of the pair.
    fn async_done(&mut self, row: Row, id: ComputationId) {
        let module = self.rules.module;
        let mut rows = module.computation(id).rows().map(Row);
        if let Some(collective) = rows.find(|row| is_collective(module.opcode(*row))) {
            self.reads_operands(collective, 0);
        }
        self.writes(module.shape(row));
    }

    /// Bytes of the large constants in computation `id`.
    fn constant_bytes(&mut self, id: ComputationId) -> i64 {
        if self.constants.is_empty() {
            self.constants = vec![NOT_COUNTED; self.rules.module.computations().len()];
        }
        let known = self.constants[id.0 as usize];
        if known != NOT_COUNTED {
            return known;
        }
        let sizes = self.facts.constants(id).iter().map(|row| self.rules.shape(Row(*row)));
        let bytes = sizes.fold(0i64, |sum, cost| sum.saturating_add(cost.size.max(0)));
        self.constants[id.0 as usize] = bytes;
        bytes
    }

    fn fusion_results(&mut self, row: Row, id: ComputationId, body: AsyncBody) {
        let module = self.rules.module;
        let root = Row(module.computation(id).root);
        let shape = module.shape(row);
        let Some(elements) = module.shapes().tuple(shape) else {
            return self.fusion_result(root, shape);
        };
        let values = match module.opcode(root) {
            Opcode::Tuple => module.operands(root),
            _ => &[],
        };
        for (index, element) in elements.iter().enumerate() {
            match values.get(index).map(|value| Row(*value)) {
                Some(value) if body == AsyncBody::Overlapped && is_in_flight(module, value) => {}
                Some(value) if !self.rules.shapes[element.0 as usize].is_tuple => {
                    self.fusion_result(value, *element);
                }
                _ => self.writes(*element),
            }
        }
    }

    /// A result is written whole, except that an update of one of the fusion's operands is made in
    /// place, even if followed by a bitcast or conversion, when the result can take the operand's
    /// buffer.
    fn fusion_result(&mut self, value: Row, shape: ShapeId) {
        let module = self.rules.module;
        let whole = self.rules.shapes[shape.0 as usize];
        let (mut source, mut written) = (value, 0i64);
        let updates = self.in_place.len();
        for _ in 0..64 {
            let opcode = module.opcode(source);
            match opcode {
                Opcode::DynamicUpdateSlice => {
                    let part = part_of(whole, self.rules.operand(source, 1).elements);
                    written = written.saturating_add(part.max(0));
                    self.in_place.push(source.0);
                }
                Opcode::Scatter if module.operands(source).len() == 3 => {
                    let fact = self.facts.get(source.0);
                    let part = self.rules.slices(source, 0, self.rules.operand(source, 2), fact);
                    written = written.saturating_add(part.max(0));
                    self.in_place.push(source.0);
                }
                _ if is_view(module, source) => {}
                _ => break,
            }
            let Some(operand) = module.operands(source).first() else { break };
            source = Row(*operand);
        }
        let shapes = module.shapes();
        let type_of = |id: ShapeId| shapes.array(id).map(|array| array.element_type);
        let is_in_place = self.in_place.len() > updates
            && matches!(module.opcode(source), Opcode::Parameter | Opcode::GetTupleElement)
            && type_of(module.shape(source)) == type_of(shape)
            && self.rules.shape(source).size == whole.size;
        if !is_in_place {
            self.in_place.truncate(updates);
            return self.add_written(whole.size, whole.memory_space);
        }
        self.add_written(written.min(whole.size), whole.memory_space);
    }

    fn parameter(&mut self, parameter: Row) {
        let module = self.rules.module;
        let cost = self.rules.shape(parameter);
        if !cost.is_tuple {
            let size = self.taken(parameter, cost);
            return self.add_read(size, cost.memory_space);
        }
        let mut stack = vec![(module.shape(parameter), parameter)];
        while let Some((shape, value)) = stack.pop() {
            match module.shapes().tuple(shape) {
                None => {
                    let cost = self.rules.shapes[shape.0 as usize];
                    // A tuple leaf that no get-tuple-element extracts is not read.
                    if module.shape(value) == shape {
                        let size = self.taken(value, cost);
                        self.add_read(size, cost.memory_space);
                    }
                }
                Some(elements) => {
                    let taken = super::xla_fusion::elements_taken(module, value, elements.len());
                    stack.extend(elements.iter().copied().zip(taken));
                }
            }
        }
    }

    /// Bytes of fusion input `value` that are read: the sum of all slices, limited to the size of
    /// the whole, or the whole if any user needs all elements.
    fn taken(&mut self, value: Row, cost: ShapeCost) -> i64 {
        let module = self.rules.module;
        let mut bytes = 0i64;
        self.pending.clear();
        self.pending.push(value);
        while let Some(value) = self.pending.pop() {
            for user in module.users().get(value.0) {
                let user = Row(*user);
                let Some(budget) = self.budget.checked_sub(1) else { return cost.size };
                self.budget = budget;
                let operands = module.operands(user);
                let is_only_first = || {
                    let (first, others) = operands.split_first().unwrap_or((&NO_ROW, &[]));
                    *first == value.0 && others.len() < 64 && !others.contains(&value.0)
                };
                match module.opcode(user) {
                    Opcode::Slice | Opcode::DynamicSlice if is_only_first() => {
                        let taken = part_of(cost, self.rules.shape(user).elements);
                        bytes = bytes.saturating_add(taken);
                    }
                    Opcode::Gather if is_only_first() => {
                        let fact = self.facts.get(user.0);
                        let taken = self.rules.slices(user, 0, self.rules.shape(user), fact);
                        bytes = bytes.saturating_add(taken.max(0));
                    }
                    Opcode::DynamicUpdateSlice
                        if is_only_first() && self.in_place.binary_search(&user.0).is_ok() => {}
                    Opcode::Scatter
                        if is_only_first() && self.in_place.binary_search(&user.0).is_ok() =>
                    {
                        let fact = self.facts.get(user.0);
                        let update = self.rules.operand(user, 2);
                        let taken = self.rules.slices(user, 0, update, fact);
                        bytes = bytes.saturating_add(taken.max(0));
                    }
                    Opcode::Fusion if self.nested(value, user) => {}
                    _ if is_view(module, user)
                        && !module.users().get(user.0).is_empty()
                        && module.flags(user) & Flags::ROOT == 0 =>
                    {
                        self.pending.push(user);
                    }
                    _ => return cost.size,
                }
            }
        }
        bytes.min(cost.size)
    }

    /// Follows `value` into nested fusion `fusion`; false if the fusion passes it on as its result.
    fn nested(&mut self, value: Row, fusion: Row) -> bool {
        let module = self.rules.module;
        let Some(id) = module.called(fusion, CallRole::Calls) else { return false };
        let root = module.computation(id).root;
        let parameters = self.facts.parameters(module, id);
        let Some(budget) = self.budget.checked_sub(parameters.len() as u64) else { return false };
        self.budget = budget;
        for (index, operand) in module.operands(fusion).iter().enumerate() {
            if *operand == value.0 {
                match parameters.get(index) {
                    Some(parameter) if *parameter != root => self.pending.push(Row(*parameter)),
                    _ => return false,
                }
            }
        }
        true
    }
}

/// Half of a size, for a triangle of the matrix; -1 stays unknown.
fn half(size: i64) -> i64 {
    if size < 0 { size } else { size / 2 }
}

/// Total steps allowed for following operands into nested fusions.
pub(super) fn budget(module: &Module) -> u64 {
    1_000_000 + 64 * module.columns().operands.len() as u64
}

/// Whether `row` only reinterprets or converts its operand, element by element and in place.
fn is_view(module: &Module, row: Row) -> bool {
    match module.opcode(row) {
        Opcode::Bitcast | Opcode::Convert | Opcode::Reshape => true,
        // A copy into another layout moves elements.
        Opcode::Copy => {
            let shapes = module.shapes();
            let order = |id: ShapeId| {
                let layout = shapes.array(id).and_then(|array| array.layout);
                layout.map(|layout| &layout.minor_to_major)
            };
            let operand = module.operands(row).first().map(|operand| module.shape(Row(*operand)));
            operand.is_some_and(|operand| order(operand) == order(module.shape(row)))
        }
        _ => false,
    }
}

/// Whether `row`, in a fusion that overlaps a collective, is the collective or a value that is only
/// passed through.
pub(super) fn is_in_flight(module: &Module, row: Row) -> bool {
    match module.opcode(row) {
        Opcode::Parameter => true,
        Opcode::GetTupleElement => module.operands(row).first().is_some_and(|operand| {
            let opcode = module.opcode(Row(*operand));
            opcode == Opcode::Parameter || is_collective(opcode)
        }),
        opcode => is_collective(opcode),
    }
}

fn is_collective(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::AllGather
            | Opcode::AllReduce
            | Opcode::AllToAll
            | Opcode::CollectivePermute
            | Opcode::ReduceScatter
    )
}

/// Bytes of `elements` elements of an array stored like `whole`.
fn part_of(whole: ShapeCost, elements: i64) -> i64 {
    if elements < 0 || whole.size < 0 {
        return -1;
    }
    if whole.elements <= 0 {
        return 0;
    }
    let bytes = i128::from(whole.size) * i128::from(elements) / i128::from(whole.elements);
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
