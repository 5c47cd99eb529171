//! Finds, for each instruction, the dimensions of operands and results that are split together.
//!
//! As in XLA's propagation, an instruction is a list of factors. A factor is a set of dimensions of
//! operands and results that are split together. A dot has the factors batch, M, N and K.

use super::factors::{Kind, Ties};
use super::spread::Spread;
use crate::cost::matmul::{DotDimensions, dimensions, dot_dimensions};
use crate::flow::{Edge, NodeId};
use crate::ir::decode::{AttributeValue, DimensionLabel, DimensionLabels, decode};
use crate::ir::{CallRole, Module, Opcode, Row};
use std::ops::Range;

/// The dimensions of one array value.
#[derive(Clone, Copy)]
struct Array<'s> {
    first: u32,
    sizes: &'s [i64],
}

impl Array<'_> {
    fn rank(&self) -> usize {
        self.sizes.len()
    }

    fn at(&self, dimension: usize) -> Option<u32> {
        (dimension < self.rank()).then(|| self.first + dimension as u32)
    }

    fn listed(&self, dimensions: &[i64], index: usize) -> Option<u32> {
        self.at(usize::try_from(*dimensions.get(index)?).ok()?)
    }

    /// The dimensions that are in none of `lists`.
    fn free(&self, lists: &[&[i64]]) -> Vec<u32> {
        let is_free =
            |dimension: &usize| !lists.iter().any(|list| list.contains(&(*dimension as i64)));
        (0..self.rank()).filter(is_free).filter_map(|dimension| self.at(dimension)).collect()
    }
}

/// What is left to do of a walk through the program.
enum Task {
    Rows(NodeId, Range<u32>),
    Results(NodeId, u32),
}

/// Collects the factors of every instruction.
pub(super) struct Collector<'s, 'a> {
    pub module: &'a Module,
    pub spread: &'s Spread<'a>,
    pub ties: Ties,
}

