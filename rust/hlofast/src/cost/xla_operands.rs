//! XLA's sums by operand and by result: `bytes accessed0{}`, `utilization0{}`, `bytes
//! accessedout{1}` and so on, as JAX's `cost_analysis()` returns them.
//!
//! Separate from `xla.rs` because these sums are rarely read and each row has many. 32-bit floats
//! are added in XLA's order, so that results are bit for bit equal.

use super::custom_call::custom_call_target;
use super::facts::Fact;
use super::rules::{Class, class_of};
use super::traffic::is_in_flight;
use super::xla::{Engine, VisitOrder};
use super::xla_fusion::elements_taken;
use crate::ir::size::Backend;
use crate::ir::{CallRole, ComputationId, Opcode, Row, ShapeId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The number type of the sums.
pub(super) trait Real: Copy + Default + PartialOrd + Into<f64> {
    fn of_bytes(bytes: i128) -> Self;
    fn of(value: f64) -> Self;
    fn plus(self, other: Self) -> Self;
}

impl Real for f64 {
    fn of_bytes(bytes: i128) -> Self {
        bytes as f64
    }
    fn of(value: f64) -> Self {
        value
    }
    fn plus(self, other: Self) -> Self {
        self + other
    }
}

impl Real for f32 {
    fn of_bytes(bytes: i128) -> Self {
        bytes as f32
    }
    fn of(value: f64) -> Self {
        value as f32
    }
    fn plus(self, other: Self) -> Self {
        self + other
    }
}

/// Indices of a nested tuple element, outermost first.
type Path = Box<[u32]>;

/// A part of operand `.0`, or of the result if `.0` is None.
type Part = (Option<u32>, Path);

/// The sums of one instruction or computation; missing entries are 0.
#[derive(Clone, Debug, Default)]
struct Sums<N> {
    /// Bytes accessed of operands, by number.
    operands: Vec<N>,
    /// Utilization of operands, by number.
    utilization: Vec<N>,
    /// Bytes accessed of the result.
    result: N,
    /// Bytes accessed of parts of tuples.
    parts: BTreeMap<Part, N>,
}

impl<N: Real> Sums<N> {
    fn len(&self) -> usize {
        1 + self.operands.len() + self.utilization.len() + self.parts.len()
    }

    fn set(list: &mut Vec<N>, index: usize, value: N) {
        if list.len() <= index {
            list.resize(index + 1, N::default());
        }
        if let Some(slot) = list.get_mut(index) {
            *slot = value;
        }
    }

    fn set_operand(&mut self, index: usize, value: N) {
        Self::set(&mut self.operands, index, value);
    }

    fn set_utilization(&mut self, index: usize, value: N) {
        Self::set(&mut self.utilization, index, value);
    }

    /// Applies `change` to every sum with the value of `other`, where that value is not 0.
    fn merge(&mut self, other: &Self, change: impl Fn(&mut N, N)) {
        let change = |sum: &mut N, value: N| {
            if value != N::default() {
                change(sum, value);
            }
        };
        let merge_lists = |sums: &mut Vec<N>, values: &[N]| {
            if sums.len() < values.len() {
                sums.resize(values.len(), N::default());
            }
            for (sum, value) in sums.iter_mut().zip(values) {
                change(sum, *value);
            }
        };
        merge_lists(&mut self.operands, &other.operands);
        merge_lists(&mut self.utilization, &other.utilization);
        change(&mut self.result, other.result);
        for (part, value) in &other.parts {
            change(self.parts.entry(part.clone()).or_default(), *value);
        }
    }

    fn add(&mut self, other: &Self) {
        self.merge(other, |sum, value| *sum = sum.plus(value));
    }

    fn raise(&mut self, other: &Self) {
        self.merge(other, |sum, value| {
            if *sum < value {
                *sum = value;
            }
        });
    }

    /// The sums under XLA's names; sums of 0 are left out.
    fn named(self) -> Vec<(String, f64)> {
        let numbered = |word: &'static str, values: Vec<N>| {
            let named = move |(index, value)| (format!("{word}{index}{{}}"), value);
            values.into_iter().enumerate().map(named)
        };
        let of_part = |((operand, path), value): (Part, N)| {
            let path: Vec<String> = path.iter().map(u32::to_string).collect();
            let place = operand.map_or_else(|| "out".to_owned(), |operand| operand.to_string());
            (format!("bytes accessed{place}{{{}}}", path.join(",")), value)
        };
        numbered("bytes accessed", self.operands)
            .chain(numbered("utilization", self.utilization))
            .chain([("bytes accessedout{}".to_owned(), self.result)])
            .chain(self.parts.into_iter().map(of_part))
            .filter(|(_, value)| *value != N::default())
            .map(|(name, value)| (name, value.into()))
            .collect()
    }
}