impl<'s> Collector<'s, '_> {
    fn array(&self, node: NodeId, row: u32) -> Option<Array<'s>> {
        let values = self.spread.values.of(node, row);
        (values.len() == 1).then(|| self.leaf(values.start))
    }

    fn leaf(&self, value: usize) -> Array<'s> {
        let dimensions = self.spread.dimensions(value);
        Array { first: dimensions.start as u32, sizes: &self.spread.sizes[dimensions] }
    }

    /// Adds the factors of an instruction whose operands and results have the same shape.
    fn same(&mut self, operands: &[usize], results: &[usize], kind: Kind) {
        let Some(first) = results.first().map(|value| self.leaf(*value)) else { return };
        let spread = self.spread;
        for dimension in 0..first.rank() {
            let of = |value: &usize| {
                let own = spread.dimensions(*value);
                (own.len() == first.rank()).then_some((own.start + dimension) as u32)
            };
            self.ties.factor(operands.iter().map(of), results.iter().map(of), true);
        }
        self.ties.end(kind);
    }

    /// Ties each leaf of one range to the corresponding leaf of the other.
    fn pairs(&mut self, operands: Range<usize>, results: Range<usize>) {
        if operands.len() == results.len() {
            for (operand, result) in operands.zip(results) {
                self.same(&[operand], &[result], Kind::Simple);
            }
        }
    }

    /// Adds the factors of all instructions, as Shardy visits them: the program's results, and then the
    /// instructions from top to bottom, with those of called computations where they are called.
    pub fn program(&mut self) {
        let contexts = self.spread.values.contexts;
        let mut is_seen = vec![false; contexts.nodes.len()];
        let root = self.module.computation(self.module.entry()).root;
        self.row(0, root);
        let mut tasks = Vec::new();
        for node in 0..contexts.nodes.len() as NodeId {
            self.enter(node, &mut is_seen, &mut tasks);
            while let Some(task) = tasks.pop() {
                match task {
                    Task::Rows(node, mut rows) => {
                        let Some(row) = rows.next() else { continue };
                        tasks.push(Task::Rows(node, rows));
                        self.row(node, row);
                        if self.calls(node, row).is_empty() {
                            continue;
                        }
                        self.arguments(node, row);
                        tasks.push(Task::Results(node, row));
                        for edge in self.calls(node, row).iter().rev() {
                            self.enter(edge.callee, &mut is_seen, &mut tasks);
                        }
                    }
                    Task::Results(node, row) => self.returned(node, row),
                }
            }
        }
    }

    fn enter(&self, node: NodeId, is_seen: &mut [bool], tasks: &mut Vec<Task>) {
        let own = &self.spread.values.contexts.nodes[node as usize];
        if !std::mem::replace(&mut is_seen[node as usize], true) && !own.is_applied {
            tasks.push(Task::Rows(node, self.module.computation(own.computation).rows()));
        }
    }

    /// The calls that `row` makes.
    fn calls(&self, node: NodeId, row: u32) -> &'s [Edge] {
        let edges = self.spread.values.contexts.edges_of(node);
        let calls = self.module.all_calls();
        let before = |edge: &Edge, row: u32| calls[edge.call as usize].row.0 < row;
        let start = edges.partition_point(|edge| before(edge, row));
        let end = edges.partition_point(|edge| before(edge, row.saturating_add(1)));
        edges.get(start..end).unwrap_or_default()
    }

    /// The parameters of the computation that a call leads to, each with the caller's operand.
    fn given(&self, edge: &Edge, branch: usize) -> Vec<(Range<usize>, Range<usize>)> {
        let values = &self.spread.values;
        let contexts = values.contexts;
        let callee = &contexts.nodes[edge.callee as usize];
        let Some(arguments) = values.arguments(edge, branch).filter(|_| !callee.is_applied) else {
            return Vec::new();
        };
        let parameters = self.module.parameters(callee.computation);
        let of = |parameter: Row| {
            let operand = arguments.of_parameter(self.module, parameter.0)?;
            let theirs = values.of(edge.callee, parameter.0);
            Some((values.of(edge.caller, operand), theirs))
        };
        parameters.into_iter().filter_map(of).collect()
    }

    /// Ties what `row` calls a computation with to its parameters.
    fn arguments(&mut self, node: NodeId, row: u32) {
        if self.module.opcode(Row(row)) == Opcode::While {
            return;
        }
        for (branch, edge) in self.calls(node, row).iter().enumerate() {
            for (operand, parameter) in self.given(edge, branch) {
                self.pairs(operand, parameter);
            }
        }
    }

    /// Ties what the computations that `row` calls return to its result. What a loop carries is split alike
    /// before, within and after it.
    fn returned(&mut self, node: NodeId, row: u32) {
        let module = self.module;
        let values = &self.spread.values;
        let is_loop = module.opcode(Row(row)) == Opcode::While;
        let results = values.of(node, row);
        let (mut from, mut to) = (Vec::new(), vec![results.clone()]);
        if is_loop {
            from.extend(module.operands(Row(row)).first().map(|operand| values.of(node, *operand)));
        }
        for edge in self.calls(node, row) {
            let callee = &values.contexts.nodes[edge.callee as usize];
            if callee.is_applied {
                continue;
            }
            if module.all_calls()[edge.call as usize].role != CallRole::Condition {
                let root = module.computation(callee.computation).root;
                from.push(values.of(edge.callee, root));
            }
            if is_loop {
                to.extend(self.given(edge, 0).into_iter().map(|(_, parameter)| parameter));
            }
        }
        for leaf in 0..results.len() {
            let of = |all: &[Range<usize>]| -> Vec<usize> {
                let alike = all.iter().filter(|own| own.len() == results.len());
                alike.map(|own| own.start + leaf).collect()
            };
            let (from, to) = (of(&from), of(&to));
            if !from.is_empty() {
                self.same(&from, &to, Kind::Simple);
            }
        }
    }

    fn row(&mut self, node: NodeId, row: u32) -> Option<()> {
        let module = self.module;
        let opcode = module.opcode(Row(row));
        let operands = module.operands(Row(row));
        let values = &self.spread.values;
        use Opcode::*;
        match opcode {
            Tuple => {
                let mut at = values.of(node, row).start;
                for operand in operands {
                    let theirs = values.of(node, *operand);
                    let count = theirs.len();
                    self.pairs(theirs, at..at + count);
                    at += count;
                }
                return Some(());
            }
            GetTupleElement => {
                let theirs = values.element(values.within(node), row, *operands.first()?);
                self.pairs(theirs, values.of(node, row));
                return Some(());
            }
            OptBarrier | Domain | Copy => {
                let theirs = values.of(node, *operands.first()?);
                self.pairs(theirs, values.of(node, row));
                return Some(());
            }
            CustomCall if is_identity(module, Row(row)) => {
                let theirs = values.of(node, *operands.first()?);
                self.pairs(theirs, values.of(node, row));
                return Some(());
            }
            Reduce => return self.reduce(node, row),
            Sort => return self.sort(node, row),
            _ => {}
        }
        let result = self.array(node, row)?;
        let array = |index: usize| self.array(node, *operands.get(index)?);
        match opcode {
            Transpose | Broadcast => {
                let operand = array(0)?;
                let map = dimensions(module, Row(row), "dimensions")?;
                // A transpose lists the operand's dimensions, a broadcast the result's.
                let (listed, other) =
                    if opcode == Transpose { (operand, result) } else { (result, operand) };
                for index in 0..map.len() {
                    let at = usize::try_from(*map.get(index)?).ok()?;
                    if listed.sizes.get(at) != other.sizes.get(index) {
                        continue;
                    }
                    let (listed, other) = ([listed.listed(&map, index)], [other.at(index)]);
                    if opcode == Transpose {
                        self.ties.factor(listed, other, true);
                    } else {
                        self.ties.factor(other, listed, true);
                    }
                }
                self.ties.end(if opcode == Transpose { Kind::Simple } else { Kind::Broadcast });
            }
            Reshape | Bitcast => {
                let operand = array(0)?;
                for (a, b) in aligned(operand.sizes, result.sizes) {
                    let size = common(operand.sizes.get(a), result.sizes.get(b));
                    self.ties.sized([operand.at(a)], [result.at(b)], (size, true));
                }
                self.ties.end(Kind::Simple);
            }
            Dot => {
                let lists = dot_dimensions(module, Row(row))?;
                let (lhs, rhs) = (array(0)?, array(1)?);
                self.dot(&lists, lhs, rhs, result);
            }
            Convolution => self.convolution(Row(row), array(0)?, array(1)?, result)?,
            Gather => self.gather(Row(row), array(0)?, array(1)?, result)?,
            Scatter => self.scatter(Row(row), array(0)?, array(1)?, array(2)?, result)?,
            Concatenate | Slice | DynamicSlice | DynamicUpdateSlice | Pad | Reverse
            | ReduceWindow | SelectAndScatter => {
                let count = match opcode {
                    Concatenate => operands.len(),
                    DynamicUpdateSlice | SelectAndScatter => 2,
                    _ => 1,
                };
                let arrays: Vec<Array<'_>> = (0..count).filter_map(array).collect();
                for dimension in 0..result.rank() {
                    let size = result.sizes.get(dimension);
                    let is_alike = |array: &&Array<'_>| array.sizes.get(dimension) == size;
                    let own = [result.at(dimension)];
                    if matches!(opcode, DynamicSlice | DynamicUpdateSlice) {
                        // A slice at an index may start anywhere, so that dimension is not tied.
                        let alike = arrays.iter().filter(is_alike);
                        self.ties.factor(alike.map(|array| array.at(dimension)), own, true);
                    } else {
                        // XLA splits others as the whole, such as the gates of a recurrence, and moves
                        // elements between devices.
                        let is_through = arrays.iter().all(|array| is_alike(&array));
                        let all = arrays.iter().map(|array| array.at(dimension));
                        self.ties.factor(all, own, is_through);
                    }
                }
                let is_at_index = matches!(opcode, DynamicSlice | DynamicUpdateSlice);
                self.ties.end(if is_at_index { Kind::Slice } else { Kind::Other });
            }
            _ if opcode.is_elementwise() => {
                let alike = |operand: &u32| {
                    let theirs = values.of(node, *operand);
                    let is_alike =
                        theirs.len() == 1 && self.leaf(theirs.start).sizes == result.sizes;
                    is_alike.then_some(theirs.start)
                };
                let all: Vec<usize> = operands.iter().filter_map(alike).collect();
                // An error function is a custom call for Shardy.
                let kind = if opcode == Erf { Kind::Other } else { Kind::Simple };
                self.same(&all, &[values.of(node, row).start], kind);
            }
            _ => {}
        }
        Some(())
    }

    fn dot(&mut self, lists: &DotDimensions, lhs: Array<'_>, rhs: Array<'_>, out: Array<'_>) {
        let batches = lists.lhs_batch.len();
        for index in 0..batches {
            let both = [lhs.listed(&lists.lhs_batch, index), rhs.listed(&lists.rhs_batch, index)];
            self.ties.factor(both, [out.at(index)], true);
        }
        let rows = lhs.free(&[&lists.lhs_batch, &lists.lhs_contracting]);
        let columns = rhs.free(&[&lists.rhs_batch, &lists.rhs_contracting]);
        for (index, dimension) in rows.iter().chain(&columns).enumerate() {
            self.ties.factor([Some(*dimension)], [out.at(batches + index)], true);
        }
        for index in 0..lists.lhs_contracting.len() {
            let both = [
                lhs.listed(&lists.lhs_contracting, index),
                rhs.listed(&lists.rhs_contracting, index),
            ];
            self.ties.factor(both, [], false);
        }
        self.ties.end(Kind::Other);
    }

    fn convolution(
        &mut self,
        row: Row,
        lhs: Array<'_>,
        rhs: Array<'_>,
        out: Array<'_>,
    ) -> Option<()> {
        let labels = labels(self.module, row)?;
        let at = |array: Array<'_>, list: &[DimensionLabel], label| {
            array.at(DimensionLabels::position(list, label)?)
        };
        use DimensionLabel::{Batch, Feature, InputFeature, OutputFeature};
        let grouped = |key| self.module.attribute(row, key).is_some();
        // In grouped convolutions, features and batches run over groups as well.
        if !grouped("batch_group_count") {
            let own = [at(out, &labels.output, Batch)];
            self.ties.factor([at(lhs, &labels.lhs, Batch)], own, true);
        }
        if !grouped("feature_group_count") && !grouped("batch_group_count") {
            let own = [at(out, &labels.output, Feature)];
            self.ties.factor([at(rhs, &labels.rhs, OutputFeature)], own, true);
            let both = [at(lhs, &labels.lhs, Feature), at(rhs, &labels.rhs, InputFeature)];
            self.ties.factor(both, [], false);
        }
        self.ties.end(Kind::Other);
        Some(())
    }

    fn reduce(&mut self, node: NodeId, row: u32) -> Option<()> {
        let removed = dimensions(self.module, Row(row), "dimensions")?;
        let operands = self.module.operands(Row(row));
        let results = self.spread.values.of(node, row);
        let inputs = operands.get(..results.len())?;
        let first = self.array(node, *inputs.first()?)?;
        for (index, kept) in (0..first.rank())
            .filter(|dimension| !removed.contains(&(*dimension as i64)))
            .enumerate()
        {
            let theirs = inputs.iter().map(|row| self.array(node, *row)?.at(kept));
            let theirs: Vec<Option<u32>> = theirs.collect();
            let own: Vec<Option<u32>> =
                results.clone().map(|value| self.leaf(value).at(index)).collect();
            self.ties.factor(theirs, own, true);
        }
        self.ties.end(Kind::Other);
        Some(())
    }

    fn sort(&mut self, node: NodeId, row: u32) -> Option<()> {
        let sorted = dimensions(self.module, Row(row), "dimensions")?;
        let operands = self.module.operands(Row(row));
        let results = self.spread.values.of(node, row);
        let rank = self.leaf(results.start).rank();
        for dimension in (0..rank).filter(|dimension| !sorted.contains(&(*dimension as i64))) {
            let theirs: Vec<Option<u32>> =
                operands.iter().map(|row| self.array(node, *row)?.at(dimension)).collect();
            let own: Vec<Option<u32>> =
                results.clone().map(|value| self.leaf(value).at(dimension)).collect();
            self.ties.factor(theirs, own, true);
        }
        self.ties.end(Kind::Other);
        Some(())
    }

    fn gather(
        &mut self,
        row: Row,
        operand: Array<'_>,
        indices: Array<'_>,
        out: Array<'_>,
    ) -> Option<()> {
        let list = |key| dimensions(self.module, row, key);
        let (offsets, collapsed) = (list("offset_dims")?, list("collapsed_slice_dims")?);
        let batching = list("operand_batching_dims")?;
        let sizes = list("slice_sizes")?;
        let places = Places::of(self.module, row, "start_indices_batching_dims", indices)?;
        let own = out.free(&[&offsets]);
        for (index, dimension) in own.iter().enumerate() {
            let place = places.dimensions.get(index).copied();
            let both = [places.batching_of(index, &batching, operand), place];
            self.ties.factor(both, [Some(*dimension)], true);
        }
        let kept = operand.free(&[&collapsed, &batching]);
        for (index, dimension) in kept.iter().enumerate() {
            let at = (*dimension - operand.first) as usize;
            if sizes.get(at) == operand.sizes.get(at) {
                self.ties.factor([Some(*dimension)], [out.listed(&offsets, index)], true);
            }
        }
        self.ties.end(Kind::Other);
        Some(())
    }

    fn scatter(
        &mut self,
        row: Row,
        operand: Array<'_>,
        indices: Array<'_>,
        updates: Array<'_>,
        out: Array<'_>,
    ) -> Option<()> {
        let list = |key| dimensions(self.module, row, key);
        let (windows, inserted) = (list("update_window_dims")?, list("inserted_window_dims")?);
        let batching = list("input_batching_dims")?;
        let places = Places::of(self.module, row, "scatter_indices_batching_dims", indices)?;
        let kept = operand.free(&[&inserted, &batching]);
        let scattered = updates.free(&[&windows]);
        for dimension in 0..operand.rank() {
            let id = operand.at(dimension)?;
            let window = kept.iter().position(|own| *own == id);
            let update = window.and_then(|index| updates.listed(&windows, index));
            let size = |id: u32| updates.sizes.get((id - updates.first) as usize);
            let update = update.filter(|id| size(*id) == operand.sizes.get(dimension));
            self.ties.factor([Some(id), update], [out.at(dimension)], true);
        }
        for (index, dimension) in scattered.iter().enumerate() {
            let place = places.dimensions.get(index).copied();
            let batch = places.batching_of(index, &batching, operand);
            // Devices add up updates of different places.
            self.ties.factor([batch, place, Some(*dimension)], [], batch.is_some());
        }
        self.ties.end(Kind::Other);
        Some(())
    }
}

/// The dimensions of the indices of a gather or scatter that list places.
struct Places {
    dimensions: Vec<u32>,
    /// Dimensions that are batching dimensions of the operand too.
    batching: Vec<u32>,
}

impl Places {
    fn of(module: &Module, row: Row, key: &str, indices: Array<'_>) -> Option<Self> {
        let text = module.attribute_bytes(row, "index_vector_dim")?;
        let Ok(AttributeValue::Integer(vector)) =
            decode(b"index_vector_dim", module.opcode(row), text)
        else {
            return None;
        };
        let batching = dimensions(module, row, key)?;
        let batching = (0..batching.len()).filter_map(|at| indices.listed(&batching, at));
        Some(Self { dimensions: indices.free(&[&[vector]]), batching: batching.collect() })
    }

    /// The batching dimension of `operand` for place `index`.
    fn batching_of(&self, index: usize, batching: &[i64], operand: Array<'_>) -> Option<u32> {
        let own = self.dimensions.get(index)?;
        let at = self.batching.iter().position(|dimension| dimension == own)?;
        operand.listed(batching, at)
    }
}

pub(super) fn labels(module: &Module, row: Row) -> Option<DimensionLabels> {
    let text = module.attribute_bytes(row, "dim_labels")?;
    match decode(b"dim_labels", Opcode::Convolution, text).ok()? {
        AttributeValue::DimensionLabels(labels) => Some(labels),
        _ => None,
    }
}