/// Bytes that a fusion reads of one parameter: in total, and by leaf of a tuple.
struct Read {
    bytes: i128,
    /// 1, or 0 for a parameter that only the overlapped collective uses.
    utilization: f64,
    leaves: Vec<(Path, i128)>,
}

/// The sums of the entry by XLA's names. None if following nested calls takes more than `limit`
/// steps, far more than any compiler output needs.
pub(super) fn operand_sums<N: Real>(
    engine: &Engine<'_, i128>,
    limit: u64,
) -> Option<Vec<(String, f64)>> {
    let module = engine.rules.module;
    let count = module.computations().len();
    let entry = module.entry();
    let mut needed = vec![false; count];
    needed[entry.0 as usize] = true;
    for id in module.computation_post_order().iter().rev() {
        if needed[id.0 as usize] {
            for call in module.computation(*id).rows().flat_map(|row| module.calls(Row(row))) {
                let is_summed = is_summed(module.opcode(call.row), engine.backend);
                needed[call.computation.0 as usize] |= is_summed;
            }
        }
    }
    let reads = vec![None; count];
    let mut operands = Operands { engine, sums: vec![None; count], reads, left: limit };
    let mut order = VisitOrder::new(module);
    for id in module.computation_post_order().iter().filter(|id| needed[id.0 as usize]) {
        let sums = operands.computation(*id, &mut order)?;
        operands.sums[id.0 as usize] = Some(sums);
    }
    let sums: Sums<N> = operands.sums[entry.0 as usize].take().unwrap_or_default();
    Some(sums.named())
}

/// Whether an instruction's sums include the sums of its callees.
fn is_summed(opcode: Opcode, backend: Backend) -> bool {
    backend == Backend::Tpu && opcode == Opcode::Scatter
        || matches!(
            opcode,
            Opcode::Fusion
                | Opcode::Call
                | Opcode::AsyncStart
                | Opcode::While
                | Opcode::Conditional
        )
}

struct Operands<'a, N> {
    engine: &'a Engine<'a, i128>,
    /// By computation, once visited.
    sums: Vec<Option<Sums<N>>>,
    /// By fused computation, once visited: the bytes it reads of each parameter.
    reads: Vec<Option<Rc<[Read]>>>,
    /// Remaining steps.
    left: u64,
}

impl<N: Real> Operands<'_, N> {
    /// Deducts `steps` from the budget; None if it is exceeded.
    fn charge(&mut self, steps: usize) -> Option<()> {
        self.left = self.left.checked_sub(steps as u64)?;
        Some(())
    }

    fn bytes(bytes: i64) -> N {
        N::of_bytes(i128::from(bytes.max(0)))
    }

    fn computation(&mut self, id: ComputationId, order: &mut VisitOrder) -> Option<Sums<N>> {
        let mut sum = Sums::default();
        for row in order.of(self.engine.rules.module, id) {
            let row = Row(*row);
            let sums = self.row(row, self.engine.facts.get(row.0))?;
            self.charge(sums.len())?;
            sum.add(&sums);
        }
        Some(sum)
    }

    /// The sums of the computation that `row` calls as `role`.
    fn called(&mut self, row: Row, role: CallRole) -> Option<Sums<N>> {
        let called = self.engine.rules.module.called(row, role);
        self.sums_of(called)
    }

    fn sums_of(&mut self, id: Option<ComputationId>) -> Option<Sums<N>> {
        let sums = id.and_then(|id| self.sums[id.0 as usize].as_ref());
        let steps = sums.map_or(1, Sums::len);
        self.left = self.left.checked_sub(steps as u64)?;
        Some(sums.cloned().unwrap_or_default())
    }

    fn row(&mut self, row: Row, fact: Option<&Fact>) -> Option<Sums<N>> {
        let module = self.engine.rules.module;
        match module.opcode(row) {
            Opcode::Fusion => self.fusion(row, fact),
            Opcode::Call => self.called(row, CallRole::ToApply),
            Opcode::AsyncStart => {
                let role = match module.called(row, CallRole::Calls) {
                    Some(_) => CallRole::Calls,
                    None => CallRole::Wrapped,
                };
                self.called(row, role)
            }
            Opcode::While => {
                let mut sums = self.called(row, CallRole::Body)?;
                sums.add(&self.called(row, CallRole::Condition)?);
                Some(sums)
            }
            Opcode::Conditional => {
                let mut branches = module.calls(row).iter().map(|call| call.computation);
                let mut sums = self.sums_of(branches.next())?;
                for branch in branches {
                    sums.raise(&self.sums_of(Some(branch))?);
                }
                Some(sums)
            }
            opcode => self.plain(row, opcode, fact),
        }
    }

    /// The default rule: operands are read whole (a tuple as its pointer table), and all leaves of
    /// the result are written.
    fn whole(&mut self, row: Row) -> Option<Sums<N>> {
        let rules = self.engine.rules;
        let operands = rules.module.operands(row);
        self.charge(operands.len())?;
        let result = rules.shapes[rules.module.shape(row).0 as usize];
        let size = if result.is_tuple { result.leaves } else { rules.shape(row).size };
        Some(Sums {
            operands: operands.iter().map(|row| Self::bytes(rules.shape(Row(*row)).size)).collect(),
            utilization: vec![N::of(1.0); operands.len()],
            result: Self::bytes(size),
            parts: BTreeMap::new(),
        })
    }

    fn plain(&mut self, row: Row, opcode: Opcode, fact: Option<&Fact>) -> Option<Sums<N>> {
        let rules = self.engine.rules;
        let mut sums = self.whole(row)?;
        let size = |index: usize| Self::bytes(rules.operand(row, index).size);
        match opcode {
            _ if class_of(opcode) == Class::Free => {
                sums.result = N::default();
                sums.operands.clear();
            }
            Opcode::Transpose if matches!(fact, Some(Fact::IsBitcast)) => {
                sums.result = N::default();
                sums.operands.clear();
            }
            Opcode::Tuple => {
                sums.result = Self::bytes(rules.shape(row).size);
                sums.operands.clear();
            }
            Opcode::Slice | Opcode::DynamicSlice => {
                sums.set_operand(0, sums.result);
                self.takes_part(&mut sums, row, rules.shape(row).elements);
            }
            Opcode::DynamicUpdateSlice => {
                sums.result = size(1);
                sums.set_operand(0, N::default());
                let (whole, update) = (rules.shape(row).elements, rules.operand(row, 1).elements);
                if whole >= 0 && update >= 0 {
                    let kept = (whole - update) as f64 / whole as f64;
                    sums.set_utilization(0, N::of(kept));
                }
            }
            Opcode::Gather => self.gather(&mut sums, row, fact),
            Opcode::Scatter => self.scatter(&mut sums, row, fact),
            // XLA records the second operand's size for the first.
            Opcode::TriangularSolve => sums.set_operand(0, size(1)),
            Opcode::Cholesky => {
                let half = N::of(rules.operand(row, 0).size.max(0) as f64 / 2.0);
                sums.set_operand(0, half);
                sums.result = half;
            }
            Opcode::Infeed => {
                let leaves = self.leaves(rules.module.shape(row))?;
                let parts = leaves.into_iter().filter(|(path, _)| !path.is_empty());
                sums.parts.extend(parts.map(|(path, size)| ((None, path), Self::bytes(size))));
            }
            Opcode::Outfeed => {
                for (index, operand) in rules.module.operands(row).iter().enumerate() {
                    let leaves = self.leaves(rules.module.shape(Row(*operand)))?;
                    let total = leaves.iter().map(|(_, size)| i128::from(*size)).sum();
                    let place = u32::try_from(index).ok();
                    let parts = leaves.into_iter().filter(|(path, _)| !path.is_empty());
                    sums.parts.extend(parts.map(|(path, size)| ((place, path), Self::bytes(size))));
                    sums.set_operand(index, N::of_bytes(total));
                }
            }
            Opcode::CustomCall => self.custom_call(&mut sums, row, fact),
            _ => {}
        }
        Some(sums)
    }

    /// Records that only `elements` elements of operand 0 are used.
    fn takes_part(&self, sums: &mut Sums<N>, row: Row, elements: i64) {
        let whole = self.engine.rules.operand(row, 0).elements;
        if whole >= 0 && elements >= 0 {
            sums.set_utilization(0, N::of(elements as f64 / whole as f64));
        }
    }

    /// Fills in `sums` for gather `row`, or for a fusion that is costed as its inner gather `row`.
    /// libtpu counts all of the first operand as utilized.
    fn gather(&self, sums: &mut Sums<N>, row: Row, fact: Option<&Fact>) {
        let rules = self.engine.rules;
        let result = rules.shape(row);
        sums.set_operand(0, Self::bytes(rules.slices(row, 0, result, fact)));
        sums.set_operand(1, Self::bytes(rules.operand(row, 1).size));
        sums.result = Self::bytes(result.size);
        if self.engine.backend != Backend::Tpu {
            self.takes_part(sums, row, result.elements);
        }
    }

    /// Fills in `sums` for scatter `row`, or for a fusion that is costed as its inner scatter
    /// `row`. libtpu also multiplies the utilizations of the combiner.
    fn scatter(&self, sums: &mut Sums<N>, row: Row, fact: Option<&Fact>) {
        let rules = self.engine.rules;
        let inputs = rules.module.operands(row).len().saturating_sub(1) / 2;
        let mut written = 0i64;
        for index in 0..inputs {
            let update = rules.operand(row, inputs + 1 + index);
            let moved = rules.slices(row, index, update, fact).max(0);
            sums.set_operand(index, Self::bytes(moved));
            sums.set_operand(inputs + 1 + index, Self::bytes(update.size));
            written = written.saturating_add(moved);
        }
        sums.set_operand(inputs, Self::bytes(rules.operand(row, inputs).size));
        sums.result = Self::bytes(written);
        let combiner = rules.module.called(row, CallRole::ToApply);
        let combiner = combiner.and_then(|id| self.sums[id.0 as usize].as_ref());
        if let (Backend::Tpu, Some(combiner)) = (self.engine.backend, combiner) {
            let times = rules.operand(row, inputs + 1).elements.max(0) as f64;
            for (index, used) in combiner.utilization.iter().enumerate() {
                if *used != N::default() {
                    sums.set_utilization(index, N::of((*used).into() * times));
                }
            }
        }
    }

    /// XLA does not know custom calls and reports -1; libtpu knows some of them.
    fn custom_call(&self, sums: &mut Sums<N>, row: Row, fact: Option<&Fact>) {
        let engine = self.engine;
        let target = match engine.backend {
            Backend::Tpu => custom_call_target(engine.rules.module, row),
            Backend::Cpu | Backend::Gpu => None,
        };
        match target.as_deref() {
            Some(b"AllocateBuffer") => sums.result = N::default(),
            Some(b"PartialReduce") => {}
            _ if engine.custom_call(row, fact).bytes == -1 => {
                sums.operands.fill(N::of(-1.0));
                sums.result = N::of(-1.0);
            }
            _ => {}
        }
    }

    /// The leaves of `shape` with their paths and sizes.
    fn leaves(&mut self, shape: ShapeId) -> Option<Vec<(Path, i64)>> {
        let rules = self.engine.rules;
        let mut leaves = Vec::new();
        let mut stack: Vec<(ShapeId, Vec<u32>)> = vec![(shape, Vec::new())];
        while let Some((shape, path)) = stack.pop() {
            self.charge(1 + path.len())?;
            match rules.module.shapes().tuple(shape) {
                None => {
                    let size = rules.shapes[shape.0 as usize].size.max(0);
                    leaves.push((path.into(), size));
                }
                Some(elements) => stack.extend(children(elements, &path).rev()),
            }
        }
        Some(leaves)
    }

    fn fusion(&mut self, row: Row, fact: Option<&Fact>) -> Option<Sums<N>> {
        let module = self.engine.rules.module;
        let Some(&Fact::Fusion { callee: id, is_custom }) = fact else { return self.whole(row) };
        if is_custom {
            for inner in module.computation(id).rows().map(Row) {
                let fact = self.engine.facts.get(inner.0);
                let opcode = module.opcode(inner);
                if matches!(opcode, Opcode::Gather | Opcode::Scatter) {
                    let mut sums = self.whole(row)?;
                    match opcode {
                        Opcode::Gather => self.gather(&mut sums, inner, fact),
                        _ => self.scatter(&mut sums, inner, fact),
                    }
                    return Some(sums);
                }
            }
        }
        // XLA keeps the inner sums where the fusion has no operand or result of that number.
        let mut sums = self.sums_of(Some(id))?;
        self.fusion_results(&mut sums, row, id)?;
        let reads = self.reads(id)?;
        for (index, read) in reads.iter().enumerate() {
            self.charge(1 + read.leaves.len())?;
            for (path, bytes) in &read.leaves {
                let place = (u32::try_from(index).ok(), path.clone());
                sums.parts.insert(place, N::of_bytes(*bytes));
            }
            sums.set_operand(index, N::of_bytes(read.bytes));
            sums.set_utilization(index, N::of(read.utilization));
        }
        Some(sums)
    }

    fn fusion_results(&mut self, sums: &mut Sums<N>, row: Row, id: ComputationId) -> Option<()> {
        let rules = self.engine.rules;
        let module = rules.module;
        let shapes = module.shapes();
        let root = Row(module.computation(id).root);
        let written = |value: Row, whole: i64| match module.opcode(value) {
            Opcode::DynamicUpdateSlice => Self::bytes(rules.operand(value, 1).size),
            _ => Self::bytes(whole),
        };
        let shape = module.shape(row);
        if shapes.tuple(shape).is_none() {
            if shapes.array(shape).is_some() {
                sums.result = written(root, rules.shape(row).size);
            }
            return Some(());
        }
        let is_async = self.engine.is_async(id);
        // Breadth first, so that the elements of a tuple are adjacent.
        let mut nodes: Vec<(ShapeId, Vec<u32>, std::ops::Range<usize>)> =
            vec![(shape, Vec::new(), 0..0)];
        let mut next = 0;
        while let Some((shape, path, _)) = nodes.get(next).cloned() {
            self.charge(1 + path.len())?;
            if let Some(elements) = shapes.tuple(shape) {
                let start = nodes.len();
                nodes.extend(children(elements, &path).map(|(shape, path)| (shape, path, 0..0)));
                let end = nodes.len();
                if let Some(node) = nodes.get_mut(next) {
                    node.2 = start..end;
                }
            } else if shapes.array(shape).is_some() {
                let whole = rules.shapes[shape.0 as usize].size;
                let value = match (path.as_slice(), module.opcode(root)) {
                    ([index], Opcode::Tuple) => module.operands(root).get(*index as usize),
                    _ => None,
                };
                let value = value.map(|value| Row(*value));
                let bytes = match value {
                    Some(value) if is_async && is_in_flight(module, value) => N::default(),
                    Some(value) => written(value, whole),
                    None => Self::bytes(whole),
                };
                sums.parts.insert((None, path.into()), bytes);
            }
            next += 1;
        }
        // A tuple without a sum yet gets the sum of its elements.
        let mut values = Vec::with_capacity(nodes.len());
        let mut is_open = vec![false; nodes.len()];
        for (index, (_, path, children)) in nodes.iter().enumerate() {
            let known = match index {
                0 => N::default(),
                _ => *sums.parts.entry((None, path.as_slice().into())).or_default(),
            };
            is_open[index] |= index == 0;
            if is_open[index] && known == N::default() {
                is_open[children.clone()].fill(true);
            }
            values.push(known);
        }
        for (index, (_, path, children)) in nodes.iter().enumerate().rev() {
            if is_open[index] && values[index] == N::default() {
                let parts = values[children.clone()].iter();
                values[index] = parts.fold(N::default(), |sum, part| sum.plus(*part));
                if index == 0 {
                    sums.result = values[index];
                } else {
                    sums.parts.insert((None, path.as_slice().into()), values[index]);
                }
            }
        }
        Some(())
    }

    /// The bytes that fused computation `id` reads of each parameter.
    fn reads(&mut self, id: ComputationId) -> Option<Rc<[Read]>> {
        if let Some(known) = &self.reads[id.0 as usize] {
            return Some(Rc::clone(known));
        }
        let engine = self.engine;
        let module = engine.rules.module;
        let is_async = engine.is_async(id);
        let root = Row(module.computation(id).root);
        let mut reads = Vec::new();
        for parameter in engine.facts.parameters(module, id).iter().map(|row| Row(*row)) {
            let mut users = module.users().get(parameter.0).iter().map(|row| Row(*row));
            if is_async && users.all(|user| user == root || is_in_flight(module, user)) {
                reads.push(Read { bytes: 0, utilization: 0.0, leaves: Vec::new() });
                continue;
            }
            let mut leaves = Vec::new();
            if module.shapes().tuple(module.shape(parameter)).is_none() {
                reads.push(Read { bytes: engine.read_bytes(parameter), utilization: 1.0, leaves });
                continue;
            }
            let mut stack = vec![(module.shape(parameter), parameter, Vec::new())];
            while let Some((shape, value, path)) = stack.pop() {
                self.charge(1 + path.len() + module.users().get(value.0).len())?;
                match module.shapes().tuple(shape) {
                    None => leaves.push((path.into(), engine.read_bytes(value))),
                    Some(elements) => {
                        let taken = elements_taken(module, value, elements.len());
                        let within = children(elements, &path).zip(taken);
                        stack.extend(within.map(|((shape, path), value)| (shape, value, path)));
                    }
                }
            }
            let bytes = leaves.iter().map(|(_, bytes)| *bytes).sum();
            reads.push(Read { bytes, utilization: 1.0, leaves });
        }
        let reads: Rc<[Read]> = reads.into();
        self.reads[id.0 as usize] = Some(Rc::clone(&reads));
        Some(reads)
    }
}

/// The elements of the tuple at `path`, with their own paths.
fn children<'a>(
    elements: &'a [ShapeId],
    path: &'a [u32],
) -> impl DoubleEndedIterator<Item = (ShapeId, Vec<u32>)> + 'a {
    let place = |index: usize| path.iter().copied().chain(u32::try_from(index).ok()).collect();
    elements.iter().enumerate().map(move |(index, shape)| (*shape, place(index)))
}