/// Custom calls that return their operand.
fn is_identity(module: &Module, row: Row) -> bool {
    let Some(target) = module.attribute_bytes(row, "custom_call_target") else { return false };
    let target = target.strip_prefix(b"\"").unwrap_or(target);
    let target = target.strip_suffix(b"\"").unwrap_or(target);
    const TARGETS: [&[u8]; 8] = [
        b"Sharding",
        b"xla.sdy.FuncResultSharding",
        b"xla.sdy.PropagationBarrier",
        b"annotate_device_placement",
        b"MoveToHost",
        b"MoveToDevice",
        b"LayoutConstraint",
        b"xla.sdy.ShardingGroup",
    ];
    TARGETS.contains(&target) && module.operands(row).len() == 1
}

/// Elements that two dimensions of a reshape have in common.
fn common(a: Option<&i64>, b: Option<&i64>) -> i64 {
    let (mut a, mut b) = (a.map_or(0, |size| size.abs()), b.map_or(0, |size| size.abs()));
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Pairs of dimensions of two shapes with equal elements in equal order, for which splitting one is
/// the same as splitting the other: equal dimensions, and the first of merged dimensions.
fn aligned(a: &[i64], b: &[i64]) -> Vec<(usize, usize)> {
    let own = |sizes: &[i64]| -> Vec<usize> {
        (0..sizes.len()).filter(|at| sizes.get(*at).is_some_and(|size| *size != 1)).collect()
    };
    let (left, right) = (own(a), own(b));
    let size = |sizes: &[i64], list: &[usize], at: usize| {
        Some(*sizes.get(*list.get(at)?)?).filter(|size| *size > 0)
    };
    let mut pairs = Vec::new();
    let (mut i, mut j) = (0, 0);
    while let (Some(first), Some(second)) = (size(a, &left, i), size(b, &right, j)) {
        pairs.extend(left.get(i).zip(right.get(j)).map(|(i, j)| (*i, *j)));
        let (mut own, mut other) = (first, second);
        while own != other {
            let (product, next) = if own < other {
                i += 1;
                (&mut own, size(a, &left, i))
            } else {
                j += 1;
                (&mut other, size(b, &right, j))
            };
            match next.and_then(|next| product.checked_mul(next)) {
                Some(larger) => *product = larger,
                None => return pairs,
            }
        }
        i += 1;
        j += 1;
    }
    pairs
}
